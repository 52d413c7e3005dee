"""What is fetched next: every byte once, the most urgent first, no connection idle, and no schedule fetches less."""

import heapq
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.sources.order import (
    NEVER,
    Pacing,
    RangeOrder,
    Reader,
    Run,
    Visits,
    find_visits,
    first_of,
    next_uses,
    victim_for,
)

MIB = 1024 * 1024
BLOCK = 8 * MIB


def assert_disjoint(ranges: list[tuple[int, int]], total: int) -> None:
    """Every byte once, and so many of them."""
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(sorted(ranges)))
    assert sum(end - begin for begin, end in ranges) == total


class Line:
    """Connections of given speeds that work through a plan, on a clock that jumps; no threads, no time."""

    def __init__(self, plan: RangeOrder, speeds: list[float], latency_s: float, *, piece_s: float = 0.2) -> None:
        self._piece_s = piece_s
        self.plan, self.latency_s = plan, latency_s
        self.got: list[tuple[int, int]] = []
        self.requests: list[int] = []
        self.end_s = 0.0
        self.now = 0.0
        self._speeds = speeds

    def _piece(self, number: int) -> int:
        """Bytes that come at once."""
        return max(1, min(MIB, int(self._speeds[number] * self._piece_s)))

    def run(self, until: int) -> None:
        """Go on until `until` bytes have come."""
        arrived = 0
        events: list[tuple[float, int, Run | None]] = [(0.0, number, None) for number in range(len(self._speeds))]
        for _ in range(200_000):
            if arrived >= until:
                break
            self.now, number, byte_range = heapq.heappop(events)
            if byte_range is not None and byte_range.left:
                position, end = byte_range.position, byte_range.position + min(self._piece(number), byte_range.left)
                self.got.append((position, end))
                arrived += end - position
                self.plan.advance(byte_range, end, self.now)
                wait_s = 0.0
            else:
                byte_range = self.plan.take(self.now)
                if byte_range is None:
                    heapq.heappush(events, (self.now + 0.05, number, None))
                    continue
                self.requests.append(byte_range.left)
                wait_s = self.latency_s
            wait_s += min(self._piece(number), byte_range.left) / self._speeds[number]
            heapq.heappush(events, (self.now + wait_s, number, byte_range))
        assert arrived >= until, "it never ends"
        self.end_s = self.now


@given(
    st.lists(st.tuples(st.integers(1, 40_000_000), st.integers(1, 90_000_000)), min_size=1, max_size=4),
    st.lists(st.floats(2e5, 5e7), min_size=1, max_size=17),
    st.floats(0.0, 0.5),
    st.lists(st.integers(0, 30), unique=True, max_size=6),
)
def test_every_missing_byte_comes_and_no_other(
    parts: list[tuple[int, int]], speeds: list[float], latency_s: float, preferred: list[int]
) -> None:
    """Whatever is missing or preferred, however fast the connections are: all of it arrives, hardly anything twice."""
    gaps, at = [], 0
    for hole, length in parts:
        gaps.append((at + hole, at + hole + length))
        at += hole + length
    line = Line(RangeOrder(gaps, connections=len(speeds), block_bytes=BLOCK), speeds, latency_s)
    line.plan.prefer([(number * BLOCK, (number + 1) * BLOCK) for number in preferred])
    total = sum(end - begin for begin, end in gaps)
    line.run(total)
    assert all(any(low <= begin and end <= high for low, high in gaps) for begin, end in line.got)
    assert_disjoint(line.got, total)


