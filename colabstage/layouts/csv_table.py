"""A table of paths and labels beside the images: CSV, TSV, parquet.

Columns are recognised by their content: paths are those that lead to images, a split column contains only names of
splits, and labels are recognised by their name, or are the only column left. A table that leads to images claims the
tree: any fault in it from there on is an error, and never a reason to use weaker evidence.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.io.units import left_out, listed
from colabstage.layouts.box_columns import box_columns, corners_of, look_like_boxes, make_boxes
from colabstage.layouts.class_folders import FileKind
from colabstage.layouts.columns import (
    TABLE_EXTENSIONS,
    find_roles,
    is_id_name,
    is_index_name,
    is_label_name,
    is_numeric,
    is_path_name,
    read_some_rows,
    split_of_cell,
)
from colabstage.layouts.label_cells import make_targets, notes_on_targets
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    SPLIT_NAMES,
    FileLookup,
    split_name,
    split_of_path,
    stem_of,
    words_of,
)
from colabstage.layouts.reading import decode_text, read_head
from colabstage.layouts.table import (
    BrokenDatasetError,
    Images,
    NearMissError,
    SampleTable,
    TreeFiles,
    known_splits,
    left_out_notes,
)
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from colabstage.layouts.columns import ColumnRoles
    from colabstage.layouts.table import Targets
    from colabstage.trees.listing import FileEntries, FileEntry, Tree

NAME = "table"
_IMAGES = FileKind(NAME, "images", IMAGE_EXTENSIONS)
# A path, a label and a split explain themselves; with more unnamed columns it is unclear which is the label.
_PLAIN_COLUMNS = 3
# A cell may be a page of text.
_CELL_SHOWN = 60
# Enough for the column names of a wide table.
_HEADER_BYTES = 64 * 1024
# A table that names fewer files than another by this factor does not compete with it.
_FEW = 10
_LABEL_WORDS = frozenset({"label", "labels", "class", "classid", "classname", "category", "target", "species", "breed"})


class _FoundRow(NamedTuple):
    """A row whose file exists."""

    file: int
    """The file's number."""
    cells: list[str]
    places: dict[str, int]
    """The index of each column, by name."""
    split: str
    """The split in the row or in its table's name; "" for none."""

    def cell(self, name: str) -> str:
        return self.cells[self.places[name]]


class _LeadingTable(NamedTuple):
    """One table file whose paths lead to files of the tree."""

    name: str
    header: list[str]
    """Names of its columns."""
    rows: list[list[str]]
    """Its cells, without the header."""
    path: int
    """Which column leads to the files."""
    fault: str
    """Why it cannot be used; "" if it can."""
    lookup: FileLookup
    """Finds files by the content of cells."""
    leads: dict[str, Sequence[int]]
    """The numbers of the files that each cell of that column may mean, if any."""

    @property
    def files(self) -> set[int]:
        return {number for numbers in self.leads.values() for number in numbers}

    @property
    def split(self) -> str:
        """Return the split in the table's name or path: train.csv, labels_train.csv, valid/_classes.csv."""
        stem = stem_of(self.name)
        return split_name(stem).split or split_of_path(self.name)

    def column(self, name: str, place: int | None = None) -> list[str]:
        """Return the cells of a column; `place`: its number, where that is known."""
        place = self.header.index(name) if place is None else place
        return [row[place] for row in self.rows]

    def rows_with_files(self, files: FileEntries, roles: ColumnRoles, *, several: bool) -> list[_FoundRow]:
        """Return the rows whose file exists.

        Raises:
            LayoutError: a path may mean several files.
        """
        places = {name: place for place, name in enumerate(self.header)}
        at, of_table, of_row = self.path, self.split, None if roles.split is None else places[roles.split]
        found = []
        for cells in self.rows:
            own = split_of_cell(self.header[of_row], cells[of_row]) if of_row is not None else ""
            # `0001.jpg` often is in the folders of several splits; the row's own split says which one is meant.
            # The search without a split was done for all cells at once; this one costs a look-up for each row.
            if self.lookup.has_splits and (own or of_table):
                there = self.lookup.search(cells[at], split=own or of_table)
            else:
                there = self.leads.get(cells[at], ())
            if len(there) > 1:
                names = listed([files.names[number] for number in there])
                msg = (
                    f"'{cells[at]}' in '{self.name}' may be {names}. Write the folder before the name, or move "
                    "the copies away."
                )
                raise LayoutError(msg)
            if there:
                found.append(_FoundRow(there[0], cells, places, own or (of_table if several else "")))
        return found


