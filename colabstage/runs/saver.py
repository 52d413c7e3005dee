"""Save versions of a run in a thread: write, hash, publish and read back each, and remove the oldest.

The training loop hands over a copy of the state and continues. Only one version is on its way at a time. A failure is
noted and tried again with the next version, while the training continues.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from colabstage.errors import DriveError, DriveNotMountedError, causes, said_by
from colabstage.io.boundary import typed_errors
from colabstage.io.files import make_own_folder, typed_write_errors
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import Progress
from colabstage.io.units import format_duration
from colabstage.io.workspace import remove_own
from colabstage.machine.mounts import drive_root, remount_words, run_watched
from colabstage.runs.listing import Version, list_versions
from colabstage.stage.publish import discard_version, publish_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.runs.lease import Heartbeat

# How long Drive may take for gigabytes at 2 MB/s; after this, a version still counts as on its way.
_UPLOAD_S = 1800.0
# How often a wait checks for Ctrl-C, which an unbounded wait for a lock would hide.
_LOOK_S = 0.2
# How long to wait at the end for a mount that does not respond.
END_S = 120.0


@dataclass(frozen=True, slots=True)
class Saved:
    version: Version
    nbytes: int
    at: float
    """When it was saved, in seconds since 1970."""
    proof: str
    """What is known about it: `"read back"`, `"uploaded"`, …, as in `PublishReport.proof`."""
    proved: bool
    """Whether nothing more can become known; false while Drive's client reports that it is not uploaded."""


@dataclass(frozen=True, slots=True)
class Job:
    version: Version
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

    def __init__(self, folder: Path, heartbeat: Heartbeat, local: Path, *, keep: int, restored: Version | None) -> None:
        """Take the run that `heartbeat` holds. `local`: where versions are first written."""
        self.newest: Saved | None = None
        self.problem = ""
        self.began: float | None = None
        self._folder, self.heartbeat, self._local, self._keep = folder, heartbeat, local, keep
        # Versions that are known to be complete.
        self._whole = set() if restored is None else {restored}
        self._root = drive_root(folder)
        self._failing_since: float | None = None
        self._progress: Progress = Progress()
        self._last = Future[None]()
        self._last.set_result(None)

    @property
    def busy(self) -> bool:
        return not self._last.done()

    def save(self, job: Job, progress: Progress | None = None) -> None:
        """Begin to save a version; the previous one has been saved, or has failed."""
        self._progress, self.began = progress or Progress(), time.time()
        self._last = in_thread(lambda: self._try(job), "colabstage-run")

    def wait(self) -> None:
        """Wait until nothing is on its way; Ctrl-C ends the waiting."""
        while self.busy:
            wait((self._last,), _LOOK_S)
        self._last.result()

    def close(self, *, patience_s: float = END_S) -> None:
        """Leave the run to the next session after what is on its way; wait at most `patience_s`."""

        def leave() -> None:
            wait((self._last,), _UPLOAD_S)
            self.heartbeat.leave()

        wait((in_thread(leave, "colabstage-run"),), patience_s)

    def _try(self, job: Job) -> None:
        try:
            with typed_errors(reads=(), writes=(self._folder, self._local)):
                run_watched(lambda: self._save(job), self._folder)
        except Exception as error:  # whatever it is, the training goes on, and it is shown
            self._failing_since = time.time() if self._failing_since is None else self._failing_since
            since = time.strftime("%H:%M:%S", time.localtime(self._failing_since))
            self.problem = f"Nothing was saved since {since}: {said_by(error)}"
            raise
        else:
            self._failing_since, self.problem = None, ""
        finally:
            remove_own(self._local / job.version.name)
            self.began = None

    def _save(self, job: Job) -> None:
        local = self._local / job.version.name
        try:
            # People empty the folder for temporary files when a disk is full.
            make_own_folder(self._local)
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
            # It is on the mount, but Drive's client has not uploaded it: it makes no other version superfluous.
            proof, nbytes = f"not uploaded in {format_duration(_UPLOAD_S)}: {said_by(error)}", local.stat().st_size
        self.newest = Saved(job.version, nbytes, time.time(), proof, job.version in self._whole)
        if job.version in self._whole:
            self.heartbeat.note(job.version.name, job.content["counters"]["epoch"], job.version.step)
        self._remove_superseded()

    def _check_mounted(self) -> None:
        """Refuse a folder whose Drive is gone: created on the local disk, it would prevent mounting Drive."""
        if self._root is not None and drive_root(self._folder) != self._root:
            msg = (
                f"'{self._folder}' was on Google Drive, and no Drive is mounted at '{self._root}' any more. Call "
                f"{remount_words(self._root)} in a notebook cell."
            )
            raise DriveNotMountedError(msg)

    def _remove_superseded(self) -> None:
        """Remove versions older than the newest `keep` that are known to be whole; while fewer are known, none."""
        newest = sorted(self._whole, reverse=True)[: self._keep]
        for version in list_versions(self._folder) if len(newest) == self._keep else ():
            if version < newest[0] and version not in newest and discard_version(self._folder / version.name):
                self._whole.discard(version)


def _write(content: dict[str, Any], local: Path) -> None:
    with typed_write_errors(local):
        try:
            with local.open("wb") as file:
                torch.save(content, file)
        except RuntimeError as error:
            # torch hides the disk's error behind one of its own.
            raise next((one for one in causes(error) if isinstance(one, OSError)), error) from None
