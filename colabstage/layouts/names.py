"""What files and folders of datasets are called: image extensions, split names, and how lists of them are shown."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.trees.messages import count_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from colabstage.trees.tree import FileEntry

# torchvision.datasets.folder.IMG_EXTENSIONS
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# What people call their splits, and the name that each split is stored under; in the order of a table.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "valid",
    "validation": "validation",
    "dev": "dev",
    "test": "test",
    "testing": "test",
}
_NAMES_SHOWN = 8


def is_image(name: str) -> bool:
    """Whether torchvision would take a file of this name for an image."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def count_kinds(files: Iterable[FileEntry]) -> str:
    """Write how many files there are of each extension, the commonest first."""
    return count_by(posixpath.splitext(file.name)[1].lower() or "without extension" for file in files)


def listed(names: list[str]) -> str:
    """Write the first few of some names."""
    shown = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"
