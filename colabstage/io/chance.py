"""Notice that the caller's code draws random numbers whose results are stored."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import types
from collections import deque
from contextlib import suppress
from typing import Any

from colabstage.io.callers_code import codes_in, is_installed

# Code may refer to all of a program; a pipeline of transforms is a few hundred objects. Longer lists are samples.
_MOST_OBJECTS, _LONGEST = 10_000, 1_000


class Chance:
    """The random generators that code may draw from: the default ones, and its own."""

    def __init__(self, code: object) -> None:
        self._known = [(one, _state(one)) for one in _generators_of(code)]

    def notes(self, what: str, *, differs: bool = False) -> list[str]:
        """Return a note if the code, called `what`, has drawn from any of them meanwhile, or `differs`: if another call
        returned something else for the same sample."""
        drew = any(_state(one) != before for one, before in self._known)
        how = "drew random numbers" if drew else "returned something else for the same sample when called again"
        # Some pipelines always draw, even if nothing in them is random.
        note = (
            f"{what} {how}. If that is augmentation, each epoch repeats what is stored: give it to make_loader, as "
            "batch_transform=."
        )
        return [note] if drew or differs else []


def _state(generator: Any) -> bytes:
    get = getattr(generator, "getstate", None) or getattr(generator, "get_state", None)
    # Those of the operating system have none.
    with suppress(Exception):
        state = generator if get is None else get()
        # The pickle of a tensor changes with its address.
        return pickle.dumps(state.numpy() if hasattr(state, "numpy") else state)
    return b""


def _generators_of(code: object) -> list[Any]:
    """Return the default generators, and those that functions and objects refer to, nearest first."""
    import numpy as np

    torch = sys.modules.get("torch")
    # While another thread imports torch, it is there without.
    default = getattr(torch, "default_generator", None)
    kinds = (random.Random, np.random.Generator, np.random.RandomState, getattr(torch, "Generator", random.Random))
    own: tuple[Any, ...] = (random.getstate, np.random.get_state)
    found = [*(method.__self__ for method in own), *([] if default is None else [default])]
    seen, todo = set[int](), deque([code])
    while todo and len(seen) < _MOST_OBJECTS:
        one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # Not isinstance, which asks objects that load themselves what they are.
        if issubclass(type(one), kinds):
            found.append(one)
        elif len(inner := _referred_to(one)) <= _LONGEST:
            todo.extend(inner)
    return found


def _referred_to(one: Any) -> list[Any]:
    """Return what an object refers to, or what a function or class of the caller's uses. Nothing for modules, and
    functions and classes of libraries, which would lead to all of these."""
    kind = type(one)
    if issubclass(kind, types.ModuleType):
        return []
    if kind is types.FunctionType:
        used = {name for code in codes_in(one.__code__) for name in code.co_names} & one.__globals__.keys()
        inner = [one.__closure__, one.__defaults__, one.__kwdefaults__, *map(one.__globals__.get, used)]
        return [] if is_installed(one.__module__ or "", one.__code__.co_filename) else inner
    if issubclass(kind, type):
        file = getattr(sys.modules.get(one.__module__), "__file__", None)
        return [] if is_installed(one.__module__, file or "") else [*one.__bases__, *vars(one).values()]
    return gc.get_referents(one)
