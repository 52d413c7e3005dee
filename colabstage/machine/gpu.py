"""NVIDIA GPUs and how busy they are, from NVML where its Python package is installed, otherwise from nvidia-smi.

Pure functions parse what the program prints. Whatever the driver does not report is `None`: it has no utilisation of
a GPU that is divided into MIG slices, no process names inside a container, and on WSL not even their memory.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from colabstage.errors import NotSupportedHereError
from colabstage.io.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROGRAM = "nvidia-smi"
GPU_COLUMNS = (
    *("index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total"),
    *("power.draw", "enforced.power.limit", "mig.mode.current"),
)
PROCESS_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")

_MIB = 1 << 20
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    """Its process id."""
    name: str = ""
    """Its name; empty where the driver does not report it."""
    memory_bytes: int | None = None
    """How much of the GPU's memory it uses; `None` where the driver does not report it."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The state of one GPU at one moment; `None` means that the driver does not report it."""

    index: int
    """The driver's number for it."""
    uuid: str
    """The driver's permanent name for it."""
    name: str
    """Its product name."""
    utilisation: float | None = None
    """The share of time, 0 to 1, in which something ran on it, over the driver's last sampling period (up to 1 s)."""
    memory_used_bytes: int | None = None
    """GPU memory in use, by all processes."""
    memory_total_bytes: int | None = None
    """All of its memory."""
    power_w: float | None = None
    """Power draw now, in watts."""
    power_limit_w: float | None = None
    """The most it may draw, in watts."""
    sliced: bool = False
    """Whether it is divided into MIG slices, whose utilisation is not reported."""
    processes: tuple[GpuProcess, ...] = ()
    """The processes that compute on it, as far as this process may see them."""


def gpu_problem() -> str | None:
    """Return why there cannot be a GPU here, as far as the installed software shows; `None` where there may be one."""
    # Without asking the driver, which may take a second to wake up.
    if find_spec("pynvml") is None and shutil.which(PROGRAM) is None:
        return f"there is no NVIDIA GPU here: neither {PROGRAM} nor the package nvidia-ml-py is installed"
    return None


def open_gpus(*, timeout_s: float = 10.0) -> GpuSource:
    """Open the best source of readings. May take a second, while the driver wakes up.

    Args:
        timeout_s: seconds that one answer of nvidia-smi may take. NVML is a library and cannot be given a deadline.

    Raises:
        NotSupportedHereError: there is no GPU here, or the driver does not answer; the message says which.
    """
    problem = gpu_problem()
    if problem is not None:
        msg = f"{problem[:1].upper()}{problem[1:]}."
        raise NotSupportedHereError(msg)
    # The library first: an answer takes a millisecond, and starting the program a tenth of a second.
    nvml = _open_nvml()
    if nvml is not None:
        return nvml
    if shutil.which(PROGRAM) is None:
        msg = f"There is no NVIDIA GPU here: NVML finds no driver, and {PROGRAM} is not installed."
        raise NotSupportedHereError(msg)
    source = SmiGpus(timeout_s)
    # So that a program without a driver behind it is an error here, and not at the first reading.
    source.read()
    return source


class SmiGpus:
    """Readings from the program nvidia-smi, which runs once or twice for each of them."""

    label = PROGRAM

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def read(self, *, processes: bool = False) -> tuple[GpuReading, ...]:
        """Return the state of all GPUs, by index; with `processes`, also the processes that use them.

        Raises:
            NotSupportedHereError: the program is missing, fails, or takes too long.
        """
        readings = parse_gpus(self._query("gpu", GPU_COLUMNS))
        if not readings:
            msg = f"There is no NVIDIA GPU here: {PROGRAM} lists none."
            raise NotSupportedHereError(msg)
        if not processes:
            return readings
        return with_processes(readings, parse_processes(self._query("compute-apps", PROCESS_COLUMNS)))

    def close(self) -> None:
        """Do nothing, because no handle is kept."""

    def _query(self, what: str, columns: tuple[str, ...]) -> str:
        command = [PROGRAM, f"--query-{what}={','.join(columns)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
                # The current folder may be on a mount that hangs, and a child would hang with it.
                cwd="/",
            )
        except subprocess.TimeoutExpired as error:
            waited = format_duration(self._timeout_s)
            msg = f"{PROGRAM} did not answer in {waited}. The driver may hang: restart the session."
            raise NotSupportedHereError(msg) from error
        except OSError as error:
            msg = f"{PROGRAM} cannot be run ({error.strerror}). Install the NVIDIA driver, or choose another machine."
            raise NotSupportedHereError(msg) from error
        if done.returncode:
            # nvidia-smi writes its errors to stdout.
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            msg = f"There is no NVIDIA GPU here that answers: {PROGRAM} says '{said[:300]}'"
            raise NotSupportedHereError(msg)
        return done.stdout


