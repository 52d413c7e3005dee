"""String arrays behave as the sequences they stand for, whatever the strings are."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.trees.entries import StringArray, first_repeated, narrowed, take_strings

# Lone surrogates are how Python shows a file name that is no UTF-8; "\uffff" sorts before "\U00010000" there.
ODD = ["b", "", "\udc80", "ä/ö.jpg", "\uffff", "\U00010000", "b", "a" * 5000, "日本", "a\0"]


def test_strings_come_back_as_they_went_in() -> None:
    """Any text, names that are no UTF-8 among them, by number, from the end, by slice and in order."""
    texts = StringArray.of(ODD)
    assert list(texts) == ODD
    assert [texts[i] for i in range(-len(ODD), len(ODD))] == ODD + ODD
    assert texts[2:5] == ODD[2:5]
    assert texts[::-3] == ODD[::-3]
    assert len(texts[:0]) == 0
    assert texts.lengths.tolist() == [len(text.encode("utf-8", "surrogatepass")) for text in ODD]
    with pytest.raises(IndexError):
        texts[len(ODD)]


def test_some_texts_of_some_texts_are_the_right_ones() -> None:
    """Rows are taken of rows, over more than one page."""
    names = [f"{number:05}" for number in range(10_000)]
    rows = np.random.default_rng(0).permutation(10_000)[:7000]
    some = StringArray.of(names).take(rows)
    assert some == [names[row] for row in rows]
    assert some.take(np.arange(6999, 0, -7)) == [names[row] for row in rows[6999:0:-7]]
    assert some.packed() == some
    assert take_strings(tuple(names), rows) == take_strings(StringArray.of(names), rows)


@pytest.mark.parametrize("texts", [ODD, ODD[:7], [], ["b", "a-b/1", "a/2", "a/1"] * 2000], ids=len)
def test_the_order_is_that_of_python(texts: list[str]) -> None:
    """Long and short texts, with and without zero bytes, sort as `sorted` sorts them, equal ones as they come."""
    assert StringArray.of(texts).order().tolist() == sorted(range(len(texts)), key=texts.__getitem__)


def test_equality_is_that_of_sequences() -> None:
    """Equal to lists and tuples of the same texts, from either side, and to no text."""
    assert StringArray.of(["a", "b"]) == ("a", "b")
    held: object = ["a", "b"]
    assert held == StringArray.of(["a", "b"])
    assert StringArray.of(["a", "b"]) != ["a"]
    assert StringArray.of(["a"]) != "a"


@pytest.mark.parametrize(
    ("texts", "twice"), [(["a", "b", "c"], None), ([], None), (["b", "a", "c", "a", "b"], "a"), (["x"] * 3, "x")]
)
def test_the_first_repeated_text_is_named(texts: list[str], twice: str | None) -> None:
    """The one that a reader would meet first as a repetition."""
    assert first_repeated(texts) == first_repeated(StringArray.of(texts)) == twice


def test_numbers_are_narrowed_only_where_all_fit() -> None:
    """A value of more than 32 bits, or a negative one, keeps its column wide."""
    assert narrowed(np.array([0, 2**32 - 1])).dtype == np.uint32
    assert narrowed(np.array([0, 2**32])).tolist() == [0, 2**32]
    assert narrowed(np.array([-1, 5])).tolist() == [-1, 5]
