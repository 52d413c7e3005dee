"""What every picture begins with: an empty figure that a notebook shows, whatever else was or was not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure of so many inches that no window and no global state knows of.

    A notebook shows it in the colours of its page; what is saved is on white.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from colabstage.diagnose.figure import PageFigure
    except ImportError as error:
        msg = "Drawing needs matplotlib. Install it with: pip install matplotlib"
        raise MissingDependencyError(msg) from error
    return PageFigure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
