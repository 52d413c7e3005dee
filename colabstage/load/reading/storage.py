"""Find out how a dataset's bytes are stored in the file, and choose by a pure function how they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import PackFormatError
from colabstage.h5.untrusted import check_parts, element_dtype, home_of, ragged_trouble
from colabstage.io.units import format_bytes
from colabstage.load.reading.chunks import Filter, undecodable
from colabstage.load.reading.memory import spare_memory

if TYPE_CHECKING:
    from pathlib import Path

# With this part of a file in memory, a batch waits for the disk too rarely for another way to be faster.
_WARM_PART = 0.8

Layout = Literal["contiguous", "chunked", "compact", "virtual", "external"]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What HDF5 says about one dataset."""

    name: str
    """In the file."""
    shape: tuple[int, ...]
    """Of the whole, the row first."""
    dtype: np.dtype[Any]
    """Of the values as they are read, native byte order."""
    layout: Layout
    """In which of its ways HDF5 keeps the values."""
    offset: int | None
    """Of the first byte in the file; `None` where there is no single place."""
    stored: np.dtype[Any] | None
    """Dtype of the bytes in the file, perhaps of the other byte order; `None` where they are no dtype of numpy's."""
    chunks: tuple[int, ...] | None
    """Shape of one chunk, `None` when not chunked."""
    filters: tuple[Filter, ...]
    """Of each chunk, in the order applied."""
    fill: Any
    """What values are that nobody has written."""
    home: Path | None = None
    """The file in which all of this holds, where a link leads to another than the one opened."""

    @property
    def has_whole_rows(self) -> bool:
        """Tell whether each row lies whole in one chunk, with no filter over it."""
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
    """Tell whether random rows mostly come out of memory, where it holds this part of them."""
    return resident_part >= _WARM_PART


@dataclass(frozen=True, slots=True)
class CacheState:
    """How much of a dataset the system has in memory."""

    resident_part: float
    """Which part of it, 0 to 1."""
    nbytes: int
    """Length of the dataset."""
    free_memory_bytes: int
    """What this process may use, page cache included."""

    @property
    def warm(self) -> bool:
        """Tell whether random rows mostly come out of memory."""
        return is_warm(self.resident_part)

    @property
    def fits(self) -> bool:
        """Tell whether memory can hold all of it."""
        return self.nbytes <= spare_memory(self.free_memory_bytes)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that reads a dataset, and why it is that."""

    name: Literal["mapped", "read", "chunks", "h5py", "memory"]
    """`"mapped"` gathers rows out of the mapped file, `"read"` reads rows from the disk, many at once, `"chunks"` takes
    chunks out of the mapped file and decodes them in threads, `"h5py"` goes through HDF5, `"memory"` gathers from our
    own memory."""
    reason: str
    """Why, in words that follow the name."""
    costly: bool = False
    """Whether a row takes much more than a copy, so that all of them once into memory, where they fit, are soon the
    cheaper way."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_engine(
    facts: StorageFacts, *, slow_mount: str | None = None, cache: CacheState | None = None
) -> EngineChoice:
    """Pick how to read a dataset.

    Args:
        facts: how it is stored.
        slow_mount: why the file's mount must not be mapped, `None` for a local disk.
        cache: what is in memory of a dataset that can be mapped, `None` when nobody looked.
    """
    # First of all: a mapping over a network that fails kills the process.
    if slow_mount is not None:
        return EngineChoice("h5py", f"the file is on {slow_mount}, which is not safe to map into memory")
    # Such as 12-bit integers: only HDF5 converts them.
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
    """Have a cold mapped file, which reads 20 times the bytes asked for, read through once where it fits into memory,
    and row by row where it does not."""
    # Row by row the first batch of a file that fits would come sooner, by a second for each gigabyte or two, but not
    # the first epoch: rows of 784 bytes came at a fifteenth of the rate that way, of 49,152 at half, of 196,608 and
    # more at about the same.
    # Nothing to gain from another way.
    if cache.warm:
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
        dataset: behind links, of another file perhaps.
        name: by which it was found in the file that was opened; a dataset knows only what its own file calls it.
        path: of the file that was opened.

    Raises:
        PackFormatError: its values are not numbers, or are in a file that is not there.
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
        # Behind a user block, HDF5 says a place even for what was never written.
        offset=dataset.id.get_offset() if layout == "contiguous" and dataset.id.get_storage_size() else None,
        stored=np.dtype(dataset.dtype.str) if _is_exact(dataset) else None,
        chunks=tuple(dataset.chunks) if layout == "chunked" else None,
        filters=_filters(properties, name, path),
        fill=_fill_value(dataset, name, path),
        home=home_of(dataset, path),
    )


def _fill_value(dataset: Any, name: str, path: Path) -> Any:
    """Return what values are that nobody has written.

    Raises:
        PackFormatError: nobody has written any, and nothing says what they are.
    """
    from h5py import h5d

    if dataset.id.get_create_plist().fill_value_defined() != h5d.FILL_VALUE_UNDEFINED:
        return dataset.fillvalue
    if dataset.size and not dataset.id.get_storage_size() and dataset.chunks is None and not dataset.is_virtual:
        msg = f"Nothing has been written to {name} in '{path}', and it has no fill value. Write its rows first."
        raise PackFormatError(msg)
    # What HDF5 leaves untouched, h5py has filled with zeros.
    return dataset.dtype.type(0)


def ragged_facts(dataset: Any, name: str, path: Path) -> StorageFacts:
    """Ask HDF5 how an open `h5py.Dataset` is stored whose rows have any length: `dtype` is that of a value, `shape`
    only says how many rows there are.

    Raises:
        PackFormatError: nothing here can undo one of its filters, or its values are in a file that is not there.
    """
    check_parts(dataset, name, path)
    properties = dataset.id.get_create_plist()
    return StorageFacts(
        name=name,
        shape=tuple(dataset.shape),
        dtype=element_dtype(dataset),
        layout=_layout(properties),
        offset=None,
        stored=None,
        chunks=None,
        filters=_filters(properties, name, path),
        fill=None,
        home=home_of(dataset, path),
    )


def choose_ragged(*, texts: bool, slow_mount: str | None = None) -> EngineChoice:
    """Say how rows of variable length are read: by h5py always."""
    rows = "its rows are texts" if texts else "its rows have any length (HDF5's variable-length type)"
    mount = "" if slow_mount is None else f"; besides, the file is on {slow_mount}"
    return EngineChoice("h5py", f"{rows}, which only HDF5 itself reads, one thread at a time{mount}", costly=True)


def _describe_type(dataset: Any) -> str:
    """Return the type of values that are not numbers, in HDF5's words."""
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
        PackFormatError: nothing here can undo one of them.
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
    """Tell whether the stored type is, bit for bit, a type that numpy has: the same width, precision and padding."""
    from h5py import h5t

    stored = dataset.id.get_type()
    if dataset.dtype.kind in "bc":
        # h5py's own enumeration and pair; other numbers of bytes are other things.
        return bool(stored.get_size() == dataset.dtype.itemsize)
    return bool(stored.equal(h5t.py_create(dataset.dtype)))
