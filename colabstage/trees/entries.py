"""The files of a tree in columns: some forty bytes for each file, where objects take three hundred.

Layouts see a sequence of `FileEntry`, each created on demand. Names are a `StringArray`: the bytes of all of them one
after the other, and the end of each. A `str` in a list takes 60 to 80 bytes in addition to its characters, which for
millions of file names is most of a listing's memory; here it takes four bytes.
"""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from colabstage.trees.tree import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from numpy.typing import NDArray

# UTF-8 sorts like Python's strings. Bytes of a file name that are not UTF-8, lone surrogates in Python, are preserved.
# Names on a disk may be of any bytes, which Python holds as surrogates; they come back as they were.
_CODEC, _ERRORS = "utf-8", "surrogatepass"
# Decoded together while iterating: enough that the cost of each step vanishes, without holding all of them.
_PAGE_STRINGS = 2048
# Searched together: enough that the cost of each step vanishes, without a copy of all.
_FOUND_TOGETHER = 1 << 16
# Up to this length of the longest string, all are sorted as bytes of one width.
_WIDE = 128


class StringArray(Sequence[str]):
    """N strings. Immutable; equal to any sequence of the same strings.

    >>> names = StringArray.of(["a/1.jpg", "b/2.jpg"])
    >>> names[1], names.take(np.array([1, 0])) == ("b/2.jpg", "a/1.jpg")
    ('b/2.jpg', True)
    """

    __slots__ = ("_data", "_ends", "_rows")

    def __init__(self, data: bytes | bytearray, ends: NDArray[Any], rows: NDArray[Any] | None = None) -> None:
        """Take the parts that `of` makes; call that instead.

        `data`: the bytes of all strings. `ends`: `(M,)`, where each ends. `rows`: `(N,)`, the selected ones; all if
        `None`.
        """
        self._data = data
        self._ends = ends
        self._rows = rows

    @classmethod
    def of(cls, strings: Iterable[str]) -> StringArray:
        """Return the strings of an iterable, in its order."""
        found = StringColumn()
        for text in strings:
            found.add(text)
        return found.strings()

    def __len__(self) -> int:
        return len(self._ends if self._rows is None else self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringArray: ...

    def __getitem__(self, index: int | slice) -> str | StringArray:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        ends = self._ends
        row = (range(len(ends)) if self._rows is None else self._rows)[index]
        return self._data[ends.item(row - 1) if row else 0 : ends.item(row)].decode(_CODEC, _ERRORS)

    def take(self, rows: NDArray[Any]) -> StringArray:
        """Return some of them, in the order of `rows`, sharing the bytes."""
        # Bytes are shared: a split of a million names costs four bytes for each.
        return StringArray(self._data, self._ends, rows if self._rows is None else self._rows[rows])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: the length of each in UTF-8."""
        lengths = np.empty(len(self._ends), np.int64)
        lengths[:1] = self._ends[:1]
        np.subtract(self._ends[1:], self._ends[:-1], out=lengths[1:], casting="unsafe")
        return lengths if self._rows is None else lengths[self._rows]

    @classmethod
    def cut_from(cls, data: bytes | bytearray, starts: NDArray[Any], lengths: NDArray[Any]) -> StringArray:
        """Return pieces of some bytes, which have to be UTF-8. `starts`, `lengths`: `(N,)`, in bytes."""
        ends = _ends_of(lengths)
        # Of the right length at once: what grows while other things do leaves gaps of all its former lengths.
        packed = bytearray(int(ends[-1]) if len(ends) else 0)
        source, target = np.frombuffer(data, np.uint8), np.frombuffer(packed, np.uint8)
        done = 0
        for first in range(0, len(lengths), _PAGE_STRINGS):
            page = lengths[first : first + _PAGE_STRINGS].astype(np.int64)
            total = int(page.sum())
            # How much further each byte is in the old bytes than in this page.
            ahead = starts[first : first + _PAGE_STRINGS] - (np.cumsum(page) - page)
            target[done : done + total] = source[np.repeat(ahead, page) + np.arange(total)]
            done += total
        return cls(packed, ends)

    @classmethod
    def joined(cls, parts: Sequence[StringArray]) -> StringArray:
        """Return the strings of all parts, which are whole arrays and no selections."""
        lengths = [part.lengths.astype(np.uint32) for part in parts]
        return cls(
            b"".join([part._data for part in parts]), _ends_of(np.concatenate([np.empty(0, np.uint32), *lengths]))
        )

    def packed(self) -> StringArray:
        """Return the same strings, their bytes in the order of the strings and no others."""
        if self._rows is None:
            return self
        starts = np.empty(len(self._rows), self._ends.dtype)
        lengths = np.empty(len(self._rows), np.uint32)
        for first in range(0, len(self), _FOUND_TOGETHER):
            page = slice(first, first + _FOUND_TOGETHER)
            rows = self._rows[page].astype(np.int64)
            starts[page] = np.where(rows > 0, self._ends[rows - 1], 0)
            lengths[page] = self._ends[rows] - starts[page]
        return StringArray.cut_from(self._data, starts, lengths)

    def containing(self, *texts: bytes, any_case: bool = False) -> NDArray[np.bool_]:
        """Return bool `(N,)`: whether each string has one of some texts in it; with `any_case` these are in lower case.

        Without an object for each string, as all that follows.
        """
        whole = self.packed()
        found = np.zeros(len(self), np.bool_)
        for first in range(0, len(self), _FOUND_TOGETHER):
            ends = whole._ends[first : first + _FOUND_TOGETHER].astype(np.int64)
            start = whole._ends.item(first - 1) if first else 0
            data = whole._data[start : ends[-1]]
            ends -= start
            data = data.lower() if any_case else data
            for text in texts:
                places = array("q")
                at = data.find(text)
                while at >= 0:
                    places.append(at)
                    at = data.find(text, at + 1)
                begins = np.array(places, np.int64)
                # What begins in one string may end in the next.
                numbers = np.searchsorted(ends, begins, side="right")
                found[first + numbers[begins + len(text) <= ends[numbers]]] = True
        return found

    def is_utf8(self, *, only_ascii: bool = False) -> bool:
        """Tell whether the bytes of each string are UTF-8, or ASCII, as those that `cut_from` takes may not be."""
        whole = self.packed()
        if whole._data.isascii() or only_ascii:
            return whole._data.isascii()
        try:
            whole._data.decode(_CODEC)
        except UnicodeDecodeError:
            return False
        # Half a character at the end of one would be completed by the next.
        return not np.any((self.bytes_at(0) & 0xC0) == 0x80)

    def bytes_at(self, place: int) -> NDArray[np.uint8]:
        """Return uint8 `(N,)`: the byte at one place of each string, -1 for the last; 0 where a string is shorter."""
        whole = self.packed()
        lengths = whole.lengths
        has = lengths > place if place >= 0 else lengths >= -place
        ends = whole._ends.astype(np.int64)[has]
        found = np.zeros(len(self), np.uint8)
        at = ends - lengths[has] + place if place >= 0 else ends + place
        found[has] = np.frombuffer(whole._data, np.uint8)[at]
        return found

    def last_of(self, mark: bytes) -> NDArray[np.int64]:
        """Return int64 `(N,)`: the last place of a character of ASCII in each string, in bytes; -1 where it is not in
        it."""
        whole = self.packed()
        ends = whole._ends.astype(np.int64)
        data = np.frombuffer(whole._data, np.uint8)
        found = np.full(len(self), -1, np.int64)
        for first in range(0, len(self), _PAGE_STRINGS):
            page = ends[first : first + _PAGE_STRINGS]
            starts = np.append(ends[first - 1] if first else 0, page[:-1])
            places = np.flatnonzero(data[starts[0] : page[-1]] == mark[0]) + starts[0]
            before = np.searchsorted(places, page) - 1
            has = before >= 0
            last = places[before[has]] - starts[has]
            found[first : first + _PAGE_STRINGS][has] = np.maximum(last, -1)
        return found

    def parts(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[list[str], NDArray[Any]]:
        """Return the different parts of all strings, the first that occurs first, and the number of each string's.

        `begins`, `ends`: `(N,)`, where each part begins and ends in its string, in bytes.
        """
        whole = self.packed()
        data = whole._data
        numbers: dict[bytes, int] = {}
        of_strings = array("I")
        for first in range(0, len(self), _PAGE_STRINGS):
            page = slice(first, first + _PAGE_STRINGS)
            starts = np.append(whole._ends[first - 1] if first else 0, whole._ends[page][:-1]).astype(np.int64)
            bounds = zip((starts + begins[page]).tolist(), (starts + ends[page]).tolist(), strict=True)
            of_strings.extend([numbers.setdefault(bytes(data[begin:end]), len(numbers)) for begin, end in bounds])
        # Folders and endings are few, and a million files need a byte each to say which is theirs.
        least = np.min_scalar_type(max(0, len(numbers) - 1))
        return [part.decode(_CODEC, _ERRORS) for part in numbers], np.frombuffer(of_strings, np.uint32).astype(least)

    def order(self) -> NDArray[np.intp]:
        """Return `(N,)`: the numbers of the strings in Python's order; equal ones keep theirs."""
        width = int(self.lengths.max(initial=1)) or 1
        # One long name would make all of them that wide, and numpy takes zeros at the end for padding.
        if width > _WIDE or b"\0" in self._data:
            strings = np.empty(len(self), object)
            strings[:] = list(self)
            return np.argsort(strings, kind="stable")
        # As bytes of one width, which take a fourth of the memory of the strings as objects.
        packed = self.packed()
        data, lengths = np.frombuffer(packed._data, np.uint8), packed.lengths
        keys = np.zeros((len(self), width), np.uint8)
        start = 0
        for first in range(0, len(self), _PAGE_STRINGS):
            page = lengths[first : first + _PAGE_STRINGS]
            end = start + int(page.sum())
            keys[first : first + _PAGE_STRINGS][np.arange(width) < page[:, None]] = data[start:end]
            start = end
        return np.argsort(keys.reshape(-1).view(f"S{width}"), kind="stable")

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _PAGE_STRINGS):
            yield from self._page(first, min(first + _PAGE_STRINGS, len(self)))

    def _page(self, first: int, after: int) -> list[str]:
        data = self._data
        if self._rows is None:
            ends = self._ends[first:after].tolist()
            start = self._ends.item(first - 1) if first else 0
            starts = [start, *ends[:-1]]
            if ends and (whole := data[start : ends[-1]]).isascii():
                # In ASCII a byte is a character, and slicing one decoded text takes half the time of decoding each.
                text = whole.decode("ascii")
                return [text[first - start : end - start] for first, end in zip(starts, ends, strict=True)]
        else:
            rows = self._rows[first:after].astype(np.int64)
            ends = self._ends[rows].tolist()
            starts = np.where(rows > 0, self._ends[rows - 1], 0).tolist()
        return [data[start:end].decode(_CODEC, _ERRORS) for start, end in zip(starts, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(own == text for own, text in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none either

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"StringArray({shown}{', …' if len(self) > 3 else ''}; {len(self):,})"


class StringColumn:
    """Strings as they are found, to become a `StringArray`: a list of texts would take three times as much."""

    def __init__(self) -> None:
        # It grows in place, and what it returns is no copy.
        self._data = io.BytesIO()
        self._lengths = array("I")

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, text: str) -> None:
        """Append a string."""
        self._lengths.append(self._data.write(text.encode(_CODEC, _ERRORS)))

    def add_all(self, joined: bytes, lengths: Iterable[int]) -> None:
        """Append the strings whose bytes are `joined`, one after the other."""
        self._data.write(joined)
        self._lengths.extend(lengths)

    def extend(self, other: StringColumn) -> None:
        """Append the strings of another column."""
        self._data.write(other._data.getbuffer())
        self._lengths.extend(other._lengths)

    def strings(self) -> StringArray:
        """Return all strings so far, in the order in which they were added."""
        return StringArray(self._data.getvalue(), _ends_of(np.frombuffer(self._lengths, np.uintc)))


def _ends_of(lengths: NDArray[Any]) -> NDArray[Any]:
    """Return where strings of some lengths end, as `narrowed` has it."""
    dtype = np.uint32 if int(lengths.sum(dtype=np.int64)) <= 0xFFFFFFFF else np.int64
    return np.cumsum(lengths, dtype=dtype)


def folders_of(names: Sequence[str]) -> tuple[list[str], NDArray[Any]]:
    """Return the folders of some files' names, the first that occurs first, "" for the root; and the number of each
    file's, `(N,)`."""
    strings = names if isinstance(names, StringArray) else StringArray.of(names)
    slashes = strings.last_of(b"/")
    return strings.parts(np.zeros(len(slashes), np.int64), np.maximum(slashes, 0))


def take_strings(strings: Sequence[str], rows: NDArray[Any]) -> Sequence[str]:
    """Return the strings of some rows, in their order; for a `StringArray` without an object for each."""
    return strings.take(rows) if isinstance(strings, StringArray) else [strings[row] for row in rows.tolist()]


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in 32 bits where all of them fit, otherwise unchanged."""
    if len(values) and (int(values.max()) > 0xFFFFFFFF or int(values.min()) < 0):
        return values
    return values.astype(np.uint32)


def first_repeated(strings: Sequence[str]) -> str | None:
    """Return the first string that has occurred before in the sequence; `None` where all differ."""
    # By sorted hashes of 8 bytes each, because a set of millions of names takes far more memory.
    hashes = np.fromiter(map(hash, strings), np.int64, len(strings))
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    seen: set[str] = set()
    for text in strings if suspects else ():
        if hash(text) in suspects:
            if text in seen:
                return text
            seen.add(text)
    return None


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
        # All names at once: adding them one by one takes five times as long.
        whole = prefix + prefix.join(bases) if bases else ""
        encoded = whole.encode(_CODEC, _ERRORS)
        start = len(prefix.encode(_CODEC, _ERRORS))
        if whole.isascii():
            self._names.add_all(encoded, [start + len(base) for base in bases])
        else:
            self._names.add_all(encoded, [start + len(base.encode(_CODEC, _ERRORS)) for base in bases])
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
