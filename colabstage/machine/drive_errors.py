"""Failures of Google Drive's client as typed errors: its exceptions, and reads whose failure its log explains.

The client's exceptions are recognised by type name and wording: some come from private modules, or from packages that
exist only on Colab, so importing them in order to catch them would fail everywhere else.

Drive limits how often one file may be downloaded in a day, by all its users together. The mount then fails with
'Input/output error', as it does for many other reasons; the client's log says `QUOTA_EXCEEDED`. That log covers the
whole session, so only what was added since the work began says anything about the work.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import (
    ColabstageError,
    DriveAuthError,
    DriveDisconnectedError,
    DriveError,
    DriveQuotaError,
    NotSupportedHereError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
    ended,
    said_by,
)
from colabstage.io.units import format_duration
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LOG = "~/.config/Google/DriveFS/Logs/drive_fs.txt"
_MARK = b"QUOTA_EXCEEDED"
# A flush that ends before this share of its timeout has failed for another reason.
_OUT_OF_TIME = 0.9
_ROOT_MARK = b"QueryManager timed out"
# The log may grow by megabytes a minute; what it says about a failure is at its end.
_TAIL_BYTES = 1 << 20
# Causes may form a cycle.
_MAX_CHAIN = 20


class _Cause(NamedTuple):
    name: str
    """The name of its type, or of a base class."""
    words: str
    """What its message contains."""
    kind: type[ColabstageError]
    message: str
    """What the user needs to know."""


WITHOUT_DRIVE = (
    "Without a mounted Drive, stage_dataset reads share links (https://drive.google.com/…), buckets (s3://…, gs://…) "
    "and hf://datasets/…, and cache_dir= takes a bucket."
)
"""What works if nobody can consent to a mount."""

_NO_KERNEL = (
    "Drive can only be mounted and flushed from a notebook cell, because the permission is asked for in the browser. "
    "This is a script or a shell: mount Drive in a cell first; scripts started afterwards can use it. "
    f"{WITHOUT_DRIVE}"
)
# The first matching cause counts, so the general ones come last.
_MOUNT_CAUSES = (
    _Cause(
        *("MessageError", "", DriveAuthError),
        "Google did not grant access to Drive. Run the cell again and, in the dialogue, choose the account "
        "that this notebook is signed in with and tick every box; browser settings that block third-party "
        "cookies or pop-ups also end here.",
    ),
    _Cause(
        *("NotImplementedError", "Enterprise", NotSupportedHereError),
        "Colab Enterprise cannot mount Google Drive. Copy the data to a Cloud Storage bucket and stage it from there.",
    ),
    _Cause(
        *("NotImplementedError", "", NotSupportedHereError),
        "This machine cannot mount Google Drive: google.colab is installed, but this is not a Colab machine. "
        f"{WITHOUT_DRIVE}",
    ),
    _Cause("AttributeError", "kernel", NotSupportedHereError, _NO_KERNEL),
    # A variable that Colab sets in its notebooks is missing.
    _Cause("KeyError", "", NotSupportedHereError, _NO_KERNEL),
    _Cause(
        *("TIMEOUT", "", DriveError),
        "The Drive client started for '{place}' but said nothing until the deadline. Run the cell again; if "
        "that does not help, restart the session ('Disconnect and delete runtime').",
    ),
    _Cause(
        *("ValueError", "timeout during initial read of root folder", DriveError),
        "Drive took too long to list 'My Drive': it holds too many items at its top level. Call "
        "mount_drive(timeout_s=600), which gives it more time (each attempt gets further, because what was "
        "listed is kept), then move files from the top level into folders.",
    ),
    _Cause(
        *("ValueError", "domain policy", DriveAuthError),
        "The administrator of this Google account has disabled Drive for desktop, which Colab uses. Ask for "
        "it to be enabled (support.google.com/a/answer/7496409), or use another account.",
    ),
    _Cause(
        *("ValueError", "must be a directory if present", TargetExistsError),
        "There is a file where the Drive client keeps its settings ({error}). Move it elsewhere, then mount again.",
    ),
    _Cause(
        *("ValueError", "mount failed", DriveError),
        "The Drive client ended before '{place}' was mounted, as it does when nobody answers the dialogue "
        "that asks for access. Run the cell again and answer it; if that does not help, restart the session "
        f"('Disconnect and delete runtime'). The client's log is {_LOG}. {WITHOUT_DRIVE}",
    ),
    _Cause(
        *("OSError", "Transport endpoint", DriveDisconnectedError),
        "The mount at '{place}' is dead ({error}). Run the cell again; if that does not help, restart the "
        "session ('Disconnect and delete runtime').",
    ),
)
_FLUSH_CAUSES = (
    _Cause(
        *("ValueError", "flush_and_unmount failed", DriveError),
        "Drive {how}, so not everything is uploaded. What is still waiting is only on this machine: keep the "
        "session open and call flush_drive() again{remedy}.",
    ),
    _Cause(
        *("NotImplementedError", "", NotSupportedHereError),
        "This machine cannot flush Google Drive ({error}). Files are uploaded in the background; look for "
        "them on drive.google.com before the session ends.",
    ),
    _Cause("KeyError", "", NotSupportedHereError, _NO_KERNEL),
)


def mount_error(error: Exception, place: Path, *, log_size: int = 0) -> ColabstageError:
    """Return the typed error for a failure of `drive.mount(place)`."""
    text = str(error)
    # google.colab searches the whole log for this, so after one such failure it gives the same reason for all others.
    if "timeout during initial read" in text and _ROOT_MARK not in _written_since(log_size):
        error = ValueError(text.partition(":")[0])
    return _translate(error, _MOUNT_CAUSES, f"Mounting Drive at '{place}' failed", place=str(place))


def flush_error(error: Exception, place: Path, *, took_s: float, limit_s: float) -> ColabstageError:
    """Return the typed error for a failure of `drive.flush_and_unmount` that took `took_s` of `limit_s` seconds."""
    # The client has one message for a timeout and for all other failures, so the clock must tell them apart.
    in_time = took_s < _OUT_OF_TIME * limit_s
    what = f"gave up after {format_duration(took_s)}" if in_time else f"did not end within {format_duration(limit_s)}"
    remedy = f"; its log is {_LOG}" if in_time else ", with a larger timeout_s when there is much to upload"
    words = {"place": str(place), "how": what, "remedy": remedy}
    return _translate(error, _FLUSH_CAUSES, f"Flushing Drive at '{place}' failed", **words)


def _translate(error: Exception, causes: Iterable[_Cause], what: str, **figures: str) -> ColabstageError:
    # Base classes too: the client raises private subclasses of Python's errors.
    names = {base.__name__ for base in type(error).__mro__}
    for cause in causes:
        if cause.name in names and cause.words in str(error):
            return cause.kind(cause.message.format(error=error, **figures))
    msg = f"{what}: {type(error).__name__}: {error}. Run the cell again; if that does not help, restart the session."
    return DriveError(msg)


def drive_log_path() -> Path:
    """Return the log of Colab's Drive client."""
    return system_root() / "root/.config/Google/DriveFS/Logs/drive_fs.txt"


