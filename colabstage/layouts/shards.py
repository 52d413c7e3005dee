"""Shards: files that hold many samples each, scanned once for the places of their parts, and read part by part."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.io.files import read_with_retry
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.layouts.reading import open_from_start
from colabstage.layouts.samples import SampleSource, stamp_of
from colabstage.layouts.words import split_name
from colabstage.machine.resources import read_resources
from colabstage.trees.folder import FolderFile
from colabstage.trees.listing import take_strings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree

F = TypeVar("F")
T = TypeVar("T")

# The first bytes of image files: JPEG, PNG, GIF, BMP, TIFF, WebP.
IMAGE_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
# A disk answers in microseconds, so reading ahead would only cost time; a mount takes milliseconds or more, in which it
# could have sent megabytes.
_NEAR_BYTES = 32 * 1024
_FAR_BYTES = 4 * 1024 * 1024
_FAR_S = 0.001
# What gives less, as a mounted Drive does, is held in memory, in a part of what is free.
_SLOW_BYTES_PER_S = 150e6
_HELD_PART = 0.25
# Shards are read one after the other, so only a few are in use at once.
_OPEN_FILES = 64
# On a mount each file takes time; more than this at once are slower.
_MAX_SCANNERS = 16
# One scan may read a file of a hundred gigabytes, over a mount.
_SCAN_STALL_S = 3600.0


class ScanMemory:
    """Room for what is read of slow files while they are scanned: packing then reads from memory, and no file twice."""

    def __init__(self) -> None:
        self._left = int(read_resources().free_memory_bytes * _HELD_PART)
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Take some of the room, unless there is not as much."""
        with self._lock:
            fits = nbytes <= self._left
            self._left -= nbytes if fits else 0
        return fits


class ShardFile:
    """One of the files that hold the samples, opened when it is first read.

    What `hold` was given of it is read from memory. To be sent to another process, `opens` has to be pickled.
    """

    def __init__(
        self, name: str, stamp: str, opens: Callable[[], ByteSource], memory: ScanMemory | None = None
    ) -> None:
        self.name, self.stamp, self._opens, self._memory = name, stamp, opens, memory
        self._starts: list[int] = []
        self._pieces: list[bytes] = []
        self._lock = threading.Lock()

    @cached_property
    def content(self) -> ByteSource:
        """Return its bytes, unpacked."""
        return self._opens()

    def hold(self, data: bytes, offset: int) -> None:
        """Hold what was read at an offset, where there is room."""
        with self._lock:
            at = bisect_right(self._starts, offset)
            is_new = self._starts[at - 1 : at] != [offset]
            if is_new and self._memory is not None and self._memory.take(len(data)):
                self._starts.insert(at, offset)
                self._pieces.insert(at, data)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        with self._lock:
            at = bisect_right(self._starts, offset) - 1
            begin, piece = (offset - self._starts[at], self._pieces[at]) if at >= 0 else (0, b"")
        end = begin + min(length, self.content.size - offset)
        return piece[begin:end] if begin <= end <= len(piece) else self.content.pread(length, offset)

    def rest(self) -> None:
        """Release its handle, which is opened again when it is read again."""
        content = self.__dict__.get("content")
        if isinstance(content, FolderFile):
            content.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardFile, (self.name, self.stamp, self._opens)


class Part(NamedTuple):
    """The position of one piece of content."""

    shard: int
    start: int
    size: int


def open_shard(tree: Tree, entry: FileEntry, memory: ScanMemory) -> ShardFile:
    """Return a file of a tree as a shard; raises as `open_from_start` where it is opened."""
    return ShardFile(entry.name, stamp_of(entry), partial(_open_listed, tree, entry), memory)


def _open_listed(tree: Tree, entry: FileEntry) -> ByteSource:
    # In another process the tree was listed again, and places of samples in another file are not theirs.
    at = bisect_left(tree.entries.names, entry.name)
    listed = tree.entries[at] if at < len(tree.entries) else entry
    if (listed.name, listed.size) != (entry.name, entry.size):
        msg = f"'{entry.name}' in '{tree.label}' is another file than the one that was listed. Start again."
        raise SourceChangedError(msg)
    return open_from_start(tree, entry)


def split_of_shard(name: str) -> str | None:
    """Return the split in the name of a shard or of its folder.

    >>> split_of_shard("imagenet-train-000012.tar"), split_of_shard("data/validation-00000-of-00014.parquet")
    ('train', 'validation')
    >>> split_of_shard("test/data-00000-of-00001.arrow"), split_of_shard("shard-000.tar")
    ('test', None)
    """
    *folders, base = name.lower().split("/")
    # A name with two splits (train_val) belongs to neither.
    return next((split for part in (base, *reversed(folders)) if (split := split_name(part).split)), None)


