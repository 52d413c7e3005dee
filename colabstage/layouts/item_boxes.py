"""The boxes of a dataset object's items: what their four numbers mean, and which further columns there are.

An item is taken once, its image and its boxes together, so the number of boxes is known only when all items have been
taken. The first items decide the rest before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, ended
from colabstage.layouts.boxes import BoxColumn, Form, as_corners, find_form
from colabstage.layouts.columns import show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

# By preference. Only under the first name everybody means corners.
BOX_KEYS = ("boxes", "bboxes", "bbox")
_LABEL_KEYS = (
    "labels", "label", "category_id", "category", "categories", "class_labels", "class_id", "class",
)  # fmt: skip
# The types that folders of COCO's, Pascal VOC's and KITTI's files get; "truncated" is a share in KITTI's.
_FURTHER = (
    BoxColumn("iscrowd", np.uint8), BoxColumn("area", np.float32), BoxColumn("difficult", np.uint8),
    BoxColumn("truncated", np.float32), BoxColumn("occluded", np.int64), BoxColumn("alpha", np.float32),
    BoxColumn("dimensions", np.float32, 3), BoxColumn("location", np.float32, 3), BoxColumn("rotation_y", np.float32),
)  # fmt: skip
_KNOWN = frozenset({*_LABEL_KEYS, *(column.name for column in _FURTHER)})
# What torchvision's BoundingBoxes call their forms.
_FORMATS: dict[str, Form] = {"XYXY": "xyxy", "XYWH": "xywh", "CXCYWH": "cxcywh"}
# What a target may consist of where an image has no boxes.
_NAMES_OF_IMAGES = frozenset({"image_id", "id"})
# Class numbers above this are no indices; a list of names for them would be mostly gaps.
_MOST_CLASSES = 10_000
_NO_NAME = "N/A"


class LookedAt(NamedTuple):
    """One of the first items."""

    name: str
    target: Any
    size: tuple[int, int] | None


class _Found(NamedTuple):
    """The boxes of one item, as they are written."""

    places: NDArray[np.float64]
    form: Form | None
    """`None` if nothing says it."""
    columns: dict[str, Any]
    """Everything else of each box."""


@dataclass(frozen=True, slots=True)
class BoxItems:
    """How the targets of a dataset's items become rows."""

    form: Form
    label: str | None
    further: tuple[BoxColumn, ...]
    classes: tuple[str, ...]
    note: str
    """What is kept and left out, for the user."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the row of a box: `boxes`, `labels`, and further columns."""
        columns = (*([BoxColumn("labels", np.int64)] if self.label is not None else []), *self.further)
        shaped = [(c.name, c.dtype, (c.width,)) if c.width > 1 else (c.name, c.dtype) for c in columns]
        fields: list[Any] = [("boxes", np.float64, (4,)), *shaped]
        return np.dtype(fields)

    def rows(self, target: Any, name: str) -> NDArray[Any]:
        """Return the boxes of one item, `(M,)` of `dtype`, with corners."""
        found = _find_boxes(target, name)
        rows: NDArray[Any] = np.zeros(len(found.places), self.dtype)
        if len(rows):
            rows["boxes"] = _checked_corners(found.places, found.form or self.form, name)
            wanted = [(self.label, "labels", 1)] if self.label is not None else []
            for key, column, width in [*wanted, *((one.name, one.name, one.width) for one in self.further)]:
                rows[column] = _column(found, key, width, name)
            self._check_labels(rows, name)
        return rows

    def _check_labels(self, rows: NDArray[Any], name: str) -> None:
        if self.label is None or not self.classes:
            return
        odd = rows["labels"][(rows["labels"] < 0) | (rows["labels"] >= len(self.classes))]
        if len(odd):
            msg = (
                f"{name} has a box of class {odd[0]}, and the dataset names {len(self.classes)} classes, from 0 to "
                f"{len(self.classes) - 1} ({', '.join(self.classes[:3])}, …). Names and numbers must agree: where "
                "labels begin at 1, the first name is that of the background."
            )
            raise LayoutError(msg)


def may_hold_boxes(target: Any) -> bool:
    """Tell whether a target is a dict, a list of dicts or an empty list, as those of detection datasets are."""
    return isinstance(target, Mapping) or (_is_list(target) and all(isinstance(one, Mapping) for one in target))


def has_boxes(item: Mapping[Any, Any]) -> bool:
    """Tell whether an item that is a mapping has rows of boxes itself; one box for an image is something else."""
    value = item.get(box_key(item) or "")
    if isinstance(value, list | tuple):
        return all(_is_list(one) or len(getattr(one, "shape", ())) == 1 for one in value)
    return len(getattr(value, "shape", ())) == 2


