"""The local blocks of remote files: sparse files of the same lengths, and a table with the hash of each block.

Blocks are counted through all files in sequence, so that one order, one table and one limit are enough for any number
of files. An *address* counts bytes in the same way: each file begins with a new block, at the block's number times the
length of a block. In a single file, addresses are its offsets.

The table notes a block once its bytes are verified and written, and forgets it before they are given back. So a kill,
at any moment, leaves no noted block that is wrong. After a crash of the machine the disk may have kept the note and
lost the bytes: the table says in which boot it was written, and notes from another boot count only once their bytes
have been hashed again. If several processes share the files, each protects the blocks that it reads, writes or fetches
by locks, which end with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import mmap
import os
import struct
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from colabstage.errors import NotSupportedHereError, SourceReadError
from colabstage.h5.arrival import PART_MARK, with_mark, with_signature
from colabstage.io.files import hash_block, pread_exactly, punch_hole, pwrite_exactly, reserve, typed_write_errors
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.workspace import current_world, short_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

TABLE, FETCHER, _READERS = "blocks", "fetcher", "readers"
# The states of a block. With edges only, just the bytes of rows that cross its ends are local; `FILLING` is `WRITING`
# between such edges, which can be read meanwhile.
MISSING, WHOLE, EDGES, UNPROVED, WRITING, FILLING = 0, 1, 2, 3, 4, 5
PAGE_BYTES = 4096
# The table begins with eight bytes that name the boot, and counters.
_WORLD_BYTES, _COUNTERS = 8, 8
_HEAD_BYTES = _WORLD_BYTES + 8 * _COUNTERS
_BLOCK_ROW_BYTES = 28
FETCHED, EVICTED, CONTENT, CAPACITY, _FORMAT = 0, 1, 2, 3, 5
# Tables of version 0.1 have a zero here, and are not read.
_THIS_FORMAT = 0x636C6231


class Layout:
    """How the blocks of some files are numbered.

    For the files, `names` and `sizes`. For each block, `file_of`: the number of its file; `offsets`: where in that file
    it begins; `lengths`: its length in bytes; `hashes`: its hash, "" if that is unknown before it arrives.
    """

    def __init__(
        self, names: Sequence[str], sizes: Sequence[int], block_bytes: int, hashes: Sequence[str] | None = None
    ) -> None:
        self.names, self.sizes, self.block_bytes = tuple(names), tuple(sizes), block_bytes
        counts = [-(-size // block_bytes) for size in sizes]
        self.blocks, self.size = sum(counts), sum(sizes)
        self.hashes = ("",) * self.blocks if hashes is None else tuple(hashes)
        self.firsts = np.cumsum([0, *counts])[:-1]
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self.offsets = (np.arange(self.blocks) - self.firsts[self.file_of]) * block_bytes
        self.lengths = np.minimum(block_bytes, np.array(sizes, np.int64)[self.file_of] - self.offsets)

    def span(self, block: int) -> tuple[int, int]:
        """Return the addresses at which a block begins and ends."""
        begin = block * self.block_bytes
        return begin, begin + int(self.lengths[block])

    def begin(self, number: int) -> int:
        return int(self.firsts[number]) * self.block_bytes

    def end(self, number: int) -> int:
        return self.begin(number) + self.sizes[number]

    def find(self, address: int) -> tuple[int, int]:
        """Return the number of the file that contains an address, and the offset in it."""
        number = int(self.file_of[address // self.block_bytes])
        return number, address - self.begin(number)


# Bytes of the lock file: `_CLAIM` plus its number for a block that is being fetched, one for the process that waits,
# and one for the process that makes room. A block that is read is locked at its own number.
_CLAIM, _TURN, _ROOM = 1 << 59, 1 << 60, (1 << 60) + 1
# How long another process may take to make room, and how often to look.
_MOMENT_S, _LOOK_S = 60.0, 0.001


# The kernel's locks on ranges of an empty file, which belong to an open handle: a killed process releases them at once.
class Locks:
    """The locks of one process on blocks that several processes share."""

    def __init__(self, path: Path) -> None:
        # Two handles, so that readers in this process also protect a block from being evicted.
        self._handles = [_open(path), _open(path)]
        weakref.finalize(self, close_all, self._handles).atexit = False
        self._reset()
        follow_forks(self)

    def _reset(self) -> None:
        self._lock, self._making_room = threading.Lock(), threading.Lock()
        # By the contexts, with which they go even if one's end is interrupted; and what the kernel has locked.
        self._held: weakref.WeakValueDictionary[int, set[int]] = weakref.WeakValueDictionary()
        self._locked: set[int] = set()
        # The thread whose turn it is, if any: under one key, which is set in one step.
        self._turn: dict[int, int] = {}

    def after_fork(self) -> None:
        """Open new handles in a forked child. It shares its parent's, so it would release the parent's locks, and hold
        them after the parent's end."""
        inherited = self._handles[:]
        self._handles[:] = [_open(f"/proc/self/fd/{handle}") for handle in inherited]
        close_all(inherited)
        self._reset()

    @contextlib.contextmanager
    def held(self, blocks: Iterable[int]) -> Iterator[None]:
        """Protect blocks from eviction within the context, whether or not they are local."""
        own = set(blocks)
        try:
            with self._lock:
                self._held[id(own)] = own
                self._follow()
            yield
        finally:
            with self._lock:
                self._held.pop(id(own), None)
                self._follow()

    def _follow(self) -> None:
        """Lock what is held, and nothing else."""
        held = set[int]().union(*self._held.values())
        for start, stop in _runs(sorted(held - self._locked)):
            # Another process holds the lock for as long as punching a hole takes.
            _set(self._handles[0], start, stop, fcntl.F_RDLCK, wait=True)
            self._locked.update(range(start, stop))
        for start, stop in _runs(sorted(self._locked - held)):
            _set(self._handles[0], start, stop, fcntl.F_UNLCK)
            self._locked.difference_update(range(start, stop))

    def claim(self, block: int) -> bool:
        """Begin to fetch a block; return whether no other process does."""
        return self.take(_CLAIM + block)

    def unclaim(self, block: int) -> None:
        self.release(_CLAIM + block)

    @contextlib.contextmanager
    def making_room(self) -> Iterator[None]:
        """Be the only one in all processes that changes which blocks may be local; for moments only."""
        with self._making_room:
            self.take(_ROOM, wait=True)
            try:
                yield
            finally:
                self.release(_ROOM)

    def begin_turn(self) -> bool:
        """Try to become the only one in all processes that waits for blocks; return whether that succeeded."""
        if self._turn.setdefault(_TURN, threading.get_ident()) != threading.get_ident():
            return False
        if not (had := self.take(_TURN)):
            self._turn.clear()
        return had

    def end_turn(self) -> None:
        """Let the next one wait, if this thread has the turn."""
        if self._turn.get(_TURN) == threading.get_ident():
            self.release(_TURN)
            self._turn.clear()

    def take(self, byte: int, *, wait: bool = False) -> bool:
        return _set(self._handles[1], byte, byte + 1, fcntl.F_WRLCK, wait=wait)

    def release(self, byte: int) -> None:
        _set(self._handles[1], byte, byte + 1, fcntl.F_UNLCK)


