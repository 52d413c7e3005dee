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
from typing import TYPE_CHECKING, Literal

from benchmarks._fetch_rows import OURS, Row
from benchmarks._report import against
from simulated_drive.drive import fuse_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = ("copy", "extract", "http")


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised of one part: the time of each tool with `tool` in its name ("" for all), divided by ours, is
    at least `ratio`."""

    part: str
    tool: str
    ratio: float


PROMISES = (
    Promise("copy", "", 12.0),
    Promise("extract", "unzip", 2.5),
    Promise("extract", "", 1.0),
    Promise("http", "aria2c", 1 / 1.1),
    Promise("http", "curl", 3.0),
)


def judge(promise: Promise, rows: Sequence[Row]) -> tuple[Literal["ok", "MISS", "????"], str]:
    """Whether a part's first task keeps a promise, and by how much, as a line; "????" when nothing can be compared."""
    task = [row for row in rows if row.task == rows[0].task]
    ours = next((row.seconds for row in task if row.tool == OURS), None)
    others = [row for row in task if row.tool != OURS and promise.tool in row.tool]
    name = promise.tool or "every other"
    if ours is None or not others:
        return "????", f"{promise.part}: {name} could not be compared; is it installed?"
    worst = min(others, key=lambda row: row.seconds)
    ratio = worst.seconds / ours
    line = f"{promise.part}: {worst.tool} / {OURS}: {against(ratio, promise.ratio, 'at least')}"
    return ("ok" if ratio >= promise.ratio else "MISS"), line


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
    judged = [judge(promise, found[promise.part]) for promise in PROMISES if promise.part in found]
    for verdict, line in judged:
        print(f"{verdict:<4}  {line}")
    return 0 if all(verdict == "ok" for verdict, _ in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
