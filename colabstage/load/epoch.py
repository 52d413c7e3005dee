"""Order an epoch, draw its random numbers, and divide its rows among ranks: functions of seed and epoch.

So neither the order nor augmentation depends on the batch size, on which thread draws first, or on where an epoch was
resumed. Every sample is visited exactly once an epoch, by one rank, and ranks differ by one sample at most. All ranks
make the same number of steps, because a collective operation that one of them does not join would wait for ever: a rank
whose samples would fill one batch less than another's gives its last sample a batch of its own. That cannot be done
with batches of one sample, or with fewer samples than ranks: then some ranks have one batch fewer.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.arguments import refuse_argument, whole_number
from colabstage.load.reading.fields import resolve_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

# SplitMix64 (Steele, Lea, Flood 2014): a counter times the golden ratio, mixed by two multiplications.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Seed, epoch and rows of a batch, on which its random parameters depend."""

    seed: int
    epoch: int
    rows: NDArray[np.intp]
    """`(B,)`, the samples' places in the dataset."""
    stream: tuple[int, ...] = ()
    """Separates transforms that are called one after the other on the same batch."""

    def draws(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers for each row, float64 `(B, count)`, uniform in [0, 1); always the same ones."""
        # A further number in the spawn key makes another stream; as entropy, [1] and [1, 0] are the same.
        words = np.random.SeedSequence([self.seed, self.epoch], spawn_key=self.stream).generate_state(2, np.uint64)
        states = _mixed(self.rows.astype(np.uint64) * _GOLDEN + words[0])
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = _mixed((states ^ words[1])[:, None] + counters)
        # A float64 below 1 holds 53 bits.
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53)

    def inner(self, number: int) -> BatchPlace:
        """Return the place of the part with this number, which draws independently of the others."""
        return replace(self, stream=(*self.stream, number))


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in _MIX:
        state = (state ^ (state >> np.uint64(shift))) * factor
    return state ^ (state >> np.uint64(31))


# If a row number has fewer bits, 40 random bits are left: enough that two rows hardly ever draw the same.
_MOST_ROW_BITS = 24


class Order(Protocol):
    """The order in which epochs visit rows. It does not know about ranks, which divide what it returns."""

    @property
    def count(self) -> int:
        """Number of rows visited in an epoch, by all ranks together."""

    def rows(self, seed: int, epoch: int) -> NDArray[np.intp]:
        """Return the rows of an epoch, each as often as it is visited, intp `(count,)`."""

    def identity(self) -> dict[str, int]:
        """Return what two loaders must share to visit rows in the same order, besides seed and number of samples."""


def random_order(count: int, *entropy: int) -> NDArray[np.intp]:
    """Return a permutation of `range(count)` that depends only on the given numbers, each at least 0. numpy promises
    this in every version for the raw numbers of its generators, not for `permutation`."""
    drawn = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    bits = max(1, (count - 1).bit_length())
    if bits > _MOST_ROW_BITS:
        return np.argsort(drawn, kind="stable")
    # The upper random bits with the row number below: sorting such numbers takes a fifth of the time of an argsort.
    low = np.uint64((1 << bits) - 1)
    # In place: allocating memory for millions of rows takes as long as all of this.
    drawn &= ~low
    drawn |= np.arange(count, dtype=np.uint64)
    drawn.sort()
    drawn &= low
    return drawn.view(np.intp)


def random_fractions(count: int, *entropy: int) -> NDArray[np.float64]:
    """Return `count` numbers, uniform in [0, 1), that depend only on the given numbers; as `random_order`."""
    drawn = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    # A float64 below 1 holds 53 bits.
    return np.asarray((drawn >> np.uint64(11)) * 2.0**-53)


def stable_order(keys: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of numbers in ascending order; equal numbers keep their order."""
    order = np.argsort(keys)
    found = keys[order]
    # An unstable sort takes half the time, and drawn numbers are hardly ever equal.
    return np.argsort(keys, kind="stable") if (found[1:] == found[:-1]).any() else order


def spread_order(count: int, *entropy: int) -> NDArray[np.intp]:
    """Return a random permutation of `range(count)` of which every stretch is spread evenly over the range: the first
    two are from different halves, the first four from different quarters, and so on, as are each following pair and
    four. (Owen's scrambling of bit-reversed numbers.)"""
    order = np.zeros(1, np.intp)
    sides = (random_fractions(1 << max(0, count - 1).bit_length(), *entropy) < 0.5).astype(np.intp)
    while len(order) < count:
        side = sides[len(order) : 2 * len(order)]
        order = np.concatenate([2 * order + side, 2 * order + 1 - side])
    return order[order < count]


def digest_of(*values: NDArray[Any]) -> int:
    """Return a 63-bit hash of arrays and their order."""
    digest = hashlib.sha256()
    for part in values:
        # Bytes alone would not distinguish two arrays from their concatenation.
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).data)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


