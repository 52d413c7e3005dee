"""Rows of tables that name files: CSV, TSV, parquet, lines of JSON; and of lists of paths and labels.

Columns are recognised by their content: paths are those that lead to files, a split column contains only names of
splits, and labels are recognised by their name, or are the only column left; four columns, or cells of JSON, may be
boxes. A table that leads to files claims them: any fault in it from there on is an error, and never a reason to use
weaker evidence.
"""

from __future__ import annotations

import itertools
import json
import math
import posixpath
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_args

import numpy as np

from colabstage.errors import LayoutError
from colabstage.images.geometry import VOID
from colabstage.io.units import counted, format_count, listed
from colabstage.layouts import words
from colabstage.layouts.columns import (
    MISSING,
    Column,
    ColumnRoles,
    find_roles,
    in_order_of,
    kept_together,
    make_targets,
    note_on_groups,
    notes_on_targets,
    same_partition,
    show,
    sides_of_images,
    split_of_cell,
)
from colabstage.layouts.evidence import (
    FEW,
    IMAGE_FOLDER,
    Evidence,
    FileKind,
    Found,
    left_out_notes,
    near,
    renumbered,
    require_files,
    size_in_file,
)
from colabstage.layouts.formats.detection import is_of_tool
from colabstage.layouts.formats.masks import RUNS, masks_of_runs, parse_runs
from colabstage.layouts.formats.tables import LISTS, Table, parse_table
from colabstage.layouts.lists import MOST_LISTS, NONE, SEVERAL, Lookup, held_out_of_others, lists_state
from colabstage.layouts.reading import BEGINNING_BYTES, Source
from colabstage.layouts.records import (
    BoxForm,
    ObjectRows,
    box_fields,
    boxes_of_cell,
    boxes_of_records,
    objects_of,
)
from colabstage.layouts.table import Boxes, BrokenDatasetError, Masks, SampleSource, Targets, TreeFiles, Values
from colabstage.trees.listing import FileEntries, take_strings
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


TABLE = IMAGE_FOLDER._replace(layout="table")
# A path, a label and a split explain themselves; with more unnamed columns it is unclear which is the label.
_PLAIN_COLUMNS = 3
# How many rows decide whether two columns mean the same files.
_COMPARED = 100


@dataclass
class LeadingTable:
    """One table whose paths lead to files."""

    table: Table
    path: Column
    leads: dict[str, int]
    """The number of the file that each cell of that column means, if any; `SEVERAL` if it may mean several."""
    has_header: bool
    folders: str = ""
    """The column that names folders, each of whose files has a row here; "" if the rows name files."""

    @property
    def name(self) -> str:
        return self.table.name

    @cached_property
    def files(self) -> set[int]:
        return set(self.leads.values()) - {SEVERAL}

    @property
    def split(self) -> str:
        """Return the split in the table's name or path: train.csv, labels_train.csv, valid/_classes.csv."""
        return words.split_of_file(self.name)

    @property
    def has_labels(self) -> bool:
        """Tell whether a column beside the path, and one of splits, may be the label."""
        return any(one.may_be_label and one.plain not in words.SPLIT_FIELDS for one in self.columns.values())

    @property
    def columns(self) -> dict[str, Column]:
        """Return the columns by name, except the path."""
        return {column.name: column for column in self.table.columns if column is not self.path}


# Whether most cells of a column are whole names; how many files it leads to; whether it is named like a path.
_Rank = tuple[bool, int, bool]


class _Rows(NamedTuple):
    """The rows of some tables whose files exist."""

    files: NDArray[np.int64]
    splits: list[str]
    """The split in the row or in its table's name; "" for none."""
    places: list[tuple[LeadingTable, NDArray[np.intp]]]
    """The numbers of these rows in each table."""

    def column(self, name: str) -> Column:
        parts = [(table.columns[name], rows) for table, rows in self.places]
        # The column of a single whole table is used itself, with what it has cached.
        if len(parts) == 1 and len(parts[0][1]) == len(parts[0][0]):
            return parts[0][0]
        return Column(name, [cell for column, rows in parts for cell in take_strings(list(column.cells), rows)])


