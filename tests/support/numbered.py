"""Archives of images that consist of their own numbers, so that a row shows which image it is, and whether it is
whole."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Each image is stored without compression: 196,608 bytes.
SIDE = 256


def write_archive(path: Path, count: int, *, first: int = 0) -> Path:
    """Make a zip of `count` images in two classes, numbered from `first`."""
    with zipfile.ZipFile(path, "w") as file:
        for number in range(count):
            made = io.BytesIO()
            Image.fromarray(np.full((SIDE, SIDE, 3), first + number, np.uint8)).save(made, "PNG", compress_level=0)
            file.writestr(f"train/c{2 * number // count}/{number:03}.png", made.getvalue())
    return path


def numbers_of(batches: Any) -> list[int]:
    """Return the numbers of all images in batches; each image must consist of a single number."""
    found: list[int] = []
    note_numbers(batches, found)
    return found


def note_numbers(batches: Any, found: list[int]) -> None:
    """Append them to `found` batch by batch, so that it has those before an error."""
    for x, _ in batches:
        for image in x.numpy():
            number = int(image.flat[0])
            assert (image == number).all()
            found.append(number)