class _Forked(Protocol):
    """An object that must change in a forked child before its use there."""

    def after_fork(self) -> None: ...


@functools.cache
def _forked() -> weakref.WeakSet[_Forked]:
    followed: weakref.WeakSet[_Forked] = weakref.WeakSet()

    def renew() -> None:
        for one in list(followed):
            one.after_fork()

    # One hook for all: hooks can never be removed.
    os.register_at_fork(after_in_child=renew)
    return followed


def follow_forks(one: _Forked) -> None:
    """Call an object's `after_fork` in each forked child, for as long as the object lives."""
    _forked().add(one)


def _open(path: Path | str, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)


def close_all(handles: list[int]) -> None:
    while handles:
        os.close(handles.pop())


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    for _, run in itertools.groupby(enumerate(blocks), lambda one: one[1] - one[0]):
        numbers = [block for _, block in run]
        yield numbers[0], numbers[-1] + 1


def _set(handle: int, start: int, stop: int, kind: int, *, wait: bool = False) -> bool:
    """Lock or release bytes of a file; return whether that was possible, because no other handle has locked them."""
    request, deadline = struct.pack("hhqqi", kind, os.SEEK_SET, start, stop - start, 0), SYSTEM_CLOCK.now() + _MOMENT_S
    while True:
        with contextlib.suppress(BlockingIOError, PermissionError):  # bytes that another handle has locked
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
            return True
        if not wait:
            return False
        if SYSTEM_CLOCK.now() > deadline:
            msg = "Another process that reads this pack stopped while it made room. Continue or end it, then try again."
            raise SourceReadError(msg)
        SYSTEM_CLOCK.sleep(_LOOK_S)


