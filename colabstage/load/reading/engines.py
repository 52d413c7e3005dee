"""How a dataset's bytes are stored in the file, the engines that read them, and the pure function that chooses one.

An engine copies rows into an array. Engines differ in speed, never in the bytes. Row numbers are checked once, by
`resolve_rows`, so that a copy loop can trust them.

Measured on two cores with a warm file (4,000 rows of 196,608 bytes, 64 at a time, shuffled): one `np.take` out of the
mapping runs at the speed of memory, h5py at a third of it on contiguous data. On chunked data h5py's own lists of
indices are 4 to 46 times slower than a loop, so they are never used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from colabstage.errors import PackFormatError
from colabstage.h5.untrusted import check_parts, element_dtype, home_of, ragged_trouble, reading_contents
from colabstage.io.units import format_bytes, format_count
from colabstage.load.reading.chunks import Filter, undecodable
from colabstage.load.reading.memory import SHARE_BYTES, cut_off, empty_array, spare_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Indices = Sequence[int] | NDArray[np.integer[Any]]
    from pathlib import Path

    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.memory import MappedFile, ReadFile


# With this fraction of a file in memory, a batch waits for the disk so rarely that no other engine is faster.
_WARM_PART = 0.8

Layout = Literal["contiguous", "chunked", "compact", "virtual", "external"]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """How HDF5 stores one dataset."""

    name: str
    """Name of the dataset in the file."""
    shape: tuple[int, ...]
    """Shape of the dataset; the first axis counts rows."""
    dtype: np.dtype[Any]
    """Dtype of the values as they are read, in native byte order."""
    layout: Layout
    """HDF5's storage layout."""
    filters: tuple[Filter, ...]
    """Filters of each chunk, in the order in which they were applied."""
    offset: int | None = None
    """Position of the first byte in the file; `None` if the bytes are not in one place."""
    stored: np.dtype[Any] | None = None
    """Dtype of the bytes in the file, perhaps in the other byte order; `None` if numpy has no such dtype."""
    chunks: tuple[int, ...] | None = None
    """Shape of one chunk; `None` if the dataset is not chunked."""
    fill: Any = None
    """Value of whatever has never been written."""
    home: Path | None = None
    """The file that holds the dataset, if a link in the opened file leads to another one."""

    @property
    def has_whole_rows(self) -> bool:
        """Tell whether each row is in a single chunk, without filters."""
        return self.chunks is not None and not self.filters and self.chunks[1:] == self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Return the length of one row in memory, in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Return the length of all rows in memory, in bytes."""
        return self.shape[0] * self.row_bytes


def is_warm(resident_part: float) -> bool:
    """Tell whether random rows mostly come from memory if it holds this fraction of them."""
    return resident_part >= _WARM_PART


@dataclass(frozen=True, slots=True)
class CacheState:
    """How much of a dataset is in the system's page cache."""

    resident_part: float
    """Fraction of the dataset that is there, 0 to 1."""
    nbytes: int
    """Length of the dataset in bytes."""
    free_memory_bytes: int
    """Memory that this process may use, page cache included."""

    @property
    def fits(self) -> bool:
        """Tell whether memory can hold all of it."""
        return self.nbytes <= spare_memory(self.free_memory_bytes)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that reads a dataset, and the reason for the choice."""

    name: Literal["mapped", "read", "chunks", "h5py", "memory"]
    """`"mapped"` gathers rows from the mapped file, `"read"` reads many rows from the disk at once, `"chunks"` decodes
    chunks of the mapped file in threads, `"h5py"` reads through HDF5, `"memory"` gathers from this process's memory."""
    reason: str
    """The reason, in words that follow the name."""
    costly: bool = False
    """Whether a row costs much more than a copy, so that reading all rows into memory, if they fit, soon pays off."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_engine(
    facts: StorageFacts, *, slow_mount: str | None = None, cache: CacheState | None = None
) -> EngineChoice:
    """Choose the engine for a dataset.

    Args:
        facts: how it is stored.
        slow_mount: why the file's mount must not be mapped; `None` for a local disk.
        cache: how much of a dataset that can be mapped is in memory; `None` if that is unknown.
    """
    # Checked first: if the network fails, a mapping kills the process.
    if slow_mount is not None:
        return EngineChoice("h5py", f"the file is on {slow_mount}, which is not safe to map into memory")
    # Only HDF5 converts types such as 12-bit integers.
    if facts.stored is None:
        return EngineChoice("h5py", "its values are stored in another form than this machine computes with")
    if facts.layout == "chunked":
        return _by_chunks(facts)
    if facts.layout != "contiguous":
        return EngineChoice("h5py", f"its layout is {facts.layout}, not contiguous")
    if facts.offset is None:
        return EngineChoice("h5py", "nothing has been written to it, so it has no place in the file")
    kind = "native values" if facts.stored == facts.dtype else "values whose bytes are turned round after reading"
    plain = f"one contiguous, unfiltered block of {kind} on a local disk"
    return EngineChoice("mapped", plain) if cache is None else _by_cache(plain, cache)


def _by_chunks(facts: StorageFacts) -> EngineChoice:
    names = ", ".join(map(str, facts.filters))
    left = undecodable(facts.filters)
    if left:
        which = ", ".join(map(str, left))
        alone = f"its chunks are filtered ({names}), and {which} is left to HDF5, which decodes one at a time"
        return EngineChoice("h5py", alone, costly=True)
    if facts.has_whole_rows:
        return EngineChoice("chunks", "each row is inside one unfiltered chunk, found by the file's own table")
    if not facts.filters:
        return EngineChoice("chunks", f"its unfiltered chunks of {facts.chunks} cut through rows", costly=True)
    threads = f"its chunks are filtered ({names}), and decoded in threads outside HDF5's lock"
    return EngineChoice("chunks", threads, costly=True)


def _by_cache(plain: str, cache: CacheState) -> EngineChoice:
    """Choose by the page cache: a cold file that fits into memory is read through once and mapped, a larger one is read
    row by row, because random rows of a cold mapping read 20 times the bytes asked for."""
    # Row by row, a file that fits would give its first batch sooner, by a second for each gigabyte or two, but not
    # its first epoch: rows of 784 bytes came at a fifteenth of the rate, of 49,152 at half, of 196,608 and more at
    # about the same.
    if is_warm(cache.resident_part):
        return EngineChoice("mapped", f"{plain}, {cache.resident_part:.0%} of it in memory")
    if cache.fits:
        first = "read through once, front to back, before the first batch of a loader"
        return EngineChoice("mapped", f"{plain}, {cache.resident_part:.0%} of it in memory, where it fits: {first}")
    size, spare = format_bytes(cache.nbytes), format_bytes(spare_memory(cache.free_memory_bytes))
    return EngineChoice(
        "read", f"{plain}, {cache.resident_part:.0%} of it in memory, and its {size} do not fit into {spare}"
    )


def read_storage_facts(dataset: Any, name: str, path: Path) -> StorageFacts:
    """Ask HDF5 how an open `h5py.Dataset` is stored.

    Args:
        dataset: the dataset itself; a link may have led to it, even from another file.
        name: its name in the file that was opened; the dataset only knows its name in its own file.
        path: the file that was opened.

    Raises:
        PackFormatError: its values are not numbers, or the file that holds them is missing.
    """
    check_parts(dataset, name, path)
    dtype = dataset.dtype.newbyteorder("=")
    if dtype.kind not in "biufc":
        msg = f"{name} in '{path}' holds {_describe_type(dataset)}; expected numbers. {_remedy_for(dataset)}"
        raise PackFormatError(msg)
    properties = dataset.id.get_create_plist()
    layout = _layout(properties)
    return StorageFacts(
        name=name,
        shape=tuple(dataset.shape),
        dtype=dtype,
        layout=layout,
        # In a file with a user block, HDF5 names an offset even for data that was never written.
        offset=dataset.id.get_offset() if layout == "contiguous" and dataset.id.get_storage_size() else None,
        stored=np.dtype(dataset.dtype.str) if _is_exact(dataset) else None,
        chunks=tuple(dataset.chunks) if layout == "chunked" else None,
        filters=_filters(properties, name, path),
        fill=_fill_value(dataset, name, path),
        home=home_of(dataset, path),
    )


def _fill_value(dataset: Any, name: str, path: Path) -> Any:
    """Return the value of whatever has never been written.

    Raises:
        PackFormatError: no value was written, and no fill value is defined.
    """
    from h5py import h5d

    if dataset.id.get_create_plist().fill_value_defined() != h5d.FILL_VALUE_UNDEFINED:
        return dataset.fillvalue
    if dataset.size and not dataset.id.get_storage_size() and dataset.chunks is None and not dataset.is_virtual:
        msg = f"Nothing has been written to {name} in '{path}', and it has no fill value. Write its rows first."
        raise PackFormatError(msg)
    # Memory that HDF5 leaves untouched is zero, because h5py clears it first.
    return dataset.dtype.type(0)


def ragged_facts(dataset: Any, name: str, path: Path) -> StorageFacts:
    """Ask HDF5 how an open `h5py.Dataset` with rows of variable length is stored. `dtype` is the dtype of one value,
    `shape` only counts the rows.

    Raises:
        PackFormatError: one of its filters is not available, or the file that holds its values is missing.
    """
    check_parts(dataset, name, path)
    properties = dataset.id.get_create_plist()
    return StorageFacts(
        name=name,
        shape=tuple(dataset.shape),
        dtype=element_dtype(dataset),
        layout=_layout(properties),
        filters=_filters(properties, name, path),
        home=home_of(dataset, path),
    )


def choose_ragged(*, texts: bool, slow_mount: str | None = None) -> EngineChoice:
    """Choose the engine for rows of variable length, which is always h5py."""
    rows = "its rows are texts" if texts else "its rows have any length (HDF5's variable-length type)"
    mount = "" if slow_mount is None else f"; besides, the file is on {slow_mount}"
    return EngineChoice("h5py", f"{rows}, which only HDF5 itself reads, one thread at a time{mount}", costly=True)


def _describe_type(dataset: Any) -> str:
    """Name the type of values that are not numbers in HDF5's terms."""
    from h5py import check_string_dtype, check_vlen_dtype

    if check_string_dtype(dataset.dtype) is not None:
        return "arrays of texts" if len(dataset.shape) > 1 else "texts"
    base = check_vlen_dtype(dataset.dtype)
    if base is not None:
        return f"rows of any number of {base} values (HDF5's variable length)"
    return f"compound values of {', '.join(dataset.dtype.names)}" if dataset.dtype.names else f"{dataset.dtype} values"


