"""`publish_file`: a checkpoint that really arrives, and never at the cost of the one before."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import (
    ColabstageError,
    DamagedPackError,
    SourceNotFoundError,
    TargetExistsError,
)
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.simulate.knobs import DriveFaults, OpFault
from colabstage.stage.publish import publish_file

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.simulate.drive import SimulatedDrive


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file of two and a half blocks."""
    path = tmp_path / "model.pt"
    path.write_bytes(os.urandom(20_000_000))
    return path


def test_a_file_is_copied_with_its_manifest(checkpoint: Path, tmp_path: Path) -> None:
    """The copy is equal, and a manifest beside it proves it block by block."""
    report = publish_file(checkpoint, tmp_path / "there" / "best.pt", progress=False)
    assert report.path.read_bytes() == checkpoint.read_bytes()
    assert report.nbytes == 20_000_000
    assert report.previous is None
    assert not report.uploading
    manifest = read_manifest(report.path)
    assert manifest is not None
    check_whole(report.path, manifest)
    assert sorted(p.name for p in report.path.parent.iterdir()) == ["best.pt", "best.pt.json"]


def test_the_previous_version_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    """One generation stays, whole with its manifest; the one before that goes."""
    versions = [os.urandom(1000) for _ in range(3)]
    (tmp_path / "there").mkdir()
    for version in versions:
        checkpoint.write_bytes(version)
        report = publish_file(checkpoint, tmp_path / "there", progress=False)
    assert report.path.read_bytes() == versions[2]
    assert report.previous is not None
    assert report.previous.read_bytes() == versions[1]
    manifest = read_manifest(report.previous)
    assert manifest is not None
    check_whole(report.previous, manifest)
    assert len(list(report.path.parent.iterdir())) == 4


def test_the_previous_version_can_be_given_up(checkpoint: Path, tmp_path: Path) -> None:
    """`keep_previous=False` leaves only the new one."""
    for _ in range(2):
        report = publish_file(checkpoint, tmp_path / "m.pt", keep_previous=False, progress=False)
    assert report.previous is None
    assert not (tmp_path / "m.pt.previous").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """Nothing is created for a file that is not there."""
    with pytest.raises(SourceNotFoundError, match=r"none\.pt"):
        publish_file(tmp_path / "none.pt", tmp_path / "there" / "x", progress=False)
    assert not (tmp_path / "there").exists()


def test_a_folder_in_the_way_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """A folder that has the file's name is left alone."""
    (tmp_path / "there" / "model.pt").mkdir(parents=True)
    with pytest.raises(TargetExistsError):
        publish_file(checkpoint, tmp_path / "there", progress=False)


@pytest.mark.parametrize("same", [True, False])
def test_a_link_in_the_way_is_refused(checkpoint: Path, tmp_path: Path, same: bool) -> None:
    """What it leads to is in a place that nobody has named, and neither replaced nor vouched for."""
    theirs, link = tmp_path / "elsewhere" / "theirs.pt", tmp_path / "there" / "model.pt"
    for path in (theirs, link):
        path.parent.mkdir()
    theirs.write_bytes(checkpoint.read_bytes() if same else b"theirs")
    before = theirs.read_bytes()
    link.symlink_to(theirs)
    with pytest.raises(TargetExistsError, match="is a link"):
        publish_file(checkpoint, link, progress=False)
    assert theirs.read_bytes() == before
    assert link.readlink() == theirs
    assert [path.name for path in (*theirs.parent.iterdir(), *link.parent.iterdir())] == ["theirs.pt", "model.pt"]


@pytest.mark.fuse
def test_drive_gets_it_and_the_report_says_that_it_uploads(
    checkpoint: Path, my_drive: Path, drive: SimulatedDrive
) -> None:
    """ "Copied" and "uploaded" are told apart; after a flush the cloud has the bytes."""
    report = publish_file(checkpoint, my_drive / "checkpoints" / "model.pt", progress=False)
    assert report.uploading
    assert "wait_uploaded=True" in str(report)
    assert drive.flush(timeout_s=60)
    assert (drive.cloud / "MyDrive" / "checkpoints" / "model.pt").read_bytes() == checkpoint.read_bytes()


@pytest.mark.fuse
@pytest.mark.parametrize(
    "faults",
    [
        DriveFaults(ops=(OpFault(op="read", pattern="MyDrive/.colabstage-*", errno=errno.EIO),)),
        DriveFaults(ops=(OpFault(op="write", pattern="MyDrive/.colabstage-*", errno=errno.ENOSPC),)),
        DriveFaults(ops=(OpFault(op="rename", errno=errno.EIO),)),
    ],
    ids=["cannot be read back", "full", "rename fails"],
)
def test_a_bad_day_on_drive_keeps_the_old_version(
    checkpoint: Path, my_drive: Path, drive: SimulatedDrive, faults: DriveFaults
) -> None:
    """Whatever fails, the version that was there stays readable under its name, and no fragment stays."""
    old = checkpoint.read_bytes()
    publish_file(checkpoint, my_drive / "model.pt", progress=False)
    assert drive.flush(timeout_s=60)
    checkpoint.write_bytes(os.urandom(9_000_000))
    drive.set_faults(faults)
    with pytest.raises((ColabstageError, DamagedPackError)):
        publish_file(checkpoint, my_drive / "model.pt", progress=False)
    drive.set_faults(DriveFaults())
    assert (my_drive / "model.pt").read_bytes() == old
    assert not [p for p in my_drive.iterdir() if p.name.startswith(".colabstage-")]
