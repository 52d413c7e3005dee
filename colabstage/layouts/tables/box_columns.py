"""Boxes in a table, one in each row: the columns xmin, ymin, xmax, ymax, class. Pure: text in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.fields import Boxes
from colabstage.layouts.tables.label_columns import is_label_name, plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# As Roboflow, TensorFlow's converters, OpenImages and RetinaNet write them.
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2"))
_OTHER_FORMS = ("bbox", "bboxes", "bounding_box", "predictionstring")
_LABELS = ("labelname", "name")


class BoxColumns(NamedTuple):
    """The columns that boxes are in: x0, y0, x1, y1 and what is in the box."""

    corners: tuple[str, ...]
    label: str


class PlacedBoxes(NamedTuple):
    """The boxes of M files in the order of their first rows, whose numbers are `firsts`, and their classes."""

    firsts: list[int]
    boxes: Boxes
    classes: tuple[str, ...]


def box_columns(header: Sequence[str]) -> BoxColumns | None:
    """The columns of a table that are boxes; `None` of a table without.

    Raises:
        LayoutError: there are boxes in a form that is not read, or nothing that says what is in them.
    """
    by_name = {plain_name(name): name for name in header}
    corners = next((names for names in _CORNERS if all(name in by_name for name in names)), None)
    other = next((by_name[name] for name in _OTHER_FORMS if name in by_name), None)
    if corners is None:
        if other is None:
            return None
        msg = (
            f"Its column '{other}' holds boxes, which are read from columns xmin, ymin, xmax, ymax and class, one box "
            "in each row. Write them so, or name the columns that are labels of whole images: "
            "layout=table_rows(labels=['NAME'])."
        )
        raise LayoutError(msg)
    label = next((name for name in header if is_label_name(name) or plain_name(name) in _LABELS), None)
    if label is None:
        msg = f"It has boxes in {', '.join(corners)} and no column 'class' that says what is in them. Add one."
        raise LayoutError(msg)
    return BoxColumns(tuple(by_name[name] for name in corners), label)


def make_boxes(rows: Sequence[tuple[str, Mapping[str, str]]], columns: BoxColumns) -> PlacedBoxes:
    """Put the boxes of every file together, in the order of its rows.

    A row whose cells are all empty says that its file has no box. Numbers are pixels, or parts of width and height
    where none is above 1 and some are no whole numbers.

    Args:
        rows: the name of the file and the cells by column name, of each row.
        columns: which columns are boxes.

    Raises:
        LayoutError: a cell is no number, or a box ends before it begins.
    """
    numbers: dict[str, int] = {}
    firsts: list[int] = []
    boxes: list[list[list[float]]] = []
    classes = sorted({label for _, cells in rows if (label := cells[columns.label])}, key=_number_or_word)
    index = {name: number for number, name in enumerate(classes)}
    for row, (file, cells) in enumerate(rows):
        if file not in numbers:
            numbers[file] = len(firsts)
            firsts.append(row)
            boxes.append([])
        written = [cells[name] for name in columns.corners]
        if any(written) or cells[columns.label]:
            boxes[numbers[file]].append([*_corners(file, written), index.get(cells[columns.label], -1)])
    flat = np.array([box for found in boxes for box in found], np.float64).reshape(-1, 5)
    if np.any(flat[:, 4] < 0):
        msg = f"A box has nothing in '{columns.label}' that says what is in it. Fill it in, or take the row out."
        raise LayoutError(msg)
    corners = np.ascontiguousarray(flat[:, :4])
    relative = bool(len(corners)) and float(corners.max()) <= 1 and bool(np.any(corners != np.rint(corners)))
    offsets = np.concatenate([[0], np.cumsum([len(found) for found in boxes])]).astype(np.int64)
    labels = flat[:, 4].astype(np.int64)
    return PlacedBoxes(firsts, Boxes(offsets, corners, {"labels": labels}, relative=relative), tuple(classes))


def _number_or_word(name: str) -> tuple[bool, int, str]:
    is_number = name.isascii() and name.isdecimal()
    return (not is_number, int(name) if is_number else 0, name)


def _corners(file: str, written: list[str]) -> list[float]:
    try:
        x0, y0, x1, y1 = (float(cell) for cell in written)
    except ValueError:
        x0, y0, x1, y1 = (float("nan"),) * 4
    if not (np.isfinite([x0, y0, x1, y1]).all() and x0 <= x1 and y0 <= y1):
        msg = f"A box of '{file}' is {', '.join(written)}; expected numbers, left before right and top before bottom."
        raise LayoutError(msg)
    return [x0, y0, x1, y1]
