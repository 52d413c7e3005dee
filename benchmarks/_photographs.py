"""Photographs to measure with: made here, sized and detailed like those that people keep on Drive."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import h5py
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


def repeated_photographs(count: int, *, target_bytes: int = 64_000) -> list[bytes]:
    """Return `count` JPEGs of 500x375: a few different ones in turn, because making one takes time."""
    kinds = [photograph(number, target_bytes=target_bytes) for number in range(min(_KINDS, count))]
    return [kinds[number % len(kinds)] for number in range(count)]


def write_encoded(path: Path, files: list[bytes], *, size: tuple[int, int] | None = None) -> None:
    """Write image files as a pack that keeps them as they are, with ten classes in turn; they are resized to `size`,
    height and width, when they are read."""
    with h5py.File(path, "w") as file:
        group = file.create_group("X_train")
        group["bytes"] = np.frombuffer(b"".join(files), np.uint8)
        group["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.int64)
        if size is not None:
            group.attrs["image_options"] = json.dumps({"size": size, "color_mode": "rgb", "resize": "stretch"})
        file["Y_train"] = np.arange(len(files)) % 10


def write_photographs(folder: Path, count: int, *, classes: int = 10) -> int:
    """Write `count` JPEGs into class folders; a few different ones in turn. Returns their bytes together."""
    files = repeated_photographs(count, target_bytes=100_000)
    for label in range(classes):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files):
        (folder / f"class_{number % classes:02d}" / f"{number:06d}.jpg").write_bytes(data)
    return sum(map(len, files))


def zip_folder(folder: Path, target: Path) -> None:
    """Put a folder's files into a zip, as `zip -r` does."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
