"""Bytes with positions: of a file, a temporary one, several files in sequence, or a service; and what a file holds, by
its first bytes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import unquote, urlsplit

from colabstage.errors import CorruptArchiveError, SourceNotFoundError, SourceReadError
from colabstage.io.arguments import whereabouts
from colabstage.io.files import Closing, pread_exactly, punch_hole, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation

# The most bytes of one file that are held at once.
PIECE_BYTES = 16 * 1024 * 1024
# Holes begin and end at multiples of this: every file system's block size divides it.
_HOLE_BYTES = 64 * 1024


class ByteSource(Protocol):
    """Random access to the bytes of one file, from many threads: what an archive is read from.

    Usually this is a file on the local disk. It may also be a file that is still being copied here: its `pread` waits,
    with a deadline, until the bytes have arrived.
    """

    @property
    def label(self) -> str:
        """Return the file's address, for messages."""

    @property
    def size(self) -> int:
        """Return the length of the whole file in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""

    def close(self) -> None:
        """Release the handle. Calling it twice is fine."""


class LocalBytes(Closing):
    """A `ByteSource` over a file, which may be unlinked or replaced while this is open: positioned reads on one handle,
    so any number of threads share it without a lock. `follow`: whether `path` may be a link."""

    # With O_NONBLOCK a file that was exchanged for a pipe cannot block.
    _FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, path: Path, *, label: str | None = None, follow: bool = True) -> None:
        self.label = str(path) if label is None else label
        # Set before opening, which may fail: `__del__` runs even then.
        self._handle = -1
        try:
            self._handle = os.open(path, self._FLAGS if follow else self._FLAGS | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            msg = f"There is no file '{path}'. {whereabouts(path)}"
            raise SourceNotFoundError(msg) from error
        # The length when opened.
        self.size = os.fstat(self._handle).st_size

    def fileno(self) -> int:
        """Return the handle, for a process that should read the same file."""
        return self._handle

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file.

        A file that has become shorter is an error: what reads it would take that for the end of its content.
        """
        data = pread_exactly(self._handle, length, offset)
        if len(data) < min(length, self.size - offset):
            raise cut_while_read(self.label)
        return data

    def close(self) -> None:
        # Forgotten before it is closed: a moment later, its number may belong to another file.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class TemporaryBytes(LocalBytes):
    """The bytes of a file that colabstage itself made and nobody else needs: used ones can be given back to the disk.

    Never for a user's file. If the file system cannot make holes, the file keeps its size and nothing is lost.
    """

    _FLAGS = os.O_RDWR | os.O_CLOEXEC
    _released = 0

    def release_before(self, offset: int) -> None:
        """Give the disk back everything before `offset`; those bytes read as zeros from now on."""
        # Only whole blocks: part of the last one may share a block with bytes still to be read.
        start, end = self._released, offset // _HOLE_BYTES * _HOLE_BYTES
        with contextlib.suppress(OSError):
            if end > start:
                punch_hole(self._handle, start, end - start)
                self._released = end


