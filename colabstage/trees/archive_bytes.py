"""The bytes of an archive that lies on this machine's disk, and a file object over any `ByteSource`."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Self

from colabstage.errors import SourceNotFoundError
from colabstage.fileops import pread_exactly

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from colabstage.trees.tree import ByteSource


class LocalBytes:
    """A `ByteSource` over a file: positioned reads on one handle, so any number of threads share it without a lock.

    Args:
        path: the file. It may be unlinked or replaced while this is open; the bytes stay those of the file opened.
        label: its address for messages; the path by default.

    Raises:
        SourceNotFoundError: there is no such file.
    """

    def __init__(self, path: Path, *, label: str | None = None) -> None:
        self._label = str(path) if label is None else label
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            msg = f"There is no file '{path}'."
            raise SourceNotFoundError(msg) from error
        self._size = os.fstat(self._handle).st_size

    @property
    def label(self) -> str:
        """The file's address, for messages."""
        return self._label

    @property
    def size(self) -> int:
        """Length of the whole file in bytes, as it was when opened."""
        return self._size

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`; shorter only at the end of the file."""
        return pread_exactly(self._handle, length, offset)

    def close(self) -> None:
        """Let go of the handle. Calling it twice is fine."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class SourceFile(io.RawIOBase):
    """A read-only, unbuffered file object over a `ByteSource`, for decompressors that want one; for one thread.

    Closing it leaves the source open.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        data = self._source.pread(len(buffer), self._offset)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)
