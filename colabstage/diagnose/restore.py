"""Restore random numbers, a dataset's attributes, and what a step trains.

A profile runs the caller's loader and step for a while. What they draw, open and learn is restored, so that training
gives the same numbers with and without a profile before it.

A step is a function, and a model may be in its closure, its globals, its arguments' defaults, a partial, a dict, an
attribute of an object, a function that it calls, or a module of the user's. All of these are searched. Libraries are
not: their trainable objects have `state_dict` or `get_weights`.
"""

from __future__ import annotations

import copy
import dis
import functools
import random
import sys
import sysconfig
import types
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from colabstage.pack.code import codes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Found = Iterable[tuple[str, object]]

# Datasets wrap each other (a subset of a concatenation of folders), each with nested transforms.
_DEPTH = 5
_MOST_PARTS = 500
_FOREIGN = ("builtins", "torch", "numpy", "h5py", "PIL", "pandas", "keras", "tensorflow", "threading", "pathlib",
                "collections", "colabstage", "functools", "re", "types", "_thread", "_io", "io")  # fmt: skip
# Enough for any training script; a step that reaches a dataset's million objects is not searched completely.
_MOST_OBJECTS = 20_000
# Longer lists hold data.
_MOST_ITEMS = 1_000
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
# Compiled libraries, whose types have no file. Their trainable objects are recognised by methods.
_NOT_ENTERED = frozenset(
    {"builtins", "torch", "numpy", "h5py", "PIL", "pandas", "keras", "tensorflow", "jax", "colabstage"}
)
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), type(...), range, slice)
_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL"}


@contextmanager
def preserve_randomness(generators: Iterable[object] = ()) -> Iterator[None]:
    """Restore the state of Python's, numpy's and torch's random numbers, and of these generators, at the end."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        if (numpy := sys.modules.get("numpy")) is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        if (torch := sys.modules.get("torch")) is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            if torch.cuda.is_initialized():
                stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        for generator in generators:
            if (restore := _generator_restorer(generator)) is not None:
                stack.callback(restore)
        yield


def _generator_restorer(generator: object) -> Callable[[], object] | None:
    """Return a function that restores a random generator's present state; `None` for anything else."""
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
def preserve_attributes(roots: Iterable[object]) -> Iterator[None]:
    """Restore the attributes of these objects, and of the objects in them, at the end.

    A dataset that opens its file at the first sample keeps the handle, which worker processes forked later would share,
    so it is removed again. The contents of arrays, lists and dicts are not restored.
    """
    with ExitStack() as stack:
        generators, objects = _find_state(roots)
        stack.enter_context(preserve_randomness(generators))
        for part in objects:
            stack.callback(restore_attributes, part, dict(vars(part)))
        yield


def restore_attributes(part: Any, attributes: dict[str, Any]) -> None:
    """Restore an object's attributes."""
    now = vars(part)
    if now.keys() == attributes.keys() and all(now[name] is value for name, value in attributes.items()):
        return
    now.clear()
    now.update(attributes)


def _find_state(roots: Iterable[object]) -> tuple[list[Any], list[Any]]:
    """Find random generators and objects of the user's own classes that can be reached from `roots`."""
    seen: set[int] = set()
    generators: list[Any] = []
    found: list[Any] = []
    queue: list[tuple[object, int]] = [(root, 0) for root in roots]
    while queue and len(found) < _MOST_PARTS:
        part, depth = queue.pop(0)
        if id(part) in seen or depth > _DEPTH:
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple) and len(part) <= 64:
            queue += [(item, depth + 1) for item in part]
        elif _generator_restorer(part) is not None:
            generators.append(part)
        elif _enters(part):
            found.append(part)
            queue += [(value, depth + 1) for value in vars(part).values()]
    return generators, found


def _enters(part: object) -> bool:
    if isinstance(part, type) or callable(getattr(part, "__get__", None)) or not hasattr(part, "__dict__"):
        return False
    module = type(part).__module__ or ""
    # torch's wrappers of datasets and samplers are searched, because users' datasets are inside.
    return module.startswith("torch.utils.data") or module.partition(".")[0] not in _FOREIGN


