"""Notice that the caller's code draws random numbers whose results are stored."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import types
from collections import deque
from typing import Any

from colabstage.io.callers_code import codes_in, is_library

# What code refers to may be all of a program; a pipeline of transforms is a few hundred objects.
_MOST_OBJECTS = 10_000
# Longer lists and dicts are samples.
_LONGEST = 1_000


class Chance:
    """The random generators that code may draw from: the default ones, and its own."""

    def __init__(self, code: object) -> None:
        self._known = [(one, _state(one)) for one in (*_default_generators(), *_generators_in(code))]

    def notes(self, what: str, *, differs: bool = False) -> list[str]:
        """Return a note if the code, called `what`, has drawn from any of them meanwhile, or `differs`: if another call
        returned something else for the same sample."""
        drew = any(_state(one) != before for one, before in self._known)
        how = "drew random numbers" if drew else "returned something else for the same sample when called again"
        # Some pipelines always draw, even if nothing in them is random.
        remedy = (
            "If that is augmentation, each epoch repeats what is stored: give it to make_loader, as batch_transform="
        )
        return [f"{what} {how}. {remedy}."] if drew or differs else []


def _default_generators() -> list[object]:
    found: list[object] = [random.random.__self__]  # type: ignore[attr-defined]  # of the module's own object
    if numpy := sys.modules.get("numpy"):
        found.append(numpy.random.mtrand._rand)
    # While another thread imports torch, it is there without.
    if (generator := getattr(sys.modules.get("torch"), "default_generator", None)) is not None:
        found.append(generator)
    return found


def _state(generator: Any) -> bytes:
    get = getattr(generator, "getstate", None) or getattr(generator, "get_state", None)
    return pickle.dumps(generator if get is None else get())


def _generators_in(code: object) -> list[object]:
    """Return the random generators that functions and objects refer to, nearest first."""
    found, seen, todo = [], set[int](), deque([code])
    while todo and len(seen) < _MOST_OBJECTS:
        one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _is_generator(one):
            found.append(one)
        elif len(inner := _referred_to(one)) <= _LONGEST:
            todo.extend(inner)
    return found


def _is_generator(one: object) -> bool:
    # Those of the operating system have no state.
    if isinstance(one, random.Random):
        return not isinstance(one, random.SystemRandom)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (*((numpy.random.Generator, numpy.random.RandomState) if numpy else ()), getattr(torch, "Generator", None))
    return isinstance(one, tuple(kind for kind in kinds if kind is not None))


def _referred_to(one: object) -> list[Any]:
    """Return what an object refers to, or what a function or class of the caller's uses. Nothing for modules, and
    functions and classes of libraries, which would lead to all of these."""
    if isinstance(one, types.FunctionType):
        used = {name for code in codes_in(one.__code__) for name in code.co_names} & one.__globals__.keys()
        inner = [one.__closure__, one.__defaults__, one.__kwdefaults__, *map(one.__globals__.get, used)]
        return [] if is_library(one.__module__ or "", one.__code__.co_filename) else inner
    if isinstance(one, type):
        file = getattr(sys.modules.get(one.__module__), "__file__", None)
        return [] if is_library(one.__module__, file or "") else [*one.__bases__, *vars(one).values()]
    return [] if isinstance(one, types.ModuleType) else gc.get_referents(one)
