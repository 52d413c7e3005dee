"""Names of files and folders in datasets: extensions, splits (including those in lists), and names written in tables.

Lists of the files of each split are beside the samples, as Food-101 has them: meta/train.txt, meta/test.txt.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np

from colabstage.errors import EmptySourceError
from colabstage.io.units import counted, format_count, left_out
from colabstage.layouts.reading import read_texts
from colabstage.layouts.table import BrokenDatasetError, Masks, TreeFiles, Values
from colabstage.trees.listing import FileEntries, count_by, take_strings
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Sized

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleSource, SampleTable
    from colabstage.trees.listing import FileEntry, Tree


# First those of torchvision.datasets.folder.IMG_EXTENSIONS, then others that Pillow reads, which torchvision silently
# skips.
IMAGE_EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".jfif", ".jpe", ".avif", ".heic", ".heif", ".jp2",
)  # fmt: skip

# Extensions of files about samples.
ANNOTATION_EXTENSIONS = (
    ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".parquet", ".mat", ".yaml", ".xlsx", ".pkl",
)  # fmt: skip
# Names of such files about the dataset as a whole.
_NOTES = ("readme", "license", "licence", "requirements", "changelog", "attribution")

# Names that people give splits, and the stored name of each; in the order of a table.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "valid",
    "validation": "validation",
    "dev": "dev",
    "test": "test",
    "testing": "test",
}
# Words that people combine with the split: training_set, seg_train, train_images, test1.
_BESIDE_SPLITS = frozenset({"set", "seg", "image", "images", "img", "imgs", "data", "dataset", "folder", "photos"})
# Names of folders that hold a part of every sample, not a class.
_IMAGES = frozenset({"image", "images", "img", "imgs", "photos", "pictures"})
_ROLES = _IMAGES | {
    "mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots", "gt", "ground", "truth",
    "groundtruth", "segmentation", "segmentations", "trimaps", "xml", "xmls", "txt", "bbox", "bboxes", "boxes",
    "panoptic", "instances", "targets", "jpeg", "png", "jpg", "leftimg8bit", "gtfine",
}  # fmt: skip
# Parts of a dataset with names that may also be classes, beside others.
_PARTS = frozenset({"fold", "query", "gallery", "probe", "hr", "lr", "rgb", "depth", "input", "inputs", "target"})
_ROLE_ENDS = re.compile(r"[a-zA-Z](Images|Masks|Labels|Annotations?)|Ground_?Truth|Segmentation_?(Class|Object)")
# Thumbnails, bins and settings of file managers and network drives; and Speech Commands' background noise.
_FOREIGN = frozenset(
    {"_background_noise_", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__macosx"}
)
# trainImages, train_images and TRAIN-images mean the same.
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORDS_AND_NUMBERS = re.compile(rf"{_WORDS.pattern}|\d+")
# Nobody reads a message with more names than this.


class SplitName(NamedTuple):
    """The split in a folder's or table's name."""

    split: str
    """The stored name of the split; "" for none."""
    rest: tuple[str, ...]
    """The remaining words."""


def is_image(name: str) -> bool:
    """Tell whether a file of this name is an image."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def stem_of(name: str) -> str:
    """Return the bare name of a file without its extension."""
    return posixpath.splitext(posixpath.basename(name))[0]


def folder_of(name: str) -> str:
    """Return the bare name of the folder that a file is in; "" of one that is in none."""
    return posixpath.basename(posixpath.dirname(name))


def is_note(name: str) -> bool:
    """Tell whether a file's name says that it is not about single samples: a readme, a licence."""
    return posixpath.basename(name).lower().startswith(_NOTES)


Files = TypeVar("Files", bound="Sized")


def required(files: Files, tree: Tree, what: str) -> Files:
    """Return the files that a layout requires.

    Raises:
        EmptySourceError: there are none; `what` is the noun for them.
    """
    if len(files):
        return files
    msg = f"'{tree.label}' holds no {what}."
    raise EmptySourceError(msg)


