"""Many texts in little memory: the bytes of all of them one behind the other, and where each ends.

A `str` in a list takes 60 to 80 bytes beside its characters' own; of millions of file names that is most of what a
listing takes. Here it is four bytes, and the `str` is made when it is asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

# UTF-8 sorts as Python's texts do and keeps what is no UTF-8 in a file name, which Python has as lone surrogates.
_CODEC, _ERRORS = "utf-8", "surrogatepass"
# Made into `str` at once while iterating: the cost of each step vanishes, and nobody holds them all.
_PAGE = 2048
# Bytes of the longest text up to which all are sorted as bytes of one width.
_WIDE = 128


class Texts(Sequence[str]):
    """N texts. Immutable; equal to any sequence of the same texts.

    >>> names = Texts.of(["a/1.jpg", "b/2.jpg"])
    >>> names[1], names.take(np.array([1, 0])) == ("b/2.jpg", "a/1.jpg")
    ('b/2.jpg', True)
    """

    __slots__ = ("_data", "_ends", "_rows")

    def __init__(self, data: bytes, ends: NDArray[Any], rows: NDArray[Any] | None = None) -> None:
        """Texts of what `of` makes; call that.

        `data`: all of them. `ends`: `(M,)`, where each ends. `rows`: `(N,)`, which of them are meant; all if `None`.
        """
        self._data = data
        self._ends = ends
        self._rows = rows

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Those of an iterable, in its order."""
        data = bytearray()
        ends = array("Q")
        for text in texts:
            data += text.encode(_CODEC, _ERRORS)
            ends.append(len(data))
        return cls(bytes(data), narrowed(np.frombuffer(ends, np.uint64)))

    def __len__(self) -> int:
        return len(self._ends if self._rows is None else self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Texts: ...

    def __getitem__(self, index: int | slice) -> str | Texts:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        ends = self._ends
        row = (range(len(ends)) if self._rows is None else self._rows)[index]
        return self._data[ends.item(row - 1) if row else 0 : ends.item(row)].decode(_CODEC, _ERRORS)

    def take(self, rows: NDArray[Any]) -> Texts:
        """Some of them, in the order of `rows`; shares the bytes."""
        return Texts(self._data, self._ends, rows if self._rows is None else self._rows[rows])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 `(N,)`, made anew: bytes of each in UTF-8."""
        lengths = self._ends.astype(np.int64)
        lengths[1:] -= lengths[:-1].copy()
        return lengths if self._rows is None else lengths[self._rows]

    def packed(self) -> Texts:
        """The same texts, their bytes in the order of the texts and no others."""
        return self if self._rows is None else Texts.of(self)

    def order(self) -> NDArray[np.intp]:
        """`(N,)`: the numbers of the texts, sorted as Python sorts them, equal ones as they come."""
        width = int(self.lengths.max(initial=1)) or 1
        if width > _WIDE or b"\0" in self._data:
            texts = np.empty(len(self), object)
            texts[:] = list(self)
            return np.argsort(texts, kind="stable")
        # Bytes of one width, a page at a time: a fourth of the memory of the texts as objects.
        keys = np.zeros(len(self), f"S{width}")
        for first in range(0, len(self), _PAGE):
            page = self._page(first, min(first + _PAGE, len(self)))
            keys[first : first + _PAGE] = [text.encode(_CODEC, _ERRORS) for text in page]
        return np.argsort(keys, kind="stable")

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _PAGE):
            yield from self._page(first, min(first + _PAGE, len(self)))

    def _page(self, first: int, after: int) -> list[str]:
        if self._rows is None:
            ends = self._ends[first:after].tolist()
            starts = [int(self._ends[first - 1]) if first else 0, *ends[:-1]]
        else:
            rows = self._rows[first:after].astype(np.int64)
            ends = self._ends[rows].tolist()
            starts = np.where(rows > 0, self._ends[rows - 1], 0).tolist()
        data = self._data
        return [data[start:end].decode(_CODEC, _ERRORS) for start, end in zip(starts, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(own == text for own, text in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none either

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"Texts({shown}{', …' if len(self) > 3 else ''}; {len(self):,})"


def some_texts(texts: Sequence[str], rows: NDArray[Any]) -> Sequence[str]:
    """Those of some rows, in their order; of `Texts`, with no object for each."""
    return texts.take(rows) if isinstance(texts, Texts) else [texts[row] for row in rows.tolist()]


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in 32 bits where all of them fit, else as they are."""
    if len(values) and (int(values.max()) > 0xFFFFFFFF or int(values.min()) < 0):
        return values
    return values.astype(np.uint32)


def first_repeated(texts: Sequence[str]) -> str | None:
    """The first text that stands before in the sequence as well, `None` where all differ.

    Compares their hashes, 8 bytes each, in place of a set of all of them.
    """
    hashes = np.fromiter(map(hash, texts), np.int64, len(texts))
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    seen: set[str] = set()
    for text in texts if suspects else ():
        if hash(text) in suspects:
            if text in seen:
                return text
            seen.add(text)
    return None
