"""What a newcomer reads in the first hour: plans with all of the report's notes, and words for what has no name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from colabstage.stage.plan import plan_stage
from colabstage.stage.run import stage_dataset


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Where datasets go."""
    return {"local_dir": tmp_path / "here", "cache_dir": None}


def _image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 90, 20)).save(path)


def _folder(root: Path, split: str) -> Path:
    for number in range(4):
        _image(root / split / "ab"[number % 2] / f"{number}.png", 40 * number)
    return root / split


@pytest.mark.parametrize("first", ["none", "another", "streaming"])
def test_a_pack_that_is_here_goes_to_the_cache_that_a_later_call_names(tmp_path: Path, first: str) -> None:
    """Reports say whether it is in the cache, the plan that it would be, and the next machine finds it there."""
    root, cache = _folder(tmp_path, "photos"), tmp_path / "cache"
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "progress": False}
    earlier = tmp_path / "other" if first == "another" else None
    made = stage_dataset(root, cache_dir=earlier, streaming=first == "streaming", **places).wait()
    assert made.report.to_dict()["cached"].startswith("yes" if earlier else "no")
    assert made.report.cached in str(made.report)
    assert made.report.cached in made.report._repr_html_()
    plan = plan_stage(root, cache_dir=cache, local_dir=tmp_path / "here")
    assert (plan.action, plan.cache) == ("reuse", cache / made.path.name)
    assert any("not in the cache yet" in reason for reason in plan.reasons)

    data = stage_dataset(root, cache_dir=cache, **places)
    assert (data.report.origin, data.report.cached) == ("local", "yes, copied there now")
    published = data.wait_published()
    assert published is not None
    assert Path(published.path).read_bytes() == data.path.read_bytes()
    assert not any(
        "not in the cache yet" in reason
        for reason in plan_stage(root, cache_dir=cache, local_dir=tmp_path / "here").reasons
    )
    again = stage_dataset(root, cache_dir=cache, **places)
    assert (again.report.origin, again.report.cached) == ("local", "yes")
    assert "publish to cache" not in [step.name for step in again.report.steps]
    there = stage_dataset(root, cache_dir=cache, local_dir=tmp_path / "next", progress=False)
    assert (there.report.origin, there.report.cached) == ("cache", "yes, it was copied from there")
