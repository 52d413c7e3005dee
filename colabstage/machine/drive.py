"""Google Drive on Colab: mount it, make new files visible, push what was written, and find it in the file system.

The client behind the mount determines how this is done:

- Asking for a mount opens a permission dialogue even when Drive is mounted already, so the mount table is read before
  anything is asked.
- `force_remount=True` kills the client, and what it has not uploaded waits in its cache, unseen. So a live client is
  never forced: refreshing pushes first, then mounts again.
- There is no flush without an unmount. Nothing in colabstage calls `flush_drive` or `refresh_drive` by itself, and
  they unmount nothing before somebody has answered the dialogue that mounting again opens.
- Its exceptions are told apart by type name and wording, because some come from packages that exist only on Colab.
- For a file whose daily quota of downloads is used up the mount answers 'Input/output error', as for many reasons; the
  client's log says `QUOTA_EXCEEDED`. Only what was added to it since the work began says anything about the work.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import itertools
import math
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from colabstage.errors import (
    ColabstageError,
    DriveAuthError,
    DriveDisconnectedError,
    DriveError,
    DriveNotMountedError,
    DriveQuotaError,
    NotSupportedHereError,
    OptionError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
    causes,
    ended,
    said_by,
)
from colabstage.io.arguments import absolute_path
from colabstage.io.boundary import public
from colabstage.io.environment import DRIVE_VARIABLE
from colabstage.io.pipeline import DaemonPool
from colabstage.io.report import Shown
from colabstage.io.units import format_duration, listed
from colabstage.io.workspace import free_name, remove_empty
from colabstage.machine import mounts
from colabstage.machine.platforms import detect_platform, system_root

_MARK = b"QUOTA_EXCEEDED"
_ROOT_MARK = b"QueryManager timed out"
# The log may grow by megabytes a minute; what it says about a failure is at its end.
_TAIL_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 15.0
# Shorter if a Drive is only looked up, because the work can do without one.
_ANSWER_S = 10.0
# The client reports the end of a flush a little before its mount leaves the mount table.
_UNMOUNT_S = 30.0
_LOOK_S = 0.1
_CLEAR_S = 60.0
# Each failed attempt leaves another mount on top of the dead one.
_MOST_MOUNTS = 8
# How long a person has to answer the dialogue before anything is unmounted.
_CONSENT_S = 60.0
_NAMES_SHOWN, _MOST_NAMES = 3, 1000
# Characters that no shell interprets.
_PLAIN = re.compile(r"[A-Za-z0-9_./+@%,:=-]+")


@dataclass(frozen=True, slots=True, repr=False)
class FlushReport(Shown):
    """The result of `flush_drive`."""

    mountpoint: Path
    seconds: float
    """How long it took to upload everything that was waiting."""
    remounted: bool

    def __str__(self) -> str:
        now = "it is mounted there again" if self.remounted else "no Drive is mounted there now"
        return f"All of '{self.mountpoint}' was uploaded in {format_duration(self.seconds)}; {now}."


class DriveAnswer(NamedTuple):
    folder: Path | None
    """The `MyDrive` of the first that answers; `None` if none does."""
    silent: tuple[Path, ...]
    """Mount points that did not answer in time."""


def ask_drives() -> DriveAnswer:
    """Ask every mounted Drive at once which of them works."""
    drives = _drives()
    # In threads, because each probe waits for a child process: one hanging Drive must not delay the others' answers.
    with DaemonPool(len(drives), "colabstage-ask") as pool:
        states = pool.run(lambda drive: mounts.probe_mount(_my_drive(drive), _ANSWER_S).state, drives)
    alive = [_my_drive(drive) for drive, state in zip(drives, states, strict=True) if state == "alive"]
    silent = [drive.mountpoint for drive, state in zip(drives, states, strict=True) if state == "silent"]
    return DriveAnswer(alive[0] if alive else None, tuple(silent))


@public(reads=("mountpoint",))
def mount_drive(
    mountpoint: str | os.PathLike[str] = mounts.DEFAULT_MOUNTPOINT, *, readonly: bool = False, timeout_s: float = 120.0
) -> Path:
    """Mount Google Drive on Colab and return its `MyDrive` folder.

    An existing mount is used, in whatever mode, without asking for permission. A mount whose client has died is mounted
    again, even while files on it are open (they stay broken) or the current folder is on it. Call it from a notebook
    cell, and not from a thread, where the answer may get lost.

    Args:
        mountpoint: an empty folder, or one to be created; letters, digits and `_./+@%,:=-` only.
        readonly: mount so that nothing on Drive can be changed.
        timeout_s: seconds to wait for the user's permission, and again for Drive's first listing; rounded up to whole
            seconds.

    Raises:
        NotSupportedHereError: this is not a Colab notebook, or what runs this code cannot answer a dialogue, as from a
            command line.
        DriveAuthError: the permission was refused, or an administrator forbids it.
        DriveDisconnectedError: a client is mounted there that does not answer.
        OptionError: the mount point cannot be used.
        TargetExistsError: files are at the mount point, for example those that were written there while Drive was not
            mounted; nothing there is touched. `MyDrive` with nothing but folders below is removed.
        DriveError: the client failed, or Drive is mounted elsewhere; the message says what to do.
    """
    place = absolute_path(mountpoint, "mountpoint")
    _milliseconds(timeout_s)
    here = _mount_at(place)
    if here is not None and not _is_dead(here):
        return _note_mounted(here)
    client = _colab_client("mount_drive", asks=True)
    if here is None:
        _check_mountpoint(place)
    # Mounting kills every running client.
    for other in _drives():
        if other.fstype in mounts.DRIVE_TYPES and other != here and not _is_dead(other):
            msg = (
                f"Drive is mounted at '{other.mountpoint}' already, and mounting it at '{place}' would end that "
                f"mount with all that it has not uploaded. Use '{_my_drive(other)}', or call "
                "flush_drive(remount=False) first."
            )
            raise DriveError(msg)
    return _mount(client, place, readonly=readonly, timeout_s=timeout_s)


@public()
def refresh_drive(*, timeout_s: float = 3600.0) -> Path:
    """Make files that were added to Drive elsewhere visible here, and return the `MyDrive` folder.

    The current client sees changes only after it is mounted again. What this machine has written is pushed first,
    because a forced remount would lose it, so this may take as long as `flush_drive`. The permission is asked for
    before anything is unmounted. Where the old client google-drive-ocamlfuse is mounted, its cache is cleared instead
    (`google-drive-ocamlfuse -cc`).

    Args:
        timeout_s: seconds that pushing may take.

    Raises:
        DriveNotMountedError: no Drive is mounted, or everything was pushed and mounting again failed.
        NotSupportedHereError: this is not a cell of a Colab notebook, so Drive could not be mounted again. Nothing is
            unmounted.
        DriveAuthError: the permission was refused, or nobody answered within a minute. Nothing is unmounted.
        DriveError: this process still uses Drive (the message names the files), or not everything could be pushed in
            time. Nothing is lost then.
    """
    drive = _the_drive("refresh_drive")
    if drive.fstype == mounts.OLD_DRIVE_TYPE:
        _clear_old_cache()
        return drive.mountpoint
    client = _colab_client("refresh_drive", asks=True)
    # A dead client cannot push anything, and its open files are broken already.
    if _is_dead(drive):
        return _mount(client, drive.mountpoint, readonly=is_readonly(drive))
    return _flush_and_mount(client, drive, timeout_s)[1]


@public()
def flush_drive(*, timeout_s: float = 3600.0, remount: bool = True) -> FlushReport:
    """Wait until everything written to Drive on this machine has been uploaded.

    The current client can only flush by unmounting Drive, for all programs on this machine; to wait for one file, use
    `publish_file(…, wait_uploaded=True)`, which unmounts nothing. Mounting again needs your permission, once before
    unmounting and once afterwards; `remount=False`, at the end of a session, needs none. Uploads have been lost even
    so: keep the previous version of what matters, and check the result from a new mount.

    Args:
        timeout_s: seconds that the upload may take; files are uploaded at about 2 MB/s each, 10 at a time.
        remount: mount Drive again afterwards.

    Raises:
        DriveNotMountedError: no Drive is mounted, or everything was uploaded and mounting again failed.
        DriveDisconnectedError: the client has died; what it had not uploaded waits in its cache on this machine.
        NotSupportedHereError: with `remount`, this is not a cell of a Colab notebook, so Drive could not be mounted
            again; or this is not Colab. Nothing is unmounted.
        DriveAuthError: with `remount`, the permission was refused, or nobody answered within a minute. Nothing is
            unmounted.
        DriveError: this process still uses Drive, or not everything could be uploaded in time.
    """
    drive = _the_drive("flush_drive")
    client = _colab_client("flush_drive", asks=remount)
    if _is_dead(drive):
        msg = (
            f"The Drive client at '{drive.mountpoint}' has died. {mounts.WAITS_IN_CACHE} Call "
            f"{mounts.remount_words(drive.mountpoint)}, which starts it again, then flush_drive()."
        )
        raise DriveDisconnectedError(msg)
    if not remount:
        mounts.check_unused(drive.mountpoint)
        return FlushReport(drive.mountpoint, _flush(client, drive, timeout_s), remounted=False)
    seconds, _ = _flush_and_mount(client, drive, timeout_s)
    return FlushReport(drive.mountpoint, seconds, remounted=True)


def is_readonly(drive: mounts.Mount) -> bool:
    if drive.readonly or drive.fstype not in mounts.DRIVE_TYPES:
        return drive.readonly
    # The mount table shows no Drive of the current client as read-only, but the client's command line does. The
    # look-ahead keeps `/content/drive2` from counting as `/content/drive`.
    asked = re.compile(rb"mount_point_path:%b(?![\w./+@%%:=-])" % re.escape(os.fsencode(drive.mountpoint)))
    # Thousands of processes may run, so no path or pattern is made for each of them.
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as line:  # it may have just ended
            words = line.read()
            if b"mount_point_path:" in words and asked.search(words):
                return b"read_only_mode:true" in words
    return False


def _drives() -> list[mounts.Mount]:
    return [mount for mount in mounts.visible_mounts(mounts.list_mounts()) if mount.is_drive]


def _mount_at(place: Path) -> mounts.Mount | None:
    """Return what is mounted at exactly this place."""
    real = mounts.follow_links(place)
    return next((mount for mount in mounts.visible_mounts(mounts.list_mounts()) if mount.mountpoint == real), None)


def _my_drive(drive: mounts.Mount) -> Path:
    return drive.mountpoint if drive.fstype == mounts.OLD_DRIVE_TYPE else drive.mountpoint / "MyDrive"


def _note_mounted(drive: mounts.Mount) -> Path:
    """Remember Drive's mount point, for this process and the programs that it starts; return its `MyDrive`."""
    os.environ[DRIVE_VARIABLE] = str(drive.mountpoint)
    return _my_drive(drive)


