"""Shortens deadlines so that they pass within a test, and lowers what counts as many."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from colabstage.io.files import RetryPolicy
from colabstage.io.progress import SystemClock

# Names of constants in seconds, but not of rates.
_SECONDS = re.compile(r"_?[A-Z]+(?:_[A-Z]+)*(?<!_PER)_S")


def shorten_deadlines(package: str, most_s: float, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Have nothing in the modules of a package wait for longer than `most_s`. `put`: sets an attribute.

    A package where no wait is longer has no such constants any more: the test would wait, or prove nothing.
    """
    longer = [
        (module, name)
        for module, name, value in _constants(package)
        if _SECONDS.fullmatch(name) and isinstance(value, int | float) and value > most_s
    ]
    assert longer, f"no deadline of colabstage.{package} is longer than {most_s} s"
    for module, name in longer:
        put(module, name, most_s)


def lose_patience(package: str, most_s: float, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Have nothing there ask a source that fails again for longer than `most_s`."""
    patient = [(module, name, value) for module, name, value in _constants(package) if isinstance(value, RetryPolicy)]
    assert patient, f"nothing in colabstage.{package} asks again"
    for module, name, value in patient:
        put(module, name, replace(value, first_wait_s=most_s / 10, patience_s=min(most_s, value.patience_s)))


def ask_again_at_once(put: Callable[[object, str, Any], object]) -> list[float]:
    """Have every wait before another try end at once; return the seconds that were to be waited."""
    waits: list[float] = []
    put(SystemClock, "sleep", lambda _, seconds: waits.append(seconds))
    return waits


def lower(package: str, ending: str, by: int, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Divide the whole numbers there whose names end so, as in `MOST_PIXELS`, by `by`."""
    numbers = [
        (module, name, value)
        for module, name, value in _constants(package)
        if name.endswith(ending) and isinstance(value, int)
    ]
    assert numbers, f"nothing in colabstage.{package} is a number of {ending}"
    for module, name, value in numbers:
        put(module, name, value // by)


def _constants(package: str) -> list[tuple[ModuleType, str, Any]]:
    """Return the constants of a package's modules as module, name and value."""
    whole = importlib.import_module(f"colabstage.{package}")
    modules = [importlib.import_module(one.name) for one in pkgutil.iter_modules(whole.__path__, f"{whole.__name__}.")]
    return [(module, name, value) for module in modules for name, value in vars(module).items() if name.isupper()]
