"""The `keras.utils.PyDataset` that `to_keras` returns; on the TensorFlow backend it is a `tf.data.Dataset` as well.

Importing this module imports keras, and so fixes its backend.
"""

from __future__ import annotations

import operator
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import MissingDependencyError, OptionError
from colabstage.load.frameworks.arrays import check_count
from colabstage.load.frameworks.on_demand import LOOK_BATCHES, EpochTracker, OnDemandPrefetcher
from colabstage.load.frameworks.tensorflow import begun_late, dataset_of, noted

try:
    from keras.config import backend
    from keras.utils import PyDataset

    # Keras has imported it by then.
    if backend() == "tensorflow":
        import tensorflow as tf
except ImportError as error:
    _msg = (
        f"to_keras needs keras and the backend it is set to ({error}). Install them with: pip install keras tensorflow"
    )
    raise MissingDependencyError(_msg) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from colabstage.load.frameworks.arrays import ArrayBatches, Batch
    from colabstage.load.plan import LoaderPlan


class KerasBatches(PyDataset):  # type: ignore[misc]  # keras has no type information
    """Give batches to `model.fit`, `evaluate` and `predict`, read ahead by a thread of this process. Made by
    `to_keras`.

    Each pass over the data is the next epoch; only one pass runs at a time. The thread ends as soon as enough batches
    are ready, so that no thread remains when training stops.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        # Keras's own queue would add a thread and a copy of the waiting batches.
        super().__init__(workers=1, use_multiprocessing=False)
        self.plan: LoaderPlan = batches.plan
        self._batches = batches
        self._tracker = EpochTracker(len(batches), by_turn=batches.shuffled)
        self._ahead: OnDemandPrefetcher[Batch] | None = None
        # Epoch and number of the batch that the read-ahead gives next.
        self._coming = (0, 0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Count the batches in an epoch."""
        return len(self._batches)

    @property
    def num_batches(self) -> int:
        """Count the batches in an epoch. Keras reads this when it begins a pass, which is how passes are told apart."""
        with self._lock:
            self._tracker.begin()
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        """Return a batch, `(x, y)`. If samples are shuffled, requests get the epoch's batches in order, whatever the
        index, because Keras's `fit` shuffles the indices too.

        Raises:
            IndexError: an epoch has no batch with this number.
            DecodeError, DamagedPackError: the batch cannot be read.
        """
        number = operator.index(index)
        if not 0 <= number < len(self):
            msg = f"There is no batch {number}; an epoch has {len(self):,}."
            raise IndexError(msg)
        with self._lock:
            return self._take(*self._tracker.request(number))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch `epoch`, to continue training after a restart.

        Raises:
            OptionError: `epoch` is not an integer of 0 or more.
        """
        check_count("epoch", epoch)
        with self._lock:
            self._tracker.start_epoch(epoch)

    def on_epoch_end(self) -> None:
        """Release what was read ahead; it is read again if the pass continues. Keras calls this."""
        self.close()

    def close(self) -> None:
        """Release what was read ahead. The dataset can be used again."""
        with self._lock:
            self._end()

    @property
    def workers(self) -> int:
        """Return 1, because this dataset reads ahead in its own threads."""
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
        """Return `False`: see `workers`."""
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
        # Locks and threads cannot be pickled; the other process makes its own.
        return {**self.__dict__, "_lock": None, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _take(self, epoch: int, number: int) -> Batch:
        if self._ahead is None or self._coming != (epoch, number):
            is_next = number == 0 or (self._coming == (epoch, number) and self._ahead is None)
            self._end()
            if not is_next:
                # A request out of order: read ahead from there.
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
        # The thread has ended already; this frees its memory before validation begins.
        if number + 1 == len(self):
            self._end()
        return batch

    def _end(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


if backend() == "tensorflow":

    class TensorflowBatches(KerasBatches, tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no type information
        """Give batches to `model.fit`, `evaluate` and `predict` as the `tf.data.Dataset` that `to_tf_data` makes, and
        as arrays by number.

        `fit` reads any other `PyDataset` through a Python generator that TensorFlow calls for each batch, which adds
        half the cost of gathering the batch. It reads a `tf.data.Dataset` directly.

        Each pass over the data is the next epoch, unless it only looks at the first batches.
        """

        def __init__(self, batches: ArrayBatches) -> None:
            KerasBatches.__init__(self, batches)
            self._connect()

        def __iter__(self) -> Iterator[Any]:
            """Begin a pass that gives tensors."""
            passing: Iterator[Any] = tf.data.Dataset.__iter__(self)
            return passing

        @property
        def element_spec(self) -> Any:
            """Describe a batch, for TensorFlow."""
            return self._made.element_spec

        def _inputs(self) -> list[Any]:
            # TensorFlow asks a dataset which others it is made of.
            return [self._made]

        def __getstate__(self) -> dict[str, Any]:
            state = super().__getstate__()
            return {name: state[name] for name in self._own}

        def __setstate__(self, state: dict[str, Any]) -> None:
            super().__setstate__(state)
            self._connect()

        def _connect(self) -> None:
            """Make the TensorFlow dataset, which cannot be pickled."""
            self._own = tuple(self.__dict__)
            # TensorFlow never releases the functions that it calls, so they must not refer to this object and its file.
            tracker, lock = self._tracker, self._lock

            def begin() -> int:
                with lock:
                    return tracker.begin_now()

            def note(number: NDArray[np.int64]) -> NDArray[np.int64]:
                with lock:
                    tracker.note(int(number))
                return np.zeros_like(number)

            # One batch more than a look takes shows that it is a pass.
            made = noted(tf, dataset_of(tf, self._batches, begin), note, min(len(self), LOOK_BATCHES + 1), len(self))
            self._made = begun_late(made)
            tf.data.Dataset.__init__(self, self._made._variant_tensor)


def serve(batches: ArrayBatches) -> KerasBatches:
    """Make the `PyDataset` of these batches for the current backend of keras."""
    return TensorflowBatches(batches) if backend() == "tensorflow" else KerasBatches(batches)
