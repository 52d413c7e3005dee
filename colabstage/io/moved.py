"""Names that are public and have moved: where they were they work for one more release, with a warning.

A module of its own, because each old place is a module that must load nothing until somebody asks it for a name.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def moved(old: str, new: str, names: frozenset[str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a module whose public names have moved.

    Args:
        old: the module's own name.
        new: the module in which the names are now.
        names: the names.
    """

    def look_up(name: str) -> object:
        if name not in names:
            msg = f"module {old!r} has no attribute {name!r}"
            raise AttributeError(msg, name=name)
        # The caller is the line that imports: below it are this function and Python's own import.
        warnings.warn(
            f"{old}.{name} is {new}.{name} now; the old name goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(new), name)

    return look_up
