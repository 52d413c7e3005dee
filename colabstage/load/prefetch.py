"""Iterate in a background thread, a few results ahead of the consumer, and end the thread in every case.

No wait is unbounded: `close` wakes a waiting thread, which also checks every second that the other side is alive.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import weakref
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar

from colabstage.errors import CancelledError, WorkersLostError
from colabstage.io.boundary import typed_error
from colabstage.io.files import Closing
from colabstage.io.progress import Demand

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")

_LOOK_S = 1.0
# A queue this long is for items that come so fast that waking the other side for each would take longer.
_MANY = 8
# A producer that is told to stop ends after the rows it is at; a slow mount may need its time for them.
_JOIN_S = 30.0
# By then a callback has returned.
_AGAIN_S = 0.01

_log = logging.getLogger(__name__)


class Heartbeat(Enum):
    """What a generator yields while it has no result yet, so that it can be stopped; consumers never see it."""

    HEARTBEAT = "heartbeat"


HEARTBEAT = Heartbeat.HEARTBEAT


class _BoundedQueue(Generic[T]):
    """Hand items from one thread to another by a bounded queue that either side can end.

    Small batches pass here many thousand times a second. So what is there is taken, and put where there is room,
    without the lock (a deque's append and popleft are atomic); and a producer that waits to fill a long queue is woken
    when half is taken, not for every single one. Who waits says so first and looks again; who changes something looks
    afterwards whether somebody has said so: no side sleeps through what it waits for.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # As many items are left when a producer that waits continues.
        self._low = depth // 2 if depth >= _MANY else depth - 1
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._producer_waits = False
        self._consumer_waits = False
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: T | Heartbeat) -> bool:
        """Wait for room and add an item, unless it is a heartbeat; return `False` if the queue is closed."""
        if isinstance(item, Heartbeat):
            return not self._closed
        if len(self._items) >= self._depth:
            self._wait_for_room()
        self._items.append(item)
        if self._closed:
            # Nobody clears what comes after that.
            self._items.clear()
            return False
        if self._consumer_waits:
            self._wake()
        return True

    def end(self, error: BaseException | None) -> None:
        """Say that no item will follow, because of `error` if there was one."""
        with self._changed:
            # Who has closed it asks for nothing any more, and an error would keep what its frames hold.
            self._ended, self._error = True, None if self._closed else error
            self._changed.notify_all()

    def get(self, alive: Callable[[], bool]) -> T:
        """Wait for the next item.

        Raises:
            StopIteration: there is none left.
            BaseException: what the producer died of, once the items before it are taken.
        """
        try:
            item = self._items.popleft()
        except IndexError:
            self._wait_for_item(alive)
            try:
                item = self._items.popleft()
            except IndexError:
                self._raise_end()
        # Half empty, so that one wake-up fills many places.
        if self._producer_waits and len(self._items) <= self._low:
            self._wake()
        return item

    @property
    def is_short(self) -> bool:
        """Tell whether the consumer waits, or would have to. Takes no lock."""
        # Who is told that there is something again takes it a moment later.
        return self._consumer_waits or not self._items

    def close(self) -> None:
        """Discard what is left, and wake both sides."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        with self._changed:
            self._producer_waits = True
            while len(self._items) > self._low and not self._closed:
                self._changed.wait(_LOOK_S)
            self._producer_waits = False

    def _wait_for_item(self, alive: Callable[[], bool]) -> None:
        with self._changed:
            self._consumer_waits = True
            try:
                while not (self._items or self._ended or self._closed):
                    if not alive():
                        msg = "The thread that prepares batches ended without an error. Start a new iteration."
                        raise WorkersLostError(msg)
                    self._changed.wait(_LOOK_S)
            finally:
                self._consumer_waits = False

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _raise_end(self) -> NoReturn:
        error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            # The error's traceback holds this frame; without this the frame would hold the error.
            del error


def _produce(source: Generator[T | Heartbeat], queue: _BoundedQueue[T]) -> None:
    error: BaseException | None = None
    try:
        while True:
            # No name for the item: it would keep a batch alive while the next one is made.
            if not queue.put(next(source)):
                break
    except StopIteration:
        pass
    except BaseException as caught:  # noqa: BLE001 - it is raised again, where the consumer is
        error = caught
    finally:
        source.close()
        queue.end(error)
        del error


def _stop(queue: _BoundedQueue[T], thread: threading.Thread, pid: int, demand: Demand) -> None:
    if os.getpid() != pid:
        return  # after a fork there is no such thread here, and its lock may be locked for ever
    # In this order: what the thread then fails with is nobody's error.
    queue.close()
    demand.cancel()
    join_reader(thread)


def _stop_dropped(queue: _BoundedQueue[T], thread: threading.Thread, pid: int, demand: Demand) -> None:
    """As `_stop`, where what is raised reaches nobody: Python prints it and continues. A Ctrl-C comes once more."""
    try:
        _stop(queue, thread, pid, demand)
    except KeyboardInterrupt:
        # Not from here, where it would be raised before this has returned; and to the thread, which may sleep by then.
        main = threading.main_thread().ident or 0
        threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT)).start()


def join_reader(thread: threading.Thread) -> None:
    """Wait for a thread that was told to stop."""
    if thread is threading.current_thread() or not thread.is_alive():
        return
    thread.join(_JOIN_S)
    if thread.is_alive():
        _log.warning("%s is still busy with its last rows after %.0f s and is left to end alone.", thread.name, _JOIN_S)


class Prefetcher(Generic[T]):
    """Iterate over what a generator yields in a thread, at most `depth` results ahead.

    The thread ends with the generator, with an error (which is raised at the consumer, with its traceback), with
    `close`, when this object is dropped, and at interpreter exit.
    """

    def __init__(self, source: Generator[T | Heartbeat], depth: int, name: str, demand: Demand | None = None) -> None:
        """Start the thread. `demand`: what the source looks at while it makes a result: whether anybody still wants it,
        and whether another is ready before it."""
        self._pid = os.getpid()
        self._queue: _BoundedQueue[T] = _BoundedQueue(depth)
        queue, demand = self._queue, demand or Demand()
        demand.ask(lambda: queue.is_short)
        # A daemon: Python waits for others at exit before anything could tell them to stop.
        self._thread = threading.Thread(target=_produce, args=(source, self._queue), name=name, daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop_dropped, self._queue, self._thread, self._pid, demand)

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        # The thread did not come along, and waiting for it would last for ever.
        if os.getpid() != self._pid:
            msg = "Batches are prepared by a thread of another process, before a fork. Start a new iteration here."
            raise WorkersLostError(msg)
        try:
            return self._queue.get(self._thread.is_alive)
        except BaseException:
            # After an error nothing more comes, and what waits is freed now.
            self.close()
            raise

    def close(self) -> None:
        """End the thread and throw away what it has prepared. Calling it twice is fine."""
        if (held := self._finalizer.detach()) is not None:
            _stop(*held[2])


S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class PrefetchSource(Protocol[S_co]):
    """Give an iteration its results: a thread's results (`Prefetcher`), or a generator."""

    def __next__(self) -> S_co: ...

    def close(self) -> None:
        """End it, and free what it holds. Calling it twice is fine."""


