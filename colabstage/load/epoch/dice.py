"""Random numbers of each sample: a pure function of the seed, the epoch and the row, on every machine.

So augmentation does not depend on how samples are batched, on who draws first, or on where an epoch was resumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# SplitMix64 (Steele, Lea, Flood 2014): a counter times the golden ratio, stirred by two multiplications.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STIR = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where a batch stands: what its random parameters depend on.

    `seed`, `epoch`: at least 0. `rows`: `(B,)`, the samples' places in the dataset. `stream`: tells transforms that are
    called one after the other on the same batch apart.
    """

    seed: int
    epoch: int
    rows: NDArray[np.intp]
    stream: tuple[int, ...] = ()

    def draws(self, count: int) -> NDArray[np.float64]:
        """`count` numbers for each row, float64 `(B, count)`, even in [0, 1); the same ones each time."""
        # In the spawn key a further number makes another stream; SeedSequence takes [1] and [1, 0] for the same.
        words = np.random.SeedSequence([self.seed, self.epoch], spawn_key=self.stream).generate_state(2, np.uint64)
        states = _stirred(self.rows.astype(np.uint64) * _GOLDEN + words[0])
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = _stirred((states ^ words[1])[:, None] + counters)
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53)

    def inner(self, number: int) -> BatchPlace:
        """The place of the part with this number, which draws independently of the others."""
        return replace(self, stream=(*self.stream, number))


def _stirred(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in _STIR:
        state = (state ^ (state >> np.uint64(shift))) * factor
    return state ^ (state >> np.uint64(31))


@runtime_checkable
class PlacedTransform(Protocol):
    """A batch transform whose random parameters follow from the place of the batch."""

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        """The new `(x, y)`."""


def apply_transform(
    transform: Callable[[Any, Any], tuple[Any, Any]] | PlacedTransform, x: Any, y: Any, place: BatchPlace
) -> tuple[Any, Any]:
    """Call a batch transform: with its place if it takes one, otherwise with `(x, y)` alone."""
    if isinstance(transform, PlacedTransform):
        return transform.apply_at(x, y, place)
    return transform(x, y)