def _the_drive(verb: str) -> mounts.Mount:
    drives = _drives()
    if not drives:
        _colab_client(verb)  # off Colab, say so
        msg = f"{verb}() needs a mounted Drive, and none is mounted. Call mount_drive() first."
        raise DriveNotMountedError(msg)
    if len(drives) == 1:
        return drives[0]
    # A forced mount at another place leaves the earlier mount dead. What waits to be uploaded is in the live client's
    # cache, and starting another client at the dead place would kill that one.
    return next((drive for drive in drives if mounts.probe_mount(_my_drive(drive)).state != "dead"), drives[0])


def _is_dead(mount: mounts.Mount) -> bool:
    """Return whether the mount's client has died; `False` for a working Drive."""
    place = mount.mountpoint
    if not mount.is_drive:
        msg = f"Something else is mounted at '{place}' already ({mount.fstype}). Choose another mount point."
        raise TargetExistsError(msg)
    probe = mounts.probe_mount(_my_drive(mount), _PROBE_TIMEOUT_S)
    if probe.state == "silent":
        raise mounts.gone_error(mount, probe, _PROBE_TIMEOUT_S)
    return probe.state == "dead"


_NO_UNMOUNT = "publish_file(…, wait_uploaded=True) waits for one file, and unmounts nothing."


