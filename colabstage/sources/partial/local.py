"""The part of a pack that is here: for each of its files a sparse one of the same length and layout, a table of all
blocks, and locks by which readers in any process keep blocks from being let go.

All processes of this computer share them. The table notes a block once its bytes have the hash that they should have
and are written, and forgets it before they are given back. A kill, at any moment, therefore leaves no noted block that
is wrong. After a crash of the machine the disk may have kept the note and lost the bytes: the table says in which boot
it was written, and notes of another one count only once their bytes have been hashed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import NotSupportedHereError
from colabstage.h5.in_part import PART_MARK, with_mark, with_signature
from colabstage.io.files import hash_block, pread_exactly, punch_hole, pwrite_exactly, reserve, typed_write_errors
from colabstage.io.workspace import current_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.sources.partial.plan import FileSet

# Behind the byte of every block there may be.
_TURN = 1 << 60
_LOOK_S = 0.002
_BUSY = (errno.EAGAIN, errno.EACCES)


# The kernel's locks on ranges of an empty file, a byte for each block, that belong to an open handle: a process that is
# killed holds none a moment later, and whoever fetches needs to know of nobody.
class Pins:
    """The locks of one process on the blocks of one file."""

    def __init__(self, path: Path) -> None:
        """Take the path of the file that locks are on; it is made."""
        self._path = path
        self._lock, self._waiting = threading.Lock(), threading.Lock()
        # Held in a child alone, right after the fork.
        self._reopening = threading.Lock()
        self._pid = os.getpid()
        self._open()
        self._counts: dict[int, int] = {}

    @contextlib.contextmanager
    def held(self, blocks: Iterable[int]) -> Iterator[None]:
        """Keep blocks from being let go while the context lasts, whether or not they are here."""
        runs = list(_runs(sorted(blocks)))
        self._after_fork()
        with self._lock:
            for start, stop in runs:
                # Whoever lets one go has the lock for as long as a hole takes.
                _set(self._reading, start, stop, fcntl.F_RDLCK, wait=True)
                for block in range(start, stop):
                    self._counts[block] = self._counts.get(block, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                for start, stop in runs:
                    for block in range(start, stop):
                        self._counts[block] -= 1
                        if not self._counts[block]:
                            del self._counts[block]
                            _set(self._reading, block, block + 1, fcntl.F_UNLCK)

    @contextlib.contextmanager
    def alone(self, block: int) -> Iterator[bool]:
        """Keep readers from a block while the context lasts; yields whether it could be had, since nobody reads it."""
        self._after_fork()
        had = _set(self._evicting, block, block + 1, fcntl.F_WRLCK)
        try:
            yield had
        finally:
            if had:
                _set(self._evicting, block, block + 1, fcntl.F_UNLCK)

    @contextlib.contextmanager
    def turn(self, check: Callable[[], object]) -> Iterator[None]:
        """Be the only one in all processes who waits for blocks; `check` is called while others are, and may raise."""
        self._after_fork()
        waiting = self._waiting
        while not waiting.acquire(timeout=_LOOK_S):
            check()
        try:
            while not _set(self._evicting, _TURN, _TURN + 1, fcntl.F_WRLCK):
                check()
                time.sleep(_LOOK_S)
            try:
                yield
            finally:
                _set(self._evicting, _TURN, _TURN + 1, fcntl.F_UNLCK)
        finally:
            waiting.release()

    def _open(self) -> None:
        # Two handles, so that readers of this very process keep a block from being let go as well.
        self._reading, self._evicting = _open(self._path), _open(self._path)
        self._close = weakref.finalize(self, _close_all, [self._reading, self._evicting])
        self._close.atexit = False

    def _after_fork(self) -> None:
        # A child shares its parent's handles, and would release what its parent holds; its lock may be locked there.
        if self._pid == os.getpid():
            return
        with self._reopening:
            if self._pid != os.getpid():
                self._close()
                self._lock, self._waiting, self._counts = threading.Lock(), threading.Lock(), {}
                self._open()
                # At last: another thread of the child that sees it goes on with these.
                self._pid = os.getpid()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _close_all(handles: list[int]) -> None:
    while handles:
        os.close(handles.pop())


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield blocks[start], blocks[place - 1] + 1
            start = place


def _set(handle: int, start: int, stop: int, kind: int, *, wait: bool = False) -> bool:
    """Set or end a lock; whether it could be had."""
    request = struct.pack("hhqqi", kind, os.SEEK_SET, start, stop - start, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


# What the table says of a block. Of one with edges only, the bytes of rows that reach over its ends are here.
MISSING, WHOLE, EDGES, UNPROVED = 0, 1, 2, 3
PAGE_BYTES = 4096
# Of the table: eight bytes name the boot, then come the counters, then of each block two lengths and four bytes, and a
# moment.
_WORLD_BYTES, _COUNTERS = 8, 8
_HEAD_BYTES = _WORLD_BYTES + 8 * _COUNTERS
# The third number is free: an earlier version counted something there.
FETCHED, EVICTED, CAPACITY, CONTENT = 0, 1, 3, 4
TABLE, FETCHER = "blocks", "fetcher"


@dataclass(frozen=True, eq=False, slots=True)
class Edges:
    """Say of each block which bytes stay when it is let go: those of rows that are in two blocks."""

    heads: NDArray[np.int64]
    """Length of what stays at its beginning."""
    tails: NDArray[np.int64]
    """Length of what stays at its end."""

    @property
    def nbytes(self) -> int:
        """Return what all edges take on the disk, in whole pages."""
        pages = -(-self.heads // PAGE_BYTES) + -(-self.tails // PAGE_BYTES) + (self.tails > 0)
        return int(pages.sum()) * PAGE_BYTES

    @classmethod
    def none(cls, blocks: int) -> Edges:
        """Return those of so many blocks of which nothing stays."""
        return cls(np.zeros(blocks, np.int64), np.zeros(blocks, np.int64))


class LocalPart:
    """The sparse files and their table. May be used from several threads, and in processes made by fork.

    There is no `close`: its handles go with it. A thread that writes late must not find another file behind a number.

    `paths`: the sparse files. Of each block, `state`: what the table says of it; `wanted`: 1 if somebody waits for it;
    `failures`: how often it could not be fetched; `failed_at`: when the latest try that failed had begun (monotonic);
    `kept`: 1 if it is never let go; `edges`: what stays of it otherwise.
    `counters`: bytes `FETCHED` and `EVICTED` by everybody; `CAPACITY`: how many blocks may be here beside
    those that are kept, 0 before that is known.
    """

    def __init__(self, folder: Path, files: FileSet, *, gives_back: bool = True) -> None:
        """Open the part in `folder`, which exists; nothing of it is here if it is new.

        `gives_back`: whether bytes that are not noted are given back, as a limit asks for. Where none does, all disks
        will do, and what somebody else left in the file is hashed before it is fetched again.

        Raises:
            NotSupportedHereError: this disk cannot give back parts of a file.
            NotEnoughSpaceError, TargetNotWritableError: nothing can be written there.
        """
        self.files, self.gives_back = files, gives_back
        self.paths = tuple(folder / one.name for one in files.files)
        count = files.blocks
        self._handles: list[int] = []
        # Closed with this object, however many are open by then.
        weakref.finalize(self, _close_all, self._handles).atexit = False
        # A copy that noted nothing may have left one.
        self._is_left = False
        with typed_write_errors(self.paths[0]):
            is_new = not (folder / TABLE).exists()
            for path, one in zip(self.paths, files.files, strict=True):
                self._handles.append(handle := _open(path))
                here = os.fstat(handle).st_size
                self._is_left |= here > 0 and is_new
                if here < one.manifest.size:
                    # The last byte alone gives it its length; blocks come before.
                    os.pwrite(handle, b"\0", one.manifest.size - 1)
                self._mark(handle)
            self._map = _map_table(folder / TABLE, _HEAD_BYTES + 28 * count)
            self.pins = Pins(folder / "readers")
        self.counters = np.frombuffer(self._map, np.int64, _COUNTERS, _WORLD_BYTES)
        lengths = np.frombuffer(self._map, np.int64, 2 * count, _HEAD_BYTES)
        self.edges = Edges(lengths[:count], lengths[count:])
        columns = np.frombuffer(self._map, np.uint8, 4 * count, _HEAD_BYTES + 16 * count).reshape(4, count)
        self.state, self.wanted, self.kept, self.failures = columns
        # Behind the rest, where an earlier version had nothing.
        self.failed_at = np.frombuffer(self._map, np.float64, count, _HEAD_BYTES + 20 * count)

    def settle(self, kept: NDArray[np.bool_], edges: Edges, capacity: int) -> None:
        """Note what stays here, and how many other blocks may be."""
        if not (np.array_equal(self.edges.heads, edges.heads) and np.array_equal(self.edges.tails, edges.tails)):
            # What is left of blocks that were let go are other bytes now.
            self.state[self.state == EDGES] = MISSING
            self.edges.heads[:], self.edges.tails[:] = edges.heads, edges.tails
        self.kept[:] = kept
        self.counters[CAPACITY] = capacity

    def begin(self) -> None:
        """Take the part over, as the one who fetches: give back what is not noted, and doubt notes of another boot."""
        state, world = self.state, current_world().encode()
        content = int.from_bytes(bytes.fromhex(self.files.digest)[:7], "little")
        if self.counters[CONTENT] not in (0, content) or (self._is_left and not self.gives_back):
            # What was noted of another content, perhaps with more blocks, proves nothing; blocks may be the same.
            self.edges.heads[:] = self.edges.tails[:] = self.kept[:] = 0
            state[:] = UNPROVED
        self.counters[CONTENT] = content
        if self._map[:_WORLD_BYTES] != world:
            # Before the new name is noted: who dies in between doubts them again.
            state[state == WHOLE] = UNPROVED
            state[state == EDGES] = MISSING
            self._map[:_WORLD_BYTES] = world
        self.wanted[:] = 0
        if self.gives_back:
            for block in np.flatnonzero((state == MISSING) | (state == EDGES)).tolist():
                self._give_back(block, whole=state[block] == MISSING)

    def put(self, block: int, data: bytes) -> None:
        """Write a block that was verified, and note it."""
        number, offset, _ = self.files.locate(block)
        with typed_write_errors(self.paths[number]):
            pwrite_exactly(self._handles[number], with_mark(data, offset) if self.gives_back else data, offset)
        self.state[block] = WHOLE
        self.counters[FETCHED] += len(data)

    def prove(self, block: int) -> bool:
        """Hash a block that was noted in another boot, and note it again if it is right; whether it is."""
        number, offset, length = self.files.locate(block)
        data = with_signature(pread_exactly(self._handles[number], length, offset), offset)
        right = hash_block(data) == self.files.hashes[block]
        self.state[block] = WHOLE if right else MISSING
        return right

    def let_go(self, block: int) -> bool:
        """Give back the bytes of a block but for its edges; whether that was possible, because nobody reads it."""
        with self.pins.alone(block) as alone:
            if not alone:
                return False
            kept = bool(self.edges.heads[block] or self.edges.tails[block]) and self.state[block] == WHOLE
            # First: who dies now leaves bytes that nobody counts on.
            self.state[block] = EDGES if kept else MISSING
            self._give_back(block, whole=not kept)
        self.counters[EVICTED] += self.files.lengths[block]
        return True

    def let_go_of(self) -> NDArray[np.bool_]:
        """Return which blocks take room that could be another's."""
        taken: NDArray[np.bool_] = ((self.state == WHOLE) | (self.state == UNPROVED)) & (self.kept == 0)
        return taken

    def read(self, address: int, length: int) -> bytes:
        """Return bytes of blocks of one file that are here."""
        number, offset = self.files.find(address)
        return with_signature(pread_exactly(self._handles[number], length, offset), offset)

    @property
    def disk_bytes(self) -> int:
        """Return what the sparse files take on the disk now."""
        return sum(os.fstat(handle).st_blocks for handle in self._handles) * 512

    def _mark(self, handle: int) -> None:
        """Have HDF5 refuse a file of which some blocks may go."""
        if self.gives_back:
            os.pwrite(handle, PART_MARK, 0)

    def _give_back(self, block: int, *, whole: bool) -> None:
        number, offset, length = self.files.locate(block)
        head, tail = (0, 0) if whole else (int(self.edges.heads[block]), int(self.edges.tails[block]))
        # The end of the last page of a file would stay for ever otherwise.
        stop = offset + length - tail
        is_last = offset + length == self.files.files[number].manifest.size
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


def _map_table(path: Path, length: int) -> mmap.mmap:
    handle = _open(path)
    try:
        if os.fstat(handle).st_size != length:
            # Nothing is noted in zeros. Several may do this at once, before any of them has noted anything.
            reserve(handle, length)
        return mmap.mmap(handle, length)
    finally:
        os.close(handle)


def is_part(folder: Path) -> bool:
    """Tell whether a folder holds a part of a file, as `LocalPart` and whoever fetches for it make one."""
    return not folder.is_symlink() and (folder / TABLE).is_file() and (folder / FETCHER).is_file()
