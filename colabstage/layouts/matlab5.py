"""Arrays in MATLAB's .mat files of version 5 to 7, which are no HDF5 files: read by scipy, where it is installed."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError, MissingDependencyError
from colabstage.layouts.reading import open_member, read_head, stamp_of
from colabstage.layouts.stored_arrays import HeldRows, StoredArray
from colabstage.trees.archive_bytes import SourceFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry, Tree

_HEAD = b"MATLAB 5.0 MAT-file"
_SVHN = re.compile(r"(train|test|extra)_32x32\.mat$")
_NUMBERS = {
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single", "double", "logical",
}  # fmt: skip


def is_matlab5(tree: Tree, entry: FileEntry) -> bool:
    """Tell whether a .mat file is of the old kind."""
    return entry.name.lower().endswith(".mat") and read_head(tree, entry, len(_HEAD)) == _HEAD


def matlab5_arrays(tree: Tree, entry: FileEntry) -> list[StoredArray]:
    """Return the arrays of numbers in a file, samples first: of three axes and more, MATLAB's last one is the first.

    Raises:
        MissingDependencyError: scipy is not installed.
        LayoutError: the file is damaged.
    """
    try:
        from scipy import io as matlab
    except ImportError as error:
        msg = (
            f"'{entry.name}' is a MATLAB file of version 5, which needs scipy. Install it with: pip install scipy. "
            "Or save it with '-v7.3'."
        )
        raise MissingDependencyError(msg) from error
    try:
        described = matlab.whosmat(SourceFile(open_member(tree, entry)))
    except Exception as error:  # scipy raises whatever the bytes happen to lead to
        msg = f"'{entry.name}' is a damaged MATLAB file: {error}. Copy it again, or save it again with '-v7.3'."
        raise LayoutError(msg) from error
    return [
        _MatlabArray(tree, entry, name).stored(tuple(shape))
        for name, shape, kind in described
        if kind in _NUMBERS and np.prod(shape, dtype=object) > 0
    ]


class _MatlabArray:
    """One array of a file, read when it is first needed and then held: it is packed as a whole in there."""

    def __init__(self, tree: Tree, entry: FileEntry, name: str) -> None:
        self._tree = tree
        self._entry = entry
        self._name = name

    def stored(self, shape: tuple[int, ...]) -> StoredArray:
        if len(shape) > 2:
            shape = (shape[-1], *shape[:-1])
        name, stamp = f"{self._entry.name}/{self._name}", stamp_of(self._entry)
        # The header does not say how wide the numbers are that it calls double: they may be kept as smaller ones.
        return StoredArray(
            name, shape, self.values.dtype, lambda: HeldRows(self.values, name, stamp), lambda: self.values
        )

    @functools.cached_property
    def values(self) -> NDArray[Any]:
        from scipy import io as matlab

        try:
            held = matlab.loadmat(SourceFile(open_member(self._tree, self._entry)), variable_names=[self._name])
            values = np.asarray(held[self._name])
        except Exception as error:
            msg = f"'{self._name}' of '{self._entry.name}' cannot be read: {error}."
            raise LayoutError(msg) from error
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if values.ndim > 2:
            values = np.moveaxis(values, -1, 0)
        # SVHN counts its digits as MATLAB does, from 1, and the zero is its tenth.
        if _SVHN.search(self._entry.name) and self._name == "y":
            values = values % 10
        return values
