"""What fsspec's backends say, each its own way: facts of an object, and failures with the way out of each."""

from __future__ import annotations

import base64
import errno
import ftplib
import hashlib
import re
import socket
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from colabstage.errors import SourceAccessError, SourceNotFoundError, SourceReadError
from colabstage.sources.fsspec_answers import (
    checksum_of,
    judge_error,
    mtime_ns_of,
    translate_error,
    version_of,
    wait_asked,
)
from colabstage.sources.remote import Checksum, TransientError

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
NOON_NS = 1_772_366_400_250_000_000
MD5 = hashlib.md5(b"x", usedforsecurity=False).digest()


@pytest.mark.parametrize(
    ("info", "time_ns"),
    [
        ({"LastModified": NOON}, NOON_NS),
        ({"last_modified": NOON.replace(tzinfo=None)}, NOON_NS),
        ({"mtime": NOON.timestamp()}, NOON_NS),
        ({"updated": "2026-03-01T12:00:00.250Z"}, NOON_NS),
        ({"modify": "20260301120000.250"}, NOON_NS - 250_000_000),
        ({"modify": "Mar  1 12:00"}, 0),
        ({"size": 3}, 0),
    ],
)
def test_times_are_read_from_every_backend(info: dict[str, Any], time_ns: int) -> None:
    """Datetimes, seconds, ISO texts and FTP's digits; an `ls -l` without the year is no time."""
    assert mtime_ns_of(info) == time_ns


def test_versions_change_with_the_content() -> None:
    """The service's own mark where it has one, else time and size; where there is nothing, nothing is claimed."""
    assert version_of({"ETag": '"ab"', "LastModified": NOON}) == "ab"
    assert version_of({"generation": "17", "etag": "x"}) == "17"
    assert version_of({"mtime": 5.0, "size": 3}) != version_of({"mtime": 5.0, "size": 4})
    assert version_of({"size": 3}) == ""


def test_only_certain_hashes_count() -> None:
    """Google's md5 of what is handed out and a hub's sha256 do; ETags and Azure's field do not."""
    coded = base64.b64encode(MD5).decode()
    assert checksum_of({"md5Hash": coded}) == Checksum("md5", MD5.hex())
    assert checksum_of({"lfs": {"sha256": "ab" * 32}}) == Checksum("sha256", "ab" * 32)
    assert checksum_of({"md5Hash": coded, "contentEncoding": "gzip"}) is None
    assert checksum_of({"ETag": MD5.hex(), "content_settings": {"content_md5": MD5}}) is None
    assert checksum_of({"lfs": None}) is None


class NoCredentialsError(Exception):
    """Of the name that botocore's has."""


class ClientError(Exception):
    """As botocore's: with a response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response: Any = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}}


class SSHException(Exception):  # noqa: N818 - paramiko's name
    """As paramiko's."""


class HttpError(Exception):
    """As requests': with a response object."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers={"Retry-After": "7"})


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "judgement"),
    [
        (FileNotFoundError("x"), "missing"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "missing"),
        (NoCredentialsError("Unable to locate credentials"), "access"),
        (HttpError(401), "access"),
        (ftplib.error_perm("530 Login incorrect"), "access"),
        (ftplib.error_perm("550 Permission denied"), "access"),
        (SSHException("No authentication methods available"), "access"),
        (SSHException("Server connection dropped"), "transient"),
        (TimeoutError(), "transient"),
        (OSError(errno.EBUSY, "Please reduce your request rate."), "transient"),
        (ClientError(503), "transient"),
        (HttpError(429), "transient"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "transient"),
        (caused(OSError("unknown"), ClientError(500)), "transient"),
        (OSError(errno.EINVAL, "The requested range is not satisfiable"), "other"),
        (ValueError("x"), "other"),
    ],
)
def test_failures_are_told_apart(error: Exception, judgement: str) -> None:
    """By their class, their number, their status or their cause."""
    assert judge_error(error) == judgement


def test_an_error_says_what_to_do() -> None:
    """Each kind becomes its typed error with the address and the reason; what is typed already passes through."""
    kinds: list[tuple[Exception, type[Exception], str]] = [
        (FileNotFoundError("gone"), SourceNotFoundError, "There is nothing at 's3://b/x' (gone)"),
        (PermissionError("Forbidden"), SourceAccessError, "AWS_SECRET_ACCESS_KEY"),
        (TimeoutError("slow"), TransientError, "slow"),
        (ValueError("odd"), SourceReadError, "'s3://b/x' failed: odd."),
        (ValueError(), SourceReadError, "failed: no reason was given."),
    ]
    for raised, kind, text in kinds:
        told = translate_error(raised, "s3", "s3://b/x")
        assert type(told) is kind
        assert text in str(told)
        assert not re.search(r"\w(Error|Exception)\b|Errno", str(told))
    typed = SourceReadError("as it is")
    assert translate_error(typed, "s3", "s3://b/x") is typed


def test_the_time_a_service_asks_for_is_kept() -> None:
    """From either kind of answer; nonsense is no time."""
    assert wait_asked(HttpError(429)) == 7.0
    assert wait_asked(caused(OSError("busy"), ClientError(503, {"retry-after": "3"}))) == 3.0
    assert wait_asked(ClientError(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})) is None
    assert wait_asked(TimeoutError()) is None
