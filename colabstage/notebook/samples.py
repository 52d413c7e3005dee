"""Read what is shown (a staged dataset, a split, a path) as splits, and a few samples at a time, at the size at which
they are shown: only requested rows are read. The shape of samples tells what they are.

And the classes of a split's samples: their names, how many samples each has, and which rows these are.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import OptionError, PackFormatError
from colabstage.h5.info import FieldInfo, PackInfo, open_h5, read_info
from colabstage.h5.parts import find_parts, joined_info
from colabstage.h5.schema import OFFSETS
from colabstage.images.geometry import VOID
from colabstage.io.arguments import refuse_argument
from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Cancellation
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import usable_cores
from colabstage.stage.dataset import StagedDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Arrival
    from colabstage.load.dataset import dataset_h5

    # Everything that contains samples to show; a path may be a pattern that several files match.
    Samples = StagedDataset | dataset_h5 | str | os.PathLike[str]

# With more different values than this, targets are measurements, not classes, unless the file names its classes.
_MOST_UNNAMED = 256
# Up to this many different numbers may be classes, even with few samples.
_FEW = 10
# At most this much memory is used for targets with one column per class.
_MOST_MULTI_HOT_BYTES = 1 << 28
# Masks are searched for classes if they have at most this many pixels, which takes a third of a second.
_MOST_MASK_BYTES = 1 << 28
_TARGET_BYTES = 1 << 24
# Rows whose boxes are read at once.
_BOXED_ROWS = 1 << 16

Kind = Literal["image", "sound", "tokens", "numbers"]

_MOST_CHANNELS = 4
_LEAST_SIDE = 4
# Longer rows of fractions are signals, shorter ones are rows of a table.
_LEAST_SIGNAL = 512

# About 100 MB of names.
_MOST_KEYS = 1_000_000
# Bytes of inputs in memory at once while a page is made.
_HELD_BYTES = 64 << 20


@dataclass(slots=True)
class ShownSplits:
    """Splits to show, each opened on first use."""

    name: str
    layout: str | None
    rows: Mapping[str, int]
    open: Callable[[str], SplitReader]
    infos: Sequence[PackInfo]
    """What each file holds, in the order of their rows."""
    _readers: dict[str, SplitReader] = field(default_factory=dict)
    _keys: dict[str, list[str]] = field(default_factory=dict)

    def reader(self, split: str) -> SplitReader:
        if split not in self._readers:
            self._readers[split] = self.open(split)
        return self._readers[split]

    def keys(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return the names of the files that rows were made from; empty strings if the pack has none.

        Opening a dataset of many texts checks all of them, so they are read once, unless there are too many.
        """
        reader = self.reader(split)
        try:
            if self.rows[split] > _MOST_KEYS:
                return reader.keys(list(rows))
            if split not in self._keys:
                self._keys[split] = reader.keys()
        # Files from other programs have no names; their samples are shown all the same.
        except PackFormatError:
            return [""] * len(rows)
        return [self._keys[split][row] for row in rows]

    def close(self) -> None:
        """Release the files; the next read opens them again, in a few milliseconds."""
        for reader in self._readers.values():
            reader.close()

    def targets(self, split: str) -> list[tuple[Path, FieldInfo]]:
        """Return the targets of a split in each file that has it, in the order of rows; empty if there are none."""
        found = [(info.path, info.splits.get(split)) for info in self.infos]
        return [(path, one.y) for path, one in found if one is not None and one.y is not None]


def open_splits(data: Samples) -> ShownSplits:
    """Open what can be shown; no sample is read."""
    if isinstance(data, StagedDataset):
        if data.info is None:
            msg = f"Only plain files were kept ({data.path}); stage with keep='pack' or keep='both' to look at samples."
            raise OptionError(msg)
        return _of_files((data.info.path,)) if data.part is None else _of_files(data.part.paths, arrival=data.part)
    # Recognised by its attributes, not by its class, which would import torch.
    reader = getattr(data, "reader", None)
    if isinstance(reader, SplitReader):
        how: dict[str, Any] = {"fields": reader.fields, "allow_external": reader.allow_external}
        found = _of_files(reader.paths, arrival=reader.arrival, **how)
        return replace(found, rows={reader.split: len(reader)})
    if not isinstance(data, str | os.PathLike):
        refuse_argument("data", data, "what stage_dataset returns, a dataset_h5, or the path of an HDF5 file")
    return _of_files(find_parts(data))


