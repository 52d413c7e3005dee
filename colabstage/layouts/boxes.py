"""Boxes of images: what formats parse becomes one table, joined by the images' names; and table columns that are
boxes."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted, left_out, listed
from colabstage.layouts import words
from colabstage.layouts.columns import Column, same_partition, show
from colabstage.layouts.evidence import Evidence, left_out_notes
from colabstage.layouts.lists import Lookup, held_out_of_others, lists_state
from colabstage.layouts.reading import Source, broken
from colabstage.layouts.table import Boxes, BrokenDatasetError, offsets_of
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntries, FileEntry

NAME = "detection"
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
Form = Literal["xyxy", "xywh", "cxcywh", "yxyx"]
Points = list[tuple[float, float]]
# How many images with boxes are examined to find the meaning of the four numbers.
_LOOKED_AT = 64


class BoxColumn(NamedTuple):
    """A further fact about each box: its name in the pack, and how many numbers each box has for it."""

    name: str
    dtype: type[np.generic]
    width: int = 1


class Record(NamedTuple):
    """What a file of annotations states about one image; a format's `parse` returns a list of these."""

    image: str
    shapes: Sequence[tuple[Any, Sequence[float]]]
    """The class of each box, a word or a number, and x0, y0, x1, y1 with the values of further columns."""
    size: tuple[int, int] = (0, 0)
    """Its height and width; zeros if the file does not say."""
    split: str = ""
    left_out: int = 0
    """How many annotated things have no box: single points, lanes."""


class Placed(NamedTuple):
    """An image, and what is stated about it."""

    file: FileEntry
    record: Record
    split: str


def side_of(value: Any) -> int:
    """Return a side of an image as a file states it; 0 where it states none. Raises `ValueError`: it is no number."""
    try:
        return max(int(float(value or 0)), 0)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"the image's size is not a number of pixels ({show(str(value))})"
        raise ValueError(msg) from error


# --- from records to a table ------------------------------------------------------------------------------------------


def boxes_state(
    source: Source,
    who: str,
    placed: Sequence[Placed],
    classes: Sequence[Any],
    *,
    names: Sequence[str] = (),
    columns: Sequence[BoxColumn] = (),
    relative: bool = False,
    notes: Iterable[str] = (),
    used: Iterable[str] = (),
    stated: dict[str, str] | None = None,
    within: str = "",
) -> Evidence:
    """Return the boxes of all images as evidence, with the images in their order. Splits are the images' own if each
    has one, otherwise those of lists, as `lists_state` finds them.

    `classes`: the records' classes, in the order of their labels; `names` are the same by default. `columns`: what
    follows the four numbers of each box. `relative`: whether these are fractions of width and height.
    """
    names = names or classes
    twice = first_repeated(names)
    if twice is not None:
        raise broken(source.label, f"two classes are called '{show(twice)}'", "one name and one number for each")
    targets = _as_boxes(placed, classes, columns, relative=relative)
    files, splits = [one.file for one in placed], [one.split for one in placed]
    made = Evidence.of_images(source, NAME, files, targets, who, splits=splits, classes=names, notes=notes, used=used)
    return made if made.table.splits is not None else lists_state(source, made, stated=stated, within=within)


def _as_boxes(
    placed: Sequence[Placed], classes: Sequence[Any], columns: Sequence[BoxColumn], *, relative: bool
) -> Boxes:
    # The boxes of all images are in one array, because most images have a few and numpy has no ragged rows.
    offsets = offsets_of([len(one.record.shapes) for one in placed])
    number_of = {kind: number for number, kind in enumerate(classes)}
    numbers = [number_of[kind] for one in placed for kind, _ in one.record.shapes]
    width = 4 + sum(column.width for column in columns)
    rows = np.array([values for one in placed for _, values in one.record.shapes], np.float64).reshape(-1, width)
    sizes = np.array([one.record.size for one in placed], np.int64).reshape(-1, 2)
    found: dict[str, NDArray[Any]] = {"labels": np.array(numbers, np.int64)}
    start = 4
    for name, dtype, count in columns:
        made, odd = as_column(rows[:, start : start + count], dtype)
        if odd >= 0:
            file = placed[int(np.searchsorted(offsets, odd, side="right")) - 1].file.name
            what = f"a box has {rows[odd, start : start + count].tolist()} as {name}, which does not fit"
            raise broken(file, what, str(made.dtype))
        start += count
        found[name] = np.ascontiguousarray(made[:, 0] if count == 1 else made)
    corners = np.ascontiguousarray(rows[:, :4])
    return Boxes(offsets, corners, found, relative=relative, sizes=sizes if sizes.any() else None)


