"""Space on the local disk: counted with the Drive client's second copy, refused with figures, and running out
midway."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import StagedDataset, stage_dataset
from colabstage.errors import NotEnoughSpaceError
from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]
MakeDisk = Callable[[int], Path]
MB = 1_000_000


def files_in(folder: Path) -> dict[str, int]:
    """Files below a folder with their sizes, without locks."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_an_archive_on_drive_counts_twice_beside_the_pack(
    drive: SimulatedDrive, my_drive: Path, make_images: MakeImages, make_zip: Callable[..., Path], make_disk: MakeDisk
) -> None:
    """A zip is copied while it is packed, and the client keeps it too: refused before the first byte."""
    folder = make_images(drive.cloud / "MyDrive" / "photos", 30, size=(300, 300))
    archive = make_zip(folder, drive.cloud / "MyDrive" / "photos.zip").stat().st_size
    disk = make_disk(2 * archive // MB)  # twice the archive, but no room for the pack
    with pytest.raises(NotEnoughSpaceError, match="needs"):
        stage_dataset(my_drive / "photos.zip", local_dir=disk / "fast", cache_dir=None, progress=False)
    assert files_in(disk) == {}
    assert drive.stats().bytes_written == 0
    staged = stage_dataset(my_drive / "photos", local_dir=disk / "fast", cache_dir=None, progress=False)
    assert staged.splits == {"train": 30}


@pytest.fixture
def stage_big(drive: SimulatedDrive, my_drive: Path, make_images: MakeImages) -> Callable[..., StagedDataset]:
    """Stage eighty images as a pack of 21 MB, three blocks."""
    make_images(drive.cloud / "MyDrive" / "photos", 80)

    def stage(local: Path, **options: Any) -> StagedDataset:
        wanted = {"image_size": (300, 300), "encoding": "pixels", "progress": False, **options}
        return stage_dataset(my_drive / "photos", local_dir=local, **wanted)

    return stage


def test_a_restored_pack_counts_twice(
    stage_big: Callable[..., StagedDataset], tmp_path: Path, make_disk: MakeDisk
) -> None:
    stage_big(tmp_path / "first")
    disk = make_disk(36)
    with pytest.raises(NotEnoughSpaceError, match=r"needs 4\d.*MB"):
        stage_big(disk / "fast")
    assert files_in(disk) == {}