def count_kinds(files: Iterable[FileEntry]) -> str:
    """Write how many files there are of each extension, the most common first."""
    endings, of_files = FileEntries.of(files).endings
    counts: Counter[str] = Counter()
    for ending, count in zip(endings, np.bincount(of_files, minlength=len(endings)).tolist(), strict=True):
        counts[ending.lower() or "without extension"] += count
    return count_by(counts)


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name, in lower case.

    >>> words_of("ISIC2018_TrainingGroundTruth")
    ('isic', '2018', 'training', 'ground', 'truth')
    """
    return tuple(word.lower() for word in _WORDS_AND_NUMBERS.findall(name))


def shared_folders(names: Iterable[str]) -> list[str]:
    """Return the folders common to all paths, the outermost first."""
    shared: list[str] | None = None
    for folder in {name.rpartition("/")[0] for name in names}:
        parts = folder.split("/") if folder else []
        same = parts if shared is None else shared
        # The paths of a list agree up to the first folder in which two differ.
        shared = [one for place, one in enumerate(same) if same[: place + 1] == parts[: place + 1]]
    return shared or []


@functools.lru_cache(maxsize=4096)
def split_name(name: str) -> SplitName:
    """Read the split in a name, in any spelling; the rest distinguishes datasets.

    >>> split_name("rps-test-set"), split_name("rps")
    (SplitName(split='test', rest=('rps',)), SplitName(split='', rest=('rps',)))
    >>> split_name("train2017")
    SplitName(split='train', rest=())
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    # Two splits in one name (train_test_split) do not say what it contains.
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    rest = tuple(word for word in words if word not in SPLIT_NAMES and word not in _BESIDE_SPLITS)
    return SplitName(splits.pop() if len(splits) == 1 else "", rest)


def is_split_folder(name: str) -> bool:
    """Tell whether a folder's name is only a split: train, Training_set, val2017, test_images."""
    found = split_name(name)
    return bool(found.split) and not found.rest


def split_of_path(name: str) -> str:
    """Return the split in the names of a file's folders, the outermost first; "" for none."""
    return next((split_name(folder).split for folder in name.split("/")[:-1] if is_split_folder(folder)), "")


def same_split(one: str, other: str) -> bool:
    """Tell whether two names of splits mean the same part of a dataset: val, valid, validation and dev do."""
    # A folder may be called val and the list beside it validation; none of these means test.
    held_out = {"val", "valid", "validation", "dev"}
    return one == other or {one, other} <= held_out


@functools.lru_cache(maxsize=4096)
def is_role_folder(name: str) -> bool:
    """Tell whether a folder's name is a part of every sample: images, masks, labels, train_annotations."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return (
        name.lower() in _ROLES
        or _ROLE_ENDS.search(name) is not None
        or (not _ROLES.isdisjoint(words) and all(word in _ROLES or word in SPLIT_NAMES for word in words))
    )


def is_part_folder(name: str) -> bool:
    """Tell whether a folder's name is a part of a dataset or of each sample: fold1, query, LR, depth."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words) and words <= _PARTS


