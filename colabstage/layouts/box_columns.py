"""The columns of a table that are boxes: which ones, and the boxes of every file; and columns that only look so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import listed
from colabstage.layouts.columns import is_label_name, is_numeric, plain_name
from colabstage.layouts.table import Boxes, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The names that Roboflow, TensorFlow's converters, OpenImages and RetinaNet use.
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2"),
    ("x0", "y0", "x1", "y1"), ("left", "top", "right", "bottom"),
)  # fmt: skip
# Landmarks are as many of these as there are points.
_POINT = re.compile(r"[xy]_?\d+")
_OTHER_FORMS = ("bbox", "bboxes", "bounding_box", "predictionstring", "objects")
_SIZED = (
    ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("x_center", "y_center", "width", "height"),
    ("x_min", "y_min", "width", "height"), ("xmin", "ymin", "width", "height"), ("left", "top", "width", "height"),
)  # fmt: skip
# Run-length encoded masks, as in competitions.
_RUNS = ("encodedpixels", "encoded_pixels", "rle", "rle_mask", "mask_rle")
_RUN_LENGTHS = re.compile(r"\d+ \d+( \d+ \d+)*", re.ASCII)
_BOX_LABELS = ("labelname", "name")


class BoxColumns(NamedTuple):
    """The columns that boxes are in."""

    corners: tuple[str, ...]
    """Names of x0, y0, x1 and y1, in this order."""
    label: str
    """Name of the column with the class of the box."""


class PlacedBoxes(NamedTuple):
    """The boxes of M files, in the order of their first rows."""

    firsts: list[int]
    """The number of each file's first row."""
    boxes: Boxes
    """The boxes of all of them."""
    classes: tuple[str, ...]
    """Names of the classes, in label order."""


def box_columns(columns: Mapping[str, Sequence[str]]) -> BoxColumns | None:
    """Return the columns of a table that are boxes; `None` if there are none.

    Args:
        columns: cells by column name, the path's left out.

    Raises:
        LayoutError: there are boxes in a form that is not read, or nothing that says what is in them; points beside a
            class, which are none; or masks.
    """
    by_name = {plain_name(name): name for name in columns}
    runs = next((name for name, cells in columns.items() if plain_name(name) in _RUNS or _are_runs(cells)), None)
    label = next((name for name in columns if is_label_name(name) or plain_name(name) in _BOX_LABELS), None)
    whole = f"name the columns that are labels of whole images: layout=table_rows(labels=[{label or 'NAME'!r}])."
    if runs is not None:
        msg = (
            f"Its column '{runs}' holds masks as lengths of runs, which are not read. Write a mask for each image, as "
            f"a PNG of the same name in a folder 'masks', or {whole}"
        )
        raise LayoutError(msg)
    corners = corners_of(columns)
    points = [name for name in columns if _POINT.fullmatch(plain_name(name))]
    # x1 to x5 without y are measurements.
    if corners and len(points) > 4:
        if label is None:
            return None
        named = f"{', '.join(map(repr, points[:8]))}{', …' if len(points) > 8 else ''}"
        msg = (
            f"Its columns {listed(points, 6)} are more than the two corners of a box: landmarks, or the corners of a "
            f"polygon. Say what is to be learnt, from colabstage.options: the points, layout=table_rows(labels=["
            f"{named}]), or what '{label}' says of the whole image, layout=table_rows(labels=[{label!r}])."
        )
        raise LayoutError(msg)
    if not corners:
        other = [by_name[name] for name in _OTHER_FORMS if name in by_name][:1]
        sized = next((names for names in _SIZED if all(name in by_name for name in names)), ())
        if not other and not sized:
            return None
        which = f"column '{other[0]}' holds" if other else f"columns {listed([by_name[name] for name in sized])} hold"
        msg = (
            f"Its {which} boxes, which are read from columns xmin, ymin, xmax, ymax and class, one box in each row. "
            f"Write them so, or {whole}"
        )
        raise LayoutError(msg)
    if label is None:
        msg = (
            f"It has boxes in {', '.join(corners)} and no column 'class' that says what is in them. Add one; if these "
            f"are numbers to be learnt, say so: layout=table_rows(labels={list(corners)!r})."
        )
        raise LayoutError(msg)
    return BoxColumns(corners, label)


