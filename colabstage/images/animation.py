"""Whether an image file is an animation, by its structure alone: nothing is decoded."""

from __future__ import annotations

_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_WEBP_ANIMATION = 0x02


def is_animated(data: bytes) -> bool:
    """Whether a GIF, PNG or WebP file has more than one frame; `False` for other formats and for what is broken."""
    try:
        if data[:4] == b"GIF8":
            return _gif_frames(data, most=2) > 1
        if data.startswith(_PNG_HEAD):
            return _png_frames(data) > 1
    except IndexError:
        return False
    is_extended = data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X" and len(data) > 20
    return is_extended and bool(data[20] & _WEBP_ANIMATION)


def _gif_frames(data: bytes, *, most: int) -> int:
    position, frames = 13 + _color_table(data[10]), 0
    while frames < most:
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
    return frames


def _color_table(flags: int) -> int:
    """Bytes of the table of colours that the flags announce."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _png_frames(data: bytes) -> int:
    """What the animation control chunk says, which comes before the pixels; 1 without it."""
    position = len(_PNG_HEAD)
    while position + 12 <= len(data):
        kind = data[position + 4 : position + 8]
        if kind == b"acTL":
            return int.from_bytes(data[position + 8 : position + 12], "big")
        if kind == b"IDAT":
            break
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return 1
