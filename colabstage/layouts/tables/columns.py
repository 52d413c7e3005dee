"""A table file as columns of text: CSV and its relatives, and parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import LayoutError, MissingDependencyError
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from colabstage.trees.tree import FileEntry, Tree

TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet")
_DELIMITERS = (",", ";", "\t", "|")


def is_table(name: str) -> bool:
    """Whether a file of this name is a table."""
    return name.lower().endswith(TABLE_EXTENSIONS)


class TableRows(NamedTuple):
    """The cells of a table, the header's among them. `fault`: what keeps it from being used, "" for nothing."""

    rows: list[list[str]]
    fault: str = ""


def read_rows(tree: Tree, entry: FileEntry) -> list[list[str]]:
    """Read a table's rows, each with as many cells as the first, which may be a header.

    Raises:
        LayoutError: it has rows of different lengths, or is no text.
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
    """
    data = read_with_retry(lambda: tree.read(entry), entry.name, policy=RetryPolicy())
    if entry.name.lower().endswith(".parquet"):
        return TableRows(_parquet_rows(data, entry.name))
    text = _decode(data)
    first = text.split("\n", 1)[0]
    delimiter = "\t" if entry.name.lower().endswith(".tsv") else max(_DELIMITERS, key=first.count)
    rows: list[list[str]] = []
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows.extend([cell.strip() for cell in row] for row in reader if any(row))
    except csv.Error as error:
        return TableRows(rows, f"'{entry.name}' cannot be read as a table behind row {len(rows)}: {error}.")
    width = len(rows[0]) if rows else 0
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is None:
        return TableRows(rows)
    fault = (
        f"'{entry.name}' has {len(rows[odd])} cells in row {odd + 1} and {width} in the first; expected as many. Cells "
        'that hold the delimiter need "quotes".'
    )
    return TableRows(rows, fault)


def _decode(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")  # what spreadsheets save as "Unicode text"
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # what spreadsheets of western Europe still write


def _parquet_rows(data: bytes, name: str) -> list[list[str]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        msg = f"'{name}' is a parquet table, which needs pyarrow. Install it with: pip install pyarrow"
        raise MissingDependencyError(msg) from error
    table = parquet.read_table(io.BytesIO(data))
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return [list(table.column_names), *(list(row) for row in zip(*columns, strict=True))]
