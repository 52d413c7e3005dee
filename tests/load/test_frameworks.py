"""Frameworks that require a `torch.utils.data.DataLoader` get one, which they may use whole or take apart."""

import itertools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError
from tests.load.conftest import visited

needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="needs accelerate: pip install --group large"
)


def numbered(make_file: Callable[..., Any]) -> dataset_h5:
    """23 samples that contain their numbers."""
    return dataset_h5(make_file("pack", 23).path, return_index=True)


def test_it_is_a_stock_dataloader(make_file: Callable[..., Any]) -> None:
    """It has the attributes that frameworks read."""
    loader = make_loader(numbered(make_file), 4, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.drop_last, len(loader), len(loader.dataset)) == (4, True, 5, 23)  # type: ignore[arg-type]
    assert isinstance(loader.dataset, dataset_h5)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert not isinstance(loader.sampler, DistributedSampler)
    shared = make_loader(numbered(make_file), 4, rank=1, world_size=2)
    assert isinstance(shared.sampler, DistributedSampler)
    assert (shared.sampler.rank, shared.sampler.num_replicas) == (1, 2)


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32, "batch_transform": lambda x, y: (x * 2, y + 1)}])
def test_a_loader_built_of_its_parts_gives_the_same_batches(
    make_file: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Dataset, samplers and collate_fn make the same batches in the same order, with one read each."""
    loader: Any = make_loader(numbered(make_file), 4, seed=0, **options)
    again = type(loader)(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    for ((x, y), index), ((other_x, other_y), other_index) in zip(loader, again, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
        assert torch.equal(index, other_index)
    assert len(again) == len(loader)
    # Lightning and others save the state of each loader that has one.
    assert not hasattr(again, "state_dict")


def test_a_stock_loader_over_its_dataset_gives_the_samples_of_the_file(make_file: Callable[..., Any]) -> None:
    """As code that evaluates `loader.dataset` makes one, with torch's own `collate_fn`."""
    dataset = numbered(make_file)
    for own, other in zip(DataLoader(make_loader(dataset, 4).dataset, 5), DataLoader(dataset, 5), strict=True):
        assert all(map(torch.equal, (*own[0], own[1]), (*other[0], other[1])))


def test_epochs_that_nobody_sets_are_drawn_as_by_a_stock_sampler(make_file: Callable[..., Any]) -> None:
    """As Ignite's DeterministicEngine has it, which seeds torch for each epoch; all would have one order otherwise."""
    epochs = []
    for seed in (1, 2, 1):
        sampler: Any = make_loader(numbered(make_file), 4).sampler
        torch.manual_seed(seed)
        epochs.append([*sampler])
    assert epochs[0] == epochs[2] != epochs[1]


@pytest.mark.parametrize("world", [{}, {"rank": 0, "world_size": 2}], ids=str)
def test_an_epoch_that_a_framework_begins_again_has_another_order(
    make_file: Callable[..., Any], world: dict[str, Any]
) -> None:
    """Accelerate counts no epoch that the loop left early. With `seed=` the order is that of the epoch alone."""
    seeds: dict[int | None, int] = {None: 3, 1: 1}
    for seed, orders in seeds.items():
        sampler: Any = make_loader(numbered(make_file), 4, seed=seed, **world).sampler
        epochs = []
        for _ in range(3):
            sampler.set_epoch(0)
            epochs.append(tuple(sampler))
        assert len(set(epochs)) == orders
        assert {*map(frozenset, epochs)} == {frozenset(range(23))}


@pytest.mark.parametrize("name", ["collate_fn", "batch_transform", "seed"])
def test_what_a_loader_was_planned_with_is_not_set_in_silence(make_file: Callable[..., Any], name: str) -> None:
    """A stock loader calls the `collate_fn` that it has by then."""
    loader = make_loader(numbered(make_file), 4)
    with pytest.raises(OptionError, match=f"^{name} cannot be set"):
        setattr(loader, name, len)


@pytest.mark.parametrize("options", [{}, {"strategy": "memory"}, {"strategy": "device"}, {"num_workers": 0}], ids=str)
@pytest.mark.parametrize("done", [0, 2, 6])
def test_an_epoch_may_be_set_until_its_first_batch(
    make_file: Callable[..., Any], done: int, options: dict[str, Any]
) -> None:
    """As with a stock loader: Lightning begins an iteration and then sets the epoch that it resumes. The one that was
    begun keeps its place."""
    loader: Any = make_loader(numbered(make_file), 4, seed=0, **options)
    epochs = [visited(loader) for _ in range(4)]
    for told, first in ((2, epochs[2]), (0, epochs[0][4 * done :])):
        loader.set_epoch(0)
        loader.load_state_dict({**loader.state_dict(), "batches_done": done})
        begun = iter(loader)
        loader.sampler.set_epoch(told)
        assert visited(begun) == first
        assert visited(loader) == epochs[told + 1]


@pytest.mark.parametrize("tell", ["sampler", "loader", "state"])
def test_a_loader_built_of_its_parts_has_the_epoch_it_is_told(make_file: Callable[..., Any], tell: str) -> None:
    """Epochs follow the sampler's set_epoch; the loader itself also follows it, but keeps its place in an epoch."""
    loader = make_loader(numbered(make_file), 4)
    epochs = [visited(loader) for _ in range(3)]
    sampler: Any = loader.sampler
    if tell == "state":
        loader.load_state_dict({**loader.state_dict(), "epoch": 2})
    else:
        {"sampler": sampler, "loader": loader}[tell].set_epoch(2)
    assert (
        visited(DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn))
        == epochs[2]
    )
    sampler.set_epoch(1)
    for _ in loader:
        break
    state = loader.state_dict()
    assert state["epoch"] == 1
    loader.load_state_dict(state)
    sampler.set_epoch(1)
    assert visited(loader) == epochs[1][4:]


