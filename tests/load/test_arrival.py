"""Rows that arrive by units: their order, what is announced and held, and what cannot be had of a part."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError, SourceReadError
from colabstage.h5.arrival import UnitLayout
from colabstage.load.epoch import RowOrder, Shard
from colabstage.load.partial import FirstEpochOrder, UnitOrder, even_window, mixing_of, visited_units
from colabstage.pack.arrival import window_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

ROWS = 23


def of_source(units: NDArray[np.intp], window_units: int, seed: int) -> UnitOrder:
    """The order of a source whose neighbours may be of one class."""
    return UnitOrder(units, window_units, seed, first_units=8)


@dataclass
class Announcement:
    """What one reader said."""

    rows: list[int]
    then: list[int]
    done: int = 0
    closed: bool = False

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        self.done = rows

    def close(self) -> None:
        self.closed = True


@dataclass
class InUnitsOfFour:
    """Bring rows in units of four; here all of them are in the file, and who reads what is noted."""

    complete: bool = False
    fails: bool = False
    window_units: int = 2
    held: list[tuple[str, list[int]]] = field(default_factory=list)
    expected: list[Announcement] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def layout(self) -> UnitLayout:
        return UnitLayout(self.units, self.window_units, "2 units fit")

    def units(self, split: str) -> NDArray[np.intp]:
        assert split == "train"
        return np.arange(ROWS) // 4

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Announcement:
        assert then is not None
        self.expected.append(Announcement(rows.tolist(), then().tolist()))
        return self.expected[-1]

    @contextmanager
    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: str = "row", cancellation: Any = None
    ) -> Iterator[None]:
        if self.fails and side == "row":
            msg = "the source stalls"
            raise SourceReadError(msg)
        with self.lock:
            self.held.append((side, rows.tolist()))
        yield


def test_a_unit_order_is_a_function_of_seed_and_epoch_with_windows_that_grow_and_shrink() -> None:
    """Every row once an epoch, at most a window after its unit; the first unit is read first, and little is left to do
    once the last is here; a row in two units comes after the later one."""
    units = np.repeat(np.arange(64), 5)
    order = UnitOrder(units, 8, seed=3)
    rows = order.rows(0, Shard())
    assert sorted(rows.tolist()) == list(range(320))
    np.testing.assert_array_equal(rows, UnitOrder(units, 8, seed=3).rows(0, Shard()))
    assert rows.tolist() != order.rows(1, Shard()).tolist() != UnitOrder(units, 8, seed=4).rows(1, Shard()).tolist()
    found = list(dict.fromkeys(units[rows].tolist()))
    turn = {unit: place for place, unit in enumerate(found)}
    taken = np.array([turn[unit] for unit in units[rows].tolist()])
    # How many units have begun when a row is read, after that of the row itself.
    late = np.maximum.accumulate(taken) - taken
    assert 4 <= late.max() <= 9
    assert late[:10].max() <= 2
    # The last units' windows end together, and are 1, 2, 3, … units long.
    assert len(rows) - int(np.argmax(taken == 63)) <= 5 * _left_to_visit(8) + 2
    # Any eight units that follow each other are from all over the file.
    assert all(len(set(np.array(found[start : start + 8]) // 8)) >= 5 for start in range(0, 64, 8))
    # Ranks share one order, so what all of them see in a step does not depend on how many there are.
    np.testing.assert_array_equal(
        np.stack([order.rows(2, Shard(r, 2)) for r in (0, 1)], 1).ravel(), order.rows(2, Shard())
    )

    two = np.stack([units, units], axis=1)
    two[4::5, 1] = np.minimum(units[4::5] + 1, 63)
    visited = UnitOrder(two, 1, seed=3).rows(0, Shard())
    turn = {unit: place for place, unit in enumerate(dict.fromkeys(units[visited[np.isin(visited % 5, [0])]].tolist()))}
    assert sorted(visited.tolist()) == list(range(320))
    places = [max(turn[first], turn[last]) for first, last in two[visited].tolist()]
    assert places == sorted(places)


def test_the_order_of_units_is_the_same_everywhere() -> None:
    """The order of a given seed is pinned, since a run may be resumed with another version."""
    order = UnitOrder(np.repeat(np.arange(6), 3), 3, seed=7, first_units=2)
    assert order.rows(1, Shard()).tolist() == [15, 8, 6, 17, 3, 7, 16, 5, 9, 10, 14, 4, 13, 2, 0, 11, 12, 1]


def test_neighbours_that_may_be_fetched_together_are_visited_by_turns_with_those_of_eleven_other_places() -> None:
    """Each unit once; twelve that follow each other are of as many stretches; one is complete within a few windows."""
    visited = visited_units(1_003, 4, 0, 4)
    assert sorted(visited.tolist()) == list(range(1_003))
    turns = np.argsort(visited)
    stretches = [turns[start : start + 4] for start in range(0, 1_003, 4)]
    assert max(int(one.max() - one.min()) for one in stretches) <= 3 * 12
    for start in range(0, 960, 12):
        assert len(set(visited[start : start + 12] // 4)) == 12
        # From all over the source.
        assert len(set(visited[start : start + 12] * 8 // 1_003)) >= 6
    np.testing.assert_array_equal(visited_units(1_003, 4, 0, 1), visited_units(1_003, 4, 0))
    units = np.repeat(np.arange(60), 3)
    alone, four = (UnitOrder(units, 12, 0, together=together) for together in (1, 4))
    assert alone.identity() == {key: value for key, value in four.identity().items() if key != "together"}
    assert four.identity()["together"] == 4


def test_the_first_batch_of_a_source_is_of_several_units_however_few_there_are() -> None:
    units = np.repeat(np.arange(40), 8)
    first = units[of_source(units, 16, seed=1).rows(0, Shard())[:32]]
    assert 5 <= len(set(first.tolist())) <= 12
    few = of_source(units[:24], 16, seed=1).rows(0, Shard())
    assert sorted(few.tolist()) == list(range(24))


@pytest.mark.parametrize("seed", range(4))
def test_however_many_units_come_first_little_is_left_to_visit_when_the_last_is_here(seed: int) -> None:
    """Who trains as fast as rows arrive has what is left to do after the last: of all units a thirtieth, and where a
    window is longer than a twentieth of them, because classes need it, two units more at first, a twentieth."""
    for count, window, after in ((640, 32, 0), (160, 32, 2)):
        units = np.repeat(np.arange(count), 8)
        visited = units[of_source(units, window, seed).rows(0, Shard())]
        last = visited_units(count, seed, 0)[-1]
        left = (len(visited) - int(np.argmax(visited == last))) / 8
        assert left <= _left_to_visit(window, after) + 1
        assert left >= after


def _left_to_visit(window: int, after: int = 0) -> float:
    """How many units' rows are left at least, of a window that shrinks by one with each of the last units, and ends so
    many units after the last."""
    return float(((after + 1) / (after + np.arange(1, window + 1))).sum())


@given(labels=st.lists(st.integers(-3, 5), min_size=1, max_size=60), size=st.integers(1, 20))
def test_evenness_is_the_variance_of_counts_beside_that_of_a_full_shuffle(labels: list[int], size: int) -> None:
    """Of each class, in each full batch, drawn without putting back; 1 where no count can differ."""
    count = len(labels)
    batches = [labels[at : at + size] for at in range(0, count - size + 1, size)]
    found = drawn = 0.0
    for one in set(labels) if batches else ():
        share = labels.count(one) / count
        found += float(np.mean([(batch.count(one) - size * share) ** 2 for batch in batches]))
        drawn += size * share * (1 - share) * (count - size) / max(1, count - 1)
    assert mixing_of(np.array(labels), size) == pytest.approx(drawn / found if found > 1e-9 else 1.0)


@pytest.mark.parametrize(("classes", "least"), [(2, 1.5), (10, 1.1), (50, 0.45)])
def test_classes_are_even_in_batches_of_a_sorted_source(classes: int, least: float) -> None:
    """More so than after a full shuffle where a window has more units than there are classes."""
    units = np.repeat(np.arange(125), 16)
    labels = np.arange(2_000) * classes // 2_000
    shuffled = np.random.default_rng(0).permutation(2_000)
    assert mixing_of(labels[shuffled], 64) == pytest.approx(1, abs=0.3)
    assert mixing_of(labels, 64) < 0.1
    assert mixing_of(labels[of_source(units, window_units(125), seed=0).rows(0, Shard())], 64) > least


@pytest.mark.parametrize(
    ("count", "units", "classes", "window"),
    [
        (2_000, 160, 2, 12),
        (3_200, 200, 10, 18),
        # A batch of a short window has few of a hundred classes, and so do the batches after it.
        (6_400, 400, 100, 90),
        # Where there are so many units, what costs little is enough.
        (6_400, 1_600, 100, 40),
        # Labels that are all the same, and too few rows to tell, say nothing.
        (2_000, 160, 1, 64),
        (96, 12, 2, 64),
    ],
)
def test_a_window_is_as_short_as_keeps_sorted_classes_even(count: int, units: int, classes: int, window: int) -> None:
    of_rows, labels = (np.arange(count) * parts // count for parts in (units, classes))
    assert even_window(of_rows, labels, window_units(units), 4) == window
    if classes > 1 and count > 96:
        order = UnitOrder(of_rows, window, seed=1, first_units=4).rows(0, Shard())
        assert mixing_of(labels[order], 64) > 0.5


def test_a_loader_announces_its_rows_and_holds_them(make_file: Callable[..., Any]) -> None:
    """Rows are announced in the order in which they are read, with the next epoch's; each is held while it is read."""
    arrival, sample = InUnitsOfFour(), make_file("pack", ROWS)
    dataset = dataset_h5(sample.path, return_index=True, arrival=arrival)
    loader = make_loader(dataset, 5, seed=1)
    assert (loader.plan.strategy, loader.plan.order.name) == ("direct", "arrival")
    assert "2 units fit" in str(loader.plan)
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for (x, _), index in loader:
            np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), sample.x[index.numpy()])
            epochs[-1] += index.tolist()
    first, second = arrival.expected
    assert (first.rows, first.then, second.rows) == (epochs[0], epochs[1], epochs[1])
    assert (first.done, first.closed, second.closed) == (ROWS, True, True)
    assert [row for side, rows in arrival.held if side == "row" for row in rows] == epochs[0] + epochs[1]
    # Labels are asked for by themselves, and samples are held too.
    arrival.held.clear()
    assert dataset.targets.shape == (ROWS,)
    assert dataset[-1][1] == ROWS - 1
    assert arrival.held == [("targets", list(range(ROWS))), ("row", [ROWS - 1]), ("targets", [ROWS - 1])]


