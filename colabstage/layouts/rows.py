"""Rows of tables that name files: CSV, TSV, parquet, lines of JSON.

Columns are recognised by their content: paths are those that lead to files, a split column contains only names of
splits, and labels are recognised by their name, or are the only column left. A table that leads to files claims them:
any fault in it from there on is an error, and never a reason to use weaker evidence.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.io.units import left_out, listed
from colabstage.layouts.boxes import boxes_of_rows, find_box_columns
from colabstage.layouts.columns import (
    Column,
    find_roles,
    make_targets,
    notes_on_targets,
    same_partition,
    show,
    split_of_cell,
)
from colabstage.layouts.evidence import IMAGE_FOLDER, Evidence, Found, left_out_notes, near
from colabstage.layouts.formats.tables import parse_table
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, Images, SampleTable, known_splits
from colabstage.layouts.words import (
    IDS,
    LABEL_WORDS,
    PATHS,
    SPLIT_ORDER,
    TABLES,
    is_index_name,
    is_label_name,
    is_submission,
    plain_name,
    split_name,
    split_of_path,
    stem_of,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from colabstage.layouts.boxes import BoxColumns
    from colabstage.layouts.columns import ColumnRoles
    from colabstage.layouts.evidence import FileKind
    from colabstage.layouts.formats.tables import Table
    from colabstage.layouts.lookup import Lookup
    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import Targets
    from colabstage.trees.listing import FileEntries

TABLE = IMAGE_FOLDER._replace(layout="table")
# A path, a label and a split explain themselves; with more unnamed columns it is unclear which is the label.
_PLAIN_COLUMNS = 3
# Enough for the column names of a wide table.
_HEADER_BYTES = 64 * 1024
# A table that names fewer files than another by this factor does not compete with it.
_FEW = 10


@dataclass(slots=True)
class LeadingTable:
    """One table whose paths lead to files."""

    table: Table
    path: Column
    leads: dict[str, Sequence[int]]
    """The numbers of the files that each cell of that column may mean, if any."""
    has_header: bool

    @property
    def name(self) -> str:
        """Return the table's name."""
        return self.table.name

    @property
    def files(self) -> set[int]:
        """Return the numbers of the files."""
        return {number for numbers in self.leads.values() for number in numbers}

    @property
    def split(self) -> str:
        """Return the split in the table's name or path: train.csv, labels_train.csv, valid/_classes.csv."""
        return split_name(stem_of(self.name)).split or split_of_path(self.name)

    @property
    def columns(self) -> dict[str, Column]:
        """Return the columns by name, except the path."""
        return {column.name: column for column in self.table.columns if column is not self.path}


class _Rows(NamedTuple):
    """The rows of some tables whose files exist."""

    files: list[int]
    places: list[tuple[LeadingTable, list[int]]]
    """Of each table, which of its rows these are."""
    splits: list[str]
    """The split in the row or in its table's name; "" for none."""

    def column(self, name: str) -> Column:
        """Return the cells of a column in these rows."""
        parts = [(table.columns[name], rows) for table, rows in self.places]
        # Of one whole table it is the table's own, with what is known of it.
        if len(parts) == 1 and len(parts[0][1]) == len(parts[0][0]):
            return parts[0][0]
        return Column(name, [column.cells[row] for column, rows in parts for row in rows])


