"""Threads that share one piece of work."""

from __future__ import annotations

import threading

import pytest

from colabstage.errors import CancelledError
from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Demand


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_every_number_is_worked_once(threads: int, count: int) -> None:
    """The parts cover the range once, whatever the number of threads."""
    done: list[int] = []
    with ThreadPool(threads) as pool:
        pool.share(count, lambda start, stop: done.extend(range(start, stop)))
    assert sorted(done) == list(range(count))


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_comes_out_after_the_parts_under_way_have_ended(failing: int) -> None:
    """Whichever part fails, the caller gets its error, nothing runs on behind it, and no more is begun."""
    begun: list[int] = []
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        begun.append(start)
        if start == failing:
            msg = f"part {start}"
            raise ValueError(msg)
        threading.Event().wait(0.05)
        ended.append(start)

    with ThreadPool(3) as pool, pytest.raises(ValueError, match=f"part {failing}"):
        pool.share(12, work)
    assert len(begun) == len(ended) + 1
    assert len(begun) < 12


def test_of_each_nothing_begins_after_an_error() -> None:
    """The error comes to the caller, once what had begun has ended."""
    begun: list[int] = []

    def work(place: int) -> None:
        begun.append(place)
        if place == 1:
            msg = "broken"
            raise KeyError(msg)
        threading.Event().wait(0.02)

    with ThreadPool(2) as pool, pytest.raises(KeyError, match="broken"):
        pool.each(1000, work)
    assert len(begun) < 10


def names_of_parts(*, urgent: list[bool]) -> tuple[list[tuple[int, int]], set[str]]:
    """The parts of a patient share of 40 by two threads, 20 at a time while nobody waits, whose consumer answers in
    turn, and the threads they ran in.

    Once it is urgent, the threads wait for each other, so that each takes a part.
    """
    demand, answers = Demand(), iter(urgent)
    demand.ask(lambda: next(answers))
    parts: list[tuple[int, int]] = []
    begun = {"own": threading.Event(), "pool": threading.Event()}

    def work(start: int, stop: int) -> None:
        own, other = (
            ("pool", "own") if threading.current_thread().name.startswith("colabstage-pool") else ("own", "pool")
        )
        parts.append((start, stop))
        begun[own].set()
        if urgent[-1] and len(parts) >= len(urgent):
            assert begun[other].wait(30)

    with ThreadPool(2, demand) as pool:
        pool.share(40, work, alone=20)
    return sorted(parts), {name for name, event in begun.items() if event.is_set()}


@pytest.mark.parametrize(
    ("urgent", "parts", "threads"),
    [
        ([False, False], [(0, 20), (20, 40)], {"own"}),
        ([True], [(0, 10), (10, 20), (20, 30), (30, 40)], {"own", "pool"}),
        ([False, True], [(0, 20), (20, 25), (25, 30), (30, 35), (35, 40)], {"own", "pool"}),
    ],
    ids=["nobody waits", "somebody waits", "somebody comes to wait"],
)
def test_a_patient_share_is_the_callers_alone_as_long_as_nobody_waits(
    urgent: list[bool], parts: list[tuple[int, int]], threads: set[str]
) -> None:
    """Every number is worked once; the other thread joins in the middle when the result is urgent."""
    assert names_of_parts(urgent=urgent) == (parts, threads)


def test_a_patient_share_stops_when_nobody_wants_it() -> None:
    """Between two parts of the caller's own."""
    demand = Demand()
    demand.ask(lambda: False)
    parts: list[int] = []

    def work(start: int, stop: int) -> None:
        parts.append(start)
        demand.cancel()

    with ThreadPool(2, demand) as pool, pytest.raises(CancelledError):
        pool.share(40, work, alone=20)
    assert parts == [0]
