"""Boxes of images: rows of numbers by image as one table, whatever wrote them; and columns of tables that are boxes."""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted, left_out, listed
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence
from colabstage.layouts.lists import lists_state
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Boxes, BrokenDatasetError, Images, SampleTable, known_splits, offsets_of
from colabstage.layouts.words import is_label_name, plain_name, split_name, split_of_path, split_of_word, stem_of
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.columns import Column
    from colabstage.layouts.lookup import Lookup
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

NAME = "detection"
# The four numbers of a box: its corners; its first corner, width and height; its centre, width and height.
Form = Literal["xyxy", "xywh", "cxcywh"]


class BoxColumn(NamedTuple):
    """What is known of each box beside its place."""

    name: str
    """What it is called in the pack."""
    dtype: type[np.generic]
    width: int = 1
    """How many numbers each box has of it."""


class Record(NamedTuple):
    """What a file of annotations states of one image; `parse` of a format returns a list of these."""

    image: str
    shapes: Sequence[tuple[Any, Sequence[float]]]
    """The class of each box, a word or a number, and x0, y0, x1, y1 with the values of further columns."""
    size: tuple[int, int] = (0, 0)
    """Its height and width; zeros if the file does not say."""
    split: str = ""
    """The split that the file states of it."""
    left_out: int = 0
    """How many things are annotated that have no box: single points, lanes."""


class Placed(NamedTuple):
    """An image, and what is stated of it."""

    file: FileEntry
    record: Record
    split: str


# Sides beyond this are no image's.
_LARGEST_SIDE = 1 << 31


def side_of(value: Any) -> int:
    """Return a side of an image as a file states it; 0 for what is no number, and at most what no image has."""
    try:
        number = float(value or 0)
    except OverflowError:
        return _LARGEST_SIDE
    except (TypeError, ValueError):
        return 0
    return int(min(number, _LARGEST_SIDE)) if number > 0 else 0


def _fits(values: NDArray[np.float64], dtype: type[np.generic]) -> NDArray[np.bool_]:
    """Tell of each value whether it is one of a type, rounded; what no number is has to stay so."""
    kind: Any = dtype
    if np.issubdtype(kind, np.floating):
        return np.asarray(~np.isfinite(values) | (np.abs(values) <= float(np.finfo(kind).max)))
    limits = np.iinfo(kind)
    # As floats, the largest of 64 bits is one too many.
    return np.asarray((values >= float(limits.min)) & (values < float(limits.max) + 1))


def boxes_state(
    source: Source,
    who: str,
    placed: Sequence[Placed],
    classes: Mapping[Any, int],
    *,
    names: Sequence[str] = (),
    columns: Sequence[BoxColumn] = (),
    relative: bool = False,
    notes: Sequence[str] = (),
    used: Iterable[str] = (),
    stated: dict[str, str] | None = None,
) -> Evidence:
    """Put the boxes of all images into one table, the images in their order. Splits are those of the images where each
    has one, or else those of lists.

    Args:
        source: the files.
        who: what states the boxes.
        placed: the images with their boxes.
        classes: the label of each class of a record.
        names: the names of the classes; the classes themselves by default.
        columns: what follows the four numbers of each box.
        relative: whether these are fractions of width and height.
        notes: sentences for the user.
        used: the files that were read.
        stated: the lists of splits, if something says which they are.
    """
    names = names or list(classes)
    twice = first_repeated(names)
    if twice is not None:
        msg = (
            f"Two classes of '{source.label}' are called '{show(twice)}'. Call one of them something else; or, where "
            "they are one, give its boxes one number."
        )
        raise BrokenDatasetError(msg)
    table = SampleTable(
        layout=NAME,
        keys=tuple(one.file.name for one in placed),
        inputs=Images(TreeFiles(source.tree, [one.file for one in placed])),
        targets=_as_boxes(placed, classes, columns, relative=relative),
        splits=known_splits([one.split for one in placed]),
        classes=tuple(names),
        notes=tuple(notes),
    )
    made = Evidence(table, who, frozenset(used))
    return made if table.splits is not None else lists_state(source, made, stated=stated)[0]


