"""Which part of an image a random resized crop takes: the algorithm of torchvision, for many images at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRIES = 10
# Numbers that `resized_crops` needs for each image: area and ratio of each try, then the place.
CROP_DRAWS = 2 * _TRIES + 2

AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)


def check_crop_ranges(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    """Refuse ranges that no crop can be drawn from.

    Raises:
        OptionError: with the value and what is expected.
    """
    if not 0 < scale[0] <= scale[1] <= 1:
        msg = f"scale={scale!r} cannot work; expected (least, most) part of the image's area, above 0 and up to 1."
        raise OptionError(msg)
    if not 0 < ratio[0] <= ratio[1] < math.inf:
        msg = f"ratio={ratio!r} cannot work; expected (least, most) width by height, above 0."
        raise OptionError(msg)


def resized_crops(
    sizes: NDArray[np.int64],
    draws: NDArray[np.float64],
    *,
    scale: tuple[float, float] = AREAS,
    ratio: tuple[float, float] = RATIOS,
) -> NDArray[np.int64]:
    """Choose a crop of each image, distributed as torchvision's `RandomResizedCrop` chooses them.

    Ten times an area, evenly from `scale`, and a ratio of the sides, evenly in its logarithm from `ratio`, are drawn;
    the first pair that fits the image is taken, at a place drawn evenly. Where none fits, it is the middle of the
    image, with the ratio as near the image's as `ratio` allows.

    Args:
        sizes: `(B, 2)`, or `(2,)` for all: height and width of the images in pixels.
        draws: float64 `(B, CROP_DRAWS)` in [0, 1), such as `BatchPlace.draws` gives.
        scale: least and most part of the image's area.
        ratio: least and most width by height.

    Returns:
        int64 `(B, 4)`: top, left, height, width of the crops in pixels.
    """
    image = np.broadcast_to(np.asarray(sizes, np.int64), (len(draws), 2))
    height, width = image[:, :1], image[:, 1:]
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :_TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = np.exp(low + (high - low) * draws[:, _TRIES : 2 * _TRIES])
    tries = np.rint(np.sqrt(np.stack([areas / ratios, areas * ratios], axis=2))).astype(np.int64)
    fits = np.all((tries > 0) & (tries <= image[:, None]), axis=2)
    crop = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
    place = np.floor((image - crop + 1) * draws[:, 2 * _TRIES :]).astype(np.int64)
    middle = _middle_crops(image, ratio)
    found = np.any(fits, axis=1)[:, None]
    return np.where(found, np.concatenate([place, crop], axis=1), middle)


def _middle_crops(image: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    height, width = image.T
    own = width / height
    crop = np.stack(
        [
            np.where(own < ratio[0], np.rint(width / ratio[0]), height).astype(np.int64),
            np.where(own > ratio[1], np.rint(height * ratio[1]), width).astype(np.int64),
        ],
        axis=1,
    )
    # At least a pixel: torchvision's own fails on images a thousand times as wide as high.
    crop = np.clip(crop, 1, image)
    return np.concatenate([(image - crop) // 2, crop], axis=1)
