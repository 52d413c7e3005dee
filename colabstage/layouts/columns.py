"""A table file as columns of text, and what each column is: labels, splits, groups.

CSV and similar formats are read here, parquet if pyarrow is installed. Cells stay text until the whole column has been
seen, because "01" beside "1" is a code, not a number.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError, MissingDependencyError
from colabstage.io.units import listed
from colabstage.layouts.names import IMAGE_EXTENSIONS, SPLIT_NAMES
from colabstage.layouts.reading import decode_text, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from colabstage.trees.listing import FileEntry, Tree

# Hugging Face's ImageFolder uses metadata.jsonl.
TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet", ".jsonl")
_DELIMITERS = (",", ";", "\t", "|")
_SAID_DELIMITER = re.compile(r'"?sep=([,;|\t])"?\r?\n', re.IGNORECASE)


def is_table(name: str) -> bool:
    """Tell whether a file of this name is a table."""
    return name.lower().endswith(TABLE_EXTENSIONS)


class TableRows(NamedTuple):
    """The contents of a table file."""

    rows: list[list[str]]
    """The cells, row by row, with the header first."""
    fault: str = ""
    """Why it cannot be used; "" if it can."""


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
    """Read as many of a table's rows as possible: whether a fault matters is known only once the table's role is.

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
        # pyarrow reports damaged pages as an OSError.
        except (ArrowException, OSError) as error:
            msg = (
                f"'{entry.name}' is truncated, damaged or not a parquet file ({error}). Copy it again, or move it away."
            )
            raise CorruptArchiveError(msg) from error
        columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
        return TableRows([list(table.column_names), *(list(row) for row in zip(*columns, strict=True))])
    text = decode_text(data)
    if entry.name.lower().endswith(".jsonl"):
        return _rows_of_lines(entry.name, text)
    # A spreadsheet may write, and reads, what is between its cells in a line of its own: sep=;
    said = _SAID_DELIMITER.match(text)
    text = text[said.end() :] if said else text
    # The header decides, because text cells may contain any delimiter.
    first = text.split("\n", 1)[0]
    is_tabbed = entry.name.lower().endswith(".tsv") and "\t" in first
    delimiter = "\t" if is_tabbed else max(_DELIMITERS, key=first.count)
    delimiter = said[1] if said else delimiter
    rows: list[list[str]] = []
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows.extend([cell.strip() for cell in row] for row in reader if any(row))
    except csv.Error as error:
        return TableRows(rows, f"'{entry.name}' cannot be read as a table after row {len(rows)}: {error}.")
    width = len(rows[0]) if rows else 0
    # A row that is too long or too short shifts its cells into other columns.
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is None:
        return TableRows(rows)
    fault = (
        f"'{entry.name}' has {len(rows[odd])} cells in row {odd + 1} and {width} in the first; expected as many. "
        'Cells that hold the delimiter need "quotes".'
    )
    return TableRows(rows, fault)


def _rows_of_lines(name: str, text: str) -> TableRows:
    """Read one JSON object in each line; values that are neither text nor numbers are written as JSON."""
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
            # Other programs write other things in lines; whether that matters is known later.
            return TableRows([], f"'{name}' has no mapping in line {number}: {line[:60]!r}.")
        found.append(cells)
    header = list(dict.fromkeys(key for cells in found for key in cells))
    return TableRows([header, *([cells.get(key, "") for key in header] for cells in found)] if found else [])


# Names of label columns, if the user names none. Of two with the same content, the first here counts.
_LABELS = (
    "label", "labels", "class", "class_name", "classname", "class_label", "label_name", "category", "target", "targets",
    "tags", "diagnosis", "dx", "finding_labels", "species", "breed", "class_id", "classid", "label_id", "category_id",
)  # fmt: skip
SETS_OF_LABELS = ("labels", "tags", "targets", "finding_labels")
_PERSONS = re.compile(r"(patient|subject|participant|person|lesion)(_?id)?|(group|session|scene)_?id")
# May be a label or a group.
_SCENES = re.compile(r"group|session|scene")
_SPLITS = ("split", "subset", "partition", "data_split", "dataset_split")
# Columns of yes and no that say of each row whether it is of one split: is_valid of fast.ai, is_training_image of the
# birds. Beside each the splits of the rows that say yes, and of the others.
_FLAGS = {
    "is_valid": ("valid", "train"), "is_val": ("val", "train"), "is_validation": ("validation", "train"),
    "is_dev": ("dev", "train"), "is_test": ("test", "train"), "is_testing": ("test", "train"),
    "is_train": ("train", "test"), "is_training": ("train", "test"), "is_training_image": ("train", "test"),
}  # fmt: skip
YES = frozenset({"true", "t", "yes", "y", "1", "1.0"})
_NO = frozenset({"false", "f", "no", "n", "0", "0.0"})
_PATHS = (
    "path", "image_path", "img_path", "file_path", "filepath", "file", "file_name", "filename", "image", "img",
    "image_name", "image_id", "image_index", "img_name", "picture", "audio", "clip",
)  # fmt: skip
_IDS = ("id", "index", "uuid", "row")
# Words about an image that are not its class, however often they repeat.
_TEXTS = ("text", "caption", "captions", "description", "prompt", "comment")
# What is told of a file, or made of it for an experiment, and is nothing to learn.
_ABOUT_FILES = (
    "url", "link", "source_url", "md5", "sha1", "sha256", "checksum", "hash", "phash", "file_size", "filesize",
    "fold", "folds", "kfold", "cv_fold",
)  # fmt: skip
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
CODE = re.compile(r"0\d+", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?|\d{1,2}:\d{2}(:\d{2})?", re.ASCII
)


