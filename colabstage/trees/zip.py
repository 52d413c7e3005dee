"""A zip as a tree: members are read by offset, each in one positioned read, from any number of threads.

Written here rather than left to `zipfile`, which needs a seekable file and one lock for all readers, takes the tail of
a truncated archive that contains another zip for a whole one, and builds a large object for every member. Layout:
PKWARE's APPNOTE 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import stat
import struct
import zlib
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from colabstage.io.files import block_ranges
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_count
from colabstage.trees.bytes import (
    HEAD_BYTES,
    ByteSource,
    LocalBytes,
    base_name,
    describe_contents,
    owners_bytes,
    truncated,
)
from colabstage.trees.listing import FileEntries, FileEntry, Tree
from colabstage.trees.names import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    are_plain_names,
    check_folders,
    check_limits,
    clean_member_name,
    is_junk,
    notes_on_members,
    refuse_member,
    resolve_link,
    resolve_links,
    without_files,
)
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
    from collections.abc import Iterator

    from numpy.typing import NDArray

_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 20: "Zstandard", 97: "WavPack", 98: "PPMd", 99: "AES"}
_END = struct.Struct("<4s4H2LH")
_END_MARK = b"PK\5\6"
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
# The last record, its comment of at most 64 KiB, and the two zip64 records before it.
_TAIL_BYTES = 65_535 + _END.size + _END64_LOCATOR.size + _END64.size
_MEMBER_MARK = b"PK\1\2"
_MEMBER_BYTES = 46
_MARK_AND_LENGTHS = struct.Struct("<4s24x3H")
_RECORD_FIELDS = {
    "system": ("u1", 5),
    "flags": ("<u2", 8),
    "method": ("<u2", 10),
    "stamp": ("<u4", 12),
    "crc": ("<u4", 16),
    "packed_size": ("<u4", 20),
    "size": ("<u4", 24),
    "name_length": ("<u2", 28),
    "extra_length": ("<u2", 30),
    "attributes": ("<u4", 38),
    "offset": ("<u4", 42),
}
_RECORD = np.dtype(
    {
        "names": list(_RECORD_FIELDS),
        "formats": [kind for kind, _ in _RECORD_FIELDS.values()],
        "offsets": [offset for _, offset in _RECORD_FIELDS.values()],
        "itemsize": _MEMBER_BYTES,
    }
)
# Systems in "version made by" whose archivers write the mode of a file into its attributes.
_UNIX_SYSTEMS = (3, 19)
# Where a field of 32 bits says that a zip64 field has the number; in the order in which that has them.
_NARROW_FULL = 0xFFFFFFFF
_WIDE_FIELDS = ("size", "packed_size", "offset")
_EXTRA_ZIP64, _EXTRA_UNICODE_PATH = 0x0001, 0x7075
# A local header, the marker that some multi-volume tools leave before it, or the end record of an empty archive.
_FIRST_MARKS = (b"PK\3\4", b"PK\7\x08", b"PK00", _END_MARK)
# Of ten million members; a directory that claims to be longer is not read only to be compared.
_MAX_DIRECTORY_BYTES = 1 << 30
# No file is as long; what claims to be more is refused for this just as well, and sums of two fit 64 bits.
_BEYOND = 1 << 61
# So many names are looked at together.
_PAGE_NAMES = 512
# Of a directory that is far away, what is read at once, and how many of these are in flight.
_READ_BYTES, _READERS = 4 << 20, 4


class _End(NamedTuple):
    """Where the directory lies, by the archive's last record."""

    position: int
    """Where the directory ends, since this record, or zip64's, follows it."""
    members: int
    """How many it holds, modulo 65,536 without zip64."""
    size: int
    """Its length in bytes."""
    offset: int
    """Where the record says that it begins; bytes put before the archive move it."""
    has_64: bool
    """Whether the numbers are those of a zip64 record."""