class Iteration(Generic[S, T]):
    """Run one iteration. Holds nothing of the loader but what it needs, so that either may be dropped first."""

    def __init__(
        self,
        source: PrefetchSource[S],
        hand_out: Callable[[S], T],
        at_end: Callable[[], object] = lambda: None,
        *,
        waited: Callable[[float], object] | None = None,
        let_go: Callable[[], object] | None = None,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        """Take over `source`. `hand_out`: makes what the source gives the consumer's, in the consumer's thread.
        `at_end`: called when the consumer has been told that there is no more. `waited`: told the seconds that the
        consumer has waited for what it gets. `let_go`: called once, when nothing more will come: at the end, after an
        error, or when it is closed or dropped. `explain`: returns what the consumer is told of an error of the
        source."""
        self._source = source
        self._hand_out = hand_out
        self._at_end = at_end
        self._waited = waited
        self._explain = explain
        self._closed = False
        # Not only when it is dropped: whoever keeps it, in a variable or in the traceback of its error, wants no more.
        self._let_go: Callable[[], object] = lambda: None
        if let_go is not None:
            self._let_go = finalizer = weakref.finalize(self, let_go)
            finalizer.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._closed:
            msg = (
                "This iteration was ended, by a newer one over the same loader or by close(). Start a new one; for two "
                "at once make two loaders."
            )
            raise CancelledError(msg)
        began = 0.0 if self._waited is None else time.perf_counter()
        try:
            given = next(self._source)
        except StopIteration:
            self._let_go()
            self._at_end()
            raise
        except BaseException as error:
            self._let_go()
            self._raise_explained(error)
            raise
        if self._waited is not None:
            self._waited(time.perf_counter() - began)
        return self._hand_out(given)

    def _raise_explained(self, error: BaseException) -> None:
        """Raise what says more of an error of the source, if anything does."""
        told = self._explain(typed_error(error) if isinstance(error, OSError) else error)
        try:
            if told is not error:
                raise told from error
        finally:
            # It holds this frame: with a name for it here, both would keep open files until a collection of garbage.
            del told

    @property
    def closed(self) -> bool:
        """Tell whether the iteration was closed before its end."""
        return self._closed

    def close(self) -> None:
        """End it, with the thread behind it."""
        # First, so that whoever continues with it is told so, instead of that there is no more.
        self._closed = True
        self._source.close()
        self._let_go()


class Iterated(Closing):
    """Base of loaders that know their running iterations, and end them on `close` and at the end of a `with`."""

    # Held weakly: a loop that was left ends its thread without being asked.
    _running: tuple[weakref.ref[Iteration[Any, Any]], ...] = ()

    def _begun(self, iteration: Iteration[S, T]) -> Iteration[S, T]:
        """Register an iteration that has begun."""
        self._running = (*(one for one in self._running if one() is not None), weakref.ref(iteration))
        return iteration

    def close(self) -> None:
        """End the iterations that run. The loader can be iterated again."""
        self._end_iterations()

    def _end_iterations(self) -> None:
        running, self._running = self._running, ()
        for one in running:
            iteration = one()
            if iteration is not None:
                iteration.close()
