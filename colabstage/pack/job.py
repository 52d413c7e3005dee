"""What precedes the first byte: the source is opened, its samples are found, and their pack is planned.

A part of the samples of a planned job is a job as well, which is how shards are made.

Slow steps are planned by an estimate, and done before the first sample is read (`settled`): text is tokenized, images
in Parquet are measured if they are stored as files, and torch is imported; if torch proves unusable, Pillow resizes.

A plan is based on a few samples. If another one contradicts it, `ReplanError` says how to plan again, and packing
starts over.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError, LayoutError, OptionError
from colabstage.images.decode import (
    ImageFacts,
    can_torch_resize,
    check_kept,
    decode_sized,
    expects_torch,
    fit_pixels,
    open_upright,
    probe_image,
)
from colabstage.images.geometry import ImageOptions
from colabstage.io.chance import Chance
from colabstage.io.files import read_with_retry
from colabstage.io.progress import Progress
from colabstage.io.units import counted, format_count, listed
from colabstage.io.workspace import open_spool
from colabstage.layouts.detect import LayoutFunction, detect_layout, is_table_file
from colabstage.layouts.formats.items import IndexableDataset, array_of, read_dataset
from colabstage.layouts.options import table_rows
from colabstage.layouts.reading import read_each
from colabstage.layouts.table import (
    Arrays,
    Boxes,
    Content,
    Images,
    Inputs,
    Masks,
    SampleSource,
    SampleTable,
    UnreadBoxes,
    files_of,
    labels_of,
)
from colabstage.pack.plan import (
    PackPlan,
    SplitPlan,
    gains_by_torch,
    groups_of_keys,
    has_files,
    image_options,
    needs_facts,
    owners,
    plan_pack,
    plan_target,
    strata_of,
    why_kept,
)
from colabstage.sources.opening import OpenedSource, Opening
from colabstage.sources.parse import LocalSource, whole_of
from colabstage.trees.listing import Tree, take_strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.machine.mounts import InCaller
    from colabstage.pack.options import PackOptions
    from colabstage.pack.rows import Takeover

    PackSource = str | os.PathLike[str] | IndexableDataset
    Prepare = Callable[[NDArray[Any]], NDArray[Any]]

# Enough to notice that a folder holds images of many sizes; few enough to cost one round trip of parallel reads.
SAMPLES = 16
# The upper half of this many bits in 16 has four at most: 16 greys, all nearly black.
_DARK_BITS = 12
_AS_THEY_ARE = ImageOptions(color_mode="keep")


class ReplanError(LayoutError):
    """The samples that a plan was based on are not like all others.

    `again`: makes the plan for all samples.
    """

    def __init__(self, message: str, again: Callable[[PackJob], PackJob] | None = None) -> None:
        super().__init__(message)
        # Not an argument of the exception, whose arguments are its text; a worker's error is pickled with both.
        self.again = again

    def plan_again(self, job: PackJob, *, fixed: str = "") -> PackJob:
        """Return the job that all samples agree with; `fixed`: why only `job` will do, if so."""
        if self.again is None or fixed or (self.again is keeps_files and job.options.encoding == "pixels"):
            form = "images cannot be stored as pixels" if self.again is keeps_files else "masks are no class indices"
            msg = f"These {form}{fixed}: {self}."
            raise LayoutError(msg) from self
        return self.again(job)


class CallersDataset(NamedTuple):
    """The caller's dataset, while another thread packs it."""

    dataset: IndexableDataset
    in_caller: InCaller
    """Calls functions in the caller's own thread, where the dataset's code would otherwise run."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """What samples are read from, open."""

    tree: Tree | None
    """The source's files; `None` for a dataset of Python objects."""
    dataset: IndexableDataset | CallersDataset | None
    layout: str | LayoutFunction
    slow: bool = False
    identity: Callable[[], Mapping[str, int]] = dict
    """Returns size and time of an archive, which tell it from another with members of the same names, sizes and times;
    raises `SourceChangedError` if it was written to since it was opened."""

    def find(self, *, is_more: bool = False) -> SampleTable:
        """Return the samples; `is_more`: whether they are to be appended to a dataset."""
        if self.tree is not None:
            return detect_layout(self.tree, self.layout, is_more=is_more)
        assert self.dataset is not None
        if not isinstance(self.dataset, CallersDataset):
            return read_dataset(self.dataset)
        dataset, in_caller = self.dataset
        return in_caller(lambda: read_dataset(dataset, in_caller))