# --- which image a record is about ------------------------------------------------------------------------------------


def records_beside(
    source: Source,
    images: FileEntries,
    files: Sequence[FileEntry | None],
    parse: Callable[[str, bytes], Record],
    what: str,
    *,
    labels: Iterable[str],
) -> tuple[list[Placed], list[str]]:
    """Return each image with what its file states; and notes on images without a file (called `what`) and so without
    boxes, on images that share a file, and on files among `labels` that belong to no image."""
    there = [file for file in files if file is not None]
    found = source.parse(there, lambda file, content: parse(file.name, content))
    nothing = Record("", ())
    placed = [
        Placed(image, nothing if file is None else found[file.name], words.split_of_path(image.name))
        for image, file in zip(images, files, strict=True)
    ]
    bare = len(images) - len(there)
    kept = f"{counted(bare, 'images', 'have')} no {what}, and {'is' if bare == 1 else 'are'} kept without boxes."
    first_of: dict[str, str] = {}
    pairs = zip(images.names, files, strict=True)
    shared = [image for image, file in pairs if file is not None and first_of.setdefault(file.name, image) != image]
    # Images without a label file count only in folders where others have one.
    folders = {posixpath.dirname(name) for name in found}
    stems = {words.normal(words.stem_of(name)) for name in source.ending_in(words.IMAGES).names}
    others = (name for name in labels if name not in found and posixpath.dirname(name) in folders)
    alone = sorted(name for name in others if words.normal(words.stem_of(name)) not in stems)
    return placed, [
        *([kept] if bare else []),
        *([f"{counted(len(shared), 'images', 'have')} the {what} of another (first '{shared[0]}')."] if shared else []),
        *left_out_notes((len(alone), "label files", f"of no image (first '{alone[0] if alone else ''}')")),
    ]


def join_records(
    source: Source, found: Mapping[str, Sequence[Record]], *, per_image: bool = False
) -> tuple[list[Placed], list[str]]:
    """Return the images that the records of each file name, in their order, and notes.

    `per_image`: whether each file is about one image and has its name.
    """
    images = source.ending_in(words.IMAGES)
    lookup = source.made_of(images, Lookup.of)
    owner: dict[int, str] = {}
    placed: list[Placed] = []
    notes: list[str] = []
    missing: list[tuple[str, str]] = []
    # A file about one image has the image's name, which may be test_01.
    split_of = words.split_of_path if per_image else words.split_of_file
    splits = {file: split_of(file) for file in found}
    images_of = {file: [record.image for record in records] for file, records in found.items()}
    held_out = set() if per_image else held_out_of_others(lookup, splits, images_of)
    for file, records in found.items():
        folder, before, own = posixpath.dirname(file), len(missing), splits[file]
        for record in records:
            split = record.split or ("" if file in held_out else own)
            number = lookup.find(record.image, folder, split=split)
            if number < 0:
                missing.append((file, record.image))
                continue
            image = images.names[number]
            # If images were annotated or exported twice, their boxes may disagree.
            if number in owner:
                where = "twice" if owner[number] == file else f"again, after '{owner[number]}'"
                raise broken(file, f"it lists the image '{image}' {where}", "each image once; leave one of them out")
            owner[number] = file
            placed.append(Placed(images[number], record, record.split or own or words.split_of_path(image)))
        lost = len(missing) - before
        if per_image or not lost:
            continue
        # People often download one split of COCO with the annotations of all splits.
        if lost == len(records):
            notes.append(f"None of the images that '{file}' names are here; it was left out.")
        elif 2 * lost > len(records):
            raise _absent(file, len(records), missing[before:])
        else:
            notes.append(f"{left_out(lost, 'images', f'''named by '{file}' and not there''')}.")
    total = sum(map(len, found.values()))
    if not placed or (per_image and 2 * len(placed) < total):
        raise _absent(next(iter(found)) if len(found) == 1 else source.label, total, missing)
    if per_image:
        notes += left_out_notes((len(missing), "images", "named by annotations but missing"))
    # Not an error: many datasets annotate only some of their images.
    notes += left_out_notes((len(images) - len(placed), "images", "without annotations"))
    return placed, notes


