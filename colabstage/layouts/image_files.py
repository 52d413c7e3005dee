"""Images by themselves: classes in the names of the files, or none at all.

A folder of images without labels is a dataset too (faces for a GAN, photographs to classify), but only where nothing
beside the images, and nothing in their names, may be their labels.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.io.units import left_out
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    is_foreign_folder,
    is_note,
    listed,
    shared_folders,
    split_name,
    split_of_path,
    stem_of,
)
from colabstage.layouts.table import Images, NearMissError, SampleTable, TreeFiles, Values
from colabstage.trees.entries import FileEntries, files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.tree import Tree

FILE_NAMES = "file_names"
IMAGES = "images"

# The one form that is not anybody's guess: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")
# Files that hold no labels.
_HARMLESS = frozenset(
    {*IMAGE_EXTENSIONS, "", ".gif", ".md", ".rst", ".py", ".ipynb", ".m", ".html", ".pdf", ".docx", ".db", ".ini"}
)
# What is before the last number of a name: pug of pug_12, 25_0_2 of 25_0_2_20170116.
_BEFORE_NUMBER = re.compile(r"(.*?[A-Za-z0-9])[ _.()-]*\d+\D*$")


def _images(tree: Tree) -> FileEntries:
    images = files_ending_in(tree.entries, IMAGE_EXTENSIONS)
    images = images.in_folders(lambda folder: not any(map(is_foreign_folder, folder.split("/"))))
    if not images:
        msg = f"'{tree.label}' holds no images."
        raise EmptySourceError(msg)
    return images


def read_file_names(tree: Tree, *, pattern: str | None = None) -> SampleTable:
    """Make a table of images by what their names say: without a pattern, label.number.extension in every one.

    Images of a test folder whose names say nothing are left out; with a pattern, all whose paths do not fit it are.
    Folders of splits are recognised. Samples come sorted by name; classes are numbered in the order of their sorted
    names.

    Args:
        tree: the dataset's files.
        pattern: a regular expression that is searched in each image's path; its first group is the class, or all that
            it matches.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: a name does not say its class, or all say the same.
    """
    images = _images(tree)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    # Of a million names the first mostly tells that this is not what they say.
    unsaid = (name for name in images.names if wanted.search(name) is None and split_of_path(name) != "test")
    odd = next(unsaid, None) if pattern is None else None
    found = [wanted.search(name) for name in images.names] if odd is None else []
    silent = [name for name, match in zip(images.names, found, strict=True) if match is None] if odd is None else []
    if odd is not None or len(silent) == len(images):
        expected = f"{pattern!r} in it" if pattern is not None else "a name such as cat.0.jpg"
        msg = f"The name of '{odd or silent[0]}' in '{tree.label}' does not say its class; expected {expected}."
        raise LayoutError(msg)
    words = [(match[1] or "") if wanted.groups else match[0] for match in found if match is not None]
    classes = tuple(sorted(set(words)))
    # One class in all names is a common beginning, such as IMG, and no class.
    if len(classes) < 2:
        msg = f"The names of the images in '{tree.label}' do not tell two classes: all say {list(classes)}."
        raise LayoutError(msg)
    # Names without a class are those of a test set, which has none.
    files = images.take(np.flatnonzero([match is not None for match in found]))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = tuple(split_of_path(name) for name in files.names)
    notes = [f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."]
    if silent:
        which = "of a test folder whose names say no class" if pattern is None else f"whose paths have no {pattern!r}"
        notes.append(f"{left_out(len(silent), 'images', which)} (first '{silent[0]}').")
    return SampleTable(
        layout=FILE_NAMES,
        keys=files.names,
        inputs=Images(TreeFiles(tree, files)),
        targets=Values(np.array([numbers[word] for word in words], np.int64)),
        splits=splits if all(splits) else None,
        classes=classes,
        notes=tuple(notes),
    )


def read_images(tree: Tree) -> SampleTable:
    """Make a table of all images of a tree, in order of their names, without labels.

    Splits are those of folders, where all images are in such.

    Raises:
        EmptySourceError: there are no images.
    """
    images = _images(tree)
    splits_of = _splits_of_folders(images)
    splits = tuple([splits_of[number] for number in images.folders[1].tolist()])
    return SampleTable(
        layout=IMAGES,
        keys=images.names,
        inputs=Images(TreeFiles(tree, images)),
        targets=None,
        splits=splits if all(splits) else None,
        notes=("The images have no labels: neither folders of classes, nor files of annotations, nor words in names.",),
    )


def _splits_of_folders(images: FileEntries) -> list[str]:
    """Return the split of each of the folders that have images, as `FileEntries.folders` has them; "" for none."""
    folders, _ = images.folders
    # DIV2K_train_HR beside DIV2K_valid_HR: the same words beside the split.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    tops = [split_name("".join(folder.split("/")[depth : depth + 1])) for folder in folders]
    same = len({read.rest for read in tops}) == 1
    return [
        split_of_path(f"{folder}/") or (top.split if same else "") for folder, top in zip(folders, tops, strict=True)
    ]


def guess_images(tree: Tree, is_more: bool) -> SampleTable:
    """Read images without labels, where they are in one folder, or in one for each split, and nothing may label them.

    Raises:
        EmptySourceError: there are no images.
        NearMissError: something may be their labels; the message says what, and what to write.
        LayoutError: they are in several folders.
    """
    images = _images(tree)
    if is_more:
        msg = f"The images of '{tree.label}' are more of a dataset: one folder is a class of it."
        raise LayoutError(msg)
    # First, because it declines most folders of classes after a look at each folder instead of each image.
    splits = _splits_of_folders(images)
    if len(splits) > 1 and (not all(splits) or len(splits) > len(set(splits))):
        msg = f"The images of '{tree.label}' are in {len(splits):,} folders, not in one, or one for each split."
        raise LayoutError(msg)
    if _have_classes_in_names(tree):
        msg = f"The images of '{tree.label}' have classes in their names."
        raise LayoutError(msg)
    without = 'layout="images" reads the images without labels.'
    others = FileEntries.of(tree.entries).not_ending_in(_HARMLESS)
    labels = [name for name in others.names if not is_note(name)]
    if labels:
        msg = (
            f"The images of '{tree.label}' are in no folders of classes, and {listed(labels[:3])} may hold their "
            "labels, in a form that is not read here. Write a table with a path and a label in each row beside the "
            f"images, or give a function as layout=. {without}"
        )
        raise NearMissError(msg)
    beginnings = _beginnings(images.names)
    if beginnings:
        msg = (
            f"The images of '{tree.label}' are in no folders of classes, but their names may say the class: "
            f"{listed(beginnings)}. Say which part it is: layout=file_names(r'([^/]+)_\\d+\\.\\w+$'), from "
            f"colabstage.options, for what comes before the last number. {without}"
        )
        raise NearMissError(msg)
    return read_images(tree)


def _have_classes_in_names(tree: Tree) -> bool:
    try:
        read_file_names(tree)
    except LayoutError:
        return False
    return True


def _beginnings(names: Sequence[str]) -> list[str]:
    """Return what the names have before their numbers, where that sorts them into classes; else nothing."""
    # Images to be classified are often numbered alone.
    names = [name for name in names if split_of_path(name) != "test"] or names
    matches = [_BEFORE_NUMBER.match(stem_of(name)) for name in names]
    found = {match[1] for match in matches if match is not None}
    # As many beginnings as images are not classes, nor is a single one, such as IMG.
    are_classes = len(found) > 1 and 2 * len(found) <= len(names) and all(matches)
    return sorted(found) if are_classes else []
