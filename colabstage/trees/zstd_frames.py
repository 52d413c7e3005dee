"""Where a Zstandard file's frames and blocks begin and end: whether the last one is whole, without unpacking any.

The library's streaming reader returns what it has when the file ends early, and says nothing. Layout: RFC 8878,
sections 3.1.1 and 3.1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colabstage.trees.tree import ByteSource

_MAGIC = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RLE, _RESERVED = 1, 3
_ID_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)


def check_frames(source: ByteSource) -> None:
    """Walk all frames of a Zstandard file.

    Raises:
        EOFError: the last frame is cut.
        ValueError: something else than a frame follows one.
    """
    at = 0
    while at < source.size:
        magic = int.from_bytes(_exactly(source, 4, at), "little")
        if magic in _SKIPPABLE:
            at += 8 + int.from_bytes(_exactly(source, 4, at + 4), "little")
        elif magic == _MAGIC:
            at = _frame_end(source, at)
        else:
            msg = f"no frame begins at byte {at:,}"
            raise ValueError(msg)
    if at > source.size:
        raise EOFError


def _frame_end(source: ByteSource, at: int) -> int:
    (descriptor,) = _exactly(source, 1, at + 4)
    single = descriptor >> 5 & 1
    # A frame in one segment has no byte for its window, and at least one for its size.
    size_bytes = _SIZE_BYTES[descriptor >> 6] or single
    at += 5 + (1 - single) + _ID_BYTES[descriptor & 3] + size_bytes
    last = 0
    while not last:
        header = int.from_bytes(_exactly(source, 3, at), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            msg = f"there is no block at byte {at:,}"
            raise ValueError(msg)
        at += 3 + (1 if kind == _RLE else size)
    return at + 4 * (descriptor >> 2 & 1)


def _exactly(source: ByteSource, length: int, offset: int) -> bytes:
    data = source.pread(length, offset)
    if len(data) < length:
        raise EOFError
    return data
