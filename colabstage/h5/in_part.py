"""A packed file of which only some blocks are here.

It has the length and layout of the whole, so that HDF5 would open it and give zeros, black pictures with real labels,
for what is missing. Its first bytes are therefore a mark in place of HDF5's signature: no program takes it for an HDF5
file, whatever it is called, and who brings the rest reads it with the signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.trees.bytes import LocalBytes

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURE = b"\x89HDF\r\n\x1a\n"
PART_MARK = b"IN PART\n"


def with_mark(data: bytes, offset: int) -> bytes:
    """Return bytes of a file from `offset` on as they are written where only a part of it is."""
    return _with_head(data, offset, SIGNATURE, PART_MARK)


def with_signature(data: bytes, offset: int) -> bytes:
    """Return bytes that were written so as they are in the whole file."""
    return _with_head(data, offset, PART_MARK, SIGNATURE)


def _with_head(data: bytes, offset: int, old: bytes, new: bytes) -> bytes:
    if offset >= len(old) or not data:
        return data
    stop = min(len(old), offset + len(data))
    if data[: stop - offset] != old[offset:stop]:
        return data
    return new[offset:stop] + data[stop - offset :]


def is_marked(path: Path) -> bool:
    """Tell whether only a part of the file at `path` is here; raises the errors of opening it."""
    with open(path, "rb") as handle:
        return handle.read(len(PART_MARK)) == PART_MARK


class MarkedBytes(LocalBytes):
    """A file that has the mark, read as HDF5 would read the whole one. Closes with its last reference."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        return with_signature(super().pread(length, offset), offset)
