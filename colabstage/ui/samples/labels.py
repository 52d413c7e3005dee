"""The classes of a split's samples: their names, how many samples each has, and which rows those are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.info import open_h5
from colabstage.h5.schema import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo
    from colabstage.load.reading.reader import SplitReader
    from colabstage.ui.samples.source import Source

# More different values than this are measurements, not classes, unless the file names its classes.
_MOST_UNNAMED = 256
# So few different numbers may be classes of a handful of samples.
_FEW = 10
# A row of targets for each class is read for this much memory, and not for more.
_MOST_MULTI_HOT_BYTES = 1 << 28
# Masks are looked through where they have no more pixels than this, which takes a third of a second.
_MOST_MASK_BYTES = 1 << 28
_HELD_BYTES = 1 << 24
# What a mask says where there is no class.
_NO_CLASS = 255


@dataclass(frozen=True, slots=True)
class Labels:
    """The classes of a split."""

    names: tuple[str, ...] = ()
    """The names of the classes."""
    values: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """What the targets say for each, int64 `(K,)`."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Samples that have each, int64 `(K,)`; one with boxes or a mask may have several."""
    why_none: str = ""
    """Why there are no classes; empty where there are."""
    _rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def rows_of(self, number: int) -> NDArray[np.int64]:
        """Return the rows that have the class at this place of `names`, ascending, int64."""
        end = int(self.counts[: number + 1].sum())
        return self._rows[end - int(self.counts[number]) : end]


def read_labels(source: Source, split: str) -> Labels:
    """Read the targets of a split, and sort its rows by them.

    Raises:
        SplitNotFoundError: there is no such split.
        DamagedPackError: the file changed since it was opened.
    """
    reader = source.reader(split)
    if reader.has_boxes:
        return _of_boxes(source, split, reader.classes)
    targets = source.targets(split)
    if not targets:
        return Labels(why_none="the file has no targets")
    if _are_masks(reader, targets[0][1]):
        return _of_masks(reader)
    if reader.target_shape is None:
        return _of_texts(reader)
    return _of_numbers(reader)


def _of_numbers(reader: SplitReader) -> Labels:
    shape = reader.target_shape or ()
    length = int(np.prod(shape, dtype=np.int64))
    if length == 1:
        return _of_values(np.asarray(reader.read_y(_all_rows(reader))).reshape(-1), reader.classes)
    if len(shape) == 1 and length == len(reader.classes) and len(reader) * length * 8 <= _MOST_MULTI_HOT_BYTES:
        values = np.asarray(reader.read_y(_all_rows(reader)))
        if bool(((values == 0) | (values == 1)).all()):
            rows, numbers = np.nonzero(values)
            return _sorted(rows, numbers, np.arange(length), reader.classes)
    return Labels(why_none=f"targets are {' x '.join(map(str, shape))} numbers each, not classes")


def _of_values(values: NDArray[Any], classes: Sequence[str]) -> Labels:
    """Return the classes of targets that are one number for each row."""
    if values.dtype.kind == "f" and not bool(np.isfinite(values).all() and (values == np.floor(values)).all()):
        return Labels(why_none=f"targets are {values.dtype} numbers, not classes")
    if values.dtype.kind not in "biuf":
        return Labels(why_none=f"targets are {values.dtype}, not classes")
    # Sorted and counted in one pass over all targets.
    found, numbers = np.unique(values.astype(np.int64), return_inverse=True)
    if not classes and len(found) > _MOST_UNNAMED:
        return Labels(why_none=f"targets have {len(found):,} different values, so they are not classes")
    if not classes and len(found) > _FEW and 2 * len(found) > len(values):
        return Labels(why_none="most samples have a value of their own, so targets are not classes")
    # A class that no sample has is shown with none: that is what a balance is asked for.
    known = np.union1d(found, np.arange(len(classes)))
    places = np.searchsorted(known, found)
    return _sorted(np.arange(len(values)), places[numbers], known, classes)


