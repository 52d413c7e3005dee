"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads.

Whatever the directory says of a member is held against its own header and content: an archive that was changed in
between is damage, never other data.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import stat
import struct
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError
from colabstage.io.accelerated import igzip_lib, isal_zlib
from colabstage.trees.entries import (
    DEFAULT_LIMITS,
    JUNK_FILES,
    JUNK_FOLDERS,
    MOST_FOLDERS,
    ArchiveLimits,
    check_collisions,
    check_limits,
    clean_folder_name,
    clean_member_name,
    is_junk,
    refuse_member,
    resolve_link,
    resolve_links,
    sorted_by_name,
    without_files,
)
from colabstage.trees.strings import StringArray, narrowed
from colabstage.trees.tree import PIECE_BYTES, Tree, cut_while_read, skipped_links, unknown_entry
from colabstage.trees.zip_directory import ZipDirectory, ZipMember, read_directory
from colabstage.trees.zip_names import other_readings, undeclared_note, undeclared_remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from colabstage.trees.entries import FileEntries
    from colabstage.trees.tree import ByteSource, FileEntry

STORED, DEFLATED, BZIP2, LZMA, ZSTANDARD, XZ = 0, 8, 12, 14, 93, 95
READABLE_METHODS = frozenset({STORED, DEFLATED, BZIP2, LZMA, ZSTANDARD, XZ})

_LOCAL = struct.Struct("<4s5H3L2H")
_FLAG_ENCRYPTED = 0x1
_FLAG_LZMA_END = 0x2
# The part of a gap behind a member that is read along with it: its data descriptor (24 bytes) and alignment.
_MAX_GAP_BYTES = 64 * 1024
# A member longer than this is read after its local header, not with it: that spares copying it once more.
_SPLIT_BYTES = 1 << 20
_LZMA_MEMORY_BYTES = 1 << 30
# Deflate grows data 1,032 times at most, so up to here one unbounded call makes 66 MB of a lie and is found out after.
_ONE_SHOT_BYTES = 64 * 1024
_PACKED_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 17

# isal's type information declares the exception class as an instance.
_UNPACK_ERRORS = (cast("type[Exception]", isal_zlib.IsalError), lzma.LZMAError, OSError, EOFError, ValueError)


