"""Our own small JSON files, read as what anybody may have written there: checked, and nothing half of it believed.

A record is a frozen dataclass. Its fields' types are its schema, and what does not fit is no record: every reader
then does what it does where there is none, which is always safe, only slower.
"""

from __future__ import annotations

import functools
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

# Sizes and times of files fit; what does not is nobody's.
_BEYOND = 1 << 63


def read_fields(kind: type[Record], raw: Any) -> Record | None:
    """The dataclass `kind` from JSON values; `None` where one is missing, unknown, of another type or out of range."""
    try:
        return _instance(kind, raw)
    except (_UnfitError, ValueError, TypeError, RecursionError):
        return None


class _UnfitError(Exception):
    """A value is not of its field's type."""


@functools.cache
def _types(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _instance(kind: type[Record], raw: Any) -> Record:
    assert is_dataclass(kind)
    hints = _types(kind)
    if not isinstance(raw, dict) or not hints.keys() >= raw.keys():
        raise _UnfitError
    values = {name: _value(hints[name], value) for name, value in raw.items()}
    needed = (one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING)
    if not values.keys() >= set(needed):
        raise _UnfitError
    return kind(**values)


def _value(hint: Any, raw: Any) -> Any:
    """`raw` as a value of the type `hint`, JSON's lists as tuples."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(inner, raw)
    if origin is Literal:
        fits = raw in inner and type(raw) in {type(one) for one in inner}
    elif origin is tuple and isinstance(raw, list):
        if inner[-1:] == (Ellipsis,):
            return tuple(_value(inner[0], part) for part in raw)
        return tuple(_value(one, part) for one, part in zip(inner, raw, strict=True))
    elif origin is dict and isinstance(raw, dict):
        return {_value(inner[0], name): _value(inner[1], value) for name, value in raw.items()}
    elif isinstance(hint, type) and is_dataclass(hint):
        return _instance(hint, raw)
    elif hint is int:
        fits = type(raw) is int and abs(raw) < _BEYOND
    else:
        fits = hint is Any or (isinstance(hint, type) and type(raw) is hint)
    if not fits:
        raise _UnfitError
    return raw


def _one_of(hints: tuple[Any, ...], raw: Any) -> Any:
    for hint in hints:
        try:
            return _value(hint, raw)
        except (_UnfitError, ValueError):
            continue
    raise _UnfitError
