"""What a plan, a report and a staged dataset show, as text and in a notebook: the same, and nothing that acts on
either."""

import html
from pathlib import Path
from typing import Any

import pytest

from colabstage import plan_stage, stage_dataset
from tests.support.images import image, in_classes, make_tree


def both(shown: Any) -> list[str]:
    """The text, and the notebook's HTML."""
    assert "<script" not in shown._repr_html_()
    assert "\x1b" not in str(shown)
    return [" ".join(text.split()) for text in (str(shown), escaped(html.unescape(shown._repr_html_())))]


def escaped(text: str) -> str:
    """As a terminal shows it; HTML need not escape what only terminals act on."""
    return text.replace("\x1b", "\\x1b")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images whose names contain HTML or terminal codes, twelve of them broken, in twenty classes."""
    files: dict[str, Any] = {f"class {number:02}/{number}.png": number for number in range(19)}
    files |= {f"<script>/<b>{number}.png": image(number)[:40] for number in range(11)}
    return make_tree(tmp_path / "photos", {**files, "<script>/0.png": 1, "<script>/\x1b[2J.png": b"no image"})


def test_a_plan_a_report_and_a_dataset_say_the_same_in_both_forms(photos: Path, tmp_path: Path) -> None:
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": tmp_path / "cache", "on_error": "skip"}
    plan = plan_stage(photos, **places)
    for text in both(plan):
        for words in (*plan.reasons, *dict(plan.found).values(), str(plan.target), str(plan.cache)):
            assert escaped(words) in text
    data = stage_dataset(photos, progress=False, **places)
    for text in both(data.report):
        # The first ten of those left out.
        shown = [reason for reason in data.report.skipped if escaped(reason) in text]
        assert (len(data.report.skipped), len(shown), "2 more" in text) == (12, 10, True)
        for words in (*(step.name for step in data.report.steps), *data.report.notes):
            assert escaped(words) in text
    text, page = both(data)
    for words in ("train 20", str(data.path)):
        assert words in text
        assert words in page
    assert "<script> (" in page
    assert "class 12" not in page


def test_a_plan_that_does_not_fit_says_so(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", in_classes(4))
    options: dict[str, Any] = {"cache_dir": None, "encoding": "pixels"}
    fits, tight = (plan_stage(source, image_size=side, **options) for side in (8, 200_000))
    assert [tuple("does not fit" in one or "too little" in one for one in both(plan)) for plan in (fits, tight)] == [
        (False, False),
        (True, True),
    ]


def test_looking_again_is_one_line_of_the_report(tmp_path: Path) -> None:
    """The folder is found changed both before and after the lock is taken; the report has one line, with the sum of
    both times."""
    source = make_tree(tmp_path / "photos", in_classes(4))
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": tmp_path / "cache", "progress": False}
    stage_dataset(source, **places)
    (source / "cat/000.png").unlink()
    report: Any = stage_dataset(source, **places).report
    names = [step.name for step in report.steps]
    assert names.count("look") == 1, report
    assert len([note for note in report.notes if "again" in note]) == 1
    assert len(set(report.notes)) == len(report.notes)
    # Opening within a step counts as part of it.
    assert sum(step.seconds for step in report.steps if step.name != "open source") <= report.seconds * 1.01
