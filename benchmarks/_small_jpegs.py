"""Many small JPEGs, cheap to make."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIDE = 64
_KINDS = 16
_GROUP_ROWS = 10_000


def write_small_jpegs(folder: Path, count: int, *, classes: int = 10, side: int = SIDE) -> Path:
    """Write `count` square JPEGs into class folders of a folder; a few different ones in turn, and links to them."""
    kinds = [_jpeg(number, side) for number in range(_KINDS)]
    for label in range(classes):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path, first = folder / _name(number, classes), folder / _name(number % _KINDS, classes)
        if number < _KINDS:
            path.write_bytes(kinds[number])
        else:
            path.hardlink_to(first)  # ext4 takes 65,000 to one file
    return folder


def zip_small_jpegs(path: Path, count: int, *, classes: int = 10, side: int = SIDE) -> None:
    """Write a zip of the same files, stored as they are."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in _members(count, classes, side):
            archive.writestr(name, data)


def tar_small_jpegs(path: Path, count: int, *, classes: int = 10, side: int = SIDE) -> None:
    """Write a tar of the same files, not compressed."""
    with tarfile.open(path, "w") as archive:
        for name, data in _members(count, classes, side):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            # It keeps all members to answer questions that nobody asks here.
            archive.getmembers().clear()


def tabulate_small_jpegs(path: Path, count: int, *, classes: int = 10, side: int = SIDE) -> None:
    """Write a parquet file of the same files in a column of bytes, and their classes as numbers in another."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = [_jpeg(number, side) for number in range(_KINDS)]
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, count, _GROUP_ROWS):
            numbers = range(start, min(start + _GROUP_ROWS, count))
            images = [{"bytes": kinds[number % _KINDS], "path": f"{number:06d}.jpg"} for number in numbers]
            columns = {"image": images, "label": [number % classes for number in numbers]}
            writer.write_table(pa.table(columns, schema=schema))


def _members(count: int, classes: int, side: int) -> Iterator[tuple[str, bytes]]:
    kinds = [_jpeg(number, side) for number in range(_KINDS)]
    for number in range(count):
        yield _name(number, classes), kinds[number % _KINDS]


def _name(number: int, classes: int) -> str:
    return f"class_{number % classes:02d}/{number:06d}.jpg"


def _jpeg(number: int, side: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
