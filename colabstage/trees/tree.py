"""What every tree offers, and the bytes it reads from: files with their sizes, the content of each, bytes at any place.

The bytes are a local file's, a temporary one's, somebody else's, a service's; their first ones tell what they hold.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from colabstage.errors import CorruptArchiveError, SourceNotFoundError, SourceReadError
from colabstage.io.files import Closing, block_ranges, pread_exactly, punch_hole
from colabstage.io.missing import whereabouts
from colabstage.io.stand_ins import stand_in
from colabstage.io.units import left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation
    from colabstage.trees.zip_directory import ZipMember

TreeKind = Literal["folder", "zip", "tar", "7z", "rar", "file"]

# The most that `Tree.chunks` hands over at once.
PIECE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One regular file of a tree."""

    # Entries are made and dropped by the million, so this holds facts only; what reads them is the tree.
    name: str
    """Path inside the tree, with `/`, never absolute, never with `..`."""
    size: int
    """Length of its content in bytes."""
    mtime_ns: int
    """Modification time in nanoseconds since 1970; 0 where the container keeps none."""
    position: int
    """Reading entries by ascending position is sequential for the medium: the offset in an archive, the place in the
    listing of a folder."""
    executable: bool = False
    """Whether an archive marks it as a program of its owner; a folder does not tell."""
    # No part of what an entry is: two listings of one file are equal wherever it is in them.
    place: int = field(default=-1, compare=False, repr=False)
    """Its number among the entries of its tree, where it is found sooner than by name; -1 where nobody said."""


