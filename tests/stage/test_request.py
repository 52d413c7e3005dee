"""What shapes a pack reaches it from `stage_dataset`, and whatever makes another pack has another key."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path  # noqa: TC003 - fixtures
from typing import Any

import numpy as np
import pytest

from colabstage import pack_dataset, plan_stage, stage_dataset
from colabstage.errors import OptionError
from colabstage.options import folders
from colabstage.stage.request import make_request


def _halved(x: np.ndarray) -> np.ndarray:
    return x[::2, ::2]


def _darker(x: np.ndarray) -> np.ndarray:
    return x // 2


def test_everything_that_shapes_a_pack_can_be_asked_of_staging() -> None:
    """`stage_dataset` takes what `pack_dataset` does, but for where the file goes; `plan_stage` what `stage_dataset`
    does, but for how it is done."""
    packing, staging, planning = (
        set(inspect.signature(function).parameters) for function in (pack_dataset, stage_dataset, plan_stage)
    )
    assert packing - staging == {"target", "append_to", "shards", "overwrite"}
    assert staging - planning == {"wait", "progress", "executor", "streaming"}
    assert planning <= staging


@pytest.mark.parametrize(
    "option",
    [
        {"layout": "image_folder"},
        {"layout": folders(level=1)},
        {"image_size": (8, 8)},
        {"color_mode": "grayscale"},
        {"resize": "crop"},
        {"encoding": "jpeg:80"},
        {"splits": {"train": 0.5, "test": 0.5}},
        {"group_by": r"\d"},
        {"prepare": _halved},
        {"prepare": _darker},
        {"seed": 1},
        {"on_error": "skip:1%"},
    ],
    # Not what a function is written as: that has an address in it, which differs among the processes of a run.
    ids=(
        "layout", "folders", "size", "colour", "resize", "encoding", "splits", "groups", "halved", "darker", "seed",
        "errors",
    ),
)  # fmt: skip
def test_each_option_has_a_key_of_its_own(option: dict[str, Any]) -> None:
    """So that no record and no cached pack is taken for one of other options; the same option has the same key."""
    keys = {make_request("photos", **given).key for given in ({}, option, {"prepare": np.sqrt})}
    assert len(keys) == 3
    assert make_request("photos", **option).key in keys


@pytest.mark.parametrize("form", ["folder", "zip", "both"])
def test_workers_make_the_pack_that_one_process_makes(tmp_path: Path, photos: Path, make_zip: Any, form: str) -> None:
    source = make_zip(photos, tmp_path / "photos.zip") if form == "zip" else photos
    options: dict[str, Any] = {"progress": False, "keep": "both" if form == "both" else "pack", "cache_dir": None}
    alone = stage_dataset(source, local_dir=tmp_path / "alone", **options)
    with ThreadPoolExecutor(2) as pool:
        together = stage_dataset(source, local_dir=tmp_path / "together", executor=pool, **options)
    assert together.path.read_bytes() == alone.path.read_bytes()
    assert together.report.origin == "source"
    assert stage_dataset(source, local_dir=tmp_path / "together", **options).report.origin == "local"
    assert list(together.path.parent.glob(".colabstage-*.tmp")) == []


@pytest.mark.parametrize("source", ["https://example.org/a.zip", "part-*.zip", ["a.zip", "b.zip"]])
def test_what_workers_cannot_open_is_refused(source: Any, tmp_path: Path) -> None:
    """Before anything is opened or written."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(OptionError, match="keep='both'"):
        stage_dataset(source, executor=pool, local_dir=tmp_path / "here", progress=False)
    assert not (tmp_path / "here").exists()
