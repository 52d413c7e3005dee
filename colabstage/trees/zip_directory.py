"""The central directory of a zip, read from its end: which members there are, where they are, how they are packed.

Written here rather than left to `zipfile`, which needs a seekable file and one lock for all readers, takes the tail
of a truncated archive that contains another zip for a whole one, and builds a large object for every member.
Layout: PKWARE's APPNOTE 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import calendar
import functools
import struct
from array import array
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from colabstage.io.pipeline import DaemonPool
from colabstage.trees.entries import refuse_member
from colabstage.trees.strings import StringArray
from colabstage.trees.tree import HEAD_BYTES, LocalBytes, describe_contents, owners_bytes, truncated
from colabstage.trees.zip_names import FLAG_UTF8, UNIX_SYSTEMS, UnixNames, decode_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from colabstage.trees.tree import ByteSource

_END = struct.Struct("<4s4H2LH")
_END_MARK = b"PK\5\6"
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
# The last record, its comment of at most 64 KiB, and the two zip64 records before it.
_TAIL_BYTES = 65_535 + _END.size + _END64_LOCATOR.size + _END64.size
_MEMBER = struct.Struct("<4s4B4H3L5H2L")
# What of a member's record is read for each; `_MEMBER` in columns.
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
        "itemsize": _MEMBER.size,
    }
)
# What is kept of each of millions of members. Places in an archive of less than 4 GiB take half of what they take in a
# longer one.
_FACTS = {
    place: {
        **dict.fromkeys(("offset", "end", "packed_size"), place),
        "size": "<i8",
        "crc": "<u4",
        **dict.fromkeys(("method", "flags", "mode"), "<u2"),
        "mtime_ns": "<i8",
    }
    for place in ("<u4", "<i8")
}
_MARK_AND_LENGTHS = struct.Struct("<4s24x3H")
_LENGTH_PLACES = (28, 30, 32)
# Where a field of 32 bits says that a zip64 field has the number.
_NARROW_FULL = 0xFFFFFFFF
# In the order in which a zip64 field has them.
_WIDE_FIELDS = ("size", "packed_size", "offset")
_EXTRA_HEAD = struct.Struct("<HH")
LOCAL_HEADER_BYTES = 30
_MEMBER_MARK = b"PK\1\2"
# A local header, the marker that some multi-volume tools leave before it, or the end record of an empty archive.
_FIRST_MARKS = (b"PK\3\4", b"PK\7\x08", b"PK00", _END_MARK)

# Of ten million members; a directory that claims to be longer is not read only to be compared.
_MAX_DIRECTORY_BYTES = 1 << 30
# No file is as long; what claims to be more is refused for this just as well, and sums of two fit 64 bits.
_BEYOND = 1 << 61
# Of a directory, what is read at once, how many of these are under way, and the members that are taken apart together:
# one of 70 MB, of a million members, would otherwise be in memory three times over.
_READ_BYTES = 4 << 20
_PIECES_AHEAD = 4
_PARSED_TOGETHER = 1 << 15

_EXTRA_ZIP64 = 0x0001
_EXTRA_UNICODE_PATH = 0x7075


@dataclass(slots=True)
class ZipMember:
    """One member as the central directory describes it. Not frozen: a frozen one takes three times as long to make."""

    name: str
    """As it is stored, uncleaned."""
    stored_name: bytes
    """Its bytes, which the local header repeats."""
    offset: int
    """Where its local header begins."""
    end: int
    """Where the next header or the directory begins."""
    packed_size: int
    """Bytes before and after unpacking."""
    size: int
    """Bytes before and after unpacking."""
    crc: int
    """CRC-32 of its content."""
    method: int
    """How it is packed, by APPNOTE's numbers."""
    flags: int
    """Its general purpose bits."""
    mode: int
    """Unix file mode, 0 where the archive has none."""
    mtime_ns: int
    """In nanoseconds since 1970, taken as UTC; 0 for none."""


