"""What Google Drive's client tells: of a file by extended attributes, and of a failure by exceptions and its log.

A file's id, its MD5 and whether it is uploaded are attributes that are answered by name only (listing them gives
nothing), and not by every client. So each of them may be missing, and what is missing is given as empty with the
reason, never guessed.

An upload has no end that the client announces; a file has arrived when it does not wait any more and the MD5 in the
cloud is that of what was written. `wait_uploaded` asks until then.

The client's exceptions are told apart by type name and wording: some come from private modules, or from packages that
are only there on Colab, so importing them to catch them would fail everywhere else.

Drive limits how often one file may be downloaded in a day, by anybody. The mount then answers 'Input/output error',
as it does for many other reasons; the client's log says `QUOTA_EXCEEDED`. That log is never begun anew in a session, so
only what it gained since the work began says anything about it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

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
from colabstage.io.clock import SYSTEM_CLOCK
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_duration
from colabstage.machine.mounts import mount_of, require_answer
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from colabstage.io.clock import Clock
    from colabstage.io.progress import Cancellation

_ID, _MD5, _UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
# A thread takes so many files at once: its turn costs as much as a quick answer.
_BATCH = 32
# The client answers from what it knows of the account. Who says nothing for so long says nothing.
_STALL_S = 60.0
_LOOK_S = 0.25
# What a file system answers that has no such attributes, or not of this file.
_UNTOLD = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})
# Asked often at first, since a small file is up in a second, and seldom in the end.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 5.0
# What has just been uploaded may be without its MD5 for a moment.
_MD5_LAGS_S = 10.0
_LOG = "~/.config/Google/DriveFS/Logs/drive_fs.txt"
_MARK = b"QUOTA_EXCEEDED"
# A flush that ends earlier than this share of its time has failed for another reason than time.
_OUT_OF_TIME = 0.9
_ROOT_MARK = b"QueryManager timed out"
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
        As `Md5Questions.answers`.
    """
    with Md5Questions(workers=workers, heard=heard) as questions:
        questions.ask(paths)
        return questions.answers(paths)


