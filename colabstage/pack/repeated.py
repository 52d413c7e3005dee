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
    from colabstage.pack.journal import ContentDigests
    from colabstage.pack.plan import SplitPlan


class _Differing:
    """Which of R files have copies that differ in one respect."""

    def __init__(self, repeated: int) -> None:
        self._differs = np.zeros(repeated, np.bool_)
        self.pair: tuple[int, int] | None = None
        """The first copy that differs, behind the first one of the same file; samples."""

    @property
    def count(self) -> int:
        """Return how many of the files have copies that differ."""
        return int(np.count_nonzero(self._differs))

    def compare(
        self, files: NDArray[np.intp], samples: NDArray[np.int64], firsts: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Compare samples with the first ones of the same files.

        Args:
            files: `(M,)`, which file each sample is a copy of.
            samples: `(M,)`, ascending.
            firsts: `(M,)`, the first copy of the file of each.
            values: `(N, …)`, what is compared, for all samples.
        """
        here, there = (values[which].reshape(len(samples), -1) for which in (samples, firsts))
        # A value that is missing is NaN, which would differ from itself.
        differs = ((here != there) & ~((here != here) & (there != there))).any(axis=1)  # noqa: PLR0124 - only NaN does
        self._differs[files[differs]] = True
        if self.pair is None and differs.any():
            place = int(np.argmax(differs))
            self.pair = int(firsts[place]), int(samples[place])


def repeated_notes(digests: ContentDigests, table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on those that are in several splits.

    Images that are there twice with one label, in one split, are no mistake that anybody need hear of.

    Args:
        digests: the digests of all samples; read once more, in pages, if several samples have one.
        table: the samples.
        splits: what was packed of them.
    """
    repeated = digests.repeated()
    if not len(repeated):
        return ()
    # Samples that were left out are in no split.
    split_of = np.full(len(table), -1, np.int16)
    for number, split in enumerate(splits):
        split_of[split.samples] = number
    targets, name = table.targets, table.inputs.source.name
    first_of = np.full(len(repeated), -1, np.int64)
    by_label, by_split = _Differing(len(repeated)), _Differing(len(repeated))
    for start, page in digests.pages():
        files = np.minimum(np.searchsorted(repeated, page), len(repeated) - 1)
        places = np.flatnonzero((repeated[files] == page) & (split_of[start : start + len(page)] >= 0))
        if not len(places):
            continue
        samples, files = start + places, files[places]
        met, at = np.unique(files, return_index=True)
        is_new = first_of[met] < 0
        first_of[met[is_new]] = samples[at[is_new]]
        if isinstance(targets, Values):
            by_label.compare(files, samples, first_of[files], targets.values)
        by_split.compare(files, samples, first_of[files], split_of)
    notes = []
    if by_label.pair is not None and isinstance(targets, Values):
        said = " and ".join(f"'{name(one)}' ({_label_of(table, targets, one)})" for one in by_label.pair)
        notes.append(
            f"{_counted(by_label.count)} there with different labels, byte for byte the same (first {said}). At most "
            "one of them is right: correct the others, or take them out."
        )
    if by_split.pair is not None:
        said = " and ".join(f"'{name(one)}' ({splits[split_of[one]].name})" for one in by_split.pair)
        notes.append(
            f"{_counted(by_split.count)} in several splits, byte for byte the same (first {said}). A model looks "
            "better than it is when it is tested on images that it was trained on: keep each in one split."
        )
    return tuple(notes)


def _counted(count: int) -> str:
    return f"{format_count(count, 'images')} {'is' if count == 1 else 'are'}"


def _label_of(table: SampleTable, targets: Values, sample: int) -> str:
    value = targets.values[sample]
    return table.classes[int(value)] if table.classes and value.ndim == 0 else str(value.tolist())
