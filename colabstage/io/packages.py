"""Other packages: which are installed, and how they are imported.

Imports run to their end: Ctrl-C and a notebook's stop button are delivered after them. Torch, TensorFlow and numpy
cannot be imported again in a process where their first import was cut short.

Some only make work faster: isal and simplejpeg. Where one is missing, as after an installation without dependencies,
zlib and Pillow do the same, and a warning says so once. `igzip`, `igzip_lib` and `isal_zlib` have the names of isal's
modules that colabstage uses.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import signal
import sys
import threading
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from colabstage.errors import MissingDependencyError, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoints

# What each is for, and what does it otherwise.
ACCELERATORS = {
    "isal": "archives are unpacked and checked by zlib, at a third of the rate",
    "simplejpeg": "JPEGs are decoded and encoded by Pillow, at about half the rate",
}
_untold = dict(ACCELERATORS)


def added_by_packages(group: str) -> EntryPoints:
    """Return the entry points of a group, for which Python reads a file of every installed package: kept until a folder
    of the import path changes, as it does when a package is installed."""
    folders = [Path(folder) for folder in sys.path]
    return _read(group, tuple((one, one.stat().st_mtime_ns) for one in folders if one.exists()))


@functools.cache
def installed_version(package: str) -> str:
    """Return the version of a package as first seen, as its modules stay; "" if it is missing."""
    # Imported here and below: it takes longer than to look at what is staged.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@functools.lru_cache(maxsize=8)
def _read(group: str, _state: tuple[tuple[Path, int], ...]) -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=group)


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Deliver an interrupt that comes during the block, which only imports, at its end.

    Interrupts reach the main thread alone, and only where Python handles them; elsewhere this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *details: came.append(details))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])


def refuse_import(package: str, user: str, error: Exception) -> NoReturn:
    """Say what to do about a package that cannot be imported, and that something needs, as "make_loader needs"."""
    msg = (
        f"{user} {package}. Install it with: pip install {package}. Python says: {said_by(error)}; if it is installed, "
        "restart the runtime (the process)."
    )
    raise MissingDependencyError(msg) from error


def tell_missing(package: str) -> None:
    """Warn that a package is missing; once, however many threads miss it together, and not in each worker process."""
    import multiprocessing

    if _untold.pop(package, "") and multiprocessing.parent_process() is None:
        msg = f"{package} is not installed, so {ACCELERATORS[package]}. For full speed: pip install {package}"
        warnings.warn(msg, UserWarning, stacklevel=3)


@functools.cache
def find_simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        tell_missing("simplejpeg")
        return None
    return simplejpeg


class _Inflater:
    """`isal.igzip_lib.IgzipDecompressor` of a Deflate stream, by zlib."""

    def __init__(self, _flag: int) -> None:
        self._inflater, self._full = zlib.decompressobj(-zlib.MAX_WBITS), False

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def needs_input(self) -> bool:
        # After a full piece zlib may hold more of what it has read already.
        return not (self._inflater.unconsumed_tail or self._full or self.eof)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return up to `max_length` bytes, or all that there are in what was given so far."""
        piece = self._inflater.decompress(self._inflater.unconsumed_tail + data, max(0, max_length))
        self._full = len(piece) == max_length
        return piece


def _by_zlib() -> tuple[Any, Any, Any]:
    def telling(call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*arguments: Any, **options: Any) -> Any:
            tell_missing("isal")
            return call(*arguments, **options)

        return told

    def inflate(data: bytes, _flag: int = 0, _hist_bits: int = 15, bufsize: int = 16384) -> bytes:
        return zlib.decompress(data, -zlib.MAX_WBITS, bufsize)

    errors = {"IsalError": zlib.error, "error": zlib.error}
    lib = SimpleNamespace(IgzipDecompressor=telling(_Inflater), decompress=telling(inflate), DECOMP_DEFLATE=0, **errors)
    checks = SimpleNamespace(crc32=zlib.crc32, decompress=telling(zlib.decompress), **errors)
    return SimpleNamespace(open=telling(gzip.open)), lib, checks


igzip: Any
igzip_lib: Any
isal_zlib: Any
try:
    from isal import igzip, igzip_lib, isal_zlib
except ImportError:
    igzip, igzip_lib, isal_zlib = _by_zlib()
