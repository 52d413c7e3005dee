"""Compressed streams: one reader over any `ByteSource` for gzip, bzip2, xz and Zstandard, chosen by content."""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import posixpath
from collections import deque
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from colabstage.errors import ColabstageError, SourceReadError
from colabstage.io.files import make_folder, pwrite_exactly, typed_write_errors
from colabstage.io.packages import igzip
from colabstage.io.pipeline import DaemonPool
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.trees.bytes import (
    COMPRESSED_SUFFIXES,
    HEAD_BYTES,
    ByteSource,
    SourceFile,
    TemporaryBytes,
    compression_of,
    damaged,
    truncated,
)
from colabstage.trees.listing import ArchiveLimits, check_limits
from colabstage.trees.zip_member import UNPACK_ERRORS, zstd

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.io.progress import Cancellation

# How much of the compressed file is read at once; small, to follow closely a file that is still being copied here.
_READ_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20
# Enough for `zstd --long=30`; only bombs need more.
_ZSTD_WINDOW_LOG = 30
_THREAD_END_S = 1.0
# Pieces that are being made, or wait, while one is used.
_AHEAD = 2


@contextlib.contextmanager
def open_stream(
    source: ByteSource, cancellation: Cancellation | None = None, *, read_bytes: int = _READ_BYTES
) -> Iterator[IO[bytes]]:
    """Yield the unpacked bytes of a compressed source, as a readable stream for the `with` block, in which the
    decompressor's errors become `CorruptArchiveError`; others pass. `read_bytes`: how much of it to read at once."""
    compression = compression_of(source.pread(HEAD_BYTES, 0))
    damage: tuple[type[Exception], ...] = UNPACK_ERRORS
    with io.BufferedReader(SourceFile(source, cancellation), read_bytes) as packed:
        stream: Any
        if compression == "gz":
            # ISA-L's in place of Python's, which is slower: all of a compressed tar comes through it.
            stream = igzip.open(packed)
        elif compression == "bz2":
            stream = bz2.BZ2File(packed)
        elif compression == "xz":
            stream = lzma.LZMAFile(packed)  # noqa: SIM115 - closed below
        else:
            damage = (*damage, zstd().ZstdError)
            stream = zstd().open(packed, options={zstd().DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})
        try:
            with stream:
                yield stream
        except ColabstageError:
            raise
        except damage as error:
            # An error of the medium has a number; a decompressor's has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if isinstance(error, EOFError):
                raise truncated(source, "its compressed data end early") from error
            raise damaged(source.label, f"it does not unpack ({error})") from error


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
