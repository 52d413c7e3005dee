"""What the system says about its page cache, and memory that is asked for before it is filled."""

from __future__ import annotations

import mmap
import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage.load.reading.memory import FileStamp, MappedFile, map_memory, resident_part, touch_pages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

PAGES = 20_000


@pytest.fixture
def cold(tmp_path: Path, drop_cache: Callable[[Path], None]) -> Path:
    """A file that is not in memory."""
    path = tmp_path / "cold"
    path.write_bytes(bytes(PAGES * mmap.PAGESIZE))
    drop_cache(path)
    return path


def mapped(path: Path) -> NDArray[np.uint8]:
    return MappedFile(path, FileStamp.of(path.stat())).data


def read_start(path: Path, length: int) -> None:
    with path.open("rb") as file:
        file.read(length)


def test_a_file_just_written_is_resident(tmp_path: Path) -> None:
    """Its pages are where they were written."""
    path = tmp_path / "warm"
    path.write_bytes(bytes(PAGES * mmap.PAGESIZE))
    assert resident_part(mapped(path)) > 0.99


@pytest.mark.disk
def test_the_estimate_follows_what_is_read(cold: Path) -> None:
    """A dropped file is not in memory, one read to its middle is there by half and what is read ahead, then all."""
    data, half = mapped(cold), PAGES // 2 * mmap.PAGESIZE
    assert resident_part(data) == 0
    read_start(cold, half)
    assert 0.45 < resident_part(data) < 0.8
    assert nearly_all_is_there(cold, data[:half])
    assert nearly_all_is_there(cold, data)


def nearly_all_is_there(path: Path, data: NDArray[np.uint8]) -> bool:
    """Whether so much of the file's beginning is in memory once it has been read."""
    for _ in range(20):
        read_start(path, len(data))
        # Not quite all: where memory is wanted, the kernel takes pages back at once, mostly few; they come again.
        if resident_part(data) > 0.99:
            return True
    return False


def test_pages_that_are_asked_for_are_there_before_they_are_filled() -> None:
    """Those that some bytes are in, and no others; what was written before stays."""
    page = mmap.PAGESIZE
    memory = np.frombuffer(map_memory(12 * page, huge_pages=False), np.uint8)
    memory[3 * page] = 7
    touch_pages(memory[2 * page + 5 : 5 * page + 1])
    assert memory[3 * page] == 7
    touch_pages(memory[:0])
    # Before Linux 5.14, and elsewhere, nothing is done.
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    there = [resident_part(memory[number * page : (number + 1) * page]) for number in range(12)]
    if sys.platform == "linux" and release >= (5, 14):
        assert there == [number in range(2, 6) for number in range(12)]
