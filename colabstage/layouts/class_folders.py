"""Files of one kind (images, audio clips) in class folders, with or without split folders above them.

As in torchvision's `ImageFolder`: a class is the first folder level, classes are numbered in the order of `sorted`
names, files are found at any depth below, and samples come sorted by class, then folder, then file name. On top of
that: folders of splits are recognised, and a folder that merely wraps the dataset is looked through.
"""

from __future__ import annotations

import math
import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.io.units import format_count, left_out, listed
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    SPLIT_NAMES,
    count_kinds,
    is_foreign_folder,
    is_image_folder,
    is_role_folder,
    is_split_folder,
    required,
    split_name,
)
from colabstage.layouts.reading import decode_text, read_file
from colabstage.layouts.row_arrays import first_with_role
from colabstage.layouts.stored_arrays import MAX_HEADER_BYTES, NPY, npy_header, read_npy
from colabstage.layouts.table import Arrays, BrokenDatasetError, Images, SampleTable, TreeFiles, Values, left_out_notes
from colabstage.trees.listing import FileEntries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntry, Tree

_SPLIT_ORDER = {split: order for order, split in enumerate(dict.fromkeys(SPLIT_NAMES.values()))}
# Pictures in formats that are not read: a folder of them is a class whose samples are missing.
_OTHER_PICTURES = frozenset({".svg", ".psd", ".dng", ".cr2", ".nef", ".exr"})

ARRAY_FOLDER = "array_folder"


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of samples in the folders."""

    layout: str
    """Name of the layout."""
    noun: str
    """The plural noun for them."""
    extensions: tuple[str, ...]
    """Extensions of their files."""


class _FolderOfKind(NamedTuple):
    """A folder with files of the kind, or an empty one."""

    parts: tuple[str, ...]
    """Its path below the folders that only wrap the dataset."""
    number: int
    """Its number among folders with files; -1 if it is empty."""

    @property
    def has_classes(self) -> bool:
        """Tell whether there is more below the outermost folder than its name again, or a folder such as `images`."""
        below = [name for name in self.parts[1:] if not is_image_folder(name)]
        return any(split_name(name) != split_name(self.parts[0]) for name in below)


class _ClassFolder(NamedTuple):
    """The sort key of samples, which all samples of a folder share, and the folder's number."""

    split_order: int
    """The position of its split in the usual order."""
    class_name: str
    """The class of everything in it."""
    path: str
    split: str
    """Its split, or ""."""
    number: int
    """Its number among the folders that have files."""

    @classmethod
    def of(cls, folder: _FolderOfKind, order: int, split: str) -> _ClassFolder:
        """Return a folder whose outermost part is the class."""
        # ImageFolder sorts the paths of a class's folders as strings, so "a-b" comes before "a/c".
        return cls(order, folder.parts[0], "/".join(folder.parts), split, folder.number)


def read_class_folders(tree: Tree, kind: FileKind) -> SampleTable:
    """Make a table of files of one kind by class and split, with the files as inputs.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case; also training_set,
    seg_train, test1 and the like) may be above the class folders; then the classes are those of all splits together.
    A split whose images are all in one folder `images` takes their classes from a list of names and classes beside it,
    as Tiny ImageNet has it. A class folder without files keeps its number, as in torchvision, where the tree knows of
    it: folders do, and zips and tars that list them.

    Raises:
        EmptySourceError: there are no files of that kind; the message says what there is instead.
        LayoutError: they are not in folders of classes; the message says how they lie.
    """
    return _ClassFolders(tree, kind).find()


