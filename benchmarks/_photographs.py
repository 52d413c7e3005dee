"""Photographs to measure with: made here, sized and detailed like those that people keep on Drive."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = 24


def photograph(number: int, *, height: int = 375, width: int = 500, target_bytes: int = 100_000) -> bytes:
    """One JPEG of about `target_bytes`: smooth shapes with fine detail on them, as a camera gives."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    grain = random.normal(0, 1, (height, width, 1)).astype(np.float32)
    best = b""
    # Detail is what makes a JPEG large: find the amount by halving.
    low, high = 0.0, 60.0
    for _ in range(7):
        amount = (low + high) / 2
        image = Image.fromarray(np.clip(smooth + amount * grain, 0, 255).astype(np.uint8))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        best = buffer.getvalue()
        low, high = (amount, high) if len(best) < target_bytes else (low, amount)
    return best


def write_photographs(folder: Path, count: int, *, classes: int = 10) -> int:
    """Write `count` JPEGs into class folders; a few different ones in turn. Returns their bytes together."""
    kinds = [photograph(number) for number in range(min(_KINDS, count))]
    for label in range(classes):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    total = 0
    for number in range(count):
        data = kinds[number % len(kinds)]
        (folder / f"class_{number % classes:02d}" / f"{number:06d}.jpg").write_bytes(data)
        total += len(data)
    return total


def zip_folder(folder: Path, target: Path) -> None:
    """Put a folder's files into a zip, as `zip -r` does."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
