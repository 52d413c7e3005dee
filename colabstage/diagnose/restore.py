"""Put back what measuring changes: random numbers, a dataset's attributes, and what the caller hands over.

A measured step trains, draws and records. What it changes cannot be found by looking at it, so the caller hands it
over: `restore=(model, optimizer, losses)`. Everything in there is copied before the first step and put back in place at
the end. Copies are in the computer's memory, also those of a model on a GPU.
"""

from __future__ import annotations

import copy
import random
import sys
import types
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from colabstage.errors import OptionError, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# A dataset may wrap others, each with transforms inside transforms.
_DEPTH = 5
_MOST_PARTS = 500
# Their objects are not the user's own; torch's wrappers of datasets and samplers are entered, because these are inside.
_FOREIGN = frozenset(
    {"builtins", "torch", "numpy", "h5py", "PIL", "pandas", "keras", "tensorflow", "threading", "pathlib"}
    | {"collections", "colabstage", "functools", "re", "types", "_thread", "_io", "io"}
)
# Nothing in them can change.
_PLAIN = (str, bytes, int, float, complex, type(None), type(...), range, slice, np.generic, frozenset)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_ACCEPTED = "a model, an optimizer, anything with state_dict(), or a list, dict, set, array, tensor or generator"


@contextmanager
def preserve_randomness(generators: Iterable[object] = ()) -> Iterator[None]:
    """Restore the state of Python's, numpy's and torch's random numbers, and of these generators, at the end."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 - what users' transforms draw from
        if (torch := sys.modules.get("torch")) is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            if torch.cuda.is_initialized():
                stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        for generator in generators:
            stack.callback(_generator_restorer(generator) or (lambda: None))
        yield


def _generator_restorer(part: Any) -> Callable[[], object] | None:
    """Return a function that restores a random generator's present state; `None` for anything else."""
    torch: Any = sys.modules.get("torch")
    if isinstance(part, random.Random):
        state = part.getstate()
        return lambda: part.setstate(state)
    if isinstance(part, np.random.Generator):
        bits: Any = part.bit_generator
        saved = copy.deepcopy(bits.state)
        return lambda: setattr(bits, "state", saved)
    if isinstance(part, np.random.RandomState):
        legacy = part.get_state()
        return lambda: part.set_state(legacy)
    if torch is not None and isinstance(part, torch.Generator):
        tensor = part.get_state()
        return lambda: part.set_state(tensor)
    return None


@contextmanager
def preserve_attributes(roots: Iterable[object]) -> Iterator[None]:
    """Restore the attributes of these objects, and of the objects of the user's own classes in them, at the end.

    A dataset that opens its file at the first sample keeps the handle, which worker processes that are forked later
    would share, so it is removed again. The contents of arrays, lists and dicts are not restored.
    """
    with ExitStack() as stack:
        seen: set[int] = set()
        generators: list[object] = []
        queue: deque[tuple[Any, int]] = deque((root, 0) for root in roots)
        while queue and len(seen) < _MOST_PARTS:
            part, depth = queue.popleft()
            if id(part) in seen or depth > _DEPTH or isinstance(part, (*_PLAIN, *_CODE)):
                continue
            seen.add(id(part))
            inner: Iterable[object] = ()
            if isinstance(part, list | tuple):
                inner = part if len(part) <= 64 else ()
            elif _generator_restorer(part) is not None:
                generators.append(part)
            elif _is_users(part):
                stack.callback(_restore_attributes, part, dict(vars(part)))
                inner = vars(part).values()
            queue += [(value, depth + 1) for value in inner]
        stack.enter_context(preserve_randomness(generators))
        yield


def _is_users(part: object) -> bool:
    module = type(part).__module__ or ""
    known = module.partition(".")[0] in _FOREIGN and not module.startswith("torch.utils.data")
    return hasattr(part, "__dict__") and not known


def _restore_attributes(part: Any, attributes: dict[str, Any]) -> None:
    now = vars(part)
    if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
        now.clear()
        now.update(attributes)


