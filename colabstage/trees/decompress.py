"""Compressed streams: one reader over any `ByteSource` for gzip, bzip2, xz and Zstandard, chosen by content."""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import IO, TYPE_CHECKING, Any, cast

from colabstage.errors import ArchiveError, CorruptArchiveError, MissingDependencyError
from colabstage.trees.archive_bytes import SourceFile
from colabstage.trees.contents import HEAD_BYTES, Compression, compression_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.trees.tree import ByteSource

_Damage = tuple[type[Exception], ...]

# Of the compressed file at a time, so that one that is still being copied here is followed closely.
_READ_BYTES = 1 << 20


@contextlib.contextmanager
def open_stream(source: ByteSource) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a compressed source, as a readable stream for the `with` block.

    Reading it turns whatever the decompressor complains about into `CorruptArchiveError`; the medium's own errors
    (an `OSError` with an errno) pass through.

    Raises:
        ArchiveError: the source is not compressed.
        MissingDependencyError: it is Zstandard, and no package that reads that is installed.
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
    return _zstandard(packed)


def _zstandard(packed: IO[bytes]) -> tuple[IO[bytes], _Damage]:
    with contextlib.suppress(ImportError):
        zstandard: Any = importlib.import_module("zstandard")
        stream = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        return stream, (EOFError, OSError, zstandard.ZstdError)
    with contextlib.suppress(ImportError):
        zstd: Any = importlib.import_module("compression.zstd")
        return zstd.ZstdFile(packed), (EOFError, OSError, zstd.ZstdError)
    msg = "Reading a Zstandard archive (.tar.zst) needs the package 'zstandard': pip install zstandard"
    raise MissingDependencyError(msg)
