"""Samples that are rows of arrays in .npy, .npz, HDF5 and MATLAB files: find the inputs and targets.

Pure code decides by the names of the arrays; only then is more than headers read. MATLAB's .mat files up to
version 7 are not HDF5; scipy reads them, if it is installed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import pickle
import posixpath
import re
import struct
from array import array
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.io.arguments import as_arrays
from colabstage.io.packages import refuse_import
from colabstage.io.units import listed
from colabstage.layouts import words
from colabstage.layouts.columns import (
    Column,
    class_numbers,
    kept_together,
    make_targets,
    note_on_groups,
    notes_on_labels,
    show,
)
from colabstage.layouts.evidence import (
    Evidence,
    FileKind,
    Found,
    Miss,
    left_out_notes,
    near,
    refuse,
    renumbered,
    require_files,
)
from colabstage.layouts.formats.masks import find_masks
from colabstage.layouts.lists import check_one_list
from colabstage.layouts.members import MOST_FIELDS, Unfolded, unfold
from colabstage.layouts.reading import Source, broken, decode_text, open_member, open_unpacked, refuse_stand_in
from colabstage.layouts.records import (
    ShardFile,
    ShardParts,
    join_fields,
    labelled_shards,
    labels_of_fields,
    parse_label,
    records_state,
    splits_of_fields,
)
from colabstage.layouts.stored import (
    NPY,
    OF_MATLAB,
    ManyArraysError,
    StoredArray,
    decode_npy,
    hdf5_arrays,
    npz_arrays,
    read_npy,
)
from colabstage.layouts.table import (
    Arrays,
    BrokenDatasetError,
    Images,
    Inputs,
    Masks,
    SampleSource,
    SampleTable,
    Targets,
    Values,
    files_of,
    join_samples,
    known_splits,
    map_samples,
    measured,
    rows_of_file,
    stamp_of,
)
from colabstage.machine.resources import allow_open_files
from colabstage.trees.bytes import SourceFile
from colabstage.trees.listing import FileEntries, FileEntry, Tree, only_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray


NAME = "arrays"
# An HDF5 file begins with this, or with a block of another program before it: MATLAB's has 512 bytes.
_OF_HDF5, _BLOCKS = b"\x89HDF\r\n\x1a\n", (0, 512, 1024, 2048)
_OBJECT = ("s0", "s1", "s2", "arr")
_SVHN = re.compile(r"(train|test|extra)_32x32\.mat$")
_NPZ, _MAT = ".npz", ".mat"
_SUFFIXES = (NPY, _NPZ, ".h5", ".hdf5", ".hdf", ".he5", _MAT)
# If there are more files, each is one sample.
_MAX_FILES = 256
# If there are more files, only those that share a number with one of a few are looked at, up to the second limit.
_LOOKED_AT, _MOST_LOOKED_AT = 3, 64
# Files that hold several arrays.
_OF_SEVERAL = re.compile(r"(.*?\.(?:npz|h5|hdf5|hdf|he5|mat))/", re.IGNORECASE)
# What pandas calls the parts of its tables.
_OF_PANDAS = re.compile(r"(.+?\.[A-Za-z0-9]+)/(?:.*/)?(?:axis0|_i_table)(?:/|$)")
_DIGITS = re.compile(r"\d+")
# The numbers in a file's name, which tell it from others of its series.
_Numbers = tuple[str, ...]
# Fewer files may each hold many rows.
_FEW_FILES = 4
_CHANNELS = ((1,), (3,), (4,))
# No machine here lists more samples.
_MOST_ROWS = 1 << 32
# Targets up to this size are read when the table is made; larger ones are read with their samples.
_KNOWN_BYTES = 64 * 1024 * 1024
_X = {
    "x", "xs", "image", "images", "img", "imgs", "data", "feature", "features", "input", "inputs", "samples", "signals",
    *(_EMBEDDINGS := {"embedding", "embeddings"}),
}  # fmt: skip
_Y = {"y", "ys", "label", "labels", "target", "targets", "class", "mask", "masks", "output", "outputs"}
# The test sets of MNIST and similar datasets, and SVHN's extra images.
_SPLITS_BESIDE = {"t10k": "test", "extra": "extra"}
_ORDER = [*dict.fromkeys([*words.SPLITS.values(), *_SPLITS_BESIDE.values()])]
# The names that numpy.savez gives to unnamed arrays.
_NUMBERED = re.compile(r"arr_\d+")
_SAME_DIGIT = str.maketrans("123456789", "0" * 9)


# --- names of arrays --------------------------------------------------------------------------------------------------


class SplitArrays(NamedTuple):
    """Names of the arrays of one split, "" where there is just one set."""

    split: str
    x: str
    y: str | None


def find_splits(every: Sequence[str], *, x: str | None = None, y: str | None = None) -> list[SplitArrays]:
    """Match inputs with targets.

    >>> find_splits(["mnist.npz/x_train", "mnist.npz/y_train"])
    [SplitArrays(split='train', x='mnist.npz/x_train', y='mnist.npz/y_train')]

    Args:
        every: paths of all arrays, the key in a file as the last part.
        x, y: last parts of the names of inputs and targets, if the user named them, in each split; x alone may be a
            common part of the names to use.
    """
    asked: dict[str, str] = {}
    if x is not None:
        of_x, of_y = ([] if one is None else _called(every, one) for one in (x, y))
        # EMNIST has six datasets in one archive, each with its splits.
        common = [name for name in every if x in name]
        if y is None and not of_x and len(common) > 1:
            return find_splits(common)
        if len(of_x) <= 1:
            return [SplitArrays("", _only(every, x), None if y is None else _only(every, y))]
        asked = dict.fromkeys(every, "") | dict.fromkeys(of_y, "y") | dict.fromkeys(of_x, "x")
    # In ply_data.h5 with data, label and normal, its own name says nothing of the last.
    called = {_file_and_key(name)[0] for name in every if _split_and_role(_file_and_key(name)[1])[1]}
    by_split: dict[str, dict[str, list[str]]] = {}
    for name in every:
        split, role = _split_and_role(name)
        file, key = _file_and_key(name)
        role = asked.get(name, _split_and_role(key)[1] if file in called else role)
        by_split.setdefault(split, {"x": [], "y": [], "": []})[role].append(name)
    with_x = {split: roles for split, roles in by_split.items() if roles["x"]}
    for roles in (one for one in with_x.values() if max(len(one["x"]), len(one["y"])) > 1):
        raise LayoutError(_unclear([*roles["x"], *roles["y"]]))
    found = [SplitArrays(split, roles["x"][0], next(iter(roles["y"]), None)) for split, roles in with_x.items()]
    targets = [name for roles in by_split.values() for name in roles["y"]]
    if found and _is_complete(found, targets):
        # What is of no split is trained on, beside others. Training rows are first, whatever the order of the files.
        named = [one if len(found) == 1 or one.split else one._replace(split="train") for one in found]
        return sorted(named, key=lambda one: _ORDER.index(one.split) if one.split else 0)
    # A single array is the inputs, unless it is called as targets are.
    if len(every) == 1 and not targets:
        return [SplitArrays("", every[0], None)]
    raise LayoutError(_unclear(every))


def _is_complete(found: Sequence[SplitArrays], targets: Sequence[str]) -> bool:
    """Tell whether no targets are left where inputs lack them, and labelled rows to train on are left, and once."""
    bare = {one.split for one in found if one.y is None}
    # For another split or none: x_train beside labels. If they were left out, all samples would lack labels.
    has_more = len(targets) > len(found) - len(bare)
    nothing_to_train = len(bare) < len(found) and not bare.isdisjoint({"", "train"})
    return not (bare and has_more) and not nothing_to_train and not {"", "train"} <= {one.split for one in found}


def _unclear(names: Sequence[str]) -> str:
    if not names:
        return "No array has a row for each sample."
    if len(names) == 1:
        how = f"If it holds them: layout=array_rows(x={names[0]!r})."
        return f"'{names[0]}' is called as targets are, and there are no inputs. {how}"
    each = (
        " If each file is a class: files = sorted(pathlib.Path(FOLDER).glob('*.npy')), then numpy.savez('data.npz', "
        "x=numpy.concatenate([*map(numpy.load, files)]), y=[one.stem for one in files for _ in numpy.load(one)])."
    )
    parts = [*map(_file_and_key, names)]
    # The names in many files are more use than these; a few may be parts or splits.
    files, once = {file for file, _ in parts}, [*dict.fromkeys(key.removeprefix("/") for _, key in parts)]
    which = f"{listed(once)} in {len(files)} files" if all(once) and 2 * len(once) < len(files) else listed(names)
    return (
        f"Which of the arrays {which} are inputs and which targets? Expected one of each, such as X and y, or "
        "of each split, such as x_train and y_train. Or say so: layout=array_rows(x='NAME', y='NAME'), "
        "array_rows(x='NAME') for inputs alone, or array_rows('PART'), what the names of all that count have in common."
        f" Or give pack_dataset an object whose items are (x, y).{each * all(name.endswith('.npy') for name in names)}"
    )


def _called(names: Sequence[str], wanted: str) -> list[str]:
    return [name for name in names if name == wanted or f"/{_bare(name)}".endswith(f"/{_bare(wanted)}")]


def _only(names: Sequence[str], wanted: str) -> str:
    found = _called(names, wanted)
    if len(found) != 1:
        msg = f"{len(found)} arrays are called '{wanted}'; there are {listed(names)}."
        raise LayoutError(msg)
    return found[0]


def is_class_names(name: str) -> bool:
    """Tell whether an array has the name of a list of class names."""
    last = _bare(name.rpartition("/")[2]).lower()
    return last.removeprefix("train_").removeprefix("test_") in words.CLASS_LISTS


def _candidates(stored: Mapping[str, StoredArray]) -> list[str]:
    """Return the arrays that may be inputs or targets. Words and embeddings are inputs only where there are no others:
    names of features, or of files. So are structs and dicts, unless their own names say more."""
    held = {name: one for name, one in stored.items() if one.shape or one.trouble}
    every = [name for name in held if not is_class_names(name) and not _is_split_field(name)]
    facts = {name for name in every if held[name].trouble and not _split_and_role(posixpath.basename(name))[1]}
    names = [name for name in every if name not in facts] or every
    inputs = [name for name in names if _split_and_role(name)[1] == "x"]
    texts = {name for name in inputs if held[name].is_text and not held[name].trouble}
    texts |= {name for name in inputs if not _EMBEDDINGS.isdisjoint(_words_of_name(name))}
    unread = [name for name in every if held[name].trouble]
    if unread and all(name in unread or _split_and_role(name)[1] == "y" for name in every):
        _usable(held[unread[0]])
    return [name for name in names if name not in texts] if len(texts) < len(inputs) else names


def _is_split_field(name: str) -> bool:
    """Tell whether an array has the name of one that says which split each row belongs to."""
    return words.plain_name(_bare(posixpath.basename(name))) in words.SPLIT_FIELDS


def _is_of_groups(array: StoredArray) -> bool:
    """Tell whether an array says which patient, subject or group each row belongs to: groups.npy, subject_ids."""
    name = words.plain_name(_bare(posixpath.basename(array.name))).removesuffix("s")
    is_named = words.PERSONS.fullmatch(name) or words.SCENES.fullmatch(name)
    return bool(is_named) and math.prod(array.shape[1:]) == 1 and (array.is_text or array.dtype.kind in "biu")


def _first_with_role(files: FileEntries) -> str | None:
    """Return the first file that is named like the inputs or targets of many samples, or like their classes: X.npy,
    train_labels.npy; `None` if none is."""
    # No role has digits in its name, and names of samples mostly differ only in digits.
    first: dict[str, str] = {}
    for name in files.names:
        first.setdefault(posixpath.basename(name).translate(_SAME_DIGIT), name)
    return next((name for base, name in first.items() if _split_and_role(base)[1] or is_class_names(base)), None)


def _split_and_role(name: str) -> tuple[str, str]:
    """Return the split that a path's parts name, "" for none, and whether they name inputs ("x") or targets ("y").

    The last part that names one counts.
    """
    split = role = ""
    for part in () if is_class_names(name) else reversed(name.split("/")):
        spelled = _words_of_name(part)
        role = role or next(("x" if word in _X else "y" for word in reversed(spelled) if word in _X | _Y), "")
        splits = (_SPLITS_BESIDE.get(word) or words.split_name(word).split for word in spelled)
        split = split or next(filter(None, splits), "")
    return split, role


def _words_of_name(part: str) -> list[str]:
    """Return train_images, X-train, xTrain, XTrain and Xtrain in words."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=\b[XY])(?=[A-Z])", "_", _bare(part))
    spelled = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    split = [
        [word[0], word[1:]] if word[0] in "xy" and words.split_name(word[1:]).split else
        [word[:-1], word[-1]] if word[-1] in "xy" and words.split_name(word[:-1]).split else [word]
        for word in spelled
    ]  # fmt: skip
    return [word for pair in split for word in pair]


