"""The table of kill tests in docs/contributing.md: a row for each campaign, replaced when it is run again."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from campaigns.known import EPOCHS, FOREIGN, campaign_class, names

if TYPE_CHECKING:
    from campaigns.epochs import EpochsOutcome
    from campaigns.foreign import ForeignOutcome
    from campaigns.killing import Outcome

PAGE = Path(__file__).resolve().parent.parent / "docs" / "contributing.md"
_ROW = re.compile(r"^\| `(\w+)` \|.*\n", re.MULTILINE)


def row(name: str, outcome: Outcome, *, seed: int) -> str:
    """Return the row of one campaign."""
    states = ", ".join(f"{state} {count}" for state, count in sorted(outcome.states.items()))
    more = "".join(f", {count:,} {what}" for what, count in outcome.more.items())
    average = _figure(round(outcome.redone / max(1, outcome.kills), 1))
    redone = (
        f"{average} {outcome.unit} on average, {_figure(outcome.worst)} in the worst round, "
        f"at most {_figure(outcome.bound)} promised"
    )
    killed = f"{outcome.kills} kills, {outcome.at_steps} just before a rename or removal{more}"
    return _line(f"`{name}`", campaign_class(name).title, killed, states, redone, seed=seed)


def foreign_row(outcome: ForeignOutcome, *, seed: int) -> str:
    """Return the row on random HDF5 files."""
    refused = ", ".join(f"{name} {count}" for name, count in sorted(outcome.refused.items())) or "none"
    done = "random HDF5 files, read through every engine and as packing reads them, beside h5py"
    counted = f"{outcome.files:,} files, {outcome.readings:,} readings compared"
    found = f"equal {outcome.equal:,}, refused by an error of colabstage {sum(outcome.refused.values()):,} ({refused})"
    return _line(f"`{FOREIGN}`", done, counted, found, "none read otherwise", seed=seed)


def epochs_row(outcome: EpochsOutcome, *, seed: int) -> str:
    """Return the row on random epochs."""
    by = ", ".join(f"{name} {count}" for name, count in sorted(outcome.epochs.items()))
    done = "random epochs over random HDF5 files, in every framework, on ranks and after resumes, beside h5py"
    counted = f"{outcome.epochs.total():,} epochs ({by}) of {outcome.files:,} files, {outcome.batches:,} batches"
    found = f"{outcome.ranks:,} divided among ranks, {outcome.resumes:,} resumes, {outcome.refused.total():,} refused"
    return _line(f"`{EPOCHS}`", done, counted, found, "none had other batches", seed=seed)


def write_row(text: str) -> None:
    """Put a row into the page, in place of the campaign's earlier one, or where it belongs."""
    page = PAGE.read_text(encoding="utf-8")
    table, _, rest = page.partition("## Word list")
    found = list(_ROW.finditer(table))
    rows = {one[1]: one[0] for one in found} | {one[1]: one[0] for one in _ROW.finditer(text)}
    ordered = "".join(rows[name] for name in (*names(), FOREIGN, EPOCHS) if name in rows)
    before, after = table[: found[0].start()], table[found[-1].end() :]
    PAGE.write_text(f"{before}{ordered}{after}## Word list{rest}", encoding="utf-8")


def _line(*cells: str, seed: int) -> str:
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return f"| {' | '.join(cells)} | {seed}, {when} |\n"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
