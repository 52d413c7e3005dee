"""Makes the files in the picture of a folder: each line has a path and, after two blanks, the file's content."""

import io
import math
import re
import wave
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.layouts.known import example
from tests.support.archives import tar_bytes
from tests.support.images import make_tree
from tests.support.made_files import image

_SIZE = (48, 64)
jpeg_bytes = partial(image, form="JPEG")
_ARRAY = re.compile(r"(\w+) \(([\d, ]+)\)")


def make_picture(picture: str, folder: Path) -> Path:
    """Write the files below `folder`; return the dataset's folder, which contains all of them."""
    for line in picture.splitlines():
        name, _, content = line.partition("  ")
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        _write(place, content.strip())
    (top,) = folder.iterdir()
    return top


def write_photos(folder: Path, count: int = 40, first: int = 0) -> list[Path]:
    """Photographs in folders of two classes."""
    paths = [folder / ("cat", "dog")[number % 2] / f"{number}.jpg" for number in range(first, first + count)]
    make_tree(folder, {str(path.relative_to(folder)): jpeg_bytes(number) for number, path in enumerate(paths, first)})
    return paths


def _write(place: Path, content: str) -> None:
    number = sum(map(ord, place.as_posix()))
    match place.suffix:
        case ".jpg":
            place.write_bytes(jpeg_bytes(number))
        case ".png" if content == "mask":
            Image.fromarray(np.indices(_SIZE).sum(0).astype(np.uint8) % 2).save(place)
        case ".png":
            Image.open(io.BytesIO(jpeg_bytes(number))).save(place)
        case ".npy" | ".npz" | ".h5":
            _write_arrays(place, content)
        case ".wav":
            with wave.open(str(place), "wb") as sound:
                sound.setparams((1, 2, 16_000, 16_000, "NONE", ""))
                sound.writeframes(np.arange(16_000, dtype="<i2").tobytes())
        case ".bin":
            np.arange(5000, dtype=np.uint16).tofile(place)
        case ".tar":
            members = {name: jpeg_bytes(n) if name.endswith(".jpg") else b"1" for n, name in enumerate(content.split())}
            place.write_bytes(tar_bytes(members))
        case ".tfrecord" | ".mdb" | ".parquet":
            _write_records(place)
        case _:
            place.write_text(content.replace(" | ", "\n") + "\n", encoding="utf-8")


def _write_arrays(place: Path, content: str) -> None:
    shapes = {name: tuple(map(int, axes.replace(",", " ").split())) for name, axes in _ARRAY.findall(content)}
    arrays = {name: np.arange(math.prod(shape)).reshape(shape) for name, shape in shapes.items()}
    if place.suffix == ".npz":
        np.savez(place, **arrays)  # type: ignore[arg-type]  # its other argument is a word that no picture uses
    elif place.suffix == ".npy":
        np.save(place, next(iter(arrays.values())))
    else:
        with h5py.File(place, "w") as file:
            for name, array in arrays.items():
                file[name] = array


def _needs(module: str, install: str) -> Any:
    if find_spec(module) is None:
        pytest.skip(f"needs {module}: {install}")
    return pytest.importorskip(module)


def _write_records(place: Path) -> None:
    images = [jpeg_bytes(number) for number in range(4)]
    if place.suffix == ".tfrecord":
        # Without tfrecord, whose protocol buffers crash a process that has TensorFlow's.
        records = (example(image__encoded=one, image__class__label=number % 2) for number, one in enumerate(images))
        place.write_bytes(b"".join(records))
    elif place.suffix == ".parquet":
        pyarrow = _needs("pyarrow", "pip install -c constraints.txt --group arrow")
        from pyarrow import parquet

        rows = [{"bytes": image, "path": None} for image in images]
        parquet.write_table(pyarrow.table({"image": rows, "label": [0, 1, 0, 1]}), place)
    else:
        lmdb = _needs("lmdb", "pip install -c constraints.txt --group test")
        with lmdb.open(str(place.parent), map_size=1 << 20) as database, database.begin(write=True) as written:
            for number, image in enumerate(images, 1):
                written.put(f"image-{number:09d}".encode(), image)
                written.put(f"label-{number:09d}".encode(), b"1")
