"""Where an image of one size goes in an image of another: pure arithmetic, no pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.options import Resize


@dataclass(frozen=True, slots=True)
class Placement:
    """Say how a source image becomes the target image. All sizes in pixels."""

    box: tuple[float, float, float, float]
    """`(left, upper, right, lower)` of the source that is used; fractions of a pixel are meant."""
    scaled: tuple[int, int]
    """`(height, width)` that the box is scaled to."""
    offset: tuple[int, int]
    """`(top, left)` of the scaled box inside the target; what it leaves uncovered is black."""
    target: tuple[int, int]
    """`(height, width)` of the result."""

    @property
    def is_padded(self) -> bool:
        """Return whether the scaled box leaves a part of the target uncovered."""
        return self.scaled != self.target

    def reduced(self, factor: int) -> Placement:
        """Return the same placement of a source in which each pixel stands for a block of `factor` by `factor`."""
        if factor == 1:
            return self
        left, upper, right, lower = self.box
        return replace(self, box=(left / factor, upper / factor, right / factor, lower / factor))

    @property
    def is_identity(self) -> bool:
        """Return whether the source is the target already, pixel for pixel."""
        height, width = self.target
        return not self.is_padded and self.box == (0.0, 0.0, float(width), float(height))


def place_image(source: tuple[int, int], target: tuple[int, int] | None, resize: Resize) -> Placement:
    """Work out how an image of size `source` fills `target`.

    Args:
        source: `(height, width)` in pixels, at least 1 each.
        target: `(height, width)` in pixels, `None` for the source's own.
        resize: `"stretch"`, `"crop"` or `"pad"`, as in `ImageOptions`.

    >>> place_image((100, 200), (50, 50), "crop").box
    (50.0, 0.0, 150.0, 100.0)
    >>> place_image((100, 200), (50, 50), "pad").scaled
    (25, 50)
    """
    height, width = source
    # Fractions, since a box that is cropped need not end on a pixel.
    whole = (0.0, 0.0, float(width), float(height))
    if target is None:
        return Placement(whole, source, (0, 0), source)
    if resize == "crop":
        return Placement(_covering_box(source, target), target, (0, 0), target)
    if resize == "pad":
        scaled = _fitting_size(source, target)
        # In the middle, as people crop and frame; an odd pixel goes below or to the right.
        offset = ((target[0] - scaled[0]) // 2, (target[1] - scaled[1]) // 2)
        return Placement(whole, scaled, offset, target)
    return Placement(whole, target, (0, 0), target)


def reduction_factor(placement: Placement) -> int:
    """Return the largest of 1, 2, 4, 8 by which both sides of the used box may shrink and still cover what is made of
    it.

    A JPEG decodes to a half, a quarter or an eighth of its size for less than its whole, each pixel the mean of a
    block; what is left for the filter is a reduction by less than two.
    """
    left, upper, right, lower = placement.box
    height, width = placement.scaled
    shrink = min((right - left) / width, (lower - upper) / height)
    return next((factor for factor in (8, 4, 2) if shrink >= factor), 1)


def fit_boxes(
    boxes: NDArray[np.float64], sizes: NDArray[np.int64], target: tuple[int, int] | None, resize: Resize
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Move boxes with the images that they are in.

    Args:
        boxes: `(M, 4)`: x0, y0, x1, y1 in pixels of the source image.
        sizes: `(M, 2)`: height and width of the source image of each box.
        target: `(height, width)` of the result, `None` for the source's own.
        resize: as in `place_image`.

    Returns:
        The boxes in pixels of the result, and bool `(M,)`: which of them are left. Only cropping takes any away: those
        with no area inside; what is left of the others is cut at the edges.
    """
    kept = np.ones(len(boxes), dtype=bool)
    if target is None:
        return boxes, kept
    shapes, which = np.unique(sizes, axis=0, return_inverse=True)
    scale, shift = np.empty((len(shapes), 2)), np.empty((len(shapes), 2))
    for number, (height, width) in enumerate(shapes.tolist()):
        placement = place_image((height, width), target, resize)
        left, upper, right, lower = placement.box
        factors = placement.scaled[1] / (right - left), placement.scaled[0] / (lower - upper)
        scale[number] = factors
        shift[number] = placement.offset[1] - left * factors[0], placement.offset[0] - upper * factors[1]
    which = which.reshape(-1)
    moved = boxes * np.tile(scale[which], 2) + np.tile(shift[which], 2)
    if resize == "crop":
        height, width = target
        moved = np.clip(moved, 0, [width, height, width, height])
        kept = (moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])
    return moved, kept


def _covering_box(source: tuple[int, int], target: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the largest centred box of the source with the target's aspect ratio."""
    height, width = source
    wanted_height, wanted_width = target
    if width * wanted_height > height * wanted_width:
        box_width = height * wanted_width / wanted_height
        left = (width - box_width) / 2
        return (left, 0.0, left + box_width, float(height))
    box_height = width * wanted_height / wanted_width
    top = (height - box_height) / 2
    return (0.0, top, float(width), top + box_height)


def _fitting_size(source: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size with the source's aspect ratio that fits the target, one pixel at least."""
    height, width = source
    wanted_height, wanted_width = target
    if width * wanted_height > height * wanted_width:
        return (max(1, round(height * wanted_width / width)), wanted_width)
    return (wanted_height, max(1, round(width * wanted_height / height)))


def turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels `(h, w, C)` as their EXIF orientation (1 to 8) asks; no pixel is copied."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels
