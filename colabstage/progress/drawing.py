"""The rows of a board as HTML and as plain text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from colabstage.page import COLOURS, STYLE
from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.progress.board import Row

# More would push the rest of the notebook off the screen.
_ROWS_SHOWN = 12
# Shorter silences are how networks are.
_STALLED_S = 5.0

_MARKS = {"running": "▸", "done": "✓", "failed": "✗", "cancelled": "■", "ended": "■"}
_COLOURS = {"running": "accent", "done": "ok", "failed": "fail", "cancelled": "skip", "ended": "skip"}
_ENDINGS = {"done": "took", "failed": "failed after", "cancelled": "cancelled after", "ended": "ended after"}
_BAR = (
    "<div role='progressbar' aria-valuemin='0' aria-valuemax='100' aria-valuenow='{percent:.0f}' style='width:11em;"
    "height:.6em;margin-top:.4em;border-radius:.3em;overflow:hidden;background:rgba(128,136,144,.25)'>"
    "<div style='height:100%;width:{percent:.1f}%;background:{colour}'></div></div>"
)


def panel_html(rows: Sequence[Row], note: str = "") -> str:
    """The rows as a table with bars, and a note in plain text below; legible on light and dark pages."""
    shown, hidden = _chosen(rows)
    earlier = f"<div class='cs-muted'>{html.escape(_summary(hidden))}</div>" if hidden else ""
    below = f"<div class='cs-muted'>{html.escape(note)}</div>" if note else ""
    table = f"<table>{''.join(map(_row_html, shown))}</table>"
    return f"{STYLE}<div class='cs-report cs-progress'>{earlier}{table}{below}</div>"


def panel_text(rows: Sequence[Row]) -> str:
    """The rows as lines of text, for whatever reads a notebook without drawing it."""
    shown, hidden = _chosen(rows)
    lines = [
        "  ".join(filter(None, (f"{_MARKS[row.state]} {row.name}", _amount(row), _rate(row), _time(row))))
        for row in shown
    ]
    return "\n".join([*([_summary(hidden)] if hidden else []), *lines])


def _chosen(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those to show, in order: whatever runs or failed, then the latest; and the others."""
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
    cells = "".join(
        f"<td class='cs-number'>{html.escape(text)}</td>" for text in (_amount(row), _rate(row), _time(row))
    )
    problem = f"<div>{html.escape(row.problem)}</div>" if row.problem else ""
    return (
        f"<tr class='cs-step cs-{row.state}'><td style='color:{colour};font-weight:600;padding-right:.4em'>"
        f"{_MARKS[row.state]}</td><th style='white-space:normal'>{html.escape(row.name)}{problem}</th>"
        f"<td>{bar}</td>{cells}</tr>"
    )


def _amount(row: Row) -> str:
    if row.unit == "B":
        done, total = format_bytes(row.done), "" if row.total is None else f" of {format_bytes(row.total)}"
        return f"{done}{total}" if done != total.removeprefix(" of ") else done
    if row.total is None or row.done == row.total:
        return f"{row.done:,} {row.unit}"
    return f"{row.done:,} of {row.total:,} {row.unit}"


def _rate(row: Row) -> str:
    return format_rate(row.rate, 1.0, row.unit) if row.rate > 0 else ""


def _time(row: Row) -> str:
    if row.state != "running":
        return f"{_ENDINGS[row.state]} {format_duration(row.seconds)}"
    if row.idle_s >= _STALLED_S:
        return f"nothing for {format_duration(row.idle_s)}"
    left = row.seconds_left
    return "" if left is None else f"{_rounded(left)} left"


def _rounded(seconds: float) -> str:
    """An estimate, without the figures that it does not have."""
    return f"{max(1, round(seconds))} s" if seconds < 99.5 else format_duration(seconds)
