"""Small HDF5 files of every kind that the faces show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from tests.load.conftest import encoded, write_images

CLASSES = ("car", "bus & <b>tram</b>", "van")


def photos(count: int, *, height: int = 40, width: int = 56) -> NDArray[np.uint8]:
    """Smooth pictures, no two alike: uint8 `(count, height, width, 3)`."""
    down, across = np.mgrid[0:height, 0:width]
    return np.stack(
        [np.stack([4 * down + row, 4 * across, (down + across) * (row % 3)], axis=-1) % 256 for row in range(count)]
    ).astype(np.uint8)


def write_pack(
    path: Path, x: NDArray[Any], y: NDArray[Any] | None, *, classes: Sequence[str] = (), keys: bool = False
) -> Path:
    """`X_train` and `Y_train`; a tenth of the rows again as `test`."""
    with h5py.File(path, "w") as file:
        for split, rows in (("train", slice(None)), ("test", slice(0, max(1, len(x) // 10)))):
            file[f"X_{split}"] = x[rows]
            if y is not None:
                file[f"Y_{split}"] = y[rows]
            if keys:
                names = [f"folder/<i>{split}-{row}.jpg" for row in range(len(x[rows]))]
                file[f"key_{split}"] = np.array(names, dtype=object)
        if classes:
            file["classes"] = list(classes)
    return path


@dataclass(frozen=True, slots=True)
class Boxed:
    """A file whose targets are boxes, and what is in it: the labels of each row's boxes."""

    path: Path
    labels: tuple[tuple[int, ...], ...]


def write_boxed(path: Path, *, broken: int | None = None, boxes: int = 1) -> Boxed:
    """Six image files of different sizes, of row `broken` only the first half; boxes in their own pixels, of which the
    last image has several."""
    labels = ((0, 1), (), (1,), (2, 2, 0), (1,), (0,) * boxes)
    images = [image[: 40 - 2 * row] for row, image in enumerate(photos(6))]
    with h5py.File(path, "w") as file:
        files = [encoded(image, "JPEG" if broken is None else "PNG") for image in images]
        if broken is not None:
            files[broken] = files[broken][: len(files[broken]) // 2]
        write_images(file, files)
        group = file.create_group("Y_train")
        flat = [label for row in labels for label in row]
        group["boxes"] = np.tile(np.array([[4, 6, 24, 26]], np.float32), (len(flat), 1))
        group["labels"] = np.array(flat, np.int64)
        group["offsets"] = np.cumsum([0, *map(len, labels)], dtype=np.int64)
        file["classes"] = list(CLASSES)
    return Boxed(path, labels)


def masks(count: int, height: int = 40, width: int = 56) -> NDArray[np.uint8]:
    """Row i has class 1 at its left where i is even, class 2 below where i divides by three, and 255 in a corner."""
    found = np.zeros((count, height, width), np.uint8)
    found[::2, :, : width // 3] = 1
    found[::3, height // 2 :] = 2
    found[:, :4, -4:] = 255
    return found


PACKS: dict[str, Callable[[Path], Path]] = {
    "labels": lambda path: write_pack(path, photos(30), np.arange(30) % 3, classes=CLASSES, keys=True),
    "long names": lambda path: write_pack(path, photos(6), np.arange(6) % 2, classes=("a class " * 9, "b" * 70)),
    "unnamed": lambda path: write_pack(path, photos(30), (np.arange(30) % 3).reshape(30, 1, 1)),
    "grayscale": lambda path: write_pack(path, photos(30)[..., :1], np.arange(30) % 3),
    "sixteen bits": lambda path: write_pack(path, photos(30)[..., 0].astype(np.uint16) * 200, np.arange(30) % 3),
    "floats": lambda path: write_pack(path, photos(30).astype(np.float32) / 255, np.arange(30) % 3),
    "channels first": lambda path: write_pack(path, photos(30).transpose(0, 3, 1, 2), np.arange(30) % 3),
    "masks": lambda path: write_pack(path, photos(30), masks(30), classes=("background", *CLASSES)),
    "boxes": lambda path: write_boxed(path).path,
    "no targets": lambda path: write_pack(path, photos(30), None),
    "sounds": lambda path: write_pack(path, np.sin(np.arange(30 * 800)).reshape(30, 800), np.arange(30) % 3),
    "stereo": lambda path: write_pack(path, np.zeros((30, 2, 800), np.float32), np.arange(30) % 3),
    "tokens": lambda path: write_pack(path, np.arange(30 * 64, dtype=np.uint16).reshape(30, 64), None),
    "table": lambda path: write_pack(path, np.arange(30 * 8).reshape(30, 8) / 7 - 3, np.linspace(-1, 1, 30)),
    "long table": lambda path: write_pack(path, np.zeros((30, 13, 2), np.float32), None),
    "many axes": lambda path: write_pack(path, np.zeros((30, 5, 6, 7, 2), np.float32), np.arange(30) % 3),
}
