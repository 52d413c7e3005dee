"""Some of a table's samples, as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.layouts.table import Boxes, Values
from colabstage.pack.splits import SplitPlan
from colabstage.trees.entries import take_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import Content, Inputs, SampleSource, SampleTable, Targets
    from colabstage.pack.plan import PackPlan


class SomeSamples:
    """Some contents of another source: sample i is `chosen[i]` there."""

    def __init__(self, source: SampleSource, chosen: NDArray[np.int64]) -> None:
        self._source = source
        self._chosen = chosen
        self.sizes = source.sizes[chosen]
        self.positions = source.positions[chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def name(self, index: int) -> str:
        """Its name there."""
        return self._source.name(int(self._chosen[index]))

    def stamp(self, index: int) -> str:
        """Its stamp there."""
        return self._source.stamp(int(self._chosen[index]))

    def read(self, index: int) -> Content:
        """Its content."""
        return self._source.read(int(self._chosen[index]))


def take_samples(table: SampleTable, chosen: NDArray[np.int64]) -> SampleTable:
    """The table of some samples, in the order given."""

    return replace(
        table,
        keys=take_strings(table.keys, chosen),
        inputs=_take_inputs(table.inputs, chosen),
        targets=None if table.targets is None else _take_targets(table.targets, chosen),
        splits=None if table.splits is None else take_strings(table.splits, chosen),
        groups=None if table.groups is None else take_strings(table.groups, chosen),
    )


def take_rows(plan: PackPlan, chosen: NDArray[np.int64], splits: Sequence[SplitPlan]) -> PackPlan:
    """The plan for `take_samples`. `splits`: with the samples' numbers in the whole table, each of them in `chosen`,
    which ascends."""
    renumbered = tuple(SplitPlan(split.name, np.searchsorted(chosen, split.samples)) for split in splits)
    fields = [
        part if part is None or part.lengths is None else replace(part, lengths=part.lengths[chosen])
        for part in (plan.x, plan.y)
    ]
    everything = sum(len(split.samples) for split in plan.splits)
    open_bytes = plan.open_bytes * len(chosen) // max(1, everything)
    return replace(plan, x=fields[0] or plan.x, y=fields[1], splits=renumbered, open_bytes=open_bytes)


def _take_inputs(inputs: Inputs, chosen: NDArray[np.int64]) -> Inputs:
    return replace(inputs, source=SomeSamples(inputs.source, chosen))


def _take_targets(targets: Targets, chosen: NDArray[np.int64]) -> Targets:
    if isinstance(targets, Values):
        return Values(targets.values[chosen])
    if not isinstance(targets, Boxes):
        return replace(targets, source=SomeSamples(targets.source, chosen))
    counts = np.diff(targets.offsets)[chosen]
    ends = np.cumsum(counts)
    rows = np.repeat(targets.offsets[chosen] - (ends - counts), counts) + np.arange(counts.sum())
    return replace(
        targets,
        offsets=np.concatenate([[0], ends]).astype(np.int64),
        boxes=targets.boxes[rows],
        columns={name: values[rows] for name, values in targets.columns.items()},
    )
