"""The items of a dataset object as samples: anything with a length whose items are (x, y)."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, EmptySourceError, LayoutError, OptionError, ended
from colabstage.io.arguments import instead_of, is_frame, show_value
from colabstage.io.files import read_with_retry
from colabstage.io.units import listed
from colabstage.layouts.boxes import (
    BOX_LABELS,
    OBJECTS,
    Form,
    as_corners,
    box_key,
    by_field,
    find_form,
    first_unfit,
    further_fields,
    stated_form,
)
from colabstage.layouts.columns import show
from colabstage.layouts.formats.masks import find_masks, mask_field
from colabstage.layouts.records import names_of_feature
from colabstage.layouts.table import Arrays, Images, SampleSource, SampleTable, Targets, UnreadBoxes, numbered_samples
from colabstage.machine.mounts import InCaller, call_here

if TYPE_CHECKING:
    from numpy.typing import NDArray


NAME = "dataset"
# Common names of the two sides of a dict item, as in Hugging Face datasets. Exactly one of each must be there, because
# with two it would be unclear which is meant.
_X_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "features", "data")
_Y_KEYS = ("label", "labels", "fine_label", "target", "targets", "y", "class", "mask")
# Stands for everything except the input, if boxes and labels are separate columns.
_REST = ""
# As many items are kept as are examined before packing begins.
_FIRST = 16
# Wider floats have a different layout on each machine.
_WIDEST_BYTES = 8
# Modes of Pillow whose pixels are kept as they are.
_KEPT_MODES = ("L", "RGB", "RGBA", "P", "1", "I;16", "I", "F")


class IndexableDataset(Protocol):
    """A map-style dataset, as torch calls it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_dataset(dataset: IndexableDataset, in_caller: InCaller = call_here) -> SampleTable:
    """Make a table of a dataset whose items are `(x, y)`, `x` alone, or dicts with an image and a label, as in Hugging
    Face datasets.

    The first item that can be read decides what x and y are: Pillow images are images (and, as y, masks); numbers,
    arrays and tensors are stored as they are, all of one shape. Dicts and lists of dicts as y are boxes, as in
    torchvision's detection datasets; the first 16 items decide what their numbers mean. Like a stock `DataLoader`
    without workers, packing takes each item once, in ascending order, in the thread that called it. A dataset may
    return other items next time, so an interrupted pack starts again.

    `in_caller` makes later calls into the dataset in the caller's thread, when another thread asks for items.
    """
    _check_dataset(dataset)
    count, pairs = len(dataset), _Pairs(dataset, in_caller)
    name, (x, y) = next(pairs.readable(), None) or (pairs.name(0), pairs.get(0))
    pairs.bare = name if y is None else ""
    # Hugging Face datasets store class names with the column, torchvision's as an attribute.
    classes = _named(getattr(pairs.feature(), "names", ()) if pairs.keys else getattr(dataset, "classes", ()))
    notes = [pairs.keys.note] if pairs.keys else []
    targets: Targets | None = None
    if _may_hold_boxes(y):
        planned = _plan_boxes(pairs, dataset)
        targets = UnreadBoxes(pairs.side(1, planned.dtype.itemsize, planned.rows), planned.dtype)
        # Boxes have class names of their own, for objects; the dataset's names are for whole images.
        classes, notes = planned.classes, [*notes, planned.note]
    elif y is not None:
        first = _item_array(y, name)
        ys = pairs.side(1, first.nbytes, partial(_as_target, classes=classes))
        targets = Arrays(ys, first.shape, first.dtype)
        if _is_pillow_image(y):
            targets = find_masks(ys, decoded=True, spread=False)
            classes = classes or targets.classes
    values = _item_array(x, name)
    xs = pairs.side(0, values.nbytes, _as_input)
    # Keys sort like their numbers, so rows keep the dataset's order.
    digits = len(str(count - 1))
    return SampleTable(
        layout=NAME,
        keys=tuple(f"{number:0{digits}}" for number in range(count)),
        inputs=Images(xs, decoded=True) if _is_pillow_image(x) else Arrays(xs, values.shape, values.dtype),
        targets=targets,
        classes=classes,
        notes=tuple(notes),
    )


