"""What evidence is: the samples with their labels, what states the labels, and which files were used.

There are six kinds: folders, names, lists, files beside (boxes and masks of formats), rows that name files, and fields
of the same record (shards, arrays). A lack of evidence is a value too, with the reason. `detect` compares them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.images.decode import probe_image
from colabstage.io.files import read_with_retry
from colabstage.io.units import NAMES_SHOWN, left_out, listed
from colabstage.layouts.columns import NUMBER, show
from colabstage.layouts.reading import BEGINNING_BYTES, Source, T, broken, read_head
from colabstage.layouts.table import (
    Boxes,
    BrokenDatasetError,
    Images,
    Masks,
    SampleSource,
    SampleTable,
    Targets,
    TreeFiles,
    Values,
    files_of,
    known_splits,
    offsets_of,
)
from colabstage.layouts.words import HARMLESS, IMAGES, is_note, same_split, splits_of_folders
from colabstage.trees.listing import FileEntries, count_by, take_strings
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntry


@dataclass(frozen=True, slots=True)
class Evidence:
    table: SampleTable
    who: str
    """What states it, for messages: "the folders", "'labels.csv'"."""
    used: frozenset[str] = frozenset()
    """The files, besides the samples' own, that it read, needs, or leaves out on purpose."""
    is_guess: bool = False
    """Whether the classes are only the names or folders of the samples, which may have another reason."""
    unused: tuple[str, ...] = ()
    """Fields of the samples' own records, or arrays beside theirs, that state nothing about them."""
    files: Sequence[str] = ()
    """The file of each sample that is a record; nothing for samples that are files, or parts of several."""

    @classmethod
    def of_images(
        cls,
        source: Source,
        layout: str,
        files: Sequence[FileEntry],
        targets: Targets | None,
        who: str,
        *,
        splits: Sequence[str] = (),
        classes: Iterable[str] = (),
        notes: Iterable[str] = (),
        used: Iterable[str] = (),
        groups: Sequence[str] = (),
    ) -> Evidence:
        """Return what states the targets of images, a file each, and their splits, "" for none."""
        read, group, said = TreeFiles(source.tree, files), tuple(groups) or None, tuple(notes)
        keys, stated = _numbered_apart(read.entries.names), known_splits(splits)
        table = SampleTable(layout, keys, Images(read), targets, stated, group, classes=tuple(classes), notes=said)
        return cls(table, who, frozenset(used))

    @property
    def claims(self) -> bool:
        """Tell whether it is about the samples, so that nothing weaker may be used instead."""
        return True

    @property
    def named(self) -> str:
        """Return what states it, with the first of most of its files: boxes, not the lists of splits beside them."""
        kinds = Counter(map(extension_of, self.used))
        first = min(self.used, key=lambda name: (-kinds[extension_of(name)], name), default="")
        return self.who if not first or first in self.who else f"{self.who} ('{first}')"

    def in_split_folders(self) -> Evidence:
        """Return the same with the splits of the folders that all samples are in, where nothing else states splits and
        the folders are no classes."""
        folders, of_files = files_of(self.table).folders
        splits = splits_of_folders(folders)
        is_stated = self.table.splits is not None or self.table.layout == IMAGE_FOLDER.layout
        if is_stated or not all(splits) or len({*splits}) < 2:
            return self
        stated = tuple([splits[number] for number in of_files.tolist()])
        found = replace(self, table=replace(self.table, splits=stated))
        return found.noting(f"Splits are the folders that the {found.table.unit} are in: {listed(sorted({*splits}))}.")

    def in_splits_of(self, file: str, splits: Mapping[str, str]) -> Evidence:
        """Return the same with the splits of the samples' files that a description states. Raises
        `BrokenDatasetError`: it states others than this evidence, or only those of some files."""
        table = self.table
        names = files_of(table).names or self.files
        stated = described_splits((file, splits), names, table.splits, who=self.who, layout=table.layout)
        if not stated or table.splits is not None:
            return self
        found = replace(self, table=replace(table, splits=tuple(stated)))
        return found.noting(f"Splits are those of '{file}'.")

    def as_table(self, source: Source) -> SampleTable:
        """Return the samples, with the name of what labels them, and notes of the files of the source that were left
        out, or in whose encoding they may be misread."""
        found = self.noting(*source.notes_on_encodings(self.used)).in_split_folders()
        other, stated = folder_of_no_split(found.table)
        if other:
            found = found.noting(
                f"All are in 'train', those in the folders {listed(stated)} too, because '{other}' is of no split."
            )
        table, of_files = found.table, bool(files_of(found.table))
        of_images = of_files and extension_of(table.keys[0] if table.keys else "") in IMAGES
        silent = HARMLESS.difference(("",) if of_images else ("", *IMAGES))
        others = source.files.not_ending_in(silent).without(self.used).where(lambda name: not is_note(name))
        others = others.without({*table.keys}) if of_files else others
        # The files of a tar that is a shard itself are those of its records.
        if not others or (self.files and self.used.isdisjoint(source.files.names)):
            return replace(table, told_by=self.who)
        # A person sees whether labels were among them.
        is_few = len(others) <= NAMES_SHOWN
        which = listed(others.names, NAMES_SHOWN) if is_few else f"{count_kinds(others)}, first '{others.names[0]}'"
        note = f"{left_out(len(others), 'other files')} ({which})."
        return replace(table, told_by=self.who, notes=(note, *table.notes))

    def noting(self, *notes: str) -> Evidence:
        all_notes = tuple(dict.fromkeys((*self.table.notes, *notes)))
        return replace(self, table=replace(self.table, notes=all_notes)) if notes else self


