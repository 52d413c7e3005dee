"""Read rows of one split from one HDF5 file, or from several as if they were one file, without torch.

The files' rows follow each other in the order of the files.
"""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DamagedPackError, OptionError, SplitNotFoundError
from colabstage.h5.info import format_splits, read_info
from colabstage.h5.parts import PartName, check_files, check_schemas, find_parts, joined_info
from colabstage.io.pipeline import SOLO
from colabstage.io.progress import Cancellation
from colabstage.io.units import format_count
from colabstage.load.reading.fields import resolve_rows
from colabstage.load.reading.memory import KeptImages, allow_open_files, check_memory, empty_array
from colabstage.load.reading.part import RowFacts, SplitPart
from colabstage.machine.mounts import require_answer
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Arrival, Side, UnitLayout
    from colabstage.h5.info import NamedFields, PackInfo
    from colabstage.h5.parts import Files
    from colabstage.images.resample import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.fields import EngineChoice, Indices, TargetBatch


class SplitReader(RowFacts):
    """Read rows of one split in any order. Lazy, picklable, safe under fork and spawn and in threads.

    Attributes:
        path, paths: the first file, and all files.
        arrival: brings rows that are not here yet; `None` if all are here.
        fields: names of inputs and targets, in files with names of their own.
        allow_external: whether files may lead to files that did not come with them.
        classes: names of the classes in label order.
        slow_mount: why reading from the mount of a file is slow; `None` for local disks.
        row_bytes: length of one input in memory; the mean if lengths differ, and for encoded rows that of the files.
        stored_bytes: memory that `into_memory` takes: the length of all inputs as stored, and of all targets of
            variable length.
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
        """Open an HDF5 file with `X_<split>` and, if there are targets, `Y_<split>`, or a pattern or a list of such
        files, and read the headers; no sample is read. `fields`: names of inputs and targets, in
        files with names of their own. `resizer`: `"torch"` is faster, has to be imported, and is within one grey level
        of `"pillow"`."""
        check_files(files)
        # Before any other call to a mount, because a call to one that hangs would never return.
        require_answer(*((files,) if isinstance(files, str | os.PathLike) else files))
        paths = find_parts(files)
        allow_open_files(len(paths))
        self.arrival, self.fields, self.split = arrival, fields, split
        self.allow_external = allow_external
        # A single file raises its own errors, in `SplitPart`.
        with_split = (
            [(paths[0], 0)]
            if len(paths) == 1
            else _files_of_one_set(paths, split, fields, allow_external=allow_external, in_part=arrival is not None)
        )
        make = partial(
            SplitPart, split=split, arrival=arrival, fields=fields, resizer=resizer, allow_external=allow_external
        )
        parts = tuple(
            make(path, beside_bytes=beside, number=number) for number, (path, beside) in enumerate(with_split)
        )
        if len(paths) == 1:
            paths = (parts[0].path,)
        self.path, self.paths = paths[0], paths
        self.in_memory = False
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

    def _take_over(self, parts: tuple[SplitPart, ...]) -> None:
        self._parts = parts
        # With one file, row numbers are the file's own. To divide the rows of a small batch among parts would take as
        # long as to copy them.
        self._only = parts[0] if len(parts) == 1 else None
        self._largest = max(parts, key=len)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def engine(self) -> EngineChoice:
        """Return the engine that reads the inputs, and the reason; for several files, that of most rows."""
        engine = self._largest.engine
        if self._only is not None:
            return engine
        return replace(engine, reason=f"{format_count(len(self._parts), 'files')}; of the largest: {engine.reason}")

    @property
    def layout(self) -> UnitLayout | None:
        """Return the units that rows come in; `None` if all are here, as of any other file."""
        return None if self.arrival is None else self.arrival.layout

    def estimate_row_bytes(self) -> int:
        """Return the length of one input in memory, in bytes: exact if all have one shape, otherwise the mean of a few
        images of the largest file, from their headers."""
        return self.row_bytes if self.row_shape is not None else self._largest.estimate_row_bytes()

    def read_x(
        self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO
    ) -> NDArray[Any] | list[Any]:
        """Read inputs, in the order of `indices`, of which negative ones count from the end: into `out`, C-contiguous
        `(B, *row_shape)`, or a new array; a list of B arrays, or of B `str`, if `row_shape` is `None`."""
        rows = resolve_rows(indices, len(self))
        if self.row_shape is None:
            refuse_out(out)
        else:
            out = fitting_array(out, (len(rows), *self.row_shape), self.row_dtype)
        with self._held(rows, pool):
            found: NDArray[Any] | list[Any] = self._share_out(
                rows, out, lambda part, own, into, _: part.x.read(own, pool, into)
            )
        return found

    def image_sizes(self, indices: Indices) -> NDArray[np.int64]:
        """Read the height and width in pixels, int64 `(B, 2)`, of upright images that are decoded at their own sizes,
        from their headers."""
        rows = resolve_rows(indices, len(self))
        with self._held(rows, SOLO):
            return self._image_sizes(rows, SOLO)

    def _image_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        sizes = np.empty((len(rows), 2), np.int64)
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
        """Read a crop of each image, resized to `size`, into `out`, uint8 `(B, *size, C)`. Only the crop is decoded, at
        no finer scale than needed. `choose` returns the crops, int64 `(B, 4)` of top, left, height and width, for the
        images' heights and widths, int64 `(B, 2)`."""
        if self.whole_reason is not None:
            msg = f"The inputs of '{self.path}' are not made of image files of their own sizes: {self.whole_reason}."
            raise TypeError(msg)
        rows = resolve_rows(indices, len(self))
        target = fitting_array(out, (len(rows), *size, self.crop_channels), np.dtype(np.uint8))
        with self._held(rows, pool):
            # Called once for the whole batch, because random numbers depend on an image's place in the batch, and must
            # not start over with each file.
            crops = choose(self._image_sizes(rows, pool))

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
        if self.target_shape is None or self.target_dtype is None:
            refuse_out(out, "targets")
            if not self.has_targets:
                return np.full(len(rows), -1, np.int64)
        else:
            out = fitting_array(out, (len(rows), *self.target_shape), self.target_dtype)
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

    def in_place(self) -> NDArray[Any] | None:
        """Return the inputs of all rows without a copy, for frameworks that gather rows themselves, over a mapped file
        or memory of this process; it may be unaligned, and what is written to it stays in this process. `None` if
        inputs must be read, targets must be decoded, or rows come from several files or are not all here."""
        return None if self._only is None or self.arrival is not None else self._only.in_place()

    def check(self) -> None:
        """Raise DamagedPackError if somebody has written to the file of inputs that are read `in_place`."""
        if self._only is not None:
            self._only.check()

    def into_memory(self) -> SplitReader:
        """Return a reader of the same rows with all inputs read into memory now; this one if they are there already."""
        if self.in_memory:
            return self
        if self.arrival is not None and not self.arrival.complete:
            msg = (
                f"The rows of '{self.path}' are here in part ({self.arrival.layout.reason}), and all of them were to "
                'be read into memory. Write strategy="auto" and leave out in_memory=: then they are read as they come. '
                "Of a dataset that is staged with streaming=True, data.wait() waits for all of them."
            )
            raise OptionError(msg)
        # A single file checks this itself, with its own message.
        if self._only is None:
            check_memory(
                self.stored_bytes,
                read_resources().free_memory_bytes,
                f"The split '{self.split}' of {format_count(len(self._parts), 'files')}",
                remedy="Leave in_memory=False: files on a local disk are read from the system's cache, as far as that "
                "reaches.",
            )
        loaded = copy.copy(self)
        loaded._take_over(tuple(part.into_memory() for part in self._parts))
        loaded.in_memory = True
        return loaded

    def keep_images(self, most_bytes: int) -> KeptImages:
        """Keep images that are decoded from now on in the returned memory, as long as a caller holds a reference to it.

        A second caller shares that memory, with the larger of both budgets.
        """
        slots = [slot for part in self._parts for slot in part.slots]
        kept = slots[0].kept
        # Memory inherited through a fork belongs to the parent.
        if kept is None or kept.pid != os.getpid():
            kept = KeptImages(most_bytes, lambda: read_resources().free_memory_bytes)
            for slot in slots:
                slot.fill(kept)
        kept.most_bytes = max(kept.most_bytes, most_bytes)
        return kept

    def warm_up(self, cancellation: Cancellation | None = None) -> None:
        """Load mapped inputs into the system's page cache, if they fit and most are not there yet, in one sequential
        pass. A file that does not stay in memory nevertheless is read row by row from then on."""
        for part in self._parts:
            part.warm_up(cancellation or Cancellation())

    def close(self) -> None:
        """Close the files; the next read opens them again. Waits for reads in other threads."""
        for part in self._parts:
            part.close()

    def _shares(self, rows: NDArray[np.intp]) -> Iterator[tuple[SplitPart, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield for each file with any of `rows` its part, the row numbers in the file, and their places in `rows`."""
        if self._only is not None:
            yield self._only, rows, np.arange(len(rows))
            return
        # One bisection for all rows, because a loop over rows would take longer than to read them.
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            yield part, rows[places] - (int(self._ends[number]) - len(part)), places


def _files_of_one_set(
    paths: tuple[Path, ...], split: str, fields: NamedFields | None, *, allow_external: bool, in_part: bool
) -> list[tuple[Path, int]]:
    """Return the files that have a split, each with the length of the other files' inputs, after a check that they can
    be read as one."""
    # All headers are read before any engine is made, so that a difference is reported at once.
    infos = [read_info(path, fields, allow_external=allow_external, in_part=in_part) for path in paths]
    _check_one_set(infos)
    having = [info for info in infos if split in info.splits]
    if not having:
        there = format_splits(joined_info(infos))
        msg = f"None of the {format_count(len(infos), 'files')} has a split '{split}'. {there}"
        raise SplitNotFoundError(msg)
    check_schemas(having, split)
    sizes = [info.split(split).x.nbytes for info in having]
    return [(info.path, sum(sizes) - nbytes) for info, nbytes in zip(having, sizes, strict=True)]


def _check_one_set(infos: list[PackInfo]) -> None:
    """Raise DamagedPackError if shards of one name come from different runs."""
    sets: dict[tuple[str, str, str], PackInfo] = {}
    for info in infos:
        # Files from other tools, and single files, belong to no set.
        if info.shard_set is None:
            continue
        other = sets.setdefault(PartName.of(info.path).dataset, info)
        if other.shard_set != info.shard_set:
            msg = (
                f"'{other.path.name}' and '{info.path.name}' in '{info.path.parent}' are of different sets: packing "
                "was interrupted while it replaced one by the other, or they were copied together. Pack or copy them "
                "again."
            )
            raise DamagedPackError(msg)


def fitting_array(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `out`, or a new array if it is `None`; a ValueError if it does not fit."""
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


def refuse_out(out: NDArray[Any] | None, what: str = "rows") -> None:
    """Raise `ValueError` if `out` was given for rows that do not fit into one array."""
    if out is not None:
        msg = f"These {what} do not share one shape, and so no out array. Leave out=None."
        raise ValueError(msg)