@dataclass(slots=True)
class _Directory:
    """Every member of a zip in the directory's order, N of them."""

    data: bytes
    """The directory as it is stored."""
    starts: NDArray[np.int64]
    """Where the record of each begins in it, `(N,)`."""
    names: list[str]
    """As text, "" for those that are not ASCII."""
    foreign: list[int]
    """The numbers of these."""
    extended: list[int]
    """The numbers of those that have extra fields."""
    facts: dict[str, NDArray[Any]]
    """By name, each `(N,)`: offset, end, packed_size, size, crc, method, flags, mode, mtime_ns."""

    def stored_name(self, number: int) -> bytes:
        begin = self.starts.item(number) + _MEMBER_BYTES
        return self.data[begin : begin + int.from_bytes(self.data[begin - 18 : begin - 16], "little")]

    def extra(self, number: int) -> bytes:
        at = self.starts.item(number)
        name_length, extra_length = struct.unpack_from("<2H", self.data, at + 28)
        begin = at + _MEMBER_BYTES + name_length
        return self.data[begin : begin + extra_length]


def _read_directory(source: ByteSource) -> _Directory:
    """Return every member of a zip; reads the end of the file only."""
    tail_at = max(0, source.size - _TAIL_BYTES)
    tail = source.pread(_TAIL_BYTES, tail_at)
    end = _find_end(source, tail, tail_at)
    # Bytes that were put before the archive, as a self-extracting one has, move every offset alike.
    start = end.position - end.size
    shift = start - end.offset
    if start < 0 or shift < 0:
        raise truncated(source, "its directory should be beyond the file's end")
    if shift % (1 << 32):
        raise truncated(source, "its last bytes are the end of another archive")
    if start >= tail_at:
        data = tail[start - tail_at : end.position - tail_at]
    else:
        # A disk has no round trips to share.
        readers = 1 if isinstance(owners_bytes(source), LocalBytes) else _READERS
        with DaemonPool(readers, "colabstage-directory") as pool:
            blocks = list(block_ranges(end.size, _READ_BYTES))
            data = b"".join(pool.run(lambda block: source.pread(block[1], start + block[0]), blocks))
    if len(data) < end.size:
        raise truncated(source, "its directory is cut")
    found = _parse(source, data)
    offsets = found.facts["offset"]
    if shift > 0:
        # Offsets are modulo 4 GiB, as macOS writes them into large archives.
        offsets += np.cumsum(offsets < np.concatenate([[0], offsets[:-1]])) << 32
    # A directory of the wrong length may still end where a record does; then only the counts tell.
    count = len(found.names)
    if count % 65_536 != end.members % 65_536 or (end.has_64 and count != end.members):
        reason = f"its last record counts {end.members:,} members, its directory holds {count:,}"
        raise _damaged_directory(source, reason)
    _set_ends(source, found, start)
    return found


def refuse_volume(source: ByteSource) -> None:
    """Refuse the end of a zip in several parts, which does not begin as a zip."""
    tail_at = max(0, source.size - _TAIL_BYTES)
    with contextlib.suppress(CorruptArchiveError):
        _find_end(source, source.pread(_TAIL_BYTES, tail_at), tail_at)


def directory_bytes(source: ByteSource) -> bytes | None:
    """Return the directory of a zip as it is stored, with the checksum of every member; `None` where there is none
    whole. Reads no member, and judges nothing."""
    tail_at = max(0, source.size - _TAIL_BYTES)
    tail = source.pread(_TAIL_BYTES, tail_at)
    if _END_MARK not in tail:
        return None
    try:
        end = _find_end(source, tail, tail_at)
    except ArchiveError:
        return None
    start = end.position - end.size
    if start < 0 or not 0 < end.size <= _MAX_DIRECTORY_BYTES:
        return None
    found = tail[start - tail_at : end.position - tail_at] if start >= tail_at else source.pread(end.size, start)
    return found if found.startswith(_MEMBER_MARK) else None


def _find_end(source: ByteSource, tail: bytes, tail_at: int) -> _End:
    """Return the record that a zip ends with, with its zip64 extension where there is one."""
    at = tail.rfind(_END_MARK)
    while at >= 0:
        # The record ends the file; bytes that something appended are fine as long as a directory is before it.
        if at + _END.size <= len(tail) and (end := _end_at(source, tail, tail_at, at)) is not None:
            return end
        at = tail.rfind(_END_MARK, 0, at + 3)
    head = source.pread(HEAD_BYTES, 0)
    if not head.startswith(_FIRST_MARKS):
        msg = f"'{source.label}' is not a zip but {describe_contents(head)}. Fetch or copy the archive again."
        raise CorruptArchiveError(msg)
    if tail and not tail[-1024:].strip(b"\0"):
        raise truncated(source, "it ends in zeros, as a copy or an upload does that was cut")
    raise truncated(source, "its directory, which a zip has at its end, is missing")


