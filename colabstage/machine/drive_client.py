"""What Google Drive's client tells: of a file by extended attributes, and of a failure by exceptions and its log.

A file's id, its MD5 and whether it is uploaded are attributes that are answered by name only (listing them gives
nothing), and not by every client. So each of them may be missing, and what is missing is given as empty with the
reason, never guessed.

The client's exceptions are told apart by type name and wording: some come from private modules, or from packages that
are only there on Colab, so importing them to catch them would fail everywhere else.

Drive limits how often one file may be downloaded in a day, by anybody. The mount then answers 'Input/output error',
as it does for many other reasons; the client's log says `QUOTA_EXCEEDED`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import (
    ColabstageError,
    DriveAuthError,
    DriveDisconnectedError,
    DriveError,
    DriveQuotaError,
    NotSupportedHereError,
    OptionError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.pipeline import DaemonPool
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ID, _MD5, _UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
# One task of the pool asks so many files: its own cost is that of a quick answer.
_BATCH = 32
# The client answers from what it knows of the account. Who says nothing for so long says nothing.
_STALL_S = 60.0
_LOG = "~/.config/Google/DriveFS/Logs/drive_fs.txt"
_MARK = b"QUOTA_EXCEEDED"
# The log grows by megabytes a minute on a busy day; what was written about a failure stands at its end.
_TAIL_BYTES = 1 << 20
_MAX_CHAIN = 20


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Hold what the client tells of one file."""

    id: str
    """Drive's own; one that begins with `local-` exists only on this machine. "" where it is not told."""
    md5: str
    """Of the content in the cloud, 32 hexadecimal digits; "" where it is not told, or where what a reader gets here may
    be another content, because it is not uploaded.
    """
    uncommitted: bool | None
    """Whether what is here waits for its upload; `None` where that is not told."""
    why: str
    """Why there is no `md5`, in words; "" where there is one."""


def ask_client(path: str | os.PathLike[str]) -> ClientFacts:
    """Ask Drive's client for what it tells of one file. A client that hangs is waited for: ask in a thread."""
    file_id, _ = _ask(path, _ID)
    uncommitted, md5, why = _ask_md5(path)
    return ClientFacts(file_id, md5, uncommitted, why)


def ask_md5s(
    paths: Sequence[str], *, workers: int = 16, heard: Callable[[], object] = lambda: None
) -> tuple[list[str], str]:
    """Ask Drive's client for the MD5 of many files at once.

    Args:
        paths: files on a mounted Drive.
        workers: how many are asked at once.
        heard: called, in any thread, whenever a file has been answered for.

    Returns:
        The MD5 of each, in order, and ""; or an empty list and why: one is not told, or is not uploaded, or nothing
        came for a minute. One file that nothing vouches for leaves all of them unproved, so the others are not asked.
    """

    def ask_some(some: Sequence[str]) -> list[str]:
        md5s = []
        for path in some:
            _, md5, why = _ask_md5(path)
            heard()
            if not md5:
                raise _UntoldError(why)
            md5s.append(md5)
        return md5s

    rest = [paths[at : at + _BATCH] for at in range(1, len(paths), _BATCH)]
    try:
        with DaemonPool(min(workers, len(rest)) or 1, "colabstage-ask") as pool:
            # One first: where nothing is told at all, that is one question and not thousands.
            told = pool.run(ask_some, [paths[:1]], stall_timeout_s=_STALL_S)
            told += pool.run(ask_some, rest, stall_timeout_s=_STALL_S)
    except _UntoldError as error:
        return [], str(error)
    except TimeoutError:
        return [], f"it told nothing for {_STALL_S:.0f} s"
    return [md5 for some in told for md5 in some], ""


class _UntoldError(Exception):
    """Say why there is no MD5 of one file."""


