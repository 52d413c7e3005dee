"""The files that well-known datasets are published as, which no format of arrays or of images has.

MNIST's idx, CIFAR's pickles and .bin and STL10's .bin become arrays with the names that `arrays` understands. Tables of
pixels are images: those of Kaggle's digits, a column for each pixel, and FER2013, one for all. CIFAR's pickles are
opened by an unpickler that knows arrays, texts, numbers, lists and dicts, and calls nothing else: a file that asks for
more is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import posixpath
import re
import struct
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.columns import class_numbers, show
from colabstage.layouts.evidence import Evidence, near
from colabstage.layouts.faults import broken
from colabstage.layouts.reading import decode_text, open_member, open_unpacked
from colabstage.layouts.samples import join_samples, map_samples, rows_of_array, rows_of_file, stamp_of
from colabstage.layouts.shards import ShardFile, ShardParts
from colabstage.layouts.stored import StoredArray
from colabstage.layouts.table import Images, SampleTable, Values, known_splits
from colabstage.layouts.words import IMAGES, folder_of, split_name
from colabstage.trees.bytes import SourceFile
from colabstage.trees.listing import only_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import SampleSource
    from colabstage.trees.bytes import ByteSource
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
    labels = {"labels": fine} | ({"coarse": held["coarse_labels"]} if "coarse_labels" in held else {})
    images = rows_of_array(data.reshape(-1, *_CIFAR_SHAPE), entry.name, stamp_of(entry))
    return map_samples(images, _channels_last), {kind: np.array(each, np.int64) for kind, each in labels.items()}


def _binary_batch(source: Source, entry: FileEntry) -> _Batch:
    # CIFAR-100 has two labels before each image: of the coarse class, and of the class.
    kinds = ("labels",) if _BATCH_BIN.match(posixpath.basename(entry.name)) else ("coarse", "labels")
    # Records have no header and no separator: only their length tells where each begins.
    step = len(kinds) + _CIFAR_BYTES
    content = open_unpacked(source.tree, entry)
    if not content.size or content.size % step:
        msg = f"'{entry.name}' has {content.size:,} bytes; CIFAR's files have {step:,} for each image."
        raise LayoutError(msg)
    count = content.size // step
    table = np.frombuffer(content.pread(content.size, 0), np.uint8).reshape(count, step)
    labels = {kind: table[:, place].astype(np.int64) for place, kind in enumerate(kinds)}
    images = rows_of_file(content, len(kinds), count, _CIFAR_SHAPE, _PIXEL, stamp=stamp_of(entry), step=step)
    return map_samples(images, _channels_last), dict(sorted(labels.items(), reverse=True))


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


# --- tables of pixels -------------------------------------------------------------------------------------------------

PIXELS = "pixel_table"
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
    """The columns of pixels, or the one column of all pixels, separated by blanks."""
    shape: tuple[int, ...]
    label: int | None
    usage: int | None


class _Table(NamedTuple):
    """One table, N rows; each line of pixels is parsed when it is packed, because all in memory would be several times
    the pack."""

    name: str
    shape: tuple[int, ...]
    images: SampleSource
    labels: list[int]
    """Empty where it has none."""
    splits: list[str]


def pixels_state(source: Source) -> Found:
    """Read .csv files whose rows are images: square, of one or three channels, with a class or none."""
    found: list[_Table] = []
    tables = source.ending_in((".csv", ".gz"))
    for entry in tables.where(lambda name: name.lower().removesuffix(".gz").endswith(".csv")):
        # A .csv.gz shows its header only unpacked.
        packed = open_unpacked(source.tree, entry) if entry.name.lower().endswith(".gz") else None
        head = source.head(entry, _HEAD_BYTES) if packed is None else packed.pread(_HEAD_BYTES, 0)
        columns = _read_columns(entry.name, head)
        if columns is not None:
            found.append(_read_rows(packed or open_member(source.tree, entry), entry, columns))
            continue
        cells = _cells(head.partition(b"\n")[0])
        if all(cell.isdigit() for cell in cells) and _shape(len(cells) - 1) is not None:
            return near(
                f"'{entry.name}' has numbers in its first line, as many as a square image has and its class, and no "
                "header that says so. Write one above it: label,pixel0,pixel1, and so on."
            )
    if not found:
        msg = f"'{source.label}' holds no table of pixels (.csv with columns label, pixel0, … or label, pixels)."
        raise EmptySourceError(msg)
    # Whichever is taken, the other may be the dataset; numbers beside photographs are mostly measurements of them.
    if source.ending_in(IMAGES):
        msg = f"'{source.label}' holds images as files beside '{found[0].name}', which holds pixels."
        raise LayoutError(msg)
    # Kaggle's test sets have no classes, so there is nothing to train on or to compare with.
    labelled = [one for one in found if one.labels] or found
    shapes = {one.shape: one.name for one in labelled}
    if len(shapes) > 1:
        told = ", ".join(f"'{name}' {shape}" for shape, name in shapes.items())
        only = only_line(source.tree, labelled[0].name)
        raise broken(source.label, f"its tables hold images of different shapes ({told}); stage one of them, {only}")
    splits = [split for one in labelled for split in one.splits]
    # Rows of a table without a split would belong to none of the files that are made.
    if not all(splits) and any(splits):
        names = ", ".join(one.name for one in labelled)
        raise broken(source.label, f"some of its tables are called after a split and others not ({names})")
    values = np.array([label for one in labelled for label in one.labels], np.int64)
    left = [one.name for one in found if one not in labelled]
    table = SampleTable(
        layout=PIXELS,
        keys=tuple(one.images.name(row) for one in labelled for row in range(len(one.images))),
        inputs=Images(join_samples([one.images for one in labelled]), decoded=True, own_channels=True),
        targets=Values(values) if len(values) else None,
        splits=known_splits(splits),
        classes=class_numbers(values),
        notes=(f"Tables without classes were left out: {', '.join(left)}.",) if left else (),
    )
    return Evidence(table, "a table of pixels", frozenset(one.name for one in found))


def _read_columns(table: str, head: bytes) -> _PixelColumns | None:
    """Return the roles of columns according to the header of a table; `None` where it has no pixels."""
    header, _, rest = head.partition(b"\n")
    names = [name.strip().strip('"').lower() for name in decode_text(header).split(",")]
    numbers = [number for number, name in enumerate(names) if _PIXEL_COLUMN.fullmatch(name)]
    count = len(numbers)
    if "pixels" in names:
        numbers = [names.index("pixels")]
        # The first row tells for all; one that differs is an error that names it when it is read.
        count = len(_cell(rest.partition(b"\n")[0], numbers[0]).split())
    shape = _shape(count)
    # The pixels of a row are cut out as one slice.
    if shape is None or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    places = [tuple(map(int, re.findall(r"\d+", names[number]))) for number in numbers]
    odd = next((at for at in range(1, len(places)) if not _follows(*places[at - 1 : at + 1])), None)
    if odd is not None:
        first, second = (names[numbers[at]] for at in (odd - 1, odd))
        raise broken(table, f"'{second}' follows '{first}'", "the columns of all pixels, in their order")
    label = next((names.index(name) for name in _LABELS if name in names), None)
    usage = names.index("usage") if "usage" in names else None
    return _PixelColumns(slice(numbers[0], numbers[-1] + 1), shape, label, usage)


def _follows(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Tell whether a pixel is the next one: a number, or a row and a column."""
    *row, column = one
    return other == (*row, column + 1) or (len(row) == 1 and other[:-1] == (row[0] + 1,))