def _absent(where: str, count: int, missing: Sequence[tuple[str, str]]) -> BrokenDatasetError:
    first = f" (first missing or not to be told from others: '{show(missing[0][1])}')" if missing else ""
    what = f"of {count:,} images that its annotations name, {count - len(missing):,} are there{first}"
    return broken(where, what, "at least half")


# --- what four numbers are --------------------------------------------------------------------------------------------


def edges(x0: float, y0: float, x1: float, y1: float) -> Points:
    """Return the four corners of a box, in order."""
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def turned(points: Points, around: tuple[float, float], degrees: Any) -> Points:
    """Return points rotated around another, clockwise in an image."""
    angle = math.radians(float(degrees or 0))
    (x0, y0), sine, cosine = around, math.sin(angle), math.cos(angle)
    moved = [(x - x0, y - y0) for x, y in points]
    return [(x0 + x * cosine - y * sine, y0 + x * sine + y * cosine) for x, y in moved]


def as_corners(places: NDArray[np.float64], form: Form) -> NDArray[np.float64]:
    """Return boxes `(M, 4)` of a form as xyxy."""
    first, last = places[:, :2], places[:, 2:]
    if form in ("xyxy", "yxyx"):
        return places if form == "xyxy" else places[:, [1, 0, 3, 2]]
    begin = first if form == "xywh" else first - last / 2
    return np.concatenate([begin, begin + last], axis=1)


class FoundForm(NamedTuple):
    """What the four numbers of boxes mean."""

    form: Form
    relative: bool = False
    """Whether they are fractions of width and height."""
    trouble: str = ""
    """Why that is unknown; "" if it is known."""


def find_form(
    boxes: Sequence[NDArray[np.float64]],
    size_of: Callable[[int], tuple[int, int] | None],
    *,
    stated: Form | None = None,
    areas: NDArray[Any] | None = None,
) -> FoundForm:
    """Return what the four numbers of some images' boxes mean, `(M, 4)` each: the only form in which all are possible
    and inside their images, or nearly all, or whose areas are those that are stated.

    `size_of`: returns the height and width of one of the images, if known. `stated`: the form, if something says it.
    `areas`: `(N,)`, of the boxes of all images, if known.
    """
    every = np.concatenate([np.zeros((0, 4)), *boxes])
    # A fraction may be a bit more than 1, and no dataset has boxes of a pixel alone.
    relative = bool(len(every)) and every.max() < 2 and bool(np.any(every != np.rint(every)))
    if stated is not None or not len(every):
        return FoundForm(stated or "xyxy", relative)
    sizes = [(1, 1) if relative else size_of(number) if number < _LOOKED_AT else None for number in range(len(boxes))]
    ends = np.repeat(
        [[np.inf] * 2 if size is None else [*reversed(size)] for size in sizes], [*map(len, boxes)], axis=0
    )
    # A box may end a pixel beyond the edge, because tools disagree on where pixels are.
    edge = 0.01 if relative else 1
    forms: tuple[Form, ...] = ("xyxy", "xywh", "cxcywh") if relative else ("xyxy", "xywh")
    corners = {form: as_corners(every, form) for form in forms}
    sides = {form: own[:, 2:] - own[:, :2] for form, own in corners.items() if (own[:, 2:] >= own[:, :2]).all()}
    outside = {
        form: (corners[form][:, :2] < -edge).any(axis=1) | (corners[form][:, 2:] > ends + edge).any(axis=1)
        for form in sides
    }
    fitting = [form for form in sides if not outside[form].any()]
    fitting = fitting or [form for form in sides if outside[form].mean() < _MANY_OUTSIDE]
    if len(fitting) > 1 and areas is not None:
        fitting = [form for form in fitting if np.allclose(sides[form].prod(axis=1), areas, rtol=0.01)] or fitting
    may = f"may be {' as well as '.join(fitting)}" if len(fitting) > 1 else "are not inside their images"
    return FoundForm(next(iter(fitting), "xyxy"), relative, "" if len(fitting) == 1 else may)


# As a part of all boxes; tools that let boxes reach outside have fewer.
_MANY_OUTSIDE = 1 / 8


