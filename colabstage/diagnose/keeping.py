"""Leaving everything as it was found: random numbers, a dataset's attributes, what a step trains.

A profile runs the caller's loader and step for a while. What they draw, open and learn on the way is put back, so that
a training run gives the same numbers with a profile before it and without.
"""

from __future__ import annotations

import copy
import random
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Datasets wrap each other (a subset of a concatenation of folders), each with transforms made of transforms.
_DEPTH = 5
_MOST_OBJECTS = 500
_NOT_ENTERED = ("builtins", "torch", "numpy", "h5py", "PIL", "pandas", "keras", "tensorflow", "threading", "pathlib",
                "collections", "colabstage", "functools", "re", "types", "_thread", "_io", "io")  # fmt: skip


@contextmanager
def kept_randomness(generators: Iterable[object] = ()) -> Iterator[None]:
    """Put back the state of Python's, numpy's and torch's random numbers, and of these generators, at the end."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        if (numpy := sys.modules.get("numpy")) is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        if (torch := sys.modules.get("torch")) is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            if torch.cuda.is_initialized():
                stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        for generator in generators:
            if (restore := _restorer(generator)) is not None:
                stack.callback(restore)
        yield


def _restorer(generator: object) -> Callable[[], object] | None:
    """What puts a generator of random numbers back to its state of now; `None` of anything else."""
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(generator, numpy.random.Generator):
        bits: Any = generator.bit_generator
        saved = copy.deepcopy(bits.state)
        return lambda: setattr(bits, "state", saved)
    if numpy is not None and isinstance(generator, numpy.random.RandomState):
        old: Any = generator
        legacy = old.get_state()
        return lambda: old.set_state(legacy)
    if torch is not None and isinstance(generator, torch.Generator):
        torch_generator: Any = generator
        tensor = torch_generator.get_state()
        return lambda: torch_generator.set_state(tensor)
    return None


@contextmanager
def kept_attributes(roots: Iterable[object]) -> Iterator[None]:
    """Put back the attributes of these objects, and of those that they are made of, at the end.

    A dataset that opens its file with its first sample keeps the handle, and worker processes that are forked later
    would share it: so the handle goes again. What is inside arrays, lists and dicts is not looked after.
    """
    with ExitStack() as stack:
        generators, objects = _parts(roots)
        stack.enter_context(kept_randomness(generators))
        for part in objects:
            stack.callback(_put_back, part, dict(vars(part)))
        yield


def _put_back(part: Any, attributes: dict[str, Any]) -> None:
    now = vars(part)
    if now.keys() == attributes.keys() and all(now[name] is value for name, value in attributes.items()):
        return
    now.clear()
    now.update(attributes)


def _parts(roots: Iterable[object]) -> tuple[list[Any], list[Any]]:
    """Random generators, and objects of the user's own classes, that can be reached from `roots`."""
    seen: set[int] = set()
    generators: list[Any] = []
    found: list[Any] = []
    queue: list[tuple[object, int]] = [(root, 0) for root in roots]
    while queue and len(found) < _MOST_OBJECTS:
        part, depth = queue.pop(0)
        if id(part) in seen or depth > _DEPTH:
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple) and len(part) <= 64:
            queue += [(item, depth + 1) for item in part]
        elif _restorer(part) is not None:
            generators.append(part)
        elif _enters(part):
            found.append(part)
            queue += [(value, depth + 1) for value in vars(part).values()]
    return generators, found


def _enters(part: object) -> bool:
    if isinstance(part, type) or callable(getattr(part, "__get__", None)) or not hasattr(part, "__dict__"):
        return False
    module = type(part).__module__ or ""
    # torch's own wrappers of datasets and samplers are entered, for users' datasets are inside.
    return module.startswith("torch.utils.data") or module.partition(".")[0] not in _NOT_ENTERED


@contextmanager
def kept_training(step: Callable[..., object] | None) -> Iterator[tuple[str, ...]]:
    """Put back, at the end, the models and optimizers that a step uses: those in its closure, its globals, its object.

    Gives their names. Whatever has `state_dict` and `load_state_dict`, or Keras's `get_weights` and `set_weights`.
    """
    with ExitStack() as stack:
        used = {} if step is None else _used(step)
        names = []
        for name, part in used.items():
            if (restore := _training_restorer(part)) is not None:
                stack.callback(restore)
                names.append(name)
        yield tuple(names)


def _used(step: Callable[..., object]) -> dict[str, Any]:
    """What a function refers to, by name."""
    function: Any = getattr(step, "__func__", step)
    if not hasattr(function, "__code__"):
        function = getattr(type(step).__call__, "__func__", type(step).__call__)
    code = getattr(function, "__code__", None)
    used: dict[str, Any] = {}
    if code is not None:
        globals_ = getattr(function, "__globals__", {})
        used |= {name: globals_[name] for name in code.co_names if name in globals_}
        for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
            try:
                used[name] = cell.cell_contents
            except ValueError:
                continue  # not filled yet
    owner = getattr(step, "__self__", step if not hasattr(step, "__code__") else None)
    if owner is not None:
        used |= {"self": owner, **getattr(owner, "__dict__", {})}
    return used


def _training_restorer(part: Any) -> Callable[[], None] | None:
    if isinstance(part, type):
        return None
    if callable(getattr(part, "load_state_dict", None)) and callable(getattr(part, "state_dict", None)):
        return _torch_restorer(part)
    if callable(getattr(part, "set_weights", None)) and callable(getattr(part, "get_weights", None)):
        return _keras_restorer(part)
    return None


def _torch_restorer(part: Any) -> Callable[[], None]:
    saved = copy.deepcopy(part.state_dict())
    parameters = list(part.parameters()) if callable(getattr(part, "parameters", None)) else []
    gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
    training = getattr(part, "training", None)

    def restore() -> None:
        part.load_state_dict(saved)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if training is not None:
            part.train(training)

    return restore


def _keras_restorer(model: Any) -> Callable[[], None]:
    weights = model.get_weights()
    optimizer = getattr(model, "optimizer", None)
    variables = list(getattr(optimizer, "variables", None) or ())
    values = [variable.numpy().copy() for variable in variables]

    def restore() -> None:
        model.set_weights(weights)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        # Slots that the first step made are as good as new when they are zero.
        for variable in list(getattr(optimizer, "variables", None) or ())[len(variables) :]:
            variable.assign(variable * 0)

    return restore