def read_table(
    tree: Tree, *, labels: Sequence[str] | None = None, table: str | None = None, separator: str | None = None
) -> SampleTable:
    """Make a table of samples from a tree that contains a table with a path and labels in every row.

    Several tables named after splits (train.csv, test.csv) are the splits; one of them without labels, and sample
    submissions of competitions, are left out. Columns xmin, ymin, xmax, ymax are boxes in pixels, one in each row.
    Samples come in the table's order.

    Args:
        tree: the dataset's files.
        labels: the columns that hold the labels; found by name and content where `None`.
        table: the table that counts, where there are several.
        separator: what is between several labels in one cell; "" where each cell is one label.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: no table has a column of paths to images.
        BrokenDatasetError: a table has one but cannot be used: its labels are unknown, a row is broken, or tables
            compete.
    """
    return TableSearch(tree, _IMAGES, labels=labels, table=table, separator=separator).read()


class TableSearch:
    """Search the tables of a tree for those that describe its files of one kind; the other arguments are as in
    `read_table`."""

    def __init__(
        self,
        tree: Tree,
        kind: FileKind,
        *,
        labels: Sequence[str] | None = None,
        table: str | None = None,
        separator: str | None = None,
    ) -> None:
        self.tree = tree
        self.kind = kind
        self.labels = labels
        self.table = table
        self.separator = separator

    def read(self) -> SampleTable:
        """Make a table of samples from the tables, with the files as inputs.

        Raises:
            Exception: as `read_table`.
        """
        files = self.tree.entries.ending_in(self.kind.extensions)
        tables = list(self.tree.entries.ending_in(TABLE_EXTENSIONS))
        if not files or not tables:
            msg = f"'{self.tree.label}' holds no {self.kind.noun if not files else 'tables (.csv, .tsv, .parquet)'}."
            raise EmptySourceError(msg) if not files else LayoutError(msg)
        # Whether a table leads to files is asked before its labels: other layouts may have a table of something else
        # beside their files.
        found = self.with_paths(self._chosen(tables), files)
        # From here on a table has claimed the tree, so other layouts are no longer tried.
        try:
            return self._read(found, files)
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            msg = f"'{found[0].name}' leads to the {self.kind.noun} of '{self.tree.label}'. {error}"
            raise BrokenDatasetError(msg) from error

    def _read(self, found: list[_LeadingTable], files: FileEntries) -> SampleTable:
        notes: list[str] = []
        # Faults of other tables do not matter.
        found = self._that_count(found, notes)
        faulty = next((table.fault for table in found if table.fault), "")
        if faulty:
            raise LayoutError(faulty)
        for table in found:
            twice = first_repeated([name for name in table.header if name])
            if twice is not None:
                msg = f"'{table.name}' has two columns called '{twice}'. Give them different names."
                raise LayoutError(msg)
        first = found[0]
        # The first table determines the roles for all: test.csv may have too few rows to distinguish a class from a
        # number.
        columns = {name: first.column(name, i) for i, name in enumerate(first.header) if i != first.path}
        # Four columns of corners are boxes, unless the user named them as labels or the files are audio clips.
        boxes = box_columns(columns) if self.labels is None and self.kind.layout == NAME else None
        roles = find_roles(columns, labels=[boxes.label]) if boxes is not None else self._roles(columns, notes)
        found = self._labelled(found, roles, notes)
        rows = [row for table in found for row in table.rows_with_files(files, roles, several=len(found) > 1)]
        notes += self._notes(found, rows, len(files), roles, () if boxes is None else boxes.corners)
        if boxes is not None:
            names = files.names
            wanted = [boxes.label, *boxes.corners]
            placed = make_boxes([(names[row.file], {name: row.cell(name) for name in wanted}) for row in rows], boxes)
            # A row is a box here, and a sample is an image: the first row of each stands for it.
            rows = [rows[number] for number in placed.firsts]
            targets: Targets = placed.boxes
            classes = placed.classes
        else:
            cells = {name: [row.cell(name) for row in rows] for name in roles.labels}
            # A column called "class" has one, although its name may contain a space or a comma.
            separator = "" if self.separator is None and roles.is_one_class else self.separator
            targets, classes = make_targets(cells, separator=separator, samples=[files.names[row.file] for row in rows])
            notes += self._repeated(rows, files, roles.labels, is_class=bool(classes) and targets.values.ndim == 1)
            notes += notes_on_targets(cells, targets, classes) + self._unread_boxes(first, columns)
        chosen = files.take(np.array([row.file for row in rows], np.int64))
        splits = [row.split for row in rows]
        # One table for folders of splits, as Hugging Face's ImageFolder has it.
        by_folder = [split_of_path(name) for name in chosen.names]
        if not any(splits) and not first.split and all(by_folder) and len(set(by_folder)) > 1:
            splits = by_folder
            notes.append(f"Splits are the folders that the {self.kind.noun} are in: {listed(sorted(set(splits)))}.")
        return SampleTable(
            layout=self.kind.layout,
            keys=_numbered_apart(chosen.names),
            inputs=Images(TreeFiles(self.tree, chosen)),
            targets=targets,
            # All or none, because a sample without a split among others with one would be in no file.
            splits=known_splits(splits),
            groups=None if roles.group is None else tuple(row.cell(roles.group) for row in rows),
            classes=classes,
            notes=tuple(notes),
        )

    def _repeated(
        self, rows: list[_FoundRow], files: FileEntries, labels: tuple[str, ...], *, is_class: bool
    ) -> list[str]:
        """Return a note on files named by several rows, each of which is a sample.

        Raises:
            LayoutError: two rows give different classes for one file, and the user has not named the label column.
        """
        firsts: dict[int, _FoundRow] = {}
        again, other = 0, 0
        for row in rows:
            first = firsts.setdefault(row.file, row)
            again += row is not first
            other += any(row.cell(label) != first.cell(label) for label in labels)
            # Several people may have labelled one image; if the user names a column, that is meant.
            if is_class and self.labels is None and row.cell(labels[0]) != first.cell(labels[0]):
                msg = (
                    f"Two rows name '{files.names[row.file]}', one with the label '{first.cell(labels[0])}' and one "
                    f"with '{row.cell(labels[0])}'. Take the wrong one out. If an image has several labels, write them "
                    f"in one row: {first.cell(labels[0])}|{row.cell(labels[0])}; "
                    f"layout=table_rows(labels=['{labels[0]}']), from colabstage.options, makes a sample of each row."
                )
                raise LayoutError(msg)
        if not again:
            return []
        more = "row names a file" if again == 1 else "rows name files"
        differ = f" {other:,} of them {'has' if other == 1 else 'have'} other labels." if other else ""
        return [f"{again:,} {more} that another row names as well; each row is a sample.{differ}"]

    def _unread_boxes(self, table: _LeadingTable, columns: dict[str, list[str]]) -> list[str]:
        """Return a note on boxes in a table whose labels somebody has named."""
        names = list(columns)
        places = range(len(names) - 3 if table.header[0] == _unnamed(0) else 0)
        unnamed = next((n for n in places if look_like_boxes([columns[name] for name in names[n : n + 4]])), None)
        corners = corners_of(names) if unnamed is None else tuple(names[unnamed : unnamed + 4])
        if not corners or not {*corners}.isdisjoint(self.labels or corners):
            return []
        how = "Leave labels= out" if unnamed is None else "Write path,xmin,ymin,xmax,ymax,class above the table"
        return [f"The boxes in {listed(corners)} are not read, because labels= says what whole images are. {how}."]

    def _roles(self, columns: dict[str, list[str]], notes: list[str]) -> ColumnRoles:
        """Return the roles of a table's columns; if several may be the label, the one in the competition's sample
        submission.

        Raises:
            LayoutError: as `find_roles`, and no sample submission helps.
        """
        try:
            return find_roles(columns, labels=self.labels)
        except LayoutError:
            for entry in self.tree.entries.ending_in(TABLE_EXTENSIONS).where(is_submission):
                first = decode_text(read_head(self.tree, entry, _HEADER_BYTES)).partition("\n")[0]
                asked = [name for name in first.strip().replace('"', "").split(",") if name in columns]
                if len(asked) == 1 and self.labels is None:
                    notes.append(f"'{entry.name}' asks for '{asked[0]}', so that is the label.")
                    return find_roles(columns, labels=asked)
            raise

    def _chosen(self, tables: list[FileEntry]) -> list[FileEntry]:
        """Return the tables to use.

        Raises:
            LayoutError: the requested table does not exist.
        """
        wanted = self.table
        if wanted is None:
            return tables
        # A full path takes precedence over the same base name in another folder.
        exact = [entry for entry in tables if entry.name == wanted]
        chosen = exact or [entry for entry in tables if posixpath.basename(entry.name) == wanted]
        if len(chosen) == 1:
            return chosen
        there = listed([entry.name for entry in chosen or tables])
        msg = (
            f"table={wanted!r} is {'several' if chosen else 'none'} of the tables in '{self.tree.label}': "
            f"{there}. Name one."
        )
        raise BrokenDatasetError(msg)

    def with_paths(self, tables: list[FileEntry], files: FileEntries) -> list[_LeadingTable]:
        """Return the tables whose paths lead to files of the kind.

        Raises:
            LayoutError: there are none.
            BrokenDatasetError: a table leads to files by two columns, and to different ones.
        """
        found = []
        shown = ""
        lookups: dict[str, FileLookup] = {}
        for entry in tables:
            # It names the test images with one made-up label.
            if is_submission(entry.name):
                continue
            folder = posixpath.dirname(entry.name)
            # An index of all files by name is built once for each folder, because paths are relative to the table's
            # folder and datasets have a table in each of hundreds of folders.
            if folder not in lookups:
                lookups[folder] = FileLookup(files, folder)
            lookup = lookups[folder]
            # A fault is kept for later, because it matters only if the table is used.
            rows, fault = read_some_rows(self.tree, entry)
            path = _path_column(entry.name, rows, lookup, self.kind.extensions)
            if not shown and len(rows) < 2:
                shown = f" '{entry.name}' {'has a header and no rows' if rows else 'is empty'}."
            elif not shown:
                numbered = "" if all(rows[0]) else " A column without a name, as pandas writes one, numbers the rows."
                # Beside each other, 1.JPG and 1.jpg, or 7 and 00007.png, say what is wrong.
                cells = listed([cell[:_CELL_SHOWN] for cell in rows[1][:_PLAIN_COLUMNS]])
                shown = (
                    f" The first row of '{entry.name}' is {cells}, and a file is called '{files.names[0]}'. Write "
                    f"paths as the files are called.{numbered}"
                )
            if path is not None:
                number, leads = path
                # A first row without a path to a file, or with the name of a path column, is a header.
                first = lookup.search(rows[0][number])
                has_header = is_path_name(rows[0][number]) or not first
                leads |= {} if has_header else {rows[0][number]: first}
                header = rows[0] if has_header else [_unnamed(column) for column in range(len(rows[0]))]
                if not has_header and len(header) > _PLAIN_COLUMNS and not fault and self.labels is None:
                    fault = (
                        f"'{entry.name}' has {len(header)} columns and no header that says what they are (first row "
                        f"{listed(rows[0])}). Write one above it, such as path,label, or "
                        "path,xmin,ymin,xmax,ymax,class for boxes; or say which column is the label: "
                        "layout=table_rows(labels=['column2'])."
                    )
                found.append(
                    _LeadingTable(entry.name, header, rows[1:] if has_header else rows, number, fault, lookup, leads)
                )
        if not found:
            names = listed([entry.name for entry in tables])
            which = (
                f"The table {names} has no column" if len(tables) == 1 else f"None of the tables {names} has a column"
            )
            msg = f"{which} in which most rows lead to {self.kind.noun} of '{self.tree.label}'.{shown}"
            raise NearMissError(msg)
        return found

    def _that_count(self, found: list[_LeadingTable], notes: list[str]) -> list[_LeadingTable]:
        """Return one table, or those of the splits; tables about other files are left out.

        Raises:
            LayoutError: several tables describe the same files.
        """
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
            told: set[int] = set().union(*(table.files for table in splits))
            if not any(table.files & told for table in others):
                notes += [
                    f"'{table.name}' leads to other files than {listed_names(splits)}: left out." for table in others
                ]
                # Train first, whatever the order of names, because its columns decide for all.
                return sorted(splits, key=lambda table: list(SPLIT_NAMES.values()).index(table.split))
        most = max(found, key=lambda table: len(table.files))
        few = [table for table in found if _FEW * len(table.files) <= len(most.files)]
        # ChestX-ray14, for example, has labels for all images, and boxes for one in a hundred.
        if len(few) == len(found) - 1 and any(map(is_label_name, most.header)):
            notes += [
                f"'{table.name}' names {len(table.files):,} {self.kind.noun}, and '{most.name}' {len(most.files):,}: "
                "the former was left out."
                for table in few
            ]
            return [most]
        msg = (
            f"Several tables do ({listed_names(found)}), and they are not the splits of one dataset, called "
            f"train, test and so on. Say which one to use: "
            f"layout=table_rows(table={found[0].name!r}), from colabstage.options."
        )
        raise LayoutError(msg)

    def _labelled(self, found: list[_LeadingTable], roles: ColumnRoles, notes: list[str]) -> list[_LeadingTable]:
        """Return the tables that have all columns in use."""
        # A competition's test.csv has no labels.
        if len(found) == 1:
            return found
        # Rows with and without labels could not be in one array of targets.
        needed = {found[0].header[found[0].path], *roles.labels, *filter(None, (roles.group,))}
        kept = [table for table in found if needed <= set(table.header)]
        for table in found:
            if table not in kept:
                lacks = listed(sorted(needed - set(table.header)))
                notes.append(
                    left_out(len(table.files), self.kind.noun, f"of '{table.name}', which has no {lacks},") + "."
                )
        return kept

    def _notes(
        self,
        found: list[_LeadingTable],
        rows: list[_FoundRow],
        files: int,
        roles: ColumnRoles,
        corners: tuple[str, ...],
    ) -> list[str]:
        path = found[0].header[found[0].path]
        labels = listed(list(roles.labels))
        used = {path, *roles.labels, *filter(None, (roles.split, roles.group)), *corners}
        notes = [f"Samples are the rows of {listed_names(found)}; paths are in '{path}', labels in {labels}."]
        if roles.split is not None:
            notes.append(f"Splits are as '{roles.split}' says.")
        unread = [name for name in found[0].header if name not in used and not is_index_name(name)]
        if unread:
            notes.append(f"Not used: {'the columns' if len(unread) > 1 else 'the column'} {listed(unread)}.")
        if roles.group is not None:
            notes.append(f"Samples with the same '{roles.group}' stay in one split.")
        # Published tables often name a few files that were never published; without a note a broken download would be
        # hidden.
        kept = {id(row.cells) for row in rows}
        missing = [cells[table.path] for table in found for cells in table.rows if id(cells) not in kept]
        first = f"whose {self.kind.noun} are not there (first '{missing[0][:_CELL_SHOWN]}')" if missing else ""
        return notes + left_out_notes(
            (len(missing), "rows", first),
            (files - len({row.file for row in rows}), self.kind.noun, "that no row names"),
        )