@dataclass(frozen=True, slots=True)
class ZipDirectory:
    """Every member of a zip in the directory's order, N of them, in columns: of each what `ZipMember` says of it."""

    names: StringArray
    """As they stand there, uncleaned."""
    stored_names: dict[int, bytes]
    """The bytes of those, by number, which are not their names in UTF-8."""
    undeclared: list[int]
    """The numbers of those of which the archive does not say how they are encoded, and another encoding would make
    another name."""
    facts: dict[str, NDArray[Any]]
    """By name, each `(N,)`: offset, end, packed_size, size, crc, method, flags, mode, mtime_ns."""

    def __len__(self) -> int:
        return len(self.names)

    def stored_name(self, number: int) -> bytes:
        """Return the bytes of a member's name, which its local header repeats."""
        return self.stored_names.get(number) or self.names[number].encode("utf-8", "surrogatepass")

    def member(self, number: int) -> ZipMember:
        """Return all that is said of one member."""
        facts = [column.item(number) for column in self.facts.values()]
        return ZipMember(self.names[number], self.stored_name(number), *facts)


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


def read_directory(source: ByteSource) -> ZipDirectory:
    """Return every member of a zip, in the directory's order; reads the end of the file only.

    Raises:
        CorruptArchiveError: the file is truncated, damaged or no zip, and the message says which.
        ArchiveError: the archive is one part of several.
    """
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

    def parse(unix: UnixNames) -> ZipDirectory:
        if start >= tail_at:
            return _parse_members(source, iter([tail[start - tail_at : end.position - tail_at]]), end.size, unix)
        # A disk has no round trips to share, and each thread keeps the memory of what it has read.
        readers = 1 if isinstance(owners_bytes(source), LocalBytes) else _PIECES_AHEAD
        with DaemonPool(readers, "colabstage-directory") as pool:
            return _parse_members(source, _pieces_of(source, start, end.position, pool), end.size, unix)

    members = parse(unix := UnixNames())
    if unix.were_taken and not unix.are_utf8:
        # Hardly ever: names are in another encoding, and those before them could all be read as UTF-8. To remember
        # which those are would take memory of every archive.
        del members
        members = parse(UnixNames(are_utf8=False))
    if shift > 0:
        # Offsets are modulo 4 GiB, as macOS writes them into large archives.
        turns = np.cumsum(members.facts["offset"] < np.concatenate([[0], members.facts["offset"][:-1]]))
        members.facts["offset"] += turns << 32
    # A directory of the wrong length may still end where a record does; then only the counts tell.
    if len(members) % 65_536 != end.members % 65_536 or (end.has_64 and len(members) != end.members):
        raise _damaged_directory(
            source, f"its last record counts {end.members:,} members, its directory holds {len(members):,}"
        )
    _set_ends(source, members, start)
    return members


def directory_bytes(source: ByteSource) -> bytes | None:
    """Return the directory of a zip as it is stored, with the checksum of every member; `None` where there is none
    whole.

    Reads no member, and judges nothing.
    """
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
        if at + _END.size <= len(tail):
            end = _end_at(source, tail, tail_at, at)
            if end is not None:
                return end
        at = tail.rfind(_END_MARK, 0, at + 3)
    raise _no_end(source, tail)


def _end_at(source: ByteSource, tail: bytes, tail_at: int, at: int) -> _End | None:
    _, disk, first_disk, _, count, size, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment > len(tail):
        return None
    found = _end64_before(tail, tail_at, at)
    end = _End(tail_at + at, count, size, offset, has_64=False) if found is None else found
    whole = at + _END.size + comment == len(tail)
    if not whole and end.position - end.size != end.offset:
        return None
    if _END_MARK in tail[at + _END.size :]:
        # Other programs take the last mark for the end, and read another archive than this one, or none.
        msg = f"'{source.label}' is refused: its comment contains the mark of a zip's end. Make it without a comment."
        raise UnsafeArchiveError(msg)
    if found is None and (disk not in (0, 0xFFFF) or first_disk not in (0, 0xFFFF)):
        msg = f"'{source.label}' is one part of an archive in several files (.z01, .z02, …). Join them into one first."
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


def _no_end(source: ByteSource, tail: bytes) -> CorruptArchiveError:
    head = source.pread(HEAD_BYTES, 0)
    if not head.startswith(_FIRST_MARKS):
        return CorruptArchiveError(
            f"'{source.label}' is not a zip but {describe_contents(head)}. Fetch or copy the archive again."
        )
    if tail and not tail[-1024:].strip(b"\0"):
        return truncated(source, "it ends in zeros, as a copy or an upload does that was cut")
    return truncated(source, "its directory, which a zip has at its end, is missing")


