"""One dataset in several files, each written by a task of its own, here or on another machine.

Which rows a shard holds depends only on the samples and the number of shards, so the files have the same bytes whoever
writes them. A task gets its planned rows, opens the source by its address, and makes sure that it is the same there.
When all shards are finished, they get their names (`set_stores`).
"""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from colabstage.errors import MissingDependencyError, OptionError, SourceChangedError, WorkersLostError
from colabstage.h5.parts import shard_pattern
from colabstage.images.decode import can_torch_resize
from colabstage.io.files import make_folder, temporary_folder
from colabstage.io.packages import installed_version
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Progress, ProgressStep
from colabstage.io.units import show_address
from colabstage.io.workspace import open_workspace
from colabstage.layouts.evidence import take_rows as take_rows_of_table
from colabstage.layouts.table import SampleTable, TreeFiles
from colabstage.machine.resources import free_space, usable_cores
from colabstage.pack.execute import LOST, PackReport, PackRun, place_joined, report_of, target_arrays
from colabstage.pack.job import (
    CallersDataset,
    OpenSource,
    PackJob,
    ReplanError,
    completed,
    open_source,
    plan_job,
    prepared_table,
    settled,
    take_rows,
    target_source,
)
from colabstage.pack.plan import PackPlan, SplitPlan
from colabstage.pack.set_stores import RemoteFolder, SetFolder, ShardName, ShardResult
from colabstage.pack.writer import check_share, sample_stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.pack.job import PackSource
    from colabstage.pack.options import PackOptions
    from colabstage.trees.listing import FileEntries, Tree

    Folder = SetFolder | RemoteFolder
    Written = Generator[tuple[ShardName, ShardResult]]


# Large enough that opening and uploading a file does not matter, small enough that a lost one is soon written again.
_SHARD_BYTES = 1_000_000_000
# Fewer shards would leave workers of a small cluster idle; with too few samples, a shard costs more than it gains.
_FEWEST, _FEWEST_SAMPLES = 8, 64
# Names have five digits.
_MOST = 99_999
# The most bytes of rows sent to a worker; more per sample would be a whole listing, or the contents.
_MOST_SENT_BYTES, _SENT_BYTES_OF_SAMPLE = 1 << 20, 1024