class TableSearch:
    """Search the tables of a source for those that describe its files of one kind.

    Several tables named after splits (train.csv, test.csv) are the splits; one of them without labels, and sample
    submissions of competitions, are left out. Columns xmin, ymin, xmax, ymax are boxes in pixels, one in each row.
    Samples come in the table's order.

    Args:
        source: the files.
        kind: which of them are samples.
        files, lookup: those, and their names.
        labels: the columns that hold the labels; found by name and content where `None`.
        table: the table that counts, where there are several.
        separator: what is between several labels in one cell; "" where each cell is one label.
    """

    def __init__(
        self,
        source: Source,
        kind: FileKind,
        files: FileEntries,
        lookup: Lookup,
        *,
        labels: Sequence[str] | None = None,
        table: str | None = None,
        separator: str | None = None,
    ) -> None:
        self.source = source
        self.kind = kind
        self.files = files
        self.lookup = lookup
        self.labels = labels
        self.table = table
        self.separator = separator

    def state(self) -> Found:
        """Return what the tables state of the files."""
        if not self.files:
            msg = f"'{self.source.label}' holds no {self.kind.noun}."
            raise EmptySourceError(msg)
        # Whether a table leads to files is asked before its labels: other layouts may have a table of something else
        # beside their files.
        found = self.leading()
        if isinstance(found, str):
            return near(found)
        # From here on a table has claimed the files, so nothing weaker counts.
        try:
            return self._state(found)
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            msg = f"'{found[0].name}' leads to the {self.kind.noun} of '{self.source.label}'. {error}"
            raise BrokenDatasetError(msg) from error

    def _state(self, found: list[LeadingTable]) -> Evidence:
        every = frozenset(table.name for table in found)
        notes: list[str] = []
        # Faults of other tables do not matter.
        found = self._that_count(found, notes)
        for table in found:
            if table.table.fault:
                raise LayoutError(table.table.fault)
            seen: set[str] = set()
            for name in filter(None, table.table.header):
                if name in seen:
                    msg = f"'{table.name}' has two columns called '{show(name)}'. Give them different names."
                    raise LayoutError(msg)
                seen.add(name)
        first = found[0]
        # The first table determines the roles for all: test.csv may have too few rows to distinguish a class from a
        # number.
        columns = first.columns
        # Four columns of corners are boxes, unless the user named them as labels or the files are audio clips.
        boxes = find_box_columns(columns) if self.labels is None and self.kind.layout == TABLE.layout else None
        roles = find_roles(columns, labels=[boxes.label]) if boxes is not None else self._roles(found, notes)
        found = self._labelled(found, roles, notes)
        rows = self._rows_with_files(found, roles)
        notes += self._notes(found, rows, roles, () if boxes is None else boxes.corners)
        firsts, targets, classes = self._targets(rows, roles, boxes, notes)
        chosen = self.files.take(np.array([rows.files[row] for row in firsts], np.int64))
        splits = [rows.splits[row] for row in firsts]
        # One table for folders of splits, as Hugging Face's ImageFolder has it.
        by_folder = _splits_by_folder(chosen) if not any(splits) and not first.split else []
        if by_folder and all(by_folder) and len(set(by_folder)) > 1:
            splits = by_folder
            notes.append(f"Splits are the folders that the {self.kind.noun} are in: {listed(sorted(set(splits)))}.")
        groups = None if roles.group is None else rows.column(roles.group).cells
        made = SampleTable(
            layout=self.kind.layout,
            keys=_numbered_apart(chosen.names),
            inputs=Images(TreeFiles(self.source.tree, chosen)),
            targets=targets,
            # All or none, because a sample without a split among others with one would be in no file.
            splits=known_splits(splits),
            groups=None if groups is None else tuple(groups[row] for row in firsts),
            classes=classes,
            notes=tuple(notes),
        )
        return Evidence(made, listed([one.name for one in found]), every, every)

    def _targets(
        self, rows: _Rows, roles: ColumnRoles, boxes: BoxColumns | None, notes: list[str]
    ) -> tuple[Sequence[int], Targets, tuple[str, ...]]:
        """Return which rows are samples, and their targets and classes."""
        if boxes is not None:
            corners = [rows.column(name) for name in boxes.corners]
            # A row is a box here, and a sample is an image: the first row of each stands for it.
            placed = boxes_of_rows(rows.files, corners, rows.column(boxes.label), self.files.names)
            return placed.firsts, placed.boxes, placed.classes
        columns = [rows.column(name) for name in roles.labels]
        # A column called "class" has one, although its name may contain a space or a comma.
        separator = "" if self.separator is None and roles.is_one_class else self.separator
        names = self.files.names
        targets, classes = make_targets(columns, separator=separator, sample=lambda row: names[rows.files[row]])
        notes += self._repeated(rows, columns, is_class=bool(classes) and targets.values.ndim == 1)
        notes += notes_on_targets(columns, targets, classes)
        return range(len(rows.files)), targets, classes

    def _repeated(self, rows: _Rows, columns: Sequence[Column], *, is_class: bool) -> list[str]:
        """Return a note on files named by several rows, each of which is a sample."""
        if len(set(rows.files)) == len(rows.files):
            return []
        firsts: dict[int, int] = {}
        again = other = 0
        for row, file in enumerate(rows.files):
            first = firsts.setdefault(file, row)
            again += row != first
            if all(column.cells[row] == column.cells[first] for column in columns):
                continue
            other += 1
            # Several people may have labelled one image; if the user names a column, that is meant.
            if is_class and self.labels is None:
                one, two, label = show(columns[0].cells[first]), show(columns[0].cells[row]), columns[0].name
                msg = (
                    f"Two rows name '{self.files.names[file]}', one with the label '{one}' and one with '{two}'. Take "
                    f"the wrong one out. If an image has several labels, write them in one row: {one}|{two}; "
                    f"layout=table_rows(labels=['{label}']), from colabstage.options, makes a sample of each row."
                )
                raise LayoutError(msg)
        more = "row names a file" if again == 1 else "rows name files"
        differ = f" {other:,} of them {'has' if other == 1 else 'have'} other labels." if other else ""
        return [f"{again:,} {more} that another row names as well; each row is a sample.{differ}"]

    def _roles(self, found: list[LeadingTable], notes: list[str]) -> ColumnRoles:
        """Return the roles of a table's columns; if several may be the label, the one in the competition's sample
        submission.
        """
        columns = found[0].columns
        # What a competition's test.csv has is known of the images that are to be labelled: age, sex.
        inputs = {name for table in found[1:] if columns.keys() - table.columns.keys() for name in table.columns}
        try:
            return find_roles(columns, labels=self.labels, inputs=inputs)
        except LayoutError:
            for entry in self.source.ending_in(TABLES).where(is_submission):
                first = self.source.head(entry, _HEADER_BYTES).decode("utf-8-sig", "replace").partition("\n")[0]
                asked = [name for name in first.strip().replace('"', "").split(",") if name in columns]
                if len(asked) == 1 and self.labels is None:
                    notes.append(f"'{entry.name}' asks for '{asked[0]}', so that is the label.")
                    return find_roles(columns, labels=asked)
            raise

    def leading(self) -> list[LeadingTable] | str:
        """Return the tables whose paths lead to files of the kind; why there are none where there are none."""
        tables = self._chosen()
        found = []
        shown = ""
        for name, table in tables.items():
            leading = self._leads(table)
            if leading is not None:
                found.append(leading)
            elif not shown and not table.count:
                shown = f" '{name}' {'has a header and no rows' if table.columns else 'is empty'}."
            elif not shown:
                numbered = (
                    "" if all(table.header) else " A column without a name, as pandas writes one, numbers the rows."
                )
                # Beside each other, 1.JPG and 1.jpg, or 7 and 00007.png, say what is wrong.
                cells = listed([show(column.cells[0]) for column in table.columns[:_PLAIN_COLUMNS]])
                shown = (
                    f" The first row of '{name}' is {cells}, and a file is called '{self.files.names[0]}'. Write paths "
                    f"as the files are called.{numbered}"
                )
        if found:
            return found
        names = listed([*tables])
        which = f"The table {names} has no column" if len(tables) == 1 else f"None of the tables {names} has a column"
        return f"{which} in which most rows lead to {self.kind.noun} of '{self.source.label}'.{shown}"

    def _chosen(self) -> dict[str, Table]:
        """Return the tables to look at, by name."""
        entries = self.source.ending_in(TABLES)
        if not entries:
            msg = f"'{self.source.label}' holds no tables (.csv, .tsv, .parquet)."
            raise LayoutError(msg)
        wanted = self.table
        if wanted is not None:
            # A full path takes precedence over the same base name in another folder.
            exact = entries.where(lambda name: name == wanted)
            chosen = exact or entries.where(lambda name: posixpath.basename(name) == wanted)
            if len(chosen) != 1:
                msg = (
                    f"table={wanted!r} is {'several' if chosen else 'none'} of the tables in '{self.source.label}': "
                    f"{listed(list((chosen or entries).names))}. Name one."
                )
                raise BrokenDatasetError(msg)
            entries = chosen
        # A submission names the test images with one made-up label.
        asked = entries.where(lambda name: not is_submission(name))
        return self.source.parse(asked, lambda entry, content: parse_table(entry.name, content))

    def _leads(self, table: Table) -> LeadingTable | None:
        """Return a table with the column whose most rows lead to files, or that leads to most of the files.

        A label column never is one: "2" may be a class, and also the stem of 2.png.
        """
        folder = posixpath.dirname(table.name)
        ranks: dict[int, tuple[bool, int, bool]] = {}
        leads: dict[int, dict[str, Sequence[int]]] = {}
        for place, column in enumerate(table.columns):
            if is_label_name(column.name):
                continue
            # What a program writes to number the rows leads to files only by chance: they are in another order.
            if is_index_name(column.name) and list(column.cells) == [str(number) for number in range(len(column))]:
                continue
            cells = column if len(column) else Column(column.name, [column.name])
            found, whole = self.lookup.search_each(cells.distinct, folder)
            if not found:
                continue
            hits = len(cells) if len(found) == len(cells.distinct) else sum(cell in found for cell in cells.cells)
            # Half of the rows, because tables name missing files; or half of the files, because tables of boxes repeat
            # few.
            if 2 * hits <= len(cells) and 2 * len(found) <= len(self.lookup):
                continue
            reached = len({number for numbers in found.values() for number in numbers})
            ranks[place] = (2 * whole > len(found), reached, plain_name(column.name) in PATHS)
            leads[place] = found
        if not ranks:
            return None
        # Whole names beat stems, which any number may be; then whoever reaches more files; then what is called a path.
        best = max(ranks, key=lambda place: ranks[place])
        if not ranks[best][0]:
            self._check_no_better(table, best)
        for other in ranks.keys() - {best}:
            # An index beside the paths counts as many files; only a name, or an extension, tells which is meant.
            # A hundred rows tell whether two columns mean the same files: file_name beside path mostly does.
            pairs = zip(table.columns[best].cells[:100], table.columns[other].cells[:100], strict=True)
            if ranks[other] == ranks[best] and any(leads[best].get(a) != leads[other].get(b) for a, b in pairs):
                msg = (
                    f"'{table.name}' leads to files by the columns '{table.columns[best].name}' and "
                    f"'{table.columns[other].name}', but not to the same ones. Name the right one 'path'."
                )
                raise BrokenDatasetError(msg)
        # A first row without a path to a file, or with the name of a path column, is a header.
        title = table.columns[best].name
        first = self.lookup.search(title, folder)
        if plain_name(title) in PATHS or not first:
            return LeadingTable(table, table.columns[best], leads[best], has_header=True)
        bare = table.without_header()
        if len(bare.columns) > _PLAIN_COLUMNS and not bare.fault and self.labels is None:
            row = listed([show(cell) for cell in table.header])
            bare.fault = (
                f"'{table.name}' has {len(bare.columns)} columns and no header that says what they are (first row "
                f"{row}). Write one above it, such as path,label, or path,xmin,ymin,xmax,ymax,class for boxes; or say "
                "which column is the label: layout=table_rows(labels=['column2'])."
            )
        return LeadingTable(bare, bare.columns[best], leads[best] | {title: first}, has_header=False)

    def _check_no_better(self, table: Table, best: int) -> None:
        """Refuse stems as paths where another column has what is written as files: a count of 2 is no 2.png then."""
        chosen = table.columns[best]
        for column in table.columns:
            if column is chosen or is_label_name(column.name):
                continue
            written = [cell for cell in column.distinct if cell.lower().endswith(self.kind.extensions)]
            # Addresses say where the files came from, and an id beside them what they are called here.
            elsewhere = chosen.plain in IDS and all("://" in cell for cell in column.distinct)
            is_called = column.plain in PATHS and chosen.plain not in PATHS and not elsewhere
            if is_called or (written and 2 * len(written) >= len(column.distinct)):
                msg = (
                    f"'{table.name}' names files in the column '{column.name}' (first "
                    f"'{show(min(written or column.distinct))}'), and too few of them are there; only '{chosen.name}' "
                    "could be read as names of files without their extensions. Bring the files that are missing, "
                    f"correct the paths, or call '{chosen.name}' 'path' if it is meant."
                )
                raise BrokenDatasetError(msg)

    def _rows_with_files(self, found: list[LeadingTable], roles: ColumnRoles) -> _Rows:
        """Return the rows whose file exists."""
        made = _Rows([], [], [])
        several = len(found) > 1
        for table in found:
            of_table, folder = table.split, posixpath.dirname(table.name)
            split = None if roles.split is None else table.columns[roles.split]
            known = {} if split is None else {cell: split_of_cell(split.name, cell) for cell in split.distinct}
            rows = []
            for row, cell in enumerate(table.path.cells):
                own = known[split.cells[row]] if split is not None else ""
                there = table.leads.get(cell, ())
                # `0001.jpg` often is in the folders of several splits; the row's own split says which one is meant. The
                # search without a split was done for all cells at once; this one costs a look-up for each row.
                if there and self.lookup.has_splits and (own or of_table):
                    of_split = self.lookup.search(cell, folder, split=own or of_table)
                    # A row's own split counts, wherever its file lies: fast.ai holds rows of one folder out.
                    there = of_split or (there if own else ())
                if len(there) > 1:
                    names = listed([self.files.names[number] for number in there])
                    msg = (
                        f"'{show(cell)}' in '{table.name}' may be {names}. Write the folder before the name, or move "
                        "the copies away."
                    )
                    raise LayoutError(msg)
                if there:
                    rows.append(row)
                    made.files.append(there[0])
                    made.splits.append(own or (of_table if several else ""))
            made.places.append((table, rows))
        return made

    def _that_count(self, found: list[LeadingTable], notes: list[str]) -> list[LeadingTable]:
        """Return one table, or those of the splits; tables about other files are left out."""
        # What was named was chosen among all before, so it is the only one.
        if len(found) == 1 or self.table is not None:
            return found
        splits = [table for table in found if table.split]
        names = [table.split for table in splits]
        others = [table for table in found if not table.split]
        # One table for each split, one of them for training: the usual form of competitions.
        if "train" in names and len(set(names)) == len(names):
            # Another table about the same files may have better labels; only tables about other files can be left out
            # silently.
            stated: set[int] = set().union(*(table.files for table in splits))
            if not any(table.files & stated for table in others):
                notes += [
                    f"'{table.name}' leads to other files than {listed([one.name for one in splits])}: left out."
                    for table in others
                ]
                # Train first, whatever the order of names, because its columns decide for all.
                return sorted(splits, key=lambda table: SPLIT_ORDER[table.split])
        most = max(found, key=lambda table: len(table.files))
        few = [table for table in found if _FEW * len(table.files) <= len(most.files)]
        # ChestX-ray14, for example, has labels for all images, and boxes for one in a hundred.
        if len(few) == len(found) - 1 and any(map(is_label_name, most.table.header)):
            notes += [
                f"'{table.name}' names {len(table.files):,} {self.kind.noun}, and '{most.name}' {len(most.files):,}: "
                "the former was left out."
                for table in few
            ]
            return [most]
        msg = (
            f"Several tables do ({listed([one.name for one in found])}), and they are not the splits of one dataset, "
            f"called train, test and so on. Say which one to use: layout=table_rows(table={found[0].name!r}), from "
            "colabstage.options."
        )
        raise LayoutError(msg)

    def _labelled(self, found: list[LeadingTable], roles: ColumnRoles, notes: list[str]) -> list[LeadingTable]:
        """Return the tables that have all columns in use: a competition's test.csv has no labels."""
        if len(found) == 1:
            return found
        # Rows with and without labels could not be in one array of targets.
        needed = {found[0].path.name, *roles.labels, *filter(None, (roles.group, roles.split))}
        kept = []
        for table in found:
            lacks = sorted(needed - set(table.table.header))
            if not lacks:
                kept.append(table)
                continue
            what = left_out(len(table.files), self.kind.noun, f"of '{table.name}', which has no {listed(lacks)},")
            notes.append(f"{what}.")
        return kept

    def _notes(self, found: list[LeadingTable], rows: _Rows, roles: ColumnRoles, corners: tuple[str, ...]) -> list[str]:
        path, labels = found[0].path.name, listed(list(roles.labels))
        used = {path, *roles.labels, *filter(None, (roles.split, roles.group)), *corners}
        names = listed([one.name for one in found])
        notes = [f"Samples are the rows of {names}; paths are in '{path}', labels in {labels}."]
        if roles.split is not None:
            notes.append(f"Splits are as '{roles.split}' says.")
        unread = [name for name in found[0].table.header if name not in used and not is_index_name(name)]
        if unread:
            notes.append(f"Not used: {'the columns' if len(unread) > 1 else 'the column'} {listed(unread)}.")
        if roles.group is not None:
            notes.append(f"Samples with the same '{roles.group}' stay in one split.")
        # Published tables often name a few files that were never published; without a note a broken download would be
        # hidden.
        missing, first = 0, ""
        for table, kept in rows.places:
            lost = len(table.path) - len(kept)
            if lost and not first:
                there = set(kept)
                at = next(row for row in range(len(table.path)) if row not in there)
                first = f"whose {self.kind.noun} are not there (first '{show(table.path.cells[at])}')"
            missing += lost
        return notes + left_out_notes(
            (missing, "rows", first), (len(self.files) - len(set(rows.files)), self.kind.noun, "that no row names")
        )