def _colab_client(verb: str, *, asks: bool = False) -> Any:
    """Return Colab's module; with `asks`, refuse before anything is unmounted where nobody can give the permission."""
    platform = detect_platform()
    if asks and platform.name == "colab" and not platform.drive_mountable:
        msg = (
            f"{verb}() asks for access to Drive by a dialogue that only a person in a notebook cell can answer: not in "
            "a script or a terminal, nor in what `colab exec`, papermill or a scheduler runs. Nothing was unmounted. "
            "Mount Drive in a cell, or by `colab drivemount`: what is started afterwards finds it, and mount_drive() "
            f"too. {WITHOUT_DRIVE}"
        )
        raise NotSupportedHereError(msg)
    try:
        return importlib.import_module("google.colab.drive")
    except ImportError:
        msg = (
            f"{verb}() works in Google Colab only, and this is not Colab. Remove this line, and give stage_dataset a "
            "path on this machine or a share link."
        )
        raise NotSupportedHereError(msg) from None


def _check_consent(client: Any, drive: mounts.Mount) -> None:
    """Ask for the permission that mounting again will need, while Drive is still mounted."""
    place, limit_s = drive.mountpoint, math.ceil(_CONSENT_S)
    began = time.monotonic()
    try:
        # Without force, the client asks first, then finds its mount, and prints a line about that.
        with contextlib.redirect_stdout(io.StringIO()):
            client.mount(str(place), timeout_ms=1000 * limit_s)
    except Exception as error:
        reason = client_error(error, place, "Mounting")
        msg = f"Nothing was unmounted. {reason}"
        raise type(reason)(msg) from error
    # It returns in the same way after an answer and after a timeout.
    if time.monotonic() - began >= limit_s:
        msg = (
            f"Drive was not unmounted: nobody answered the request for access within {limit_s} s, and without an "
            "answer it cannot be mounted again. Run the cell again and answer the dialogue. Where nobody can, "
            f"{_NO_UNMOUNT}"
        )
        raise DriveAuthError(msg)


