"""Memory for batches, used again and again, but never while somebody still looks at it.

A fresh array for every batch is zeroed and mapped page by page by the kernel, which costs as much as the copy into it.
A ring of buffers overwrites what the caller kept. So the pool lends an array, and takes its memory back when the
array and everything made from it (slices, tensors) is gone: numpy keeps the lent array alive as the base of its views,
torch as the owner of its storage, and a finalizer on it returns the memory.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike, NDArray

# A block of writable memory: a mapping, or a view of pinned memory. Never a numpy array (see `lend`).
Block = mmap.mmap | memoryview

# Below this, malloc's own reuse is faster than a mapping of our own, and two pages would be rounded up to.
_SMALLEST_BYTES = 64 * 1024


class BufferPool:
    """Lends arrays and reuses their memory. Every method may be called from any thread.

    What is lent is bounded by what the caller keeps; what waits to be lent again by `max_idle` blocks.
    """

    def __init__(self, max_idle: int, allocate: Callable[[int], Block] | None = None) -> None:
        """`allocate`: makes a block of so many bytes; by default ordinary memory of this process."""
        self._allocate = allocate or _map_memory
        # No lock: finalizers run wherever the last reference dies, also inside `lend` of the same thread.
        # A deque's append and pop are atomic, and at its full length it lets the oldest block go.
        self._idle: deque[Block] = deque(maxlen=max_idle)

    def lend(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised C-contiguous array; its memory comes back when the last view of it is dropped."""
        wanted = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
        if nbytes < _SMALLEST_BYTES:
            return np.empty(shape, wanted)
        block = self._take_block(nbytes)
        # The base of this array is the block, not another array. So numpy, which shortens chains of views, stops
        # at it, and it outlives every view.
        array = np.ndarray(shape, wanted, buffer=block)
        weakref.finalize(array, self._idle.append, block).atexit = False
        return array

    @property
    def idle(self) -> int:
        """Number of blocks that wait to be lent again."""
        return len(self._idle)

    def _take_block(self, nbytes: int) -> Block:
        with contextlib.suppress(IndexError):
            # The block that came back last: its lines may still be in the processor's cache.
            block = self._idle.pop()
            if nbytes <= len(block):
                return block
        return self._allocate(nbytes)


def _map_memory(nbytes: int) -> mmap.mmap:
    # Private, so that a forked process never writes into its parent's batches.
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block
