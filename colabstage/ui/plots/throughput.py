"""How fast each step of a work was: from a report afterwards, or from what a recorder noted while it ran."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from colabstage.diagnose.drawing import new_figure
from colabstage.errors import OptionError
from colabstage.progress import cancellation_of, resolve_progress
from colabstage.stage.report import StageReport
from colabstage.ui.plots.inks import INK, MUTED, SERIES, add_title, plain_axes
from colabstage.units import format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from colabstage.progress import Progress, ProgressStep

_MARK_S = 0.1
# Points of one line; where more were noted, rates are of longer stretches.
_MOST_POINTS = 300


@dataclass(slots=True)
class RecordedStep:
    """One step as it went: at `seconds[i]` after the recorder's start, `amounts[i]` of `unit` were done."""

    name: str
    unit: str
    seconds: list[float] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)


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
    """The steps that did something in some time."""
    if isinstance(work, ThroughputRecorder):
        steps = work.steps
    else:
        steps, start = [], 0.0
        for step in work.steps:
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
    """Edges of stretches of time, in seconds, and what was done in a second in each."""
    stride = max(1, -(-(len(step.seconds) - 1) // _MOST_POINTS))
    places = sorted({*range(0, len(step.seconds), stride), len(step.seconds) - 1})
    edges, rates = [step.seconds[0]], []
    last = places[0]
    for place in places[1:]:
        took = step.seconds[place] - step.seconds[last]
        if took > 0:
            edges.append(step.seconds[place])
            rates.append((step.amounts[place] - step.amounts[last]) / took)
            last = place
    return edges, rates
