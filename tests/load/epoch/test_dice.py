"""Random numbers of samples: even, independent, and a pure function of seed, epoch and row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from colabstage.load.epoch import BatchPlace

ROWS = np.arange(20_000)
# With this probability a test of even numbers would fail for another seed.
ALPHA = 1e-4


def ks_limit(count: int, other: int | None = None) -> float:
    """The Kolmogorov-Smirnov distance that even numbers exceed with probability ALPHA."""
    size = count if other is None else count * other / (count + other)
    return math.sqrt(-math.log(ALPHA / 2) / 2 / size)


def distance_to_even(values: np.ndarray[Any, Any]) -> float:
    """The largest distance between the share of values below a number and that number."""
    steps = np.arange(len(values) + 1) / len(values)
    ordered = np.sort(values)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_draws_are_even(seed: int) -> None:
    """Over rows, each column is even in [0, 1)."""
    draws = BatchPlace(seed, 3, ROWS).draws(6)
    assert draws.shape == (len(ROWS), 6)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert all(distance_to_even(column) < ks_limit(len(ROWS)) for column in draws.T)


def test_draws_are_independent() -> None:
    """Columns, neighbouring rows, epochs, seeds and streams have nothing to do with each other."""
    base = BatchPlace(5, 0, ROWS)
    first = base.draws(4)
    others = [
        *first.T[1:],
        np.roll(first[:, 0], 1),
        BatchPlace(5, 1, ROWS).draws(1)[:, 0],
        BatchPlace(6, 0, ROWS).draws(1)[:, 0],
        base.inner(0).draws(1)[:, 0],
        base.inner(1).draws(1)[:, 0],
        base.inner(0).inner(0).draws(1)[:, 0],
    ]
    # Correlations of independent numbers are normal, with deviation 1 / sqrt(count).
    limit = 4 / math.sqrt(len(ROWS))
    assert all(abs(np.corrcoef(first[:, 0], other)[0, 1]) < limit for other in others)
    assert not any(np.array_equal(first[:, 0], other) for other in others)


def test_draws_do_not_depend_on_the_batch() -> None:
    """A row has the same numbers alone, in another order, and when more are asked for."""
    whole = BatchPlace(1, 2, ROWS).draws(5)
    some = np.array([7, 3, 19_999, 3])
    np.testing.assert_array_equal(BatchPlace(1, 2, some).draws(5), whole[some])
    np.testing.assert_array_equal(BatchPlace(1, 2, some).draws(2), whole[some, :2])


def test_draws_are_the_same_for_ever() -> None:
    """Runs are resumed on other machines and versions: these numbers must not change."""
    draws = BatchPlace(1, 2, np.array([0, 3]), (4,)).draws(2)
    np.testing.assert_allclose(draws, DRAWN, rtol=0, atol=1e-15)


DRAWN = [[0.8052865717207578, 0.7352076018746955], [0.51408781226335, 0.7704851742027579]]
