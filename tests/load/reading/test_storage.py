"""Which engine reads what, decided from facts alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colabstage.load.reading.chunks import Filter
from colabstage.load.reading.engines import CacheState, StorageFacts, choose_engine

PLAIN = StorageFacts(
    name="X_train",
    shape=(10, 4, 4, 3),
    dtype=np.dtype(np.float32),
    layout="contiguous",
    offset=4096,
    stored=np.dtype(np.float32),
    chunks=None,
    filters=(),
    fill=np.float32(0),
)
CHUNKED = replace(PLAIN, layout="chunked", offset=None, chunks=(2, 4, 4, 3))
DEFLATE, SHUFFLE, LZF = Filter(1, "deflate", (4,)), Filter(2, "shuffle", (4,)), Filter(32000, "lzf")


def test_plain_storage_is_mapped() -> None:
    """One block of native values on a local disk is mapped."""
    assert choose_engine(PLAIN).name == "mapped"


@pytest.mark.parametrize(
    ("facts", "slow", "reason"),
    [
        (PLAIN, "Google Drive", "Google Drive"),
        (CHUNKED, "Google Drive", "Google Drive"),
        (replace(CHUNKED, filters=(SHUFFLE, LZF)), None, "lzf is left to HDF5"),
        (replace(CHUNKED, stored=None), None, "another form"),
        (replace(PLAIN, layout="virtual", offset=None), None, "virtual"),
        (replace(PLAIN, layout="external"), None, "external"),
        (replace(PLAIN, stored=None), None, "another form"),
        (replace(PLAIN, offset=None), None, "nothing has been written"),
    ],
)
def test_everything_else_goes_through_h5py(facts: StorageFacts, slow: str | None, reason: str) -> None:
    """Each obstacle to mapping leads to h5py, and is named."""
    choice = choose_engine(facts, slow_mount=slow)
    assert choice.name == "h5py"
    assert reason in choice.reason
    assert str(choice) == f"h5py: {choice.reason}"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (CHUNKED, "row is inside one unfiltered chunk"),
        (replace(CHUNKED, stored=np.dtype(">f4")), "row is inside one unfiltered chunk"),
        (replace(CHUNKED, chunks=(2, 2, 4, 3)), "cut through rows"),
        (replace(CHUNKED, filters=(SHUFFLE, DEFLATE)), "(shuffle, deflate), and decoded in threads"),
    ],
)
def test_chunks_are_taken_from_the_mapped_file(facts: StorageFacts, reason: str) -> None:
    """Chunks without filters, or with such as can be undone here, do not need HDF5."""
    choice = choose_engine(facts)
    assert choice.name == "chunks"
    assert reason in choice.reason


def test_the_other_byte_order_is_mapped_too() -> None:
    """A big-endian block is mapped, and the reason says that its bytes are turned."""
    choice = choose_engine(replace(PLAIN, stored=np.dtype(">f4")))
    assert choice.name == "mapped"
    assert "turned round" in choice.reason


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


def test_other_obstacles_come_first() -> None:
    """What cannot be mapped goes through h5py, wherever it is."""
    facts = replace(PLAIN, layout="virtual", offset=None)
    assert choose_engine(facts, cache=CacheState(0, 10**12, 10**9)).name == "h5py"


def test_lengths_in_bytes() -> None:
    """Row and total lengths count all axes and the width of a value."""
    assert PLAIN.row_bytes == 192
    assert PLAIN.nbytes == 1920
