"""What evidence is: the samples with their labels, what states them, and which files it used.

There are six kinds: folders, names, lists, files beside (boxes and masks of formats), rows that name files, and fields
of the same record (shards, arrays). What is no evidence is a value too, with the reason. `detect` compares them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError, MissingDependencyError
from colabstage.io.units import left_out
from colabstage.layouts.table import Boxes, BrokenDatasetError, SampleTable, Values, offsets_of
from colabstage.layouts.words import IMAGES, is_foreign
from colabstage.trees.listing import count_by, take_strings

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import Targets
    from colabstage.trees.listing import FileEntries


@dataclass(frozen=True, slots=True)
class Evidence:
    """What some evidence states of samples."""

    table: SampleTable
    """The samples, with what is stated of each."""
    who: str
    """What states it, for messages: "the folders", "'labels.csv'"."""
    used: frozenset[str] = frozenset()
    """Names of the files that it read, needs, or leaves out on purpose, beside those of the samples."""
    is_guess: bool = False
    """Whether the classes are only folders that the samples are in, or what they are called, which may have another
    reason."""

    @property
    def claims(self) -> bool:
        """Tell whether it is about the samples, so that nothing weaker may be used instead."""
        return True

    @property
    def named(self) -> str:
        """Return what states it, with the first of its files."""
        first = min(self.used, default="")
        return self.who if not first or first in self.who else f"{self.who} ('{first}')"

    def told(self) -> SampleTable:
        """Return the samples, with who states what of them."""
        return replace(self.table, told_by=self.who)

    def noting(self, *notes: str) -> Evidence:
        """Return the same with further notes."""
        return replace(self, table=replace(self.table, notes=(*self.table.notes, *notes))) if notes else self


@dataclass(frozen=True, slots=True)
class Miss:
    """Why something is no evidence."""

    error: Exception
    near: bool = False
    """Whether this nearly fits; if nothing fits, this is the reason to report."""

    @property
    def claims(self) -> bool:
        """Tell whether it is about the samples and cannot be used, so that nothing weaker may be used instead."""
        return isinstance(self.error, BrokenDatasetError)


Found = Evidence | Miss


class FileKind(NamedTuple):
    """The kind of samples in folders."""

    layout: str
    noun: str
    extensions: tuple[str, ...]


IMAGE_FOLDER = FileKind("image_folder", "images", IMAGES)


def near(why: str) -> Miss:
    """Return a miss that is worth reporting."""
    return Miss(LayoutError(why), near=True)


def refuse(why: str) -> Miss:
    """Return a refusal: nothing weaker is looked at."""
    return Miss(BrokenDatasetError(why))


def gather(read: Callable[[], Found]) -> Found:
    """Return what a reader finds; the reason where it raises one."""
    try:
        return read()
    except (MissingDependencyError, LayoutError) as error:
        return Miss(error, near=isinstance(error, MissingDependencyError))


def required(found: Found) -> Evidence:
    """Return the evidence, or raise why there is none."""
    if isinstance(found, Miss):
        raise found.error
    return found


def left_out_notes(*parts: tuple[int, str, str]) -> list[str]:
    """Return a note for each kind of thing that was left out (how many, what, which); none for 0."""
    return [f"{left_out(count, things, which)}." for count, things, which in parts if count]


def require_files(files: FileEntries, source: Source, what: str) -> FileEntries:
    """Return the files that a layout requires."""
    if len(files):
        return files
    msg = f"'{source.label}' holds no {what}."
    raise EmptySourceError(msg)


def count_kinds(files: FileEntries) -> str:
    """Write how many files there are of each extension, the most common first."""
    endings, of_files = files.endings
    names = [ending.lower() or "without extension" for ending in endings]
    return count_by([names[number] for number in of_files.tolist()])


def images_of(source: Source) -> FileEntries:
    """Return the images of a source that are in no hidden folder."""
    images = source.ending_in(IMAGES).in_folders(lambda folder: not any(map(is_foreign, folder.split("/"))))
    return require_files(images, source, "images")


def class_of_samples(table: SampleTable) -> list[str]:
    """Return the class of each sample; nothing for samples without a class each."""
    targets = table.targets
    if not table.classes or not isinstance(targets, Values) or targets.values.ndim != 1:
        return []
    return [table.classes[label] for label in targets.values.tolist()]


def labels_of_samples(table: SampleTable) -> list[tuple[str, ...]]:
    """Return the class of each sample, or those of its boxes; nothing for samples of neither."""
    targets, classes = table.targets, table.classes
    if not isinstance(targets, Boxes) or not classes:
        return [(label,) for label in class_of_samples(table)]
    labels = [classes[label] for label in targets.columns["labels"].tolist()]
    ends = targets.offsets.tolist()
    return [tuple(dict.fromkeys(labels[first:last])) for first, last in itertools.pairwise(ends)]


def take_rows(table: SampleTable, chosen: NDArray[np.intp]) -> SampleTable:
    """Return some samples of a table, in the order given."""
    return replace(
        table,
        keys=take_strings(table.keys, chosen),
        inputs=replace(table.inputs, source=table.inputs.source.take(chosen)),
        targets=None if table.targets is None else take_targets(table.targets, chosen),
        splits=None if table.splits is None else take_strings(table.splits, chosen),
        groups=None if table.groups is None else take_strings(table.groups, chosen),
        complete=None,
    )


def take_targets(targets: Targets, chosen: NDArray[Any]) -> Targets:
    """Return some targets, in the order given."""
    if isinstance(targets, Values):
        return Values(targets.values[chosen])
    if not isinstance(targets, Boxes):
        return replace(targets, source=targets.source.take(chosen))
    counts = np.diff(targets.offsets)[chosen]
    offsets = offsets_of(counts)
    # For each box its place in the old array: the beginning of its sample there, and how far it is into that sample.
    rows = np.repeat(targets.offsets[chosen] - offsets[:-1], counts) + np.arange(counts.sum())
    return replace(
        targets,
        offsets=offsets,
        boxes=targets.boxes[rows],
        sizes=None if targets.sizes is None else targets.sizes[chosen],
        columns={name: values[rows] for name, values in targets.columns.items()},
    )
