"""The files of a tree in columns: some forty bytes for each, where as many objects take three hundred.

Layouts see a sequence of `FileEntry`; each is made when it is asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from colabstage.trees.texts import Texts, narrowed
from colabstage.trees.tree import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

# Made into entries at once while iterating.
_PAGE = 1024
# With its dot. What is longer is no extension that anybody asks for (".tfrecord-00000-of-00008").
_LONGEST_EXTENSION = 10
_TIME_END_NS = 1 << 63


class _Extensions(NamedTuple):
    """Which files have which extension: the number of each of M files' in `numbers`, and that of each extension."""

    of_files: NDArray[Any]
    numbers: dict[str, int]


@dataclass(frozen=True)
class _Columns:
    """Facts of M files. `places`: where each is in its tree, `None` where that is its number here."""

    names: Texts
    sizes: NDArray[Any]
    mtimes_ns: NDArray[Any]
    positions: NDArray[Any]
    executable: NDArray[Any]
    places: NDArray[Any] | None

    @cached_property
    def extensions(self) -> _Extensions:
        """Found once, because each layout asks for its own."""
        numbers: dict[str, int] = {}
        of_files = array("q", (numbers.setdefault(extension_of(name), len(numbers)) for name in self.names))
        return _Extensions(narrowed(np.array(of_files, np.int64)), numbers)


def extension_of(name: str) -> str:
    """What a name ends with from its last dot on, in lower case; "" where that is a number, or no extension at all."""
    end = name[name.rfind(".") + 1 :]
    if len(end) >= min(_LONGEST_EXTENSION, len(name)) or not end.isalnum() or end.isdecimal():
        return ""
    return f".{end.lower()}"


class FileEntries(Sequence[FileEntry]):
    """Files of a tree, N of them: all, or some in an order of their own. Immutable; equal to any sequence of the same
    entries."""

    __slots__ = ("_columns", "_rows", "names")

    def __init__(self, columns: _Columns, rows: NDArray[Any] | None = None) -> None:
        """Those of a builder, or `rows` of them; call `of`, `where` or `take`."""
        self._columns = columns
        self._rows = rows
        self.names = columns.names if rows is None else columns.names.take(rows)

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> FileEntries:
        """Those of an iterable, in its order."""
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
        for first in range(0, len(self), _PAGE):
            page = slice(first, min(first + _PAGE, len(self)))
            rows = np.arange(page.start, page.stop) if self._rows is None else self._rows[page]
            columns = (facts.sizes, facts.mtimes_ns, facts.positions, facts.executable)
            values = [column[rows].tolist() for column in columns]
            places = (rows if facts.places is None else facts.places[rows]).tolist()
            yield from map(FileEntry, self.names[page], *values, places)

    def take(self, rows: NDArray[Any]) -> FileEntries:
        """Some of them, in the order of `rows`; shares what is known of them."""
        rows = rows if self._rows is None else self._rows[rows]
        count = len(self._columns.names)
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self if self._rows is None else FileEntries(self._columns)
        return FileEntries(self._columns, narrowed(rows))

    def where(self, fits: Callable[[str], bool]) -> FileEntries:
        """Those whose names fit, in the same order."""
        return self.take(np.flatnonzero(np.fromiter(map(fits, self.names), np.bool_, len(self))))

    def ending_in(self, extensions: tuple[str, ...]) -> FileEntries:
        """Those with one of these extensions, as `extension_of` has them, in the same order."""
        found = self._columns.extensions
        wanted = [number for extension, number in found.numbers.items() if extension in extensions]
        own = found.of_files if self._rows is None else found.of_files[self._rows]
        return self.take(np.flatnonzero(np.isin(own, wanted)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 `(N,)`, made anew: lengths in bytes."""
        return self._int64(self._columns.sizes)

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64 `(N,)`, made anew: where the medium has them."""
        return self._int64(self._columns.positions)

    def _int64(self, column: NDArray[Any]) -> NDArray[np.int64]:
        return (column if self._rows is None else column[self._rows]).astype(np.int64)

    def find(self, entry: FileEntry) -> int | None:
        """The number of an entry, by its name; `None` where there is none of it. Only where names ascend."""
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
    """Those of a tree's entries with one of these extensions (".jpg"; "" for none), in the same order, without an
    object for each. Names are looked at once, however often it is asked."""
    return FileEntries.of(entries).ending_in(extensions)


def file_names(entries: Sequence[FileEntry]) -> Iterable[str]:
    """The names of entries, in their order, without an object for each."""
    return entries.names if isinstance(entries, FileEntries) else (entry.name for entry in entries)


class SortedListing(NamedTuple):
    """A listing by name. `order`: `(N,)`, when each of `entries` was added."""

    entries: FileEntries
    order: NDArray[np.intp]


class Listing:
    """Files as they are found, to become `FileEntries`."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("Q")
        self._sizes = array("q")
        self._mtimes_ns = array("q")
        self._positions = array("q")
        self._executable = bytearray()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: str, size: int, mtime_ns: int, position: int, *, executable: bool = False) -> None:
        """Put a file behind the others; what is said of it is as in `FileEntry`."""
        self._names += name.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._names))
        self._sizes.append(size)
        # A disk may have times after 2262, which 64 bits of nanoseconds do not hold.
        self._mtimes_ns.append(mtime_ns if -_TIME_END_NS <= mtime_ns < _TIME_END_NS else 0)
        self._positions.append(position)
        self._executable.append(executable)

    def extend(self, prefix: str, other: Listing) -> None:
        """Put those of another listing behind these, with `prefix` before their names, each in the next position."""
        start = prefix.encode("utf-8", "surrogatepass")
        first = 0
        for end in other._ends:
            self._names += start + other._names[first:end]
            self._ends.append(len(self._names))
            first = end
        self._positions.extend(range(len(self), len(self) + len(other)))
        self._sizes.extend(other._sizes)
        self._mtimes_ns.extend(other._mtimes_ns)
        self._executable.extend(other._executable)

    @property
    def names(self) -> Texts:
        """All names so far, in the order in which they were added."""
        return Texts(bytes(self._names), narrowed(np.array(self._ends, np.uint64)))

    def by_name(self) -> SortedListing:
        """The files of a whole tree, sorted by name."""
        return sorted_by_name(
            self.names,
            np.array(self._sizes, np.int64),
            np.array(self._mtimes_ns, np.int64),
            np.array(self._positions, np.int64),
            np.frombuffer(bytes(self._executable), np.bool_),
        )

    def entries(self, *, places: NDArray[Any] | None = None) -> FileEntries:
        """The files in the order in which they were added. `places`: where each is in its tree."""
        columns = _Columns(
            self.names,
            narrowed(np.array(self._sizes, np.int64)),
            np.array(self._mtimes_ns, np.int64),
            narrowed(np.array(self._positions, np.int64)),
            np.frombuffer(bytes(self._executable), np.bool_),
            places,
        )
        return FileEntries(columns)


def sorted_by_name(
    names: Texts,
    sizes: NDArray[np.int64],
    mtimes_ns: NDArray[np.int64],
    positions: NDArray[np.int64],
    executable: NDArray[np.bool_],
) -> SortedListing:
    """The files of a whole tree from columns `(N,)`, each as in `FileEntry`, sorted by name."""
    order = names.order()
    columns = _Columns(
        names.take(order).packed(),
        narrowed(sizes[order]),
        mtimes_ns[order],
        narrowed(positions[order]),
        executable[order],
        None,
    )
    return SortedListing(FileEntries(columns), order)
