"""A file that is a whole dataset by itself (arrays, records, tokens), as a tree of one file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

from colabstage.fileops import block_ranges
from colabstage.trees.messages import cut_while_read, foreign_entry
from colabstage.trees.tree import PIECE_BYTES, FileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from colabstage.trees.tree import ByteSource, TreeKind

_WEB = re.compile(r"(?i)https?://")
# What layouts read of one file. An .npz is a zip, and opened as one; a .csv is nothing without the files it names.
_SUFFIXES = (
    *(".npy", ".h5", ".hdf5", ".hdf", ".he5", ".mat"),
    *(".tfrecord", ".tfrecords", ".tfrec", ".parquet", ".arrow", ".mdb", ".lmdb"),
    *(".bin", ".txt", ".jsonl"),
)


def is_lone(label: str) -> bool:
    """Whether a file at this address may be a dataset by itself."""
    return base_name(label).lower().endswith(_SUFFIXES)


def base_name(label: str) -> str:
    """What a file is called by its address: the last part of a path; of a web address without its query.

    >>> base_name("https://example.org/records/7/data.npy?download=1")
    'data.npy'
    """
    path = unquote(urlsplit(label).path) if _WEB.match(label) else label
    return path.rstrip("/").rpartition("/")[2]


class LoneFile:
    """One file as a tree.

    Args:
        source: its bytes; closed with the tree.
        name: what the file is called; the last part of the source's address where not given.
    """

    def __init__(self, source: ByteSource, name: str = "") -> None:
        self.source = source
        self._entry = FileEntry(name or base_name(source.label), source.size, 0, 0)

    @property
    def kind(self) -> TreeKind:
        """`"file"`."""
        return "file"

    @property
    def label(self) -> str:
        """The file's address."""
        return self.source.label

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing is left out."""
        return ()

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The one file."""
        return (self._entry,)

    def read(self, entry: FileEntry) -> bytes:
        """The content.

        Raises:
            OSError: as the medium answers.
            SourceReadError: it is shorter than it was; or the entry is another tree's.
        """
        self._check(entry)
        data = self.source.pread(entry.size, 0) if entry.size else b""
        if len(data) != entry.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content in pieces of at most 16 MiB.

        Raises:
            As `read`.
        """
        self._check(entry)
        for offset, length in block_ranges(self._entry.size, PIECE_BYTES):
            data = self.source.pread(length, offset)
            if len(data) != length:
                raise cut_while_read(self.label, entry.name)
            yield data

    def _check(self, entry: FileEntry) -> None:
        if entry.name != self._entry.name:
            raise foreign_entry(self.label, entry.name)

    def close(self) -> None:
        """Close the source. Calling it twice is fine."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
