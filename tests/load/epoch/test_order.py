"""The order of an epoch is a pure function of its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.load.epoch import epoch_order, stable_order


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_once(count: int, shuffle: bool) -> None:
    """An epoch visits each row exactly once."""
    order = epoch_order(count, shuffle=shuffle, seed=3, epoch=5)
    assert order.dtype == np.intp
    assert sorted(order.tolist()) == list(range(count))


def test_seed_and_epoch_each_matter() -> None:
    """Two epochs, or two seeds, differ; the same ones agree. Seed and epoch are not added up."""
    orders = {
        (seed, epoch): epoch_order(100, shuffle=True, seed=seed, epoch=epoch).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    assert orders[1, 0] == epoch_order(100, shuffle=True, seed=1, epoch=0).tolist()


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


def test_each_row_is_anywhere_in_an_epoch_equally_often() -> None:
    """Over 4,000 seeds the places that a row comes at are as even as rng: chi-square with 19 degrees of freedom."""
    places = np.empty((4000, 20), np.intp)
    for seed in range(4000):
        places[seed, epoch_order(20, shuffle=True, seed=seed, epoch=seed % 7)] = np.arange(20)
    for row in range(20):
        counts = np.bincount(places[:, row], minlength=20)
        assert ((counts - 200) ** 2 / 200).sum() < 50.8  # exceeded by chance by one row of 20 in 500 such tests


def test_neighbours_do_not_stay_together() -> None:
    """Over 4,000 epochs each row follows each other one equally often: 379 degrees of freedom."""
    follows = np.zeros((20, 20))
    for epoch in range(4000):
        rows = epoch_order(20, shuffle=True, seed=3, epoch=epoch)
        np.add.at(follows, (rows[:-1], rows[1:]), 1)
    expected = 4000 * 19 / 380
    others = follows[~np.eye(20, dtype=bool)]
    assert ((others - expected) ** 2 / expected).sum() < 470  # mean 379, deviation 27.5