def described_splits(
    card: tuple[str, Mapping[str, str]], names: Sequence[str], splits: Sequence[str] | None, *, who: str, layout: str
) -> Sequence[str]:
    """Return the splits of some files that a description states; nothing if it states none. Raises
    `BrokenDatasetError`: `who` states others in `splits`, or it states those of some of the files alone."""
    file, known = card
    stated = [known.get(name, "") for name in names]
    for name, split, own in zip(names, stated, splits or stated, strict=True) if any(stated) else ():
        if not split or not same_split(split, own):
            other = f", and of '{own}' by {who}" if splits else ""
            what = f"it is of the split '{split or 'none'}' by '{file}'{other}"
            raise broken(name, what, f'one split for each; layout="{layout}" does without it')
    return stated if any(stated) else ()


def _numbered_apart(names: Sequence[str]) -> Sequence[str]:
    """Return the names, with a number after those that occurred before: an image may have several rows."""
    seen: Counter[str] = Counter()
    if len(set(names)) == len(names):
        return names
    keys = []
    for name in names:
        seen[name] += 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(keys)


@dataclass(frozen=True, slots=True)
class Miss:
    """Why something is not evidence."""

    error: Exception
    near: bool = False
    """Whether this nearly fits; if nothing fits, this is the reason to report."""

    @property
    def claims(self) -> bool:
        """Tell whether it is about the samples and cannot be used, so that nothing weaker may be used instead."""
        return isinstance(self.error, BrokenDatasetError)


Found = Evidence | Miss


class FileKind(NamedTuple):
    layout: str
    noun: str
    extensions: tuple[str, ...]


IMAGE_FOLDER = FileKind("image_folder", "images", IMAGES)


def near(why: str) -> Miss:
    """Return a miss that is worth reporting."""
    return Miss(LayoutError(why), near=True)


def refuse(why: str) -> Miss:
    """Return a refusal: nothing weaker is considered."""
    return Miss(BrokenDatasetError(why))


def gather(read: Callable[[], T]) -> T | Miss:
    """Return what a reader finds, or the reason if it raises one."""
    try:
        return read()
    except (MissingDependencyError, LayoutError) as error:
        return Miss(error, near=isinstance(error, MissingDependencyError))


def required(found: Found) -> Evidence:
    """Return the evidence, or raise the reason why there is none."""
    if isinstance(found, Miss):
        raise found.error
    return found


def left_out_notes(*parts: tuple[int | Sequence[str], str, str]) -> list[str]:
    """Return a note for each kind of thing that was left out (number or names, what, which); none for 0."""
    notes = []
    for lost, things, which in parts:
        count = lost if isinstance(lost, int) else len(lost)
        first = "" if isinstance(lost, int) or not count else f" (first '{show(lost[0])}')"
        if count:
            notes.append(f"{left_out(count, things, which)}{first}.")
    return notes