def _as_boxes(
    placed: Sequence[Placed], classes: Mapping[Any, int], columns: Sequence[BoxColumn], *, relative: bool
) -> Boxes:
    # Boxes of all images are in one array, because most images have a few and numpy has no rows of different lengths.
    offsets = offsets_of([len(one.record.shapes) for one in placed])
    flat = [(classes[kind], *values) for one in placed for kind, values in one.record.shapes]
    rows = np.array(flat, np.float64).reshape(-1, 5 + sum(column.width for column in columns))
    sizes = np.array([one.record.size for one in placed], np.int64).reshape(-1, 2)
    vast = np.flatnonzero((sizes >= _LARGEST_SIDE).any(axis=1))
    if len(vast):
        msg = (
            f"The labels of '{placed[vast[0]].file.name}' say that a side of it has {_LARGEST_SIDE:,} pixels or more. "
            "Correct that, or leave it out."
        )
        raise BrokenDatasetError(msg)
    found: dict[str, NDArray[Any]] = {}
    start = 5
    for name, dtype, width in (BoxColumn("labels", np.int64), *columns):
        values = rows[:, :1] if name == "labels" else rows[:, start : start + width]
        start += 0 if name == "labels" else width
        odd = np.flatnonzero(~_fits(values, dtype).all(axis=1))
        if len(odd):
            file = placed[int(np.searchsorted(offsets, odd[0], side="right")) - 1].file.name
            msg = f"A box of '{file}' has {values[odd[0]].tolist()} as {name}, which does not fit. Correct its number."
            raise BrokenDatasetError(msg)
        found[name] = np.ascontiguousarray((values[:, 0] if width == 1 else values).astype(dtype))
    corners = np.ascontiguousarray(rows[:, 1:5])
    return Boxes(offsets, corners, found, relative=relative, sizes=sizes if sizes.any() else None)


def without_boxes_note(count: int, what: str) -> list[str]:
    """Return a note on images that nothing is known of; empty where there are none."""
    if not count:
        return []
    return [f"{counted(count, 'images', 'have')} no {what}, and {'is' if count == 1 else 'are'} kept without boxes."]


def as_corners(places: NDArray[np.float64], form: Form) -> NDArray[np.float64]:
    """Return boxes `(M, 4)` of a form as xyxy."""
    first, last = places[:, :2], places[:, 2:]
    if form == "xyxy":
        return places
    begin = first if form == "xywh" else first - last / 2
    return np.concatenate([begin, begin + last], axis=1)


def find_form(
    boxes: Sequence[NDArray[np.float64]], size_of: Callable[[int], tuple[int, int] | None], *, most: int
) -> tuple[Form, str]:
    """Return what the four numbers of boxes are that nothing says the form of, by what is possible for all of them;
    and why that cannot be known.

    Args:
        boxes: those of some images, `(M, 4)` each.
        size_of: returns the width and height of one of the images, if they are known.
        most: how many images are looked at.
    """
    may = [True, True]
    for number, places in enumerate(boxes):
        size = size_of(number) if number < most else None
        # A box may end a pixel behind the edge, because tools do not agree on where pixels are.
        ends = (np.inf, np.inf) if size is None else (size[0] + 1, size[1] + 1)
        first, last = places[:, :2], places[:, 2:]
        may[0] &= bool(np.all(last >= first) and np.all(last <= ends))
        may[1] &= bool(np.all(places >= 0) and np.all(first + last <= ends))
    if not len(boxes) or may[0] != may[1]:
        return "xyxy" if may[0] else "xywh", ""
    return "xyxy", "may be xyxy as well as xywh" if may[0] else "are not inside their images"


# --- columns of tables ------------------------------------------------------------------------------------------------

