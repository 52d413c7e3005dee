"""Pictures, drawn without a display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.ui.demo.train import Training

_INK = "#1f2933"
_MUTED = "#66727f"
_SLOW = "#c8553d"
_FAST = "#2a7f9e"


def draw_sessions(sessions: Sequence[tuple[str, Training]], path: Path, *, title: str, note: str) -> None:
    """Draw what each session cost: until its first batch, its first epoch, its later ones, and all of it.

    Args:
        sessions: `(name, training)`, the one to compare with first.
        path: the PNG to write.
        title, note: a line each, above the bars.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [
        ("Until the first batch", [training.first_batch_s for _, training in sessions]),
        ("First epoch", [training.first.seconds for _, training in sessions]),
        ("Each later epoch", [training.later_s for _, training in sessions]),
        ("Whole session", [training.total_s for _, training in sessions]),
    ]
    names = [name for name, _ in sessions]
    colours = [_SLOW, *[_FAST] * (len(sessions) - 1)]
    figure = Figure(figsize=(11, 3.9), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}\n\n", color=_INK, weight="bold", x=0.01, ha="left", fontsize=13)
    figure.text(0.01, 0.905, note, color=_MUTED, fontsize=9.5, va="top")
    axes = figure.subplots(1, len(panels), sharey=True)
    for number, (axis, (heading, seconds)) in enumerate(zip(axes, panels, strict=True)):
        bars = axis.barh(names, seconds, color=colours, height=0.62)
        axis.bar_label(bars, [format_duration(value) for value in seconds], padding=4, color=_INK, fontsize=10)
        axis.set_title(heading, loc="left", color=_INK, fontsize=10.5)
        axis.set_xlim(0, max(seconds) * 1.42)
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
        axis.spines["left"].set_visible(True)
        axis.spines["left"].set_color(_MUTED)
        axis.tick_params(axis="y", length=0, labelsize=10, labelcolor=_INK, labelleft=number == 0)
    axes[0].invert_yaxis()
    figure.savefig(path)
