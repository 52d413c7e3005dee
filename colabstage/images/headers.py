"""What the header of a JPEG says, without decoding a pixel: size, components, orientation, and where its rows are.

Decoders, and code that only looks at the header, ask the same function which way up an image is: boxes and crops count
in the upright image, so that both have to agree.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from colabstage.errors import DecodeError

# Made once, as crops read a header and walk to the scan for each of thousands of images a second.
_READ_LENGTH, _READ_FRAME = struct.Struct(">H").unpack_from, struct.Struct(">BHHB").unpack_from
_TAG = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# How an entry's number lies, by the kind of the entry: a byte, two or four.
_NUMBERS = {1: "B", 3: "H", 4: "I"}
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC share the range but are tables and extensions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Their rows come one after the other, unless there are several scans; those of progressive files never do.
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
END_BYTES = bytes((0xFF, _END))
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
# More zeros than programs align to behind the end.
_PADDING_BYTES = 16
# In so many of a WebP's bytes the kind of its pixels shows.
_WEBP_HEAD_BYTES = 64


def choose_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation, 1 to 8, that an EXIF block says, or else an XMP packet; 1 where neither does."""
    found = _exif_orientation(exif)
    if found is None:
        match = _XMP.search(xmp)
        found = 1 if match is None else int(match[1])
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in an EXIF block (a small TIFF); `None` where there is none or the block is malformed."""
    # Some programs write the mark twice.
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    # Intel's order of bytes or Motorola's, as the camera had it.
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


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say."""

    height: int
    """In pixels, as stored, before `orientation` is applied."""
    width: int
    """In pixels, as stored, before `orientation` is applied."""
    components: int
    """1 grayscale, 3 colour, 4 CMYK or YCCK."""
    precision: int
    """Bits per sample, 8 in all but exotic files."""
    orientation: int
    """1 to 8, as EXIF or XMP say; 1 where there is none."""
    frame: int
    """The marker of the frame, which says how pixels are coded: 0xC0, 0xC1 and 0xC2 in nearly all files."""
    frame_at: int = 0
    """Where in the file the frame's contents begin, in bytes."""


def is_jpeg(data: bytes) -> bool:
    """Return whether the bytes begin as every JPEG does."""
    return data[:3] == b"\xff\xd8\xff"


def lacks_end(data: bytes) -> bool:
    """Return whether a JPEG has zeros where its end should be, as downloads leave that reserve room and stop."""
    zeros = len(data) - len(data.rstrip(b"\0"))
    return zeros >= _PADDING_BYTES and data.rfind(END_BYTES, read_jpeg_header(data).frame_at) < 0


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Walk the markers up to the frame header."""
    exif = xmp = b""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
            if position < 0:
                break
            continue
        marker = data[position + 1]
        # Any number of fill bytes may stand before a marker, and some markers have no length behind them.
        if marker == 0xFF or marker in _STANDALONE:
            position += 1 if marker == 0xFF else 2
            continue
        # Pixels before a frame: no decoder takes that.
        if marker in (_SCAN, _END):
            break
        body, length = position + 4, _READ_LENGTH(data, position + 2)[0]
        if marker in _FRAMES and body + 6 <= len(data):
            precision, height, width, components = _READ_FRAME(data, body)
            turned = choose_orientation(exif, xmp) if exif or xmp else 1
            return JpegHeader(height, width, components, precision, turned, marker, body)
        if marker == _APP1:
            if data[body : body + 6] == b"Exif\0\0":
                exif = data[body : body + length - 2]
            elif data.startswith(_XMP_HEAD, body):
                xmp = data[body : body + length - 2]
        position += 2 + length
    msg = "The JPEG header is cut off or has no frame."
    raise DecodeError(msg)


def first_rows(data: bytes, header: JpegHeader, rows: int) -> bytearray | None:
    """Return the same file with a header that says it has only its first rows: a decoder stops there.

    The rest of the file stays, as where in it a row begins is known only to who decodes it; decoders pass over it,
    and warn of it. The last of the rows may lack what colours of the next one would have added to it.

    `None` where rows do not come one after the other (progressive files, several scans), or the file has no end: it is
    cut off, which nobody would notice any more, or other data follows it.
    """
    if not comes_by_rows(data, header):
        return None
    short = bytearray(data)
    struct.pack_into(">H", short, header.frame_at + 1, rows)
    return short


def comes_by_rows(data: bytes, header: JpegHeader) -> bool:
    """Return whether `first_rows` can shorten a file: its rows come one after the other, and it has its end."""
    if header.frame not in _SEQUENTIAL_FRAMES or data[-2:] != END_BYTES:
        return False
    # Several scans have the first rows of each colour far apart, and a decoder would read on for them.
    scan = _first_scan(data, header.frame_at)
    return scan is not None and data[scan + 4] == header.components


def segments_before_codes(data: bytes) -> bytes:
    """Return what a JPEG that `comes_by_rows` has before the codes of its pixels."""
    scan = _first_scan(data, read_jpeg_header(data).frame_at)
    assert scan is not None
    return data[: scan + 2 + _READ_LENGTH(data, scan + 2)[0]]


def _first_scan(data: bytes, frame_at: int) -> int | None:
    """Return where the first scan's marker is; `None` where markers do not follow each other up to one."""
    position = frame_at - 2
    while position + 5 <= len(data):
        position += int(_READ_LENGTH(data, position)[0])
        if position + 5 > len(data) or data[position] != 0xFF:
            break
        if data[position + 1] == _SCAN:
            return position
        position += 2
    return None


def is_lossy(data: bytes) -> bool:
    """Return whether an image file keeps the values of its pixels only about."""
    return is_jpeg(data) or (data[:4] == b"RIFF" and b"VP8 " in data[:_WEBP_HEAD_BYTES])
