"""One folder per class, with or without folders of splits above: the layout of torchvision's `ImageFolder`.

As that documents it: a class is the first folder level, classes are numbered in the order of `sorted` names, images
are found at any depth below, and samples come sorted by class, then folder, then file name. On top of that: folders
of splits are recognised, and a folder that merely wraps the dataset is looked through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images, Values
from colabstage.layouts.names import IMAGE_EXTENSIONS, SPLIT_NAMES, count_kinds, is_image, listed
from colabstage.layouts.sources import TreeFiles
from colabstage.layouts.table import SampleTable

if TYPE_CHECKING:
    from colabstage.trees.tree import FileEntry, Tree

NAME = "image_folder"

_SPLIT_ORDER = {split: order for order, split in enumerate(dict.fromkeys(SPLIT_NAMES.values()))}


class _Image(NamedTuple):
    """An image file and the folders it lies in, below the wrapping ones."""

    file: FileEntry
    folders: tuple[str, ...]


class _Sample(NamedTuple):
    """What a sample is sorted by, and its file."""

    split_order: int
    class_name: str
    folder: str
    base: str
    split: str | None
    file: FileEntry


def read_image_folder(tree: Tree) -> SampleTable:
    """Make a table of a tree in which every image lies in the folder of its class.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case) may lie above the
    class folders; then the classes are those of all splits together. Samples come in the order of `ImageFolder`,
    split after split.

    Raises:
        EmptySourceError: there are no images at all; the message says what there is instead.
        LayoutError: the images are not in folders of classes; the message says how they lie.
    """
    images = _unwrap(_find_images(tree))
    splits = _split_folders(tree, images)
    samples = _with_splits(images, splits) if splits else _without_splits(images)
    if not samples:
        raise _flat(tree, images, splits)
    samples.sort()
    classes = sorted({sample.class_name for sample in samples})
    numbers = {name: number for number, name in enumerate(classes)}
    return SampleTable(
        layout=NAME,
        keys=tuple(sample.file.name for sample in samples),
        inputs=Images(TreeFiles(tree, [sample.file for sample in samples])),
        targets=Values(np.fromiter((numbers[sample.class_name] for sample in samples), np.int64, len(samples))),
        splits=tuple(sample.split or "" for sample in samples) if splits else None,
        classes=tuple(classes),
        notes=_notes(tree, len(images), samples),
    )


def _find_images(tree: Tree) -> list[_Image]:
    images = [_Image(file, tuple(file.name.split("/")[:-1])) for file in tree.entries if is_image(file.name)]
    if images:
        return images
    if not tree.entries:
        msg = f"'{tree.label}' holds no files. {' '.join(tree.notes)}".rstrip()
        raise EmptySourceError(msg)
    msg = (
        f"'{tree.label}' holds no images but {count_kinds(tree.entries)}. "
        f"Images are files that end in {', '.join(IMAGE_EXTENSIONS)}."
    )
    raise EmptySourceError(msg)


def _unwrap(images: list[_Image]) -> list[_Image]:
    """Take away the folders that all images share, down to the one with the folders of classes or splits."""
    while True:
        # Images beside the wrapping folder (a preview, a logo) do not make it a class.
        nested = [image for image in images if image.folders]
        tops = {image.folders[0] for image in nested}
        if len(tops) != 1 or next(iter(tops)).lower() in SPLIT_NAMES or any(len(one.folders) == 1 for one in nested):
            return images
        images = [image._replace(folders=image.folders[1:]) for image in images]


def _split_folders(tree: Tree, images: list[_Image]) -> dict[str, str]:
    """The folders of splits with the name that each is stored under; empty where the folders are those of classes."""
    tops = {image.folders[0] for image in images if image.folders}
    splits = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    others = sorted(tops - splits.keys())
    if len(splits) < 2 and others:
        return {}  # Among other folders a single "train" is a class of vehicles.
    if others:
        msg = (
            f"'{tree.label}' mixes folders of splits ({listed(sorted(splits))}) with others that hold images "
            f"({listed(others)}). Move the others away, or into the splits."
        )
        raise LayoutError(msg)
    if len(set(splits.values())) < len(splits):
        msg = (
            f"'{tree.label}' holds the folders {listed(sorted(splits))}, of which several mean the same split. "
            "Rename or join them."
        )
        raise LayoutError(msg)
    return splits


def _without_splits(images: list[_Image]) -> list[_Sample]:
    return [_sample(image, 0, None, image.folders) for image in images if image.folders]


def _with_splits(images: list[_Image], splits: dict[str, str]) -> list[_Sample]:
    return [
        _sample(image, _SPLIT_ORDER[split], split, image.folders[1:])
        for image in images
        if len(image.folders) > 1 and (split := splits[image.folders[0]])
    ]


def _sample(image: _Image, order: int, split: str | None, folders: tuple[str, ...]) -> _Sample:
    # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
    base = image.file.name.rpartition("/")[2]
    return _Sample(order, folders[0], "/".join(folders), base, split, image.file)


def _flat(tree: Tree, images: list[_Image], splits: dict[str, str]) -> LayoutError:
    where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
    return LayoutError(
        f"'{tree.label}' holds {len(images):,} images directly in {where} (first '{images[0].file.name}'), but the "
        "layout image_folder needs one folder for each class, with the images of the class in it."
    )


def _notes(tree: Tree, images: int, samples: list[_Sample]) -> tuple[str, ...]:
    notes = []
    if len(samples) < images:
        notes.append(f"{images - len(samples):,} images that lie in no class folder were left out.")
    others = [file for file in tree.entries if not is_image(file.name)]
    if others:
        notes.append(f"{len(others):,} files that are no images were left out ({count_kinds(others)}).")
    return (*notes, *_missing_classes(samples))


def _missing_classes(samples: list[_Sample]) -> list[str]:
    """A note for each split that has no images of some class."""
    by_split: dict[str, set[str]] = {}
    for sample in samples:
        by_split.setdefault(sample.split or "", set()).add(sample.class_name)
    everything = set().union(*by_split.values())
    return [
        f"The split '{split}' has no images of {len(everything) - len(found):,} classes: "
        f"{listed(sorted(everything - found))}."
        for split, found in by_split.items()
        if found != everything
    ]
