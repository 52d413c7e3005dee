"""Trying again, where the failure is of a kind that passes: a budget that progress refills, never a blind loop."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import DriveDisconnectedError, SourceNotFoundError, SourceReadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

# What a Drive mount answers on a bad day and may not answer a moment later.
_PASSING = frozenset({errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY})
# The client behind the mount is gone; only mounting again helps.
_DEAD = frozenset({errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try.

    `attempts`: tries for one item, the first included.
    `first_wait_s`: seconds before the second try; each further wait doubles.
    `missing_is_passing`: a file that was listed a moment ago and now is not found is a symptom of a dying mount,
    so it is worth another try.
    """

    attempts: int = 4
    first_wait_s: float = 0.25
    missing_is_passing: bool = True


def is_passing(error: OSError, policy: RetryPolicy) -> bool:
    """Whether the same call may succeed a moment later."""
    return error.errno in _PASSING or (error.errno == errno.ENOENT and policy.missing_is_passing)


def translate_read_error(error: OSError, name: str, tries: int) -> OSError:
    """The typed error for a read that failed for good."""
    if error.errno in _DEAD:
        msg = (
            f"Reading '{name}' failed: {error.strerror}. The Drive client has died. Mount it again "
            'with google.colab.drive.mount("/content/drive", force_remount=True) and run this cell once more; '
            "finished work is kept."
        )
        return DriveDisconnectedError(msg)
    if error.errno == errno.ENOENT:
        msg = f"'{name}' was listed but cannot be found any more ({tries} tries). Was it moved or deleted meanwhile?"
        return SourceNotFoundError(msg)
    reason = error.strerror or str(error)
    msg = (
        f"Reading '{name}' failed after {tries} tries: {reason}. On Google Drive this is often the download quota of "
        "a file or a folder with too many entries: stage a copy of the file, or one archive of the folder."
    )
    return SourceReadError(msg)


def read_with_retry(
    read: Callable[[], T],
    name: str,
    *,
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `read()` until it succeeds or `policy` is spent.

    Raises:
        DriveDisconnectedError: the mount is dead; raised at once, since waiting does not help.
        SourceNotFoundError: the item is gone.
        SourceReadError: everything else, with the number of tries and the remedy.
    """
    wait_s = policy.first_wait_s
    for tries in range(1, policy.attempts + 1):
        try:
            return read()
        except (SourceReadError, SourceNotFoundError, DriveDisconnectedError):
            raise
        except OSError as error:
            if tries == policy.attempts or not is_passing(error, policy):
                raise translate_read_error(error, name, tries) from error
        sleep(wait_s)
        wait_s *= 2
    unreachable = f"A retry policy needs at least one attempt, got {policy.attempts}."
    raise ValueError(unreachable)
