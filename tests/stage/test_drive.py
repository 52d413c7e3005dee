"""`stage_dataset` from a mounted (simulated) Google Drive: sessions, the cache on Drive, and its bad days."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage import stage_dataset
from colabstage.errors import DriveDisconnectedError, SourceNotFoundError
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs

if TYPE_CHECKING:
    from colabstage import StagedDataset

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]


def stage(source: Path, **options: object) -> StagedDataset:
    """In silence; the cache is the default, `colabstage` on the Drive of the source."""
    return stage_dataset(source, **{"progress": False, **options})  # type: ignore[arg-type]


def fresh_machine(drive: SimulatedDrive, fast: Path) -> Path:
    """What the next session starts with: an empty local disk and a newly mounted Drive."""
    mountpoint = drive.mountpoint
    assert mountpoint is not None
    assert drive.flush(timeout_s=60)
    drive.new_machine()
    shutil.rmtree(fast)
    drive.mount(mountpoint)
    return mountpoint / "MyDrive"


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    """The local disk's folder."""
    return tmp_path / "fast"


@pytest.fixture
def images(drive: SimulatedDrive, make_images: MakeImages) -> Path:
    """Twenty images, as they lie in the cloud; `my_drive / "photos"` shows them."""
    return make_images(drive.cloud / "MyDrive" / "photos", 20)


def test_the_next_session_starts_from_the_cache(
    images: Path, my_drive: Path, drive: SimulatedDrive, fast: Path
) -> None:
    first = stage(my_drive / "photos").path.read_bytes()
    my_drive = fresh_machine(drive, fast)
    again = stage(my_drive / "photos")
    assert again.report.origin == "cache"
    assert again.path.read_bytes() == first
    stats = drive.stats()
    assert stats.cold_opens + stats.warm_opens <= 6  # pack, record of rows, their manifests, and nothing of the source


def test_both_spellings_are_one_dataset(images: Path, my_drive: Path) -> None:
    stage(my_drive / "photos")
    assert stage(my_drive.parent / "My Drive" / "photos").report.origin == "local"


def test_a_dying_drive_keeps_finished_work(
    tmp_path: Path, drive: SimulatedDrive, my_drive: Path, make_images: MakeImages
) -> None:
    make_images(drive.cloud / "MyDrive" / "many", 400)
    expected = stage(my_drive / "many", cache_dir=None, local_dir=tmp_path / "undisturbed").path.read_bytes()
    mountpoint = drive.mountpoint
    assert mountpoint is not None
    drive.unmount()
    dying = SimulatedDrive(tmp_path / "drive-home", knobs=replace(DriveKnobs.quick(), death_after_opens=350))
    with dying:
        dying.mount(mountpoint)
        with pytest.raises((DriveDisconnectedError, SourceNotFoundError), match=r"mount|Mount|moved"):
            stage(my_drive / "many", cache_dir=None)
    drive.mount(mountpoint)
    again = stage(my_drive / "many", cache_dir=None)
    assert again.path.read_bytes() == expected
    resumed = next(step.note for step in again.report.steps if step.name == "pack")
    assert "already in place" in resumed


def test_a_full_account_does_not_cost_the_staging(images: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    drive.set_faults(DriveFaults(quota_exceeded=True))
    staged = stage(my_drive / "photos")
    assert staged.splits == {"train": 20}
    assert "Not cached" in " ".join(staged.report.notes)
    drive.set_faults(DriveFaults())
    retried = stage(my_drive / "photos")
    assert retried.report.origin == "local"
    assert [step.name for step in retried.report.steps] == ["look", "publish to cache"]
    assert len(list((my_drive / "colabstage").glob("*.h5"))) == 1


def test_google_documents_are_left_out_with_a_note(images: Path, my_drive: Path) -> None:
    (images / "cat" / "notes.gdoc").write_text("{}", encoding="utf-8")
    staged = stage(my_drive / "photos", cache_dir=None)
    assert staged.splits == {"train": 20}
    assert ".gdoc" in " ".join(staged.report.notes)
