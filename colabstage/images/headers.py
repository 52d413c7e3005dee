"""What a JPEG's header says, without decoding a pixel: size, components, orientation, and where its rows are."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from colabstage.errors import DecodeError

# Created once, because crops read a header and walk to the scan for each of thousands of images a second.
_READ_LENGTH, _READ_FRAME = struct.Struct(">H").unpack_from, struct.Struct(">BHHB").unpack_from
_TAG = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# How an entry's number is stored, by the entry's type: a byte, two or four.
_NUMBERS = {1: "B", 3: "H", 4: "I"}
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC share the range but are tables and extensions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Files with these frames store rows in order, unless there are several scans; progressive files never do.
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
END_BYTES = bytes((0xFF, _END))
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
# More zeros than programs append as padding.
_PADDING_BYTES = 16
# How many of a WebP's bytes show the kind of its pixels.
_WEBP_HEAD_BYTES = 64


def choose_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation, 1 to 8, from an EXIF block, otherwise from an XMP packet; 1 if neither has one."""
    found = _exif_orientation(exif)
    if found is None:
        match = _XMP.search(xmp)
        found = 1 if match is None else int(match[1])
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in an EXIF block (a small TIFF); `None` if there is none or the block is malformed."""
    # Some programs write the mark twice.
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    # Intel's or Motorola's byte order, as the camera chose.
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
    """As stored, before `orientation` is applied, as `width`."""
    width: int
    components: int
    """1 grayscale, 3 colour, 4 CMYK or YCCK."""
    precision: int
    """Bits per sample, 8 in all but exotic files."""
    orientation: int
    """1 to 8, from EXIF or XMP; 1 if there is none."""
    frame: int
    """The marker of the frame, which says how pixels are coded: 0xC0, 0xC1 or 0xC2 in nearly all files."""
    frame_at: int = 0
    """Where in the file the frame's contents begin, in bytes."""


def is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def lacks_end(data: bytes) -> bool:
    """Return whether a JPEG has zeros where its end should be, as after a download that reserved space and stopped."""
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
        # Any number of fill bytes may precede a marker, and some markers have no length after them.
        if marker == 0xFF or marker in _STANDALONE:
            position += 1 if marker == 0xFF else 2
            continue
        # Pixels before a frame: no decoder accepts that.
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
    """Return the same file with a header that states only its first rows: a decoder stops there, with a warning. The
    last of them may lack what the next one contributes to its colours. `None` unless it `comes_by_rows`."""
    if not comes_by_rows(data, header):
        return None
    short = bytearray(data)
    struct.pack_into(">H", short, header.frame_at + 1, rows)
    return short


def comes_by_rows(data: bytes, header: JpegHeader) -> bool:
    """Return whether `first_rows` can shorten a file: its rows are stored in order, and it has its end."""
    if header.frame not in _SEQUENTIAL_FRAMES or data[-2:] != END_BYTES:
        return False
    # With several scans, the first rows of each colour are far apart, and a decoder would read on for them.
    scan = _first_scan(data, header.frame_at)
    return scan is not None and data[scan + 4] == header.components


def segments_before_codes(data: bytes) -> bytes:
    """Return the segments of a JPEG that `comes_by_rows` before the codes of its pixels."""
    scan = _first_scan(data, read_jpeg_header(data).frame_at)
    assert scan is not None
    return data[: scan + 2 + _READ_LENGTH(data, scan + 2)[0]]


def _first_scan(data: bytes, frame_at: int) -> int | None:
    """Return the place of the first scan's marker; `None` if markers do not lead up to one."""
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
    """Return whether an image file's format preserves pixel values only approximately."""
    return is_jpeg(data) or (data[:4] == b"RIFF" and b"VP8 " in data[:_WEBP_HEAD_BYTES])
