"""What trees say."""

from __future__ import annotations

import doctest

from colabstage.trees import bytes as addresses
from colabstage.trees import listing, names
from colabstage.trees.listing import count_by


def test_counts_are_written_commonest_first() -> None:
    """Long tails are summed up."""
    assert count_by([".txt", ".csv", ".csv", ".csv", ".txt"]) == "3 .csv, 2 .txt"
    assert count_by(list("abcdefg"), most=2) == "1 a, 1 b, 5 others"


def test_the_examples_are_true() -> None:
    """Documentation that runs."""
    for module in (addresses, listing, names):
        tried = doctest.testmod(module)
        assert tried.attempted
        assert tried.failed == 0
