"""Manage memory for reading: files that are mapped or read at any place, how much may be used, buffers that are used
again, images that are kept decoded, how much of a file the system holds.

A file that was looked at is proved to be the same still, before its bytes are taken for what the look promised.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from colabstage.errors import DamagedPackError, NotEnoughSpaceError, SourceNotFoundError
from colabstage.io.files import translate_read_error
from colabstage.io.units import format_bytes
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    # Which field of which file, which row of it, and in which form.
    Key = tuple[int, int, int]

# Large enough for full speed from a disk, small enough to be interrupted between two and to stay in the processor's
# cache. Larger ones, and POSIX_FADV_SEQUENTIAL, were no faster.
_BLOCK_BYTES = 4 * 1024 * 1024


class FileStamp(NamedTuple):
    """What changes when a file is replaced or written to."""

    inode: int
    size: int
    mtime_ns: int | None
    """When it was written to last; `None` of a file whose rows still arrive, which is written to all the time."""

    @classmethod
    def of(cls, status: os.stat_result, *, arriving: bool = False) -> Self:
        """Return the stamp in an answer of `os.stat`."""
        return cls(status.st_ino, status.st_size, None if arriving else status.st_mtime_ns)


class _CheckedFile:
    """An open file that is refused once it is no longer the one expected. Its handle goes with the object."""

    def __init__(self, path: Path, expected: FileStamp) -> None:
        """Open `path`; refuse it if it is not the file that `expected` was taken of."""
        self.path = path
        self._expected = expected
        # Not inherited by programs that are started, whose handles would keep a mount busy.
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            msg = f"'{path}' was there when this dataset was opened, and is not any more. Was it moved or deleted?"
            raise SourceNotFoundError(msg) from error
        except OSError as error:
            raise translate_read_error(error, str(path), 1) from error
        weakref.finalize(self, os.close, self._handle).atexit = False
        self.check()

    def check(self) -> None:
        """Raise DamagedPackError if somebody wrote to the file; a mapped one that got shorter would kill the
        process."""
        try:
            found = os.fstat(self._handle)
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error
        check_stamp(self.path, found, self._expected)


class MappedFile(_CheckedFile):
    """Map a whole file as read-only bytes. Its handle and mapping go when the last array over it is gone.

    There is no `close`: unmapping under an array that another thread reads would crash the process.
    """

    def __init__(self, path: Path, expected: FileStamp) -> None:
        """Map `path`; raises as `_CheckedFile`."""
        super().__init__(path, expected)
        try:
            mapping = mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise translate_read_error(error, str(path), 1) from error
        self.data: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)

    def private(self) -> NDArray[np.uint8]:
        """Map the file once more, for libraries that take no read-only memory: what they write stays in this process,
        and copies the pages that it is written to."""
        try:
            return np.frombuffer(mmap.mmap(self._handle, 0, access=mmap.ACCESS_COPY), np.uint8)
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error


class ReadFile(_CheckedFile):
    """Read a file in parts, each exactly the bytes asked for. May be read by several threads at once."""

    def __init__(self, path: Path, expected: FileStamp, *, at_random: bool) -> None:
        """Open `path`; raises as `_CheckedFile`. `at_random`: whether reading ahead would be in vain."""
        super().__init__(path, expected)
        # Read-ahead would fetch many times the bytes of a row.
        if at_random:
            # A mount that does not take the hint is read without it.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, start: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous `(n,)` array with the bytes from `start` on."""
        done = 0
        try:
            # A read of nothing is the file's end, and a second try would not move it.
            while done < len(target) and (count := os.preadv(self._handle, [target.data[done:]], start + done)):
                done += count
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error
        if done < len(target):
            raise cut_off(self.path, start + len(target), start + done)

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` up to `stop`, of the file that was opened; raises as `check` and `read_into`."""
        self.check()
        # Bytes of its own, because decoders keep what they are given for a while.
        target = np.empty(stop - start, np.uint8)
        self.read_into(start, target)
        return target.tobytes()

    def read_blocks(self, start: int, target: NDArray[np.uint8]) -> None:
        """Read as `read_into`, in large blocks, between which Ctrl-C is heard."""
        for block in range(0, len(target), _BLOCK_BYTES):
            self.read_into(start + block, target[block : block + _BLOCK_BYTES])

    def read_through(self, start: int, length: int) -> Iterator[None]:
        """Have the system hold a part of the file in memory, by reading it once, with a pause after each block."""
        scratch = np.empty(min(length, _BLOCK_BYTES), np.uint8)
        for block in range(0, length, _BLOCK_BYTES):
            self.read_into(start + block, scratch[: min(_BLOCK_BYTES, length - block)])
            yield


def cut_off(path: Path, wanted: int, size: int) -> DamagedPackError:
    """Return the error of a file that ends before its contents do; both in bytes."""
    return DamagedPackError(
        f"'{path}' is cut off: its samples reach to byte {wanted:,} of a file of {size:,}. Copy or stage it again."
    )


def check_stamp(path: Path, status: os.stat_result, expected: FileStamp) -> None:
    """Raise DamagedPackError if a file was replaced or written to since the dataset was opened."""
    if FileStamp.of(status, arriving=expected.mtime_ns is None) != expected:
        msg = (
            f"'{path}' was replaced or written to after this dataset had opened it "
            f"({expected.size:,} bytes then, {status.st_size:,} now). Open a new dataset_h5 on it."
        )
        raise DamagedPackError(msg)


# What stays free when samples are kept in memory: the training process itself needs about this much.
_RESERVE_BYTES = 1_000_000_000
# At most this part of the memory that is free holds decoded images: the model, other splits and the page cache come
# first. No less on large machines: an H100 trains a ResNet-50 on 3,780 images/s, and got 2,650 where half of 8,192
# photographs were decoded again in each epoch, 3,100 where none was.
_KEPT_PART = 8
# A processor's cache line.
_ALIGNMENT_BYTES = 64
# From here on, copies of rows are so long that the processor's own copying instruction makes them.
_LARGE_BYTES = 4096

# One thread copies this in about the time that dividing it among two takes, in trips through Python's lock: groups of
# batches of 32x32x3 came at 1.5 times the rate when one thread copied each.
SHARE_BYTES = 8 * 1024 * 1024


def spare_memory(free_memory_bytes: int) -> int:
    """Return what of the free memory may be filled with samples, in bytes."""
    return max(0, free_memory_bytes - _RESERVE_BYTES)


def reserve_lacking(free_memory_bytes: int) -> int:
    """Return how many bytes are missing of what stays free for the training process."""
    return max(0, _RESERVE_BYTES - free_memory_bytes)


def keepable_bytes(free_memory_bytes: int) -> int:
    """Return how much of the free memory may be filled, unasked, with what would otherwise be decoded again."""
    return free_memory_bytes // _KEPT_PART


def check_memory(needed_bytes: int, free_memory_bytes: int, what: str, *, remedy: str) -> None:
    """Raise NotEnoughSpaceError, with both figures and the `remedy`, if samples do not fit into memory; `what` needs
    it."""
    spare = spare_memory(free_memory_bytes)
    if needed_bytes > spare:
        msg = f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(spare)} can be spared. {remedy}"
        raise NotEnoughSpaceError(msg)


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an uninitialised array like `np.empty`'s, a large one aligned to the processor's cache lines: `np.empty`
    begins 16 bytes behind a page, where AMD's Zen 3 and 4 copy rows that begin at a page at a sixth of the rate."""
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    # Objects are pointers, which uninitialised memory must not look like.
    if nbytes < _LARGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + nbytes].view(dtype).reshape(shape)


# A block of writable memory: a mapping, or a view of pinned memory. Never a numpy array (see `borrow`).
Block = mmap.mmap | memoryview

# Below this, malloc's own reuse is faster than a mapping of our own, and two pages would be rounded up to.
_SMALLEST_BYTES = 64 * 1024


# A fresh array for every batch is zeroed and mapped page by page by the kernel, which costs as much as the copy into
# it. A ring of buffers overwrites what the caller kept. So the pool lends an array, and takes its memory back when the
# array and everything made from it (slices, tensors) is gone: numpy keeps the borrowed array alive as the base of its
# views, torch as the owner of its storage, and a finalizer on it returns the memory.
class BufferPool:
    """Lend arrays and reuse their memory. Every method may be called from any thread.

    What is borrowed is bounded by what the caller keeps; what waits to be borrowed again by `max_idle` blocks.
    """

    def __init__(self, max_idle: int, allocate: Callable[[int], Block] | None = None) -> None:
        """Take `allocate`, which makes a block of so many bytes; by default ordinary memory of this process."""
        self._allocate = allocate or map_memory
        # No lock: finalizers run wherever the last reference dies, also inside `borrow` of the same thread.
        # A deque's append and pop are atomic, and at its full length it lets the oldest block go.
        self._idle: deque[Block] = deque(maxlen=max_idle)
        # Released by whoever gives a block back. Not a `Condition`, whose own lock a finalizer might find taken by its
        # own thread.
        self._returned = threading.Lock()

    def borrow(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Borrow an uninitialised C-contiguous array; its memory comes back when the last view of it is dropped."""
        wanted = np.dtype(dtype)
        nbytes = math.prod(shape) * wanted.itemsize
        if nbytes < _SMALLEST_BYTES:
            return np.empty(shape, wanted)
        block = self._take_block(nbytes)
        # The base of this array is the block, not another array. So numpy, which shortens chains of views, stops
        # at it, and it outlives every view.
        array = np.ndarray(shape, wanted, buffer=block)
        weakref.finalize(array, self._take_back, block).atexit = False
        return array

    def expect_return(self) -> None:
        """Begin to look out for a block that comes back, for `await_return`: one thread at a time."""
        self._returned.acquire(blocking=False)

    def await_return(self, seconds: float) -> bool:
        """Wait until a block has come back since `expect_return`; `False` when none did in so many seconds."""
        return self._returned.acquire(timeout=seconds)

    def _take_back(self, block: Block) -> None:
        self._idle.append(block)
        # No thread waits, or another block has come back at this moment.
        with contextlib.suppress(RuntimeError):
            if self._returned.locked():
                self._returned.release()

    def _take_block(self, nbytes: int) -> Block:
        with contextlib.suppress(IndexError):
            # The block that came back last: its lines may still be in the processor's cache.
            block = self._idle.pop()
            # A smaller one is let go: batches have grown, and it would be in the way again.
            if nbytes <= len(block):
                return block
        return self._allocate(nbytes)


def map_memory(nbytes: int, *, huge_pages: bool = True) -> mmap.mmap:
    """Map so many bytes of zeros, of this process alone; they go back to the system with the last array over them."""
    # Private, so that a forked process never writes into its parent's batches.
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        if huge_pages:
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


# Linux 5.14 and later; Python 3.11 has no name for it.
_POPULATE_WRITE = 23


def touch_pages(memory: NDArray[np.uint8]) -> None:
    """Have the system provide all pages of fresh memory by one call, right before they are filled: a page that is
    touched first by what is written to it costs an interrupt. Does nothing where the system cannot."""
    advise = _madvise() if len(memory) else None
    if advise is None:
        return
    start, end = memory.ctypes.data, memory.ctypes.data + len(memory)
    start -= start % mmap.PAGESIZE
    # An answer is of no use: pages that are still missing come as they are written to. By `ctypes`, because mmap's own
    # method holds the interpreter lock meanwhile.
    advise(start, -(-(end - start) // mmap.PAGESIZE) * mmap.PAGESIZE, _POPULATE_WRITE)


@cache
def _madvise() -> Any:
    # Elsewhere the number may mean something else.
    function = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


# Mapped and returned as a whole: enough images that the unused end of a slab does not count.
_SLAB_BYTES = 32 * 1024 * 1024
# Measuring the free memory takes 0.1 ms, and a batch perhaps one.
_LOOK_S = 1.0


class KeptImage(NamedTuple):
    """A decoded image in the cache."""

    pixels: NDArray[Any]
    """Read-only by convention: never handed out."""
    facts: Any


@dataclass(slots=True, eq=False)
class _Slab:
    """One mapping, filled from its start to its end."""

    memory: NDArray[np.uint8]
    used: int = 0
    keys: list[Key] = field(default_factory=list)


class KeptImages:
    """A cache of decoded images within a memory budget. Thread-safe; lookups take no lock.

    The decoder's own result is copied, so batches have the same bytes with and without the cache.

    Nothing is evicted for a newer image: an epoch visits each image once, in another order each time, so none is needed
    sooner than another. Memory is therefore a sequence of slabs, each filled by a moving end.

    A forked child reads what its parent had cached, and adds nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        """Take the budget."""
        self.pid = os.getpid()
        self.most_bytes = most_bytes
        self._held: dict[Key, KeptImage] = {}
        self._slabs: list[_Slab] = []
        self._bytes = 0
        self._next_look = time.monotonic() + _LOOK_S
        self._grows_at = 0.0
        # Held while memory is shared out, never while anything is decoded or copied.
        self._lock = threading.Lock()

    def find(self, key: Key) -> KeptImage | None:
        """Return a cached image."""
        # One look-up in a dict is atomic.
        return self._held.get(key)

    def fits(self, nbytes: int) -> bool:
        """Estimate whether an image of this length would be kept, before doing work that only the cache needs."""
        if os.getpid() != self.pid:
            return False
        slab = self._slabs[-1] if self._slabs else None
        if slab is not None and nbytes <= len(slab.memory) - slab.used:
            return True
        return nbytes <= self.most_bytes - self._bytes and time.monotonic() >= self._grows_at

    def keep(self, key: Key, pixels: NDArray[Any], facts: Any = None) -> None:
        """Cache a copy, if there is room for it."""
        if pixels.nbytes == 0 or key in self._held or os.getpid() != self.pid:
            return
        with self._lock:
            slab, memory = self._reserve(pixels.nbytes)
        if slab is None:
            return
        # Not of the whole slab at once: these pages are in the processor's cache when they are filled.
        touch_pages(memory)
        copy = memory[: pixels.nbytes].view(pixels.dtype).reshape(pixels.shape)
        copy[...] = pixels
        with self._lock:
            # `release` may have dropped the slab meanwhile, or another thread have kept the same image.
            if slab in self._slabs and key not in self._held:
                self._held[key] = KeptImage(copy, facts)
                slab.keys.append(key)

    def attend(self) -> None:
        """Give memory back if the system has become short of it. Called for each batch; looks once a second."""
        now = time.monotonic()
        if now < self._next_look or os.getpid() != self.pid:
            return
        self._next_look = now + _LOOK_S
        if self._bytes and (lacking := reserve_lacking(read_resources().free_memory_bytes)):
            self.release(lacking)

    def release(self, nbytes: int | None = None) -> None:
        """Give back at least `nbytes`, by default all. Images that are being read go a moment later."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            left = 0 if nbytes is None else max(0, self._bytes - nbytes)
            while self._slabs and self._bytes > left:
                slab = self._slabs.pop()
                self._bytes -= len(slab.memory)
                for key in slab.keys:
                    del self._held[key]

    def _reserve(self, nbytes: int) -> tuple[_Slab | None, NDArray[np.uint8]]:
        """Return memory for an image and the slab that it is in; `None` and nothing where there is none."""
        slab = self._slabs[-1] if self._slabs else None
        if slab is None or nbytes > len(slab.memory) - slab.used:
            slab = self._grow(nbytes)
        if slab is None:
            return None, np.empty(0, np.uint8)
        start = slab.used
        # Every image begins at a line of the processor's cache.
        slab.used = min(len(slab.memory), start - (-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        return slab, slab.memory[start : slab.used]

    def _grow(self, nbytes: int) -> _Slab | None:
        """Map a new slab for an image of this length; `None` if it may not be."""
        now, left = time.monotonic(), self.most_bytes - self._bytes
        if nbytes > left or now < self._grows_at:
            return None
        size = max(nbytes, min(left, _SLAB_BYTES))
        # Beside the training process's own memory, twice the slab must be free, or it would be given back at once.
        if spare_memory(read_resources().free_memory_bytes) < 2 * size:
            self._grows_at = now + _LOOK_S
            return None
        # In small pages: where a host takes back free memory of its virtual machines in huge pages, an image in huge
        # pages cost three times the kernel's time.
        slab = _Slab(np.frombuffer(map_memory(size, huge_pages=False), np.uint8))
        self._slabs.append(slab)
        self._bytes += size
        return slab


class KeptSlot:
    """A weak reference to the cache of decoded images of one field.

    Readers only look there: the memory belongs to the loader that made the `KeptImages`, and goes with it.
    """

    def __init__(self, number: int) -> None:
        """Take `number`, which tells this field's rows from others in the same memory."""
        self.number = number
        self._kept: weakref.ref[KeptImages] | None = None

    def fill(self, kept: KeptImages) -> None:
        """Use this memory from now on, as long as anybody holds it."""
        self._kept = weakref.ref(kept)

    @property
    def kept(self) -> KeptImages | None:
        """Return the cache; `None` without one."""
        return None if self._kept is None else self._kept()

    def __reduce__(self) -> tuple[type[KeptSlot], tuple[int]]:
        # Memory means nothing in another process.
        return KeptSlot, (self.number,)


# Looking at every page of a large file takes seconds; these many pages in a row, at these many places, a millisecond.
_WINDOW_PAGES = 64
_WINDOWS = 64


def resident_part(mapped: NDArray[np.uint8]) -> float:
    """Estimate which part of mapped bytes is in memory, 0 to 1, from a fixed number of places; 1 where the system does
    not tell, as for files that this user may not write to."""
    first = mapped.ctypes.data // mmap.PAGESIZE
    last = -(-(mapped.ctypes.data + len(mapped)) // mmap.PAGESIZE)
    if len(mapped) == 0:
        return 1.0
    count = min(last - first, _WINDOWS * _WINDOW_PAGES)
    starts = [first]
    # Otherwise they are few enough to look at all of them.
    if count < last - first:
        count, starts = _WINDOW_PAGES, np.linspace(first, last - _WINDOW_PAGES, _WINDOWS).astype(np.int64).tolist()
    flags = np.empty((len(starts), count), np.uint8)
    ask, place = _mincore(), flags.ctypes.data
    for number, start in enumerate(starts):
        if ask is None or ask(start * mmap.PAGESIZE, count * mmap.PAGESIZE, place + number * count) != 0:
            return 1.0
    return float((flags & 1).mean())


@cache
def _mincore() -> Any:
    function = getattr(ctypes.CDLL(None), "mincore", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return function
