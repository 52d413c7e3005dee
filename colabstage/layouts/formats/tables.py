"""Table files: CSV and its relatives, lines of JSON, parquet if pyarrow is installed; and lists in texts and JSON."""

from __future__ import annotations

import csv
import io
import itertools
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.io.packages import refuse_import
from colabstage.layouts import words
from colabstage.layouts.columns import Column, NumberedCells, show, splits_of_column
from colabstage.layouts.reading import decode_text, inner_items, is_comment, items_of, load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_DELIMITERS = (",", ";", "\t", "|")
# In how many lines they are counted.
_COMPARED = 64
_LINE_END, _BLANK = ord("\n"), ord(" ")
# Up to this many bytes of a cell are read as an integer; the mask keeps the bits of a shorter cell.
_SHORT = 8
_LETTERS = np.array([(1 << 8 * count) - 1 for count in range(_SHORT + 1)], np.uint64)
# Files that may be tables, but are mostly something else.
LISTS = (".txt", ".lst", ".json")
NESTED = (".json", ".yaml", ".yml")


@dataclass(slots=True)
class Table:
    """The contents of a table file: N rows, the first of which may be a header."""

    name: str
    columns: list[Column] = field(default_factory=list)
    """By position; named by the cell in the first row, which is not among the cells."""
    fault: str = ""
    """Why it cannot be used; "" if it can."""

    @property
    def count(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @property
    def header(self) -> list[str]:
        return [column.name for column in self.columns]

    def without_header(self) -> Table:
        """Return the same with the first row among the others, and made-up names."""
        columns = [
            Column(f"column{place}", [column.name, *column.cells]) for place, column in enumerate(self.columns, 1)
        ]
        return Table(self.name, columns, self.fault)


def parse_table(name: str, content: bytes) -> Table:
    """Read as many of a table's rows as possible: whether a fault matters is known only once the table's role is.

    In a text, JSON or YAML, rows of a path and something else are a table: `cat/1.jpg 3`, `{"1.jpg": "cat"}`, a list
    of records or of pairs, or of names, also below each split. A table without rows means that there are none. One that
    is called after splits and has one of these in each row gets the header that it lacks.
    """
    if name.lower().endswith(".parquet"):
        return _parse_parquet(name, content)
    text = decode_text(content)
    if name.lower().endswith(".jsonl"):
        return _parse_lines(name, text)
    text = _below_comments(text)
    return _parse_cells(name, text) if words.is_table(name) else _parse_list(name, text)


def _below_comments(text: str) -> str:
    """Return a text without the comments above its rows; the last of these may be their header: "# file label"."""
    lines = text.splitlines(keepends=True) if text.lstrip().startswith("#") else []
    rows = [*itertools.dropwhile(lambda line: not line.strip() or is_comment(line), lines)]
    # A name may begin with #, and then nothing is above it.
    if not rows or len(rows) == len(lines):
        return text
    header = next(filter(None, map(str.strip, reversed(lines[: -len(rows)])))).lstrip("# ")
    delimiter = next((mark for mark in _DELIMITERS if mark in rows[0]), None)
    first = [*map(words.plain_name, rows[0].split(delimiter))]
    # "# labels, by Ann" above "file,label" is none.
    is_header = len(header.split(delimiter)) == len(first) and {*words.PATHS, *words.LABELS}.isdisjoint(first)
    return "".join([f"{header}\n" * is_header, *rows])


def _parse_cells(name: str, text: str) -> Table:
    # The header decides, because text cells may contain any delimiter; but not one of other numbers in other rows.
    first, *others = text.split("\n", _COMPARED)[:_COMPARED]
    is_tabbed = name.lower().endswith(".tsv") and "\t" in first
    marks = even_marks([first, *filter(str.strip, others)], _DELIMITERS) or _DELIMITERS
    delimiter = "\t" if is_tabbed else max(marks, key=first.count)
    plain = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    columns = None if '"' in text else _split_evenly(plain, delimiter)
    if columns is not None:
        return _make_table(name, columns)
    rows, fault = _read_rows(text, delimiter, strict=True)
    if fault:
        loose, trouble = _read_rows(text, delimiter, strict=False)
        # A superfluous quote is harmless within its line; otherwise it swallows the rows up to the next one.
        if not trouble and not any("\n" in cell or "\r" in cell for row in loose[len(rows) :] for cell in row):
            rows, fault = loose, ""
    fault = fault and f"'{name}' cannot be read as a table after row {len(rows)}: {fault}."
    width = len(rows[0]) if rows else 0
    # A row that is too long or too short shifts its cells into other columns.
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is not None and not fault:
        fault = (
            f"'{name}' has {len(rows[odd])} cells in row {odd + 1} and {width} in the first; expected as many. "
            'Cells that hold the delimiter need "quotes", and titles and remarks a file of their own.'
        )
    cells = itertools.islice(itertools.zip_longest(*rows, fillvalue=""), width)
    return _make_table(name, ((first, rest) for first, *rest in cells), fault)


def even_marks(lines: Sequence[str], marks: Iterable[str]) -> list[str]:
    """Return the marks that are in each line, and as often: the delimiters of a table without quotes."""
    return [mark for mark in marks if mark in lines[0] and len({line.count(mark) for line in lines}) == 1]


def _parse_list(name: str, text: str) -> Table:
    is_nested = name.lower().endswith(NESTED)
    table, called = _parse_items(name, text) if is_nested else _parse_words(name, text), words.split_field(name)
    if not called or len(table.columns) != 2 or words.states_splits(table.header):
        return table
    bare = table if is_nested else table.without_header()
    with suppress(LayoutError):
        if splits_of_column(column := Column(called, bare.columns[1].cells)):
            return replace(bare, columns=[Column(words.PATHS[0], bare.columns[0].cells), column])
    return table


def _parse_items(name: str, text: str) -> Table:
    items = items_of(text)
    with suppress(ValueError):
        items = inner_items(load_yaml(text)) if not name.lower().endswith(".json") else items
    items = items or []
    below = {one[0]: one[1] for one in items if isinstance(one, tuple) and words.is_split(one[0])}
    if below and all(isinstance(own, list) for own in below.values()):
        stated = ((words.split_name(split).split, one) for split, own in below.items() for one in own)
        records = [{**_record_of(one), words.SPLIT_COLUMNS[0]: split} for split, one in stated]
    else:
        records = list(map(_record_of, items))
    return _of_records(name, list(map(_cells_of, records))) if all(records) else Table(name)


def _parse_words(name: str, text: str) -> Table:
    lines = list(filter(str.strip, text.splitlines()))
    if any(mark in line for line in lines[:1] for mark in _DELIMITERS):
        return _parse_cells(name, text)
    lines = list(itertools.filterfalse(is_comment, lines)) if "#" in text else lines
    # Above the rows their number may stand, and a header that lacks a name for the paths, as R writes it.
    lines = lines[lines[0].strip() == str(len(lines) - 2) :] if lines else []
    if lines and len(lines[0].split()) + 1 == len(lines[-1].split()):
        lines[0] = f"path {lines[0]}"
    rows = "\n".join(map(str.strip, lines))
    if not rows.isascii() or "\t" in rows:
        rows = "\n".join(" ".join(line.split()) for line in lines)
    # Paths with blanks, and sentences, make rows of different lengths.
    return _make_table(name, _split_evenly(rows, " ") or ())


def _split_evenly(text: str, delimiter: str) -> Iterator[tuple[str, Sequence[str]]] | None:
    """Return the columns of a text without quotes whose rows all have as many cells, each as its first cell and the
    others; `None` for other texts. Several blanks delimit cells as one does."""
    # Zeros follow the last cell, because short cells are read with what follows.
    content = f"{text}\n".encode() + bytes(_SHORT)
    data = np.frombuffer(content, np.uint8)
    if delimiter == " ":
        data = data[(data != _BLANK) | (np.roll(data, -1) != _BLANK)]
        content = data.tobytes()
    width = content.partition(b"\n")[0].count(delimiter.encode()) + 1
    are_lines = data == _LINE_END
    ends = np.flatnonzero(are_lines | (data == ord(delimiter)))
    lasts = ends[width - 1 :: width]
    is_even = len(ends) % width == 0 and np.count_nonzero(are_lines) == len(lasts) and are_lines[lasts].all()
    # A row with only delimiters does not count.
    if "\0" in text or not is_even or np.any(np.diff(lasts, prepend=-1) == width):
        return None
    by_column = np.ascontiguousarray(ends.reshape(-1, width).T)
    firsts = np.concatenate([[-1], lasts[:-1]])
    return (_column_of(content, before + 1, own) for before, own in zip([firsts, *by_column], by_column, strict=False))


def _column_of(content: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[str, Sequence[str]]:
    """Return the first cell of a column and the others, given where each begins and ends."""
    name, starts, widths = content[starts[0] : ends[0]].decode(), starts[1:], (ends - starts)[1:]
    if widths.max(initial=0) > _SHORT:
        places = zip(starts.tolist(), ends[1:].tolist(), strict=True)
        return name, [content[start:end].decode() for start, end in places]
    # Short cells become integers, whose distinct values are found quickly.
    letters: NDArray[np.uint64] = np.ndarray((len(content) - _SHORT + 1,), "<u8", content, strides=(1,))
    known, numbers = np.unique(letters[starts] & _LETTERS[widths], return_inverse=True)
    texts = [code.to_bytes(_SHORT, "little").rstrip(b"\0").decode() for code in known.tolist()]
    return name, NumberedCells(texts, numbers.astype(np.min_scalar_type(len(texts))))


def _read_rows(text: str, delimiter: str, *, strict: bool) -> tuple[list[list[str]], str]:
    """Return the rows that are not empty, up to a fault, and the fault; if not `strict`, quotes need not match."""
    rows: list[list[str]] = []
    try:
        found = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=strict)
        rows.extend(row for row in found if any(row))
    except csv.Error as error:
        return rows, str(error)
    return rows, ""


def _make_table(name: str, columns: Iterable[tuple[str, Sequence[str]]], fault: str = "") -> Table:
    found = []
    for first, rest in columns:
        column = Column(first, rest)
        # The distinct cells say whether any has blanks around it.
        cells = [first, *column.distinct]
        if list(map(str.strip, cells)) != cells:
            column = Column(first.strip(), [cell.strip() for cell in rest])
        found.append(column)
    return Table(name, found, fault)


def _parse_parquet(name: str, content: bytes) -> Table:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        refuse_import("pyarrow", f"'{name}' is a parquet table, which needs", error)
    try:
        table = parquet.read_table(io.BytesIO(content))
    # pyarrow reports damaged pages as an OSError.
    except (ArrowException, OSError) as error:
        msg = f"'{name}' is truncated, damaged or not a parquet file ({error}). Copy it again, or move it away."
        raise CorruptArchiveError(msg) from error
    # Bytes are contents, which say nothing about a file.
    cells = (
        ["<bytes>"] * len(table) if "binary" in str(column.type) else
        ["" if cell is None else str(cell) for cell in column.to_pylist()]
        for column in table.columns
    )  # fmt: skip
    return _make_table(name, zip(table.column_names, cells, strict=True))


def _parse_lines(name: str, text: str) -> Table:
    found: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found += [_cells_of(json.loads(line))] if line.strip() else []
        except (ValueError, AttributeError, RecursionError):
            # Other programs write other things into lines; whether that matters is known later.
            return Table(name, fault=f"'{name}' has no mapping in line {number}: {show(line)!r}.")
    return _of_records(name, found)


def _record_of(item: Any) -> dict[str, Any]:
    """Return a name, a key and its value, or a list, as a record; nothing for another item."""
    if isinstance(item, dict):
        return item
    if isinstance(item, str):
        return {words.PATHS[0]: item}
    if isinstance(item, tuple):
        return {"path": item[0], **(item[1] if isinstance(item[1], dict) else {"label": item[1]})}
    return {f"column{place}": cell for place, cell in enumerate(item if isinstance(item, list) else (), 1)}


def _cells_of(record: dict[str, Any]) -> dict[str, str]:
    """Return the values of a JSON object as cells; those that are neither text nor numbers are written as JSON."""
    return {
        str(key): value if isinstance(value, str) else "" if value is None else json.dumps(value)
        for key, value in record.items()
    }


def _of_records(name: str, records: Sequence[dict[str, str]]) -> Table:
    header = dict.fromkeys(key for cells in records for key in cells)
    return _make_table(name, ((key, [cells.get(key, "") for cells in records]) for key in header))
