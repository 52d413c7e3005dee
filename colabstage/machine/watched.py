"""Work on mounts that may begin to hang meanwhile: it ends, and says why.

A call into a mount that hangs never returns, and nothing wakes its thread. So work that touches a slow mount is done in
a thread that can be left behind, while the caller's own thread waits and has the mount asked for signs of life.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from colabstage.errors import CancelledError
from colabstage.io.pipeline import DaemonPool
from colabstage.machine.mounts import is_slow_mount, silence_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from colabstage.errors import DriveDisconnectedError

T = TypeVar("T")

_ASK_EVERY_S = 10.0
# A client that is busy answers for its root late, and one that hangs never does.
_HANGS_S = 45.0
# What was interrupted clears up after itself first, as it would in the caller's thread.
_CLEAR_UP_S = 30.0
_DIES_S = 1.0


def run_watched(work: Callable[[], T], *places: str | os.PathLike[str]) -> T:
    """Call `work()`; it ends with an error when a slow mount that one of `places` lies on does not answer any more.

    Where none lies on one, `work` is simply called. Else a thread calls it, with the caller's context, and the caller
    waits: an interrupt, and what `work` raises, arrive here as ever.

    Raises:
        DriveDisconnectedError: a mount has not answered for 45 seconds, or has died and its calls do not return.
        Exception: whatever `work` raises.
    """
    slow = [place for place in places if is_slow_mount(place)]
    if not slow:
        return work()
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
    while not errand.ended_within(_ASK_EVERY_S):
        question = pool.submit(lambda: silence_of(*slow, timeout_s=_HANGS_S))
        either: set[Future[Any]] = {errand.future, question}
        wait(either, return_when=FIRST_COMPLETED)
        if errand.future.done():
            break
        silence = question.result()
        # What has died ends its calls by itself, and whoever made them says best what that was.
        if silence is not None and not errand.ended_within(_DIES_S):
            return silence
    return None


class _Errand(Generic[T]):
    """A call in a thread that the interpreter does not wait for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._lock = threading.Lock()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=self._run, args=(lambda: context.run(work),), name="colabstage-work", daemon=True
        )
        self._thread.start()

    def ended_within(self, seconds: float) -> bool:
        """Wait for the end, whatever it is."""
        return bool(wait((self.future,), seconds).done)

    def interrupt(self, kind: type[BaseException]) -> None:
        """Have the thread raise `kind` as soon as it is back in Python, as an interrupt does in the main thread."""
        with self._lock:
            if not self.future.done() and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(kind))

    def _run(self, work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            with self._lock:
                self.future.set_exception(error)
        else:
            with self._lock:
                self.future.set_result(result)
