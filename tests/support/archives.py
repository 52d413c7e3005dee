"""Archives of every kind from files in memory, with the same bytes each time; and bytes that record what is read.

write_archive(tmp_path / "photos.tar.zst", {"cat/1.png": b"..."})
"""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from colabstage.trees.listing import Tree

# The modes that zips record for their members.
FILE, LINK, FOLDER = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755


@dataclass
class RecordingBytes:
    """Bytes in memory that an archive is read from; every read is recorded as (offset, length)."""

    content: bytes
    label: str = "recorded.zip"
    reads: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False

    @property
    def size(self) -> int:
        return len(self.content)

    def pread(self, length: int, offset: int) -> bytes:
        self.reads.append((offset, length))
        return self.content[offset : offset + length]

    def close(self) -> None:
        self.closed = True


def read_all(tree: Tree) -> dict[str, bytes]:
    """Return the content of every file in a tree."""
    return {entry.name: tree.read(entry) for entry in tree.entries}


def zip_bytes(files: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return buffer.getvalue()


def stored_zip(files: Mapping[str, bytes]) -> bytes:
    """Return a zip that is not compressed."""
    return zip_bytes(files, method=zipfile.ZIP_STORED)


def zip_of(*members: tuple[str, int, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    """Return a zip of members given as name, Unix mode and content; names are written unchanged."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings(action="ignore"):
        for number, (name, mode, content) in enumerate(members):
            info = zipfile.ZipInfo(f"placeholder{number}")
            info.filename, info.create_system, info.external_attr = name, 3, mode << 16
            archive.writestr(info, content, method)
        archive.comment = comment
    return buffer.getvalue()


def tar_of(*members: tuple[str, bytes, str, bytes], form: int = tarfile.PAX_FORMAT, mode: str = "w") -> bytes:
    """Return a tar of members given as name, type, link target and content; names are written unchanged."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, kind, target, content in members:
            member = tarfile.TarInfo(name.replace("\0", "?"))
            member.pax_headers = {"path": name} if "\0" in name else {}
            member.type, member.linkname, member.size = kind, target, len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def tar_bytes(files: Mapping[str, bytes], *, form: int = tarfile.PAX_FORMAT, mode: str = "w") -> bytes:
    """Return a tar."""
    return tar_of(*((name, tarfile.REGTYPE, "", content) for name, content in files.items()), form=form, mode=mode)


def set_field(content: bytes, mark: bytes, shift: int, form: str, *values: int) -> bytes:
    """Return an archive in which the fields `shift` bytes after the first `mark` are changed."""
    changed = bytearray(content)
    struct.pack_into(form, changed, content.index(mark) + shift, *values)
    return bytes(changed)


def seven_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return a 7z."""
    py7zr = pytest.importorskip("py7zr", reason="needs py7zr: pip install 'colabstage[archives]'")
    buffer = io.BytesIO()
    with py7zr.SevenZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return buffer.getvalue()


def rar_bytes(files: Mapping[str, bytes], *, crc: int | None = None) -> bytes:
    """Return a RAR 5 archive of stored members, according to RarLab's description of the format. `crc`: a wrong
    checksum."""
    parts = [b"Rar!\x1a\x07\x01\0", rar_block(1, 0, 0)]
    for name, content in files.items():
        raw, checksum = name.encode(), struct.pack("<L", zlib.crc32(content) if crc is None else crc)
        parts += [rar_block(2, 2, len(content), 4, len(content), 0o100644, checksum, 0, 1, len(raw), raw), content]
    return b"".join([*parts, rar_block(5, 0, 0)])


def rar_block(*fields: int | bytes) -> bytes:
    """Return a block of a RAR 5 archive."""
    body = b"".join(_rar_number(one) if isinstance(one, int) else one for one in fields)
    sized = _rar_number(len(body)) + body
    return struct.pack("<L", zlib.crc32(sized)) + sized


def _rar_number(value: int) -> bytes:
    """With seven bits in each byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def zstd_bytes(content: bytes) -> bytes:
    """Return content compressed by Zstandard."""
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


MAKERS = {
    ".zip": zip_bytes,
    ".stored.zip": stored_zip,
    ".tar": tar_bytes,
    ".tar.gz": lambda files: gzip.compress(tar_bytes(files), mtime=0),
    ".tar.bz2": lambda files: bz2.compress(tar_bytes(files)),
    ".tar.xz": lambda files: lzma.compress(tar_bytes(files)),
    ".tar.zst": lambda files: zstd_bytes(tar_bytes(files)),
    ".7z": seven_bytes,
    ".rar": rar_bytes,
}


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write an archive of the kind that the path's extension names."""
    ending = max((ending for ending in MAKERS if path.name.endswith(ending)), key=len)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MAKERS[ending](files))
    return path
