"""Archives of every kind from files in memory, the same bytes each time.

write_archive(tmp_path / "photos.tar.zst", {"cat/1.png": b"..."})
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def zip_bytes(files: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return buffer.getvalue()


def tar_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return a tar that is not compressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def seven_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return a 7z."""
    py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install py7zr")
    buffer = io.BytesIO()
    with py7zr.SevenZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return buffer.getvalue()


def rar_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return a RAR 5 archive of stored members, as RarLab's format description has it."""
    parts = [b"Rar!\x1a\x07\x01\0", _rar_header(_number(1) + _number(0) + _number(0))]
    for name, content in files.items():
        raw = name.encode()
        numbers = (2, 2, len(content), 4, len(content), 0o100644)
        checksum = struct.pack("<L", zlib.crc32(content))
        body = b"".join((*map(_number, numbers), checksum, *map(_number, (0, 1, len(raw))), raw))
        parts += [_rar_header(body), content]
    return b"".join([*parts, _rar_header(_number(5) + _number(0) + _number(0))])


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _rar_header(body: bytes) -> bytes:
    sized = _number(len(body)) + body
    return struct.pack("<L", zlib.crc32(sized)) + sized


def zstd_bytes(content: bytes) -> bytes:
    """Return something compressed by Zstandard."""
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


MAKERS = {
    ".zip": zip_bytes,
    ".stored.zip": lambda files: zip_bytes(files, method=zipfile.ZIP_STORED),
    ".tar": tar_bytes,
    ".tar.gz": lambda files: gzip.compress(tar_bytes(files), mtime=0),
    ".tar.bz2": lambda files: bz2.compress(tar_bytes(files)),
    ".tar.xz": lambda files: lzma.compress(tar_bytes(files)),
    ".tar.zst": lambda files: zstd_bytes(tar_bytes(files)),
    ".7z": seven_bytes,
    ".rar": rar_bytes,
}


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write an archive of the kind that the path's name ends in."""
    ending = max((ending for ending in MAKERS if path.name.endswith(ending)), key=len)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MAKERS[ending](files))
    return path
