"""Lists of the files of each split beside the samples, as Food-101 has them: meta/train.txt, meta/test.txt."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from colabstage.io.units import format_count, left_out
from colabstage.layouts.names import same_split, split_name, stem_of
from colabstage.layouts.reading import read_files
from colabstage.layouts.table import BrokenDatasetError, Masks, TreeFiles, Values
from colabstage.trees.entries import files_ending_in
from colabstage.trees.strings import take_strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleSource, SampleTable, Targets
    from colabstage.trees.tree import Tree

_EXTENSIONS = (".txt", ".lst")
# Of what a list names so much has to be there for it to be a list of these samples.
_THERE = 0.5
# Three splits and some folds; more text files than that are one for each sample.
_MOST_LISTS = 16
# What people write beside the split in the name of a list.
_BESIDE_LISTS = frozenset({"list", "files"})


class _SplitList(NamedTuple):
    """A list that names samples."""

    file: str
    """The list's name in the tree."""
    split: str
    """The split that it lists."""
    samples: list[int]
    """Numbers of the samples that it names."""
    missing: int
    """How many it names that are not there."""


class ListedSplits(NamedTuple):
    """Samples with the splits that lists give them."""

    table: SampleTable
    """The samples."""
    lists: frozenset[str] = frozenset()
    """Names of the lists that were read."""


def read_listed_splits(tree: Tree, found: SampleTable) -> ListedSplits:
    """Read the splits of samples in folders of classes from lists called after splits, where there are such.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where folders say the splits, lists only have to agree.

    Args:
        tree: the dataset's files.
        found: the samples; a file each.

    Raises:
        BrokenDatasetError: a list names a file in another class, split or several at once; or two lists name one file.
    """
    candidates = [entry for entry in files_ending_in(tree.entries, _EXTENSIONS) if _listed_split(entry.name)]
    if not candidates or len(candidates) > _MOST_LISTS or not isinstance(found.inputs.source, TreeFiles):
        return ListedSplits(found)
    texts = read_files(tree, candidates, lambda _, content: content.decode("utf-8-sig", "replace").replace("\\", "/"))
    lines = [
        [line.strip().removeprefix("./").lstrip("/") for line in text.splitlines() if line.strip()] for text in texts
    ]
    # Only names that occur in a list are indexed: samples may be millions, and lists are read to the end anyway.
    wanted = {posixpath.basename(line) for one in lines for line in one}
    places: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(found.keys):
        base = posixpath.basename(key)
        # Food-101's lists have no extensions, other datasets' have them.
        for word in {base, posixpath.splitext(base)[0]} & wanted:
            places[word].append(number)
    lists = [_read_list(entry.name, one, found, places) for entry, one in zip(candidates, lines, strict=True)]
    used = [one for one in lists if one is not None]
    splits = [one.split for one in used]
    # Folders say the splits already, or lists are folds, or only train is listed, which leaves nothing held out.
    if found.splits is not None or len(set(splits)) < len(splits) or not set(splits) - {"train"}:
        return ListedSplits(found)
    return ListedSplits(_with_listed_splits(found, used), frozenset(one.file for one in used))


def _listed_split(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _read_list(name: str, lines: list[str], found: SampleTable, places: dict[str, list[int]]) -> _SplitList | None:
    """Return the samples that a list names; `None` where it is not a list of these samples' paths."""
    named = [places.get(posixpath.basename(line), []) for line in lines]
    # A list of mostly other files is one of another dataset, or of classes.
    if not any(named) or sum(map(bool, named)) < _THERE * len(lines):
        return None
    split = _listed_split(name)
    samples = []
    for line, numbers in zip(lines, named, strict=True):
        there = [number for number in numbers if _is_path_of(line, found.keys[number])]
        if numbers and not there:
            _refuse(name, f"names '{line}', which is in another folder: '{found.keys[numbers[0]]}'", found.layout)
        if found.splits is not None and there:
            own = [number for number in there if same_split(found.splits[number], split)]
            if not own:
                _refuse(
                    name,
                    f"names '{found.keys[there[0]]}', which is in the split '{found.splits[there[0]]}'",
                    found.layout,
                )
            there = own
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(there) > 1:
            _refuse(
                name, f"names '{line}', which is '{found.keys[there[0]]}' or '{found.keys[there[1]]}'", found.layout
            )
        samples += there
    return _SplitList(name, split, samples, len(lines) - len(samples))


def _is_path_of(line: str, key: str) -> bool:
    """Tell whether a line is a path to a file, from its own folder or from one above or below the tree's."""
    keys = (key, posixpath.splitext(key)[0])
    return any(f"/{one}".endswith(f"/{line}") or f"/{line}".endswith(f"/{one}") for one in keys)


def _with_listed_splits(found: SampleTable, lists: list[_SplitList]) -> SampleTable:
    number_of = {one.split: number for number, one in enumerate(lists)}
    # One number for each sample: which list names it.
    of = np.full(len(found), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                _refuse(one.file, f"names '{found.keys[sample]}', and so does '{lists[of[sample]].file}'", found.layout)
            of[sample] = number
    files = " and ".join(f"'{one.file}'" for one in lists)
    notes = [f"Splits are those of {files}."]
    notes += [f"{one.missing:,} names in '{one.file}' are of no file here." for one in lists if one.missing]
    rest = np.flatnonzero(of < 0)
    names = [one.split for one in lists]
    if len(rest) and "train" not in number_of:
        notes.append(f"The split 'train' has {format_count(len(rest), found.unit)} that no list names.")
        names.append("train")
        # People list what they hold out and train on the rest.
        of[rest] = len(lists)
    elif len(rest):
        notes.append(f"{left_out(len(rest), found.unit, 'that no list names')}.")
    chosen = np.flatnonzero(of >= 0)
    return replace(
        found,
        keys=take_strings(found.keys, chosen),
        inputs=replace(found.inputs, source=_files_taken(found.inputs.source, chosen)),
        targets=_targets_taken(found.targets, chosen),
        splits=tuple(names[number] for number in of[chosen].tolist()),
        notes=(*found.notes, *notes),
    )


def _files_taken(source: SampleSource, chosen: NDArray[np.intp]) -> TreeFiles:
    if not isinstance(source, TreeFiles):
        msg = "Samples that lists name are a file each."
        raise TypeError(msg)
    return TreeFiles(source.tree, source.entries.take(chosen))


def _targets_taken(targets: Targets | None, chosen: NDArray[np.intp]) -> Targets:
    if isinstance(targets, Masks):
        return replace(targets, source=_files_taken(targets.source, chosen))
    if not isinstance(targets, Values):
        msg = "Samples that lists name have a class or a mask each."
        raise TypeError(msg)
    return Values(targets.values[chosen])


def _refuse(name: str, what: str, layout: str) -> NoReturn:
    msg = f"The list '{name}' {what}. Correct the list, or have none read: layout='{layout}' takes folders alone."
    raise BrokenDatasetError(msg)
