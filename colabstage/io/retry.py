"""Trying again where a failure is transient, and the typed errors for reads and writes that failed for good.

So many tries for each item, never a blind loop.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import (
    ColabstageError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    OptionError,
    SourceNotFoundError,
    SourceReadError,
    TargetNotWritableError,
)
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.workspace import is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    from colabstage.io.progress import Clock

    T = TypeVar("T")

# What a Drive mount answers on a bad day and may not answer a moment later.
_TRANSIENT = frozenset({errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY})
# The client behind the mount is gone; only mounting again helps.
_DEAD = frozenset({errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try."""

    attempts: int = 4
    """Tries for one item, the first included."""
    first_wait_s: float = 0.25
    """Seconds before the second try; each further wait doubles."""
    patience_s: float = 0.0
    """Seconds for which a server is asked again at least, however often: what takes hours should not end because a
    server had a bad minute. Not for mounts: one that fails waits for a person."""
    missing_is_transient: bool = True
    """Whether a file is worth another try that was listed a moment ago and now is not found, as on a dying mount."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or not self.first_wait_s >= 0 or not self.patience_s >= 0:
            msg = (
                f"A retry policy needs at least one attempt and times of no less than 0 s, got attempts="
                f"{self.attempts}, first_wait_s={self.first_wait_s} and patience_s={self.patience_s}."
            )
            raise OptionError(msg)


# For what was opened, so that it has answered a moment ago.
PATIENT = RetryPolicy(patience_s=60.0)


def is_transient(error: OSError, policy: RetryPolicy) -> bool:
    """Return whether the same call may succeed a moment later."""
    return error.errno in _TRANSIENT or (error.errno == errno.ENOENT and policy.missing_is_transient)


def speaks_of_a_mount(error: OSError) -> bool:
    """Return whether a mount answers so whose client is dead or has a bad day, and local disks hardly ever do."""
    return error.errno in _DEAD or error.errno in _TRANSIENT


def translate_read_error(error: OSError, name: str, tries: int) -> OSError:
    """Return the typed error for a read that failed for good after `tries` tries."""
    often = "1 try" if tries == 1 else f"{tries} tries"
    if error.errno in _DEAD:
        msg = (
            f"Reading '{name}' failed: {error.strerror}. The Drive client has died. Mount it again "
            "with mount_drive() and run this cell once more; finished work is kept."
        )
        return DriveDisconnectedError(msg)
    # It was there a moment ago, or nobody would have asked for it.
    if error.errno == errno.ENOENT:
        msg = f"'{name}' was listed but cannot be found any more ({often}). Was it moved or deleted meanwhile?"
        return SourceNotFoundError(msg)
    reason = error.strerror or str(error)
    msg = f"Reading '{name}' failed after {often}: {reason}."
    if error.errno in _TRANSIENT:
        msg += (
            " On Google Drive this is often the download quota of a file or a folder with too many entries: "
            "stage a copy of the file, or one archive of the folder."
        )
    return SourceReadError(msg)


def read_with_retry(
    read: Callable[[], T],
    name: str,
    *,
    policy: RetryPolicy = RetryPolicy(),
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Call `read()` until it succeeds or `policy` is spent.

    What `read` itself raises as a `ColabstageError` has been checked already and passes through.

    Raises:
        DriveDisconnectedError: the mount is dead; raised at once, since waiting does not help.
        SourceNotFoundError: the item is gone.
        SourceReadError: everything else, with the number of tries and the remedy.
    """
    for tries in itertools.count(1):
        try:
            return read()
        # Some of ours are OSErrors too, and already say what they mean.
        except ColabstageError:
            raise
        except OSError as error:
            if tries >= policy.attempts or not is_transient(error, policy):
                raise translate_read_error(error, name, tries) from error
        clock.sleep(policy.first_wait_s * 2 ** (tries - 1))
    raise AssertionError  # itertools.count does not end


@contextlib.contextmanager
def typed_write_errors(target: Path) -> Iterator[None]:
    """Raise what a disk answers in the block as the typed error that `translate_write_error` makes of it."""
    try:
        yield
    except ColabstageError:
        raise
    except OSError as error:
        raise translate_write_error(error, target) from error


def translate_write_error(error: OSError, target: Path) -> OSError:
    """Return the typed error for a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # What is unfinished has names that tell a person nothing.
        place = next(folder for folder in target.parents if not is_own(folder))
        msg = f"'{place}' is full ({error.strerror}). Free some space there, or choose another place."
        return NotEnoughSpaceError(msg)
    if error.errno in _DEAD:
        msg = (
            f"Writing '{target}' failed: {error.strerror}. The Drive client has died. Mount it again with "
            "mount_drive(), then try again."
        )
        return DriveDisconnectedError(msg)
    msg = f"Cannot write '{target}' ({error.strerror or error}). Choose a place that this user can write to."
    return TargetNotWritableError(msg)
