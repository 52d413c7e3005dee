"""HDF5 files from other tools: links, shapes, types and heaps are checked before HDF5 follows them.

HDF5 follows links and references unchecked, and responds to damage with any of several errors, a crash or an endless
loop. What it would follow is checked here first; what it raises is translated here.
"""

from __future__ import annotations

import functools
import math
import struct
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import ColabstageError, DamagedPackError, PackFormatError
from colabstage.io.files import translate_read_error
from colabstage.io.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A file of a few bytes may claim a dataset of any length.
_FEW = 1 << 27
_MOST_ELSEWHERE = 1 << 40
_MOST_PACKED = 2000
# A heap begins with its signature, version 1 and three zeros, then its length and its objects. Each object has a
# header: index, references, reserved, length.
_HEAP = b"GCOL\x01\0\0\0"
_HEAP_HEAD_BYTES = 16
_OBJECT_HEAD = struct.Struct("<HHIQ")
# HDF5 keeps metadata at both ends of a file, except in files with very many datasets.
_LOOKED_BYTES = 1024 * 1024
# How many rows' lengths are read for an estimate.
_PROBED = 128


def open_with_any_locking(path: Path, *, allow_external: bool = False) -> Any:
    """Open a file with the default locking; if that is refused, without.

    Other files that it leads to are read if they are in its folder or below; with `allow_external`, anywhere.
    """
    # Imported late: only code that opens a file needs h5py.
    from colabstage.h5.confined import ConfinedFile, Reach, with_any_locking

    reach = Reach(path, str(path), anywhere=allow_external)
    return with_any_locking(functools.partial(ConfinedFile, path, reach))


def open_alone(file: Any, label: str) -> Any:
    """Open an object that holds the bytes of an HDF5 file, which may lead to no other file."""
    from colabstage.h5.confined import ConfinedFile, Reach

    return ConfinedFile(file, Reach(None, label))


def follow(file: Any, name: str, path: Path) -> Any:
    """Return what `name` leads to in an open `h5py.File`."""
    import h5py

    try:
        return file[name]
    except (KeyError, OSError) as error:
        link = file.get(name, getlink=True)
        # A hard link points into the same file, so this means damage, not a missing file.
        if isinstance(link, h5py.HardLink):
            raise
        where = f"'{link.path}' in '{link.filename}'" if isinstance(link, h5py.ExternalLink) else f"'{link.path}'"
        msg = (
            f"{name} in '{path}' is a link to {where}, which cannot be opened ({error}). Put what it leads to where "
            "the link says, or copy all of it into one file."
        )
        raise PackFormatError(msg) from error


def check_type(dataset: Any, name: str, path: Path) -> None:
    """Make sure that numpy has a dtype for an open dataset's values."""
    from h5py import h5t

    try:
        _ = dataset.dtype
    except (TypeError, ValueError) as error:
        kinds = {h5t.TIME: "times", h5t.FLOAT: "floats", h5t.INTEGER: "whole numbers", h5t.BITFIELD: "bits"}
        kind = kinds.get(dataset.id.get_type().get_class())
        # For other type classes, an unusual type cannot be told from a damaged one.
        if kind is None:
            raise
        msg = (
            f"{name} in '{path}' holds {kind} of {8 * dataset.id.get_type().get_size()} bits in a form that numpy does "
            f"not have ({error}); expected numbers. Store them as numbers of 8 to 64 bits."
        )
        raise PackFormatError(msg) from error


def check_extent(dataset: Any, name: str, path: Path) -> None:
    """Make sure that a very large open dataset has really been written: reading it takes memory."""
    shape = dataset.shape or ()
    # Neither many rows nor long ones.
    if max(math.prod(shape[:1]), math.prod(shape[1:])) <= _FEW:
        return
    # Virtual datasets have no bytes here; no filter compresses more than this.
    stored = dataset.id.get_storage_size()
    held = _MOST_ELSEWHERE if dataset.is_virtual else _MOST_PACKED * stored
    if math.prod(shape) * dataset.dtype.itemsize > held:
        msg = (
            f"{name} in '{path}' claims to be of the shape {shape}, which was not written: it has "
            f"{format_bytes(stored)} in the file. Write it first, or copy what was written into another file."
        )
        raise PackFormatError(msg)


def home_of(dataset: Any, path: Path) -> Path | None:
    """Return the file that stores an open dataset if a link from `path` led there; `None` if it is `path` itself."""
    # Bytes without a path lead to no other file.
    if dataset.file.driver == "fileobj":
        return None
    home = Path(dataset.file.filename).absolute()
    return None if home == path or home.samefile(path) else home


def check_heaps(path: Path | str, file: Any = None) -> None:
    """Check the heaps at the file's two ends for lengths that make HDF5 loop for ever. Takes a few milliseconds.
    `file`: an object that holds its bytes, if it has no path."""
    # HDF5 walks objects by their lengths and checks none of them: a length of 0, or near 2**64, is an endless loop
    # inside the library, which nothing can end. Of 4,000 files with scrambled bytes, 13 hung, all of them here.
    with open(path, "rb") if file is None else nullcontext(file) as handle:
        size = handle.seek(0, 2)
        for start in sorted({0, max(0, size - _LOOKED_BYTES)}):
            handle.seek(start)
            data = handle.read(_LOOKED_BYTES)
            place = data.find(_HEAP)
            while place >= 0:
                if not _is_sound(data, place):
                    msg = (
                        f"'{path}' is damaged at byte {start + place:,}: HDF5 would search its strings for ever. "
                        "Stage or copy it again."
                    )
                    raise DamagedPackError(msg)
                place = data.find(_HEAP, place + 1)


