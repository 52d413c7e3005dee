"""`wait_uploaded=True` and `wait_published`: what counts as arrived, and what is said where nobody tells."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from colabstage import stage_dataset
from colabstage.errors import (
    DriveError,
    SourceNotFoundError,
)
from simulated_drive.knobs import DriveFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse


@pytest.fixture
def stalled(drive: SimulatedDrive) -> Iterator[None]:
    """Nothing is uploaded until the test says so."""
    drive.set_faults(DriveFaults(stall_uploads=True))
    yield
    drive.set_faults(DriveFaults())


@pytest.mark.parametrize("wait", [True, False])
def test_a_dataset_waits_for_its_pack(
    make_images: Callable[..., Path], my_drive: Path, drive: SimulatedDrive, wait: bool
) -> None:
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
    make_images(drive.cloud / "MyDrive" / "photos", 4)
    stage_dataset(my_drive / "photos", progress=False)
    reused = stage_dataset(my_drive / "photos", progress=False)
    assert reused.report.origin == "local"
    with pytest.raises(DriveError, match="cloud"):
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
    with pytest.raises(SourceNotFoundError, match="published"):
        restored.wait_published()
