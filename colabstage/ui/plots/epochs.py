"""What training costs before and after: the first batch, the first epoch, each later one, and the whole session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.diagnose.drawing import new_figure
from colabstage.errors import OptionError
from colabstage.ui.plots.inks import FAST, INK, SLOW, add_title, plain_bars
from colabstage.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

_WIDTH = 11.0


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """What one way of training took, in seconds.

    `epochs_s`: each epoch, in order. `first_batch_s`: from the start to the first batch, whatever had to be prepared
    before it. `total_s`: all of it. `None` for what nobody measured.
    """

    epochs_s: Sequence[float]
    first_batch_s: float | None = None
    total_s: float | None = None


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
    """What is known of all sessions, from the first batch to the end."""
    panels = []
    first_batches = [one.first_batch_s for one in times if one.first_batch_s is not None]
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