def require_files(files: T | None, source: Source, what: str) -> T:
    """Return the files that a layout requires, or what was made of them, unless there are none."""
    if files:
        return files
    others = f"but {count_kinds(source.files)}" if source.files else "and no other files"
    msg = " ".join([f"'{source.label}' holds no {what} {others}.", *([] if source.files else source.tree.notes)])
    raise EmptySourceError(msg)


def count_kinds(files: FileEntries) -> str:
    """Write how many files there are of each extension, the most common first."""
    endings, of_files = files.endings
    names = [ending.lower() or "without extension" for ending in endings]
    return count_by([names[number] for number in of_files.tolist()])


def images_of(source: Source, kind: FileKind = IMAGE_FOLDER) -> FileEntries:
    """Return the images of a source, or other samples."""
    return require_files(source.ending_in(kind.extensions), source, kind.noun)


def class_of_samples(table: SampleTable) -> list[str]:
    """Return the class of each sample; empty unless each has one."""
    targets = table.targets
    if not table.classes or not isinstance(targets, Values) or targets.values.ndim != 1:
        return []
    return [table.classes[label] for label in targets.values.tolist()]


def folder_of_no_split(table: SampleTable) -> tuple[str, list[str]]:
    """Return a folder of no split beside those of several splits, with these, where nothing states splits, so that all
    would be trained on; "" if there is none."""
    folders = files_of(table).folders[0] if table.splits is None else []
    splits = splits_of_folders(folders)
    stated = sorted({*splits} - {""})
    return (folders[splits.index("")], stated) if "" in splits and len(stated) > 1 else ("", [])


# Files of another kind are few if the samples are ten times as many.
FEW = 10


def in_bytes(files: FileEntries) -> int:
    """Return the size of files that hold many samples each, to compare with others."""
    return int(files.sizes.sum())


def labels_of_samples(table: SampleTable) -> list[tuple[str, ...]]:
    """Return the class of each sample, or those of its boxes; empty for other samples."""
    targets, classes = table.targets, table.classes
    if not isinstance(targets, Boxes) or not classes:
        return [(label,) for label in class_of_samples(table)]
    labels = [classes[label] for label in targets.columns["labels"].tolist()]
    ends = targets.offsets.tolist()
    return [tuple(dict.fromkeys(labels[first:last])) for first, last in itertools.pairwise(ends)]


def take_rows(table: SampleTable, chosen: NDArray[np.intp]) -> SampleTable:
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
    if isinstance(targets, Values):
        return Values(targets.values[chosen])
    if not isinstance(targets, Boxes):
        return replace(targets, source=targets.source.take(chosen))
    counts = np.diff(targets.offsets)[chosen]
    offsets = offsets_of(counts)
    # The place of each box in the old array: the beginning of its sample there, plus its place in that sample.
    rows = np.repeat(targets.offsets[chosen] - offsets[:-1], counts) + np.arange(counts.sum())
    return replace(
        targets,
        offsets=offsets,
        boxes=targets.boxes[rows],
        sizes=None if targets.sizes is None else targets.sizes[chosen],
        columns={name: values[rows] for name, values in targets.columns.items()},
    )


def renumbered(targets: Targets, classes: Sequence[str], names: Sequence[str]) -> Targets:
    """Return targets whose classes are numbered as in `names`."""
    places = np.array([names.index(name) for name in classes], np.int64)
    if isinstance(targets, Values) and targets.values.ndim > 1:
        made = np.zeros((len(targets.values), len(names)), targets.values.dtype)
        made[:, places] = targets.values
        return Values(made)
    if isinstance(targets, Values):
        return Values(places[targets.values])
    assert isinstance(targets, Boxes)
    return replace(targets, columns={**targets.columns, "labels": places[targets.columns["labels"]]})


# Whether two pieces of evidence state the same about the samples; and if not, which sample shows it.


# Programs round differently, and draw boxes around outlines: edges may be the same up to this distance, as a part of
# the box's longer side and in pixels.
_SAME_PART, _SAME_PIXELS = 0.25, 3
# How many images are opened for their size, if no annotation states it.
_SIZES_READ = 64


