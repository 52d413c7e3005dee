"""How work in progress is shown: in a panel in a notebook, as bars or lines of text elsewhere.

A `Board` passes the progress of each step to a drawing function a few times a second: working threads only add to a
number, and one thread reads the numbers and draws, as long as a step is open. It is not a widget: while a cell runs, a
button would not respond (before ipykernel 7), and widgets turn into their names when the page is loaded again.
"""

from __future__ import annotations

import contextvars
import html
import os
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from colabstage.errors import CancelledError, printable, said_by
from colabstage.io.arguments import refuse_argument
from colabstage.io.environment import NO_PROGRESS_VARIABLE, is_set, logger_of
from colabstage.io.progress import Cancellation, Progress, ProgressStep
from colabstage.io.report import COLOURS, STYLE, in_notebook
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


log = logger_of(__name__)

# "ended": closed without an error before all of it was done, such as the copy of an archive whose reader failed.
State = Literal["running", "done", "failed", "cancelled", "ended"]

# Five updates a second look alive; drawing two rows takes well under 1 ms.
_INTERVAL_S = 0.2
# The rate is that of the last seconds: an average of the whole step would hide that a source has stalled.
_WINDOW_S = 5.0
_MARK_S = 0.1
# Who sees nothing for longer believes that nothing happens.
_SILENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One step at one moment."""

    name: str
    unit: str
    """The unit of `total` and `done`; "B" for bytes, "" if nothing is counted."""
    total: int | None
    done: int
    state: State
    """Whether it runs, or how it ended."""
    seconds: float
    """Seconds since it was opened, or how long it took."""
    rate: float
    """Units per second: of the last seconds while it runs, of the whole step afterwards."""
    idle_s: float = 0.0
    """Seconds without a report."""
    problem: str = ""
    note: str = ""

    @property
    def shows(self) -> bool:
        """Return whether it is worth a line: where nothing is counted, only if it takes long."""
        return bool(self.unit) or self.seconds >= _SILENCE_S

    @property
    def fraction(self) -> float | None:
        """Return the part that is done, 0 to 1; `None` if the total is unknown."""
        if not self.total:
            return None if self.total is None else 1.0
        return min(1.0, self.done / self.total)


class BoardStep(ProgressStep):
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
        with self._lock:
            self._note = text

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._done += amount

    def start_at(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            self._before += amount
            self._marks = deque((when, done + amount) for when, done in self._marks)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._lock:
            if self._final is not None:
                return
            state: State = "done"
            if kind is not None:
                state = "cancelled" if issubclass(kind, (CancelledError, KeyboardInterrupt)) else "failed"
            elif self._total is not None and self._done < self._total:
                state = "cancelled" if self._board.cancellation.cancelled else "ended"
            problem = str(error) or said_by(error) if error is not None and state == "failed" else ""
            self._final = self._row(state, (self._began, self._before), time.monotonic(), problem)
        self._board.closed()

    @property
    def open(self) -> bool:
        return self._final is None

    def look(self) -> Row:
        with self._lock:
            if self._final is not None:
                return self._final
            now = time.monotonic()
            while len(self._marks) > 1 and self._marks[1][0] < now - _WINDOW_S:
                self._marks.popleft()
            since = self._marks[0]
            if now - self._marks[-1][0] >= _MARK_S:
                self._marks.append((now, self._done))
            if self._seen != self._done:
                self._seen, self._changed = self._done, now
            return self._row("running", since, now)

    def _row(self, state: State, since: tuple[float, int], now: float, problem: str = "") -> Row:
        """`since`: a time and what was done by then, from which the rate is counted."""
        rate = (self._done - since[1]) / (now - since[0]) if now > since[0] else 0.0
        seconds, idle_s = now - self._began, now - self._changed
        return Row(self._name, self._unit, self._total, self._done, state, seconds, rate, idle_s, problem, self._note)


class Board(Progress):
    """A `Progress` that shows all steps together, wherever `show` draws them.

    `cancellation`: set by a button beside it.
    """

    def __init__(self, show: Callable[[tuple[Row, ...]], None], *, cancellation: Cancellation | None = None) -> None:
        """Keep `show`, which is called with all rows in order, by several threads but never by two at once."""
        super().__init__(cancellation)
        self._show = show
        self._steps: list[BoardStep] = []
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._stop: threading.Event | None = None
        self._broken = False

    def background(self) -> Self:
        """Return this board: what it draws stays in place, whatever the caller prints."""
        return self

    def step(self, name: str, *, total: int | None, unit: str) -> BoardStep:
        step = BoardStep(self, name, total, unit)
        with self._lock:
            self._steps.append(step)
        self._draw()
        with self._lock:
            if self._stop is None and step.open:
                self._stop = threading.Event()
                # In the caller's context, which tells a kernel to which cell the output belongs.
                run = contextvars.copy_context().run
                threading.Thread(
                    target=run, args=(self._keep_drawing, self._stop), name="colabstage-progress", daemon=True
                ).start()
        return step

    def quiet_step(self, name: str) -> BoardStep:
        return self.step(name, total=None, unit="")

    def closed(self) -> None:
        """Show how a step ended, and stop drawing if it was the last open one."""
        with self._lock:
            if self._stop is not None and not any(step.open for step in self._steps):
                self._stop.set()
                self._stop = None
        self._draw()

    def rows(self) -> tuple[Row, ...]:
        """Return the present state of all steps, in the order in which they were opened."""
        # Read outside the lock, so that opening a step never waits for drawing.
        with self._lock:
            steps = tuple(self._steps)
        return tuple(step.look() for step in steps)

    def _draw(self) -> None:
        # One at a time: if two threads drew at once, the older state could win.
        with self._drawing:
            if self._broken:
                return
            try:
                rows = self.rows()
                if any(row.shows for row in rows):
                    self._show(rows)
            except Exception:
                # Hours of work must not end because the page that showed the progress is gone.
                self._broken = True
                log.warning("Progress cannot be drawn any more; the work continues.", exc_info=True)

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(_INTERVAL_S):
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
    shown, earlier = _choose_rows(rows)
    above, below = (f"<div class='cs-muted'>{html.escape(text)}</div>" if text else "" for text in (earlier, note))
    table = f"<table>{''.join(map(_row_html, shown))}</table>"
    return f"{STYLE}<div class='cs-report cs-progress'>{above}{table}{below}</div>"


def panel_text(rows: Sequence[Row]) -> str:
    """Return the rows as lines of text, for programs that read a notebook without rendering it."""
    shown, earlier = _choose_rows(rows)
    return "\n".join([*([earlier] if earlier else []), *map(row_text, shown)])


def row_text(row: Row) -> str:
    parts = (f"{_MARKS[row.state]} {row.name}", *_figures(row), row.note)
    return printable("  ".join(filter(None, parts)))


def _choose_rows(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Return the latest rows, and a text about those before them."""
    rows = [row for row in rows if row.shows]
    hidden = len(rows) - _ROWS_SHOWN
    return rows[-_ROWS_SHOWN:], f"after {hidden:,} earlier steps" if hidden > 0 else ""


