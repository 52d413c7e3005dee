"""A tar as a tree: its headers are scanned once, then members are read by offset from any number of threads.

Written here rather than left to `tarfile`, which takes a damaged header for the end of the archive and so silently
loses every member after it, and takes three times as long. Formats: POSIX.1-2001 (pax), ustar, GNU, and the old V7 one.
"""

from __future__ import annotations

import re
import struct
from array import array
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError, UnsafeArchiveError
from colabstage.trees.bytes import (
    HEAD_BYTES,
    RequestedBytes,
    compression_of,
    describe_contents,
    header_checksums,
    truncated,
)
from colabstage.trees.compressed import unpack_into
from colabstage.trees.listing import FileEntries, Tree, sorted_by_name
from colabstage.trees.names import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    check_collisions,
    check_limits,
    clean_member_name,
    is_junk,
    notes_on_members,
    refuse_member,
    resolve_link,
    resolve_links,
    without_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from colabstage.io.progress import Cancellation
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry

BLOCK = 512
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")

_REGULAR = frozenset({b"0", b"\0", b"7"})
_LONG_NAME, _LONG_LINK, _PAX, _PAX_SUN, _PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"
_VOLUME_LABEL = b"V"
_EXTENSIONS = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_SUN, _PAX_GLOBAL})
# A name or a set of pax records longer than this is not one.
_MAX_EXTENSION_BYTES = 1 << 20
# Archivers fill the last record with zeros: 10 KiB by default, 1 MiB with the largest blocking factors in use.
_MAX_PADDING_BYTES = 1 << 20
# As GNU tar reads a number: one leading NUL that an overflowing neighbour left, blanks, digits, then a NUL or a blank.
_OCTAL = re.compile(rb"\0?\s*([0-7]*)(?:[\0\s].*)?\Z", re.DOTALL)
# Behind so many headers that were no further apart than this, the next ones are read together: what is between them
# takes less time than a call for each.
_CLOSE_HEADERS = 16
_NEAR_BYTES = 8 * 1024
_WINDOW_BYTES = 64 * 1024
# Of all that a pax record may say, what is used here; an archive can hold as many others as it likes.
_PAX_KEYS = frozenset({"path", "linkpath", "size", "mtime"})
_PAX_SPARSE = "GNU.sparse."
# Seconds since 1970 with more digits than this do not fit 64 bits of nanoseconds; what is written in a few bytes
# (1e999999) would otherwise take hours to spell out.
_TIME_DIGITS = 10


class TarMember(NamedTuple):
    """One member of a tar."""

    name: str
    """Uncleaned, as it is in the archive."""
    kind: str
    """`"file"`, `"folder"`, `"symlink"`, `"hardlink"` or `"special"`."""
    link: str
    """Target of a link, uncleaned."""
    offset: int
    size: int
    mtime_ns: int
    """In nanoseconds since 1970; 0 for what is no time."""
    executable: bool = False


class _HeaderBlock(NamedTuple):
    """One header block, before long names and pax records are applied."""

    name: bytes
    """As bytes, with what POSIX keeps of it elsewhere in the block."""
    size: int
    """Of what follows the block, in bytes."""
    mtime: int
    kind: bytes
    link: bytes
    mode: int


