"""The campaigns' short form: each kind of work killed a few times, ending in verified data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from campaigns import page
from campaigns.campaign import WrongError
from campaigns.killing import Outcome, run_campaign
from campaigns.known import names

if TYPE_CHECKING:
    from pathlib import Path

# What needs a mounted Drive.
_FUSE = {"publish", "arrive", "stage", "fetch"}
_MARKS = {name: [pytest.mark.fuse] for name in _FUSE} | {"stream": [pytest.mark.torch]}
# Killed by tests of every run as well: before and after changes of names by test_crash_matrix.py, again and again by
# test_resume.py, test_file.py and test_extract.py.
_SHOWN_ELSEWHERE = {"pack", "fetch", "extract", "publish", "stage"}
# One of small calls, of five kinds, takes more kills to meet their seams.
_KILLS = {"live": 10}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*_MARKS.get(name, []), *[pytest.mark.long] * (name in _SHOWN_ELSEWHERE)])
        for name in names()
    ],
)
def test_killed_work_ends_in_verified_data(name: str, tmp_path: Path) -> None:
    """Kills leave nothing, the old or the whole; what was finished is not done again; the end is the truth."""
    kills = _KILLS.get(name, 2)
    outcome = run_campaign(name, tmp_path, kills=kills, seed=5, small=True)
    assert outcome.kills >= kills
    assert sum(outcome.states.values()) == outcome.kills
    assert outcome.done >= outcome.needed * 0.99
    assert outcome.redone <= outcome.kills * outcome.bound


def test_a_checker_that_looks_at_a_part_says_so(tmp_path: Path) -> None:
    """A half-written file in the place of a pack is noticed: the campaign can fail."""
    from campaigns.packing import look_at_pack

    (tmp_path / "truth.h5").write_bytes(b"0123456789")
    (tmp_path / "out.h5").write_bytes(b"01234")
    with pytest.raises(WrongError, match=r"out\.h5"):
        look_at_pack(tmp_path / "out.h5", tmp_path / "truth.h5", None)


def test_a_row_tells_what_was_counted_and_replaces_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redone units stand in it with the bound; the other rows and the text around the table stay."""
    outcome = Outcome("samples", bound=40, kills=7, rounds=2, states={"old": 7}, kept=1234, redone=14, worst=5)
    line = page.row("pack", outcome, seed=3)
    assert "2 samples on average, 5 in the worst round, at most 40 promised" in line
    assert "7 kills" in line
    assert "| old 7 |" in line
    written = tmp_path / "contributing.md"
    around = "head\n\n| `fetch` | stays |\n{}| `stage` | stays |\n\nrest\n\n## Word list\n\n| `pack` | no row |\n"
    written.write_text(around.format("| `pack` | earlier |\n"), encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", written)
    page.write_row(line)
    assert written.read_text(encoding="utf-8") == around.format(line)
    written.write_text(around.format(""), encoding="utf-8")
    page.write_row(line)
    assert written.read_text(encoding="utf-8") == around.format(line)