def _row_html(row: Row) -> str:
    colour = COLOURS[_COLOURS[row.state]]
    bar = "" if row.fraction is None else _BAR.format(percent=100 * row.fraction, colour=colour)
    # In one cell, where they wrap: separate columns would be wider than a phone's screen.
    figures = " ".join(
        f"<span style='min-width:min({width}em,{2 * width}vw)'>{html.escape(text)}</span>"
        for text, width in zip(_figures(row), (11, 6.5, 0), strict=True)
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


def _figures(row: Row) -> tuple[str, str, str]:
    if not row.unit:
        amount = ""
    elif row.unit == "B":
        amount, total = format_bytes(row.done), "" if row.total is None else format_bytes(row.total)
        amount += f" of {total}" if total not in ("", amount) else ""
    elif row.total in (None, row.done):
        amount = format_count(row.done, row.unit)
    else:
        amount = f"{row.done:,} of {format_count(row.total or 0, row.unit)}"
    return amount, format_rate(row.rate, 1.0, row.unit) if row.rate > 0 else "", _time(row)


def _time(row: Row) -> str:
    if row.state != "running":
        return f"{_ENDINGS[row.state]} {format_duration(row.seconds)}"
    if row.total and row.done >= row.total:
        return "finishing"
    if not row.unit:
        return f"for {_about(row.seconds)}"
    # An estimate from an outdated rate would be wrong.
    if row.idle_s >= _STALLED_S:
        return f"nothing for {format_duration(row.idle_s)}"
    if row.total is None or row.rate <= 0:
        return ""
    return f"{_about(max(0.0, (row.total - row.done) / row.rate))} left"


def _about(seconds: float) -> str:
    """Write a time span that changes while it is read, with no more digits than an estimate deserves."""
    return f"{max(1, round(seconds))} s" if seconds < 99.5 else format_duration(seconds)


_HOW_TO_STOP = (
    "To cancel, stop the cell, which then says what is kept. What continues while other cells run is stopped by the "
    "dataset's cancel()."
)


class NotebookProgress(Board):
    """Show all steps in one panel, in the output of the cell that opened the first."""

    def __init__(self) -> None:
        super().__init__(self._draw_panel)
        self._display_id = f"colabstage-{uuid.uuid4().hex}"
        self._displayed = False

    def _draw_panel(self, rows: Sequence[Row]) -> None:
        import IPython.display

        # Not all versions of IPython type it.
        display: Any = IPython.display.display
        note = _HOW_TO_STOP if any(row.state == "running" for row in rows) else ""
        content = {"text/html": panel_html(rows, note), "text/plain": panel_text(rows)}
        update, self._displayed = self._displayed, True
        display(content, raw=True, display_id=self._display_id, update=update)


class TqdmProgress(Board):
    """One tqdm bar for each step, as text on stderr; in notebooks too, where tqdm's widgets do not survive a reload."""

    def __init__(self) -> None:
        super().__init__(self._draw_bars)
        self._bars: dict[int, Any] = {}
        self._hidden: set[int] = set()

    def background(self) -> Progress:  # type: ignore[override]
        """Remove the bars and return lines of text, because the caller's own output would break a bar."""
        with self._drawing:
            self._hidden.update(range(len(self.rows())))
            for bar in self._bars.values():
                bar.leave = False
                bar.close()
            self._bars.clear()
        return LineProgress()

    def _draw_bars(self, rows: Sequence[Row]) -> None:
        for number, row in enumerate(rows):
            if number in self._hidden or not row.shows:
                continue
            if number not in self._bars:
                self._bars[number] = _open_bar(row)
            self._bars[number].n = row.done
            self._bars[number].set_description_str(row_text(row))
            if row.state != "running":
                self._hidden.add(number)
                self._bars.pop(number).close()


def _open_bar(row: Row) -> Any:
    from tqdm.std import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        # tqdm's own thread is only needed for bars that skip updates.
        monitor_interval = 0

    return Bar(
        total=row.total,
        desc=row_text(row),
        bar_format="{desc}  {percentage:3.0f}%|{bar}|" if row.total else "{desc}",
        dynamic_ncols=True,
    )


# The least time between lines, and the longest: a step of a second prints none, and a stall shows.
_BETWEEN_LINES_S = 2.0
_ALIVE_S = 60.0


class LineProgress(Board):
    """Print a line at each tenth of a step and each minute, and one at its end."""

    def __init__(self) -> None:
        super().__init__(self._print)
        self._printed: dict[int, tuple[int, float]] = {}

    def _print(self, rows: tuple[Row, ...]) -> None:
        from tqdm.std import tqdm

        for number, row in enumerate(rows):
            printed, at_s = self._printed.get(number, (0, 0.0))
            tenths = int(10 * (row.fraction or 0.0)) if row.state == "running" else 11
            waited_s = row.seconds - (at_s if tenths <= 10 else 0.0)
            if printed <= 10 and waited_s >= (_BETWEEN_LINES_S if tenths > printed else _ALIVE_S):
                self._printed[number] = tenths, row.seconds
                # Above the caller's own bar, not into it.
                tqdm.write(row_text(row), file=sys.stderr)


def resolve_progress(progress: bool | Progress) -> Progress:
    """Turn the public `progress=` argument into a `Progress`: `True` is a panel in notebooks, bars in terminals
    and lines elsewhere, unless `COLABSTAGE_NO_PROGRESS` is set; `False` is silence."""
    given: object = progress  # annotations do not stop callers from passing something else
    if isinstance(given, Progress):
        return given
    if not isinstance(given, bool):
        words = "True, False, or an object of a class that derives from colabstage.options.Progress"
        refuse_argument("progress", given, words)
    if not given or is_set(NO_PROGRESS_VARIABLE):
        return Progress()
    if in_notebook():
        return NotebookProgress()
    # A process without a terminal, such as a daemon or `pythonw`, may have no such stream at all.
    if sys.stderr is None or sys.stderr.closed:
        return Progress()
    return TqdmProgress() if redraws_lines() else LineProgress()


def redraws_lines() -> bool:
    """Return whether stderr is a terminal that can redraw a line: in a log, each state of a bar would stay."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
