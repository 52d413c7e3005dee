"""The common parts of formats with many samples in few files: shards, their parts, and labels.

Labels arrive one by one with the samples, and become targets (class indices, words or numbers) when all are known.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import SourceReadError
from colabstage.io.files import read_with_retry
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.io.units import counted
from colabstage.layouts.label_cells import check_kept_apart, class_numbers
from colabstage.layouts.names import SPLIT_NAMES
from colabstage.layouts.reading import open_from_start
from colabstage.layouts.table import BrokenDatasetError, Values, class_indices, stamp_of
from colabstage.trees.folder import FolderFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree

Label = int | float | str | None

# With more classes than this, the numbers are not class indices.
_MAX_CLASSES = 1_000_000


class Labels(NamedTuple):
    """The targets made from labels, and their classes."""

    targets: Values | None
    """`None` if there are none."""
    classes: tuple[str, ...]
    """Names of the classes, in label order."""


def make_labels(
    labels: Sequence[Label] | NDArray[np.int64], samples: Sequence[str], *, names: Mapping[int, str] | None = None
) -> Labels:
    """Make targets from the labels of N samples.

    Integers stay as they are, int64 `(N,)`, even if they count from 1. Words become int64 indices into the sorted
    words. Other numbers become float32 `(N,)`.

    Args:
        labels: one for each sample; `None` or NaN, as pandas writes it, for a missing one. If all are integers, they
            may be an array.
        samples: what each is called, for messages.
        names: what whole numbers mean, where that is known; a number without a name is named by its digits.

    Raises:
        BrokenDatasetError: some samples have a label and others none, or words are mixed with numbers.
    """
    if isinstance(labels, np.ndarray):
        return _whole_numbers(labels, names or {})
    missing = (label is None or (isinstance(label, float) and math.isnan(label)) for label in labels)
    without = [sample for sample, is_missing in zip(samples, missing, strict=True) if is_missing]
    if len(without) == len(labels):
        return Labels(None, ())
    if without:
        lacking = counted(len(without), "samples", "have", of=len(labels))
        msg = f"{lacking} no label (first '{without[0]}'); expected all or none."
        raise BrokenDatasetError(msg)
    kinds = {(str if isinstance(label, str) else float if isinstance(label, float) else int) for label in labels}
    if kinds == {str}:
        return Labels(*class_indices([str(label) for label in labels]))
    if str in kinds:
        first = next(sample for sample, label in zip(samples, labels, strict=True) if isinstance(label, str))
        msg = f"The label of '{first}' is a word, that of others a number; expected one kind for all."
        raise BrokenDatasetError(msg)
    if kinds == {int}:
        large = next((at for at, label in enumerate(labels) if not -(2**63) <= int(label or 0) < 2**63), None)
        if large is not None:
            msg = f"The label of '{samples[large]}' is {labels[large]}, which does not fit into 64 bits."
            raise BrokenDatasetError(msg)
        return _whole_numbers(np.array(labels, np.int64), names or {})
    if int in kinds:
        check_kept_apart("label", np.array(labels, np.float64))
    return Labels(Values(np.array(labels, np.float32)), ())


def _whole_numbers(values: NDArray[np.int64], names: Mapping[int, str]) -> Labels:
    if not len(values):
        return Labels(None, ())
    top = max([int(values.max()), *names])
    # Test sets with secret labels use -1.
    are_classes = names and min(names) >= 0 and values.min() >= -1 and top < _MAX_CLASSES
    found = tuple(names.get(number, str(number)) for number in range(top + 1)) if are_classes else ()
    return Labels(Values(values), found if names else class_numbers(values))


def names_of(labels: Sequence[Label], texts: Sequence[str | None]) -> dict[int, str]:
    """Return the meaning of integers, by the text beside each; nothing if a number has two texts."""
    found: dict[int, str] = {}
    for label, text in zip(labels, texts, strict=True):
        if not isinstance(label, int) or not text:
            continue
        # A number with two texts: the texts are captions, not classes.
        if found.setdefault(label, text) != text:
            return {}
    return found


def parse_label(text: str) -> Label:
    """Parse a label as people write it: an integer, another number, a word; `None` for an empty text.

    >>> parse_label(" 7\\n"), parse_label("0.5"), parse_label("cat"), parse_label("")
    (7, 0.5, 'cat', None)
    """
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


F = TypeVar("F")
T = TypeVar("T")

# The first bytes of image files: JPEG, PNG, GIF, BMP, TIFF, WebP.
IMAGE_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")

# A disk answers in microseconds, so reading ahead would only cost time; a mount takes milliseconds or more, in which it
# could have sent megabytes.
_NEAR_BYTES = 32 * 1024
_FAR_BYTES = 4 * 1024 * 1024
_FAR_S = 0.001
# Shards are read one after the other, so only a few are in use at once.
_OPEN_FILES = 64
# On a mount each file takes time; more than this at once are slower.
_MAX_SCANNERS = 16
# One scan may read a file of a hundred gigabytes, over a mount.
_SCAN_STALL_S = 3600.0


class ShardFile(NamedTuple):
    """One of the files that hold the samples."""

    name: str
    """Its entry in the tree."""
    stamp: str
    """Differs whenever the file does."""
    content: ByteSource
    """Its bytes."""


class Part(NamedTuple):
    """The position of one piece of content."""

    shard: int
    """The number of the shard."""
    start: int
    """The first byte."""
    size: int
    """How many bytes."""


def open_shard(tree: Tree, entry: FileEntry) -> ShardFile:
    """Open a file of a tree as a shard.

    Raises:
        As `open_from_start`.
    """
    return ShardFile(entry.name, stamp_of(entry), open_from_start(tree, entry))


def rest_shard(shard: ShardFile) -> None:
    """Release the handle of a shard, which is opened again when it is read again."""
    if isinstance(shard.content, FolderFile):
        shard.content.close()


def split_of_shard(name: str) -> str | None:
    """Return the split in the name of a shard or of its folder.

    >>> split_of_shard("imagenet-train-000012.tar"), split_of_shard("data/validation-00000-of-00014.parquet")
    ('train', 'validation')
    >>> split_of_shard("test/data-00000-of-00001.arrow"), split_of_shard("shard-000.tar")
    ('test', None)
    """
    *folders, base = name.lower().split("/")
    for text in (base, *reversed(folders)):
        found = {SPLIT_NAMES[word] for word in re.split(r"[^a-z]+", text) if word in SPLIT_NAMES}
        # A name with two splits (train_val) belongs to neither.
        if len(found) == 1:
            return found.pop()
    return None


def scan_each(files: Sequence[F], scan: Callable[[int, F], T]) -> list[T]:
    """Return `scan(number, file)` for each file, in order; in two threads, or more if that proves slow.

    Raises:
        Everything that `scan` raises; the first stops the others.
    """
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
    """A `ByteSource` over another one for a single pass of small reads in one thread: it makes few large reads if each
    takes time, otherwise small ones. Reads that fail temporarily are tried again."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._data = b""
        self._window = _NEAR_BYTES

    @property
    def label(self) -> str:
        """Return the source's address."""
        return self._source.label

    @property
    def size(self) -> int:
        """Return the source's length in bytes."""
        return self._source.size

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end."""
        end = min(offset + length, self.size)
        if not self._start <= offset <= end <= self._start + len(self._data):
            wanted = max(length, self._window)
            started = time.perf_counter()
            self._data = read_with_retry(lambda: self._source.pread(wanted, offset), self.label)
            self._start = offset
            if time.perf_counter() - started > _FAR_S:
                self._window = _FAR_BYTES
        begin = offset - self._start
        return self._data[begin : begin + length]

    def close(self) -> None:
        """Release the source's handle."""
        self._source.close()


