"""A matplotlib figure that shows itself in a notebook. Imports matplotlib, so it is imported only where one is drawn.

Notebooks know how to show a figure only once pyplot has been imported, which also chooses a backend for the whole
session; without it they print `<Figure size …>`.
"""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class PageFigure(Figure):
    """A figure with a canvas of its own, which is a PNG wherever PNGs are shown."""

    def __init__(self, *, figsize: tuple[float, float], dpi: float, layout: str, facecolor: str) -> None:
        """Make it as `matplotlib.figure.Figure` is made, with a canvas of its own."""
        super().__init__(figsize=figsize, dpi=dpi, layout=layout, facecolor=facecolor)  # type: ignore[arg-type]
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
