"""Iterate in a background thread, a few results ahead of the consumer, and always end the thread.

A thread is stopped only through its `Demand`, a `Cancellation` that its source checks. No wait is unbounded: `close`
wakes a waiting thread, and the consumer checks that the thread is alive and that the mounts it reads from respond.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from colabstage.errors import CancelledError, WorkersLostError
from colabstage.io.boundary import raise_stopped, typed_errors
from colabstage.io.environment import logger_of
from colabstage.io.files import Closing
from colabstage.io.progress import Demand
from colabstage.machine.mounts import silence_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")

_LOOK_S = 1.0
# How often to check that a mount responds, and when it hangs: one that is busy takes long to respond.
_ASK_EVERY_S, _HANGS_S = 10.0, 45.0
# A cancelled producer ends after the rows that it is reading, which may take long on a slow mount.
_JOIN_S = 30.0

_log = logger_of(__name__)


class _Handover(Generic[T]):
    """A bounded queue between two threads that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._waiting = False
        self._ended = self._closed = False
        self._error: BaseException | None = None

    @property
    def is_short(self) -> bool:
        """Return whether the consumer waits, or would have to if it asked now. Takes no lock."""
        return self._waiting or not self._items

    def put(self, item: T) -> bool:
        """Wait for room and add an item; return `False` if the queue is closed."""
        with self._changed:
            while len(self._items) >= self._depth and not self._closed:
                self._changed.wait(_LOOK_S)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None) -> None:
        """Announce that no item will follow, because of `error` if there was one."""
        with self._changed:
            # After `close` nobody reads the error, and it would keep alive what its frames hold.
            self._ended, self._error = True, None if self._closed else error
            self._changed.notify_all()

    def get(self, check: Callable[[], object]) -> T:
        """Wait for the next item, and call `check` meanwhile; raises StopIteration at the end, and the producer's error
        once the items before it are taken."""
        # Without the lock: a busy mount is slow to respond, and the next item must not wait for that.
        while not self._await():
            check()
        with self._changed:
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            # The error's traceback refers to this frame, so this frame must not refer to the error.
            del error

    def _await(self) -> bool:
        """Wait a moment; return whether there is an item, or the end."""
        with self._changed:
            self._waiting = True
            try:
                return self._changed.wait_for(lambda: bool(self._items) or self._ended or self._closed, _LOOK_S)
            finally:
                self._waiting = False

    def close(self) -> None:
        """Discard the remaining items and wake both sides."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _produce(source: Generator[T], queue: _Handover[T]) -> None:
    error: BaseException | None = None
    try:
        # The item gets no name: it would keep a batch alive while the next one is made.
        while queue.put(next(source)):
            pass
    except StopIteration:
        pass
    except BaseException as caught:  # noqa: BLE001 - it is raised again, where the consumer is
        error = caught
    finally:
        source.close()
        queue.end(error)
        del error


def _stop(queue: _Handover[Any], demand: Demand, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked process does not have this thread, and its lock may stay locked for ever
    # In this order, the queue discards the error with which the thread then ends.
    queue.close()
    demand.cancel()
    if thread is threading.current_thread() or not thread.is_alive():
        return
    thread.join(_JOIN_S)
    if thread.is_alive():
        _log.warning("%s is still busy with its last rows after %.0f s and is left to end alone.", thread.name, _JOIN_S)


class Ahead(Generic[T]):
    """Iterate over a generator that runs in a thread, at most `depth` results ahead. The thread ends with the
    generator, with an error (raised at the consumer), with `close`, when this object is dropped, and at interpreter
    exit."""

    def __init__(self, source: Generator[T], depth: int, name: str, demand: Demand | None = None) -> None:
        """Start the thread. `demand`: checked by the source while it makes a result."""
        self._pid = os.getpid()
        self._queue: _Handover[T] = _Handover(depth)
        queue, demand = self._queue, demand or Demand()
        demand.ask(lambda: queue.is_short)
        # A daemon, because at exit Python waits for other threads before anything could cancel them.
        self._thread = threading.Thread(target=_produce, args=(source, queue), name=name, daemon=True)
        self._touches, self._asked_s = demand.touches, time.monotonic()
        self._finalizer = weakref.finalize(self, _stop, queue, demand, self._thread, self._pid)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if os.getpid() != self._pid:
            msg = "Batches are prepared by a thread of another process, before a fork. Start a new iteration here."
            raise WorkersLostError(msg)
        try:
            return self._queue.get(self._check)
        except BaseException:
            # After an error nothing more comes; the results that wait are freed now.
            self.close()
            raise

    def _check(self) -> None:
        if not self._thread.is_alive():
            msg = "The thread that prepares batches ended without an error. Start a new iteration."
            raise WorkersLostError(msg)
        if self._touches and time.monotonic() - self._asked_s > _ASK_EVERY_S:
            if (silence := silence_of(*self._touches, timeout_s=_HANGS_S)) is not None:
                raise silence
            self._asked_s = time.monotonic()

    def close(self) -> None:
        """End the thread and discard what it has prepared. Calling it twice is fine."""
        if (held := self._finalizer.detach()) is not None:
            _stop(*held[2])


if TYPE_CHECKING:
    # The results of an iteration, whose `close` ends it and frees what it holds.
    Source: TypeAlias = Ahead[T] | Generator[T]


class Steps(NamedTuple):
    """How an iteration makes its batches. In the consumer's thread, `unpack` returns the batches of a group that
    `source` gives, and `hand_out` gives one to the consumer."""

    source: Any
    unpack: Callable[[Any], Iterable[Any]]
    hand_out: Callable[[Any], Any]
    at_end: Callable[[], object] = lambda: None
    """Called when there are no more."""
    waited: Callable[[float], object] | None = None
    """Called with the seconds that each batch took to come."""
    let_go: Callable[[], object] = lambda: None
    """Called once, when nothing more will come."""


class Iteration(Generic[T]):
    """One iteration of a loader, prepared from here on. It holds no reference to the loader, so that either may be
    dropped first."""

    def __init__(self, steps: Steps, instead: Callable[[], Steps | None] = lambda: None) -> None:
        """Take over `steps`. `instead`: called before the first batch, for steps that take their place."""
        self._ready: deque[Any] = deque()
        self._instead: Callable[[], Steps | None] | None = instead
        self._take(steps)
        self.closed = False
        """Whether it ended before its end, by `close` or an error."""

    def _take(self, steps: Steps) -> None:
        self._steps = steps
        # Called early, not when this object is dropped: a variable or a traceback may keep it alive unused.
        self._let_go = weakref.finalize(self, steps.let_go)
        self._let_go.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self.closed:
            msg = (
                "This iteration was ended, by an error, a newer one over the same loader or close(). Start a new one; "
                "for two at once make two loaders."
            )
            raise CancelledError(msg)
        try:
            instead, self._instead = self._instead, None
            if instead is not None and (other := instead()) is not None:
                self._end()
                self._take(other)
            steps = self._steps
            began = 0.0 if steps.waited is None else time.perf_counter()
            if not self._ready:
                self._receive()
            if steps.waited is not None:
                steps.waited(time.perf_counter() - began)
            return steps.hand_out(self._ready.popleft())  # type: ignore[no-any-return]
        except KeyboardInterrupt as stop:
            raise_stopped(stop, "")

    def _receive(self) -> None:
        try:
            self._ready.extend(self._steps.unpack(next(self._steps.source)))
        except StopIteration:
            self._let_go()
            self._steps.at_end()
            raise
        except BaseException:
            self.close()
            with typed_errors(reads=(), writes=()):
                raise

    def close(self) -> None:
        # Set first, so that a consumer who continues, also after an error, gets an error instead of an early end.
        self.closed = True
        self._end()

    def _end(self) -> None:
        self._ready.clear()
        self._steps.source.close()
        self._let_go()


class Iterated(Closing):
    """Base of loaders that know their running iterations, and end them on `close` and at the end of a `with`."""

    # Weak references: an abandoned loop ends its thread by itself.
    _running: tuple[weakref.ref[Iteration[Any]], ...] = ()

    def _begun(self, iteration: Iteration[T]) -> Iteration[T]:
        self._running = (*(one for one in self._running if one() is not None), weakref.ref(iteration))
        return iteration

    def close(self) -> None:
        """End the running iterations. The loader can be iterated again."""
        running, self._running = self._running, ()
        for one in running:
            if (iteration := one()) is not None:
                iteration.close()
