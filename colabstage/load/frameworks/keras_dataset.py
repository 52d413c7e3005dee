"""The `keras.utils.PyDataset` that `to_keras` returns. Importing this imports keras, and so fixes its backend."""

from __future__ import annotations

import operator
import threading
import warnings
from typing import TYPE_CHECKING, Any

from colabstage.errors import MissingDependencyError, OptionError
from colabstage.io.arguments import whole_number
from colabstage.io.report import Report, Shown

try:
    import keras
except ImportError as error:
    _msg = (
        f"to_keras needs keras and the backend it is set to ({error}). Install them with: pip install keras tensorflow"
    )
    raise MissingDependencyError(_msg) from error
# Earlier ones shuffle batches after they are read, or read some that they do not train on.
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 8):
    _msg = (
        f"to_keras needs keras 3.8 or later, and {keras.__version__} is loaded. Install it with: "
        'pip install "keras>=3.8", restart the session, and try again.'
    )
    raise MissingDependencyError(_msg)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.load.ahead import Ahead
    from colabstage.load.frameworks.arrays import ArrayBatches, Batch
    from colabstage.load.plan import LoaderPlan

# Before training, Keras takes one or two batches to learn their shapes, and its prefetching two or three more.
_LOOK_BATCHES = 4


class KerasBatches(Shown, keras.utils.PyDataset):  # type: ignore[misc]  # keras has no type information
    """Give batches to `model.fit`, `evaluate` and `predict`, read ahead by a thread of this process. Made by
    `to_keras`. It has `class_indices` and `filenames`, as Keras's own iterators of folders.

    Each pass over the data is the next epoch; only one pass runs at a time. The thread ends with the epoch.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        # Keras's own queue would add a thread and a copy of the waiting batches.
        super().__init__(workers=1, use_multiprocessing=False)
        self.plan: LoaderPlan = batches.plan
        self._batches = batches
        self._epoch = 0
        self._asked: set[int] = set()
        # Since the last request. Either alone happens inside a pass: a callback counts batches, and an epoch of
        # `steps_per_epoch` ends.
        self._counted = self._at_edge = False
        self._ahead: Ahead[Any] | None = None
        # Epoch and number of the batch that the read-ahead gives next.
        self._coming = (0, 0)
        self._lock = threading.Lock()

    def shown(self) -> Report:
        return self.plan.shown("KerasBatches")

    def __len__(self) -> int:
        """Count the batches in an epoch."""
        return len(self._batches)

    @property
    def class_indices(self) -> dict[str, int]:
        """Return the label of each class name; empty when the file has no names."""
        return {name: label for label, name in enumerate(self._batches.reader.classes)}

    @property
    def filenames(self) -> list[str]:
        """Read the name of each sample's file, in the order of predictions without shuffling; warn if there is some."""
        if self._batches.shuffled:
            msg = "Batches are shuffled, and filenames are not. For predictions pass shuffle=False to to_keras."
            warnings.warn(msg, UserWarning, stacklevel=2)
        return self._batches.filenames()

    @property
    def num_batches(self) -> int:
        """Count the batches in an epoch, as `len`. Keras asks before it begins a pass."""
        with self._lock:
            self._counted = True
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        """Return a batch, `(x, y)` or `(x, y, sample_weight)`. If samples are shuffled, requests get an epoch's batches
        in order, whatever the index, because Keras's `fit` shuffles the indices too.

        Raises:
            IndexError: an epoch has no batch with this number.
            DecodeError, DamagedPackError: the batch cannot be read.
        """
        number = operator.index(index)
        if not 0 <= number < len(self):
            msg = f"There is no batch {number}; an epoch has {len(self):,}."
            raise IndexError(msg)
        with self._lock:
            return self._take(*self._meant(number))

    def __iter__(self) -> Iterator[Batch]:
        """Begin a pass over the next epoch."""
        with self._lock:
            if self._asked:
                self._start_epoch(self._epoch + 1)
        return map(self.__getitem__, range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch `epoch`, to continue training after a restart.

        Raises:
            OptionError: `epoch` is not an integer of 0 or more.
        """
        whole_number("epoch", epoch)
        with self._lock:
            self._start_epoch(epoch)

    def on_epoch_begin(self) -> None:
        """Record that an epoch begins. Keras calls this."""
        with self._lock:
            self._at_edge = True

    def on_epoch_end(self) -> None:
        """Release what was read ahead; it is read again if the pass continues. Keras calls this."""
        with self._lock:
            self._at_edge = True
            self._end()

    def close(self) -> None:
        """Release what was read ahead. The dataset can be used again."""
        with self._lock:
            self._end()

    def __setattr__(self, name: str, value: Any) -> None:
        if (name == "workers" and value > 1) or (name == "use_multiprocessing" and value):
            msg = (
                f"{name}={value!r} would have Keras call this dataset from several threads or processes, each with an "
                "epoch count of its own. Leave it out: it reads ahead by itself, by to_keras(..., num_workers=…)."
            )
            raise OptionError(msg)
        super().__setattr__(name, value)

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._asked.clear()

    def _meant(self, number: int) -> tuple[int, int]:
        """Return the epoch and the batch that a request for batch `number` means.

        A pass is the next epoch, unless Keras has only looked at the first batches before it. A second request for a
        batch begins a pass. So does a request after the batches were counted, as Keras does when it begins a pass, if
        Keras has begun or ended an epoch since the request before, or if it does not continue that one.
        """
        done = len(self._asked)
        in_turn = number == done and max(self._asked, default=-1) == done - 1
        # The first number of a pass is random, and may by chance follow those that Keras looked at.
        if number in self._asked or (self._counted and (self._at_edge or not in_turn)):
            was_look = self._counted and done <= _LOOK_BATCHES and done < len(self)
            self._start_epoch(self._epoch + (not was_look))
        self._counted = self._at_edge = False
        turn = len(self._asked)
        self._asked.add(number)
        # Keras shuffles the numbers too, which would make reading ahead impossible.
        return self._epoch, turn if self._batches.shuffled else number

    def _take(self, epoch: int, number: int) -> Batch:
        is_next = self._coming == (epoch, number)
        if self._ahead is None or not is_next:
            self._end()
            if number and not is_next:
                # A request out of order: reading ahead would be in vain.
                self._coming = (epoch, number + 1)
                return self._batches.read(epoch, number)
            self._ahead = self._batches.ahead(epoch, number)
        self._coming = (epoch, number + 1)
        batch = next(self._ahead)
        # The thread has ended already; this frees its memory before validation begins.
        if number + 1 == len(self):
            self._end()
        return self._batches.finish(batch)

    def _end(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
