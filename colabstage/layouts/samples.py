"""The contents of samples by number: files, rows in a file or in memory, parts of them, and several in a row."""

from __future__ import annotations

import math
from functools import partial
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
        sizes: the lengths in bytes of what `read` returns, int64 `(N,)`; exact if it returns bytes and its table is
            complete, otherwise approximate.
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

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        """Return some of the contents: sample i is `chosen[i]` here."""
        name, stamp, read = (partial(_call_at, function, chosen) for function in (self.name, self.stamp, self.read))
        return SampleSource(self.sizes[chosen], self.positions[chosen], name=name, stamp=stamp, read=read)


def _call_at(function: Callable[[int], Any], chosen: NDArray[np.integer[Any]], index: int) -> Any:
    return function(int(chosen[index]))


def map_samples(source: SampleSource, convert: Callable[[Any], NDArray[Any]]) -> SampleSource:
    """Return the contents of a source, each brought into another form: byte order, axes, a part of it."""
    read = source.read
    return SampleSource(
        source.sizes, source.positions, name=source.name, stamp=source.stamp, read=lambda index: convert(read(index))
    )


def join_samples(parts: Sequence[SampleSource]) -> SampleSource:
    """Return several sources one behind the other, each read to its end before the next begins."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])
    positions, start = [], 0
    for part in parts:
        positions.append(np.asarray(part.positions, np.int64) + start)
        start = int(positions[-1].max(initial=start)) + 1

    def call(what: str, index: int) -> Any:
        number = int(np.searchsorted(ends, index, side="right"))
        return getattr(parts[number], what)(index - int(ends[number] - len(parts[number])))

    sizes = np.concatenate([part.sizes for part in parts])
    name, stamp, read = (partial(call, what) for what in ("name", "stamp", "read"))
    return SampleSource(sizes, np.concatenate(positions), name=name, stamp=stamp, read=read)


def numbered_samples(name: str, stamp: str, count: int, nbytes: int, read: Callable[[int], Content]) -> SampleSource:
    """Return N contents of about the same size that have numbers instead of names.

    `name`: of all of them. `stamp`: changes whenever any of them may have changed. `nbytes`: about how many one takes.
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
    nbytes = values.nbytes // max(1, len(values))
    return numbered_samples(
        name, f"{stamp} {name}", len(values), nbytes, lambda index: np.ascontiguousarray(values[index])
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

    read: Callable[[int], bytes]

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

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        return TreeFiles(self.tree, self.entries.take(chosen))

    def __reduce__(self) -> tuple[Any, ...]:
        # A planned shard of a set is sent to the worker that packs it.
        return TreeFiles, (self.tree, self.entries)
