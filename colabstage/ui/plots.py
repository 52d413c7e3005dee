"""Plots of a dataset (samples of each class, sizes of images) and of training (where the time goes).

All are drawn on a white background, in the same colours.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.errors import EmptySourceError, OptionError
from colabstage.io.arguments import refuse_argument, takes, takes_names
from colabstage.io.boundary import typed
from colabstage.io.page import INK, MUTED, draw_panel, new_figure, plain_axes
from colabstage.io.progress import cancellation_of, resolve_progress
from colabstage.io.units import format_count, format_duration, format_rate
from colabstage.layouts.words import IMAGES
from colabstage.stage.dataset import StageReport
from colabstage.trees.open import open_tree, recognise
from colabstage.ui.samples import channels_first, open_splits, read_labels, sample_kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.ui.samples import Samples

# Distinguishable with red-green colour blindness, and in grey.
SLOW = "#c8553d"
FAST = "#2a7f9e"
SERIES = ("#2a7f9e", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a")

# More bars than this cannot be read on one page.
_MOST_CLASSES = 40

_WIDTH = 11.0
# Finer than visible in a figure of minutes, and only 600 numbers a minute.
_MARK_S = 0.1
# Points of one line; if more were recorded, each rate covers a longer time.
_MOST_POINTS = 300


def add_title(figure: Figure, title: str, note: str = "") -> None:
    """Write a headline at the left and a muted line below it; empty ones are left out."""
    if title or note:
        # Room for the note, which is a separate text because a title has one colour.
        lines = "\n" * (2 if note else 1)
        figure.suptitle(f"{title}{lines}", color=INK, weight="bold", x=0.01, ha="left", fontsize=13)
    if note:
        height = float(figure.get_size_inches()[1])
        figure.text(0.01, 1 - 0.37 / height, note, color=MUTED, fontsize=9.5, va="top")


@takes()
@typed()
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
    shown, left = _choose_classes(counts)
    figure = new_figure(min(11.0, 4.0 + 3.2 * len(labels)), 1.3 + 0.27 * max(3, len(shown)))
    add_title(figure, title, f"{left:,} classes of middling frequency are left out." if left else "")
    axes = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    for axis, split, colour in zip(axes, labels, cycle(SERIES), strict=False):
        values = [counts[name].get(split, 0) for name in shown]
        heading = f"{split} ({source.rows[split]:,})"
        draw_panel(axis, heading, shown, values, labels=[f"{value:,}" for value in values], colours=colour)
    return figure


def _choose_classes(counts: dict[str, dict[str, int]]) -> tuple[list[str], int]:
    """Return the classes to draw (all, or the most and the least frequent), and how many are left out."""
    if len(counts) <= _MOST_CLASSES:
        return list(counts), 0
    # Balance shows at the two ends.
    by_count = sorted(counts, key=lambda name: -sum(counts[name].values()))
    half = _MOST_CLASSES // 2
    return [*by_count[:half], *by_count[-half:]], len(counts) - _MOST_CLASSES


@takes()
@typed()
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
    if most < 1:
        msg = f"most={most} cannot work; expected 1 or more."
        raise OptionError(msg)
    path = Path(data).expanduser() if isinstance(data, str | os.PathLike) else None
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
    from PIL import Image, UnidentifiedImageError

    sizes = []
    with tempfile.TemporaryDirectory(prefix="colabstage-") as spool, open_tree(path, spool=Path(spool)) as tree:
        entries = tree.entries.ending_in(IMAGES)
        for number in np.unique(np.linspace(0, max(0, len(entries) - 1), min(most, len(entries))).astype(np.int64)):
            lies_at = tree.path_of(entries[number])
            try:
                # Only the header of a separate file is read.
                with Image.open(lies_at or io.BytesIO(tree.read(entries[number]))) as image:
                    sizes.append((image.height, image.width))
            # A broken one is skipped here; staging will report it.
            except (OSError, UnidentifiedImageError):
                continue
    if not sizes:
        msg = f"'{path}' has no images that can be read. Expected files such as .jpg and .png in it."
        raise EmptySourceError(msg)
    return np.array(sizes, np.int64), len(entries)


def _draw_sizes(sizes: NDArray[np.int64], of: int, title: str) -> Figure:
    heights, widths = sizes[:, 0], sizes[:, 1]
    figure = new_figure(7.2, 4.6)
    looked = f"{len(sizes):,} of {format_count(of, 'images')}" if len(sizes) < of else format_count(of, "images")
    middle = f"{int(np.median(widths)):,} x {int(np.median(heights)):,}"
    add_title(figure, title, f"{looked}; width x height is {middle} in the middle (×).")
    axis = figure.subplots()
    points, counts = np.unique(np.stack([widths, heights], axis=1), axis=0, return_counts=True)
    # People compare the area of dots, not their width; the root keeps rare sizes visible.
    area = 14 + 220 * np.sqrt(counts / counts.sum())
    axis.scatter(points[:, 0], points[:, 1], s=area, color=FAST, alpha=0.45, linewidths=0)
    axis.plot(np.median(widths), np.median(heights), marker="x", color=SLOW, markersize=9, markeredgewidth=2)
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


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """The times of one way of training, in seconds."""

    epochs_s: Sequence[float]
    """How long each epoch took, in order."""
    first_batch_s: float | None = None
    """From the start to the first batch, including all preparation; `None` if not measured."""
    total_s: float | None = None
    """The whole session; `None` if not measured."""


@takes()
def plot_epochs(
    sessions: Mapping[str, SessionTimes | Sequence[float]], *, title: str = "Epochs before and after", note: str = ""
) -> Figure:
    """Draw a bar for the time of each way of training; the first is the baseline.

    >>> plot_epochs({"from Drive": [412.0, 408.0], "staged": [9.1, 6.2, 6.1]})  # doctest: +SKIP

    Args:
        sessions: by name, the seconds of each epoch, or `SessionTimes` with more details.
        title, note: lines above the bars.

    Returns:
        A matplotlib figure on white, 11 inches wide, that a notebook shows; `.savefig("epochs.png")` writes it.

    Raises:
        OptionError: there is no session, or one without an epoch.
        MissingDependencyError: matplotlib is not installed.
    """
    if not isinstance(sessions, Mapping):
        refuse_argument("sessions", sessions, 'names with the seconds of their epochs, such as {"staged": [9.1, 6.2]}')
    times = {name: one if isinstance(one, SessionTimes) else SessionTimes(list(one)) for name, one in sessions.items()}
    empty = [name for name, one in times.items() if not len(one.epochs_s)]
    if empty or not times:
        what = ", ".join(map(repr, empty)) or "no sessions"
        msg = f"There is nothing to draw of {what}; expected the seconds of one epoch at least for each."
        raise OptionError(msg)
    panels = _panels(list(times.values()))
    figure = new_figure(_WIDTH, 1.9 + 0.66 * len(times))
    add_title(figure, title, note)
    # The baseline has a colour of its own.
    colours = [SLOW, *[FAST] * (len(times) - 1)]
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (heading, seconds) in zip(axes, panels, strict=True):
        said = [format_duration(value) for value in seconds]
        draw_panel(axis, heading, list(times), seconds, labels=said, colours=colours)
    return figure


def _panels(times: Sequence[SessionTimes]) -> list[tuple[str, list[float]]]:
    """Return the times that are known for all sessions, from the first batch to the end."""
    panels = []
    first_batches = [one.first_batch_s for one in times if one.first_batch_s is not None]
    # In a panel, a missing bar would look like no time at all.
    if len(first_batches) == len(times):
        panels.append(("Until the first batch", first_batches))
    panels.append(("First epoch", [one.epochs_s[0] for one in times]))
    if all(len(one.epochs_s) > 1 for one in times):
        later = [sum(one.epochs_s[1:]) / (len(one.epochs_s) - 1) for one in times]
        panels.append(("Each later epoch", later))
    totals = [one.total_s for one in times if one.total_s is not None]
    if len(totals) == len(times):
        panels.append(("Whole session", totals))
    return panels


@dataclass(slots=True)
class RecordedStep:
    """The progress of one step over time."""

    name: str
    """Its name."""
    unit: str
    """The unit that is counted."""
    seconds: list[float] = field(default_factory=list)
    """When it was recorded, in seconds after the recorder's start."""
    amounts: list[int] = field(default_factory=list)
    """How many of `unit` were done by then."""