@contextmanager
def open_source(source: PackSource | CallersDataset, options: PackOptions, *, beside: Path) -> Iterator[OpenSource]:
    """Open a path on this machine, or a dataset.

    `beside`: a file on the disk that has space for the unpacked form of a compressed tar, which goes beside it.
    """
    if not isinstance(source, str | os.PathLike):
        yield OpenSource(None, source, options.layout)
        return
    place, layout = Path(source), options.layout
    if is_table_file(place, layout):
        place, layout = place.absolute().parent, table_rows(table=place.name)
    # The path as given, not absolute, because the pack records it and must not depend on the current folder. And
    # without a folder for copies, because each of many workers would make its own copy of the archive.
    named = LocalSource(str(place), place.name, str(place), place)
    opening = Opening(None, Progress(), only=options.parts, zip_encoding=options.zip_encoding)
    # For the unpacked form of a compressed tar; created only if there is one.
    with (
        open_spool(beside.with_name(f"{beside.name}-spool")) as spool,
        OpenedSource(whole_of(named), opening, unpack=True) as opened,
    ):

        def identity() -> dict[str, int]:
            facts = [part.file.facts for part in opened.parts if part.file is not None]
            if not facts:
                return {}
            opened.check_unchanged()
            return {"nbytes": sum(one.size or 0 for one in facts), "mtime_ns": max(one.mtime_ns for one in facts)}

        yield OpenSource(opened.open_tree(spool), None, layout, opened.cost.reads_slowly, identity)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Makes of a sample's content what `prepare` returns."""

    inputs: Inputs
    prepare: Prepare
    options: ImageOptions

    def __call__(self, content: Content) -> NDArray[Any]:
        if isinstance(self.inputs, Arrays):
            x = self.inputs.to_array(content)
        elif isinstance(content, bytes):
            x, _, lost = decode_sized(content, self.options)
            check_kept(lost, self.options.color_mode)
        else:
            x = fit_pixels(content, self.options)
        # A copy, because the function may change it, and the array may be the caller's, or read again.
        values = self.prepare(x.copy())
        try:
            return array_of(values)
        # Of tensors of other types, and of lists of several lengths.
        except (TypeError, ValueError, RuntimeError) as error:
            msg = f"prepare= returned a {type(values).__name__}; expected an array of numbers ({error})."
            raise LayoutError(msg) from error


def prepared_table(table: SampleTable, options: PackOptions) -> SampleTable:
    """Return the table with `prepare(x)` for every x; its shape and dtype are those of the first sample that is not
    left out."""
    if isinstance(table.targets, Masks | Boxes | UnreadBoxes):
        kind = "masks" if isinstance(table.targets, Masks) else "boxes"
        msg = f"prepare= changes the inputs, and the {kind} on them would not follow."
        raise OptionError(msg)
    assert options.prepare is not None
    source, image = table.inputs.source, options.image
    for index in range(len(source)):
        name = source.name(index)
        try:
            content = read_with_retry(partial(source.read, index), name)
            # The upper half of 12 bits in 16 is nearly black: a function that scales them needs all 16.
            if isinstance(content, bytes) and isinstance(table.inputs, Images) and image.color_mode == "auto":
                image = replace(image, color_mode="keep") if probe_image(content).deep else image
            prepared = Prepared(table.inputs, options.prepare, image)
            chance = Chance()
            first = prepared(content)
        except (CorruptArchiveError, DecodeError) as error:
            if options.skip_share is not None and index < len(source) - 1:
                continue
            msg = f"'{name}' cannot be used: {error}"
            raise DecodeError(msg) from error
        break
    if first.dtype.kind not in "biuf":
        msg = f"prepare= returned {first.dtype} values for '{name}'; expected an array of numbers."
        raise LayoutError(msg)
    differs = False
    with suppress(Exception):  # what only the first call can do is reported when packing
        differs = not np.array_equal(first, prepared(content), equal_nan=True)
    notes = (*table.notes, *chance.notes("prepare=", differs=differs))
    return replace(table, inputs=Arrays(source, first.shape, first.dtype, prepared), notes=notes)