def scan_members(source: ByteSource) -> Iterator[TarMember]:
    """Yield every member of an uncompressed tar, in the archive's order."""
    at = 0
    blocks = _Blocks(source)
    shared: dict[str, str] = {}
    # What a global header says holds for all that follow, what another says for the next member only.
    own: dict[str, str] = {}
    while (block := blocks.read(at)).strip(b"\0"):
        header = _parse_header(source, block, at)
        at += BLOCK
        if header.kind in _EXTENSIONS:
            # Headers that only say more about the next member, or about all that follow.
            if header.size > _MAX_EXTENSION_BYTES:
                msg = (
                    f"'{source.label}' is damaged at byte {at:,}: a name of {header.size:,} bytes. Copy or upload "
                    "it again."
                )
                raise CorruptArchiveError(msg)
            data = blocks.read(at, header.size)
            if len(data) < header.size:
                raise truncated(source, "a long name is cut")
            if header.kind == _LONG_NAME:
                own["path"] = _as_name(_until_nul(data))
            elif header.kind == _LONG_LINK:
                own["linkpath"] = _as_name(_until_nul(data))
            else:
                try:
                    (shared if header.kind == _PAX_GLOBAL else own).update(_pax_records(data))
                except ValueError as error:
                    msg = f"'{source.label}' is damaged at byte {at:,}: its pax records are not readable."
                    raise CorruptArchiveError(msg) from error
            at += _padded_size(header.size)
            continue
        member, stored = _apply(source, header, at, shared | own if shared else own)
        at += stored
        own = {}
        # Found here, before anything is read: a cut archive must not give half of a dataset.
        if at - stored + member.size > source.size:
            raise truncated(source, f"its member {member.name!r} ends after the end of the file")
        if header.kind != _VOLUME_LABEL:
            yield member
    _check_end(source, block, at)


class _Blocks:
    """Headers of a tar, in order: each by itself, and many with one read where they have followed each other
    closely."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._data = b""
        self._start = 0
        self._latest = 0
        self._close = 0

    def read(self, at: int, length: int = BLOCK) -> bytes:
        """Return the bytes at `at`, a header's or those that say more; fewer, or none, at the end."""
        self._close = self._close + 1 if at - self._latest <= _NEAR_BYTES else 0
        self._latest = at
        begin = at - self._start
        if begin + length > len(self._data):
            window = _WINDOW_BYTES if self._close > _CLOSE_HEADERS else 0
            self._data, self._start, begin = self._source.pread(max(length, window), at), at, 0
        return self._data[begin : begin + length]