def _damaged_directory(source: ByteSource, reason: str) -> CorruptArchiveError:
    return CorruptArchiveError(f"'{source.label}' is damaged: {reason}. Copy or upload the archive again.")


def _pieces_of(source: ByteSource, begin: int, end: int, pool: DaemonPool) -> Iterator[bytes]:
    """Yield the bytes of a directory piece by piece. From afar each costs a round trip, so several are under way."""
    places = iter(range(begin, end, _READ_BYTES))
    coming: deque[tuple[int, Future[bytes]]] = deque()

    def ask(count: int) -> None:
        for place in islice(places, count):
            length = min(_READ_BYTES, end - place)
            coming.append((length, pool.submit(partial(source.pread, length, place))))

    ask(_PIECES_AHEAD)
    while coming:
        length, future = coming.popleft()
        (piece,) = DaemonPool.results([future])
        if len(piece) < length:
            raise truncated(source, "its directory is cut")
        ask(1)
        yield piece


def _parse_members(source: ByteSource, pieces: Iterator[bytes], length: int, unix: UnixNames) -> ZipDirectory:
    """Return what a directory of `length` bytes says, of which `pieces` follow each other."""
    names: list[StringArray] = []
    stored_names: dict[int, bytes] = {}
    undeclared: list[int] = []
    facts = {name: np.empty(0, dtype) for name, dtype in _FACTS[_place_type(source)].items()}
    done = room = 0

    def take_some(at: int, piece: bytes) -> bytes:
        """Take the records of a piece that is at a place in the directory; return the beginning of one that is cut."""
        nonlocal done, room
        places, end = _record_starts(source, piece, at, is_last=at + len(piece) == length)
        wanted = done + len(places)
        if wanted > room:
            # As many as there will be if the others are as long as these, since a column that grows is there twice.
            room = wanted + 17 * wanted * (length - at - end) // (16 * max(1, at + end))
            for name, column in facts.items():
                facts[name] = np.empty(room, column.dtype)
                facts[name][:done] = column[:done]
        for first in range(0, len(places), _PARSED_TOGETHER):
            starts = np.array(places[first : first + _PARSED_TOGETHER], np.int64)
            records = _Records(source, piece, starts)
            names.append(records.names(done, stored_names, undeclared, unix))
            for name, values in records.facts().items():
                facts[name][done : done + len(starts)] = values
            done += len(starts)
        return piece[end:]

    at, rest = 0, b""
    for piece in pieces:
        at += len(piece)
        # In a function, so that what it holds of one piece is gone before the next.
        rest = take_some(at - len(rest) - len(piece), rest + piece)
    return ZipDirectory(
        StringArray.joined(names), stored_names, undeclared, {name: column[:done] for name, column in facts.items()}
    )


def _place_type(source: ByteSource) -> Literal["<u4", "<i8"]:
    return "<u4" if source.size < _NARROW_FULL else "<i8"


