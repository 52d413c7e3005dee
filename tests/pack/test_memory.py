"""Packing uses bounded memory: the peak does not grow with the number of images."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks._small_jpegs import write_small_jpegs
from benchmarks.scale import ALLOWED_BYTES_EACH, bytes_each, packing
from colabstage.layouts.table import numbered_samples
from colabstage.options import Images, SampleTable, Values
from colabstage.pack import plan as plan_module
from colabstage.pack.plan import SplitPlan, StoredField, split_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def _unread(index: int) -> bytes:
    """Rows that are never read."""
    raise NotImplementedError


def test_planning_makes_no_columns_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assigning samples takes the memory of the result, and finding which splits have any takes two columns more. Each
    further one would be eight bytes for every sample, just when packing needs most."""
    count = 100_000
    monkeypatch.setattr(plan_module, "_PLACED_TOGETHER", 1000)
    names = [f"{number:06}.jpg" for number in range(count)]
    rows = SampleTable(
        "image_folder", names, Images(numbered_samples("x", "", count, 10, _unread)), Values(np.zeros(count, int))
    )
    splits = split_rows(rows, None, seed=0)
    field = StoredField("x", (4,), np.dtype(np.uint8))
    plans = [SplitPlan(name, samples) for name, samples in splits.items()]
    # Sorting needs half a column besides its result; whether that is counted here depends on numpy's version.
    numbers = np.random.default_rng(0).permutation(count)
    counted = max(0, _peak_of(lambda: np.argsort(numbers, kind="stable")) - 8 * count)
    assert _peak_of(lambda: split_rows(rows, None, seed=0)) < 28 * count + counted
    assert _peak_of(lambda: field.places(plans, {"X_train": 4096}, count)) < 10 * count
    labelled = replace(rows, classes=("a", "b"))
    assert labelled.summary()[1] == ("classes", "2: a ('x[0]'), b")
    assert _peak_of(labelled.summary) < 3 * count


def _peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes in use during a call, its result included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
