"""Order an epoch as a torch sampler does, and take what may be passed as `sampler=`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler

from colabstage.errors import OptionError
from colabstage.load.epoch import RowOrder, Shard, digest_of
from colabstage.load.reading.engines import resolve_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from colabstage.load.epoch import Order


def sampler_order(sampler: Iterable[int], samples: int, *, shuffle: bool, seed: int) -> Order:
    """Return the order of what was passed as `sampler=`: of a list, an array or a tensor of rows the subset, shuffled
    or not; of anything else the order that it gives.

    Raises:
        OptionError: it is neither, or has rows that are not there.
    """
    # Such an object draws again each epoch; a list says all there is.
    if isinstance(sampler, Sampler) or (hasattr(sampler, "__len__") and not _is_sequence(sampler)):
        return SampledOrder(sampler, samples, seed)
    if not _is_sequence(sampler):
        if not hasattr(sampler, "__iter__"):
            msg = f"sampler={sampler!r} cannot be iterated over; expected a torch Sampler, or rows."
            raise OptionError(msg)
        # An iterator has one pass, and every epoch needs one.
        sampler = list(sampler)
    return RowOrder(samples, shuffle, seed, _rows_of(sampler, samples))


def is_own_order(sampler: object) -> bool:
    """Tell whether a sampler decides by itself in which order rows come."""
    return isinstance(sampler, Sampler)


def shares_out(sampler: object) -> bool:
    """Tell whether a sampler gives each rank rows of its own."""
    return isinstance(sampler, DistributedSampler)


def _is_sequence(sampler: object) -> bool:
    return isinstance(sampler, Sequence | np.ndarray | torch.Tensor)


def _rows_of(values: Any, samples: int) -> NDArray[np.intp]:
    try:
        return resolve_rows(np.asarray(values), samples)
    except (IndexError, TypeError, ValueError) as error:
        msg = f"sampler has rows that cannot be read. {error}"
        raise OptionError(msg) from error


@dataclass(frozen=True, eq=False)
class SampledOrder:
    """Visit the rows that a sampler draws.

    While it draws, torch's generator, and its own where it has one, are seeded with seed and epoch, and put back
    afterwards: so its draws are the same on every rank, and again after a resume. A sampler that draws from any other
    rng is not reproduced.
    """

    sampler: Any
    """What was passed as `sampler=`."""
    samples: int
    """How many there are to draw from."""
    seed: int
    """What its draws depend on, together with the epoch."""
    is_striped: ClassVar[bool] = True

    @property
    def count(self) -> int:
        return len(self.sampler)

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        """Draw the rows of an epoch, as `Order`.

        Raises:
            OptionError: it draws rows that are not there, or other than it says.
        """
        rows = _rows_of(self._drawn(epoch), self.samples)
        # The plan counts batches by len(sampler), and ranks would part ways.
        if len(rows) != self.count:
            msg = f"The sampler gave {len(rows):,} rows, and len(sampler) is {self.count:,}; both must be the same."
            raise OptionError(msg)
        return shard.every(rows)

    def identity(self) -> dict[str, int]:
        return {"sampled": self.count, "sampler": digest_of(*_numbers_of(self.sampler))}

    def _drawn(self, epoch: int) -> list[int]:
        # As torch's own DistributedSampler wants it.
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        number = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(1))
        own = getattr(self.sampler, "generator", None)
        own = own if isinstance(own, torch.Generator) else None
        before = None if own is None else own.get_state()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(number)
                if own is not None:
                    own.manual_seed(number)
                return list(self.sampler)
        finally:
            if own is not None and before is not None:
                own.set_state(before)


def _numbers_of(sampler: object) -> Iterator[NDArray[Any]]:
    """Yield the rows, weights and so on that a sampler holds: what tells it from another one of its kind. What tells
    one rank from another, plain numbers, is not among them."""
    for name, value in sorted(getattr(sampler, "__dict__", {}).items()):
        is_listed = isinstance(value, range) or (
            isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value)
        )
        if is_listed or isinstance(value, np.ndarray | torch.Tensor):
            yield np.frombuffer(name.encode(), np.uint8)
            yield value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


class EpochSampler(Sampler[int]):
    """Give a whole epoch's rows, all ranks' together: for frameworks that take a loader apart and make one of their
    own.

    Accelerate, for example, shares them out among ranks by itself.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.epoch = 0
        # What `set_epoch` was given last, until the loader has taken note of it.
        self.asked: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`. Where that is the next one anyway, its place in it stays."""
        self.epoch = self.asked = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.rows(self.epoch, Shard()).tolist())

    def __len__(self) -> int:
        return self._order.count


class RankSampler(EpochSampler, DistributedSampler[int]):
    """Give the same for a loader that shares out by itself: frameworks leave alone what has a `DistributedSampler`."""

    def __init__(self, order: Order, shard: Shard) -> None:
        super().__init__(order)
        self.rank, self.num_replicas = shard.rank, shard.world_size


def epoch_sampler(order: Order, shard: Shard) -> EpochSampler:
    """Return the sampler that a loader shows to frameworks."""
    return EpochSampler(order) if shard.world_size == 1 else RankSampler(order, shard)
