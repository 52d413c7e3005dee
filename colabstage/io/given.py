"""Say in a few words what was given for an argument: a message never holds a whole table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from numbers import Number
from typing import Any

from colabstage.io.redaction import hide_secrets

_LONGEST = 80
# Of a text so much is looked at before it is cut, so that no secret is left because its end is missing.
_LOOKED_AT = 4000
# Beyond that Python refuses to write a whole number, and nobody would read it.
_MOST_BITS = 1024
_DEEPEST = 40


def show_value(value: object) -> str:
    """Write a value as Python does where that is one short line, and else what it is: `DataFrame(…)`."""
    text = show_content(value)
    if isinstance(value, str | bytes | int) or "…" not in text:
        return text
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}(…)"


def show_content(value: object, most: int = _LONGEST) -> str:
    """Write the beginning of a value as Python does, in at most `most` characters.

    The time is bounded, whatever the value is: a few hundred bytes of YAML may be a list that takes a terabyte to
    write, in which one list occurs nine times, nine levels deep.

    >>> show_content({"a": [1, "b"]})
    "{'a': [1, 'b']}"
    >>> show_content(["car"] * 1_000_000, 20)
    "['car', 'car', 'car…"
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > most + _LOOKED_AT:
            break
    text = hide_secrets(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _pieces(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield what `repr` joins, from the front; of what is neither a container nor a plain value, its type."""
    kind: Any = type(value)
    if depth > _DEEPEST:
        # A list may hold itself.
        yield "…"
    elif kind in (list, tuple, set, frozenset) and value:
        marks = {list: "[]", tuple: "()"}.get(kind, "{}")
        yield marks[0]
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(item, depth + 1)
        yield ("," if kind is tuple and len(value) == 1 else "") + marks[1]
    elif kind is dict:
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            if number:
                yield ", "
            yield from _pieces(key, depth + 1)
            yield ": "
            yield from _pieces(item, depth + 1)
        yield "}"
    elif isinstance(value, str | bytes):
        yield repr(value[:_LOOKED_AT])
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        yield f"a number of {int(value.bit_length() * 0.30103) + 1:,} digits…"
    elif isinstance(value, Number | os.PathLike | type(None)) or kind in (set, frozenset, list, tuple):
        yield repr(value)
    else:
        yield f"{kind.__name__}(…)"


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
    given: Any = value
    if isinstance(given, type):
        return otherwise
    own = None
    # A property may be anybody's code.
    with suppress(Exception):
        own = given.path
    if isinstance(own, str | os.PathLike):
        return otherwise or f"Give its path: {os.fspath(own)!r}."
    if isinstance(given, list | tuple | set | frozenset | Iterator):
        return "Give a list of paths." if several else "Give one path, and call once for each."
    if is_frame(given) or isinstance(given, Mapping | str | bytes) or not hasattr(given, "__getitem__"):
        return otherwise
    return "pack_dataset(dataset, 'data.h5') packs an object whose items are (x, y)."
