"""Which files of a tree hold arrays, and all the arrays in them, whatever they are written in."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.layouts.matlab5 import is_matlab5, matlab5_arrays
from colabstage.layouts.published_arrays import published_arrays, published_files
from colabstage.layouts.stored_arrays import NPY, hdf5_arrays, npz_arrays, read_npy
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.layouts.stored_arrays import StoredArray
    from colabstage.trees.tree import FileEntry, Tree

_NPZ = ".npz"
_SUFFIXES = (NPY, _NPZ, ".h5", ".hdf5", ".hdf", ".he5", ".mat")
# Arrays of whole datasets are few; so many files are one for each sample.
_MAX_FILES = 256


def array_files(tree: Tree) -> list[FileEntry]:
    """Return the files of a tree that may hold arrays."""
    return [*files_ending_in(tree.entries, _SUFFIXES), *published_files(tree)]


def find_arrays(tree: Tree) -> list[StoredArray]:
    """Return all arrays of a tree, by file and key; headers are read, and no more.

    Raises:
        LayoutError: a file is not what its name says, or there are too many of them.
    """
    files = files_ending_in(tree.entries, _SUFFIXES)
    if len(files) > _MAX_FILES:
        msg = (
            f"'{tree.label}' holds {len(files):,} files of arrays (first '{files[0].name}'); expected at most "
            f"{_MAX_FILES}, each with the rows of many samples."
        )
        raise LayoutError(msg)
    found: list[StoredArray] = []
    for entry in files:
        suffix = posixpath.splitext(entry.name)[1].lower()
        if suffix == NPY:
            found.append(read_npy(tree, entry, entry.name))
        elif suffix == _NPZ:
            try:
                found += npz_arrays(tree, entry)
            except CorruptArchiveError as error:
                msg = f"'{entry.name}' cannot be read: {error}"
                raise LayoutError(msg) from error
        elif is_matlab5(tree, entry):
            found += matlab5_arrays(tree, entry)
        else:
            found += hdf5_arrays(tree, entry)
    return found + published_arrays(tree)
