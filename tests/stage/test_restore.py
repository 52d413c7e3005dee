"""`restore_file`: the newest whole version of what was published, and nothing that is not whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import DamagedPackError, SourceNotFoundError, TargetExistsError
from colabstage.h5.manifest import manifest_path
from colabstage.stage.publish import previous_path, publish_file, restore_file
from simulated_drive.knobs import ContentFault, DriveFaults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

OLD, NEW = os.urandom(9_000_000), os.urandom(9_500_000)


def _publish_two(folder: Path, place: Path) -> Path:
    """Publish `OLD`, then `NEW`, under one name."""
    checkpoint = folder / "model.pt"
    for content in (OLD, NEW):
        checkpoint.write_bytes(content)
        published = publish_file(checkpoint, place / "model.pt", progress=False).path
    checkpoint.unlink()
    return published


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A file of which two versions were published."""
    return _publish_two(tmp_path, tmp_path / "there")


def _spoil(file: Path) -> None:
    """Make the tail zeros, which no length shows."""
    with file.open("r+b") as handle:
        handle.seek(-1000, os.SEEK_END)
        handle.write(bytes(1000))


def test_the_newest_comes_back(published: Path, tmp_path: Path) -> None:
    """A whole version is copied into the folder under its name, and nothing is passed over."""
    (tmp_path / "here").mkdir()
    report = restore_file(published, tmp_path / "here", progress=False)
    assert report.path == tmp_path / "here" / "model.pt"
    assert report.path.read_bytes() == NEW
    assert (report.source, report.passed_over) == (published, ())


def _cut(file: Path) -> None:
    os.truncate(file, 5_000_000)


def _orphan(file: Path) -> None:
    manifest_path(file).unlink()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_spoil, "not those that were written"),
        (_cut, "5,000,000 bytes of 9,500,000"),
        (_orphan, "no complete manifest"),
    ],
    ids=["a tail of zeros", "an upload that ended early", "no manifest"],
)
def test_the_one_before_stands_in_for_a_damaged_one(
    published: Path, tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    """The version before is taken, and the report says why."""
    harm(published)
    report = restore_file(published, tmp_path / "model.pt", progress=False)
    assert report.path.read_bytes() == OLD
    assert report.source == previous_path(published)
    assert len(report.passed_over) == 1
    assert reason in report.passed_over[0]
    assert reason in str(report)


def test_a_version_that_is_gone_is_no_obstacle(published: Path, tmp_path: Path) -> None:
    """Where publishing was interrupted between its two renames, the version before is the newest."""
    published.unlink()
    assert restore_file(published, tmp_path / "model.pt", progress=False).path.read_bytes() == OLD


def test_nothing_published_is_said_so(tmp_path: Path) -> None:
    """A first session has nothing to restore; that is an error of its own, a FileNotFoundError."""
    with pytest.raises(SourceNotFoundError, match=r"model\.pt"):
        restore_file(tmp_path / "model.pt", tmp_path / "here.pt", progress=False)


def test_nothing_whole_leaves_nothing_here(published: Path, tmp_path: Path) -> None:
    """Where no version is whole, each is named, and no fragment is left."""
    _spoil(published)
    _spoil(previous_path(published))
    (tmp_path / "here").mkdir()
    with pytest.raises(DamagedPackError, match=r"model\.pt' is damaged.*model\.pt\.previous' is damaged"):
        restore_file(published, tmp_path / "here", progress=False)
    assert not list((tmp_path / "here").iterdir())


def test_what_is_here_is_kept(published: Path, tmp_path: Path) -> None:
    """A file with other bytes is replaced only on request; one with the same is left as it is."""
    here = tmp_path / "model.pt"
    here.write_bytes(b"newer than anything published")
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        restore_file(published, here, progress=False)
    assert here.read_bytes() == b"newer than anything published"
    restore_file(published, here, overwrite=True, progress=False)
    before = here.stat()
    restore_file(published, here, progress=False)
    after = here.stat()
    assert here.read_bytes() == NEW
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.fuse
def test_on_drive_the_next_session_gets_a_whole_one(my_drive: Path, drive: SimulatedDrive, tmp_path: Path) -> None:
    """A file whose tail Drive serves as zeros is passed over."""
    published = _publish_two(tmp_path, my_drive)
    assert drive.flush(timeout_s=60)
    mountpoint = drive.mountpoint
    assert mountpoint is not None
    drive.new_machine()
    drive.set_faults(DriveFaults(contents=(ContentFault(pattern="MyDrive/model.pt", kind="zero_tail", tail_bytes=10),)))
    drive.mount(mountpoint)
    report = restore_file(published, tmp_path / "model.pt", progress=False)
    assert report.path.read_bytes() == OLD
    assert "not those that were written" in report.passed_over[0]