@dataclass
class ClassByClass(InUnitsOfFour):
    """Bring rows that arrive class after class, as from a sorted source."""

    window_units: int = 1

    @property
    def layout(self) -> UnitLayout:
        return replace(super().layout, first_units=8, first_epoch_only=True)

    def units(self, split: str) -> NDArray[np.intp]:
        return np.argsort(np.argsort(np.arange(2_000) * 7 % 5, kind="stable")) // 40


def test_the_plan_says_how_even_classes_are_and_a_warning_where_they_are_not(make_file: Callable[..., Any]) -> None:
    arrival = ClassByClass()
    dataset = dataset_h5(make_file("pack", 2_000).path, arrival=arrival)
    with pytest.warns(UserWarning, match=r"32 rows.*0\.\d+.*data\.wait\(\).*shuffle=True"):
        loader = make_loader(dataset, 32)
    labels = np.concatenate([y.numpy() for _, y in loader])
    assert loader.plan.order.mixing == pytest.approx(mixing_of(labels, 32))
    assert f"{loader.plan.order.mixing:.2f}" in str(loader.plan)
    arrival.window_units = 40
    fair = make_loader(dataset, 32).plan.order.mixing
    assert fair is not None
    assert fair > 0.6


def test_what_wants_any_row_says_so(make_file: Callable[..., Any]) -> None:
    """A full shuffle, a split in memory or on the device name what is here, and work once all of it is."""
    arrival = InUnitsOfFour()
    dataset = dataset_h5(make_file("pack", ROWS).path, return_index=True, arrival=arrival)
    for asked in ({"shuffle": True}, {"strategy": "memory"}, {"strategy": "device"}):
        with pytest.raises(OptionError, match="2 units fit"):
            make_loader(dataset, 5, **asked)
    with pytest.raises(OptionError, match="2 units fit"):
        dataset_h5(dataset.reader.path, in_memory=True, arrival=arrival)
    assert [index.tolist() for _, index in make_loader(dataset, 20, shuffle=False)][1] == [20, 21, 22]
    order = [index.tolist() for _, index in make_loader(dataset, 5)]
    arrival.complete = True
    assert len(list(make_loader(dataset, 5, shuffle=True, strategy="memory"))) == 5
    # The order is the same whatever is here.
    assert [index.tolist() for _, index in make_loader(dataset, 5)] == order


