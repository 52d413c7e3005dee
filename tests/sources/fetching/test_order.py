"""Which blocks come next and which make way, for readers whose order is known: no schedule fetches less."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.sources.order import NEVER, Pacing, Reader, Run, Visits, find_visits, first_of, next_uses, victim_for


def fewest(blocks: list[int], capacity: int) -> int:
    """The least number of fetches of any schedule: the block whose next use is farthest makes way."""
    here: set[int] = set()
    fetched = 0
    for place, block in enumerate(blocks):
        if block not in here:
            fetched += 1
            if len(here) >= capacity:
                rest = blocks[place:]
                here.discard(max(here, key=lambda one: rest.index(one) if one in rest else len(rest)))
            here.add(block)
    return fetched


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
        for step, block in enumerate(order):
            reader.reached = step
            next_use = next_uses([reader], count)
            while True:
                missing = np.array([one not in here for one in range(count)])
                needed_now = block not in here
                wanted = block if needed_now else first_of(next_use, missing)
                if wanted is None:
                    break
                if len(here) >= capacity:
                    victim = victim_for(wanted, next_use, ~missing, ahead=ahead, needed_now=needed_now)
                    if victim is None:
                        break
                    here.discard(victim)
                here.add(wanted)
                fetched += 1
            assert block in here
            assert len(here) <= capacity
    return fetched


@pytest.mark.parametrize(("blocks", "capacity", "ahead"), [(60, 6, 1), (60, 20, 3), (30, 29, 1)])
def test_epochs_fetch_hardly_more_than_the_best_schedule(blocks: int, capacity: int, ahead: int) -> None:
    """Over epochs in random order, fetching ahead costs no more than the room it takes."""
    orders = [np.random.default_rng(seed).permutation(blocks).tolist() for seed in range(6)]
    least = fewest(list(itertools.chain(*orders)), capacity)
    assert least <= run_epochs(orders, capacity, ahead) <= least + len(orders) * ahead


def test_what_makes_way() -> None:
    """Ahead of need nothing goes that is needed sooner, and nothing for what is needed late; for a reader that waits,
    whatever is needed last does."""
    next_use = np.array([5, 100, NEVER, 40, 7])
    here = np.array([True, True, False, True, False])
    assert victim_for(4, next_use, here, ahead=2, needed_now=False) == 1
    assert victim_for(4, next_use, here, ahead=1, needed_now=False) is None
    assert victim_for(4, next_use, here, ahead=1, needed_now=True) == 1
    assert victim_for(4, next_use, np.array([True, False, False, False, False]), ahead=9, needed_now=False) is None
    assert victim_for(4, next_use, np.array([True, False, True, False, False]), ahead=0, needed_now=False) == 2


def finish(round_trip_s: float, bytes_per_s: float, blocks: int, connections: int = 8) -> list[float]:
    """When blocks of 8 MB arrive that `Pacing` requests over a line which all requests share evenly."""
    pacing, now, block = Pacing(2), 0.0, 8e6
    left: dict[int, float] = {}
    runs: list[Run] = []
    ends: list[float] = []
    while len(ends) < blocks:
        if (
            len(runs) < blocks
            and len(left) < connections
            and pacing.allows(now, (runs[one] for one in left), int(block))
        ):
            runs.append(Run(0, int(block), now))
            left[len(runs) - 1] = block
            pacing.sent(int(block), now, is_last=len(left) >= connections)
        arriving = [number for number in left if now - runs[number].asked_at >= round_trip_s]
        for number in arriving:
            left[number] -= bytes_per_s * 0.01 / len(arriving)
            position = min(int(block), int(block - left[number]))
            pacing.arrived(runs[number], position, now)
            runs[number].position, runs[number].moved_at = position, now
            if position == int(block):
                del left[number]
                ends.append(now)
        now += 0.01
    return ends


@pytest.mark.parametrize(("round_trip_s", "bytes_per_s"), [(0.02, 100e6), (0.1, 30e6), (0.4, 100e6)])
def test_the_first_two_blocks_come_nearly_as_if_alone_and_the_line_fills(
    round_trip_s: float, bytes_per_s: float
) -> None:
    """Neither does what is needed first share the line with all the rest, nor does the line wait for round trips."""
    ends = finish(round_trip_s, bytes_per_s, 40)
    assert ends[1] <= 1.1 * (round_trip_s + 2 * 8e6 / bytes_per_s) + 0.05
    # Two round trips: for the first blocks, and for those that their rate allows.
    assert ends[-1] <= 1.1 * (2.5 * round_trip_s + 40 * 8e6 / bytes_per_s)