class _Records:
    """Some records of a directory."""

    def __init__(self, source: ByteSource, directory: bytes, starts: NDArray[np.int64]) -> None:
        """Take the bytes that the records are in, and int64 `(N,)`, where each begins."""
        self._source = source
        self._directory = directory
        self._starts = starts
        # Records of one length that may begin at any byte: those at the members' places are taken.
        anywhere = np.ndarray((max(0, len(directory) - _MEMBER.size + 1),), _RECORD, directory, strides=(1,))
        self._records = anywhere[starts]
        self._lengths, self._extra_lengths = (
            self._records[name].astype(np.int64) for name in ("name_length", "extra_length")
        )

    def names(self, before: int, stored_names: dict[int, bytes], undeclared: list[int], unix: UnixNames) -> StringArray:
        """Return the names; of what is stored otherwise, put the bytes into `stored_names`, by number from `before`
        on, and the numbers of what may be in another encoding into `undeclared`. `unix`: what is known of names that
        say nothing, which takes these into account."""
        records, directory = self._records, self._directory
        begins = self._starts + _MEMBER.size
        plain = StringArray.cut_from(directory, begins, self._lengths)
        flagged = (records["flags"] & FLAG_UTF8) != 0
        silent = np.isin(records["system"], list(UNIX_SYSTEMS)) & ~flagged
        may_be_utf8 = bool((flagged | silent).all()) and (unix.are_utf8 or not silent.any())
        extras = StringArray.cut_from(directory, begins + self._lengths, self._extra_lengths)
        # A field's other bytes may be the same two.
        marked = np.flatnonzero(extras.containing(struct.pack("<H", _EXTRA_UNICODE_PATH))).tolist()
        says_otherwise = any(_extra_field(self._extra(number), _EXTRA_UNICODE_PATH) is not None for number in marked)
        if not says_otherwise and plain.is_utf8(only_ascii=not may_be_utf8):
            # Of some that say nothing, and others of another alphabet that say it, it is taken for granted.
            unix.were_taken |= bool(silent.any()) and not plain.is_utf8(only_ascii=True)
            return plain
        says: list[bool | None] = [
            None if nothing else flag for nothing, flag in zip(silent.tolist(), flagged.tolist(), strict=True)
        ]
        stored = [
            directory[begin : begin + length]
            for begin, length in zip(begins.tolist(), self._lengths.tolist(), strict=True)
        ]
        fields = [_extra_field(self._extra(number), _EXTRA_UNICODE_PATH) for number in range(len(stored))]
        decoded = decode_names(stored, fields, says, unix)
        for number, (raw, name) in enumerate(zip(stored, decoded, strict=True)):
            if not name.declared:
                undeclared.append(before + number)
            if name.text.encode("utf-8", "surrogatepass") != raw:
                stored_names[before + number] = raw
        return StringArray.of(name.text for name in decoded)

    def _extra(self, number: int) -> bytes:
        begin = int(self._starts[number] + _MEMBER.size + self._lengths[number])
        return self._directory[begin : begin + int(self._extra_lengths[number])]

    def _places(self) -> NDArray[np.int64]:
        """Return int64 `(N, 3)`: each member's `_WIDE_FIELDS`."""
        records, directory = self._records, self._directory
        places = np.stack([records[name].astype(np.int64) for name in _WIDE_FIELDS], axis=1)
        missing = places == _NARROW_FULL
        wide = np.flatnonzero(missing.any(axis=1))
        # All that begins behind 4 GiB, so most members of a large archive; few have another field before the zip64
        # field.
        begins = self._starts + _MEMBER.size + self._lengths
        counts = missing[wide].sum(axis=1)
        are_first = _begins_with_zip64(directory, begins[wide], self._extra_lengths[wide], counts)
        first = wide[are_first]
        values = np.ndarray((max(0, len(directory) - 7),), "<u8", directory, strides=(1,))
        for field in range(len(_WIDE_FIELDS)):
            own = first[missing[first, field]]
            at = begins[own] + _EXTRA_HEAD.size + 8 * missing[own, :field].sum(axis=1)
            places[own, field] = np.minimum(values[at], _BEYOND)
        for number in wide[~are_first].tolist():
            found = _wide_fields(self._source, self._extra(number), *places[number].tolist())
            places[number] = [min(value, _BEYOND) for value in found]
        return places

    def facts(self) -> dict[str, NDArray[Any]]:
        """Return the facts by name, each `(N,)`, without the ends."""
        records, places = self._records, self._places()
        found = {name: records[name] for name in ("crc", "method", "flags")}
        found |= dict(zip(_WIDE_FIELDS, places.T, strict=True))
        if _place_type(self._source) == "<u4":
            # Behind the end of the archive either way.
            found |= {name: np.minimum(found[name], _NARROW_FULL) for name in ("offset", "packed_size")}
        found["mode"] = np.where(np.isin(records["system"], list(UNIX_SYSTEMS)), records["attributes"] >> 16, 0)
        # Files are written in the same seconds, so there are far fewer times than members.
        stamps, of_stamp = np.unique(records["stamp"], return_inverse=True)
        times = [_unix_time_ns(stamp >> 16, stamp & 0xFFFF) for stamp in stamps.tolist()]
        found["mtime_ns"] = np.array(times, np.int64)[of_stamp.reshape(-1)]
        return found


