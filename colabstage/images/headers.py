"""What the header of an image file says, without decoding a pixel: kind, size, components, orientation, frames.

Decoders, and code that only looks at the header, ask `read_orientation` which way up an image is: boxes and crops count
in the upright image, so that both have to agree. Pillow's own reading stops at whatever is odd in the rest of an EXIF
block; this one looks at the one entry.
"""

from __future__ import annotations

import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Made once, as crops read a header and walk to the scan for each of thousands of images a second.
_READ_LENGTH, _READ_FRAME = struct.Struct(">H").unpack_from, struct.Struct(">BHHB").unpack_from
_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_WEBP_ANIMATION = 0x02
# How numbers lie in a TIFF, by its first bytes.
_TIFF_HEADS = {b"II*\0": "<", b"MM\0*": ">"}
# The tag that says what a page of a TIFF is for, and what is no page of its own: a smaller copy, a mask of another.
_PAGE_KIND, _NO_PAGE = 254, 0b101
# More than any file that people train on; a list of pages may lead back to its beginning.
_MOST_PAGES = 64
_TAG = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# How an entry's number lies, by the kind of the entry: a byte, two or four.
_NUMBERS = {1: "B", 3: "H", 4: "I"}
_RAW_PROFILE, _PNG_XMP = b"Raw profile type exif", b"XML:com.adobe.xmp"
# More than any text of this kind has; what unpacks to more is none.
_MOST_TEXT_BYTES = 1 << 20
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC share the range but are tables and extensions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Their rows come one after the other, unless there are several scans; those of progressive files never do.
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
END_BYTES = bytes((0xFF, _END))
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
# No JPEG of fewer bytes has many pixels: a block of 64 of one colour takes six bits and more.
_SMALL_JPEG_BYTES = 512 * 1024
# In so many of a WebP's bytes the kind of its pixels shows.
_WEBP_HEAD_BYTES = 64


def _tiff_pages(data: bytes, order: str) -> int:
    """Return how many pages a TIFF has, at most two, as two tell. Smaller copies of a page, as cameras and pyramids
    have them, do not count."""
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    pages, seen = 0, 0
    while at and pages < 2 and seen < _MOST_PAGES:
        (entries,) = struct.unpack_from(f"{order}H", data, at)
        # Entries are sorted by their tags, and none that readers know comes before this one.
        tag, kind = struct.unpack_from(f"{order}HH", data, at + 2)
        number = struct.unpack_from(f"{order}{_NUMBERS.get(kind, 'I')}", data, at + 10)[0] if tag == _PAGE_KIND else 0
        pages += not number & _NO_PAGE
        seen += 1
        (at,) = struct.unpack_from(f"{order}I", data, at + 2 + 12 * entries)
    return pages


def is_animated(data: bytes) -> bool:
    """Return whether a GIF, PNG or WebP has several frames, or a TIFF several pages; `False` for other formats and for
    what is broken."""
    try:
        if data[:4] == b"GIF8":
            position, frames = 13 + _color_table(data[10]), 0
            # Two tell; a film of a thousand pictures need not be walked through.
            while frames < 2:
                kind = data[position]
                if kind == _GIF_IMAGE:
                    frames += 1
                    position += 11 + _color_table(data[position + 9])
                elif kind == _GIF_EXTENSION:
                    position += 2
                else:
                    break
                while data[position]:
                    position += 1 + data[position]
                position += 1
            return frames > 1
        if data.startswith(_PNG_HEAD):
            return _png_frames(data) > 1
        if data[:4] in _TIFF_HEADS:
            return _tiff_pages(data, _TIFF_HEADS[data[:4]]) > 1
    except (IndexError, struct.error):
        return False
    is_extended = data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X" and len(data) > 20
    return is_extended and bool(data[20] & _WEBP_ANIMATION)