def _remedy_for(dataset: Any) -> str:
    from h5py import check_string_dtype, check_vlen_dtype

    trouble = ragged_trouble(dataset)
    if trouble is not None:
        return trouble
    if check_string_dtype(dataset.dtype) is not None:
        return "Store the number of each text instead."
    if check_vlen_dtype(dataset.dtype) is not None:
        return "Each is a pointer into a heap: write them once as one dataset, padded to the longest."
    if dataset.dtype.names:
        return "Copy the member that is wanted into a dataset of its own."
    return "Store them as numbers."


def _layout(properties: Any) -> Layout:
    from h5py import h5d

    if properties.get_layout() == h5d.CONTIGUOUS:
        return "external" if properties.get_external_count() else "contiguous"
    names: dict[int, Layout] = {h5d.CHUNKED: "chunked", h5d.COMPACT: "compact", h5d.VIRTUAL: "virtual"}
    return names[properties.get_layout()]


def _filters(properties: Any, name: str, path: Path) -> tuple[Filter, ...]:
    """Return the filters of a dataset's chunks.

    Raises:
        PackFormatError: one of them is not available.
    """
    from h5py import h5z

    described = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    filters = tuple(
        Filter(number, label.decode("ascii", "replace").rstrip("\0") or f"filter {number}", tuple(values))
        for number, _, values, label in described
    )
    for step in undecodable(filters):
        if not h5z.filter_avail(step.number):
            msg = (
                f"{name} in '{path}' is compressed by {step} (HDF5 filter {step.number}), which h5py here cannot undo. "
                "Install it with: pip install hdf5plugin, and `import hdf5plugin` before opening the file."
            )
            raise PackFormatError(msg)
    return filters


