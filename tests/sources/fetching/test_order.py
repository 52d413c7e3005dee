"""The plan of blocks: no rule fetches less, and what it lets go is what is needed last."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.sources.order import (
    NEVER,
    Outlook,
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
                wanted = block if needed_now else outlook.first_of(missing)
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
    assert outlook.first_of(~here) == 4
    assert outlook.first_of(np.array([False, False, True, False, False])) is None


BLOCK_BYTES, ROUND_TRIP_S, RATE = 8 * 2**20, 0.4, 100e6
