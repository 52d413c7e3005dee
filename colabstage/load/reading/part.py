"""Rows of one split in one HDF5 file: what `SplitReader` reads, alone or beside the parts in other files.

A `SplitPart` is a description until it is read from. Each process opens the file for itself on first use (HDF5
handles and locks do not survive fork or pickling), and refuses a file that is no longer the one described.
"""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import PackFormatError
from colabstage.h5.info import open_fields, open_h5, read_info
from colabstage.h5.schema import BOXES, BYTES, OFFSETS
from colabstage.h5.untrusted import reading_contents
from colabstage.images.options import ImageOptions
from colabstage.io.pipeline import SOLO
from colabstage.load.reading.encoded import EncodedRows
from colabstage.load.reading.engines import GatherEngine, memory_table, resolve_rows
from colabstage.load.reading.memory import FileStamp, check_memory, check_stamp, empty_array
from colabstage.load.reading.opening import FieldSource, OpenFile, decoding
from colabstage.load.reading.storage import (
    CacheState,
    EngineChoice,
    choose_engine,
    choose_ragged,
    ragged_facts,
    read_storage_facts,
)
from colabstage.load.reading.targets import FixedTargets, RaggedRows, read_keys
from colabstage.machine.mounts import mount_of, slow_reason
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo, NamedFields, SplitInfo
    from colabstage.images.geometry import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.arrival import Arrival
    from colabstage.load.reading.engines import Indices
    from colabstage.load.reading.opening import InputRows
    from colabstage.load.reading.storage import StorageFacts
    from colabstage.load.reading.targets import TargetBatch, TargetRows

# Headers of so many images are read in a moment, and their mean is near enough to plan memory with.
_PROBED_ROWS = 16
_PIXELS_A_BYTE = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ProcessState:
    """What one process has open."""

    pid: int
    """The process that opened it; in a forked child it differs from the child's own, which has to open the file."""
    x: InputRows
    """An engine for fixed rows, `EncodedRows` or `RaggedRows` otherwise."""
    y: TargetRows | None
    """The reader of targets, `None` when the file has none."""