def _padded_size(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _parse_header(source: ByteSource, block: bytes, at: int) -> _HeaderBlock:
    if len(block) < BLOCK:
        raise truncated(source, "its last header is cut")
    # fmt: off
    (name, mode, _, _, size, mtime, checksum, kind, link, magic, _, _, _, _, _, prefix) = _HEADER.unpack(block)
    # fmt: on
    try:
        whole = _number(checksum) in header_checksums(block)
        header = _HeaderBlock(_until_nul(name), _number(size), _number(mtime), kind, _until_nul(link), _number(mode))
    except ValueError:
        whole = False
    if not whole or header.size < 0:
        if at == 0:
            msg = f"'{source.label}' is not a tar but {describe_contents(source.pread(HEAD_BYTES, 0))}."
            raise CorruptArchiveError(msg)
        msg = f"'{source.label}' is damaged at byte {at:,}: there is no readable header. Copy or upload it again."
        raise CorruptArchiveError(msg)
    # GNU's own format, "ustar " with a blank, keeps times where POSIX keeps the beginning of a long name.
    if magic == b"ustar\0" and prefix[:1] != b"\0":
        header = header._replace(name=_until_nul(prefix) + b"/" + header.name)
    return header


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return a number in a header: octal digits, or base 256 where the first bit is set."""
    # Base 256: two's complement in the bits behind the first, as GNU tar writes sizes over 8 GiB.
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) & ((1 << (8 * len(field) - 1)) - 1)
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    digits = field.rstrip(b" \0")
    if digits.isdigit():
        return int(digits, 8)
    match = _OCTAL.match(field)
    if match is None:
        raise ValueError(field)
    return int(match[1] or b"0", 8)


def _as_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _pax_records(data: bytes) -> dict[str, str]:
    """Return the records `"<length> <key>=<value>\\n"` of an extended header."""
    records: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        length, blank, _ = data[at : at + 20].partition(b" ")
        end = at + int(length)
        key, equals, value = data[at + len(length) + 1 : end - 1].partition(b"=")
        if not blank or not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise ValueError(data[at : at + 40])
        name = key.decode("utf-8")
        if name in _PAX_KEYS or name.startswith(_PAX_SPARSE):
            # Which of them it is does not matter for a sparse file, which is refused.
            records[_PAX_SPARSE if name.startswith(_PAX_SPARSE) else name] = _as_name(value)
        at = end
    return records


def _apply(source: ByteSource, header: _HeaderBlock, at: int, pax: dict[str, str]) -> tuple[TarMember, int]:
    """Return the member that a header and the extensions before it describe, and the bytes it takes up after the
    header."""
    name = (pax and pax.get("path")) or _as_name(header.name)
    if header.kind == b"S" or _PAX_SPARSE in pax:
        msg = (
            f"'{source.label}' stores {name!r} as a sparse file, which is not read here. "
            "Make the archive again without tar's option --sparse."
        )
        raise ArchiveError(msg)
    if header.kind == b"M":
        msg = f"'{source.label}' is one volume of an archive in several. Join them into one archive first."
        raise ArchiveError(msg)
    try:
        size, mtime_ns = header.size, header.mtime * 10**9
        # Most have no such records, and a decimal number for each of a million takes seconds.
        if pax or abs(mtime_ns) >= 1 << 63:
            size = int(pax.get("size") or size)
            mtime_ns = _nanoseconds(Decimal(pax.get("mtime") or header.mtime))
        if size < 0:
            raise ValueError(size)  # noqa: TRY301  # together with what int() refuses
    except (ValueError, ArithmeticError) as error:
        msg = f"'{source.label}' is damaged at byte {at:,}: the pax records of {name!r} are not readable."
        raise CorruptArchiveError(msg) from error
    kind = _kind_of_header(header.kind, name)
    # Links, folders and devices may name a size, but only these have content behind their header.
    stored = size if kind == "file" or header.kind in (b"D", _VOLUME_LABEL) else 0
    link = (pax and pax.get("linkpath")) or _as_name(header.link)
    return TarMember(name, kind, link, at, stored, mtime_ns, bool(header.mode & 0o100)), _padded_size(stored)


def _nanoseconds(seconds: Decimal) -> int:
    """Return a time in whole nanoseconds; 0 for what does not fit 64 bits, which is no time."""
    if seconds.is_finite() and (not seconds or seconds.adjusted() >= _TIME_DIGITS):
        return 0
    value = int(seconds * 10**9)
    return value if abs(value) < 1 << 63 else 0


def _kind_of_header(typeflag: bytes, name: str) -> str:
    if typeflag in (b"5", b"D") or (typeflag == b"\0" and name.endswith("/")):
        return "folder"
    if typeflag in _REGULAR:
        return "file"
    known = {b"1": "hardlink", b"2": "symlink", b"3": "special", b"4": "special", b"6": "special"}
    # POSIX: a type that is not known is to be taken for a regular file.
    return known.get(typeflag, "file")


def _check_end(source: ByteSource, block: bytes, at: int) -> None:
    """Check the end, which is blocks of zeros. None at all: cut. Very many: a copy that was cut and filled up. Others:
    damage."""
    if not block:
        if at == 0:
            msg = f"'{source.label}' is an empty file, not a tar. Copy or upload the archive again."
            raise CorruptArchiveError(msg)
        raise truncated(source, "the blocks of zeros that mark its end are missing")
    rest = source.size - at
    tail = source.pread(min(rest, _MAX_PADDING_BYTES), at)
    if tail.strip(b"\0"):
        msg = (
            f"'{source.label}' has {rest:,} bytes after the mark of its end at byte {at:,}: it is damaged, or several "
            "archives were joined. Copy it again, or make one archive of all."
        )
        raise CorruptArchiveError(msg)
    if rest > _MAX_PADDING_BYTES:
        raise truncated(source, f"its last {rest:,} bytes are zeros, as a copy or an upload leaves that was cut")


class TarTree(Tree):
    """The files in a tar. A compressed one is unpacked once, into an unnamed file that vanishes with the tree.

    Of members with one name the last counts, as for every reader of tars: `tar -r` replaces files so.

    Args:
        source: the archive's bytes; closed with the tree.
        spool: a folder on a local disk with room for the unpacked form of a compressed archive; created if need be.
        limits: what the headers may promise.
        cancellation: looked at while it is unpacked and while its headers are read.
    """

    kind = "tar"
    source: ByteSource

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._archive, self.label = source, source.label
        # Members of a compressed tar can only be reached through all before them, so it is unpacked once.
        self.source = source
        if compression_of(source.pread(HEAD_BYTES, 0)) is not None:
            self.source = unpack_into(spool, source, limits, cancellation)
        try:
            self._list(limits, cancellation)
        except BaseException:
            if self.source is not source:
                self.source.close()
            raise

    def _list(self, limits: ArchiveLimits, cancellation: Cancellation | None) -> None:
        archive, total = self.label, 0
        rows: dict[str, int] = {}
        links: dict[str, str] = {}
        folders: list[str] = []
        repeated: list[str] = []
        sizes, offsets, executable, times = array("q"), array("q"), bytearray(), array("q")
        for count, member in enumerate(scan_members(self.source), 1):
            if cancellation is not None:
                cancellation.check()
            total += member.size
            check_limits(archive, count, total, self._archive.size, limits)
            if member.kind == "folder":
                folders.append(clean_member_name(archive, member.name, folder=True))
                continue
            name = clean_member_name(archive, member.name)
            if member.kind == "special":
                raise refuse_member(archive, name, "it is a device or a pipe")
            if is_junk(name):
                continue
            if name in rows or (links and name in links):
                repeated.append(name)
                links.pop(name, None)
            if member.kind in ("symlink", "hardlink"):
                target = _link_target(archive, name, member)
                if member.kind == "symlink" or target not in rows:
                    rows.pop(name, None)
                    links[name] = target
                else:
                    # The file as it is at this point of the archive.
                    rows[name] = rows[target]
                continue
            rows[name] = len(sizes)
            sizes.append(member.size)
            offsets.append(member.offset)
            times.append(member.mtime_ns)
            executable.append(member.executable)
        check_collisions(archive, [*rows, *links], folders)
        self.empty_folders = without_files(folders, [*rows, *links]) if folders else ()
        found = resolve_links(links, rows)
        self.notes = notes_on_members(sorted(links.keys() - found.keys()), repeated)
        rows |= {name: rows[target] for name, target in found.items()}
        names, (numbers,), _ = sorted_by_name(list(rows), np.fromiter(rows.values(), np.int64, len(rows)))
        columns = [np.frombuffer(column, np.int64)[numbers] for column in (sizes, times, offsets)]
        programs = np.frombuffer(executable, np.bool_)[numbers]
        self.entries = FileEntries(names, columns[0], columns[1], columns[2], programs)

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the bytes of one member; of a link, those of the file that it leads to.

        A tar has no checksums of contents, so only the length is verified.
        """
        own = self.entries[self._own(entry)]
        pread, start = self.source.pread, own.position
        label = f"{self.label}: {own.name}"
        return RequestedBytes(lambda length, offset: pread(length, start + offset), own.size, label=label)

    def close(self) -> None:
        """Close the archive and drop the unpacked form. Calling it twice is fine."""
        super().close()
        self._archive.close()


def _link_target(archive: str, name: str, member: TarMember) -> str:
    """Return the cleaned name that a link leads to."""
    if member.kind == "symlink":
        return resolve_link(archive, name, member.link)
    try:
        return clean_member_name(archive, member.link)
    except UnsafeArchiveError:
        raise refuse_member(archive, name, f"it is a link to {member.link!r}, outside the archive") from None
