"""The bytes of shards: of thousands of files, of which few are in use at once, or of objects far away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from colabstage.errors import SourceReadError
from colabstage.layouts.members import open_member, spool_folder
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.archive_bytes import LocalBytes, SharedBytes
from colabstage.trees.contents import HEAD_BYTES, compression_of
from colabstage.trees.decompress import unpack_into
from colabstage.trees.folder import FolderTree
from colabstage.trees.joined import JoinedTree
from colabstage.trees.names import DEFAULT_LIMITS
from colabstage.trees.single_file import CompressedFileTree

if TYPE_CHECKING:
    from colabstage.trees.tree import ByteSource, FileEntry, Tree


@runtime_checkable
class _ReadsParts(Protocol):
    """A tree of a remote service, which gives any part of a file."""

    def read_part(self, entry: FileEntry, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`."""


def open_shard(tree: Tree, entry: FileEntry) -> ByteSource:
    """As `open_member`, but a file of a folder takes a handle only while it is in use, parts of a remote file are asked
    for one by one, and what is compressed as a whole is unpacked.

    Raises:
        As `open_member`, and UnsafeArchiveError: it unpacks to more than an honest file does.
    """
    file = _open_stored(tree, entry)
    head = read_with_retry(lambda: file.pread(HEAD_BYTES, 0), entry.name, policy=RetryPolicy())
    if compression_of(head) is None:
        return file
    return unpack_into(spool_folder(0, entry.name), file, DEFAULT_LIMITS)


def _open_stored(tree: Tree, entry: FileEntry) -> ByteSource:
    if isinstance(tree, JoinedTree):
        return _open_stored(*tree.origin(entry))
    if isinstance(tree, FolderTree):
        return FolderFile(Path(tree.label) / entry.name, entry.size)
    if isinstance(tree, CompressedFileTree):
        return SharedBytes(tree.source)
    if isinstance(tree, _ReadsParts):
        return _RemoteFile(tree, f"{tree.label}/{entry.name}", entry)
    return open_member(tree, entry)


class FolderFile:
    """A file of a folder: opened when it is read, and again after `close`."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._open: LocalBytes | None = None

    @property
    def label(self) -> str:
        """The file's path."""
        return str(self._path)

    @property
    def size(self) -> int:
        """Its length in bytes, as it was listed."""
        return self._size

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`.

        Raises:
            OSError: as the disk or mount answers.
            SourceReadError: the file is not as long any more as it was listed.
        """
        # A name of this thread's own keeps the handle open while it reads, also when another one lets go of the file.
        file = self._open
        if file is None:
            file = LocalBytes(self._path)
            if file.size != self._size:
                msg = (
                    f"'{self._path}' was listed with {self._size:,} bytes and has {file.size:,} now: it changed while "
                    "being read. Wait until its upload or copy is complete, then stage again."
                )
                raise SourceReadError(msg)
            self._open = file
        return file.pread(length, offset)

    def close(self) -> None:
        """Let go of the handle, as soon as no thread reads from it. Calling it twice is fine."""
        self._open = None


class _RemoteFile:
    """A file of a remote folder, each part asked for when it is read."""

    def __init__(self, tree: _ReadsParts, label: str, entry: FileEntry) -> None:
        self._tree = tree
        self._label = label
        self._entry = entry

    @property
    def label(self) -> str:
        return self._label

    @property
    def size(self) -> int:
        return self._entry.size

    def pread(self, length: int, offset: int) -> bytes:
        length = min(length, self.size - offset)
        return self._tree.read_part(self._entry, offset, length) if length > 0 else b""

    def close(self) -> None:
        """The tree keeps the connection."""
