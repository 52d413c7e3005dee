"""Compressed streams: one reader over any `ByteSource` for gzip, bzip2, xz and Zstandard, chosen by content."""

from __future__ import annotations

import contextlib
import importlib
import io
import queue
import threading
from typing import IO, TYPE_CHECKING, Any, Self, cast

from colabstage.errors import ArchiveError, CorruptArchiveError, SourceReadError
from colabstage.trees.archive_bytes import SourceFile
from colabstage.trees.contents import HEAD_BYTES, Compression, compression_of
from colabstage.trees.zstd_frames import check_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from colabstage.trees.tree import ByteSource

_Damage = tuple[type[Exception], ...]

# Of the compressed file at a time, so that one that is still being copied here is followed closely.
_READ_BYTES = 1 << 20
# What `zstd --long=30` needs; more than that only bombs ask for.
_ZSTD_WINDOW_BYTES = 1 << 30
_THREAD_END_S = 5.0
_LOOK_S = 0.1


@contextlib.contextmanager
def open_stream(source: ByteSource) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a compressed source, as a readable stream for the `with` block.

    Reading it turns whatever the decompressor complains about into `CorruptArchiveError`; the medium's own errors
    (an `OSError` with an errno) pass through.

    Raises:
        ArchiveError: the source is not compressed.
        CorruptArchiveError: the stream is truncated or damaged.
    """
    compression = compression_of(source.pread(HEAD_BYTES, 0))
    if compression is None:
        msg = f"'{source.label}' is not compressed with gzip, bzip2, xz or Zstandard."
        raise ArchiveError(msg)
    with io.BufferedReader(SourceFile(source), _READ_BYTES) as packed:
        stream, damage = _unpacker(cast("IO[bytes]", packed), compression)
        with stream:
            try:
                yield stream
                # Its decompressor takes the end of the file for the end of the data, wherever that is.
                if compression == "zst" and not stream.read(1):
                    check_frames(source)
            except CorruptArchiveError:
                raise
            except damage as error:
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
    """The decompressing stream, and the exceptions it raises for damaged data; an `OSError` among them has no errno."""
    if compression == "gz":
        igzip: Any = importlib.import_module("isal.igzip")
        return igzip.IGzipFile(fileobj=packed), (EOFError, OSError, igzip.igzip_lib.IsalError)
    if compression == "bz2":
        import bz2

        return bz2.BZ2File(packed), (EOFError, OSError)
    if compression == "xz":
        import lzma

        return lzma.LZMAFile(packed), (EOFError, OSError, lzma.LZMAError)
    zstandard: Any = importlib.import_module("zstandard")
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return unpacker.stream_reader(packed, read_across_frames=True), (EOFError, OSError, ValueError, zstandard.ZstdError)


class ReadAhead:
    """Pieces made by a thread of its own while the caller uses those before; a context manager and an iterator.

    Args:
        pieces: iterated over by that thread alone until the context ends.
        stall_timeout_s: with no piece for so many seconds the source counts as dead.
        ahead: pieces that wait at the most.
    """

    def __init__(self, pieces: Iterable[bytes], *, stall_timeout_s: float = 600.0, ahead: int = 2) -> None:
        self._source = pieces
        self._stall_timeout_s = stall_timeout_s
        self._pieces: queue.Queue[bytes | BaseException | None] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="colabstage-unpack", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        # It may be waiting in a mount's read, which nothing interrupts; the source's own deadline ends that.
        self._thread.join(timeout=_THREAD_END_S)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._next()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def _next(self) -> bytes | BaseException | None:
        try:
            return self._pieces.get(timeout=self._stall_timeout_s)
        except queue.Empty:
            msg = (
                f"Nothing could be unpacked for {self._stall_timeout_s:.0f} seconds: the source hangs. Run this again."
            )
            raise SourceReadError(msg) from None

    def _run(self) -> None:
        try:
            for piece in self._source:
                self._put(piece)
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, which raises it
            self._put(error)

    def _put(self, piece: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._pieces.put(piece, timeout=_LOOK_S)
                return
