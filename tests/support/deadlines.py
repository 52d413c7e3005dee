"""Deadlines that pass within a test."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What modules call a number of seconds; a rate is none.
_SECONDS = re.compile(r"_?[A-Z]+(?:_[A-Z]+)*(?<!_PER)_S")


def shorten_deadlines(package: str, most_s: float, put: Callable[[object, str, float], object] = setattr) -> None:
    """Have nothing in the loaded modules of a package wait for longer than `most_s`. `put`: sets an attribute."""
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith(f"colabstage.{package}.")]
    found = [
        (module, name)
        for module in loaded
        for name, value in vars(module).items()
        if _SECONDS.fullmatch(name) and isinstance(value, int | float) and value > most_s
    ]
    assert found
    for module, name in found:
        put(module, name, most_s)
