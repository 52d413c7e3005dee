"""What a report and a staged dataset show in a notebook."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 - fixtures
from typing import Any

import h5py
import numpy as np

import colabstage
from colabstage import StagedDataset
from colabstage.h5.info import read_info
from colabstage.stage.dataset import StageReport, StageStep
from tests.pictures import write_photos

REPORT = StageReport(
    steps=[
        StageStep("copy", 2.0, 50_000_000, "B", "of <b>a.zip</b>"),
        StageStep("plan", 0.5, 12, "files", moves=False),
    ],
    skipped=tuple(f"image {number}: <i>broken</i>" for number in range(13)),
    notes=["a note & another"],
)


def test_steps_notes_and_what_was_left_out() -> None:
    html, text = REPORT._repr_html_(), str(REPORT)
    for words in ("Staged from the source in 2.50 s", "copy", "25 MB/s", "12 files", "image 9", "3 more"):
        assert words in html
        assert words in text
    assert "image 10" not in html
    assert "<b>a.zip" not in html
    assert "<i>broken" not in html
    assert "a note &amp; another" in html


def test_a_terminal_does_not_obey_names() -> None:
    report = StageReport(skipped=("\x1b[2J.jpg: broken",), notes=["read '\x1b]0;mine\x07'"])
    assert "\x1b" not in str(report)
    assert "\\x1b[2J.jpg" in str(report)


def test_steps_inside_of_a_step_count_once() -> None:
    report = StageReport()
    began = time.monotonic()
    with report.timed("look in cache"):
        with report.timed("open source"):
            time.sleep(0.02)
        with report.timed("open source"):
            time.sleep(0.02)
    assert [step.name for step in report.steps] == ["open source", "look in cache"]
    assert 0.04 <= report.seconds <= time.monotonic() - began


def test_looking_again_is_one_line_of_the_report(tmp_path: Path) -> None:
    """Before the lock and behind it the folder is found changed; what was done is told once, with the time of both."""
    paths = write_photos(tmp_path / "photos")
    options: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None, "image_size": (8, 8)}
    colabstage.stage_dataset(tmp_path / "photos", **options, progress=False)
    paths[0].unlink()
    report = colabstage.stage_dataset(tmp_path / "photos", **options, progress=False).report
    names = [step.name for step in report.steps]
    assert names.count("look") == 1, report
    assert [note for note in report.notes if "again" in note] == [
        "Staging again: the source has changed since it was staged."
    ]
    assert len(set(report.notes)) == len(report.notes)
    assert "1 readers" not in str(report)


def test_a_dataset_shows_its_splits_its_classes_and_its_report(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["X_train"], file["Y_train"] = np.zeros((7, 3)), np.zeros(7)
        file["classes"] = ["<script>", *(f"class {number}" for number in range(1, 20))]
    html = StagedDataset(path, None, REPORT, read_info(path))._repr_html_()
    for words in ("train 7", "20: &lt;script&gt;, class 1", "and 8 more", str(path), "25 MB/s"):
        assert words in html
    assert "<script" not in html
    assert "class 12" not in html
