"""Random epochs over random HDF5 files beside h5py: a few of them here, five hundred in the long form."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from colabstage import to_numpy
from tests.h5 import epochs
from tests.h5.epochs import EpochError, check_epochs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are made in the test's own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_hundred_epochs_of_all_frameworks() -> None:
    """By all that are installed."""
    assert check_epochs(500, 1).epochs.total() == 500


@pytest.mark.parametrize("seed", [1, 7])
def test_epochs_have_the_values_of_h5py_in_the_order_of_the_model(seed: int) -> None:
    """By torch and by numpy; on ranks, of some rows, and resumed in the middle."""
    found = check_epochs(40, seed, ["torch", "numpy"])
    assert found.epochs.total() == 40
    assert min(found.epochs["numpy"], found.ranks, found.resumes, found.files) > 3
    assert found.refused.total() < 20


def test_batches_of_other_rows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of another seed."""
    monkeypatch.setattr(
        epochs, "to_numpy", lambda path, size, seed, **named: to_numpy(path, size, seed=seed + 1, **named)
    )
    with pytest.raises(EpochError, match="other batches"):
        check_epochs(40, 1, ["numpy"])
