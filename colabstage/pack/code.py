"""Telling a user's functions apart by what they do: their code, their defaults and what they hold.

A pack that was begun with one version of a function must not go on with another.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def describe_callable(function: Callable[..., Any]) -> str:
    """A name and 16 hexadecimal digits: other digits whenever the function's own code or what it holds is other.

    What it calls elsewhere is not looked at. What it holds counts by `repr`; where that shows an address in memory,
    the digits differ in every process, and nothing is ever taken over.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name}:{hashlib.sha256(repr(_facts(function)).encode(errors='surrogateescape')).hexdigest()[:16]}"


def _facts(value: Any) -> Any:
    if isinstance(value, functools.partial):
        named = [(name, _facts(part)) for name, part in sorted(value.keywords.items())]
        return (_facts(value.func), [_facts(part) for part in value.args], named)
    if is_dataclass(value) and not isinstance(value, type) and not callable(value):
        # Options that hold a function: by what it does, as if it had been given itself.
        return (type(value).__qualname__, [(one.name, _facts(getattr(value, one.name))) for one in fields(value)])
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        cells = [_facts(cell.cell_contents) for cell in value.__closure__ or ()]
        return (_code_facts(code), _facts(value.__defaults__), _facts(value.__kwdefaults__), cells)
    inner = getattr(value, "__func__", None)  # a bound method
    if inner is not None:
        return (_facts(inner), repr(value.__self__))
    call = getattr(type(value), "__call__", None)  # noqa: B004  # its code is wanted, not whether there is one
    if hasattr(call, "__code__"):
        return (_facts(call), repr(sorted(vars(value).items())) if hasattr(value, "__dict__") else repr(value))
    return repr(value)


def _code_facts(code: CodeType) -> Any:
    """What a code object does, without where it stands in its file."""
    constants = [_code_facts(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return (code.co_code.hex(), constants, code.co_names, code.co_varnames)
