"""Fields, which read the rows of one dataset, and the pure function that chooses the kind of field.

`Mapped` gathers rows from memory, a file's mapping or an array; `Pread` reads rows by position from a file that is
larger than memory; `Encoded` decodes image files; `Boxes` reads any number of boxes for each row; `Foreign` and
`Ragged` leave to h5py what colabstage never writes. Fields differ in speed, never in the bytes. Row numbers are checked
once, by `resolve_rows`; copy loops trust them. One `np.take` out of the mapping runs at the speed of memory, h5py at a
third of it on contiguous data (two cores, warm).
"""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import DamagedPackError, DecodeError, PackFormatError
from colabstage.h5.schema import BOXES
from colabstage.h5.untrusted import home_of, ragged_trouble, reading_contents, unwritten_part
from colabstage.images.decode import (
    Crop,
    PixelRoom,
    Resizer,
    Scratch,
    WholeImage,
    can_torch_resize,
    decode_region,
    decode_sized,
    decode_whole,
    is_jpeg,
    probe_image,
    scale_by_torch,
)
from colabstage.images.geometry import ColorMode, ImageOptions, MaskOptions, block_side, fit_boxes
from colabstage.images.masks import decode_mask
from colabstage.io.units import format_bytes, format_count
from colabstage.load.plan import Choice
from colabstage.load.reading.memory import SHARE_BYTES, KeptImages, KeptSlot, OpenedFile, cut_off, empty_array
from colabstage.machine.mounts import mount_of, slow_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.memory import Key

    Indices = Sequence[int] | NDArray[np.integer[Any]]


# Targets of B rows: one array `(B, …)`, or a list of B if rows have different shapes.
TargetBatch = NDArray[Any] | list[NDArray[Any]] | list[dict[str, NDArray[Any]]] | list[str]

# With this fraction of a file in memory, a batch waits for the disk so rarely that nothing else is faster.
WARM_PART = 0.8
# Bytes that one thread copies alone and in one piece, in a few milliseconds. To split a batch takes Python's lock more
# often, and that costs a training step that holds the lock more than the copy itself.
_ALONE_BYTES = 16 * 1024 * 1024
# The most bytes that h5py reads at once, in addition to the result.
_SLICE_BYTES = 64 * 1024 * 1024
_RAGGED_ROWS = 65_536


class Field(Protocol):
    """Rows of one dataset. Several threads may read at once."""

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        """Read `rows`, each in `[0, N)`: into `out`, C-contiguous `(len(rows), …)`, if they share one shape, otherwise
        as a list."""


@dataclass(frozen=True, slots=True)
class Storage:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    choice: Choice
    """How it is read, and why: `"mapped"` gathers rows from the mapped file, `"read"` reads many rows from the disk at
    once, `"h5py"` reads through HDF5."""
    offset: int | None = None
    """Position of the first byte; `None` if the values are not one block of native values."""
    home: Path | None = None
    """The file that stores it, if a link in the opened file leads there."""
    unwritten: str = ""
    """How many of its chunks or values were never written; empty for none."""

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes


# What is mapped into memory or read by position.
_PLAIN = "one contiguous, unfiltered block of native values on a local disk"


def choose_engine(resident: float, nbytes: int, spare_bytes: int) -> Choice:
    """Choose how rows of a mapped dataset are read, of which this part is in the system's cache, where so many bytes
    are read at random, and memory has room for so many."""
    # A cold file that fits into memory is read through once and mapped. A larger one is read row by row, because random
    # rows of a cold mapping read 20 times the bytes asked for. Row by row, a file that fits would give its first batch
    # sooner, by a second for each gigabyte or two, but not its first epoch.
    plain = f"{_PLAIN}, {resident:.0%} of it in memory"
    if resident >= WARM_PART:
        return Choice("mapped", plain)
    if nbytes <= spare_bytes:
        return Choice("mapped", f"{plain}, where it fits: read through once before the first batch of a loader")
    sizes = f"{format_bytes(nbytes)} do not fit into {format_bytes(spare_bytes)}"
    return Choice("read", f"{plain}, and its {sizes}")


