"""Which way up an image is: what EXIF says, or else XMP, wherever in the file it stands.

Decoders and who only looks at the header ask the same function: boxes and crops count in the upright image, so that
both have to agree. Pillow's own reading stops at whatever is odd in the rest of an EXIF block; this one looks at the
one entry.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TAG = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# How an entry's number lies, by the kind of the entry: a byte, two or four.
_NUMBERS = {1: "B", 3: "H", 4: "I"}
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_RAW_PROFILE, _PNG_XMP = b"Raw profile type exif", b"XML:com.adobe.xmp"
# More than any text of this kind has; what unpacks to more is none.
_MOST_TEXT_BYTES = 1 << 20


def choose_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation, 1 to 8, that an EXIF block says, or else an XMP packet; 1 where neither does."""
    found = _exif_orientation(exif)
    if found is None:
        match = _XMP.search(xmp)
        found = 1 if match is None else int(match[1])
    return found if 1 <= found <= 8 else 1


def read_orientation(data: bytes, info: Mapping[Any, Any]) -> int:
    """Return the orientation of an image file that Pillow has opened, no JPEG or TIFF.

    Args:
        data: the whole file; in a PNG, EXIF and XMP may follow the pixels.
        info: what Pillow found in the header.
    """
    exif, xmp = _bytes(info.get("exif")), _bytes(info.get("xmp") or info.get("XML:com.adobe.xmp"))
    profile = _bytes(info.get(_RAW_PROFILE.decode()))
    for kind, body in _chunks_behind_pixels(data) if data.startswith(_PNG_HEAD) else ():
        if kind == b"eXIf":
            exif = body
        elif body.startswith(_PNG_XMP + b"\0"):
            xmp = _text_of(kind, body)
        elif body.startswith(_RAW_PROFILE + b"\0"):
            profile = _text_of(kind, body)
    return choose_orientation(exif or _from_profile(profile), xmp)


def _bytes(value: object) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value if isinstance(value, bytes) else b""


def _chunks_behind_pixels(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position, seen = len(_PNG_HEAD), False
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            seen = True
        elif seen and kind in (b"eXIf", b"iTXt", b"zTXt", b"tEXt"):
            yield kind, data[position + 8 : position + 8 + length]
        position += 12 + length


def _text_of(kind: bytes, body: bytes) -> bytes:
    """The text of a PNG's text chunk; empty where it is broken."""
    rest = body.partition(b"\0")[2]
    packed = kind == b"zTXt"
    if packed:
        rest = rest[1:]
    elif kind == b"iTXt":
        packed, rest = rest[:1] == b"\1", b"\0".join(rest[2:].split(b"\0")[2:])
    try:
        return zlib.decompressobj().decompress(rest, _MOST_TEXT_BYTES) if packed else rest
    except zlib.error:
        return b""


def _from_profile(text: bytes) -> bytes:
    """An EXIF block that ImageMagick wrote as text: three lines of words, then digits."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""


def _exif_orientation(exif: bytes) -> int | None:
    """The orientation in an EXIF block (a small TIFF); `None` where there is none or the block is malformed."""
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None or len(exif) < 8:
        return None
    start = struct.unpack_from(order + "I", exif, 4)[0]
    if start + 2 > len(exif):
        return None
    count = struct.unpack_from(order + "H", exif, start)[0]
    for entry in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", exif, entry)
        if tag == _TAG and kind in _NUMBERS:
            return int(struct.unpack_from(order + _NUMBERS[kind], exif, entry + 8)[0])
    return None
