"""A tar as a tree: its headers are scanned once, then members are read by offset from any number of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from colabstage.errors import UnsafeArchiveError
from colabstage.fileops import block_ranges
from colabstage.trees.contents import HEAD_BYTES, compression_of
from colabstage.trees.entries import FileEntries, Listing
from colabstage.trees.messages import cut_while_read, foreign_entry, skipped_links
from colabstage.trees.names import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    check_collisions,
    check_limits,
    clean_folder_name,
    clean_member_name,
    follow_links,
    is_junk,
    refuse_member,
    resolve_link,
    without_files,
)
from colabstage.trees.spool import unpack_into
from colabstage.trees.tar_headers import TarMember, scan_members
from colabstage.trees.tree import PIECE_BYTES, FileEntry, TreeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from colabstage.progress import Cancellation
    from colabstage.trees.tree import ByteSource


class TarTree:
    """The files in a tar. A compressed one is unpacked once, into an unnamed file that vanishes with the tree.

    Args:
        source: the archive's bytes; closed with the tree.
        spool: a folder on a local disk with room for the unpacked form of a compressed archive; created if need be.
        limits: what the headers may promise.
        cancellation: looked at while it is unpacked and while its headers are read.

    Raises:
        CorruptArchiveError: truncated, damaged, or no tar.
        UnsafeArchiveError: a member that no archive should have, or more content than `limits` allow.
        ArchiveError: sparse members, or one volume of several.
        NotEnoughSpaceError: the unpacked form does not fit in `spool`.
        TargetNotWritableError: nothing can be written in `spool`.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._source = source
        self._bytes = source
        if compression_of(source.pread(HEAD_BYTES, 0)) is not None:
            self._bytes = unpack_into(spool, source, limits, cancellation)
        try:
            found = _read_headers(self._bytes, source.size, limits, cancellation)
        except BaseException:
            if self._bytes is not source:
                self._bytes.close()
            raise
        self._notes = skipped_links(found.skipped)
        self.empty_folders = found.empty_folders
        self._entries = found.files.by_name().entries

    @property
    def kind(self) -> TreeKind:
        """`"tar"`."""
        return "tar"

    @property
    def label(self) -> str:
        """The archive's address."""
        return self._source.label

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out: links that lead to folders or nowhere."""
        return self._notes

    @property
    def entries(self) -> FileEntries:
        """All files, sorted by name; `position` is the offset in the unpacked archive."""
        return self._entries

    def read(self, entry: FileEntry) -> bytes:
        """The whole content of one member. A tar has no checksums of contents, so only the length is verified.

        Raises:
            OSError: as the medium answers.
            SourceReadError: the archive is shorter than it was when opened.
        """
        member = self.member(entry)
        data = self._bytes.pread(member.size, member.offset) if member.size else b""
        if len(data) != member.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content of one member in pieces of at most 16 MiB.

        Raises:
            As `read`.
        """
        member = self.member(entry)
        for offset, length in block_ranges(member.size, PIECE_BYTES):
            data = self._bytes.pread(length, member.offset + offset)
            if len(data) != length:
                raise cut_while_read(self.label, entry.name)
            yield data

    @property
    def source(self) -> ByteSource:
        """The bytes that members' offsets count in: the archive's, or those of its unpacked form."""
        return self._bytes

    def member(self, entry: FileEntry) -> TarMember:
        """What the headers say of a file; of a link, what they say of the file that it leads to."""
        place = self._entries.find(entry)
        if place is None:
            raise foreign_entry(self.label, entry.name)
        own = self._entries[place]
        return TarMember(own.name, "file", "", own.position, own.size, own.mtime_ns, own.executable)

    def close(self) -> None:
        """Close the source and drop the unpacked form. Calling it twice is fine."""
        self._bytes.close()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Headers(NamedTuple):
    """The files by cleaned name, links resolved, the links that lead to none, and the folders that hold no file."""

    files: Listing
    skipped: list[str]
    empty_folders: tuple[str, ...]


def _read_headers(
    source: ByteSource, packed_bytes: int, limits: ArchiveLimits, cancellation: Cancellation | None
) -> _Headers:
    return _check_members(source.label, _within_limits(source, packed_bytes, limits, cancellation))


def _within_limits(
    source: ByteSource, packed_bytes: int, limits: ArchiveLimits, cancellation: Cancellation | None
) -> Iterator[TarMember]:
    total = 0
    for count, member in enumerate(scan_members(source), 1):
        if cancellation is not None:
            cancellation.check()
        total += member.size
        check_limits(source.label, count, total, packed_bytes, limits)
        yield member


def _check_members(archive: str, members: Iterable[TarMember]) -> _Headers:
    files = Listing()
    symlinks: dict[str, str] = {}
    hardlinks: dict[str, str] = {}
    linked: list[str] = []
    folders: list[str] = []
    for member in members:
        if member.kind == "folder":
            folders.append(clean_folder_name(archive, member.name))
            continue
        name = clean_member_name(archive, member.name)
        if member.kind == "special":
            raise refuse_member(archive, name, "it is a device or a pipe")
        if is_junk(name):
            continue
        if member.kind == "symlink":
            linked.append(name)
            symlinks[name] = resolve_link(archive, name, member.link)
        elif member.kind == "hardlink":
            linked.append(name)
            hardlinks[name] = _hardlink_target(archive, name, member.link)
        else:
            files.add(name, member.size, member.mtime_ns, member.offset, executable=member.executable)
    check_collisions(archive, [*files.names, *linked] if linked else files.names, folders)
    empty_folders = without_files(folders, [*files.names, *linked]) if folders else ()
    if not linked:
        return _Headers(files, [], empty_folders)
    links = symlinks | hardlinks
    regular = {entry.name: entry for entry in files.entries()}
    found = follow_links(links, regular)
    for name, target in found.items():
        own = regular[target]
        files.add(name, own.size, own.mtime_ns, own.position, executable=own.executable)
    return _Headers(files, sorted(links.keys() - found.keys()), empty_folders)


def _hardlink_target(archive: str, name: str, target: str) -> str:
    try:
        return clean_member_name(archive, target)
    except UnsafeArchiveError:
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive") from None