class ShardParts:
    """A part of one of several files for each sample: a `SampleSource` of bytes.

    Args:
        shards: the files.
        parts: where each sample's content lies; or int64 `(N, 3)`, with the fields of a `Part`.
        names: what each sample is called.
    """

    def __init__(
        self, shards: Sequence[ShardFile], parts: Sequence[Part] | NDArray[np.int64], names: Sequence[str]
    ) -> None:
        self._shards = tuple(shards)
        table = np.asarray(parts, np.int64).reshape(-1, 3)
        self._bases = np.concatenate([[0], np.cumsum([shard.content.size for shard in shards])]).astype(np.int64)
        # Columns instead of tuples, so that each of millions of samples takes 20 bytes besides its name.
        self._numbers, self.sizes = table[:, 0].astype(np.uint32), table[:, 2].copy()
        # One shard after the other is fastest for a disk, and keeps few files open.
        self.positions = self._bases[self._numbers] + table[:, 1]
        self._names = names
        self._lock = threading.Lock()
        self._in_use: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def splits(self) -> tuple[str, ...] | None:
        """Return the split of each sample, or `None` unless all files are named after one."""
        found = [split_of_shard(shard.name) for shard in self._shards]
        named = [split for split in found if split is not None]
        if not named or len(named) < len(found):
            return None
        return tuple([named[number] for number in self._numbers.tolist()])

    def name(self, index: int) -> str:
        """Return the sample's name."""
        return self._names[index]

    def stamp(self, index: int) -> str:
        """Return the shard's stamp and the part's position in it."""
        number, start, size = self._part(index)
        return f"{self._shards[number].stamp} {start} {size}"

    def read(self, index: int) -> bytes:
        """Return the part's bytes."""
        number, start, size = self._part(index)
        content = self._shards[number].content
        self._touch(number)
        data = content.pread(size, start) if size else b""
        if len(data) != size:
            msg = f"'{content.label}' ends before byte {start + size:,}, where '{self._names[index]}' does."
            raise SourceReadError(msg)
        return data

    def _part(self, index: int) -> Part:
        number = self._numbers.item(index)
        return Part(number, self.positions.item(index) - self._bases.item(number), self.sizes.item(index))

    def _touch(self, number: int) -> None:
        """Note that a shard is read, and release the handle of the least recently read one."""
        with self._lock:
            self._in_use[number] = None
            self._in_use.move_to_end(number)
            idle = self._in_use.popitem(last=False)[0] if len(self._in_use) > _OPEN_FILES else None
        if idle is not None:
            rest_shard(self._shards[idle])
