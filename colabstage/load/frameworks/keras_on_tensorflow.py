"""Serve batches to Keras on its TensorFlow backend: the `KerasBatches` that is a `tf.data.Dataset` as well. Importing
this imports keras and tensorflow.

`fit` takes any other `PyDataset` through a Python generator that TensorFlow calls for each batch. That costs half as
much again as gathering the batch, of the processor too. A `tf.data.Dataset` it takes as it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from colabstage.load.frameworks.keras_dataset import KerasBatches
from colabstage.load.frameworks.on_demand import LOOK_BATCHES
from colabstage.load.frameworks.tensorflow import begun_late, dataset_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Lock

    from numpy.typing import NDArray

    from colabstage.load.frameworks.arrays import ArrayBatches
    from colabstage.load.frameworks.on_demand import EpochTracker


class TensorflowBatches(KerasBatches, tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no type information
    """Give batches to `model.fit`, `evaluate` and `predict` as the `tf.data.Dataset` that `to_tf_data` makes, and by
    number as arrays.

    Each pass over the data is the next epoch, but for a look at its first batches.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        KerasBatches.__init__(self, batches)
        self._connect()

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass, of tensors."""
        passing: Iterator[Any] = tf.data.Dataset.__iter__(self)
        return passing

    @property
    def element_spec(self) -> Any:
        """Describe a batch, for TensorFlow."""
        return self._made.element_spec

    def _inputs(self) -> list[Any]:
        # TensorFlow asks a dataset of which others it is made.
        return [self._made]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: state[name] for name in self._own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._connect()

    def _connect(self) -> None:
        """Make the dataset of TensorFlow, which does not pickle."""
        self._own = tuple(self.__dict__)
        # What TensorFlow calls must not refer to this object, and with it to a file: it is kept for ever.
        tracker, lock = self._tracker, self._lock
        made = dataset_of(tf, self._batches, partial(_begin, tracker, lock))
        self._made = begun_late(_noted(made, len(self), partial(_note, tracker, lock)))
        tf.data.Dataset.__init__(self, self._made._variant_tensor)


def _begin(tracker: EpochTracker, lock: Lock) -> int:
    with lock:
        return tracker.begin_now()


def _note(tracker: EpochTracker, lock: Lock, number: NDArray[np.int64]) -> NDArray[np.int64]:
    with lock:
        tracker.note(int(number))
    return np.zeros_like(number)


def _noted(made: Any, total: int, note: Any) -> Any:
    """Have `note` called with the numbers of the first batches of each pass when they are taken: as many as tell a pass
    from a look. It returns 0."""
    noted = min(total, LOOK_BATCHES + 1)
    first = tf.data.Dataset.range(noted).map(
        lambda number: tf.ensure_shape(tf.numpy_function(note, [number], tf.int64), ())
    )
    # Behind everything that works ahead, by choosing for each batch among one dataset: a function that took the batch
    # together with its number and left the number out would run in threads, ahead of who takes them.
    choices = first.concatenate(tf.data.Dataset.range(1).repeat(total - noted))
    chosen = tf.data.Dataset.choose_from_datasets([made], choices, stop_on_empty_dataset=False)
    return chosen.apply(tf.data.experimental.assert_cardinality(total))
