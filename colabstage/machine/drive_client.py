"""What Google Drive's client reports: about files by extended attributes, and about failures by exceptions and its log.

A file's id, its MD5 and whether it has been uploaded are attributes that the client answers by name only (listing them
returns nothing), and not every client has them. So each of them may be missing; a missing one is returned as empty
together with the reason, and never guessed.

The client does not announce the end of an upload. A file has arrived when it is no longer waiting and the MD5 in the
cloud is that of what was written; `wait_uploaded` asks until then.

The client's exceptions are told apart by type name and wording: some come from private modules, or from packages that
exist only on Colab, so importing them in order to catch them would fail everywhere else.

Drive limits how often one file may be downloaded in a day, by all its users together. The mount then answers
'Input/output error', as it does for many other reasons; the client's log says `QUOTA_EXCEEDED`. That log is kept for
the whole session, so only what was added to it since the work began says anything about the work.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections import deque
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
    ended,
    said_by,
)
from colabstage.io.files import Closing
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.units import format_duration
from colabstage.machine.mounts import mount_of, require_answer
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation

_ID, _MD5, _UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
# A thread takes this many files at once, because taking one costs as much as a quick answer.
_BATCH = 32
# The client answers from its local database, so a minute without an answer means that none will come.
_STALL_S = 60.0
_LOOK_S = 0.25
# The errors of file systems that have no such attributes, or none for this file.
_UNTOLD = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})
# Often at first, since a small file is uploaded within a second, and less and less often after that.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 5.0
# A file may be without its MD5 for a moment after its upload.
_MD5_LAGS_S = 10.0
_LOG = "~/.config/Google/DriveFS/Logs/drive_fs.txt"
_MARK = b"QUOTA_EXCEEDED"
# A flush that ends before this share of its timeout has failed for another reason.
_OUT_OF_TIME = 0.9
_ROOT_MARK = b"QueryManager timed out"
# The log may grow by megabytes a minute; what it says about a failure is at its end.
_TAIL_BYTES = 1 << 20
# Causes of causes may form a cycle.
_MAX_CHAIN = 20


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What the client reports about one file."""

    id: str
    """Drive's id; one that begins with `local-` exists only on this machine. "" where it is not reported."""
    md5: str
    """MD5 of the content in the cloud, 32 hexadecimal digits; "" where it is not reported, or where a reader on this
    machine may get other content, because that has not been uploaded.
    """
    uncommitted: bool | None
    """Whether local changes are waiting to be uploaded; `None` where that is not reported."""
    why: str
    """Why there is no `md5`, in words; "" where there is one."""


def ask_client(path: str | os.PathLike[str]) -> ClientFacts:
    """Ask Drive's client about one file. This waits for a client that hangs, so call it in a thread."""
    file_id, _ = _ask(path, _ID)
    uncommitted, md5, why, _ = _look_at_upload(path)
    return ClientFacts(file_id, md5, uncommitted, why)


def ask_md5s(paths: Sequence[str], *, heard: Callable[[], object] = lambda: None) -> tuple[list[str], str]:
    """Ask Drive's client for the MD5 of many files at once.

    Args:
        paths: files on a mounted Drive.
        heard: called, in any thread, whenever the client has answered for a file.

    Returns:
        The same as `Md5Questions.answers`.
    """
    with Md5Questions(heard=heard) as questions:
        questions.ask(paths)
        return questions.answers(paths)


