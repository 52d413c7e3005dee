"""Scale the pixels of an image to where they go.

It is done by Pillow's bilinear filter, or by torch's kernel of the same filter. Both let the filter's support grow with
the reduction (no aliasing). torch's kernel is four to six times as fast for images of three channels where the
processor has AVX2. It works on the thread that calls it alone, gives the interpreter lock away, and comes within one
grey level of Pillow. Which of the two is used shows in the bytes, so it is never chosen here: whoever packs decides it
once for all images. How the kernel is reached, through an imported torch or through its library alone, does not show.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from colabstage.images.geometry import place_image
from colabstage.images.libtorch import LibTorch, find_libtorch
from colabstage.io.pipeline import in_thread
from colabstage.io.whole_imports import whole_imports

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.images.decode import Scratch
    from colabstage.images.geometry import Placement

Resizer = Literal["pillow", "torch"]

# Only these processors may have AVX2, without which torch's kernel is not fast.
_X86 = ("x86_64", "amd64")
# To load it takes no longer, nor to import it, except from a broken disk.
_MOST_S = 300.0
# What a fork waits for torch that is being loaded: a hundred times what it takes.
_FORK_WAITS_S = 60.0
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

    From torch 2.10 on only its library is loaded, which takes one core 0.2 s and 70 MB. An older one is imported, where
    it is installed: one to two seconds, and 150 MB.
    """
    try:
        # Asked again each time: a kernel that was found is of no use where torch has been taken away since.
        if find_spec("torch") is None:
            return False
        kernel = _kernel()
        return kernel.capability.startswith("AVX") and _agrees(kernel)
    # A broken installation raises anything; it is no reason not to pack.
    except Exception:  # noqa: BLE001
        return False


def scale_by_torch(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Scale C-contiguous, writable uint8 `(H, W, C)` of 1 or 3 channels into C-contiguous `out`, `(h, w, C)`.

    This order of memory is what torch calls channels-last, so that nothing is copied, nor shared out among threads.

    Raises:
        ImportError: there is no torch.
    """
    _kernel().scale(pixels, out)


class _Kernel(Protocol):
    """torch's kernel, however it is reached."""

    @property
    def capability(self) -> str: ...

    def scale(self, pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None: ...


class _NoForks:
    """Let no child be forked while torch is being loaded in another thread.

    A child gets the library as far as it has come, and none of the threads that would finish it. There, loading it
    again waited for ever, or gave kernels of which half were missing.
    """

    def __init__(self) -> None:
        """Have each fork of this process wait from now on, and of its children."""
        # Of the thread that loads, so that what an import forks itself does not wait for itself.
        self._loading = threading.RLock()
        self._forking: int | None = None
        # Windows has no forks.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._wait, after_in_parent=self._end_wait, after_in_child=self._end_wait)

    def __enter__(self) -> None:
        self._loading.acquire()

    def __exit__(self, *_: object) -> None:
        self._loading.release()

    def _wait(self) -> None:
        # One that has waited that long is let go: a child that never uses torch is better than none.
        if self._loading.acquire(timeout=_FORK_WAITS_S):
            self._forking = threading.get_ident()

    def _end_wait(self) -> None:
        # In a child it is the same thread, by the same number.
        if self._forking == threading.get_ident():
            self._forking = None
            self._loading.release()


@cache
def _no_forks() -> _NoForks:
    return _NoForks()


@cache
def _kernel() -> _Kernel:
    """Return the kernel of a torch that is imported already, or of its library, or import it.

    Raises:
        ImportError: there is no torch.
    """
    with _no_forks():
        # Through an imported torch a call takes a hundredth of a millisecond less.
        path = None if "torch" in sys.modules else find_libtorch()
        if path is not None:
            # Not where it is too old, needs what only the import brings, or has changed in some other way.
            with suppress(OSError, AttributeError, RuntimeError):
                library = LibTorch(path)
                if _agrees(library):
                    return library
        return _ImportedTorch()


def _agrees(kernel: _Kernel) -> bool:
    """Return whether a kernel keeps within one grey level of Pillow."""
    values = np.arange(_PATTERN[0] * _PATTERN[1] * 3, dtype=np.uint64) * 2_654_435_761 >> 13
    pixels = (values & 0xFF).astype(np.uint8).reshape(*_PATTERN, 3)
    found = np.empty((*_SMALLER, 3), np.uint8)
    kernel.scale(pixels, found)
    expected = _scale_by_pillow(pixels, place_image(_PATTERN, _SMALLER, "stretch"), None)
    return int(np.abs(found.astype(int) - expected).max()) <= _TOLERANCE


class _ImportedTorch:
    """torch's kernel, reached through torch."""

    def __init__(self) -> None:
        with whole_imports():
            import torch

        self._from_numpy: Any = torch.from_numpy
        # What `torch.nn.functional.interpolate` calls, which has no `out`: its result would be fresh pages for every
        # image. By this name it holds the interpreter lock for less time than by `torch.ops`.
        self._kernel: Any = torch._C._nn._upsample_bilinear2d_aa
        self.capability = torch.backends.cpu.get_cpu_capability()

    def scale(self, pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Scale as `scale_by_torch`."""
        self._kernel(self._to_tensor(pixels), out.shape[:2], False, None, None, out=self._to_tensor(out))

    def _to_tensor(self, pixels: NDArray[np.uint8]) -> Any:
        # Turned by numpy, since each of torch's own functions gives the interpreter lock away and has to wait for it.
        return self._from_numpy(pixels.transpose(2, 0, 1)[None])


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
    # Only torch itself shows whether the installation works and the processor has AVX2.
    if "torch" in sys.modules:
        return can_torch_resize()
    return platform.machine().lower() in _X86 and find_spec("torch") is not None


class TorchKernel:
    """torch's kernel, made ready in a thread of its own."""

    def __init__(self) -> None:
        """Start the thread."""
        # Not a daemon, so that the interpreter does not end in the middle of an import.
        self._usable = in_thread(can_torch_resize, "colabstage-torch", daemon=False)

    def require(self) -> None:
        """Wait until the kernel is ready. Called by every thread that is about to resize.

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
        """Call `call` once the kernel can resize, in its thread, or in this one if it can already."""
        self._usable.add_done_callback(lambda usable: call() if usable.result() else None)
