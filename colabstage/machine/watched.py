"""Work on mounts that may hang or die meanwhile: it ends and says why, or Drive is mounted again and it goes on.

A call into a mount that hangs never returns, and nothing wakes its thread. So work that touches a slow mount is done in
a thread that can be left behind, while the caller's own thread waits and has the mount asked for signs of life. What
is the caller's own code, such as the items of a dataset, is called in the thread that waits.

The Drive client of Colab dies now and then in the middle of a session: for a moment files cease to exist, then every
call answers 'Transport endpoint is not connected'. Only mounting again helps, and only the notebook's main thread does
that, because it may ask the person for permission, and the answer to a thread can get lost. Work that keeps what it has
finished goes on from there. It is tried once: a client that dies twice has a reason that mounting does not cure.

`run_with_one_remount` is the one place that all work on Drive passes through, so a used-up download quota is told from
other errors there too.
"""

from __future__ import annotations

import contextvars
import ctypes
import errno
import queue
import threading
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from colabstage.errors import (
    CancelledError,
    ColabstageError,
    DriveDisconnectedError,
    OptionError,
    SourceReadError,
)
from colabstage.io.clock import SYSTEM_CLOCK
from colabstage.io.pipeline import DaemonPool
from colabstage.io.retry import speaks_of_a_mount, translate_read_error
from colabstage.machine.drive import drive_root, is_readonly, mount_drive
from colabstage.machine.drive_client import drive_log_size, quota_error
from colabstage.machine.mounts import is_slow_mount, mount_of, probe_mount, silence_of
from colabstage.machine.platforms import detect_platform

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Literal

T = TypeVar("T")
R = TypeVar("R")

_ASK_EVERY_S = 10.0
# A client that is busy answers for its root late, and one that hangs never does.
_HANGS_S = 45.0
# What was interrupted clears up after itself first, as it would in the caller's thread.
_CLEAR_UP_S = 30.0
_DIES_S = 1.0
_PROBE_TIMEOUT_S = 15.0
# A dying client denies for a moment that anything exists, its own root too.
_DYING_S = 2.0
_LOOK_AGAIN_S = 0.1


class InCaller(Protocol):
    """Have the thread that waits for some work call a function, and return what that returns."""

    def __call__(self, function: Callable[[], R], /) -> R: ...


def call_here(function: Callable[[], R]) -> R:
    """Call a function: `InCaller` of work that its caller's own thread does."""
    return function()


def run_watched(work: Callable[[], T], *places: str | os.PathLike[str]) -> T:
    """Call `work()`; it ends with an error when a slow mount that one of `places` lies on does not answer any more.

    Where none lies on one, `work` is simply called. Else a thread calls it, with the caller's context, and the caller
    waits: an interrupt, and what `work` raises, arrive here as ever.

    Raises:
        DriveDisconnectedError: a mount has not answered for 45 seconds, or has died and its calls do not return.
        Exception: whatever `work` raises.
    """
    return run_watched_for_caller(lambda _: work(), *places)


def run_watched_for_caller(work: Callable[[InCaller], T], *places: str | os.PathLike[str]) -> T:
    """Call `work(in_caller)` as `run_watched` does; what it gives to `in_caller` is called in the caller's thread.

    For code that is the caller's own: it runs where it would without a mount, one call after the other, and may take as
    long as it likes. The mount is asked between such calls.
    """
    slow = [place for place in places if is_slow_mount(place)]
    if not slow:
        return work(call_here)
    errand = _Errand(work)
    with DaemonPool(1, "colabstage-ask") as pool:
        try:
            silence = _wait_for(errand, pool, slow)
        except KeyboardInterrupt:
            errand.interrupt(KeyboardInterrupt)
            errand.ended_within(_CLEAR_UP_S)
            raise
        finally:
            # A question still under way is of no interest, and may take its time.
            pool.close(abandon=True)
    if silence is not None:
        # It is left behind, to stop where it awakes.
        errand.interrupt(CancelledError)
        raise silence
    return errand.future.result()


def _wait_for(
    errand: _Errand[T], pool: DaemonPool, slow: list[str | os.PathLike[str]]
) -> DriveDisconnectedError | None:
    """Wait for the end of the errand, or for the silence of a mount that it is not going to survive."""
    while not errand.attended_until_end(_ASK_EVERY_S):
        question = pool.submit(lambda: silence_of(*slow, timeout_s=_HANGS_S))
        question.add_done_callback(errand.wake_caller)
        while not (errand.future.done() or question.done()):
            errand.attend(_ASK_EVERY_S)
        if errand.future.done():
            break
        silence = question.result()
        # What has died ends its calls by itself, and whoever made them says best what that was.
        if silence is not None and not errand.attended_until_end(_DIES_S):
            return silence
    return None


