"""Samples that are rows of arrays in .npy, .npz, HDF5 and MATLAB files: find the inputs and targets.

Pure code decides by the names of the arrays; only then is more than headers read. MATLAB's .mat files of versions 5 to
7 are not HDF5; scipy reads them, if it is installed.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.io.units import listed
from colabstage.layouts.columns import Column, class_numbers, make_targets, note_on_numbers
from colabstage.layouts.evidence import Evidence, FileKind, left_out_notes, near, require_files
from colabstage.layouts.folders import folders_state
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.reading import open_member, refuse_stand_in
from colabstage.layouts.samples import TreeFiles, join_samples, stamp_of
from colabstage.layouts.stored import NPY, StoredArray, decode_npy, hdf5_arrays, npz_arrays, read_npy
from colabstage.layouts.table import Arrays, BrokenDatasetError, Images, SampleTable, Values, known_splits
from colabstage.layouts.words import SPLITS, split_of_word
from colabstage.trees.bytes import SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import Inputs, Targets
    from colabstage.trees.listing import FileEntries, FileEntry, Tree

NAME = "arrays"
_MATLAB_HEAD = b"MATLAB 5.0 MAT-file"
_SVHN = re.compile(r"(train|test|extra)_32x32\.mat$")
_NPZ, _MAT = ".npz", ".mat"
_SUFFIXES = (NPY, _NPZ, ".h5", ".hdf5", ".hdf", ".he5", _MAT)
# With more files than this, each file is one sample.
_MAX_FILES = 256
# Fewer files of one shape may each hold many rows.
_FEW_FILES = 4
# No machine here lists more samples.
_MOST_ROWS = 1 << 32
# Targets up to so much are read when the table is made; larger ones come with their samples.
_KNOWN_BYTES = 64 * 1024 * 1024
_X = {
    "x", "xs", "image", "images", "img", "imgs", "data", "feature", "features", "input", "inputs", "samples", "signals",
}  # fmt: skip
_Y = {"y", "ys", "label", "labels", "target", "targets", "class", "mask", "masks", "output", "outputs"}
_CLASSES = {"classes", "class_names", "classnames", "label_names", "list_classes", "target_names", "categories"}
# The test sets of MNIST and similar datasets, and SVHN's extra images.
_SPLITS_BESIDE = {"t10k": "test", "extra": "extra"}
# The names that numpy.savez gives to unnamed arrays.
_NUMBERED = re.compile(r"arr_\d+")
_SAME_DIGIT = str.maketrans("123456789", "0" * 9)


# --- what arrays are called -------------------------------------------------------------------------------------------


class SplitArrays(NamedTuple):
    """Names of the arrays of one split, "" where there is just one set."""

    split: str
    x: str
    y: str | None


class UnclearRolesError(LayoutError):
    """The names of arrays do not say which are inputs and which targets."""


def find_splits(names: Iterable[str], *, x: str | None = None, y: str | None = None) -> list[SplitArrays]:
    """Match inputs with targets.

    >>> find_splits(["mnist.npz/x_train", "mnist.npz/y_train"])
    [SplitArrays(split='train', x='mnist.npz/x_train', y='mnist.npz/y_train')]

    Args:
        names: paths of all arrays, the key in a file as the last part.
        x, y: last parts of the names of inputs and targets, if the user named them; x alone may be a common part of the
            names to use.
    """
    every = list(names)
    if x is not None:
        # EMNIST has six datasets in one archive, each with its splits.
        common = [name for name in every if x in name]
        if y is None and not _called(every, x) and len(common) > 1:
            return find_splits(common)
        return [SplitArrays("", _only(every, x), None if y is None else _only(every, y))]
    by_split: dict[str, dict[str, list[str]]] = {}
    for name in every:
        split, role = _split_and_role(name)
        by_split.setdefault(split, {"x": [], "y": [], "": []})[role].append(name)
    for roles in by_split.values():
        for role, what in (("x", "inputs"), ("y", "targets")) if roles["x"] else ():
            if len(roles[role]) > 1:
                msg = (
                    f"Several arrays are named like {what}: {listed(roles[role])}. Say which to take: "
                    "layout=array_rows(x='NAME', y='NAME'), or array_rows('PART'), what the names of all that count "
                    "have in common, such as 'emnist-digits'."
                )
                raise UnclearRolesError(msg)
    found = [
        SplitArrays(split, roles["x"][0], next(iter(roles["y"]), None))
        for split, roles in by_split.items()
        if roles["x"]
    ]
    # For another split or none: x_train beside labels. If they were left out, all samples would lack labels.
    over = any(roles["y"] for roles in by_split.values() if not roles["x"])
    if found and not (over and any(one.y is None for one in found)):
        # Training rows are first, whatever the order of the files.
        order = [*dict.fromkeys([*SPLITS.values(), *_SPLITS_BESIDE.values()])]
        named = [one if len(found) == 1 or one.split else one._replace(split="train") for one in found]
        if len({one.split for one in named}) == len(named):
            return sorted(named, key=lambda one: order.index(one.split) if one.split else 0)
    # A single array is the inputs, whatever its name.
    if len(every) == 1:
        return [SplitArrays("", every[0], None)]
    msg = (
        f"Which of the arrays {listed(every)} are inputs and which targets? Expected names such as X and y, x_train "
        "and y_train, images and labels. Or say so: layout=array_rows(x='NAME', y='NAME')."
    )
    raise UnclearRolesError(msg)


def _called(names: list[str], wanted: str) -> list[str]:
    return [name for name in names if name == wanted or f"/{_bare(name)}".endswith(f"/{_bare(wanted)}")]


def _only(names: list[str], wanted: str) -> str:
    found = _called(names, wanted)
    if len(found) != 1:
        msg = f"{len(found)} arrays are called '{wanted}'; there are {listed(names)}."
        raise LayoutError(msg)
    return found[0]


def is_class_names(name: str) -> bool:
    """Tell whether an array has the name of a list of class names."""
    last = _bare(name.rpartition("/")[2]).lower()
    return last.removeprefix("train_").removeprefix("test_") in _CLASSES


def has_role(name: str) -> bool:
    """Tell whether a file is named like the inputs or targets of many samples, or like their classes: X.npy,
    train_labels.npy."""
    return bool(_split_and_role(name)[1]) or is_class_names(name)


def first_with_role(files: FileEntries) -> str | None:
    """Return the first file of some that `has_role`, by its bare name; `None` where none has."""
    # No role has digits in its name, and names of samples mostly differ in digits only.
    texts = "\0".join(files.names).translate(_SAME_DIGIT).split("\0")
    first = dict(zip(reversed(texts), reversed(files.names), strict=True))
    return next((first[text] for text in dict.fromkeys(texts) if has_role(text.rpartition("/")[2])), None)


def _split_and_role(name: str) -> tuple[str, str]:
    """Return the split that a path's parts name, "" for none, and whether they name inputs ("x") or targets ("y").

    The last part that names one counts.
    """
    split = role = ""
    for part in () if is_class_names(name) else reversed(name.split("/")):
        words = _words_of_name(part)
        role = role or next(("x" if word in _X else "y" for word in reversed(words) if word in _X | _Y), "")
        splits = (_SPLITS_BESIDE.get(word) or split_of_word(word) for word in words)
        split = split or next(filter(None, splits), "")
    return split, role


def _words_of_name(part: str) -> list[str]:
    """Return train_images, X-train, xTrain, XTrain and Xtrain in words."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=\b[XY])(?=[A-Z])", "_", _bare(part))
    words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    split = [
        [word[0], word[1:]] if word[0] in "xy" and split_of_word(word[1:]) else
        [word[:-1], word[-1]] if word[-1] in "xy" and split_of_word(word[:-1]) else [word]
        for word in words
    ]  # fmt: skip
    return [word for pair in split for word in pair]


