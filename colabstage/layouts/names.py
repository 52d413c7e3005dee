"""What files and folders of datasets are called: extensions, names of splits, and which file a written name means."""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.trees.entries import FileEntries
from colabstage.trees.names import parent_folders
from colabstage.trees.tree import count_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colabstage.trees.tree import FileEntry

# Those of torchvision.datasets.folder.IMG_EXTENSIONS first, then what Pillow reads besides: torchvision leaves
# such files out without a word.
IMAGE_EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".jfif", ".jpe", ".avif", ".heic", ".heif", ".jp2",
)  # fmt: skip

# What people write about their samples.
ANNOTATION_EXTENSIONS = (
    ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".parquet", ".mat", ".yaml", ".xlsx", ".pkl",
)  # fmt: skip
# Files of these that are about the dataset as a whole.
_NOTES = ("readme", "license", "licence", "requirements", "changelog", "attribution")

# What people call their splits, and the name that each split is stored under; in the order of a table.
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
# What people write beside the split: training_set, seg_train, train_images, test1.
_BESIDE_SPLITS = frozenset({"set", "seg", "image", "images", "img", "imgs", "data", "dataset", "folder", "photos"})
# What folders are called after that hold a part of every sample, and no class of them.
_IMAGES = frozenset({"image", "images", "img", "imgs", "photos", "pictures"})
_ROLES = _IMAGES | {
    "mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots", "gt", "ground", "truth",
    "groundtruth", "segmentation", "segmentations", "trimaps", "xml", "xmls", "txt", "bbox", "bboxes", "boxes",
    "panoptic", "instances", "targets", "jpeg", "png", "jpg", "leftimg8bit", "gtfine",
}  # fmt: skip
# Parts of a dataset by words that may be classes as well, where others are beside them.
_PARTS = frozenset({"fold", "query", "gallery", "probe", "hr", "lr", "rgb", "depth", "input", "inputs", "target"})
_ROLE_ENDS = re.compile(r"[a-zA-Z](Images|Masks|Labels|Annotations?)|Ground_?Truth")
# Thumbnails, bins and settings of file managers and network drives; and what Speech Commands has to mix into its clips.
_FOREIGN = frozenset(
    {"_background_noise_", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__macosx"}
)
# People write trainImages, train_images and TRAIN-images for one thing.
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORDS_AND_NUMBERS = re.compile(rf"{_WORDS.pattern}|\d+")
# A message with more names than this is not read.
_NAMES_SHOWN = 8


class SplitName(NamedTuple):
    """A folder's or table's name, as far as it names a split."""

    split: str
    """As the split is stored, "" for none."""
    rest: tuple[str, ...]
    """The words of no split."""


def is_image(name: str) -> bool:
    """Tell whether a file of this name is an image."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def stem_of(name: str) -> str:
    """Return the bare name of a file without its extension."""
    return posixpath.splitext(posixpath.basename(name))[0]


def is_note(name: str) -> bool:
    """Tell whether a file is called as those are that say nothing of single samples: a readme, a licence."""
    return posixpath.basename(name).lower().startswith(_NOTES)


def count_kinds(files: Iterable[FileEntry]) -> str:
    """Write how many files there are of each extension, the commonest first."""
    endings, of_files = FileEntries.of(files).endings
    counts: Counter[str] = Counter()
    for ending, count in zip(endings, np.bincount(of_files, minlength=len(endings)).tolist(), strict=True):
        counts[ending.lower() or "without extension"] += count
    return count_by(counts)


def listed(names: list[str]) -> str:
    """Write the first few of some names."""
    shown = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name, in lower case.

    >>> words_of("ISIC2018_TrainingGroundTruth")
    ('isic', '2018', 'training', 'ground', 'truth')
    """
    return tuple(word.lower() for word in _WORDS_AND_NUMBERS.findall(name))


def shared_folders(names: Iterable[str]) -> list[str]:
    """Return the folders that all of some paths begin with, the outermost first."""
    shared: list[str] | None = None
    for folder in {name.rpartition("/")[0] for name in names}:
        parts = folder.split("/") if folder else []
        same = parts if shared is None else shared
        # The paths of a list agree up to the first folder in which two differ.
        shared = [one for place, one in enumerate(same) if same[: place + 1] == parts[: place + 1]]
    return shared or []


@functools.lru_cache(maxsize=4096)
def split_name(name: str) -> SplitName:
    """Read the split out of a name, however it is written; the rest tells names of one dataset from others.

    >>> split_name("rps-test-set"), split_name("rps")
    (SplitName(split='test', rest=('rps',)), SplitName(split='', rest=('rps',)))
    >>> split_name("train2017")
    SplitName(split='train', rest=())
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    # Two splits in one name (train_test_split) say nothing of what is in it.
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    rest = tuple(word for word in words if word not in SPLIT_NAMES and word not in _BESIDE_SPLITS)
    return SplitName(splits.pop() if len(splits) == 1 else "", rest)


def is_split_folder(name: str) -> bool:
    """Tell whether a folder is called after a split and nothing else: train, Training_set, val2017, test_images."""
    found = split_name(name)
    return bool(found.split) and not found.rest


def split_of_path(name: str) -> str:
    """Return the split that the folders of a file name, the outermost first; "" for none."""
    return next((split_name(folder).split for folder in name.split("/")[:-1] if is_split_folder(folder)), "")


def same_split(one: str, other: str) -> bool:
    """Tell whether two names of splits mean the same part of a dataset: val, valid, validation and dev do."""
    # One dataset calls it val and the list beside it validation; test is never meant by any of them.
    held_out = {"val", "valid", "validation", "dev"}
    return one == other or {one, other} <= held_out


@functools.lru_cache(maxsize=4096)
def is_role_folder(name: str) -> bool:
    """Tell whether a folder is called after what it holds of every sample: images, masks, labels, train_annotations."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return (
        name.lower() in _ROLES
        or _ROLE_ENDS.search(name) is not None
        or (not _ROLES.isdisjoint(words) and all(word in _ROLES or word in SPLIT_NAMES for word in words))
    )


