"""A report as text, HTML, JSON values and a picture; its HTML is legible on any page, escaped, and self-contained."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from colabstage.errors import NotSupportedHereError
from colabstage.io.report import STYLE, Report, Row, Table, facts


@dataclass(frozen=True, kw_only=True, repr=False)
class Measured(Report):
    path: Path
    rate: float
    _secret: object = object()

    @property
    def double(self) -> float:
        return 2 * self.rate


BARS = Table(
    (
        Row(("decode", "60 ms", "3 times"), bar=0.06),
        Row(("step", "20 ms", ""), bar=0.02),
        Row(("none", "0 ms", ""), bar=0.0),
    ),
    numbers=frozenset({1}),
)
FINDINGS = Table(
    (
        Row(("disk", "3 GB free"), "Free some.", "warn"),
        Row(("at most 2×", "f(x)"), "why", "change"),
        Row(("plain", "x<y>")),
    )
)
STEPS = Table((Row(("copy", "2 s"), "of <a.zip>"), Row(("pack", "10 s"))), ("step", "time"), numbers=frozenset({1}))
REPORT = Measured(
    "Input-bound by <decoding>",
    (BARS, FINDINGS, STEPS, facts([])),
    ("a <note>\x1b[2J",),
    path=Path("photos"),
    rate=float("inf"),
)


def test_text_has_everything_in_order() -> None:
    """The headline, bars proportional to their values, rows with advice, columns under their headings, notes."""
    lines = str(REPORT).splitlines()
    assert lines == repr(REPORT).splitlines()
    assert lines[0] == REPORT.headline
    lengths = [line.count("#") for line in lines[1:4]]
    assert lengths[0] == pytest.approx(3 * lengths[1], abs=1)
    assert lengths[2] == 0
    assert [line[0] for line in lines[4:9]] == ["!", " ", "→", " ", " "]
    assert "→ Free some." in lines[5]
    assert [line.split() for line in lines[9:13]] == [
        ["step", "time"], ["copy", "2", "s"], ["of", "<a.zip>"], ["pack", "10", "s"],
    ]  # fmt: skip
    assert lines[9].index("time") + 4 == len(lines[10]) == len(lines[12])
    assert lines[-1] == r"Note: a <note>\x1b[2J"


def test_a_path_is_never_broken() -> None:
    """Long text is wrapped only at spaces, and a plain value not at all."""
    path = "/content/" + "folder-" * 20
    assert path in str(Table((Row(("a", f"word {path} " * 2), "what to do", "warn"),)))
    assert f"a  word {path}" in str(facts([("a", f"word {path}")]))


def test_html_is_escaped() -> None:
    """The caller's names are text, every part is present, and numbers are aligned."""
    page = REPORT._repr_html_()
    for words in ("&lt;decoding&gt;", "x&lt;y&gt;", "of &lt;a.zip&gt;", "a &lt;note&gt;", "width:100.0%"):
        assert words in page
    # A row for each line, each heading, and each text below.
    assert page.count("<tr") == 3 + 5 + 4
    assert page.count("class='cs-number'") == 3 + 3
    assert facts([]).html == ""


def test_json_has_fields_and_properties_of_the_subclass() -> None:
    """Numbers that JSON lacks become null; private and display attributes are left out."""
    found = json.loads(json.dumps(REPORT.to_dict(), allow_nan=False))
    assert found.keys() == {"headline", "notes", "path", "rate", "double"}
    assert (found["path"], found["rate"], found["double"]) == ("photos", None, None)


def test_a_picture_has_the_bars_and_fits_its_heading() -> None:
    """A sentence is broken at the picture's edge; without bars there is nothing to draw."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    figure = Report("word " * 60, (FINDINGS, BARS)).plot()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["decode", "step", "none"]
    (heading,) = figure.texts
    # 97 characters fit into 9 inches.
    assert max(map(len, heading.get_text().splitlines())) < 97
    with pytest.raises(NotSupportedHereError, match="Report"):
        Report("nothing").plot()


def test_no_rule_reaches_beyond_our_class_or_paints_a_background() -> None:
    always = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^}]*\})*)\}", r"\1", STYLE.removesuffix("</style>"))
    rules = re.findall(r"([^{}>]+)\{([^}]*)\}", always)
    assert len(rules) > 5
    assert [selector for selector, _ in rules for part in selector.split(",") if ".cs-" not in part] == []
    assert [body for _, body in rules if re.search(r"background(?!:none)", body)] == []
