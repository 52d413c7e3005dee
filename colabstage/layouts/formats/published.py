"""Arrays in the files that well-known datasets are published as, which no format of arrays or of images has.

MNIST's idx, CIFAR's pickles and .bin and STL10's .bin become arrays with the names that `arrays` understands.
CIFAR's pickles are opened by an unpickler that knows arrays, texts, numbers, lists and dicts, and calls nothing else:
a file that asks for more is refused.
"""

from __future__ import annotations

import io
import pickle
import posixpath
import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.reading import open_unpacked
from colabstage.layouts.samples import join_samples, map_samples, rows_of_array, rows_of_file, stamp_of
from colabstage.layouts.stored import StoredArray
from colabstage.layouts.words import folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import SampleSource
    from colabstage.trees.listing import FileEntry

_IDX = re.compile(r"[-.]idx\d-[a-z0-9]+(\.gz)?$")
_IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_BATCH = re.compile(r"(data_batch_\d+|test_batch|batches\.meta)$")
_BATCH_BIN = re.compile(r"(data_batch_\d+|test_batch)\.bin$")
# As `extension_of` has those of all names that are meant: idx3-ubyte is none.
_ENDINGS = ("", ".gz", ".bin", ".meta")
_STL = re.compile(r"(train|test)_[Xy]\.bin$")
_PIXEL = np.dtype(np.uint8)
_CIFAR_SHAPE, _CIFAR_BYTES = (3, 32, 32), 3072
_STL_SHAPE, _STL_BYTES = (3, 96, 96), 27648
_NAME_LISTS = {
    "batches.meta.txt": "label_names",
    "fine_label_names.txt": "label_names",
    "class_names.txt": "class_names",
}
# Everything that a pickle of CIFAR may name, in numpy's old and new spelling, and what it is replaced by.
_REBUILD: Any = np.empty(0).__reduce__()[0]
_HARMLESS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # The way in which newer versions of Python write empty bytes for older ones.
    ("__builtin__", "bytes"): lambda: b"",
    ("_codecs", "encode"): lambda text, _: text.encode("latin-1"),
}


def published_arrays(source: Source) -> list[StoredArray]:
    """Return the arrays of all files that have the names of these datasets' files, batches of one split joined."""
    by_kind: dict[str, list[FileEntry]] = {"idx": [], "pickle": [], "bin": [], "stl": [], "": []}
    # A look at endings spares one at each of a million names.
    for entry in source.ending_in(_ENDINGS):
        by_kind[_format_of(entry, source.label)].append(entry)
    found = [*_idx_arrays(source, by_kind["idx"]), *_cifar_arrays(source, by_kind["pickle"], by_kind["bin"])]
    found += [_stl_array(source, entry) for entry in by_kind["stl"]]
    folders = {posixpath.dirname(entry.name) for kind in ("bin", "stl") for entry in by_kind[kind]}
    texts = source.ending_in((".txt",) if folders else ())
    lists = texts.where(lambda name: posixpath.dirname(name) in folders and posixpath.basename(name) in _NAME_LISTS)
    for name, text in source.texts(lists).items():
        folder, base = posixpath.split(name)
        found.append(StoredArray.in_memory(posixpath.join(folder, _NAME_LISTS[base]), np.array(text.split()), ""))
    return found


# By names, because pickles and .bin files begin with nothing that tells whose they are.
def _format_of(entry: FileEntry, label: str) -> str:
    base, folder = posixpath.basename(entry.name), folder_of(entry.name) or label
    if _IDX.search(base.lower()):
        return "idx"
    if _BATCH.match(base) or (base in ("train", "test", "meta") and "cifar-100" in folder):
        return "pickle"
    if _BATCH_BIN.match(base) or (base in ("train.bin", "test.bin") and "cifar-100" in folder):
        return "bin"
    return "stl" if _STL.match(base) and entry.size % (_STL_BYTES if "_X" in base else 1) == 0 else ""


def _idx_arrays(source: Source, entries: Sequence[FileEntry]) -> list[StoredArray]:
    # torchvision keeps the .gz beside the unpacked file, and Kaggle's MNIST has each file under two names.
    once = {posixpath.basename(entry.name).lower().removesuffix(".gz").replace(".", "-"): entry for entry in entries}
    return [_read_idx(source, entry) for entry in sorted(once.values(), key=lambda entry: entry.name)]


def _read_idx(source: Source, entry: FileEntry) -> StoredArray:
    content = open_unpacked(source.tree, entry)
    # Two zeros, a code for the type, the number of axes; then the length of each axis.
    head = content.pread(4, 0)
    dtype = _IDX_DTYPES.get(head[2]) if len(head) == 4 and head[:2] == b"\0\0" else None
    sides = content.pread(4 * head[3], 4) if dtype else b""
    if dtype is None or not head[3] or len(sides) != 4 * head[3]:
        msg = f"'{entry.name}' is not an idx file (the format of MNIST): it begins with {head!r}."
        raise LayoutError(msg)
    shape = struct.unpack(f">{head[3]}I", sides)
    stored, start = np.dtype(dtype), 4 + len(sides)
    # Sides come from the file: as Python's numbers they cannot overflow to a size that fits.
    needed = start + int(np.prod(shape, dtype=object)) * stored.itemsize
    # The format has no checksum, so its length is the only proof that a download is complete.
    if content.size != needed:
        msg = f"'{entry.name}' has {content.size:,} bytes; an idx file of shape {shape} takes {needed:,}."
        raise LayoutError(msg)
    # idx files are big-endian, which torch refuses.
    native = stored.newbyteorder("=")
    return StoredArray(
        entry.name,
        shape,
        native,
        lambda: rows_of_file(content, start, shape[0], shape[1:], stored, stamp=stamp_of(entry)),
        lambda: np.frombuffer(content.pread(needed - start, start), stored).astype(native).reshape(shape),
    )


