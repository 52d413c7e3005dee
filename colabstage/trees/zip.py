"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads.

Not left to `zipfile`, which needs one lock for all readers, takes the tail of a truncated archive that contains another
zip for a complete one, and builds a large object for every member. Layout: PKWARE's APPNOTE 6.3.10, 4.3 to 4.5.
"""

from __future__ import annotations

import calendar
import contextlib
import stat
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError
from colabstage.io.files import block_ranges
from colabstage.io.units import format_count
from colabstage.trees.bytes import ByteSource, base_name, damaged, truncated
from colabstage.trees.listing import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    FileEntries,
    FileEntry,
    MemberKind,
    Members,
    Tree,
    check_limits,
)
from colabstage.trees.names import refuse_member
from colabstage.trees.zip_member import (
    FLAG_ENCRYPTED,
    FLAG_UTF8,
    LOCAL,
    READABLE,
    ZipMember,
    member_chunks,
    read_member,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_END = struct.Struct("<4s4H2LH")
_END_MARK = b"PK\5\6"
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
# The last record, its comment of at most 64 KiB, and the two zip64 records before it.
_TAIL_BYTES = 65_535 + _END.size + _END64_LOCATOR.size + _END64.size
_MEMBER_MARK = b"PK\1\2"
# APPNOTE 4.3.12: the fields before a member's name, extra fields and comment.
_RECORD = np.dtype(
    [
        *(("mark", "S4"), ("version", "u1"), ("system", "u1"), ("needed", "<u2"), ("flags", "<u2"), ("method", "<u2")),
        *(("stamp", "<u4"), ("crc", "<u4"), ("packed_size", "<u4"), ("size", "<u4"), ("name_length", "<u2")),
        *(("extra_length", "<u2"), ("comment_length", "<u2"), ("disk", "<u2"), ("internal", "<u2")),
        *(("attributes", "<u4"), ("offset", "<u4")),
    ]
)
_MEMBER_BYTES = _RECORD.itemsize
# Mark, packed size, size, the lengths of name, extra fields and comment, offset.
_MEMBER = struct.Struct("<4s16xLL3H8xL")
_COLUMNS = {
    **dict.fromkeys(("offset", "packed_size", "size"), np.int64),
    **dict.fromkeys(("crc", "stamp"), np.uint32),
    **dict.fromkeys(("method", "flags", "name_length"), np.uint16),
}
# The systems in "version made by" whose archivers write a file's mode into its attributes.
_UNIX_SYSTEMS, _DOS_FOLDER = (3, 19), 0x10
_KINDS: dict[int, MemberKind] = {0: "file", stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "folder"}
_MEMBER_FACTS = ("offset", "end", "packed_size", "size", "crc", "method", "flags", "mtime_ns")
# A 32-bit field with this value means that a zip64 field has the number.
_NARROW_FULL = 0xFFFFFFFF
_ZIP64 = b"\1\0"
# Ten million members; a directory that claims to be longer is not read just for comparison.
_MAX_DIRECTORY_BYTES = 1 << 30
# No file is this long; larger claims are refused just as well with this value, and sums of two fit 64 bits.
_BEYOND = 1 << 61
# A directory is read in blocks of this size, each a round trip if it is remote, and is never all in memory.
_READ_BYTES = 16 << 20


class _End(NamedTuple):
    """Where the directory is, according to the archive's last record."""

    start: int
    """Where the directory must begin, because this record, or zip64's, follows it."""
    size: int
    offset: int
    """Where the record says that it begins; bytes before the archive shift it."""
    members: int
    """How many it holds, modulo 65,536 without zip64."""
    has_64: bool
    directory: bytes | None
    """The directory, if it was read with the record."""


def _find_end(source: ByteSource) -> _End:
    """Return the record at the end of a zip, with its zip64 extension if there is one."""
    tail_at = max(0, source.size - _TAIL_BYTES)
    tail = source.pread(_TAIL_BYTES, tail_at)
    at = tail.rfind(_END_MARK)
    while at >= 0:
        # The record ends the file; appended bytes are fine if a directory precedes the record.
        if at + _END.size <= len(tail) and (end := _end_at(source, tail, tail_at, at)) is not None:
            return end
        at = tail.rfind(_END_MARK, 0, at + 3)
    raise truncated(source, "its directory, which a zip has at its end, is missing")