class SplitPart:
    """Read the rows of a split that one file has, as lazily and safely as `SplitReader`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        decode: bool = False,
        beside_bytes: int = 0,
        arrival: Arrival | None = None,
        fields: NamedFields | None = None,
        resizer: Resizer = "pillow",
    ) -> None:
        """Look at the file; no sample is read.

        Args:
            path, split, decode, fields, resizer: as of `SplitReader`.
            beside_bytes: length of what is read at random beside this file, which the system's cache has to hold too.
            arrival: brings rows that are not here yet, so that the file is written while it is read; `None` where all
                rows are here.

        Raises:
            SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read, or with
                `decode` holds no image files.
            SplitNotFoundError: it has no such split; the message lists the splits.
        """
        # Absolute, because a worker process may be in another folder.
        self.path = Path(path).expanduser().absolute()
        info = read_info(self.path, fields)
        self._fields = fields
        self._resizer = resizer
        self.split = split
        self.info: SplitInfo = info.split(split)
        self.classes = info.classes
        # When all rows are here, an arrival only changes the order of an epoch.
        self._arrival = None if arrival is None or arrival.complete else arrival
        self._stamps = {self.path: FileStamp.of(self.path.stat(), arriving=self._arrival is not None)}
        self._beside_bytes = beside_bytes
        self.slow_mount = slow_reason(mount_of(self.path))
        with open_fields(self.path, fields) as file, reading_contents(self.path):
            self._x = self._examine(file, self.info.x)
            self._y = None if self.info.y is None else self._examine(file, self.info.y)
            if decode:
                self._x = decoding(self._x, file, self.path)
        if self._y is not None and self._y.info.image is not None:
            msg = (
                f"{self._y.info.name} in '{self.path}' holds image files; expected numbers, masks or boxes as targets."
            )
            raise PackFormatError(msg)
        self._x = self._considering_cache(self._x)
        self._opened: _ProcessState | None = None
        self.in_memory = False
        self._loaded: InputRows | None = None
        self._kept_y: RaggedRows | None = None

    def __len__(self) -> int:
        return self.info.rows

    @property
    def engine(self) -> EngineChoice:
        """Tell how the inputs are read, and why."""
        if self.in_memory:
            return EngineChoice("memory", "the whole split was read into memory")
        return self._x.choice

    @property
    def encoded(self) -> bool:
        """Tell whether rows are image files that are decoded when they are read."""
        return self._x.info.kind == "encoded"

    @property
    def stored_bytes(self) -> int:
        """Return the length of what `into_memory` takes, in bytes."""
        return self._x.nbytes + (self._y.nbytes if self._y is not None and self._y.heap else 0)

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one input row; `None` when rows have different shapes."""
        if not self.encoded:
            return self._x.info.shape
        options = self._image or ImageOptions()
        if options.size is None or options.color_mode == "keep":
            return None
        return (*options.size, 1 if options.color_mode == "grayscale" else 3)

    @property
    def _image(self) -> ImageOptions | None:
        """Return how encoded inputs are decoded."""
        return self._x.info.image

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the inputs, as `SplitReader.row_dtype`."""
        return np.dtype(object) if self._x.info.kind == "texts" else self._x.facts.dtype

    @property
    def row_bytes(self) -> int:
        """Return the length of one input row in memory, as `SplitReader.row_bytes`."""
        if self.row_shape is None:
            return self._x.nbytes // max(1, len(self))
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.row_dtype.itemsize

    def estimate_row_bytes(self) -> int:
        """Return the length of one input row once it is in memory, from the headers of a few where each has its own."""
        if self._arrival is not None and self.encoded and self.row_shape is None:
            # Headers are all over the file, and fetching blocks for an estimate would take long. Photographs as JPEG
            # take about a tenth of their pixels.
            return self.row_bytes * _PIXELS_A_BYTE
        # Rows of one shape are known without a look at any of them.
        engine = None if self.row_shape is not None else self._loaded or self._open().x
        if not isinstance(engine, EncodedRows) or not len(self):
            return self.row_bytes
        lengths = engine.decoded_lengths(np.linspace(0, len(self) - 1, _PROBED_ROWS).astype(np.intp))
        return sum(lengths) // len(lengths) if lengths else self.row_bytes

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one target; empty for a number, `None` when there are none, or each has its own."""
        if self._y is None:
            return None
        mask = self._y.info.mask
        return self._y.info.shape if mask is None else mask.size

    @property
    def target_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of targets of one shape; `None` where `target_shape` is."""
        if self._y is None or self.target_shape is None:
            return None
        return np.dtype(np.uint8) if self._y.info.mask is not None else self._y.facts.dtype

    @property
    def target_bytes(self) -> int | None:
        """Return the length of one target in memory, in bytes; 0 when there are none, `None` when each has its own."""
        if self._y is None:
            return 0
        shape = self.target_shape
        return None if shape is None else int(np.prod(shape, dtype=np.int64)) * self._y.info.dtype.itemsize

    @property
    def has_boxes(self) -> bool:
        """Tell whether targets are boxes, any number of each row."""
        return self._y is not None and self._y.info.kind == "boxes"

    @property
    def has_free_targets(self) -> bool:
        """Tell whether targets are texts, or values of any number in each row."""
        return self._y is not None and self._y.heap

    def read_x(
        self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO
    ) -> NDArray[Any] | list[Any]:
        """Read inputs, as `SplitReader.read_x`."""
        rows = resolve_rows(indices, len(self))
        engine = self._loaded or self._open().x
        shape = self.row_shape
        if isinstance(engine, EncodedRows):
            if shape is None:
                refuse_out(out)
                return engine.decode_list(rows, pool)
            target = fitting_array(out, (len(rows), *shape), self.row_dtype)
            engine.decode_rows(rows, target, pool)
            return target
        if isinstance(engine, RaggedRows):
            refuse_out(out, "rows")
            return engine.read(rows, pool)
        target = fitting_array(out, (len(rows), *self._x.facts.shape[1:]), self.row_dtype)
        engine.read_rows(rows, target, pool)
        return target

    @property
    def can_crop(self) -> bool:
        """Tell whether `read_crops` can read these inputs."""
        return self.whole_reason is None

    @property
    def whole_reason(self) -> str | None:
        """Tell why `read_crops` cannot read these inputs, `None` where it can."""
        if not self.encoded or self._image is None:
            return "they are not image files"
        if self._image.size is not None:
            height, width = self._image.size
            return f"they are brought to {height} x {width} pixels first"
        return "they keep the channels and the depth of their files" if self._image.color_mode == "keep" else None

    def read_crops(
        self,
        indices: Indices,
        size: tuple[int, int],
        choose: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        out: NDArray[Any] | None = None,
        *,
        pool: ThreadPool = SOLO,
    ) -> NDArray[np.uint8]:
        """Read a part of each image, as `SplitReader.read_crops`."""
        engine = self._loaded or self._open().x
        if not self.can_crop or not isinstance(engine, EncodedRows):
            msg = f"{self._x.info.name} in '{self.path}' is not made of image files of their own sizes."
            raise TypeError(msg)
        rows = resolve_rows(indices, len(self))
        target = fitting_array(out, (len(rows), *size, self.crop_channels), np.dtype(np.uint8))
        engine.decode_crops(rows, choose(engine.own_sizes(rows, pool)), target, pool)
        return target

    @property
    def crop_channels(self) -> int:
        """Return the number of channels of what `read_crops` reads."""
        return 1 if self._image is not None and self._image.color_mode == "grayscale" else 3

    def image_sizes(self, indices: Indices, *, pool: ThreadPool = SOLO) -> NDArray[np.int64]:
        """Read the sizes of images, as `SplitReader.image_sizes`."""
        engine = self._loaded or self._open().x
        if not isinstance(engine, EncodedRows):
            msg = f"{self._x.info.name} in '{self.path}' is not made of image files."
            raise TypeError(msg)
        return engine.own_sizes(resolve_rows(indices, len(self)), pool)

    def read_y(self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO) -> TargetBatch:
        """Read targets, as `SplitReader.read_y`."""
        rows = resolve_rows(indices, len(self))
        engine = self._open().y
        shape, dtype = self.target_shape, self.target_dtype
        if shape is None or dtype is None or engine is None:
            refuse_out(out, "targets")
            return np.full(len(rows), -1, np.int64) if engine is None else engine.read(rows, pool)
        return engine.read(rows, pool, fitting_array(out, (len(rows), *shape), dtype))

    def in_place(self) -> NDArray[Any] | None:
        """Return the inputs where they are, as `SplitReader.in_place`."""
        opened = self._open()
        engine = self._loaded or opened.x
        if not isinstance(engine, GatherEngine) or not isinstance(opened.y, FixedTargets | None):
            return None
        return engine.table.view(self.row_dtype).reshape(len(self), *self._x.facts.shape[1:])

    def check(self) -> None:
        """Make sure that inputs in place are what they were, as `SplitReader.check`."""
        engine = self._loaded or self._open().x
        if isinstance(engine, GatherEngine):
            engine.check()

    def keys(self, indices: Indices | None = None) -> list[str]:
        """Read the source keys of rows, as `SplitReader.keys`."""
        if self.info.keys is None:
            msg = f"'{self.path}' keeps no source keys for the split '{self.split}'; files that colabstage packs do."
            raise PackFormatError(msg)
        path = self._path_now()
        # Keys of another file would name the wrong sources, without an error.
        check_stamp(path, path.stat(), self._stamps[self.path])
        with open_h5(path) as file, reading_contents(path):
            rows = None if indices is None else resolve_rows(indices, len(self))
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
        # What does not fit would push itself out of memory while it is read.
        before = self._cache_state(file, self._x.facts)
        if before.warm or not before.fits:
            return
        yield from file.warm(self._x.facts)
        # The system may have dropped the first pages while the last ones were read. Mapped reads of a cold file would
        # then fetch twenty times what they need.
        part = file.resident_part(self._x.facts)
        if not replace(before, resident_part=part).warm:
            reason = f"after reading all of it once, only {part:.0%} has stayed in memory"
            _log.warning("'%s' is read row by row: %s.", self.path, reason)
            self._x = replace(self._x, choice=EngineChoice("read", reason))
            self._opened = None

    def close(self) -> None:
        """Release the file; the next read opens it again. Reads under way in other threads finish first."""
        # What is open closes with its last reference: unmapping under a reader would crash the process.
        self._opened = None

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
        # Two threads may both find it closed, and then one of the two openings is dropped. That costs a millisecond,
        # and needs no lock, which a fork could leave locked.
        if opened is None or opened.pid != os.getpid():
            path = self._path_now()
            file = OpenFile(path, {**self._stamps, path: self._stamps[self.path]}, self._fields)
            with reading_contents(path):
                x = self._loaded or self._open_x(file)
                y = None if self._y is None else self._open_y(file, self._y, x)
            opened = self._opened = _ProcessState(os.getpid(), x, y)
        return opened

    def _path_now(self) -> Path:
        """Return where the file is; one that is being packed gets its final name at the end."""
        moved = None if self._arrival is None else self._arrival.readable_path
        return moved or self.path

    def _open_y(self, file: OpenFile, y: FieldSource, x: InputRows) -> TargetRows:
        if y.heap and self._kept_y is None:
            # Read one by one they would take longer than their inputs. Forked children share the memory.
            self._kept_y = file.ragged(y, in_memory=True) if self.in_memory else file.few_ragged(y)
        return self._kept_y or file.targets(y, x, self._image)

    def _open_x(self, file: OpenFile) -> InputRows:
        if not self.in_memory:
            if self._x.heap and not self.encoded:
                return file.ragged(self._x, in_memory=False)
            if self.encoded:
                return file.encoded(self._x, in_memory=False, resizer=self._resizer)
            return file.rows(self._x.facts, self._x.choice)
        # Kept apart from what is open, because forked children share it; a pickled reader loads its own.
        self._loaded = self._load(file)
        return self._loaded

    def _load(self, file: OpenFile) -> InputRows:
        """Read all inputs, as stored, into memory."""
        check_memory(
            self.stored_bytes,
            read_resources().free_memory_bytes,
            f"{self._x.info.name} in '{self.path}'",
            remedy="Leave in_memory=False: a file on a local disk is read from the system's cache, as far as that "
            "reaches.",
        )
        if self.encoded:
            return file.encoded(self._x, in_memory=True, resizer=self._resizer)
        if self._x.heap:
            return file.ragged(self._x, in_memory=True)
        return GatherEngine(memory_table(file.load(self._x.facts, self._x.choice)), None)


def fitting_array(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `out` if it is what is needed, a new array if there is none."""
    if out is None:
        return empty_array(shape, dtype)
    # Engines write into it by address, so anything else would be written in the wrong places.
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        msg = (
            f"out is {out.shape} {out.dtype}; expected a writable, C-contiguous array of shape {shape} and "
            f"dtype {dtype}."
        )
        raise ValueError(msg)
    return out


def refuse_out(out: NDArray[Any] | None, what: str = "images") -> None:
    if out is not None:
        msg = f"These {what} do not share one shape, and so no out array. Leave out=None."
        raise ValueError(msg)
