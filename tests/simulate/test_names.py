"""Names as the mount shows them: two spellings, entries, what is inside a drive."""

from __future__ import annotations

import math
import os
import stat
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.cache import Entry, Folders, canonical, is_below_root, split
from colabstage.simulate.knobs import DriveKnobs, DriveStats
from tests.clocks import ManualClock

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


def test_a_change_elsewhere_shows_when_the_listing_has_aged(tmp_path: Path) -> None:
    """The first look takes its time; what others change shows a minute later, and that look is free."""
    (tmp_path / "MyDrive").mkdir()
    (tmp_path / "MyDrive" / "a").touch()
    clock, stats = ManualClock(), DriveStats()
    knobs = DriveKnobs(listing_latency_s=0.3, listing_per_entry_s=0.1, visibility_s=60.0)
    folders = Folders(tmp_path, knobs=knobs, stats=stats, clock=clock)

    def names() -> list[str]:
        return sorted(folders.snapshot("/MyDrive").entries or ())

    assert names() == ["a"]
    assert clock.slept == pytest.approx([0.4])
    (tmp_path / "MyDrive" / "b").touch()
    clock.turn(59.9)
    assert names() == ["a"]
    clock.turn(0.2)
    assert names() == ["a", "b"]
    assert (len(clock.slept), stats.listings_cold) == (1, 1)


def test_nothing_shows_before_a_remount_where_listings_do_not_age(tmp_path: Path) -> None:
    """Not after a year."""
    clock = ManualClock()
    folders = Folders(tmp_path, knobs=DriveKnobs(visibility_s=math.inf), stats=DriveStats(), clock=clock)
    assert folders.snapshot("/").entries == {}
    (tmp_path / "a").touch()
    clock.turn(365 * 86400.0)
    assert folders.snapshot("/").entries == {}
