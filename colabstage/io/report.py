"""`Report`: a result that shows itself as text, as HTML in a notebook, as JSON values and as a picture.

A report is a headline, tables and notes. A table has rows of plain text in columns; a row may have a status (what a
check found), a line below it (what to do about it) and a bar (a quantity to compare). A result that has figures of its
own is a subclass with fields and properties, all of which `to_dict` gives.
"""

from __future__ import annotations

import html
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import NotSupportedHereError, printable
from colabstage.io.page import COLOURS, INK, draw_panel, new_figure, notes, page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure

Status = Literal["ok", "warn", "fail", "skip", "change"]

_MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–", "change": "→"}
_WORDS: dict[Status, str] = {"ok": "✓ fine", "warn": "! warning", "fail": "✗ problem", "skip": "–", "change": "→"}
_WIDTH = 100
_BAR_WIDTH = 24
# Characters of a headline that fill the width of a picture.
_LINE = 90


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table."""

    cells: tuple[str, ...]
    """One text for each column; the first is its name."""
    below: str = ""
    """A text under it: a remedy, a reason, a remark."""
    status: Status | None = None
    """What kind of fact it is: `change` is something to do; `None` for a plain one."""
    bar: float | None = None
    """A quantity to draw as a bar, in the unit of all bars of the report."""
    colour: str = COLOURS["accent"]
    """The colour of the bar."""


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
                # Values, such as paths, stay on one line, so that they can be copied.
                lines.append(start + aligned[-1])
            # A remedy is told from what was found; the reason for a change follows it like any sentence.
            arrow, indent = "→ " if row.status in {"warn", "fail"} else "", " " * (len(mark) + widths[0] + 3)
            lines += _wrap(row.below, indent + arrow, indent + " " * len(arrow)) if row.below else []
        return "\n".join(line.rstrip() for line in lines)

    @property
    def html(self) -> str:
        """The table as HTML; empty without rows."""
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
        # Without a head the first column has the names.
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


@dataclass(frozen=True)
class Report:
    """A result that prints as text, appears as tables in a notebook, and gives JSON values and a picture."""

    headline: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    """What else the user should know."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {name: value for name, value in json_values(self).items() if name != "tables"}

    def summary(self) -> str:
        """Return the report as text."""
        return str(self)

    def __str__(self) -> str:
        tables = (str(table) for table in self.tables if table.rows)
        # Names come from archives and servers.
        return printable("\n".join([self.headline, *tables, *(f"Note: {note}" for note in self.notes)]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.headline}"

    def _repr_html_(self) -> str:
        return page(self.headline, "".join(table.html for table in self.tables) + notes(self.notes))

    def plot(self) -> Figure:
        """Draw the bars as a matplotlib figure, which a notebook shows; `.savefig("report.png")` writes it."""
        drawn = [(row, row.bar) for table in self.tables for row in table.rows if row.bar is not None]
        if not drawn:
            msg = f"This {type(self).__name__} has no figures to draw. print(report) shows it as text."
            raise NotSupportedHereError(msg)
        heading = textwrap.wrap(self.headline, _LINE)
        figure = new_figure(9.0, 0.6 + 0.24 * len(heading) + 0.38 * len(drawn))
        figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=10.5, weight="bold", color=INK)
        # What follows the first two figures is for reading, and does not fit a picture.
        draw_panel(
            figure.subplots(),
            "",
            [row.cells[0] for row, _ in drawn],
            [length for _, length in drawn],
            labels=["   ".join(row.cells[1:3]) for row, _ in drawn],
            colours=[row.colour for row, _ in drawn],
        )
        return figure


def _wrap(text: str, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def json_values(value: Any) -> Any:
    """Return JSON values for anything in a report: of objects, their public fields and properties; numbers that JSON
    cannot express become `None`."""
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
