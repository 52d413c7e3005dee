"""Arrays in .npy, .npz and HDF5 files from other programs, and audio clips as rows of one length: only headers are read
until they are packed. MATLAB's .mat 7.3 are HDF5 files.
"""

from __future__ import annotations

import ast
import functools
import io
import math
import struct
import threading
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, PackFormatError
from colabstage.h5.schema import FORMAT_ATTRIBUTE
from colabstage.h5.untrusted import (
    estimate_bytes,
    follow,
    home_of,
    open_alone,
    open_with_any_locking,
    unwritten_part,
)
from colabstage.io.arguments import check_choice, whole_number
from colabstage.io.files import read_with_retry
from colabstage.io.packages import refuse_import
from colabstage.io.units import format_count
from colabstage.layouts.reading import broken, in_place, open_member, read_each, read_head
from colabstage.layouts.table import (
    Arrays,
    Content,
    SampleSource,
    concatenate_runs,
    join_samples,
    map_samples,
    numbered_samples,
    rows_of_array,
    rows_of_file,
    stamp_of,
)
from colabstage.layouts.words import CLASS_LISTS
from colabstage.trees.bytes import HEAD_BYTES, SourceFile, image_ending
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree


NPY = ".npy"
# Nobody writes a longer header; numpy's own limit is 10,000 characters.
MAX_HEADER_BYTES = 64 * 1024
OF_MATLAB = "it is a cell array, a struct or an object of MATLAB; save numbers of one shape, or words by char(…)"


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that has not been read yet."""

    name: str
    """Where it is: the file, and the key in it."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As its rows are returned; native byte order. Text has dtype kind "U", "S" or "O"."""
    rows: Callable[[], SampleSource]
    """Opens it as a source of its rows, along the first axis."""
    whole: Callable[[], NDArray[Any]]
    trouble: str = ""
    """Why it cannot be read at all; "" if it can."""
    parts: tuple[StoredArray, ...] = ()
    """The arrays that it joins, if it spans several files."""
    remark: str = ""
    """What its values are not: written, or what a file says that they stand for."""
    is_turned: bool = False
    """Whether its rows are along the last of MATLAB's three axes or more, as its own programs store images."""
    are_files: bool = False
    """Whether its rows are the bytes of image files."""

    @classmethod
    def joined(cls, name: str, parts: Sequence[StoredArray]) -> StoredArray:
        return cls(
            name,
            (sum(part.shape[0] for part in parts), *parts[0].shape[1:]),
            parts[0].dtype,
            lambda: join_samples([part.rows() for part in parts]),
            lambda: np.concatenate([part.whole() for part in parts]),
            next(filter(None, (part.trouble for part in parts)), ""),
            tuple(parts),
        )

    @property
    def is_text(self) -> bool:
        return self.dtype.kind in "USO"

    @classmethod
    def in_memory(cls, name: str, values: NDArray[Any], stamp: str, trouble: str = "") -> StoredArray:
        """Return an array that was read from a file with such a stamp."""
        rows = functools.partial(rows_of_array, values, name, stamp)
        return cls(name, values.shape, values.dtype, rows, lambda: values, trouble)


# --- .npy and .npz ----------------------------------------------------------------------------------------------------


