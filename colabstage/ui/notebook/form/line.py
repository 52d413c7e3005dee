"""A call of `stage_dataset` as people would type it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_LINE = 88
_IMPORT = "from colabstage import stage_dataset"


def python_of(arguments: Mapping[str, Any]) -> str:
    """The import and the call, with those of the arguments that differ from the defaults."""
    source, *others = _spelt(arguments)
    line = f"data = stage_dataset({', '.join([source, *others])})"
    if len(line) > _LONGEST_LINE and others:
        line = "\n".join(["data = stage_dataset(", *(f"    {part}," for part in (source, *others)), ")"])
    return f"{_IMPORT}\n\n{line}"


def changed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments whose values are not the defaults of `stage_dataset`."""
    from colabstage.stage.run import stage_dataset

    usual = inspect.signature(stage_dataset).parameters
    return {name: value for name, value in arguments.items() if value != usual[name].default}


def _spelt(arguments: Mapping[str, Any]) -> list[str]:
    others = changed({name: value for name, value in arguments.items() if name != "source"})
    return [_literal(arguments["source"]), *(f"{name}={_literal(value)}" for name, value in others.items())]


def _literal(value: object) -> str:
    """As `repr`, with double quotes where that needs no escape."""
    if isinstance(value, str):
        plain = repr(value)
        return f'"{plain[1:-1]}"' if plain[0] == "'" and not {'"', "'"} & set(value) else plain
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
