"""Sharing out an epoch among the ranks of a distributed run.

Every sample is visited exactly once an epoch, by one rank, and ranks differ by one sample at the most. All ranks make
the same number of steps, because a collective operation that one of them does not join would wait for ever: a rank
whose samples would fill one batch less than another's gives its last sample a batch of its own. That cannot be done
with batches of one sample, or with fewer samples than ranks: then some ranks have one batch fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colabstage.load.epoch.order import Order


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part: `rank` of `world_size`, counted from 0."""

    rank: int = 0
    world_size: int = 1

    def every(self, values: NDArray[Any]) -> NDArray[Any]:
        """Every `world_size`-th value, from the `rank`-th on."""
        return values[self.rank :: self.world_size]

    def part(self, values: NDArray[Any]) -> NDArray[Any]:
        """One contiguous part; the first ranks' are longer by one where it does not come out even."""
        start = self.rank * (len(values) // self.world_size) + min(self.rank, len(values) % self.world_size)
        return values[start : start + self.share(len(values))]

    def share(self, count: int) -> int:
        """How many of `count` this rank gets, in either way."""
        return count // self.world_size + (self.rank < count % self.world_size)


def choose_shard(rank: int | None, world_size: int | None) -> Shard:
    """The part that was asked for; by default that of the process group, where one is initialised.

    Raises:
        OptionError: one of the two without the other, or numbers that cannot be.
    """
    if rank is None and world_size is None:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return Shard(distributed.get_rank(), distributed.get_world_size())
        return Shard()
    if not (_is_count(rank, 0) and _is_count(world_size, 1) and rank < world_size):  # type: ignore[operator]
        msg = (
            f"rank={rank!r} and world_size={world_size!r} cannot be; give both, with 0 <= rank < world_size, or "
            "neither: then those of torch.distributed are taken, where it is initialised."
        )
        raise OptionError(msg)
    return Shard(rank, world_size)  # type: ignore[arg-type]


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def count_batches(count: int, batch_size: int, shard: Shard, *, drop_last: bool) -> int:
    """How many batches a rank has of an epoch of `count` rows. With `drop_last` they are full ones only, and equally
    many on all ranks."""
    if drop_last:
        return count // (batch_size * shard.world_size)
    longest = -(-count // shard.world_size)
    most, own = -(-longest // batch_size), shard.share(count)
    splits = own > 1 and batch_size > 1
    return most if splits else -(-own // batch_size)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Which rows make up which batch of which epoch, for one rank."""

    order: Order
    batch_size: int
    drop_last: bool
    shard: Shard

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return count_batches(self.order.count, self.batch_size, self.shard, drop_last=self.drop_last)

    def rows_left(self, epoch: int, batches_done: int) -> tuple[list[NDArray[np.intp]], int]:
        """Rows of the batches that are left of an epoch, and how many rows there were before them."""
        rows = self.order.rows(epoch, self.shard)
        edges = self._edges(len(rows))
        left = [rows[start:stop] for start, stop in zip(edges[batches_done:-1], edges[batches_done + 1 :], strict=True)]
        return left, edges[batches_done]

    def _edges(self, count: int) -> list[int]:
        batches, size = self.batches, self.batch_size
        edges = [min(number * size, count) for number in range(batches + 1)]
        if batches > 1 and edges[-1] == edges[-2]:
            # Another rank has one sample more, and with it one batch more.
            edges[-2] -= 1
        return edges
