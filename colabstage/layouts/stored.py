"""Arrays in .npy, .npz and HDF5 files that somebody else wrote; only their headers are read until they are packed.

MATLAB's .mat 7.3 are HDF5 files.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import math
import struct
import threading
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, PackFormatError
from colabstage.h5.schema import FORMAT_ATTRIBUTE
from colabstage.h5.untrusted import (
    check_extent,
    check_type,
    follow,
    home_of,
    open_alone,
    open_with_any_locking,
)
from colabstage.io.files import read_with_retry
from colabstage.layouts.reading import open_member, read_head
from colabstage.layouts.samples import map_samples, numbered_samples, rows_of_array, rows_of_file, stamp_of
from colabstage.layouts.table import BrokenDatasetError
from colabstage.trees.bytes import SourceFile
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from colabstage.layouts.samples import SampleSource
    from colabstage.trees.listing import FileEntry, Tree


NPY = ".npy"
# A header longer than this is not one that anybody writes; numpy's own limit is 10,000 characters.
MAX_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that has not been read yet."""

    name: str
    """Where it lies: the file, and the key in it."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As its rows come out; native byte order. Text has dtype kind "U", "S" or "O"."""
    rows: Callable[[], SampleSource]
    """Opens it as a source of its rows, along the first axis."""
    whole: Callable[[], NDArray[Any]]
    trouble: str = ""
    """Why it cannot be read at all; "" where it can."""

    @property
    def is_text(self) -> bool:
        """Tell whether it holds words."""
        return self.dtype.kind in "USO"

    @classmethod
    def in_memory(cls, name: str, values: NDArray[Any], stamp: str) -> StoredArray:
        """Return an array that was read from a file with such a stamp."""
        return cls(name, values.shape, values.dtype, lambda: rows_of_array(values, name, stamp), lambda: values)


def read_npy(tree: Tree, entry: FileEntry, name: str) -> StoredArray:
    """Return what a .npy file holds; only its header is read."""
    header = _read_header(tree, entry, name)
    # What is packed has this machine's order; an array of another machine is turned row by row.
    native = header.dtype.newbyteorder("=")

    def rows() -> SampleSource:
        # The numbers of one row lie far apart in columns.
        if header.fortran and sum(length > 1 for length in header.shape) > 1:
            return rows_of_array(whole(), name, stamp_of(entry))
        file, shape = open_member(tree, entry), header.shape
        return rows_of_file(file, header.start, shape[0], shape[1:], header.dtype, stamp=stamp_of(entry))

    def whole() -> NDArray[Any]:
        with closing(open_member(tree, entry)) as file:
            values: NDArray[Any] = np.load(io.BufferedReader(SourceFile(file)), allow_pickle=False)
        return values.astype(native, copy=False)

    return StoredArray(name, header.shape, native, rows, whole, header.trouble)


def npz_arrays(tree: Tree, entry: FileEntry) -> list[StoredArray]:
    """Return the arrays of a .npz archive, those that are compressed included."""
    # An .npz is a zip of .npy files.
    inner = ZipTree(open_member(tree, entry))
    return [
        read_npy(inner, member, f"{entry.name}/{member.name.removesuffix(NPY)}")
        for member in inner.entries
        if member.name.endswith(NPY)
    ]


class NpyHeader(NamedTuple):
    """What a .npy file says of its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In the file's byte order."""
    fortran: bool
    """Whether columns, and not rows, are contiguous."""
    start: int
    """Where the values begin, in bytes."""

    @property
    def trouble(self) -> str:
        if self.dtype.hasobject:
            return (
                "it holds pickled Python objects, which run code when they are loaded and are never loaded here; save "
                "plain numbers, of one shape, instead"
            )
        if self.dtype.names is not None:
            return f"it holds records ({', '.join(self.dtype.names)}); save each of their fields as an array"
        return ""