@dataclass
class TableSearch:
    """Searches the tables of a source for those that describe its files of one kind.

    Several tables named after splits (train.csv, test.csv) are the splits; one of them without labels, and sample
    submissions of competitions, are left out. Columns xmin, ymin, xmax, ymax are boxes in pixels, one in each row.
    Samples come in the table's order.
    """

    source: Source
    kind: FileKind
    """Which files are samples."""
    files: FileEntries
    lookup: Lookup
    labels: Sequence[str] | None = None
    """The columns that hold the labels; if `None`, they are found by name and content."""
    table: str | None = None
    """The table that counts, if there are several."""
    separator: str | None = None
    """The text between several labels in one cell; "" if each cell is one label."""
    lists: bool = False
    """Whether to search texts and JSON that list names of files, instead of tables."""

    def state(self) -> Found:
        """Return what the tables state about the files."""
        require_files(self.files, self.source, self.kind.noun)
        if not self.claiming:
            return near(self._why_none())
        # From here on a table has claimed the files, so nothing weaker counts.
        try:
            found = self._state()
            return found if found.table.splits is not None else lists_state(self.source, found)
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            first = max(self.claiming, key=lambda one: one.has_labels)
            msg = f"'{first.name}' leads to the {self.kind.noun} of '{self.source.label}'. {error}"
            raise BrokenDatasetError(msg) from error

    # --- which tables -------------------------------------------------------------------------------------------------

    @cached_property
    def tables(self) -> dict[str, Table]:
        # A submission names the test images with one made-up label.
        entries = self.source.ending_in(LISTS if self.lists else words.TABLES)
        asked = entries.where(lambda name: not words.is_submission(name))
        if self.table is not None and entries:
            # A full path takes precedence over the same base name in another folder.
            asked = entries.where(self.table.__eq__) or entries.where(
                lambda name: posixpath.basename(name) == self.table
            )
            if len(asked) != 1:
                msg = (
                    f"table={self.table!r} is {'several' if asked else 'none'} of the tables in "
                    f"'{self.source.label}': {listed(list((asked or entries).names))}. Name one."
                )
                raise BrokenDatasetError(msg)
        few = asked if not self.lists or self.table is not None or len(asked) <= MOST_LISTS else asked[:0]
        parsed = {name: _taken_apart(table) for name, table in self.source.parse_once(few, parse_table).items()}
        found = {name: table for name, table in parsed.items() if self._counts(table)}
        # Tables of paths alone, of train and of another split, are lists.
        bare = {name: words.split_name(words.stem_of(name)).split for name in found if len(found[name].header) == 1}
        if not self.lists and {"train"} < {*bare.values()} - {""}:
            found = {name: table for name, table in found.items() if name not in bare}
        if not found:
            msg = f"'{self.source.label}' holds no tables of samples (.csv, .tsv, .parquet)."
            raise LayoutError(msg)
        return found

    def _counts(self, table: Table) -> bool:
        """Tell whether a table may describe samples."""
        # Colours and numbers of classes lead to 0.png and 255.png by chance; splits are read as lists are, and tables
        # of annotation tools as their other files.
        is_other = words.names_classes(table.name, table.header) or words.states_splits(table.header)
        is_other = is_other or is_of_tool(table.columns)
        return (self.table is not None or not is_other) and (not self.lists or self._lists_files(table))

    def _lists_files(self, table: Table) -> bool:
        """Tell whether each row of a text or JSON names a file, in a text at its beginning, and says more."""
        if table.fault or len(table.columns) < 2:
            return False
        # After a number, as in "1 cat/1.jpg", another file says what the number means.
        paths = table.columns if table.name.lower().endswith(".json") else table.columns[:1]
        # Each cell looks like a file of the kind, or is the stem of an existing one.
        unknown = (self.lookup.unknown(column.distinct) for column in paths)
        stems = ([one for one in own if one[one.rfind(".") :].lower() not in self.kind.extensions] for own in unknown)
        return any(all(words.is_telling(one) and self.lookup.may_find(one) for one in own) for own in stems)

    @cached_property
    def leading(self) -> list[LeadingTable]:
        """Return the tables whose paths lead to files of the kind."""
        return [found for table in self.tables.values() if (found := self.lead(table)) is not None]

    @cached_property
    def is_clear(self) -> bool:
        """Tell whether there are tables, and it is clear by which column each of them leads."""
        try:
            return self.leading is not None
        except LayoutError:
            return False

    @cached_property
    def claiming(self) -> list[LeadingTable]:
        """Return those; or, if no table leads to files, the tables whose rows name images' folders, as for patients."""
        if self.kind.layout == "audio" or any({*one.leads.values()} != {SEVERAL} for one in self.leading):
            return self.leading
        found = [found for table in self.tables.values() if (found := self._lead_to_folders(table)) is not None]
        # With several rows for a folder, a column beside it has the names that may be in any of them.
        found = [one for one in found if not (self.leading and one.table.fault)]
        # Other folders of arrays are mostly the classes themselves.
        of_persons = [one for one in found if words.PERSONS.fullmatch(words.plain_name(one.folders))]
        return (found if self.kind.layout == TABLE.layout else of_persons) or self.leading

    def agree(self, class_of: Mapping[str, str]) -> bool:
        """Tell whether all tables that lead to files state the classes in `class_of`, by name, whatever their other
        columns are."""
        # The German traffic signs have a table in each class's folder; together they state every file's class.
        alike: dict[tuple[str, ...], list[LeadingTable]] = defaultdict(list)
        for table in self.leading if self.is_clear else ():
            alike[tuple(table.table.header)].append(table)
        return bool(alike) and all(
            columns_of_classes(
                *rows_in_classes(tables, self.files.names, class_of, self.lookup), has_header=tables[0].has_header
            )
            for tables in alike.values()
        )

    def _why_none(self) -> str:
        first = next(iter(self.tables.values()))
        # Shown together, 1.JPG and 1.jpg, or 7 and 00007.png, explain the mistake.
        cells = listed([show(column.cells[0]) for column in first.columns[:_PLAIN_COLUMNS] if first.count])
        shown = f"The first row of '{first.name}' is {cells or 'empty'}, and a file is called '{self.files.names[0]}'"
        return (
            f"No column of {listed([*self.tables])} has rows most of which lead to {self.kind.noun} of "
            f"'{self.source.label}'. {shown}. Write paths as the files are called."
        )

    def lead(self, table: Table) -> LeadingTable | None:
        """Return a table with the column most of whose rows lead to files, or that leads to most of the files.

        A label column never is one: "2" may be a class, and also the stem of 2.png.
        """
        folder, found = posixpath.dirname(table.name), self._leading_columns(table)
        if not found:
            return None
        best = max((column for column in table.columns if column in found), key=lambda column: found[column][0])
        rank, leads = found[best]
        for other in table.columns:
            its_rank, its_leads = found.get(other, (None, {}))
            # file_name beside path mostly means the same; an index beside the paths does not.
            pairs = zip(best.cells[:_COMPARED], other.cells[:_COMPARED], strict=True)
            differs = its_rank == rank and any(leads.get(one) != its_leads.get(two) for one, two in pairs)
            instead = not rank[0] and other is not best and self._is_path_instead(other, best)
            if differs or instead or self._is_part(other, best, leads, folder):
                msg = (
                    f"'{table.name}' names different files in '{best.name}' and '{other.name}'. Take one column out. "
                    "If they are masks, call that column 'mask'; if a sample has several files, give pack_dataset an "
                    "object whose items are (x, y)."
                )
                raise BrokenDatasetError(msg)
        # If a first row is not a path to a file, or is the name of a path column, it is a header.
        first = () if best.plain in words.PATHS else self.lookup.search(best.name, folder)
        if not first:
            return LeadingTable(table, best, leads, has_header=True)
        bare = table.without_header()
        if len(bare.columns) > _PLAIN_COLUMNS and not bare.fault and self.labels is None:
            row = listed([show(cell) for cell in table.header])
            beside = [one for one in bare.columns if one.name != f"column{table.columns.index(best) + 1}"]
            label = next((one.name for one in beside if not one.is_numeric), beside[0].name)
            bare.fault = (
                f"'{table.name}' has {len(bare.columns)} columns and no header (first row {row}). Write one, such as "
                f"path,xmin,ymin,xmax,ymax,class, or say which is the label: layout=table_rows(labels=[{label!r}])."
            )
        path, leads = bare.columns[table.columns.index(best)], leads | {best.name: self.lookup.find(best.name, folder)}
        return LeadingTable(bare, path, leads, has_header=False)

    def _leading_columns(self, table: Table) -> dict[Column, tuple[_Rank, dict[str, int]]]:
        """Return the columns that lead to files, with the file of each cell: half of the rows, because tables name
        missing files; or to half of the files, because boxes repeat a few."""
        folder, found = posixpath.dirname(table.name), dict[Column, tuple[_Rank, dict[str, int]]]()
        for column in sorted(table.columns, key=lambda column: -len(column.distinct)):
            # Row numbers that a program wrote lead to files only by chance: they are in another order.
            numbers = words.is_index_name(column.name) and list(column.cells) == list(map(str, range(len(column))))
            cells = column if len(column) else Column(column.name, [column.name])
            # A column needs no index of stems if it has fewer distinct cells than whole names already found.
            fewer = any(rank[0] and rank[1] > len(cells.distinct) for rank, _ in found.values())
            if words.is_label_name(column.name) or numbers or fewer:
                continue
            leads, whole = self.lookup.search_each(cells.distinct, folder)
            hits = len(cells) if len(leads) == len(cells.distinct) else sum(map(leads.__contains__, cells.cells))
            if leads and (2 * hits > len(cells) or 2 * len(leads) > len(self.lookup)):
                # Whole names beat stems, which any number may match.
                found[column] = (2 * whole > len(leads), len(set(leads.values())), column.plain in words.PATHS), leads
        return found

    def _lead_to_folders(self, table: Table) -> LeadingTable | None:
        """Return a table with a row for each file in the folders that its rows name: most of them, by one column."""
        paths, of_files = self.files.folders
        above = [[*itertools.accumulate(path.split("/"), posixpath.join)] for path in paths]
        folders = Lookup(dict.fromkeys(itertools.chain.from_iterable(above)))
        for column in table.columns:
            if words.is_label_name(column.name):
                continue
            bare = table.without_header() if folders.search(column.name) else table
            named = bare.columns[table.columns.index(column)]
            leads = {cell: place for cell in named.distinct if (place := folders.find(cell)) >= 0}
            names = {folders.names[number]: number for number in leads.values()}
            inside = [[names[folder] for folder in one if folder in names] for one in above]
            # A split has images of all labels; and a folder in another one would have the labels of both.
            is_odd = any(map(words.is_split, map(posixpath.basename, names))) or any(len(one) > 1 for one in inside)
            if is_odd or 2 * sum(map(leads.__contains__, named.cells)) <= len(named):
                continue
            folder_of = np.array([one[0] if one else NONE for one in inside])[of_files]
            files = {number: np.flatnonzero(folder_of == number).tolist() for number in leads.values()}
            # A row whose folder is missing remains, as a row of a missing file.
            own = [files[leads[cell]] if cell in leads else [NONE] for cell in named.cells]
            rows = np.repeat(np.arange(len(named)), [*map(len, own)])
            numbers = list(itertools.chain.from_iterable(own))
            cells = [
                named.cells[row] if number == NONE else self.files.names[number]
                for row, number in zip(rows.tolist(), numbers, strict=True)
            ]
            path = Column(f"files in '{named.name}'", cells)
            columns = [Column(one.name, take_strings(list(one.cells), rows)) for one in bare.columns]
            found = {cell: number for cell, number in zip(cells, numbers, strict=True) if number != NONE}
            twice = first_repeated([cell for cell in named.cells if cell in leads])
            several = twice and f"'{table.name}' has several rows for the folder '{twice}'. Write a path in each."
            made = Table(table.name, [path, *columns], bare.fault or several or "")
            return LeadingTable(made, path, found, has_header=bare is table, folders=named.name)
        return None

    def _is_part(self, column: Column, path: Column, leads: Mapping[str, int], folder: str) -> bool:
        """Tell whether a column names a further file of each sample, as of pairs: files that no path names, or any if
        paths recur. Where a table names both eyes of a patient in each row, each eye is the path of one."""
        if column is path or not column.are_files:
            return False
        found = self.lookup.search_each(column.distinct, folder)[0]
        its_leads = {cell: number for cell, number in found.items() if number != SEVERAL}
        rows = zip(path.cells, column.cells, strict=True)
        differs = any(two in its_leads and leads.get(one, NONE) not in (its_leads[two], SEVERAL) for one, two in rows)
        return differs and (len(path.distinct) < len(path) or not {*its_leads.values()} <= {*leads.values()})

    def _is_path_instead(self, column: Column, chosen: Column) -> bool:
        """Tell whether a column has file names while another leads to files only by stems: a count of 2 is no 2.png."""
        is_path = chosen.plain == words.PATHS[0]
        is_path = is_path or all(words.is_telling(cell) and not cell.isdecimal() for cell in chosen.distinct)
        if is_path:
            return False
        written = [cell for cell in column.distinct if cell.lower().endswith(self.kind.extensions)]
        # Addresses say where the files came from, and an id beside them what they are called here.
        elsewhere = chosen.plain in (*words.IDS, *words.PATHS) and all("://" in cell for cell in column.distinct)
        is_called = column.plain in words.PATHS and chosen.plain not in words.PATHS
        return not elsewhere and (is_called or 0 < len(column.distinct) <= 2 * len(written))

    def _choose_tables(self, notes: list[str]) -> list[LeadingTable]:
        """Return one table, or those of the splits; tables about other files are left out."""
        found = self.claiming
        # Parts of a table name other files each, and are beside each other and called alike up to numbers, or have one
        # name, as in the folder of each session.
        parts = {(posixpath.dirname(one.name), *words.letters_of(one.name), *sorted(one.table.header)) for one in found}
        alike = {(posixpath.basename(one.name), *sorted(one.table.header)) for one in found}
        if 1 in (len(parts), len(alike)) and len(_files_of(found)) == sum(len(one.files) for one in found):
            return found
        splits = sorted((one for one in found if one.split), key=lambda one: words.SPLIT_ORDER[one.split])
        names = {one.split for one in splits}
        most = max(found, key=lambda one: len(one.files))
        kept, may_leave = [most], len(found) == 1
        # One table for each split, one of them for training: the usual form of competitions. Another table about the
        # same files may have better labels; only tables about other files can be left out.
        if "train" in names and len(names) == len(splits):
            kept, stated = splits, _files_of(splits)
            may_leave = all(one.split or stated.isdisjoint(one.files) for one in found)
        # ChestX-ray14, for example, has labels for all images, and boxes for one in a hundred.
        elif any(map(words.is_label_name, most.table.header)):
            may_leave = all(one is most or FEW * len(one.files) <= len(most.files) for one in found)
        if not may_leave:
            return [_only_stating(found)]
        beside = f"beside those of {listed([one.name for one in kept])},"
        notes += self._left_out(found, kept, {one.name: f"of '{one.name}' {beside}" for one in found})
        return kept

    # --- what they state ----------------------------------------------------------------------------------------------

    def _state(self) -> Evidence:
        notes: list[str] = []
        # Faults of other tables do not matter.
        found = self._choose_tables(notes)
        for one in found:
            twice = first_repeated([name for name in one.table.header if name])
            fault = one.table.fault or (twice and f"'{one.name}' has two columns called '{show(twice)}'. Rename one.")
            if fault:
                raise LayoutError(fault)
        # The first table decides for all: test.csv may have too few rows to tell a class from a number. Four columns of
        # corners are boxes, unless the user named them as labels or the files are audio clips.
        is_bare = self.labels is None and self.kind.layout == TABLE.layout and not found[0].folders
        columns = found[0].columns
        objects = [*_object_columns(found[0].name, columns.values())] if is_bare else []
        shapes = _find_shape_columns(columns) if is_bare and not objects else None
        of_shapes = objects or ([] if shapes is None else shapes.labels)
        roles = find_roles(columns, labels=of_shapes) if of_shapes else self._roles(found, notes)
        # A number of each image numbers no objects.
        roles = roles._replace(number=None) if objects or (shapes and shapes.are_runs) else roles
        complete = self._complete(found, roles, notes)
        rows = self._rows_with_files(complete, roles)
        self._check_shift(rows)
        targets: Targets
        firsts, corners = [*range(len(rows.files))], tuple[str, ...]()
        if objects:
            targets, classes = self._objects(rows, objects, notes)
        elif shapes is not None:
            firsts, targets, classes = self._shapes(rows, shapes, notes)
            is_sized = isinstance(targets, Boxes) and targets.sizes is not None
            corners = (*shapes.names, *(shapes.sides(rows) if is_sized or shapes.are_runs else []))
        notes += self._notes(rows, roles, corners, _files_of(found).union(rows.files.tolist()))
        if not objects and shapes is None:
            targets, classes = self._targets(rows, roles, notes)
        if roles.number is not None:
            numbering = [one for one in complete if roles.number in one.columns]
            every = _Rows(rows.files, rows.splits, [(one, np.arange(len(one.path))) for one in numbering])
            numbered, note = in_order_of(every.column(roles.number), every.column(roles.labels[0]), classes)
            targets, classes = renumbered(targets, classes, numbered), tuple(numbered)
            notes.append(note)
        # Other tables of the same files may say which are held out.
        stated = _files_of(complete)
        used = [one.name for one in self.claiming if one in complete or stated.isdisjoint(one.files)]
        chosen = self.files.take(rows.files[np.array(firsts, np.int64)])
        who, splits = listed([one.name for one in found]), [rows.splits[row] for row in firsts]
        cells = () if roles.group is None else rows.column(roles.group).cells
        groups = kept_together([cells[row] for row in firsts if cells], targets)
        notes += note_on_groups(roles.group or "", groups, splits)
        return Evidence.of_images(
            self.source,
            self.kind.layout,
            chosen,
            targets,
            who,
            splits=splits,
            classes=classes,
            notes=notes,
            used=used,
            groups=groups,
        )

    def _shapes(
        self, rows: _Rows, columns: ShapeColumns, notes: list[str]
    ) -> tuple[list[int], Boxes | Masks, tuple[str, ...]]:
        """Return the first row of each image, which represents it, what all its rows draw, and their classes."""
        in_splits = dict.fromkeys(zip(rows.files.tolist(), rows.splits, strict=True))
        if (twice := first_repeated([self.files.names[number] for number, _ in in_splits])) is not None:
            msg = f"Rows of '{twice}' are in several splits. Take it out of all but one."
            raise LayoutError(msg)
        drawn, sides = ([rows.column(name) for name in names] for names in (columns.names, columns.sides(rows)))
        if columns.label:
            label = rows.column(columns.label)
        else:
            cells = zip(*(column.cells for column in drawn), strict=True)
            what, name = ("masks", "foreground") if columns.are_runs else ("boxes", "object")
            label = Column("class", [name if any(row) else "" for row in cells])
            notes.append(f"No column has the class of the {what}: all are of one, '{name}'.")
        _, firsts, of_file = np.unique(rows.files, return_index=True, return_inverse=True)
        of_file = firsts[of_file.reshape(-1)]
        sizes = np.stack([column.numbers() for column in sides], axis=1) if sides else np.zeros((len(of_file), 2))
        is_one = np.array_equal(sizes, sizes[of_file]) and np.all(sizes >= 1)
        stated = sizes.astype(np.int64) if is_one else None
        shapes = _Shapes(columns, drawn, label, of_file, np.sort(firsts).tolist(), stated)
        files = TreeFiles(self.source.tree, self.files.take(rows.files))
        return (_masks_of_rows if columns.are_runs else _boxes_of_rows)(shapes, files, notes)

    def _roles(self, found: list[LeadingTable], notes: list[str]) -> ColumnRoles:
        """Return the roles of a table's columns; of several labels, the one in a competition's sample submission."""
        columns, stems = found[0].columns, words.stems_of(found[0].path.cells)
        # Columns in a competition's test.csv are known for images that must be labelled: age, sex.
        inputs = {name for table in found[1:] if columns.keys() - table.columns.keys() for name in table.columns}
        folders = found[0].folders
        # A number that files are called after, such as their time, is another name of them.
        inputs |= {name for name, one in columns.items() if one.is_numeric and words.are_numbered(stems, one.cells)}
        inputs.add(folders)
        try:
            roles = find_roles(columns, labels=self.labels, inputs=inputs)
            # What is in one folder belongs together, unless each is a class.
            is_group = folders not in ("", roles.split) and not same_partition(
                columns[folders].cells, columns[roles.labels[0]].cells
            )
            return roles._replace(group=roles.group or folders) if is_group else roles
        except LayoutError as error:
            # Folders of images are weighed beside the table.
            if self.labels is None and self.kind.layout != TABLE.layout:
                folders_of = {name: words.folder_of(name) for name in self.files.names}
                rows = rows_in_classes(found[:1], self.files.names, folders_of, self.lookup)
                for same in columns_of_classes(*rows, has_header=found[0].has_header)[:1]:
                    notes.append(f"'{same.name}' says what the folders do, so that is the label.")
                    return find_roles(columns, labels=[same.name])
            for entry in self.source.ending_in(words.TABLES).where(words.is_submission) if self.labels is None else ():
                first = self.source.head(entry, BEGINNING_BYTES).decode("utf-8-sig", "replace").partition("\n")[0]
                asked = [name for name in first.strip().replace('"', "").split(",") if name in columns]
                if len(asked) == 1:
                    notes.append(f"'{entry.name}' asks for '{asked[0]}', so that is the label.")
                    return find_roles(columns, labels=asked)
            if not any(one.are_texts for one in columns.values()):
                raise
            alone = self.source.only(self.files.names, [one.name for one in found])
            way = 'layout="images"' if self.kind.layout == TABLE.layout else f'{alone}, layout="{self.kind.layout}"'
            without = f"{way} takes {self.kind.noun} without them; "
            msg = f"{error} Texts are not read: {without}a dataset object whose items are (x, tokens) has both."
            raise LayoutError(msg) from error

    def _complete(self, found: list[LeadingTable], roles: ColumnRoles, notes: list[str]) -> list[LeadingTable]:
        """Return the tables that have all columns in use: a competition's test.csv has no labels, and rows with and
        without them could not be in one array of targets."""
        needed = {found[0].path.name, *roles.labels, *filter(None, (roles.group, roles.split))}
        # A test whose labels are secret may have a column for them.
        filled = {one.name: {own.name for own in one.table.columns if any(own.distinct)} for one in found}
        lacks = {one.name: listed(sorted(needed - filled[one.name])) for one in found}
        kept = [one for one in found if one is found[0] or not lacks[one.name]]
        which = {name: f"of '{name}', which has no {lack}," for name, lack in lacks.items()}
        notes += self._left_out(found, kept, which)
        return kept

    def _left_out(self, found: list[LeadingTable], kept: list[LeadingTable], which: Mapping[str, str]) -> list[str]:
        """Return notes on the files that only other tables name than those that are kept."""
        stated = _files_of(kept)
        rest = [(one.name, len(stated.union(one.files)) - len(stated)) for one in found if one not in kept]
        return left_out_notes(*((count, self.kind.noun, which[name]) for name, count in rest))

    def _rows_with_files(self, found: list[LeadingTable], roles: ColumnRoles) -> _Rows:
        files, splits, places = [np.zeros(0, np.int64)], list[str](), []
        named = {one.name: one.files for one in found}
        held_out = held_out_of_others(self.lookup, {one.name: one.split for one in found}, named)
        for table in found:
            folder, cells = posixpath.dirname(table.name), table.path.cells
            split = None if roles.split is None else table.columns[roles.split]
            own = [table.split if len(found) > 1 else ""] * len(cells)
            if split is not None:
                known = {cell: split_of_cell(split.name, cell) for cell in split.distinct}
                own = [known[cell] for cell in split.cells]
            leads = np.fromiter(map(table.leads.get, cells, itertools.repeat(NONE)), np.int64, len(cells))
            # `0001.jpg` often is in the folders of several splits; the row's own split says which one is meant, and
            # counts wherever its file lies: fast.ai holds rows of one folder out, others by tables.
            for row in np.flatnonzero(leads != NONE).tolist() if self.lookup.splits else ():
                if stated := own[row] or table.split:
                    of_split = self.lookup.find(cells[row], folder, split=stated)
                    stays = of_split == NONE and (split is not None or table.name in held_out)
                    leads[row] = leads[row] if stays else of_split
            if SEVERAL in leads:
                row = int(np.argmax(leads == SEVERAL))
                there = self.lookup.search(cells[row], folder, split=own[row] or table.split)
                names = listed([self.files.names[number] for number in there])
                msg = f"'{show(cells[row])}' in '{table.name}' may be {names}. Write the folder before the name."
                raise LayoutError(msg)
            rows = np.flatnonzero(leads >= 0)
            files.append(leads[rows])
            splits += take_strings(own, rows)
            places.append((table, rows))
        if not any(map(len, files)):
            one = found[0]
            msg = f"By its name '{one.name}' is of another split than '{self.files.names[min(one.files)]}'. Rename one."
            raise LayoutError(msg)
        return _Rows(np.concatenate(files), splits, places)

    def _check_shift(self, rows: _Rows) -> None:
        """Refuse rows that lead to files by numbers that are shifted: 0 to 9 beside 1.jpg to 10.jpg."""
        cells = set[str]().union(*(table.path.distinct for table, _ in rows.places))
        reached = len({*rows.files.tolist()})
        if reached in (len(cells), len(self.files)) or len(cells) != len(self.files):
            return
        stems = [map(words.stem_of, texts) for texts in (cells, self.files.names)]
        found = [[*map(words.NUMBERED.fullmatch, own)] for own in stems]
        stated, called = ({(one[1], int(one[2])) for one in matches if one is not None} for matches in found)
        least, first = (min((number for _, number in one), default=0) for one in (stated, called))
        if len(stated) == len(cells) and {(word, number + first - least) for word, number in stated} == called:
            msg = (
                f"The rows count from {least} and the {self.kind.noun} from {first}. Write paths as files are called, "
                "or take out the rows without a file and the files without a row."
            )
            raise LayoutError(msg)

    def _targets(self, rows: _Rows, roles: ColumnRoles, notes: list[str]) -> tuple[Values, tuple[str, ...]]:
        columns = [rows.column(name) for name in roles.labels]
        names, label = self.files.names, columns[0]
        # A column called "class" has one, although its name may contain a space or a comma.
        separator = "" if self.separator is None and roles.number is not None else self.separator
        targets, classes = make_targets(columns, separator=separator, sample=lambda row: names[rows.files[row]])
        _, firsts, of_rows = np.unique(rows.files, return_index=True, return_inverse=True)
        of_rows = firsts[of_rows.reshape(-1)]
        again = [(int(of_rows[row]), row) for row in np.flatnonzero(of_rows != np.arange(len(of_rows))).tolist()]
        differ = [(one, row) for one, row in again if any(column.cells[row] != column.cells[one] for column in columns)]
        # Several people may have labelled one image; if the user names a column, that is meant.
        if differ and classes and targets.values.ndim == 1 and self.labels is None:
            one, two = (show(label.cells[row]) for row in differ[0])
            msg = (
                f"Two rows name '{names[rows.files[differ[0][1]]]}', one with the label '{one}' and one with '{two}'. "
                f"Take the wrong one out. If an image has several labels, write them in one row: {one}|{two}; "
                f"layout=table_rows(labels=['{label.name}']), from colabstage.options, makes a sample of each row."
            )
            raise LayoutError(msg)
        if again:
            other = f"; {counted(len(differ), 'rows', 'have')} other labels" if differ else ""
            which = "a file that another row names as well; each row is a sample"
            notes.append(f"{format_count(len(again), 'rows')} {'names' if len(again) == 1 else 'name'} {which}{other}.")
        notes += notes_on_targets(columns, targets, classes)
        return targets, classes

    def _objects(self, rows: _Rows, columns: list[str], notes: list[str]) -> tuple[Targets, tuple[str, ...]]:
        """Return the boxes in columns of JSON, whose rows are about an image each."""
        files = self.files.take(rows.files)
        if (twice := first_repeated(files.names)) is not None:
            msg = f"Two rows name '{twice}'. Write the objects of each image in one row."
            raise LayoutError(msg)
        values = objects_of(_object_columns("", map(rows.column, columns)), columns)
        sizes = partial(size_in_file, TreeFiles(self.source.tree, files))
        labels = boxes_of_records(values, files.names, sizes, lambda _: ())
        assert labels.targets is not None
        notes += labels.notes
        return labels.targets, labels.classes

    def _notes(self, rows: _Rows, roles: ColumnRoles, corners: tuple[str, ...], named: set[int]) -> list[str]:
        """Return notes on what is used; `named`: the files in the rows of these tables and of those left out."""
        first = rows.places[0][0]
        used = {first.path.name, first.folders or None, *roles.labels, *roles[1:], *corners}
        # Merged cells of a header leave columns without a name that number no rows.
        others = (one for one in first.table.columns if one.name not in used)
        unread = [one.name for one in others if not words.is_index_name(one.name) or 1 < len(one.distinct) < len(one)]
        names, labels = listed([table.name for table, _ in rows.places]), listed(list(roles.labels))
        # Published tables often name a few files that were never published; without a note a broken download would be
        # hidden.
        places = [(table.path.cells, np.delete(np.arange(len(table.path)), own)) for table, own in rows.places]
        lost = [cells[row] for cells, others in places for row in others.tolist()]
        which_rows = f"the rows of {names}; paths are in '{first.path.name}'"
        if first.folders:
            which_rows = f"the {self.kind.noun} in the folders that {names} names in '{first.folders}'"
        notes = (
            f"Samples are {which_rows}, labels in {labels}.",
            f"Splits are as '{roles.split}' says." if roles.split else "",
            f"Not used: the column{'s' if len(unread) > 1 else ''} {listed(unread)}." if unread else "",
        )
        rest = [name for number, name in enumerate(self.files.names) if number not in named]
        parts = (lost, "rows", f"whose {self.kind.noun} are not there"), (rest, self.kind.noun, "that no row names")
        return [*filter(None, notes), *left_out_notes(*parts)]


