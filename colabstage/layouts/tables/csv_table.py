"""A table of paths and labels beside the images: CSV, TSV, parquet.

Which column is what is found by its content: the paths are those that lead to images, a split column holds nothing but
names of splits, and labels are known by their name, or are the one thing left.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images
from colabstage.layouts.folders.class_folders import FileKind
from colabstage.layouts.lookup import FileLookup
from colabstage.layouts.names import IMAGE_EXTENSIONS, SPLIT_NAMES, listed
from colabstage.layouts.sources import TreeFiles
from colabstage.layouts.table import SampleTable
from colabstage.layouts.tables.columns import TABLE_EXTENSIONS, read_rows
from colabstage.layouts.tables.label_columns import find_roles, make_targets
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.fields import Values
    from colabstage.layouts.tables.label_columns import ColumnRoles
    from colabstage.trees.entries import FileEntries
    from colabstage.trees.tree import FileEntry, Tree

NAME = "table"

# Rows that are looked at to find the column of paths.
_LOOKED_AT = 100


class _Row(NamedTuple):
    """A row whose file there is."""

    file: FileEntry
    cells: list[str]
    split: str | None


class _Found(NamedTuple):
    """One table file: its columns' names, its rows, and which column leads to files."""

    name: str
    header: list[str]
    rows: list[list[str]]
    path: int


class FileTable(NamedTuple):
    """What tables say of files: N samples. `targets`, `splits`, `groups`, `classes`, `notes` as in `SampleTable`."""

    keys: Sequence[str]
    files: Sequence[FileEntry]
    targets: Values
    splits: tuple[str, ...] | None
    groups: tuple[str, ...] | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def read_table(tree: Tree, *, labels: Sequence[str] | None = None) -> SampleTable:
    """Make a table of a tree that holds one: a path and labels in every row.

    Several tables called after splits (train.csv, test.csv) are the splits. Samples come in the table's order.

    Args:
        tree: the dataset's files.
        labels: the columns that hold the labels; found by name and content where `None`.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: no table has a column of paths to images, or its labels cannot be told.
    """
    found = find_file_table(tree, FileKind(NAME, "images", IMAGE_EXTENSIONS), labels=labels)
    return SampleTable(
        layout=NAME,
        keys=found.keys,
        inputs=Images(TreeFiles(tree, found.files)),
        targets=found.targets,
        splits=found.splits,
        groups=found.groups,
        classes=found.classes,
        notes=found.notes,
    )


def find_file_table(tree: Tree, kind: FileKind, *, labels: Sequence[str] | None) -> FileTable:
    """The files of a kind that the tables of a tree name, with what they say of them.

    Raises:
        As `read_table`.
    """
    files = files_ending_in(tree.entries, kind.extensions)
    tables = list(files_ending_in(tree.entries, TABLE_EXTENSIONS))
    if not files or not tables:
        msg = f"'{tree.label}' holds no {kind.noun if not files else 'tables (.csv, .tsv, .parquet)'}."
        raise EmptySourceError(msg) if not files else LayoutError(msg)
    found = _with_paths(tree, tables, files, kind)
    rows = [row for table in found for row in _rows(table, files, _split_of(table.name) if len(found) > 1 else None)]
    header, path = found[0].header, found[0].path
    columns = {name: [row.cells[i] for row in rows] for i, name in enumerate(header) if i != path}
    roles = find_roles(columns, labels=labels)
    targets, classes = make_targets({name: columns[name] for name in roles.labels})
    return FileTable(
        keys=_unique([row.file.name for row in rows]),
        files=tuple(row.file for row in rows),
        targets=targets,
        splits=_splits(rows, None if roles.split is None else columns[roles.split]),
        groups=None if roles.group is None else tuple(columns[roles.group]),
        classes=classes,
        notes=_notes(found, rows, len(files), roles, kind),
    )


def _with_paths(tree: Tree, tables: list[FileEntry], files: FileEntries, kind: FileKind) -> list[_Found]:
    """The tables that lead to files of the kind: one, or one for each split."""
    found = []
    for entry in tables:
        rows = read_rows(tree, entry)
        lookup = FileLookup(files, posixpath.dirname(entry.name))
        path = _path_column(rows, lookup)
        if path is not None:
            has_header = lookup.find(rows[0][path]) is None
            header = rows[0] if has_header else [f"column{number}" for number in range(1, len(rows[0]) + 1)]
            found.append(_Found(entry.name, header, rows[1:] if has_header else rows, path))
    if not found:
        names = listed([entry.name for entry in tables])
        msg = f"None of the tables {names} has a column in which most rows lead to {kind.noun} of '{tree.label}'."
        raise LayoutError(msg)
    called = [_split_of(table.name) for table in found]
    same = all((table.header, table.path) == (found[0].header, found[0].path) for table in found)
    if len(found) > 1 and not (same and None not in called and len(set(called)) == len(called)):
        msg = (
            f"Several tables lead to {kind.noun} ({listed([table.name for table in found])}), and they are not the "
            "splits of one dataset, called train, test and so on, with the same columns. Move all but one away."
        )
        raise LayoutError(msg)
    return found


def _path_column(rows: list[list[str]], lookup: FileLookup) -> int | None:
    """The column in which most cells lead to a file."""
    looked_at = rows[1 : _LOOKED_AT + 1] or rows
    if not rows:
        return None
    hits = [sum(lookup.find(row[i]) is not None for row in looked_at) for i in range(len(rows[0]))]
    best = max(range(len(hits)), key=lambda i: hits[i], default=0)
    return best if hits and 2 * hits[best] > len(looked_at) else None


def _split_of(name: str) -> str | None:
    """The split that a table is called after: train.csv, labels_train.csv, test-annotations.csv."""
    stem = posixpath.splitext(posixpath.basename(name))[0].lower()
    words = [word for word in stem.replace("-", "_").split("_") if word in SPLIT_NAMES]
    return SPLIT_NAMES[words[0]] if len(words) == 1 else None


def _rows(table: _Found, files: FileEntries, split: str | None) -> list[_Row]:
    lookup = FileLookup(files, posixpath.dirname(table.name))
    pairs = ((lookup.find(cells[table.path]), cells) for cells in table.rows)
    return [_Row(file, cells, split) for file, cells in pairs if file is not None]


def _splits(rows: list[_Row], column: list[str] | None) -> tuple[str, ...] | None:
    if column is not None:
        return tuple(SPLIT_NAMES[cell.lower()] for cell in column)
    return tuple(row.split or "" for row in rows) if rows[0].split is not None else None


def _unique(names: list[str]) -> tuple[str, ...]:
    """Names with a number behind those that have been there before: an image may have several rows."""
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(keys)


def _notes(found: list[_Found], rows: list[_Row], files: int, roles: ColumnRoles, kind: FileKind) -> tuple[str, ...]:
    tables = listed([table.name for table in found])
    path = found[0].header[found[0].path]
    notes = [f"Samples are the rows of {tables}; paths are in '{path}', labels in {listed(list(roles.labels))}."]
    if roles.group is not None:
        notes.append(f"Samples with the same '{roles.group}' stay in one split.")
    missing = sum(len(table.rows) for table in found) - len(rows)
    if missing:
        notes.append(f"{missing:,} rows whose {kind.noun} are not there were left out.")
    unused = files - len({row.file.name for row in rows})
    if unused:
        notes.append(f"{unused:,} {kind.noun} that no row names were left out.")
    return tuple(notes)