@dataclass(frozen=True, eq=False)
class RowOrder:
    count: int
    shuffle: bool
    chosen: NDArray[np.intp] | None = None

    def rows(self, seed: int, epoch: int) -> NDArray[np.intp]:
        order = random_order(self.count, seed, epoch) if self.shuffle else np.arange(self.count)
        return order if self.chosen is None else self.chosen[order]

    def identity(self) -> dict[str, int]:
        own = {"shuffle": int(self.shuffle)}
        return own if self.chosen is None else {**own, "sampled": self.count, "rows": digest_of(self.chosen)}


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of an epoch: rank r of W takes every W-th row, from the r-th on, so that all ranks together see
    in a step what one process would see in a batch W times as large."""

    rank: int = 0
    world_size: int = 1

    def every(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return every `world_size`-th value, from the `rank`-th on."""
        return values[self.rank :: self.world_size]

    def share(self, count: int) -> int:
        """Return how many of `count` rows this rank gets."""
        return count // self.world_size + (self.rank < count % self.world_size)


def choose_shard(rank: int | None, world_size: int | None) -> Shard:
    """Return the requested part; by default that of the process group, if one is initialised."""
    if rank is None and world_size is None:
        from torch import distributed

        # As torch's own DistributedSampler does, so that one script runs on one process and on many.
        if distributed.is_available() and distributed.is_initialized():
            return Shard(distributed.get_rank(), distributed.get_world_size())
        return Shard()
    shard = Shard(whole_number("rank", rank), whole_number("world_size", world_size, least=1))
    if shard.rank >= shard.world_size:
        msg = f"rank={rank!r} and world_size={world_size!r} do not fit; expected 0 <= rank < world_size, or neither."
        raise OptionError(msg)
    return shard


def first_made(name: str, made: str) -> str:
    """Return how the first of the process group's ranks to make this loader has made it, without waiting for any."""
    # A store may have failed, or be of another kind.
    with suppress(Exception):
        from torch.distributed import distributed_c10d, get_rank

        store = distributed_c10d._get_default_store()
        number = store.add(f"colabstage/{name}/made by rank {get_rank()}", 1)
        return store.compare_set(f"colabstage/{name}/{number}", "", made).decode()
    return made


