"""HTML that notebooks show: legible on any page, escaped, without scripts."""

from __future__ import annotations

import re

import pytest

from colabstage.io.report import COLOURS, STYLE, left_aligned, notes, page

MISCHIEF = "<script>alert('&')</script>"


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How well one colour is told from another, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#111111", "#1e1e1e"])
@pytest.mark.parametrize("name", COLOURS)
def test_colours_stand_out_on_any_page(name: str, background: str) -> None:
    assert contrast(COLOURS[name], background) > 3


@pytest.mark.parametrize("html", [page(MISCHIEF, ""), notes([MISCHIEF])], ids=["page", "notes"])
def test_text_is_text(html: str) -> None:
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_no_rule_reaches_beyond_our_class_or_paints_a_background() -> None:
    always = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^}]*\})*)\}", r"\1", STYLE.removesuffix("</style>"))
    rules = re.findall(r"([^{}>]+)\{([^}]*)\}", always)
    assert len(rules) > 5
    assert [selector for selector, _ in rules for part in selector.split(",") if ".cs-" not in part] == []
    assert [body for _, body in rules if re.search(r"background(?!:none)", body)] == []


def test_cells_are_aligned_without_the_style_sheet() -> None:
    drawn = "<tr><th>a</th><td style='color:red'>b</td><td class='cs-number'>1</td></tr>"
    left, right = "style='text-align:left'", "style='text-align:right'"
    assert left_aligned(drawn) == (
        f"<tr><th {left}>a</th><td style='text-align:left;color:red'>b</td><td class='cs-number' {right}>1</td></tr>"
    )
    assert left in page("headline", "<table><tr><td>value</td></tr></table>")
