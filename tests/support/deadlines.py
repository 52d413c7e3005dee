"""Shortens deadlines so that they pass within a test."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Names of constants in seconds, but not of rates.
_SECONDS = re.compile(r"_?[A-Z]+(?:_[A-Z]+)*(?<!_PER)_S")


def shorten_deadlines(package: str, most_s: float, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Let nothing in a package's modules wait longer than `most_s`. `put`: sets an attribute."""
    for module, name, value in _constants(package):
        if _SECONDS.fullmatch(name) and isinstance(value, int | float) and value > most_s:
            put(module, name, most_s)


def lose_patience(package: str, most_s: float, put: Callable[[object, str, Any], object] = setattr) -> None:
    """Let nothing in a package's modules retry a failing source for longer than `most_s`."""
    for module, name, value in _constants(package):
        if is_dataclass(value) and hasattr(value, "patience_s") and not isinstance(value, type):
            put(module, name, replace(value, first_wait_s=most_s / 10, patience_s=min(most_s, value.patience_s)))


def _constants(package: str) -> list[tuple[ModuleType, str, Any]]:
    """Return the constants of a package's modules as module, name and value."""
    whole = importlib.import_module(f"colabstage.{package}")
    modules = [importlib.import_module(one.name) for one in pkgutil.iter_modules(whole.__path__, f"{whole.__name__}.")]
    return [(module, name, value) for module in modules for name, value in vars(module).items() if name.isupper()]
