"""Real data to practise on: scikit-learn's 1,797 handwritten digits, one JPEG for each."""

from __future__ import annotations

import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

_SHADES = 16
_TEST_FRACTION = 0.2


def read_digits(images: int | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first so many digits.

    Args:
        images: how many; `None` for all 1,797.

    Returns:
        `(images, labels)`: uint8 `(N, 8, 8)` from 0 to 255, int64 `(N,)`.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    import numpy as np

    table = _digits_table()
    shades = np.rint(table[:images, :-1].reshape(-1, 8, 8) * (255 / _SHADES)).astype(np.uint8)
    return shades, table[:images, -1].astype(np.int64)


def _digits_table() -> NDArray[np.float64]:
    """Rows of 64 shades and a label, out of scikit-learn's own file: to import scikit-learn takes seconds."""
    import numpy as np

    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or []:
        file = Path(folder) / "datasets/data/digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        msg = (
            "The digits to practise on are scikit-learn's. Give a source, or install it with: pip install scikit-learn"
        )
        raise MissingDependencyError(msg) from error
    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack((pixels, labels))


def digit_files(*, images: int | None, seed: int, side: int) -> Iterator[tuple[str, bytes]]:
    """An image folder of digits, file by file: `digits/train/<class>/<number>.jpg`, and `digits/test/…`.

    Args:
        images: how many digits; `None` for all.
        seed: of the division, 80 to 20.
        side: pixels of a side; the digits have 8, enlarged so that a JPEG of one is worth the name.

    Yields:
        Name and content of each file, in the digits' order.
    """
    import numpy as np

    shades, labels = read_digits(images)
    order = np.random.default_rng(seed).permutation(len(labels))
    in_test = set(order[: round(len(labels) * _TEST_FRACTION)].tolist())
    for number, (picture, label) in enumerate(zip(shades, labels, strict=True)):
        split = "test" if number in in_test else "train"
        yield f"digits/{split}/{label}/{number:04}.jpg", _as_jpeg(picture, side)


def zip_digits(path: Path, *, images: int | None = None, seed: int = 0, side: int = 32) -> None:
    """Write `digit_files` as a zip."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in digit_files(images=images, seed=seed, side=side):
            archive.writestr(name, data)


def _as_jpeg(picture: NDArray[np.uint8], side: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "jpeg", quality=90)
    return buffer.getvalue()
