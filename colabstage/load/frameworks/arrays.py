"""Batches as numpy arrays for frameworks other than torch, with the rows and values of `make_loader`; `to_keras`.

Every batch is a pure function of (epoch, number); the caller decides how to read ahead, and in how many threads.
"""

from __future__ import annotations

import math
import os
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack

import numpy as np

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES
from colabstage.images.geometry import VOID
from colabstage.io.arguments import ONE_SPLIT, refuse_argument, whole_number
from colabstage.io.boundary import public
from colabstage.io.packages import whole_imports
from colabstage.io.pipeline import SOLO, ThreadPool
from colabstage.io.progress import Cancellation, Demand
from colabstage.io.report import Report, Shown
from colabstage.load.ahead import Ahead, Iterated, Iteration, Steps
from colabstage.load.batch import Batcher, pad_boxes, target_array, white_of
from colabstage.load.choosing import choose_loader, gather_facts
from colabstage.load.epoch import Order, RowOrder, choose_seed, chosen_order
from colabstage.load.partial import order_of
from colabstage.load.plan import ArrayArguments, ArrayOptions, LoaderOptions, LoaderPlan
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from colabstage.h5.arrival import Expectation
    from colabstage.h5.parts import Files
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.frameworks.keras_dataset import KerasBatches

    Source: TypeAlias = dataset_h5 | SplitReader | Files
    # x and y, and the sample weights if there are any.
    Batch = tuple[Any, ...]


# How many batches TensorFlow's threads may read at the same time.
MOST_AT_ONCE = 4
# Batches in addition to the plan's: `fit` makes TensorFlow keep some in its own queue, and TensorFlow releases an array
# only when it next calls Python. With fewer, 1 to 4 blocks were unmapped and mapped again in every epoch.
_HELD_BY_FRAMEWORKS = 3
# The most bytes of targets of all rows to hold in memory if a framework gathers them: eight million int64 labels.
_KEPT_TARGETS_BYTES = 64 * 1024 * 1024
_SEEDS = 2**31


class _Stored(NamedTuple):
    """Rows as they are stored, for transforms that are called later."""

    x: Any
    y: Any
    rows: NDArray[np.intp]


