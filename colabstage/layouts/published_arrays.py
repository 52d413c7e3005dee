"""Arrays in the files that well-known datasets are published as, which no format of arrays or of images has.

MNIST's idx, CIFAR's pickles and .bin and STL10's .bin become arrays with the names that `row_arrays` understands.
CIFAR's pickles are opened by an unpickler that knows arrays, texts, numbers, lists and dicts, and calls nothing else:
a file that asks for more is refused.

Tables that hold the pixels of images themselves, Kaggle's digits (a column for each pixel) and FER2013 (one for all),
are a layout of their own. Lines are found in one pass over the file, and a line's pixels are read when it is packed.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import posixpath
import re
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.columns import class_numbers
from colabstage.layouts.names import IMAGE_EXTENSIONS, folder_of, split_name
from colabstage.layouts.reading import decode_text, open_unpacked, read_file, read_texts
from colabstage.layouts.shards import ShardFile, ShardParts
from colabstage.layouts.stored_arrays import ConvertedRows, HeldRows, StoredArray, fixed_rows, join_sources
from colabstage.layouts.table import (
    BrokenDatasetError,
    Images,
    NearMissError,
    SampleTable,
    Values,
    known_splits,
    stamp_of,
)
from colabstage.trees.entries import files_ending_in
from colabstage.trees.strings import StringArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleSource
    from colabstage.trees.tree import ByteSource, FileEntry, Tree


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


def published_files(tree: Tree) -> list[FileEntry]:
    """Return the files of a tree that have the names of these datasets' files."""
    # A look at endings spares one at each of a million names.
    return [entry for entry in files_ending_in(tree.entries, _ENDINGS) if _format_of(entry, tree)]


def published_arrays(tree: Tree) -> list[StoredArray]:
    """Return the arrays of all these files, batches of one split joined.

    Raises:
        LayoutError: a file is not what its name says.
    """
    by_kind: dict[str, list[FileEntry]] = {}
    for entry in published_files(tree):
        by_kind.setdefault(_format_of(entry, tree), []).append(entry)
    readers = {"idx": _idx_arrays, "pickle": _pickled_arrays, "bin": _cifar_arrays, "stl": _stl_arrays}
    found = [array for kind, read in readers.items() if kind in by_kind for array in read(tree, by_kind[kind])]
    folders = {posixpath.dirname(entry.name) for kind in ("bin", "stl") for entry in by_kind.get(kind, ())}
    texts = files_ending_in(tree.entries, (".txt",) if folders else ())
    lists = texts.where(lambda name: posixpath.dirname(name) in folders and posixpath.basename(name) in _NAME_LISTS)
    for name, text in read_texts(tree, lists).items():
        folder, base = posixpath.split(name)
        found.append(_known(posixpath.join(folder, _NAME_LISTS[base]), np.array(text.split())))
    return found


# By names, because pickles and .bin files begin with nothing that tells whose they are.
def _format_of(entry: FileEntry, tree: Tree) -> str:
    base, folder = posixpath.basename(entry.name), folder_of(entry.name) or tree.label
    if _IDX.search(base.lower()):
        return "idx"
    if _BATCH.match(base) or (base in ("train", "test", "meta") and "cifar-100" in folder):
        return "pickle"
    if _BATCH_BIN.match(base) or (base in ("train.bin", "test.bin") and "cifar-100" in folder):
        return "bin"
    return "stl" if _STL.match(base) and entry.size % (_STL_BYTES if "_X" in base else 1) == 0 else ""


def _idx_arrays(tree: Tree, entries: Sequence[FileEntry]) -> list[StoredArray]:
    # torchvision keeps the .gz beside the unpacked file, and Kaggle's MNIST has each file under two names.
    once = {posixpath.basename(entry.name).lower().removesuffix(".gz").replace(".", "-"): entry for entry in entries}
    return [_read_idx(tree, entry) for entry in sorted(once.values(), key=lambda entry: entry.name)]


