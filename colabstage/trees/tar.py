"""A tar as a tree: its headers are scanned once, then members are read by offset from any number of threads.

Not left to `tarfile`, which takes a damaged header for the end of the archive, and three times as long. Formats:
POSIX.1-2001 (pax), ustar, GNU, and the old V7.
"""

from __future__ import annotations

import re
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError
from colabstage.trees.bytes import (
    ByteSource,
    RequestedBytes,
    damaged,
    header_checksum,
    truncated,
)
from colabstage.trees.listing import (
    TIME_END_NS,
    ArchiveLimits,
    FileEntries,
    FileEntry,
    MemberKind,
    Members,
    Tree,
    check_limits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.io.progress import Cancellation

BLOCK = 512
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")

# POSIX: an unknown type is to be read as a regular file.
_KINDS: dict[bytes, MemberKind] = {
    b"1": "hardlink",
    b"2": "symlink",
    **dict.fromkeys((b"3", b"4", b"6"), "special"),
    b"5": "folder",
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_VOLUME_LABEL = b"V"
_EXTENSIONS = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL})
# A longer name or set of pax records is damage.
_MAX_EXTENSION_BYTES = 1 << 20
# Archivers fill the last record with zeros: 10 KiB by default, 1 MiB with the largest blocking factors in use.
_MAX_PADDING_BYTES = 1 << 20
# The pax records that are used here; an archive may hold any others.
_PAX_KEYS = frozenset({"path", "linkpath", "size", "mtime"})
_PAX_SPARSE = "GNU.sparse."


# Parsed by its digits: a number in a few bytes (1e999999) would otherwise take hours to expand.
_TIME = re.compile(r"(-?\d{1,10})(?:\.(\d*))?")


class TarMember(NamedTuple):
    """One member of a tar; names as they are in the archive."""

    name: str
    kind: MemberKind
    link: str
    offset: int
    size: int
    """Length of the content, which follows the header."""
    mtime_ns: int
    """In nanoseconds since 1970; 0 for an invalid time."""
    executable: bool = False


