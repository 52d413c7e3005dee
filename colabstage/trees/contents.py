"""What a file is by its first bytes: for choosing how to open it, and for saying what it is instead of an archive."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from colabstage.errors import CorruptArchiveError

if TYPE_CHECKING:
    from colabstage.trees.tree import ByteSource

ArchiveKind = Literal["zip", "tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "gz", "bz2", "xz", "zst", "7z", "rar"]
Compression = Literal["gz", "bz2", "xz", "zst"]

# As much of a file as `describe_contents` and `archive_magic` want to see.
HEAD_BYTES = 1024

_COMPRESSIONS: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b\x08", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
_KNOWN: tuple[tuple[bytes, str], ...] = (
    (b"PK\3\4", "a zip archive"),
    (b"PK\5\6", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ\0", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"%PDF", "a PDF document"),
)
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18.{4}", re.DOTALL)
_HTML = re.compile(rb"(?is)\A(?:\xef\xbb\xbf)?\s*(?:<!--.{0,400}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b")
# Characters that text does not contain.
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def is_html(head: bytes) -> bool:
    """Tell whether the bytes begin a web page."""
    return _HTML.match(head) is not None


def compression_of(head: bytes) -> Compression | None:
    """Return the compression of a stream, by its first bytes."""
    # pzstd writes a skippable frame (RFC 8878, 3.1.2) before each one with content.
    while _SKIPPABLE.match(head):
        head = head[8 + int.from_bytes(head[4:8], "little") :]
    return next((name for magic, name in _COMPRESSIONS if head.startswith(magic)), None)


def is_zip_head(head: bytes) -> bool:
    """Tell whether a zip begins like this; its directory, at the other end, says whether it is whole."""
    return head.startswith((b"PK\3\4", b"PK\5\6", b"PK\7\x08PK\3\4", b"PK00PK\3\4"))


def tool_archive_kind(head: bytes) -> Literal["7z", "rar"] | None:
    """Return the archive that only a tool or a library of its own reads, by its first bytes."""
    if head.startswith(b"7z\xbc\xaf\x27\x1c"):
        return "7z"
    return "rar" if head.startswith(b"Rar!\x1a\x07") else None


def is_tar_head(head: bytes) -> bool:
    """Tell whether a tar begins like this: a header block with a right checksum."""
    # A block of zeros has a checksum too, but marks the end of a tar.
    if len(head) < 512 or not head[:512].strip(b"\0"):
        return False
    stored = head[148:156].strip(b" \0")
    if not stored or stored.strip(b"01234567"):
        return False
    return int(stored, 8) in header_checksums(head[:512])


def header_checksums(block: bytes) -> tuple[int, int]:
    """Return the two checksums in use for a tar header of 512 bytes: of unsigned bytes, and of signed ones (old Sun
    tars)."""
    unsigned = sum(block[:148]) + 256 + sum(block[156:])
    # Of ASCII the two are the same, which nearly every header is.
    negative = sum(1 for byte in block[:148] + block[156:] if byte > 127) if not block.isascii() else 0
    return unsigned, unsigned - 256 * negative


def describe_contents(head: bytes) -> str:
    """Return what a file holds, by its first `HEAD_BYTES` bytes, as the end of "it is …"."""
    guesses = (
        (not head, "an empty file"),
        (not head.strip(b"\0"), "a file of zeros, as a copy or an upload leaves that was cut"),
        (is_html(head), "a web page (HTML) saved under this name, as a download leaves that wanted a confirmation"),
        (is_tar_head(head), "a tar archive"),
        *((head.startswith(magic), what) for magic, what in _KNOWN),
        (head.lstrip()[:1] in (b"{", b"["), "a JSON file"),
        (not _BINARY.search(head), "a text file"),
    )
    return next((what for fits, what in guesses if fits), "a file of unknown kind")


def truncated(source: ByteSource, reason: str) -> CorruptArchiveError:
    """Return the error for an archive that ends before its content does."""
    return CorruptArchiveError(
        f"'{source.label}' is truncated: {reason} ({source.size:,} bytes are here). Copy or upload the archive again."
    )
