"""The earlier pack of a source that has changed, here or in the cache: a new one takes its rows over.

A pack without the record of its rows (`pack/rows`) is of no use here, and the source is read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import DamagedPackError, DriveError, NewerFormatError, NotEnoughSpaceError, SourceError
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.io.units import format_bytes
from colabstage.machine.resources import free_space
from colabstage.pack.rows import parse_rows, read_rows
from colabstage.pack.takeover import BasePack, Takeover, plan_takeover, state_of
from colabstage.stage.cache import CachedPack, copy_pack, keep_rows, read_cached_rows
from colabstage.stage.record import LocalRecord, cache_name, identity_of, seal_of, write_record

if TYPE_CHECKING:
    from colabstage.h5.manifest import Manifest
    from colabstage.pack.job import PackJob
    from colabstage.stage.cache import Cache
    from colabstage.stage.request import StageRequest
    from colabstage.stage.source import StageCall


class Base(NamedTuple):
    """An earlier pack, and how its rows are had."""

    pack: BasePack
    """The pack on this machine, or its place there."""
    manifest: Manifest
    """What it was made from, and the hash of each block."""
    cached: CachedPack | None = None
    """Where it has to be copied from first; `None` where it is here."""
    record: bytes = b""
    """Its record, of one in the cache."""


class Update(NamedTuple):
    """What is made of an earlier pack."""

    base: Base | None = None
    """The pack that rows are taken from; `None` where none are."""
    takeover: Takeover | None = None
    """What is taken over and what is read; `None` as for `base`."""
    note: str = ""
    """The same in a sentence, or why nothing is taken over; "" where there is no earlier pack."""


def find_base(call: StageCall, cache: Cache) -> Base | None:
    """Return the pack of an earlier state of the same source with the same options, whole and with its record."""
    request = call.request
    # Plain files are fetched anyway, and packed from here; workers read what they pack.
    if request.refresh or request.wants_files or call.executor is not None:
        return None
    if request.pack_path.exists():
        return _find_here(request)
    # The disk would have to hold both.
    if request.cache_dir is None or request.disk_limit is not None:
        return None
    cached = cache.find()
    if cached is None or cached.in_shards:
        return None
    record = read_cached_rows(cached)
    rows = None if record is None else parse_rows(record, cached.manifest)
    return (
        None
        if record is None or rows is None
        else Base(BasePack(request.pack_path, rows), cached.manifest, cached, record)
    )


def _find_here(request: StageRequest) -> Base | None:
    with contextlib.suppress(NewerFormatError):
        manifest = read_manifest(request.pack_path)
        rows = None if manifest is None or manifest.key != request.key else read_rows(request.pack_path, manifest)
        return None if manifest is None or rows is None else Base(BasePack(request.pack_path, rows), manifest)
    return None


def plan_update(request: StageRequest, base: Base | None, job: PackJob, *, peak_bytes: int) -> Update:
    """Decide what is taken over of an earlier pack; `peak_bytes`: what staging takes of the disk."""
    if base is None:
        return Update()
    takeover = plan_takeover(job, base.pack.rows)
    if not takeover.taken:
        return Update(None, None, str(takeover))
    if base.cached is None:
        return Update(base, takeover, str(takeover))
    # Copying it takes the time of all its rows.
    if 2 * takeover.taken < len(job.table):
        return Update(None, None, "The earlier pack in the cache has less than half of the samples, so all are read")
    needed = peak_bytes + base.cached.place.copies * base.cached.manifest.size
    free = free_space(request.folder)
    if needed > free:
        room = f"{format_bytes(needed)}, and {format_bytes(free)} are free"
        note = f"There is no room for the earlier pack beside the new one, which takes {room}, so all is read"
        return Update(None, None, note)
    return Update(base, takeover, f"{takeover}. It is copied here from the cache first")


def bring_base(call: StageCall, base: Base) -> BasePack | None:
    """Verify an earlier pack, copied from the cache if it is not here, and return it; `None` where that fails."""
    request, cached = call.request, base.cached
    if cached is None:
        # Hashed, as nothing else would tell: the new pack's own hashes vouch for whatever is copied. One that cannot be
        # read is as good as damaged, and the source may well be read.
        with contextlib.suppress(OSError), call.report.timed("verify earlier pack", unit="B") as step:
            state, step.amount = state_of(base.pack.path), base.manifest.size
            if is_whole(base.pack.path, base.manifest, call.cancellation):
                return base.pack._replace(state=state)
        call.report.note("The earlier pack is damaged, so everything is read")
        return None
    try:
        with call.report.timed("copy earlier pack", unit="B") as step:
            size, kept = cached.place.ask(lambda: copy_pack(call, cached, cancellation=call.cancellation))
            step.amount = size - kept
    except (DamagedPackError, NotEnoughSpaceError, SourceError, DriveError) as error:
        call.report.note(f"The earlier pack in the cache cannot be used: {error}")
        return None
    keep_rows(request.pack_path, cached.manifest, base.record)
    # It is a complete pack of an earlier state, and recorded as one until the new one takes its place.
    identity = identity_of(cached.manifest)
    if identity is not None:
        write_record(request, LocalRecord(request.key, identity, seal_of(request), False, True, cache_name(request)))
    return base.pack._replace(state=state_of(base.pack.path))
