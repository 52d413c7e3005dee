"""Trying again: what passes is waited for, what does not is told at once."""

from __future__ import annotations

import errno
import os

import pytest

from colabstage.errors import (
    DamagedPackError,
    DriveDisconnectedError,
    DriveQuotaError,
    OptionError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.io.files import RetryPolicy, read_with_retry
from tests.clocks import ManualClock


class Reader:
    """A source that answers with `errors`, one a call, and then with its bytes; keeps the waits between."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.clock = ManualClock()

    def read(self) -> bytes:
        """The next error, or the bytes."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"bytes"

    def run(self, policy: RetryPolicy) -> bytes:
        """Read under a policy, without really waiting."""
        return read_with_retry(self.read, "a/1.jpg", policy=policy, clock=self.clock)

    @property
    def waits(self) -> list[float]:
        """Seconds between the tries."""
        return self.clock.slept


def os_error(number: int) -> OSError:
    """The error that the system raises for an errno."""
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOENT])
def test_a_passing_failure_is_tried_again(number: int) -> None:
    reader = Reader(os_error(number), os_error(number), os_error(number))
    assert reader.run(RetryPolicy(attempts=4, first_wait_s=0.25)) == b"bytes"
    assert reader.waits == [0.25, 0.5, 1.0]


def test_the_tries_are_bounded() -> None:
    reader = Reader(*(os_error(errno.EIO) for _ in range(9)))
    with pytest.raises(SourceReadError, match=r"'a/1\.jpg'.*3 tries: Input/output error") as caught:
        reader.run(RetryPolicy(attempts=3))
    assert (reader.calls, len(reader.waits)) == (3, 2)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO


def test_what_does_not_pass_is_told_at_once() -> None:
    reader = Reader(os_error(errno.EACCES))
    with pytest.raises(SourceReadError, match=r"1 try: Permission denied"):
        reader.run(RetryPolicy())
    assert reader.waits == []


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED])
def test_a_dead_mount_is_told_at_once(number: int) -> None:
    reader = Reader(os_error(number))
    with pytest.raises(DriveDisconnectedError, match=r"mount_drive\(\)"):
        reader.run(RetryPolicy())
    assert reader.calls == 1


def test_a_file_that_stays_away_is_missing() -> None:
    reader = Reader(*(os_error(errno.ENOENT) for _ in range(9)))
    with pytest.raises(SourceNotFoundError, match=r"\(4 tries\)"):
        reader.run(RetryPolicy())


def test_a_missing_file_may_be_final() -> None:
    reader = Reader(os_error(errno.ENOENT))
    with pytest.raises(SourceNotFoundError, match=r"\(1 try\)"):
        reader.run(RetryPolicy(missing_is_transient=False))


@pytest.mark.parametrize("kind", [SourceReadError, DamagedPackError, DriveQuotaError])
def test_a_judged_error_passes_through(kind: type[OSError]) -> None:
    """An error of ours, although an OSError, keeps its type and its message."""
    error = kind("judged already")
    with pytest.raises(kind) as caught:
        Reader(error).run(RetryPolicy())
    assert caught.value is error


@pytest.mark.parametrize("options", [{"attempts": 0}, {"first_wait_s": -1.0}, {"first_wait_s": float("nan")}])
def test_a_policy_that_cannot_work_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="attempt"):
        RetryPolicy(**options)  # type: ignore[arg-type]
