"""What was extracted where: the record beside an extracted folder that spares doing it again, and protects the folder.

It lies beside the folder, not in it, so that the folder holds what the archive holds and nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from colabstage.io.files import hash_block, read_json, write_json
from colabstage.io.ownership import look_at, rename_named, sweep_orphans
from colabstage.io.records import read_fields

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.trees.tree import ByteSource

_FORMAT = 2
# The directory of a zip, with the checksums of all members, lies at its end; the headers of a tar begin it.
_EDGE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """Which archive in which state: its address, size in bytes, time in ns, and a hash of its beginning and end."""

    address: str
    size: int
    mtime_ns: int
    edges: str

    @property
    def fingerprint(self) -> str:
        """A text that is another one when the content may be: what an interrupted extraction goes on by."""
        return f"{self.address} {self.size} {self.mtime_ns} {self.edges}"

    def is_same_content(self, other: ArchiveIdentity) -> bool:
        """Whether the content is the same for all that can be seen without reading it whole."""
        return (self.size, self.mtime_ns, self.edges) == (other.size, other.mtime_ns, other.edges)


@dataclass(frozen=True, slots=True)
class ExtractRecord:
    """What `extract_archive` notes of a finished folder. `deed`: names what was put there, file by file."""

    archive: ArchiveIdentity
    members: int
    content_bytes: int
    deed: str


def identify(source: ByteSource, mtime_ns: int) -> ArchiveIdentity:
    """Look at an archive's size, time, beginning and end."""
    head = source.pread(_EDGE_BYTES, 0)
    tail = source.pread(_EDGE_BYTES, max(0, source.size - _EDGE_BYTES))
    return ArchiveIdentity(source.label, source.size, mtime_ns, hash_block(head) + hash_block(tail))


def record_path(target: Path) -> Path:
    """Where the record of an extracted folder lies."""
    return target.with_name(f".{target.name}.colabstage.json")


def announce_record(target: Path, record: ExtractRecord) -> None:
    """Say what is about to be put at `target`, in case whoever does it dies before it can write the record."""
    write_json(_coming_path(target), {"format": _FORMAT, **asdict(record)})


def settle_record(target: Path) -> None:
    """Give what was announced its own name, if it stands at `target` now; clear away what dead runs left of records."""
    coming = _read(_coming_path(target))
    if coming is not None and is_untouched(target, coming):
        rename_named(_coming_path(target), record_path(target))
    for path in (record_path(target), _coming_path(target)):
        sweep_orphans(target.parent, name=path.name)


def read_record(target: Path) -> ExtractRecord | None:
    """What was noted of `target`, or announced and stands there; `None` when nothing was."""
    coming = _read(_coming_path(target))
    return coming if coming is not None and is_untouched(target, coming) else _read(record_path(target))


def _coming_path(target: Path) -> Path:
    return target.with_name(f"{record_path(target).name}.coming")


def _read(path: Path) -> ExtractRecord | None:
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
        return None
    return read_fields(ExtractRecord, raw)


def is_untouched(target: Path, record: ExtractRecord) -> bool:
    """Whether all that was extracted is there, with its size and time, and nothing else."""
    here = look_at(target)
    return here.is_as_made and here.deed == record.deed
