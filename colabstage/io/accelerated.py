"""Packages that only make work faster: isal and simplejpeg. Where one is missing, as after an installation without
dependencies on a machine without internet, zlib and Pillow do the same, and a warning says so once.

`igzip_lib`, `isal_zlib` and `igzip` have the names of isal's modules that colabstage uses.
"""

from __future__ import annotations

import functools
import multiprocessing
import warnings
import zlib
from types import SimpleNamespace
from typing import Any

# What is slower without each package, and by what it is replaced.
ACCELERATORS = {
    "isal": "archives are unpacked and checked by zlib, at a third of the rate",
    "simplejpeg": "JPEGs are decoded and encoded by Pillow, at about half the rate",
}


_GIVEN_BYTES = 64 * 1024


@functools.cache
def tell_missing(package: str) -> None:
    """Warn that a package is missing; once, and not in each worker process."""
    if multiprocessing.parent_process() is None:
        msg = f"{package} is not installed, so {ACCELERATORS[package]}. For full speed: pip install {package}"
        warnings.warn(msg, UserWarning, stacklevel=3)


@functools.cache
def find_simplejpeg() -> Any:
    """Return the module; `None` where it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        tell_missing("simplejpeg")
        return None
    return simplejpeg


class _Inflater:
    """The part of `isal.igzip_lib.IgzipDecompressor` for raw deflate, done by zlib."""

    def __init__(self, flag: int = 0) -> None:
        self._inflater, self._left, self._full = zlib.decompressobj(-zlib.MAX_WBITS), memoryview(b""), False

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def needs_input(self) -> bool:
        # After a full piece, zlib may still hold output of the input it has read.
        return not (self._left or self._full or self.eof)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return up to `max_length` bytes, or everything that the input so far yields."""
        if data:
            self._left = memoryview(bytes(self._left) + data if self._left else data)
        pieces: list[bytes] = []
        room = max_length
        while room and not self.eof:
            # In small pieces, because zlib copies the rest of the input each time.
            given = self._left[:_GIVEN_BYTES]
            piece = self._inflater.decompress(given, max(0, room))
            self._left = self._left[len(given) - len(self._inflater.unconsumed_tail) :]
            pieces.append(piece)
            room -= len(piece) if room > 0 else 0
            if not self._left and (room < 0 or len(piece) < max_length):
                break
        self._full = not room
        return b"".join(pieces)


def _by_zlib() -> tuple[Any, Any, Any]:
    """Return the replacements of isal's modules."""
    import gzip

    def inflate(data: bytes, _flag: int = 0, _hist_bits: int = 15, bufsize: int = 16384) -> bytes:
        tell_missing("isal")
        return zlib.decompress(data, -zlib.MAX_WBITS, bufsize)

    def decompress(data: bytes, wbits: int = 15, bufsize: int = 16384) -> bytes:
        tell_missing("isal")
        return zlib.decompress(data, wbits, bufsize)

    def inflater(flag: int = 0) -> _Inflater:
        tell_missing("isal")
        return _Inflater(flag)

    def gzip_file(fileobj: Any) -> gzip.GzipFile:
        tell_missing("isal")
        return gzip.GzipFile(fileobj=fileobj, mode="rb")

    lib = SimpleNamespace(
        DECOMP_DEFLATE=0, IgzipDecompressor=inflater, decompress=inflate, IsalError=zlib.error, error=zlib.error
    )
    return (
        lib,
        SimpleNamespace(crc32=zlib.crc32, decompress=decompress, IsalError=zlib.error, error=zlib.error),
        SimpleNamespace(IGzipFile=gzip_file, igzip_lib=lib),
    )


igzip_lib: Any
isal_zlib: Any
igzip: Any
try:
    from isal import igzip, igzip_lib, isal_zlib
except ImportError:
    igzip_lib, isal_zlib, igzip = _by_zlib()
