"""The order of an epoch is a pure function of its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.load.epoch import epoch_order, stable_order


def test_order_is_the_same_everywhere() -> None:
    """The order of a given seed is pinned, since a run may be resumed with another version of numpy."""
    assert epoch_order(10, shuffle=True, seed=7, epoch=2).tolist() == [8, 6, 4, 0, 5, 7, 1, 3, 9, 2]


@pytest.mark.parametrize("values", [2, 100, 10**15])
def test_equal_numbers_stay_in_their_order(values: int) -> None:
    """Whether many are equal, some, or none; sorting that keeps no order among equals mixes up more than 16 of them."""
    keys = np.random.default_rng(0).integers(0, values, 5_000).astype(np.float64)
    expected = sorted(range(5_000), key=lambda place: keys[place])
    assert stable_order(keys).tolist() == expected
    assert stable_order(keys[:0]).tolist() == []