class Restored:
    """What was handed over: copied when it is made, put back by `put_back`."""

    def __init__(self, parts: object) -> None:
        """Copy a tuple or list of things, or one thing; `None` if the caller did not say.

        Raises:
            OptionError: something in it cannot be copied and put back.
        """
        self.parts = tuple(parts) if isinstance(parts, tuple | list) else () if parts is None else (parts,)
        self.said = parts is not None
        self.problems: list[str] = []
        self._seen: dict[int, object] = {}
        self._stack = ExitStack()
        for number, part in enumerate(self.parts):
            if isinstance(part, _PLAIN):
                self._refuse(f"restore[{number}]", part, "It cannot change: hand over what holds it, restore=(losses,)")
            self._save(f"restore[{number}]", part)

    def put_back(self) -> None:
        """Restore everything, in place."""
        self._stack.close()

    def holds(self, part: object) -> bool:
        """Return whether this very object was handed over."""
        return id(part) in self._seen

    def note(self, runs: int, trained: Iterable[object], call: str) -> str:
        """Say what was restored and what was not, after so many runs of a step that was seen to use these optimizers;
        empty where there is nothing to say."""
        if not runs:
            return ""
        missed = sorted({type(one).__name__ for one in trained if not self.holds(one)})
        learnt = f"; {' and '.join(missed)} and what it trains have learnt from them" if missed else ""
        if self.parts:
            names = ", ".join(dict.fromkeys(type(part).__name__ for part in self.parts))
            rest = learnt or ". Whatever else it changes keeps these runs"
            return " ".join([f"The step ran {runs:,} times. Put back: {names}{rest}.", *self.problems])
        if self.said and not missed:
            return ""
        return (
            f"The step ran {runs:,} times, and nothing was handed over to be put back{learnt}: what it trains and what "
            f"it records keep these runs. To put it back write {call}."
        )

    def _refuse(self, name: str, part: object, remedy: str) -> NoReturn:
        self._stack.pop_all()
        msg = f"{name} is a {type(part).__name__}, which cannot be put back; expected {_ACCEPTED}. {remedy}."
        raise OptionError(msg)

    def _save(self, name: str, part: Any, *, known_only: bool = False) -> None:
        if isinstance(part, (*_PLAIN, *_CODE)) or id(part) in self._seen:
            return
        self._seen[id(part)] = part
        torch: Any = sys.modules.get("torch")
        try:
            # First, because with torch behind Keras its models are modules as well.
            if _variables_of(part):
                self._variables(part)
            elif torch is not None and isinstance(part, torch.nn.Module):
                self._module(name, part)
            elif torch is not None and isinstance(part, torch.Tensor):
                self._tensor(part)
            elif _has(part, "state_dict", "load_state_dict"):
                # An optimizer's state has no values of what it trains.
                self._items(name, [one for group in getattr(part, "param_groups", ()) for one in group["params"]])
                self._stack.callback(_load_state, part, _on_host(part.state_dict()))
            elif isinstance(part, np.ndarray):
                self._stack.callback(np.copyto, part, part.copy())
                self._items(name, part.tolist() if part.dtype == object else ())
            elif isinstance(part, list | deque | set | dict | bytearray | tuple):
                self._container(name, part, known_only=known_only)
            elif (restore := _generator_restorer(part)) is not None:
                self._stack.callback(restore)
            elif not known_only:
                self._refuse(name, part, "Hand over its parts instead: restore=(trainer.model, trainer.losses)")
        except OptionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises where its state cannot be copied
            if not known_only:
                self._refuse(name, part, f"Copying its state failed: {said_by(error)}")
            self.problems.append(f"A {type(part).__name__} in it was not put back: {said_by(error)}.")

    def _container(self, name: str, part: Any, *, known_only: bool) -> None:
        if not isinstance(part, tuple):
            before, fill = copy.copy(part), getattr(part, "extend", None) or part.update

            def refill() -> None:
                part.clear()
                fill(before)

            self._stack.callback(refill)
        self._items(name, part.values() if isinstance(part, dict) else part, known_only=known_only)

    def _items(self, name: str, items: Iterable[object], *, known_only: bool = False) -> None:
        for number, item in enumerate(items):
            self._save(f"{name}[{number}]", item, known_only=known_only)

    def _module(self, name: str, module: Any) -> None:
        self._items(name, (*module.parameters(), *module.buffers()))
        # Metrics and counters are plain attributes; modules inside are in one of them.
        self._stack.callback(_restore_attributes, module, dict(vars(module)))
        self._items(name, vars(module).values(), known_only=True)
        if type(module).get_extra_state is not sys.modules["torch"].nn.Module.get_extra_state:
            try:
                self._stack.callback(module.set_extra_state, copy.deepcopy(module.get_extra_state()))
            except Exception as error:  # noqa: BLE001 - the user's own code; all else of the model is put back
                self.problems.append(f"The extra state of {type(module).__name__} was not put back: {said_by(error)}.")

    def _tensor(self, tensor: Any) -> None:
        value = _on_host(tensor)
        gradient = _on_host(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None

        def restore() -> None:
            # In place, because others refer to this tensor.
            tensor.data.copy_(value)
            if gradient is not None and tensor.grad is not None:
                tensor.grad.copy_(gradient)
            elif tensor.is_leaf:
                tensor.grad = None if gradient is None else gradient.to(tensor.device)

        self._stack.callback(restore)

    def _variables(self, owner: Any) -> None:
        """Save a variable of Keras or TensorFlow, or all of a model or an optimizer, and of the model's optimizer."""
        known = [(variable, np.array(variable.numpy())) for variable in _variables_of(owner)]

        def restore() -> None:
            for variable, value in known:
                variable.assign(value)
            # Slots that the first step created are as good as new when zeroed.
            for variable in _variables_of(owner)[len(known) :]:
                variable.assign(variable * 0)

        self._stack.callback(restore)
        if (optimizer := getattr(owner, "optimizer", None)) is not None and id(optimizer) not in self._seen:
            self._seen[id(optimizer)] = optimizer
            self._variables(optimizer)


def _variables_of(part: Any) -> list[Any]:
    if _has(part, "assign", "numpy"):
        return [part]
    found = getattr(part, "variables", None)
    variables = list(found) if isinstance(found, list | tuple) else []
    return variables if all(_has(one, "assign", "numpy") for one in variables) else []


def _has(part: object, *names: str) -> bool:
    return all(callable(getattr(part, name, None)) for name in names)


def _load_state(part: Any, state: dict[str, Any]) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.optim.Optimizer):
        # Or its moments would be twice on the GPU for a moment.
        part.state.clear()
    part.load_state_dict(state)


def _on_host(value: Any) -> Any:
    """Copy a state, with tensors in the computer's memory: a second copy may not fit on the GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    return [_on_host(item) for item in value] if type(value) is list else copy.deepcopy(value)


@contextmanager
def watch_optimizers() -> Iterator[list[object]]:
    """Collect the torch optimizers that take a step meanwhile."""
    used: list[object] = []
    if "torch" not in sys.modules:
        yield used
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda optimizer, *_: used.append(optimizer))
    try:
        yield used
    finally:
        handle.remove()
