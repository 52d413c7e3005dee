"""Packing uses bounded memory: the peak does not grow with the number of images."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks._small_jpegs import write_small_jpegs
from benchmarks.scale import ALLOWED_BYTES_EACH, bytes_each, packing
from colabstage import pack_dataset

MIB = 1024 * 1024
# The difference between two packs of the same number: full buffers or not, started threads or not.
SCATTER_BYTES = 8 * MIB


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    """Ten times the images take at most 8 MiB more, each pack in its own process."""
    few, many = (
        packing(write_small_jpegs(tmp_path / f"{count}", count), tmp_path / f"{count}.h5") for count in (2000, 20_000)
    )
    assert (few.samples, many.samples) == (2000, 20_000)
    assert few.peak_bytes > 20 * MIB, "that is no peak of a process with numpy in it"
    grown = many.peak_bytes - few.peak_bytes
    assert grown <= SCATTER_BYTES or bytes_each(few, many) <= ALLOWED_BYTES_EACH, f"\n{few}\n{many}"


def test_a_sample_takes_little_memory_while_it_is_packed(tmp_path: Path) -> None:
    """One more column of numbers, which is eight bytes for each, would be too much."""
    count = 10_000
    for rows in (10, count):
        (source := tmp_path / f"{rows}").mkdir()
        np.save(source / "X.npy", np.zeros((rows, 4), np.uint8))
        np.save(source / "y.npy", np.arange(rows) % 2)
        tracemalloc.start()
        try:
            pack_dataset(source, tmp_path / f"{rows}.h5", progress=False)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 262 * count
