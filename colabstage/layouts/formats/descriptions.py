"""What the description of a dataset states about its files: one in Croissant, as published by Kaggle, Hugging Face and
OpenML, or the `configs:` at the top of a README of the Hugging Face Hub, which say which files are of which split.

In Croissant, a record set is a table: of the files of a set and parts of their paths, of the rows of a table, or of
rows in the description itself. A field of the type `cr:Label`, or that refers to an enumeration, is the label, and one
that refers to splits is the split. Both then count like the columns of any table that names files, with the same
checks.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from dataclasses import replace
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import EmptySourceError
from colabstage.io.units import listed
from colabstage.layouts import words
from colabstage.layouts.columns import Column, show, split_of_cell
from colabstage.layouts.evidence import Evidence, Found, near, renumbered
from colabstage.layouts.formats.tables import Table, parse_table
from colabstage.layouts.reading import Source, broken, load_yaml
from colabstage.layouts.table import BrokenDatasetError, SampleTable, Values
from colabstage.trees.names import with_wildcards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from colabstage.layouts.rows import TableSearch

CROISSANT = "croissant"
EXTENSIONS = (".json", ".jsonld")
# croissant.json, or photos-metadata.json on Kaggle; if there are more such files, each is about one sample.
_CALLED, _MOST_FILES = re.compile(r"croissant|metadata", re.IGNORECASE), 16
_MARK, _HEAD_BYTES = b"mlcommons.org/croissant", 64 * 1024
_ROLES = {"TrainingSplit": "train", "ValidationSplit": "validation", "TestSplit": "test"}
_SLOW = re.compile(r"[*+}]\)?[*+{]|\([^()]*[*+{][^()]*\)[*+{]")


class _Field(NamedTuple):
    key: str
    name: str
    types: frozenset[str]
    refers_to: str
    """The key of the field from which its values come; "" if there is none."""
    resource: str
    """The files that it is read from; "" if its values are in the description."""
    column: str
    """The column, if these are tables; "" if their paths are read."""
    pattern: str
    fault: str
    """Why it cannot be read; "" if it can."""

    @property
    def title(self) -> str:
        return self.column or self.name

    def read(self, text: str) -> str:
        """Return what its pattern finds in a cell, or in a path starting at any folder."""
        parts = [text] if self.column else text.split("/")
        for start in range(len(parts) if self.pattern else 0):
            found = re.match(self.pattern, "/".join(parts[start:]))
            if found:
                return next(filter(None, found.groups()), found[0])
        return "" if self.pattern else text

    def cell(self, row: dict[str, Any]) -> str:
        value = row.get(self.key, row.get(self.name, ""))
        return value if isinstance(value, str) else json.dumps(value)


class _Records(NamedTuple):
    types: frozenset[str]
    fields: list[_Field]
    rows: list[dict[str, Any]]
    """Its records, if they are in the description."""


def read_description(source: Source) -> Description | None:
    """Return the description of a source; `None` if there is none."""
    entries = source.ending_in(EXTENSIONS).where(lambda name: bool(_CALLED.search(posixpath.basename(name))))
    chosen = entries if len(entries) <= _MOST_FILES else ()
    found = [entry for entry in chosen if _MARK in source.head(entry, _HEAD_BYTES)]
    if len(found) > 1:
        what = f"it describes a dataset, and so does '{found[1].name}'"
        raise broken(found[0].name, what, "one description; stage the folders one by one")
    if not found:
        return None
    try:
        return Description(source, found[0].name, json.loads(source.read(found[0])))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"it looks like a description in Croissant, and cannot be read as one ({show(error)})"
        raise broken(found[0].name, what) from error


class Description:
    """What one file describes: resources, which are files, and record sets."""

    def __init__(self, source: Source, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self._source = source
        self._resources = {_key(one): one for one in _all(content.get("distribution"))}
        self._sets = [_parse_records(one) for one in _all(content.get("recordSet"))]
        self._owners = {field.key: (one, field) for one in self._sets for field in one.fields}

    # --- what it states -----------------------------------------------------------------------------------------------

    def state_labels(self, search: TableSearch) -> Found:
        """Return what its label states about the files of a search."""
        labels = self._labels()
        if not labels or not self._is_about_these:
            msg = f"'{self.name}' describes no label of the files of '{self._source.label}'."
            raise EmptySourceError(msg)
        records, label = labels[0]
        fault = label.fault
        if len(labels) > 1:
            fault = f"it describes several labels, {listed([field.name for _, field in labels])}"
        elif label.resource and not self._files(label.resource):
            fault = f"the label '{label.name}' is in '{label.resource}', which is not there"
        if fault:
            return near(f"The label that '{self.name}' describes cannot be read: {fault}.")
        # Columns of one table have these in common.
        place = label.resource, bool(label.column)
        alike = [one for one in records.fields if (one.resource, bool(one.column)) == place and not one.fault]
        beside = list(filter(self._is_split, alike))
        tables = {table.name: table for table in self._tables(records, [label, *beside])}
        kind = search.kind._replace(layout=CROISSANT)
        found = replace(search, kind=kind, labels=[label.title], described=tables).state()
        if not isinstance(found, Evidence):
            return found
        made = _numbered(found.table, self._meanings(label))
        return replace(found, table=made, who=f"'{self.name}'", used=found.used | {self.name})

    def agreed(self, found: Evidence, described: Found, search: TableSearch) -> Evidence:
        """Return what some evidence states, with the described splits, unless it contradicts them; or unless it labels
        by chance while the described labels (`described`) cannot be read."""
        table, found = found.table, replace(found, used=found.used | {self.name})
        if not self._is_about_these:
            return found.noting(f"'{self.name}' describes other files than these.")
        weak = found.is_guess or table.targets is None
        if weak and not isinstance(described, Evidence) and described.near:
            msg = f'{described.error} layout="{table.layout}" does without it.'
            raise BrokenDatasetError(msg)
        return found.in_splits_of(self.name, self._splits_of_files(search))

    def _labels(self) -> list[tuple[_Records, _Field]]:
        """Return the label fields: those of that type, or otherwise those that refer to an enumeration."""
        every = [(one, field) for one in self._sets if not one.types for field in one.fields]
        typed = [(one, field) for one, field in every if "Label" in field.types]
        return typed or [(one, field) for one, field in every if "Enumeration" in self._types_behind(field)]

    def _splits_of_files(self, search: TableSearch) -> dict[str, str]:
        """Return the splits of the files that fields of splits name."""
        found: dict[str, str] = {}
        for records, field in self._owners.values():
            if records.types or field.fault or not self._is_split(field):
                continue
            tables = {table.name: table for table in self._tables(records, [field])}
            if field.resource and not field.column:
                (table,) = tables.values()
                path, split = (one.cells for one in table.columns)
                found |= {name: split_of_cell("split", cell) for name, cell in zip(path, split, strict=True) if cell}
                continue
            for one in replace(search, described=tables).leading:
                for path, cell in zip(one.path.cells, one.columns["split"].cells, strict=True):
                    there = search.lookup.search(path, posixpath.dirname(one.name)) if path in one.leads else ()
                    found |= {search.files.names[number]: split_of_cell("split", cell) for number in there}
        return found

    # --- files and tables ---------------------------------------------------------------------------------------------

    def _files(self, key: str) -> list[str]:
        """Return the existing files of a resource, in whatever folder."""
        resource = self._resources.get(key, {})
        url = str(resource.get("contentUrl") or "")
        paths = (url.partition("?")[0].rpartition("/")[2] if "://" in url else url, str(resource.get("name", "")), key)
        # In the name of a single file, brackets and stars are not a pattern.
        single = [re.sub(r"([*?[])", r"[\1]", path.removeprefix("./")) for path in paths if path]
        globs = [f"(?:.*/)?(?:{translate(one)})" for one in _all(resource.get("includes")) or single]
        names = self._source.files.names if resource else ()
        return list(filter(re.compile("|".join(globs)).match, names))

    @cached_property
    def _is_about_these(self) -> bool:
        return any(one.rows for one in self._sets if not one.types) or any(map(self._files, self._resources))

    def _tables(self, records: _Records, fields: Sequence[_Field]) -> list[Table]:
        """Return the tables whose columns these fields are, all in one place; with the words used here."""
        first = fields[0]
        if first.column:
            entries = self._source.ending_in(words.TABLES).where(set(self._files(first.resource)).__contains__)
            found = list(self._source.parse_once(entries, parse_table).values())
        else:
            names = self._files(first.resource)
            columns = [Column(title, names) for title in ("path", *(one.title for one in fields))]
            if not first.resource:
                columns = [Column(one.title, [one.cell(row) for row in records.rows]) for one in records.fields]
            found = [Table(self.name, columns)]
        return [replace(table, columns=self._translated(table, fields)) for table in found]

    def _translated(self, table: Table, fields: Sequence[_Field]) -> list[Column]:
        by_title = {field.title: field for field in fields}
        lost = by_title.keys() - set(table.header)
        if lost:
            raise broken(table.name, f"it has no column {listed(sorted(lost))}, which '{self.name}' describes")
        made = []
        for column in table.columns:
            field = by_title.get(column.name)
            if field is not None:
                meanings = self._meanings(field)
                known = {cell: field.read(cell) for cell in column.distinct}
                odd = next((cell for cell in known.values() if meanings and cell and cell not in meanings), None)
                if odd is not None:
                    what = f"'{field.name}' has the value '{show(odd)}' in '{table.name}'"
                    raise broken(self.name, what, f"one of {listed(list(meanings))}")
                cells = [meanings.get(known[cell], known[cell]) for cell in column.cells]
                column = Column("split" if self._is_split(field) else field.title, cells)  # noqa: PLW2901
            made.append(column)
        return made

    def _meanings(self, field: _Field) -> dict[str, str]:
        """Return the possible values of a field, with the name or split that each stands for; empty for any values."""
        if field.refers_to not in self._owners:
            return {}
        records, key = self._owners[field.refers_to]
        if "Split" in records.types:
            roles = {
                key.cell(row): [_ROLES[last] for cell in row.values() if (last := _last(cell)) in _ROLES]
                for row in records.rows
            }
            return {value: value if value in words.SPLITS else [*role, value][0] for value, role in roles.items()}
        name = next((one for one in records.fields if "name" in one.types or one.name == "name"), key)
        # Without what it refers to in turn, which may be itself.
        tables = [
            {one.name: one.cells for one in table.columns}
            for table in self._tables(records, [key._replace(refers_to="")])
        ]
        pairs = (zip(table[key.title], table.get(name.title, table[key.title]), strict=True) for table in tables)
        return {value: meant for pair in pairs for value, meant in pair}

    def _types_behind(self, field: _Field) -> frozenset[str]:
        """Return the types of the record set that a field refers to; empty if it refers to none."""
        return self._owners[field.refers_to][0].types if field.refers_to in self._owners else frozenset()

    def _is_split(self, field: _Field) -> bool:
        return "Split" in field.types | self._types_behind(field)


def _numbered(table: SampleTable, meanings: dict[str, str]) -> SampleTable:
    """Return the table with its classes numbered as in the description, if that counts them from 0."""
    names = list(dict.fromkeys(meanings.values()))
    is_counted = list(meanings) == [str(number) for number in range(len(names))] and {*table.classes} <= {*names}
    if not is_counted or not isinstance(table.targets, Values) or table.targets.values.ndim != 1:
        return table
    return replace(table, targets=renumbered(table.targets, table.classes, names), classes=tuple(names))


# --- Croissant's JSON -------------------------------------------------------------------------------------------------


def _parse_records(one: dict[str, Any]) -> _Records:
    types = frozenset(map(_last, _all(one.get("dataType")))) & {"Enumeration", "Split"}
    rows = [row for row in _all(one.get("data")) if isinstance(row, dict)]
    return _Records(types, [_parse_field(_key(one), field) for field in _all(one.get("field"))], rows)


def _parse_field(owner: str, one: dict[str, Any]) -> _Field:
    source, name = one.get("source") or {}, str(one.get("name") or one.get("@id", ""))
    steps = [*_all(source.get("extract")), *_all(source.get("transform"))]
    does = {key: str(value) for step in steps for key, value in step.items()}
    pattern = does.get("regex", "")
    is_path = does.get("fileProperty", "fullpath") in ("fullpath", "filepath", "filename")
    is_read = is_path and does.keys() <= {"column", "fileProperty", "regex"} and _is_quick_regex(pattern)
    return _Field(
        key=_key(one, owner),
        name=name.rpartition("/")[2],
        types=frozenset(map(_last, _all(one.get("dataType")))),
        refers_to=_reference(one.get("references")),
        resource=_reference(source.get("fileObject") or source.get("fileSet")),
        column=does.get("column", ""),
        pattern=pattern,
        fault="" if is_read else f"'{name}' is extracted by {show(json.dumps(does))}, which is not read",
    )


def _is_quick_regex(pattern: str) -> bool:
    """Tell whether it is a regular expression without a repetition of a repetition, which may take years."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return _SLOW.search(pattern) is None


