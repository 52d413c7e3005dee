"""Prefetch for those who ask by number, may stop asking at any time, and say neither that nor when an epoch ends.

Keras calls a dataset for one batch after another, drops it in the middle of an epoch without a word, and on TensorFlow
keeps it for the life of the process. So the thread here ends soon after enough batches wait, and the next request
starts it again: nothing waits for somebody who never comes. It lingers for a moment first, because whoever trains takes
a batch every few milliseconds, and two threads for each of them cost as much as gathering it.
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

# Before training Keras takes a batch or two, to see what they look like, and its prefetching two or three more.
LOOK_BATCHES = 4


class EpochTracker:
    """Tell passes over the data apart.

    A pass begins with the first request after `begin`, or with a batch that was handed out already. It is the next
    epoch, unless the one before was no more than a look: at most 4 batches, and not all; then the same epoch begins
    again. Not safe in threads: the caller locks.

    Attributes:
        epoch: the one that requests are of.
    """

    def __init__(self, batches: int, *, by_turn: bool) -> None:
        """Take the number of `batches` in an epoch. `by_turn`: the first request of a pass means batch 0, the second
        batch 1, and so on, whatever number is asked for: samples are shuffled anyway, and who shuffles the numbers too
        would otherwise leave nothing to read ahead."""
        self._batches = batches
        self._by_turn = by_turn
        self._asked: set[int] = set()
        self._begins = False
        self.epoch = 0

    def begin(self) -> None:
        """Say that the next request begins a pass."""
        self._begins = True

    def begin_now(self) -> int:
        """Begin a pass, and return its epoch: for whom batches are not requested one by one."""
        self._begin_pass()
        return self.epoch

    def note(self, number: int) -> None:
        """Count a batch of the pass that was begun as handed out."""
        self._asked.add(number)

    def start_epoch(self, epoch: int) -> None:
        """Make the next request the first of this epoch."""
        self.epoch = epoch
        self._asked.clear()

    def request(self, number: int) -> tuple[int, int]:
        """Return the epoch and the batch that a request for batch `number` means."""
        # Keras may start over without a word, but it never asks twice for a batch in one pass.
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
# How long the thread waits for room: longer than most steps last, and too short for anybody to wait for at exit.
_LINGER_S = 0.1


class OnDemandPrefetcher(Generic[T]):
    """Prefetch the results of `read(number, pool)` for ascending numbers, in their order, up to `depth` of them ready
    beforehand.

    For one consumer.
    """

    def __init__(
        self,
        read: Callable[[int, ThreadPool], T],
        numbers: range,
        *,
        depth: int,
        threads: int,
        prepare: Callable[[], Iterable[object]],
    ) -> None:
        """Take the number of `threads` of the pool. `prepare`: what is done before the first number, with a pause after
        each piece."""
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
        # Of these two alone, so that nothing refers back to this object.
        self._awaited, ready = threading.Event(), self._ready
        awaited = self._awaited
        self._demand = Demand()
        self._demand.ask(lambda: awaited.is_set() or not ready)

    def take(self) -> T:
        """Wait for the next result.

        Raises:
            StopIteration: there is none left.
            Exception: what reading it ended in.
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
        """End the thread and throw away what is ready. Calling it twice is fine."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            thread = self._thread
            self._changed.notify_all()
        self._demand.cancel()
        if thread is not None:
            join_reader(thread)

    def _fill(self) -> None:
        """Have the thread go on if it has something to do: wake it, or start it. The lock is held."""
        if not self._has_work():
            return
        if self._thread is not None:
            self._changed.notify_all()
        else:
            # No daemon: it ends by itself, and a process that exits may wait for that.
            self._thread = threading.Thread(target=self._run, name="colabstage-ahead")
            self._thread.start()

    def _has_work(self) -> bool:
        return self._has_more() and len(self._ready) < self._depth

    def _has_more(self) -> bool:
        return not self._closed and self._error is None and self._left > 0

    def _wait_for_work(self) -> bool:
        """Wait a moment for room; return whether there is work."""
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
            # Who has closed it gets nothing any more.
            self._error = None if self._closed else error
            self._thread = None
            # Somebody may have made room while the lock was free.
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
                # Before the read: one that fails is not tried again.
                self._left -= 1
                result = self._read(next(self._coming), pool)
                with self._changed:
                    if not self._closed:
                        self._ready.append(result)
                    self._changed.notify_all()
                del result