def _read_idx(tree: Tree, entry: FileEntry) -> StoredArray:
    source = open_unpacked(tree, entry)
    # Two zeros, a code for the type, the number of axes; then the length of each axis.
    head = source.pread(4, 0)
    dtype = _IDX_DTYPES.get(head[2]) if len(head) == 4 and head[:2] == b"\0\0" else None
    sides = source.pread(4 * head[3], 4) if dtype else b""
    if dtype is None or not head[3] or len(sides) != 4 * head[3]:
        msg = f"'{entry.name}' is not an idx file (the format of MNIST): it begins with {head!r}."
        raise LayoutError(msg)
    shape = struct.unpack(f">{head[3]}I", sides)
    stored, start = np.dtype(dtype), 4 + len(sides)
    # Sides come from the file: as Python's numbers they cannot overflow to a size that fits.
    size = int(np.prod(shape[1:], dtype=object)) * stored.itemsize
    # The format has no checksum, so its length is the only proof that a download is complete.
    if source.size != start + shape[0] * size:
        msg = (
            f"'{entry.name}' has {source.size:,} bytes; an idx file of shape {shape} takes {start + shape[0] * size:,}."
        )
        raise LayoutError(msg)
    # idx files are big-endian, which torch refuses.
    native = stored.newbyteorder("=")

    return StoredArray(
        entry.name,
        shape,
        native,
        lambda: fixed_rows(source, start, shape[0], shape[1:], stored, stamp=stamp_of(entry)),
        lambda: np.frombuffer(source.pread(shape[0] * size, start), stored).astype(native).reshape(shape),
    )


class _CifarFile(NamedTuple):
    """The images and labels of one file of CIFAR."""

    split: str
    images: SampleSource
    """`(32, 32, 3)` each."""
    labels: dict[str, NDArray[np.int64]]
    """Numbers of classes, by the name of the array."""


def _pickled_arrays(tree: Tree, entries: Sequence[FileEntry]) -> list[StoredArray]:
    batches: dict[str, list[_CifarFile]] = {}
    found: list[StoredArray] = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        folder = posixpath.dirname(entry.name)
        content = read_file(tree, entry)
        held = _unpickle(content, entry.name)
        names = held.get("label_names", held.get("fine_label_names"))
        if names is not None:
            texts = np.array([_as_text(name) for name in names])
            found.append(_known(posixpath.join(folder, "label_names"), texts))
        elif "data" in held:
            batches.setdefault(folder, []).append(_read_batch(tree, entry, content, held))
    return [array for folder, parts in batches.items() for array in _joined_batches(folder, parts)] + found


def _read_batch(tree: Tree, entry: FileEntry, content: bytes, held: dict[str, Any]) -> _CifarFile:
    data, fine = held["data"], held.get("labels", held.get("fine_labels"))
    # A pickle may hold anything of any shape, also under the right names.
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_CIFAR_BYTES,)
    if not whole or not isinstance(fine, list) or len(fine) != len(data):
        msg = f"'{entry.name}' is a pickle, and not one of CIFAR's: expected 'data' (N, 3072) and N 'labels'."
        raise LayoutError(msg)
    labels = {"labels": np.array(fine, np.int64)}
    if "coarse_labels" in held:
        labels["coarse"] = np.array(held["coarse_labels"], np.int64)
    # In a pickle of Python 2 the pixels are stored as they are. So they can be read from the file when they are packed,
    # and need not stay in memory until then.
    start = content.find(data.tobytes()) if len(data) else -1
    if start < 0:
        source: SampleSource = HeldRows(data.reshape(-1, *_CIFAR_SHAPE), entry.name, stamp_of(entry))
    else:
        file = open_unpacked(tree, entry)
        source = fixed_rows(file, start, len(data), _CIFAR_SHAPE, _PIXEL, stamp=stamp_of(entry))
    return _CifarFile(_split_of_batch(entry), ConvertedRows(source, _channels_last), labels)


def _split_of_batch(entry: FileEntry) -> str:
    return "test" if posixpath.basename(entry.name).startswith("test") else "train"