# Words for the sides of a box, after every other word of a column's name has gone.
_SIDES = {
    "x0": 0, "xmin": 0, "minx": 0, "left": 0, "xtl": 0, "startx": 0, "x_0": 0, "x_min": 0, "min_x": 0, "start_x": 0,
    "y0": 1, "ymin": 1, "miny": 1, "top": 1, "ytl": 1, "starty": 1, "y_0": 1, "y_min": 1, "min_y": 1, "start_y": 1,
    "xmax": 2, "maxx": 2, "right": 2, "xbr": 2, "endx": 2, "x2": 2, "x_max": 2, "max_x": 2, "end_x": 2, "x_2": 2,
    "ymax": 3, "maxy": 3, "bottom": 3, "ybr": 3, "endy": 3, "y2": 3, "y_max": 3, "max_y": 3, "end_y": 3, "y_2": 3,
}  # fmt: skip
# x1 and y1 are the first corner beside x2 and y2, and the second beside x0 and y0.
_FIRST = {"x1": 0, "x_1": 0, "y1": 1, "y_1": 1}
_AROUND = re.compile(r"^(bbox|box|roi|rect|face|object|obj|bounding_box)_?|_?(bbox|box|roi)$")
# Landmarks are as many of these as there are points.
_POINT = re.compile(r"[xy]_?\d+")
_OTHER_FORMS = re.compile(
    r"(b?boxe?s?|bounding_box(es)?|predictionstring|objects|region_shape_attributes|bbox_\[.*|coordinates|coords|roi|rect)"
)
_CORNERS = (
    ("x", "y"), ("x_center", "y_center"), ("cx", "cy"), ("x_1", "y_1"), ("x1", "y1"), ("x_min", "y_min"),
    ("xmin", "ymin"), ("left", "top"),
)  # fmt: skip
# Run-length encoded masks, as in competitions.
_RUNS = ("encodedpixels", "encoded_pixels", "rle", "rle_mask", "mask_rle")
_RUN_LENGTHS = re.compile(r"\d+ \d+( \d+ \d+)*", re.ASCII)
_BOX_LABELS = ("labelname", "name", "cell_type")
_FOUR_NUMBERS = re.compile(r"[\[({]?\s*-?[\d.]+([\s,]+-?[\d.]+){3}\s*[\])}]?")


class BoxColumns(NamedTuple):
    """The columns that boxes are in."""

    corners: tuple[str, ...]
    """Names of x0, y0, x1 and y1, in this order."""
    label: str


def find_box_columns(columns: Mapping[str, Column]) -> BoxColumns | None:
    """Return the columns of a table that are boxes; `None` if there are none. Boxes in another form are an error."""
    runs = next((name for name, one in columns.items() if one.plain in _RUNS or _are_runs(one)), None)
    label = next((name for name, one in columns.items() if is_label_name(name) or one.plain in _BOX_LABELS), None)
    corners = corners_of(columns)
    other = [] if corners or runs else _other_form(columns, has_label=label is not None)
    points = [name for name, one in columns.items() if _POINT.fullmatch(one.plain)]
    # x1 to x5 without y are measurements.
    are_points = bool(corners) and len(points) > 4
    if not (runs or corners or other) or (are_points and not runs and label is None):
        return None
    if corners and label is not None and not are_points and not runs:
        return BoxColumns(corners, label)
    whole = (
        'Or take the images without labels: layout="images".'
        if label is None
        else f"For what '{label}' says of the whole image: layout=table_rows(labels=[{label!r}])."
    )
    if runs:
        why = (
            f"'{runs}' holds masks as run lengths (RLE), which are not read. Write a mask for each image, as a PNG of "
            "the same name in a folder 'masks'."
        )
    elif other:
        via = " VIA's export as JSON is read." if "region_shape_attributes" in other else ""
        why = (
            f"{listed(other)} holds boxes, which are read from columns xmin, ymin, xmax, ymax and class, one box in "
            f"each row. Write them so.{via}"
        )
    elif are_points:
        why = (
            f"{listed(points, 6)} are more than the two corners of a box: landmarks, or the corners of a polygon. To "
            f"learn the points: layout=table_rows(labels={points!r})."
        )
    else:
        why = (
            f"{', '.join(corners)} are boxes, and no column 'class' says what is in them. Add one; if these are "
            f"numbers to be learnt, say so: layout=table_rows(labels={list(corners)!r})."
        )
    msg = f"Its column {why} {whole}"
    raise LayoutError(msg)


