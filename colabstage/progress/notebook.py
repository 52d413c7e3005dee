"""Progress in the output of a notebook cell: one panel of HTML, drawn anew in its place.

No widget: a cell that works keeps its kernel busy, so a button of the panel would do nothing until the work is over
(kernels before ipykernel 7), and widgets turn into their names when the page is loaded again. What is drawn here stays
in the notebook as it ended.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

from colabstage.progress.board import Board
from colabstage.progress.drawing import panel_html, panel_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colabstage.progress.board import Row

_HOW_TO_STOP = "To cancel, stop the cell. What is finished is kept, and the next call goes on from there."


def draws_html(shell_classes: Iterable[str]) -> bool:
    """Whether the front end of an IPython shell, told by the names of its class and those above it, draws HTML.

    A kernel serves notebooks, of which all do: Colab, Jupyter, VS Code, Kaggle. Spyder's console is a kernel and shows
    text; IPython in a terminal is none. A console that somebody connects to a notebook's kernel cannot be told apart.
    """
    names = set(shell_classes)
    return "ZMQInteractiveShell" in names and "SpyderShell" not in names


def in_notebook() -> bool:
    """Whether this process answers to a notebook that draws HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and draws_html(kind.__name__ for kind in type(shell).__mro__)


class NotebookProgress(Board):
    """Shows all steps in one panel, in the output of the cell that opened the first."""

    def __init__(self) -> None:
        """Nothing is shown before the first step."""
        super().__init__(self._draw_panel)
        self._display_id = f"colabstage-{uuid.uuid4().hex}"
        self._displayed = False

    def _draw_panel(self, rows: Sequence[Row]) -> None:
        import IPython.display

        # Whether it has types depends on its version.
        display: Any = IPython.display.display
        note = _HOW_TO_STOP if any(row.state == "running" for row in rows) else ""
        content = {"text/html": panel_html(rows, note), "text/plain": panel_text(rows)}
        update, self._displayed = self._displayed, True
        display(content, raw=True, display_id=self._display_id, update=update)
