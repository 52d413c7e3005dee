"""A part of an image file, at no more detail than is asked for: what a random crop needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.images.decode import decode_reduced
from colabstage.images.geometry import Placement, reduction_factor
from colabstage.images.options import ImageOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.options import ColorMode

Crop = tuple[int, int, int, int]


def decode_region(
    data: bytes, color_mode: ColorMode, crop: Crop, target: tuple[int, int], *, scratch: bytearray | None = None
) -> NDArray[Any]:
    """Decode a part of an image file.

    A JPEG is decoded at a half, a quarter or an eighth of its size where the part is that much larger than `target`;
    the edges then fall on whole pixels of the smaller image, up to half a pixel of that beside where they were.

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
    top, left, height, width = crop
    box = (float(left), float(top), float(left + width), float(top + height))
    wanted = reduction_factor(Placement(box, target, (0, 0), target))
    pixels, _, factor = decode_reduced(data, ImageOptions(color_mode=color_mode), wanted, scratch=scratch)
    rows, columns = pixels.shape[:2]
    first_row, first_column = round(top / factor), round(left / factor)
    last_row = min(rows, max(first_row + 1, round((top + height) / factor)))
    last_column = min(columns, max(first_column + 1, round((left + width) / factor)))
    return np.asarray(pixels[first_row:last_row, first_column:last_column])