def _taken_apart(table: Table) -> Table:
    """Return a table with two columns for one that is called after a path and a label, and has both in each cell:
    ImageId_ClassId, with a.jpg_1."""
    for place, column in enumerate(table.columns):
        path, mark, label = column.name.rpartition("_")
        called = ["_".join(words.words_of(name)) for name in (path, label)]
        if not mark or called[0] not in words.PATHS or not words.is_label_name(called[1]):
            continue
        parts = [cell.rpartition("_") for cell in column.cells]
        if parts and all(words.is_image(name) and own for name, _, own in parts):
            made = [Column(path, [name for name, _, _ in parts]), Column(label, [own for *_, own in parts])]
            return replace(table, columns=[*table.columns[:place], *made, *table.columns[place + 1 :]])
    return table


def _files_of(tables: Sequence[LeadingTable]) -> set[int]:
    return set[int]().union(*(one.files for one in tables))


def _only_stating(tables: Sequence[LeadingTable]) -> LeadingTable:
    """Return the one of several tables that may state labels; refuse several."""
    stating = [one for one in tables if one.has_labels] or tables
    # Without endings, numbers of classes are the names of files by chance.
    stating = [one for one in stating if 2 * sum(map(words.is_sample, one.leads)) > len(one.leads)] or stating
    if len(stating) > 1:
        shown = max(stating, key=lambda one: len(one.files)).name
        msg = (
            f"Several tables do ({listed([one.name for one in tables])}), and not as splits. Say which: "
            f"layout=table_rows(table={shown!r}), from colabstage.options."
        )
        raise LayoutError(msg)
    return stating[0]


