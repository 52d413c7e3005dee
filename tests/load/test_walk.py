"""The walk through the modules that `make_loader` enters up to its first batch: short, and without turning back."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any

from colabstage import dataset_h5, make_loader
from tests.support.walks import walk


def test_few_modules_are_entered_up_to_the_first_batch(make_file: Callable[..., Any]) -> None:
    """In `load/`, for this thread and for those that read ahead."""
    dataset = dataset_h5(make_file("pack", 40).path)
    found = walk(lambda: next(iter(make_loader(dataset, 8))))
    stays = [name for name, _ in groupby(found.visits)]
    drawn = " -> ".join(stays) + f"; threads: {sorted(found.elsewhere)}"
    ours = {name for name in {*found.visits, *found.elsewhere} if name.startswith("load/")}
    assert len(ours) <= 11, drawn
    returns = Counter(name for name in stays if name in ours)
    assert max(returns.values()) <= 6, drawn
    assert returns.total() <= 28, drawn
