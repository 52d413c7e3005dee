"""One dataset in several files, each written by a task of its own, here or on another machine.

Which rows a shard holds follows from the samples and the number of shards alone, so the files are the same bytes
whoever writes them. A task opens the source by its address, plans as the caller did, and makes sure that it came to the
same; it writes into a folder beside the target. When all shards are there they take their places.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import (
    DecodeError,
    LayoutError,
    MissingDependencyError,
    OptionError,
    SourceChangedError,
    TargetExistsError,
)
from colabstage.h5.manifest import is_as_written, read_manifest, remove_manifest
from colabstage.h5.parts import shard_path, shard_pattern, shards_beside
from colabstage.images.geometry import can_torch_resize
from colabstage.io.files import disk_use, make_folder
from colabstage.io.ownership import remove_vouched, whatever_is_there
from colabstage.io.progress import Cancellation, NullProgress
from colabstage.io.temporaries import remove_own
from colabstage.io.workspace import open_workspace, unless
from colabstage.machine.resources import check_space, free_space
from colabstage.pack.dispatch import run_tasks
from colabstage.pack.execute import (
    PackReport,
    ShardName,
    animation_notes,
    keeps_files,
    place_pack,
    run_pack,
    target_arrays,
)
from colabstage.pack.job import CallersDataset, open_samples, plan_job, seen_facts
from colabstage.pack.resizer import settled
from colabstage.pack.splits import SplitPlan, take_rows, take_samples
from colabstage.pack.writer import MixedImagesError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from concurrent.futures import Executor

    from colabstage.images.decode import ImageFacts
    from colabstage.images.geometry import Resizer
    from colabstage.io.progress import Progress
    from colabstage.pack.job import OpenSamples, PackJob, PackSource
    from colabstage.pack.options import PackOptions

_SHARD_BYTES = 1_000_000_000
# Fewer would leave the workers of a small cluster idle; where shards get too few samples they cost more than they give.
_FEWEST = 8
_FEWEST_SAMPLES = 64
_MOST = 99_999
# In the folder that shards are written in: as long as it is there, they are wanted.
WANTED = "wanted"
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Hold all that a worker needs to write one shard. Picklable where `source` and the functions in `options` are."""

    source: PackSource
    """What is packed, under the name by which the worker sees it."""
    folder: str
    """Where to write it."""
    target: str
    """The file whose shards these are, for their names."""
    options: PackOptions
    """How samples become a file."""
    facts: tuple[ImageFacts, ...]
    """The images that the caller planned with."""
    free_bytes: int
    """The room that the caller planned with."""
    encoded: bool
    """Whether images turned out to be of many sizes, so that all stay as they came."""
    resizer: Resizer | None
    """What scales the images wherever a shard is written."""
    name: ShardName
    """Which of the shards this is."""

    @property
    def path(self) -> Path:
        """Return the shard's file."""
        return shard_path(Path(self.folder) / Path(self.target).name, self.name.number, self.name.total)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Tell what became of one shard."""

    samples: dict[str, int]
    """Rows of each split."""
    skipped: tuple[str, ...]
    """One sentence for each sample that was left out."""
    resumed: int
    """Samples that were in place before."""
    readers: int
    """Reads in flight at the most."""
    animated: tuple[str, ...] = ()
    """The names of animations, as far as this run has seen them."""

    @property
    def rows(self) -> int:
        """Return the samples that are done, one way or the other."""
        return sum(self.samples.values()) + len(self.skipped)


def default_shards(job: PackJob) -> int:
    """Return how many shards a dataset has if nobody says: about one for each GB. Depends on the samples alone."""
    by_size = max(_FEWEST, -(-job.plan.nbytes // _SHARD_BYTES))
    return max(1, min(by_size, len(job.table) // _FEWEST_SAMPLES, _MOST))


def check_shards(count: int, job: PackJob) -> int:
    """Return `count` if so many shards can be made.

    Raises:
        OptionError: it is no such number, or some shards would hold nothing.
    """
    most = min(_MOST, max(len(split.samples) for split in job.plan.splits))
    if not 1 <= count <= most:
        msg = f"shards={count!r} cannot work; expected 1 to {most:,}, the rows of the largest split at the most."
        raise OptionError(msg)
    return count


def shard_splits(splits: Sequence[SplitPlan], number: int, count: int) -> list[SplitPlan]:
    """Return the rows of one shard: of every split its part in turn, so that all shards together are the one file's
    rows.
    """
    parts = []
    for split in splits:
        rows = len(split.samples)
        own = split.samples[rows * number // count : rows * (number + 1) // count]
        if len(own):
            parts.append(SplitPlan(split.name, own))
    return parts


def shard_job(job: PackJob, number: int, count: int) -> PackJob:
    """Return the part of a job that is one shard."""
    splits = shard_splits(job.plan.splits, number, count)
    chosen = np.sort(np.concatenate([split.samples for split in splits]))
    return replace(job, table=take_samples(job.table, chosen), plan=take_rows(job.plan, chosen, splits))


def made_of(job: PackJob, count: int) -> str:
    """Return 16 hexadecimal digits that differ whenever some shard of the set would."""
    digest = hashlib.sha256()
    facts = (
        version("colabstage"),
        job.label,
        job.options.places_fingerprint(),
        job.plan.encoding,
        job.plan.resizer,
        count,
    )
    digest.update(repr(facts).encode(errors="surrogateescape"))
    for text in (*job.table.classes, *job.table.keys):
        digest.update(f"{text}\n".encode(errors="surrogateescape"))
    rows = (job.table.inputs.source.sizes, *target_arrays(job.table), *(split.samples for split in job.plan.splits))
    for values in rows:
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def write_shard(task: ShardTask) -> ShardResult:
    """Write one shard, unless it is there. Called in a worker; may be called again when one died.

    Raises:
        SourceChangedError: the source is not what the caller planned with.
        MixedImagesError: an image is not of the shape that was planned; all shards have to be planned anew.
        CancelledError: the caller does not want it any more.
        MissingDependencyError: the caller planned with torch as the resizer, which cannot be used here.
        As `pack_dataset`.
    """
    done = finished_shard(task.path, task.name)
    if done is not None:
        return done
    has_torch = task.resizer == "torch"
    if has_torch:
        _check_torch()
    with open_samples(task.source, task.options, beside=task.path) as opened:
        job = plan_job(
            opened.tree,
            opened.table,
            task.options,
            free_bytes=task.free_bytes,
            facts=task.facts,
            has_torch=has_torch,
        )
        return write_shard_of(keeps_files(job) if task.encoded else job, opened, task)


def _check_torch() -> None:
    if not can_torch_resize():
        msg = (
            "This pack was planned where torch resizes images, and on this worker torch is missing, broken, or the "
            "processor has no AVX2; another resizer would write other bytes. Install torch on every worker, or plan "
            "the pack where there is none."
        )
        raise MissingDependencyError(msg)


def write_shard_of(job: PackJob, opened: OpenSamples, task: ShardTask) -> ShardResult:
    """Write one shard of a job that is planned, unless it is there; raises as `write_shard`."""
    done = finished_shard(task.path, task.name)
    if done is not None:
        return done
    job.options.check_code()
    if made_of(job, task.name.total) != task.name.made_of:
        msg = (
            f"'{job.label}' has other files here than where the pack was planned, or changed meanwhile. Make sure that "
            "all workers see the same source, and pack it again."
        )
        raise SourceChangedError(msg)
    report = run_pack(
        shard_job(job, task.name.number, task.name.total),
        task.path,
        slow=opened.slow,
        progress=NullProgress(),
        cancellation=_AsLongAs(Path(task.folder) / WANTED),
        identity=opened.identity,
        address=job.label,
        shard=task.name,
    )
    return ShardResult(dict(report.samples), report.skipped, report.resumed, report.readers, report.animated)


def finished_shard(path: Path, name: ShardName) -> ShardResult | None:
    """Return what became of a shard that is there and whole; `None` when it is not, or is another set's."""
    manifest = read_manifest(path)
    if manifest is None or manifest.shard != str(name) or not path.is_file() or path.stat().st_size != manifest.size:
        return None
    return ShardResult(manifest.samples, manifest.skipped, sum(manifest.samples.values()), 0)


class _AsLongAs(Cancellation):
    """Count as cancelled once a file is gone: how other processes, on other machines, are told to stop."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._looked = 0.0

    @property
    def cancelled(self) -> bool:
        """Return whether the file is gone, or `cancel` has been called."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            if not self._path.exists():
                self.cancel()
        return super().cancelled

    def check(self) -> None:
        """Raise `CancelledError` if it is."""
        if self.cancelled:
            super().check()


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Say what is to be packed into how many shards of the dataset that one file would hold."""

    source: PackSource | CallersDataset
    """What is packed."""
    target: Path
    """The one file."""
    options: PackOptions
    """How samples become a file."""
    shards: int | None
    """How many shards; `None` for `default_shards`."""
    executor: Executor | None
    """Who writes them; `None` for this process."""
    overwrite: bool
    """Whether what stands there may be replaced."""
    write: Callable[[SetPlan, Progress, float], PackReport] | None = None
    """How they are written, if not by `SetPlan.execute`."""

    def pack(self, progress: Progress) -> PackReport:
        """Write all shards.

        Raises:
            As `pack_dataset`.
        """
        began = time.monotonic()
        with open_samples(self.source, self.options, beside=self.target) as opened:
            facts = tuple(seen_facts(opened.tree, opened.table, self.options))
            free_bytes = free_space(self.target.parent)
            # Its workers resize by what is planned here, so that is made sure of first.
            job = settled(plan_job(opened.tree, opened.table, self.options, free_bytes=free_bytes, facts=facts))
            count = default_shards(job) if self.shards is None else check_shards(self.shards, job)
            plan = SetPlan(self, opened, job, count, facts, free_bytes)
            make_folder(self.target.parent)
            write = self.write or SetPlan.execute
            try:
                return write(plan, progress, began)
            except MixedImagesError as error:
                if self.options.encoding == "pixels":
                    msg = f"These images cannot be stored as pixels: {error}."
                    raise LayoutError(msg) from error
            return write(replace(plan, job=keeps_files(job), encoded=True), progress, began)


@dataclass(frozen=True, slots=True)
class SetPlan:
    """Make one attempt to write a planned set."""

    wanted: ShardSet
    """What was asked for."""
    opened: OpenSamples
    """The source."""
    job: PackJob
    """The plan of all samples."""
    count: int
    """How many shards."""
    facts: tuple[ImageFacts, ...]
    """The images that were looked at."""
    free_bytes: int
    """The room that was there when it was planned."""
    encoded: bool = False
    """Whether all images stay as they came, because they are of many sizes."""

    def names(self) -> list[ShardName]:
        """Return all shards of the set, in order."""
        made = made_of(self.job, self.count)
        return [ShardName(made, number, self.count) for number in range(self.count)]

    def execute(self, progress: Progress, began: float) -> PackReport:
        """Write beside, then publish; what a failure leaves is kept for the next try."""
        target = self.wanted.target
        names = self.names()
        others = self._others(names)
        model = target.with_name(f"{target.stem}-shards{target.suffix}")
        # Of these two, one needs shards of another form, and the other has nothing to go on with.
        with open_workspace(model, keeps=unless(MixedImagesError, TargetExistsError)) as workspace:
            folder = workspace.path
            try:
                check_space(
                    target.parent, max(0, self.job.plan.nbytes - disk_use(folder)), f"The pack of '{self.job.label}'"
                )
                (folder / WANTED).touch()
                results = self._write(folder, names, progress)
            finally:
                remove_own(folder / WANTED)  # whoever still works on a shard stops
            check_share(self.job, results)
            for name in names:
                file = shard_path(folder / target.name, name.number, name.total)
                if file.exists():
                    place_pack(file, shard_path(target, name.number, name.total))
            for other in others:
                remove_vouched(other, whatever_is_there)
                remove_manifest(other)
        files = [shard_path(target, number, self.count) for number in range(self.count)]
        nbytes = sum(file.stat().st_size for file in files)
        return set_report(
            self.job, results, pattern=shard_pattern(target, self.count), files=files, nbytes=nbytes, began=began
        )

    def _others(self, names: list[ShardName]) -> list[Path]:
        """Return what stands in the way and goes at the end; shards of this very set do not, nor those that are
        replaced.

        Raises:
            TargetExistsError: there is something, and it must not be replaced.
        """
        target = self.wanted.target
        own = {shard_path(target, name.number, name.total): name for name in names}
        there = [path for path in (target, *shards_beside(target)) if path.exists()]
        foreign = [path for path in there if path not in own or finished_shard(path, own[path]) is None]
        if foreign and not self.wanted.overwrite:
            msg = f"'{foreign[0]}' exists. Choose another name, or give overwrite=True to replace it."
            raise TargetExistsError(msg)
        others = [path for path in foreign if path not in own]
        for path in others:
            if path != target and not is_as_written(path):
                msg = f"'{path}' has the name of a shard, and colabstage did not write it as it is now. Rename it."
                raise TargetExistsError(msg)
        return others

    def _write(self, folder: Path, names: list[ShardName], progress: Progress) -> list[ShardResult]:
        """Return the results of all shards, in order."""
        target = self.wanted.target
        results: dict[int, ShardResult] = {}
        for name in names:
            placed = finished_shard(shard_path(target, name.number, name.total), name)
            if placed is not None:
                results[name.number] = placed
        tasks = [self.task(name, folder.absolute()) for name in names if name.number not in results]
        return self.collect(results, self._run(tasks, folder), progress)

    def task(self, name: ShardName, folder: Path) -> ShardTask:
        """Return what the writer of one shard is told."""
        source, options = self.wanted.source, self.job.options
        if isinstance(source, CallersDataset):
            source = source.dataset  # an executor's workers were asked for, and are the ones to read it
        if options.skip_share is not None:
            options = replace(options, on_error="skip")  # the share is of all shards together
        return ShardTask(
            source=str(Path(source).absolute()) if isinstance(source, Path) else source,
            folder=str(folder),
            target=str(self.wanted.target),
            options=options,
            facts=self.facts,
            free_bytes=self.free_bytes,
            encoded=self.encoded,
            resizer=self.job.plan.resizer,
            name=name,
        )

    def collect(
        self, done: Mapping[int, ShardResult], coming: Generator[tuple[ShardTask, ShardResult]], progress: Progress
    ) -> list[ShardResult]:
        """Return the results of all shards, in order: those that were `done` before, and those that are `coming`."""
        results = dict(done)
        # Too many broken samples end this while tasks run. The generator stops them and waits for them: left to the
        # garbage collector, it might do so in the very thread that one of them runs in.
        with closing(coming), progress.step("pack", total=len(self.job.table), unit=self.job.table.unit) as step:
            step.advance(sum(result.rows for result in results.values()))
            for task, result in coming:
                results[task.name.number] = result
                step.advance(result.rows)
                check_share(self.job, list(results.values()))
        return [results[number] for number in range(self.count)]

    def _run(self, tasks: list[ShardTask], folder: Path) -> Generator[tuple[ShardTask, ShardResult]]:
        if self.wanted.executor is None:
            yield from ((task, write_shard_of(self.job, self.opened, task)) for task in tasks)
            return
        yield from run_tasks(
            self.wanted.executor,
            write_shard,
            tasks,
            signs=lambda: disk_use(folder),
            stop=lambda: remove_own(folder / WANTED),
        )


def check_share(job: PackJob, results: Sequence[ShardResult]) -> None:
    """Stop when more samples are out than may be."""
    share = job.options.skip_share
    skipped = [why for result in results for why in result.skipped]
    if share is not None and len(skipped) > share * len(job.table):
        msg = (
            f"{len(skipped):,} of {len(job.table):,} samples cannot be used, more than "
            f"on_error={job.options.on_error!r} allows. One of them: {skipped[0]}. Finished work is kept."
        )
        raise DecodeError(msg)


def set_report(
    job: PackJob,
    results: Sequence[ShardResult],
    *,
    pattern: Path | str,
    files: Sequence[Path | str],
    nbytes: int,
    began: float,
) -> PackReport:
    """Return what became of a set: `files` that match `pattern`, of `nbytes` in all, begun at `time.monotonic()`
    `began`.
    """
    seconds = time.monotonic() - began
    animated = tuple(name for result in results for name in result.animated)
    return PackReport(
        path=pattern,
        encoding=job.plan.encoding,
        reason=job.plan.reason,
        samples={split.name: sum(one.samples.get(split.name, 0) for one in results) for split in job.plan.splits},
        classes=job.table.classes,
        skipped=tuple(why for result in results for why in result.skipped),
        nbytes=nbytes,
        seconds=seconds,
        packing_s=seconds,
        resumed=sum(result.resumed for result in results),
        readers=max(result.readers for result in results),
        notes=(*job.notes, *animation_notes(animated)),
        files=tuple(files),
        animated=animated,
        resizer=job.plan.resizer,
        unit=job.table.unit,
    )
