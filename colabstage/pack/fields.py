"""What a pack's file holds: samples, as rows of one shape or bytes of any length; boxes; and what is known before them.

Where a box lies in the stored image depends on how large the image was, which is known once it has been decoded. So
packing notes every image's size, and the boxes, which are small, are computed and written when all samples are in
their places: for all of a split at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.create import PackContent, ReservedDataset
from colabstage.h5.schema import BOXES, BYTES, CLASSES, OFFSETS, SKIPPED, key_name, x_name, y_name
from colabstage.images.geometry import fit_boxes
from colabstage.layouts.table import Boxes, Values
from colabstage.trees.entries import take_strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from numpy.typing import NDArray

    from colabstage.images.options import ImageOptions
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions
    from colabstage.pack.plan import PackPlan
    from colabstage.pack.splits import SplitPlan

# What stands in rows of other columns that cropping left without a box; they come after all others.
_UNUSED = -1


@dataclass(frozen=True, slots=True)
class StoredField:
    """Hold how one side of all samples, N of them, lies in the file; each sample writes into its own place."""

    side: Literal["x", "y"]
    """Inputs or targets."""
    shape: tuple[int, ...] | None
    """Of one row; `None` for bytes of each sample's own length."""
    dtype: np.dtype[Any]
    """Of one row."""
    lengths: NDArray[np.int64] | None = None
    """int64 `(N,)`, bytes of each sample, where `shape` is `None`; `None` until all samples have been encoded."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Of the group of bytes: how they are decoded."""

    @property
    def is_open(self) -> bool:
        """Return whether its samples have no places yet."""
        return self.shape is None and self.lengths is None

    @property
    def row_bytes(self) -> int:
        """Return the length of one row in bytes; 0 where each has its own."""
        return 0 if self.shape is None else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def name(self, split: str) -> str:
        """Return the name of its dataset, or group, of a split."""
        return x_name(split) if self.side == "x" else y_name(split)

    def lengths_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each of some samples."""
        if self.shape is not None:
            return np.full(len(samples), self.row_bytes, np.int64)
        return np.zeros(len(samples), np.int64) if self.lengths is None else self.lengths[samples]

    def reserve(self, split: SplitPlan) -> ReservedDataset:
        """Return the dataset that holds a split's samples, to be written later."""
        name = self.name(split.name)
        if self.shape is not None:
            return ReservedDataset(name, (len(split.samples), *self.shape), self.dtype)
        return ReservedDataset(f"{name}/{BYTES}", (int(self.lengths_of(split.samples).sum()),), self.dtype)

    def offsets(self, split: SplitPlan) -> dict[str, NDArray[np.int64]]:
        """Return where each row of bytes begins and ends, int64 `(rows + 1,)`, by the dataset's name.

        Rows of one shape have none.
        """
        if self.shape is not None:
            return {}
        ends = np.cumsum(self.lengths_of(split.samples))
        return {f"{self.name(split.name)}/{OFFSETS}": np.concatenate([[0], ends]).astype(np.int64)}

    def places(self, splits: Sequence[SplitPlan], offsets: Mapping[str, int], count: int) -> NDArray[np.int64]:
        """Return where in the file each sample's bytes begin, int64 `(count,)`, by the sample's number.

        `offsets`: of the reserved datasets, as `create_pack` returns them. Samples of no split have no place.
        """
        places = np.zeros(count, dtype=np.int64)
        for split in splits:
            lengths = self.lengths_of(split.samples)
            places[split.samples] = offsets.get(self.reserve(split).name, 0) + np.cumsum(lengths) - lengths
        return places


def reserve_boxes(boxes: Boxes, split: SplitPlan) -> list[ReservedDataset]:
    """Return the datasets of a split's boxes: their offsets, their places, and each further column."""
    group = y_name(split.name)
    count = int(np.diff(boxes.offsets)[split.samples].sum())
    return [
        ReservedDataset(f"{group}/{OFFSETS}", (len(split.samples) + 1,), np.dtype(np.int64)),
        ReservedDataset(f"{group}/{BOXES}", (count, 4), np.dtype(np.float32)),
        *(
            ReservedDataset(f"{group}/{name}", (count, *values.shape[1:]), values.dtype)
            for name, values in sorted(boxes.columns.items())
        ),
    ]


def split_boxes(
    boxes: Boxes, split: SplitPlan, sizes: NDArray[np.int64], options: ImageOptions
) -> dict[str, NDArray[Any]]:
    """Return the content of the datasets that `reserve_boxes` names.

    Args:
        boxes: of all samples.
        split: whose samples, in row order.
        sizes: int64 `(N, 2)`, height and width of every sample's upright image before it was resized.
        options: how the stored image was made of it; with no size, boxes stay where they are.
    """
    counts = np.diff(boxes.offsets)[split.samples]
    owner = np.repeat(np.arange(len(split.samples)), counts)
    rows = np.repeat(boxes.offsets[split.samples] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    rows = (rows + np.arange(len(rows))).astype(np.int64)
    own = sizes[split.samples][owner]
    places = boxes.boxes[rows].astype(np.float64)
    if boxes.relative:
        places *= own[:, [1, 0, 1, 0]]
    places, kept = fit_boxes(places, own, options.size, options.resize)
    kept_counts = np.bincount(owner[kept], minlength=len(split.samples))
    group = y_name(split.name)
    found: dict[str, NDArray[Any]] = {
        f"{group}/{OFFSETS}": np.concatenate([[0], np.cumsum(kept_counts)]).astype(np.int64),
        f"{group}/{BOXES}": _filled(places[kept].astype(np.float32), len(rows), 0),
    }
    for name, values in boxes.columns.items():
        unused = 0 if values.dtype.kind in "bu" else _UNUSED
        found[f"{group}/{name}"] = _filled(values[rows[kept]], len(rows), unused)
    return found


def _filled(values: NDArray[Any], count: int, unused: int) -> NDArray[Any]:
    """Return the values with rows behind them up to `count`."""
    rest = np.full((count - len(values), *values.shape[1:]), unused, values.dtype)
    return np.ascontiguousarray(np.concatenate([values, rest]))


def pack_content(
    table: SampleTable,
    plan: PackPlan,
    options: PackOptions,
    *,
    attributes: Mapping[str, Any],
    skipped: Sequence[str] = (),
) -> PackContent:
    """Return all that the file holds before its samples.

    `skipped` has one sentence for each sample that was left out.
    """
    reserved: list[ReservedDataset] = []
    arrays: dict[str, NDArray[Any]] = {CLASSES: np.array(table.classes, dtype=object)}
    if skipped:
        arrays[SKIPPED] = np.array(skipped, dtype=object)
    texts: dict[str, Sequence[str]] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    for split in plan.splits:
        texts[key_name(split.name)] = take_strings(table.keys, split.samples)
        if isinstance(table.targets, Values):
            arrays[y_name(split.name)] = table.targets.values[split.samples]
        elif isinstance(table.targets, Boxes):
            reserved += reserve_boxes(table.targets, split)
        for part in plan.fields:
            if part.is_open:
                continue
            arrays.update(part.offsets(split))
            reserved.append(part.reserve(split))
            if part.attributes:
                groups[part.name(split.name)] = part.attributes
    return PackContent(
        reserved=reserved,
        arrays=arrays,
        texts=texts,
        attributes={"layout": table.layout, "options": options.to_json(), **attributes},
        group_attributes=groups,
    )
