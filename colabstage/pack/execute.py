"""Write a planned pack beside its target, verify it, rename it into place, and report on it."""

from __future__ import annotations

import hashlib
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import TargetExistsError, printable
from colabstage.h5.manifest import is_replaceable_pack, manifest_of_pack, place_pack, write_manifest
from colabstage.h5.schema import FORMAT_VERSION, RESIZER_ATTRIBUTE, SHARD_SET_ATTRIBUTE, create_pack, reserved_offsets
from colabstage.images.decode import LOSSES, Loss, Resizer, most_decoding_threads
from colabstage.io.files import typed_write_errors
from colabstage.io.packages import installed_version
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.report import Report
from colabstage.io.units import counted, format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import disk_use, find_orphans, open_workspace, remove_own, whatever_is_there
from colabstage.layouts.formats.masks import compare_with_all
from colabstage.layouts.table import Boxes, Images, Masks, SampleTable, Values
from colabstage.machine.resources import check_space, free_space, release_freed_memory, usable_cores
from colabstage.pack.finish import OVERHEAD_BYTES, finish_pack
from colabstage.pack.job import PackJob, ReplanError, settled, with_foreground
from colabstage.pack.journal import FACTS, KEPT_AFTER, PackJournal, SampleColumn, Spool, spool_end
from colabstage.pack.plan import PackPlan, SplitPlan, pack_content
from colabstage.pack.rows import (
    BasePack,
    Takeover,
    plan_takeover,
    put_rows,
    rows_made,
    sweep_rows,
    take_over,
    write_rows,
)
from colabstage.pack.set_stores import STAMPS, ShardName, ShardResult
from colabstage.pack.writer import (
    CONTENT,
    LEVELS,
    WriteJob,
    array_bytes,
    compares_masks,
    sample_costs,
    sample_marks,
    sample_positions,
    sample_stamp,
    write_samples,
)
from colabstage.sources.to_folder import SLOW_READERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Progress
    from colabstage.pack.arrival import PackStream
    from colabstage.trees.listing import Tree


# Notes on image files that a dataset has several times, byte for byte: with two labels, or in two splits.
#
# Either is probably a mistake, and neither shows in a listing. Packing reads the bytes anyway, so it finds them for the
# price of a digest per file.


