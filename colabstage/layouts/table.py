"""The table of samples that every layout makes from a tree, and the kinds of content in it.

A layout says which content belongs to which sample; packing reads it, many samples at once and in the best order for
the medium. The kinds say what content means, not how it is stored, which is decided when a pack is planned. Audio and
text need no kind of their own: they are arrays of one shape, with a decoder.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import LayoutError, SourceReadError
from colabstage.io.units import NAMES_SHOWN, format_count, format_names
from colabstage.trees.listing import FileEntries, FileEntry, Tree
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from colabstage.trees.bytes import ByteSource

    ReadRows = Callable[[NDArray[np.int64]], NDArray[Any]]


# The contents of samples by number: files, rows in a file or in memory, parts of them, and sequences of these.


# A sample's content before it is stored: a file's bytes, or values that need no decoding.
Content = bytes | NDArray[Any]


class SampleSource:
    """The contents of N samples by number. Every method may be called from any thread, and `read` from many at once.

    Args:
        sizes: the lengths in bytes of what `read` returns, int64 `(N,)`; exact if it returns bytes and its table is
            complete, otherwise approximate.
        positions: int64 `(N,)` such that reading by ascending position is sequential in the source.
        name: called with a number, returns the name of this content for messages: a file's name, a row's number.
        stamp: returns a text that changes whenever the content may have changed; compared when a pack is continued.
        read: returns the whole content.
        read_rows: if all contents are arrays of one shape and type, and many are read sooner than each: called with
            numbers, int64 `(M,)`, returns their contents, `(M, …)`.
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        positions: NDArray[np.int64],
        *,
        name: Callable[[int], str],
        stamp: Callable[[int], str],
        read: Callable[[int], Content],
        read_rows: ReadRows | None = None,
    ) -> None:
        self.sizes, self.positions = sizes, positions
        self.name, self.stamp, self.read, self.read_rows = name, stamp, read, read_rows

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        """Return some of the contents: sample i is `chosen[i]` here."""
        name, stamp, read = (partial(_call_at, function, chosen) for function in (self.name, self.stamp, self.read))
        many = self.read_rows
        rows = None if many is None else lambda indices: many(chosen[indices].astype(np.int64, copy=False))
        return SampleSource(
            self.sizes[chosen], self.positions[chosen], name=name, stamp=stamp, read=read, read_rows=rows
        )


def _call_at(function: Callable[[int], Any], chosen: NDArray[np.integer[Any]], index: int) -> Any:
    return function(int(chosen[index]))


def map_samples(source: SampleSource, convert: Callable[[Any], Content], *, to_rows: bool = False) -> SampleSource:
    """Return the contents of a source, each converted to another form: byte order, axes, a part of it. `to_rows`: to
    arrays of one shape and type."""
    read, many = source.read, source.read_rows

    def read_rows(indices: NDArray[np.int64]) -> NDArray[Any]:
        contents: Iterable[Any] = map(read, indices.tolist()) if many is None else many(indices)
        return np.stack([np.asarray(convert(one)) for one in contents])

    return SampleSource(
        source.sizes,
        source.positions,
        name=source.name,
        stamp=source.stamp,
        read=lambda index: convert(read(index)),
        read_rows=read_rows if to_rows else None,
    )