def _color_table(flags: int) -> int:
    """Return the bytes of the table of colours that the flags announce."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _png_frames(data: bytes) -> int:
    """Return what the animation control chunk says, which comes before the pixels; 1 without it."""
    position = len(_PNG_HEAD)
    while position + 12 <= len(data):
        kind = data[position + 4 : position + 8]
        # Only before the pixels does it count, as the format has it.
        if kind == b"acTL":
            return int.from_bytes(data[position + 8 : position + 12], "big")
        if kind == b"IDAT":
            break
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return 1


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
            xmp = _chunk_text(kind, body)
        elif body.startswith(_RAW_PROFILE + b"\0"):
            profile = _chunk_text(kind, body)
    if not exif:
        # As ImageMagick writes it: three lines of words, then digits.
        with suppress(ValueError):
            exif = bytes.fromhex(b"".join(profile.split(b"\n")[3:]).decode("ascii"))
    return choose_orientation(exif, xmp)


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


def _chunk_text(kind: bytes, body: bytes) -> bytes:
    """Return the text of a PNG's text chunk; empty where it is broken."""
    rest = body.partition(b"\0")[2]
    # Of the three kinds of text one is always packed and one may be.
    packed = kind == b"zTXt"
    if packed:
        rest = rest[1:]
    elif kind == b"iTXt":
        packed, rest = rest[:1] == b"\1", b"\0".join(rest[2:].split(b"\0")[2:])
    try:
        return zlib.decompressobj().decompress(rest, _MOST_TEXT_BYTES) if packed else rest
    except zlib.error:
        return b""


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

    Args:
        data: the whole file.
        header: of it.
        rows: how many, at least 1 and less than the file's.

    Returns:
        `None` where rows do not come one after the other (progressive files, several scans), or the file has no end:
        it is cut off, which nobody would notice any more, or other data follows it.
    """
    if not comes_by_rows(data, header):
        return None
    short = bytearray(data)
    struct.pack_into(">H", short, header.frame_at + 1, rows)
    return short


def comes_by_rows(data: bytes, header: JpegHeader) -> bool:
    """Tell whether `first_rows` can shorten a file: its rows come one after the other, and it has its end."""
    if header.frame not in _SEQUENTIAL_FRAMES or data[-2:] != END_BYTES:
        return False
    # Several scans have the first rows of each colour far apart, and a decoder would read on for them.
    return _first_scan_components(data, header.frame_at) == header.components


def _first_scan_components(data: bytes, frame_at: int) -> int:
    """Return how many components the first scan has; 0 where none is found where markers follow each other as they
    should.
    """
    position = frame_at - 2
    while position + 5 <= len(data):
        position += _READ_LENGTH(data, position)[0]
        if position + 5 > len(data) or data[position] != 0xFF:
            break
        if data[position + 1] == _SCAN:
            return int(data[position + 4])
        position += 2
    return 0


def count_pixels(data: bytes) -> int:
    """Return width times height of an image file by its first bytes; 0 where they do not tell, or it is small."""
    width = height = 0
    try:
        if is_jpeg(data):
            if len(data) >= _SMALL_JPEG_BYTES:
                header = read_jpeg_header(data)
                width, height = header.width, header.height
        elif data.startswith(_PNG_HEAD):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(b"GIF8"):
            width, height = struct.unpack_from("<HH", data, 6)
        # The three forms of WebP keep their size in three ways: extended, lossless, lossy.
        elif data[8:16] == b"WEBPVP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        elif data[8:15] == b"WEBPVP8":
            if data[15:16] == b"L":
                bits = int.from_bytes(data[21:25], "little")
                width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
            else:
                width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        else:
            width, height = len(data), 1  # no smaller than its pixels, where they are not compressed
    except (struct.error, DecodeError):
        return 0
    return width * height


def is_lossy(data: bytes) -> bool:
    """Return whether an image file keeps the values of its pixels only about."""
    return is_jpeg(data) or (data[:4] == b"RIFF" and b"VP8 " in data[:_WEBP_HEAD_BYTES])