class ArrayBatches:
    """Make the batches of every epoch. Safe in threads.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(
        self, source: Source, batch_size: int, options: ArrayOptions | None = None, *, split: str | None = None
    ) -> None:
        """Open the `source`, a `dataset_h5`, a reader, or files (and their `split`); if the plan says so, read all
        inputs into memory now."""
        options = options or ArrayOptions()
        self._dataset, reader = _resolved(source, split)
        if not self.per_sample:
            _check_arrays(reader)
        # As in `make_loader`: what `predict` returns for a held-out split is compared with labels in the file's order.
        self.shuffled = reader.split == "train" if options.shuffle is None else options.shuffle
        self._one_hot, self._dtype = _class_count(options.one_hot, reader), _float_dtype(options.dtype)
        layout = reader.layout
        # Keras's own seeding function seeds numpy's generator.
        self._seed = choose_seed(options.seed, lambda: np.random.randint(_SEEDS), fixed=layout is not None)  # noqa: NPY002
        chosen: RowOrder | None = None
        if options.rows is not None:
            shuffle = options.shuffle if reader.split == "train" else self.shuffled
            chosen = chosen_order("rows=", options.rows, len(reader), shuffle=shuffle)
        self._chosen = chosen
        self._visits: Order = chosen or RowOrder(len(reader), self.shuffled)
        self._weights = _weights_of(options.sample_weight, len(reader))
        loading = LoaderOptions(
            drop_last=options.drop_last,
            # 0 means no thread in addition to the loop's, as in `make_loader`; here the smallest number is 1.
            num_workers=options.num_workers or 1,
            prefetch_factor=options.prefetch_factor,
            # If rows arrive in units, any order other than by units would wait for most of them.
            shuffle="auto" if layout is not None and self.shuffled else self.shuffled,
        )
        facts = replace(gather_facts(reader, layout), per_sample=self.per_sample, epoch_rows=self._visits.count)
        # Each batch is read by itself.
        self.plan: LoaderPlan = replace(choose_loader(facts, batch_size, loading), together=1)
        self.reader = reader = reader.into_memory() if self.plan.strategy == "memory" else reader
        self.all_full = options.drop_last or self._visits.count % batch_size == 0
        if layout is not None and self.plan.order.name == "arrival":
            self._visits = order_of(layout, reader.split, None if chosen is None else chosen.chosen)
        self._announced: tuple[int, Expectation, weakref.finalize[..., Any]] | None = None
        self._announcing = Lock()
        self._batcher = _batcher_of(reader, self.plan)
        self._order: tuple[int, NDArray[np.intp]] | None = None

    def __len__(self) -> int:
        return self.plan.batches

    @property
    def batch_bytes(self) -> int:
        """Return the bytes of the inputs of a full batch, as they are read."""
        return min(self.plan.batch_size, self._visits.count) * self.reader.row_bytes

    def rows(self, epoch: int, number: int, count: int = 1) -> NDArray[np.intp]:
        """Return the rows of `count` batches, beginning with batch `number`, as `make_loader` orders them."""
        order = self._order
        # The order of one epoch is kept, because requests come batch by batch.
        if order is None or order[0] != epoch:
            order = self._order = (epoch, self._visits.rows(self._seed, epoch))
        size = self.plan.batch_size
        # Cut at the last batch, because `drop_last` may leave rows over.
        return order[1][number * size : min(number + count, len(self)) * size]

    def tables(self) -> tuple[NDArray[Any], ...] | None:
        """Return inputs, targets and weights, if any, of all rows, for a framework that gathers batches from them
        itself; `None` if rows need more than gathering, or targets are too large for memory."""
        reader, classes = self.reader, self._one_hot
        length = reader.target_bytes if classes is None else 4 * classes * math.prod(reader.target_shape or ())
        if self.per_sample or self._dtype is not None or reader.in_place() is None:
            return None
        if length is None or length * len(reader) > _KEPT_TARGETS_BYTES:
            return None
        # Comes first, because a file that does not stay in memory is read row by row from then on.
        reader.warm_up()
        inputs, y = reader.in_place(), target_array(np.asarray(reader.read_y(np.arange(len(reader)))))
        if inputs is None:
            return None
        y = y if classes is None else one_hot(y, classes)
        return (inputs, y) if self._weights is None else (inputs, y, self._weights)

    def read(self, epoch: int, number: int, pool: ThreadPool = SOLO) -> Batch:
        """Read a batch `(x, y)` of arrays that the caller may change."""
        return self.finish(self.read_ahead(epoch, number, pool))

    def ahead(self, epoch: int, first: int) -> Ahead[Any]:
        """Read the batches of an epoch from `first` on in a thread, for `finish`."""
        demand = Demand(self.reader.paths)
        source = self._stream(epoch, first, demand)
        return Ahead(source, self.plan.prefetch.value, "colabstage-ahead", demand)

    def _stream(self, epoch: int, first: int, cancellation: Cancellation) -> Generator[Any]:
        self.reader.warm_up(cancellation)
        with ThreadPool(self.plan.workers.value, cancellation) as pool:
            # Not a loop: its variable would keep a batch alive while the next one is made.
            yield from (self.read_ahead(epoch, number, pool) for number in range(first, len(self)))

    def read_ahead(self, epoch: int, number: int, pool: ThreadPool = SOLO) -> Any:
        """Read what `finish` makes a batch of, in any thread."""
        rows = self.rows(epoch, number)
        self._announce(epoch, number)
        return self._read(rows, pool)

    def _read(self, rows: NDArray[np.intp], pool: ThreadPool) -> Any:
        x, y = self._batcher.read(rows, pool)
        if self.per_sample:
            return _Stored(x, y, rows)
        return self._finished(x, pad_boxes(y) if isinstance(y, list) else target_array(y), rows, pool)

    def _announce(self, epoch: int, number: int) -> None:
        """Announce the rows that this epoch and the next will read from here on, if some have still to arrive."""
        arrival, size = self.reader.arrival, self.plan.batch_size
        if arrival is None or arrival.complete:
            return
        with self._announcing:
            if self._announced is None or self._announced[0] != epoch:
                if self._announced is not None:
                    self._announced[2]()
                visits, seed = self._visits.rows, self._seed
                expectation = arrival.expect(
                    self.reader.split, visits(seed, epoch), then=partial(visits, seed, epoch + 1)
                )
                closes = weakref.finalize(self, expectation.close)
                closes.atexit = False
                self._announced = epoch, expectation, closes
            # Several batches are read at once, so those just before this one may still be in progress.
            self._announced[1].reached(size * max(0, number - MOST_AT_ONCE))

    def finish(self, ahead: Any) -> Batch:
        """Make a batch of what `read_ahead` returned; the dataset's transforms are called in this thread."""
        if not isinstance(ahead, _Stored):
            batch: Batch = ahead
            return batch
        # A dataset with transforms needs torch.
        from colabstage.load.batches import stacked_arrays

        xs, ys = map(list, zip(*self._dataset.samples_of(*ahead), strict=True))
        is_boxes = all(isinstance(target, dict) and BOXES in target for target in ys)
        y = pad_boxes(ys) if is_boxes else stacked_arrays("target_transform", ys)
        return self._labelled(stacked_arrays("transform", xs, self._dtype), y, ahead.rows)

    def filenames(self) -> list[str]:
        """Read the names of the files that the visited samples were made from, in the order without shuffling."""
        return self.reader.keys(None if self._chosen is None else self._chosen.chosen)

    @property
    def per_sample(self) -> bool:
        """Return whether the caller's Python code is called for each sample."""
        return self._dataset is not None and self._dataset.per_sample

    def sample(self) -> Batch:
        """Read a batch of one real row, because only that shows what transforms return."""
        return self.finish(self._read(np.zeros(1, np.intp), SOLO))

    def _finished(self, x: NDArray[Any], y: Any, rows: NDArray[np.intp], pool: ThreadPool) -> Batch:
        """Return the batch of these inputs and targets: x in the requested dtype, with the values of `make_loader`."""
        if (wanted := self._dtype) is not None:
            # float16 cannot hold 65535, so uint16 is divided as float32 first.
            wide = np.dtype(np.float32) if x.dtype == np.uint16 else wanted
            white, stored = np.array(white_of(x.dtype), wide), x
            x = self._batcher.borrow(stored.shape, wanted)

            def scale(start: int, stop: int) -> None:
                np.divide(stored[start:stop], white, out=x[start:stop], dtype=wide, casting="unsafe")

            pool.share(len(x), scale)
        return self._labelled(x, y, rows)

    def _labelled(self, x: Any, y: Any, rows: NDArray[np.intp]) -> Batch:
        y = y if self._one_hot is None else one_hot(y, self._one_hot)
        return (x, y) if self._weights is None else (x, y, self._weights[rows])