def join_samples(parts: Sequence[SampleSource]) -> SampleSource:
    """Return several sources in sequence, each read to its end before the next begins."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])
    positions, start = [], 0
    for part in parts:
        positions.append(np.asarray(part.positions, np.int64) + start)
        start = int(positions[-1].max(initial=start)) + 1

    sizes = np.concatenate([part.sizes for part in parts])
    name, stamp, read = (partial(_call_part, parts, ends, what) for what in ("name", "stamp", "read"))
    readers = [part.read_rows for part in parts if part.read_rows is not None]
    rows = partial(_rows_of_parts, readers, ends) if len(readers) == len(parts) else None
    return SampleSource(sizes, np.concatenate(positions), name=name, stamp=stamp, read=read, read_rows=rows)


def _call_part(parts: Sequence[SampleSource], ends: NDArray[np.int64], what: str, index: int) -> Any:
    number = int(np.searchsorted(ends, index, side="right"))
    return getattr(parts[number], what)(index - int(ends[number] - len(parts[number])))


def _rows_of_parts(readers: Sequence[ReadRows], ends: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[Any]:
    number = np.searchsorted(ends, indices, side="right")
    starts = np.concatenate([[0], ends])
    return concatenate_runs(number, lambda part, run: readers[part](indices[run] - starts[part]))


def concatenate_runs(keys: NDArray[np.integer[Any]], read: Callable[[int, slice], NDArray[Any]]) -> NDArray[Any]:
    """Return what `read(key, run)` returns for each run of equal keys, joined; `run` is its range in `keys`."""
    edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    found = [read(int(keys[start]), slice(start, end)) for start, end in itertools.pairwise(edges)]
    return found[0] if len(found) == 1 else np.concatenate(found)


def numbered_samples(
    name: str,
    stamp: str,
    count: int,
    nbytes: int,
    *,
    read: Callable[[int], Content],
    read_rows: ReadRows | None = None,
) -> SampleSource:
    """Return N contents of about the same size that have numbers instead of names.

    `name`: of all of them. `stamp`: changes whenever any of them may have changed. `nbytes`: about how many one takes.
    """
    return SampleSource(
        np.full(count, nbytes, np.int64),
        np.arange(count, dtype=np.int64),
        name=lambda index: f"{name}[{index}]",
        stamp=lambda index: f"{stamp} {index}",
        read=read,
        read_rows=read_rows,
    )


def rows_of_array(values: NDArray[Any], name: str, stamp: str) -> SampleSource:
    """Return the rows of an array in memory; `stamp` changes whenever its file may have changed."""
    nbytes = values.nbytes // max(1, len(values))
    return numbered_samples(
        name,
        f"{stamp} {name}",
        len(values),
        nbytes,
        read=lambda index: np.ascontiguousarray(values[index]),
        read_rows=lambda indices: np.ascontiguousarray(values[indices]),
    )


def rows_of_file(
    file: ByteSource,
    start: int,
    count: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    stamp: str,
    wanted: np.dtype[Any] | None = None,
) -> SampleSource:
    """Return rows of one shape that are in a file one after the other; each is read by its position, many at once.

    `file` stays open for as long as the rows are used. `start`: in bytes. `shape`, `dtype`: of each row, as stored.
    `stamp`: changes whenever the file does. `wanted`: the type that rows are given in; the stored one, in this
    machine's byte order, by default.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    positions = start + np.arange(count, dtype=np.int64) * nbytes
    given = dtype.newbyteorder("=") if wanted is None else wanted

    def read_run(first: int, length: int) -> NDArray[Any]:
        data = file.pread(length * nbytes, int(positions[first]))
        # A file that shrank while it was read returns fewer bytes and no error.
        if len(data) != length * nbytes:
            end = int(positions[first]) + length * nbytes
            msg = f"'{file.label}' ends before byte {end:,}, where its part {first + length - 1} does."
            raise SourceReadError(msg)
        return np.frombuffer(data, dtype).reshape(length, *shape).astype(given, copy=False)

    def read_rows(indices: NDArray[np.int64]) -> NDArray[Any]:
        neighbours = indices - np.arange(len(indices))
        return concatenate_runs(neighbours, lambda _, run: read_run(int(indices[run.start]), run.stop - run.start))

    return SampleSource(
        np.full(count, nbytes, np.int64),
        positions,
        name=lambda index: f"{file.label}[{index}]",
        stamp=lambda index: f"{stamp} {positions[index]} {nbytes}",
        read=lambda index: read_run(index, 1)[0],
        read_rows=read_rows,
    )


