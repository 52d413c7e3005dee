"""What packing made of some files, as one line, and what of it counts as right."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import ColabstageError, pack_dataset


@dataclass(frozen=True, slots=True)
class Packed:
    """The outcome of one call."""

    found: str = ""
    """What the pack holds, as `described` puts it; "" if packing was refused."""
    notes: tuple[str, ...] = ()
    """The notes of the report."""
    refusal: str = ""
    """The refusal's message, without the folder's path; "" if the files were packed."""

    def __str__(self) -> str:
        return f"refused: {self.refusal}" if self.refusal else f"packed as {self.found!r}, noting {self.notes}"


def pack(folder: Any, target: Path, **options: Any) -> Packed:
    """Pack a folder; a refusal is an outcome too, any other error is not."""
    try:
        report = pack_dataset(folder, target, progress=False, **options)
    except ColabstageError as error:
        return Packed(refusal=str(error).replace(f"{folder}", "FOLDER"))
    return Packed(described(target), tuple(note.replace(f"{folder}", "FOLDER") for note in report.notes))


def described(path: Path) -> str:
    """Return what a pack holds, such as "train: cat 3, dog 2; val: cat 1", with boxes, masks, numbers, and the dtype of
    x if it is unusual for images."""
    with h5py.File(path) as file:
        classes = file["classes"].asstr()[:].tolist()
        splits = [name.removeprefix("key_") for name in file if name.startswith("key_")]
        parts = []
        for split in sorted(splits, key=["train", "val", "valid", "test"].index):
            x, y = file[f"X_{split}"], file.get(f"Y_{split}")
            dtype = "" if isinstance(x, h5py.Group) or x.dtype == np.uint8 else f" ({x.dtype})"
            parts.append(f"{split}: {_targets(y, classes, len(file[f'key_{split}']))}{dtype}")
    return "; ".join(parts)


def _targets(y: Any, classes: list[str], count: int) -> str:
    if y is None:
        return f"{count} without targets"
    if isinstance(y, h5py.Group):
        return f"boxes {_counted(y['labels'][:].tolist(), classes)}"
    if y.dtype == np.uint8 and y.ndim == 3:
        return f"{count} masks with {int((y[:] == 1).sum())} pixels"
    return _counted(y[:].tolist(), classes) if y.ndim == 1 else f"{count} rows with targets of {y.shape[1:]}"


def _counted(labels: list[Any], classes: list[str]) -> str:
    counts, names = Counter(labels), dict[Any, str](enumerate(classes))
    return ", ".join(f"{names.get(label, label)} {counts[label]}" for label in sorted(counts))


def found(pattern: str, *, note: str = "") -> Callable[[Packed], bool]:
    """Right is a pack of this description, a regular expression, with a note that names `note`."""
    return lambda packed: bool(re.fullmatch(pattern, packed.found) and (not note or noted(note)(packed)))


def refused(pattern: str, *, but_not: str = "(?!)") -> Callable[[Packed], bool]:
    """Accept a refusal that matches `pattern` and not `but_not`."""
    return lambda packed: bool(re.search(pattern, packed.refusal) and not re.search(but_not, packed.refusal))


def noted(pattern: str) -> Callable[[Packed], bool]:
    """Accept a pack with a note that matches."""
    return lambda packed: any(re.search(pattern, note) for note in packed.notes)


def row(
    name: str,
    made: dict[str, bytes] | Callable[[], dict[str, bytes]],
    *,
    right: list[Callable[[Packed], bool]],
    **options: Any,
) -> Any:
    """Return a row of a table of files, or of a function that makes them. `options`: of `pack_dataset`."""
    return pytest.param(made, right, options, id=name)
