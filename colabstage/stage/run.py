"""`stage_dataset`, the one cell, and `plan_stage`, the same without doing anything.

The shortest way is taken: reuse local data, restore the cached pack, or read the source. Nothing is read before it has
to be. Local data is checked first, because that costs a few `stat`s; then the cache, which is one sequential read; and
only then the source. The source is opened when the first of these decisions needs it, and only once, so that what it
costs to open and list it is not spent twice.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from colabstage.errors import (
    ColabstageError,
    SourceNotFoundError,
)
from colabstage.h5.info import read_info
from colabstage.h5.manifest import read_manifest
from colabstage.io.arguments import GOES_ON, NOTHING_DONE, stops_with, takes
from colabstage.io.files import check_own_folder, clear_lock, local_lock, make_own_folder
from colabstage.io.ownership import sweep_orphans
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import NullProgress, resolve_progress
from colabstage.io.units import format_bytes
from colabstage.io.workspace import put_back
from colabstage.machine.mounts import run_watched
from colabstage.machine.resources import free_space
from colabstage.machine.watched import run_with_one_remount
from colabstage.pack.execute import space_for
from colabstage.pack.job import prepare_pack
from colabstage.pack.plan import lacked_room
from colabstage.pack.stream import PackStream
from colabstage.sources.identity import file_seal
from colabstage.sources.opening import sweep_copies
from colabstage.sources.parse import comes_whole, parts_of
from colabstage.stage.cache import Cache, CachedPack, copy_current, exceeds_limit, find_current
from colabstage.stage.dataset import StagedDataset
from colabstage.stage.make import (
    StageCall,
    has_to_come,
    make_local,
    open_in_part,
    staging_figures,
)
from colabstage.stage.record import (
    Freshness,
    LocalRecord,
    Seal,
    SourceListingError,
    SourceOnce,
    compare_source,
    files_problem,
    files_record,
    find_record,
    identity_of,
    kept_seal,
    pack_problem,
    write_record,
)
from colabstage.stage.report import StageFigures, StagePlan, StageReport, found_in
from colabstage.stage.request import (
    StageArguments,
    check_disk_limit,
    check_for_streaming,
    check_for_workers,
    exceeds,
    lock_path,
    make_request,
)
from colabstage.stage.shards import plan_shards
from colabstage.stage.streaming import BackgroundPack

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from colabstage.io.progress import Progress
    from colabstage.load.partial import PartialPack
    from colabstage.pack.job import PackJob
    from colabstage.pack.options import PackOptions
    from colabstage.sources.opening import OpenSource
    from colabstage.sources.parse import SourceArgument
    from colabstage.stage.publish import PublishReport
    from colabstage.stage.report import Action, Found
    from colabstage.stage.request import StageRequest


_REMEDIES = {"source": 'Write the dataset\'s path or address first: "photos.zip".'}


@takes(make_request, arguments=StageArguments, remedies=_REMEDIES)
@stops_with(GOES_ON)
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
    r"""Make a dataset local and ready, by the shortest way.

    If it is already staged here, return at once. If there is a packed copy in the cache, copy and verify it. Otherwise
    read the source with many reads in flight, decode once, write one HDF5 file, and publish that to the cache for the
    next session.

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
            the first epoch needs the rows: `data.loader(…)` gives batches at once and waits only for the rows of its
            batch, `data.wait()` waits for the rest, and `data.ready` tells how much is here. The finished pack is
            the same, byte for byte. A pack in the cache is copied in the same way.
        executor: a `concurrent.futures.Executor` whose workers each read and decode a part of the samples; the parts
            are joined into the same file. For a folder or archive that the workers can open by its path, or with
            `keep="both"` for any source; workers on other machines must have access to `local_dir` too. Needs space
            for the pack twice while it runs.
        progress: `True` for bars, `False` for silence, or a `Progress`.
        options: how the pack is made, in one value, for several datasets; arguments given by name take precedence.
        **arguments: those of `colabstage.options.PackOptions`; and `keep`, `local_dir`, `cache_dir`, `refresh`,
            `verify`, `hash` and `disk_limit`, as of `make_request`.

    Raises:
        SourceNotFoundError, SourceReadError, DriveDisconnectedError: the source cannot be read.
        SourceAccessError: a login, a permission or a licence is missing. DriveQuotaError: Drive refuses for now.
        WebPageError: a web page came in place of the data. ChecksumMismatchError: it is another file than asked for.
        MissingDependencyError: this kind of source needs a package; the message has the install line.
        ArchiveError: the archive is damaged, unsafe, or not an archive.
        LayoutError: the files form no dataset in any layout. DecodeError: an image cannot be decoded.
        NotEnoughSpaceError: it would not fit; raised before work begins, with figures.
        TargetExistsError: the plain files to be replaced include one that colabstage did not write, or one that was
            changed since.
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

        return BackgroundPack(work, report, shown).start()
    return _stage_watched(StageCall(request, shown, executor), wait=wait)


