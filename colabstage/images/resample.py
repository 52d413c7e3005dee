"""Scale the pixels of an image to where they go.

It is done by Pillow's bilinear filter, or by torch's kernel of the same filter. Both let the filter's support grow with
the reduction (no aliasing). torch's kernel is four to six times as fast for images of three channels where the
processor has AVX2. It works on the thread that calls it alone, gives the interpreter lock away, and comes within one
grey level of Pillow. Which of the two is used shows in the bytes, so it is never chosen here: whoever packs decides it
once for all images.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.images.geometry import place_image
from colabstage.io.whole_imports import whole_imports

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.decode import Scratch
    from colabstage.images.geometry import Placement

Resizer = Literal["pillow", "torch"]

# Only these processors may have AVX2, without which torch's kernel is not fast.
_X86 = ("x86_64", "amd64")
_TOLERANCE = 1
# Both sides of it are reduced, by fractions: every pixel of the result is weighted from several.
_PATTERN, _SMALLER = (61, 83), (24, 37)


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

    Imports torch, which takes one core one to two seconds if nothing else has.
    """
    try:
        # Asked again each time: a kernel that was found is of no use where torch has been taken away since.
        return find_spec("torch") is not None and _kernel().is_fast
    # A broken installation raises anything; it is no reason not to pack.
    except Exception:  # noqa: BLE001
        return False


def expects_torch() -> bool:
    """Return whether torch is likely to be usable, without importing it."""
    # Only torch itself shows whether the installation works and the processor has AVX2.
    if "torch" in sys.modules:
        return can_torch_resize()
    return platform.machine().lower() in _X86 and find_spec("torch") is not None


def scale_by_torch(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Scale C-contiguous, writable uint8 `(H, W, C)` of 1 or 3 channels into C-contiguous `out`, `(h, w, C)`.

    This order of memory is what torch calls channels-last, so that nothing is copied, nor shared out among threads.
    """
    _kernel().scale(pixels, out)


@cache
def _kernel() -> _TorchKernel:
    return _TorchKernel()


class _TorchKernel:
    """torch's kernel for this processor."""

    def __init__(self) -> None:
        with whole_imports():
            import torch

        self._from_numpy: Any = torch.from_numpy
        # What `torch.nn.functional.interpolate` calls, which has no `out`: its result would be fresh pages for every
        # image. By this name it holds the interpreter lock for less time than by `torch.ops`.
        self._kernel: Any = torch._C._nn._upsample_bilinear2d_aa
        self.is_fast = torch.backends.cpu.get_cpu_capability().startswith("AVX") and self._agrees()

    def scale(self, pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Scale as `scale_by_torch`."""
        self._kernel(self._to_tensor(pixels), out.shape[:2], False, None, None, out=self._to_tensor(out))

    def _to_tensor(self, pixels: NDArray[np.uint8]) -> Any:
        # Turned by numpy, since each of torch's own functions gives the interpreter lock away and has to wait for it.
        return self._from_numpy(pixels.transpose(2, 0, 1)[None])

    def _agrees(self) -> bool:
        """Return whether it keeps within one grey level of Pillow."""
        values = np.arange(_PATTERN[0] * _PATTERN[1] * 3, dtype=np.uint64) * 2_654_435_761 >> 13
        pixels = (values & 0xFF).astype(np.uint8).reshape(*_PATTERN, 3)
        found = np.empty((*_SMALLER, 3), np.uint8)
        self.scale(pixels, found)
        expected = _scale_by_pillow(pixels, place_image(_PATTERN, _SMALLER, "stretch"), None)
        return int(np.abs(found.astype(int) - expected).max()) <= _TOLERANCE


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
