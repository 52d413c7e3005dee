"""Write a planned pack beside its target, make one file of it, verify it, rename it into place, and report on it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError, TargetExistsError, printable
from colabstage.h5.manifest import Manifest, is_replaceable_pack, manifest_of_pack, place_pack, write_manifest
from colabstage.h5.schema import (
    BOXES,
    BYTES,
    CLASSES,
    FORMAT_ATTRIBUTE,
    FORMAT_VERSION,
    OFFSETS,
    RESIZER_ATTRIBUTE,
    SHARD_SET_ATTRIBUTE,
    SKIPPED,
    PackContent,
    ReservedDataset,
    create_pack,
    key_name,
    reserved_offsets,
    split_of,
    x_name,
    y_name,
)
from colabstage.h5.untrusted import open_with_any_locking
from colabstage.images.decode import LOSSES, Resizer, most_decoding_threads
from colabstage.images.geometry import ImageOptions, fit_boxes
from colabstage.io.files import TargetFile, block_ranges, pread_exactly, typed_write_errors
from colabstage.io.packages import installed_version
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.report import Shown
from colabstage.io.units import counted, format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import disk_use, find_orphans, open_workspace, remove_own, whatever_is_there
from colabstage.layouts.evidence import take_targets
from colabstage.layouts.formats.masks import compare_with_all
from colabstage.layouts.table import Boxes, Images, Masks, SampleTable, UnreadBoxes, Values
from colabstage.machine.resources import check_space, free_space, usable_cores
from colabstage.pack.job import PackJob, ReplanError, settled, with_foreground
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
    COPY_BYTES,
    FACTS,
    KEPT_AFTER,
    PackJournal,
    SampleFacts,
    Spool,
    WriteJob,
    array_bytes,
    compares_masks,
    copy_runs,
    sample_costs,
    sample_positions,
    sample_stamps,
    spool_end,
    write_samples,
)
from colabstage.sources.to_folder import SLOW_READERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.io.progress import Progress
    from colabstage.pack.arrival import PackStream
    from colabstage.trees.listing import Tree


# Notes on image files that a dataset has several times, byte for byte: with two labels, or in two splits.
#
# Either is probably a mistake, and neither shows in a listing. Packing reads the bytes anyway, so it finds them for the
# price of a digest per file.


def _repeated_notes(digests: NDArray[np.uint64], table: SampleTable, splits: Sequence[SplitPlan]) -> tuple[str, ...]:
    """Return a note on images that have several labels, and one on images that are in several splits.

    `digests`: of each sample's file, 0 if none was taken. `splits`: what was packed of the table.
    """
    # Sorted, not counted: most datasets end here, and there may be millions.
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
    files = files.reshape(-1)

    def note(values: NDArray[Any], name_of: Callable[[int], str], where: str, why: str) -> list[str]:
        """Return a note if copies of one file have different values."""
        # By their bytes, because NaN, a missing value, does not equal itself.
        here = np.ascontiguousarray(values[samples]).view(np.uint8).reshape(len(samples), -1)
        odd = np.flatnonzero((here != here[places[files]]).any(axis=1))
        if not len(odd):
            return []
        first = places[files[odd[0]]], odd[0]
        pair = " and ".join(f"'{table.inputs.source.name(one)}' ({name_of(one)})" for one in samples[[*first]].tolist())
        count = counted(len(np.unique(files[odd])), "images", "are")
        return [f"{count} {where}, byte for byte the same (first {pair}). {why}"]

    targets, found = table.targets, list[str]()
    if isinstance(targets, Values):
        why = "At most one of them is right: correct the others, or take them out."
        name_of = partial(_label_of, targets.values, table.classes)
        found += note(targets.values, name_of, "there with different labels", why)
    why = "A model looks better than it is when it is tested on images that it was trained on: keep each in one split."
    found += note(split_of, lambda one: splits[split_of[one]].name, "in several splits", why)
    return tuple(found)


def _label_of(values: NDArray[Any], classes: Sequence[str], sample: int) -> str:
    value = values[sample]
    return classes[int(value)] if value.ndim == 0 and 0 <= value < len(classes) else str(value.tolist())


# Longer than a read from a local disk; and longer than one from memory, the limit if nothing is decoded.
_SLOW_READ_S = 0.001
_COLD_READ_S = 0.0002
_ROWS = "rows.npz"


@dataclass(frozen=True, slots=True, repr=False)
class PackReport(Shown):
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
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of images that are not stored as a whole, by what is lost: `"frames"` after the first, or the lower
    `"bits"` of 16; of those that EXIF `"turned"`, if nothing shows whether boxes or a mask were drawn before; and of
    samples with `"nan"`, or infinity, among the numbers that were read with them."""
    resizer: Resizer | None = None
    """What resized the images, `"torch"` or `"pillow"`; `None` if they were not resized."""
    outside: tuple[int, str] = (0, "")
    """How many boxes are partly or wholly outside of their image, and the first such image."""
    takeover: Takeover | None = None
    """What was taken over from an earlier pack of the same source; `None` if there was none."""
    unit: str = "samples"
    """What samples are called when they are counted: images, sound clips, rows, or just samples."""

    def __str__(self) -> str:
        total = sum(self.samples.values())
        rate = format_rate(total - self.resumed, self.packing_s, self.unit)
        splits = ", ".join(f"{name} {count:,}" for name, count in self.samples.items())
        count = format_count(total, self.unit) + (f" ({splits})" if len(self.samples) > 1 else "")
        stored = f"{count} in {format_bytes(self.nbytes)} ({self.encoding}: {self.reason})"
        found = "; ".join(f"{name} {words}" for name, words in self.found)
        shown = [f"Found: {found}."] if found else []
        lines = [f"{stored} in {format_duration(self.seconds)}, {rate}", *shown, *self.notes]
        if self.resizer == "torch":
            lines.append("resized by torch, within one grey level of Pillow")
        if self.resumed:
            lines.insert(1, f"{self.resumed:,} of them {'was' if self.resumed == 1 else 'were'} already in place")
        if self.skipped:
            lines.append(f"{len(self.skipped):,} left out: " + "; ".join(self.skipped[:3]))
        return "\n".join(map(printable, [*lines, f"Written to '{self.path}'"]))