def repeated_notes(digests: NDArray[np.uint64], table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on images that are in several splits.

    Copies with one label, in one split, are not worth a note.

    `digests`: of each sample's file, 0 if none was taken. `splits`: what was packed of the table.
    """
    ordered = np.sort(digests)
    repeated = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)])
    if not len(repeated):
        return ()
    # Samples that were left out are in no split.
    split_of = np.full(len(table), -1, np.int16)
    for number, split in enumerate(splits):
        split_of[split.samples] = number
    samples = np.flatnonzero(np.isin(digests, repeated) & (split_of >= 0))
    _, places, files = np.unique(digests[samples], return_index=True, return_inverse=True)
    firsts = samples[places][files.reshape(-1)]

    def note(values: NDArray[Any], name_of: Callable[[int], str], where: str, why: str) -> list[str]:
        """Return a note if copies of one file have different values."""
        here, there = (values[which].reshape(len(samples), -1) for which in (samples, firsts))
        # A missing value is NaN, which does not equal itself.
        differs = ((here != there) & ~((here != here) & (there != there))).any(axis=1)  # noqa: PLR0124 - only NaN does
        if not differs.any():
            return []
        first = int(np.argmax(differs))
        pair = [
            f"'{table.inputs.source.name(one)}' ({name_of(one)})" for one in (int(firsts[first]), int(samples[first]))
        ]
        count = len(np.unique(files.reshape(-1)[differs]))
        return [
            f"{counted(count, 'images', 'are')} {where}, byte for byte the same (first {' and '.join(pair)}). {why}"
        ]

    targets, found = table.targets, list[str]()
    if isinstance(targets, Values):
        found += note(
            targets.values,
            lambda one: _label_of(table, targets, one),
            "there with different labels",
            "At most one of them is right: correct the others, or take them out.",
        )
    found += note(
        split_of,
        lambda one: splits[split_of[one]].name,
        "in several splits",
        "A model looks better than it is when it is tested on images that it was trained on: keep each in one split.",
    )
    return tuple(found)


def _label_of(table: SampleTable, targets: Values, sample: int) -> str:
    value = targets.values[sample]
    is_class = value.ndim == 0 and 0 <= value < len(table.classes)
    return table.classes[int(value)] if is_class else str(value.tolist())


# Longer than a read from a local disk; and longer than one from memory, the limit if nothing is decoded.
_SLOW_READ_S = 0.001
_COLD_READ_S = 0.0002
# Below these mean lengths of files, in bytes, two workers are slower than one: up to 1.6 times if files of 400 bytes
# are stored unchanged, 1.2 times if they are decoded (measured on two cores, by turns).
_TINY_KEPT_BYTES = 16 * 1024
_TINY_DECODED_BYTES = 1024
_ROWS = "rows.npz"


@dataclass(frozen=True, slots=True)
class PackReport:
    """What packing did."""

    path: Path | str
    """The file; an address if the target is one; for shards a pattern that matches them, for `dataset_h5`."""
    encoding: str
    """How samples are stored."""
    reason: str
    """The reason for that, in a sentence."""
    samples: Mapping[str, int]
    """Rows of each split."""
    classes: tuple[str, ...]
    """Class names in label order."""
    skipped: tuple[str, ...]
    """One sentence for each sample that was left out."""
    nbytes: int
    """Length of the file, or of all shards, in bytes."""
    seconds: float
    """How long it took."""
    packing_s: float
    """How much of that time went into reading, decoding and writing."""
    resumed: int
    """How many samples an earlier, interrupted run had already put in place."""
    readers: int
    """The largest number of reads in flight."""
    found: tuple[tuple[str, str], ...]
    """What was found in a source of files, as named texts: layout, classes, examples."""
    notes: tuple[str, ...]
    """What else the user should know: about the source, its samples, and what showed when all had been read."""
    files: tuple[Path | str, ...] = ()
    """All shards, if the pack consists of shards."""
    lost: Mapping[Loss, tuple[str, ...]] = field(default_factory=dict)
    """Names of images that are not stored as a whole, by what is lost: `"frames"` after the first, or the lower
    `"bits"` of 16; and of those that EXIF `"turned"`, if nothing shows whether boxes or a mask were drawn before."""
    resizer: Resizer | None = None
    """What resized the images, `"torch"` or `"pillow"`; `None` if they were not resized."""
    outside: tuple[int, str] = (0, "")
    """How many boxes are partly or wholly outside of their image, and the first such image."""
    nan: tuple[str, ...] = ()
    """Names of samples with NaN among the numbers that were read with them."""
    takeover: Takeover | None = None
    """What was taken over from an earlier pack of the same source; `None` if there was none."""
    unit: str = "samples"
    """What samples are called when they are counted: images, sound clips, rows, or just samples."""

    def __str__(self) -> str:
        total = sum(self.samples.values())
        rate = format_rate(total - self.resumed, self.packing_s, self.unit)
        stored = f"{format_count(total, self.unit)} in {format_bytes(self.nbytes)} ({self.encoding}: {self.reason})"
        found = "; ".join(f"{name} {words}" for name, words in self.found)
        shown = [f"Found: {found}."] if found else []
        lines = [f"{stored} in {format_duration(self.seconds)}, {rate}", *shown, *self.notes]
        if self.resizer == "torch":
            lines.append("resized by torch, within one grey level of Pillow")
        if self.resumed:
            lines.insert(1, f"{self.resumed:,} of them {'was' if self.resumed == 1 else 'were'} already in place")
        if self.skipped:
            lines.append(f"{len(self.skipped):,} left out: " + "; ".join(self.skipped[:3]))
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        headline, *further = str(self).splitlines()
        return Report(headline, notes=(*further, f"in {self.path}"))._repr_html_()


_LOSSES: dict[Loss, tuple[str, str]] = {
    "frames": ("several frames or pages", "the first of each counts"),
    "bits": (
        "16 bits for each value or further bands",
        "8 bits of the colours are used, so of 16 bits what is below 256 becomes 0",
    ),
    "turned": ("an EXIF orientation", "boxes and masks count as drawn on the upright image"),
}
_NAN = "NaN in place of numbers", "stored as it is, and a model makes NaN of it"


def report_of(
    job: PackJob, plan: PackPlan, done: ShardResult, *, seconds: float = 0.0, learnt: Iterable[str] = ()
) -> PackReport:
    """Return the report of what was written by a plan, not yet in place; `learnt`: notes on what showed at the end."""
    found = [(done.nan, *_NAN), *((done.lost.get(loss, ()), *told) for loss, told in _LOSSES.items())]
    losses = (
        f"{counted(len(names), job.table.unit, 'have')} {what} (first '{names[0]}'): {kept}"
        for names, what, kept in found
        if names
    )
    outside, first = done.outside
    where = f"partly or wholly outside of the image (first in '{first}')"
    note = f"{counted(outside, 'boxes', 'are', which=where)} kept as written."
    return PackReport(
        path="",
        encoding=plan.encoding,
        reason=plan.reason,
        classes=job.table.classes,
        nbytes=0,
        seconds=seconds,
        packing_s=seconds,
        found=job.found,
        notes=(*job.notes, *losses, *([note] if outside else []), *learnt),
        resizer=plan.resizer,
        unit=job.table.unit,
        **done._asdict(),
    )


@dataclass(frozen=True, slots=True)
class PackRun:
    """A planned pack, and how it is written."""

    job: PackJob
    out: Path
    """The file to make, in a folder that exists."""
    slow: bool
    """Whether the tree is known to respond slowly, so that many reads are started at once."""
    progress: Progress
    key: str = ""
    """What the manifest records as the source's key in the cache."""
    identity: Callable[[], Mapping[str, Any]] = dict
    """Returns what the manifest records as the source's state; called when everything has been read, and for an archive
    also before."""
    address: str = ""
    """What the file itself records about the source; by default the job's label."""
    shard: ShardName | None = None
    """Which part of a set of files this is; `None` for a single file."""
    stream: PackStream | None = None
    """Lets readers in before everything is packed; its `plan` was called with this job."""
    overwrite: bool = True
    """Whether a file at `out` may be replaced."""
    records_rows: bool = False
    """Whether a record of its rows is written beside it, from which the next pack takes them over."""
    base: BasePack | None = None
    """An earlier pack, whose rows are taken over if they are proved unchanged; it may be at `out`."""
    fixed: str = ""
    """Why only the planned form will do, if so."""

    def execute(self) -> PackReport:
        """Write the pack, replacing an existing file only at the very end."""
        began = time.monotonic()
        # Batches of the planned form may have been returned already.
        fixed = self.fixed if self.stream is None else ", which is what streaming=True began with"
        run = replace(self, job=settled(self.job), address=self.address or self.job.label)
        while True:
            try:
                return replace(run._attempt(), seconds=time.monotonic() - began)
            except ReplanError as found:
                if self.shard is not None:
                    raise
                run = replace(run, job=replace(found.plan_again(run.job, fixed=fixed), takeover=None))

    def _attempt(self) -> PackReport:
        """Write one plan beside the target, then publish it; if the next attempt may succeed, work is kept."""
        with (
            typed_write_errors(self.out),
            # A file that appeared at the target meanwhile can be moved away.
            open_workspace(self.out, keeps=(*KEPT_AFTER, TargetExistsError)) as workspace,
            typed_write_errors(self.out),  # also inside, because the type of the error decides whether work is kept
        ):
            folder = workspace.path
            # An incomplete copy of the final file, or the manifest of one that was never moved into place.
            for leftover in (folder / "final.h5", folder / _ROWS, *folder.glob("*.json")):
                remove_own(leftover)
            try:
                file, report = self._write(folder)
            except BaseException as error:
                if self.stream is not None:
                    # Before the workspace is removed; otherwise readers would only find that the file is gone.
                    self.stream.failed(error)
                raise
            # The process would otherwise hold the memory of decoding while the whole file is hashed.
            release_freed_memory()
            self._publish(file, report)
            if self.stream is not None:
                # Before the workspace is removed, where a process that opens the file now would still look for it.
                self.stream.placed()
            return report

    def _write(self, workspace: Path) -> tuple[Path, PackReport]:
        """Make the final file, not yet in place. Data about single samples is freed when this returns."""
        job, table = self.job, self.job.table
        # Stable, because the journal counts positions: two samples of one file must keep their order in the next run.
        order = np.argsort(sample_positions(table), kind="stable")
        # The record vouches for each row, so what an interrupted run has packed must be proved like a row.
        stamp = sample_marks if self.records_rows else sample_stamp
        with (
            PackJournal(
                workspace / "journal",
                fingerprint=self._fingerprint(order),
                samples=len(order),
                stamp=lambda position: stamp(table, int(order[position])),
                keep_skipped=job.options.skip_share is not None,
            ) as journal,
            ExitStack() as stack,
        ):
            work = self._open_work(workspace, stack, order, journal)
            release_freed_memory()  # from planning, sorting and writing names, before hours of packing
            resumed, began, left = journal.finished_samples, time.monotonic(), journal.unfinished()
            takeover = None if self.base is None else job.takeover or plan_takeover(job, self.base.rows)
            if self.base is not None and takeover is not None and takeover.taken:
                take_over(work, journal, self.base, takeover, left=left, progress=self.progress)
            readers = self._pack(work, journal, left, is_part=takeover is not None and takeover.taken > 0)
            packing_s = time.monotonic() - began
            skipped = tuple(why for _, why in sorted(journal.skipped.items()))
            left_out = work.order[sorted(journal.skipped)]
            final, plan, outside, nan = finish_pack(
                work, left_out=left_out, skipped=skipped, attributes=self._attributes()
            )
            learnt = self._learn(work, plan)
            if self.records_rows and (rows := rows_made(work, plan, journal, takeover)) is not None:
                write_rows(workspace / _ROWS, rows)

        lost = {
            part: tuple(table.inputs.source.name(int(order[position])) for position in sorted(journal.lost[part]))
            for part in LOSSES
            if part in journal.lost
        }
        samples = {split.name: len(split.samples) for split in plan.splits}
        done = ShardResult(samples, skipped, resumed, readers, lost, outside, nan)
        report = report_of(job, plan, done, seconds=packing_s, learnt=learnt)
        return final, replace(report, path=self.out, nbytes=final.stat().st_size, takeover=takeover)

    def _attributes(self) -> dict[str, Any]:
        shard, plan = self.shard, self.job.plan
        return {
            **({} if shard is None else {SHARD_SET_ATTRIBUTE: shard.made_of, "shard": [shard.number, shard.total]}),
            "source": self.address,
            "encoding": plan.encoding,
            "encoding_reason": plan.reason,
            **({} if plan.resizer is None else {RESIZER_ATTRIBUTE: plan.resizer}),
        }

    def _fingerprint(self, order: NDArray[np.int64]) -> str:
        """Return digits that change whenever this run would write other bytes to the same places than an earlier one.

        Changed samples do not matter here, because the journal compares the stamp of each.
        """
        table, plan = self.job.table, self.job.plan
        # Not for folders: their identity includes the folders' times, which change when a file is added.
        is_archive = self.job.tree is not None and self.job.tree.kind != "folder"
        fields = [(part.side, part.shape, str(part.dtype), dict(part.attributes)) for part in plan.fields]
        facts = (
            self.address,
            dict(self.identity()) if is_archive else None,
            FORMAT_VERSION,
            # Another version may decode pixels differently, and one file would then hold both; and an install from the
            # repository may change the form of the records beside it within a version.
            installed_version("colabstage"),
            FACTS.descr,
            self.job.options.places_fingerprint(),
            plan.resizer,
            fields,
            (table.targets.colors, table.targets.foreground) if isinstance(table.targets, Masks) else None,
            self.shard,
        )
        digest = hashlib.sha256()
        for fact in facts:
            digest.update(repr(fact).encode(errors="surrogateescape"))
        for texts in (table.classes, table.keys):
            encoded = [text.encode(errors="surrogatepass") for text in texts]
            digest.update(b"".join(encoded))
            digest.update(np.fromiter(map(len, encoded), np.int64, len(encoded)).tobytes())
        # If a listing's order changes, or an archive is made again, the journal's positions mean other samples.
        lengths = [part.lengths for part in plan.fields if part.lengths is not None]
        for rows in (order, *lengths, *target_arrays(table), *(split.samples for split in plan.splits)):
            digest.update(array_bytes(rows))
        return digest.hexdigest()

    def _open_work(self, workspace: Path, stack: ExitStack, order: NDArray[np.int64], journal: PackJournal) -> WriteJob:
        """Make the file that samples are written to, and the columns of facts beside it, unless an earlier run did."""
        data, table, plan, count = workspace / "data.h5", self.job.table, self.job.plan, len(order)
        content = pack_content(table, plan, self.job.options, attributes=self._attributes())
        offsets = reserved_offsets(data, content) if journal.finished_samples else None
        if offsets is None:
            journal.forget()
            for leftover in ("data.h5", "spool", "facts", "contents", "values"):
                remove_own(workspace / leftover)
        # Samples of unknown length take their space twice, in the spool and then in the file. Boxes are small, but
        # their final file is a second one.
        copied = content.nbytes if plan.y is not None and plan.y.is_open else 0
        needed = content.nbytes + copied + 2 * plan.open_bytes + OVERHEAD_BYTES
        check_space(self.out.parent, max(0, needed - disk_use(workspace)), f"The pack of '{self.job.label}'")
        if offsets is None:
            release_freed_memory()  # from finding and sorting samples: packing is the part that takes most
            offsets = create_pack(data, content)

        def column(name: str, dtype: np.dtype[Any], *, if_needed: bool) -> SampleColumn | None:
            return stack.enter_context(SampleColumn(workspace / name, dtype, count)) if if_needed else None

        # In most packs every byte has its place from the start, and nothing needs to be recorded for the end.
        facts = column("facts", FACTS, if_needed=plan.is_open or isinstance(table.targets, Boxes))
        spool = None
        if facts is not None and plan.is_open:
            spool = stack.enter_context(Spool(workspace / "spool", start=spool_end(facts)))
        # A shard would find only the repetitions among its own samples.
        compares = self.shard is None and isinstance(table.inputs, Images) and not table.inputs.decoded
        return WriteJob(
            self.job,
            order,
            data,
            offsets,
            tuple(part.places(plan.splits, offsets, count) for part in plan.fields),
            facts,
            spool,
            contents=column("contents", CONTENT, if_needed=compares),
            levels=column("values", LEVELS, if_needed=compares_masks(table)),
        )

    def _pack(self, work: WriteJob, journal: PackJournal, left: NDArray[np.bool_], *, is_part: bool) -> int:
        """Read, decode and write what is `left`; return how many threads read. `is_part`: whether it is scattered."""
        # In the order of the source, unless readers ask for another: one pass over an archive, and no seeking on a
        # mount. A new pack of millions of samples needs no list of them.
        in_order: Sequence[int] = range(len(left)) if left.all() else array("q", np.flatnonzero(left).tobytes())
        if self.stream is not None:
            in_order = self.stream.begin(work, self.out, left)
        table, kept = self.job.table, self.job.plan.x.lengths is not None
        mean_bytes = int(sample_costs(table).sum()) // max(1, len(table))
        limits = pipeline_limits(
            self.job.tree,
            slow=self.slow,
            # Images that are stored as files are decoded as well, to find broken ones.
            decodes=not kept or isinstance(table.inputs, Images),
            tiny=mean_bytes < (_TINY_KEPT_BYTES if kept else _TINY_DECODED_BYTES),
            threads=most_decoding_threads(mean_bytes),
            is_part=is_part or self.shard is not None,
        )
        return write_samples(work, journal, left=in_order, limits=limits, progress=self.progress, stream=self.stream)

    def _learn(self, work: WriteJob, plan: PackPlan) -> tuple[str, ...]:
        """Return notes on the values of all masks, and on repeated images."""
        found: tuple[str, ...] = ()
        if work.levels is not None:
            masks = self.job.table.targets
            assert isinstance(masks, Masks)
            is_foreground, found = compare_with_all(masks, work.levels.read(), self.job.table.classes)
            if is_foreground:
                msg = (
                    "they have the values 0 and 255 alone, which is a foreground, and those that were looked at first "
                    "had no 255; pack them into one file of their own, without streaming=True"
                )
                # All shards must mean the same, and this one knows only its own masks.
                raise ReplanError(msg, with_foreground if self.shard is None else None)
        if work.contents is not None:
            found = (*found, *repeated_notes(work.contents.read(), self.job.table, plan.splits))
        return found

    def _publish(self, file: Path, report: PackReport) -> None:
        state = {STAMPS: self.shard.state} if self.shard is not None and self.shard.state else {}
        manifest = manifest_of_pack(
            file,
            key=self.key,
            identity={**self.identity(), **state},
            samples=report.samples,
            skipped=report.skipped,
            shard="" if self.shard is None else str(self.shard),
        )
        write_manifest(file, manifest)
        may_replace = is_replaceable_pack if self.key else whatever_is_there if self.overwrite else None
        if (rows := file.with_name(_ROWS)).exists():
            put_rows(rows, self.out, manifest)
        place_pack(file, self.out, replaces=may_replace)
        if self.key:
            sweep_rows(self.out)


def target_arrays(table: SampleTable) -> tuple[NDArray[Any], ...]:
    """Return targets that are known before any sample is read."""
    targets = table.targets
    if isinstance(targets, Values):
        return (targets.values,)
    if isinstance(targets, Boxes):
        return (targets.offsets, targets.boxes, *(values for _, values in sorted(targets.columns.items())))
    return ()


def space_for(out: Path) -> int:
    """Return the bytes that a pack at `out` may take: free space, plus that of an unfinished pack to continue."""
    return free_space(out.parent) + sum(disk_use(orphan) for orphan in find_orphans(out))


def pipeline_limits(
    tree: Tree | None,
    *,
    slow: bool,
    decodes: bool = True,
    tiny: bool = False,
    threads: int | None = None,
    is_part: bool = False,
) -> PipelineLimits:
    """Return how many readers and workers the pipeline has on this machine.

    Args:
        tree: the source's files; `None` for a dataset of Python objects.
        slow: whether the tree is known to respond slowly.
        decodes: whether samples are decoded, or at least checked.
        tiny: whether they are so small that most of the work is Python's own.
        threads: the number of threads that decode them fastest, if known.
        is_part: whether only scattered samples are read.
    """
    cores = usable_cores() if threads is None else min(threads, usable_cores())
    few = min(2, cores)
    if tree is None:
        # The caller's own code, which a DataLoader without workers would also call in one thread.
        return PipelineLimits(readers=1, max_readers=1, workers=cores, caller_reads=True)
    if tree.kind != "folder" and not (slow and is_part):
        # An archive is one file, local or arriving: more reads at once would only wake each other whenever some of it
        # arrives.
        return PipelineLimits(readers=few, max_readers=few, workers=cores)
    # In a fast folder each worker reads for itself until reads prove slow. If hardly anything is decoded there is one
    # worker, because several would wait for each other in Python and in the file.
    return PipelineLimits(
        readers=SLOW_READERS if slow else 0,
        max_readers=SLOW_READERS,
        workers=1 if not slow and (tiny or not decodes) else cores,
        slow_read_s=_SLOW_READ_S if slow or decodes else _COLD_READ_S,
    )
