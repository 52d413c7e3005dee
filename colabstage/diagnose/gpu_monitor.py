"""`GpuMonitor`: how busy the GPU is while a model trains, sampled in the background."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from colabstage.diagnose.report import Bar, Report, Row, refuse_gone
from colabstage.errors import NotSupportedHereError
from colabstage.io.arguments import check_argument, takes_names
from colabstage.io.page import in_notebook
from colabstage.io.units import format_bytes, format_duration
from colabstage.machine.gpu import gpu_problem, open_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from matplotlib.figure import Figure

    from colabstage.machine.gpu import GpuProcess, GpuReading, GpuSource

# With a lower utilisation no training step can have run in the driver's sampling period.
_IDLE = 0.05
# A GPU that trains from memory is above 90 %; below this, more than half of it is unused.
_LOW = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
# A night with two samples a second would take 70 MB; beyond this number every second sample is dropped and the interval
# doubled.
_MOST_SAMPLES = 7200
# nvidia-smi sometimes fails to answer on a busy machine.
_MOST_FAILURES = 3
# The processes on a GPU change rarely, and listing them is a second call of nvidia-smi.
_PROCESSES_EVERY_S = 5.0
_SHOW_EVERY_S = 1.0
_END_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs at one moment."""

    seconds: float
    """When it was taken, after the monitor's start."""
    gpus: tuple[GpuReading, ...]


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU over all samples, treated as equally spaced; `None` for values that the driver does not report."""

    index: int
    name: str
    samples: int
    utilisation: float | None
    """The mean, 0 to 1."""
    idle: float | None
    """Fraction of the samples below 5 %."""
    memory_bytes: int | None
    """The peak of used memory."""
    memory_total_bytes: int | None
    power_w: float | None
    """The mean."""
    power_limit_w: float | None
    energy_wh: float | None
    sliced: bool
    """Whether it is divided into MIG slices."""
    processes: tuple[GpuProcess, ...]
    """The processes that computed on it, with the peak memory of each."""

    def __str__(self) -> str:
        if self.utilisation is not None:
            parts = [
                f"{self.utilisation:.0%} busy on average, idle in {self.idle or 0:.0%} of {self.samples:,} samples"
            ]
        else:
            parts = ["utilisation not reported" + (", because it is divided into MIG slices" if self.sliced else "")]
        if self.memory_bytes is not None:
            total = "" if self.memory_total_bytes is None else f" of {format_bytes(self.memory_total_bytes)}"
            parts.append(f"memory {format_bytes(self.memory_bytes)}{total} at its peak")
        if self.power_w is not None:
            limit = "" if self.power_limit_w is None else f" of {self.power_limit_w:.0f} W"
            parts.append(f"{self.power_w:.0f} W{limit} on average")
        return "; ".join(parts)

    @property
    def advice(self) -> str:
        """Return what to do about it, as a sentence; empty if it is busy, or if its utilisation is unknown."""
        if self.utilisation is None or self.utilisation >= _LOW:
            return ""
        return "It waits most of the time. profile_loader(loader, step) says for what, and what to change."


@dataclass(frozen=True, kw_only=True, repr=False)
class GpuReport(Report):
    """What a `GpuMonitor` has seen."""

    gpus: tuple[GpuFigures, ...]
    samples: tuple[GpuSample, ...]
    problem: str | None
    """Why nothing is sampled, or why sampling ended early; `None` if all is well."""


def _figures(index: int, samples: Sequence[GpuSample]) -> GpuFigures:
    readings = [gpu for sample in samples for gpu in sample.gpus if gpu.index == index]
    busy = [gpu.utilisation for gpu in readings if gpu.utilisation is not None]
    power = _mean(gpu.power_w for gpu in readings)
    # By process, with the peak over all samples.
    most: dict[int, GpuProcess] = {}
    for process in (process for gpu in readings for process in gpu.processes):
        if process.pid not in most or (process.memory_bytes or 0) >= (most[process.pid].memory_bytes or 0):
            most[process.pid] = process
    last, seconds = readings[-1], samples[-1].seconds - samples[0].seconds
    return GpuFigures(
        index=index,
        name=last.name,
        samples=len(readings),
        utilisation=_mean(busy),
        idle=_mean(float(value < _IDLE) for value in busy),
        memory_bytes=max(
            (gpu.memory_used_bytes for gpu in readings if gpu.memory_used_bytes is not None), default=None
        ),
        memory_total_bytes=last.memory_total_bytes,
        power_w=power,
        power_limit_w=last.power_limit_w,
        energy_wh=None if power is None else power * seconds / 3600,
        sliced=last.sliced,
        processes=tuple(most[pid] for pid in sorted(most)),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sparkline(index: int, samples: Sequence[GpuSample]) -> str:
    """Return a GPU's utilisation as block characters, blanks where it is unknown; of many samples means of equal
    parts."""
    values = [gpu.utilisation for sample in samples for gpu in sample.gpus if gpu.index == index]
    columns = min(len(values), _COLUMNS)
    edges = [len(values) * part // max(1, columns) for part in range(columns + 1)]
    means = [_mean(values[edges[part] : edges[part + 1]]) for part in range(columns)]
    return "".join(" " if one is None else _BLOCKS[round(one * (len(_BLOCKS) - 1))] for one in means)


def report_on(samples: Sequence[GpuSample], problem: str | None) -> GpuReport:
    """Say what the samples of all GPUs show."""
    indices = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    gpus = tuple(_figures(index, samples) for index in indices)
    if not gpus:
        headline = problem or "No sample of a GPU was taken yet."
    elif problem:
        headline = f"Watching ended after {format_duration(samples[-1].seconds)}: {problem}"
    else:
        headline = "; ".join(f"GPU {one.index}, {one.name}: {one}" for one in gpus[:1])
        headline += f"; and {len(gpus) - 1} more" if len(gpus) > 1 else ""
    rows = []
    for one in gpus:
        used = ", ".join(
            f"{process.pid} {process.name}".rstrip() + f" ({format_bytes(process.memory_bytes or 0)})"
            for process in one.processes[:6]
        )
        rows.append(Row(f"GPU {one.index}, {one.name}", str(one), one.advice, "warn" if one.advice else "ok"))
        rows.append(Row("over time", _sparkline(one.index, samples)))
        rows += [Row("processes", used)] if used else []
    bars = [
        Bar(f"GPU {one.index}", one.utilisation, (f"{one.utilisation:.0%} busy", f"{one.idle or 0:.0%} idle"))
        for one in gpus
        if one.utilisation is not None
    ]
    return GpuReport(
        headline=headline, bars=tuple(bars), rows=tuple(rows), gpus=gpus, samples=tuple(samples), problem=problem
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
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._live = in_notebook() if live == "auto" else live
        self._notice = (lambda problem: _log.warning("GpuMonitor: %s", problem)) if notice is None else notice
        self._run: _SamplingThread | None = None
        self._earlier: tuple[GpuSample, ...] = ()
        self._problem: str | None = None
        self._noticed = False

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """Return all samples so far, in order; empty without a GPU."""
        return self._earlier + (() if self._run is None else self._run.taken())

    @property
    def figures(self) -> tuple[GpuFigures, ...]:
        """Return the means and maxima of each GPU so far."""
        return self.report().gpus

    @property
    def problem(self) -> str | None:
        """Return why nothing is sampled, or why sampling ended early; `None` if all is well."""
        return self._problem if self._run is None else self._run.problem

    def start(self) -> Self:
        """Start sampling, and return at once. Starting it twice is fine."""
        if self._run is not None:
            return self
        # Not an error, because the same notebook must run on a machine without a GPU.
        if (problem := gpu_problem()) is not None:
            self._end(f"Nothing to watch: {problem}.")
            return self
        # The handle's `update` replaces what is shown below the cell, from any thread.
        handle = None
        if self._live:
            handle = import_module("IPython.display").display(report_on((), None), display_id=True)
        # Time continues where the last run ended.
        began = self._earlier[-1].seconds + self._interval_s if self._earlier else 0.0
        self._run = _SamplingThread(self._interval_s, self._timeout_s, began, handle)
        self._run.thread.start()
        # If a monitor is dropped without being stopped, its thread must end.
        weakref.finalize(self, self._run.ending.set)
        return self

    def stop(self) -> None:
        """End sampling and its thread. Stopping it twice is fine."""
        if self._run is None:
            return
        self._run.stop(self._timeout_s + _END_S)
        self._earlier += self._run.taken()
        problem, self._run = self._run.problem, None
        self._end(problem)

    def _end(self, problem: str | None) -> None:
        self._problem = problem
        if problem is not None and not self._noticed:
            self._noticed = True
            self._notice(problem)

    def report(self) -> GpuReport:
        """Return what was seen so far."""
        return report_on(self.samples, self.problem)

    def sparklines(self) -> str:
        """Return one line of block characters for the utilisation of each GPU."""
        samples = self.samples
        if not samples:
            return self.problem or "Waiting for the GPU's first answer …"
        return "\n".join(f"GPU {gpu.index} {_sparkline(gpu.index, samples)}" for gpu in samples[-1].gpus)

    if not TYPE_CHECKING:  # or any name would pass

        def __getattr__(self, name: str) -> NoReturn:
            refuse_gone(self, name, {"strip": "sparklines()"})

    def summary(self) -> str:
        """Return the figures of each GPU, and what to do if one is waiting, as text."""
        return str(self.report())

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, and every sample, as JSON values."""
        return self.report().to_dict()

    def plot(self) -> Figure:
        """Draw how busy each GPU was, as `Report.plot`."""
        return self.report().plot()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


