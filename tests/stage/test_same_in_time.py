"""A folder of 2,000 files on Drive, one of them rewritten in place: noticed, in the time that listing takes."""

from __future__ import annotations

import io
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from colabstage.sources.opening import SLOW_LISTERS
from colabstage.stage.run import stage_dataset
from colabstage.trees.folder import FolderTree
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

pytestmark = [pytest.mark.fuse, pytest.mark.alone]
_FILES, _FOLDERS = 2_000, 10


def picture(number: int) -> bytes:
    """A BMP of 4x4 pixels, of one size whatever is on it."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (number % 256, number // 256, 7)).save(stream, "BMP")
    return stream.getvalue()


def mount_anew(drive: SimulatedDrive, knobs: DriveKnobs) -> None:
    """As the next morning: a client that has looked at nothing yet."""
    place = drive.mountpoint
    assert place is not None
    drive.unmount()
    drive.knobs = knobs
    drive.mount(place)


def test_one_of_two_thousand_is_noticed_in_twice_the_time_of_listing(drive: SimulatedDrive, my_drive: Path) -> None:
    """Times and sizes are as they were; what Drive's client tells of each file is asked while it is listed."""
    cloud = drive.cloud / "MyDrive" / "photos"
    for number in range(_FILES):
        file = cloud / f"class {number % _FOLDERS}" / f"{number}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number))
    photos = my_drive / "photos"
    assert stage_dataset(photos, cache_dir=None, progress=False).report.origin == "source"

    ordinary = DriveKnobs(cold_open_latency_s=0.0)
    mount_anew(drive, ordinary)
    began = time.monotonic()
    listed = FolderTree(photos, workers=SLOW_LISTERS)
    listing_s = time.monotonic() - began
    assert len(listed.entries) >= _FILES

    mount_anew(drive, ordinary)
    staged = stage_dataset(photos, cache_dir=None, verify="fast", progress=False)
    assert staged.report.origin == "local"
    looks = [step.seconds for step in staged.report.steps if step.name == "look"]
    assert sum(looks) <= 2 * listing_s, f"{sum(looks):.2f} s for looking, {listing_s:.2f} s for listing"

    victim = cloud / "class 3" / "3.bmp"
    before = victim.stat()
    other = victim.with_suffix(".other")
    other.write_bytes(picture(9999))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    folder = victim.parent.stat()
    shutil.move(other, victim)
    os.utime(victim.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
    mount_anew(drive, ordinary)
    changed = stage_dataset(photos, cache_dir=None, verify="fast", progress=False)
    assert changed.report.origin == "source"
    first_look = next(step.seconds for step in changed.report.steps if step.name == "look")
    assert first_look <= 2 * listing_s, f"{first_look:.2f} s for looking, {listing_s:.2f} s for listing"