class NpyHeader(NamedTuple):
    """The header of a .npy file: shape, type in the file's byte order, whether columns are contiguous, and the first
    byte of the values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int

    @property
    def trouble(self) -> str:
        if self.dtype.hasobject:
            how = "save numbers or words of one shape, numpy.array(values.tolist())"
            return f"it holds pickled Python objects, which may run code and are never loaded; {how}"
        names = self.dtype.names
        return "" if names is None else f"it holds records ({', '.join(names)}); save each field as an array"


def npy_header(head: bytes) -> NpyHeader:
    """Return what the first bytes of a .npy file say; raise `ValueError` if they are not a header."""
    # By its content: a file called .npy may be anything.
    if len(head) < 10 or head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        msg = "is not a .npy file of a version known here"
        raise ValueError(msg)
    begin = 12 if head[6] > 1 else 10
    (length,) = struct.unpack_from("<I" if head[6] > 1 else "<H", head, 8)
    try:
        text = head[begin : begin + length].decode("utf-8" if head[6] == 3 else "latin-1")
        return NpyHeader(*_header_facts(text.strip()), begin + length)
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        msg = f"has a header that cannot be read: {error}"
        raise ValueError(msg) from error


_parsing = threading.Lock()


# A dataset's files mostly share one header, so it is parsed once. Python's parser should be avoided while threads work:
# 3.11 counts its depth in one place for all of them, and sometimes fails with a SystemError when two parse at once.
@functools.lru_cache(maxsize=64)
def _header_facts(text: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    with _parsing:
        # Evaluated as a literal, never as code: the header comes with the data.
        found = ast.literal_eval(text)
    dtype = np.lib.format.descr_to_dtype(found["descr"])
    return tuple(int(size) for size in found["shape"]), dtype, bool(found["fortran_order"])


def read_npy(tree: Tree, entry: FileEntry, name: str) -> StoredArray:
    """Return what a .npy file holds; only its header is read."""
    try:
        header = npy_header(read_with_retry(lambda: read_head(tree, entry, MAX_HEADER_BYTES), entry.name))
    except ValueError as error:
        msg = f"'{name}' {error}."
        raise LayoutError(msg) from error
    shape, dtype, fortran, start = header
    # In Python's integers: sizes in a header may have a product that wraps around 64 bits to a small one.
    needed = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not dtype.hasobject and (entry.size < needed or any(size < 0 for size in shape)):
        msg = f"'{name}' is truncated: it has {entry.size:,} bytes; shape {shape} and {dtype} take {needed:,}."
        raise LayoutError(msg)
    # Packed values have this machine's byte order; another machine's array is converted row by row.
    native = dtype.newbyteorder("=")

    def rows() -> SampleSource:
        # In column order, the numbers of one row are far apart.
        if fortran and sum(length > 1 for length in shape) > 1:
            return rows_of_array(decode_npy(tree.read(entry)), name, stamp_of(entry))
        return rows_of_file(open_member(tree, entry), start, shape[0], shape[1:], dtype, stamp=stamp_of(entry))

    return StoredArray(name, shape, native, rows, lambda: decode_npy(tree.read(entry)), header.trouble)


class ManyArraysError(LayoutError):
    """A file holds more arrays than it may have fields."""


def _refuse_many(count: int, most: float, name: str) -> None:
    if count > most:
        msg = f"'{name}' holds more than {most:,} arrays."
        raise ManyArraysError(msg)


def npz_arrays(tree: Tree, entry: FileEntry, *, most: float = math.inf) -> list[StoredArray]:
    """Return the arrays of a .npz archive, including compressed ones; raises `ManyArraysError` for more than `most`."""
    # An .npz is a zip of .npy files.
    inner = ZipTree(open_member(tree, entry))
    members = [member for member in inner.entries if member.name.endswith(NPY)]
    _refuse_many(len(members), most, entry.name)
    return [read_npy(inner, member, f"{entry.name}/{member.name.removesuffix(NPY)}") for member in members]


def decode_npy(content: Any) -> NDArray[Any]:
    try:
        # Not by numpy's reader, which parses each header again.
        shape, dtype, fortran, start = npy_header(bytes(content[:MAX_HEADER_BYTES]))
        values = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")
    except ValueError as error:
        msg = f"It is not a .npy file of numbers: it {error}."
        raise DecodeError(msg) from error
    return values.astype(values.dtype.newbyteorder("="), copy=False)


# --- HDF5 -------------------------------------------------------------------------------------------------------------

# Attributes by which the numbers of climate data (CF) are packed, and what changes nothing.
_OF_CF = {"scale_factor": 1, "add_offset": 0, "_FillValue": None, "missing_value": None}
# Rows are read in blocks of about this size, or of a chunk if that is larger, up to the second bound.
_BLOCK_BYTES = 4 * 1024 * 1024
_MAX_BLOCK_BYTES = 128 * 1024 * 1024
# Readers are a few rows apart, so two blocks would do.
_BLOCKS_KEPT = 3


def hdf5_arrays(tree: Tree, entry: FileEntry, *, takes_packs: bool, most: float = math.inf) -> list[StoredArray]:
    """Return every dataset of one dimension or more of an HDF5 file; MATLAB's with axes as MATLAB shows them, samples
    first. Attributes that are called like lists of class names are arrays too. Raises `ManyArraysError` for more than
    `most`.

    Soft and external links are followed, to datasets that no other name has led to.
    """
    file = open_hdf5(tree, entry)
    if FORMAT_ATTRIBUTE in file.attrs and not takes_packs:
        file.close()
        # As arrays, its samples would lose their names, and files their form.
        place = tree.path_of(entry) or (tree.label if tree.kind == "file" else entry.name)
        how = f"open it with dataset_h5({str(place)!r})"
        raise broken(entry.name, f"it is a pack that colabstage made, so it needs no staging: {how}")
    found: list[StoredArray] = []
    try:
        found += _class_lists(file, entry.name)
        for key, node in _datasets(file, entry.name, alone=tree.path_of(entry) is None, most=most):
            name = f"{entry.name}/{key}"
            if isinstance(node, Exception):
                found.append(StoredArray.in_memory(name, np.zeros(0, np.uint8), "", str(node).rstrip(".")))
            elif node.shape is None:
                found.append(StoredArray.in_memory(name, np.zeros(0, np.uint8), ""))
            elif node.shape:
                found += [_hdf5_array(tree, entry, node, name), *_class_lists(node, name)]
    except (OSError, RuntimeError, KeyError) as error:
        msg = f"'{entry.name}' is a damaged HDF5 file: {error}."
        raise LayoutError(msg) from error
    return found


def links_of(group: Any) -> list[bytes]:
    """Return the names of what an open `GroupID` holds itself, and not by links to elsewhere."""
    from h5py import h5l

    names: list[bytes] = []
    group.links.iterate(lambda name, info: names.append(name) if info.type == h5l.TYPE_HARD else None, info=True)
    return names


def _class_lists(node: Any, name: str) -> Iterator[StoredArray]:
    """Yield the lists of class names that a file or a dataset has as attributes, or in the type of its values."""
    import h5py

    lists = {key: np.asarray(node.attrs[key]) for key in node.attrs if key.lower() in CLASS_LISTS}
    names = {number: word for word, number in (h5py.check_enum_dtype(getattr(node, "dtype", None)) or {}).items()}
    # It may count from 1, or leave out a few.
    if names and min(names) >= 0 and max(names) <= 2 * len(names):
        lists["classes"] = np.array([names.get(number, str(number)) for number in range(max(names) + 1)])
    for key, values in lists.items():
        if values.ndim == 1 and values.dtype.kind in "SUO":
            texts = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in values.tolist()]
            yield StoredArray.in_memory(f"{name}/{key}", np.array(texts), "")


def open_hdf5(tree: Tree, entry: FileEntry, content: ByteSource | None = None) -> Any:
    """Return an open HDF5 file, which leads to no files but those beside it. `content`: its bytes, if they are open."""
    path = tree.path_of(entry)
    file = None if path is not None else SourceFile(content or open_member(tree, entry))
    try:
        # The file may be open in this process already, and HDF5 then requires the same locking.
        return open_alone(file, entry.name) if path is None else open_with_any_locking(Path(path))
    except OSError as error:
        msg = f"'{entry.name}' cannot be opened as an HDF5 file: {error}. Copy it again."
        raise LayoutError(msg) from error


def _datasets(file: Any, label: str, *, alone: bool, most: float) -> Iterator[tuple[str, Any]]:
    """Yield every dataset of a file with its name, each once: first those of the file itself, then those behind links;
    or, for one that cannot be read, the error that says why. `alone`: whether there are no other files beside it."""
    count = 0
    import h5py
    from h5py import h5l

    # Without a path of its own, h5py names a file after the object that reads it.
    path = Path(label) if alone else Path(file.filename)
    seen: set[tuple[int, int]] = set()
    # Each name with its group: from the root, the way to a group a thousand levels deep takes a thousand steps.
    waiting, links = deque([(file, "/", "")]), deque[tuple[Any, str, str]]()
    while waiting or links:
        group, name, key = (waiting or links).popleft()
        try:
            node = follow(group, name, path)
            info = h5py.h5o.get_info(node.id)
            # A group may link to one above it, and a dataset may have several names.
            if (info.fileno, info.addr) in seen:
                continue
            seen.add((info.fileno, info.addr))
            if isinstance(node, h5py.Dataset):
                _ = node.dtype
                count += 1
                yield key, node
        except (PackFormatError, TypeError, ValueError) as error:
            yield key, error
            continue
        is_group = isinstance(node, h5py.Group)
        # Many in one group are seldom groups, and even their names take long.
        _refuse_many(max(count, len(node) if is_group else 0), most, label)
        for inner in node if is_group else ():
            is_hard = node.id.links.get_info(inner.encode(errors="surrogateescape")).type == h5l.TYPE_HARD
            (waiting if is_hard else links).append((node, inner, f"{key}/{inner}".lstrip("/")))


def _hdf5_array(tree: Tree, entry: FileEntry, dataset: Any, name: str) -> StoredArray:
    import h5py

    if _holds_files(dataset):

        def files() -> SampleSource:
            row_bytes = max(1, estimate_bytes(dataset) // len(dataset))
            return map_samples(_hdf5_rows(tree, entry, dataset, name, row_bytes=row_bytes), bytes)

        # Like words, bytes of one length are inputs where there are no others.
        kind = dataset.dtype if dataset.dtype.kind == "S" else np.dtype(np.uint8)
        made = StoredArray(name, dataset.shape, kind, files, lambda: np.asarray(dataset[()]))
        return replace(made, are_files=True)
    # MATLAB's characters are numbers, a column for each word; a single one is a description.
    is_chars = dataset.attrs.get("MATLAB_class") == b"char" and dataset.ndim > 1
    if is_chars or h5py.check_string_dtype(dataset.dtype) is not None:
        text = functools.partial(_text, dataset, name)
        shape = dataset.shape if not is_chars else dataset.shape[1:] if dataset.shape[1] > 1 else ()
        return StoredArray(name, shape, np.dtype(object), lambda: rows_of_array(text(), name, ""), text)
    # MATLAB counts axes from the other end: what it shows as (height, width, channels, N) is (N, c, w, h) here.
    matlab = "MATLAB_class" in dataset.attrs and dataset.ndim > 1
    is_table, is_turned = matlab and dataset.ndim == 2, matlab and dataset.ndim > 2
    shape = dataset.shape[::-1] if is_table else (dataset.shape[0], *dataset.shape[:0:-1]) if matlab else dataset.shape
    native = dataset.dtype.newbyteorder("=")

    def rows() -> SampleSource:
        source = _hdf5_rows(tree, entry, dataset, name, along_last=is_table)
        return map_samples(source, lambda row: row.T, to_rows=True) if is_turned else source

    def whole() -> NDArray[Any]:
        values: NDArray[Any] = dataset[()].astype(native, copy=False)
        return np.moveaxis(values.T, -1, 0) if is_turned else values.T if matlab else values

    base = h5py.check_vlen_dtype(dataset.dtype)
    trouble = "" if dataset.dtype.kind in "biufc" else f"it holds {dataset.dtype}, which are not numbers of one kind"
    if dataset.dtype.names:
        read = f"table = h5py.File({str(tree.path_of(entry) or entry.name)!r})[{dataset.name!r}]"
        save = "numpy.savez('data.npz', **{one: table[one] for one in table.dtype.names})"
        trouble = f"it is a table; save its columns as arrays: {read}, then {save}"
    if dataset.attrs.get("MATLAB_class") == b"cell" or "MATLAB_object_decode" in dataset.attrs:
        trouble = OF_MATLAB
    if base is not None:
        trouble = f"each row has any number of {base} values; cut them to one length, or read it with dataset_h5"
    return StoredArray(name, shape, native, rows, whole, trouble, (), _remark(dataset, name), is_turned)


def _holds_files(dataset: Any) -> bool:
    """Tell whether a dataset's rows are bytes of any length, the first of which are an image."""
    import h5py

    kind = dataset.dtype
    are_bytes = h5py.check_vlen_dtype(kind) == np.uint8 or (kind.kind in "SV" and kind.names is None)
    return bool(are_bytes and dataset.ndim == 1 and len(dataset) and image_ending(bytes(dataset[0])[:HEAD_BYTES]))


