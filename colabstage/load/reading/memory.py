"""How much may be kept in memory for reading."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import NotEnoughSpaceError
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What stays free when samples are kept in memory: the training process itself needs about this much.
_RESERVE_BYTES = 1_000_000_000
# Of a processor's cache line.
_ALIGNMENT_BYTES = 64
# From here on, copies of rows are so long that the processor's own copying instruction makes them.
_LARGE_BYTES = 4096


def spare_memory(free_memory_bytes: int) -> int:
    """What of the free memory may be filled with samples, in bytes."""
    return max(0, free_memory_bytes - _RESERVE_BYTES)


def check_memory(needed_bytes: int, free_memory_bytes: int, what: str, *, remedy: str) -> None:
    """Make sure that samples fit into memory before any of them is read.

    Args:
        needed_bytes: how much they take.
        free_memory_bytes: how much is free, the reserve included.
        what: what needs it, as the subject of a sentence.
        remedy: what to do instead, as a sentence.

    Raises:
        NotEnoughSpaceError: they do not fit; the message has both figures.
    """
    spare = spare_memory(free_memory_bytes)
    if needed_bytes > spare:
        msg = f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(spare)} can be spared. {remedy}"
        raise NotEnoughSpaceError(msg)


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialised array like `np.empty`'s, a large one aligned to the processor's cache lines.

    `np.empty` begins 16 bytes behind a page. Rows that begin at a page, as in files that colabstage packs, are copied
    there at a sixth of the rate by AMD's Zen 3 and 4, which mistake the copy for one that overlaps.
    """
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if nbytes < _LARGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + nbytes].view(dtype).reshape(shape)
