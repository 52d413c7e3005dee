"""The items of a dataset object as samples: anything with a length whose items are (x, y)."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, EmptySourceError, LayoutError, OptionError, ended
from colabstage.io.arguments import show_value
from colabstage.io.chance import Chance
from colabstage.io.files import read_with_retry
from colabstage.io.units import listed
from colabstage.layouts import words
from colabstage.layouts.formats.masks import find_masks, is_mask_name, mask_field
from colabstage.layouts.records import (
    BOX_KEYS,
    BOX_LABELS,
    FURTHER,
    OBJECTS,
    OWN_BOXES,
    BoxForm,
    FoundForm,
    ObjectFields,
    box_fields,
    box_key,
    by_field,
    names_of_feature,
)
from colabstage.layouts.table import (
    Arrays,
    BrokenDatasetError,
    Images,
    SampleSource,
    SampleTable,
    Targets,
    UnreadBoxes,
    numbered_samples,
)
from colabstage.machine.mounts import InCaller, call_here

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

NAME = "dataset"
# Common names of the two sides of a dict item, as in Hugging Face datasets. Exactly one of each must be there, because
# with two it would be unclear which is meant.
_X_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "features", "data")
_Y_KEYS = ("label", "labels", "fine_label", "target", "targets", "y", "class", "mask")
# As many items are kept as are examined before packing begins.
_FIRST = 16
_SEVERAL = "several inputs are a pack each, which loaders with one seed= visit in the same order"
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
    chance = Chance()
    pairs.find_keys()
    name, (x, y) = next(pairs.readable(), None) or (pairs.name(0), pairs.get(0))
    pairs.bare = name if y is None else ""
    # Hugging Face datasets store class names with the column, torchvision's as an attribute.
    classes = _named(getattr(pairs.feature(), "names", ()) if pairs.keys else getattr(dataset, "classes", ()))
    notes = [*chance.notes("Items"), *([pairs.keys.note] if pairs.keys else [])]
    targets: Targets | None = None
    if _may_hold_boxes(y):
        planned = _plan_boxes(pairs, dataset)
        if planned.form.relative and not _is_pillow_image(x):
            raise _odd(name, "boxes that are parts of width and height, on an array", f"corners in pixels{OWN_BOXES}")
        rows = pairs.side(1, planned.dtype.itemsize, planned.rows)
        targets = UnreadBoxes(rows, planned.dtype, planned.form.relative)
        # Boxes have class names of their own, for objects; the dataset's names are for whole images.
        classes, notes = planned.classes, [*notes, planned.fields.note(planned.form)]
    elif y is not None:
        first = _as_target(y, name, classes=())
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
    is_table = hasattr(dataset, "columns") and (hasattr(dataset, "to_csv") or hasattr(dataset, "write_csv"))
    what, remedy = "", "Give list(zip(x, y)); of two samples, a list."
    # Not `0 not in dataset`, which raises an error for an h5py.File.
    if is_one and isinstance(dataset, Mapping) and len(dataset) and 0 not in [*dataset]:
        what = f"samples under {listed([*map(str, dataset)])}"
        # The result of load_dataset without split=.
        remedy = remedy if all(hasattr(one, "dtype") for one in dataset.values()) else "Pass one, and a file for each."
    elif is_one and isinstance(dataset, list | tuple) and dataset and isinstance(dataset[0], str | os.PathLike):
        what, remedy = "paths for samples", "stage_dataset takes several sources; the .path of its result is the pack."
    elif is_pair:
        what = "two arrays for samples"
    # A table's items are its columns, items of bytes are numbers, and a class has none.
    elif is_one and not isinstance(dataset, bytes | bytearray | type) and not is_table:
        if len(dataset) == 0:
            msg = f"The {type(dataset).__name__} has no items."
            raise EmptySourceError(msg)
        return
    if not what:
        is_iterator = isinstance(dataset, Iterator) and not hasattr(dataset, "read")
        what, remedy = "no samples by number", "Give list(…) of it." if is_iterator else ""
    expected = "a path, or a dataset with a length and items (x, y)"
    msg = f"source={show_value(dataset)} has {what}; expected {expected}. {remedy}"
    raise OptionError(msg.rstrip())


class _Keys(NamedTuple):
    """The keys of the two sides of items that are mappings."""

    x: str
    y: tuple[str, ...]
    """Several if boxes and their labels are beside each other."""
    are_objects: bool
    known: frozenset[Any]
    note: str


class _Pairs:
    """Items as `(x, y)`. The last one is kept, because its two sides are read one after the other, and so are the first
    ones, which are examined before packing begins."""

    def __init__(self, dataset: IndexableDataset, in_caller: InCaller) -> None:
        self._dataset, self._in_caller = dataset, in_caller
        # If a thread executor writes shards, its threads take turns.
        self._turn = threading.Lock()
        self._kept: dict[int, Any] = {}
        # A new one each time: a dataset may return other items next time, so no pack of it is continued.
        self._token = uuid.uuid4().hex
        self._label = type(dataset).__name__
        self.bare = ""  # the name of the item that says that none has a target
        self.keys: _Keys | None = None

    def name(self, index: int) -> str:
        return f"{self._label}[{index}]"

    def find_keys(self) -> None:
        """Find the keys of items that are mappings, by all of the first items."""
        found = [(name, item) for name, item in self._first(self._item) if isinstance(item, Mapping)]
        every: dict[Any, Any] = {}
        for _, item in found:
            every |= {key: value for key, value in item.items() if every.get(key) is None}
        self.keys = _find_keys(every, found[0][0]) if found else None

    def feature(self) -> Any:
        """Return the feature of the target column of a Hugging Face `Dataset`, or of all."""
        features = getattr(self._dataset, "features", None)
        if self.keys is None or not isinstance(features, Mapping):
            return None
        return features if len(self.keys.y) != 1 else features.get(self.keys.y[0])

    def side(self, side: int, nbytes: int, convert: Callable[[Any, str], NDArray[Any]]) -> SampleSource:
        """Return x (0) or y (1) of all items, of about `nbytes` each, converted to what is stored."""

        def read(index: int) -> NDArray[Any]:
            # Converting it to an array is also the item's code, which may read a file only then.
            return self._in_caller(lambda: convert(self.get(index)[side], self.name(index)))

        return numbered_samples(self._label, self._token, len(self._dataset), nbytes, read=read)

    def readable(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        """Yield the first items with their names, except broken ones, which are reported when they are packed."""
        return self._first(self.get)

    def _first(self, get: Callable[[int], T]) -> Iterator[tuple[str, T]]:
        for name, index in ((self.name(index), index) for index in range(min(_FIRST, len(self._dataset)))):
            with suppress(DecodeError):
                # A dataset that reads from a mount may fail temporarily, like the mount.
                yield name, read_with_retry(partial(get, index), name)

    def get(self, index: int) -> tuple[Any, Any]:
        """Return one item; an error of the dataset, other than of a disk, is a `DecodeError`."""
        with self._turn:
            x, y = self._sides_of(self._item(index), self.name(index))
        if self.bare and y is not None:
            raise _odd(self.name(index), f"a target, and {self.bare} has none", "one for each item, or for none")
        return x, y

    def _item(self, index: int) -> Any:
        if index not in self._kept:
            if index >= _FIRST:
                # Only the last one, because a single item may fill most of the memory.
                self._kept.clear()
            try:
                self._kept[index] = self._dataset[index]
            except ColabstageError:
                raise
            except Exception as error:
                # A disk's errors have a number; Pillow's, of a damaged image, have none.
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                msg = ended(f"{self.name(index)} raised {type(error).__name__}: {error}")
                raise DecodeError(msg) from error
        return self._kept[index]

    def _sides_of(self, item: Any, name: str) -> tuple[Any, Any]:
        if isinstance(item, Mapping):
            return self._sides_by_key(item, name)
        is_numbers = isinstance(item, list) and all(isinstance(part, int | float) for part in item)
        if not isinstance(item, tuple | list) or is_numbers:
            return item, None
        # Only two: with three parts it is unclear which is the target.
        if len(item) == 2:
            return item[0], item[1]
        wanted = f"(x, y). Leave out the others, for example in a wrapper's items; {_SEVERAL}"
        raise _odd(name, f"{len(item)} parts", wanted)

    def _sides_by_key(self, item: Mapping[Any, Any], name: str) -> tuple[Any, Any]:
        keys = self.keys
        if keys is None:
            raise _odd(name, f"a mapping{_of_keys(item)}, and the first items none", "one form for all")
        _refuse_new(item.keys() - keys.known, {*_Y_KEYS, *OBJECTS, *BOX_KEYS}, name)
        lost = [key for key in (keys.x, *keys.y) if key not in item and (key == keys.x or not keys.are_objects)]
        if lost:
            raise _odd(name, f"no {lost[0]!r}, as others have")
        if len(keys.y) > 1:
            return item[keys.x], {key: item[key] for key in keys.y if key in item}
        target = item.get(keys.y[0]) if keys.y else None
        # Some have `None` instead of an empty list.
        return item[keys.x], [] if keys.are_objects and target is None else target


def _find_keys(item: Mapping[Any, Any], name: str) -> _Keys:
    """Find the keys of x and y in an item."""
    xs = [key for key in _X_KEYS if key in item]
    rest = {str(key): value for key, value in item.items() if key not in xs}
    # Boxes with their labels, or in a column of objects, are one target. They and masks come before labels, which are
    # those of the first object, or of the scene.
    about = box_fields(name, _as_lists(rest, name))
    mask = mask_field(name, [key for key, value in rest.items() if _is_pillow_image(value) or _are_several(value)])
    ys = [tuple(own) for own in (about, [mask] * bool(mask)) if own] or [(key,) for key in _Y_KEYS if key in rest]
    if not ys:
        objects = [key for key in OBJECTS if key in rest and (rest[key] is None or _may_hold_boxes(rest[key]))]
        about, ys = objects, [(key,) for key in objects]
    odd = [] if ys else words.unused_labels([key for key, value in rest.items() if not isinstance(value, Mapping)])
    if len(xs) != 1 or len(ys) > 1 or odd:
        msg = (
            f"{name} is a mapping{_of_keys(item)}; expected (x, y), or an input called 'image' or 'x' and one target "
            "called 'label' or 'y'. Wrap the dataset in one whose items are such pairs, or rename and remove columns."
        )
        raise LayoutError(msg)
    y = next(iter(ys), ())
    target = f"{listed(y)} the target" if y else "there is no target"
    left = listed([key for key in rest if key not in y])
    note = f"In each item {xs[0]!r} is the input, and {target}{f'; left out: {left}' if left else ''}."
    return _Keys(xs[0], y, bool(about), frozenset(item), note)


def _refuse_new(new: Iterable[Any], targets: Container[Any], name: str) -> None:
    """Refuse what an item has, and the first ones lack, if it may be a target: it would be left out in silence."""
    for key in sorted(key for key in map(str, new) if key in targets or is_mask_name(key)):
        raise _odd(name, f"{key!r}, which the first items lack", "the same keys in all")


def _of_keys(item: Any) -> str:
    return f" of {listed([*map(str, item)])}" if isinstance(item, Mapping) and item else ""


# --- values -----------------------------------------------------------------------------------------------------------


def _is_pillow_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _are_several(value: Any) -> bool:
    return _is_list(value) and len(value) > 0 and all(map(_is_pillow_image, value))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")


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
    if _are_several(value):
        raise _odd(name, f"{len(value)} images as its target", "one mask, each of whose pixels is a class")
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
        raise LayoutError(f"{msg} Of arrays {_SEVERAL}." if _is_list(value) else msg) from error
    if values.dtype.kind not in "biufc":
        how = "; the number of a word is CLASSES.index(word)" if values.dtype.kind in "US" else ""
        expected = f"an image, an array (of a text its tokens) or a number{how}"
        raise _odd(name, f"{type(value).__name__} values ({values.dtype})", expected)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _odd(name: str, has: str, expected: str = "") -> LayoutError:
    """Return the error for an item that differs from what was expected."""
    return LayoutError(f"{name} has {has}{f'; expected {expected}' if expected else ''}.")


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
_FORMS: dict[str, BoxForm] = {"XYXY": "xyxy", "XYWH": "xywh", "CXCYWH": "cxcywh"}
# What a target may consist of if an image has no boxes.
_NAMES_OF_IMAGES = frozenset({"image_id", "id"})
# Class numbers above this are not indices; a list of names for them would be mostly gaps.
_MOST_CLASSES = 10_000


@dataclass(frozen=True, slots=True)
class _BoxItems:
    """How the targets of a dataset's items become rows."""

    fields: ObjectFields
    form: FoundForm
    classes: tuple[str, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the row of a box: `boxes`, `labels`, and further columns."""
        return np.dtype([("boxes", np.float64, (4,)), ("labels", np.int64), *self.fields.further.values()])

    def rows(self, target: Any, name: str) -> NDArray[Any]:
        """Return the boxes of one item, `(M,)` of `dtype`, with corners."""
        objects, stated = _objects(target, name)
        _refuse_new(objects.keys() - {*self.fields.used, *self.fields.others}, _OF_BOXES, name)
        try:
            found = self.fields.read([objects], [name])
            corners = found.corners(stated or self.form.form)
        except BrokenDatasetError as error:
            raise DecodeError(str(error)) from error
        if self.form.relative and found.places.max(initial=0) >= 2:
            raise _odd(name, "boxes in pixels, and the first items parts of width and height", "one of both")
        rows: NDArray[Any] = np.zeros(len(corners), self.dtype)
        if word := next((one for one in found.labels if isinstance(one, str)), ""):
            what = f"boxes whose classes are words, {word!r} under {self.fields.label!r}"
            raise _unknown(target, name, f"{what}. Number the classes, as by a dict of their names")
        for key, values in {"boxes": corners, "labels": found.labels, **found.columns}.items():
            rows[key] = values
        if self.classes:
            _check_classes(rows["labels"], self.classes, f"{name} has a box of class")
        return rows


_OF_BOXES = {*BOX_KEYS, *BOX_LABELS, *FURTHER}


def _may_hold_boxes(target: Any) -> bool:
    """Tell whether a target is a dict, a list of dicts or an empty list, as in detection datasets."""
    return isinstance(target, Mapping) or (_is_list(target) and all(isinstance(one, Mapping) for one in target))


def _plan_boxes(pairs: _Pairs, dataset: Any) -> _BoxItems:
    """Decide by a dataset's first items how all boxes are read; the dataset names the classes, if it has names."""
    seen = [(name, x, y, *_objects(y, name)) for name, (x, y) in pairs.readable()]
    names, xs, ys, objects, forms = zip(*seen, strict=True)
    fields = ObjectFields.of(objects)
    found = fields.read(objects, names)
    if not len(found.places):
        raise _unknown(ys[0], names[0], "no boxes, like the items after it")
    stated = next(filter(None, forms), fields.stated)
    form = found.form(lambda number: _size_of_item(xs[number]), (stated,))
    planned = _BoxItems(fields, form, _class_names(dataset, pairs.feature(), fields.label))
    # Words as classes, and classes without a name, are reported before anything is written.
    planned.rows(ys[0], names[0])
    return planned


def _objects(target: Any, name: str) -> tuple[dict[str, Any], BoxForm | None]:
    """Return a target as the objects of a record, a list for each field of them; and what its numbers mean, if it says
    so."""
    # Some have `None` instead of an empty list.
    target = [] if target is None else target
    if not _may_hold_boxes(target):
        raise _odd(name, f"{type(target).__name__} as its target, and other items have boxes", "a dict of them")
    fields = by_field(target if isinstance(target, Mapping) else [*target])
    if box_key(fields) is None and fields.keys() - _NAMES_OF_IMAGES:
        raise _unknown(target, name)
    return _as_lists(fields, name), _stated_form(fields.get(box_key(fields) or ""), name)


def _as_lists(value: Any, name: str) -> Any:
    """Return what holds boxes with all that is known of these as lists, not as tensors and arrays."""
    if isinstance(value, Mapping):
        nested = {key for key, own in value.items() if key in _OF_BOXES or _may_hold_boxes(own)}
        return {str(key): _as_lists(own, name) if key in nested else own for key, own in value.items()}
    if _is_list(value):
        return [_as_lists(one, name) for one in value]
    try:
        return array_of(value).tolist() if hasattr(value, "__array__") else value
    except (TypeError, ValueError, RuntimeError) as error:
        msg = ended(f"{name} has {type(value).__name__} values that do not make an array: {error}")
        raise DecodeError(msg) from error


def _stated_form(places: Any, name: str) -> BoxForm | None:
    written = getattr(places, "format", None)
    if written is None or callable(written):
        return None
    written = str(getattr(written, "value", written))
    if written not in _FORMS:
        raise _odd(name, f"boxes of the form {written}", f"one of {', '.join(_FORMS)}")
    return _FORMS[written]


def _unknown(target: Any, name: str, what: str = "") -> LayoutError:
    return LayoutError(
        f"{name} has {what or f'a dict{_of_keys(target)} as its target'}; expected 'boxes' and 'labels', numbers. For "
        "torchvision's Kitti and VOCDetection, pass torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), or "
        'stage the folder that it reads (layout="detection").'
    )


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
