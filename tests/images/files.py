"""Image files of every kind, and packs of them."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from colabstage import dataset_h5, pack_dataset
from tests.support.made_files import write_files


def photograph(height: int = 61, width: int = 83, seed: int = 0) -> Image.Image:
    """A smooth colourful picture with some noise, so that subsampling and filters have an effect."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    fine = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return Image.fromarray(np.clip(fine + rng.integers(-9, 10, fine.shape), 0, 255).astype(np.uint8))


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> Image.Image:
    """Every possible value, in random order: the hardest image to agree on."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(values[..., 0] if channels == 1 else values)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Encode it as a file; WebP is lossless."""
    file = io.BytesIO()
    image.save(file, kind, **({"lossless": True, **options} if kind == "WEBP" else options))
    return file.getvalue()


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def by_pillow(data: bytes, mode: str = "RGB") -> NDArray[Any]:
    """Decode a file with Pillow, as (height, width, channels)."""
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def packed(folder: Path, files: Mapping[str, bytes], **options: Any) -> dict[str, NDArray[Any]]:
    """The images in a pack of these files, by name; as `dataset_h5` reads them."""
    return packed_or_skipped(folder, files, on_error="raise", **options)[0]


def packed_or_skipped(
    folder: Path, files: Mapping[str, bytes], **options: Any
) -> tuple[dict[str, NDArray[Any]], set[str]]:
    """The same, and the names of the files that are left out."""
    folder.mkdir(parents=True)
    names = {f"{number:04}{Path(name).suffix}": name for number, name in enumerate(files)}
    source = write_files(folder / "set", {short: files[name] for short, name in names.items()})
    report = pack_dataset(source, folder / "out.h5", layout="images", progress=False, **{"on_error": "skip", **options})
    with h5py.File(folder / "out.h5") as file:
        keys = file["key_train"].asstr()[:]
    dataset = dataset_h5(folder / "out.h5")
    found = {names[key]: np.asarray(dataset[row][0]) for row, key in enumerate(keys)}
    return found, {names[line.partition(":")[0]] for line in report.skipped}