def _bare(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return stem if suffix.lower() in _SUFFIXES else name


# --- contents of arrays -----------------------------------------------------------------------------------------------


def arrays_state(source: Source, *, x: str | None = None, y: str | None = None) -> Found:
    """Read rows of arrays whose first axis counts samples.

    Inputs, targets and splits are recognised by name (X and y, x_train and y_train, images and labels, data and target,
    train.npz with any of these). uint8 inputs of shape `(N, H, W)` or `(N, H, W, C)` with 1, 3 or 4 channels are
    images; all others are stored as they are. Targets of one number for each sample become `(N,)`, integers int64;
    words become classes; integers of the shape of the images' pixels are masks.

    So are the files that well-known datasets are published as. `x`, `y`: the names of the arrays, or keys in their
    file, that hold inputs and targets, if they are not recognised.
    """
    published, used_files = published_arrays(source)
    files = source.ending_in(_SUFFIXES)
    require_files(files or published, source, "arrays (.npy, .npz, .h5, .mat, idx; CIFAR's and STL10's files)")
    matched = _matched(source, files, published, x, y)
    if isinstance(matched, Miss):
        return matched
    stored, every, joined = matched
    # Like unlabelled test images: if some rows had no labels, none could have any.
    chosen = [one for one in every if one.y is not None] or every
    used, stated = [one.x for one in chosen], [one.y for one in chosen if one.y is not None]
    # The names of classes that an array itself has are those of its own values.
    owners = {name: posixpath.dirname(name) for name in stored if is_class_names(name)}
    stored = {name: one for name, one in stored.items() if owners.get(name) not in {*stored}.difference(stated)}
    xs, ys = ([_usable(stored[name]) for name in names] for names in (used, stated))
    _check_turned([*xs, *ys], stored.values())
    _check_lengths(chosen, stored)
    inputs = _as_inputs(xs)
    targets, classes = _as_targets(ys, inputs, xs) if ys else (None, ())
    texts = _class_names(stored, len(classes) if isinstance(targets, Masks) else 0)
    targets, classes = _named(targets, classes, ys, texts[:1])
    known = {*stated, *(array.name for array in texts), *(one.x for one in every)}
    rest = {name: array for name, array in stored.items() if name not in known}
    beside = {name: array for name, array in rest.items() if array.shape[:1] == xs[0].shape[:1]}
    # Axes of a grid are called x and y as well; the array on the grid has their lengths, and others.
    shapes = {array.shape: itertools.combinations(range(len(array.shape) + 1), 2) for array in rest.values()}
    held = {shape: {shape[first:end] for first, end in cuts} - {shape} for shape, cuts in shapes.items()}
    grids = [name for name, array in rest.items() if not held[array.shape].isdisjoint(own.shape for own in xs)]
    if x is None and (grids or (targets is None and beside)):
        return near(_unclear([*used, *stated, *(name for name in rest if name in beside or name in grids)]))
    of_rows: Sequence[str] = [one.split for one, x_rows in zip(chosen, xs, strict=True) for _ in range(x_rows.shape[0])]
    splits = {} if any(of_rows) else _splits_beside(source, beside)
    of_rows = next(iter(splits.values()), of_rows)
    groups = next((name for name in beside if len(xs) == 1 and _is_of_groups(stored[name])), "")
    of_groups = kept_together(_as_words(stored[groups].whole().reshape(-1)) if groups else (), targets)
    unused = [name for name in rest if name not in splits and name != groups]
    parts = [part for array in xs for part in array.parts or (array,)]
    of_parts = [_file_and_key(part.name)[0] for part in parts]
    # A file for each patient or recording is a group; numbered parts of a dataset are none.
    ids = ("_".join((*words.letters_of(words.stem_of(file)), "id")) for file in of_parts)
    are_groups = bool(joined) and all(map(words.PERSONS.fullmatch, ids))
    of_files = [file for file, part in zip(of_parts, parts, strict=True) for _ in range(part.shape[0])]
    end = posixpath.splitext(of_parts[0])[1]
    stay = "each stays in one split" if are_groups else rf"group_by=r'.+\{end}' keeps each in one split"
    files_joined = f"Each of {joined:,} files holds rows of samples, one label for each; they are joined, and {stay}."
    bare = [one.x for one in every if one not in chosen]
    of_y = f", targets those of {listed(stated)}" if ys else "; there are no targets"
    notes = [
        f"Inputs are the rows of {listed(used)}{of_y}.",
        *left_out_notes(*((stored[name].shape[0], "rows", f"of '{name}', which has no targets,") for name in bare)),
        *(part.remark for array in (*xs, *ys) for part in array.parts or (array,) if part.remark),
        *([f"Other arrays were left out: {listed(unused)}."] if unused else []),
        *note_on_groups(groups, of_groups, of_rows, what="Rows"),
        *([files_joined] if joined else []),
        *(notes_on_labels(stated[0], targets, classes) if stated else ()),
    ]
    table = SampleTable(
        layout=NAME,
        keys=tuple(f"{part.name}[{row}]" for part in parts for row in range(part.shape[0])),
        inputs=inputs,
        targets=targets,
        splits=known_splits(of_rows),
        groups=of_groups or (of_files if are_groups else None),
        classes=classes,
        notes=tuple(notes),
        complete=measured if xs[0].are_files else None,
    )
    return Evidence(table, "the arrays' names", used_files.union(files.names), unused=tuple(unused))


def _matched(
    source: Source, files: FileEntries, published: Sequence[StoredArray], x: str | None, y: str | None
) -> tuple[dict[str, StoredArray], list[SplitArrays], int] | Miss:
    """Return all arrays by name, those that are inputs and targets, and how many files were joined; or why none."""
    if len(files) > _MAX_FILES:
        # A few are read: with so many files each is a sample, their folders may be classes, or each holds rows.
        spread = {_numbers_in(files.names[one * (len(files) - 1) // _LOOKED_AT]) for one in range(_LOOKED_AT + 1)}
        some = files.where(lambda name: _numbers_in(name) in spread)[:_MOST_LOOKED_AT]
        if not _join_series(_find_arrays(source, some, takes_packs=x is not None), x, y)[1]:
            return near(_each_a_sample(source, [*map(source.tree.written_name, files)]))
        # For each the file itself, and one handle each for its inputs and targets, if these are read in place.
        allow_open_files(3 * len(files))
    try:
        arrays = _find_arrays(source, files, takes_packs=x is not None, most=MOST_FIELDS if x is None else math.inf)
    except ManyArraysError:
        if (tree := unfolded(source)) is not None:
            return near(_each_a_sample(source, [*map(tree.written_name, tree.entries)]))
        arrays = _find_arrays(source, files, takes_packs=x is not None)
    found, joined = _join_series(arrays, x, y)
    stored = {one.name: one for one in [*found, *published]}
    try:
        every = (_find_numbered(stored) if x is None else []) or find_splits(_candidates(stored), x=x, y=y)
        return stored, every, joined
    except LayoutError as error:
        if frames := [one[1] for one in map(_OF_PANDAS.match, stored) if one is not None]:
            _, paths = source.addresses(files.where(frames[0].__eq__))
            return near(f"'{frames[0]}' holds a table of pandas. {as_arrays(f'pandas.read_hdf({paths[0]!r})')}")
        named = {_NUMBERED.sub("", name) for name in stored}
        patterns = {_DIGITS.sub("#", name) for name in named}
        are_numbered = x is None and len(named) >= max(_FEW_FILES, 2 * len(patterns))
        # With a number for each row of another array, rows are samples.
        shapes = {one.shape for one in stored.values()} - {(1,)}
        are_rows = not shapes.isdisjoint(shape[:1] for shape in shapes if len(shape) > 1)
        return near(_each_a_sample(source, [*stored]) if are_numbered and not are_rows else str(error))


def _splits_beside(source: Source, beside: Mapping[str, StoredArray]) -> dict[str, Sequence[str]]:
    """Return the arrays that say which split each row belongs to, all alike, and the splits."""
    held = {name: one for name, one in beside.items() if _is_split_field(name) and len(one.shape) == 1}
    fields = {name: {_bare(posixpath.basename(name)): _as_words(one.whole())} for name, one in held.items()}
    found = {name: splits for name, one in fields.items() if (splits := splits_of_fields(source.label, one)[1])}
    for name, splits in found.items():
        if splits != next(iter(found.values())):
            raise broken(name, f"it says other splits than '{next(iter(found))}'", "one array of splits")
    return found


def _class_names(stored: Mapping[str, StoredArray], least: int) -> list[StoredArray]:
    """Return the arrays with the names of the classes that files often have beside those of the samples, of one name
    and content; `least`: how many there are in masks."""
    lists = [array for name, array in stored.items() if is_class_names(name) and array.is_text and not array.trouble]
    texts = [array for array in lists if len(array.shape) == 1 and array.shape[0] >= least]
    # That of the targets themselves before others of their file.
    texts.sort(key=lambda one: posixpath.dirname(one.name) not in stored)
    # A file may have several: of fine and coarse classes.
    texts = [one for one in texts if posixpath.basename(one.name) == posixpath.basename(texts[0].name)]
    check_one_list({_as_words(one.whole()): one.name for one in reversed(texts)})
    return texts


def _named(
    targets: Targets | None, classes: tuple[str, ...], ys: Sequence[StoredArray], lists: Sequence[StoredArray]
) -> tuple[Targets | None, tuple[str, ...]]:
    """Return targets with the names of a list, if there is one: those of numbers, or the order of words."""
    names = next((_as_words(one.whole()) for one in lists), classes)
    if targets is None or not any(y.is_text for y in ys) or names == classes:
        return targets, names
    if not {*classes} <= {*names}:
        msg = (
            f"'{ys[0].name}' holds the classes {listed(classes, 4)}, and '{lists[0].name}' names {listed(names, 4)}. "
            "Name all of them, or none."
        )
        raise BrokenDatasetError(msg)
    return renumbered(targets, classes, names), names


def _find_arrays(source: Source, files: FileEntries, *, takes_packs: bool, most: float = math.inf) -> list[StoredArray]:
    """Return all arrays of some files, by file and key; only headers are read. Raises `ManyArraysError` if a file has
    more than `most`."""
    tree = source.tree
    found: list[StoredArray] = []
    for entry in files:
        refuse_stand_in(tree, entry)
        suffix = posixpath.splitext(entry.name)[1].lower()
        if suffix == NPY:
            found.append(read_npy(tree, entry, tree.written_name(entry)))
        elif suffix == _NPZ:
            found += npz_arrays(tree, entry, most=most)
        elif suffix == _MAT and not _is_hdf5(source.head(entry, 2 * _BLOCKS[-1])):
            found += matlab_arrays(tree, entry)
        else:
            found += hdf5_arrays(tree, entry, takes_packs=takes_packs, most=most)
    return found


def _is_hdf5(head: bytes) -> bool:
    return any(head.startswith(_OF_HDF5, place) for place in _BLOCKS)


def _join_series(arrays: Sequence[StoredArray], x: str | None, y: str | None) -> tuple[list[StoredArray], int]:
    """Return the arrays, with those of numbered files joined if each of these has rows of inputs and a label for each:
    train1.npz, train2.npz, or x_0.npy, x_1.npy, y_0.npy, y_1.npy; and how many files of inputs were joined."""
    by_pattern: dict[str, dict[_Numbers, StoredArray]] = {}
    for one in arrays:
        file, key = _file_and_key(one.name)
        by_pattern.setdefault(_DIGITS.sub("#", file) + key, {})[_numbers_in(file)] = one
    series: dict[frozenset[_Numbers], list[dict[_Numbers, StoredArray]]] = {}
    for files in by_pattern.values():
        series.setdefault(frozenset(files), []).append(files)
    found: list[StoredArray] = []
    count = 0
    # A single array with the given name is meant itself.
    is_one = x is not None and len(_called([one.name for one in arrays], x)) == 1
    for numbers, columns in series.items():
        joined, of_inputs = _joined(columns, x, y) if len(numbers) > 1 and not is_one else ([], 0)
        found += joined or [one for files in columns for one in files.values()]
        count += of_inputs
    return found, count


def _joined(
    columns: Sequence[dict[_Numbers, StoredArray]], x: str | None, y: str | None
) -> tuple[list[StoredArray], int]:
    """Return a series' arrays, each joined into one, and how many files have inputs; empty if a file lacks rows."""
    by_name = {next(iter(files.values())).name: files for files in columns}
    of_rows = [name for name, files in by_name.items() if all(one.shape for one in files.values())]
    try:
        splits = find_splits([name for name in of_rows if not is_class_names(name)], x=x, y=y)
    except LayoutError:
        return [], 0
    # Texts have the width of the longest one in the file.
    forms = {name: {(one.shape[1:], one.is_text or one.dtype) for one in by_name[name].values()} for name in of_rows}
    alike = {name for name, own in forms.items() if len(own) == 1}
    if any(one.y is None or not {one.x, one.y} <= alike for one in splits):
        return [], 0
    # One array has inputs, and the other one label for each of them.
    pairs = ((by_name[split.x], by_name[split.y or ""]) for split in splits)
    sides = [(one.shape, ys[number].shape) for xs, ys in pairs for number, one in xs.items()]
    if not all(len(x_shape) > 1 and x_shape[0] == y_shape[0] == math.prod(y_shape) for x_shape, y_shape in sides):
        return [], 0
    found = []
    for name, files in by_name.items():
        # Names of targets may sort in another order than those of their inputs.
        x_name = next((split.x for split in splits if name in (split.x, split.y)), splits[0].x)
        parts = [files[number] for number in by_name[x_name]]
        if is_class_names(name):
            found += parts
        elif name in alike:
            (first, key), (last, _) = (_file_and_key(one.name) for one in (parts[0], parts[-1]))
            found.append(StoredArray.joined(f"{first} … {last}{key}", parts))
        else:
            found.append(parts[0])
    return found, len({_file_and_key(one.name)[0] for split in splits for one in by_name[split.x].values()})


def _file_and_key(name: str) -> tuple[str, str]:
    """Return an array's file, and its key in it with a slash before; "" as the key of a .npy."""
    found = _OF_SEVERAL.match(name)
    return (found[1], name[found.end(1) :]) if found else (name, "")


def _numbers_in(file: str) -> _Numbers:
    return tuple(_DIGITS.findall(file))


def matlab_arrays(tree: Tree, entry: FileEntry) -> list[StoredArray]:
    """Return the numeric arrays of a file, samples first: with three axes or more they are along the last, as MATLAB's
    own programs store images."""
    try:
        from scipy import io as matlab
    except ImportError as error:
        refuse_import("scipy", f"'{entry.name}' is a MATLAB file of version 7 or older, which needs", error)
    try:
        # The header says only "double" even if the numbers are stored with fewer bytes.
        held = matlab.loadmat(SourceFile(open_member(tree, entry)))
    except Exception as error:  # scipy may raise anything for damaged bytes
        msg = f"'{entry.name}' is a damaged MATLAB file: {error}. Copy it again, or save it again with '-v7.3'."
        raise LayoutError(msg) from error
    # MATLAB's own notes, such as __function_workspace__, are arrays too.
    named = {key: values for key, values in held.items() if not key.startswith("__")}
    arrays = {key: values for key, values in named.items() if isinstance(values, np.ndarray) and values.size}
    # Characters of several rows are words, padded with blanks; others are a description.
    words_of = {key: np.char.rstrip(one) for key, one in arrays.items() if one.dtype.kind == "U" and one.size > 1}
    numeric = words_of | {
        key: values.astype(values.dtype.newbyteorder("="), copy=False)
        for key, values in arrays.items()
        if values.dtype.kind in "biufc"
    }
    found = []
    for key, values in numeric.items():
        # MATLAB has no arrays of one axis, so labels may be a row as well as a column.
        is_vector = values.size == max(values.shape)
        is_turned = values.ndim > 2 and not is_vector
        rows = values.reshape(-1, 1) if is_vector else np.moveaxis(values, -1, 0) if is_turned else values
        # SVHN counts from 1, like MATLAB, so the digit 0 has the label 10.
        rows = rows % 10 if _SVHN.search(entry.name) and key == "y" else rows
        made = StoredArray.in_memory(f"{entry.name}/{key}", rows, stamp_of(entry))
        found.append(replace(made, is_turned=is_turned))
    for key, values in arrays.items():
        if values.dtype.kind in "OV":
            # scipy calls each object "None"; its own name is in it.
            own = _as_text(values["s0"][0]) if values.dtype.names == _OBJECT else key
            found.append(StoredArray.in_memory(f"{entry.name}/{own}", np.zeros(0), "", OF_MATLAB))
    return found


def _each_a_sample(source: Source, names: Sequence[str]) -> str:
    return (
        f"'{source.label}' holds {len(names):,} arrays, or files of them, such as '{names[0]}': each is probably one "
        "sample, and rows of it none. Give pack_dataset an object whose items are (x, y), read by their number; or one "
        ".npz of all, numpy.savez('data.npz', x=numpy.stack(…), y=numpy.stack(…)). Files that hold rows of many "
        "samples each have x, and y with one number for each row."
    )


def _find_numbered(stored: Mapping[str, StoredArray]) -> list[SplitArrays]:
    """Return inputs and targets that numpy.savez(file, x, y) only numbered, if their shapes confirm it."""
    arrays = [stored[name] for name in sorted(stored)]
    if len(arrays) != 2 or any(not _NUMBERED.fullmatch(_bare(one.name.rpartition("/")[2])) for one in arrays):
        return []
    x, y = arrays
    fits = len(x.shape) > 1 and x.shape[:1] == y.shape[:1] and math.prod(x.shape[1:]) > 1 == math.prod(y.shape[1:])
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


def _may_count(key: str, shape: Sequence[int]) -> bool:
    """Tell whether an array may have one number for each sample, and is not the axis of a grid or of times."""
    is_axis = _split_and_role(key)[1] == "x" or posixpath.basename(key).lower() in ("t", "time")
    return math.prod(shape) == max(shape, default=0) > 1 and not is_axis


def _check_turned(used: Sequence[StoredArray], every: Collection[StoredArray]) -> None:
    """Refuse arrays of MATLAB if neither vectors nor images in colour show which axis counts the samples."""
    colours = {one.shape[0] for one in every if one.is_turned and one.dtype == np.uint8 and one.shape[3:] in _CHANNELS}
    counts = {math.prod(one.shape) for one in every if _may_count(_file_and_key(one.name)[1], one.shape)}
    for one in (one for one in used if one.is_turned and one.shape[0] not in colours):
        if one.shape[0] not in counts or one.shape[0] == one.shape[1]:
            what = f"'{one.name}' has the axes {(*one.shape[1:], one.shape[0])}; nothing shows which counts samples"
            msg = f"{what}, the first or the last. Save it with that axis first: numpy.savez('data.npz', x=x, y=y)."
            raise LayoutError(msg)


def _as_inputs(xs: Sequence[StoredArray]) -> Inputs:
    if all(array.are_files for array in xs):
        return Images(join_samples([array.rows() for array in xs]))
    shapes = [array.shape for array in xs if array.dtype == np.uint8]
    # Rows with three axes are images only if the last may count channels.
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
        # Targets with the shape of the images' pixels are one class per pixel, not several numbers.
        masks = find_masks(join_samples([y.rows() for y in ys]), decoded=True)
        return masks, masks.classes
    if all(y.are_files for y in ys):
        masks = find_masks(join_samples([y.rows() for y in ys]))
        return masks, masks.classes
    is_vector = all(math.prod(y.shape[1:]) == 1 for y in ys)
    nbytes = sum(math.prod(y.shape) * y.dtype.itemsize for y in ys)
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
    texts = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    return tuple(str(text) for text in texts.tolist())


# --- one file for each sample -----------------------------------------------------------------------------------------


EACH_A_SAMPLE = FileKind("array_folder", "arrays", (NPY,))


def array_folder_state(source: Source, state: Callable[[FileKind], Found]) -> Found:
    """Read .npy files of one sample each, which a table or class folders label, as `state` finds.

    All have the shape and dtype of the first, and are stored unchanged.
    """
    role = _first_with_role(require_files(source.ending_in((NPY,)), source, ".npy files"))
    if role is not None:
        msg = f"'{role}' is named like the inputs or targets of many samples, not like a single one."
        raise EmptySourceError(msg)
    found = state(EACH_A_SAMPLE)
    if isinstance(found, Miss):
        # Files outside class folders are arrays of many samples, for which `arrays_state` has a better message.
        return found if found.claims else Miss(EmptySourceError(str(found.error)))
    first = _usable(read_npy(source.tree, files_of(found.table)[0], found.table.keys[0]))
    files = found.table.inputs.source
    is_image = isinstance(_as_inputs([replace(first, shape=(1, *first.shape))]), Images)
    if is_image and len({*files.sizes.tolist()}) > 1:
        how = "Save each as a file, PIL.Image.fromarray(image).save('NAME.png')"
        return refuse(f"'{files.name(0)}' and others hold images of several sizes. {how}.")
    inputs = Arrays(files, first.shape, first.dtype, decode=decode_npy)
    return replace(found, table=replace(found.table, inputs=inputs))


def unfolded(source: Source) -> Unfolded | None:
    """Return the tree in which files of one array for each sample are folders; `None` if there are none."""
    return source.once(_unfold)


def _unfold(source: Source) -> Unfolded | None:
    return unfold(source, lambda name: _split_and_role(name)[1])


# The files in which well-known datasets are published, in formats of neither arrays nor images.
#
# MNIST's idx, CIFAR's pickles and .bin and STL10's .bin become arrays with the names that `arrays` understands. Tables
# of pixels are images: Kaggle's digits, with a column for each pixel, and FER2013, with one for all. CIFAR's pickles
# are opened by an unpickler that knows arrays, texts, numbers, lists and dicts, and calls nothing else: a file that
# asks for more is refused.


_IDX = re.compile(r"[-.]idx\d-[a-z0-9]+(\.gz)?$")
_IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_BATCH = re.compile(r"(data_batch_\d+|test_batch)(\.bin)?$|batches\.meta$")
# As from `extension_of` for the names of all these files: idx3-ubyte is none.
_ENDINGS = ("", ".gz", ".bin", ".meta")
_STL = re.compile(r"(train|test)_[Xy]\.bin$")
_PIXEL = np.dtype(np.uint8)
_CIFAR_SHAPE, _CIFAR_BYTES = (3, 32, 32), 3072
_STL_SHAPE, _STL_BYTES = (3, 96, 96), 27648
_CLASSES = ("class_names.txt", "batches.meta.txt", "fine_label_names.txt")
# Everything that a CIFAR pickle may name, in numpy's old and new spelling, and what replaces it.
_REBUILD: Any = np.empty(0).__reduce__()[0]
_HARMLESS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # How newer versions of Python write empty bytes for older ones.
    ("__builtin__", "bytes"): lambda: b"",
    ("_codecs", "encode"): lambda text, _: text.encode("latin-1"),
}


def published_arrays(source: Source) -> tuple[list[StoredArray], frozenset[str]]:
    """Return the arrays of all files that have the names of these datasets' files, batches of one split joined; and
    these files."""
    by_kind: dict[str, list[FileEntry]] = defaultdict(list)
    # Filtering by extension first spares checking each of a million names.
    for entry in source.ending_in(_ENDINGS):
        by_kind[_format_of(entry, source.label)].append(entry)
    # torchvision keeps the .gz beside the unpacked file, and Kaggle's MNIST has each file under two names.
    once = {posixpath.basename(one.name).lower().removesuffix(".gz").replace(".", "-"): one for one in by_kind["idx"]}
    found = [_read_idx(source, entry) for entry in sorted(once.values(), key=lambda entry: entry.name)]
    found += _cifar_arrays(source, by_kind["cifar"])
    found += [_stl_array(source, entry) for entry in by_kind["stl"]]
    binary = [entry.name for kind in ("cifar", "stl") for entry in by_kind[kind] if entry.name.endswith(".bin")]
    beside = {posixpath.join(posixpath.dirname(name), one) for name in binary for one in _CLASSES}
    lists = source.ending_in((".txt",) if beside else ()).where(beside.__contains__)
    for name, text in source.texts(lists).items():
        called = posixpath.join(posixpath.dirname(name), "class_names")
        found.append(StoredArray.in_memory(called, np.array(text.split()), ""))
    named = (entry.name for kind, entries in by_kind.items() for entry in entries if kind)
    return found, frozenset((*named, *lists.names))


# By names, because pickles and .bin files begin with nothing that identifies them.
def _format_of(entry: FileEntry, label: str) -> str:
    base, folder = posixpath.basename(entry.name), words.folder_of(entry.name) or label
    if _IDX.search(base.lower()):
        return "idx"
    if _BATCH.match(base) or (base.removesuffix(".bin") in ("train", "test", "meta") and "cifar-100" in folder):
        return "cifar"
    return "stl" if _STL.match(base) and entry.size % (_STL_BYTES if "_X" in base else 1) == 0 else ""


def _read_idx(source: Source, entry: FileEntry) -> StoredArray:
    content = open_unpacked(source.tree, entry)
    # Two zeros, a code for the type, the number of axes; then the length of each axis.
    head = content.pread(4, 0)
    dtype = _IDX_DTYPES.get(head[2]) if len(head) == 4 and head[:2] == b"\0\0" and head[3] else None
    sides = content.pread(4 * head[3], 4) if dtype else b""
    shape, start = struct.unpack(f">{len(sides) // 4}I", sides[: len(sides) // 4 * 4]), 4 + len(sides)
    stored = np.dtype(dtype or np.uint8)
    # The format has no checksum, so its length is the only proof that a download is complete.
    needed = start + math.prod(shape) * stored.itemsize
    if dtype is None or content.size != needed:
        what = f"it begins with {head!r}, has {content.size:,} bytes, and takes {needed:,} for the shape {shape}"
        msg = f"'{entry.name}' is not an idx file (the format of MNIST), or cut off: {what}."
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


def _cifar_arrays(source: Source, entries: Sequence[FileEntry]) -> list[StoredArray]:
    """Return one array of images, and one for each kind of labels, for each split of each folder."""
    batches: dict[str, list[dict[str, NDArray[Any]]]] = defaultdict(list)
    stamps: dict[str, list[str]] = defaultdict(list)
    found: list[StoredArray] = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        folder, base = posixpath.split(entry.name)
        is_binary = base.endswith(".bin")
        held = _binary_batch(source, entry) if is_binary else _unpickle(source.read(entry), entry.name)
        names = held.get("label_names", held.get("fine_label_names"))
        split = posixpath.join(folder, "test" if base.startswith("test") else "train")
        if names is not None:
            texts = np.array([_as_text(name) for name in names])
            found.append(StoredArray.in_memory(posixpath.join(folder, "label_names"), texts, ""))
        elif "data" in held:
            batches[split].append(_checked_batch(entry, held))
            stamps[split].append(stamp_of(entry))
    for split, parts in batches.items():
        for kind in parts[0]:
            values = np.concatenate([one[kind] for one in parts])
            if kind == "data":
                values = np.ascontiguousarray(values.reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1))
            stamp = " ".join(stamps[split]) if kind == "data" else ""
            found.append(StoredArray.in_memory(f"{split}_{kind}", values, stamp))
    return found


def _checked_batch(entry: FileEntry, held: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the images of one file, `(N, 3072)`, and their labels by kind."""
    data, labels = held["data"], held.get("labels", held.get("fine_labels"))
    # A pickle may hold anything of any shape, even under the right names.
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_CIFAR_BYTES,)
    if not whole or not isinstance(labels, list) or len(labels) != len(data):
        msg = f"'{entry.name}' is a pickle, and not one of CIFAR's: expected 'data' (N, 3072) and N 'labels'."
        raise LayoutError(msg)
    kinds = {"labels": labels} | ({"coarse": held["coarse_labels"]} if "coarse_labels" in held else {})
    return {"data": data, **{kind: np.array(each, np.int64) for kind, each in kinds.items()}}


def _binary_batch(source: Source, entry: FileEntry) -> dict[str, Any]:
    """Return the rows of a file: a label and an image; of CIFAR-100, after a label of the coarse class."""
    content, step = source.read(entry), _CIFAR_BYTES + (1 if _BATCH.match(posixpath.basename(entry.name)) else 2)
    # Only its length tells that it is one.
    if not content or len(content) % step:
        raise broken(entry.name, f"it has {len(content):,} bytes", f"{step:,} for each image, as CIFAR's files have")
    rows = np.frombuffer(content, np.uint8).reshape(-1, step)
    return {"data": rows[:, -_CIFAR_BYTES:], "labels": rows[:, -_CIFAR_BYTES - 1].tolist()}


def _stl_array(source: Source, entry: FileEntry) -> StoredArray:
    content, name, stamp = open_unpacked(source.tree, entry), entry.name.removesuffix(".bin"), stamp_of(entry)
    if name.endswith("y"):
        # The file counts from 1, as MATLAB does.
        labels = np.frombuffer(content.pread(content.size, 0), np.uint8).astype(np.int64) - 1
        return StoredArray.in_memory(name, labels, stamp)
    count = content.size // _STL_BYTES
    stored = rows_of_file(content, 0, count, _STL_SHAPE, _PIXEL, stamp=stamp)
    # An image is stored column by column.
    rows = map_samples(stored, lambda image: np.ascontiguousarray(image.transpose(2, 1, 0)), to_rows=True)
    shape = (count, *_STL_SHAPE[:0:-1], _STL_SHAPE[0])
    return StoredArray(name, shape, _PIXEL, lambda: rows, lambda: np.stack([*map(rows.read, range(count))]))


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
        return {_as_text(key): value for key, value in held.items()}
    except Exception as error:  # a damaged pickle may raise anything
        msg = (
            f"'{name}' has the name of a CIFAR file and cannot be read as one: {error}. Nothing in a pickle that "
            "could run a program is ever loaded here."
        )
        raise LayoutError(msg) from error


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# --- tables of pixels -------------------------------------------------------------------------------------------------

# A header of 28 x 28 x 3 named columns and one row of them.
_HEAD_BYTES = 256 * 1024
_READ_BYTES = 8 * 1024 * 1024
# pixel0 and pixel0001, or 1x1 for a row and a column.
_PIXEL_COLUMN = re.compile(r"pixel_?\d+|\d+x\d+")
# Fewer columns with such names are some other measurement.
_FEWEST = 16
# Shares of the rows that have the most common value of a column.
_RARELY, _MOSTLY = 0.5, 0.9
# In order of credibility: "y" may also be a coordinate.
_LABELS = ("label", "class", "emotion", "target", "y")
# Rows for each picture beside the tables, from which on the pictures are no samples.
_SHOWN = 10
# The splits of FER2013, two of which are called tests.
_USAGE = {"Training": "train", "PublicTest": "val", "PrivateTest": "test"}


class _PixelColumns(NamedTuple):
    """The columns of a table: those to the left of the pixels, and to the right of them."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    shape: tuple[int, ...]
    delimiter: bytes
    """What is between two pixels: a blank if all are in one column."""
    has_header: bool = True

    def cut(self, line: bytes) -> tuple[list[str], bytes]:
        """Return the cells beside the pixels of a row, and the pixels."""
        # A line may have thousands of cells, so it is split no further than necessary.
        *before, rest = line.split(b",", len(self.before))
        pixels, *after = rest.rsplit(b",", len(self.after)) if self.after else [rest]
        return [_cell(cell).decode("utf-8", "replace") for cell in (*before, *after)], pixels


class _Table(NamedTuple):
    """One table, N rows, whose pixels are parsed when packed: in memory all would be several times the pack."""

    name: str
    columns: _PixelColumns
    images: SampleSource
    fields: dict[str, list[Any]]


def pixels_state(source: Source) -> Found:
    """Read .csv files whose rows are images: square, with one or three channels; and records of their other columns."""
    tables = {entry: _read_head(source, entry) for entry in source.ending_in((".csv",))}
    for entry, count in ((entry, count) for entry, (_, count) in tables.items() if count):
        return near(_no_header(entry, count))
    of_pixels = {entry: columns for entry, (columns, _) in tables.items() if columns is not None}
    copies = _copies(source, list(of_pixels))
    found = [_read_rows(source.tree, entry, own) for entry, own in of_pixels.items() if entry not in copies]
    require_files(found, source, "table of pixels (.csv with columns label, pixel0, … or label, pixels)")
    # Whichever is taken, the other may be the dataset; numbers beside photographs are mostly measurements of them. But
    # a few pictures beside many rows only show what these are.
    pictures = source.ending_in(words.IMAGES)
    if _SHOWN * len(pictures) > sum(len(one.images) for one in found):
        how = only_line(source.tree, *(one.name for one in found))
        msg = f"'{source.label}' holds images as files beside '{found[0].name}', which holds pixels. For these: {how}."
        raise LayoutError(msg)
    # Kaggle's test sets have no classes, so there is nothing to train on or to compare with.
    fields_of_each, rows = [one.fields for one in found], [[()] * len(one.images) for one in found]
    kept, lost = labelled_shards([one.name for one in found], fields_of_each, rows)
    used = [found[number] for number in kept]
    for other in (one for one in used if one.columns.shape != used[0].columns.shape):
        what = f"its images have the shape {other.columns.shape}, and those of '{used[0].name}' {used[0].columns.shape}"
        raise broken(other.name, what, f"one for all, such as {only_line(source.tree, used[0].name)}")
    bare = [one for one in used if not one.columns.has_header]
    if bare:
        where = "last" if bare[0].columns.after else "first"
        lost.append(f"'{bare[0].name}' has no header; the {where} number of each row is taken for its class.")
    images = Images(join_samples([one.images for one in used]), decoded=True, own_channels=True)
    fields = join_fields([(one.fields, len(one.images)) for one in used])
    made = records_state(
        "pixel_table",
        "a table of pixels",
        images,
        labels_of_fields(fields, [images.source.name(row) for row in range(len(images))], first=_LABELS),
        shards=[one.name for one in used],
        shard_of=np.repeat(np.arange(len(used)), [len(one.images) for one in used]),
        fields=fields,
        notes=lost,
    )
    return replace(made, used=frozenset(one.name for one in of_pixels))


def _read_head(source: Source, entry: FileEntry) -> tuple[_PixelColumns | None, int]:
    """Return a table's columns, if it has pixels; and how many there are if nothing says which these are, otherwise
    0."""
    head = source.head(entry, _HEAD_BYTES)
    columns, cells = _read_columns(entry.name, head), _cells(head.partition(b"\n")[0])
    are_numbers = all(cell.isdigit() for cell in cells) and _shape(len(cells) - 1) is not None
    if columns is None and are_numbers:
        columns = _bare_columns([_cells(line) for line in head.split(b"\n")[:-1]])
    return columns, len(cells) - 1 if columns is None and are_numbers else 0


def _no_header(entry: FileEntry, count: int) -> str:
    names = f"['label', *map('pixel{{}}'.format, range({count}))]"
    return (
        f"'{entry.name}' has numbers in its first line, as many as a square image has and its class, no header, and "
        "nothing else that shows which column is the class. Write a header; for classes in the first column: "
        f"pandas.read_csv('{entry.name}', header=None, names={names}).to_csv('{entry.name}', index=False)."
    )


def _bare_columns(rows: list[list[bytes]]) -> _PixelColumns | None:
    """Return the columns of a table without a header, by its first rows; `None` if they do not show.

    At one end of each row is a corner of its image, mostly of one shade; at the other its class, rarely the same.
    """
    last, count, label = len(rows[0]) - 1, len(rows), _LABELS[:1]
    shape = _shape(last)
    common = [max(Counter(row[place] for row in rows if len(row) > last).values()) / count for place in (0, last)]
    for (own, other), before, after in ((common, label, ()), (common[::-1], (), label)):
        if shape is not None and count >= _FEWEST and own < _RARELY and other > _MOSTLY:
            return _PixelColumns(before, after, shape, b",", has_header=False)
    return None


def _copies(source: Source, tables: Sequence[FileEntry]) -> set[FileEntry]:
    """Return the tables that repeat another one of their name: Kaggle unpacks train.csv and train/train.csv."""
    alike: dict[tuple[str, int], FileEntry] = {}
    pairs = [(entry, alike.setdefault((posixpath.basename(entry.name), entry.size), entry)) for entry in tables]
    return {one for one, first in pairs if one is not first and source.tree.read(one) == source.tree.read(first)}


def _read_columns(table: str, head: bytes) -> _PixelColumns | None:
    """Return the columns according to a table's header; `None` if it has no pixels."""
    header, _, rest = head.partition(b"\n")
    written = [name.strip().strip('"') for name in decode_text(header).split(",")]
    names = [*map(str.lower, written)]
    numbers = [number for number, name in enumerate(names) if _PIXEL_COLUMN.fullmatch(name)]
    count, delimiter = len(numbers), b","
    if "pixels" in names:
        numbers = [names.index("pixels")]
        # The first row decides; one that differs is an error that names it when it is read.
        cells = _cells(rest.partition(b"\n")[0])
        count, delimiter = len(cells[numbers[0]].split()) if len(cells) > numbers[0] else 0, b" "
    shape = _shape(count)
    # The pixels of a row are cut out as one slice.
    if shape is None or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    # A number, or a row and a column.
    places = [tuple(map(int, re.findall(r"\d+", names[number]))) for number in numbers]
    for number, (one, other) in zip(numbers, itertools.pairwise(places), strict=False):
        if other != (*one[:-1], one[-1] + 1) and not (len(one) == 2 and other[:-1] == (one[0] + 1,)):
            what = f"'{names[number + 1]}' follows '{names[number]}'"
            raise broken(table, what, "the columns of all pixels, in their order")
    return _PixelColumns(tuple(written[: numbers[0]]), tuple(written[numbers[-1] + 1 :]), shape, delimiter)


def _shape(count: int) -> tuple[int, ...] | None:
    """Return the shape of a square image with this number of values; `None` if there is none."""
    # The count alone tells grey from colour: three times a square is never a square.
    for channels in (1, 3):
        side = math.isqrt(max(count, 0) // channels)
        # Tables do not state height and width, so only squares can be recognised.
        if count >= _FEWEST and side * side * channels == count:
            return (side, side) if channels == 1 else (side, side, channels)
    return None


def _cells(line: bytes) -> list[bytes]:
    return [*map(_cell, line.split(b","))]


def _cell(written: bytes) -> bytes:
    return written.strip().strip(b'"')


def _read_rows(tree: Tree, entry: FileEntry, columns: _PixelColumns) -> _Table:
    source = open_member(tree, entry)
    parts, end, corners = array("q"), 0, Counter[bytes]()
    names = [*columns.before, *columns.after]
    values: list[list[Any]] = [[] for _ in names]
    # One by one, because a table of images may have gigabytes. Only the positions of lines are kept.
    for number, line in enumerate(io.BufferedReader(SourceFile(source), _READ_BYTES), 1):
        start, end = end, end + len(line)
        if (number == 1 and columns.has_header) or not line.strip():
            continue
        line = line.removesuffix(b"\n")  # noqa: PLW2901
        parts.extend((0, start, len(line)))
        cells, pixels = columns.cut(line)
        if len(cells) < len(names):
            raise broken(entry.name, f"it has {len(cells)} cells beside the pixels", str(len(names)), line=number)
        for name, own, cell in zip(names, values, cells, strict=True):
            # pandas writes a column of integers as floats if one of them was once missing.
            own.append(parse_label(_USAGE.get(cell, cell).removesuffix(".0")))
            # Words could be numbered here, but a word in this column of numbers is a row that is shifted.
            if name.lower() in _LABELS and not isinstance(own[-1], int):
                raise broken(entry.name, f"it has the class {show(cell)!r}", "a number", line=number)
        if not columns.has_header:
            corners[pixels.partition(b",")[0] if columns.after else pixels.rpartition(b",")[2]] += 1
    if corners and max(corners.values()) <= _MOSTLY * corners.total():
        # These are the classes, sorted, and those of the first rows a corner.
        raise BrokenDatasetError(_no_header(entry, math.prod(columns.shape)))
    rows = [f"{entry.name}[{row}]" for row in range(len(parts) // 3)]
    file = ShardFile(entry.name, stamp_of(entry), lambda: source)
    lines = ShardParts([file], np.frombuffer(parts, np.int64).reshape(-1, 3), rows)
    images = map_samples(lines, partial(_pixels_of, columns), to_rows=True)
    return _Table(entry.name, columns, images, dict(zip(names, values, strict=True)))


def _pixels_of(columns: _PixelColumns, line: bytes) -> NDArray[np.uint8]:
    text, count = columns.cut(line)[1].strip(b' \r"'), math.prod(columns.shape)
    values = np.zeros(0, np.int64)
    # Eight times as fast as `int` for each cell; but numpy before 2.4 only warns if the last is no whole number.
    if not text.translate(None, b"0123456789" + columns.delimiter):
        with contextlib.suppress(ValueError):
            values = np.fromstring(text, np.int64, sep=columns.delimiter.decode())
    if len(values) != count or values.max() > 255:
        msg = f"The pixels are {show(text.decode(errors='replace'))!r}; expected {count:,} whole numbers from 0 to 255."
        raise DecodeError(msg)
    return values.astype(np.uint8).reshape(columns.shape)
