"""What states labels and splits of samples: folders, names, and lists of names; and what every evidence returns.

Evidence is a value: the samples with their labels, what states them, and which files it used. What is no evidence is a
value too, with the reason. `detect` compares them and decides.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError, MissingDependencyError
from colabstage.io.units import counted, format_count, left_out, listed
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.samples import TreeFiles, take_samples
from colabstage.layouts.table import (
    Boxes,
    BrokenDatasetError,
    Images,
    SampleTable,
    Values,
    class_indices,
    known_splits,
)
from colabstage.layouts.words import (
    HARMLESS,
    IMAGES,
    SOUNDS,
    SPLIT_ORDER,
    SPLITS,
    holds_images,
    is_foreign,
    is_note,
    is_part,
    is_role,
    is_split,
    may_be_mates,
    normal,
    same_split,
    shared_folders,
    split_name,
    split_of_path,
    stem_of,
)
from colabstage.trees.strings import take_strings
from colabstage.trees.tree import count_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import Targets
    from colabstage.trees.entries import FileEntries
    from colabstage.trees.tree import FileEntry


@dataclass(frozen=True, slots=True)
class Evidence:
    """What some evidence states of samples."""

    table: SampleTable
    """The samples, with what is stated of each."""
    who: str
    """What states it, for messages: "the folders", "'labels.csv'"."""
    used: frozenset[str] = frozenset()
    """Names of the files that it read or needs, beside those of the samples."""
    passed: frozenset[str] = frozenset()
    """Names of further files that it knows and leaves out on purpose; a note of the table says so."""

    def noting(self, *notes: str) -> Evidence:
        """Return the same with further notes."""
        return replace(self, table=replace(self.table, notes=(*self.table.notes, *notes))) if notes else self


@dataclass(frozen=True, slots=True)
class Miss:
    """Why something is no evidence."""

    error: Exception
    """What to raise where this evidence was asked for."""
    near: bool = False
    """Whether this nearly fits; if nothing fits, this is the reason to report."""

    @property
    def claims(self) -> bool:
        """Tell whether it is about the samples and cannot be used, so that nothing weaker may be used instead."""
        return isinstance(self.error, BrokenDatasetError)


Found = Evidence | Miss


def near(why: str) -> Miss:
    """Return a miss that is worth reporting."""
    return Miss(LayoutError(why), near=True)


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
    """Return the files that a layout requires.

    Raises:
        EmptySourceError: there are none; `what` is the noun for them.
    """
    if len(files):
        return files
    msg = f"'{source.label}' holds no {what}."
    raise EmptySourceError(msg)


def count_kinds(files: FileEntries) -> str:
    """Write how many files there are of each extension, the most common first."""
    endings, of_files = files.endings
    counts: Counter[str] = Counter()
    for ending, count in zip(endings, np.bincount(of_files, minlength=len(endings)).tolist(), strict=True):
        counts[ending.lower() or "without extension"] += count
    return count_by(counts)


def images_of(source: Source) -> FileEntries:
    """Return the images of a source that are in no hidden folder.

    Raises:
        EmptySourceError: there are none.
    """
    images = source.ending_in(IMAGES).in_folders(lambda folder: not any(map(is_foreign, folder.split("/"))))
    return require_files(images, source, "images")


def class_of_samples(table: SampleTable) -> list[str]:
    """Return the class of each sample; nothing for samples without a class each."""
    targets = table.targets
    if not table.classes or not isinstance(targets, Values) or targets.values.ndim != 1:
        return []
    return [table.classes[label] for label in targets.values.tolist()]


def take_rows(table: SampleTable, chosen: NDArray[np.intp]) -> SampleTable:
    """Return some samples of a table, in the order given."""
    targets = table.targets
    return replace(
        table,
        keys=take_strings(table.keys, chosen),
        inputs=replace(table.inputs, source=take_samples(table.inputs.source, chosen)),
        targets=None if targets is None else take_targets(targets, chosen),
        splits=None if table.splits is None else take_strings(table.splits, chosen),
        groups=None if table.groups is None else take_strings(table.groups, chosen),
    )


def take_targets(targets: Targets, chosen: NDArray[Any]) -> Targets:
    """Return some targets, in the order given."""
    if isinstance(targets, Values):
        return Values(targets.values[chosen])
    if not isinstance(targets, Boxes):
        return replace(targets, source=take_samples(targets.source, chosen))
    counts = np.diff(targets.offsets)[chosen]
    # For each box its place in the old array: the beginning of its sample there, and how far it is into that sample.
    ends = np.cumsum(counts)
    rows = np.repeat(targets.offsets[chosen] - (ends - counts), counts) + np.arange(counts.sum())
    return replace(
        targets,
        offsets=np.concatenate([[0], ends]).astype(np.int64),
        boxes=targets.boxes[rows],
        sizes=None if targets.sizes is None else targets.sizes[chosen],
        columns={name: values[rows] for name, values in targets.columns.items()},
    )


# --- folders ----------------------------------------------------------------------------------------------------------

# Pictures in formats that are not read: a folder of them is a class whose samples are missing.
_OTHER_PICTURES = (".svg", ".psd", ".dng", ".cr2", ".nef", ".exr")


class FileKind(NamedTuple):
    """The kind of samples in folders."""

    layout: str
    noun: str
    """The plural noun for them."""
    extensions: tuple[str, ...]


IMAGE_FOLDER = FileKind("image_folder", "images", IMAGES)


class _Folder(NamedTuple):
    """A folder with files of the kind, or an empty one."""

    parts: tuple[str, ...]
    """Its path below the folders that only wrap the dataset."""
    number: int
    """Its number among folders with files; -1 if it is empty."""

    @property
    def has_classes(self) -> bool:
        """Tell whether there is more below the outermost folder than its name again, or a folder such as `images`."""
        below = [name for name in self.parts[1:] if not holds_images(name)]
        return any(split_name(name) != split_name(self.parts[0]) for name in below)


class _ClassFolder(NamedTuple):
    """The sort key of samples, which all samples of a folder share, and the folder's number."""

    split_order: int
    class_name: str
    path: str
    split: str
    number: int

    @classmethod
    def of(cls, folder: _Folder, order: int, split: str, level: int) -> _ClassFolder:
        """Return a folder whose part at a level is the class."""
        # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
        name = folder.parts[level] if level < len(folder.parts) else folder.parts[-1]
        return cls(order, name, "/".join(folder.parts), split, folder.number)


