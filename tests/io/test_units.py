"""Sizes, rates and times as people write and read them."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import OptionError
from colabstage.io import units


def test_the_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(units)
    assert results.attempted >= 6
    assert results.failed == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999.4, "999 B"),
        (999.5, "1 kB"),
        (1000, "1 kB"),
        (99_950, "100 kB"),
        (999_500, "1 MB"),
        (-2_000_000, "-2 MB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes_have_three_figures(count: float, text: str) -> None:
    """The unit changes where the rounded number would have four figures."""
    assert units.format_bytes(count) == text


@given(st.integers(0, 10**18))
def test_a_formatted_size_reads_back_close(count: int) -> None:
    text = units.format_bytes(count)
    assert len(re.sub(r"\D", "", text)) <= 3 or text.endswith("PB")
    assert abs(units.parse_bytes(text) - count) <= max(0.0051 * count, 0.5)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        ("1230", 1230),
        ("1 KB", 1000),
        ("1KiB", 1024),
        ("1.5GiB", 1_610_612_736),
        ("  2 tb ", 2 * 10**12),
        ("9007199254740993", 9_007_199_254_740_993),
        ("1.000000000000001 PB", 1_000_000_000_000_001),
    ],
)
def test_sizes_are_read_exactly(text: str | int, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", [0, "0 GB", "0.4"])
def test_an_argument_that_leaves_no_room_is_refused(text: str | int) -> None:
    with pytest.raises(OptionError, match=rf"^disk_limit={re.escape(repr(text))} "):
        units.parse_bytes(text, "disk_limit")
    assert units.parse_bytes(text, "memory_budget", may_be_zero=True) == 0


@pytest.mark.parametrize("text", ["", "MB", "1 XB", -1, "1e9", "1,5 GB", True, "9" * 5000])
def test_what_is_no_size_is_named(text: str | int) -> None:
    with pytest.raises(OptionError, match=rf"^{re.escape(repr(text))} .*'500 MB'"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"),
        (0.09994, "99.9 ms"),
        (0.09996, "0.10 s"),
        (9.996, "10.0 s"),
        (99.96, "1 min 40 s"),
        (3599.6, "1 h 0 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_times_change_unit_where_they_round(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "seconds", "unit", "text"),
    [
        (1_000_000, 0.5, "B", "2 MB/s"),
        (5, 0, "images", "0 images/s"),
        (12_345, 1, "files", "12,345 files/s"),
    ],
)
def test_rates_name_what_they_count(amount: float, seconds: float, unit: str, text: str) -> None:
    assert units.format_rate(amount, seconds, unit) == text
