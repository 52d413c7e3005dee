"""`Report`: a result that shows itself as text, as HTML in a notebook, as JSON values and as a picture.

A report is a headline, tables and notes; a result with figures of its own is a subclass with fields and properties,
which `to_dict` returns.
"""

from __future__ import annotations

import html
import inspect
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from colabstage.errors import NotSupportedHereError, printable
from colabstage.io.environment import shell
from colabstage.io.packages import refuse_import
from colabstage.io.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Result = TypeVar("_Result")

# In a notebook, text has the colour that it sets for outputs, and every CSS rule has our class, so nothing else on the
# page changes. There are no scripts, so a saved notebook looks the same.

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
@media (max-width:640px){.cs-report th,.cs-report td,.cs-report .cs-figures span{white-space:normal!important}
.cs-report th,.cs-report td{padding-right:.5em}}
.cs-report td.cs-number{overflow-wrap:normal}
.cs-report th{white-space:nowrap;font-weight:600}.cs-report td:first-child:not(:only-child){white-space:nowrap}
.cs-report .cs-below td{border-top:0;padding-top:0;opacity:.72;white-space:normal!important}
.cs-report .cs-muted{opacity:.72}
.cs-report .cs-head{font-weight:600;font-size:14px}
.cs-report .cs-head+.cs-head{margin-top:.6em}
.cs-report .cs-number{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}
.cs-report .cs-figures [role=progressbar]{width:11em!important;max-width:28vw}
.cs-report .cs-figures span{display:inline-block;white-space:nowrap;font-variant-numeric:tabular-nums;margin-right:.9em}
</style>"""
)
# Colours of plots.
INK = "#1f2933"
MUTED = "#66727f"


def page(headline: str, body: str) -> str:
    """Return a report as HTML: `headline` is plain text, `body` is HTML."""
    head = f"<div class='cs-head'><strong>{html.escape(headline)}</strong></div>"
    return f"{STYLE}<div class='cs-report'>{head}{body}</div>"


def notes(lines: Iterable[str]) -> str:
    """Return sentences of plain text, one below the other and muted, as HTML."""
    return "".join(f"<div class='cs-muted'>{html.escape(line)}</div>" for line in lines)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, sized in inches, that is not registered with any window or global state: a
    notebook would show it only once pyplot has been imported, which chooses a backend for the whole session."""
    try:
        shown = _shown_figure()
    except ImportError as error:
        refuse_import("matplotlib", "Drawing needs", error)
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
    # A name with two dollar signs is no formula.
    axis.set_yticks(places, names, parse_math=False)
    axis.set_title(heading, loc="left", color=INK, fontsize=10.5, parse_math=False)
    # Room for the labels at the end of the bars.
    axis.set_xlim(0, max(*values, 1e-9) * 1.42)
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.spines["left"].set_color(MUTED)
    axis.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axis.label_outer()
    axis.set_ylim(len(names) - 0.4, -0.6)


def plain_axes(axis: Axes) -> None:
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(MUTED)
    axis.tick_params(colors=INK, labelsize=9)


# Created with the first picture, because importing matplotlib takes longer than everything else here.
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

    return ShownFigure


def in_notebook() -> bool:
    """Return whether this process belongs to a notebook that draws HTML: it runs IPython's kernel, and not Spyder's."""
    names = {kind.__name__ for kind in type(shell()).__mro__}
    return "ZMQInteractiveShell" in names and "SpyderShell" not in names


Status = Literal["ok", "warn", "fail", "skip", "change"]

_MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–", "change": "→"}
_WORDS: dict[Status, str] = {"ok": "✓ fine", "warn": "! warning", "fail": "✗ problem", "skip": "–", "change": "→"}
_WIDTH = 100
_BAR_WIDTH = 24
# Characters of a headline that fill the width of a picture.
_LINE = 90
# Listing a thousand broken images would push the rest of the report off the screen.
_SKIPPED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[str, ...]
    """One text for each column; the first is its name."""
    below: str = ""
    """A text under it: a remedy, a reason, a remark."""
    status: Status | None = None
    """What kind of fact it is: `change` is something to do; `None` for a plain one."""
    bar: float | None = None
    """A quantity to draw as a bar, in the unit of all bars of the report."""
    colour: str = COLOURS["accent"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain text in columns."""

    rows: tuple[Row, ...]
    head: tuple[str, ...] = ()
    """The names of the columns; empty for facts, whose names are in their first column."""
    numbers: frozenset[int] = frozenset()
    """The columns to align at the right, counted from 0."""

    def __str__(self) -> str:
        rows = (Row(self.head), *self.rows) if self.head else self.rows
        widths = [max(map(len, column)) for column in zip(*(row.cells for row in rows), strict=True)]
        lines, advises = [], any(row.below for row in rows)
        for row in rows:
            aligned = [
                cell.rjust(width) if at in self.numbers else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row.cells, widths, strict=True))
            ]
            mark = " " if row.status is None else _MARKS[row.status]
            start = f"{mark} " + "".join(f"{cell}  " for cell in aligned[:-1])
            indent = " " * len(start)
            if row.bar is not None:
                length = max(1, round(_BAR_WIDTH * row.bar / self._longest)) if row.bar > 0 else 0
                lines.append(f"{start}{aligned[-1]}  {'#' * length}")
            elif row.status is not None and advises:
                lines += _wrap(aligned[-1].rstrip(), start, indent)
            else:
                # Values such as paths stay on one line, so that they can be copied.
                lines.append(start + aligned[-1])
            # An arrow separates a remedy from the finding; the reason for a change just follows it.
            arrow, indent = "→ " if row.status in {"warn", "fail"} else "", " " * (len(mark) + widths[0] + 3)
            lines += _wrap(row.below, indent + arrow, indent + " " * len(arrow)) if row.below else []
        return "\n".join(line.rstrip() for line in lines)

    @property
    def html(self) -> str:
        """Return the table as HTML; "" without rows."""
        head = "".join(self._cell("th", at, name) for at, name in enumerate(self.head))
        rows = ([f"<tr>{head}</tr>"] if head else []) + list(map(self._row_html, self.rows))
        return f"<table>{''.join(rows)}</table>" if self.rows else ""

    @property
    def _longest(self) -> float:
        return max((row.bar or 0.0 for row in self.rows), default=0.0) or 1.0

    def _row_html(self, row: Row) -> str:
        marked = any(one.status is not None for one in self.rows)
        mark = "<td></td>" if marked else ""
        if row.status is not None:
            colour = COLOURS["accent" if row.status == "change" else row.status]
            mark = f"<td style='color:{colour};font-weight:600;white-space:nowrap'>{_WORDS[row.status]}</td>"
        # Without a head, the first column holds the names.
        cells = [
            self._cell("td" if at or self.head else "th", at, text, code=row.status == "change" and at > 0)
            for at, text in enumerate(row.cells)
        ]
        if row.bar is not None:
            cells.append(
                f"<td style='width:min(18em,25vw)'><div style='background:{row.colour};height:.8em;margin-top:.25em;"
                f"border-radius:2px;width:{max(0.5, 100 * row.bar / self._longest):.1f}%'></div></td>"
            )
        below = ""
        if row.below:
            empty, span = "<td></td>" * (1 + marked), max(1, len(row.cells) - 1)
            below = f"<tr class='cs-below'>{empty}<td colspan='{span}'>{html.escape(row.below)}</td></tr>"
        return f"<tr>{mark}{''.join(cells)}</tr>{below}"

    def _cell(self, tag: str, column: int, text: str, *, code: bool = False) -> str:
        number = " class='cs-number'" if column in self.numbers else ""
        shown = f"<code>{html.escape(text)}</code>" if code else html.escape(text)
        return f"<{tag}{number}>{shown}</{tag}>"


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return names and their values as a table.

    >>> print(facts([("layout", "csv"), ("rows", "800")]))
      layout  csv
      rows    800
    """
    return Table(tuple(map(Row, pairs)))


def left_out_table(skipped: Sequence[str], further: str) -> Table:
    """Return the first sentences about samples that were left out; `further`: where all of them are."""
    more = len(skipped) - _SKIPPED_SHOWN
    shown = *skipped[:_SKIPPED_SHOWN], *([f"… and {more:,} more, in {further}"] if more > 0 else [])
    return Table(tuple(Row((one,)) for one in shown), (f"{format_count(len(skipped), 'samples')} left out",))


class Shown:
    """A result that shows the same in `print`, at a prompt, and in a notebook; a dataclass needs `repr=False`.

    Derived classes override `shown`, or `__str__` for sentences, one on each line.
    """

    __slots__ = ()

    def shown(self) -> Report:
        headline, *further = str(self).splitlines()
        return Report(headline, notes=tuple(further))

    def __str__(self) -> str:
        return str(self.shown())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """A result that prints as text, appears as tables in a notebook, and gives JSON values and a picture."""

    headline: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {name: value for name, value in json_values(self).items() if name != "tables"}

    def summary(self) -> str:
        """Return the report as text."""
        return str(self)

    def __str__(self) -> str:
        tables = (str(table) for table in self.tables if table.rows)
        # Names come from archives and servers, so they may hold control characters.
        return printable("\n".join([self.headline, *tables, *(f"Note: {note}" for note in self.notes)]))

    def shown(self) -> Report:
        return self

    def _repr_html_(self) -> str:
        return page(self.headline, "".join(table.html for table in self.tables) + notes(self.notes))

    def plot(self) -> Figure:
        """Return the bars as a matplotlib figure, which a notebook shows; `.savefig("report.png")` writes it."""
        drawn = [(row, row.bar) for table in self.tables for row in table.rows if row.bar is not None]
        if not drawn:
            msg = f"This {type(self).__name__} has no figures to draw. print(report) shows it as text."
            raise NotSupportedHereError(msg)
        heading = textwrap.wrap(self.headline, _LINE)
        figure = new_figure(9.0, 0.6 + 0.24 * len(heading) + 0.38 * len(drawn))
        figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=10.5, weight="bold", color=INK)
        # The text after the first two figures is for reading, and does not fit into a picture.
        draw_panel(
            figure.subplots(),
            "",
            [row.cells[0] for row, _ in drawn],
            [length for _, length in drawn],
            labels=["   ".join(row.cells[1:3]) for row, _ in drawn],
            colours=[row.colour for row, _ in drawn],
        )
        return figure


class ResultList(Shown, list[_Result]):
    """A list of results that shows as one report, made on demand."""

    def __init__(self, results: Iterable[_Result], report: Callable[[Sequence[_Result]], Report]) -> None:
        super().__init__(results)
        self._report = report

    def shown(self) -> Report:
        return self._report(self)


def _wrap(text: str, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def json_values(value: Any) -> Any:
    """Return JSON values for anything in a report: for objects, their public fields and properties; for numbers that
    JSON cannot express, `None`."""
    if is_dataclass(value) and not isinstance(value, type):
        properties = [name for name, _ in inspect.getmembers(type(value), lambda one: isinstance(one, property))]
        names = [one.name for one in fields(value)] + properties
        return {name: json_values(getattr(value, name)) for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_values(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