def _of_files(paths: Sequence[Path], *, arrival: Arrival | None = None, **how: Any) -> ShownSplits:
    infos = [read_info(path, in_part=arrival is not None, **how) for path in paths]
    shown = infos[0].path.name + (f" and {len(infos) - 1} more" if len(infos) > 1 else "")
    opener = partial(SplitReader, [info.path for info in infos], arrival=arrival, **how)
    return ShownSplits(shown, infos[0].layout, joined_info(infos).rows, opener, infos)


@dataclass(frozen=True, slots=True)
class Sample:
    row: int
    x: NDArray[Any]
    """The input as stored, or an image reduced to the requested size."""
    y: Any
    """Its target as a number, an array, a dict of arrays for boxes, or a text."""
    key: str
    """The name of the file that it was made from; empty if unknown."""
    size: tuple[int, int] | None = None
    """Height and width of the image that `y` refers to, of which `x` may be a reduction; `None` if it is not an
    image."""

    @property
    def mask(self) -> NDArray[Any] | None:
        """Return its mask `(H, W)`; `None` if its target is not one."""
        y = self.y
        return y if isinstance(y, np.ndarray) and y.ndim == 2 and y.dtype.kind in "ui" and min(y.shape) > 1 else None

    @property
    def boxes(self) -> dict[str, NDArray[Any]] | None:
        """Return its boxes with their columns; `None` if its target is not boxes."""
        return self.y if isinstance(self.y, dict) and "boxes" in self.y else None


