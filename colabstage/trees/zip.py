"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads."""

from __future__ import annotations

import stat
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from colabstage.errors import ArchiveError
from colabstage.trees.entries import sorted_by_name
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
    without_files,
)
from colabstage.trees.texts import Texts, narrowed
from colabstage.trees.zip_directory import ZipDirectory, ZipMember, read_directory
from colabstage.trees.zip_members import READABLE_METHODS, member_chunks, read_member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from colabstage.trees.entries import FileEntries
    from colabstage.trees.tree import ByteSource, FileEntry, TreeKind

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
        directory = read_directory(source)
        # Each size may be near 2 ** 61, so the sum is one of floats.
        total = int(directory.facts["size"].sum(dtype=np.float64))
        check_limits(source.label, len(directory), total, source.size, limits)
        listed = _list_files(source, directory)
        self._entries = listed.entries
        self._packing = listed.packing
        self._stored_names = listed.stored_names
        self._notes = skipped_links(listed.skipped)
        self.empty_folders = listed.empty_folders

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
    def entries(self) -> FileEntries:
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
        place = self._entries.find(entry)
        if place is None:
            raise foreign_entry(self.label, entry.name)
        own = entry if entry.place == place else self._entries[place]
        stored = self._stored_names.get(place) or own.name.encode("utf-8", "surrogatepass")
        end, packed_size, crc, method, flags, mode = [column.item(place) for column in self._packing.values()]
        return ZipMember(
            own.name, stored, own.position, end, packed_size, own.size, crc, method, flags, mode, own.mtime_ns
        )

    def close(self) -> None:
        """Close the source. Calling it twice is fine."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Listed(NamedTuple):
    """The files of a zip, N of them, sorted by name.

    `packing`: what reading a member takes beside its entry's facts, `(N,)` by name: end, packed_size, crc, method,
    flags, mode. `stored_names`: by number, in bytes, of those whose names the archive has otherwise than their entry.
    `skipped`: links that lead to no file. `empty_folders`: members that are folders and hold no file.
    """

    entries: FileEntries
    packing: dict[str, NDArray[Any]]
    stored_names: dict[int, bytes]
    skipped: list[str]
    empty_folders: tuple[str, ...]


def _list_files(source: ByteSource, directory: ZipDirectory) -> _Listed:
    """The files of a directory by cleaned name, junk left out, links in the place of what they lead to."""
    names, numbers, folders = _check_members(source.label, directory)
    empty_folders = without_files(folders, names) if folders else ()
    _check_readable(source.label, directory, numbers)
    skipped: list[str] = []
    if np.any(directory.facts["mode"][numbers] & np.uint16(0o170000) == stat.S_IFLNK):
        files, skipped = _resolve_links(source, directory, dict(zip(names, numbers.tolist(), strict=True)))
        names, numbers = Texts.of(files), np.array(list(files.values()), np.int64)
    facts = directory.facts
    entries, order = sorted_by_name(
        names,
        facts["size"][numbers],
        facts["mtime_ns"][numbers],
        facts["offset"][numbers],
        (facts["mode"][numbers] & stat.S_IXUSR) != 0,
    )
    rows = numbers[order]
    packing = {name: narrowed(facts[name][rows]) for name in ("end", "packed_size")}
    packing |= {name: facts[name][rows] for name in ("crc", "method", "flags", "mode")}
    return _Listed(entries, packing, _stored_names(directory, entries, rows), skipped, empty_folders)


def _stored_names(directory: ZipDirectory, entries: FileEntries, rows: NDArray[np.int64]) -> dict[int, bytes]:
    return {
        place: directory.stored_name(int(row))
        for place, (name, raw, row) in enumerate(zip(entries.names, directory.names.take(rows), rows, strict=True))
        if row in directory.stored_names or raw != name
    }


def _check_members(archive: str, directory: ZipDirectory) -> tuple[Texts, NDArray[np.int64], list[str]]:
    """The members that are files or links, by cleaned name, and their numbers; the names of those that are folders.

    The rules of `names` hold for all.
    """
    numbers = array("q")
    folders: list[str] = []

    def names() -> Iterator[str]:
        for number, (raw, fact) in enumerate(zip(directory.names, directory.facts, strict=True)):
            mode, size = int(fact["mode"]), int(fact["size"])
            kind = stat.S_IFMT(mode)
            if raw.endswith("/") or (kind == stat.S_IFDIR and size == 0):
                folders.append(clean_folder_name(archive, raw))
                if size:
                    raise refuse_member(archive, raw, "it is named like a folder but has content")
                continue
            name = clean_member_name(archive, raw)
            if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise refuse_member(archive, raw, "it is a device, a pipe or a folder with content")
            if not is_junk(name):
                numbers.append(number)
                yield name

    found = Texts.of(names())
    check_collisions(archive, found, folders)
    return found, np.array(numbers, np.int64), folders


def _check_readable(archive: str, directory: ZipDirectory, rows: NDArray[np.int64]) -> None:
    locked = rows[(directory.facts["flags"][rows] & _FLAG_ENCRYPTED) != 0]
    if len(locked):
        msg = (
            f"'{archive}' is password-protected ({len(locked):,} of {len(rows):,} files, first "
            f"{directory.names[int(locked[0])]!r}). Unpack it with its password, and stage the folder or a zip without "
            "one."
        )
        raise ArchiveError(msg)
    unreadable = rows[~np.isin(directory.facts["method"][rows], list(READABLE_METHODS))]
    if len(unreadable):
        member = directory.member(int(unreadable[0]))
        method = _METHODS.get(member.method, f"method {member.method}")
        msg = (
            f"'{archive}' packs {member.name!r} with {method}, which is not read here. "
            "Unpack it and make the zip again with Deflate or without compression."
        )
        raise ArchiveError(msg)


def _resolve_links(
    source: ByteSource, directory: ZipDirectory, files: dict[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Replace links by the files they lead to. A zip keeps a link's target as its content, so those few are read.

    Returns:
        All files by name with their numbers in the directory, and the links that lead to none.
    """
    links: dict[str, str] = {}
    for name, number in files.items():
        if stat.S_ISLNK(int(directory.facts["mode"][number])):
            member = directory.member(number)
            if member.size > 4096:
                raise refuse_member(source.label, name, "it is a link with a target of more than 4,096 bytes")
            target = read_member(source, member).decode("utf-8", "surrogateescape")
            links[name] = resolve_link(source.label, name, target)
    regular = {name: number for name, number in files.items() if name not in links}
    found = {name: regular[target] for name, target in follow_links(links, regular).items()}
    return regular | found, sorted(links.keys() - found.keys())