def count_batches(count: int, batch_size: int, shard: Shard, *, drop_last: bool) -> int:
    """Return how many batches of an epoch of `count` rows a rank has. With `drop_last` only full ones count, and all
    ranks have the same number."""
    # This is the same number on all ranks: the remaining rows of all are left out.
    if drop_last:
        return count // (batch_size * shard.world_size)
    longest = -(-count // shard.world_size)
    most, own = -(-longest // batch_size), shard.share(count)
    splits = own > 1 and batch_size > 1
    return most if splits else -(-own // batch_size)


def choose_seed(asked: int | None, draw: Callable[[], Any], *, fixed: bool) -> int:
    """Return the seed. If it is not given it is drawn, unless it must be `fixed`: because all ranks must share it, or
    rows arrive in its order."""
    if asked is not None:
        return whole_number("seed", asked)
    return 0 if fixed else int(draw())


def sampler_order(sampler: Iterable[int], samples: int, *, shuffle: bool | None) -> RowOrder | SampledOrder:
    """Return the order of a `sampler=`: of a collection of rows, or that of a sampler."""
    from torch.utils.data import Sampler

    given: object = sampler
    if not isinstance(given, Iterable):
        refuse_argument("sampler", sampler, "a torch Sampler, or rows")
    # Such an object draws again each epoch; a list, an array, a set or a column of a table is always the same.
    if isinstance(given, Sampler) or (hasattr(given, "__len__") and not isinstance(given, Collection)):
        if not hasattr(given, "__len__"):
            msg = (
                f"{type(sampler).__name__} has no __len__, which counts the batches. Give it one; or, for the same "
                "rows in every epoch, pass sampler=list(sampler), shuffle=False."
            )
            raise OptionError(msg)
        _check_source(given, samples)
        return SampledOrder(sampler, samples)
    # An iterator has one pass, and every epoch needs one.
    rows = sampler if hasattr(given, "__array__") else list(sampler)
    return chosen_order("sampler=", rows, samples, shuffle=shuffle)


def _check_source(sampler: object, samples: int) -> None:
    """Refuse a torch sampler made for another number of rows: it would never visit some."""
    # What torch's own count, as they did when they were made.
    counts = ("weights", "data_source", "dataset") if type(sampler).__module__.startswith("torch.") else ()
    count = next((len(getattr(sampler, name)) for name in counts if hasattr(sampler, name)), samples)
    if count != samples:
        msg = (
            f"sampler= is a {type(sampler).__name__} of {count:,} rows, and there are {samples:,}. Make it for this "
            "dataset, with a weight for each row; or visit some rows alone by a Subset of them."
        )
        raise OptionError(msg)


def chosen_order(name: str, values: Any, samples: int, *, shuffle: bool | None) -> RowOrder:
    """Return the order of given rows, shuffled or as listed; refused if `shuffle` is `None`. `name`: the argument."""
    rows = given_rows(name, values, samples)
    # None at all are refused with the plan.
    if shuffle is None and len(rows):
        msg = (
            f"You chose {len(rows):,} of the {samples:,} rows of 'train', but not their order. Add shuffle=True to "
            "train on them, or shuffle=False to visit them as they are listed, to match predictions to them."
        )
        raise OptionError(msg)
    return RowOrder(len(rows), bool(shuffle), rows)


def order_within(order: RowOrder | SampledOrder, rows: NDArray[np.intp]) -> RowOrder | SampledOrder:
    """Return an order over a subset as an order over the dataset: `rows` are the subset's rows."""
    return replace(order, chosen=rows if order.chosen is None else rows[order.chosen])


def given_rows(name: str, values: Any, samples: int) -> NDArray[np.intp]:
    """Return the rows that were given as `name`; raise OptionError if they do not exist."""
    try:
        # Not by a cast, which would turn a mask into rows 0 and 1.
        return resolve_rows(values, samples)
    except (IndexError, TypeError, ValueError) as error:
        why = "Expected rows, got lists of rows." if isinstance(error, ValueError) else error
        msg = f"{name} has rows that cannot be read. {why}"
        raise OptionError(msg) from error


@dataclass(frozen=True, eq=False)
class SampledOrder:
    """Visit the rows that a sampler draws. Meanwhile the generators of torch, numpy and Python, and a torch generator
    of its own, are seeded with seed and epoch: so it draws the same on every rank, and after a resume. One of another
    kind cannot be seeded, but a state's digest of the rows detects another order."""

    sampler: Any
    samples: int
    chosen: NDArray[np.intp] | None = None
    """The row of each number that the sampler draws; `None` if it draws rows."""
    _drawn: dict[tuple[int, int], NDArray[np.intp]] = field(default_factory=dict)
    """What was drawn for the last epoch: a second draw may differ."""

    @property
    def count(self) -> int:
        return len(self.sampler)

    def rows(self, seed: int, epoch: int) -> NDArray[np.intp]:
        """Draw the rows of an epoch, as `Order`; raise OptionError if they or their number are wrong."""
        if (seed, epoch) not in self._drawn:
            # Drawing one more than its length detects a sampler that never ends.
            rows = given_rows("sampler=", self._draw(seed, epoch), self.samples)
            # The plan counts batches by len(sampler), so ranks would get different numbers of steps.
            if len(rows) != self.count:
                found = f"{len(rows):,}" if len(rows) < self.count else "more"
                msg = f"The sampler gave {found} rows, and len(sampler) is {self.count:,}; both must be the same."
                raise OptionError(msg)
            self._drawn.clear()
            self._drawn[seed, epoch] = rows
        drawn = self._drawn[seed, epoch]
        return drawn if self.chosen is None else self.chosen[drawn]

    def identity(self) -> dict[str, int]:
        # The rows that a sampler has drawn are digested in the state itself.
        return {"sampled": self.count}

    def _draw(self, seed: int, epoch: int) -> list[int]:
        # As torch's own DistributedSampler requires.
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        number = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(1))
        with _seeded(number, getattr(self.sampler, "generator", None)):
            return list(islice(self.sampler, self.count + 1))


def numpy_state() -> tuple[Any, ...]:
    """Return the state of numpy's global generator; an OptionError if another kind, which cannot be seeded, is in its
    place."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - what training code draws from
    if (kind := state["bit_generator"]) != "MT19937":
        msg = (
            f"np.random draws from a {kind}, which np.random.seed cannot seed. Keep that generator as your own, by "
            f"np.random.Generator(np.random.{kind}(0)), and write np.random.set_bit_generator(np.random.MT19937(0))."
        )
        raise OptionError(msg)
    return (kind, *state["state"].values(), state["has_gauss"], state["gauss"])


@contextmanager
def _seeded(number: int, own: object) -> Iterator[None]:
    """Seed the generators that a sampler may draw from, and restore them."""
    import torch

    generators = [torch.default_generator, *([own] if isinstance(own, torch.Generator) else [])]
    with ExitStack() as stack:
        for one in generators:
            stack.callback(one.set_state, one.get_state())
            one.manual_seed(number)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, numpy_state())
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        yield


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Divide rows into the batches of each epoch, for one rank."""

    order: Order
    seed: int
    batch_size: int
    drop_last: bool
    shard: Shard

    @property
    def batches(self) -> int:
        return count_batches(self.order.count, self.batch_size, self.shard, drop_last=self.drop_last)

    def steps_as(self, state: Mapping[str, Any]) -> bool:
        """Return whether the ranks of the loader of `state` together have handed out the same rows as this one's would
        have in as many steps."""
        size: Any = state.get("batch_size")
        ranks: Any = state.get("world_size")
        done: Any = state.get("batches_done")
        if not all(isinstance(one, int) and one >= least for one, least in ((size, 1), (ranks, 1), (done, 0))):
            return False
        if size * ranks != self.batch_size * self.shard.world_size:
            return False
        return done == 0 or all(
            one._is_even(done) for one in (replace(self, batch_size=size, shard=Shard(0, ranks)), self)
        )

    def _is_even(self, batches_done: int) -> bool:
        """Return whether, after this many batches, every rank has had only full ones, or all of its own."""
        least, more = divmod(self.order.count, self.shard.world_size)
        # On ranks with one sample less, the last full batch may be shorter so that another one follows.
        if batches_done * self.batch_size < least + (self.batch_size == 1):
            return True
        return batches_done == replace(self, shard=Shard(0, self.shard.world_size)).batches and (
            not more or min(least, self.batch_size) > 1
        )

    def rows_left(self, epoch: int, batches_done: int) -> list[NDArray[np.intp]]:
        """Return the rows of each of an epoch's remaining batches."""
        rows = self.shard.every(self.order.rows(self.seed, epoch))
        edges = self._edges(len(rows))
        # Full ones as rows of a table: for millions of small batches, slicing each would take several times as long.
        done, full = edges[batches_done], max(batches_done, min(len(edges) - 3, len(rows) // self.batch_size))
        left = list(rows[done : edges[full]].reshape(-1, self.batch_size))
        return left + [rows[start:stop] for start, stop in pairwise(edges[full:])]

    def _edges(self, count: int) -> list[int]:
        batches, size = self.batches, self.batch_size
        edges: list[int] = np.minimum(np.arange(batches + 1) * size, count).tolist()
        if batches > 1 and edges[-1] == edges[-2]:
            # Another rank has one sample more, and so one batch more.
            edges[-2] -= 1
        return edges