def _channels_last(image: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def _joined_batches(folder: str, parts: Sequence[_CifarFile]) -> list[StoredArray]:
    """Return one array of images, and one of each kind of labels, for each split."""
    found = []
    for split in dict.fromkeys(part.split for part in parts):
        own = [part for part in parts if part.split == split]
        shape = (sum(len(part.images) for part in own), *_CIFAR_SHAPE[1:], _CIFAR_SHAPE[0])
        name = posixpath.join(folder, f"{split}_data")
        found.append(_stored_images(name, shape, join_sources([part.images for part in own])))
        found += [
            _known(posixpath.join(folder, f"{split}_{kind}"), np.concatenate([part.labels[kind] for part in own]))
            for kind in own[0].labels
        ]
    return found


def _stored_images(name: str, shape: tuple[int, ...], source: SampleSource) -> StoredArray:
    def whole() -> NDArray[Any]:
        return np.stack([np.asarray(source.read(row)) for row in range(len(source))])

    return StoredArray(name, shape, np.dtype(np.uint8), lambda: source, whole)


def _known(name: str, values: NDArray[Any]) -> StoredArray:
    """Return an array that is in memory already: labels, names of classes."""

    def refuse() -> SampleSource:
        msg = f"'{name}' holds labels; expected images as inputs."
        raise LayoutError(msg)

    return StoredArray(name, values.shape, values.dtype, refuse, lambda: values)


def _cifar_arrays(tree: Tree, entries: Sequence[FileEntry]) -> list[StoredArray]:
    batches: dict[str, list[_CifarFile]] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
        # CIFAR-100 has two labels before each image: of the coarse class, and of the class.
        ahead = 1 if _BATCH_BIN.match(posixpath.basename(entry.name)) else 2
        # Records have no header and no separator: only their length tells where each begins.
        step = ahead + _CIFAR_BYTES
        source = open_unpacked(tree, entry)
        if not source.size or source.size % step:
            msg = f"'{entry.name}' has {source.size:,} bytes; CIFAR's files have {step:,} for each image."
            raise LayoutError(msg)
        count = source.size // step
        table = np.frombuffer(source.pread(source.size, 0), np.uint8).reshape(count, step)
        labels = {"labels": table[:, ahead - 1].astype(np.int64)}
        if ahead == 2:
            labels["coarse"] = table[:, 0].astype(np.int64)
        images = fixed_rows(source, ahead, count, _CIFAR_SHAPE, _PIXEL, stamp=stamp_of(entry), step=step)
        batch = _CifarFile(_split_of_batch(entry), ConvertedRows(images, _channels_last), labels)
        batches.setdefault(posixpath.dirname(entry.name), []).append(batch)
    return [array for folder, parts in batches.items() for array in _joined_batches(folder, parts)]


def _stl_arrays(tree: Tree, entries: Sequence[FileEntry]) -> list[StoredArray]:
    found = []
    for entry in entries:
        source, name = open_unpacked(tree, entry), entry.name.removesuffix(".bin")
        if name.endswith("y"):
            # The file counts from 1, as MATLAB does.
            found.append(_known(name, np.frombuffer(source.pread(source.size, 0), np.uint8).astype(np.int64) - 1))
            continue
        count = source.size // _STL_BYTES
        stored = fixed_rows(source, 0, count, _STL_SHAPE, _PIXEL, stamp=stamp_of(entry))
        # An image is stored column by column.
        rows = ConvertedRows(stored, lambda image: np.ascontiguousarray(image.transpose(2, 1, 0)))
        found.append(_stored_images(name, (count, *_STL_SHAPE[1:], _STL_SHAPE[0]), rows))
    return found


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


PIXEL_TABLE = "pixel_table"

# A header of 28 x 28 x 3 named columns and one row of them.
_HEAD_BYTES = 256 * 1024
_READ_BYTES = 8 * 1024 * 1024
# pixel0 and pixel0001, or 1x1 for a row and a column.
_PIXEL_COLUMN = re.compile(r"pixel_?\d+|\d+x\d+")
# Fewer columns with such names are some other measurement.
_FEWEST = 16
# In the order in which they are believed: "y" may also be a coordinate.
_LABELS = ("label", "class", "emotion", "target", "y")
# The splits of FER2013, two of which are called tests.
_USAGE = {"training": "train", "publictest": "val", "privatetest": "test"}


class _PixelColumns(NamedTuple):
    """The roles of a table's columns, by number."""

    pixels: slice
    """The columns of pixels, or the one column of all pixels."""
    shape: tuple[int, ...]
    """That of an image."""
    in_one: bool
    """Whether one column holds all pixels, separated by blanks."""
    label: int | None
    """The column of classes."""
    usage: int | None
    """The column of splits."""


class _Table(NamedTuple):
    """One table, N rows."""

    name: str
    shape: tuple[int, ...]
    """The shape of each image."""
    images: SampleSource
    """The images, of which each line is parsed when it is packed: all pixels in memory would be several times the
    pack."""
    labels: list[int] | None
    """Their classes."""
    splits: list[str]
    """Their splits, "" for none."""


def read_pixel_table(tree: Tree) -> SampleTable:
    """Make a table of .csv files whose rows are images: square, of one or three channels, with a class or none.

    Raises:
        EmptySourceError: there is no such table.
        NearMissError: there is one without a header.
        LayoutError: there are images as files beside it.
        BrokenDatasetError: a row's class is not a number, or a split cannot be told.
    """
    found = []
    bare = ""
    tables = files_ending_in(tree.entries, (".csv", ".gz"))
    for entry in tables.where(lambda name: name.lower().removesuffix(".gz").endswith(".csv")):
        # Opened before it is known to be such a table, because a .csv.gz shows its header only unpacked.
        source = open_unpacked(tree, entry)
        head = source.pread(_HEAD_BYTES, 0)
        columns = _read_columns(head)
        if columns is not None:
            found.append(_read_rows(source, entry, columns))
        elif _is_bare(head):
            bare = bare or entry.name
    if not found and bare:
        msg = (
            f"'{bare}' has numbers in its first line, as many as a square image has and its class, and no header that "
            "says so. Write one above it: label,pixel0,pixel1, and so on."
        )
        raise NearMissError(msg)
    if not found:
        msg = f"'{tree.label}' holds no table of pixels (.csv with columns label, pixel0, … or label, pixels)."
        raise EmptySourceError(msg)
    # Whichever is taken, the other may be the dataset; numbers beside photographs are mostly measurements of them.
    if files_ending_in(tree.entries, IMAGE_EXTENSIONS):
        msg = f"'{tree.label}' holds images as files beside '{found[0].name}', which holds pixels."
        raise LayoutError(msg)
    # Kaggle's test sets have no classes, so there is nothing to train on or to compare with.
    labelled = [one for one in found if one.labels is not None] or found
    shapes = {one.shape: one.name for one in labelled}
    if len(shapes) > 1:
        told = ", ".join(f"'{name}' {shape}" for shape, name in shapes.items())
        msg = f"Tables hold images of different shapes ({told}). Stage one of them."
        raise BrokenDatasetError(msg)
    splits = [split for one in labelled for split in one.splits]
    # Rows of a table without a split would belong to none of the files that are made.
    if not all(splits) and any(splits):
        msg = f"Some tables are called after a split and others not: {', '.join(one.name for one in labelled)}."
        raise BrokenDatasetError(msg)
    labels = [label for one in labelled for label in one.labels or ()]
    values = np.array(labels, np.int64)
    left = [one.name for one in found if one not in labelled]
    return SampleTable(
        layout=PIXEL_TABLE,
        keys=tuple(one.images.name(row) for one in labelled for row in range(len(one.images))),
        inputs=Images(join_sources([one.images for one in labelled]), decoded=True, own_channels=True),
        targets=Values(values) if labels else None,
        splits=known_splits(splits),
        classes=class_numbers(values) if labels else (),
        notes=(f"Tables without classes were left out: {', '.join(left)}.",) if left else (),
    )


def _read_columns(head: bytes) -> _PixelColumns | None:
    """Return the roles of columns according to the header; `None` where a table has no pixels."""
    header, _, rest = head.partition(b"\n")
    names = [name.strip().strip('"').lower() for name in decode_text(header).split(",")]
    label = next((names.index(name) for name in _LABELS if name in names), None)
    usage = names.index("usage") if "usage" in names else None
    if "pixels" in names:
        at = names.index("pixels")
        cells = _cells(rest.partition(b"\n")[0])
        # The first row tells for all; one that differs is an error that names it when it is read.
        count = len(cells[at].split()) if at < len(cells) else 0
        shape = _shape(count)
        return None if shape is None else _PixelColumns(slice(at, at + 1), shape, True, label, usage)
    numbers = [number for number, name in enumerate(names) if _PIXEL_COLUMN.fullmatch(name)]
    shape = _shape(len(numbers))
    # The pixels of a row are cut out as one slice.
    if shape is None or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    return _PixelColumns(slice(numbers[0], numbers[-1] + 1), shape, False, label, usage)


def _is_bare(head: bytes) -> bool:
    """Tell whether a table without a header has a class and the pixels of an image in each line."""
    cells = _cells(head.partition(b"\n")[0])
    return all(cell.isdigit() for cell in cells) and _shape(len(cells) - 1) is not None


def _shape(count: int) -> tuple[int, ...] | None:
    """Return the shape of a square image with this number of values; `None` where there is none."""
    # The count alone tells grey from colour: three times a square is never a square.
    for channels in (1, 3):
        side = math.isqrt(count // channels)
        # Tables do not say height and width, so only squares can be told.
        if count >= _FEWEST and side * side * channels == count:
            return (side, side) if channels == 1 else (side, side, channels)
    return None


def _cells(line: bytes) -> list[bytes]:
    return [cell.strip().strip(b'"') for cell in line.split(b",")]


def _read_rows(source: ByteSource, entry: FileEntry, columns: _PixelColumns) -> _Table:
    parts, labels, splits = array("q"), [], []
    name = re.sub(r"\.csv(\.gz)?$", "", posixpath.basename(entry.name), flags=re.IGNORECASE)
    own = split_name(name).split
    for start, line in _lines_of(source):
        parts.extend((0, start, len(line)))
        # As an editor counts: the header is line 1.
        number = len(parts) // 3 + 1
        if columns.label is not None:
            cell = _cell_of_line(line, columns.label)
            # Words could be numbered here, but a word in this column of numbers is a row that slipped.
            if not cell.isdigit():
                msg = f"Line {number} of '{entry.name}' has the class {cell.decode(errors='replace')!r}, no number."
                raise BrokenDatasetError(msg)
            labels.append(int(cell))
        splits.append(own)
        if columns.usage is not None:
            usage = _cell_of_line(line, columns.usage).decode("utf-8", "replace")
            splits[-1] = _USAGE.get(usage.lower()) or split_name(usage).split
            if not splits[-1]:
                msg = f"Line {number} of '{entry.name}' has the usage {usage!r}, which is not a known split."
                raise BrokenDatasetError(msg)
    names = StringArray.of(f"{entry.name}[{row}]" for row in range(len(parts) // 3))
    file = ShardFile(entry.name, stamp_of(entry), source)
    lines = ShardParts([file], np.frombuffer(parts, np.int64).reshape(-1, 3), names)
    images = ConvertedRows(lines, functools.partial(_pixels_of, columns))
    return _Table(entry.name, columns.shape, images, labels if columns.label is not None else None, splits)


def _cell_of_line(line: bytes, number: int) -> bytes:
    # A line may have thousands of cells, so it is split no further than necessary.
    parts = line.split(b",", number + 1)
    return parts[number].strip().strip(b'"') if number < len(parts) else b""


def _lines_of(source: ByteSource) -> Iterator[tuple[int, bytes]]:
    """Yield each line after the header, with the position of its first byte."""
    # In pieces, because a table of images may have gigabytes. Only positions of lines are kept.
    held, start, position, is_header = b"", 0, 0, True
    while True:
        data = source.pread(min(_READ_BYTES, source.size - position), position) if position < source.size else b""
        position += len(data)
        lines = (held + data).split(b"\n")
        held = lines.pop()
        if not data and held:
            lines, held = [held], b""
        for line in lines:
            if line.strip() and not is_header:
                yield start, line
            is_header = False
            start += len(line) + 1
        if not data:
            return


def _pixels_of(columns: _PixelColumns, line: bytes) -> NDArray[np.uint8]:
    """Return the image of one line.

    Raises:
        DecodeError: it has other numbers than the pixels of an image.
    """
    cells = _cells(line)[columns.pixels]
    if columns.in_one:
        cells = cells[0].split() if cells else []
    try:
        # `bytes` refuses what is not from 0 to 255, which numpy would wrap around.
        pixels = bytes(map(int, cells))
    except ValueError as error:
        msg = f"A pixel is not a whole number from 0 to 255: {error}."
        raise DecodeError(msg) from error
    if len(pixels) != math.prod(columns.shape):
        msg = f"The row has {len(pixels):,} pixels, expected {math.prod(columns.shape):,}."
        raise DecodeError(msg)
    return np.frombuffer(pixels, np.uint8).reshape(columns.shape)