def read_storage(dataset: Any, name: str, path: Path, slow_mount: str | None = None) -> Storage:
    """Describe an open `h5py.Dataset` of numbers, `name` in the file at `path`; refuse what cannot be read.
    `slow_mount`: why it must not be mapped."""
    from h5py import h5z

    dtype = dataset.dtype.newbyteorder("=")
    if dtype.kind not in "biufc":
        remedy = ragged_trouble(dataset) or "Store them as numbers."
        msg = f"{name} in '{path}' holds values of {dataset.dtype}; expected numbers. {remedy}"
        raise PackFormatError(msg)
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    names = [label.decode("ascii", "replace").rstrip("\0") or f"filter {code}" for code, _, _, label in filters]
    for (code, *_), label in zip(filters, names, strict=True):
        if not h5z.filter_avail(code):
            msg = (
                f"{name} in '{path}' is compressed by {label} (HDF5 filter {code}), which h5py here cannot undo. "
                "Install it with: pip install hdf5plugin, and `import hdf5plugin` before opening the file."
            )
            raise PackFormatError(msg)
    # In a file with a user block, HDF5 names an offset even for data that was never written.
    offset, why = dataset.id.get_offset() if dataset.id.get_storage_size() else None, ""
    if names:
        why = f"its chunks are filtered ({', '.join(names)}), and HDF5 decodes them one at a time"
    elif dataset.chunks is not None:
        why = f"it is stored in chunks of {dataset.chunks}"
    elif not _is_native(dataset):
        why = "its values are stored in another form than this machine computes with"
    elif dataset.is_virtual or dataset.external:
        why = "its values are in other files"
    elif offset is None:
        why = "its values have no place of their own in the file"
    home = home_of(dataset, path)
    slow_mount = slow_mount or (None if home is None else slow_reason(mount_of(home)))
    choice = Choice("mapped", _PLAIN)
    # If the network fails, a mapping kills the process.
    if slow_mount is not None:
        choice = Choice("h5py", f"the file is on {slow_mount}, which is not safe to map into memory")
    elif why:
        choice = Choice("h5py", why)
    return Storage(name, tuple(dataset.shape), dtype, choice, None if why else offset, home, unwritten_part(dataset))


def _is_native(dataset: Any) -> bool:
    """Return whether numpy has the stored type, with the same width, byte order, precision and padding."""
    from h5py import h5t

    stored = dataset.id.get_type()
    if not dataset.dtype.isnative:
        return False
    if dataset.dtype.kind in "bc":
        # h5py stores booleans as an enumeration and complex numbers as a pair, with the size of numpy's.
        return bool(stored.get_size() == dataset.dtype.itemsize)
    return bool(stored.equal(h5t.py_create(dataset.dtype)))


def resolve_rows(indices: Indices, count: int) -> NDArray[np.intp]:
    """Turn one-dimensional integers into rows of a dataset of `count` rows, intp. Negative ones count from the end.
    Raises IndexError for one that is out of range, and TypeError for anything else."""
    rows = np.asarray(indices)
    if rows.size == 0 and rows.ndim == 1:
        return np.empty(0, np.intp)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        msg = f"Expected a one-dimensional list of integers as indices, got {rows.ndim} dimensions of {rows.dtype}."
        if rows.dtype == bool:
            msg += " Of a mask take its rows: numpy.flatnonzero(mask)."
        raise TypeError(msg)
    # Viewed as unsigned numbers, negative indices exceed any count, so one comparison covers the usual case.
    if rows.dtype == np.intp and rows.view(np.uintp).max() < count:
        return rows
    low, high = int(rows.min()), int(rows.max())
    if low < -count or high >= count:
        msg = f"Index {high if high >= count else low} is out of range for {format_count(count, 'samples')}."
        raise IndexError(msg)
    rows = rows.astype(np.intp, copy=False)
    return np.where(rows < 0, rows + count, rows) if low < 0 else rows


