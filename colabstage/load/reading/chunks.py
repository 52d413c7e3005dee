"""Read rows of chunked datasets: find the chunks in the file, decode them, keep decoded ones, and assemble the rows.

Chunks are decoded without HDF5, which holds one lock for the whole process, so that several threads decode at once.
HDF5 would also decode a chunk again for every row once its own small cache has moved on.

Filters were applied in the order listed; decoding undoes them in reverse. Chunks with LZF or szip are left to HDF5,
because a decoder in plain Python would be slower than HDF5 behind its lock.

A file's chunks are in any order with gaps between them, so their positions come from HDF5's table of chunks, never from
an assumed stride.
"""

from __future__ import annotations

import itertools
import math
import threading
import zlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import DamagedPackError, DecodeError
from colabstage.h5.untrusted import reading_contents
from colabstage.load.reading.memory import SHARE_BYTES, cut_off

if TYPE_CHECKING:
    from collections.abc import Iterable

    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.engines import RowEngine, StorageFacts
    from colabstage.load.reading.memory import MappedFile

_DEFLATE, _SHUFFLE, _FLETCHER32, _ZSTD = 1, 2, 3, 32015
# Words summed at once: the sum stays below 2**48, which float64 holds exactly, and the words fit the processor's cache.
_SUMMED_WORDS = 1 << 15
# Objects that each thread has its own of.
_OWN = threading.local()
_HERE = frozenset((_DEFLATE, _SHUFFLE, _FLETCHER32, _ZSTD))


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter in a dataset's filter pipeline."""

    number: int
    """HDF5's registered number."""
    name: str
    """HDF5's name, for messages."""
    values: tuple[int, ...] = ()
    """Its parameters."""

    def __str__(self) -> str:
        return self.name


