"""Images whose names say their class: cat.0.jpg, or whatever a pattern finds in them."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images, Values
from colabstage.layouts.names import IMAGE_EXTENSIONS, is_foreign_folder, split_of_path
from colabstage.layouts.sources import TreeFiles
from colabstage.layouts.table import SampleTable
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.trees.tree import Tree

NAME = "file_names"

# The one form that is not anybody's guess: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")


def read_file_names(tree: Tree, *, pattern: str | None = None) -> SampleTable:
    """Make a table of images by what their names say: without a pattern, label.number.extension in every one.

    Images of a test folder whose names say nothing are left out. Folders of splits are recognised. Samples come sorted
    by name; classes are numbered in the order of their sorted names.

    Args:
        tree: the dataset's files.
        pattern: a regular expression that is searched in each image's path; its first group is the class, or all that
            it matches.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: a name does not say its class, or all say the same.
    """
    images = files_ending_in(tree.entries, IMAGE_EXTENSIONS)
    images = images.where(lambda name: not any(map(is_foreign_folder, name.split("/")[:-1])))
    if not images:
        msg = f"'{tree.label}' holds no images."
        raise EmptySourceError(msg)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    found = [wanted.search(name) for name in images.names]
    silent = [name for name, match in zip(images.names, found, strict=True) if match is None]
    odd = next((name for name in silent if split_of_path(name) != "test"), None)
    if odd is not None:
        expected = f"{pattern!r} in it" if pattern is not None else "a name such as cat.0.jpg"
        msg = f"The name of '{odd}' in '{tree.label}' does not say its class; expected {expected}."
        raise LayoutError(msg)
    words = [(match[1] or "") if wanted.groups else match[0] for match in found if match is not None]
    classes = tuple(sorted(set(words)))
    if len(classes) < 2:
        msg = f"The names of the images in '{tree.label}' do not tell two classes: all say {list(classes)}."
        raise LayoutError(msg)
    files = images.take(np.flatnonzero([match is not None for match in found]))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = tuple(split_of_path(name) for name in files.names)
    notes = [f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."]
    if silent:
        notes.append(f"{len(silent):,} images of a test folder whose names say no class were left out.")
    return SampleTable(
        layout=NAME,
        keys=files.names,
        inputs=Images(TreeFiles(tree, files)),
        targets=Values(np.array([numbers[word] for word in words], np.int64)),
        splits=splits if all(splits) else None,
        classes=classes,
        notes=tuple(notes),
    )
