"""Locks by which readers in any process keep blocks from being let go, and which end with their holder.

They are the kernel's locks on ranges of an empty file, a byte for each block, that belong to an open handle. A process
that is killed holds none a moment later, and whoever fetches needs to know of nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

# Behind the byte of every block there may be.
_TURN = 1 << 60
_LOOK_S = 0.002
_BUSY = (errno.EAGAIN, errno.EACCES)


class Pins:
    """The locks of one process on the blocks of one file."""

    def __init__(self, path: Path) -> None:
        """Take the path of the file that locks are on; it is made."""
        self._path = path
        self._lock, self._waiting = threading.Lock(), threading.Lock()
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
        self._close = weakref.finalize(self, _close, self._reading, self._evicting)
        self._close.atexit = False

    def _after_fork(self) -> None:
        # A child shares its parent's handles, and would release what its parent holds; its lock may be locked there.
        if self._pid != os.getpid():
            self._close()
            self._lock, self._waiting, self._counts, self._pid = threading.Lock(), threading.Lock(), {}, os.getpid()
            self._open()


def _close(*handles: int) -> None:
    for handle in handles:
        os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


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
