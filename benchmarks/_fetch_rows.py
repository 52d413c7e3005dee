"""One line of the table that `benchmarks.fetching` prints: what was done, by which tool, in how many seconds."""

from __future__ import annotations

from dataclasses import dataclass

# What the `tool` of our own rows is called.
OURS = "colabstage"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    `task`: what was done, in the same words for all tools that did it. `tool`: `OURS`, or the command as people type
    it. `seconds`: of wall clock, the median where there were several rounds. `note`: what else a reader should know,
    for example the spread.
    """

    task: str
    tool: str
    seconds: float
    note: str = ""
