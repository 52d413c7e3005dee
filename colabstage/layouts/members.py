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
import struct
import zlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, LayoutError, SourceReadError
from colabstage.io.files import block_ranges
from colabstage.layouts import words
from colabstage.layouts.reading import Source, open_member
from colabstage.layouts.records import scan_each
from colabstage.layouts.stored import NPY, links_of, npz_arrays, open_hdf5, read_npy
from colabstage.layouts.table import Arrays, Images, Masks, SampleSource, SampleTable, TreeFiles, measured, stamp_of
from colabstage.trees.bytes import HEAD_BYTES, image_ending
from colabstage.trees.listing import FileEntries, FileEntry, Tree, TreeView, sorted_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.bytes import ByteSource

SUFFIXES = (".npz", ".h5", ".hdf5", ".hdf", ".he5")
# More arrays than anybody has fields are samples, whatever they are called; fewer than the first are none.
_FEWEST, MOST_FIELDS = 4, 256
# A table has as many axes as a grey image.
_AXES_OF_TABLE = 2
# So many of the values that may be image files are looked at.
_LOOKED_AT = 3
_DIGITS, _LETTERS, _BETWEEN = re.compile(r"[0-9a-fA-F]{8,}|\d+"), re.compile(r"[A-Za-z]+"), re.compile(r"[^A-Za-z0-9]+")
# Attributes that libraries write for themselves.
_OF_LIBRARIES = re.compile(r"TITLE|VERSION|FLAVOR|NROWS|EXTDIM|H5PATH|IMAGE_\w+|DISPLAY_\w+|INTERLACE_MODE|_\w+")
_CLASSES_OF_LIBRARIES = {("CLASS", name) for name in ("IMAGE", "ARRAY", "CARRAY", "EARRAY", "VLARRAY", "GROUP")}
# An attribute may be a box; more numbers are none.
_MOST_VALUES, _MOST_VALUES_OF_SAMPLE = 64, 1 << 28
_TABLE = "attributes.csv"
# How clips of sound begin.
_SOUNDS = {re.compile(rb"RIFF.{4}WAVE", re.DOTALL): ".wav", re.compile(rb"fLaC"): ".flac", re.compile(rb"OggS"): ".ogg"}
# What h5py raises for damage and for types that numpy lacks.
_OF_DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError)
_COLOURS = {(): 0, (1,): 0, (3,): 2, (4,): 6}
# Bytes of any length.
_BYTES = np.dtype("V1")
# The longest header of a .npy, with its beginning; all of a PNG but its lines; and the most bytes that are stored at
# once in one.
_NPY_BYTES, _PNG_BYTES, _STORED_BYTES = 256, 63, 65535


