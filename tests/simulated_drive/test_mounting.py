"""What is said where FUSE is missing, and how a mountpoint is made ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from colabstage.errors import NotSupportedHereError, OptionError
from colabstage.machine.mounts import unmount_lazily
from simulated_drive.drive import SimulatedDrive, fuse_problem, make_mountpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_tool_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fusermount3 the sentence says what to install, and mounting raises it before anything is made."""
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = fuse_problem()
    assert problem is not None
    assert "apt-get install fuse3" in problem or "Linux" in problem
    with SimulatedDrive(tmp_path / "home") as drive, pytest.raises(NotSupportedHereError) as caught:
        drive.mount(tmp_path / "drive")
    assert str(caught.value) == problem
    assert not (tmp_path / "drive").exists()


def test_mountpoint_is_made_with_its_parents(tmp_path: Path) -> None:
    """A missing folder is created; an empty one is taken as it is."""
    make_mountpoint(tmp_path / "a" / "b")
    make_mountpoint(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_folder_with_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Mounting over files would hide them, so it is refused."""
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(OptionError, match="not empty"):
        make_mountpoint(tmp_path)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "x"


def test_unmounting_where_nothing_is_mounted_is_fine(tmp_path: Path) -> None:
    """Nothing happens to a folder that is no mountpoint."""
    (tmp_path / "mine.txt").touch()
    unmount_lazily(tmp_path)
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.fuse
def test_client_that_cannot_start_is_an_error_that_quotes_it(
    tmp_path: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the client's process ends before it is ready, its last words are in the error and nothing is left."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "mfusepy.py").write_text("raise OSError('no luck today')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    drive = SimulatedDrive(tmp_path / "home")
    with pytest.raises(NotSupportedHereError, match="no luck today"):
        drive.mount(mountpoint)
    assert drive.mountpoint is None
    monkeypatch.delenv("PYTHONPATH")
    with drive:
        drive.mount(mountpoint)
        assert (mountpoint / "MyDrive").is_dir()
