"""The items of an indexable dataset as samples: whatever has a length and gives (x, y)."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Arrays, Images, Masks
from colabstage.layouts.table import SampleTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.layouts.fields import Inputs, Targets

NAME = "dataset"


class IndexableDataset(Protocol):
    """What torch calls a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_dataset(dataset: IndexableDataset) -> SampleTable:
    """Make a table of a dataset whose items are `(x, y)`, or `x` alone.

    What x and y are is learnt from the first item: Pillow images are images (and, as y, masks); numbers, arrays and
    tensors are stored as they are, all of one shape. Items are taken once each, from several threads, in ascending
    order but not one by one. What a dataset would give another time nobody knows, so an interrupted pack of one starts
    afresh.

    Raises:
        EmptySourceError: it has no items.
        LayoutError: an item is neither an image nor numbers.
    """
    count = len(dataset)
    if count == 0:
        msg = f"The {type(dataset).__name__} has no items."
        raise EmptySourceError(msg)
    pairs = _Pairs(dataset)
    x, y = pairs.get(0)
    digits = len(str(count - 1))
    return SampleTable(
        layout=NAME,
        keys=tuple(f"{number:0{digits}}" for number in range(count)),
        inputs=_inputs(_Side(pairs, 0, count, x), x),
        targets=None if y is None else _targets(_Side(pairs, 1, count, y), y),
        classes=tuple(str(name) for name in getattr(dataset, "classes", ()) or ()),
    )


class _Pairs:
    """Items as `(x, y)`; the last one of each thread is kept, since both sides of it are read one after the other."""

    def __init__(self, dataset: IndexableDataset) -> None:
        self._dataset = dataset
        self._last = threading.local()
        self.token = uuid.uuid4().hex
        self.label = type(dataset).__name__

    def get(self, index: int) -> tuple[Any, Any]:
        if getattr(self._last, "index", None) != index:
            item = self._dataset[index]
            self._last.pair = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
            self._last.index = index
        pair: tuple[Any, Any] = self._last.pair
        return pair


class _Side:
    """One side of all items, as a `SampleSource`."""

    def __init__(self, pairs: _Pairs, side: int, count: int, first: Any) -> None:
        self._pairs = pairs
        self._side = side
        self.positions = np.arange(count, dtype=np.int64)
        self.sizes = np.full(count, _as_array(first).nbytes, np.int64)

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, index: int) -> str:
        return f"{self._pairs.label}[{index}]"

    def stamp(self, index: int) -> str:
        return f"{self._pairs.token} {index}"

    def read(self, index: int) -> NDArray[Any]:
        return _as_array(self._pairs.get(index)[self._side])


def _is_picture(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _as_array(value: Any) -> NDArray[Any]:
    """A Pillow image, tensor, array or number as an array; Python's own numbers as int64 and float32."""
    if _is_picture(value):
        kept = value.mode in ("L", "RGB", "RGBA", "P", "1", "I;16", "I", "F")
        return np.asarray(value if kept else value.convert("RGB"))
    if isinstance(value, float):
        return np.array(value, np.float32)
    values = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if values.dtype.kind not in "biuf":
        msg = f"An item has {type(value).__name__} values ({values.dtype}); expected an image, an array or a number."
        raise LayoutError(msg)
    return values


def _inputs(side: _Side, first: Any) -> Inputs:
    values = _as_array(first)
    return Images(side, decoded=True) if _is_picture(first) else Arrays(side, values.shape, values.dtype)


def _targets(side: _Side, first: Any) -> Targets:
    values = _as_array(first)
    return Masks(side, decoded=True) if _is_picture(first) else Arrays(side, values.shape, values.dtype)