def _check_dataset(dataset: Any) -> None:
    """Refuse objects without numbered samples, and what people pass by mistake."""
    is_one = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    is_pair = isinstance(dataset, tuple) and len(dataset) == 2 and all(getattr(one, "shape", ()) for one in dataset)
    what = remedy = ""
    if is_one and isinstance(dataset, Mapping) and len(dataset) and 0 not in dataset:
        # The result of load_dataset without split=.
        what, remedy = f"samples under {listed([*map(str, dataset)])}", "Pass one of them, and one file for each."
    elif is_one and isinstance(dataset, list | tuple) and dataset and isinstance(dataset[0], str | os.PathLike):
        what, remedy = "paths for samples", "stage_dataset takes several sources; the .path of its result is the pack."
    elif is_pair:
        what, remedy = "two arrays for samples", "Give list(zip(x, y)); of two samples, a list."
    # A table's items are its columns, items of bytes are numbers, and a class has none.
    elif is_one and not isinstance(dataset, bytes | bytearray | type) and not is_frame(dataset):
        if len(dataset) == 0:
            msg = f"The {type(dataset).__name__} has no items."
            raise EmptySourceError(msg)
        return
    if not what:
        is_iterator = isinstance(dataset, Iterator) and not hasattr(dataset, "read")
        what, remedy = "no samples by number", "Give list(…) of it." if is_iterator else instead_of(dataset)
    expected = "a path, or a dataset with a length and items (x, y)"
    msg = f"source={show_value(dataset)} has {what}; expected {expected}. {remedy}"
    raise OptionError(msg.rstrip())


class _Keys(NamedTuple):
    """The keys of the two sides of items that are mappings."""

    x: str
    y: str | None
    """`None` if there is no target, `_REST` if it is everything else."""
    note: str
    """What they are, and what is left out."""


