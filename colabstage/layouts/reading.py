"""Bytes of files in a tree: at any place of one, the first of one, and many small ones at once."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from colabstage.errors import CorruptArchiveError, DecodeError, SourceReadError
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.io.retry import RetryPolicy, read_with_retry
from colabstage.layouts.table import TreeFiles
from colabstage.machine.resources import check_space, free_space
from colabstage.trees.archive_bytes import LocalBytes
from colabstage.trees.contents import HEAD_BYTES, compression_of
from colabstage.trees.decompress import unpack_into
from colabstage.trees.folder import FolderTree
from colabstage.trees.joined import JoinedTree
from colabstage.trees.names import DEFAULT_LIMITS
from colabstage.trees.single_file import SingleFileTree
from colabstage.trees.tar import TarTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.layouts.table import Content, SampleSource
    from colabstage.trees.tree import ByteSource, FileEntry, Tree


def open_member(tree: Tree, entry: FileEntry) -> ByteSource:
    """Return the bytes of one file of a tree, to be read at any place, from any thread.

    A file of a folder is opened, a member of a tar is a part of the archive. Everything else, whose bytes are packed or
    have a checksum that only the whole of them meets, is unpacked into a file without a name on the local disk; the
    system drops it when nothing reads from it any more.

    Raises:
        OSError: as the medium answers.
        SourceReadError, CorruptArchiveError: as `Tree.chunks`.
        NotEnoughSpaceError: its unpacked form does not fit where this machine has room for temporary files.
    """
    if isinstance(tree, JoinedTree):
        return open_member(*tree.origin(entry))
    if isinstance(tree, FolderTree):
        return _checked(LocalBytes(Path(tree.label) / entry.name), entry)
    if isinstance(tree, SingleFileTree):
        return ByteRange(tree.source, 0, entry.size, label=tree.label)
    if isinstance(tree, TarTree):
        return ByteRange(tree.source, tree.member(entry).offset, entry.size, label=f"{tree.label}: {entry.name}")
    return _spool(tree, entry)


def open_unpacked(tree: Tree, entry: FileEntry) -> ByteSource:
    """Open a file as `open_member` does; of one that is compressed as a whole (.tar.gz, .tfrecord.gz), what is in it.

    Raises:
        As `open_member`, and UnsafeArchiveError: it unpacks to more than an honest file does.
    """
    source = open_member(tree, entry)
    if compression_of(source.pread(HEAD_BYTES, 0)) is None:
        return source
    try:
        return unpack_into(spool_folder(0, entry.name), source, DEFAULT_LIMITS)
    finally:
        source.close()


def read_head(tree: Tree, entry: FileEntry, length: int) -> bytes:
    """Return the first bytes of one file, `length` of them or as many as there are, without reading the rest where
    possible.

    Raises:
        As `Tree.chunks`.
    """
    if isinstance(tree, JoinedTree):
        return read_head(*tree.origin(entry), length)
    if isinstance(tree, FolderTree | TarTree | SingleFileTree):
        source = open_member(tree, entry)
        try:
            return source.pread(length, 0)
        finally:
            source.close()
    return next(iter(tree.chunks(entry)), b"")[:length]


def stamp_of(entry: FileEntry) -> str:
    """Return what differs whenever the file may have changed since it was listed."""
    return f"{entry.name!r} {entry.size} {entry.mtime_ns}"


class ByteRange:
    """A part of a `ByteSource` as one of its own; closing it leaves the whole open."""

    def __init__(self, source: ByteSource, start: int, size: int, *, label: str) -> None:
        self._source = source
        self._start = start
        self._size = size
        self._label = label

    @property
    def label(self) -> str:
        """Return the part's address, for messages."""
        return self._label

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        return self._size

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        length = min(length, self._size - offset)
        return self._source.pread(length, self._start + offset) if length > 0 else b""

    def close(self) -> None:
        """Do nothing: the whole stays open."""


class SeekableBytes(io.RawIOBase):
    """A read-only file object over a `ByteSource`, for libraries that want to seek; for one thread at a time."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
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
        view = memoryview(buffer).cast("B")
        data = self._source.pread(len(view), self._offset)
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)


def spool_folder(needed_bytes: int, what: str) -> Path:
    """Return the folder for temporary files with the most room.

    Raises:
        NotEnoughSpaceError: `needed_bytes` do not fit there; `what` is what needs them.
    """
    # /tmp is memory on some machines; a folder that TMPDIR names was chosen by a person.
    places = [Path(tempfile.gettempdir())]
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        places.append(Path("/var/tmp"))
    best = max(places, key=free_space)
    check_space(best, needed_bytes, what, remedy="Set TMPDIR to a folder on a larger disk.")
    return best


def _checked(source: LocalBytes, entry: FileEntry) -> LocalBytes:
    if source.size != entry.size:
        found = source.size
        source.close()
        msg = f"'{source.label}' has {found:,} bytes and was listed with {entry.size:,}: it changed meanwhile."
        raise SourceReadError(msg)
    return source


def _spool(tree: Tree, entry: FileEntry) -> LocalBytes:
    folder = spool_folder(entry.size, f"'{entry.name}' of '{tree.label}', unpacked,")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-", buffering=0) as file:
        for piece in tree.chunks(entry):
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
        return LocalBytes(Path(file.name), label=f"{tree.label}: {entry.name}")


T = TypeVar("T")

# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
_MAX_READERS = 32


def read_each(
    source: SampleSource,
    chosen: Sequence[int],
    make: Callable[[int, Content], T],
    *,
    readers: int = 2,
    skip_broken: bool = False,
    in_caller: bool = False,
) -> list[T]:
    """`make(index, content)` of some contents of a source, in the order of `chosen`.

    Args:
        source: the contents.
        chosen: which of them.
        make: called in one thread, as contents come.
        readers: reads in flight at the start; there are up to 32 when they prove slow.
        in_caller: read in this thread, one after the other.
        skip_broken: leave out what is damaged, where packing names it later; else the first stops the reading.

    Raises:
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source cannot be read.
        Everything that `make` raises; the first stops the reading.
    """
    policy = RetryPolicy()
    passed_over = (CorruptArchiveError, DecodeError) if skip_broken else ()
    found: dict[int, T] = {}

    def read(place: int) -> Content | None:
        index = chosen[place]
        try:
            return read_with_retry(lambda: source.read(index), source.name(index), policy=policy)
        except passed_over:
            return None

    def use(place: int, content: Content | None) -> None:
        if content is not None:
            with suppress(*passed_over):
                found[place] = make(chosen[place], content)

    positions = source.positions
    run_pipeline(
        sorted(range(len(chosen)), key=lambda place: int(positions[chosen[place]])),
        read=read,
        use=use,
        cost=lambda place: int(source.sizes[chosen[place]]),
        limits=PipelineLimits(
            readers=readers, max_readers=max(readers, _MAX_READERS), workers=1, caller_reads=in_caller
        ),
        cancellation=Cancellation(),
    )
    return [found[place] for place in sorted(found)]


def read_files(tree: Tree, entries: Sequence[FileEntry], make: Callable[[FileEntry, bytes], T]) -> list[T]:
    """`make(entry, content)` of some files of a tree, in their order, with many reads in flight where they are slow.

    Raises:
        As `read_each`, and CorruptArchiveError: a file is damaged.
    """
    source = TreeFiles(tree, entries)

    def use(index: int, content: Content) -> T:
        return make(source.entries[index], bytes(content))

    return read_each(source, range(len(source)), use)
