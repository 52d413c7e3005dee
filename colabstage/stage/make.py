"""Make a source local in the forms that were asked for: plain files, a pack, or both; or open a pack in part.

Everything is listed and planned before anything is written. Then archives begin to arrive, and are packed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.info import read_info
from colabstage.h5.manifest import remove_manifest
from colabstage.h5.parts import joined_info
from colabstage.io.files import RetryPolicy, make_folder
from colabstage.io.ownership import check_replaceable, remove_empty, sweep_orphans
from colabstage.io.progress import cancellation_of
from colabstage.io.units import format_bytes, format_count
from colabstage.io.workspace import open_spool, put_back
from colabstage.load.partial import open_partial
from colabstage.machine.resources import check_space, free_space
from colabstage.pack.execute import pipeline_limits, run_pack, space_for
from colabstage.pack.job import prepare_pack
from colabstage.pack.shards import pack_by_executor
from colabstage.sources.tree import fetch_folder
from colabstage.stage.dataset import StagedDataset
from colabstage.stage.record import (
    SourceListingError,
    StagedFiles,
    check_listing,
    files_record,
    files_staged,
    write_record,
)
from colabstage.stage.report import StageFigures, StageReport
from colabstage.stage.request import check_disk_limit, exceeds
from colabstage.stage.shards import pack_into_cache, plan_without_room
from colabstage.trees.entries import total_size
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from colabstage.io.progress import Cancellation, Progress
    from colabstage.load.partial import PartialPack
    from colabstage.pack.job import PackJob
    from colabstage.pack.stream import PackStream
    from colabstage.sources.opening import OpenSource
    from colabstage.stage.cache import Cache, CachedPack
    from colabstage.stage.report import Origin
    from colabstage.stage.request import StageRequest
    from colabstage.trees.tree import Tree

_SPOOL = "spool"


@dataclass(frozen=True, slots=True)
class StageCall:
    """What all steps of one call of `stage_dataset` need."""

    request: StageRequest
    """What was asked for."""
    progress: Progress
    """Where the steps are shown."""
    executor: Executor | None = None
    """The executor whose workers pack; `None` for this process."""
    report: StageReport = field(default_factory=StageReport)
    """What has been done so far."""
    stream: PackStream | None = None
    """Lets readers in before everything is packed; `None` where they wait for the whole pack."""
    let_in: Callable[[PartialPack], object] | None = None
    """Is told of a pack that is copied from the cache, once rows of it can be waited for; `None` as for `stream`."""

    @property
    def cancellation(self) -> Cancellation:
        """Return the cancellation of the call's progress."""
        return cancellation_of(self.progress)


def staging_figures(request: StageRequest, source: OpenSource, tree: Tree | None, job: PackJob | None) -> StageFigures:
    """Add up what staging moves, as far as it is known; `tree` is `None` for a source that cannot be listed yet."""
    # The sum of what is unpacked: plain files take that, however small their archive is.
    tree_bytes = 0 if tree is None else total_size(tree.entries)
    return StageFigures(
        source_bytes=source.extent[1],
        # What is looked through where it is will be packed from there.
        archive_bytes=0 if tree is None and source.is_walked else source.archive_bytes,
        pack_bytes=0 if job is None else job.plan.nbytes,
        files_bytes=tree_bytes if request.wants_files else 0,
        mount_bytes=0 if tree is None and source.is_walked else source.mount_bytes,
    )


def has_to_come(source: OpenSource) -> bool:
    """Tell whether all of a source has to be here before a pack can be planned, or made shard by shard."""
    return not source.opens_at_once or source.unpacks_first


def _refuse_executor(request: StageRequest, figures: StageFigures) -> NoReturn:
    assert request.disk_limit is not None
    msg = (
        f"Packing '{request.source.name}' takes {format_bytes(figures.peak_bytes)} of the local disk, and disk_limit="
        f"{format_bytes(request.disk_limit)}. It can be packed in shards, but not by the workers of executor=. Leave "
        "out executor=. Or let the workers pack into the place that it is to be read from: "
        'pack_dataset(source, "s3://bucket/NAME.h5", shards=40, executor=…), and dataset_h5(report.path, disk_limit=…).'
    )
    raise NotEnoughSpaceError(msg)


