"""Decide what one call of `stage_dataset` does: reuse local data, restore the packed copy from the cache, or read the
source; and what reading takes. `plan_stage` prints the decision that `stage_dataset` executes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from colabstage.errors import DamagedPackError, DriveError, NewerFormatError, NotEnoughSpaceError, SourceError
from colabstage.h5.manifest import Manifest, is_whole, read_manifest
from colabstage.io.files import file_state
from colabstage.io.receipts import Seal, look_at
from colabstage.io.workspace import disk_use
from colabstage.machine.resources import free_space
from colabstage.pack.execute import OVERHEAD_BYTES, space_for
from colabstage.pack.job import PackJob, prepare_pack
from colabstage.pack.rows import BasePack, Takeover, closest, form_of, parse_rows, plan_takeover, read_rows
from colabstage.sources.identity import SourceIdentity
from colabstage.stage.cache import (
    OUTDATED,
    Cache,
    CachedPack,
    StageFigures,
    beyond_limit,
    check_disk_limit,
    copy_pack,
    exceeds,
    keep_rows,
    read_cached_rows,
    unusable,
)
from colabstage.stage.record import (
    LocalRecord,
    cache_name,
    files_problem,
    find_record,
    identity_of,
    pack_problem,
    seal_of,
    write_record,
)
from colabstage.stage.request import StageRequest, staged_folders
from colabstage.trees.listing import Tree, total_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.sources.identity import Freshness
    from colabstage.sources.opening import OpenedSource
    from colabstage.stage.source import SourceOnce, StageCall


Action = Literal["reuse", "restore", "stage"]


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    """`"reuse"` local data, `"restore"` the cached pack, or `"stage"` the source."""
    reasons: tuple[str, ...]
    """Why, in sentences, one for each place that was checked."""
    record: LocalRecord | None = None
    seal: Seal | None = None
    """The seal of the reused pack, taken before the pack was checked, so that a write during the check breaks it."""
    cached: CachedPack | None = None
    freshness: Freshness | None = None
    """How the source compares with what is used; `None` if it is to be compared during the copy."""
    in_part: bool = False
    """Whether the cached pack exceeds `disk_limit`, so that it stays there and is opened in part."""


def decide(call: StageCall, source: SourceOnce, cache: Cache, *, beside: bool = False) -> Decision:
    """Take the shortest way. Nothing is written, and nothing is read before it has to be.

    Local data is checked first, which costs a few `stat`s; then the cache, which is one sequential read; and only then
    the source. With `beside`, the source may be compared while a cached pack is copied.
    """
    local = decide_here(call, source)
    if local.action == "reuse":
        return local
    request = call.request
    if not request.wants_pack or cache.place is None:
        return replace(local, reasons=(*local.reasons, "Cache: none is used."))
    if request.refresh:
        return replace(local, reasons=(*local.reasons, f"Cache: not used, because of {why_again(request)}."))
    with call.report.timed("look in cache") as step, call.progress.quiet_step("look in cache"):
        cached = cache.find()
        identity = None if cached is None else cached.identity
        if cached is None or identity is None:
            step.note = why = cache.why_nothing()
        else:
            # Joining shards would take their space twice.
            limit = request.disk_limit
            in_part = limit is not None and (cached.in_shards or cached.manifest.size > limit)
            freshness = None if beside and not in_part else source.compare(identity)
            if freshness is None or freshness.same:
                found = f"found '{cached.label.rpartition('/')[2]}'"
                step.note = "; ".join(filter(None, (found, "" if freshness is None else freshness.seen)))
                reasons = (*local.reasons, f"Cache: '{cached.label}'.", *filter(None, (str(freshness or ""),)))
                return Decision("restore", reasons, cached=cached, freshness=freshness, in_part=in_part)
            step.note, why = OUTDATED, f"{cached.label} is of another state"
    return replace(local, reasons=(*local.reasons, f"Cache: {why}."))


def decide_here(call: StageCall, source: SourceOnce) -> Decision:
    """Reuse local data if it is complete and the source has not changed; otherwise say why not."""
    request, report, thorough = call.request, call.report, call.request.verify == "full"
    if request.refresh:
        return Decision("stage", (f"Here: not used, because of {why_again(request)}.",))
    record = find_record(request)
    if record is None:
        return Decision("stage", ("Here: it is not staged on this machine.",))
    seal, problem, freshness = seal_of(request) if request.wants_pack else {}, None, None
    with report.timed("look") as step, call.progress.quiet_step("look"):
        # The cheapest checks first, and the source only if everything else is right.
        if request.wants_pack:
            problem = pack_problem(request, record, thorough=thorough, cancellation=call.cancellation)
        if problem is None and request.wants_files:
            here = look_at(request.files_path)
            problem = files_problem(request, record, here, thorough=thorough)
            if here.changed and problem is None:
                report.note(f"'{request.files_path}' {here}, and is used as it is.")
        if problem is None:
            freshness = source.compare(record.identity)
            problem = None if freshness.same else freshness.seen or "the source has changed since it was staged"
        step.note = problem or "; ".join(filter(None, ("already staged; verified", freshness and freshness.seen)))
    if problem is not None:
        report.note(f"Staging again: {problem}.")
        return Decision("stage", (f"Here: {problem}.",))
    reasons = ("It is complete here.", *filter(None, (str(freshness),)), *beyond_limit(request))
    return Decision("reuse", reasons, record, seal, freshness=freshness)


def why_again(request: StageRequest) -> str:
    """Name what prevents this call from reusing what was staged or cached before."""
    held = ", ".join(request.options.incomparable)
    return f"what layout= or prepare= holds and cannot be compared ({held})" if held else "refresh=True"


# --- an earlier pack: of a changed source, with other splits, of a source that was moved: a new one takes over its rows


class Base(NamedTuple):
    """An earlier pack with the record of its rows, without which it is of no use, and where to get it."""

    pack: BasePack
    """The local pack, or where it will be."""
    manifest: Manifest
    is_own: bool
    """Whether it is of the same dataset, so that it is about to be replaced."""
    cached: CachedPack | None = None
    """Where it must be copied from first; `None` if it is local."""
    record: bytes = b""


Bases: TypeAlias = "Callable[[PackJob], Iterator[Base]]"


def find_bases(call: StageCall, source: OpenedSource, cache: Cache, job: PackJob) -> Iterator[Base]:
    """Yield complete packs with their row records: that of this dataset, then others in the form of the planned one."""
    request, own, form = call.request, call.request.pack_path, form_of(job)
    # Plain files are fetched anyway, and packed from the local disk; workers read what they pack.
    if request.refresh or request.wants_files or call.executor is not None:
        return
    packs = [folder / f"{folder.name}.h5" for folder in (staged_folders(request.folder.parent) if form else ())]
    others = closest({pack: disk_use(pack) for pack in packs}, job.plan.nbytes)
    for pack in filter(Path.is_file, dict.fromkeys([own, *others])):
        with contextlib.suppress(NewerFormatError):
            manifest = read_manifest(pack)
            rows = None if manifest is None else read_rows(pack, manifest)
            if manifest is not None and rows is not None and (pack == own or rows.form == form):
                same_source = _is_same_source(manifest, source, request)
                yield Base(BasePack(pack, rows, same_source), manifest, manifest.key == request.key)
    # Under a limit, the disk would have to hold both; and there is one place for a copy.
    if request.cache_dir is None or request.disk_limit is not None or own.exists():
        return
    for cached in cache.find_each(like=job.plan.nbytes if form else 0):
        recorded, is_own = cached.identity, cached.manifest.key == request.key
        is_alike = recorded is not None and (recorded.files, recorded.nbytes) == source.take_state()
        same_source = _is_same_source(cached.manifest, source, request)
        # Reading each record would take long on a mount.
        record = read_cached_rows(cached) if is_own or is_alike or same_source else None
        if record is not None and (rows := parse_rows(record, cached.manifest)) is not None:
            yield Base(BasePack(own, rows, same_source), cached.manifest, is_own, cached, record)


def _is_same_source(manifest: Manifest, source: OpenedSource, request: StageRequest) -> bool:
    """Return whether a pack is of the same source, or of a local folder that has another name now."""
    recorded = SourceIdentity.from_json(manifest.identity)
    if recorded is None or recorded.address == request.source.address:
        return recorded is not None
    now = source.identify() if recorded.inodes else None
    return now is not None and (recorded.inodes, recorded.times) == (now.inodes, now.times)


def bring_base(call: StageCall, base: Base, spool: Path) -> BasePack | None:
    """Return an earlier pack, verified, after copying it from the cache if needed; `None` if that fails.

    `spool`: where the copy of another dataset's pack may be, so that no reader ever finds it under this one's name.
    """
    request, cached = call.request, base.cached
    if cached is None:
        # Hashed, because nothing else would notice damage: the new pack's own hashes vouch for whatever is copied. A
        # pack that cannot be read counts as damaged; the source may still be readable.
        with contextlib.suppress(OSError), call.report.timed("verify earlier pack", unit="B") as step:
            state, step.amount = file_state(base.pack.path), base.manifest.size
            if is_whole(base.pack.path, base.manifest, call.cancellation):
                return base.pack._replace(state=state)
        call.report.note("The earlier pack is damaged, so everything is read")
        return None
    try:
        with call.report.timed("copy earlier pack", unit="B") as step:
            target = request.pack_path if base.is_own else spool / request.pack_path.name
            size, kept = cached.place.ask(lambda: copy_pack(call, cached, target, cancellation=call.cancellation))
            step.amount = size - kept
    except (DamagedPackError, NotEnoughSpaceError, SourceError, DriveError) as error:
        call.report.note(unusable(error))
        return None
    if not base.is_own:
        return base.pack._replace(path=target, state=file_state(target))
    keep_rows(request, cached, base.record)
    # It is a complete pack of an earlier state, and recorded as one until the new one takes its place.
    identity = identity_of(cached.manifest)
    if identity is not None:
        write_record(request, LocalRecord(request.key, identity, seal_of(request), False, True, cache_name(request)))
    return base.pack._replace(state=file_state(base.pack.path))


# --- what reading the source takes ---


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading the source takes, known before anything is written."""

    tree: Tree
    job: PackJob | None
    """How its files are packed, and what is taken over from an earlier pack; `None` if only plain files are wanted."""
    figures: StageFigures
    room: int
    """The local space that the pack may take, including what an interrupted run has written of it."""
    in_shards: bool = False
    """Whether it exceeds `disk_limit`, and is packed into the cache shard by shard."""
    base: Base | None = None
    away: CachedPack | None = None
    """The cached pack of an earlier state; `None` if there is none, or one is local."""
    note: str = ""
    """A sentence on what is taken over from an earlier pack, or why nothing is; "" without an earlier pack."""
    in_place: bool = False
    """Whether only the few members that are read are fetched from an archive, instead of copying it."""


