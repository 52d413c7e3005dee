"""Samples that are records: what their fields state becomes targets, classes, splits and notes.

A format finds the records of its files and the fields in them: keys of WebDataset, features of an Example, columns of
Arrow, values of LMDB. What labels and the four numbers of a box mean, and that all records have them or none, is the
same for all formats, for JSON in the cells of tables, and for the items of dataset objects.
"""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import LayoutError, SourceChangedError, SourceReadError
from colabstage.io.arguments import show_content
from colabstage.io.files import read_with_retry
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.io.units import counted, listed
from colabstage.layouts import words
from colabstage.layouts.columns import (
    MISSING,
    MOST_DIGITS,
    NUMBER,
    WHOLE,
    Column,
    as_float32,
    class_numbers,
    group_of_fields,
    is_list,
    kept_together,
    note_on_groups,
    notes_on_labels,
    show,
    splits_of_column,
)
from colabstage.layouts.evidence import Evidence, left_out_notes
from colabstage.layouts.lists import MOST_CLASSES
from colabstage.layouts.reading import broken, open_unpacked
from colabstage.layouts.table import (
    Boxes,
    BrokenDatasetError,
    Inputs,
    SampleSource,
    SampleTable,
    Targets,
    Values,
    class_indices,
    known_splits,
    offsets_of,
    stamp_of,
)
from colabstage.layouts.words import label_names, plain_name, same_split, split_name
from colabstage.machine.resources import read_resources
from colabstage.trees.folder import FolderFile
from colabstage.trees.listing import FileEntry, Tree, take_strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource

    FieldValues = Sequence[Any] | NDArray[np.int64]

# A longer text is not a class's name.
_MAX_CLASS_NAME = 100
_OF_SERIES = re.compile(r"^(.*)-(\d+)-of-(\d+)(.*)$")
_NUMBERED = re.compile(r"^(.*?)(\d+)()(\D*)$")
Label = int | float | str | None
# Fields of records that are labels in addition to `words.LABELS`, and before them; of two with the same content, the
# first counts.
LABELS = (
    "cls", "label", "labels", "class_label", "class", "fine_label", "target", "category", "class_id", "class_index",
    "class_name", "class_text", "label_text", "class_synset", "y",
)  # fmt: skip
# Texts of samples: captions, or labels if no other field is one, and they are short and repeat.
_TEXTS = ("txt", "text")
# Fields of records and items that hold boxes; in these, those with the four numbers, the class, and further facts of
# each box. Each by preference; of the numbers, only the first name always means corners.
OBJECTS = ("objects", "annotations")
BOX_KEYS = ("boxes", "bboxes", "bbox")
BOX_LABELS = (
    "labels", "label", "category_id", "category", "categories", "class_labels", "class_id", "class", "class_name",
    "category_name", "name", "type",
)  # fmt: skip
FURTHER: dict[str, tuple[str, type[np.generic]]] = {
    "iscrowd": ("iscrowd", np.uint8),
    "is_crowd": ("iscrowd", np.uint8),
    "area": ("area", np.float32),
}
# What the four numbers of a box mean: its corners, x or y first; first corner, width and height; or centre, width and
# height.
BoxForm = Literal["xyxy", "xywh", "cxcywh", "yxyx"]
# How many images with boxes are examined to find the meaning of the four numbers.
_LOOKED_AT = 64
# How boxes are given that no format describes.
OWN_BOXES = "; or give pack_dataset an object whose items are (image, {'boxes': corners in pixels, 'labels': numbers})"
ONE_LABEL = (
    "one number or word for each; for several labels give pack_dataset an object whose items are (x, y), y an array of "
    "0 and 1 for each class"
)


class Labels(NamedTuple):
    """The targets made from labels, and their classes."""

    targets: Targets | None
    classes: tuple[str, ...]
    used: tuple[str, ...] = ()
    """The fields that state them."""
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """The files beside the records that name the classes."""


