"""Frameworks that insist on a `torch.utils.data.DataLoader` get one, used whole or taken apart."""

from __future__ import annotations

import itertools
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import Loader, make_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

needs_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="needs lightning: pip install --group large"
)
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="needs accelerate: pip install --group large"
)


def numbered(make_file: Callable[..., Any]) -> dataset_h5:
    """23 samples that say which they are."""
    return dataset_h5(make_file("pack", 23).path, return_index=True)


def visited(loader: Any) -> list[int]:
    return [int(row) for _, index in loader for row in index]


def test_it_is_a_stock_dataloader(make_file: Callable[..., Any]) -> None:
    """Its attributes are those that frameworks look at."""
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
    """Dataset, samplers and collate_fn make the same batches in the same order, by one read each."""
    loader = make_loader(numbered(make_file), 4, **options)
    again = Loader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    for ((x, y), index), ((other_x, other_y), other_index) in zip(loader, again, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
        assert torch.equal(index, other_index)
    assert len(again) == len(loader)
    assert "built it" in repr(again)


def test_a_loader_built_of_its_parts_has_the_epoch_it_is_told(make_file: Callable[..., Any]) -> None:
    """Epochs follow from the sampler's set_epoch; and the loader itself heeds it too, but keeps a place in it."""
    loader = make_loader(numbered(make_file), 4)
    epochs = [visited(loader) for _ in range(3)]
    sampler: Any = loader.sampler
    sampler.set_epoch(2)
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


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_batches_that_a_framework_shares_out_are_the_epoch(
    make_file: Callable[..., Any], world: int, shared: bool
) -> None:
    """As Accelerate does it: each process takes every so many-th batch of the loader's own, and loads it by its parts;
    together that is the epoch of one process, also of a loader that shares out itself."""
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
    """What `prepare` makes of it visits every sample once an epoch, another order each."""
    from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

    dataset = numbered(make_file)
    loader: Any = Accelerator(cpu=True).prepare(make_loader(dataset, 4, seed=1))
    epochs = [visited(loader) for _ in range(2)]
    straight = make_loader(dataset, 4, seed=1)
    assert epochs == [visited(straight), visited(straight)]


@pytest.mark.long
@needs_accelerate
def test_accelerate_saves_and_restores_a_loader_that_is_registered(
    make_file: Callable[..., Any], tmp_path: Path
) -> None:
    """The next loader continues behind the last batch."""
    from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

    dataset = numbered(make_file)
    loader, again = (make_loader(dataset, 4, seed=0) for _ in range(2))
    whole = visited(make_loader(dataset, 4, seed=0))
    first = Accelerator(cpu=True)
    first.register_for_checkpointing(loader)
    running = iter(loader)
    seen = [int(row) for _ in range(2) for row in next(running)[1]]
    first.save_state(str(tmp_path / "state"))
    second = Accelerator(cpu=True)
    second.register_for_checkpointing(again)
    second.load_state(str(tmp_path / "state"))
    assert seen + visited(again) == whole
    assert visited(again) != whole


@pytest.mark.long
@needs_accelerate
def test_accelerate_continues_by_epoch_and_batches(make_file: Callable[..., Any]) -> None:
    """As docs/loaders.md says: what `prepare` makes has no `state_dict`, and skips batches of the epoch that it is set
    to."""
    from accelerate import Accelerator, skip_first_batches  # type: ignore[import-untyped,unused-ignore]

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


@pytest.mark.long
@needs_lightning
def test_lightning_trains_and_predicts(make_file: Callable[..., Any], tmp_path: Path) -> None:
    """`fit` visits every sample once an epoch in the order of the loader, `predict` all in the file's order, and a
    checkpoint holds the loader's place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning.pytorch import LightningModule, Trainer

        sample = make_file("pack", 23)
        dataset = dataset_h5(sample.path, return_index=True)

        class Model(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.rows: list[list[int]] = []

            def training_step(self, batch: Any, number: int) -> Any:
                (x, _), index = batch
                if number == 0:
                    self.rows.append([])
                self.rows[-1] += index.tolist()
                return self.layer(x.mean(dim=(1, 2, 3))[:, None]).mean()

            def predict_step(self, batch: Any, number: int) -> Any:
                (x, _), index = batch
                return index, x.mean(dim=(1, 2, 3))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.001)

        model = Model()
        trainer = Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        loader = make_loader(dataset, 4, seed=1, dtype=torch.float32)
        trainer.fit(model, loader)
        trainer.save_checkpoint(tmp_path / "at.ckpt")
        still = make_loader(dataset, 4, shuffle=False, dtype=torch.float32)
        predicted: Any = trainer.predict(model, still)
        loader.close()
        still.close()
    straight = make_loader(dataset, 4, seed=1)
    assert model.rows == [visited(straight) for _ in range(3)]
    assert torch.cat([index for index, _ in predicted]).tolist() == list(range(23))
    np.testing.assert_allclose(torch.cat([mean for _, mean in predicted]), sample.x.mean((1, 2, 3)) / 255, rtol=1e-5)
    # Lightning asks for nothing behind the last batch, so the place is there; it names the epoch that it begins.
    state = loader.state_dict()
    assert (state["epoch"], state["batches_done"]) == (2, len(loader))
    resumed = make_loader(dataset, 4, seed=1)
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(3)  # type: ignore[attr-defined]
    assert visited(resumed) == visited(straight)