def scan_members(source: ByteSource) -> Iterator[TarMember]:
    """Yield every member of an uncompressed tar, in the archive's order; refuse one that is sparse, or continues in
    another volume."""
    at = 0
    # What extensions say of the next member.
    own: dict[str, str] = {}
    while True:
        block = source.pread(BLOCK, at)
        if not block.strip(b"\0"):
            _check_end(source, at)
            return
        flag, member = _read_header(source, block, at, own)
        at += BLOCK
        size = member.size
        if flag in _EXTENSIONS:
            if size > _MAX_EXTENSION_BYTES:
                raise damaged(source.label, f"a name of {size:,} bytes at byte {at:,}")
            data = source.pread(size, at)
            if len(data) < size:
                raise truncated(source, "a long name is cut")
            try:
                own.update(_extension(flag, data))
            except ValueError as error:
                raise damaged(source.label, f"its pax records at byte {at:,} are not readable") from error
        else:
            own = {}
            # Found before anything is read: a truncated archive must not yield half of a dataset.
            if at + size > source.size:
                raise truncated(source, f"its member {member.name!r} ends after the end of the file")
            if flag != _VOLUME_LABEL:
                yield member
        at += -(-size // BLOCK) * BLOCK


def _read_header(source: ByteSource, block: bytes, at: int, pax: dict[str, str]) -> tuple[bytes, TarMember]:
    """Return the type flag of a header block, and the member that it and its extensions describe."""
    if len(block) < BLOCK:
        raise truncated(source, "its last header is cut")
    raw_name, raw_mode, _, _, raw_size, raw_time, checksum, flag, link, magic, *_, prefix = _HEADER.unpack(block)
    try:
        whole = _number(checksum) == header_checksum(block)
        size, mtime_ns, mode = _number(raw_size), _number(raw_time) * 10**9, _number(raw_mode)
    except ValueError:
        whole = False
    if not whole or size < 0:
        raise damaged(source.label, f"there is no readable header at byte {at:,}")
    # GNU's own format, "ustar " with a blank, stores times where POSIX has the beginning of a long name.
    begins = _until_nul(prefix) + b"/" if magic == b"ustar\0" and prefix[:1] != b"\0" else b""
    name, target = _as_name(begins + _until_nul(raw_name)), _as_name(_until_nul(link))
    time_ns = mtime_ns if abs(mtime_ns) < TIME_END_NS else 0
    if flag in _EXTENSIONS:
        return flag, TarMember(name, "file", "", at + BLOCK, size, time_ns)
    if pax:
        name, target = pax.get("path") or name, pax.get("linkpath") or target
        if stated := pax.get("size"):
            if not stated.isdecimal():
                raise damaged(source.label, f"the pax records of {name!r} are not readable")
            size = int(stated)
        time_ns = _nanoseconds(pax["mtime"]) if pax.get("mtime") else time_ns
    if flag in (b"S", b"M") or _PAX_SPARSE in pax:
        msg = (
            f"'{source.label}' stores {name!r} as a sparse file, or in several volumes, which is not read here. Unpack "
            "it with GNU tar (tar -xf), and give that folder; or make it again, on a Mac with --no-read-sparse."
        )
        raise ArchiveError(msg)
    kind = "folder" if flag == b"\0" and name.endswith("/") else _KINDS.get(flag, "file")
    # Links, folders and devices may state a size, but have no content after their header.
    size = size if kind == "file" else 0
    return flag, TarMember(name, kind, target, at + BLOCK, size, time_ns, bool(mode & 0o100))


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return a number in a header: octal digits, or in base 256, as GNU tar writes sizes over 8 GiB, and negative
    times."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else int.from_bytes(field, "big", signed=True)
    return int(_until_nul(field).strip() or b"0", 8)


def _as_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _extension(flag: bytes, data: bytes) -> dict[str, str]:
    if flag == _PAX_GLOBAL:  # of all that follow, such as the comment of `git archive`
        return {}
    if flag in (_LONG_NAME, _LONG_LINK):
        return {"path" if flag == _LONG_NAME else "linkpath": _as_name(_until_nul(data))}
    # Records "<length> <key>=<value>\n".
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
            # Which of them it is does not matter, because sparse files are refused.
            records[_PAX_SPARSE if name.startswith(_PAX_SPARSE) else name] = _as_name(value)
        at = end
    return records


def _nanoseconds(text: str) -> int:
    """Return a time in seconds as nanoseconds; 0 if it is invalid, or does not fit 64 bits."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    value = int(match[1]) * 10**9 + int((match[2] or "").ljust(9, "0")[:9])
    return value if abs(value) < TIME_END_NS else 0


def _check_end(source: ByteSource, at: int) -> None:
    """Check the end, which is blocks of zeros. None at all: truncated. Very many: a truncated copy that was padded."""
    rest = source.size - at
    if rest <= 0:
        raise truncated(source, "the blocks of zeros that mark its end are missing; tar -xf unpacks one without them")
    tail = source.pread(min(rest, _MAX_PADDING_BYTES), at)
    if tail.strip(b"\0"):
        msg = (
            f"'{source.label}' has {rest:,} bytes after the mark of its end at byte {at:,}: it is damaged, or several "
            "archives were joined. Copy it again; if they were, unpack all of them with tar -xif."
        )
        raise CorruptArchiveError(msg)
    if len(tail) < rest:
        raise truncated(source, f"its last {rest:,} bytes are zeros, as a copy or an upload leaves that was cut")


class TarTree(Tree):
    """The files in a tar, whose bytes are closed with the tree; `packed` is the form that they were unpacked from."""

    kind = "tar"
    source: ByteSource

    def __init__(
        self,
        source: ByteSource,
        limits: ArchiveLimits,
        cancellation: Cancellation | None = None,
        *,
        packed: ByteSource | None = None,
    ) -> None:
        self.source, self.packed, self.label = source, packed, source.label
        archive, archive_bytes, total = self.label, (packed or source).size, 0
        members = Members(archive)
        sizes, offsets, executable, times = array("q"), array("q"), bytearray(), array("q")
        for count, member in enumerate(scan_members(source), 1):
            if cancellation is not None:
                cancellation.check()
            total += member.size
            check_limits(archive, count, total, archive_bytes, limits)
            members.add(member.name, member.kind, count - 1, member.link)
            sizes.append(member.size)
            offsets.append(member.offset)
            times.append(member.mtime_ns)
            executable.append(member.executable)
        names, numbers = members.finish(self)
        columns = [np.frombuffer(column, np.int64)[numbers] for column in (sizes, times, offsets)]
        programs = np.frombuffer(executable, np.bool_)[numbers]
        self.entries = FileEntries(names, columns[0], columns[1], columns[2], programs)

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the bytes of one member; for a link, those of the file that it leads to.

        A tar has no checksums of contents, so only the length is verified.
        """
        own = self.entries[self._own(entry)]
        pread, start = self.source.pread, own.position
        label = f"{self.label}: {own.name}"
        return RequestedBytes(lambda length, offset: pread(length, start + offset), own.size, label=label)
