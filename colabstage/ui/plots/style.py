"""The colours of every plot, on its own white paper; and what all axes have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#66727f"
# Told apart by people who see red and green alike, and in grey as well.
SLOW = "#c8553d"
FAST = "#2a7f9e"
SERIES = ("#2a7f9e", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a")


def add_title(figure: Figure, title: str, note: str) -> None:
    """Write a headline at the left, and a muted line below it; neither where it is empty."""
    if title or note:
        # Room for the note, which is a text of its own because a title has one colour.
        lines = "\n" * (2 if note else 1)
        figure.suptitle(f"{title}{lines}", color=INK, weight="bold", x=0.01, ha="left", fontsize=13)
    if note:
        height = float(figure.get_size_inches()[1])
        figure.text(0.01, 1 - 0.37 / height, note, color=MUTED, fontsize=9.5, va="top")


def plain_bars(axis: Axes) -> None:
    """Leave nothing but the line that bars begin at."""
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    axis.spines["left"].set_visible(True)
    axis.spines["left"].set_color(MUTED)
    axis.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)


def plain_axes(axis: Axes) -> None:
    """Draw axes at the left and below, with a faint grid."""
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(MUTED)
    axis.tick_params(colors=INK, labelsize=9)