def is_image_folder(name: str) -> bool:
    """Tell whether a folder's name only says that it holds images: images, JPEGImages, train_imgs."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return is_role_folder(name) and bool(words) and words[-1] in _IMAGES


@functools.lru_cache(maxsize=4096)
def is_foreign_folder(name: str) -> bool:
    """Tell whether a folder is hidden, or left by a file manager or network drive, so not part of a dataset."""
    return name.startswith(".") or name.lower() in _FOREIGN


class FileLookup:
    """Find files by the names that people write for them.

    In this order: the path as it is, from the folder of what names it or from the top; the same without leading
    folders, as an absolute path of another machine needs; the end of a path. Each with the extension, then without.
    A folder that is written and is there is where the file has to be, and a file of one split is never found for
    another: what is missing stays missing.
    """

    def __init__(self, files: Iterable[FileEntry], folder: str) -> None:
        """Index the files; `folder` is where the table or the annotations lie, in the tree."""
        self._files = FileEntries.of(files)
        self._folder = folder
        self._whole: dict[str, int] = {}
        self._by_base: dict[str, list[int]] = {}
        self._by_stem: dict[str, list[int]] = {}
        for number, name in enumerate(self._files.names):
            base = name.rpartition("/")[2]
            self._whole[name] = number
            self._by_base.setdefault(base, []).append(number)
            self._by_stem.setdefault(posixpath.splitext(base)[0], []).append(number)
        self._folders = {posixpath.basename(path) for path in parent_folders(self._files.names)}
        self.has_splits = any(map(is_split_folder, self._folders))

    def __len__(self) -> int:
        return len(self._files)

    def may_find(self, written: str) -> bool:
        """Tell whether there is a file of this bare name, somewhere: a quick look before `search`."""
        base = written.replace("\\", "/").rstrip("/").rpartition("/")[2]
        return base in self._by_base or base in self._by_stem

    def is_base(self, written: str) -> bool:
        """Tell whether a file has this bare name, extension included."""
        return written.replace("\\", "/").rpartition("/")[2] in self._by_base

    def find(self, written: str, *, split: str = "") -> FileEntry | None:
        """Return the one file that is meant, or `None`; `split`: its split, if known."""
        found = self.search(written, split=split)
        return self._files[found[0]] if len(found) == 1 else None

    def search(self, written: str, *, split: str = "") -> Sequence[int]:
        """Return the numbers of the files that may be meant: none, one, or several that cannot be distinguished."""
        if "/" not in written and "\\" not in written and not split:
            # The common case in nearly all tables: a base name of exactly one file.
            numbers = self._by_base.get(written) or self._by_stem.get(written)
            if numbers is not None and len(numbers) == 1:
                return numbers
        parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".")]
        if ".." in parts:
            parts = posixpath.normpath(posixpath.join(self._folder, *parts)).split("/")
        if not parts:
            return []
        path = "/".join(parts)
        for whole in (posixpath.join(self._folder, path), path):
            if whole in self._whole:
                return [self._whole[whole]]
        # A written folder is stronger evidence than the row's split.
        split = next((split_name(part).split for part in reversed(parts[:-1]) if is_split_folder(part)), split)
        for known in (self._by_base, self._by_stem):
            found = self._nearest(parts, known.get(parts[-1], ()), split)
            if found:
                return found
        return []

    def _nearest(self, parts: list[str], numbers: Sequence[int], split: str) -> list[int]:
        """Return the files with the right base name whose folders agree best with the written path."""
        names = self._files.names
        paths = {number: names[number].split("/")[:-1] for number in numbers}
        if not paths:
            return []
        own = [part for part in self._folder.split("/") if part]
        # No end of the path that is longer than the folders of a file agrees with them, and a label may be a path of
        # millions of parts.
        first = max(0, len(parts) - 1 - max(map(len, paths.values())))
        dropped = self._folders.intersection(parts[:first])
        for start in range(first, len(parts)):
            wanted = parts[start:-1]
            dropped |= self._folders.intersection(parts[max(first, start - 1) : start])
            ends = [
                number
                for number, folders in paths.items()
                if folders[len(folders) - len(wanted) :] == wanted
                and dropped.issubset(folders)
                and self._is_of(names[number], split)
            ]
            for place in ([*own, *wanted], wanted):
                if exact := [number for number in ends if paths[number] == place]:
                    return exact
            if ends:
                return self._told_apart(ends, split)
        return []

    @staticmethod
    def _is_of(name: str, split: str) -> bool:
        other = split_of_path(name) if split else ""
        return not other or same_split(other, split)

    def _told_apart(self, numbers: list[int], split: str) -> list[int]:
        """Return one of several, if only one is beside the naming file, or in the folder of its split."""
        names = self._files.names
        beside = [number for number in numbers if self._folder and names[number].startswith(f"{self._folder}/")]
        of_split = [number for number in numbers if split and split_of_path(names[number])]
        return next((found for found in (numbers, beside, of_split) if len(found) == 1), numbers)


def split_of_word(word: str) -> str | None:
    """Return the split that a word names, ignoring years and numbers: train, train2017, Validation, val in
    instances_val2017."""
    return SPLIT_NAMES.get(word.lower().rstrip("0123456789").rstrip("-_"))


_EXTENSIONS = (".txt", ".lst")
# At least this share of a list's names must exist for it to be a list of these samples.
_THERE = 0.5
# Three splits and some folds; more text files than that are one for each sample.
_MOST_LISTS = 16
# Words that people combine with the split in a list's name.
_BESIDE_LISTS = frozenset({"list", "files"})


class _SplitList(NamedTuple):
    """A list of samples."""

    file: str
    split: str
    samples: list[int]
    """Numbers of its samples."""
    missing: int
    """How many of its names do not exist."""


class ListedSplits(NamedTuple):
    """Samples with the splits from lists."""

    table: SampleTable
    lists: frozenset[str] = frozenset()
    """Names of the lists."""


def read_listed_splits(tree: Tree, found: SampleTable) -> ListedSplits:
    """Read the splits of samples in class folders from lists named after splits, if there are any.

    A list has one path in each line, with or without its extension, from whichever folder on. Lists count when there
    is one for each of several splits, or of what is held out alone, when the rest is to train on; several of one split
    are folds, of which nobody can say which is meant. Where folders say the splits, lists only have to agree.

    Args:
        tree: the dataset's files.
        found: the samples, one file each.

    Raises:
        BrokenDatasetError: a list names a file in another class, split or several at once; or two lists name one file.
    """
    candidates = [entry for entry in tree.entries.ending_in(_EXTENSIONS) if _listed_split(entry.name)]
    if not candidates or len(candidates) > _MOST_LISTS or not isinstance(found.inputs.source, TreeFiles):
        return ListedSplits(found)
    lines = {
        name: [
            line.strip().replace("\\", "/").removeprefix("./").lstrip("/") for line in text.splitlines() if line.strip()
        ]
        for name, text in read_texts(tree, candidates).items()
    }
    # Only names that occur in a list are indexed: samples may be millions, and lists are read to the end anyway.
    wanted = {posixpath.basename(line) for one in lines.values() for line in one}
    places: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(found.keys):
        base = posixpath.basename(key)
        # Food-101's lists have no extensions, other datasets' have them.
        for word in {base, posixpath.splitext(base)[0]} & wanted:
            places[word].append(number)
    lists = [_read_list(name, one, found, places) for name, one in lines.items()]
    used = [one for one in lists if one is not None]
    splits = [one.split for one in used]
    # Folders say the splits already, or lists are folds, or only train is listed, which leaves nothing held out.
    if found.splits is not None or len(set(splits)) < len(splits) or not set(splits) - {"train"}:
        return ListedSplits(found)
    return ListedSplits(_with_listed_splits(found, used), frozenset(one.file for one in used))


def _listed_split(name: str) -> str:
    """Return the split that a file is a list of by its name alone: train.txt, TestImages.txt, validation_list.txt; ""
    for train_test_split.txt."""
    read = split_name(stem_of(name))
    return read.split if set(read.rest) <= _BESIDE_LISTS else ""


def _read_list(name: str, lines: list[str], found: SampleTable, places: dict[str, list[int]]) -> _SplitList | None:
    """Return the samples that a list names; `None` where it is not a list of these samples' paths."""
    named = [places.get(posixpath.basename(line), []) for line in lines]
    # A list of mostly other files is one of another dataset, or of classes.
    if not any(named) or sum(map(bool, named)) < _THERE * len(lines):
        return None
    split = _listed_split(name)
    samples = []
    for line, numbers in zip(lines, named, strict=True):
        there = [number for number in numbers if _is_path_of(line, found.keys[number])]
        if numbers and not there:
            _refuse(name, f"names '{line}', which is in another folder: '{found.keys[numbers[0]]}'", found.layout)
        if found.splits is not None and there:
            own = [number for number in there if same_split(found.splits[number], split)]
            if not own:
                _refuse(
                    name,
                    f"names '{found.keys[there[0]]}', which is in the split '{found.splits[there[0]]}'",
                    found.layout,
                )
            there = own
        # The same base name in several classes: a list of bare names cannot mean one of them.
        if len(there) > 1:
            _refuse(
                name, f"names '{line}', which is '{found.keys[there[0]]}' or '{found.keys[there[1]]}'", found.layout
            )
        samples += there
    return _SplitList(name, split, samples, len(lines) - len(samples))


