"""Evidence of lists: which samples belong to which split, by lists of names; and what the classes are called."""

from __future__ import annotations

import itertools
import operator
import posixpath
import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.arguments import show_content
from colabstage.io.units import counted, format_count, left_out, listed
from colabstage.layouts import words
from colabstage.layouts.columns import Column, same_partition, show, splits_of_column
from colabstage.layouts.evidence import Evidence, class_of_samples, take_rows
from colabstage.layouts.formats.tables import NESTED, Table, parse_table
from colabstage.layouts.reading import BEGINNING_BYTES, Source, broken, decode_text, lines_of, load_yaml
from colabstage.layouts.table import BrokenDatasetError, SampleTable, files_of
from colabstage.trees.listing import FileEntries, folders_of, take_strings

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


# --- files by the names that people write for them: in tables, lists and annotations ----------------------------------

# Label Studio puts digits before the name of an uploaded image.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")
# Returned instead of a file's number if a name matches no file, or several.
NONE, SEVERAL = -1, -2


class Lookup:
    """One index of names, for everything that names files.

    A name is looked up, in this order: as a path, from the folder of the naming file or from the root; the same without
    leading folders, as needed for an absolute path of another machine; as the end of a path. Each with the extension,
    then without, then as other systems write it. If a folder is written and exists, the file must be in it, and a file
    of one split is never found for another: what is missing stays missing.
    """

    def __init__(self, names: Iterable[str], folders: Iterable[str] | None = None) -> None:
        self.names = words.normal_names(names)
        folders = folders_of(self.names)[0] if folders is None else map(words.normal, folders)
        self._folders = {part for folder in folders for part in folder.split("/") if part}
        self.splits = {words.split_name(folder).split for folder in self._folders if words.is_split(folder)}
        """Those after which folders are called."""

    @classmethod
    def of(cls, files: FileEntries) -> Lookup:
        return cls(files.names, files.folders[0])

    # Each index is built when first needed: for a million names each takes a second.

    @cached_property
    def numbers(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    @cached_property
    def _by_base(self) -> _Index:
        return _Index([name[name.rfind("/") + 1 :] for name in self.names])

    @cached_property
    def _by_stem(self) -> _Index:
        return _Index(words.stems_of(self.names))

    @cached_property
    def _by_spelling(self) -> _Index:
        return _Index([_spelled(name[name.rfind("/") + 1 :]) for name in self.names])

    def __len__(self) -> int:
        return len(self.names)

    def held_out(self, splits: Collection[str]) -> set[str]:
        """Return the splits that have no folder, if another has one: their samples are in the folder of another."""
        bare = {split for split in splits if split and not any(words.same_split(split, one) for one in self.splits)}
        return bare if bare != {*splits} - {""} else set()

    def may_find(self, written: str) -> bool:
        """Tell whether there is a file with this bare name, somewhere: a quick check before `search`."""
        base = words.normal(written).replace("\\", "/").rstrip("/").rpartition("/")[2]
        return bool(self._by_base.get(base) or self._by_stem.get(base) or self._spelled_otherwise(base))

    def unknown(self, written: Iterable[str]) -> set[str]:
        """Return what is not the bare name of a file, with its extension."""
        return set(written).difference(self._by_base.last)

    def search_each(self, written: Iterable[str], folder: str = "") -> tuple[dict[str, int], int]:
        """Return for each name the number of its file, if any, or `SEVERAL` if ambiguous; and how many names have the
        file's extension."""
        names, bases = list(written), self._by_base
        # In nearly all tables each name is the base name of one file, which this finds in a tenth of the time.
        found = dict(zip(names, map(bases.last.get, names, itertools.repeat(NONE)), strict=True))
        if bases.several or NONE in found.values():
            found = {name: one for name, one in found.items() if one != NONE and name not in bases.several}
        whole = len(found)
        for name in names if len(found) < len(names) else ():
            if name not in found and (numbers := self.search(name, folder)):
                found[name] = numbers[0] if len(numbers) == 1 else SEVERAL
                path = self.names[numbers[0]]
                whole += words.normal(name).endswith(path[path.rfind("/") + 1 :]) or _spelled(name) != ""
        return found, whole

    def find(self, written: str, folder: str = "", *, split: str = "") -> int:
        """Return the number of the one file that is meant; `NONE` or `SEVERAL` otherwise."""
        found = self.search(written, folder, split=split)
        return found[0] if len(found) == 1 else SEVERAL if found else NONE

    def search(self, written: str, folder: str = "", *, split: str = "") -> Sequence[int]:
        """Return the numbers of the files that may be meant: none, one, or several that cannot be distinguished.
        `folder`: that of the naming file."""
        written = words.normal(written)
        if "/" not in written and "\\" not in written and not split:
            # The common case in nearly all tables: a base name of exactly one file.
            numbers = self._by_base.get(written) or self._by_stem.get(written) or self._spelled_otherwise(written)
            if len(numbers) < 2:
                return numbers
        folder = words.normal(folder)
        parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".")]
        if ".." in parts:
            parts = posixpath.normpath(posixpath.join(folder, *parts)).split("/")
        if not parts:
            return ()
        path = "/".join(parts)
        for whole in (posixpath.join(folder, path), path):
            if whole in self.numbers:
                return [self.numbers[whole]]
        # A written folder is stronger evidence than the row's split.
        split = next((words.split_name(part).split for part in reversed(parts[:-1]) if words.is_split(part)), split)
        for index in (self._by_base, self._by_stem):
            if there := self._nearest(parts, folder, index.get(parts[-1]), split):
                return there
        return self._nearest(parts, folder, self._spelled_otherwise(parts[-1]), split)

    def _spelled_otherwise(self, base: str) -> Sequence[int]:
        """Return the numbers of the files that another system would call so."""
        spelled = _spelled(base)
        names = (spelled, _UPLOADED.sub("", spelled)) if spelled else ()
        return next(filter(None, map(self._by_spelling.get, names)), ())

    def _nearest(self, parts: list[str], folder: str, numbers: Sequence[int], split: str) -> Sequence[int]:
        """Return the files with the right base name whose folders agree best with the written path."""
        written = parts[:-1]
        by_depth: dict[int, dict[int, list[str]]] = defaultdict(dict)
        for number in numbers:
            other = words.split_of_path(self.names[number]) if split else ""
            if other and not words.same_split(other, split):
                continue
            folders = self.names[number].split("/")[:-1]
            depth = _common(reversed(written), reversed(folders))
            # Any earlier part that is a folder here must be among the file's folders.
            if self._folders.intersection(written[: len(written) - depth]).issubset(folders):
                by_depth[depth][number] = folders
        if not by_depth:
            return ()
        depth, ends = max(by_depth.items())
        wanted = written[len(written) - depth :]
        for place in ([*filter(None, folder.split("/")), *wanted], wanted):
            if exact := [number for number, folders in ends.items() if folders == place]:
                return exact
        # One of several is meant if it alone is nearest to the naming file (a/ann and a/img, json/a and img/a).
        own = [*filter(None, folder.split("/"))]
        shared = {one: _common(own, there) + _common(own[::-1], there[::-1]) for one, there in ends.items()}
        nearest = [number for number in ends if shared[number] == max(shared.values())]
        return nearest if len(nearest) == 1 else list(ends)


