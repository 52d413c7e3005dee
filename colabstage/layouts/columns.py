"""A table file as columns of text, and what each column is: labels, splits, groups, the corners of boxes.

CSV and its relatives are read here, parquet where pyarrow is installed. Cells stay text until all of a column have been
seen, because "01" beside "1" is a code and no number.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError, MissingDependencyError
from colabstage.io.units import format_count, listed
from colabstage.layouts.names import SPLIT_NAMES
from colabstage.layouts.reading import decode_text, read_file
from colabstage.layouts.table import Boxes, Values, class_indices, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry, Tree

# .jsonl is what Hugging Face's ImageFolder has as metadata.jsonl.
TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet", ".jsonl")
_DELIMITERS = (",", ";", "\t", "|")


def is_table(name: str) -> bool:
    """Tell whether a file of this name is a table."""
    return name.lower().endswith(TABLE_EXTENSIONS)


class TableRows(NamedTuple):
    """What a table file holds."""

    rows: list[list[str]]
    """The cells, row by row, the header's first."""
    fault: str = ""
    """What keeps it from being used, "" for nothing."""


def read_rows(tree: Tree, entry: FileEntry) -> list[list[str]]:
    """Read a table's rows, each with as many cells as the first, which may be a header.

    Raises:
        LayoutError: it has rows of different lengths, or is not text.
        MissingDependencyError: it is parquet and pyarrow is not there.
    """
    found = read_some_rows(tree, entry)
    if found.fault:
        raise LayoutError(found.fault)
    return found.rows


def read_some_rows(tree: Tree, entry: FileEntry) -> TableRows:
    """Read what can be read of a table's rows: whether a fault matters shows only when it is known what the table is.

    Raises:
        MissingDependencyError: it is parquet and pyarrow is not there.
        CorruptArchiveError: it is damaged parquet.
    """
    data = read_file(tree, entry)
    if entry.name.lower().endswith(".parquet"):
        try:
            from pyarrow import ArrowException, parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            msg = f"'{entry.name}' is a parquet table, which needs pyarrow. Install it with: pip install pyarrow"
            raise MissingDependencyError(msg) from error
        try:
            table = parquet.read_table(io.BytesIO(data))
        # Of damage in the pages pyarrow says as an OSError that it could not read them.
        except (ArrowException, OSError) as error:
            msg = f"'{entry.name}' is truncated, damaged or no parquet file ({error}). Copy it again, or move it away."
            raise CorruptArchiveError(msg) from error
        columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
        return TableRows([list(table.column_names), *(list(row) for row in zip(*columns, strict=True))])
    text = decode_text(data)
    if entry.name.lower().endswith(".jsonl"):
        return _rows_of_lines(entry.name, text)
    # The header decides: cells of text may hold any of the marks.
    first = text.split("\n", 1)[0]
    delimiter = "\t" if entry.name.lower().endswith(".tsv") else max(_DELIMITERS, key=first.count)
    rows: list[list[str]] = []
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows.extend([cell.strip() for cell in row] for row in reader if any(row))
    except csv.Error as error:
        return TableRows(rows, f"'{entry.name}' cannot be read as a table behind row {len(rows)}: {error}.")
    width = len(rows[0]) if rows else 0
    # A row that is too long or too short shifts its cells into other columns.
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is None:
        return TableRows(rows)
    fault = (
        f"'{entry.name}' has {len(rows[odd])} cells in row {odd + 1} and {width} in the first; expected as many. Cells "
        'that hold the delimiter need "quotes".'
    )
    return TableRows(rows, fault)