def measured(table: SampleTable) -> SampleTable:
    """Return a table with the lengths of its files, where their container does not tell these before it reads them."""
    source = table.inputs.source
    sizes = np.array([len(source.read(index)) for index in range(len(source))], np.int64)
    made = SampleSource(sizes, source.positions, name=source.name, stamp=source.stamp, read=source.read)
    return replace(table, inputs=replace(table.inputs, source=made), complete=None)


def stamp_of(entry: FileEntry) -> str:
    """Return a text that differs whenever the file may have changed since it was listed."""
    return f"{entry.name!r} {entry.size} {entry.mtime_ns}"


class TreeFiles(SampleSource):
    """One file of a tree for each sample; sample i is `entries[i]`."""

    read: Callable[[int], bytes]

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self.tree = tree
        # In columns, because a list of a million entries would take 300 MB.
        self.entries = found = FileEntries.of(entries)
        super().__init__(
            found.sizes,
            found.positions,
            name=lambda index: found.names[index],
            stamp=lambda index: stamp_of(found[index]),
            read=lambda index: tree.read(found[index]),
        )

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        return TreeFiles(self.tree, self.entries.take(chosen))

    def __reduce__(self) -> tuple[Any, ...]:
        # A planned shard of a set is sent to the worker that packs it.
        return TreeFiles, (self.tree, self.entries)


class BrokenDatasetError(LayoutError):
    """The tree clearly has this layout, but something in it is wrong, so no other layout is tried."""


class _OfSource:
    """Content that a source reads, one for each sample."""

    __slots__ = ()
    source: SampleSource

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Images(_OfSource):
    """One image for each sample."""

    source: SampleSource
    """Image files as bytes, or arrays `(H, W)` or `(H, W, C)` of decoded ones."""
    decoded: bool = False
    """Whether the source returns arrays, which cannot be stored as files."""
    own_channels: bool = False
    """Whether the channels of those arrays are part of the data, to be changed only on request."""


@dataclass(frozen=True, slots=True)
class Arrays(_OfSource):
    """One array of one shape for each sample, stored as it is; as inputs or as targets."""

    source: SampleSource
    """The arrays, or bytes for `decode`."""
    shape: tuple[int, ...]
    """The shape of each; `()` for a number. A sample of another shape is an error that names it."""
    dtype: np.dtype[Any]
    """The type of each. A sample of another type is an error that names it."""
    decode: Callable[[Any], NDArray[Any]] | None = None
    """Converts the source's content to the array, in a worker thread. Raises `DecodeError` for a broken file; any other
    error stops packing."""

    def __post_init__(self) -> None:
        # Longer floats have a different layout on each kind of machine, and HDF5 has no dates.
        if self.dtype.kind not in "biufc" or self.dtype.itemsize > (16 if self.dtype.kind == "c" else 8):
            name = f"'{self.source.name(0)}' has" if len(self.source) else "They have"
            expected = "whole numbers, floats of at most 64 bits, or bool"
            how = 'for example .astype("float64")' if self.dtype.kind in "fc" else "words and dates into numbers"
            msg = f"{name} dtype {self.dtype}; expected {expected}. Convert them first, {how}."
            raise LayoutError(msg)

    def to_array(self, content: Content) -> NDArray[Any]:
        # The layout's own decoder knows more than the type: packed bits, columns to combine.
        if self.decode is not None:
            return self.decode(content)
        # The bytes are not copied here, because packing copies them to their place anyway.
        return np.frombuffer(content, self.dtype).reshape(self.shape) if isinstance(content, bytes) else content


@dataclass(frozen=True, slots=True)
class Masks(_OfSource):
    """One mask for each image: the class of every pixel, stored as uint8 `(H, W)`."""

    source: SampleSource
    """Mask files as bytes, or integer arrays `(H, W)`, each exactly as large as its image."""
    colors: tuple[tuple[int, int, int], ...] | None = None
    """`(r, g, b)` of class 0, 1, …, for masks in colours; `None` for masks whose pixels, or palette indices, are class
    indices."""
    decoded: bool = False
    """Whether the source returns arrays instead of files."""
    foreground: bool = False
    """Whether pixels are 0 for class 0 and 255 for class 1."""
    guessed: bool = False
    """Whether looking at a few masks suggested that, or that pixels are indices; then all are compared on reading."""
    notes: tuple[str, ...] = ()
    """What looking at a few masks showed that may mean something else."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names of 0 and 255; empty for other masks, whose pixels do not name classes."""
        return ("background", "foreground") if self.foreground else ()


