"""Evidence of lists: which samples are of which split, by lists of their names."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.io.units import counted, format_count, left_out
from colabstage.layouts.evidence import Evidence, take_rows
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, SampleTable
from colabstage.layouts.words import (
    normal,
    same_split,
    split_name,
    stem_of,
)

if TYPE_CHECKING:
    from colabstage.layouts.reading import Source

_LISTS = (".txt", ".lst")
# At least this share of a list's names must exist for it to be a list of these samples.
_THERE = 0.5
# Three splits and some folds; more text files than that are one for each sample.
_MOST_LISTS = 16
# Words that people combine with the split in a list's name.
_BESIDE_LISTS = frozenset({"list", "files"})


@dataclass(slots=True)
class SplitList:
    """A list of samples of one split."""

    file: str
    split: str
    samples: list[int] = field(default_factory=list)
    missing: int = 0


def lists_state(
    source: Source, found: Evidence, *, stated: dict[str, str] | None = None, within: str = ""
) -> tuple[Evidence, list[str]]:
    """Add the splits of samples from lists named after splits, if there are any, and return the lists that are not
    read because they do not say which split each sample is of.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where something else states the splits, lists only have to agree.

    Args:
        source: the files.
        found: samples of one file each.
        stated: the lists by name with their splits, where something says which they are.
        within: lists in folders that end so go before all others.
    """
    table = found.table
    if not isinstance(table.inputs.source, TreeFiles):
        return found, []
    texts = source.ending_in(_LISTS if stated is None else (*_LISTS, ""))
    if stated is None:
        names = {name: split for name in texts.names if (split := _listed_split(name)) and name not in found.used}
        inside = {name: split for name, split in names.items() if f"/{posixpath.dirname(name)}".endswith(f"/{within}")}
        names = inside if within and inside else names
    else:
        names = stated
    if not names or len(names) > _MOST_LISTS:
        return found, []
    lines = {
        name: [normal(line.replace("\\", "/").removeprefix("./").lstrip("/")) for line in _paths_in(text)]
        for name, text in source.texts(texts.where(lambda name: name in names)).items()
    }
    # Several rows of a table may be of one file.
    rows: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(table.inputs.source.entries.names):
        rows[normal(name)].append(number)
    lookup = Lookup(rows)
    read = (_read_list(SplitList(name, names[name]), one, table, lookup, rows) for name, one in lines.items())
    used = [one for one in read if one is not None]
    # Those of one split that name other files may complete each other only if they are of different splits.
    splits = [one.split for one in used]
    if table.splits is not None:
        return replace(found, used=found.used | {one.file for one in used}), []
    # Lists are folds, or only train is listed, which leaves nothing held out.
    named = {number for one in used for number in one.samples}
    none_trains = "train" not in splits and len(named) == len(table)
    if len(set(splits)) < len(splits) or not set(splits) - {"train"} or none_trains:
        return found, [one.file for one in used]
    made = _with_listed_splits(table, used)
    return replace(found, table=made, used=found.used | {one.file for one in used}), []


def _paths_in(text: str) -> list[str]:
    """Return the paths in the lines of a list: whole lines; or the first word where each has two paths, of an image
    and of its mask, or a path and a flag."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    words = [line.split() for line in lines]
    pairs = all(2 <= len(one) <= 4 for one in words) and all(
        one[1].lstrip("-").isdecimal() or (posixpath.splitext(one[0])[1] and posixpath.splitext(one[1])[1])
        for one in words
    )
    return [one[0] for one in words] if lines and pairs else lines


def _listed_split(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _read_list(
    into: SplitList, lines: list[str], table: SampleTable, lookup: Lookup, rows: dict[str, list[int]]
) -> SplitList | None:
    """Return the samples that a list names; `None` where it is not a list of these samples' paths."""
    named = [lookup.may_find(line) for line in lines]
    # A list of mostly other files is one of another dataset, or of classes.
    if not any(named) or sum(named) < _THERE * len(lines):
        return None

    def refusal(what: str) -> BrokenDatasetError:
        return BrokenDatasetError(
            f"The list '{into.file}' {what}. Correct the list, or have none read: layout='{table.layout}' takes "
            "folders alone."
        )

    folder = posixpath.dirname(into.file)
    for line in (line for line, is_named in zip(lines, named, strict=True) if is_named):
        there = [lookup.names[number] for number in lookup.search(line, folder)]
        if table.splits is not None and there:
            own = [name for name in there if same_split(table.splits[rows[name][0]], into.split)]
            if not own:
                why = f"names '{there[0]}', which is in the split '{table.splits[rows[there[0]][0]]}'"
                raise refusal(why)
            there = own
        if not there:
            why = f"names '{line}', which is in another folder"
            raise refusal(why)
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(there) > 1:
            why = f"names '{line}', which is '{there[0]}' or '{there[1]}'"
            raise refusal(why)
        into.samples += rows[there[0]]
    into.missing = len(lines) - sum(named)
    return into


def _with_listed_splits(table: SampleTable, lists: list[SplitList]) -> SampleTable:
    # One number for each sample: which list names it.
    of = np.full(len(table), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                msg = (
                    f"The list '{one.file}' names '{table.keys[sample]}', and so does '{lists[of[sample]].file}'. "
                    f"Correct the list, or have none read: layout='{table.layout}' takes folders alone."
                )
                raise BrokenDatasetError(msg)
            of[sample] = number
    notes = [f"Splits are those of {' and '.join(f'{chr(39)}{one.file}{chr(39)}' for one in lists)}."]
    for one in lists:
        if one.missing:
            which = f"in '{one.file}'"
            notes.append(f"{counted(one.missing, 'names', 'match', which=which)} no file.")
    rest = np.flatnonzero(of < 0)
    names = [one.split for one in lists]
    if len(rest) and "train" not in names:
        notes.append(f"The split 'train' has {format_count(len(rest), table.unit)} that no list names.")
        names.append("train")
        # People list what they hold out and train on the rest.
        of[rest] = len(lists)
    elif len(rest):
        notes.append(f"{left_out(len(rest), table.unit, 'that no list names')}.")
    chosen = np.flatnonzero(of >= 0)
    made = take_rows(replace(table, splits=None), chosen)
    return replace(made, splits=tuple(names[number] for number in of[chosen].tolist()), notes=(*table.notes, *notes))
