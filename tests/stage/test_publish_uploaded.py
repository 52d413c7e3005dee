"""`wait_uploaded=True` and `wait_published`: what counts as arrived, and what is said where nobody tells."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import (
    DriveError,
    NotEnoughSpaceError,
    SourceChangedError,
    SourceNotFoundError,
)
from colabstage.simulate.knobs import DriveFaults, DriveKnobs
from colabstage.stage.publish import await_upload, publish_file
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.simulate.drive import SimulatedDrive

pytestmark = pytest.mark.fuse


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file of two blocks and a half."""
    path = tmp_path / "model.pt"
    path.write_bytes(os.urandom(20_000_000))
    return path


@pytest.fixture
def stalled(drive: SimulatedDrive) -> Iterator[None]:
    """Nothing is uploaded until the test says so."""
    drive.set_faults(DriveFaults(stall_uploads=True))
    yield
    drive.set_faults(DriveFaults())


def test_it_returns_when_the_cloud_has_it(checkpoint: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """The file and its manifest are in the cloud at that moment, without a flush, and nothing is unmounted."""
    report = publish_file(checkpoint, f"{my_drive}/to/", wait_uploaded=True, progress=False)
    cloud = drive.cloud / "MyDrive" / "to"
    assert (cloud / "model.pt").read_bytes() == checkpoint.read_bytes()
    assert (cloud / "model.pt.json").read_bytes() == (my_drive / "to/model.pt.json").read_bytes()
    assert (report.proof, report.uploading, report.why) == ("uploaded", False, "")
    assert "in the cloud" in str(report)
    assert "flush_drive" not in str(report)
    assert drive.is_alive()


def test_without_waiting_it_is_only_written(checkpoint: Path, my_drive: Path, tmp_path: Path) -> None:
    """What is read back from a mount comes from this machine; from a disk that lasts it is the proof."""
    assert publish_file(checkpoint, my_drive, progress=False).proof == "written"
    there = publish_file(checkpoint, f"{tmp_path}/there/", wait_uploaded=True, progress=False)
    assert (there.proof, there.uploading) == ("read back", False)


@pytest.mark.usefixtures("stalled")
def test_what_does_not_arrive_in_time_is_an_error_and_can_be_waited_for_again(
    checkpoint: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    """It is in its place all the same; the second call copies nothing and waits on."""
    with pytest.raises(DriveError, match=r"model\.pt' was written, but had not arrived .* is not uploaded yet"):
        publish_file(checkpoint, my_drive, wait_uploaded=True, upload_timeout_s=0.3, progress=False)
    assert (my_drive / "model.pt").read_bytes() == checkpoint.read_bytes()
    threading.Timer(0.5, drive.set_faults, [DriveFaults()]).start()
    report = publish_file(checkpoint, my_drive, wait_uploaded=True, progress=False)
    assert (report.proof, report.kept_bytes) == ("uploaded", 20_000_000)


def test_an_upload_that_is_lost_on_the_way_is_never_reported(
    checkpoint: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    """The client believes it is done; what it tells of the file says otherwise."""
    drive.set_faults(DriveFaults(drop_uploads=("MyDrive/*model.pt*",)))
    with pytest.raises(DriveError, match="had not arrived"):
        publish_file(checkpoint, my_drive, wait_uploaded=True, upload_timeout_s=1, progress=False)
    assert drive.flush(timeout_s=10)
    assert not (drive.cloud / "MyDrive/model.pt").exists()


def test_the_manifest_has_to_arrive_too(checkpoint: Path, my_drive: Path, drive: SimulatedDrive) -> None:
    """Without it nothing could be restored."""
    drive.set_faults(DriveFaults(drop_uploads=("MyDrive/*.json*",)))
    with pytest.raises(DriveError, match=r"model\.pt\.json"):
        publish_file(checkpoint, my_drive, wait_uploaded=True, upload_timeout_s=1, progress=False)


@pytest.fixture
def drive_knobs(request: pytest.FixtureRequest) -> DriveKnobs:
    """Without waiting times; what a test's parameter changes is changed."""
    return replace(DriveKnobs.quick(), **getattr(request, "param", {}))


@pytest.mark.parametrize("drive_knobs", [{"attributes": False}], indirect=True)
def test_a_client_that_tells_nothing_is_said_once(checkpoint: Path, my_drive: Path) -> None:
    """The report claims no more than is known, and says why, and what waits instead."""
    report = publish_file(checkpoint, my_drive, wait_uploaded=True, progress=False)
    assert (report.proof, report.uploading) == ("written", True)
    assert str(report).count("no word on whether it is uploaded (Operation not supported)") == 1
    assert "flush_drive(remount=False)" in str(report)


@pytest.mark.parametrize(
    "drive_knobs", [{"reports_space": False, "quota_bytes": 1_000_000}, {"quota_bytes": 1_000_000}], indirect=True
)
def test_a_full_account_is_an_error_with_and_without_figures(checkpoint: Path, my_drive: Path) -> None:
    """The first write that finds no room says so, and nothing is left of the copy under its name."""
    with pytest.raises(NotEnoughSpaceError):
        publish_file(checkpoint, my_drive, progress=False)
    assert not (my_drive / "model.pt").exists()


def test_a_file_that_changed_since_proves_nothing(checkpoint: Path, my_drive: Path) -> None:
    """Its MD5 would be of something else."""
    report = publish_file(checkpoint, my_drive, progress=False)
    checkpoint.write_bytes(b"later")
    with pytest.raises(SourceChangedError, match="has changed since"):
        await_upload(report, checkpoint, timeout_s=10)


@pytest.mark.parametrize("wait", [True, False])
def test_a_dataset_waits_for_its_pack(
    make_images: Callable[..., Path], my_drive: Path, drive: SimulatedDrive, wait: bool
) -> None:
    """Copied and uploaded, in the background or not; a call that wants no cache has nothing to wait for."""
    make_images(drive.cloud / "MyDrive" / "photos", 4)
    staged = stage_dataset(my_drive / "photos", progress=False, wait=wait)
    published = staged.wait_published(timeout_s=60)
    assert published is not None
    assert published.proof == "uploaded"
    assert (drive.cloud / "MyDrive/colabstage" / published.path.name).read_bytes() == staged.path.read_bytes()
    assert stage_dataset(my_drive / "photos", cache_dir=None, progress=False).wait_published() is None


@pytest.mark.usefixtures("stalled")
def test_a_dataset_that_was_staged_before_waits_for_the_pack_of_then(
    make_images: Callable[..., Path], my_drive: Path, drive: SimulatedDrive, tmp_path: Path
) -> None:
    """Its upload may still be on its way, whoever asks: what is reused here, and what was copied from the cache."""
    make_images(drive.cloud / "MyDrive" / "photos", 4)
    stage_dataset(my_drive / "photos", progress=False)
    reused = stage_dataset(my_drive / "photos", progress=False)
    assert reused.report.origin == "local"
    with pytest.raises(DriveError, match="had not arrived in the cloud"):
        reused.wait_published(timeout_s=0.2)
    threading.Timer(0.2, drive.set_faults, [DriveFaults()]).start()
    published = reused.wait_published(timeout_s=60)
    assert published is not None
    assert (published.proof, published.kept_bytes) == ("uploaded", published.nbytes)
    assert "is already in place; nothing was copied" in str(published)
    assert (drive.cloud / "MyDrive/colabstage" / published.path.name).read_bytes() == reused.path.read_bytes()
    shutil.rmtree(tmp_path / "fast")
    restored = stage_dataset(my_drive / "photos", progress=False)
    assert restored.report.origin == "cache"
    assert getattr(restored.wait_published(), "proof", None) == "uploaded"
    shutil.rmtree(my_drive / "colabstage")
    with pytest.raises(SourceNotFoundError, match=r"was published before, and its copy .* is no longer in"):
        restored.wait_published()
