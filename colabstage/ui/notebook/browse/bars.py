"""How many samples each class has, as bars that are pressed to see only those: the most frequent first where there
are many, a dozen at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.ui.notebook.browse.grid import draw_bars

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.ui.samples.labels import Labels

_AT_A_TIME = 14


def bar_order(counts: NDArray[np.int64]) -> list[int]:
    """The classes in the order of their bars: as they are numbered where all are seen at once, else by frequency."""
    if len(counts) <= _AT_A_TIME:
        return list(range(len(counts)))
    return [int(number) for number in np.argsort(-counts, kind="stable")]


class Bars:
    """The bars, and faceless buttons over them."""

    def __init__(self, widgets: Any, choose: Callable[[int | None], None]) -> None:
        """`widgets`: the module ipywidgets. `choose`: called with a class's place among the names, `None` for all."""
        self._choose = choose
        self._labels: Labels | None = None
        self._chosen: int | None = None
        self._start = 0
        self._drawn = widgets.HTML()
        self._buttons = [widgets.Button(tooltip="Show only this class, or all again") for _ in range(_AT_A_TIME)]
        for place, button in enumerate(self._buttons):
            button.on_click(lambda _, place=place: self._press(place))
        over = widgets.Box(self._buttons)
        over.add_class("cs-over")
        over.add_class("cs-over-bars")
        stack = widgets.Box([self._drawn, over])
        stack.add_class("cs-stack")
        self._more = widgets.Button(tooltip="The next classes")
        self._more.layout.width = "auto"
        self._more.on_click(lambda _: self._show_more())
        self.widget = widgets.VBox([stack, self._more])
        self.widget.layout.flex = "0 0 190px"
        self.widget.layout.margin = "0 14px 0 0"

    def show(self, labels: Labels, chosen: int | None) -> None:
        """Draw the bars of a split."""
        if labels is not self._labels:
            self._start = 0
        self._labels, self._chosen = labels, chosen
        self._draw(labels)

    def _draw(self, labels: Labels) -> None:
        shown = self._shown(labels)
        bars = [(labels.names[number], int(labels.counts[number]), number == self._chosen) for number in shown]
        self._drawn.value = draw_bars(bars, int(labels.counts.max(initial=0)))
        for place, button in enumerate(self._buttons):
            button.layout.display = "" if place < len(shown) else "none"
        self.widget.layout.display = "" if shown else "none"
        left = len(labels.names) - self._start - len(shown)
        self._more.layout.display = "" if len(labels.names) > _AT_A_TIME else "none"
        self._more.description = f"{left:,} more" if left else "from the first again"

    def _shown(self, labels: Labels) -> list[int]:
        return bar_order(labels.counts)[self._start : self._start + _AT_A_TIME]

    def _press(self, place: int) -> None:
        if self._labels is not None:
            number = self._shown(self._labels)[place]
            self._choose(None if number == self._chosen else number)

    def _show_more(self) -> None:
        if self._labels is not None:
            following = self._start + _AT_A_TIME
            self._start = following if following < len(self._labels.names) else 0
            self._draw(self._labels)
