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
from colabstage.trees.entries import FileEntries, extension_of, files_ending_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.trees.tree import Tree

_SPLIT_ORDER = {split: order for order, split in enumerate(dict.fromkeys(SPLIT_NAMES.values()))}


@dataclass(frozen=True, slots=True)
class FileKind:
    """What samples are: `layout` is the layout's name, `noun` what several are called, `extensions` those of files."""

    layout: str
    noun: str
    extensions: tuple[str, ...]


class FoundFiles(NamedTuple):
    """The files in order, N of them. `labels`: int64 `(N,)`, indices into `classes`. `splits`: N names, or `None`."""

    files: FileEntries
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: tuple[str, ...] | None
    notes: tuple[str, ...]


class _Folder(NamedTuple):
    """A folder with files of the kind: the folders it lies in and its own name, below the wrapping ones; and its number
    among those that were found."""

    parts: tuple[str, ...]
    number: int


class _ClassFolder(NamedTuple):
    """What samples are sorted by, all those of one folder alike, and that folder's number. `split`: its name, or ""."""

    split_order: int
    class_name: str
    path: str
    split: str
    number: int


def find_class_folders(tree: Tree, kind: FileKind) -> FoundFiles:
    """The files of a kind by class and split.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case) may lie above the
    class folders; then the classes are those of all splits together.

    Raises:
        EmptySourceError: there are no files of the kind at all; the message says what there is instead.
        LayoutError: they are not in folders of classes; the message says how they lie.
    """
    files = _find_files(tree, kind)
    folders, folder_of = _folders(files)
    folders = _unwrap(folders)
    splits = _split_folders(tree, folders, kind)
    found = sorted(_with_splits(folders, splits) if splits else _without_splits(folders))
    if not found:
        raise _flat(tree, files, splits, kind)
    classes = sorted({folder.class_name for folder in found})
    numbers = {name: number for number, name in enumerate(classes)}
    # The files of one folder come by name already, as all of a tree do.
    ranks = np.full(len(folders), len(found), np.int32)
    ranks[[folder.number for folder in found]] = np.arange(len(found))
    ranks = ranks[folder_of]
    order = np.argsort(ranks, kind="stable")[: np.count_nonzero(ranks < len(found))]
    ranks = ranks[order]
    return FoundFiles(
        files=files.take(order),
        labels=np.array([numbers[folder.class_name] for folder in found], np.int64)[ranks],
        classes=tuple(classes),
        splits=tuple(found[rank].split for rank in ranks.tolist()) if splits else None,
        notes=_notes(tree, len(files) - len(order), found, kind),
    )


def _find_files(tree: Tree, kind: FileKind) -> FileEntries:
    files = files_ending_in(tree.entries, kind.extensions)
    if len(files):
        return files
    if not tree.entries:
        msg = f"'{tree.label}' holds no files. {' '.join(tree.notes)}".rstrip()
        raise EmptySourceError(msg)
    msg = (
        f"'{tree.label}' holds no {kind.noun} but {count_kinds(tree.entries)}. "
        f"{kind.noun.capitalize()} are files that end in {', '.join(kind.extensions)}."
    )
    raise EmptySourceError(msg)


def _folders(files: FileEntries) -> tuple[list[_Folder], NDArray[np.int32]]:
    """The folders that hold files, and for each file the number of its own, int32 `(N,)`."""
    known: dict[str, int] = {}
    places = (known.setdefault(name.rpartition("/")[0], len(known)) for name in files.names)
    folder_of = np.fromiter(places, np.int32, len(files))
    folders = [_Folder(tuple(path.split("/")) if path else (), number) for path, number in known.items()]
    return folders, folder_of


def _unwrap(folders: list[_Folder]) -> list[_Folder]:
    """Take away the folders that all files share, down to the one with the folders of classes or splits."""
    while True:
        # Files beside the wrapping folder (a preview, a logo) do not make it a class.
        nested = [folder for folder in folders if folder.parts]
        tops = {folder.parts[0] for folder in nested}
        if len(tops) != 1 or next(iter(tops)).lower() in SPLIT_NAMES or any(len(one.parts) == 1 for one in nested):
            return folders
        folders = [folder._replace(parts=folder.parts[1:]) for folder in folders]


def _split_folders(tree: Tree, folders: list[_Folder], kind: FileKind) -> dict[str, str]:
    """The folders of splits with the name that each is stored under; empty where the folders are those of classes."""
    tops = {folder.parts[0] for folder in folders if folder.parts}
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


def _without_splits(folders: list[_Folder]) -> list[_ClassFolder]:
    return [_class_folder(folder, 0, "", folder.parts) for folder in folders if folder.parts]


def _with_splits(folders: list[_Folder], splits: dict[str, str]) -> list[_ClassFolder]:
    return [
        _class_folder(folder, _SPLIT_ORDER[split], split, folder.parts[1:])
        for folder in folders
        if len(folder.parts) > 1 and (split := splits[folder.parts[0]])
    ]


def _class_folder(folder: _Folder, order: int, split: str, below: tuple[str, ...]) -> _ClassFolder:
    # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
    return _ClassFolder(order, below[0], "/".join(below), split, folder.number)


def _flat(tree: Tree, files: FileEntries, splits: dict[str, str], kind: FileKind) -> LayoutError:
    where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
    return LayoutError(
        f"'{tree.label}' holds {len(files):,} {kind.noun} directly in {where} (first '{files.names[0]}'), but the "
        f"layout {kind.layout} needs one folder for each class, with the {kind.noun} of the class in it."
    )


def _notes(tree: Tree, outside: int, found: list[_ClassFolder], kind: FileKind) -> tuple[str, ...]:
    notes = []
    if outside:
        notes.append(f"{outside:,} {kind.noun} that lie in no class folder were left out.")
    others = FileEntries.of(tree.entries).where(lambda name: extension_of(name) not in kind.extensions)
    if others:
        notes.append(f"{len(others):,} files that are no {kind.noun} were left out ({count_kinds(others)}).")
    return (*notes, *_missing_classes(found, kind))


def _missing_classes(folders: list[_ClassFolder], kind: FileKind) -> list[str]:
    """A note for each split that has no files of some class."""
    by_split: dict[str, set[str]] = {}
    for folder in folders:
        by_split.setdefault(folder.split, set()).add(folder.class_name)
    everything = set().union(*by_split.values())
    return [
        f"The split '{split}' has no {kind.noun} of {len(everything) - len(found):,} classes: "
        f"{listed(sorted(everything - found))}."
        for split, found in by_split.items()
        if found != everything
    ]
