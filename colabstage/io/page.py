"""How results look in a notebook: tables and notes as HTML, figures, and a panel for work in progress.

Text has the colour that the notebook sets for outputs; the few other colours are of medium lightness, so they are
legible on white and on black. Every CSS rule has our class, so nothing else on the page changes. There are no scripts,
so a saved notebook looks the same. A figure renders itself, because notebooks can show a figure only once pyplot has
been imported, which also chooses a backend for the whole session; without it they print `<Figure size …>`.

A `Board` knows the progress of each step, and passes it to a drawing function a few times a second. Working threads
only add to a number; one thread reads the numbers and draws, as long as a step is open. So a report costs one lock,
however often it comes, and the display stays true when no report comes at all. It is not a widget: while a cell runs,
its kernel is busy, so a button would not respond (before ipykernel 7), and widgets turn into their names when the page
is loaded again.
"""

from __future__ import annotations

import base64
import contextvars
import html
import io
import re
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

from colabstage.errors import CancelledError, MissingDependencyError, printable, said_by
from colabstage.io.environment import logger_of
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from colabstage.io.progress import Cancellation


log = logger_of(__name__)

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


# "ended" is a step that closed without an error before all of it was done, such as the copy of an archive whose reader
# failed.
State = Literal["running", "done", "failed", "cancelled", "ended"]

# Five updates a second look alive; drawing two rows takes well under 1 ms.
_INTERVAL_S = 0.2
# The rate is that of the last seconds: an average of the whole step would hide that a source has stalled.
_WINDOW_S = 5.0
_MARK_S = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One step at one moment."""

    name: str
    """What the step is called."""
    unit: str
    """The unit of `total` and `done`; "B" for bytes."""
    total: int | None
    """How many there are; `None` if unknown."""
    done: int
    """How many are done."""
    state: State
    """Whether it runs, or how it ended."""
    seconds: float
    """Seconds since it was opened, or how long it took."""
    rate: float
    """Units per second: of the last seconds while it runs, of the whole step afterwards."""
    idle_s: float = 0.0
    """Seconds without a report."""
    problem: str = ""
    """What went wrong, if the step failed."""
    note: str = ""
    """Anything else to say about it."""

    @property
    def fraction(self) -> float | None:
        """Return the part that is done, 0 to 1; `None` if the total is unknown."""
        if not self.total:
            return None if self.total is None else 1.0
        return min(1.0, self.done / self.total)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds left at the present rate; `None` if the rate is 0 or the total unknown."""
        if self.total is None or self.rate <= 0 or self.state != "running":
            return None
        return max(0.0, (self.total - self.done) / self.rate)