class ColumnRoles(NamedTuple):
    """Names of columns by purpose."""

    labels: tuple[str, ...]
    """Those that hold labels."""
    split: str | None
    """The one that names splits, if any."""
    group: str | None
    """The one that names groups, if any."""
    is_one_class: bool = False
    """Whether a label cell is one class even if it contains spaces, because another column numbers it."""


def plain_name(column: str) -> str:
    """Return a column's name in the form of the known names: "Patient ID" is patient_id."""
    return re.sub(r"[\s.-]+", "_", column.strip().lower())


def is_label_name(column: str) -> bool:
    """Tell whether a column's name means a label, so that it is never the path."""
    return plain_name(column) in _LABELS


def label_names(columns: Iterable[str], first: Sequence[str]) -> list[str]:
    """Return the columns whose name means a label, one of the plain names `first` or a common one, in order of
    preference.
    """
    known = (*first, *_LABELS)
    return sorted(
        (name for name in columns if plain_name(name) in known), key=lambda name: known.index(plain_name(name))
    )


def is_id_name(column: str) -> bool:
    """Tell whether a column's name means a row number, which may also be the file's name."""
    return plain_name(column) in _IDS


def is_path_name(column: str) -> bool:
    """Tell whether a column's name means a path."""
    return plain_name(column) in _PATHS


def split_of_cell(column: str, cell: str) -> str:
    """Return the split that a cell of a split column names, as it is stored.

    Raises:
        LayoutError: it names none, for example in a second table that has the roles of the first.
    """
    flags, word = _FLAGS.get(plain_name(column)), cell.lower()
    if flags is not None and word in YES | _NO:
        return flags[word in _NO]
    if flags is not None or word not in SPLIT_NAMES:
        expected = "True or False" if flags is not None else listed(list(SPLIT_NAMES))
        msg = (
            f"The column '{column}' says which split a row belongs to, but one row says '{cell}'; expected {expected}."
        )
        raise LayoutError(msg)
    return SPLIT_NAMES[word]


def is_index_name(column: str) -> bool:
    """Tell whether a column is a row number that a program wrote."""
    # "Unnamed: 0" is pandas' name for an index that it wrote and read again.
    return not column or column.lower().startswith("unnamed")


def find_roles(columns: Mapping[str, Sequence[str]], *, labels: Sequence[str] | None) -> ColumnRoles:
    """Find the roles of a table's columns, except the path.

    Args:
        columns: cells by column name.
        labels: the columns that hold the labels, if the user named them.

    Raises:
        LayoutError: the labels cannot be identified, or do not exist.
    """
    missing = [name for name in labels or () if name not in columns]
    if missing:
        msg = f"There is no column {listed(missing)}; there are {listed(sorted(columns)) or 'no others'}."
        raise LayoutError(msg)
    # If the user names label columns, one of them may look like a split.
    free = [name for name in columns if name not in (labels or ())]
    split = next((name for name in free if not is_label_name(name) and _is_split(name, columns[name])), None)
    split = split or _flag_of_split({name: columns[name] for name in free})
    rest = [name for name in free if name != split]
    group = next((name for name in rest if _PERSONS.fullmatch(plain_name(name))), None)
    scene = next((name for name in rest if _SCENES.fullmatch(plain_name(name))), None) if group is None else None
    if labels:
        return ColumnRoles(tuple(labels), split, group or scene)
    sizes = _sizes_of_images(columns)
    told = {name: columns[name] for name in rest if name not in (group, *sizes) and _is_told(name, columns[name])}
    named = _named_labels(told)
    if named is not None:
        # If another column numbers the cells, each cell is one class: ATLAS MOTH is 7.
        numbered = any(is_label_name(name) and name != named and is_numeric(cells) for name, cells in told.items())
        return ColumnRoles((named,), split, group or scene, numbered)
    texts = [name for name in rest if plain_name(name) in _TEXTS]
    return ColumnRoles(_find_labels(told, texts, {name: columns[name] for name in rest}), split, group)