@dataclass(frozen=True, slots=True)
class UnreadBoxes(_OfSource):
    """Any number of boxes for each image, known only once its sample has been read; they then become `Boxes`."""

    source: SampleSource
    """The boxes of each sample, `(M,)` of `dtype`."""
    dtype: np.dtype[Any]
    """The type of the row of a box: `boxes`, four floats, x0, y0, x1, y1 in pixels of the upright image; and further
    columns by name, as those of `Boxes`."""
    relative: bool = False

    def read(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> Boxes:
        """Return all boxes, given the rows of all samples in sequence, and the number of rows of each."""
        columns = {name: np.ascontiguousarray(rows[name]) for name in self.dtype.names or ()}
        return Boxes(offsets_of(counts), columns.pop("boxes"), columns, self.relative)


@dataclass(frozen=True, slots=True)
class Values:
    """Targets known before any sample is read."""

    values: NDArray[Any]
    """`(N,)` or `(N, …)`, bool, integers or floats: a class index (int64, an index into the table's classes), a number
    to predict, one column for each of several labels."""

    def __post_init__(self) -> None:
        # Texts and objects would be pickled or lost in HDF5, so layouts number them first.
        if self.values.ndim < 1 or self.values.dtype.kind not in "biuf":
            msg = f"Targets are {self.values.dtype} of shape {self.values.shape}; expected rows of numbers."
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Any number of boxes for each image. M boxes in all; those of sample i are `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[np.int64]
    """int64 `(N + 1,)`."""
    boxes: NDArray[np.floating[Any]]
    """float `(M, 4)`, x0, y0, x1, y1 in pixels of the upright image, or as fractions of its width and height."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further columns of each box by name, `(M, …)` of numbers; above all `labels` (int64)."""
    relative: bool = False
    """Whether `boxes` are fractions of width and height, as in YOLO's files."""
    sizes: NDArray[np.int64] | None = None
    """int64 `(N, 2)`, height and width of each image that the boxes were drawn on, zeros if unknown; `None` if all are
    unknown."""

    def __post_init__(self) -> None:
        count = len(self.boxes)
        # Readers slice by offsets without checks: a descending offset would give an image the boxes of another.
        ends = len(self.offsets) >= 1 and self.offsets[0] == 0 and self.offsets[-1] == count
        wrong = [] if self.boxes.shape == (count, 4) else [f"boxes of shape {self.boxes.shape}, not (M, 4)"]
        if not ends or np.any(np.diff(self.offsets) < 0):
            wrong.append(f"offsets that do not ascend from 0 to their number, {count}")
        # Columns become datasets beside `boxes` and `offsets` in one group, so these two names are reserved.
        wrong += [
            f"a column {name!r} of {values.dtype} {values.shape}"
            for name, values in self.columns.items()
            if len(values) != count or values.dtype.kind not in "biuf" or name in ("boxes", "offsets")
        ]
        if wrong:
            msg = f"Boxes have {' and '.join(wrong)}; expected {count} rows of x0, y0, x1, y1 and of numbers."
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owners(self) -> NDArray[np.intp]:
        """Return the sample that each box belongs to, `(M,)`."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def outside(self, sizes: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which boxes are partly or wholly outside of their image, by more than rounding explains, bool `(M,)`.

        `sizes`: `(N, 2)`, height and width of each image, zeros for what is none.
        """
        own = sizes[self.owners][:, ::-1]
        sides, slack = (np.ones_like(own), _EDGE_SLACK_OF_PARTS) if self.relative else (own, _EDGE_SLACK)
        is_outside = (self.boxes[:, :2] < -slack) | (self.boxes[:, 2:] > sides + slack)
        return np.asarray(is_outside.any(axis=1) & (own > 0).all(axis=1))


def offsets_of(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of `Boxes`, given the number of boxes of each image."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def class_indices(words: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    """Return the index of each word among the sorted words, so that all machines number classes alike, and the sorted
    words."""
    classes = sorted(set(words))
    numbers = {word: number for number, word in enumerate(classes)}
    return Values(np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))), tuple(classes)


def known_splits(splits: Sequence[str]) -> tuple[str, ...] | None:
    """Return the split of each sample; `None` if any has none (""), because it would be in no file."""
    return tuple(splits) if splits and all(splits) else None


_CONTROL = re.compile(r"[\x00-\x08\n-\x1f\x7f-\x9f]")

Inputs = Images | Arrays
Targets = Values | Arrays | Masks | Boxes | UnreadBoxes

# Relative boxes end at 1, or slightly beyond.
_FAR_OUTSIDE = 2
# Formats that count from 1, and rounded coordinates, put an edge this far outside; in pixels, and as a fraction.
_EDGE_SLACK, _EDGE_SLACK_OF_PARTS = 1.0, 0.01
_UNITS = {"audio": "clips", "tokens": "rows", "arrays": "rows", "array_folder": "arrays"}


@dataclass(frozen=True, slots=True)
class SampleTable:
    """N samples: the content, target and split of each. What a layout of your own returns.

    Args:
        layout: a name for messages and reports.
        keys: N unique names, such as the files' paths; splits drawn by fractions and the order of rows depend on them.
        inputs: `Images` or `Arrays`, N of them.
        targets: N `Values`, `Arrays`, `Masks` or `Boxes`; `None` without labels.
        splits: N names of splits; `None` if the source has none.
        groups: N names of what samples belong to (a patient, a scene); a group stays in one split.
        classes: the names of the classes, by the numbers in `targets`.
        notes: sentences for the report.
        told_by: what states labels and splits, for messages: `"the folders"`, `"'labels.csv'"`.
        complete: called with this table before packing, returns one with what only contents say: the length of each
            image in a Parquet file; how many rows a text makes, at most as many as here. `None` if all is known.

    Raises:
        LayoutError: the parts differ in length, or a key occurs twice. `BrokenDatasetError`: a box is not x0, y0, x1,
            y1, or in another unit than it says.
    """

    layout: str
    keys: Sequence[str]
    inputs: Inputs
    targets: Targets | None
    splits: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    told_by: str = ""
    complete: Callable[[SampleTable], SampleTable] | None = None

    def __post_init__(self) -> None:
        # Checked here, not where the parts are used: a list that is one short would shift all labels after the gap.
        parts = {"inputs": self.inputs, "targets": self.targets, "splits": self.splits, "groups": self.groups}
        wrong = {name: len(part) for name, part in parts.items() if part is not None and len(part) != len(self.keys)}
        if wrong:
            found = ", ".join(f"{count} {name}" for name, count in wrong.items())
            msg = f"A sample table needs one entry of each kind for each of its {len(self.keys)} keys, got {found}."
            raise LayoutError(msg)
        odd = next((name for name in self.classes if _CONTROL.search(name)), None)
        if odd is not None:
            msg = f"The class {odd!r} has a line break or another control character in it. Correct it in its file."
            raise LayoutError(msg)
        # Splits and the order of rows depend on keys, so two equal keys would be one sample in two places.
        twice = first_repeated(self.keys)
        if twice is not None:
            msg = f"Two samples have the key {twice!r}; expected a unique name for each."
            raise LayoutError(msg)
        if isinstance(self.targets, Boxes):
            self._check_corners(self.targets)

    def _check_corners(self, boxes: Boxes) -> None:
        # Checked for every format: such a box teaches a model nothing, or stops its training in the middle of an epoch.
        # Boxes without area are in COCO itself, and are kept.
        places = boxes.boxes
        turned = np.flatnonzero(~(places[:, 2:] >= places[:, :2]).all(axis=1))
        if not len(places):
            return
        if len(turned):
            why = f": it ends before it begins, as do {len(turned):,} in all; expected x0 <= x1 and y0 <= y1."
        # A few boxes far beyond the image are wrong; if most are, their unit is.
        elif boxes.relative and float(np.median(places[:, 2:])) > _FAR_OUTSIDE:
            why = ", as pixels are, and here boxes are parts of the image's width and height. Divide them by these."
        # Pixels that small would be integers.
        elif not boxes.relative and places.max() <= 1 and (places != np.rint(places)).any():
            why = ", as parts of the image's width and height are; here boxes are in pixels. Multiply them by these."
        else:
            return
        first = int(turned[0]) if len(turned) else 0
        sample = int(boxes.owners[first])
        corners = ", ".join(f"{edge:.6g}" for edge in places[first].tolist())
        number = first - int(boxes.offsets[sample]) + 1
        msg = f"Box {number} of '{self.keys[sample]}' is {corners} (x0, y0, x1, y1){why}"
        raise BrokenDatasetError(msg)

    def __len__(self) -> int:
        return len(self.keys)

    def summary(self) -> tuple[tuple[str, str], ...]:
        """Describe what was found, by name: the layout, what states it, the classes with the first sample of each,
        boxes, or one sample."""
        name = self.inputs.source.name
        facts = [("layout", self.layout)]
        if self.told_by:
            facts.append(("labels from", self.told_by))
        # A path beside each class shows at a glance whether labels were read correctly.
        firsts = self._first_of_each()
        if self.classes:
            shown = [
                f"{one} ('{name(firsts[number])}')" if number in firsts else one
                for number, one in enumerate(self.classes[:NAMES_SHOWN])
            ]
            facts.append(("classes", format_names(shown, len(self.classes))))
        if isinstance(self.targets, Boxes):
            # Images without boxes are samples too. If that is not expected, boxes were lost on the way here.
            bare = int(np.count_nonzero(np.diff(self.targets.offsets) == 0))
            count = f"{len(self.targets.boxes):,} in {len(self) - bare:,} of {format_count(len(self), self.unit)}"
            rest = f", and {bare:,} {'is' if bare == 1 else 'are'} kept without any" if bare else ""
            facts.append(("boxes", count + rest))
        if len(self) and not firsts:
            facts.append(("example", f"'{name(0)}'"))
        return tuple(facts)

    def _first_of_each(self) -> dict[int, int]:
        """Return the first sample of each shown class, by the class's number."""
        targets = self.targets
        labels = targets.columns.get("labels") if isinstance(targets, Boxes) else getattr(targets, "values", None)
        if labels is None or labels.ndim != 1:
            return {}
        # One search for each shown class, because sorting the labels of a million samples would take three columns.
        found = {number: labels == number for number in range(min(len(self.classes), NAMES_SHOWN))}
        firsts = {number: int(places.argmax()) for number, places in found.items() if places.any()}
        return {n: int(targets.owners[at]) if isinstance(targets, Boxes) else at for n, at in firsts.items()}

    @property
    def unit(self) -> str:
        """Return the plural noun for its samples."""
        # Clips are files like images until their length is known.
        are_images = isinstance(self.inputs, Images) and self.layout != "audio"
        return "images" if are_images else _UNITS.get(self.layout, "samples")


_NONE = FileEntries.of(())


def files_of(table: SampleTable) -> FileEntries:
    """Return the files that samples are, one each; nothing if samples are something else."""
    source = table.inputs.source
    return source.entries if isinstance(source, TreeFiles) else _NONE


def labels_of(table: SampleTable) -> NDArray[Any]:
    """Return the labels of samples, or of their boxes; nothing for other targets."""
    targets = table.targets
    return targets.columns["labels"] if isinstance(targets, Boxes) else getattr(targets, "values", np.zeros(0))
