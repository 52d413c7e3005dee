"""Telling an image file that can be decoded from one that cannot, for a part of what decoding takes.

The codes of a JPEG's pixels do not stop the decoder: codes that are damaged come as grey or shifted blocks, codes that
are missing as grey ones, which readers warn of and then take. What stops it is in the segments before each scan. So
whether such a file can be decoded shows without its codes, which take nearly all the time. Without the mark of the end
in its place it is decoded, because how many of the codes are needed is known only to who reads them.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from colabstage.errors import DecodeError
from colabstage.images.decode import ImageFacts, check_pixels, decode_image, open_upright, probe_image, upright_size
from colabstage.images.headers import CodePlace, codes_end_well, read_jpeg_header, without_codes
from colabstage.images.options import ImageOptions

_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_SIZE_BYTES = 4


class _SoundHead(NamedTuple):
    """The header of a JPEG that passed, but for the size of its image."""

    before: bytes
    """What comes before the size."""
    behind: bytes
    """What comes between the size and the codes."""
    place: CodePlace
    """Where the codes are behind it."""
    facts: ImageFacts
    """What it says, with the size of that image."""
    orientation: int
    """1 to 8, as `read_jpeg_header` finds it."""


class CompleteCheck:
    """Checks of image files, one after the other, from any number of threads.

    Most files of a dataset come from one program, so their headers are the same but for the size: that of the file
    before is compared as a whole, and what was found in it then holds.
    """

    def __init__(self) -> None:
        self._head: _SoundHead | None = None

    def check(self, data: bytes) -> ImageFacts:
        """Check that an image file has a readable header, and pixels that can be decoded.

        A JPEG's header, and those of its scans, are tried without the codes of its pixels, which are looked through for
        stray markers. A PNG's checksums are taken. What follows the end (padding, a second picture) is no matter.
        Whatever fails there, a file of any other format, and a JPEG that is coded as few are, passes when it can be
        decoded as it will be by its reader.

        Returns:
            What its header says.

        Raises:
            DecodeError: it is cut off, damaged, or not an image.
        """
        facts = self._by_head(data)
        if facts is not None:
            return facts
        facts = probe_image(data)
        # Decoding is the last word, and takes far longer than telling.
        if not self._is_complete(data, facts):
            decode_image(data, ImageOptions(color_mode="keep"))
        return facts

    def _by_head(self, data: bytes) -> ImageFacts | None:
        """Return what the header says if it is that of the file before, and the codes end well; `None` otherwise."""
        # Read once: another thread may replace it.
        head = self._head
        if head is None or not data.startswith(head.before) or len(data) < head.place.start:
            return None
        size_at = len(head.before)
        if not data.startswith(head.behind, size_at + _SIZE_BYTES) or not codes_end_well(data, head.place):
            return None
        height, width = struct.unpack_from(">HH", data, size_at)
        check_pixels(width, height)
        height, width = upright_size((height, width), head.orientation)
        return ImageFacts(height, width, head.facts.channels, head.facts.dtype, head.facts.format)

    def _is_complete(self, data: bytes, facts: ImageFacts) -> bool:
        if facts.format != "JPEG":
            return facts.format == "PNG" and _has_checksums(data)
        found = without_codes(data)
        if found is None or not _is_taken(found[0]):
            return False
        place = found[1]
        if place is not None:
            # Behind the precision, one byte.
            size_at = place.frame + 1
            behind = data[size_at + _SIZE_BYTES : place.start]
            self._head = _SoundHead(data[:size_at], behind, place, facts, read_jpeg_header(data).orientation)
        return True


# Where files of several programs take turns.
@lru_cache(maxsize=32)
def _is_taken(empty: bytes) -> bool:
    """Return whether Pillow, the last word on damaged codes, takes a JPEG that has none; as of `without_codes`."""
    try:
        with open_upright(empty):
            return True
    except DecodeError:
        return False


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