def state_of(table: SampleTable, key: str) -> str:
    """Write what a table states about one sample: its class, those of its boxes, or what kind of target it has."""
    row = next((row for row, name in enumerate(table.keys) if name == key), None)
    if row is None:
        return "nothing"
    targets, labels = table.targets, labels_of_samples(table)[row : row + 1]
    if not labels:
        return "a mask" if isinstance(targets, Masks) else "a target"
    names = listed([show(name) for name in labels[0]])
    if not isinstance(targets, Boxes) or not names:
        return names or "no box"
    edges = targets.boxes[targets.offsets[row]].tolist()
    return f"boxes of {names} (first {', '.join(f'{edge:.4g}' for edge in edges)})"


def size_in_file(source: SampleSource, number: int) -> tuple[int, int] | None:
    """Return the height and width of an image from its file, mostly from its beginning; `None` if it is broken."""
    with suppress(DecodeError, CorruptArchiveError):
        if isinstance(source, TreeFiles):
            with suppress(DecodeError):
                facts = probe_image(read_head(source.tree, source.entries[number], BEGINNING_BYTES))
                return facts.height, facts.width
        facts = probe_image(bytes(read_with_retry(lambda: source.read(number), source.name(number))))
        return facts.height, facts.width
    return None


def first_contradicted(one: SampleTable, other: SampleTable) -> str | None:
    """Return a sample about which the second table contradicts the first; `None` if there is none.

    Boxes may agree: the first has all that the second states, with classes that may have other names. A lack of boxes
    in the second contradicts nothing: conversions leave out crowds. Other targets never agree; then a sample in both is
    returned, if there is one, with different labels if there is one.
    """
    if isinstance(one.targets, Boxes) and isinstance(other.targets, Boxes):
        return _first_of_other_boxes(one, other, one.targets, other.targets)
    known = dict(itertools.zip_longest(one.keys, labels_of_samples(one)))
    both = [key for key in other.keys if key in known]
    labels = zip(other.keys, labels_of_samples(other), strict=False)
    return next((key for key, label in labels if key in known and known[key] != label), (both or other.keys)[0])


def _first_of_other_boxes(one: SampleTable, other: SampleTable, first: Boxes, second: Boxes) -> str | None:
    rows = {name: row for row, name in enumerate(one.keys)}
    units_differ = first.relative != second.relative
    chosen = np.flatnonzero(np.diff(second.offsets)).tolist()
    if units_differ and first.sizes is None and second.sizes is None:
        chosen = chosen[:_SIZES_READ]
    # The classes of the first that each class of the second may be: it may be called otherwise, but cat is no dog where
    # there are cats. Numbers may be counted from 1.
    numbers = {name: {number} for number, name in enumerate(one.classes) if not NUMBER.fullmatch(name)}
    every = {*range(len(one.classes))}.difference(*(numbers.get(name, ()) for name in other.classes))
    called = [numbers.get(name, every) for name in other.classes]
    for row in chosen:
        name = other.keys[row]
        places, labels, size = _boxes_of(first, rows.get(name))
        others, other_labels, other_size = _boxes_of(second, row)
        size = size or other_size or (size_in_file(other.inputs.source, row) if units_differ else None)
        # A broken image is reported when it is packed.
        if size is None and units_differ:
            continue
        scale = np.tile((size or (1, 1))[::-1], 2)
        places, others = places * (scale if first.relative else 1), others * (scale if second.relative else 1)
        apart = _SAME_PART * (places[:, 2:] - places[:, :2]).max(axis=1, initial=0)
        apart += 0 if size is None and first.relative else _SAME_PIXELS
        # Whether each box of the second may be each of the first. Boxes without area occur in COCO itself.
        same = np.abs(places[None] - others[:, None]).max(axis=2) <= np.maximum(apart, 1e-9)
        for label, at in zip(other_labels.tolist(), same, strict=True):
            called[label] = called[label].intersection(labels[at].tolist())
            if not called[label]:
                return name
    found = [called[label] for label in np.unique(second.columns["labels"]).tolist()]
    # Two classes of the second are not one of the first.
    return None if len(set().union(*found)) >= len(found) else other.keys[0]


def _boxes_of(boxes: Boxes, row: int | None) -> tuple[NDArray[Any], NDArray[Any], tuple[int, int] | None]:
    """Return the boxes of one image, their classes, and its height and width if stated."""
    part = slice(0) if row is None else slice(boxes.offsets[row], boxes.offsets[row + 1])
    height, width = (0, 0) if row is None or boxes.sizes is None else boxes.sizes[row].tolist()
    return boxes.boxes[part], boxes.columns["labels"][part], (height, width) if height and width else None
