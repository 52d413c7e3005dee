"""Each public function that changes names on a disk, killed right before and right after each change.

After the kill, a reader sees the older or the newer state, never a part. Repeating the call succeeds with the bytes of
an undisturbed call, and nothing of the user's has changed. The cases are in `cases`.
"""

from collections.abc import Callable

import pytest

from tests.contract.cases import CASES
from tests.contract.matrix import Walk
from tests.support.moments import Moment, What

SIDES: tuple[What, What] = ("kill before", "kill after")
# More changes than any of these calls makes.
MOST = 200
# How many moments of each case are tried in each run, roughly, at a fixed stride; the long form tries all.
SOME = 6


def kill_at_changes(walk: Walk, some: int) -> None:
    below = str(walk.home)
    moments = [Moment(at, what, below) for at in range(1, MOST) for what in SIDES]
    walk.reset()
    changes = walk.call(moment=moments[-1]).reached
    # Odd, so that the moments before and after a change alternate.
    stride = (2 * changes // some) | 1
    # Threads make a few changes more or fewer each time.
    assert walk.at_each(moments[::stride]) >= 1.9 * changes // stride - 3
    assert changes >= 3


@pytest.mark.parametrize("name", CASES)
def test_killed_at_a_change_of_a_name(name: str, walk_of: Callable[[str], Walk]) -> None:
    kill_at_changes(walk_of(name), SOME)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_killed_at_each_change_of_a_name(name: str, walk_of: Callable[[str], Walk]) -> None:
    kill_at_changes(walk_of(name), 2 * MOST)
