"""Packs in colabstage's format, written with plain h5py."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def write_pack(path: Path, datasets: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> Path:
    """Write datasets, including text, by name; and attributes, of the root or, as `GROUP/NAME`, of a group."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["colabstage_format"] = 1
        for name, rows in datasets.items():
            if isinstance(rows, list):
                texts = np.char.encode(rows, "utf-8")
                file[name] = texts.astype(h5py.string_dtype("utf-8", texts.dtype.itemsize))
            else:
                file[name] = rows
        for name, value in (attributes or {}).items():
            group, _, attribute = name.rpartition("/")
            is_plain = isinstance(value, str | int)
            file[group or "/"].attrs[attribute] = value if is_plain else json.dumps(value)
    return path
