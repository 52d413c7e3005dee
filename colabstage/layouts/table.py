"""The table of samples that every layout makes of a tree, and the kinds of content that it is made of.

A layout says which content is which sample; packing reads it, many at once and in the order that the medium likes. The
kinds say what content means, not how it is stored: that is decided when a pack is planned. Audio and text need no kind
of their own. They are arrays of one shape, with a decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import LayoutError
from colabstage.io.units import NAMES_SHOWN, format_count, format_names, left_out
from colabstage.trees.entries import FileEntries
from colabstage.trees.strings import first_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from colabstage.trees.tree import FileEntry, Tree

# What a sample's content is before it is stored: a file's bytes, or values that need no decoding.
Content = bytes | NDArray[Any]


class SampleSource(Protocol):
    """The contents of N samples by number. Every method may be called from any thread, `read` from many at once."""

    def __len__(self) -> int:
        """Return N, the number of samples."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the int64 `(N,)` lengths in bytes of what `read` returns. Exact where it returns bytes, else about."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return int64 `(N,)` such that reading by ascending position is sequential in the source."""

    def name(self, index: int) -> str:
        """Return the name to look for when this content is broken: a file's name, a row's number."""

    def stamp(self, index: int) -> str:
        """Return a text that changes whenever the content may have changed; compared when a pack is continued."""

    def read(self, index: int) -> Content:
        """Return the whole content.

        Raises:
            OSError: the error of the disk or mount (errno 5, 107, …); the caller tries again.
            SourceReadError: it is shorter or longer than listed.
            CorruptArchiveError, DecodeError: this sample is damaged; others may be fine.
        """


def stamp_of(entry: FileEntry) -> str:
    """Return what differs whenever the file may have changed since it was listed."""
    return f"{entry.name!r} {entry.size} {entry.mtime_ns}"


class TreeFiles:
    """One file of a tree for each sample; sample i is `entries[i]`."""

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self.tree = tree
        # In columns: a list of a million entries would take 300 MB.
        self.entries = FileEntries.of(entries)

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return the lengths of the files in bytes."""
        return self.entries.sizes

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return their positions in the tree."""
        return self.entries.positions

    def name(self, index: int) -> str:
        """Return the file's name in its tree."""
        return self.entries.names[index]

    def stamp(self, index: int) -> str:
        """Return the file's name, length and time."""
        return stamp_of(self.entries[index])

    def read(self, index: int) -> bytes:
        """Return the whole file."""
        return self.tree.read(self.entries[index])


class NumberedRows:
    """What sources have in common whose samples are rows of about one size, known by their number.

    Args:
        name: what all rows together are called.
        stamp: changes whenever any of them may have changed.
        count: how many there are.
        nbytes: about how many bytes one takes.
    """

    def __init__(self, name: str, stamp: str, count: int, nbytes: int) -> None:
        self._name = name
        self._stamp = stamp
        self.sizes = np.full(count, nbytes, np.int64)
        self.positions = np.arange(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, index: int) -> str:
        """Return what the rows are called and the number of this one."""
        return f"{self._name}[{index}]"

    def stamp(self, index: int) -> str:
        """Return the stamp of all, and which row."""
        return f"{self._stamp} {index}"


