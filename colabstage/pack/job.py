"""What precedes the first byte: the source is opened, its samples are found, and their pack is planned.

A part of the samples of a planned job is a job as well, which is how shards are made.

Slow steps are planned by an estimate, and done before the first sample is read (`settled`): text is tokenized, images
in Parquet are measured if they are stored as files, and torch is imported; if torch proves unusable, Pillow resizes.

A plan is based on a few samples. If another one contradicts it, `ReplanError` says how to plan again, and packing
starts over.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import filterfalse
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
from colabstage.images.geometry import ImageOptions, are_points
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
from colabstage.layouts.words import is_split, originals
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
# Longer calls of prepare= are not repeated.
_QUICK_S = 1.0
# The upper half of this many bits in 16 has four at most: 16 greys, all nearly black.
_DARK_BITS = 12
_AS_THEY_ARE = ImageOptions(color_mode="keep")
# What precedes these in a path.
_BEGINNINGS = {"number": r".*\D(?=\d+[^\d/]*\.\w+$)", "word": r".*[^/ ._-](?=[ ._-]+[^/ ._-]+\.\w+$)"}


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
            chance, began = Chance(), time.monotonic()
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
    differs = time.monotonic() - began < _QUICK_S and _differs(first, prepared, content)
    notes = (*table.notes, *chance.notes("prepare=", differs=differs))
    return replace(table, inputs=Arrays(source, first.shape, first.dtype, prepared), notes=notes)


def _differs(first: NDArray[Any], prepared: Prepared, content: Content) -> bool:
    """Return whether a further call returns something else: a generator made in each call is found by nothing else."""
    with suppress(Exception):  # what only the first call can do is reported when packing
        return not np.array_equal(first, prepared(content), equal_nan=True)
    return False


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
    on_points = _notes_on_points(table, options, facts, in_caller=tree is None)
    table = replace(table, notes=(*table.notes, *_notes_on_images(table, options, facts), *on_points))
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
    """Yield which options have no effect because the inputs are arrays."""
    if not isinstance(table.inputs, Arrays):
        return
    shape = "x".join(map(str, table.inputs.shape)) or "one number"
    arrays = f"the inputs are arrays ({shape} of {table.inputs.dtype}) and no images, and are stored as they are"
    if options.image.size is not None:
        yield f"image_size={options.image.size} changes nothing: {arrays}; prepare= may resize them"
    if options.image.color_mode in ("rgb", "grayscale"):
        yield f"color_mode={options.image.color_mode!r} changes nothing: {arrays}; prepare= may convert them"


def _notes_on_names(table: SampleTable, options: PackOptions) -> Iterator[str]:
    """Yield in which order samples to predict are, how many files belong to others by their names, and whether the
    source's splits separate copies."""
    names, splits = files_of(table).names, table.splits
    if table.targets is None and splits is None and options.fractions is None:
        yield "Rows of 'train' are in random order; with splits={'test': 1.0} they keep that of their names"

    def count_and_pair(repeats: Sequence[tuple[int, int]], among: Sequence[str]) -> tuple[str, str]:
        return counted(len(repeats), "files", "are", of=len(among)), listed([among[row] for row in repeats[0]])

    if options.fractions is not None and options.group_by is not None:
        groups = dict.fromkeys(groups_of_keys(options.group_by, table.keys))
        yield f"group_by= keeps {format_count(len(groups), 'groups')} together: {listed([*groups], 3)}"
    if names and options.fractions is not None and options.group_by is None and table.groups is None:
        divided = np.flatnonzero([split == "train" for split in splits]) if splits else np.arange(len(names))
        own = take_strings(names, divided)
        again = _repeats(own, take_strings(owners(names, strata_of(table)), divided))
        if again:
            are, pair = count_and_pair(again, own)
            yield f"{are} of one person, picture or video with others, by their names ({pair}), and in the same split"
        for what, pattern in _BEGINNINGS.items() if own and not again else ():
            if not all(map(re.compile(pattern).search, table.keys)):
                continue
            shared = owners(table.keys, strata_of(table), [groups_of_keys(pattern, table.keys)])
            again = _repeats(own, take_strings(shared, divided))
            if 2 * len(again) >= len(own):
                are, pair = count_and_pair(again, own)
                yield (
                    f"{are} called as others up to the last {what} ({pair}), and divided one by one. If those are of "
                    f"one video, person or place, keep them in one split: group_by=r'{pattern}'"
                )
                break
    if splits is not None and (found := originals(names)) is not names:
        bare, owned = _without_splits(names), _without_splits(found)
        apart = [(one, row) for one, row in _repeats(names, owned) if splits[one] != splits[row]]
        # Where numbers begin again in each split, equal ones mean nothing.
        if apart and all(bare[one] != bare[row] for one, row in apart):
            are, pair = count_and_pair(apart, names)
            yield (
                f"{are} of one picture or video with others in another split, by their names ({pair}): "
                "results on it look better than they are. only= with the folder of one split, and splits=, divide that "
                "one with these together"
            )