def _all(value: Any) -> list[Any]:
    """Return a value that may be one or several as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _last(value: Any) -> str:
    """Return the last part of a term: Label for cr:Label, or for its whole address."""
    return re.sub(r".*[:/#]", "", str(value))


def _reference(value: Any) -> str:
    """Return the key in a reference: older descriptions have it as text."""
    while isinstance(value, dict):
        value = value.get("@id") or value.get("field")
    return str(value or "")


def _key(one: dict[str, Any], owner: str = "") -> str:
    """Return the key that refers to a resource, a record set or a field: older descriptions have only names."""
    return str(one.get("@id") or posixpath.join(owner, str(one.get("name", ""))))


# --- READMEs of the Hub -----------------------------------------------------------------------------------------------

# Other parts of the front matter describe licences, languages and features.
_CONFIGS = re.compile(r"^configs:.*\n(?:(?:[ #-].*)?\n)*", re.MULTILINE)
_OTHERWISE = "; any layout that is named in layout= does without them"


def splits_of_card(source: Source) -> tuple[str, dict[str, str]]:
    """Return the README, and the split of each file that its configurations name; no files if it has none that state
    splits. What the default configuration says of a file counts, whatever others say of it."""
    files = source.ending_in((".md",)).where(lambda name: posixpath.basename(name).lower() == "readme.md")
    depths = sorted(entry.name.count("/") for entry in files)
    # Of several side by side, none is about all files.
    if not depths or depths[:1] == depths[1:2]:
        return "", {}
    card = next(entry for entry in files if entry.name.count("/") == depths[0])
    text = "\n".join(source.text(card).splitlines())
    front = text.partition("\n---")[0] if text.startswith("---\n") else ""
    block = _CONFIGS.search(f"{front}\n")
    try:
        configs = [one for one in load_yaml(block[0])["configs"] if isinstance(one, dict)] if block else []
        stated = [[*_globs_of(filter(_is_default, configs))], [*_globs_of(itertools.filterfalse(_is_default, configs))]]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"its configs cannot be read ({show(error)})"
        raise broken(card.name, what, f"data_files with a split and a path{_OTHERWISE}") from error
    found: dict[str, str] = {}
    for globs in stated:
        own: dict[str, str] = {}
        for split, path in globs:
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(card.name), path))
            for name in filter(re.compile(with_wildcards(whole)).fullmatch, source.files.names):
                if name not in found and own.setdefault(name, split) != split:
                    what = f"'{card.name}' names it in the splits '{own[name]}' and '{split}'"
                    raise broken(name, what, f"one split in all configs, or a default one{_OTHERWISE}")
        found |= own
    splits = {*found.values()}
    # A single split that is called full, or all, divides nothing.
    return card.name, {} if len(splits) == 1 and splits.isdisjoint(words.SPLIT_ORDER) else found


def _is_default(config: dict[str, Any]) -> bool:
    return config.get("config_name") == "default" or str(config.get("default")).lower() == "true"


def _globs_of(configs: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each split that configurations name, as it is stored, with each of its paths, which may have wildcards."""
    for config in configs:
        parts = config.get("data_files") or ()
        if isinstance(parts, dict):
            parts = [{"split": split, "path": paths} for split, paths in parts.items()]
        # A path alone states no split.
        for part in (one for one in parts if isinstance(one, dict) and "split" in one):
            split, paths = part["split"], part["path"]
            for path in paths if isinstance(paths, list) else [paths]:
                yield words.split_name(split).split or split, posixpath.join(config.get("data_dir", ""), path)
