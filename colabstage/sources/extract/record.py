"""What was extracted where: the record beside a folder that spares extracting it again, and protects it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from colabstage.io.files import hash_block
from colabstage.io.ownership import look_at
from colabstage.io.records import RecordFile

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.trees.tree import ByteSource

# The directory of a zip, with the checksums of all members, lies at its end; the headers of a tar begin it.
_EDGE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """Which archive in which state."""

    address: str
    """What it is called, as a source."""
    size: int
    """Its length in bytes."""
    mtime_ns: int
    """Its modification time in ns."""
    edges: str
    """A hash of its beginning and end."""

    @property
    def fingerprint(self) -> str:
        """Return a text that is another one when the content may be: what an interrupted extraction goes on by."""
        return f"{self.address} {self.size} {self.mtime_ns} {self.edges}"

    def is_same_content(self, other: ArchiveIdentity) -> bool:
        """Return whether the content is the same for all that can be seen without reading it whole."""
        return (self.size, self.mtime_ns, self.edges) == (other.size, other.mtime_ns, other.edges)


@dataclass(frozen=True, slots=True)
class ExtractRecord:
    """What `extract_archive` notes of a finished folder."""

    archive: ArchiveIdentity
    """From which archive it was made."""
    members: int
    """The number of files in it."""
    content_bytes: int
    """Their bytes together."""
    deed: str
    """The name of the deed of what was put there, file by file."""

    def fits(self, target: Path) -> bool:
        """Return whether all that was extracted is there, with its size and time, and nothing else."""
        here = look_at(target)
        return here.is_as_made and here.deed == self.deed


EXTRACTED = RecordFile(ExtractRecord, ("format", 2), ExtractRecord.fits, asdict)


def identify(source: ByteSource, mtime_ns: int) -> ArchiveIdentity:
    """Look at an archive's size, time, beginning and end."""
    head = source.pread(_EDGE_BYTES, 0)
    tail = source.pread(_EDGE_BYTES, max(0, source.size - _EDGE_BYTES))
    return ArchiveIdentity(source.label, source.size, mtime_ns, hash_block(head) + hash_block(tail))