def _stage_watched(first: StageCall, *, wait: bool) -> StagedDataset:
    """Do one call, and once more where the Drive that it needs dies meanwhile and can be mounted again."""
    request = first.request
    if request.drive_path is None:
        return run_watched(lambda: run_call(first, wait=wait), *request.touched_paths)
    notes: list[str] = []
    calls = chain([first], repeat(replace(first, report=StageReport())))
    # Each attempt opens everything again: nothing may be kept open on a mount that has died.
    staged = run_with_one_remount(
        lambda: run_call(next(calls), wait=wait),
        place=request.drive_path,
        touches=request.touched_paths,
        notice=notes.append,
    )
    staged.report.note(*notes)
    return staged


@takes(make_request, arguments=StageArguments, remedies=_REMEDIES)
@stops_with(NOTHING_DONE)
def plan_stage(
    source: SourceArgument, *, options: PackOptions | None = None, **arguments: Unpack[StageArguments]
) -> StagePlan:
    """Say what `stage_dataset` would do with the same arguments, without writing anything.

    This lists the source, and reads the headers of a few images where their size matters. A source that has to be
    downloaded before it can be opened (a share link, a Kaggle dataset) is not read.

    The arguments are those of `stage_dataset` without `wait`, `streaming`, `executor` and `progress`. The errors are
    the same too, as far as they can be known beforehand.

    Args:
        source: where the dataset is, as for `stage_dataset`.
        options: as for `stage_dataset`.
        **arguments: those of `stage_dataset`.
    """
    request = make_request(source, options=options, **arguments)
    return run_watched(lambda: plan_call(StageCall(request, NullProgress())), *request.touched_paths)


T = TypeVar("T")

# How long a second notebook waits for one that stages the same dataset; after that it does the work itself.
_LOCK_TIMEOUT_S = 1800.0


def run_call(call: StageCall, *, wait: bool) -> StagedDataset:
    """Do one call of `stage_dataset`.

    Raises:
        As `stage_dataset`.
    """
    request, cache = call.request, Cache(call.request)
    for folder in (request.folder.parent, request.folder):
        check_own_folder(folder)
    with SourceOnce(call) as source:
        lock = lock_path(request.folder)
        staged = _reuse(call, source, cache)
        if staged is not None:
            clear_lock(lock)
            return staged
        # Nothing is written yet, so this is the moment to report that the source cannot be read. With the pack in the
        # cache it may not be needed at all, and listing it takes time. A source that has to be downloaded before it can
        # be opened is left to whoever holds the lock, because two downloads at once would only halve the speed.
        looks = request.cache_dir is not None and not request.refresh and not request.wants_files
        cached = looks and cache.find() is not None
        if not cached and (request.disk_limit is not None or not comes_whole(request.source)):
            source.open(to_pack=True)
        make_own_folder(request.folder.parent)
        with local_lock(lock, timeout_s=_LOCK_TIMEOUT_S, notice=call.report.note, cancellation=call.cancellation):
            # The process that held the lock before may have done the work.
            staged = _reuse(call, source, cache)
            if staged is not None:
                return staged
            staged = _restore(call, source, cache)
            if staged is not None:
                return staged
            return _stage_source(call, source, cache, wait=wait)


