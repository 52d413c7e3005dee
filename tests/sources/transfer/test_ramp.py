"""Trying how many connections are worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from colabstage.sources.transfer.connections import ConnectionTuner

if TYPE_CHECKING:
    from collections.abc import Callable


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