def rows_in_classes(
    tables: Sequence[LeadingTable], names: Sequence[str], class_of: Mapping[str, Any], lookup: Lookup
) -> tuple[list[Any], list[Column]]:
    """Return the class of each row of tables of one form whose file has one, and their columns beside the paths."""
    classes, rows = list[Any](), list[list[str]]()
    for table in tables:
        beside = [column.cells for column in table.columns.values()]
        for path, *cells in zip(table.path.cells, *beside, strict=True):
            number = table.leads.get(path, NONE)
            if number == SEVERAL:
                number = lookup.find(path, posixpath.dirname(table.name), split=table.split)
            if number >= 0 and names[number] in class_of:
                classes.append(class_of[names[number]])
                rows.append(cells)
    return classes, [Column(name, [cells[place] for cells in rows]) for place, name in enumerate(tables[0].columns)]


def columns_of_classes(classes: Sequence[Any], columns: Sequence[Column], *, has_header: bool) -> list[Column]:
    """Return the columns beside paths that have one word for each class of their files, and may be the label."""
    agree = [one for one in columns if len(set(classes)) > 1 and same_partition(classes, one.cells)]
    # Patients' folders agree with the patients' numbers, and the label is another column. Without a header no column is
    # named like a label; but if all other columns are numbers (corners, sizes), the one that agrees is.
    if has_header and len(columns) > 1:
        return [column for column in agree if not words.LABEL_WORDS.isdisjoint(words.words_of(column.name))]
    return agree if all(column.is_numeric for column in columns if column not in agree) else []