def other_form(boxes: Boxes) -> tuple[str, int]:
    """If many boxes of a table are outside their images, return the form in which all would be inside, and the sample
    of the first that is outside; "" if there is none.

    Fractions were read as centre, width and height; pixels, if the image's size is stated, as first corner, width and
    height.
    """
    sizes = np.ones((len(boxes), 2)) if boxes.sizes is None else boxes.sizes
    outside, first, last = boxes.outside(sizes), boxes.boxes[:, :2], boxes.boxes[:, 2:]
    if not outside.any() or outside.mean() < _MANY_OUTSIDE:
        return "", 0
    begin = (first + last) / 2 if boxes.relative else first
    ends = {"two corners": last - first, "first corner, width and height": begin + last - first}
    forms = {form: np.concatenate([begin, end], axis=1) for form, end in ends.items() if not np.array_equal(end, last)}
    fitting = [
        form
        for form, places in forms.items()
        if (places[:, 2:] >= begin).all() and not replace(boxes, boxes=places).outside(sizes).any()
    ]
    return " or ".join(fitting), int(boxes.owners[np.argmax(outside)])


# --- fields of records ------------------------------------------------------------------------------------------------


def box_key(value: Any) -> str | None:
    """Return the key of a mapping under which boxes are; `None` if there is none."""
    return next((key for key in BOX_KEYS if key in value), None) if isinstance(value, Mapping) else None


def stated_form(key: str, beside: Iterable[str]) -> Form | None:
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


def holds_boxes(value: Any) -> bool:
    """Tell whether a value is the objects of an image: a list of them, or a list for each field."""
    if isinstance(value, list):
        return bool(value) and all((key := box_key(one)) and isinstance(one[key], list) for one in value)
    rows = value[key] if (key := box_key(value)) is not None else None
    return isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def format_box(box: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in box.tolist()) + "]"


def box_fields(where: str, record: Mapping[str, Any]) -> list[str]:
    """Return the field of a record that holds its objects, whatever it is called, or the fields that hold a list for
    each part of them; nothing if there are none."""
    if holds_boxes(record) and any(isinstance(record.get(key), list) for key in BOX_LABELS):
        return [name for name in record if name in (*BOX_KEYS, *BOX_LABELS, *FURTHER)]
    found = [name for name, value in record.items() if holds_boxes(value)]
    found = [name for name in OBJECTS if name in found] or found
    if len(found) > 1 and found[0] not in OBJECTS:
        raise broken(where, f"its fields {listed(found)} all hold boxes", f"one that counts, called '{OBJECTS[0]}'")
    return found[:1]


def further_fields(keys: Container[str]) -> dict[str, tuple[str, type[np.generic]]]:
    """Return the fields of some that hold further facts of each box, one for each fact: its column, and its type."""
    found = {own: key for key, own in FURTHER.items() if key in keys}
    return {key: own for own, key in found.items()}


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


def object_columns(where: str, columns: Iterable[Column]) -> dict[str, list[Any]]:
    """Return the values of the columns that hold objects, or a part of them each, as JSON."""
    nested = [one for one in columns if one.filled and all(cell[0] in "[{" for cell in one.filled)]
    try:
        values = {one.name: [json.loads(cell or "null") for cell in one.cells] for one in nested}
    except (ValueError, RecursionError):
        return {}
    examples = {name: next(filter(None, own), None) for name, own in values.items()}
    return {name: values[name] for name in box_fields(where, examples)}


# --- columns of tables ------------------------------------------------------------------------------------------------

# Words for the sides of a box, once every other word of a column's name is removed; and those other words.
_SIDE_WORDS = (
    "x0 xmin minx left xtl startx colmin",
    "y0 ymin miny top ytl starty rowmin",
    "x2 xmax maxx right xbr endx colmax",
    "y2 ymax maxy bottom ybr endy rowmax",
)
_SIDES = {word: side for side, found in enumerate(_SIDE_WORDS) for word in found.split()}
# x1 and y1 are the first corner beside x2 and y2, and the second beside x0 and y0.
_FIRST = {"x1": 0, "y1": 1}
_AROUND = re.compile(r"^(bbox|box|roi|rect|face|object|obj|bounding_box)_?|_?(bbox|box|roi)$")
# Landmarks have one such column for each coordinate of each point.
_POINT = re.compile(r"[xy]_?\d+")
_OTHER_FORMS = re.compile(
    r"(b?boxe?s?(string)?|bounding_box(es)?|predictionstring|objects|region_shape_attributes|bbox_\[.*|coordinates|coords|roi|rect)"
)
_CORNERS = (("x", "y"), ("xcenter", "ycenter"), ("cx", "cy"), ("x1", "y1"), ("xmin", "ymin"), ("left", "top"))
# Run-length encoded masks, as in competitions.
_RUNS = ("encodedpixels", "encoded_pixels", "rle", "rle_mask", "mask_rle")
_RUN_LENGTHS = re.compile(r"\d+ \d+( \d+ \d+)*", re.ASCII)
_BOX_LABELS = ("labelname", "name", "cell_type")
_IMAGE_SIDES = (("height", "width"), ("image_height", "image_width"), ("img_height", "img_width"))
_MOSTLY_INSIDE = 0.9
_FOUR_NUMBERS = re.compile(r"[\[({]?\s*-?[\d.]+([\s,]+-?[\d.]+){3}\s*[\])}]?")


