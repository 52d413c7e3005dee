"""How the help of a command is made of its docstring: what it does, then examples that stand out."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "Examples:"


def help_of(command: Callable[..., None]) -> str:
    """The docstring as rich's markup; the lines after `Examples:` keep their line ends.

    They are indented inside the markup, because typer takes away what stands before it.
    """
    text, _, _ = inspect.cleandoc(command.__doc__ or "").partition(_MARK)
    paragraphs = [_escaped(" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n")]
    shown = "\n".join(f"[green]  {_escaped(line)}[/green]" for line in examples_of(command))
    return "\n\n".join([*paragraphs, f"[not dim][bold]Examples[/bold]\n{shown}[/not dim]"])


def examples_of(command: Callable[..., None]) -> list[str]:
    """The example lines of a command's docstring."""
    _, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_MARK)
    return [line.strip() for line in examples.splitlines() if line.strip()]


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
