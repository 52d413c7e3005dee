"""Rows that arrive by units: their order, what is announced and held, and what a part cannot provide."""

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import dataset_h5, make_loader, pack_dataset
from colabstage.errors import OptionError
from colabstage.h5.arrival import UnitLayout
from tests.support.images import in_classes, make_tree

ROWS = 23


@dataclass
class Announcement:
    """What one reader announced."""

    rows: list[int]
    then: list[int]
    done: int = 0
    closed: bool = False

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        self.done = rows

    def close(self) -> None:
        self.closed = True


@dataclass
class InUnits:
    """Delivers rows in units of four by default. All of them are in the file; it records who reads what."""

    of_rows: NDArray[np.intp] = field(default_factory=lambda: np.arange(ROWS) // 4)
    window_units: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    held: list[tuple[str, list[int]]] = field(default_factory=list)
    expected: list[Announcement] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def layout(self) -> UnitLayout:
        return UnitLayout(lambda _: self.of_rows, self.window_units, "2 units fit", **self.options)

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
        with self.lock:
            self.held.append((side, rows.tolist()))
        yield


@pytest.fixture
def make_rows(tmp_path: Path) -> Callable[..., Any]:
    """Write a file of rows with these labels, and open it with an arrival in units."""

    def make(of_rows: NDArray[Any], window_units: int, labels: Any = None, **options: Any) -> dataset_h5:
        path = tmp_path / "rows.h5"
        with h5py.File(path, "w") as file:
            file["X_train"] = np.arange(len(of_rows), dtype=np.float32)[:, None]
            file["Y_train"] = np.zeros(len(of_rows), np.int64) if labels is None else labels
            file["classes"] = [f"class {number}" for number in range(100)]
        arrival: Any = InUnits(of_rows, window_units, options)
        return dataset_h5(path, return_index=True, arrival=arrival)

    return make


def order_of(dataset: dataset_h5, seed: int = 3, epoch: int = 0, batch_size: int = 64, **options: Any) -> list[int]:
    """An epoch's rows in the order in which a loader visits them."""
    loader = make_loader(dataset, batch_size, seed=seed, num_workers=0, **options)
    loader.set_epoch(epoch)
    return [row for _, index in loader for row in index.tolist()]


def left_to_visit(window: int, after: int = 0) -> float:
    """The least number of units whose rows are left, for a window that shrinks by one with each of the last units and
    ends `after` units after the last."""
    return float(((after + 1) / (after + np.arange(1, window + 1))).sum())


def test_a_unit_order_is_a_function_of_seed_and_epoch_with_windows_that_grow_and_shrink(
    make_rows: Callable[..., dataset_h5],
) -> None:
    """Every row comes once an epoch, at most a window after its unit. The first unit is read first, and little is left
    after the last one's arrival; a row in two units comes after the later one."""
    units = np.repeat(np.arange(64), 5)
    dataset = make_rows(units, 8)
    rows = order_of(dataset)
    assert sorted(rows) == list(range(320))
    assert rows == order_of(dataset)
    assert rows != order_of(dataset, epoch=1) != order_of(dataset, seed=4, epoch=1)
    visited = units[rows]
    found = list(dict.fromkeys(visited.tolist()))
    turn = {unit: place for place, unit in enumerate(found)}
    taken = np.array([turn[unit] for unit in visited.tolist()])
    # How many units have begun when a row is read, after that of the row itself.
    late = np.maximum.accumulate(taken) - taken
    assert 4 <= late.max() <= 9
    assert late[:10].max() <= 2
    # The last units' windows end together, and are 1, 2, 3, … units long.
    assert len(rows) - int(np.argmax(taken == 63)) <= 5 * left_to_visit(8) + 2
    # Any eight consecutive units are from all over the file.
    assert all(len(set(np.array(found[start : start + 8]) // 8)) >= 5 for start in range(0, 64, 8))
    # Ranks share one order, so what they see together in a step does not depend on their number.
    ranks = [order_of(dataset, epoch=2, rank=rank, world_size=2) for rank in range(2)]
    assert np.stack(ranks, 1).ravel().tolist() == order_of(dataset, epoch=2)

    two = np.stack([units, units], axis=1)
    two[4::5, 1] = np.minimum(units[4::5] + 1, 63)
    visited = np.array(order_of(make_rows(two, 1)))
    turn = {unit: place for place, unit in enumerate(dict.fromkeys(units[visited[visited % 5 == 0]].tolist()))}
    assert sorted(visited.tolist()) == list(range(320))
    places = [max(turn[first], turn[last]) for first, last in two[visited].tolist()]
    assert places == sorted(places)


def test_the_order_of_units_is_the_same_for_ever(make_rows: Callable[..., dataset_h5]) -> None:
    """A run may be resumed with another version."""
    dataset = make_rows(np.repeat(np.arange(6), 3), 3, first_units=2)
    assert order_of(dataset, 7, 1) == [15, 8, 6, 17, 3, 7, 16, 5, 9, 10, 14, 4, 13, 2, 0, 11, 12, 1]


def test_neighbours_that_may_be_fetched_together_are_visited_by_turns_with_those_of_eleven_other_places(
    make_rows: Callable[..., dataset_h5],
) -> None:
    """Any twelve consecutive units are from twelve stretches, each of which is complete within a few windows. In the
    middle of an epoch, a state of another order is refused."""
    dataset, alone = (make_rows(np.arange(1_003), 1, together=together) for together in (4, 1))
    visited = np.array(order_of(dataset))
    assert sorted(visited.tolist()) == list(range(1_003))
    turns = np.argsort(visited)
    stretches = [turns[start : start + 4] for start in range(0, 1_003, 4)]
    assert max(int(one.max() - one.min()) for one in stretches) <= 3 * 12
    for start in range(0, 960, 12):
        assert len(set(visited[start : start + 12] // 4)) == 12
        # From all over the source.
        assert len(set(visited[start : start + 12] * 8 // 1_003)) >= 6
    state = make_loader(alone, 64, seed=3).state_dict()
    with pytest.raises(OptionError, match="together"):
        make_loader(dataset, 64, seed=3).load_state_dict({**state, "batches_done": 1})
    # If nothing of the epoch is done, nothing is lost.
    make_loader(dataset, 64, seed=3).load_state_dict(state)


@pytest.mark.parametrize("seed", range(2))
def test_however_many_units_come_first_little_is_left_to_visit_when_the_last_is_here(
    make_rows: Callable[..., dataset_h5], seed: int
) -> None:
    """When training keeps up with the arrival, only this much remains after the last unit: a thirtieth of all units; a
    twentieth if the classes need a longer window, which then ends two units after the last. The first batch is from
    several units."""
    for count, window, after in ((640, 32, 0), (160, 32, 2)):
        units = np.repeat(np.arange(count), 8)
        visited = units[order_of(make_rows(units, window, first_units=8), seed)]
        assert 5 <= len(set(visited[:32].tolist())) <= 12
        last = list(dict.fromkeys(visited.tolist()))[-1]
        left = (len(visited) - int(np.argmax(visited == last))) / 8
        assert after <= left <= left_to_visit(window, after) + 1


@pytest.mark.parametrize(
    ("count", "units", "window", "classes", "least"),
    [(2_000, 125, 64, 10, 1.0), (2_000, 125, 64, 50, 0.45), (6_400, 400, 90, 100, 0.5)],
)
def test_classes_of_a_sorted_source_are_even_in_batches(
    make_rows: Callable[..., dataset_h5], count: int, units: int, window: int, classes: int, least: float
) -> None:
    """As after a full shuffle, if a window has as many units as there are classes; the plan says how even they are."""
    of_rows, labels = (np.arange(count) * parts // count for parts in (units, classes))
    dataset = make_rows(of_rows, window, labels, first_units=8, first_epoch_only=True)
    found = re.search(r"classes of 64 rows are (\S+) as even", str(make_loader(dataset, 64, seed=0).plan))
    assert found is not None
    assert least <= float(found[1]) <= 1


def test_classes_that_are_uneven_are_warned_of(make_rows: Callable[..., dataset_h5]) -> None:
    """Evenness is the variance of class counts in batches after a full shuffle, relative to that in these batches."""
    labels = np.arange(2_000) // 400
    dataset = make_rows(np.arange(2_000) // 40, 1, labels, first_units=8, first_epoch_only=True)
    with pytest.warns(UserWarning, match=r"shuffle=True"):
        loader = make_loader(dataset, 32, seed=0)
    counts = np.array([np.bincount(y, minlength=5) for (_, y), _ in loader if len(y) == 32])
    shuffled = 32 * 0.2 * 0.8 * (2_000 - 32) / 1_999
    assert f"are {shuffled / np.mean((counts - 32 * 0.2) ** 2):.2f} as even" in str(loader.plan)


def test_a_loader_announces_its_rows_and_holds_them(make_file: Callable[..., Any]) -> None:
    """Rows are announced in reading order, with the next epoch's; each is held while it is read."""
    arrival, sample = InUnits(), make_file("pack", ROWS)
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
    # Labels are requested separately, and samples are held too.
    arrival.held.clear()
    assert dataset.targets.shape == (ROWS,)
    assert dataset[-1][1] == ROWS - 1
    assert arrival.held == [("targets", list(range(ROWS))), ("row", [ROWS - 1]), ("targets", [ROWS - 1])]


def test_what_wants_any_row_is_refused_until_all_are_here(make_file: Callable[..., Any]) -> None:
    """A full shuffle, a split in memory or on the device."""
    arrival: Any = InUnits()
    dataset = dataset_h5(make_file("pack", ROWS).path, return_index=True, arrival=arrival)
    for asked in ({"shuffle": True}, {"strategy": "memory"}, {"strategy": "device"}):
        with pytest.raises(OptionError, match="2 units fit"):
            make_loader(dataset, 5, **asked)
    with pytest.raises(OptionError, match="2 units fit"):
        dataset_h5(dataset.reader.path, in_memory=True, arrival=arrival)
    assert [index.tolist() for _, index in make_loader(dataset, 20, shuffle=False)][1] == [20, 21, 22]
    order = order_of(dataset, batch_size=5)
    arrival.complete = True
    assert len(list(make_loader(dataset, 5, shuffle=True, strategy="memory"))) == 5
    # The order does not depend on what is local.
    assert order_of(dataset, batch_size=5) == order


def test_only_the_first_epoch_is_visited_by_units_where_all_is_here_after_it(
    make_rows: Callable[..., dataset_h5],
) -> None:
    units = np.arange(ROWS) // 4
    always, first_only = make_rows(units, 2), make_rows(units, 2, first_epoch_only=True)
    plain = dataset_h5(always.reader.path, return_index=True)
    assert order_of(first_only, 5) == order_of(always, 5) != order_of(plain, 5)
    assert order_of(first_only, 5, 1) == order_of(plain, 5, 1) != order_of(always, 5, 1)


@pytest.mark.parametrize("encoding", ["encoded", "pixels"])
def test_a_file_that_gets_its_final_name_at_any_moment_is_read(
    encoding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each look at the file, and each opening of it, for samples, targets and keys."""
    photos, early, final = make_tree(tmp_path / "photos", in_classes(4)), tmp_path / "early.h5", tmp_path / "final.h5"
    pack_dataset(photos, early, encoding=encoding, splits={"train": 1.0}, progress=False)
    keys = dataset_h5(early).reader.keys()
    readers: list[Callable[[dataset_h5], Any]] = [lambda it: it[3], lambda it: it.targets, lambda it: it.reader.keys()]
    moments = 0
    for read, at in itertools.product(readers, range(1, 9)):
        arrival: Any = InUnits(np.arange(len(keys)), options={"place": final})
        dataset, looks = dataset_h5(early, arrival=arrival), itertools.count(1)

        def named_before(look: Callable[..., Any], looks: Any = looks, at: int = at) -> Callable[..., Any]:
            def named(path: Any, *more: Any, **others: Any) -> Any:
                if path == early and next(looks) == at:
                    early.rename(final)
                return look(path, *more, **others)

            return named

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", named_before(os.open))
            patched.setattr(Path, "stat", named_before(Path.stat))
            assert len(read(dataset)) in {2, len(keys)}
        if final.exists():
            final.rename(early)
            moments += 1
    assert moments >= 4
