"""What `fetch_files` leaves beside what it made: one hidden record, by which it knows its own work again.

A record is announced under another name before the work is put in its place, and takes its own name after that: so
whoever is killed in between has still said what stands there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from colabstage.io.files import block_ranges, hash_ranges, read_json, write_json
from colabstage.io.ownership import current_world, look_at, remove_named, sweep_orphans
from colabstage.io.records import read_fields
from colabstage.machine.resources import usable_cores
from colabstage.sources.identity import SourceIdentity  # noqa: TC001 - read_fields looks at it
from colabstage.sources.transfer.partial_file import BLOCK_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
# As beside an extracted folder: whoever makes what stands there writes the record anew.
_SUFFIX = ".colabstage.json"
_COMING = ".coming"


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """What was fetched to one place.

    `address`: from where. `identity`: the source's state then. `seal`: of a file, the facts that change when anything
    writes to it; of a folder, the name of its deed. `hashes`: of a file, the xxh3-64 of each 8 MiB block.
    `files`, `nbytes`: what the target holds. `transport`: how it came.
    """

    address: str
    identity: SourceIdentity
    seal: dict[str, int | str]
    hashes: tuple[str, ...]
    files: int
    nbytes: int
    transport: str

    def fits(self, target: Path, *, thorough: bool = False) -> bool:
        """Whether what was fetched is there as it was left, and in a folder nothing else.

        By sizes and times, or by a file's content where its times say nothing, or with `thorough` whatever they say.
        """
        if "deed" in self.seal:
            here = look_at(target)
            return here.is_as_made and here.deed == self.seal["deed"]
        if target.is_symlink() or not target.is_file():
            return False
        sealed = bool(self.seal) and self.seal.items() <= file_seal(target).items()
        if sealed and not (thorough and self.hashes):
            return True
        if not self.hashes or target.stat().st_size != self.nbytes:
            return False
        ranges = block_ranges(self.nbytes, BLOCK_BYTES)
        return tuple(hash_ranges(target, ranges, threads=usable_cores())) == self.hashes


def record_path(target: Path) -> Path:
    """Where the record of a target stands."""
    return target.with_name(f".{target.name}{_SUFFIX}")


def read_record(target: Path) -> FetchRecord | None:
    """The record of what was fetched to `target`; `None` when there is none.

    Of one that was only announced, when it fits what stands there.
    """
    coming = _read(_coming_path(target))
    return coming if coming is not None and coming.fits(target) else _read(record_path(target))


def _coming_path(target: Path) -> Path:
    return target.with_name(f"{record_path(target).name}{_COMING}")


def _read(path: Path) -> FetchRecord | None:
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("version", None) != _VERSION:
        return None
    return read_fields(FetchRecord, raw)


def write_record(target: Path, record: FetchRecord) -> None:
    """Write the record of a target, atomically; from then on a second call knows it."""
    _write(record_path(target), record)
    remove_named(_coming_path(target))
    for path in (record_path(target), _coming_path(target)):
        sweep_orphans(target.parent, name=path.name)


def announce_record(target: Path, record: FetchRecord) -> None:
    """Say what is about to be put at `target`.

    The record's seal may be that of what will be renamed to `target`, or empty for a file whose hashes it has.
    """
    # Renaming changes it.
    seal = {name: value for name, value in record.seal.items() if name != "ctime_ns"}
    _write(_coming_path(target), replace(record, seal=seal))


def settle_record(target: Path, record: FetchRecord) -> None:
    """Finish what a run left that died once its work was in place; nothing to do after any other."""
    if _coming_path(target).exists():
        write_record(target, record if "deed" in record.seal else replace(record, seal=file_seal(target)))
        sweep_orphans(target.parent, name=target.name)


def _write(path: Path, record: FetchRecord) -> None:
    write_json(
        path,
        {
            "version": _VERSION,
            "address": record.address,
            "identity": record.identity.to_json(),
            "seal": record.seal,
            "hashes": list(record.hashes),
            "files": record.files,
            "nbytes": record.nbytes,
            "transport": record.transport,
        },
    )


def find_record(folder: Path, address: str) -> Path | None:
    """The file in `folder` that was fetched from `address`; `None` when there is none."""
    for path in sorted((*folder.glob(f".*{_SUFFIX}"), *folder.glob(f".*{_SUFFIX}{_COMING}"))):
        target = folder / path.name.removeprefix(".").removesuffix(_COMING).removesuffix(_SUFFIX)
        record = read_record(target)
        if record is not None and record.address == address:
            return target
    return None


def file_seal(file: Path) -> dict[str, int | str]:
    """The facts that change when anything writes to a file; and the boot, which may lose what was not forced out."""
    found = file.stat()
    return {
        "inode": found.st_ino,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "world": current_world(),
    }