def _ask_md5(path: str | os.PathLike[str]) -> tuple[bool | None, str, str]:
    """Return whether it waits for its upload, its MD5 or "", and why there is none."""
    # In this order: what is uploaded between the two questions would otherwise go under the MD5 of what was before.
    waits, problem = _ask(path, _UNCOMMITTED)
    if waits not in ("0", "1"):
        return None, "", f"'{os.fspath(path)}': whether it is uploaded is not told ({problem or repr(waits)})"
    if waits == "1":
        return True, "", f"'{os.fspath(path)}' is not uploaded yet"
    md5, problem = _ask(path, _MD5)
    if not _MD5_FORM.fullmatch(md5):
        return False, "", f"'{os.fspath(path)}': no MD5 is told ({problem or repr(md5)})"
    return False, md5, ""


def _ask(path: str | os.PathLike[str], name: str) -> tuple[str, str]:
    """Return the value of an attribute, and why there is none."""
    if sys.platform != "linux":
        return "", "this system has no such attributes"
    try:
        return os.getxattr(path, name).decode("ascii", "replace").strip("\0\n "), ""
    except OSError as error:  # a mount that is dying says so again at the next call
        return "", os.strerror(error.errno or errno.EIO)


@dataclass(frozen=True, slots=True)
class _Cause:
    """Describe one documented failure."""

    type_name: str
    """The name of the error's type, or of one above it."""
    words: str
    """What its message holds."""
    error: type[ColabstageError]
    """The typed error for it."""
    message: str
    """What a person needs to know."""


# The first cause that fits counts, so the general ones stand last.
_MOUNT_CAUSES = (
    _Cause(
        "MessageError",
        "",
        DriveAuthError,
        "Google did not grant access to Drive. Run the cell again and, in the dialogue, choose the account that this "
        "notebook is signed in with and tick every box; browser settings that block third-party cookies or pop-ups "
        "also end here.",
    ),
    _Cause(
        "NotImplementedError",
        "Enterprise",
        NotSupportedHereError,
        "Colab Enterprise cannot mount Google Drive. Copy the data to a Cloud Storage bucket and stage it from there.",
    ),
    _Cause(
        "NotImplementedError",
        "",
        NotSupportedHereError,
        "This machine cannot mount Google Drive: google.colab is installed, but this is not a Colab machine. "
        "stage_dataset takes a local folder, a URL or a share link instead of a path on Drive.",
    ),
    _Cause(
        "AttributeError",
        "kernel",
        NotSupportedHereError,
        "Drive can only be mounted from a notebook cell, because the permission is asked for in the browser. This is "
        "a script or a shell: mount Drive in a cell first; scripts started afterwards can use it.",
    ),
    _Cause(
        "KeyError",
        "",
        NotSupportedHereError,
        "A variable that Colab sets in its notebooks is missing, so this process is not one of Colab's notebook "
        "kernels. Mount Drive in a notebook cell.",
    ),
    _Cause(
        "TIMEOUT",
        "",
        DriveError,
        "The Drive client started for '{place}' but said nothing until the deadline. Run the cell again; if that does "
        "not help, restart the session ('Disconnect and delete runtime').",
    ),
    _Cause(
        "ValueError",
        "timeout during initial read of root folder",
        DriveError,
        "Drive took too long to list 'My Drive': it holds too many items at its top level. Try again (each attempt "
        "gets further, because what was listed is kept), then move files from the top level into folders.",
    ),
    _Cause(
        "ValueError",
        "domain policy",
        DriveAuthError,
        "The administrator of this Google account has disabled Drive for desktop, which Colab uses. Ask for it to be "
        "enabled (support.google.com/a/answer/7496409), or use another account.",
    ),
    _Cause(
        "ValueError",
        "must not contain a space",
        OptionError,
        "The mount point '{place}' contains a space, which Colab does not allow. Use '/content/drive'.",
    ),
    _Cause(
        "ValueError",
        "must not be a symlink",
        OptionError,
        "The mount point '{place}' is a symbolic link. Use a plain folder such as '/content/drive'.",
    ),
    _Cause(
        "ValueError",
        "must not already contain files",
        TargetExistsError,
        "The mount point '{place}' is a local folder with files in it, written there while Drive was not mounted; they "
        "are not on Drive. Move them elsewhere, then mount again.",
    ),
    _Cause(
        "ValueError",
        "must either be a directory or not exist",
        TargetExistsError,
        "The mount point '{place}' is a file. Move it elsewhere, or use '/content/drive'.",
    ),
    _Cause(
        "ValueError",
        "must be in a directory that exists",
        OptionError,
        "The mount point '{place}' lies in a folder that does not exist. Use '/content/drive', or create the folder.",
    ),
    _Cause(
        "ValueError",
        "must be a directory if present",
        TargetExistsError,
        "A file stands where the Drive client keeps its settings ({error}). Move it elsewhere, then mount again.",
    ),
    _Cause(
        "ValueError",
        "mount failed",
        DriveError,
        "The Drive client ended before '{place}' was mounted, as it does when nobody answers the dialogue that asks "
        "for access. Run the cell again and answer it; if that does not help, restart the session ('Disconnect and "
        f"delete runtime'). The client's log is {_LOG}.",
    ),
    _Cause(
        "OSError",
        "Transport endpoint",
        DriveDisconnectedError,
        "The mount at '{place}' is dead ({error}). Run the cell again; if that does not help, restart the session "
        "('Disconnect and delete runtime').",
    ),
)

