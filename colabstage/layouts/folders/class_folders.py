"""Files of one kind in folders of classes, with or without folders of splits above: images, clips of sound.

As torchvision documents it for `ImageFolder`: a class is the first folder level, classes are numbered in the order of
`sorted` names, files are found at any depth below, and samples come sorted by class, then folder, then file name. On
top of that: folders of splits are recognised, and a folder that merely wraps the dataset is looked through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.names import SPLIT_NAMES, count_kinds, listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry, Tree

_SPLIT_ORDER = {split: order for order, split in enumerate(dict.fromkeys(SPLIT_NAMES.values()))}


@dataclass(frozen=True, slots=True)
class FileKind:
    """What the samples are. `layout`: the layout's name. `noun`: what several are called. `extensions`: of their files.
    `fits`: whether a file's name is one of them."""

    layout: str
    noun: str
    extensions: tuple[str, ...]
    fits: Callable[[str], bool]


class FoundFiles(NamedTuple):
    """The files in order, N of them. `labels`: int64 `(N,)`, indices into `classes`. `splits`: N names, or `None`."""

    files: tuple[FileEntry, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: tuple[str, ...] | None
    notes: tuple[str, ...]


class _File(NamedTuple):
    """A file and the folders it lies in, below the wrapping ones."""

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


def find_class_folders(tree: Tree, kind: FileKind) -> FoundFiles:
    """The files of a kind by class and split.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case) may lie above the
    class folders; then the classes are those of all splits together.

    Raises:
        EmptySourceError: there are no files of the kind at all; the message says what there is instead.
        LayoutError: they are not in folders of classes; the message says how they lie.
    """
    files = _unwrap(_find_files(tree, kind))
    splits = _split_folders(tree, files, kind)
    samples = _with_splits(files, splits) if splits else _without_splits(files)
    if not samples:
        raise _flat(tree, files, splits, kind)
    samples.sort()
    classes = sorted({sample.class_name for sample in samples})
    numbers = {name: number for number, name in enumerate(classes)}
    return FoundFiles(
        files=tuple(sample.file for sample in samples),
        labels=np.fromiter((numbers[sample.class_name] for sample in samples), np.int64, len(samples)),
        classes=tuple(classes),
        splits=tuple(sample.split or "" for sample in samples) if splits else None,
        notes=_notes(tree, len(files), samples, kind),
    )


def _find_files(tree: Tree, kind: FileKind) -> list[_File]:
    files = [_File(file, tuple(file.name.split("/")[:-1])) for file in tree.entries if kind.fits(file.name)]
    if files:
        return files
    if not tree.entries:
        msg = f"'{tree.label}' holds no files. {' '.join(tree.notes)}".rstrip()
        raise EmptySourceError(msg)
    msg = (
        f"'{tree.label}' holds no {kind.noun} but {count_kinds(tree.entries)}. "
        f"{kind.noun.capitalize()} are files that end in {', '.join(kind.extensions)}."
    )
    raise EmptySourceError(msg)


def _unwrap(files: list[_File]) -> list[_File]:
    """Take away the folders that all files share, down to the one with the folders of classes or splits."""
    while True:
        # Files beside the wrapping folder (a preview, a logo) do not make it a class.
        nested = [file for file in files if file.folders]
        tops = {file.folders[0] for file in nested}
        if len(tops) != 1 or next(iter(tops)).lower() in SPLIT_NAMES or any(len(one.folders) == 1 for one in nested):
            return files
        files = [file._replace(folders=file.folders[1:]) for file in files]


def _split_folders(tree: Tree, files: list[_File], kind: FileKind) -> dict[str, str]:
    """The folders of splits with the name that each is stored under; empty where the folders are those of classes."""
    tops = {file.folders[0] for file in files if file.folders}
    splits = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    others = sorted(tops - splits.keys())
    if len(splits) < 2 and others:
        return {}  # Among other folders a single "train" is a class of vehicles.
    if others:
        msg = (
            f"'{tree.label}' mixes folders of splits ({listed(sorted(splits))}) with others that hold {kind.noun} "
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


def _without_splits(files: list[_File]) -> list[_Sample]:
    return [_sample(file, 0, None, file.folders) for file in files if file.folders]


def _with_splits(files: list[_File], splits: dict[str, str]) -> list[_Sample]:
    return [
        _sample(file, _SPLIT_ORDER[split], split, file.folders[1:])
        for file in files
        if len(file.folders) > 1 and (split := splits[file.folders[0]])
    ]


def _sample(file: _File, order: int, split: str | None, folders: tuple[str, ...]) -> _Sample:
    # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
    base = file.file.name.rpartition("/")[2]
    return _Sample(order, folders[0], "/".join(folders), base, split, file.file)


def _flat(tree: Tree, files: list[_File], splits: dict[str, str], kind: FileKind) -> LayoutError:
    where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
    return LayoutError(
        f"'{tree.label}' holds {len(files):,} {kind.noun} directly in {where} (first '{files[0].file.name}'), but the "
        f"layout {kind.layout} needs one folder for each class, with the {kind.noun} of the class in it."
    )


def _notes(tree: Tree, files: int, samples: list[_Sample], kind: FileKind) -> tuple[str, ...]:
    notes = []
    if len(samples) < files:
        notes.append(f"{files - len(samples):,} {kind.noun} that lie in no class folder were left out.")
    others = [file for file in tree.entries if not kind.fits(file.name)]
    if others:
        notes.append(f"{len(others):,} files that are no {kind.noun} were left out ({count_kinds(others)}).")
    return (*notes, *_missing_classes(samples, kind))


def _missing_classes(samples: list[_Sample], kind: FileKind) -> list[str]:
    """A note for each split that has no files of some class."""
    by_split: dict[str, set[str]] = {}
    for sample in samples:
        by_split.setdefault(sample.split or "", set()).add(sample.class_name)
    everything = set().union(*by_split.values())
    return [
        f"The split '{split}' has no {kind.noun} of {len(everything) - len(found):,} classes: "
        f"{listed(sorted(everything - found))}."
        for split, found in by_split.items()
        if found != everything
    ]
