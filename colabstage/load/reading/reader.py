"""Read rows of one split from one HDF5 file, or from several as if they were one file, without torch.

The files' rows follow each other in the order of the files. A `SplitPart` describes the rows of one file, by its header
alone. Each process opens the file for itself when it first reads (HDF5 handles and locks do not survive fork or
pickling), and refuses a file that is no longer the one described.
"""

from __future__ import annotations

import copy
import fcntl
import math
import os
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from colabstage.errors import DamagedPackError, NotEnoughSpaceError, OptionError, PackFormatError, SplitNotFoundError
from colabstage.h5.info import FieldInfo, NamedFields, PackInfo, format_splits, info_of, open_fields, read_info
from colabstage.h5.parts import PartName, check_files, check_schemas, find_parts, joined_info
from colabstage.h5.schema import BOXES, BYTES, OFFSETS
from colabstage.h5.untrusted import element_dtype, reading_contents
from colabstage.io.environment import logger_of
from colabstage.io.pipeline import SOLO, ThreadPool
from colabstage.io.progress import Cancellation
from colabstage.io.units import format_bytes, format_count
from colabstage.load.plan import Choice
from colabstage.load.reading.fields import (
    WARM_PART,
    Boxes,
    Encoded,
    Field,
    Foreign,
    Mapped,
    Pread,
    Ragged,
    Storage,
    TargetBatch,
    check_offsets,
    choose_engine,
    memory_table,
    read_keys,
    read_storage,
    resolve_rows,
)
from colabstage.load.reading.memory import (
    FileStamp,
    KeptImages,
    KeptSlot,
    OpenedFile,
    check_memory,
    check_stamp,
    empty_array,
    resident_part,
    spare_memory,
)
from colabstage.machine.mounts import mount_of, require_answer, slow_reason
from colabstage.machine.resources import allow_open_files, read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Arrival, Side, UnitLayout
    from colabstage.h5.parts import Files
    from colabstage.images.decode import Resizer
    from colabstage.load.reading.fields import Indices

T = TypeVar("T")
# Headers of so many images are read in a moment, and their mean is accurate enough to plan memory.
_PROBED_ROWS = 16
_PIXELS_A_BYTE = 10
# Targets of variable length are read into memory up to this length: labels of a million samples take some seconds.
_FEW_BYTES = 32 * 1024 * 1024
_LEAVE_IN_FILE = "Leave in_memory=False: files on a local disk are read from the system's cache, as far as it goes."

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class FieldSource:
    info: FieldInfo
    storage: Storage
    """Of the rows; for encoded rows, of their bytes; for boxes, of the boxes. Of rows of variable length, a number and
    dtype alone."""
    columns: Mapping[str, Storage] = field(default_factory=dict)

    @property
    def of_any_length(self) -> bool:
        return self.info.kind in ("ragged", "texts")

    @property
    def nbytes(self) -> int:
        """Return the length of all rows in memory, encoded ones as stored; an estimate for rows of variable length."""
        return self.info.nbytes if self.of_any_length else self.storage.nbytes