def test_what_is_preferred_comes_first_in_its_order() -> None:
    """What is here already of it, from 30 to 32 MiB, is not asked for; and the rest comes once it has, since that would
    share the line with it."""
    plan = RangeOrder([(0, 30 * MIB), (32 * MIB, 80 * MIB)], connections=3, block_bytes=BLOCK)
    plan.prefer([(number * BLOCK, (number + 1) * BLOCK) for number in (7, 3, 9)])
    runs = list[Run]()
    while (run := plan.take(0.0)) is not None:
        runs.append(run)
    blocks = [run.begin // BLOCK for run in runs]
    assert blocks == sorted(blocks, key=[7, 3, 9].index)
    assert_disjoint([(run.begin, run.end) for run in runs], 22 * MIB)
    assert max(run.left for run in runs[:6]) < 2 * MIB  # small at first, so that all connections bring them
    for run in runs:
        plan.advance(run, run.end, 0.0)
    rest = plan.take(0.0)
    assert rest is not None
    assert rest.begin == 0


def lateness(*, line: float, connection: float = math.inf) -> tuple[list[float], float]:
    """How much later than on a line with one connection each of 200 MiB comes, in an order that is preferred, and when
    all of it is here: 16 connections that share `line` bytes a second, after 0.4 s for each request."""
    size, latency_s, step_s = 200 * MIB, 0.4, 0.01
    units = [(at, at + MIB) for at in range(0, size, MIB)]
    random.Random(0).shuffle(units)
    plan = RangeOrder([(0, size)], connections=16, block_bytes=8 * MIB)
    plan.prefer(units, alone=True)
    now, runs, left, came = 0.0, list[Run](), dict.fromkeys(range(0, size, MIB), MIB), dict[int, float]()
    while left:
        while len(runs) < 16 and (run := plan.take(now)) is not None:
            runs.append(run)
        moving = [run for run in runs if now >= run.asked_at + latency_s]
        for run in moving:
            count = int(min(line / len(moving), connection) * step_s)
            while run.left and count > 0:
                unit = run.position // MIB * MIB
                part = min(count, run.left, unit + MIB - run.position)
                left[unit] -= part
                if not left[unit]:
                    del left[unit]
                    came[unit] = now
                plan.advance(run, run.position + part, now)
                count -= part
        runs = [run for run in runs if run.left]
        now += step_s
    latest = itertools.accumulate((came[begin] for begin, _ in units), max)
    return [at - latency_s - (number + 1) * MIB / line for number, at in enumerate(latest)], now


def test_the_most_urgent_is_not_late_because_all_that_is_requested_shares_the_line() -> None:
    """No more is requested then than keeps the line full; where connections are slow and not the line, all of them."""
    late_s, end_s = lateness(line=10e6)
    assert max(late_s[100:]) < 0.5
    assert end_s < 1.05 * (200 * MIB / 10e6 + 0.4)
    _, end_s = lateness(line=1e9, connection=1e6)
    each_s = MIB / 1e6 + 0.4
    assert end_s < 1.15 * 200 / 16 * each_s


@pytest.mark.parametrize(
    ("size", "speeds", "piece_s", "slower", "twice"),
    [
        (2_000_000_000, [20e6] * 16, 0.2, 1.04, 1.0),
        # A hundred times slower: what it was given is taken over by the others.
        (400_000_000, [20e6, 20e6, 20e6, 2e5], 0.2, 1.25, 1.05),
        # A megabyte every ten seconds is slow, not silent.
        (64 * MIB, [1e5] * 8, 100.0, 1.5, 1.3),
    ],
    ids=["equal", "one is slow", "all are slow"],
)
def test_all_connections_end_at_once_and_hardly_anything_comes_twice(
    size: int, speeds: list[float], piece_s: float, slower: float, twice: float
) -> None:
    """Beside the time that the line would take; with long requests, hence few."""
    line = Line(RangeOrder([(0, size)], connections=len(speeds), block_bytes=BLOCK), speeds, 0.05, piece_s=piece_s)
    line.run(size)
    assert line.end_s < slower * size / sum(speeds)
    assert sum(end - begin for begin, end in line.got) <= twice * size
    assert len(line.requests) <= 16 * 6


def test_what_a_silent_connection_had_is_taken_over_whole() -> None:
    """A connection that brings nothing for seconds is left with nothing, so that the file can end without it."""
    plan = RangeOrder([(0, 2 * BLOCK)], connections=2, block_bytes=BLOCK)
    silent, quick = plan.take(0.0), plan.take(0.0)
    assert silent is not None
    assert quick is not None
    for piece in range(1, 9):
        plan.advance(quick, quick.begin + piece * MIB, 0.05 * piece)
    half = plan.take(0.5)
    assert half is not None
    assert (half.begin, half.end) == (silent.end, BLOCK)
    for piece in range(1, 5):
        plan.advance(half, half.begin + piece * MIB, 0.5 + 0.05 * piece)
    rest = plan.take(4.0)
    assert rest is not None
    assert (rest.begin, rest.end) == (0, half.begin)
    assert silent.left == 0
    assert plan.take(4.1) is None


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
