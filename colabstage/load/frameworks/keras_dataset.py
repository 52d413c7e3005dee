"""The `keras.utils.PyDataset` that `to_keras` makes. Importing this imports keras, and so chooses its backend.

Keras asks for batches by number, may stop asking at any time, and says neither when an epoch ends nor that it has
stopped: so epochs are told from the numbers, and reading ahead stops by itself.

Keras calls a dataset for one batch after another, drops it in the middle of an epoch without a word, and on TensorFlow
keeps it for the life of the process. So the thread here ends as soon as enough batches wait, and the next request
starts it again: nothing waits for somebody who never comes. Starting a thread takes less than a tenth of a millisecond.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from colabstage.errors import MissingDependencyError, OptionError
from colabstage.load.frameworks.arrays import check_whole
from colabstage.load.reading.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Before training Keras takes a batch or two, to see what they look like, and its prefetching two or three more.
_LOOK_BATCHES = 4


class EpochTracker:
    """Tells passes over the data apart.

    A pass begins with the first request after `begin`, or with a batch that was handed out already. It is the next
    epoch, unless the one before was no more than a look: at most 4 batches, and not all; then the same epoch begins
    again. Not safe in threads: the caller locks.

    Attributes:
        epoch: the one that requests are of.
    """

    def __init__(self, batches: int, *, by_turn: bool) -> None:
        """`batches`: in an epoch. `by_turn`: the first request of a pass means batch 0, the second batch 1, and so on,
        whatever number is asked for: samples are shuffled anyway, and who shuffles the numbers too would otherwise
        leave nothing to read ahead."""
        self._batches = batches
        self._by_turn = by_turn
        self._asked: set[int] = set()
        self._begins = False
        self.epoch = 0

    def begin(self) -> None:
        """Say that the next request begins a pass."""
        self._begins = True

    def start_epoch(self, epoch: int) -> None:
        """Make the next request the first of this epoch."""
        self.epoch = epoch
        self._asked.clear()

    def request(self, number: int) -> tuple[int, int]:
        """The epoch and the batch that a request for batch `number` means."""
        if self._begins or number in self._asked:
            self._begin_pass()
        turn = len(self._asked)
        self._asked.add(number)
        return self.epoch, turn if self._by_turn else number

    def _begin_pass(self) -> None:
        self._begins = False
        done = len(self._asked)
        self.epoch += done == self._batches or done > _LOOK_BATCHES
        self._asked.clear()


T = TypeVar("T")

_LOOK_S = 1.0
# It ends after the batch it is at; a slow mount may need its time for one.
_JOIN_S = 30.0

_log = logging.getLogger(__name__)


class OnDemandPrefetcher(Generic[T]):
    """Results of `read(number, pool)` for ascending numbers, in their order, up to `depth` of them ready beforehand.

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
        """`threads`: of the pool. `prepare`: what is done before the first number, with a pause after each piece."""
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

    def take(self) -> T:
        """Wait for the next result.

        Raises:
            StopIteration: there is none left.
            Exception: what reading it ended in.
        """
        with self._changed:
            self._fill()
            while not self._ready and self._thread is not None:
                self._changed.wait(_LOOK_S)
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
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_JOIN_S)
        if thread.is_alive():
            _log.warning("%s is still busy with its last batch after %.0f s and ends alone.", thread.name, _JOIN_S)

    def _fill(self) -> None:
        """Start the thread if it has something to do and does not run. The lock is held."""
        if self._thread is None and self._has_work():
            # No daemon: it ends by itself, and a process that exits may wait for that.
            self._thread = threading.Thread(target=self._run, name="colabstage-refill")
            self._thread.start()

    def _has_work(self) -> bool:
        wanted = not self._closed and self._error is None
        return wanted and self._left > 0 and len(self._ready) < self._depth

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._read_ahead()
        except BaseException as caught:  # noqa: BLE001 - it is raised again, where the consumer is
            error = caught
        with self._changed:
            self._error = error
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
        with ThreadPool(self._threads) as pool:
            while self._has_work():
                self._left -= 1
                result = self._read(next(self._coming), pool)
                with self._changed:
                    if not self._closed:
                        self._ready.append(result)
                    self._changed.notify_all()
                del result