def is_part_folder(name: str) -> bool:
    """Tell whether a folder is called after a part of a dataset, or of each sample: fold1, query, LR, depth."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words) and words <= _PARTS


def is_image_folder(name: str) -> bool:
    """Tell whether a folder merely says that images are in it: images, JPEGImages, train_imgs."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return is_role_folder(name) and bool(words) and words[-1] in _IMAGES


@functools.lru_cache(maxsize=4096)
def is_foreign_folder(name: str) -> bool:
    """Tell whether a folder is hidden, or left by a file manager or a network drive, and so no part of a dataset."""
    return name.startswith(".") or name.lower() in _FOREIGN


class FileLookup:
    """Files by what people write for them.

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
        """Return the one file that is meant, or `None`; `split`: which split it is of, where that is known."""
        found = self.search(written, split=split)
        return self._files[found[0]] if len(found) == 1 else None

    def search(self, written: str, *, split: str = "") -> Sequence[int]:
        """Return the numbers of the files that may be meant: none, one, or several that nothing tells apart."""
        if "/" not in written and "\\" not in written and not split:
            # Nearly every row of nearly every table: a bare name that one file has.
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
        # A folder that is written says more than what the row is said to be of.
        split = next((split_name(part).split for part in reversed(parts[:-1]) if is_split_folder(part)), split)
        for known in (self._by_base, self._by_stem):
            found = self._nearest(parts, known.get(parts[-1], ()), split)
            if found:
                return found
        return []

    def _nearest(self, parts: list[str], numbers: Sequence[int], split: str) -> list[int]:
        """Return those of some files with the right base name whose folders agree best with what is written."""
        names = self._files.names
        paths = {number: names[number].split("/")[:-1] for number in numbers}
        own = [part for part in self._folder.split("/") if part]
        for start in range(len(parts)):
            wanted = parts[start:-1]
            dropped = {part for part in parts[:start] if part in self._folders}
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
        """Return one of several, where one alone is beside what names it, or in the folder of its split."""
        names = self._files.names
        beside = [number for number in numbers if self._folder and names[number].startswith(f"{self._folder}/")]
        of_split = [number for number in numbers if split and split_of_path(names[number])]
        return next((found for found in (numbers, beside, of_split) if len(found) == 1), numbers)


def split_of_word(word: str) -> str | None:
    """Return the split that a word names, years and numbers aside: train, train2017, Validation, instances_val2017's
    val."""
    return SPLIT_NAMES.get(word.lower().rstrip("0123456789").rstrip("-_"))
