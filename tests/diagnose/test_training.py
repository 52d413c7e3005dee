"""What a step trains is put back, however it is reached, or it is said that nothing was found."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from colabstage import autotune_loader, profile_loader
from colabstage.diagnose.restore import preserve_training

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))


def learn(model: Any, optimizer: Any, batch: Any) -> None:
    """One step of training."""
    optimizer.zero_grad()
    loss: Any = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()


@dataclass
class Trainer:
    """A model as an attribute."""

    model: Any
    optimizer: Any
    steps: int = 0

    def step(self, batch: Any) -> None:
        self.steps += 1
        learn(self.model, self.optimizer, batch)

    def __call__(self, batch: Any) -> None:
        self.step(batch)


@dataclass
class Slotted:
    """Without a `__dict__`."""

    __slots__ = ("pair",)
    pair: Any


@dataclass
class Held:
    """What the steps below train."""

    model: Any = field(default_factory=lambda: torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def state(self) -> list[Any]:
        gradients = [None if p.grad is None else p.grad.tolist() for p in self.model.parameters()]
        return [
            *(value.tolist() for value in self.model.state_dict().values()),
            str(self.optimizer.state_dict()),
            gradients,
        ]


GLOBAL: dict[str, Any] = {}


def by_global_dict(batch: Any) -> None:
    learn(GLOBAL["held"].model, GLOBAL["held"].optimizer, batch)


def nested(held: Held) -> Callable[[Any], None]:
    def inner(batch: Any) -> None:
        learn(held.model, held.optimizer, batch)

    @functools.wraps(inner)
    def wrapped(*parts: Any) -> None:
        for part in parts:
            inner(part)

    return functools.partial(wrapped)


def parameters_alone(held: Held) -> Callable[[Any], None]:
    """No model and no optimizer: tensors in a list, and an `SGD` by hand."""
    parameters = list(held.model.parameters())
    forward = types.SimpleNamespace(call=held.model)

    def step(batch: Any) -> None:
        loss: Any = torch.nn.functional.cross_entropy(forward.call(batch[0]), batch[1])
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None

    return step


def by_module(held: Held) -> Callable[[Any], None]:
    """A model that lies in a module of the user's."""
    module = types.ModuleType("users_training")
    vars(module).update(learn=learn, model=held.model, optimizer=held.optimizer)
    code = "def step(batch):\n    tools.learn(tools.model, tools.optimizer, batch)"
    known: dict[str, Any] = {"tools": module}
    exec(code, known)
    step: Callable[[Any], None] = known["step"]
    return step


def by_global(held: Held) -> Callable[[Any], None]:
    GLOBAL["held"] = held
    return by_global_dict


WAYS: dict[str, Any] = {
    "closure": lambda held: lambda batch: learn(held.model, held.optimizer, batch),
    "partial": lambda held: functools.partial(learn, held.model, held.optimizer),
    "keywords": lambda held: functools.partial(
        lambda batch, *, held: learn(held.model, held.optimizer, batch), held=held
    ),
    "method": lambda held: Trainer(held.model, held.optimizer).step,
    "callable": lambda held: Trainer(held.model, held.optimizer),
    "dict": lambda held: {"deep": [lambda batch: learn(held.model, held.optimizer, batch)]}["deep"][0],
    "default": lambda held: lambda batch, model=held.model, opt=held.optimizer: learn(model, opt, batch),
    "nested": nested,
    "slots": lambda held: functools.partial(
        lambda slotted, batch: learn(slotted.pair[0], slotted.pair[1], batch), Slotted((held.model, held.optimizer))
    ),
    "class": lambda held: type("Steps", (), {"held": held, "__call__": lambda self, batch: nested(self.held)(batch)})(),
    "parameters": parameters_alone,
    "module": by_module,
    "global": by_global,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_step_trains_is_put_back(way: str) -> None:
    """Weights, running means, gradients and the optimizer's state, and it is named."""
    torch.manual_seed(0)
    held = Held()
    step = WAYS[way](held)
    before = held.state()
    with preserve_training(step) as said:
        for _ in range(3):
            step(BATCH)
        assert held.state() != before
    assert held.state() == before
    assert said.startswith("What the step trained is as it was before: ")


def test_what_was_replaced_is_put_back() -> None:
    """Where training makes new values instead of changing old ones, as with JAX: variables, attributes and entries."""
    state, entries = 1, {"weights": 1}
    trainer = Trainer(None, None)
    model = torch.nn.Linear(1, 1)

    def step(_: Any) -> None:
        nonlocal state
        state += 1
        entries["weights"] += 1
        entries["moments"] = 5
        trainer.steps += 1
        model.train()

    with preserve_training(step):
        step(None)
        assert (state, trainer.steps) == (2, 1)
    assert (state, entries, trainer.steps) == (1, {"weights": 1}, 0)


def test_nothing_found_is_said() -> None:
    """A step whose model is out of reach, and one that trains nothing."""
    held = Held()
    hidden = iter([held])

    with preserve_training(lambda batch: (hidden, batch)) as said:
        assert said.startswith("Nothing that trains was found in the step")
    with preserve_training(print) as said:
        assert said.startswith("Nothing that trains was found in the step")
    with preserve_training(None) as said:
        assert said == ""


def test_a_profile_and_a_search_leave_a_model_untrained() -> None:
    """Through a function's globals; both say what they put back."""
    held = Held()
    dataset = TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))
    GLOBAL["held"] = held
    before = held.state()
    profile = profile_loader(DataLoader(dataset, 8), functools.partial(by_global_dict), budget_s=0.3)
    assert held.state() == before
    assert any("GLOBAL['held'].model" in note for note in profile.notes)
    tuned = autotune_loader(dataset, 8, step=functools.partial(by_global_dict), budget_s=0.3)
    assert held.state() == before
    assert "GLOBAL['held'].model" in str(tuned)
