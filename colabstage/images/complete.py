"""Telling a whole image file from a cut-off one, by its closing mark where it has one: no decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.images.decode import decode_image, probe_image
from colabstage.images.jpeg import read_jpeg_header
from colabstage.images.options import ImageOptions

if TYPE_CHECKING:
    from colabstage.images.decode import ImageFacts

_SCAN_MARKER, _END_OF_IMAGE = 0xDA, b"\xff\xd9"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def check_complete(data: bytes) -> ImageFacts:
    """Check that an image file has a readable header and is there to its end.

    JPEG, PNG and WebP say where they end, so that a look suffices; what follows the end (padding, a second picture)
    is no matter. A file without its closing mark, one of any other format, and a JPEG that is coded as few are, passes
    when it can be decoded. Damage among the pixels does not show here.

    Returns:
        What its header says.

    Raises:
        DecodeError: it is no image, or cut off.
    """
    facts = probe_image(data)
    if not _has_end(data, facts.format):
        decode_image(data, ImageOptions(color_mode="keep"))
    return facts


def _has_end(data: bytes, kind: str) -> bool:
    if kind == "JPEG":
        # Not the mark of a thumbnail in the header: the picture's own comes after its pixels' start.
        return read_jpeg_header(data).is_common and 0 < _scan_start(data) < data.rfind(_END_OF_IMAGE)
    if kind == "PNG":
        return _PNG_END in data
    return kind == "WEBP" and len(data) >= 8 + int.from_bytes(data[4:8], "little")


def _scan_start(data: bytes) -> int:
    """Where a JPEG's first scan begins; 0 when its header is not a plain chain of segments up to there."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        if data[position + 1] == _SCAN_MARKER:
            return position
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return 0
