"""Evidence of names: classes in the names of files; and images of which nothing states labels."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import left_out, listed
from colabstage.layouts.evidence import Evidence, images_of
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Images, SampleTable, class_indices, known_splits
from colabstage.layouts.words import before_last_word, shared_folders, split_name, split_of_path, stem_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries

# The only unambiguous form: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")
# The part before the last number of a name: pug in pug_12, 25_0_2 in 25_0_2_20170116.
_BEFORE_NUMBER = re.compile(r"(.*?[A-Za-z0-9])[ _.()-]*\d+\D*$")
# The same of whole names, for who has to write it.
_BEFORE_NUMBER_TYPED = r"([^/]*?[A-Za-z0-9])[ _.()-]*\d+[^\d/]*\.\w+$"


def names_state(source: Source, *, pattern: str | None = None) -> Evidence:
    """Read images with the classes in their names: without a pattern, every name is label.number.extension.

    Images of a test folder whose names have no class are left out; with a pattern, so are all whose paths do not fit
    it. Folders of splits are recognised. Samples come sorted by name; classes are numbered in the order of their sorted
    names. `pattern` is searched in each image's path; its first group, or else the whole match, is the class.
    """
    images = images_of(source)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    # Names without a class belong to a test set. The first of a million usually shows that they have no class.
    silent = (name for name in images.names if wanted.search(name) is None)
    first = next((name for name in silent if pattern is not None or split_of_path(name) != "test"), "")
    found = [wanted.search(name) for name in images.names] if pattern is not None or not first else []
    words = [(match[1] or "") if wanted.groups else match[0] for match in found if match is not None]
    values, classes = class_indices(words)
    if not classes:
        expected = f"{pattern!r} in it" if pattern is not None else "a name such as cat.0.jpg"
        msg = (
            f"The name of '{first or images.names[0]}' in '{source.label}' does not say its class; expected {expected}."
        )
        raise LayoutError(msg)
    # The same class in all names is a common prefix, such as IMG, not a class.
    if len(classes) < 2:
        msg = f"The names of the images in '{source.label}' do not tell classes apart: all say {list(classes)}."
        raise LayoutError(msg)
    files = images.take(np.flatnonzero([match is not None for match in found]))
    notes = [f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."]
    if len(files) < len(images):
        which = "of a test folder whose names give no class" if pattern is None else f"whose paths have no {pattern!r}"
        lost = next(name for name, match in zip(images.names, found, strict=True) if match is None)
        notes.append(f"{left_out(len(images) - len(files), 'images', which)} (first '{lost}').")
    table = SampleTable(
        layout="file_names",
        keys=files.names,
        inputs=Images(TreeFiles(source.tree, files)),
        targets=values,
        splits=known_splits([split_of_path(name) for name in files.names]),
        classes=classes,
        notes=tuple(notes),
    )
    return Evidence(table, "the files' names", is_guess=True)


def nothing_states(source: Source) -> Evidence:
    """Read all images of a source, in order of their names, without labels; splits come from folders, if all images
    are in split folders.
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


def names_may_say(source: Source) -> str:
    """Return what the names of unlabelled images may say, and what to write: classes, or which is whose mask; ""
    where they say nothing."""
    names = images_of(source).names
    without = 'layout="images" reads the images without labels.'
    beginnings = _beginnings(names)
    if beginnings:
        return (
            f"The images of '{source.label}' are in no folders of classes, but their names may say the class: "
            f"{listed(beginnings)}. Say which part it is: layout=file_names(r'{_BEFORE_NUMBER_TYPED}'), from "
            f"colabstage.options, for what comes before the last number. {without}"
        )
    pairs = _pairs_by_name(names)
    # Most images are called after one another: a.jpg and a_manual.jpg, or as MSRA10K a.jpg and a.png.
    if len(pairs) > 1 and 4 * len(pairs) > len(names):
        return (
            f"The images of '{source.label}' come in twos by their names: '{pairs[0][1]}' may be the mask of "
            f"'{pairs[0][0]}', or another part of the sample. Put one kind into a folder called images and the other "
            f"into one called masks; or, where each is a sample, {without}"
        )
    return ""


def _pairs_by_name(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return images with those that are called after them by the most common word behind a stem."""
    by_stem: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_stem[posixpath.splitext(name)[0]].append(name)
    pairs: dict[str, list[tuple[str, str]]] = {"": []}
    for stem, same in by_stem.items():
        before = before_last_word(stem)
        if len(same) > 1:
            pairs[""].append((same[0], same[1]))
        elif before in by_stem:
            pairs.setdefault(stem.removeprefix(before), []).append((by_stem[before][0], same[0]))
    return max(pairs.values(), key=len)


def _beginnings(names: Sequence[str]) -> list[str]:
    """Return what precedes the numbers in the names, if that makes classes; otherwise nothing."""
    # Images to be classified are often only numbered.
    names = [name for name in names if split_of_path(name) != "test"] or names
    matches = [_BEFORE_NUMBER.match(stem_of(name)) for name in names]
    found = {match[1] for match in matches if match is not None}
    # As many prefixes as images are not classes, and neither is a single one, such as IMG.
    return sorted(found) if all(matches) and 1 < len(found) <= len(names) / 2 else []
