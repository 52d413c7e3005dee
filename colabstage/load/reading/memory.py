"""Memory for reading: files that are mapped or read at any position, how much may be used, reused buffers, kept decoded
images, and how much of a file the system caches.

Before a file's bytes are used as examined, the file is proved to be the examined one.
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
from functools import cache, cached_property
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

    # The number of the field, the row, and the form of the image.
    Key = tuple[int, int, int]

# A disk's full speed, interruptible in between. Larger ones, and POSIX_FADV_SEQUENTIAL, were no faster.
_BLOCK_BYTES = 4 * 1024 * 1024


class FileStamp(NamedTuple):
    """What changes when a file is replaced or written to."""

    inode: int
    size: int
    mtime_ns: int | None
    """When it was last written to; `None` for a file whose rows still arrive, which is written to all the time."""

    @classmethod
    def of(cls, status: os.stat_result, *, arriving: bool = False) -> Self:
        return cls(status.st_ino, status.st_size, None if arriving else status.st_mtime_ns)


class OpenedFile:
    """An open file that is refused once it is no longer the expected one. Its handle closes with the object. Several
    threads may read at once, each exactly the bytes asked for."""

    def __init__(self, path: Path, expected: FileStamp, *, at_random: bool = False) -> None:
        """Open `path`; refuse it if `expected` was not taken from it."""
        self.path = path
        self._expected = expected
        # Not inherited by child programs, whose handles would keep a mount busy.
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            msg = f"'{path}' was there when this dataset was opened, and is not any more. Was it moved or deleted?"
            raise SourceNotFoundError(msg) from error
        except OSError as error:
            raise translate_read_error(error, str(path), 1) from error
        weakref.finalize(self, os.close, self._handle).atexit = False
        self.check()
        # Read-ahead would fetch many times the bytes of a row. If a mount refuses the hint, it is read without.
        if at_random:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def check(self) -> None:
        """Raise DamagedPackError if somebody wrote to the file; if a mapped one got shorter, reading it would kill the
        process."""
        try:
            found = os.fstat(self._handle)
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error
        check_stamp(self.path, found, self._expected)

    @cached_property
    def data(self) -> NDArray[np.uint8]:
        """Map the whole file, until the last array over it is gone: unmapping under an array that another thread reads
        would crash the process."""
        return self._map(mmap.ACCESS_READ)

    def private(self) -> NDArray[np.uint8]:
        """Map the file once more, for libraries that refuse read-only memory: writes stay in this process."""
        return self._map(mmap.ACCESS_COPY)

    def _map(self, access: int) -> NDArray[np.uint8]:
        try:
            return np.frombuffer(mmap.mmap(self._handle, 0, access=access), np.uint8)
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error

    def read_into(self, start: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous `(n,)` array with the bytes from `start` on."""
        done = 0
        try:
            # An empty read is the file's end, and a second try would not move it.
            while done < len(target) and (count := os.preadv(self._handle, [target.data[done:]], start + done)):
                done += count
        except OSError as error:
            raise translate_read_error(error, str(self.path), 1) from error
        if done < len(target):
            raise cut_off(self.path, start + len(target), start + done)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to `stop` of the file that was opened; raises as `check` and `read_into`."""
        self.check()
        # Separate memory, because decoders keep their input for a while.
        target = np.empty(stop - start, np.uint8)
        self.read_into(start, target)
        return target.tobytes()

    def read_blocks(self, start: int, target: NDArray[np.uint8]) -> None:
        """Read as `read_into`, in large blocks, so that Ctrl-C works in between."""
        for block in range(0, len(target), _BLOCK_BYTES):
            self.read_into(start + block, target[block : block + _BLOCK_BYTES])

    def read_through(self, start: int, length: int) -> Iterator[None]:
        """Read a part of the file once, so that the system caches it, with a pause after each block."""
        scratch = np.empty(min(length, _BLOCK_BYTES), np.uint8)
        for block in range(0, length, _BLOCK_BYTES):
            self.read_into(start + block, scratch[: min(_BLOCK_BYTES, length - block)])
            yield


def cut_off(path: Path, wanted: int, size: int) -> DamagedPackError:
    """Return the error for a file that ends before its contents do; both in bytes."""
    return DamagedPackError(
        f"'{path}' is cut off: its samples reach to byte {wanted:,} of a file of {size:,}. Copy or stage it again."
    )


def check_stamp(path: Path, status: os.stat_result, expected: FileStamp) -> None:
    """Raise DamagedPackError if a file was replaced or written to since the dataset was opened."""
    if FileStamp.of(status, arriving=expected.mtime_ns is None) != expected:
        msg = (
            f"'{path}' was replaced or written to after this dataset had opened it "
            f"({expected.size:,} bytes then, {status.st_size:,} now). Close it where it is written, then open a new "
            "dataset_h5 on it."
        )
        raise DamagedPackError(msg)


# What stays free when samples are kept in memory: the training process itself needs about this much.
_RESERVE_BYTES = 1_000_000_000
# A processor's cache line.
_ALIGNMENT_BYTES = 64
# From this length on, copies of rows use the processor's own copying instruction.
_LARGE_BYTES = 4096

# One thread copies this in about the time that dividing it between two takes, in trips through Python's lock: groups of
# batches of 32x32x3 came at 1.5 times the rate when one thread copied each.
SHARE_BYTES = 8 * 1024 * 1024


def spare_memory(free_memory_bytes: int) -> int:
    """Return how many bytes of the free memory samples may fill."""
    return max(0, free_memory_bytes - _RESERVE_BYTES)


def check_memory(needed_bytes: int, free_memory_bytes: int, what: str, *, remedy: str) -> None:
    """Raise NotEnoughSpaceError, with both figures and the `remedy`, if `what` does not fit into memory."""
    spare = spare_memory(free_memory_bytes)
    if needed_bytes > spare:
        msg = f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(spare)} can be spared. {remedy}"
        raise NotEnoughSpaceError(msg)


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an uninitialised array like `np.empty`, aligned to cache lines if it is large: `np.empty` begins 16 bytes
    into a page, and from there AMD's Zen 3 and 4 copy rows that begin at a page at a sixth of the rate."""
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    # Objects are pointers, so their memory must be initialised.
    if nbytes < _LARGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + nbytes].view(dtype).reshape(shape)