def _check_mountpoint(place: Path) -> None:
    """Refuse what the client would refuse, before it asks the user for anything."""
    # Colab hands it to a shell, unquoted.
    usable = place.is_dir() or (place.parent.is_dir() and not place.exists())
    if not usable or place.is_symlink() or not _PLAIN.fullmatch(str(place)):
        msg = (
            f"The mount point {str(place)!r} cannot be used; expected a folder, or a new one in a folder, no link, of "
            f"letters, digits and _./+@%,:=- only. Use '{mounts.DEFAULT_MOUNTPOINT}'."
        )
        raise OptionError(msg)
    if place.is_dir():
        _clear_place(place)


def _clear_place(place: Path) -> None:
    """Remove folders in Drive's place that were created while it was not mounted; refuse anything else there."""
    others = [path for path in place.iterdir() if path.name not in mounts.DRIVE_FOLDERS]
    found = list(itertools.islice(mounts.files_below(place), _MOST_NAMES)) or others
    if found:
        names = listed([str(path.relative_to(place)) for path in found], _NAMES_SHOWN)
        aside = free_name(place, "-local")
        msg = (
            f"The mount point '{place}' is a local folder that holds {names}, as after writing there while Drive was "
            "not mounted; that is on this machine, and not on Drive. Move it aside, mount Drive, and publish from "
            f"there what is to be kept: !mv '{place}' '{aside}'"
        )
        raise TargetExistsError(msg)
    # From the bottom up, and only folders that are empty at that moment.
    for folder, _, _ in os.walk(place, topdown=False):
        if Path(folder) != place:
            remove_empty(Path(folder))