def _are_masks(reader: SplitReader, targets: FieldInfo) -> bool:
    shape = reader.target_shape
    return targets.kind == "encoded" or (
        shape is not None and len(shape) == 2 and min(shape) > 1 and reader.target_dtype == np.uint8
    )


def _of_masks(reader: SplitReader) -> Labels:
    """Return, for each row, each class that one of its pixels has, where looking at every pixel is not much."""
    if reader.target_shape is None or len(reader) * int(np.prod(reader.target_shape)) > _MOST_MASK_BYTES:
        return Labels(why_none="targets are masks, a class for each pixel, and too many to look through")
    seen = np.zeros((len(reader), 256), np.bool_)
    step = max(1, _HELD_BYTES // int(np.prod(reader.target_shape)))
    for start in range(0, len(reader), step):
        masks = np.asarray(reader.read_y(np.arange(start, min(start + step, len(reader)))))
        for row, mask in enumerate(masks, start):
            seen[row] = np.bincount(mask.reshape(-1), minlength=256) > 0
    seen[:, _NO_CLASS] = False
    rows, values = np.nonzero(seen)
    known = np.union1d(np.unique(values), np.arange(len(reader.classes)))
    return _sorted(rows, np.searchsorted(known, values), known, reader.classes)


def _of_boxes(source: Source, split: str, classes: Sequence[str]) -> Labels:
    """Return, for each row, each class that one of its boxes has."""
    rows: list[NDArray[np.int64]] = []
    labels: list[NDArray[np.int64]] = []
    before = 0
    for path, info in source.targets(split):
        if "labels" not in info.columns:
            return Labels(why_none="boxes have no classes")
        with open_h5(path) as file:
            offsets = np.asarray(file[info.name][OFFSETS][()], np.int64)
            values = np.asarray(file[info.name]["labels"][()], np.int64)
        # Rows behind the last offset are nobody's.
        labels.append(values[: int(offsets[-1])] if len(offsets) else values[:0])
        rows.append(before + np.repeat(np.arange(info.rows), np.diff(offsets)))
        before += info.rows
    joined = np.concatenate(labels) if labels else np.empty(0, np.int64)
    # A row with three boxes of a class is one row of it.
    pairs = np.unique(np.stack([joined, np.concatenate(rows) if rows else joined]), axis=1)
    known = np.union1d(np.unique(pairs[0]), np.arange(len(classes)))
    return _sorted(pairs[1], np.searchsorted(known, pairs[0]), known, classes)


def _of_texts(reader: SplitReader) -> Labels:
    """Return the classes of targets that are one word for each row, as files of other programs have them."""
    texts = list(reader.read_y(_all_rows(reader)))
    if not all(isinstance(text, str) for text in texts):
        return Labels(why_none="targets have their own lengths, so they are not classes")
    names, numbers = np.unique(np.array(texts, dtype=object).astype(str), return_inverse=True)
    if len(names) > _MOST_UNNAMED:
        return Labels(why_none=f"targets are {len(names):,} different texts, so they are not classes")
    return _sorted(np.arange(len(texts)), numbers, np.arange(len(names)), [str(name) for name in names])


def _sorted(
    rows: NDArray[np.int64], numbers: NDArray[np.int64], values: NDArray[np.int64], classes: Sequence[str]
) -> Labels:
    """Return labels of `rows`, whose classes are at the places `numbers` among `values`, sorted by class."""
    # Stable, so that the rows of a class ascend.
    order = np.argsort(numbers, kind="stable")
    return Labels(
        names=tuple(class_name(int(value), classes) for value in values),
        values=np.asarray(values, np.int64),
        counts=np.bincount(numbers, minlength=len(values)).astype(np.int64),
        _rows=np.asarray(rows, np.int64)[order],
    )


def class_name(value: int, classes: Sequence[str]) -> str:
    """Return what people call a class: its name where the file has one, else its number."""
    if 0 <= value < len(classes):
        return classes[value]
    # What test splits say that have no labels.
    return "no label" if value == -1 else str(value)


def _all_rows(reader: SplitReader) -> NDArray[np.int64]:
    return np.arange(len(reader))
