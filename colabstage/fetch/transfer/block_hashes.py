"""The hash of each block, while its bytes pass in order: they are in the processor's cache anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.fetch.transfer.partial import BLOCK_BYTES

if TYPE_CHECKING:
    from xxhash import xxh3_64


class BlockHashes:
    """Hashes the blocks that come through one connection from their first byte to their last.

    `size`: length of the whole file, whose last block may be short; `None` when nobody knows.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._hasher: xxh3_64 | None = None
        self._position = -1

    def feed(self, data: memoryview, offset: int) -> dict[int, str]:
        """Take in bytes at `offset`; return the hash of each block, by its number, that they complete."""
        import xxhash

        done: dict[int, str] = {}
        if offset != self._position:
            self._hasher = None
        self._position = offset + len(data)
        while data:
            number, inside = divmod(offset, BLOCK_BYTES)
            part = data[: BLOCK_BYTES - inside]
            if inside == 0:
                self._hasher = xxhash.xxh3_64()
            if self._hasher is not None:
                self._hasher.update(part)
            offset, data = offset + len(part), data[len(part) :]
            if self._hasher is not None and (offset % BLOCK_BYTES == 0 or offset == self._size):
                done[number] = self._hasher.hexdigest()
                self._hasher = None
        return done

    def finish(self) -> str | None:
        """The hash of a last block that is short, at the end of a file of unknown length."""
        return None if self._hasher is None else self._hasher.hexdigest()
