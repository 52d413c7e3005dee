"""A look at 2,000 files on a simulated Google Drive against listing them, all in one run.

    python -m benchmarks.drive_look [--files 2000] [--rounds 3]

A second call of `stage_dataset` proves that a folder is the one that was staged, by the MD5 that Drive's client tells
of each file. Listing the folder and asking for each size and time is what no look can do without, and it does not see a
file that was rewritten in place, with other content of the same size and time. Both are measured at the beginning of a
session, before the client has listed anything, and once more after that. Exit code 1 when the look at the beginning
takes more than twice the time of listing, or does not see the file.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._report import against
from benchmarks.stage_drive import ask_each
from colabstage.stage.run import stage_dataset
from simulated_drive.drive import SimulatedDrive, fuse_problem
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from colabstage.stage.dataset import StageReport

_FOLDERS, _SIDE = 10, 8
_MOST = 2.0
_FIRST = (
    "first of a session: listing",
    "  second call, nothing changed",
    "  second call, one file of them rewritten in place",
)
_AGAIN = ("again, out of the client's memory: listing", "  second call, nothing changed ")
# An ordinary day; only what is staged between two looks is quicker than that.
_KNOBS = replace(DriveKnobs(), cold_open_latency_s=0.03)


def _write_bitmap(path: Path, number: int) -> None:
    """An uncompressed image, so that all have one size."""
    pixels = number.to_bytes(3, "little") * _SIDE**2
    head = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    plane = (1).to_bytes(2, "little") + (24).to_bytes(2, "little")
    size = (40).to_bytes(4, "little") + 2 * _SIDE.to_bytes(4, "little")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + size + plane + bytes(24) + pixels)


class Bench:
    """A folder on a Drive, and what was staged of it."""

    def __init__(self, home: Path, files: int) -> None:
        self.drive = SimulatedDrive(home / "drive", knobs=_KNOBS)
        self.place = home / "content" / "drive"
        self.place.mkdir(parents=True)
        self.local = home / "local"
        self.local.mkdir()
        cloud = self.drive.cloud / "MyDrive" / "photos"
        self.paths = [cloud / f"class_{number % _FOLDERS:02d}" / f"{number:05d}.bmp" for number in range(files)]
        for number, path in enumerate(self.paths):
            _write_bitmap(path, number)
        self._number = files

        self.folder = self.place / "MyDrive" / "photos"

    def mount(self) -> None:
        """Begin a session: what other machines did shows, and nothing has been listed."""
        self.drive.unmount()
        self.drive.mount(self.place)

    def list(self) -> float:
        """Seconds for reading the folders and asking for each size and time."""
        began = time.perf_counter()
        ask_each(self.folder)
        return time.perf_counter() - began

    def look(self, *, finds_change: bool) -> float:
        """Seconds for the look of a second call, which is then made to its end."""
        report = self.stage()
        if (report.origin == "source") != finds_change:
            message = f"the file that was rewritten in place {'was not' if finds_change else 'is'} noticed: {report}"
            raise RuntimeError(message)
        return next(step.seconds for step in report.steps if step.name == "look")

    def stage(self) -> StageReport:
        """The plain second call, in silence."""
        return stage_dataset(self.folder, local_dir=self.local, cache_dir=None, progress=False).report

    def rewrite_one(self) -> None:
        """As another machine does: other pixels, and the size and times of before."""
        self._number += 1
        path = random.choice(self.paths)
        times = {place: place.stat() for place in (path, path.parent)}
        _write_bitmap(path, self._number)
        for place, before in times.items():
            os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def measure(bench: Bench, rounds: int) -> bool:
    """Take turns, and print; whether the promises hold."""
    rows: dict[str, list[float]] = {name: [] for name in (*_FIRST, *_AGAIN)}
    bench.mount()
    bench.stage()
    for _ in range(rounds):
        bench.mount()
        first = [bench.list()]
        again = [bench.list(), bench.look(finds_change=False)]
        bench.mount()
        first.append(bench.look(finds_change=False))
        bench.rewrite_one()
        bench.mount()
        first.append(bench.look(finds_change=True))
        for name, seconds in zip(rows, (*first, *again), strict=True):
            rows[name].append(seconds)
    middle = {name: statistics.median(taken) for name, taken in rows.items()}
    for name, taken in rows.items():
        base = middle[(_FIRST if name in _FIRST else _AGAIN)[0]]
        spread = f"({min(taken) * 1000:.0f} to {max(taken) * 1000:.0f}, {rounds} rounds)"
        print(f"{name:<54}{middle[name] * 1000:8.0f} ms{middle[name] / base:7.2f} x   {spread}")
    ratio = max(middle[name] for name in _FIRST[1:]) / middle[_FIRST[0]]
    print(f"\nok    rewritten in place and noticed: {rounds} of {rounds}")
    print(
        f"{'ok  ' if ratio <= _MOST else 'MISS'}  look / listing, first of a session: "
        f"{against(ratio, _MOST, 'at most')}"
    )
    return ratio <= _MOST


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if problem := fuse_problem():
        print(problem, file=sys.stderr)
        return 1
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="drive-look-") as home:
        # Only the Drive below this folder counts as one.
        os.environ["COLABSTAGE_SYSTEM_ROOT"] = home
        bench = Bench(Path(home), arguments.files)
        print(f"{arguments.files:,} files in {_FOLDERS} folders on a simulated Drive: {bench.drive.knobs}\n")
        try:
            return 0 if measure(bench, arguments.rounds) else 1
        finally:
            bench.drive.unmount()


if __name__ == "__main__":
    sys.exit(main())