def box_key(target: Any) -> str | None:
    """Return the name of the boxes in a mapping; `None` if there are none."""
    return next((key for key in BOX_KEYS if key in target), None) if isinstance(target, Mapping) else None


def plan_boxes(first: Iterable[LookedAt], dataset: Any, feature: Any = None) -> BoxItems:
    """Decide by a dataset's first items how the boxes of all are read.

    Args:
        first: some items, one of which at least has boxes.
        dataset: says the names of classes, as Hugging Face's, torchvision's and others do.
        feature: what Hugging Face's `features` say of the boxes.
    """
    seen = [(one, _find_boxes(one.target, one.name)) for one in first]
    filled = [(one, found) for one, found in seen if len(found.places)]
    if not filled:
        what = f"the first {len(seen)} items" if len(seen) > 1 else seen[0][0].name
        msg = (
            f"The targets of {what} are dicts{_keys(seen[0][0].target)} without boxes; expected numbers, an image, or "
            "boxes called 'boxes' beside their 'labels'. Wrap the dataset in one whose items have these."
        )
        raise LayoutError(msg)
    one, found = filled[0]
    form, trouble = find_form([found.places for _, found in filled], lambda n: filled[n][0].size, most=len(filled))
    if found.form is None and trouble:
        msg = (
            f"The boxes of the first items {trouble} ({one.name} has {_format_box(found.places[0])}). Wrap the dataset "
            "in one whose items are (image, {'boxes': corners, 'labels': numbers})."
        )
        raise LayoutError(msg)
    form = found.form or form
    if all(found.places.max() <= 1 for _, found in filled):
        msg = (
            f"{one.name} has boxes such as {_format_box(found.places[0])}, and no box of the first items reaches "
            "beyond 1: they look like normalized coordinates. Multiply them, as boxes are in pixels."
        )
        raise LayoutError(msg)
    label = next((key for key in _LABEL_KEYS if key in found.columns), None)
    words = (
        key for key, value in found.columns.items() if _is_list(value) and len(value) and isinstance(value[0], str)
    )
    # torchvision's Kitti says what a box is under 'type'.
    if label is None and (words_key := next(words, None)) is not None:
        raise _unknown(one.target, one.name, f"boxes whose classes are words under {words_key!r}")
    further = tuple(column for column in _FURTHER if column.name in found.columns)
    kept = [*([label] if label else []), *(column.name for column in further)]
    left = [key for key in found.columns if key not in kept]
    note = " and ".join([f"Of each target the boxes (written as {form})", *map(repr, kept)]) + " are kept"
    note += f"; left out: {', '.join(map(repr, left))}." if left else "."
    planned = BoxItems(form, label, further, _class_names(dataset, feature, label), note)
    # What is wrong with the first items is reported before anything is written.
    for one, _ in filled:
        planned.rows(one.target, one.name)
    return planned


def _find_boxes(target: Any, name: str) -> _Found:
    """Return the boxes of a target as they are written."""
    if isinstance(target, Mapping):
        key = box_key(target)
        if key is None and target.keys() <= _NAMES_OF_IMAGES:
            return _Found(np.zeros((0, 4)), None, {})
        if key is None:
            raise _unknown(target, name)
        form = _stated_form(target[key], name) or ("xyxy" if key == "boxes" else None)
        return _Found(_check_boxes(target[key], name), form, {str(k): value for k, value in target.items() if k != key})
    if not may_hold_boxes(target):
        msg = f"{name} has {type(target).__name__} as its target, and other items have boxes; expected a dict of them."
        raise LayoutError(msg)
    odd = next((one for one in target if box_key(one) is None), None)
    if odd is not None:
        raise _unknown(odd, name)
    keys = [key for key in target[0] if key not in BOX_KEYS] if len(target) else []
    columns = {str(key): [one.get(key) for one in target] for key in keys}
    # The annotations of COCO's own reader: the only ones that have both.
    form = "xywh" if {"category_id", "image_id"} <= columns.keys() else None
    return _Found(_check_boxes([one[box_key(one)] for one in target], name), form, columns)


def _stated_form(places: Any, name: str) -> Form | None:
    written = getattr(places, "format", None)
    if written is None or callable(written):
        return None
    written = str(getattr(written, "value", written))
    if written not in _FORMATS:
        msg = f"{name} has boxes of the form {written}; expected one of {', '.join(_FORMATS)}."
        raise LayoutError(msg)
    return _FORMATS[written]


