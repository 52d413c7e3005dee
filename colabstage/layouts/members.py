"""Files of many arrays, one for each sample, as folders: an HDF5 file or an .npz as a tree of images and .npy files.

Paths in it, tables and lists beside it then say what they say of files in folders. Attributes, and single numbers and
words in it, are a table.
"""

from __future__ import annotations

import csv
import io
import json
import math
import posixpath
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, LayoutError
from colabstage.layouts import words
from colabstage.layouts.reading import Source, open_member
from colabstage.layouts.stored import NPY, links_of, npz_arrays, open_hdf5
from colabstage.layouts.table import Arrays, Images, Masks, SampleSource, SampleTable, TreeFiles, measured, rows_of_file
from colabstage.trees.bytes import HEAD_BYTES, image_ending
from colabstage.trees.listing import FileEntries, FileEntry, Tree, TreeView, sorted_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from colabstage.trees.bytes import ByteSource

SUFFIXES = (".npz", ".h5", ".hdf5", ".hdf", ".he5")
# A file with more arrays than anybody has fields may hold samples; one with fewer than the first does not.
_FEWEST, MOST_FIELDS = 4, 256
# A table has as many axes as a grey image.
_AXES_OF_TABLE = 2
# So many of the values that may be image files are looked at.
_LOOKED_AT = 3
_DIGITS, _LETTERS, _BETWEEN = re.compile(r"[0-9a-fA-F]{8,}|\d+"), re.compile(r"[A-Za-z]+"), re.compile(r"[^A-Za-z0-9]+")
# Attributes that libraries write for themselves.
_OF_LIBRARIES = re.compile(
    r"(TITLE|VERSION|FLAVOR|NROWS|EXTDIM|H5PATH|IMAGE_\w+|DISPLAY_\w+|INTERLACE_MODE|_\w+)=.*|CLASS=(IMAGE|\w*ARRAY|GROUP)"
)
# An attribute may be a box; more numbers are none.
_MOST_VALUES, _MOST_VALUES_OF_SAMPLE = 64, 1 << 28
_TABLE = "attributes.csv"
# What h5py raises for damage and for types that numpy lacks.
_OF_DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError)
# Bytes of any length.
_BYTES = np.dtype("V1")
# The header of a .npy is not longer.
_HEADER_BYTES = 256


class Member(NamedTuple):
    """One array of a file, or one value."""

    key: str
    kind: Literal["pixels", "file", "array", "fact"]
    """What it is: pixels, the bytes of a file, another array, or one number or word about a sample."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Of the values; native byte order."""
    position: int
    read: Callable[[], Any]
    """Returns the array, or the bytes."""
    facts: Mapping[str, str]
    """Its attributes that are one number or word."""

    @classmethod
    def of(cls, key: str, shape: tuple[int, ...], dtype: np.dtype[Any], *rest: Any) -> Member | None:
        """Return the member for an array; `None` if it is neither numbers nor a word nor bytes."""
        count = math.prod(shape)
        has_sides = shape[2:] in ((), (1,), (3,), (4,)) and min(shape[:2], default=0) > 1
        if (dtype == np.uint8 and len(shape) == 1 < count) or dtype == _BYTES or (dtype.kind == "V" and not shape):
            # Unless its bytes show something else.
            kind = "file"
        elif count == 1:
            kind = "fact" if dtype.kind in "biufSUO" else ""
        else:
            kind = "pixels" if dtype == np.uint8 and has_sides else "array" if dtype.kind in "biufc" else ""
        return cls(key, kind, shape, dtype, *rest) if kind else None  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """Return how long its values are in bytes, with a header for arrays; of bytes of any length, 0."""
        count = math.prod(self.shape) * self.dtype.itemsize
        return 0 if self.dtype == _BYTES else count + _HEADER_BYTES * (self.kind == "array")

    def content(self) -> bytes:
        """Return the file that it would be."""
        values = np.asarray(self.read())
        if self.kind == "file":
            return values.tobytes()
        file = io.BytesIO()
        if self.kind == "pixels":
            from PIL import Image

            Image.fromarray(values.squeeze().astype(np.uint8, copy=False)).save(file, "PNG", compress_level=0)
        else:
            np.save(file, values)
        return file.getvalue()


# --- what a file holds ------------------------------------------------------------------------------------------------


def _npz_members(tree: Tree, entry: FileEntry) -> Iterator[Member | None]:
    for number, one in enumerate(npz_arrays(tree, entry)):
        if not one.trouble:
            yield Member.of(one.name[len(entry.name) + 1 :], one.shape, one.dtype, number, one.whole, {})


