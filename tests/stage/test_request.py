"""Options for a pack and its loaders reach them from `stage_dataset`; options that change the pack change the key."""

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import StagedDataset, make_loader, pack_dataset, plan_stage, stage_dataset
from colabstage.errors import OptionError
from colabstage.options import folders
from tests.support.images import in_classes, make_tree


def _halved(x: np.ndarray) -> np.ndarray:
    return x[::2, ::2]


def _darker(x: np.ndarray) -> np.ndarray:
    return x // 2


def parameters(*functions: Callable[..., object]) -> list[set[str]]:
    return [set(inspect.signature(function).parameters) for function in functions]


def test_one_function_takes_what_the_other_takes() -> None:
    """`stage_dataset` takes the options of `pack_dataset`, except where the file goes; `plan_stage` those of
    `stage_dataset`, except how it is done; and a dataset's loader those of `make_loader`, with the same defaults."""
    packing, staging, planning = parameters(pack_dataset, stage_dataset, plan_stage)
    assert packing - staging == {"target", "append_to", "shards", "overwrite"}
    assert staging - planning == {"wait", "progress", "executor", "streaming"}
    assert planning <= staging
    own, plain = (inspect.signature(function).parameters for function in (StagedDataset.loader, make_loader))
    assert list(own)[2:] == list(plain)[1:]
    assert [name for name in own if name in plain and own[name].default != plain[name].default] == []


OPTIONS: dict[str, dict[str, Any]] = {
    "layout": {"layout": "image_folder"},
    "folders": {"layout": folders(level=1)},
    "size": {"image_size": (8, 8)},
    "colour": {"color_mode": "grayscale"},
    "resize": {"resize": "crop"},
    "encoding": {"encoding": "jpeg:80"},
    "splits": {"splits": {"train": 0.5, "test": 0.5}},
    "groups": {"splits": 0.5, "group_by": r"\d+"},
    "halved": {"prepare": _halved},
    "darker": {"prepare": _darker},
    "seed": {"seed": 1},
    "errors": {"on_error": "skip:1%"},
}


def test_each_option_has_a_key_of_its_own(tmp_path: Path) -> None:
    """So that no record and no cached pack is taken for one with other options; the same options have the same key."""
    source = make_tree(tmp_path / "photos", in_classes(4))

    def key(options: dict[str, Any]) -> str:
        return plan_stage(source, cache_dir=None, **{"image_size": (4, 4), **options}).target.name

    keys = {name: key(options) for name, options in OPTIONS.items()}
    assert {key({}), *keys.values()} == {key({}), *(key(options) for options in OPTIONS.values())}
    assert len({key({}), *keys.values()}) == len(OPTIONS) + 1


@pytest.mark.parametrize("form", ["zip", "both"])
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


@pytest.mark.parametrize("source", ["https://example.org/a.zip", ["a.zip", "b.zip"]])
def test_what_workers_cannot_open_is_refused(source: Any, tmp_path: Path) -> None:
    """Before anything is opened or written."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(OptionError, match="keep='both'"):
        stage_dataset(source, executor=pool, local_dir=tmp_path / "here", progress=False)
    assert not (tmp_path / "here").exists()
