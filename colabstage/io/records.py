"""colabstage's own small JSON files, checked when read.

A record is a frozen dataclass. The types of its fields are its schema. JSON that does not fit is not a record, because
anybody may have written it: readers then act as if there were none, which is always safe, only slower.
"""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

# Sizes and times of files fit; anything larger is not ours.
_BEYOND = 1 << 63


def read_fields(kind: type[Record], raw: Any) -> Record | None:
    """Return the dataclass `kind` from JSON values; `None` where one is missing, unknown, mistyped or too large."""
    try:
        return _instance(kind, raw)
    except (ValueError, TypeError, RecursionError):
        return None


_types = functools.cache(get_type_hints)


def _instance(kind: type[Record], raw: Any) -> Record:
    assert is_dataclass(kind)
    hints = _types(kind)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    # An unknown key is from another version, which may give the others another meaning.
    if not isinstance(raw, dict) or not needed <= raw.keys() <= hints.keys():
        raise TypeError
    return kind(**{name: _value(hints[name], value) for name, value in raw.items()})


def _value(hint: Any, raw: Any) -> Any:
    """Return `raw` as a value of the type `hint`, JSON's lists as tuples; raises `TypeError` where it does not fit."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in inner:
            with contextlib.suppress(ValueError, TypeError):
                return _value(one, raw)
    elif origin is tuple and isinstance(raw, list):
        each = inner[:1] * len(raw) if inner[-1:] == (Ellipsis,) else inner
        return tuple(_value(one, part) for one, part in zip(each, raw, strict=True))
    elif origin is dict and isinstance(raw, dict):
        return {_value(inner[0], name): _value(inner[1], value) for name, value in raw.items()}
    elif isinstance(hint, type) and is_dataclass(hint):
        return _instance(hint, raw)
    elif hint is int:
        # `True` is an int to Python, and JSON's numbers have no end.
        if type(raw) is int and abs(raw) < _BEYOND:
            return raw
    elif (
        hint is Any
        or (origin is Literal and any(raw == one and type(raw) is type(one) for one in inner))
        or (isinstance(hint, type) and type(raw) is hint)
    ):
        return raw
    raise TypeError