class BoardStep:
    """One step of a `Board`."""

    def __init__(self, board: Board, name: str, total: int | None, unit: str) -> None:
        self._board = board
        self._name, self._total, self._unit = name, total, unit
        self._lock = threading.Lock()
        self._began = self._changed = time.monotonic()
        self._done = self._seen = self._before = 0
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._final: Row | None = None
        self._note = ""

    def note(self, text: str) -> None:
        """Replace the note about it. From any thread."""
        with self._lock:
            self._note = text

    def advance(self, amount: int = 1) -> None:
        """Add `amount` units. From any thread."""
        with self._lock:
            self._done += amount

    def start_at(self, amount: int) -> None:
        """Add units that were done before the step began: they count, but not for the rate. From any thread."""
        with self._lock:
            self._done += amount
            self._before += amount
            self._marks = deque((when, done + amount) for when, done in self._marks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._lock:
            if self._final is not None:
                return
            state = self._ending(kind)
            seconds = time.monotonic() - self._began
            rate = (self._done - self._before) / seconds if seconds > 0 else 0.0
            problem = str(error) or said_by(error) if error is not None and state == "failed" else ""
            self._final = Row(
                self._name, self._unit, self._total, self._done, state, seconds, rate, problem=problem, note=self._note
            )
        self._board.closed()

    def _ending(self, kind: type[BaseException] | None) -> State:
        if kind is not None:
            return "cancelled" if issubclass(kind, (CancelledError, KeyboardInterrupt)) else "failed"
        if self._total is None or self._done >= self._total:
            return "done"
        cancellation = self._board.cancellation
        return "cancelled" if cancellation is not None and cancellation.cancelled else "ended"

    @property
    def open(self) -> bool:
        """Return whether it is still running."""
        return self._final is None

    def look(self) -> Row:
        """Return its present state."""
        with self._lock:
            if self._final is not None:
                return self._final
            now = time.monotonic()
            while len(self._marks) > 1 and self._marks[1][0] < now - _WINDOW_S:
                self._marks.popleft()
            since, before = self._marks[0]
            rate = (self._done - before) / (now - since) if now > since else 0.0
            if now - self._marks[-1][0] >= _MARK_S:
                self._marks.append((now, self._done))
            if self._seen != self._done:
                self._seen, self._changed = self._done, now
            idle_s = now - self._changed
            seconds = now - self._began
            return Row(
                self._name, self._unit, self._total, self._done, "running", seconds, rate, idle_s, note=self._note
            )


class Board:
    """A `Progress` that shows all steps together, wherever `show` draws them.

    `cancellation`: set by a button beside it; `None` if there is no button.
    """

    def __init__(
        self,
        show: Callable[[tuple[Row, ...]], None],
        *,
        cancellation: Cancellation | None = None,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """Keep `show`, which is called with all rows in order, by several threads but never by two at once."""
        self.cancellation = cancellation
        self._show = show
        self._interval_s = interval_s
        self._steps: list[BoardStep] = []
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._stop: threading.Event | None = None
        self._broken = False

    def background(self) -> Self:
        """Return this board: what it draws stays in place, whatever the caller prints."""
        return self

    def step(self, name: str, *, total: int | None, unit: str) -> BoardStep:
        """Open a step and show it at once."""
        step = BoardStep(self, name, total, unit)
        with self._lock:
            self._steps.append(step)
        self._draw()
        with self._lock:
            if self._stop is None and step.open:
                self._stop = threading.Event()
                # With the caller's context, which tells a kernel to which cell this belongs.
                run = contextvars.copy_context().run
                threading.Thread(
                    target=run, args=(self._keep_drawing, self._stop), name="colabstage-progress", daemon=True
                ).start()
        return step

    def closed(self) -> None:
        """Show how a step ended, and stop drawing if it was the last open one."""
        with self._lock:
            if self._stop is not None and not any(step.open for step in self._steps):
                self._stop.set()
                self._stop = None
        self._draw()

    def rows(self) -> tuple[Row, ...]:
        """Return the present state of all steps, in the order in which they were opened."""
        # Looked at outside the lock, so that opening a step never waits for drawing.
        with self._lock:
            steps = tuple(self._steps)
        return tuple(step.look() for step in steps)

    def _draw(self) -> None:
        # One at a time: if two threads drew at once, the older state could win.
        with self._drawing:
            if self._broken:
                return
            try:
                self._show(self.rows())
            except Exception:
                # Work of hours must not end because the page that showed it is gone.
                self._broken = True
                log.warning("Progress cannot be drawn any more; the work continues.", exc_info=True)

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            self._draw()


# More would push the rest of the notebook off the screen.
_ROWS_SHOWN = 12
# Shorter silences are normal on networks.
_STALLED_S = 5.0

_MARKS = {"running": "▸", "done": "✓", "failed": "✗", "cancelled": "■", "ended": "■"}
_COLOURS = {"running": "accent", "done": "ok", "failed": "fail", "cancelled": "skip", "ended": "skip"}
_ENDINGS = {"done": "took", "failed": "failed after", "cancelled": "cancelled after", "ended": "ended after"}
_BAR = (
    "<div role='progressbar' aria-valuemin='0' aria-valuemax='100' aria-valuenow='{percent:.0f}' style='width:7em;"
    "height:.6em;border-radius:.3em;overflow:hidden;background:rgba(128,136,144,.25);"
    "display:inline-block;vertical-align:middle;margin-right:.9em'>"
    "<div style='height:100%;width:{percent:.1f}%;background:{colour}'></div></div>"
)


def panel_html(rows: Sequence[Row], note: str = "") -> str:
    """Return the rows as a table with bars, and a note in plain text below; legible on light and dark pages."""
    shown, hidden = _choose_rows(rows)
    earlier = f"<div class='cs-muted'>{html.escape(_summary(hidden))}</div>" if hidden else ""
    below = f"<div class='cs-muted'>{html.escape(note)}</div>" if note else ""
    table = left_aligned(f"<table>{''.join(map(_row_html, shown))}</table>")
    return f"{STYLE}<div class='cs-report cs-progress'>{earlier}{table}{below}</div>"


def panel_text(rows: Sequence[Row]) -> str:
    """Return the rows as lines of text, for programs that read a notebook without rendering it."""
    shown, hidden = _choose_rows(rows)
    return "\n".join([*([_summary(hidden)] if hidden else []), *map(row_text, shown)])


def row_text(row: Row) -> str:
    """Return a row as a line of text."""
    parts = (f"{_MARKS[row.state]} {row.name}", _amount(row), _rate(row), _time(row), row.note)
    return printable("  ".join(filter(None, parts)))


def _choose_rows(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows to show, in order (all that run or failed, then the latest), and the others."""
    # Failures stay in sight, however many steps come after them.
    latest = sorted(range(len(rows)), key=lambda at: (rows[at].state not in ("running", "failed"), -at))
    kept = set(latest[:_ROWS_SHOWN])
    return [rows[at] for at in sorted(kept)], [row for at, row in enumerate(rows) if at not in kept]


def _summary(rows: Sequence[Row]) -> str:
    states = [row.state for row in rows]
    words = [f"{states.count(state)} {state}" for state in _MARKS if state in states]
    return f"and {len(rows):,} earlier steps: {', '.join(words)}"


def _row_html(row: Row) -> str:
    colour = COLOURS[_COLOURS[row.state]]
    bar = "" if row.fraction is None else _BAR.format(percent=100 * row.fraction, colour=colour)
    # In one cell, where they wrap: separate columns would be wider than a phone's screen.
    figures = " ".join(
        f"<span style='min-width:min({width}em,{2 * width}vw)'>{html.escape(text)}</span>"
        for text, width in ((_amount(row), 11), (_rate(row), 6.5), (_time(row), 0))
        if text
    )
    below = "".join(
        f"<tr class='cs-below'><td></td><td colspan='2'>{html.escape(text)}</td></tr>"
        for text in (row.note, row.problem)
        if text
    )
    return (
        f"<tr class='cs-step cs-{row.state}'><td style='color:{colour};font-weight:600;padding-right:.4em'>"
        f"{_MARKS[row.state]}</td><th style='white-space:normal'>{html.escape(row.name)}</th>"
        f"<td class='cs-figures'>{bar}{figures}</td></tr>{below}"
    )


def _amount(row: Row) -> str:
    if row.unit == "B":
        done, total = format_bytes(row.done), "" if row.total is None else f" of {format_bytes(row.total)}"
        return f"{done}{total}" if done != total.removeprefix(" of ") else done
    if row.total is None or row.done == row.total:
        return format_count(row.done, row.unit)
    return f"{row.done:,} of {format_count(row.total, row.unit)}"


def _rate(row: Row) -> str:
    return format_rate(row.rate, 1.0, row.unit) if row.rate > 0 else ""


def _time(row: Row) -> str:
    if row.state != "running":
        return f"{_ENDINGS[row.state]} {format_duration(row.seconds)}"
    if row.total and row.done >= row.total:
        return "finishing"
    # An estimate from an outdated rate would be wrong.
    if row.idle_s >= _STALLED_S:
        return f"nothing for {format_duration(row.idle_s)}"
    left = row.seconds_left
    if left is None:
        return ""
    # No more digits than an estimate deserves.
    return f"{max(1, round(left))} s left" if left < 99.5 else f"{format_duration(left)} left"


_KEPT = "What is finished is kept, and the next call continues from there."
_HOW_TO_STOP = f"To cancel, stop the cell. {_KEPT}"
# No cell runs it, and only the user knows the name of the dataset.
_HOW_TO_STOP_BACKGROUND = f"This continues while other cells run. To cancel it, call the dataset's cancel(). {_KEPT}"


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


class NotebookProgress(Board):
    """Show all steps in one panel, in the output of the cell that opened the first."""

    def __init__(self) -> None:
        """Start without showing anything, until the first step."""
        super().__init__(self._draw_panel)
        self._display_id = f"colabstage-{uuid.uuid4().hex}"
        self._displayed = False
        self._how_to_stop = _HOW_TO_STOP

    def background(self) -> Self:
        """Return this panel, which from now on says how to stop work that no cell runs."""
        self._how_to_stop = _HOW_TO_STOP_BACKGROUND
        return self

    def _draw_panel(self, rows: Sequence[Row]) -> None:
        import IPython.display

        # Only some versions of it are typed.
        display: Any = IPython.display.display
        note = self._how_to_stop if any(row.state == "running" for row in rows) else ""
        content = {"text/html": panel_html(rows, note), "text/plain": panel_text(rows)}
        update, self._displayed = self._displayed, True
        display(content, raw=True, display_id=self._display_id, update=update)
