"""How much of a mapped file the system holds in memory."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Looking at every page of a large file takes seconds; these many pages in a row, at these many places, a millisecond.
_WINDOW_PAGES = 64
_WINDOWS = 64


def resident_part(mapped: NDArray[np.uint8]) -> float:
    """Estimate which part of mapped bytes is in memory, from a fixed number of places.

    Args:
        mapped: uint8 `(n,)` over a file's mapping.

    Returns:
        0 to 1; 1 where the system does not tell, as for files that this user may not write to.
    """
    first = mapped.ctypes.data // mmap.PAGESIZE
    last = -(-(mapped.ctypes.data + len(mapped)) // mmap.PAGESIZE)
    if len(mapped) == 0:
        return 1.0
    if last - first <= _WINDOWS * _WINDOW_PAGES:
        return _resident_pages(first, last - first) / (last - first)
    starts = np.linspace(first, last - _WINDOW_PAGES, _WINDOWS).astype(np.int64)
    return sum(_resident_pages(start, _WINDOW_PAGES) for start in starts.tolist()) / (_WINDOWS * _WINDOW_PAGES)


def _resident_pages(first: int, count: int) -> int:
    """How many of `count` pages from page number `first` of this process's memory are resident."""
    flags = np.empty(count, np.uint8)
    ask = _mincore()
    if ask is None or ask(first * mmap.PAGESIZE, count * mmap.PAGESIZE, flags.ctypes.data) != 0:
        return count
    return int((flags & 1).sum())


@cache
def _mincore() -> Any:
    function = getattr(ctypes.CDLL(None), "mincore", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return function