def folders_state(source: Source, kind: FileKind, *, level: int | None = None) -> Evidence:
    """Read files of one kind in folders of classes, as torchvision's `ImageFolder` does.

    A class is the first folder level, classes are numbered in the order of `sorted` names, files are found at any depth
    below, and samples come sorted by class, then folder, then file name. On top of that, folders of splits (train or
    training, val, valid, validation, dev, test or testing, in any case; also training_set, seg_train, test1 and the
    like) may be above the classes, and a folder that merely wraps the dataset is looked through. A split whose images
    are all in one folder `images` takes their classes from a list of names and classes beside it, as Tiny ImageNet has
    it. A class folder without files keeps its number, as in torchvision, where the tree knows of it.

    Args:
        source: the files.
        kind: which of them are samples.
        level: which folder is the class, counted from the first that differs, from 1; negative from the innermost.

    Raises:
        EmptySourceError: there are no files of that kind; the message says what there is instead.
        LayoutError: they are not in folders of classes; the message says how they lie.
    """
    return _ClassFolders(source, kind, level).find()


class _ClassFolders:
    """Files of one kind in a source, sorted into classes and splits by the folders that they are in."""

    def __init__(self, source: Source, kind: FileKind, level: int | None) -> None:
        self.source = source
        self.kind = kind
        self.level = level

    def find(self) -> Evidence:
        files = self._find_files()
        paths, folder_of_file = files.folders
        parts_of = [tuple(path.split("/")) if path else () for path in paths]
        with_files = [
            _Folder(() if any(map(is_foreign, parts)) else parts, number) for number, parts in enumerate(parts_of)
        ]
        folders = _unwrap([*with_files, *self._without_files(with_files)])
        filled = [folder for folder in folders if folder.number >= 0]
        splits = self._split_folders(filled)
        found = sorted(self._classes(folders, splits))
        found, flat = _without_flat(found) if splits and self.level is None else (found, [])
        if not any(folder.number >= 0 for folder in found):
            where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
            msg = (
                f"'{self.source.label}' holds {len(files):,} {self.kind.noun} directly in {where} (first "
                f"'{files.names[0]}'), but the layout {self.kind.layout} needs one folder for each class, with the "
                f"{self.kind.noun} of the class in it."
            )
            raise LayoutError(msg)
        # Numbered before folders without files are dropped, as in torchvision.
        classes = sorted({folder.class_name for folder in found})
        empty = {one.class_name for one in found} - {one.class_name for one in found if one.number >= 0}
        found = [folder for folder in found if folder.number >= 0]
        lists, by_list = self._listed_classes(files, folder_of_file, flat, classes)
        numbers = {name: number for number, name in enumerate(classes)}
        # The files of a folder are already sorted by name, like all files of a tree.
        every = sorted([*found, *(folder for folder in flat if folder.split in by_list)])
        ranks = np.full(len(with_files), len(every), np.int32)
        ranks[[folder.number for folder in every]] = np.arange(len(every))
        ranks = ranks[folder_of_file]
        order = np.argsort(ranks, kind="stable")[: np.count_nonzero(ranks < len(every))]
        ranks = ranks[order]
        chosen = files.take(order)
        labels = np.array([numbers.get(folder.class_name, -1) for folder in every], np.int64)[ranks]
        names = {name: numbers[label] for split in by_list.values() for name, label in split.items()}
        for place in np.flatnonzero(labels < 0).tolist():
            labels[place] = names[chosen.names[place]]
        notes = self._notes(len(files) - len(order), found, lists)
        if empty:
            notes.append(
                f"The folders {listed(sorted(empty))} hold no {self.kind.noun}; they still count as classes, as in "
                "torchvision."
            )
        table = SampleTable(
            layout=self.kind.layout,
            keys=chosen.names,
            inputs=Images(TreeFiles(self.source.tree, chosen)),
            targets=Values(labels),
            classes=tuple(classes),
            splits=tuple([every[rank].split for rank in ranks.tolist()]) if splits else None,
            notes=tuple(notes),
        )
        return Evidence(table, "the folders", frozenset(lists))

    def _find_files(self) -> FileEntries:
        files = self.source.ending_in(self.kind.extensions)
        if len(files):
            return files
        if not len(self.source.files):
            msg = f"'{self.source.label}' holds no files. {' '.join(self.source.tree.notes)}".rstrip()
            raise EmptySourceError(msg)
        msg = (
            f"'{self.source.label}' holds no {self.kind.noun} but {count_kinds(self.source.files)}. "
            f"{self.kind.noun.capitalize()} are files that end in {', '.join(self.kind.extensions)}."
        )
        raise EmptySourceError(msg)

    def _without_files(self, with_files: list[_Folder]) -> list[_Folder]:
        """Find the folders without files of the kind that are empty or hold only pictures in unreadable formats."""
        names = set(self.source.tree.empty_folders)
        # Covers and spectrograms beside audio are not a class.
        if self.kind.extensions != SOUNDS:
            names |= {folder for folder in self.source.ending_in(_OTHER_PICTURES).folders[0] if folder}
        # A folder above one with files is not a class of its own.
        used = {folder.parts[:depth] for folder in with_files for depth in range(1, len(folder.parts) + 1)}
        return [
            _Folder(parts, -1)
            for parts in sorted({tuple(name.split("/")) for name in names} - used)
            if not any(map(is_foreign, parts)) and not is_split(parts[-1]) and not is_role(parts[-1])
        ]

    def _split_folders(self, folders: list[_Folder]) -> dict[str, str]:
        """Return the split folders with the stored name of each split; empty if the folders are classes."""
        tops = {folder.parts[0] for folder in folders if folder.parts}
        deep = {folder.parts[0] for folder in folders if folder.has_classes}
        splits = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
        if len(splits) < 2:
            splits = _spelled_splits(tops, deep) or splits
        # A split without class folders beside splits that have them is unlabelled: seg_pred, single_prediction.
        others = sorted(tops - splits.keys())
        if len(splits) < 2 and others:
            return {}  # A single "train" among other folders is a class of vehicles.
        others = [top for top in others if top in deep or not deep & splits.keys()]
        if others:
            msg = (
                f"'{self.source.label}' mixes folders of splits ({listed(sorted(splits))}) with others that hold "
                f"{self.kind.noun} ({listed(others)}). Move the others away, or into the splits."
            )
            raise LayoutError(msg)
        if len(set(splits.values())) < len(splits):
            msg = (
                f"'{self.source.label}' holds the folders {listed(sorted(splits))}, several of which mean the same "
                "split. Rename or join them."
            )
            raise LayoutError(msg)
        return splits

    def _classes(self, folders: list[_Folder], splits: dict[str, str]) -> list[_ClassFolder]:
        if not splits:
            return [_ClassFolder.of(one, 0, "", self._level(one)) for one in folders if one.parts]
        found = []
        for top, split in splits.items():
            below = [folder._replace(parts=folder.parts[1:]) for folder in folders if folder.parts[:1] == (top,)]
            below = _unwrap_split(below, top)
            found += [_ClassFolder.of(one, SPLIT_ORDER[split], split, self._level(one)) for one in below if one.parts]
        return found

    def _level(self, folder: _Folder) -> int:
        if self.level is None:
            return 0
        level = self.level - 1 if self.level > 0 else len(folder.parts) + self.level
        if folder.number >= 0 and not 0 <= level < len(folder.parts):
            msg = (
                f"folders(level={self.level}): '{'/'.join(folder.parts)}' is "
                f"{format_count(len(folder.parts), 'folders')} "
                "deep. Choose a level that every sample has; -1 is the innermost."
            )
            raise LayoutError(msg)
        return max(level, 0)

    def _listed_classes(
        self, files: FileEntries, folder_of_file: NDArray[Any], flat: list[_ClassFolder], classes: list[str]
    ) -> tuple[list[str], dict[str, dict[str, str]]]:
        """Return the class of each file in splits whose folder has a list of names and classes beside the images, and
        the lists.

        Raises:
            BrokenDatasetError: a list omits a file, or names a class without a folder.
        """
        found: dict[str, dict[str, str]] = {}
        used = []
        texts = self.source.ending_in((".txt",)) if flat else ()
        for folder in flat:
            names = [files.names[number] for number in np.flatnonzero(folder_of_file == folder.number).tolist()]
            above = posixpath.dirname(posixpath.dirname(names[0]))
            for entry in texts:
                if posixpath.dirname(entry.name) != above:
                    continue
                lines = (line.split("\t" if "\t" in line else None) for line in self.source.text(entry).splitlines())
                stated = {normal(one[0].strip()): one[1].strip() for one in lines if len(one) > 1}
                if normal(posixpath.basename(names[0])) in stated:
                    found[folder.split] = _classes_of(entry, names, stated, classes)
                    used.append(entry.name)
                    break
        return used, found

    def _notes(self, outside: int, found: list[_ClassFolder], lists: list[str]) -> list[str]:
        notes = left_out_notes((outside, self.kind.noun, "in no class folder"))
        # Omitted files are counted by kind, so that a person sees whether labels were among them.
        others = self.source.files.not_ending_in(self.kind.extensions)
        if others:
            notes.append(f"{left_out(len(others), 'other files')} ({count_kinds(others)}).")
        by_split = _classes_by_split(found)
        everything = set().union(*by_split.values())
        notes += [
            f"The split '{split}' has no {self.kind.noun} of "
            f"{format_count(len(everything) - len(own), 'classes')}: {listed(sorted(everything - own))}."
            for split, own in by_split.items()
            if own != everything
        ]
        return notes + _numbered_note(sorted(everything)) + [f"Classes of '{one}' are read." for one in lists]


def _numbered_note(classes: list[str]) -> list[str]:
    """Return a note if folders have numbers as names that differ from the labels."""
    # 10 is sorted before 2, and names that count from 1 get labels from 0, so a separate list of names would be
    # shifted.
    if not classes or not all(name.isascii() and name.isdecimal() and len(name) < 20 for name in classes):
        return []
    odd = next(((name, place) for place, name in enumerate(classes) if int(name) != place), None)
    if odd is None:
        return []
    note = (
        "The folders have numbers as names, and labels are other numbers: positions in the text order of these names, "
        f"in which '{odd[0]}' is {odd[1]}. classes[label] is the folder's name."
    )
    return [note]


def _unwrap(folders: list[_Folder]) -> list[_Folder]:
    """Remove the folders that all files share, down to the one with the class or split folders."""
    while True:
        # Files beside the wrapping folder (a preview, a logo) do not make it a class.
        nested = [folder for folder in folders if folder.parts and folder.number >= 0]
        # Nor does a folder of unsorted test images.
        tops = {folder.parts[0] for folder in nested if folder.has_classes or not is_split(folder.parts[0])}
        if len(tops) != 1 or not (tops == {one.parts[0] for one in nested} or _holds_splits(folders, *tops)):
            return folders
        nested = [folder for folder in nested if folder.parts[0] in tops]
        top = next(iter(tops))
        if top.lower() in SPLITS or any(len(one.parts) == 1 for one in nested):
            return folders
        # One class with a folder in it, beside classes without files, looks like a wrapper of one class.
        empty = any(folder.number < 0 and folder.parts[0] != top for folder in folders)
        if empty and len({folder.parts[1] for folder in nested}) == 1:
            return folders
        folders = [
            # What remains beside a wrapper is not in a class folder.
            folder._replace(parts=folder.parts[1:] if folder.parts[:1] == (top,) else ())
            for folder in folders
            if folder.number >= 0 or folder.parts[:1] == (top,)
        ]


