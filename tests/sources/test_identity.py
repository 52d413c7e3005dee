"""Telling one state of a source from another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from colabstage.sources.identity import SourceIdentity, as_one_of_many, compare_states, identify_many

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
