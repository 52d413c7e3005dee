"""Make batches as numpy arrays, for frameworks beside torch: the rows and values of `make_loader`, without torch.

Every batch is a pure function of (epoch, number): who reads ahead, and in how many threads, is the caller's business.
`to_keras` makes a `keras.utils.PyDataset` of them, for every backend of Keras.
"""

from __future__ import annotations

import copy
import math
import os
import weakref
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES
from colabstage.io.arguments import takes
from colabstage.io.pipeline import SOLO
from colabstage.load.arrival import facts_of, order_of
from colabstage.load.choosing import choose_loader
from colabstage.load.epoch import RowOrder, Shard
from colabstage.load.plan import LoaderFacts, LoaderRequest
from colabstage.load.reading.memory import BufferPool
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import DTypeLike, NDArray

    from colabstage.h5.parts import Files
    from colabstage.io.pipeline import ThreadPool
    from colabstage.io.progress import Expectation
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.epoch import Order
    from colabstage.load.frameworks.keras_dataset import KerasBatches
    from colabstage.load.plan import LoaderPlan

    Source: TypeAlias = dataset_h5 | SplitReader | Files
    Batch = tuple[Any, Any]

# Batches that may be read at the same time, by tensorflow's threads or ours.
_MOST_AT_ONCE = 4
# Batches beside those of the plan: `fit` has TensorFlow keep some ahead by a queue of its own, and TensorFlow lets an
# array go only when it calls Python again. With room for fewer, 1 to 4 blocks in every epoch were given back and mapped
# again, page by page.
_HELD_BY_FRAMEWORKS = 3
# Targets of all rows are kept in memory up to this length, where a framework gathers them: labels of eight million.
_KEPT_TARGETS_BYTES = 64 * 1024 * 1024
# Whole range of the integers that images come in.
_WHITE = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """What the caller asked for; `to_keras` says more of each."""

    batch_size: int
    """Samples in a batch."""
    shuffle: bool = True
    """Whether they come in random order."""
    seed: int = 0
    """What that order depends on, together with the epoch."""
    drop_last: bool = False
    """Whether a last batch that is not full is left out."""
    dtype: DTypeLike | None = None
    """Of x, `None` as stored."""
    one_hot: int | Literal["auto"] | None = None
    """How many classes indices become numbers of."""
    num_workers: int | Literal["auto"] = "auto"
    """Threads that copy or decode at once."""
    prefetch_factor: int | Literal["auto"] = "auto"
    """Batches prepared ahead."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array of a batch."""

    shape: tuple[int | None, ...]
    """`None` along an axis that differs from batch to batch."""
    dtype: np.dtype[Any]
    """Of its values."""


