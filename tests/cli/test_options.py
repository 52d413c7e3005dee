"""How the text of an option becomes the argument, in every face."""

from __future__ import annotations

import pytest

from colabstage.cli.options import read_cache_dir, read_fractions, spell_options
from colabstage.errors import OptionError
from colabstage.io.units import parse_fractions, parse_sides


@pytest.mark.parametrize(
    ("text", "size"), [("256x320", (256, 320)), ("256,320", (256, 320)), ("64", (64, 64)), ("8X 9", (8, 9))]
)
def test_image_sizes(text: str, size: tuple[int, int]) -> None:
    """Height comes first; one number is a square."""
    assert parse_sides(text) == size


@pytest.mark.parametrize("text", ["", "x", "8x", "8x8x8", "-8x8", "8.5x8", "(8, 8)"])
def test_what_is_no_image_size_is_refused(text: str) -> None:
    """The complaint repeats what was written."""
    with pytest.raises(OptionError) as caught:
        parse_sides(text)
    assert repr(text) in str(caught.value)


def test_fractions() -> None:
    """Names and fractions, in the order written; numbers alone have the usual names."""
    assert list(read_fractions("train=0.8, dev=.1,test=0.1").items()) == [("train", 0.8), ("dev", 0.1), ("test", 0.1)]
    assert list(read_fractions("0.8").items()) == [("train", 0.8), ("test", 0.2)]
    assert list(read_fractions("0.7,0.2,0.1").items()) == [("train", 0.7), ("val", 0.2), ("test", 0.1)]


@pytest.mark.parametrize("text", ["", "train", "train=", "train=most", "train=0.8,", "a=0.5,a=0.5", "a=0.5,0.5", "=1"])
def test_what_gives_no_fractions_is_refused(text: str) -> None:
    """A missing name, number or comma, and a name twice."""
    with pytest.raises(OptionError):
        parse_fractions(text)


def test_one_number_below_a_half_has_both_meanings() -> None:
    """As in Python: elsewhere that number is what is held out."""
    with pytest.raises(OptionError, match=r"0\.8"):
        read_fractions("0.2")


def test_no_cache_is_spelt_none() -> None:
    """`none` is no cache; everything else goes on as it is."""
    assert read_cache_dir("none") is None
    assert [read_cache_dir(text) for text in ("auto", "./none", "/x")] == ["auto", "./none", "/x"]


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
