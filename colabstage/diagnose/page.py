"""How reports look in a notebook: one box with a headline, legible on a light and on a dark page; and their pictures.

Text takes the page's own colour, as notebooks set it; the few colours of ours are of middle lightness, which stand out
from white and from black alike. Every rule carries our class, so nothing else on the page changes.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
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

_STYLE = """<style>
.cs-report{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px;line-height:1.45;max-width:60em}
.cs-report table{border-collapse:collapse;margin:.4em 0;background:none;font-size:inherit;color:inherit}
.cs-report tr{background:none!important}
.cs-report th,.cs-report td{text-align:left!important;vertical-align:top;padding:.25em .9em .25em 0;border:0;
border-top:1px solid rgba(128,136,144,.3);font-weight:inherit;background:none}
.cs-report th{white-space:nowrap;font-weight:600}
.cs-report .cs-muted{opacity:.72}
.cs-report .cs-head{font-weight:600;font-size:14px}
.cs-report .cs-number{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}
</style>"""


def page(headline: str, body: str) -> str:
    """A report as HTML: `headline` is plain text, `body` is HTML."""
    return f"{_STYLE}<div class='cs-report'><div class='cs-head'>{html.escape(headline)}</div>{body}</div>"


def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure of so many inches, white, that no window and no global state knows of.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = "Drawing needs matplotlib. Install it with: pip install matplotlib"
        raise MissingDependencyError(msg) from error
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure
