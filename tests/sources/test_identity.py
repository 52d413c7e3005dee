"""Telling one state of a source from another."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from colabstage.io.files import hash_block
from colabstage.sources.identity import (
    SourceIdentity,
    as_one_of_many,
    compare_states,
    identify_by_times,
    identify_many,
    identify_tree,
)
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

WEB = SourceIdentity("archive", 1, 100, address="https://e.org/a.zip", version='"abc"', mtime_ns=5)
DISK = SourceIdentity("archive", 1, 100, address="/a.zip", mtime_ns=5, ends="ff")
DRIVE = replace(DISK, address="drive:MyDrive/a.zip")
MD5 = replace(DRIVE, md5="m")
FOLDER = SourceIdentity("folder", 2, 9, address="/f", listing="l", times="t", stamps={"": 1})
SHARED = replace(FOLDER, address="gdrive:1A")
BOTH = identify_many([WEB, FOLDER], address="list:1")


@pytest.mark.parametrize("identity", [WEB, DISK, FOLDER, BOTH, identify_many([as_one_of_many(WEB)] * 3, address="x")])
def test_it_survives_a_trip_through_json(identity: SourceIdentity) -> None:
    """What was written is what is read."""
    text = json.dumps(identity.to_json())
    assert SourceIdentity.from_json(json.loads(text)) == identity


@pytest.mark.parametrize("raw", [None, 7, {}, {"kind": "folder"}, {**FOLDER.to_json(), "new": 1}, {"parts": [7]}])
def test_anything_else_is_none(raw: object) -> None:
    """A record of another version, or none at all, is not taken for one."""
    assert SourceIdentity.from_json(raw) is None


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        (WEB, replace(WEB, mtime_ns=6), True),
        (WEB, replace(WEB, version='"abd"'), False),
        (WEB, replace(WEB, version=""), False),
        (WEB, replace(WEB, nbytes=101), False),
        (DISK, replace(DISK, mtime_ns=6), False),
        (DRIVE, replace(DRIVE, mtime_ns=6), True),
        (DRIVE, replace(DRIVE, ends="fe"), False),
        (MD5, replace(MD5, mtime_ns=10**10, ends="fe", digest="zip:2"), True),
        (MD5, replace(MD5, md5="n"), False),
        (MD5, replace(MD5, md5="", ends="fe"), False),
        (FOLDER, replace(FOLDER, times="u"), False),
        (replace(FOLDER, address="drive:f", md5="m"), replace(FOLDER, address="drive:f", md5="m", times="u"), True),
        (replace(FOLDER, address="drive:f", md5="m"), replace(FOLDER, address="drive:f", md5="n"), False),
        (FOLDER, replace(FOLDER, stamps={"": 2}), True),
        (SHARED, replace(SHARED, times="u"), True),
        (SHARED, replace(SHARED, listing="m", times="u"), False),
        (BOTH, identify_many([WEB, FOLDER], address="list:1"), True),
        (BOTH, identify_many([WEB, replace(FOLDER, times="u")], address="list:1"), False),
        (BOTH, identify_many([WEB], address="list:1"), False),
        (as_one_of_many(DRIVE), as_one_of_many(replace(DRIVE, mtime_ns=6)), True),
        (as_one_of_many(DISK), as_one_of_many(replace(DISK, mtime_ns=6)), False),
    ],
)
def test_what_counts_as_the_same(recorded: SourceIdentity, now: SourceIdentity, same: bool) -> None:
    """A version decides alone; times count where they can be trusted; parts are compared one by one."""
    assert (compare_states(recorded, now) != "changed") is same
    assert (recorded.fingerprint == now.fingerprint) is same or recorded.trusts_times


def test_nothing_known_is_nothing_to_go_on_with() -> None:
    """Without any mark an interrupted run cannot be told from one of another state."""
    blank = SourceIdentity("archive", 1, 100, address="https://e.org/a.zip")
    assert blank.fingerprint == ""
    assert identify_many([WEB, blank], address="x").fingerprint == ""
    assert WEB.fingerprint != replace(WEB, version='"abd"').fingerprint


def test_a_folder_is_hashed_as_records_have_it(tmp_path: Path) -> None:
    """Those of earlier sessions hold: a line for each file, with its size, and with its time after that."""
    for number in range(300):
        (tmp_path / f"{number}.jpg").write_bytes(b"x" * (number % 12))
        os.utime(tmp_path / f"{number}.jpg", ns=(0, number * 10**16))
    (tmp_path / os.fsdecode(b"\xff.jpg")).touch()
    tree = FolderTree(tmp_path)
    found = identify_tree(tree, address="/f")
    lines = [f"{entry.name}\t{entry.size}" for entry in tree.entries]
    timed = [f"{line}\t{entry.mtime_ns}" for line, entry in zip(lines, tree.entries, strict=True)]
    assert found.listing == hash_block("\n".join(lines).encode(errors="surrogateescape"))
    assert found.times == hash_block("\n".join(timed).encode(errors="surrogateescape"))
    assert (found.files, found.nbytes) == (301, sum(entry.size for entry in tree.entries))


@pytest.mark.parametrize("change", ["none", "size", "time", "name", "more"])
def test_times_alone_tell_what_all_that_is_known_tells(tmp_path: Path, change: str) -> None:
    """Where times are trusted, the short look at a folder has the verdict of the long one."""
    file = tmp_path / "1.jpg"
    file.write_bytes(b"12")
    os.utime(file, ns=(0, 5))
    recorded = identify_tree(FolderTree(tmp_path), address="/f")
    match change:
        case "size":
            file.write_bytes(b"123")
            os.utime(file, ns=(0, 5))
        case "time":
            os.utime(file, ns=(0, 6))
        case "name":
            file.rename(tmp_path / "2.jpg")
        case "more":
            (tmp_path / "2.jpg").touch()
        case _:
            pass
    tree = FolderTree(tmp_path)
    verdict = compare_states(recorded, identify_by_times(tree, address="/f"))
    assert verdict == compare_states(recorded, identify_tree(tree, address="/f"))
    assert verdict == ("same" if change == "none" else "changed")
