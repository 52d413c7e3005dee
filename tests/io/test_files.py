"""Files: retries after passing errors, the lock for work on this machine, and sizes while others remove files."""

import errno
import os
import threading
from itertools import chain, repeat
from pathlib import Path
from unittest import mock

import pytest

from colabstage.errors import DriveDisconnectedError, SourceNotFoundError, SourceReadError
from colabstage.io import files as fileops
from colabstage.io.files import RetryPolicy, read_with_retry
from tests.clocks import ManualClock


class Reader:
    """A source that raises `errors`, one for each call, and then returns its bytes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.clock = ManualClock()

    def read(self) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        return b"bytes"

    def run(self, policy: RetryPolicy) -> bytes:
        return read_with_retry(self.read, "a/1.jpg", policy=policy, clock=self.clock)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ENOENT])
def test_a_passing_failure_is_tried_again(number: int) -> None:
    reader = Reader(os_error(number), os_error(number), os_error(number))
    assert reader.run(RetryPolicy(attempts=4, first_wait_s=0.25)) == b"bytes"
    assert reader.clock.slept == [0.25, 0.5, 1.0]


# Permanent errors: the policy, the error's type, and the number of tries.
FINAL = {
    errno.EIO: (RetryPolicy(attempts=3), SourceReadError, 3),
    errno.EACCES: (RetryPolicy(), SourceReadError, 1),
    errno.ENOTCONN: (RetryPolicy(), DriveDisconnectedError, 1),
    errno.ECONNABORTED: (RetryPolicy(), DriveDisconnectedError, 1),
    errno.ENOENT: (RetryPolicy(missing_is_transient=False), SourceNotFoundError, 1),
    # The error number of a file that stays missing, with the usual policy.
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


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / ".colabstage-x.lock"


def test_it_is_let_go_after_an_error_and_though_its_file_is_not_removed(lock: Path) -> None:
    with pytest.raises(ValueError, match="work"), fileops.local_lock(lock, timeout_s=1):
        raise ValueError("work")
    with (
        mock.patch.object(os, "unlink", side_effect=chain([KeyboardInterrupt], repeat(None))),
        pytest.raises(KeyboardInterrupt) as kept,
        fileops.local_lock(lock, timeout_s=0.05) as held,
    ):
        assert held
    with fileops.local_lock(lock, timeout_s=0.05) as held:
        assert held
    assert kept.tb is not None  # it keeps the first lock's frames alive


def test_who_waits_is_told_for_whom(lock: Path) -> None:
    said: list[str] = []
    with fileops.local_lock(lock, timeout_s=1), fileops.local_lock(lock, timeout_s=0.8, notice=said.append) as held:
        assert held is False
    assert len(said) == 2
    assert all(lock.name in sentence for sentence in said)


def test_no_place_for_a_lock_is_no_error() -> None:
    """The work continues without it."""
    with fileops.local_lock(Path("/proc/.colabstage-x.lock"), timeout_s=0.05) as held:
        assert held is None


def test_its_file_goes_with_it(lock: Path) -> None:
    """When the last waiting process releases it, and when its owner is dead; a living owner's stays."""
    waiting = threading.Event()
    held: list[bool | None] = []

    def wait_for_it() -> None:
        with (
            fileops.local_lock(lock, timeout_s=20, notice=lambda _: waiting.set()) as mine,
            fileops.local_lock(lock, timeout_s=0) as others,
        ):
            held.extend((mine, others))

    with fileops.local_lock(lock, timeout_s=1):
        other = threading.Thread(target=wait_for_it)
        other.start()
        assert waiting.wait(10)
        fileops.clear_lock(lock)
        assert lock.exists()
    other.join()
    assert held == [True, False]
    assert not lock.exists()
    lock.touch()
    fileops.clear_lock(lock)
    assert not lock.exists()