# --- columns that are boxes -------------------------------------------------------------------------------------------


def _object_columns(where: str, columns: Iterable[Column]) -> dict[str, list[Any]]:
    """Return the values of the columns that hold objects, or a part of them each, as JSON."""
    nested = [one for one in columns if one.filled and all(cell[0] in "[{" for cell in one.filled)]
    try:
        values = {one.name: [json.loads(cell or "null") for cell in one.cells] for one in nested}
    except (ValueError, RecursionError):
        return {}
    examples = {name: next(filter(None, own), None) for name, own in values.items()}
    return {name: values[name] for name in box_fields(where, examples)}


# Words for the sides of a box, once every other word of a column's name is removed; and those other words.
_SIDE_WORDS = (
    "x0 xmin minx left xtl startx colmin topleftx",
    "y0 ymin miny top ytl starty rowmin toplefty",
    "x2 xmax maxx right xbr endx colmax bottomrightx",
    "y2 ymax maxy bottom ybr endy rowmax bottomrighty",
)
_SIDES = {word: side for side, found in enumerate(_SIDE_WORDS) for word in found.split()}
# x1 and y1 are the first corner beside x2 and y2, and the second beside x0 and y0.
_FIRST = {"x1": 0, "y1": 1}
_AROUND = re.compile(r"^(bbox|box|roi|rect|face|object|obj|bounding_box)_?|_?(bbox|box|roi)$|_corner")
# Landmarks have one such column for each coordinate of each point.
_POINT = re.compile(r"[xy]_?\d+")
_OTHER_FORMS = re.compile(
    r"(b?boxe?s?(string)?|bounding_box(es)?|predictionstring|objects|region_shape_attributes|bbox_\[.*|coordinates|coords|roi|rect)"
)
# Columns of a place beside a width and a height, and what they mean by their names.
_CORNERS: dict[tuple[str, str], tuple[BoxForm, ...]] = {
    ("x", "y"): ("xywh", "cxcywh"),
    **dict.fromkeys((("x1", "y1"), ("xmin", "ymin"), ("left", "top")), ("xywh",)),
    **dict.fromkeys((("xcenter", "ycenter"), ("cx", "cy")), ("cxcywh",)),
}
_EXPECTED = "xmin, ymin, xmax, ymax and class, one box in each row"
# The words of a cell that may name several classes.
_CLASSES = re.compile(r"[^\s,;|\[\]()]+")
# Run-length encoded masks, as in competitions.
_RUNS = ("encodedpixels", "encoded_pixels", "rle", "rle_mask", "mask_rle")
_MAY_BE_RUNS = re.compile("rle|runs|mask|seg|encod|annotation|pixels")
_BOX_LABELS = ("labelname", "name", "cell_type", "annotation_tag")
_MOSTLY_INSIDE = 0.9