class _Pairs:
    """Items as `(x, y)`. The last one is kept, because its two sides are read one after the other, and so are the first
    ones, which are examined before packing begins."""

    def __init__(self, dataset: IndexableDataset, in_caller: InCaller) -> None:
        self._dataset, self._in_caller = dataset, in_caller
        # If a thread executor writes shards, its threads take turns.
        self._turn = threading.Lock()
        self._kept: dict[int, tuple[Any, Any]] = {}
        # A new one each time: a dataset may return other items next time, so no pack of it is continued.
        self._token = uuid.uuid4().hex
        self._label = type(dataset).__name__
        self.bare = ""  # the name of the item that says that none has a target
        self.keys: _Keys | None = None

    def name(self, index: int) -> str:
        return f"{self._label}[{index}]"

    def feature(self) -> Any:
        """Return the feature of the target column of a Hugging Face `Dataset`."""
        features = getattr(self._dataset, "features", None)
        if self.keys is None or not isinstance(features, Mapping):
            return None
        return features if self.keys.y == _REST else features.get(self.keys.y)

    def side(self, side: int, nbytes: int, convert: Callable[[Any, str], NDArray[Any]]) -> SampleSource:
        """Return x (0) or y (1) of all items, of about `nbytes` each, converted to what is stored."""

        def read(index: int) -> NDArray[Any]:
            # Converting it to an array is also the item's code, which may read a file only then.
            return self._in_caller(lambda: convert(self.get(index)[side], self.name(index)))

        return numbered_samples(self._label, self._token, len(self._dataset), nbytes, read)

    def readable(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        """Yield the first items with their names, except broken ones, which are reported when they are packed."""
        for name, index in ((self.name(index), index) for index in range(min(_FIRST, len(self._dataset)))):
            with suppress(DecodeError):
                # A dataset that reads from a mount may fail temporarily, like the mount.
                yield name, read_with_retry(partial(self.get, index), name)

    def get(self, index: int) -> tuple[Any, Any]:
        """Return one item; an error of the dataset, other than of a disk, is a `DecodeError`."""
        with self._turn:
            if index not in self._kept:
                if index >= _FIRST:
                    # Only the last one, because a single item may fill most of the memory.
                    self._kept.clear()
                self._kept[index] = self._taken(index, self.name(index))
            x, y = self._kept[index]
        if self.bare and y is not None:
            raise _odd(self.name(index), f"a target, and {self.bare} has none", "one for each item, or for none")
        return x, y

    def _taken(self, index: int, name: str) -> tuple[Any, Any]:
        try:
            item = self._dataset[index]
        except ColabstageError:
            raise
        except Exception as error:
            # A disk's errors have a number; Pillow's, of a damaged image, have none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            msg = ended(f"{name} raised {type(error).__name__}: {error}")
            raise DecodeError(msg) from error
        if isinstance(item, Mapping):
            return self._sides_of(item, name)
        is_numbers = isinstance(item, list) and all(isinstance(part, int | float) for part in item)
        if not isinstance(item, tuple | list) or is_numbers:
            return item, None
        # Only two: with three parts it is unclear which is the target.
        if len(item) == 2:
            return item[0], item[1]
        raise _odd(name, f"{len(item)} parts", "(x, y). Leave out the others, for example in a wrapper's items")

    def _sides_of(self, item: Mapping[Any, Any], name: str) -> tuple[Any, Any]:
        self.keys = self.keys or _find_keys(item, name)
        x, y, _ = self.keys
        for key in filter(None, (x, y)):
            if key not in item:
                raise _odd(name, f"no {key!r}, as the first item has")
        if y == _REST:
            return item[x], {key: value for key, value in item.items() if key != x}
        target = None if y is None else item[y]
        # Some have `None` instead of an empty list.
        return item[x], [] if y in OBJECTS and target is None else target


def _find_keys(item: Mapping[Any, Any], name: str) -> _Keys:
    xs, ys = ([key for key in known if key in item] for known in (_X_KEYS, _Y_KEYS))
    # Boxes with their labels, or in a column of objects, are one target. They and masks come before labels, which are
    # those of the first object, or of the scene.
    objects = [key for key, value in item.items() if key not in xs and _are_objects(value)]
    mask = mask_field(name, [key for key, value in item.items() if key not in xs and _is_pillow_image(value)])
    if not objects and _has_boxes(item):
        ys = [_REST]
    elif objects or mask:
        ys = [*objects, *filter(None, [mask])]
    elif not ys:
        ys = [key for key in OBJECTS if key in item and (item[key] is None or _may_hold_boxes(item[key]))]
    if len(xs) != 1 or len(ys) > 1:
        msg = (
            f"{name} is a mapping{_of_keys(item)}; expected (x, y), or an input called 'image' or 'x' and one target "
            "called 'label' or 'y'. Wrap the dataset in one whose items are such pairs, or rename and remove columns."
        )
        raise LayoutError(msg)
    if ys == [_REST]:
        return _Keys(xs[0], _REST, f"In each item {xs[0]!r} is the input, and the others are the target.")
    target = f"{ys[0]!r} the target" if ys else "there is no target"
    left = listed([str(key) for key in item if key not in (xs[0], *ys)])
    note = f"In each item {xs[0]!r} is the input, and {target}{f'; left out: {left}' if left else ''}."
    return _Keys(xs[0], ys[0] if ys else None, note)


def _of_keys(item: Any) -> str:
    return f" of {listed([*map(str, item)])}" if isinstance(item, Mapping) and item else ""


# --- values -----------------------------------------------------------------------------------------------------------


def _is_pillow_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _size_of_item(x: Any) -> tuple[int, int] | None:
    """Return the height and width of an image; `None` if its shape does not say which axes they are."""
    if _is_pillow_image(x):
        return x.size[1], x.size[0]
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        return shape[1], shape[2]
    return (shape[0], shape[1]) if len(shape) == 2 or shape[2:] in ((1,), (3,), (4,)) else None


def _as_input(value: Any, name: str) -> NDArray[Any]:
    """Return an input as an array; an image as its file would be decoded."""
    if _is_pillow_image(value):
        # In an input, palette indices are not brightness; in a mask, they are the classes.
        if value.mode in ("P", "PA"):
            value = value.convert("RGBA" if value.mode == "PA" or "transparency" in value.info else "RGB")
        # As files with these modes are decoded: black and white as 0 and 255, 32 bits as numbers without a range.
        value = value.convert({"1": "L", "I": "F"}.get(value.mode, value.mode))
    return _item_array(value, name)


def _as_target(value: Any, name: str, *, classes: Sequence[str]) -> NDArray[Any]:
    """Return a target as an array; a number of a class that has no name is refused, if the dataset has names."""
    values = _item_array(value, name)
    if classes and values.size == 1 and values.dtype.kind in "iu":
        # Test sets with secret labels use -1.
        _check_classes(np.maximum(values.reshape(-1), 0), classes, f"{name} has the class")
    return values


def _check_classes(labels: NDArray[Any], classes: Sequence[str], has: str) -> None:
    """Refuse numbers of classes beyond the names; `has`: who has what."""
    odd = labels[(labels < 0) | (labels >= len(classes))]
    if len(odd):
        msg = (
            f"{has} {odd[0]}, and the dataset names {len(classes)} classes, from 0 to {len(classes) - 1} "
            f"({', '.join(classes[:3])}, …). Names and numbers must agree: where labels begin at 1, the first name is "
            "that of the background."
        )
        raise LayoutError(msg)


def _named(names: Any) -> tuple[str, ...]:
    """Return the names in what a dataset calls its classes, unless that is their number, or a set, without an order."""
    return tuple(map(str, names)) if isinstance(names, Iterable) and not isinstance(names, str | Set) else ()


def _item_array(value: Any, name: str) -> NDArray[Any]:
    """Return a Pillow image, tensor, array or number as an array; Python's own numbers as int64 and float32."""
    if _is_pillow_image(value):
        pixels = np.asarray(value if value.mode in _KEPT_MODES else value.convert("RGB"))
        # In Pillow the byte for True is 255, which a numpy cast would keep.
        return (pixels.view(np.uint8) > 0).astype(np.uint8) if pixels.dtype == np.bool_ else pixels
    # As torch does with Python numbers; twice the memory would gain nothing.
    if isinstance(value, float):
        return np.array(value, np.float32)
    try:
        values = array_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = ended(f"{name} has {type(value).__name__} values that do not make an array: {error}")
        raise LayoutError(msg) from error
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > _WIDEST_BYTES:
        has = f"{type(value).__name__} values ({values.dtype})"
        raise _odd(name, has, "an image, an array or a number, of at most 64 bits")
    return values


def _odd(name: str, has: str, expected: str = "", kind: type[ColabstageError] = LayoutError) -> ColabstageError:
    """Return the error for an item that differs from what was expected."""
    return kind(f"{name} has {has}{f'; expected {expected}' if expected else ''}.")


def array_of(value: Any) -> NDArray[Any]:
    """Return what numpy makes of a tensor, a list or an array; a ValueError for masked values, whose numbers mean
    nothing."""
    if np.ma.is_masked(value):
        msg = "some are masked; give them a value, array.filled(0)"
        raise ValueError(msg)
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


# --- boxes ------------------------------------------------------------------------------------------------------------

# An item is read once, its image and its boxes together, so the number of boxes is known only when all items have been
# read. The first items decide everything else before.

# What torchvision's BoundingBoxes call their forms.
_FORMATS: dict[str, Form] = {"XYXY": "xyxy", "XYWH": "xywh", "CXCYWH": "cxcywh"}
# What a target may consist of if an image has no boxes.
_NAMES_OF_IMAGES = frozenset({"image_id", "id"})
# Class numbers above this are not indices; a list of names for them would be mostly gaps.
_MOST_CLASSES = 10_000


class _Found(NamedTuple):
    """The boxes of one item, as written."""

    places: NDArray[np.float64]
    form: Form | None = None
    """`None` if nothing says it."""
    columns: Mapping[str, Any] = {}
    """Everything else about each box."""


@dataclass(frozen=True, slots=True)
class _BoxItems:
    """How the targets of a dataset's items become rows."""

    form: Form
    columns: Mapping[str, tuple[str, type[np.generic]]]
    """What each column of the items becomes, and its type; the class comes first."""
    classes: tuple[str, ...]
    note: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the row of a box: `boxes`, `labels`, and further columns."""
        return np.dtype([("boxes", np.float64, (4,)), *self.columns.values()])

    def rows(self, target: Any, name: str) -> NDArray[Any]:
        """Return the boxes of one item, `(M,)` of `dtype`, with corners."""
        found = _find_boxes(target, name)
        rows: NDArray[Any] = np.zeros(len(found.places), self.dtype)
        if not len(rows):
            return rows
        rows["boxes"] = _checked_corners(found.places, found.form or self.form, name)
        for key, (column, kind) in self.columns.items():
            if key not in found.columns:
                raise _odd(name, f"boxes without {key!r}, which the first items have")
            rows[column] = _column(found.columns[key], key, len(rows), kind, name)
        if self.classes and "labels" in (rows.dtype.names or ()):
            _check_classes(rows["labels"], self.classes, f"{name} has a box of class")
        return rows


def _may_hold_boxes(target: Any) -> bool:
    """Tell whether a target is a dict, a list of dicts or an empty list, as in detection datasets."""
    return isinstance(target, Mapping) or (_is_list(target) and all(isinstance(one, Mapping) for one in target))


def _are_objects(value: Any) -> bool:
    """Tell whether a value is a dict with rows of boxes, or a list of dicts with one each."""
    each = list(value) if _is_list(value) else []
    return (bool(each) and all(box_key(one) is not None for one in each)) or _has_boxes(value)


def _has_boxes(item: Any) -> bool:
    """Tell whether a value is a mapping that has rows of boxes itself; one box for an image is something else."""
    value = item[key] if (key := box_key(item)) is not None else None
    if isinstance(value, list | tuple):
        return all(_is_list(one) or len(getattr(one, "shape", ())) == 1 for one in value)
    return len(getattr(value, "shape", ())) == 2


def _plan_boxes(pairs: _Pairs, dataset: Any) -> _BoxItems:
    """Decide by a dataset's first items how all boxes are read; the dataset names the classes, as Hugging Face's,
    torchvision's and others do."""
    seen = [(name, x, y, _find_boxes(y, name)) for name, (x, y) in pairs.readable()]
    filled = [one for one in seen if len(one[3].places)]
    if not filled:
        raise _unknown(seen[0][2], seen[0][0], "no boxes, like the items after it")
    name, _, target, found = filled[0]
    places = [one[3].places for one in filled]
    form, relative, trouble = find_form(places, lambda number: _size_of_item(filled[number][1]), stated=found.form)
    if relative or max(each.max() for each in places) <= 1:
        trouble = "are parts of width and height"
    if trouble:
        msg = (
            f"The boxes of the first items {trouble} ({name} has {_format_box(found.places[0])}). Wrap the "
            "dataset in one whose items are (image, {'boxes': corners in pixels, 'labels': numbers})."
        )
        raise LayoutError(msg)
    label = next((key for key in BOX_LABELS if key in found.columns), None)
    words = [key for key, each in found.columns.items() if _is_list(each) and len(each) and isinstance(each[0], str)]
    # torchvision's Kitti says what a box is under 'type'.
    if words and label in (None, *words):
        what = f"boxes whose classes are words, {found.columns[label or words[0]][0]!r} under {label or words[0]!r}"
        raise _unknown(target, name, f"{what}. Number the classes, as by a dict of their names")
    columns: dict[str, tuple[str, type[np.generic]]] = {} if label is None else {label: ("labels", np.int64)}
    columns |= further_fields(found.columns)
    left = ", ".join(repr(key) for key in found.columns if key not in columns)
    note = " and ".join([f"Of each target the boxes (written as {form})", *map(repr, columns)])
    note += f" are kept; left out: {left}." if left else " are kept."
    planned = _BoxItems(form, columns, _class_names(dataset, pairs.feature(), label), note)
    # Faults in the first items are reported before anything is written.
    for name, _, target, _ in filled:
        planned.rows(target, name)
    return planned


def _find_boxes(target: Any, name: str) -> _Found:
    """Return the boxes of a target as written."""
    # Some have `None` instead of an empty list.
    target = [] if target is None else target
    if not _may_hold_boxes(target):
        raise _odd(name, f"{type(target).__name__} as its target, and other items have boxes", "a dict of them")
    each = [target] if isinstance(target, Mapping) else list(target)
    key = next(map(box_key, each), None)
    odd = next((one for one in each if box_key(one) != key or key is None), None)
    if odd is not None and odd.keys() - _NAMES_OF_IMAGES:
        raise _unknown(odd, name)
    if key is None:
        return _Found(np.zeros((0, 4)))
    fields = by_field(target if isinstance(target, Mapping) else each)
    boxes, columns = fields[key], {str(one): value for one, value in fields.items() if one != key}
    form = _stated_form(boxes, name) or stated_form(key, columns)
    values = _read_numbers(boxes, "boxes", name)
    values = values if values.size else np.zeros((0, 4))
    if values.ndim != 2 or values.shape[1] != 4 or not np.isfinite(values).all():
        raise _odd(name, f"boxes of shape {values.shape}", "four finite numbers for each box", DecodeError)
    return _Found(values.astype(np.float64), form, columns)


def _stated_form(places: Any, name: str) -> Form | None:
    written = getattr(places, "format", None)
    if written is None or callable(written):
        return None
    written = str(getattr(written, "value", written))
    if written not in _FORMATS:
        raise _odd(name, f"boxes of the form {written}", f"one of {', '.join(_FORMATS)}")
    return _FORMATS[written]


def _unknown(target: Any, name: str, what: str = "") -> LayoutError:
    return LayoutError(
        f"{name} has {what or f'a dict{_of_keys(target)} as its target'}; expected 'boxes' and 'labels', numbers. For "
        "torchvision's Kitti and VOCDetection, pass torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), or "
        'stage the folder that it reads (layout="detection").'
    )


def _read_numbers(value: Any, key: str, name: str) -> NDArray[Any]:
    """Return what an item has under `key` as an array of numbers."""
    try:
        # Lists of tensors, from Hugging Face's format "torch" if lengths differ.
        values = np.asarray(list(map(array_of, value))) if _is_list(value) else array_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = ended(f"{name} has {key!r} that do not make an array: {error}")
        raise DecodeError(msg) from error
    if values.dtype.kind not in "biuf" and values.size:
        first = show(values.reshape(-1)[0])
        how = "Number the classes, as by a dict of their names"
        raise _odd(name, f"{first!r} under {key!r}", f"numbers. {how}")
    return values


def _column(written: Any, key: str, count: int, kind: type[np.generic], name: str) -> NDArray[Any]:
    values = _read_numbers(written, key, name)
    if values.shape != (count,):
        raise _odd(name, f"{count} boxes and {key!r} of shape {values.shape}", "one for each box", DecodeError)
    unfit, expected = first_unfit(values, kind)
    if unfit >= 0:
        expected = "whole numbers, the classes" if key in BOX_LABELS else expected
        raise _odd(name, f"{values[unfit]} under {key!r}", expected)
    return values


def _checked_corners(places: NDArray[np.float64], form: Form, name: str) -> NDArray[np.float64]:
    wrong = (places[:, 2:] < (places[:, :2] if form == "xyxy" else 0)).any(axis=1)
    if wrong.any():
        expected = "x0 <= x1 and y0 <= y1" if form == "xyxy" else "sizes of 0 and more"
        raise _odd(name, f"the box {_format_box(places[wrong][0])}, which is no {form}", expected, DecodeError)
    return as_corners(places, form)


def _class_names(dataset: Any, feature: Any, label: str | None) -> tuple[str, ...]:
    """Return the names of the classes, as labels count them; nothing if the dataset has none."""
    names = names_of_feature(feature, label)
    # COCO's ids have gaps, and labels are ids: gaps get the name that torchvision's models use for them.
    kinds = getattr(getattr(dataset, "coco", None), "cats", None)
    if not names and isinstance(kinds, Mapping) and all(isinstance(key, int) and key >= 0 for key in kinds):
        count = 1 + max(kinds, default=-1)
        if count <= _MOST_CLASSES:
            names = tuple(str(kinds[key]["name"]) if key in kinds else "N/A" for key in range(count))
    return names or _named(getattr(dataset, "classes", ()))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")


def _format_box(box: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in box.tolist()) + "]"