def drive_log_size() -> int:
    """Return how long the log is now, in bytes; 0 without one. Call it before the work that may fail."""
    try:
        return drive_log_path().stat().st_size
    except OSError:
        return 0


def quota_error(error: BaseException, log_size: int) -> DriveQuotaError | None:
    """Return the typed error for a read that failed because Drive's download quota is used up; `None` for any other
    failure. `log_size`: what `drive_log_size` returned before the work began.
    """
    # A file that changed could be read, whatever the log says about other files.
    ours = isinstance(error, ColabstageError)
    if ours and (not isinstance(error, SourceReadError) or isinstance(error, SourceChangedError)):
        return None
    if not _is_input_output_error(error) or _MARK not in _written_since(log_size):
        return None
    what = str(error) if ours else ended(said_by(error))
    msg = (
        f"{what} The Drive client's log says {_MARK.decode()}: too many downloads of this file in a day, by all its "
        "users together. Make a copy of it in your own Drive ('Make a copy' on drive.google.com, which resets the "
        "count) and use that, or wait 24 hours; what has arrived is kept."
    )
    return DriveQuotaError(msg)


def _is_input_output_error(error: BaseException) -> bool:
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            return False
        if isinstance(current, OSError) and current.errno == errno.EIO:
            return True
        current = current.__cause__ or current.__context__
    return False


def _written_since(log_size: int) -> bytes:
    try:
        with drive_log_path().open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            # A log that became shorter was replaced by a new one.
            log.seek(max(log_size if log_size <= end else 0, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES)
    except OSError:
        return b""