def _problem_here(call: StageCall, source: SourceOnce, record: LocalRecord) -> tuple[str | None, Freshness]:
    """Return why the local data cannot be used, `None` when it can, and how the source compares."""
    request = call.request
    thorough = request.verify == "full"
    problem = None
    # The cheapest checks first, and the source only when everything else is right.
    if request.wants_pack:
        problem = pack_problem(request, record, thorough=thorough, cancellation=call.cancellation)
    if problem is None and request.wants_files:
        problem = files_problem(request, record, thorough=thorough)
    if problem is not None:
        return problem, Freshness(same=False)
    freshness = compare_source(call, source, record.identity)
    return (None if freshness.same else "the source has changed since it was staged"), freshness


def _reuse(call: StageCall, source: SourceOnce, cache: Cache) -> StagedDataset | None:
    """Return what is staged on this machine, if it is complete and the source has not changed."""
    request, report = call.request, call.report
    # A process that died between two renames has left the previous files under another name, and nothing in their
    # place.
    put_back(request.files_path)
    record = None if request.refresh else find_record(request)
    if record is None:
        return None
    # Before the file is checked, so that a write during the check breaks the seal.
    seal = _seal(request) if request.wants_pack else {}
    with report.timed("look") as step:
        problem, freshness = _problem_here(call, source, record)
        step.note = problem or "; ".join(filter(None, ("already staged; verified", freshness.seen)))
    if problem is not None:
        report.note(f"Staging again: {problem}.")
        return None
    report.origin = "local"
    found = record
    if request.wants_pack:
        published = record.published if record.seal else _is_published(request, cache)
        record = replace(record, seal=seal, published=published)
    if source.opened is not None and freshness.proved:
        # The quick look was not enough this time; with the new times it will be next time.
        identity = source.opened.identity
        record = replace(
            record, identity=identity, seal=record.seal if request.wants_pack else kept_seal(request, identity)
        )
    # Most calls change nothing, and writing the record would be one more step that can be interrupted.
    if record != found:
        write_record(request, record)
    # Although nothing had to be done: the run that made it may have been killed before it cleaned up, and its
    # leftovers would stay until somebody stages that source again.
    _sweep_copies(request)
    if request.wants_pack and record.published is False and request.cache_dir is not None:
        return _finish(call, _finished_publishing(_publish_pack(call, cache, record)))
    return _finish(call, published_before=record.published is True)


def _seal(request: StageRequest) -> Seal:
    return file_seal(request.pack_path) if request.pack_path.is_file() else {}


def _is_published(request: StageRequest, cache: Cache) -> bool | None:
    """Tell whether the local pack is the one in the cache; `None` when no cache is wanted."""
    if cache.place is None:
        return None
    cached = cache.find()
    return cached is not None and (cached.in_shards or cached.manifest == read_manifest(request.pack_path))


def _sweep_copies(request: StageRequest) -> None:
    """Remove copies of the source that dead runs made in order to read it."""
    for part in parts_of(request.source):
        sweep_copies(request.folder.parent, part.address)