def _is_exact(dataset: Any) -> bool:
    """Tell whether numpy has the stored type, with the same width, precision and padding."""
    from h5py import h5t

    stored = dataset.id.get_type()
    if dataset.dtype.kind in "bc":
        # h5py stores booleans as an enumeration and complex numbers as a pair, of the size that numpy's have.
        return bool(stored.get_size() == dataset.dtype.itemsize)
    return bool(stored.equal(h5t.py_create(dataset.dtype)))


def resolve_rows(indices: Indices, count: int) -> NDArray[np.intp]:
    """Turn indices into rows of a dataset of `count` rows.

    Args:
        indices: one-dimensional integers: a sequence, an array or a tensor. Negative ones count from the end; repeats
            and an empty sequence are allowed.
        count: number of rows.

    Returns:
        intp `(len(indices),)`, each in `[0, count)`.

    Raises:
        IndexError: an index is out of range; the message names it.
        TypeError: `indices` are not one-dimensional integers.
    """
    rows = np.asarray(indices)
    if rows.size == 0 and rows.ndim == 1:
        return np.empty(0, np.intp)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        if rows.ndim == 1 and rows.dtype == object and all(isinstance(row, int) for row in rows):
            # An index of more than 64 bits is out of range for any file.
            msg = f"Index {max(rows, key=abs)} is out of range for {format_count(count, 'samples')}."
            raise IndexError(msg)
        msg = f"Expected a one-dimensional list of integers as indices, got {rows.ndim} dimensions of {rows.dtype}."
        if rows.dtype == bool:
            msg += " Of a mask take its rows: numpy.flatnonzero(mask)."
        raise TypeError(msg)
    # Read as unsigned numbers, negative indices exceed any count, so a single comparison covers the usual case.
    if rows.dtype == np.intp and rows.view(np.uintp).max() < count:
        return rows
    low, high = int(rows.min()), int(rows.max())
    if low < -count or high >= count:
        msg = f"Index {high if high >= count else low} is out of range for {format_count(count, 'samples')}."
        raise IndexError(msg)
    rows = rows.astype(np.intp, copy=False)
    return np.where(rows < 0, rows + count, rows) if low < 0 else rows


