"""Samples that lie in a few large files: the files, scanned with few round trips, and their parts as a source."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import SourceReadError
from colabstage.layouts.members import stamp_of
from colabstage.layouts.names import SPLIT_NAMES
from colabstage.layouts.shards.shard_files import FolderFile
from colabstage.pipeline import PipelineLimits, run_pipeline
from colabstage.progress import Cancellation
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.trees.tree import ByteSource, FileEntry

T = TypeVar("T")

# How image files begin: JPEG, PNG, GIF, BMP, TIFF, WebP.
IMAGE_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")

# A disk answers in microseconds, and reading on would only cost; a mount takes milliseconds and more for an answer,
# in which time it could have sent megabytes.
_NEAR_BYTES = 32 * 1024
_FAR_BYTES = 4 * 1024 * 1024
_FAR_S = 0.001
# Reading goes from shard to shard, so only a few are in use at once.
_OPEN_FILES = 64
_MAX_SCANNERS = 16
# One scan may read a file of a hundred gigabytes, over a mount.
_SCAN_STALL_S = 3600.0


class Shard(NamedTuple):
    """One of the files. `name`: in its tree. `stamp`: differs whenever the file does."""

    name: str
    stamp: str
    content: ByteSource


class Part(NamedTuple):
    """Where one piece of content lies: in which shard, from which byte, how many bytes."""

    shard: int
    start: int
    size: int


def shard_of(entry: FileEntry, content: ByteSource) -> Shard:
    """A file of a tree as a shard."""
    return Shard(entry.name, stamp_of(entry), content)


def rest_shard(shard: Shard) -> None:
    """Let go of the handle of a shard that can be opened again; it is when it is read again."""
    if isinstance(shard.content, FolderFile):
        shard.content.close()


def split_of_shard(name: str) -> str | None:
    """The split that a shard, or the folder it lies in, is called after.

    >>> split_of_shard("imagenet-train-000012.tar"), split_of_shard("data/validation-00000-of-00014.parquet")
    ('train', 'validation')
    >>> split_of_shard("test/data-00000-of-00001.arrow"), split_of_shard("shard-000.tar")
    ('test', None)
    """
    *folders, base = name.lower().split("/")
    for text in (base, *reversed(folders)):
        found = {SPLIT_NAMES[word] for word in re.split(r"[^a-z]+", text) if word in SPLIT_NAMES}
        if len(found) == 1:
            return found.pop()
    return None


def splits_of_shards(names: Sequence[str]) -> list[str] | None:
    """The split of each shard, or `None` where not all of them are called after one."""
    found = [split_of_shard(name) for name in names]
    named = [split for split in found if split is not None]
    return named if named and len(named) == len(found) else None


def scan_each(count: int, scan: Callable[[int], T]) -> list[T]:
    """`scan(number)` for each of `count` files, in order; in two threads, more of them where that proves slow.

    Raises:
        Everything that `scan` raises; the first stops the others.
    """
    found: dict[int, T] = {}
    run_pipeline(
        range(count),
        read=scan,
        use=found.__setitem__,
        cost=lambda _: 1,
        limits=PipelineLimits(readers=2, max_readers=_MAX_SCANNERS, workers=1, stall_timeout_s=_SCAN_STALL_S),
        cancellation=Cancellation(),
    )
    return [found[number] for number in range(count)]


class ScanWindow:
    """A `ByteSource` over another one for a single pass by small reads, by one thread: few large reads where each
    takes its time, small ones where it does not. Reads that fail in a way that passes are tried again."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._data = b""
        self._window = _NEAR_BYTES

    @property
    def label(self) -> str:
        """The source's address."""
        return self._source.label

    @property
    def size(self) -> int:
        """The source's length in bytes."""
        return self._source.size

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`; shorter only at the end."""
        end = min(offset + length, self.size)
        if not self._start <= offset <= end <= self._start + len(self._data):
            self._fetch(max(length, self._window), offset)
        begin = offset - self._start
        return self._data[begin : begin + length]

    def _fetch(self, length: int, offset: int) -> None:
        started = time.perf_counter()
        self._data = read_with_retry(lambda: self._source.pread(length, offset), self.label, policy=RetryPolicy())
        self._start = offset
        if time.perf_counter() - started > _FAR_S:
            self._window = _FAR_BYTES

    def close(self) -> None:
        """Let go of the source's handle."""
        self._source.close()


class ShardParts:
    """A part of one of several files for each sample: a `SampleSource` of bytes.

    Args:
        shards: the files.
        parts: where each sample's content lies.
        names: what each sample is called.
    """

    def __init__(self, shards: Sequence[Shard], parts: Sequence[Part], names: Sequence[str]) -> None:
        self._shards = tuple(shards)
        table = np.array(parts, np.int64).reshape(-1, 3)
        bases = np.concatenate([[0], np.cumsum([shard.content.size for shard in shards])]).astype(np.int64)
        self._numbers, self._starts, self.sizes = (np.ascontiguousarray(column) for column in table.T)
        self.positions = bases[self._numbers] + self._starts
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._in_use: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        """The sample's name."""
        return self._names[index]

    def stamp(self, index: int) -> str:
        """The shard's stamp, and where in it the part lies."""
        return f"{self._shards[self._numbers[index]].stamp} {self._starts[index]} {self.sizes[index]}"

    def read(self, index: int) -> bytes:
        """The part's bytes."""
        number, start, size = int(self._numbers[index]), int(self._starts[index]), int(self.sizes[index])
        content = self._shards[number].content
        self._touch(number)
        data = content.pread(size, start) if size else b""
        if len(data) != size:
            msg = f"'{content.label}' ends before byte {start + size:,}, where '{self._names[index]}' does."
            raise SourceReadError(msg)
        return data

    def _touch(self, number: int) -> None:
        """Note that a shard is read, and let go of the handle of the one that was not for the longest time."""
        with self._lock:
            self._in_use[number] = None
            self._in_use.move_to_end(number)
            idle = self._in_use.popitem(last=False)[0] if len(self._in_use) > _OPEN_FILES else None
        if idle is not None:
            rest_shard(self._shards[idle])
