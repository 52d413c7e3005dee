"""Rows of one split in one HDF5 file: what `SplitReader` reads, alone or beside the parts in other files.

A `SplitPart` is a description until it is read from. Each process opens the file for itself on first use (HDF5
handles and locks do not survive fork or pickling), mapped, through h5py, or both, and refuses a file that is no longer
the one described. What a field is and how it is read is decided in the description; an `OpenFile` carries it out.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import PackFormatError
from colabstage.h5.info import info_of, open_fields, open_h5
from colabstage.h5.schema import BOXES, BYTES, OFFSETS
from colabstage.h5.untrusted import reading_contents
from colabstage.images.geometry import ImageOptions
from colabstage.load.reading.engines import (
    CacheState,
    EngineChoice,
    GatherEngine,
    choose_engine,
    choose_ragged,
    is_warm,
    ragged_facts,
    read_storage_facts,
)
from colabstage.load.reading.memory import FileStamp, KeptSlot, check_memory, check_stamp
from colabstage.load.reading.open_file import FieldRows, FieldSource, OpenFile, OwnRows
from colabstage.load.reading.rows import EncodedRows, check_are_images, read_keys
from colabstage.machine.mounts import mount_of, slow_reason
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from colabstage.h5.info import FieldInfo, NamedFields, SplitInfo
    from colabstage.images.resample import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.arrival import Arrival
    from colabstage.load.reading.engines import StorageFacts

# Headers of so many images are read in a moment, and their mean is near enough to plan memory with.
_PROBED_ROWS = 16
_PIXELS_A_BYTE = 10

_log = logging.getLogger(__name__)


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
        allow_external: bool,
    ) -> None:
        """Look at the file; no sample is read.

        Args:
            path, split, decode, fields, resizer, allow_external: as of `SplitReader`.
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
        self._allow_external, self._in_part = allow_external, arrival is not None
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
        opening = open_fields(self.path, fields, allow_external=allow_external, in_part=self._in_part)
        with opening as file, reading_contents(self.path):
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
        with open_h5(path, allow_external=self._allow_external, in_part=self._in_part) as file, reading_contents(path):
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
        file = self._open_file(self.path)
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
        cache = self._cache_state(self._open_file(self.path), field.facts)
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
            file = self._open_file(path)
            x = self._loaded or self._open_x(file)
            y = None if self._y is None else self._open_y(file, self._y, x)
            opened = self._opened = _ProcessState(os.getpid(), x, y)
        return opened

    def _open_file(self, path: Path) -> OpenFile:
        return OpenFile(
            path,
            {**self._stamps, path: self._stamps[self.path]},
            self._fields,
            self._beside_bytes,
            allow_external=self._allow_external,
            in_part=self._in_part,
        )

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
