"""A member of a zip, read by offset in one positioned read, unpacked and verified.

A member's directory entry is compared with its own header and content: if an archive was changed in between, that is
reported as damage, and never yields other data.
"""

from __future__ import annotations

import bz2
import contextlib
import importlib
import lzma
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from colabstage.errors import ColabstageError, MissingDependencyError
from colabstage.io.packages import igzip_lib, isal_zlib
from colabstage.trees.bytes import PIECE_BYTES, ByteSource, cut_while_read, damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


STORED, DEFLATED, BZIP2, ZSTANDARD = 0, 8, 12, 93
READABLE = (STORED, DEFLATED, BZIP2, ZSTANDARD)

LOCAL = struct.Struct("<4s5H3L2H")
FLAG_ENCRYPTED, FLAG_UTF8 = 0x1, 0x800
# A local header's name and fields, a data descriptor and alignment up to this length are read with the member.
_MAX_GAP_BYTES = 64 * 1024
# A name and its fields are rarely longer.
_USUAL_NAME_BYTES = 1024
# Deflate expands data 1,032 times at most, so up to this length one unbounded call yields at most 66 MB, which are
# checked afterwards.
_ONE_SHOT_BYTES = 64 * 1024
_PACKED_PIECE_BYTES = 1 << 20

# isal's type information declares the exception class as an instance.
UNPACK_ERRORS = (cast("type[Exception]", isal_zlib.IsalError), lzma.LZMAError, OSError, EOFError, ValueError)


@dataclass(slots=True)
class ZipMember:
    """One member from the central directory. Not frozen: a frozen one takes three times as long to make."""

    name: str
    offset: int
    """Where its local header begins."""
    end: int
    """Where the next header or the directory begins."""
    packed_size: int
    size: int
    crc: int
    method: int
    """How it is packed, by APPNOTE's numbers."""
    flags: int
    mtime_ns: int
    """In nanoseconds since 1970, taken as UTC; 0 for none."""


def read_member(source: ByteSource, member: ZipMember) -> bytes:
    """Return the content of one member, unpacked and verified."""
    pieces = list(_verified(source, member, _pieces((_packed_bytes(source, member),), member)))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def member_chunks(source: ByteSource, member: ZipMember) -> Iterator[bytes]:
    """Yield the content of one member in pieces of at most `PIECE_BYTES`; if the content is wrong, raise after the
    last."""
    return _verified(source, member, _pieces(_packed_pieces(source, member), member))


def _verified(source: ByteSource, member: ZipMember, pieces: Iterator[bytes]) -> Iterator[bytes]:
    crc = done = 0
    errors = (*UNPACK_ERRORS, zstd().ZstdError) if member.method == ZSTANDARD else UNPACK_ERRORS
    while True:
        try:
            piece = next(pieces, None)
        except ColabstageError:
            raise
        except errors as error:
            if isinstance(error, OSError) and error.errno is not None:  # the medium's own error
                raise
            raise damaged(source.label, f"it does not unpack ({error})", member.name) from error
        if piece is None:
            break
        done += len(piece)
        # A member that claims 100 bytes and unpacks to a terabyte ends after one piece.
        if done > member.size:
            break
        # ISA-L's CRC-32 is four times as fast as zlib's: 8 against 32 µs for 100 kB.
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if done != member.size:
        raise damaged(source.label, f"it should hold {member.size:,} bytes but holds {done:,}", member.name)
    if crc != member.crc:
        raise damaged(source.label, "its checksum is wrong", member.name)


def _packed_bytes(source: ByteSource, member: ZipMember) -> bytes:
    """Return the packed bytes of a member. Their place depends on the local header, so both come in one read."""
    wanted = LOCAL.size + member.packed_size
    gap = member.end - member.offset - wanted
    # A name and extra fields of any length follow the fixed part of the local header.
    length = wanted + (gap if gap <= _MAX_GAP_BYTES else _USUAL_NAME_BYTES)
    block = source.pread(length, member.offset)
    start = _content_at(source, member, block)
    if start + member.packed_size <= len(block):
        return block[start : start + member.packed_size]
    data = source.pread(member.packed_size, member.offset + start)
    if len(data) != member.packed_size:
        raise cut_while_read(source.label, member.name)
    return data


def _content_at(source: ByteSource, member: ZipMember, block: bytes) -> int:
    """Return where the content begins, counted from the local header that `block` begins with."""
    if len(block) < LOCAL.size:
        raise cut_while_read(source.label, member.name)
    mark, _, flags, method, _, _, _, packed, size, name_length, extra_length = LOCAL.unpack_from(block)
    start: int = LOCAL.size + name_length + extra_length
    # Sizes are zeros if a descriptor follows the content, all ones if a zip64 field has the number.
    is_same = (
        mark == b"PK\3\4"
        and method == member.method
        and not (flags ^ member.flags) & FLAG_ENCRYPTED
        and packed in (0, 0xFFFFFFFF, member.packed_size)
        and size in (0, 0xFFFFFFFF, member.size)
    )
    if not is_same or member.offset + start + member.packed_size > member.end:
        raise damaged(source.label, "its own header and the archive's directory disagree", member.name)
    return start


def _packed_pieces(source: ByteSource, member: ZipMember) -> Iterator[bytes]:
    head = source.pread(LOCAL.size, member.offset)
    at = member.offset + _content_at(source, member, head)
    end = at + member.packed_size
    most = PIECE_BYTES if member.method == STORED else _PACKED_PIECE_BYTES
    while at < end:
        length = min(most, end - at)
        data = source.pread(length, at)
        if len(data) != length:
            raise cut_while_read(source.label, member.name)
        yield data
        at += length


def _pieces(packed: Iterable[bytes], member: ZipMember) -> Iterator[bytes]:
    if member.method == STORED:
        yield from packed
        return
    if member.method == DEFLATED and member.packed_size <= _ONE_SHOT_BYTES:
        yield igzip_lib.decompress(b"".join(packed), igzip_lib.DECOMP_DEFLATE, 15, member.size + 1)
        return
    parts = iter(packed)
    make: dict[int, Callable[[], Any]] = {
        DEFLATED: lambda: igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE),
        BZIP2: bz2.BZ2Decompressor,
        ZSTANDARD: lambda: zstd().ZstdDecompressor(),
    }
    decompressor = make[member.method]()
    while not decompressor.eof:
        data = next(parts, b"") if decompressor.needs_input else b""
        if not data and decompressor.needs_input:
            raise EOFError("its data end early")  # noqa: EM101
        if piece := decompressor.decompress(data, PIECE_BYTES):
            yield piece


def zstd() -> Any:
    """Return the module that reads Zstandard. Imported late, because few archives are packed with it."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    msg = (
        "Python before 3.14 reads what Zstandard has packed with a package. Install it with: pip install backports.zstd"
    )
    raise MissingDependencyError(msg)
