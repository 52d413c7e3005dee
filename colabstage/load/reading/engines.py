"""Copy rows out of an HDF5 dataset into an array, in several ways. All give the same bytes; `storage` says which is
used.

Row numbers are checked once, where they come in, and made the ones that a copy loop can trust.

Measured on two cores with a warm file (4,000 rows of 196,608 bytes, 64 at a time, shuffled): one `np.take` out of the
mapping runs at the speed of memory, h5py at a third of it on contiguous data. On chunked data h5py's own lists of
indices are 4 to 46 times slower than a loop, so they are never used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from colabstage.io.units import format_count
from colabstage.load.reading.memory import SHARE_BYTES, cut_off, empty_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Indices = Sequence[int] | NDArray[np.integer[Any]]
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.memory import MappedFile, ReadFile
    from colabstage.load.reading.storage import StorageFacts


def resolve_rows(indices: Indices, count: int) -> NDArray[np.intp]:
    """Turn indices into rows of a dataset of `count` rows.

    Args:
        indices: one-dimensional integers: a sequence, an array or a tensor; negative ones count from the end,
            repeats are fine, none at all too.
        count: number of rows.

    Returns:
        intp `(len(indices),)`, each in `[0, count)`.

    Raises:
        IndexError: a row that is not there, by its number.
        TypeError: something else than a list of integers.
    """
    # Lists, arrays and tensors all come this way.
    rows = np.asarray(indices)
    if rows.size == 0 and rows.ndim == 1:
        return np.empty(0, np.intp)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        msg = f"Expected a one-dimensional list of integers as indices, got {rows.ndim} dimensions of {rows.dtype}."
        raise TypeError(msg)
    # As unsigned numbers negative ones are beyond any count, so that one look is enough for the usual rows.
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


# What one thread copies alone in one go while nobody waits: a few milliseconds. More trips through Python's lock, of
# halves and quarters of a batch, cost a training step that holds it more than the copy itself.
_ALONE_BYTES = 16 * 1024 * 1024
# Most that is decoded beside the result at once. A chunk may hold many times more than a batch.
_SCRATCH_BYTES = 64 * 1024 * 1024


class RowEngine(Protocol):
    """Copy rows of one dataset. May be called from any thread, from several at once."""

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        """Copy `rows`, each in `[0, N)`, to `out`, C-contiguous `(len(rows), …)` of the dataset's native dtype."""


