"""`GpuMonitor`: how busy the GPU is while a model trains, sampled in the background.

Functions turn the samples into figures, sentences, a plot, and the live lines in a notebook that show how busy each GPU
is.
"""

from __future__ import annotations

import contextlib
import html
import logging
import threading
import time
import warnings
import weakref
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

from colabstage.errors import NotSupportedHereError
from colabstage.io.arguments import check_argument, takes_names
from colabstage.io.page import COLOURS, in_notebook, new_figure, page, plain_axes
from colabstage.io.units import format_bytes, format_duration
from colabstage.machine.gpu import gpu_problem, open_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from matplotlib.figure import Figure

    from colabstage.machine.gpu import GpuProcess, GpuReading, GpuSource

# With a lower utilisation no training step can have run in the driver's sampling period.
IDLE = 0.05
# A GPU that trains from memory is above 90 %; below this, more than half of it is unused.
_LOW = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
_HEIGHT = 28
_STEP = 4
_LINES = ("#2a86b0", "#c8553d", "#2e8b57", "#8a5aa8", "#b7791f", "#4a5a6a", "#b04a7a", "#6a8a2a")

_log = logging.getLogger(__name__)

# A night with two samples a second would take 70 MB; beyond this number every second sample is dropped and the interval
# doubled.
_MOST_SAMPLES = 7200
# nvidia-smi sometimes fails to answer on a busy machine.
_MOST_FAILURES = 3
# The processes on a GPU change rarely, and listing them is a second call of nvidia-smi.
_PROCESSES_EVERY_S = 5.0
_SHOW_EVERY_S = 1.0
_END_S = 1.0


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs at one moment."""

    seconds: float
    """When it was taken, after the monitor's start."""
    gpus: tuple[GpuReading, ...]
    """The reading of each GPU."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU over all samples; `None` for values that the driver does not report."""

    index: int
    """The GPU's number."""
    name: str
    """Its product name."""
    samples: int
    """How many samples there are."""
    seconds: float
    """How long from the first to the last."""
    utilisation: float | None
    """Mean utilisation, 0 to 1."""
    idle: float | None
    """Fraction of the samples below 5 %."""
    memory_bytes: int | None
    """The peak of used memory."""
    memory_total_bytes: int | None
    """The total memory."""
    power_w: float | None
    """The mean power in watts."""
    power_limit_w: float | None
    """The most it may draw."""
    energy_wh: float | None
    """Total energy in watt hours."""
    sliced: bool = False
    """Whether it is divided into MIG slices."""
    processes: tuple[GpuProcess, ...] = ()
    """The processes that computed on it, with the peak memory of each."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.utilisation is None:
            use = (
                "utilisation not reported, because it is divided into MIG slices"
                if self.sliced
                else "utilisation not told"
            )
        else:
            use = f"{self.utilisation:.0%} busy on average, idle in {self.idle or 0:.0%} of {self.samples:,} samples"
        parts = [use]
        if self.memory_bytes is not None:
            total = "" if self.memory_total_bytes is None else f" of {format_bytes(self.memory_total_bytes)}"
            parts.append(f"memory {format_bytes(self.memory_bytes)}{total} at its peak")
        if self.power_w is not None:
            limit = "" if self.power_limit_w is None else f" of {self.power_limit_w:.0f} W"
            parts.append(f"{self.power_w:.0f} W{limit} on average")
        return f"GPU {self.index}, {self.name}: {'; '.join(parts)}"

    @property
    def advice(self) -> str:
        """Return what to do about it, as a sentence; empty if it is busy, or if its utilisation is unknown."""
        if self.utilisation is None or self.utilisation >= _LOW:
            return ""
        return (
            f"GPU {self.index} waits most of the time. profile_loader(loader, step) says for what, and what to change."
        )


def figure_out(samples: Sequence[GpuSample]) -> tuple[GpuFigures, ...]:
    """Return the figures of each GPU, by index, treating samples as equally spaced."""
    by_gpu: dict[int, list[GpuReading]] = {}
    for sample in samples:
        for reading in sample.gpus:
            by_gpu.setdefault(reading.index, []).append(reading)
    seconds = samples[-1].seconds - samples[0].seconds if samples else 0.0
    return tuple(_summarise(readings, seconds) for _, readings in sorted(by_gpu.items()))


def _summarise(readings: Sequence[GpuReading], seconds: float) -> GpuFigures:
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
        processes=_processes_of(readings),
    )


def _processes_of(readings: Sequence[GpuReading]) -> tuple[GpuProcess, ...]:
    # By process, with the peak over all samples.
    most: dict[int, GpuProcess] = {}
    for process in (process for reading in readings for process in reading.processes):
        before = most.get(process.pid)
        if before is None or (process.memory_bytes or 0) >= (before.memory_bytes or 0):
            most[process.pid] = process
    return tuple(most[pid] for pid in sorted(most))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; `None` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summarise(samples: Sequence[GpuSample], problem: str | None) -> str:
    """Return a line for each GPU, and what to do; or why there are no figures."""
    if not samples:
        return problem or "No sample of a GPU was taken yet."
    figures = figure_out(samples)
    lines = [str(one) for one in figures] + [one.advice for one in figures if one.advice]
    lines += [f"Watching ended after {format_duration(samples[-1].seconds)}: {problem}"] if problem else []
    return "\n".join(lines)


def history(samples: Sequence[GpuSample], index: int, *, width: int) -> list[float | None]:
    """Return the utilisation of one GPU, 0 to 1, in at most `width` equal parts of the samples."""
    values = [reading.utilisation for sample in samples for reading in sample.gpus if reading.index == index]
    if len(values) <= width:
        return values
    # Means of equal parts, in which a peak of one sample counts only for its duration.
    edges = [len(values) * part // width for part in range(width + 1)]
    return [mean(values[start:stop]) for start, stop in pairwise(edges)]


def draw_blocks(values: Iterable[float | None]) -> str:
    """Return a line of block characters; blanks for unknown values.

    >>> draw_blocks([0.0, 0.5, 1.0, None])
    '▁▅█ '
    """
    top = len(_BLOCKS) - 1
    return "".join(" " if value is None else _BLOCKS[min(top, round(value * top))] for value in values)


class LiveUsage:
    """The live display at one moment: SVG in a notebook, block characters elsewhere."""

    def __init__(self, samples: Sequence[GpuSample], problem: str | None) -> None:
        self._samples = samples
        self._problem = problem

    def __repr__(self) -> str:
        if not self._samples:
            return self._problem or "Waiting for the GPU's first answer …"
        return "\n".join(
            f"GPU {gpu.index} {draw_blocks(history(self._samples, gpu.index, width=_COLUMNS))} {_describe_reading(gpu)}"
            for gpu in self._samples[-1].gpus
        )

    def _repr_html_(self) -> str:
        if not self._samples:
            return page(repr(self), "")
        rows = "".join(
            f"<tr><th>GPU {gpu.index}</th><td>{draw_svg(history(self._samples, gpu.index, width=_COLUMNS))}</td>"
            f"<td>{html.escape(_describe_reading(gpu))}</td></tr>"
            for gpu in self._samples[-1].gpus
        )
        return page(self._problem or "", f"<table>{rows}</table>")


def _describe_reading(gpu: GpuReading) -> str:
    parts = ["utilisation not told" if gpu.utilisation is None else f"{gpu.utilisation:.0%} busy"]
    if gpu.memory_used_bytes is not None:
        parts.append(f"{format_bytes(gpu.memory_used_bytes)} held")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    return ", ".join(parts)


def draw_svg(values: Sequence[float | None]) -> str:
    """Draw bars from 0 to 1 on a line, as an SVG element of at most 240 x 28 pixels."""
    width = _COLUMNS * _STEP
    # At least a pixel high, so that idle time shows as a line and missing samples as a gap.
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


@takes_names
class GpuMonitor:
    """Sample the GPUs in the background: utilisation, memory, power, and the processes that use them.

    It uses NVML if the package nvidia-ml-py is installed, otherwise the program nvidia-smi. In a notebook a sparkline
    below the cell shows the latest samples. On a machine without an NVIDIA GPU it logs one message and does nothing. It
    can be started again, and then adds to its samples.

    >>> with GpuMonitor() as gpu:  # doctest: +SKIP
    ...     train()
    >>> print(gpu.summary())  # doctest: +SKIP
    GPU 0, Tesla T4: 34% busy on average, idle in 52% of 120 samples; memory 3.1 GB of 16.1 GB at its peak; …
    """

    def __init__(
        self,
        interval_s: float = 0.5,
        *,
        live: bool | Literal["auto"] = "auto",
        timeout_s: float = 5.0,
        notice: Callable[[str], object] | None = None,
    ) -> None:
        """Create a monitor; it reads nothing before it is started.

        Args:
            interval_s: seconds between two samples; doubled whenever there are 7,200 samples.
            live: show the sparkline; `"auto"` in a notebook only.
            timeout_s: seconds that nvidia-smi may take for an answer.
            notice: called, once, with the sentence that says why there is nothing to watch; a log message by default.

        Raises:
            OptionError: `interval_s` or `timeout_s` is not above 0.
        """
        check_argument("interval_s", interval_s, "above zero")
        check_argument("timeout_s", timeout_s, "above zero")
        self._interval_s = interval_s
        self._live = in_notebook() if live == "auto" else live
        self._timeout_s = timeout_s
        self._notice = (lambda problem: _log.warning("GpuMonitor: %s", problem)) if notice is None else notice
        self._run: _SamplingThread | None = None
        self._earlier: tuple[GpuSample, ...] = ()
        self._problem: str | None = None
        self._has_said = False

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """Return all samples so far, in order; empty without a GPU."""
        return self._earlier + (() if self._run is None else self._run.taken())

    @property
    def figures(self) -> tuple[GpuFigures, ...]:
        """Return the means and maxima of each GPU so far."""
        return figure_out(self.samples)

    @property
    def problem(self) -> str | None:
        """Return why nothing is sampled, or why sampling ended early; `None` if all is well."""
        return self._problem if self._run is None else self._run.problem

    def start(self) -> Self:
        """Start sampling, and return at once. Starting it twice is fine."""
        if self._run is not None:
            return self
        self._problem = None
        # Not an error, because the same notebook must run on a machine without a GPU.
        problem = gpu_problem()
        if problem is not None:
            self._problem = f"Nothing to watch: {problem}."
            self._say(self._problem)
            return self
        # The handle's `update` replaces what is shown below the cell, from any thread.
        handle = import_module("IPython.display").display(LiveUsage((), None), display_id=True) if self._live else None
        # Time continues where the last run ended, so that a plot of both runs does not jump back.
        began = self._earlier[-1].seconds + self._interval_s if self._earlier else 0.0
        self._run = _SamplingThread(self._interval_s, self._timeout_s, began, handle)
        self._run.start()
        # If a monitor is dropped without being stopped, its thread must end.
        weakref.finalize(self, self._run.stop_soon)
        return self

    def stop(self) -> None:
        """End sampling and its thread. Stopping it twice is fine."""
        if self._run is None:
            return
        self._run.stop(self._timeout_s + _END_S)
        # Samples of all runs are kept, so that a monitor can be started for each epoch.
        self._earlier += self._run.taken()
        self._problem = self._run.problem
        self._run = None
        if self._problem is not None:
            self._say(self._problem)

    def _say(self, problem: str) -> None:
        if self._has_said:
            return
        self._has_said = True
        self._notice(problem)

    def sparklines(self) -> str:
        """Return one line of block characters for the utilisation of each GPU."""
        return repr(LiveUsage(self.samples, self.problem))

    def strip(self) -> str:
        """Return `sparklines()`; this is its old name."""
        warnings.warn(
            "GpuMonitor.strip is GpuMonitor.sparklines now; the old name goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.sparklines()

    def summary(self) -> str:
        """Return a line for each GPU, and what to do if one is waiting."""
        return summarise(self.samples, self.problem)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, and every sample, as JSON values."""
        return {
            "problem": self.problem,
            "gpus": [one.to_dict() for one in self.figures],
            "samples": [asdict(sample) for sample in self.samples],
        }

    def plot(self) -> Figure:
        """Draw utilisation and memory over time, a line for each GPU.

        Returns:
            A matplotlib figure, which a notebook shows; `.savefig("gpu.png")` writes it.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        figure = new_figure(9.0, 4.4)
        panels: list[tuple[str, Callable[[GpuReading], float | None]]] = [
            ("busy, %", lambda gpu: None if gpu.utilisation is None else 100 * gpu.utilisation),
            ("memory, GB", lambda gpu: None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / 1e9),
        ]
        axes = figure.subplots(2, 1, sharex=True)
        readings = [(sample.seconds, gpu) for sample in self.samples for gpu in sample.gpus]
        for axis, (label, value) in zip(axes, panels, strict=True):
            for one in self.figures:
                points = [(seconds, value(gpu)) for seconds, gpu in readings if gpu.index == one.index]
                # Missing values leave no gap, because a line through the others shows more.
                known = [point for point in points if point[1] is not None]
                if known:
                    busy = "" if one.utilisation is None else f": {one.utilisation:.0%} busy on average"
                    look = {"color": _LINES[one.index % len(_LINES)], "label": f"GPU {one.index}, {one.name}{busy}"}
                    axis.plot(*zip(*known, strict=True), linewidth=1.4, **look)
            axis.set_ylabel(label)
            # From zero, or a little noise would fill the plot.
            axis.set_ylim(bottom=0)
            plain_axes(axis)
        axes[0].set_ylim(0, 105)  # a line at 100 % would otherwise be cut in half
        if axes[0].lines:
            axes[0].legend(frameon=False, ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(-0.01, 1.0))
        axes[1].set_xlabel("seconds")
        return figure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        samples = self.samples
        if not samples:
            return page(self.summary(), "")
        rows = "".join(
            f"<tr><th>GPU {one.index}, {html.escape(one.name)}</th>"
            f"<td>{draw_svg(history(samples, one.index, width=60))}</td>"
            f"<td>{html.escape(str(one).partition(': ')[2])}{_process_table(one)}"
            f"<div class='cs-muted'>{html.escape(one.advice)}</div></td></tr>"
            for one in self.figures
        )
        return page(self.problem or f"{len(samples):,} samples of the GPU", f"<table>{rows}</table>")


def _process_table(one: GpuFigures) -> str:
    shown = ", ".join(
        f"{process.pid} {process.name} ({format_bytes(process.memory_bytes or 0)})" for process in one.processes[:6]
    )
    return f"<div class='cs-muted'>processes: {html.escape(shown)}</div>" if shown else ""


class _SamplingThread:
    """The thread of a started monitor. It has no reference to the monitor, which may be dropped meanwhile."""

    def __init__(self, interval_s: float, timeout_s: float, began: float, handle: Any) -> None:
        self.problem: str | None = None
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._began = began
        self._handle = handle
        self._samples: list[GpuSample] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        # A daemon: a driver that never answers must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._work, name="colabstage-gpu-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def taken(self) -> tuple[GpuSample, ...]:
        with self._lock:
            return tuple(self._samples)

    def stop_soon(self) -> None:
        """Ask the thread to end, without waiting."""
        self._end.set()

    def stop(self, timeout_s: float) -> None:
        """End the thread. One whose driver never answers is left behind; it ends with the process."""
        self.stop_soon()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.problem = "The driver has not answered; restart the session if a model cannot use the GPU either."

    def _work(self) -> None:
        try:
            with contextlib.closing(open_gpus(timeout_s=self._timeout_s)) as source:
                self._sample(source)
        except NotSupportedHereError as error:
            self.problem = str(error)
        finally:
            self._update()

    def _sample(self, source: GpuSource) -> None:
        began = time.monotonic()
        shown = asked = -float("inf")
        failures = 0
        while True:
            now = time.monotonic() - began
            try:
                # The processes change rarely, and listing them takes longer than everything else.
                gpus = source.read(processes=now - asked > _PROCESSES_EVERY_S)
                asked = now if now - asked > _PROCESSES_EVERY_S else asked
                failures = 0
                self._keep(GpuSample(self._began + now, gpus))
            except NotSupportedHereError:
                failures += 1
                # A single failure is common while a driver is busy; a row of them means that it is gone.
                if failures == _MOST_FAILURES:
                    raise
            if now - shown > _SHOW_EVERY_S:
                shown = now
                self._update()
            # Minus the time of the reading, so that samples are evenly spaced.
            if self._end.wait(max(0.0, self._interval_s - (time.monotonic() - began - now))):
                return

    def _keep(self, sample: GpuSample) -> None:
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) >= _MOST_SAMPLES:
                # Every other sample is dropped, so that a plot of hours of training keeps its size and covers all of
                # it.
                del self._samples[1::2]
                self._interval_s *= 2

    def _update(self) -> None:
        if self._handle is None:
            return
        # A page that was closed meanwhile must not end the sampling.
        with contextlib.suppress(Exception):
            self._handle.update(LiveUsage(self.taken(), self.problem))
