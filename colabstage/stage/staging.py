"""The three ways to a staged dataset, from the shortest: reuse what is here, restore the cache, read the source."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from colabstage.errors import (
    ArchiveError,
    ColabstageError,
    DamagedPackError,
    DriveDisconnectedError,
    DriveError,
    NotEnoughSpaceError,
    SourceChangedError,
    SourceError,
)
from colabstage.h5.info import read_info
from colabstage.h5.manifest import read_manifest, remove_manifest
from colabstage.io.files import make_folder, make_own_folder
from colabstage.io.ownership import check_replaceable, put_back, remove_empty, sweep_orphans
from colabstage.io.progress import NullProgress, Progress, cancellation_of
from colabstage.io.retry import RetryPolicy
from colabstage.io.temporaries import remove_own, temp_beside
from colabstage.io.units import format_bytes, format_count
from colabstage.machine.resources import check_space, free_space
from colabstage.machine.watched import run_watched
from colabstage.pack.execute import pipeline_limits, run_pack, space_for
from colabstage.pack.job import prepare_pack
from colabstage.pack.join import pack_by_executor
from colabstage.pack.plan import lacked_room
from colabstage.sources.folder import fetch_folder
from colabstage.sources.identity import compare, proof_of
from colabstage.sources.look import check_freshness
from colabstage.sources.opening import OpenSource, comes_whole
from colabstage.sources.parse import ManySource
from colabstage.sources.part import SLOW_LISTERS, Opening, sweep_copies
from colabstage.sources.record import file_seal
from colabstage.stage.cache import CachedPack, choose_cache_dir, find_cached, restore_name, restore_pack
from colabstage.stage.dataset import StagedDataset
from colabstage.stage.publish import publish_file
from colabstage.stage.record import (
    LocalRecord,
    Seal,
    StagedFiles,
    files_problem,
    files_record,
    files_staged,
    find_record,
    identity_of,
    kept_seal,
    pack_problem,
    write_record,
)
from colabstage.stage.report import StageFigures, StagePlan, StageReport
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from types import TracebackType

    from colabstage.io.progress import Cancellation
    from colabstage.pack.execute import PackReport
    from colabstage.pack.job import PackJob
    from colabstage.sources.identity import SourceIdentity
    from colabstage.stage.publish import PublishReport
    from colabstage.stage.report import Action
    from colabstage.stage.request import StageRequest
    from colabstage.trees.tree import Tree

T = TypeVar("T")
_SPOOL = "spool"


class SourceListingError(SourceChangedError):
    """A folder on a mount lists other files now than when it was opened."""


def _check_listing(source: OpenSource) -> None:
    """List folders on slow mounts again: nothing counts that was made of a part of what is there.

    Raises:
        SourceListingError: names, sizes or times are other ones than what was read.
        As `FolderTree`.
    """
    problem = source.relisted()
    if problem:
        raise SourceListingError(problem)


def figure_out(request: StageRequest, source: OpenSource, tree: Tree | None, job: PackJob | None) -> StageFigures:
    """Add up what staging moves, as far as it is known; `tree` is `None` for what cannot be listed yet."""
    tree_bytes = 0 if tree is None else sum(entry.size for entry in tree.entries)
    return StageFigures(
        source_bytes=source.identity.nbytes,
        archive_bytes=source.archive_bytes,
        pack_bytes=0 if job is None else job.plan.nbytes,
        files_bytes=tree_bytes if request.wants_files else 0,
        mount_bytes=source.mount_bytes,
    )


def make_local(
    request: StageRequest,
    source: OpenSource,
    report: StageReport,
    *,
    progress: Progress,
    cancellation: Cancellation,
    executor: Executor | None = None,
    pack: bool = True,
) -> StagedFiles | None:
    """Bring the source here in the forms that were asked for.

    Args:
        pack: `False` when the pack is here already and only plain files are wanted.

    Returns:
        The plain files, `None` when none were asked for.

    Raises:
        TargetExistsError: in the place of the plain files stands something else, or one of them was changed.
        As `stage_dataset`; each form that was there before is as it was.
    """
    if request.wants_files:
        put_back(request.files_path)
        check_replaceable(
            request.files_path, "Move what is yours out of it, or delete it if nothing there is, then stage again."
        )
    # Not those of the pack: what an interrupted run put in place is taken up again.
    for name in (_SPOOL, restore_name(request).name):
        sweep_orphans(request.folder, name=name)
    with _spool(request) as spool:
        with report.timed("plan", unit="files", moves=False) as step:
            if request.checksum is not None:
                source.verify(request.checksum)
            tree = source.open_tree(spool)
            step.amount = len(tree.entries)
            wants_pack = pack and request.wants_pack
            room = space_for(request.pack_path)
            job = prepare_pack(tree, request.options, free_bytes=room) if wants_pack else None
            figures = figure_out(request, source, tree, job)
            # What an interrupted run has put in place is part of the figures, and need not fit a second time.
            in_place = source.kept_bytes + (room - free_space(request.folder) if wants_pack else 0)
            check_space(request.folder, max(0, figures.peak_bytes - in_place), f"Staging '{request.source.name}'")
            report.note(*source.notes, *tree.notes)
        if executor is None or request.wants_files:
            source.start()
        files = None
        if request.wants_files:
            files = _fetch_files(request, source, tree, report, progress=progress, cancellation=cancellation)
        if job is not None:
            _make_pack(request, source, job, report, progress=progress, cancellation=cancellation, executor=executor)
    return files


@contextmanager
def _spool(request: StageRequest) -> Iterator[Path]:
    folder = temp_beside(request.folder / _SPOOL)
    make_folder(folder)
    try:
        yield folder
    finally:
        remove_own(folder)


def _fetch_files(
    request: StageRequest,
    source: OpenSource,
    tree: Tree,
    report: StageReport,
    *,
    progress: Progress,
    cancellation: Cancellation,
) -> StagedFiles:
    """Bring the plain files beside what was there, then in its place."""
    here = files_staged(request, source.identity)
    if here is not None:
        report.note("The plain files were brought here by an earlier run that was interrupted after them.")
        return here
    total = sum(entry.size for entry in tree.entries)
    with report.timed("fetch files", unit="B") as timing, progress.step("fetch", total=total, unit="B") as step:
        fetched = fetch_folder(
            tree,
            request.files_path,
            fingerprint=source.identity.fingerprint,
            limits=pipeline_limits(tree, slow=source.slow),
            step=step,
            cancellation=cancellation,
            policy=RetryPolicy(),
            announce=lambda _: _check_listing(source),
        )
        timing.amount, timing.note = total - fetched.kept_bytes, format_count(fetched.files, "files")
        if fetched.kept_bytes:
            timing.note += f"; {format_bytes(fetched.kept_bytes)} were here from before"
    files = StagedFiles(fetched.files, fetched.nbytes, fetched.deed)
    # Should packing be interrupted, the files need not come again.
    write_record(request, files_record(request, source.identity, files))
    return files


def _make_pack(
    request: StageRequest,
    source: OpenSource,
    job: PackJob,
    report: StageReport,
    *,
    progress: Progress,
    cancellation: Cancellation,
    executor: Executor | None,
) -> None:
    identity = source.identity.to_json()
    slow = source.slow
    if request.wants_files and executor is None:
        # They have just arrived: read them from here, not a second time from there.
        local = FolderTree(request.files_path)
        job = prepare_pack(local, request.options, free_bytes=space_for(request.pack_path))
        slow = False
    with report.timed("pack", unit=job.table.unit) as step:
        if executor is None:
            done = run_pack(
                job,
                request.pack_path,
                slow=slow,
                progress=progress,
                cancellation=cancellation,
                key=request.key,
                identity=identity,
                address=request.address,
            )
        else:
            place = request.files_path if request.wants_files else request.opened_path
            assert place is not None
            done = pack_by_executor(
                place,
                request.pack_path,
                request.options,
                executor,
                progress=progress,
                key=request.key,
                identity=identity,
                address=request.address,
            )
        try:
            _check_listing(source)
        except SourceListingError:
            remove_manifest(request.pack_path)  # nothing vouches for half of a source
            raise
        step.amount = sum(done.samples.values()) - done.resumed
        step.note = _describe(done, source)
    report.skipped = done.skipped
    report.note(*job.table.notes)


def _describe(done: PackReport, source: OpenSource) -> str:
    parts = [f"{done.encoding}: {done.reason}", format_count(done.readers, "readers")]
    if source.archive_bytes:
        parts.append("while the archive was being copied here")
    if done.resumed:
        parts.append(f"{done.resumed:,} were in place from before")
    return "; ".join(parts)


class Staging:
    """Do one call of `stage_dataset`: the request, the source once it is open, and the `report` as it grows."""

    def __init__(self, request: StageRequest, *, progress: Progress, executor: Executor | None = None) -> None:
        self._request = request
        self._executor = executor
        self._progress = progress
        self._cancellation = cancellation_of(progress)
        self.report = StageReport()
        self._stack = contextlib.ExitStack()
        self._source: OpenSource | None = None
        self._source_problem: ColabstageError | None = None
        self._seen = ""
        self._proved = False
        self._keeps_cached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def check_possible(self) -> None:
        """Raise what is wrong with the source, unless a cached pack makes up for it. Writes nothing.

        Raises:
            SourceNotFoundError, SourceReadError, DriveDisconnectedError, ArchiveError.
        """
        request = self._request
        # With the pack in the cache the source may not be needed at all, and listing it takes its time. What has to be
        # downloaded to be looked at is the business of whoever holds the lock.
        cached = not request.refresh and not request.wants_files and self._find_cached() is not None
        if cached or comes_whole(request.source):
            return
        self._open()

    def reuse(self) -> StagedDataset | None:
        """Return what is staged on this machine, if it is whole and the source is still the same."""
        request = self._request
        put_back(request.files_path)
        record = None if request.refresh else find_record(request)
        if record is None:
            return None
        # Before it is looked at: what is written to it meanwhile breaks this seal.
        seal = self._seal() if request.wants_pack else {}
        with self.report.timed("look") as step:
            problem = self._problem_here(record)
            step.note = problem or "; ".join(filter(None, ("staged here, and whole", self._seen)))
        if problem is not None:
            self.report.note(f"Staging again: {problem}.")
            return None
        self.report.origin = "local"
        found = record
        if request.wants_pack:
            published = record.published if record.seal else self._is_published()
            record = replace(record, seal=seal, published=published)
        if self._source is not None and self._proved:
            # The quick look was not enough this time; now it will be.
            kept = record.seal if request.wants_pack else kept_seal(request, self._source.identity)
            record = replace(record, identity=self._source.identity, seal=kept)
        if record != found:
            write_record(request, record)
        # The run that made it may have died before it cleared up, and one that was to make it anew may have, too.
        self._sweep_copies()
        if request.wants_pack and record.published is False:
            return self._finish(_finished(self._publish(record)))
        return self._finish()

    def _seal(self) -> Seal:
        pack = self._request.pack_path
        return file_seal(pack) if pack.is_file() else {}

    def _sweep_copies(self) -> None:
        """Remove what dead runs brought of the source only to read it."""
        source = self._request.source
        for part in source.parts if isinstance(source, ManySource) else (source,):
            sweep_copies(self._request.folder.parent, part.address)

    def _is_published(self) -> bool | None:
        """Return whether the pack that is here is the one in the cache, `None` when there is to be none."""
        if self._cache[0] is None:
            return None
        cached = self._find_cached()
        return cached is not None and cached.manifest == read_manifest(self._request.pack_path)

    def restore(self) -> StagedDataset | None:
        """Bring the packed copy from the cache, if it is there and whole, and the source is still the same."""
        request = self._request
        if request.refresh or not request.wants_pack:
            return None
        with self.report.timed("look in cache") as step:
            cached = self._find_cached()
            identity = None if cached is None else identity_of(cached.manifest)
            if cached is None or identity is None:
                step.note = "not there"
                return None
            if not self._is_fresh(identity):
                step.note = "made from an earlier state of the source"
                return None
            step.note = "; ".join(filter(None, (f"found '{cached.path.name}'", self._seen)))
        try:
            with self.report.timed("copy from cache", unit="B") as step:
                size, kept = run_watched(
                    lambda: restore_pack(cached, request, progress=self._progress, cancellation=self._cancellation),
                    cached.path,
                )
                step.amount = size - kept
                step.note = "verified block by block" + (
                    f"; {format_bytes(kept)} were here from before" if kept else ""
                )
        except (DamagedPackError, SourceError, DriveError) as error:
            self.report.note(f"The cached pack cannot be used: {error}")
            return None
        except NotEnoughSpaceError as error:
            if request.options.encoding != "auto":
                raise
            # It was made where pixels fit. What fits here is another file for the same key, so that one stays.
            self._keeps_cached = True
            self.report.note(f"The cached pack was left where it is, and another encoding may fit here: {error}")
            return None
        seal = self._seal()
        self.report.origin = "cache"
        self.report.skipped = cached.manifest.skipped
        files = self._make(pack=False) if request.wants_files else None
        now = self._source.identity if self._source and self._proved else identity
        write_record(request, LocalRecord(request.key, now, seal, files, published=True))
        return self._finish()

    def stage(self, *, wait: bool) -> StagedDataset:
        """Read the source, make what was asked for, and publish the pack to the cache.

        Raises:
            As `stage_dataset`.
        """
        request = self._request
        if request.options.incomparable:
            held = ", ".join(request.options.incomparable)
            self.report.note(
                f"What layout= or prepare= is given holds what nobody can compare ({held}), so nothing that was made "
                "with it before is used. Give a function that holds arrays, numbers and texts, and it is made once."
            )
        self.report.origin = "source"
        try:
            files = self._make(pack=True)
        except SourceListingError as error:
            # What a mount lists may lack what was there all the time; so once more, with what it lists now.
            self.report.note(f"{error} It was listed anew and read again.")
            self._close_source()
            files = self._make(pack=True)
        seal = self._seal() if request.wants_pack else {}
        source = self._open()
        identity = source.identity
        if source.resumed_bytes:
            self.report.note(
                f"{format_bytes(source.resumed_bytes)} of the source were here from a run that was interrupted."
            )
        if request.wants_pack:
            published = False if self._to_publish else None
            record = LocalRecord(request.key, identity, seal, files, published)
        else:
            record = files_record(request, identity, files)
        write_record(request, record)
        source.discard()
        # This run may not have needed what a dead one left.
        self._sweep_copies()
        if self._keeps_cached or not request.wants_pack:
            return self._finish()
        if not wait:
            return self._finish(_in_background(lambda: self._publish(record, quietly=True)))
        return self._finish(_finished(self._publish(record)))

    @property
    def _to_publish(self) -> bool:
        return not self._keeps_cached and self._cache[0] is not None

    @functools.cached_property
    def _cache(self) -> tuple[Path | None, str]:
        """Return the folder of lasting packs and the reason: asked once, since a Drive that hangs takes its time."""
        return choose_cache_dir(self._request)

    def plan(self) -> StagePlan:
        """Say what the three would do."""
        request = self._request
        record = None if request.refresh else find_record(request)
        problem = "it is not staged on this machine" if record is None else self._problem_here(record)
        if record is not None and problem is None:
            info = read_info(request.pack_path) if request.wants_pack else None
            rows = {} if info is None else {name: split.rows for name, split in info.splits.items()}
            return self._planned("reuse", ("It is whole and the source has not changed.",), StageFigures(), rows)
        reasons = [f"Here: {problem}."]
        cached = None if request.refresh or not request.wants_pack else self._find_cached()
        identity = None if cached is None else identity_of(cached.manifest)
        if cached is not None and identity is not None and not request.wants_files and self._is_fresh(identity):
            size = cached.manifest.size
            figures = StageFigures(source_bytes=size, pack_bytes=size)
            return self._planned("restore", (*reasons, f"Cache: '{cached.path}'."), figures, cached.manifest.samples)
        reasons.append("Cache: it is not there." if cached is None else "Cache: not of this state of the source.")
        if comes_whole(request.source):
            reasons.append("It would be downloaded first; what is in it is known only then.")
            return self._planned("stage", tuple(reasons), StageFigures(), {})
        source = self._open()
        if not source.opens_at_once:
            reasons.append("It can only be read from its beginning; what is in it is known when it is here.")
            return self._planned("stage", tuple(reasons), figure_out(request, source, None, None), {})
        if source.unpacks_first:
            reasons.append("It is compressed as a whole; what is in it is known when it is unpacked.")
            return self._planned("stage", tuple(reasons), figure_out(request, source, None, None), {})
        with tempfile.TemporaryDirectory() as spool:
            tree = source.open_tree(Path(spool))
            free = space_for(request.pack_path)
            job = prepare_pack(tree, request.options, free_bytes=free) if request.wants_pack else None
            if job is not None:
                reasons.append(f"Pack: {job.plan.encoding}, because {job.plan.reason}.")
            rows = {} if job is None else {split.name: len(split.samples) for split in job.plan.splits}
            return self._planned("stage", tuple(reasons), figure_out(request, source, tree, job), rows)

    def _planned(
        self, action: Action, reasons: tuple[str, ...], figures: StageFigures, rows: dict[str, int]
    ) -> StagePlan:
        request = self._request
        cache_dir, _ = self._cache if request.wants_pack else (None, "")
        return StagePlan(
            source=request.address,
            action=action,
            reasons=reasons,
            figures=figures,
            free_bytes=free_space(request.folder),
            target=request.pack_path if request.wants_pack else request.files_path,
            cache=None if cache_dir is None else cache_dir / f"{request.name}.h5",
            samples=rows,
        )

    def _problem_here(self, record: LocalRecord) -> str | None:
        """Why what is staged here cannot be used; `None` when it can."""
        request = self._request
        thorough = request.verify == "full"
        problem = None
        if request.wants_pack:
            problem = pack_problem(request, record, thorough=thorough, cancellation=self._cancellation)
        if problem is None and request.wants_files:
            problem = files_problem(request, record, thorough=thorough)
        if problem is None and not self._is_fresh(record.identity):
            problem = "the source has changed since it was staged"
        return problem

    def _is_fresh(self, recorded: SourceIdentity) -> bool:
        """Whether the source is still the recorded one. A source that is gone cannot have changed."""
        request = self._request
        if request.checksum is not None:
            if recorded.checksum != str(request.checksum):
                return False
            if request.verify == "fast":
                return True  # whatever the source is now: what is here is what was asked for
        if request.verify == "fast" and self._source is None:
            look = check_freshness(request.source, recorded, workers=SLOW_LISTERS if request.drive_path else 1)
            if look.state == "gone":
                self.report.note(f"The source cannot be reached now; what was made of it before is used. {look.detail}")
            if look.state == "silent":
                self.report.note(
                    f"Whether the source has changed is not known ({look.detail}); what was made of it is used."
                )
            if look.state == "same":
                self._seen = f"the source: {look.detail}"
            if look.state != "unsure":
                return look.state != "changed"
        source = self._try_open()
        if source is None:
            self.report.note(
                f"The source cannot be read now; what was made of it before is used. {self._source_problem}"
            )
            return True
        verdict = compare(recorded, source.identity)
        self._proved = verdict == "same"
        if self._proved:
            self._seen = f"the source: {proof_of(recorded, source.identity)}"
        if verdict == "unproved" and request.verify == "fast":
            self.report.note(
                "The source has the names and sizes that were staged, but nothing tells whether their content is the "
                "same: all times are other ones, as after a remount. verify='full' reads it again."
            )
            return True
        return verdict == "same"

    def _try_open(self) -> OpenSource | None:
        """Return the source, opened once; `None` when that fails, with the reason kept."""
        if self._source is not None or self._source_problem is not None:
            return self._source
        whole = comes_whole(self._request.source)
        if whole:
            make_own_folder(self._request.folder.parent)
        with self.report.timed("download" if whole else "open source", unit="B", moves=whole) as step:
            try:
                # Beside the dataset's own folder: the same source with other options goes on with what came of it.
                opening = Opening(self._request.folder.parent, self._progress, self._cancellation)
                with contextlib.ExitStack() as undo:
                    source = undo.enter_context(OpenSource(self._request.source, opening, unpack=True))
                    identity = source.identity
                    self._stack.enter_context(undo.pop_all())
                self._source = source
            except (SourceError, DriveError, ArchiveError) as error:
                self._source_problem = error
                step.unit, step.note = "", str(error)
            else:
                step.amount, step.note = identity.nbytes, format_count(identity.files, "files")
        return self._source

    def _open(self) -> OpenSource:
        source = self._try_open()
        if source is None:
            self._raise_source_problem()
        return source

    def _close_source(self) -> None:
        self._stack.close()
        self._source = self._source_problem = None

    def _raise_source_problem(self) -> NoReturn:
        assert self._source_problem is not None
        raise self._source_problem

    def _find_cached(self) -> CachedPack | None:
        if not self._request.wants_pack:
            return None
        cache_dir, _ = self._cache
        if cache_dir is None:
            return None
        try:
            return run_watched(lambda: find_cached(self._request, cache_dir), cache_dir)
        except DriveDisconnectedError as error:
            # It answered a moment ago. Whoever wants the data gets it without the cache, and is told.
            self._cache = (None, str(error).removesuffix("."))
            return None

    def _make(self, *, pack: bool) -> StagedFiles | None:
        """Make what was asked for, in a folder that goes again if nothing comes of it."""
        folder = self._request.folder
        made = not folder.exists()
        make_folder(folder)
        try:
            return make_local(
                self._request,
                self._open(),
                self.report,
                progress=self._progress,
                cancellation=self._cancellation,
                executor=self._executor,
                pack=pack,
            )
        except BaseException:
            if made:
                remove_empty(folder)  # it is, unless something was kept for the next try
            raise

    def _publish(self, record: LocalRecord, *, quietly: bool = False) -> PublishReport | None:
        """Copy the pack to the cache. A failure is noted, not raised: the data is here and can be used."""
        request = self._request
        cache_dir, why = self._cache
        if cache_dir is None:
            if request.cache_dir is not None:
                self.report.note(f"Not cached: {why}.")
            return None
        done = None
        with self.report.timed("publish to cache", unit="B") as step:
            try:
                target = cache_dir / f"{request.name}.h5"
                progress = NullProgress() if quietly else self._progress
                done = publish_file(request.pack_path, target, progress=progress)
                step.amount = done.nbytes - done.kept_bytes
                step.note = f"'{target}', read back and verified" + ("; uploading" if done.uploading else "")
            except (ColabstageError, OSError) as error:
                step.note = "failed"
                self.report.note(f"Not cached, so the next session stages from the source again: {error}")
        write_record(request, replace(record, published=done is not None))
        return done

    def _finish(self, publishing: Future[PublishReport | None] | None = None) -> StagedDataset:
        request = self._request
        # All is here, so nothing that a dead run left will be needed any more.
        sweep_orphans(request.folder)
        info = read_info(request.pack_path) if request.wants_pack else None
        if info is not None and request.options.encoding == "auto" and lacked_room(info):
            self.report.note(
                f"Images are kept as their files: {info.encoding_reason}. That was decided by the room there was when "
                "they were packed; refresh=True decides by what is free now, encoding= decides for good."
            )
        return StagedDataset(
            path=request.pack_path if info is not None else request.files_path,
            files=request.files_path if request.wants_files else None,
            report=self.report,
            info=info,
            publishing=publishing,
        )


def _finished(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _in_background(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread of its own, which the interpreter waits for when it ends."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - kept for whoever asks
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, name="colabstage-publish").start()
    return future