def _common(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many of the first parts of two paths are the same."""
    return sum(1 for _ in itertools.takewhile(bool, map(operator.eq, one, other)))


def _spelled(name: str) -> str:
    """Return the name of an image or a clip without what other systems write otherwise: case, the ending of a format,
    blanks in addresses; "" for another name."""
    # In an address a query may follow.
    stem, ending = posixpath.splitext(unquote(name.partition("?")[0]).casefold())
    return f"{stem}{'.jpg' if ending in words.JPEGS else ending.replace('ff', 'f')}" if words.is_sample(ending) else ""


class _Index:
    """The positions of names in a list, nearly all of which are different."""

    def __init__(self, names: list[str]) -> None:
        self.last = dict(zip(names, range(len(names)), strict=True))
        """The last place of each."""
        self.several: dict[str, list[int]] = {}
        """All places of those that have more than one."""
        if len(self.last) < len(names):
            for number, name in enumerate(names):
                if self.last[name] != number:
                    self.several.setdefault(name, []).append(number)
            for name, numbers in self.several.items():
                numbers.append(self.last[name])

    def get(self, name: str) -> Sequence[int]:
        found = self.several.get(name)
        return found if found is not None else (self.last[name],) if name in self.last else ()


def held_out_of_others(
    lookup: Lookup, splits: Mapping[str, str], named: Mapping[str, Collection[Hashable]]
) -> set[str]:
    """Return those of some tables or annotations, by name, whose splits are held out of a folder of another, given the
    split of each, and which samples each names: another that names one of these may be of other samples."""
    counts = Counter(itertools.chain.from_iterable(map(set, named.values())))
    bare = lookup.held_out(splits.values())
    return {name for name, split in splits.items() if split in bare and all(counts[one] == 1 for one in named[name])}


# --- lists of splits --------------------------------------------------------------------------------------------------

LIST_ENDS = (".txt", ".lst")
# An extension, or one word with a number, which sentences and remarks are not.
_NAME = re.compile(r"\.\w+$|^\S*\d\S*$")
# What follows the name of an image in that of a numbered part of it: a tile, a frame.
_PART = re.compile(r"[ _.-]\d+(\.\w+)?$")
_OF_CELLS = (".csv", ".tsv", ".jsonl")
# Three splits and some folds; more text files than this are one per sample.
MOST_LISTS = 16
# Words that people combine with the split in a list's name.
_BESIDE_LISTS = frozenset({"list", "files", "filenames", "paths", "split", "ids", "idx", "indices"})


class _Rows(NamedTuple):
    """The files of samples by name; several rows of a table may be of one file."""

    lookup: Lookup
    files: NDArray[np.int64]
    """The number of each row's file."""
    firsts: NDArray[np.int64]
    """The first row of each file."""

    @classmethod
    def of(cls, source: Source, entries: FileEntries) -> _Rows:
        """Return those of N rows with N files."""
        lookup = source.made_of(entries, Lookup.of)
        names, rows = lookup.names, np.arange(len(lookup))
        lookup = lookup if len(lookup.numbers) == len(names) else Lookup(lookup.numbers)
        files = np.fromiter(map(lookup.numbers.__getitem__, names), np.int64, len(names))
        firsts = np.zeros(len(lookup), np.int64)
        firsts[files[::-1]] = rows[::-1]
        return cls(lookup, files, firsts)


class _Lines(NamedTuple):
    """What the lines of a list state."""

    splits: Sequence[str] = ()
    paths: Sequence[str] = ()
    more: Sequence[str] = ()
    """What is behind each path, if anything is behind any."""


class _Named(NamedTuple):
    """The samples' files that a list names, N in its order."""

    name: str
    files: NDArray[np.int64]
    splits: Sequence[str]
    beside: Sequence[str]
    """The number of a class that is written after each name, "" for none; nothing if it has none at all."""
    missing: int
    """How many other names are those of no file."""


def lists_state(source: Source, found: Evidence, *, stated: dict[str, str] | None = None, within: str = "") -> Evidence:
    """Add the splits of samples from lists named after splits, and from tables of a path and a split, if there are any.

    A list has one path in each line, with or without its extension, from whichever folder on. What none names is left
    out if there is a list of what to train on, and otherwise trained on. Several of one split are folds, of which
    nobody can say which is meant. Lists may hold samples out of a folder 'train'; otherwise they only have to agree
    where something else states the splits.
    `stated`: the lists with their splits, where something says which they are. `within`: the end of the folders whose
    lists go before all others, as Pascal VOC has them: also of several datasets, and if they name other files as well.
    """
    table, files = found.table, files_of(found.table)
    if not files:
        return found
    own = dict[str, str]()
    if within and stated is None:
        texts = source.ending_in(LIST_ENDS).where(lambda name: f"/{posixpath.dirname(name)}".endswith(f"/{within}"))
        own = _listed_splits(texts, found)
    called, others = (stated or own, {}) if stated or own else _lists_beside(source, found)
    names, within = others | called, within if own else ""
    if not names or len(called) > MOST_LISTS:
        return found
    rows = _Rows.of(source, files)
    ids, by_id = paths_by_id(source, rows.lookup)
    lists, held_out = _Reader(source, table, rows, names, {*called}, within, by_id).read()
    if within and not lists:
        raise broken(source.label, f"the lists in {within} name none of its {table.unit}", "its own lists, or none")
    used, splits = [one.name for one in lists], {split for one in lists for split in one.splits}
    # A table of what is trained on may leave out others for many reasons.
    if not lists or (splits == {"train"} and all(names[name] and words.is_table(name) for name in used)):
        return found
    if table.splits is None or not held_out.isdisjoint(splits):
        by_name = [names[name] + posixpath.splitext(name)[1] for name in used if names[name] and stated is None]
        count = len(np.unique(np.concatenate([one.files for one in lists])))
        is_all = "train" not in splits and count == len(rows.lookup)
        # Lists are folds, or nothing is left to train on.
        if (len({*by_name}) < len(by_name) and not within) or is_all:
            which = f"{listed(sorted(used))}, which may say what is held out"
            found = found.noting(f"Not read: {which}. Lists train.txt and val.txt are read.")
            return replace(found, used=found.used.union(used))
        table = _with_listed_splits(source, rows, table, lists)
    if found.is_guess:
        _check_numbers(source, found, rows, lists)
    return replace(found, table=table, used=found.used.union(used, {ids} - {""}))


class _Reader(NamedTuple):
    """Finds the samples that lists name."""

    source: Source
    table: SampleTable
    rows: _Rows
    names: Mapping[str, str]
    """The lists with their splits; "" where each line has its own."""
    called: Collection[str]
    """Those that can be nothing else."""
    within: str
    by_id: Mapping[str, str]

    def read(self) -> tuple[list[_Named], set[str]]:
        """Return the lists of the samples; and the splits that they hold out of a folder 'train', without one of their
        own."""
        lines = _lines_of(self.source, self.names, self.rows.lookup)
        there: dict[str, NDArray[np.int64]] = {}
        for name, own in lines.items():
            for way in self._ways(name, own):
                if (files := self._files(name, way.paths)) is not None:
                    there[name], lines[name] = files, way
                    break
        stated = {split for name in there for split in lines[name].splits}
        # What a list of train does not name is never trained on, and often a test was not published.
        is_stated = self.table.splits is not None or "train" in stated
        for name in () if is_stated else sorted(lines.keys() - there.keys()):
            self._refuse_lost(name, lines[name])
        held_out = Lookup((), self.source.files.folders[0]).held_out(stated)
        read = (self._named(name, files, lines[name], held_out) for name, files in there.items())
        return [one for one in read if one is not None], held_out

    def _ways(self, name: str, lines: _Lines) -> Iterator[_Lines]:
        """Yield the lines of a list as they are; with what is before the first blank or comma as the path; without the
        extensions, which are those of other files of the samples; and with the files in the folders that they name."""
        yield lines
        cells = [re.split(r"[\s,;|]+", path) for path in lines.paths]
        yield lines._replace(paths=[one[0] for one in cells], more=[one[1] if len(one) == 2 else "" for one in cells])
        if name in self.called:
            yield lines._replace(paths=[posixpath.splitext(path)[0] for path in lines.paths])
            yield _in_folders(lines, self.rows.lookup.names, posixpath.dirname(name))

    def _files(self, name: str, paths: Sequence[str]) -> NDArray[np.int64] | None:
        """Return the number of each path's file; `None` for a list of other files, or of classes."""
        paths = [self.by_id.get(path, path) for path in paths] if self.by_id else paths
        lookup = self.rows.lookup
        alone, whole = lookup.search_each(paths, posixpath.dirname(name))
        files = np.fromiter(map(alone.get, paths, itertools.repeat(NONE)), np.int64, len(paths))
        # What is found nowhere, but has the name of a file, is a mistake.
        files[[place for place in np.flatnonzero(files == NONE).tolist() if lookup.may_find(paths[place])]] = SEVERAL
        count = np.count_nonzero(files != NONE)
        # Of a list for more files there may be a part; a few numbers are those of files by chance.
        is_list = self.within or (name in self.called and whole)
        return files if count and (is_list or 2 * count >= len(paths)) else None

    def _refuse_lost(self, name: str, lines: _Lines) -> None:
        """Refuse a list that names neither samples nor other files, unless it has a row for each split, words, or
        numbered parts of the samples, which are still to be cut."""
        paths = lines.paths if name in self.called and not self.within else ()
        is_of_splits = not self.names[name] and len({*lines.splits}) == len(lines.splits)
        if not paths or is_of_splits or not all(map(_NAME.search, paths)):
            return
        every = Lookup.of(self.source.files)
        there = sum(every.may_find(path) or every.may_find(_PART.sub("", path)) for path in paths)
        if 2 * there < len(paths):
            first = next(path for path in paths if not self.rows.lookup.may_find(path))
            which = f"'{show(first)}', and one of the {self.table.unit} is called '{self.table.keys[0]}'"
            why = f"files most of which are not there (first {which})"
            raise _contradiction(self.source, self.names, name, why, self.table)

    def _named(self, name: str, files: NDArray[np.int64], lines: _Lines, held_out: set[str]) -> _Named | None:
        """Return what a list names; `None` if that cannot be told, and it may be no list."""
        named = np.flatnonzero(files != NONE)
        # Where nothing else states splits, whatever was found alone is meant.
        is_free = self.table.splits is None and not self.within
        for place in np.flatnonzero(files == SEVERAL).tolist() if is_free else named.tolist():
            path, split = lines.paths[place], lines.splits[place]
            if self.within or files[place] == SEVERAL or not self._fits(files[place], split, held_out):
                number, why = self._file_of(self.by_id.get(path, path), name, split, held_out)
                if why and name not in self.called and (files[place] == SEVERAL or "/" not in path):
                    return None
                if why:
                    raise _contradiction(self.source, self.names, name, why, self.table)
                files[place] = number
        beside = take_strings(lines.more, named) if lines.more else ()
        return _Named(name, files[named], take_strings(lines.splits, named), beside, len(files) - len(named))

    def _fits(self, number: int, split: str, held_out: Collection[str]) -> bool:
        """Tell whether a file may be of a split."""
        own = split if self.table.splits is None else self.table.splits[self.rows.firsts[number]]
        return words.same_split(own, split) or (own == "train" and split in held_out)

    def _file_of(self, path: str, name: str, split: str, held_out: Collection[str]) -> tuple[int, str]:
        """Return the number of the one file that a line of a list means; or why there is none."""
        lookup = self.rows.lookup
        there = [*lookup.search(path, posixpath.dirname(name))]
        # Several datasets may have images of one name.
        root = words.normal(posixpath.dirname(name).removesuffix(self.within)) if self.within else ""
        there = [number for number in there if lookup.names[number].startswith(root)] or there
        own = [number for number in there if self._fits(number, split, held_out)]
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(own) == 1:
            return own[0], ""
        if own:
            return SEVERAL, f"'{path}', which is '{lookup.names[own[0]]}' or '{lookup.names[own[1]]}'"
        if there and self.table.splits is not None:
            stated = self.table.splits[self.rows.firsts[there[0]]]
            return NONE, f"'{lookup.names[there[0]]}', which is in the split '{stated}'"
        return NONE, f"'{path}', which is in another folder"


def _lists_beside(source: Source, found: Evidence) -> tuple[dict[str, str], dict[str, str]]:
    """Return the lists, and the tables of a path alone or with a split, with the split that each is called after, ""
    where its rows state one; and tables of more columns that may state splits."""
    files = source.ending_in((*LIST_ENDS, *_OF_CELLS, *NESTED)).without(found.used)
    called = _listed_splits(source.ending_in(LIST_ENDS), found)
    stating = files.ending_in((*LIST_ENDS, *NESTED)).where(_is_of_splits)[:MOST_LISTS]
    tables = dict(source.parse_once(stating.without(called), parse_table))
    for one in files.ending_in(_OF_CELLS)[:MOST_LISTS]:
        tables[one.name] = parse_table(one.name, source.head(one, BEGINNING_BYTES).partition(b"\n")[0])
    others = dict[str, str]()
    for name, table in tables.items():
        is_stated = any(column.plain in words.SPLIT_FIELDS for column in table.columns)
        split = "" if is_stated else words.split_name(words.stem_of(name)).split
        if is_stated or (split and words.is_table(name)):
            can_be_more = len(table.columns) > 1 and not words.states_splits(table.header)
            (others if can_be_more else called)[name] = split
    of_names = files.ending_in((".json",)).where(lambda name: _listed_split(name) != "")[:MOST_LISTS]
    alone = (one for one in of_names if re.match(rb'\s*\[\s*"', source.head(one, BEGINNING_BYTES)))
    called |= {one.name: _listed_split(one.name) for one in alone}
    return called, others if len(others) <= MOST_LISTS else {}


def may_be_list(name: str) -> bool:
    """Tell whether a file is called as lists of splits are, and what else states splits alone."""
    return _listed_split(name) != "" or _is_of_splits(name)


def _is_of_splits(name: str) -> bool:
    """Tell whether a file is called after the field or the words for splits."""
    return words.split_field(name) != "" or not words.OF_SPLITS.isdisjoint(words.words_of(words.stem_of(name)))


def paths_by_id(source: Source, lookup: Lookup) -> tuple[str, dict[str, str]]:
    """Return the list that gives each path an id, and the paths by these, which other lists name: CUB's images.txt has
    `1 cat/1.jpg`, its train_test_split.txt `1 0`. Without such a list, nothing."""
    texts = source.ending_in(LIST_ENDS)
    for entry in texts if len(lookup) and len(texts) <= MOST_LISTS else ():
        first, *more = decode_text(source.head(entry, BEGINNING_BYTES)).partition("\n")[0].split() or [""]
        is_path = len(more) == 1 and posixpath.splitext(more[0])[1] and lookup.may_find(more[0])
        if is_path and not lookup.may_find(first):
            pairs = list(map(str.split, lines_of(source.text(entry))))
            if {*map(len, pairs)} == {2} and len(found := dict(pairs)) == len(pairs):
                return entry.name, found
    return "", {}


def _listed_splits(files: FileEntries, found: Evidence) -> dict[str, str]:
    """Return the unused lists that are called after splits, with these."""
    names = [name for name, size in zip(files.names, files.sizes, strict=True) if size]
    own = {name: split for name in names if (split := _listed_split(name))}
    # trainval.txt repeats the two others, if they exist, beside it or in a folder above or below, and are not empty.
    halves = {posixpath.dirname(name) for name, split in own.items() if split != "test"}
    for name, folder in [(one, posixpath.dirname(one)) for one in names if words.stem_of(one).lower() == "trainval"]:
        if all(posixpath.commonpath((folder, half)) not in (folder, half) for half in halves):
            own[name] = "train"
    return {name: split for name, split in own.items() if name not in found.used}


def _listed_split(name: str) -> str:
    """Return the split that a file lists according to its name: train.txt, TestImages.txt, validation_list.txt; "" for
    train_test_split.txt."""
    read = words.split_name(words.stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _lines_of(source: Source, names: Mapping[str, str], lookup: Lookup) -> dict[str, _Lines]:
    """Return what lists state, by name; those without a split in `names` have it in each row, or for each list."""
    entries = source.ending_in((*LIST_ENDS, *words.TABLES, *NESTED, "")).where(names.__contains__)
    texts = entries.ending_in((*LIST_ENDS, "")).where(lambda name: names[name] != "")
    written = {name: lines_of(text) for name, text in source.texts(texts).items()}
    lines = {name: _Lines([names[name]] * len(own), own) for name, own in written.items()}
    tables = source.parse_once(entries.without(texts.names), parse_table)
    return lines | {name: _rows_in(table, names[name], lookup) for name, table in tables.items()}


def _rows_in(table: Table, split: str, lookup: Lookup) -> _Lines:
    """Return what the column that leads to most files names, with the split of the table or in each row; nothing if a
    table of more columns states no splits."""
    column, *paths = sorted(table.columns, key=lambda one: one.plain not in words.SPLIT_FIELDS) or [Column("", ())]
    is_alone = words.states_splits(table.header)
    try:
        splits = [] if split else splits_of_column(column)
    except LayoutError as error:
        if is_alone:
            raise broken(table.name, str(error).rstrip(".")) from error
        splits = []
    if table.fault and is_alone:
        raise BrokenDatasetError(table.fault)
    paths = table.columns if split else paths
    if table.fault or not paths or not (split or splits):
        return _Lines()
    path = paths[0] if len(paths) == 1 else max(paths, key=lambda one: lookup.search_each(one.distinct)[1])
    # Without a header, the first row is one.
    cells = [path.name, *path.cells] if split and lookup.search(path.name) else path.cells
    return _Lines(splits or [split] * len(cells), words.normal_names(cells))


def _in_folders(lines: _Lines, names: Sequence[str], folder: str) -> _Lines:
    """Return the files in the folders that a list in a folder names instead of these."""
    parts = [[*itertools.accumulate(name.split("/")[:-1], posixpath.join)] for name in names]
    folders = sorted({*itertools.chain.from_iterable(parts)})
    leads, _ = Lookup(folders).search_each(lines.paths, folder)
    stated = zip(lines.paths, lines.splits, strict=True)
    split_of = {folders[leads[path]]: split for path, split in stated if leads.get(path, NONE) >= 0}
    found = [(split_of[part], name) for name, own in zip(names, parts, strict=True) for part in own if part in split_of]
    return _Lines([split for split, _ in found], [name for _, name in found])


def _check_numbers(source: Source, found: Evidence, rows: _Rows, lists: list[_Named]) -> None:
    """Refuse numbers after the names, which are classes in Caffe's lists, that divide the samples otherwise than what
    is guessed to be their classes."""
    # One number for all samples, or a different one for each, is not a class.
    kinds = {text for one in lists for text in one.beside or [""]}
    labels = class_of_samples(found.table) if len(kinds) > 1 and all(map(_NUMBER.fullmatch, kinds)) else []
    beside = (pair for one in lists for pair in zip(one.files.tolist(), one.beside, strict=False))
    numbered = [(labels[rows.firsts[number]], text) for number, text in beside] if labels else []
    if len(kinds) < len(numbered) and not same_partition(*zip(*numbered, strict=True)):
        why = f"samples with numbers that divide them otherwise than {found.who}"
        how = "Where they are the labels, write a table with a path, a label and a split in each row in its place."
        names = {one.name for one in lists}
        msg = f"{_contradiction(source, names, lists[0].name, why, found.table)} {how}"
        raise BrokenDatasetError(msg)


def _contradiction(source: Source, lists: Iterable[str], file: str, why: str, table: SampleTable) -> BrokenDatasetError:
    # Folders alone are read if they are named; everything else is always read with the existing lists.
    without = "have none read: layout='image_folder' takes folders alone"
    if table.layout != "image_folder":
        alike = {name for name in lists if posixpath.splitext(name)[1] == posixpath.splitext(file)[1]}
        which, only = listed(sorted(alike)), source.only(source.without(alike).files.names, alike)
        without = f"leave {which} out: {only}" if only else f"move {which} away"
    return BrokenDatasetError(f"The list '{file}' names {why}. Correct the list, or {without}.")


def _with_listed_splits(source: Source, rows: _Rows, table: SampleTable, lists: list[_Named]) -> SampleTable:
    """Return the samples with the splits of lists, and with those of folders that hold others out."""
    files = [one.name for one in lists]
    splits = list(dict.fromkeys(split for one in lists for split in one.splits))
    is_divided = splits != ["train"]
    # The number of each file's split.
    of = np.full(len(rows.lookup), -1)
    for one in lists:
        numbers, before = np.fromiter(map(splits.index, one.splits), np.int64, len(one.files)), of[one.files]
        of[one.files] = numbers
        # A file in two lists would be trained and tested on.
        differ = (of[one.files] != numbers) | ((before >= 0) & (before != numbers))
        for twice in one.files[differ][:1].tolist():
            other = next(each.name for each in lists if twice in each.files)
            again = "twice" if other == one.name else f"and so does '{other}'"
            raise _contradiction(source, files, one.name, f"'{table.keys[rows.firsts[twice]]}', {again}", table)
    of = of[rows.files]
    by_folder = table.splits or ()
    for row in np.flatnonzero(of < 0).tolist() if by_folder else ():
        if (own := by_folder[row]) != "train":
            splits += [] if own in splits else [own]
            of[row] = splits.index(own)
    what, more = ("Splits", "") if is_divided else (f"The {table.unit}", "; none is held out")
    rest = np.flatnonzero(of < 0).size
    lost = [counted(one.missing, "names", "match", which=f"in '{one.name}'") for one in lists if one.missing]
    notes = [f"{what} are those of {' and '.join(map(repr, files))}{more}.", *(f"{one} no file." for one in lost)]
    if rest:
        trained = f"The split 'train' has {format_count(rest, table.unit)} that no list names."
        notes.append(f"{left_out(rest, table.unit, 'that no list names')}." if "train" in splits else trained)
    if "train" not in splits:
        # People list what they hold out and train on the rest.
        of[of < 0] = len(splits)
        splits.append("train")
    chosen = np.flatnonzero(of >= 0)
    made = take_rows(table, chosen)
    # What is all to train on may still be divided.
    called = tuple(take_strings(splits, of[chosen])) if is_divided else None
    return replace(made, splits=called, notes=(*table.notes, *notes))


# --- lists of names and data.yaml, which tools write beside numbered boxes: classes, keypoints, splits ----------------

_NAME_LISTS = ("classes.txt", "_classes.txt", "obj.names", "classes.names", "_darknet.labels", "predefined_classes.txt")
_SETTINGS = (".yaml", ".yml", ".data")
_MENTIONS = re.compile(r"^(names|kpt_shape|train|val|test)\s*:", re.MULTILINE)
# Beyond this, numbers are not classes.
MOST_CLASSES = 1_000_000
_NUMBER = re.compile(r"\d{1,8}", re.ASCII)


class ClassList(NamedTuple):
    names: tuple[str, ...]
    """The classes in label order; empty if there are none."""
    keypoints: tuple[int, int] = (0, 0)
    """Number of keypoints, and how many numbers each has; (0, 0) for boxes without keypoints."""
    splits: Mapping[str, Sequence[str]] = {}
    """The folders and lists of each split, as written."""


def read_class_list(source: Source) -> tuple[list[str], ClassList]:
    """Return the files of a source that say what its classes are, and what they say."""
    files = source.ending_in((*_SETTINGS, ".txt", ".names", ".labels")).where(is_class_list)
    entries = sorted(files, key=lambda entry: (entry.name.count("/"), entry.name))
    made = {entry.name: parse_class_list(entry.name, source.read(entry)) for entry in entries}
    found = {name: one for name, one in made.items() if one != ClassList(())}
    names = {one.names: name for name, one in reversed(found.items()) if one.names}
    check_one_list(names)
    return list(found), ClassList(
        next(iter(names), ()),
        next((one.keypoints for one in found.values() if one.keypoints != (0, 0)), (0, 0)),
        next((one.splits for one in found.values() if one.splits), {}),
    )


def check_one_list(names: Mapping[tuple[str, ...], str]) -> None:
    """Refuse several lists of names of the classes, by what each says, the first one last."""
    if len(names) > 1:
        (other, second), (first, one) = list(names.items())[-2:]
        msg = f"'{one}' names the classes {listed(first, 4)}, and '{second}' {listed(other, 4)}. Give all one list."
        raise BrokenDatasetError(msg)


def names_of_numbers(names: Sequence[str], numbers: Mapping[str, Sequence[int]]) -> Sequence[str]:
    """Return the names of the classes that files number; without a list of them, all numbers up to the highest one."""
    count = 1 + max(itertools.chain.from_iterable(numbers.values()), default=-1)
    names = names or [str(number) for number in range(min(count, MOST_CLASSES))]
    # Too few names are those of another dataset, or of an older state of this one.
    for name, found in numbers.items() if count > len(names) else ():
        if max(found, default=-1) >= len(names):
            what = f"there is no class {show(max(found))}; {len(names)} are named ({show(names[0])}, …)"
            raise broken(name, what, f"numbers that count from 0, up to {len(names) - 1}")
    return names


def is_class_list(name: str) -> bool:
    """Tell whether a file's name suggests that it says what the classes are."""
    is_named = posixpath.basename(name).lower() in _NAME_LISTS
    return is_named or (name.lower().endswith(_SETTINGS) and not _is_of_splits(name))


def parse_class_list(name: str, content: bytes) -> ClassList:
    """Return what a file says. Pure.

    >>> parse_class_list("data.yaml", b"nc: 2\\nnames: [dog's toy, 'no']").names
    ("dog's toy", 'no')
    >>> parse_class_list("data.yaml", b"names:\\n  0: car  # the first\\n  1: dog\\nkpt_shape: [17, 3]").keypoints
    (17, 3)
    """
    text = decode_text(content)
    # A plain list has one name per line, and no keypoints.
    if posixpath.basename(name).lower() in _NAME_LISTS:
        return ClassList(tuple(words.normal(line.strip()) for line in text.splitlines() if line.strip()))
    if name.lower().endswith(".data"):
        # Darknet's: train = data/train.txt.
        pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
        found: Any = {key.strip().lower(): value.strip() for key, _, value in pairs}
        found.pop("names", None)
    else:
        try:
            found = load_yaml(text) if _MENTIONS.search(text) else None
        except ValueError as error:
            raise _odd(name, show(error)) from error
    if not isinstance(found, dict):
        return ClassList(())
    names, count, shape = _in_order(name, found.get("names")), found.get("nc"), found.get("kpt_shape", ["0", "0"])
    if names and count is not None and count != str(len(names)):
        raise broken(name, f"it says nc: {show(count)} and names {len(names):,} classes", "as many names as nc says")
    is_pair = isinstance(shape, list) and [*map(type, shape)] == [str, str]
    if not is_pair or not all(map(_NUMBER.fullmatch, shape)):
        raise _odd(name, f"kpt_shape is {show_content(shape)}")
    return ClassList(names, (int(shape[0]), int(shape[1])), _paths_of_splits(found))


def _paths_of_splits(found: dict[Any, Any]) -> dict[str, list[str]]:
    """Return the folders and lists that a file names for each split, one or several."""
    written = {words.SPLITS[key]: paths for key, paths in found.items() if isinstance(key, str) and key in words.SPLITS}
    lists = {split: paths if isinstance(paths, list) else [paths] for split, paths in written.items()}
    every = {split: [one for one in paths if isinstance(one, str) and one] for split, paths in lists.items()}
    return {split: paths for split, paths in every.items() if paths}


def _in_order(file: str, names: Any) -> tuple[str, ...]:
    """Return the names of the classes, given as a list or by number."""
    found = {str(number): name for number, name in enumerate(names)} if isinstance(names, list) else names or {}
    are_numbers = isinstance(found, dict) and all(isinstance(key, str) and _NUMBER.fullmatch(key) for key in found)
    by_number: dict[int, Any] = {int(key): name for key, name in found.items()} if are_numbers else {-1: None}
    count = len(by_number)
    if count > MOST_CLASSES or by_number.keys() != set(range(count)) or not {*map(type, by_number.values())} <= {str}:
        raise _odd(file, f"names are {show_content(names)}")
    return tuple(words.normal(by_number[number]) for number in range(count))


def _odd(name: str, what: str) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"'{name}' has class names in a form that is not read ({what}); expected names: ['car', 'dog'], or '- car' or "
        "'0: car' in each line below it, and kpt_shape: [17, 3] for poses."
    )