def _restore(call: StageCall, source: SourceOnce, cache: Cache) -> StagedDataset | None:
    """Return what is in the cache, copied here or opened in part, if it can be used."""
    request = call.request
    if request.cache_dir is None or request.refresh or not request.wants_pack:
        return None
    found = find_current(call, source, cache)
    if found is None:
        return None
    if exceeds_limit(request, found.pack):
        return open_in_part(call, found.pack)
    identity = copy_current(call, source, found, cache)
    if identity is None:
        return None
    # Right after every block was hashed, so that the seal stands for exactly what was compared.
    seal = _seal(request)
    call.report.origin = "cache"
    call.report.skipped = found.pack.manifest.skipped
    files = None
    if request.wants_files:
        made = make_local(call, source.open())
        assert not isinstance(made, CachedPack)  # only packs are
        files = made
    # Of shards that were joined here there is no such file in the cache, and none is needed there.
    published = None if found.pack.in_shards else True
    write_record(request, LocalRecord(request.key, identity, seal, files, published))
    return _finish(call, published_before=published is True)


def _stage_source(call: StageCall, source: SourceOnce, cache: Cache, *, wait: bool) -> StagedDataset:
    """Read the source, make what was asked for, and publish the pack to the cache."""
    request, report = call.request, call.report
    if request.options.incomparable:
        held = ", ".join(request.options.incomparable)
        report.note(
            f"The function given as layout= or prepare= holds objects that cannot be compared ({held}), so nothing "
            "that was made with it before is used. A function that holds only arrays, numbers and strings is run once."
        )
    report.origin = "source"
    try:
        made = make_local(call, source.open(to_pack=True), cache)
    except SourceListingError as error:
        # Training already uses rows of the first listing, and their numbers cannot change any more.
        if call.stream is not None and call.stream.arrival is not None:
            raise
        # A mounted Drive sometimes lists only a part of a folder, without an error. The second listing is complete.
        report.note(f"{error} It was listed and read again.")
        source.close()
        made = make_local(call, source.open(to_pack=True), cache)
    if isinstance(made, CachedPack):
        return open_in_part(call, made, origin="source")
    files = made
    seal = _seal(request) if request.wants_pack else {}
    opened = source.open()
    if opened.resumed_bytes:
        report.note(f"{format_bytes(opened.resumed_bytes)} of the source were here from a run that was interrupted.")
    caches = request.wants_pack and request.cache_dir is not None and not cache.is_left
    if request.wants_pack:
        published = False if caches and cache.place is not None else None
        record = LocalRecord(request.key, opened.identity, seal, files, published)
    else:
        record = files_record(request, opened.identity, files)
    # Before the copy of the source is removed: after a kill at this point, the next call has everything it needs.
    write_record(request, record)
    opened.discard()
    # This run may not have used what a dead one left behind.
    _sweep_copies(request)
    if not caches:
        return _finish(call)
    if not wait:
        # Not a daemon: a script that ends right after staging would cut the copy off.
        publishing = in_thread(
            lambda: _publish_pack(call, cache, record, quietly=True), "colabstage-publish", daemon=False
        )
        return _finish(call, publishing)
    return _finish(call, _finished_publishing(_publish_pack(call, cache, record)))


def _publish_pack(
    call: StageCall, cache: Cache, record: LocalRecord, *, quietly: bool = False
) -> PublishReport[Any] | None:
    """Copy the pack to the cache; a failure is a note in the report."""
    request = call.request
    place = cache.place
    if place is None:
        call.report.note(f"Not cached: {cache.why}.")
        return None
    done = None
    with call.report.timed("publish to cache", unit="B") as step:
        try:
            # In the background a bar would be drawn into whatever cell runs then.
            progress = NullProgress() if quietly else call.progress
            done = place.publish(request.pack_path, f"{request.name}.h5", progress=progress)
            step.amount = done.nbytes - done.kept_bytes
            step.note = f"'{place.label}/{request.name}.h5', read back and verified" + (
                "; uploading" if done.uploading else ""
            )
        # Not raised: the data is here and can be used, and the next session merely stages it again.
        except (ColabstageError, OSError) as error:
            step.note = "failed"
            call.report.note(f"Not cached, so the next session stages from the source again: {error}")
    write_record(request, replace(record, published=done is not None))
    return done


