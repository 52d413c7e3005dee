"""The memory of batches: gathering many small ones at once gives the same batches, and each is the caller's own."""

import gc
import pickle
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from tests.support.made_files import write_rows

ROWS, BATCH = 1003, 16


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """1,003 rows of 4x5 float32 that contain their numbers, and labels."""
    x = np.arange(ROWS * 20, dtype=np.float32).reshape(ROWS, 4, 5)
    return write_rows(tmp_path / "small.h5", x, (np.arange(ROWS) % 7).astype(np.uint8))


def test_each_batch_is_the_callers_own(small: Path) -> None:
    """A change to one batch of a group does not show in the others, and a pickle of one contains it alone."""
    first, second, *_ = list(make_loader(dataset_h5(small), BATCH, shuffle=False))
    first[0].fill_(-1)
    first[1].fill_(-1)
    assert second[0].flatten()[0].item() == BATCH * 20
    assert second[1].tolist() == [row % 7 for row in range(BATCH, 2 * BATCH)]
    assert second[0].untyped_storage().nbytes() == second[0].nbytes
    assert len(pickle.dumps(second[0])) < 2 * second[0].nbytes


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Forty rows of 64 kB, each filled with its number: batches large enough for pooled memory."""
    x = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None], (40, 64, 64, 16))
    return write_rows(tmp_path / "large.h5", x, np.arange(40))


DERIVED: dict[str, Any] = {
    "slice": lambda x: x[:, 1],
    "permuted": lambda x: x.permute(0, 2, 3, 1)[..., ::2],
    "array": lambda x: x.numpy()[:, ::3],
    "window": lambda x: x.unfold(2, 3, 1),
}


@pytest.mark.parametrize("derived", DERIVED)
def test_whatever_is_derived_from_a_batch_keeps_its_memory(large: Path, derived: str) -> None:
    """All of three epochs stays unchanged, although memory without references is reused."""
    kept: list[tuple[Any, Any]] = []
    loader = make_loader(dataset_h5(large), 8, prefetch_factor=3)
    for _ in range(3):
        for x, y in loader:
            kept.append((DERIVED[derived](x), y))
            del x
    gc.collect()
    for part, y in kept:
        for values, row in zip(np.asarray(part), y.tolist(), strict=True):
            assert (values == row).all()


def test_memory_of_dropped_batches_is_used_again(tmp_path: Path) -> None:
    """Epochs need memory only for the batches in flight: a file that is read twenty times takes little more than
    once."""
    write_rows(tmp_path / "data.h5", np.ones((64, 512, 512, 3), np.uint8), np.arange(64))
    loader = make_loader(dataset_h5(tmp_path / "data.h5"), 8)
    list(loader)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        for _batch in loader:
            pass
    # Pages of 4 kB; new memory for each batch would take 123,000.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 40_000
