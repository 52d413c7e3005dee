"""Trees of one file: one that is a whole dataset by itself (arrays, records, tokens), or was compressed by itself."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from colabstage.errors import ArchiveError
from colabstage.trees.archive_bytes import SharedBytes
from colabstage.trees.contents import HEAD_BYTES, compression_of
from colabstage.trees.decompress import unpack_into
from colabstage.trees.names import DEFAULT_LIMITS, ArchiveLimits, clean_member_name, refuse_member
from colabstage.trees.tree import FileEntry, Tree, unknown_entry

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.io.progress import Cancellation
    from colabstage.trees.tree import ByteSource

_WEB = re.compile(r"(?i)https?://")
# What layouts read of one file. An .npz is a zip, and opened as one; a .csv is nothing without the files it names.
_SUFFIXES = (
    *(".npy", ".h5", ".hdf5", ".hdf", ".he5", ".mat"),
    *(".tfrecord", ".tfrecords", ".tfrec", ".parquet", ".arrow", ".mdb", ".lmdb"),
    *(".bin", ".txt", ".jsonl"),
)


def may_be_single_file(label: str) -> bool:
    """Tell whether a file at this address may be a dataset by itself."""
    return base_name(label).lower().endswith(_SUFFIXES)


def base_name(label: str) -> str:
    """Return what a file is called by its address: the last part of a path; of a web address without its query.

    >>> base_name("https://example.org/records/7/data.npy?download=1")
    'data.npy'
    """
    # Only what is a web address: a path may hold a question mark or a percent sign.
    path = unquote(urlsplit(label).path) if _WEB.match(label) else label
    return path.rstrip("/").rpartition("/")[2]


class SingleFileTree(Tree):
    """One file as a tree.

    Args:
        source: its bytes; closed with the tree.
        name: what the file is called; the last part of the source's address where not given.
    """

    kind = "file"
    source: ByteSource

    def __init__(self, source: ByteSource, name: str = "") -> None:
        self.source, self.label = source, source.label
        self.entries = (FileEntry(name or base_name(source.label), source.size, 0, 0),)

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the file's bytes, which stay open until the tree is closed."""
        if entry.name != self.entries[0].name:
            raise unknown_entry(self.label, entry.name)
        return SharedBytes(self.source)


_COMPRESSED_SUFFIXES = {
    "gz": (".gz", ".tgz", ".z"),
    "bz2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zst": (".zst", ".zstd", ".tzst"),
}
# RFC 1952: the flags of a gzip header, and the parts that may stand before the name.
_FEXTRA, _FNAME = 4, 8


class CompressedFileTree(SingleFileTree):
    """The one file in a gzip, bzip2, xz or Zstandard file that is no tar; unpacked once, into an unnamed file.

    It is named like the compressed file without its suffix; where that has none, as gzip noted its name. Gzip, bzip2
    and xz verify the content by their checksums while it is unpacked.

    Args:
        source: the compressed bytes; closed with the tree.
        spool: a folder on a local disk with room for the content; created if need be.
        limits: how much it may unpack to.
        name: what the service calls it, for where its address does not say how it is compressed.
        cancellation: looked at while it is unpacked.

    Raises:
        ArchiveError: not compressed.
        CorruptArchiveError: truncated or damaged.
        UnsafeArchiveError: it unpacks to more than `limits` allow, or its noted name leads elsewhere.
        NotEnoughSpaceError, TargetNotWritableError: the content does not fit in `spool`, or nothing can be written.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        name: str = "",
        cancellation: Cancellation | None = None,
    ) -> None:
        # Before unpacking, which takes long: a name that leads elsewhere refuses the file.
        inside = single_name(source, name)
        super().__init__(unpack_into(spool, source, limits, cancellation), inside)
        self._compressed = source

    def close(self) -> None:
        """Close the source and drop the content. Calling it twice is fine."""
        super().close()
        self._compressed.close()


def single_name(source: ByteSource, name: str = "") -> str:
    """Return what the file inside a compressed one is called, whose service calls it `name`.

    Raises:
        ArchiveError: the source is not compressed.
        UnsafeArchiveError: only gzip's header names it, and with a path.
    """
    head = source.pread(HEAD_BYTES, 0)
    compression = compression_of(head)
    if compression is None:
        msg = f"'{source.label}' is not compressed with gzip, bzip2, xz or Zstandard."
        raise ArchiveError(msg)
    base = base_name(source.label) or "content"
    for called in (base, name):
        stem, suffix = posixpath.splitext(called)
        if stem and suffix.lower() in _COMPRESSED_SUFFIXES[compression]:
            return stem
    # Only gzip notes a name, and only the name of the file that was compressed, whatever it is called now.
    noted = _gzip_name(head) if compression == "gz" else ""
    if not noted:
        return base
    name = clean_member_name(source.label, noted)
    if "/" in name:
        raise refuse_member(source.label, noted, "gzip notes a name without folders, and this one has some")
    return name


def _gzip_name(head: bytes) -> str:
    if len(head) < 10 or not head[3] & _FNAME:
        return ""
    at = 10
    if head[3] & _FEXTRA:
        at += 2 + int.from_bytes(head[10:12], "little")
    name, end, _ = head[at:].partition(b"\0")
    return name.decode("latin-1") if end else ""