@dataclass(frozen=True, eq=False, slots=True)
class Edges:
    """Which bytes of each block stay when it is evicted: those of rows that span two blocks."""

    heads: NDArray[np.int64]
    tails: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Return the disk space that all edges take, in whole pages."""
        pages = -(-self.heads // PAGE_BYTES) + -(-self.tails // PAGE_BYTES) + (self.tails > 0)
        return int(pages.sum()) * PAGE_BYTES

    @classmethod
    def none(cls, blocks: int) -> Edges:
        """Return edges for so many blocks of which nothing stays."""
        return cls(np.zeros(blocks, np.int64), np.zeros(blocks, np.int64))


class Blocks:
    """The sparse files and their table. May be used from several threads, and in processes made by fork.

    The handles are closed with the object: a thread that writes late must not find another file behind a number.

    `paths`: the sparse files. For each block, `state`: its state in the table; `hashes`: its hash; `wanted`: 1 if a
    process waits for it; `kept`: 1 if it is never evicted; `edges`: what stays of it otherwise. `counters`: bytes
    `FETCHED` and `EVICTED` by all processes; `CAPACITY`: how many blocks may be local besides the kept ones, 0 before
    that is known.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        content: str,
        *,
        shared: bool,
        gives_back: bool,
        is_noted: bool = True,
        shown: Path | None = None,
    ) -> None:
        """Open the files in `folder`, which exists and is for these files and their table alone.

        `content` is a text that identifies the content. `shared`: several processes use the files at once.
        `gives_back`: blocks are evicted, as a limit requires; otherwise any disk will do, and what an earlier copy left
        in the files is hashed before it is fetched again. `is_noted`: the table stays beside the files. `shown`: the
        path that errors of the disk name.
        """
        self.layout, self.gives_back = layout, gives_back
        self.paths = tuple(folder / name for name in layout.names)
        self._shown = [shown or path for path in self.paths]
        self._handles: list[int] = []
        # Closed with this object, however many are open by then.
        weakref.finalize(self, close_all, self._handles).atexit = False
        with typed_write_errors(self._shown[0]):
            self.locks = Locks(folder / _READERS) if shared else None
            length = _HEAD_BYTES + _BLOCK_ROW_BYTES * layout.blocks
            self._map = _map_table(folder / TABLE, length) if is_noted else mmap.mmap(-1, length)
        count = layout.blocks
        self.counters = np.frombuffer(self._map, np.int64, _COUNTERS, _WORLD_BYTES)
        self.hashes = np.frombuffer(self._map, np.uint64, count, _HEAD_BYTES)
        lengths = np.frombuffer(self._map, np.int64, 2 * count, _HEAD_BYTES + 8 * count)
        self.edges = Edges(lengths[:count], lengths[count:])
        columns = np.frombuffer(self._map, np.uint8, 4 * count, _HEAD_BYTES + 24 * count).reshape(4, count)
        self.state, self.kept, self.wanted, _ = columns
        with typed_write_errors(self._shown[0]), self.making_room():
            self._begin(_number_of(content))

    def making_room(self) -> contextlib.AbstractContextManager[None]:
        """Be the only one in all processes that changes which blocks may be local; for moments only."""
        return contextlib.nullcontext() if self.locks is None else self.locks.making_room()

    def _begin(self, content: int) -> None:
        """Open the files, and distrust whatever proves nothing."""
        state, counters, world = self.state, self.counters, current_world().encode()
        is_new = int(counters[_FORMAT]) != _THIS_FORMAT
        if is_new:
            self._map[:] = bytes(len(self._map))
        files = zip(self.paths, self.layout.sizes, strict=True)
        were_filled = [self._open_file(path, size, empty=is_new and self.gives_back) for path, size in files]
        if counters[CONTENT] not in (0, content) or (is_new and any(were_filled)):
            # Notes about other content, perhaps with more blocks, prove nothing; known hashes may.
            self.edges.heads[:] = self.edges.tails[:] = self.kept[:] = 0
            state[:] = UNPROVED if any(self.layout.hashes) else MISSING
        if self.locks is None or self._map[:_WORLD_BYTES] != world:
            state[state == WHOLE], state[state == FILLING] = UNPROVED, WRITING
            for block in np.flatnonzero(state == EDGES).tolist():
                self.forget(block)
        # Last: if a process dies before this, all of it is done again.
        counters[CONTENT], counters[_FORMAT], self._map[:_WORLD_BYTES] = content, _THIS_FORMAT, world
        self.reclaim()

    def _open_file(self, path: Path, size: int, *, empty: bool) -> bool:
        """Open a file and give it its length; return whether something is left in it, as without `empty`."""
        self._handles.append(handle := _open(path, os.O_NOFOLLOW))
        here = os.fstat(handle).st_size
        if here and empty:
            punch_hole(handle, 0, here)
        if here < size:
            # Writing the last byte sets the length; blocks come before it.
            os.pwrite(handle, b"\0", size - 1)
        self._mark(handle)
        return here > 0 and not empty

    def reclaim(self, but: Iterable[int] = ()) -> None:
        """Give back what killed processes were writing; `but`: blocks that this one writes."""
        for block in np.setdiff1d(np.flatnonzero(self.state >= WRITING), list(but)).tolist():
            if self.locks is None or self.locks.claim(block):
                # Another process may have completed it meanwhile.
                if self.state[block] >= WRITING:
                    self.forget(block)
                if self.locks is not None:
                    self.locks.unclaim(block)

    def forget(self, block: int) -> None:
        """Note that a block is not local, and give back its bytes, except edges that were local before."""
        has_edges = self.state[block] == FILLING
        self.state[block] = EDGES if has_edges else MISSING
        if self.gives_back:
            self._give_back(block, whole=not has_edges)

    def settle(self, kept: NDArray[np.bool_], edges: Edges, capacity: int) -> None:
        """Note which blocks stay, and how many others may be local."""
        with self.making_room():
            if not (np.array_equal(self.edges.heads, edges.heads) and np.array_equal(self.edges.tails, edges.tails)):
                # The edges of evicted blocks are other bytes now.
                self.state[self.state == FILLING] = WRITING
                for block in np.flatnonzero(self.state == EDGES).tolist():
                    self.forget(block)
                self.edges.heads[:], self.edges.tails[:] = edges.heads, edges.tails
            self.kept[:] = kept
            self.counters[CAPACITY] = capacity
            # Blocks from a time when more was allowed.
            too_many = max(0, int(self.taken().sum()) - capacity)
            for block in np.flatnonzero(self.taken() & (self.state < WRITING)).tolist()[::-1][:too_many]:
                self.let_go(block)

    def write(self, data: bytes | memoryview, address: int) -> None:
        """Write bytes to their place, without noting them."""
        block = address // self.layout.block_bytes
        if self.state[block] == FILLING:
            # Edges are verified and may be read at this moment; arriving bytes are not.
            begin, end = self.layout.span(block)
            first = max(address, begin + int(self.edges.heads[block]))
            stop = min(address + len(data), end - int(self.edges.tails[block]))
            data, address = data[first - address : max(first, stop) - address], first
        number, offset = self.layout.find(address) if data else (0, 0)
        if self.gives_back and data and not offset:
            data = with_mark(bytes(data), 0)
        with typed_write_errors(self._shown[number]):
            pwrite_exactly(self._handles[number], data, offset)

    def note(self, block: int, digest: str) -> None:
        self.hashes[block] = int(digest, 16)
        self.state[block] = WHOLE
        self.counters[FETCHED] += self.layout.lengths[block]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing here saves a later run a request."""
        return not bool(((self.state == WHOLE) | (self.state == UNPROVED)).any())

    def digest_of(self, block: int) -> str:
        return f"{int(self.hashes[block]):016x}"

    def prove(self, block: int) -> bool:
        """Hash a block that is in doubt, and note it again if it is right; return whether it is."""
        begin, end = self.layout.span(block)
        with contextlib.nullcontext() if self.locks is None else self.locks.held([block]):
            # Another process may have evicted it meanwhile.
            if self.state[block] == UNPROVED:
                found = hash_block(self.read(begin, end - begin))
                right = found == (self.layout.hashes[block] or self.digest_of(block))
                if right:
                    self.hashes[block] = int(found, 16)
                self.state[block] = WHOLE if right else MISSING
            return bool(self.state[block] == WHOLE)

    def let_go(self, block: int) -> bool:
        """Give back the bytes of a block except its edges; return whether that was possible, because none reads it."""
        assert self.locks is not None
        # A block that is read is locked.
        if not self.locks.take(block):
            return False
        try:
            kept = bool(self.edges.heads[block] or self.edges.tails[block]) and self.state[block] == WHOLE
            # Noted first: if a process dies now, no other counts on the bytes.
            self.state[block] = EDGES if kept else MISSING
            self._give_back(block, whole=not kept)
        finally:
            self.locks.release(block)
        self.counters[EVICTED] += self.layout.lengths[block]
        return True

    def taken(self) -> NDArray[np.bool_]:
        """Return which blocks take space that another could use."""
        taken: NDArray[np.bool_] = (self.state != MISSING) & (self.state != EDGES) & (self.kept == 0)
        return taken

    def read(self, address: int, length: int) -> bytes:
        number, offset = self.layout.find(address)
        data = pread_exactly(self._handles[number], length, offset)
        return with_signature(data, offset) if self.gives_back else data

    @property
    def disk_bytes(self) -> int:
        return sum(os.fstat(handle).st_blocks for handle in self._handles) * 512

    def close(self) -> None:
        """Release the files, when no thread uses them any more; the table can still be read."""
        with typed_write_errors(self._shown[0]):
            close_all(self._handles)

    def _mark(self, handle: int) -> None:
        """Make HDF5 refuse a file whose blocks may be evicted."""
        # Once: to readers of a complete file, a write means other content.
        if self.gives_back and os.pread(handle, len(PART_MARK), 0) != PART_MARK:
            os.pwrite(handle, PART_MARK, 0)

    def _give_back(self, block: int, *, whole: bool) -> None:
        number, offset = self.layout.find(block * self.layout.block_bytes)
        length = int(self.layout.lengths[block])
        head, tail = (0, 0) if whole else (int(self.edges.heads[block]), int(self.edges.tails[block]))
        # The end of a file's last page would otherwise stay for ever.
        stop = offset + length - tail
        is_last = offset + length == self.layout.sizes[number]
        stop = stop if tail or not is_last else -(-stop // PAGE_BYTES) * PAGE_BYTES
        if offset + head >= stop:
            return
        try:
            punch_hole(self._handles[number], offset + head, stop - offset - head)
            if not offset:
                self._mark(self._handles[number])
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                error.filename = str(self.paths[number])
                raise
            msg = (
                f"The disk of '{self.paths[number].parent}' cannot give back parts of a file, which disk_limit= needs. "
                "Choose a local_dir= on ext4, XFS, Btrfs or tmpfs, on Linux."
            )
            raise NotSupportedHereError(msg) from error


def _number_of(content: str) -> int:
    return int(short_digest(content, 14), 16)


def _map_table(path: Path, length: int) -> mmap.mmap:
    handle = _open(path)
    try:
        if os.fstat(handle).st_size != length:
            # Zeros note nothing. Several processes may do this at once, before any of them has noted anything.
            reserve(handle, length)
        return mmap.mmap(handle, length)
    finally:
        os.close(handle)


def is_part(folder: Path) -> bool:
    """Return whether a folder holds a part of a pack, as `Blocks` and a fetcher make one."""
    return not folder.is_symlink() and (folder / TABLE).is_file() and (folder / FETCHER).is_file()


def take_lock(folder: Path, *, shared: bool = False) -> int | None:
    """Return a handle that holds the fetchers' lock until it is closed; `None` if another process has it exclusively,
    or at all."""
    handle = _open(folder / FETCHER)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