def _batcher_of(reader: SplitReader, plan: LoaderPlan) -> Batcher:
    # Blocks for the batches ahead, one that the consumer has, one in progress, and those that frameworks hold.
    return Batcher(reader, workers=plan.workers.value, idle=plan.prefetch.value + 2 + _HELD_BY_FRAMEWORKS)


def _resolved(source: Source, split: str | None) -> tuple[Any, SplitReader]:
    """Return the dataset whose transforms are called, if it has any, and the reader; `None` and the reader of files."""
    if isinstance(source, str | os.PathLike | list | tuple):
        opened = SplitReader(source, split or "train")
        opened.warn(stacklevel=6)
        return None, opened
    if split is not None:
        msg = f"split={split!r} is for the path of a file; a {type(source).__name__} has its split already."
        raise OptionError(msg)
    if isinstance(source, SplitReader):
        return None, source
    # Recognised by its attribute, because the class would import torch.
    dataset: Any = source
    reader = getattr(dataset, "reader", None)
    if not isinstance(reader, SplitReader):
        remedy = f"{ONE_SPLIT} Of a Subset pass subset.dataset, and rows=subset.indices."
        refuse_argument("dataset", source, "a dataset_h5 or the path of an HDF5 file", remedy=remedy)
    if dataset.return_index:
        msg = "The dataset has return_index=True, and training takes (x, y). Make it without."
        raise OptionError(msg)
    return dataset, reader


