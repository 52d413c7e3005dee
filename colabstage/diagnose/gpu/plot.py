"""A monitor's samples as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.diagnose.drawing import new_figure
from colabstage.diagnose.gpu.figures import figure_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from colabstage.diagnose.gpu.figures import GpuFigures, GpuSample
    from colabstage.machine.gpu import GpuReading

_LINES = ("#2a86b0", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a", "#b04a7a", "#6a8a2a")


def draw_samples(samples: Sequence[GpuSample]) -> Figure:
    """Utilisation and memory over time, a line for each GPU.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(9.0, 4.4)
    panels: list[tuple[str, Callable[[GpuReading], float | None]]] = [
        ("busy, %", lambda gpu: None if gpu.utilisation is None else 100 * gpu.utilisation),
        ("memory, GB", lambda gpu: None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / 1e9),
    ]
    names = {one.index: _label(one) for one in figure_out(samples)}
    axes = figure.subplots(2, 1, sharex=True)
    for axis, (label, value) in zip(axes, panels, strict=True):
        for index, points in _lines(samples, value).items():
            xs, ys = zip(*points, strict=True)
            axis.plot(xs, ys, color=_LINES[index % len(_LINES)], linewidth=1.4, label=names[index])
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 105)
    if axes[0].lines:
        axes[0].legend(frameon=False, ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(-0.01, 1.0))
    axes[1].set_xlabel("seconds")
    return figure


def _label(one: GpuFigures) -> str:
    busy = "" if one.utilisation is None else f": {one.utilisation:.0%} busy in the mean"
    return f"GPU {one.index}, {one.name}{busy}"


def _lines(
    samples: Sequence[GpuSample], value: Callable[[GpuReading], float | None]
) -> dict[int, list[tuple[float, float]]]:
    lines: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            found = value(gpu)
            if found is not None:
                lines.setdefault(gpu.index, []).append((sample.seconds, found))
    return lines
