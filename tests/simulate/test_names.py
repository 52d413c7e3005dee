"""Names as the mount shows them: two spellings, entries, what is inside a drive."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.names import Entry, canonical, is_below_root, split

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("spelled", "kept"),
    [
        ("/My Drive", "/MyDrive"),
        ("/My Drive/a/My Drive", "/MyDrive/a/My Drive"),
        ("/MyDrive/a", "/MyDrive/a"),
        ("/Shared drives/team/x", "/Shareddrives/team/x"),
        ("/My Drive 2/a", "/My Drive 2/a"),
        ("/", "/"),
    ],
)
def test_both_spellings_of_a_root_mean_the_same(spelled: str, kept: str) -> None:
    """Only the first component has two spellings."""
    assert canonical(spelled) == kept


def test_things_can_be_made_inside_a_drive_only() -> None:
    """The roots themselves, and what would lie beside them, are not places to write."""
    inside = ["/MyDrive/a", "/Shareddrives/team/a"]
    outside = ["/", "/MyDrive", "/Shareddrives", "/other/a", "/MyDriveX/a"]
    assert [is_below_root(path) for path in inside + outside] == [True] * 2 + [False] * 5


def test_paths_split_into_folder_and_name() -> None:
    """The folder of a root is the mount's own."""
    assert split("/MyDrive/a/b") == ("/MyDrive/a", "b")
    assert split("/MyDrive") == ("/", "MyDrive")


def test_only_files_and_folders_exist_on_a_drive(tmp_path: Path) -> None:
    """A pipe in the cloud's folder has no entry; files are private and tell their size."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(bytes(1000))
    assert Entry.of((tmp_path / "pipe").stat()) is None
    file, folder = Entry.of((tmp_path / "file").stat()), Entry.of(tmp_path.stat())
    assert file is not None
    assert folder is not None
    assert (file.attributes()["st_mode"], file.attributes()["st_size"]) == (stat.S_IFREG | 0o600, 1000)
    assert folder.attributes()["st_mode"] == stat.S_IFDIR | 0o700
