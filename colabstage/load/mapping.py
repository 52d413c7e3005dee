"""One file mapped into memory, and the proof that it is still the file that was looked at."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.errors import DamagedPackError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What changes when a file is replaced or written to."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The stamp in an answer of `os.stat`."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class MappedFile:
    """A whole file as read-only bytes. Its handle and mapping go when the last array over it is gone.

    There is no `close`: unmapping under an array that another thread reads would crash the process.
    """

    def __init__(self, path: Path, expected: FileStamp) -> None:
        """Map `path`.

        Raises:
            DamagedPackError: it is not the file that `expected` was taken of.
            OSError: it cannot be opened.
        """
        self._path = path
        self._expected = expected
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._handle).atexit = False
        self.check()
        self.data: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ), np.uint8)

    def check(self) -> None:
        """Make sure that nobody wrote to the file; a mapped file that got shorter would kill the process.

        Raises:
            DamagedPackError: somebody did.
        """
        check_stamp(self._path, os.fstat(self._handle), self._expected)


def check_stamp(path: Path, status: os.stat_result, expected: FileStamp) -> None:
    """Compare a file's state with the one it had when the dataset was opened.

    Raises:
        DamagedPackError: it was replaced or written to.
    """
    if FileStamp.of(status) != expected:
        msg = (
            f"'{path}' was replaced or written to after this dataset had opened it "
            f"({expected.size:,} bytes then, {status.st_size:,} now). Open a new dataset_h5 on it."
        )
        raise DamagedPackError(msg)
