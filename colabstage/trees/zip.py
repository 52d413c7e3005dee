"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads."""

from __future__ import annotations

import bz2
import lzma
import stat
import struct
from typing import TYPE_CHECKING, Self, cast

from isal import isal_zlib

from colabstage.errors import ArchiveError, CorruptArchiveError
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
)
from colabstage.trees.tree import FileEntry, TreeKind
from colabstage.trees.zip_directory import ZipMember, read_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from colabstage.trees.tree import ByteSource

_LOCAL = struct.Struct("<4s5H3L2H")
_FLAG_ENCRYPTED = 0x1
_FLAG_LZMA_END = 0x2
# The part of a gap behind a member that is read along with it: its data descriptor (24 bytes) and alignment.
_MAX_GAP_BYTES = 64 * 1024
# A member longer than this is read after its local header, not with it: that spares copying it once more.
_SPLIT_BYTES = 1 << 20
_LZMA_MEMORY_BYTES = 1 << 30
_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 93: "Zstandard", 95: "xz", 98: "PPMd", 99: "AES"}


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
        member = self._members.get(entry.name)
        if member is None:
            raise foreign_entry(self.label, entry.name)
        return read_member(self._source, member)

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
    return FileEntry(name, member.size, member.mtime_ns, member.offset)


def read_member(source: ByteSource, member: ZipMember) -> bytes:
    """The content of one member, unpacked and verified."""
    data = _packed_bytes(source, member)
    if member.method:
        unpack = _UNPACK[member.method]
        try:
            data = unpack(data, member)
        except _UNPACK_ERRORS as error:
            raise _damaged(source, member, f"it does not unpack ({error})") from error
    if len(data) != member.size:
        found = f"{len(data):,}" if len(data) < member.size else "more"
        raise _damaged(source, member, f"it should hold {member.size:,} bytes but holds {found}")
    # ISA-L's CRC-32 is four times as fast as zlib's: 8 against 32 µs for 100 kB.
    if isal_zlib.crc32(data) != member.crc:
        raise _damaged(source, member, "its checksum is wrong")
    return data


def _packed_bytes(source: ByteSource, member: ZipMember) -> bytes:
    """The member as it lies in the archive. Its place depends on the local header, so both come in one read."""
    least = _LOCAL.size + len(member.stored_name)
    wanted = least + member.packed_size
    gap = member.end - member.offset - wanted
    length = wanted + gap if gap <= _MAX_GAP_BYTES else wanted + 64
    split = member.packed_size > _SPLIT_BYTES
    block = source.pread(least if split else length, member.offset)
    if len(block) < least:
        raise cut_while_read(source.label, member.name)
    mark, name_length, extra_length = block[:4], *_LOCAL.unpack_from(block)[9:]
    if mark != b"PK\3\4" or block[_LOCAL.size : _LOCAL.size + name_length] != member.stored_name:
        raise _damaged(source, member, "the archive's directory points to something else")
    start = _LOCAL.size + name_length + extra_length
    if member.offset + start + member.packed_size > member.end:
        raise _damaged(source, member, "it reaches into what follows it")
    if not split and start + member.packed_size <= len(block):
        return block[start : start + member.packed_size]
    data = source.pread(member.packed_size, member.offset + start)
    if len(data) != member.packed_size:
        raise cut_while_read(source.label, member.name)
    return data


def _inflate(data: bytes, member: ZipMember) -> bytes:
    # Bounded: a member that says 100 bytes and unpacks to a gigabyte stops at 101.
    inflater = isal_zlib.decompressobj(wbits=-15)
    content: bytes = inflater.decompress(data, member.size + 1)
    if not inflater.eof and len(content) == member.size:
        # The end mark may be left when the last byte of content is out.
        content += inflater.decompress(inflater.unconsumed_tail, 1)
    if not inflater.eof and len(content) <= member.size:
        raise EOFError("its data end early")  # noqa: EM101
    return content


def _unbzip2(data: bytes, member: ZipMember) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, member.size + 1)


def _unlzma(data: bytes, member: ZipMember) -> bytes:
    # APPNOTE 5.8.8: version (2), length of properties (2), properties (5), stream. The stand-alone format that
    # liblzma reads has the properties, the size (8; all ones when an end mark follows), the stream.
    if len(data) < 9 or data[2:4] != b"\5\0":
        raise lzma.LZMAError("its LZMA header is not readable")  # noqa: EM101
    ends_marked = member.flags & _FLAG_LZMA_END
    size = b"\xff" * 8 if ends_marked else member.size.to_bytes(8, "little")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_LZMA_MEMORY_BYTES)
    return decompressor.decompress(b"".join((data[4:9], size, data[9:])), member.size + 1)


# isal's type information declares the exception class as an instance.
_UNPACK_ERRORS = (cast("type[Exception]", isal_zlib.IsalError), lzma.LZMAError, OSError, EOFError, ValueError)
_UNPACK: dict[int, Callable[[bytes, ZipMember], bytes]] = {8: _inflate, 12: _unbzip2, 14: _unlzma}


def _damaged(source: ByteSource, member: ZipMember, reason: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"The member {member.name!r} of '{source.label}' is damaged: {reason}. Copy or upload the archive again."
    )


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
            "Unpack it and make a zip without a password."
        )
        raise ArchiveError(msg)
    for member in files.values():
        if member.method and member.method not in _UNPACK:
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