def _shape(count: int) -> tuple[int, ...] | None:
    """Return the shape of a square image with this number of values; `None` where there is none."""
    # The count alone tells grey from colour: three times a square is never a square.
    for channels in (1, 3):
        side = math.isqrt(max(count, 0) // channels)
        # Tables do not say height and width, so only squares can be told.
        if count >= _FEWEST and side * side * channels == count:
            return (side, side) if channels == 1 else (side, side, channels)
    return None


def _cells(line: bytes) -> list[bytes]:
    return [cell.strip().strip(b'"') for cell in line.split(b",")]


def _cell(line: bytes, number: int) -> bytes:
    # A line may have thousands of cells, so it is split no further than necessary.
    parts = line.split(b",", number + 1)
    return parts[number].strip().strip(b'"') if number < len(parts) else b""


def _read_rows(source: ByteSource, entry: FileEntry, columns: _PixelColumns) -> _Table:
    parts, labels, splits = array("q"), [], []
    name = re.sub(r"\.csv(\.gz)?$", "", posixpath.basename(entry.name), flags=re.IGNORECASE)
    own = split_name(name).split
    for start, line in _lines_of(source):
        parts.extend((0, start, len(line)))
        # As an editor counts: the header is line 1.
        number = len(parts) // 3 + 1
        if columns.label is not None:
            # pandas writes a column of numbers as floats where one of them was missing once.
            cell = _cell(line, columns.label).removesuffix(b".0")
            # Words could be numbered here, but a word in this column of numbers is a row that slipped.
            if not cell.isdigit() or len(cell) > 18:
                what = f"it has the class {show(cell.decode(errors='replace'))!r}"
                raise broken(entry.name, what, "a number", line=number)
            labels.append(int(cell))
        usage = "" if columns.usage is None else _cell(line, columns.usage).decode("utf-8", "replace")
        splits.append(own if columns.usage is None else _USAGE.get(usage.lower()) or split_name(usage).split)
        if columns.usage is not None and not splits[-1]:
            raise broken(entry.name, f"it has the usage {show(usage)!r}, which is not a known split", line=number)
    names = [f"{entry.name}[{row}]" for row in range(len(parts) // 3)]
    file = ShardFile(entry.name, stamp_of(entry), lambda: source)
    lines = ShardParts([file], np.frombuffer(parts, np.int64).reshape(-1, 3), names)
    return _Table(entry.name, columns.shape, map_samples(lines, partial(_pixels_of, columns)), labels, splits)


def _lines_of(source: ByteSource) -> Iterator[tuple[int, bytes]]:
    """Yield each line after the header, with the position of its first byte."""
    position = 0
    # One by one, because a table of images may have gigabytes. Only positions of lines are kept.
    for number, line in enumerate(io.BufferedReader(SourceFile(source), _READ_BYTES)):
        if number and line.strip():
            yield position, line.removesuffix(b"\n")
        position += len(line)


def _pixels_of(columns: _PixelColumns, line: bytes) -> NDArray[np.uint8]:
    """Return the image of one line."""
    cells = _cells(line)[columns.pixels]
    cells = cells[0].split() if len(cells) == 1 else cells
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
