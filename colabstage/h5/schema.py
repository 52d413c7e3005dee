"""The names that a packed file uses: the customary ones (`X_train`, `Y_train`, …), so that plain h5py code reads it."""

from __future__ import annotations

import re

from colabstage.errors import OptionError

# Goes up whenever a file written now could be misread by an earlier version.
FORMAT_VERSION = 1

FORMAT_ATTRIBUTE = "colabstage_format"
IMAGE_OPTIONS_ATTRIBUTE = "image_options"
MASK_OPTIONS_ATTRIBUTE = "mask_options"
RESIZER_ATTRIBUTE = "resizer"
SHARD_SET_ATTRIBUTE = "shard_set"
CLASSES = "classes"
SKIPPED = "skipped"
BYTES = "bytes"
OFFSETS = "offsets"
BOXES = "boxes"

# In the order in which people name them.
FAMILIAR_SPLITS = ("train", "dev", "val", "valid", "validation", "test")

_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def x_name(split: str) -> str:
    """Return the dataset, or group, of a split's inputs."""
    return f"X_{split}"


def y_name(split: str) -> str:
    """Return the dataset, or group, of a split's targets."""
    return f"Y_{split}"


def key_name(split: str) -> str:
    """Return the dataset of the source key of each row."""
    return f"key_{split}"


def split_of(name: str) -> str | None:
    """Return the split whose inputs `name` holds, `None` when it holds something else.

    With a small x, as scikit-learn's users write it, only of splits that everybody has: x_offset is something else.
    """
    if name.startswith("X_") or (name.startswith("x_") and name[2:] in FAMILIAR_SPLITS):
        return name[2:] or None
    return None


def check_split_name(split: str) -> str:
    """Return `split` if it can be part of a dataset's name.

    Raises:
        OptionError: it is empty or has characters that HDF5 paths give a meaning.
    """
    if not _SPLIT.fullmatch(split):
        msg = f"{split!r} cannot name a split. Use letters, digits, '_', '-' and '.', starting with a letter or digit."
        raise OptionError(msg)
    return split