def _end_at(source: ByteSource, tail: bytes, tail_at: int, at: int) -> _End | None:
    _, disk, first_disk, _, count, size, offset, comment = _END.unpack_from(tail, at)
    after, follows, has_64 = at + _END.size + comment, at, False
    locator_at = at - _END64_LOCATOR.size
    if locator_at >= 0 and tail.startswith(b"PK\6\7", locator_at):
        wide_at = _END64_LOCATOR.unpack_from(tail, locator_at)[2] - tail_at
        if 0 <= wide_at <= locator_at - _END64.size and tail.startswith(b"PK\6\6", wide_at):
            count, size, offset = _END64.unpack_from(tail, wide_at)[7:10]
            follows, has_64 = wide_at, True
    start = tail_at + follows - size
    is_volume = not has_64 and not {disk, first_disk} <= {0, 0xFFFF}
    if after > len(tail) or (after < len(tail) and start != offset and not is_volume):
        return None
    if is_volume:
        # Offsets count within each part, so concatenated parts are not one archive: zip itself must join them.
        msg = (
            f"'{source.label}' is the end of a zip in several parts (.z01, .z02, … .zip), or these glued together. "
            f'Join them beside each other, and stage whole.zip: zip -s 0 "{base_name(source.label)}" --out whole.zip'
        )
        raise ArchiveError(msg)
    return _End(start, size, offset, count, has_64, tail[start - tail_at : follows] if start >= tail_at else None)


def refuse_volume(source: ByteSource) -> None:
    """Refuse the end of a zip in several parts, which does not begin like a zip."""
    with contextlib.suppress(CorruptArchiveError):
        _find_end(source)


def directory_bytes(source: ByteSource) -> bytes | None:
    """Return the directory of a zip as stored, with the checksum of every member; `None` if there is no complete one.
    Reads no member, and judges nothing."""
    try:
        end = _find_end(source)
    except ArchiveError:
        return None
    if end.start < 0 or not 0 < end.size <= _MAX_DIRECTORY_BYTES:
        return None
    found = source.pread(end.size, end.start) if end.directory is None else end.directory
    return found if found.startswith(_MEMBER_MARK) else None


