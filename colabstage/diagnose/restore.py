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
from functools import partial
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
        """Copy a tuple or list of things, or one thing; `None` if the caller did not say. What cannot be put back is
        refused."""
        self._parts = tuple(parts) if isinstance(parts, tuple | list) else () if parts is None else (parts,)
        self._said = parts is not None
        self._problems: list[str] = []
        # By their ids; held, so that no other object gets one of these.
        self._seen: dict[int, object] = {}
        self._stack = ExitStack()
        for number, part in enumerate(self._parts):
            if isinstance(part, _PLAIN):
                self._refuse(f"restore[{number}]", part, "It cannot change: hand over what holds it, restore=(losses,)")
            self._save(f"restore[{number}]", part)

    def put_back(self) -> None:
        """Restore everything, in place."""
        self._stack.close()

    def note(self, runs: int, call: str) -> str:
        """Say what was restored and what was not, after so many runs of a step; empty where there is nothing to say."""
        if not runs or (self._said and not self._parts):
            return ""
        ran = f"The step ran {runs:,} times"
        if self._parts:
            names = ", ".join(dict.fromkeys(type(part).__name__ for part in self._parts))
            return " ".join(
                [f"{ran}. Restored: {names}. Anything else that it changed stays changed.", *self._problems]
            )
        return f"{ran}, without restore=: what it trained and recorded stays changed. To restore it, write {call}."

    def _refuse(self, name: str, part: object, remedy: str) -> NoReturn:
        self._stack.pop_all()
        msg = f"{name} is a {type(part).__name__}, which cannot be restored; expected {_ACCEPTED}. {remedy}."
        raise OptionError(msg)

    def _save(self, name: str, part: Any, *, known_only: bool = False) -> None:
        """Copy a part. `known_only`: leave out what cannot be put back, as among the attributes of a model."""
        if isinstance(part, (*_PLAIN, *_CODE)) or id(part) in self._seen:
            return
        self._seen[id(part)] = part
        try:
            restore = self._restorer(name, part, known_only=known_only)
        except OptionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises where its state cannot be copied
            if not known_only:
                self._refuse(name, part, f"Copying its state failed: {said_by(error)}")
            self._problems.append(f"A {type(part).__name__} in it was not restored: {said_by(error)}.")
        else:
            if restore is not None:
                self._stack.callback(restore)
            elif not known_only:
                self._refuse(name, part, "Hand over its parts instead: restore=(trainer.model, trainer.losses)")

    def _restorer(self, name: str, part: Any, *, known_only: bool) -> Callable[[], object] | None:
        """Return what puts back a part; `None` where nothing does."""
        torch: Any = sys.modules.get("torch")
        # First, because with torch behind Keras its models are modules as well.
        if _variables_of(part):
            return _variables_restorer(part)
        if torch is not None and isinstance(part, torch.nn.Module | torch.Tensor):
            is_tensor = isinstance(part, torch.Tensor)
            return _tensor_restorer(part) if is_tensor else self._module_restorer(name, part)
        if _has(part, "state_dict", "load_state_dict"):
            # An optimizer's state has no values of what it trains.
            self._save_all(name, [one for group in getattr(part, "param_groups", ()) for one in group["params"]])
            return partial(_load_state, part, _on_host(part.state_dict()))
        if isinstance(part, np.ndarray):
            self._save_all(name, part.tolist() if part.dtype == object else ())
            return partial(np.copyto, part, part.copy())
        if isinstance(part, list | deque | set | dict | bytearray | tuple):
            self._save_all(name, part.values() if isinstance(part, dict) else part, known_only=known_only)
            return partial(_refill, part, copy.copy(part))
        return _generator_restorer(part)

    def _save_all(self, name: str, items: Iterable[object], *, known_only: bool = False) -> None:
        for number, item in enumerate(items):
            self._save(f"{name}[{number}]", item, known_only=known_only)

    def _module_restorer(self, name: str, module: Any) -> Callable[[], object]:
        self._save_all(name, (*module.parameters(), *module.buffers()))
        if type(module).get_extra_state is not sys.modules["torch"].nn.Module.get_extra_state:
            try:
                self._stack.callback(module.set_extra_state, copy.deepcopy(module.get_extra_state()))
            except Exception as error:  # noqa: BLE001 - the user's own code; all else of the model is put back
                self._problems.append(f"The extra state of {type(module).__name__} was not restored: {said_by(error)}.")
        attributes = dict(vars(module))
        # Metrics and counters are plain attributes; modules inside are in one of them.
        self._save_all(name, attributes.values(), known_only=True)
        return partial(_restore_attributes, module, attributes)


def _refill(part: Any, before: Any) -> None:
    if not isinstance(part, tuple):
        part.clear()
        (getattr(part, "extend", None) or part.update)(before)


def _tensor_restorer(tensor: Any) -> Callable[[], object]:
    value = _on_host(tensor)
    gradient = _on_host(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None

    def restore() -> None:
        # In place, because others refer to this tensor.
        tensor.data.copy_(value)
        if gradient is not None and tensor.grad is not None:
            tensor.grad.copy_(gradient)
        elif tensor.is_leaf:
            tensor.grad = None if gradient is None else gradient.to(tensor.device)

    return restore


def _variables_restorer(owner: Any) -> Callable[[], object]:
    """Return what restores a variable of Keras or TensorFlow, or all of a model or an optimizer, and of the model's
    optimizer."""
    known = [(variable, np.array(variable.numpy())) for variable in _variables_of(owner)]
    optimizer = getattr(owner, "optimizer", None)
    inner = (lambda: None) if optimizer is None else _variables_restorer(optimizer)

    def restore() -> None:
        for variable, value in known:
            variable.assign(value)
        # Slots that the first step created are as good as new when zeroed.
        for variable in _variables_of(owner)[len(known) :]:
            variable.assign(variable * 0)
        inner()

    return restore


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