def plan_reading(request: StageRequest, source: OpenedSource, spool: Path, *, packs: bool, bases: Bases) -> Reading:
    """Plan everything that is made from a source, as far as possible without writing.

    `spool`: where an archive inside an archive may be unpacked. `packs`: whether a pack is made. `bases`: returns
    earlier packs; rows of the first that has half of the samples are taken over, or else of this dataset's own.
    """
    tree, room = source.open_tree(spool), space_for(request.pack_path)
    job = prepare_pack(tree, request.options, free_bytes=room) if packs else None
    reading = Reading(tree, job, staging_figures(request, source, tree, job), room)
    if job is not None and exceeds(request, reading.figures):
        if has_to_come(source):
            check_disk_limit(request, reading.figures)
        return replace(reading, in_shards=True)
    if job is None:
        return reading
    chosen, away = _choose_base(job, bases)
    reading = replace(reading, away=away)
    if chosen is None:
        return reading
    base, takeover = chosen
    name = base.pack.path.name if base.cached is None else base.cached.label.rpartition("/")[2]
    note = str(takeover) if base.is_own else f"{takeover}. It is '{name}', which has the same files"
    if not takeover.taken:
        return replace(reading, note=note)
    if base.cached is not None:
        needed = reading.figures.room_bytes + base.cached.figures.peak_bytes
        if 2 * takeover.taken < len(job.table) or needed > free_space(request.folder):
            note = "The earlier pack in the cache has too few of the samples, or no room here, so all are read"
            return replace(reading, note=note)
        note += ". It is copied here from the cache first"
    figures, cost = replace(reading.figures, source_bytes=takeover.nbytes), source.cost
    in_place = cost.opens_at_once and 2 * takeover.nbytes < cost.archive_bytes
    if in_place:
        figures = replace(figures, archive_bytes=0, mount_bytes=0)
    planned = replace(job, takeover=takeover)
    return replace(reading, job=planned, figures=figures, base=base, note=note, in_place=in_place)


