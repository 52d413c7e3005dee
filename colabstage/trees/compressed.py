"""Compressed streams: one reader over any `ByteSource` for gzip, bzip2, xz and Zstandard, chosen by content.

With every library, a stream that ends early is an error. Python's own readers for bzip2 and xz, and Zstandard's, take
whatever follows a stream for the end of the file, and gunzip does, so a file that is damaged between two of its streams
would pass for complete.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import posixpath
from collections import deque
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from colabstage.errors import ColabstageError, CorruptArchiveError, SourceReadError
from colabstage.io.files import make_folder, pwrite_exactly, typed_write_errors
from colabstage.io.packages import igzip_lib
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_count
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.trees.bytes import (
    COMPRESSED_SUFFIXES,
    HEAD_BYTES,
    ByteSource,
    Compression,
    SourceFile,
    TemporaryBytes,
    base_name,
    compression_of,
)
from colabstage.trees.listing import ArchiveLimits, check_limits
from colabstage.trees.zip_member import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.io.progress import Cancellation

# How much of the compressed file is read at once; small, to follow closely a file that is still being copied here.
_READ_BYTES = 1 << 20
# What a decompressor gets and returns at once: at a stream's end it copies the rest, and more would be new memory.
_FED_BYTES = 1 << 17
_PIECE_BYTES = 4 << 20
# Enough for `zstd --long=30`; only bombs need more.
_ZSTD_WINDOW_LOG = 30
# Enough for a dictionary of a gigabyte; `xz -9` needs 65 MiB.
_XZ_MEMORY_BYTES = (1 << 30) + (1 << 26)
_THREAD_END_S = 1.0
# Pieces that are being made, or wait, while one is used.
_AHEAD = 2


@contextlib.contextmanager
def open_stream(
    source: ByteSource, cancellation: Cancellation | None = None, *, read_bytes: int = _READ_BYTES
) -> Iterator[IO[bytes]]:
    """Yield the unpacked bytes of a compressed source, as a readable stream for the `with` block, in which the
    decompressor's errors become `CorruptArchiveError`; others pass. `read_bytes`: how much of it to read at once."""
    new, damage = _decompressor(compression_of(source.pread(HEAD_BYTES, 0)))
    packed = io.BufferedReader(SourceFile(source, cancellation), read_bytes)
    streams = _Streams(packed, new, min(read_bytes, _FED_BYTES))
    # The caller raises inside the `with` block too, and those errors must pass.
    with packed, io.BufferedReader(streams, _FED_BYTES) as stream:
        try:
            yield stream
        except ColabstageError:
            raise
        except (EOFError, OSError, ValueError, damage) as error:
            # An error of the medium has a number; a decompressor's has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason, otherwise, end = f"is damaged and does not unpack ({error})", "", streams.end
            if end and compression_of(source.pread(HEAD_BYTES, end)) is None:
                reason = (
                    f"goes on after its compressed data, by {format_count(source.size - end, 'bytes')} of another kind"
                )
                base = base_name(source.label)
                otherwise = f' If every copy has them, cut them off: head -c {end} "{base}" > "whole-{base}"'
            elif isinstance(error, EOFError):
                reason = "is truncated: its compressed data end early"
            msg = f"'{source.label}' {reason}. Copy or upload the archive again.{otherwise}"
            raise CorruptArchiveError(msg) from error