def is_submission(name: str) -> bool:
    """Tell whether a table is a competition's sample submission."""
    # Its labels are placeholders.
    return "submission" in posixpath.basename(name).lower()


def tables_that_agree(tree: Tree, class_of: Mapping[str, str]) -> bool:
    """Tell whether all tables that lead to images say of each the class that it has by another way: each in a column
    that has one word for each class, whatever its other columns are.

    Args:
        tree: the dataset's files.
        class_of: the class of images by name.
    """
    files = tree.entries.ending_in(IMAGE_EXTENSIONS)
    try:
        found = TableSearch(tree, _IMAGES).with_paths(list(tree.entries.ending_in(TABLE_EXTENSIONS)), files)
    except LayoutError:
        return False
    # The German traffic signs have a table in the folder of each class; together they say of each which it is.
    alike: dict[tuple[str, ...], list[_LeadingTable]] = {}
    for table in found:
        alike.setdefault(tuple(table.header), []).append(table)
    return all(_has_classes(tables, files, class_of) for tables in alike.values())


def _has_classes(tables: list[_LeadingTable], files: FileEntries, class_of: Mapping[str, str]) -> bool:
    """Tell whether a column of some tables has one word for each class of their files, and may be the label."""
    header = tables[0].header
    said: list[set[tuple[str, str]]] = [set() for _ in header]
    for table in tables:
        for row in table.rows:
            # Rows of other lengths are cut off or have an extra comma, and prove nothing.
            there = table.lookup.search(row[table.path], split=table.split) if len(row) == len(said) else ()
            if len(there) == 1 and (name := class_of.get(files.names[there[0]])) is not None:
                for column, cell in zip(said, row, strict=True):
                    column.add((name, cell))
    agrees = [
        # As many pairs as classes and as many as words: each class has one word, and no two share one.
        len(pairs) > 1 and len({name for name, _ in pairs}) == len({cell for _, cell in pairs}) == len(pairs)
        for pairs in said
    ]
    # Folders of patients agree with the patients' numbers, and the label is another column.
    if header[0] != _unnamed(0):
        return any(
            fits and not _LABEL_WORDS.isdisjoint(words_of(name)) for fits, name in zip(agrees, header, strict=True)
        )
    # Without a header nothing is called a label; but where all other columns are numbers (corners, sizes), the one that
    # agrees is.
    others = [n for n, fits in enumerate(agrees) if not fits and n != tables[0].path]
    return any(agrees) and all(is_numeric([cell for _, cell in said[n]]) for n in others)


