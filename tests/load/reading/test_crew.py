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


def test_the_parts_run_at_once() -> None:
    """Parts wait for each other here, which only works when each has its own thread."""
    meeting, met = threading.Barrier(3), set[int]()

    def work(start: int, stop: int) -> None:
        meeting.wait(timeout=30)
        met.update(range(start, stop))

    with ThreadPool(3) as pool:
        pool.share(3, work)
    assert met == {0, 1, 2}


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


def test_a_thread_that_is_late_gets_less_to_do() -> None:
    """While one thread is busy with a part, the others take all the rest."""
    done: dict[str, int] = {}

    def work(start: int, stop: int) -> None:
        name = threading.current_thread().name
        if start == 0:
            threading.Event().wait(0.3)
        done[name] = done.get(name, 0) + stop - start

    with ThreadPool(2) as pool:
        pool.share(80, work)
    assert sorted(done.values()) == [20, 60]


@pytest.mark.parametrize(("threads", "count"), [(1, 5), (3, 20), (4, 2), (2, 0)])
def test_each_is_done_once(threads: int, count: int) -> None:
    """By however many threads, also where there are more of these than things to do."""
    done: list[int] = []
    with ThreadPool(threads) as pool:
        pool.each(count, done.append)
    assert sorted(done) == list(range(count))


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


def test_closing_ends_the_threads() -> None:
    """After close, twice, no thread of the pool is left."""
    pool = ThreadPool(4)
    pool.share(4, lambda start, stop: None)
    pool.close()
    pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("colabstage-pool")]


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


def test_without_a_demand_a_patient_share_is_everybodys() -> None:
    """Whoever says nothing waits: parts wait for each other here."""
    meeting, met = threading.Barrier(2), set[int]()

    def work(start: int, stop: int) -> None:
        meeting.wait(timeout=30)
        met.update(range(start, stop))

    with ThreadPool(2) as pool:
        pool.share(2, work, alone=1)
    assert met == {0, 1}


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
