"""The files of a tree in columns: some forty bytes for each file, where objects take three hundred.

Layouts see a sequence of `FileEntry`, each created on demand. Names are a `StringArray`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from colabstage.trees.strings import StringArray, StringColumn, folders_of, narrowed
from colabstage.trees.tree import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from numpy.typing import NDArray

# Entries that are created together while iterating.
_PAGE_ENTRIES = 1024
# With its dot. Longer endings are never asked for (".tfrecord-00000-of-00008").
_LONGEST_EXTENSION = 10
_TIME_END_NS = 1 << 63


@dataclass(frozen=True)
class _FactColumns:
    """Facts of M files."""

    names: StringArray
    """In the order of the other columns."""
    sizes: NDArray[Any]
    """As `FileEntry.size`, `(M,)` like all that follow."""
    mtimes_ns: NDArray[Any]
    """As `FileEntry.mtime_ns`."""
    positions: NDArray[Any]
    """As `FileEntry.position`."""
    executable: NDArray[Any]
    """As `FileEntry.executable`."""
    places: NDArray[Any] | None
    """The place of each in its tree; `None` where that is its number here."""

    # Computed once, because every layout asks for its own extensions, and most look at the folders.

    @cached_property
    def folders(self) -> tuple[list[str], NDArray[Any]]:
        """Return the folders that hold the files, "" for the root, and the number of each file's, `(M,)`."""
        return folders_of(self.names)

    @cached_property
    def endings(self) -> tuple[list[str], NDArray[Any]]:
        """Return what follows the last dots of the bare names, with the dot, and the number of each file's, `(M,)`."""
        dots, lengths = self.names.last_of(b"."), self.names.lengths
        return self.names.parts(np.where(dots > self.names.last_of(b"/"), dots, lengths), lengths)


def extension_of(name: str) -> str:
    """Return a name's extension in lower case, with its dot; "" where it has none, or a number in its place."""
    end = name[name.rfind(".") + 1 :]
    if len(end) >= min(_LONGEST_EXTENSION, len(name)) or not end.isalnum() or end.isdecimal():
        return ""
    return f".{end.lower()}"