def _holds_splits(folders: list[_Folder], top: str) -> bool:
    """Tell whether a folder, or the folder that it wraps, holds several split folders."""
    inside = [folder.parts[1:] for folder in folders if folder.parts[:1] == (top,) and folder.number >= 0]
    inner = {parts[0] for parts in inside if parts}
    if len(inner) == 1 and all(len(parts) > 1 for parts in inside):
        return _holds_splits([_Folder(parts, 0) for parts in inside], *inner)
    return len(inner) > 1 and all(map(is_split, inner))


def _spelled_splits(tops: set[str], deep: set[str]) -> dict[str, str]:
    """Find splits with other spellings, if the names agree apart from the split: seg_train and seg_test; rps, which is
    then `train`, and rps-test-set. Empty if they do not."""
    read = {top: split_name(top) for top in tops}
    named = {top: name for top, name in read.items() if name.split and top in deep}
    rests = {name.rest for name in named.values()}
    if len(rests) != 1:
        return {}
    bare = [top for top in deep - named.keys() if read[top].rest == next(iter(rests)) and read[top].rest]
    splits = {top: name.split for top, name in read.items() if name.split and name.rest in rests}
    if len(bare) == 1 and "train" not in splits.values():
        splits[bare[0]] = "train"
    return splits if len(splits) > 1 else {}


def _unwrap_split(folders: list[_Folder], split: str) -> list[_Folder]:
    """Remove a folder that repeats the split, or is merely called images: seg_train/seg_train/forest."""
    inner = {folder.parts[0] for folder in folders if folder.parts and folder.number >= 0}
    if len(inner) != 1 or not all(len(folder.parts) > 1 for folder in folders if folder.parts):
        return folders
    name = next(iter(inner))
    if split_name(name) != split_name(split) and not holds_images(name):
        return folders
    return _unwrap_split([folder._replace(parts=folder.parts[1:]) for folder in folders], split)


def _classes_by_split(found: Iterable[_ClassFolder]) -> dict[str, set[str]]:
    by_split: dict[str, set[str]] = {}
    for folder in found:
        by_split.setdefault(folder.split, set()).add(folder.class_name)
    return by_split


def _without_flat(found: list[_ClassFolder]) -> tuple[list[_ClassFolder], list[_ClassFolder]]:
    """Return the class folders, and the folders of splits whose only folder is called images or repeats the split's
    name while other splits have class folders."""
    by_split = _classes_by_split(found)
    flat = {
        split
        for split, names in by_split.items()
        if len(names) == 1 and (holds_images(name := next(iter(names))) or split_name(name).split == split)
    }
    others = {name for split, names in by_split.items() if split not in flat for name in names}
    flat = {split for split in flat if others and not by_split[split] & others}
    return [one for one in found if one.split not in flat], [one for one in found if one.split in flat]


def _classes_of(entry: FileEntry, names: list[str], stated: dict[str, str], classes: list[str]) -> dict[str, str]:
    known = set(classes)
    found = {name: stated.get(normal(posixpath.basename(name)), "") for name in names}
    # A list from another dataset, or of words other than the folders' names, would give wrong labels to all.
    wrong = next((name for name, label in found.items() if label not in known), None)
    if wrong is not None:
        what = f"the class '{found[wrong]}', but no folder has that name" if found[wrong] else "no class"
        msg = f"'{entry.name}' gives {what} to '{wrong}'; expected one of {listed(classes)}. Correct the list."
        raise BrokenDatasetError(msg)
    return found


def why_not_classes(found: Evidence, *, may_be_one: bool = False) -> str:
    """Return why folders are probably no classes, and what to write; "" if they may be.

    Args:
        found: what the folders state.
        may_be_one: whether a single class is fine, because the samples are added to others.
    """
    return _Levels(found.table).why_not(may_be_one=may_be_one)


_INNERMOST = "layout=folders(level=-1) or layout=file_names(r'([^/]+)/[^/]+$'), from colabstage.options"