def _is_sound(data: bytes, place: int) -> bool:
    """Tell whether the objects of the heap at `place` follow each other up to its end, or to the end of `data`."""
    # The window cuts it off, not damage; samples may also hold these bytes by chance.
    if place + _HEAP_HEAD_BYTES > len(data):
        return True
    end = place + int.from_bytes(data[place + 8 : place + 16], "little")
    position, last = place + _HEAP_HEAD_BYTES, min(end, len(data)) - _OBJECT_HEAD.size
    while position <= last:
        number, _, _, length = _OBJECT_HEAD.unpack_from(data, position)
        # Objects are padded to 8 bytes. The length of free space includes its header; an object's does not.
        step = _OBJECT_HEAD.size + (length + 7) // 8 * 8 if number else length
        # Zero repeats this object for ever; a length beyond the end makes HDF5 read whatever follows.
        if not _OBJECT_HEAD.size <= step <= end - position:
            return False
        position += step
    return True


@contextmanager
def reading_contents(path: Path) -> Iterator[None]:
    """Translate every error that h5py raises for damaged bytes into one that says that the file is damaged."""
    try:
        yield
    except ColabstageError:
        raise
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise translate_read_error(error, str(path), 1) from error
        msg = (
            f"'{path}' is an HDF5 file whose table of contents is damaged ({error}). "
            "Stage or copy it again; what it was made from is untouched."
        )
        raise DamagedPackError(msg) from error


def unwritten_part(dataset: Any) -> str:
    """Return how many chunks or values of an open dataset were never written; empty for none."""
    unit, count = "values", int(dataset.size)
    there = count if dataset.id.get_storage_size() else 0
    if dataset.chunks:
        unit, there = "chunks", dataset.id.get_num_chunks()
        count = math.prod(-(-length // part) for length, part in zip(dataset.shape, dataset.chunks, strict=True))
    elif dataset.is_virtual:
        there, plan = count, dataset.id.get_create_plist()
        # A source without an end has no number of values.
        with suppress(RuntimeError):
            there = sum(plan.get_virtual_vspace(one).get_select_npoints() for one in range(plan.get_virtual_count()))
    return "" if there >= count else f"{count - there:,} of the {count:,} {unit}"


def ragged_kind(dataset: Any) -> Literal["ragged", "texts"] | None:
    """Return what each row of an open `h5py.Dataset` is: any number of values, or a string; `None` for neither."""
    from h5py import check_string_dtype

    if ragged_trouble(dataset) != "":
        return None
    return "ragged" if check_string_dtype(dataset.dtype) is None else "texts"


def element_dtype(dataset: Any) -> np.dtype[Any]:
    """Return the dtype of one value of a variable-length row, in native byte order; for strings, their bytes' dtype."""
    from h5py import check_vlen_dtype

    # `str` drops what h5py attaches to the dtype of an enumeration.
    base = check_vlen_dtype(dataset.dtype)
    return np.dtype(np.uint8) if base is None or base is str or base is bytes else np.dtype(base.str)


def ragged_trouble(dataset: Any) -> str | None:
    """Say in a sentence why rows of variable length cannot be read: "" if they can, `None` if rows are fixed."""
    from h5py import check_string_dtype, check_vlen_dtype, h5t

    is_text, base = check_string_dtype(dataset.dtype) is not None, check_vlen_dtype(dataset.dtype)
    if not is_text and base is None:
        return None
    if len(dataset.shape) != 1:
        what = "texts" if is_text else "lists of values"
        return f"Each row is an array of {what}, {dataset.shape[1:]}; expected one in each row."
    if is_text:
        return ""
    if not isinstance(base, np.dtype) or base.kind not in "biufc":
        names, is_array = getattr(base, "names", None), getattr(base, "subdtype", None)
        nested = "arrays" if is_array else "rows of variable length again, or strings"
        kind = f"compounds of {', '.join(names)}" if names else nested
        return f"The values inside its rows are {kind}; expected numbers."
    stored, native = dataset.id.get_type().get_super(), h5t.py_create(np.dtype(base.str))
    same = stored.get_size() == base.itemsize if base.kind in "bc" else stored.equal(native)
    same = same or (stored.get_class() == h5t.ENUM and stored.get_super().equal(native))
    if base.isnative and same:
        return ""
    # h5py 3.16 returns the bytes of such values as stored, but labels them as native.
    return (
        "The values inside its rows are stored in another form than this machine's, perhaps in the other byte order, "
        "and h5py returns wrong numbers for them. Write them as native numbers."
    )


def estimate_bytes(dataset: Any) -> int:
    """Estimate the bytes of all rows' values, from the mean of a few; exact for strings of one length."""
    count = int(dataset.shape[0])
    if dataset.dtype.kind == "S":
        return count * int(dataset.dtype.itemsize)
    if not count:
        return 0
    rows = np.unique(np.linspace(0, count - 1, min(_PROBED, count)).astype(np.intp))
    found: Sequence[Any] = dataset[rows].tolist()
    mean = sum(len(row) * getattr(row, "itemsize", 1) for row in found) / len(rows)
    # No value is stored twice, so there cannot be more bytes than the file has.
    return min(int(mean * count), int(dataset.file.id.get_filesize()))