def _unnamed(column: int) -> str:
    """Return the name of a column in a table without a header."""
    return f"column{column + 1}"


def _path_column(
    name: str, rows: list[list[str]], lookup: FileLookup, extensions: tuple[str, ...]
) -> tuple[int, dict[str, Sequence[int]]] | None:
    """Return the path column and its files: most of its rows lead to files, or it leads to most of the files.

    A label column never is one: "2" may be a class, and also the stem of 2.png.
    """
    leading: dict[int, tuple[bool, int, bool]] = {}
    leads: dict[int, dict[str, Sequence[int]]] = {}
    body = rows[1:] or rows
    for column in range(len(rows[0]) if rows else 0):
        if is_label_name(rows[0][column]):
            continue
        cells = [row[column] for row in body if len(row) > column]
        # What a program writes to number the rows leads to files only by chance: they are in another order.
        if is_index_name(rows[0][column]) and cells == [str(number) for number in range(len(cells))]:
            continue
        # `may_find` looks at the end of a path alone and is cheap; only columns that pass are searched in full.
        known = {cell for cell in set(cells) if cell and lookup.may_find(cell)}
        hits = sum(cell in known for cell in cells)
        # Half of the rows, because tables name missing files; or half of the files, because tables of boxes repeat few.
        if 2 * hits <= len(cells) and 2 * len(known) <= len(lookup):
            continue
        found = {cell: numbers for cell in known if (numbers := lookup.search(cell))}
        whole = 2 * sum(lookup.is_base(cell) for cell in known) > len(known)
        if found:
            reached = len({number for numbers in found.values() for number in numbers})
            leading[column] = (whole, reached, is_path_name(rows[0][column]))
            leads[column] = found
    if not leading:
        return None
    # Whole names beat stems, which any number may be; then whoever reaches more files; then what is called a path.
    best = max(leading, key=lambda column: leading[column])
    if not leading[best][0]:
        _check_no_better(name, rows, best, extensions)
    for other in leading.keys() - {best}:
        # An index beside the paths counts as many files; only a name, or an extension, tells which is meant.
        # A hundred rows tell whether two columns mean the same files: file_name beside path mostly does.
        if leading[other] == leading[best] and any(
            lookup.search(row[best]) != lookup.search(row[other]) for row in body[:100] if len(row) > max(best, other)
        ):
            msg = (
                f"'{name}' leads to files by the columns '{rows[0][best]}' and '{rows[0][other]}', but not to the same "
                "ones. Name the right one 'path'."
            )
            raise BrokenDatasetError(msg)
    return best, leads[best]