def _bare(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return stem if suffix.lower() in _SUFFIXES else name


# --- what they hold ---------------------------------------------------------------------------------------------------


def arrays_state(
    source: Source, published: Sequence[StoredArray], *, x: str | None = None, y: str | None = None
) -> Found:
    """Read rows of arrays whose first axis counts samples.

    Inputs, targets and splits are recognised by name (X and y, x_train and y_train, images and labels, data and target,
    train.npz with any of these). uint8 inputs of shape `(N, H, W)` or `(N, H, W, C)` with 1, 3 or 4 channels are
    images; all others are stored as they are. Targets of one number for each sample become `(N,)`, integers int64;
    words become classes; integers of the shape of the images' pixels are masks.

    `published`: arrays of files that well-known datasets are published as. `x`, `y`: the names of the arrays, or keys
    in their file, that hold inputs and targets, if they are not recognised.
    """
    if not source.ending_in(_SUFFIXES) and not published:
        msg = f"'{source.label}' holds no arrays (.npy, .npz, .h5, .mat, idx; CIFAR's and STL10's files)."
        raise EmptySourceError(msg)
    files = source.ending_in(_SUFFIXES)
    if len(files) > _MAX_FILES:
        # None is read: of so many files each is a sample, or the folders they are in may be classes.
        return near(_each_a_sample(source, len(files), f"such as '{files[0].name}'"))
    stored = {array.name: array for array in [*_find_arrays(source, files, takes_packs=x is not None), *published]}
    if x is None and (one_each := _one_file_a_sample(source, stored)):
        return near(one_each)
    named = [name for name, array in stored.items() if array.shape and not is_class_names(name)]
    try:
        chosen = (_find_numbered(stored) if x is None else []) or find_splits(named, x=x, y=y)
    except UnclearRolesError as error:
        return near(str(error))
    # Like unlabelled test images: if some rows had no labels, none could have any.
    unlabelled = [one for one in chosen if one.y is None and any(other.y is not None for other in chosen)]
    chosen = [one for one in chosen if one not in unlabelled]
    used, stated = [one.x for one in chosen], [one.y for one in chosen if one.y is not None]
    xs, ys = ([_usable(stored[name]) for name in names] for names in (used, stated))
    _check_lengths(chosen, stored)
    inputs = _as_inputs(xs)
    targets, classes = _as_targets(ys, inputs, xs) if ys else (None, ())
    # Files often have an array of the classes' names beside those of the samples, of all classes or of more.
    texts = (
        array.whole()
        for name, array in stored.items()
        if is_class_names(name) and array.is_text and len(array.shape) == 1 and not array.trouble
    )
    classes = next((_as_words(values) for values in texts if len(values) >= len(classes)), classes)
    which = f", targets those of {listed(stated)}" if ys else "; there are no targets"
    lost = [(stored[one.x].shape[0], "rows", f"of '{one.x}', which has no targets,") for one in unlabelled]
    notes = [f"Inputs are the rows of {listed(used)}{which}.", *left_out_notes(*lost)]
    known = {*used, *stated, *(one.x for one in unlabelled)}
    rest = [name for name in stored if name not in known and not is_class_names(name)]
    beside = [name for name in rest if stored[name].shape[:1] == xs[0].shape[:1]]
    if x is None and targets is None and beside:
        return near(
            f"The arrays {listed(beside)} have as many rows as '{used[0]}' and may be its targets. Say so: layout="
            f"array_rows(x={used[0]!r}, y={beside[0]!r}), from colabstage.options, or array_rows(x={used[0]!r}) for "
            "inputs alone."
        )
    if rest:
        notes.append(f"Other arrays were left out: {listed(rest)}.")
    if isinstance(targets, Values):
        notes += note_on_numbers(stated[0], targets.values, classes)
    table = SampleTable(
        layout=NAME,
        keys=tuple(f"{array.name}[{row}]" for array in xs for row in range(array.shape[0])),
        inputs=inputs,
        targets=targets,
        splits=known_splits([one.split for one, array in zip(chosen, xs, strict=True) for _ in range(array.shape[0])]),
        classes=classes,
        notes=tuple(notes),
    )
    return Evidence(table, "the arrays' names", frozenset(files.names))


def _find_arrays(source: Source, files: FileEntries, *, takes_packs: bool) -> list[StoredArray]:
    """Return all arrays of some files, by file and key; only headers are read."""
    tree = source.tree
    found: list[StoredArray] = []
    for entry in files:
        refuse_stand_in(tree, entry)
        suffix = posixpath.splitext(entry.name)[1].lower()
        if suffix == NPY:
            found.append(read_npy(tree, entry, entry.name))
        elif suffix == _NPZ:
            try:
                found += npz_arrays(tree, entry)
            except CorruptArchiveError as error:
                msg = f"'{entry.name}' cannot be read: {error}"
                raise LayoutError(msg) from error
        elif suffix == _MAT and source.head(entry, len(_MATLAB_HEAD)) == _MATLAB_HEAD:
            found += matlab5_arrays(tree, entry)
        else:
            found += hdf5_arrays(tree, entry, takes_packs=takes_packs)
    return found


def matlab5_arrays(tree: Tree, entry: FileEntry) -> list[StoredArray]:
    """Return the numeric arrays of a file, samples first: with three axes or more, MATLAB's last axis becomes the
    first."""
    try:
        from scipy import io as matlab
    except ImportError as error:
        msg = (
            f"'{entry.name}' is a MATLAB file of version 5, which needs scipy. Install it with: pip install scipy. "
            "Or save it with '-v7.3'."
        )
        raise MissingDependencyError(msg) from error
    try:
        # The header says only "double" even if the numbers are stored with fewer bytes.
        held = matlab.loadmat(SourceFile(open_member(tree, entry)))
    except Exception as error:  # scipy raises whatever the bytes happen to lead to
        msg = f"'{entry.name}' is a damaged MATLAB file: {error}. Copy it again, or save it again with '-v7.3'."
        raise LayoutError(msg) from error
    found = []
    for key, values in held.items():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf" or not values.size:
            continue
        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        rows = np.moveaxis(native, -1, 0) if native.ndim > 2 else native
        # SVHN counts from 1, like MATLAB, so the digit 0 has the label 10.
        rows = rows % 10 if _SVHN.search(entry.name) and key == "y" else rows
        found.append(StoredArray.in_memory(f"{entry.name}/{key}", rows, stamp_of(entry)))
    return found


def _one_file_a_sample(source: Source, stored: Mapping[str, StoredArray]) -> str:
    """Return what to do with files each of which is one sample: numbered files with arrays of the same names and
    shapes; "" where files hold rows of many samples."""
    by_name: dict[str, list[StoredArray]] = {}
    for array in stored.values():
        by_name.setdefault(re.sub(r"\d+", "0", array.name), []).append(array)
    name, alike = max(by_name.items(), key=lambda item: len(item[1]), default=("", []))
    # Rows of many samples are counted by the first axis, which then differs, or by the names of splits and batches.
    is_batch = "/" not in name and has_role(posixpath.basename(name.partition(".")[0]))
    shapes = {array.shape for array in alike}
    if len(alike) < _FEW_FILES or len(shapes) > 1 or is_batch or len(alike[0].shape) < 2:
        return ""
    return _each_a_sample(source, len(alike), f"such as '{alike[0].name}', of shape {alike[0].shape}")


def _each_a_sample(source: Source, count: int, which: str) -> str:
    return (
        f"'{source.label}' holds {count:,} files of arrays {which}: each is probably one sample, and rows of it none. "
        "Give pack_dataset an object whose items are (x, y), read from the files by their number; or one .npz of all, "
        f"numpy.savez('data.npz', x=numpy.stack(…), y=numpy.stack(…)). At most {_MAX_FILES} files may each have the "
        "rows of many samples."
    )


def _find_numbered(stored: Mapping[str, StoredArray]) -> list[SplitArrays]:
    """Return inputs and targets that numpy.savez(file, x, y) only numbered, if their shapes confirm it."""
    arrays = [stored[name] for name in sorted(stored)]
    if len(arrays) != 2 or any(not _NUMBERED.fullmatch(_bare(one.name.rpartition("/")[2])) for one in arrays):
        return []
    x, y = arrays
    counts = [np.prod(array.shape[1:], dtype=np.int64) for array in arrays]
    fits = len(x.shape) > 1 and x.shape[:1] == y.shape[:1] and counts[0] > 1 and counts[1] == 1
    return [SplitArrays("", x.name, y.name)] if fits else []


def _usable(array: StoredArray) -> StoredArray:
    if array.trouble:
        msg = f"'{array.name}' cannot be used: {array.trouble}."
        raise LayoutError(msg)
    return array


def _check_lengths(chosen: Sequence[SplitArrays], stored: Mapping[str, StoredArray]) -> None:
    for _, x, y in chosen:
        shape = stored[x].shape
        why = f"'{x}' has the shape {shape}"
        if not 0 < shape[0] <= _MOST_ROWS:
            msg = f"{why}; expected at least one sample along its first axis, and no more than are ever written."
            raise LayoutError(msg)
        if y is not None and stored[y].shape[0] != shape[0]:
            msg = f"{why} and '{y}' {stored[y].shape}; expected as many targets as inputs along their first axes."
            raise LayoutError(msg)


def _as_inputs(xs: Sequence[StoredArray]) -> Inputs:
    words = next((array.name for array in xs if array.is_text), None)
    if words is not None:
        msg = f"'{words}' holds words; expected numbers as inputs."
        raise LayoutError(msg)
    shapes = [array.shape for array in xs if array.dtype == np.uint8]
    # Rows of three numbers are an image only where the last may count channels.
    if len(shapes) == len(xs) and all(len(one) == 3 or (len(one) == 4 and one[3] in (1, 3, 4)) for one in shapes):
        return Images(join_samples([array.rows() for array in xs]), decoded=True, own_channels=True)
    return _arrays(xs)


def _arrays(parts: Sequence[StoredArray]) -> Arrays:
    first = parts[0]
    for other in parts:
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            msg = (
                f"Rows of '{other.name}' are {other.dtype} {other.shape[1:]}, those of '{first.name}' {first.dtype} "
                f"{first.shape[1:]}; expected the same."
            )
            raise LayoutError(msg)
    return Arrays(join_samples([part.rows() for part in parts]), first.shape[1:], first.dtype)


def _as_targets(
    ys: Sequence[StoredArray], inputs: Inputs, xs: Sequence[StoredArray]
) -> tuple[Targets, tuple[str, ...]]:
    if isinstance(inputs, Images) and all(map(_is_mask, ys, xs)):
        # Shaped as the images' pixels they are one class for each pixel, not a target of some numbers.
        masks = find_masks(join_samples([y.rows() for y in ys]), decoded=True)
        return masks, masks.classes
    is_vector = all(np.prod(y.shape[1:], dtype=np.int64) == 1 for y in ys)
    nbytes = sum(int(np.prod(y.shape, dtype=np.int64)) * y.dtype.itemsize for y in ys)
    # Targets as large as inputs, such as height maps, should not be read into memory at once; `_arrays` also says what
    # differs.
    if not is_vector and (nbytes > _KNOWN_BYTES or len({(y.shape[1:], y.dtype) for y in ys}) > 1):
        return _arrays(ys), ()
    values = np.concatenate([y.whole().reshape(-1) if is_vector else y.whole() for y in ys])
    if not is_vector or values.dtype.kind not in "USiu":
        return Values(np.ascontiguousarray(values)), ()
    if values.dtype.kind in "US":
        return make_targets([Column("y", _as_words(values))])
    # The type that torch's losses need, whatever the file has.
    whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def _is_mask(y: StoredArray, x: StoredArray) -> bool:
    shape = y.shape[:-1] if len(y.shape) == 4 and y.shape[3] == 1 else y.shape
    return y.dtype.kind in "biu" and len(shape) == 3 and shape == x.shape[:3]


def _as_words(values: Any) -> tuple[str, ...]:
    words = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    return tuple(str(word) for word in words.tolist())


# --- one file for each sample -----------------------------------------------------------------------------------------

ARRAY_FOLDER = FileKind("array_folder", "arrays", (NPY,))


def array_folder_state(source: Source) -> Evidence:
    """Read .npy files in class folders, with or without split folders above; each file is one sample.

    All have the shape and dtype of the first, and are stored as they are.
    """
    files = require_files(source.ending_in((NPY,)), source, ".npy files")
    role = first_with_role(files)
    if role is not None:
        msg = f"'{role}' is named like the inputs or targets of many samples, not like a single one."
        raise EmptySourceError(msg)
    try:
        found = folders_state(source, ARRAY_FOLDER)
    except BrokenDatasetError:
        raise
    except LayoutError as error:
        # Files outside class folders are arrays of many samples, for which `arrays_state` has a better message.
        raise EmptySourceError(str(error)) from error
    contents = found.table.inputs.source
    assert isinstance(contents, TreeFiles)
    first = _usable(read_npy(source.tree, contents.entries[0], found.table.keys[0]))
    if first.is_text:
        msg = f"'{first.name}' cannot be used: it holds words."
        raise LayoutError(msg)
    inputs = Arrays(contents, first.shape, first.dtype, decode=decode_npy)
    return replace(found, table=replace(found.table, inputs=inputs))
