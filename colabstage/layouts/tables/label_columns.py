"""What the columns of a table mean for its samples: classes by name, numbers, several labels. Pure: text in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.fields import Values
from colabstage.layouts.names import SPLIT_NAMES, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

# What a label is called where nobody says which column it is. Of two that say the same, the first here counts.
_LABELS = (
    "label", "labels", "class", "class_name", "classname", "class_label", "label_name", "category", "target", "targets",
    "tags", "diagnosis", "dx", "finding_labels", "species", "breed", "class_id", "classid", "label_id", "category_id",
)  # fmt: skip
_SETS_OF_LABELS = ("labels", "tags", "targets", "finding_labels")
_PERSONS = re.compile(r"(patient|subject|participant|person|lesion)(_?id)?|(group|session|scene)_?id")
# As likely a label as what samples belong together by.
_SCENES = re.compile(r"group|session|scene")
_SPLITS = ("split", "subset", "partition", "data_split", "dataset_split")
_PATHS = (
    "path", "image_path", "img_path", "file_path", "filepath", "file", "file_name", "filename", "image", "img",
    "image_name", "image_id", "image_index", "img_name", "picture", "audio", "clip",
)  # fmt: skip
_IDS = ("id", "index", "uuid", "row")
_SEPARATORS = ("|", ";")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
_CODE = re.compile(r"0\d+", re.ASCII)


class ColumnRoles(NamedTuple):
    """Names of columns by what they are; of a table without one, `None`."""

    labels: tuple[str, ...]
    split: str | None
    group: str | None


def plain_name(column: str) -> str:
    """Write a column's name as the lists of known ones do: "Patient ID" is patient_id."""
    return re.sub(r"[\s.-]+", "_", column.strip().lower())


def is_label_name(column: str) -> bool:
    """Whether a column is called a label, so that it is never the path."""
    return plain_name(column) in _LABELS


def is_path_name(column: str) -> bool:
    """Whether a column is called a path."""
    return plain_name(column) in _PATHS


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
    split = next((name for name in free if not is_label_name(name) and _is_split(name, columns[name])), None)
    rest = [name for name in free if name != split]
    group = next((name for name in rest if _PERSONS.fullmatch(plain_name(name))), None)
    scene = next((name for name in rest if _SCENES.fullmatch(plain_name(name))), None) if group is None else None
    if labels:
        return ColumnRoles(tuple(labels), split, group or scene)
    told = {name: columns[name] for name in rest if name != group and _is_told(name, columns[name])}
    named = _named_labels(told)
    if named is not None:
        return ColumnRoles((named,), split, group or scene)
    return ColumnRoles(_find_labels(told), split, group)


def _is_split(name: str, cells: Sequence[str]) -> bool:
    """Whether a column holds nothing but names of splits.

    Raises:
        LayoutError: it is called a split, and some of its cells are none.
    """
    found = {cell.lower() for cell in cells}
    others = found - SPLIT_NAMES.keys()
    if others and found & SPLIT_NAMES.keys() and plain_name(name) in _SPLITS:
        msg = (
            f"The column '{name}' names splits and others that are none: {listed(sorted(others))}. Expected "
            f"{listed(list(SPLIT_NAMES))} in every row."
        )
        raise LayoutError(msg)
    return bool(cells) and not others


def _is_told(name: str, cells: Sequence[str]) -> bool:
    """Whether a column can be a label: it has a name, and not another word in every row as an id has."""
    # "Unnamed: 0" is what pandas calls the index it has written.
    if not name or name.lower().startswith("unnamed") or plain_name(name) in _IDS or is_path_name(name):
        return False
    return is_label_name(name) or len(cells) < 3 or is_numeric(cells) or len(set(cells)) < len(cells)


