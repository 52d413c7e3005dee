"""Read rows of chunked datasets: where each chunk lies, which are decoded already, and rows put together from them.

Filters are undone without HDF5, so that several threads decode at once: HDF5 holds one lock for the process.

Stored chunks went through the filters in the order listed; decoding goes backwards. LZF and szip have no decoder here
(a plain Python one would be slower than HDF5's behind its lock), so chunks with these are left to HDF5.

A file's chunks are in any order with gaps between them, so their places come from HDF5's own table of chunks, never
from an assumed stride. HDF5 is asked for nothing else: it holds one lock for the whole process, and decodes a chunk
again for every row that is asked for when its own small cache has moved on.
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
# Words in one sum of products: below 2**48, which float64 holds exactly, and within the processor's cache.
_SUMMED_WORDS = 1 << 15
# What is made once for each thread.
_OWN = threading.local()
_HERE = frozenset((_DEFLATE, _SHUFFLE, _FLETCHER32, _ZSTD))


@dataclass(frozen=True, slots=True)
class Filter:
    """One step of a dataset's filters."""

    number: int
    """HDF5's registered number."""
    name: str
    """HDF5's name, for messages."""
    values: tuple[int, ...] = ()
    """What it was set up with."""

    def __str__(self) -> str:
        return self.name