class JoinedBytes(Closing):
    """Several files in sequence as one, as `cat` joins them; closing this closes them all."""

    def __init__(self, label: str, parts: Sequence[ByteSource]) -> None:
        self.label = label
        self._parts = parts
        self._ends = list(accumulate(part.size for part in parts))
        self.size = self._ends[-1]

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the last file."""
        pieces = []
        number = bisect_right(self._ends, offset)
        while length > 0 and number < len(self._parts):
            start = self._ends[number] - self._parts[number].size
            wanted = min(length, self._ends[number] - offset)
            pieces.append(self._parts[number].pread(wanted, offset - start))
            number, offset, length = number + 1, offset + wanted, length - wanted
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        for part in self._parts:
            part.close()


class RequestedBytes:
    """Bytes behind a callable that reads a range: a service's file, an archive's member."""

    def __init__(self, request: Callable[[int, int], bytes], size: int, *, label: str) -> None:
        self._request = request
        self.size = size
        self.label = label

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        length = min(length, self.size - offset)
        return self._request(length, offset) if length > 0 else b""

    def close(self) -> None:
        """Leave open what it reads from: its owner closes that."""


class SourceFile(io.RawIOBase):
    """A read-only, unbuffered file object over a `ByteSource`, for libraries that require one; for one thread.

    Closing it leaves the source open. Each read checks `cancellation` first.
    """

    def __init__(self, source: ByteSource, cancellation: Cancellation | None = None) -> None:
        super().__init__()
        self._source = source
        self._cancellation = cancellation
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._source.size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        if self._cancellation is not None:
            self._cancellation.check()
        view = memoryview(buffer).cast("B")
        data = self._source.pread(len(view), self._offset)
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)


ArchiveKind = Literal["zip", "tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "gz", "bz2", "xz", "zst", "7z", "rar"]
Compression = Literal["gz", "bz2", "xz", "zst"]

# The endings of archives' names. A file's content decides what it is; these say what its name promises.
COMPRESSED_SUFFIXES: dict[Compression, tuple[str, ...]] = {
    "gz": (".gz", ".tgz", ".z"),
    "bz2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zst": (".zst", ".zstd", ".tzst"),
}
ARCHIVE_SUFFIXES = (".zip", ".tar", ".7z", ".rar", *(end for ends in COMPRESSED_SUFFIXES.values() for end in ends))
# Of files that say where they end, so that one that was cut is noticed.
ENDED_SUFFIXES = (*ARCHIVE_SUFFIXES, ".npy", ".npz", ".h5", ".parquet")
# The endings of files that are never text.
DATA_SUFFIXES = (
    *ARCHIVE_SUFFIXES,
    *(".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".jp2"),
    *(".wav", ".flac", ".ogg", ".opus", ".mp3", ".mp4"),
    *(".npy", ".npz", ".h5", ".hdf5", ".parquet", ".arrow", ".tfrecord", ".pt", ".pth", ".safetensors"),
)

_WEB = re.compile(r"(?i)https?://")
# How much of a file `describe_contents` needs.
HEAD_BYTES = 1024

# The first bytes of files, what such a file is, and its kind if it is an archive or compressed.
_KNOWN: tuple[tuple[bytes, str, ArchiveKind | None], ...] = (
    (b"PK\3\4", "a zip archive", "zip"),
    (b"PK\5\6", "an empty zip archive", "zip"),
    (b"\x1f\x8b\x08", "a gzip file", "gz"),
    (b"BZh", "a bzip2 file", "bz2"),
    (b"\xfd7zXZ\0", "an xz file", "xz"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "zst"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "7z"),
    (b"Rar!\x1a\x07", "a RAR archive", "rar"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", None),
    (b"\x93NUMPY", "a NumPy array", None),
    (b"PAR1", "a Parquet file", None),
)
# Characters that text does not contain.
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def kind_by_magic(head: bytes) -> ArchiveKind | None:
    """Return what kind of archive, or of compressed stream, begins with these bytes."""
    return next((kind for magic, _, kind in _KNOWN if head.startswith(magic)), None)


def compression_of(head: bytes) -> Compression | None:
    found = kind_by_magic(head)
    return next((kind for kind in COMPRESSED_SUFFIXES if kind == found), None)


def is_tar_head(head: bytes) -> bool:
    """Return whether a tar begins like this: a header block with a valid checksum."""
    # A block of zeros has a checksum too, but marks the end of a tar.
    if len(head) < 512 or not head[:512].strip(b"\0"):
        return False
    stored = head[148:156].strip(b" \0")
    if not stored or stored.strip(b"01234567"):
        return False
    return int(stored, 8) == header_checksum(head[:512])


def header_checksum(block: bytes) -> int:
    """Return the checksum of a tar header of 512 bytes, which counts its own field as blanks."""
    # Adler-32 contains such a sum, exact for 256 bytes, and takes a fifth of the time of Python's own.
    first, second = zlib.adler32(block[:256]) & 0xFFFF, zlib.adler32(block[256:]) & 0xFFFF
    return first + second - 2 - sum(block[148:156]) + 256


def is_text(head: bytes) -> bool:
    """Return whether a file may be text, by its first bytes: it is not empty, and has no byte that text lacks."""
    return head != b"" and not _BINARY.search(head)


def lacks_data(name: str, head: bytes, suffixes: tuple[str, ...] = DATA_SUFFIXES) -> bool:
    """Return whether a file whose name promises binary data is empty, or text, as a service's message is."""
    # The first bytes of a bzip2 stream are letters.
    is_other = not head or (is_text(head) and compression_of(head) is None)
    return is_other and name.lower().endswith(suffixes)


def describe_contents(head: bytes) -> str:
    """Return what a file holds, by its first `HEAD_BYTES` bytes, as the end of "it is …"."""
    guesses = (
        (not head, "an empty file"),
        (not head.strip(b"\0"), "a file of zeros, as a copy or an upload leaves that was cut"),
        (bool(stand_in(head)), stand_in(head)),
        (is_tar_head(head), "a tar archive"),
        *((head.startswith(magic), what) for magic, what, _ in _KNOWN),
        (bool(image_ending(head)), f"an image ({image_ending(head)})"),
        (head.lstrip()[:1] in (b"{", b"["), "a JSON file"),
        (is_text(head), "a text file"),
    )
    return next((what for fits, what in guesses if fits), "a file of unknown kind")


# The first bytes of images, and the usual ending of their names.
_IMAGE_ENDINGS = {
    ".jpg": re.compile(rb"\xff\xd8\xff"),
    ".png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    ".gif": re.compile(rb"GIF8"),
    ".webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    ".bmp": re.compile(rb"BM.{4}\0{4}", re.DOTALL),
    ".tif": re.compile(rb"II\*\0|MM\0\*"),
    ".avif": re.compile(rb".{4}ftypavif", re.DOTALL),
}


def image_ending(head: bytes) -> str:
    """Return what the name of an image usually ends in, by its first bytes; "" for anything else."""
    return next((ending for ending, mark in _IMAGE_ENDINGS.items() if mark.match(head)), "")


def base_name(label: str) -> str:
    """Return the file name in an address: the last part of a path; for a web address, without the query.

    >>> base_name("https://example.org/records/7/data.npy?download=1")
    'data.npy'
    """
    # Only for web addresses: a path may contain a question mark or a percent sign.
    path = unquote(urlsplit(label).path) if _WEB.match(label) else label
    return path.rstrip("/").rpartition("/")[2]


def truncated(source: ByteSource, reason: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"'{source.label}' is truncated: {reason} ({source.size:,} bytes are here). Copy or upload the archive again."
    )


def damaged(label: str, reason: str, member: str = "") -> CorruptArchiveError:
    """Return the error for an archive, or its member, that is not what its archiver wrote."""
    what = f"The member {member!r} of '{label}'" if member else f"'{label}'"
    return CorruptArchiveError(f"{what} is damaged: {reason}. Copy or upload the archive again.")


def cut_while_read(file: str, member: str = "") -> SourceReadError:
    """Return the error for a file that was longer when it was opened."""
    where = f"inside its member {member!r}" if member else "before its length"
    return SourceReadError(
        f"'{file}' ends {where}: the file changed or was cut while being read. "
        "Wait until its upload or copy is complete, then stage again."
    )