def _hdf5_members(tree: Tree, entry: FileEntry) -> Iterator[Member | None]:
    """Yield what a file holds itself: nothing behind links."""
    from h5py import h5d, h5g, h5o

    content = open_member(tree, entry)
    file = open_hdf5(tree, entry, content)
    # Before its bytes come others, and places count from its own.
    placed = None if file.userblock_size else content
    seen = set[int]()
    waiting: list[tuple[bytes, Any, dict[str, str]]] = [(b"", file.id, {})]
    while waiting:
        above, group, stated = waiting.pop()
        for name in links_of(group):
            node, key = h5o.open(group, name), above + name
            # A group may hold one above it, and an array have several names.
            if (address := h5o.get_info(node).addr) in seen:
                continue
            seen.add(address)
            facts = stated | _facts_of(node)
            if isinstance(node, h5g.GroupID):
                waiting.append((key + b"/", node, facts))
            elif isinstance(node, h5d.DatasetID):
                yield _hdf5_member(file, placed, node, key.decode(errors="surrogateescape"), facts)


class _Bound(NamedTuple):
    """All that h5py needs of an object to read its attributes; the object itself is slow to make."""

    id: Any


def _facts_of(node: Any) -> dict[str, str]:
    from h5py import AttributeManager, h5a

    if not h5a.get_num_attrs(node):
        return {}
    held, own = AttributeManager(_Bound(node)), dict[str, str]()
    for name in held:
        # What numpy has no type for is no label.
        with suppress(*_OF_DAMAGE):
            own[name] = _as_text(held[name])
    return {name: text for name, text in own.items() if text and not _OF_LIBRARIES.fullmatch(f"{name}={text}")}


def _as_text(value: Any) -> str:
    """Return one number or word, or a few, as a table has it; "" for anything else."""
    values = np.asarray(value)
    if values.size == 1 and values.dtype.kind in "biufSUO":
        one = values.reshape(-1).tolist()[0]
        return one.decode(errors="replace") if isinstance(one, bytes) else str(one)
    return json.dumps(values.tolist()) if values.dtype.kind in "biuf" and values.size <= _MOST_VALUES else ""


def _hdf5_member(file: Any, content: ByteSource | None, node: Any, key: str, facts: Mapping[str, str]) -> Member | None:
    from h5py import check_string_dtype, check_vlen_dtype

    place, shape = node.get_offset(), node.shape
    try:
        dtype = node.dtype
    except (TypeError, ValueError):
        return None
    # A file of a few bytes may claim an array of any size, and no sample is as large.
    if not 0 < math.prod(shape or ()) <= _MOST_VALUES_OF_SAMPLE:
        return None
    if dtype.kind == "O":
        place = None
        if math.prod(shape) == 1 and check_vlen_dtype(dtype) == np.uint8:
            dtype = _BYTES
        elif check_string_dtype(dtype) is None:
            return None
    read = partial(_read, file, key, dtype)
    if content is not None and place is not None:
        read = partial(_read_in_place, content, place, dtype, shape)
    return Member.of(key, shape, dtype.newbyteorder("="), place or 0, read, facts)


