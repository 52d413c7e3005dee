"""Closing the gaps that left-out samples leave: what remains keeps its split, its label and its order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.fetch.copy import TargetFile
from colabstage.fileops import block_ranges, pread_exactly
from colabstage.pack.splits import SplitPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.pack.plan import PackPlan

_COPY_BYTES = 8 * 1024 * 1024


def without_samples(plan: PackPlan, left_out: NDArray[np.int64]) -> PackPlan:
    """The plan with some samples taken out of its rows; splits that become empty go."""
    keep = [split.samples[~np.isin(split.samples, left_out)] for split in plan.splits]
    splits = (SplitPlan(split.name, samples) for split, samples in zip(plan.splits, keep, strict=True) if len(samples))
    return replace(plan, splits=tuple(splits))


class FieldCopy(NamedTuple):
    """Where the samples of a field are: in which file, and where in it, int64 `(N,)`."""

    file: Path
    places: NDArray[np.int64]


def copy_rows(plan: PackPlan, sources: Sequence[FieldCopy], *, target: Path, offsets: Mapping[str, int]) -> None:
    """Copy `plan`'s samples to their places in a new file.

    Args:
        plan: what is left.
        sources: of each field.
        target: the new file, which has room for them at `offsets`, as `create_pack` returned them.
    """
    kept = np.concatenate([split.samples for split in plan.splits])
    with TargetFile(target, fresh=False) as new:
        for part, source in zip(plan.fields, sources, strict=True):
            places = part.places(plan.splits, offsets, len(source.places))
            with open(source.file, "rb") as old:
                for start, length, place in _stretches(source.places[kept], places[kept], part.lengths_of(kept)):
                    for offset, size in block_ranges(length, _COPY_BYTES):
                        new.write(pread_exactly(old.fileno(), size, start + offset), place + offset)


def _stretches(
    old: NDArray[np.int64], new: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    """`(old place, length, new place)` of the longest runs of rows that are neighbours in both files."""
    cuts = np.flatnonzero((old[1:] != old[:-1] + lengths[:-1]) | (new[1:] != new[:-1] + lengths[:-1])) + 1
    first = np.concatenate([[0], cuts]).astype(np.int64)
    totals = np.add.reduceat(lengths, first)
    yield from zip(old[first].tolist(), totals.tolist(), new[first].tolist(), strict=True)
