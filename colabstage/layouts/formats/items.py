"""The items of a dataset object as samples: anything with a length whose items are (x, y)."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, EmptySourceError, LayoutError, OptionError, ended
from colabstage.io.files import read_with_retry
from colabstage.io.given import instead_of, is_frame, show_value
from colabstage.layouts.item_boxes import LookedAt, has_boxes, may_hold_boxes, plan_boxes
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.samples import numbered_samples
from colabstage.layouts.table import Arrays, Images, Masks, SampleTable, UnreadBoxes
from colabstage.machine.mounts import call_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from colabstage.layouts.samples import SampleSource
    from colabstage.layouts.table import Targets
    from colabstage.machine.mounts import InCaller

NAME = "dataset"
# Common names of the two sides of a dict item, as in Hugging Face datasets. Exactly one of each must be there, because
# with two it would be unclear which is meant.
_X_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "features", "data")
_Y_KEYS = ("label", "labels", "fine_label", "target", "targets", "y", "class", "mask")
# The column of boxes in Hugging Face datasets.
_OBJECTS = ("objects", "annotations")
# Stands for everything except the input, if boxes and labels are separate columns.
_REST = ""
# As many items are kept as are examined before packing begins.
_FIRST = 16
# Wider floats have a different layout on each machine.
_WIDEST_BYTES = 8


class IndexableDataset(Protocol):
    """A map-style dataset, as torch calls it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_dataset(dataset: IndexableDataset, in_caller: InCaller = call_here) -> SampleTable:
    """Make a table of a dataset whose items are `(x, y)`, `x` alone, or dicts with an image and a label, as in Hugging
    Face datasets.

    The first item decides what x and y are: Pillow images are images (and, as y, masks); numbers, arrays and tensors
    are stored as they are, all of one shape. Dicts and lists of dicts as y are boxes, as in torchvision's detection
    datasets; the first 16 items decide what their numbers mean. Like a stock `DataLoader` without workers, packing
    takes each item once, in ascending order, in the thread that called it. A dataset may return other items next time,
    so an interrupted pack starts again.

    `in_caller` makes later calls into the dataset in the caller's thread, when another thread asks for items.
    """
    _check_dataset(dataset)
    count = len(dataset)
    pairs = _Pairs(dataset, in_caller)
    # A dataset that reads from a mount may fail temporarily, like the mount.
    x, y = read_with_retry(lambda: pairs.get(0), pairs.name(0))
    feature = pairs.feature()
    # Hugging Face datasets store class names with the column, torchvision's as an attribute.
    named = getattr(feature, "names", ()) if pairs.keys else getattr(dataset, "classes", ())
    classes = tuple(map(str, named or ()))
    notes = pairs.notes()
    targets: Targets | None = None
    if may_hold_boxes(y):
        planned = plan_boxes(_first_items(pairs, count), dataset, feature)
        targets = UnreadBoxes(pairs.side(1, planned.dtype.itemsize, planned.rows), planned.dtype)
        # Boxes have class names of their own, for objects; the dataset's names are for whole images.
        classes, notes = planned.classes, (*notes, planned.note)
    elif y is not None:
        first = _item_array(y, pairs.name(0))
        ys = pairs.side(1, first.nbytes, _item_array)
        if _is_pillow_image(y):
            targets = find_masks(ys, decoded=True, spread=False)
            classes = classes or targets.classes
        else:
            targets = Arrays(ys, first.shape, first.dtype)
        if first.ndim and first.size == 1 and not isinstance(targets, Masks):
            axes = ", ".join(("N", *map(str, first.shape)))
            note = (
                f"Each target is an array of one number, so y of a batch is ({axes}). A loss spreads predictions (N,) "
                "over it without an error. For y of (N,) give numbers, such as y.item()."
            )
            notes = (*notes, note)
    values = _item_array(x, pairs.name(0))
    xs = pairs.side(0, values.nbytes, _as_input)
    # Keys sort like their numbers, so rows keep the dataset's order.
    digits = len(str(count - 1))
    return SampleTable(
        layout=NAME,
        keys=tuple(f"{number:0{digits}}" for number in range(count)),
        inputs=Images(xs, decoded=True) if _is_pillow_image(x) else Arrays(xs, values.shape, values.dtype),
        targets=targets,
        classes=classes,
        notes=notes,
    )


