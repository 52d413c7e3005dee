"""Fetching against what people use: small files from Drive, an archive's members, one large file over HTTP.

    python -m benchmarks.fetching [copy] [extract] [http]

One run, one table. Exit code 1 when one of the promised ratios is missed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks._report import Promise, judge
from simulated_drive.drive import fuse_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = ("copy", "extract", "http")


# The `tool` of our own rows.
OURS = "colabstage"
# Of each part: the time of each tool with these words in its name ("" for all), divided by ours, is at least so much.
PROMISES = (
    ("copy", "", 12.0),
    ("extract", "unzip", 2.5),
    ("extract", "", 1.0),
    ("http", "aria2c", 1 / 1.1),
    ("http", "curl", 3.0),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: `task` in the same words for all tools that did it, `tool` as people type it, the seconds of the
    median round, and what else a reader should know."""

    task: str
    tool: str
    seconds: float
    note: str = ""


def promised(part: str, tool: str, least: float, rows: Sequence[Row]) -> Promise:
    """What is promised of a part's first task; a ratio of 0 when nothing can be compared."""
    task = [row for row in rows if row.task == rows[0].task]
    (ours,) = [row.seconds for row in task if row.tool == OURS]
    others = [row for row in task if row.tool != OURS and tool in row.tool]
    worst = min(others, key=lambda row: row.seconds, default=Row(rows[0].task, f"{tool}, which is not installed", 0))
    return Promise(f"{part}: {worst.tool} / {OURS}", worst.seconds / ours, "at least", least)


def table(rows: Sequence[Row]) -> str:
    """The rows as text, ours first in each task, then the quickest, with the ratio to ours."""
    lines = []
    for task in dict.fromkeys(row.task for row in rows):
        mine = [row for row in rows if row.task == task]
        ours = next((row.seconds for row in mine if row.tool == OURS), None)
        lines += ["", task]
        for row in sorted(mine, key=lambda row: (row.tool != OURS, row.seconds)):
            times = "" if row.tool == OURS or ours is None else f"{row.seconds / ours:6.2f} x"
            lines.append(f"  {row.tool:<26} {row.seconds:8.2f} s  {times:<9} {row.note}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    wanted = parser.parse_args().parts or list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if problem := fuse_problem():
        print(problem, file=sys.stderr)
        return 1
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    began = time.monotonic()
    found: dict[str, list[Row]] = {}
    for part in wanted:
        found[part] = importlib.import_module(f"benchmarks._fetch_{part}").measure()
        print(table(found[part]), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s in all\n")
    return judge(promised(part, tool, least, found[part]) for part, tool, least in PROMISES if part in found)


if __name__ == "__main__":
    sys.exit(main())
