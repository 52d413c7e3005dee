"""Prefetch batches for a consumer that may stop at any time without saying so, such as Keras.

Keras asks a dataset for batches by number, may drop it in the middle of an epoch, and on TensorFlow keeps it for the
life of the process. So the prefetching thread ends soon after enough batches are ready, and the next request starts it
again. It waits a moment before it ends: a training loop takes a batch every few milliseconds, and starting a thread
for each would cost as much as gathering the batch.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Demand
from colabstage.load.prefetch import join_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Before training, Keras takes one or two batches to learn their shapes, and its prefetching takes two or three more.
LOOK_BATCHES = 4


class EpochTracker:
    """Tell passes over the data apart.

    A pass begins with the first request after `begin`, or with a second request for a batch. It is the next epoch,
    unless the pass before was only a look, of at most 4 batches and not all of them; then the same epoch begins again.
    Not safe in threads: the caller locks.

    Attributes:
        epoch: the current epoch.
    """

    def __init__(self, batches: int, *, by_turn: bool) -> None:
        """Take the number of `batches` in an epoch. `by_turn`: the first request of a pass gets batch 0, the second
        batch 1, and so on, whatever its number. For shuffled samples, where a consumer that shuffles the numbers too
        would make reading ahead impossible."""
        self._batches = batches
        self._by_turn = by_turn
        self._asked: set[int] = set()
        self._begins = False
        self.epoch = 0

    def begin(self) -> None:
        """Make the next request begin a pass."""
        self._begins = True

    def begin_now(self) -> int:
        """Begin a pass and return its epoch, if batches are not requested one by one."""
        self._begin_pass()
        return self.epoch

    def note(self, number: int) -> None:
        """Record that a batch of the current pass was handed out."""
        self._asked.add(number)

    def start_epoch(self, epoch: int) -> None:
        """Make the next request the first of this epoch."""
        self.epoch = epoch
        self._asked.clear()

    def request(self, number: int) -> tuple[int, int]:
        """Return the epoch and the batch that a request for batch `number` means."""
        # Keras does not announce a new pass, but never asks for a batch twice in one.
        if self._begins or number in self._asked:
            self._begin_pass()
        turn = len(self._asked)
        self._asked.add(number)
        return self.epoch, turn if self._by_turn else number

    def _begin_pass(self) -> None:
        self._begins = False
        done = len(self._asked)
        self.epoch += done == self._batches or done > LOOK_BATCHES
        self._asked.clear()


T = TypeVar("T")

_LOOK_S = 1.0
# How long the thread waits for room: longer than most training steps, and short enough not to delay an exit.
_LINGER_S = 0.1


class OnDemandPrefetcher(Generic[T]):
    """Prefetch up to `depth` results of `read(number, pool)` for ascending numbers, in order, for one consumer."""

    def __init__(
        self,
        read: Callable[[int, ThreadPool], T],
        numbers: range,
        *,
        depth: int,
        threads: int,
        prepare: Callable[[], Iterable[object]],
    ) -> None:
        """Take the number of `threads` of the pool. `prepare`: iterated to its end before the first number is read."""
        self._read = read
        self._prepare = prepare
        self._threads = threads
        self._depth = depth
        self._coming = iter(numbers)
        self._left = len(numbers)
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._prepared = False
        self._closed = False
        # The finalizer refers to these two only, never back to this object.
        self._awaited, ready = threading.Event(), self._ready
        awaited = self._awaited
        self._demand = Demand()
        self._demand.ask(lambda: awaited.is_set() or not ready)

    def take(self) -> T:
        """Wait for the next result.

        Raises:
            StopIteration: no result is left.
            Exception: the error that `read` raised.
        """
        with self._changed:
            self._fill()
            while not self._ready and self._thread is not None:
                self._awaited.set()
                self._changed.wait(_LOOK_S)
            self._awaited.clear()
            if self._ready:
                result = self._ready.popleft()
                self._fill()
                return result
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            # The error's traceback holds this frame; without this the frame would hold the error.
            del error

    def close(self) -> None:
        """End the thread and discard ready results. May be called twice."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            thread = self._thread
            self._changed.notify_all()
        self._demand.cancel()
        if thread is not None:
            join_reader(thread)

    def _fill(self) -> None:
        """Wake or start the thread if there is something to read. The caller holds the lock."""
        if not self._has_work():
            return
        if self._thread is not None:
            self._changed.notify_all()
        else:
            # Not a daemon: it ends by itself, soon enough for an exiting process to wait.
            self._thread = threading.Thread(target=self._run, name="colabstage-ahead")
            self._thread.start()

    def _has_work(self) -> bool:
        return self._has_more() and len(self._ready) < self._depth

    def _has_more(self) -> bool:
        return not self._closed and self._error is None and self._left > 0

    def _wait_for_work(self) -> bool:
        """Wait up to `_LINGER_S` for room; return whether there is something to read."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work() or not self._has_more(), _LINGER_S)
            return self._has_work()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._read_ahead()
        except BaseException as caught:  # noqa: BLE001 - it is raised again, where the consumer is
            error = caught
        with self._changed:
            # After `close` no error is reported.
            self._error = None if self._closed else error
            self._thread = None
            # `take` may have made room while the lock was free.
            self._fill()
            self._changed.notify_all()
        del error

    def _read_ahead(self) -> None:
        if not self._prepared:
            for _ in self._prepare():
                if self._closed:
                    return
            self._prepared = True
        with ThreadPool(self._threads, self._demand) as pool:
            while self._wait_for_work():
                # Counted before the read, so that a failed one is not repeated.
                self._left -= 1
                result = self._read(next(self._coming), pool)
                with self._changed:
                    if not self._closed:
                        self._ready.append(result)
                    self._changed.notify_all()
                del result