def _choose_base(job: PackJob, bases: Bases) -> tuple[tuple[Base, Takeover] | None, CachedPack | None]:
    """Return the first pack that has half of the samples, or else this dataset's own; and its own in the cache."""
    chosen, away = None, None
    for one in bases(job):
        takeover = plan_takeover(job, one.pack)
        # To hash, or to copy, an earlier pack takes the time of all its rows.
        has_half = takeover.taken and 2 * takeover.taken >= len(job.table)
        if has_half or one.is_own:
            chosen = one, takeover
        away = one.cached if one.is_own else away
        if has_half:
            break
    return chosen, away


def staging_figures(
    request: StageRequest, source: OpenedSource, tree: Tree | None = None, job: PackJob | None = None
) -> StageFigures:
    """Add up what staging moves, as far as it is known; `tree` is `None` for a source that cannot be listed yet."""
    cost = source.cost
    # A source that is listed in place will be packed from there.
    stays = tree is None and cost.is_walked
    return StageFigures(
        source_bytes=source.take_state()[1],
        archive_bytes=0 if stays else cost.archive_bytes,
        pack_bytes=0 if job is None else job.plan.nbytes,
        spare_bytes=0 if job is None else OVERHEAD_BYTES,
        # The unpacked total: plain files take that, however small their archive is.
        files_bytes=total_size(tree.entries) if tree is not None and request.wants_files else 0,
        mount_bytes=0 if stays else cost.mount_bytes,
    )


def has_to_come(source: OpenedSource) -> bool:
    """Return whether the whole source must be local before a pack can be planned, or made shard by shard."""
    return not source.cost.opens_at_once or source.cost.unpacks_first
