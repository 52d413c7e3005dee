"""The order in which an epoch visits rows that are still arriving, in units.

It shuffles units, then rows within a window of some units. It depends on seed, epoch and layout alone, never on what
came first, so that what will be needed next is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.load.epoch import ChosenRows, RowOrder, Shard, digest_of, random_fractions, spread_order, stable_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Arrival, UnitLayout
    from colabstage.load.epoch import Order


class Announced:
    """Tell an arrival which rows an epoch's batches need, and how many batches have been handed out."""

    def __init__(
        self,
        arrival: Arrival,
        split: str,
        batches: Sequence[NDArray[np.intp]],
        then: Callable[[], Sequence[NDArray[np.intp]]],
    ) -> None:
        """Announce `batches`; `then` makes those of the epoch after."""
        self._ends = np.cumsum([len(rows) for rows in batches]).tolist()
        self._expectation = arrival.expect(split, _join_batches(batches), then=lambda: _join_batches(then()))
        self._handed_out, self._waited_s = 0, 0.0

    def waited(self, seconds: float) -> None:
        """Record how long the consumer has waited for the batch that it receives next."""
        self._waited_s += seconds

    def hand_out(self) -> None:
        """Record that the consumer has received one more batch."""
        self._expectation.reached(self._ends[self._handed_out], self._waited_s)
        self._handed_out, self._waited_s = self._handed_out + 1, 0.0

    def close(self) -> None:
        """Forget the rest."""
        self._expectation.close()


