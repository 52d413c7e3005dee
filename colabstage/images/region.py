"""A part of an image file, at no more detail than is asked for: what a random crop needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.images.decode import MAX_PIXELS, decode_image
from colabstage.images.geometry import Placement, reduction_factor, turn_upright
from colabstage.images.headers import first_rows, is_jpeg, read_jpeg_header
from colabstage.images.options import ImageOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.headers import JpegHeader
    from colabstage.images.options import ColorMode

Crop = tuple[int, int, int, int]


def decode_region(
    data: bytes, color_mode: ColorMode, crop: Crop, target: tuple[int, int], *, scratch: bytearray | None = None
) -> NDArray[Any]:
    """Decode a part of an image file.

    A JPEG is decoded no further than to the part's last row, where its rows come one after the other; and at a half, a
    quarter or an eighth of its size where the part is that much larger than `target`: the edges then fall on whole
    pixels of the smaller image, up to half a pixel of that beside where they were.

    Args:
        data: the whole file.
        color_mode: `"rgb"` or `"grayscale"`.
        crop: top, left, height and width of the part in the upright image, in pixels.
        target: height and width that it will be resized to, in pixels.
        scratch: memory to decode into, one for each thread; grows as needed.

    Returns:
        uint8 `(h, w, C)`; over `scratch`, and not contiguous.

    Raises:
        DecodeError: the file is truncated, broken, too large, or no image.
    """
    part = _decode_jpeg(data, color_mode, crop, target, scratch) if is_jpeg(data) else None
    if part is not None:
        return part
    top, left, height, width = crop
    pixels = decode_image(data, ImageOptions(color_mode=color_mode))
    return np.asarray(pixels[top : top + height, left : left + width])


def _decode_jpeg(
    data: bytes, color_mode: ColorMode, crop: Crop, target: tuple[int, int], scratch: bytearray | None
) -> NDArray[np.uint8] | None:
    """Decode the part of a JPEG alone; `None` where the file has to be looked at as a whole."""
    import simplejpeg

    header = read_jpeg_header(data)
    if header.components not in (1, 3) or header.precision != 8 or header.height * header.width > MAX_PIXELS:
        return None
    top, left, height, width = crop
    # The same rule as for whole images, so that a crop of the whole is the whole.
    box = (float(left), float(top), float(left + width), float(top + height))
    factor = reduction_factor(Placement(box, target, (0, 0), target))
    top, left, height, width = _lying(crop, header)
    first_row, last_row = _reduced(top, height, factor, header.height)
    first_column, last_column = _reduced(left, width, factor, header.width)
    # One row more: the last one takes half of its colours from there.
    rows = min(header.height, (last_row + 1) * factor)
    short = first_rows(data, header, rows) if rows < header.height else None
    # As libjpeg rounds: up, so that the last block counts.
    size = -(-(header.height if short is None else rows) // factor), -(-header.width // factor)
    if scratch is not None:
        channels = 1 if color_mode == "grayscale" else 3
        scratch.extend(bytes(max(0, size[0] * size[1] * channels - len(scratch))))
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data if short is None else short,
            "GRAY" if color_mode == "grayscale" else "RGB",
            min_height=size[0] if factor > 1 else 0,
            min_width=size[1] if factor > 1 else 0,
            buffer=scratch,
            strict=short is None,
        )
    except ValueError:
        return None
    return turn_upright(pixels[first_row:last_row, first_column:last_column], header.orientation)


def _reduced(start: int, length: int, factor: int, limit: int) -> tuple[int, int]:
    """Return the first and last (exclusive) of the pixels that blocks of `factor` became."""
    first = min(round(start / factor), -(-limit // factor) - 1)
    return first, min(-(-limit // factor), max(first + 1, round((start + length) / factor)))


def _lying(crop: Crop, header: JpegHeader) -> Crop:
    """Return the crop in the image as it is stored, before it is turned upright."""
    top, left, height, width = crop
    # The steps of `turn_upright`, back to front.
    turned = header.orientation in (5, 6, 7, 8)
    rows, columns = (header.width, header.height) if turned else (header.height, header.width)
    if header.orientation in (2, 3, 6, 7):
        left = columns - left - width
    if header.orientation in (3, 4, 7, 8):
        top = rows - top - height
    return (left, top, width, height) if turned else (top, left, height, width)
