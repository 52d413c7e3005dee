"""One file that was compressed by itself, as a tree that holds just that file."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.errors import ArchiveError
from colabstage.trees.contents import HEAD_BYTES, compression_of
from colabstage.trees.lone import LoneFile, base_name
from colabstage.trees.names import DEFAULT_LIMITS, ArchiveLimits, clean_member_name, refuse_member
from colabstage.trees.spool import unpack_into

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.progress import Cancellation
    from colabstage.trees.tree import ByteSource

_SUFFIXES = {
    "gz": (".gz", ".tgz", ".z"),
    "bz2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zst": (".zst", ".zstd", ".tzst"),
}
# RFC 1952: the flags of a gzip header, and the parts that may stand before the name.
_FEXTRA, _FNAME = 4, 8


class SingleTree(LoneFile):
    """The one file in a gzip, bzip2, xz or Zstandard file that is no tar; unpacked once, into an unnamed file.

    It is named like the compressed file without its suffix; where that has none, as gzip noted its name. Gzip, bzip2
    and xz verify the content by their checksums while it is unpacked.

    Args:
        source: the compressed bytes; closed with the tree.
        spool: a folder on a local disk with room for the content; created if need be.
        limits: how much it may unpack to.
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
        cancellation: Cancellation | None = None,
    ) -> None:
        name = single_name(source)
        super().__init__(unpack_into(spool, source, limits, cancellation), name)
        self._compressed = source

    @property
    def label(self) -> str:
        """The compressed file's address."""
        return self._compressed.label

    def close(self) -> None:
        """Close the source and drop the content. Calling it twice is fine."""
        super().close()
        self._compressed.close()


def single_name(source: ByteSource) -> str:
    """What the file inside a compressed one is called.

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
    stem, suffix = posixpath.splitext(base)
    if stem and suffix.lower() in _SUFFIXES[compression]:
        return stem
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