class Member(NamedTuple):
    """One array of a file, or one value."""

    key: str
    kind: Literal["pixels", "file", "array", "fact"]
    """What it is: pixels, the bytes of an image or a clip, another array, or one number or word about a sample."""
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
        count, has_sides = math.prod(shape), shape[2:] in _COLOURS and min(shape[:2], default=0) > 1
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
        """Return how long its content is; of bytes of any length, 0."""
        count = math.prod(self.shape) * self.dtype.itemsize
        if self.kind == "pixels":
            lines = count + self.shape[0]
            return _PNG_BYTES + lines + -(-lines // _STORED_BYTES) * 5
        return 0 if self.dtype == _BYTES else count + _NPY_BYTES * (self.kind == "array")

    def content(self) -> bytes:
        """Return the file that it would be."""
        values = self.read()
        if self.kind != "array":
            return _as_png(values) if self.kind == "pixels" else bytes(values)
        facts = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        header = repr(facts).encode().ljust(_NPY_BYTES - 11) + b"\n"
        return b"".join([b"\x93NUMPY\1\0", struct.pack("<H", len(header)), header, values.tobytes()])


def _as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of pixels, not compressed, so that its length is known."""
    height, width = pixels.shape[:2]
    # Each line begins with its filter, which is none.
    lines = np.zeros((height, 1 + pixels.size // height), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    data, packed = lines.tobytes(), b"\x78\1"
    for start, length in block_ranges(len(data), _STORED_BYTES):
        is_last = start + length == len(data)
        packed += struct.pack("<BHH", is_last, length, length ^ 0xFFFF) + data[start : start + length]
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[pixels.shape[2:]], 0, 0, 0)
    parts = b"IHDR" + header, b"IDAT" + packed + struct.pack(">I", zlib.adler32(data)), b"IEND"
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# --- what a file holds ------------------------------------------------------------------------------------------------


def _npz_members(tree: Tree, entry: FileEntry) -> Iterator[Member | None]:
    for number, one in enumerate(npz_arrays(tree, entry)):
        if not one.trouble:
            yield Member.of(one.name[len(entry.name) + 1 :], one.shape, one.dtype, number, one.whole, {})


def _hdf5_members(tree: Tree, entry: FileEntry) -> Iterator[Member | None]:
    """Yield what a file holds; raises `LayoutError` if it has links."""
    from h5py import h5d, h5g, h5o

    content = open_member(tree, entry)
    file = open_hdf5(tree, entry, content)
    # Before its bytes come others, and places count from its own.
    placed = None if file.userblock_size else content
    seen = set[int]()
    waiting: list[tuple[bytes, Any, dict[str, str]]] = [(b"", file.id, {})]
    while waiting:
        above, group, stated = waiting.pop()
        names = links_of(group)
        # The folders of classes may be links to what others hold.
        if len(names) < group.get_num_objs():
            msg = f"'{entry.name}' has links in it."
            raise LayoutError(msg)
        for name in names:
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
            own |= {} if _OF_LIBRARIES.fullmatch(name) else {name: _as_text(held[name])}
    return {name: text for name, text in own.items() if text and (name, text) not in _CLASSES_OF_LIBRARIES}


def _as_text(value: Any) -> str:
    """Return one number or word, or a few, as a table has it; "" for anything else."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    values = np.asarray(value)
    if values.size == 1 and values.dtype.kind in "biufSUO":
        one = values.reshape(-1).tolist()[0]
        return one.decode(errors="replace") if isinstance(one, bytes) else str(one)
    return json.dumps(values.tolist()) if values.dtype.kind in "biuf" and values.size <= _MOST_VALUES else ""


def _hdf5_member(file: Any, content: ByteSource | None, node: Any, key: str, facts: Mapping[str, str]) -> Member | None:
    from h5py import check_string_dtype, check_vlen_dtype, h5d

    place = node.get_offset()
    layout = None if place is not None else node.get_create_plist()
    # Values in other files.
    if layout is not None and (layout.get_layout() == h5d.VIRTUAL or _is_external(layout)):
        return None
    shape = node.shape
    try:
        dtype = node.dtype
    except (TypeError, ValueError):
        return None
    # A file of a few bytes may claim an array of any size, and no sample is as large.
    if not 0 < math.prod(shape or ()) <= _MOST_VALUES_OF_SAMPLE:
        return None
    place = None if dtype.kind == "O" else place
    if dtype.kind == "O" and math.prod(shape) == 1 and check_vlen_dtype(dtype) == np.uint8:
        dtype = _BYTES
    elif dtype.kind == "O" and check_string_dtype(dtype) is None:
        return None
    read = partial(_read, file, key, dtype)
    if content is not None and place is not None:
        read = partial(_read_in_place, content, key, place, dtype, shape)
    return Member.of(key, shape, dtype.newbyteorder("="), place or 0, read, facts)


def _is_external(layout: Any) -> bool:
    from h5py import h5d

    return bool(layout.get_layout() == h5d.CONTIGUOUS and layout.get_external_count())


def _read_in_place(content: ByteSource, key: str, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    # Many at once; HDF5 reads one after the other.
    nbytes = math.prod(shape) * dtype.itemsize
    data = content.pread(nbytes, place)
    if len(data) != nbytes:
        msg = f"'{content.label}' ends before byte {place + nbytes:,}, where '{key}' does."
        raise SourceReadError(msg)
    return data if dtype.kind in "VS" else np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


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
    """Return the samples among members with the names of the files that they would be: bytes are images or clips if
    some of them are, or arrays; whole numbers called as targets are, of the form of pixels, are masks."""
    may_be = [one for one in members if one.kind == "file"]
    chosen = may_be[:: max(1, len(may_be) // _LOOKED_AT)]
    endings, found = [], list[tuple[str, Member]]()
    for one in chosen:
        # What cannot be read is reported when it is packed.
        with suppress(DecodeError, SourceReadError):
            head = bytes(one.read())[:HEAD_BYTES]
            endings.append(image_ending(head) or next((end for mark, end in _SOUNDS.items() if mark.match(head)), ""))
    are_files = bool(endings) and all(endings)
    for one in members:
        kind, end = one.kind, ".png" if one.kind == "pixels" else endings[0] if are_files else ""
        if kind == "file" and not are_files:
            kind = "array" if one.dtype == np.uint8 else "fact"
        is_mask = kind == "array" and one.dtype.kind in "biu" and len(one.shape) == 2 and min(one.shape) > 1
        if is_mask and role_of(one.key) == "y":
            mask = one._replace(kind="pixels", dtype=np.dtype(np.uint8), read=partial(_as_mask, one.read))
            found.append((f"{one.key}.png", mask))
        elif kind == "array":
            found.append((f"{one.key.removesuffix(NPY)}{NPY}", one._replace(kind=kind)))
        elif kind != "fact":
            found.append((one.key if words.is_sample(one.key) else f"{one.key}{end}", one))
    return found


def _as_mask(read: Callable[[], NDArray[Any]]) -> NDArray[np.uint8]:
    values = read()
    if values.min() < 0 or values.max() > np.iinfo(np.uint8).max:
        msg = (
            f"Its numbers are from {values.min()} to {values.max()}; masks have the classes 0 to 254, and 255 for none."
        )
        raise DecodeError(msg)
    return values.astype(np.uint8)


def _table(
    samples: Sequence[tuple[str, Member]], facts: Sequence[Member], role_of: Callable[[str], str]
) -> tuple[bytes, list[str]]:
    """Return a table of what attributes and single values state about samples, b"" for nothing; and what is called as
    targets are, and about none of them. y_7 is about x_7 or 7, 7/label and 7/age about 7/image."""

    def number_of(key: str) -> str:
        bare = _LETTERS.sub(lambda word: "" if role_of(word[0]) else word[0], key)
        return " ".join(filter(None, _BETWEEN.split(bare)))

    rows = {name: dict(one.facts) for name, one in samples}
    by_number = {number_of(one.key): name for name, one in samples} if facts else {}
    lost = []
    for fact in facts:
        folder, base = posixpath.split(fact.key)
        label = next((word for word in reversed(_LETTERS.findall(fact.key)) if role_of(word) == "y"), "")
        name = by_number.get(number_of(fact.key if label else folder))
        if name is not None:
            rows[name][label or base] = _as_text(fact.read())
        elif label:
            lost.append(fact.key)
    columns = [*dict.fromkeys(name for row in rows.values() for name in row if name != "path")]
    if not columns:
        return b"", lost
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["path", *columns])
    table.writerows([name, *(row.get(column, "") for column in columns)] for name, row in rows.items())
    return text.getvalue().encode(errors="surrogateescape"), lost


# --- as a tree --------------------------------------------------------------------------------------------------------


class _Container(Tree):
    """Some members as files. `entries`: the files that hold them, one, or a .npy for each."""

    kind = "file"

    def __init__(
        self, tree: Tree, entries: FileEntries, members: Sequence[Member | None], role_of: Callable[[str], str]
    ) -> None:
        self.outer, self._role_of = entries, role_of
        self.folder = f"{posixpath.splitext(entries.names[0])[0]}/" if len(entries) == 1 else ""
        self.label = f"{tree.label}: {entries.names[0]}"
        held = [one for one in members if one is not None]
        self._samples = _with_files(held, role_of)
        table, self.lost = _table(self._samples, [one for one in held if one.kind == "fact"], role_of)
        files: list[tuple[str, Member | bytes]] = [*self._samples, *([(_TABLE, table)] if table else [])]
        sizes = np.array([len(one) if isinstance(one, bytes) else one.size for _, one in files], np.int64)
        places = np.array([getattr(one, "position", 0) for _, one in files], np.int64)
        names, columns, order = sorted_by_name([name for name, _ in files], sizes, places)
        times, flags = np.full(len(names), entries.mtimes_ns.max(), np.int64), np.zeros(len(names), np.bool_)
        self.entries = FileEntries(names, columns[0], times, columns[1], flags)
        self._files = [files[number][1] for number in order.tolist()]

    def written(self, member: Member) -> str:
        """Return what a member is called where it is."""
        return f"{self.outer.names[0]}/{member.key}" if self.folder else f"{member.key}{NPY}"

    def stamp_of(self, entry: FileEntry) -> str:
        found = self.member(entry)
        place = 0 if self.folder or isinstance(found, bytes) else found.position
        return f"{stamp_of(self.outer[place])} {entry.name!r}"

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
        """Tell whether its arrays are samples: numbered in a folder, or in folders, called as images are, or the bytes
        of images; or there are many. Rows of one array with a number for each in another are no such samples, nor are
        many arrays beside a single one that is called as inputs are, nor numbered tables, nor parts of each sample."""
        samples = [one for _, one in self._samples]
        patterns: dict[tuple[str, str], list[str]] = defaultdict(list)
        for one in samples:
            folder, base = posixpath.split(one.key)
            patterns[folder, _DIGITS.sub("#", base)].append(one.key)
        alone = [own[0] for own in patterns.values() if len(own) == 1]
        of_folders = {_DIGITS.sub("#", key) for key in alone}
        shapes = {one.shape for one in samples if one.kind == "array" or len(one.shape) == _AXES_OF_TABLE}
        are_rows = any(not shapes.isdisjoint({shape[:1], (*shape[:1], 1)}) for shape in shapes if len(shape) > 1)
        bases = {posixpath.basename(one.key) for one in samples}
        are_parts = {*map(len, shapes)} == {_AXES_OF_TABLE} and words.parts_among([*bases]) == bases
        is_named = any(words.is_image(one.key) or one.kind == "file" for one in samples)
        are_numbered = 2 * len(patterns) <= len(samples) or len(alone) >= 2 * len(of_folders) > 0
        has_inputs = any("/" not in key and self._role_of(key) == "x" for key in alone)
        may_be = are_numbered or is_named or len(samples) > MOST_FIELDS
        are_enough = len(samples) >= _FEWEST or any(one.kind == "file" for one in samples)
        return are_enough and may_be and not (are_rows or are_parts or has_inputs)


class Unfolded(TreeView):
    """A tree in which such files are folders."""

    is_unfolded = True

    def __init__(self, tree: Tree, containers: Sequence[_Container]) -> None:
        self.kind, self.label, self.prefix, self.notes = tree.kind, tree.label, tree.prefix, tree.notes
        whole = {name for one in containers for name in one.outer.names}
        own = np.array([row for row, name in enumerate(tree.entries.names) if name not in whole], np.int64)
        count = sum(len(one.entries) for one in containers)
        inside = [one.folder + name for one in containers for name in one.entries.names]
        names = [tree.entries.names[row] for row in own.tolist()] + inside
        super().__init__([tree, *containers], np.concatenate([own, len(tree.entries) + np.arange(count)]), names)

    def stored(self, table: SampleTable) -> SampleTable:
        """Return a table with arrays as their files store them, instead of as files, and with the names there."""
        files = table.inputs.source
        if not isinstance(files, TreeFiles):
            return table
        found = [self._member(entry) for entry in files.entries]
        kinds = {one.kind if isinstance(one, Member) else "" for _, one in found}
        inputs, is_array = table.inputs, kinds in ({"pixels"}, {"array"})
        source = self._samples(files, as_array=is_array)
        if isinstance(inputs, Images):
            inputs = Images(source, decoded=is_array, own_channels=is_array)
        elif is_array:
            for name, one in found:
                assert isinstance(one, Member)
                if (one.shape, one.dtype) != (inputs.shape, inputs.dtype):
                    what = f"'{name}' is {one.dtype} {one.shape}, and '{found[0][0]}' {inputs.dtype} {inputs.shape}"
                    msg = f"{what}; expected one shape and type for all, or uint8 of images, which may have any size."
                    raise LayoutError(msg)
            inputs = Arrays(source, inputs.shape, inputs.dtype)
        else:
            inputs = replace(inputs, source=source)
        targets = table.targets
        if isinstance(targets, Masks) and isinstance(targets.source, TreeFiles):
            targets = replace(targets, source=self._samples(targets.source, as_array=False))
        complete = measured if any(isinstance(one, Member) and not one.size for _, one in found) else None
        # An image may have several rows in a table, which are numbered.
        names = zip(found, files.entries.names, table.keys, strict=True)
        keys = [f"{own[0]}{key.removeprefix(name)}" for own, name, key in names]
        return replace(table, keys=keys, inputs=inputs, targets=targets, complete=complete)

    def written_name(self, entry: FileEntry) -> str:
        return self._member(entry)[0]

    def _member(self, entry: FileEntry) -> tuple[str, Member | bytes]:
        tree, own = self.origin(entry)
        if not isinstance(tree, _Container):
            return entry.name, b""
        found = tree.member(own)
        return (tree.written(found) if isinstance(found, Member) else entry.name), found

    def _samples(self, files: TreeFiles, *, as_array: bool) -> SampleSource:
        entries = files.entries

        def read(index: int) -> Any:
            entry = entries[index]
            found = self._member(entry)[1] if as_array else None
            return found.read() if isinstance(found, Member) else self.read(entry)

        def stamp(index: int) -> str:
            tree, own = self.origin(entries[index])
            return tree.stamp_of(own) if isinstance(tree, _Container) else files.stamp(index)

        def name(index: int) -> str:
            return self._member(entries[index])[0]

        return SampleSource(files.sizes, files.positions, name=name, stamp=stamp, read=read)


def unfold(source: Source, role_of: Callable[[str], str]) -> Unfolded | None:
    """Return the tree in which files of one array for each sample are folders, and pixels in .npy files images; `None`
    if there are none. `role_of`: "x" for what is called as inputs are, "y" as targets."""
    tree, files = source.tree, source.ending_in(SUFFIXES)
    found = list[_Container]()
    for row in range(len(files) if len(files) <= MOST_FIELDS else 0):
        # What is damaged was reported where it was read as fields.
        with suppress(ColabstageError, *_OF_DAMAGE):
            found.append(_Container(tree, files[row : row + 1], [*_members(tree, files[row])], role_of))
    if pixels := _pixels(tree, source.ending_in((NPY,))):
        found.append(_Container(tree, pixels[0], pixels[1], role_of))
    folders = [one for one in found if one.is_folder]
    for one in folders:
        if one.lost:
            file = one.outer.names[0]
            what = f"'{file}/{one.lost[0]}' is called as targets are, and no array of '{file}' as it apart from that"
            msg = f"{what}. Write it as an attribute of its array: file['KEY'].attrs['label'] = …."
            raise LayoutError(msg)
    return Unfolded(tree, folders) if folders else None


def _members(tree: Tree, entry: FileEntry) -> Iterator[Member | None]:
    return (_npz_members if entry.name.lower().endswith(".npz") else _hdf5_members)(tree, entry)


def _pixels(tree: Tree, files: FileEntries) -> tuple[FileEntries, list[Member]] | None:
    """Return the .npy files that hold pixels, and these, if all that are looked at first do."""

    def member(number: int, entry: FileEntry) -> Member | None:
        one = read_npy(tree, entry, entry.name)
        found = Member.of(entry.name.removesuffix(NPY), one.shape, one.dtype, number, one.whole, {})
        return found if found is not None and found.kind == "pixels" and not one.trouble else None

    few = files[:: max(1, len(files) // _LOOKED_AT)]
    if len(files) < _FEWEST or not all(member(0, entry) for entry in few):
        return None
    found = scan_each(files, member)
    pixels = [one for one in found if one is not None]
    rows = np.array([one.position for one in pixels])
    return files.take(rows), [one._replace(position=place) for place, one in enumerate(pixels)]