def make_local(call: StageCall, source: OpenSource, cache: Cache | None = None) -> StagedFiles | CachedPack | None:
    """Make the source local in the forms that were asked for.

    Args:
        call: what was asked for.
        source: where it comes from.
        cache: where a pack that is larger than the disk limit goes, in shards; `None` when the pack is here already and
            only plain files are wanted.

    Returns:
        The plain files, `None` when none were asked for; of what is too large for the disk limit the set of its shards.

    Raises:
        TargetExistsError: there is something else in the place of the plain files, or one of them was changed.
        Exception: as `stage_dataset`; each form that existed before is unchanged.
    """
    request, report = call.request, call.report
    wants_pack = cache is not None and request.wants_pack
    make_folder(request.folder)
    try:
        if request.wants_files:
            # A run that died while it exchanged old files for new left the old ones under another name.
            put_back(request.files_path)
            check_replaceable(
                request.files_path, "Move what is yours out of it, or delete it if nothing there is, then stage again."
            )
        # Not the leftovers of the pack: packing continues what an interrupted run has finished.
        sweep_orphans(request.folder, name=request.copy_path.name)
        with open_spool(request.folder / _SPOOL) as spool:
            make_folder(spool)
            large = stream = None
            with report.timed("plan", unit="files", moves=False) as step:
                # Before anything comes or is unpacked.
                if request.disk_limit is not None and has_to_come(source):
                    unknown = source.unpacks_first
                    check_disk_limit(request, None if unknown else staging_figures(request, source, None, None))
                if request.checksum is not None:
                    # Before the listing is believed: a wrong file may well have one.
                    source.verify(request.checksum)
                tree = source.open_tree(spool)
                step.amount = len(tree.entries)
                # `space_for` counts what an interrupted pack has written already as free.
                room = space_for(request.pack_path)
                job = prepare_pack(tree, request.options, free_bytes=room) if wants_pack else None
                report.found = () if job is None else job.table.summary()
                figures = staging_figures(request, source, tree, job)
                if job is not None and exceeds(request, figures):
                    if has_to_come(source):
                        check_disk_limit(request, figures)
                    if call.executor is not None:
                        _refuse_executor(request, figures)
                    large = plan_without_room(tree, request, job)
                else:
                    # What an interrupted run has written is part of the figures, and does not need its space twice.
                    in_place = source.kept_bytes + (room - free_space(request.folder) if wants_pack else 0)
                    # Now, with everything known and nothing written: a disk that is full after an hour helps nobody.
                    needed = max(0, figures.peak_bytes - in_place)
                    check_space(request.folder, needed, f"Staging '{request.source.name}'")
                    report.note(*source.notes, *tree.notes)
                    # Before the source starts, so that its first bytes are those which the first epoch needs.
                    stream = None if job is None else _stream_for(call, source, job)
            if large is not None and cache is not None:
                return pack_into_cache(call, source, large, cache)
            # With an executor only its workers read, so a copy in this process would be made for nothing.
            if call.executor is None or request.wants_files:
                source.start()
            files = _fetch_files(call, source, tree) if request.wants_files else None
            if job is not None:
                _make_pack(call, source, job, stream)
        return files
    finally:
        remove_empty(request.folder)  # after an error, unless something was kept for the next try; and of shards


def _stream_for(call: StageCall, source: OpenSource, job: PackJob) -> PackStream | None:
    """Plan the stream that lets readers in, and fetch the source in its order; return `None` where readers wait."""
    if call.stream is None:
        return None
    obstacle = call.stream.obstacle(job)
    # Waiting is slower and gives the same pack, so it is a note and no error.
    if obstacle is not None:
        call.report.note(f"streaming=True had to wait for the whole pack: {obstacle}.")
        return None
    call.stream.plan(job, source)
    return call.stream