def _milliseconds(timeout_s: float) -> int:
    # Rounded up to whole seconds: less than one is 0 to the client, which means no limit.
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        msg = f"timeout_s={timeout_s!r} is not a time to wait. Pass a number of seconds above 0."
        raise OptionError(msg)
    return 1000 * math.ceil(timeout_s)


def _mount(client: Any, place: Path, *, readonly: bool, timeout_s: float = 120.0) -> Path:
    with mounts.outside(place):
        # Dead mounts are detached, even in use, where the client's own unmount fails ('target is busy'); with force, it
        # may manage the rest.
        for _ in range(_MOST_MOUNTS):
            here = _mount_at(place)
            if here is None or not _is_dead(here):
                break
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                mounts.unmount_lazily(here.mountpoint)
        force, log_size = _mount_at(place) is not None, drive_log_size()
        try:
            client.mount(str(place), force_remount=force, timeout_ms=_milliseconds(timeout_s), readonly=readonly)
        except Exception as error:
            found = error
            # google.colab searches the whole log for this, so after one such failure it gives the same reason for every
            # other.
            if "timeout during initial read" in str(error) and _ROOT_MARK not in _written_since(log_size):
                found = ValueError(str(error).partition(":")[0])
            raise client_error(found, place, "Mounting") from error
        mount = _mount_at(place)
        # If the dialogue is left unanswered, the client returns without an error and without a mount.
        if mount is None:
            msg = (
                "Nobody answered the request for access to Drive in time, and nothing was mounted. Run the cell again "
                f"and answer the dialogue. {WITHOUT_DRIVE}"
            )
            raise DriveAuthError(msg)
    return _note_mounted(mount)


def _flush_and_mount(client: Any, drive: mounts.Mount, timeout_s: float) -> tuple[float, Path]:
    """Push everything, unmount and mount again; return how many seconds pushing took, and `MyDrive`."""
    _milliseconds(timeout_s)
    mounts.check_unused(drive.mountpoint)
    _check_consent(client, drive)
    # Asked now, because the answer is in the command line of a process that ends with the flush.
    readonly = is_readonly(drive)
    seconds = _flush(client, drive, timeout_s)
    try:
        return seconds, _mount(client, drive.mountpoint, readonly=readonly)
    except ColabstageError as error:
        msg = (
            f"Everything was uploaded to Drive in {format_duration(seconds)}, but it is not mounted at "
            f"'{drive.mountpoint}' any more. Call {mounts.remount_words(drive.mountpoint)} in a cell before anything "
            f"else. The client's reason: {ended(said_by(error.__cause__ or error))}"
        )
        raise DriveNotMountedError(msg) from error


def _flush(client: Any, drive: mounts.Mount, timeout_s: float) -> float:
    """Push everything and unmount; return how long that took, in seconds."""
    started = time.monotonic()
    try:
        client.flush_and_unmount(timeout_ms=_milliseconds(timeout_s))
    except Exception as error:
        raise client_error(error, drive.mountpoint, "Flushing") from error
    seconds = time.monotonic() - started
    while _mount_at(drive.mountpoint) is not None:
        if time.monotonic() - started > seconds + _UNMOUNT_S:
            msg = (
                f"The Drive client has ended its flush, but '{drive.mountpoint}' is still mounted. Close what other "
                "programs have open there, then call flush_drive() again."
            )
            raise DriveError(msg)
        time.sleep(_LOOK_S)
    return seconds


def _clear_old_cache() -> None:
    command = [mounts.OLD_DRIVE_CLIENT, "-cc"]
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CLEAR_S, check=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"'{' '.join(command)}' failed ({error}). Unmount Drive and mount it again instead."
        raise DriveError(msg) from error