def read_samples(source: ShownSplits, split: str, rows: Sequence[int], *, longest_px: int) -> list[Sample]:
    """Read samples, in the order of `rows`. Encoded images are decoded to about `longest_px`, which takes a fraction of
    the time; others are returned as stored."""
    reader = source.reader(split)
    samples: list[Sample] = []
    # A page of large images is read in parts, so that memory does not grow with the page.
    step = max(1, _HELD_BYTES // max(1, reader.estimate_row_bytes()))
    keys = source.keys(split, rows)
    with ThreadPool(usable_cores()) as pool:
        for start in range(0, len(rows), step):
            part = list(rows[start : start + step])
            if reader.encoded and reader.whole_reason is None:
                xs, sizes = _read_reduced(reader, part, longest_px, pool)
            else:
                xs = list(reader.read_x(part, pool=pool))
                sizes = [_size_of_x(x) for x in xs]
            # A single number is shown as such, whatever axes of length 1 it is stored with.
            ys = [
                np.asarray(y).reshape(-1)[0].item() if isinstance(y, np.ndarray | np.generic) and y.size == 1 else y
                for y in reader.read_y(part, pool=pool)
            ]
            samples += [
                Sample(row, x, y, key, size)
                for row, x, y, key, size in zip(part, xs, ys, keys[start : start + step], sizes, strict=True)
            ]
    return samples


def _read_reduced(
    reader: SplitReader, rows: list[int], longest_px: int, pool: ThreadPool
) -> tuple[list[NDArray[Any]], list[tuple[int, int] | None]]:
    """Read images of many sizes, each decoded no larger than shown; those of equal size are decoded together."""
    sizes = [(int(height), int(width)) for height, width in reader.image_sizes(rows)]
    scales = [min(1.0, longest_px / max(size)) for size in sizes]
    # Even a panorama of 1:500 is at least one pixel high.
    shown = [
        (max(1, round(height * scale)), max(1, round(width * scale)))
        for (height, width), scale in zip(sizes, scales, strict=True)
    ]
    images: list[Any] = [None] * len(rows)
    # Images with the same final size are decoded in one call, which uses all cores.
    for target in dict.fromkeys(shown):
        places = [place for place, size in enumerate(shown) if size == target]
        group = reader.read_crops([rows[place] for place in places], target, _whole_crop, pool=pool)
        for place, image in zip(places, group, strict=True):
            images[place] = image
    return images, list(sizes)


def _whole_crop(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)


def _size_of_x(x: NDArray[Any]) -> tuple[int, int] | None:
    if x.ndim < 2:
        return None
    height, width = x.shape[1:3] if channels_first(x.shape) else x.shape[:2]
    return int(height), int(width)


def sample_kind(shape: tuple[int, ...], dtype: np.dtype[np.generic], layout: str | None) -> Kind:
    """Decide by the shape and dtype of one input, and by the file's layout if it has one."""
    if layout in ("audio", "tokens"):
        return "sound" if layout == "audio" else "tokens"
    if _is_image(shape):
        return "image"
    if len(shape) == 1 and dtype.kind in "iu":
        return "tokens"
    one_signal = len(shape) == 1 or (len(shape) == 2 and min(shape) <= _MOST_CHANNELS)
    if dtype.kind in "fi" and max(shape, default=0) >= _LEAST_SIGNAL and one_signal:
        return "sound"
    return "numbers"


def _is_image(shape: tuple[int, ...]) -> bool:
    """Return whether a row has a height and a width, with or without channels before or after them."""
    if len(shape) == 2:
        return min(shape) > _MOST_CHANNELS
    if len(shape) != 3:
        return False
    return channels_first(shape) or (shape[2] <= _MOST_CHANNELS and min(shape[:2]) >= _LEAST_SIDE)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether the channels of an image come before its height and width, as some programs store them."""
    return len(shape) == 3 and shape[0] <= _MOST_CHANNELS < min(shape[1:])


@dataclass(frozen=True, slots=True)
class SplitClasses:
    names: tuple[str, ...] = ()
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Number of samples with each, int64 `(K,)`; a sample with boxes or a mask may have several."""
    why_none: str = ""
    _rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def rows_of(self, number: int) -> NDArray[np.int64]:
        """Return the rows with the class at this index of `names`, ascending, int64."""
        end = int(self.counts[: number + 1].sum())
        return self._rows[end - int(self.counts[number]) : end]


def read_labels(source: ShownSplits, split: str) -> SplitClasses:
    reader, targets = source.reader(split), source.targets(split)
    if reader.has_boxes:
        return _of_boxes(source, split)
    if targets and _shows_masks(reader, targets[0][1]):
        return _of_masks(reader)
    return _of_rows(reader) if targets else SplitClasses(why_none="the file has no targets")


def _of_rows(reader: SplitReader) -> SplitClasses:
    rows, shape, classes = np.arange(len(reader)), reader.target_shape, reader.classes
    if shape is None:
        return _of_texts(list(reader.read_y(rows)))
    length = int(np.prod(shape, dtype=np.int64))
    if length == 1:
        return _of_numbers(np.asarray(reader.read_y(rows)).reshape(-1), classes)
    if len(shape) == 1 and length == len(classes) and len(reader) * length * 8 <= _MOST_MULTI_HOT_BYTES:
        values = np.asarray(reader.read_y(rows))
        if bool(((values == 0) | (values == 1)).all()):
            found, labels = np.nonzero(values)
            return _sorted(found, labels, classes)
    return SplitClasses(why_none=f"targets are {' x '.join(map(str, shape))} numbers each, not classes")


def _of_numbers(values: NDArray[Any], classes: Sequence[str]) -> SplitClasses:
    is_whole = values.dtype.kind in "biu" or (
        values.dtype.kind == "f" and bool(np.isfinite(values).all() and (values == np.floor(values)).all())
    )
    if not is_whole:
        numbers = " numbers" if values.dtype.kind == "f" else ""
        return SplitClasses(why_none=f"targets are {values.dtype}{numbers}, not classes")
    whole = values.astype(np.int64)
    found = np.unique(whole)
    if not classes and (len(found) > _MOST_UNNAMED or (len(found) > _FEW and 2 * len(found) > len(values))):
        return SplitClasses(why_none=f"targets have {len(found):,} different values, so they are not classes")
    return _sorted(np.arange(len(whole)), whole, classes)


def _of_texts(texts: list[Any]) -> SplitClasses:
    """Return the classes of targets that are one word for each row, as in files from other programs."""
    if not all(isinstance(text, str) for text in texts):
        return SplitClasses(why_none="targets have their own lengths, so they are not classes")
    names, numbers = np.unique(np.array(texts, dtype=object).astype(str), return_inverse=True)
    if len(names) > _MOST_UNNAMED:
        return SplitClasses(why_none=f"targets are {len(names):,} different texts, so they are not classes")
    return _sorted(np.arange(len(texts)), numbers, [str(name) for name in names])


def _shows_masks(reader: SplitReader, targets: FieldInfo) -> bool:
    shape = reader.target_shape
    return targets.kind == "encoded" or (
        shape is not None and len(shape) == 2 and min(shape) > 1 and reader.target_dtype == np.uint8
    )


def _of_masks(reader: SplitReader) -> SplitClasses:
    """Return the classes of the pixels of each row, unless there are too many pixels."""
    if reader.target_shape is None or len(reader) * int(np.prod(reader.target_shape)) > _MOST_MASK_BYTES:
        return SplitClasses(why_none="targets are masks, a class for each pixel, and too many to look through")
    seen = np.zeros((len(reader), 256), np.bool_)
    step = max(1, _TARGET_BYTES // int(np.prod(reader.target_shape)))
    for start in range(0, len(reader), step):
        masks = np.asarray(reader.read_y(np.arange(start, min(start + step, len(reader)))))
        for row, mask in enumerate(masks, start):
            seen[row] = np.bincount(mask.reshape(-1), minlength=256) > 0
    seen[:, VOID] = False
    rows, labels = np.nonzero(seen)
    return _sorted(rows, labels, reader.classes)


def _of_boxes(source: ShownSplits, split: str) -> SplitClasses:
    """Return the classes of the boxes of each row. Only the labels are read: boxes would need their images' sizes."""
    reader = source.reader(split)
    rows, labels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    before = 0
    for path, info in source.targets(split):
        if "labels" not in info.columns:
            return SplitClasses(why_none="boxes have no classes")
        for start in range(0, info.rows, _BOXED_ROWS):
            own = np.arange(start, min(start + _BOXED_ROWS, info.rows))
            # Opened for each part, because HDF5 keeps bytes beside those that it reads, which may not be here yet.
            with _held(reader, before + own), open_h5(path, in_part=reader.arrival is not None) as file:
                offsets = np.asarray(file[info.name][OFFSETS][start : start + len(own) + 1], np.int64)
                labels.append(np.asarray(file[info.name]["labels"][offsets[0] : offsets[-1]], np.int64))
            rows.append(before + np.repeat(own, np.diff(offsets)))
        before += info.rows
    # A row with three boxes of a class counts once.
    pairs = np.unique(np.stack([np.concatenate(labels), np.concatenate(rows)]), axis=1)
    return _sorted(pairs[1], pairs[0], reader.classes)


def _held(reader: SplitReader, rows: NDArray[np.intp]) -> AbstractContextManager[None]:
    """Wait until the targets of rows are local, and keep them while they are read."""
    arrival = reader.arrival
    if arrival is None or arrival.complete:
        return nullcontext()
    return arrival.hold(reader.split, rows, side="targets", cancellation=Cancellation())


def _sorted(rows: NDArray[np.int64], labels: NDArray[np.int64], classes: Sequence[str]) -> SplitClasses:
    """Return the classes of `rows`, of which `labels` are the numbers, sorted by class."""
    # A class without samples is shown with 0, because that matters for the balance.
    values = np.union1d(labels, np.arange(len(classes)))
    numbers = np.searchsorted(values, labels)
    # Stable, so that the rows of a class ascend.
    order = np.argsort(numbers, kind="stable")
    return SplitClasses(
        names=tuple(class_name(int(value), classes) for value in values),
        counts=np.bincount(numbers, minlength=len(values)).astype(np.int64),
        _rows=np.asarray(rows, np.int64)[order],
    )


def class_name(value: int, classes: Sequence[str]) -> str:
    if 0 <= value < len(classes):
        return classes[value]
    # The label in test splits without labels.
    return "no label" if value == -1 else str(value)
