"""How results look in a notebook: tables and notes as HTML, and figures.

Text has the colour that the notebook sets for outputs; the few other colours are of medium lightness, so they are
legible on white and on black. Every CSS rule has our class, so nothing else on the page changes. There are no scripts,
so a saved notebook looks the same. A figure renders itself, because notebooks can show a figure only once pyplot has
been imported, which also chooses a backend for the whole session; without it they print `<Figure size …>`.
"""

from __future__ import annotations

import base64
import html
import io
import re
import sys
from functools import cache
from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Contrast of 3.5 and more against #ffffff as well as #1e1e1e, for text in bold and for bars.
COLOURS = {
    "ok": "#2e8b57",
    "warn": "#b7791f",
    "fail": "#d64545",
    "skip": "#808890",
    "accent": "#2a86b0",
    "muted": "#808890",
}
# JupyterLab, VS Code and Colab have these names for the text colour of outputs; elsewhere it is inherited.
TEXT_COLOUR = "var(--jp-content-font-color1,var(--vscode-editor-foreground,var(--colab-primary-text-color,inherit)))"
STYLE = (
    "<style>"
    ".cs-report{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px;line-height:1.45;"
    f"max-width:60em;color:{TEXT_COLOUR}"
    """}
.cs-report table{border-collapse:collapse;margin:.4em 0;background:none;font-size:inherit;color:inherit;border:0}
.cs-report tr{background:none!important}
.cs-report th,.cs-report td{text-align:left!important;vertical-align:top;padding:.25em .7em .25em 0;border:0;
border-top:1px solid rgba(128,136,144,.3);font-weight:inherit;background:none;color:inherit;white-space:normal;
overflow-wrap:break-word;max-width:none}
.cs-report td:last-child{overflow-wrap:anywhere}
@media (max-width:640px){.cs-report th,.cs-report .cs-number,.cs-report .cs-figures span{white-space:normal!important}
.cs-report th,.cs-report td{padding-right:.5em}}
.cs-report td.cs-number{overflow-wrap:normal}
.cs-report th{white-space:nowrap;font-weight:600}
.cs-report .cs-below td{border-top:0;padding-top:0;opacity:.72;white-space:normal!important}
.cs-report .cs-muted{opacity:.72}
.cs-report .cs-head{font-weight:600;font-size:14px}
.cs-report .cs-head+.cs-head{margin-top:.6em}
.cs-report .cs-number{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}
.cs-report .cs-figures [role=progressbar]{width:11em!important;max-width:28vw}
.cs-report .cs-figures span{display:inline-block;white-space:nowrap;font-variant-numeric:tabular-nums;margin-right:.9em}
</style>"""
)
_CELL = re.compile(r"<(t[dh])\b([^>]*)>")
# Colours of plots.
INK = "#1f2933"
MUTED = "#66727f"
# The foreground colours of our plots and of matplotlib, and the background.
_INK = re.compile(r"#1f2933|#000000")
_PAPER = re.compile(r"fill: #ffffff")
# Author and date: a page that drops the drawing's elements keeps their text.
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def page(headline: str, body: str) -> str:
    """Return a report as HTML: `headline` is plain text, `body` is HTML."""
    head = f"<div class='cs-head'><strong>{html.escape(headline)}</strong></div>"
    return f"{STYLE}<div class='cs-report'>{head}{left_aligned(body)}</div>"


def left_aligned(body: str) -> str:
    """Return HTML whose cells, except those of numbers, are left-aligned even without `STYLE`.

    An untrusted notebook drops style sheets but keeps the styles of elements; its own style is right-aligned.
    """

    def aligned(cell: re.Match[str]) -> str:
        look = "text-align:left" if "cs-number" not in cell[2] else "text-align:right"
        rest, style, more = cell[2].partition("style='")
        return f"<{cell[1]}{rest}{style}{look};{more}>" if style else f"<{cell[1]}{rest} style='{look}'>"

    return _CELL.sub(aligned, body)


def notes(lines: Iterable[str]) -> str:
    """Return sentences of plain text, one below the other and muted, as HTML."""
    return "".join(f"<div class='cs-muted'>{html.escape(line)}</div>" for line in lines)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, sized in inches, that is not registered with any window or global state.

    A notebook shows it in the colours of its page; saved files have a white background.
    """
    try:
        shown = _shown_figure()
    except ImportError as error:
        msg = "Drawing needs matplotlib. Install it with: pip install matplotlib"
        raise MissingDependencyError(msg) from error
    return shown(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")


def draw_panel(
    axis: Axes,
    heading: str,
    names: Sequence[str],
    values: Sequence[float],
    *,
    labels: Sequence[str],
    colours: str | Sequence[str],
) -> None:
    """Draw a bar for each name, the first on top, with a label at its end; if panels share their axis, only the first
    has the names."""
    places = range(len(names))
    axis.bar_label(axis.barh(places, values, color=colours, height=0.66), labels, padding=4, color=INK, fontsize=9)
    axis.set_yticks(places, names)
    axis.set_title(heading, loc="left", color=INK, fontsize=10.5)
    # Room for the labels at the end of the bars.
    axis.set_xlim(0, max(*values, 1e-9) * 1.42)
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.spines["left"].set_color(MUTED)
    axis.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axis.label_outer()
    if not axis.yaxis_inverted():
        axis.invert_yaxis()


def plain_axes(axis: Axes) -> None:
    """Draw axes at the left and below, with a faint grid."""
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(MUTED)
    axis.tick_params(colors=INK, labelsize=9)


# Made when the first picture is drawn, because importing matplotlib takes longer than everything else here.
@cache
def _shown_figure() -> type[Figure]:
    """Return the class of figures that have their own canvas and render as PNGs wherever PNGs are shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def __init__(self, **options: object) -> None:
            super().__init__(**options)  # type: ignore[arg-type]
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

        def _repr_html_(self) -> str:
            """Draw it in the colours of the page; the PNG is for untrusted notebooks, which drop drawings."""
            buffer = io.StringIO()
            self.savefig(buffer, format="svg", facecolor="none")
            drawn = buffer.getvalue()
            drawn = _METADATA.sub("", drawn[drawn.index("<svg") :])
            drawn = _PAPER.sub("fill: none", _INK.sub("currentColor", drawn))
            picture = base64.b64encode(self._repr_png_()).decode()
            return (
                "<style>.cs-figure{overflow-x:auto}.cs-figure svg{max-width:max(100%,640px);height:auto}"
                ".cs-figure img{display:none}</style>"
                f"<div class='cs-figure' style='color:{TEXT_COLOUR}'>{drawn}"
                f"<img alt='' src='data:image/png;base64,{picture}'></div>"
            )

    return ShownFigure


def draws_html(shell_classes: Iterable[str]) -> bool:
    """Return whether the front end of an IPython shell draws HTML, judged by the names of its class and base classes.

    Kernels serve notebooks, which all do: Colab, Jupyter, VS Code, Kaggle. Spyder's console is a kernel and shows text;
    IPython in a terminal is not a kernel. A console that is connected to a notebook's kernel cannot be recognised.
    """
    names = set(shell_classes)
    return "ZMQInteractiveShell" in names and "SpyderShell" not in names


def in_notebook() -> bool:
    """Return whether this process belongs to a notebook that draws HTML."""
    # Not imported here: a process that has not imported IPython is not in a notebook.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and draws_html(kind.__name__ for kind in type(shell).__mro__)
