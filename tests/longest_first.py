"""A pytest plugin that starts with the longest tests: `pytest -n 4 --dist worksteal -p tests.longest_first`.

`worksteal` gives each process an equal part of the list. A slow notebook test that one process begins last would keep
the run waiting for a minute with the other core idle. So each part begins with the tests that wait for a nursery or a
browser, followed by those marked `slow`. Tests of one module stay together, because of the fixtures that they share.
"""

from collections.abc import Sequence
from itertools import groupby

import pytest

# Fixtures whose tests take long.
_HEAVY = {"nurseries", "lab"}


def _rank(item: pytest.Item) -> int:
    if not _HEAVY.isdisjoint(getattr(item, "fixturenames", ())):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


def longest_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in an order in which each of `processes` equal parts begins with the longest, dealt out by
    module."""
    ranked = sorted(items, key=_rank)
    long = [item for item in ranked if _rank(item) < 2]
    rest = iter(ranked[len(long) :])
    heads: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, (_, group) in enumerate(groupby(long, key=lambda item: (_rank(item), item.path))):
        heads[number % processes] += group
    order: list[pytest.Item] = []
    for number, head in enumerate(heads):
        size = (len(items) - len(order)) // (processes - number)
        order += head
        order += [item for _, item in zip(range(size - len(head)), rest, strict=False)]
    return [*order, *rest]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests after deselection; every process arrives at the same order."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = longest_first(items, processes)