class Md5Questions(Closing):
    """Ask Drive's client for the MD5 of files while a listing still finds more of them, or before each is read.

    One file without an MD5 leaves the whole listing unproved, so asking stops there.

    Args:
        workers: how many files are asked for at once.
        heard: called, in any thread, whenever the client has answered for a file.
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
        """Add files to ask for; may be called in any thread."""
        with self._moved:
            if not self._why:
                self._waiting.extend(paths)
                self._start()

    def ask_before_read(self, path: str) -> None:
        """Ask for a file in this thread, unless that has been done.

        Its MD5 is then never newer than the content that is read after this: a file that is rewritten in between has
        another MD5 when it is compared, and not the content of one state under the MD5 of the next.
        """
        if self._why or path in self._told:
            return
        if not self._told:
            # A client that never answers would hang whoever reads, where it only has no MD5 to tell.
            with self._moved:
                self._waiting.append(path)
                self._start()
                self._wait()
            return
        _, md5, why, _ = _look_at_upload(path)
        self._heard()
        with self._moved:
            self._store({path: md5} if md5 else {}, why)

    def answers(self, paths: Sequence[str]) -> tuple[list[str], str]:
        """Wait for all answers.

        Returns:
            The MD5 of each of `paths`, in order, and ""; or an empty list and the reason: one is not reported or not
            uploaded, or the client has not answered for a minute.
        """
        with self._moved:
            self._wait()
            if not self._why:
                # Those that nobody has found or read so far.
                self._waiting.extend(path for path in paths if path not in self._told)
                self._start()
                self._wait()
            if self._why:
                return [], self._why
            return [self._told[path] for path in paths], ""

    def close(self) -> None:
        """Ask no more. Calling it twice is fine."""
        with self._moved:
            self._why = self._why or "nobody waits for it"
        # A thread whose question hangs can never be joined.
        self._pool.close(abandon=True)

    def _wait(self) -> None:
        """Wait for the threads that ask, until all files are asked for, one has no MD5, or no answer comes."""
        told, moved_at = len(self._told), SYSTEM_CLOCK.now()
        while self._asking and not self._why:
            self._moved.wait(_LOOK_S)
            if len(self._told) > told:
                told, moved_at = len(self._told), SYSTEM_CLOCK.now()
            elif SYSTEM_CLOCK.now() - moved_at > _STALL_S:
                self._why = f"it did not answer for {_STALL_S:.0f} s"

    def _start(self) -> None:
        """Start as many threads as there are batches of files; only one until the first answer."""
        # A client without these attributes then costs one question, and not thousands.
        wanted = min(self._workers, -(-len(self._waiting) // _BATCH)) if self._told else min(1, len(self._waiting))
        while self._asking < wanted:
            self._asking += 1
            self._pool.submit(self._ask_on)

    def _ask_on(self) -> None:
        """Ask until no file is left, or one has no MD5."""
        told: dict[str, str] = {}
        why = ""
        while some := self._next(told, why):
            told = {}
            for path in some:
                _, md5, why, _ = _look_at_upload(path)
                self._heard()
                if not md5:
                    break
                told[path] = md5

    def _next(self, told: Mapping[str, str], why: str) -> list[str]:
        """Store some answers, and return what to ask next; nothing when this thread is done."""
        with self._moved:
            self._store(told, why)
            some: list[str] = []
            if not self._why:
                count = _BATCH if self._told else 1
                some = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
                self._start()
            if not some:
                self._asking -= 1
            return some

    def _store(self, told: Mapping[str, str], why: str) -> None:
        self._told.update(told)
        self._why = self._why or why
        self._moved.notify_all()


def wait_uploaded(files: Mapping[Path, str], *, timeout_s: float, cancellation: Cancellation) -> str:
    """Wait until files on a mounted Drive are in the cloud as they were written.

    Args:
        files: the MD5 of what was written, by path.
        timeout_s: seconds for all of them together.
        cancellation: checked between two questions.

    Returns:
        "" when all of them are; otherwise why the client cannot say, in words.

    Raises:
        DriveDisconnectedError: the client died meanwhile.
        DriveError: they are not, after `timeout_s` seconds.
        CancelledError: the work was cancelled.
    """
    began = SYSTEM_CLOCK.now()
    for path, md5 in files.items():
        pause_s, committed_at = _FIRST_LOOK_S, float("inf")
        while True:
            cancellation.check()
            waits, found, why, number = _look_at_upload(path)
            now = SYSTEM_CLOCK.now()
            if found == md5:
                break
            # Only the time since the last pending change counts: a file may be written to again while it is uploaded.
            committed_at = min(committed_at, now) if waits is False else float("inf")
            if number in _UNTOLD and (waits is None or now - committed_at > _MD5_LAGS_S):
                return why
            if number:
                # A dying client reports for a moment that files do not exist, and then stops answering.
                require_answer(path)
            if now - began > timeout_s:
                raise DriveError(_not_arrived(path, found, why, timeout_s))
            SYSTEM_CLOCK.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
    return ""


def _not_arrived(path: Path, found: str, why: str, timeout_s: float) -> str:
    """Say what is known about a file that did not arrive in time."""
    how = f"what is in the cloud has another MD5 ({found})" if found else why
    return (
        f"'{path}' was written, but had not arrived in the cloud after {format_duration(timeout_s)}: {how}. It is on "
        "this machine: keep the session open and publish it again, which continues to wait and copies nothing twice; "
        "use a larger timeout when there is much to upload."
    )


def _look_at_upload(path: str | os.PathLike[str]) -> tuple[bool | None, str, str, int]:
    """Return whether a file waits to be uploaded, its MD5 or "", why there is none, and the number of the error."""
    # In this order: a file that is uploaded between the two questions would otherwise get the MD5 of its predecessor.
    waits, number = _ask(path, _UNCOMMITTED)
    if waits not in ("0", "1"):
        return None, "", f"'{os.fspath(path)}': no word on whether it is uploaded ({_said(waits, number)})", number
    if waits == "1":
        return True, "", f"'{os.fspath(path)}' is not uploaded yet", 0
    md5, number = _ask(path, _MD5)
    if not _MD5_FORM.fullmatch(md5):
        return False, "", f"'{os.fspath(path)}': no MD5 is reported ({_said(md5, number)})", number
    return False, md5, "", 0


def _said(value: str, number: int) -> str:
    return os.strerror(number) if number else repr(value)


def _ask(path: str | os.PathLike[str], name: str) -> tuple[str, int]:
    """Return the value of an attribute, and the number of the error where there is none."""
    # Python has no extended attributes on other systems.
    if sys.platform != "linux":
        return "", errno.EOPNOTSUPP
    try:
        return os.getxattr(path, name).decode("ascii", "replace").strip("\0\n "), 0
    except OSError as error:  # a mount that is dying says so again at the next call
        return "", error.errno or errno.EIO


def attributes_line(path: str | os.PathLike[str]) -> str:
    """Say in one line which attributes Drive's client reports for a file on this machine, without their values."""
    # Google does not document the attributes, so people paste this line into an issue. Ids and MD5s are private.
    said = []
    for name in (_ID, _MD5, _UNCOMMITTED):
        value, number = _ask(path, name)
        said.append(f"{name}: {os.strerror(number) if number else _form(name, value)}")
    where = [sys.platform, os.environ.get("COLAB_RELEASE_TAG", ""), mount_of(path).fstype]
    return f"Drive's attributes ({', '.join(filter(None, where))}): {'; '.join(said)}"