def _rows_of_lines(name: str, text: str) -> TableRows:
    """Read one mapping of words and numbers in each line; what is neither text nor a number in it is written as
    JSON."""
    found: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            mapping = json.loads(line)
            cells = {
                str(key): value if isinstance(value, str) else "" if value is None else json.dumps(value)
                for key, value in mapping.items()
            }
        except (ValueError, AttributeError, RecursionError):
            # Other programs write other things in lines: whether that matters shows when it is known what they are.
            return TableRows([], f"'{name}' has no mapping in line {number}: {line[:60]!r}.")
        found.append(cells)
    header = list(dict.fromkeys(key for cells in found for key in cells))
    return TableRows([header, *([cells.get(key, "") for key in header] for cells in found)] if found else [])


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
# Columns of yes and no that say of each row whether it is of one split: is_valid of fast.ai, is_training_image of the
# birds. Beside each the splits of the rows that say yes, and of the others.
_FLAGS = {
    "is_valid": ("valid", "train"), "is_val": ("val", "train"), "is_validation": ("validation", "train"),
    "is_dev": ("dev", "train"), "is_test": ("test", "train"), "is_testing": ("test", "train"),
    "is_train": ("train", "test"), "is_training": ("train", "test"), "is_training_image": ("train", "test"),
}  # fmt: skip
_YES = frozenset({"true", "t", "yes", "y", "1", "1.0"})
_NO = frozenset({"false", "f", "no", "n", "0", "0.0"})
_PATHS = (
    "path", "image_path", "img_path", "file_path", "filepath", "file", "file_name", "filename", "image", "img",
    "image_name", "image_id", "image_index", "img_name", "picture", "audio", "clip",
)  # fmt: skip
_IDS = ("id", "index", "uuid", "row")
# Words about an image that are not a class of it, however often they repeat.
_TEXTS = ("text", "caption", "captions", "description", "prompt", "comment", "url", "link", "source_url")
_SEPARATORS = ("|", ";")
# What programs write into a cell that holds nothing. "None" and "NA" may be words: a wall without damage, Namibia.
_MISSING = frozenset({"", "nan", "<na>", "#n/a", "n/a", "nat", "null"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_CODE = re.compile(r"0\d+", re.ASCII)


class ColumnRoles(NamedTuple):
    """Names of columns by what they are for."""

    labels: tuple[str, ...]
    """Those that hold labels."""
    split: str | None
    """The one that names splits, if any."""
    group: str | None
    """The one that names groups, if any."""
    is_one_class: bool = False
    """Whether a cell of the label is one class, whatever blanks are in it, because another column numbers it."""


def plain_name(column: str) -> str:
    """Write a column's name as the lists of known ones do: "Patient ID" is patient_id."""
    return re.sub(r"[\s.-]+", "_", column.strip().lower())


def is_label_name(column: str) -> bool:
    """Tell whether a column is called a label, so that it is never the path."""
    return plain_name(column) in _LABELS


def label_names(columns: Iterable[str], first: Sequence[str]) -> list[str]:
    """Return the columns that are called a label, by one of the plain names `first` or as tables call it, in the order
    in which they count.
    """
    known = (*first, *_LABELS)
    return sorted(
        (name for name in columns if plain_name(name) in known), key=lambda name: known.index(plain_name(name))
    )


def is_id_name(column: str) -> bool:
    """Tell whether a column is called what numbers the rows, which may also be what the files are called."""
    return plain_name(column) in _IDS


def is_path_name(column: str) -> bool:
    """Tell whether a column is called a path."""
    return plain_name(column) in _PATHS


def split_of_cell(column: str, cell: str) -> str:
    """Return the split that a cell of a split column names, as it is stored.

    Raises:
        LayoutError: it names none, as in the second of two tables whose roles are those of the first.
    """
    flags, word = _FLAGS.get(plain_name(column)), cell.lower()
    if flags is not None and word in _YES | _NO:
        return flags[word in _NO]
    if flags is not None or word not in SPLIT_NAMES:
        expected = "True or False" if flags is not None else listed(list(SPLIT_NAMES))
        msg = (
            f"The column '{column}' says which split a row belongs to, but one row says '{cell}'; expected {expected}."
        )
        raise LayoutError(msg)
    return SPLIT_NAMES[word]


def is_index_name(column: str) -> bool:
    """Tell whether a column is what a program writes to number the rows."""
    # "Unnamed: 0" is what pandas calls the index it has written, once it has been read again.
    return not column or column.lower().startswith("unnamed")


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
    # Who says which columns are labels may mean one that looks like a split.
    free = [name for name in columns if name not in (labels or ())]
    split = next((name for name in free if not is_label_name(name) and _is_split(name, columns[name])), None)
    split = split or _flag_of_split({name: columns[name] for name in free})
    rest = [name for name in free if name != split]
    group = next((name for name in rest if _PERSONS.fullmatch(plain_name(name))), None)
    scene = next((name for name in rest if _SCENES.fullmatch(plain_name(name))), None) if group is None else None
    if labels:
        return ColumnRoles(tuple(labels), split, group or scene)
    told = {name: columns[name] for name in rest if name != group and _is_told(name, columns[name])}
    named = _named_labels(told)
    if named is not None:
        # Who numbers what is in the cells takes each for one class: ATLAS MOTH is 7.
        numbered = any(is_label_name(name) and name != named and is_numeric(cells) for name, cells in told.items())
        return ColumnRoles((named,), split, group or scene, numbered)
    return ColumnRoles(_find_labels(told), split, group)


def _is_split(name: str, cells: Sequence[str]) -> bool:
    """Tell whether a column holds nothing but names of splits.

    Raises:
        LayoutError: it is called a split, and some of its cells are none.
    """
    found = {cell.lower() for cell in cells}
    others = found - SPLIT_NAMES.keys()
    if others and found & SPLIT_NAMES.keys() and plain_name(name) in _SPLITS:
        msg = (
            f"The column '{name}' names splits and other values: {listed(sorted(others))}. Expected "
            f"{listed(list(SPLIT_NAMES))} in every row."
        )
        raise LayoutError(msg)
    return bool(cells) and not others


def _flag_of_split(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the column that says of each row whether it is of one split, `None` where there is none.

    Raises:
        LayoutError: there are several; or one says yes of most rows, as one does that says which rows are sound.
    """
    found = [
        name
        for name, cells in columns.items()
        if plain_name(name) in _FLAGS and {cell.lower() for cell in cells} <= _YES | _NO and len(set(cells)) > 1
    ]
    if len(found) > 1:
        msg = f"The columns {listed(found)} each name a split. Write one column 'split' with train, valid or test."
        raise LayoutError(msg)
    for name in found:
        yes, no = _FLAGS[plain_name(name)]
        count = sum(split_of_cell(name, cell) != "train" for cell in columns[name])
        if 2 * count > len(columns[name]):
            msg = (
                f"The column '{name}' would put {count:,} of {len(columns[name]):,} rows into the split "
                f"'{no if yes == 'train' else yes}'. If that is meant, write a column 'split' with the words instead; "
                f"if '{name}' says something else, give it another name."
            )
            raise LayoutError(msg)
    return found[0] if found else None


def _is_told(name: str, cells: Sequence[str]) -> bool:
    """Tell whether a column can be a label: it has a name, and not another word in every row as an id has."""
    if is_index_name(name) or plain_name(name) in (*_IDS, *_TEXTS) or is_path_name(name):
        return False
    return is_label_name(name) or len(cells) < 3 or is_numeric(cells) or len(set(cells)) < len(cells)


def _named_labels(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the column that is called a label; of several that say the same, the one in words.

    Raises:
        LayoutError: two are called so, and say different things.
    """
    named = label_names(columns, ())
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
    # Words beside numbers: numbers are measurements mostly, and one word in each row is its class.
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
        "colabstage.options."
    )


def is_numeric(cells: Sequence[str]) -> bool:
    """Tell whether every cell that is not empty is a number, and there are some. "01" is a code, no number."""
    filled = [cell for cell in cells if cell]
    return (
        bool(filled)
        and all(map(_NUMBER.fullmatch, filled))
        and not any(map(_CODE.fullmatch, filled))
        and bool(np.isfinite([float(cell) for cell in filled if cell.lower() != "nan"]).all())
    )


def make_targets(
    columns: Mapping[str, Sequence[str]], *, separator: str | None = None, samples: Sequence[str] = ()
) -> tuple[Values, tuple[str, ...]]:
    """Return the targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, uint8 `(N, K)`, one column
    for each word. One of numbers: int64 or float32 `(N,)`; whole ones that count classes from 0 name them. Several of
    numbers: `(N, K)` in their order, uint8 where all are 0 or 1, NaN for an empty cell.

    Args:
        columns: cells by column name.
        separator: what is between the labels of one cell; "" where each cell is one label, whatever is in it;
            `None` to find out.
        samples: what each row is of, for messages: a person finds a row by its file and not by a number.

    Raises:
        LayoutError: several columns of words; whole numbers that would not stay apart, or are too large; a cell of a
            single column is empty; two spellings of one number; words with blanks between them that may be one label or
            several.
    """
    if len(columns) == 1:
        name, cells = next(iter(columns.items()))
        if separator is not None:
            return _sets(name, cells, separator, samples) if separator else _as_classes(name, cells, samples)
        if is_numeric(cells):
            return _as_numbers(name, cells, samples)
        found = next((mark for mark in _SEPARATORS if any(mark in cell for cell in cells)), None)
        if found is not None:
            return _sets(name, cells, found, samples)
        _check_blanks(name, cells)
        return _as_classes(name, cells, samples)
    words = [name for name, cells in columns.items() if not is_numeric(cells)]
    if words:
        msg = f"Several label columns must all be numbers; {listed(words)} have words. Choose one of them."
        raise LayoutError(msg)
    table = np.array([[float(cell or "nan") for cell in cells] for cells in columns.values()], np.float64).T
    # Several columns of 0 and 1 are labels that may hold at once, one column for each.
    if np.isin(table, (0, 1)).all():
        return Values(np.ascontiguousarray(table.astype(np.uint8))), tuple(columns)
    for (name, cells), numbers in zip(columns.items(), table.T, strict=True):
        check_kept_apart(name, numbers if _whole_cells(cells) is None else _exact(name, cells))
    return Values(np.ascontiguousarray(table.astype(np.float32))), ()


def _check_filled(name: str, cells: Sequence[str], samples: Sequence[str]) -> None:
    """Refuse a column of labels in which some cells are empty, or say that they are. `samples`: what each
    is called; empty where nobody knows.

    Raises:
        LayoutError: there is such a cell.
    """
    missing = [number for number, cell in enumerate(cells) if cell.lower() in _MISSING]
    if missing:
        first, written = missing[0], cells[missing[0]]
        which = f"that of '{samples[first]}'" if samples else f"number {first + 1}"
        msg = (
            f"{len(missing):,} of {format_count(len(cells), 'rows')} {'has' if len(missing) == 1 else 'have'} no label "
            f"in '{name}' (the first is {which}{f': {written!r}' if written else ''}). Fill them in, or take the rows "
            "out."
        )
        raise LayoutError(msg)


def _as_numbers(name: str, cells: Sequence[str], samples: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, cells, samples)
    if _whole_cells(cells) is not None:
        whole = _exact(name, cells)
    else:
        values = np.array([float(cell) for cell in cells], np.float64)
        # From 2 ** 53 on a float skips whole numbers, so those that were written as floats may be others already.
        if np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
            check_kept_apart(name, values)
            return Values(values.astype(np.float32)), ()
        whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def _whole_cells(cells: Sequence[str]) -> list[int] | None:
    """Return the numbers of a column that has nothing but digits in its cells; `None` for any other."""
    return list(map(int, cells)) if all(map(_WHOLE.fullmatch, cells)) else None


def _exact(name: str, cells: Sequence[str]) -> NDArray[np.int64]:
    whole = _whole_cells(cells) or []
    large = next((number for number in whole if not -(2**63) <= number < 2**63), None)
    if large is not None:
        msg = f"'{name}' has the label {large}, which no 64-bit number can be. Write such labels as words."
        raise LayoutError(msg)
    return np.array(whole, np.int64)


def check_kept_apart(name: str, numbers: NDArray[Any]) -> None:
    """Refuse whole numbers two of which float32, as numbers that are no classes are stored, would make one.

    Args:
        name: of the column, for the message.
        numbers: int64 or float64 `(N,)`.

    Raises:
        LayoutError: there are two such; the message names them.
    """
    # Fractions are measurements, which nobody tells apart by their eighth digit.
    whole = np.unique(numbers[np.isfinite(numbers) & (numbers == np.rint(numbers))])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 they are infinite, and no labels
        merged = np.flatnonzero(np.diff(whole.astype(np.float32)) == 0)
    if len(merged):
        one, other = int(whole[merged[0]]), int(whole[merged[0] + 1])
        msg = (
            f"'{name}' has the numbers {one} and {other}, which would be one number in float32. Take it as the "
            "only label, with digits alone in its cells, or write smaller numbers."
        )
        raise LayoutError(msg)


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the numbers of classes as their names, where whole numbers count classes from 0; else nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def _as_classes(name: str, cells: Sequence[str], samples: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, cells, samples)
    values, classes = class_indices(cells)
    # One program takes 01 and 1 for two classes, the next for one.
    seen: dict[int, str] = {}
    for word in classes:
        if word.isascii() and word.isdecimal() and seen.setdefault(int(word), word) != word:
            msg = (
                f"'{name}' has the labels '{seen[int(word)]}' and '{word}', which are the same number. Write it in one "
                "way."
            )
            raise LayoutError(msg)
    return values, classes


def note_on_numbers(name: str, targets: Values, classes: Sequence[str]) -> list[str]:
    """Return a note where a column that is called a label holds whole numbers which a loss cannot take for classes."""
    found = np.unique(targets.values)
    # Numbers that mostly differ are measurements, and those from 0 on without a gap have names.
    if classes or not is_label_name(name) or targets.values.dtype != np.int64 or 2 * len(found) > len(targets):
        return []
    note = (
        f"The labels in '{name}' stay the numbers {int(found[0]):,} to {int(found[-1]):,}; classes would be "
        f"0 to {len(found) - 1:,}. For classes write words, or convert the numbers in the loop."
    )
    return [note]


def _check_blanks(name: str, cells: Sequence[str]) -> None:
    """Refuse words with blanks between them that are several labels as likely as one."""
    several = {cell for cell in set(cells) if len(cell.split()) > 1}
    if not several:
        return
    words = {word for cell in several for word in cell.split()}
    if plain_name(name) in _SETS_OF_LABELS or words <= set(cells):
        separator = "," if any("," in cell for cell in several) else " "
        msg = (
            f"'{name}' has labels such as '{min(several)}'. Is that one class, or several labels? Say so: "
            f"layout=table_rows(separator='') for one class, table_rows(separator='{separator}') for several labels."
        )
        raise LayoutError(msg)


def _sets(name: str, cells: Sequence[str], separator: str, samples: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    # An empty cell is a sample without a label; what a program writes for a missing one is not a word.
    _check_filled(name, [cell or "-" for cell in cells], samples)
    # A label that is written twice in a cell counts once.
    sets = [{word.strip() for word in cell.split(separator)} - {""} for cell in cells]
    classes = sorted(set().union(*sets))
    table = np.array([[word in found for word in classes] for found in sets], np.uint8)
    return Values(table.reshape(len(cells), len(classes))), tuple(classes)


# As Roboflow, TensorFlow's converters, OpenImages and RetinaNet write them.
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2"))
_OTHER_FORMS = ("bbox", "bboxes", "bounding_box", "predictionstring", "objects")
# Masks as the lengths of their runs, as competitions write them.
_RUNS = ("encodedpixels", "encoded_pixels", "rle", "rle_mask", "mask_rle")
_BOX_LABELS = ("labelname", "name")


class BoxColumns(NamedTuple):
    """The columns that boxes are in."""

    corners: tuple[str, ...]
    """Names of x0, y0, x1 and y1, in this order."""
    label: str
    """Name of the column that says what is in the box."""


class PlacedBoxes(NamedTuple):
    """The boxes of M files, in the order of their first rows."""

    firsts: list[int]
    """The number of each file's first row."""
    boxes: Boxes
    """The boxes of all of them."""
    classes: tuple[str, ...]
    """Names of the classes, in label order."""


def box_columns(header: Sequence[str]) -> BoxColumns | None:
    """Return the columns of a table that are boxes; `None` of a table without.

    Raises:
        LayoutError: there are boxes in a form that is not read, or nothing that says what is in them.
    """
    by_name = {plain_name(name): name for name in header}
    # Each tool has its own spelling; which one shows by all four being there.
    corners = next((names for names in _CORNERS if all(name in by_name for name in names)), None)
    other = next((by_name[name] for name in _OTHER_FORMS if name in by_name), None)
    runs = next((by_name[name] for name in _RUNS if name in by_name), None)
    if runs is not None:
        msg = (
            f"Its column '{runs}' holds masks as lengths of runs, which are not read. Write a mask for each image, as "
            "a PNG of the same name in a folder 'masks', or name the columns that are labels of whole images: "
            "layout=table_rows(labels=['NAME'])."
        )
        raise LayoutError(msg)
    if corners is None:
        if other is None:
            return None
        msg = (
            f"Its column '{other}' holds boxes, which are read from columns xmin, ymin, xmax, ymax and class, one box "
            "in each row. Write them so, or name the columns that are labels of whole images: "
            "layout=table_rows(labels=['NAME'])."
        )
        raise LayoutError(msg)
    label = next((name for name in header if is_label_name(name) or plain_name(name) in _BOX_LABELS), None)
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
        LayoutError: a cell is not a number, or a box ends before it begins.
    """
    numbers: dict[str, int] = {}
    firsts: list[int] = []
    boxes: list[list[list[float]]] = []
    classes = sorted(
        {label for _, cells in rows if (label := cells[columns.label])},
        key=lambda name: (0, int(name), name) if name.isascii() and name.isdecimal() else (1, 0, name),
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
                msg = (
                    f"A box of '{file}' is {', '.join(written)}; expected numbers, left before right and top before "
                    "bottom."
                )
                raise LayoutError(msg)
            boxes[numbers[file]].append([x0, y0, x1, y1, index.get(cells[columns.label], -1)])
    flat = np.array([box for found in boxes for box in found], np.float64).reshape(-1, 5)
    if np.any(flat[:, 4] < 0):
        msg = f"A box has no class in '{columns.label}'. Fill it in, or take the row out."
        raise LayoutError(msg)
    corners = np.ascontiguousarray(flat[:, :4])
    # Whole numbers up to 1 may be boxes of one pixel; only a fraction says that parts of the image are meant.
    relative = bool(len(corners)) and float(corners.max()) <= 1 and bool(np.any(corners != np.rint(corners)))
    offsets = offsets_of([len(found) for found in boxes])
    labels = flat[:, 4].astype(np.int64)
    return PlacedBoxes(firsts, Boxes(offsets, corners, {"labels": labels}, relative=relative), tuple(classes))