class BoxColumns(NamedTuple):
    """The columns that hold boxes: the names of x0, y0, x1 and y1, in this order, and of the class."""

    corners: tuple[str, ...]
    label: str


def find_box_columns(columns: Mapping[str, Column]) -> BoxColumns | None:
    """Return the columns of a table that are boxes; `None` if there are none. Boxes in another form are an error."""
    corners = _corners_of(columns)
    runs = [name for name, one in columns.items() if one.plain in _RUNS or _are_runs(one)][:1]
    named = [one for one in columns.values() if words.is_label_name(one.name) or one.plain in _BOX_LABELS]
    # In words, where another one says the same.
    same = (one for one in named if not one.is_numeric and same_partition(one.cells, named[0].cells))
    label = next((one.name for one in (*same, *named)), None)
    # x1 to x5 without y are measurements.
    points = [name for name, one in columns.items() if _POINT.fullmatch(one.plain)] if corners else []
    points = points if len(points) > 4 else []
    if points and label is None and not runs:
        return None
    unread: dict[str, Sequence[str]] = {
        "masks as run lengths": runs,
        "more points than the corners of a box": points,
        "boxes, and none their class": corners if label is None else (),
        "boxes in another form": () if corners else _other_form(columns),
    }
    what, found = next(((what, found) for what, found in unread.items() if found), ("", ()))
    if not found and label is not None and corners:
        others = (one for one in named if words.is_label_name(one.name))
        odd = [one.name for one in others if not same_partition(one.cells, columns[label].cells)]
        if odd:
            msg = f"Which of the columns {listed([label, *odd])} is the class of its boxes? Call the others otherwise."
            raise LayoutError(msg)
        return BoxColumns(corners, label)
    if not found:
        return None
    taken = [label] if label is not None else [*found] if corners and not runs else []
    how = f"layout=table_rows(labels={taken!r}), from colabstage.options, takes numbers and words as they are"
    msg = (
        f"Its column{'s' if len(found) > 1 else ''} {listed(found, 6)} {'hold' if len(found) > 1 else 'holds'} {what}. "
        "Expected columns xmin, ymin, xmax, ymax and class, one box in each row; or each mask as a PNG in a folder "
        f"""'masks'. Otherwise {how if taken else 'layout="images" takes the images without labels'}."""
    )
    raise LayoutError(msg)


def find_image_sides(columns: Mapping[str, Column]) -> list[str]:
    known = {column.plain: name for name, column in columns.items() if column.is_numeric}
    return next(([known[one] for one in sides] for sides in _IMAGE_SIDES if known.keys() >= {*sides}), [])


