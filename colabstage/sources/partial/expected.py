"""What readers in all processes of this computer say they will read: a file for each of them, beside the blocks.

A reader writes its visits once and from then on only how far it is, which the one who fetches sees in the mapped file.
The name says whose it is, so what a dead process left counts for nothing and is removed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from typing import TYPE_CHECKING

import numpy as np

from colabstage.io.temporaries import name_and_owner, owner_is_alive, remove_own, rename_own, temp_beside
from colabstage.sources.partial.plan import Reader, Visits

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "expected"
_TICK_NS, _LIST_NS = 50_000_000, 1_000_000_000


class Expected:
    """Tell all processes what one reader will read."""

    def __init__(self, folder: Path, visits: Visits) -> None:
        """Write the visits to a file in `folder`."""
        self._path = temp_beside(folder / _NAME)
        values = np.stack([visits.blocks, visits.first, visits.last]).astype(np.int64)
        # Written beside and then named, so that nobody reads a half. The first number is how far the reader is.
        writing = temp_beside(folder / "expecting")
        handle = os.open(writing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, bytes(8) + values.tobytes())
            self._map = mmap.mmap(handle, 8 + values.nbytes)
        finally:
            os.close(handle)
        rename_own(writing, self._path)
        self._reached = np.frombuffer(self._map, np.int64, 1)

    def reached(self, rows: int) -> None:
        """Tell that the first so many rows are done with."""
        self._reached[0] = rows

    def close(self) -> None:
        """Take it back. Calling it twice is fine."""
        remove_own(self._path)


class Readers:
    """Look at what all readers say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_at = self._listed_at = -1
        self._open: dict[str, tuple[Reader, mmap.mmap]] = {}

    def look(self) -> bool:
        """Look how far readers are; whether some have come or gone since."""
        changed, now, written = False, time.time_ns(), self._folder.stat().st_mtime_ns
        # What is written in the same tick of the file system's clock is distinguished by looking again; and whoever
        # died has changed nothing.
        if written != self._seen_at or now - written < _TICK_NS or now - self._listed_at > _LIST_NS:
            self._seen_at, self._listed_at = written, now
            changed = self._list()
        for reader, mapped in self._open.values():
            reader.reached = int.from_bytes(mapped[:8], "little")
        return changed

    @property
    def all(self) -> list[Reader]:
        """Return every reader's visits, and how far it is."""
        return [reader for reader, _ in self._open.values()]

    def _list(self) -> bool:
        there = {path.name: path for path in self._folder.iterdir() if _is_alive(path)}
        gone = [name for name in self._open if name not in there]
        for name in gone:
            del self._open[name]
        come = [path for name, path in there.items() if name not in self._open]
        for path in come:
            # It may have been taken back this moment.
            with contextlib.suppress(FileNotFoundError):
                self._open[path.name] = _read(path)
        return bool(gone or come)


def _is_alive(path: Path) -> bool:
    """Tell whether a file is what a living process expects; what a dead one left is removed."""
    parts = name_and_owner(path)
    if parts is None or parts[0] != _NAME:
        return False
    if owner_is_alive(parts[1]) is True:
        return True
    remove_own(path)
    return False


def _read(path: Path) -> tuple[Reader, mmap.mmap]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)
    return Reader(Visits(*np.frombuffer(mapped, np.int64, offset=8).reshape(3, -1))), mapped
