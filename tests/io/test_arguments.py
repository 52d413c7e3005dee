"""Arguments that are spelt once: what a person sees of them, and what becomes of names that there are not."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import pytest

from colabstage.errors import OptionError
from colabstage.io.arguments import defaults, read_options
from colabstage.io.boundary import public


@dataclass(frozen=True, kw_only=True)
class Options:
    """Say something.

    Args:
        size: how large,
            in two lines.
        rank, world: which of how many.
        colour: which one.
    """

    size: int = 3
    rank: int = 0
    world: int = 1
    colour: str = "red"


class Arguments(TypedDict, total=False):
    """Name them."""

    size: int
    rank: int
    world: int
    colour: str


class Fewer(TypedDict, total=False):
    """Name some."""

    size: int


@public(Options, remedies={"shade": "Write colour='grey'.", "name": "Write draw('a')."})
def draw(name: str, *, loud: bool = False, options: Options | None = None, **arguments: Unpack[Arguments]) -> Options:
    """Draw.

    Args:
        name: of it.
        **arguments: those of `Options`,
            and no other.

    Raises:
        OptionError: no.
    """
    return read_options(Options, options, arguments)


@public(draw, arguments=Fewer)
def draw_small(**arguments: Unpack[Fewer]) -> Options:
    """Draw less.

    Args:
        **arguments: those of `draw`.
    """
    return draw("small", **arguments)


def test_a_person_sees_each_argument() -> None:
    assert str(inspect.signature(draw)) == (
        "(name: 'str', *, size: 'int' = 3, rank: 'int' = 0, world: 'int' = 1, colour: 'str' = 'red', "
        "loud: 'bool' = False, options: 'Options | None' = None) -> 'Options'"
    )
    assert inspect.getdoc(draw) == (
        "Draw.\n\nArgs:\n    name: of it.\n    size: how large,\n        in two lines.\n"
        "    rank, world: which of how many.\n    colour: which one.\n\nRaises:\n    OptionError: no."
    )
    assert list(inspect.signature(draw_small).parameters) == ["size"]
    assert inspect.getdoc(draw_small) == "Draw less.\n\nArgs:\n    size: how large,\n        in two lines."
    assert defaults(draw, Fewer) == {"size": 3}


def test_what_is_given_by_name_replaces_what_the_options_say() -> None:
    usual = Options(size=5, colour="blue")
    assert draw("a") == Options()
    assert draw("a", options=usual) is usual
    assert draw("a", options=usual, size=7) == Options(size=7, colour="blue")
    wrong: Any = {"size": 7}
    with pytest.raises(OptionError, match=r"\{'size': 7\}.*Options\(…\)"):
        draw("a", options=wrong)


def test_names_that_there_are_not_are_refused() -> None:
    loose: Any = draw
    with pytest.raises(TypeError, match=r"draw\(\).*'color'.*'colour'"):
        loose("a", color="red")
    with pytest.raises(TypeError, match=r"'qqq'\.$"):
        loose("a", qqq=1)
    with pytest.raises(OptionError, match="Write colour='grey'"):
        loose("a", shade=1)
    with pytest.raises(TypeError, match="colour"):
        _call(draw_small, colour="red")


def test_what_is_missing_or_has_no_name_is_told_with_the_line() -> None:
    loose: Any = draw
    with pytest.raises(TypeError, match=r"^draw\(\) .*'name'\. Write draw\('a'\)\.$"):
        loose(size=3)
    with pytest.raises(TypeError, match=r"^draw\(\) .*positional"):
        loose("a", 3)
    assert loose(name="a") == Options()


def _call(function: Any, **arguments: Any) -> Any:
    return function(**arguments)
