"""Arrays in .npy and .npz files, and rows of arrays as sources of samples.

A source may be several arrays one behind the other, or give them in another form than they are stored in.
"""

from __future__ import annotations

import ast
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.retry import RetryPolicy, read_with_retry
from colabstage.layouts.reading import open_member, read_head, stamp_of
from colabstage.layouts.table import FileSlices
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import Content, SampleSource
    from colabstage.trees.tree import FileEntry, Tree


class ConvertedRows:
    """The contents of another source, each brought into another form: byte order, axes, a part of it."""

    def __init__(self, source: SampleSource, convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self._source = source
        self._convert = convert

    def __len__(self) -> int:
        return len(self._source)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the lengths as they are read."""
        return self._source.sizes

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return those of the other source."""
        return self._source.positions

    def name(self, index: int) -> str:
        """Return what the other source calls it."""
        return self._source.name(index)

    def stamp(self, index: int) -> str:
        """Return the stamp of the other source."""
        return self._source.stamp(index)

    def read(self, index: int) -> Content:
        """Return the content, converted."""
        content = self._source.read(index)
        return content if isinstance(content, bytes) else self._convert(content)


class JoinedSources:
    """Several sources one behind the other, each read to its end before the next begins."""

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return those of all parts."""
        return np.concatenate([part.sizes for part in self._parts])

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Return those of each part, moved behind the part before."""
        moved, start = [], 0
        for part in self._parts:
            positions = np.asarray(part.positions, np.int64)
            moved.append(positions + start)
            start = int(moved[-1].max(initial=start)) + 1
        return np.concatenate(moved)

    def name(self, index: int) -> str:
        """Return what its part calls it."""
        part, own = self._find(index)
        return part.name(own)

    def stamp(self, index: int) -> str:
        """Return the stamp that its part has."""
        part, own = self._find(index)
        return part.stamp(own)

    def read(self, index: int) -> Content:
        """Return the content, as its part gives it."""
        part, own = self._find(index)
        return part.read(own)

    def _find(self, index: int) -> tuple[SampleSource, int]:
        place = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[place], index - int(self._ends[place] - len(self._parts[place]))


def join_sources(parts: Sequence[SampleSource]) -> SampleSource:
    """Return one source of several; the one itself where it is alone."""
    return parts[0] if len(parts) == 1 else JoinedSources(parts)


NPY = ".npy"
# A header longer than this is not one that anybody writes; numpy's own limit is 10,000 characters.
_MAX_HEADER_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that has not been read yet."""

    name: str
    """Where it lies: the file, and the key in it."""
    shape: tuple[int, ...]
    """As its rows come out; native byte order. Text has dtype kind "U", "S" or "O"."""
    dtype: np.dtype[Any]
    """As its rows come out; native byte order. Text has dtype kind "U", "S" or "O"."""
    rows: Callable[[], SampleSource]
    """Opens it as a source of its rows, along the first axis."""
    whole: Callable[[], NDArray[Any]]
    """Reads all of it."""
    trouble: str = ""
    """Why it cannot be read at all; "" where it can."""

    @property
    def is_text(self) -> bool:
        """Tell whether it holds words."""
        return self.dtype.kind in "USO"


def read_npy(tree: Tree, entry: FileEntry, name: str) -> StoredArray:
    """Return what a .npy file holds; only its header is read.

    Raises:
        LayoutError: it is no .npy file, or shorter than its header says.
    """
    header = _read_header(tree, entry, name)
    native = header.dtype.newbyteorder("=")

    def rows() -> SampleSource:
        count, size = header.shape[0], header.row_bytes
        starts = header.start + np.arange(count, dtype=np.int64) * size
        file = open_member(tree, entry)
        source = FileSlices(
            file, starts, np.full(count, size, np.int64), stamp=stamp_of(entry), shape=header.shape[1:],
            dtype=header.dtype,
        )  # fmt: skip
        return source if native == header.dtype else ConvertedRows(source, lambda row: row.astype(native))

    def whole() -> NDArray[Any]:
        file = open_member(tree, entry)
        try:
            values: NDArray[Any] = np.empty(int(np.prod(header.shape, dtype=np.int64)), header.dtype)
            view = values.view(np.uint8)
            for start in range(0, len(view), _READ_BYTES):
                part = view[start : start + _READ_BYTES]
                part[:] = np.frombuffer(file.pread(len(part), header.start + start), np.uint8)
        finally:
            file.close()
        return values.astype(native, copy=False).reshape(header.shape, order="F" if header.fortran else "C")

    return StoredArray(name, header.shape, native, rows, whole, header.trouble)


def npz_arrays(tree: Tree, entry: FileEntry) -> list[StoredArray]:
    """Return the arrays of a .npz archive, those that are compressed included.

    Raises:
        LayoutError, ArchiveError: it is none.
    """
    inner = ZipTree(open_member(tree, entry))
    return [
        read_npy(inner, member, f"{entry.name}/{member.name.removesuffix(NPY)}")
        for member in inner.entries
        if member.name.endswith(NPY)
    ]


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    """Of the array."""
    dtype: np.dtype[Any]
    """Of the array, in the file's byte order."""
    fortran: bool
    """Whether columns, and not rows, are contiguous."""
    start: int
    """Where the values begin, in bytes."""

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def trouble(self) -> str:
        if self.dtype.hasobject:
            return (
                "it holds pickled Python objects, which run code when they are loaded and are never loaded here; save "
                "plain numbers, of one shape, instead"
            )
        if self.dtype.names is not None:
            return f"it holds records ({', '.join(self.dtype.names)}); save each of their fields as an array"
        if self.fortran and sum(length > 1 for length in self.shape) > 1:
            return (
                "it is in Fortran order, where the numbers of one sample lie far apart; save it again with "
                "np.save(name, np.ascontiguousarray(array))"
            )
        return ""


def _read_header(tree: Tree, entry: FileEntry, name: str) -> _Header:
    head = read_with_retry(lambda: read_head(tree, entry, _MAX_HEADER_BYTES), entry.name, policy=RetryPolicy())
    if len(head) < 10 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        msg = f"'{name}' is no .npy file of a version known here."
        raise LayoutError(msg)
    wide = head[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", head, 8)
    start = (12 if wide else 10) + length
    if start > len(head):
        msg = f"'{name}' has a header of {length:,} bytes, more than a .npy file has."
        raise LayoutError(msg)
    try:
        found = ast.literal_eval(head[start - length : start].decode("utf-8" if head[6] == 3 else "latin-1").strip())
        dtype = np.lib.format.descr_to_dtype(found["descr"])
        shape = tuple(int(size) for size in found["shape"])
        fortran = bool(found["fortran_order"])
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        msg = f"'{name}' has a header that cannot be read: {error}."
        raise LayoutError(msg) from error
    header = _Header(shape, dtype, fortran, start)
    needed = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not dtype.hasobject and (entry.size < needed or any(size < 0 for size in shape)):
        msg = f"'{name}' has {entry.size:,} bytes; an array of shape {shape} and {dtype} takes {needed:,}. It was cut."
        raise LayoutError(msg)
    return header
