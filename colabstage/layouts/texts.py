"""Texts beside samples: what each states about them, compared with what labels them.

A text counts if its beginning names samples; only then is all of it read. If each row has a file, the words beside it
divide the samples as their labels do, or otherwise. In any other text, lines with a sample have its class, or do not.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.layouts import words
from colabstage.layouts.columns import NUMBER, Column, divides_further, same_partition
from colabstage.layouts.evidence import FileKind, gather, labels_of_samples
from colabstage.layouts.formats.tables import LISTS, Table, parse_table
from colabstage.layouts.lists import Lookup, paths_by_id
from colabstage.layouts.reading import BEGINNING_BYTES, Source, Statement, decode_text, statements_of
from colabstage.layouts.rows import LeadingTable, TableSearch, columns_of_classes, rows_in_classes
from colabstage.layouts.table import SampleTable, Values, files_of
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from colabstage.trees.listing import FileEntries

# Extensions of files that may be texts, and are opened.
TEXTS = (*words.TEXTS, "", ".dat", ".log")
# At least this many samples must be named, because a text may mention one in passing.
NAMED = 3
_HEADS = 16
_AGREEING = 0.9
_CORNERS = 4


class Says(Enum):
    """What a text that names samples states about them."""

    SAME = "the classes of all of them, by these or other names"
    CLASSES = "the classes of those that it names"
    OTHER = "a word for each, which divides them otherwise"
    MORE = "something else, such as finer classes, boxes, or only names"


class Naming:
    """Those of some texts whose beginnings name samples."""

    def __init__(self, source: Source, table: SampleTable, texts: FileEntries) -> None:
        self.source, self.table, self.texts = source, table, texts
        stated = statements_in(source, texts.ending_in(TEXTS).where(lambda name: not words.is_note(name)))
        self._lookup = Lookup(table.keys if any(stated.values()) else ())
        lines = {name: [*self._on_samples(own)] for name, own in stated.items()}
        # A list of held-out samples may be short.
        enough = {name: 1 if may_list_a_split(name) else min(NAMED, len(table)) for name in lines}
        # 20.jpg of each folder is a sample each.
        named = {name: {one.paths.get(part, part) for part, one in own} for name, own in lines.items()}
        self.lines = {name: own for name, own in lines.items() if len(named[name]) >= enough[name]}
        """The lines that name samples in each of these texts, and how."""

    def _on_samples(self, stated: Sequence[Statement]) -> Iterator[tuple[str, Statement]]:
        for one in stated:
            for part in one.parts:
                if (posixpath.splitext(part)[1] or words.is_telling(part)) and self._lookup.may_find(part):
                    yield part, one

    def compare(self) -> dict[str, Says]:
        """Return what each states about the samples, beside what labels them; and of a list that names them by ids, and
        of the one that has their ids, that they state the same, if they do."""
        labels, files = labels_of_samples(self.table) if self.texts else (), files_of(self.table)
        if not labels or not files:
            return dict.fromkeys(self.lines, Says.MORE)
        kind = FileKind(self.table.layout, self.table.unit, (extension_of(self.table.keys[0]),))
        search = TableSearch(self.source, kind, files, self._lookup)
        class_of = dict(zip(files.names, labels, strict=True))
        ids, by_id = paths_by_id(self.source, self._lookup)
        others = self.texts.ending_in(LISTS).without(self.lines) if ids else ()
        firsts = {one.name: self.source.head(one, BEGINNING_BYTES).partition(b"\n")[0] for one in others}
        of_ids = {name for name, first in firsts.items() if len(first.split()) == 2}
        may_be_rows = self.texts.not_ending_in((".xml", ".yaml"))
        tables = self.source.parse_once(may_be_rows.where({*of_ids, *self.lines}.__contains__), parse_table)
        # A table in the folder of each class: together they state those of all.
        alike: dict[object, list[LeadingTable]] = {}
        for name, table in tables.items():
            found = gather(partial(search.lead, _by_path(table, by_id) if name in of_ids else table))
            if isinstance(found, LeadingTable):
                alike.setdefault(tuple(table.header) if words.is_table(name) else name, []).append(found)
        says = {name: self._in_lines(lines, labels) for name, lines in self.lines.items()}
        for group in alike.values():
            classes, columns = rows_in_classes(group, files.names, class_of, self._lookup)
            verdict = _in_columns(group[0], classes, columns)
            is_whole = len(set[int]().union(*(one.files for one in group))) == len(files)
            if verdict is Says.CLASSES and is_whole and len(columns) == 1:
                says |= dict.fromkeys((one.name for one in group), Says.SAME)
                says |= dict.fromkeys({ids} if group[0].name in of_ids else (), Says.SAME)
            elif verdict is not None:
                says |= {one.name: verdict for one in group if one.name in says}
        return says

    def _in_lines(self, lines: Sequence[tuple[str, Statement]], labels: Sequence[tuple[str, ...]]) -> Says:
        """Return what lines state that are no rows: the classes of the samples that they name, or something else."""
        named: dict[Statement, list[set[str]]] = {}
        for part, one in lines:
            rows = self._lookup.search(one.paths.get(part, part))
            named.setdefault(one, []).append({name for row in rows for name in labels[row]})
        agreeing = 0
        for one, classes in named.items():
            # Boxes and records say more of their sample than the path, and records may be about several classes.
            is_more = one.text.startswith("{") and one.text.count('": ') > 1
            is_more = is_more or len([word for word in one.words if NUMBER.fullmatch(word)]) >= _CORNERS
            shared = set.intersection(*classes) & {*one.words}
            agreeing += bool(shared) if is_more else not any(map(one.parts.isdisjoint, classes))
        return Says.CLASSES if agreeing >= _AGREEING * len(named) else Says.MORE


def _by_path(table: Table, by_id: Mapping[str, str]) -> Table:
    """Return a list of ids with paths instead."""
    bare = table.without_header()
    cells = [by_id.get(cell, cell) for column in bare.columns[:1] for cell in column.cells]
    return replace(bare, columns=[Column(words.PATHS[0], cells), *bare.columns[1:]])


def _in_columns(table: LeadingTable, classes: Sequence[Any], columns: Sequence[Column]) -> Says | None:
    """Return what the columns of tables like this one state, given the class of each row; `None` if each row has a word
    of its own, or all have one."""
    if columns_of_classes(classes, columns, has_header=table.has_header):
        return Says.CLASSES
    named = [one for one in columns if words.is_label_name(one.name)]
    beside = named or [one for one in columns if not {*map(str.lower, one.distinct)} <= words.SPLITS.keys()]
    dividing = [one for one in beside if 1 < len(one.distinct) < len(one)]
    if may_list_a_split(table.name) and any(same_partition(classes, one.cells) for one in dividing):
        return Says.CLASSES
    for one in dividing if len(dividing) == 1 else ():
        is_further = divides_further(classes, one.cells) or divides_further(one.cells, classes)
        return Says.MORE if is_further else Says.OTHER
    return Says.MORE if len(columns) > 1 or len(beside) < len(columns) else None


def other_rows(source: Source, table: SampleTable, texts: FileEntries) -> tuple[str, Sequence[str]]:
    """Return the first of some tables with a row for each sample, in their order or numbered, whose labels divide the
    samples otherwise, and these; nothing where none does."""
    values = table.targets.values if isinstance(table.targets, Values) else np.zeros(0)
    labels = values.tolist() if values.ndim == 1 else []
    called = texts.where(words.may_hold_labels)[:_HEADS] if labels else ()
    for name, found in source.parse_once(called, parse_table).items():
        rows = found if found.count == len(labels) else found.without_header()
        columns = [one for one in rows.columns if one.plain not in words.IDS and not words.is_index_name(one.name)]
        columns = [one for one in columns if words.is_label_name(one.name)] or columns
        others = [one for one in rows.columns if one not in columns]
        # Rows that have names, such as those of images, are in an order of their own.
        if rows.count != len(labels) or any(len(one.distinct) == rows.count and not one.is_numeric for one in others):
            continue
        numbers = next((one.numbers() for one in others), np.arange(len(labels)))
        # Numbers that are not those of all rows are something else.
        are_places = set(np.diff(np.sort(numbers)).tolist()) == {1.0}
        order = np.argsort(numbers) if are_places else np.arange(len(labels))
        cells = [[one.cells[row] for row in order.tolist()] for one in columns]
        agree = (divides_further(labels, own) or divides_further(own, labels) for own in cells)
        if len(cells) == 1 and not any(agree):
            return name, cells[0]
    return "", ()


def statements_in(source: Source, files: FileEntries) -> dict[str, list[Statement]]:
    """Return what the beginnings of some files state, those of the fewest folders first; nothing for other files than
    texts."""
    first = sorted(files, key=lambda entry: (entry.name.count("/"), entry.name))[:_HEADS]
    are_texts = ((one, extension_of(one.name) in TEXTS) for one in first)
    heads = {one.name: source.head(one, BEGINNING_BYTES) if is_text else b"" for one, is_text in are_texts}
    return {name: statements_of(decode_text(head)) for name, head in heads.items()}


def may_list_a_split(name: str) -> bool:
    """Tell whether a file is called as if it said which samples are held out."""
    stem = words.stem_of(name)
    return bool(words.split_name(stem).split) or not words.OF_SPLITS.isdisjoint(words.words_of(stem))
