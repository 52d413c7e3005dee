"""What a plan says of itself, as text and in a notebook."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

from colabstage.stage.report import StageFigures, StagePlan

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
    """Action, reasons, what was found, samples, bytes and places are in the text and in the HTML."""
    figures = ("train 12,000", "2 MB", "8 MB", "10 MB of 90 MB")
    for text in (str(PLAN), html.unescape(PLAN._repr_html_())):
        for words in ("would be read from its source", *PLAN.reasons, *dict(PLAN.found).values(), *figures):
            assert words in text
        assert "photos.h5" in text
        assert "drive/cache" in text


def test_a_plan_that_does_not_fit_says_so() -> None:
    """Too little room stands out."""
    tight = replace(PLAN, free_bytes=1)
    assert "too little" in str(tight)
    assert "does not fit" in tight._repr_html_()
    assert "does not fit" not in PLAN._repr_html_()


def test_reuse_moves_nothing() -> None:
    """What is here already has no figures."""
    here = replace(PLAN, action="reuse", cache=None, samples={}, found=())
    assert str(here).splitlines()[1:] == [f"  {reason}" for reason in PLAN.reasons]
    assert "read" not in here._repr_html_().replace("already", "").replace("would be read", "")


def test_html_is_escaped() -> None:
    """A source is anybody's text."""
    assert "<drive>" not in PLAN._repr_html_()
    assert "<0>" not in PLAN._repr_html_()
