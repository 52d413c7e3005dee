"""The strip that shows in a notebook, while a monitor runs, how busy each GPU has been."""

from __future__ import annotations

import html
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.gpu.figures import draw_blocks, history
from colabstage.page import COLOURS, page
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.diagnose.gpu.figures import GpuSample
    from colabstage.machine.gpu import GpuReading

_COLUMNS = 60
_HEIGHT = 28
_STEP = 4


class Strip:
    """What is shown at one moment: SVG in a notebook, block characters elsewhere."""

    def __init__(self, samples: Sequence[GpuSample], problem: str | None) -> None:
        self._samples = samples
        self._problem = problem

    def __repr__(self) -> str:
        if not self._samples:
            return self._problem or "Waiting for the GPU's first answer …"
        return "\n".join(
            f"GPU {gpu.index} {draw_blocks(history(self._samples, gpu.index, width=_COLUMNS))} {_describe(gpu)}"
            for gpu in self._samples[-1].gpus
        )

    def _repr_html_(self) -> str:
        if not self._samples:
            return page(repr(self), "")
        rows = "".join(
            f"<tr><th>GPU {gpu.index}</th><td>{draw_svg(history(self._samples, gpu.index, width=_COLUMNS))}</td>"
            f"<td>{html.escape(_describe(gpu))}</td></tr>"
            for gpu in self._samples[-1].gpus
        )
        return page(self._problem or "", f"<table>{rows}</table>")


def _describe(gpu: GpuReading) -> str:
    parts = ["utilisation not told" if gpu.utilisation is None else f"{gpu.utilisation:.0%} busy"]
    if gpu.memory_used_bytes is not None:
        parts.append(f"{format_bytes(gpu.memory_used_bytes)} held")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    return ", ".join(parts)


def draw_svg(values: Sequence[float | None]) -> str:
    """Bars from 0 to 1 on a line, as an SVG element of 240 x 28 pixels at the most."""
    width = _COLUMNS * _STEP
    bars = "".join(
        f"<rect x='{number * _STEP}' y='{_HEIGHT - max(1.0, value * _HEIGHT):.1f}' width='{_STEP - 1}' "
        f"height='{max(1.0, value * _HEIGHT):.1f}'/>"
        for number, value in enumerate(values)
        if value is not None
    )
    return (
        f"<svg width='{width}' height='{_HEIGHT}' role='img' aria-label='utilisation' fill='{COLOURS['accent']}'>"
        f"<rect width='{width}' height='{_HEIGHT}' fill='{COLOURS['muted']}' opacity='.15'/>{bars}</svg>"
    )


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, so that something can be shown below the cell."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get_shell() if get_shell else None, "kernel", None) is not None


def show(strip: Strip) -> Any:
    """Show a strip below the running cell; its `.update(strip)` replaces it, from any thread."""
    return import_module("IPython.display").display(strip, display_id=True)
