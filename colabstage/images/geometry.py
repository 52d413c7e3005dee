"""The image that an image file becomes: its shape and channels, and the file's place in it. Pure arithmetic, without
numpy, because the command line builds options even to show its help."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import OptionError
from colabstage.io.arguments import check_choice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ColorMode = Literal["auto", "rgb", "grayscale", "keep"]
Resize = Literal["stretch", "crop", "pad"]


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How an image file becomes an array."""

    size: tuple[int, int] | None = None
    """`(height, width)` in pixels every image gets, `None` to keep each image's own."""
    color_mode: ColorMode = "auto"
    """`"rgb"` (3 channels), `"grayscale"` (1 channel), `"keep"` (1, 3 or 4 as in the file), `"auto"` (`"rgb"` for files
    and single images; unchanged for packed arrays whose channels are part of the data)."""
    resize: Resize = "stretch"
    """How an image of another shape reaches `size`: `"stretch"` ignores the aspect ratio; `"crop"` scales until both
    sides cover `size` and cuts the middle out; `"pad"` scales until both sides fit and fills with black.
    """

    def __post_init__(self) -> None:
        check_choice("color_mode", self.color_mode, ColorMode)
        check_choice("resize", self.resize, Resize)
        if self.size is not None and (len(tuple(self.size)) != 2 or min(self.size) < 1):
            msg = f"image_size={self.size!r} is not a size; expected (height, width) in pixels, for example (224, 224)."
            raise OptionError(msg)


# The class index of pixels without a class: where padding covers no image, and the borders in Pascal VOC's masks.
VOID = 255


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """How a mask file becomes class indices."""

    size: tuple[int, int] | None = None
    """Its image's, as `resize`."""
    resize: Resize = "stretch"
    colors: tuple[tuple[int, int, int], ...] | None = None
    """`(r, g, b)` of class 0, 1, …; `None` if its pixels are class indices."""
    foreground: bool = False
    """Whether its pixels are 0 for class 0 and 255 for class 1; those of a blurred edge are the nearer one."""

    def __post_init__(self) -> None:
        if self.colors is not None and not 1 <= len(self.colors) <= VOID:
            msg = f"There are {len(self.colors)} colours of classes; expected 1 to {VOID}, since {VOID} means no class."
            raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class Placement:
    """How a source image becomes the target image. All sizes in pixels."""

    box: tuple[float, float, float, float]
    """`(left, upper, right, lower)` of the used part of the source; may be fractions of a pixel."""
    scaled: tuple[int, int]
    """`(height, width)` that the box is scaled to."""
    offset: tuple[int, int]
    """`(top, left)` of the scaled box inside the target; uncovered parts are black."""
    target: tuple[int, int]
    """`(height, width)` of the result."""

    @property
    def is_padded(self) -> bool:
        """Return whether the scaled box leaves a part of the target uncovered."""
        return self.scaled != self.target

    def reduced(self, factor: int) -> Placement:
        """Return the same placement for a source in which each pixel stands for a block of `factor` by `factor`."""
        if factor == 1:
            return self
        left, upper, right, lower = self.box
        return replace(self, box=(left / factor, upper / factor, right / factor, lower / factor))

    @property
    def is_identity(self) -> bool:
        """Return whether the source already equals the target, pixel for pixel."""
        height, width = self.target
        return not self.is_padded and self.box == (0.0, 0.0, float(width), float(height))


