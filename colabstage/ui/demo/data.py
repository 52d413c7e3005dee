"""The demo's dataset: scikit-learn's 1,797 handwritten digits, as a JPEG image folder and as a zip of it."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

# The digits are 8x8 with 17 shades; enlarged so that a JPEG of one is worth the name.
SIDE = 64
_SHADES = 16
_TEST_FRACTION = 0.2


def read_digits(images: int | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first so many digits.

    Args:
        images: how many; `None` for all 1,797.

    Returns:
        `(images, labels)`: uint8 `(N, 8, 8)` from 0 to 255, int64 `(N,)`.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    shades = np.rint(pixels.reshape(-1, 8, 8) * (255 / _SHADES)).astype(np.uint8)
    return shades[:images], labels[:images].astype(np.int64)


def write_digits(drive: Path, *, images: int | None, seed: int) -> tuple[int, int]:
    """Write `digits/train/<class>`, `digits/test/<class>` and `digits.zip` into a folder.

    Args:
        drive: the folder.
        images: how many digits; `None` for all.
        seed: of the division, 80 to 20.

    Returns:
        Number and bytes of the JPEG files.
    """
    import numpy as np

    shades, labels = read_digits(images)
    order = np.random.default_rng(seed).permutation(len(labels))
    in_test = set(order[: round(len(labels) * _TEST_FRACTION)].tolist())
    nbytes = 0
    with zipfile.ZipFile(drive / "digits.zip", "w") as archive:
        for number, (picture, label) in enumerate(zip(shades, labels, strict=True)):
            split = "test" if number in in_test else "train"
            name = f"digits/{split}/{label}/{number:04}.jpg"
            data = _as_jpeg(picture)
            path = drive / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            archive.writestr(name, data)
            nbytes += len(data)
    return len(labels), nbytes


def _as_jpeg(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "jpeg", quality=90)
    return buffer.getvalue()
