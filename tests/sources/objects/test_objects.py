"""Single objects of real services on loopback: facts, ranges, versions, and what is said when something is wrong."""

import contextlib
import json
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from colabstage import fetch_files
from colabstage.errors import (
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.sources.objects import open_address
from colabstage.sources.remote import Access, Checksum, RemoteFile
from colabstage.trees.listing import Tree
from tests.sources.objects.conftest import Place
from tests.sources.servers import PASSWORD, USER, BucketService, FolderService, use_login

MB = 1_000_000
# The most that one request is for.
PIECE_BYTES = 4 * 1024 * 1024


def open_object(url: str, **options: Any) -> RemoteFile:
    found = open_address(url, Access(**options))
    assert not isinstance(found, Tree)
    return found


def whole(file: RemoteFile) -> bytes:
    return b"".join(file.read_range(0, None))


def connections() -> set[int]:
    """The ports of this process from which it is connected to one."""
    return {
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
    }


def kind_of(url: str) -> str:
    found = open_address(url)
    found.close()
    return "folder" if isinstance(found, Tree) else "file"


def test_an_object_comes_whole_and_in_parts(place: Place) -> None:
    """Facts, the whole content and any part of it are those of the object, in pieces of at most a megabyte; many
    threads do not mix up what they ask for, and who stops after the first piece does not disturb the next."""
    content = os.urandom(2 * PIECE_BYTES + 7)
    size = len(content)
    place.put("a/big.bin", content)
    place.put("a/empty", b"")
    file = open_object(place.url("a/big.bin"))
    assert (file.facts.name, file.facts.size, file.facts.ranges) == ("big.bin", size, True)
    assert file.facts.version
    assert abs(file.facts.mtime_ns / 1e9 - time.time()) < 60
    leaving = file.read_range(0, None)
    assert content.startswith(next(leaving))
    leaving.close()  # type: ignore[attr-defined]
    parts: list[tuple[int, int | None]] = [(0, None), (0, 1), (size - 1, 1), (PIECE_BYTES - 1, PIECE_BYTES + 2), (9, 0)]
    parts += [(offset, 300_000) for offset in range(0, size - 300_000, 3_000_000)]
    parts += [(0, PIECE_BYTES + 1), (PIECE_BYTES, None)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda part: list(file.read_range(*part)), parts))
    for (offset, length), pieces in zip(parts, found, strict=True):
        assert b"".join(pieces) == content[offset:][:length]
        assert max(map(len, pieces), default=0) <= 1024 * 1024
    file.close()
    file.close()
    with contextlib.closing(open_object(place.url("a/empty"))) as empty:
        assert (empty.facts.size, whole(empty)) == (0, b"")
    # A folder is one with and without the slash.
    assert [kind_of(place.url(key)) for key in ("a/empty", "a", "a/")] == ["file", "folder", "folder"]
    with pytest.raises(SourceNotFoundError, match="a/valid"):
        open_address(place.url("a/valid.zip"))


def test_content_that_changes_midway_is_noticed(place: Place) -> None:
    """Another content of the same length is not taken for the one that was opened: its range never gets complete. Parts
    that are not there any more are a change, not a failure to read."""
    size = PIECE_BYTES + MB
    place.put("x.bin", b"a" * size)
    with contextlib.closing(open_object(place.url("x.bin"))) as file:
        reading = file.read_range(0, None)
        came = [next(reading)]
        place.put("x.bin", b"b" * size)
        with pytest.raises(SourceChangedError, match=r"x\.bin"):
            came.extend(reading)
        assert sum(map(len, came)) < size
        place.put("x.bin", b"b")
        with pytest.raises(SourceChangedError):
            list(file.read_range(5, MB))
        place.remove("x.bin")
        with pytest.raises(SourceChangedError):
            list(file.read_range(0, MB))


def test_a_marker_of_a_folder_is_no_file(s3: BucketService) -> None:
    """An empty object that others lie below stands for their folder."""
    for key, content in {"a": b"", "a/x": b"1", "b": b"content", "b/x": b"1"}.items():
        s3.put(key, content)
    assert [kind_of(f"s3://data/{key}") for key in ("a", "b", "b/")] == ["folder", "file", "folder"]


