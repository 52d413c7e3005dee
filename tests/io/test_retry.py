"""Trying again: what passes is waited for, what does not is told at once."""

from __future__ import annotations

import errno
import os

import pytest

from colabstage.errors import (
    DriveDisconnectedError,
    DriveQuotaError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.io.files import RetryPolicy, read_with_retry
from tests.clocks import ManualClock


class Reader:
    """A source that answers with `errors`, one a call, and then with its bytes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.clock = ManualClock()

    def read(self) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        return b"bytes"

    def run(self, policy: RetryPolicy) -> bytes:
        """Read under a policy, without really waiting."""
        return read_with_retry(self.read, "a/1.jpg", policy=policy, clock=self.clock)


def os_error(number: int) -> OSError:
    """The error that the system raises for an errno."""
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ENOENT])
def test_a_passing_failure_is_tried_again(number: int) -> None:
    reader = Reader(os_error(number), os_error(number), os_error(number))
    assert reader.run(RetryPolicy(attempts=4, first_wait_s=0.25)) == b"bytes"
    assert reader.clock.slept == [0.25, 0.5, 1.0]


# What fails for good: the policy, the type of the error, and the tries.
FINAL = {
    errno.EIO: (RetryPolicy(attempts=3), SourceReadError, 3),
    errno.EACCES: (RetryPolicy(), SourceReadError, 1),
    errno.ENOTCONN: (RetryPolicy(), DriveDisconnectedError, 1),
    errno.ECONNABORTED: (RetryPolicy(), DriveDisconnectedError, 1),
    errno.ENOENT: (RetryPolicy(missing_is_transient=False), SourceNotFoundError, 1),
    # The system's error number of a file that stays away, with the usual policy.
    -errno.ENOENT: (RetryPolicy(), SourceNotFoundError, 4),
}


@pytest.mark.parametrize("number", FINAL)
def test_the_tries_are_bounded_and_what_does_not_pass_is_raised_at_once(number: int) -> None:
    policy, kind, tries = FINAL[number]
    reader = Reader(*(os_error(abs(number)) for _ in range(9)))
    with pytest.raises(kind, match=r"'a/1\.jpg'") as caught:
        reader.run(policy)
    assert (9 - len(reader.errors), len(reader.clock.slept), caught.type) == (tries, tries - 1, kind)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == abs(number)


@pytest.mark.parametrize("kind", [SourceReadError, DriveQuotaError])
def test_a_judged_error_passes_through(kind: type[OSError]) -> None:
    """An error of ours, although an OSError, keeps its type and its message."""
    error = kind("judged already")
    with pytest.raises(kind) as caught:
        Reader(error).run(RetryPolicy())
    assert caught.value is error
