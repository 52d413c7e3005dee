"""All arrays of a tree, whatever kind of file they lie in."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.layouts.arrays.hdf5_arrays import hdf5_arrays
from colabstage.layouts.arrays.stored_arrays import NPY, npz_arrays, read_npy

if TYPE_CHECKING:
    from colabstage.layouts.arrays.stored_arrays import StoredArray
    from colabstage.trees.tree import FileEntry, Tree

_NPZ = ".npz"
_SUFFIXES = (NPY, _NPZ, ".h5", ".hdf5", ".hdf", ".he5", ".mat")
# Arrays of whole datasets are few; so many files are one for each sample.
_MAX_FILES = 256


def array_files(tree: Tree) -> list[FileEntry]:
    """The files of a tree that may hold arrays."""
    return [entry for entry in tree.entries if entry.name.lower().endswith(_SUFFIXES)]


def find_arrays(tree: Tree) -> list[StoredArray]:
    """All arrays of a tree, by file and key; headers are read, and no more.

    Raises:
        LayoutError: a file is not what its name says, or there are too many of them.
    """
    files = array_files(tree)
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
        else:
            found += hdf5_arrays(tree, entry)
    return found