def test_who_is_left_reading_a_closed_object_connects_to_nothing(place: Place) -> None:
    """Nobody would close such a connection: the reading that was under way, and every later one, ends by an error."""
    place.put("big.bin", os.urandom(PIECE_BYTES + MB))
    before = connections()
    file = open_object(place.url("big.bin"))
    reading = file.read_range(0, None)
    next(reading)
    file.close()
    for rest in (reading, file.read_range(0, None)):
        with pytest.raises(SourceReadError, match="was closed"):
            list(rest)
    ends = time.monotonic() + 5
    while connections() - before and time.monotonic() < ends:
        time.sleep(0.01)
    assert connections() <= before


def test_a_checksum_that_was_given_is_kept_and_an_etag_is_none(s3: BucketService) -> None:
    """S3's ETag looks like an md5, but nobody says when it is one."""
    s3.put("x", b"hello")
    given = Checksum("sha256", "ab" * 32)
    for checksum in (None, given):
        file = open_object("s3://data/x", checksum=checksum)
        file.close()
        assert file.facts.checksum == checksum


def test_without_a_login_what_is_public_is_read_and_what_is_private_refused(
    s3: BucketService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The person is told so, and by which variables a login is given."""
    s3.put("open.bin", b"for all", public=True)
    s3.put("mine.bin", b"secret")
    use_login(monkeypatch, s3, known=False)
    with contextlib.closing(open_object("s3://data/open.bin")) as file:
        assert whole(file) == b"for all"
    assert "anonymously" in str(fetch_files("s3://data/open.bin", tmp_path / "open.bin", progress=False))
    with pytest.raises(SourceAccessError, match=r"credentials.*AWS_ACCESS_KEY_ID") as caught:
        open_address("s3://data/mine.bin")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), SourceAccessError)


def test_a_login_that_is_not_accepted_is_refused_and_not_shown(
    s3: BucketService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key is an error about access."""
    s3.put("mine.bin", b"secret")
    s3.demand_known_logins(wanted=True)
    monkeypatch.setenv("FSSPEC_S3", json.dumps({"key": "AKIAWRONG", "secret": "hunter2-hunter2"}))
    with pytest.raises(SourceAccessError) as caught:
        open_address("s3://data/mine.bin")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_login_may_come_from_the_environment(sftp: FolderService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables set after fsspec was imported count, as they do in a notebook. A wrong password is not shown."""
    import fsspec  # noqa: F401

    (sftp.root / "x").write_bytes(b"hello")
    wrong = sftp.address.replace("://", f"://{USER}:not-the-word@")
    with pytest.raises(SourceAccessError, match="FSSPEC_") as caught:
        open_address(f"{wrong}/x")
    assert "not-the-word" not in str(caught.value)
    monkeypatch.setenv("FSSPEC_SFTP_USERNAME", USER)
    monkeypatch.setenv("FSSPEC_SFTP_PASSWORD", PASSWORD)
    with contextlib.closing(open_object(f"{sftp.address}/x")) as file:
        assert whole(file) == b"hello"
        assert file.facts.label == f"{sftp.address}/x"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "not a remote address"),
        ("zip://a.txt::s3://data/x.zip", "another file system"),
        ("sftp://ann:pass/word@host/x", "not a complete address"),
    ],
)
def test_what_is_no_address_is_refused(url: str, message: str) -> None:
    """Nothing is asked of any service, and no part of a password is shown."""
    with pytest.raises(OptionError, match=message) as caught:
        open_address(url)
    assert "pass/word" not in str(caught.value)


def test_a_missing_package_is_named_with_its_install_line() -> None:
    """The message can be pasted into a cell."""
    with pytest.raises(MissingDependencyError, match="ocifs"):
        open_address("oci://bucket/x")


def test_whoever_waits_for_an_object_that_is_closed_is_woken(s3: BucketService) -> None:
    """By an error, at once, though the service has not answered."""
    s3.put("x", b"hello")
    file, asked, answers = open_object("s3://data/x"), threading.Event(), threading.Event()
    s3.hold(1, lambda: [asked.set(), answers.wait(30)])  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(whole, file)
        assert asked.wait(10)
        began = time.monotonic()
        file.close()
        with pytest.raises(SourceReadError, match="was closed"):
            waiting.result(10)
        assert time.monotonic() - began < 5
        answers.set()
