"""HDF5 files from other tools: what is not where a link says, was never written, or is of a type that numpy lacks.

What HDF5 raises for damage, which may be any of several errors, is translated here.
"""

from __future__ import annotations

import functools
import math
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import ColabstageError, DamagedPackError, PackFormatError
from colabstage.io.files import translate_read_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How many rows' lengths are read for an estimate.
_PROBED = 128


def open_with_any_locking(path: Path, *, allow_external: bool = False) -> Any:
    """Open a file with the default locking; if that is refused, without.

    Other files that it leads to are read with `allow_external`.
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
        # A hard link points into the same file, so this means damage, not a missing file.
        if isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise
        msg = (
            f"{name} in '{path}' is a link to what cannot be opened ({error}). Put it where the link says, or copy all "
            "of it into one file."
        )
        raise PackFormatError(msg) from error


def home_of(dataset: Any, path: Path) -> Path | None:
    """Return the file that stores an open dataset if a link from `path` led there; `None` if it is `path` itself."""
    # Bytes without a path lead to no other file.
    if dataset.file.driver == "fileobj":
        return None
    home = Path(dataset.file.filename).absolute()
    return None if home == path or home.samefile(path) else home


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
            f"'{path}' is an HDF5 file that cannot be read: its table of contents is damaged, or it has values of a "
            f"type that numpy has not ({error}). Stage or copy it again; what it was made from is untouched."
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
    is_plain = is_text or (isinstance(base, np.dtype) and base.kind in "biufc")
    if len(dataset.shape) != 1 or not is_plain:
        return "Each row may be one text, or any number of plain numbers."
    if is_text:
        return ""
    stored, native = dataset.id.get_type().get_super(), h5t.py_create(np.dtype(base.str))
    same = stored.get_size() == base.itemsize if base.kind in "bc" else stored.equal(native)
    same = same or (stored.get_class() == h5t.ENUM and stored.get_super().equal(native))
    if base.isnative and same:
        return ""
    # h5py 3.16 returns the bytes of such values as stored, but labels them as native.
    return "h5py returns wrong numbers for values in another byte order inside such rows. Write them as native numbers."


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