try:
    from keras.utils import PyDataset
except ImportError as error:
    _msg = (
        f"to_keras needs keras and the backend it is set to ({error}). Install them with: pip install keras tensorflow"
    )
    raise MissingDependencyError(_msg) from error

if TYPE_CHECKING:
    from colabstage.load.choices import LoaderPlan
    from colabstage.load.frameworks.arrays import ArrayBatches, Batch


class KerasBatches(PyDataset):  # type: ignore[misc]  # keras has no type information
    """Batches for `model.fit`, `evaluate` and `predict`, read ahead by a thread of this process. Made by `to_keras`.

    Each pass over the data is the next epoch. One pass runs at a time. The thread ends whenever enough batches wait, so
    that none is left whenever training stops.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.plan: LoaderPlan = batches.plan
        self._batches = batches
        self._passes = EpochTracker(len(batches), by_turn=batches.shuffled)
        self._ahead: OnDemandPrefetcher[Batch] | None = None
        # What the read-ahead gives next: epoch and batch.
        self._coming = (0, 0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._batches)

    @property
    def num_batches(self) -> int:
        """Batches in an epoch. Keras asks for this whenever it begins a pass, which is how passes are told apart."""
        with self._lock:
            self._passes.begin()
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        """A batch, `(x, y)`. Where samples are shuffled, the first request of a pass gets the epoch's first batch,
        whatever its index: Keras's `fit` shuffles indices too.

        Raises:
            IndexError: an epoch has no batch of this number.
            DecodeError, DamagedPackError: it cannot be read.
        """
        number = operator.index(index)
        if not 0 <= number < len(self):
            msg = f"There is no batch {number}; an epoch has {len(self):,}."
            raise IndexError(msg)
        with self._lock:
            return self._take(*self._passes.request(number))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch `epoch`: when training goes on after a restart.

        Raises:
            OptionError: a negative number, or none.
        """
        check_whole("epoch", epoch)
        with self._lock:
            self._passes.start_epoch(epoch)

    def on_epoch_end(self) -> None:
        """Called by Keras. What was read ahead is let go, and read again if the pass goes on."""
        self.close()

    def close(self) -> None:
        """Let go of what was read ahead. The dataset can be used again."""
        with self._lock:
            self._end()

    @property
    def workers(self) -> int:
        """1: threads of this dataset's own read ahead."""
        return 1

    @workers.setter
    def workers(self, value: int) -> None:
        if value > 1:
            msg = (
                f"workers={value!r} would have Keras call this dataset from several threads or processes, which it "
                "does not need: it reads ahead by itself. Use to_keras(..., num_workers=…) for more threads."
            )
            raise OptionError(msg)

    @property
    def use_multiprocessing(self) -> bool:
        """False: see `workers`."""
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        if value:
            msg = (
                "use_multiprocessing=True would fork processes that copy every batch back through a pipe, each with an "
                "epoch count of its own. This dataset reads ahead in threads, which need none of that; leave it False."
            )
            raise OptionError(msg)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _take(self, epoch: int, number: int) -> Batch:
        if self._ahead is None or self._coming != (epoch, number):
            is_next = number == 0 or (self._coming == (epoch, number) and self._ahead is None)
            self._end()
            if not is_next:
                # Out of order: nobody knows what comes next.
                self._coming = (epoch, number + 1)
                return self._batches.read(epoch, number)
            self._ahead = OnDemandPrefetcher(
                partial(self._batches.read_ahead, epoch),
                range(number, len(self)),
                depth=self.plan.prefetch.value,
                threads=self.plan.workers.value,
                prepare=self._batches.reader.warm_up,
            )
        self._coming = (epoch, number + 1)
        batch = self._batches.finish(self._ahead.take())
        if number + 1 == len(self):
            self._end()
        return batch

    def _end(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