def _check_dataset(dataset: Any) -> None:
    """Refuse what has no samples by number, and what people pass by mistake."""
    kind = type(dataset).__name__
    is_one = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    # A table's items are its columns, those of bytes are numbers, and a class has none.
    if not is_one or isinstance(dataset, bytes | bytearray | type) or is_frame(dataset):
        is_iterator = isinstance(dataset, Iterator) and not hasattr(dataset, "read")
        remedy = "For an iterator, list(…)." if is_iterator else instead_of(dataset)
        msg = (
            f"source={show_value(dataset)} has no samples by number; expected a path, or a dataset with a length and "
            f"items (x, y). {remedy}"
        )
        raise OptionError(msg.rstrip())
    if isinstance(dataset, tuple) and len(dataset) == 2:
        x, y = (np.shape(part) if hasattr(part, "shape") else () for part in dataset)
        if x and y and x[0] == y[0] > 2:
            msg = (
                f"The source is two arrays of {x[0]:,} rows each, which would be two samples. Give their rows as "
                "samples: pack_dataset(list(zip(x, y)), …). If they are two samples, give a list of them."
            )
            raise OptionError(msg)
    # stage_dataset takes a list of sources, and errors about archives beside a table recommend one.
    if isinstance(dataset, list | tuple) and dataset and isinstance(dataset[0], str | os.PathLike):
        msg = (
            f"The source is a {kind} of paths (first {os.fspath(dataset[0])!r}), and pack_dataset takes one source: a "
            "folder, an archive or a dataset object. stage_dataset takes several; the .path of its result is the pack."
        )
        raise OptionError(msg)
    if len(dataset) == 0:
        msg = f"The {kind} has no items."
        raise EmptySourceError(msg)
    # The result of load_dataset without split=.
    if isinstance(dataset, Mapping) and 0 not in dataset:
        names = ", ".join(repr(key) for key in list(dataset)[:8])
        msg = f"The source is a {kind} of {names}, each with items of its own; pass one of them, and one file for each."
        raise OptionError(msg)


def _first_items(pairs: _Pairs, count: int) -> Iterable[LookedAt]:
    """Yield the kept items; broken ones are reported when they are packed."""
    for index in range(min(_FIRST, count)):
        with suppress(DecodeError):
            x, y = pairs.get(index)
            yield LookedAt(pairs.name(index), y, _size_of_item(x))


def _size_of_item(x: Any) -> tuple[int, int] | None:
    """Return the width and height of an image; `None` if its shape does not say which axes they are."""
    if _is_pillow_image(x):
        return x.size[0], x.size[1]
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)):
        return shape[1], shape[0]
    return (shape[2], shape[1]) if len(shape) == 3 and shape[0] in (1, 3, 4) else None