def npy_header(head: bytes) -> NpyHeader:
    """Return what the first bytes of a .npy file say."""
    # By its content: what is called .npy may be anything.
    if len(head) < 10 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        msg = "is not a .npy file of a version known here"
        raise ValueError(msg)
    wide = head[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", head, 8)
    start = (12 if wide else 10) + length
    if start > len(head):
        msg = f"has a header of {length:,} bytes, more than a .npy file has"
        raise ValueError(msg)
    try:
        text = head[start - length : start].decode("utf-8" if head[6] == 3 else "latin-1")
        return NpyHeader(*_header_facts(text.strip()), start)
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        msg = f"has a header that cannot be read: {error}"
        raise ValueError(msg) from error


_parsing = threading.Lock()


# The files of a dataset mostly have one header, and Python's parser is best left alone while threads work: in 3.11 it
# counts its depth in one place for all of them, and now and then fails with a SystemError when two parse at once.
@functools.lru_cache(maxsize=64)
def _header_facts(text: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    with _parsing:
        # Evaluated as a literal, never as code: the header comes with the data.
        found = ast.literal_eval(text)
    dtype = np.lib.format.descr_to_dtype(found["descr"])
    return tuple(int(size) for size in found["shape"]), dtype, bool(found["fortran_order"])


def _read_header(tree: Tree, entry: FileEntry, name: str) -> NpyHeader:
    head = read_with_retry(lambda: read_head(tree, entry, MAX_HEADER_BYTES), entry.name)
    try:
        header = npy_header(head)
    except ValueError as error:
        msg = f"'{name}' {error}."
        raise LayoutError(msg) from error
    shape, dtype, _, start = header
    # As Python's own numbers: a header may name sizes whose product passes 64 bits and comes back small.
    needed = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not dtype.hasobject and (entry.size < needed or any(size < 0 for size in shape)):
        msg = f"'{name}' is truncated: it has {entry.size:,} bytes; shape {shape} and {dtype} take {needed:,}."
        raise LayoutError(msg)
    return header


# Rows are read in blocks of about so much, or of a chunk where that is more, up to the second bound.
_BLOCK_BYTES = 4 * 1024 * 1024
_MAX_BLOCK_BYTES = 128 * 1024 * 1024
# Readers are a few rows apart, so two blocks would do.
_BLOCKS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Hdf5File:
    """The datasets of one HDF5 file."""

    tree: Tree
    entry: FileEntry

    def arrays(self, *, takes_packs: bool) -> list[StoredArray]:
        """Return every dataset of one dimension or more; MATLAB's with axes as MATLAB shows them, samples first.

        Soft and external links are followed, to what no other name has led to.
        """
        file = self._open()
        if FORMAT_ATTRIBUTE in file.attrs and not takes_packs:
            file.close()
            raise self._made_here()
        found: list[StoredArray] = []
        try:
            for key, node in _datasets(file, self.entry.name, alone=self.tree.path_of(self.entry) is None):
                name = f"{self.entry.name}/{key}"
                if isinstance(node, PackFormatError):
                    found.append(_unreadable(name, str(node).rstrip(".")))
                elif node.shape:
                    found.append(self._stored(file, node, name))
        except (OSError, RuntimeError, KeyError) as error:
            msg = f"'{self.entry.name}' is a damaged HDF5 file: {error}."
            raise LayoutError(msg) from error
        return found

    def _made_here(self) -> BrokenDatasetError:
        """Return the error for a pack: as arrays its samples would lose their names, and those of files their form."""
        path = self.tree.path_of(self.entry)
        place = str(path) if path is not None else self.tree.label if self.tree.kind == "file" else "PATH"
        return BrokenDatasetError(
            f"'{self.entry.name}' is a pack that colabstage made, so it needs no staging. Open it with "
            f"dataset_h5({place!r}); from a slow disk or an address copy it first, fetch_files({place!r}, 'data.h5')."
        )

    def _open(self) -> Any:
        try:
            path = self.tree.path_of(self.entry)
            if path is not None:
                # The file may be open in this process already, and HDF5 wants the same choice of locking then.
                return open_with_any_locking(Path(path))
            return open_alone(SourceFile(open_member(self.tree, self.entry)), self.entry.name)
        except OSError as error:
            old = " A .mat file has to be saved with '-v7.3'." if self.entry.name.lower().endswith(".mat") else ""
            msg = f"'{self.entry.name}' cannot be opened as an HDF5 file: {error}.{old}"
            raise LayoutError(msg) from error

    def _stored(self, file: Any, dataset: Any, name: str) -> StoredArray:
        import h5py

        text = h5py.check_string_dtype(dataset.dtype)
        if text is not None:
            return StoredArray(
                name,
                dataset.shape,
                np.dtype(object),
                lambda: self._rows(file, dataset, name),
                lambda: self._text(dataset),
            )
        # MATLAB counts axes from the other end: what it shows as (height, width, channels, N) lies as (N, c, w, h)
        # here.
        matlab = "MATLAB_class" in dataset.attrs and dataset.ndim > 1
        shape = dataset.shape
        if matlab:
            shape = shape[::-1] if dataset.ndim == 2 else (shape[0], *shape[:0:-1])
        native = dataset.dtype.newbyteorder("=")
        trouble = "" if dataset.dtype.kind in "biuf" else _trouble(dataset)

        def rows() -> SampleSource:
            source = self._rows(file, dataset, name, along_last=matlab and dataset.ndim == 2)
            if matlab and dataset.ndim > 2:
                return map_samples(source, lambda row: row.T.astype(native, copy=False))
            return source if native == dataset.dtype else map_samples(source, lambda row: row.astype(native))

        def whole() -> NDArray[Any]:
            values: NDArray[Any] = dataset[()].astype(native, copy=False)
            if not matlab:
                return values
            return values.T if values.ndim == 2 else np.moveaxis(values.T, -1, 0)

        return StoredArray(name, shape, native, rows, whole, trouble)

    def _text(self, dataset: Any) -> NDArray[Any]:
        try:
            return np.array(dataset.asstr()[()].tolist(), dtype=np.str_)
        except UnicodeDecodeError as error:
            msg = f"'{dataset.name}' of '{dataset.file.filename}' holds text that is not UTF-8."
            raise LayoutError(msg) from error

    def _rows(self, file: Any, dataset: Any, name: str, *, along_last: bool = False) -> SampleSource:
        """Read rows by their place in the file where they have one, which needs no lock of HDF5's; else through
        h5py."""
        # A dataset that a link leads to tells its place in another file.
        is_own = home_of(dataset, Path(file.filename)) is None
        has_place = is_own and not (dataset.chunks or dataset.external or dataset.is_virtual)
        offset = dataset.id.get_offset() if has_place else None
        if along_last or offset is None or dataset.file.userblock_size:
            return _rows_in_blocks(dataset, name, stamp_of(self.entry), along_last=along_last)
        file, kind = open_member(self.tree, self.entry), dataset.dtype
        return rows_of_file(
            file, offset, len(dataset), dataset.shape[1:], kind, stamp=stamp_of(self.entry), wanted=kind
        )


def _datasets(file: Any, label: str, *, alone: bool) -> Iterator[tuple[str, Any]]:
    """Yield every dataset of a file with its name, each once: first those of the file itself, then what links lead to;
    in place of what cannot be read, the error that says why. `alone`: whether there are no other files beside it."""
    import h5py
    from h5py import h5l

    # Without a path of its own, h5py calls a file by the object that reads it.
    path = Path(label) if alone else Path(file.filename)
    seen: set[tuple[int, int]] = set()
    # Each name with the group that has it: from the root, the way to a group a thousand deep is a thousand steps.
    waiting, links = deque([(file, "/", "")]), deque[tuple[Any, str, str]]()
    while waiting or links:
        group, name, key = (waiting or links).popleft()
        try:
            node = follow(group, name, path)
            info = h5py.h5o.get_info(node.id)
            if (info.fileno, info.addr) in seen:
                continue
            # A group may link to one above it, and one dataset may have several names.
            seen.add((info.fileno, info.addr))
            if isinstance(node, h5py.Dataset):
                check_type(node, key, path)
                check_extent(node, key, path)
        except PackFormatError as error:
            yield key, error
            continue
        if isinstance(node, h5py.Group):
            for inner in node:
                is_hard = node.id.links.get_info(inner.encode(errors="surrogateescape")).type == h5l.TYPE_HARD
                (waiting if is_hard else links).append((node, inner, f"{key}/{inner}".lstrip("/")))
        elif isinstance(node, h5py.Dataset):
            yield key, node


def _unreadable(name: str, trouble: str) -> StoredArray:
    """Return an array whose rows nobody can read."""
    return dataclasses.replace(StoredArray.in_memory(name, np.zeros(0, np.uint8), ""), trouble=trouble)


def _trouble(dataset: Any) -> str:
    """Say why values that are neither numbers nor texts cannot be packed."""
    import h5py

    base = h5py.check_vlen_dtype(dataset.dtype)
    if base is not None:
        return (
            f"each of its rows has any number of {base} values (HDF5's variable-length type), and a pack holds rows of "
            "one shape. Pad or cut them to one length, or read the file as it is with dataset_h5"
        )
    return f"it holds {dataset.dtype}, which are not numbers of one kind"


def _rows_in_blocks(dataset: Any, name: str, stamp: str, *, along_last: bool) -> SampleSource:
    """Return the rows of a dataset in chunks, read a block at a time: a chunk is unpacked once, not once for each of
    its rows."""
    axis = 1 if along_last else 0
    count = int(dataset.shape[axis])
    row_bytes = max(1, dataset.size // max(1, count) * dataset.dtype.itemsize)
    chunk = dataset.chunks[axis] if dataset.chunks else 1
    # Whole chunks where that stays within bounds: a part of one would be unpacked twice.
    rows = math.ceil(max(1, _BLOCK_BYTES // row_bytes) / chunk) * chunk
    step = rows if rows * row_bytes <= _MAX_BLOCK_BYTES else max(1, _MAX_BLOCK_BYTES // row_bytes)
    lock = threading.Lock()

    @functools.lru_cache(maxsize=_BLOCKS_KEPT)
    def read_block(number: int) -> NDArray[Any]:
        part = slice(number * step, (number + 1) * step)
        try:
            block: NDArray[Any] = dataset[part] if axis == 0 else dataset[:, part].T
        except (OSError, RuntimeError) as error:
            msg = f"Rows {part.start} to {part.stop} of '{name}' cannot be read: {error}."
            raise DecodeError(msg) from error
        return block

    def read(index: int) -> NDArray[Any]:
        number, place = divmod(index, step)
        with lock:
            row: NDArray[Any] = read_block(number)[place]
        return row

    return numbered_samples(name, f"{stamp} {dataset.name}", count, row_bytes, read)


def decode_npy(content: Any) -> NDArray[Any]:
    """Return the array of a .npy file."""
    try:
        # Not with numpy's reader, which parses each header again.
        shape, dtype, fortran, start = npy_header(bytes(content[:MAX_HEADER_BYTES]))
        values = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")
    except ValueError as error:
        msg = f"It is not a .npy file of numbers: it {error}."
        raise DecodeError(msg) from error
    return values.astype(values.dtype.newbyteorder("="), copy=False)
