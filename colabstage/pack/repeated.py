"""Notes on image files that are in a dataset several times, byte for byte: with two labels, or in two splits.

A person would take either for a mistake, and neither shows in a listing. Bytes are read while a pack is made, so it is
found then, for the price of a digest of each file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.io.units import counted
from colabstage.layouts.table import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.splits import SplitPlan


def repeated_notes(digests: NDArray[np.uint64], table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on those that are in several splits.

    Images that are there twice with one label, in one split, are no mistake that anybody need hear of.

    `digests`: of each sample's file, 0 where none was taken. `splits`: what was packed of the table.
    """
    ordered = np.sort(digests)
    repeated = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)])
    if not len(repeated):
        return ()
    # Samples that were left out are in no split.
    split_of = np.full(len(table), -1, np.int16)
    for number, split in enumerate(splits):
        split_of[split.samples] = number
    samples = np.flatnonzero(np.isin(digests, repeated) & (split_of >= 0))
    _, places, files = np.unique(digests[samples], return_index=True, return_inverse=True)
    firsts = samples[places][files.reshape(-1)]

    def note(values: NDArray[Any], name_of: Callable[[int], str], where: str, why: str) -> list[str]:
        """Return a note where copies of one file have different values."""
        here, there = (values[which].reshape(len(samples), -1) for which in (samples, firsts))
        # A value that is missing is NaN, which would differ from itself.
        differs = ((here != there) & ~((here != here) & (there != there))).any(axis=1)  # noqa: PLR0124 - only NaN does
        if not differs.any():
            return []
        first = int(np.argmax(differs))
        pair = [
            f"'{table.inputs.source.name(one)}' ({name_of(one)})" for one in (int(firsts[first]), int(samples[first]))
        ]
        count = len(np.unique(files.reshape(-1)[differs]))
        return [
            f"{counted(count, 'images', 'are')} {where}, byte for byte the same (first {' and '.join(pair)}). {why}"
        ]

    targets, found = table.targets, list[str]()
    if isinstance(targets, Values):
        found += note(
            targets.values,
            lambda one: _label_of(table, targets, one),
            "there with different labels",
            "At most one of them is right: correct the others, or take them out.",
        )
    found += note(
        split_of,
        lambda one: splits[split_of[one]].name,
        "in several splits",
        "A model looks better than it is when it is tested on images that it was trained on: keep each in one split.",
    )
    return tuple(found)


def _label_of(table: SampleTable, targets: Values, sample: int) -> str:
    value = targets.values[sample]
    return table.classes[int(value)] if table.classes and value.ndim == 0 else str(value.tolist())