class _Pairs:
    """Items as `(x, y)`. The last one is kept, because its two sides are read one after the other, and so are the first
    ones, which are examined before packing begins."""

    def __init__(self, dataset: IndexableDataset, in_caller: InCaller) -> None:
        self._dataset = dataset
        self._in_caller = in_caller
        # If a thread executor writes shards, its threads take turns.
        self._turn = threading.Lock()
        self._kept: dict[int, tuple[Any, Any]] = {}
        # A new one each time: a dataset may return other items next time, so no pack of it is continued.
        self._token = uuid.uuid4().hex
        self._label = type(dataset).__name__
        self.keys: tuple[str, str | None] | None = None
        self._left: list[str] = []

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user on how items were read."""
        if self.keys is None:
            return ()
        x, y = self.keys
        target = (
            "there is no target" if y is None else "the others are the target" if y == _REST else f"{y!r} the target"
        )
        left = f"; left out: {', '.join(map(repr, self._left))}" if self._left else ""
        return (f"In each item {x!r} is the input, and {target}{left}.",)

    def name(self, index: int) -> str:
        return f"{self._label}[{index}]"

    def feature(self) -> Any:
        """Return the feature of the target column of a Hugging Face `Dataset`."""
        features = getattr(self._dataset, "features", None)
        if self.keys is None or not isinstance(features, Mapping):
            return None
        return features if self.keys[1] == _REST else features.get(self.keys[1])

    def side(self, side: int, nbytes: int, convert: Callable[[Any, str], NDArray[Any]]) -> SampleSource:
        """Return x (0) or y (1) of all items, of about `nbytes` each, converted to what is stored."""

        def read(index: int) -> NDArray[Any]:
            # Converting it to an array is also the item's code, which may read a file only then.
            return self._in_caller(lambda: convert(self.get(index)[side], self.name(index)))

        return numbered_samples(self._label, self._token, len(self._dataset), nbytes, read)

    def get(self, index: int) -> tuple[Any, Any]:
        """Return one item; an error of the dataset that is not one of reading is a `DecodeError`."""
        with self._turn:
            pair = self._kept.get(index)
            if pair is None:
                if index >= _FIRST:
                    # Only the last one, because a single item may fill most of the memory.
                    self._kept.clear()
                pair = self._kept[index] = self._taken(index)
        return pair

    def _taken(self, index: int) -> tuple[Any, Any]:
        name = self.name(index)
        try:
            item = self._dataset[index]
        except (ColabstageError, OSError):
            raise
        except Exception as error:
            msg = ended(f"{name} raised {type(error).__name__}: {error}")
            raise DecodeError(msg) from error
        if isinstance(item, Mapping):
            return self._of_mapping(item, name)
        if not isinstance(item, tuple) and not (
            isinstance(item, list) and not all(isinstance(part, int | float) for part in item)
        ):
            return item, None
        # Only two: with three parts it is unclear which is the target.
        if len(item) == 2:
            return item[0], item[1]
        msg = f"{name} has {len(item)} parts; expected (x, y). Leave out the others, for example in a wrapper's items."
        raise LayoutError(msg)

    def _of_mapping(self, item: Mapping[Any, Any], name: str) -> tuple[Any, Any]:
        if self.keys is None:
            self._find_keys(item, name)
        assert self.keys is not None
        x, y = self.keys
        if y == _REST and x in item:
            return item[x], {key: value for key, value in item.items() if key != x}
        if x not in item or (y is not None and y not in item):
            msg = f"{name} has no {x if x not in item else y!r}, as the first item has."
            raise LayoutError(msg)
        if y is None:
            return item[x], None
        # Some have `None` instead of an empty list.
        return item[x], [] if y in _OBJECTS and item[y] is None else item[y]

    def _find_keys(self, item: Mapping[Any, Any], name: str) -> None:
        xs, ys = ([key for key in known if key in item] for known in (_X_KEYS, _Y_KEYS))
        # Boxes with their labels, or in a column of objects, are one target.
        if not any(isinstance(item[key], Mapping) for key in ys) and has_boxes(item):
            ys = [_REST]
        elif not ys:
            ys = [key for key in _OBJECTS if key in item and (item[key] is None or may_hold_boxes(item[key]))]
        if len(xs) != 1 or len(ys) > 1:
            keys = ", ".join(repr(key) for key in list(item)[:8])
            msg = (
                f"{name} is a mapping of {keys}; expected (x, y), or an input called 'image' or 'x' and one target "
                "called 'label' or 'y'. Wrap the dataset in one whose items are such pairs, or rename and remove "
                "columns."
            )
            raise LayoutError(msg)
        self.keys = (xs[0], ys[0] if ys else None)
        self._left = [str(key) for key in item if key not in self.keys and self.keys[1] != _REST]


def _as_input(value: Any, name: str) -> NDArray[Any]:
    """Return an input as an array; an image as its file would be decoded."""
    if _is_pillow_image(value):
        # In an input, palette indices are not brightness; in a mask, they are the classes.
        if value.mode in ("P", "PA"):
            value = value.convert("RGBA" if value.mode == "PA" or "transparency" in value.info else "RGB")
        # As files of these modes are decoded: black and white as 0 and 255, 32 bits as numbers without a range.
        value = value.convert({"1": "L", "I": "F"}.get(value.mode, value.mode))
    return _item_array(value, name)


def _is_pillow_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _item_array(value: Any, name: str) -> NDArray[Any]:
    """Return a Pillow image, tensor, array or number as an array; Python's own numbers as int64 and float32."""
    if _is_pillow_image(value):
        kept = value.mode in ("L", "RGB", "RGBA", "P", "1", "I;16", "I", "F")
        pixels = np.asarray(value if kept else value.convert("RGB"))
        # In Pillow the byte for True is 255, which a numpy cast would keep.
        return (pixels.view(np.uint8) > 0).astype(np.uint8) if pixels.dtype == np.bool_ else pixels
    # As torch does with Python numbers; twice the memory would gain nothing.
    if isinstance(value, float):
        return np.array(value, np.float32)
    try:
        values = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = ended(f"{name} has {type(value).__name__} values that do not make an array: {error}")
        raise LayoutError(msg) from error
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > _WIDEST_BYTES:
        kind = f"{type(value).__name__} values ({values.dtype})"
        msg = f"{name} has {kind}; expected an image, an array or a number, of at most 64 bits."
        raise LayoutError(msg)
    return values
