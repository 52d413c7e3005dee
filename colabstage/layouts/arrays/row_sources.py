"""Rows of arrays as sources of samples: of several arrays one behind the other, and in another form than stored."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.sources import Content, SampleSource


class ConvertedRows:
    """The contents of another source, each brought into another form: byte order, axes, a part of it."""

    def __init__(self, source: SampleSource, convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self._source = source
        self._convert = convert

    def __len__(self) -> int:
        return len(self._source)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """As they are read."""
        return self._source.sizes

    @property
    def positions(self) -> NDArray[np.int64]:
        """As the other source has them."""
        return self._source.positions

    def name(self, index: int) -> str:
        """As the other source calls it."""
        return self._source.name(index)

    def stamp(self, index: int) -> str:
        """The other source's."""
        return self._source.stamp(index)

    def read(self, index: int) -> Content:
        """The content, converted."""
        content = self._source.read(index)
        return content if isinstance(content, bytes) else self._convert(content)


class JoinedSources:
    """Several sources one behind the other, each read to its end before the next begins."""

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Those of all parts."""
        return np.concatenate([part.sizes for part in self._parts])

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Those of each part, moved behind the part before."""
        moved, start = [], 0
        for part in self._parts:
            positions = np.asarray(part.positions, np.int64)
            moved.append(positions + start)
            start = int(moved[-1].max(initial=start)) + 1
        return np.concatenate(moved)

    def name(self, index: int) -> str:
        """As its part calls it."""
        part, own = self._find(index)
        return part.name(own)

    def stamp(self, index: int) -> str:
        """As its part has it."""
        part, own = self._find(index)
        return part.stamp(own)

    def read(self, index: int) -> Content:
        """The content, as its part gives it."""
        part, own = self._find(index)
        return part.read(own)

    def _find(self, index: int) -> tuple[SampleSource, int]:
        place = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[place], index - int(self._ends[place] - len(self._parts[place]))


def join_sources(parts: Sequence[SampleSource]) -> SampleSource:
    """One source of several; the one itself where it is alone."""
    return parts[0] if len(parts) == 1 else JoinedSources(parts)
