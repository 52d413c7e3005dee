"""Map one file into memory or read it at any place, and prove that it is still the file that was looked at."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.errors import DamagedPackError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Large enough for full speed from a disk, small enough to be interrupted between two and to stay in the processor's
# cache. Larger ones, and POSIX_FADV_SEQUENTIAL, were no faster.
_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What changes when a file is replaced or written to."""

    inode: int
    """Another one when the file was replaced."""
    size: int
    """In bytes."""
    mtime_ns: int | None
    """When it was written to last; `None` of a file whose rows still arrive, which is written to all the time."""

    @classmethod
    def of(cls, status: os.stat_result, *, arriving: bool = False) -> Self:
        """Return the stamp in an answer of `os.stat`."""
        return cls(status.st_ino, status.st_size, None if arriving else status.st_mtime_ns)


class _CheckedFile:
    """An open file that is refused once it is no longer the one expected. Its handle goes with the object."""

    def __init__(self, path: Path, expected: FileStamp) -> None:
        """Open `path`.

        Raises:
            DamagedPackError: it is not the file that `expected` was taken of.
            OSError: it cannot be opened.
        """
        self.path = path
        self._expected = expected
        # Not inherited by programs that are started, whose handles would keep a mount busy.
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._handle).atexit = False
        self.check()

    def check(self) -> None:
        """Make sure that nobody wrote to the file; a mapped file that got shorter would kill the process.

        Raises:
            DamagedPackError: somebody did.
        """
        check_stamp(self.path, os.fstat(self._handle), self._expected)


class MappedFile(_CheckedFile):
    """Map a whole file as read-only bytes. Its handle and mapping go when the last array over it is gone.

    There is no `close`: unmapping under an array that another thread reads would crash the process.
    """

    def __init__(self, path: Path, expected: FileStamp) -> None:
        """Map `path`; raises as `_CheckedFile`."""
        super().__init__(path, expected)
        self.data: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ), np.uint8)


class ReadFile(_CheckedFile):
    """Read a file in parts, each exactly the bytes asked for. May be read by several threads at once."""

    def __init__(self, path: Path, expected: FileStamp, *, at_random: bool) -> None:
        """Open `path`; raises as `_CheckedFile`. `at_random`: whether reading ahead would be in vain."""
        super().__init__(path, expected)
        # Read-ahead would fetch many times the bytes of a row.
        if at_random:
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, start: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous `(n,)` array with the bytes from `start` on.

        Raises:
            DamagedPackError: the file ends before that.
        """
        done = 0
        while done < len(target):
            count = os.preadv(self._handle, [target.data[done:]], start + done)
            # A read of nothing is the file's end, and a second try would not move it.
            if count == 0:
                raise cut_off(self.path, start + len(target), start + done)
            done += count

    def read_blocks(self, start: int, target: NDArray[np.uint8]) -> Iterator[None]:
        """Read as `read_into`, in large blocks, with a pause after each."""
        for block in range(0, len(target), _BLOCK_BYTES):
            self.read_into(start + block, target[block : block + _BLOCK_BYTES])
            yield

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
    """Compare a file's state with the one it had when the dataset was opened.

    Raises:
        DamagedPackError: it was replaced or written to.
    """
    if FileStamp.of(status, arriving=expected.mtime_ns is None) != expected:
        msg = (
            f"'{path}' was replaced or written to after this dataset had opened it "
            f"({expected.size:,} bytes then, {status.st_size:,} now). Open a new dataset_h5 on it."
        )
        raise DamagedPackError(msg)
