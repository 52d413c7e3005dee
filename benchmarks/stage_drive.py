"""Staging from a simulated Google Drive against copying by hand, all in one run.

    python -m benchmarks.stage_drive [--images 2000]

Measures `cp -r` of a folder of small JPEGs and `cp` of a zip of them against `stage_dataset` of each, with decoding: to
pixels as they are (the plain call) and to 224x224, the latter also in a process of its own, which imports everything
first, and with publishing the pack to Drive; the limits: listing the folder and reading all of its files by as many
threads, and nothing else, and a process of its own that makes the same pixels by bare calls
(`benchmarks/_bare_stage.py`); a second call; and a fresh machine that starts from the cached pack against `cp` of the
same file. Every contender starts with a cold Drive. A second call proves that the source is the same, so it is also
compared with what that cannot do without: on a local disk reading the folders and asking for each file's size and time,
on Drive listing the same folder. Exit code 1 when one of the promised ratios is missed.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from benchmarks._photographs import write_photographs, zip_folder
from benchmarks._report import Promise, judge
from colabstage.sources.to_folder import SLOW_READERS
from colabstage.stage.run import stage_dataset
from simulated_drive.drive import SimulatedDrive, fuse_problem
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.stage.dataset import StagedDataset

# An ordinary day, but for the cold open: 30 ms is its fast end, which favours `cp`. Uploads are quick only to save
# waiting between the contenders; none of them waits for one.
KNOBS = replace(DriveKnobs(), cold_open_latency_s=0.03, upload_bytes_per_s=50e6)
SMALL = (224, 224)
LOCAL_FILES = 20_000


def _tiny_jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return buffer.getvalue()


class Bench:
    """A Drive, a place on the local disk, and the times so far."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.drive = SimulatedDrive(home / "drive", knobs=KNOBS)
        self.my_drive = self.drive.cloud / "MyDrive"
        self.mountpoint = home / "content" / "drive"
        self._runs = 0

    @contextmanager
    def cold_mount(self) -> Iterator[Path]:
        """The mounted `MyDrive` of a machine that has never read anything."""
        self.drive.new_machine()
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        self.drive.mount(self.mountpoint)
        try:
            yield self.mountpoint / "MyDrive"
        finally:
            self.drive.unmount()

    def local(self) -> Path:
        """A fresh place on the local disk."""
        self._runs += 1
        place = self.home / f"local-{self._runs}"
        place.mkdir()
        return place

    def timed(self, name: str, work: Callable[[Path], object], *, rounds: int = 3) -> float:
        """Seconds that `work` takes on a cold mount: the median of the rounds."""
        times = []
        for _ in range(rounds):
            with self.cold_mount() as mount:
                os.sync()
                began = time.perf_counter()
                work(mount)
                times.append(time.perf_counter() - began)
            for place in self.home.glob("local-*"):
                shutil.rmtree(place)
        spread = f"   ({min(times):.2f} to {max(times):.2f})" if rounds > 1 else ""
        print(f"{name:<58} {statistics.median(times):8.2f} s{spread}", flush=True)
        return statistics.median(times)


def copy(source: Path, target: Path) -> None:
    """`cp -r`, as people do."""
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)


def stage(
    source: Path, local: Path, *, cache: Path | None = None, size: tuple[int, int] | None = None
) -> StagedDataset:
    """The one cell, in silence."""
    return stage_dataset(source, image_size=size, local_dir=local, cache_dir=cache, progress=False)


def stage_afresh(source: Path, local: Path) -> None:
    """The one cell in a process that has imported nothing, to 224x224. From the second on modules are compiled already,
    as pip leaves them."""
    call = (
        f"stage_dataset({str(source)!r}, image_size={SMALL}, local_dir={str(local)!r}, cache_dir=None, progress=False)"
    )
    _run_compiled("-c", f"from colabstage import stage_dataset; {call}")


def make_pixels_afresh(source: Path, local: Path) -> None:
    """The same pixels by bare calls, in a process that has imported nothing."""
    _run_compiled("-m", "benchmarks._bare_stage", str(source), str(local / "rows"))


def _run_compiled(*arguments: str) -> None:
    compiles = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], check=True, env=compiles)


def read_bare(folder: Path) -> None:
    """List a folder and read all of its files by as many threads as staging has, keeping nothing."""
    with ThreadPoolExecutor(SLOW_READERS) as pool:
        listed = pool.map(lambda place: [path for path in place.iterdir() if path.is_file()], folder.iterdir())
        paths = [path for paths in listed for path in paths]
        for _ in pool.map(lambda path: len(path.read_bytes()), paths):
            pass


def ask_each(folder: str | Path) -> int:
    """Read a folder and those in it, and ask for each file's size and time; the number of files."""
    files = 0
    with os.scandir(folder) as scan:
        for entry in scan:
            if entry.is_dir():
                files += ask_each(entry.path)
            else:
                entry.stat()
                files += 1
    return files


