"""Boxes of a split in the file, one behind the other, with the offsets where each image's begin.

Where a box lies in the stored image depends on how large the image was, which is known once it has been decoded. So
packing notes every image's size, and the boxes, which are small, are computed and written when all samples are in
their places: for all of a split at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.create import ReservedDataset
from colabstage.h5.schema import BOXES, OFFSETS, y_name
from colabstage.images.geometry import fit_boxes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.options import ImageOptions
    from colabstage.layouts.fields import Boxes
    from colabstage.pack.splits import SplitPlan

# What stands in rows of other columns that cropping left without a box; they come after all others.
_UNUSED = -1


def reserve_boxes(boxes: Boxes, split: SplitPlan) -> list[ReservedDataset]:
    """The datasets of a split's boxes: their offsets, their places, and each further column."""
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
    """The content of the datasets that `reserve_boxes` names.

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
    """The values with rows behind them up to `count`."""
    rest = np.full((count - len(values), *values.shape[1:]), unused, values.dtype)
    return np.ascontiguousarray(np.concatenate([values, rest]))
