"""A profile as a picture: how long each stage takes alone, and a few batches in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.diagnose.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from colabstage.diagnose.facts import Span
    from colabstage.diagnose.report import LoaderProfile

# Of middle lightness, to stand out from white and from black.
COLOURS = {
    "read": "#2a86b0",
    "decode": "#b7791f",
    "transform": "#8a5aa8",
    "collate": "#c8553d",
    "transfer": "#6a8a2a",
    "step": "#2e8b57",
}
_WAIT = "#c3cad1"
_INK = "#1f2933"
_SHOWN = 12
# Of the heading, at which it fills 9 inches.
_LINE = 90


def draw_profile(profile: LoaderProfile) -> Figure:
    """Draw it, white, 9 inches wide.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    spans = _middle(profile.spans)
    figure = new_figure(9.0, 4.6 if spans else 3.0)
    figure.suptitle(_in_lines(profile.verdict.sentence), x=0.01, ha="left", fontsize=10.5, weight="bold", color=_INK)
    if spans:
        above, below = figure.subplots(2, 1, height_ratios=[max(2, len(profile.stage_seconds)), 1.6])
        _draw_timeline(below, spans)
    else:
        above = figure.subplots()
    _draw_stages(above, profile)
    return figure


def _draw_stages(axis: Axes, profile: LoaderProfile) -> None:
    names = list(profile.stage_seconds)
    milliseconds = [1000 * seconds for seconds in profile.stage_seconds.values()]
    bars = axis.barh(names, milliseconds, color=[COLOURS[name] for name in names], height=0.66)
    axis.bar_label(bars, [f"{value:,.2f} ms" for value in milliseconds], padding=4, fontsize=9, color=_INK)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * max([*milliseconds, 1e-6]))
    axis.set_title("each stage alone, for one batch", loc="left", fontsize=9.5, color=_INK)
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _draw_timeline(axis: Axes, spans: tuple[Span, ...]) -> None:
    start = spans[0].asked_s
    waits = [(1000 * (span.asked_s - start), 1000 * (span.given_s - span.asked_s)) for span in spans]
    steps = [(1000 * (span.given_s - start), 1000 * (span.done_s - span.given_s)) for span in spans]
    axis.broken_barh(waits, (0.55, 0.8), color=_WAIT, edgecolor="white", linewidth=0.6)
    axis.broken_barh(steps, (-0.4, 0.8), color=COLOURS["step"], edgecolor="white", linewidth=0.6)
    axis.set_yticks([0, 0.95], ["step", "wait"])
    axis.set_ylim(1.5, -0.55)
    axis.set_xlim(0, 1000 * (spans[-1].done_s - start))
    axis.set_title(f"{len(spans)} batches of the run together", loc="left", fontsize=9.5, color=_INK)
    axis.set_xlabel("milliseconds")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _middle(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """A few batches in a row, from where things run as they will."""
    first = max(0, len(spans) // 2 - _SHOWN // 2)
    return spans[first : first + _SHOWN]


def _in_lines(sentence: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(sentence, _LINE))
