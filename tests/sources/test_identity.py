"""Telling one state of a source from another."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colabstage import fetch_files, stage_dataset
from colabstage.io.files import hash_block
from colabstage.sources.identity import (
    SourceIdentity,
    Verdict,
    compare_states,
    identify_archive,
    identify_many,
    identify_tree,
)
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.open import open_tree
from tests.support.http_server import WebServer
from tests.support.images import image

WEB = SourceIdentity("archive", 1, 100, address="https://e.org/a.zip", version='"abc"', mtime_ns=5)
DISK = SourceIdentity("archive", 1, 100, address="/a.zip", mtime_ns=5, ends="ff")
DRIVE = replace(DISK, address="drive:MyDrive/a.zip")
MD5 = replace(DRIVE, md5="m")
ZIP = replace(DISK, digest="zip:1")
FOLDER = SourceIdentity("folder", 2, 9, address="/f", listing="l", times="t", stamps={"": 1})
SHARED = replace(FOLDER, address="gdrive:1A")
BOTH = identify_many([WEB, FOLDER], address="list:1")


@pytest.mark.parametrize("raw", [7, {"kind": "folder"}, {**FOLDER.to_json(), "new": 1}, {"parts": [7]}])
def test_anything_else_is_none(raw: object) -> None:
    """A record of another version, or none at all, is not taken for one."""
    assert SourceIdentity.from_json(raw) is None


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        (WEB, replace(WEB, mtime_ns=6), True),
        (WEB, replace(WEB, version='"abd"'), False),
        (WEB, replace(WEB, version=""), False),
        (DISK, replace(DISK, mtime_ns=6), False),
        (DRIVE, replace(DRIVE, mtime_ns=6), True),
        (MD5, replace(MD5, mtime_ns=10**10, ends="fe", digest="zip:2"), True),
        (MD5, replace(MD5, md5="n"), False),
        (MD5, replace(MD5, md5="", ends="fe"), False),
        (ZIP, replace(ZIP, mtime_ns=6, ends="fe"), True),
        (ZIP, replace(ZIP, digest="zip:2"), False),
        (ZIP, replace(ZIP, digest="sha256:1"), True),
        (replace(FOLDER, digest="sha256:1"), replace(FOLDER, digest="sha256:1", times="u"), True),
        (FOLDER, replace(FOLDER, times="u"), False),
        (replace(FOLDER, address="drive:f", md5="m"), replace(FOLDER, address="drive:f", md5="m", times="u"), True),
        (FOLDER, replace(FOLDER, stamps={"": 2}), True),
        (SHARED, replace(SHARED, times="u"), True),
        (SHARED, replace(SHARED, listing="m", times="u"), False),
        (BOTH, identify_many([WEB, FOLDER], address="list:1"), True),
        (BOTH, identify_many([WEB, replace(FOLDER, times="u")], address="list:1"), False),
        (replace(DRIVE, kind="file"), replace(DRIVE, kind="file", mtime_ns=6), True),
        (replace(DISK, kind="file"), replace(DISK, kind="file", mtime_ns=6), False),
    ],
)
def test_what_counts_as_the_same(recorded: SourceIdentity, now: SourceIdentity, same: bool) -> None:
    """A version decides alone, and what stands for every byte; times count where they can be trusted; parts are
    compared one by one."""
    assert (compare_states(recorded, now) != "changed") is same
    assert (recorded.fingerprint == now.fingerprint) is same or recorded.trusts_times


@pytest.mark.parametrize(
    ("clock", "files", "verdict"),
    [
        ("1" * 16, 300, "same"),
        ("1" * 8 + "2" * 8, 300, "changed"),
        ("2" * 16, 300, "unproved"),
        ("2" * 16, 256, "changed"),
        ("1" * 8, 300, "unproved"),
    ],
)
def test_times_of_a_folder_on_drive_count_to_the_second_and_in_groups(clock: str, files: int, verdict: str) -> None:
    """Other times of some groups are somebody's work; of all groups, of many files, those of a remount."""
    recorded = replace(FOLDER, address="drive:f", files=files, clock="1" * 16)
    assert compare_states(recorded, replace(recorded, times="u", clock=clock)) == verdict


def marks(what: str) -> st.SearchStrategy[str]:
    """Nothing, or one of two marks that look like no other kind's."""
    return st.sampled_from(["", f"{what}1", f"{what}2"])


