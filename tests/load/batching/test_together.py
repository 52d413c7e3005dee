"""Small batches that are gathered several at once are the same batches."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
import torch

from colabstage import dataset_h5, make_loader

if TYPE_CHECKING:
    from pathlib import Path


ROWS, BATCH = 1003, 16


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """1,003 rows of 4x5 float32, each with its number in it, and labels."""
    path = tmp_path / "small.h5"
    with h5py.File(path, "w") as file:
        file["X_train"] = np.arange(ROWS * 20, dtype=np.float32).reshape(ROWS, 4, 5)
        file["Y_train"] = (np.arange(ROWS) % 7).astype(np.uint8)
    return path


def test_batches_are_those_gathered_one_by_one(small: Path) -> None:
    """Grouped or not, an epoch has the same batches, the last and partial one too."""
    grouped = make_loader(dataset_h5(small, return_index=True), BATCH, seed=3)
    single = make_loader(dataset_h5(small, return_index=True), BATCH, seed=3, prefetch_factor=1)
    assert (grouped.plan.prefetch.value, single.plan.prefetch.value) == (256, 1)
    with h5py.File(small) as file:
        images, labels = file["X_train"][()], file["Y_train"][()]
    pairs = list(zip(grouped, single, strict=True))
    assert len(pairs) == 63
    for ((x, y), rows), ((other_x, other_y), other_rows) in pairs:
        assert torch.equal(rows, other_rows)
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
        assert np.array_equal(x.numpy(), images[rows.numpy()])
        assert np.array_equal(y.numpy(), labels[rows.numpy()])
        assert y.dtype == torch.int64


def test_each_batch_is_the_callers_own(small: Path) -> None:
    """Batches of a group can be changed without the others seeing it, and one that is sent is sent alone."""
    first, second, *_ = list(make_loader(dataset_h5(small), BATCH, shuffle=False))
    first[0].fill_(-1)
    first[1].fill_(-1)
    assert second[0].flatten()[0].item() == BATCH * 20
    assert second[1].tolist() == [row % 7 for row in range(BATCH, 2 * BATCH)]
    assert second[0].untyped_storage().nbytes() == second[0].nbytes
    assert len(pickle.dumps(second[0])) < 2 * second[0].nbytes


def test_no_more_are_prepared_than_asked_for(small: Path) -> None:
    """With nobody taking, as many rows have been read as `prefetch` batches have, and the group in the making."""
    dataset = dataset_h5(small)
    read: list[int] = []
    reading = dataset.reader.read_x

    def counting(rows, out=None, **options):  # type: ignore[no-untyped-def]
        read.append(len(rows))
        return reading(rows, out, **options)

    dataset.reader.read_x = counting  # type: ignore[method-assign,assignment]
    loader = make_loader(dataset, BATCH, prefetch_factor=8)
    taken = iter(loader)
    next(taken)
    time.sleep(0.2)
    assert max(read) == 4 * BATCH
    assert 8 * BATCH <= sum(read) <= 13 * BATCH
    loader.close()
