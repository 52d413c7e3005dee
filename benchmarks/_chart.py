"""Bars for the tables that benchmarks print: one small SVG for each benchmark, readable on light and dark pages.

Any table will do whose header says `UNIT/s median lowest highest`, perhaps after a title and a comma, and whose rows
begin with a name and those three figures; a blank line ends it. Bars are medians, the thin lines go from the lowest to
the highest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

# How rows of colabstage's own are called, and those that nobody competes with.
OURS = ("make_loader", "pack_dataset", "stage_dataset", "crops decoded on read", "our ", "to_", "fit(to_")
BOUNDS = ("limit", "read_crops", "cp ", "a copy", "disk", "sequential", "from memory", "fit from memory", "fit beside")
_HEADER = re.compile(r"^(?:(\S.*), )?(\w+/s)\s+median\s+lowest\s+highest\b")
_ROW = re.compile(r"^(\S.*?)\s+([\d,.]+)\s+([\d,.]+)\s+([\d,.]+)(?:\s|$)")
_WIDTH, _ROW_HEIGHT, _BAR_HEIGHT, _LETTER, _VALUE_WIDTH = 760, 24, 14, 6.6, 84
_STYLE = """
text { font: 12px system-ui, "Segoe UI", "Liberation Sans", sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px } .unit { fill: #59636e }
.peer { fill: #9aa4af } .ours { fill: #0969da } .bound { fill: none; stroke: #59636e; stroke-dasharray: 3 2 }
.spread { stroke: #1f2328; stroke-opacity: .6 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .unit { fill: #9198a1 } .peer { fill: #656c76 } .ours { fill: #4493f8 }
.bound { stroke: #9198a1 } .spread { stroke: #e6edf3 } }
"""


@dataclass(frozen=True)
class Row:
    """A contender's figures."""

    name: str
    median: float
    lowest: float
    highest: float

    @property
    def kind(self) -> str:
        """`ours`, `bound` (nobody's, only to compare with) or `peer`."""
        if self.name.startswith(OURS):
            return "ours"
        return "bound" if self.name.startswith(BOUNDS) else "peer"


@dataclass(frozen=True)
class Table:
    """What a table says; `title` is what was measured, empty where neither header nor the line before it says that."""

    title: str
    unit: str
    rows: tuple[Row, ...]


def find_tables(output: str) -> list[Table]:
    """The tables in what a benchmark printed."""
    tables, said = [], ""
    lines = iter(output.splitlines())
    for line in lines:
        header = _HEADER.match(line)
        if header is None:
            said = line or said
            continue
        rows = []
        for below in lines:
            found = _ROW.match(below)
            if found is None:
                break
            rows.append(Row(found[1], *(float(found[number].replace(",", "")) for number in (2, 3, 4))))
        tables.append(Table(header[1] or _subject(said), header[2], tuple(rows)))
        said = ""
    return tables


def _subject(line: str) -> str:
    """What a line says before its first semicolon, if it tells how many of what were measured."""
    return line.partition(";")[0].strip() if re.match(r"[\d,]+ ", line) else ""


def losses(tables: list[Table]) -> list[str]:
    """Who was quicker than colabstage, and how many times as quick."""
    found = []
    for table in tables:
        ours = max((row for row in table.rows if row.kind == "ours"), key=lambda row: row.median, default=None)
        if ours is None:
            continue
        found += [
            f"{row.name}: {row.median / ours.median:.2f} times as fast as {ours.name}"
            + (f" ({table.title})" if table.title else "")
            for row in table.rows
            if row.kind == "peer" and row.median > ours.median
        ]
    return found


def lost_times(output: str) -> list[str]:
    """Who took less time than colabstage, and how many times as fast it was.

    Looks at tables of seconds with a row "colabstage", under a head whose first cell is empty, as `peers_streaming`
    prints them; what was only tried is no contender.
    """
    found: list[str] = []
    title, columns, rows = "", [""], dict[str, list[str]]()
    for line in [*output.splitlines(), ""]:
        cells = re.split(r"\s{2,}", line.strip())
        if line.startswith("  ") and len(cells) > 1:
            columns, rows = cells, {}
        elif len(cells) > len(columns) > 1 and not line.startswith("tried:"):
            rows[cells[0]] = cells[1:]
        elif rows or (line and len(cells) == 1):
            found += [f"{one} ({title})" for one in _quicker(columns, rows)]
            title, columns, rows = (line or title), [""] if rows else columns, {}
    return found


def _quicker(columns: list[str], rows: dict[str, list[str]]) -> list[str]:
    """Return which cells of others' rows have fewer seconds than those of the row "colabstage"."""
    ours = rows.pop("colabstage", [])
    seconds = re.compile(r"(\d+\.\d+) s")
    return [
        f"{name}: {column} {float(us[1]) / float(them[1]):.2f} times as fast as colabstage"
        for name, cells in rows.items()
        for column, mine, other in zip(columns, ours, cells, strict=False)
        if (us := seconds.fullmatch(mine)) and (them := seconds.fullmatch(other)) and float(them[1]) < float(us[1])
    ]


def draw(title: str, tables: list[Table]) -> str:
    """One SVG with a panel for each table."""
    label_width = max(len(row.name) for table in tables for row in table.rows) * _LETTER + 12
    panels, top = [], 8
    for table in tables:
        panel, top = _panel(table, label_width, top)
        panels.append(panel)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}" '
        f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def _panel(table: Table, label_width: float, top: int) -> tuple[str, int]:
    """Heading and bars of one table, and where the next may begin."""
    scale = (_WIDTH - label_width - _VALUE_WIDTH) / max(row.highest for row in table.rows)
    heading = f'<text class="title" x="8" y="{top + 14}">{escape(table.title)}</text>' if table.title else ""
    parts = [heading, f'<text class="unit" x="{label_width:.0f}" y="{top + 32}">{escape(table.unit)}, median</text>']
    y = top + 40
    for row in sorted(table.rows, key=lambda row: -row.median):
        parts.append(_bar(row, label_width, scale, y))
        y += _ROW_HEIGHT
    return "\n".join(filter(None, parts)), y + 12


def _bar(row: Row, left: float, scale: float, y: int) -> str:
    middle = y + _BAR_HEIGHT / 2
    low, high = left + row.lowest * scale, left + row.highest * scale
    weight = ' style="font-weight:600"' if row.kind == "ours" else ""
    figure = f"{row.median:,.0f}" if row.median >= 100 else f"{row.median:.3g}"
    return (
        f'<text x="{left - 8:.0f}" y="{y + 11}" text-anchor="end"{weight}>{escape(row.name)}</text>'
        f'<rect class="{row.kind}" x="{left:.0f}" y="{y}" width="{max(1, row.median * scale):.1f}" '
        f'height="{_BAR_HEIGHT}"/>'
        f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>'
        f'<text x="{high + 6:.1f}" y="{y + 11}"{weight}>{figure}</text>'
    )