class FileEntries(Sequence[FileEntry]):
    """N files of a tree: all, or some in any order. Immutable; equal to any sequence of the same entries."""

    __slots__ = ("_columns", "_rows", "names")

    def __init__(self, columns: _FactColumns, rows: NDArray[Any] | None = None) -> None:
        """Take columns, or `rows` of them; call `of`, `where` or `take`."""
        self._columns = columns
        self._rows = rows
        self.names = columns.names if rows is None else columns.names.take(rows)

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> FileEntries:
        """Return the entries of an iterable, in its order."""
        if isinstance(entries, FileEntries):
            return entries
        listing = Listing()
        places = array("q")
        for entry in entries:
            listing.add(entry.name, entry.size, entry.mtime_ns, entry.position, executable=entry.executable)
            places.append(entry.place)
        return listing.entries(places=narrowed(np.array(places, np.int64)))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> FileEntry: ...
    @overload
    def __getitem__(self, index: slice) -> FileEntries: ...

    def __getitem__(self, index: int | slice) -> FileEntry | FileEntries:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        facts = self._columns
        row = range(len(facts.names))[index] if self._rows is None else int(self._rows[index])
        return FileEntry(
            facts.names[row],
            facts.sizes.item(row),
            facts.mtimes_ns.item(row),
            facts.positions.item(row),
            facts.executable.item(row),
            row if facts.places is None else facts.places.item(row),
        )

    def __iter__(self) -> Iterator[FileEntry]:
        facts = self._columns
        for first in range(0, len(self), _PAGE_ENTRIES):
            page = slice(first, min(first + _PAGE_ENTRIES, len(self)))
            rows = np.arange(page.start, page.stop) if self._rows is None else self._rows[page]
            columns = (facts.sizes, facts.mtimes_ns, facts.positions, facts.executable)
            values = [column[rows].tolist() for column in columns]
            places = (rows if facts.places is None else facts.places[rows]).tolist()
            yield from map(FileEntry, self.names[page], *values, places)

    def take(self, rows: NDArray[Any]) -> FileEntries:
        """Return some of them, in the order of `rows`, sharing the columns."""
        rows = rows if self._rows is None else self._rows[rows]
        count = len(self._columns.names)
        # All of them in order are the entries themselves, so that a layout which keeps every file holds nothing twice.
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self if self._rows is None else FileEntries(self._columns)
        return FileEntries(self._columns, narrowed(rows))

    def where(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those whose names fit, in the same order."""
        return self.take(np.flatnonzero(np.fromiter(map(fits, self.names), np.bool_, len(self))))

    def ending_in(self, extensions: Collection[str]) -> FileEntries:
        """Return those with one of these extensions, as `extension_of` has them, in the same order."""
        return self.take(np.flatnonzero(self._end_in(extensions)))

    def not_ending_in(self, extensions: Collection[str]) -> FileEntries:
        """Return all others than `ending_in`."""
        return self.take(np.flatnonzero(~self._end_in(extensions)))

    def _end_in(self, extensions: Collection[str]) -> NDArray[np.bool_]:
        endings, of_files = self._columns.endings
        fits = np.array([extension_of(ending) in extensions for ending in endings], np.bool_)
        own: NDArray[np.bool_] = fits[of_files if self._rows is None else of_files[self._rows]]
        return own

    @property
    def folders(self) -> tuple[list[str], NDArray[Any]]:
        """Return the folders that hold the files, "" for the root, the first that occurs first; and the number of each
        file's, `(N,)`."""
        return self._used(*self._columns.folders)

    @property
    def endings(self) -> tuple[list[str], NDArray[Any]]:
        """Return what follows the last dots of the bare names (".JPG"; "" where there is none), and the number of each
        file's, `(N,)`."""
        return self._used(*self._columns.endings)

    def _used(self, texts: list[str], of_files: NDArray[Any]) -> tuple[list[str], NDArray[Any]]:
        if self._rows is None:
            return texts, of_files
        own = of_files[self._rows]
        used, first, numbers = np.unique(own, return_index=True, return_inverse=True)
        order = np.argsort(first)
        turns = np.empty(len(used), np.int64)
        turns[order] = np.arange(len(used))
        return [texts[number] for number in used[order].tolist()], turns[numbers.reshape(-1)]

    def in_folders(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those in folders whose names fit, in the same order."""
        folders, of_files = self.folders
        return self.take(np.flatnonzero(np.array([fits(folder) for folder in folders], np.bool_)[of_files]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: lengths in bytes."""
        return self._int64(self._columns.sizes)

    @property
    def mtimes_ns(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: when they were last written, in ns."""
        return self._int64(self._columns.mtimes_ns)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: where the medium has them."""
        return self._int64(self._columns.positions)

    def _int64(self, column: NDArray[Any]) -> NDArray[np.int64]:
        return (column if self._rows is None else column[self._rows]).astype(np.int64)

    def find(self, entry: FileEntry) -> int | None:
        """Return the number of an entry, by its name; `None` where it is missing. Only where names ascend."""
        # Entries of this very listing know their number.
        if 0 <= entry.place < len(self) and self.names[entry.place] == entry.name:
            return entry.place
        at = bisect_left(self.names, entry.name)
        return at if at < len(self) and self.names[at] == entry.name else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(own == entry for own, entry in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none either

    def __repr__(self) -> str:
        return f"FileEntries({self.names!r})"


def files_ending_in(entries: Sequence[FileEntry], extensions: tuple[str, ...]) -> FileEntries:
    """Return those of a tree's entries with one of these extensions (".jpg"; "" for none), in the same order, without
    an object for each. Names are looked at once, however often it is asked."""
    return FileEntries.of(entries).ending_in(extensions)


def total_size(entries: Sequence[FileEntry]) -> int:
    """Return the length of all files together in bytes."""
    # In Python's whole numbers: sums of what some archives claim do not fit 64 bits.
    return sum(FileEntries.of(entries).sizes.tolist())


def entry_names(entries: Sequence[FileEntry]) -> Iterable[str]:
    """Return the names of entries, in their order, without an object for each."""
    return entries.names if isinstance(entries, FileEntries) else (entry.name for entry in entries)


def _kept_time(mtime_ns: int) -> int:
    """Return a time as it is stored; 0 where it does not fit."""
    # A disk may have times after 2262, which 64 bits of nanoseconds cannot hold.
    return mtime_ns if -_TIME_END_NS <= mtime_ns < _TIME_END_NS else 0


class SortedListing(NamedTuple):
    """The files of a listing, sorted by name."""

    entries: FileEntries
    """The files."""
    order: NDArray[Any]
    """`(N,)`, when each of `entries` was added, or which row of the columns is its own."""


class Listing:
    """Files as they are found, to become `FileEntries`."""

    def __init__(self) -> None:
        self._names = StringColumn()
        self._sizes = array("q")
        self._mtimes_ns = array("q")
        self._positions = array("q")
        self._executable = bytearray()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: str, size: int, mtime_ns: int, position: int, *, executable: bool = False) -> None:
        """Append a file; the arguments are those of `FileEntry`."""
        self._names.add(name)
        self._sizes.append(size)
        self._mtimes_ns.append(_kept_time(mtime_ns))
        self._positions.append(position)
        self._executable.append(executable)

    def add_all(self, prefix: str, bases: Sequence[str], sizes: Sequence[int], mtimes_ns: Sequence[int]) -> None:
        """Append the files of one folder, each in the next position.

        `prefix`: what precedes each of the names `bases`, "" or the folder with its slash.
        """
        self._names.add_all(prefix, bases)
        self._positions.extend(range(len(self), len(self) + len(bases)))
        self._sizes.extend(sizes)
        try:
            times = array("q", mtimes_ns)
        except OverflowError:
            times = array("q", map(_kept_time, mtimes_ns))
        self._mtimes_ns.extend(times)
        self._executable += bytes(len(bases))

    def extend(self, other: Listing) -> None:
        """Append the files of another listing, each in the next position."""
        self._names.extend(other._names)
        self._positions.extend(range(len(self), len(self) + len(other)))
        self._sizes.extend(other._sizes)
        self._mtimes_ns.extend(other._mtimes_ns)
        self._executable.extend(other._executable)

    @property
    def names(self) -> StringArray:
        """Return all names so far, in the order in which they were added."""
        return self._names.strings()

    def by_name(self) -> SortedListing:
        """Return the files of a whole tree, sorted by name."""
        return sorted_by_name(
            self.names,
            np.frombuffer(self._sizes, np.int64),
            np.frombuffer(self._mtimes_ns, np.int64),
            np.frombuffer(self._positions, np.int64),
            np.frombuffer(self._executable, np.bool_),
        )

    def entries(self, *, places: NDArray[Any] | None = None) -> FileEntries:
        """Return the files in the order in which they were added. `places`: where each is in its tree."""
        columns = _FactColumns(
            self.names,
            narrowed(np.array(self._sizes, np.int64)),
            np.array(self._mtimes_ns, np.int64),
            narrowed(np.array(self._positions, np.int64)),
            np.frombuffer(bytes(self._executable), np.bool_),
            places,
        )
        return FileEntries(columns)


def sorted_by_name(
    names: StringArray,
    sizes: NDArray[np.int64],
    mtimes_ns: NDArray[np.int64],
    positions: NDArray[np.int64],
    executable: NDArray[np.bool_],
    *,
    rows: NDArray[Any] | None = None,
) -> SortedListing:
    """Return the files of a whole tree, N of them, sorted by name.

    `sizes` and what follows: columns, each as in `FileEntry`. `rows`: `(N,)`, which row of these is each name's, and
    `order` of what is returned has them; by default the first is the first one's, `order` then the numbers of names.
    """
    order = names.order()
    names = names.take(order).packed()
    # From here on by the row, which is all that is wanted of a name's number.
    order = order if rows is None else rows[order]
    columns = _FactColumns(
        names,
        narrowed(sizes[order]),
        mtimes_ns[order],
        narrowed(positions[order]),
        executable[order],
        None,
    )
    return SortedListing(FileEntries(columns), order)