def corners_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the columns that are called as corners of boxes are, x0, y0, x1 and y1; nothing of none."""
    sides: dict[int, str] = {}
    firsts: dict[int, str] = {}
    for name in columns:
        plain = _AROUND.sub("", plain_name(name)).strip("_")
        if plain in _SIDES:
            sides.setdefault(_SIDES[plain], name)
        elif plain in _FIRST:
            firsts[_FIRST[plain]] = name
    for axis, name in firsts.items():
        if axis not in sides:
            sides[axis] = name
        else:
            sides.setdefault(axis + 2, name)
    return tuple(sides[side] for side in range(4)) if len(sides) == 4 else ()


def _other_form(columns: Mapping[str, Column], *, has_label: bool) -> list[str]:
    """Return the columns that hold boxes in a form that is not read; nothing of none."""
    for name, column in columns.items():
        is_row = "box" in column.plain and column.are_all(_FOUR_NUMBERS) and not column.is_numeric
        if is_row or _OTHER_FORMS.fullmatch(column.plain):
            return [name]
    known = {one.plain: name for name, one in columns.items()}
    plain = {_AROUND.sub("", name).strip("_"): column for name, column in known.items()}
    for sides in itertools.product(_CORNERS, (("width", "height"), ("w", "h"))):
        wanted = [word for pair in sides for word in pair]
        for names in (known, plain):
            if names.keys() >= set(wanted):
                return [names[word] for word in wanted]
    # image_width beside bbox_x: sizes of boxes under another name.
    is_box = has_label and "x" in plain and "y" in plain and plain["x"] != known.get("x")
    return [plain["x"], plain["y"]] if is_box else []


def _are_runs(column: Column) -> bool:
    """Tell whether cells are masks as lengths of runs, whatever the column is called: in each the runs follow one
    another, and there are more of them somewhere than four numbers of a box could be taken for."""
    if not column.are_all(_RUN_LENGTHS):
        return False
    longest = 0
    for cell in column.filled:
        numbers = [int(word[:40]) for word in cell.split()]
        ends = [begin + length for begin, length in zip(numbers[::2], numbers[1::2], strict=True)]
        if any(end > begin for end, begin in zip(ends, numbers[2::2], strict=False)):
            return False
        longest = max(longest, len(ends))
    return longest > 2


class PlacedBoxes(NamedTuple):
    """The boxes of M files, in the order of their first rows."""

    firsts: list[int]
    """The number of each file's first row."""
    boxes: Boxes
    classes: tuple[str, ...]


def boxes_of_rows(files: Sequence[int], corners: Sequence[Column], label: Column, name: Sequence[str]) -> PlacedBoxes:
    """Collect the boxes of every file, in the order of its rows.

    A row with empty cells means that its file has no box. Numbers are pixels, or fractions of width and height if none
    is above 1 and some are not integers.

    Args:
        files: the number of the file of each row.
        corners, label: the columns.
        name: the names of files by number.
    """
    firsts: dict[int, int] = {}
    for row, file in enumerate(files):
        firsts.setdefault(file, row)
    places = np.stack([_numbers_of(column) for column in corners], axis=1)
    filled = np.array(
        [any(cells) for cells in zip(label.cells, *(one.cells for one in corners), strict=True)], np.bool_
    )
    fine = np.isfinite(places).all(axis=1) & (places[:, 2:] >= places[:, :2]).all(axis=1)
    odd = np.flatnonzero(filled & ~(fine & np.array([bool(cell) for cell in label.cells])))
    if len(odd):
        written = ", ".join(show(column.cells[odd[0]]) or "nothing" for column in corners)
        msg = (
            f"A box of '{name[files[odd[0]]]}' is {written} with the class '{show(label.cells[odd[0]])}'; expected "
            "numbers, left before right and top before bottom, and a class. In the row of an image without a box leave "
            f"'{label.name}' empty too."
        )
        raise LayoutError(msg)
    # Files in the order of their first rows, and the rows of each in theirs.
    of_file = np.array([firsts[file] for file in files], np.int64)
    rows = np.flatnonzero(filled)
    rows = rows[np.argsort(of_file[rows], kind="stable")]
    starts = list(firsts.values())
    offsets = np.concatenate([[0], np.searchsorted(of_file[rows], starts, side="right")]).astype(np.int64)
    numbered = {word: int(word) for word in label.filled if word.isascii() and word.isdecimal() and len(word) < 40}
    classes = sorted(label.filled, key=lambda word: (word not in numbered, numbered.get(word, 0), word))
    index = {word: number for number, word in enumerate(classes)}
    labels = np.array([index[label.cells[row]] for row in rows.tolist()], np.int64)
    found = np.ascontiguousarray(places[rows])
    # Integers up to 1 may be boxes of one pixel; only fractions show that parts of the image are meant.
    relative = bool(len(found)) and float(found.max()) <= 1 and bool(np.any(found != np.rint(found)))
    return PlacedBoxes(starts, Boxes(offsets, found, {"labels": labels}, relative=relative), tuple(classes))


