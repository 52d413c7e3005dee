"""Each kind of bad day of a mounted Drive: whole data, or one typed error with the remedy; never wrong data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files, stage_dataset
from colabstage.errors import (
    SourceChangedError,
)
from colabstage.trees.folder import FolderTree
from simulated_drive.knobs import DriveFaults, ListingFault

if TYPE_CHECKING:
    from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetch(source: Path, target: Path) -> dict[str, bytes]:
    """Fetch a folder, in silence."""
    fetch_files(source, target, progress=False)
    return contents(target)


@pytest.fixture
def truth(drive: SimulatedDrive, make_images: MakeImages) -> dict[str, bytes]:
    """Forty images in the cloud."""
    return contents(make_images(drive.cloud / "MyDrive" / "photos", 40))


@pytest.mark.parametrize("cached", [False, True])
def test_a_listing_that_lacks_files_is_listed_again(
    cached: bool, truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, tmp_path: Path
) -> None:
    """What was made of half a folder never counts: it is listed again before anything is recorded or published."""
    drive.set_faults(DriveFaults(listings=(ListingFault(pattern="MyDrive/photos/*", keep=0.5, first=2),)))
    place = tmp_path / "cache" if cached else None
    staged = stage_dataset(my_drive / "photos", cache_dir=place, progress=False)
    assert staged.splits == {"train": 40}
    assert any("20 files more" in note for note in staged.report.notes)
    if place is not None:
        (pack,) = place.glob("*.h5")
        assert pack.read_bytes() == staged.path.read_bytes()


def test_a_folder_that_never_lists_twice_the_same_is_refused(
    truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload under way: nothing is kept that would count, plain files neither, and the error says what differs."""
    listed = iter(range(1000))

    def more(self: FolderTree, *args: Any, **options: Any) -> None:
        (drive.cloud / "MyDrive" / "photos" / "cat" / f"new{next(listed)}.png").write_bytes(b"")
        real(self, *args, **options)

    real = FolderTree.__init__
    monkeypatch.setattr(FolderTree, "__init__", more)
    with pytest.raises(SourceChangedError, match="1 file more"):
        stage_dataset(my_drive / "photos", keep="files", cache_dir=None, progress=False)
    with pytest.raises(SourceChangedError, match="1 file more"):
        fetch_files(my_drive / "photos", tmp_path / "here", progress=False)
    assert not (tmp_path / "here").exists()
    monkeypatch.setattr(FolderTree, "__init__", real)
    for path in (drive.cloud / "MyDrive" / "photos" / "cat").glob("new*.png"):
        path.unlink()
    assert fetch(my_drive / "photos", tmp_path / "here") == truth
