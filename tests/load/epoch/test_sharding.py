"""Ranks share out an epoch exactly, with equally many batches wherever that can be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import OptionError
from colabstage.load.epoch import RowOrder, Schedule, Shard, choose_shard

pytestmark = pytest.mark.torch


def parts(count: int, size: int, world: int, *, drop_last: bool) -> list[list[list[int]]]:
    """The batches of each rank."""
    order = RowOrder(count, True, 0)
    schedules = [Schedule(order, size, drop_last, Shard(rank, world)) for rank in range(world)]
    batches = [[rows.tolist() for rows in schedule.rows_left(5, 0)] for schedule in schedules]
    assert [len(part) for part in batches] == [schedule.batches for schedule in schedules]
    return batches


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5))
def test_every_row_once_in_equally_many_batches(count: int, size: int, world: int) -> None:
    """Together the ranks visit each row once; no batch is empty or too long; ranks differ by a row at the most; and
    the number of batches is the same, unless batches have one row or there are fewer rows than ranks."""
    batches = parts(count, size, world, drop_last=False)
    rows = [row for part in batches for batch in part for row in batch]
    assert sorted(rows) == list(range(count))
    assert all(1 <= len(batch) <= size for part in batches for batch in part)
    lengths = [sum(map(len, part)) for part in batches]
    assert max(lengths) - min(lengths) <= 1
    steps = {len(part) for part in batches}
    assert len(steps) == 1 or ((size == 1 or count < world) and max(steps) - min(steps) == 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5))
def test_dropping_the_last_leaves_full_batches_on_all_ranks(count: int, size: int, world: int) -> None:
    """All batches are full, no row comes twice, and less than one step of all ranks is left out."""
    batches = parts(count, size, world, drop_last=True)
    rows = [row for part in batches for batch in part for row in batch]
    assert len(set(rows)) == len(rows) == count // (size * world) * size * world
    assert all(len(batch) == size for part in batches for batch in part)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_step_of_all_ranks_is_a_batch_of_one_process(world: int) -> None:
    """What the ranks see together in a step is what one process sees in a batch so many times as large."""
    together = [set(itertools.chain(*step)) for step in zip(*parts(48, 4, world, drop_last=False), strict=True)]
    alone = [set(batch) for batch in parts(48, 4 * world, 1, drop_last=False)[0]]
    assert together == alone


@pytest.mark.parametrize(("count", "size", "world"), [(23, 4, 1), (23, 4, 2), (25, 4, 3), (9, 4, 2)])
def test_resuming_at_any_batch_gives_the_rest(count: int, size: int, world: int) -> None:
    """What is left of an epoch is the end of the whole."""
    for rank in range(world):
        schedule = Schedule(RowOrder(count, True, 1), size, False, Shard(rank, world))
        whole = schedule.rows_left(2, 0)
        for done in range(schedule.batches + 1):
            left = schedule.rows_left(2, done)
            assert [rows.tolist() for rows in left] == [rows.tolist() for rows in whole[done:]]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 11, 16, 18])
def test_other_ranks_with_the_same_step_go_on_where_these_were(count: int) -> None:
    """What some ranks have handed out and what others have left is the epoch, each row once, and all but the last step
    can be gone on from; where all ranks have as many rows, that too, and the end."""
    shares = [(4, 1), (2, 2), (1, 4)]
    schedules = {
        (size, world): [Schedule(RowOrder(count, True, 1), size, False, Shard(rank, world)) for rank in range(world)]
        for size, world in shares
    }
    for (size, world), before in schedules.items():
        for done in range(before[0].batches + 1):
            state = {"batch_size": size, "world_size": world, "batches_done": done}
            seen = [row for one in before for rows in one.rows_left(3, 0)[:done] for row in rows.tolist()]
            for after in schedules.values():
                if after[0].steps_as(state):
                    left = [row for one in after for rows in one.rows_left(3, done) for row in rows.tolist()]
                    assert sorted(seen + left) == list(range(count))
                else:
                    assert count % 4
                    assert done >= max(1, before[0].batches - 1)
    state = {"batch_size": 4, "world_size": 1, "batches_done": 0}
    assert schedules[2, 2][0].steps_as(state)
    for name in state:
        for wrong in (None, "4", 1.0, -1, True):
            assert not schedules[2, 2][0].steps_as({**state, name: wrong})
    half = Schedule(RowOrder(count, True, 1), 2, False, Shard())
    assert not half.steps_as({"batch_size": 4, "world_size": 1, "batches_done": 0})


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (True, 2), (0.0, 2)])
def test_ranks_that_cannot_be_are_refused(rank: int | None, world: int | None) -> None:
    """One without the other, or beyond the last, is an error with both values."""
    with pytest.raises(OptionError, match=f"rank={rank!r} and world_size={world!r}"):
        choose_shard(rank, world)


def test_without_a_process_group_there_is_one_rank() -> None:
    """Nothing given and nothing initialised is one process that visits everything."""
    assert choose_shard(None, None) == Shard(0, 1)
