"""Rows of one split in one HDF5 file: what `SplitReader` reads, alone or beside the parts in other files.

A `SplitPart` is a description until it is read from. Each process opens the file for itself on first use (HDF5
handles and locks do not survive fork or pickling), mapped, through h5py, or both, and refuses a file that is no longer
the one described. What a field is and how it is read is decided in the description; an `OpenFile` only carries it out,
by an engine for each field.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import NotEnoughSpaceError, PackFormatError
from colabstage.h5.info import info_of, open_fields, open_h5
from colabstage.h5.schema import BOXES, BYTES, OFFSETS
from colabstage.h5.untrusted import reading_contents
from colabstage.images.geometry import ImageOptions
from colabstage.io.pipeline import ThreadPool
from colabstage.io.units import format_bytes
from colabstage.load.reading.chunks import (
    CachedChunks,
    ChunkBytes,
    ChunkEngine,
    H5pyChunks,
    KeptRows,
    PlacedRows,
    StoredChunks,
    read_chunk_table,
)
from colabstage.load.reading.engines import (
    CacheState,
    EngineChoice,
    GatherEngine,
    H5pyEngine,
    ReadEngine,
    RowEngine,
    choose_engine,
    choose_ragged,
    in_native_order,
    is_warm,
    load_array,
    mapped_table,
    memory_table,
    ragged_facts,
    read_storage_facts,
    turn_bytes,
)
from colabstage.load.reading.memory import (
    FileStamp,
    KeptSlot,
    MappedFile,
    ReadFile,
    check_memory,
    check_stamp,
    empty_array,
    keepable_bytes,
    resident_part,
    spare_memory,
)
from colabstage.load.reading.rows import (
    BoxTargets,
    EncodedRows,
    H5pyRagged,
    KeptRagged,
    RaggedRows,
    check_are_images,
    check_offsets,
    keep_rows,
    read_keys,
)
from colabstage.machine.mounts import mount_of, slow_reason
from colabstage.machine.resources import read_resources, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo, NamedFields, SplitInfo
    from colabstage.images.geometry import MaskOptions
    from colabstage.images.resample import Resizer
    from colabstage.load.arrival import Arrival
    from colabstage.load.reading.chunks import ChunkSource
    from colabstage.load.reading.engines import StorageFacts
    from colabstage.load.reading.rows import RaggedSource

# Headers of so many images are read in a moment, and their mean is near enough to plan memory with.
_PROBED_ROWS = 16
_PIXELS_A_BYTE = 10

_log = logging.getLogger(__name__)

# What decides by itself what a row is; engines copy rows of one shape.
OwnRows = EncodedRows | RaggedRows | BoxTargets
FieldRows = RowEngine | OwnRows

# Targets of variable length are read into memory up to this length: little beside a batch of images, and labels of a
# million samples. Two million labels take some seconds.
_FEW_BYTES = 32 * 1024 * 1024
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class FieldSource:
    """A field of a split and how it is read."""

    info: FieldInfo
    """What the file says of it."""
    facts: StorageFacts
    """Of the bytes, for encoded rows; of the boxes' places, for boxes; of the values, but for shape and place, with
    `heap`."""
    choice: EngineChoice
    """How what `facts` are of is read."""
    offsets: StorageFacts | None = None
    """Where encoded rows, or boxes of rows, begin."""
    coding: ImageOptions | MaskOptions | None = None
    """How encoded rows are decoded."""
    columns: Mapping[str, tuple[StorageFacts, EngineChoice]] = field(default_factory=dict)
    """Of boxes all that is known of each, their places among it."""
    heap: bool = False
    """Whether rows have any length by HDF5's own means. Such rows of bytes are encoded ones where `coding` says how
    they are decoded."""

    @property
    def nbytes(self) -> int:
        """Return the length of all rows in memory, encoded ones as they are stored, in bytes; an estimate with
        `heap`."""
        return self.info.nbytes if self.heap else self.facts.nbytes


@dataclass(frozen=True, slots=True)
class _ProcessState:
    """What one process has open."""

    pid: int
    """The process that opened it; in a forked child it differs from the child's own, which has to open the file."""
    x: FieldRows
    """What reads inputs."""
    y: FieldRows | None
    """What reads targets, `None` when the file has none."""


