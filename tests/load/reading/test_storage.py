"""How a dataset is read, decided from facts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colabstage.load.reading.fields import CacheState, Storage, choose_engine

PLAIN = Storage("X_train", (10, 4, 4, 3), np.dtype(np.float32), offset=4096)


def test_plain_storage_is_mapped() -> None:
    """One block of native values on a local disk is mapped."""
    assert choose_engine(PLAIN).name == "mapped"
    assert (PLAIN.row_bytes, PLAIN.nbytes) == (192, 1920)


@pytest.mark.parametrize(
    ("facts", "slow", "reason"),
    [(PLAIN, "Google Drive", "Google Drive"), (replace(PLAIN, why_foreign="it is virtual"), None, "it is virtual")],
)
def test_everything_else_goes_through_h5py(facts: Storage, slow: str | None, reason: str) -> None:
    """Each obstacle to mapping leads to h5py, and is named; a foreign file with the line that packs it."""
    choice = choose_engine(facts, slow_mount=slow, path=Path("a.h5"))
    assert choice.name == "h5py"
    assert reason in choice.reason
    assert ("pack_dataset('a.h5', 'packed.h5')" in choice.reason) == bool(facts.why_foreign)


@pytest.mark.parametrize(
    ("cache", "engine", "reason"),
    [
        (CacheState(1, 50_000_000_000, 8_000_000_000), "mapped", "100% of it in memory"),
        (CacheState(0.8, 50_000_000_000, 8_000_000_000), "mapped", "80% of it in memory"),
        (CacheState(0.79, 7_000_000_000, 8_000_000_000), "mapped", "read through once"),
        (CacheState(0, 7_100_000_000, 8_000_000_000), "read", "7.1 GB do not fit into 7 GB"),
        (CacheState(0.5, 50_000_000_000, 500_000_000), "read", "50 GB do not fit into 0 B"),
    ],
)
def test_what_is_in_memory_decides_how_a_plain_file_is_read(cache: CacheState, engine: str, reason: str) -> None:
    """Resident files are mapped, cold ones read through once where they fit, and row by row where they do not."""
    choice = choose_engine(PLAIN, cache=cache)
    assert choice.name == engine
    assert reason in choice.reason
