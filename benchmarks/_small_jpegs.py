"""Many small JPEGs, cheap to make."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 64
_KINDS = 16


def write_small_jpegs(folder: Path, count: int, *, classes: int = 10) -> None:
    """Write `count` JPEGs of 64x64 pixels into class folders; a few different ones in turn."""
    kinds = [_jpeg(number) for number in range(_KINDS)]
    for label in range(classes):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"class_{number % classes:02d}" / f"{number:06d}.jpg").write_bytes(kinds[number % _KINDS])


def _jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