class _ClassFolders:
    """Files of one kind in a tree, sorted into classes and splits by the folders that they are in."""

    def __init__(self, tree: Tree, kind: FileKind) -> None:
        self.tree = tree
        self.kind = kind

    def find(self) -> SampleTable:
        files = self._find_files()
        paths, folder_of = files.folders
        parts_of = [tuple(path.split("/")) if path else () for path in paths]
        with_files = [
            _FolderOfKind(() if any(map(is_foreign_folder, parts)) else parts, number)
            for number, parts in enumerate(parts_of)
        ]
        folders = _unwrap([*with_files, *self._without_files(with_files)])
        filled = [folder for folder in folders if folder.number >= 0]
        splits = self._split_folders(filled)
        found = sorted(
            _with_splits(folders, splits)
            if splits
            else [_ClassFolder.of(folder, 0, "") for folder in folders if folder.parts]
        )
        found, flat = _without_flat(found) if splits else (found, [])
        if not any(folder.number >= 0 for folder in found):
            where = f"the folders {listed(sorted(splits))}" if splits else "one folder"
            msg = (
                f"'{self.tree.label}' holds {len(files):,} {self.kind.noun} directly in {where} (first "
                f"'{files.names[0]}'), but the "
                f"layout {self.kind.layout} needs one folder for each class, with the {self.kind.noun} of the "
                "class in it."
            )
            raise LayoutError(msg)
        # Numbered before folders without files are dropped, as in torchvision.
        classes = sorted({folder.class_name for folder in found})
        empty = {one.class_name for one in found} - {one.class_name for one in found if one.number >= 0}
        notes = []
        if empty:
            shown = listed(sorted(empty))
            notes.append(
                f"The folders {shown} hold no {self.kind.noun}; they still count as classes, as in torchvision."
            )
        found = [folder for folder in found if folder.number >= 0]
        told = self._listed_classes(files, folder_of, flat, classes)
        numbers = {name: number for number, name in enumerate(classes)}
        # The files of a folder are already sorted by name, like all files of a tree.
        all_found = sorted([*found, *(folder for folder in flat if folder.split in told)])
        ranks = np.full(len(with_files), len(all_found), np.int32)
        ranks[[folder.number for folder in all_found]] = np.arange(len(all_found))
        ranks = ranks[folder_of]
        order = np.argsort(ranks, kind="stable")[: np.count_nonzero(ranks < len(all_found))]
        ranks = ranks[order]
        chosen = files.take(order)
        labels = np.array([numbers.get(folder.class_name, -1) for folder in all_found], np.int64)[ranks]
        names = {name: numbers[label] for split in told.values() for name, label in split.items()}
        for place in np.flatnonzero(labels < 0).tolist():
            labels[place] = names[chosen.names[place]]
        return SampleTable(
            layout=self.kind.layout,
            keys=chosen.names,
            inputs=Images(TreeFiles(self.tree, chosen)),
            targets=Values(labels),
            classes=tuple(classes),
            splits=tuple([all_found[rank].split for rank in ranks.tolist()]) if splits else None,
            notes=(*self._notes(len(files) - len(order), found), *_numbered_note(classes), *notes),
        )

    def _find_files(self) -> FileEntries:
        files = self.tree.entries.ending_in(self.kind.extensions)
        if len(files):
            return files
        if not self.tree.entries:
            msg = f"'{self.tree.label}' holds no files. {' '.join(self.tree.notes)}".rstrip()
            raise EmptySourceError(msg)
        msg = (
            f"'{self.tree.label}' holds no {self.kind.noun} but {count_kinds(self.tree.entries)}. "
            f"{self.kind.noun.capitalize()} are files that end in {', '.join(self.kind.extensions)}."
        )
        raise EmptySourceError(msg)

    def _without_files(self, with_files: list[_FolderOfKind]) -> list[_FolderOfKind]:
        """Find the folders without files of the kind that are empty or hold only pictures in unreadable formats."""
        names = set(self.tree.empty_folders)
        # Covers and spectrograms beside audio are not a class.
        if self.kind.layout != "audio":
            others = self.tree.entries.ending_in(tuple(_OTHER_PICTURES)).folders[0]
            names |= {folder for folder in others if folder}
        # A folder above one with files is not a class of its own.
        used = {folder.parts[:depth] for folder in with_files for depth in range(1, len(folder.parts) + 1)}
        found = {tuple(name.split("/")) for name in names}
        return [
            _FolderOfKind(parts, -1)
            for parts in sorted(found - used)
            if not any(map(is_foreign_folder, parts))
            and not is_split_folder(parts[-1])
            and not is_role_folder(parts[-1])
        ]

    def _split_folders(self, folders: list[_FolderOfKind]) -> dict[str, str]:
        """Return the split folders with the stored name of each split; empty if the folders are classes."""
        tops = {folder.parts[0] for folder in folders if folder.parts}
        deep = {folder.parts[0] for folder in folders if folder.has_classes}
        splits = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
        if len(splits) < 2:
            splits = _spelled_splits(tops, deep) or splits
        # A split without class folders beside splits that have them is unlabelled: seg_pred, single_prediction.
        others = sorted(tops - splits.keys())
        if len(splits) < 2 and others:
            return {}  # A single "train" among other folders is a class of vehicles.
        others = [top for top in others if top in deep or not deep & splits.keys()]
        if others:
            msg = (
                f"'{self.tree.label}' mixes folders of splits ({listed(sorted(splits))}) with others that hold "
                f"{self.kind.noun} ({listed(others)}). Move the others away, or into the splits."
            )
            raise LayoutError(msg)
        if len(set(splits.values())) < len(splits):
            msg = (
                f"'{self.tree.label}' holds the folders {listed(sorted(splits))}, several of which mean the same "
                "split. Rename or join them."
            )
            raise LayoutError(msg)
        return splits

    def _listed_classes(
        self, files: FileEntries, folder_of: NDArray[Any], flat: list[_ClassFolder], classes: list[str]
    ) -> dict[str, dict[str, str]]:
        """Return the class of each file in splits whose folder has a list of names and classes beside the images.

        Raises:
            BrokenDatasetError: a list omits a file, or names a class without a folder.
        """
        found: dict[str, dict[str, str]] = {}
        texts = self.tree.entries.ending_in((".txt",)) if flat else ()
        for folder in flat:
            names = [files.names[number] for number in np.flatnonzero(folder_of == folder.number).tolist()]
            above = posixpath.dirname(posixpath.dirname(names[0]))
            for entry in texts:
                if posixpath.dirname(entry.name) == above:
                    listed_here = self._read_list(entry)
                    if posixpath.basename(names[0]) in listed_here:
                        found[folder.split] = _classes_of(entry, names, listed_here, classes)
                        break
        return found

    def _read_list(self, entry: FileEntry) -> dict[str, str]:
        """Return the first two words of each line: a file's base name and its class."""
        text = decode_text(read_file(self.tree, entry))
        lines = (line.split("\t" if "\t" in line else None) for line in text.splitlines())
        return {words[0].strip(): words[1].strip() for words in lines if len(words) > 1}

    def _notes(self, outside: int, found: list[_ClassFolder]) -> tuple[str, ...]:
        notes = left_out_notes((outside, self.kind.noun, "in no class folder"))
        # Omitted files are counted by kind, so that a person sees whether labels were among them.
        others = FileEntries.of(self.tree.entries).not_ending_in(self.kind.extensions)
        if others:
            notes.append(f"{left_out(len(others), 'other files')} ({count_kinds(others)}).")
        # A note for each split that lacks files of some class.
        by_split = _classes_by_split(found)
        everything = set().union(*by_split.values())
        return (
            *notes,
            *[
                f"The split '{split}' has no {self.kind.noun} of "
                f"{format_count(len(everything) - len(found), 'classes')}: {listed(sorted(everything - found))}."
                for split, found in by_split.items()
                if found != everything
            ],
        )


