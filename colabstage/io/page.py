"""How things show themselves in a notebook: tables and notes as HTML, a figure, and a call of ours that failed.

Text takes the colour that the notebook sets for outputs; the few colours of ours are of middle lightness, which stand
out from white and from black alike. Every rule carries our class, so nothing else on the page changes. No scripts:
what is shown looks the same in a notebook that is only read. A figure shows itself: notebooks know how to show one only
once pyplot has been imported, which also chooses a backend for the whole session; without it they print
`<Figure size …>`. A call that failed or was stopped is shown as the caller's own lines and a sentence.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import itertools
import re
import sys
import sysconfig
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# What Ctrl-C, or a notebook's stop button, leaves behind.
GOES_ON = "What was finished is kept; the same call again continues from there."
NOTHING_DONE = "Nothing was changed."

_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n"


class StoppedCell(KeyboardInterrupt):
    """Somebody stopped the cell while a call of ours worked; says what is left of the work."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def stops_with(
    sentence: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let a verb that is stopped in a notebook end in one sentence in place of a traceback."""

    def decorate(verb: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(verb)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            try:
                return verb(*args, **kwargs)
            except KeyboardInterrupt as stop:
                # Elsewhere the interpreter ends by it, with the exit code that shells know.
                if _shell() is None or isinstance(stop, StoppedCell):
                    raise
                msg = f"Stopped. {sentence}"
                raise StoppedCell(msg) from stop

        return call

    return decorate


# What is below the call is useful to developers of colabstage: it is shown, like everything else, after `%xmode
# Verbose`, and `%debug` always walks through it.
def lines_of(error: BaseException) -> list[str]:
    """Return what IPython prints of an error of ours: without the frames below the call, unless it is verbose."""
    tracebacks = _shell().InteractiveTB
    if tracebacks.mode == "Verbose":
        return _formatted(tracebacks, error, error.__traceback__)
    cause = error.__cause__
    # A cause is shown where the caller's own code raised it: a function that was handed to us.
    seen = None if cause is None else without_ours(cause.__traceback__)
    told = [] if cause is None or seen is None else [*_formatted(tracebacks, cause, seen, tb_offset=0), _BECAUSE]
    return [*told, *_formatted(tracebacks, error, without_ours(error.__traceback__))]


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of colabstage's, and without those of libraries that these have called."""
    kept: list[TracebackType] = []
    inside = False
    while trace is not None:
        ours = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
        inside = inside or ours
        if not (inside and (ours or trace.tb_frame.f_code.co_filename.startswith(_LIBRARIES))):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for one in reversed(kept):
        shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown


def _formatted(
    tracebacks: Any, error: BaseException, trace: TracebackType | None, *, tb_offset: int | None = None
) -> list[str]:
    # IPython follows the chain of causes by itself, so there is none while it looks.
    chain = error.__cause__, error.__context__, error.__suppress_context__
    verbose = tracebacks.mode == "Verbose"
    try:
        if not verbose:
            error.__cause__ = error.__context__ = None
        lines: list[str] = tracebacks.structured_traceback(type(error), error, trace, tb_offset=tb_offset)
        return lines
    finally:
        error.__cause__, error.__context__, error.__suppress_context__ = chain


def _shell() -> Any:
    """Return IPython's shell; `None` where this process has none."""
    # Not imported: who has not loaded it is in none.
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


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