def _named_labels(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The column that is called a label; of several that say the same, the one in words.

    Raises:
        LayoutError: two are called so, and say different things.
    """
    named = sorted((name for name in columns if is_label_name(name)), key=lambda name: _LABELS.index(plain_name(name)))
    if not named:
        return None
    first = columns[named[0]]
    for other in named[1:]:
        pairs = set(zip(first, columns[other], strict=True))
        if not len(pairs) == len(set(first)) == len(set(columns[other])):
            raise _which(named)
    return next((name for name in named if not is_numeric(columns[name])), named[0])


def _find_labels(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    numbers = [name for name, cells in columns.items() if is_numeric(cells)]
    words = [name for name in columns if name not in numbers and not is_numeric(columns[name])]
    if len(words) == 1:
        return (words[0],)
    if not words and numbers:
        return tuple(numbers)
    if columns:
        raise _which(sorted(columns))
    msg = "There is no column beside the paths that could be a label. Say which is: layout=table_rows(labels=['NAME'])."
    raise LayoutError(msg)


def _which(columns: list[str]) -> LayoutError:
    return LayoutError(
        f"Which of the columns {listed(columns)} is the label? Say so: layout=table_rows(labels=['NAME']), from "
        "colabstage.layouts.options."
    )


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether every cell that is not empty is a number, and there are some. "01" is a code, no number."""
    filled = [cell for cell in cells if cell]
    return (
        bool(filled)
        and all(map(_NUMBER.fullmatch, filled))
        and not any(map(_CODE.fullmatch, filled))
        and bool(np.isfinite([float(cell) for cell in filled if cell.lower() != "nan"]).all())
    )


def make_targets(
    columns: Mapping[str, Sequence[str]], *, separator: str | None = None
) -> tuple[Values, tuple[str, ...]]:
    """Targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, uint8 `(N, K)`, one column
    for each word. One of numbers: int64 or float32 `(N,)`; whole ones that count classes from 0 name them. Several of
    numbers: `(N, K)` in their order, uint8 where all are 0 or 1, NaN for an empty cell.

    Args:
        columns: cells by column name.
        separator: what stands between the labels of one cell; "" where each cell is one label, whatever is in it;
            `None` to find out.

    Raises:
        LayoutError: several columns of words; a cell of a single column is empty; two spellings of one number; words
            with blanks between them that may be one label or several.
    """
    if len(columns) == 1:
        name, cells = next(iter(columns.items()))
        if separator is not None:
            return _sets(cells, separator) if separator else _words(name, cells)
        if is_numeric(cells):
            return _numbers(name, cells)
        found = next((mark for mark in _SEPARATORS if any(mark in cell for cell in cells)), None)
        if found is not None:
            return _sets(cells, found)
        _check_blanks(name, cells)
        return _words(name, cells)
    words = [name for name, cells in columns.items() if not is_numeric(cells)]
    if words:
        msg = f"Of several label columns each has to be numbers; {listed(words)} have words. Choose one of them."
        raise LayoutError(msg)
    table = np.array([[float(cell or "nan") for cell in cells] for cells in columns.values()], np.float64).T
    if np.isin(table, (0, 1)).all():
        return Values(np.ascontiguousarray(table.astype(np.uint8))), tuple(columns)
    return Values(np.ascontiguousarray(table.astype(np.float32))), ()


def _check_filled(name: str, missing: Iterable[bool]) -> None:
    found = list(missing)
    if any(found):
        msg = (
            f"{sum(found):,} of {len(found):,} rows have no label in '{name}' (the first is number "
            f"{found.index(True) + 1} of those with a file). Fill them in, or take the rows out."
        )
        raise LayoutError(msg)


def _numbers(name: str, cells: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, (not cell or cell.lower() == "nan" for cell in cells))
    values = np.array([float(cell) for cell in cells], np.float64)
    if np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
        return Values(values.astype(np.float32)), ()
    whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """The numbers of classes as their names, where whole numbers count classes from 0; else nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def _words(name: str, cells: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, (not cell for cell in cells))
    classes = sorted(set(cells))
    _check_spelling(name, classes)
    numbers = {cell: number for number, cell in enumerate(classes)}
    return Values(np.fromiter((numbers[cell] for cell in cells), np.int64, len(cells))), tuple(classes)


def _check_spelling(name: str, classes: Sequence[str]) -> None:
    """Refuse '01' beside '1': one program takes them for two classes, the next for one."""
    seen: dict[int, str] = {}
    for cell in classes:
        if cell.isascii() and cell.isdecimal() and seen.setdefault(int(cell), cell) != cell:
            msg = (
                f"'{name}' has the labels '{seen[int(cell)]}' and '{cell}', which are the same number. Write it in one "
                "way."
            )
            raise LayoutError(msg)


def _check_blanks(name: str, cells: Sequence[str]) -> None:
    """Refuse words with blanks between them that are several labels as likely as one."""
    several = {cell for cell in set(cells) if len(cell.split()) > 1}
    if not several:
        return
    words = {word for cell in several for word in cell.split()}
    if plain_name(name) in _SETS_OF_LABELS or words <= set(cells):
        msg = (
            f"'{name}' has labels such as '{min(several)}'. Is that one class, or several labels? Say so: "
            "layout=table_rows(separator='') for one class, table_rows(separator=' ') for several labels."
        )
        raise LayoutError(msg)


def _sets(cells: Sequence[str], separator: str) -> tuple[Values, tuple[str, ...]]:
    sets = [{word.strip() for word in cell.split(separator)} - {""} for cell in cells]
    classes = sorted(set().union(*sets))
    table = np.array([[word in found for word in classes] for found in sets], np.uint8)
    return Values(table.reshape(len(cells), len(classes))), tuple(classes)
