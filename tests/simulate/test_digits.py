"""The digits to practise on are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.simulate.digits import read_digits


def test_they_are_what_scikit_learn_loads() -> None:
    """Read out of its file, without importing it."""
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn: pip install 'colabstage[demo]'")
    pixels, labels = datasets.load_digits(return_X_y=True)
    shades, found = read_digits()
    assert (shades.shape, str(shades.dtype), str(found.dtype)) == ((1797, 8, 8), "uint8", "int64")
    assert np.array_equal(shades, np.rint(pixels.reshape(-1, 8, 8) * 255 / 16))
    assert np.array_equal(found, labels)
    few, their_labels = read_digits(20)
    assert np.array_equal(few, shades[:20])
    assert np.array_equal(their_labels, labels[:20])
