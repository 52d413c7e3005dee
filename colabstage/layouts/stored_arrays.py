"""Arrays in .npy, .npz and HDF5 files that somebody else wrote, and rows of arrays as sources of samples.

A source may be several arrays one behind the other, or give them in another form than they are stored in. MATLAB's
.mat 7.3 are HDF5 files.
"""

from __future__ import annotations

import ast
import functools
import math
import struct
import tempfile
import threading
from collections import OrderedDict, deque
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, PackFormatError, SourceReadError
from colabstage.h5.schema import FORMAT_ATTRIBUTE
from colabstage.h5.untrusted import (
    HeapReferences,
    check_extent,
    check_parts,
    check_type,
    follow,
    is_elsewhere,
    open_alone,
    open_with_any_locking,
)
from colabstage.io.files import read_with_retry
from colabstage.layouts.reading import open_member, read_head, spool_folder
from colabstage.layouts.table import NearMissError, NumberedRows, stamp_of
from colabstage.trees.bytes import LocalBytes, SourceFile
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from numpy.typing import NDArray

    from colabstage.layouts.table import Content, SampleSource
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree


class ConvertedRows:
    """The contents of another source, each brought into another form: byte order, axes, a part of it."""

    def __init__(self, source: SampleSource, convert: Callable[[Any], NDArray[Any]]) -> None:
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

    def read(self, index: int) -> NDArray[Any]:
        """Return the content, converted."""
        return self._convert(self._source.read(index))


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


