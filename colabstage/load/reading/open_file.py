"""What one process has open of one HDF5 file: an engine for each field, made as the field's description says.

Nothing is chosen here: what a field is, and how its bytes are read, is in a `FieldSource`, which describes it the same
way in every process. Files, mappings and handles are of the process that opened them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.info import open_fields
from colabstage.h5.untrusted import reading_contents
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
    EngineChoice,
    GatherEngine,
    H5pyEngine,
    ReadEngine,
    RowEngine,
    in_native_order,
    load_array,
    mapped_table,
    memory_table,
    turn_bytes,
)
from colabstage.load.reading.memory import (
    FileStamp,
    KeptSlot,
    MappedFile,
    ReadFile,
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
    check_offsets,
    keep_rows,
)
from colabstage.machine.resources import read_resources, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo, NamedFields
    from colabstage.images.geometry import ImageOptions, MaskOptions
    from colabstage.images.resample import Resizer
    from colabstage.load.reading.chunks import ChunkSource
    from colabstage.load.reading.engines import StorageFacts
    from colabstage.load.reading.rows import RaggedSource

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


class OpenFile:
    """Make engines for the fields of one file. What is open closes when the last engine over it is dropped. What HDF5
    raises is translated where it is asked; files that are mapped or read raise typed errors of their own."""

    def __init__(
        self,
        path: Path,
        stamps: Mapping[Path, FileStamp],
        fields: NamedFields | None = None,
        beside_bytes: int = 0,
        *,
        allow_external: bool = False,
        in_part: bool = False,
    ) -> None:
        """Take `stamps`, the state of `path`, and of each file it links to, when the fields were described; another one
        is refused on opening. `fields`, `beside_bytes` and `allow_external`: as of `SplitPart`; `in_part`: as of
        `open_h5`."""
        self._beside_bytes = beside_bytes
        self._fields = fields
        self._allow_external, self._in_part = allow_external, in_part
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
        return open_fields(self._path, self._fields, allow_external=self._allow_external, in_part=self._in_part)
