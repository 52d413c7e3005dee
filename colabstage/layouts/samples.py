"""The contents of N samples by number: files, parts of files, rows of arrays, Python objects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import SourceReadError
from colabstage.trees.listing import FileEntries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree

# A sample's content before it is stored: a file's bytes, or values that need no decoding.
Content = bytes | NDArray[Any]


class SampleSource:
    """The contents of N samples by number. Every method may be called from any thread, and `read` from many at once.

    Args:
        sizes: the lengths in bytes of what `read` returns, int64 `(N,)`; exact if it returns bytes, otherwise
            approximate.
        positions: int64 `(N,)` such that reading by ascending position is sequential in the source.
        name: called with a number, returns the name of this content for messages: a file's name, a row's number.
        stamp: returns a text that changes whenever the content may have changed; compared when a pack is continued.
        read: returns the whole content.
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        positions: NDArray[np.int64],
        *,
        name: Callable[[int], str],
        stamp: Callable[[int], str],
        read: Callable[[int], Content],
    ) -> None:
        self.sizes, self.positions = sizes, positions
        self.name, self.stamp, self.read = name, stamp, read

    def __len__(self) -> int:
        return len(self.sizes)


def take_samples(source: SampleSource, chosen: NDArray[np.integer[Any]]) -> SampleSource:
    """Return some contents of a source: sample i is `chosen[i]` there."""
    if isinstance(source, TreeFiles):
        return TreeFiles(source.tree, source.entries.take(chosen))
    return SampleSource(
        source.sizes[chosen],
        source.positions[chosen],
        name=lambda index: source.name(int(chosen[index])),
        stamp=lambda index: source.stamp(int(chosen[index])),
        read=lambda index: source.read(int(chosen[index])),
    )


def map_samples(source: SampleSource, convert: Callable[[Any], NDArray[Any]]) -> SampleSource:
    """Return the contents of a source, each brought into another form: byte order, axes, a part of it."""
    return SampleSource(
        source.sizes,
        source.positions,
        name=source.name,
        stamp=source.stamp,
        read=lambda index: convert(source.read(index)),
    )


def join_samples(parts: Sequence[SampleSource]) -> SampleSource:
    """Return several sources one behind the other, each read to its end before the next begins."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])

    def find(index: int) -> tuple[SampleSource, int]:
        place = int(np.searchsorted(ends, index, side="right"))
        return parts[place], index - int(ends[place] - len(parts[place]))

    moved, start = [], 0
    for part in parts:
        moved.append(np.asarray(part.positions, np.int64) + start)
        start = int(moved[-1].max(initial=start)) + 1

    def name(index: int) -> str:
        part, own = find(index)
        return part.name(own)

    def stamp(index: int) -> str:
        part, own = find(index)
        return part.stamp(own)

    def read(index: int) -> Content:
        part, own = find(index)
        return part.read(own)

    sizes = np.concatenate([part.sizes for part in parts])
    return SampleSource(sizes, np.concatenate(moved), name=name, stamp=stamp, read=read)


def numbered_samples(name: str, stamp: str, count: int, nbytes: int, read: Callable[[int], Content]) -> SampleSource:
    """Return N contents of about the same size that have numbers instead of names.

    Args:
        name: the name of all of them.
        stamp: changes whenever any of them may have changed.
        count: how many there are.
        nbytes: about how many bytes one takes.
        read: returns one.
    """
    return SampleSource(
        np.full(count, nbytes, np.int64),
        np.arange(count, dtype=np.int64),
        name=lambda index: f"{name}[{index}]",
        stamp=lambda index: f"{stamp} {index}",
        read=read,
    )


def rows_of_array(values: NDArray[Any], name: str, stamp: str) -> SampleSource:
    """Return the rows of an array in memory; `stamp` differs whenever the file may have changed that it was read
    from."""
    return numbered_samples(
        name,
        f"{stamp} {name}",
        len(values),
        values.nbytes // max(1, len(values)),
        lambda index: np.ascontiguousarray(values[index]),
    )


def rows_of_file(
    file: ByteSource,
    start: int,
    count: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    stamp: str,
    step: int | None = None,
    wanted: np.dtype[Any] | None = None,
) -> SampleSource:
    """Return rows of one shape that lie in a file one after the other; each is read by its place, many at once.

    Args:
        file: the bytes, open for as long as the rows are used.
        start: where the first row begins, in bytes.
        count, shape, dtype: how many rows there are, and what each is as it is stored.
        stamp: changes whenever the file does: its length and time, for example.
        step: bytes from the beginning of one row to that of the next; the length of a row by default.
        wanted: the type that they are given in; the stored one, in this machine's byte order, by default.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    positions = start + np.arange(count, dtype=np.int64) * (nbytes if step is None else step)
    given = dtype.newbyteorder("=") if wanted is None else wanted

    def read(index: int) -> NDArray[Any]:
        begin = int(positions[index])
        data = file.pread(nbytes, begin)
        # A file that shrank while it was read gives fewer bytes and no error.
        if len(data) != nbytes:
            msg = f"'{file.label}' ends before byte {begin + nbytes:,}, where its part {index} does."
            raise SourceReadError(msg)
        return np.frombuffer(data, dtype).reshape(shape).astype(given, copy=False)

    return SampleSource(
        np.full(count, nbytes, np.int64),
        positions,
        name=lambda index: f"{file.label}[{index}]",
        stamp=lambda index: f"{stamp} {positions[index]} {nbytes}",
        read=read,
    )


def stamp_of(entry: FileEntry) -> str:
    """Return a text that differs whenever the file may have changed since it was listed."""
    return f"{entry.name!r} {entry.size} {entry.mtime_ns}"


class TreeFiles(SampleSource):
    """One file of a tree for each sample; sample i is `entries[i]`."""

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self.tree = tree
        # In columns, because a list of a million entries would take 300 MB.
        self.entries = found = FileEntries.of(entries)
        super().__init__(
            found.sizes,
            found.positions,
            name=lambda index: found.names[index],
            stamp=lambda index: stamp_of(found[index]),
            read=lambda index: tree.read(found[index]),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A planned shard is sent to the worker that packs it.
        return TreeFiles, (self.tree, self.entries)
