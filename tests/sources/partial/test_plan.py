"""The plan of blocks: no rule fetches less, and what it lets go is what is needed last."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.sources.partial.plan import (
    NEVER,
    Outlook,
    Pacer,
    Reader,
    Visits,
    find_misses,
    find_visits,
    look_ahead,
    plan_misses,
)


def fewest(blocks: list[int], capacity: int, here: frozenset[int]) -> int:
    """The least number of fetches of any schedule, by trying all of them."""
    reached = {here: 0}
    for block in blocks:
        following: dict[frozenset[int], int] = {}
        for cached, cost in reached.items():
            if block in cached:
                choices, price = [cached], cost
            else:
                room = len(cached) < capacity
                choices = [cached | {block}] if room else [cached - {out} | {block} for out in cached]
                price = cost + 1
            for choice in choices:
                following[choice] = min(following.get(choice, price), price)
        reached = following
    return min(reached.values())


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4), st.sets(st.integers(0, 5), max_size=4))
def test_no_schedule_fetches_less(blocks: list[int], capacity: int, here: set[int]) -> None:
    """As many visits miss as in the best of all schedules, whatever is here at the beginning."""
    here = set(sorted(here)[:capacity])
    assert int(find_misses(blocks, capacity, here).sum()) == fewest(blocks, capacity, frozenset(here))


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 6)), max_size=40, unique_by=lambda use: use[0]),
    st.integers(1, 40),
)
def test_visits_join_uses_that_are_close(uses: list[tuple[int, int]], gap: int) -> None:
    """Every use lies in one visit of its block, visits of a block are more than the gap apart, and come in order."""
    places, blocks = (np.array([use[side] for use in uses], np.int64) for side in (0, 1))
    visits = find_visits(places, blocks, gap)
    spans = list(zip(visits.blocks.tolist(), visits.first.tolist(), visits.last.tolist(), strict=True))
    assert [first for _, first, _ in spans] == sorted(first for _, first, _ in spans)
    for place, block in uses:
        assert sum(own == block and first <= place <= last for own, first, last in spans) == 1
    for one, other in itertools.combinations(spans, 2):
        assert one[0] != other[0] or abs(other[1] - one[2]) > gap or abs(one[1] - other[2]) > gap


def run_epochs(orders: list[list[int]], capacity: int, ahead: int) -> int:
    """Fetch as the executor does, one block whenever there is room, a block read a step; returns the fetches."""
    here: set[int] = set()
    fetched, count = 0, max(map(max, orders)) + 1
    for number, order in enumerate(orders):
        known = order + (orders[number + 1] if number + 1 < len(orders) else [])
        steps = np.arange(len(known))
        reader = Reader(Visits(np.array(known), steps, steps))
        plan_misses([reader], capacity - ahead, here)
        for step, block in enumerate(order):
            reader.reached = step
            while True:
                outlook = look_ahead([reader], count)
                missing = np.array([one not in here for one in range(count)])
                needed_now = block not in here
                wanted = block if needed_now else outlook.first_missing(missing)
                if wanted is None:
                    break
                if len(here) >= capacity:
                    victim = outlook.victim(~missing, wanted, needed_now=needed_now)
                    if victim is None:
                        break
                    here.discard(victim)
                here.add(wanted)
                fetched += 1
            assert block in here
            assert len(here) <= capacity
    return fetched


@pytest.mark.parametrize(("blocks", "capacity"), [(60, 6), (60, 20), (30, 29)])
def test_epochs_fetch_what_is_not_kept_and_hardly_more(blocks: int, capacity: int) -> None:
    """Over epochs in random order, fetching ahead as far as there is room costs no more than the room it takes."""
    orders = [np.random.default_rng(seed).permutation(blocks).tolist() for seed in range(6)]
    ahead = max(1, capacity // 8)
    least = int(find_misses(list(itertools.chain(*orders)), capacity, set()).sum())
    assert least <= run_epochs(orders, capacity, ahead) <= least + len(orders) * (ahead + 1)


def test_what_somebody_waits_for_takes_the_place_of_what_is_needed_last() -> None:
    """Ahead of need nothing goes that is needed sooner or is to stay; for who waits, whatever is needed last does."""
    outlook = Outlook(np.array([5, 100, NEVER, 40, 7]), np.array([False, True, False, False, False]))
    here = np.array([True, True, False, True, False])
    assert outlook.victim(here, 4, needed_now=False) == 3
    assert outlook.victim(here, 4, needed_now=True) == 1
    assert outlook.victim(np.array([True, True, False, False, False]), 4, needed_now=False) is None
    assert outlook.first_missing(~here) == 4
    assert outlook.first_missing(np.array([False, False, True, False, False])) is None


BLOCK_BYTES, ROUND_TRIP_S, RATE = 8 * 2**20, 0.4, 100e6


@dataclass(frozen=True)
class Line:
    """What answers come over, sharing it: each begins after a round trip, and up to so much later."""

    round_trip_s: float = ROUND_TRIP_S
    rate: float = RATE
    late_s: float = 0.0
    seed: int = 0

    def bring(self, blocks: int, at_once: int, pacer: Pacer | None, opened_late_s: float = 0.0) -> tuple[float, float]:
        """Bring blocks, and return when the first and the last have come, in seconds."""
        late = np.random.default_rng(self.seed).uniform(0, self.late_s, blocks)
        now, asked = 0.0, 0
        begin: list[tuple[float, float]] = []  # when each answer begins to come, and when it was asked for
        left: dict[float, float] = {}  # of those that come now: asked for, bytes
        ends: list[float] = []
        if pacer is not None:
            # What is read of any pack first: its first block, and its last, which is short.
            pacer.end(-self.round_trip_s - BLOCK_BYTES / self.rate - opened_late_s, 0.0, BLOCK_BYTES)
            pacer.end(-self.round_trip_s * 1.05, 0.0, 200_000)
        while len(ends) < blocks:
            while asked < blocks and asked - len(ends) < at_once and (pacer is None or pacer.wait_s(now) <= 0):
                if pacer is not None:
                    pacer.begin(now, BLOCK_BYTES)
                # Apart by a nanosecond, so that each has a key of its own.
                heapq.heappush(begin, (now + self.round_trip_s + late[asked], now + asked * 1e-9))
                asked += 1
            waits = [begin[0][0]] if begin else []
            waits += [now + min(left.values()) * len(left) / self.rate] if left else []
            if pacer is not None and asked < blocks and asked - len(ends) < at_once:
                waits.append(now + max(pacer.wait_s(now), 1e-6))
            then = min(waits)
            for one in left:
                left[one] -= (then - now) * self.rate / len(left)
            now = then
            for one in [one for one, nbytes in left.items() if nbytes < 1]:
                del left[one]
                ends.append(now)
                if pacer is not None:
                    pacer.end(one, now, BLOCK_BYTES)
            while begin and begin[0][0] <= now:
                left[heapq.heappop(begin)[1]] = BLOCK_BYTES
        return min(ends), max(ends)


def test_paced_requests_keep_a_line_full_and_the_first_is_here_first() -> None:
    """Requests that begin together end together, and the line is idle until the next answers; paced ones do not."""
    needed_s = 60 * BLOCK_BYTES / RATE + ROUND_TRIP_S
    first_s, last_s = Line().bring(60, 8, None)
    assert last_s > 1.5 * needed_s
    paced_first_s, paced_last_s = Line().bring(60, 8, Pacer())
    assert paced_last_s < 1.05 * needed_s
    assert paced_first_s < ROUND_TRIP_S + 2 * BLOCK_BYTES / RATE < first_s


@pytest.mark.parametrize("late_s", [0.05, 0.5, 3.0])
def test_a_line_that_seemed_slow_is_full_soon(late_s: float) -> None:
    """One answer that was late slows down a few requests: more and more are asked for, until the line is full."""
    assert Line().bring(60, 8, Pacer(), late_s)[1] < 60 * BLOCK_BYTES / RATE + ROUND_TRIP_S + 1.2


@given(
    st.floats(0.001, 1.0),
    st.floats(2e6, 2e9),
    st.floats(0.0, 1.0),
    st.integers(1, 8),
    st.floats(0.0, 5.0),
    st.integers(0),
)
def test_pacing_costs_no_line_more_than_a_few_round_trips(
    round_trip_s: float, rate: float, late: float, at_once: int, opened_late_s: float, seed: int
) -> None:
    """Whatever a line is like, all is here hardly later than by requests that wait for nothing."""
    line = Line(round_trip_s, rate, late * round_trip_s, seed)
    bare_s, paced_s = (line.bring(60, at_once, pacer, opened_late_s)[1] for pacer in (None, Pacer()))
    assert paced_s < 1.15 * bare_s + 6 * round_trip_s


def test_nothing_waits_before_the_rate_is_known() -> None:
    """Of the first requests none waits for another, and where an answer comes at once, none ever does."""
    pacer = Pacer()
    pacer.begin(1.0, BLOCK_BYTES)
    assert pacer.wait_s(1.0) <= 0
    pacer.end(1.0, 1.0, BLOCK_BYTES)
    pacer.begin(2.0, BLOCK_BYTES)
    assert pacer.wait_s(2.0) <= 0