def _fetch_files(call: StageCall, source: OpenSource, tree: Tree) -> StagedFiles:
    """Fetch the plain files beside the previous ones, then replace those."""
    request, report = call.request, call.report
    here = files_staged(request, source.identity)
    if here is not None:
        report.note("The plain files were brought here by an earlier run that was interrupted after them.")
        return here
    total = total_size(tree.entries)
    with report.timed("fetch files", unit="B") as timing, call.progress.step("fetch", total=total, unit="B") as step:
        fetched = fetch_folder(
            tree,
            request.files_path,
            fingerprint=source.identity.fingerprint,
            limits=pipeline_limits(tree, slow=source.reads_slowly),
            step=step,
            cancellation=call.cancellation,
            policy=RetryPolicy(),
            # Called before the exchange of names, the last moment at which the previous files are still in place.
            announce=lambda _: check_listing(source),
        )
        timing.amount, timing.note = total - fetched.kept_bytes, format_count(fetched.files, "files")
        if fetched.kept_bytes:
            timing.note += f"; {format_bytes(fetched.kept_bytes)} were already here"
    files = StagedFiles(fetched.files, fetched.nbytes, fetched.deed)
    # If packing is interrupted, the files need not be fetched again.
    write_record(request, files_record(request, source.identity, files))
    return files


def _make_pack(call: StageCall, source: OpenSource, job: PackJob, stream: PackStream | None) -> None:
    request, report, executor = call.request, call.report, call.executor
    slow = source.reads_slowly
    if request.wants_files and executor is None:
        # The files have just arrived: the local ones are faster than the source.
        job = prepare_pack(FolderTree(request.files_path), request.options, free_bytes=space_for(request.pack_path))
        slow = False

    with report.timed("pack", unit=job.table.unit) as step:
        if executor is None:
            done = run_pack(
                job,
                request.pack_path,
                slow=slow,
                progress=call.progress,
                cancellation=call.cancellation,
                key=request.key,
                identity=lambda: source.identity.to_json(),  # noqa: PLW0108 - that of the end
                address=request.address,
                stream=stream,
            )
        else:
            # Workers open the data by its path: those on other machines cannot share this process's open source.
            place = request.files_path if request.wants_files else request.opened_path
            assert place is not None
            done = pack_by_executor(
                place,
                request.pack_path,
                request.options,
                executor,
                progress=call.progress,
                key=request.key,
                identity=source.identity.to_json(),
                address=request.address,
            )
        try:
            # Only now, because the missing part of a listing is noticed by listing again, which takes as long as the
            # first time.
            check_listing(source)
        except SourceListingError:
            remove_manifest(request.pack_path)  # so that a pack of half a source does not count
            raise
        step.amount = sum(done.samples.values()) - done.resumed
        said = [f"{done.encoding}: {done.reason}", format_count(done.readers, "readers")]
        if source.archive_bytes:
            said.append("while the archive was being copied here")
        if done.resumed:
            said.append(f"{done.resumed:,} were already in place")
        step.note = "; ".join(said)
    report.skipped = done.skipped
    report.note(*job.table.notes)


def open_in_part(call: StageCall, cached: CachedPack, *, origin: Origin = "cache") -> StagedDataset:
    """Open a pack in part: no more than `disk_limit` of it is ever on the local disk.

    Raises:
        Exception: as `open_partial`.
    """
    request, report, limit = call.request, call.report, call.request.disk_limit
    assert limit is not None
    report.origin = origin
    report.skipped = cached.manifest.skipped
    with (
        report.timed("open in part", unit="B") as step,
        call.progress.step("open in part", total=None, unit="B") as shown,
    ):
        part = open_partial(
            [one.path for one in cached.files],
            limit,
            local_dir=request.folder.parent,
            manifests=[one.manifest for one in cached.files],
            step=shown,
        )
        step.amount = part.figures["fetched"]
        step.note = f"index and labels; never more than {format_bytes(limit)} of {format_bytes(cached.manifest.size)}"
    report.note(
        f"The pack stays in the cache ('{cached.label}') and is read from there block by block; keep it there and "
        "reachable while loaders run."
    )
    # Looked up when the report is shown: figures grow as long as loaders read.
    report.arrival = partial(getattr, part, "figures")
    info = joined_info([read_info(path) for path in part.paths])
    return StagedDataset(path=part.path, files=None, report=report, info=info, part=part)