def row_runs(rows: NDArray[np.intp], longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield `(start, first_row, length)` for each run of neighbours, none longer than `longest`: `rows[start : start +
    length]` is `first_row, first_row + 1, …`."""
    # Equal rows break a run too: each place in the batch needs its own copy.
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        for start in range(begin, end, longest):
            yield start, int(rows[start]), min(longest, end - start)


class Mapped:
    """Gather rows from memory: a file's mapping, or an array."""

    def __init__(self, table: NDArray[np.uint8], file: OpenedFile | None) -> None:
        """Take `table`, uint8 `(N, row_bytes)`. `file`: the file that it maps, checked before each read."""
        # Bytes, because np.take first copies the whole table if its elements are not aligned.
        self.table = table
        self._file = file

    @classmethod
    def over(cls, file: OpenedFile, storage: Storage) -> Mapped:
        start = storage.offset or 0
        stop = start + storage.nbytes
        if stop > len(file.data):
            raise cut_off(file.path, stop, len(file.data))
        return cls(file.data[start:stop].reshape(storage.shape[0], storage.row_bytes), file)

    def writable_table(self) -> NDArray[np.uint8]:
        """Return the table in writable memory, for libraries that insist on it."""
        if self._file is None:
            return self.table
        start = self.table.ctypes.data - self._file.data.ctypes.data
        return self._file.private()[start : start + self.table.nbytes].reshape(self.table.shape)

    def check(self) -> None:
        """Raise DamagedPackError if somebody has written to the file since it was opened."""
        if self._file is not None:
            self._file.check()

    def bytes_of(self, start: int, stop: int) -> bytes:
        self.check()
        return self.table.reshape(-1)[start:stop].tobytes()

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        # Otherwise a write to the file could change pixels in the middle of a batch, unnoticed.
        self.check()
        assert out is not None
        if out.nbytes == 0:
            return out
        target = memory_table(out)

        def gather(start: int, stop: int) -> None:
            # mode="raise" would copy through a buffer, and the rows have been checked.
            self.table.take(rows[start:stop], 0, target[start:stop], "clip")

        if out.nbytes <= SHARE_BYTES:
            gather(0, len(rows))
        else:
            pool.share(len(rows), gather, alone=max(1, _ALONE_BYTES // self.table.shape[1]))
        return out


def memory_table(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a C-contiguous array of N rows as uint8 `(N, row_bytes)`."""
    # For a few numbers, math.prod takes a tenth of np.prod's time, which is as long as gathering a small batch.
    row_bytes = math.prod(values.shape[1:]) * values.itemsize
    return values.reshape(-1).view(np.uint8).reshape(len(values), row_bytes)


class Pread:
    """Read rows of a contiguous dataset from the disk, one read in each thread of the pool: for files larger than
    memory, at 4 times the rate of the mapped file, whose read-ahead fetches far too much (benchmarks/read_cold.py)."""

    def __init__(self, file: OpenedFile, storage: Storage) -> None:
        self._file = file
        self._start = storage.offset or 0
        self._row_bytes = storage.row_bytes

    def bytes_of(self, start: int, stop: int) -> bytes:
        return self._file.read(self._start + start, self._start + stop)

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        self._file.check()
        assert out is not None
        if out.nbytes == 0:
            return out
        target = out.reshape(-1).view(np.uint8)
        length = self._row_bytes

        def read(start: int, stop: int) -> None:
            for place, row, count in row_runs(rows[start:stop], stop - start):
                pool.cancellation.check()
                begin = (start + place) * length
                self._file.read_into(self._start + row * length, target[begin : begin + count * length])

        pool.share(len(rows), read)
        return out


class Foreign:
    """Read rows through h5py, a run of neighbours in one call: on chunked data its own lists of indices are 4 to 46
    times slower than a loop. It holds one lock for the whole process, so more threads would not help."""

    def __init__(self, dataset: Any, storage: Storage, path: Path) -> None:
        self._dataset = dataset
        self._storage = storage
        self._path = path

    def bytes_of(self, start: int, stop: int) -> bytes:
        with reading_contents(self._path):
            return bytes(self._dataset[start:stop].tobytes())

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        assert out is not None
        if out.nbytes == 0:
            return out
        # Each wanted row is read once, in ascending order, and goes to one or more places in `out`.
        order = np.argsort(rows, kind="stable")
        wanted, begins = np.unique(rows[order], return_index=True)
        edges = [*begins.tolist(), len(rows)]
        longest = max(1, _SLICE_BYTES // max(1, self._storage.row_bytes))
        with reading_contents(self._path):
            for start, first, length in row_runs(wanted, longest):
                pool.cancellation.check()
                block = self._dataset[first : first + length]
                places = order[edges[start] : edges[start + length]]
                out[places] = block[rows[places] - first]
        return out

    def load(self) -> NDArray[Any]:
        """Read all rows, front to back, in the machine's byte order."""
        values = empty_array(self._storage.shape, self._storage.dtype)
        chunks = self._dataset.chunks
        # Whole chunks, so that each is decoded once.
        together = chunks[0] if chunks else 1
        step = max(1, _SLICE_BYTES // max(1, self._storage.row_bytes) // together) * together
        with reading_contents(self._path):
            for start in range(0, len(values), step):
                values[start : start + step] = self._dataset[start : start + step]
        return values


class Ragged:
    """Read rows of any length, or texts, through h5py, which alone follows HDF5's heaps. A row costs 40 to 120 µs at
    random, and 2 to 5 µs if all are read front to back: so those that fit into memory are read once."""

    def __init__(self, dataset: Any, path: Path, *, texts: bool) -> None:
        self._dataset = dataset
        self._path = path
        self._texts = texts
        self._name = str(dataset.name).lstrip("/")
        self._every: list[Any] | None = None

    def load(self, most_bytes: int) -> bool:
        """Read all rows into memory if they need no more than `most_bytes`; return whether they are there."""
        found: list[Any] = []
        held = 0
        for start in range(0, len(self._dataset), _RAGGED_ROWS):
            rows = np.arange(start, min(len(self._dataset), start + _RAGGED_ROWS))
            found += (block := self._values(rows))
            # HDF5 does not tell in advance how long rows are.
            held += sum(getattr(one, "nbytes", len(one)) for one in block)
            if held > most_bytes:
                return False
        self._every = found
        return True

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> list[Any]:
        every = self._every
        found = self._values(rows) if every is None else [every[row] for row in rows.tolist()]
        if self._texts:
            return [self._text(row, value) for row, value in zip(rows.tolist(), found, strict=True)]
        # The caller must not change those in memory, or a row that was requested twice.
        return found if every is None else [value.copy() for value in found]

    def _values(self, rows: NDArray[np.intp]) -> list[Any]:
        if not len(rows):
            return []
        wanted, places = np.unique(rows, return_inverse=True)
        first, last = int(wanted[0]), int(wanted[-1])
        # h5py takes only ascending lists; a run of neighbours is faster as a slice.
        chosen = slice(first, last + 1) if last - first == len(wanted) - 1 else wanted
        with reading_contents(self._path):
            found = self._dataset[chosen].tolist()
        taken = [found[place] for place in places.tolist()]
        if len(wanted) == len(rows):
            return taken
        return [value.copy() if isinstance(value, np.ndarray) else value for value in taken]

    def _text(self, row: int, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            msg = (
                f"Row {row} of {self._name} in '{self._path}' is not UTF-8 text ({error}). Write texts again with "
                "h5py.string_dtype(), and the bytes of files with h5py.vlen_dtype('uint8')."
            )
            raise DecodeError(msg) from error


def check_offsets(offsets: NDArray[np.int64], count: int, label: str, what: str) -> None:
    """Raise DamagedPackError unless offsets ascend and stay within the `count` values (`what`) that they divide."""
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > count or bool((np.diff(offsets) < 0).any())):
        msg = f"The offsets of {label} do not ascend inside its {count:,} {what}. Stage or copy the file again."
        raise DamagedPackError(msg)


class Boxes:
    """Read the boxes of each row, with their labels and other columns. If images are resized on reading, their boxes
    move with them: the images' own sizes are read from their headers, and `image` says how they are fitted."""

    def __init__(
        self,
        label: str,
        offsets: NDArray[np.int64],
        columns: Mapping[str, tuple[Field, Storage]],
        *,
        image: ImageOptions | None = None,
        sizes_of: Callable[[NDArray[np.intp], ThreadPool], NDArray[np.int64]] | None = None,
    ) -> None:
        """Take `offsets`, int64 `(N + 1,)`, into the `columns`. `sizes_of`: height and width of B rows' images."""
        check_offsets(offsets, columns[BOXES][1].shape[0], label, "boxes")
        self._offsets = offsets
        self._columns = columns
        self._image = image
        self._sizes_of = sizes_of

    def read(
        self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None
    ) -> list[dict[str, NDArray[Any]]]:
        """Return a dict for each row: `boxes`, float32 `(M, 4)`, and every other column, `(M, …)`."""
        starts = self._offsets[rows]
        # Boxes of all rows are gathered at once: a read for each row would cost more than its boxes.
        counts = self._offsets[rows + 1] - starts
        ends = np.cumsum(counts)
        wanted = (np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())).astype(np.intp)
        values: dict[str, NDArray[Any]] = {}
        for name, (column, storage) in self._columns.items():
            values[name] = np.empty((len(wanted), *storage.shape[1:]), storage.dtype)
            if len(wanted):
                column.read(wanted, pool, values[name])
        if self._image is not None and self._sizes_of is not None and self._image.size is not None:
            sizes = np.repeat(self._sizes_of(rows, pool), counts, axis=0)
            moved, kept = fit_boxes(values[BOXES].astype(np.float64), sizes, self._image.size, self._image.resize)
            values[BOXES] = moved.astype(values[BOXES].dtype)
            values = {name: column[kept] for name, column in values.items()}
            # Boxes outside the image were dropped, which shifts the end of each row.
            ends = np.concatenate([[0], np.cumsum(kept)])[ends]
        starts = np.concatenate([[0], ends[:-1]])
        # Copies, because a view would keep the boxes of the whole batch in memory.
        return [
            {name: column[start:end].copy() for name, column in values.items()}
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def read_keys(dataset: Any, rows: NDArray[np.intp] | None) -> list[str]:
    """Return texts of an open dataset; all of them if `rows` is `None`."""
    every = dataset.asstr()[()]
    return list(map(str, every if rows is None else every[rows]))


# Encoded fields: image and mask files, decoded when they are read, whole or no further than a crop needs.


# Key of images kept in the form that `Encoded.read` returns; for images that crops are cut from, the scale factor.
_FINAL = -1


def resize_into(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Resize uint8 `(h, w, C)` into `out`, `(H, W, C)`, by torch's antialiased bilinear filter. Safe in threads."""
    # Packing has resized the image already.
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    # A contiguous copy made by numpy: torch would copy with several threads, which costs a hundred times as much while
    # the cores decode other images.
    scale_by_torch(np.ascontiguousarray(pixels), out)


class _Own(threading.local):
    """Each thread's own memory to decode and resize into."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class Encoded:
    """Decode image or mask files when they are read. Safe in threads."""

    def __init__(
        self,
        label: str,
        read_bytes: Callable[[int], bytes],
        count: int,
        options: ImageOptions | MaskOptions,
        *,
        resizer: Resizer,
        slot: KeptSlot,
        number: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Take `label`, for messages. `read_bytes`: returns the image file of one of `count` rows, in any thread.
        `slot`: where decoded images are kept, under this field's `number`. `check`: raises an error if the HDF5 file
        has changed since it was opened."""
        self._label = label
        self.read_bytes = read_bytes
        self._options = options
        resizes = not isinstance(options, MaskOptions) and options.size is not None
        self._resizer: Resizer = "torch" if resizer == "torch" and resizes and can_torch_resize() else "pillow"
        self._slot, self._number, self._check = slot, number, check
        self._own = _Own()
        self._room = PixelRoom()
        # Height and width of each row's image, 0 until its header has been read.
        self._sizes = np.zeros((count, 2), np.int32)

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> Any:
        """Decode rows into `out`, `(len(rows), H, W, C)` (masks `(len(rows), H, W)`), if all have one size and dtype;
        without `out`, return a list of arrays."""
        images: Any = [np.empty(0)] * len(rows) if out is None else out
        kept = self._find_kept()

        def decode(place: int) -> None:
            row = int(rows[place])
            key = (self._number, row, _FINAL)
            if kept is not None and (found := kept.find(key)) is not None:
                # A copy, because the caller may change it.
                images[place] = found.pixels.copy() if out is None else found.pixels
                return
            try:
                self._decode(row, images, place, in_array=out is not None)
            except DecodeError as error:
                raise self._named(row, error) from error
            if kept is not None:
                kept.keep(key, images[place])

        pool.each(len(rows), decode)
        return images

    def _decode(self, row: int, images: Any, place: int, *, in_array: bool) -> None:
        """Decode a row into its place in an array, or in a list of arrays."""
        data, options = self.read_bytes(row), self._options
        # Large images wait for each other, so that the threads together do not fill memory.
        with self._room.room_for(data):
            if isinstance(options, MaskOptions):
                pixels = decode_mask(data, options)
            else:
                scratch = self._own.scratch if in_array else None
                pixels = decode_sized(data, options, resizer=self._resizer, scratch=scratch).pixels
            # numpy would silently stretch one channel over three.
            if in_array and (pixels.shape != images.shape[1:] or pixels.dtype != images.dtype):
                msg = (
                    f"The image is {pixels.shape} {pixels.dtype}, others {images.shape[1:]} {images.dtype}. Give one "
                    "size and color_mode to all images, or keep them encoded."
                )
                raise DecodeError(msg)
            images[place] = pixels

    def decode_crops(
        self, rows: NDArray[np.intp], crops: NDArray[np.int64], out: NDArray[np.uint8], pool: ThreadPool
    ) -> None:
        """Decode a part of each row, resized by the antialiased bilinear filter, into `out`, uint8 `(B, H, W, C)`.
        `crops`: int64 `(B, 4)`, top, left, height and width in pixels of the upright image."""
        assert not isinstance(self._options, MaskOptions)
        mode, (height, width) = self._options.color_mode, out.shape[1:3]
        number, kept = self._number, self._find_kept()
        # Converted together, because single elements of an array are slow numpy objects.
        numbers, parts = rows.tolist(), [tuple(crop) for crop in crops.tolist()]

        def cut(place: int) -> None:
            row, scratch = numbers[place], self._own.scratch.decoded
            factor = block_side(parts[place][2], parts[place][3], (height, width))
            try:
                found = None if kept is None else kept.find((number, row, factor)) or kept.find((number, row, 0))
                whole = None if found is None else WholeImage(found.pixels, *found.facts)
                data = b"" if whole is not None else self.read_bytes(row)
                if whole is None and kept is not None:
                    whole = self._keep_whole(kept, (number, row, factor), data, mode, parts[place])
                if whole is not None:
                    part = whole.cut(parts[place])
                else:
                    # Only a JPEG is decoded no further than the crop needs.
                    with self._room.room_for(None if is_jpeg(data) else data):
                        part = decode_region(data, mode, parts[place], (height, width), scratch=scratch)
            except DecodeError as error:
                raise self._named(row, error) from error
            resize_into(part, out[place])

        pool.each(len(rows), cut)

    def _keep_whole(self, kept: KeptImages, key: Key, data: bytes, mode: ColorMode, crop: Crop) -> WholeImage | None:
        """Decode a whole image and keep it for crops at the scale factor in `key`; `None` if it is not to be kept."""
        number, row, factor = key
        height, width = self._sizes[row].tolist()
        if not kept.fits(-(-height // factor) * -(-width // factor) * (1 if mode == "grayscale" else 3)):
            return None
        with self._room.room_for(data):
            whole = decode_whole(data, mode, crop, factor, scratch=self._own.scratch.decoded)
        if whole is not None:
            kept.keep((number, row, whole.factor), whole.pixels, (whole.factor, whole.header))
        return whole

    def _find_kept(self) -> KeptImages | None:
        kept = self._slot.kept
        if kept is not None:
            kept.attend()
            # Kept images come from the file that was opened. Reading would notice that it has changed; this must too.
            if self._check is not None:
                self._check()
        return kept

    def decoded_lengths(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the bytes of rows decoded at their own sizes, from their headers, without broken ones."""
        lengths = []
        for row in rows:
            # An estimate can do without a broken row; reading it will name it.
            with contextlib.suppress(DecodeError):
                facts = probe_image(self.read_bytes(int(row)))
                lengths.append(facts.height * facts.width * facts.channels * facts.dtype.itemsize)
        return lengths

    def own_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        """Return height and width of the upright images, int64 `(len(rows), 2)`, from the headers of their files."""
        # Each header is read only once, because crops and boxes need the sizes in every epoch.
        for row in rows[self._sizes[rows, 0] == 0].tolist():
            pool.cancellation.check()
            try:
                facts = probe_image(self.read_bytes(row))
            except DecodeError as error:
                raise self._named(row, error) from error
            self._sizes[row] = facts.height, facts.width
        return self._sizes[rows].astype(np.int64)

    def _named(self, row: int, error: DecodeError) -> DecodeError:
        return DecodeError(f"Row {row} of {self._label} cannot be decoded. {error}")