LOST: dict[str, tuple[str, str]] = {
    "nan": ("NaN or infinity in place of numbers", "stored as it is, and a model makes NaN of it"),
    "frames": ("several frames or pages", "the first of each counts; items (x, y) of a dataset object may hold all"),
    "bits": (
        "16 bits for each value or further bands",
        "8 bits of the colours are used, so of 16 bits what is below 256 becomes 0",
    ),
    "turned": ("an EXIF orientation", "boxes and masks count as drawn on the upright image"),
}


def report_of(
    job: PackJob, plan: PackPlan, done: ShardResult, *, seconds: float = 0.0, learnt: Iterable[str] = ()
) -> PackReport:
    """Return the report of what was written by a plan, not yet in place; `learnt`: notes on what showed at the end."""
    losses = (
        f"{counted(len(names), job.table.unit, 'have')} {what} (first '{names[0]}'): {kept}"
        for loss, (what, kept) in LOST.items()
        if (names := done.lost.get(loss))
    )
    outside, first = done.outside
    where = f"partly or wholly outside of the image (first in '{first}')"
    note = f"{counted(outside, 'boxes', 'are', which=where)} kept as written."
    return PackReport(
        path=Path(),
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
        stamp = sample_stamps(table, marked=self.records_rows)
        with (
            PackJournal(
                workspace / "journal",
                fingerprint=self._fingerprint(order),
                samples=len(order),
                stamp=lambda position: stamp(int(order[position])),
                keep_skipped=job.options.skip_share is not None,
            ) as journal,
            ExitStack() as stack,
        ):
            work = self._open_work(workspace, stack, order, journal)
            resumed, began, left = journal.finished_samples, time.monotonic(), journal.unfinished()
            takeover = None if self.base is None else job.takeover or plan_takeover(job, self.base)
            if self.base is not None and takeover is not None and takeover.taken:
                take_over(work, journal, self.base, takeover, left=left, progress=self.progress)
            readers = self._pack(work, journal, left, is_part=takeover is not None and takeover.taken > 0)
            packing_s = time.monotonic() - began
            skipped = tuple(why for _, why in sorted(journal.skipped.items()))
            left_out = work.order[sorted(journal.skipped)]
            final, plan, outside = _finish_pack(work, left_out=left_out, skipped=skipped, attributes=self._attributes())
            learnt, lost = self._learn(work, plan)
            if found := _with_nan(job, plan, final):
                lost["nan"] = found
            if self.records_rows and (rows := rows_made(work, plan, takeover)) is not None:
                write_rows(workspace / _ROWS, rows)

        samples = {split.name: len(split.samples) for split in plan.splits}
        done = ShardResult(samples, skipped, resumed, readers, lost, outside)
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
            for leftover in ("data.h5", "spool", "facts"):
                remove_own(workspace / leftover)
        # Samples of unknown length take their space twice, in the spool and then in the file. Boxes are small, but
        # their final file is a second one.
        copied = content.nbytes if plan.y is not None and plan.y.is_open else 0
        needed = content.nbytes + copied + 2 * plan.open_bytes + OVERHEAD_BYTES
        check_space(self.out.parent, max(0, needed - disk_use(workspace)), f"The pack of '{self.job.label}'")
        if offsets is None:
            offsets = create_pack(data, content)
        facts = spool = None
        if isinstance(table.inputs, Images) or isinstance(table.targets, Boxes) or plan.is_open:
            facts = stack.enter_context(SampleFacts(workspace / "facts", count))
            if plan.is_open:
                spool = stack.enter_context(Spool(workspace / "spool", start=spool_end(facts)))
        return WriteJob(
            self.job,
            order,
            data,
            offsets,
            tuple(part.places(plan.splits, offsets, count) for part in plan.fields),
            facts,
            spool,
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
            threads=most_decoding_threads(mean_bytes),
            is_part=is_part or self.shard is not None,
        )
        return write_samples(work, journal, left=in_order, limits=limits, progress=self.progress, stream=self.stream)

    def _learn(self, work: WriteJob, plan: PackPlan) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Return notes on the values of all masks, and on repeated images; and which images are not stored as a
        whole."""
        table, found = self.job.table, tuple[str, ...]()
        if work.facts is None:
            return found, {}
        noted = work.facts.read("content", *LOSSES, *(["levels"] if compares_masks(table) else []))
        if compares_masks(table):
            assert isinstance(table.targets, Masks)
            is_foreground, found = compare_with_all(table.targets, noted["levels"], table.classes)
            if is_foreground:
                msg = (
                    "they have the values 0 and 255 alone, which is a foreground, and those that were looked at first "
                    "had no 255; pack them into one file of their own, without streaming=True"
                )
                # All shards must mean the same, and this one knows only its own masks.
                raise ReplanError(msg, with_foreground if self.shard is None else None)
        # A shard would find only the repetitions among its own samples.
        if self.shard is None:
            found = (*found, *_repeated_notes(noted["content"], table, plan.splits))
        kept, name = np.concatenate([split.samples for split in plan.splits]), table.inputs.source.name
        lost = {part: work.order[noted[part][work.order]] for part in LOSSES}
        return found, {
            part: tuple(map(name, rows[np.isin(rows, kept)].tolist())) for part, rows in lost.items() if len(rows)
        }

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
    threads: int | None = None,
    is_part: bool = False,
) -> PipelineLimits:
    """Return how many readers and workers the pipeline has on this machine.

    Args:
        tree: the source's files; `None` for a dataset of Python objects.
        slow: whether the tree is known to respond slowly.
        decodes: whether samples are decoded, or at least checked.
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
        workers=cores if slow or decodes else 1,
        slow_read_s=_SLOW_READ_S if slow or decodes else _COLD_READ_S,
    )