def _form(name: str, value: str) -> str:
    if name == _UNCOMMITTED:
        return "present" if value in ("0", "1") else f"{value[:20]!r}"
    if name == _MD5:
        return "present" if _MD5_FORM.fullmatch(value) else f"{len(value)} characters, no MD5"
    return "present, local to this machine" if value.startswith("local-") else f"present, {len(value)} characters"


@dataclass(frozen=True, slots=True)
class _Cause:
    """One documented failure of the client."""

    type_name: str
    """The name of the error's type, or of a base class."""
    words: str
    """Text that its message contains."""
    error: type[ColabstageError]
    """The typed error for it."""
    message: str
    """What the user needs to know."""


# The first cause that fits counts, so the general ones come last.
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
        "The mount point '{place}' is in a folder that does not exist. Use '/content/drive', or create the folder.",
    ),
    _Cause(
        "ValueError",
        "must be a directory if present",
        TargetExistsError,
        "There is a file where the Drive client keeps its settings ({error}). Move it elsewhere, then mount again.",
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
        "Drive {how}, so not everything is uploaded. What is still waiting is only on this machine: keep the "
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
        log_size: what `drive_log_size` returned before the call.
    """
    said = str(error)
    # google.colab searches the whole log for this, so after one such failure it gives the same reason for every other.
    if "timeout during initial read" in said and _ROOT_MARK not in _written_since(log_size):
        error = ValueError(said.partition(":")[0])
    return _translate(error, _MOUNT_CAUSES, f"Mounting Drive at '{place}' failed", place=str(place))


def flush_error(error: Exception, place: Path, *, took_s: float, limit_s: float) -> ColabstageError:
    """Return the typed error for a failure of `drive.flush_and_unmount` that took `took_s` of `limit_s` seconds."""
    # The client has one message for a timeout and for every other failure, so the clock has to tell them apart.
    in_time = took_s < _OUT_OF_TIME * limit_s
    what = f"gave up after {format_duration(took_s)}" if in_time else f"did not end within {format_duration(limit_s)}"
    remedy = f"; its log is {_LOG}" if in_time else ", with a larger timeout_s when there is much to upload"
    words = {"place": str(place), "how": what, "remedy": remedy}
    return _translate(error, _FLUSH_CAUSES, f"Flushing Drive at '{place}' failed", **words)


def _translate(error: Exception, causes: tuple[_Cause, ...], what: str, **figures: str) -> ColabstageError:
    # Base classes too: the client raises private subclasses of Python's errors.
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
    """Return how long the log is now, in bytes; 0 without one. Call it before the work that may fail."""
    try:
        return drive_log_path().stat().st_size
    except OSError:
        return 0


def quota_error(error: BaseException, log_size: int) -> DriveQuotaError | None:
    """Return the typed error for a read that failed because Drive's download quota is used up; `None` for any other
    failure.

    Args:
        error: what the work raised.
        log_size: what `drive_log_size` returned before the work began.
    """
    # A file that changed is not a file that could not be read, whatever the log says about others.
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
            # A log that became shorter was replaced by a new one meanwhile.
            log.seek(max(log_size if log_size <= end else 0, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES)
    except OSError:
        return b""
