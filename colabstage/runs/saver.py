"""Save versions of a run in a thread: written here, hashed, published, read back, and the oldest removed.

The training loop hands over a copy of the state and goes on. Only one version is on its way at a time. What fails is
noted and tried again with the next version; the training goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from colabstage.errors import (
    ColabstageError,
    DriveError,
    DriveNotMountedError,
    RunInUseError,
    TargetExistsError,
    said_by,
)
from colabstage.h5.manifest import manifest_path
from colabstage.io.boundary import typed_errors
from colabstage.io.files import json_text, parse_json, pwrite_exactly, typed_write_errors
from colabstage.io.ownership import sweep_orphans
from colabstage.io.packages import refuse_import
from colabstage.io.progress import Progress
from colabstage.io.units import format_duration
from colabstage.io.workspace import owner_is_alive, owner_token, remove_own
from colabstage.machine.mounts import drive_root, remount_words
from colabstage.stage.publish import discard_version, publish_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from colabstage.io.progress import Clock


# The versions of a run in its folder: their names, their order, and which of them may go.
#
# A version is named by the session that wrote it, the number of the save in this session, and the step that it holds.
# Each session of a run has a higher number than all before it, so what a machine writes that another one has taken
# over from sorts before everything that is newer. No two saves share a name, so nothing is ever replaced.


_NAME = re.compile(r"session-(\d{4,})-save-(\d{4,})-step-(\d{8,})\.pt(?:\.json)?")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of a run; later ones are greater."""

    session: int
    """Number of the session that wrote it, from 1."""
    save: int
    """Number of the save in this session, from 1. A save that failed has a number, too."""
    step: int
    """Steps that were done."""

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"session-{self.session:04}-save-{self.save:04}-step-{self.step:08}.pt"


def list_versions(folder: Path, noted: Iterable[str] = ()) -> list[Version]:
    """Return the versions in a folder, the newest first. One that is not complete has its file or its manifest only.

    `noted`: names of files that may be there although the folder's listing is older, as on a mounted Drive.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    names |= {name for name in noted if name not in names and (folder / name).is_file()}
    found = {Version(*map(int, match.groups())) for name in names if (match := _NAME.fullmatch(name)) is not None}
    return sorted(found, reverse=True)


def is_complete(folder: Path, version: Version) -> bool:
    """Return whether a version's file and its manifest are there; what is in them is compared when it is restored."""
    file = folder / version.name
    return file.is_file() and manifest_path(file).is_file()


def sweep_leftovers(folder: Path) -> None:
    """Remove what sessions that were killed have left half copied or half removed."""
    # Drive's trash keeps the size of what is removed.
    sweep_orphans(folder, prefix="session-", empty=drive_root(folder) is not None)


def superseded(there: Iterable[Version], whole: Collection[Version], keep: int) -> list[Version]:
    """Return the versions that are older than the newest, and none of the newest `keep` that are known to be whole.

    While fewer are known, all stay.
    """
    kept = sorted(whole, reverse=True)[:keep]
    return [] if len(kept) < keep else [version for version in there if version < kept[0] and version not in kept]


# Which session a run belongs to: one small file in its folder, with a sign of life every half minute.
#
# The file is overwritten in place: on Drive each file that is replaced goes to the trash, and would count against the
# quota. A machine that writes it while another one does leaves either one's text, or one that cannot be read and is
# no proof of anybody.


NAME = "run.json"
BEAT_S = 30.0
# Three signs of life, and what Drive may take to show them on another machine.
SILENT_S = 150.0
# By how much the clocks of two machines may differ. A sign of life that is older than this is old by any clock.
_CLOCKS_S = 300.0
_KIND = "colabstage run 1"
_NBYTES = 1024


@dataclass(frozen=True, slots=True)
class Lease:
    """What a session says about itself."""

    session: int
    """Its number, from 1."""
    owner: str
    """Which process it is, as `io.workspace.owner_token` names it."""
    host: str
    """The machine's name."""
    began: float
    """When it began, in seconds since 1970."""
    beat: float
    """When it last gave a sign of life."""
    ended: bool = False
    """Whether it has left."""
    newest: str = ""
    """The version that it saved last."""
    epoch: int = 0
    """The epoch of that version."""
    step: int = 0
    """Its steps."""

    def age(self) -> str:
        """Say how long its last sign of life is ago, by this machine's clock."""
        return format_duration(max(0.0, time.time() - self.beat))


def read_lease(folder: Path) -> Lease | None:
    """Return what is noted in a run's folder; `None` if there is nothing, or nothing whole.

    Raises:
        TargetExistsError: there is a file of that name that is no run's.
    """
    file = folder / NAME
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        noted: Any = parse_json(text)
    except ValueError:
        noted = {"kind": _KIND} if _KIND.encode() in text or not text.strip() else None
    if not isinstance(noted, dict) or noted.get("kind") != _KIND:
        msg = f"'{file}' was not written by a run, so nothing is saved in this folder. Choose another folder."
        raise TargetExistsError(msg)
    known = {field.name: noted[field.name] for field in fields(Lease) if field.name in noted}
    try:
        return Lease(**known)
    except TypeError:
        return None


