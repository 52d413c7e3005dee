"""Telling a whole image file from a cut-off one without decoding it."""

from __future__ import annotations

from colabstage.errors import DecodeError
from colabstage.images.decode import probe_image

# How far from the end the last marker is looked for: cameras and editors append thumbnails' padding and comments,
# and a file whose end is missing by less than this still decodes to all but its last rows.
_TAIL_BYTES = 4096

_LAST_MARKS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b"\x3b"}


def check_complete(data: bytes) -> None:
    """Check that an image file has a readable header and, in the formats that have one, its closing mark.

    Raises:
        DecodeError: it is no image, or cut off.
    """
    facts = probe_image(data)
    mark = _LAST_MARKS.get(facts.format)
    if mark is not None and mark not in data[-_TAIL_BYTES:]:
        msg = f"the {facts.format} file is cut off: its closing mark is missing after {len(data):,} bytes"
        raise DecodeError(msg)