def _notes_on_labels(table: SampleTable, plan: PackPlan) -> Iterator[str]:
    """Yield how many labels are those of no class, which classes have none, or none in a split, and the odd boxes."""
    boxes, labels, classes = table.targets, labels_of(table), table.classes

    def held(rows: Any) -> set[int]:
        own = labels[rows]
        there = {*(np.flatnonzero(own.any(axis=0)) if own.ndim == 2 else np.unique(own)).tolist()}
        # A list of names may be too short.
        return {number for number in range(len(classes)) if number in there}

    count = int(np.sum(labels < 0)) if classes and labels.dtype.kind == "i" else 0
    if count:
        yield f"{count:,} of {len(labels):,} labels are below 0, the number of no class, as missing ones are written."
    known = held(slice(None)) if classes else set()
    bare = [name for number, name in enumerate(classes) if number not in known] if known else []
    if bare:
        what = "which counts as a class" if len(bare) == 1 else "which count as classes"
        yield f"Nothing is labelled {listed(bare)}, {what}."
    if isinstance(boxes, Boxes):
        yield from _notes_on_boxes(boxes, table.keys)
        return
    for split, rows in plan.splits if known else ():
        own = held(rows)
        lacks = [classes[number] for number in sorted(known - own)]
        # The labels of a test may be secret.
        if own and lacks:
            yield f"The split '{split}' has no {table.unit} of {format_count(len(lacks), 'classes')}: {listed(lacks)}."


def _notes_on_boxes(boxes: Boxes, keys: Sequence[str]) -> Iterator[str]:
    """Yield how many boxes a loss may not expect."""
    rows = np.column_stack([boxes.owners, boxes.columns["labels"], boxes.boxes])
    # Sorted by one number of each row, because sorting by all of them takes twenty times as long.
    codes = (rows * np.sqrt([2, 3, 5, 7, 11, 13])).sum(axis=1)
    order = np.argsort(codes)
    one, other = (order[np.flatnonzero(np.diff(codes[order]) == 0) + step] for step in (0, 1))
    again = np.zeros(len(rows), np.bool_)
    again[other] = (rows[one] == rows[other]).all(axis=1)
    flat = (boxes.boxes[:, 2:] == boxes.boxes[:, :2]).any(axis=1)
    for what, odd in {"without an area": flat, "equal to another in the same image": again}.items():
        if odd.any():
            where = f"{what} (first in '{keys[boxes.owners[np.argmax(odd)]]}')"
            yield f"{counted(int(odd.sum()), 'boxes', 'are', which=where)} kept as written."


def _without_splits(names: Sequence[str]) -> list[str]:
    """Return the names of files without folders of splits, in each of which the same file would have the same name."""
    bare = {path: "/".join(filterfalse(is_split, path.split("/"))) for path in {*map(posixpath.dirname, names)}}
    return [f"{bare[path]}/{base}" for path, base in map(posixpath.split, names)]


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
    are_grey = facts and all(one.channels == 1 and one.dtype == np.uint8 for one in facts)
    if are_grey and options.image.color_mode == "auto":
        yield "The images that were examined are grayscale; color_mode='grayscale' stores one channel instead of three"
    peaks = [one.peak for one in facts if one.peak is not None]
    bits = max(peaks, default=0).bit_length()
    if peaks and bits <= _DARK_BITS:
        yield (
            f"The images have 16 bits a pixel, but in those examined the largest value is {max(peaks):,}, which takes "
            f"{bits}; 8 bits are made of the upper half, so they become nearly black. Pass color_mode='keep' to keep "
            "their values, or scale them by prepare="
        )


def _notes_on_points(
    table: SampleTable, options: PackOptions, facts: Sequence[ImageFacts], *, in_caller: bool
) -> Iterator[str]:
    """Yield that arrays as targets look like points, if the images are resized."""
    targets, sides = table.targets, [(fact.height, fact.width) for fact in facts]
    if not isinstance(targets, Arrays) or options.image.size is None or {*sides} <= {options.image.size}:
        return
    source, make = targets.source, targets.to_array
    chosen = np.argsort(source.positions)[:SAMPLES].tolist()
    found = read_each(source, chosen, lambda _, y: make(y), readers=1, skip_broken=True, in_caller=in_caller)
    values = [one for one in found if one.shape == targets.shape]
    if values and are_points(np.array(values), np.array([max(sides)])):
        shape = "x".join(map(str, targets.shape))
        yield f"The targets, {shape} numbers, look like points. image_size= moves the images alone: change these too"


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