def undecodable(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return the filters that only HDF5 can undo."""
    return tuple(step for step in filters if step.number not in _HERE)


def decode_chunk(
    stored: bytes | NDArray[np.uint8], filters: tuple[Filter, ...], skipped: int, nbytes: int
) -> NDArray[np.uint8]:
    """Undo the filters of one chunk. Safe in threads.

    Args:
        stored: the chunk as it is in the file.
        filters: filters in the order in which they were applied; none of them `undecodable`.
        skipped: HDF5's filter mask: bit i is set if filter i was not applied to this chunk.
        nbytes: length of the result.

    Returns:
        uint8 `(nbytes,)`; a view of `stored` if no filter was applied.

    Raises:
        DecodeError: the bytes are not a valid chunk with these filters.
    """
    # Not copied: the bytes may be in the mapped file.
    data = np.frombuffer(stored, np.uint8)
    try:
        for place in reversed(range(len(filters))):
            if not skipped >> place & 1:
                data = _undo(filters[place], data, nbytes)
    except (zlib.error, ValueError, MemoryError) as error:
        msg = f"A chunk of {len(data):,} stored bytes cannot be decoded ({', '.join(map(str, filters))}): {error}."
        raise DecodeError(msg) from error
    # A shorter chunk would leave old contents of memory in the rows.
    if len(data) != nbytes:
        msg = f"A chunk decodes to {len(data):,} bytes; expected {nbytes:,}."
        raise DecodeError(msg)
    return data


def _undo(step: Filter, data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    # isal inflates at several times zlib's rate.
    if step.number == _DEFLATE:
        return _inflate(data, nbytes)
    if step.number == _SHUFFLE:
        return _unshuffle(data, step.values[0] if step.values else 1)
    if step.number == _FLETCHER32:
        return _without_checksum(data)
    return _unzstd(data, nbytes)


def _inflate(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    from colabstage.io.accelerated import isal_zlib

    # isal's type information declares the exception class as an instance.
    broken = cast("type[Exception]", isal_zlib.error)
    # Four bytes more, in case a checksum follows the contents.
    try:
        return np.frombuffer(isal_zlib.decompress(data, 15, nbytes + 4), np.uint8)
    except broken as error:
        raise ValueError(str(error)) from error


def _unzstd(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    import zstandard

    # A decompressor must not be shared by threads, and making one takes a third of the time of a small chunk.
    if not hasattr(_OWN, "unzstd"):
        _OWN.unzstd = zstandard.ZstdDecompressor().decompress
    try:
        plain = _OWN.unzstd(data.data, max_output_size=nbytes + 4)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return np.frombuffer(plain, np.uint8)


def _unshuffle(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Undo HDF5's shuffle filter, which stores the first byte of every value, then the second of every value, etc."""
    count = len(data) // width if width > 1 else 0
    if count <= 1:
        return data
    result = np.empty_like(data)
    table = result[: count * width].reshape(count, width)
    # One column after another, because numpy takes several times as long to copy the transposed table.
    for place in range(width):
        table[:, place] = data[place * count : (place + 1) * count]
    # Bytes beyond the last full value were not shuffled.
    result[count * width :] = data[count * width :]
    return result


def _without_checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Verify a Fletcher-32 checksum and strip its four bytes."""
    if len(data) < 4:
        msg = "too short for its checksum"
        raise ValueError(msg)
    values, stored = data[:-4], int.from_bytes(data[-4:].tobytes(), "little")
    first, second = fletcher32(values)
    # HDF5 adds with end-around carry, so 0 and 65535 are the same sum.
    if (stored & 0xFFFF) % 65535 != first or (stored >> 16) % 65535 != second:
        msg = "its checksum does not hold"
        raise ValueError(msg)
    return values


def fletcher32(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Return the two sums of HDF5's Fletcher-32, each modulo 65535: of all 16-bit words, big-endian, and of all partial
    sums."""
    even = data[: len(data) // 2 * 2].view(">u2")
    first = second = 0
    left = len(even) + len(data) % 2
    # A word is part of every partial sum from its own on.
    weights = np.arange(_SUMMED_WORDS, 0, -1, dtype=np.float64)
    for start in range(0, len(even), _SUMMED_WORDS):
        words = even[start : start + _SUMMED_WORDS].astype(np.float64)
        total = int(words.sum())
        first += total
        second += int((words * weights[-len(words) :]).sum()) + (left - len(words)) * total
        left -= len(words)
    if len(data) % 2:
        last = int(data[-1]) << 8
        first, second = first + last, second + last
    return first % 65535, second % 65535


# For smaller rows, one indexed copy of all rows is faster than a copy of each; for larger ones its temporary array
# costs more.
_SMALL_ROW_BYTES = 8 * 1024
# The same limit for pieces of rows, which are copied line by line.
_SMALL_PIECE_BYTES = 64 * 1024
_INDEXED_BYTES = 256 * 1024
_NOWHERE = -1

Place = tuple[int, ...]
# Row numbers; a slice if they are consecutive.
Run = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Positions of a dataset's chunks in its file, as int64 arrays with the shape of `chunk_grid`."""

    addresses: NDArray[np.int64]
    """Position of each chunk's first byte; -1 for chunks that were never written."""
    sizes: NDArray[np.int64]
    """Length of each chunk as stored, in bytes."""
    skipped: NDArray[np.int64]
    """HDF5's mask of the filters that were not applied to each chunk."""


def chunk_grid(facts: StorageFacts) -> tuple[int, ...]:
    """Return the number of chunks along each axis of the dataset."""
    return tuple(-(-length // chunk) for length, chunk in zip(facts.shape, facts.chunks or (), strict=True))


def read_chunk_table(dataset: Any, facts: StorageFacts, file: MappedFile) -> ChunkTable:
    """Ask HDF5 for the positions of all chunks, which takes a few microseconds for each.

    Raises:
        DamagedPackError: a chunk is outside the file.
    """
    grid = chunk_grid(facts)
    # Plain numbers, because tuples of half a million chunks would take hundreds of megabytes.
    numbers = array("q")

    def note(chunk: Any) -> None:
        numbers.extend((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))

    dataset.id.chunk_iter(note)
    # HDF5's table omits chunks that were never written.
    table = ChunkTable(np.full(grid, _NOWHERE, np.int64), np.zeros(grid, np.int64), np.zeros(grid, np.int64))
    if not numbers:
        return table
    axes = len(grid)
    found = np.frombuffer(numbers, np.int64).reshape(-1, axes + 3)
    places = tuple((found[:, :axes] // np.array(facts.chunks, np.int64)).T)
    table.addresses[places] = found[:, axes] + _address_base(dataset, found[0].tolist(), file)
    table.sizes[places] = found[:, axes + 1]
    table.skipped[places] = found[:, axes + 2]
    # Checked once here, so that no read has to: an access beyond the end of a mapping kills the process.
    end = int((table.addresses + table.sizes).max())
    if end > len(file.data) or int(table.addresses[places].min()) < 0:
        raise cut_off(file.path, end, len(file.data))
    return table


def _address_base(dataset: Any, found: list[int], file: MappedFile) -> int:
    """Return what to add to HDF5's addresses, because some versions count them from the end of the user block."""
    block = int(dataset.file.userblock_size)
    if block:
        *corner, address, size, _ = found
        stored = dataset.id.read_direct_chunk(tuple(corner))[1]
        for base in (0, block):
            if file.data[address + base : address + base + size].tobytes() == bytes(stored):
                return base
        msg = f"'{file.path}' has chunks of {dataset.name} where HDF5's table does not say. Copy or stage it again."
        raise DamagedPackError(msg)
    return 0


class ChunkSource(Protocol):
    """Give chunks by their place in the grid. Safe in threads."""

    def chunk(self, place: Place) -> NDArray[Any] | None:
        """Return the values of a chunk, which may extend beyond the dataset's edge; `None` if it was never written."""

    def is_ready(self, place: Place) -> bool:
        """Tell whether a chunk is available without decoding."""

    def check(self) -> None:
        """Make sure, once for each batch, that the file has not changed since it was opened."""


class H5pyChunks:
    """Let HDF5 decode chunks, one at a time in the whole process."""

    def __init__(self, dataset: Any, facts: StorageFacts) -> None:
        self._dataset = dataset
        self._facts = facts

    def chunk(self, place: Place) -> NDArray[Any] | None:
        sides = zip(place, self._facts.chunks or (), self._facts.shape, strict=True)
        part = tuple(slice(number * side, min(length, (number + 1) * side)) for number, side, length in sides)
        # Converts errors other than OSError that h5py raises for damaged files.
        with reading_contents(Path(str(self._dataset.file.filename))):
            try:
                values: NDArray[Any] = self._dataset[part]
            except OSError as error:
                # An error with an errno comes from the disk or the mount, and does not mean that the file is damaged.
                if error.errno is not None:
                    raise
                where = f"{self._facts.name} in '{self._dataset.file.filename}'"
                msg = f"HDF5 cannot read a chunk of {where} ({error}). Copy or stage the file again."
                raise DamagedPackError(msg) from error
        # Byte order is changed here, not in place in the batch.
        return values.astype(self._facts.dtype, copy=False)

    def is_ready(self, place: Place) -> bool:
        return False

    def check(self) -> None:
        """Do nothing: HDF5 holds a handle of the file that was opened."""


class StoredChunks:
    """Decode chunks of the mapped file in the caller's thread."""

    def __init__(self, file: MappedFile, table: ChunkTable, facts: StorageFacts, by_hdf5: H5pyChunks) -> None:
        """Take `by_hdf5`, which is asked for a chunk that cannot be decoded here."""
        self._file = file
        self._table = table
        self._facts = facts
        self._by_hdf5 = by_hdf5

    def chunk(self, place: Place) -> NDArray[Any] | None:
        table, facts = self._table, self._facts
        address = int(table.addresses[place])
        # Never written: the caller uses the fill value.
        if address == _NOWHERE:
            return None
        shape, stored = facts.chunks or (), facts.stored or facts.dtype
        data = self._file.data[address : address + int(table.sizes[place])]
        try:
            values = decode_chunk(data, facts.filters, int(table.skipped[place]), math.prod(shape) * stored.itemsize)
        # HDF5 may support settings of a filter that are unknown here; if not, its error says what is wrong.
        except DecodeError:
            return self._by_hdf5.chunk(place)
        return values.view(stored).reshape(shape).astype(facts.dtype, copy=False)

    def is_ready(self, place: Place) -> bool:
        return not self._facts.filters

    def check(self) -> None:
        self._file.check()


class CachedChunks:
    """Keep recently decoded chunks, so that a chunk with rows in several batches is decoded once."""

    def __init__(self, source: ChunkSource, budget_bytes: int) -> None:
        self._source = source
        self._budget = budget_bytes
        self._held: OrderedDict[Place, NDArray[Any]] = OrderedDict()
        self._bytes = 0
        # Never held while decoding. Each process has its own lock, because engines are made after a fork.
        self._lock = threading.Lock()

    def chunk(self, place: Place) -> NDArray[Any] | None:
        with self._lock:
            values = self._held.get(place)
            if values is not None:
                self._held.move_to_end(place)
                return values
        values = self._source.chunk(place)
        # A chunk larger than the cache would evict all others, and then itself.
        if values is not None and values.nbytes <= self._budget:
            self._keep(place, values)
        return values

    def _keep(self, place: Place, values: NDArray[Any]) -> None:
        with self._lock:
            # Another thread has decoded the same chunk meanwhile.
            if place in self._held:
                return
            self._held[place] = values
            self._bytes += values.nbytes
            while self._bytes > self._budget:
                self._bytes -= self._held.popitem(last=False)[1].nbytes

    def is_ready(self, place: Place) -> bool:
        # No lock needed: if the chunk is evicted at this moment, it is decoded again.
        return place in self._held or self._source.is_ready(place)

    def check(self) -> None:
        self._source.check()


class _Piece(NamedTuple):
    """The piece of a row that is in one chunk."""

    across: Place
    """Place of the chunk in the grid, along all axes but the first."""
    target: tuple[slice, ...]
    """Place of the piece in the row."""
    inside: tuple[slice, ...]
    """Place of the piece in the chunk, which may extend beyond the dataset's edge."""


def _piece(across: Place, facts: StorageFacts) -> _Piece:
    axes = list(zip(across, (facts.chunks or ())[1:], facts.shape[1:], strict=True))
    target = tuple(slice(number * side, min(length, (number + 1) * side)) for number, side, length in axes)
    return _Piece(across, target, tuple(slice(0, part.stop - part.start) for part in target))


class _ChunkRows(NamedTuple):
    """Rows that are copied from one chunk."""

    group: int
    """Place of the chunk in the grid along the first axis."""
    rows: Run
    """Rows to copy, numbered within the chunk."""
    places: Run
    """Places of these rows in the batch."""
    piece: _Piece
    """The piece of each row that the chunk has."""


def _as_run(numbers: NDArray[np.intp]) -> Run:
    """Return consecutive ascending numbers as a slice, which numpy copies at many times the rate, others unchanged."""
    first = int(numbers[0])
    return slice(first, first + len(numbers)) if bool((np.diff(numbers) == 1).all()) else numbers


def _row_numbers(run: Run) -> Iterable[Any]:
    return range(run.start, run.stop) if isinstance(run, slice) else run.tolist()


def _row_pieces(facts: StorageFacts) -> list[_Piece]:
    """Return the pieces into which chunks divide each row."""
    return [_piece(across, facts) for across in np.ndindex(*chunk_grid(facts)[1:])]


class ChunkEngine:
    """Assemble rows from chunks; each chunk is decoded at most once for a batch, in the threads of the pool."""

    def __init__(self, source: ChunkSource, facts: StorageFacts) -> None:
        self._source = source
        self._facts = facts
        self._rows = (facts.chunks or (1,))[0]
        self._pieces = _row_pieces(facts)
        # For small pieces one indexed copy is faster, although it copies them twice.
        piece_bytes = math.prod((facts.chunks or ())[1:]) * facts.dtype.itemsize
        self._indexed = piece_bytes < _SMALL_ROW_BYTES

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._source.check()
        if out.nbytes == 0:
            return
        groups = rows // self._rows
        # Sorted by chunk, so that each is taken once.
        order = np.argsort(groups, kind="stable")
        edges = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1)).tolist()
        within, group_of = (rows - groups * self._rows)[order], groups[order].tolist()
        parts: list[_ChunkRows] = []
        for start, stop in itertools.pairwise(edges):
            line, places = _as_run(within[start:stop]), _as_run(order[start:stop])
            parts += [_ChunkRows(group_of[start], line, places, piece) for piece in self._pieces]
        self._share(parts, out, pool)

    def read_groups(self, groups: NDArray[np.intp], every: NDArray[Any], pool: ThreadPool) -> None:
        """Copy all rows of chunks, given by their places along the first axis, to their places in `every`, `(N, …)`."""
        parts: list[_ChunkRows] = []
        for group in groups.tolist():
            start, stop = group * self._rows, min(len(every), (group + 1) * self._rows)
            parts += [_ChunkRows(group, slice(0, stop - start), slice(start, stop), piece) for piece in self._pieces]
        self._share(parts, every, pool)

    def check(self) -> None:
        """Make sure that the file is the one that was opened."""
        self._source.check()

    def _share(self, parts: list[_ChunkRows], out: NDArray[Any], pool: ThreadPool) -> None:
        ready = [self._source.is_ready((part.group, *part.piece.across)) for part in parts]

        def copy(parts: list[_ChunkRows]) -> None:
            for part in parts:
                pool.cancellation.check()
                self._copy(part, out)

        # Decoded chunks are copied by this thread alone: several threads took three times as long for such small
        # copies, because each needs Python's lock.
        copy([part for part, at_once in zip(parts, ready, strict=True) if at_once])
        decoded = [part for part, at_once in zip(parts, ready, strict=True) if not at_once]
        pool.share(len(decoded), lambda first, last: copy(decoded[first:last]))

    def _copy(self, part: _ChunkRows, out: NDArray[Any]) -> None:
        """Copy the piece of each row that one chunk has to its place in `out`."""
        rows, places, piece = part.rows, part.places, part.piece
        values = self._source.chunk((part.group, *piece.across))
        wanted: tuple[Any, ...] = (places, *piece.target)
        if values is None:
            out[wanted] = self._facts.fill
        elif self._indexed or (isinstance(rows, slice) and isinstance(places, slice)):
            inside: tuple[Any, ...] = (rows, *piece.inside)
            out[wanted] = values[inside]
        else:
            for where, row in zip(_row_numbers(places), _row_numbers(rows), strict=True):
                out[(where, *piece.target)] = values[(row, *piece.inside)]


class KeptRows:
    """Keep all decoded rows in one array, from which later batches are gathered.

    For datasets that fit into the budget for decoded data: no row is ever evicted, and no chunks have to be kept.
    """

    def __init__(self, engine: ChunkEngine, every: NDArray[Any], gather: RowEngine, side: int) -> None:
        """Take `every`, uninitialised memory for all rows, from which `gather` copies. `side`: rows in one chunk."""
        self._engine = engine
        self._every = every
        self._gather = gather
        self._side = side
        # Set once all rows of a chunk are there. Two threads may decode the same chunk, to the same bytes.
        self._there = np.zeros(-(-len(every) // side), np.bool_)

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._engine.check()
        if out.nbytes == 0:
            return
        groups = rows // self._side
        missing = np.unique(groups[~self._there[groups]])
        if len(missing):
            self._engine.read_groups(missing, self._every, pool)
            self._there[missing] = True
        self._gather.read_rows(rows, out, pool)


class PlacedRows:
    """Copy rows, whole or in pieces, from unfiltered chunks of the mapped file.

    One indexed copy serves many rows: with a call for each piece, rows in chunks of the size that h5py chooses came at
    a seventh to a half of the rate.
    """

    def __init__(self, file: MappedFile, table: ChunkTable, facts: StorageFacts) -> None:
        """Compute the positions of all pieces.

        Raises:
            DamagedPackError: a piece is outside the file.
        """
        sides, width, data = facts.chunks or (1,), facts.dtype.itemsize, file.data
        self._file = file
        self._side = sides[0]
        self._block = sides[1:]
        self._pieces = _row_pieces(facts)
        self._whole = facts.has_whole_rows
        # One line for each piece, with the position of every chunk along the first axis.
        self._chunks = np.ascontiguousarray(table.addresses.reshape(len(table.addresses), len(self._pieces)).T)
        self._length = math.prod(sides[1:]) * width
        written = self._chunks[self._chunks != _NOWHERE]
        self._has_gaps = len(written) < self._chunks.size
        # In a damaged file, the table may claim smaller chunks than the dataset's.
        if len(written) and (end := int(written.max()) + self._side * self._length) > len(data):
            raise cut_off(file.path, end, len(data))
        # The stored values may be in the other byte order, so they are copied as plain bytes.
        self._raw = np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")
        self._fill = np.full(1, facts.fill, facts.stored).view(self._raw)
        # Overlapping views of the file with a stride of one byte: each element is one run of bytes, so that indexing
        # with positions copies runs. A file shorter than one run has none.
        count = max(0, len(data) - self._length + 1)
        steps = [width * math.prod(self._block[axis:]) for axis in range(1, len(sides))]
        self._runs: NDArray[np.void] = np.ndarray((count,), f"V{self._length}", data, strides=(1,))
        self._blocks: NDArray[Any] = np.ndarray((count, *self._block), self._raw, data, strides=(1, *steps))

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._file.check()
        if out.nbytes == 0:
            return
        groups = rows // self._side
        places = self._chunks.take(groups, axis=1)
        begins = (rows - groups * self._side) * self._length
        places = np.where(places == _NOWHERE, _NOWHERE, places + begins) if self._has_gaps else places + begins
        target = out.view(self._raw)
        # Whole rows above this length are copied one by one, once.
        most = _SMALL_ROW_BYTES if len(self._pieces) == 1 else _SMALL_PIECE_BYTES
        copy, together = (self._copy_small, _INDEXED_BYTES) if self._length < most else (self._copy_large, SHARE_BYTES)
        # A few at a time, so that what is copied twice stays in the processor's cache in between.
        step = max(1, together // self._length)

        def take(start: int, stop: int) -> None:
            for first in range(start, stop, step):
                pool.cancellation.check()
                part = slice(first, min(stop, first + step))
                for piece, line in zip(self._pieces, places, strict=True):
                    copy(piece, line[part], target[part])

        if out.nbytes <= SHARE_BYTES:
            take(0, len(rows))
        else:
            pool.share(len(rows), take)

    def _copy_small(self, piece: _Piece, places: NDArray[np.int64], target: NDArray[Any]) -> None:
        rows: Any = slice(None)
        if self._has_gaps:
            rows = places != _NOWHERE
            target[(~rows, *piece.target)] = self._fill
            places = places[rows]
        if self._whole:
            # Copying each row as one value is faster than copying its values.
            target.reshape(len(target), -1).view(self._runs.dtype)[rows, 0] = self._runs[places]
            return
        found = self._runs[places].view(self._raw).reshape(len(places), *self._block)
        target[(rows, *piece.target)] = found[(slice(None), *piece.inside)]

    def _copy_large(self, piece: _Piece, places: NDArray[np.int64], target: NDArray[Any]) -> None:
        blocks, lines = self._blocks[(slice(None), *piece.inside)], target[(slice(None), *piece.target)]
        for row, place in enumerate(places.tolist()):
            lines[row] = self._fill if place == _NOWHERE else blocks[place]


class ChunkBytes:
    """Read ranges of a long, chunked dataset of bytes."""

    def __init__(self, source: ChunkSource, facts: StorageFacts) -> None:
        self._source = source
        self._side = (facts.chunks or (1,))[0]
        self._fill = int(facts.fill)

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` up to `stop`."""
        self._source.check()
        side, parts = self._side, list[bytes]()
        for number in range(start // side, -(-stop // side)):
            begin, end = max(start - number * side, 0), min(stop - number * side, side)
            values = self._source.chunk((number,))
            parts.append(bytes([self._fill]) * (end - begin) if values is None else values[begin:end].tobytes())
        return b"".join(parts)

    def check(self) -> None:
        """Make sure that the file is the one that was opened."""
        self._source.check()
