"""Compressed streams: one reader over any `ByteSource` for gzip, bzip2, xz and Zstandard, chosen by content.

Whatever the library, a stream that ends early is an error: Python's own readers and Zstandard's return what they have
then, and say nothing. So the streams of bzip2 and xz are joined here, and Zstandard's frames walked (RFC 8878, 3.1.1
and 3.1.2).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
from collections import deque
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from colabstage.errors import ArchiveError, ColabstageError, CorruptArchiveError, NotEnoughSpaceError, SourceReadError
from colabstage.io.files import make_folder
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import format_bytes
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.trees.entries import ArchiveLimits, check_limits
from colabstage.trees.tree import HEAD_BYTES, Compression, SourceFile, TemporaryBytes, compression_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.io.progress import Cancellation
    from colabstage.trees.tree import ByteSource

_MAGIC = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RLE, _RESERVED = 1, 3
_ID_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)


def check_frames(source: ByteSource) -> None:
    """Walk all frames of a Zstandard file.

    Raises:
        EOFError: the last frame is cut.
        ValueError: something else than a frame follows one.
    """
    at = 0
    while at < source.size:
        magic = int.from_bytes(_exactly(source, 4, at), "little")
        if magic in _SKIPPABLE:
            at += 8 + int.from_bytes(_exactly(source, 4, at + 4), "little")
        elif magic == _MAGIC:
            # RFC 8878, 3.1.1: the header says by its first byte how long it is; blocks follow, the last one marked.
            (descriptor,) = _exactly(source, 1, at + 4)
            single = descriptor >> 5 & 1
            # A frame in one segment has no byte for its window, and at least one for its size.
            size_bytes = _SIZE_BYTES[descriptor >> 6] or single
            at += 5 + (1 - single) + _ID_BYTES[descriptor & 3] + size_bytes
            last = 0
            while not last:
                header = int.from_bytes(_exactly(source, 3, at), "little")
                last, kind, size = header & 1, header >> 1 & 3, header >> 3
                if kind == _RESERVED:
                    msg = f"there is no block at byte {at:,}"
                    raise ValueError(msg)
                at += 3 + (1 if kind == _RLE else size)
            at = at + 4 * (descriptor >> 2 & 1)
        else:
            msg = f"no frame begins at byte {at:,}"
            raise ValueError(msg)
    if at > source.size:
        raise EOFError


def _exactly(source: ByteSource, length: int, offset: int) -> bytes:
    data = source.pread(length, offset)
    if len(data) < length:
        raise EOFError
    return data


_Damage = tuple[type[Exception], ...]

# Of the compressed file at a time, so that one that is still being copied here is followed closely.
_READ_BYTES = 1 << 20
# What `zstd --long=30` needs; more than that only bombs ask for.
_ZSTD_WINDOW_BYTES = 1 << 30
# What a dictionary of a gigabyte takes; `xz -9` needs 65 MiB.
_XZ_MEMORY_BYTES = (1 << 30) + (1 << 26)
_THREAD_END_S = 1.0
# Pieces that are made, or wait, while one is used.
_AHEAD = 2


@contextlib.contextmanager
def open_stream(
    source: ByteSource, cancellation: Cancellation | None = None, *, read_bytes: int = _READ_BYTES
) -> Iterator[IO[bytes]]:
    """Give the unpacked bytes of a compressed source, as a readable stream for the `with` block.

    Reading it turns whatever the decompressor complains about into `CorruptArchiveError`. What the source or whoever
    reads raises passes through as it is: an `OSError` with an errno, and every error of colabstage's own. `read_bytes`:
    of the source at a time.

    Raises:
        ArchiveError: the source is not compressed.
        CorruptArchiveError: the stream is truncated or damaged.
    """
    compression = compression_of(source.pread(HEAD_BYTES, 0))
    if compression is None:
        msg = f"'{source.label}' is not compressed with gzip, bzip2, xz or Zstandard."
        raise ArchiveError(msg)
    with io.BufferedReader(SourceFile(source, cancellation), read_bytes) as packed:
        stream, damage = _unpacker(cast("IO[bytes]", packed), compression)
        # Whoever reads raises inside the `with` block too, so what is theirs must pass.
        with stream:
            try:
                yield stream
                # Its decompressor takes the end of the file for the end of the data, wherever that is.
                if compression == "zst" and not stream.read(1):
                    check_frames(source)
            except ColabstageError:
                raise
            except damage as error:
                # The medium's answer has a number; a decompressor's complaint has none.
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise _broken(source, error) from error


def _broken(source: ByteSource, error: Exception) -> CorruptArchiveError:
    if isinstance(error, EOFError):
        reason = "is truncated: its compressed data end early"
    else:
        reason = f"is damaged and does not unpack ({error})"
    return CorruptArchiveError(f"'{source.label}' {reason}. Copy or upload the archive again.")


def _unpacker(packed: IO[bytes], compression: Compression) -> tuple[IO[bytes], _Damage]:
    """Return the decompressing stream, and the exceptions it raises for damaged data; an `OSError` among them has no
    errno."""
    if compression == "gz":
        # ISA-L's reader in place of Python's, which is slower: all of a compressed tar comes through it.
        from colabstage.io.accelerated import igzip

        return igzip.IGzipFile(fileobj=packed), (EOFError, OSError, igzip.igzip_lib.IsalError)
    if compression == "bz2":
        import bz2

        return _joined_streams(packed, bz2.BZ2Decompressor, b"BZh"), (EOFError, OSError, ValueError)
    if compression == "xz":
        import lzma

        def new() -> Any:
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)

        return _joined_streams(packed, new, b"\xfd7zXZ\0"), (EOFError, OSError, ValueError, lzma.LZMAError)
    zstandard: Any = importlib.import_module("zstandard")
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return unpacker.stream_reader(packed, read_across_frames=True), (EOFError, OSError, ValueError, zstandard.ZstdError)


def _joined_streams(packed: IO[bytes], new: Callable[[], Any], magic: bytes) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(_Streams(packed, new, magic), _READ_BYTES))


class _Streams(io.RawIOBase):
    """Compressed streams one after the other, with nothing but zeros between and behind them.

    Python's own readers for bzip2 and xz take whatever follows a stream for the end of the file: a file that was cut
    between two of its streams, or written over, would pass for whole.
    """

    def __init__(self, packed: IO[bytes], new: Callable[[], Any], magic: bytes) -> None:
        super().__init__()
        self._packed = packed
        self._new = new
        self._magic = magic
        self._stream = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        while True:
            data = b""
            if self._stream.eof:
                data = self._next_stream()
                if not data:
                    return 0
                self._stream = self._new()
            elif self._stream.needs_input and not (data := self._packed.read(_READ_BYTES)):
                raise EOFError
            unpacked = self._stream.decompress(data, len(buffer))
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)

    def _next_stream(self) -> bytes:
        """Return what has been read of the next stream, from its beginning; empty when there is none."""
        data = self._stream.unused_data.lstrip(b"\0")
        while len(data) < len(self._magic):
            more = self._packed.read(_READ_BYTES)
            if not more:
                break
            data = (data + more).lstrip(b"\0")
        if data and not data.startswith(self._magic):
            msg = "something else follows its end"
            raise ValueError(msg)
        return bytes(data)


@contextlib.contextmanager
def pieces_ahead(
    pieces: Generator[bytes], *, stall_timeout_s: float = 600.0, cancellation: Cancellation | None = None
) -> Iterator[Iterator[bytes]]:
    """Give pieces that a thread of its own makes while the caller uses those before.

    Args:
        pieces: iterated over by that thread alone until the context ends, and then closed.
        stall_timeout_s: with no piece for so many seconds the source counts as dead.
        cancellation: looked at several times a second while the next piece is waited for.
    """
    pool = DaemonPool(1, "colabstage-unpack")
    coming: deque[Future[bytes | None]] = deque()

    def come() -> Iterator[bytes]:
        while True:
            while len(coming) <= _AHEAD:
                coming.append(pool.submit(partial(next, pieces, None)))
            try:
                (piece,) = pool.results([coming.popleft()], cancellation=cancellation, stall_timeout_s=stall_timeout_s)
            except TimeoutError as error:
                if error.errno is not None:  # the medium's own answer
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
        # The thread may be waiting in a mount's read, which nothing interrupts; the source's own deadline ends that.
        with contextlib.suppress(Exception):
            pool.results([pool.submit(pieces.close)], stall_timeout_s=_THREAD_END_S)
        pool.close(abandon=True)


_SPOOL_BYTES = 4 << 20


def unpack_into(
    spool: Path, source: ByteSource, limits: ArchiveLimits, cancellation: Cancellation | None = None
) -> TemporaryBytes:
    """Decompress `source` into a file in the folder `spool`, which is made if need be.

    Raises:
        CorruptArchiveError: the stream is truncated or damaged.
        UnsafeArchiveError: it unpacks to more than `limits` allow; found while unpacking.
        NotEnoughSpaceError: it does not fit.
        TargetNotWritableError: nothing can be written in `spool`.
        CancelledError: `cancellation` was used.
    """
    # The name goes once the file is unpacked and open, so that nothing is left behind however the process ends.
    make_folder(spool)
    path = temp_beside(spool / "unpacked")
    written = 0
    try:
        with (
            path.open("xb", buffering=0) as out,
            pieces_ahead(_unpack_pieces(source, cancellation), cancellation=cancellation) as pieces,
        ):
            for piece in pieces:
                # Each piece is checked before it is written: a bomb must not fill the disk first.
                written += len(piece)
                check_limits(source.label, 0, written, source.size, limits)
                # An unbuffered write may take less than it is given.
                view = memoryview(piece)
                while view:
                    view = view[out.write(view) :]
        return TemporaryBytes(path, label=source.label)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        msg = (
            f"'{source.label}' does not fit in '{spool}' when unpacked: the disk was full after "
            f"{format_bytes(written)}. Free some space or name a folder on a larger disk."
        )
        raise NotEnoughSpaceError(msg) from error
    finally:
        remove_own(path)


def _unpack_pieces(source: ByteSource, cancellation: Cancellation | None) -> Generator[bytes]:
    """Yield the content in pieces. Opened and closed by the thread that reads: closing waits for a read that hangs."""
    with open_stream(source, cancellation) as stream:
        while piece := stream.read(_SPOOL_BYTES):
            yield piece
