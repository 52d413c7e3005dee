"""Rows of one split, of one HDF5 file or of several read as one: the part of reading that needs no torch.

Rows of the first file come first, and a batch is what one file of all rows would give.
"""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DamagedPackError, OptionError, SplitNotFoundError
from colabstage.h5.info import read_info
from colabstage.h5.parts import PartName, check_schemas, find_parts
from colabstage.io.pipeline import SOLO
from colabstage.io.units import format_count
from colabstage.load.reading.engines import resolve_rows
from colabstage.load.reading.memory import check_memory
from colabstage.load.reading.part import SplitPart, fitting_array, refuse_out
from colabstage.machine.mounts import require_answer
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.info import NamedFields, PackInfo
    from colabstage.h5.parts import Files
    from colabstage.images.geometry import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.arrival import Arrival, Side
    from colabstage.load.reading.engines import Indices
    from colabstage.load.reading.storage import EngineChoice
    from colabstage.load.reading.targets import TargetBatch


class SplitReader:
    """Read rows of one split at random. Lazy, picklable, safe under fork and spawn, and from several threads."""

    def __init__(
        self,
        files: Files,
        split: str = "train",
        *,
        in_memory: bool = False,
        decode: bool = False,
        arrival: Arrival | None = None,
        fields: NamedFields | None = None,
        resizer: Resizer = "pillow",
    ) -> None:
        """Look at the files; no sample is read, except with `in_memory`.

        Args:
            files: an HDF5 file with `X_<split>`, and `Y_<split>` unless there are no targets; a pattern that several
                match, or a list of files, in the order of their rows. Of several, one without the split has no rows of
                it.
            split: which split.
            in_memory: read all inputs into memory now, in one sequential pass. Children made by fork share them.
            decode: decode inputs that are rows of bytes of variable length, each an image file.
            fields: what inputs and targets are called in files that have their own names for them.
            arrival: brings the rows of a file of which some are not here yet; every read waits for its own.
            resizer: what resizes images that are resized when they are read: `"torch"`, where it can, is faster, has to
                be imported, and is within one grey level of `"pillow"`.

        Raises:
            OptionError: with `in_memory` and an `arrival` that does not have all rows.
            DriveDisconnectedError: a mount that they are on is dead, or does not answer.
            SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: a file cannot be read, or with
                `decode` holds no image files; several differ (the message says how), or are shards of different sets.
            SplitNotFoundError: none has such a split; the message lists the splits.
            NotEnoughSpaceError: with `in_memory`, when the inputs do not fit; nothing has been read.
        """
        # Before any question to a mount, of which one that hangs would never come back.
        require_answer(*((files,) if isinstance(files, str | os.PathLike) else files))
        paths = find_parts(files)
        self.arrival = arrival
        """What brings rows that are not here yet, `None` where all are."""
        self.fields = fields
        """What inputs and targets are called in files that have their own names for them."""
        if len(paths) == 1:
            self._parts: tuple[SplitPart, ...] = (
                SplitPart(paths[0], split, decode=decode, arrival=arrival, fields=fields, resizer=resizer),
            )
            paths = (self._parts[0].path,)
        else:
            self._parts = _open_parts(paths, split, decode=decode, arrival=arrival, fields=fields, resizer=resizer)
        self.path = paths[0]
        self.paths = paths
        self.split = split
        self.classes = self._parts[0].classes
        self.in_memory = False
        # With one file, row numbers are the file's own. Dividing rows among parts would take a small batch as long as
        # copying it.
        self._only = self._parts[0] if len(self._parts) == 1 else None
        self._ends = np.cumsum([len(part) for part in self._parts])
        self.slow_mount = next((part.slow_mount for part in self._parts if part.slow_mount is not None), None)
        if in_memory:
            self._load()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def engine(self) -> EngineChoice:
        """Tell how the inputs are read, of several files most of them, and why."""
        largest = max(self._parts, key=len).engine
        if self._only is not None:
            return largest
        return replace(largest, reason=f"{format_count(len(self._parts), 'files')}; of the largest: {largest.reason}")

    @property
    def encoded(self) -> bool:
        """Tell whether rows are image files that are decoded when they are read."""
        return self._parts[0].encoded

    @property
    def stored_bytes(self) -> int:
        """Return the length of all inputs as they are stored, and of targets of variable length, in bytes: what
        `into_memory` takes."""
        return sum(part.stored_bytes for part in self._parts)

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one input row; `None` when rows have different shapes, and come as lists."""
        return self._parts[0].row_shape

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the inputs, in native byte order; `object` for texts. Encoded rows of 16-bit or float
        images have their own."""
        return self._parts[0].row_dtype

    @property
    def row_bytes(self) -> int:
        """Return the length of one input row in memory, in bytes; the mean where each has its own, of encoded rows of
        files."""
        if self._only is not None:
            return self._only.row_bytes
        return sum(part.row_bytes * len(part) for part in self._parts) // max(1, len(self))

    def estimate_row_bytes(self) -> int:
        """Return the length of one input row once it is in memory, in bytes: exact where all have one shape, otherwise
        the mean of a few images of the largest file, whose headers are read."""
        return max(self._parts, key=len).estimate_row_bytes()

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one target; empty for a number, `None` when there are no targets, or each has its
        own."""
        return self._parts[0].target_shape

    @property
    def target_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of targets of one shape, in native byte order; `None` where `target_shape` is."""
        return self._parts[0].target_dtype

    @property
    def target_bytes(self) -> int | None:
        """Return the length of one target in memory, in bytes; 0 when there are none, `None` when each has its own."""
        return self._parts[0].target_bytes

    @property
    def has_boxes(self) -> bool:
        """Tell whether targets are boxes, any number of each row."""
        return self._parts[0].has_boxes

    @property
    def has_free_targets(self) -> bool:
        """Tell whether targets are texts, or values of any number in each row."""
        return self._parts[0].has_free_targets

    def read_x(
        self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO
    ) -> NDArray[Any] | list[Any]:
        """Read inputs.

        Args:
            indices: rows in the order wanted, B of them; negative ones count from the end, repeats are fine.
            out: where to put them, C-contiguous, writable `(B, *row_shape)` of `row_dtype`; a new array by default.
            pool: threads to share the copying and decoding among; the caller's alone by default.

        Returns:
            `out`, or a new array like it; a list of B arrays where `row_shape` is `None`, or of B `str`.

        Raises:
            IndexError: a row that is not there.
            ValueError: `out` is not of the right shape, dtype or order, or rows of different shapes have no `out`.
            DecodeError: an encoded row is broken; the message names it.
            DamagedPackError: a file changed since it was opened, or is cut off.
        """
        with self._held(indices, pool):
            return self._read_x(indices, out, pool)

    def _read_x(self, indices: Indices, out: NDArray[Any] | None, pool: ThreadPool) -> NDArray[Any] | list[Any]:
        if self._only is not None:
            return self._only.read_x(indices, out, pool=pool)
        rows = resolve_rows(indices, len(self))
        shape = self.row_shape
        if shape is None:
            refuse_out(out)
            images: list[Any] = [None] * len(rows)
            for part, own, places in self._shares(rows):
                for place, image in zip(places.tolist(), part.read_x(own, pool=pool), strict=True):
                    images[place] = image
            return images
        target = fitting_array(out, (len(rows), *shape), self.row_dtype)
        for part, own, places in self._shares(rows):
            run = slice(int(places[0]), int(places[-1]) + 1)
            # Consecutive rows of one file are read straight into the batch, without an array in between.
            if run.stop - run.start == len(places):
                part.read_x(own, target[run], pool=pool)
            else:
                target[places] = part.read_x(own, pool=pool)
        return target

    @property
    def can_crop(self) -> bool:
        """Tell whether `read_crops` can read these inputs: encoded images of 8 bits at their own sizes."""
        return self.whole_reason is None

    @property
    def whole_reason(self) -> str | None:
        """Tell why `read_crops` cannot read these inputs, `None` where it can."""
        return self._parts[0].whole_reason

    @property
    def crop_channels(self) -> int:
        """Return the number of channels of what `read_crops` reads."""
        return self._parts[0].crop_channels

    def image_sizes(self, indices: Indices, *, pool: ThreadPool = SOLO) -> NDArray[np.int64]:
        """Read the height and width in pixels of images that are decoded at their own sizes, upright, int64 `(B, 2)`,
        from their headers.

        Raises:
            IndexError, DecodeError: as `read_x`.
            TypeError: these inputs are no image files.
        """
        with self._held(indices, pool):
            if self._only is not None:
                return self._only.image_sizes(indices, pool=pool)
            rows = resolve_rows(indices, len(self))
            sizes = np.empty((len(rows), 2), np.int64)
            for part, own, places in self._shares(rows):
                sizes[places] = part.image_sizes(own, pool=pool)
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
        """Read a part of each image, resized: only what the part needs is decoded, at no more detail than it needs.

        Args:
            indices: rows in the order wanted, B of them; negative ones count from the end, repeats are fine.
            size: height and width of the result.
            choose: makes the parts of the images' sizes: int64 `(B, 2)`, height and width, to int64 `(B, 4)`, top,
                left, height and width, all in pixels of the upright image.
            out: where to put them, C-contiguous uint8 `(B, *size, C)`; a new array by default.
            pool: threads to share the decoding among.

        Raises:
            IndexError, DecodeError, DamagedPackError, ValueError: as `read_x`.
            TypeError: these inputs cannot be cropped when they are read (`can_crop`).
        """
        with self._held(indices, pool):
            if self._only is not None:
                return self._only.read_crops(indices, size, choose, out, pool=pool)
            rows = resolve_rows(indices, len(self))
            target = fitting_array(out, (len(rows), *size, self.crop_channels), np.dtype(np.uint8))
            # Once for the whole batch, because random numbers follow an image's place in the batch, and must not start
            # over with each file.
            crops = choose(self.image_sizes(rows, pool=pool))
            for part, own, places in self._shares(rows):
                chosen = crops[places]
                target[places] = part.read_crops(own, size, lambda _, chosen=chosen: chosen, pool=pool)  # type: ignore[misc]
            return target

    def read_y(self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO) -> TargetBatch:
        """Read targets.

        Args:
            indices, pool: as of `read_x`.
            out: where to put them, C-contiguous, writable `(B, *target_shape)` of `target_dtype`; a new array by
                default.

        Returns:
            As stored, `(B, *target_shape)`, in native byte order; -1 for each where there are none. Masks of
            images of many sizes: a list of B uint8 arrays `(H, W)`. Rows of variable length: a list of B arrays `(M,)`,
            or of B `str`. Boxes: a list of B dicts, `boxes` float32 `(M, 4)` in pixels of the image as `read_x` gives
            it, and every further column, `(M, …)`.

        Raises:
            IndexError: a row that is not there.
            ValueError: `out` is not of the right shape, dtype or order, or there is none for these targets.
            DecodeError: an encoded mask is broken, or the header of an image whose boxes are asked for.
        """
        # Boxes depend on the sizes of their images, which are in the images' own headers.
        with self._held(indices, pool, "row" if self.has_boxes and self.encoded else "targets"):
            return self._read_y(indices, out, pool)

    def _read_y(self, indices: Indices, out: NDArray[Any] | None, pool: ThreadPool) -> TargetBatch:
        if self._only is not None:
            return self._only.read_y(indices, out, pool=pool)
        rows = resolve_rows(indices, len(self))
        shape, dtype = self.target_shape, self.target_dtype
        if shape is None or dtype is None:
            refuse_out(out, "targets")
        elif out is not None:
            fitting_array(out, (len(rows), *shape), dtype)
        shares = [(part.read_y(own, pool=pool), places) for part, own, places in self._shares(rows)]
        # An empty batch belongs to no file, and the first one knows its shape.
        if not shares:
            return self._parts[0].read_y(rows, out, pool=pool)
        first = shares[0][0]
        if isinstance(first, np.ndarray):
            joined = np.empty((len(rows), *first.shape[1:]), first.dtype) if out is None else out
            for values, places in shares:
                joined[places] = values
            return joined
        found: list[Any] = [None] * len(rows)
        for values, places in shares:
            for place, value in zip(places.tolist(), values, strict=True):
                found[place] = value
        return found

    def keys(self, indices: Indices | None = None) -> list[str]:
        """Read the source key of rows, of all by default: the name of the file that each was made from.

        Raises:
            PackFormatError: a file has none.
            IndexError: a row that is not there.
        """
        if self._only is not None or indices is None:
            return list(chain.from_iterable(part.keys(indices) for part in self._parts))
        rows = resolve_rows(indices, len(self))
        found = [""] * len(rows)
        for part, own, places in self._shares(rows):
            for place, key in zip(places.tolist(), part.keys(own), strict=True):
                found[place] = key
        return found

    def _held(self, indices: Indices, pool: ThreadPool, side: Side = "row") -> AbstractContextManager[None]:
        """Wait for rows that arrive, and keep them here while they are read."""
        # Rows in memory do not need the file.
        if self.arrival is None or self.in_memory or self.arrival.complete:
            return nullcontext()
        rows = resolve_rows(indices, len(self))
        return self.arrival.hold(self.split, rows, side=side, cancellation=pool.cancellation)

    def in_place(self) -> NDArray[Any] | None:
        """Return the inputs of all rows where they are, for whoever gathers them by other means.

        Returns:
            `(N, *row_shape)` of `row_dtype`, over a mapped file, read-only, or over our own memory; it keeps that
            memory, and may begin at any byte. `None` where inputs have to be read, targets have to be decoded, or rows
            come from several files, or are not all here.
        """
        return None if self._only is None or self.arrival is not None else self._only.in_place()

    def check(self) -> None:
        """Make sure, before inputs in place are gathered, that they are what they were: they would change unseen.

        Raises:
            DamagedPackError: somebody has written to the file since it was opened.
        """
        if self._only is not None:
            self._only.check()

    def into_memory(self) -> SplitReader:
        """Make another reader of the same rows, with all inputs read into memory now; this one if it has them there.

        Raises:
            NotEnoughSpaceError: they do not fit; nothing has been read.
            OptionError: not all rows are here.
        """
        if self.in_memory:
            return self
        loaded = copy.copy(self)
        loaded._load()
        return loaded

    def warm_up(self) -> Iterator[None]:
        """Load mapped inputs into the system's page cache, if most are not there yet and they fit.

        One sequential pass, file by file, with a pause after each block. A file that does not stay in memory even so,
        as in a container whose page cache is limited, is read row by row from then on.

        Raises:
            DamagedPackError: a file changed since it was opened.
        """
        for part in self._parts:
            yield from part.warm_up()

    def close(self) -> None:
        """Release the files; the next read opens them again. Reads under way in other threads finish first."""
        for part in self._parts:
            part.close()

    def _load(self) -> None:
        if self.arrival is not None and not self.arrival.complete:
            msg = (
                f"The rows of '{self.path}' are here in part ({self.arrival.reason}), and all of them were to be read "
                'into memory. Leave in_memory=False and strategy="auto", by which they are read as they come.'
            )
            raise OptionError(msg)
        # A single file checks this itself, with a message of its own.
        if self._only is None:
            check_memory(
                self.stored_bytes,
                read_resources().free_memory_bytes,
                f"The split '{self.split}' of {format_count(len(self._parts), 'files')}",
                remedy="Leave in_memory=False: files on a local disk are read from the system's cache, as far as that "
                "reaches.",
            )
        self._parts = tuple(part.into_memory() for part in self._parts)
        self._only = self._parts[0] if self._only is not None else None
        self.in_memory = True

    def _shares(self, rows: NDArray[np.intp]) -> Iterator[tuple[SplitPart, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield for each file with any of `rows` its part, its own row numbers, and their places in the batch."""
        # By bisection for all rows at once: a loop over rows would take longer than reading them.
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            yield part, rows[places] - (int(self._ends[number]) - len(part)), places


def _open_parts(
    paths: tuple[Path, ...],
    split: str,
    *,
    decode: bool,
    arrival: Arrival | None,
    fields: NamedFields | None,
    resizer: Resizer,
) -> tuple[SplitPart, ...]:
    """Open several files that are to be read as one, once it is sure that they can be.

    Raises:
        PackFormatError: a file's samples are not like those of the others; the message names the difference.
        DamagedPackError: the files are shards of different sets.
        SplitNotFoundError: none has the split.
        ColabstageError: whatever else `SplitPart` raises.
    """
    # All headers before any engine: that files differ is told in a moment, however many there are.
    infos = [read_info(path, fields) for path in paths]
    _check_one_set(infos)
    having = [info for info in infos if split in info.splits]
    if not having:
        there = ", ".join(f"'{name}'" for name in dict.fromkeys(name for info in infos for name in info.splits))
        msg = f"None of the {format_count(len(infos), 'files')} has a split '{split}'. They have {there}."
        raise SplitNotFoundError(msg)
    check_schemas(having, split)
    total = sum(info.split(split).x.nbytes for info in having)
    return tuple(
        SplitPart(
            info.path,
            split,
            decode=decode,
            beside_bytes=total - info.split(split).x.nbytes,
            arrival=arrival,
            fields=fields,
            resizer=resizer,
        )
        for info in having
    )


def _check_one_set(infos: list[PackInfo]) -> None:
    """Make sure that shards of one name come from one run, as those that were written together say.

    Raises:
        DamagedPackError: shards of one name and number come from different runs.
    """
    sets: dict[tuple[str, str, str], PackInfo] = {}
    for info in infos:
        # Files from other tools, and single files, say nothing about a set.
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
