"""Row numbers as callers give them, checked and made the ones a copy loop can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Indices = Sequence[int] | NDArray[np.integer[Any]]


def resolve_rows(indices: Indices, count: int) -> NDArray[np.intp]:
    """Turn indices into rows of a dataset of `count` rows.

    Args:
        indices: one-dimensional integers: a sequence, an array or a tensor; negative ones count from the end,
            repeats are fine, none at all too.
        count: number of rows.

    Returns:
        intp `(len(indices),)`, each in `[0, count)`.

    Raises:
        IndexError: a row that is not there, by its number.
        TypeError: something else than a list of integers.
    """
    rows = np.asarray(indices)
    if rows.size == 0 and rows.ndim == 1:
        return np.empty(0, np.intp)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        msg = f"Expected a one-dimensional list of integers as indices, got {rows.ndim} dimensions of {rows.dtype}."
        raise TypeError(msg)
    # As unsigned numbers negative ones are beyond any count, so that one look is enough for the usual rows.
    if rows.dtype == np.intp and rows.view(np.uintp).max() < count:
        return rows
    low, high = int(rows.min()), int(rows.max())
    if low < -count or high >= count:
        msg = f"Index {high if high >= count else low} is out of range for {count:,} samples."
        raise IndexError(msg)
    rows = rows.astype(np.intp, copy=False)
    return np.where(rows < 0, rows + count, rows) if low < 0 else rows


def row_runs(rows: NDArray[np.intp], longest: int) -> Iterator[tuple[int, int, int]]:
    """Split rows into runs of neighbours, each one more than the last, none longer than `longest`.

    Yields:
        `(start, first_row, length)`: `rows[start : start + length]` is `first_row, first_row + 1, …`.
    """
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        for start in range(begin, end, longest):
            yield start, int(rows[start]), min(longest, end - start)
