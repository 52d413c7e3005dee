"""`GpuMonitor`: how busy the GPU is while a model trains, sampled in the background."""

from __future__ import annotations

import contextlib
import html
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self

from colabstage.diagnose.gpu_figures import (
    GpuSample,
    LiveUsage,
    draw_svg,
    figure_out,
    history,
    in_notebook,
    show_live,
    summarise,
)
from colabstage.errors import NotSupportedHereError, OptionError
from colabstage.io.page import page
from colabstage.io.units import format_bytes
from colabstage.machine.gpu import gpu_problem, open_gpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from matplotlib.figure import Figure

    from colabstage.diagnose.gpu_figures import GpuFigures
    from colabstage.machine.gpu import GpuSource

_log = logging.getLogger(__name__)

# A night at two samples a second would be 70 MB; from here on every second one goes, and they come half as often.
_MOST_SAMPLES = 7200
# nvidia-smi misses an answer now and then on a busy machine.
_MOST_FAILURES = 3
# Who uses a GPU changes seldom, and is a second call of nvidia-smi.
_PROCESSES_EVERY_S = 5.0
_SHOW_EVERY_S = 1.0
_END_S = 1.0


class GpuMonitor:
    """Samples the GPUs in the background: utilisation, memory, power, and who uses them.

    Asks NVML where the package nvidia-ml-py is installed, else the program nvidia-smi. In a notebook a strip below the
    cell follows along. On a machine without an NVIDIA GPU it says so once, by a log message, and does nothing. May be
    started again; the samples go on.

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
        """Prepare; nothing is asked before it is started.

        Args:
            interval_s: seconds between two samples; doubled whenever there are 7,200 of them.
            live: show the strip; `"auto"` in a notebook only.
            timeout_s: seconds that nvidia-smi may take for an answer.
            notice: called, once, with the sentence that says why there is nothing to watch; a log message by default.

        Raises:
            OptionError: `interval_s` or `timeout_s` is not above 0.
        """
        for name, value in (("interval_s", interval_s), ("timeout_s", timeout_s)):
            if not value > 0:
                msg = f"GpuMonitor({name}={value!r}) cannot work; expected more than 0 seconds."
                raise OptionError(msg)
        self._interval_s = interval_s
        self._live = in_notebook() if live == "auto" else live
        self._timeout_s = timeout_s
        self._notice = (lambda problem: _log.warning("GpuMonitor: %s", problem)) if notice is None else notice
        self._run: _Run | None = None
        self._earlier: tuple[GpuSample, ...] = ()
        self._problem: str | None = None
        self._has_said = False

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """Return all samples so far, in order; empty where there is no GPU."""
        return self._earlier + (() if self._run is None else self._run.taken())

    @property
    def figures(self) -> tuple[GpuFigures, ...]:
        """Return means and maxima of each GPU so far."""
        return figure_out(self.samples)

    @property
    def problem(self) -> str | None:
        """Return why nothing is sampled, or sampling ended early; `None` where all is well."""
        return self._problem if self._run is None else self._run.problem

    def start(self) -> Self:
        """Begin to sample; returns at once. Starting it twice is fine."""
        if self._run is not None:
            return self
        self._problem = None
        problem = gpu_problem()
        if problem is not None:
            self._problem = f"Nothing to watch: {problem}."
            self._say(self._problem)
            return self
        handle = show_live(LiveUsage((), None)) if self._live else None
        began = self._earlier[-1].seconds + self._interval_s if self._earlier else 0.0
        self._run = _Run(self._interval_s, self._timeout_s, began, handle)
        self._run.start()
        # A monitor that is dropped without being stopped takes its thread along.
        weakref.finalize(self, self._run.stop_soon)
        return self

    def stop(self) -> None:
        """End sampling, and the thread with it. Stopping it twice is fine."""
        if self._run is None:
            return
        self._run.stop(self._timeout_s + _END_S)
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

    def strip(self) -> str:
        """Return how busy each GPU has been, a line of block characters each."""
        return repr(LiveUsage(self.samples, self.problem))

    def summary(self) -> str:
        """Return a line for each GPU, and what to do where one waits."""
        return summarise(self.samples, self.problem)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, and every sample, as JSON values."""
        from dataclasses import asdict

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
        from colabstage.diagnose.gpu_figures import draw_samples

        return draw_samples(self.samples)

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
            f"<td>{html.escape(str(one).partition(': ')[2])}{_processes(one)}"
            f"<div class='cs-muted'>{html.escape(one.advice)}</div></td></tr>"
            for one in self.figures
        )
        return page(self.problem or f"{len(samples):,} samples of the GPU", f"<table>{rows}</table>")


def _processes(one: GpuFigures) -> str:
    shown = ", ".join(
        f"{process.pid} {process.name} ({format_bytes(process.memory_bytes or 0)})" for process in one.processes[:6]
    )
    return f"<div class='cs-muted'>processes: {html.escape(shown)}</div>" if shown else ""


class _Run:
    """The thread of a started monitor. It knows nothing of the monitor, which may be dropped while it runs."""

    def __init__(self, interval_s: float, timeout_s: float, began: float, handle: Any) -> None:
        self.problem: str | None = None
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._began = began
        self._handle = handle
        self._samples: list[GpuSample] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
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
            source = open_gpus(timeout_s=self._timeout_s)
        except NotSupportedHereError as error:
            self.problem = str(error)
            self._update()
            return
        try:
            self._sample(source)
        except NotSupportedHereError as error:
            self.problem = str(error)
        finally:
            source.close()
            self._update()

    def _sample(self, source: GpuSource) -> None:
        began = time.monotonic()
        shown = asked = -float("inf")
        failures = 0
        while True:
            now = time.monotonic() - began
            try:
                gpus = source.read(processes=now - asked > _PROCESSES_EVERY_S)
                asked = now if now - asked > _PROCESSES_EVERY_S else asked
                failures = 0
                self._keep(GpuSample(self._began + now, gpus))
            except NotSupportedHereError:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
            if now - shown > _SHOW_EVERY_S:
                shown = now
                self._update()
            if self._end.wait(max(0.0, self._interval_s - (time.monotonic() - began - now))):
                return

    def _keep(self, sample: GpuSample) -> None:
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) >= _MOST_SAMPLES:
                del self._samples[1::2]
                self._interval_s *= 2

    def _update(self) -> None:
        if self._handle is None:
            return
        # A page that was closed meanwhile must not end the sampling.
        with contextlib.suppress(Exception):
            self._handle.update(LiveUsage(self.taken(), self.problem))
