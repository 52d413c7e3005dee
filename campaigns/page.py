"""docs/campaigns.md: one section for each campaign, replaced when it is run again, and their sum."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from campaigns.known import FOREIGN, campaign_class, names

if TYPE_CHECKING:
    from campaigns.foreign import ForeignOutcome
    from campaigns.killing import Outcome

PAGE = Path(__file__).resolve().parent.parent / "docs" / "campaigns.md"
HEAD = """# Kill tests

`make campaign` writes this page. Processes that work on real data are killed with SIGKILL at random moments: some by
the clock, some just before they rename or remove something, where a protocol is most likely to break. Straight after
each kill, a checker looks at the place where the result belongs. It must find nothing, what was there before, or the
complete new result, and never a part of it. Then the work is started again. At the end of each round the result is
compared with the truth, byte by byte, and no temporary file may be left. "Kept" counts finished units that a run found
from earlier runs and did not repeat, added up over all runs; "redone" counts those that it repeated.

The last section is of another kind: nothing is killed there, and random HDF5 files are read beside h5py.
"""


def section(name: str, outcome: Outcome, *, seed: int) -> str:
    """The text of one campaign's section, without its heading."""
    campaign = campaign_class(name)
    states = ", ".join(f"{state} {count}" for state, count in sorted(outcome.states.items()))
    rows = {
        "kills": f"{outcome.kills} ({outcome.at_steps} just before a rename or removal)",
        "found straight after": states,
        "rounds that ended in verified data": str(outcome.rounds),
        f"{outcome.unit} kept": _figure(outcome.kept),
        f"{outcome.unit} redone": f"{_figure(outcome.redone)} of {_figure(outcome.done)} done",
        "redone for one kill": (
            f"{_figure(round(outcome.redone / max(1, outcome.kills), 1))} on average, {_figure(outcome.worst)} in the "
            f"worst round; at most {_figure(outcome.bound)} are promised"
        ),
    }
    rows |= {name: str(count) for name, count in outcome.more.items()}
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"\n{campaign.title}. The bound: {campaign.because}. Seed {seed}, {when}, {outcome.seconds:.0f} s.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
    )


def write_section(name: str, outcome: Outcome, *, seed: int) -> str:
    """Put a campaign's section into the page; returns it."""
    return _put(name, section(name, outcome, seed=seed))


def write_foreign(outcome: ForeignOutcome, *, seed: int) -> str:
    """Put the section on random HDF5 files into the page; returns it."""
    refused = ", ".join(f"{name} {count}" for name, count in sorted(outcome.refused.items())) or "none"
    rows = {
        "files": f"{outcome.files:,}",
        "read, all values equal to h5py's": f"{outcome.equal:,}",
        "readings compared": f"{outcome.readings:,}",
        "refused by an error of colabstage's own": f"{sum(outcome.refused.values()):,} ({refused})",
        "read otherwise, or ended in another error": "0",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return _put(
        FOREIGN,
        "\nHDF5 files with inputs and targets of random types and storage (chunks of any shape, filters, virtual, "
        "external, unwritten, either byte order, times, enumerations, texts, rows of any length), behind links of all "
        "kinds, some of which lead nowhere. Each is read through every engine that could read it, and as packing would "
        "read it, from a folder and a zip. What h5py reads as numbers, with all files there, may not be refused; in "
        "a zip, where no file is beside another, what needs a second one may be. "
        f"Seed {seed}, {when}, {outcome.seconds:.0f} s.\n\n| | |\n|---|---|\n{table}\n\n",
    )


def _put(name: str, text: str) -> str:
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    sections[name] = text
    ordered = [known for known in (*names(), FOREIGN) if known in sections]
    # The last section of a page ends without the blank line that has to follow it once another comes.
    body = "\n".join(f"## {known}\n{sections[known].rstrip()}\n" for known in ordered)
    kills = sum(int(match[1]) for match in re.finditer(r"^\| kills \| (\d+)", body, flags=re.MULTILINE))
    total = f"In all: {kills} kills; none left part of a result that could be taken for all of it.\n"
    PAGE.write_text(f"{HEAD}\n{total}\n{body}".rstrip() + "\n", encoding="utf-8")
    return f"## {name}\n{text}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
