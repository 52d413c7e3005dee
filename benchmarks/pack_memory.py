"""Peak memory of packing many images against packing few: it must not grow with their number.

    python -m benchmarks.pack_memory [--quick]

Packs 2,000 and 20,000 generated JPEGs of 64x64 pixels (`--quick`: 200 and 2,000) with `pack_dataset`, each in a
process of its own, and prints the largest resident size that the kernel saw of each (`VmHWM`: unlike `ru_maxrss` it
starts anew with the program that runs, so a large parent does not show in it). Ends with exit code 1 when that
of the larger pack exceeds the smaller one's by more than 10 % and 16 MiB.
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

from benchmarks._small_jpegs import write_small_jpegs

COUNTS = (2_000, 20_000)
QUICK_COUNTS = (200, 2_000)
# Names, sizes and places of the files are kept for each of them, and allocators keep what they once had.
ALLOWED_GROWTH = 1.1
ALLOWED_BYTES = 16 * 1024 * 1024

_CHILD = """
import json, sys
from pathlib import Path
from colabstage.pack.run import pack_dataset
report = pack_dataset(sys.argv[1], sys.argv[2], image_size=(64, 64), progress=False)
peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
print(json.dumps(
    {"samples": sum(report.samples.values()), "seconds": report.seconds, "peak_bytes": peak_kib * 1024}
))
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


def measure(home: Path, count: int) -> PackMemory:
    """Make `count` JPEGs below `home` and pack them in a process of its own."""
    folder = home / f"images-{count}"
    write_small_jpegs(folder, count)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), str(home / f"{count}.h5")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    return PackMemory(**json.loads(done.stdout))


def memory_holds(few: PackMemory, many: PackMemory) -> bool:
    """Whether the larger pack took no more memory than is allowed."""
    return many.peak_bytes <= ALLOWED_GROWTH * few.peak_bytes + ALLOWED_BYTES


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="200 and 2,000 images")
    counts = QUICK_COUNTS if parser.parse_args().quick else COUNTS
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="pack-memory-") as home:
        few, many = (measure(Path(home), count) for count in counts)
    print(few)
    print(many)
    holds = memory_holds(few, many)
    ratio = many.peak_bytes / few.peak_bytes
    print(f"{'ok' if holds else 'MISS'}: {ratio:.3f} times the peak (at most {ALLOWED_GROWTH} times and 16 MiB)")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