def _end_at(source: ByteSource, tail: bytes, tail_at: int, at: int) -> _End | None:
    _, disk, first_disk, _, count, size, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment > len(tail):
        return None
    found = _end64_before(tail, tail_at, at)
    end = _End(tail_at + at, count, size, offset, has_64=False) if found is None else found
    whole = at + _END.size + comment == len(tail)
    is_volume = found is None and (disk not in (0, 0xFFFF) or first_disk not in (0, 0xFFFF))
    if not whole and end.position - end.size != end.offset and not is_volume:
        return None
    if _END_MARK in tail[at + _END.size :]:
        # Other programs take the last mark for the end, and read another archive than this one, or none.
        msg = f"'{source.label}' is refused: its comment contains the mark of a zip's end. Make it without a comment."
        raise UnsafeArchiveError(msg)
    if is_volume:
        # Offsets count in each part, so gluing these does not make one archive: zip itself has to join them.
        msg = (
            f"'{source.label}' is the end of a zip in several parts (.z01, .z02, … .zip), or these glued together. "
            f'Join them beside each other, and stage whole.zip: zip -s 0 "{base_name(source.label)}" --out whole.zip'
        )
        raise ArchiveError(msg)
    return end


def _end64_before(tail: bytes, tail_at: int, at: int) -> _End | None:
    at -= _END64_LOCATOR.size
    if at < 0 or tail[at : at + 4] != b"PK\6\7":
        return None
    _, _, position, _ = _END64_LOCATOR.unpack_from(tail, at)
    record_at = position - tail_at
    if not 0 <= record_at <= at - _END64.size or tail[record_at : record_at + 4] != b"PK\6\6":
        return None
    count, size, offset = _END64.unpack_from(tail, record_at)[7:10]
    return _End(tail_at + record_at, count, size, offset, has_64=True)


def _damaged_directory(source: ByteSource, reason: str) -> CorruptArchiveError:
    return CorruptArchiveError(f"'{source.label}' is damaged: {reason}. Copy or upload the archive again.")


def _parse(source: ByteSource, data: bytes) -> _Directory:
    names: list[str] = []
    foreign: list[int] = []
    starts = array("q")
    at, length = 0, len(data)
    read, add_name, add_start = _MARK_AND_LENGTHS.unpack_from, names.append, starts.append
    # Each says where the next begins: one step for each of what may be millions of members.
    while at + _MEMBER_BYTES <= length:
        mark, name_length, extra_length, comment_length = read(data, at)
        if mark != _MEMBER_MARK:
            break
        add_start(at)
        begin = at + _MEMBER_BYTES
        at = begin + name_length + extra_length + comment_length
        raw = data[begin : begin + name_length]
        if raw.isascii():
            add_name(raw.decode())
        else:
            foreign.append(len(names))
            add_name("")
    if at > length:
        raise _damaged_directory(source, "the last entry of its directory is cut")
    if at < length:
        raise _damaged_directory(source, f"its directory is not readable at byte {at:,}")
    # Records of one length that may begin at any byte: those at the members' places are taken, field by field.
    anywhere, places = (
        np.ndarray((max(0, length - _MEMBER_BYTES + 1),), _RECORD, data, strides=(1,)),
        np.frombuffer(starts, np.int64),
    )
    wide = {name: anywhere[name][places].astype(np.int64) for name in _WIDE_FIELDS}
    # Files are written in the same seconds, so there are far fewer times than members.
    stamps, of_stamp = np.unique(anywhere["stamp"][places], return_inverse=True)
    times = np.array([_unix_time_ns(stamp >> 16, stamp & 0xFFFF) for stamp in stamps.tolist()], np.int64)
    mode = np.where(np.isin(anywhere["system"][places], _UNIX_SYSTEMS), anywhere["attributes"][places] >> 16, 0)
    facts: dict[str, NDArray[Any]] = {
        **wide,
        **{name: anywhere[name][places] for name in ("crc", "method", "flags", "name_length")},
        "mode": mode.astype(np.uint16),
        "mtime_ns": times[of_stamp.reshape(-1)],
    }
    extended = np.flatnonzero(anywhere["extra_length"][places]).tolist()
    found = _Directory(data, places, names, foreign, extended, facts)
    for number in np.flatnonzero(np.any([column == _NARROW_FULL for column in wide.values()], axis=0)).tolist():
        values = _wide_fields(source, found.extra(number), [column.item(number) for column in wide.values()])
        for column, value in zip(wide.values(), values, strict=True):
            column[number] = min(value, _BEYOND)
    return found