def count_shards(asked: int | None, job: PackJob) -> int:
    """Return how many shards are made: the requested number, or about one for each GB."""
    if asked is None:
        # From the samples alone, not the number of workers, so that the files are the same on any cluster.
        by_size = max(_FEWEST, -(-job.plan.nbytes // _SHARD_BYTES))
        return max(1, min(by_size, len(job.table) // _FEWEST_SAMPLES, _MOST))
    # A shard without a row in any split would be a file that cannot be read.
    most = min(_MOST, max(len(split.samples) for split in job.plan.splits))
    if not 1 <= asked <= most:
        msg = f"shards={asked!r} cannot work; expected 1 to {most:,}, at most the rows of the largest split."
        raise OptionError(msg)
    return asked


class ShardRows(NamedTuple):
    """The samples of one shard: a consecutive part of every split, so that shards in sequence are the single file's
    rows."""

    chosen: NDArray[np.int64]
    """Their numbers in the whole table, ascending, the source's order: a worker reads its part front to back."""
    plan: PackPlan

    @classmethod
    def of(cls, plan: PackPlan, name: ShardName) -> ShardRows:
        # By integer arithmetic: shards differ by at most one row, and together have each row once.
        parts = [
            SplitPlan(split, rows[len(rows) * name.number // name.total : len(rows) * (name.number + 1) // name.total])
            for split, rows in plan.splits
        ]
        splits = [part for part in parts if len(part.samples)]
        chosen = np.sort(np.concatenate([split.samples for split in splits]))
        return cls(chosen, take_rows(plan, chosen, splits))


def shard_job(job: PackJob, name: ShardName) -> PackJob:
    chosen, plan = ShardRows.of(job.plan, name)
    return PackJob(job.tree, take_rows_of_table(job.table, chosen), plan, _shard_options(job))


def _shard_options(job: PackJob) -> PackOptions:
    # All shards together decide how many samples may be left out.
    return job.options if job.options.skip_share is None else replace(job.options, on_error="skip")


def shard_names(job: PackJob, count: int, identity: Mapping[str, Any] | None = None) -> list[ShardName]:
    """Return all shards of a job's set, in order.

    `identity`: the state of an archive; with it, names include the state of their samples.
    """
    plan = job.plan
    # Another version may write other bytes for the same samples. The source's state is left out, because this digest is
    # in the file: another machine may have other times.
    options = job.options.places_fingerprint()
    facts = (installed_version("colabstage"), job.label, options, plan.encoding, plan.resizer, count)
    digest = hashlib.sha256(repr(facts).encode(errors="surrogateescape"))
    _hash_table(digest, job.table)
    for split in plan.splits:
        digest.update(np.ascontiguousarray(split.samples).tobytes())
    names = [ShardName(digest.hexdigest()[:16], number, count) for number in range(count)]
    return names if identity is None else [name._replace(state=_state_of(job, name, identity)) for name in names]


def _hash_table(digest: hashlib._Hash, table: SampleTable) -> str:
    # A key need not be UTF-8, because file names on Linux need not be.
    for text in (*table.classes, *table.keys):
        digest.update(f"{text}\n".encode(errors="surrogateescape"))
    # Lengths stand for contents: hashing all images would read the source twice.
    for values in (table.inputs.source.sizes, *target_arrays(table)):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _state_of(job: PackJob, name: ShardName, identity: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change with the state of a shard's samples in the source."""
    digest = hashlib.sha256(repr(sorted(identity.items())).encode())
    for stamp in map(sample_stamps(job.table), ShardRows.of(job.plan, name).chosen.tolist()):
        digest.update(stamp.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to write one shard. Picklable if `source` and the functions in `options` are."""

    source: PackSource
    """What is packed, under the name by which the worker can open it."""
    folder: Folder
    name: ShardName
    options: PackOptions
    rows: ShardRows
    table: bytes | None
    """Its samples, pickled without the open source that they are read from; `None` if they cannot be, and are found
    again."""
    digest: str
    """The number of all samples, if they are found again."""


class _TablePickler(pickle.Pickler):
    opened: object

    def persistent_id(self, obj: object) -> str | None:
        return "source" if obj is self.opened else None


class _TableUnpickler(pickle.Unpickler):
    opened: object

    def persistent_load(self, pid: object) -> object:
        return self.opened


def _pickled(table: SampleTable, opened: object) -> bytes | None:
    """Return a table as bytes; `None` if its samples are read by functions or open files, which cannot be pickled."""
    file = io.BytesIO()
    pickler = _TablePickler(file)
    pickler.opened = opened
    try:
        pickler.dump(table)
    # A layout's own objects may raise anything.
    except Exception:  # noqa: BLE001
        return None
    return file.getvalue() if file.tell() <= _MOST_SENT_BYTES + _SENT_BYTES_OF_SAMPLE * len(table) else None


def write_shard(task: ShardTask) -> ShardResult:
    """Write one shard unless it exists. Called in a worker, and again if a worker died."""
    if (done := task.folder.finished(task.name)) is not None:
        return done
    # By the plan, not by this machine: the set has one resizer, or its bytes would show who wrote them.
    if task.rows.plan.resizer == "torch" and not can_torch_resize():
        msg = (
            "This pack was planned where torch resizes images, and on this worker torch is missing, broken, or the "
            "processor has no AVX2; another resizer would write other bytes. Install torch on every worker, or "
            "plan the pack where there is none."
        )
        raise MissingDependencyError(msg)
    with task.folder.writing(task.name) as path, open_source(task.source, task.options, beside=path) as opened:
        job = PackJob(opened.tree, _planned_table(task, opened), task.rows.plan, task.options)
        progress, name = Progress(_AsLongAs(task.folder)), task.name
        return ShardResult.of(PackRun(job, path, opened.slow, progress, identity=opened.identity, shard=name).execute())


def _planned_table(task: ShardTask, opened: OpenSource) -> SampleTable:
    if task.table is not None:
        unpickler = _TableUnpickler(io.BytesIO(task.table))
        unpickler.opened = opened.tree or opened.dataset
        table: SampleTable = unpickler.load()
        if opened.tree is None or _is_listed(table, opened.tree):
            return table
    else:
        table = completed(opened.find())
        if _hash_table(hashlib.sha256(), table) == task.digest:
            # Before rows are taken: the first of all samples decides the form of all.
            if task.options.prepare is not None:
                table = prepared_table(table, task.options)
            return take_rows_of_table(table, task.rows.chosen)
    label = "The dataset" if opened.tree is None else f"'{opened.tree.label}'"
    msg = (
        f"{label} has other files here than where the pack was planned, or changed meanwhile. Make sure that all "
        "workers see the same source, and pack it again."
    )
    raise SourceChangedError(msg)


def _is_listed(table: SampleTable, tree: Tree) -> bool:
    """Tell whether a tree has the files of a table, with the same lengths and, in an archive, in the same places."""
    # In a folder, positions are places in its listing.
    columns = 1 if tree.kind == "folder" else 2

    def facts(entries: FileEntries) -> Iterator[tuple[Any, ...]]:
        numbers = (entries.sizes, entries.positions)[:columns]
        return zip(entries.names, *(column.tolist() for column in numbers), strict=True)

    listed = set(facts(tree.entries))
    sources = (table.inputs.source, target_source(table))
    return all(
        listed.issuperset(facts(source.entries))
        for source in sources
        if isinstance(source, TreeFiles) and source.tree is tree
    )


class _AsLongAs(Cancellation):
    """A cancellation that takes effect when a set is no longer wanted; it works across processes and machines."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder
        self._looked = time.monotonic()

    @property
    def cancelled(self) -> bool:
        """Return whether the set is no longer wanted, or `cancel` has been called."""
        now = time.monotonic()
        if now - self._looked > self._folder.look_s:
            self._looked = now
            if not self._folder.is_wanted():
                self.cancel()
        return super().cancelled


def write_shards(
    names: Sequence[ShardName],
    job: PackJob,
    done: Mapping[int, ShardResult],
    write: Callable[[list[ShardName], Progress], Written],
    progress: Progress,
) -> list[ShardResult]:
    """Return the results of all shards, in order: those `done` before, and those written now.

    `write`: writes some shards, and shows their samples as a part of one step.
    """
    results = dict(done)

    def check() -> None:
        skipped = [why for result in results.values() for why in result.skipped]
        check_share(job.options, skipped, len(job.table), lambda: skipped[0])

    left = [name for name in names if name.number not in results]
    with progress.step("pack", total=len(job.table), unit=job.table.unit) as step:
        step.start_at(sum(result.rows for result in results.values()))
        # Too many broken samples end this while tasks are running. Closing the generator stops them and waits; the
        # garbage collector might do that in the very thread that one of them runs in.
        with closing(write(left, _PartOfStep(step, progress.cancellation))) as coming:
            for name, result in coming:
                results[name.number] = result
                check()
    check()
    return [results[name.number] for name in names]


class _PartOfStep(Progress, ProgressStep):
    """Show the steps of one shard as part of a single step for all, which stays open."""

    def __init__(self, step: ProgressStep, cancellation: Cancellation) -> None:
        super().__init__(cancellation)
        self._step = step

    def step(self, name: str, *, total: int | None, unit: str) -> Self:
        """Return itself; packing has no other step."""
        return self

    def advance(self, amount: int = 1) -> None:
        self._step.advance(amount)

    def start_at(self, amount: int) -> None:
        self._step.start_at(amount)


def pack_set(
    source: PackSource | CallersDataset,
    target: Path | str,
    options: PackOptions,
    progress: Progress,
    *,
    shards: int | None,
    executor: Executor | None,
    overwrite: bool,
) -> PackReport:
    """Write all shards of a set; the arguments are those of `pack_dataset`.

    `target`: the single file whose shards are made: a path, or as text its address.
    """
    began = time.monotonic()
    path = target if isinstance(target, Path) else temporary_folder() / target.rpartition("/")[2]

    def shown(file: Path) -> Path | str:
        return file if isinstance(target, Path) else f"{show_address(target).rpartition('/')[0]}/{file.name}"

    with open_source(source, options, beside=path) as opened:
        # Workers use the resizer that is planned here, so it must be certain, not only expected.
        job = settled(plan_job(opened.tree, opened.find(), options, free_bytes=free_space(path.parent)))
        count = count_shards(shards, job)
        make_folder(path.parent)
        while True:
            names = shard_names(job, count, opened.identity())
            # Finished shards are kept for the next attempt.
            try:
                with (
                    SetFolder.open(target, names, job, overwrite=overwrite)
                    if isinstance(target, Path)
                    else RemoteFolder.open(target, names, job, overwrite=overwrite)
                ) as folder:
                    done = {name.number: found for name in names if (found := folder.finished(name)) is not None}
                    write = partial(_write_elsewhere, executor, source) if executor is not None else _write_here
                    results = write_shards(names, job, done, partial(write, opened, job, folder), progress)
                    # Too many broken samples have left the old set unchanged.
                    nbytes = folder.place(names)
            except ReplanError as found:
                # Start over: shards of pixels and shards of files cannot be read as one.
                job = found.plan_again(job)
                continue
            files = tuple(shown(path.with_name(name.file_of(path.name))) for name in names)
            report = set_report(job, results, began)
            return replace(report, path=shown(shard_pattern(path, count)), files=files, nbytes=nbytes)


def _write_here(
    opened: OpenSource, job: PackJob, folder: Folder, names: list[ShardName], progress: Progress
) -> Written:
    for name in names:
        with folder.writing(name) as path:
            run = PackRun(shard_job(job, name), path, opened.slow, progress, identity=opened.identity, shard=name)
            done = ShardResult.of(run.execute())
        yield name, done


def _write_elsewhere(  # noqa: PLR0917 - what the tasks are made of, each named once
    executor: Executor,
    source: PackSource | CallersDataset,
    opened: OpenSource,
    job: PackJob,
    folder: Folder,
    names: list[ShardName],
    progress: Progress,
) -> Written:
    # The caller asked for an executor, so its workers read the items.
    seen = source.dataset if isinstance(source, CallersDataset) else source
    seen = str(seen.absolute()) if isinstance(seen, Path) else seen
    digest, part = _hash_table(hashlib.sha256(), job.table), opened.tree or opened.dataset

    def task(name: ShardName) -> ShardTask:
        rows = ShardRows.of(job.plan, name)
        table = _pickled(take_rows_of_table(job.table, rows.chosen), part)
        return ShardTask(seen, folder, name, _shard_options(job), rows, table, digest)

    with (
        closing(run_tasks(executor, list(map(task, names)))) as coming,
        progress.step("pack", total=None, unit=job.table.unit) as step,
    ):
        for done, result in coming:
            step.advance(result.rows)
            yield done.name, result


def pack_joined(
    source: PackSource,
    out: Path,
    options: PackOptions,
    executor: Executor,
    progress: Progress,
    *,
    key: str,
    identity: Mapping[str, Any],
    address: str,
) -> PackReport:
    """Write one file whose parts an executor's workers make; they need access to `source` and to `out`'s folder."""
    # Kept after any error: each shard has its own manifest, and is checked before it is used again.
    with open_workspace(out.with_name(f"{out.stem}-parts{out.suffix}")) as workspace:
        pack = workspace.path / "pack.h5"
        made = pack_set(source, pack, options, progress, shards=None, executor=executor, overwrite=True)
        facts: dict[str, Any] = {"key": key, "identity": identity, "address": address}
        place_joined([*map(Path, made.files)], workspace.path, out, samples=made.samples, skipped=made.skipped, **facts)
    return made


def set_report(job: PackJob, results: Sequence[ShardResult], began: float) -> PackReport:
    """Return the report, without files, of a set that was begun at the monotonic time `began`."""
    done = ShardResult(
        {split.name: sum(one.samples.get(split.name, 0) for one in results) for split in job.plan.splits},
        tuple(why for one in results for why in one.skipped),
        sum(one.resumed for one in results),
        max(one.readers for one in results),
        {part: tuple(name for one in results for name in one.lost.get(part, ())) for part in LOST},
        (sum(one.outside[0] for one in results), next((one.outside[1] for one in results if one.outside[0]), "")),
    )
    return report_of(job, job.plan, done, seconds=time.monotonic() - began)


# How often one task may lose its worker. Dask itself tries three times before it reports a loss.
_MOST_LOSSES = 4
_LOOK_S = 0.5
# Stopped workers end between two samples, which may take a moment on a slow source.
_END_S = 60.0


def run_tasks(executor: Executor, tasks: Sequence[ShardTask]) -> Generator[tuple[ShardTask, ShardResult]]:
    """Have the workers of any executor write each shard, and yield `(task, result)` in the order in which they end.

    Close the generator to stop early: that stops running tasks, and waits for them. Tasks whose workers died are
    submitted again when the others have ended. A broken process pool accepts no more tasks, so it is replaced by a new
    one with as many processes; the executor itself stays open.
    """
    with ExitStack() as stack:
        for _ in range(_MOST_LOSSES):
            if not tasks:
                return
            lost = dict[ShardName, tuple[ShardTask, BaseException]]()
            with closing(_outcomes(executor, tasks)) as outcomes:
                for task, future in outcomes:
                    if (loss := _loss_of(future)) is None:
                        yield task, future.result()
                    else:
                        lost[task.name] = task, loss
            tasks, losses = [task for task, _ in lost.values()], [loss for _, loss in lost.values()]
            if losses and isinstance(losses[0], BrokenExecutor):
                # Imported where a pool has broken: few calls have one.
                import multiprocessing
                from concurrent.futures import ProcessPoolExecutor

                size = getattr(executor, "_max_workers", None) or usable_cores()
                # With spawned processes, since forking a process that has threads may hang the child.
                executor = ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"))
                stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        if tasks:
            msg = (
                f"The worker died {_MOST_LOSSES} times on the same task ({losses[0]}). It may have too little memory, "
                "or one file crashes the decoder. Finished work is kept."
            )
            raise WorkersLostError(msg) from losses[0]


def _outcomes(executor: Executor, tasks: Sequence[ShardTask]) -> Generator[tuple[ShardTask, Future[ShardResult]]]:
    """Submit tasks, and yield each when it has ended."""
    folder = tasks[0].folder
    pending: dict[Future[ShardResult], ShardTask] = {}
    sign, last_sign_s = folder.signs(), SYSTEM_CLOCK.now()
    try:
        pending |= {_submitted(executor, task): task for task in tasks}
        while pending:
            finished, _ = wait(pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if finished or (now := folder.signs()) != sign:
                sign, last_sign_s = sign if finished else now, SYSTEM_CLOCK.now()
            elif SYSTEM_CLOCK.now() - last_sign_s > folder.silence_s:
                msg = (
                    f"{len(pending)} tasks are with the executor, but for {folder.silence_s:,.0f} s none has ended or "
                    "written anything. Look at its workers, then start again: finished work is kept."
                )
                raise WorkersLostError(msg)  # noqa: TRY301 - stops the others, as what a worker raises
            for future in finished:
                yield pending.pop(future), future
    except BaseException:
        folder.stop()
        raise
    finally:
        # Tasks that have not begun are cancelled; the others are waited for.
        for future in pending:
            future.cancel()
        wait(pending, timeout=_END_S)


def _submitted(executor: Executor, task: ShardTask) -> Future[ShardResult]:
    try:
        return executor.submit(write_shard, task)
    except BrokenExecutor as error:
        failed = Future[ShardResult]()
        failed.set_exception(error)
        return failed


def _loss_of(future: Future[Any]) -> BaseException | None:
    """Return why the worker of a task failed; `None` if the task itself has ended, by a result or an error."""
    error = CancelledError("cancelled") if future.cancelled() else future.exception()
    # Dask's own by the name of its module, so that it need not be imported, or installed.
    is_loss = isinstance(error, BrokenExecutor | CancelledError) or type(error).__module__.startswith("distributed.")
    return error if is_loss else None
