"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Self

from colabstage.errors import ArchiveError
from colabstage.trees.messages import foreign_entry, skipped_links
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
)
from colabstage.trees.tree import FileEntry, TreeKind
from colabstage.trees.zip_directory import ZipMember, read_directory
from colabstage.trees.zip_members import READABLE_METHODS, member_chunks, read_member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from colabstage.trees.tree import ByteSource

_FLAG_ENCRYPTED = 0x1
_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 20: "Zstandard", 97: "WavPack", 98: "PPMd", 99: "AES"}


class ZipTree:
    """The files in a zip. Opening reads the directory at the end of the file; `read` touches the member's own bytes.

    Args:
        source: the archive's bytes; closed with the tree.
        limits: what the headers may promise.

    Raises:
        CorruptArchiveError: truncated, damaged, or no zip.
        UnsafeArchiveError: a member that no archive should have, or more content than `limits` allow.
        ArchiveError: password-protected, or packed with a method that is not read here.
    """

    def __init__(self, source: ByteSource, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        self._source = source
        members = read_directory(source)
        total = sum(member.size for member in members)
        check_limits(source.label, len(members), total, source.size, limits)
        files = _check_members(source.label, members)
        _check_readable(source.label, files)
        self._members, skipped = _resolve_links(source, files)
        self._notes = skipped_links(skipped)
        self._entries = tuple(_entry(name, self._members[name]) for name in sorted(self._members))

    @property
    def kind(self) -> TreeKind:
        """`"zip"`."""
        return "zip"

    @property
    def label(self) -> str:
        """The archive's address."""
        return self._source.label

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out: links that lead to folders or nowhere."""
        return self._notes

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files, sorted by name; `position` is the offset in the archive."""
        return self._entries

    def read(self, entry: FileEntry) -> bytes:
        """The whole content of one member, its CRC-32 verified.

        Raises:
            OSError: as the medium answers.
            SourceReadError: the archive is shorter than it was when opened.
            CorruptArchiveError: the member is damaged.
        """
        return read_member(self._source, self.member(entry))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content of one member in pieces of at most 16 MiB; its CRC-32 is verified after the last.

        Raises:
            As `read`.
        """
        return member_chunks(self._source, self.member(entry))

    @property
    def source(self) -> ByteSource:
        """The archive's bytes."""
        return self._source

    def member(self, entry: FileEntry) -> ZipMember:
        """What the directory says of a file."""
        member = self._members.get(entry.name)
        if member is None:
            raise foreign_entry(self.label, entry.name)
        return member

    def close(self) -> None:
        """Close the source. Calling it twice is fine."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _entry(name: str, member: ZipMember) -> FileEntry:
    return FileEntry(name, member.size, member.mtime_ns, member.offset, bool(member.mode & stat.S_IXUSR))


def _check_members(archive: str, members: list[ZipMember]) -> dict[str, ZipMember]:
    """The members that are files or links, by cleaned name, junk left out; the rules of `names` hold for all."""
    names: list[str] = []
    kept: list[ZipMember] = []
    folders: list[str] = []
    for member in members:
        kind = stat.S_IFMT(member.mode)
        if member.name.endswith("/") or (kind == stat.S_IFDIR and member.size == 0):
            folders.append(clean_folder_name(archive, member.name))
            if member.size:
                raise refuse_member(archive, member.name, "it is named like a folder but has content")
            continue
        name = clean_member_name(archive, member.name)
        if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
            raise refuse_member(archive, member.name, "it is a device, a pipe or a folder with content")
        if not is_junk(name):
            names.append(name)
            kept.append(member)
    check_collisions(archive, names, folders)
    return dict(zip(names, kept, strict=True))


def _check_readable(archive: str, files: dict[str, ZipMember]) -> None:
    locked = [member for member in files.values() if member.flags & _FLAG_ENCRYPTED]
    if locked:
        msg = (
            f"'{archive}' is password-protected ({len(locked):,} of {len(files):,} files, first {locked[0].name!r}). "
            "Unpack it with its password, and stage the folder or a zip without one."
        )
        raise ArchiveError(msg)
    for member in files.values():
        if member.method not in READABLE_METHODS:
            method = _METHODS.get(member.method, f"method {member.method}")
            msg = (
                f"'{archive}' packs {member.name!r} with {method}, which is not read here. "
                "Unpack it and make the zip again with Deflate or without compression."
            )
            raise ArchiveError(msg)


def _resolve_links(source: ByteSource, files: dict[str, ZipMember]) -> tuple[dict[str, ZipMember], list[str]]:
    """Replace links by the files they lead to. A zip keeps a link's target as its content, so those few are read."""
    links: dict[str, str] = {}
    for name, member in files.items():
        if stat.S_ISLNK(member.mode):
            if member.size > 4096:
                raise refuse_member(source.label, name, "it is a link with a target of more than 4,096 bytes")
            target = read_member(source, member).decode("utf-8", "surrogateescape")
            links[name] = resolve_link(source.label, name, target)
    if not links:
        return files, []
    regular = {name: member for name, member in files.items() if name not in links}
    found = {name: regular[target] for name, target in follow_links(links, regular).items()}
    return regular | found, sorted(links.keys() - found.keys())
