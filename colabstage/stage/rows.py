"""The record of a pack's rows (`pack/rows`) in the cache. It goes there before its pack, so that a pack has its record
whenever a process is killed; purging removes it first, so that a record is never left alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from colabstage.errors import ColabstageError
from colabstage.h5.manifest import read_manifest
from colabstage.io.ownership import atomic_path, sweep_orphans
from colabstage.machine.mounts import drive_root
from colabstage.pack.rows import is_rows, is_rows_name, parse_rows, read_rows, rows_name
from colabstage.sources.remote_files import read_small_file
from colabstage.stage.places import FolderPlace

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Progress
    from colabstage.stage.places import CachePlace


def read_cached_rows(place: CachePlace, pack: str, manifest: Manifest) -> bytes | None:
    """Return the record of a pack in the cache; `None` where it cannot be had, as it only saves reading."""

    def read() -> bytes | None:
        (found,) = place.look([rows_name(pack, manifest)])
        return None if found is None or not found.is_whole else read_small_file(found.source)

    with contextlib.suppress(ColabstageError, OSError):
        return place.ask(read)
    return None


def keep_rows(pack: Path, manifest: Manifest, record: bytes | None) -> None:
    """Put a record from the cache beside its pack on this machine."""
    if record is not None and parse_rows(record, manifest) is not None:
        with atomic_path(pack.with_name(rows_name(pack.name, manifest)), replaces=is_rows) as temp:
            temp.write_bytes(record)


def publish_rows(pack: Path, place: CachePlace, progress: Progress) -> None:
    """Copy the record of a local pack to the cache."""
    manifest = read_manifest(pack)
    if manifest is not None and read_rows(pack, manifest) is not None:
        name = rows_name(pack.name, manifest)
        place.publish(pack.with_name(name), name, keep_previous=False, progress=progress)


def discard_rows(place: CachePlace, pack: str, *, every: bool = False) -> None:
    """Remove the records of packs that are no longer in a cache under this name, as far as possible; or `every` one."""
    with contextlib.suppress(ColabstageError, OSError):
        (there,) = [None] if every else place.look([pack])
        kept = None if there is None else rows_name(pack, there.manifest)
        stale = [name for name in place.names() if is_rows_name(name, pack) and name != kept]
        for one in place.look(stale):
            if one is not None:
                place.discard(one)
        # What was being removed, or copied there, when a process was killed has a name that is not looked for again.
        if isinstance(place, FolderPlace):
            sweep_orphans(place.folder, prefix=f"{pack}.", empty=drive_root(place.folder) is not None)
