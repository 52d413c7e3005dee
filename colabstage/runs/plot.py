"""The history of a run as a figure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError
from colabstage.io.page import COLOURS, INK, MUTED, new_figure, plain_axes
from colabstage.io.units import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

# What every row of a history has.
PLACES = ("session", "epoch", "step", "time")


def plot_history(history: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Figure:
    """Draw columns of a history over the steps, one below the other, with a dashed line where a session began.

    Raises:
        OptionError: there is no such column, or there are no rows yet.
        MissingDependencyError: matplotlib is not installed.
    """
    columns = list(dict.fromkeys(name for row in history for name in row if name not in PLACES))
    if unknown := [name for name in names if name not in columns]:
        msg = f"The history has no column {unknown[0]!r}; it has {listed(columns) or 'no rows yet'}."
        raise OptionError(msg)
    shown = list(names) or columns
    figure = new_figure(8, 2.2 * max(1, len(shown)))
    # A version's history ends where it was saved, which is where the session that restored it began.
    begins = [before["step"] for before, row in itertools.pairwise(history) if row["session"] != before["session"]]
    axes = figure.subplots(max(1, len(shown)), sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, shown, strict=False):
        rows = [row for row in history if name in row]
        steps, values = [row["step"] for row in rows], [row[name] for row in rows]
        axis.plot(steps, values, marker="." if len(rows) < 50 else None, color=COLOURS["accent"])
        axis.set_ylabel(name, color=INK)
        plain_axes(axis)
        for step in begins:
            axis.axvline(step, linestyle="--", linewidth=1, color=MUTED)
    axes[-1].set_xlabel("step", color=INK)
    return figure
