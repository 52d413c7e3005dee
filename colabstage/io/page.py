"""How things show themselves in a notebook: tables and notes as HTML, and a figure.

Text takes the colour that the notebook sets for outputs; the few colours of ours are of middle lightness, which stand
out from white and from black alike. Every rule carries our class, so nothing else on the page changes. No scripts:
what is shown looks the same in a notebook that is only read. A figure shows itself: notebooks know how to show one only
once pyplot has been imported, which also chooses a backend for the whole session; without it they print
`<Figure size …>`.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import re
from functools import cache
from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
# Outputs of JupyterLab, of VS Code and of Colab name their text's colour so; elsewhere it is inherited.
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
# The ink of our plots, and matplotlib's own; the paper that they are drawn on.
_INK = re.compile(r"#1f2933|#000000")
_PAPER = re.compile(r"fill: #ffffff")
# Who drew it and when: a page that drops the drawing's elements keeps their text.
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def page(headline: str, body: str) -> str:
    """Return something as HTML: `headline` is plain text, `body` is HTML."""
    return f"{STYLE}<div class='cs-report'>{heading(headline)}{left_aligned(body)}</div>"


def heading(text: str) -> str:
    """Return a line of plain text above what follows, as HTML."""
    return f"<div class='cs-head'><strong>{html.escape(text)}</strong></div>"


def left_aligned(body: str) -> str:
    """Return HTML whose cells, but those of numbers, are at the left without `STYLE` too.

    A notebook that is not trusted drops style sheets and keeps the styles of elements; its own has cells at the right.
    """

    def aligned(cell: re.Match[str]) -> str:
        look = "text-align:left" if "cs-number" not in cell[2] else "text-align:right"
        rest, style, more = cell[2].partition("style='")
        return f"<{cell[1]}{rest}{style}{look};{more}>" if style else f"<{cell[1]}{rest} style='{look}'>"

    return _CELL.sub(aligned, body)


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """Return names with what is known of them, both plain text, as HTML; nothing for none."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>" if rows else ""


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: frozenset[int] = frozenset(),
    below: Sequence[str] = (),
) -> str:
    """Return plain text in columns, as HTML; those in `numbers`, counted from 0, at the right.

    `below`: for each row a text that goes under it, over all columns; an empty one takes no room.
    """
    marks = [" class='cs-number'" if column in numbers else "" for column in range(len(head))]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    def under(text: str) -> str:
        return f"<tr class='cs-below'><td colspan='{len(head)}'>{html.escape(text)}</td></tr>" if text else ""

    body = "".join(
        f"<tr>{line('td', row)}</tr>{under(text)}" for row, text in itertools.zip_longest(rows, below, fillvalue="")
    )
    return f"<table><tr>{line('th', head)}</tr>{body}</table>"


def notes(lines: Iterable[str]) -> str:
    """Return sentences of plain text below each other, muted, as HTML."""
    return "".join(f"<div class='cs-muted'>{html.escape(line)}</div>" for line in lines)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure of so many inches that no window and no global state knows of.

    A notebook shows it in the colours of its page; what is saved is on white.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        shown = _shown_figure()
    except ImportError as error:
        msg = "Drawing needs matplotlib. Install it with: pip install matplotlib"
        raise MissingDependencyError(msg) from error
    return shown(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")


# Made when the first picture is drawn, because importing matplotlib takes longer than everything else here.
@cache
def _shown_figure() -> type[Figure]:
    """Return the class of figures with a canvas of their own, which are PNGs wherever PNGs are shown."""
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
            """Draw it in the colours of the page; the PNG is for a notebook that is not trusted: it drops drawings."""
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
