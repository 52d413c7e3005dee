"""Arrays as pictures that a page can hold: any dtype and any channels to 8 bits, masks laid over, as data URIs."""

from __future__ import annotations

import base64
import colorsys
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.images.decode import encode_jpeg
from colabstage.ui.samples.source import channels_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Images of fewer pixels a side are kept as they are, lossless, and enlarged in squares.
# Digits of 28 pixels and CIFAR's 32 are looked at pixel by pixel; filtered they would be a blur.
_SMALL_PX = 96
# Thumbnails of photographs show no blocks at it.
_JPEG_QUALITY = 82
_MASK_OPACITY = 0.5
# No class, as masks of ours say it.
NO_CLASS = 255
_BACKGROUNDS = frozenset({"background", "_background_", "__background__", "bg", "unlabeled", "unlabelled", "void"})
# The golden part of a turn: neighbours in number are far apart in hue, however many there are.
_TURN = 0.618034
_GREY = 128


def class_colour(value: int) -> tuple[int, int, int]:
    """Return red, green and blue of a class, the same everywhere; of three lightnesses, all seen on photographs."""
    lightness = (0.55, 0.68, 0.44)[value % 3]
    red, green, blue = colorsys.hls_to_rgb((0.02 + value * _TURN) % 1.0, lightness, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def css_colour(value: int) -> str:
    """Return the colour of a class as `#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*class_colour(value))


def is_background(value: int, classes: Sequence[str]) -> bool:
    """Tell whether a mask's class is what lies behind things, which is not painted; 0 where classes have no names."""
    if value == NO_CLASS:
        return True
    return classes[value].strip().lower() in _BACKGROUNDS if value < len(classes) else value == 0 and not classes


def to_rgb(x: NDArray[Any], *, longest_px: int) -> tuple[NDArray[np.uint8], str]:
    """Turn an image of any dtype into one that can be shown.

    Args:
        x: `(H, W)`, `(H, W, C)` or `(C, H, W)`. Of two channels the first is shown, of five and more the first three;
            a fourth is transparency, over grey.
        longest_px: larger images are reduced to about this height or width, by leaving out pixels.

    Returns:
        uint8 `(H, W, 3)`, and in words how values became grey levels, empty where they are those.
    """
    pixels = np.moveaxis(x, 0, -1) if channels_first(x.shape) else x
    # Twice as large as shown: the filter that follows needs something to take the mean of.
    step = max(1, max(pixels.shape[:2]) // (2 * longest_px))
    pixels = pixels[::step, ::step]
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    values, note = to_bytes(pixels)
    if values.shape[2] in (1, 2):
        values = values[..., :1]
    elif values.shape[2] == 4:
        values = _over_grey(values)
    values = values[..., :3]
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3))), note


def to_bytes(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Turn numbers into grey levels: bytes as they are, fractions from 0 to 1 times 255, all else from its least to
    its most."""
    if values.dtype == np.uint8:
        return values, ""
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255), ""
    # One pixel that is no number must not make all others black.
    numbers = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    # What nearly every program means by floats in an image.
    if values.dtype.kind == "f" and least >= 0 and most <= 1:
        return (numbers * 255 + 0.5).astype(np.uint8), ""
    scaled = (numbers - least) * (255.0 / (most - least)) if most > least else np.zeros_like(numbers)
    return (scaled + 0.5).astype(np.uint8), f"black is {least:,.4g}, white is {most:,.4g}"


def _over_grey(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    alpha = values[..., 3:].astype(np.float32) / 255
    mixed: NDArray[np.uint8] = (values[..., :3] * alpha + _GREY * (1 - alpha) + 0.5).astype(np.uint8)
    return mixed


def paint_mask(image: NDArray[np.uint8], mask: NDArray[Any], classes: Sequence[str]) -> NDArray[np.uint8]:
    """Paint a mask `(h, w)` of class numbers over an image `(H, W, 3)`, in the classes' colours."""
    height, width = image.shape[:2]
    rows = (np.arange(height) * mask.shape[0]) // height
    columns = (np.arange(width) * mask.shape[1]) // width
    # By the nearest pixel: between two classes there is none.
    near = mask[rows[:, None], columns]
    painted = image.copy()
    for value in np.unique(near).tolist():
        if not is_background(int(value), classes):
            where = near == value
            colour = np.array(class_colour(int(value)), np.float32)
            painted[where] = image[where] * (1 - _MASK_OPACITY) + colour * _MASK_OPACITY
    return painted


def shrink(image: NDArray[np.uint8], longest_px: int) -> NDArray[np.uint8]:
    """Filter an image `(H, W, 3)` down to this height or width, where it is larger."""
    scale = longest_px / max(image.shape[:2])
    if scale >= 1:
        return image
    from PIL import Image

    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))


def data_uri(image: NDArray[np.uint8]) -> str:
    """Encode an image `(H, W, 3)` as text that a page shows: PNG of small ones, JPEG of others."""
    if is_small(image):
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", compress_level=1)
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(image, _JPEG_QUALITY)).decode()}"


def is_small(image: NDArray[np.uint8]) -> bool:
    """Tell whether an image is enlarged in squares, so that each pixel is seen as it is."""
    return int(max(image.shape[:2])) <= _SMALL_PX