@dataclass(eq=False, repr=False)
class RowFacts:
    """What is known about the rows of a split before any is read."""

    encoded: bool
    """Whether inputs are image files that are decoded when they are read."""
    row_shape: tuple[int, ...] | None
    """Shape of one input; `None` if inputs have different shapes, and are read as lists."""
    row_dtype: np.dtype[Any]
    """Native byte order; `object` for texts. Encoded 16-bit or float images have their own."""
    target_shape: tuple[int, ...] | None
    """Shape of one target, `()` for a number; `None` if there are no targets, or their shapes differ."""
    target_dtype: np.dtype[Any] | None
    """Of targets of one shape, in native byte order; otherwise `None`."""
    has_targets: bool
    has_boxes: bool
    has_free_targets: bool
    """Whether targets are texts or arrays of variable length."""
    decodes_targets: bool
    """Whether targets are mask files that are decoded when they are read."""
    whole_reason: str | None
    """Why images cannot be cropped while they are decoded; `None` if they can: 8-bit ones of different sizes."""
    crop_channels: int
    reversed_axes: bool
    """Whether MATLAB wrote the inputs, which stores the axes in reverse order."""

    @property
    def target_bytes(self) -> int | None:
        """Return the length of one target in memory; 0 if there are none, `None` if their lengths differ."""
        if self.target_shape is None or self.target_dtype is None:
            return None if self.has_targets else 0
        return math.prod(self.target_shape) * self.target_dtype.itemsize

    @classmethod
    def of(cls, x: FieldSource, y: FieldSource | None) -> RowFacts:
        image, shape = x.info.image, x.info.shape
        channels = 1 if image is not None and image.color_mode == "grayscale" else 3
        whole = None
        if image is None:
            whole = "they are not image files"
        elif image.size is not None:
            whole = f"they are brought to {image.size[0]} x {image.size[1]} pixels first"
            shape = shape if image.color_mode == "keep" else (*image.size, channels)
        elif image.color_mode == "keep":
            whole = "they keep the channels and the depth of their files"
        mask = None if y is None else y.info.mask
        target_shape = None if y is None else y.info.shape if mask is None else mask.size
        target_dtype = None if y is None else y.storage.dtype if mask is None else np.dtype(np.uint8)
        return cls(
            encoded=x.info.kind == "encoded",
            row_shape=shape,
            row_dtype=np.dtype(object) if x.info.kind == "texts" else x.storage.dtype,
            target_shape=target_shape,
            target_dtype=None if target_shape is None else target_dtype,
            has_targets=y is not None,
            has_boxes=y is not None and y.info.kind == "boxes",
            has_free_targets=y is not None and y.of_any_length,
            decodes_targets=y is not None and y.info.kind == "encoded",
            whole_reason=whole,
            crop_channels=channels,
            reversed_axes=x.info.reversed_axes,
        )


class _OpenFile:
    """One process's open handles of a file. It closes when the last field over it is dropped: unmapping under a reader
    would crash the process."""

    def __init__(self, path: Path, stamps: Mapping[Path, FileStamp], open_file: Callable[[Path], Any]) -> None:
        """Take the `stamps` of this file and of those that its links lead to."""
        self._path, self._stamps, self._open_file = path, stamps, open_file
        # Inputs and targets share them. These closures refer only to the stamps, because a cycle would keep files open.
        self._mapping = cache(lambda home: OpenedFile(home, stamps[home]))
        self._handle = cache(lambda home: OpenedFile(home, stamps[home], at_random=True))

    @cached_property
    def h5(self) -> Any:
        # Linked files too, because HDF5 follows links by itself.
        for path, stamp in self._stamps.items():
            check_stamp(path, path.stat(), stamp)
        return self._open_file(self._path)

    def rows(self, storage: Storage) -> Mapped | Pread | Foreign:
        home = storage.home or self._path
        if storage.choice.name == "mapped":
            return Mapped.over(self._mapping(home), storage)
        if storage.choice.name == "read":
            return Pread(self._handle(home), storage)
        with reading_contents(self._path):
            return Foreign(self.h5[storage.name], storage, self._path)

    def load(self, storage: Storage) -> Mapped:
        """Read all of a dataset, front to back, and return the field over it."""
        if storage.choice.name == "h5py":
            with reading_contents(self._path):
                values = Foreign(self.h5[storage.name], storage, self._path).load()
        else:
            values = empty_array(storage.shape, storage.dtype)
            self.sequential(storage).read_blocks(storage.offset or 0, values.reshape(-1).view(np.uint8))
        return Mapped(memory_table(values), None)

    def offsets(self, source: FieldSource) -> NDArray[np.int64]:
        """Read where each row begins: few numbers, and every row needs them."""
        with reading_contents(self._path):
            return np.asarray(self.h5[f"{source.info.name}/{OFFSETS}"][()], np.int64)

    def sequential(self, storage: Storage) -> OpenedFile:
        """Return a separate handle: the system adapts its read-ahead to the use of each handle."""
        home = storage.home or self._path
        return OpenedFile(home, self._stamps[home])

    def resident_part(self, storage: Storage) -> float:
        """Return which part of a contiguous dataset the system caches in memory, 0 to 1."""
        start = storage.offset or 0
        return resident_part(self._mapping(storage.home or self._path).data[start : start + storage.nbytes])


