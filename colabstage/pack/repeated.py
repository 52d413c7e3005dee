"""Image files that are in a dataset several times, byte for byte: with two labels, or in two splits.

A person would take either for a mistake, and neither shows in a listing. Bytes are read while a pack is made, so it is
found then, for the price of a digest of those files that another may equal: those whose length another has too.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from colabstage.io.files import Closing, reserve
from colabstage.io.units import format_count
from colabstage.layouts.table import Images, Values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.plan import SplitPlan

# Lengths are told apart by their lowest bits, in a table that is as large for ten files as for ten million.
_LENGTHS = 1 << 18
# Of so many samples a column may be made; of all of them there are no more than one.
_PAGE = 1 << 18


class Repeated(NamedTuple):
    """Samples whose files others equal, M of them, ascending within each group."""

    samples: NDArray[np.int64]
    """`(M,)`, their numbers in the table."""
    groups: NDArray[np.uint64]
    """`(M,)`, the same for those of the same bytes, which are behind each other."""


NOTHING_REPEATED = Repeated(np.zeros(0, np.int64), np.zeros(0, np.uint64))


class ContentDigests(Closing):
    """The digest of each sample's image file that another may equal, in a file that outlives the process.

    Written from any thread, each sample by one alone.
    """

    def __init__(self, path: Path, sizes: NDArray[np.int64]) -> None:
        """Open the file of an earlier run, or make it. `sizes`: int64 `(N,)`, the lengths of the files in bytes.

        Raises:
            OSError: the disk has no room.
        """
        counts = np.zeros(_LENGTHS, np.int32)
        for first in range(0, len(sizes), _PAGE):
            np.add.at(counts, sizes[first : first + _PAGE] % _LENGTHS, 1)
        self._is_repeated = counts > 1
        path.touch()
        with path.open("r+b") as file:
            reserve(file.fileno(), max(1, len(sizes)) * 8)
            # 0 where none was taken.
            self._digests = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint64)[: len(sizes)]

    def note(self, index: int, content: bytes) -> None:
        """Take the digest of a sample's file, if another has its length."""
        if self._is_repeated[len(content) % _LENGTHS]:
            self._digests[index] = xxhash.xxh3_64_intdigest(content)

    def repeated(self) -> Repeated:
        """Return the samples whose bytes another has too."""
        # One column more, and not the places of all in another order: what repeats is little.
        ordered = np.sort(self._digests)
        again = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)])
        del ordered
        if not len(again):
            return NOTHING_REPEATED
        found = [
            first + np.flatnonzero(np.isin(self._digests[first : first + _PAGE], again))
            for first in range(0, len(self._digests), _PAGE)
        ]
        samples = np.concatenate(found)
        groups = self._digests[samples]
        order = np.argsort(groups, kind="stable")
        return Repeated(samples[order], groups[order])

    def close(self) -> None:
        """Let go of the file, which would keep its disk busy as long as an error has this."""
        self._digests = np.zeros(0, np.uint64)


def has_contents(table: SampleTable) -> bool:
    """Tell whether samples are image files, which may be compared by their bytes."""
    return isinstance(table.inputs, Images) and not table.inputs.decoded


def repeated_notes(found: Repeated, table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on those that are in several splits.

    Images that are there twice with one label, in one split, are no mistake that anybody need hear of.
    """
    if not len(found.samples):
        return ()
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