def _finish(
    call: StageCall, publishing: Future[PublishReport[Any] | None] | None = None, *, published_before: bool = False
) -> StagedDataset:
    request = call.request
    # Everything is here, so what a dead run left behind is no longer needed.
    sweep_orphans(request.folder)
    # From the file and not from the plan, so that the report says what a loader will find.
    info = read_info(request.pack_path) if request.wants_pack else None
    if info is not None and request.options.encoding == "auto" and lacked_room(info):
        call.report.note(
            f"Images are kept as their files: {info.encoding_reason}. That was decided by the space that was free when "
            "they were packed; refresh=True decides by what is free now, and encoding= settles it."
        )
    call.report.found = call.report.found or found_in(info)
    return StagedDataset(
        path=request.pack_path if info is not None else request.files_path,
        files=request.files_path if request.wants_files else None,
        report=call.report,
        info=info,
        publishing=publishing,
        find_published=partial(_published_before, request) if published_before and info is not None else None,
    )


def _published_before(request: StageRequest) -> PublishReport[Any] | None:
    """Return what an earlier call published of the local pack.

    Raises:
        SourceNotFoundError: it is not there.
    """
    # Only on request and not in every call, because a Drive takes time to answer.
    if request.cache_dir is None:
        return None
    cache = Cache(request)
    cached = cache.find()
    if cached is None or cached.manifest != read_manifest(request.pack_path):
        where = f"in '{cache.place.label}'" if cache.place is not None else f"in a cache that can be used ({cache.why})"
        msg = (
            f"'{request.pack_path}' was published before, and its copy '{request.name}.h5' is no longer {where}, or "
            "another one has taken its place. Mount the drive of the cache, or publish it again: "
            "publish_file(data.path, …)."
        )
        raise SourceNotFoundError(msg)
    return cached.place.published(cached.files[0])