# --- one file of what is written --------------------------------------------------------------------------------------
#
# Gaps between decoded samples are closed, spooled bytes are moved into place, and boxes are written. If samples are
# left out, the others keep their split, label and order.

# For HDF5's own structures around the samples.
OVERHEAD_BYTES = 4 * 1024 * 1024
# The value of other columns in rows that cropping left without a box; these rows come last.
_UNUSED = -1


def _finish_pack(
    work: WriteJob, *, left_out: NDArray[np.int64], skipped: tuple[str, ...], attributes: Mapping[str, Any]
) -> tuple[Path, PackPlan, tuple[int, str]]:
    """Make the final file from decoded samples. May be called again after an interruption.

    Returns:
        The file to publish; its plan, without the samples that were left out; and what `_write_boxes` returns.
    """
    job, data = work.job, work.target
    # Every sample is in its final place, so nothing is copied.
    if not skipped and not job.plan.is_open:
        return data, job.plan, _write_boxes(work, job, job.plan, data, work.offsets)
    # Gaps are closed, so that the file is byte for byte that of a source without the broken samples.
    splits = [SplitPlan(one.name, one.samples[~np.isin(one.samples, left_out)]) for one in job.plan.splits]
    plan = replace(job.plan, splits=tuple(split for split in splits if len(split.samples)))
    if not plan.splits:
        msg = f"None of the {len(job.table):,} {job.table.unit} can be decoded. The first: {skipped[0]}"
        raise LayoutError(msg)
    copies, spool = [(data, places) for places in work.places], data.with_name("spool")
    # JPEGs made while packing were spooled in the order in which workers finished; their places follow only now, from
    # all their lengths.
    if plan.x.is_open:
        noted = _noted(work)
        plan = replace(plan, x=replace(plan.x, lengths=noted["length"][:, 0].astype(np.int64)))
        copies[0] = spool, noted["start"][:, 0].astype(np.int64)
    # Boxes too: from here on they are like those of a source with boxes in separate files.
    if isinstance(job.table.targets, UnreadBoxes):
        job = replace(job, table=replace(job.table, targets=_spooled_boxes(job.table.targets, spool, _noted(work))))
        plan, copies = replace(plan, y=None), copies[:1]
    # Before a byte is written; what is decoded stays for the next attempt.
    check_space(data.parent, plan.nbytes + OVERHEAD_BYTES, f"The final pack of '{job.label}'")
    final = data.with_name("final.h5")
    offsets = create_pack(final, pack_content(job.table, plan, job.options, attributes=attributes, skipped=skipped))
    kept = np.concatenate([split.samples for split in plan.splits])
    with TargetFile(final, fresh=False) as new:
        for part, (file, starts) in zip(plan.fields, copies, strict=True):
            places = part.places(plan.splits, offsets, len(starts))
            with open(file, "rb") as old:
                copy_runs(old.fileno(), new, starts[kept], places[kept], part.lengths_of(kept))
    return final, plan, _write_boxes(work, job, plan, final, offsets)