class HeldRows(NumberedRows):
    """The rows of an array that is held in memory."""

    def __init__(self, values: NDArray[Any], name: str, stamp: str) -> None:
        """Take `stamp`, which differs whenever the file may have changed that the array was read from."""
        super().__init__(name, f"{stamp} {name}", len(values), values.nbytes // max(1, len(values)))
        self._values = values

    def read(self, index: int) -> NDArray[Any]:
        """Return one row."""
        return np.ascontiguousarray(self._values[index])


class FileRows(NumberedRows):
    """Rows of one shape in a file, each read by its place: none is read that is not packed, and many at once are."""

    def __init__(
        self, file: ByteSource, positions: NDArray[np.int64], shape: tuple[int, ...], dtype: np.dtype[Any], stamp: str
    ) -> None:
        """Take the bytes, open for as long as the rows are used; where each row begins in them; and what each is."""
        self._nbytes = math.prod(shape) * dtype.itemsize
        super().__init__(file.label, stamp, len(positions), self._nbytes)
        self.positions = positions
        self._file = file
        self._shape = shape
        self._dtype = dtype

    def stamp(self, index: int) -> str:
        """Return the file's stamp, and which part of it."""
        return f"{self._stamp} {self.positions[index]} {self._nbytes}"

    def read(self, index: int) -> NDArray[Any]:
        """Return one row."""
        start = int(self.positions[index])
        data = self._file.pread(self._nbytes, start)
        # A file that shrank while it was read gives fewer bytes and no error.
        if len(data) != self._nbytes:
            msg = f"'{self._file.label}' ends before byte {start + self._nbytes:,}, where its part {index} does."
            raise SourceReadError(msg)
        return np.frombuffer(data, self._dtype).reshape(self._shape)


def fixed_rows(
    file: ByteSource,
    start: int,
    count: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    stamp: str,
    step: int | None = None,
    wanted: np.dtype[Any] | None = None,
) -> SampleSource:
    """Return rows of one shape that lie in a file one after the other.

    Args:
        file: the bytes, open for as long as the rows are used.
        stamp: changes whenever the file does: its length and time, for example.
        start: where the first row begins, in bytes.
        count, shape, dtype: how many rows there are, and what each is as it is stored.
        step: bytes from the beginning of one row to that of the next; the length of a row by default.
        wanted: the type that they are given in; the stored one, in this machine's byte order, by default.
    """
    step = math.prod(shape) * dtype.itemsize if step is None else step
    source = FileRows(file, start + np.arange(count, dtype=np.int64) * step, shape, dtype, stamp)
    given = dtype.newbyteorder("=") if wanted is None else wanted
    return source if dtype == given else ConvertedRows(source, lambda row: row.astype(given))


def join_sources(parts: Sequence[SampleSource]) -> SampleSource:
    """Return one source of several; the one itself where it is alone."""
    return parts[0] if len(parts) == 1 else JoinedSources(parts)


NPY = ".npy"
# A header longer than this is not one that anybody writes; numpy's own limit is 10,000 characters.
MAX_HEADER_BYTES = 64 * 1024
# In parts, so that beside the array itself only one of them is held.
_READ_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that has not been read yet."""

    name: str
    """Where it lies: the file, and the key in it."""
    shape: tuple[int, ...]
    """As its rows come out."""
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
    # What is packed has this machine's order; an array of another machine is turned row by row.
    native = header.dtype.newbyteorder("=")

    def rows() -> SampleSource:
        file, start = open_member(tree, entry), header.start
        if header.is_turned:
            file, start = _write_row_by_row(file, header), 0
        return fixed_rows(file, start, header.shape[0], header.shape[1:], header.dtype, stamp=stamp_of(entry))

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
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def is_turned(self) -> bool:
        """Return whether the numbers of one row lie far apart."""
        return self.fortran and sum(length > 1 for length in self.shape) > 1

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


def _write_row_by_row(file: ByteSource, header: NpyHeader) -> LocalBytes:
    """Write an array in Fortran order row by row into a file without a name, and return its bytes.

    Raises:
        NotEnoughSpaceError: it does not fit where this machine has room for temporary files.
    """
    rows, column_bytes = header.shape[0], header.shape[0] * header.dtype.itemsize
    columns = header.row_bytes // header.dtype.itemsize
    # The columns of such an array, one after the other, are its inner axes in the other order.
    place = np.arange(columns).reshape(header.shape[1:], order="F").reshape(-1)
    folder = spool_folder(rows * header.row_bytes, f"'{file.label}', turned to the order of rows,")
    with closing(file), tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-") as written:
        table = np.memmap(written, header.dtype, "w+", shape=(rows, columns))
        step = max(1, _READ_BYTES // max(1, column_bytes))
        for first in range(0, columns, step):
            count = min(step, columns - first)
            data = file.pread(count * column_bytes, header.start + first * column_bytes)
            target = np.flatnonzero((place >= first) & (place < first + count))
            values = np.frombuffer(data, header.dtype).reshape(count, rows)
            table[:, target] = values[place[target] - first].T
        table.flush()
        return LocalBytes(Path(written.name), label=file.label)


def npy_header(head: bytes) -> NpyHeader:
    """Return what the first bytes of a .npy file say.

    Raises:
        ValueError: they are none; the message is how a sentence about the file goes on.
    """
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


def hdf5_arrays(tree: Tree, entry: FileEntry, *, takes_packs: bool) -> list[StoredArray]:
    """Return every dataset of one dimension or more; MATLAB's with axes as MATLAB shows them, samples first.

    Soft and external links are followed, to what no other name has led to.

    Raises:
        LayoutError: it is no HDF5 file, damaged, or a pack, unless `takes_packs`.
    """
    return _Hdf5File(tree, entry).arrays(takes_packs=takes_packs)


class _Hdf5File:
    """The datasets of one HDF5 file."""

    def __init__(self, tree: Tree, entry: FileEntry) -> None:
        self.tree = tree
        self.entry = entry

    def arrays(self, *, takes_packs: bool) -> list[StoredArray]:
        """Return every dataset of one dimension or more."""
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

    def _made_here(self) -> NearMissError:
        """Return the error for a pack: as arrays its samples would lose their names, and those of files their form."""
        path = self.tree.path_of(self.entry)
        place = str(path) if path is not None else self.tree.label if self.tree.kind == "file" else "PATH"
        return NearMissError(
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
                return ConvertedRows(source, lambda row: row.T.astype(native, copy=False))
            return source if native == dataset.dtype else ConvertedRows(source, lambda row: row.astype(native))

        def whole() -> NDArray[Any]:
            values: NDArray[Any] = dataset[()].astype(native, copy=False)
            if not matlab:
                return values
            return values.T if values.ndim == 2 else np.moveaxis(values.T, -1, 0)

        return StoredArray(name, shape, native, rows, whole, trouble)

    def _text(self, dataset: Any) -> NDArray[Any]:
        try:
            source = open_member(self.tree, self.entry) if self.tree.path_of(self.entry) is None else None
            HeapReferences(dataset, str(dataset.name).lstrip("/"), source).check()
            return np.array(dataset.asstr()[()].tolist(), dtype=np.str_)
        except UnicodeDecodeError as error:
            msg = f"'{dataset.name}' of '{dataset.file.filename}' holds text that is not UTF-8."
            raise LayoutError(msg) from error

    def _rows(self, file: Any, dataset: Any, name: str, *, along_last: bool = False) -> SampleSource:
        """Read rows by their place in the file where they have one, which needs no lock of HDF5's; else through
        h5py."""
        # A dataset that a link leads to tells its place in another file.
        has_place = not (dataset.chunks or dataset.external or dataset.is_virtual or is_elsewhere(dataset, file))
        offset = dataset.id.get_offset() if has_place else None
        if along_last or offset is None or dataset.file.userblock_size:
            return _Hdf5Rows(dataset, name, stamp_of(self.entry), along_last=along_last)
        file, kind = open_member(self.tree, self.entry), dataset.dtype
        return fixed_rows(file, offset, len(dataset), dataset.shape[1:], kind, stamp=stamp_of(self.entry), wanted=kind)


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
                check_parts(node, key, path)
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
    """Return what a name stands for whose rows nobody can read."""

    def refuse() -> NoReturn:
        msg = f"'{name}' cannot be used: {trouble}."
        raise LayoutError(msg)

    return StoredArray(name, (0,), np.dtype(np.uint8), refuse, refuse, trouble)


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


class _Hdf5Rows(NumberedRows):
    """Rows of a dataset in chunks, read a block at a time: a chunk is unpacked once, not once for each of its rows."""

    def __init__(self, dataset: Any, name: str, stamp: str, *, along_last: bool) -> None:
        self._dataset = dataset
        self._axis = 1 if along_last else 0
        count = int(dataset.shape[self._axis])
        self._row_bytes = max(1, dataset.size // max(1, count) * dataset.dtype.itemsize)
        super().__init__(name, f"{stamp} {dataset.name}", count, self._row_bytes)
        chunk = dataset.chunks[self._axis] if dataset.chunks else 1
        # How many rows to read at once: whole chunks where that stays within bounds.
        wanted = max(1, _BLOCK_BYTES // self._row_bytes)
        # A chunk is unpacked as a whole, so a part of one would be unpacked twice.
        rows = math.ceil(wanted / chunk) * chunk
        self._block_rows = (
            rows if rows * self._row_bytes <= _MAX_BLOCK_BYTES else max(1, _MAX_BLOCK_BYTES // self._row_bytes)
        )
        self._blocks: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, index: int) -> NDArray[Any]:
        """Return one row.

        Raises:
            DecodeError: its chunk is damaged.
        """
        number, place = divmod(index, self._block_rows)
        with self._lock:
            block = self._blocks.get(number)
            if block is None:
                block = self._read_block(number)
                self._blocks[number] = block
                while len(self._blocks) > _BLOCKS_KEPT:
                    self._blocks.popitem(last=False)
            row: NDArray[Any] = block[place]
        return row

    def _read_block(self, number: int) -> NDArray[Any]:
        part = slice(number * self._block_rows, (number + 1) * self._block_rows)
        try:
            block: NDArray[Any] = self._dataset[part] if self._axis == 0 else self._dataset[:, part].T
        except (OSError, RuntimeError) as error:
            msg = f"Rows {part.start} to {part.stop} of '{self._name}' cannot be read: {error}."
            raise DecodeError(msg) from error
        return block
