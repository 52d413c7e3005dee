"""Which sample belongs to which split, and in which row it is stored; and a table of some samples alone.

Both orders come from a hash of (seed, sample key), not from a random generator: they are the same on every version of
every library, and a sample that is added later moves few of the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from colabstage.errors import LayoutError, OptionError
from colabstage.layouts.table import Boxes, TreeFiles, Values
from colabstage.trees.strings import StringArray, take_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import Content, SampleSource, SampleTable, Targets
    from colabstage.pack.plan import PackPlan

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Say which samples a split holds."""

    name: str
    """The split's name."""
    samples: NDArray[np.int64]
    """int64, indices into the table, in row order."""


def key_hashes(keys: Sequence[str], *, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return one hash for each key, uint64 `(N,)`. Different purposes give independent orders."""
    # The purpose is in the hash, so that the order of rows tells nothing of who is in which split.
    prefix = f"{seed}/{purpose}/".encode()
    return np.fromiter((xxhash.xxh3_64_intdigest(prefix + key) for key in _encoded(keys)), np.uint64, len(keys))


def _encoded(keys: Sequence[str]) -> Iterable[bytes]:
    if isinstance(keys, StringArray) and keys.is_utf8():
        return keys.encoded()
    return (key.encode(errors="surrogateescape") for key in keys)


def assign_splits(
    keys: Sequence[str], labels: NDArray[np.int64], fractions: Sequence[tuple[str, float]], *, seed: int
) -> NDArray[np.int64]:
    """Divide samples among splits, stratified: every class has every split's fraction, within one sample.

    Args:
        keys: N sample keys.
        labels: int64 `(N,)`.
        fractions: `(split name, fraction)`, adding up to 1.
        seed: of the division.

    Returns:
        int64 `(N,)`, index into `fractions` of each sample's split.
    """
    # Each class is rounded by itself, so a sample that is added moves only samples of its own class. They are rounded
    # in different ways, so that errors cancel out and the totals are right as well.
    hashes = key_hashes(keys, seed=seed, purpose="split")
    edges = np.cumsum([fraction for _, fraction in fractions])[:-1]
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


def split_rows(
    table: SampleTable, fractions: Sequence[tuple[str, float]] | None, *, seed: int, group_by: str | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return which samples each split holds, in row order: a seeded random order for `train`, the source's for others.

    Samples of one file are always in one split.

    Returns:
        Split name to int64 sample indices into `table`; no split is empty.

    Raises:
        OptionError: fractions are given for a source that has splits of its own, or are so small that a split would
            get nothing.
        LayoutError: there are no samples, or one file has samples in two splits or in two groups.
    """
    if len(table) == 0:
        msg = "The source has no samples to split."
        raise LayoutError(msg)
    keys = table.keys
    if table.splits is not None:
        if fractions is not None:
            found = ", ".join(sorted(set(table.splits)))
            msg = (
                f"The source already has splits ({found}); leave splits= out to use them, or stage one of its folders. "
                "Splits that lists say, beside folders of classes, are not read with layout='image_folder'."
            )
            raise OptionError(msg)
        # In the order in which they first occur, which is that of the source.
        names: list[str] = list(dict.fromkeys(table.splits))
        index = {name: number for number, name in enumerate(names)}
        assigned = np.fromiter((index[name] for name in table.splits), dtype=np.int64, count=len(table))
        _check_whole_files(table, table.splits, "splits")
    elif fractions is not None:
        names = [name for name, _ in fractions]
        assigned = _divide(table, fractions, seed=seed, group_by=group_by)
        _check_shares(fractions, np.bincount(assigned, minlength=len(names)))
    else:
        names = ["train"]
        assigned = np.zeros(len(table), dtype=np.int64)
    rows: dict[str, NDArray[np.int64]] = {}
    for number, name in enumerate(names):
        members = np.flatnonzero(assigned == number)
        # So that any range of `train` is a fair sample. Other splits keep the source's order, in which predictions are
        # usually submitted.
        if name == "train":
            own = keys if len(members) == len(keys) else take_strings(keys, members)
            hashes = key_hashes(own, seed=seed, purpose="row")
            members = members[np.argsort(hashes, kind="stable")]
        rows[name] = members
    return rows


def _divide(
    table: SampleTable, fractions: Sequence[tuple[str, float]], *, seed: int, group_by: str | None
) -> NDArray[np.int64]:
    """Return the split of each sample, an index into `fractions`."""
    groups = table.groups if group_by is None else groups_of_keys(table.keys, group_by)
    if groups is not None:
        _check_whole_files(table, groups, "groups")
        return assign_groups(groups, fractions, seed=seed)
    files = _files(table)
    strata = _strata(table)
    if files is None:
        return assign_splits(table.keys, strata, fractions, seed=seed)
    # A file goes where its first sample would.
    _, firsts = np.unique(files, return_index=True)
    of_file = assign_splits(take_strings(table.keys, firsts), strata[firsts], fractions, seed=seed)
    return of_file[files]


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
    if files is None:
        return
    seen: dict[int, str] = {}
    for sample, (file, part) in enumerate(zip(files.tolist(), parts, strict=True)):
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


def groups_of_keys(keys: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return what a regular expression finds in each key: its first group where it has one, else all that matches.

    Raises:
        OptionError: it finds nothing in some key; the message names one.
    """
    found = [re.search(pattern, key) for key in keys]
    missing = next((key for key, match in zip(keys, found, strict=True) if match is None), None)
    if missing is not None:
        msg = f"group_by={pattern!r} finds nothing in '{missing}'; expected a part of every sample's name."
        raise OptionError(msg)
    return tuple((match[1] or "") if match.re.groups else match[0] for match in found if match is not None)


def assign_groups(groups: Sequence[str], fractions: Sequence[tuple[str, float]], *, seed: int) -> NDArray[np.int64]:
    """Divide samples among splits so that no group is in two: whole groups, in an order given by a hash.

    The fractions hold as closely as the groups allow: each group goes where its middle sample would. A group that is
    added, or grows, moves few of the others.

    Args:
        groups: the group of each of N samples.
        fractions: `(split name, fraction)`, adding up to 1.
        seed: of the division.

    Returns:
        int64 `(N,)`, index into `fractions` of each sample's split.
    """
    # As objects: numpy's own texts take four bytes a character and the longest one's length for each.
    names, members, counts = np.unique(np.array(groups, dtype=object), return_inverse=True, return_counts=True)
    order = np.argsort(key_hashes(names.tolist(), seed=seed, purpose="group"), kind="stable")
    middles = np.cumsum(counts[order]) - counts[order] / 2
    edges = np.cumsum([fraction for _, fraction in fractions])[:-1] * len(groups)
    of_group = np.empty(len(names), np.int64)
    of_group[order] = np.searchsorted(edges, middles, side="right")
    # numpy's versions differ in the shape of the inverse.
    return of_group[members.reshape(-1)]


def _check_shares(fractions: Sequence[tuple[str, float]], counts: NDArray[np.int64]) -> None:
    for (name, fraction), count in zip(fractions, counts.tolist(), strict=True):
        # An empty split is found here and not in the first epoch that asks for it.
        if count == 0:
            msg = (
                f"splits gives '{name}' the fraction {fraction}, which of {counts.sum():,} samples comes to none. "
                "Give it more, or leave it out."
            )
            raise OptionError(msg)


class SomeSamples:
    """Give some contents of another source: sample i is `chosen[i]` there."""

    def __init__(self, source: SampleSource, chosen: NDArray[np.int64]) -> None:
        self._source = source
        self._chosen = chosen
        # Copied once, because planning and reading look at both for every sample.
        self.sizes = source.sizes[chosen]
        self.positions = source.positions[chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def name(self, index: int) -> str:
        """Return its name there."""
        return self._source.name(int(self._chosen[index]))

    def stamp(self, index: int) -> str:
        """Return its stamp there."""
        return self._source.stamp(int(self._chosen[index]))

    def read(self, index: int) -> Content:
        """Return its content."""
        return self._source.read(int(self._chosen[index]))


def take_samples(table: SampleTable, chosen: NDArray[np.int64]) -> SampleTable:
    """Return the table of some samples, in the order given."""
    return replace(
        table,
        keys=take_strings(table.keys, chosen),
        inputs=replace(table.inputs, source=SomeSamples(table.inputs.source, chosen)),
        targets=None if table.targets is None else _take_targets(table.targets, chosen),
        splits=None if table.splits is None else take_strings(table.splits, chosen),
        groups=None if table.groups is None else take_strings(table.groups, chosen),
    )


def take_rows(plan: PackPlan, chosen: NDArray[np.int64], splits: Sequence[SplitPlan]) -> PackPlan:
    """Return the plan for `take_samples`.

    `splits`: with the samples' numbers in the whole table, each of them in `chosen`, which ascends.
    """
    renumbered = tuple(SplitPlan(split.name, np.searchsorted(chosen, split.samples)) for split in splits)
    fields = [
        part if part is None or part.lengths is None else replace(part, lengths=part.lengths[chosen])
        for part in (plan.x, plan.y)
    ]
    everything = sum(len(split.samples) for split in plan.splits)
    # An estimate over all samples, shared out by number.
    open_bytes = plan.open_bytes * len(chosen) // max(1, everything)
    return replace(plan, x=fields[0] or plan.x, y=fields[1], splits=renumbered, open_bytes=open_bytes)


def _take_targets(targets: Targets, chosen: NDArray[np.int64]) -> Targets:
    if isinstance(targets, Values):
        return Values(targets.values[chosen])
    if not isinstance(targets, Boxes):
        return replace(targets, source=SomeSamples(targets.source, chosen))
    counts = np.diff(targets.offsets)[chosen]
    # For each box its place in the old array: the beginning of its sample there, and how far it is into that sample.
    ends = np.cumsum(counts)
    rows = np.repeat(targets.offsets[chosen] - (ends - counts), counts) + np.arange(counts.sum())
    return replace(
        targets,
        offsets=np.concatenate([[0], ends]).astype(np.int64),
        boxes=targets.boxes[rows],
        sizes=None if targets.sizes is None else targets.sizes[chosen],
        columns={name: values[rows] for name, values in targets.columns.items()},
    )
