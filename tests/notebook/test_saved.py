"""What a saved notebook keeps: HTML that shows the same where scripts, styles and drawings are dropped."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from colabstage.io.report import new_figure


def test_a_figure_says_nothing_of_who_drew_it() -> None:
    """A page that drops the drawing keeps the text in it, which is then above the picture."""
    figure: Any = new_figure(1, 1)
    html = figure._repr_html_()
    assert html.count("<svg") == html.count("<img") == 1
    assert "metadata" not in html
    assert "matplotlib.org" not in html