def test_what_fails_is_raised_at_its_batch_and_the_next_call_goes_on(make_file: Callable[..., Any]) -> None:
    """An error of what brings rows reaches the loop; from the state of then the epoch goes on without a gap."""
    arrival = InUnitsOfFour()
    dataset = dataset_h5(make_file("pack", ROWS).path, return_index=True, arrival=arrival)
    whole = [index.tolist() for _, index in make_loader(dataset, 5, seed=2, num_workers=0)]
    loader = make_loader(dataset, 5, seed=2, num_workers=0)
    batches = iter(loader)
    got = [next(batches)[1].tolist()]
    arrival.fails = True
    with pytest.raises(SourceReadError, match="stalls"):
        next(batches)
    arrival.fails = False
    loader.load_state_dict(loader.state_dict())
    assert got + [index.tolist() for _, index in loader] == whole


def test_only_the_first_epoch_is_visited_by_units_where_all_is_here_after_it() -> None:
    first, later = UnitOrder(np.arange(ROWS) // 4, 2, 5), RowOrder(ROWS, shuffle=True, seed=5)
    order = FirstEpochOrder(first, later)
    assert order.rows(0, Shard()).tolist() == first.rows(0, Shard()).tolist()
    assert order.rows(1, Shard(1, 2)).tolist() == later.rows(1, Shard(1, 2)).tolist()
    assert order.identity() == {"units": 6, "window_units": 2, "unit_order": 3, "shuffle": 1}
