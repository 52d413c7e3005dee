"""Telling an image file that can be decoded from one that cannot, for a part of what decoding takes."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from colabstage.images.decode import decode_image, probe_image
from colabstage.images.jpeg import read_jpeg_header
from colabstage.images.options import ImageOptions

if TYPE_CHECKING:
    from colabstage.images.decode import ImageFacts

_SCAN_MARKER, _END_OF_IMAGE = 0xDA, b"\xff\xd9"
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_EIGHTH = 8


def check_complete(data: bytes) -> ImageFacts:
    """Check that an image file has a readable header, and pixels that can be decoded.

    A JPEG's pixels are unpacked at an eighth of their size, a PNG's checksums taken; what follows the end (padding, a
    second picture) is no matter. Whatever fails there, a file of any other format, and a JPEG that is coded as few are,
    passes when it can be decoded as it will be by its reader.

    Returns:
        What its header says.

    Raises:
        DecodeError: it is no image, cut off, or damaged.
    """
    facts = probe_image(data)
    if not _is_sound(data, facts.format):
        decode_image(data, ImageOptions(color_mode="keep"))
    return facts


def _is_sound(data: bytes, kind: str) -> bool:
    if kind == "JPEG":
        # Not the mark of a thumbnail in the header: the picture's own comes after its pixels' start.
        return 0 < _scan_start(data) < data.rfind(_END_OF_IMAGE) and _unpacks(data)
    return kind == "PNG" and _has_checksums(data)


def _unpacks(data: bytes) -> bool:
    """Whether a JPEG's brightness at an eighth of its size comes without a complaint: all its codes are read for it."""
    import simplejpeg

    header = read_jpeg_header(data)
    if not header.is_common or header.components not in (1, 3):
        return False
    height, width = -(-header.height // _EIGHTH), -(-header.width // _EIGHTH)
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=height, min_width=width)
    except ValueError:
        return False
    return True


def _has_checksums(data: bytes) -> bool:
    """Whether all chunks of a PNG that decoding needs are as they were written, up to its end."""
    position, view, kinds = len(_PNG_HEAD), memoryview(data), set[bytes]()
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        # Chunks in small letters may be passed over, and are.
        if kind[:1].isupper():
            if end + 4 > len(data) or zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
                return False
            kinds.add(kind)
        if kind == b"IEND":
            break
        position = end + 4
    return {b"IHDR", b"IDAT", b"IEND"} <= kinds


def _scan_start(data: bytes) -> int:
    """Where a JPEG's first scan begins; 0 when its header is not a plain chain of segments up to there."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        if data[position + 1] == _SCAN_MARKER:
            return position
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return 0
