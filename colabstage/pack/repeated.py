"""Notes on image files that are in a dataset several times, byte for byte: with two labels, or in two splits.

A person would take either for a mistake, and neither shows in a listing. Bytes are read while a pack is made, so it is
found then, for the price of a digest of those files that another may equal (`pack.journal.ContentDigests`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.io.units import format_count
from colabstage.layouts.table import Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.journal import Repeated
    from colabstage.pack.plan import SplitPlan


def repeated_notes(found: Repeated, table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on those that are in several splits.

    Images that are there twice with one label, in one split, are no mistake that anybody need hear of.
    """
    # Samples that were left out are in no split.
    split_of = np.full(len(table), -1, np.int16)
    for number, split in enumerate(splits):
        split_of[split.samples] = number
    packed = split_of[found.samples] >= 0
    samples, groups, name = found.samples[packed], found.groups[packed], table.inputs.source.name
    notes, targets = [], table.targets
    if isinstance(targets, Values):
        count, pair = _differing(samples, groups, targets.values[samples].reshape(len(samples), -1))
        said = " and ".join(f"'{name(one)}' ({_label_of(table, targets, one)})" for one in pair)
        if count:
            notes.append(
                f"{_counted(count)} there with different labels, byte for byte the same (first {said}). At most one of "
                "them is right: correct the others, or take them out."
            )
    count, pair = _differing(samples, groups, split_of[samples, None])
    said = " and ".join(f"'{name(one)}' ({splits[split_of[one]].name})" for one in pair)
    if count:
        notes.append(
            f"{_counted(count)} in several splits, byte for byte the same (first {said}). What a model was trained on "
            "says nothing about new images when it is tested on it: take it out of one of them."
        )
    return tuple(notes)


def _counted(count: int) -> str:
    return f"{format_count(count, 'images')} {'is' if count == 1 else 'are'}"


def _label_of(table: SampleTable, targets: Values, sample: int) -> str:
    value = targets.values[sample]
    return table.classes[int(value)] if table.classes and value.ndim == 0 else str(value.tolist())


def _differing(
    samples: NDArray[np.int64], groups: NDArray[np.uint64], values: NDArray[Any]
) -> tuple[int, tuple[int, ...]]:
    """Return in how many groups values differ, and the first two samples of a group that have different ones.

    Args:
        samples: `(M,)`, ascending within each group.
        groups: `(M,)`, the group of each; those of one group are behind each other.
        values: `(M, …)`, what is compared.
    """
    before, after = values[:-1], values[1:]
    # A value that is missing is NaN, which would differ from itself.
    differs = (before != after) & ~((before != before) & (after != after))  # noqa: PLR0124 - only NaN does
    places = np.flatnonzero((groups[1:] == groups[:-1]) & differs.any(axis=1))
    if not len(places):
        return 0, ()
    first = int(places[np.argmin(samples[places])])
    return len(np.unique(groups[places])), (int(samples[first]), int(samples[first + 1]))
