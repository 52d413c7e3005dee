"""The campaigns' short form: each kind of work killed a few times, ending in verified data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from campaigns.campaign import WrongError
from campaigns.killing import Outcome, run_campaign
from campaigns.known import names
from campaigns.page import section

if TYPE_CHECKING:
    from pathlib import Path

# What needs a mounted Drive.
_FUSE = {"publish", "arrive", "stage", "fetch"}
_MARKS = {name: [pytest.mark.fuse] for name in _FUSE} | {"stream": [pytest.mark.torch]}
# Killed again and again by tests of their own as well: test_resume.py, test_file.py and test_extract.py.
_SHOWN_ELSEWHERE = {"pack", "fetch", "extract"}
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


def test_the_page_tells_what_was_counted() -> None:
    """Kept and redone units stand in the section, with the bound."""
    outcome = Outcome("samples", bound=40, kills=7, rounds=2, states={"old": 7}, kept=1234, redone=5, done=6789)
    text = section("pack", outcome, seed=3)
    assert "| samples kept | 1,234 |" in text
    assert "| samples redone | 5 of 6,789 done |" in text
    assert "Seed 3" in text