class _Errand(Generic[T]):
    """Make a call in a thread that the interpreter does not wait for, while the caller's thread attends to it."""

    def __init__(self, work: Callable[[InCaller], T]) -> None:
        self.future: Future[T] = Future()
        self._lock = threading.Lock()
        self._caller = threading.current_thread()
        # What the caller is to call; `None` wakes it to look what has ended.
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._left: type[BaseException] | None = None
        self._waits: set[Future[Any]] = set()
        self.future.add_done_callback(self.wake_caller)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=self._run, args=(lambda: context.run(work, self._in_caller),), name="colabstage-work", daemon=True
        )
        self._thread.start()

    def attend(self, seconds: float) -> None:
        """Make the next call that the errand asks for; return without one when something has ended, or after
        `seconds`.
        """
        try:
            call = self._calls.get(timeout=seconds)
        except queue.Empty:
            return
        if call is None:
            return
        future, function = call
        # An interrupt too goes the way of the errand, which clears up after itself and ends with it.
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            future.set_exception(error)
        else:
            future.set_result(result)

    def attended_until_end(self, seconds: float) -> bool:
        """Make the calls that the errand asks for, for about so long; return whether it has ended."""
        deadline = SYSTEM_CLOCK.now() + seconds
        while not self.future.done() and (left := deadline - SYSTEM_CLOCK.now()) > 0:
            self.attend(left)
        return self.future.done()

    def ended_within(self, seconds: float) -> bool:
        """Wait for the end, whatever it is."""
        return bool(wait((self.future,), seconds).done)

    def wake_caller(self, _: Future[Any]) -> None:
        """Have the caller's thread look at what has ended."""
        self._calls.put(None)

    def interrupt(self, kind: type[BaseException]) -> None:
        """Have the thread raise `kind` as soon as it is back in Python, as an interrupt does in the main thread.

        No call that it asks for is made any more.
        """
        with self._lock:
            self._left = kind
            waits = [future for future in self._waits if not future.done()]
            if waits:
                # It waits for the caller, and no other interrupt would reach it there.
                for future in waits:
                    future.set_exception(kind())
            elif not self.future.done() and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(kind))

    def _in_caller(self, function: Callable[[], R]) -> R:
        if threading.current_thread() is self._caller:
            return function()
        future: Future[R] = Future()
        with self._lock:
            if self._left is not None:
                raise self._left
            self._waits.add(future)
        self._calls.put((future, function))
        try:
            return future.result()
        finally:
            with self._lock:
                self._waits.discard(future)

    def _run(self, work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            with self._lock:
                self.future.set_exception(error)
        else:
            with self._lock:
                self.future.set_result(result)


@dataclass(frozen=True, slots=True)
class RemountFacts:
    """Hold what decides whether a Drive may be mounted again from here."""

    state: Literal["alive", "missing", "dead", "failing", "silent"]
    """What the mount answers now, as `MountProbe.state`."""
    main_thread: bool
    """Whether this is the notebook's main thread."""
    mountable: bool
    """Whether this process is a Colab kernel."""


def remount_obstacle(facts: RemountFacts) -> str | None:
    """Return why Drive is not mounted again, as a sentence; `None` when it is. Pure."""
    if facts.state != "dead":
        # A client that lives, however slowly, may hold what is not uploaded yet, and a remount would lose that.
        return f"Drive was not mounted again: its client has not died (the mount is {facts.state})."
    if not facts.mountable:
        return "Drive was not mounted again: only a Colab notebook can do that."
    if not facts.main_thread:
        return "Drive was not mounted again: the main thread has to ask for that, and this is another one."
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
        DriveDisconnectedError: Drive died and was not mounted again, whatever `work` made of it; the message says why.
        DriveError, NotSupportedHereError: mounting again failed; the reason for it is the error's cause.
        Exception: whatever `work` raises; an `OSError` of the system's own as the typed error for it.
    """
    root = drive_root(place)

    def watched() -> T:
        return run_watched(work, place, *touches)

    if root is None:
        return _work_typed(watched, place)
    # Now, because a dead client has no command line to look at.
    readonly = is_readonly(mount_of(place))
    try:
        return _with_quota_told(watched, place)
    except CancelledError:
        raise
    # By the moment of its death that is met, files are gone, cannot be written, or read otherwise. So whatever the work
    # ends in while the client dies is its death.
    except (ColabstageError, OSError) as error:
        facts = _look(root)
        obstacle = remount_obstacle(facts)
        if obstacle is not None:
            death = error if isinstance(error, DriveDisconnectedError) else None
            if facts.state == "dead":
                death = death or silence_of(root)
            if death is None:
                raise
            # In the message, because the notebook shows no notes.
            msg = f"{death} {obstacle}"
            raise DriveDisconnectedError(msg) from error
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
    deadline = SYSTEM_CLOCK.now() + _DYING_S
    while (state := probe_mount(root, _PROBE_TIMEOUT_S).state) == "missing" and SYSTEM_CLOCK.now() < deadline:
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_S)
    return RemountFacts(
        state=state,
        main_thread=threading.current_thread() is threading.main_thread(),
        mountable=detect_platform().drive_mountable,
    )
