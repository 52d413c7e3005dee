"""Notes on image files that are in a dataset several times, byte for byte: with two labels, or in two splits.

A person would take either for a mistake, and neither shows in a listing. Bytes are read while a pack is made, so it is
found then, for the price of a digest of each file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from colabstage.io.units import format_count
from colabstage.layouts.table import Values
from colabstage.pack.journal import SampleColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.plan import SplitPlan

# 0 stands for a file of which no digest was taken, because its sample was left out.
_DIGEST = np.dtype("<u8")


class ContentDigests(SampleColumn):
    """The digest of each image file, for N samples."""

    def __init__(self, path: Path, count: int) -> None:
        """Open the file of an earlier run, or make it."""
        super().__init__(path, _DIGEST, count)

    def note(self, index: int, content: bytes) -> None:
        """Take the digest of a sample's file. May be called from any thread."""
        self.write(index, xxhash.xxh3_64_intdigest(content).to_bytes(_DIGEST.itemsize, "little"))


def repeated_notes(digests: NDArray[np.uint64], table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on those that are in several splits.

    Images that are there twice with one label, in one split, are no mistake that anybody need hear of.

    `splits`: what was packed of the table.
    """
    ordered = np.sort(digests)
    repeated = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)])
    if not len(repeated):
        return ()
    # Samples that were left out are in no split.
    split_of = np.full(len(table), -1, np.int16)
    for number, split in enumerate(splits):
        split_of[split.samples] = number
    files = np.minimum(np.searchsorted(repeated, digests), len(repeated) - 1)
    samples = np.flatnonzero((repeated[files] == digests) & (split_of >= 0))
    files = files[samples]
    first_of = np.zeros(len(repeated), np.int64)
    first_of[files[::-1]] = samples[::-1]  # of several values for one place the last one stays
    firsts = first_of[files]

    def compare(values: NDArray[Any]) -> tuple[int, tuple[int, int]] | None:
        """Return how many files have copies that differ, and the first such copy behind the first one of its file."""
        here, there = (values[which].reshape(len(samples), -1) for which in (samples, firsts))
        # A value that is missing is NaN, which would differ from itself.
        differs = ((here != there) & ~((here != here) & (there != there))).any(axis=1)  # noqa: PLR0124 - only NaN does
        if not differs.any():
            return None
        first = int(np.argmax(differs))
        return len(np.unique(files[differs])), (int(firsts[first]), int(samples[first]))

    name, targets, notes = table.inputs.source.name, table.targets, []
    if isinstance(targets, Values) and (found := compare(targets.values)) is not None:
        said = " and ".join(f"'{name(one)}' ({_label_of(table, targets, one)})" for one in found[1])
        notes.append(
            f"{_counted(found[0])} there with different labels, byte for byte the same (first {said}). At most "
            "one of them is right: correct the others, or take them out."
        )
    if (found := compare(split_of)) is not None:
        said = " and ".join(f"'{name(one)}' ({splits[split_of[one]].name})" for one in found[1])
        notes.append(
            f"{_counted(found[0])} in several splits, byte for byte the same (first {said}). A model looks "
            "better than it is when it is tested on images that it was trained on: keep each in one split."
        )
    return tuple(notes)


def _counted(count: int) -> str:
    return f"{format_count(count, 'images')} {'is' if count == 1 else 'are'}"


def _label_of(table: SampleTable, targets: Values, sample: int) -> str:
    value = targets.values[sample]
    return table.classes[int(value)] if table.classes and value.ndim == 0 else str(value.tolist())
