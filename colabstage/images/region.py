"""Parts of images: decoded no further than they need, or cut from an image that is decoded whole and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.images.decode import decode_image, decode_turbo, is_plain
from colabstage.images.geometry import ImageOptions, block_side, turn_upright
from colabstage.images.headers import comes_by_rows, first_rows, is_jpeg, read_jpeg_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.images.geometry import ColorMode
    from colabstage.images.headers import JpegHeader

# Top, left, height and width.
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
    """
    part = _decode_jpeg(data, color_mode, crop, target, scratch) if is_jpeg(data) else None
    if part is not None:
        return part
    top, left, height, width = crop
    pixels = decode_image(data, ImageOptions(color_mode=color_mode))
    return np.asarray(pixels[top : top + height, left : left + width])


class WholeImage(NamedTuple):
    """An image from which any crop can be cut that is decoded by the same factor."""

    pixels: NDArray[np.uint8]
    """`(h, w, C)` as the file has them, before they are turned upright; each the mean of a block of `factor` by
    `factor`."""
    factor: int
    """1, 2, 4 or 8; 0 where crops are cut from the image at its own size, whatever they are resized to."""
    header: JpegHeader | None
    """`None` where pixels are upright."""

    def cut(self, crop: Crop) -> NDArray[np.uint8]:
        """Return what `decode_region` returns of this crop, over the same pixels; its factor must be this one."""
        if self.header is None:
            top, left, height, width = crop
            return self.pixels[top : top + height, left : left + width]
        rows, columns = _reduced_crop(crop, self.factor, self.header)
        return turn_upright(self.pixels[slice(*rows), slice(*columns)], self.header.orientation)


def region_factor(crop: Crop, target: tuple[int, int]) -> int:
    """Return by how much `decode_region` reduces a JPEG: 1, 2, 4 or 8."""
    # The same rule as for whole images, so that a crop of the whole is the whole.
    return block_side(crop[2], crop[3], target)


# Of a JPEG's rows. The last tenth takes less time to decode than one of ten later crops of the same image does; more
# would make the epoch that keeps images so much slower that two epochs took longer than without.
_NEARLY_ALL = 0.9


def decode_whole(
    data: bytes,
    color_mode: ColorMode,
    crop: Crop,
    factor: int,
    *,
    reserve: Callable[[int], NDArray[np.uint8] | None] | None = None,
) -> WholeImage | None:
    """Decode an image file so that any of its crops of this `region_factor` can be cut from it, if this one needs
    nearly all of it anyway.

    Args:
        data: the whole file.
        color_mode: `"rgb"` or `"grayscale"`.
        crop: as of `decode_region`.
        factor: of the crop.
        reserve: gives memory for the result, uint8 `(n,)` of at least so many bytes, once it is known that a JPEG will
            be decoded; `None` where there is none. By default it is memory of its own.

    Returns:
        `None` where `decode_region` takes considerably less time, or what a crop shows depends on how far the file is
        decoded (the decoder warns of some of it), or there is no memory.
    """
    header = read_jpeg_header(data) if is_jpeg(data) else None
    if header is None or not is_plain(header):
        return WholeImage(decode_image(data, ImageOptions(color_mode=color_mode)), 0, None)
    (_, last_row), _ = _reduced_crop(crop, factor, header)
    if last_row * factor < _NEARLY_ALL * header.height and comes_by_rows(data, header):
        return None
    size, gray = (header.height, header.width), color_mode == "grayscale"
    memory = None
    if reserve is not None:
        memory = reserve(-(-header.height // factor) * -(-header.width // factor) * (1 if gray else 3))
        if memory is None:
            return None
    pixels = decode_turbo(data, size, factor, gray=gray, scratch=memory)
    return None if pixels is None else WholeImage(pixels, factor, header)


def _decode_jpeg(
    data: bytes, color_mode: ColorMode, crop: Crop, target: tuple[int, int], scratch: bytearray | None
) -> NDArray[np.uint8] | None:
    """Decode the part of a JPEG alone; `None` where the file has to be looked at as a whole."""
    header = read_jpeg_header(data)
    if not is_plain(header):
        return None
    factor = region_factor(crop, target)
    (_, last_row), _ = _reduced_crop(crop, factor, header)
    # One row more: the last one takes half of its colours from there.
    rows = min(header.height, (last_row + 1) * factor)
    short = first_rows(data, header, rows) if rows < header.height else None
    pixels = decode_turbo(
        data if short is None else short,
        (header.height if short is None else rows, header.width),
        factor,
        gray=color_mode == "grayscale",
        scratch=scratch,
        strict=short is None,
    )
    if pixels is None:
        return None
    # Its first rows, if not all.
    return WholeImage(pixels, factor, header).cut(crop)


def _reduced_crop(crop: Crop, factor: int, header: JpegHeader) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns of a crop, first and last (exclusive), in an image reduced by `factor`."""
    top, left, height, width = _lying(crop, header)
    return _reduced(top, height, factor, header.height), _reduced(left, width, factor, header.width)


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
