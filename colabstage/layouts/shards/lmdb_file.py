"""The keys of an LMDB file, and where their values lie, read by position.

Not through the lmdb package: that maps the file, which on a mount is slow and, where the file is cut, ends the process
by a signal. Every value lies in one stretch of the file, so its place is all that reading needs. Format: LMDB 0.9
(data version 1) on 64-bit machines, little-endian; a header of 16 bytes begins each page.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import CorruptArchiveError, LayoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.trees.tree import ByteSource

_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = struct.Struct("<IIQQ 48s 48s QQ")  # magic, version, address, map size, free and main database, last page, txn
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size or pad, flags, depth, branch, leaf and overflow pages, entries, root
_NODE = struct.Struct("<HHHH")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF = 0x01, 0x02
_BIG, _SUB, _DUPLICATES = 0x01, 0x02, 0x04
_DUPSORT = 0x04
_NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF
# Deeper trees than LMDB itself can make.
_MAX_DEPTH = 32


class Value(NamedTuple):
    """One key, and where its value lies in the file, in bytes."""

    key: bytes
    start: int
    size: int


class _Meta(NamedTuple):
    page_bytes: int
    root: int
    entries: int
    flags: int
    last_page: int
    txn: int


def is_lmdb_head(head: bytes) -> bool:
    """Whether an LMDB file begins so."""
    return len(head) >= 20 and int.from_bytes(head[16:20], "little") == _MAGIC


def scan_values(source: ByteSource) -> Iterator[Value]:
    """Every key of the file's main database, in order.

    Raises:
        LayoutError: it holds named databases or several values for a key, or is of another version.
        CorruptArchiveError: it is truncated, damaged, or no LMDB file.
    """
    meta = _read_meta(source)
    if meta.flags & _DUPSORT:
        msg = f"'{source.label}' keeps several values for each key, which is not read here."
        raise LayoutError(msg)
    count = 0
    stack = [] if meta.root == _NO_PAGE else [(meta.root, 1)]
    pages = 0
    while stack:
        number, depth = stack.pop()
        pages += 1
        if depth > _MAX_DEPTH or pages > meta.last_page + 1:
            raise _damaged(source, number)
        page, flags, places = _read_page(source, meta, number)
        if flags & _BRANCH:
            stack += [(child, depth + 1) for child in reversed(_children(source, number, page, places))]
            continue
        for place in places:
            yield _value(source, meta, number, page, place)
            count += 1
    if count != meta.entries:
        msg = f"'{source.label}' is damaged: it holds {count:,} keys and says that it has {meta.entries:,}."
        raise CorruptArchiveError(msg)


def _read_meta(source: ByteSource) -> _Meta:
    first = source.pread(_PAGE.size + _META.size, 0)
    if not is_lmdb_head(first) or len(first) < _PAGE.size + _META.size:
        msg = f"'{source.label}' is no LMDB file."
        raise CorruptArchiveError(msg)
    page_bytes = _DATABASE.unpack(_META.unpack_from(first, _PAGE.size)[4])[0]
    if page_bytes < 512 or page_bytes > 65536 or page_bytes & (page_bytes - 1):
        raise _damaged(source, 0)
    second = source.pread(_PAGE.size + _META.size, page_bytes)
    meta = max((_parse_meta(source, head, page_bytes) for head in (first, second)), key=lambda meta: meta.txn)
    needed = (meta.last_page + 1) * page_bytes
    if needed > source.size and meta.root != _NO_PAGE:
        msg = (
            f"'{source.label}' is truncated: it has {source.size:,} bytes, and its pages take {needed:,}. Copy or "
            "upload it again."
        )
        raise CorruptArchiveError(msg)
    return meta


def _parse_meta(source: ByteSource, head: bytes, page_bytes: int) -> _Meta:
    if not is_lmdb_head(head) or len(head) < _PAGE.size + _META.size:
        raise _damaged(source, 1)
    _, version, _, _, _, main, last_page, txn = _META.unpack_from(head, _PAGE.size)
    if version != _VERSION:
        msg = f"'{source.label}' is of LMDB's data version {version}; only version {_VERSION} (LMDB 0.9) is read here."
        raise LayoutError(msg)
    _, flags, _, _, _, _, entries, root = _DATABASE.unpack(main)
    return _Meta(page_bytes, root, entries, flags, last_page, txn)


def _read_page(source: ByteSource, meta: _Meta, number: int) -> tuple[bytes, int, list[int]]:
    """A page, its flags, and where its nodes begin."""
    page = source.pread(meta.page_bytes, number * meta.page_bytes) if number <= meta.last_page else b""
    if len(page) != meta.page_bytes:
        raise _damaged(source, number)
    own, _, flags, lower, upper = _PAGE.unpack_from(page)
    kind = flags & (_BRANCH | _LEAF)
    if own != number or kind not in (_BRANCH, _LEAF) or not _PAGE.size <= lower <= upper <= len(page) or lower % 2:
        raise _damaged(source, number)
    places = list(struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size))
    if any(not upper <= place <= len(page) - _NODE.size for place in places):
        raise _damaged(source, number)
    return page, kind, places


def _children(source: ByteSource, number: int, page: bytes, places: list[int]) -> list[int]:
    found = []
    for place in places:
        low, high, top, _ = _NODE.unpack_from(page, place)
        found.append(low | high << 16 | top << 32)
    if not found:
        raise _damaged(source, number)
    return found


def _value(source: ByteSource, meta: _Meta, number: int, page: bytes, place: int) -> Value:
    low, high, flags, key_size = _NODE.unpack_from(page, place)
    size = low | high << 16
    key_at = place + _NODE.size
    data_at = key_at + key_size
    key = page[key_at:data_at]
    if flags & (_SUB | _DUPLICATES):
        msg = f"'{source.label}' holds named databases ({key[:40]!r}), which are not read here."
        raise LayoutError(msg)
    if not flags & _BIG:
        if data_at + size > len(page):
            raise _damaged(source, number)
        return Value(key, number * meta.page_bytes + data_at, size)
    if data_at + 8 > len(page):
        raise _damaged(source, number)
    start = int.from_bytes(page[data_at : data_at + 8], "little") * meta.page_bytes + _PAGE.size
    if start + size > (meta.last_page + 1) * meta.page_bytes:
        raise _damaged(source, number)
    return Value(key, start, size)


def _damaged(source: ByteSource, page: int) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"'{source.label}' is damaged: its page {page:,} is not readable. Copy or upload it again; a copy that was "
        "made while the database was written to is not whole."
    )
