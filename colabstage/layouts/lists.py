"""Evidence of lists: which samples are of which split, by lists of their names."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.io.units import counted, format_count, left_out
from colabstage.layouts.evidence import Evidence, take_rows
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.reading import decode_text
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, SampleTable
from colabstage.layouts.words import normal, same_split, split_name, stem_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.layouts.reading import Source

_LISTS = (".txt", ".lst")
# Three splits and some folds; more text files than that are one for each sample.
_MOST_LISTS = 16
# Words that people combine with the split in a list's name.
_BESIDE_LISTS = frozenset({"list", "files"})


class _SplitList(NamedTuple):
    """A list of samples of one split."""

    file: str
    split: str
    samples: list[int]
    missing: int
    """How many of its names no file has."""


def lists_state(
    source: Source, found: Evidence, *, stated: dict[str, str] | None = None, within: str = ""
) -> tuple[Evidence, list[str]]:
    """Add the splits of samples from lists named after splits, if there are any, and return the lists that are not
    read because they do not say which split each sample is of.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where something else states the splits, lists only have to agree.
    `stated`: the lists with their splits, where something says which they are; those in folders that end in `within` go
    before all others.
    """
    table = found.table
    if not isinstance(table.inputs.source, TreeFiles):
        return found, []
    names = stated
    if names is None:
        texts = source.ending_in(_LISTS).names
        names = {name: split for name in texts if (split := _listed_split(name)) and name not in found.used}
        inside = {name: split for name, split in names.items() if f"/{posixpath.dirname(name)}".endswith(f"/{within}")}
        names = inside if within and inside else names
    if not 0 < len(names) <= _MOST_LISTS:
        return found, []
    index = _Index(table)
    entries = source.ending_in((*_LISTS, "")).where(names.__contains__)
    read = source.parse(entries, lambda entry, content: index.read(entry.name, names[entry.name], decode_text(content)))
    lists = [one for one in read.values() if one is not None]
    splits = [one.split for one in lists]
    used = [one.file for one in lists]
    # Lists are folds, or only train is listed, which leaves nothing held out, or nothing is left to train on.
    named = {number for one in lists for number in one.samples}
    are_folds = len(set(splits)) < len(splits) or not set(splits) - {"train"}
    if table.splits is None and (are_folds or ("train" not in splits and len(named) == len(table))):
        return found, used
    made = table if table.splits is not None else _with_listed_splits(table, lists)
    return replace(found, table=made, used=found.used.union(used)), []


def _listed_split(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _paths_in(text: str) -> list[str]:
    """Return the paths in the lines of a list: whole lines; or the first word where each has two paths, of an image
    and of its mask, or a path and a flag."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    words = [line.split() for line in lines]
    pairs = all(
        2 <= len(one) <= 4 and (one[1].lstrip("-").isdecimal() or all(posixpath.splitext(word)[1] for word in one[:2]))
        for one in words
    )
    paths = [one[0] for one in words] if pairs else lines
    return [normal(path.replace("\\", "/").removeprefix("./").lstrip("/")) for path in paths]


class _Index:
    """The samples of a table, to be found by the names of their files."""

    def __init__(self, table: SampleTable) -> None:
        assert isinstance(table.inputs.source, TreeFiles)
        self._table = table
        # Several rows of a table may be of one file.
        self._rows: dict[str, list[int]] = defaultdict(list)
        for number, name in enumerate(table.inputs.source.entries.names):
            self._rows[normal(name)].append(number)
        self._lookup = Lookup(self._rows)

    def read(self, file: str, split: str, text: str) -> _SplitList | None:
        """Return the samples that a list names; `None` where it is not a list of these samples' paths."""
        lines = _paths_in(text)
        named = [line for line in lines if self._lookup.may_find(line)]
        # A list of mostly other files is one of another dataset, or of classes.
        if not named or 2 * len(named) < len(lines):
            return None
        samples = [number for line in named for number in self._samples(line, file, split)]
        return _SplitList(file, split, samples, len(lines) - len(named))

    def _samples(self, line: str, file: str, split: str) -> list[int]:
        there = [self._lookup.names[number] for number in self._lookup.search(line, posixpath.dirname(file))]
        splits = self._table.splits
        own = there if splits is None else [name for name in there if same_split(splits[self._rows[name][0]], split)]
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(own) == 1:
            return self._rows[own[0]]
        why = f"'{line}', which is in another folder"
        if own:
            why = f"'{line}', which is '{own[0]}' or '{own[1]}'"
        elif there and splits is not None:
            why = f"'{there[0]}', which is in the split '{splits[self._rows[there[0]][0]]}'"
        raise _contradiction(file, why, self._table)


def _contradiction(file: str, why: str, table: SampleTable) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"The list '{file}' names {why}. Correct the list, or have none read: layout='{table.layout}' takes folders "
        "alone."
    )


def _with_listed_splits(table: SampleTable, lists: list[_SplitList]) -> SampleTable:
    names = [one.split for one in lists]
    # One number for each sample: which list names it.
    of = np.full(len(table), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                why = f"'{table.keys[sample]}', and so does '{lists[of[sample]].file}'"
                raise _contradiction(one.file, why, table)
            of[sample] = number
    notes = list(_notes(lists, np.flatnonzero(of < 0).size, table.unit))
    if "train" not in names:
        # People list what they hold out and train on the rest.
        of[of < 0] = len(lists)
        names.append("train")
    chosen = np.flatnonzero(of >= 0)
    made = take_rows(replace(table, splits=None), chosen)
    return replace(made, splits=tuple(names[number] for number in of[chosen].tolist()), notes=(*table.notes, *notes))


def _notes(lists: list[_SplitList], rest: int, unit: str) -> Iterator[str]:
    yield f"Splits are those of {' and '.join(repr(one.file) for one in lists)}."
    for one in lists:
        if one.missing:
            yield f"{counted(one.missing, 'names', 'match', which=f'in {one.file!r}')} no file."
    if rest and all(one.split != "train" for one in lists):
        yield f"The split 'train' has {format_count(rest, unit)} that no list names."
    elif rest:
        yield f"{left_out(rest, unit, 'that no list names')}."