class ShapeColumns(NamedTuple):
    """The columns that hold boxes, or masks as run lengths."""

    names: tuple[str, ...]
    """Four of numbers, or one whose cells hold them, or of runs."""
    label: str
    """The column of the class; "" if nothing else is in the table, so that there is one class."""
    forms: tuple[BoxForm, ...] = ()
    """What the four numbers may mean by their names; empty if anything."""
    are_runs: bool = False

    @property
    def labels(self) -> list[str]:
        return [*filter(None, (*self.names, self.label))] if self.are_runs or not self.label else [self.label]

    @property
    def instead(self) -> str:
        """Return what takes numbers and words as they are, or the images alone."""
        labels = [self.label] if self.label else [*self.names] if len(self.names) > 1 else []
        how = f"layout=table_rows(labels={labels!r}), from colabstage.options, takes numbers and words as they are"
        return how if labels else 'layout="images" takes the images without labels'

    def sides(self, rows: _Rows) -> list[str]:
        """Return the columns of height and width of the image, if all tables have them."""
        every = [one.columns for one, _ in rows.places]
        sides = sides_of_images(name for name, one in every[0].items() if one.is_numeric and name not in self.names)[:2]
        return sides if all(one.keys() >= {*sides} for one in every) else []


def _find_shape_columns(columns: Mapping[str, Column]) -> ShapeColumns | None:
    """Return the columns of a table that are boxes, or masks; `None` if there are none. Others are an error."""
    names, forms = _box_columns(columns)
    runs = [name for name, one in columns.items() if one.plain in _RUNS or _are_runs(one)][:1]
    cells = [name for name, one in columns.items() if _OTHER_FORMS.fullmatch(one.plain) or _holds_boxes(one)]
    named = [one for one in columns.values() if words.is_label_name(one.name) or one.plain in _BOX_LABELS]
    # In words, where another one says the same.
    label = next((one.name for one in sorted(named, key=lambda one: one.is_numeric)), None)
    # x1 to x5 without y are measurements.
    points = [name for name, one in columns.items() if _POINT.fullmatch(one.plain)] if len(names) == 4 else []
    points = points if len(points) > 4 else []
    if points and label is None:
        return None
    known = {*names, *sides_of_images(columns)}
    others = [name for name, one in columns.items() if name not in known and one.plain not in words.SPLIT_COLUMNS]
    others = [name for name in others if not words.is_index_name(name)]
    label = "" if label is None and (runs or not others) else label
    found = ShapeColumns(tuple(runs) or names, label or "", forms, bool(runs))
    also = [one for one in named if words.is_label_name(one.name)] if found.names else []
    unread: dict[str, Sequence[str]] = {
        "no masks as run lengths": [name for name in runs if not columns[name].are_all(RUNS)],
        "more points than the corners of a box": [] if runs else points,
        f"boxes, and no column 'class' (take out {listed(others)} if all are of one)": names if label is None else (),
        "boxes in another form": [] if names or runs else cells,
        "several classes for each": [one.name for one in also if not same_partition(one.cells, also[0].cells)],
    }
    for what, odd in unread.items():
        if odd:
            msg = (
                f"It has {what}: {listed(odd, 6)}. Expected columns {_EXPECTED}; or each mask as a PNG in a folder "
                f"'masks'. Otherwise {found.instead}."
            )
            raise LayoutError(msg)
    return found if found.names else None


