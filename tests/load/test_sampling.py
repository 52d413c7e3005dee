"""Samplers and subsets: the caller chooses what an epoch visits, and it is still repeated exactly."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError
from tests.load.conftest import visited


@pytest.fixture
def dataset(make_file: Callable[..., Any]) -> Iterator[dataset_h5]:
    """23 samples that contain their numbers."""
    made = dataset_h5(make_file("pack", 23).path, return_index=True)
    yield made
    made.close()


SAMPLERS: dict[str, Callable[[], Any]] = {
    "weighted": lambda: WeightedRandomSampler([1.0] * 23, 40),
    "weighted, own rng": lambda: WeightedRandomSampler([1.0] * 23, 40, generator=torch.Generator().manual_seed(5)),
    "random": lambda: RandomSampler(range(23)),
    "replacing": lambda: RandomSampler(range(23), replacement=True, num_samples=31),
    "subset": lambda: SubsetRandomSampler([4, 7, 9, 11, 20]),
}


@pytest.mark.parametrize(("name", "done"), [(name, 2 * (number % 2)) for number, name in enumerate(SAMPLERS)])
def test_resuming_is_exact(dataset: dataset_h5, name: str, done: int) -> None:
    """A new loader with a new sampler continues with the very next batch and epoch."""
    first = make_loader(dataset, 2, sampler=SAMPLERS[name](), seed=6)
    one, two = visited(first), visited(first)
    assert one != two
    first.set_epoch(1)
    for number, _ in enumerate(first):
        if number + 1 == done:
            break
    state = first.state_dict() if done else {**first.state_dict(), "epoch": 1, "batches_done": 0}
    resumed = make_loader(dataset, 2, sampler=SAMPLERS[name](), seed=6)
    resumed.load_state_dict(state)
    assert visited(resumed) == two[2 * done :]


def test_drawing_leaves_the_rng_of_others_alone(dataset: dataset_h5) -> None:
    """An epoch moves neither torch's generator nor the sampler's own."""
    own = torch.Generator().manual_seed(5)
    loader = make_loader(dataset, 4, sampler=RandomSampler(range(23), generator=own))
    torch.manual_seed(3)
    before = (torch.get_rng_state(), own.get_state())
    visited(loader)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], own.get_state())


def as_values(rows: list[int]) -> Any:
    """A collection that is no sequence, as a column of a table is none."""
    return dict(enumerate(rows)).values()


@pytest.mark.parametrize("make", [list, torch.tensor, iter, as_values], ids=lambda make: make.__name__)
def test_rows_are_a_subset(dataset: dataset_h5, make: Any) -> None:
    """Rows in any form are visited once an epoch, shuffled or in the given order; negative ones count from the end."""
    rows = [5, 3, -1, 8, 3]
    shuffled = make_loader(dataset, 2, sampler=make(rows), shuffle=True)
    epochs = [visited(shuffled) for _ in range(4)]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {(3, 3, 5, 8, 22)}
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert visited(make_loader(dataset, 2, sampler=make(rows), shuffle=False)) == [5, 3, 22, 8, 3]
    assert len(shuffled) == 3


def test_a_distributed_sampler_shares_out_by_itself(dataset: dataset_h5) -> None:
    """Its rows are used as they are, and its epoch is set."""
    parts = []
    for rank in range(2):
        sampler: Any = DistributedSampler(range(23), num_replicas=2, rank=rank, drop_last=True)  # type: ignore[arg-type]
        loader = make_loader(dataset, 4, sampler=sampler)
        parts.append([visited(loader), visited(loader)])
    assert not set(parts[0][0]) & set(parts[1][0])
    assert parts[0][0] != parts[0][1]


class Counting(Sampler[int]):
    """Has another length than it says."""

    def __init__(self, rows: list[int], length: int) -> None:
        self.rows, self.length = rows, length

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return self.length


def test_a_sampler_without_a_length_is_refused_with_the_line_to_write(dataset: dataset_h5) -> None:
    """Which works as it stands."""

    class Odd(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(1, 23, 2))

    sampler = Odd()
    with pytest.raises(OptionError, match=r"sampler=list\(sampler\), shuffle=False"):
        make_loader(dataset, 4, sampler=sampler)
    assert visited(make_loader(dataset, 4, sampler=list(sampler), shuffle=False)) == list(range(1, 23, 2))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ([0, 23], "sampler=.*23"),
        ([], "no batch"),
        (7, "sampler=7"),
        (Counting([1, 2], 3), r"2 rows.*len\(sampler\) is 3"),
    ],
)
def test_what_is_no_sampler_is_refused(dataset: dataset_h5, sampler: Any, message: str) -> None:
    """Each is an OptionError, at the latest when the epoch begins."""
    with pytest.raises(OptionError, match=message):
        next(iter(make_loader(dataset, 4, sampler=sampler)))