@dataclass(frozen=True, slots=True)
class PackJob:
    """A pack that is planned but not begun."""

    tree: Tree | None
    """The source's files; `None` if samples come from Python objects."""
    table: SampleTable
    plan: PackPlan
    options: PackOptions
    takeover: Takeover | None = None
    """What is taken over from an earlier pack, once that is decided."""

    @property
    def label(self) -> str:
        return f"a dataset of {len(self.table)} items" if self.tree is None else self.tree.label

    @property
    def found(self) -> tuple[tuple[str, str], ...]:
        return () if self.tree is None else self.table.summary()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know about the source and its samples."""
        of_masks = self.table.targets.notes if isinstance(self.table.targets, Masks) else ()
        return (*(() if self.tree is None else self.tree.notes), *self.table.notes, *of_masks)


def prepare_pack(tree: Tree, options: PackOptions, *, free_bytes: int | None) -> PackJob:
    """Find the samples of a tree and plan their pack, reading names, and the headers of a few images if needed."""
    return plan_job(tree, detect_layout(tree, options.layout), options, free_bytes=free_bytes)


def plan_job(tree: Tree | None, table: SampleTable, options: PackOptions, *, free_bytes: int | None) -> PackJob:
    """Plan the pack of a table of samples, as `prepare_pack`.

    Whether torch resizes depends on whether it is installed, which must be settled before packing (`settled`).
    """
    # Checked before the first sample is read.
    if len(table) == 0:
        msg = "The source has no samples to split."
        raise LayoutError(msg)
    table = replace(table, notes=(*table.notes, *_notes_on_arrays(table, options), *_notes_on_names(table, options)))
    facts: Sequence[ImageFacts] = ()
    if options.prepare is not None:
        table = prepared_table(completed(table), options)
    elif needs_facts(table, options):
        # Items of a Python dataset are taken in order, each once, and the first ones are kept for packing.
        facts = look_at_images(table, spread=tree is not None and tree.kind == "folder", in_caller=tree is None)
        if not facts and (options.encoding == "pixels" or not has_files(table)):
            # None of the first images tells the form of its pixels, so the first says what is wrong.
            source = table.inputs.source
            try:
                read_each(source, [0], lambda _, content: _image_facts(content), readers=1)
            except DecodeError as error:
                msg = f"'{source.name(0)}' cannot be used, and neither can the others that were examined: {error}"
                raise DecodeError(msg) from error
    table = replace(table, notes=(*table.notes, *_notes_on_images(table, options, facts)))
    has_torch = gains_by_torch(table, options) and expects_torch()
    plan = plan_pack(table, options, facts=facts, free_bytes=free_bytes, has_torch=has_torch)
    return PackJob(tree, replace(table, notes=(*table.notes, *_notes_on_labels(table, plan))), plan, options)


def look_at_images(table: SampleTable, *, spread: bool, in_caller: bool = False) -> Sequence[ImageFacts]:
    """Examine a few images: with `spread` across all of them, otherwise the first; `in_caller` in this thread."""
    # The first images of an archive arrive first.
    source = table.inputs.source
    even = np.linspace(0, len(source) - 1, min(SAMPLES, len(source))).astype(int)
    chosen = (even if spread else np.argsort(source.positions)[:SAMPLES]).tolist()
    # Packing finds broken files again, and names them then.
    return read_each(
        source, chosen, lambda _, content: _image_facts(content), readers=SAMPLES, skip_broken=True, in_caller=in_caller
    )


def _image_facts(content: Content) -> ImageFacts:
    if isinstance(content, bytes):
        facts = probe_image(content)
        if facts.dtype != np.uint16:
            return facts
        # Headers also say 16 bits if a camera of 12 wrote them.
        with open_upright(content) as image:
            return replace(facts, peak=int(np.asarray(image).max()))
    pixels = fit_pixels(content, _AS_THEY_ARE)
    height, width, channels = pixels.shape
    peak = int(pixels.max()) if pixels.dtype == np.uint16 and pixels.size else None
    return ImageFacts(height, width, channels, pixels.dtype, "array", peak)


def _notes_on_arrays(table: SampleTable, options: PackOptions) -> Iterator[str]:
    """Yield which options have no effect on arrays, or not on those of the targets."""
    asked = ["image_size="] * (options.image.size is not None)
    asked += ["color_mode="] * (options.image.color_mode in ("rgb", "grayscale"))
    if asked and isinstance(table.inputs, Arrays):
        shape = "x".join(map(str, table.inputs.shape)) or "one number"
        yield (
            f"{' and '.join(asked)} changes nothing: the inputs are arrays ({shape} of {table.inputs.dtype}) and no "
            "images, and are stored as they are; prepare= may change them"
        )
    elif options.image.size is not None and isinstance(table.targets, Arrays):
        shape = "x".join(map(str, table.targets.shape))
        yield f"image_size= changes the images alone; if the targets, {shape} numbers, are points, change these too"


def _notes_on_names(table: SampleTable, options: PackOptions) -> Iterator[str]:
    """Yield in which order samples to predict are, and what keeps some of them in one split."""
    names, splits = files_of(table).names, table.splits
    if table.targets is None and splits is None and options.fractions is None:
        yield "Rows of 'train' are in random order; with splits={'test': 1.0} they keep that of their names"
    if options.fractions is not None and options.group_by is not None:
        groups = dict.fromkeys(groups_of_keys(options.group_by, table.keys))
        yield f"group_by= keeps {format_count(len(groups), 'groups')} together: {listed([*groups], 3)}"
    if names and options.fractions is not None and options.group_by is None and table.groups is None:
        divided = np.flatnonzero([split == "train" for split in splits]) if splits else np.arange(len(names))
        own = take_strings(names, divided)
        again = _repeats(own, take_strings(owners(names, strata_of(table)), divided))
        if again:
            are, pair = counted(len(again), "files", "are", of=len(own)), listed([own[row] for row in again[0]])
            yield f"{are} of one person, picture or video with others, by their names ({pair}), and in the same split"


def _notes_on_labels(table: SampleTable, plan: PackPlan) -> Iterator[str]:
    """Yield how many labels are those of no class, and which classes a split lacks."""
    labels, classes = labels_of(table), table.classes
    count = int(np.sum(labels < 0)) if classes and labels.dtype.kind == "i" else 0
    if count:
        yield f"{count:,} of {len(labels):,} labels are below 0, the number of no class, as missing ones are written."
    for split, rows in plan.splits if classes and len(labels) == len(table) else ():
        own = labels[rows]
        there = {*(np.flatnonzero(own.any(axis=0)) if own.ndim == 2 else np.unique(own)).tolist()}
        lacks = [name for number, name in enumerate(classes) if number not in there]
        # The labels of a test may be secret.
        if 0 < len(lacks) < len(classes):
            yield f"The split '{split}' has no {table.unit} of {format_count(len(lacks), 'classes')}: {listed(lacks)}."


def _repeats(names: Sequence[str], owned: Sequence[str]) -> list[tuple[int, int]]:
    """Return the files that have the same owner as an earlier one, each after the first of these."""
    firsts: dict[str, int] = {}
    pairs = ((firsts.setdefault(owner, row), row) for row, owner in enumerate(owned))
    return [(first, row) for first, row in pairs if names[first] != names[row]]


def _notes_on_images(table: SampleTable, options: PackOptions, facts: Sequence[ImageFacts]) -> Iterator[str]:
    """Yield what 8 bits in three channels would lose of the images that were examined."""
    if image_options(table, options).color_mode == "keep":
        return
    with_alpha = sum(one.channels in (2, 4) for one in facts)
    if with_alpha:
        have = counted(with_alpha, "images", "have", of=len(facts), which="that were examined")
        yield (
            f"{have} an alpha channel, which is left out: what is transparent has the colour that is stored behind it. "
            "Pass color_mode='keep' to keep the channel"
        )
    peaks = [one.peak for one in facts if one.peak is not None]
    bits = max(peaks, default=0).bit_length()
    if peaks and bits <= _DARK_BITS:
        yield (
            f"The images have 16 bits a pixel, but in those examined the largest value is {max(peaks):,}, which takes "
            f"{bits}; 8 bits are made of the upper half, so they become nearly black. Pass color_mode='keep' to keep "
            "their values, or scale them by prepare="
        )


def settled(job: PackJob) -> PackJob:
    """Return the job with all samples known and a resizer that works; this imports torch if the plan uses it."""
    job = listed_job(job)
    if job.plan.resizer != "torch" or can_torch_resize():
        return job
    return replace(job, plan=replace(job.plan, resizer="pillow"))


def listed_job(job: PackJob) -> PackJob:
    """Return the job, planned again if its table knew only the first samples."""
    # Pixels have fixed places, whatever the length of their files.
    if job.table.complete is None or job.plan.encoding not in ("arrays", "encoded"):
        return job
    encoding = "encoded" if job.plan.encoding == "encoded" else job.options.encoding
    return _planned_again(job, encoding, job.plan.reason)


def keeps_files(job: PackJob) -> PackJob:
    """Return the same job, but storing the original image files, as for images of different sizes."""
    return _planned_again(job, "encoded", why_kept(image_options(job.table, job.options)))


def _planned_again(job: PackJob, encoding: str, reason: str) -> PackJob:
    table = completed(job.table)
    plan = plan_pack(table, replace(job.options, encoding=encoding), facts=(), free_bytes=None)
    return replace(job, table=table, plan=replace(plan, reason=reason))


def completed(table: SampleTable) -> SampleTable:
    """Return the table with everything known, reading contents if needed."""
    return table if table.complete is None else table.complete(table)


def with_foreground(job: PackJob) -> PackJob:
    """Return the same job for masks whose only values are 0 and 255."""
    assert isinstance(job.table.targets, Masks)
    masks = replace(job.table.targets, foreground=True)
    table = replace(job.table, targets=masks, classes=masks.classes)
    return replace(job, table=table, plan=replace(job.plan, y=plan_target(table, job.options, job.plan.x.shape)))


def target_source(table: SampleTable) -> SampleSource | None:
    """Return where targets are read from; `None` if they are known in advance."""
    targets = table.targets
    return targets.source if isinstance(targets, Arrays | Masks | UnreadBoxes) else None


def take_rows(plan: PackPlan, chosen: NDArray[np.int64], splits: Sequence[SplitPlan]) -> PackPlan:
    """Return the plan for some samples of a table.

    `splits`: with the samples' numbers in the whole table, each of them in `chosen`, which ascends.
    """
    renumbered = tuple(SplitPlan(split.name, np.searchsorted(chosen, split.samples)) for split in splits)
    x, *y = (part if part.lengths is None else replace(part, lengths=part.lengths[chosen]) for part in plan.fields)
    everything = sum(len(split.samples) for split in plan.splits)
    # An estimate over all samples, divided in proportion.
    open_bytes = plan.open_bytes * len(chosen) // max(1, everything)
    return replace(plan, x=x, y=y[0] if y else None, splits=renumbered, open_bytes=open_bytes)
