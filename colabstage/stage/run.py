"""`stage_dataset`: execute the decision of `decide`.

Everything made from the source, plain files, a pack or both, is planned before anything is written. Then archives begin
to arrive, and are packed meanwhile.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from colabstage.errors import ArchiveError, DecodeError, NotEnoughSpaceError, SourceChangedError, SourceReadError
from colabstage.h5.info import found_in, read_info
from colabstage.io.boundary import GOES_ON, public, typed_errors
from colabstage.io.display import resolve_progress
from colabstage.io.files import check_own_folder, clear_lock, local_lock, make_folder, make_own_folder
from colabstage.io.pipeline import in_thread
from colabstage.io.receipts import sweep_receipts
from colabstage.io.units import format_bytes, format_count
from colabstage.io.workspace import find_orphans, open_spool, put_back, remove_empty, sweep_orphans
from colabstage.machine.mounts import required_to_stay, run_with_one_remount
from colabstage.machine.resources import check_space, free_space
from colabstage.pack.arrival import MemberRanges, PackStream
from colabstage.pack.execute import PackReport, PackRun, pipeline_limits, space_for
from colabstage.pack.job import PackJob, listed_job, prepare_pack
from colabstage.pack.rows import BasePack, sweep_rows
from colabstage.pack.shards import pack_joined
from colabstage.sources.opening import OpenedSource, SourceListingError, sweep_copies
from colabstage.sources.parse import SourceArgument, parts_of, paths_of
from colabstage.sources.to_folder import write_folder
from colabstage.stage.cache import (
    LESS_ROOM,
    Cache,
    CachedPack,
    beyond_limit,
    check_disk_limit,
    discard_rows,
    find_published,
    is_published,
    keep_rows,
    on_wrong_disks,
    open_in_part,
    publish_pack,
    read_cached_rows,
    restore,
)
from colabstage.stage.dataset import StagedDataset, StageReport, which_file
from colabstage.stage.decide import (
    Decision,
    Reading,
    bring_base,
    decide,
    decide_here,
    find_bases,
    has_to_come,
    plan_reading,
    staging_figures,
    why_again,
)
from colabstage.stage.publish import PublishReport, discard_version
from colabstage.stage.record import (
    LocalRecord,
    are_files_staged,
    cache_name,
    check_targets,
    files_receipt,
    files_record,
    renumbered,
    seal_of,
    set_aside,
    write_record,
)
from colabstage.stage.request import (
    SOURCE_REMEDIES,
    StageArguments,
    StageRequest,
    check_for_streaming,
    check_for_workers,
    lock_path,
    make_request,
)
from colabstage.stage.shards import pack_into_cache, plan_without_room
from colabstage.stage.source import SourceOnce, StageCall
from colabstage.stage.streaming import BackgroundPack
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import Tree, total_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from colabstage.io.progress import Progress
    from colabstage.load.partial import PartialPack
    from colabstage.pack.options import PackOptions
    from colabstage.sources.identity import Freshness


_SPOOL = "spool"
# How long a second notebook waits for one that stages the same dataset; then it does the work itself.
_LOCK_TIMEOUT_S = 1800.0


@public(
    make_request,
    arguments=StageArguments,
    remedies=SOURCE_REMEDIES,
    reads=("source",),
    writes=("local_dir", "cache_dir"),
    stopped=GOES_ON,
)
def stage_dataset(
    source: SourceArgument,
    *,
    wait: bool = True,
    streaming: bool = False,
    executor: Executor | None = None,
    progress: bool | Progress = True,
    options: PackOptions | None = None,
    **arguments: Unpack[StageArguments],
) -> StagedDataset:
    r"""Make a dataset local and ready to train on, in the quickest way.

    If it is already staged, return at once. If the cache has a packed copy, copy and verify it. Otherwise read the
    source with many reads in flight, decode once, write one HDF5 file, and publish that to the cache for the next
    session.

        data = stage_dataset("/content/drive/MyDrive/kitti.zip", image_size=(256, 256))
        train = data.loader("train", batch_size=64, device="cuda")

    Args:
        source: where the dataset is. A folder, an archive, or a pattern such as `"part-*.zip"`, on this machine or on a
            mounted Google Drive; a share link of Google Drive, or its id; an address: `https://…`, or one that fsspec
            knows (`s3://`, `gs://`, `az://`, `hf://`, `ftp://`, `sftp://` …), of an archive or a folder;
            `kaggle://owner/dataset`; a `Tree`; or a list of these, which form one dataset together. An archive is
            packed while it arrives and never extracted. One file of arrays, records or tokens (.npy, .h5, .tfrecord,
            .parquet, .bin, .txt) is a dataset too, and so is a local .csv with the paths of images beside it.
        wait: `False` returns before the copy to the cache is finished; `data.wait_published()` waits for it.
        streaming: `True` returns as soon as the pack is planned, and packs in the background, in the order in which
            the first epoch needs the rows. `data.loader(…)` waits only for the rows of the next batch, `data.wait()`
            for all, and `data.ready` says how much has arrived. The finished pack is the same, byte for byte. A pack
            in the cache is copied in the same way.
        executor: a `concurrent.futures.Executor` whose workers each read and decode a part of the samples; the parts
            are joined into the same file. Workers have to be able to open the source by its path, except with
            `keep="both"`; on other machines they need `local_dir` too. While it runs, it needs space for two packs.
        progress: `True` for bars, `False` for silence, or a `Progress`.
        options: how the pack is made, in one value, for several datasets; arguments given by name take precedence.
        **arguments: those of `colabstage.options.PackOptions`; and `keep`, `local_dir`, `cache_dir`, `refresh`,
            `verify`, `hash` and `disk_limit`, as of `make_request`.

    Returns:
        A `StagedDataset`: `data[split]`, `data.loader(split, batch_size)`, `.splits`, `.classes`, `.path` of the pack,
        `.files` and `.report`.

    Raises:
        SourceNotFoundError, SourceReadError, DriveDisconnectedError: the source cannot be read.
        DriveNotMountedError: the source, `local_dir` or `cache_dir` is on Drive, and none is mounted there.
        SourceAccessError: a login, a permission or a licence is missing. DriveQuotaError: Drive refuses for now.
        WebPageError: a web page came in place of the data. ChecksumMismatchError: the file does not have this `hash`.
        MissingDependencyError: this kind of source needs a package; the message has the install line.
        ArchiveError: the archive is damaged, unsafe, or not an archive.
        LayoutError: the files form no dataset in any layout. DecodeError: an image cannot be decoded.
        NotEnoughSpaceError: it would not fit; raised before work begins, with figures.
        TargetExistsError: something that would be replaced is not as colabstage wrote it.
        TargetNotWritableError, OptionError: an argument cannot work.

    Whatever is raised, what was staged or cached before is unchanged.
    """
    request = make_request(source, options=options, **arguments)
    if executor is not None:
        check_for_workers(request)
    shown = resolve_progress(progress)
    if streaming:
        check_for_streaming(request, has_executor=executor is not None)
        report = StageReport()

        def work(progress: Progress, stream: PackStream, let_in: Callable[[PartialPack], object]) -> StagedDataset:
            return _stage_watched(StageCall(request, progress, report=report, stream=stream, let_in=let_in), wait=False)

        data = BackgroundPack(work, report, shown).start()
    else:
        data = _stage_watched(StageCall(request, shown, executor), wait=wait)
    for doubt in data.report.doubts:
        warnings.warn(doubt, UserWarning, stacklevel=3)
    return data


def _stage_watched(first: StageCall, *, wait: bool) -> StagedDataset:
    """Do one call, and repeat it once if the Drive that it needs dies meanwhile and can be mounted again."""
    request, notes = first.request, list[str]()
    # Each attempt opens everything again: nothing may stay open on a mount that has died.
    calls = chain([first], repeat(replace(first, report=StageReport())))

    def work() -> StagedDataset:
        with required_to_stay(request.folder):
            return run_call(next(calls), wait=wait)

    # Typed again here, because with `streaming` this runs in a thread, and its error reaches readers too.
    with typed_errors(reads=paths_of(request.source), writes=(request.folder, request.cache_dir)):
        staged = run_with_one_remount(work, *request.touched_paths, notice=notes.append)
    staged.report.note(*notes)
    return staged


def run_call(call: StageCall, *, wait: bool) -> StagedDataset:
    request, cache = call.request, Cache(call.request)
    for folder in (request.folder.parent, request.folder):
        check_own_folder(folder)
    # A process that died between two renames has left the previous files under another name.
    put_back(request.files_path)
    lock = lock_path(request.folder)
    with SourceOnce(call) as source:
        decision = decide_here(call, source)
        if decision.record is not None:
            staged = _reuse(call, source, cache, decision)
            clear_lock(lock)
            return staged
        # Nothing is written yet, so this is the moment to report an unreadable source. With the pack in the cache the
        # source may not be needed at all, and listing it takes time.
        looks = request.cache_dir is not None and not request.refresh and not request.wants_files
        if not looks or cache.find() is None:
            source.open(reads_next=True)
        # Not if everything is already local: that call should take no longer than a look at the source.
        call.report.note(*on_wrong_disks(request))
        make_own_folder(request.folder.parent)

        def wait_for(other: str) -> None:
            call.report.note(other)
            cache.forget()

        with local_lock(lock, timeout_s=_LOCK_TIMEOUT_S, notice=wait_for, cancellation=call.cancellation):
            # Decided again: the process that held the lock before may have done the work.
            put_back(request.files_path)
            decision = decide(call, source, cache, beside=True)
            if decision.record is not None:
                return _reuse(call, source, cache, decision)
            if decision.cached is not None and decision.in_part:
                return open_in_part(call, decision.cached)
            call.report.note(*(set_aside(request.pack_path) if request.wants_pack else ()))
            cached = decision.cached
            restored = None if cached is None else _restore(call, source, cached, decision.freshness)
            return restored or _stage_source(call, source, cache, wait=wait)


def _reuse(call: StageCall, source: SourceOnce, cache: Cache, decision: Decision) -> StagedDataset:
    """Return what is staged on this machine, and publish it if that is not done yet."""
    request, caches = call.request, call.request.wants_pack and call.request.cache_dir is not None
    found = decision.record
    assert found is not None
    call.report.origin, record = "local", found
    call.report.note(*beyond_limit(request))
    if request.wants_pack:
        record = replace(record, seal=decision.seal or {})
    if caches and not (found.seal and found.is_published_in(request)):
        published = is_published(request, cache)
        if published and cache.place is not None:
            discard_rows(cache.place, request.pack_path.name)  # a kill may have prevented this
        record = replace(record, published=published, published_in=cache_name(request))
    if source.opened is not None and decision.freshness is not None and decision.freshness.proved:
        # The quick check was not enough this time; with the new times it will be next time.
        identity = source.opened.identify()
        seal = record.seal if request.wants_pack else files_record(request, identity, files=False).seal
        record = replace(record, identity=identity, seal=seal)
    # Most calls change nothing. It only saves the next call work, so a full or read-only disk prevents nothing.
    if record != found:
        with suppress(OSError):
            write_record(request, record)
    # The run that made it may have been killed before it cleaned up.
    _sweep_copies(request)
    if caches and record.published is False:
        done = publish_pack(call, cache, record)
        return _finish(call, lambda _: done)
    if caches and record.published:
        return _finish(
            call, lambda _: find_published(request), "yes, copied there by an earlier call; not looked for in this one"
        )
    return _finish(call, None, cache.why_not())


def _sweep_copies(request: StageRequest) -> None:
    """Remove copies of the source that dead runs made in order to read it."""
    for part in parts_of(request.source):
        sweep_copies(request.folder.parent, part.address)


def _restore(call: StageCall, source: SourceOnce, cached: CachedPack, known: Freshness | None) -> StagedDataset | None:
    """Return what is in the cache, copied here; `None` if it turns out to be unusable."""
    request, report = call.request, call.report
    identity = restore(call, source, cached, known)
    if identity is None:
        return None
    if not cached.in_shards:
        keep_rows(request, cached, read_cached_rows(cached))
    # Right after every block was hashed, so that the seal stands for exactly what was compared.
    seal = seal_of(request)
    report.origin, report.skipped = "cache", cached.manifest.skipped
    if request.wants_files:
        make_local(call, source.open(reads_next=True))
    # Joined shards have no single file in the cache, so nothing is published.
    published = None if cached.in_shards else True
    write_record(request, LocalRecord(request.key, identity, seal, request.wants_files, published, cache_name(request)))
    return _finish(call, (lambda _: find_published(request)) if published else None, "yes, it was copied from there")


def _stage_source(call: StageCall, source: SourceOnce, cache: Cache, *, wait: bool) -> StagedDataset:
    """Read the source, make what was requested, and publish the pack to the cache."""
    request, report = call.request, call.report
    report.origin = "source"
    if request.options.incomparable:
        report.note(f"Nothing that was made before is used, because of {why_again(request)}")
    try:
        made = make_local(call, source.open(reads_next=True), cache)
    except SourceChangedError as error:
        # Training already uses rows of the first state, and their numbers cannot change any more.
        if call.stream is not None and call.stream.arrival is not None:
            raise
        # A mounted Drive sometimes lists only a part of a folder, without an error. A second listing is complete.
        report.note(f"{error} It was read again.")
        source.close()
        made = make_local(call, source.open(reads_next=True), cache)
    if made is not None:
        return open_in_part(call, made, origin="source")
    opened = source.open()
    if opened.resumed_bytes:
        report.note(f"{format_bytes(opened.resumed_bytes)} of the source were here from a run that was interrupted.")
    caches = request.wants_pack and request.cache_dir is not None
    record = files_record(request, opened.identify(), files=request.wants_files)
    if request.wants_pack:
        published = False if caches and cache.place is not None else None
        record = replace(record, seal=seal_of(request), published=published, published_in=cache_name(request))
    # Before the copy of the source is removed: after a kill here, the next call has everything it needs.
    write_record(request, record)
    opened.discard()
    # This run may not have used what a dead one left behind.
    _sweep_copies(request)
    if not caches:
        return _finish(call, None, cache.why_not())
    if wait:
        done = publish_pack(call, cache, record)
        return _finish(call, lambda _: done)
    report.cached = "not yet: it is being copied there"
    # Not a daemon: a script that ends right after staging would cut the copy off.
    work = partial(publish_pack, call, cache, record, quietly=True)
    return _finish(call, in_thread(work, "colabstage-publish", daemon=False).result)


def make_local(call: StageCall, source: OpenedSource, cache: Cache | None = None) -> CachedPack | None:
    """Make the source local in the requested forms; on an error, each existing form stays unchanged.

    `cache`: where a pack that exceeds the disk limit goes, in shards; `None` if the pack is already local and only
    plain files are wanted. Returns the set of shards of a pack that exceeds the disk limit; otherwise `None`.
    """
    request = call.request
    packs = cache is not None and request.wants_pack
    check_targets(request, packs=packs)
    make_folder(request.folder)
    try:
        # The pack's leftovers stay: packing continues what an interrupted run has finished.
        sweep_orphans(request.folder, name=request.copy_path.name)
        with open_spool(request.folder / _SPOOL) as spool:
            reading, stream = _plan(call, source, spool, cache if packs else None)
            if reading.in_shards and reading.job is not None and cache is not None:
                large = plan_without_room(reading.tree, request, reading.job)
                return pack_into_cache(call, source, large, cache)
            taken_from = None if reading.base is None else bring_base(call, reading.base, spool)
            if reading.note and (reading.base is None or taken_from is not None):
                call.report.note(reading.note)
            if reading.job is not None:
                # One in the cache of which too little is taken over stays there.
                away = None if request.pack_path.exists() else reading.away
                earlier = request.pack_path if away is None else Path(away.files[0].path)
                call.report.doubts = [*renumbered(earlier, reading.job.table.classes)]
                call.report.note(*call.report.doubts)
            _start(call, source, reading, stream, taken_from)
            if request.wants_files:
                _fetch_files(call, source, reading.tree)
            if reading.job is not None:
                _make_pack(call, source, reading.job, stream, taken_from)
        return None
    except (ArchiveError, DecodeError, SourceReadError):
        # A source that is being written to looks damaged; then that is the cause to report.
        source.check_unchanged()
        raise
    finally:
        remove_empty(request.folder)  # after an error, unless something was kept for the next try; or with shards


def _start(
    call: StageCall, source: OpenedSource, reading: Reading, stream: PackStream | None, taken_from: BasePack | None
) -> None:
    """Begin to fetch the source, unless that is for workers or the stream to do."""
    job, request = reading.job, call.request
    if reading.in_place and taken_from is not None and stream is None and job is not None and job.takeover is not None:
        # Only the members that are read are fetched from the archive.
        source.read_in_place()
        read = MemberRanges(job).of(job, np.flatnonzero(job.takeover.rows < 0))
        source.read_members(read)
        return
    only_workers_read = call.executor is not None and not request.wants_files
    # If some rows are here already, the stream soon knows which are left, and starts the source then.
    stream_starts = stream is not None and (taken_from is not None or bool(find_orphans(request.pack_path)))
    if not only_workers_read and not stream_starts:
        source.start()


def _plan(call: StageCall, source: OpenedSource, spool: Path, cache: Cache | None) -> tuple[Reading, PackStream | None]:
    """Plan what is made, and check that it fits, before anything is fetched or unpacked."""
    request, report, packs = call.request, call.report, cache is not None
    bases = partial(find_bases, call, source, cache or Cache(request))
    make_folder(spool)
    with report.timed("plan", unit="files", moves=False) as step, call.progress.quiet_step("plan"):
        if has_to_come(source):
            check_disk_limit(request, None if source.cost.unpacks_first else staging_figures(request, source))
        if request.checksum is not None:
            # Before the listing is trusted: a wrong file may well have one.
            source.verify(request.checksum)
        reading = plan_reading(request, source, spool, packs=packs, bases=bases)
        step.amount = len(reading.tree.entries)
        report.found = () if reading.job is None else reading.job.table.summary()
        if reading.in_shards:
            if call.executor is not None:
                msg = f"disk_limit= has '{request.source.name}' packed in shards, one by one. Leave out executor=."
                raise NotEnoughSpaceError(msg)
            return reading, None
        # What an interrupted run has written is part of the figures, and does not need its space twice.
        in_place = source.cost.kept_bytes + (reading.room - free_space(request.folder) if packs else 0)
        # Now, when everything is known and nothing written: a disk that is full after an hour helps nobody.
        needed = max(0, reading.figures.room_bytes - in_place)
        check_space(request.folder, needed, f"Staging '{request.source.name}'", remedy=LESS_ROOM)
        report.note(*source.notes, *reading.tree.notes)
        if call.stream is None or reading.job is None:
            return reading, None
        # Waiting is slower but gives the same pack, so this is a note, not an error.
        if (obstacle := call.stream.obstacle(reading.job)) is not None:
            report.note(f"streaming=True had to wait for the whole pack: {obstacle}.")
            return reading, None
        # The resizing library is imported while the first bytes arrive.
        job = listed_job(reading.job)
        # Before the source starts, so that these are the bytes that the first epoch needs.
        call.stream.plan(job, source)
        return replace(reading, job=job), call.stream


def _fetch_files(call: StageCall, source: OpenedSource, tree: Tree) -> None:
    """Fetch the plain files beside the previous ones, then exchange the two."""
    request, report = call.request, call.report
    if are_files_staged(request, source.identify()):
        return
    total = total_size(tree.entries)
    with report.timed("fetch files", unit="B") as timing, call.progress.step("fetch", total=total, unit="B") as step:
        fetched = write_folder(
            tree,
            request.files_path,
            fingerprint=source.identify().fingerprint,
            limits=pipeline_limits(tree, slow=source.cost.reads_slowly),
            step=step,
            cancellation=call.cancellation,
            check=source.check_unchanged,
            receipt=lambda: files_receipt(request, source.identify()),
        )
        timing.amount, timing.note = total - fetched.kept_bytes, format_count(fetched.files, "files")
        if fetched.kept_bytes:
            timing.note += f"; {format_bytes(fetched.kept_bytes)} were already here"
    # If packing is interrupted, the files need not be fetched again.
    write_record(request, files_record(request, source.identify(), files=True))


def _make_pack(
    call: StageCall, source: OpenedSource, job: PackJob, stream: PackStream | None, base: BasePack | None
) -> None:
    request, report, executor = call.request, call.report, call.executor
    slow = source.cost.reads_slowly
    if executor is None:
        if request.wants_files:
            # The files have just arrived: the local ones are faster than the source.
            job = prepare_pack(FolderTree(request.files_path), request.options, free_bytes=space_for(request.pack_path))
            slow = False
        # The report's notes are those of the packed job.
        job = listed_job(job)
    with report.timed("pack", unit=job.table.unit) as step:
        if executor is None:
            done = PackRun(
                job,
                request.pack_path,
                slow,
                call.progress,
                key=request.key,
                identity=lambda: source.identify().to_json(),  # at the end
                address=request.source.address,
                stream=stream,
                records_rows=not request.wants_files,
                base=base,
            ).execute()
        else:
            done = _pack_by_workers(call, source, executor)
        try:
            # Checked last, because only listing again shows whether a listing was incomplete, and takes as long as the
            # first time.
            source.check_unchanged()
        except SourceListingError:
            discard_version(request.pack_path)  # so that a pack of half a source does not count
            raise
        step.amount = sum(done.samples.values()) - done.resumed - (0 if done.takeover is None else done.takeover.taken)
        parts = [f"{done.encoding}: {done.reason}"]
        if done.readers:
            parts.append(format_count(done.readers, "readers"))
        if done.readers and source.cost.archive_bytes:
            parts.append("while the source was being copied here")
        if done.resumed:
            parts.append(f"{done.resumed:,} were already in place")
        step.note = "; ".join(parts)
    report.skipped = done.skipped
    report.note(*done.notes)
    if altered := request.options.altered:
        report.note(
            f"The function in {altered}= has changed what it refers to: a vocabulary that grows, a random generator. "
            "Other sessions get this pack without that, and another call here packs again: complete it first, and save "
            "it."
        )


def _pack_by_workers(call: StageCall, source: OpenedSource, executor: Executor) -> PackReport:
    request = call.request
    # Plain files are already the requested part.
    options = replace(request.options, only=None) if request.wants_files else request.options
    place = request.path_for_workers
    assert place is not None
    return pack_joined(
        place,
        request.pack_path,
        options,
        executor,
        call.progress,
        key=request.key,
        identity=source.identify().to_json(),
        address=request.source.address,
    )


def _finish(
    call: StageCall, published: Callable[[float], PublishReport[Any] | None] | None, cached: str = ""
) -> StagedDataset:
    """Clean up, and return the dataset; `published` and `cached`: as in `StagedDataset` and its report."""
    request, report = call.request, call.report
    if request.wants_pack:
        report.cached = cached or report.cached
    # Everything is local, so a dead run's leftovers are no longer needed.
    sweep_orphans(request.folder)
    sweep_receipts(request.files_path)
    sweep_rows(request.pack_path)
    # From the file, not from the plan, so that the report says what a loader will find.
    info = read_info(request.pack_path) if request.wants_pack else None
    report.found = report.found or found_in(info)
    if info is not None:
        report.skipped = report.skipped or info.skipped
    return StagedDataset(
        path=request.files_path if info is None else request.pack_path,
        files=request.files_path if request.wants_files else None,
        report=report,
        info=info,
        published=None if info is None else published,
        state=() if info is None else which_file(info.path),
    )
