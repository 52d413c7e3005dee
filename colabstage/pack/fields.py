"""How one side of the samples lies in the file: rows of one shape, or bytes of any length one behind the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.create import ReservedDataset
from colabstage.h5.schema import BYTES, OFFSETS, x_name, y_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from numpy.typing import NDArray

    from colabstage.pack.splits import SplitPlan


@dataclass(frozen=True, slots=True)
class StoredField:
    """One side of all samples, N of them, which each sample writes into its own place.

    `side`: "x" or "y".
    `shape`, `dtype`: of one row; `shape` is `None` for bytes of each sample's own length.
    `lengths`: int64 `(N,)`, bytes of each sample, where `shape` is `None`; `None` while they are not known, which is
    until all samples have been encoded.
    `attributes`: of the group of bytes: how they are decoded.
    """

    side: Literal["x", "y"]
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    lengths: NDArray[np.int64] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether its samples have no places yet."""
        return self.shape is None and self.lengths is None

    @property
    def row_bytes(self) -> int:
        """Length of one row in bytes; 0 where each has its own."""
        return 0 if self.shape is None else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def name(self, split: str) -> str:
        """Its dataset, or group, of a split."""
        return x_name(split) if self.side == "x" else y_name(split)

    def lengths_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each of some samples."""
        if self.shape is not None:
            return np.full(len(samples), self.row_bytes, np.int64)
        return np.zeros(len(samples), np.int64) if self.lengths is None else self.lengths[samples]

    def reserve(self, split: SplitPlan) -> ReservedDataset:
        """The dataset that holds a split's samples, to be written later."""
        name = self.name(split.name)
        if self.shape is not None:
            return ReservedDataset(name, (len(split.samples), *self.shape), self.dtype)
        return ReservedDataset(f"{name}/{BYTES}", (int(self.lengths_of(split.samples).sum()),), self.dtype)

    def offsets(self, split: SplitPlan) -> dict[str, NDArray[np.int64]]:
        """Where each row of bytes begins and ends, int64 `(rows + 1,)`, by the dataset's name; nothing for rows of one
        shape."""
        if self.shape is not None:
            return {}
        ends = np.cumsum(self.lengths_of(split.samples))
        return {f"{self.name(split.name)}/{OFFSETS}": np.concatenate([[0], ends]).astype(np.int64)}

    def places(self, splits: Sequence[SplitPlan], offsets: Mapping[str, int], count: int) -> NDArray[np.int64]:
        """Where in the file each sample's bytes begin, int64 `(count,)`, by the sample's number.

        `offsets`: of the reserved datasets, as `create_pack` returns them. Samples of no split have no place.
        """
        places = np.zeros(count, dtype=np.int64)
        for split in splits:
            lengths = self.lengths_of(split.samples)
            places[split.samples] = offsets.get(self.reserve(split).name, 0) + np.cumsum(lengths) - lengths
        return places