def _set_ends(source: ByteSource, found: _Directory, directory_at: int) -> None:
    """Give every member the place where its bytes must end, and refuse those that overlap."""
    facts = found.facts
    offsets = facts["offset"]
    order = np.argsort(offsets, kind="stable")
    ends = facts["end"] = np.empty_like(offsets)
    ends[order] = np.append(offsets[order][1:], directory_at)[: len(order)]
    # Members that share bytes are how a small archive unpacks to petabytes.
    lengths = LOCAL.size + facts.pop("name_length").astype(np.int64)
    over = np.flatnonzero(facts["packed_size"] > ends - offsets - lengths)
    if len(over):
        name = found.stored_name(int(over[np.argmax(offsets[over])])).decode("utf-8", "replace")
        raise refuse_member(source.label, name, "its bytes overlap those of what follows it")


def _extra_field(extra: bytes, wanted: int) -> bytes | None:
    at = 0
    # A field whose length is wrong ends the search: archivers pad with a few stray bytes.
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return None


def _wide_fields(source: ByteSource, extra: bytes, narrow: list[int]) -> list[int]:
    """Return the 64-bit values of those fields that do not fit 32 bits; they stand in the zip64 field in this order."""
    field = _extra_field(extra, _EXTRA_ZIP64)
    if field is None:
        return narrow
    wide = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
    try:
        return [next(wide) if value == _NARROW_FULL else value for value in narrow]
    except StopIteration:
        raise _damaged_directory(source, "a zip64 field of its directory is cut") from None


@functools.lru_cache(maxsize=4096)
def _unix_time_ns(date: int, time: int) -> int:
    """Return a DOS date and time as nanoseconds since 1970. It has no zone and is taken as UTC; 0 for none."""
    if date == 0:
        return 0
    year, month, day = 1980 + (date >> 9), max(1, min(12, date >> 5 & 15)), max(1, date & 31)
    hour, minute, second = time >> 11, time >> 5 & 63, 2 * (time & 31)
    return calendar.timegm((year, month, day, hour, minute, second)) * 1_000_000_000


def _decode_names(archive: str, directory: _Directory, encoding: str | None) -> tuple[dict[int, bytes], set[int]]:
    """Make text of the names that are not plain ASCII; return these names as they are stored, by number, and the
    numbers of those whose encoding the archive leaves open.
    """
    names, flags = directory.names, directory.facts["flags"]
    undeclared: set[int] = set()
    fields: dict[int, bytes] = {}
    if struct.pack("<H", _EXTRA_UNICODE_PATH) in directory.data:
        found = ((number, _extra_field(directory.extra(number), _EXTRA_UNICODE_PATH)) for number in directory.extended)
        fields = {number: field for number, field in found if field is not None}
    changed = {number: directory.stored_name(number) for number in sorted({*directory.foreign, *fields})}
    for number, raw in changed.items():
        field = fields.get(number, b"")
        # The field is of this name only if it has its checksum: other tools rename members and leave the field.
        is_its_own = field[:1] == b"\1" and int.from_bytes(field[1:5], "little") == zlib.crc32(raw)
        try:
            names[number] = (field[5:] if is_its_own else raw).decode("utf-8")
            is_declared = raw.isascii() or is_its_own or bool(flags[number] & FLAG_UTF8)
        except UnicodeDecodeError:
            names[number], is_declared = "", False
        if not is_declared:
            undeclared.add(number)
    # One name in UTF-8 may be chance, as of two Chinese characters in GBK: either all are, or none is taken for it.
    if encoding is None and all(names[number] or not changed[number] for number in undeclared):
        return changed, set()
    for number in undeclared:
        try:
            names[number] = changed[number].decode(encoding or "cp437")
        except UnicodeDecodeError as error:
            msg = (
                f"zip_encoding={encoding!r} does not fit '{archive}': {changed[number]!r}, the name of a file in it, "
                "is none in that encoding. Name the one of the machine that made the zip (gbk, cp932, cp949, cp866)."
            )
            raise ArchiveError(msg) from error
    return changed, undeclared


