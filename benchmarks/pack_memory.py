"""Peak memory of packing many small images against packing few, and how soon the pack of many opens.

    python -m benchmarks.pack_memory [--quick]

Packs 2,000 and 200,000 generated JPEGs of 64x64 pixels (`--quick`: 2,000 and 20,000) to pixels with `pack_dataset`, out
of a folder and out of a zip, each in a process of its own, and prints the largest resident size that the kernel saw of
each (`VmHWM`: unlike `ru_maxrss` it starts anew with the program that runs, so a large parent does not show in it).

Flat means: what is kept for each file is its name and some columns of numbers, so a hundred times the files take at
most 1.35 times the peak, and at most 125 bytes for each further file (or 8 MiB, by which packs of one number differ).
Then the larger pack is opened, several times in another process: the quickest opening (`dataset_h5` and its length)
must take less than 20 ms. Ends with exit code 1 when one of these is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks._report import against
from benchmarks._small_jpegs import write_small_jpegs, zip_small_jpegs

COUNTS = (2_000, 200_000)
QUICK_COUNTS = (2_000, 20_000)
ALLOWED_RATIO = 1.35
# A name of 19 bytes and 4 to find it; 17 for size, time and place, 18 for what a zip says besides; 56 for the label,
# the row, the order of reading and the place in the pack. The rest is what allocators keep.
ALLOWED_BYTES_EACH = 125
# Buffers are full or not, threads started or not: what two packs of the same number differ by.
SCATTER_BYTES = 8 * 1024 * 1024
OPEN_S = 0.020

Source = Literal["folder", "zip"]

_HELPERS = """
import json, os, sys, time

def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024

def cpu_s():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
"""
_PACK = """
from colabstage.pack.run import pack_dataset
start = time.perf_counter()
samples = sum(pack_dataset(sys.argv[1], sys.argv[2], encoding="pixels", progress=False).samples.values())
found = {"samples": samples, "seconds": time.perf_counter() - start, "cpu_s": cpu_s(), "peak_bytes": peak()}
"""
_OPEN = """
import numpy as np
from colabstage import dataset_h5, make_loader
opened, first = [], []
for _ in range(9):
    start = time.perf_counter()
    dataset = dataset_h5(sys.argv[1])
    rows = len(dataset)
    opened.append(time.perf_counter() - start)
    dataset.read_batch(np.linspace(0, rows - 1, 64).astype(int))
    first.append(time.perf_counter() - start)
start = time.perf_counter()
next(iter(make_loader(dataset, 64)))
loader = time.perf_counter() - start
found = {"rows": rows, "open_s": min(opened), "batch_s": min(first), "loader_s": loader}
"""
# A million small files take minutes on a slow disk.
_STEP_S = 7200


@dataclass(frozen=True)
class PackMemory:
    """What planning or packing took in a fresh process."""

    samples: int
    """How many there are."""
    seconds: float
    """By the clock."""
    cpu_s: float
    """Of all cores, which other work hardly changes."""
    peak_bytes: int
    """The largest resident size."""

    def __str__(self) -> str:
        return (
            f"{self.samples:>7,} images  {self.peak_bytes / 1024**2:7.1f} MiB at the peak  "
            f"{self.samples / self.seconds:7,.0f} images/s"
        )


@dataclass(frozen=True)
class Opening:
    """How a pack opens."""

    rows: int
    """Of `train`."""
    open_s: float
    """Until their number is known: the quickest of nine, as of `batch_s`."""
    batch_s: float
    """Until 64 rows from all over the file are there."""
    loader_s: float
    """From the call of `make_loader` until its first batch, shuffled; once, what it imports included."""

    def __str__(self) -> str:
        return (
            f"the pack of {self.rows:,} rows opens in {self.open_s * 1000:.1f} ms; "
            f"its first batch of 64 is there after {self.batch_s * 1000:.1f} ms"
        )


def measure(home: Path, count: int, source: Source = "folder") -> PackMemory:
    """Make `count` JPEGs below `home` and pack them, to `home/SOURCE-COUNT.h5`, in a process of its own."""
    made = home / f"{source}-{count}{'.zip' if source == 'zip' else ''}"
    (write_small_jpegs if source == "folder" else zip_small_jpegs)(made, count)
    return packing(made, packed(home, count, source))


def packed(home: Path, count: int, source: Source = "folder") -> Path:
    """Where `measure` leaves the pack."""
    return home / f"{source}-{count}.h5"


def packing(source: Path, pack: Path) -> PackMemory:
    """Pack to pixels in a process of its own."""
    return PackMemory(**run_step(_PACK, source, pack))


def opening(pack: Path) -> Opening:
    """Open a pack in a process of its own."""
    return Opening(**run_step(_OPEN, pack))


def run_step(code: str, *paths: Path) -> dict[str, Any]:
    """Run one step in a process of its own, and return what it calls `found`.

    `code` has `peak()` and `cpu_s()`, those of its process, and the paths as its arguments.
    """
    command = [sys.executable, "-c", f"{_HELPERS}\n{code}\nprint(json.dumps(found))", *map(str, paths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_STEP_S)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def bytes_each(few: PackMemory, many: PackMemory) -> float:
    """How many bytes of memory each further image took."""
    return (many.peak_bytes - few.peak_bytes) / (many.samples - few.samples)


def memory_holds(few: PackMemory, many: PackMemory) -> bool:
    """Whether the larger pack took no more memory than is allowed."""
    allowed = max(SCATTER_BYTES, ALLOWED_BYTES_EACH * (many.samples - few.samples))
    return many.peak_bytes <= ALLOWED_RATIO * few.peak_bytes and many.peak_bytes - few.peak_bytes <= allowed


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="2,000 and 20,000 images")
    counts = QUICK_COUNTS if parser.parse_args().quick else COUNTS
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    kept = True
    with tempfile.TemporaryDirectory(prefix="pack-memory-") as name:
        home = Path(name)
        sources: tuple[Source, ...] = ("folder", "zip")
        for source in sources:
            few, many = (measure(home, count, source) for count in counts)
            holds = memory_holds(few, many)
            kept = kept and holds
            ratio = many.peak_bytes / few.peak_bytes
            print(f"{source:<6}  {few}\n{source:<6}  {many}")
            print(
                f"{'ok' if holds else 'MISS'}: times the peak: {against(ratio, ALLOWED_RATIO, 'at most', 3)}; "
                f"bytes for each further image, or 8 MiB: "
                f"{against(bytes_each(few, many), ALLOWED_BYTES_EACH, 'at most', 0)}"
            )
            packed(home, counts[0], source).unlink()
        found = opening(packed(home, counts[1]))
        quick = found.open_s < OPEN_S
        opens = against(found.open_s * 1000, OPEN_S * 1000, "less than", 1)
        print(f"{'ok' if quick else 'MISS'}: {found}; opening it, in ms: {opens}")
    return 0 if kept and quick else 1


if __name__ == "__main__":
    sys.exit(main())
