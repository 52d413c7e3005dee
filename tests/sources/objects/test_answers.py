"""What fsspec's backends say, each its own way: facts of an object, and failures with the way out of each."""

import errno
import re
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from colabstage import fetch_files
from colabstage.errors import (
    ChecksumMismatchError,
    ColabstageError,
    SourceAccessError,
    SourceNotFoundError,
    SourceReadError,
)
from tests.support.deadlines import lose_patience

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
NOON_NS = 1_772_366_400_250_000_000
CONTENT = b"\0x"


class Backend(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no type information
    """A service with one object, which says of it what a test wants, and fails as it wants."""

    protocol = "answers"
    cachable = False
    says: dict[str, Any]
    fails: Exception | None
    fails_at: str
    asked: list[str]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._fail("info")
        return {"name": path, "type": "file", "size": len(CONTENT), **self.says}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._fail("read")
        return CONTENT[start:end]

    def _fail(self, asked: str) -> None:
        self.asked.append(asked)
        if self.fails is not None and self.fails_at == asked:
            raise self.fails

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return []


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> type[Backend]:
    """The service, which nobody waits for for long."""
    fsspec.register_implementation("answers", Backend, clobber=True)
    Backend.says, Backend.fails, Backend.asked = {}, None, []
    lose_patience("sources", 0.1, monkeypatch.setattr)
    return Backend


def fetch(out: Path) -> Any:
    return fetch_files("answers://top/x.bin", out / "x.bin", progress=False)


@pytest.mark.parametrize(
    ("info", "time_ns"),
    [
        ({"LastModified": NOON}, NOON_NS),
        ({"last_modified": NOON.replace(tzinfo=None)}, NOON_NS),
        ({"mtime": NOON.timestamp()}, NOON_NS),
        ({"updated": "2026-03-01T12:00:00.250Z"}, NOON_NS),
        ({"updated": "Mar  1 12:00"}, 0),
        ({}, 0),
    ],
)
def test_times_are_read_from_every_backend(
    backend: type[Backend], tmp_path: Path, info: dict[str, Any], time_ns: int
) -> None:
    """Datetimes, seconds and ISO texts."""
    backend.says = info
    fetch(tmp_path)
    found = (tmp_path / "x.bin").stat().st_mtime_ns
    assert found == time_ns if time_ns else time.time_ns() - found < 600e9


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        # The service's own mark, where it has one; else time and size; where there is nothing, nothing is claimed.
        ({"ETag": '"ab"', "LastModified": NOON}, {"ETag": "ab", "LastModified": NOON.replace(day=2)}, True),
        ({"generation": "17", "etag": "x"}, {"generation": "17", "etag": "y"}, True),
        ({"ETag": '"ab"'}, {"ETag": '"ac"'}, False),
        ({"mtime": 5.0}, {"mtime": 5.0}, True),
        ({"mtime": 5.0}, {"mtime": 7.0}, False),
    ],
)
def test_versions_change_with_the_content(
    backend: type[Backend], tmp_path: Path, before: dict[str, Any], after: dict[str, Any], kept: bool
) -> None:
    backend.says = before
    fetch(tmp_path)
    backend.says = after
    assert (fetch(tmp_path).kept_bytes == len(CONTENT)) is kept


OTHER_MD5 = "1B2M2Y8AsgTpgAmY7PhCfg=="


@pytest.mark.parametrize(
    ("info", "counts"),
    [
        ({"md5Hash": OTHER_MD5}, True),
        ({"lfs": {"sha256": "ab" * 32}}, True),
        ({"md5Hash": OTHER_MD5, "contentEncoding": "gzip"}, False),
        ({"ETag": "d41d8cd98f00b204e9800998ecf8427e", "content_settings": {"content_md5": OTHER_MD5}}, False),
        ({"lfs": None}, False),
    ],
)
def test_only_certain_hashes_count(backend: type[Backend], tmp_path: Path, info: dict[str, Any], counts: bool) -> None:
    """Google's md5 of what is handed out and a hub's sha256 do; ETags and Azure's field do not. These are another's."""
    backend.says = info
    if counts:
        with pytest.raises(ChecksumMismatchError, match=r"x\.bin"):
            fetch(tmp_path)
    else:
        assert fetch(tmp_path).nbytes == len(CONTENT)


class NoCredentialsError(Exception):
    """Of the name that botocore's has."""


class ClientError(Exception):
    """As botocore's: with a response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response: Any = {"ResponseMetadata": {"HTTPStatusCode": status}}


class SSHException(Exception):  # noqa: N818 - paramiko's name
    """As paramiko's."""


class HttpError(Exception):
    """As requests': with a response object."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        (FileNotFoundError("x"), SourceNotFoundError, False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), SourceNotFoundError, False),
        (NoCredentialsError("Unable to locate credentials"), SourceAccessError, False),
        # A hub says of what is private that there is nothing.
        (caused(FileNotFoundError("x (not found)"), HttpError(401)), SourceAccessError, False),
        (HttpError(401), SourceAccessError, False),
        (caused(OSError(errno.EINVAL, "Bad Request"), ClientError(400)), SourceAccessError, False),
        (caused(OSError(errno.EINVAL, "Moved Permanently"), ClientError(301)), SourceAccessError, False),
        (PermissionError("Forbidden"), SourceAccessError, False),
        (SSHException("No authentication methods available"), SourceAccessError, False),
        (ValueError("unable to connect to account for Must provide a connection_string"), SourceAccessError, False),
        (SSHException("Server connection dropped"), SourceReadError, True),
        (TimeoutError("slow"), SourceReadError, True),
        (OSError(errno.EBUSY, "Please reduce your request rate."), SourceReadError, True),
        (ClientError(503), SourceReadError, True),
        (HttpError(429), SourceReadError, True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), SourceReadError, True),
        (caused(OSError("unknown"), ClientError(500)), SourceReadError, True),
        (OSError(errno.EINVAL, "The requested range is not satisfiable"), SourceReadError, False),
        (ValueError("odd"), SourceReadError, False),
        (ValueError(), SourceReadError, False),
    ],
)
def test_failures_are_told_apart(
    backend: type[Backend], tmp_path: Path, error: Exception, kind: type[ColabstageError], again: bool
) -> None:
    """By their class, their number, their status or their cause: the typed error has the address and the reason, and
    what passes is asked for again."""
    # What is there and open to us is read again; who may not see it is refused before.
    backend.fails, backend.fails_at = error, "read" if kind is SourceReadError else "info"
    with pytest.raises(kind, match=r"answers://top/x\.bin") as raised:
        fetch(tmp_path)
    assert issubclass(raised.type, kind)
    assert (backend.asked.count(backend.fails_at) > 1) is again
    assert not re.search(r"\w(Error|Exception)\b|Errno", str(raised.value))
    reason = str(error.__cause__ or error).rpartition("] ")[2].rstrip(".")
    assert reason in str(raised.value) or not reason or error.__cause__ is not None
    assert ("name is not known here" in str(raised.value)) is isinstance(error, socket.gaierror)
    assert not (tmp_path / "x.bin").exists()