STATES = st.builds(
    SourceIdentity,
    st.sampled_from(["archive", "folder"]),
    st.just(1),
    st.just(100),
    st.sampled_from(["/a", "https://e.org/a", "drive:a", "gdrive:1A", "kaggle:a/b"]),
    mtime_ns=st.sampled_from([0, 5, 6, 10**10]),
    ends=marks("ends"),
    version=marks("version"),
    digest=st.sampled_from(["", "zip:1", "zip:2", "sha256:1"]),
    md5=marks("md5"),
    listing=marks("listing"),
    times=marks("times"),
    clock=st.sampled_from(["", "1" * 8, "2" * 8, "1" * 16]),
)


LOOKED_AT = SourceIdentity("archive", 1, 100, "/a")


@given(one=STATES, other=STATES)
def test_one_fingerprint_is_never_of_two_states(one: SourceIdentity, other: SourceIdentity) -> None:
    """Interrupted work goes on under it, so what it does not tell apart is not known to have changed."""
    # A service has versions, Drive's client MD5s.
    one, other = (replace(state, version="") if state.md5 else state for state in (one, other))
    other = replace(other, address=one.address, kind=one.kind)
    if one.fingerprint == other.fingerprint != "":
        assert compare_states(one, other) != "changed"


@given(parts=st.lists(st.tuples(STATES, STATES), min_size=1, max_size=3), again=st.sets(st.integers(0, 2)))
@example(parts=[(LOOKED_AT, replace(LOOKED_AT, ends="ends1"))], again=set())
def test_a_state_is_never_changed_from_itself_and_many_are_as_the_worst_of_them(
    parts: list[tuple[SourceIdentity, SourceIdentity]], again: set[int]
) -> None:
    """Whatever is known of each; and who is compared with whom makes no difference."""
    first = [one for one, _ in parts]
    second = [
        replace(one if number in again else other, address=one.address) for number, (one, other) in enumerate(parts)
    ]
    verdicts = [compare_states(one, other) for one, other in zip(first, second, strict=True)]
    assert [compare_states(other, one) for one, other in zip(first, second, strict=True)] == verdicts
    assert "changed" not in [verdict for number, verdict in enumerate(verdicts) if number in again]
    both = compare_states(identify_many(first, address="x"), identify_many(second, address="x"))
    assert both == max(verdicts, key=get_args(Verdict).index)


class WatchedBytes(LocalBytes):
    """Counts what is read."""

    taken = 0

    def pread(self, length: int, offset: int) -> bytes:
        found = super().pread(length, offset)
        self.taken += len(found)
        return found


@pytest.mark.parametrize("size", [0, 65_537, 1_000_000])
def test_one_file_is_known_by_its_ends(tmp_path: Path, size: int) -> None:
    """By the first and the last 64 KiB, and no more of it is read."""
    file = tmp_path / "x.npy"
    file.write_bytes(bytes(size))
    with WatchedBytes(file) as source:
        before = identify_archive(source, 5)
        assert source.taken <= 2 * 65_536
    assert before.nbytes == size
    for place in sorted({0, 65_535, size - 65_536, size - 1} & set(range(size))):
        changed = bytearray(size)
        changed[place] = 1
        file.write_bytes(changed)
        with LocalBytes(file) as source:
            assert identify_archive(source, 5).ends != before.ends


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
    tree = open_tree(tmp_path, spool=tmp_path / "unused")
    found = identify_tree(tree, address="/f")
    lines = [f"{entry.name}\t{entry.size}" for entry in tree.entries]
    timed = [f"{line}\t{entry.mtime_ns}" for line, entry in zip(lines, tree.entries, strict=True)]
    assert found.listing == hash_block("\n".join(lines).encode(errors="surrogateescape"))
    assert found.times == hash_block("\n".join(timed).encode(errors="surrogateescape"))
    assert (found.files, found.nbytes) == (301, sum(entry.size for entry in tree.entries))


def test_of_too_many_addresses_none_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is here is used, and each report says so; `verify="full"` asks them."""
    monkeypatch.setattr("colabstage.sources.identity._MOST_ASKED", 3)
    files = {f"{number}.bmp": image(number, suffix=".bmp") for number in range(4)}
    with WebServer(files) as server:

        def call(verify: Any) -> list[str]:
            addresses, options = [server.url(name) for name in files], {"verify": verify, "progress": False}
            staged = stage_dataset(addresses, local_dir=tmp_path / "local", cache_dir=None, layout="images", **options)
            assert staged.report.origin == origin
            return [str(staged.report), str(fetch_files(addresses, tmp_path / "copy", **options))]

        origin = "source"
        call("fast")
        server.put("3.bmp", image(77, suffix=".bmp"))
        server.forget_requests()
        origin = "local"
        assert all("not asked" in text for text in call("fast"))
        assert not server.requests
        origin = "source"
        assert not any("not asked" in text for text in call("full"))