def _check_arrays(reader: SplitReader) -> None:
    if reader.row_shape is None or reader.has_free_targets:
        side, name = ("inputs", "transform") if reader.row_shape is None else ("targets", "target_transform")
        msg = (
            f"The {side} of '{reader.path}' are texts or have shapes of their own, and a batch here is one array. Give "
            f"a dataset_h5 whose {name} makes arrays of one shape of them; or pack images with image_size=…."
        )
        raise OptionError(msg)


def _float_dtype(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    # Which one numpy raises depends on the text.
    with suppress(TypeError, ValueError, SyntaxError):
        if (found := np.dtype(dtype)).kind == "f":
            return found
    msg = f'dtype={dtype!r} cannot work; expected "float16", "float32", "float64", or None for values as stored.'
    raise OptionError(msg)


def _class_count(wanted: object, reader: SplitReader) -> int | None:
    # By the names in the file, so that a class without samples counts too.
    if wanted == "auto":
        if not reader.classes:
            msg = f"'{reader.path}' names no classes; give their number, for example one_hot=10."
            raise OptionError(msg)
        return len(reader.classes)
    if wanted is None:
        return None
    return whole_number("one_hot", wanted, least=1, otherwise=', the number of classes, or "auto"')


def _weights_of(weights: ArrayLike | None, samples: int) -> NDArray[np.float32] | None:
    if weights is None:
        return None
    found = np.asarray(weights)
    if found.shape != (samples,) or found.dtype.kind not in "iufb":
        msg = (
            f"sample_weight has shape {found.shape} and dtype {found.dtype}; expected {samples:,} numbers, one for "
            "each sample of the split."
        )
        raise OptionError(msg)
    return found.astype(np.float32)


def one_hot(y: Any, classes: int) -> NDArray[np.float32]:
    """Turn class indices, integers `(B, …)`, into one-hot vectors along a new last axis; `(B, 1, 1)` and the like count
    as `(B,)`. -1, and the 255 of pixels without a class, become zeros; no other index may be `classes` or more."""
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iub":
        kind = y.dtype if isinstance(y, np.ndarray) else f"a {type(y).__name__}"
        msg = f"one_hot={classes} needs class indices as targets, and these are {kind}. Leave it out."
        raise OptionError(msg)
    indices = y.reshape(len(y)) if y.size == len(y) else y
    # With zeros the sample's loss would be 0, whatever the model predicts.
    known = indices if indices.ndim == 1 else indices[indices != VOID]
    if (highest := int(known.max(initial=0))) >= classes:
        msg = f"one_hot={classes} is too small for a sample of class {highest}. Write one_hot={highest + 1}, or more."
        raise OptionError(msg)
    # The last row, of zeros, is for indices that are not classes.
    table = np.eye(classes + 1, classes, dtype=np.float32)
    wide = indices.astype(np.int64)
    return np.take(table, np.where((wide >= 0) & (wide < classes), wide, classes), axis=0)


@public(ArrayOptions)
def to_keras(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    **arguments: Unpack[ArrayArguments],
) -> KerasBatches:
    """Make batches for Keras, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> train = to_keras("data.h5", 64, one_hot="auto")  # doctest: +SKIP
    >>> model.fit(train, validation_data=to_keras("data.h5", 64, split="dev"))  # doctest: +SKIP

    A batch is `(x, y)` of numpy arrays:

    - `x`: `(B, H, W, C)`, of the stored dtype (uint8), which `keras.layers.Rescaling(1 / 255)` as a model's first
      layer scales to [0, 1] on its device; or of `dtype`.
    - `y`: int64 if a target is one integer, `(B,)`, or `(B, 1)` of targets `(N, 1)`; otherwise as stored; masks uint8
      `(B, H, W)`. Boxes are a dict of padded arrays: `boxes` `(B, M, 4)`, `labels` `(B, M)` padded with -1, and so on,
      with `lengths` `(B,)`.

    Needs keras and one of its backends; torch only if that is the backend.

    Args:
        dataset: a `dataset_h5`; or, without torch, the path of a file, a pattern or a list of files. The dataset's
            transforms are called sample by sample, and must return arrays of one shape; or dicts, tuples or lists of
            these, for models with several inputs or outputs.
        batch_size: samples in a batch; the last one of an epoch may have fewer.
        **arguments: those of `ArrayOptions`.
        split: which split, if `dataset` is files; `"train"` by default.

    Returns:
        A `PyDataset` that reads ahead; it refuses Keras's own workers, which would only copy batches. On TensorFlow's
        backend `to_tf_data` is faster: `fit` takes it without a call to Python for each batch.

    Raises:
        MissingDependencyError: keras, or its backend, is not installed.
        OptionError: an argument is invalid, or samples are not arrays of one shape.
        SourceNotFoundError, PackFormatError, SplitNotFoundError: the file or the split cannot be read.
    """
    # First, so that a wrong argument is reported without waiting for the import of keras.
    batches = ArrayBatches(dataset, batch_size, ArrayOptions(**arguments), split=split)
    with whole_imports():
        from colabstage.load.frameworks.keras_dataset import KerasBatches

    return KerasBatches(batches)


# `to_numpy`: a split as batches of numpy arrays, for JAX and for loops of any kind, without torch.


class NumpyLoader(Shown, Iterated):
    """Iterate over batches of numpy arrays, read ahead by a thread; each iteration is the next epoch. Made by
    `to_numpy`.

    Attributes:
        plan: how batches are read, and why.
    """

    def __init__(self, batches: ArrayBatches) -> None:
        self.plan: LoaderPlan = batches.plan
        self._batches, self._epoch = batches, 0

    def shown(self) -> Report:
        return self.plan.shown("NumpyLoader")

    def __len__(self) -> int:
        """Count the batches in an epoch."""
        return len(self._batches)

    def __iter__(self) -> Iteration[Batch]:
        """Begin the next epoch."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._begun(Iteration(Steps(self._batches.ahead(epoch, 0), lambda one: (one,), self._batches.finish)))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, to continue training after a restart.

        Raises:
            OptionError: `epoch` is not an integer of 0 or more.
        """
        self._epoch = whole_number("epoch", epoch)


@public(ArrayOptions)
def to_numpy(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    **arguments: Unpack[ArrayArguments],
) -> NumpyLoader:
    """Make batches of numpy arrays, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> for x, y in to_numpy("data.h5", 64, dtype="float32"):  # doctest: +SKIP
    ...     state = train_step(state, x, y)  # a function that `jax.jit` has compiled, say

    A batch is `(x, y)` as `to_keras` gives it: x `(B, H, W, C)`, y int64 `(B,)` for classes. You may keep and change
    it.

    Needs only numpy and h5py.

    Args:
        dataset, batch_size, split: as in `to_keras`.
        **arguments: those of `ArrayOptions`.

    Returns:
        An iterable with `len`, `set_epoch` and `close`; each iteration is the next epoch. Raises as `to_keras`.
    """
    return NumpyLoader(ArrayBatches(dataset, batch_size, ArrayOptions(**arguments), split=split))