def _check_no_better(name: str, rows: list[list[str]], best: int, extensions: tuple[str, ...]) -> None:
    """Refuse stems as paths where another column has what is written as files: a count of 2 is no 2.png then.

    Raises:
        BrokenDatasetError: there is such a column, and it leads to few files or none.
    """
    header, body = rows[0], rows[1:] or rows
    for column in set(range(len(header))) - {best}:
        cells = [row[column] for row in body if len(row) > column]
        written = [cell for cell in cells if cell.lower().endswith(extensions)]
        # What is called a path was meant, though only some of its rows, or none, are written as files.
        called = is_path_name(header[column])
        is_meant = written and (called or 2 * len(written) >= len(cells))
        # Addresses say where the files came from, and an id beside them what they are called here.
        elsewhere = is_id_name(header[best]) and all("://" in cell for cell in cells)
        if called and not is_path_name(header[best]) and not elsewhere:
            is_meant = cells
        if is_meant and not is_label_name(header[column]):
            msg = (
                f"'{name}' names files in the column '{header[column]}' (first '{(written or cells)[0]}'), and too few "
                f"of them are there; only '{header[best]}' could be read as names of files without their extensions. "
                f"Bring the files that are missing, correct the paths, or call '{header[best]}' 'path' if it is meant."
            )
            raise BrokenDatasetError(msg)


def listed_names(tables: list[_LeadingTable]) -> str:
    """Return the names of some tables as text."""
    return listed([table.name for table in tables])


def _numbered_apart(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names with a number behind those that have been there before: an image may have several rows."""
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(keys)