# --- CIFAR and STL10 --------------------------------------------------------------------------------------------------

# The images of one file, `(32, 32, 3)` each, and its labels by kind.
_Batch = tuple["SampleSource", dict[str, "NDArray[np.int64]"]]


def _cifar_arrays(source: Source, pickles: Sequence[FileEntry], binaries: Sequence[FileEntry]) -> list[StoredArray]:
    """Return one array of images, and one of each kind of labels, for each split of each folder."""
    batches: dict[str, list[_Batch]] = {}
    names: list[StoredArray] = []
    for entry in sorted([*pickles, *binaries], key=lambda entry: entry.name):
        folder, base = posixpath.split(entry.name)
        held = _unpickle(source.read(entry), entry.name) if entry in pickles else {}
        listed = held.get("label_names", held.get("fine_label_names"))
        if listed is not None:
            texts = np.array([_as_text(name) for name in listed])
            names.append(StoredArray.in_memory(posixpath.join(folder, "label_names"), texts, ""))
        elif "data" in held or entry in binaries:
            split = posixpath.join(folder, "test" if base.startswith("test") else "train")
            batch = _binary_batch(source, entry) if entry in binaries else _pickled_batch(entry, held)
            batches.setdefault(split, []).append(batch)
    found = []
    for split, parts in batches.items():
        found.append(_images(f"{split}_data", _CIFAR_SHAPE, join_samples([images for images, _ in parts])))
        for kind in parts[0][1]:
            values = np.concatenate([labels[kind] for _, labels in parts])
            found.append(StoredArray.in_memory(f"{split}_{kind}", values, ""))
    return found + names


def _pickled_batch(entry: FileEntry, held: dict[str, Any]) -> _Batch:
    data, fine = held["data"], held.get("labels", held.get("fine_labels"))
    # A pickle may hold anything of any shape, also under the right names.
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_CIFAR_BYTES,)
    if not whole or not isinstance(fine, list) or len(fine) != len(data):
        msg = f"'{entry.name}' is a pickle, and not one of CIFAR's: expected 'data' (N, 3072) and N 'labels'."
        raise LayoutError(msg)
    labels = {"labels": np.array(fine, np.int64)}
    if "coarse_labels" in held:
        labels["coarse"] = np.array(held["coarse_labels"], np.int64)
    images = rows_of_array(data.reshape(-1, *_CIFAR_SHAPE), entry.name, stamp_of(entry))
    return map_samples(images, _channels_last), labels


def _binary_batch(source: Source, entry: FileEntry) -> _Batch:
    # CIFAR-100 has two labels before each image: of the coarse class, and of the class.
    ahead = 1 if _BATCH_BIN.match(posixpath.basename(entry.name)) else 2
    # Records have no header and no separator: only their length tells where each begins.
    step = ahead + _CIFAR_BYTES
    content = open_unpacked(source.tree, entry)
    if not content.size or content.size % step:
        msg = f"'{entry.name}' has {content.size:,} bytes; CIFAR's files have {step:,} for each image."
        raise LayoutError(msg)
    count = content.size // step
    table = np.frombuffer(content.pread(content.size, 0), np.uint8).reshape(count, step)
    labels = {"labels": table[:, ahead - 1].astype(np.int64)}
    if ahead == 2:
        labels["coarse"] = table[:, 0].astype(np.int64)
    images = rows_of_file(content, ahead, count, _CIFAR_SHAPE, _PIXEL, stamp=stamp_of(entry), step=step)
    return map_samples(images, _channels_last), labels


def _stl_array(source: Source, entry: FileEntry) -> StoredArray:
    content, name = open_unpacked(source.tree, entry), entry.name.removesuffix(".bin")
    if name.endswith("y"):
        # The file counts from 1, as MATLAB does.
        labels = np.frombuffer(content.pread(content.size, 0), np.uint8).astype(np.int64) - 1
        return StoredArray.in_memory(name, labels, stamp_of(entry))
    stored = rows_of_file(content, 0, content.size // _STL_BYTES, _STL_SHAPE, _PIXEL, stamp=stamp_of(entry))
    # An image is stored column by column.
    return _images(name, _STL_SHAPE, map_samples(stored, lambda image: np.ascontiguousarray(image.transpose(2, 1, 0))))


def _channels_last(image: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def _images(name: str, shape: tuple[int, ...], source: SampleSource) -> StoredArray:
    """Return the images of a source, which were stored with channels first."""
    shape = (len(source), *shape[1:], shape[0])
    return StoredArray(
        name, shape, _PIXEL, lambda: source, lambda: np.stack([np.asarray(source.read(n)) for n in range(len(source))])
    )


class _Unpickler(pickle.Unpickler):
    """An unpickler that creates arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            msg = f"it asks for {module}.{name}"
            raise pickle.UnpicklingError(msg)
        return _HARMLESS[module, name]


def _unpickle(content: bytes, name: str) -> dict[str, Any]:
    try:
        # As bytes, because CIFAR was pickled by Python 2, whose texts are not all ASCII.
        held = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to say
        msg = (
            f"'{name}' has the name of a CIFAR file and cannot be read as one: {error}. Nothing in a pickle that "
            "could run a program is ever loaded here."
        )
        raise LayoutError(msg) from error
    if not isinstance(held, dict):
        msg = f"'{name}' is a pickle, and not one of CIFAR's: it holds no dict."
        raise LayoutError(msg)
    return {_as_text(key): value for key, value in held.items()}


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
