"""Objects handed over are restored in place; the notes say that others changed; whatever cannot be restored is refused
first."""

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from colabstage import autotune_loader, profile_loader
from colabstage.errors import OptionError

DATA = TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))


class Counting(torch.nn.Module):
    """A buffer outside the state, and plain attributes, as in metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.total, self.history, self.lock = torch.zeros(1), list[int](), threading.Lock()

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.get_buffer("seen").add_(1)
        self.total = self.total + 1
        self.history.append(self.calls)
        return x


class Training:
    """A model, an optimizer and a history, as in a notebook."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.losses: list[float] = [7.0]

    def step(self, batch: Any) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def state(self) -> list[Any]:
        gradients = [None if p.grad is None else p.grad.tolist() for p in self.model.parameters()]
        buffers = [buffer.tolist() for buffer in self.model.buffers()]
        weights = [p.tolist() for p in self.model.parameters()]
        return [weights, buffers, gradients, str(self.optimizer.state_dict()), self.model.training, len(self.losses)]


def profiled(step: Callable[[Any], object], restore: object) -> str:
    """Profile a step, and return the notes."""
    return " ".join(profile_loader(DataLoader(DATA, 8), step, restore=restore, budget_s=0.2).notes)


def tuned(step: Callable[[Any], object], restore: object) -> str:
    """Tune a loader with a step, and return the notes."""
    return " ".join(autotune_loader(DATA, 8, step=step, restore=restore, budget_s=0.2).notes)


@pytest.mark.parametrize(("run", "trained"), [(profiled, True), (tuned, False)])
def test_a_model_is_put_back(run: Any, trained: bool) -> None:
    """Weights, running means, gradients, the optimizer's state, the mode, and the history: new or in the middle."""
    training = Training(Counting())
    if trained:
        training.step(DATA[:8])
    training.model.eval()
    before, tensors = training.state(), [id(p) for p in training.model.parameters()]
    note = run(training.step, (training.model, training.optimizer, training.losses, training.schedule))
    assert training.state() == before
    assert [id(p) for p in training.model.parameters()] == tensors
    counting: Any = training.model[0]
    assert (counting.calls, counting.total.item(), len(counting.history)) == (int(trained),) * 3
    assert all(name in note for name in ("Sequential", "Adam", "list"))


def test_what_was_not_handed_over_is_said_to_be_changed() -> None:
    """Without any, the line to write; with only the model, that everything else was changed."""
    training = Training()
    before = training.state()
    note = profiled(training.step, None)
    assert training.state() != before
    assert "restore=(model, optimizer)" in note
    note = profiled(training.step, training.model)
    assert "Sequential" in note
    assert "stays changed" in note
    assert len(training.losses) > 2
    assert profiled(training.step, ()) == ""


def test_anything_that_holds_values_is_put_back() -> None:
    """In place, including nested values."""
    history: dict[str, Any] = {"loss": [1.0], "matrix": np.zeros((2, 2)), "seen": {1}, "last": deque([1], maxlen=3)}
    inner = history["loss"]
    tensor, own, twister = torch.zeros(3), np.random.default_rng(0), random.Random(0)
    generator = torch.Generator().manual_seed(3)
    expected = np.random.default_rng(0).random(), random.Random(0).random()

    def step(_: Any) -> None:
        history["loss"].append(2.0)
        history["matrix"] += 1
        history["seen"].add(len(history["loss"]))
        history["last"].append(2)
        history["new"] = 1
        tensor.add_(1)
        own.random(), twister.random(), torch.rand(1, generator=generator)

    state = generator.get_state()
    profiled(step, (history, tensor, own, twister, generator))
    assert history.keys() == {"loss", "matrix", "seen", "last"}
    assert history["loss"] is inner
    assert (inner, history["matrix"].sum(), history["seen"], list(history["last"])) == ([1.0], 0, {1}, [1])
    assert tensor.tolist() == [0, 0, 0]
    assert (own.random(), twister.random()) == expected
    assert torch.equal(generator.get_state(), state)


class Trainer:
    """Contains a model, but has no state of its own."""


class Stubborn:
    """Has a state that cannot be read."""

    def state_dict(self) -> Any:
        msg = "no state yet"
        raise RuntimeError(msg)

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("restore", "named"),
    [
        ((Trainer(),), "Trainer"),
        ([1.5], "float"),
        ((Stubborn(),), "no state yet"),
    ],
)
def test_what_cannot_be_put_back_is_refused_before_the_first_step(restore: Any, named: str) -> None:
    """By name, with what to hand over instead."""
    steps: list[Any] = []
    with pytest.raises(OptionError, match=named):
        profile_loader([1], steps.append, restore=restore, budget_s=0.1)
    assert steps == []


def test_it_is_put_back_after_an_error_in_the_step() -> None:
    """Or after Ctrl-C."""
    losses = [1.0]

    def step(_: Any) -> None:
        losses.append(2.0)
        if len(losses) > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_loader([1, 2], step, restore=(losses,), budget_s=0.1)
    assert losses == [1.0]


def test_copies_of_a_model_are_in_the_computers_memory() -> None:
    """A GPU that a model nearly fills could not hold a second one. (The device in these tests has no memory at all.)"""
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    # A tensor without data cannot be copied to the computer's memory, but any copy on the device would succeed.
    with pytest.raises(OptionError, match="Copying its state failed"):
        profile_loader([1], lambda _: None, restore=(model,), budget_s=0.1)


@pytest.mark.gpu
def test_a_model_on_a_gpu_takes_no_more_of_its_memory() -> None:
    """Neither the weights nor the optimizer's moments are copied there."""
    model = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(8, 4096, device="cuda")

    def step(_: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step(None)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(None)
    before, weights = torch.cuda.max_memory_allocated(), model.weight.detach().cpu().clone()
    torch.cuda.reset_peak_memory_stats()
    profile_loader([1, 2, 3], step, restore=(model, optimizer), budget_s=0.5)
    assert torch.cuda.max_memory_allocated() < before + 0.5 * model.weight.nbytes
    assert torch.equal(model.weight.detach().cpu(), weights)


class Opening(Dataset[Any]):
    """Opens its file at the first sample, and draws at random."""

    def __init__(self) -> None:
        self.handle: object = None
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        self.handle = self.handle or object()
        return torch.full((256,), float(index) + self.rng.random() + random.random()), index


@pytest.mark.parametrize("workers", [0, 1])
def test_training_gives_the_same_numbers_after_a_profile(workers: int) -> None:
    """The order of batches, all random numbers, weights; the dataset's file handle is closed again."""

    def train(*, profile: bool) -> Any:
        torch.manual_seed(0)
        random.seed(0)
        dataset = Opening()
        loader = DataLoader(dataset, 8, shuffle=True, num_workers=workers)
        model = torch.nn.Sequential(torch.nn.Linear(256, 4), torch.nn.Dropout(0.5))
        optimizer = torch.optim.Adam(model.parameters())
        order: list[int] = []

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            model(batch[0]).square().mean().backward()
            optimizer.step()
            order.extend(batch[1].tolist())

        if profile:
            profile_loader(loader, step, restore=(model, optimizer, order), budget_s=0.4)
            assert dataset.handle is None
        for batch in loader:
            step(batch)
        return order, [value.tolist() for value in model.state_dict().values()]

    assert train(profile=True) == train(profile=False)
