"""What a plan says of itself, as text and in a notebook."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from colabstage import plan_stage, stage_dataset
from colabstage.stage.cache import StageFigures
from colabstage.stage.plan import StagePlan

PLAN = StagePlan(
    source="<drive>/photos.zip",
    action="stage",
    reasons=("nothing is here yet", "the cache has no such pack"),
    figures=StageFigures(source_bytes=2_000_000, archive_bytes=2_000_000, pack_bytes=8_000_000),
    free_bytes=90_000_000,
    target=Path("fast/photos.h5"),
    cache=Path("drive/cache"),
    samples={"train": 12_000, "test": 3},
    found=(("layout", "image_folder"), ("classes", "2: cat ('cat/<0>.jpg'), dog")),
)


def test_both_say_the_same() -> None:
    figures = ("train 12,000", "2 MB", "8 MB", "10 MB of 90 MB")
    for text in (str(PLAN), html.unescape(PLAN._repr_html_())):
        for words in ("would be read from its source", *PLAN.reasons, *dict(PLAN.found).values(), *figures):
            assert words in text
        assert "photos.h5" in text
        assert "drive/cache" in text


def test_a_plan_that_does_not_fit_says_so() -> None:
    tight = replace(PLAN, free_bytes=1)
    assert "too little" in str(tight)
    assert "does not fit" in tight._repr_html_()
    assert "does not fit" not in PLAN._repr_html_()


@pytest.fixture
def cats(tmp_path: Path) -> Path:
    """Four images of two classes."""
    for number in range(4):
        folder = tmp_path / "cats" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (40 * number, 90, 20)).save(folder / f"{number}.png")
    return tmp_path / "cats"


def test_a_damaged_pack_is_told_once_and_with_what_works(cats: Path, tmp_path: Path) -> None:
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None}
    staged = stage_dataset(cats, progress=False, **places)
    with staged.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"mine")
    plan = plan_stage(cats, **places)
    assert "1 of its 1 block differ" in plan.reasons[0]
    assert "refresh=True" not in str(plan)
    assert "delete it" in plan.refused
    staged.path.unlink()
    assert plan_stage(cats, **places).refused == ""
    assert stage_dataset(cats, progress=False, **places).report.origin == "source"
