"""A `RemoteFile` in memory whose pace and failures a test decides; and a subprocess that fetches from one, slowly."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import SourceChangedError
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation, ProgressStep
from colabstage.sources.arriving import fetch_file
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.sources.remote import Checksum

PIECE = 256 * 1024
MIB = 1024 * 1024
# Enough for what fails once.
POLICY = RetryPolicy(attempts=2)


def random_bytes(count: int, seed: int = 0) -> bytes:
    """Bytes of which no two blocks are equal."""
    return np.random.default_rng(seed).bytes(count)


class MemoryFile(RemoteFile):
    """`content`, as if it were far away.

    `answer(number, offset)` decides over request `number` (from 0): `None` serves it, a number cuts it after so many
    bytes, an exception is raised in place of the first byte. `at(position)` is called before each piece.
    `requests`: offset and length of each. `sent`: bytes that were handed out.
    """

    def __init__(
        self,
        content: bytes,
        *,
        latency_s: float = 0.0,
        bytes_per_s: float = 0.0,
        size: int | None = -1,
        version: str = "1",
        checksum: Checksum | None = None,
        ranges: bool = True,
        connections: int = 8,
        answer: Callable[[int, int], int | Exception | None] | None = None,
        at: Callable[[int], None] | None = None,
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
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._answer = answer or (lambda number, offset: None)
        self._at = at or (lambda position: None)
        self._lock = threading.Lock()

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """The content, in pieces, at the pace of this file."""
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
        began = time.monotonic() + self._latency_s
        end = len(self.content) if length is None else min(offset + length, len(self.content))
        position, stop = offset, end if cut is None else min(end, offset + cut)
        while position < stop:
            piece = self.content[position : min(position + PIECE, stop)]
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
        """Remember it."""
        self.closed = True


def changed() -> SourceChangedError:
    """What a transport says when the version is another one."""
    return SourceChangedError("another version")


class _Saying(ProgressStep):
    """Prints the sum after each advance."""

    def __init__(self) -> None:
        self._total = 0
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._total += amount
            sys.stdout.write(f"{self._total}\n")
            sys.stdout.flush()


def main() -> None:
    """Fetch: remotes.py TARGET SIZE SEED BYTES_PER_S prints bytes as they come, then "kept BYTES sent BYTES"."""
    target, size, seed, bytes_per_s = sys.argv[1:]
    source = MemoryFile(random_bytes(int(size), int(seed)), bytes_per_s=float(bytes_per_s), connections=2)
    done = fetch_file(source, Path(target), step=_Saying(), cancellation=Cancellation(), policy=POLICY)
    sys.stdout.write(f"kept {done.kept_bytes} sent {source.sent}\n")


if __name__ == "__main__":
    main()