def tables_agree(
    leading: Iterable[LeadingTable], names: Sequence[str], class_of: Mapping[str, str], lookup: Lookup
) -> bool:
    """Tell whether tables that lead to files state of each the class that `class_of` gives for it by name, each in a
    column that has one word for each class, whatever its other columns are."""
    # The German traffic signs have a table in the folder of each class; together they say of each which it is.
    alike: dict[tuple[str, ...], list[LeadingTable]] = {}
    for table in leading:
        alike.setdefault(tuple(table.table.header), []).append(table)
    return all(_have_classes(tables, names, class_of, lookup) for tables in alike.values())


def _have_classes(
    tables: list[LeadingTable], names: Sequence[str], class_of: Mapping[str, str], lookup: Lookup
) -> bool:
    """Tell whether a column of some tables has one word for each class of their files, and may be the label."""
    classes: list[str] = []
    rows: list[tuple[LeadingTable, int]] = []
    for table in tables:
        folder = posixpath.dirname(table.name)
        for row, cell in enumerate(table.path.cells):
            there = lookup.search(cell, folder, split=table.split)
            if len(there) == 1 and names[there[0]] in class_of:
                classes.append(class_of[names[there[0]]])
                rows.append((table, row))
    if len(set(classes)) < 2:
        return False
    # Folders of patients agree with the patients' numbers, and the label is another column. Without a header nothing is
    # called a label; but where all other columns are numbers (corners, sizes), the one that agrees is.
    first = tables[0]
    agrees = [
        same_partition(classes, [table.table.columns[place].cells[row] for table, row in rows])
        for place in range(len(first.table.columns))
    ]
    if first.has_header:
        titles = zip(agrees, first.table.header, strict=True)
        return any(fits and not LABEL_WORDS.isdisjoint(words_of(title)) for fits, title in titles)
    others = [one for one, fits in zip(first.table.columns, agrees, strict=True) if not fits and one is not first.path]
    return any(agrees) and all(column.is_numeric for column in others)


def _splits_by_folder(files: FileEntries) -> list[str]:
    folders, of_files = files.folders
    splits = [split_of_path(f"{folder}/") for folder in folders]
    return [splits[number] for number in of_files.tolist()] if all(splits) else []


def _numbered_apart(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names with a number behind those that have been there before: an image may have several rows."""
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        keys.append(name if count == 1 else f"{name}#{count}")
    return tuple(keys)
