"""Work on mounts that may hang or die: it ends with a reason, or Drive is mounted again and the work continues.

A call into a mount that hangs never returns, and nothing wakes its thread. So work that touches a slow mount runs in a
thread that can be abandoned.

Colab's Drive client sometimes dies in the middle of a session. Only mounting again helps, and only the notebook's main
thread may do that, because it may ask the user for permission. Work that keeps its finished part continues from there.
This is tried once: if a client dies twice, mounting does not solve the problem.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from colabstage.errors import CancelledError, ColabstageError, DriveDisconnectedError
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.machine.drive import drive_log_size, is_readonly, mount_drive, quota_error
from colabstage.machine.mounts import InCaller, Mount, probe_mount, run_watched, silence_of
from colabstage.machine.platforms import detect_platform

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path


T = TypeVar("T")
R = TypeVar("R")

_ASK_EVERY_S = 10.0
# A busy client takes long to respond for its root; one that hangs never responds.
_HANGS_S = 45.0
# Interrupted work cleans up first, as it would in the caller's thread.
_CLEAR_UP_S = 30.0
_DIES_S = 1.0
_PROBE_TIMEOUT_S = 15.0
# A dying client reports for a moment that nothing exists, not even its own root.
_DYING_S = 2.0
_LOOK_AGAIN_S = 0.1
# How often work that waits for the caller checks whether to stop.
_LOOK_S = 0.25


def watch(work: Callable[[InCaller], T], slow: Sequence[str | os.PathLike[str]]) -> T:
    """Call `work` in a thread while this one checks that slow mounts answer, as `mounts.run_watched_for_caller`."""
    log_size, errand = drive_log_size(), _Errand(work)
    try:
        while not errand.serve(_ASK_EVERY_S):
            question = in_thread(lambda: silence_of(*slow, timeout_s=_HANGS_S), "colabstage-ask")
            either: list[Future[Any]] = [question, errand.future]
            wait(either, return_when=FIRST_COMPLETED)
            if errand.future.done():
                break
            silence = question.result()
            # On a dead mount calls return with errors themselves, which say more than this one.
            if silence is not None and not errand.serve(_DIES_S):

                class StoppedError(CancelledError):  # only a class can be raised in another thread
                    because = silence

                errand.interrupt(StoppedError)
                raise silence
    except (KeyboardInterrupt, CancelledError) as error:
        # An interrupt of this thread reaches no other one, and the work is in another.
        errand.interrupt(type(error))
        wait((errand.future,), _CLEAR_UP_S)
        raise
    try:
        return errand.future.result()
    except OSError as error:
        if (quota := quota_error(error, log_size)) is None:
            raise
        raise quota from error


class _Errand(Generic[T]):
    """A call in a thread that the interpreter does not wait for, while the caller's thread serves its requests."""

    def __init__(self, work: Callable[[InCaller], T]) -> None:
        self._caller = threading.current_thread()
        # The function that the caller must call; `None` only wakes the caller, because the work has ended.
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._interrupt: type[BaseException] | None = None
        self._thread_id = 0
        # ipykernel sends output to the cell that the context belongs to.
        context = contextvars.copy_context()

        def run() -> T:
            self._thread_id = threading.get_ident()
            if self._interrupt is not None:
                raise self._interrupt
            return context.run(work, self._in_caller)

        self.future = in_thread(run, "colabstage-work")
        self.future.add_done_callback(lambda _: self._calls.put(None))

    def serve(self, seconds: float) -> bool:
        """Call what the work requests, for so long or until the work ends; return whether it has ended."""
        deadline = SYSTEM_CLOCK.now() + seconds
        while not self.future.done() and (left := deadline - SYSTEM_CLOCK.now()) > 0:
            with contextlib.suppress(queue.Empty):
                call = self._calls.get(timeout=left)
                if call is not None:
                    future, function = call
                    try:
                        future.set_result(function())
                    except BaseException as error:  # noqa: BLE001 - interrupts too: the work cleans up, ends with them
                        future.set_exception(error)
        return self.future.done()

    def interrupt(self, kind: type[BaseException]) -> None:
        """Raise `kind` in the thread as soon as it is back in Python code, and serve no more of its requests."""
        self._interrupt = kind
        if not self.future.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(kind))

    def _in_caller(self, function: Callable[[], R]) -> R:
        # A function that was called in the caller's thread may itself request this, and would wait for itself.
        if threading.current_thread() is self._caller:
            return function()
        future: Future[R] = Future()
        self._calls.put((future, function))
        while self._interrupt is None:
            # An asynchronous exception does not reach a thread that waits for longer.
            if wait((future,), _LOOK_S).done:
                return future.result()
        raise self._interrupt


def remount_once(
    work: Callable[[], T], drive: Mount, places: Sequence[str | os.PathLike[str]], notice: Callable[[str], object]
) -> T:
    """Call `work`, which uses this Drive among its places, as `mounts.run_with_one_remount`."""
    # Before the work, because a dead client has no command line to read; and only if it could be mounted again, because
    # this searches all processes for the client.
    may_mount = detect_platform().drive_mountable and threading.current_thread() is threading.main_thread()
    root, readonly = drive.mountpoint, may_mount and is_readonly(drive)
    try:
        return run_watched(work, *places)
    except CancelledError:
        raise
    # Depending on the moment, a dying client makes files disappear, refuses writes, or fails reads with various errors.
    # So any error of the work may come from its death, and the mount is probed.
    except (ColabstageError, OSError) as error:
        state = _state_of(root)
        if state != "dead" or not may_mount:
            # A live client, however slow, may have files that are not uploaded yet, and a remount would lose them.
            death: Exception | None = error
            obstacle = f"its client has not died (the mount is {state})"
            if state == "dead":
                death = error if isinstance(error, DriveDisconnectedError) else silence_of(root)
                obstacle = "only the main thread of a Colab notebook can do that"
            if not isinstance(death, DriveDisconnectedError):
                raise
            # In the message, not in a note of the exception, because notebooks do not show notes.
            msg = f"{death} Drive was not mounted again: {obstacle}."
            raise DriveDisconnectedError(msg) from error
        mount_drive(root, readonly=readonly)
        notice(f"The Drive client at '{root}' died and was mounted again; finished work was kept.")
    return run_watched(work, *places)


def _state_of(root: Path) -> str:
    deadline = SYSTEM_CLOCK.now() + _DYING_S
    while (state := probe_mount(root, _PROBE_TIMEOUT_S).state) == "missing" and SYSTEM_CLOCK.now() < deadline:
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_S)
    return state
