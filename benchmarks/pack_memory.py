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

_PACK = """
import json, sys
from pathlib import Path
from colabstage.pack.run import pack_dataset
report = pack_dataset(sys.argv[1], sys.argv[2], encoding="pixels", progress=False)
peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
print(json.dumps(
    {"samples": sum(report.samples.values()), "seconds": report.seconds, "peak_bytes": peak_kib * 1024}
))
"""
_OPEN = """
import json, sys, time
import numpy as np
from colabstage import dataset_h5
opened, first = [], []
for _ in range(9):
    start = time.perf_counter()
    dataset = dataset_h5(sys.argv[1])
    rows = len(dataset)
    opened.append(time.perf_counter() - start)
    dataset.__getitems__(list(range(0, 6400, 100)) if rows > 6400 else list(range(64)))
    first.append(time.perf_counter() - start)
print(json.dumps({"rows": rows, "open_s": min(opened), "batch_s": min(first)}))
"""


@dataclass(frozen=True)
class PackMemory:
    """What packing in a fresh process took: samples written, seconds, and the peak of its resident size in bytes."""

    samples: int
    seconds: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.samples:>7,} images  {self.peak_bytes / 1024**2:7.1f} MiB at the peak  "
            f"{self.samples / self.seconds:7,.0f} images/s"
        )


@dataclass(frozen=True)
class Opening:
    """How a pack opens: its rows, seconds until their number is known, and until a first batch of 64 is there."""

    rows: int
    open_s: float
    batch_s: float

    def __str__(self) -> str:
        return (
            f"the pack of {self.rows:,} rows opens in {self.open_s * 1000:.1f} ms; "
            f"its first batch of 64 is there after {self.batch_s * 1000:.1f} ms"
        )


def measure(home: Path, count: int, source: Source = "folder") -> PackMemory:
    """Make `count` JPEGs below `home` and pack them, to `home/SOURCE-COUNT.h5`, in a process of its own."""
    made = home / f"{source}-{count}{'.zip' if source == 'zip' else ''}"
    (write_small_jpegs if source == "folder" else zip_small_jpegs)(made, count)
    return PackMemory(**_run(_PACK, made, packed(home, count, source)))


def packed(home: Path, count: int, source: Source = "folder") -> Path:
    """Where `measure` leaves the pack."""
    return home / f"{source}-{count}.h5"


def opening(pack: Path) -> Opening:
    """Open a pack in a process of its own, several times; the quickest of them."""
    return Opening(**_run(_OPEN, pack))


def _run(code: str, *paths: Path) -> dict[str, Any]:
    arguments = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, timeout=1200)
    found: dict[str, Any] = json.loads(done.stdout)
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
                f"{'ok' if holds else 'MISS'}: {ratio:.3f} times the peak (at most {ALLOWED_RATIO}), "
                f"{bytes_each(few, many):.0f} bytes for each further image (at most {ALLOWED_BYTES_EACH}, or 8 MiB)"
            )
            packed(home, counts[0], source).unlink()
        found = opening(packed(home, counts[1]))
        quick = found.open_s < OPEN_S
        print(f"{'ok' if quick else 'MISS'}: {found} (opening: less than {OPEN_S * 1000:.0f} ms)")
    return 0 if kept and quick else 1


if __name__ == "__main__":
    sys.exit(main())
