"""What the columns of a table mean for its samples: classes by name, numbers, several labels. Pure: text in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.fields import Values
from colabstage.layouts.names import SPLIT_NAMES, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

# The first of these that a table has is its label, where nobody says which is.
_LABELS = (
    "label", "labels", "class", "class_name", "classname", "category", "target", "targets", "tags", "diagnosis",
    "species", "breed", "class_id", "classid", "category_id",
)  # fmt: skip
_GROUPS = re.compile(r"(patient|subject|participant|person|group|session|scene)(_?id)?")
_SEPARATORS = ("|", ";")


class ColumnRoles(NamedTuple):
    """Names of columns by what they are; of a table without one, `None`."""

    labels: tuple[str, ...]
    split: str | None
    group: str | None


def find_roles(columns: Mapping[str, Sequence[str]], *, labels: Sequence[str] | None) -> ColumnRoles:
    """Tell what the columns of a table are, the path's left out.

    Args:
        columns: cells by column name.
        labels: the columns that hold the labels, where somebody says so.

    Raises:
        LayoutError: the labels cannot be told from the rest, or are not there.
    """
    missing = [name for name in labels or () if name not in columns]
    if missing:
        msg = f"There is no column {listed(missing)}; there are {listed(sorted(columns)) or 'no others'}."
        raise LayoutError(msg)
    free = [name for name in columns if name not in (labels or ())]
    split = next((name for name in free if _is_split(columns[name])), None)
    group = next((name for name in free if name != split and _GROUPS.fullmatch(name.strip().lower())), None)
    rest = {name: cells for name, cells in columns.items() if name not in (split, group) and _is_told(name, cells)}
    return ColumnRoles(tuple(labels) if labels else _find_labels(rest), split, group)


def _is_split(cells: Sequence[str]) -> bool:
    return bool(cells) and all(cell.lower() in SPLIT_NAMES for cell in cells)


def _is_told(name: str, cells: Sequence[str]) -> bool:
    """Whether a column can be a label: it has a name, and not another word in every row as an id has."""
    if not name or name.lower().startswith("unnamed"):  # what pandas calls the index it has written
        return False
    return name.strip().lower() in _LABELS or len(cells) < 3 or is_numeric(cells) or len(set(cells)) < len(cells)


def _find_labels(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    by_name = {name.strip().lower(): name for name in columns}
    known = next((by_name[name] for name in _LABELS if name in by_name), None)
    if known is not None:
        return (known,)
    numbers = [name for name, cells in columns.items() if is_numeric(cells) and name.lower() not in ("id", "index")]
    words = [name for name in columns if name not in numbers and not is_numeric(columns[name])]
    if len(words) == 1:
        return (words[0],)
    if not words and numbers:
        return tuple(numbers)
    msg = (
        f"Which of the columns {listed(sorted(columns))} is the label? Say so: "
        "layout=functools.partial(read_table, labels=['NAME'])."
        if columns
        else "There is no column beside the paths that could be a label."
    )
    raise LayoutError(msg)


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether every cell that is not empty is a number, and there are some."""
    filled = [cell for cell in cells if cell]
    try:
        return bool(filled) and all(np.isfinite(float(cell)) or cell.lower() == "nan" for cell in filled)
    except ValueError:
        return False


def make_targets(columns: Mapping[str, Sequence[str]]) -> tuple[Values, tuple[str, ...]]:
    """Targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, uint8 `(N, K)`, one column
    for each word. One of numbers: int64 or float32 `(N,)`; whole ones that count classes from 0 name them. Several of
    numbers: `(N, K)` in their order, uint8 where all are 0 or 1. An empty cell is not a number, NaN.

    Raises:
        LayoutError: several columns of words.
    """
    if len(columns) == 1:
        cells = next(iter(columns.values()))
        return _numbers(cells) if is_numeric(cells) else _words(cells)
    words = [name for name, cells in columns.items() if not is_numeric(cells)]
    if words:
        msg = f"Of several label columns each has to be numbers; {listed(words)} have words. Choose one of them."
        raise LayoutError(msg)
    table = np.array([[float(cell or "nan") for cell in cells] for cells in columns.values()], np.float64).T
    if np.isin(table, (0, 1)).all():
        return Values(np.ascontiguousarray(table.astype(np.uint8))), tuple(columns)
    return Values(np.ascontiguousarray(table.astype(np.float32))), ()


def _numbers(cells: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    values = np.array([float(cell or "nan") for cell in cells], np.float64)
    if not np.isfinite(values).all() or np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
        return Values(values.astype(np.float32)), ()
    whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """The numbers of classes as their names, where whole numbers count classes from 0; else nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def _words(cells: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    separator = next((mark for mark in _SEPARATORS if any(mark in cell for cell in cells)), None)
    if separator is None:
        empty = sum(not cell for cell in cells)
        if empty:
            msg = f"{empty:,} of {len(cells):,} rows have no label. Fill them in, or take the rows out."
            raise LayoutError(msg)
        classes = sorted(set(cells))
        numbers = {name: number for number, name in enumerate(classes)}
        return Values(np.fromiter((numbers[cell] for cell in cells), np.int64, len(cells))), tuple(classes)
    sets = [{word.strip() for word in cell.split(separator)} - {""} for cell in cells]
    classes = sorted(set().union(*sets))
    table = np.array([[word in found for word in classes] for found in sets], np.uint8)
    return Values(table.reshape(len(cells), len(classes))), tuple(classes)
