"""How the text of an option becomes the argument, in every face."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from colabstage.cli.options import spell_options
from colabstage.errors import OptionError
from colabstage.io.units import parse_fractions, parse_sides

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_sides, "256x320", (256, 320)),
        (parse_sides, "256,320", (256, 320)),
        (parse_sides, "64", (64, 64)),
        (parse_sides, "8X 9", (8, 9)),
        (parse_fractions, "train=0.8, dev=.1,test=0.1", {"train": 0.8, "dev": 0.1, "test": 0.1}),
        (parse_fractions, "0.8", 0.8),
        (parse_fractions, "0.7,0.2,0.1", [0.7, 0.2, 0.1]),
    ],
)
def test_a_text_becomes_the_argument(read: Callable[[str], object], text: str, value: object) -> None:
    """Height comes first; fractions have names, or are those of the usual splits; `none` is no cache."""
    assert read(text) == value


@pytest.mark.parametrize("text", ["", "x", "8x", "8x8x8", "-8x8", "8.5x8", "(8, 8)"])
def test_what_is_no_image_size_is_refused(text: str) -> None:
    """The complaint repeats what was written."""
    with pytest.raises(OptionError, match=re.escape(repr(text))):
        parse_sides(text)


@pytest.mark.parametrize("text", ["", "train", "train=", "train=most", "train=0.8,", "a=0.5,a=0.5", "a=0.5,0.5", "=1"])
def test_what_gives_no_fractions_is_refused(text: str) -> None:
    """A missing name, number or comma, and a name twice."""
    with pytest.raises(OptionError):
        parse_fractions(text)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("Give image_size=(height, width), or encoding='encoded'.", ["--image-size HxW", "--encoding auto|pixels"]),
        ("Give names, older_than_days=…, or everything=True.", ["--older-than DAYS", "--all"]),
        ("in_memory=True is no option here, and refreshing is none.", []),
    ],
)
def test_a_message_says_how_its_arguments_are_written_here(message: str, options: list[str]) -> None:
    """Each option once, with what it takes; the message itself stays as it is."""
    told = spell_options(message)
    assert told.startswith(message)
    assert [one in told for one in options] == [True] * len(options)
    assert (told == message) == (not options)