def _record_starts(
    source: ByteSource, piece: bytes, place: int, *, is_last: bool
) -> tuple[Sequence[int] | NDArray[np.int64], int]:
    """Return where each record begins that is in a piece whole, and where the last ends. `place`: where in the
    directory the piece is."""
    found = _starts_by_marks(piece)
    if found is not None and (found[1] == len(piece) or not is_last):
        return found
    starts = array("q")
    at, length = 0, len(piece)
    # Each says where the next begins: one step for each of what may be millions of members.
    last, read, append = length - _MEMBER.size, _MARK_AND_LENGTHS.unpack_from, starts.append
    end = 0
    while at <= last:
        mark, name_length, extra_length, comment_length = read(piece, at)
        if mark != _MEMBER_MARK:
            raise _damaged_directory(source, f"its directory is not readable at byte {place + at:,}")
        at += _MEMBER.size + name_length + extra_length + comment_length
        if at > length:
            if is_last:
                raise _damaged_directory(source, "the last entry of its directory is cut")
            break
        append(end)
        end = at
    if is_last and end < length:
        raise _damaged_directory(source, f"its directory is not readable at byte {place + end:,}")
    return starts, end


def _starts_by_marks(piece: bytes) -> tuple[NDArray[np.int64], int] | None:
    """Return the same of records that begin wherever their mark is, if each of them ends where the next begins;
    otherwise, as where a name contains the mark, or something is damaged, return `None`."""
    last = len(piece) - _MEMBER.size
    data = np.frombuffer(piece, np.uint8)
    starts = np.flatnonzero(data[: max(0, last + 1)] == _MEMBER_MARK[0])
    for place in range(1, len(_MEMBER_MARK)):
        starts = starts[data[starts + place] == _MEMBER_MARK[place]]
    if not len(starts) or starts[0]:
        return None
    lengths = np.ndarray((len(piece) - 1,), "<u2", piece, strides=(1,))
    ends = starts + _MEMBER.size
    for place in _LENGTH_PLACES:
        ends += lengths[starts + place]
    if not np.array_equal(starts[1:], ends[:-1]) or ends[-1] <= last:
        return None
    # The last may be cut.
    return (starts, int(ends[-1])) if ends[-1] <= len(piece) else (starts[:-1], int(starts[-1]))


def _begins_with_zip64(
    directory: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool `(M,)`: which extra fields begin with a zip64 field of as many values as are wanted.

    `begins`, `lengths`, `counts`: `(M,)`, where the extra fields are in the directory, and the values wanted of each.
    """
    found = lengths >= _EXTRA_HEAD.size + 8 * counts
    halves = np.ndarray((max(0, len(directory) - 1),), "<u2", directory, strides=(1,))
    at = begins[found]
    found[found] = (halves[at] == _EXTRA_ZIP64) & (halves[at + 2] >= 8 * counts[found])
    return found


def _set_ends(source: ByteSource, found: ZipDirectory, directory_at: int) -> None:
    """Give every member the place where its bytes must end, and refuse those that overlap."""
    if not len(found):
        return
    facts, lengths = found.facts, found.names.lengths
    for number, stored in found.stored_names.items():
        lengths[number] = len(stored)
    # Members that share bytes are how a small archive unpacks to petabytes.
    offsets, ends = facts["offset"], facts["end"]
    if np.all(offsets[1:] >= offsets[:-1]):
        # As nearly all archives have them, without the places of all in another order.
        ends[:-1], ends[-1] = offsets[1:], directory_at
    else:
        order = np.argsort(offsets, kind="stable")
        ends[order[:-1]], ends[order[-1]] = offsets[order[1:]], directory_at
    worst, place = None, -1
    for first in range(0, len(found), _PARSED_TOGETHER):
        page = slice(first, first + _PARSED_TOGETHER)
        own, after, size = (facts[name][page].astype(np.int64) for name in ("offset", "end", "packed_size"))
        over = np.flatnonzero(size > after - own - LOCAL_HEADER_BYTES - lengths[page])
        if len(over) and int(own[over].max()) > place:
            worst, place = first + int(over[np.argmax(own[over])]), int(own[over].max())
    if worst is not None:
        raise refuse_member(source.label, found.names[worst], "its bytes overlap those of what follows it")


def _extra_field(extra: bytes, wanted: int) -> bytes | None:
    at = 0
    # A field whose length is wrong ends the search: archivers pad with a few stray bytes.
    while at + 4 <= len(extra):
        kind, length = _EXTRA_HEAD.unpack_from(extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return None


def _wide_fields(source: ByteSource, extra: bytes, *narrow: int) -> list[int]:
    """Return the 64-bit values of those fields that do not fit 32 bits; they stand in the zip64 field in this order."""
    field = _extra_field(extra, _EXTRA_ZIP64)
    if field is None:
        return list(narrow)
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
