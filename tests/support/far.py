"""A `RemoteFile` in memory whose pace and failures a test decides, and a service with such files."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from colabstage.errors import SourceChangedError
from colabstage.io.files import RetryPolicy
from colabstage.sources.remote import Checksum, RemoteFacts, RemoteFile, TransientError

PIECE = 256 * 1024
# Enough for a file that fails once.
POLICY = RetryPolicy(attempts=2)


def random_bytes(count: int, seed: int = 0) -> bytes:
    """Return bytes in which no two blocks are equal."""
    return np.random.default_rng(seed).bytes(count)


class MemoryFile(RemoteFile):
    """`content`, served as if from far away.

    `answer(number, offset)` decides about request `number` (from 0): `None` serves it, a number cuts it after so many
    bytes, an exception is raised instead of the first byte. `at(position)` is called before each piece. `requests`:
    offset and length of each. `sent`: the number of bytes served.
    """

    def __init__(
        self,
        content: bytes,
        *,
        bytes_per_s: float = 0.0,
        size: int | None = -1,
        version: str = "1",
        checksum: Checksum | None = None,
        ranges: bool = True,
        connections: int = 8,
        piece: int = PIECE,
        answer: Callable[[int, int], int | Exception | None] | None = None,
        at: Callable[[int], object] | None = None,
    ) -> None:
        self.facts = RemoteFacts(
            label="memory:data.bin",
            name="data.bin",
            size=len(content) if size == -1 else size,
            version=version,
            checksum=checksum,
            ranges=ranges,
            connections=connections,
        )
        self.content = content
        self.requests: list[tuple[int, int | None]] = []
        self.sent = 0
        self.open = self.most_open = 0
        self.closed = False
        self._piece = piece
        self._bytes_per_s = bytes_per_s
        self._answer = answer or (lambda number, offset: None)
        self._at = at or (lambda position: None)
        self._lock = threading.Lock()

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Yield the content in pieces, at this file's pace."""
        assert offset == 0 or self.facts.ranges
        with self._lock:
            number = len(self.requests)
            self.requests.append((offset, length))
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            verdict = self._answer(number, offset)
            if isinstance(verdict, Exception):
                raise verdict
            yield from self._pieces(offset, length, verdict)
        finally:
            with self._lock:
                self.open -= 1

    def _pieces(self, offset: int, length: int | None, cut: int | None) -> Iterator[bytes]:
        began = time.monotonic()
        end = len(self.content) if length is None else min(offset + length, len(self.content))
        position, stop = offset, end if cut is None else min(end, offset + cut)
        while position < stop:
            piece = self.content[position : min(position + self._piece, stop)]
            due = began + (position + len(piece) - offset) / self._bytes_per_s if self._bytes_per_s else began
            time.sleep(max(0.0, due - time.monotonic()))
            self._at(position)
            with self._lock:
                self.sent += len(piece)
            position += len(piece)
            yield piece
        if stop < end:
            raise TransientError("the connection was cut")

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True


def changed() -> SourceChangedError:
    """Return a transport's error for another version."""
    return SourceChangedError("another version")


_FILES: dict[str, MemoryFile] = {}


def open_far_file(name: str) -> MemoryFile:
    """Open the file of this name."""
    return _FILES[name]


def open_far(address: str) -> MemoryFile | dict[str, Callable[[], RemoteFile]]:
    """Open `far://NAME`, or all files as a folder at `far://`, as a service from another package."""
    name = address.partition("://")[2]
    return open_far_file(name) if name else {name: partial(open_far_file, name) for name in _FILES}


@contextmanager
def far_service(site: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[[MemoryFile], str]]:
    """Install the service; yields a function that adds a file and returns its address."""
    package = site / "far-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[colabstage.sources]\nfar = {__name__}:open_far\n")
    patch.syspath_prepend(site)

    def put(file: MemoryFile) -> str:
        _FILES[file.facts.name] = file
        return f"far://{file.facts.name}"

    yield put
    _FILES.clear()
