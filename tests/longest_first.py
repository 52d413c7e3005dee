"""A pytest plugin that begins with what takes long: `pytest -n 4 --dist worksteal -p tests.longest_first`.

`worksteal` hands each process an equal part of the list. A notebook that one of them begins last keeps the run waiting
for a minute with the other core idle, so each part begins with what waits for a nursery or a browser, and then with
what is marked `slow`. What stands in one module stays together, because of what its tests share.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

# Fixtures of which a test that asks for one takes long.
_HEAVY = {"nurseries", "lab"}


def _rank(item: pytest.Item) -> int:
    if not _HEAVY.isdisjoint(getattr(item, "fixturenames", ())):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


def longest_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in an order of which so many equal parts begin with what takes long, dealt out by modules."""
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
    """Put the tests in order, once those that do not run are left out; the same in each process."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = longest_first(items, processes)
