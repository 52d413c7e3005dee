"""Tell whether an image file can be decoded, in a fraction of the time that decoding takes.

The codes of a JPEG's pixels do not stop the decoder: codes that are damaged come as grey or shifted blocks, codes that
are missing as grey ones, which readers warn of and then take. What stops it is in the segments before each scan. So
whether such a file can be decoded shows without its codes, which take nearly all the time. If the end marker is not in
its place, the file is decoded, because only the decoder knows how many of the codes are needed.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Literal

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.decode import ImageFacts, decode_image, open_upright, probe_image
from colabstage.images.geometry import ImageOptions
from colabstage.images.headers import END_BYTES, is_jpeg, read_jpeg_header

_PNG_HEAD_BYTES = 8
_COMMON_FRAMES, _RESTART_INTERVAL, _SCAN = (0xC0, 0xC1, 0xC2), 0xDD, 0xDA
_SCAN_BYTES = bytes((0xFF, _SCAN))
_SEGMENTS = frozenset((*_COMMON_FRAMES, 0xC4, 0xDB, _RESTART_INTERVAL, *range(0xE0, 0xF0), 0xFE, _SCAN))
# What libjpeg takes, in pixels.
_MOST_SIDE, _BLOCK_SIDE = 65_500, 8
# So much of a scan is looked through at once that the looks stay in the processor's cache.
_LOOK_BYTES = 128 * 1024


def check_complete(data: bytes) -> ImageFacts:
    """Check that an image file has a readable header, and pixels that can be decoded; return what its header says.

    A JPEG's segments are tried without the codes of its pixels, which are looked through for stray markers. A PNG's
    checksums are taken. What follows the end (padding, a second picture) is no matter. Any other file passes when it
    can be decoded.

    Raises:
        DecodeError: it is cut off, damaged, or not an image.
    """
    segments = _segments(data) if is_jpeg(data) else None
    facts = None if segments is None else _sound_facts(segments)
    if facts is not None:
        return facts
    facts = probe_image(data)
    # Decoding is the last word, and takes far longer than looking.
    if facts.format != "PNG" or not _has_checksums(data):
        decode_image(data, ImageOptions(color_mode="keep"))
    return facts


def _has_checksums(data: bytes) -> bool:
    """Return whether all chunks of a PNG that decoding needs are as they were written, up to its end."""
    position, view, kinds = _PNG_HEAD_BYTES, memoryview(data), set[bytes]()
    while position + 12 <= len(data) and b"IEND" not in kinds:
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        # Chunks in small letters may be passed over, and are.
        if kind[:1].isupper():
            if end + 4 > len(data) or zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
                return False
            kinds.add(kind)
        position = end + 4
    return {b"IHDR", b"IDAT", b"IEND"} <= kinds


def _segments(data: bytes) -> bytes | None:
    """Return a JPEG without the codes of its pixels.

    `None` where it is not as nearly all are: segments and the codes of scans that follow each other, up to the mark of
    the end.
    """
    runs, position, restarts = [data[:2]], 2, False
    while data[position : position + 2] != END_BYTES:
        at = position
        # Those in a thumbnail, which is inside of a segment, are not the next scan's.
        while (at := data.find(_SCAN_BYTES, at)) >= 0:
            run = data[position : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
            if (found := _read_run(run, is_first=position == 2)) is not None:
                break
            at += 2
        else:
            return None
        runs.append(run)
        restarts = restarts if found == "as before" else found == "restarts"
        position = _end_of_codes(data, position + len(run), restarts=restarts)
    return b"".join(runs)


# Most files of a dataset come from one program, and have the same segments, or few that differ in the size.
@lru_cache(maxsize=64)
def _read_run(run: bytes, *, is_first: bool) -> Literal["restarts", "no restarts", "as before"] | None:
    """Say whether marks to restart at may be among the codes behind a run of segments that ends with a scan's header.

    `None` where it is no such run, or does not have the frame of the image just where it is the first.
    """
    position, frames = 0, 0
    found: Literal["restarts", "no restarts", "as before"] = "as before"
    while position + 4 <= len(run) and run[position] == 0xFF and run[position + 1] in _SEGMENTS:
        marker, body = run[position + 1], position + 4
        position += 2 + int.from_bytes(run[position + 2 : position + 4], "big")
        frames += marker in _COMMON_FRAMES
        if marker == _RESTART_INTERVAL:
            found = "restarts" if any(run[body : body + 2]) else "no restarts"
        if marker == _SCAN:
            return found if position == len(run) and frames == is_first else None
    return None


@lru_cache(maxsize=64)
def _sound_facts(segments: bytes) -> ImageFacts | None:
    """Return what the header of a JPEG says of which there are no codes; `None` where no decoder takes its segments."""
    header = read_jpeg_header(segments)
    if max(header.height, header.width) > _MOST_SIDE:
        return None
    # Any decoder takes that if it takes the segments, with a warning, as if the codes were damaged. As small as can be:
    # whether it does does not depend on the size, which follows the precision.
    small = bytearray(segments + END_BYTES)
    struct.pack_into(">HH", small, header.frame_at + 1, _BLOCK_SIDE, _BLOCK_SIDE)
    try:
        with open_upright(bytes(small)):
            return probe_image(segments)
    except DecodeError:
        return None


def _end_of_codes(data: bytes, start: int, *, restarts: bool) -> int:
    """Return where the first marker behind a scan's codes begins, or the length of the file if there is none.

    Among codes a byte 255 is followed by 0, or by the number of a restart (0xD0 to 0xD7) where there are any.
    """
    # Comparing whole arrays takes a third of the time of a regular expression, which is called back at each byte 255,
    # and other threads run meanwhile.
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
