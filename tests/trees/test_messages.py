"""What trees say."""

from __future__ import annotations

import doctest

from colabstage.trees import bytes as addresses
from colabstage.trees import listing, names


def test_the_examples_are_true() -> None:
    """Documentation that runs."""
    for module in (addresses, listing, names):
        tried = doctest.testmod(module)
        assert tried.attempted
        assert tried.failed == 0
