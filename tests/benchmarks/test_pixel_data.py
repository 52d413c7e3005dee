"""Contenders of `peers_pixels` are held to reading what was written."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks._pixel_data import Checker, Shape, read_samples, write_samples

_SHAPES = [
    Shape("images", 20, (4, 6, 3)),
    Shape("masks", 20, (4, 6, 3), masks=True),
    Shape("rows", 20, (8,), "float32"),
]


@pytest.mark.parametrize("shape", _SHAPES, ids=lambda shape: shape.title)
def test_a_shuffled_epoch_passes(shape: Shape, tmp_path: Path) -> None:
    """Every row once in another order is right, with channels last or first."""
    write_samples(tmp_path, shape)
    x, y = read_samples(tmp_path)
    checker, order = Checker(tmp_path, shape), np.random.default_rng(0).permutation(20)
    checker.add(x[order[:12]], y[order[:12]])
    last = x[order[12:]]
    checker.add(np.moveaxis(last, -1, 1) if last.ndim == 4 else last, y[order[12:]])
    assert checker.verdict() is None


@pytest.mark.parametrize("shape", _SHAPES, ids=lambda shape: shape.title)
def test_a_wrong_byte_or_target_is_found(shape: Shape, tmp_path: Path) -> None:
    """A batch with another value in it, or with the targets of other rows, is refused."""
    write_samples(tmp_path, shape)
    x, y = read_samples(tmp_path, in_memory=True)
    checker = Checker(tmp_path, shape)
    wrong = x.copy()
    wrong[3].reshape(-1)[-1] += 1
    with pytest.raises(ValueError, match="written"):
        checker.add(wrong, y)
    with pytest.raises(ValueError, match="written"):
        checker.add(x, np.roll(y, 1, axis=0))


def test_missing_repeated_and_unshuffled_rows_are_found(tmp_path: Path) -> None:
    """An epoch without a row, with one twice, or in the file's order does not pass."""
    shape = _SHAPES[0]
    write_samples(tmp_path, shape)
    x, y = read_samples(tmp_path)
    for rows, reason in (
        (np.r_[10:20, 0:9], "1 of 20 rows"),
        (np.r_[10:20, 0:10, 3], "1 of 20 rows"),
        (np.arange(20), "not shuffled"),
    ):
        checker = Checker(tmp_path, shape)
        checker.add(x[rows], y[rows])
        assert reason in str(checker.verdict())