class ZipTree(Tree):
    """The files in a zip. Opening reads the directory at the end of the file; `read` touches the member's own bytes.

    Args:
        source: the archive's bytes; closed with the tree.
        limits: what the headers may promise.
        encoding: of names whose encoding the archive does not declare; by default UTF-8 where all of them are in it,
            and cp437, the format's own, where not.
    """

    kind = "zip"
    source: ByteSource

    def __init__(
        self, source: ByteSource, *, limits: ArchiveLimits = DEFAULT_LIMITS, encoding: str | None = None
    ) -> None:
        self.source, self.label = source, source.label
        directory = _read_directory(source)
        facts, names = directory.facts, directory.names
        # Each size may be near 2 ** 61, so the sum is one of floats.
        total = int(facts["size"].sum(dtype=np.float64))
        check_limits(self.label, len(names), total, source.size, limits)
        changed, undeclared = _decode_names(self.label, directory, encoding)
        numbers, folders = self._choose(directory, undeclared, changed)
        linked = np.flatnonzero(stat_kinds(facts["mode"]) == stat.S_IFLNK).tolist()
        if not linked:
            # What is not needed any more goes before the next copy: there may be millions of members.
            directory.data = b""
        numbers, repeated = self._without_repeated(numbers, directory)
        files = [names[number] for number in numbers]
        check_folders(self.label, files, folders)
        self.empty_folders = without_files(folders, files) if folders else ()
        self._check_readable(facts, files, np.array(numbers, np.int64))
        numbers, skipped = self._resolve_links(directory, numbers, linked, changed) if linked else (numbers, [])
        self.notes = notes_on_members(skipped, repeated)
        if encoding is None and (unclear := sorted(undeclared.intersection(numbers))):
            note = (
                f"The zip does not say how {format_count(len(unclear), 'names')} in it are encoded, and not all are in "
                f"UTF-8; read as cp437, the format's default, the first is '{names[unclear[0]]}'. If that is wrong, "
                'add the encoding of the machine that made it: zip_encoding="gbk".'
            )
            self.notes += (note,)
        kept = [names[number] for number in numbers]
        del directory, files, names
        rows = np.array(numbers, np.int64)
        del numbers
        columns = {name: facts.pop(name)[rows] for name in list(facts)}
        executable = (columns["mode"] & stat.S_IXUSR) != 0
        self.entries = FileEntries(kept, columns["size"], columns["mtime_ns"], columns["offset"], executable)
        self.crcs = columns["crc"]
        self._packing = [columns[name] for name in ("end", "packed_size", "crc", "method", "flags")]
        # The names as bytes, of those whose local headers have others.
        self._stored_names = (
            {place: changed[row] for place, row in enumerate(rows.tolist()) if row in changed} if changed else {}
        )

    def _choose(
        self, directory: _Directory, undeclared: set[int], changed: dict[int, bytes]
    ) -> tuple[list[int], list[str]]:
        """Clean the names; return the number of each member that is a file or a link, junk left out, and the names of
        those that are folders. `changed` gets the stored names of those that are cleaned.
        """
        numbers: list[int] = []
        folders: list[str] = []
        names, modes = directory.names, directory.facts["mode"]
        plain = np.isin(stat_kinds(modes), (0, stat.S_IFREG, stat.S_IFLNK))
        for first in range(0, len(names), _PAGE_NAMES):
            page = range(first, min(first + _PAGE_NAMES, len(names)))
            # Together, since nearly all are plain.
            if plain[page.start : page.stop].all() and are_plain_names(names[page.start : page.stop]):
                numbers += page
                continue
            for number in page:
                # Windows' own separator; in a name whose encoding is unknown it may be half a character.
                raw = names[number] if number in undeclared else names[number].replace("\\", "/")
                is_folder, size = stat.S_ISDIR(int(modes[number])), int(directory.facts["size"][number])
                if raw.endswith("/") or (is_folder and not size):
                    folders.append(clean_member_name(self.label, raw, folder=True))
                    if size:
                        raise refuse_member(self.label, names[number], "it is named like a folder but has content")
                    continue
                name = clean_member_name(self.label, raw)
                if not plain[number]:
                    raise refuse_member(self.label, names[number], "it is a device, a pipe or a folder with content")
                if is_junk(name):
                    continue
                numbers.append(number)
                if name != names[number]:
                    changed.setdefault(number, directory.stored_name(number))
                    names[number] = name
        return numbers, folders

    def _without_repeated(self, numbers: list[int], directory: _Directory) -> tuple[list[int], list[str]]:
        """Return the members by name, the first of those that are the same; and the names of the others."""
        names, facts = directory.names, directory.facts
        numbers.sort(key=names.__getitem__)
        repeats = [second for first, second in pairwise(numbers) if names[first] == names[second]]
        if not repeats:
            return numbers, []
        firsts: dict[str, int] = {}
        for number in numbers:
            first = firsts.setdefault(names[number], number)
            if any(facts[fact][first] != facts[fact][number] for fact in ("size", "crc")):
                reason = "it is there twice, with two contents, so which of the two is meant is unclear"
                raise refuse_member(self.label, names[number], reason)
        return list(firsts.values()), [names[number] for number in sorted(repeats)]

    def _check_readable(self, facts: dict[str, NDArray[Any]], names: list[str], numbers: NDArray[np.int64]) -> None:
        """Refuse what no member can be read of, by the directory alone: nothing is staged for an hour before the first
        locked member.
        """
        locked = np.flatnonzero(facts["flags"][numbers] & FLAG_ENCRYPTED)
        if len(locked):
            msg = (
                f"'{self.label}' is password-protected ({len(locked):,} of {len(names):,} files, first "
                f"{names[int(locked[0])]!r}). Unpack it with its password, and stage the folder or a zip without one."
            )
            raise ArchiveError(msg)
        methods = facts["method"][numbers]
        unreadable = np.flatnonzero(~np.isin(methods, READABLE))
        if len(unreadable):
            first = int(unreadable[0])
            method = _METHODS.get(int(methods[first]), f"method {methods[first]}")
            msg = (
                f"'{self.label}' packs {names[first]!r} with {method}, which is not read here. Unpack it and make the "
                "zip again with Deflate or without compression."
            )
            raise ArchiveError(msg)

    def _resolve_links(
        self, directory: _Directory, numbers: list[int], linked: list[int], changed: dict[int, bytes]
    ) -> tuple[list[int], list[str]]:
        """Give links the facts of the files that they lead to; return the members without the links that lead to none,
        and the names of these. A zip keeps a link's target as its content, so those few are read."""
        facts, names = directory.facts, directory.names
        rows = {names[number]: number for number in numbers}
        links = {
            names[number]: resolve_link(self.label, names[number], self._target_of(directory, number))
            for number in linked
            if rows.get(names[number]) == number
        }
        found = resolve_links(links, rows.keys() - links.keys())
        for name, target in found.items():
            link, file = rows[name], rows[target]
            changed[link] = changed.get(file) or directory.stored_name(file)
            for column in facts.values():
                column[link] = column[file]
        skipped = links.keys() - found.keys()
        return [number for number in numbers if names[number] not in skipped], sorted(skipped)

    def _target_of(self, directory: _Directory, number: int) -> str:
        columns = ("offset", "end", "packed_size", "size", "crc", "method", "flags", "mtime_ns")
        facts = [int(directory.facts[column][number]) for column in columns]
        member = ZipMember(directory.names[number], directory.stored_name(number), *facts)
        # No path is longer on Linux; what claims to be is not read into memory.
        if member.size > 4096:
            raise refuse_member(self.label, member.name, "it is a link with a target of more than 4,096 bytes")
        return read_member(self.source, member).decode("utf-8", "surrogateescape")

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one member, its CRC-32 verified."""
        return read_member(self.source, self.packing(entry))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content of one member in pieces; its CRC-32 is verified after the last."""
        return member_chunks(self.source, self.packing(entry))

    def packing(self, entry: FileEntry) -> ZipMember:
        """Return what the directory says of a file."""
        place = self._own(entry)
        # An entry that a caller has created may carry other facts than the directory has.
        own = entry if entry.place == place else self.entries[place]
        end, packed_size, crc, method, flags = [column.item(place) for column in self._packing]
        stored = self._stored_names.get(place) or own.name.encode("utf-8", "surrogatepass")
        return ZipMember(own.name, stored, own.position, end, packed_size, own.size, crc, method, flags, own.mtime_ns)


def stat_kinds(modes: NDArray[Any]) -> NDArray[Any]:
    """Return what of some Unix modes says whether each is a file, a folder, a link or else."""
    return modes & np.uint16(0o170000)