def _box_columns(columns: Mapping[str, Column]) -> tuple[tuple[str, ...], tuple[BoxForm, ...]]:
    """Return the columns that hold the numbers of boxes, and what these may mean by their names: a column for each, or
    one whose cells hold four or several fours. Nothing if there are none."""
    sides: dict[int, str] = {}
    firsts: dict[int, str] = {}
    bare = {_bare(column.plain): name for name, column in reversed([*columns.items()])}
    for plain, name in bare.items():
        if plain in _SIDES:
            sides.setdefault(_SIDES[plain], name)
        elif plain in _FIRST:
            firsts[_FIRST[plain]] = name
    for axis, name in firsts.items():
        sides.setdefault(axis + 2 if axis in sides else axis, name)
    if len(sides) == 4:
        return tuple(sides[side] for side in range(4)), ("xyxy",)
    for corner, forms in _CORNERS.items():
        for wanted in ((*corner, "w", "h"), (*corner, "width", "height")):
            if bare.keys() >= {*wanted}:
                return tuple(bare[word] for word in wanted), forms
    cells = [*filter(_holds_boxes, columns.values())]
    stated = [form for form in get_args(BoxForm) for one in cells if form in one.plain]
    return ((cells[0].name,), tuple(stated)) if len(cells) == 1 else ((), ())


def _holds_boxes(column: Column) -> bool:
    """Tell whether a column that may be called so holds boxes in all cells that are not empty, and some."""
    may_be = "box" in column.plain or _OTHER_FORMS.fullmatch(column.plain)
    each = [*map(boxes_of_cell, column.filled if may_be else ())]
    return any(each) and None not in each


def _bare(plain: str) -> str:
    return _AROUND.sub("", plain).replace("_", "").replace("upper", "top").replace("lower", "bottom")


def _are_runs(column: Column) -> bool:
    """Tell whether cells are run-length encoded masks, in a column that may be called so: in each the runs ascend, and
    somewhere there are more numbers than the four of a box."""
    if not _MAY_BE_RUNS.search(column.plain) or not column.are_all(RUNS):
        return False
    with suppress(ValueError):
        return max(len(parse_runs(cell)) for cell in column.filled) > 2
    return False


class _Shapes(NamedTuple):
    """What N rows draw."""

    columns: ShapeColumns
    drawn: Sequence[Column]
    label: Column
    of_file: NDArray[np.intp]
    """The first row of the file of each."""
    starts: list[int]
    """The first row of each file."""
    sizes: NDArray[np.int64] | None
    """Height and width of each row's image, `(N, 2)`, if columns state them."""

    def classes(self, rows: Iterable[int]) -> tuple[str, ...]:
        """Return the classes that some rows have, numbers by their value."""
        found = {self.label.cells[row] for row in rows}
        numbered = {word: int(word) for word in found if word.isascii() and word.isdecimal() and len(word) < 40}
        return tuple(sorted(found, key=lambda word: (word not in numbered, numbered.get(word, 0), word)))

    def bare(self, filled: Iterable[int], what: str, notes: list[str]) -> list[str]:
        """Return the classes that none of the rows that draw something has, with a note; none if no row does."""
        drawn = {self.label.cells[row] for row in filled}
        bare = sorted({*self.label.cells} - drawn - {""}) if drawn else []
        if bare:
            rows = f"No row with the class {listed(bare)} has a {what}"
            notes.append(f"{rows}: such rows say that their images have none.")
        return bare

    def refuse(self, files: SampleSource, row: int, expected: str) -> NoReturn:
        """Refuse what a row draws."""
        written = ", ".join(show(column.cells[row]) or "nothing" for column in self.drawn)
        what = "mask" if self.columns.are_runs else "box"
        which = f"A {what} of '{files.name(row)}' is {written} with the class '{show(self.label.cells[row])}'"
        cells = listed([*self.columns.names, *filter(None, [self.columns.label])])
        how = f"In the row of an image without a {what} leave {cells} empty; {self.columns.instead}"
        msg = f"{which}; expected {expected}. {how}."
        raise LayoutError(msg)


