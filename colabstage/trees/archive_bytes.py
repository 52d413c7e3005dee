"""The bytes that trees read from: a local file's, a temporary one's, somebody else's; and a file object over any."""

from __future__ import annotations

import ctypes
import io
import os
from typing import TYPE_CHECKING

from colabstage.errors import SourceNotFoundError
from colabstage.io.files import Closing, pread_exactly

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Cancellation
    from colabstage.trees.tree import ByteSource

# From Linux's falloc.h.
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
# Holes begin and end at multiples of this: every file system's block size divides it.
_HOLE_BYTES = 64 * 1024


class LocalBytes(Closing):
    """A `ByteSource` over a file: positioned reads on one handle, so any number of threads share it without a lock.

    Args:
        path: the file. It may be unlinked or replaced while this is open; the bytes stay those of the file opened.
        label: its address for messages; the path by default.
        follow: whether `path` may be a link.

    Raises:
        SourceNotFoundError: there is no such file.
    """

    def __init__(self, path: Path, *, label: str | None = None, follow: bool = True) -> None:
        self._label = str(path) if label is None else label
        # Set before opening, which may fail: `__del__` runs all the same.
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        except FileNotFoundError as error:
            msg = f"There is no file '{path}'."
            raise SourceNotFoundError(msg) from error
        self._size = os.fstat(self._handle).st_size

    @property
    def label(self) -> str:
        """Return the file's address, for messages."""
        return self._label

    @property
    def size(self) -> int:
        """Return the length of the whole file in bytes, as it was when opened."""
        return self._size

    def fileno(self) -> int:
        """Return the handle, for a process that shall read the same file."""
        return self._handle

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        return pread_exactly(self._handle, length, offset)

    def close(self) -> None:
        """Release the handle. Calling it twice is fine."""
        # Forgotten before it is closed: its number may be another file's a moment later.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class TemporaryBytes(LocalBytes):
    """The bytes of a file that colabstage itself made and nobody else needs: what has been used can be given back.

    Never for a user's file. Where the file system cannot make holes, the file keeps its size and nothing is lost.

    Args:
        path: the file; opened for writing too.
        label: its address for messages.
    """

    def __init__(self, path: Path, *, label: str | None = None) -> None:
        super().__init__(path, label=label)
        # A handle of its own: readers need none that can write.
        self._writer = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._released = 0

    def release_before(self, offset: int) -> None:
        """Give the disk back what is before `offset`; those bytes read as zeros from now on."""
        # Only whole blocks go: the part of one before `offset` may be shared with what is still read.
        start, end = self._released, offset // _HOLE_BYTES * _HOLE_BYTES
        if end > start and punch_hole(self._writer, start, end - start):
            self._released = end

    def close(self) -> None:
        """Release both handles. Calling it twice is fine."""
        super().close()
        handle, self._writer = getattr(self, "_writer", -1), -1
        if handle >= 0:
            os.close(handle)


def punch_hole(handle: int, offset: int, length: int) -> bool:
    """Free the disk space of a part of a file, which reads as zeros then; whether the file system can do that."""
    # Python has no fallocate with a mode; a system without it keeps the space, and nothing else changes.
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if fallocate is None:
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(handle, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0)


class SharedBytes(Closing):
    """Somebody else's bytes, for a tree that closes what it reads from: closing this leaves `source` open."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.label, self.size, self.pread = source.label, source.size, source.pread

    def close(self) -> None:
        """Leave the source open: it is its owner's to close."""


class RangeBytes:
    """A part of a `ByteSource` as one of its own; closing it leaves the whole open."""

    def __init__(self, source: ByteSource, start: int, size: int, *, label: str) -> None:
        self._source = source
        self._start = start
        self.size = size
        self.label = label

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        length = min(length, self.size - offset)
        return self._source.pread(length, self._start + offset) if length > 0 else b""

    def close(self) -> None:
        """Do nothing: the whole stays open."""


class RequestedBytes:
    """A file that a service gives in parts, each asked for when it is read.

    Args:
        request: gives so many bytes from an offset on: `request(length, offset)`.
        size: of the file, in bytes.
        label: its address, for messages.
    """

    def __init__(self, request: Callable[[int, int], bytes], size: int, *, label: str) -> None:
        self._request = request
        self.size = size
        self.label = label

    def pread(self, length: int, offset: int) -> bytes:
        """Ask for up to `length` bytes at `offset`; shorter only at the end."""
        length = min(length, self.size - offset)
        return self._request(length, offset) if length > 0 else b""

    def close(self) -> None:
        """Do nothing: what it asks is somebody else's to close."""


def owners_bytes(source: ByteSource) -> ByteSource:
    """Return the source itself; of shared bytes, the one that they share."""
    return source.source if isinstance(source, SharedBytes) else source


class SourceFile(io.RawIOBase):
    """A read-only, unbuffered file object over a `ByteSource`, for libraries that want one; for one thread at a time.

    Closing it leaves the source open. Each read looks at `cancellation` first.
    """

    def __init__(self, source: ByteSource, cancellation: Cancellation | None = None) -> None:
        super().__init__()
        self._source = source
        self._cancellation = cancellation
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._source.size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        if self._cancellation is not None:
            self._cancellation.check()
        view = memoryview(buffer).cast("B")
        data = self._source.pread(len(view), self._offset)
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)