class SplitPart:
    """Read the rows of a split that one file has, as lazily and safely as `SplitReader`, whose attributes it has too.

    Rows are those of this file, numbers in `[0, N)`, and what shares a shape is read into memory of the caller's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str,
        *,
        decode: bool,
        beside_bytes: int,
        arrival: Arrival | None,
        fields: NamedFields | None,
        resizer: Resizer,
        number: int,
    ) -> None:
        """Look at the file; no sample is read.

        Args:
            path, split, decode, fields, resizer: as of `SplitReader`.
            beside_bytes: length of what is read at random beside this file, which the system's cache has to hold too.
            arrival: brings rows that are not here yet, so that the file is written while it is read; `None` where all
                rows are here.
            number: which of several parts this is.

        Raises:
            SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read, or with
                `decode` holds no image files.
            SplitNotFoundError: it has no such split; the message lists the splits.
        """
        # Absolute, because a worker process may be in another folder.
        self.path = Path(path).expanduser().absolute()
        self._fields = fields
        self._resizer = resizer
        self.split = split
        # When all rows are here, an arrival only changes the order of an epoch.
        self._arrival = None if arrival is None or arrival.complete else arrival
        self._stamps: dict[Path, FileStamp] = {}
        self._beside_bytes = beside_bytes
        # Before it is opened, so that another one that takes its place meanwhile is refused when it is read. Opening
        # says what is wrong where there is none.
        with suppress(FileNotFoundError, NotADirectoryError):
            self._stamps[self.path] = FileStamp.of(self.path.stat(), arriving=self._arrival is not None)
        # Once, because a look at its heaps takes as long as all else.
        with open_fields(self.path, fields) as file, reading_contents(self.path):
            info = info_of(file, self.path, fields)
            self.info: SplitInfo = info.split(split)
            self.classes = info.classes
            self.slow_mount = slow_reason(mount_of(self.path))
            self._x = self._examine(file, self.info.x)
            self._y = None if self.info.y is None else self._examine(file, self.info.y)
            if decode:
                self._x = decoding(self._x, file, self.path)
        if self._y is not None and self._y.info.image is not None:
            msg = (
                f"{self._y.info.name} in '{self.path}' holds image files; expected numbers, masks or boxes as targets."
            )
            raise PackFormatError(msg)
        self._describe(self._x, self._y)
        self._x = self._considering_cache(self._x)
        self._opened: _ProcessState | None = None
        # Of inputs and targets: shared with the copy that has its rows in memory, which decodes the same.
        self.slots = KeptSlot(2 * number), KeptSlot(2 * number + 1)
        self.in_memory = False
        self._loaded: FieldRows | None = None
        self._kept_y: FieldRows | None = None

    def _describe(self, x: FieldSource, y: FieldSource | None) -> None:
        """Take down what readers ask of rows before they read any."""
        image = self._image = x.info.image
        self.encoded = x.info.kind == "encoded"
        self.crop_channels = 1 if image is not None and image.color_mode == "grayscale" else 3
        keeps = image is not None and image.color_mode == "keep"
        self.whole_reason: str | None = None
        if image is None:
            self.whole_reason = "they are not image files"
        elif image.size is not None:
            self.whole_reason = f"they are brought to {image.size[0]} x {image.size[1]} pixels first"
        elif keeps:
            self.whole_reason = "they keep the channels and the depth of their files"
        self.row_shape = x.info.shape
        if image is not None and image.size is not None and not keeps:
            self.row_shape = (*image.size, self.crop_channels)
        self.row_dtype: np.dtype[Any] = np.dtype(object) if x.info.kind == "texts" else x.facts.dtype
        self.row_bytes = (
            x.nbytes // max(1, len(self))
            if self.row_shape is None
            else math.prod(self.row_shape) * self.row_dtype.itemsize
        )
        self.stored_bytes = x.nbytes + (y.nbytes if y is not None and y.heap else 0)
        self.target_shape: tuple[int, ...] | None = None
        self.target_dtype: np.dtype[Any] | None = None
        self.target_bytes: int | None = 0 if y is None else None
        if y is not None:
            self.target_shape = y.info.shape if y.info.mask is None else y.info.mask.size
            if self.target_shape is not None:
                self.target_dtype = np.dtype(np.uint8) if y.info.mask is not None else y.facts.dtype
                self.target_bytes = math.prod(self.target_shape) * self.target_dtype.itemsize
        self.has_targets = y is not None
        self.decodes_targets = y is not None and y.info.kind == "encoded"
        self.has_boxes = y is not None and y.info.kind == "boxes"
        self.has_free_targets = y is not None and y.heap

    def __len__(self) -> int:
        return self.info.rows

    @property
    def engine(self) -> EngineChoice:
        """Tell how the inputs are read, and why."""
        if self.in_memory:
            return EngineChoice("memory", "the whole split was read into memory")
        return self._x.choice

    def estimate_row_bytes(self) -> int:
        """Return about how long an input row is in memory; from the headers of a few, where each has its own length."""
        if self._arrival is not None and self.encoded:
            # To fetch blocks for an estimate would take long. Photographs as JPEG take a tenth of their pixels.
            return self.row_bytes * _PIXELS_A_BYTE
        engine = self._inputs()
        if not isinstance(engine, EncodedRows) or not len(self):
            return self.row_bytes
        lengths = engine.decoded_lengths(np.linspace(0, len(self) - 1, _PROBED_ROWS).astype(np.intp))
        return sum(lengths) // len(lengths) if lengths else self.row_bytes

    def read_x(self, rows: NDArray[np.intp], out: NDArray[Any] | None, pool: ThreadPool) -> Any:
        """Read inputs, into `out` where they share a shape."""
        return _read_by(self._inputs(), rows, out, pool)

    def read_y(self, rows: NDArray[np.intp], out: NDArray[Any] | None, pool: ThreadPool) -> Any:
        """Read targets, into `out` where they share a shape."""
        engine = self._open().y
        # Of targets that there are not, the reader knows what they are.
        return None if engine is None else _read_by(engine, rows, out, pool)

    def read_crops(
        self, rows: NDArray[np.intp], crops: NDArray[np.int64], out: NDArray[np.uint8], pool: ThreadPool
    ) -> None:
        """Read a part of each image, as `EncodedRows.decode_crops`."""
        self._images().decode_crops(rows, crops, out, pool)

    def image_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        """Read the sizes of images, as `SplitReader.image_sizes`."""
        return self._images().own_sizes(rows, pool)

    def in_place(self) -> NDArray[Any] | None:
        """Return the inputs where they are, as `SplitReader.in_place`."""
        engine = self._inputs()
        if not isinstance(engine, GatherEngine) or not (self._y is None or self._y.info.kind == "fixed"):
            return None
        return engine.table.view(self.row_dtype).reshape(len(self), *self._x.facts.shape[1:])

    def check(self) -> None:
        """Make sure that inputs in place are what they were, as `SplitReader.check`."""
        engine = self._inputs()
        if isinstance(engine, GatherEngine):
            engine.check()

    def keys(self, rows: NDArray[np.intp] | None = None) -> list[str]:
        """Read the source keys of rows, as `SplitReader.keys`."""
        if self.info.keys is None:
            msg = f"'{self.path}' keeps no source keys for the split '{self.split}'; files that colabstage packs do."
            raise PackFormatError(msg)
        path = self._path_now()
        # Keys of another file would name the wrong sources, without an error.
        check_stamp(path, path.stat(), self._stamps[self.path])
        with open_h5(path) as file, reading_contents(path):
            return read_keys(file[self.info.keys], rows)

    def into_memory(self) -> SplitPart:
        """Make another part of the same rows, with all inputs read into memory now; this one if it has them there."""
        if self.in_memory:
            return self
        # Another object, so that whoever holds this one sees no change.
        loaded = copy.copy(self)
        loaded.in_memory = True
        loaded._open()
        return loaded

    def warm_up(self) -> Iterator[None]:
        """Have the system hold the inputs in memory, as `SplitReader.warm_up`."""
        # Rows that are still to arrive cannot be read beforehand.
        if self.in_memory or self._arrival is not None or self._x.choice.name != "mapped":
            return
        file = OpenFile(self.path, self._stamps, self._fields)
        # First, because each epoch asks, and what memory is free takes as long to find out.
        if is_warm(file.resident_part(self._x.facts)):
            return
        # What does not fit would push itself out of memory while it is read.
        before = self._cache_state(file, self._x.facts)
        if not before.fits:
            return
        yield from file.warm(self._x.facts)
        # The system may have dropped the first pages while the last ones were read. Mapped reads of a cold file would
        # then fetch twenty times what they need.
        part = file.resident_part(self._x.facts)
        if not is_warm(part):
            reason = f"after reading all of it once, only {part:.0%} has stayed in memory"
            _log.warning("'%s' is read row by row: %s.", self.path, reason)
            self._x = replace(self._x, choice=EngineChoice("read", reason))
            self._opened = None

    def close(self) -> None:
        """Release the file; the next read opens it again. Reads under way in other threads finish first."""
        # What is open closes with its last reference: unmapping under a reader would crash the process.
        self._opened = None
        for slot in self.slots:
            if (kept := slot.kept) is not None:
                kept.release()

    def __getstate__(self) -> dict[str, Any]:
        # Handles mean nothing in another process, and memory is loaded again there rather than sent.
        return {**self.__dict__, "_opened": None, "_loaded": None, "_kept_y": None}

    def _examine(self, file: Any, info: FieldInfo) -> FieldSource:
        """Look at how a field is stored."""
        node = file[info.name]
        if info.kind in ("ragged", "texts"):
            facts = ragged_facts(node, info.name, self.path)
            choice = choose_ragged(texts=info.kind == "texts", slow_mount=self._slow_mount_of(facts))
            return FieldSource(info, facts, choice, heap=True)
        if info.kind == "fixed":
            return FieldSource(info, *self._look_at(node, info.name))
        offsets = read_storage_facts(node[OFFSETS], f"{info.name}/{OFFSETS}", self.path)
        if info.kind == "encoded":
            coding = info.mask or info.image or ImageOptions()
            return FieldSource(info, *self._look_at(node[BYTES], f"{info.name}/{BYTES}"), offsets, coding)
        columns = {name: self._look_at(node[name], f"{info.name}/{name}") for name in info.columns}
        return FieldSource(info, *columns[BOXES], offsets, columns=columns)

    def _look_at(self, dataset: Any, name: str) -> tuple[StorageFacts, EngineChoice]:
        facts = read_storage_facts(dataset, name, self.path)
        return facts, choose_engine(facts, slow_mount=self._slow_mount_of(facts))

    def _slow_mount_of(self, facts: StorageFacts) -> str | None:
        """Return why a field's file must not be mapped, and remember the state of a file that a link leads to."""
        if facts.home is None:
            return self.slow_mount
        # The linked file may be replaced as well, so it is looked at as the file itself is.
        self._stamps.setdefault(facts.home, FileStamp.of(facts.home.stat()))
        return self.slow_mount or slow_reason(mount_of(facts.home))

    def _considering_cache(self, field: FieldSource) -> FieldSource:
        """Return the same field, with its engine chosen by how much of it is in memory now."""
        if field.choice.name != "mapped":
            return field
        if self._arrival is not None:
            why = f"{field.choice.reason}, whose rows are waited for as they are needed"
            return replace(field, choice=replace(field.choice, reason=why))
        cache = self._cache_state(OpenFile(self.path, self._stamps, self._fields), field.facts)
        return replace(field, choice=choose_engine(field.facts, cache=cache))

    def _cache_state(self, file: OpenFile, facts: StorageFacts) -> CacheState:
        # Parts of one dataset are read at random together, and share the memory that is free.
        nbytes = facts.nbytes + self._beside_bytes
        return CacheState(file.resident_part(facts), nbytes, read_resources().free_memory_bytes)

    def _open(self) -> _ProcessState:
        """Return what this process has open, opened now if it was not."""
        opened = self._opened
        # Two threads may both find it closed; one opening is dropped then, and a fork finds no lock that is held.
        if opened is None or opened.pid != os.getpid():
            path = self._path_now()
            file = OpenFile(path, {**self._stamps, path: self._stamps[self.path]}, self._fields, self._beside_bytes)
            x = self._loaded or self._open_x(file)
            y = None if self._y is None else self._open_y(file, self._y, x)
            opened = self._opened = _ProcessState(os.getpid(), x, y)
        return opened

    def _path_now(self) -> Path:
        """Return where the file is; one that is being packed gets its final name at the end."""
        moved = None if self._arrival is None else self._arrival.readable_path
        return moved or self.path

    def _open_x(self, file: OpenFile) -> FieldRows:
        if not self.in_memory:
            return file.field(self._x, resizer=self._resizer, slot=self.slots[0])
        check_memory(
            self.stored_bytes,
            read_resources().free_memory_bytes,
            f"{self._x.info.name} in '{self.path}'",
            remedy="Leave in_memory=False: a file on a local disk is read from the system's cache, as far as that "
            "reaches.",
        )
        # Kept apart from what is open, because forked children share it; a pickled reader loads its own.
        self._loaded = file.field(self._x, in_memory=True, resizer=self._resizer, slot=self.slots[0])
        return self._loaded

    def _open_y(self, file: OpenFile, y: FieldSource, x: FieldRows) -> FieldRows:
        if y.heap and self._kept_y is None:
            # Read one by one they would take longer than their inputs. Forked children share the memory.
            self._kept_y = file.field(y, in_memory=True) if self.in_memory else file.few_ragged(y)
        if y.info.kind == "boxes":
            return file.boxes(y, x, self._image)
        return self._kept_y or file.field(y, slot=self.slots[1])

    def _inputs(self) -> FieldRows:
        return self._loaded or self._open().x

    def _images(self) -> EncodedRows:
        engine = self._inputs()
        if not isinstance(engine, EncodedRows):
            msg = f"{self._x.info.name} in '{self.path}' is not made of image files."
            raise TypeError(msg)
        return engine