@dataclass(frozen=True, slots=True)
class Images:
    """One image for each sample."""

    source: SampleSource
    """Image files as bytes, or arrays `(H, W)` or `(H, W, C)` of decoded ones."""
    decoded: bool = False
    """Whether the source returns arrays, which cannot be stored as files."""
    own_channels: bool = False
    """Whether the channels of those arrays are part of the data, to be changed only on request."""

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Arrays:
    """One array of one shape for each sample, stored as it is; as inputs or as targets."""

    source: SampleSource
    """The arrays, or bytes for `decode`."""
    shape: tuple[int, ...]
    """The shape of each; `()` for a number. A sample of another shape is an error that names it."""
    dtype: np.dtype[Any]
    """The type of each. A sample of another type is an error that names it."""
    decode: Callable[[Any], NDArray[Any]] | None = None
    """Turns the source's content into the array, in a worker thread. Raises `DecodeError` for a broken file; any other
    error stops the pack."""

    def __post_init__(self) -> None:
        # Longer floats have a different layout on each kind of machine, and HDF5 has no dates.
        if self.dtype.kind not in "biufc" or self.dtype.itemsize > (16 if self.dtype.kind == "c" else 8):
            name = f"'{self.source.name(0)}' has" if len(self.source) else "They have"
            msg = (
                f"{name} dtype {self.dtype}, which cannot be stored; expected whole numbers, floats of at most 64 "
                'bits, or bool. Convert them first, for example .astype("float64") or, of dates, .astype("int64").'
            )
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.source)

    def to_array(self, content: Content) -> NDArray[Any]:
        """Return the array of a sample's content."""
        # A decoder of the layout's own knows more than the type: bits that are packed, columns to put together.
        if self.decode is not None:
            return self.decode(content)
        # Bytes are those of the array itself; no copy is made, because whoever packs copies them to their place anyway.
        return np.frombuffer(content, self.dtype).reshape(self.shape) if isinstance(content, bytes) else content


@dataclass(frozen=True, slots=True)
class Values:
    """Targets that are known before any sample is read."""

    values: NDArray[Any]
    """`(N,)` or `(N, …)`, bool, integers or floats: a class index (int64, an index into the table's classes), a number
    to predict, one column for each of several labels."""

    def __post_init__(self) -> None:
        # Texts and objects would be pickled or lost in HDF5; layouts number them before.
        if self.values.ndim < 1 or self.values.dtype.kind not in "biuf":
            msg = f"Targets are {self.values.dtype} of shape {self.values.shape}; expected rows of numbers."
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Masks:
    """One mask for each image: which class every pixel is, stored as uint8 `(H, W)`."""

    source: SampleSource
    """Mask files as bytes, or integer arrays `(H, W)`, each exactly as large as its image."""
    colors: tuple[tuple[int, int, int], ...] | None = None
    """`(r, g, b)` of class 0, 1, …, for masks that are painted; `None` for masks whose pixels, or palette indices, are
    the class indices already."""
    decoded: bool = False
    """Whether the source gives arrays in place of files."""
    foreground: bool = False
    """Whether pixels are 0, class 0, or 255, class 1."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return what 0 and 255 are called; nothing where pixels are something else, which they do not name."""
        return ("background", "foreground") if self.foreground else ()


@dataclass(frozen=True, slots=True)
class Boxes:
    """Any number of boxes for each image. M boxes in all; those of sample i are `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[np.int64]
    """int64 `(N + 1,)`."""
    boxes: NDArray[np.floating[Any]]
    """float `(M, 4)`, x0, y0, x1, y1 in pixels of the upright image, or in parts of its width and height."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of each box, by name, `(M, …)` of numbers; `labels` (int64) first of all."""
    relative: bool = False
    """Whether `boxes` are parts of width and height, as in YOLO's files."""
    sizes: NDArray[np.int64] | None = None
    """int64 `(N, 2)`, height and width of each image that the boxes were drawn on, zeros where unknown; `None` where
    all are."""

    def __post_init__(self) -> None:
        count = len(self.boxes)
        if self.boxes.shape != (count, 4):
            msg = f"Boxes have shape {self.boxes.shape}; expected one row of x0, y0, x1, y1 for each box."
            raise LayoutError(msg)
        if (
            # Readers slice by offsets without looking: one that goes back would give an image the boxes of another.
            len(self.offsets) < 1
            or self.offsets[0] != 0
            or self.offsets[-1] != count
            or np.any(np.diff(self.offsets) < 0)
        ):
            msg = f"The offsets of boxes do not ascend from 0 to their number, {count}."
            raise LayoutError(msg)
        for name, values in self.columns.items():
            # Columns become datasets beside `boxes` and `offsets` in one group, so these two names are taken.
            if len(values) != count or values.dtype.kind not in "biuf" or name in ("boxes", "offsets"):
                msg = (
                    f"The column {name!r} of boxes is {values.dtype} {values.shape}; expected {count} rows of numbers."
                )
                raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class UnreadBoxes:
    """Any number of boxes for each image, known only when its sample has been read; they become `Boxes` then."""

    source: SampleSource
    """The boxes of each sample, `(M,)` of `dtype`."""
    dtype: np.dtype[Any]
    """The type of the row of a box: `boxes`, four floats, x0, y0, x1, y1 in pixels of the upright image; and further
    columns by name, as those of `Boxes`."""

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> Boxes:
        """Return all boxes, given the rows of all samples one after the other, and how many each sample has."""
        names = [name for name in self.dtype.names or () if name != "boxes"]
        columns = {name: np.ascontiguousarray(rows[name]) for name in names}
        return Boxes(offsets_of(counts), np.ascontiguousarray(rows["boxes"]), columns)


