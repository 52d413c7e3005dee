"""NVIDIA GPUs: how busy they are now (`open_gpus`), and while a model trains (`GpuMonitor`).

Readings come from NVML if its package nvidia-ml-py is installed, otherwise from the program nvidia-smi. What the driver
does not report is `None`: the utilisation of a GPU that is divided into MIG slices, and on WSL the memory of processes.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, pairwise
from typing import Any, Literal, Self

from colabstage.errors import NotSupportedHereError
from colabstage.io.arguments import check_argument
from colabstage.io.boundary import public_class
from colabstage.io.report import Report, Row, Table, in_notebook
from colabstage.io.units import format_bytes
from colabstage.machine.mounts import run_apart

PROGRAM = "nvidia-smi"
_GPU_COLUMNS = "index,uuid,name,utilization.gpu,memory.used,memory.total,power.draw"
_PROCESS_COLUMNS = "gpu_uuid,pid,used_gpu_memory"
# With a lower utilisation no training step can have run in the driver's sampling period.
_IDLE = 0.05
# A GPU that trains from memory is above 90 %; below this, more than half of it is unused.
_LOW = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 50
# Beyond this number every second sample is dropped and the interval doubled: a night would take 70 MB.
_MOST_SAMPLES = 7200
# nvidia-smi sometimes fails to answer on a busy machine.
_MOST_FAILURES = 3
# The processes on a GPU change rarely, and listing them is a second call of nvidia-smi.
_PROCESSES_EVERY_S = 5.0
_SHOW_EVERY_S = 1.0
# How long nvidia-smi may take for an answer to a monitor.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; its memory is `None` if the driver hides it."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The state of one GPU at one moment; `None` means that the driver does not report it."""

    index: int
    name: str
    utilisation: float | None = None
    """The share of time, 0 to 1, in which something ran on it, over the driver's last sampling period (up to 1 s)."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    processes: tuple[GpuProcess, ...] = ()


# Returns the state of all GPUs by index, with the processes on them if the argument is true.
ReadGpus = Callable[[bool], tuple[GpuReading, ...]]


@contextlib.contextmanager
def open_gpus(*, timeout_s: float = 10.0) -> Iterator[ReadGpus]:
    """Open the best source of readings. `timeout_s`: for one answer of nvidia-smi; NVML has no deadline."""
    # The library first: a call takes a millisecond, and starting the program a tenth of a second.
    nvml = _open_nvml()
    if nvml is None and shutil.which(PROGRAM) is None:
        msg = f"There is no NVIDIA GPU here: neither {PROGRAM} nor the package nvidia-ml-py finds one."
        raise NotSupportedHereError(msg)
    try:
        read = partial(_ask_program, timeout_s) if nvml is None else partial(_ask_library, nvml)
        read(False)
        yield read
    finally:
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def _open_nvml() -> Any | None:
    # No reason is returned, because nvidia-smi is tried next and gives a better one.
    with contextlib.suppress(Exception):  # NVMLError, which only the package itself defines
        import pynvml

        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount():
            return pynvml
        pynvml.nvmlShutdown()
    return None


def _ask_library(nvml: Any, with_processes: bool) -> tuple[GpuReading, ...]:
    def value(device: Any, question: str) -> Any:
        # One by one: which of them a driver can answer depends on the card, the container and the mode.
        with contextlib.suppress(nvml.NVMLError):
            return getattr(nvml, f"nvmlDeviceGet{question}")(device)
        return None

    def read(index: int) -> GpuReading:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        busy, memory, name = (value(device, question) for question in ("UtilizationRates", "MemoryInfo", "Name"))
        power, running = value(device, "PowerUsage"), with_processes and value(device, "ComputeRunningProcesses")
        return GpuReading(
            index=index,
            # Older versions of the package return bytes.
            name=name.decode(errors="replace") if isinstance(name, bytes) else name or "",
            utilisation=None if busy is None else busy.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1000,
            processes=tuple(GpuProcess(one.pid, one.usedGpuMemory) for one in running or ()),
        )

    return tuple(map(read, range(nvml.nvmlDeviceGetCount())))


def _ask_program(timeout_s: float, with_processes: bool) -> tuple[GpuReading, ...]:
    width = _GPU_COLUMNS.count(",") + 1
    # On some machines, the driver's warnings are between the lines.
    known = [cells for cells in _query("gpu", _GPU_COLUMNS, timeout_s) if len(cells) == width and cells[0].isdecimal()]
    if not known:
        msg = f"There is no NVIDIA GPU here: {PROGRAM} lists none."
        raise NotSupportedHereError(msg)
    running = [
        (cells[0], GpuProcess(int(cells[1]), _mebibytes(cells[2])))
        for cells in (_query("compute-apps", _PROCESS_COLUMNS, timeout_s) if with_processes else ())
        if len(cells) == 3 and cells[1].isdecimal()
    ]
    readings = [
        GpuReading(
            index=int(index),
            name=name,
            utilisation=_number(busy, 0.01),
            memory_used_bytes=_mebibytes(used),
            memory_total_bytes=_mebibytes(total),
            power_w=_number(power),
            processes=tuple(process for gpu, process in running if gpu == uuid),
        )
        for index, uuid, name, busy, used, total, power in known
    ]
    return tuple(sorted(readings, key=lambda one: one.index))


def _query(what: str, columns: str, timeout_s: float) -> list[list[str]]:
    command = [PROGRAM, f"--query-{what}={columns}", "--format=csv,noheader,nounits"]
    try:
        done = run_apart(command, timeout_s)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        # nvidia-smi writes its errors to stdout.
        said: bytes = getattr(error, "stdout", None) or b""
        reason = " ".join(said.decode(errors="replace").split())[:300] or error
        msg = f"No NVIDIA GPU answers here: {reason}. Install its driver; if it hangs, restart the session."
        raise NotSupportedHereError(msg) from error
    printed = done.stdout.decode(errors="replace")
    return [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]


def _number(cell: str, scale: float = 1.0) -> float | None:
    """Return a number; `None` for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    with contextlib.suppress(ValueError):
        return float(cell) * scale
    return None