class ArrayBatches:
    """Make the batches of every epoch. May be read from any thread, from several at once; pickles.

    Attributes:
        plan: how they are read, and why.
    """

    def __init__(self, source: Source, request: ArrayRequest, *, split: str | None = None) -> None:
        """Look at the file; all inputs are read into memory now where the plan says so.

        Args:
            source: a `dataset_h5`, a reader, or files as `dataset_h5` takes them.
            request: what is wanted.
            split: which one, where `source` is files; `"train"` by default.

        Raises:
            OptionError: an argument that cannot work, or the data has no arrays of one shape.
            SourceNotFoundError, PackFormatError, SplitNotFoundError: there is nothing to read.
        """
        self._dataset, reader = _resolved(source, split)
        check_count("seed", request.seed)
        if not len(reader):
            msg = f"The split '{reader.split}' of '{reader.path}' has no samples, so there is nothing to train on."
            raise OptionError(msg)
        if self._dataset is None:
            _check_arrays(reader)
        self._request = replace(
            request, one_hot=_class_count(request.one_hot, reader), dtype=_float_dtype(request.dtype)
        )
        facts = _loader_facts(reader, per_sample=self._dataset is not None)
        if facts.arrival is not None and facts.arrival.leaves_out and not facts.arrival.complete:
            msg = (
                'The number of batches is told beforehand here, and which samples on_error="skip" leaves out shows '
                "only as they arrive. Call data.wait() first."
            )
            raise OptionError(msg)
        self.plan: LoaderPlan = choose_loader(facts, _loading(request, arriving=facts.arrival is not None))
        if self.plan.strategy == "memory":
            reader = reader.into_memory()
            if self._dataset is not None:
                self._dataset = copy.copy(self._dataset)
                self._dataset.reader = reader
        self.reader = reader
        self._visits: Order = RowOrder(len(reader), request.shuffle, request.seed)
        if reader.arrival is not None and self.plan.order.name == "arrival":
            self._visits = order_of(reader.arrival, reader.split, self.plan.order.window_units, self._visits)
        self._told: tuple[int, Expectation, weakref.finalize[..., Any]] | None = None
        self._telling = Lock()
        self._pool = _pool_of(self.plan)
        self._order: tuple[int, NDArray[np.intp]] | None = None

    def __len__(self) -> int:
        """Count the batches in an epoch."""
        return self.plan.batches

    @property
    def shuffled(self) -> bool:
        """Tell whether samples come in a random order."""
        return self._request.shuffle

    def rows(self, epoch: int, number: int, count: int = 1) -> NDArray[np.intp]:
        """Return the rows that a batch has, or so many batches from there on have one after the other: those that
        `make_loader` gives them for the same seed, epoch and batch size."""
        order = self._order
        # One epoch's order is kept: requests come batch by batch.
        if order is None or order[0] != epoch:
            order = self._order = (epoch, self._visits.rows(epoch, Shard()))
        size = self._request.batch_size
        # A batch that is left out has no rows.
        return order[1][number * size : min(number + count, len(self)) * size]

    def tables(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return the inputs and the targets of all rows, for a framework that gathers batches out of them by itself.
        `None` where more than that is done, or targets are too long to be kept in memory. A mapped file is read through
        once, if most of it is not in memory.

        Raises:
            DamagedPackError: the file changed since it was opened, or is cut off.
        """
        reader, classes = self.reader, self._request.one_hot
        length = reader.target_bytes if classes is None else 4 * int(classes) * math.prod(reader.target_shape or ())
        if self._dataset is not None or self._request.dtype is not None or reader.in_place() is None:
            return None
        if length is None or length * len(reader) > _KEPT_TARGETS_BYTES:
            return None
        # Before the last look: a file that does not stay in memory is read row by row from then on.
        for _ in reader.warm_up():
            pass
        inputs, y = reader.in_place(), _target_arrays(reader.read_y(np.arange(len(reader))))
        if inputs is None:
            return None
        return inputs, y if classes is None else one_hot(y, int(classes))

    def read(self, epoch: int, number: int, pool: ThreadPool = SOLO) -> Batch:
        """Read a batch: `(x, y)`, the caller's own arrays.

        Raises:
            DecodeError: an encoded row is broken; the message names it.
            DamagedPackError: the file changed since it was opened, or is cut off.
        """
        return self.finish(self.read_ahead(epoch, number, pool))

    def read_ahead(self, epoch: int, number: int, pool: ThreadPool = SOLO) -> Any:
        """Make what of a batch can be made in any thread, for `finish`: all of it, where the dataset has no transforms.

        Raises:
            As `read`.
        """
        rows = self.rows(epoch, number)
        self._tell(epoch, number)
        if self._dataset is None:
            return self._finished(*self._stored(rows, pool), pool)
        return self.reader.read_x(rows, pool=pool), self.reader.read_y(rows, pool=pool)

    def _tell(self, epoch: int, number: int) -> None:
        """Say which rows of this epoch and the next are read from here on, where some of them have to come first."""
        arrival, size = self.reader.arrival, self._request.batch_size
        if arrival is None or arrival.complete:
            return
        with self._telling:
            if self._told is None or self._told[0] != epoch:
                if self._told is not None:
                    self._told[2]()
                rows, following = self._visits.rows(epoch, Shard()), partial(self._visits.rows, epoch + 1, Shard())
                told = arrival.expect(self.reader.split, rows, then=following)
                closes = weakref.finalize(self, told.close)
                closes.atexit = False
                self._told = epoch, told, closes
            # Some are read at once, so those just before may be under way.
            self._told[1].reached(size * max(0, number - _MOST_AT_ONCE))

    def finish(self, ahead: Any) -> Batch:
        """Make a batch of what `read_ahead` gave: calls the dataset's transforms, where it has any, in this thread."""
        if self._dataset is None:
            batch: Batch = ahead
            return batch
        return self._finished(*_sampled(self._dataset, *ahead), SOLO)

    @property
    def all_full(self) -> bool:
        """Tell whether every batch has as many samples as were asked for."""
        return len(self.reader) % self._request.batch_size == 0 or self._request.drop_last

    @property
    def per_sample(self) -> bool:
        """Tell whether Python of the caller's is called for each sample."""
        return self._dataset is not None

    def specs(self) -> tuple[Any, Any]:
        """Describe what a batch looks like: an `ArraySpec` for x and one for y, or where y is a dict a dict of them."""
        # One real row shows what no description could: what transforms make of it.
        rows = np.zeros(1, np.intp)
        if self._dataset is None:
            x, y = self._finished(*self._stored(rows, SOLO), SOLO)
        else:
            x, y = self._finished(*_sampled(self._dataset, self.reader.read_x(rows), self.reader.read_y(rows)), SOLO)
        count = self._request.batch_size if self.all_full else None
        if not isinstance(y, dict):
            return ArraySpec((count, *x.shape[1:]), x.dtype), ArraySpec((count, *y.shape[1:]), y.dtype)
        # The number of boxes, the second axis, is that of the row that has most.
        columns = {
            name: ArraySpec((count, *(None for _ in part.shape[1:2]), *part.shape[2:]), part.dtype)
            for name, part in y.items()
        }
        return ArraySpec((count, *x.shape[1:]), x.dtype), columns

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_order": None, "_told": None, "_telling": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=_pool_of(state["plan"]), _telling=Lock())

    def _finished(self, x: NDArray[Any], y: Any, pool: ThreadPool) -> Batch:
        if self._request.one_hot is not None:
            y = one_hot(y, int(self._request.one_hot))
        return self._scaled(x, pool), y

    def _stored(self, rows: NDArray[np.intp], pool: ThreadPool) -> Batch:
        shape = self.reader.row_shape or ()
        out = self._pool.borrow((len(rows), *shape), self.reader.row_dtype)
        y = self.reader.read_y(rows, pool=pool)
        return self.reader.read_x(rows, out, pool=pool), _target_arrays(y)

    def _scaled(self, x: NDArray[Any], pool: ThreadPool) -> NDArray[Any]:
        """Return x in the dtype asked for: the numbers that `make_loader` gives."""
        if self._request.dtype is None:
            return x
        wanted = np.dtype(self._request.dtype)
        # 65535 is beyond float16, so its range is divided first.
        wide = np.dtype(np.float32) if x.dtype == np.uint16 else wanted
        white = np.array(_WHITE.get(x.dtype, 1.0), wide)
        scaled = self._pool.borrow(x.shape, wanted)

        def scale(start: int, stop: int) -> None:
            np.divide(x[start:stop], white, out=scaled[start:stop], dtype=wide, casting="unsafe")

        pool.share(len(x), scale)
        return scaled


def _pool_of(plan: LoaderPlan) -> BufferPool:
    """Make the memory of batches: of one with the consumer, one in the making, those kept ahead, and those that
    frameworks hold."""
    return BufferPool(max_idle=plan.prefetch.value + 2 + _HELD_BY_FRAMEWORKS)


def _resolved(source: Source, split: str | None) -> tuple[Any, SplitReader]:
    """Return the dataset whose transforms must be called, if any, and the reader."""
    if isinstance(source, str | os.PathLike | list | tuple):
        return None, SplitReader(source, split or "train")
    if split is not None:
        msg = f"split={split!r} is for the path of a file; a {type(source).__name__} has its split already."
        raise OptionError(msg)
    if isinstance(source, SplitReader):
        return None, source
    # By what it has: asking for the class would import torch.
    dataset: Any = source
    reader = getattr(dataset, "reader", None)
    if not isinstance(reader, SplitReader):
        msg = (
            f"Got {type(source).__name__}; expected a dataset_h5 or the path of an HDF5 file. Of what stage_dataset "
            "returns pass one split, data['train']."
        )
        raise OptionError(msg)
    if dataset.return_index:
        msg = "The dataset has return_index=True, and training takes (x, y). Make it without."
        raise OptionError(msg)
    has_transforms = dataset.transform is not None or dataset.target_transform is not None
    return (dataset if has_transforms else None), reader


def _check_arrays(reader: SplitReader) -> None:
    """Refuse rows that no array takes."""
    if reader.row_shape is None and not reader.encoded:
        msg = (
            f"The inputs of '{reader.path}' are texts or have any length, and a batch here is one array. Give a "
            "dataset_h5 whose transform makes arrays of one shape of them."
        )
        raise OptionError(msg)
    if reader.row_shape is None:
        msg = (
            f"The images of '{reader.path}' have sizes of their own, and a batch here is one array. Pack them with "
            "image_size=(height, width), or give a dataset_h5 whose transform makes them one size."
        )
        raise OptionError(msg)
    if reader.has_free_targets:
        msg = (
            f"The targets of '{reader.path}' are texts or have any length, and a batch here is one array. Give a "
            "dataset_h5 whose target_transform makes numbers of them, for example their place in a list of classes."
        )
        raise OptionError(msg)


def _loader_facts(reader: SplitReader, *, per_sample: bool) -> LoaderFacts:
    resources = read_resources()
    return LoaderFacts(
        rows=len(reader),
        row_bytes=reader.estimate_row_bytes(),
        stored_bytes=reader.stored_bytes,
        engine=reader.engine,
        encoded=reader.encoded,
        per_sample=per_sample,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        arrival=None if reader.arrival is None else facts_of(reader.arrival),
    )


def _loading(request: ArrayRequest, *, arriving: bool) -> LoaderRequest:
    # 0, which elsewhere means no thread beside the loop's, is the least that there is here.
    return LoaderRequest(
        request.batch_size,
        drop_last=request.drop_last,
        num_workers=request.num_workers or 1,
        prefetch_factor=request.prefetch_factor,
        # Of what arrives by units, any order but one of units would wait for most of it.
        shuffle="auto" if arriving and request.shuffle else (request.shuffle or not arriving),
    )


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number, 0 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"{name}={value!r} cannot work; expected a whole number, 0 or more."
        raise OptionError(msg)


def _float_dtype(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind != "f":
        msg = f'dtype={dtype!r} cannot work; expected "float16", "float32", "float64", or None for values as stored.'
        raise OptionError(msg)
    return found


def _class_count(wanted: object, reader: SplitReader) -> int | None:
    # The file's own names, so that a class without samples counts as well.
    if wanted == "auto":
        if not reader.classes:
            msg = f"'{reader.path}' names no classes; give their number, for example one_hot=10."
            raise OptionError(msg)
        return len(reader.classes)
    if wanted is None:
        return None
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        msg = f'one_hot={wanted!r} cannot work; expected the number of classes, "auto" or None.'
        raise OptionError(msg)
    return wanted


def _target_arrays(y: Any) -> Any:
    """Return int64 where each target is one integer, as losses expect them; boxes padded; as stored otherwise."""
    if isinstance(y, list):
        return pad_boxes(y)
    return y.astype(np.int64) if y.ndim == 1 and y.dtype.kind in "iu" else y


def _sampled(dataset: dataset_h5, x: Any, y: Any) -> Batch:
    """Put what was read of some rows, sample by sample, through the dataset's transforms."""
    xs, ys = zip(*(dataset.sample(*parts) for parts in zip(x, y, strict=True)), strict=True)
    is_boxes = all(isinstance(target, dict) and BOXES in target for target in ys)
    return _stacked("transform", xs), pad_boxes(list(ys)) if is_boxes else _stacked("target_transform", ys)


def _stacked(name: str, values: tuple[Any, ...]) -> NDArray[Any]:
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    # np.stack would say so too, but not whose function to change.
    if len(shapes) > 1 or arrays[0].dtype == object:
        found = "things that are not arrays" if arrays[0].dtype == object else f"shapes {sorted(shapes)[:3]}"
        msg = f"A batch here is one array, but its samples are {found}. Have {name} make arrays of one shape."
        raise OptionError(msg)
    return np.stack(arrays)


def pad_boxes(targets: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Pad boxes of B rows, of M at most, to arrays of one shape.

    Returns:
        Every column as `(B, M, …)`, filled up with 0 for boxes, other floats and bytes and with -1 for other integers,
        and `lengths`, int64 `(B,)`: how many of each row are real.
    """
    lengths = np.array([len(target[BOXES]) for target in targets], np.int64)
    most = int(lengths.max(initial=0))
    padded: dict[str, NDArray[Any]] = {}
    for name, first in targets[0].items():
        # -1 is not a class; a byte cannot hold it.
        filler = -1 if first.dtype.kind in "iu" and first.dtype != np.uint8 else 0
        padded[name] = np.full((len(targets), most, *first.shape[1:]), filler, first.dtype)
        for row, target in enumerate(targets):
            padded[name][row, : lengths[row]] = target[name]
    return {**padded, "lengths": lengths}


# What users of Keras's own loaders try, and the line that does what they mean.
KERAS_REMEDIES = {
    "class_mode": 'Write one_hot="auto" for categorical labels, and leave it out for integers.',
    "label_mode": 'Write one_hot="auto" for categorical labels, and leave it out for integers.',
    "rescale": 'Write dtype="float32" for numbers from 0 to 1, or keras.layers.Rescaling(1 / 255) in the model.',
    "use_multiprocessing": "Leave it out: threads of this process read ahead.",
    **dict.fromkeys(
        ("augment", "preprocessing_function", "transform", "transforms"),
        "Write layers into the model (keras.layers.RandomFlip and others), or a function of one sample: "
        "dataset_h5(path, transform=…).",
    ),
}


def one_hot(y: Any, classes: int) -> NDArray[np.float32]:
    """Turn class indices into one number a class, along a new last axis.

    Args:
        y: integers `(B, …)`; where each target is one integer, `(B,)`, `(B, 1, 1)` and the like, `(B,)` is taken.
        classes: K. -1, and indices of pixels outside, such as 255 for those of no class, are 0 everywhere.

    Returns:
        float32 `(B, K)` or `(B, …, K)`.

    Raises:
        OptionError: y are not integers; or a sample's own one is K or more.
    """
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iub":
        kind = y.dtype if isinstance(y, np.ndarray) else "boxes"
        msg = f"one_hot={classes} needs class indices as targets, and these are {kind}. Leave it out."
        raise OptionError(msg)
    indices = y.reshape(len(y)) if y.size == len(y) else y
    # Zeros would be a sample whose loss is 0, whatever the model says.
    if indices.ndim == 1 and (highest := int(indices.max(initial=0))) >= classes:
        msg = f"one_hot={classes} is too small for a sample of class {highest}. Write one_hot={highest + 1}, or more."
        raise OptionError(msg)
    # One row more, of zeros, for what is outside.
    table = np.eye(classes + 1, classes, dtype=np.float32)
    wide = indices.astype(np.int64)
    return np.take(table, np.where((wide >= 0) & (wide < classes), wide, classes), axis=0)


@takes(
    renamed={"prefetch": "prefetch_factor"},
    remedies={**KERAS_REMEDIES, "batch_size": 'Write to_keras(data["train"], 64); training depends on it.'},
)
def to_keras(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    dtype: DTypeLike | None = None,
    one_hot: int | Literal["auto"] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    prefetch_factor: int | Literal["auto"] = "auto",
) -> KerasBatches:
    """Make batches for Keras, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> train = to_keras("data.h5", 64, one_hot="auto")  # doctest: +SKIP
    >>> model.fit(train, validation_data=to_keras("data.h5", 64, split="dev", shuffle=False))  # doctest: +SKIP

    A batch is `(x, y)` of numpy arrays:

    - `x`: `(B, H, W, C)`, of the stored dtype (uint8), which `keras.layers.Rescaling(1 / 255)` as a model's first
      layer turns into [0, 1] on its device; or of `dtype`.
    - `y`: int64 `(B,)` where targets are integers, otherwise as stored; masks uint8 `(B, H, W)`. Boxes are a dict of
      padded arrays: `boxes` `(B, M, 4)`, `labels` `(B, M)` filled up with -1, and so on, with `lengths` `(B,)`.

    Needs keras and one of its backends; torch only if that is the backend.

    Args:
        dataset: a `dataset_h5`; or, without torch, what a `dataset_h5` is made of: the path of a file, a pattern, a
            list. The dataset's transforms, where it has any, are called sample by sample in the background thread,
            and make arrays of one shape.
        batch_size: samples in a batch; the last one of an epoch may have fewer.
        split: which one, where `dataset` is files: `"train"` by default.
        shuffle: visit the samples in a random order, another one each epoch. Without it, `fit(shuffle=True)`, which is
            Keras's default, still gives the batches in random order, except on TensorFlow's backend.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        dtype: floating-point dtype of x; uint8 and uint16 become [0, 1].
        one_hot: turn class indices into one number a class, along a last axis: how many classes, or `"auto"` for as
            many as the file names.
        num_workers: threads that copy or decode at once. They are threads of this process, not processes.
        prefetch_factor: batches prepared ahead.

    Returns:
        A `PyDataset` that reads ahead by itself; it refuses Keras's own workers, which would only copy batches around.
        On TensorFlow's backend it is a `tf.data.Dataset` as well, so `fit` takes it without a call of Python for each
        batch, and a loop over it gives tensors.

    Raises:
        MissingDependencyError: keras, or its backend, is not installed.
        OptionError: an argument that cannot work, or the data has no arrays of one shape.
        SourceNotFoundError, PackFormatError, SplitNotFoundError: there is nothing to read.
    """
    request = ArrayRequest(batch_size, shuffle, seed, drop_last, dtype, one_hot, num_workers, prefetch_factor)
    # First, because a wrong argument should not take as long to hear of as keras takes to import.
    batches = ArrayBatches(dataset, request, split=split)
    from colabstage.load.frameworks.keras_dataset import serve

    return serve(batches)
