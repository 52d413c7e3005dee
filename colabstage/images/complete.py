"""Telling an image file that can be decoded from one that cannot, for a part of what decoding takes.

Between the header of a sequential JPEG and the mark of its end, nothing stops the decoder: codes that are damaged come
as grey or shifted blocks, codes that are missing as grey ones, which readers warn of and then take. So whether such a
file can be decoded shows without its codes, which take nearly all the time. Without that mark in its place it is
decoded, because how many of the codes are needed is known only to who reads them.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from colabstage.errors import DecodeError
from colabstage.images.decode import decode_image, open_upright, probe_image
from colabstage.images.headers import read_jpeg_header, without_codes
from colabstage.images.options import ImageOptions

if TYPE_CHECKING:
    from colabstage.images.decode import ImageFacts

_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_EIGHTH = 8


def check_complete(data: bytes) -> ImageFacts:
    """Check that an image file has a readable header, and pixels that can be decoded.

    A JPEG's header is tried without the codes of its pixels, which are looked through for stray markers; those of a
    progressive one are unpacked at an eighth of its size. A PNG's checksums are taken. What follows the end (padding, a
    second picture) is no matter. Whatever fails there, a file of any other format, and a JPEG that is coded as few are,
    passes when it can be decoded as it will be by its reader.

    Returns:
        What its header says.

    Raises:
        DecodeError: it is cut off, damaged, or not an image.
    """
    facts = probe_image(data)
    # Decoding is the last word, and takes far longer than telling.
    if not _is_complete(data, facts.format):
        decode_image(data, ImageOptions(color_mode="keep"))
    return facts


def _is_complete(data: bytes, kind: str) -> bool:
    if kind == "JPEG":
        empty = without_codes(data)
        return _unpacks(data) if empty is None else _is_taken(empty)
    return kind == "PNG" and _has_checksums(data)


# Most files of a dataset come from one program, so their headers are the same but for the size, which is taken out.
@lru_cache(maxsize=32)
def _is_taken(empty: bytes) -> bool:
    """Return whether Pillow, the last word on damaged codes, takes a JPEG that has none; as of `without_codes`."""
    try:
        with open_upright(empty):
            return True
    except DecodeError:
        return False


def _unpacks(data: bytes) -> bool:
    """Return whether a JPEG's brightness at an eighth of its size comes without a complaint.

    All its codes are read for it.
    """
    import simplejpeg

    header = read_jpeg_header(data)
    # Of CMYK no brightness is to be had, and 12 bits are not read.
    if not header.is_common or header.components not in (1, 3):
        return False
    height, width = -(-header.height // _EIGHTH), -(-header.width // _EIGHTH)
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=height, min_width=width)
    except ValueError:
        return False
    return True


def _has_checksums(data: bytes) -> bool:
    """Return whether all chunks of a PNG that decoding needs are as they were written, up to its end."""
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