class Md5Questions:
    """Ask Drive's client for the MD5 of files as they are found, while more of them are looked for.

    One file that nothing vouches for leaves all of them unproved, so the others are not asked any more; and the first
    one is asked alone: where nothing is told at all, that is one question and not thousands.

    Args:
        workers: how many files are asked at once.
        heard: called, in any thread, whenever a file has been answered for.
    """

    def __init__(self, *, workers: int = 16, heard: Callable[[], object] = lambda: None) -> None:
        self._workers = workers
        self._heard = heard
        self._pool = DaemonPool(workers, "colabstage-ask")
        self._moved = threading.Condition()
        self._waiting: deque[str] = deque()
        self._told: dict[str, str] = {}
        self._asking = 0
        self._why = ""

    def ask(self, paths: Sequence[str]) -> None:
        """Begin to ask for files; may be called in any thread."""
        with self._moved:
            if not self._why:
                self._waiting.extend(paths)
                self._start()

    def answers(self, paths: Sequence[str]) -> tuple[list[str], str]:
        """Wait for what was asked.

        Returns:
            The MD5 of each of `paths`, in order, and ""; or an empty list and why: one is not told, or is not uploaded,
            or nothing came for a minute.
        """
        told, moved_at = 0, SYSTEM_CLOCK.now()
        with self._moved:
            while self._asking and not self._why:
                self._moved.wait(_LOOK_S)
                if len(self._told) > told:
                    told, moved_at = len(self._told), SYSTEM_CLOCK.now()
                elif SYSTEM_CLOCK.now() - moved_at > _STALL_S:
                    self._why = f"it told nothing for {_STALL_S:.0f} s"
            if self._why:
                return [], self._why
            return [self._told[path] for path in paths], ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._moved:
            self._why = self._why or "nobody waits for it"
        # A question that hangs is left behind.
        self._pool.close(abandon=True)

    def _start(self) -> None:
        """Have as many threads ask as what waits is worth; until something was told, one."""
        wanted = min(self._workers, -(-len(self._waiting) // _BATCH)) if self._told else min(1, len(self._waiting))
        while self._asking < wanted:
            self._asking += 1
            self._pool.submit(self._ask_on)

    def _ask_on(self) -> None:
        """Ask until nothing waits any more, or one file is not vouched for."""
        told: dict[str, str] = {}
        why = ""
        while some := self._next(told, why):
            told = {}
            for path in some:
                _, md5, why = _ask_md5(path)
                self._heard()
                if not md5:
                    break
                told[path] = md5

    def _next(self, told: Mapping[str, str], why: str) -> list[str]:
        """Note some answers, and return what to ask next; nothing when this thread is done."""
        with self._moved:
            self._told.update(told)
            self._why = self._why or why
            some: list[str] = []
            if not self._why:
                count = _BATCH if self._told else 1
                some = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
                self._start()
            if not some:
                self._asking -= 1
            self._moved.notify_all()
            return some


def wait_uploaded(
    files: Mapping[Path, str], *, timeout_s: float, cancellation: Cancellation, clock: Clock = SYSTEM_CLOCK
) -> str:
    """Wait until files on a mounted Drive are in the cloud as they were written.

    Args:
        files: the MD5 of what was written, by path.
        timeout_s: seconds for all of them together.
        cancellation: looked at between two questions.
        clock: for tests.

    Returns:
        "" when all are; why not, in words, when the client does not tell it.

    Raises:
        DriveDisconnectedError: the client died meanwhile.
        DriveError: they are not, after `timeout_s` seconds.
        CancelledError: somebody cancelled.
    """
    began = clock.now()
    for path, md5 in files.items():
        pause_s, committed_at = _FIRST_LOOK_S, float("inf")
        while True:
            cancellation.check()
            waits, found, why, number = _look_at_upload(path)
            now = clock.now()
            if found == md5:
                break
            committed_at = min(committed_at, now) if waits is False else float("inf")
            if number in _UNTOLD and (waits is None or now - committed_at > _MD5_LAGS_S):
                return why
            if number:
                # A client that dies denies that files exist for a moment, and then does not answer.
                require_answer(path)
            if now - began > timeout_s:
                raise DriveError(_not_arrived(path, found, why, timeout_s))
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
    return ""


def _not_arrived(path: Path, found: str, why: str, timeout_s: float) -> str:
    """Say what is known of a file that did not arrive in time."""
    how = f"what is in the cloud has another MD5 ({found})" if found else why
    return (
        f"'{path}' was written, but had not arrived in the cloud after {format_duration(timeout_s)}: {how}. It lies on "
        "this machine: keep the session open and publish it again, which goes on waiting and copies nothing twice; "
        "with a larger timeout when there is much to upload."
    )


def _ask_md5(path: str | os.PathLike[str]) -> tuple[bool | None, str, str]:
    """Return whether it waits for its upload, its MD5 or "", and why there is none."""
    return _look_at_upload(path)[:3]


def _look_at_upload(path: str | os.PathLike[str]) -> tuple[bool | None, str, str, int]:
    """Return whether a file waits for its upload, its MD5 or "", why there is none, and the number of the error."""
    # In this order: what is uploaded between the two questions would otherwise go under the MD5 of what was before.
    waits, number = _ask(path, _UNCOMMITTED)
    if waits not in ("0", "1"):
        return None, "", f"'{os.fspath(path)}': whether it is uploaded is not told ({_said(waits, number)})", number
    if waits == "1":
        return True, "", f"'{os.fspath(path)}' is not uploaded yet", 0
    md5, number = _ask(path, _MD5)
    if not _MD5_FORM.fullmatch(md5):
        return False, "", f"'{os.fspath(path)}': no MD5 is told ({_said(md5, number)})", number
    return False, md5, "", 0


def _said(value: str, number: int) -> str:
    return os.strerror(number) if number else repr(value)


def _ask(path: str | os.PathLike[str], name: str) -> tuple[str, int]:
    """Return the value of an attribute, and the number of the error where there is none."""
    if sys.platform != "linux":
        return "", errno.EOPNOTSUPP
    try:
        return os.getxattr(path, name).decode("ascii", "replace").strip("\0\n "), 0
    except OSError as error:  # a mount that is dying says so again at the next call
        return "", error.errno or errno.EIO


def attributes_line(path: str | os.PathLike[str]) -> str:
    """Say in one line which attributes Drive's client tells of a file here: forms, not values, which are private.

    Google does not document them, so this is for an issue, from machines that nobody has looked at.
    """
    said = []
    for name in (_ID, _MD5, _UNCOMMITTED):
        value, number = _ask(path, name)
        said.append(f"{name}: {os.strerror(number) if number else _form(name, value)}")
    where = [sys.platform, os.environ.get("COLAB_RELEASE_TAG", ""), mount_of(path).fstype]
    return f"Drive's attributes ({', '.join(filter(None, where))}): {'; '.join(said)}"


def _form(name: str, value: str) -> str:
    if name == _UNCOMMITTED:
        return "told" if value in ("0", "1") else f"{value[:20]!r}"
    if name == _MD5:
        return "told" if _MD5_FORM.fullmatch(value) else f"{len(value)} characters, no MD5"
    return "told, of this machine only" if value.startswith("local-") else f"told, {len(value)} characters"


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
        "Drive took too long to list 'My Drive': it holds too many items at its top level. Call "
        "mount_drive(timeout_s=600), which gives it more time (each attempt gets further, because what was listed is "
        "kept), then move files from the top level into folders.",
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
        "Drive {how}, so not everything is uploaded. What is still waiting lies only on this machine: keep the "
        "session open and call flush_drive() again{remedy}.",
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


def mount_error(error: Exception, place: Path, *, log_size: int = 0) -> ColabstageError:
    """Return the typed error for a failure of `drive.mount(place)`.

    Args:
        error: what was raised.
        place: the mount point.
        log_size: what `drive_log_size` said before the call. The client's word that the root folder took too long is
            taken from all of its log, so after one such failure it says the same of every other.
    """
    said = str(error)
    if "timeout during initial read" in said and _ROOT_MARK not in _written_since(log_size):
        error = ValueError(said.partition(":")[0])
    return _translate(error, _MOUNT_CAUSES, f"Mounting Drive at '{place}' failed", place=str(place))


def flush_error(error: Exception, place: Path, *, took_s: float, limit_s: float) -> ColabstageError:
    """Return the typed error for a failure of `drive.flush_and_unmount` that took `took_s` of `limit_s` seconds."""
    in_time = took_s < _OUT_OF_TIME * limit_s
    what = f"gave up after {format_duration(took_s)}" if in_time else f"did not end within {format_duration(limit_s)}"
    remedy = f"; its log is {_LOG}" if in_time else ", with a larger timeout_s when there is much to upload"
    words = {"place": str(place), "how": what, "remedy": remedy}
    return _translate(error, _FLUSH_CAUSES, f"Flushing Drive at '{place}' failed", **words)


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
