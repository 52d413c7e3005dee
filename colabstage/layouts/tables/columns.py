"""A table file as columns of text: CSV and its relatives, and parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError, MissingDependencyError
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from colabstage.trees.tree import FileEntry, Tree

TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet")
_DELIMITERS = (",", ";", "\t", "|")


def is_table(name: str) -> bool:
    """Whether a file of this name is a table."""
    return name.lower().endswith(TABLE_EXTENSIONS)


def read_rows(tree: Tree, entry: FileEntry) -> list[list[str]]:
    """Read a table's rows, each with as many cells as the first, which may be a header.

    Raises:
        LayoutError: it has rows of different lengths, or is no text.
        MissingDependencyError: it is parquet and pyarrow is not there.
    """
    data = read_with_retry(lambda: tree.read(entry), entry.name, policy=RetryPolicy())
    if entry.name.lower().endswith(".parquet"):
        return _parquet_rows(data, entry.name)
    text = _decode(data)
    first = text.split("\n", 1)[0]
    delimiter = "\t" if entry.name.lower().endswith(".tsv") else max(_DELIMITERS, key=first.count)
    try:
        rows = [
            [cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(row)
        ]
    except csv.Error as error:
        msg = f"'{entry.name}' cannot be read as a table: {error}."
        raise LayoutError(msg) from error
    width = len(rows[0]) if rows else 0
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is not None:
        msg = f"'{entry.name}' has {len(rows[odd])} cells in row {odd + 1} and {width} in the first; expected as many."
        raise LayoutError(msg)
    return rows


def _decode(data: bytes) -> str:
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
