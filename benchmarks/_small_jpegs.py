"""Many small JPEGs, cheap to make."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 64
_KINDS = 16


def write_small_jpegs(folder: Path, count: int, *, classes: int = 10) -> None:
    """Write `count` JPEGs of 64x64 pixels into class folders; a few different ones in turn, and links to them."""
    kinds = [_jpeg(number) for number in range(_KINDS)]
    for label in range(classes):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path, first = folder / _name(number, classes), folder / _name(number % _KINDS, classes)
        if number < _KINDS:
            path.write_bytes(kinds[number])
        else:
            path.hardlink_to(first)  # ext4 takes 65,000 to one file


def zip_small_jpegs(path: Path, count: int, *, classes: int = 10) -> None:
    """Write a zip of the same files, stored as they are."""
    kinds = [_jpeg(number) for number in range(_KINDS)]
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            archive.writestr(_name(number, classes), kinds[number % _KINDS])


def _name(number: int, classes: int) -> str:
    return f"class_{number % classes:02d}/{number:06d}.jpg"


def _jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
