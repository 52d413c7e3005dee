"""Plots of a dataset: samples of each class, and sizes of images; on white, in the same colours."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, OptionError
from colabstage.images.decode import probe_image
from colabstage.io.arguments import absolute_path, whole_number
from colabstage.io.boundary import public
from colabstage.io.report import INK, MUTED, draw_panel, new_figure, plain_axes
from colabstage.io.units import format_count
from colabstage.layouts.reading import read_head
from colabstage.layouts.words import IMAGES
from colabstage.notebook.samples import channels_first, open_splits, read_labels, sample_kind
from colabstage.trees.open import open_tree, recognise

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from colabstage.notebook.samples import Samples

# Distinguishable with red-green colour blindness, and in grey.
SERIES = ("#2a7f9e", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a")

# More bars than this cannot be read on one page.
_MOST_CLASSES = 40
_HEAD_BYTES = 1 << 18


def add_title(figure: Figure, title: str, note: str) -> None:
    """Write a headline at the left, and a muted line below it, which may be empty."""
    # Room for the note, which is a separate text because a title has one colour.
    figure.suptitle(f"{title}\n\n" if note else f"{title}\n", color=INK, weight="bold", x=0.01, ha="left", fontsize=13)
    height = float(figure.get_size_inches()[1])
    figure.text(0.01, 1 - 0.37 / height, note, color=MUTED, fontsize=9.5, va="top")


@public()
def plot_class_balance(data: Samples, *, title: str = "Samples of each class") -> Figure:
    """Draw the number of samples of each class in every split. Only targets are read.

    >>> plot_class_balance(data)  # doctest: +SKIP

    Args:
        data: what `stage_dataset` returns, a `dataset_h5`, or the path of an HDF5 file or a pattern of several.
        title: the headline.

    Returns:
        A matplotlib figure on white that a notebook shows; with more than 40 classes, the most and the least frequent.

    Raises:
        OptionError: targets are not classes; the message says what they are.
        MissingDependencyError: matplotlib is not installed.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    source = open_splits(data)
    labels = {split: read_labels(source, split) for split in source.rows}
    # One split without classes is enough to refuse: half a figure would be mistaken for all of it.
    why = next((one.why_none for one in labels.values() if one.why_none), None)
    if why is not None:
        msg = f"'{source.name}' has no classes to count: {why}."
        raise OptionError(msg)
    counts: dict[str, dict[str, int]] = {}  # sorted by class in label order, then by split
    for split, one in labels.items():
        for name, count in zip(one.names, one.counts.tolist(), strict=True):
            counts.setdefault(name, {})[split] = count
    # Balance shows at the two ends.
    by_count = sorted(counts, key=lambda name: -sum(counts[name].values()))
    ends = [*by_count[: _MOST_CLASSES // 2], *by_count[-(_MOST_CLASSES // 2) :]]
    shown = list(counts) if len(counts) <= _MOST_CLASSES else ends
    left = len(counts) - len(shown)
    figure = new_figure(min(11.0, 4.0 + 3.2 * len(labels)), 1.3 + 0.27 * max(3, len(shown)))
    add_title(figure, title, f"{left:,} classes of middling frequency are left out." if left else "")
    axes = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    for axis, split, colour in zip(axes, labels, cycle(SERIES), strict=False):
        values = [counts[name].get(split, 0) for name in shown]
        heading = f"{split} ({source.rows[split]:,})"
        draw_panel(axis, heading, shown, values, labels=[f"{value:,}" for value in values], colours=colour)
    return figure


@public()
def plot_image_sizes(
    data: Samples, *, split: str | None = None, most: int = 2000, title: str = "Sizes of images"
) -> Figure:
    """Draw the width and height of images; only headers of files are read.

    >>> plot_image_sizes("photos", most=500)  # doctest: +SKIP

    Args:
        data: what `stage_dataset` returns, a `dataset_h5`, the path of an HDF5 file or a pattern of several; or a local
            folder or archive of image files, before it is staged.
        split: which; the first by default.
        most: maximum number of images to examine, spread evenly.
        title: the headline.

    Returns:
        A matplotlib figure on white that a notebook shows.

    Raises:
        OptionError: samples are not images, or `most` is less than one.
        EmptySourceError: the folder or archive has no images. ArchiveError: the archive cannot be read.
        SplitNotFoundError: there is no such split.
        MissingDependencyError: matplotlib is not installed.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    most = whole_number("most", most, least=1)
    path = absolute_path(data, "data") if isinstance(data, str | os.PathLike) else None
    if path is not None and path.exists() and recognise(path) is not None:
        sizes, of = _of_files(path, most)
    else:
        sizes, of = _of_split(data, split, most)
    return _draw_sizes(sizes, of, title)


def _of_split(data: Samples, split: str | None, most: int) -> tuple[NDArray[np.int64], int]:
    source = open_splits(data)
    reader = source.reader(next(iter(source.rows)) if split is None else split)
    # Spread over all rows, because files are often sorted by class, and classes differ in size.
    rows = np.unique(np.linspace(0, max(0, len(reader) - 1), min(most, len(reader))).astype(np.int64))
    # Headers give the sizes of encoded images; pixels all have one size.
    if reader.encoded and reader.row_shape is None:
        return reader.image_sizes(rows), len(reader)
    shape = reader.row_shape
    if shape is None or sample_kind(shape, reader.row_dtype, source.layout) != "image":
        msg = f"The samples of '{source.name}' are not images, so they have no height and width."
        raise OptionError(msg)
    size = shape[1:] if channels_first(shape) else shape[:2]
    return np.broadcast_to(np.array(size, np.int64), (len(rows), 2)), len(reader)


def _of_files(path: Path, most: int) -> tuple[NDArray[np.int64], int]:
    sizes = []
    with tempfile.TemporaryDirectory(prefix="colabstage-") as spool, open_tree(path, spool=Path(spool)) as tree:
        entries = tree.entries.ending_in(IMAGES)
        for number in np.unique(np.linspace(0, max(0, len(entries) - 1), min(most, len(entries))).astype(np.int64)):
            # Nearly all files begin with their header; a broken image is skipped, and staging will report it.
            for length in (_HEAD_BYTES, entries[number].size):
                with suppress(DecodeError):
                    image = probe_image(read_head(tree, entries[number], length))
                    sizes.append((image.height, image.width))
                    break
    if not sizes:
        msg = f"'{path}' has no images that can be read. Expected files such as .jpg and .png in it."
        raise EmptySourceError(msg)
    return np.array(sizes, np.int64), len(entries)


def _draw_sizes(sizes: NDArray[np.int64], of: int, title: str) -> Figure:
    heights, widths = sizes[:, 0], sizes[:, 1]
    figure = new_figure(7.2, 4.6)
    looked = f"{len(sizes):,} of {format_count(of, 'images')}" if len(sizes) < of else format_count(of, "images")
    middle = f"{int(np.median(heights)):,} x {int(np.median(widths)):,}"
    add_title(figure, title, f"{looked}; the median is {middle} (height x width, ×).")
    axis = figure.subplots()
    points, counts = np.unique(np.stack([widths, heights], axis=1), axis=0, return_counts=True)
    # People compare the area of dots, not their width; the root keeps rare sizes visible.
    area = 14 + 220 * np.sqrt(counts / counts.sum())
    axis.scatter(points[:, 0], points[:, 1], s=area, color=SERIES[0], alpha=0.45, linewidths=0)
    axis.plot(np.median(widths), np.median(heights), marker="x", color=SERIES[1], markersize=9, markeredgewidth=2)
    longest = float(sizes.max()) * 1.08 + 1
    # Portraits are above the line, landscapes below; `resize="stretch"` would distort both.
    axis.plot([0, longest], [0, longest], color=MUTED, linewidth=0.8, linestyle=":")
    axis.text(longest * 0.985, longest * 0.94, "square", color=MUTED, fontsize=8.5, ha="right")
    axis.set_xlim(0, longest)
    axis.set_ylim(0, longest)
    axis.set_xlabel("width, pixels", color=INK)
    axis.set_ylabel("height, pixels", color=INK)
    plain_axes(axis)
    return figure