class _SamplingThread:
    """The thread of a started monitor. It has no reference to the monitor, which may be dropped meanwhile."""

    def __init__(self, interval_s: float, timeout_s: float, began: float, handle: Any) -> None:
        self.problem: str | None = None
        self.ending = threading.Event()
        # A daemon: a driver that never answers must not keep the interpreter from ending.
        self.thread = threading.Thread(target=self._work, name="colabstage-gpu-monitor", daemon=True)
        self._interval_s, self._timeout_s, self._began, self._handle = interval_s, timeout_s, began, handle
        self._samples: list[GpuSample] = []
        self._lock = threading.Lock()

    def taken(self) -> tuple[GpuSample, ...]:
        with self._lock:
            return tuple(self._samples)

    def stop(self, timeout_s: float) -> None:
        """End the thread. One whose driver never answers is left behind; it ends with the process."""
        self.ending.set()
        self.thread.join(timeout_s)
        if self.thread.is_alive():
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
            listing = now - asked > _PROCESSES_EVERY_S
            try:
                gpus = source.read(processes=listing)
            except NotSupportedHereError:
                failures += 1
                # A single failure is common while a driver is busy; a row of them means that it is gone.
                if failures == _MOST_FAILURES:
                    raise
            else:
                failures, asked = 0, now if listing else asked
                self._keep(GpuSample(self._began + now, gpus))
            if now - shown > _SHOW_EVERY_S:
                shown = now
                self._update()
            # Minus the time of the reading, so that samples are evenly spaced.
            if self.ending.wait(max(0.0, self._interval_s - (time.monotonic() - began - now))):
                return

    def _keep(self, sample: GpuSample) -> None:
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) >= _MOST_SAMPLES:
                # So that hours of training keep their size, and all of them are covered.
                del self._samples[1::2]
                self._interval_s *= 2

    def _update(self) -> None:
        if self._handle is None:
            return
        # A page that was closed meanwhile must not end the sampling.
        with contextlib.suppress(Exception):
            self._handle.update(report_on(self.taken(), self.problem))
