"""Files of small datasets, given by patterns of names: images, different for each name, masks, and others.

In a pattern, `{a,b}` and `{0..3}` stand for each of these, and `~` for a blank.
"""

import io
import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.layouts.known import each

_FORMS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".bmp": "BMP"}


@cache
def image(seed: int, *, size: tuple[int, int] = (48, 64), form: str = "PNG", turn: int = 1) -> bytes:
    """Return an RGB image unique to its seed; `turn`: its EXIF orientation."""
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turn
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, form, **({"exif": exif} if turn != 1 else {}))
    return buffer.getvalue()


def write_rows(path: Path, x: Any, y: Any) -> Path:
    """Write an HDF5 file with these inputs and targets."""
    with h5py.File(path, "w") as file:
        file["X_train"], file["Y_train"] = x, y
    return path


def make_sparse_h5(path: Path, shape: tuple[int, ...]) -> None:
    """Write an HDF5 file with bytes `X_train` of this shape, which takes hardly any space on the disk."""
    with h5py.File(path, "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(file.id, b"X_train", h5py.h5t.STD_U8LE, h5py.h5s.create_simple(shape), created)


def grey(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """Return a PNG with one channel, such as a mask."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def tiff16(pixels: NDArray[np.uint16], *, planes: bool = False) -> bytes:
    """Return an uncompressed 16-bit TIFF with any number of channels; `planes`: each lies by itself."""
    height, width, channels = pixels.shape
    bits_at, data_at = 300, 400
    parts = channels if planes else 1
    offsets = [data_at + part * (pixels.nbytes // parts) for part in range(parts)]
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, channels, bits_at), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 2 if channels == 3 else 1), (273, 4, parts, bits_at + 20 if planes else data_at)]
    tags += [(277, 3, 1, channels), (278, 3, 1, height), (279, 4, 1, pixels.nbytes // parts), (284, 3, 1, 1 + planes)]
    tags += [(338, 3, channels - 1, bits_at + 40)] if channels > 3 else []
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    bits = struct.pack(f"<{channels}H", *[16] * channels).ljust(20, b"\0") + struct.pack(f"<{parts}I", *offsets)
    values = (pixels.transpose(2, 0, 1) if planes else pixels).astype("<u2").tobytes()
    return (head.ljust(bits_at, b"\0") + bits).ljust(data_at, b"\0") + values


def npy(array: NDArray[Any]) -> bytes:
    """Return a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def matlab(arrays: Mapping[str, Any], *, version: str = "5") -> bytes:
    """Return a MATLAB file of version 5, or 4."""
    writer = pytest.importorskip("scipy.io", reason="needs scipy: pip install 'colabstage[matlab]'")
    buffer = io.BytesIO()
    writer.savemat(buffer, arrays, format=version, do_compression=version == "5")
    return buffer.getvalue()


def h5(**arrays: Any) -> bytes:
    """Return an HDF5 file of these datasets."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    """Return a .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def files(images: str, contents: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """Return files by name: `images` are patterns separated by blanks; each name has its own image.

    `contents`: bytes, a string, or a value to write as JSON, by pattern; all names of a pattern have the same.
    """
    names = [name for pattern in images.split() for name in each(pattern)]
    made = {name: image(n, form=_FORMS[name[name.rindex(".") :].lower()]) for n, name in enumerate(names)}
    for pattern, content in (contents or {}).items():
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        made |= dict.fromkeys(each(pattern), text.encode() if isinstance(text, str) else text)
    return made


def write_files(folder: Path, made: Mapping[str, bytes]) -> Path:
    """Write files below a folder, and return it."""
    for name, content in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
