"""The facts in a JPEG's markers: size, components and orientation, without decoding a pixel; and less of its rows."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from colabstage.errors import DecodeError
from colabstage.images.orientation import choose_orientation

# Start-of-frame markers; 0xC4, 0xC8 and 0xCC share the range but are tables and extensions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_COMMON_FRAMES = (0xC0, 0xC1, 0xC2)
# Their rows come one after the other, unless there are several scans; those of progressive files never do.
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_RESTART_INTERVAL = 0xDD
# What libjpeg takes, in pixels.
_MOST_SIDE, _BLOCK_SIDE = 65_500, 8
_HEADER = frozenset((*_SEQUENTIAL_FRAMES, 0xC4, 0xDB, _RESTART_INTERVAL, *range(0xE0, 0xF0), 0xFE, _SCAN))
# What ends a scan's codes: among them a byte 255 is followed by 0, or by the number of a restart where there are any.
_AFTER_CODES = re.compile(rb"\xff[^\x00]")
_AFTER_RESTARTED_CODES = re.compile(rb"\xff[^\x00\xd0-\xd7]")
_END_BYTES = bytes((0xFF, _END))
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say.

    `height`, `width`: in pixels, as stored, before `orientation` is applied.
    `components`: 1 grayscale, 3 colour, 4 CMYK or YCCK.
    `precision`: bits per sample, 8 in all but exotic files.
    `orientation`: 1 to 8, as EXIF or XMP say; 1 where there is none.
    `frame`: the marker of the frame, which says how pixels are coded: 0xC0, 0xC1 and 0xC2 in nearly all files.
    `frame_at`: where in the file the frame's contents begin, in bytes.
    """

    height: int
    width: int
    components: int
    precision: int
    orientation: int
    frame: int
    frame_at: int = 0

    @property
    def is_common(self) -> bool:
        """Whether it is coded as nearly all are: 8 bits, baseline or progressive, with Huffman's codes."""
        return self.precision == 8 and self.frame in _COMMON_FRAMES


def is_jpeg(data: bytes) -> bool:
    """Whether the bytes begin as every JPEG does."""
    return data[:3] == b"\xff\xd8\xff"


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Walk the markers up to the frame header.

    Raises:
        DecodeError: there is no frame header.
    """
    exif = xmp = b""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
            if position < 0:
                break
            continue
        marker = data[position + 1]
        if marker == 0xFF or marker in _STANDALONE:
            position += 1 if marker == 0xFF else 2
            continue
        if marker in (_SCAN, _END):
            break
        body, length = position + 4, struct.unpack_from(">H", data, position + 2)[0]
        if marker in _FRAMES and body + 6 <= len(data):
            precision, height, width, components = struct.unpack_from(">BHHB", data, body)
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


def without_codes(data: bytes) -> bytes | None:
    """Return a file's header and its end, of an image of 8 x 8 pixels, and no codes of pixels between them.

    Returns:
        What any decoder takes if its header allows, with a warning, as if its codes were damaged. `None` where the file
        is not as nearly all are: a header, whose segments follow each other, of a sequential file, the codes of one
        scan, and the mark of the end.
    """
    frame, position, after_codes = 0, 2, _AFTER_CODES
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] in _HEADER:
        marker, body = data[position + 1], position + 4
        position += 2 + int(struct.unpack_from(">H", data, position + 2)[0])
        if marker == _RESTART_INTERVAL:
            after_codes = _AFTER_RESTARTED_CODES if any(data[body : body + 2]) else _AFTER_CODES
        elif marker in _SEQUENTIAL_FRAMES:
            if frame or position > len(data) or max(struct.unpack_from(">HH", data, body + 1)) > _MOST_SIDE:
                return None
            frame = body
        elif marker == _SCAN:
            end = after_codes.search(data, position) if frame else None
            if end is None or end[0] != _END_BYTES:
                return None
            empty = bytearray(data[:position])
            struct.pack_into(">HH", empty, frame + 1, _BLOCK_SIDE, _BLOCK_SIDE)
            return bytes(empty) + _END_BYTES
    return None


def first_rows(data: bytes, header: JpegHeader, rows: int) -> bytearray | None:
    """The same file with a header that says it has only its first rows: a decoder stops there.

    The rest of the file stays, as where in it a row begins is known only to who decodes it; decoders pass over it,
    and warn of it. The last of the rows may lack what colours of the next one would have added to it.

    Args:
        data: the whole file.
        header: of it.
        rows: how many, at least 1 and less than the file's.

    Returns:
        `None` where rows do not come one after the other (progressive files, several scans), or the file has no end:
        it is cut off, which nobody would notice any more, or other data follows it.
    """
    if header.frame not in _SEQUENTIAL_FRAMES or data[-2:] != _END_BYTES:
        return None
    if _first_scan_components(data, header.frame_at) != header.components:
        return None
    short = bytearray(data)
    struct.pack_into(">H", short, header.frame_at + 1, rows)
    return short


def _first_scan_components(data: bytes, frame_at: int) -> int:
    """How many components the first scan has; 0 where none is found where markers follow each other as they should."""
    position = frame_at - 2
    while position + 5 <= len(data):
        position += struct.unpack_from(">H", data, position)[0]
        if position + 5 > len(data) or data[position] != 0xFF:
            break
        if data[position + 1] == _SCAN:
            return int(data[position + 4])
        position += 2
    return 0
