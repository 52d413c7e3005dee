"""The form of a packed file: the names that it uses, and where its bytes go.

The names are the customary ones (`X_train`, `Y_train`, …), so that plain h5py code reads it. `create_pack` lays a file
out so that its bytes can be written without HDF5: every large dataset is contiguous, unfiltered, page-aligned,
allocated at once and never filled. Its offset in the file is therefore final before the first sample is decoded: any
number of threads write samples straight to their positions with `pwrite`, without HDF5's global lock and in any order.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

# Increased whenever an earlier version would misread a file written now.
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
LABELS = "labels"

# In the usual order.
FAMILIAR_SPLITS = ("train", "dev", "val", "valid", "validation", "test")

_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ERRNO = re.compile(r"errno = (\d+)")
# One page: memory maps start on a page, and direct reads are aligned to one.
_ALIGNMENT_BYTES = 4096
# More than an empty file takes.
_ROOM_BYTES = 64 * 1024
# Texts are encoded and written in slices, so that the keys of millions of samples never exist twice in memory.
_TEXTS_AT_ONCE = 16_384


def x_name(split: str) -> str:
    return f"X_{split}"


def y_name(split: str) -> str:
    return f"Y_{split}"


def key_name(split: str) -> str:
    return f"key_{split}"


def split_of(name: str) -> str | None:
    """Return the split whose inputs `name` holds, `None` when it holds something else.

    With a lower-case x, as scikit-learn's users write it, only for the usual splits: x_offset is something else.
    """
    is_inputs = name.startswith("X_") or (name.startswith("x_") and name[2:] in FAMILIAR_SPLITS)
    return name[2:] or None if is_inputs else None


def check_split_name(split: str) -> str:
    """Return `split` if it can be part of a dataset's name."""
    if not _SPLIT.fullmatch(split):
        msg = f"{split!r} cannot name a split. Use letters, digits, '_', '-' and '.', starting with a letter or digit."
        raise OptionError(msg)
    return split


class ReservedDataset(NamedTuple):
    """A dataset whose bytes are written later."""

    name: str
    """Path in the file; missing groups are created."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In native byte order."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PackContent:
    """Everything that a new file holds before its samples."""

    reserved: Sequence[ReservedDataset]
    """Datasets to be written later, in file order."""
    arrays: Mapping[str, NDArray[Any] | Sequence[str]]
    """Datasets written now, by name; texts become fixed-length UTF-8, which every HDF5 reader understands."""
    attributes: Mapping[str, Any]
    """Attributes of the root; mappings and sequences are stored as JSON."""
    group_attributes: Mapping[str, Mapping[str, Any]]
    """Attributes of groups, by the group's name; stored like those of the root."""

    @property
    def nbytes(self) -> int:
        """Return the length of all its datasets in the file."""
        lengths = [
            rows.nbytes if hasattr(rows, "nbytes") else len(rows) * _longest(rows) for rows in self.arrays.values()
        ]
        return sum(spec.nbytes for spec in self.reserved) + sum(lengths)


def create_pack(path: Path, content: PackContent) -> dict[str, int]:
    """Write a new file with everything but its samples, over any of that name. The same content makes the same bytes.

    Return the offset in the file, in bytes, of each reserved dataset that has elements.
    """
    with _disk_errors(path), _new_file(path) as file:
        file.attrs[FORMAT_ATTRIBUTE] = FORMAT_VERSION
        _set_attributes(file, content.attributes)
        # Sorted here and below: HDF5 lays out objects in order of creation, and a set of strings has another order in
        # each process.
        for name in sorted({spec.name for spec in content.reserved} | content.arrays.keys()):
            _make_group(file, name.rpartition("/")[0])
        for name, rows in sorted(content.arrays.items(), key=lambda item: item[0]):
            if hasattr(rows, "dtype"):
                file.create_dataset(name, data=rows, track_times=False)
            else:
                _write_texts(file, name, rows)
        offsets = {spec.name: _reserve(file, spec) for spec in content.reserved}
        for name, attributes in content.group_attributes.items():
            _make_group(file, name)
            _set_attributes(file[name], attributes)
    return {name: offset for name, offset in offsets.items() if offset is not None}