# --- what the client answers, as typed errors ---


WITHOUT_DRIVE = (
    "Without a mounted Drive, stage_dataset reads share links (https://drive.google.com/…), buckets (s3://…, gs://…) "
    "and hf://datasets/…, and cache_dir= takes a bucket."
)
"""Ways that need nobody's consent to a mount."""


class _Cause(NamedTuple):
    """An exception by the name of its type, or of a base class, and a part of its message; and its typed error."""

    name: str
    words: str
    kind: type[ColabstageError]
    message: str


# The first cause that fits counts, so the general ones come last.
_CAUSES = (
    _Cause(
        *("MessageError", "", DriveAuthError),
        "Google did not grant access to Drive. Run the cell again and, in the dialogue, choose the account "
        "that this notebook is signed in with and tick every box; browser settings that block third-party "
        "cookies or pop-ups also end here.",
    ),
    _Cause(
        *("NotImplementedError", "", NotSupportedHereError),
        f"This machine cannot mount or flush Google Drive ({{error}}). {WITHOUT_DRIVE}",
    ),
    # Before those of mounting: their words are part of these.
    _Cause(
        *("ValueError", "flush_and_unmount failed", DriveError),
        "Drive gave up, so not everything is uploaded. What is still waiting is only on this machine: keep the session "
        "open and call flush_drive() again, with a larger timeout_s when there is much to upload.",
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
        *("ValueError", "mount failed", DriveError),
        "The Drive client ended before '{place}' was mounted, as it does when nobody answers the dialogue "
        "that asks for access. Run the cell again and answer it; if that does not help, restart the session "
        f"('Disconnect and delete runtime'). {WITHOUT_DRIVE}",
    ),
)


def client_error(error: Exception, place: Path, verb: str) -> ColabstageError:
    """Return the typed error for a failure of Drive's client in mounting or flushing (`verb`) the Drive at `place`."""
    # Base classes too: the client raises private subclasses of Python's errors.
    names = {base.__name__ for base in type(error).__mro__}
    for name, words, kind, message in _CAUSES:
        if name in names and words in str(error):
            return kind(message.format(error=error, place=place))
    msg = (
        f"{verb} Drive at '{place}' failed: {type(error).__name__}: {error}. Run the cell again; if that does not "
        "help, restart the session."
    )
    return DriveError(msg)


def drive_log_path() -> Path:
    return system_root() / "root/.config/Google/DriveFS/Logs/drive_fs.txt"


def drive_log_size() -> int:
    """Return how long the client's log is now, in bytes; 0 without one."""
    try:
        return drive_log_path().stat().st_size
    except OSError:
        return 0


def quota_error(error: BaseException, log_size: int) -> DriveQuotaError | None:
    """Return the typed error for a read that failed because Drive's download quota is used up, by the log since it had
    `log_size` bytes; `None` for any other failure."""
    # A file that changed is not a file that could not be read, whatever the log says about others.
    ours = isinstance(error, ColabstageError)
    if ours and (not isinstance(error, SourceReadError) or isinstance(error, SourceChangedError)):
        return None
    is_of_mount = any(isinstance(one, OSError) and one.errno == errno.EIO for one in causes(error))
    if not is_of_mount or _MARK not in _written_since(log_size):
        return None
    what = str(error) if ours else ended(said_by(error))
    msg = (
        f"{what} The Drive client's log says {_MARK.decode()}: too many downloads of this file in a day, by all its "
        "users together. Make a copy of it in your own Drive ('Make a copy' on drive.google.com, which resets the "
        "count) and use that, or wait 24 hours; what has arrived is kept."
    )
    return DriveQuotaError(msg)


def _written_since(log_size: int) -> bytes:
    try:
        with drive_log_path().open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            # A log that became shorter was replaced by a new one meanwhile.
            log.seek(max(log_size if log_size <= end else 0, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES)
    except OSError:
        return b""
