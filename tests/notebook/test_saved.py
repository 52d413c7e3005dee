"""What a saved notebook keeps: HTML that shows the same where scripts, styles and drawings are dropped."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from colabstage.io.page import new_figure
from colabstage.notebook.saved import as_images


def test_drawings_become_images() -> None:
    """With their size and what is beside them; nothing of a drawing is left that a page could drop."""
    drawn = "<div class='cs-cell'><svg class='cs-picture' viewBox='0 0 40 30' style='width:9em'><rect/></svg>car</div>"
    kept = as_images(drawn)
    assert "<svg" not in kept
    assert kept.count("<img class='cs-picture' alt='' style='width:9em' src='data:image/svg+xml;base64,") == 1
    assert "car</div>" in kept
    # A row begins where the tallest cell of the one before ends, which floats would not wait for.
    assert "<div class='cs-cell' style='display:inline-block;vertical-align:top;" in kept


def test_a_figure_says_nothing_of_who_drew_it() -> None:
    """A page that drops the drawing keeps the text in it, which is then above the picture."""
    figure: Any = new_figure(1, 1)
    html = figure._repr_html_()
    assert html.count("<svg") == html.count("<img") == 1
    assert "metadata" not in html
    assert "matplotlib.org" not in html
