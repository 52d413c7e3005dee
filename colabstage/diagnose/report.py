"""`Report`: how every result here shows itself, as text, as HTML in a notebook, as JSON values and as a picture.

A result is a headline with bars (quantities to compare), rows (named facts and advice) and notes. A subclass adds its
figures as fields and properties; `to_dict` gives all of them.
"""

from __future__ import annotations

import html
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import NotSupportedHereError
from colabstage.io.page import COLOURS, INK, draw_panel, new_figure, notes, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Status = Literal["ok", "warn", "fail", "skip", "change"]

_MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–", "change": "→"}
_WORDS: dict[Status, str] = {"ok": "fine", "warn": "costs", "fail": "broken", "skip": "", "change": ""}
_WIDTH = 100
_BAR_WIDTH = 24
# Characters of a headline that fill the width of a picture.
_LINE = 90


@dataclass(frozen=True, slots=True)
class Bar:
    """A quantity to compare with others."""

    name: str
    value: float
    """Its length, in the unit of all bars of the report."""
    cells: tuple[str, ...]
    """The figures beside it, as text; all bars of a report have as many."""
    colour: str = COLOURS["accent"]


@dataclass(frozen=True, slots=True)
class Row:
    """A named fact, or something to change."""

    name: str
    text: str
    detail: str = ""
    """What to do about it, or why."""
    status: Status | None = None
    """What kind of fact it is; `None` for a plain one."""


@dataclass(frozen=True)
class Report:
    """A result that prints as text, appears as a table in a notebook, and gives JSON values and a picture."""

    headline: str
    bars: tuple[Bar, ...] = ()
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    """What else the user should know."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return dict(json_values(self))

    def summary(self) -> str:
        """Return the report as text."""
        return str(self)

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._bar_lines(), *self._row_lines(), *(f"Note: {n}" for n in self.notes)])

    def _bar_lines(self) -> list[str]:
        if not self.bars:
            return []
        longest = max(bar.value for bar in self.bars) or 1.0
        name_width = max(len(bar.name) for bar in self.bars)
        widths = [max(map(len, column)) for column in zip(*(bar.cells for bar in self.bars), strict=True)]
        lines = []
        for bar in self.bars:
            cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(bar.cells, widths, strict=True))
            drawn = "#" * max(1, round(_BAR_WIDTH * bar.value / longest)) if bar.value > 0 else ""
            lines.append(f"  {bar.name:<{name_width}}  {cells}  {drawn}".rstrip())
        return lines

    def _row_lines(self) -> list[str]:
        lines = []
        width = max((len(row.name) for row in self.rows), default=0)
        indent = " " * (width + 4)
        for row in self.rows:
            mark = " " if row.status is None else _MARKS[row.status]
            lines += _wrap(row.text, f"{mark} {row.name:<{width}}  ", indent)
            # A remedy is told from what was found; the reason for a change follows it like any sentence.
            arrow = "" if row.status == "change" else "→ "
            lines += _wrap(row.detail, indent + arrow, indent + " " * len(arrow)) if row.detail else []
        return lines

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.headline}"

    def _repr_html_(self) -> str:
        longest = max((bar.value for bar in self.bars), default=0.0) or 1.0
        bars = "".join(
            f"<tr><th>{html.escape(bar.name)}</th>"
            + "".join(f"<td class='cs-number'>{html.escape(cell)}</td>" for cell in bar.cells)
            + f"<td style='width:18em'><div style='background:{bar.colour};height:.8em;margin-top:.25em;"
            f"border-radius:2px;width:{max(0.5, 100 * bar.value / longest):.1f}%'></div></td></tr>"
            for bar in self.bars
        )
        rows = "".join(map(_row_html, self.rows))
        tables = "".join(f"<table>{part}</table>" for part in (bars, rows) if part)
        return page(self.headline, tables + notes(self.notes))

    def plot(self) -> Figure:
        """Draw the bars as a matplotlib figure, which a notebook shows; `.savefig("report.png")` writes it."""
        if not self.bars:
            msg = f"This {type(self).__name__} has no figures to draw. print(report) shows it as text."
            raise NotSupportedHereError(msg)
        heading = textwrap.wrap(self.headline, _LINE)
        figure = new_figure(9.0, 0.6 + 0.24 * len(heading) + 0.38 * len(self.bars))
        figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=10.5, weight="bold", color=INK)
        # What follows the first two figures is for reading, and does not fit a picture.
        draw_panel(
            figure.subplots(),
            "",
            [bar.name for bar in self.bars],
            [bar.value for bar in self.bars],
            labels=["   ".join(bar.cells[:2]) for bar in self.bars],
            colours=[bar.colour for bar in self.bars],
        )
        return figure


def _wrap(text: str, first: str, further: str) -> list[str]:
    # Paths and commands stay unbroken, so that they can be copied.
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def _row_html(row: Row) -> str:
    mark = ""
    if row.status is not None:
        colour = COLOURS["accent" if row.status == "change" else row.status]
        shown = f"{_MARKS[row.status]} {_WORDS[row.status]}".rstrip()
        mark = f"<td style='color:{colour};font-weight:600;white-space:nowrap'>{shown}</td>"
    text = html.escape(row.text) if row.status != "change" else f"<code>{html.escape(row.text)}</code>"
    detail = f"<div class='cs-muted'>{html.escape(row.detail)}</div>" if row.detail else ""
    return f"<tr>{mark or '<td></td>'}<th>{html.escape(row.name)}</th><td>{text}{detail}</td></tr>"


def json_values(value: Any) -> Any:
    """Return JSON values for anything in a report: of objects, their public fields and properties; numbers that JSON
    cannot express become `None`."""
    if is_dataclass(value) and not isinstance(value, type):
        properties = [name for name, _ in inspect.getmembers(type(value), lambda one: isinstance(one, property))]
        names = [one.name for one in fields(value) if not one.name.startswith("_")] + properties
        return {name: json_values(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_values(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
