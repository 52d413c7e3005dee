"""Closing the gaps that left-out samples leave: what remains keeps its split, its label and its order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.fetch.copy import TargetFile
from colabstage.fileops import block_ranges, pread_exactly
from colabstage.h5.create import create_pack
from colabstage.pack.plan import PackPlan, SplitPlan, pack_content, sample_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions

_COPY_BYTES = 8 * 1024 * 1024


def without_samples(table: SampleTable, plan: PackPlan, left_out: NDArray[np.int64]) -> PackPlan:
    """The plan with some samples taken out of its rows; splits that become empty go."""
    keep = np.ones(len(table), dtype=bool)
    keep[left_out] = False
    splits = tuple(
        SplitPlan(split.name, split.samples[keep[split.samples]]) for split in plan.splits if keep[split.samples].any()
    )
    kept = np.concatenate([split.samples for split in splits]) if splits else np.empty(0, dtype=np.int64)
    nbytes = plan.row_bytes * len(kept) if plan.row_bytes else sum(table.files[i].size for i in kept.tolist())
    return replace(plan, splits=splits, nbytes=nbytes)


def copy_rows(
    table: SampleTable,
    plan: PackPlan,
    options: PackOptions,
    *,
    source: Path,
    places: NDArray[np.int64],
    target: Path,
    attributes: Mapping[str, Any],
    skipped: tuple[str, ...],
) -> None:
    """Write `plan`'s samples, which lie at `places` in `source`, to a new file `target`."""
    content = pack_content(table, plan, options, attributes=attributes, skipped=skipped)
    offsets = create_pack(target, content)
    new_places = sample_places(table, plan, offsets)
    kept = np.concatenate([split.samples for split in plan.splits])
    with open(source, "rb") as old, TargetFile(target, fresh=False) as new:
        for start, length, place in _stretches(places[kept], new_places[kept], _lengths(table, plan)[kept]):
            for offset, part in block_ranges(length, _COPY_BYTES):
                new.write(pread_exactly(old.fileno(), part, start + offset), place + offset)


def _lengths(table: SampleTable, plan: PackPlan) -> NDArray[np.int64]:
    if plan.row_bytes:
        return np.full(len(table), plan.row_bytes, dtype=np.int64)
    return np.fromiter((entry.size for entry in table.files), dtype=np.int64, count=len(table))


def _stretches(
    old: NDArray[np.int64], new: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    """`(old place, length, new place)` of the longest runs of rows that are neighbours in both files."""
    cuts = np.flatnonzero((old[1:] != old[:-1] + lengths[:-1]) | (new[1:] != new[:-1] + lengths[:-1])) + 1
    first = np.concatenate([[0], cuts]).astype(np.int64)
    totals = np.add.reduceat(lengths, first)
    yield from zip(old[first].tolist(), totals.tolist(), new[first].tolist(), strict=True)