_FLUSH_CAUSES = (
    _Cause(
        "ValueError",
        "flush_and_unmount failed",
        DriveError,
        "Drive could not upload everything within {limit}. What is still waiting lies only on this machine: keep the "
        "session open and call flush_drive() again, with a larger timeout_s when there is much to upload.",
    ),
    _Cause(
        "NotImplementedError",
        "",
        NotSupportedHereError,
        "This machine cannot flush Google Drive ({error}). Files are uploaded in the background; look for them on "
        "drive.google.com before the session ends.",
    ),
    _Cause(
        "KeyError",
        "",
        NotSupportedHereError,
        "A variable that Colab sets in its notebooks is missing ({error}), so Drive cannot be flushed from here. "
        "Call flush_drive() in a notebook cell.",
    ),
)


def mount_error(error: Exception, place: Path) -> ColabstageError:
    """Return the typed error for a failure of `drive.mount(place)`."""
    return _translate(error, _MOUNT_CAUSES, f"Mounting Drive at '{place}' failed", place=str(place))


def flush_error(error: Exception, place: Path, limit: str) -> ColabstageError:
    """Return the typed error for a failure of `drive.flush_and_unmount` that was given the time `limit`."""
    return _translate(error, _FLUSH_CAUSES, f"Flushing Drive at '{place}' failed", place=str(place), limit=limit)


def _translate(error: Exception, causes: tuple[_Cause, ...], what: str, **figures: str) -> ColabstageError:
    names = {kind.__name__ for kind in type(error).__mro__}
    for cause in causes:
        if cause.type_name in names and cause.words in str(error):
            return cause.error(cause.message.format(error=error, **figures))
    msg = f"{what}: {type(error).__name__}: {error}. Run the cell again; if that does not help, restart the session."
    return DriveError(msg)


def drive_log_path() -> Path:
    """Return the log of Colab's Drive client."""
    return system_root() / "root/.config/Google/DriveFS/Logs/drive_fs.txt"


def drive_log_size() -> int:
    """Return how long the log is now, in bytes; 0 without one. To be asked before the work that may fail."""
    try:
        return drive_log_path().stat().st_size
    except OSError:
        return 0


def quota_error(error: BaseException, log_size: int) -> DriveQuotaError | None:
    """Return the typed error for a read that failed because Drive's download quota is used up; `None` for any other
    failure.

    Args:
        error: what the work raised.
        log_size: what `drive_log_size` said before the work began.
    """
    if not isinstance(error, SourceReadError) or isinstance(error, SourceChangedError):
        return None
    if not _is_input_output_error(error) or _MARK not in _written_since(log_size):
        return None
    msg = (
        f"{error} The Drive client's log says {_MARK.decode()}: too many downloads of this file, by all who use it, in "
        "a day. Make a copy of it in your own Drive ('Make a copy' on drive.google.com, which resets the count) and "
        "use that, or wait 24 hours; what has arrived is kept."
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
            # A log that became shorter was begun anew meanwhile.
            log.seek(max(log_size if log_size <= end else 0, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES)
    except OSError:
        return b""
