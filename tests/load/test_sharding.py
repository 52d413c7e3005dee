"""Ranks divide an epoch exactly, with equally many batches whenever that is possible."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError

pytestmark = pytest.mark.torch


@pytest.fixture
def rows(make_numbered: Callable[[int], Path]) -> Callable[[int], dataset_h5]:
    """Open a file whose target i is i."""
    return lambda count: dataset_h5(make_numbered(count))


def steps_of(loader: Any) -> list[list[int]]:
    return [y.tolist() for _, y in loader]


@pytest.mark.filterwarnings("ignore:This rank has")
@pytest.mark.parametrize("count", [1, 7, 8])
def test_other_ranks_with_the_same_step_go_on_where_these_were(rows: Callable[[int], dataset_h5], count: int) -> None:
    """The batches of some ranks and those left for others are the epoch, each row once. It can be continued after all
    but the last step; if all ranks have equally many rows, also after that."""
    dataset = rows(count)

    def ranks_of(size: int, world: int) -> list[Any]:
        return [make_loader(dataset, size, seed=1, rank=rank, world_size=world) for rank in range(world)]

    shares = [(4, 1), (2, 2), (1, 4)]
    for before in shares:
        whole = [steps_of(loader) for loader in ranks_of(*before)]
        for done in range(len(whole[0]) + 1):
            seen = [row for rank in whole for step in rank[:done] for row in step]
            state = {**ranks_of(*before)[0].state_dict(), "batches_done": done}
            for after in shares:
                left: list[int] = []
                try:
                    for loader in ranks_of(*after):
                        loader.load_state_dict(state)
                        left += [row for step in steps_of(loader) for row in step]
                except OptionError:
                    assert count % 4
                    assert done >= max(1, len(whole[0]) - 1)
                else:
                    assert sorted(seen + left) == list(range(count))