def row_runs(rows: NDArray[np.intp], longest: int) -> Iterator[tuple[int, int, int]]:
    """Split rows into runs of neighbours, each one more than the last, none longer than `longest`.

    Yields:
        `(start, first_row, length)`: `rows[start : start + length]` is `first_row, first_row + 1, …`.
    """
    # Equal rows break a run too: each place in the batch needs its own copy.
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        for start in range(begin, end, longest):
            yield start, int(rows[start]), min(longest, end - start)


# Bytes that one thread copies alone and in one piece, in a few milliseconds. To split a batch takes Python's lock more
# often, and that costs a training step that holds the lock more than the copy itself.
_ALONE_BYTES = 16 * 1024 * 1024
# Limit of what is decoded at once in addition to the result, because a chunk may hold many times more than a batch.
_SCRATCH_BYTES = 64 * 1024 * 1024


class RowEngine(Protocol):
    """Copy rows of one dataset. Several threads may call it at once."""

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        """Copy `rows`, each in `[0, N)`, to `out`, C-contiguous `(len(rows), …)` of the dataset's native dtype."""


class GatherEngine:
    """Gather rows from memory: that of a mapped file, or of an array."""

    def __init__(self, table: NDArray[np.uint8], file: MappedFile | None) -> None:
        """Take `table`, uint8 `(N, row_bytes)`. `file`: the file that it maps, checked before each read; `None` for
        memory of this process."""
        # Bytes, because np.take first copies the whole table if its elements are not aligned.
        self._table = table
        self._file = file

    @property
    def table(self) -> NDArray[np.uint8]:
        """Return the memory that rows are gathered from, uint8 `(N, row_bytes)`."""
        return self._table

    def check(self) -> None:
        """Make sure that the file is as it was when it was opened.

        Raises:
            DamagedPackError: somebody has written to it.
        """
        if self._file is not None:
            self._file.check()

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        # Otherwise a write to the file would change pixels in the middle of a batch, unnoticed.
        self.check()
        if out.nbytes == 0:
            return
        target = memory_table(out)

        def gather(start: int, stop: int) -> None:
            # mode="raise" would copy through a buffer, and the rows have been checked.
            np.take(self._table, rows[start:stop], axis=0, out=target[start:stop], mode="clip")

        if out.nbytes <= SHARE_BYTES:
            gather(0, len(rows))
        else:
            pool.share(len(rows), gather, alone=max(1, _ALONE_BYTES // self._table.shape[1]))


def mapped_table(file: MappedFile, facts: StorageFacts) -> NDArray[np.uint8]:
    """Return a contiguous dataset in native byte order in a mapped file as uint8 `(N, row_bytes)`.

    Raises:
        DamagedPackError: the file ends before the dataset does.
    """
    start = facts.offset or 0
    if start + facts.nbytes > len(file.data):
        raise cut_off(file.path, start + facts.nbytes, len(file.data))
    return file.data[start : start + facts.nbytes].reshape(facts.shape[0], facts.row_bytes)


def memory_table(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a C-contiguous array of N rows as uint8 `(N, row_bytes)`."""
    # For a few numbers, math.prod takes a tenth of np.prod's time, in which a small batch is gathered.
    row_bytes = math.prod(values.shape[1:]) * values.itemsize
    return values.reshape(-1).view(np.uint8).reshape(len(values), row_bytes)


class ReadEngine:
    """Read rows of a contiguous dataset from the disk, one read in each thread of the pool.

    For files larger than memory: 16 threads read 64 rows of 196,608 bytes at 4 times the rate of the mapped file, whose
    read-ahead fetches many times the bytes asked for (benchmarks/read_cold.py).
    """

    def __init__(self, file: ReadFile, facts: StorageFacts) -> None:
        self._file = file
        self._start = facts.offset or 0
        self._row_bytes = facts.row_bytes

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._file.check()
        if out.nbytes == 0:
            return
        target = out.reshape(-1).view(np.uint8)
        length = self._row_bytes

        def read(start: int, stop: int) -> None:
            for place, row, count in row_runs(rows[start:stop], stop - start):
                pool.cancellation.check()
                begin = (start + place) * length
                self._file.read_into(self._start + row * length, target[begin : begin + count * length])

        pool.share(len(rows), read)


class H5pyEngine:
    """Read rows through h5py if they are neither contiguous nor in chunks; one call reads a run of neighbours.

    h5py holds one lock for the whole process, so more threads would not help.
    """

    def __init__(self, dataset: Any, facts: StorageFacts, path: Path) -> None:
        self._dataset = dataset
        self._facts = facts
        self._path = path

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        if out.nbytes == 0:
            return
        # h5py requires ascending rows without repeats.
        wanted, place = np.unique(rows, return_inverse=True)
        order = np.argsort(place, kind="stable")
        # order[edges[i] : edges[i + 1]] are the places in `out` of the i-th wanted row.
        edges = np.searchsorted(place[order], np.arange(len(wanted) + 1))
        longest = max(1, _SCRATCH_BYTES // max(1, self._facts.row_bytes))
        with reading_contents(self._path):
            for start, first, length in row_runs(wanted, longest):
                pool.cancellation.check()
                block = self._dataset[first : first + length]
                targets = order[edges[start] : edges[start + length]]
                out[targets] = block[wanted[place[targets]] - first]


class ByteSwappedEngine:
    """Read rows that are stored in the other byte order, and swap their bytes."""

    def __init__(self, engine: RowEngine) -> None:
        self._engine = engine

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._engine.read_rows(rows, out, pool)
        pool.share(len(rows), lambda start, stop: turn_bytes(out[start:stop]))


def in_native_order(engine: RowEngine, facts: StorageFacts) -> RowEngine:
    """Return an engine that gives rows in this machine's byte order, whatever the order in the file."""
    return engine if facts.stored == facts.dtype else ByteSwappedEngine(engine)


def turn_bytes(values: NDArray[Any]) -> None:
    """Swap the bytes of values in place, from the other byte order to this machine's."""
    if not values.flags.c_contiguous:
        values.byteswap(inplace=True)
        return
    # A one-dimensional array copied onto itself takes a third of the time of `byteswap`; with more axes numpy would
    # make a copy first.
    line = values.reshape(-1)
    np.copyto(line, line.view(line.dtype.newbyteorder()))


def load_array(engine: RowEngine, facts: StorageFacts, pool: ThreadPool) -> NDArray[Any]:
    """Read all rows into memory, front to back."""
    values = empty_array(facts.shape, facts.dtype)
    # In parts, because engines hold what they decode in addition to the result; of whole chunks, to decode each once.
    together = facts.chunks[0] if facts.chunks else 1
    step = max(1, _SCRATCH_BYTES // max(1, facts.row_bytes) // together) * together
    for start in range(0, facts.shape[0], step):
        stop = min(facts.shape[0], start + step)
        engine.read_rows(np.arange(start, stop), values[start:stop], pool)
    return values