@takes_names
class ThroughputRecorder:
    """A `Progress` that records each step over time, at most ten times a second, and also shows it.

    >>> recorder = ThroughputRecorder()  # doctest: +SKIP
    >>> data = stage_dataset("photos.zip", progress=recorder)  # doctest: +SKIP
    >>> plot_throughput(recorder)  # doctest: +SKIP

    Attributes:
        steps: what was recorded, step by step.
        cancellation: stops the work; if the steps are shown with a button for that, the button's.
    """

    def __init__(self, shown: bool | Progress = True) -> None:
        """`shown`: where the steps are also shown, like `progress=` of any function; `False` for nowhere."""
        self._shown = resolve_progress(shown)
        self._began = time.monotonic()
        self.steps: list[RecordedStep] = []
        self.cancellation = cancellation_of(self._shown)

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Open a step, as any `Progress` does."""
        step = RecordedStep(name, unit)
        self.steps.append(step)
        return _Recording(step, self._shown.step(name, total=total, unit=unit), self._began)


class _Recording:
    def __init__(self, step: RecordedStep, shown: ProgressStep, began: float) -> None:
        self._step, self._shown, self._began = step, shown, began
        self._lock = threading.Lock()
        self._done = 0
        self._note(time.monotonic() - began)

    def advance(self, amount: int = 1) -> None:
        self._shown.advance(amount)
        now = time.monotonic() - self._began
        with self._lock:
            self._done += amount
            # Readers call this for every few kilobytes, from many threads.
            if now - self._step.seconds[-1] >= _MARK_S:
                self._note(now)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._note(time.monotonic() - self._began)
        self._shown.__exit__(kind, error, trace)

    def _note(self, now: float) -> None:
        self._step.seconds.append(now)
        self._step.amounts.append(self._done)


@takes()
def plot_throughput(work: StageReport | ThroughputRecorder, *, title: str = "") -> Figure:
    """Draw the rate of each step over time; one panel for bytes and one for each other unit.

    Args:
        work: a report, such as `data.report`, for the mean rates of its steps; or a recorder that was passed as
            `progress=`, for rates over time.
        title: the headline; what was done, and how long it took, by default.

    Returns:
        A matplotlib figure on white that a notebook shows.

    Raises:
        OptionError: no step moved anything.
        MissingDependencyError: matplotlib is not installed.
    """
    given: object = work
    if not isinstance(given, (StageReport, ThroughputRecorder)):
        remedy = "A loader is measured by profile_loader."
        refuse_argument("work", given, "a report, such as data.report, or a ThroughputRecorder", remedy=remedy)
    steps = _steps_of(work)
    if not steps:
        msg = "No step of this work moved anything that was counted, so there is no throughput to draw."
        raise OptionError(msg)
    units = sorted({step.unit for step in steps}, key=lambda unit: (unit != "B", unit))
    figure = new_figure(9.0, 1.2 + 2.1 * len(units))
    whole = max(step.seconds[-1] for step in steps)
    usual = work.headline if isinstance(work, StageReport) else f"Throughput of {format_duration(whole)}"
    add_title(figure, title or usual)
    axes = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    for axis, unit in zip(axes, units, strict=True):
        _draw_unit(axis, unit, steps)
    axes[-1].set_xlim(0, max(whole, 1e-6))
    axes[-1].set_xlabel("seconds", color=INK)
    return figure


def _steps_of(work: StageReport | ThroughputRecorder) -> list[RecordedStep]:
    """Return the steps that did something in some time."""
    if isinstance(work, ThroughputRecorder):
        steps = work.steps
    else:
        steps, start = [], 0.0
        for step in work.steps:
            # A report only has the duration of each step, and steps followed each other.
            end = start + step.seconds
            if step.moves and step.unit:
                steps.append(RecordedStep(step.name, step.unit, [start, end], [0, step.amount]))
            start = end
    return [step for step in steps if step.seconds[-1] > step.seconds[0] and step.amounts[-1] > 0]


def _draw_unit(axis: Axes, unit: str, steps: Sequence[RecordedStep]) -> None:
    scale, word = (1e6, "MB") if unit == "B" else (1.0, unit)
    for number, step in enumerate(steps):
        if step.unit != unit:
            continue
        edges, rates = rates_of(step)
        colour = SERIES[number % len(SERIES)]
        mean = format_rate(step.amounts[-1], step.seconds[-1] - step.seconds[0], unit)
        axis.stairs([rate / scale for rate in rates], edges, color=colour, linewidth=1.6, label=f"{step.name}: {mean}")
        axis.stairs([rate / scale for rate in rates], edges, color=colour, fill=True, alpha=0.15)
    axis.set_ylabel(f"{word}/s", color=INK)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower left", bbox_to_anchor=(-0.01, 1.0), labelcolor=MUTED)
    plain_axes(axis)


def rates_of(step: RecordedStep) -> tuple[list[float], list[float]]:
    """Return the edges of intervals, in seconds, and the rate per second in each."""
    # Over longer intervals the rate is the mean, so no work is left out.
    stride = max(1, -(-(len(step.seconds) - 1) // _MOST_POINTS))
    places = sorted({*range(0, len(step.seconds), stride), len(step.seconds) - 1})
    edges, rates = [step.seconds[0]], []
    last = places[0]
    for place in places[1:]:
        took = step.seconds[place] - step.seconds[last]
        # Two records may have the same time.
        if took > 0:
            edges.append(step.seconds[place])
            rates.append((step.amounts[place] - step.amounts[last]) / took)
            last = place
    return edges, rates