def reserved_offsets(path: Path, content: PackContent) -> dict[str, int] | None:
    """Return the offsets that `create_pack` returned for this content; `None` if this no longer is the file."""
    import h5py

    try:
        # With the setting it was created with: HDF5 opens a file twice in one process only with the same one.
        with h5py.File(path, "r", locking=False) as file:
            nodes = [(spec, file[spec.name]) for spec in content.reserved]
            if any((node.shape, node.dtype) != (spec.shape, spec.dtype) for spec, node in nodes):
                return None
            return {spec.name: node.id.get_offset() for spec, node in nodes if spec.nbytes}
    # The process that wrote it may have been killed at any byte, to which h5py responds in any of these ways.
    except (OSError, KeyError, RuntimeError, AttributeError):
        return None


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Translate what h5py raises for a disk's failure when it closes a file into the disk's error."""
    try:
        yield
    except RuntimeError as error:
        found = _ERRNO.search(str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def _new_file(path: Path) -> Any:
    import h5py
    from h5py import h5f, h5p

    # HDF5 keeps data that a full disk refuses, and may then end the process, so a full disk is detected first.
    path.write_bytes(bytes(_ROOM_BYTES))
    # The low-level interface is used because `h5py.File` stores the creation time in the root group: the same samples
    # would no longer make the same bytes.
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5p.create(h5p.FILE_ACCESS)
    # As `h5py.File` does: closing the file closes the objects in it, so nothing is written afterwards.
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    # Both bounds, because the layout of metadata must not depend on the installed version of HDF5.
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    # Small objects are packed together; only objects of a page or more start on a page.
    access.set_alignment(_ALIGNMENT_BYTES, _ALIGNMENT_BYTES)
    # Nobody else knows the temporary name, and a network file system may refuse locks.
    access.set_file_locking(False, True)  # h5py takes these by position
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_TRUNC, fcpl=creation, fapl=access))


def _make_group(file: Any, name: str) -> None:
    """Create a group unless it exists, as the root does."""
    from h5py import h5g, h5p

    if name and name not in file:
        # Before 2.0, HDF5 stores when a group was created unless told not to.
        creation = h5p.create(h5p.GROUP_CREATE)
        creation.set_obj_track_times(False)
        h5g.create(file.id, name.encode(), gcpl=creation)


def _reserve(file: Any, spec: ReservedDataset) -> int | None:
    """Allocate one contiguous dataset that HDF5 neither fills nor touches; return its offset."""
    from h5py import h5d, h5p, h5s, h5t

    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_layout(h5d.CONTIGUOUS)
    # By default HDF5 allocates a contiguous dataset at its first write, and here HDF5 never writes it.
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    # Filling would write every byte twice, and give the sparse file its full size before the work begins.
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    kind, space = h5t.py_create(spec.dtype, logical=True), h5s.create_simple(spec.shape)
    dataset = h5d.create(file.id, spec.name.encode(), kind, space, dcpl=properties, lcpl=links)
    offset: int | None = dataset.get_offset() if spec.nbytes else None
    return offset


def _encode(text: str) -> bytes:
    # A file name need not be UTF-8, but a string declared as UTF-8 must be.
    return text.encode(errors="backslashreplace")


def _utf8_pages(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """Yield texts in pages, as UTF-8."""
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        yield [_encode(str(text)) for text in texts[start : start + _TEXTS_AT_ONCE]]


def _longest(texts: Sequence[str]) -> int:
    # HDF5 strings have at least one byte.
    return max((max(map(len, page)) for page in _utf8_pages(texts)), default=1) or 1


def _write_texts(file: Any, name: str, texts: Sequence[str]) -> None:
    import h5py
    import numpy as np

    length = _longest(texts)
    kind = h5py.string_dtype("utf-8", length)
    dataset = file.create_dataset(name, shape=(len(texts),), dtype=kind, track_times=False)
    start = 0
    for page in _utf8_pages(texts):
        # The padded bytes are written unconverted: h5py's own conversion of a million strings takes seconds.
        raw = np.array(page, dtype=f"S{length}")
        place = dataset.id.get_space()
        place.select_hyperslab((start,), raw.shape)
        dataset.id.write(h5py.h5s.create_simple(raw.shape), place, raw, mtype=dataset.id.get_type())
        start += len(page)


def _set_attributes(target: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in sorted(attributes.items()):
        if isinstance(value, str):
            target.attrs[name] = _encode(value).decode()
        else:
            target.attrs[name] = value if isinstance(value, (int, float)) else json.dumps(value, sort_keys=True)