class _Decompressor(Protocol):
    """What the decompressors of bz2, lzma and isal have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def read_member(source: ByteSource, member: ZipMember) -> bytes:
    """Return the content of one member, unpacked and verified.

    Raises:
        OSError: as the medium answers.
        SourceReadError: the archive is shorter than it was when opened.
        CorruptArchiveError: the member is damaged, or its two headers disagree.
    """
    data = _packed_bytes(source, member)
    if member.method:
        try:
            data = _unpack(data, member)
        except _unpack_errors(member) as error:
            raise _damaged(source, member, f"it does not unpack ({error})") from error
    if len(data) != member.size:
        raise _wrong_size(source, member, len(data))
    # ISA-L's CRC-32 is four times as fast as zlib's: 8 against 32 µs for 100 kB.
    if isal_zlib.crc32(data) != member.crc:
        raise _damaged(source, member, "its checksum is wrong")
    return data


def member_chunks(source: ByteSource, member: ZipMember) -> Iterator[bytes]:
    """Yield the content of one member in pieces of at most `PIECE_BYTES`; an error after the last if it is not the
    right one.

    Raises:
        As `read_member`.
    """
    crc = done = 0
    pieces = _pieces(_packed_pieces(source, member), member)
    while True:
        try:
            piece = next(pieces, None)
        except _unpack_errors(member) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise _damaged(source, member, f"it does not unpack ({error})") from error
        if piece is None:
            break
        done += len(piece)
        if done > member.size:
            raise _wrong_size(source, member, done)
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if done != member.size:
        raise _wrong_size(source, member, done)
    if crc != member.crc:
        raise _damaged(source, member, "its checksum is wrong")


def _packed_bytes(source: ByteSource, member: ZipMember) -> bytes:
    """Return the member as it is in the archive. Its place depends on the local header, so both come in one read."""
    least = _LOCAL.size + len(member.stored_name)
    wanted = least + member.packed_size
    gap = member.end - member.offset - wanted
    # The local header's extra field may be longer than the directory's, so a little more is read.
    length = wanted + gap if gap <= _MAX_GAP_BYTES else wanted + 64
    split = member.packed_size > _SPLIT_BYTES
    block = source.pread(least if split else length, member.offset)
    start = _content_at(source, member, block)
    if not split and start + member.packed_size <= len(block):
        return block[start : start + member.packed_size]
    data = source.pread(member.packed_size, member.offset + start)
    if len(data) != member.packed_size:
        raise cut_while_read(source.label, member.name)
    return data


def _content_at(source: ByteSource, member: ZipMember, block: bytes) -> int:
    """Return where the content begins, counted from the local header that `block` begins with."""
    if len(block) < _LOCAL.size + len(member.stored_name):
        raise cut_while_read(source.label, member.name)
    mark, _, flags, method, _, _, _, packed, size, name_length, extra_length = _LOCAL.unpack_from(block)
    if mark != b"PK\3\4" or block[_LOCAL.size : _LOCAL.size + name_length] != member.stored_name:
        raise _damaged(source, member, "the archive's directory points to something else")
    if method != member.method or (flags ^ member.flags) & _FLAG_ENCRYPTED:
        raise _damaged(source, member, "its own header and the archive's directory disagree on how it is packed")
    # Zeros where a descriptor follows the content, all ones where a zip64 field has the number.
    if packed not in (0, 0xFFFFFFFF, member.packed_size) or size not in (0, 0xFFFFFFFF, member.size):
        raise _damaged(source, member, "its own header and the archive's directory disagree on its size")
    start: int = _LOCAL.size + name_length + extra_length
    if member.offset + start + member.packed_size > member.end:
        raise _damaged(source, member, "it reaches into what follows it")
    return start


def _packed_pieces(source: ByteSource, member: ZipMember) -> Iterator[bytes]:
    head = source.pread(_LOCAL.size + len(member.stored_name), member.offset)
    at = member.offset + _content_at(source, member, head)
    end = at + member.packed_size
    most = PIECE_BYTES if member.method == STORED else _PACKED_PIECE_BYTES
    # Whoever wants only the head of a large member, as of an array, does not wait for more.
    wanted = _HEAD_BYTES if member.packed_size > _PACKED_PIECE_BYTES else most
    while at < end:
        length = min(wanted, end - at)
        data = source.pread(length, at)
        if len(data) != length:
            raise cut_while_read(source.label, member.name)
        yield data
        at += length
        wanted = most


def _pieces(packed: Iterable[bytes], member: ZipMember) -> Iterator[bytes]:
    if member.method == STORED:
        yield from packed
    elif member.method == ZSTANDARD:
        reader = _zstandard().ZstdDecompressor().stream_reader(_PieceStream(iter(packed)))
        yield from iter(lambda: reader.read(PIECE_BYTES), b"")
    else:
        yield from _fed(packed, member)


def _fed(packed: Iterable[bytes], member: ZipMember) -> Iterator[bytes]:
    parts = iter(packed)
    if member.method == LZMA:
        parts = _with_alone_header(parts, member)
    make: dict[int, Callable[[], Any]] = {
        DEFLATED: lambda: igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE),
        BZIP2: bz2.BZ2Decompressor,
        LZMA: lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_LZMA_MEMORY_BYTES),
        XZ: lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY_BYTES),
    }
    decompressor = cast("_Decompressor", make[member.method]())
    while not decompressor.eof:
        data = next(parts, b"") if decompressor.needs_input else b""
        if not data and decompressor.needs_input:
            raise EOFError("its data end early")  # noqa: EM101
        if piece := decompressor.decompress(data, PIECE_BYTES):
            yield piece


def _with_alone_header(parts: Iterator[bytes], member: ZipMember) -> Iterator[bytes]:
    # APPNOTE 5.8.8: version (2), length of properties (2), properties (5), stream. The stand-alone format that
    # liblzma reads has the properties, the size (8; all ones when an end mark follows), the stream.
    head = next(parts, b"")
    if len(head) < 9 or head[2:4] != b"\5\0":
        raise lzma.LZMAError("its LZMA header is not readable")  # noqa: EM101
    ends_marked = member.flags & _FLAG_LZMA_END
    size = b"\xff" * 8 if ends_marked else member.size.to_bytes(8, "little")
    yield b"".join((head[4:9], size, head[9:]))
    yield from parts


class _PieceStream(io.RawIOBase):
    """A readable stream over pieces."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        super().__init__()
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        length = min(len(buffer), len(self._rest))
        buffer[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length


def _unpack(data: bytes, member: ZipMember) -> bytes:
    if member.method == DEFLATED and len(data) <= _ONE_SHOT_BYTES:
        content: bytes = igzip_lib.decompress(data, igzip_lib.DECOMP_DEFLATE, 15, member.size + 1)
        return content
    parts: list[bytes] = []
    done = 0
    for piece in _pieces((data,), member):
        parts.append(piece)
        done += len(piece)
        # A member that says 100 bytes and unpacks to a terabyte ends after one piece.
        if done > member.size:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstandard() -> Any:
    return importlib.import_module("zstandard")


def _unpack_errors(member: ZipMember) -> tuple[type[Exception], ...]:
    return (*_UNPACK_ERRORS, _zstandard().ZstdError) if member.method == ZSTANDARD else _UNPACK_ERRORS


def _wrong_size(source: ByteSource, member: ZipMember, found: int) -> CorruptArchiveError:
    holds = f"{found:,}" if found < member.size else "more"
    return _damaged(source, member, f"it should hold {member.size:,} bytes but holds {holds}")


def _damaged(source: ByteSource, member: ZipMember, reason: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"The member {member.name!r} of '{source.label}' is damaged: {reason}. Copy or upload the archive again."
    )


_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 20: "Zstandard", 97: "WavPack", 98: "PPMd", 99: "AES"}