def _read_in_place(content: ByteSource, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    # Many at once; HDF5 reads one after the other.
    return rows_of_file(content, place, 1, shape, dtype, stamp="").read(0)


def _read(file: Any, key: str, dtype: np.dtype[Any]) -> Any:
    try:
        node = file[key]
        values = node[()] if node.id.get_storage_size() else None
    except _OF_DAMAGE as error:
        msg = f"It cannot be read from the HDF5 file: {error}."
        raise DecodeError(msg) from error
    if values is None:
        msg = "It was never written: it has a shape in the HDF5 file, and no values."
        raise DecodeError(msg)
    if dtype == _BYTES:
        return values if values.dtype == np.uint8 else values.reshape(-1)[0]
    return values.astype(dtype.newbyteorder("="), copy=False) if dtype.kind in "biufc" else values


def _with_files(members: Sequence[Member], role_of: Callable[[str], str]) -> list[tuple[str, Member]]:
    """Return the samples among members with the names of the files that they would be: bytes are files if they are
    called so, or if those of some are images; whole numbers called as targets are, of the form of pixels, are masks."""
    may_be = [one for one in members if one.kind == "file"]
    endings, found = [], list[tuple[str, Member]]()
    for one in may_be[:: max(1, len(may_be) // _LOOKED_AT)]:
        # What cannot be read is reported when it is packed.
        with suppress(ColabstageError):
            endings.append(image_ending(np.asarray(one.read()).tobytes()[:HEAD_BYTES]))
    are_images = bool(endings) and all(endings)
    for one in members:
        kind, end = one.kind, ".png" if one.kind == "pixels" else endings[0] if are_images else ""
        if kind == "file" and not are_images and not words.is_sample(one.key):
            kind = "array" if one.dtype == np.uint8 else "fact"
        are_sides = len(one.shape) == _AXES_OF_TABLE and min(one.shape) > 1
        if kind == "array" and one.dtype.kind in "biu" and are_sides and role_of(one.key) == "y":
            kind, end = "pixels", ".png"
        made = one._replace(kind=kind)
        if kind == "array":
            found.append((f"{one.key.removesuffix(NPY)}{NPY}", made))
        elif kind != "fact":
            found.append((one.key if words.is_sample(one.key) else f"{one.key}{end}", made))
    return found


def _table(samples: Sequence[tuple[str, Member]], facts: Sequence[Member], role_of: Callable[[str], str]) -> bytes:
    """Return a table of what attributes and single values state about samples, b"" for nothing: y_7 is about x_7 or 7,
    and 7/label and 7/age about 7/image."""

    def number_of(key: str) -> str:
        bare = _LETTERS.sub(lambda word: "" if role_of(word[0]) else word[0], key)
        return " ".join(filter(None, _BETWEEN.split(bare)))

    rows = {name: dict(one.facts) for name, one in samples}
    by_number = {number_of(one.key): name for name, one in samples} if facts else {}
    for fact in facts:
        folder, base = posixpath.split(fact.key)
        label = next((word for word in reversed(_LETTERS.findall(fact.key)) if role_of(word) == "y"), "")
        name = by_number.get(number_of(fact.key if label else folder))
        if name is not None:
            rows[name][label or base] = _as_text(fact.read())
    columns = [*dict.fromkeys(name for row in rows.values() for name in row if name != "path")]
    if not columns:
        return b""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["path", *columns])
    table.writerows([name, *(row.get(column, "") for column in columns)] for name, row in rows.items())
    return text.getvalue().encode(errors="surrogateescape")


# --- as a tree --------------------------------------------------------------------------------------------------------


class _Container(Tree):
    """The members of a file as files."""

    kind = "file"

    def __init__(
        self, tree: Tree, outer: FileEntry, members: Sequence[Member | None], role_of: Callable[[str], str]
    ) -> None:
        self.outer, self._role_of = outer.name, role_of
        self.label = f"{tree.label}: {outer.name}"
        held = [one for one in members if one is not None]
        self._samples = _with_files(held, role_of)
        table = _table(self._samples, [one for one in held if one.kind == "fact"], role_of)
        files: list[tuple[str, Member | bytes]] = [*self._samples, *([(_TABLE, table)] if table else [])]
        sizes = np.array([len(one) if isinstance(one, bytes) else one.size for _, one in files], np.int64)
        places = np.array([getattr(one, "position", 0) for _, one in files], np.int64)
        names, columns, order = sorted_by_name([name for name, _ in files], sizes, places)
        times, flags = np.full(len(names), outer.mtime_ns, np.int64), np.zeros(len(names), np.bool_)
        self.entries = FileEntries(names, columns[0], times, columns[1], flags)
        self._files = [files[number][1] for number in order.tolist()]

    def read(self, entry: FileEntry) -> bytes:
        found = self.member(entry)
        return found if isinstance(found, bytes) else found.content()

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        yield self.read(entry)

    def member(self, entry: FileEntry) -> Member | bytes:
        found: Member | bytes = self._files[self._own(entry)]
        return found

    @property
    def is_folder(self) -> bool:
        """Tell whether its arrays are samples: several under one name and a number, or image files; and not rows of one
        array with a number for each in another, nor beside a single one that is called as inputs are."""
        samples = [one for _, one in self._samples]
        patterns: dict[str, list[str]] = defaultdict(list)
        for one in samples:
            patterns[_DIGITS.sub("#", one.key)].append(one.key)
        are_files = any(words.is_image(one.key) or one.kind == "file" for one in samples)
        if not are_files and not _FEWEST <= len(samples) >= 2 * len(patterns):
            return False
        shapes = {one.shape for one in samples if one.kind == "array" or len(one.shape) == _AXES_OF_TABLE}
        are_rows = any(not shapes.isdisjoint({shape[:1], (*shape[:1], 1)}) for shape in shapes if len(shape) > 1)
        alone = (own[0] for own in patterns.values() if len(own) == 1)
        return not (are_rows or any("/" not in key and self._role_of(key) == "x" for key in alone))


class Unfolded(TreeView):
    """A tree in which such files are folders."""

    is_unfolded = True

    def __init__(self, tree: Tree, containers: Sequence[_Container]) -> None:
        self.kind, self.label, self.prefix, self.notes = tree.kind, tree.label, tree.prefix, tree.notes
        whole = {one.outer for one in containers}
        own = np.array([row for row, name in enumerate(tree.entries.names) if name not in whole], np.int64)
        count = sum(len(one.entries) for one in containers)
        inside = [f"{posixpath.splitext(one.outer)[0]}/{name}" for one in containers for name in one.entries.names]
        names = [tree.entries.names[row] for row in own.tolist()] + inside
        super().__init__([tree, *containers], np.concatenate([own, len(tree.entries) + np.arange(count)]), names)

    def stored(self, table: SampleTable) -> SampleTable:
        """Return a table with arrays as their files store them, instead of as files, and with the names there."""
        inputs, targets = table.inputs, table.targets
        files = inputs.source
        if not isinstance(files, TreeFiles):
            return table
        source, found, is_array = self._samples(files)
        if isinstance(inputs, Images):
            inputs = Images(source, decoded=is_array, own_channels=is_array)
        elif is_array:
            for number, one in enumerate(found):
                if one is not None and (one.shape, one.dtype) != (inputs.shape, inputs.dtype):
                    first = f"'{source.name(0)}' {inputs.dtype} {inputs.shape}"
                    what = f"'{source.name(number)}' is {one.dtype} {one.shape}, and {first}"
                    msg = f"{what}; expected one shape and type for all, or uint8 of images, which may have any size."
                    raise LayoutError(msg)
            inputs = Arrays(source, inputs.shape, inputs.dtype)
        else:
            inputs = replace(inputs, source=source)
        if isinstance(targets, Masks) and isinstance(targets.source, TreeFiles):
            masks, _, are_arrays = self._samples(targets.source)
            targets = replace(targets, source=masks, decoded=are_arrays)
        # How long files are that were made of arrays, or have any length, shows when they are read.
        is_known = is_array or all(one is None or (one.kind == "file" and one.size) for one in found)
        # An image may have several rows in a table, which are numbered.
        names = zip(files.entries.names, table.keys, strict=True)
        keys = [f"{source.name(row)}{key.removeprefix(name)}" for row, (name, key) in enumerate(names)]
        complete = None if is_known else measured
        return replace(table, keys=keys, inputs=inputs, targets=targets, complete=complete)

    def written_name(self, entry: FileEntry) -> str:
        tree, own = self.origin(entry)
        found = tree.member(own) if isinstance(tree, _Container) else None
        return f"{tree.outer}/{found.key}" if isinstance(found, Member) else entry.name  # type: ignore[attr-defined]

    def _samples(self, files: TreeFiles) -> tuple[SampleSource, list[Member | None], bool]:
        """Return the contents of files, as arrays if all are, with these; and whether they are arrays."""
        origins = [self.origin(entry) for entry in files.entries]
        found = [tree.member(own) if isinstance(tree, _Container) else None for tree, own in origins]
        members = [one if isinstance(one, Member) else None for one in found]
        are_arrays = {None if one is None else one.kind for one in members} in ({"pixels"}, {"array"})

        def read(index: int) -> Any:
            one = members[index]
            return one.read() if are_arrays and one is not None else files.read(index)

        def name(index: int) -> str:
            return self.written_name(files.entries[index])

        source = SampleSource(files.sizes, files.positions, name=name, stamp=files.stamp, read=read)
        return source, members, are_arrays


def unfold(source: Source, role_of: Callable[[str], str]) -> Unfolded | None:
    """Return the tree in which files of one array for each sample are folders; `None` if there are none. `role_of`: "x"
    for what is called as inputs are, "y" as targets."""
    tree, files = source.tree, source.ending_in(SUFFIXES)
    found = list[_Container]()
    for file in files if len(files) <= MOST_FIELDS else ():
        # What is damaged was reported where it was read as fields.
        with suppress(ColabstageError, *_OF_DAMAGE):
            members = _npz_members if file.name.lower().endswith(".npz") else _hdf5_members
            found.append(_Container(tree, file, [*members(tree, file)], role_of))
    folders = [one for one in found if one.is_folder]
    return Unfolded(tree, folders) if folders else None