def _is_path_of(line: str, key: str) -> bool:
    """Tell whether a line is a path to a file, from its own folder or from one above or below the tree's."""
    keys = (key, posixpath.splitext(key)[0])
    return any(f"/{one}".endswith(f"/{line}") or f"/{line}".endswith(f"/{one}") for one in keys)


def _with_listed_splits(found: SampleTable, lists: list[_SplitList]) -> SampleTable:
    number_of = {one.split: number for number, one in enumerate(lists)}
    # One number for each sample: which list names it.
    of = np.full(len(found), -1)
    for number, one in enumerate(lists):
        # A file in two lists would be trained and tested on.
        for sample in one.samples:
            if of[sample] not in (-1, number):
                _refuse(one.file, f"names '{found.keys[sample]}', and so does '{lists[of[sample]].file}'", found.layout)
            of[sample] = number
    files = " and ".join(f"'{one.file}'" for one in lists)
    notes = [f"Splits are those of {files}."]
    for one in lists:
        if one.missing:
            which = f"in '{one.file}'"
            notes.append(f"{counted(one.missing, 'names', 'match', which=which)} no file.")
    rest = np.flatnonzero(of < 0)
    names = [one.split for one in lists]
    if len(rest) and "train" not in number_of:
        notes.append(f"The split 'train' has {format_count(len(rest), found.unit)} that no list names.")
        names.append("train")
        # People list what they hold out and train on the rest.
        of[rest] = len(lists)
    elif len(rest):
        notes.append(f"{left_out(len(rest), found.unit, 'that no list names')}.")
    chosen = np.flatnonzero(of >= 0)
    targets = found.targets
    if isinstance(targets, Masks):
        targets = replace(targets, source=_files_taken(targets.source, chosen))
    elif isinstance(targets, Values):
        targets = Values(targets.values[chosen])
    else:
        msg = "Samples that lists name have a class or a mask each."
        raise TypeError(msg)
    return replace(
        found,
        keys=take_strings(found.keys, chosen),
        inputs=replace(found.inputs, source=_files_taken(found.inputs.source, chosen)),
        targets=targets,
        splits=tuple(names[number] for number in of[chosen].tolist()),
        notes=(*found.notes, *notes),
    )


def _files_taken(source: SampleSource, chosen: NDArray[np.intp]) -> TreeFiles:
    if not isinstance(source, TreeFiles):
        msg = "Samples that lists name are a file each."
        raise TypeError(msg)
    return TreeFiles(source.tree, source.entries.take(chosen))


def _refuse(name: str, what: str, layout: str) -> NoReturn:
    msg = f"The list '{name}' {what}. Correct the list, or have none read: layout='{layout}' takes folders alone."
    raise BrokenDatasetError(msg)
