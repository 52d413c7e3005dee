"""Real data to lose: photographs in class folders, and files of random bytes."""

from __future__ import annotations

import io
import random
import zipfile
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

HEIGHT, WIDTH = 120, 160
_CLASSES = 8


# Several campaigns in one process use the same ones.
@cache
def photograph(number: int) -> bytes:
    """One JPEG of 160 x 120 pixels and about 20 kB that no other number gives."""
    chance = np.random.default_rng(number)
    coarse = Image.fromarray(chance.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.float32)
    grain = chance.normal(0, 20, (HEIGHT, WIDTH, 1)).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_photographs(folder: Path, count: int, *, first: int = 0) -> Path:
    """Write `count` different JPEGs into class folders."""
    for number in range(first, first + count):
        place = folder / f"class_{number % _CLASSES}" / f"{number:05d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(photograph(number))
    return folder


def zip_folder(folder: Path, target: Path) -> Path:
    """Put a folder's files into a zip, deflated."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(folder))
    return target


def random_file(path: Path, nbytes: int, seed: int) -> Path:
    """Write a file that cannot be compressed, the same for the same seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(nbytes))
    return path
