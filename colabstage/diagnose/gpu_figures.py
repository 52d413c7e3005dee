"""What a stretch of GPU samples says: figures, sentences, a picture, and the lines that show in a notebook, while a
monitor runs, how busy each GPU has been.
"""

from __future__ import annotations

import html
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.drawing import new_figure
from colabstage.io.page import COLOURS, page
from colabstage.io.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.figure import Figure

    from colabstage.machine.gpu import GpuProcess, GpuReading

# Below this part of a driver's period nothing of a training loop ran on it.
IDLE = 0.05
# A GPU that trains from memory is above 90 %; below this, more than half of what is paid for is not used.
_LOW = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
_HEIGHT = 28
_STEP = 4
_LINES = ("#2a86b0", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a", "#b04a7a", "#6a8a2a")


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs at one moment."""

    seconds: float
    """When it was taken, after the monitor's start."""
    gpus: tuple[GpuReading, ...]
    """What each GPU said."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU over all samples; `None` where the driver told nothing."""

    index: int
    """The GPU's number."""
    name: str
    """What its maker calls it."""
    samples: int
    """How many samples there are."""
    seconds: float
    """How long from the first to the last."""
    utilisation: float | None
    """Mean part of the time in which it was busy, 0 to 1."""
    idle: float | None
    """Part of the samples below 5 %."""
    memory_bytes: int | None
    """The most memory that was held."""
    memory_total_bytes: int | None
    """The memory that there is."""
    power_w: float | None
    """The mean of the watts."""
    power_limit_w: float | None
    """The most it may draw."""
    energy_wh: float | None
    """Watt hours in all."""
    sliced: bool = False
    """Whether it is cut into MIG slices."""
    processes: tuple[GpuProcess, ...] = ()
    """Who computed on it, with the most memory that each held."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [_describe_use(self)]
        if self.memory_bytes is not None:
            total = "" if self.memory_total_bytes is None else f" of {format_bytes(self.memory_total_bytes)}"
            parts.append(f"memory {format_bytes(self.memory_bytes)}{total} at its peak")
        if self.power_w is not None:
            limit = "" if self.power_limit_w is None else f" of {self.power_limit_w:.0f} W"
            parts.append(f"{self.power_w:.0f} W{limit} on average")
        return f"GPU {self.index}, {self.name}: {'; '.join(parts)}"

    @property
    def advice(self) -> str:
        """Return what to do about it, as a sentence; empty where it is busy, or where nobody knows."""
        if self.utilisation is None or self.utilisation >= _LOW:
            return ""
        return (
            f"GPU {self.index} waits most of the time. profile_loader(loader, step) says for what, and what to change."
        )


def _describe_use(one: GpuFigures) -> str:
    if one.utilisation is None:
        return "utilisation not told, as it is cut into MIG slices" if one.sliced else "utilisation not told"
    return f"{one.utilisation:.0%} busy on average, idle in {one.idle or 0:.0%} of {one.samples:,} samples"


def figure_out(samples: Sequence[GpuSample]) -> tuple[GpuFigures, ...]:
    """Return the figures of each GPU, by index. Samples are taken as equally far apart."""
    by_gpu: dict[int, list[GpuReading]] = {}
    for sample in samples:
        for reading in sample.gpus:
            by_gpu.setdefault(reading.index, []).append(reading)
    seconds = samples[-1].seconds - samples[0].seconds if samples else 0.0
    return tuple(_figures(readings, seconds) for _, readings in sorted(by_gpu.items()))


def _figures(readings: Sequence[GpuReading], seconds: float) -> GpuFigures:
    last = readings[-1]
    busy = [one.utilisation for one in readings if one.utilisation is not None]
    memory = [one.memory_used_bytes for one in readings if one.memory_used_bytes is not None]
    power = mean(one.power_w for one in readings)
    return GpuFigures(
        index=last.index,
        name=last.name,
        samples=len(readings),
        seconds=seconds,
        utilisation=mean(busy),
        idle=mean(float(value < IDLE) for value in busy),
        memory_bytes=max(memory, default=None),
        memory_total_bytes=last.memory_total_bytes,
        power_w=power,
        power_limit_w=last.power_limit_w,
        energy_wh=None if power is None else power * seconds / 3600,
        sliced=last.sliced,
        processes=_processes(readings),
    )


def _processes(readings: Sequence[GpuReading]) -> tuple[GpuProcess, ...]:
    # By process, because one may be seen in every sample; the most it held is what matters.
    most: dict[int, GpuProcess] = {}
    for process in (process for reading in readings for process in reading.processes):
        before = most.get(process.pid)
        if before is None or (process.memory_bytes or 0) >= (before.memory_bytes or 0):
            most[process.pid] = process
    return tuple(most[pid] for pid in sorted(most))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; `None` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summarise(samples: Sequence[GpuSample], problem: str | None) -> str:
    """Return a line for each GPU, and what to do; or why there is nothing to say."""
    if not samples:
        return problem or "No sample of a GPU was taken yet."
    figures = figure_out(samples)
    lines = [str(one) for one in figures] + [one.advice for one in figures if one.advice]
    lines += [f"Watching ended after {format_duration(samples[-1].seconds)}: {problem}"] if problem else []
    return "\n".join(lines)


def history(samples: Sequence[GpuSample], index: int, *, width: int) -> list[float | None]:
    """Return the utilisation of one GPU, 0 to 1, in `width` equal stretches of the samples; fewer where there are
    fewer."""
    values = [reading.utilisation for sample in samples for reading in sample.gpus if reading.index == index]
    if len(values) <= width:
        return values
    edges = [len(values) * part // width for part in range(width + 1)]
    return [mean(values[start:stop]) for start, stop in pairwise(edges)]


def draw_blocks(values: Iterable[float | None]) -> str:
    """Return a line of block characters.

    >>> draw_blocks([0.0, 0.5, 1.0, None])
    '▁▅█ '
    """
    top = len(_BLOCKS) - 1
    return "".join(" " if value is None else _BLOCKS[min(top, round(value * top))] for value in values)


class LiveUsage:
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
    """Draw bars from 0 to 1 on a line, as an SVG element of 240 x 28 pixels at the most."""
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
    """Tell whether this process is a notebook's kernel, so that something can be shown below the cell."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get_shell() if get_shell else None, "kernel", None) is not None


def show_live(usage: LiveUsage) -> Any:
    """Show usage below the running cell; the handle's `.update(usage)` replaces it, from any thread."""
    return import_module("IPython.display").display(usage, display_id=True)


def draw_samples(samples: Sequence[GpuSample]) -> Figure:
    """Draw utilisation and memory over time, a line for each GPU.

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
    busy = "" if one.utilisation is None else f": {one.utilisation:.0%} busy on average"
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
