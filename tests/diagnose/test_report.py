"""A report as text, HTML, JSON values and a picture, whatever it is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from colabstage.diagnose.report import Bar, Report, Row
from colabstage.errors import NotSupportedHereError


@dataclass(frozen=True, kw_only=True, repr=False)
class Measured(Report):
    """With figures of its own."""

    path: Path
    rate: float
    _secret: object = object()

    @property
    def double(self) -> float:
        return 2 * self.rate


REPORT = Measured(
    headline="Input-bound by <decoding>",
    bars=(Bar("decode", 0.06, ("60 ms", "3 times")), Bar("step", 0.02, ("20 ms", "")), Bar("none", 0.0, ("0 ms", ""))),
    rows=(
        Row("disk", "3 GB free", "Free some.", "warn"),
        Row("at most 2×", "f(x)", "why", "change"),
        Row("plain", "x"),
    ),
    notes=("a <note>",),
    path=Path("photos"),
    rate=float("inf"),
)


def test_text_has_everything_in_order() -> None:
    """The headline, bars as long as their values, rows with what to do, notes."""
    lines = str(REPORT).splitlines()
    assert lines[0] == REPORT.headline
    lengths = [line.count("#") for line in lines[1:4]]
    assert lengths[0] == pytest.approx(3 * lengths[1], abs=1)
    assert lengths[2] == 0
    assert [line[0] for line in lines[4:9]] == ["!", " ", "→", " ", " "]
    assert "→ Free some." in lines[5]
    assert lines[-1] == "Note: a <note>"
    assert repr(REPORT) == f"Measured: {REPORT.headline}"


def test_a_path_is_never_broken() -> None:
    """Long text is wrapped at spaces only."""
    path = "/content/" + "folder-" * 20
    assert path in str(Report("x", rows=(Row("a", f"word {path} " * 2),)))


def test_html_is_escaped() -> None:
    """What the caller named is text, and every part is there."""
    page = REPORT._repr_html_()
    assert "&lt;decoding&gt;" in page
    assert "<note>" not in page
    assert page.count("<tr>") == 6
    assert "width:100.0%" in page


def test_json_has_fields_and_properties_of_the_subclass() -> None:
    """Numbers that JSON has not become null; what is private stays out."""
    found = json.loads(json.dumps(REPORT.to_dict(), allow_nan=False))
    assert (found["path"], found["rate"], found["double"]) == ("photos", None, None)
    assert found["rows"][0]["status"] == "warn"
    assert "_secret" not in found


def test_a_picture_has_the_bars_and_fits_its_heading() -> None:
    """A sentence is broken where the picture ends; without bars there is nothing to draw."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    figure = Report("word " * 60, bars=REPORT.bars).plot()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["decode", "step", "none"]
    (heading,) = figure.texts
    # 9 inches hold 97 characters of it.
    assert max(map(len, heading.get_text().splitlines())) < 97
    with pytest.raises(NotSupportedHereError, match="Report"):
        Report("nothing").plot()
