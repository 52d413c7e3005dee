"""A source that has changed: what is read of it, beside a fresh staging.

    python -m benchmarks.delta [--images 2000]

Of JPEGs of about 100 kB in class folders twenty are added, twenty removed, twenty rewritten with their old length, and
twenty moved to another class. Each source (a folder on a simulated Google Drive, one in moto's bucket 40 ms away, a
zip on a web server) is staged before, and again after; then afresh, elsewhere, which has to give the same bytes.
Counted are files opened and bytes sent, against those of the files that need reading: the added and rewritten ones, and
in the bucket, whose ETags are not compared across names, the moved ones. The listing of the zip's members is not
counted. Exit code 1 when a promise is missed, or when the two packs differ.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._bucket import far_bucket
from benchmarks._photographs import photograph, write_photographs
from benchmarks._report import Promise, judge
from colabstage.stage.run import stage_dataset
from simulated_drive.drive import SimulatedDrive, fuse_problem
from simulated_drive.knobs import DriveKnobs
from tests.support.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.stage.dataset import StagedDataset

KNOBS = replace(DriveKnobs(), cold_open_latency_s=0.03)
SIZE, EDITED = (224, 224), 20
BUCKET_LATENCY_S, BUCKET_BYTES_PER_S = 0.04, 50e6


def stage(source: str | Path, local: Path) -> tuple[StagedDataset, float]:
    """The staged dataset, and the seconds that it took."""
    began = time.perf_counter()
    staged = stage_dataset(source, image_size=SIZE, local_dir=local, cache_dir=None, progress=False)
    return staged, time.perf_counter() - began


def edit(folder: Path) -> tuple[list[Path], list[Path]]:
    """Change the files; return those that are new in content, and those that were moved."""
    files = sorted(folder.rglob("*.jpg"))
    step = len(files) // (3 * EDITED)
    removed, rewritten, moved = (files[at::step][:EDITED] for at in (0, 1, 2))
    added = [folder / files[0].parent.name / f"new_{number:03}.jpg" for number in range(EDITED)]
    for number, path in enumerate(added):
        path.write_bytes(photograph(1000 + number % 4) + bytes([number]))
    for path in removed:
        path.unlink()
    for number, path in enumerate(rewritten):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1 + number
        path.write_bytes(content)
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    there = [classes[(classes.index(path.parent) + 1) % len(classes)] / path.name for path in moved]
    for old, new in zip(moved, there, strict=True):
        old.rename(new)
    return [*added, *rewritten], there


def compare(
    name: str,
    source: str | Path,
    home: Path,
    needed: list[Path],
    sent: Callable[[], tuple[int, int]],
    *,
    listing: int = 0,
) -> list[Promise]:
    """Stage what has changed, and afresh; print both, and return what is promised. `sent`: opens and bytes so far,
    opens 0 where they are not counted; `listing`: bytes that any call takes."""
    before = sent()
    updated, update_s = stage(source, home / "local")
    after = sent()
    fresh, fresh_s = stage(source, home / "fresh")
    nbytes = sum(path.stat().st_size for path in needed)
    opens, moved = after[0] - before[0], after[1] - before[1] - listing
    print(f"{name}: {next(note for note in updated.report.notes if 'taken over' in note)}")
    print(f"  {update_s:.2f} s, and {fresh_s:.2f} s for a fresh staging: {fresh_s / update_s:.1f} times as fast")
    same = updated.path.read_bytes() == fresh.path.read_bytes()
    print("  byte for byte the fresh pack" if same else "  DIFFERENT from the fresh pack", flush=True)
    ratios = [("bytes", moved / nbytes), ("opens", opens / len(needed)), ("packs that differ", 0.0 if same else 2.0)]
    of = f"those of the {len(needed)} files that need it"
    return [Promise(f"{name}: {what} / {of}", ratio, "at most", 1.2) for what, ratio in ratios if ratio]


def measure_drive(home: Path, images: int) -> list[Promise]:
    """A folder on Drive, whose client reports MD5s."""
    with SimulatedDrive(home / "drive", knobs=KNOBS) as drive:
        mount = home / "content" / "drive"
        mount.mkdir(parents=True)
        folder = drive.cloud / "MyDrive" / "photos"
        write_photographs(folder, images)
        drive.mount(mount)
        stage(mount / "MyDrive" / "photos", home / "local")
        needed, _ = edit(folder)
        drive.new_machine()
        drive.mount(mount)

        def sent() -> tuple[int, int]:
            stats = drive.stats()
            return stats.cold_opens + stats.warm_opens, stats.bytes_cold + stats.bytes_warm

        return compare("Drive", mount / "MyDrive" / "photos", home, needed, sent)


def measure_bucket(home: Path, images: int) -> list[Promise]:
    """A folder in a bucket."""
    folder = home / "photos"
    write_photographs(folder, images)
    with far_bucket(BUCKET_LATENCY_S, BUCKET_BYTES_PER_S) as bucket:
        os.environ.update(bucket.login)
        bucket.put(folder, "photos")
        stage("s3://data/photos", home / "local")
        earlier = {path.relative_to(folder) for path in folder.rglob("*.jpg")}
        needed, moved = edit(folder)
        bucket.put(folder, "photos")
        for gone in earlier - {path.relative_to(folder) for path in folder.rglob("*.jpg")}:
            bucket.remove(f"photos/{gone}")
        return compare("bucket", "s3://data/photos", home, [*needed, *moved], lambda: (0, bucket.sent()))


def measure_web(home: Path, images: int) -> list[Promise]:
    """A zip on a web server."""
    folder, archive = home / "photos", home / "photos.zip"
    write_photographs(folder, images)

    def pack() -> int:
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(folder.rglob("*.jpg")):
                file.write(path, path.relative_to(folder))
            return archive.stat().st_size - file.start_dir

    pack()
    with WebServer({"photos.zip": archive}) as server:
        url = server.url("photos.zip")
        stage(url, home / "local")
        needed, _ = edit(folder)
        pack()
        server.put("photos.zip", archive)
        began = server.bytes_sent
        stage_listing(url)
        listing = server.bytes_sent - began
        return compare("zip on the web", url, home, needed, lambda: (0, server.bytes_sent), listing=listing)


def stage_listing(url: str) -> None:
    """What looking at the archive takes: both ends, with the directory of its members."""
    from colabstage.stage.plan import plan_stage

    plan_stage(url, image_size=SIZE, cache_dir=None)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=2000)
    images = parser.parse_args().images
    if problem := fuse_problem():
        print(problem, file=sys.stderr)
        return 1
    print(f"{images:,} JPEGs of about 100 kB to {SIZE[0]}x{SIZE[1]}; {EDITED} of each edit. {KNOBS}\n")
    promises = []
    for work in (measure_drive, measure_bucket, measure_web):
        with tempfile.TemporaryDirectory(prefix="delta-") as home:
            # Only the Drive below this folder counts as one.
            os.environ["COLABSTAGE_SYSTEM_ROOT"] = home
            promises += work(Path(home), images)
    return judge(promises)


if __name__ == "__main__":
    sys.exit(main())
