"""The samples that `peers_pixels` reads, and how a batch is touched and checked. Needs numpy only, for any environment.

The number of a row stands in the first four bytes of its inputs, so that a batch tells by itself which rows it has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

BATCH = 64
PACKED = "packed.h5"
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Shape:
    """`samples` inputs of `x_shape` and `dtype`; targets are classes, or masks `(H, W)` of uint8."""

    title: str
    samples: int
    x_shape: tuple[int, ...]
    dtype: str = "uint8"
    masks: bool = False

    @property
    def x_bytes(self) -> int:
        """Bytes of one input."""
        return int(np.prod(self.x_shape)) * np.dtype(self.dtype).itemsize

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one target."""
        return self.x_shape[:2] if self.masks else ()

    @property
    def y_dtype(self) -> str:
        """Dtype of the targets."""
        return "uint8" if self.masks else "int64"

    @property
    def y_bytes(self) -> int:
        """Bytes of one target."""
        return int(np.prod(self.y_shape)) * np.dtype(self.y_dtype).itemsize

    def as_written(self, x: Any) -> NDArray[Any]:
        """A batch of inputs in the order of axes in which they were written."""
        x = np.asarray(x)
        return np.ascontiguousarray(x if x.shape[1:] == self.x_shape else np.moveaxis(x, 1, -1))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Shape:
        """Back from JSON values."""
        return cls(**{**values, "x_shape": tuple(values["x_shape"])})


def write_samples(folder: Path, shape: Shape) -> None:
    """Write `x.npy` and `y.npy`, a part at a time."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", shape.dtype, (shape.samples, *shape.x_shape))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", shape.y_dtype, (shape.samples, *shape.y_shape))
    step = max(1, _PART_BYTES // shape.x_bytes)
    for start in range(0, shape.samples, step):
        rows = np.arange(start, min(start + step, shape.samples))
        part = _random(rng, (len(rows), *shape.x_shape), shape.dtype)
        part.reshape(len(rows), -1).view(np.uint8)[:, :4] = rows.astype("<u4")[:, None].view(np.uint8)
        x[rows] = part
        y[rows] = rng.integers(0, 20, (len(rows), *shape.y_shape), dtype=shape.y_dtype)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    if dtype == "float32":
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 256, shape, dtype)


def read_samples(folder: Path, *, in_memory: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and targets: mapped, or in memory."""
    paths = folder / "x.npy", folder / "y.npy"
    if in_memory:
        return np.load(paths[0]), np.load(paths[1])
    return np.load(paths[0], "r"), np.load(paths[1], "r")


def touch(x: Any, y: Any) -> int:
    """The work that stands for a training step: one value of every input and of every target."""
    return int(x[(slice(None), *[0] * (x.ndim - 1))].sum()) + int(y[(slice(None), *[0] * (y.ndim - 1))].sum())


def row_numbers(x: NDArray[Any]) -> NDArray[np.int64]:
    """The rows that a batch has, by its inputs as they were written."""
    return x.reshape(len(x), -1).view(np.uint8)[:, :4].copy().view("<u4")[:, 0].astype(np.int64)


class Checker:
    """Whether an epoch had every row once, with the bytes that were written, in another order than theirs."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._shape = shape
        self._x, self._y = read_samples(folder)
        self._seen = np.zeros(shape.samples, np.int64)
        self._sorted = True

    def add(self, x: Any, y: Any) -> None:
        """Check a batch against the source, byte for byte.

        Raises:
            ValueError: it has other bytes.
        """
        x, y = self._shape.as_written(x), np.asarray(y)
        rows = row_numbers(x)
        if x.dtype != self._x.dtype or not np.array_equal(x, self._x[rows]) or not self._targets_equal(y, rows):
            msg = f"a batch of {len(rows)} rows is not what was written"
            raise ValueError(msg)
        np.add.at(self._seen, rows, 1)
        self._sorted &= bool(np.all(np.diff(rows) == 1))

    def _targets_equal(self, y: NDArray[Any], rows: NDArray[np.int64]) -> bool:
        wanted = self._y[rows]
        return np.array_equal(y.reshape(wanted.shape), wanted)

    def verdict(self) -> str | None:
        """What is wrong with the epoch; `None` when nothing is."""
        if self._sorted:
            return "it was not shuffled"
        wrong = int((self._seen != 1).sum())
        return f"{wrong:,} of {len(self._seen):,} rows were not seen exactly once" if wrong else None
