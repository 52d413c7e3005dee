"""Resizing one decoded image into its place in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize `(h, w, C)` to the size of `out`, `(H, W, C)`, by the antialiased bilinear filter.

    torch's own filter for bytes, which is Pillow's within one grey level of 255, and takes a quarter of its time: it
    needs no copy into four channels and none out of them (benchmarks/read_jpeg.py). May be called from several threads.
    """
    import torch

    if pixels.shape == out.shape:
        out[...] = pixels
        return
    # torch would share the copy of a part out among threads of its own, which costs a hundred times as much when the
    # cores are busy with other images.
    source = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    target = torch.from_numpy(out).permute(2, 0, 1)[None]
    torch.ops.aten._upsample_bilinear2d_aa.out(source, list(out.shape[:2]), False, None, None, out=target)
