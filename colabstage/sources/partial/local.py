"""The part of a file that is here: a sparse file with the whole's length and layout, and a table of its blocks.

All processes of this computer share both. The table notes a block once its bytes have the hash that they should have
and are written, and forgets it before they are given back. A kill, at any moment, therefore leaves no noted block that
is wrong. After a crash of the machine the disk may have kept the note and lost the bytes: the table says in which boot
it was written, and notes of another one count only once their bytes have been hashed again.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import weakref
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import NotSupportedHereError
from colabstage.io.files import hash_block, pread_exactly, pwrite_exactly
from colabstage.io.retry import typed_write_errors
from colabstage.io.temporaries import current_world
from colabstage.sources.partial.pins import Pins

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest

# What the table says of a block. Of one with edges only, the bytes of rows that reach over its ends are here.
MISSING, WHOLE, EDGES, UNPROVED = 0, 1, 2, 3
PAGE_BYTES = 4096
# Of the table: eight bytes name the boot, then come the counters, then of each block two lengths and four bytes.
_WORLD_BYTES, _COUNTERS = 8, 8
_HEAD_BYTES = _WORLD_BYTES + 8 * _COUNTERS
FETCHED, EVICTED, FOUND, CAPACITY, CONTENT = 0, 1, 2, 3, 4
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
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
    """The sparse file and its table. May be used from several threads, and in processes made by fork.

    There is no `close`: its handles go with it. A thread that writes late must not find another file behind a number.

    `path`: the sparse file. Of each block, `state`: what the table says of it; `wanted`: 1 if somebody waits for it;
    `failures`: how often it could not be fetched; `kept`: 1 if it is never let go; `edges`: what stays of it otherwise.
    `counters`: bytes `FETCHED` and `EVICTED` by everybody, and what the fetcher `FOUND` here; `CAPACITY`: how many
    blocks may be here beside those that are kept, 0 before that is known.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest, *, gives_back: bool = True) -> None:
        """Open the part in `folder`, which exists; nothing of it is here if it is new.

        `gives_back`: whether bytes that are not noted are given back, as a limit asks for. Where none does, all disks
        will do, and what somebody else left in the file is hashed before it is fetched again.

        Raises:
            NotSupportedHereError: this disk cannot give back parts of a file.
            NotEnoughSpaceError, TargetNotWritableError: nothing can be written there.
        """
        self.path, self.manifest, self.ranges = folder / name, manifest, manifest.ranges
        self.gives_back = gives_back
        count = len(self.ranges)
        with typed_write_errors(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            weakref.finalize(self, os.close, self._file).atexit = False
            # A copy that noted nothing may have left it.
            self._is_left = os.fstat(self._file).st_size > 0 and not (folder / TABLE).exists()
            if os.fstat(self._file).st_size < manifest.size:
                # The last byte alone gives it its length; blocks come before.
                os.pwrite(self._file, b"\0", manifest.size - 1)
            self._map = _map_table(folder / TABLE, _HEAD_BYTES + 20 * count)
            self.pins = Pins(folder / "readers")
        self.counters = np.frombuffer(self._map, np.int64, _COUNTERS, _WORLD_BYTES)
        lengths = np.frombuffer(self._map, np.int64, 2 * count, _HEAD_BYTES)
        self.edges = Edges(lengths[:count], lengths[count:])
        columns = np.frombuffer(self._map, np.uint8, 4 * count, _HEAD_BYTES + 16 * count).reshape(4, count)
        self.state, self.wanted, self.kept, self.failures = columns

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
        content = int.from_bytes(hashlib.sha256("".join(self.manifest.hashes).encode()).digest()[:7], "little")
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
        self.counters[FOUND] = sum(self.ranges[block][1] for block in np.flatnonzero(state == WHOLE).tolist())

    def put(self, block: int, data: bytes) -> None:
        """Write a block that was verified, and note it."""
        with typed_write_errors(self.path):
            pwrite_exactly(self._file, data, self.ranges[block][0])
        self.state[block] = WHOLE
        self.counters[FETCHED] += len(data)

    def prove(self, block: int) -> bool:
        """Hash a block that was noted in another boot, and note it again if it is right; whether it is."""
        offset, length = self.ranges[block]
        right = hash_block(pread_exactly(self._file, length, offset)) == self.manifest.hashes[block]
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
        self.counters[EVICTED] += self.ranges[block][1]
        return True

    def let_go_of(self) -> NDArray[np.bool_]:
        """Return which blocks take room that could be another's."""
        taken: NDArray[np.bool_] = ((self.state == WHOLE) | (self.state == UNPROVED)) & (self.kept == 0)
        return taken

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of blocks that are here."""
        return pread_exactly(self._file, length, offset)

    @property
    def disk_bytes(self) -> int:
        """Return what the sparse file takes on the disk now."""
        return os.fstat(self._file).st_blocks * 512

    def _give_back(self, block: int, *, whole: bool) -> None:
        offset, length = self.ranges[block]
        head, tail = (0, 0) if whole else (int(self.edges.heads[block]), int(self.edges.tails[block]))
        # The end of the last page of the file would stay for ever otherwise.
        stop = offset + length - tail
        stop = stop if tail or block + 1 < len(self.ranges) else -(-stop // PAGE_BYTES) * PAGE_BYTES
        if offset + head >= stop:
            return
        if _fallocate()(self._file, _PUNCH_HOLE | _KEEP_SIZE, offset + head, stop - offset - head) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            msg = (
                f"The disk of '{self.path.parent}' cannot give back parts of a file, which disk_limit= needs. Choose a "
                "local_dir= on ext4, XFS, Btrfs or tmpfs."
            )
            raise NotSupportedHereError(msg)
        raise OSError(number, os.strerror(number), str(self.path))


def _map_table(path: Path, length: int) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(handle).st_size != length:
            # Nothing is noted in zeros. Several may do this at once, before any of them has noted anything.
            os.pwrite(handle, b"\0", length - 1)
        return mmap.mmap(handle, length)
    finally:
        os.close(handle)


def is_part(folder: Path) -> bool:
    """Tell whether a folder holds a part of a file, as `LocalPart` and whoever fetches for it make one."""
    return not folder.is_symlink() and (folder / TABLE).is_file() and (folder / FETCHER).is_file()


@cache
def _fallocate() -> Any:
    # Python has no call that gives back a part of a file.
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        msg = "This system cannot give back parts of a file, which disk_limit= needs; Linux can."
        raise NotSupportedHereError(msg)
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