def records_state(
    layout: str,
    who: str,
    inputs: Inputs,
    labels: Labels,
    *,
    shards: Sequence[str],
    shard_of: NDArray[np.integer[Any]],
    fields: Mapping[str, FieldValues] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> Evidence:
    """Return what records state, each named like its content.

    `who`: what states the labels. `shard_of`: the number in `shards` of each record's file. `fields`: the values of all
    records by field, of which one may state the splits.
    """
    split, stated = splits_of_fields(shards[0], fields)
    splits = [*map(split_of_shard, shards)]
    # Where none has a split, all are trained on, and what is almost called held out is not meant so, unless each record
    # has its own.
    meant = splits if any(splits) else [*map(words.is_almost_split, shards)]
    called = [*itertools.compress(shards, meant)]
    if 0 < len(called) < len(shards) and not stated:
        what = f"'{called[0]}' is called after a split and it is not, so nothing says which its samples are of"
        odd = next(name for name in shards if name not in called)
        raise broken(odd, what, f"a split in the name of each, or some of them alone, only={called[0]!r}")
    of_records = tuple([splits[number] for number in shard_of.tolist()]) if all(splits) else ()
    for number, one in enumerate(stated if of_records else ()):
        if not same_split(one, of_records[number]):
            what = f"it is in '{shards[shard_of[number]]}' and in the split '{one}'"
            raise broken(inputs.source.name(number), what, "one split")
    left = [name for name in fields if name not in (split, *labels.used)]
    group = group_of_fields({name: fields[name] for name in left})
    groups = kept_together([*map(str, fields[group])] if group else [], labels.targets)
    not_used = [name for name in left if name != group or not groups]
    table = SampleTable(
        layout=layout,
        keys=[inputs.source.name(number) for number in range(len(inputs))],
        inputs=inputs,
        targets=labels.targets,
        splits=known_splits(of_records or stated),
        groups=groups or None,
        classes=labels.classes,
        notes=(
            *notes,
            *labels.notes,
            *([f"Splits are as '{split}' says."] if split else []),
            *note_on_groups(group, groups, of_records or stated),
            *([f"Not used: {listed(not_used)}."] if not_used else []),
            *_missing_shards(shards),
            *notes_on_labels(next(iter(labels.used), "label"), labels.targets, labels.classes),
        ),
    )
    # A field without any value states nothing; an unread one has no values here.
    empty = {name for name in left if len(fields[name]) and all(value is None for value in _as_labels(fields[name]))}
    unused = tuple(name for name in left if name not in empty)
    files = [shards[number] for number in shard_of.tolist()]
    return Evidence(table, who, frozenset({*shards, *labels.files}), unused=unused, files=files)


# --- fields -----------------------------------------------------------------------------------------------------------


def is_known_field(name: str) -> bool:
    """Tell whether a field's name suggests that it states the label, the split or the group of its record."""
    return plain_name(name) in _KNOWN or words.is_group_name(name)


_KNOWN = frozenset({*LABELS, *words.LABELS, *_TEXTS, *words.SPLIT_FIELDS, "x"})


def label_fields(fields: Iterable[str], first: Sequence[str] = ()) -> list[str]:
    """Return the fields that are called as labels are, by preference; `first`: plain names that go before others."""
    return label_names(fields, (*first, *LABELS))


def fields_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of records by field, `None` where a record lacks it."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def join_fields(parts: Sequence[tuple[Mapping[str, list[Any]], int]]) -> dict[str, list[Any]]:
    """Return the values by field of several files, given those of each and how many records it has."""
    names = dict.fromkeys(name for fields, _ in parts for name in fields)
    return {
        name: [value for fields, count in parts for value in fields.get(name) or itertools.repeat(None, count)]
        for name in names
    }


def splits_of_fields(where: str, fields: Mapping[str, FieldValues]) -> tuple[str, Sequence[str]]:
    """Return the field that says which split each record belongs to, and the splits; empty if all have other words."""
    for name in (name for name in fields if plain_name(name) in words.MAY_SPLIT):
        cells = ["" if value is None else str(value) for value in fields[name]]
        try:
            splits = splits_of_column(Column(name, cells))
        except LayoutError as error:
            msg = f"'{where}' has records of samples. {error}"
            raise BrokenDatasetError(msg) from error
        if splits:
            return name, splits
    return "", ()


def labels_of_fields(
    fields: Mapping[str, FieldValues],
    samples: Sequence[str],
    *,
    first: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Labels:
    """Make targets of the label field, unless another possible label divides the samples differently.

    `first`: plain names that precede the common ones. `classes`: what the numbers in a field stand for. Words in
    another field that divide the samples in the same way are the names of numbers; what divides them further is noted
    as not used.
    """
    columns = {name: _as_labels(fields[name]) for name in label_fields(fields, first)}
    called = [name for name, column in columns.items() if any(value is not None for value in column)]
    if not called:
        _refuse_no_labels({name: fields[name] for name in columns if plain_name(name) in LABELS}, samples)
        texts = {name: _as_labels(values) for name, values in fields.items() if plain_name(name) in _TEXTS}
        text = next((name for name, values in texts.items() if _are_classes(values)), None)
        words = [] if text is None else [parse_label(str(value)) for value in texts[text]]
        return make_labels(words, samples)._replace(used=() if text is None else (text,))
    label, *others = called
    _refuse_no_labels({label: fields[label]}, samples)
    found = {other: compare_fields(columns[label], columns[other], samples, (label, other)) for other in others}
    stated = _named(columns[label], classes.get(label, ()), samples, label)
    names = stated or next(filter(None, map(_words_of, found.values())), {})
    same = [other for other in others if found[other]]
    return make_labels(columns[label], samples, names=names)._replace(used=(label, *same))


def _named(values: FieldValues, stated: Sequence[str], samples: Sequence[str], field: str) -> dict[int, str]:
    """Return the names that are stated for numbers, by number; refuse numbers that have none."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    top = max((value for value in values if isinstance(value, int)), default=-1) if stated else -1
    if top >= len(stated) > 0:
        what = f"its {field} is {top}, and {len(stated)} classes are named, from 0 ({listed(list(stated), 3)})"
        raise broken(samples[values.index(top)], what, "a name for each number")
    return dict(enumerate(stated))


def _words_of(found: Mapping[Label, Label]) -> dict[int, str]:
    return {key: word for key, word in found.items() if isinstance(key, int) and isinstance(word, str)}


def _refuse_no_labels(fields: Mapping[str, FieldValues], samples: Sequence[str]) -> None:
    """Refuse fields that are named like labels and hold something else."""
    for name, values in fields.items():
        for sample, value in zip(samples, values, strict=True):
            if value is not None and not isinstance(value, int | float | str | np.integer):
                raise broken(sample, f"it has {show_content(value)} under '{name}'", ONE_LABEL)


def _as_labels(values: FieldValues) -> Sequence[Label] | NDArray[np.int64]:
    """Return values, `None` for those that are not labels: nothing, NaN, what programs write for it, a list."""
    if isinstance(values, np.ndarray):
        return values
    return [value if _is_label(value) else None for value in values]


def _is_label(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in MISSING
    return not math.isnan(value) if isinstance(value, float) else isinstance(value, int)


def _are_classes(values: FieldValues) -> bool:
    """Tell whether values look like classes, not captions: short, and most of them repeated."""
    short = all(value is not None and len(str(value)) <= _MAX_CLASS_NAME for value in values)
    return short and 2 * len(set(values)) <= len(values)


def compare_fields(
    labels: FieldValues, others: FieldValues, samples: Sequence[str], fields: tuple[str, str] = ("label", "text")
) -> dict[Label, Label]:
    """Return the other value of each label, if both divide the samples in the same way; empty if one divides them
    further, or the others are captions. Both being classes that divide the samples differently is an error.
    """
    found: dict[tuple[Label, Label], str] = {}
    columns = (values.tolist() if isinstance(values, np.ndarray) else values for values in (labels, others))
    for label, other, sample in zip(*columns, samples, strict=True):
        if label is not None and other is not None:
            found.setdefault((label, other), sample)
    # The first label of each other value.
    other_of, label_of = dict(found.keys()), {other: label for label, other in reversed(found)}
    if len(other_of) == len(label_of) == len(found):
        return other_of
    if len(found) in (len(other_of), len(label_of)) or not _are_classes(others):
        return {}
    label, other = next((label, other) for label, other in found if label_of[other] != label)
    what = f"it is '{label}' by its {fields[0]} and '{show(str(other))}' by its {fields[1]}"
    raise broken(
        found[label, other],
        f"{what}, and others with this are '{label_of[other]}': the two divide the samples differently",
        "one of the two, or a function as layout=",
    )


def names_of_feature(feature: Any, label: str | None = None) -> tuple[str, ...]:
    """Return the class names in a feature of `datasets`, an object or its JSON, or in one inside it: that of `label`,
    if there is one."""
    is_mapping = isinstance(feature, Mapping)
    names = feature.get("names") if is_mapping else getattr(feature, "names", None)
    if isinstance(names, list | tuple) and names:
        return tuple(map(str, names))
    inner = feature if isinstance(feature, list) else [feature.feature] if hasattr(feature, "feature") else []
    if is_mapping:
        inner = [feature[label]] if label in feature else feature.values()
    return next((found for one in inner if (found := names_of_feature(one, label))), ())


def _missing_shards(names: Sequence[str]) -> Iterator[str]:
    """Yield a note for each incomplete series of shards: train-00000-of-00003; train-0.tar and train-2.tar."""
    series: dict[tuple[str, ...], set[str]] = {}
    for name in names:
        counted_out = [*_OF_SERIES.findall(name), *([] if "-of-" in name else _NUMBERED.findall(name))]
        for before, number, count, after in counted_out:
            series.setdefault((before, count, after), set()).add(number)
    for (before, count, after), found in series.items():
        if count and len(found) < int(count):
            yield f"Only {len(found):,} of {int(count):,} files '{before}-…-of-{count}{after}' are there."
        numbers = {*map(int, found)}
        lost = 0 if count else max(numbers) + 1 - min(numbers) - len(numbers)
        # More gaps than shards are numbers of something else.
        if 0 < lost < len(numbers):
            first = next(number for number in itertools.count(min(numbers)) if number not in numbers)
            yield f"{counted(lost, 'numbers', 'are')} missing among '{before}…{after}' (first {first})."


def all_have(values: Sequence[Any], names: Sequence[str], what: str) -> bool:
    """Tell whether all records have a value; if only some have, raise an error that names one."""
    missing = [number for number, value in enumerate(values) if value is None]
    if missing and len(missing) < len(values):
        lacking = counted(len(missing), "samples", "have", of=len(values))
        msg = f"{lacking} no {what} (first '{names[missing[0]]}'); expected all or none."
        raise BrokenDatasetError(msg)
    return not missing and len(values) > 0


def make_labels(
    labels: Sequence[Label] | NDArray[np.int64], samples: Sequence[str], *, names: Mapping[int, str] | None = None
) -> Labels:
    """Make targets from the labels of N samples.

    Integers stay as they are, int64 `(N,)`, even if they count from 1. Words become int64 indices into the sorted
    words. Other numbers become float32 `(N,)`. A missing label is `None` or NaN, as pandas writes it. `names`: the
    meaning of integers, if known; a number without a name is named by its digits.
    """
    if isinstance(labels, np.ndarray):
        return _whole_numbers(labels, names or {})
    labels = [None if isinstance(label, float) and math.isnan(label) else label for label in labels]
    if not all_have(labels, samples, "label"):
        return Labels(None, ())
    words = [label for label in labels if isinstance(label, str)]
    if (several := next(filter(is_list, dict.fromkeys(words)), None)) is not None:
        what = f"its label is '{show(several)}', a list written as text"
        raise broken(samples[labels.index(several)], what, ONE_LABEL)
    whole = [label for label in labels if isinstance(label, int)]
    if len(words) == len(labels):
        return Labels(*class_indices(words))
    large = [label for label in whole if not -(2**63) <= label < 2**63] if len(whole) == len(labels) else []
    odd_ones: list[Label] = [*words[:1], *large[:1]]
    for odd in odd_ones:
        what = "a word, that of others a number" if words else f"{odd:.3e}, which does not fit into 64 bits"
        msg = f"The label of '{samples[labels.index(odd)]}' is {what}; expected one kind for all."
        raise BrokenDatasetError(msg)
    if len(whole) == len(labels):
        return _whole_numbers(np.array(whole, np.int64), names or {})
    return Labels(Values(as_float32("label", np.array(labels, np.float64))), ())


def _whole_numbers(values: NDArray[np.int64], names: Mapping[int, str]) -> Labels:
    if not len(values):
        return Labels(None, ())
    top = max([int(values.max()), *names])
    # Test sets with secret labels use -1.
    are_classes = names and min(names) >= 0 and values.min() >= -1 and top < MOST_CLASSES
    found = tuple(names.get(number, str(number)) for number in range(top + 1)) if are_classes else ()
    return Labels(Values(values), found if names else class_numbers(values))


def decode_label(content: bytes, name: str) -> str:
    try:
        # Editors on Windows begin a text with a byte order mark, which would become part of the label.
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = "\0"
    # Bytes of a number are not text either.
    if "\0" in text:
        msg = f"The label of '{name}' is not text: {content[:20]!r}. Write numbers as digits."
        raise BrokenDatasetError(msg)
    return text


def parse_label(text: str) -> Label:
    """Parse a label as people write it: an integer, another number, a word; `None` for an empty text.

    >>> parse_label(" 7\\n"), parse_label("0.5"), parse_label("25_0"), parse_label("")
    (7, 0.5, '25_0', None)
    """
    text = text.strip()
    if text.lower() in MISSING:
        return None
    # Python's own parser reads 25_0 as 250, and accepts infinity.
    if WHOLE.fullmatch(text) and len(text) <= MOST_DIGITS:
        return int(text)
    if NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


# --- boxes: which fields hold them, and what their four numbers mean --------------------------------------------------


def as_corners(places: NDArray[np.float64], form: BoxForm) -> NDArray[np.float64]:
    """Return boxes `(M, 4)` of a form as xyxy."""
    first, last = places[:, :2], places[:, 2:]
    if form in ("xyxy", "yxyx"):
        return places if form == "xyxy" else places[:, [1, 0, 3, 2]]
    begin = first if form == "xywh" else first - last / 2
    return np.concatenate([begin, begin + last], axis=1)


class FoundForm(NamedTuple):
    """What the four numbers of boxes mean."""

    form: BoxForm
    relative: bool = False
    """Whether they are fractions of width and height."""
    trouble: str = ""
    """Why that is unknown; "" if it is known."""

    def __str__(self) -> str:
        return f"The boxes are written as {self.form}{' as parts of width and height' if self.relative else ''}"


def _find_form(
    boxes: Sequence[NDArray[np.float64]],
    size_of: Callable[[int], tuple[int, int] | None],
    *,
    forms: Sequence[BoxForm] = (),
    areas: NDArray[Any] | None = None,
) -> FoundForm:
    """Return what the four numbers of some images' boxes mean, `(M, 4)` each: the only form in which all are possible
    and inside their images, or nearly all, or whose areas are those that are stated.

    `size_of`: returns the height and width of one of the images, if known. `forms`: those that what is said of the
    numbers allows, if something is. `areas`: `(N,)`, of the boxes of all images, if known.
    """
    every = np.concatenate([np.zeros((0, 4)), *boxes])
    # A fraction may be a bit more than 1, and no dataset has boxes of a pixel alone.
    relative = bool(len(every)) and every.max() < 2 and bool(np.any(every != np.rint(every)))
    forms = forms or (("xyxy", "xywh", "cxcywh") if relative else ("xyxy", "xywh"))
    if len(forms) == 1 or not len(every):
        return FoundForm(forms[0], relative)
    sizes = [(1, 1) if relative else size_of(number) if number < _LOOKED_AT else None for number in range(len(boxes))]
    ends = np.repeat(
        [[np.inf] * 2 if size is None else [*reversed(size)] for size in sizes], [*map(len, boxes)], axis=0
    )
    # A box may end a pixel beyond the edge, because tools disagree on where pixels are.
    edge = 0.01 if relative else 1
    corners = {form: as_corners(every, form) for form in forms}
    sides = {form: own[:, 2:] - own[:, :2] for form, own in corners.items() if (own[:, 2:] >= own[:, :2]).all()}
    outside = {
        form: (corners[form][:, :2] < -edge).any(axis=1) | (corners[form][:, 2:] > ends + edge).any(axis=1)
        for form in sides
    }
    fitting = [form for form in sides if not outside[form].any()]
    fitting = fitting or [form for form in sides if outside[form].mean() < _MANY_OUTSIDE]
    if len(fitting) > 1 and areas is not None:
        fitting = [form for form in fitting if np.allclose(sides[form].prod(axis=1), areas, rtol=_SAME_AREA)] or fitting
    # In pixels, x and y beside a width and a height are the first corner, unless boxes are outside then.
    fitting = fitting if relative or "xyxy" in forms else fitting[:1]
    may = f"may be {' as well as '.join(fitting)}" if len(fitting) > 1 else "are not inside their images"
    return FoundForm(next(iter(fitting), "xyxy"), relative, "" if len(fitting) == 1 else may)


_NUMBER = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_NUMBERS = rf"{_NUMBER}(?:[\s,]+{_NUMBER}){{3}}"
_IN_BRACKETS = rf"[\[({{]\s*{_NUMBERS}\s*[\])}}]"
_CELL_OF_BOXES = re.compile(
    rf"{_NUMBERS}(?:\s*;\s*{_NUMBERS})*|{_IN_BRACKETS}|[\[(]\s*{_IN_BRACKETS}(?:\s*[,;]?\s*{_IN_BRACKETS})*\s*[\])]",
    re.IGNORECASE,
)
_NO_BOX = re.compile(r"(no|none|nan|null|n/a)?([ _-]?(b?box(es)?|objects?))?|\[\s*\]", re.IGNORECASE)


def boxes_of_cell(cell: str) -> list[list[float]] | None:
    """Return the boxes that a cell of a table holds, four numbers each, in brackets or with ; between several; `None`
    for other cells.

    >>> boxes_of_cell("[[1, 2, 3, 4], [5, 6, 7, 8]]"), boxes_of_cell("no_box"), boxes_of_cell("1 2 3")
    ([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], [], None)
    """
    if not _CELL_OF_BOXES.fullmatch(cell):
        return [] if _NO_BOX.fullmatch(cell) else None
    numbers = [*map(float, re.findall(r"[^\s,;\[\](){}]+", cell))]
    return [numbers[place : place + 4] for place in range(0, len(numbers), 4)]


# As a part of all boxes; tools that let boxes reach outside have fewer.
_MANY_OUTSIDE = 1 / 8
# As a part of it; tools round areas, or add a pixel to the sides.
_SAME_AREA = 0.01


def other_form(boxes: Boxes) -> tuple[str, str, int]:
    """If many boxes of a table reach outside of their images, or have other areas than are stated, return the form in
    which none would, which of these they do, and the sample of the first that does; "" if there is none.

    Fractions were read as centre, width and height; pixels, if the image's size is stated, as first corner, width and
    height.
    """
    sizes = np.ones((len(boxes), 2)) if boxes.sizes is None else boxes.sizes
    areas, first, last = boxes.columns.get("area"), boxes.boxes[:, :2], boxes.boxes[:, 2:]

    def faults(places: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
        own = (places[:, 2:] - places[:, :2]).prod(axis=1)
        return {
            "reach outside of their images": replace(boxes, boxes=places).outside(sizes),
            # That of an outline is smaller than that of its box, in any form.
            "have other areas than are stated": ~np.isclose(own, own if areas is None else areas, rtol=_SAME_AREA),
        }

    written = np.concatenate([(first + last) / 2 if boxes.relative else first, last - first], axis=1)
    forms: dict[str, BoxForm] = {"two corners": "xyxy", "first corner, width and height": "xywh"}
    corners = {name: as_corners(written, form) for name, form in forms.items()}
    others = {name: faults(own) for name, own in corners.items() if (own[:, 2:] >= own[:, :2]).all()}
    for what, odd in faults(boxes.boxes).items():
        fitting = [name for name, found in others.items() if not found[what].any()]
        if fitting and odd.any() and odd.mean() >= _MANY_OUTSIDE:
            return " or ".join(fitting), what, int(boxes.owners[np.argmax(odd)])
    return "", "", 0


def box_key(value: Any) -> str | None:
    """Return the key of a mapping under which boxes are; `None` if there is none."""
    return next((key for key in BOX_KEYS if key in value), None) if isinstance(value, Mapping) else None


def _stated_form(key: str, beside: Iterable[str]) -> BoxForm | None:
    """Return the form that is stated by the key of boxes, or by the keys beside it: only COCO's annotations have both
    of these; `None` if nothing states it."""
    return "xyxy" if key == BOX_KEYS[0] else "xywh" if {"category_id", "image_id"} <= {*beside} else None


def by_field(value: Any) -> Mapping[str, Any]:
    """Return the objects of an image, a list of them or a list for each field, as a list for each field."""
    if not isinstance(value, list):
        return value or {}
    # What is no object is no box, which is refused where the boxes are read.
    if not all(isinstance(one, Mapping) for one in value):
        return {BOX_KEYS[0]: value}
    return {key: [one.get(key) for one in value] for key in dict.fromkeys(key for one in value for key in one)}


def boxes_in(value: Any) -> Sequence[Any]:
    objects = by_field(value)
    return objects.get(box_key(objects) or "") or ()


def _holds_boxes(value: Any) -> bool:
    """Tell whether a value is the objects of an image: a list of them, or a list for each field."""
    if isinstance(value, list):
        return bool(value) and all((key := box_key(one)) and isinstance(one[key], list) for one in value)
    rows = value[key] if (key := box_key(value)) is not None else None
    return isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _format_box(box: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in box.tolist()) + "]"


def box_fields(where: str, record: Mapping[str, Any]) -> list[str]:
    """Return the field of a record that holds its objects, whatever it is called, or the fields that hold a list for
    each part of them; nothing if there are none."""
    if _holds_boxes(record) and any(isinstance(record.get(key), list) for key in BOX_LABELS):
        return [name for name in record if name in (*BOX_KEYS, *BOX_LABELS, *FURTHER)]
    found = [name for name, value in record.items() if _holds_boxes(value)]
    found = [name for name in OBJECTS if name in found] or found
    if len(found) > 1 and found[0] not in OBJECTS:
        raise broken(where, f"its fields {listed(found)} all hold boxes", f"one that counts, called '{OBJECTS[0]}'")
    return found[:1]


def as_column(values: NDArray[Any], dtype: type[np.generic]) -> tuple[NDArray[Any], int]:
    """Return a fact about each of M boxes, `(M, …)`, in the type of its column, and the first box whose fact that type
    does not hold; -1 if it holds all."""
    with np.errstate(invalid="ignore", over="ignore"):
        made = values.astype(dtype)
        fits = made == values if made.dtype.kind in "iu" else np.isfinite(made) == np.isfinite(values)
    return made, int(next(iter(np.flatnonzero(~fits.all(axis=tuple(range(1, fits.ndim))))), -1))


def objects_of(fields: Mapping[str, Any], about: Sequence[str]) -> list[Any]:
    """Return the objects of each record, given the values of all by field, and what `box_fields` found."""
    if len(about) < 2:
        return list(fields[about[0]]) if about else []
    return [dict(zip(about, row, strict=True)) for row in zip(*(fields[name] for name in about), strict=True)]


class ObjectRows(NamedTuple):
    """The M boxes that the objects of N records state, as written."""

    samples: Sequence[str]
    offsets: NDArray[np.int64]
    """int64 `(N + 1,)`."""
    places: NDArray[np.float64]
    """float `(M, 4)`."""
    labels: list[int | str]
    texts: list[str | None]
    """The word for the class of each box; `None` if it is its label alone."""
    columns: dict[str, NDArray[Any]]

    @property
    def owners(self) -> list[str]:
        """Return the sample of each box."""
        return [one for one, count in zip(self.samples, np.diff(self.offsets), strict=True) for _ in range(count)]

    def form(
        self,
        size_of: Callable[[int], tuple[int, int] | None],
        forms: Sequence[BoxForm | None],
        *,
        expected: str = f"corners (x0, y0, x1, y1), called '{BOX_KEYS[0]}'{OWN_BOXES}",
    ) -> FoundForm:
        """Return what the four numbers mean. `size_of`: returns the height and width of a sample's image. `forms`: as
        for `find_form`. `expected`: of what may be several forms, or none."""
        filled = np.flatnonzero(np.diff(self.offsets)).tolist()
        each = [self.places[self.offsets[number] : self.offsets[number + 1]] for number in filled]
        areas = self.columns.get("area")
        stated = [form for form in forms if form is not None]
        found = _find_form(each, lambda number: size_of(filled[number]), forms=stated, areas=areas)
        if found.trouble:
            what = f"its boxes and others {found.trouble} (first {_format_box(self.places[0])})"
            raise broken(self.samples[filled[0]], what, expected)
        return found

    def corners(self, form: BoxForm, *, otherwise: str = "") -> NDArray[np.float64]:
        """Return the boxes as xyxy, `(M, 4)`. `otherwise`: what takes others."""
        found = as_corners(self.places, form)
        for odd in np.flatnonzero((found[:, 2:] < found[:, :2]).any(axis=1))[:1].tolist():
            expected = "x0 <= x1 and y0 <= y1" if form in ("xyxy", "yxyx") else "sizes of 0 and more"
            what = f"it has the box {_format_box(self.places[odd])}, which is no {form}"
            raise broken(self.owners[odd], what, f"{expected}. Otherwise {otherwise}" if otherwise else expected)
        return found


class ObjectFields(NamedTuple):
    """The fields of the objects of records that become boxes."""

    box: str
    label: str
    word: str
    """The field of words beside the numbers of the classes; "" for none."""
    further: Mapping[str, tuple[str, type[np.generic]]]
    stated: BoxForm | None
    """What the four numbers mean by the fields' names."""
    others: tuple[str, ...]

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.box, self.label, self.word, *self.further)))

    @classmethod
    def of(cls, values: Sequence[Any]) -> ObjectFields:
        """Find them in all records, which hold a list of objects, a list for each field of them, or `None`."""
        each = [*map(_lists_in, values)]
        named = dict.fromkeys(key for one in map(by_field, values) for key in one)
        held = {key: [one.get(key, ()) for one in each] for key in named}
        lengths = {key: [*map(len, own)] for key, own in held.items()}
        box, label = (
            next((key for key in known if any(lengths.get(key, ()))), known[0]) for known in (BOX_KEYS, BOX_LABELS)
        )
        whole = [key for key in named if lengths[key] == lengths.get(box)]
        kinds = {
            key: {type(value) for own in held[key] for value in own} for key in whole if key in (*BOX_LABELS, *FURTHER)
        }
        word = next((key for key in whole if key in BOX_LABELS and key != label and kinds[key] == {str}), "")
        # One field for each fact, whose type and column it has.
        facts = {own: key for key, own in FURTHER.items() if key in whole and kinds[key] <= {int, float, bool}}
        further = {key: own for own, key in facts.items()}
        found = cls(box, label, word, further, _stated_form(box, named), ())
        return found._replace(others=tuple(key for key in named if key not in found.used))

    def note(self, form: FoundForm) -> str:
        return f"{form}{f'; left out: {listed(self.others)}' if self.others else ''}."

    def read(self, values: Sequence[Any], samples: Sequence[str]) -> ObjectRows:
        """Return what they hold in N records; refuse a record that lacks some of it, and what is no box or class."""
        each = [*map(_lists_in, values)]
        counts = [len(one.get(self.box, ())) for one in each]
        kinds = ((self.box, _is_box, "four finite numbers"), (self.label, _is_class, "a whole number, or a word"))
        for one, count, sample in zip(each, counts, samples, strict=True):
            for key in (self.label, *self.further):
                if (found := len(one.get(key, ()))) != count:
                    zeros = "" if found else f"; zeros under '{self.label}' where all are of one class"
                    what = f"it has {count} boxes in '{self.box}' and {found} values in '{key}'"
                    raise broken(sample, what, f"four numbers and a class for each box{zeros}")
            for key, fits, what in kinds:
                if odd := [value for value in one.get(key, ()) if not fits(value)]:
                    raise broken(sample, f"it has {show_content(odd[0])} under '{key}'", what)
        flat = {key: [value for one in each for value in one.get(key, ())] for key in self.used}
        columns: dict[str, NDArray[Any]] = {}
        rows = ObjectRows(
            samples,
            offsets_of(counts),
            np.array(flat[self.box], np.float64).reshape(-1, 4),
            [int(value) if isinstance(value, float) else value for value in flat[self.label]],
            flat[self.word] if self.word else [None] * sum(counts),
            columns,
        )
        for key, (column, kind) in self.further.items():
            columns[column], unfit = as_column(np.array(flat[key]), kind)
            if unfit >= 0:
                raise broken(rows.owners[unfit], f"it has {flat[key][unfit]} under '{key}'", str(np.dtype(kind)))
        return rows


