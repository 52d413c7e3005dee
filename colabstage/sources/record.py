"""What `fetch_files` leaves beside what it made: one hidden record, by which it knows its own work again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from colabstage.io.files import block_ranges, hash_ranges
from colabstage.io.ownership import look_at, sweep_orphans
from colabstage.io.records import RecordFile
from colabstage.io.temporaries import current_world
from colabstage.machine.resources import usable_cores
from colabstage.sources.identity import SourceIdentity  # noqa: TC001 - the record's schema
from colabstage.sources.transfer.partial_file import BLOCK_BYTES

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """What was fetched to one place."""

    address: str
    """From where."""
    identity: SourceIdentity
    """The source's state then."""
    seal: dict[str, int | str]
    """Of a file, the facts that change when anything writes to it; of a folder, the name of its deed."""
    hashes: tuple[str, ...]
    """Of a file, the xxh3-64 of each 8 MiB block."""
    files: int
    """How many files the target holds."""
    nbytes: int
    """Their bytes together."""
    transport: str
    """How it came."""

    def fits(self, target: Path, *, thorough: bool = False) -> bool:
        """Return whether what was fetched is there as it was left, and in a folder nothing else.

        By sizes and times, or by a file's content where its times say nothing, or with `thorough` whatever they say.
        """
        if "deed" in self.seal:
            here = look_at(target)
            return here.is_as_made and here.deed == self.seal["deed"]
        # A link is somebody's way to something else, even where that is as it was.
        if target.is_symlink() or not target.is_file():
            return False
        sealed = bool(self.seal) and self.seal.items() <= file_seal(target).items()
        if sealed and not (thorough and self.hashes):
            return True
        # The length is free to ask, the hashes read everything.
        if not self.hashes or target.stat().st_size != self.nbytes:
            return False
        ranges = block_ranges(self.nbytes, BLOCK_BYTES)
        return tuple(hash_ranges(target, ranges, threads=usable_cores())) == self.hashes

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; of the source's state, what is known."""
        return {**asdict(self), "identity": self.identity.to_json()}


FETCHED = RecordFile(FetchRecord, ("version", 1), FetchRecord.fits, FetchRecord.to_json)


def announce_record(target: Path, record: FetchRecord) -> None:
    """Say what is about to be put at `target`.

    The record's seal may be that of what will be renamed to `target`, or empty for a file whose hashes it has.
    """
    # Renaming changes it.
    seal = {name: value for name, value in record.seal.items() if name != "ctime_ns"}
    FETCHED.announce(target, replace(record, seal=seal))


def settle_record(target: Path, record: FetchRecord) -> None:
    """Finish what runs left that died once the work was in place, by them or by an earlier one."""
    if FETCHED.announced_path(target).exists():
        FETCHED.write(target, record if "deed" in record.seal else replace(record, seal=file_seal(target)))
    sweep_orphans(target.parent, name=target.name)


def file_seal(file: Path) -> dict[str, int | str]:
    """Return what changes when anything writes to a file; and the boot, which may lose what was not forced out."""
    found = file.stat()
    return {
        "inode": found.st_ino,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "world": current_world(),
    }