def offsets_of(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of `Boxes`, given how many each image has."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def class_indices(words: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    """Return the place of each word among the sorted ones, so that every machine numbers classes alike, and these."""
    classes = sorted(set(words))
    numbers = {word: number for number, word in enumerate(classes)}
    return Values(np.fromiter((numbers[word] for word in words), np.int64, len(words))), tuple(classes)


def known_splits(splits: Sequence[str]) -> tuple[str, ...] | None:
    """Return the split of each sample; `None` where one has none, "": beside the others it would be in no file."""
    return tuple(splits) if splits and all(splits) else None


def left_out_notes(*told: tuple[int, str, str]) -> list[str]:
    """Return a note for each of several kinds of things that were left out: how many, what, and which; none for 0."""
    return [f"{left_out(count, things, which)}." for count, things, which in told if count]


Inputs = Images | Arrays
Targets = Values | Arrays | Masks | Boxes | UnreadBoxes


class BrokenDatasetError(LayoutError):
    """The tree is of this layout beyond doubt, and something in it is wrong: no other layout is to be asked."""


class NearMissError(LayoutError):
    """Part of what makes this layout is there, and not enough of it: where nothing fits, the first thing to say."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Which content is which sample, with its target and split. N samples.

    Sequences of texts may be lists, tuples, or `trees.strings.StringArray`, which hold millions in little memory.
    """

    layout: str
    """Name of the layout that made the table."""
    keys: Sequence[str]
    """What each sample is called, N unique names; splits and row order follow from them alone."""
    inputs: Inputs
    """X of each sample."""
    targets: Targets | None
    """Y of each sample; `None` where the source has none."""
    splits: Sequence[str] | None = None
    """The split of each sample, N names, or `None` where the source has no splits."""
    groups: Sequence[str] | None = None
    """What each sample belongs to (a patient, a scene), N names: samples of one group never end in two splits."""
    classes: tuple[str, ...] = ()
    """Class names, in label order."""
    notes: tuple[str, ...] = ()
    """Sentences the user should see about what was found or left out."""

    def __post_init__(self) -> None:
        # Checked here and not where the parts are used: a list that is one short would shift every label behind the
        # gap.
        parts = {
            "inputs": self.inputs,
            "targets": self.targets,
            "splits": self.splits,
            "groups": self.groups,
        }
        wrong = {name: len(part) for name, part in parts.items() if part is not None and len(part) != len(self.keys)}
        if wrong:
            found = ", ".join(f"{count} {name}" for name, count in wrong.items())
            msg = f"A sample table needs one entry of each kind for each of its {len(self.keys)} keys, got {found}."
            raise LayoutError(msg)
        # Splits and the order of rows follow from keys, so two of one name would be one sample in two places.
        twice = first_repeated(self.keys)
        if twice is not None:
            msg = f"Two samples have the key {twice!r}; expected a unique name for each."
            raise LayoutError(msg)
        if isinstance(self.targets, Boxes):
            self._check_corners(self.targets)

    def _check_corners(self, boxes: Boxes) -> None:
        # Of every format, because such a box teaches a model nothing, or stops its training in the middle of an epoch.
        # Boxes without area are in COCO itself, and are kept.
        wrong = np.flatnonzero(~(boxes.boxes[:, 2:] >= boxes.boxes[:, :2]).all(axis=1))
        if len(wrong):
            first = int(wrong[0])
            sample = int(np.searchsorted(boxes.offsets, first, side="right")) - 1
            corners = ", ".join(f"{edge:.6g}" for edge in boxes.boxes[first].tolist())
            number = first - int(boxes.offsets[sample]) + 1
            msg = (
                f"Box {number} of '{self.keys[sample]}' is {corners} (x0, y0, x1, y1): it ends before it begins, as do "
                f"{len(wrong):,} of {len(boxes.boxes):,} in all; expected x0 <= x1 and y0 <= y1. Correct the "
                "annotations, or take these out."
            )
            raise BrokenDatasetError(msg)
        # Pixels that small would be whole numbers.
        flat = boxes.boxes.reshape(-1)
        if not boxes.relative and len(flat) and flat.max() <= 1 and (flat != np.rint(flat)).any():
            sample = int(np.searchsorted(boxes.offsets, 0, side="right")) - 1
            corners = ", ".join(f"{edge:.6g}" for edge in boxes.boxes[0].tolist())
            msg = (
                f"Box 1 of '{self.keys[sample]}' is {corners} (x0, y0, x1, y1), and no box reaches beyond 1: they look "
                "like parts of the image's width and height, and these are in pixels. Multiply them; a layout of your "
                "own may also say Boxes(relative=True)."
            )
            raise BrokenDatasetError(msg)

    def __len__(self) -> int:
        return len(self.keys)

    def summary(self) -> tuple[tuple[str, str], ...]:
        """Say by name what was found: the layout, the classes with the first sample of each, boxes, or one sample."""
        name = self.inputs.source.name
        facts = [("layout", self.layout)]
        # A path beside each class lets people see at a glance whether labels were read in the right way.
        firsts = self._first_of_each()
        if self.classes:
            shown = [
                f"{one} ('{name(firsts[number])}')" if number in firsts else one
                for number, one in enumerate(self.classes[:NAMES_SHOWN])
            ]
            facts.append(("classes", format_names(shown, len(self.classes))))
        if isinstance(self.targets, Boxes):
            facts.append(("boxes", self._boxes_counted(self.targets)))
        if len(self) and not firsts:
            facts.append(("example", f"'{name(0)}'"))
        return tuple(facts)

    def _boxes_counted(self, boxes: Boxes) -> str:
        """Say how many boxes there are, in how many images, and that those without any are kept."""
        # They are samples of nothing to find. Whoever did not expect them lost boxes on the way here, and would not
        # notice it in a loss.
        bare = int(np.count_nonzero(np.diff(boxes.offsets) == 0))
        counted = f"{len(boxes.boxes):,} in {len(self) - bare:,} of {format_count(len(self), self.unit)}"
        return f"{counted}, and {bare:,} {'is' if bare == 1 else 'are'} kept without any" if bare else counted

    def _first_of_each(self) -> dict[int, int]:
        """Return the first sample of each class that is shown, by its number; of samples that are in no classes,
        nothing."""
        targets = self.targets
        if isinstance(targets, Values) and targets.values.ndim == 1:
            labels = targets.values
        elif isinstance(targets, Boxes) and "labels" in targets.columns:
            labels = targets.columns["labels"]
        else:
            return {}
        firsts: dict[int, int] = {}
        # One look for each of the few: sorting the labels of a million samples would take three columns more.
        for number in range(min(len(self.classes), NAMES_SHOWN)):
            found = labels == number
            place = int(found.argmax()) if len(found) else 0
            if len(found) and found[place]:
                firsts[number] = place
        if isinstance(targets, Boxes):
            # Images without boxes share an offset with the next; "right" finds the one that has the box.
            return {
                number: int(np.searchsorted(targets.offsets, box, side="right")) - 1 for number, box in firsts.items()
            }
        return firsts

    @property
    def unit(self) -> str:
        """Return what its samples are called where they are counted."""
        if isinstance(self.inputs, Images):
            return "images"
        return {"audio": "clips", "tokens": "rows", "arrays": "rows", "array_folder": "arrays"}.get(
            self.layout, "samples"
        )


def first_that_fits(*reads: Callable[[], SampleTable]) -> SampleTable | list[LayoutError]:
    """Return the table of the first of several ways to read a tree that does not decline; where all do, why each does.

    Raises:
        BrokenDatasetError: one of them is meant; those after it are not asked.
    """
    declined: list[LayoutError] = []
    for read in reads:
        try:
            return read()
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            declined.append(error)
    return declined
