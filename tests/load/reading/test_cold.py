"""Files that are not in the system's memory: read by other means, with the same result."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from colabstage.errors import CancelledError, DamagedPackError
from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Cancellation
from colabstage.load.reading.fields import EngineChoice
from colabstage.load.reading.memory import FileStamp, ReadFile
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    DropCache = Callable[[Path], None]

pytestmark = pytest.mark.torch

READ = EngineChoice("read", "a test")
COUNT = 300


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """59 MB of pixels: several blocks of a sequential read."""
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file["X_train"] = np.random.default_rng(0).integers(0, 256, (COUNT, 256, 256, 3), dtype=np.uint8)
        file["Y_train"] = np.arange(COUNT, dtype=np.int64)
    return path


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A file larger than any memory, of which only one row is written: the rest are holes, read as zeros."""
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", (2**26, 128, 128, 1), "u1")[2**25] = 7
    return path


def values_of(path: Path) -> NDArray[np.uint8]:
    with h5py.File(path, "r") as file:
        return np.asarray(file["X_train"][()])


@pytest.mark.parametrize("kind", ["pack", "contiguous", "float32", "bool", "userblock", "recipe"])
def test_reading_rows_equals_h5py(make_file: Callable[..., Any], kind: str) -> None:
    """Rows read one by one, in any order and by several threads, are bit for bit h5py's."""
    sample = make_file(kind, 23)
    reader = SplitReader(sample.path)
    part: Any = reader._parts[0]
    part._x = replace(part._x, choice=READ)
    for threads in (1, 3):
        with ThreadPool(threads) as pool:
            for rows in ([5], [3, 3, 0, 22, 3, 0], [*range(23)], [*range(22, -1, -1)], [7, 8, 9, 2, 3], []):
                np.testing.assert_array_equal(reader.read_x(rows, pool=pool), sample.x[rows])


@pytest.mark.disk
def test_a_cold_file_is_read_through_before_the_first_batch(large: Path, drop_cache: DropCache) -> None:
    """The choice says so; after the first batch all of the file is in memory, and all batches are right."""
    drop_cache(large)
    loader = make_loader(dataset_h5(large, return_index=True), 16)
    assert "read through once" in loader.plan.engine.reason
    values, batches = None, iter(loader)
    first = next(batches)
    assert "100%" in SplitReader(large).engine.reason
    values = values_of(large)
    for (x, _), index in [first, *batches]:
        np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), values[index.numpy()])


@pytest.mark.disk
def test_leaving_during_the_first_pass_ends_it(large: Path, drop_cache: DropCache) -> None:
    """An iteration that is ended while the file is read through stops there, between two blocks."""
    drop_cache(large)
    left = Cancellation()
    left.cancel()
    with pytest.raises(CancelledError):
        SplitReader(large).warm_up(left)
    assert "100% of it in memory" not in SplitReader(large).engine.reason


@pytest.mark.disk
def test_a_file_that_does_not_stay_in_memory_is_read_by_rows(large: Path, drop_cache: DropCache) -> None:
    """When the pass was in vain, rows are read from the disk from then on, and the reader says why."""
    drop_cache(large)
    reader = SplitReader(large)

    class Dropping(Cancellation):
        def check(self) -> None:
            drop_cache(large)

    reader.warm_up(Dropping())
    assert reader.engine.name == "read"
    assert "stayed" in reader.engine.reason
    np.testing.assert_array_equal(reader.read_x([7, 3, -1]), values_of(large)[[7, 3, -1]])


def test_a_cold_file_larger_than_memory_is_read_by_rows(huge: Path) -> None:
    """Nothing is read ahead of it; the rows that are asked for come right, many reads at a time."""
    dataset = dataset_h5(huge)
    assert dataset.engine.name == "read"
    assert "1.1 TB" in dataset.engine.reason
    x, _ = dataset.read_batch([2**25, 0, 2**25 + 1, -1], threads=4)
    assert [int(np.sum(row)) for row in x] == [7 * 128 * 128, 0, 0, 0]
    dataset.reader.warm_up()
    assert make_loader(dataset, 64, shuffle=False).plan.workers.value >= 16


@pytest.mark.parametrize("size", [None, (8, 8)])
def test_encoded_rows_of_a_cold_file_larger_than_memory(
    make_encoded: Callable[..., Path], size: tuple[int, int] | None
) -> None:
    """Images packed as files decode alike when each is read from the disk."""
    path = make_encoded(9, size=size)
    expected = SplitReader(path).read_x(range(9))
    with h5py.File(path, "r+") as file:
        data = file["X_train/bytes"][()]
        del file["X_train/bytes"]
        file["X_train"].create_dataset("bytes", (2**40,), "u1")[: len(data)] = data
    reader = SplitReader(path)
    assert reader.engine.name == "read"
    with ThreadPool(2) as pool:
        for image, other in zip(reader.read_x(range(9), pool=pool), expected, strict=True):
            np.testing.assert_array_equal(image, other)


def test_a_file_that_is_written_to_is_refused(large: Path, huge: Path) -> None:
    """Rows of a file that is no longer the one that was opened are an error, and so are those it has lost."""
    reader = SplitReader(huge)
    reader.read_x([0])
    os.utime(huge, (1, 1))
    with pytest.raises(DamagedPackError, match="replaced or written to"):
        reader.read_x([0])
    with pytest.raises(DamagedPackError, match="cut off"):
        ReadFile(large, FileStamp.of(large.stat()), at_random=True).read_into(
            large.stat().st_size - 10, np.empty(20, np.uint8)
        )
