"""Say in a few words what was given for an argument: a message never holds a whole table."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

from colabstage.io.redaction import hide_secrets

_LONGEST = 80


class _Short(reprlib.Repr):
    """Write values as Python does, in bounded time: a few hundred bytes of YAML may hold lists of a terabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 12
        # Text is cut only after it was searched for secrets, so that none is left because its end is missing.
        self.maxstring = self.maxlong = self.maxother = 4000

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, bytes):
            return repr(x[: self.maxother])
        # Anybody else's `repr` may print a page, or fail.
        return repr(x) if isinstance(x, Number | os.PathLike | type(None)) else f"{type(x).__name__}(…)"


_SHORT = _Short()


def show_value(value: object) -> str:
    """Write a value as Python does where that is one short line, and else what it is: `DataFrame(…)`."""
    text = show_content(value)
    if isinstance(value, str | bytes | int) or not ("…" in text or "..." in text):
        return text
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}(…)"


def show_content(value: object, most: int = _LONGEST) -> str:
    """Write the beginning of a value as Python does, in at most `most` characters.

    >>> show_content({"a": [1, "b"]})
    "{'a': [1, 'b']}"
    >>> show_content(["car"] * 1_000_000, 20)
    "['car', 'car', 'car…"
    """
    try:
        text = hide_secrets(_SHORT.repr(value))
    except ValueError:  # a whole number of more digits than Python writes
        text = f"{type(value).__name__}(…)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def is_frame(value: object) -> bool:
    """Tell whether a value is a table in memory, as of pandas or polars."""
    return hasattr(value, "columns") and (hasattr(value, "to_csv") or hasattr(value, "write_csv"))


def instead_of(value: object, *, several: bool = False, otherwise: str = "") -> str:
    """Return what to write where a path was wanted, in a sentence.

    Args:
        value: what was given.
        several: whether a list of paths is taken as well.
        otherwise: the sentence where nothing better is known.
    """
    if isinstance(value, list | tuple | set | frozenset | Iterator):
        return "Give a list of paths." if several else "Give one path, and call once for each."
    if is_frame(value):
        save = (
            "to_csv('photos/labels.csv', index=False)" if hasattr(value, "to_csv") else "write_csv('photos/labels.csv')"
        )
        return f"Save it beside the files that it lists, frame.{save}, and give their folder."
    if hasattr(value, "__array__"):
        return (
            "Save arrays first, np.savez('data.npz', x_train=x, y_train=y), and give that file; of paths give a list."
        )
    if isinstance(value, Mapping | str | bytes | type) or not hasattr(value, "__getitem__"):
        return otherwise
    return "pack_dataset(dataset, 'data.h5') packs an object whose items are (x, y)."
