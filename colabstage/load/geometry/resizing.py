"""Resizing one decoded image into its place in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from colabstage.images.resample import scale_by_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize `(h, w, C)` to the size of `out`, `(H, W, C)`, by the antialiased bilinear filter.

    By torch's own filter for bytes, where there is torch: it is Pillow's within one grey level of 255, and takes a
    quarter of its time, as it needs no copy into four channels and none out of them (benchmarks/read_jpeg.py). By
    Pillow's otherwise. May be called from several threads.
    """
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    try:
        # torch would share the copy of a part out among threads of its own, which costs a hundred times as much when
        # the cores are busy with other images.
        scale_by_torch(np.ascontiguousarray(pixels), out)
    except ImportError:
        _resize_by_pillow(pixels, out)


def _resize_by_pillow(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    from PIL import Image

    height, width, channels = out.shape
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
    out[...] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(out.shape)
