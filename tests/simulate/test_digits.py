"""The digits to practise on are scikit-learn's."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

import numpy as np
import pytest

from colabstage.errors import MissingDependencyError
from colabstage.simulate.practice import read_digits


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


def test_without_scikit_learn_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python finds no such package."""
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.meta_path", [finder for finder in sys.meta_path if finder is not PathFinder])
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match="pip install scikit-learn"):
        read_digits()