def _masks_of_rows(shapes: _Shapes, files: TreeFiles, notes: list[str]) -> tuple[list[int], Masks, tuple[str, ...]]:
    """Return the first row of every file, in order, its mask, and the classes of its pixels; the rows of a file are
    parts of one mask."""
    cells, label = shapes.drawn[0].cells, shapes.label.cells
    filled = [row for row, cell in enumerate(cells) if cell]
    shapes.bare(filled, "mask", notes)
    # A class may be the background itself.
    classes, starts = tuple(dict.fromkeys(("background", *shapes.classes(filled)))), shapes.starts
    if not 1 < len(classes) <= VOID:
        msg = (
            f"The masks have {len(classes) - 1} classes; expected 1 to {VOID - 1}. Otherwise {shapes.columns.instead}."
        )
        raise LayoutError(msg)
    number_of = {name: number for number, name in enumerate(classes)}
    of_start: dict[int, list[NDArray[np.int64]]] = {row: [] for row in starts}
    for row in filled:
        try:
            runs = parse_runs(cells[row])
        except ValueError as error:
            shapes.refuse(files, row, f"runs that follow each other: {error}")
        if not label[row]:
            shapes.refuse(files, row, "a class")
        of_start[shapes.of_file.item(row)].append(np.insert(runs, 2, number_of[label[row]], axis=1))
    every = [np.concatenate([np.zeros((0, 3), np.int64), *of_start[row]]) for row in starts]
    for row, runs in zip(starts, every, strict=True):
        # Of several classes, each run ends before one of another begins.
        ordered = runs[np.argsort(runs[:, 0], kind="stable")]
        ends = np.maximum.accumulate(ordered[:, 1])[:-1]
        if len({*runs[:, 2].tolist()}) > 1 and ((ordered[1:, 0] < ends) & (ordered[1:, 2] != ordered[:-1, 2])).any():
            msg = (
                f"Pixels of '{files.name(row)}' are of several classes of '{shapes.label.name}'. Keep the rows of one."
            )
            raise LayoutError(msg)
    images = TreeFiles(files.tree, files.entries.take(np.array(starts)))
    masks, note = masks_of_runs(images, every, None if shapes.sizes is None else shapes.sizes[starts])
    are_several = any(len(own) > 1 for own in of_start.values())
    notes += [note, "The rows of an image are one mask, which does not tell its objects apart."][: 1 + are_several]
    return starts, masks, classes


def _boxes_of_rows(shapes: _Shapes, files: TreeFiles, notes: list[str]) -> tuple[list[int], Boxes, tuple[str, ...]]:
    """Return the first row of every file, in order, the boxes of each, in the order of its rows, and their classes; a
    row with empty cells means that its file has none, and so does one without numbers whose class has no box anywhere.

    Numbers are pixels, or fractions of width and height if none is 2 or more and some are not integers.
    """
    drawn, cells = shapes.drawn, list(shapes.label.cells)
    rows, places = np.arange(len(cells)), np.stack([column.numbers() for column in drawn], axis=1)
    if len(drawn) == 1:
        each = [boxes_of_cell(cell) or [[math.nan] * 4] for cell in drawn[0].cells]
        rows, places = np.repeat(rows, [*map(len, each)]), np.array([*itertools.chain.from_iterable(each)])
        several = [row for row, own in enumerate(each) if len(own) > 1]
        if several and all(len(_CLASSES.findall(cells[row])) == len(each[row]) for row in several):
            shapes.refuse(files, several[0], "one class: write each box, with its class, in a row of its own")
    fine = np.array(np.isfinite(places).all(axis=1))
    filled = fine
    if len(drawn) > 1:
        each_row = zip(*(one.cells for one in drawn), strict=True)
        filled = np.array([any(cell.lower() not in MISSING for cell in row) for row in each_row], np.bool_)
    bare = shapes.bare(rows[filled].tolist(), "box", notes)
    filled = filled | np.array([cells[row] not in ("", *bare) for row in rows.tolist()], np.bool_)
    is_odd = filled & ~(fine & np.array([bool(cells[row]) for row in rows.tolist()], np.bool_))
    for odd in rows[is_odd][:1].tolist():
        shapes.refuse(files, odd, "four numbers and a class")
    # Files in the order of their first rows, and the rows of each in theirs.
    of_file, starts, sizes = shapes.of_file[rows], shapes.starts, shapes.sizes
    kept = np.flatnonzero(filled)
    kept = kept[np.argsort(of_file[kept], kind="stable")]
    offsets = np.concatenate([[0], np.searchsorted(of_file[kept], starts, side="right")]).astype(np.int64)
    rows = rows[kept]

    def size_of(number: int) -> tuple[int, int] | None:
        row = starts[number]
        return size_in_file(files, row) if sizes is None else (sizes.item(row, 0), sizes.item(row, 1))

    written = ObjectRows([files.name(row) for row in starts], offsets, places[kept], [], [], {})
    called = f"; or '{drawn[0].name}' called after its form, such as bbox_xywh" if len(drawn) == 1 else ""
    expected = f"columns {_EXPECTED}{called}. Otherwise {shapes.columns.instead}"
    found = written.form(size_of, shapes.columns.forms, expected=expected)
    corners = np.ascontiguousarray(written.corners(found.form, otherwise=shapes.columns.instead))
    if len(shapes.columns.forms) != 1 or found.form != "xyxy":
        notes.append(f"{found}.")
    classes = shapes.classes(rows.tolist())
    index = {word: number for number, word in enumerate(classes)}
    labels = np.array([index[cells[row]] for row in rows.tolist()], np.int64)
    if sizes is not None:
        # They may be those of the boxes.
        of_boxes = np.array_equal(corners[:, [3, 2]] - corners[:, [1, 0]], sizes[rows])
        are_inside = (corners[:, [3, 2]] <= sizes[rows]).all(axis=1).mean() > _MOSTLY_INSIDE
        sizes = sizes[starts] if are_inside and not of_boxes else None
    return starts, Boxes(offsets, corners, {"labels": labels}, found.relative, sizes), classes