def _read_directory(source: ByteSource) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Read every member's record, N of them, from the end of the file only.

    Returns:
        Their names as stored, each byte a character; columns, each `(N,)`: offset, end, packed_size, size, crc, method,
        flags, mode, mtime_ns.
    """
    end = _find_end(source)
    # Bytes before the archive, as in a self-extracting one, shift every offset equally.
    shift = end.start - end.offset
    if end.start < 0 or shift < 0:
        raise truncated(source, "its directory should be beyond the file's end")
    if shift % (1 << 32):
        raise truncated(source, "its last bytes are the end of another archive")
    blocks: Iterable[bytes] = [end.directory or b""]
    if end.directory is None:
        blocks = (source.pread(length, end.start + at) for at, length in block_ranges(end.size, _READ_BYTES))
    names, columns = _parse(source, blocks, end.size)
    offsets = columns["offset"]
    if shift > 0:
        # Numbers are modulo 4 GiB, as macOS writes them into large archives: each fall of the offsets means 4 GiB more.
        falls = np.cumsum(np.diff(offsets, prepend=0, append=end.offset) < 0)
        if falls[-1] != shift >> 32:
            msg = (
                f"'{source.label}' has a file of more than 4 GiB, and no zip64 that tells its length, as macOS writes "
                "such a zip. Unpack it where it was made, and give the folder or a tar of it."
            )
            raise ArchiveError(msg)
        offsets += falls[:-1] << 32
    # A directory of the wrong length may still end at the end of a record; then only the counts tell.
    count = len(names)
    if count % 65_536 != end.members % 65_536 or (end.has_64 and count != end.members):
        reason = f"its last record counts {end.members:,} members, its directory holds {count:,}"
        raise damaged(source.label, reason)
    # Every member's bytes must end where the next begin: with shared bytes, a small archive could unpack to petabytes.
    order = np.argsort(offsets, kind="stable")
    ends = columns["end"] = np.empty_like(offsets)
    ends[order] = np.append(offsets[order[1:]], end.start)[: len(order)]
    over = np.flatnonzero(columns["packed_size"] > ends - offsets - columns.pop("name_length") - LOCAL.size)
    if len(over):
        name = names[over[np.argmax(offsets[over])]].encode("latin-1").decode("utf-8", "replace")
        raise refuse_member(source.label, name, "its bytes overlap those of what follows it")
    return names, columns


def _parse(source: ByteSource, blocks: Iterable[bytes], size: int) -> tuple[list[str], dict[str, NDArray[Any]]]:
    names: list[str] = []
    records = bytearray()
    wide_rows, wide_facts = array("q"), array("q")
    read, done, data = _MEMBER.unpack_from, 0, b""
    for block in blocks:
        # A record that a block's end cuts is read with the next block.
        data += block
        # Slicing text is faster than slicing bytes and decoding each slice.
        text, at = data.decode("latin-1"), 0
        while at + _MEMBER_BYTES <= len(data):
            mark, packed_size, length, name_length, extra_length, comment_length, offset = read(data, at)
            if mark != _MEMBER_MARK:
                raise damaged(source.label, f"its directory is not readable at byte {done + at:,}")
            name_at = at + _MEMBER_BYTES
            name_end = name_at + name_length
            end = name_end + extra_length + comment_length
            if end > len(data):
                break
            if extra_length:
                extra = data[name_end : name_end + extra_length]
                if _NARROW_FULL in (length, packed_size, offset):
                    wide_rows.append(len(names))
                    wide_facts.extend(_wide_fields(source, extra, (length, packed_size, offset)))
            records += data[at:name_at]
            names.append(text[name_at:name_end])
            at = end
        done, data = done + at, data[at:]
    if done + len(data) < size:
        raise truncated(source, "its directory is cut")
    if data:
        raise damaged(source.label, f"its directory is not readable at byte {done:,}")
    fields = np.frombuffer(records, _RECORD)
    columns: dict[str, NDArray[Any]] = {name: fields[name].astype(kind) for name, kind in _COLUMNS.items()}
    for name, facts in zip(("size", "packed_size", "offset"), np.reshape(wide_facts, (-1, 3)).T, strict=True):
        columns[name][wide_rows] = facts
    is_unix = np.isin(fields["system"], _UNIX_SYSTEMS)
    # Windows' archivers mark a folder by an attribute, and may leave the slash out of its name.
    of_dos = np.where((fields["attributes"] & _DOS_FOLDER != 0) & (columns["size"] == 0), stat.S_IFDIR, 0)
    columns["mode"] = np.where(is_unix, fields["attributes"] >> 16, of_dos).astype(np.uint16)
    # Many files are written in the same second, so there are far fewer times than members.
    stamps, of_stamp = np.unique(columns.pop("stamp"), return_inverse=True)
    times = np.array([_unix_time_ns(stamp >> 16, stamp & 0xFFFF) for stamp in stamps.tolist()], np.int64)
    columns["mtime_ns"] = times[of_stamp.reshape(-1)]
    return names, columns


def _extra_field(extra: bytes, wanted: bytes) -> bytes | None:
    at = 0
    # A field with a wrong length ends the search: archivers pad with a few stray bytes.
    while at + 4 <= len(extra):
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        if extra.startswith(wanted, at):
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return None


def _wide_fields(source: ByteSource, extra: bytes, narrow: tuple[int, int, int]) -> list[int]:
    """Return size, packed size and offset, with the 64-bit values of those that do not fit 32 bits; the zip64 field has
    them in this order."""
    field = _extra_field(extra, _ZIP64)
    if field is None:
        return list(narrow)
    wide = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
    try:
        return [min(next(wide), _BEYOND) if value == _NARROW_FULL else value for value in narrow]
    except StopIteration:
        raise damaged(source.label, "a zip64 field of its directory is cut") from None


def _unix_time_ns(date: int, time: int) -> int:
    """Return a DOS date and time as nanoseconds since 1970. It has no zone and is taken as UTC; 0 for none."""
    if date == 0:
        return 0
    year, month, day = 1980 + (date >> 9), max(1, min(12, date >> 5 & 15)), max(1, date & 31)
    hour, minute, second = time >> 11, time >> 5 & 63, 2 * (time & 31)
    return calendar.timegm((year, month, day, hour, minute, second)) * 1_000_000_000


def _decode_names(archive: str, names: list[str], flags: NDArray[Any], encoding: str | None) -> set[int]:
    """Decode the names that are not plain ASCII; return the numbers of those whose encoding the archive leaves open."""
    stored = {number: name.encode("latin-1") for number, name in enumerate(names) if not name.isascii()}
    undeclared: set[int] = set()
    is_utf8 = True
    for number, raw in stored.items():
        try:
            names[number] = raw.decode("utf-8")
            is_declared = bool(flags[number] & FLAG_UTF8)
        except UnicodeDecodeError:
            is_utf8 = is_declared = False
        if not is_declared:
            undeclared.add(number)
    # A single name in UTF-8 may be chance, as with two Chinese characters in GBK, so UTF-8 must fit all names or none.
    if encoding is None and is_utf8:
        return set()
    for number in undeclared:
        try:
            names[number] = stored[number].decode(encoding or "cp437")
        except UnicodeDecodeError as error:
            msg = (
                f"zip_encoding={encoding!r} does not fit '{archive}': {stored[number]!r}, the name of a file in it, "
                "is none in that encoding. Name the one of the machine that made the zip (gbk, cp932, cp949, cp866)."
            )
            raise ArchiveError(msg) from error
    return undeclared


class ZipTree(Tree):
    """The files in a zip. Opening reads the directory at the end of the file; `read` touches the member's own bytes.

    `encoding`: of names whose encoding the archive does not declare; by default UTF-8 if it fits them all, otherwise
    cp437, the format's own.
    """

    kind = "zip"
    source: ByteSource

    def __init__(
        self, source: ByteSource, *, limits: ArchiveLimits = DEFAULT_LIMITS, encoding: str | None = None
    ) -> None:
        self.source, self.label = source, source.label
        names, columns = _read_directory(source)
        # Each size may be near 2 ** 61, so they are summed as floats.
        total = int(columns["size"].sum(dtype=np.float64))
        check_limits(self.label, len(names), total, source.size, limits)
        undeclared = _decode_names(self.label, names, columns["flags"], encoding)
        self._check_readable(names, columns)
        members, kinds = Members(self.label), columns["mode"] & np.uint16(0o170000)
        for number, (name, mode, size) in enumerate(zip(names, kinds.tolist(), columns["size"].tolist(), strict=True)):
            # Windows' own separator; in a name of unknown encoding it may be half a character.
            raw = name if number in undeclared else name.replace("\\", "/")
            kind = _KINDS.get(mode, "special")
            if kind == "folder" or raw.endswith("/"):
                kind = "special" if size else "folder"
            members.add(raw, kind, number, self._target(name, columns, number) if kind == "symlink" else "")
        notes = self.notes
        if undeclared and encoding is None:
            note = (
                f"The zip does not say how {format_count(len(undeclared), 'names')} in it are encoded, and not all are "
                "in UTF-8; read as cp437, the format's default, the first is "
                f"'{names[min(undeclared)]}'. If that is wrong, add the encoding of the machine that made it: "
                'zip_encoding="gbk".'
            )
            notes += (note,)
        names, numbers = members.finish(self)
        self.notes += notes
        # There may be millions, so each column replaces the one before.
        for fact in columns:
            columns[fact] = columns[fact][numbers]
        executable = (columns["mode"] & stat.S_IXUSR) != 0
        self.entries = FileEntries(names, columns["size"], columns["mtime_ns"], columns["offset"], executable)
        self.crcs = columns["crc"]
        self._packing = {fact: columns[fact] for fact in ("end", "packed_size", "crc", "method", "flags")}

    def _target(self, name: str, columns: dict[str, NDArray[Any]], number: int) -> str:
        """Return what a link leads to, which a zip stores as its content."""
        member = ZipMember(name, **{fact: columns[fact].item(number) for fact in _MEMBER_FACTS})
        return read_member(self.source, member).decode("utf-8", "surrogateescape")

    def _check_readable(self, names: list[str], columns: dict[str, NDArray[Any]]) -> None:
        """Refuse, by the directory alone, archives with members that cannot be read, so that staging does not run for
        an hour up to the first locked member."""
        locked = np.flatnonzero(columns["flags"] & FLAG_ENCRYPTED)
        if len(locked):
            msg = (
                f"'{self.label}' is password-protected ({len(locked):,} of {len(names):,} files, first "
                f"{names[locked[0]]!r}). Unpack it with its password, and stage the folder or a zip without one."
            )
            raise ArchiveError(msg)
        unreadable = np.flatnonzero(~np.isin(columns["method"], READABLE))
        if len(unreadable):
            number = columns["method"].item(unreadable[0])
            msg = (
                f"'{self.label}' packs {names[unreadable[0]]!r} with method {number}, which is not read here. Unpack "
                f'it, and give that folder: 7z x "{base_name(self.label)}" -oFOLDER'
            )
            raise ArchiveError(msg)

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one member, its CRC-32 verified."""
        return read_member(self.source, self.packing(entry))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content of one member in pieces; its CRC-32 is verified after the last."""
        return member_chunks(self.source, self.packing(entry))

    def packing(self, entry: FileEntry) -> ZipMember:
        place = self._own(entry)
        # An entry that a caller has created may differ from the directory.
        own = self.entries[place]
        facts = {fact: column.item(place) for fact, column in self._packing.items()}
        return ZipMember(own.name, offset=own.position, size=own.size, mtime_ns=own.mtime_ns, **facts)