class GatherEngine:
    """Copy rows by one gather out of memory: a mapped file's, or an array's."""

    def __init__(self, table: NDArray[np.uint8], file: MappedFile | None) -> None:
        """Take `table`, uint8 `(N, row_bytes)`. `file`: what it maps, checked before each read; `None` for own
        memory."""
        # As bytes, because np.take makes an aligned copy of the whole table first when elements are not aligned.
        self._table = table
        self._file = file

    @property
    def table(self) -> NDArray[np.uint8]:
        """Return the memory that rows are gathered from, uint8 `(N, row_bytes)`."""
        return self._table

    def check(self) -> None:
        """Make sure that rows are what they were when the file was opened.

        Raises:
            DamagedPackError: somebody wrote to it.
        """
        if self._file is not None:
            self._file.check()

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        # A write to the file would change pixels in the middle of a batch, unseen.
        self.check()
        if out.nbytes == 0:
            return
        target = memory_table(out)

        def gather(start: int, stop: int) -> None:
            # "clip" because "raise" copies by way of a buffer; the rows have been checked.
            np.take(self._table, rows[start:stop], axis=0, out=target[start:stop], mode="clip")

        if out.nbytes <= SHARE_BYTES:
            gather(0, len(rows))
        else:
            pool.share(len(rows), gather, alone=max(1, _ALONE_BYTES // self._table.shape[1]))


def mapped_table(file: MappedFile, facts: StorageFacts) -> NDArray[np.uint8]:
    """Return a contiguous, native dataset in a mapped file as uint8 `(N, row_bytes)`.

    Raises:
        DamagedPackError: the file ends before the dataset does.
    """
    start = facts.offset or 0
    if start + facts.nbytes > len(file.data):
        raise cut_off(file.path, start + facts.nbytes, len(file.data))
    return file.data[start : start + facts.nbytes].reshape(facts.shape[0], facts.row_bytes)


def memory_table(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a C-contiguous array, the row first, as uint8 `(N, row_bytes)`."""
    # math's product of a few numbers takes a tenth of numpy's time; a small batch is gathered in as long.
    row_bytes = math.prod(values.shape[1:]) * values.itemsize
    return values.reshape(-1).view(np.uint8).reshape(len(values), row_bytes)


class ReadEngine:
    """Read rows of a contiguous dataset from the disk, each part of the pool with a read of its own under way.

    For files that memory cannot hold: 64 rows of 196,608 bytes by 16 threads came at 4 times the rate of the mapped
    file, whose read-ahead fetches many times the bytes asked for (benchmarks/read_cold.py).
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
    """Read rows by h5py, for whatever has neither one place nor chunks in the file: runs of rows in one go.

    h5py holds one lock for the whole process, so more threads would not help.
    """

    def __init__(self, dataset: Any, facts: StorageFacts) -> None:
        self._dataset = dataset
        self._facts = facts

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        if out.nbytes == 0:
            return
        # h5py wants rows ascending and each once.
        wanted, place = np.unique(rows, return_inverse=True)
        order = np.argsort(place, kind="stable")
        # edges[i] : edges[i + 1] of `order` are the places that the i-th wanted row goes to.
        edges = np.searchsorted(place[order], np.arange(len(wanted) + 1))
        for start, stop in self._parts(wanted):
            pool.cancellation.check()
            first = int(wanted[start])
            block = self._dataset[first : int(wanted[stop - 1]) + 1]
            targets = order[edges[start] : edges[stop]]
            out[targets] = block[wanted[place[targets]] - first]

    def _parts(self, wanted: NDArray[np.intp]) -> list[tuple[int, int]]:
        """Split ascending rows into parts `(start, stop)`, each read from its first row to its last in one go."""
        longest = max(1, _SCRATCH_BYTES // max(1, self._facts.row_bytes))
        return [(start, start + length) for start, _, length in row_runs(wanted, longest)]


class ByteSwappedEngine:
    """Read rows whose bytes are in the other order, and swap them once they are read."""

    def __init__(self, engine: RowEngine) -> None:
        self._engine = engine

    def read_rows(self, rows: NDArray[np.intp], out: NDArray[Any], pool: ThreadPool) -> None:
        self._engine.read_rows(rows, out, pool)
        pool.share(len(rows), lambda start, stop: turn_bytes(out[start:stop]))


def turn_bytes(values: NDArray[Any]) -> None:
    """Bring values from the other byte order to this machine's, in place."""
    if not values.flags.c_contiguous:
        values.byteswap(inplace=True)
        return
    # As one line copied onto itself, for which numpy has loops that take a third of the time of `byteswap`; of more
    # than one axis it would make a copy of its own first.
    line = values.reshape(-1)
    np.copyto(line, line.view(line.dtype.newbyteorder()))


def load_array(engine: RowEngine, facts: StorageFacts, pool: ThreadPool) -> NDArray[Any]:
    """Read all rows into memory, front to back."""
    values = empty_array(facts.shape, facts.dtype)
    # In parts, as engines hold beside the result what they decode; of whole chunks, so that each is decoded once.
    together = facts.chunks[0] if facts.chunks else 1
    step = max(1, _SCRATCH_BYTES // max(1, facts.row_bytes) // together) * together
    for start in range(0, facts.shape[0], step):
        stop = min(facts.shape[0], start + step)
        engine.read_rows(np.arange(start, stop), values[start:stop], pool)
    return values
