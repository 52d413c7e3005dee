"""Where an image of one size goes in an image of another, which is pure arithmetic; and scaling its pixels to there.

Pixels are scaled by Pillow's bilinear filter, or by torch's kernel of the same filter. Both let the filter's support
grow with the reduction (no aliasing). torch's kernel is four to six times as fast for images of three channels where
the processor has AVX2. It works on the thread that calls it alone, gives the interpreter lock away, and comes within
one grey level of Pillow. Which of the two is used shows in the bytes, so it is never chosen here: whoever packs decides
it once for all images.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.io.pipeline import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.images.decode import Scratch
    from colabstage.images.options import Resize

Resizer = Literal["pillow", "torch"]

# Only these processors may have AVX2, without which torch's kernel is not fast.
_X86 = ("x86_64", "amd64")
# No import takes longer, except from a broken disk.
_MOST_S = 300.0
_TOLERANCE = 1
# Both sides of it are reduced, by fractions: every pixel of the result is weighted from several.
_PATTERN, _SMALLER = (61, 83), (24, 37)


@dataclass(frozen=True, slots=True)
class Placement:
    """How a source image becomes the target image. All sizes in pixels."""

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
    rows, columns = target
    is_wider = width * rows > height * columns
    if resize == "crop":
        # The largest box in the middle with the target's aspect ratio.
        box_width, box_height = (height * columns / rows, height) if is_wider else (width, width * rows / columns)
        left, top = (width - box_width) / 2, (height - box_height) / 2
        return Placement((left, top, left + box_width, top + box_height), target, (0, 0), target)
    if resize == "pad":
        # One pixel at least.
        scaled = (
            (max(1, round(height * columns / width)), columns)
            if is_wider
            else (rows, max(1, round(width * rows / height)))
        )
        # In the middle, as people crop and frame; an odd pixel goes below or to the right.
        return Placement(whole, scaled, ((rows - scaled[0]) // 2, (columns - scaled[1]) // 2), target)
    return Placement(whole, target, (0, 0), target)


def reduction_factor(placement: Placement) -> int:
    """Return the largest of 1, 2, 4, 8 by which both sides of the used box may shrink and still cover what is made of
    it.

    A JPEG decodes to a half, a quarter or an eighth of its size for less than its whole, each pixel the mean of a
    block; what is left for the filter is a reduction by less than two.
    """
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


def turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels `(h, w, C)` as their EXIF orientation (1 to 8) asks; no pixel is copied."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def resample(
    pixels: NDArray[Any],
    placement: Placement,
    *,
    gap: float | None = None,
    resizer: Resizer = "pillow",
    scratch: Scratch | None = None,
) -> NDArray[Any]:
    """Scale an image as `placement` says, and pad it with 0.

    Args:
        pixels: C-contiguous `(H, W, C)` of 1, 3 or 4 channels; uint8, uint16 or float32.
        placement: where it goes.
        gap: with Pillow, a side that shrinks by that times two or more is first reduced by a whole number, block by
            block.
        resizer: `"torch"` scales uint8 images of 3 channels whose box has whole numbers by torch; all others go
            through Pillow, as do all with `"pillow"`.
        scratch: memory in which the result may lie.

    Returns:
        C-contiguous `(H, W, C)` of the placement's target size, of the dtype of `pixels`.
    """
    shape = (*placement.scaled, pixels.shape[2])
    if resizer == "torch" and (
        pixels.dtype == np.uint8 and pixels.shape[2] == 3 and all(edge.is_integer() for edge in placement.box)
    ):
        # What will be padded is copied, so its own memory is gone again soon.
        out = np.empty(shape, np.uint8) if scratch is None or placement.is_padded else scratch.resized(shape)
        left, upper, right, lower = map(int, placement.box)
        flags, is_whole = pixels.flags, (upper, left, lower, right) == (0, 0, *pixels.shape[:2])
        if not (is_whole and flags.c_contiguous and flags.writeable):
            # torch warns of memory that it must not write to, though it only reads it.
            pixels = np.require(pixels[upper:lower, left:right], requirements=("C", "W"))
        scale_by_torch(pixels, out)
    else:
        out = _scale_by_pillow(pixels, placement, gap).reshape(shape)
    if not placement.is_padded:
        return out
    result = np.zeros((*placement.target, pixels.shape[2]), pixels.dtype)
    (top, left), (height, width) = placement.offset, placement.scaled
    result[top : top + height, left : left + width] = out
    return result


def can_torch_resize() -> bool:
    """Return whether torch is here, has its fast kernel on this processor, and keeps within one grey level of Pillow.

    Imports torch where it is installed, which takes one core about two seconds, and 200 MB.
    """
    try:
        import torch

        if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
            return False
        values = np.arange(_PATTERN[0] * _PATTERN[1] * 3, dtype=np.uint64) * 2_654_435_761 >> 13
        pixels = (values & 0xFF).astype(np.uint8).reshape(*_PATTERN, 3)
        placement = place_image(_PATTERN, _SMALLER, "stretch")
        by_torch, by_pillow = (resample(pixels, placement, resizer=resizer) for resizer in ("torch", "pillow"))
        return int(np.abs(by_torch.astype(int) - by_pillow).max()) <= _TOLERANCE
    # A broken installation raises anything; it is no reason not to pack.
    except Exception:  # noqa: BLE001
        return False


def scale_by_torch(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Scale C-contiguous, writable uint8 `(H, W, C)` of 1 or 3 channels into C-contiguous `out`, `(h, w, C)`.

    This order of memory is what torch calls channels-last, so that nothing is copied, nor shared out among threads.

    Raises:
        ImportError: there is no torch.
    """
    import torch

    # What `torch.nn.functional.interpolate` calls, which has no `out`: its result would be fresh pages for every image.
    # By this name it holds the interpreter lock for less time than by `torch.ops`.
    kernel: Any = torch._C._nn._upsample_bilinear2d_aa
    kernel(_to_tensor(pixels), out.shape[:2], False, None, None, out=_to_tensor(out))


