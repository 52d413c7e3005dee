"""The walk through the modules that `stage_dataset` enters for a zip of images: short, and without turning back."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from scripts.count_code import two_walks

if TYPE_CHECKING:
    from pathlib import Path


def test_few_modules_are_entered_for_a_zip(tmp_path: Path) -> None:
    """The executor, which calls the others, is returned to, and so is the request, which all of them read."""
    found = two_walks(tmp_path)["stage_dataset on a zip"]
    stays = [name for name, _ in groupby(found.visits)]
    drawn = " -> ".join(stays)
    ours = {name for name in stays if name.startswith("stage/")}
    assert len(ours) <= 7, drawn
    returns = Counter(name for name in stays if name in ours - {"stage/run", "stage/request"})
    assert max(returns.values()) <= 6, drawn
    assert len(set(stays)) <= 58, drawn
