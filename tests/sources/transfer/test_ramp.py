"""Trying how many connections are worth it, and how much should be under way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage.sources.transfer.byte_ranges import ConnectionTuner, FlightLimit, IntervalSet, RangeScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def settle(ramp: ConnectionTuner, rate: Callable[[int], float]) -> list[int]:
    """Ten seconds at the rate that so many connections have; how many were wanted over time, without repeats."""
    seen, arrived = [ramp.wanted], 0.0
    for tick in range(1000):
        arrived += rate(ramp.wanted) / 100
        if ramp.is_due(tick / 100):
            ramp.look(tick / 100, int(arrived))
            if ramp.wanted != seen[-1]:
                seen.append(ramp.wanted)
    return seen


@pytest.mark.parametrize(
    ("first", "most", "rate", "wanted"),
    [
        (1, 4, lambda count: 50e6, [1, 2, 1]),
        (1, 4, lambda count: 20e6 * count, [1, 2, 3, 4]),
        (1, 4, lambda count: 20e6 * min(count, 2), [1, 2, 3, 2]),
        (1, 4, lambda count: 50e6 / count, [1, 2, 1]),
        (1, 1, lambda count: 50e6, [1]),
        (8, 8, lambda count: 50e6, [8]),
    ],
)
def test_connections_grow_as_long_as_they_help(
    first: int, most: int, rate: Callable[[int], float], wanted: list[int]
) -> None:
    """One more at a time; the one that did not help goes again, and that is the end of it."""
    assert settle(ConnectionTuner(first, most), rate) == wanted


MB = 1_000_000
SIZE, STRETCH, LATENCY_S, CONNECTIONS = 200 * MB, 1_250_000, 0.4, 16


def bring(line: float, connection: float, *, limited: bool) -> tuple[NDArray[np.float64], list[float]]:
    """Bring a file over a line that its connections share evenly, each of which gives so much at most.

    Returns:
        How many seconds each stretch comes after the moment at which a line that brings one after the other would have
        it, in the order in which they were wanted; and the limits that there were, in MB.
    """
    plan = RangeScheduler([(0, SIZE)], connections=CONNECTIONS, block_bytes=8 * MB)
    # From all over the file, as the first epoch has them.
    begins = [number * 37 % 160 * STRETCH for number in range(160)]
    plan.prefer([(begin, begin + STRETCH) for begin in begins])
    limit = FlightLimit(enough=plan.enough_under_way, under_way=plan.under_way)
    here, now, came, seen = IntervalSet(), 0.0, dict[int, float](), list[float]()
    while here.total < SIZE:
        while len(plan.active) < CONNECTIONS and plan.take(now) is not None:
            pass
        now += 0.01
        sending = [one for one in plan.active if now - one.asked_at >= LATENCY_S]
        # What one does not need goes to the others.
        room = line / 100
        for number, one in enumerate(sorted(sending, key=lambda one: one.left)):
            fresh = int(min(one.left, room / (len(sending) - number), connection / 100))
            room -= fresh
            begin = one.position
            plan.advance(one, begin + fresh, now)
            here.add(begin, begin + fresh)
            for stretch in {begin // STRETCH, (begin + fresh) // STRETCH}:
                if here.first_missing(stretch * STRETCH, (stretch + 1) * STRETCH) is None:
                    came.setdefault(stretch * STRETCH, now)
        if limited and sending and limit.is_due(now):
            limit.look(now, here.total)
            plan.most_under_way = limit.most
            if limit.most != (seen or [math.inf])[-1]:
                seen.append(limit.most)
    ideal = LATENCY_S + np.arange(1, len(begins) + 1) * STRETCH / line
    return np.array([came[begin] for begin in begins]) - ideal, [round(most / MB, 1) for most in seen]


def test_on_a_slow_line_what_is_wanted_first_comes_first() -> None:
    """No more is under way than fills the line, so each stretch comes earlier, and all of them as soon."""
    before, _ = bring(10 * MB, 100 * MB, limited=False)
    after, limits = bring(10 * MB, 100 * MB, limited=True)
    # What the line brings in one round trip, and two stretches; half as much again brought no more.
    assert limits[0] == limits[-1] == 6.5
    assert after[-1] <= before[-1]
    assert np.mean(after[20:]) < np.mean(before[20:]) / 2


@pytest.mark.parametrize("connection", [0.5, 1, 2, 3, 5])
def test_connections_that_are_slow_each_by_itself_lose_little(connection: float) -> None:
    """With a limit less comes, which is noticed within seconds."""
    before, _ = bring(1000 * MB, connection * MB, limited=False)
    after, limits = bring(1000 * MB, connection * MB, limited=True)
    assert limits[1:] in ([], [math.inf])
    assert after.max() <= before.max() + 0.5


@pytest.mark.parametrize("line", [30, 100, 300])
def test_a_fast_line_stays_full(line: int) -> None:
    """Nearly all that connections can bring has to be under way, so there is no limit."""
    before, _ = bring(line * MB, 100 * MB, limited=False)
    after, limits = bring(line * MB, 100 * MB, limited=True)
    assert limits in ([], [math.inf])
    assert after.max() <= before.max()


def test_what_has_no_order_has_no_limit() -> None:
    """Without anything preferred, the whole file is wanted and no part of it first."""
    plan = RangeScheduler([(0, SIZE)], connections=CONNECTIONS, block_bytes=8 * MB)
    one = plan.take(0.0)
    assert one is not None
    plan.advance(one, MB, 0.1)
    assert plan.enough_under_way(1.0) == math.inf
    plan.most_under_way = 1
    assert plan.take(0.2) is not None


def test_connections_that_are_silent_take_no_room() -> None:
    """What they were asked for will hardly come, so others go on with what is wanted next."""
    plan = RangeScheduler([(0, SIZE)], connections=CONNECTIONS, block_bytes=8 * MB)
    plan.prefer([(begin, begin + STRETCH) for begin in range(0, SIZE, STRETCH)])
    one = plan.take(0.0)
    assert one is not None
    plan.most_under_way = 1
    assert plan.take(1.0) is None
    assert plan.take(10.0) is not None