def write_lease(folder: Path, lease: Lease) -> None:
    """Note a lease in a run's folder. Each text is as long as any, so that one over another leaves nothing of it."""
    text = json_text({"kind": _KIND, **asdict(lease)}).encode().ljust(_NBYTES)
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        pwrite_exactly(handle, text, 0)
    finally:
        os.close(handle)


def new_lease(session: int, newest: str, epoch: int, step: int) -> Lease:
    """Return the lease of this process, which goes on from the version `newest`."""
    now = time.time()
    return Lease(session, owner_token(), socket.gethostname(), now, now, newest=newest, epoch=epoch, step=step)


class Heartbeat:
    """Hold a run for this process: a thread gives signs of life until the run is left.

    Attributes:
        lost: the lease of the session that has taken the run over; `None` while it is ours.
    """

    def __init__(self, folder: Path, lease: Lease) -> None:
        """Write the lease, and begin."""
        self.lost: Lease | None = None
        self._folder, self._lease = folder, lease
        self._lock = threading.Lock()
        self._left = threading.Event()
        write_lease(folder, lease)
        self._thread = threading.Thread(target=self._work, name="colabstage-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Look whether the run is still ours.

        Raises:
            RunInUseError: another session has taken it over.
        """
        there, ours = read_lease(self._folder), self._lease
        # Two that began at the same moment have one number; the one that wrote last goes on.
        other = there is not None and (there.owner, there.began) != (ours.owner, ours.began)
        if there is not None and other and there.session >= ours.session:
            self.lost = there
            msg = (
                f"Session {there.session}, on {there.host}, has taken this run over; nothing more is saved here. Its "
                f"last version from here is {ours.newest or 'none'}."
            )
            raise RunInUseError(msg)

    def note(self, newest: str, epoch: int, step: int) -> None:
        """Write down the newest version."""
        self._beat(newest=newest, epoch=epoch, step=step)

    def _beat(self, **changes: Any) -> None:
        with self._lock:
            self._lease = replace(self._lease, **changes, beat=time.time())
            # A mount that fails now is met when saving.
            with contextlib.suppress(ColabstageError, OSError):
                self.check()
                write_lease(self._folder, self._lease)

    def leave(self) -> None:
        """Leave the run to the next session."""
        self._left.set()
        # A mount may never answer; a session that is silent that long has left, for any other.
        self._thread.join(SILENT_S)

    def _work(self) -> None:
        while not self._left.wait(BEAT_S):
            self._beat()
        self._beat(ended=True)


def wait_until_free(folder: Path, *, take_over: bool, clock: Clock, notice: Callable[[str], object]) -> Lease | None:
    """Return the lease of the session before, once it is certain that this has left or fallen silent.

    A session of this machine whose process has ended is gone. One of another machine may have been taken away, or train
    at this very moment, and its clock may be wrong: whether it gives signs of life is measured by this one's.

    Raises:
        RunInUseError: it is there, and `take_over` is not wanted.
    """
    before = read_lease(folder)
    if before is None or before.ended or take_over:
        return before
    alive = owner_is_alive(before.owner)
    if alive is False:
        return before
    is_old = time.time() - before.beat > SILENT_S + _CLOCKS_S
    deadline = clock.now() + (0.0 if is_old else SILENT_S)
    if alive is None and not is_old:
        notice(
            f"Session {before.session} of this run, on {before.host}, gave a sign of life {before.age()} ago. "
            f"Listening for {format_duration(deadline - clock.now())} whether it still trains."
        )
    now: Lease | None = before
    while alive is None and clock.now() < deadline:
        clock.sleep(min(5.0, max(0.01, deadline - clock.now())))
        now = read_lease(folder)
        if now is None or now.ended:
            return now or before
        if now.beat != before.beat:
            alive = True
    if not alive or now is None:
        return before
    here = "here" if owner_is_alive(now.owner) else f"on {now.host}"
    msg = (
        f"'{folder}' is in use: session {now.session} trains {here}, with its last sign of life {now.age()} ago. Stop "
        "it there, or write take_over=True, which ends that session at its next step."
    )
    raise RunInUseError(msg)


try:
    import torch
except ImportError as error:
    refuse_import("torch", "resumable needs", error)


# What Drive may take for gigabytes at 2 MB/s; a version that is not there by then is on its way all the same.
_UPLOAD_S = 1800.0
# How often whoever waits looks whether Ctrl-C was pressed, which a lock that is waited for without an end would hide.
_LOOK_S = 0.2
# A mount that does not answer is not waited for longer at the end.
END_S = 120.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A version that is in the run's folder."""

    version: Version
    epoch: int
    nbytes: int
    at: float
    """When it was saved, in seconds since 1970."""
    proof: str
    """What is known about it: `"read back"`, `"uploaded"`, …, as in `PublishReport.proof`."""
    proved: bool
    """Whether that is all that can be known; not while Drive's client says that it is not uploaded."""


@dataclass(frozen=True, slots=True)
class Job:
    """A version that is to be saved."""

    version: Version
    epoch: int
    content: dict[str, Any]
    """What is written; a copy that nothing else changes."""
    written: Callable[[], object]
    """Called once the copy is on the disk."""


class Saver:
    """Save what it is given, one version at a time.

    Attributes:
        newest: the version that was saved last, `None` before the first.
        problem: why the last try failed, with the time since when nothing was saved; empty after one that did not.
        heartbeat: what holds the run for this process.
        began: when the version that is on its way was handed over, in seconds since 1970; `None` if there is none.
    """

    def __init__(self, folder: Path, heartbeat: Heartbeat, local: Path, *, keep: int, whole: set[Version]) -> None:
        """Begin a thread, which at its end leaves the run. `local`: where versions are written first. `whole`: versions
        in the folder that are known to be whole."""
        self.newest: Saved | None = None
        self.problem = ""
        self.began: float | None = None
        self._folder, self.heartbeat, self._local, self._keep, self._whole = folder, heartbeat, local, keep, set(whole)
        self._root = drive_root(folder)
        self._error: Exception | None = None
        self._failing_since: float | None = None
        self._job: Job | None = None
        self._progress: Progress = Progress()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="colabstage-run", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Return whether a version is on its way."""
        return self._job is not None

    def save(self, job: Job, progress: Progress | None = None) -> None:
        """Begin to save a version; the one before has been saved, or has failed."""
        with self._changed:
            self._job, self._progress, self.began = job, progress or Progress(), time.time()
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until nothing is on its way; Ctrl-C ends the waiting.

        Raises:
            ColabstageError: the last version could not be saved.
        """
        with self._changed:
            while self._job is not None and self._thread.is_alive():
                self._changed.wait(_LOOK_S)
        if self._error is not None:
            raise self._error

    def close(self, *, patience_s: float = END_S) -> None:
        """End the thread, after what is on its way, and leave the run to the next session; wait so long at most."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        deadline = time.monotonic() + patience_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_LOOK_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._job is None and not self._ended:
                    self._changed.wait()
                job = self._job
            if job is None:
                self.heartbeat.leave()
                return
            self._try(job)

    def _try(self, job: Job) -> None:
        try:
            with typed_errors(reads=(), writes=(self._folder, self._local)):
                self._save(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on, and it is shown
            self._failing_since = time.time() if self._failing_since is None else self._failing_since
            since = time.strftime("%H:%M:%S", time.localtime(self._failing_since))
            self._error, self.problem = error, f"Nothing was saved since {since}: {said_by(error)}"
        else:
            self._error, self._failing_since, self.problem = None, None, ""
        finally:
            remove_own(self._local / job.version.name)
            with self._changed:
                self._job = self.began = None
                self._changed.notify_all()

    def _save(self, job: Job) -> None:
        local = self._local / job.version.name
        try:
            _write(job.content, local)
        finally:
            job.written()
        self.heartbeat.check()
        self._check_mounted()
        try:
            report = publish_file(
                local,
                self._folder / local.name,
                keep_previous=False,
                wait_uploaded=True,
                upload_timeout_s=_UPLOAD_S,
                progress=self._progress,
            )
            proof, nbytes = str(report.proof), report.nbytes
            self._whole.add(job.version)
        except DriveError as error:
            if not (self._folder / local.name).is_file():
                raise
            # It is on the mount, and Drive's client has still not uploaded it: no version is removed in its favour.
            proof, nbytes = f"not uploaded in {format_duration(_UPLOAD_S)}: {said_by(error)}", local.stat().st_size
        self.newest = Saved(job.version, job.epoch, nbytes, time.time(), proof, job.version in self._whole)
        if job.version in self._whole:
            self.heartbeat.note(job.version.name, job.epoch, job.version.step)
        self._remove_superseded()

    def _check_mounted(self) -> None:
        """Refuse a folder whose Drive is gone: made on the local disk, it would keep Drive from being mounted."""
        if self._root is not None and drive_root(self._folder) != self._root:
            msg = (
                f"'{self._folder}' was on Google Drive, and no Drive is mounted at '{self._root}' any more. Call "
                f"{remount_words(self._root)} in a notebook cell."
            )
            raise DriveNotMountedError(msg)

    def _remove_superseded(self) -> None:
        for version in superseded(list_versions(self._folder), self._whole, self._keep):
            if discard_version(self._folder / version.name):
                self._whole.discard(version)


def _write(content: dict[str, Any], local: Path) -> None:
    with typed_write_errors(local):
        try:
            with local.open("wb") as file:
                torch.save(content, file)
        except RuntimeError as error:
            # What the disk said, torch hides behind an error of its own.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None