def _is_split(name: str, cells: Sequence[str]) -> bool:
    """Tell whether a column contains only names of splits.

    Raises:
        LayoutError: its name means a split, but some of its cells are not splits.
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
    """Return the column that says for each row whether it belongs to one split; `None` if there is none.

    Raises:
        LayoutError: there are several; or one says yes for most rows, and may instead say which rows are valid.
    """
    found = [
        name
        for name, cells in columns.items()
        if plain_name(name) in _FLAGS and {cell.lower() for cell in cells} <= YES | _NO and len(set(cells)) > 1
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
    """Tell whether a column can be a label: it has a name, and not a different word in every row like an id."""
    if is_index_name(name) or plain_name(name) in (*_IDS, *_TEXTS, *_ABOUT_FILES) or is_path_name(name):
        return False
    if is_label_name(name):
        return True
    # When a picture was taken is no class of it, and an empty column nothing at all.
    if are_all(_DATE, cells) or not any(cells):
        return False
    return len(cells) < 3 or is_numeric(cells) or has_decimal_commas(cells) or len(set(cells)) < len(cells)


def are_all(pattern: re.Pattern[str], cells: Sequence[str]) -> bool:
    """Tell whether every cell that is not empty is of a pattern, and there are some."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(map(pattern.fullmatch, filled))


def has_decimal_commas(cells: Sequence[str]) -> bool:
    """Tell whether cells are numbers as half of the world writes them: 3,5."""
    found = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
    return bool(found) and all(cell in found or NUMBER.fullmatch(cell) for cell in set(cells) if cell)


def are_yes_and_no(cells: Sequence[str]) -> bool:
    """Tell whether cells are words for yes and no, as programs write what is true."""
    return bool(cells) and all(cell.lower() in YES | _NO and not is_numeric([cell]) for cell in set(cells))


def _sizes_of_images(columns: Iterable[str]) -> set[str]:
    """Return the columns for width and height of the images: both, because one alone may be that of a person."""
    plain = {plain_name(name): name for name in columns}
    pairs = ((name, name.replace("width", "height")) for name in plain if "width" in name)
    return {plain[name] for pair in pairs if pair[1] in plain for name in pair}


def _named_labels(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the column whose name means a label; of several with the same content, the one in words.

    Raises:
        LayoutError: there are two with different content.
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


def _find_labels(
    columns: Mapping[str, Sequence[str]], texts: Sequence[str], others: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the labels among columns that are not called so.

    Args:
        columns: those that can be labels.
        texts: the names of columns of captions and the like.
        others: all columns beside the paths, cells by name.

    Raises:
        LayoutError: it cannot be told which are, or none can.
    """
    numbers = [name for name, cells in columns.items() if is_numeric(cells) or has_decimal_commas(cells)]
    flags = [name for name in columns if name not in numbers and are_yes_and_no(columns[name])]
    words = [name for name in columns if name not in (*numbers, *flags)]
    # What is one word for all rows tells none from another.
    words = [name for name in words if len(set(columns[name])) > 1] or words
    # Words beside numbers: numbers are usually measurements, and one word in each row is its class.
    if len(words) == 1:
        return (words[0],)
    if not words and texts:
        also = f", or {_say_labels(sorted(columns)[:1])} for that column" if columns else ""
        msg = (
            f"Its column '{texts[0]}' holds texts, which are no labels and are not read. Give layout=\"images\" for "
            f"the images alone{also}; for images with their texts pass pack_dataset an object whose items are (image, "
            "numbers), the numbers being the tokens of the text, as many of each."
        )
        raise LayoutError(msg)
    # Yes and no beside a measurement are one of two things to learn, and beside each other several of one kind.
    of_one_kind = not flags or all(set(columns[name]) <= YES | _NO for name in numbers)
    if columns and not words and (of_one_kind or len(columns) == 1):
        return tuple(columns)
    if columns:
        raise _which(sorted(columns))
    names = [name for name in others if not is_index_name(name)]
    files = next((name for name in names if all(cell.lower().endswith(IMAGE_EXTENSIONS) for cell in others[name])), "")
    if files:
        msg = (
            f"Its column '{files}' names images as well. If they are masks, layout=\"pairs\" reads both by their names."
        )
        raise LayoutError(msg)
    if not names:
        what = "The columns beside the paths have no names in the first row" if others else "It has paths alone"
        msg = f"{what}. Write the label of each file behind its path, and a first row that says so: path,label."
        raise LayoutError(msg)
    msg = (
        f"None of the columns beside the paths is a label by its name or by what it holds: {listed(names)}. If one "
        f"is, say so: {_say_labels(names[:1])}, from colabstage.options."
    )
    raise LayoutError(msg)


def _say_labels(names: Sequence[str]) -> str:
    """Write the argument that says which columns are labels."""
    return f"layout=table_rows(labels=[{', '.join(map(repr, names))}])"


def _which(columns: list[str]) -> LayoutError:
    return LayoutError(
        f"Which of the columns {listed(columns)} is the label? Say so: {_say_labels(columns[:1])}, from "
        "colabstage.options."
    )


def is_numeric(cells: Sequence[str]) -> bool:
    """Tell whether there are non-empty cells and all of them are numbers. "01" is a code, not a number."""
    filled = [cell for cell in cells if cell]
    return (
        bool(filled)
        and all(map(NUMBER.fullmatch, filled))
        and not any(map(CODE.fullmatch, filled))
        and bool(np.isfinite([float(cell) for cell in filled if cell.lower() != "nan"]).all())
    )
