"""Work on a mounted Drive that may die meanwhile: mount it again once, and go on.

The Drive client of Colab dies now and then in the middle of a session: for a moment files cease to exist, then every
call answers 'Transport endpoint is not connected'. Only mounting again helps, and only the notebook's main thread can
do that, because it may ask the person for permission. Work that keeps what it has finished goes on from there. It is
tried once: a client that dies twice has a reason that mounting does not cure.

The one place that all work on Drive passes through, so a used-up download quota is told from other errors here too.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from colabstage.errors import (
    ColabstageError,
    DriveDisconnectedError,
    OptionError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.io.retry import speaks_of_a_mount, translate_read_error
from colabstage.machine.drive import drive_root, mount_drive
from colabstage.machine.drive_errors import drive_log_size, quota_error
from colabstage.machine.mounts import follow_links, mount_of, probe_mount
from colabstage.machine.platforms import detect_platform
from colabstage.machine.watched import run_watched

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Literal

T = TypeVar("T")

_PROBE_TIMEOUT_S = 15.0
# How a client's death shows, depending on which of its moments is met.
_SYMPTOMS = (DriveDisconnectedError, SourceNotFoundError, SourceReadError)


@dataclass(frozen=True, slots=True)
class RemountFacts:
    """What decides whether a Drive may be mounted again from here.

    `state`: what the mount answers now, as `MountProbe.state`. `main_thread`: whether this is the thread that Colab
    answers. `mountable`: whether this process is a Colab kernel. `cwd_inside`: whether the current folder is on it.
    """

    state: Literal["alive", "missing", "dead", "failing", "silent"]
    main_thread: bool
    mountable: bool
    cwd_inside: bool


def remount_obstacle(facts: RemountFacts) -> str | None:
    """Why Drive is not mounted again, as a sentence; `None` when it is. Pure."""
    if facts.state != "dead":
        # A client that lives, however slowly, may hold what is not uploaded yet, and a remount would lose that.
        return f"Drive was not mounted again: its client has not died (the mount is {facts.state})."
    if not facts.mountable:
        return "Drive was not mounted again: only a Colab notebook can do that."
    if not facts.main_thread:
        return "Drive was not mounted again: Colab answers the main thread only, and this is another one."
    if facts.cwd_inside:
        return "Drive was not mounted again: the current folder is on it. Leave it first: os.chdir('/content')."
    return None


def run_with_one_remount(
    work: Callable[[], T],
    *,
    place: str | os.PathLike[str],
    touches: Sequence[str | os.PathLike[str]] = (),
    mount_timeout_s: float = 120.0,
    notice: Callable[[str], object] | None = None,
) -> T:
    """Call `work()`; when the Drive that `place` lies on dies meanwhile, mount it again and call `work()` once more.

    Args:
        work: keeps what it has finished, or starts anew; holds nothing open on Drive after it has failed.
        place: any path on the Drive that `work` depends on; for one that lies elsewhere, `work` is called once.
        touches: what else it touches that may lie on a mount. A mount that begins to hang is left, with an error.
        mount_timeout_s: seconds to wait for the person's permission, and again for Drive's first listing.
        notice: told in a sentence that Drive was mounted again.

    Raises:
        DriveQuotaError: the file could not be read because Drive's download quota is used up.
        DriveError, NotSupportedHereError: mounting again failed; the reason for it is the error's cause.
        Exception: whatever `work` raises; an `OSError` of the system's own as the typed error for it.
            Where Drive died and was not mounted again, a note of the error says why.
    """
    root = drive_root(place)

    def watched() -> T:
        return run_watched(work, place, *touches)

    if root is None:
        return _work_typed(watched, place)
    readonly = mount_of(place).readonly
    try:
        return _with_quota_told(watched, place)
    except _SYMPTOMS as error:
        obstacle = remount_obstacle(_look(root))
        if obstacle is not None:
            if isinstance(error, DriveDisconnectedError):
                error.add_note(obstacle)
            raise
        mount_drive(root, readonly=readonly, timeout_s=mount_timeout_s)
        if notice is not None:
            notice(f"The Drive client died ({error}) and was mounted again; finished work was kept.")
    return _with_quota_told(watched, place)


def _work_typed(work: Callable[[], T], place: str | os.PathLike[str]) -> T:
    """Call `work()`; what the system answered somewhere inside becomes the typed error for it."""
    try:
        return work()
    except ColabstageError:
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            msg = (
                f"The name '{str(error.filename)[-40:]}' is too long for the file system: a record and unfinished work "
                "stand beside a target under names somewhat longer than its own. Choose a shorter one."
            )
            raise OptionError(msg) from error
        # Whatever else a caller's own function may raise is its own business.
        if not speaks_of_a_mount(error):
            raise
        raise translate_read_error(error, str(error.filename or place), 1) from error


def _with_quota_told(work: Callable[[], T], place: str | os.PathLike[str]) -> T:
    """Call `work()`; a failure that the client's log explains by a quota is raised as that."""
    log_size = drive_log_size()
    try:
        return _work_typed(work, place)
    except SourceReadError as error:
        quota = quota_error(error, log_size)
        if quota is None:
            raise
        raise quota from error


def _look(root: Path) -> RemountFacts:
    return RemountFacts(
        state=probe_mount(root, _PROBE_TIMEOUT_S).state,
        main_thread=threading.current_thread() is threading.main_thread(),
        mountable=detect_platform().drive_mountable,
        cwd_inside=_cwd().is_relative_to(root),
    )


def _cwd() -> Path:
    """The current folder, also where that is on a mount that has died."""
    return follow_links(Path("/proc/self/cwd").readlink())