@pytest.mark.parametrize(("world", "shared"), [(2, True), (3, False)])
def test_batches_that_a_framework_shares_out_are_the_epoch(
    make_file: Callable[..., Any], world: int, shared: bool
) -> None:
    """As in Accelerate: each process takes every n-th batch of the loader's batch sampler, and loads it with its parts.
    Together they make one process's epoch, even if the loader itself is for ranks."""
    dataset = numbered(make_file)
    alone = make_loader(dataset, 4, seed=0)
    epochs = [visited(alone) for _ in range(2)]
    for epoch, expected in enumerate(epochs):
        parts = []
        for rank in range(world):
            options: dict[str, Any] = {"rank": rank, "world_size": world} if shared else {}
            loader: Any = make_loader(dataset, 4, seed=0, **options)
            loader.sampler.set_epoch(epoch)
            own = list(loader.batch_sampler)[rank::world]
            parts.append(
                [i.tolist() for _, i in DataLoader(loader.dataset, batch_sampler=own, collate_fn=loader.collate_fn)]
            )
        steps = itertools.zip_longest(*parts, fillvalue=[])
        assert [row for step in steps for batch in step for row in batch] == expected


@pytest.mark.long
@needs_accelerate
def test_accelerate_prepares_it(make_file: Callable[..., Any]) -> None:
    """The loader that `prepare` returns visits every sample once an epoch, each time in another order."""
    from accelerate import Accelerator  # type: ignore[import-untyped,import-not-found,unused-ignore]

    dataset = numbered(make_file)
    loader: Any = Accelerator(cpu=True).prepare(make_loader(dataset, 4, seed=1))
    epochs = [visited(loader) for _ in range(2)]
    straight = make_loader(dataset, 4, seed=1)
    assert epochs == [visited(straight), visited(straight)]


@pytest.mark.long
@needs_accelerate
def test_accelerate_continues_by_epoch_and_batches(make_file: Callable[..., Any]) -> None:
    """As docs/loaders.md says: the result of `prepare` has no `state_dict`, and skips batches of the epoch that is
    set."""
    from accelerate import Accelerator, skip_first_batches  # type: ignore[import-untyped,import-not-found,unused-ignore]

    dataset = numbered(make_file)
    prepare = Accelerator(cpu=True).prepare
    epochs = [visited(prepare(make_loader(dataset, 4, seed=1)))]
    loader: Any = prepare(make_loader(dataset, 4, seed=1))
    with pytest.raises(AttributeError, match="state_dict"):
        loader.state_dict()
    for epoch in range(3):
        loader.set_epoch(epoch)
        epochs.append(visited(loader))
    assert epochs[0] == epochs[1]
    resumed: Any = prepare(make_loader(dataset, 4, seed=1))
    resumed.set_epoch(1)
    assert visited(skip_first_batches(resumed, 2)) == epochs[2][2 * 4 :]
    resumed.set_epoch(2)
    assert visited(resumed) == epochs[3]