def scan_each(files: Sequence[F], scan: Callable[[int, F], T]) -> list[T]:
    """Return `scan(number, file)` for each file, in order; in two threads, or more if that proves slow."""
    found: dict[int, T] = {}
    run_pipeline(
        range(len(files)),
        read=lambda number: scan(number, files[number]),
        use=found.__setitem__,
        cost=lambda _: 1,
        # Two, so that one waits for the disk while the other works; a slow medium gets more.
        limits=PipelineLimits(readers=2, max_readers=_MAX_SCANNERS, workers=1, stall_timeout_s=_SCAN_STALL_S),
        cancellation=Cancellation(),
    )
    return [found[number] for number in range(len(files))]


class ScanWindow:
    """A `ByteSource` over a shard for a single pass of small reads in one thread: it makes few large reads if each
    takes time, and has the shard hold what is slow; otherwise small ones. Reads that fail temporarily are tried again.
    """

    def __init__(self, shard: ShardFile, near: int = _NEAR_BYTES) -> None:
        self._shard = shard
        self._start = 0
        self._data = b""
        self._window = near
        self.label, self.size = shard.content.label, shard.content.size

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        end = min(offset + length, self.size)
        if not self._start <= offset <= end <= self._start + len(self._data):
            wanted = max(length, self._window)
            started = time.perf_counter()
            self._data = read_with_retry(lambda: self._shard.pread(wanted, offset), self.label)
            self._start = offset
            took = time.perf_counter() - started
            if took > _FAR_S:
                self._window = _FAR_BYTES
            if self._window == _FAR_BYTES and len(self._data) < took * _SLOW_BYTES_PER_S:
                self._shard.hold(self._data, offset)
        begin = offset - self._start
        return self._data[begin : begin + length]

    def close(self) -> None:
        """Release the shard's handle."""
        self._shard.rest()


class ShardParts(SampleSource):
    """A part of one of several files for each sample, as bytes.

    Args:
        shards: the files.
        parts: where each sample's content lies; or int64 `(N, 3)`, with the fields of a `Part`.
        names: what each sample is called.
    """

    def __init__(
        self, shards: Sequence[ShardFile], parts: Sequence[Part] | NDArray[np.int64], names: Sequence[str]
    ) -> None:
        table = np.asarray(parts, np.int64).reshape(-1, 3)
        # Columns instead of tuples, so that each of millions of samples takes 20 bytes besides its name.
        self._numbers, self._starts = table[:, 0].astype(np.uint32), table[:, 1].copy()
        self._shards, self._names = shards, names
        self._lock = threading.Lock()
        self._in_use: OrderedDict[int, None] = OrderedDict()
        # One shard after the other is fastest for a disk, and keeps few files open.
        ends = np.zeros(len(shards) + 1, np.int64)
        np.maximum.at(ends[1:], self._numbers, table[:, 1] + table[:, 2])
        positions = np.cumsum(ends)[self._numbers] + self._starts
        super().__init__(table[:, 2].copy(), positions, name=names.__getitem__, stamp=self._stamp, read=self._read)

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        parts = np.stack([self._numbers[chosen], self._starts[chosen], self.sizes[chosen]], axis=1)
        return ShardParts(self._shards, parts, take_strings(self._names, chosen))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = np.stack([self._numbers, self._starts, self.sizes], axis=1)
        return ShardParts, (self._shards, parts, self._names)

    def _stamp(self, index: int) -> str:
        return f"{self._shards[self._numbers.item(index)].stamp} {self._starts[index]} {self.sizes[index]}"

    def _read(self, index: int) -> bytes:
        number, start, size = self._numbers.item(index), self._starts.item(index), self.sizes.item(index)
        shard = self._shards[number]
        with self._lock:
            self._in_use[number] = None
            self._in_use.move_to_end(number)
            idle = self._in_use.popitem(last=False)[0] if len(self._in_use) > _OPEN_FILES else None
            content = shard.content
        if idle is not None:
            self._shards[idle].rest()
        data = shard.pread(size, start) if size else b""
        if len(data) != size:
            msg = f"'{content.label}' ends before byte {start + size:,}, where '{self._names[index]}' does."
            raise SourceReadError(msg)
        return data
