"""`to_tf_data`: a split as a `tf.data.Dataset`.

TensorFlow's own threads make batches and prefetch them, and dropping an iterator releases everything. It gathers small
batches of rows that need no change by itself; for all others it calls the reader.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Unpack
from weakref import proxy

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.arguments import whole_number
from colabstage.io.boundary import public
from colabstage.io.packages import refuse_import, whole_imports
from colabstage.io.pipeline import ThreadPool
from colabstage.load.batch import LENGTHS
from colabstage.load.frameworks.arrays import MOST_AT_ONCE, ArrayBatches
from colabstage.load.plan import ArrayArguments, ArrayOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.h5.parts import Files
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.reading.reader import SplitReader

# Batches whose row numbers TensorFlow requests at once: enough to make the call cheap, few enough to notice soon if the
# file has been written to.
_ASKED_TOGETHER = 16
# TensorFlow gathers into fresh memory. With more than this at a time the system provides its pages anew, which takes
# longer than a call to the reader, whose memory is reused.
_GATHERED_BYTES = 4 * 1024 * 1024
# The epoch of an iterator that has not begun.
_NO_EPOCH = -1
# Alignment that TensorFlow may require of memory that it uses without a copy: a cache line.
_ALIGNMENT_BYTES = 64
# The largest item size that TensorFlow takes.
_WIDEST_BYTES = 8


@public(ArrayOptions)
def to_tf_data(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    epoch: int = 0,
    **arguments: Unpack[ArrayArguments],
) -> Any:
    """Make a `tf.data.Dataset` of batches, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> train = to_tf_data("data.h5", 64)  # doctest: +SKIP
    >>> train = train.map(augment, num_parallel_calls=tf.data.AUTOTUNE)  # doctest: +SKIP
    >>> model.fit(train, epochs=10)  # doctest: +SKIP

    An element is `(x, y)`, as `to_keras` gives them, with static shapes: the first axis is `batch_size`, or `None` if
    the last batch may have fewer samples. Each iterator is the next epoch, also within `repeat`. (Keras's `fit` uses
    one iterator to look at the data before it trains.)

    TensorFlow itself gathers batches of up to 4 MiB from a mapped file, which is read through now if most of it is not
    in memory. Needs tensorflow; torch only for a `dataset_h5`.

    Args:
        dataset, batch_size, split: as in `to_keras`.
        **arguments: those of `ArrayOptions`.
        epoch: epoch of the first iterator, to continue training after a restart.

    Returns:
        A `tf.data.Dataset` of known cardinality.

    Raises:
        MissingDependencyError: tensorflow is not installed. Other errors as `to_keras`.
    """
    try:
        with whole_imports():
            import tensorflow as tf
    except ImportError as error:
        refuse_import("tensorflow", "to_tf_data needs", error)
    whole_number("epoch", epoch)
    batches = ArrayBatches(dataset, batch_size, ArrayOptions(**arguments), split=split)
    # Returns the epoch of an iterator, when its first element is taken. TensorFlow keeps it for the life of the
    # process, so it must not refer to `batches`.
    next_epoch = count(epoch).__next__
    total, workers = len(batches), batches.plan.workers.value
    # Each batch that is read at once takes memory; more threads than this share the work of one batch. A dataset's
    # transforms are the caller's code, which is never called concurrently.
    read_at_once = 1 if batches.per_sample else min(workers, MOST_AT_ONCE, total)
    tables = batches.tables() if batches.batch_bytes <= _GATHERED_BYTES else None
    shared = None if tables is None else _shared(tf, tables[0])
    if tables is None or shared is None:
        made = _read(tf, batches, next_epoch, read_at_once)
    else:
        # On the CPU, where datasets run. Variables, because a dataset copies other tensors that it refers to.
        with tf.device("CPU:0"):
            variables = [tf.Variable(table, trainable=False) for table in (shared, *tables[1:])]
        made = _gathered(tf, batches, next_epoch, variables, read_at_once)
    # Iterators and derived datasets refer to this dataset, so the batches live as long as any of them.
    made.colabstage_batches = batches
    # `map` begins another batch whenever one is taken, so batches that are read at once count as prefetched. A longer
    # queue would hold memory that has left the processor's cache, and add a thread.
    beyond = batches.plan.prefetch.value - read_at_once
    made = made.prefetch(beyond) if beyond > 0 else made
    # TensorFlow prepares every function of a dataset for each iterator, which takes the time of a few batches, and
    # `fit` makes two for each epoch and uses one. `concatenate` begins its second part when the first has ended. An
    # explicit empty queue, because TensorFlow would otherwise append its own and prefetch more than was asked for.
    return made.take(0).concatenate(made).prefetch(0)


def _read(tf: Any, batches: ArrayBatches, next_epoch: Callable[[], int], read_at_once: int) -> Any:
    """Make a dataset whose threads call the reader once for each batch."""
    sample, size = batches.sample(), batches.plan.batch_size if batches.all_full else None
    flat: list[NDArray[Any]] = tf.nest.flatten(sample)
    # The structure of a batch, without the memory of this one.
    form, dtypes = tf.nest.map_structure(lambda _: None, sample), [part.dtype for part in flat]
    # Of boxes, the second axis is as long as the longest row of a batch.
    boxes = [part for part in sample if isinstance(part, dict) and LENGTHS in part]
    padded = {id(column) for part in boxes for column in part.values() if column.ndim > 1}
    shapes = [(size, *((None, *part.shape[2:]) if id(part) in padded else part.shape[1:])) for part in flat]
    total, threads = len(batches), batches.plan.workers.value // read_at_once
    # TensorFlow keeps every function for the life of the process; these must not keep a file open.
    alive = proxy(batches)

    def begin() -> NDArray[np.int64]:
        alive.reader.warm_up()
        return np.array(next_epoch(), np.int64)

    def read(epoch: NDArray[np.int64], number: NDArray[np.int64]) -> list[NDArray[Any]]:
        with ThreadPool(threads) as pool:
            return list(tf.nest.flatten(alive.read(int(epoch), int(number), pool)))

    def batch(epoch: Any, number: Any) -> Any:
        parts = tf.numpy_function(read, [epoch, number], dtypes)
        for part, shape in zip(parts, shapes, strict=True):
            part.set_shape(shape)
        return tf.nest.pack_sequence_as(form, parts)

    def numbers(_: Any) -> Any:
        epoch = tf.numpy_function(begin, [], tf.int64)
        epoch.set_shape(())
        # `repeat` instead of `map`, which would call a function for each batch.
        return tf.data.Dataset.zip(tf.data.Dataset.from_tensors(epoch).repeat(), tf.data.Dataset.range(total))

    # The epoch is counted where an iterator begins, not where the dataset is made.
    requests = tf.data.Dataset.range(1).flat_map(numbers).apply(tf.data.experimental.assert_cardinality(total))
    return requests.map(batch, num_parallel_calls=read_at_once, deterministic=True)


def _gathered(
    tf: Any, batches: ArrayBatches, next_epoch: Callable[[], int], tables: list[Any], read_at_once: int
) -> Any:
    """Make a dataset that gathers rows from `tables`, variables of inputs, targets and perhaps weights, in TensorFlow.

    One call to Python returns the row numbers of several batches, so that TensorFlow rarely waits for Python's lock.
    """
    total, size, alive = len(batches), batches.plan.batch_size, proxy(batches)

    def ask(epoch: NDArray[np.int64], block: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        alive.reader.check()
        if alive.per_sample:
            msg = "The dataset was given a transform after to_tf_data had looked at it. Call to_tf_data again."
            raise OptionError(msg)
        # The epoch is counted where an iterator begins, not where the dataset is made.
        current = next_epoch() if epoch == _NO_EPOCH else int(epoch)
        rows = alive.rows(current, int(block) * _ASKED_TOGETHER, _ASKED_TOGETHER)
        return np.array(current, np.int64), rows.astype(np.int64, copy=False)

    def request(epoch: Any, block: Any) -> Any:
        current, rows = tf.numpy_function(ask, [epoch, block], [tf.int64, tf.int64])
        current.set_shape(())
        rows.set_shape((None,))
        return current, rows

    def gather(rows: Any) -> Any:
        # `read_value`, because gathering from the variable itself would first copy all of it.
        return tuple(tf.gather(table.read_value(), rows) for table in tables)

    # `scan` keeps an epoch for each iterator, even with several at the same time.
    blocks = tf.data.Dataset.range(-(-total // _ASKED_TOGETHER)).scan(np.int64(_NO_EPOCH), request)
    # Several small batches at a time: the call costs more than the copy.
    together = min(_ASKED_TOGETHER, _GATHERED_BYTES // max(1, batches.batch_bytes))
    gathered = blocks.rebatch(size * together).map(gather, num_parallel_calls=read_at_once, deterministic=True)
    made = gathered.rebatch(size, drop_remainder=batches.all_full)
    return made.apply(tf.data.experimental.assert_cardinality(total))


def _shared(tf: Any, array: NDArray[Any]) -> Any:
    """Return a tensor that shares an array's memory; `None` if TensorFlow would copy it."""
    # In the scope of a distribution strategy, a variable is copied to each device.
    if tf.distribute.has_strategy():
        return None
    # TensorFlow aborts the process if memory is not aligned.
    if array.ctypes.data % _ALIGNMENT_BYTES or array.dtype.kind not in "iuf" or array.itemsize > _WIDEST_BYTES:
        return None
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
