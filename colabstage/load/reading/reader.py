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
from colabstage.h5.parts import PartName, check_files, check_schemas, find_parts
from colabstage.io.pipeline import SOLO
from colabstage.io.units import format_count
from colabstage.load.reading.engines import resolve_rows
from colabstage.load.reading.memory import KeptImages, check_memory, empty_array
from colabstage.load.reading.part import SplitPart
from colabstage.machine.mounts import require_answer
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.info import NamedFields, PackInfo
    from colabstage.h5.parts import Files
    from colabstage.images.resample import Resizer
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.arrival import Arrival, Side
    from colabstage.load.reading.engines import EngineChoice, Indices
    from colabstage.load.reading.rows import TargetBatch


class SplitReader:
    """Read rows of one split at random. Lazy, picklable, safe under fork and spawn, and from several threads.

    Attributes:
        path, paths: the file, of several the first one; and all of them.
        arrival: what brings rows that are not here yet, `None` where all are.
        fields: what inputs and targets are called in files that have their own names for them.
        classes: names of the classes in label order.
        slow_mount: what is slow about where a file is, `None` of local disks.
        encoded: whether rows are image files that are decoded when they are read.
        row_shape: of one input; `None` when rows have different shapes, and come as lists.
        row_dtype: of inputs, in native byte order; `object` for texts. Encoded rows of 16-bit or float images have
            their own.
        row_bytes: length of one input in memory; the mean where each has its own, of encoded rows of files.
        stored_bytes: length of all inputs as they are stored, and of targets of variable length: what `into_memory`
            takes.
        target_shape: of one target; empty for a number, `None` when there are no targets, or each has its own.
        target_dtype: of targets of one shape, in native byte order; `None` where `target_shape` is.
        target_bytes: length of one target in memory; 0 when there are none, `None` when each has its own.
        has_boxes: whether targets are boxes, any number of each row.
        decodes_targets: whether targets are mask files that are decoded when they are read.
        has_free_targets: whether targets are texts, or values of any number in each row.
        whole_reason: why `read_crops` cannot read these inputs, `None` where it can: encoded images of 8 bits at
            their own sizes.
        crop_channels: how many channels `read_crops` reads.
    """

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
        check_files(files)
        # Before any question to a mount, of which one that hangs would never come back.
        require_answer(*((files,) if isinstance(files, str | os.PathLike) else files))
        paths = find_parts(files)
        self.arrival, self.fields, self.split = arrival, fields, split
        # A single file says itself what is wrong with it.
        with_split = [(paths[0], 0)] if len(paths) == 1 else _files_of_one_set(paths, split, fields)
        parts = tuple(
            SplitPart(
                path,
                split,
                decode=decode,
                beside_bytes=beside,
                arrival=arrival,
                fields=fields,
                resizer=resizer,
                number=number,
            )
            for number, (path, beside) in enumerate(with_split)
        )
        if len(paths) == 1:
            paths = (parts[0].path,)
        self.path, self.paths = paths[0], paths
        self.in_memory = False
        self._ends = np.cumsum([len(part) for part in parts])
        self._take_over(parts)
        # Of several they are alike.
        one = parts[0]
        self.classes, self.encoded = one.classes, one.encoded
        self.row_shape, self.row_dtype = one.row_shape, one.row_dtype
        self.target_shape, self.target_dtype, self.target_bytes = one.target_shape, one.target_dtype, one.target_bytes
        self.has_boxes, self.has_free_targets, self._has_targets = one.has_boxes, one.has_free_targets, one.has_targets
        self.decodes_targets = one.decodes_targets
        self.whole_reason, self.crop_channels = one.whole_reason, one.crop_channels
        self.slow_mount = next((part.slow_mount for part in parts if part.slow_mount is not None), None)
        self.stored_bytes = sum(part.stored_bytes for part in parts)
        self.row_bytes = one.row_bytes
        if self.row_shape is None and len(parts) > 1:
            self.row_bytes = sum(part.row_bytes * len(part) for part in parts) // max(1, len(self))
        if in_memory:
            self._load()

    def _take_over(self, parts: tuple[SplitPart, ...]) -> None:
        self._parts = parts
        # With one file, row numbers are the file's own. Dividing rows among parts would take a small batch as long as
        # copying it.
        self._only = parts[0] if len(parts) == 1 else None
        self._largest = max(parts, key=len)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def engine(self) -> EngineChoice:
        """Tell how the inputs are read, of several files most of them, and why."""
        engine = self._largest.engine
        if self._only is not None:
            return engine
        return replace(engine, reason=f"{format_count(len(self._parts), 'files')}; of the largest: {engine.reason}")

    def estimate_row_bytes(self) -> int:
        """Return the length of one input row once it is in memory, in bytes: exact where all have one shape, otherwise
        the mean of a few images of the largest file, whose headers are read."""
        return self.row_bytes if self.row_shape is not None else self._largest.estimate_row_bytes()

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
        rows = resolve_rows(indices, len(self))
        if self.row_shape is None:
            refuse_out(out)
        else:
            out = fitting_array(out, (len(rows), *self.row_shape), self.row_dtype)
        with self._held(rows, pool):
            found: NDArray[Any] | list[Any] = self._share_out(
                rows, out, lambda part, own, into, _: part.read_x(own, into, pool)
            )
        return found

    def image_sizes(self, indices: Indices) -> NDArray[np.int64]:
        """Read the height and width in pixels of images that are decoded at their own sizes, upright, int64 `(B, 2)`,
        from their headers.

        Raises:
            IndexError, DecodeError: as `read_x`.
            TypeError: these inputs are no image files.
        """
        rows = resolve_rows(indices, len(self))
        with self._held(rows, SOLO):
            return self._image_sizes(rows, SOLO)

    def _image_sizes(self, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[np.int64]:
        sizes = np.empty((len(rows), 2), np.int64)
        for part, own, places in self._shares(rows):
            sizes[places] = part.image_sizes(own, pool)
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
            TypeError: these inputs cannot be cropped when they are read (`whole_reason`).
        """
        if self.whole_reason is not None:
            msg = f"The inputs of '{self.path}' are not made of image files of their own sizes: {self.whole_reason}."
            raise TypeError(msg)
        rows = resolve_rows(indices, len(self))
        target = fitting_array(out, (len(rows), *size, self.crop_channels), np.dtype(np.uint8))
        with self._held(rows, pool):
            # Once for the whole batch, because random numbers follow an image's place in the batch, and must not start
            # over with each file.
            crops = choose(self._image_sizes(rows, pool))

            def read(part: SplitPart, own: NDArray[np.intp], into: Any, places: Any) -> Any:
                part.read_crops(own, crops[places], into, pool)
                return into

            return self._share_out(rows, target, read)  # type: ignore[no-any-return]

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
        rows = resolve_rows(indices, len(self))
        if self.target_shape is None or self.target_dtype is None:
            refuse_out(out, "targets")
            if not self._has_targets:
                return np.full(len(rows), -1, np.int64)
        else:
            out = fitting_array(out, (len(rows), *self.target_shape), self.target_dtype)
        # Boxes depend on the sizes of their images, which are in the images' own headers.
        with self._held(rows, pool, "row" if self.has_boxes and self.encoded else "targets"):
            found: TargetBatch = self._share_out(rows, out, lambda part, own, into, _: part.read_y(own, into, pool))
        return found

    def keys(self, indices: Indices | None = None) -> list[str]:
        """Read the source key of rows, of all by default: the name of the file that each was made from.

        Raises:
            PackFormatError: a file has none.
            IndexError: a row that is not there.
        """
        if indices is None:
            return list(chain.from_iterable(part.keys() for part in self._parts))
        rows = resolve_rows(indices, len(self))
        return list(self._share_out(rows, None, lambda part, own, *_: part.keys(own)))

    def _held(self, rows: NDArray[np.intp], pool: ThreadPool, side: Side = "row") -> AbstractContextManager[None]:
        """Wait for rows that arrive, and keep them here while they are read."""
        # Rows in memory do not need the file.
        if self.arrival is None or self.in_memory or self.arrival.complete:
            return nullcontext()
        return self.arrival.hold(self.split, rows, side=side, cancellation=pool.cancellation)

    def _share_out(self, rows: NDArray[np.intp], out: Any, read: Callable[..., Any]) -> Any:
        """Have each file read its own of `rows`, and put them together in their order.

        Args:
            rows: B of them.
            out: where to, `(B, …)`; `None` for a list, where rows have their own shapes.
            read: called with a file's part, its own row numbers, where to put them or `None`, and which of `rows` they
                are; returns what it has read.
        """
        if self._only is not None:
            return read(self._only, rows, out, slice(None))
        found: list[Any] = [None] * len(rows)
        for part, own, places in self._shares(rows):
            run = slice(int(places[0]), int(places[-1]) + 1)
            if out is None:
                for place, value in zip(places.tolist(), read(part, own, None, places), strict=True):
                    found[place] = value
            elif run.stop - run.start == len(places):
                # Consecutive rows of one file are read straight into the batch, without an array in between.
                read(part, own, out[run], places)
            else:
                out[places] = read(part, own, empty_array((len(own), *out.shape[1:]), out.dtype), places)
        return found if out is None else out

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

    def keep_images(self, most_bytes: int) -> KeptImages:
        """Have images that are decoded from now on kept, in the memory that is returned, as long as somebody holds it.

        Whoever asks while another one holds it shares that memory, and the larger of both budgets holds.
        """
        slots = [slot for part in self._parts for slot in part.slots]
        kept = slots[0].kept
        # What a forked child inherits is its parent's.
        if kept is None or kept.pid != os.getpid():
            kept = KeptImages(most_bytes, lambda: read_resources().free_memory_bytes)
            for slot in slots:
                slot.fill(kept)
        kept.most_bytes = max(kept.most_bytes, most_bytes)
        return kept

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
        self._take_over(tuple(part.into_memory() for part in self._parts))
        self.in_memory = True

    def _shares(self, rows: NDArray[np.intp]) -> Iterator[tuple[SplitPart, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield for each file with any of `rows` its part, its own row numbers, and their places in the batch."""
        if self._only is not None:
            yield self._only, rows, np.arange(len(rows))
            return
        # By bisection for all rows at once: a loop over rows would take longer than reading them.
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            yield part, rows[places] - (int(self._ends[number]) - len(part)), places


def _files_of_one_set(paths: tuple[Path, ...], split: str, fields: NamedFields | None) -> list[tuple[Path, int]]:
    """Return those of several files that have a split, once it is sure that they can be read as one, each with the
    length of the others' inputs.

    Raises:
        PackFormatError: a file's samples are not like those of the others; the message names the difference.
        DamagedPackError: the files are shards of different sets.
        SplitNotFoundError: none has the split.
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
    sizes = [info.split(split).x.nbytes for info in having]
    return [(info.path, sum(sizes) - nbytes) for info, nbytes in zip(having, sizes, strict=True)]


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


def refuse_out(out: NDArray[Any] | None, what: str = "rows") -> None:
    """Make sure that no array was given for what fits into none."""
    if out is not None:
        msg = f"These {what} do not share one shape, and so no out array. Leave out=None."
        raise ValueError(msg)