def _corners_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns named like corners of boxes, x0, y0, x1 and y1; empty if there are none."""
    sides: dict[int, str] = {}
    firsts: dict[int, str] = {}
    for name in columns:
        plain = _bare(words.plain_name(name))
        if plain in _SIDES:
            sides.setdefault(_SIDES[plain], name)
        elif plain in _FIRST:
            firsts[_FIRST[plain]] = name
    for axis, name in firsts.items():
        sides.setdefault(axis + 2 if axis in sides else axis, name)
    return tuple(sides[side] for side in range(4)) if len(sides) == 4 else ()


def _bare(plain: str) -> str:
    return _AROUND.sub("", plain).replace("_", "")


def _other_form(columns: Mapping[str, Column]) -> list[str]:
    """Return the columns that hold boxes in a form that is not read; empty if there are none."""
    for name, column in columns.items():
        is_row = "box" in column.plain and column.are_all(_FOUR_NUMBERS) and not column.is_numeric
        if is_row or _OTHER_FORMS.fullmatch(column.plain):
            return [name]
    bare = {_bare(column.plain): name for name, column in columns.items()}
    for corner in _CORNERS:
        for wanted in ((*corner, "width", "height"), (*corner, "w", "h")):
            if bare.keys() >= {*wanted}:
                return [bare[word] for word in wanted]
    return []


def _are_runs(column: Column) -> bool:
    """Tell whether cells are run-length encoded masks, whatever the column's name: in each the runs ascend, and
    somewhere there are more numbers than the four of a box."""
    if not column.are_all(_RUN_LENGTHS):
        return False
    rows = [[int(word[:40]) for word in cell.split()] for cell in column.filled]
    runs = (run for row in rows for run in zip(row[::2], row[1::2], row[2::2], strict=False))
    return max(map(len, rows)) > 4 and all(start + length <= after for start, length, after in runs)


def boxes_of_rows(
    files: NDArray[np.int64],
    corners: Sequence[Column],
    label: Column,
    name: Sequence[str],
    sides: Sequence[Column] = (),
) -> tuple[list[int], Boxes, tuple[str, ...]]:
    """Return the first row of every file, in order, the boxes of each, in the order of its rows, and their classes; a
    row with empty cells means that its file has none.

    Numbers are pixels, or fractions of width and height if none is above 1 and some are not integers. `files`: the
    number of each row's file, of those called `name`; `sides`: columns that may be height and width of the image.
    """
    _, firsts, of_file = np.unique(files, return_index=True, return_inverse=True)
    places = np.stack([column.numbers() for column in corners], axis=1)
    filled = np.array(list(map(any, zip(label.cells, *(one.cells for one in corners), strict=True))), np.bool_)
    fine = np.isfinite(places).all(axis=1) & (places[:, 2:] >= places[:, :2]).all(axis=1)
    odd = np.flatnonzero(filled & ~(fine & np.array(list(map(bool, label.cells)), np.bool_)))
    if len(odd):
        written = ", ".join(show(column.cells[odd[0]]) or "nothing" for column in corners)
        which = f"A box of '{name[files[odd[0]]]}' is {written} with the class '{show(label.cells[odd[0]])}'"
        expected = "numbers, left before right and top before bottom, and a class"
        msg = f"{which}; expected {expected}. In the row of an image without a box leave '{label.name}' empty too."
        raise LayoutError(msg)
    # Files in the order of their first rows, and the rows of each in theirs.
    of_file = firsts[of_file.reshape(-1)]
    rows = np.flatnonzero(filled)
    rows = rows[np.argsort(of_file[rows], kind="stable")]
    starts = np.sort(firsts).tolist()
    offsets = np.concatenate([[0], np.searchsorted(of_file[rows], starts, side="right")]).astype(np.int64)
    numbered = {word: int(word) for word in label.filled if word.isascii() and word.isdecimal() and len(word) < 40}
    classes = sorted(label.filled, key=lambda word: (word not in numbered, numbered.get(word, 0), word))
    index = {word: number for number, word in enumerate(classes)}
    labels = np.array([index[label.cells[row]] for row in rows.tolist()], np.int64)
    found = np.ascontiguousarray(places[rows])
    # Integers up to 1 may be boxes of one pixel; only fractions show that the numbers are parts of the image.
    relative = bool(len(found)) and float(found.max()) <= 1 and bool(np.any(found != np.rint(found)))
    sizes = _stated_sizes(sides, places, of_file)
    boxes = Boxes(offsets, found, {"labels": labels}, relative, None if sizes is None else sizes[starts])
    return starts, boxes, tuple(classes)


def _stated_sizes(
    sides: Sequence[Column], places: NDArray[np.float64], of_file: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return height and width of each row's image; `None` if no columns, or only those of the boxes, state them."""
    if not sides:
        return None
    sizes = np.stack([column.numbers() for column in sides], axis=1)
    if not (np.array_equal(sizes, sizes[of_file]) and np.all(sizes >= 1)):
        return None
    ends = np.nan_to_num(places[:, [3, 2]])
    inside = (ends <= sizes).all(axis=1)
    are_of_boxes = np.array_equal(ends - np.nan_to_num(places[:, [1, 0]]), sizes)
    return sizes.astype(np.int64) if inside.mean() > _MOSTLY_INSIDE and not are_of_boxes else None
