"""Drives that differ from most: another type, no figures of space, shortcuts, renames that are refused."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import colabstage
from colabstage.errors import NotEnoughSpaceError, SourceNotFoundError, TargetNotWritableError
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.stage.on_drive import SIZE

if TYPE_CHECKING:
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive
    from tests.stage.conftest import MakeImages

pytestmark = pytest.mark.fuse


@pytest.fixture
def drive_knobs(request: pytest.FixtureRequest) -> DriveKnobs:
    """Without waiting times; what a test's parameter changes is changed."""
    return replace(DriveKnobs.quick(), **getattr(request, "param", {}))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint on the local disk."""
    file = tmp_path / "model.pt"
    file.write_bytes(os.urandom(10_000))
    return file


@pytest.mark.parametrize("drive_knobs", [{"type": "drivefs"}, {"reports_space": False}], indirect=True)
def test_each_verb_works(drive: SimulatedDrive, my_drive: Path, model: Path, photos: Path, tmp_path: Path) -> None:
    """Where the client is called otherwise, and where it reports 0 bytes free, as for an account without a limit."""
    for _ in range(2):
        report = colabstage.publish_file(model, f"{my_drive}/ck/", wait_uploaded=True, progress=False)
        assert report.proof == "uploaded"
    colabstage.fetch_files(photos, my_drive / "photos", progress=False)
    packed = colabstage.pack_dataset(photos, my_drive / "pack.h5", image_size=SIZE, progress=False)
    # Files are stored as they are only where there is no room for pixels.
    assert packed.encoding == "pixels"
    for local, origin in (("one", "source"), ("two", "cache")):
        data = colabstage.stage_dataset(
            my_drive / "photos", image_size=SIZE, local_dir=tmp_path / local, progress=False
        )
        assert data.report.origin == origin
        assert (my_drive / "colabstage" / data.path.name).is_file()


@pytest.mark.parametrize("drive_knobs", [{"reports_space": False, "quota_bytes": 1000}], indirect=True)
def test_a_full_account_that_reports_no_figures(my_drive: Path, model: Path, photos: Path) -> None:
    """Only writing tells."""
    with pytest.raises(NotEnoughSpaceError):
        colabstage.pack_dataset(photos, my_drive / "pack.h5", image_size=SIZE, progress=False)
    with pytest.raises(NotEnoughSpaceError):
        colabstage.publish_file(model, my_drive / "model.pt", progress=False)


@pytest.mark.parametrize("drive_knobs", [{"shortcuts_are_links": links} for links in (False, True)], indirect=True)
def test_shortcuts_lead_to_what_others_share(
    drive: SimulatedDrive, my_drive: Path, model: Path, make_images: MakeImages
) -> None:
    """By the shortcut and by the folder that it leads to; one that leads nowhere is named."""
    targets = drive.cloud / ".shortcut-targets-by-id"
    make_images(targets / "1AbC/shared", 6)
    for name in ("shared", "1Xyz/gone"):
        inside = name if "/" in name else f"1AbC/{name}"
        (drive.cloud / "MyDrive" / name.rpartition("/")[2]).symlink_to(f"../.shortcut-targets-by-id/{inside}")
    assert drive.mountpoint is not None
    for source in (my_drive / "shared", drive.mountpoint / ".shortcut-targets-by-id/1AbC/shared"):
        data = colabstage.stage_dataset(source, image_size=SIZE, cache_dir=None, progress=False)
        assert data.splits == {"train": 6}
    with pytest.raises(SourceNotFoundError, match="gone"):
        colabstage.stage_dataset(my_drive / "gone", image_size=SIZE, cache_dir=None, progress=False)
    report = colabstage.publish_file(model, f"{my_drive}/shared/ck/", progress=False)
    assert report.path.read_bytes() == model.read_bytes()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EOPNOTSUPP])
def test_a_drive_that_refuses_renames_is_named(
    number: int, drive: SimulatedDrive, my_drive: Path, model: Path, photos: Path
) -> None:
    """As for who may add files to a shared drive and not change them: nothing half-made counts."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="rename", errno=number),)))
    with pytest.raises(TargetNotWritableError, match=r"renam.*shared drive"):
        colabstage.publish_file(model, my_drive / "model.pt", progress=False)
    with pytest.raises(TargetNotWritableError, match="renam"):
        colabstage.pack_dataset(photos, my_drive / "pack.h5", image_size=SIZE, progress=False)
    with pytest.raises(TargetNotWritableError, match="renam"):
        colabstage.fetch_files(photos, my_drive / "photos", progress=False)
    data = colabstage.stage_dataset(photos, image_size=SIZE, cache_dir=my_drive / "cache", progress=False)
    assert any("renam" in note for note in data.report.notes) or "renam" in data.report.cached
    assert not list((my_drive / "cache").glob("*.h5"))
