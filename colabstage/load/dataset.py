"""`dataset_h5`: one split of an HDF5 file as a `torch.utils.data.Dataset`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import OptionError, PackFormatError
from colabstage.h5.info import NamedFields
from colabstage.io.arguments import check_argument, refuse_argument
from colabstage.io.boundary import public
from colabstage.io.packages import refuse_import
from colabstage.io.pipeline import ThreadPool
from colabstage.io.report import Report, Shown, facts
from colabstage.io.units import format_bytes
from colabstage.load.reading.reader import SplitReader

try:
    from torch.utils.data import Dataset
except ImportError as error:
    refuse_import("torch", "dataset_h5 and make_loader need", error)

from colabstage.load.calling import call_theirs, check_moves, image_for

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Arrival
    from colabstage.h5.parts import Files
    from colabstage.load.plan import Choice
    from colabstage.load.reading.fields import Indices, TargetBatch

    _Base = Dataset[Any]
else:
    _Base = Dataset


class _NoNamesError(PackFormatError, AttributeError):
    """The file has no sample names. An `AttributeError`, because libraries look for attributes by `hasattr`."""


class dataset_h5(Shown, _Base):  # noqa: N801 - the name that people know from the recipe
    """One split of an HDF5 file with `X_<split>` and `Y_<split>`: a pack, or a file from another program. Each process
    opens the file for itself, so the dataset works in a `DataLoader` with any number of workers, and can be pickled.

    >>> train = dataset_h5("data.h5")  # doctest: +SKIP
    >>> x, y = train[0]  # doctest: +SKIP

    It also has torchvision's attributes `targets`, `classes`, `class_to_idx` and `samples`, and `filenames`.

    Attributes:
        transform: called with each x, `(H, W, C)` as stored, uint8 for images; with a PIL image if it is torchvision's
            and begins with a transform that takes no arrays. `target_transform` is called with each y.
        return_index: whether samples are `((x, y), index)`.
        reader: the `SplitReader` that reads the rows, which needs no torch.
    """

    @public(reads=("in_file", "local_dir"))
    def __init__(
        self,
        in_file: Files,
        transform: Callable[[Any], Any] | None = None,
        *,
        split: str = "train",
        target_transform: Callable[[Any], Any] | None = None,
        return_index: bool = False,
        in_memory: bool = False,
        x: str | None = None,
        y: str | None = None,
        arrival: Arrival | None = None,
        disk_limit: int | str | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        allow_external: bool = False,
    ) -> None:
        """Open the file; no sample is read, except with `in_memory`.

        Args:
            in_file: the HDF5 file; or several that are read as one, in the order of shards, appended samples last: a
                list, or a pattern such as `"data-*.h5"`.
            transform: called with each x, an array `(H, W, C)` as stored, or a PIL image for a transform of torchvision
                that takes those, such as `Compose([RandomResizedCrop(224), ToTensor()])`; its result replaces x.
            split: which split: `"train"` reads `X_train` and `Y_train`.
            target_transform: called with each y.
            return_index: return `((x, y), index)` instead of `(x, y)`.
            in_memory: read all inputs into memory now; refused if they do not fit.
            arrival: provides the rows of a file that is not yet complete; `stage_dataset` passes it.
            x, y: the names of inputs and targets in a file with names of its own, such as `x="images"`, `y="labels"`,
                or `y="labels.h5/y"` for targets in another file in the same folder; without `y` there are no targets.
                The split is then called `split`.
            disk_limit: maximum size on the local disk, in bytes or as text such as `"20GB"`. `in_file` is then the path
                or the http(s) or bucket address of a file that colabstage packed, or of several: a list, a pattern of
                paths, or `"s3://bucket/data-*-of-00008.h5"` for all shards of a set; or the share link of a folder on
                Google Drive with one pack. Datasets of the same files, and processes, share one partial copy, under the
                most recent limit.
            local_dir: the folder of that copy on the local disk; by default in the platform's fast folder.
            allow_external: also read values in other files: HDF5 files can lead anywhere, by links, virtual datasets
                and external storage. Only for files that you trust.

        Raises:
            OptionError: `y` without `x`.
            SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read; several
                differ (the message says in what), or shards are missing.
            ExternalFileError: values are in another file, and `allow_external` is not set.
            SplitNotFoundError: it has no such split; the message lists those it has.
            NotEnoughSpaceError: with `in_memory`, when the inputs do not fit.
        """
        check_argument("split", split, "text")
        for name, called in (("transform", transform), ("target_transform", target_transform)):
            if called is not None:
                check_argument(name, called, "function", remedy=f"A split is given by name: split={called!r}.")
        if x is None and y is not None:
            msg = f"y={y!r} without x; expected both names, such as dataset_h5(path, x='images', y='labels')."
            raise OptionError(msg)
        fields = None if x is None else NamedFields(split, x, y)
        if disk_limit is not None:
            from colabstage.load.partial import open_partial

            pack = open_partial(in_file, disk_limit, local_dir=local_dir)
            in_file, arrival = pack.paths, pack
        # Torch is imported anyway.
        self.reader = SplitReader(
            in_file, split, arrival=arrival, fields=fields, resizer="torch", allow_external=allow_external
        )
        if in_memory:
            self.reader = self.reader.into_memory()
        self.transform = transform
        self.target_transform = target_transform
        self.return_index = return_index
        check_moves("transform", transform, self.reader, alone=target_transform is None)
        self.reader.warn(stacklevel=4)

    @property
    def split(self) -> str:
        """Return the split's name."""
        return self.reader.split

    @property
    def classes(self) -> tuple[str, ...]:
        """Return class names in label order; empty when the file has none."""
        return self.reader.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Return the label of each class name, as torchvision's datasets do; empty when the file has no names."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> Any:
        """Read the targets of all samples, as stored, without `target_transform`: `(N,)` where they are numbers, -1
        where there are none; a list of N where each has its own shape.

        Read again each time, so keep it. `torch.as_tensor`, `numpy.bincount` and `Counter` take it.
        """
        return self.reader.read_y(np.arange(len(self)))

    @property
    def filenames(self) -> list[str]:
        """Read the name of the file that each sample was made from, in the order of rows; its name in the source, not a
        path on this machine.

        Raises:
            PackFormatError: the file, which another program wrote, keeps no names.
        """
        try:
            return self.reader.keys()
        except PackFormatError as error:
            raise _NoNamesError(str(error)) from error

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """Read `filenames` and `targets` together: `(name, target)`, as torchvision's datasets have them."""
        found = self.targets
        # Lists of masks would take many times the memory of the arrays.
        whole = isinstance(found, np.ndarray) and found.ndim == 1
        return list(zip(self.filenames, found.tolist() if whole else found, strict=True))

    @property
    def figures(self) -> dict[str, int]:
        """Return what `disk_limit` has moved, in bytes: `fetched` and `evicted` since the file was opened, `kept` from
        before, local now (`here`) and used on the `disk`. Empty without a limit."""
        return dict(getattr(self.reader.arrival, "figures", {}))

    @property
    def per_sample(self) -> bool:
        """Return whether a transform is set."""
        return self.transform is not None or self.target_transform is not None

    @property
    def engine(self) -> Choice:
        """How samples are read (`.name`) and why (`.reason`)."""
        return self.reader.engine

    def __len__(self) -> int:
        return len(self.reader)

    def __iter__(self) -> Iterator[Any]:
        """Yield each sample. Without this, Python would take an IndexError of a transform for the end."""
        return (self[row] for row in range(len(self)))

    @public()
    def __getitem__(self, index: int | slice) -> Any:
        """Return one sample: `(x, y)`, or `((x, y), index)` with `return_index`; for a slice, a list of samples.

        `x` is a writable array of its own, as stored, `(H, W, C)` for images, before `transform`. `y` is an int where
        targets are integers, a numpy scalar for other numbers, an array as stored where one target is more (`(1, 1)`
        for targets of shape `(N, 1, 1)`, uint8 `(H, W)` for masks), a dict of arrays for boxes (`boxes` float32
        `(M, 4)`, `labels` int64 `(M,)`, …), and -1 where the file has no targets. On either side a row of variable
        length is an array `(M,)`, and a text a `str`. A negative index counts from the end.

        Raises:
            IndexError: there is no such sample.
            OptionError: it is not an index; the message has the line for several samples.
            DecodeError: an encoded image is broken, or a text not UTF-8; the message names its row.
        """
        if isinstance(index, slice):
            return self._samples(range(*index.indices(len(self))))
        # To Python True is 1, but here it is probably meant as a value of a mask.
        if not hasattr(index, "__index__") or np.ndim(index) or isinstance(index, bool):
            remedy = "For many rows write torch.utils.data.Subset(dataset, rows), or x, y = dataset.read_batch(rows)."
            refuse_argument("index", index, "a row or a slice", remedy=remedy)
        # By the same code as several samples, so that one sample and a batch cannot differ.
        return self._samples([operator.index(index)])[0]

    @public()
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples by one read, as `DataLoader` asks for each batch; by `__getitem__` if a subclass
        overrides it, because a `DataLoader` would never call that."""
        if type(self).__getitem__ is not dataset_h5.__getitem__:
            return [self[index] for index in indices]
        return self._samples(indices)

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        xs, ys = self.read_batch(indices)
        # Rows, not indices, so that a sample always has the same number.
        count = len(self)
        rows = [row % count for row in map(operator.index, indices)]
        samples = self.samples_of(xs, ys, rows)
        return list(zip(samples, rows, strict=True)) if self.return_index else samples

    @public()
    def read_batch(
        self, indices: Indices, out: NDArray[Any] | None = None, *, threads: int = 1
    ) -> tuple[NDArray[Any] | list[Any], TargetBatch]:
        """Read a batch as stored, without the transforms: the fastest way to many samples.

        Args:
            indices: B of them, in the order wanted; negative ones count from the end, repeats are fine.
            out: array for the inputs, C-contiguous `(B, H, W, C)` of the stored dtype; a new one by default.
            threads: how many copy or decode at once.

        Returns:
            `(x, y)`: x is `(B, H, W, C)`, or a list of B arrays where images have different sizes; y is
            `(B, *target_shape)` as stored, or a list of B masks where images have different sizes, of B dicts of
            arrays where targets are boxes. On either side rows of variable length are a list of B arrays `(M,)`, and
            texts a list of B `str`.

        Raises:
            IndexError: there is no such sample.
            ValueError: `out` does not fit.
            DecodeError: an encoded image is broken; the message names its row.
        """
        # For this call only: a pool that stays would not survive a fork.
        with ThreadPool(threads) as pool:
            return self.reader.read_x(indices, out, pool=pool), self.reader.read_y(indices, pool=pool)

    def close(self) -> None:
        """Release the file. Reading again opens it again."""
        self.reader.close()

    def samples_of(self, xs: Any, ys: TargetBatch, rows: Iterable[int]) -> list[tuple[Any, Any]]:
        """Turn rows that were read into the samples that `__getitem__` returns."""
        # Other scalars stay numpy's: a Python float would be collated to float64.
        whole = isinstance(ys, np.ndarray) and ys.ndim == 1 and ys.dtype.kind in "biu"
        values: Any = np.asarray(ys).tolist() if whole else ys
        if not self.per_sample:
            return list(zip(xs, values, strict=True))
        return [self._sample(*parts) for parts in zip(xs, values, rows, strict=True)]

    def _sample(self, x: Any, y: Any, row: int) -> tuple[Any, Any]:
        if (change := self.transform) is not None:
            x = call_theirs("transform", change, image_for(change, x), row=row)
        if self.target_transform is not None:
            y = call_theirs("target_transform", self.target_transform, y, row=row)
        return x, y

    def shown(self) -> Report:
        reader = self.reader
        first, *others = reader.paths
        place = f"{first} and {len(others):,} more" if others else str(first)
        # A name that is not in the file would not tell which samples these are.
        which = f"split={self.split!r}" if reader.fields is None else f"x={reader.fields.x!r}, y={reader.fields.y!r}"
        own = (
            "encoded images of their own sizes"
            if reader.encoded
            else f"rows of their own lengths of {reader.row_dtype}"
        )
        known = {
            "samples": f"{len(self):,}",
            "each": f"{_describe_array(reader.row_shape, reader.row_dtype, own)}, {format_bytes(reader.row_bytes)}",
            "targets": _describe_array(reader.target_shape, reader.target_dtype, "boxes, texts or arrays of own shapes")
            if reader.has_targets
            else "none, -1 stands for each",
            "classes": f"{len(self.classes)}" if self.classes else "not named",
            "engine": str(self.engine),
        }
        return Report(f"dataset_h5('{place}', {which})", (facts(known.items()),))


def _describe_array(shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None, otherwise: str) -> str:
    if shape is None or dtype is None:
        return otherwise
    return f"{' x '.join(map(str, shape))} {dtype}" if shape else f"one {dtype}"