def _numbers_of(column: Column) -> NDArray[np.float64]:
    """Return the cells as numbers, NaN for what is none."""

    def number(cell: str) -> float:
        try:
            return float(cell)
        except ValueError:
            return math.nan

    known = {cell: number(cell) for cell in column.distinct}
    return np.array([known[cell] for cell in column.cells], np.float64)


# --- records that name images -----------------------------------------------------------------------------------------


class Joined(NamedTuple):
    """The images that records name."""

    placed: list[Placed]
    """Each image that is there, in the order of files and their records."""
    files: list[str]
    """The files whose images are there."""
    notes: list[str]


def join_records(
    source: Source,
    images: FileEntries,
    lookup: Lookup,
    found: Mapping[str, Sequence[Record]],
    *,
    per_image: bool = False,
) -> Joined:
    """Find the images that records name, by one index of names.

    Args:
        source: the files.
        images, lookup: the images, and their names.
        found: the records of each file, by its name.
        per_image: whether each file is about one image, whose name it has.
    """
    joined: list[Placed] = []
    used, notes = [], []
    owner: dict[int, str] = {}
    absent = ""
    missing_of_all = 0
    for file, records in found.items():
        folder = posixpath.dirname(file)
        # A file about one image has the image's name, which may well be test_01.
        own = ("" if per_image else _split_in_name(file)) or split_of_path(file)
        placed, missing, first = 0, 0, ""
        for record in records:
            number = lookup.find(record.image, folder, split=record.split or own)
            if number is None:
                missing, first = missing + 1, first or record.image
                continue
            # After annotating or exporting twice, boxes need not agree.
            if number in owner:
                raise _twice(images.names[number], owner[number], file)
            owner[number] = file
            placed += 1
            name = images.names[number]
            joined.append(Placed(images[number], record, record.split or own or split_of_path(name)))
        if placed or not records:
            used.append(file)
        if not per_image and 2 * placed < len(records):
            why = (
                f"Of {len(records):,} images that '{file}' names, {placed:,} are there (first missing or not to be "
                f"told from others: '{show(first)}'); expected at least half."
            )
            # Some of its images are there, so the file is meant, and most of the dataset is missing.
            if placed:
                raise BrokenDatasetError(why)
            absent = absent or why
            # People often download one split of COCO with the annotations of all splits.
            notes.append(f"None of the images that '{file}' names are here; it was left out.")
        elif missing:
            missing_of_all += missing
            if not per_image:
                notes += [f"{left_out(missing, 'images', f'named by {chr(39)}{file}{chr(39)} and not there')}."]
    if per_image and missing_of_all:
        notes.append(f"{left_out(missing_of_all, 'images', 'named by annotations but missing')}.")
    total = sum(map(len, found.values()))
    if not joined or (per_image and 2 * len(joined) < total):
        raise BrokenDatasetError(
            absent
            or f"Of {total:,} images that annotations in '{source.label}' name, {len(joined):,} are there; expected at "
            "least half."
        )
    # Not an error: many datasets annotate only some of their images.
    rest = len(images) - len(joined)
    if rest:
        notes.append(f"{left_out(rest, 'images', 'that no annotation file names')}.")
    return Joined(joined, used, notes)


def _split_in_name(file: str) -> str:
    """Return the split in a file's name: instances_train2017, _annotations.coco, train-annotations."""
    stem = stem_of(file)
    words = {split for word in re.split(r"[-._]", stem) if (split := split_of_word(word))}
    return words.pop() if len(words) == 1 else split_name(stem).split if not words else ""


def _twice(image: str, first: str, other: str) -> BrokenDatasetError:
    if first == other:
        return BrokenDatasetError(
            f"'{first}' lists the image '{image}' twice; expected it once. Give all of its annotations the same image."
        )
    return BrokenDatasetError(
        f"The image '{image}' is listed twice, in '{first}' and in '{other}'. Move all but one file of annotations of "
        "it away."
    )
