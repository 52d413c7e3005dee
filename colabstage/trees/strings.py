"""Many strings in little memory, and what is asked of all of them at once.

A `StringArray` has the bytes of all strings one after the other, and the end of each. A `str` in a list takes 60 to 80
bytes in addition to its characters, which for millions of file names is most of a listing's memory; here it takes four
bytes. What is asked of all of them needs no object for each, and so a tenth of the time.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

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
# Lines of a table that are made together: more would no longer fit the processor's cache.
_PAGE_LINES = 4096
# Given to a digest at once.
_FED_BYTES = 1 << 20
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
        if isinstance(strings, StringArray):
            return strings
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
            return self.take(np.arange(*index.indices(len(self))))
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
        rows = self._rows
        if rows is not None:
            # No string ends before the first one. (Numbers of rows may be unsigned, so none is taken from 0.)
            selected: NDArray[np.int64] = self._ends[rows].astype(np.int64)
            selected -= np.where(rows > 0, self._ends[np.maximum(rows, 1) - 1], 0)
            return selected
        lengths = np.empty(len(self._ends), np.int64)
        lengths[:1] = self._ends[:1]
        np.subtract(self._ends[1:], self._ends[:-1], out=lengths[1:], casting="unsafe")
        return lengths

    @property
    def longest(self) -> int:
        """Return the length of the longest in UTF-8, 0 where there is none."""
        # Page by page: a column of all lengths, and one of those selected, would be ten times a split's own bytes.
        pages = range(0, len(self), _PAGE_STRINGS)
        return max((int(self[first : first + _PAGE_STRINGS].lengths.max()) for first in pages), default=0)

    @classmethod
    def cut_from(cls, data: bytes | bytearray, starts: NDArray[Any], lengths: NDArray[Any]) -> StringArray:
        """Return pieces of some bytes, which have to be UTF-8. `starts`, `lengths`: `(N,)`, in bytes."""
        ends = _ends_of(lengths)
        # Of the right length at once: what grows while other things do leaves gaps of all its former lengths.
        packed = bytearray(int(ends[-1]) if len(ends) else 0)
        source, target = np.frombuffer(data, np.uint8), np.frombuffer(packed, np.uint8)
        done = 0
        for first in range(0, len(lengths), _PAGE_STRINGS):
            page = slice(first, first + _PAGE_STRINGS)
            cut = _cut_out(source, starts[page], lengths[page].astype(np.int64))
            target[done : done + len(cut)] = cut
            done += len(cut)
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
        return all(piece._is_utf8(only_ascii=only_ascii) for piece in self._pieces())

    def _is_utf8(self, *, only_ascii: bool) -> bool:
        """Tell it of strings that are packed."""
        if self._data.isascii() or only_ascii:
            return self._data.isascii()
        try:
            self._data.decode(_CODEC)
        except UnicodeDecodeError:
            return False
        # Half a character at the end of one would be completed by the next.
        return not np.any((self.bytes_at(0) & 0xC0) == 0x80)

    @property
    def is_text(self) -> bool:
        """Return whether the bytes of all are UTF-8 without zeros."""
        return self.is_utf8() and all(b"\0" not in piece._data for piece in self._pieces())

    def _pieces(self) -> Iterator[StringArray]:
        """Return all strings, packed: in one piece where they are, otherwise in pieces, so that they are never here
        twice."""
        if self._rows is None:
            yield self
            return
        for first in range(0, len(self), _FOUND_TOGETHER):
            yield StringArray(self._data, self._ends, self._rows[first : first + _FOUND_TOGETHER]).packed()

    def bytes_at(self, place: int) -> NDArray[np.uint8]:
        """Return uint8 `(N,)`: the byte at one place of each string, -1 for the last; 0 where a string is shorter."""
        whole = self.packed()
        data = np.frombuffer(whole._data, np.uint8)
        found = np.zeros(len(self), np.uint8)
        for first, starts, ends in whole._bounds():
            at = starts + place if place >= 0 else ends + place
            has = np.flatnonzero((starts <= at) & (at < ends))
            found[first + has] = data[at[has]]
        return found

    def _bounds(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Return where strings that are packed begin and end, page by page, and the number of each page's first."""
        for first in range(0, len(self), _PAGE_STRINGS):
            ends = self._ends[first : first + _PAGE_STRINGS].astype(np.int64)
            yield first, np.append(self._ends.item(first - 1) if first else 0, ends[:-1]), ends

    def last_of(self, mark: bytes) -> NDArray[np.int64]:
        """Return int64 `(N,)`: the last place of a character of ASCII in each string, in bytes; -1 where it is not in
        it."""
        whole = self.packed()
        data = np.frombuffer(whole._data, np.uint8)
        found = np.full(len(self), -1, np.int64)
        for first, starts, ends in whole._bounds():
            places = np.flatnonzero(data[starts[0] : ends[-1]] == mark[0]) + starts[0]
            before = np.searchsorted(places, ends) - 1
            has = before >= 0
            last = places[before[has]] - starts[has]
            found[first : first + _PAGE_STRINGS][has] = np.maximum(last, -1)
        return found

    def parts(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[list[str], NDArray[Any]]:
        """Return the different parts of all strings, the first that occurs first, and the number of each string's.

        `begins`, `ends`: `(N,)`, where each part begins and ends in its string, in bytes.
        """
        whole = self.packed()
        data = np.frombuffer(whole._data, np.uint8)
        numbers: dict[bytes, int] = {}
        of_strings = np.empty(len(self), np.uint32)
        for first, page_starts, _ in whole._bounds():
            page = slice(first, first + _PAGE_STRINGS)
            starts, lengths = page_starts + begins[page], ends[page] - begins[page]
            # Files of one folder follow each other, so most parts are the same as the one before.
            heads = np.flatnonzero(_differs_from_last(data, starts, lengths))
            bounds = zip(starts[heads].tolist(), (starts + lengths)[heads].tolist(), strict=True)
            found = [numbers.setdefault(bytes(whole._data[begin:end]), len(numbers)) for begin, end in bounds]
            of_strings[page] = np.repeat(np.array(found, np.uint32), np.diff(np.append(heads, len(lengths))))
        # Folders and endings are few, and a million files need a byte each to say which is theirs.
        least = np.min_scalar_type(max(0, len(numbers) - 1))
        return [part.decode(_CODEC, _ERRORS) for part in numbers], of_strings.astype(least)

    def translated(self, table: bytes) -> StringArray:
        """Return the strings with each byte replaced as `bytes.translate` does it."""
        return StringArray(self._data.translate(table), self._ends, self._rows)

    def hashes(self) -> NDArray[np.uint64]:
        """Return uint64 `(N,)`: the same number for the same string, and nearly always another for another one."""
        whole = self.packed()
        lengths = whole.lengths
        factors = _factors(int(lengths.max(initial=0)))
        found: NDArray[np.uint64] = lengths.astype(np.uint64)
        data = np.frombuffer(whole._data, np.uint8)
        for first, starts, ends in whole._bounds():
            page, begins = data[starts[0] : ends[-1]], starts - starts[0]
            places = np.arange(len(page)) - np.repeat(begins, ends - starts)
            # An empty string would be given the byte that follows it.
            some = np.flatnonzero(ends - starts)
            if len(some):
                found[first + some] += np.add.reduceat(factors[places] * (page + np.uint64(1)), begins[some])
        return found

    def among(self, texts: Collection[str]) -> NDArray[np.intp]:
        """Return the numbers of the strings that are among some others, ascending."""
        wanted = frozenset(texts)
        maybe = np.flatnonzero(np.isin(self.hashes(), StringArray.of(wanted).hashes()))
        return maybe[[text in wanted for text in self.take(maybe)]]

    def padded(self, width: int) -> NDArray[np.bytes_]:
        """Return bytes of one width, `(N,)`: each string with zeros after it. `width`: at least that of the longest."""
        whole = self.packed()
        data = np.frombuffer(whole._data, np.uint8)
        padded = np.empty((len(self), width), np.uint8)
        for first, starts, ends in whole._bounds():
            padded[first : first + _PAGE_STRINGS] = _padded(data, starts, ends - starts, width)
        return padded.reshape(-1).view(f"S{width}")

    def order(self) -> NDArray[np.intp]:
        """Return `(N,)`: the numbers of the strings in Python's order; equal ones keep theirs."""
        width = int(self.lengths.max(initial=1)) or 1
        # One long name would make all of them that wide, and numpy takes zeros at the end for padding.
        if width > _WIDE or b"\0" in self._data:
            strings = np.empty(len(self), object)
            strings[:] = list(self)
            return np.argsort(strings, kind="stable")
        # As bytes of one width, which take a fourth of the memory of the strings as objects.
        return np.argsort(self.padded(width), kind="stable")

    def feed(self, take: Callable[[bytes], object]) -> None:
        """Call `take` with bytes that are the same for the same strings only, as for a digest."""
        whole = self.packed()
        # Piece by piece, which is the same to a digest, and never another copy of all names.
        for first in range(0, len(whole._data), _FED_BYTES):
            take(bytes(whole._data[first : first + _FED_BYTES]))
        for _, starts, ends in whole._bounds():
            take((ends - starts).tobytes())

    def encoded(self) -> Iterator[bytes]:
        """Return the bytes of each."""
        for piece in self._pieces():
            for _, starts, ends in piece._bounds():
                # Slices of bytes are bytes, and those of a bytearray would have to be copied once more.
                data = bytes(piece._data[starts[0] : ends[-1]])
                bounds = zip((starts - starts[0]).tolist(), (ends - starts[0]).tolist(), strict=True)
                yield from [data[begin:end] for begin, end in bounds]

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

    def add_all(self, prefix: str, texts: Sequence[str]) -> None:
        """Append some strings, each after `prefix`."""
        if not texts:
            return
        # All at once: adding them one by one takes five times as long.
        whole = prefix + prefix.join(texts)
        data = whole.encode(_CODEC, _ERRORS)
        self._data.write(data)
        in_ascii = len(data) == len(whole)
        own = map(len, texts if in_ascii else [text.encode(_CODEC, _ERRORS) for text in texts])
        lengths = np.fromiter(own, np.uintc, len(texts)) + np.uintc(len(prefix.encode(_CODEC, _ERRORS)))
        self._lengths.frombytes(lengths.tobytes())

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
    strings = StringArray.of(names)
    slashes = strings.last_of(b"/")
    return strings.parts(np.zeros(len(slashes), np.int64), np.maximum(slashes, 0))


def table_lines(names: Sequence[str], *columns: NDArray[np.int64]) -> Iterator[bytes]:
    """Return a table as text, in pieces: a line for each name, its numbers after it, with tabs between.

    Together the pieces are `"\\n".join(f"{name}\\t{number}…")` in UTF-8, where a surrogate is the byte that it stands
    for in the name of a file.

    Args:
        names: N strings.
        columns: whole numbers, each `(N,)`.
    """
    strings = StringArray.of(names)
    for first in range(0, len(strings), _PAGE_LINES):
        page = slice(first, first + _PAGE_LINES)
        if first:
            yield b"\n"
        yield _lines(strings[page].packed(), [column[page] for column in columns])


def _lines(names: StringArray, columns: Sequence[NDArray[np.int64]]) -> bytes:
    """Return some lines of `table_lines`, from strings that are packed."""
    width = int(names.lengths.max(initial=1)) or 1
    if width > _WIDE or not names.is_text or any(int(column.min(initial=0)) < 0 for column in columns):
        rows = zip(names, *(column.tolist() for column in columns), strict=True)
        return "\n".join(["\t".join(map(str, row)) for row in rows]).encode(errors="surrogateescape")
    # As columns of bytes, zeros where a row has none: a string for each line takes three times as long.
    parts: list[NDArray[np.uint8]] = [names.padded(width).view(np.uint8).reshape(-1, width)]
    for column in columns:
        parts += [np.full((len(names), 1), ord("\t"), np.uint8), _digits(column)]
    ends = np.full((len(names), 1), ord("\n"), np.uint8)
    ends[-1] = 0
    table: NDArray[np.uint8] = np.concatenate([*parts, ends], axis=1)
    return bytes(table[table != 0])


def _digits(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return uint8 `(N, width)`: numbers from 0 on in decimal, as ASCII, with zero bytes before the shorter ones."""
    width = len(str(int(numbers.max(initial=0))))
    digits = np.empty((len(numbers), width), np.uint8)
    rest = numbers
    for place in range(width - 1, -1, -1):
        upper = rest // 10
        digits[:, place] = rest - upper * 10 + ord("0")
        rest = upper
    # From which number on there is a digit in each place; in the last one there always is.
    least = np.array([*(10**place for place in range(width - 1, 0, -1)), 0], np.int64)
    digits[numbers[:, None] < least] = 0
    return digits


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
    texts = StringArray.of(strings)
    # By sorted hashes of 8 bytes each, because a set of millions of names takes far more memory.
    hashes = texts.hashes()
    ordered = np.sort(hashes)
    suspects = np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]])
    seen: set[str] = set()
    for text in texts.take(np.flatnonzero(suspects)):
        if text in seen:
            return text
        seen.add(text)
    return None


def _padded(data: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return uint8 `(N, width)`: pieces of some bytes, with zeros after each. `width`: at least 1, and the longest."""
    short = max(0, width - len(data))
    data = np.append(data, np.zeros(short, np.uint8)) if short else data
    last = len(data) - width
    # Every place of the data as an item of that width, which numpy copies as a whole where it would else look up each
    # byte.
    items = np.ndarray(last + 1, f"V{width}", data.data, strides=1)
    padded: NDArray[np.uint8] = items[np.minimum(starts, np.int64(last))].view(np.uint8).reshape(-1, width)
    # The few that begin where no whole item is left.
    for row in np.flatnonzero(starts > last).tolist():
        piece = data[starts[row] :]
        padded[row, : len(piece)] = piece
    if lengths.min(initial=width) < width:
        padded[np.arange(width) >= lengths[:, None]] = 0
    return padded


def _cut_out(data: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return pieces of some bytes, one after the other."""
    width = int(lengths.max(initial=0))
    if 0 < width <= _WIDE:
        padded = _padded(data, starts, lengths, width)
        return padded.reshape(-1) if lengths.min() == width else padded[np.arange(width) < lengths[:, None]]
    # How much further each byte is in the data than among the pieces.
    ahead = starts - (np.cumsum(lengths) - lengths)
    return data[np.repeat(ahead, lengths) + np.arange(int(lengths.sum()))]


def _differs_from_last(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool `(N,)`: whether each of some pieces of bytes is another than the one before it; the first is."""
    found = np.ones(len(lengths), np.bool_)
    width = int(lengths.max(initial=0))
    # One long piece would make all of them that wide; whoever is told that two differ looks at them again.
    if width <= _WIDE:
        pieces = _padded(data, starts, lengths, max(1, width))
        found[1:] = (pieces[1:] != pieces[:-1]).any(axis=1) | (lengths[1:] != lengths[:-1])
    return found


def _factors(count: int) -> NDArray[np.uint64]:
    """Return a number for each place in a string, as if drawn at random, the same in every process."""
    # The mixing step of SplitMix64, of multiples of the golden ratio.
    found = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))
