"""How a dataset's bytes lie in the file, and which way of reading that allows. The choice is a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import PackFormatError
from colabstage.load.memory import spare_memory
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

# With this part of a file in memory, a batch waits for the disk too rarely for another way to be faster.
_WARM_PART = 0.8

Layout = Literal["contiguous", "chunked", "compact", "virtual", "external"]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What HDF5 says about one dataset.

    `name`: in the file. `shape`: of the whole, the row first. `dtype`: of the values as they are read, native byte
    order. `offset`: of the first byte in the file; `None` where there is no single place. `native`: whether the bytes
    in the file are the bytes in memory. `chunk_rows`: rows in one chunk, `None` when not chunked. `filters`: names.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: Layout
    offset: int | None
    native: bool
    chunk_rows: int | None
    filters: tuple[str, ...]

    @property
    def row_bytes(self) -> int:
        """Length of one row in memory, in bytes."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Length of all rows in memory, in bytes."""
        return self.shape[0] * self.row_bytes


@dataclass(frozen=True, slots=True)
class CacheState:
    """What of a dataset the system holds in memory: `resident_part`, 0 to 1, of its `nbytes`. `free_memory_bytes`: what
    this process may use, page cache included."""

    resident_part: float
    nbytes: int
    free_memory_bytes: int

    @property
    def warm(self) -> bool:
        """Whether random rows mostly come out of memory."""
        return self.resident_part >= _WARM_PART

    @property
    def fits(self) -> bool:
        """Whether memory can hold all of it."""
        return self.nbytes <= spare_memory(self.free_memory_bytes)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine reads a dataset, and why.

    `name`: `"mapped"` gathers rows out of the mapped file, `"read"` reads rows from the disk, many at once, `"h5py"`
    goes through HDF5, `"memory"` gathers from our own memory.
    """

    name: Literal["mapped", "read", "h5py", "memory"]
    reason: str

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
    if slow_mount is not None:
        return EngineChoice("h5py", f"the file is on {slow_mount}, which is not safe to map into memory")
    if facts.filters:
        return EngineChoice("h5py", f"its chunks are filtered ({', '.join(facts.filters)})")
    if facts.layout != "contiguous":
        return EngineChoice("h5py", f"its layout is {facts.layout}, not contiguous")
    if not facts.native:
        return EngineChoice("h5py", "its values are stored in another form than this machine computes with")
    if facts.offset is None:
        return EngineChoice("h5py", "nothing has been written to it, so it has no place in the file")
    plain = "one contiguous, unfiltered block of native values on a local disk"
    return EngineChoice("mapped", plain) if cache is None else _by_cache(plain, cache)


def _by_cache(plain: str, cache: CacheState) -> EngineChoice:
    """A cold mapped file reads 20 times the bytes asked for, so it is read through once where it fits into memory, and
    row by row where it does not."""
    if cache.warm:
        return EngineChoice("mapped", f"{plain}, {cache.resident_part:.0%} of it in memory")
    if cache.fits:
        first = "read through once, front to back, before the first batch of a loader"
        return EngineChoice("mapped", f"{plain}, {cache.resident_part:.0%} of it in memory, where it fits: {first}")
    size, spare = format_bytes(cache.nbytes), format_bytes(spare_memory(cache.free_memory_bytes))
    return EngineChoice(
        "read", f"{plain}, {cache.resident_part:.0%} of it in memory, and its {size} do not fit into {spare}"
    )


def read_facts(dataset: Any, path: Path) -> StorageFacts:
    """Ask HDF5 how an open `h5py.Dataset` is stored.

    Raises:
        PackFormatError: its values are no numbers.
    """
    name = str(dataset.name).lstrip("/")
    dtype = dataset.dtype.newbyteorder("=")
    if dtype.kind not in "biufc":
        msg = f"{name} in '{path}' holds {dataset.dtype} values; expected numbers."
        raise PackFormatError(msg)
    properties = dataset.id.get_create_plist()
    layout = _layout(properties)
    return StorageFacts(
        name=name,
        shape=tuple(dataset.shape),
        dtype=dtype,
        layout=layout,
        offset=dataset.id.get_offset() if layout == "contiguous" else None,
        native=_is_native(dataset),
        chunk_rows=dataset.chunks[0] if dataset.chunks else None,
        filters=tuple(_filter_name(properties.get_filter(number)) for number in range(properties.get_nfilters())),
    )


def _layout(properties: Any) -> Layout:
    from h5py import h5d

    if properties.get_layout() == h5d.CONTIGUOUS:
        return "external" if properties.get_external_count() else "contiguous"
    names: dict[int, Layout] = {h5d.CHUNKED: "chunked", h5d.COMPACT: "compact", h5d.VIRTUAL: "virtual"}
    return names[properties.get_layout()]


def _filter_name(described: tuple[int, int, Any, bytes]) -> str:
    number, _, _, name = described
    return name.decode("ascii", "replace").rstrip("\0") or f"filter {number}"


def _is_native(dataset: Any) -> bool:
    """Whether the stored type is, bit for bit, the type numpy has: the same order, width, precision and padding."""
    from h5py import h5t

    stored = dataset.id.get_type()
    if dataset.dtype.kind in "bc":
        # h5py's own enumeration and pair; other numbers of bytes are other things.
        return bool(dataset.dtype.isnative and stored.get_size() == dataset.dtype.itemsize)
    return bool(dataset.dtype.isnative and stored.equal(h5t.py_create(dataset.dtype)))