def _numbered_note(classes: list[str]) -> list[str]:
    """Return a note if folders have numbers as names that differ from the labels."""
    # 10 is sorted before 2, and names that count from 1 get labels from 0, so a separate list of names would be
    # shifted.
    if not classes or not all(name.isascii() and name.isdecimal() for name in classes):
        return []
    odd = next(((name, place) for place, name in enumerate(classes) if int(name) != place), None)
    if odd is None:
        return []
    note = (
        "The folders have numbers as names, and labels are other numbers: positions in the text order of these names, "
        f"in which '{odd[0]}' is {odd[1]}. classes[label] is the folder's name."
    )
    return [note]


def _unwrap(folders: list[_FolderOfKind]) -> list[_FolderOfKind]:
    """Remove the folders that all files share, down to the one with the class or split folders."""
    while True:
        # Files beside the wrapping folder (a preview, a logo) do not make it a class.
        nested = [folder for folder in folders if folder.parts and folder.number >= 0]
        # Nor does a folder of unsorted test images.
        tops = {folder.parts[0] for folder in nested if folder.has_classes or not is_split_folder(folder.parts[0])}
        if len(tops) != 1 or not (tops == {one.parts[0] for one in nested} or _holds_splits(folders, *tops)):
            return folders
        nested = [folder for folder in nested if folder.parts[0] in tops]
        top = next(iter(tops))
        if top.lower() in SPLIT_NAMES or any(len(one.parts) == 1 for one in nested):
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


def _holds_splits(folders: list[_FolderOfKind], top: str) -> bool:
    """Tell whether a folder, or the folder that it wraps, holds several split folders."""
    inside = [folder.parts[1:] for folder in folders if folder.parts[:1] == (top,) and folder.number >= 0]
    inner = {parts[0] for parts in inside if parts}
    if len(inner) == 1 and all(len(parts) > 1 for parts in inside):
        return _holds_splits([_FolderOfKind(parts, 0) for parts in inside], *inner)
    return len(inner) > 1 and all(map(is_split_folder, inner))


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


