"""The split and the row of each sample.

Both come from a hash of (seed, sample key), not from a random generator: they are the same on every version of every
library, and a sample that is added later moves few of the others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from colabstage.errors import LayoutError, OptionError
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Values
from colabstage.trees.listing import take_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable

    Fractions = Sequence[tuple[str, float]]

_GOLDEN = (5**0.5 - 1) / 2


class SplitPlan(NamedTuple):
    """Say which samples a split holds."""

    name: str
    samples: NDArray[np.int64]
    """int64, indices into the table, in row order."""


def key_hashes(keys: Sequence[str], *, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return one hash for each key, uint64 `(N,)`. Different purposes give independent orders."""
    # The purpose is in the hash, so that the order of rows tells nothing of who is in which split.
    prefix = f"{seed}/{purpose}/".encode()
    encoded = (prefix + key.encode(errors="surrogateescape") for key in keys)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(keys))


def split_rows(
    table: SampleTable, fractions: Fractions | None, *, seed: int, group_by: str | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the samples of each split, in row order: a seeded random order for `train`, the source's for others.

    Samples of one file are always in one split. No split is empty.
    """
    if len(table) == 0:
        msg = "The source has no samples to split."
        raise LayoutError(msg)
    if table.splits is not None:
        names, assigned = _splits_of_source(table, table.splits, fractions)
    elif fractions is not None:
        names = [name for name, _ in fractions]
        assigned = _divide(table, fractions, seed=seed, group_by=group_by)
        _check_shares(fractions, np.bincount(assigned, minlength=len(names)))
    else:
        names, assigned = ["train"], np.zeros(len(table), np.uint8)
    return {
        name: _in_order(table.keys, np.flatnonzero(assigned == number), name, seed) for number, name in enumerate(names)
    }


def _in_order(keys: Sequence[str], members: NDArray[np.int64], split: str, seed: int) -> NDArray[np.int64]:
    # So that any range of `train` is a fair sample. Other splits keep the source's order, in which predictions are
    # usually submitted.
    if split != "train":
        return members
    own = keys if len(members) == len(keys) else take_strings(keys, members)
    # In one expression, so that the hashes of millions are gone before the rows are there twice.
    return members[np.argsort(key_hashes(own, seed=seed, purpose="row"), kind="stable")]


def _splits_of_source(
    table: SampleTable, splits: Sequence[str], fractions: Fractions | None
) -> tuple[list[str], NDArray[Any]]:
    if fractions is not None:
        msg = (
            f"The source already has splits ({', '.join(sorted(set(splits)))}); leave splits= out to use them, or "
            "stage one of its folders. layout='image_folder' reads no lists of splits beside class folders."
        )
        raise OptionError(msg)
    _check_whole_files(table, splits, "splits")
    # In the order in which they first occur, which is that of the source.
    index = {name: number for number, name in enumerate(dict.fromkeys(splits))}
    return list(index), np.fromiter((index[name] for name in splits), np.int64, len(table))


def _divide(table: SampleTable, fractions: Fractions, *, seed: int, group_by: str | None) -> NDArray[np.int64]:
    """Return the split of each sample, an index into `fractions`."""
    groups = table.groups if group_by is None else groups_of_keys(table.keys, group_by)
    if groups is not None:
        _check_whole_files(table, groups, "groups")
        return assign_groups(groups, fractions, seed=seed)
    files, strata = _files(table), _strata(table)
    if files is None:
        return assign_splits(table.keys, strata, fractions, seed=seed)
    # A file goes where its first sample would.
    _, firsts = np.unique(files, return_index=True)
    return assign_splits(take_strings(table.keys, firsts), strata[firsts], fractions, seed=seed)[files]


def assign_splits(
    keys: Sequence[str], labels: NDArray[np.int64], fractions: Fractions, *, seed: int
) -> NDArray[np.int64]:
    """Divide samples among splits, stratified: every class has every split's fraction, within one sample.

    `labels`: int64 `(N,)`. `fractions`: adding up to 1.

    Returns:
        int64 `(N,)`, index into `fractions` of each sample's split.
    """
    # Each class is rounded by itself, so a sample that is added moves only samples of its own class. They are rounded
    # in different ways, so that errors cancel out and the totals are right as well.
    hashes, edges = key_hashes(keys, seed=seed, purpose="split"), _edges(fractions)
    assigned = np.empty(len(keys), dtype=np.int64)
    order = np.lexsort((hashes, labels))
    starts = np.unique(labels[order], return_index=True)[1]
    for number, members in enumerate(np.split(order, starts)[1:]):
        # With one rounding for all edges of a class, what lies between two of them is rounded up or down, no further.
        # Half for the first class is rounding to the nearest; the golden ratio spreads those of any number of classes.
        rounding = (0.5 + number * _GOLDEN) % 1
        # A product that is whole but for a float's last bit is meant to be whole.
        cuts = np.floor(edges * len(members) + rounding + 1e-9).astype(np.int64)
        assigned[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return assigned


def assign_groups(groups: Sequence[str], fractions: Fractions, *, seed: int) -> NDArray[np.int64]:
    """Divide samples among splits so that no group is in two: whole groups, in an order given by a hash.

    The fractions hold as closely as the groups allow: each group goes where its middle sample would. A group that is
    added, or grows, moves few of the others.

    Returns:
        int64 `(N,)`, index into `fractions` of each sample's split.
    """
    # As objects: numpy's own texts take four bytes a character and the longest one's length for each.
    names, members, counts = np.unique(np.array(groups, dtype=object), return_inverse=True, return_counts=True)
    order = np.argsort(key_hashes(names.tolist(), seed=seed, purpose="group"), kind="stable")
    middles = np.cumsum(counts[order]) - counts[order] / 2
    of_group = np.empty(len(names), np.int64)
    of_group[order] = np.searchsorted(_edges(fractions) * len(groups), middles, side="right")
    # numpy's versions differ in the shape of the inverse.
    return of_group[members.reshape(-1)]


def _edges(fractions: Fractions) -> NDArray[np.float64]:
    return np.cumsum([fraction for _, fraction in fractions])[:-1]


def groups_of_keys(keys: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return what a regular expression finds in each key: its first group where it has one, else all that matches."""
    found = [re.search(pattern, key) for key in keys]
    missing = next((key for key, match in zip(keys, found, strict=True) if match is None), None)
    if missing is not None:
        msg = f"group_by={pattern!r} finds nothing in '{missing}'; expected a part of every sample's name."
        raise OptionError(msg)
    return tuple((match[1] or "") if match.re.groups else match[0] for match in found if match is not None)


def _files(table: SampleTable) -> NDArray[np.int64] | None:
    """Return the number of the file that each sample is made of, int64 `(N,)`; `None` where no two are of one file."""
    source = table.inputs.source
    # Most layouts use the files' names as keys, which are unique: then nothing need be counted.
    if not isinstance(source, TreeFiles) or source.entries.names is table.keys:
        return None
    numbers: dict[str, int] = {}
    files = np.fromiter((numbers.setdefault(n, len(numbers)) for n in source.entries.names), np.int64, len(table))
    return files if len(numbers) < len(table) else None


def _check_whole_files(table: SampleTable, parts: Sequence[str], what: str) -> None:
    """Refuse a file whose samples are in two splits or groups, so that it would be trained on and tested with."""
    files = _files(table)
    seen: dict[int, str] = {}
    for sample, (file, part) in enumerate(zip(files.tolist(), parts, strict=True) if files is not None else ()):
        if seen.setdefault(file, part) != part:
            name = table.inputs.source.name(sample)
            msg = f"'{name}' has samples in the {what} '{seen[file]}' and '{part}'. Take it out of one of them."
            raise LayoutError(msg)


def _strata(table: SampleTable) -> NDArray[np.int64]:
    """Return what every split should have its part of: the class of each sample where it has one, else one for all.

    Whole numbers are classes whatever they are called, unless most samples have one of their own.
    """
    targets = table.targets
    if isinstance(targets, Values) and targets.values.ndim == 1 and targets.values.dtype.kind in "biu":
        labels = targets.values.astype(np.int64)
        # Whole numbers may also be counts or prices, of which most are single.
        if table.classes or 2 * len(np.unique(labels)) <= len(labels):
            return labels
    return np.zeros(len(table), np.int64)


def _check_shares(fractions: Fractions, counts: NDArray[np.int64]) -> None:
    for (name, fraction), count in zip(fractions, counts.tolist(), strict=True):
        # An empty split is found here and not in the first epoch that asks for it.
        if count == 0:
            msg = (
                f"splits gives '{name}' the fraction {fraction}, which of {counts.sum():,} samples comes to none. "
                "Give it more, or leave it out."
            )
            raise OptionError(msg)
