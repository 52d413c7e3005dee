"""What every picture begins with: an empty matplotlib figure that shows itself in a notebook.

Notebooks know how to show a figure only once pyplot has been imported, which also chooses a backend for the whole
session; without it they print `<Figure size …>`.
"""

from __future__ import annotations

import base64
import io
import re
from functools import cache
from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError
from colabstage.io.page import TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The ink of our plots, and matplotlib's own; the paper that they are drawn on.
_INK = re.compile(r"#1f2933|#000000")
_PAPER = re.compile(r"fill: #ffffff")
# Who drew it and when: a page that drops the drawing's elements keeps their text.
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure of so many inches that no window and no global state knows of.

    A notebook shows it in the colours of its page; what is saved is on white.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        shown = _shown_figure()
    except ImportError as error:
        msg = "Drawing needs matplotlib. Install it with: pip install matplotlib"
        raise MissingDependencyError(msg) from error
    return shown(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")


# Made when the first picture is drawn, because importing matplotlib takes longer than everything else here.
@cache
def _shown_figure() -> type[Figure]:
    """Return the class of figures with a canvas of their own, which are PNGs wherever PNGs are shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def __init__(self, **options: object) -> None:
            super().__init__(**options)  # type: ignore[arg-type]
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

        def _repr_html_(self) -> str:
            """Draw it in the colours of the page; the PNG is for a notebook that is not trusted: it drops drawings."""
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

    return ShownFigure
