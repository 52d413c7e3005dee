"""Ranks share out an epoch exactly, with equally many batches wherever that can be."""

from __future__ import annotations

import pytest

from colabstage.errors import OptionError
from colabstage.load.epoch import RowOrder, Schedule, Shard, choose_shard

pytestmark = pytest.mark.torch


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
