"""What a service's failure becomes: its kind, the way out of it, and nothing that should stay secret."""

from __future__ import annotations

import errno
import ftplib
import re
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from colabstage.errors import SourceAccessError, SourceNotFoundError, SourceReadError
from colabstage.sources.fsspec_answers import judge_error, translate_error, wait_asked
from colabstage.sources.remote import TransientError


class NoCredentialsError(Exception):
    """Of the name that botocore's has."""


class ClientError(Exception):
    """As botocore's: with a response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response: Any = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}}


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