def _keys(target: Any) -> str:
    keys = ", ".join(repr(key) for key in list(target)[:8]) if isinstance(target, Mapping) else ""
    return f" of {keys}" if keys else ""


def _unknown(target: Any, name: str, what: str = "") -> LayoutError:
    return LayoutError(
        f"{name} has {what or 'a dict' + _keys(target)} as its target; expected 'boxes' and 'labels', numbers. For "
        "torchvision's Kitti and VOCDetection, pass torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), or "
        'stage the folder that it reads (layout="detection").'
    )


def _check_boxes(boxes: Any, name: str) -> NDArray[np.float64]:
    values = _read_numbers(boxes, "boxes", name)
    if values.size == 0:
        return np.zeros((0, 4))
    if values.ndim != 2 or values.shape[1] != 4 or not np.isfinite(values).all():
        msg = f"{name} has boxes of shape {values.shape}; expected four finite numbers for each box."
        raise DecodeError(msg)
    return values.astype(np.float64)


def _read_numbers(value: Any, key: str, name: str) -> NDArray[Any]:
    """Return what an item has under `key` as an array of numbers."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        elif _is_list(value):
            # Lists of tensors, as Hugging Face's format "torch" gives them where lengths differ.
            value = [one.tolist() if hasattr(one, "tolist") else one for one in value]
        values = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = ended(f"{name} has {key!r} that do not make an array: {error}")
        raise DecodeError(msg) from error
    if values.dtype.kind not in "biuf" and values.size:
        first = repr(show(values.reshape(-1)[0])) if values.dtype.kind in "OUS" else str(values.dtype)
        msg = (
            f"{name} has {first} under {key!r}; expected numbers. Number the classes, for example with a dict of "
            "names; or, for a Hugging Face dataset, write files and stage their folder: "
            "dataset.to_parquet('data/train.parquet')."
        )
        raise LayoutError(msg)
    return values


def _column(found: _Found, key: str, width: int, name: str) -> NDArray[Any]:
    if key not in found.columns:
        msg = f"{name} has boxes without {key!r}, which the first items have."
        raise LayoutError(msg)
    values, count = _read_numbers(found.columns[key], key, name), len(found.places)
    if values.shape != ((count, width) if width > 1 else (count,)):
        msg = f"{name} has {count} boxes and {key!r} of shape {values.shape}; expected one for each box."
        raise DecodeError(msg)
    odd = values[values != np.rint(values)]
    if key in _LABEL_KEYS and len(odd):
        msg = f"{name} has {odd[0]} under {key!r}; expected whole numbers, the classes."
        raise LayoutError(msg)
    return values


def _checked_corners(places: NDArray[np.float64], form: Form, name: str) -> NDArray[np.float64]:
    last = places[:, 2:]
    wrong = (last < (places[:, :2] if form == "xyxy" else 0)).any(axis=1)
    if wrong.any():
        expected = "x0 <= x1 and y0 <= y1" if form == "xyxy" else "sizes of 0 and more"
        msg = f"{name} has the box {_format_box(places[wrong][0])}, which is no {form}; expected {expected}."
        raise DecodeError(msg)
    return as_corners(places, form)


def _class_names(dataset: Any, feature: Any, label: str | None) -> tuple[str, ...]:
    """Return the names of the classes, as labels count them; nothing if the dataset has none."""
    names = _feature_names(feature, label)
    # COCO's ids have gaps, and labels are ids: gaps get the name that torchvision's models have for them.
    kinds = getattr(getattr(dataset, "coco", None), "cats", None)
    if not names and isinstance(kinds, Mapping) and all(isinstance(key, int) and key >= 0 for key in kinds):
        count = 1 + max(kinds, default=-1)
        if count <= _MOST_CLASSES:
            names = tuple(str(kinds[key]["name"]) if key in kinds else _NO_NAME for key in range(count))
    return names or tuple(str(name) for name in getattr(dataset, "classes", ()) or ())


def _feature_names(feature: Any, label: str | None) -> tuple[str, ...]:
    """Return the names of the classes of a column in a feature of `datasets`, a list or dict or nest of them."""
    if isinstance(feature, Mapping):
        return _feature_names(feature.get(label), label)
    if isinstance(feature, list):
        return _feature_names(feature[0], label) if feature else ()
    if hasattr(feature, "feature"):
        return _feature_names(feature.feature, label)
    return tuple(map(str, getattr(feature, "names", None) or ()))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")


def _format_box(box: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in box.tolist()) + "]"
