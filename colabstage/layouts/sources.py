"""Where the content of samples comes from: files of a tree, parts of one file, the items of a dataset.

A layout says which content is which sample; packing reads it, many at once and in the order that the medium likes.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import SourceReadError
from colabstage.trees.entries import FileEntries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.tree import ByteSource, FileEntry, Tree

# What a sample's content is before it is stored: a file's bytes, or values that need no decoding.
Content = bytes | NDArray[Any]


class SampleSource(Protocol):
    """The contents of N samples by number. Every method may be called from any thread, `read` from many at once."""

    def __len__(self) -> int:
        """N."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 `(N,)`: length in bytes of what `read` returns. Exact where it returns bytes, else about."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64 `(N,)`: reading by ascending position is sequential for the medium."""

    def name(self, index: int) -> str:
        """What a person would look for when this content is broken: a file's name, a row's number."""

    def stamp(self, index: int) -> str:
        """Differs whenever the content may have changed since it was listed: what a resumed pack compares."""

    def read(self, index: int) -> Content:
        """The whole content.

        Raises:
            OSError: as the medium answers (a mount's errno 5, 107, …); tried again by the caller.
            SourceReadError: it is shorter or longer than listed.
            CorruptArchiveError, DecodeError: this one is damaged; others may be well.
        """


class TreeFiles:
    """One file of a tree for each sample; sample i is `entries[i]`."""

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self.tree = tree
        self.entries = FileEntries.of(entries)

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Lengths of the files in bytes."""
        return self.entries.sizes

    @property
    def positions(self) -> NDArray[np.int64]:
        """Where the tree has them."""
        return self.entries.positions

    def name(self, index: int) -> str:
        """The file's name in its tree."""
        return self.entries.names[index]

    def stamp(self, index: int) -> str:
        """The file's name, length and time."""
        entry = self.entries[index]
        return f"{entry.name!r} {entry.size} {entry.mtime_ns}"

    def read(self, index: int) -> bytes:
        """The whole file."""
        return self.tree.read(self.entries[index])


class FileSlices:
    """A part of one file for each sample: rows of a .npy file, records of a TFRecord, values of a database.

    Args:
        file: the bytes, open for as long as the table is used.
        starts: int64 `(N,)`, where each part begins, in bytes.
        sizes: int64 `(N,)`, how long each is, in bytes.
        stamp: differs whenever the file does: its length and time, for example.
        shape, dtype: what each part is an array of, C-contiguous; without them a part is bytes.
    """

    def __init__(
        self,
        file: ByteSource,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        *,
        stamp: str,
        shape: tuple[int, ...] | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._file = file
        self._stamp = stamp
        self._shape = shape
        self._dtype = np.dtype(np.uint8) if dtype is None else dtype
        self.positions = starts
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, index: int) -> str:
        """The file's name and the number of the part."""
        return f"{self._file.label}[{index}]"

    def stamp(self, index: int) -> str:
        """The file's stamp, and which part of it."""
        return f"{self._stamp} {self.positions[index]} {self.sizes[index]}"

    def read(self, index: int) -> Content:
        """One part, as bytes or as an array of the one shape."""
        start, size = int(self.positions[index]), int(self.sizes[index])
        data = self._file.pread(size, start)
        if len(data) != size:
            msg = f"'{self._file.label}' ends before byte {start + size:,}, where its part {index} does."
            raise SourceReadError(msg)
        if self._shape is None:
            return data
        return np.frombuffer(data, self._dtype).reshape(self._shape)