def boxes_of_records(
    values: Sequence[Any],
    samples: Sequence[str],
    size_of: Callable[[int], tuple[int, int] | None],
    names_of: Callable[[str], Sequence[str]],
    *,
    found: FoundForm | None = None,
) -> Labels:
    """Make boxes of what the records of N samples hold: a list of objects, a list for each field of them, or `None`.

    `size_of`: as for `ObjectRows.form`. `names_of`: returns the classes that the numbers in a field stand for. `found`:
    what the four numbers are, if something says it.
    """
    fields = ObjectFields.of(values)
    rows = fields.read(values, samples)
    form = found or rows.form(size_of, (fields.stated,))
    labels, owners = rows.labels, rows.owners
    names = _named(labels, names_of(fields.label), owners, fields.label) or _words_of(
        compare_fields(labels, rows.texts, owners)
    )
    targets, classes, *_ = make_labels(labels, owners, names=names)
    numbers = {"labels": getattr(targets, "values", np.zeros(0, np.int64))}
    made = Boxes(rows.offsets, rows.corners(form.form), numbers | rows.columns, relative=form.relative)
    return Labels(made, classes, notes=(fields.note(form),))


def _lists_in(value: Any) -> dict[str, Sequence[Any]]:
    """Return the fields of an image's objects; facts of the image may be among them, which are no lists."""
    return {key: own for key, own in by_field(value).items() if isinstance(own, list | tuple)}