# A block of writable memory: a mapping, or a view of pinned memory. Never a numpy array (see `borrow`).
Block = mmap.mmap | memoryview

# Below this, malloc's own reuse is faster than a mapping of our own, and rounding up to whole pages would waste memory.
_SMALLEST_BYTES = 64 * 1024


# The kernel zeroes and maps a fresh array for every batch page by page, which costs as much as the copy into it. A ring
# of buffers would overwrite batches that the caller keeps. So the pool lends an array, and takes its memory back when
# the array and everything made from it (slices, tensors) is gone: numpy keeps the borrowed array alive as the base of
# its views, torch as the owner of its storage, and a finalizer on it returns the memory.
class BufferPool:
    """Lend arrays and reuse their memory, in any thread. Idle memory is bounded by `max_idle` blocks."""

    def __init__(self, max_idle: int, allocate: Callable[[int], Block] | None = None) -> None:
        """Take `allocate`, which makes a block of so many bytes; by default ordinary memory of this process."""
        self._allocate = allocate or map_memory
        # No lock: finalizers run wherever the last reference dies, even inside `borrow` of the same thread. A deque's
        # append and pop are atomic, and a full one drops its oldest block.
        self._idle: deque[Block] = deque(maxlen=max_idle)
        # Released by the thread that returns a block. Not a `Condition`, because a finalizer might find its lock taken
        # by its own thread.
        self._returned = threading.Lock()

    def borrow(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Borrow an uninitialised C-contiguous array; its memory comes back when the last view of it is dropped."""
        wanted = np.dtype(dtype)
        nbytes = math.prod(shape) * wanted.itemsize
        if nbytes < _SMALLEST_BYTES:
            return np.empty(shape, wanted)
        block = self._take_block(nbytes)
        # The base of this array is the block, not another array. So numpy, which shortens chains of views, stops at it,
        # and it outlives every view.
        array = np.ndarray(shape, wanted, buffer=block)
        weakref.finalize(array, self._take_back, block).atexit = False
        return array

    def expect_return(self) -> None:
        """Begin to watch for a returned block, for `await_return`: one thread at a time."""
        self._returned.acquire(blocking=False)

    def await_return(self, seconds: float) -> bool:
        """Wait until a block has been returned since `expect_return`; `False` if none was in so many seconds."""
        return self._returned.acquire(timeout=seconds)

    def _take_back(self, block: Block) -> None:
        self._idle.append(block)
        # No thread waits, or another block was returned at this moment.
        with contextlib.suppress(RuntimeError):
            if self._returned.locked():
                self._returned.release()

    def _take_block(self, nbytes: int) -> Block:
        with contextlib.suppress(IndexError):
            # The block returned last: its lines may still be in the processor's cache.
            block = self._idle.pop()
            # A smaller one is dropped: batches have grown, so it would never fit again.
            if nbytes <= len(block):
                return block
        return self._allocate(nbytes)


def map_memory(nbytes: int, *, huge_pages: bool = True) -> mmap.mmap:
    """Map `nbytes` zero bytes, private to this process; they go back to the system with the last array over them."""
    # Private, so that a forked process never writes into its parent's batches.
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        if huge_pages:
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


# Linux 5.14 and later; Python 3.11 has no name for it.
_POPULATE_WRITE = 23


def touch_pages(memory: NDArray[np.uint8]) -> None:
    """Have the system provide all pages of fresh memory in one call, right before they are filled: touching each page
    for the first time costs a page fault. Does nothing on systems that cannot."""
    if sys.platform != "linux" or not len(memory):
        return  # on other systems the number may mean something else
    start, end = memory.ctypes.data, memory.ctypes.data + len(memory)
    start -= start % mmap.PAGESIZE
    # The result does not matter: missing pages come as they are written to. By `ctypes`, because mmap's own method
    # holds the interpreter lock meanwhile.
    _system_call("madvise", ctypes.c_int)(start, -(-(end - start) // mmap.PAGESIZE) * mmap.PAGESIZE, _POPULATE_WRITE)


@cache
def _system_call(name: str, last: Any) -> Any:
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, last]
    return function


# Mapped and unmapped as a whole. It holds so many images that the unused end does not matter.
_SLAB_BYTES = 32 * 1024 * 1024
# Measuring the free memory takes 0.1 ms, and a batch perhaps one.
_LOOK_S = 1.0


class KeptImage(NamedTuple):
    pixels: NDArray[Any]
    facts: Any


@dataclass(slots=True, eq=False)
class _Slab:
    memory: NDArray[np.uint8]
    used: int = 0
    keys: list[Key] = field(default_factory=list)


class KeptImages:
    """A cache of decoded images within a memory budget. Thread-safe; lookups take no lock. A forked child reads what
    its parent had cached, and adds nothing.

    Nothing is evicted for a newer image: an epoch visits each image once, in a new order each time, so none is needed
    sooner than another. Memory is therefore a sequence of slabs, each filled from one end.
    """

    def __init__(self, most_bytes: int) -> None:
        self.pid = os.getpid()
        self.most_bytes = most_bytes
        self._held: dict[Key, KeptImage] = {}
        self._slabs: list[_Slab] = []
        self._bytes = 0
        self._next_look = time.monotonic() + _LOOK_S
        self._grows_at = 0.0
        # Held while memory is allocated, never while anything is decoded or copied.
        self._lock = threading.Lock()

    def find(self, key: Key) -> KeptImage | None:
        # One look-up in a dict is atomic.
        return self._held.get(key)

    def fits(self, nbytes: int) -> bool:
        """Estimate whether an image of this length would be kept."""
        if os.getpid() != self.pid:
            return False
        slab = self._slabs[-1] if self._slabs else None
        if slab is not None and nbytes <= len(slab.memory) - slab.used:
            return True
        return nbytes <= self.most_bytes - self._bytes and time.monotonic() >= self._grows_at

    def keep(self, key: Key, pixels: NDArray[Any], facts: Any = None) -> None:
        """Store a copy, if there is room for it; only in the process that made this."""
        if pixels.nbytes == 0 or key in self._held or os.getpid() != self.pid:
            return
        with self._lock:
            slab, memory = self._reserve(pixels.nbytes)
        if slab is None:
            return
        # Not the whole slab at once: these pages are then in the processor's cache when they are filled.
        touch_pages(memory)
        copy = memory[: pixels.nbytes].view(pixels.dtype).reshape(pixels.shape)
        copy[...] = pixels
        with self._lock:
            # Meanwhile `release` may have dropped the slab, or another thread may have kept the same image.
            if slab in self._slabs and key not in self._held:
                self._held[key] = KeptImage(copy, facts)
                slab.keys.append(key)

    def attend(self) -> None:
        """Give memory back if the system runs short of it. Called for each batch; checks once a second."""
        now = time.monotonic()
        if now < self._next_look or os.getpid() != self.pid:
            return
        self._next_look = now + _LOOK_S
        if self._bytes and (lacking := _RESERVE_BYTES - read_resources().free_memory_bytes) > 0:
            self.release(lacking)

    def release(self, nbytes: int | None = None) -> None:
        """Give back at least `nbytes`, by default all. Images that are being read are freed a moment later."""
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
        """Return the slab and the memory for an image; `None` and nothing if there is no room."""
        slab = self._slabs[-1] if self._slabs else None
        if slab is None or nbytes > len(slab.memory) - slab.used:
            slab = self._grow(nbytes)
        if slab is None:
            return None, np.empty(0, np.uint8)
        start = slab.used
        # Every image begins at a cache line.
        slab.used = min(len(slab.memory), start - (-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        return slab, slab.memory[start : slab.used]

    def _grow(self, nbytes: int) -> _Slab | None:
        """Map a new slab for an image of this length; `None` if there is no room for one."""
        now, left = time.monotonic(), self.most_bytes - self._bytes
        if nbytes > left or now < self._grows_at:
            return None
        size = max(nbytes, min(left, _SLAB_BYTES))
        # Beside the training process's own memory, twice the slab must be free, or it would be given back at once.
        if spare_memory(read_resources().free_memory_bytes) < 2 * size:
            self._grows_at = now + _LOOK_S
            return None
        # In small pages: on a host that takes back its virtual machines' free memory in huge pages, an image in huge
        # pages cost three times the kernel's time.
        slab = _Slab(np.frombuffer(map_memory(size, huge_pages=False), np.uint8))
        self._slabs.append(slab)
        self._bytes += size
        return slab


class KeptSlot:
    """A weak reference to a reader's cache of decoded images, which is freed with the loader that made it."""

    _kept: weakref.ref[KeptImages] | None = None

    def fill(self, kept: KeptImages) -> None:
        self._kept = weakref.ref(kept)

    @property
    def kept(self) -> KeptImages | None:
        return None if self._kept is None else self._kept()

    def __reduce__(self) -> tuple[type[KeptSlot], tuple[()]]:
        # Memory means nothing in another process.
        return KeptSlot, ()


# Checking every page of a large file takes seconds; so many in a row, at so many places, a millisecond.
_WINDOW_PAGES = 64
_WINDOWS = 64


def resident_part(mapped: NDArray[np.uint8]) -> float:
    """Estimate which part of mapped bytes is in memory, 0 to 1, from a fixed number of places; 1 if the system does not
    tell, as for files that this user may not write to."""
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
    ask, place = _system_call("mincore", ctypes.c_void_p), flags.ctypes.data
    for number, start in enumerate(starts):
        if ask(start * mmap.PAGESIZE, count * mmap.PAGESIZE, place + number * count) != 0:
            return 1.0
    return float((flags & 1).mean())