class ZipTree(Tree):
    """The files in a zip. Opening reads the directory at the end of the file; `read` touches the member's own bytes.

    Args:
        source: the archive's bytes; closed with the tree.
        limits: what the headers may promise.

    Raises:
        CorruptArchiveError: truncated, damaged, or no zip.
        UnsafeArchiveError: a member that no archive should have, or more content than `limits` allow.
        ArchiveError: password-protected, or packed with a method that is not read here.
    """

    kind = "zip"
    source: ByteSource
    entries: FileEntries

    def __init__(self, source: ByteSource, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        self.source, self.label = source, source.label
        directory = read_directory(source)
        # Each size may be near 2 ** 61, so the sum is one of floats.
        total = int(directory.facts["size"].sum(dtype=np.float64))
        check_limits(source.label, len(directory), total, source.size, limits)
        self._take_files(directory)

    def _take_files(self, directory: ZipDirectory) -> None:
        """Take the files of a directory by cleaned name, junk left out, links in the place of what they lead to; and
        the facts out of the directory."""
        names, numbers, folders, renamed = _check_members(self.label, directory)
        self._empty_folders = without_files(folders, names) if folders else ()
        facts = directory.facts
        # By the directory alone, so that nothing is staged for an hour before the first locked member.
        locked = numbers[(facts["flags"][numbers] & _FLAG_ENCRYPTED) != 0]
        if len(locked):
            msg = (
                f"'{self.label}' is password-protected ({len(locked):,} of {len(numbers):,} files, first "
                f"{directory.names[int(locked[0])]!r}). Unpack it with its password, and stage the folder or a zip "
                "without one."
            )
            raise ArchiveError(msg)
        unreadable = numbers[~np.isin(facts["method"][numbers], list(READABLE_METHODS))]
        if len(unreadable):
            member = directory.member(int(unreadable[0]))
            method = _METHODS.get(member.method, f"method {member.method}")
            msg = (
                f"'{self.label}' packs {member.name!r} with {method}, which is not read here. "
                "Unpack it and make the zip again with Deflate or without compression."
            )
            raise ArchiveError(msg)
        if np.any(facts["mode"][numbers] & np.uint16(0o170000) == stat.S_IFLNK):
            files, skipped = _resolve_links(self.source, directory, dict(zip(names, numbers.tolist(), strict=True)))
            self.notes = skipped_links(skipped)
            names, numbers, renamed = StringArray.of(files), np.array(list(files.values()), np.int64), True
        # Junk and links to nothing do not count.
        undeclared = np.intersect1d(directory.undeclared, numbers).tolist() if directory.undeclared else []
        if undeclared:
            self.notes += (undeclared_note([directory.stored_name(number) for number in undeclared]),)
        facts["executable"] = (facts["mode"] & stat.S_IXUSR) != 0
        self.entries, rows = sorted_by_name(names, facts, rows=numbers)
        self._packing = {name: narrowed(facts.pop(name)[rows]) for name in ("end", "packed_size")}
        self._packing |= {name: facts.pop(name)[rows] for name in ("crc", "method", "flags", "mode")}
        # In bytes only those that differ: all of them would double what the listing takes.
        self._stored_names: dict[int, bytes] = {}
        if renamed or directory.stored_names:
            stored = directory.names.take(rows)
            self._stored_names = {
                place: directory.stored_name(int(row))
                for place, (name, raw, row) in enumerate(zip(self.entries.names, stored, rows, strict=True))
                if row in directory.stored_names or raw != name
            }

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return the members that are folders and hold no file."""
        return self._empty_folders

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one member, its CRC-32 verified."""
        return read_member(self.source, self.packing(entry))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content of one member in pieces; its CRC-32 is verified after the last."""
        return member_chunks(self.source, self.packing(entry))

    def packing(self, entry: FileEntry) -> ZipMember:
        """Return what the directory says of a file."""
        place = self.entries.find(entry)
        if place is None:
            raise unknown_entry(self.label, entry.name)
        # An entry that a caller has created may carry other facts than the directory has.
        own = entry if entry.place == place else self.entries[place]
        stored = self._stored_names.get(place) or own.name.encode("utf-8", "surrogatepass")
        end, packed_size, crc, method, flags, mode = [column.item(place) for column in self._packing.values()]
        return ZipMember(
            own.name, stored, own.position, end, packed_size, own.size, crc, method, flags, mode, own.mtime_ns
        )


def _check_members(archive: str, directory: ZipDirectory) -> tuple[StringArray, NDArray[Any], list[str], bool]:
    """Check that the rules of `entries` hold for all members.

    Returns:
        Of the members that are files or links, junk left out, the cleaned names and the places in the directory, both
        `(M,)`; the cleaned names of those that are folders; whether any name is not as the archive has it.

    Raises:
        UnsafeArchiveError: one breaks a rule of `entries`.
    """
    keep = np.ones(len(directory), np.bool_)
    renamed: dict[int, str] = {}
    folders: list[str] = []
    facts = directory.facts
    _check_backslashes(archive, directory)
    # All others are files with names as they should be: nearly all of what may be ten million.
    for number in np.flatnonzero(_needs_a_look(directory)).tolist():
        raw, mode, size = directory.names[number], int(facts["mode"][number]), int(facts["size"][number])
        kind = stat.S_IFMT(mode)
        if raw.endswith("/") or (kind == stat.S_IFDIR and size == 0):
            folders.append(clean_folder_name(archive, raw))
            if size:
                raise refuse_member(archive, raw, "it is named like a folder but has content")
            keep[number] = False
            continue
        name = clean_member_name(archive, raw)
        if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
            raise refuse_member(archive, raw, "it is a device, a pipe or a folder with content")
        keep[number] = not is_junk(name)
        if name != raw:
            renamed[number] = name
    numbers = narrowed(np.flatnonzero(keep))
    names = directory.names if keep.all() else directory.names.take(numbers)
    if renamed:
        pairs = zip(numbers.tolist(), names, strict=True)
        names = StringArray.of(renamed.get(number, name) for number, name in pairs)
    check_collisions(archive, names, folders)
    return names, numbers, folders, bool(renamed)


def _check_backslashes(archive: str, directory: ZipDirectory) -> None:
    """Refuse names that have a backslash only because their encoding is not declared.

    In cp932, gbk and big5 the second byte of a character may be that of a backslash, so a folder of such names would be
    told to be unsafe, which it is not.

    Raises:
        ArchiveError: there is such a name.
    """
    stored = [directory.stored_name(number) for number in directory.undeclared]
    odd = next((name for name in stored if b"\\" in name), None)
    if odd is None or all("\\" in text for text in other_readings([odd, *stored]).values()):
        return
    msg = (
        f"'{archive}' does not say how its names are encoded. Read as cp437, the format's default, the name "
        f"{odd.decode('cp437')!r} contains a backslash. {undeclared_remedy([odd, *stored])}"
    )
    raise ArchiveError(msg)


def _needs_a_look(directory: ZipDirectory) -> NDArray[np.bool_]:
    """Return which members are no files, or have names that may break a rule, be junk, or have parts to drop."""
    # What begins with a dot, as most junk does, is among them.
    names = directory.names.packed()
    found = names.containing(b"/.", b"//", b"\\", b"\0", *(folder.encode() for folder in JUNK_FOLDERS))
    found |= names.containing(*(file.encode() for file in JUNK_FILES), any_case=True)
    found |= np.isin(names.bytes_at(0), (0, *b"/.")) | (names.bytes_at(1) == ord(":"))
    found |= (names.bytes_at(-1) == ord("/")) | (names.lengths > MOST_FOLDERS)
    return found | ~np.isin(directory.facts["mode"] & np.uint16(0o170000), (0, stat.S_IFREG, stat.S_IFLNK))


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
            # No path is longer on Linux; what claims to be is not read into memory.
            if member.size > 4096:
                raise refuse_member(source.label, name, "it is a link with a target of more than 4,096 bytes")
            target = read_member(source, member).decode("utf-8", "surrogateescape")
            links[name] = resolve_link(source.label, name, target)
    regular = {name: number for name, number in files.items() if name not in links}
    found = {name: regular[target] for name, target in resolve_links(links, regular).items()}
    return regular | found, sorted(links.keys() - found.keys())