def _is_box(place: Any) -> bool:
    are_four = isinstance(place, list | tuple) and len(place) == 4
    return are_four and all(isinstance(one, int | float) and math.isfinite(one) for one in place)


def _is_class(value: Any) -> bool:
    return value.is_integer() if isinstance(value, float) else isinstance(value, int | str)


# --- shards: files of many samples, scanned once for the places of their parts, and read part by part -----------------

F = TypeVar("F")
T = TypeVar("T")

# A disk responds in microseconds, so reading ahead would only cost time; a mount takes milliseconds or more, in which
# it could have sent megabytes.
_NEAR_BYTES = 32 * 1024
_FAR_BYTES = 4 * 1024 * 1024
_FAR_S = 0.001
# Slower sources, such as a mounted Drive, are held in memory, up to this part of the free memory.
_SLOW_BYTES_PER_S = 150e6
_HELD_PART = 0.25
# Shards are read one after the other, so only a few are in use at once.
_OPEN_FILES = 64
# On a mount each file takes time; more than this at once are slower.
_MAX_SCANNERS = 16
# One scan may read a file of a hundred gigabytes, over a mount.
_SCAN_STALL_S = 3600.0


class ScanMemory:
    """Space for what is read of slow files while they are scanned: packing then reads no file twice."""

    def __init__(self) -> None:
        self._left = int(read_resources().free_memory_bytes * _HELD_PART)
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Take some of the space, unless it is too small."""
        with self._lock:
            fits = nbytes <= self._left
            self._left -= nbytes if fits else 0
        return fits


class ShardFile:
    """One of the files that hold the samples, opened when first read.

    Bytes passed to `hold` are read from memory. It can be sent to another process if `opens` can be pickled.
    """

    def __init__(
        self, name: str, stamp: str, opens: Callable[[], ByteSource], memory: ScanMemory | None = None
    ) -> None:
        self.name, self.stamp, self._opens, self._memory = name, stamp, opens, memory
        self._starts: list[int] = []
        self._pieces: list[bytes] = []
        self._lock = threading.Lock()

    @cached_property
    def content(self) -> ByteSource:
        """Return its bytes, unpacked."""
        return self._opens()

    def hold(self, data: bytes, offset: int) -> None:
        """Hold bytes that were read at an offset, if there is space."""
        with self._lock:
            at = bisect_right(self._starts, offset)
            is_new = self._starts[at - 1 : at] != [offset]
            if is_new and self._memory is not None and self._memory.take(len(data)):
                self._starts.insert(at, offset)
                self._pieces.insert(at, data)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        with self._lock:
            at = bisect_right(self._starts, offset) - 1
            begin, piece = (offset - self._starts[at], self._pieces[at]) if at >= 0 else (0, b"")
        end = begin + min(length, self.content.size - offset)
        return piece[begin:end] if begin <= end <= len(piece) else self.content.pread(length, offset)

    def rest(self) -> None:
        """Release its handle, which the next read opens again."""
        content = self.__dict__.get("content")
        if isinstance(content, FolderFile):
            content.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardFile, (self.name, self.stamp, self._opens)


class Part(NamedTuple):
    """The position of one piece of content."""

    shard: int
    start: int
    size: int


def open_shard(tree: Tree, entry: FileEntry, memory: ScanMemory) -> ShardFile:
    """Return a file of a tree as a shard; raises as `open_unpacked` where it is opened."""
    return ShardFile(entry.name, stamp_of(entry), partial(_open_listed, tree, entry), memory)


def _open_listed(tree: Tree, entry: FileEntry) -> ByteSource:
    # In another process the tree was listed again, and places of samples do not hold for another file.
    at = bisect_left(tree.entries.names, entry.name)
    listed = tree.entries[at] if at < len(tree.entries) else entry
    if (listed.name, listed.size) != (entry.name, entry.size):
        msg = f"'{entry.name}' in '{tree.label}' is another file than the one that was listed. Start again."
        raise SourceChangedError(msg)
    return open_unpacked(tree, entry, from_start=True)


def labelled_shards(
    shards: Sequence[str], fields: Sequence[Mapping[str, FieldValues]], others: Sequence[Sequence[Any]]
) -> tuple[list[int], list[str]]:
    """Return the numbers of the shards to read, and a note on the others: those of held-out splits without any label,
    as competitions publish them, beside others that have some. `fields`: of each shard; `others`: the boxes or mask of
    each of its records, if any."""
    splits = [split_of_shard(name) or "train" for name in shards]
    columns = ([_as_labels(own[name]) for name in label_fields(own)] for own in fields)
    are_labelled = [any(value is not None for column in own for value in column) for own in columns]
    # Boxes and masks come before labels, and a split needs what the others have.
    are_labelled = [*map(any, others)] if any(map(any, others)) else are_labelled
    bare = {*splits} - {"train", *itertools.compress(splits, are_labelled)} if any(are_labelled) else set()
    lost = sum(len(own) for own, split in zip(others, splits, strict=True) if split in bare)
    notes = left_out_notes((lost, "records", f"of {listed(sorted(bare))}, which have no labels,"))
    return [number for number, split in enumerate(splits) if split not in bare], notes


def split_of_shard(name: str) -> str:
    """Return the split in the name of a shard or of its folder; "" for none.

    >>> split_of_shard("imagenet-train-000012.tar"), split_of_shard("data/validation-00000-of-00014.parquet")
    ('train', 'validation')
    >>> split_of_shard("test/data-00000-of-00001.arrow"), split_of_shard("shard-000.tar")
    ('test', '')
    """
    *folders, base = name.lower().split("/")
    # A name with two splits (train_val) belongs to neither.
    return next((split for part in (base, *reversed(folders)) if (split := split_name(part).split)), "")


def scan_each(files: Sequence[F], scan: Callable[[int, F], T]) -> list[T]:
    """Return `scan(number, file)` for each file, in order; in two threads, or more if that proves slow."""
    found: dict[int, T] = {}
    run_pipeline(
        range(len(files)),
        read=lambda number: scan(number, files[number]),
        use=found.__setitem__,
        cost=lambda _: 1,
        # Two, so that one waits for the disk while the other works; a slow medium gets more.
        limits=PipelineLimits(readers=2, max_readers=_MAX_SCANNERS, workers=1, stall_timeout_s=_SCAN_STALL_S),
        cancellation=Cancellation(),
    )
    return [found[number] for number in range(len(files))]


class ScanWindow:
    """A `ByteSource` over a shard for a single pass of small reads in one thread. If reads are slow it makes a few
    large ones and has the shard hold them; otherwise small ones. Reads that fail temporarily are tried again."""

    def __init__(self, shard: ShardFile, near: int = _NEAR_BYTES) -> None:
        self._shard = shard
        self._start = 0
        self._data = b""
        self._window = near
        self.label, self.size = shard.content.label, shard.content.size

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        end = min(offset + length, self.size)
        if not self._start <= offset <= end <= self._start + len(self._data):
            wanted = max(length, self._window)
            started = time.perf_counter()
            self._data = read_with_retry(lambda: self._shard.pread(wanted, offset), self.label)
            self._start = offset
            took = time.perf_counter() - started
            if took > _FAR_S:
                self._window = _FAR_BYTES
            if self._window == _FAR_BYTES and len(self._data) < took * _SLOW_BYTES_PER_S:
                self._shard.hold(self._data, offset)
        begin = offset - self._start
        return self._data[begin : begin + length]

    def close(self) -> None:
        self._shard.rest()


class ShardParts(SampleSource):
    """A part of one of several files for each sample, as bytes.

    Args:
        shards: the files.
        parts: where each sample's content is; or int64 `(N, 3)`, with the fields of a `Part`.
        names: the name of each sample.
    """

    def __init__(
        self, shards: Sequence[ShardFile], parts: Sequence[Part] | NDArray[np.int64], names: Sequence[str]
    ) -> None:
        # A table instead of tuples, so that each of millions of samples takes 24 bytes besides its name.
        self._parts = table = np.asarray(parts, np.int64).reshape(-1, 3)
        self._shards, self._names = shards, names
        self._lock = threading.Lock()
        self._in_use: OrderedDict[int, None] = OrderedDict()
        # One shard after the other is fastest for a disk, and keeps few files open.
        ends = np.zeros(len(shards) + 1, np.int64)
        np.maximum.at(ends[1:], table[:, 0], table[:, 1] + table[:, 2])
        positions = np.cumsum(ends)[table[:, 0]] + table[:, 1]
        super().__init__(table[:, 2], positions, name=names.__getitem__, stamp=self._stamp, read=self._read)

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        return ShardParts(self._shards, self._parts[chosen], take_strings(self._names, chosen))

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardParts, (self._shards, self._parts, self._names)

    def _stamp(self, index: int) -> str:
        number, start, size = self._parts[index].tolist()
        return f"{self._shards[number].stamp} {start} {size}"

    def _read(self, index: int) -> bytes:
        number, start, size = self._parts[index].tolist()
        shard = self._shards[number]
        with self._lock:
            self._in_use[number] = None
            self._in_use.move_to_end(number)
            idle = self._in_use.popitem(last=False)[0] if len(self._in_use) > _OPEN_FILES else None
            content = shard.content
        if idle is not None:
            self._shards[idle].rest()
        data = shard.pread(size, start) if size else b""
        if len(data) != size:
            msg = f"'{content.label}' ends before byte {start + size:,}, where '{self._names[index]}' does."
            raise SourceReadError(msg)
        return data
