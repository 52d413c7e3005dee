"""Tables that hold the pixels of images: those of Kaggle's digits, a column for each pixel, and FER2013, one for all.

Lines are found in one pass over the file, and a line's pixels are read when it is packed.
"""

from __future__ import annotations

import functools
import io
import math
import posixpath
import re
from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.columns import class_numbers, show
from colabstage.layouts.evidence import Evidence, near
from colabstage.layouts.reading import decode_text, open_unpacked
from colabstage.layouts.samples import join_samples, map_samples, stamp_of
from colabstage.layouts.shards import ShardFile, ShardParts
from colabstage.layouts.table import BrokenDatasetError, Images, SampleTable, Values, known_splits
from colabstage.layouts.words import IMAGES, split_name
from colabstage.trees.bytes import SourceFile
from colabstage.trees.listing import only_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import SampleSource
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry

NAME = "pixel_table"
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
    in_one: bool
    """Whether one column holds all pixels, separated by blanks."""
    label: int | None
    usage: int | None


class _Table(NamedTuple):
    """One table, N rows."""

    name: str
    shape: tuple[int, ...]
    images: SampleSource
    """The images, of which each line is parsed when it is packed: all pixels in memory would be several times the
    pack."""
    labels: list[int] | None
    splits: list[str]


def pixels_state(source: Source) -> Found:
    """Read .csv files whose rows are images: square, of one or three channels, with a class or none."""
    found = []
    bare = ""
    tables = source.ending_in((".csv", ".gz"))
    for entry in tables.where(lambda name: name.lower().removesuffix(".gz").endswith(".csv")):
        # Opened before it is known to be such a table, because a .csv.gz shows its header only unpacked.
        content = open_unpacked(source.tree, entry)
        head = content.pread(_HEAD_BYTES, 0)
        columns = _read_columns(head)
        if columns is not None:
            found.append(_read_rows(content, entry, columns))
        elif _is_bare(head):
            bare = bare or entry.name
    if not found and bare:
        msg = (
            f"'{bare}' has numbers in its first line, as many as a square image has and its class, and no header that "
            "says so. Write one above it: label,pixel0,pixel1, and so on."
        )
        return near(msg)
    if not found:
        msg = f"'{source.label}' holds no table of pixels (.csv with columns label, pixel0, … or label, pixels)."
        raise EmptySourceError(msg)
    # Whichever is taken, the other may be the dataset; numbers beside photographs are mostly measurements of them.
    if source.ending_in(IMAGES):
        msg = f"'{source.label}' holds images as files beside '{found[0].name}', which holds pixels."
        raise LayoutError(msg)
    # Kaggle's test sets have no classes, so there is nothing to train on or to compare with.
    labelled = [one for one in found if one.labels is not None] or found
    shapes = {one.shape: one.name for one in labelled}
    if len(shapes) > 1:
        told = ", ".join(f"'{name}' {shape}" for shape, name in shapes.items())
        only = only_line(source.tree, labelled[0].name)
        msg = f"Tables hold images of different shapes ({told}). Stage one of them: {only}."
        raise BrokenDatasetError(msg)
    splits = [split for one in labelled for split in one.splits]
    # Rows of a table without a split would belong to none of the files that are made.
    if not all(splits) and any(splits):
        msg = f"Some tables are called after a split and others not: {', '.join(one.name for one in labelled)}."
        raise BrokenDatasetError(msg)
    labels = [label for one in labelled for label in one.labels or ()]
    values = np.array(labels, np.int64)
    left = [one.name for one in found if one not in labelled]
    table = SampleTable(
        layout=NAME,
        keys=tuple(one.images.name(row) for one in labelled for row in range(len(one.images))),
        inputs=Images(join_samples([one.images for one in labelled]), decoded=True, own_channels=True),
        targets=Values(values) if labels else None,
        splits=known_splits(splits),
        classes=class_numbers(values) if labels else (),
        notes=(f"Tables without classes were left out: {', '.join(left)}.",) if left else (),
    )
    return Evidence(table, "a table of pixels", frozenset(one.name for one in found))


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
            # pandas writes a column of numbers as floats where one of them was missing once.
            cell = _cell_of_line(line, columns.label).removesuffix(b".0")
            # Words could be numbered here, but a word in this column of numbers is a row that slipped.
            if not cell.isdigit() or len(cell) > 18:
                msg = (
                    f"Line {number} of '{entry.name}' has the class {show(cell.decode(errors='replace'))!r}, no number."
                )
                raise BrokenDatasetError(msg)
            labels.append(int(cell))
        splits.append(own)
        if columns.usage is not None:
            usage = _cell_of_line(line, columns.usage).decode("utf-8", "replace")
            splits[-1] = _USAGE.get(usage.lower()) or split_name(usage).split
            if not splits[-1]:
                msg = f"Line {number} of '{entry.name}' has the usage {show(usage)!r}, which is not a known split."
                raise BrokenDatasetError(msg)
    names = [f"{entry.name}[{row}]" for row in range(len(parts) // 3)]
    file = ShardFile(entry.name, stamp_of(entry), lambda: source)
    lines = ShardParts([file], np.frombuffer(parts, np.int64).reshape(-1, 3), names)
    images = map_samples(lines, functools.partial(_pixels_of, columns))
    return _Table(entry.name, columns.shape, images, labels if columns.label is not None else None, splits)


def _cell_of_line(line: bytes, number: int) -> bytes:
    # A line may have thousands of cells, so it is split no further than necessary.
    parts = line.split(b",", number + 1)
    return parts[number].strip().strip(b'"') if number < len(parts) else b""


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