class SplitPart:
    """The rows of a split in one file, numbered `[0, N)`."""

    def __init__(
        self,
        path: Path,
        split: str,
        number: int,
        *,
        arrival: Arrival | None,
        fields: NamedFields | None,
        resizer: Resizer,
        allow_external: bool,
        slot: KeptSlot,
    ) -> None:
        """Examine the file; no sample is read. `number`: which of several parts this is. `slot`: for decoded images of
        all parts; shared with the copy in memory, which decodes the same ones."""
        self.path = path
        self.split, self._number, self._resizer, self._slot = split, number, resizer, slot
        self._open_file = partial(
            open_fields, fields=fields, allow_external=allow_external, in_part=arrival is not None
        )
        # If all rows are local, an arrival only changes the order of an epoch.
        self._arrival = None if arrival is None or arrival.complete else arrival
        self._stamps: dict[Path, FileStamp] = {}
        # Taken before the file is opened, so that another file that takes its place meanwhile is refused when it is
        # read. If it is missing, opening says so.
        with suppress(FileNotFoundError, NotADirectoryError):
            self._stamps[self.path] = FileStamp.of(self.path.stat(), arriving=self._arrival is not None)
        self.slow_mount = slow_reason(mount_of(self.path))
        with self._open_file(self.path) as file, reading_contents(self.path):
            info = info_of(file, self.path, fields)
            self.info, self.classes = info.split(split), info.classes
            self._x = self._examine(file, self.info.x)
            self._y = None if self.info.y is None else self._examine(file, self.info.y)
        self.facts = RowFacts.of(self._x, self._y)
        shape = self.facts.row_shape
        stored = self._x.nbytes // max(1, len(self))
        self.row_bytes = stored if shape is None else math.prod(shape) * self.facts.row_dtype.itemsize
        self.stored_bytes = self._x.nbytes + (self._y.nbytes if self._y is not None and self._y.of_any_length else 0)
        # The process that opened them, and fields. Not the file: it closes once no field needs it.
        self._opened: tuple[int, Field, Field | None] | None = None
        self.in_memory = False
        self._loaded: Field | None = None

    def __len__(self) -> int:
        return self.info.rows

    def __getstate__(self) -> dict[str, Any]:
        # Handles mean nothing in another process, and memory is loaded again there rather than sent.
        return {**self.__dict__, "_opened": None, "_loaded": None}

    def _examine(self, file: Any, info: FieldInfo) -> FieldSource:
        node = file[info.name]
        if info.kind in ("ragged", "texts"):
            what = "have any length (HDF5's variable-length type)" if info.kind == "ragged" else "are texts"
            why = f"its rows {what}, which only HDF5 itself reads"
            return FieldSource(info, Storage(info.name, tuple(node.shape), element_dtype(node), Choice("h5py", why)))
        if info.kind == "fixed":
            return FieldSource(info, self._look_at(node, info.name))
        if info.kind == "encoded":
            return FieldSource(info, self._look_at(node[BYTES], f"{info.name}/{BYTES}"))
        columns = {name: self._look_at(node[name], f"{info.name}/{name}") for name in info.columns}
        return FieldSource(info, columns[BOXES], columns)

    def _look_at(self, dataset: Any, name: str) -> Storage:
        storage = read_storage(dataset, name, self.path, self.slow_mount)
        if storage.home is not None:
            # The linked file may be replaced too, so it is stamped like the file itself.
            self._stamps.setdefault(storage.home, FileStamp.of(storage.home.stat()))
        return storage

    def consider_cache(self, nbytes: int) -> None:
        """Choose how inputs are read by how much of them the system caches; `nbytes` of inputs are read at random."""
        choice = self.engine
        if choice.name != "mapped":
            return
        if self._arrival is not None:
            self._read_by(Choice("mapped", f"{choice.reason}, whose rows are waited for as they are needed"))
        else:
            spare = spare_memory(read_resources().free_memory_bytes)
            self._read_by(choose_engine(self._open_at(self.path).resident_part(self._x.storage), nbytes, spare))

    def _read_by(self, choice: Choice) -> None:
        self._x = replace(self._x, storage=replace(self._x.storage, choice=choice))

    def warm_up(self, nbytes: int, cancellation: Cancellation) -> None:
        """Load the inputs into the page cache, as `SplitReader.warm_up`; `nbytes` of inputs are read at random."""
        # Rows that have yet to arrive cannot be read in advance.
        if self._arrival is not None or self.engine.name != "mapped":
            return
        file, storage = self._open_at(self.path), self._x.storage
        # First, because each epoch begins with this, and free memory takes as long again to measure. What does not fit
        # would push itself out of memory while it is read.
        if file.resident_part(storage) >= WARM_PART or nbytes > spare_memory(read_resources().free_memory_bytes):
            return
        for _ in file.sequential(storage).read_through(storage.offset or 0, storage.nbytes):
            cancellation.check()
        # The system may have dropped the first pages while the last ones were read, as in a container whose cache is
        # limited. Mapped reads of a cold file would then fetch twenty times what they need.
        if (resident := file.resident_part(storage)) < WARM_PART:
            reason = f"after reading all of it once, only {resident:.0%} has stayed in memory"
            _log.warning("'%s' is read row by row: %s.", self.path, reason)
            self._read_by(Choice("read", reason))
            self._opened = None

    @property
    def engine(self) -> Choice:
        in_memory = Choice("memory", "the whole split was read into memory")
        return in_memory if self.in_memory else self._x.storage.choice

    @property
    def x(self) -> Field:
        return self._loaded or self._fields()[1]

    @property
    def y(self) -> Field | None:
        """Return the field of targets, opened in this process; `None` if there are none."""
        return self._fields()[2]

    @property
    def images(self) -> Encoded:
        x = self.x
        assert isinstance(x, Encoded)
        return x

    def _fields(self) -> tuple[int, Field, Field | None]:
        opened = self._opened
        # Two threads may both find it closed, and one opening is then dropped; a fork inherits no held lock.
        if opened is None or opened[0] != os.getpid():
            opened = self._opened = os.getpid(), *self._where_it_is(self._open_fields)
        return opened

    def _open_fields(self, path: Path) -> tuple[Field, Field | None]:
        file = self._open_at(path)
        x = self._loaded or self._open_field(file, self._x, None)
        if self.in_memory:
            # Apart from the open handles, because forked children share it.
            self._loaded = x
        return x, None if self._y is None else self._open_field(file, self._y, x)

    def _open_at(self, path: Path) -> _OpenFile:
        stamps = {path if home == self.path else home: stamp for home, stamp in self._stamps.items()}
        return _OpenFile(path, stamps, self._open_file)

    def _where_it_is(self, read: Callable[[Path], T]) -> T:
        """Call `read` with the file's path; a file that is being packed gets its final name at the end."""
        place = None if self._arrival is None else self._arrival.layout.place
        if place is not None:
            with suppress(FileNotFoundError):
                return read(self.path)
        return read(place or self.path)

    def _open_field(self, file: _OpenFile, source: FieldSource, x: Field | None) -> Field:
        label, in_memory = f"{source.info.name} in '{self.path}'", self.in_memory and x is None
        if in_memory:
            check_memory(self.stored_bytes, read_resources().free_memory_bytes, label, remedy=_LEAVE_IN_FILE)
        if source.of_any_length:
            with reading_contents(self.path):
                ragged = Ragged(file.h5[source.storage.name], self.path, texts=source.info.kind == "texts")
            if self.in_memory:
                spare = spare_memory(read_resources().free_memory_bytes)
                if not ragged.load(spare):
                    msg = f"{label} needs more than the {format_bytes(spare)} that can be spared. {_LEAVE_IN_FILE}"
                    raise NotEnoughSpaceError(msg)
            # Read one by one, targets would take longer than their inputs.
            elif x is not None and source.nbytes <= _FEW_BYTES:
                ragged.load(_FEW_BYTES)
            return ragged
        if source.info.kind == "boxes":
            columns = {name: (file.rows(stored), stored) for name, stored in source.columns.items()}
            sizes_of = x.own_sizes if isinstance(x, Encoded) else None
            return Boxes(label, file.offsets(source), columns, image=self._x.info.image, sizes_of=sizes_of)
        data = (file.load if in_memory else file.rows)(source.storage)
        if source.info.coding is None:
            return data
        offsets = file.offsets(source)
        check_offsets(offsets, source.storage.shape[0], label, "bytes")
        return Encoded(
            label,
            lambda row: data.bytes_of(int(offsets[row]), int(offsets[row + 1])),
            source.info.rows,
            source.info.coding,
            resizer=self._resizer,
            slot=self._slot,
            number=2 * self._number + (x is not None),
            check=data.check if isinstance(data, Mapped) else None,
        )

    def estimate_row_bytes(self) -> int:
        """Estimate the length of an input in memory; if lengths differ, from the headers of a few."""
        if self._arrival is not None and self.facts.encoded:
            # Fetching blocks for an estimate would take long. JPEG photographs take a tenth of their pixels.
            return self.row_bytes * _PIXELS_A_BYTE
        if not self.facts.encoded or not len(self):
            return self.row_bytes
        lengths = self.images.decoded_lengths(np.linspace(0, len(self) - 1, _PROBED_ROWS).astype(np.intp))
        return sum(lengths) // len(lengths) if lengths else self.row_bytes

    def in_place(self) -> NDArray[Any] | None:
        x = self.x
        if not isinstance(x, Mapped) or not (self._y is None or self._y.info.kind == "fixed"):
            return None
        return x.writable_table().view(self.facts.row_dtype).reshape(len(self), *self._x.storage.shape[1:])

    def keys(self, rows: NDArray[np.intp] | None = None) -> list[str]:
        if self.info.keys is None:
            msg = f"'{self.path}' keeps no source keys for the split '{self.split}'; files that colabstage packs do."
            raise PackFormatError(msg)
        name = self.info.keys

        def read(path: Path) -> list[str]:
            # Not of another file, whose keys would name the wrong sources, without an error.
            with self._open_at(path).h5 as file, reading_contents(path):
                return read_keys(file[name], rows)

        return self._where_it_is(read)

    def into_memory(self) -> SplitPart:
        """Return another part of the same rows, with all inputs read into memory now."""
        # Another object, so that holders of this one see no change.
        loaded = copy.copy(self)
        loaded.in_memory, loaded._opened = True, None
        loaded._fields()
        return loaded

    def close(self) -> None:
        """Release the file; the next read opens it again. Reads under way in other threads finish first."""
        self._opened = None