def _with_nan(job: PackJob, plan: PackPlan, file: Path) -> tuple[str, ...]:
    """Return the names of samples with NaN or infinity among their numbers."""
    found: list[int] = []
    floats = [part for part in plan.fields if part.dtype.kind == "f" and part.row_bytes]
    with open_with_any_locking(file) as pack:
        for part, split in itertools.product(floats, plan.splits):
            # All rows together: to look at each as it is packed takes a fifth of the time of packing rows of numbers.
            for first, count in block_ranges(len(split.samples), max(1, COPY_BYTES // part.row_bytes)):
                rows = pack[part.name(split.name)][first : first + count].reshape(count, -1)
                found += split.samples[first : first + count][~np.isfinite(rows).all(axis=1)].tolist()
    return tuple(map(job.table.inputs.source.name, dict.fromkeys(found)))


def _noted(work: WriteJob) -> NDArray[np.void]:
    """Return the facts recorded about each sample, `(N,)`."""
    assert work.facts is not None
    return work.facts.read("height", "width", "start", "length")


def _spooled_boxes(targets: UnreadBoxes, spool: Path, noted: NDArray[np.void]) -> Boxes:
    """Return the boxes of all samples, none for those that were left out."""
    starts, lengths = noted["start"][:, 1].tolist(), noted["length"][:, 1].tolist()
    with open(spool, "rb") as file:
        pieces = [pread_exactly(file.fileno(), *at) for at in zip(lengths, starts, strict=True) if at[0]]
    rows = np.frombuffer(b"".join(pieces), targets.dtype)
    return targets.read(rows, np.array(lengths, np.int64) // targets.dtype.itemsize)


def _write_boxes(
    work: WriteJob, job: PackJob, plan: PackPlan, file: Path, offsets: Mapping[str, int]
) -> tuple[int, str]:
    """Write the boxes of all samples, now that every image's size is known; return how many are partly or wholly
    outside of their image, and the name of the first such image."""
    boxes = job.table.targets
    if not isinstance(boxes, Boxes):
        return 0, ""
    noted = _noted(work)
    sizes = np.stack([noted["height"], noted["width"]], axis=1).astype(np.int64)
    # Images stored as files are resized on reading, and their boxes with them; arrays are not resized.
    image = ImageOptions() if plan.encoding in ("encoded", "arrays") else job.options.image
    with TargetFile(file, fresh=False) as target:
        for split in plan.splits:
            for name, values in _split_boxes(boxes, split, sizes, image).items():
                if values.nbytes:
                    target.write(array_bytes(values), offsets[name])
    samples = np.concatenate([split.samples for split in plan.splits])
    found = boxes.owners[boxes.outside(sizes) & np.isin(boxes.owners, samples)]
    return len(found), job.table.inputs.source.name(int(found[0])) if len(found) else ""


def _split_boxes(
    boxes: Boxes, split: SplitPlan, sizes: NDArray[np.int64], options: ImageOptions
) -> dict[str, NDArray[Any]]:
    """Return the content of the datasets that `reserve_boxes` names.

    `sizes`: int64 `(N, 2)`, height and width of every sample's upright image before it was resized.
    """
    own_boxes = take_targets(boxes, split.samples)
    assert isinstance(own_boxes, Boxes)
    owner = own_boxes.owners
    own = sizes[split.samples][owner]
    corners = own_boxes.boxes.astype(np.float64)
    # YOLO and others give fractions of the image's sides.
    if boxes.relative:
        corners *= own[:, [1, 0, 1, 0]]
    # Only now is the size of every image known, by which cropping and padding move boxes.
    corners, kept = fit_boxes(corners, own, options.size, options.resize)
    kept_counts = np.bincount(owner[kept], minlength=len(split.samples))

    def filled(values: NDArray[Any], unused: int) -> NDArray[Any]:
        # The dataset was allocated before it was known how many boxes cropping would leave.
        rest = np.full((len(owner) - len(values), *values.shape[1:]), unused, values.dtype)
        return np.ascontiguousarray(np.concatenate([values, rest]))

    group = y_name(split.name)
    return {
        f"{group}/{OFFSETS}": np.concatenate([[0], np.cumsum(kept_counts)]).astype(np.int64),
        f"{group}/{BOXES}": filled(corners[kept].astype(np.float32), 0),
        **{
            f"{group}/{name}": filled(values[kept], 0 if values.dtype.kind in "bu" else _UNUSED)
            for name, values in own_boxes.columns.items()
        },
    }


# Shards are joined into the rows and the bytes that a single process would have written.
#
# They hold consecutive rows of each split, so each dataset of the joined file is a concatenation of theirs. Only
# offsets, which count from the beginning of a file, are shifted; and unused rows of boxes are moved to the end.


def place_joined(
    shards: Sequence[Path],
    folder: Path,
    out: Path,
    *,
    samples: Mapping[str, int],
    skipped: tuple[str, ...],
    key: str,
    identity: Mapping[str, Any],
    address: str,
) -> Manifest:
    """Join all shards of a set in `folder`, and put the pack into place with its manifest, which is returned.

    `samples`: rows of each split, in the order of the file.
    """
    nbytes = sum(shard.stat().st_size for shard in shards)
    check_space(out.parent, nbytes + OVERHEAD_BYTES, f"The pack of '{address}', put together,")
    joined = folder / "joined.h5"
    with typed_write_errors(joined):
        _join_shards(shards, joined, splits=tuple(samples), attributes={"source": address})
    # Hashed again, because the joined file's blocks begin elsewhere than the shards'.
    stored = {name: rows for name, rows in samples.items() if rows}
    manifest = manifest_of_pack(joined, key=key, identity=identity, samples=stored, skipped=skipped)
    write_manifest(joined, manifest)
    place_pack(joined, out, replaces=is_replaceable_pack if key else whatever_is_there)
    return manifest


def splits_in_order(shards: Sequence[Path]) -> list[str]:
    """Return the splits of a set in the order of its shards; manifests do not preserve it."""
    orders: list[list[str]] = []
    for path in shards:
        with open_with_any_locking(path) as file:
            rows = {split: file[name] for name in file if (split := split_of(name)) is not None}
            data = {split: node[BYTES] if hasattr(node, "keys") else node for split, node in rows.items()}
            # Each was reserved before those after it.
            places = {split: int(one.id.get_offset() or 0) for split, one in data.items()}
        orders.append(sorted(places, key=places.__getitem__))
    # A small split has fewer rows than there are shards; two splits so small that no shard has both are very rare.
    most = max(orders, key=len)
    return [*most, *sorted({split for order in orders for split in order} - {*most})]


class _Column(NamedTuple):
    """A dataset of a joined file."""

    name: str
    nodes: list[Any]
    used: list[int]
    """How many rows of each come first; the unused rows of all come last."""
    values: NDArray[Any] | None = None
    """Its whole content, if it is not copied."""


def _join_shards(shards: Sequence[Path], out: Path, *, splits: Iterable[str], attributes: Mapping[str, Any]) -> None:
    """Write the file that the shards are parts of.

    `splits`: in the order of the file. `attributes`: of the root, instead of the shards' own.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_with_any_locking(path)) for path in shards]
        columns: list[_Column] = []
        for split in splits:
            # A small split may have fewer rows than there are shards.
            if having := [file for file in files if key_name(split) in file]:
                columns += _columns_of(split, having)
        # All shards of a set have the same classes, because they were planned together.
        columns.append(_Column(CLASSES, [files[0][CLASSES]], []))
        if skipping := [file[SKIPPED] for file in files if SKIPPED in file]:
            columns.append(_Column(SKIPPED, skipping, []))
        reserved: dict[str, ReservedDataset] = {}
        arrays: dict[str, NDArray[Any] | list[str]] = {}
        for name, nodes, _, values in columns:
            if _is_reserved(nodes[0]):
                rows = sum(map(len, nodes)) if values is None else len(values)
                reserved[name] = ReservedDataset(name, (rows, *nodes[0].shape[1:]), nodes[0].dtype)
            else:
                joined = np.concatenate([node[()] for node in nodes]) if values is None else values
                arrays[name] = [text.decode() for text in joined.tolist()] if joined.dtype.kind == "S" else joined
        # `create_pack` writes the format; the other two would make the file a shard.
        left_out = {FORMAT_ATTRIBUTE, SHARD_SET_ATTRIBUTE, "shard"}
        own = {name: value for name, value in _attributes_of(files[0]).items() if name not in left_out}
        tops = {column.name.partition("/")[0]: column.nodes[0].file for column in columns}
        groups = {top: found for top, file in tops.items() if (found := _attributes_of(file[top]))}
        offsets = create_pack(out, PackContent([*reserved.values()], arrays, {**own, **attributes}, groups))
        with TargetFile(out, fresh=False) as target:
            for column in columns:
                if column.name in reserved:
                    _write_column(column, target, offsets.get(column.name, 0))


def _columns_of(split: str, files: Sequence[Any]) -> Iterator[_Column]:
    """Yield the datasets of a split in the order in which a single process lays them out (boxes, then x, then y),
    because the bytes must not show who wrote the parts."""
    x, y = x_name(split), y_name(split)
    has_boxes = y in files[0] and hasattr(files[0][y], "keys") and BOXES in files[0][y]
    for top in (key_name(split), *((y, x) if has_boxes else (x, y))):
        if top not in files[0]:
            continue
        nodes = [file[top] for file in files]
        if not hasattr(nodes[0], "keys"):
            yield _Column(top, nodes, list(map(len, nodes)))
            continue
        # Offsets count from 0 in each shard; in the joined file each continues where the one before ends.
        counted = [node[OFFSETS][()] for node in nodes]
        used = [int(offsets[-1]) for offsets in counted]
        starts = np.cumsum([0, *used])[:-1]
        whole = [[0], *(offsets[1:] + start for offsets, start in zip(counted, starts, strict=True))]
        for name in sorted(nodes[0], key=lambda name: (name != OFFSETS, name != BOXES, name)):
            values = np.concatenate(whole).astype(np.int64) if name == OFFSETS else None
            yield _Column(f"{top}/{name}", [node[name] for node in nodes], used, values)


def _is_reserved(node: Any) -> bool:
    """Tell whether a dataset was created to be written without HDF5."""
    from h5py import h5d

    # HDF5 stores this property, and it differs for small datasets.
    found: bool = node.id.get_create_plist().get_alloc_time() == h5d.ALLOC_TIME_EARLY
    return found


def _write_column(column: _Column, target: TargetFile, place: int) -> None:
    """Write a dataset from a byte on without HDF5, which would copy through its own buffers and hold its lock."""
    if column.values is not None:
        target.write(array_bytes(column.values), place)
        return
    first = [(node, 0, used) for node, used in zip(column.nodes, column.used, strict=True)]
    last = [(node, used, len(node)) for node, used in zip(column.nodes, column.used, strict=True)]
    for node, begin, end in (*first, *last):
        row_bytes = node.dtype.itemsize * int(np.prod(node.shape[1:], dtype=np.int64))
        start, nbytes = (node.id.get_offset() or 0) + begin * row_bytes, (end - begin) * row_bytes
        with open(os.fsdecode(node.file.filename), "rb") as file:
            for offset, length in block_ranges(nbytes, COPY_BYTES):
                target.write(pread_exactly(file.fileno(), length, start + offset), place + offset)
        place += nbytes


def _attributes_of(node: Any) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in node.attrs.items()}
