"""Go through a remote file once, from its beginning to its end, and keep none of it.

That is for its checksum, and for the headers of a tar, which has no table of contents: each says where the next one is.
Small members are passed over by reading them, many stretches at the same time; large ones are skipped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from colabstage.io.files import Closing
from colabstage.io.pipeline import DaemonPool
from colabstage.io.retry import RetryPolicy
from colabstage.sources.transfer.connections import read_directly

if TYPE_CHECKING:
    from concurrent.futures import Future

    from colabstage.io.progress import Cancellation, LateStep
    from colabstage.sources.remote import RemoteFile
    from colabstage.trees.tree import ByteSource

STRETCH_BYTES = 4 * 1024 * 1024
# Headers further apart than this on average are asked for one by one: at 100 MB/s what is between them takes longer
# than a round trip.
_FAR_BYTES = 4 * STRETCH_BYTES
# How fast the average follows.
_SHARE = 0.25


class ArchiveWalk(Closing):
    """A `ByteSource` that is read from its beginning to its end until `end`, and as `content` after that.

    Only one thread may read until `end`.
    """

    def __init__(self, content: ByteSource, file: RemoteFile, step: LateStep, cancellation: Cancellation) -> None:
        """Prepare; `content` is closed with this, and `file`, where its bytes come from, is the caller's."""
        self.label, self.size = content.label, content.size
        self._content, self._file, self._step, self._cancellation = content, file, step, cancellation
        self._pool: DaemonPool | None = DaemonPool(max(1, file.facts.connections), "colabstage-walk")
        self._ahead = max(1, file.facts.connections)
        self._coming: dict[int, Future[bytes]] = {}
        self._reached, self._gap = 0, 0.0

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at `offset`; shorter only at the end."""
        pool = self._pool
        if pool is None or offset >= self.size:
            return self._content.pread(length, offset)
        end = min(offset + length, self.size)
        self._gap += _SHARE * (max(0, offset - self._reached) - self._gap)
        self._step.advance(max(0, end - self._reached))
        self._reached = max(self._reached, end)
        first, last = offset // STRETCH_BYTES, (end - 1) // STRETCH_BYTES
        far = self._gap > _FAR_BYTES
        for number in [number for number in self._coming if number < first or far]:
            self._coming.pop(number).cancel()
        if far:
            return self._content.pread(length, offset)
        for number in range(first, min(last + self._ahead, -(-self.size // STRETCH_BYTES))):
            if number not in self._coming:
                self._coming[number] = pool.submit(partial(self._bring, number * STRETCH_BYTES))
        coming = [self._coming[number] for number in range(first, last + 1)]
        data = b"".join(one.result() if one.done() else self._wait(one) for one in coming)
        begin = offset - first * STRETCH_BYTES
        return data[begin : begin + end - offset]

    def end(self) -> None:
        """Read as `content` from now on."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._step.advance(self.size - self._reached)
            self._coming.clear()
            pool.close(abandon=True)

    def _wait(self, stretch: Future[bytes]) -> bytes:
        return DaemonPool.results([stretch], cancellation=self._cancellation)[0]

    def _bring(self, offset: int) -> bytes:
        length = min(STRETCH_BYTES, self.size - offset)
        return read_directly(self._file, offset, length, policy=RetryPolicy(), stopped=lambda: self._pool is None)

    def close(self) -> None:
        """End, and close the content. Calling it twice is fine."""
        self.end()
        self._content.close()