class SplitReader(RowFacts):
    """Read rows of one split in any order. Lazy, picklable, safe under fork and spawn and in threads.

    Attributes:
        path, paths: the first file, and all files.
        arrival: brings rows that are not here yet; `None` if all are here.
        fields: names of inputs and targets, in files with names of their own.
        slow_mount: why reading from the mount of a file is slow; `None` for local disks.
        row_bytes: length of one input in memory; the mean if lengths differ, and for encoded rows that of the files.
        stored_bytes: memory that `into_memory` takes.
    """

    def __init__(
        self,
        files: Files,
        split: str = "train",
        *,
        arrival: Arrival | None = None,
        fields: NamedFields | None = None,
        resizer: Resizer = "pillow",
        allow_external: bool = False,
    ) -> None:
        """Open HDF5 files with `X_<split>` and, if there are targets, `Y_<split>`, and read the headers; no sample is
        read. `resizer`: `"torch"` is faster, has to be imported, and is within one grey level of `"pillow"`."""
        # Before any other call to a mount, because a call to one that hangs would never return.
        require_answer(*check_files(files))
        paths = find_parts(files)
        # A mapped file has two handles: its own and the mapping's.
        allow_open_files(2 * len(paths))
        self.arrival, self.fields, self.split = arrival, fields, split
        self.allow_external, self.in_memory, self._slot = allow_external, False, KeptSlot()
        # A single file raises its own errors, in `SplitPart`.
        if len(paths) > 1:
            read = partial(read_info, fields=fields, allow_external=allow_external, in_part=arrival is not None)
            having = _check_one_set([read(path) for path in paths], split)
        else:
            having = list(paths)
        self._packing = _packing_line(files, paths, fields, split)
        make = partial(
            SplitPart,
            split=split,
            arrival=arrival,
            fields=fields,
            resizer=resizer,
            allow_external=allow_external,
            slot=self._slot,
        )
        parts = tuple(make(path, number=number) for number, path in enumerate(having))
        self._input_bytes = sum(part._x.nbytes for part in parts)
        for part in parts:
            # Parts are read at random together, and share the free memory.
            part.consider_cache(self._input_bytes)
        self.paths = paths if len(paths) > 1 else (parts[0].path,)
        self.path = self.paths[0]
        self._ends = np.cumsum([len(part) for part in parts])
        self._take_over(parts)
        self.classes = parts[0].classes
        # Several files have been checked to be alike.
        vars(self).update(vars(parts[0].facts))
        self.slow_mount = next((part.slow_mount for part in parts if part.slow_mount is not None), None)
        self.stored_bytes = sum(part.stored_bytes for part in parts)
        self.row_bytes = parts[0].row_bytes
        if self.row_shape is None and len(parts) > 1:
            self.row_bytes = sum(part.row_bytes * len(part) for part in parts) // max(1, len(self))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def warn(self, stacklevel: int) -> None:
        """Warn once, where the path is chosen, of what later would only be slow, or wrong values. `stacklevel`: of who
        chose it, as of `warnings.warn`."""
        path, doubts = self.path, list[str]()
        if self.reversed_axes:
            axes = " x ".join(map(str, self.row_shape or ()))
            doubts.append(
                f"MATLAB wrote the inputs of '{path}', and their axes are reversed here: each is {axes}. As "
                f"MATLAB shows them they are read by {_packing_line(path, self.paths[:1], self.fields, self.split)}."
            )
        sides = [(side, part.path) for part in self._parts for side in (part._x, part._y) if side is not None]
        # The writer of a pack that is being made is at work.
        for side, place in [one for one in sides if one[0].storage.unwritten][:1] if self.arrival is None else ():
            doubts.append(
                f"{side.storage.unwritten} of {side.info.name} in '{place}' were never written, as where a program was "
                "stopped: they are read as the fill value, which is mostly 0. Write the file again, or visit the rows "
                "that are there, by torch.utils.data.Subset(dataset, rows)."
            )
        # Calls to a mount may hang.
        local = self.paths if self.arrival is None and self.slow_mount is None else ()
        if being_written := next(filter(_is_being_written, local), None):
            doubts.append(
                f"'{being_written}' is open for writing, here or in another program: what was not written yet is read "
                "as 0, or as it was before. Close it there first."
            )
        if self.slow_mount is not None and not self.in_memory:
            doubts.append(
                f"'{path}' is on {self.slow_mount}: every sample is fetched through it, in every epoch. Copy the file "
                "to a local disk first (stage_dataset does), or read it once: dataset_h5(path, in_memory=True)."
            )
        for doubt in doubts:
            warnings.warn(doubt, UserWarning, stacklevel=stacklevel)

    def _take_over(self, parts: tuple[SplitPart, ...]) -> None:
        self._parts = parts
        # With one file, row numbers are the file's own: dividing a small batch would take as long as copying it.
        self._only = parts[0] if len(parts) == 1 else None

    @property
    def engine(self) -> Choice:
        """Return how most inputs are read, and why."""
        engine = max(self._parts, key=len).engine
        reason = engine.reason
        if engine.name == "h5py" and self.slow_mount is None and self.row_shape is not None:
            reason += f"; packed once it is mapped: {self._packing}"
        if self._only is None:
            reason = f"{format_count(len(self._parts), 'files')}; of the largest: {reason}"
        return replace(engine, reason=reason)

    @property
    def layout(self) -> UnitLayout | None:
        """Return the units that rows come in; `None` if all are local, as with any other file."""
        return None if self.arrival is None else self.arrival.layout

    def estimate_row_bytes(self) -> int:
        """Return the bytes of one input in memory: exact for one shape, otherwise estimated from the largest file."""
        return self.row_bytes if self.row_shape is not None else max(self._parts, key=len).estimate_row_bytes()

    def read_x(
        self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO
    ) -> NDArray[Any] | list[Any]:
        """Read inputs, in the order of `indices`, of which negative ones count from the end: into `out`, C-contiguous
        `(B, *row_shape)`, or a new array; a list of B arrays, or of B `str`, if `row_shape` is `None`."""
        rows = resolve_rows(indices, len(self))
        out = _fitting_array(out, len(rows), self.row_shape, self.row_dtype)
        with self._held(rows, pool):
            found: NDArray[Any] | list[Any] = self._share_out(
                rows, out, lambda part, own, into, _: part.x.read(own, pool, into)
            )
        return found

    def image_sizes(self, indices: Indices, *, pool: ThreadPool = SOLO) -> NDArray[np.int64]:
        """Read the height and width in pixels, int64 `(B, 2)`, of upright images that are decoded at their own sizes,
        from their headers."""
        rows = resolve_rows(indices, len(self))
        sizes = np.empty((len(rows), 2), np.int64)
        with self._held(rows, pool):
            for part, own, places in self._shares(rows):
                sizes[places] = part.images.own_sizes(own, pool)
        return sizes

    def read_crops(
        self,
        indices: Indices,
        size: tuple[int, int],
        choose: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        out: NDArray[Any] | None = None,
        *,
        pool: ThreadPool = SOLO,
    ) -> NDArray[np.uint8]:
        """Read a crop of each image, resized to `size`, into `out`, uint8 `(B, *size, C)`; no more is decoded. `choose`
        returns the crops, int64 `(B, 4)` of top, left, height and width, for the images' sizes, int64 `(B, 2)`."""
        if self.whole_reason is not None:
            msg = f"The inputs of '{self.path}' are not made of image files of their own sizes: {self.whole_reason}."
            raise TypeError(msg)
        rows = resolve_rows(indices, len(self))
        target = _fitting_array(out, len(rows), (*size, self.crop_channels), np.dtype(np.uint8))
        with self._held(rows, pool):
            # Called once for the whole batch, because random numbers depend on an image's place in the batch, and must
            # not start over with each file.
            crops = choose(self.image_sizes(rows, pool=pool))

            def read(part: SplitPart, own: NDArray[np.intp], into: Any, places: Any) -> Any:
                part.images.decode_crops(own, crops[places], into, pool)
                return into

            return self._share_out(rows, target, read)  # type: ignore[no-any-return]

    def read_y(self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO) -> TargetBatch:
        """Read targets as stored, `(B, *target_shape)`, into `out` or a new array; -1 for each row if there are none.
        Masks of several sizes are a list of B uint8 arrays `(H, W)`, rows of variable length one of B arrays `(M,)` or
        `str`, boxes one of B dicts: `boxes` float32 `(M, 4)` in pixels of the image that `read_x` returns, and every
        other column, `(M, …)`."""
        rows = resolve_rows(indices, len(self))
        out = _fitting_array(out, len(rows), self.target_shape, self.target_dtype)
        if not self.has_targets:
            return np.full(len(rows), -1, np.int64)
        # Boxes depend on the sizes of their images, which are in the headers of the inputs.
        with self._held(rows, pool, "row" if self.has_boxes and self.encoded else "targets"):
            found: TargetBatch = self._share_out(rows, out, lambda part, own, into, _: part.y.read(own, pool, into))
        return found

    def keys(self, indices: Indices | None = None) -> list[str]:
        """Read the source keys of rows, by default of all: the name of the file that each row was made from."""
        if indices is None:
            return list(chain.from_iterable(part.keys() for part in self._parts))
        rows = resolve_rows(indices, len(self))
        return list(self._share_out(rows, None, lambda part, own, *_: part.keys(own)))

    def _held(self, rows: NDArray[np.intp], pool: ThreadPool, side: Side = "row") -> AbstractContextManager[None]:
        """Wait until the rows have arrived, and keep them from being removed while they are read."""
        # Rows in memory do not need the file.
        if self.arrival is None or self.in_memory or self.arrival.complete:
            return nullcontext()
        return self.arrival.hold(self.split, rows, side=side, cancellation=pool.cancellation)

    def _share_out(self, rows: NDArray[np.intp], out: Any, read: Callable[..., Any]) -> Any:
        """Read the rows of each file, and put them together in the order of `rows`: in `out`, or in a list if rows have
        different shapes. `read` is called with a part, the row numbers in it, an array to fill or `None`, and the
        places of these rows."""
        if self._only is not None:
            return read(self._only, rows, out, slice(None))
        found: list[Any] = [None] * len(rows)
        for part, own, places in self._shares(rows):
            run = slice(int(places[0]), int(places[-1]) + 1)
            if out is None:
                for place, value in zip(places.tolist(), read(part, own, None, places), strict=True):
                    found[place] = value
            elif run.stop - run.start == len(places):
                # Consecutive rows of one file are read directly into the batch.
                read(part, own, out[run], places)
            else:
                out[places] = read(part, own, empty_array((len(own), *out.shape[1:]), out.dtype), places)
        return found if out is None else out

    def _shares(self, rows: NDArray[np.intp]) -> Iterator[tuple[SplitPart, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield for each file with any of `rows` its part, the row numbers in the file, and their places in `rows`."""
        # One bisection for all rows, because a loop would take longer than reading them.
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.flatnonzero(np.bincount(owners)).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            yield part, rows[places] - (int(self._ends[number]) - len(part)), places

    def in_place(self) -> NDArray[Any] | None:
        """Return the inputs of all rows without a copy, for frameworks that gather rows themselves; they may be
        unaligned, and what is written stays in this process. `None` if inputs must be read, targets decoded, or rows
        come from several files or are not all here."""
        return None if self._only is None or self.arrival is not None else self._only.in_place()

    def check(self) -> None:
        """Raise DamagedPackError if somebody has written to the file of inputs that are read `in_place`."""
        if self._only is not None and isinstance(x := self._only.x, Mapped):
            x.check()

    def into_memory(self) -> SplitReader:
        """Return a reader of the same rows with all inputs read into memory now; this one if they already are."""
        if self.in_memory:
            return self
        if self.arrival is not None and not self.arrival.complete:
            msg = (
                f"The rows of '{self.path}' are here in part ({self.arrival.layout.reason}), so they cannot be read "
                "into memory. Leave out in_memory=, or disk_limit=; or call data.wait() before."
            )
            raise OptionError(msg)
        # A single file checks this itself, with its own message.
        if self._only is None:
            check_memory(
                self.stored_bytes,
                read_resources().free_memory_bytes,
                f"The split '{self.split}' of {format_count(len(self._parts), 'files')}",
                remedy=_LEAVE_IN_FILE,
            )
        loaded = copy.copy(self)
        loaded._take_over(tuple(part.into_memory() for part in self._parts))
        loaded.in_memory = True
        return loaded

    def keep_images(self, most_bytes: int) -> KeptImages:
        """Keep images that are decoded from now on in the returned memory, as long as somebody holds it. A second
        caller shares it, with the larger of both budgets."""
        kept = self._slot.kept
        # Memory inherited through a fork belongs to the parent.
        if kept is None or kept.pid != os.getpid():
            kept = KeptImages(most_bytes)
            self._slot.fill(kept)
        kept.most_bytes = max(kept.most_bytes, most_bytes)
        return kept

    def warm_up(self, cancellation: Cancellation | None = None) -> None:
        """Load mapped inputs into the system's page cache, in one sequential pass, if they fit and most are not there
        yet. A file that does not stay there is read row by row from then on."""
        for part in self._parts:
            part.warm_up(self._input_bytes, cancellation or Cancellation())

    def close(self) -> None:
        """Close the files; the next read opens them again. Waits for reads in other threads."""
        for part in self._parts:
            part.close()
        if (kept := self._slot.kept) is not None:
            kept.release()


def _packing_line(files: Files, paths: Sequence[Path], fields: NamedFields | None, split: str) -> str:
    """Return the line that packs the same inputs and targets; of several files, whatever they are called."""
    names = "" if fields is None else f"x={fields.x!r}, y={fields.y!r}"
    if len(paths) == 1:
        named = names and f", layout=array_rows({names})"
        return f"pack_dataset('{paths[0]}', 'packed.h5'{named}){', from colabstage.options' if named else ''}"
    several = str(files) if isinstance(files, str | os.PathLike) else [*map(str, files)]
    opened = ", ".join(filter(None, (repr(several), names, f"split='{split}'")))
    return f"pack_dataset(dataset_h5({opened}), 'packed.h5', splits={{'{split}': 1.0}})"


def _is_being_written(path: Path) -> bool:
    """Return whether a program has a local file open for writing, as HDF5 locks it then."""
    with open(path, "rb") as handle, suppress(OSError):
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _check_one_set(infos: list[PackInfo], split: str) -> list[Path]:
    """Return the files that have a split, after checking that they can be read as one."""
    sets: dict[tuple[str, str, str], PackInfo] = {}
    for info in infos:
        # Files from other tools, and single files, belong to no set.
        if info.shard_set is None:
            continue
        other = sets.setdefault(PartName.of(info.path).dataset, info)
        if other.shard_set != info.shard_set:
            msg = (
                f"'{other.path.name}' and '{info.path.name}' in '{info.path.parent}' are of different sets, as after "
                "an interrupted packing. Pack or copy them again."
            )
            raise DamagedPackError(msg)
    having = [info for info in infos if split in info.splits]
    if not having:
        there = format_splits(joined_info(infos))
        msg = f"None of the {format_count(len(infos), 'files')} has a split '{split}'. {there}"
        raise SplitNotFoundError(msg)
    check_schemas(having, split)
    return [info.path for info in having]


def _fitting_array(
    out: NDArray[Any] | None, count: int, row_shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None
) -> NDArray[Any] | None:
    """Return `out`, or a new array, for `count` rows of one shape; `None` if shapes differ."""
    shape = None if row_shape is None or dtype is None else (count, *row_shape)
    if out is None:
        return None if shape is None or dtype is None else empty_array(shape, dtype)
    # Engines write into it by address, so in anything else values would go to the wrong places.
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        expected = "none, as rows have shapes of their own" if shape is None else f"C-contiguous {shape} {dtype}"
        msg = f"out is {out.shape} {out.dtype}; expected {expected}."
        raise ValueError(msg)
    return out