def _finished_publishing(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def plan_call(call: StageCall) -> StagePlan:
    """Say what `run_call` would do, without writing anything."""
    request, cache = call.request, Cache(call.request)
    reasons: list[str] = []

    def planned(
        action: Action,
        figures: StageFigures,
        rows: dict[str, int],
        found: Found = (),
        *,
        count: int = 0,
        in_part: bool = False,
    ) -> StagePlan:
        place, free = cache.place if request.wants_pack else None, free_space(request.folder)
        # Shards, where those are or would be.
        name = f"{request.name}.h5" if not count else f"{request.name}-*-of-{count:05}.h5"
        return StagePlan(
            source=request.address,
            action=action,
            reasons=(*reasons, *_limit_advice(request, action, figures, free)),
            figures=figures,
            free_bytes=free,
            target=request.pack_path if request.wants_pack else request.files_path,
            cache=None if place is None else place.at(name),
            samples=rows,
            found=found,
            in_part=in_part,
        )

    with SourceOnce(call) as source:
        record = None if request.refresh else find_record(request)
        problem = "it is not staged on this machine" if record is None else _problem_here(call, source, record)[0]
        if problem is None:
            reasons.append("It is complete and the source has not changed.")
            info = read_info(request.pack_path) if request.wants_pack else None
            rows = {} if info is None else {name: split.rows for name, split in info.splits.items()}
            return planned("reuse", StageFigures(), rows, found_in(info))
        reasons.append(f"Here: {problem}.")
        cached = None if request.refresh or not request.wants_pack else cache.find()
        made_of = None if cached is None or request.wants_files else identity_of(cached.manifest)
        if cached is not None and made_of is not None and compare_source(call, source, made_of).same:
            reasons.append(f"Cache: '{cached.label}'.")
            size = cached.manifest.size
            in_part = exceeds_limit(request, cached)
            if in_part and request.disk_limit is not None:
                reasons.append(
                    f"It has {format_bytes(size)}: blocks would be fetched as they are needed, and never more than "
                    f"{format_bytes(request.disk_limit)} be here."
                )
                size = min(size, request.disk_limit)
            elif request.keep == "pack" and size >= _WORTH_BYTES:
                reasons.append(f"{_STREAMING_PAYS} its first blocks are here, and copy the rest during training.")
            moved = StageFigures(source_bytes=size, pack_bytes=size)
            return planned(
                "restore",
                moved,
                cached.manifest.samples,
                count=len(cached.files) if cached.in_shards else 0,
                in_part=in_part,
            )
        reasons.append(_why_not_cached(cache, cached))
        if comes_whole(request.source) and request.disk_limit is None:
            reasons.append("It would be downloaded first; what is in it is known only then.")
            return planned("stage", StageFigures(), {})
        opened = source.open()
        if not opened.opens_at_once or opened.unpacks_first or opened.is_walked:
            reasons.append(_why_unknown(opened))
            return planned("stage", staging_figures(request, opened, None, None), {})
        with tempfile.TemporaryDirectory() as spool:
            tree = opened.open_tree(Path(spool))
            free = space_for(request.pack_path)
            job = prepare_pack(tree, request.options, free_bytes=free) if request.wants_pack else None
            if job is not None:
                reasons.append(f"Pack: {job.plan.encoding}, because {job.plan.reason}.")
                reasons.extend(_streaming_advice(request, opened, job))
                # What would be left out is worth knowing before, not after.
                reasons.extend(job.table.notes)
            rows = {} if job is None else {split.name: len(split.samples) for split in job.plan.splits}
            found = () if job is None else job.table.summary()
            figures, count = staging_figures(request, opened, tree, job), 0
            if job is not None and exceeds(request, figures) and request.disk_limit is not None:
                if has_to_come(opened):
                    check_disk_limit(request, figures)
                reason, count = plan_shards(request, tree, job, cache, request.disk_limit)
                reasons.append(reason)
                figures = replace(figures, pack_bytes=request.disk_limit, archive_bytes=0, mount_bytes=0)
            return planned("stage", figures, rows, found, count=count, in_part=count > 0)


def _why_not_cached(cache: Cache, cached: CachedPack | None) -> str:
    """Say why the source would be read."""
    if cached is not None:
        return "Cache: not of this state of the source."
    return "Cache: none is used." if cache.place is None else "Cache: it is not there."


def _why_unknown(source: OpenSource) -> str:
    """Say why a plan would have to read all of a source."""
    if source.is_walked:
        return "It has no table of contents: a tar is looked through where it is, which reads up to all of it once."
    if source.opens_at_once:
        return "It is compressed as a whole; what is in it is known only after it is unpacked."
    return "It can only be read from its beginning; what is in it is known only after it has arrived."


# Below this, the wait for the whole pack is short anyway.
_WORTH_BYTES = 200_000_000
_STREAMING_PAYS = "streaming=True would give batches as soon as"


def _streaming_advice(request: StageRequest, opened: OpenSource, job: PackJob) -> list[str]:
    """Return a sentence that says whether `streaming=True` would pay; nothing where it hardly matters."""
    # Under a limit it is no choice: the two cannot be combined.
    if (
        request.keep != "pack"
        or request.disk_limit is not None
        or max(opened.identity.nbytes, job.plan.nbytes) < _WORTH_BYTES
    ):
        return []
    obstacle = PackStream.obstacle(job)
    if obstacle is not None:
        return [f"streaming=True would gain nothing here: {obstacle}."]
    return [f"{_STREAMING_PAYS} this plan is made, and pack the rest during training."]


def _limit_advice(request: StageRequest, action: Action, figures: StageFigures, free_bytes: int) -> list[str]:
    """Return what to do where the disk is too small for all of it; nothing where it is not."""
    if figures.peak_bytes <= free_bytes or request.keep != "pack" or request.disk_limit is not None:
        return []
    if action == "restore":
        return ["disk_limit= would open it in part instead: blocks come as they are needed, and never more than that."]
    return ["It does not fit. With disk_limit= it is packed in shards, which go to the cache and are read from there."]