def parse_gpus(text: str) -> tuple[GpuReading, ...]:
    """Parse what nvidia-smi prints for `--query-gpu` with `GPU_COLUMNS` as CSV without a header, with or without units.

    Lines that do not describe a GPU (warnings, "No devices were found") are ignored.

    >>> parse_gpus("0, GPU-4f, Tesla T4, 37, 1024, 15360, 28.31, 70.00, [N/A]")[0].utilisation
    0.37
    """
    return tuple(sorted(filter(None, map(_parse_gpu, text.splitlines())), key=lambda one: one.index))


def _parse_gpu(line: str) -> GpuReading | None:
    cells = [cell.strip() for cell in line.split(",")]
    # Warnings of the driver stand between the lines, on some machines.
    if len(cells) != len(GPU_COLUMNS) or not cells[0].isdecimal():
        return None
    busy, used, total, power, limit = map(_read_cell, cells[3:8])
    return GpuReading(
        index=int(cells[0]),
        uuid=cells[1],
        name=cells[2],
        utilisation=None if busy is None else busy / 100,
        memory_used_bytes=None if used is None else round(used * _MIB),
        memory_total_bytes=None if total is None else round(total * _MIB),
        power_w=power,
        power_limit_w=limit,
        sliced=cells[8] == "Enabled",
    )


def parse_processes(text: str) -> tuple[tuple[str, GpuProcess], ...]:
    """Parse what nvidia-smi prints for `--query-compute-apps` with `PROCESS_COLUMNS`.

    Returns:
        `(uuid of the GPU, process)` pairs, in the same order.
    """
    found = []
    for line in text.splitlines():
        # From both ends, because a program's path may contain commas.
        uuid, _, rest = (part.strip() for part in line.partition(","))
        pid, _, rest = (part.strip() for part in rest.partition(","))
        name, _, used = (part.strip() for part in rest.rpartition(","))
        if pid.isdecimal():
            memory = _read_cell(used)
            # What is in brackets is a reason for having no name.
            shown = "" if name.startswith("[") else name
            found.append((uuid, GpuProcess(int(pid), shown, None if memory is None else round(memory * _MIB))))
    return tuple(found)


def with_processes(
    readings: Iterable[GpuReading], processes: Iterable[tuple[str, GpuProcess]]
) -> tuple[GpuReading, ...]:
    """Attach processes to the GPUs that they compute on."""
    by_gpu: dict[str, list[GpuProcess]] = {}
    for uuid, process in processes:
        by_gpu.setdefault(uuid, []).append(process)
    return tuple(replace(reading, processes=tuple(by_gpu.get(reading.uuid, ()))) for reading in readings)


def _read_cell(cell: str) -> float | None:
    """Read `37`, `37 %` and `68.52 W`; return `None` for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    match = None if cell.startswith("[") else _NUMBER.match(cell)
    return None if match is None else float(match[0])


class NvmlGpus:
    """Readings from NVML, through the package nvidia-ml-py (`import pynvml`)."""

    label = "NVML"

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._open = True
        count = range(nvml.nvmlDeviceGetCount())
        # Handles stay valid as long as the library is open, so they are asked for once.
        self._devices = [(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in count]

    def read(self, *, processes: bool = False) -> tuple[GpuReading, ...]:
        """Return the state of all GPUs, as `SmiGpus.read`."""
        return tuple(self._look(index, device, processes=processes) for index, device in self._devices)

    def close(self) -> None:
        """Shut the library down. Calling it twice is fine."""
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _look(self, index: int, device: Any, *, processes: bool) -> GpuReading:
        nvml = self._nvml
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, device)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, device)
        mode = self._ask(nvml.nvmlDeviceGetMigMode, device)
        running = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, device) if processes else None
        return GpuReading(
            index=index,
            uuid=_decode_words(self._ask(nvml.nvmlDeviceGetUUID, device)),
            name=_decode_words(self._ask(nvml.nvmlDeviceGetName, device)),
            utilisation=None if busy is None else busy.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            sliced=mode is not None and mode[0] == 1,
            processes=tuple(GpuProcess(one.pid, "", one.usedGpuMemory) for one in running or ()),
        )

    def _ask(self, question: Callable[[Any], Any], device: Any) -> Any:
        # One by one: which of them a driver can answer depends on the card, the container and the mode.
        try:
            return question(device)
        except self._nvml.NVMLError:
            return None


# Where readings come from; used from one thread.
GpuSource = SmiGpus | NvmlGpus


def _open_nvml() -> NvmlGpus | None:
    """Open NVML where its package and the driver's library are installed and know a GPU; otherwise return `None`."""
    # No reason is returned, because nvidia-smi is tried next and gives a better one.
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return None
    try:
        source = NvmlGpus(pynvml)
    except pynvml.NVMLError:
        source = None
    if source is None or not source.read():
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return None
    return source


def _decode_words(value: Any) -> str:
    """Return text for a string or bytes."""
    # Older versions of the package return bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