def corners_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the columns that are called as corners of boxes are, x0, y0, x1 and y1; nothing of none."""
    by_name = {plain_name(name): name for name in columns}
    # Each tool has its own spelling, recognised by all four names.
    found = next((names for names in _CORNERS if all(name in by_name for name in names)), ())
    return tuple(by_name[name] for name in found)


def look_like_boxes(columns: Sequence[Sequence[str]]) -> bool:
    """Tell whether four columns of cells, which have no names, are the corners of boxes."""
    if len(columns) != 4 or not all(map(is_numeric, columns)) or not all(map(all, columns)):
        return False
    x0, y0, x1, y1 = (np.array(cells, np.float64) for cells in columns)
    return bool((x0 < x1).all() and (y0 < y1).all())


def _are_runs(cells: Sequence[str]) -> bool:
    """Tell whether cells are masks as lengths of runs, whatever the column is called: in each the runs follow one
    another, and there are more of them somewhere than four numbers of a box could be taken for."""
    filled = [cell for cell in cells if cell]
    if not filled or not all(map(_RUN_LENGTHS.fullmatch, filled)):
        return False
    longest = 0
    for cell in filled:
        numbers = list(map(int, cell.split()))
        ends = [begin + length for begin, length in zip(numbers[::2], numbers[1::2], strict=True)]
        if any(end > begin for end, begin in zip(ends, numbers[2::2], strict=False)):
            return False
        longest = max(longest, len(ends))
    return longest > 2


def _order_of_name(name: str) -> tuple[int, int, str, str]:
    """Return by what classes are sorted: numbers by their size, whatever that is, before words."""
    if not (name.isascii() and name.isdecimal()):
        return 1, 0, name, name
    digits = name.lstrip("0")
    return 0, len(digits), digits, name


def make_boxes(rows: Sequence[tuple[str, Mapping[str, str]]], columns: BoxColumns) -> PlacedBoxes:
    """Collect the boxes of every file, in the order of its rows.

    A row with empty cells means that its file has no box. Numbers are pixels, or fractions of width and height if none
    is above 1 and some are not integers.

    Args:
        rows: the name of the file and the cells by column name, of each row.
        columns: which columns are boxes.

    Raises:
        LayoutError: a cell is not a number, or a box ends before it begins.
    """
    numbers: dict[str, int] = {}
    firsts: list[int] = []
    boxes: list[list[list[float]]] = []
    classes = sorted(
        {label for _, cells in rows if (label := cells[columns.label])},
        key=_order_of_name,
    )
    index = {name: number for number, name in enumerate(classes)}
    for row, (file, cells) in enumerate(rows):
        if file not in numbers:
            numbers[file] = len(firsts)
            firsts.append(row)
            boxes.append([])
        written = [cells[name] for name in columns.corners]
        if any(written) or cells[columns.label]:
            try:
                x0, y0, x1, y1 = (float(cell) for cell in written)
            except ValueError:
                x0, y0, x1, y1 = (float("nan"),) * 4
            if not (np.isfinite([x0, y0, x1, y1]).all() and x0 <= x1 and y0 <= y1):
                found = f"is {', '.join(written)}" if any(written) else f"has the class '{cells[columns.label]}' alone"
                msg = (
                    f"A box of '{file}' {found}; expected numbers, left before right and top before bottom. In the row "
                    f"of an image without a box leave '{columns.label}' empty too."
                )
                raise LayoutError(msg)
            boxes[numbers[file]].append([x0, y0, x1, y1, index.get(cells[columns.label], -1)])
    flat = np.array([box for found in boxes for box in found], np.float64).reshape(-1, 5)
    if np.any(flat[:, 4] < 0):
        msg = f"A box has no class in '{columns.label}'. Fill it in, or take the row out."
        raise LayoutError(msg)
    corners = np.ascontiguousarray(flat[:, :4])
    # Integers up to 1 may be boxes of one pixel; only fractions show that parts of the image are meant.
    relative = bool(len(corners)) and float(corners.max()) <= 1 and bool(np.any(corners != np.rint(corners)))
    offsets = offsets_of([len(found) for found in boxes])
    labels = flat[:, 4].astype(np.int64)
    return PlacedBoxes(firsts, Boxes(offsets, corners, {"labels": labels}, relative=relative), tuple(classes))