def undecodable(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return those of the filters that only HDF5 can undo."""
    return tuple(step for step in filters if step.number not in _HERE)


def decode_chunk(
    stored: bytes | NDArray[np.uint8], filters: tuple[Filter, ...], skipped: int, nbytes: int
) -> NDArray[np.uint8]:
    """Undo the filters of one chunk. From several threads at once.

    Args:
        stored: the chunk as it is in the file.
        filters: in the order they were applied; none of them `undecodable`.
        skipped: HDF5's filter mask: bit i is set where filter i was not applied to this chunk.
        nbytes: length of the result.

    Returns:
        uint8 `(nbytes,)`; over `stored` itself where no filter was applied.

    Raises:
        DecodeError: the bytes are not what these filters leave.
    """
    # Without a copy: the bytes may be in the mapped file.
    data = np.frombuffer(stored, np.uint8)
    try:
        for place in reversed(range(len(filters))):
            if not skipped >> place & 1:
                data = _undo(filters[place], data, nbytes)
    except (zlib.error, ValueError, MemoryError) as error:
        msg = f"A chunk of {len(data):,} stored bytes cannot be decoded ({', '.join(map(str, filters))}): {error}."
        raise DecodeError(msg) from error
    # Shorter chunks would leave rows of what was in memory before.
    if len(data) != nbytes:
        msg = f"A chunk decodes to {len(data):,} bytes; expected {nbytes:,}."
        raise DecodeError(msg)
    return data


def _undo(step: Filter, data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    # By isal, which inflates at several times zlib's rate.
    if step.number == _DEFLATE:
        return _inflate(data, nbytes)
    if step.number == _SHUFFLE:
        return _unshuffle(data, step.values[0] if step.values else 1)
    if step.number == _FLETCHER32:
        return _without_checksum(data)
    return _unzstd(data, nbytes)


def _inflate(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    from isal import isal_zlib

    # isal's type information declares the exception class as an instance.
    broken = cast("type[Exception]", isal_zlib.error)
    # A checksum that follows the deflated bytes makes the chunk four bytes longer than its contents.
    try:
        return np.frombuffer(isal_zlib.decompress(data, 15, nbytes + 4), np.uint8)
    except broken as error:
        raise ValueError(str(error)) from error


def _unzstd(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    import zstandard

    # Each thread has its own, as it must not be shared; making one takes as long as a third of a small chunk.
    if not hasattr(_OWN, "unzstd"):
        _OWN.unzstd = zstandard.ZstdDecompressor().decompress
    try:
        plain = _OWN.unzstd(data.data, max_output_size=nbytes + 4)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return np.frombuffer(plain, np.uint8)


def _unshuffle(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Put bytes that lie by their place in the value, the first of every value, then the second, back into values."""
    count = len(data) // width if width > 1 else 0
    if count <= 1:
        return data
    result = np.empty_like(data)
    table = result[: count * width].reshape(count, width)
    # One column after another: numpy's copy of the transposed table takes several times as long.
    for place in range(width):
        table[:, place] = data[place * count : (place + 1) * count]
    # What is left over was not shuffled.
    result[count * width :] = data[count * width :]
    return result


def _without_checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Strip the four bytes of a Fletcher-32 checksum, once it holds."""
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
    """Return the two sums of HDF5's Fletcher-32, each modulo 65535: of all 16-bit words (the higher byte first), and of
    all the sums on the way."""
    even = data[: len(data) // 2 * 2].view(">u2")
    first = second = 0
    left = len(even) + len(data) % 2
    # A word counts once in every sum from its own on.
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


# Below this, one indexed copy of all rows is faster than a copy for each; above it, its temporary array costs more.
_SMALL_ROW_BYTES = 8 * 1024
# Likewise of pieces of rows, which are copied line by line.
_SMALL_PIECE_BYTES = 64 * 1024
_INDEXED_BYTES = 256 * 1024
_NOWHERE = -1

Place = tuple[int, ...]
# Numbers of rows, as a slice where each is one more than the last.
Run = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Where the chunks of a dataset are in its file.

    Each array has an axis for each of the dataset's, of as many chunks as it is long.
    """

    addresses: NDArray[np.int64]
    """int64, of the first byte, -1 for chunks never written."""
    sizes: NDArray[np.int64]
    """int64, as stored, in bytes."""
    skipped: NDArray[np.int64]
    """int64, HDF5's mask of the filters that were not applied."""


def chunk_grid(facts: StorageFacts) -> tuple[int, ...]:
    """Return how many chunks the dataset has along each axis."""
    return tuple(-(-length // chunk) for length, chunk in zip(facts.shape, facts.chunks or (), strict=True))


def read_chunk_table(dataset: Any, facts: StorageFacts, file: MappedFile) -> ChunkTable:
    """Ask HDF5 for the places of all chunks; a few microseconds for each.

    Raises:
        DamagedPackError: one is outside the file.
    """
    grid = chunk_grid(facts)
    # As plain numbers: of half a million chunks, tuples would take hundreds of megabytes.
    numbers = array("q")

    def note(chunk: Any) -> None:
        numbers.extend((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))

    dataset.id.chunk_iter(note)
    # Chunks that were never written are not in HDF5's table.
    table = ChunkTable(np.full(grid, _NOWHERE, np.int64), np.zeros(grid, np.int64), np.zeros(grid, np.int64))
    if not numbers:
        return table
    axes = len(grid)
    found = np.frombuffer(numbers, np.int64).reshape(-1, axes + 3)
    places = tuple((found[:, :axes] // np.array(facts.chunks, np.int64)).T)
    table.addresses[places] = found[:, axes] + _address_base(dataset, found[0].tolist(), file)
    table.sizes[places] = found[:, axes + 1]
    table.skipped[places] = found[:, axes + 2]
    # Looked at once, so that no read has to: beyond a mapping's end lies a crash.
    end = int((table.addresses + table.sizes).max())
    if end > len(file.data) or int(table.addresses[places].min()) < 0:
        raise cut_off(file.path, end, len(file.data))
    return table


def _address_base(dataset: Any, found: list[int], file: MappedFile) -> int:
    """Return what must be added to the addresses that HDF5 says: some versions count them from the end of the user
    block."""
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
    """Give chunks by their place in the grid. May be called from any thread, from several at once."""

    def chunk(self, place: Place) -> NDArray[Any] | None:
        """Return the values of a chunk, at the dataset's edge perhaps beyond it; `None` for one never written."""

    def is_ready(self, place: Place) -> bool:
        """Tell whether a chunk's values are there without decoding any."""

    def check(self) -> None:
        """Make sure that the file is the one that was opened, once for each batch."""


class H5pyChunks:
    """Have HDF5 decode chunks, one at a time in the whole process."""

    def __init__(self, dataset: Any, facts: StorageFacts) -> None:
        self._dataset = dataset
        self._facts = facts

    def chunk(self, place: Place) -> NDArray[Any] | None:
        sides = zip(place, self._facts.chunks or (), self._facts.shape, strict=True)
        part = tuple(slice(number * side, min(length, (number + 1) * side)) for number, side, length in sides)
        # For damage that h5py finds where it raises no OSError.
        with reading_contents(Path(str(self._dataset.file.filename))):
            try:
                values: NDArray[Any] = self._dataset[part]
            except OSError as error:
                # Errors with a number come from the disk or the mount, and say nothing about the file.
                if error.errno is not None:
                    raise
                where = f"{self._facts.name} in '{self._dataset.file.filename}'"
                msg = f"HDF5 cannot read a chunk of {where} ({error}). Copy or stage the file again."
                raise DamagedPackError(msg) from error
        # Turned here if need be: what is put among rows that others read already may only be copied there.
        return values.astype(self._facts.dtype, copy=False)

    def is_ready(self, place: Place) -> bool:
        return False

    def check(self) -> None:
        """Leave it to HDF5, which keeps its handle on the file that was opened."""


class StoredChunks:
    """Take chunks from the mapped file and decode them in the caller's thread."""

    def __init__(self, file: MappedFile, table: ChunkTable, facts: StorageFacts, by_hdf5: H5pyChunks) -> None:
        """Take `by_hdf5`, which has the last word on a chunk that cannot be decoded here."""
        self._file = file
        self._table = table
        self._facts = facts
        self._by_hdf5 = by_hdf5

    def chunk(self, place: Place) -> NDArray[Any] | None:
        table, facts = self._table, self._facts
        address = int(table.addresses[place])
        # Never written, so the fill value is all there is.
        if address == _NOWHERE:
            return None
        shape, stored = facts.chunks or (), facts.stored or facts.dtype
        data = self._file.data[address : address + int(table.sizes[place])]
        try:
            values = decode_chunk(data, facts.filters, int(table.skipped[place]), math.prod(shape) * stored.itemsize)
        # HDF5 may know a filter's settings better, and says what is wrong where it does not.
        except DecodeError:
            return self._by_hdf5.chunk(place)
        return values.view(stored).reshape(shape).astype(facts.dtype, copy=False)

    def is_ready(self, place: Place) -> bool:
        return not self._facts.filters

    def check(self) -> None:
        self._file.check()


class CachedChunks:
    """Keep chunks that were decoded lately, so that rows of one chunk in batch after batch decode it once."""

    def __init__(self, source: ChunkSource, budget_bytes: int) -> None:
        self._source = source
        self._budget = budget_bytes
        self._held: OrderedDict[Place, NDArray[Any]] = OrderedDict()
        self._bytes = 0
        # Never held while anything is decoded. Each process has its own: engines are made after a fork.
        self._lock = threading.Lock()

    def chunk(self, place: Place) -> NDArray[Any] | None:
        with self._lock:
            values = self._held.get(place)
            if values is not None:
                self._held.move_to_end(place)
                return values
        values = self._source.chunk(place)
        # One larger than the cache would drive out all others and not stay itself.
        if values is not None and values.nbytes <= self._budget:
            self._keep(place, values)
        return values

    def _keep(self, place: Place, values: NDArray[Any]) -> None:
        with self._lock:
            # Another thread decoded the same one meanwhile.
            if place in self._held:
                return
            self._held[place] = values
            self._bytes += values.nbytes
            while self._bytes > self._budget:
                self._bytes -= self._held.popitem(last=False)[1].nbytes

    def is_ready(self, place: Place) -> bool:
        # Without the lock: one that is dropped at this moment is decoded again.
        return place in self._held or self._source.is_ready(place)

    def check(self) -> None:
        self._source.check()


class _Piece(NamedTuple):
    """What a chunk has of each of its rows."""

    across: Place
    """Place of the chunk along all axes but the first."""
    target: tuple[slice, ...]
    """Where the piece goes in a row."""
    inside: tuple[slice, ...]
    """Where it is in the chunk, which may reach beyond the dataset's edge."""


def _piece(across: Place, facts: StorageFacts) -> _Piece:
    axes = list(zip(across, (facts.chunks or ())[1:], facts.shape[1:], strict=True))
    target = tuple(slice(number * side, min(length, (number + 1) * side)) for number, side, length in axes)
    return _Piece(across, target, tuple(slice(0, part.stop - part.start) for part in target))


class _ChunkRows(NamedTuple):
    """Rows that are copied out of one chunk."""

    group: int
    """Place of the chunk along the first axis."""
    rows: Run
    """Which rows of the chunk."""
    places: Run
    """Where they go."""
    piece: _Piece
    """What the chunk has of each."""


def _as_run(numbers: NDArray[np.intp]) -> Run:
    """Return neighbours in ascending order as a slice, which numpy copies at many times the rate, and others as they
    are."""
    first = int(numbers[0])
    return slice(first, first + len(numbers)) if bool((np.diff(numbers) == 1).all()) else numbers


def _row_numbers(run: Run) -> Iterable[Any]:
    return range(run.start, run.stop) if isinstance(run, slice) else run.tolist()


def _row_pieces(facts: StorageFacts) -> list[_Piece]:
    """Return the pieces that each row is in."""
    return [_piece(across, facts) for across in np.ndindex(*chunk_grid(facts)[1:])]


class ChunkEngine:
    """Put rows together from chunks, each touched chunk asked for once a batch, shared among the pool."""

    def __init__(self, source: ChunkSource, facts: StorageFacts) -> None:
        self._source = source
        self._facts = facts
        self._rows = (facts.chunks or (1,))[0]
        self._pieces = _row_pieces(facts)
        # One indexed copy is faster for small pieces, though it makes a second one of them all.
        piece_bytes = math.prod((facts.chunks or ())[1:]) * facts.dtype.itemsize
        self._indexed = piece_bytes < _SMALL_ROW_BYTES

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._source.check()
        if out.nbytes == 0:
            return
        groups = rows // self._rows
        # Rows of one chunk together, so that it is taken once.
        order = np.argsort(groups, kind="stable")
        edges = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1)).tolist()
        within, group_of = (rows - groups * self._rows)[order], groups[order].tolist()
        parts: list[_ChunkRows] = []
        for start, stop in itertools.pairwise(edges):
            line, places = _as_run(within[start:stop]), _as_run(order[start:stop])
            parts += [_ChunkRows(group_of[start], line, places, piece) for piece in self._pieces]
        self._share(parts, out, pool)

    def read_groups(self, groups: NDArray[np.intp], every: NDArray[Any], pool: ThreadPool) -> None:
        """Copy all rows of chunks, by their places along the first axis, to where they are among `every` row."""
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

        # What is only copied, by this thread: in so small parts several take turns with Python's lock at each, and took
        # three times as long.
        copy([part for part, at_once in zip(parts, ready, strict=True) if at_once])
        decoded = [part for part, at_once in zip(parts, ready, strict=True) if not at_once]
        pool.share(len(decoded), lambda first, last: copy(decoded[first:last]))

    def _copy(self, part: _ChunkRows, out: NDArray[Any]) -> None:
        """Copy rows of one chunk to their places in `out`, as far as the chunk's other axes reach."""
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
    """Keep all rows that were decoded once, in their order, so that they are gathered as from any memory.

    For datasets that fit whole into what may be kept: then no row has to give way to another, and chunks, all of which
    hold a piece of each of their rows, need not be kept beside.
    """

    def __init__(self, engine: ChunkEngine, every: NDArray[Any], gather: RowEngine, side: int) -> None:
        """Take `every`, uninitialised memory of all rows, from which `gather` copies. `side`: rows of one chunk."""
        self._engine = engine
        self._every = every
        self._gather = gather
        self._side = side
        # Set once all rows of a chunk are there. Two threads may both decode one, to the same bytes.
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
    """Copy rows out of unfiltered chunks, whole or in pieces, straight out of the mapped file.

    The pieces of many rows by one indexed copy each: with a call for each piece, rows in chunks of h5py's own choice
    came at a seventh to a half of the rate.
    """

    def __init__(self, file: MappedFile, table: ChunkTable, facts: StorageFacts) -> None:
        """Look up the places of all pieces.

        Raises:
            DamagedPackError: one is outside the file.
        """
        sides, width, data = facts.chunks or (1,), facts.dtype.itemsize, file.data
        self._file = file
        self._side = sides[0]
        self._block = sides[1:]
        self._pieces = _row_pieces(facts)
        self._whole = facts.has_whole_rows
        # A line for each piece, with the place of each chunk of rows.
        self._chunks = np.ascontiguousarray(table.addresses.reshape(len(table.addresses), len(self._pieces)).T)
        self._length = math.prod(sides[1:]) * width
        written = self._chunks[self._chunks != _NOWHERE]
        self._has_gaps = len(written) < self._chunks.size
        # Of a damaged file, the table may say less than a chunk has.
        if len(written) and (end := int(written.max()) + self._side * self._length) > len(data):
            raise cut_off(file.path, end, len(data))
        # Values as they are stored, which may be of the other byte order: here they are only bytes.
        self._raw = np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")
        self._fill = np.full(1, facts.fill, facts.stored).view(self._raw)
        # Every run of bytes in the file as one element, and as one block, each beginning a byte after the one before;
        # in a file that is shorter, there is none.
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
        # Whole rows are copied once where that is a plain copy.
        most = _SMALL_ROW_BYTES if len(self._pieces) == 1 else _SMALL_PIECE_BYTES
        copy, together = (self._copy_small, _INDEXED_BYTES) if self._length < most else (self._copy_large, SHARE_BYTES)
        # A few at a time: what is copied twice stays in the processor's cache in between.
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
            # Each row as one value, which is faster than its values.
            target.reshape(len(target), -1).view(self._runs.dtype)[rows, 0] = self._runs[places]
            return
        found = self._runs[places].view(self._raw).reshape(len(places), *self._block)
        target[(rows, *piece.target)] = found[(slice(None), *piece.inside)]

    def _copy_large(self, piece: _Piece, places: NDArray[np.int64], target: NDArray[Any]) -> None:
        blocks, lines = self._blocks[(slice(None), *piece.inside)], target[(slice(None), *piece.target)]
        for row, place in enumerate(places.tolist()):
            lines[row] = self._fill if place == _NOWHERE else blocks[place]


class ChunkBytes:
    """Read ranges of a long dataset of bytes that is in chunks."""

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
