"""Sizes, rates and times as people write and read them."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._photographs import repeated_photographs, write_encoded
from colabstage import dataset_h5, doctor, make_loader, stage_dataset
from colabstage.errors import OptionError
from tests.support.images import in_classes, make_tree


@cache
def diagnosis() -> Any:
    return doctor(timeout_s=5.0)


def said_with(title: str, **facts: Any) -> str:
    """The text of a check of `doctor` with other facts."""
    report = diagnosis()
    findings = report.from_facts(replace(report.facts, **facts)).findings
    return next(str(one.message) for one in findings if one.title == title)


def format_bytes(count: float) -> str:
    return said_with("disk", free_bytes=count).removeprefix("Only ").partition(" free where")[0]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999.4, "999 B"), (999.5, "1 kB"), (1000, "1 kB"), (99_950, "100 kB"), (999_500, "1 MB"),
        (5e18, "5000 PB"),
    ],
)  # fmt: skip
def test_bytes_have_three_figures(count: float, text: str) -> None:
    """The unit changes where the rounded number would have four figures."""
    assert format_bytes(count) == text


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How many bytes of decoded images, at most a megabyte, a loader keeps with this `memory_budget`."""
    path = tmp_path_factory.mktemp("units") / "files.h5"
    write_encoded(path, repeated_photographs(2, target_bytes=20_000))

    def most_bytes(budget: Any) -> int:
        with make_loader(dataset_h5(path), 1, memory_budget=budget) as loader:
            assert loader.plan.keep is not None
            return loader.plan.keep.value

    return most_bytes


@pytest.mark.torch
@given(count=st.integers(0, 1_000_000))
def test_a_formatted_size_reads_back_close(keep: Any, count: int) -> None:
    text = format_bytes(count)
    assert len(re.sub(r"\D", "", text)) <= 3
    assert abs(keep(text) - count) <= max(0.0051 * count, 0.5)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0), ("0 GB", 0), ("0.4", 0), ("1230", 1230), ("1 KB", 1000), ("1KiB", 1024), ("0.0005GiB", 536_871),
        ("  0.0000005 tb ", 500_000), ("0.000000000999999 PB", 999_999),
    ],
)  # fmt: skip
def test_sizes_are_read_exactly(keep: Any, text: str | int, count: int) -> None:
    assert keep(text) == count


@pytest.mark.parametrize("text", [0, "0 GB", "0.4"])
def test_an_argument_that_leaves_no_room_is_refused(tmp_path: Path, text: Any) -> None:
    with pytest.raises(OptionError, match=rf"^disk_limit={re.escape(repr(text))} "):
        stage_dataset(tmp_path, disk_limit=text, progress=False)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["", "MB", "1 XB", -1, "1e9", "1,5 GB", True, "9" * 5000])
def test_what_is_no_size_is_named(keep: Any, text: str | int) -> None:
    with pytest.raises(OptionError, match=rf"^memory_budget={re.escape(repr(text)[:70])}.*'500 MB'"):
        keep(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"), (0.09994, "99.9 ms"), (0.09996, "0.10 s"), (9.996, "10.0 s"), (99.96, "1 min 40 s"),
        (3599.6, "1 h 0 min"), (90_000, "1 day 1 h"),
    ],
)  # fmt: skip
def test_times_change_unit_where_they_round(seconds: float, text: str) -> None:
    mount = SimpleNamespace(mountpoint="/a", kind="nfs4", state="alive", reason="alive", seconds=seconds)
    assert said_with("mounts", mounts=(mount,)).endswith(f" after {text}.")


def test_rates_name_what_they_count(tmp_path: Path) -> None:
    """They are empty if no time has passed."""
    photos = make_tree(tmp_path / "photos", in_classes(2))
    report = stage_dataset(photos, local_dir=tmp_path / "fast", cache_dir=None, progress=False).report
    step = next(step for step in report.steps if step.rate)
    for amount, seconds, unit, text in (
        (1_000_000, 0.5, "B", "2 MB/s"),
        (5, 0, "images", "0 images/s"),
        (12_345, 1, "files", "12,345 files/s"),
    ):
        assert replace(step, amount=amount, seconds=seconds, unit=unit).rate == text