def place_image(source: tuple[int, int], target: tuple[int, int] | None, resize: Resize) -> Placement:
    """Work out how an image of size `source`, (height, width), fills `target`; `None` is the source's own size.

    >>> place_image((100, 200), (50, 50), "crop").box
    (50.0, 0.0, 150.0, 100.0)
    >>> place_image((100, 200), (50, 50), "pad").scaled
    (25, 50)
    """
    height, width = source
    # Fractions, because a cropped box need not end on a pixel.
    whole = (0.0, 0.0, float(width), float(height))
    if target is None:
        return Placement(whole, source, (0, 0), source)
    rows, columns = target
    is_wider = width * rows > height * columns
    if resize == "crop":
        # The largest box in the middle with the target's aspect ratio.
        box_width, box_height = (height * columns / rows, height) if is_wider else (width, width * rows / columns)
        left, top = (width - box_width) / 2, (height - box_height) / 2
        return Placement((left, top, left + box_width, top + box_height), target, (0, 0), target)
    if resize == "pad":
        # One pixel at least.
        fitted = max(1, round(height * columns / width if is_wider else width * rows / height))
        scaled = (fitted, columns) if is_wider else (rows, fitted)
        # Centred, as people crop and frame; an odd pixel goes below or to the right.
        return Placement(whole, scaled, ((rows - scaled[0]) // 2, (columns - scaled[1]) // 2), target)
    return Placement(whole, target, (0, 0), target)


def reduction_factor(placement: Placement) -> int:
    """Return the `block_side` of the used box: a JPEG decodes to such a part of its size faster."""
    left, upper, right, lower = placement.box
    return block_side(lower - upper, right - left, placement.scaled)


def block_side(height: float, width: float, scaled: tuple[int, int]) -> int:
    """Return the largest of 1, 2, 4, 8 by which a box, in pixels, may shrink on both sides and still cover `scaled`."""
    shrink = min(width / scaled[1], height / scaled[0])
    if shrink < 2:
        return 1
    return 8 if shrink >= 8 else 4 if shrink >= 4 else 2


def fit_boxes(
    boxes: NDArray[np.float64], sizes: NDArray[np.int64], target: tuple[int, int] | None, resize: Resize
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Move boxes `(M, 4)`, x0, y0, x1, y1 in pixels of source images of `sizes` `(M, 2)`, with their images; return
    them in pixels of the result, cut at its edges, and bool `(M,)`: which of them have area inside."""
    import numpy as np

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


# Of points, this many are in their image, as some faces are cut; and the mean one is this far from its edges, as a part
# of its sides.
_INSIDE, _MIDDLE = 0.9, 0.25


def are_points(targets: NDArray[Any], sizes: NDArray[np.int64]) -> bool:
    """Tell whether targets `(B, K, …)` or `(B, N)` look like places in images of these `sizes`, `(B, 2)` or `(1, 2)`,
    height and width: pairs of coordinates x, y, each perhaps with a third number."""
    import numpy as np

    if targets.dtype.kind not in "iuf" or targets.shape[2:] not in ((), (2,), (3,), (4,)):
        return False
    # Corners of boxes are two points.
    for step in {(): (2, 3), (3,): (3,)}.get(targets.shape[2:], (2,)):
        if math.prod(targets.shape[1:]) % step == 0:
            places = targets.reshape(len(targets), -1, step)[..., :2].astype(np.float64)
            parts = places / sizes[:, None, ::-1]
            # Points that are not there are 0, 0 or -1, -1 or NaN.
            known = np.isfinite(places).all(axis=-1) & (places > 0).any(axis=-1)
            middle = parts[known].mean(axis=0) if known.any() else np.zeros(2)
            # Counts and shares are near one end.
            if _mostly_within(parts[known], 0) and np.all((middle > _MIDDLE) & (middle < 1 - _MIDDLE)):
                return True
    # Parts of width and height may be any fractions, but nothing else comes in so many pairs.
    is_paired = targets.ndim == 3 and targets.shape[1] > 2 * (targets.shape[2] - 1)
    return is_paired and bool((targets % 1 != 0).any()) and _mostly_within(targets[..., :2], -1)


def _mostly_within(values: NDArray[Any], least: float) -> bool:
    import numpy as np

    return float(np.mean((values >= least) & (values <= 1))) >= _INSIDE


def turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels `(h, w, C)` by their EXIF orientation (1 to 8); no pixel is copied."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels
