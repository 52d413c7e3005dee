"""One dataset in several files, each written by a task of its own, here or on another machine.

Which rows a shard holds follows from the samples and the number of shards alone, so the files have the same bytes
whoever writes them. A task opens the source by its address, plans as the caller did, and makes sure that the plans
agree; it writes into a folder beside the target. When all shards are finished, they are moved to their places.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import (
    MissingDependencyError,
    OptionError,
    SourceChangedError,
    TargetExistsError,
)
from colabstage.h5.manifest import (
    is_as_written,
    is_replaceable_pack,
    place_pack,
    read_manifest,
    remove_manifest,
)
from colabstage.h5.parts import shard_path, shard_pattern, shards_beside
from colabstage.images.resample import can_torch_resize
from colabstage.io.files import make_folder
from colabstage.io.ownership import remove_vouched, whatever_is_there
from colabstage.io.progress import Cancellation, NullProgress, start_at
from colabstage.io.workspace import disk_use, open_workspace, remove_own, unless
from colabstage.layouts.evidence import take_rows as take_rows_of_table
from colabstage.machine.resources import check_space, free_space
from colabstage.pack.dispatch import run_tasks
from colabstage.pack.execute import (
    PackReport,
    ShardName,
    animation_notes,
    keeps_files,
    run_pack,
    target_arrays,
)
from colabstage.pack.finish import OddBoxes, place_joined
from colabstage.pack.job import (
    CallersDataset,
    open_samples,
    plan_job,
    seen_facts,
    settled,
    take_rows,
)
from colabstage.pack.plan import SplitPlan
from colabstage.pack.writer import MixedImagesError, check_share

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from colabstage.h5.manifest import Manifest
    from colabstage.images.decode import ImageFacts
    from colabstage.images.resample import Resizer
    from colabstage.io.progress import Progress
    from colabstage.pack.job import OpenSamples, PackJob, PackSource
    from colabstage.pack.options import PackOptions

# Large enough that opening and uploading a file does not count, small enough that a lost one is soon written again.
_SHARD_BYTES = 1_000_000_000
# Fewer shards would leave workers of a small cluster idle; with too few samples, a shard costs more than it gains.
_FEWEST = 8
_FEWEST_SAMPLES = 64
# Names have five digits.
_MOST = 99_999
# A file in the folder of unfinished shards: workers continue as long as it exists. A shared folder is the one thing
# that all executors' workers have in common, so cancelling works for each of them.
WANTED = "wanted"
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to write one shard. Picklable if `source` and the functions in `options` are."""

    source: PackSource
    """What is packed, under the name by which the worker can open it."""
    folder: str
    """The folder to write to."""
    target: str
    """The file whose shards these are, for their names."""
    options: PackOptions
    """How samples become a file."""
    facts: tuple[ImageFacts, ...]
    """The images that the caller planned with."""
    free_bytes: int
    """The free space that the caller planned with."""
    encoded: bool
    """Whether images turned out to have many sizes, so that their files are stored."""
    resizer: Resizer | None
    """What resizes the images, on every worker."""
    name: ShardName
    """Which of the shards this is."""

    @property
    def path(self) -> Path:
        """Return the shard's file."""
        return shard_path(Path(self.folder) / Path(self.target).name, self.name.number, self.name.total)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one task has written."""

    samples: dict[str, int]
    """Rows of each split."""
    skipped: tuple[str, ...]
    """One sentence for each sample that was left out."""
    resumed: int
    """Samples that were in place before."""
    readers: int
    """The largest number of reads in flight."""
    animated: tuple[str, ...] = ()
    """The names of animations, as far as this run has seen them."""
    odd_boxes: OddBoxes = field(default_factory=OddBoxes)
    """How many boxes a model may refuse or misread, as far as this run has seen them."""

    @classmethod
    def of(cls, manifest: Manifest) -> ShardResult:
        """Return the result of a shard that was finished before."""
        return cls(manifest.samples, manifest.skipped, sum(manifest.samples.values()), 0)

    @classmethod
    def of_report(cls, report: PackReport) -> ShardResult:
        """Return the result of a shard that was written now."""
        samples = dict(report.samples)
        return cls(samples, report.skipped, report.resumed, report.readers, report.animated, report.odd_boxes)

    @property
    def rows(self) -> int:
        """Return how many samples are done, whether stored or left out."""
        return sum(self.samples.values()) + len(self.skipped)


def default_shards(job: PackJob) -> int:
    """Return the default number of shards: about one for each GB."""
    # From the samples alone and not from the number of workers, so that the files are the same on any cluster.
    by_size = max(_FEWEST, -(-job.plan.nbytes // _SHARD_BYTES))
    return max(1, min(by_size, len(job.table) // _FEWEST_SAMPLES, _MOST))


def check_shards(count: int, job: PackJob) -> int:
    """Return `count` if that many shards can be made.

    Raises:
        OptionError: they cannot, because some would be empty.
    """
    # A shard without a row in any split would be a file that nobody can read.
    most = min(_MOST, max(len(split.samples) for split in job.plan.splits))
    if not 1 <= count <= most:
        msg = f"shards={count!r} cannot work; expected 1 to {most:,}, at most the rows of the largest split."
        raise OptionError(msg)
    return count


def shard_splits(splits: Sequence[SplitPlan], number: int, count: int) -> list[SplitPlan]:
    """Return the rows of one shard: a consecutive part of every split."""
    # Consecutive, so that the shards one after the other are the rows of the single file.
    parts = []
    for split in splits:
        rows = len(split.samples)
        # Integer arithmetic: shards differ by at most one row, and together have each row once.
        own = split.samples[rows * number // count : rows * (number + 1) // count]
        if len(own):
            parts.append(SplitPlan(split.name, own))
    return parts


def shard_job(job: PackJob, number: int, count: int) -> PackJob:
    """Return the part of a job that is one shard; how many samples may be left out, all shards say together."""
    options = job.options if job.options.skip_share is None else replace(job.options, on_error="skip")
    splits = shard_splits(job.plan.splits, number, count)
    # Ascending, which is the order of the source: a worker reads its part of it from front to back.
    chosen = np.sort(np.concatenate([split.samples for split in splits]))
    return replace(
        job, table=take_rows_of_table(job.table, chosen), plan=take_rows(job.plan, chosen, splits), options=options
    )


def made_of(job: PackJob, count: int) -> str:
    """Return 16 hexadecimal digits that change whenever any shard of the set would."""
    digest = hashlib.sha256()
    facts = (
        # Another version may write other bytes for the same samples.
        version("colabstage"),
        job.label,
        job.options.places_fingerprint(),
        job.plan.encoding,
        job.plan.resizer,
        count,
    )
    digest.update(repr(facts).encode(errors="surrogateescape"))
    # A key may hold what is not UTF-8, as file names on Linux can.
    for text in (*job.table.classes, *job.table.keys):
        digest.update(f"{text}\n".encode(errors="surrogateescape"))
    # Lengths stand for contents: hashing all images would read the source twice.
    rows = (job.table.inputs.source.sizes, *target_arrays(job.table), *(split.samples for split in job.plan.splits))
    for values in rows:
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def shard_names(job: PackJob, count: int) -> list[ShardName]:
    """Return all shards of the set that a job makes, in order."""
    made = made_of(job, count)
    return [ShardName(made, number, count) for number in range(count)]


def write_shard(task: ShardTask) -> ShardResult:
    """Write one shard unless it exists. Called in a worker, and again when a worker died.

    Raises:
        SourceChangedError: the source differs from the one that the caller planned with.
        MixedImagesError: an image does not have the planned shape; all shards have to be planned again.
        CancelledError: the caller no longer wants the shard.
        MissingDependencyError: the caller planned with torch as the resizer, which cannot be used here.
        Exception: as `pack_dataset`.
    """
    done = finished_shard(task.path, task.name)
    if done is not None:
        return done
    # Asked of the plan and not of this machine: the set has one resizer, or its bytes would show who wrote them.
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
    """Write one shard of a planned job unless it exists; raises as `write_shard`."""
    done = finished_shard(task.path, task.name)
    if done is not None:
        return done
    # Rows computed by a function that has changed since it was planned would stand beside others in one dataset.
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
    return ShardResult.of_report(report)


def finished_shard(path: Path, name: ShardName) -> ShardResult | None:
    """Return the result of a shard that is complete; `None` when it is not, or belongs to another set."""
    manifest = read_manifest(path)
    # By the manifest, which is written last: a file without one was being written when its worker died.
    if manifest is None or manifest.shard != str(name) or not path.is_file() or path.stat().st_size != manifest.size:
        return None
    return ShardResult.of(manifest)


class _AsLongAs(Cancellation):
    """A cancellation that takes effect when a file is removed, which works for other processes and machines."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._looked = 0.0

    @property
    def cancelled(self) -> bool:
        """Return whether the file is gone, or `cancel` has been called."""
        now = time.monotonic()
        # It is asked for every sample, and the file may be on a network.
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
    """What to pack, and into how many shards."""

    source: PackSource | CallersDataset
    """What is packed."""
    target: Path
    """The single file whose shards are made."""
    options: PackOptions
    """How samples become a file."""
    shards: int | None
    """How many shards; `None` for `default_shards`."""
    executor: Executor | None
    """The executor whose workers write them; `None` for this process."""
    overwrite: bool
    """Whether existing files may be replaced."""
    write: Callable[[SetPlan, Progress, float], PackReport] | None = None
    """A function that writes them in place of `SetPlan.execute`."""

    def pack(self, progress: Progress) -> PackReport:
        """Write all shards.

        Raises:
            As `pack_dataset`.
        """
        began = time.monotonic()
        with open_samples(self.source, self.options, beside=self.target) as opened:
            # The images looked at for the plan go to the workers, who then plan the same without reading them again.
            facts = tuple(seen_facts(opened.tree, opened.table, self.options))
            free_bytes = free_space(self.target.parent)
            # Workers use the resizer that is planned here, so it has to be certain and not only expected.
            job = settled(plan_job(opened.tree, opened.table, self.options, free_bytes=free_bytes, facts=facts))
            count = default_shards(job) if self.shards is None else check_shards(self.shards, job)
            plan = SetPlan(self, opened, job, count, facts, free_bytes)
            make_folder(self.target.parent)
            write = self.write or SetPlan.execute
            try:
                return write(plan, progress, began)
            except MixedImagesError as error:
                if self.options.encoding == "pixels":
                    raise error.as_refusal() from error
            # Once more from the beginning: shards of pixels and shards of files cannot be read as one.
            return write(replace(plan, job=keeps_files(job), encoded=True), progress, began)


@dataclass(frozen=True, slots=True)
class SetPlan:
    """One attempt to write a planned set."""

    wanted: ShardSet
    """What was asked for."""
    opened: OpenSamples
    """The source."""
    job: PackJob
    """The plan of all samples."""
    count: int
    """How many shards."""
    facts: tuple[ImageFacts, ...]
    """The images that were examined."""
    free_bytes: int
    """The free space when it was planned."""
    encoded: bool = False
    """Whether image files are stored, because the images have many sizes."""

    def names(self) -> list[ShardName]:
        """Return all shards of the set, in order."""
        return shard_names(self.job, self.count)

    def execute(self, progress: Progress, began: float) -> PackReport:
        """Write beside the target, then publish; finished shards are kept for the next attempt."""
        target = self.wanted.target
        names = self.names()
        # Before any work: what must not be replaced is an error within a second, and not after hours.
        others = self._others(names)
        model = target.with_name(f"{target.stem}-shards{target.suffix}")
        # After the first of these errors shards of another form are needed; before the second nothing was written.
        with open_workspace(model, keeps=unless(MixedImagesError, TargetExistsError)) as workspace:
            folder = workspace.path
            try:
                check_space(
                    target.parent, max(0, self.job.plan.nbytes - disk_use(folder)), f"The pack of '{self.job.label}'"
                )
                (folder / WANTED).touch()
                results = self._write(folder, names, progress)
            finally:
                remove_own(folder / WANTED)  # workers that still write a shard stop
            # Before any is put in place: too many broken samples leave the old set as it was.
            check_set(self.job, results)
            for name in names:
                file = shard_path(folder / target.name, name.number, name.total)
                if file.exists():
                    place_pack(file, shard_path(target, name.number, name.total))
            for other in others:
                # Last, when the whole new set is in place: until then the old one is all there is.
                if remove_vouched(other, whatever_is_there if other == target else is_as_written):
                    remove_manifest(other)
        files = [shard_path(target, number, self.count) for number in range(self.count)]
        nbytes = sum(file.stat().st_size for file in files)
        return set_report(
            self.job, results, pattern=shard_pattern(target, self.count), files=files, nbytes=nbytes, began=began
        )

    def _others(self, names: list[ShardName]) -> list[Path]:
        """Return existing files that are removed at the end: all but this set's own shards and those to be replaced.

        Raises:
            TargetExistsError: there are such files, but they must not be replaced.
        """
        target = self.wanted.target
        # Shards of this very set were placed by a run that was interrupted while it put them there.
        own = {shard_path(target, name.number, name.total): name for name in names}
        there = [path for path in (target, *shards_beside(target)) if os.path.lexists(path)]
        foreign = [path for path in there if path not in own or finished_shard(path, own[path]) is None]
        if foreign and not self.wanted.overwrite:
            msg = f"'{foreign[0]}' exists. Choose another name, or give overwrite=True to replace it."
            raise TargetExistsError(msg)
        for path in foreign:
            # The caller named `target` and gave overwrite=True for it; nobody named these.
            if path != target and not is_replaceable_pack(path):
                msg = f"'{path}' has the name of a shard, and colabstage did not write it as it is now. Rename it."
                raise TargetExistsError(msg)
        return [path for path in foreign if path not in own]

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
        """Return the task of writing one shard."""
        source = self.wanted.source
        if isinstance(source, CallersDataset):
            source = source.dataset  # the caller asked for an executor, so its workers read the items
        return ShardTask(
            source=str(Path(source).absolute()) if isinstance(source, Path) else source,
            folder=str(folder),
            target=str(self.wanted.target),
            options=self.job.options,
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
        # Too many broken samples end this while tasks are running. Closing the generator stops them and waits; the
        # garbage collector might do that in the very thread that one of them runs in.
        with closing(coming), progress.step("pack", total=len(self.job.table), unit=self.job.table.unit) as step:
            start_at(step, sum(result.rows for result in results.values()))
            for task, result in coming:
                results[task.name.number] = result
                step.advance(result.rows)
                check_set(self.job, results.values())
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


def pack_by_executor(
    source: PackSource,
    out: Path,
    options: PackOptions,
    executor: Executor,
    *,
    progress: Progress,
    key: str,
    identity: Mapping[str, Any],
    address: str,
) -> PackReport:
    """Write one file whose parts an executor's workers make; they need access to `source` and to `out`'s folder.

    Shards that are finished when this fails are kept for the next attempt.

    Args:
        key, identity, address: as for `run_pack`.

    Raises:
        Exception: as `pack_dataset`; an existing `out` is replaced only at the very end.
    """
    began = time.monotonic()
    model = out.with_name(f"{out.stem}-parts{out.suffix}")
    # Kept after any error: each shard in there has its own manifest, and is checked before it is used again.
    with open_workspace(model) as workspace:
        parts = ShardSet(source, workspace.path / "pack.h5", options, None, executor, overwrite=True).pack(progress)
        manifest = place_joined(
            [Path(file) for file in parts.files],
            workspace.path,
            out,
            samples=parts.samples,
            skipped=parts.skipped,
            key=key,
            identity=identity,
            address=address,
        )
    seconds = time.monotonic() - began
    return replace(parts, path=out, files=(), nbytes=manifest.size, samples=manifest.samples, seconds=seconds)


def check_set(job: PackJob, results: Iterable[ShardResult]) -> None:
    """Stop when more samples of all shards are left out than `on_error` allows; raises as `check_share`."""
    skipped = [why for result in results for why in result.skipped]
    check_share(job.options, skipped, len(job.table), lambda: skipped[0])


def set_report(
    job: PackJob,
    results: Sequence[ShardResult],
    *,
    pattern: Path | str,
    files: Sequence[Path | str],
    nbytes: int,
    began: float,
) -> PackReport:
    """Return the report of a set: `files` that match `pattern`, `nbytes` in all, begun at monotonic time `began`."""
    seconds = time.monotonic() - began
    animated = tuple(name for result in results for name in result.animated)
    odd = reduce(OddBoxes.with_those_of, (result.odd_boxes for result in results), OddBoxes())
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
        notes=(*job.notes, *animation_notes(animated), *odd.notes()),
        files=tuple(files),
        animated=animated,
        odd_boxes=odd,
        resizer=job.plan.resizer,
        unit=job.table.unit,
    )