def _read_by(engine: FieldRows, rows: NDArray[np.intp], out: Any, pool: ThreadPool) -> Any:
    if isinstance(engine, OwnRows):
        return engine.read(rows, pool, out)
    engine.read_rows(rows, out, pool)
    return out


def decoding(inputs: FieldSource, file: Any, path: Path) -> FieldSource:
    """Return the inputs of an open file, decoded where they are image files in rows of bytes of variable length.

    Raises:
        PackFormatError: they are no image files.
    """
    if inputs.info.kind == "encoded":
        return inputs
    # Such rows may also be numbers of any kind, so they are decoded on request only, and a few are looked at.
    if inputs.info.kind == "ragged" and inputs.facts.dtype == np.uint8:
        check_are_images(file[inputs.info.name], path)
        options = ImageOptions()
        return replace(inputs, info=replace(inputs.info, kind="encoded", image=options), coding=options)
    msg = (
        f"{inputs.info.name} in '{path}' does not hold image files in rows of bytes of any length, which decode=True "
        "needs. Leave it out."
    )
    raise PackFormatError(msg)


class OpenFile:
    """Make engines for the fields of one file. What is open closes when the last engine over it is dropped. What HDF5
    raises is translated where it is asked; files that are mapped or read raise typed errors of their own."""

    def __init__(
        self, path: Path, stamps: Mapping[Path, FileStamp], fields: NamedFields | None = None, beside_bytes: int = 0
    ) -> None:
        """Take `stamps`, the state of `path`, and of each file it links to, when the fields were described; another one
        is refused on opening. `fields` and `beside_bytes`: as of `SplitPart`."""
        self._beside_bytes = beside_bytes
        self._fields = fields
        self._path = path
        self._stamps = stamps
        self._mappings: dict[Path, MappedFile] = {}
        self._handles: dict[Path, ReadFile] = {}

    def rows(self, facts: StorageFacts, choice: EngineChoice, *, keep: bool = True) -> RowEngine:
        """Make the engine for rows of one shape; with `keep` it holds what it has decoded, and without it is for whole
        chunks, front to back."""
        # Contiguous, which is all that has one place for every row.
        if choice.name == "mapped":
            file = self._mapped(facts)
            return in_native_order(GatherEngine(mapped_table(file, facts), file), facts)
        if choice.name == "read":
            return in_native_order(ReadEngine(self._read(facts), facts), facts)
        with reading_contents(self._path):
            # Compact, virtual, external, or empty: HDF5 alone knows where values are.
            if facts.chunks is None or not facts.shape[0]:
                return H5pyEngine(self._h5[facts.name], facts, self._path)
            if choice.name == "chunks" and not facts.filters and keep:
                table = read_chunk_table(self._h5[facts.name], facts, self._mapped(facts))
                return in_native_order(PlacedRows(self._mapped(facts), table, facts), facts)
            if keep and facts.nbytes <= self._keepable(facts):
                every = empty_array(facts.shape, facts.dtype)
                decoder = ChunkEngine(self._chunks(facts, choice, keep=False), facts)
                return KeptRows(decoder, every, GatherEngine(memory_table(every), None), facts.chunks[0])
            return ChunkEngine(self._chunks(facts, choice, keep=keep), facts)

    def _chunks(self, facts: StorageFacts, choice: EngineChoice, *, keep: bool = True) -> ChunkSource:
        """Return the chunks of a dataset; with `keep` they are kept for a while where taking them is not free."""
        by_hdf5 = H5pyChunks(self._h5[facts.name], facts)
        source: ChunkSource = by_hdf5
        if choice.name == "chunks":
            table = read_chunk_table(self._h5[facts.name], facts, self._mapped(facts))
            source = StoredChunks(self._mapped(facts), table, facts, by_hdf5)
            # Nothing is decoded, so there is nothing to keep.
            keep = keep and bool(facts.filters)
        return CachedChunks(source, self._keepable(facts)) if keep else source

    def _keepable(self, facts: StorageFacts) -> int:
        # Parts of one dataset share what a single file could keep.
        part = facts.nbytes / max(1, facts.nbytes + self._beside_bytes)
        return int(part * keepable_bytes(read_resources().free_memory_bytes))

    def field(
        self,
        source: FieldSource,
        *,
        in_memory: bool = False,
        resizer: Resizer = "pillow",
        slot: KeptSlot | None = None,
    ) -> FieldRows:
        """Make the reader of a field of any kind but boxes; with `in_memory` all of it is read now. `slot`: where
        decoded images are kept.

        Raises:
            NotEnoughSpaceError: with `in_memory`, when rows of variable length are more than memory can hold.
        """
        if source.coding is None and not source.heap:
            if in_memory:
                return GatherEngine(memory_table(self._load(source.facts, source.choice)), None)
            return self.rows(source.facts, source.choice)
        # Offsets and heaps are read by HDF5, however the bytes of rows are.
        with reading_contents(self._path):
            if source.coding is None:
                return self._ragged_rows(source, self._ragged_source(source, in_memory=in_memory))
            label, read, check = self._files_of_rows(source, in_memory=in_memory)
            return EncodedRows(label, read, source.info.rows, source.coding, resizer=resizer, slot=slot, check=check)

    def _files_of_rows(
        self, source: FieldSource, *, in_memory: bool
    ) -> tuple[str, Callable[[int], bytes], Callable[[], None] | None]:
        """Return what rows that are image files are called in messages, what reads the file of one, and what makes sure
        that all are those of the file that was opened, where reading does that. With `in_memory` all are read now."""
        label = f"{source.info.name} in '{self._path}'"
        if source.offsets is None:
            rows = self._ragged_source(source, in_memory=in_memory)
            return label, lambda row: bytes(rows.read(np.array([row], np.intp))[0]), None
        offsets = self._offsets(source.offsets)
        read, check = self._bytes_of(source.facts, source.choice, in_memory=in_memory)
        check_offsets(offsets, source.facts.shape[0], label, "bytes")
        return label, lambda row: read(int(offsets[row]), int(offsets[row + 1])), check

    def _bytes_of(
        self, facts: StorageFacts, choice: EngineChoice, *, in_memory: bool
    ) -> tuple[Callable[[int, int], bytes], Callable[[], None] | None]:
        """Return what reads a long dataset of bytes, from one place up to another; with `in_memory` all is read now.
        And what makes sure that the file is the one that was opened, where reading does that."""
        if in_memory:
            values = self._load(facts, choice)
            return lambda start, stop: values[start:stop].tobytes(), None
        if choice.name == "mapped":
            mapped = self._mapped(facts)
            data = mapped_table(mapped, facts).reshape(-1)

            def take(start: int, stop: int) -> bytes:
                mapped.check()
                return data[start:stop].tobytes()

            return take, mapped.check
        if choice.name == "read":
            file, begin = self._read(facts), facts.offset or 0
            return lambda start, stop: file.read(begin + start, begin + stop), file.check
        if facts.chunks is not None:
            chunked = ChunkBytes(self._chunks(facts, choice), facts)
            return chunked.read, chunked.check
        dataset = self._h5[facts.name]

        def ask(start: int, stop: int) -> bytes:
            with reading_contents(self._path):
                return bytes(dataset[start:stop].tobytes())

        return ask, None

    def few_ragged(self, source: FieldSource) -> RaggedRows | None:
        """Read rows of variable length into memory now, if they are few; `None` where they are not."""
        if source.nbytes + _OFFSET_BYTES * source.info.rows > _FEW_BYTES:
            return None
        with reading_contents(self._path):
            kept = self._kept(source, _FEW_BYTES)
        return None if kept is None else self._ragged_rows(source, kept)

    def _ragged_rows(self, source: FieldSource, rows: RaggedSource) -> RaggedRows:
        return RaggedRows(f"{source.info.name} in '{self._path}'", rows, texts=source.info.kind == "texts")

    def _ragged_source(self, source: FieldSource, *, in_memory: bool) -> RaggedSource:
        if not in_memory:
            return H5pyRagged(self._h5[source.facts.name], self._path)
        # HDF5 does not say beforehand how long such rows are together.
        spare = spare_memory(read_resources().free_memory_bytes)
        kept = self._kept(source, spare)
        if kept is None:
            msg = f"{source.info.name} in '{self._path}' needs more than the {format_bytes(spare)} that can be spared."
            raise NotEnoughSpaceError(msg)
        return kept

    def _kept(self, source: FieldSource, most_bytes: int) -> KeptRagged | None:
        rows, count = H5pyRagged(self._h5[source.facts.name], self._path), source.info.rows
        return keep_rows(rows, count, source.facts.dtype, source.nbytes // max(1, count), most_bytes)

    def boxes(self, source: FieldSource, x: FieldRows, image: ImageOptions | None) -> BoxTargets:
        """Make the reader of boxes, which follow their images `x` where `image` has those resized."""
        assert source.offsets is not None
        with reading_contents(self._path):
            return BoxTargets(
                f"{source.info.name} in '{self._path}'",
                self._offsets(source.offsets),
                {name: (self.rows(facts, choice), facts) for name, (facts, choice) in source.columns.items()},
                image=image,
                sizes_of=x.own_sizes if isinstance(x, EncodedRows) else None,
            )

    def _offsets(self, facts: StorageFacts) -> NDArray[np.int64]:
        # They are few and needed for every row: h5py reads them however they are stored.
        return np.asarray(self._h5[facts.name][()], np.int64)

    def _load(self, facts: StorageFacts, choice: EngineChoice) -> NDArray[Any]:
        """Read all of a dataset, front to back."""
        if choice.name in ("chunks", "h5py"):
            with reading_contents(self._path), ThreadPool(usable_cores()) as pool:
                # Each chunk is taken once, so what is kept of them would only double the memory.
                return load_array(self.rows(facts, choice, keep=False), facts, pool)
        values = empty_array(facts.shape, facts.dtype)
        file = self._sequential(facts)
        file.read_blocks(facts.offset or 0, values.reshape(-1).view(np.uint8))
        # In place and once, because the array is kept: readers of rows then need not turn each.
        if facts.stored != facts.dtype:
            turn_bytes(values)
        return values

    def resident_part(self, facts: StorageFacts) -> float:
        """Return which part of a contiguous dataset the system holds in memory, 0 to 1."""
        start = facts.offset or 0
        return resident_part(self._mapped(facts).data[start : start + facts.nbytes])

    def warm(self, facts: StorageFacts) -> Iterator[None]:
        """Have the system hold a contiguous dataset in memory, with a pause after each block read."""
        yield from self._sequential(facts).read_through(facts.offset or 0, facts.nbytes)

    def _mapped(self, facts: StorageFacts) -> MappedFile:
        home = facts.home or self._path
        # Inputs and targets in one file share its mapping.
        if home not in self._mappings:
            self._mappings[home] = MappedFile(home, self._stamps[home])
        return self._mappings[home]

    def _read(self, facts: StorageFacts) -> ReadFile:
        home = facts.home or self._path
        if home not in self._handles:
            self._handles[home] = ReadFile(home, self._stamps[home], at_random=True)
        return self._handles[home]

    def _sequential(self, facts: StorageFacts) -> ReadFile:
        home = facts.home or self._path
        # A handle of its own: the system reads ahead for each handle by how that one is used.
        return ReadFile(home, self._stamps[home], at_random=False)

    @cached_property
    def _h5(self) -> Any:
        # Also those that links lead to, because HDF5 follows them by itself.
        for path, stamp in self._stamps.items():
            check_stamp(path, path.stat(), stamp)
        return open_fields(self._path, self._fields)