def _with_splits(folders: list[_FolderOfKind], splits: dict[str, str]) -> list[_ClassFolder]:
    found = []
    for top, split in splits.items():
        below = [folder._replace(parts=folder.parts[1:]) for folder in folders if folder.parts[:1] == (top,)]
        below = _unwrap_split(below, top)
        found += [_ClassFolder.of(one, _SPLIT_ORDER[split], split) for one in below if one.parts]
    return found


def _unwrap_split(folders: list[_FolderOfKind], split: str) -> list[_FolderOfKind]:
    """Remove a folder that repeats the split, or is merely called images: seg_train/seg_train/forest."""
    inner = {folder.parts[0] for folder in folders if folder.parts and folder.number >= 0}
    deep = all(len(folder.parts) > 1 for folder in folders if folder.parts)
    if len(inner) != 1 or not deep:
        return folders
    name = next(iter(inner))
    if split_name(name) != split_name(split) and not is_image_folder(name):
        return folders
    return _unwrap_split([folder._replace(parts=folder.parts[1:]) for folder in folders], split)


def _classes_by_split(found: list[_ClassFolder]) -> dict[str, set[str]]:
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
        if len(names) == 1 and (is_image_folder(name := next(iter(names))) or split_name(name).split == split)
    }
    others = {name for split, names in by_split.items() if split not in flat for name in names}
    flat = {split for split in flat if others and not by_split[split] & others}
    return [one for one in found if one.split not in flat], [one for one in found if one.split in flat]


def _classes_of(entry: FileEntry, names: list[str], told: dict[str, str], classes: list[str]) -> dict[str, str]:
    known = set(classes)
    found = {name: told.get(posixpath.basename(name), "") for name in names}
    # A list from another dataset, or of words other than the folders' names, would give wrong labels to all.
    wrong = next((name for name, label in found.items() if label not in known), None)
    if wrong is not None:
        what = f"the class '{found[wrong]}', but no folder has that name" if found[wrong] else "no class"
        msg = f"'{entry.name}' gives {what} to '{wrong}'; expected one of {listed(classes)}. Correct the list."
        raise BrokenDatasetError(msg)
    return found


IMAGE_FOLDER = "image_folder"


def read_image_folder(tree: Tree) -> SampleTable:
    """Make a table of a tree in which every image is in its class's folder.

    Split folders (train or training, val, valid, validation, dev, test or testing, in any case) may be above the
    class folders; then the classes are those of all splits together. Samples come in the order of `ImageFolder`,
    split after split.

    Raises:
        EmptySourceError: there are no images at all; the message says what there is instead.
        LayoutError: the images are not in class folders; the message says where they are.
    """
    return read_class_folders(tree, FileKind(IMAGE_FOLDER, "images", IMAGE_EXTENSIONS))


def read_array_folder(tree: Tree) -> SampleTable:
    """Make a table of .npy files in class folders, with or without split folders above; each file is one sample.

    All have the shape and dtype of the first, and are stored as they are.

    Raises:
        EmptySourceError: there are no .npy files in folders of classes, or they are named like inputs and targets.
        LayoutError: the first is not an array of numbers.
    """
    files = required(tree.entries.ending_in((NPY,)), tree, ".npy files")
    role = first_with_role(files)
    if role is not None:
        msg = f"'{role}' is named like the inputs or targets of many samples, not like a single one."
        raise EmptySourceError(msg)
    try:
        found = read_class_folders(tree, FileKind(ARRAY_FOLDER, "arrays", (NPY,)))
    except BrokenDatasetError:
        raise
    except LayoutError as error:
        # Files outside class folders are arrays of many samples, for which `row_arrays` has a better message.
        raise EmptySourceError(str(error)) from error
    first = read_npy(tree, next(entry for entry in files if entry.name == found.keys[0]), found.keys[0])
    if first.trouble or first.is_text:
        msg = f"'{first.name}' cannot be used: {first.trouble or 'it holds words'}."
        raise LayoutError(msg)
    return replace(found, inputs=Arrays(found.inputs.source, first.shape, first.dtype, decode=decode_npy))


def decode_npy(content: Any) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        DecodeError: it is not an array of numbers.
    """
    try:
        # Not with numpy's reader, which parses each header again.
        shape, dtype, fortran, start = npy_header(bytes(content[:MAX_HEADER_BYTES]))
        values = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")
    except ValueError as error:
        msg = f"It is not a .npy file of numbers: it {error}."
        raise DecodeError(msg) from error
    return values.astype(values.dtype.newbyteorder("="), copy=False)