# The note for a step in which nothing was found.
NOTHING_FOUND = (
    "Nothing that trains was found in the step, so nothing was put back: a model that it trains has learnt from the "
    "batches that were measured. Name the model in the step, or measure with a copy of it."
)


@contextmanager
def preserve_training(step: Callable[..., object] | None) -> Iterator[str]:
    """Restore, at the end, what a step trains: models, optimizers, parameters, and the attributes, entries and
    variables that hold them.

    Yields a sentence that says what was found; empty without a step.
    """
    with ExitStack() as stack:
        if step is None:
            yield ""
            return
        walk = _ReachedThings(stack)
        walk.go(step)
        if walk.names:
            yield f"What the step trained is as it was before: {', '.join(walk.names)}."
            return
        yield NOTHING_FOUND


class _ReachedThings:
    """Everything that a function reaches, each object once; `names` of trainable objects, as the step would write
    them."""

    def __init__(self, stack: ExitStack) -> None:
        self.names: list[str] = []
        self._stack = stack
        # With a reference to the object, so that its id is not reused meanwhile.
        self._seen: dict[int, object] = {}
        self._queue: deque[tuple[str, object]] = deque()

    def go(self, step: object) -> None:
        """Search everything, and register how to restore it."""
        self._queue.append(("step", step))
        while self._queue and len(self._seen) < _MOST_OBJECTS:
            name, part = self._queue.popleft()
            if isinstance(part, _PLAIN) or id(part) in self._seen:
                continue
            self._seen[id(part)] = part
            # Properties of unknown objects may raise anything.
            with suppress(Exception):
                self._queue.extend(self._visit(name, part))

    def _visit(self, name: str, part: Any) -> Found:
        found: Found = ()
        if not isinstance(part, type) and (restore := _trained_restorer(part)) is not None:
            self._stack.callback(restore)
            self.names.append(name)
            found = _behind(name, part)
        elif isinstance(part, functools.partial):
            found = [(name, part.func), *_enumerated(name, part.args), *part.keywords.items()]
        elif isinstance(part, types.MethodType):
            found = [(name, part.__func__), ("self" if name == "step" else name, part.__self__)]
        elif isinstance(part, types.FunctionType):
            found = self._function(part)
        elif isinstance(part, dict | list | tuple | set | frozenset | deque):
            found = self._container(name, part)
        elif isinstance(part, type):
            found = [] if _is_library(part) else [(f"{name}.{key}", value) for key, value in vars(part).items()]
        elif not isinstance(part, types.ModuleType):  # what a function uses of a module is searched with the function
            found = self._object(name, part)
        return found

    def _container(self, name: str, part: Any) -> Found:
        if isinstance(part, dict):
            self._stack.callback(_refill, part, dict(part))
            return [(f"{name}[{key!r}]", value) for key, value in part.items()] if len(part) <= _MOST_ITEMS else ()
        if isinstance(part, list):
            # Additions stay: they are what a step records.
            self._stack.callback(part.__setitem__, slice(len(part)), list(part))
        return _enumerated(name, part) if len(part) <= _MOST_ITEMS else ()

    def _function(self, function: types.FunctionType) -> Found:
        found: list[tuple[str, object]] = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            self._stack.callback(setattr, cell, "cell_contents", value)
            found.append((name, value))
        found += [(function.__name__, value) for value in function.__defaults__ or ()]
        found += list((function.__kwdefaults__ or {}).items())
        found.append((function.__name__, getattr(function, "__wrapped__", None)))
        if _is_library_file(function.__code__.co_filename):
            return found  # a wrapper's closure leads to the wrapped function, its globals lead nowhere
        known = function.__globals__
        used: set[str] = set()
        for code in codes_in(function.__code__):
            # Names of globals and attributes; only globals are found below.
            used.update(code.co_names)
            for instruction in dis.get_instructions(code):
                if instruction.opname in _STORES and instruction.argval in known:
                    self._stack.callback(known.__setitem__, instruction.argval, known[instruction.argval])
        for name in sorted(used & known.keys()):
            value = known[name]
            found.append((name, value))
            if isinstance(value, types.ModuleType) and not _is_library_file(getattr(value, "__file__", None) or ""):
                found += [(f"{name}.{inner}", vars(value)[inner]) for inner in sorted(used & vars(value).keys())]
        return found

    def _object(self, name: str, part: Any) -> Found:
        inner = [getattr(part, wrapped, None) for wrapped in ("__wrapped__", "python_function", "fget")]
        found: list[tuple[str, object]] = [(name, wrapped) for wrapped in inner]
        is_namespace = isinstance(part, types.SimpleNamespace)
        if (_is_library(type(part)) and not is_namespace) or type(part).__module__.partition(".")[0] in _NOT_ENTERED:
            return found
        attributes = getattr(part, "__dict__", None)
        if isinstance(attributes, dict):
            self._stack.callback(restore_attributes, part, dict(attributes))
            found += [(f"{name}.{key}", value) for key, value in attributes.items()]
        for owner in type(part).__mro__:
            slots = getattr(owner, "__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                found.append((f"{name}.{key}", getattr(part, key, None)))
            if not _is_library(owner):
                found.append((name, owner))
        return found


def _enumerated(name: str, parts: Iterable[object]) -> Found:
    """Return the parts of a sequence, by name."""
    return [(f"{name}[{number}]", part) for number, part in enumerate(parts)]


def _is_library(kind: type) -> bool:
    """Tell whether a class is from Python or an installed package, not the user's own."""
    root = kind.__module__.partition(".")[0]
    if root in _NOT_ENTERED:
        return True
    return _is_library_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _is_library_file(path: str) -> bool:
    return path.startswith("<frozen") or any(path.startswith(folder) for folder in _LIBRARIES)


def _refill(entries: dict[Any, Any], before: dict[Any, Any]) -> None:
    if entries.keys() != before.keys() or any(entries[key] is not value for key, value in before.items()):
        entries.clear()
        entries.update(before)


def _behind(name: str, part: Any) -> Found:
    """Return what a trainable object holds beyond its own state."""
    groups = getattr(part, "param_groups", None)
    if isinstance(groups, list):
        # An optimizer's state has no values of its parameters, and their model may be out of reach.
        return _enumerated(name, [value for group in groups for value in group.get("params", ())])
    own = getattr(part, "__dict__", {})
    public = [(f"{name}.{key}", value) for key, value in own.items() if not key.startswith("_")]
    return public if not _is_library(type(part)) else ()


def _trained_restorer(part: Any) -> Callable[[], None] | None:
    if callable(getattr(part, "load_state_dict", None)) and callable(getattr(part, "state_dict", None)):
        return _torch_restorer(part)
    if callable(getattr(part, "set_weights", None)) and callable(getattr(part, "get_weights", None)):
        return _keras_restorer(part)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.Tensor):
        return _tensor_restorer(part) if part.requires_grad and part.is_leaf else None
    if callable(getattr(part, "assign", None)) and callable(getattr(part, "numpy", None)):
        value = part.numpy().copy()
        return lambda: part.assign(value)
    return None


def _tensor_restorer(tensor: Any) -> Callable[[], None]:
    value, gradient = tensor.detach().clone(), None if tensor.grad is None else tensor.grad.clone()

    def restore() -> None:
        tensor.data.copy_(value)
        tensor.grad = gradient

    return restore


def _torch_restorer(part: Any) -> Callable[[], None]:
    # A state refers to the tensors themselves, which the step would change.
    saved = copy.deepcopy(part.state_dict())
    parameters = list(part.parameters()) if callable(getattr(part, "parameters", None)) else []
    gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
    # Including those that a state omits.
    buffers = list(part.buffers()) if callable(getattr(part, "buffers", None)) else []
    values = [buffer.detach().clone() for buffer in buffers]
    training = getattr(part, "training", None)

    def restore() -> None:
        part.load_state_dict(saved)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.data.copy_(value)
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
        # Slots that the first step created are as good as new when zeroed.
        for variable in list(getattr(optimizer, "variables", None) or ())[len(variables) :]:
            variable.assign(variable * 0)

    return restore
