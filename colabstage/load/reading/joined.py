"""Several files read as one: rows of the first come first, and a batch is what one file of all rows would give."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DamagedPackError, SplitNotFoundError
from colabstage.h5.info import read_info
from colabstage.h5.parts import PartName, check_schemas, find_parts
from colabstage.load.reading.engines import resolve_rows
from colabstage.load.reading.memory import check_memory
from colabstage.load.reading.reader import SplitReader, refuse_out, target_array
from colabstage.load.reading.threads import SOLO
from colabstage.machine.mounts import require_answer
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.info import PackInfo
    from colabstage.h5.parts import Files
    from colabstage.load.reading.engines import Indices
    from colabstage.load.reading.storage import EngineChoice
    from colabstage.load.reading.targets import TargetBatch
    from colabstage.load.reading.threads import ThreadPool


def open_reader(
    files: Files, split: str = "train", *, in_memory: bool = False, decode: bool = False
) -> SplitReader | JoinedReader:
    """Open one file, all that match a pattern, or a list of files.

    Raises:
        DriveDisconnectedError: a mount that they lie on is dead, or does not answer.
        Everything that `SplitReader` raises; and as `JoinedReader`.
    """
    require_answer(*((files,) if isinstance(files, str | os.PathLike) else files))
    parts = find_parts(files)
    if len(parts) == 1:
        return SplitReader(parts[0], split, in_memory=in_memory, decode=decode)
    return JoinedReader(parts, split, in_memory=in_memory, decode=decode)


class JoinedReader:
    """Random access to the rows of one split of several files, as `SplitReader` to those of one."""

    def __init__(
        self, paths: tuple[Path, ...], split: str = "train", *, in_memory: bool = False, decode: bool = False
    ) -> None:
        """Look at all files; no sample is read, except with `in_memory`.

        Args:
            paths: of the files, in the order of their rows. One without the split has no rows of it.
            split: which split.
            in_memory: read all inputs into memory now.
            decode: as of `SplitReader`.

        Raises:
            PackFormatError: a file's samples are not like those of the others; the message names the difference.
            DamagedPackError: the files are shards of different sets.
            SplitNotFoundError: none has the split.
            ColabstageError: whatever else `SplitReader` raises.
        """
        infos = [read_info(path) for path in paths]
        _check_one_set(infos)
        having = [info for info in infos if split in info.splits]
        if not having:
            there = ", ".join(f"'{name}'" for name in dict.fromkeys(name for info in infos for name in info.splits))
            msg = f"None of the {len(infos)} files has a split '{split}'. They have {there}."
            raise SplitNotFoundError(msg)
        check_schemas(having, split)
        total = sum(info.split(split).x.nbytes for info in having)
        self.path = paths[0]
        self.paths = paths
        self.split = split
        self.classes = having[0].classes
        self.in_memory = False
        self._parts = tuple(
            SplitReader(info.path, split, decode=decode, beside_bytes=total - info.split(split).x.nbytes)
            for info in having
        )
        self._ends = np.cumsum([len(part) for part in self._parts])
        self.slow_mount = next((part.slow_mount for part in self._parts if part.slow_mount is not None), None)
        if in_memory:
            self._load()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def engine(self) -> EngineChoice:
        """How most of the inputs are read, and why."""
        largest = max(self._parts, key=len).engine
        return replace(largest, reason=f"{len(self._parts)} files; of the largest: {largest.reason}")

    @property
    def encoded(self) -> bool:
        """As `SplitReader.encoded`."""
        return self._parts[0].encoded

    @property
    def stored_bytes(self) -> int:
        """As `SplitReader.stored_bytes`, of all files."""
        return sum(part.stored_bytes for part in self._parts)

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """As `SplitReader.row_shape`."""
        return self._parts[0].row_shape

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """As `SplitReader.row_dtype`."""
        return self._parts[0].row_dtype

    @property
    def row_bytes(self) -> int:
        """As `SplitReader.row_bytes`, the mean of all files."""
        return sum(part.row_bytes * len(part) for part in self._parts) // max(1, len(self))

    def estimate_row_bytes(self) -> int:
        """As `SplitReader.estimate_row_bytes`, by the largest file."""
        return max(self._parts, key=len).estimate_row_bytes()

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """As `SplitReader.target_shape`."""
        return self._parts[0].target_shape

    @property
    def target_dtype(self) -> np.dtype[Any] | None:
        """As `SplitReader.target_dtype`."""
        return self._parts[0].target_dtype

    @property
    def target_bytes(self) -> int | None:
        """As `SplitReader.target_bytes`."""
        return self._parts[0].target_bytes

    @property
    def has_boxes(self) -> bool:
        """As `SplitReader.has_boxes`."""
        return self._parts[0].has_boxes

    @property
    def has_free_targets(self) -> bool:
        """As `SplitReader.has_free_targets`."""
        return self._parts[0].has_free_targets

    def read_x(
        self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO
    ) -> NDArray[Any] | list[Any]:
        """As `SplitReader.read_x`."""
        rows = resolve_rows(indices, len(self))
        shape = self.row_shape
        if shape is None:
            refuse_out(out)
            images: list[Any] = [None] * len(rows)
            for part, own, places in self._shares(rows):
                for place, image in zip(places.tolist(), part.read_x(own, pool=pool), strict=True):
                    images[place] = image
            return images
        target = target_array(out, (len(rows), *shape), self.row_dtype)
        for part, own, places in self._shares(rows):
            run = slice(int(places[0]), int(places[-1]) + 1)
            if run.stop - run.start == len(places):
                part.read_x(own, target[run], pool=pool)
            else:
                target[places] = part.read_x(own, pool=pool)
        return target

    @property
    def whole_reason(self) -> str | None:
        """As `SplitReader.whole_reason`."""
        return self._parts[0].whole_reason

    @property
    def crop_channels(self) -> int:
        """As `SplitReader.crop_channels`."""
        return self._parts[0].crop_channels

    def image_sizes(self, indices: Indices, *, pool: ThreadPool = SOLO) -> NDArray[np.int64]:
        """As `SplitReader.image_sizes`."""
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
        """As `SplitReader.read_crops`."""
        rows = resolve_rows(indices, len(self))
        target = target_array(out, (len(rows), *size, self.crop_channels), np.dtype(np.uint8))
        crops = choose(self.image_sizes(rows, pool=pool))
        for part, own, places in self._shares(rows):
            target[places] = part.read_crops(own, size, partial(_chosen, crops[places]), pool=pool)
        return target

    def read_y(self, indices: Indices, out: NDArray[Any] | None = None, *, pool: ThreadPool = SOLO) -> TargetBatch:
        """As `SplitReader.read_y`."""
        rows = resolve_rows(indices, len(self))
        shape, dtype = self.target_shape, self.target_dtype
        if shape is None or dtype is None:
            refuse_out(out, "targets")
        elif out is not None:
            target_array(out, (len(rows), *shape), dtype)
        shares = [(part.read_y(own, pool=pool), places) for part, own, places in self._shares(rows)]
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
        """As `SplitReader.keys`."""
        if indices is None:
            return list(chain.from_iterable(part.keys() for part in self._parts))
        rows = resolve_rows(indices, len(self))
        found = [""] * len(rows)
        for part, own, places in self._shares(rows):
            for place, key in zip(places.tolist(), part.keys(own), strict=True):
                found[place] = key
        return found

    def into_memory(self) -> JoinedReader:
        """As `SplitReader.into_memory`."""
        if self.in_memory:
            return self
        loaded = copy.copy(self)
        loaded._load()
        return loaded

    def warm_up(self) -> Iterator[None]:
        """As `SplitReader.warm_up`, file by file."""
        for part in self._parts:
            yield from part.warm_up()

    def close(self) -> None:
        """As `SplitReader.close`."""
        for part in self._parts:
            part.close()

    def _load(self) -> None:
        check_memory(
            self.stored_bytes,
            read_resources().free_memory_bytes,
            f"The split '{self.split}' of {len(self._parts)} files",
            remedy="Leave in_memory=False: files on a local disk are read from the system's cache, as far as that "
            "reaches.",
        )
        self._parts = tuple(part.into_memory() for part in self._parts)
        self.in_memory = True

    def _shares(self, rows: NDArray[np.intp]) -> Iterator[tuple[SplitReader, NDArray[np.intp], NDArray[np.intp]]]:
        """For each file with any of `rows`: its reader, its own row numbers, and their places in the batch."""
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            yield part, rows[places] - (int(self._ends[number]) - len(part)), places


def _chosen(crops: NDArray[np.int64], _sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Crops that were chosen before, for images of these sizes."""
    return crops


def _check_one_set(infos: list[PackInfo]) -> None:
    """Shards that were written together say so.

    Raises:
        DamagedPackError: shards of one name and number come from different runs.
    """
    sets: dict[tuple[str, str, str], PackInfo] = {}
    for info in infos:
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
