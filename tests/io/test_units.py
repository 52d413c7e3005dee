"""Sizes, rates and times as people write and read them."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks._photographs import repeated_photographs, write_encoded
from colabstage import dataset_h5, make_loader, stage_dataset
from colabstage.errors import OptionError


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
