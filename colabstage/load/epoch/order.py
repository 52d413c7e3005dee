"""The orders in which an epoch visits the samples: each a pure function of the seed and the epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.load.epoch.sharding import Shard

# Below this many bits of a row's number, 40 bits of dice are left: enough that hardly ever two rows throw the same.
_MOST_ROW_BITS = 24


class Order(Protocol):
    """In which order an epoch visits which rows."""

    @property
    def count(self) -> int:
        """Rows visited in an epoch, by all ranks together."""

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        """The rows that one rank visits, intp; those of all ranks together are the epoch's, each once."""

    def identity(self) -> dict[str, int]:
        """What two loaders must share to visit rows in the same order, seed and number of samples apart."""


def random_order(count: int, *entropy: int) -> NDArray[np.intp]:
    """A permutation of `range(count)` that depends on nothing but the numbers given, each at least 0.

    The same on every machine and with every version of numpy: numpy promises that for the raw numbers of its
    generators, not for `permutation`.
    """
    dice = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    bits = max(1, (count - 1).bit_length())
    if bits > _MOST_ROW_BITS:
        return np.argsort(dice, kind="stable")
    # The dice's upper bits with the row below them: sorting numbers takes a fifth of the time of sorting places.
    low = np.uint64((1 << bits) - 1)
    keyed = (dice & ~low) | np.arange(count, dtype=np.uint64)
    keyed.sort()
    return (keyed & low).astype(np.intp)


def digest_of(*values: NDArray[Any]) -> int:
    """A number of 63 bits that other values, or the same in another order, do not have."""
    digest = hashlib.sha256()
    for part in values:
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).data)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def epoch_order(count: int, *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.intp]:
    """The rows of one epoch.

    Args:
        count: number of samples.
        shuffle: a random permutation; otherwise the file's order.
        seed, epoch: what the permutation depends on, both at least 0.

    Returns:
        intp `(count,)`, each row once.
    """
    return random_order(count, seed, epoch) if shuffle else np.arange(count)


@dataclass(frozen=True, eq=False)
class RowOrder:
    """All rows, or those of `subset`, shuffled or not. Rank r of W takes every W-th, from its r-th on: then what all
    ranks see in a step is what one process would see in a batch W times as large."""

    samples: int
    shuffle: bool
    seed: int
    subset: NDArray[np.intp] | None = None

    @property
    def count(self) -> int:
        return self.samples if self.subset is None else len(self.subset)

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        order = epoch_order(self.count, shuffle=self.shuffle, seed=self.seed, epoch=epoch)
        return shard.every(order if self.subset is None else self.subset[order])

    def identity(self) -> dict[str, int]:
        shuffled = {"shuffle": int(self.shuffle)}
        return shuffled if self.subset is None else shuffled | {"sampled": self.count, "rows": digest_of(self.subset)}
