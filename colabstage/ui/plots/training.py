"""What training costs: each way's epochs before and after, and how fast each step of a work was."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from colabstage.diagnose.drawing import new_figure
from colabstage.errors import OptionError
from colabstage.io.progress import cancellation_of, resolve_progress
from colabstage.io.units import format_duration, format_rate
from colabstage.stage.report import StageReport
from colabstage.ui.plots.style import FAST, INK, MUTED, SERIES, SLOW, add_title, plain_axes, plain_bars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from colabstage.io.progress import Progress, ProgressStep

_WIDTH = 11.0
# Finer than a person sees in a figure of minutes, and 600 numbers a minute.
_MARK_S = 0.1
# Points of one line; where more were noted, rates are of longer stretches.
_MOST_POINTS = 300


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """What one way of training took, in seconds."""

    epochs_s: Sequence[float]
    """How long each epoch took, in order."""
    first_batch_s: float | None = None
    """From the start to the first batch, whatever had to be prepared before it; `None` if not measured."""
    total_s: float | None = None
    """All of the session; `None` if not measured."""


def plot_epochs(
    sessions: Mapping[str, SessionTimes | Sequence[float]], *, title: str = "Epochs before and after", note: str = ""
) -> Figure:
    """Draw what each way of training took, a bar each: the first is what the others are compared with.

    >>> plot_epochs({"from Drive": [412.0, 408.0], "staged": [9.1, 6.2, 6.1]})  # doctest: +SKIP

    Args:
        sessions: by name, the seconds of each epoch, or `SessionTimes` that know more.
        title, note: a line each above the bars.

    Returns:
        A matplotlib figure on white, 11 inches wide, that a notebook shows; `.savefig("epochs.png")` writes it.

    Raises:
        OptionError: there is no session, or one without an epoch.
        MissingDependencyError: matplotlib is not installed.
    """
    times = {name: one if isinstance(one, SessionTimes) else SessionTimes(list(one)) for name, one in sessions.items()}
    empty = [name for name, one in times.items() if not len(one.epochs_s)]
    if empty or not times:
        what = ", ".join(map(repr, empty)) or "no sessions"
        msg = f"There is nothing to draw of {what}; expected the seconds of one epoch at least for each."
        raise OptionError(msg)
    panels = _panels(list(times.values()))
    figure = new_figure(_WIDTH, 1.9 + 0.66 * len(times))
    add_title(figure, title, note)
    # What is compared with stands out from what is compared.
    colours = [SLOW, *[FAST] * (len(times) - 1)]
    for number, (axis, (heading, seconds)) in enumerate(
        zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True)
    ):
        bars = axis.barh(list(times), seconds, color=colours, height=0.62)
        axis.bar_label(bars, [format_duration(value) for value in seconds], padding=4, color=INK, fontsize=10)
        axis.set_title(heading, loc="left", color=INK, fontsize=10.5)
        axis.set_xlim(0, max(*seconds, 1e-9) * 1.42)
        plain_bars(axis)
        axis.tick_params(axis="y", labelleft=number == 0)
        if number == 0:
            axis.invert_yaxis()
    return figure


def _panels(times: Sequence[SessionTimes]) -> list[tuple[str, list[float]]]:
    """Return what is known of all sessions, from the first batch to the end."""
    panels = []
    first_batches = [one.first_batch_s for one in times if one.first_batch_s is not None]
    # A panel in which one bar is missing would say that it took no time.
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
    """One step of a work as it went."""

    name: str
    """What the work calls it."""
    unit: str
    """What is counted."""
    seconds: list[float] = field(default_factory=list)
    """When it was noted, in seconds after the recorder's start."""
    amounts: list[int] = field(default_factory=list)
    """How many of `unit` were done by then."""


class ThroughputRecorder:
    """A `Progress` that notes how far each step was when, ten times a second at the most, and shows it as well.

    >>> recorder = ThroughputRecorder()  # doctest: +SKIP
    >>> data = stage_dataset("photos.zip", progress=recorder)  # doctest: +SKIP
    >>> plot_throughput(recorder)  # doctest: +SKIP

    Attributes:
        steps: what was noted, one step after the other.
        cancellation: stops the work; where the steps are shown with a button for that, the button's.
    """

    def __init__(self, shown: bool | Progress = True) -> None:
        """`shown`: where the steps are shown as well, as `progress=` of any verb; `False` for nowhere."""
        self._shown = resolve_progress(shown)
        self._began = time.monotonic()
        self.steps: list[RecordedStep] = []
        self.cancellation = cancellation_of(self._shown)

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Open a step. As of any `Progress`."""
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


def plot_throughput(work: StageReport | ThroughputRecorder, *, title: str = "") -> Figure:
    """Draw how much each step did in a second, over time; one panel for bytes and one for each other unit.

    Args:
        work: a report, of whose steps the mean rate is known, such as `data.report`; or a recorder, which was passed
            as `progress=`, for how the rate went up and down.
        title: the headline; what was done, and how long it took, by default.

    Returns:
        A matplotlib figure on white that a notebook shows.

    Raises:
        OptionError: no step moved anything.
        MissingDependencyError: matplotlib is not installed.
    """
    steps = _steps_of(work)
    if not steps:
        msg = "No step of this work moved anything that was counted, so there is no throughput to draw."
        raise OptionError(msg)
    units = sorted({step.unit for step in steps}, key=lambda unit: (unit != "B", unit))
    figure = new_figure(9.0, 1.2 + 2.1 * len(units))
    whole = max(step.seconds[-1] for step in steps)
    usual = work.headline if isinstance(work, StageReport) else f"Throughput of {format_duration(whole)}"
    add_title(figure, title or usual, "")
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
            # A report knows how long each step took, and that they followed each other.
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
    """Return the edges of stretches of time, in seconds, and what was done in a second in each."""
    # Over longer stretches the rate is their mean, so nothing that was done is left out.
    stride = max(1, -(-(len(step.seconds) - 1) // _MOST_POINTS))
    places = sorted({*range(0, len(step.seconds), stride), len(step.seconds) - 1})
    edges, rates = [step.seconds[0]], []
    last = places[0]
    for place in places[1:]:
        took = step.seconds[place] - step.seconds[last]
        # Two marks may fall on one tick of the clock.
        if took > 0:
            edges.append(step.seconds[place])
            rates.append((step.amounts[place] - step.amounts[last]) / took)
            last = place
    return edges, rates
