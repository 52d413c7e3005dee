"""The memory that decoding takes: used again for every image, and bounded where images are huge.

Faulting fresh pages takes a tenth of the time of decoding, so each thread keeps what it decodes into. But decoding
takes up to 16 bytes for each pixel on the way, and a few kilobytes may hold 170 million pixels: for those, threads take
turns.
"""

from __future__ import annotations

import struct
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.jpeg import is_jpeg, read_jpeg_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

# Photographs of 24 million pixels are decoded by two threads at once, as ever; smaller ones are not even counted.
_MOST_PIXELS = 64_000_000
_FEW_PIXELS = 8_000_000
# No JPEG of fewer bytes has many pixels: a block of 64 of one colour takes six bits and more.
_SMALL_JPEG_BYTES = 512 * 1024
# Larger memory is not kept for the next image.
_MOST_KEPT_BYTES = 256 * 1024 * 1024
_LOOK_S = 1.0


def count_pixels(data: bytes) -> int:
    """Width times height of an image file, read from its first bytes; 0 where they do not tell, or it is small."""
    width = height = 0
    try:
        if is_jpeg(data):
            if len(data) >= _SMALL_JPEG_BYTES:
                header = read_jpeg_header(data)
                width, height = header.width, header.height
        elif data.startswith(b"\x89PNG"):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(b"GIF8"):
            width, height = struct.unpack_from("<HH", data, 6)
        elif data[8:16] == b"WEBPVP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        elif data[8:15] == b"WEBPVP8":
            if data[15:16] == b"L":
                bits = int.from_bytes(data[21:25], "little")
                width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
            else:
                width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        else:
            width, height = len(data), 1  # no smaller than its pixels, where they are not compressed
    except (struct.error, DecodeError):
        return 0
    return width * height


class PixelRoom:
    """Bounds the pixels that several threads decode at once: one huge image at a time, or a few large ones."""

    def __init__(self, most_pixels: int = _MOST_PIXELS) -> None:
        self._most = most_pixels
        self._taken = 0
        self._changed = threading.Condition()

    def room_for(self, content: object) -> AbstractContextManager[None]:
        """A context to decode an image file in; begins when there is room for it, at the latest when nothing else is
        decoded."""
        pixels = count_pixels(content) if isinstance(content, bytes) else 0
        return nullcontext() if pixels <= _FEW_PIXELS else self._occupied(pixels)

    @contextmanager
    def _occupied(self, pixels: int) -> Iterator[None]:
        with self._changed:
            while self._taken and self._taken + pixels > self._most:
                self._changed.wait(_LOOK_S)  # whoever has it decodes, and ends
            self._taken += pixels
        try:
            yield
        finally:
            with self._changed:
                self._taken -= pixels
                self._changed.notify_all()


class Scratch:
    """What one thread decodes and resizes into. Grows to the largest image; never to be shared by two threads."""

    def __init__(self, decoded: bytearray | None = None) -> None:
        self.decoded = bytearray() if decoded is None else decoded
        self._resized = np.empty((0, 0, 0), np.uint8)

    def resized(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """A C-contiguous array `(H, W, C)` of any content; the one returned before, where it has this shape."""
        if self._resized.shape != shape:
            self._resized = np.empty(shape, np.uint8)
        return self._resized

    def forget_huge(self) -> None:
        """Let go of memory that a huge image has left; what was made in it must have been used."""
        if len(self.decoded) > _MOST_KEPT_BYTES:
            self.decoded = bytearray()
        if self._resized.nbytes > _MOST_KEPT_BYTES:
            self._resized = np.empty((0, 0, 0), np.uint8)
