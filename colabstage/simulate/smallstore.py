"""Cached content of small files: one file that holds their bytes, one that says what lies where.

A file of its own for each of thousands of small contents costs more than the bytes in it: creating files in one
folder is serial work in the kernel.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING

from colabstage.fileops import pwrite_exactly

if TYPE_CHECKING:
    from pathlib import Path

# inode, size in bytes, modification time in ns, offset in bytes
_RECORD = struct.Struct("<QQqQ")
Key = tuple[int, int, int]


class SmallStore:
    """Contents by key. A record is written after its bytes, so what the index names is whole."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self.fd = os.open(folder / "small.data", flags, 0o600)
        self._index_fd = os.open(folder / "small.index", flags | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._offsets: dict[Key, int] = {}
        self._end = 0
        index = (folder / "small.index").read_bytes()
        # A client that was killed may have left half a record at the end.
        index = index[: len(index) // _RECORD.size * _RECORD.size]
        os.ftruncate(self._index_fd, len(index))
        for inode, size, mtime_ns, offset in _RECORD.iter_unpack(index):
            self._offsets[inode, size, mtime_ns] = offset
            self._end = max(self._end, offset + size)

    def find(self, key: Key) -> int | None:
        """Where the content begins in the file `fd`; `None` when it is not here."""
        return self._offsets.get(key)

    def put(self, key: Key, data: bytes) -> int:
        """Keep a content; return its offset."""
        with self._lock:
            offset = self._end
            self._end += len(data)
        pwrite_exactly(self.fd, data, offset)
        return self._note(key, offset)

    def rekey(self, before: Key, after: Key) -> None:
        """Have a content, if it is here, under another key as well."""
        offset = self._offsets.get(before)
        if offset is not None:
            self._note(after, offset)

    def _note(self, key: Key, offset: int) -> int:
        with self._lock:
            self._offsets[key] = offset
            os.write(self._index_fd, _RECORD.pack(*key, offset))
        return offset

    def close(self) -> None:
        """Let go of both files."""
        os.close(self.fd)
        os.close(self._index_fd)
