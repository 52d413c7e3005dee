"""Arrays that lie in a tree, as .npy files, in .npz archives, in HDF5 files: what they are, before any is read."""

from __future__ import annotations

import ast
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.arrays.row_sources import ConvertedRows
from colabstage.layouts.members import open_member, read_head, stamp_of
from colabstage.layouts.sources import FileSlices
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.layouts.sources import SampleSource
    from colabstage.trees.tree import FileEntry, Tree

NPY = ".npy"
# A header longer than this is not one that anybody writes; numpy's own limit is 10,000 characters.
_MAX_HEADER_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that has not been read yet.

    `name`: where it lies: the file, and the key in it.
    `shape`, `dtype`: as its rows come out; native byte order. Text has dtype kind "U", "S" or "O".
    `rows`: opens it as a source of its rows, along the first axis.
    `whole`: reads all of it.
    `trouble`: why it cannot be read at all; "" where it can.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[], SampleSource]
    whole: Callable[[], NDArray[Any]]
    trouble: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it holds words."""
        return self.dtype.kind in "USO"


def read_npy(tree: Tree, entry: FileEntry, name: str) -> StoredArray:
    """What a .npy file holds; only its header is read.

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
    """The arrays of a .npz archive, those that are compressed included.

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
    dtype: np.dtype[Any]
    fortran: bool
    start: int

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