def _remark(dataset: Any, name: str) -> str:
    unwritten = unwritten_part(dataset)
    said = [f"{unwritten} of '{name}' were never written, and are read as 0."] if unwritten else []
    stated = {key: np.ravel(dataset.attrs[key])[:1] for key in _OF_CF if key in dataset.attrs}
    numbers = {key: value for key, value in stated.items() if value.dtype.kind in "iuf" and not np.isnan(value).all()}
    if odd := [f"{key} {value[0]:g}" for key, value in numbers.items() if value[0] != _OF_CF[key]]:
        said.append(f"'{name}' is kept as it is stored; xarray.open_dataset() applies its {', '.join(odd)}.")
    return " ".join(said)


def _text(dataset: Any, name: str) -> NDArray[Any]:
    if dataset.dtype.kind == "u":
        return np.array(["".join(map(chr, codes)).rstrip() for codes in dataset[()].T.tolist()])
    try:
        return np.array(dataset.asstr()[()].tolist(), dtype=np.str_)
    except UnicodeDecodeError as error:
        msg = f"'{name}' holds text that is not UTF-8."
        raise LayoutError(msg) from error


def _hdf5_rows(
    tree: Tree, entry: FileEntry, dataset: Any, name: str, *, along_last: bool = False, row_bytes: int = 0
) -> SampleSource:
    """Return rows that are read by their place in the file if they have one, which needs no HDF5 lock; otherwise in
    blocks through h5py, so that a chunk is unpacked once, not once for each row. `row_bytes`: how many bytes a row has
    in the mean, if they have no one length."""
    # A dataset behind a link reports its place in another file.
    path, kind, stamp = tree.path_of(entry), dataset.dtype, stamp_of(entry)
    is_own = path is None or home_of(dataset, Path(path)) is None
    has_place = is_own and not (
        row_bytes or dataset.chunks or dataset.external or dataset.is_virtual or dataset.file.userblock_size
    )
    offset = dataset.id.get_offset() if has_place and not along_last else None
    if offset is not None:
        file = open_member(tree, entry)
        return rows_of_file(file, offset, len(dataset), dataset.shape[1:], kind, stamp=stamp)
    axis = 1 if along_last else 0
    count = int(dataset.shape[axis])
    row_bytes = row_bytes or max(1, dataset.size // max(1, count) * kind.itemsize)
    chunk = dataset.chunks[axis] if dataset.chunks else 1
    # Whole chunks if that stays within bounds: otherwise parts of a chunk would be unpacked twice.
    step = math.ceil(max(1, _BLOCK_BYTES // row_bytes) / chunk) * chunk
    step = step if step * row_bytes <= _MAX_BLOCK_BYTES else max(1, _MAX_BLOCK_BYTES // row_bytes)
    lock = threading.Lock()

    def unpack(part: slice) -> NDArray[Any]:
        rows: NDArray[Any] = dataset[part] if axis == 0 else dataset[:, part].T
        return rows.astype(kind.newbyteorder("="), copy=False)

    @functools.lru_cache(maxsize=_BLOCKS_KEPT)
    def read_block(number: int) -> NDArray[Any]:
        return unpack(slice(number * step, (number + 1) * step))

    def read_row(index: int) -> NDArray[Any]:
        try:
            return unpack(slice(index, index + 1))
        except (OSError, RuntimeError) as error:
            msg = f"Row {index} of '{name}' cannot be read: {error}."
            raise DecodeError(msg) from error

    def read_rows(indices: NDArray[np.int64]) -> NDArray[Any]:
        numbers, places = np.divmod(indices, step)
        with lock:
            try:
                return concatenate_runs(numbers, lambda number, run: read_block(number)[places[run]])
            except (OSError, RuntimeError):
                # Of a block with a damaged chunk the other rows are sound.
                return np.concatenate([read_row(index) for index in indices.tolist()])

    def read(index: int) -> NDArray[Any]:
        row: NDArray[Any] = read_rows(np.array([index]))[0]
        return row

    return numbered_samples(name, f"{stamp} {dataset.name}", count, row_bytes, read=read, read_rows=read_rows)


# --- audio clips as rows of one length and rate, decoded by soundfile -------------------------------------------------

SoundDtype = Literal["float32", "int16"]

# Written by programs that do not know the length yet and never correct it.
_UNKNOWN_SIZE, _UNKNOWN_FRAMES = 0xFFFFFFFF, 1 << 62
# Number of clips examined for rate, channels and length, including the shortest and the longest file.
_PROBES = 16


def read_clip(content: bytes, dtype: SoundDtype) -> tuple[NDArray[Any], int]:
    """Decode a whole file by soundfile: its samples `(N, channels)`, float32 from -1 to 1 or int16, and their rate.

    Integers become floats by dividing by their full scale (a power of two), and lose their lower bits if int16 is
    requested; floats become int16 by rounding 32,767 times their value, clipped to -1 and 1.
    """
    try:
        import soundfile  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: the package is installed, but not the library that it wraps
        refuse_import("soundfile", "Clips of sound are decoded by", error)
    _check_length(content)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            whole = file.subtype.startswith("PCM")
            # Of some sounds the length must be stated to read all; it is unknown of a cut OGG, and of FLAC from a pipe.
            count = file.frames if file.frames < _UNKNOWN_FRAMES else 0
            values = file.read(count, dtype="int16" if whole and dtype == "int16" else "float32", always_2d=True)
            rate = int(file.samplerate)
    except (soundfile.LibsndfileError, RuntimeError) as error:
        # Without the address of the file's object.
        msg = f"The sound cannot be decoded: {getattr(error, 'error_string', error)}"
        raise DecodeError(msg) from error
    if not len(values):
        msg = "The sound has no samples: it was cut, or its header does not say how many there are."
        raise DecodeError(msg)
    if dtype == "int16" and values.dtype != np.int16:
        values = np.rint(np.clip(values, -1, 1) * 32767).astype(np.int16)
    return values, rate


def _resample(values: NDArray[Any], rate: int, wanted: int) -> NDArray[Any]:
    """Return the samples `(N, channels)` at another rate, in their dtype, as librosa resamples."""
    try:
        import soxr  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        refuse_import("soxr", "Clips of sound are resampled by", error)
    # As floats, because soxr adds random noise to integers before it rounds them.
    resampled: NDArray[np.float32] = soxr.resample(values.astype(np.float32), rate, wanted)
    if values.dtype.kind == "f":
        return resampled
    limits = np.iinfo(values.dtype)
    return np.rint(np.clip(resampled, limits.min, limits.max)).astype(values.dtype)


def _check_length(content: bytes) -> None:
    """Refuse a truncated WAV, of which soundfile would read what is there."""
    at = 12 if content[:4] == b"RIFF" and content[8:12] == b"WAVE" else len(content)
    # Chunks can have any order, and editors put their own before the samples.
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if size > len(content) - at and not (name == b"data" and size == _UNKNOWN_SIZE):
            msg = f"The WAV was cut: it should have {size:,} bytes from byte {at:,} on and has {len(content) - at:,}."
            raise DecodeError(msg)
        at += size + size % 2


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How clips become rows: the options of `audio_clips`, with lengths in samples."""

    length: int | None = None
    dtype: SoundDtype = "float32"
    mono: bool = False
    rate: int | None = None

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, SoundDtype)
        for name, value in (("length", self.length), ("rate", self.rate)):
            if value is not None:
                whole_number(name, value, least=1)


# All clips have one length, rate and number of channels.
AS_THEY_ARE = ClipOptions()


def clip_rows(source: SampleSource, options: ClipOptions) -> tuple[Arrays, str]:
    """Return the clips of a source as rows of one length, and a note on their form, after examining a few."""
    # File sizes stand for lengths, so the shortest and the longest clip are among those examined.
    order = np.argsort(source.sizes, kind="stable")
    chosen = sorted({int(order[place]) for place in np.linspace(0, len(order) - 1, _PROBES).astype(int)})

    def look(index: int, content: Content) -> _Seen:
        values, rate = read_clip(in_place(source.name(index), bytes(content)), options.dtype)
        return _Seen(rate, values.shape[1], len(values), source.name(index))

    # Broken clips are reported when they are packed.
    seen = read_each(source, chosen, look, readers=4, skip_broken=True)
    if not seen:
        raise broken(source.name(chosen[0]), "neither it nor any other clip that was checked can be decoded")
    decoder = _plan_rows(seen, options)
    sound = f"{decoder.rate:,} Hz, {decoder.length:,} samples ({decoder.length / decoder.rate:.2f} s)"
    rows = Arrays(source, decoder.shape, np.dtype(options.dtype), decode=decoder)
    return rows, f"Clips are stored as {options.dtype}: {sound}, {format_count(decoder.channels, 'channels')}."


class _Seen(NamedTuple):
    """What examining one clip shows; its length is that of each channel, in samples."""

    rate: int
    channels: int
    length: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.rate:,} Hz, {self.length:,} samples and {format_count(self.channels, 'channels')}"


def _plan_rows(seen: Sequence[_Seen], options: ClipOptions) -> _ClipDecoder:
    rates = Counter(one.rate for one in seen)
    rate = options.rate or rates.most_common(1)[0][0]
    lengths = {round(one.length * rate / one.rate) for one in seen}
    channels = {one.channels for one in seen}
    # Rows have one shape; a channel must not be dropped by a guess; and with mixed rates one word would sound high and
    # another low.
    wanted = {
        f"rate={rate}": options.rate is None and len(rates) > 1,
        f"length={max(lengths)}": options.length is None and len(lengths) > 1,
        "mono=True": not options.mono and len(channels) > 1,
    }
    if any(wanted.values()):
        first, last = min(seen), max(seen)
        what = f"it has {first}, and '{last.name}' has {last}"
        how = _example(", ".join(name for name, is_wanted in wanted.items() if is_wanted))
        raise broken(first.name, what, f"one form, to which clips are resampled, cut or padded, and mixed: {how}")
    return _ClipDecoder(options, options.length or min(lengths), 1 if options.mono else channels.pop(), rate)


def _example(option: str) -> str:
    return f"layout=audio_clips({option}), from colabstage.options, beside its other options"


@dataclass(frozen=True, slots=True)
class _ClipDecoder:
    options: ClipOptions
    length: int
    channels: int
    rate: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,) if self.channels == 1 else (self.length, self.channels)

    def __call__(self, content: bytes) -> NDArray[Any]:
        values, rate = read_clip(content, self.options.dtype)
        if self.options.mono and values.shape[1] > 1:
            # In 64 bits, because the sum of two 16-bit samples does not fit into 16 bits.
            mean: NDArray[np.float64] = values.mean(axis=1, keepdims=True, dtype=np.float64)
            values = (np.rint(mean) if values.dtype.kind == "i" else mean).astype(values.dtype)
        own = _Seen(rate, values.shape[1], len(values))
        if is_resampled := rate != self.rate and self.options.rate is not None:
            values = _resample(values, rate, self.rate)
        # soxr rounds half a sample up or down.
        fits = self.options.length is not None or abs(len(values) - self.length) <= is_resampled
        if not fits or own.channels != self.channels or (rate != self.rate and not is_resampled):
            others = _Seen(self.rate, self.channels, self.length)
            how = _example(f"rate={self.rate}, length={self.length}, mono=True")
            msg = f"The clip has {own} and the others {others}. Choose one form of what differs: {how}."
            raise DecodeError(msg)
        # Zeros are silence, in either dtype.
        row: NDArray[Any] = np.zeros((self.length, self.channels), values.dtype)
        row[: len(values)] = values[: self.length]
        return row.reshape(self.shape)