def by_turns(first: Callable[[], object], second: Callable[[], object], *, rounds: int) -> tuple[float, float]:
    """Seconds that each of two takes, by turns: the median of the rounds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, taken in zip((first, second), times, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def measure_local_look(bench: Bench, files: int) -> Promise:
    """A second call on a folder of the local disk against asking for all of its files."""
    folder, place, tiny = bench.home / "many", bench.local(), _tiny_jpeg()
    for number in range(files):
        path = folder / f"class_{number % 20:02d}" / f"image_{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tiny)
    stage(folder, place)
    bound_s, second_s = by_turns(lambda: ask_each(folder), lambda: stage(folder, place), rounds=9)
    print(f"{f'second call on a local folder of {files:,} files':<58} {second_s * 1000:8.1f} ms")
    print(f"{'  reading it and asking for sizes and times':<58} {bound_s * 1000:8.1f} ms")
    shutil.rmtree(folder)
    return _at_most("second call on a local folder / scandir and stat", second_s / bound_s, 2)


def _at_most(what: str, ratio: float, limit: float) -> Promise:
    return Promise(what, ratio, "at most", limit, 3)


def measure(bench: Bench, images: int) -> list[Promise]:
    """Run all contenders, and compare. What waits for the Drive alone runs once, what computes three times."""
    folder = bench.my_drive / "photos"
    total = write_photographs(folder, images)
    zip_folder(folder, bench.my_drive / "photos.zip")
    print(f"{images} JPEGs of {total / images / 1000:.0f} kB, 500x375\n")

    copied = bench.timed("cp -r folder", lambda mount: copy(mount / "photos", bench.local()), rounds=1)
    staged = bench.timed("stage_dataset(folder), as they are", lambda m: stage(m / "photos", bench.local()))
    small = bench.timed("stage_dataset(folder), to 224x224", lambda m: stage(m / "photos", bench.local(), size=SMALL))
    afresh = bench.timed("  in a process of its own", lambda m: stage_afresh(m / "photos", bench.local()))
    bare = bench.timed(f"  limit: listing and reading, {SLOW_READERS} threads", lambda m: read_bare(m / "photos"))
    by_hand = bench.timed(
        "  limit: the same pixels by bare calls", lambda m: make_pixels_afresh(m / "photos", bench.local())
    )
    published = bench.timed(
        "stage_dataset(folder), to 224x224, pack published",
        lambda m: stage(m / "photos", bench.local(), cache=m / "cache-a", size=SMALL),
        rounds=1,
    )
    zip_copied = bench.timed("cp zip", lambda m: copy(m / "photos.zip", bench.local()), rounds=1)
    zip_staged = bench.timed("stage_dataset(zip), as they are", lambda m: stage(m / "photos.zip", bench.local()))
    zip_small = bench.timed(
        "stage_dataset(zip), to 224x224", lambda m: stage(m / "photos.zip", bench.local(), size=SMALL)
    )

    cache, again = "cache", bench.local()
    with bench.cold_mount() as mount:
        first = stage(mount / "photos", again, cache=mount / cache, size=SMALL)
        print(str(first.report).replace(str(bench.home), "…"))
        began = time.perf_counter()
        second = stage(mount / "photos", again, cache=mount / cache, size=SMALL)
        second_s = time.perf_counter() - began
        print(f"{'second call on the same machine':<58} {second_s * 1000:8.1f} ms ({second.report.origin})")
        ask, look = mount / "photos", (lambda: stage(mount / "photos", again, cache=mount / cache, size=SMALL))
        bound_s, look_s = by_turns(lambda: ask_each(ask), look, rounds=3)
        print(f"{'  listing the folder and asking for sizes and times':<58} {bound_s * 1000:8.1f} ms")
        if not bench.drive.flush(timeout_s=600):
            message = "the pack was not uploaded in time"
            raise RuntimeError(message)
    pack = next((bench.my_drive / cache).glob("*.h5"))
    pack_copied = bench.timed("cp packed file", lambda m: copy(m / cache / pack.name, bench.local()), rounds=1)
    restored = bench.timed(
        "stage_dataset on a fresh machine, from the cache",
        lambda m: stage(m / "photos", bench.local(), cache=m / cache, size=SMALL),
        rounds=1,
    )
    print(f"\nfolder to 224x224 / cp -r: {small / copied:.3f}; zip to 224x224 / cp: {zip_small / zip_copied:.3f}")
    print(
        f"cp -r / folder to 224x224 in a process of its own: {copied / afresh:.1f}; cp -r / the limit: "
        f"{copied / bare:.1f}"
    )
    print(f"with publishing to Drive, the first session took {published / small:.2f} times as long\n")
    return [
        _at_most("folder: stage_dataset / cp -r", staged / copied, 1 / 12),
        # Beyond the bare calls it lists once more and asks for the MD5 of each file, to know the source again, and
        # hashes the pack; and it takes labels, checks and plans.
        _at_most("folder, fresh processes: stage_dataset / bare calls", afresh / by_hand, 1.25),
        _at_most("zip: stage_dataset / cp", zip_staged / zip_copied, 1.3),
        # It asks for the MD5 of each file, which a listing does not: what it costs grows with the files, as that does.
        _at_most("second call, with the MD5 of each file / listing", look_s / bound_s, 2),
        _at_most("from the cache: stage_dataset / cp of the pack", restored / pack_copied, 1.1),
    ]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=2000)
    arguments = parser.parse_args()
    if problem := fuse_problem():
        print(problem, file=sys.stderr)
        return 1
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"simulated Drive: {KNOBS}\n")
    with tempfile.TemporaryDirectory(prefix="stage-drive-") as home:
        # Only the Drive below this folder counts as one.
        os.environ["COLABSTAGE_SYSTEM_ROOT"] = home
        bench = Bench(Path(home))
        return judge([measure_local_look(bench, LOCAL_FILES), *measure(bench, arguments.images)])


if __name__ == "__main__":
    sys.exit(main())
