"""What files and folders of datasets are called: image extensions, split names, and how lists of them are shown."""

from __future__ import annotations

import functools
import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from colabstage.trees.tree import count_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from colabstage.trees.tree import FileEntry

# torchvision.datasets.folder.IMG_EXTENSIONS
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

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
_ROLE_ENDS = re.compile(r"[a-zA-Z](Images|Masks|Labels|Annotations?)|Ground_?Truth")
# Thumbnails, bins and settings of file managers and network drives.
_FOREIGN = frozenset({"@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__macosx"})
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMES_SHOWN = 8


class SplitName(NamedTuple):
    """A folder's or table's name as a split: `split` as it is stored, "" for none; `rest`: the words of no split."""

    split: str
    rest: tuple[str, ...]


def is_image(name: str) -> bool:
    """Whether torchvision would take a file of this name for an image."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def count_kinds(files: Iterable[FileEntry]) -> str:
    """Write how many files there are of each extension, the commonest first."""
    return count_by(posixpath.splitext(file.name)[1].lower() or "without extension" for file in files)


def listed(names: list[str]) -> str:
    """Write the first few of some names."""
    shown = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"


@functools.lru_cache(maxsize=4096)
def split_name(name: str) -> SplitName:
    """Read the split out of a name, however it is written; the rest tells names of one dataset from others.

    >>> split_name("rps-test-set"), split_name("rps")
    (SplitName(split='test', rest=('rps',)), SplitName(split='', rest=('rps',)))
    >>> split_name("train2017")
    SplitName(split='train', rest=())
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    rest = tuple(word for word in words if word not in SPLIT_NAMES and word not in _BESIDE_SPLITS)
    return SplitName(splits.pop() if len(splits) == 1 else "", rest)


def is_split_folder(name: str) -> bool:
    """Whether a folder is called after a split and nothing else: train, Training_set, val2017, test_images."""
    found = split_name(name)
    return bool(found.split) and not found.rest


def split_of_path(name: str) -> str:
    """The split that the folders of a file name, the outermost first; "" for none."""
    return next((split_name(folder).split for folder in name.split("/")[:-1] if is_split_folder(folder)), "")


def same_split(one: str, other: str) -> bool:
    """Whether two names of splits mean the same part of a dataset: val, valid, validation and dev do."""
    held_out = {"val", "valid", "validation", "dev"}
    return one == other or {one, other} <= held_out


@functools.lru_cache(maxsize=4096)
def is_role_folder(name: str) -> bool:
    """Whether a folder is called after what it holds of every sample: images, masks, labels, train_annotations."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return (
        name.lower() in _ROLES
        or _ROLE_ENDS.search(name) is not None
        or (not _ROLES.isdisjoint(words) and all(word in _ROLES or word in SPLIT_NAMES for word in words))
    )


def is_image_folder(name: str) -> bool:
    """Whether a folder merely says that images are in it: images, JPEGImages, train_imgs."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return is_role_folder(name) and bool(words) and words[-1] in _IMAGES


@functools.lru_cache(maxsize=4096)
def is_foreign_folder(name: str) -> bool:
    """Whether a folder is hidden, or left by a file manager or a network drive, and so no part of a dataset."""
    return name.startswith(".") or name.lower() in _FOREIGN
