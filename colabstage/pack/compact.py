"""Closing the gaps that left-out samples leave: the same file as if they had never been in the source."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.fileops import pread_exactly, pwrite_exactly
from colabstage.h5.create import create_pack
from colabstage.pack.plan import PackPlan, SplitPlan, pack_content, sample_places

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions


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
    read_end, write_end = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY)
    try:
        for split in plan.splits:
            for sample in split.samples.tolist():
                length = plan.row_bytes or table.files[sample].size
                data = pread_exactly(read_end, length, int(places[sample]))
                pwrite_exactly(write_end, data, int(new_places[sample]))
    finally:
        os.close(read_end)
        os.close(write_end)
