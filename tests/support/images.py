"""Tiny images with the same bytes each time, and trees of files in one line.

    make_tree(tmp_path / "photos", {"cat/1.png": 1, "dog/2.jpg": 2, "labels.csv": "name,label\\n"})

A number stands for an image unique to it, in the format of the file's suffix.
"""

import io
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 4
_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP"}


def color(number: int) -> tuple[int, int, int]:
    """Return an image's colour, from which the number is recovered, in a JPEG up to 255."""
    return (number % 256, number % 256, number // 256)


@cache
def image(number: int, *, suffix: str = ".png", size: tuple[int, int] = (SIDE, SIDE)) -> bytes:
    """Return an image of one colour, with `size` as width and height."""
    buffer = io.BytesIO()
    Image.new("RGB", size, color(number)).save(buffer, _FORMATS[suffix])
    return buffer.getvalue()


@cache
def noise(number: int, *, size: tuple[int, int] = (32, 24)) -> bytes:
    """Return an incompressible PNG, with `size` as width and height."""
    return png(np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8), compress_level=0)


@cache
def mask(number: int, *, classes: int = 3, size: tuple[int, int] = (SIDE, SIDE)) -> bytes:
    """Return a PNG whose pixels are class numbers."""
    pixels = (np.arange(size[0] * size[1]) + number) % classes
    buffer = io.BytesIO()
    Image.fromarray(pixels.reshape(size[1], size[0]).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(pixels: NDArray[Any], *, compress_level: int = -1) -> bytes:
    """Return a PNG of 8 or 16 bits with three or four channels. Pillow lacks the 16 bits, and takes ten times as long,
    because it tries filters for each row."""
    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, {3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(pixels.dtype.newbyteorder(">")))
    parts = {b"IHDR": head, b"IDAT": zlib.compress(rows, compress_level), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts.items())


def number_of(content: bytes) -> int:
    """Return the number that `image` was made from; for a JPEG, below 256."""
    return number_of_pixel(np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))[0, 0])


def number_of_pixel(pixel: Any) -> int:
    """Return an image's number from one of its pixels."""
    red, _, blue = (int(value) for value in pixel)
    return red + 256 * blue


def make_tree(root: Path, files: Mapping[str, bytes | str | int]) -> Path:
    """Write files by name, with their parent folders: bytes, text, or the image of a number."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = image(content, suffix=path.suffix.lower()) if isinstance(content, int) else content
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def read_tree(root: Path) -> dict[str, bytes]:
    """Return every file below a folder by name; links to files are followed, other links left out."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def in_classes(count: int, *, first: int = 0, suffix: str = ".png") -> dict[str, int]:
    """Return the files of a dataset with two classes: the images `first`, `first + 1`, … alternate between them."""
    return {f"{('cat', 'dog')[number % 2]}/{number:03d}{suffix}": number for number in range(first, first + count)}