class ByteSource(Protocol):
    """Random access to the bytes of one file, from many threads: what an archive's tree reads from.

    A file on the local disk is the usual one. A file that is still being copied here is another: its `pread` waits,
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


class Tree(Closing):
    """A dataset's files by name. Every method may be called from any thread, `read` from many at once.

    A kind of tree sets `kind`, `label` and `entries`, and says in `open` how any part of a file is had; where only the
    whole of one can be, in `read` and `chunks`.
    """

    kind: TreeKind
    """What holds the files."""
    label: str
    """The tree's address as a person would write it, for messages."""
    entries: Sequence[FileEntry]
    """All regular files, sorted by name; junk that operating systems leave (`__MACOSX`, `.DS_Store`) left out."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out and why (Google-native documents, for example)."""
    source: ByteSource | None = None
    """The bytes that positions of entries count in; `None` where each file is by itself. Closed with the tree."""
    by_request: bool = False
    """Whether each part of a file is a question of its own to a service: who reads here and there wants a copy."""
    waits_for: str = ""
    """Why no file comes at present although it is still asked for; "" where they do."""
    unpacked: Path | None = None
    """The folder with all files in it that an archive was unpacked to; who takes them from there takes the tree's
    place."""

    @property
    def stamp(self) -> str:
        """Return what is the same while nothing is added, removed or rewritten; "" where only its times tell."""
        return ""

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return the folders in which no file lies, by name; none where that cannot be known, as in a bucket."""
        return ()

    def listing_stamp(self) -> Mapping[str, tuple[int, int]]:
        """Return for every folder that was listed ("" is the root): its modification time in ns and its number of
        entries; nothing for a tree that is no folder.

        A folder's time changes when something in it is added, removed or renamed, not when a file is rewritten.
        """
        return {}

    def parts(self) -> tuple[Tree, ...]:
        """Return the trees that this one is made of, in the order of their first files."""
        return (self,)

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the part that has a file, and the file as that part has it.

        Raises:
            SourceReadError: the entry is another tree's.
        """
        return self, entry

    def path_of(self, entry: FileEntry) -> Path | None:
        """Return where a file lies by itself among the dataset's others; `None` where it is part of something."""
        return None

    def packing(self, entry: FileEntry) -> ZipMember | None:
        """Return how a file is packed in `source`; `None` where it is stored unchanged."""
        return None

    def open(self, entry: FileEntry) -> ByteSource | None:
        """Return the bytes of one file, any part of which is read from where it is; `None` where only the whole can
        be had, because it is packed, or has a checksum that only the whole of it meets.

        Raises:
            OSError: as the medium answers.
            SourceReadError: the entry is another tree's.
        """
        return None

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, `entry.size` bytes, verified by the container's checksum where it has
        one.

        Raises:
            OSError: as the medium answers (a mount's errno 5, 107, …).
            SourceReadError: the content is shorter or longer than listed.
            CorruptArchiveError: the member is damaged.
        """
        file = self._opened(entry)
        try:
            # Some sources answer an empty range with an error.
            data = file.pread(file.size, 0) if file.size else b""
        finally:
            file.close()
        if len(data) != file.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of one file in order, in pieces of at most `PIECE_BYTES`, so that none is held in memory
        whole.

        Verified as `read` does it, once the last piece has come: what was made of the pieces counts only when the
        iterator has ended.

        Raises:
            As `read`; while iterating.
        """
        with contextlib.closing(self._opened(entry)) as file:
            for offset, length in block_ranges(file.size, PIECE_BYTES):
                data = file.pread(length, offset)
                if len(data) != length:
                    raise cut_while_read(self.label, entry.name)
                yield data

    def _opened(self, entry: FileEntry) -> ByteSource:
        file = self.open(entry)
        if file is None:
            msg = f"A {type(self).__name__} opens no files, so it has to say itself how it reads them."
            raise NotImplementedError(msg)
        return file

    def close(self) -> None:
        """Release file handles. Calling it twice is fine."""
        if self.source is not None:
            self.source.close()


class TreeView(Tree):
    """Files that are other trees', and are read as those do it: `origin` says of each whose it is."""

    def path_of(self, entry: FileEntry) -> Path | None:
        tree, own = self.origin(entry)
        return tree.path_of(own)

    def open(self, entry: FileEntry) -> ByteSource | None:
        tree, own = self.origin(entry)
        return tree.open(own)

    def read(self, entry: FileEntry) -> bytes:
        tree, own = self.origin(entry)
        return tree.read(own)

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        tree, own = self.origin(entry)
        return tree.chunks(own)


class PartOfTree(TreeView):
    """Some files of a tree; whoever opened that closes it."""

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self._tree = tree
        # Not its `source`: positions of entries count in it, but this tree does not close it.
        self.kind, self.label, self.notes, self.entries = tree.kind, tree.label, tree.notes, entries

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        return self._tree.origin(entry)


class _GivenTree(Tree):
    """Somebody's own object that has files, as a tree."""

    def __init__(self, given: Any) -> None:
        self._given = given
        # A folder is what no reader makes any assumption about.
        self.kind = getattr(given, "kind", "folder")
        self.label, self.entries = given.label, given.entries
        self.notes = tuple(getattr(given, "notes", ()))

    @property
    def stamp(self) -> str:
        return str(getattr(self._given, "stamp", ""))

    @property
    def empty_folders(self) -> tuple[str, ...]:
        return tuple(getattr(self._given, "empty_folders", ()))

    def read(self, entry: FileEntry) -> bytes:
        content: bytes = self._given.read(entry)
        return content

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        # What is in memory anyway gains nothing from pieces, so nobody has to write that.
        yield from self._given.chunks(entry) if hasattr(self._given, "chunks") else (self._given.read(entry),)

    def close(self) -> None:
        if hasattr(self._given, "close"):
            self._given.close()


def as_tree(given: object) -> Tree | None:
    """Return a tree as it is, and one of whatever has `label`, `entries` and `read`; `None` for anything else."""
    if isinstance(given, Tree):
        return given
    return _GivenTree(given) if all(hasattr(given, name) for name in ("entries", "read", "label")) else None


def count_by(keys: Iterable[str] | Mapping[str, int], *, most: int = 5) -> str:
    """Write how often each key occurs, or the counts of keys, the commonest first.

    >>> count_by([".txt", ".csv", ".csv"])
    '2 .csv, 1 .txt'
    """
    # By name where counts are equal, so that the sentence is the same each time.
    counts = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {key}" for key, count in counts[:most]]
    if len(counts) > most:
        shown.append(f"{sum(count for _, count in counts[most:]):,} others")
    return ", ".join(shown)


def skipped_links(names: Sequence[str]) -> tuple[str, ...]:
    """Return the note on an archive's links that were left out; `names` is sorted."""
    if not names:
        return ()
    return (f"{left_out(len(names), 'links', 'to no file of the archive')} (first '{names[0]}').",)


def cut_while_read(archive: str, member: str) -> SourceReadError:
    """Return the error for an archive that was longer when it was opened."""
    return SourceReadError(
        f"'{archive}' ends inside its member {member!r}: the file changed or was cut while being read. "
        "Wait until its upload or copy is complete, then stage again."
    )


def unknown_entry(tree: str, name: str) -> SourceReadError:
    """Return the error for an entry that the tree does not have."""
    return SourceReadError(f"'{tree}' has no member {name!r}; the entry is from another tree.")


# Holes begin and end at multiples of this: every file system's block size divides it.
_HOLE_BYTES = 64 * 1024


class LocalBytes(Closing):
    """A `ByteSource` over a file: positioned reads on one handle, so any number of threads share it without a lock.

    Args:
        path: the file. It may be unlinked or replaced while this is open; the bytes stay those of the file opened.
        label: its address for messages; the path by default.
        follow: whether `path` may be a link.

    Raises:
        SourceNotFoundError: there is no such file.
    """

    def __init__(self, path: Path, *, label: str | None = None, follow: bool = True) -> None:
        self.label = str(path) if label is None else label
        # Set before opening, which may fail: `__del__` runs all the same.
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        except FileNotFoundError as error:
            msg = f"There is no file '{path}'. {whereabouts(path)}"
            raise SourceNotFoundError(msg) from error
        # As it was when opened.
        self.size = os.fstat(self._handle).st_size

    def fileno(self) -> int:
        """Return the handle, for a process that is to read the same file."""
        return self._handle

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        return pread_exactly(self._handle, length, offset)

    def close(self) -> None:
        """Release the handle. Calling it twice is fine."""
        # Forgotten before it is closed: its number may be another file's a moment later.
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class TemporaryBytes(LocalBytes):
    """The bytes of a file that colabstage itself made and nobody else needs: what has been used can be given back.

    Never for a user's file. Where the file system cannot make holes, the file keeps its size and nothing is lost.

    Args:
        path: the file; opened for writing too.
        label: its address for messages.
    """

    def __init__(self, path: Path, *, label: str | None = None) -> None:
        super().__init__(path, label=label)
        # A handle of its own: readers need none that can write.
        self._writer = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._released = 0

    def release_before(self, offset: int) -> None:
        """Give the disk back what is before `offset`; those bytes read as zeros from now on."""
        # Only whole blocks go: the part of one before `offset` may be shared with what is still read.
        start, end = self._released, offset // _HOLE_BYTES * _HOLE_BYTES
        with contextlib.suppress(OSError):
            if end > start:
                punch_hole(self._writer, start, end - start)
                self._released = end

    def close(self) -> None:
        """Release both handles. Calling it twice is fine."""
        super().close()
        handle, self._writer = getattr(self, "_writer", -1), -1
        if handle >= 0:
            os.close(handle)


class SharedBytes(Closing):
    """Somebody else's bytes, for a tree that closes what it reads from: closing this leaves `source` open."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.label, self.size, self.pread = source.label, source.size, source.pread

    def close(self) -> None:
        """Leave the source open: it is its owner's to close."""


class RequestedBytes:
    """Bytes that somebody else has, asked for part by part when they are read: a service's file, an archive's member.

    Args:
        request: gives so many bytes from an offset on: `request(length, offset)`.
        size: how many there are.
        label: their address, for messages.
    """

    def __init__(self, request: Callable[[int, int], bytes], size: int, *, label: str) -> None:
        self._request = request
        self.size = size
        self.label = label

    def pread(self, length: int, offset: int) -> bytes:
        """Ask for up to `length` bytes at `offset`; shorter only at the end."""
        length = min(length, self.size - offset)
        return self._request(length, offset) if length > 0 else b""

    def close(self) -> None:
        """Leave open what it asks, which is somebody else's to close."""


def owners_bytes(source: ByteSource) -> ByteSource:
    """Return the source itself; of shared bytes, the one that they share."""
    return source.source if isinstance(source, SharedBytes) else source


class SourceFile(io.RawIOBase):
    """A read-only, unbuffered file object over a `ByteSource`, for libraries that want one; for one thread at a time.

    Closing it leaves the source open. Each read looks at `cancellation` first.
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
# Characters that text does not contain.
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


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
    # Adler-32 begins with such a sum, exact for 256 bytes, and takes a tenth of the time of Python's own.
    first, second = (zlib.adler32(half) & 0xFFFF for half in (block[:256], block[256:]))
    unsigned = first - 1 + second - 1 - sum(block[148:156]) + 256
    # Of ASCII the two are the same, which nearly every header is.
    negative = sum(1 for byte in block[:148] + block[156:] if byte > 127) if not block.isascii() else 0
    return unsigned, unsigned - 256 * negative


def describe_contents(head: bytes) -> str:
    """Return what a file holds, by its first `HEAD_BYTES` bytes, as the end of "it is …"."""
    guesses = (
        (not head, "an empty file"),
        (not head.strip(b"\0"), "a file of zeros, as a copy or an upload leaves that was cut"),
        (bool(stand_in(head)), stand_in(head)),
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
