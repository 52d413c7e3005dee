"""Tell whether an image file can be decoded, in a fraction of the time that decoding takes.

The codes of a JPEG's pixels do not stop the decoder: codes that are damaged come as grey or shifted blocks, codes that
are missing as grey ones, which readers warn of and then take. What stops it is in the segments before each scan. So
whether such a file can be decoded shows without its codes, which take nearly all the time. If the end marker is not in
its place, the file is decoded, because only the decoder knows how many of the codes are needed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.decode import ImageFacts, check_pixels, decode_image, open_upright, probe_image, upright_size
from colabstage.images.geometry import ImageOptions
from colabstage.images.headers import END_BYTES, read_jpeg_header

_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_SIZE_BYTES = 4
_COMMON_FRAMES, _RESTART_INTERVAL, _SCAN = (0xC0, 0xC1, 0xC2), 0xDD, 0xDA
_SEGMENTS = frozenset((*_COMMON_FRAMES, 0xC4, 0xDB, _RESTART_INTERVAL, *range(0xE0, 0xF0), 0xFE, _SCAN))
# What libjpeg takes, in pixels.
_MOST_SIDE, _BLOCK_SIDE = 65_500, 8
# So much of a scan is looked through at once that the looks stay in the processor's cache.
_LOOK_BYTES = 128 * 1024


class _CodePlace(NamedTuple):
    """Where the codes of a JPEG with one scan are."""

    frame: int
    """Where the frame's contents begin, in bytes."""
    start: int
    """Where the codes begin, in bytes."""
    restarts: bool
    """Whether marks to restart at may be among them."""


class _SoundHead(NamedTuple):
    """The header of a JPEG that passed, but for the size of its image."""

    before: bytes
    """What comes before the size."""
    behind: bytes
    """What comes between the size and the codes."""
    place: _CodePlace
    """Where the codes are behind it."""
    facts: ImageFacts
    """What it says, with the size of that image."""
    orientation: int
    """1 to 8, as `read_jpeg_header` finds it."""


@dataclass(slots=True, eq=False)
class CompleteCheck:
    """Checks of image files, one after the other, from any number of threads.

    Most files of a dataset come from one program, so their headers are the same but for the size: that of the file
    before is compared as a whole, and what was found in it then holds.
    """

    _head: _SoundHead | None = None
    """That of the last file whose codes were looked through."""

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
        if not data.startswith(head.behind, size_at + _SIZE_BYTES) or not _codes_end_well(data, head.place):
            return None
        height, width = struct.unpack_from(">HH", data, size_at)
        check_pixels(width, height)
        height, width = upright_size((height, width), head.orientation)
        return ImageFacts(height, width, head.facts.channels, head.facts.dtype, head.facts.format)

    def _is_complete(self, data: bytes, facts: ImageFacts) -> bool:
        if facts.format != "JPEG":
            return facts.format == "PNG" and _has_checksums(data)
        found = _without_codes(data)
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
    """Return whether Pillow, the last word on damaged codes, takes a JPEG that has none; as of `_without_codes`."""
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


def _without_codes(data: bytes) -> tuple[bytes, _CodePlace | None] | None:
    """Return a file's segments and its end, of an image of 8 x 8 pixels, and no codes of pixels between them.

    Returns:
        What any decoder takes if it takes the segments, with a warning, as if the codes were damaged; and where the
        codes are, `None` where there are several scans, as in progressive files. Nothing where the file is not as
        nearly all are: segments and the codes of scans that follow each other, up to the mark of the end.
    """
    kept, place, restarts, scans = bytearray(data[:2]), _CodePlace(0, 0, restarts=False), False, 0
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] in _SEGMENTS:
        marker, begin, body = data[position + 1], position, position + 4
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if position > len(data):
            return None
        if marker == _RESTART_INTERVAL:
            restarts = any(data[body : body + 2])
        elif marker in _COMMON_FRAMES:
            if place.frame or max(struct.unpack_from(">HH", data, body + 1)) > _MOST_SIDE:
                return None
            place = place._replace(frame=body)
        kept += data[begin:position]
        if marker == _SCAN:
            if not place.frame:
                return None
            place, scans = _CodePlace(place.frame, position, restarts), scans + 1
            position = _end_of_codes(data, position, restarts=restarts)
    if not scans or data[position : position + 2] != END_BYTES:
        return None
    # As small as can be: whether a decoder takes the segments does not depend on the size.
    struct.pack_into(">HH", kept, place.frame + 1, _BLOCK_SIDE, _BLOCK_SIDE)
    return bytes(kept) + END_BYTES, place if scans == 1 else None


def _codes_end_well(data: bytes, place: _CodePlace) -> bool:
    """Return whether the first marker behind a scan's codes is the mark of the end, in an image that libjpeg takes."""
    if max(struct.unpack_from(">HH", data, place.frame + 1)) > _MOST_SIDE:
        return False
    end = _end_of_codes(data, place.start, restarts=place.restarts)
    return data[end : end + 2] == END_BYTES


def _end_of_codes(data: bytes, start: int, *, restarts: bool) -> int:
    """Return where the first marker behind a scan's codes begins, or the length of the file if there is none.

    Among codes a byte 255 is followed by 0, or by the number of a restart (0xD0 to 0xD7) where there are any.
    """
    # Only this marker is looked for, and nothing decoded. Comparing whole arrays takes a third of the time of a regular
    # expression, which is called back at each byte 255, and other threads run meanwhile.
    codes = np.frombuffer(data, np.uint8)
    for begin in range(start, len(data) - 1, _LOOK_BYTES):
        end = min(begin + _LOOK_BYTES, len(data) - 1)
        following = codes[begin + 1 : end + 1]
        is_marker = codes[begin:end] == 0xFF
        if restarts:
            is_marker &= (following & 0xF8) != 0xD0
        # 1 where both are not 0, in one pass less than to compare the second with 0 first.
        found = np.minimum(is_marker.view(np.uint8), following).view(np.bool_)
        at = int(found.argmax())
        if found[at]:
            return begin + at
    return len(data)
