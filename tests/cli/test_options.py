"""How the text of an option becomes the argument."""

from __future__ import annotations

import pytest
import typer

from colabstage.cli.options import parse_cache_dir, read_fractions, read_image_size


@pytest.mark.parametrize(
    ("text", "size"), [("256x320", (256, 320)), ("256,320", (256, 320)), ("64", (64, 64)), ("8X 9", (8, 9))]
)
def test_image_sizes(text: str, size: tuple[int, int]) -> None:
    """Height comes first; one number is a square."""
    assert read_image_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "8x", "8x8x8", "-8x8", "8.5x8", "(8, 8)"])
def test_what_is_no_image_size_is_refused(text: str) -> None:
    """The complaint repeats what was written."""
    with pytest.raises(typer.BadParameter) as caught:
        read_image_size(text)
    assert repr(text) in str(caught.value)


def test_fractions() -> None:
    """Names and fractions, in the order written."""
    assert list(read_fractions("train=0.8, dev=.1,test=0.1").items()) == [("train", 0.8), ("dev", 0.1), ("test", 0.1)]


@pytest.mark.parametrize("text", ["", "train", "train=", "train=most", "train=0.8,", "a=0.5,a=0.5"])
def test_what_gives_no_fractions_is_refused(text: str) -> None:
    """A missing name, number or comma, and a name twice."""
    with pytest.raises(typer.BadParameter):
        read_fractions(text)


def test_one_number_below_a_half_has_the_lines_to_write() -> None:
    """As in Python: elsewhere that number is what is held out."""
    with pytest.raises(typer.BadParameter, match=r"Write 0\.8 to train on the others, or both parts: 0\.2,0\.8\."):
        read_fractions("0.2")
    assert list(read_fractions("0.8").items()) == [("train", 0.8), ("test", 0.2)]


def test_no_cache_is_spelt_none() -> None:
    """`none` is no cache; everything else goes on as it is."""
    assert parse_cache_dir("none") is None
    assert [parse_cache_dir(text) for text in ("auto", "./none", "/x")] == ["auto", "./none", "/x"]