def _mebibytes(cell: str) -> int | None:
    value = _number(cell, 1 << 20)
    return None if value is None else round(value)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs, so many seconds after the monitor's start."""

    seconds: float
    gpus: tuple[GpuReading, ...]


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU over all samples, treated as equally spaced: mean utilisation (0 to 1) and power, peak memory, of it and
    of each process; `None` for what the driver does not report."""

    index: int
    name: str
    samples: int
    utilisation: float | None
    idle: float | None
    """The share of samples in which nothing ran on it."""
    memory_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    processes: tuple[GpuProcess, ...]

    def __str__(self) -> str:
        parts = ["utilisation not reported"]
        if self.utilisation is not None:
            idle = f"idle in {self.idle or 0:.0%} of {self.samples:,} samples"
            parts = [f"{self.utilisation:.0%} busy on average, {idle}"]
        if self.memory_bytes is not None:
            total = format_bytes(self.memory_total_bytes or self.memory_bytes)
            parts.append(f"memory {format_bytes(self.memory_bytes)} of {total} at its peak")
        if self.power_w is not None:
            parts.append(f"{self.power_w:.0f} W on average")
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

    @classmethod
    def from_samples(cls, samples: Sequence[GpuSample], problem: str | None = None) -> Self:
        by_gpu: dict[int, list[GpuReading]] = {}
        for reading in chain.from_iterable(sample.gpus for sample in samples):
            by_gpu.setdefault(reading.index, []).append(reading)
        gpus = tuple(_figures(by_gpu[index]) for index in sorted(by_gpu))
        headline = problem or "No sample of a GPU was taken yet."
        if gpus:
            ended = f"; watching ended: {problem}" if problem else ""
            more = f"; and {len(gpus) - 1} more" if len(gpus) > 1 else ""
            headline = f"GPU {gpus[0].index}, {gpus[0].name}: {gpus[0]}{more}{ended}"
        rows, bars = [], []
        for one in gpus:
            name = f"GPU {one.index}"
            rows.append(Row((f"{name}, {one.name}", str(one)), one.advice, "warn" if one.advice else "ok"))
            rows.append(Row(("over time", _sparkline(by_gpu[one.index]))))
            users = ", ".join(f"{used.pid} ({format_bytes(used.memory_bytes or 0)})" for used in one.processes)
            rows += [Row(("processes", users))] if users else []
            if one.utilisation is not None:
                bars.append(
                    Row((name, f"{one.utilisation:.0%} busy", f"{one.idle or 0:.0%} idle"), bar=one.utilisation)
                )
        tables = (Table(tuple(bars), numbers=frozenset({1, 2})), Table(tuple(rows)))
        return cls(headline, tables, gpus=gpus, samples=tuple(samples), problem=problem)


def _figures(readings: Sequence[GpuReading]) -> GpuFigures:
    busy = [one.utilisation for one in readings if one.utilisation is not None]
    used = [one.memory_used_bytes for one in readings if one.memory_used_bytes is not None]
    held = sorted(
        (each for one in readings for each in one.processes), key=lambda one: (one.pid, one.memory_bytes or 0)
    )
    last = readings[-1]
    return GpuFigures(
        index=last.index,
        name=last.name,
        samples=len(readings),
        utilisation=_mean(busy),
        idle=_mean(float(value < _IDLE) for value in busy),
        memory_bytes=max(used, default=None),
        memory_total_bytes=last.memory_total_bytes,
        power_w=_mean(one.power_w for one in readings),
        # The last of each process is the one with the most memory.
        processes=tuple({one.pid: one for one in held}.values()),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sparkline(readings: Sequence[GpuReading]) -> str:
    """Return a GPU's utilisation as block characters; for many samples, means of equal parts."""
    columns = min(len(readings), _COLUMNS)
    edges = [len(readings) * part // columns for part in range(columns + 1)]
    means = [_mean(one.utilisation for one in readings[start:end]) for start, end in pairwise(edges)]
    return "".join(" " if one is None else _BLOCKS[round(one * (len(_BLOCKS) - 1))] for one in means)


@public_class
class GpuMonitor:
    """Sample the GPUs in the background: utilisation, memory, power, and the processes that use them.

    In a notebook a sparkline below the cell shows the latest samples. On a machine without an NVIDIA GPU it says so,
    and does nothing. It can be started again, and then adds to its samples.

    >>> with GpuMonitor() as gpu:  # doctest: +SKIP
    ...     train()
    >>> print(gpu.summary())  # doctest: +SKIP
    GPU 0, Tesla T4: 34% busy on average, idle in 52% of 120 samples; memory 3.1 GB of 16.1 GB at its peak; …
    """

    def __init__(self, interval_s: float = 0.5, *, live: bool | Literal["auto"] = "auto") -> None:
        """Create a monitor; it reads nothing before it is started. `interval_s`: seconds between two samples, doubled
        whenever there are 7,200. `live`: show the sparkline; `"auto"` in a notebook only."""
        check_argument("interval_s", interval_s, "above zero")
        self._interval_s = interval_s
        self._live = in_notebook() if live == "auto" else live
        self._problem: str | None = None
        self._samples: list[GpuSample] = []
        self._lock = threading.Lock()
        self._began = 0.0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: Any = None

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """Return all samples so far, in order; empty without a GPU."""
        with self._lock:
            return tuple(self._samples)

    @property
    def problem(self) -> str | None:
        """Return why nothing is sampled, or why sampling ended early; `None` if all is well."""
        return self._problem

    def start(self) -> Self:
        """Start sampling, and return at once. Starting it twice is fine."""
        if self._thread is not None:
            return self
        self._problem = None
        self._began = self._began or time.monotonic()
        # The handle's `update` replaces what is shown below the cell, from any thread.
        self._handle = import_module("IPython.display").display(self.report(), display_id=True) if self._live else None
        # An event of its own, because the thread of an earlier start may still wait for the driver.
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(self._ending,), name="colabstage-gpu-monitor", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """End sampling and its thread. Stopping it twice is fine."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        thread.join(_TIMEOUT_S + 1.0)

    def report(self) -> GpuReport:
        return GpuReport.from_samples(self.samples, self._problem)

    def summary(self) -> str:
        """Return the figures of each GPU, and what to do if one is waiting, as text."""
        return str(self.report())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _watch(self, ending: threading.Event) -> None:
        try:
            with open_gpus(timeout_s=_TIMEOUT_S) as read:
                self._sample(read, ending)
        # Not raised, because the same notebook must run on a machine without a GPU.
        except NotSupportedHereError as error:
            self._problem = str(error)
        self._show()

    def _sample(self, read: ReadGpus, ending: threading.Event) -> None:
        shown = listed = -math.inf
        failures, wait_s = 0, 0.0
        while not ending.wait(wait_s):
            now = time.monotonic()
            with_processes = now - listed > _PROCESSES_EVERY_S
            try:
                gpus = read(with_processes)
            except NotSupportedHereError:
                # A single failure is common while a driver is busy; a row of them means that it is gone.
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
            else:
                failures = 0
                listed = now if with_processes else listed
                self._add(GpuSample(now - self._began, gpus))
            if now - shown > _SHOW_EVERY_S:
                shown = now
                self._show()
            # Minus the time of the reading, so that samples are evenly spaced.
            wait_s = max(0.0, self._interval_s - (time.monotonic() - now))

    def _add(self, sample: GpuSample) -> None:
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) >= _MOST_SAMPLES:
                # So that hours of training keep their size, and all of them are covered.
                del self._samples[1::2]
                self._interval_s *= 2

    def _show(self) -> None:
        # A page that was closed meanwhile must not end the sampling.
        with contextlib.suppress(Exception):
            if self._handle is not None:
                self._handle.update(self.report())