def _decompressor(compression: Compression | None) -> tuple[Callable[[], Any], type[Exception]]:
    """Return what makes a decompressor of one stream, and the exception of its own that it raises for damaged data."""
    if compression == "gz":
        # ISA-L's in place of Python's, which is slower: all of a compressed tar comes through it.
        return partial(igzip_lib.IgzipDecompressor, igzip_lib.DECOMP_GZIP), igzip_lib.IsalError
    if compression == "bz2":
        return bz2.BZ2Decompressor, OSError
    if compression == "xz":
        return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), lzma.LZMAError
    options = {zstd().DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return partial(zstd().ZstdDecompressor, options=options), zstd().ZstdError


class _Streams(io.RawIOBase):
    """Compressed streams in sequence, with zeros between and after them; for anything else the decompressor raises.

    `end`: where something begins that follows a complete stream, and of which nothing is unpacked yet; otherwise 0.
    """

    def __init__(self, packed: IO[bytes], new: Callable[[], Any], fed_bytes: int) -> None:
        super().__init__()
        self._packed, self._new, self._fed_bytes = packed, new, fed_bytes
        self._stream = new()
        self.end = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data.lstrip(b"\0")
                while not data and (more := self._packed.read(self._fed_bytes)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self.end = self._packed.tell() - len(data)
                self._stream = self._new()
            elif self._stream.needs_input and not (data := self._packed.read(self._fed_bytes)):
                raise EOFError
            unpacked = self._stream.decompress(data, min(len(buffer), _FED_BYTES))
            if unpacked:
                self.end = 0
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


@contextlib.contextmanager
def pieces_ahead(
    pieces: Generator[bytes], *, stall_timeout_s: float = 600.0, cancellation: Cancellation | None = None
) -> Iterator[Iterator[bytes]]:
    """Yield `pieces`, which a separate thread makes while the caller uses the previous ones, and closes at the end;
    after `stall_timeout_s` seconds without one the source counts as dead."""
    pool = DaemonPool(1, "colabstage-unpack")
    coming: deque[Future[bytes | None]] = deque()

    def come() -> Iterator[bytes]:
        while True:
            while len(coming) <= _AHEAD:
                coming.append(pool.submit(partial(next, pieces, None)))
            try:
                (piece,) = pool.results([coming.popleft()], cancellation=cancellation, stall_timeout_s=stall_timeout_s)
            except TimeoutError as error:
                if error.errno is not None:  # the medium's own error
                    raise
                msg = f"Nothing could be unpacked for {stall_timeout_s:.0f} seconds: the source hangs. Run this again."
                raise SourceReadError(msg) from error
            if piece is None:
                return
            yield piece

    try:
        yield come()
    finally:
        for future in coming:
            future.cancel()
        # The thread may be stuck in a mount's read, which nothing interrupts; the source's own deadline ends that.
        with contextlib.suppress(Exception):
            pool.results([pool.submit(pieces.close)], stall_timeout_s=_THREAD_END_S)
        pool.close(abandon=True)


def unpack_into(
    spool: Path, source: ByteSource, limits: ArchiveLimits, cancellation: Cancellation | None = None
) -> TemporaryBytes:
    """Decompress `source` into a file in the folder `spool`, which is created if needed."""
    # The name is removed once the file is unpacked and open, so that nothing remains however the process ends.
    make_folder(spool)
    path = temp_beside(spool / "unpacked")
    written = 0
    try:
        with (
            path.open("xb", buffering=0) as out,
            pieces_ahead(_unpack_pieces(source, cancellation), cancellation=cancellation) as pieces,
        ):
            for piece in pieces:
                # Each piece is checked before it is written, so that a bomb cannot fill the disk first.
                written += len(piece)
                check_limits(source.label, 0, written, source.size, limits)
                with typed_write_errors(path):
                    pwrite_exactly(out.fileno(), piece, written - len(piece))
        return TemporaryBytes(path, label=source.label)
    finally:
        remove_own(path)


def _unpack_pieces(source: ByteSource, cancellation: Cancellation | None) -> Generator[bytes]:
    """Yield the content in pieces. The reading thread opens and closes the source, because closing waits for reads."""
    with open_stream(source, cancellation) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def inner_name(source: ByteSource, base: str, name: str = "") -> str:
    """Return the name of the file inside a compressed one, which is called `base` in its address and `name` in its
    service: that name without the suffix."""
    compression = compression_of(source.pread(HEAD_BYTES, 0))
    for called in (base, name):
        stem, suffix = posixpath.splitext(called)
        if stem and compression and suffix.lower() in COMPRESSED_SUFFIXES[compression]:
            return stem
    return base or "content"