class _Levels:
    """The folders of samples that may be classes: their depth, and what they are called."""

    def __init__(self, table: SampleTable) -> None:
        self.table = table
        source = table.inputs.source
        assert isinstance(source, TreeFiles)
        self.files = source.entries
        self.folders, self.folder_of = self.files.folders

    def why_not(self, *, may_be_one: bool) -> str:
        below = self._below()
        return (
            ("" if may_be_one else self._one_class())
            or self._roles()
            or self._parts_below()
            or self._deeper(below)
            or self._mates()
            or self._strange_split()
        )

    def _path(self, name: str) -> str:
        """Return the path of a class's folder."""
        parts = next((one.split("/") for one in self.folders if name in one.split("/")), [name])
        return "/".join(parts[: parts.index(name) + 1])

    def _below(self) -> dict[str, set[str]]:
        """Return for each class the folders in it that contain samples; "" where some are directly in it."""
        targets, classes = self.table.targets, self.table.classes
        labels = targets.values if isinstance(targets, Values) else np.zeros(0, np.int64)
        # As single numbers, because sorting a million pairs takes ten times as long and twice the memory.
        pairs = np.unique(self.folder_of.astype(np.int64) * len(classes) + labels)
        folders = [(self.folders[pair // len(classes)], classes[pair % len(classes)]) for pair in pairs.tolist()]
        # A folder above all of them may have a class's name: cell_images/cell_images.
        depth = len(shared_folders(f"{folder}/" for folder, _ in folders)) if len(classes) > 1 else 0
        rests: dict[str, set[tuple[str, ...]]] = {name: set() for name in classes}
        for folder, name in folders:
            parts = folder.split("/")
            rest = parts[parts.index(name, depth) + 1 :] if name in parts[depth:] else []
            rests[name].add(tuple(part for part in rest if not is_role(part)))
        self.leaves = {name: inner - {()} for name, inner in rests.items() if () not in inner}
        while True:
            # Folders that are below every class say nothing about a class.
            first = {rest[:1] for inner in rests.values() for rest in inner}
            if len(first) != 1 or () in first:
                return {name: {(*rest, "")[0] for rest in inner} for name, inner in rests.items()}
            rests = {name: {rest[1:] for rest in inner} for name, inner in rests.items()}

    def _deeper(self, below: dict[str, set[str]]) -> str:
        """Find samples below the folders: variants of one dataset, parts of each sample, or the classes."""
        common = set.intersection(*below.values())
        first = next(iter(below))
        if len(below) > 1 and len(common) > 1 and "" not in common:
            return (
                f"each holds the folders {listed(sorted(common))}, which may be the classes as well. Stage one of the "
                f"outer folders alone, only='{self._path(first)}', or have the inner ones read as classes: "
                f"{_INNERMOST}."
            )
        again = next((name for name, inner in below.items() if len((inner & below.keys()) - {name}) > 1), None)
        if again is not None:
            inner = below[again] & below.keys()
            return (
                f"'{again}' holds the folders {listed(sorted(inner))}, which are classes beside it as well. Move it "
                f"away, or stage it alone: only='{self._path(again)}'."
            )
        wide = next((name for name, inner in below.items() if len(inner - {""}) > 1), None)
        wide = wide or next((name for name, inner in self.leaves.items() if len(inner) > 1), None)
        if wide is None:
            return ""
        flat = [name for name, inner in below.items() if inner == {""}]
        if not any("" in inner for inner in below.values()):
            return (
                f"the {self.table.unit} are deeper: those of '{wide}' in {listed(sorted(below[wide]))}, which may be "
                f"the classes. Have the inner folders read as classes: {_INNERMOST}."
            )
        # A picture of a repository beside the folder with the classes.
        if flat and len(flat) == len(below) - 1 and "" not in below[wide]:
            return (
                f"those of '{wide}' are deeper, in {listed(sorted(below[wide]))}, which may be the classes, and "
                f"{listed(flat)} {'hold' if len(flat) > 1 else 'holds'} {self.table.unit} directly. Read one of the "
                f"folders: only='{self._path(wide)}'."
            )
        return ""

    def _parts_below(self) -> str:
        """Find folders of images and of masks below the classes: the masks are not samples."""
        folders = {name for folder in self.folders for name in folder.split("/")}
        # train_images and val_images above the classes are splits, despite the word images.
        above = {name for name in folders if is_split(name)} if self.table.splits is not None else set()
        found = sorted(folder for folder in folders - above - set(self.table.classes) if is_role(folder))
        if len(found) < 2:
            return ""
        return (
            f"{listed(found)} hold parts of each sample. Say which are the inputs and the masks: "
            f"layout=parts(x='{found[0]}', y='{found[-1]}'); or have the class read from the paths of one of them: "
            f"layout=file_names(r'([^/]+)/{found[0]}/'), both from colabstage.options."
        )

    def _roles(self) -> str:
        """Find the folders called after splits, or after what they hold of each sample, unless one stands among real
        classes."""
        classes = self.table.classes
        roles = [name for name in classes if is_role(name)]
        splits = [name for name in classes if split_name(name).split]
        rests = [split_name(name) for name in splits]
        # "train" among ships and cars is a vehicle, "test tube" beside "beaker" a thing.
        # training_fake beside training_real are two classes of one split.
        of_one = len({read.split for read in rests}) == 1 and len({read.rest for read in rests}) == len(rests) > 1
        of_splits = [
            name for name, read in zip(splits, rests, strict=True) if not read.rest or (len(splits) > 1 and not of_one)
        ]
        # Of folds, or of pictures before and after, each folder is a part; "depth" among other words is a class.
        parts = [name for name in classes if is_part(name)]
        if parts and len({*parts, *splits}) == len(classes):
            of_splits += parts
        odd = {*roles, *of_splits}
        if not odd or (len(odd) == 1 and len(classes) > 2):
            return ""
        first, *_, last = sorted(classes) if len(classes) > 1 else [*classes, *classes]
        return (
            f"{listed(sorted(odd))} are names of parts of a dataset, and nothing says what of each sample they hold. "
            f"Say it: layout=parts(x='{first}', y='{last}') for images and masks; stage one that has classes: "
            f"only='{self._path(first)}'; or read the class from the files' names: layout=file_names(PATTERN), from "
            "colabstage.options."
        )

    def _mates(self) -> str:
        """Find folders that hold parts of one sample: the same stems are in each of them."""
        classes = self.table.classes
        if not 2 <= len(classes) <= _MOST_PARTS or not may_be_mates(classes, "a"):
            return ""
        labels = self.table.targets.values if isinstance(self.table.targets, Values) else np.zeros(0, np.int64)
        stems: list[set[str]] = []
        for number, name in enumerate(classes):
            rows = np.flatnonzero(labels == number)[:_STEMS_COMPARED]
            own = {bare_stem(self.files.names[row], name) for row in rows.tolist()}
            stems.append(own - {""})
        smallest = min(stems, key=len)
        if not smallest or any(2 * len(smallest & own) < len(smallest) for own in stems):
            return ""
        if not may_be_mates(classes, min(smallest)):
            return ""
        return (
            f"the {self.table.unit} in {listed(sorted(classes))} have the same names ('{min(smallest)}', …): they may "
            f"be parts of each sample, such as an image and its mask. Say which: layout=parts(x='{classes[0]}', "
            f"y='{classes[-1]}'), from colabstage.options."
        )

    def _one_class(self) -> str:
        if len(self.table.classes) > 1:
            return ""
        return (
            "that is one class, and there is nothing to learn from one. Expected a folder for each class, a table of "
            "labels beside the images, or their class in the files' names: layout=file_names(PATTERN)."
        )

    def _strange_split(self) -> str:
        """Find a split that has no class in common with `train`."""
        if self.table.splits is None or not isinstance(self.table.targets, Values):
            return ""
        classes: dict[str, set[str]] = {}
        for split, label in set(zip(self.table.splits, self.table.targets.values.tolist(), strict=True)):
            classes.setdefault(split, set()).add(self.table.classes[label])
        # Tested classes must be trained, so without a common class the folders are something else.
        known = classes.get("train")
        for split, names in classes.items():
            if known and not names & known:
                return (
                    f"the split '{split}' ({listed(sorted(names))}) has no class in common with 'train' "
                    f"({listed(sorted(known))}). Name its folders as those of 'train', or move it away."
                )
        return ""


# More folders are classes.
_MOST_PARTS = 16
_STEMS_COMPARED = 64


def bare_stem(name: str, folder: str) -> str:
    """Return a file's stem without the words of its folder and without leading zeros, as parts of a sample share it:
    red_patch_1 in train_red, top_2_1_label in labels."""
    found = [word.lower() for word in re.findall(r"[A-Za-z]+", folder)]
    words = {*found, *(word.rstrip("s") for word in found), *_PART_ENDS}
    parts = [part for part in re.split(r"[ ._-]+", stem_of(name).lower()) if part and part not in words]
    return "_".join(part.lstrip("0") or "0" if part.isdecimal() else part for part in parts)


_PART_ENDS = frozenset({"mask", "label", "labels", "gt", "seg", "hair", "skin", "l", "rgb", "img", "image"})


# --- names ------------------------------------------------------------------------------------------------------------

# The only unambiguous form: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")
# A last word of a name that is not just a number.
_AFTER_STEM = re.compile(r"[ ._-]?(?=[^/ ._-]*[A-Za-z])[^/ ._-]+$")
# The part before the last number of a name: pug in pug_12, 25_0_2 in 25_0_2_20170116.
_BEFORE_NUMBER = re.compile(r"(.*?[A-Za-z0-9])[ _.()-]*\d+\D*$")
# The same of whole names, for who has to write it.
_BEFORE_NUMBER_TYPED = r"([^/]*?[A-Za-z0-9])[ _.()-]*\d+[^\d/]*\.\w+$"


def names_state(source: Source, *, pattern: str | None = None) -> Evidence:
    """Read images with the classes in their names: without a pattern, every name is label.number.extension.

    Images of a test folder whose names have no class are left out; with a pattern, so are all whose paths do not fit
    it. Folders of splits are recognised. Samples come sorted by name; classes are numbered in the order of their sorted
    names.

    Args:
        source: the files.
        pattern: a regular expression that is searched in each image's path; its first group, or else the whole match,
            is the class.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: a name has no class, or all have the same.
    """
    images = images_of(source)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    # The first of a million names usually shows that they have no class.
    silent_names = (name for name in images.names if wanted.search(name) is None and split_of_path(name) != "test")
    odd = next(silent_names, None) if pattern is None else None
    found = [wanted.search(name) for name in images.names] if odd is None else []
    silent = [name for name, match in zip(images.names, found, strict=True) if match is None] if odd is None else []
    if odd is not None or len(silent) == len(images):
        expected = f"{pattern!r} in it" if pattern is not None else "a name such as cat.0.jpg"
        msg = f"The name of '{odd or silent[0]}' in '{source.label}' does not say its class; expected {expected}."
        raise LayoutError(msg)
    values, classes = class_indices(
        [(match[1] or "") if wanted.groups else match[0] for match in found if match is not None]
    )
    # The same class in all names is a common prefix, such as IMG, not a class.
    if len(classes) < 2:
        msg = f"The names of the images in '{source.label}' do not tell classes apart: all say {list(classes)}."
        raise LayoutError(msg)
    # Names without a class belong to a test set.
    files = images.take(np.flatnonzero([match is not None for match in found]))
    notes = [f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."]
    if silent:
        which = "of a test folder whose names give no class" if pattern is None else f"whose paths have no {pattern!r}"
        notes.append(f"{left_out(len(silent), 'images', which)} (first '{silent[0]}').")
    table = SampleTable(
        layout="file_names",
        keys=files.names,
        inputs=Images(TreeFiles(source.tree, files)),
        targets=values,
        splits=known_splits([split_of_path(name) for name in files.names]),
        classes=classes,
        notes=tuple(notes),
    )
    return Evidence(table, "the files' names")


def nothing_states(source: Source) -> Evidence:
    """Read all images of a source, in order of their names, without labels; splits come from folders, if all images
    are in split folders.

    Raises:
        EmptySourceError: there are no images.
    """
    images = images_of(source)
    splits_of = splits_of_folders(images)
    notes = ["The images have no labels: neither folders of classes, nor files of annotations, nor words in names."]
    folders, of_files = images.folders
    if len(folders) == 1 and folders[0] and not splits_of[0]:
        notes.append(f"All are in the folder '{folders[0]}'; layout='image_folder' makes it their class.")
    if not any(splits_of):
        notes.append("Rows of 'train' are in random order; with splits={'test': 1.0} they keep that of their names.")
    table = SampleTable(
        layout="images",
        keys=images.names,
        inputs=Images(TreeFiles(source.tree, images)),
        targets=None,
        splits=known_splits([splits_of[number] for number in of_files.tolist()]),
        notes=tuple(notes),
    )
    return Evidence(table, "nothing")


def splits_of_folders(images: FileEntries) -> list[str]:
    """Return the split of each folder with images, in the order of `FileEntries.folders`; "" for none."""
    folders, _ = images.folders
    # DIV2K_train_HR beside DIV2K_valid_HR: the same words beside the split.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    tops = [split_name("".join(folder.split("/")[depth : depth + 1])) for folder in folders]
    same = len({read.rest for read in tops}) == 1
    return [
        split_of_path(f"{folder}/") or (top.split if same else "") for folder, top in zip(folders, tops, strict=True)
    ]


def why_not_bare(source: Source) -> str:
    """Return what may be the labels of images that nothing states labels of, and what to write; "" if nothing may."""
    images = images_of(source)
    without = 'layout="images" reads the images without labels.'
    others = source.files.not_ending_in(tuple(HARMLESS))
    labels = [name for name in others.names if not is_note(name)]
    if labels:
        return (
            f"The images of '{source.label}' are in no folders of classes, and {listed(labels[:3])} may hold their "
            f"labels, in a form that is not read here. Write a table with a path and a label in each row beside the "
            f"images{_as_csv(labels[0])}, or give a function as layout=. {without}"
        )
    beginnings = _beginnings(images.names)
    if beginnings:
        return (
            f"The images of '{source.label}' are in no folders of classes, but their names may say the class: "
            f"{listed(beginnings)}. Say which part it is: layout=file_names(r'{_BEFORE_NUMBER_TYPED}'), from "
            f"colabstage.options, for what comes before the last number. {without}"
        )
    pair = _pair_by_name(images.names)
    if pair is not None:
        return (
            f"The images of '{source.label}' come in twos by their names: '{pair[1]}' may be the mask of "
            f"'{pair[0]}', or "
            "another part of the sample. Put one kind into a folder called images and the other into one called masks; "
            f"or, where each is a sample, {without}"
        )
    return ""


# What reads a file of labels with pandas, if it is a table. As text, because 0001 is a name.
_PANDAS = {".xlsx": "read_excel", ".xls": "read_excel", ".ods": "read_excel", ".feather": "read_feather"}


def _as_csv(name: str) -> str:
    """Return how pandas writes a file as a table that is read, in brackets; "" where that depends on what is in it."""
    base, extension = posixpath.splitext(name)
    reader = _PANDAS.get(extension.lower())
    as_text = ", dtype=str" if reader == "read_excel" else ""
    return "" if reader is None else f" (pandas.{reader}('{name}'{as_text}).to_csv('{base}.csv', index=False))"


def _pair_by_name(names: Sequence[str]) -> tuple[str, str] | None:
    """Return an image and one that is called after it, where most images are one or the other; else nothing."""
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(posixpath.splitext(name)[0], []).append(name)
    ends: dict[str, tuple[str, str]] = {}
    counts: Counter[str] = Counter()
    for stem, same in by_stem.items():
        found = _AFTER_STEM.search(stem)
        after = stem[: found.start()] if found is not None else ""
        # Called alike but for the extension, as MSRA10K has a.jpg and a.png; or with a word behind: a_manual.
        if len(same) > 1:
            end, pair = "", (same[0], same[1])
        elif found is not None and after in by_stem:
            end, pair = found[0], (by_stem[after][0], same[0])
        else:
            continue
        counts[end] += 1
        ends.setdefault(end, pair)
    end, count = next(iter(counts.most_common(1)), ("", 0))
    return ends[end] if count > 1 and 4 * count > len(names) else None


def _beginnings(names: Sequence[str]) -> list[str]:
    """Return what precedes the numbers in the names, if that makes classes; otherwise nothing."""
    # Images to be classified are often only numbered.
    names = [name for name in names if split_of_path(name) != "test"] or names
    matches = [_BEFORE_NUMBER.match(stem_of(name)) for name in names]
    found = {match[1] for match in matches if match is not None}
    # As many prefixes as images are not classes, and neither is a single one, such as IMG.
    are_classes = len(found) > 1 and 2 * len(found) <= len(names) and all(matches)
    return sorted(found) if are_classes else []


# --- lists of names ---------------------------------------------------------------------------------------------------

_LISTS = (".txt", ".lst")
# At least this share of a list's names must exist for it to be a list of these samples.
_THERE = 0.5
# Three splits and some folds; more text files than that are one for each sample.
_MOST_LISTS = 16
# Words that people combine with the split in a list's name.
_BESIDE_LISTS = frozenset({"list", "files"})


@dataclass(slots=True)
class SplitList:
    """A list of samples of one split."""

    file: str
    split: str
    samples: list[int] = field(default_factory=list)
    """Numbers of its samples."""
    missing: int = 0
    """How many of its names do not exist."""


def lists_state(
    source: Source, found: Evidence, *, stated: dict[str, str] | None = None, within: str = ""
) -> tuple[Evidence, list[str]]:
    """Add the splits of samples from lists named after splits, if there are any, and return the lists that are not
    read because they do not say which split each sample is of.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where something else states the splits, lists only have to agree.

    Args:
        source: the files.
        found: samples of one file each.
        stated: the lists by name with their splits, where something says which they are.
        within: lists in folders that end so go before all others.

    Raises:
        BrokenDatasetError: a list names a file in another class, split or several at once; or two lists name one file.
    """
    table = found.table
    if not isinstance(table.inputs.source, TreeFiles):
        return found, []
    texts = source.ending_in(_LISTS if stated is None else (*_LISTS, ""))
    if stated is None:
        names = {name: split for name in texts.names if (split := _listed_split(name)) and name not in found.used}
        inside = {name: split for name, split in names.items() if f"/{posixpath.dirname(name)}".endswith(f"/{within}")}
        names = inside if within and inside else names
    else:
        names = stated
    if not names or len(names) > _MOST_LISTS:
        return found, []
    lines = {
        name: [normal(line.replace("\\", "/").removeprefix("./").lstrip("/")) for line in _paths_in(text)]
        for name, text in source.texts(texts.where(lambda name: name in names)).items()
    }
    # Several rows of a table may be of one file.
    rows: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(table.inputs.source.entries.names):
        rows[normal(name)].append(number)
    lookup = Lookup(rows)
    read = (_read_list(SplitList(name, names[name]), one, table, lookup, rows) for name, one in lines.items())
    used = [one for one in read if one is not None]
    # Those of one split that name other files may complete each other only if they are of different splits.
    splits = [one.split for one in used]
    if table.splits is not None:
        return replace(found, used=found.used | {one.file for one in used}), []
    # Lists are folds, or only train is listed, which leaves nothing held out.
    named = {number for one in used for number in one.samples}
    none_trains = "train" not in splits and len(named) == len(table)
    if len(set(splits)) < len(splits) or not set(splits) - {"train"} or none_trains:
        return found, [one.file for one in used]
    made = _with_listed_splits(table, used)
    return replace(found, table=made, used=found.used | {one.file for one in used}), []


def _paths_in(text: str) -> list[str]:
    """Return the paths in the lines of a list: whole lines; or the first word where each has two paths, of an image
    and of its mask, or a path and a flag."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    words = [line.split() for line in lines]
    pairs = all(2 <= len(one) <= 4 for one in words) and all(
        posixpath.splitext(one[1])[1] or one[1].lstrip("-").isdecimal() for one in words
    )
    return [one[0] for one in words] if lines and pairs else lines


def _listed_split(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _read_list(
    into: SplitList, lines: list[str], table: SampleTable, lookup: Lookup, rows: dict[str, list[int]]
) -> SplitList | None:
    """Return the samples that a list names; `None` where it is not a list of these samples' paths."""
    named = [lookup.may_find(line) for line in lines]
    # A list of mostly other files is one of another dataset, or of classes.
    if not any(named) or sum(named) < _THERE * len(lines):
        return None

    def refusal(what: str) -> BrokenDatasetError:
        return BrokenDatasetError(
            f"The list '{into.file}' {what}. Correct the list, or have none read: layout='{table.layout}' takes "
            "folders alone."
        )

    folder = posixpath.dirname(into.file)
    for line in (line for line, is_named in zip(lines, named, strict=True) if is_named):
        there = [lookup.names[number] for number in lookup.search(line, folder)]
        if table.splits is not None and there:
            own = [name for name in there if same_split(table.splits[rows[name][0]], into.split)]
            if not own:
                why = f"names '{there[0]}', which is in the split '{table.splits[rows[there[0]][0]]}'"
                raise refusal(why)
            there = own
        if not there:
            why = f"names '{line}', which is in another folder"
            raise refusal(why)
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(there) > 1:
            why = f"names '{line}', which is '{there[0]}' or '{there[1]}'"
            raise refusal(why)
        into.samples += rows[there[0]]
    into.missing = len(lines) - sum(named)
    return into


def _with_listed_splits(table: SampleTable, lists: list[SplitList]) -> SampleTable:
    # One number for each sample: which list names it.
    of = np.full(len(table), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                msg = (
                    f"The list '{one.file}' names '{table.keys[sample]}', and so does '{lists[of[sample]].file}'. "
                    f"Correct the list, or have none read: layout='{table.layout}' takes folders alone."
                )
                raise BrokenDatasetError(msg)
            of[sample] = number
    notes = [f"Splits are those of {' and '.join(f'{chr(39)}{one.file}{chr(39)}' for one in lists)}."]
    for one in lists:
        if one.missing:
            which = f"in '{one.file}'"
            notes.append(f"{counted(one.missing, 'names', 'match', which=which)} no file.")
    rest = np.flatnonzero(of < 0)
    names = [one.split for one in lists]
    if len(rest) and "train" not in names:
        notes.append(f"The split 'train' has {format_count(len(rest), table.unit)} that no list names.")
        names.append("train")
        # People list what they hold out and train on the rest.
        of[rest] = len(lists)
    elif len(rest):
        notes.append(f"{left_out(len(rest), table.unit, 'that no list names')}.")
    chosen = np.flatnonzero(of >= 0)
    made = take_rows(replace(table, splits=None), chosen)
    return replace(made, splits=tuple(names[number] for number in of[chosen].tolist()), notes=(*table.notes, *notes))