def _to_tensor(pixels: NDArray[np.uint8]) -> Any:
    import torch

    # Turned by numpy, since each of torch's own functions gives the interpreter lock away and has to wait for it.
    return torch.from_numpy(pixels.transpose(2, 0, 1)[None])


def _scale_by_pillow(pixels: NDArray[Any], placement: Placement, gap: float | None) -> NDArray[Any]:
    from PIL import Image

    # Pillow resamples uint8 of 1, 3 and 4 channels, and float32; 16 bits take the detour.
    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    image = Image.fromarray(flat.astype(np.float32) if pixels.dtype == np.uint16 else flat)
    height, width = placement.scaled
    values = np.array(image.resize((width, height), Image.Resampling.BILINEAR, placement.box, gap))
    if pixels.dtype == np.uint16:
        values = np.rint(values)
    return values.astype(pixels.dtype, copy=False)


class UnusableTorchError(Exception):
    """Torch was planned to resize, but cannot."""


def expects_torch() -> bool:
    """Return whether torch is likely to be usable, without importing it."""
    # Only the import shows whether the installation works and the processor has AVX2.
    if "torch" in sys.modules:
        return can_torch_resize()
    return platform.machine().lower() in _X86 and find_spec("torch") is not None


class TorchImport:
    """An import of torch in a thread of its own."""

    def __init__(self) -> None:
        """Start the thread."""
        # Not a daemon, so that the interpreter does not end in the middle of the import.
        self._usable = in_thread(can_torch_resize, "colabstage-import", daemon=False)

    def require(self) -> None:
        """Wait until torch is imported. Called by every thread that is about to resize.

        Raises:
            UnusableTorchError: it cannot resize.
        """
        try:
            usable = self._usable.result(_MOST_S)
        except TimeoutError as error:
            raise UnusableTorchError from error
        if not usable:
            raise UnusableTorchError

    def when_usable(self, call: Callable[[], object]) -> None:
        """Call `call` once torch is imported and can resize, in its thread, or in this one if it is already."""
        self._usable.add_done_callback(lambda usable: call() if usable.result() else None)