def _join_batches(batches: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.concatenate(batches) if batches else np.arange(0)


@dataclass(frozen=True, eq=False)
class FirstEpochOrder:
    """Visit the first epoch by units, while rows arrive, and all later ones in another order."""

    first: UnitOrder
    later: Order

    @property
    def count(self) -> int:
        return self.first.count

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        return (self.later if epoch else self.first).rows(epoch, shard)

    def identity(self) -> dict[str, int]:
        return {**self.later.identity(), **self.first.identity()}

    def with_seed(self, seed: int) -> FirstEpochOrder:
        return FirstEpochOrder(self.first.with_seed(seed), self.later.with_seed(seed))


def order_of(layout: UnitLayout, split: str, seed: int, subset: NDArray[np.intp] | None) -> Order:
    """Return the order by units of all rows or of `subset`, for as many epochs as rows arrive."""
    by_units = UnitOrder(layout.units(split), layout.window_units, seed, subset, layout.first_units, layout.together)
    if not layout.first_epoch_only:
        return by_units
    later: Order = RowOrder(by_units.count, shuffle=True, seed=seed)
    return FirstEpochOrder(by_units, later if subset is None else ChosenRows(later, subset))


@dataclass(frozen=True, eq=False)
class UnitOrder:
    """Take units in random order, spread evenly over the file, and spread the rows of each over the window after it.

    Windows overlap: a row is visited while the next `window_units` units are taken. They grow from the first units,
    which are taken all at once, and shrink to a single unit at the end: so the first batch does not wait for a whole
    window, and little is left to visit once the last unit is here. As units are spread, the classes of a source that is
    sorted by class are even in a batch as soon as there are more units in a window than classes.

    The rows of a unit are drawn in random order, one from each of as many equal parts of its window as it has rows. So
    each has the same chance of every moment, but a batch does not happen to have many of one unit and none of another:
    the classes of a batch are as even as after moments drawn one by one from a window twice as long.

    A row that is in two units comes after the later one of them. Rank r of W takes every W-th row: all ranks of one
    machine read the same window, which is fetched once.
    """

    units: NDArray[np.intp]
    """The unit of each row, `(N,)`, or its first and its last, `(N, 2)`; counted from 0."""
    window_units: int
    """Units among whose rows a row is put."""
    seed: int
    subset: NDArray[np.intp] | None = None
    """Rows that are visited, `None` for all."""
    first_units: int = 1
    together: int = 1
    """How many neighbours are visited shortly after each other."""

    @property
    def count(self) -> int:
        return len(self.units) if self.subset is None else len(self.subset)

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        units = self.units if self.subset is None else self.units[self.subset]
        if not len(units):
            return np.arange(0)
        turns = np.empty(count := int(units.max()) + 1, np.intp)
        turns[visited_units(count, self.seed, epoch, self.together)] = np.arange(count)
        begins, widths = unit_windows(count, self.window_units, self.first_units)
        turn = turns[units] if units.ndim == 1 else turns[units].max(axis=1)
        # By unit, and shuffled within it.
        moments = random_fractions(len(units), self.seed, epoch, 4)
        moments += turn
        rows = stable_order(moments)
        turn = turn[rows]
        counts = np.bincount(turn, minlength=count)
        part = np.arange(len(rows)) - (np.cumsum(counts) - counts)[turn]
        # In place: memory of millions of rows that is new takes as long as filling it.
        moments = random_fractions(len(rows), self.seed, epoch, 5)
        moments += part
        moments /= counts[turn]
        moments *= widths[turn]
        moments += begins[turn]
        order = rows[stable_order(moments)]
        return shard.every(order if self.subset is None else self.subset[order])

    def identity(self) -> dict[str, int]:
        # `unit_order` is raised whenever the same seed and layout give another order than before, so that a state of
        # an older version is refused: it would continue with other rows.
        found = {"unit_order": 3, "units": int(self.units.max(initial=-1)) + 1, "window_units": self.window_units}
        # Not where it is 1, as it was before there were others.
        found |= {"together": self.together} if self.together > 1 else {}
        return found if self.subset is None else {**found, "sampled": self.count, "rows": digest_of(self.subset)}

    def with_seed(self, seed: int) -> UnitOrder:
        return replace(self, seed=seed)


# Labels say nothing of what else neighbours have in common, such as a camera: a batch is to come from so many places,
# and from more where that costs nothing worth mentioning: this share of all units is half left to train on at the end.
_LEAST_WINDOW, _CHEAP = 12, 40
# Of what a window is longer than that, such a part is left once the last unit is here. Of a hundred sorted classes a
# small network learned more by it in the first epoch (top-1 0.70 for 0.68, with windows twice as long 0.74 for 0.70);
# where training takes as long as arrival it costs nothing, because more than that is left anyway.
_LATE = 10
# Of windows up to such a part of all units nothing is.
_NOT_LATE = 20


# As few stretches of neighbours as a window has units: any such stretch is visited within a few windows.
_PLACES = 12


def visited_units(count: int, seed: int, epoch: int, together: int = 1) -> NDArray[np.intp]:
    """Return `count` units in the order in which an epoch visits them.

    With several `together`, they are cut into stretches of so many neighbours. Twelve stretches are visited by turns,
    one unit of each, then the next of each, before the next twelve: consecutive units are of different stretches, as
    where each is visited by itself, and who fetches can bring neighbours at once without bringing what is needed late.
    """
    # The 3, and the 4 and 5 of the rows, tell these draws from each other and from those of other orders.
    stretches = spread_order(-(-count // together), seed, epoch, 3)
    if together == 1:
        return stretches
    number = np.arange(len(stretches))
    # By group of stretches, then by the unit within each, then by the turn of the stretch.
    units = stretches[:, None] * together + np.arange(together)
    keys = np.broadcast_to(number[:, None], units.shape), np.broadcast_to(np.arange(together), units.shape)
    order = np.lexsort((keys[0].ravel(), keys[1].ravel(), keys[0].ravel() // _PLACES))
    visited: NDArray[np.intp] = units.ravel()[order]
    return visited[visited < count]


def unit_windows(count: int, window_units: int, first_units: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return when the window of each of `count` units begins, by its turn, and how long it is; in units, intp each."""
    begins = np.maximum(np.arange(count) - first_units + 1, 0)
    # The last unit's window is one unit long, and all end with it; or some units later where a long window was wanted
    # because the classes come one after the other: then the last batches would be of the classes that come last.
    after = max(0, min(window_units, count) - count // _NOT_LATE) // _LATE if first_units > 1 else 0
    left = count - np.maximum(np.arange(count), min(first_units, count) - 1) + after
    return begins, np.minimum(window_units, np.minimum(min(first_units, count) + begins, left))


# How even classes have to be, by `mixing_of`, over stretches from this many rows on. Of thirty sorted classes a small
# network learned as much with 0.5 as with more, and less with a third.
_EVEN, _STRETCH_ROWS = 0.5, 64
# Enough of them to tell: of all rows of a large source it would take as long as a round trip.
_MOST_ROWS = 2**15


def even_window(
    units: NDArray[np.intp], labels: NDArray[np.integer], most_units: int, first_units: int, together: int = 1
) -> int:
    """Return how many units a window needs for the classes to be even, in a batch and over any longer stretch.

    A longer one costs time where training takes as long as arrival: up to half a window is left to train on when the
    last unit has come. It follows from layout and labels alone, for an order must not depend on what has arrived.

    Args:
        units: `(N,)`, the unit of each row, counted from 0.
        labels: `(N,)`, its class.
        most_units: what is returned where labels say nothing, since all are the same; where they say that less is not
            even, it may be twice as many.
        first_units: how many units the first batch may wait for.
        together: how many neighbours are visited shortly after each other.
    """
    every = max(1, -(-len(units) // _MOST_ROWS))
    units, labels = units[::every], labels[::every]
    if len(units) < 2 * _STRETCH_ROWS or labels.min() == labels.max():
        return most_units
    size = max(_LEAST_WINDOW, (int(units.max()) + 1) // _CHEAP)
    while size < 2 * most_units:
        order = UnitOrder(units, size, 0, first_units=first_units, together=together).rows(0, Shard())
        if _is_even(labels[order]):
            return size
        size += size // 2
    return 2 * most_units


def _is_even(labels: NDArray[np.integer]) -> bool:
    """Return whether classes are even in a batch, and over stretches of twice as many rows, four times, and so on."""
    sizes = [_STRETCH_ROWS << power for power in range(len(labels).bit_length())]
    return all(mixing_of(labels, size) >= _EVEN for size in sizes if size == _STRETCH_ROWS or 8 * size <= len(labels))


def mixing_of(labels: NDArray[np.integer], batch_size: int) -> float:
    """Return how even the classes are in consecutive batches of `labels`, which are in the order of visits.

    It is the variance of their counts that a full shuffle would have, by the one that they have: 1 is as after a full
    shuffle, and 1/n where the variance is n times that."""
    classes, numbers = np.unique(labels, return_inverse=True)
    batches = numbers[: len(numbers) // batch_size * batch_size].reshape(-1, batch_size)
    if not len(batches):
        return 1.0
    share = np.bincount(numbers, minlength=len(classes)) / len(numbers)
    # Of many classes most are in no batch: so only those that are, are counted.
    places = np.arange(len(batches))[:, None] * len(classes) + batches
    counts = np.unique(places, return_counts=True)[1]
    # Drawn without putting back.
    left = (len(numbers) - batch_size) / max(1, len(numbers) - 1)
    expected = batch_size * (1 - (share**2).sum()) * left
    # The sum over classes of (count - expected count)², written out.
    cross = (share[batches]).sum()
    found = ((counts.astype(np.float64) ** 2).sum() - 2 * batch_size * cross) / len(batches)
    found += batch_size**2 * (share**2).sum()
    return float(expected / found) if found > 1e-9 else 1.0
