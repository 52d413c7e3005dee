"""One array in each .npy file, in folders of classes: spectrograms, crops, embeddings."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.class_folders import FileKind, find_class_folders
from colabstage.layouts.row_arrays import has_role
from colabstage.layouts.stored_arrays import NPY, read_npy
from colabstage.layouts.table import Arrays, BrokenDatasetError, SampleTable, TreeFiles, Values
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.trees.tree import Tree

NAME = "array_folder"


def read_array_folder(tree: Tree) -> SampleTable:
    """Make a table of .npy files in folders of classes, with or without folders of splits above; each is one sample.

    All have the shape and dtype of the first, and are stored as they are.

    Raises:
        EmptySourceError: there are no .npy files in folders of classes, or they are called like inputs and targets.
        LayoutError: the first is not an array of numbers.
    """
    files = files_ending_in(tree.entries, (NPY,))
    if not files:
        msg = f"'{tree.label}' holds no .npy files."
        raise EmptySourceError(msg)
    role = next((name for name in files.names if has_role(name.rpartition("/")[2])), None)
    if role is not None:
        msg = f"'{role}' is called like the inputs or targets of many samples, and no sample of its own."
        raise EmptySourceError(msg)
    try:
        found = find_class_folders(tree, FileKind(NAME, "arrays", (NPY,)))
    except BrokenDatasetError:
        raise
    except LayoutError as error:
        # What is in no folders of classes are arrays of many samples, of which `row_arrays` has more to say.
        raise EmptySourceError(str(error)) from error
    first = read_npy(tree, found.files[0], found.files[0].name)
    if first.trouble or first.is_text:
        msg = f"'{first.name}' cannot be used: {first.trouble or 'it holds words'}."
        raise LayoutError(msg)
    return SampleTable(
        layout=NAME,
        keys=found.files.names,
        inputs=Arrays(TreeFiles(tree, found.files), first.shape, first.dtype, decode=decode_npy),
        targets=Values(found.labels),
        splits=found.splits,
        classes=found.classes,
        notes=found.notes,
    )


def decode_npy(content: Any) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        DecodeError: it is none of numbers.
    """
    try:
        values: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        msg = f"It is no .npy file of numbers: {error}."
        raise DecodeError(msg) from error
    return values.astype(values.dtype.newbyteorder("="), copy=False)
