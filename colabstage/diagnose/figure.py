"""A matplotlib figure that shows itself in a notebook. Imports matplotlib, so it is imported only where one is drawn.

Notebooks know how to show a figure only once pyplot has been imported, which also chooses a backend for the whole
session; without it they print `<Figure size …>`.
"""

from __future__ import annotations

import base64
import io
import re

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from colabstage.io.page import TEXT_COLOUR

# The ink of our plots, and matplotlib's own; the paper that they are drawn on.
_INK = re.compile(r"#1f2933|#000000")
_PAPER = re.compile(r"fill: #ffffff")
# Who drew it and when: a page that drops the drawing's elements keeps their text.
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


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

    def _repr_html_(self) -> str:
        """Draw it in the colours of the page; the PNG is for a notebook that is not trusted, which drops drawings."""
        buffer = io.StringIO()
        self.savefig(buffer, format="svg", facecolor="none")
        drawn = buffer.getvalue()
        drawn = _METADATA.sub("", drawn[drawn.index("<svg") :])
        drawn = _PAPER.sub("fill: none", _INK.sub("currentColor", drawn))
        picture = base64.b64encode(self._repr_png_()).decode()
        return (
            "<style>.cs-figure{overflow-x:auto}.cs-figure svg{max-width:max(100%,640px);height:auto}"
            ".cs-figure img{display:none}</style>"
            f"<div class='cs-figure' style='color:{TEXT_COLOUR}'>{drawn}"
            f"<img alt='' src='data:image/png;base64,{picture}'></div>"
        )
