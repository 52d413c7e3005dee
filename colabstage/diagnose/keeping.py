"""Leaving everything as it was found: random numbers, a dataset's attributes; what a step trains is in `training`.

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
            stack.callback(put_back, part, dict(vars(part)))
        yield


def put_back(part: Any, attributes: dict[str, Any]) -> None:
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
