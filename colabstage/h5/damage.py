"""Finding out that a file is damaged where HDF5 itself would answer in no agreed way, or not at all."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from colabstage.errors import ColabstageError, DamagedPackError
from colabstage.retry import translate_read_error
from colabstage.trees.hdf5 import HEAP, HEAP_HEAD_BYTES, OBJECT_HEAD, heap_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What HDF5 writes besides samples lies at a file's two ends, up to files with very many datasets.
_LOOKED_BYTES = 1024 * 1024


def check_heaps(path: Path) -> None:
    """Look through the heaps at the file's two ends for what makes HDF5 search for ever.

    HDF5 goes from object to object by their lengths, and checks none: one of 0 bytes, or of nearly 2**64, is an endless
    loop inside the library, which no signal and no other thread can end. Of 4,000 files with scrambled bytes 13 hung
    when they were opened, all of them here. Takes a few milliseconds at most.

    Raises:
        DamagedPackError: there is such an object.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as handle:
        size = handle.seek(0, 2)
        for start in sorted({0, max(0, size - _LOOKED_BYTES)}):
            handle.seek(start)
            data = handle.read(_LOOKED_BYTES)
            place = data.find(HEAP)
            while place >= 0:
                if not _is_sound(data, place):
                    msg = (
                        f"'{path}' is damaged at byte {start + place:,}, where HDF5 would search its texts for ever. "
                        "Stage or copy it again."
                    )
                    raise DamagedPackError(msg)
                place = data.find(HEAP, place + 1)


def _is_sound(data: bytes, place: int) -> bool:
    """Whether the objects of the heap at `place` follow each other up to its end, or to the end of `data`."""
    if place + HEAP_HEAD_BYTES > len(data):
        return True
    length = int.from_bytes(data[place + 8 : place + 16], "little")
    try:
        heap_lengths(functools.partial(OBJECT_HEAD.unpack_from, data), place, length, len(data))
    except ValueError:
        return False
    return True


@contextmanager
def reading_contents(path: Path) -> Iterator[None]:
    """Say it as a damaged file when h5py answers in any of the ways it has for bytes that are not what they were.

    Raises:
        DamagedPackError: in place of what h5py raised.
        SourceReadError, DriveDisconnectedError: the disk or mount refuses to read it.
    """
    try:
        yield
    except ColabstageError:
        raise
    except OSError as error:
        raise (_damaged(path, error) if error.errno is None else translate_read_error(error, str(path), 1)) from error
    except (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DamagedPackError:
    return DamagedPackError(
        f"'{path}' is an HDF5 file whose table of contents is damaged ({error}). "
        "Stage or copy it again; what it was made from is untouched."
    )
