"""NVIDIA GPUs and how busy they are, from NVML where its package nvidia-ml-py is installed, otherwise from nvidia-smi.

Whatever the driver does not report is `None`: it has no utilisation of a GPU that is divided into MIG slices, no
process names inside a container, and on WSL not even their memory.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from colabstage.errors import NotSupportedHereError
from colabstage.io.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "nvidia-smi"
_GPU_COLUMNS = (
    *("index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total"),
    *("power.draw", "enforced.power.limit", "mig.mode.current"),
)
_PROCESS_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")
_MIB = 1 << 20
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; its name is empty, and its memory `None`, where the driver hides them."""

    pid: int
    name: str = ""
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
    power_limit_w: float | None = None
    sliced: bool = False
    """Whether it is divided into MIG slices, whose utilisation is not reported."""
    processes: tuple[GpuProcess, ...] = ()
    """Those that this process may see."""


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
    if (problem := gpu_problem()) is not None:
        msg = f"{problem[:1].upper()}{problem[1:]}."
        raise NotSupportedHereError(msg)
    # The library first: an answer takes a millisecond, and starting the program a tenth of a second.
    if (nvml := _open_nvml()) is not None:
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

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def read(self, *, processes: bool = False) -> tuple[GpuReading, ...]:
        """Return the state of all GPUs, by index; with `processes`, also the processes that use them.

        Raises:
            NotSupportedHereError: the program is missing, fails, or takes too long.
        """
        lines = [[cell.strip() for cell in line.split(",")] for line in self._query("gpu", _GPU_COLUMNS)]
        # Warnings of the driver stand between the lines, on some machines.
        known = [cells for cells in lines if len(cells) == len(_GPU_COLUMNS) and cells[0].isdecimal()]
        if not known:
            msg = f"There is no NVIDIA GPU here: {PROGRAM} lists none."
            raise NotSupportedHereError(msg)
        running = self._processes() if processes else []
        readings = []
        for index, uuid, name, busy, used, total, power, limit, mode in known:
            readings.append(
                GpuReading(
                    *(
                        int(index),
                        name,
                        _number(busy, 0.01),
                        _bytes(used),
                        _bytes(total),
                        _number(power),
                        _number(limit),
                    ),
                    sliced=mode == "Enabled",
                    processes=tuple(process for gpu, process in running if gpu == uuid),
                )
            )
        return tuple(sorted(readings, key=lambda one: one.index))

    def close(self) -> None:
        """Do nothing, because no handle is kept."""

    def _processes(self) -> list[tuple[str, GpuProcess]]:
        found = []
        for line in self._query("compute-apps", _PROCESS_COLUMNS):
            # From both ends, because a program's path may contain commas.
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) >= len(_PROCESS_COLUMNS) and cells[1].isdecimal():
                uuid, pid, *name, used = cells
                shown = ", ".join(name)
                # What is in brackets is a reason for having no name.
                found.append((uuid, GpuProcess(int(pid), "" if shown.startswith("[") else shown, _bytes(used))))
        return found

    def _query(self, what: str, columns: tuple[str, ...]) -> list[str]:
        command = [PROGRAM, f"--query-{what}={','.join(columns)}", "--format=csv,noheader,nounits"]
        try:
            # The current folder may be on a mount that hangs, and a child would hang with it.
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=self._timeout_s, check=False, cwd="/"
            )
        except subprocess.TimeoutExpired as error:
            waited = format_duration(self._timeout_s)
            msg = f"{PROGRAM} did not answer in {waited}. The driver may hang: restart the session."
            raise NotSupportedHereError(msg) from error
        except OSError as error:
            msg = f"{PROGRAM} cannot be run ({error.strerror}). Install the NVIDIA driver, or choose another machine."
            raise NotSupportedHereError(msg) from error
        printed, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode:
            # nvidia-smi writes its errors to stdout.
            said = " ".join((errors or printed).split()) or f"exit code {done.returncode}"
            msg = f"There is no NVIDIA GPU here that answers: {PROGRAM} says '{said[:300]}'"
            raise NotSupportedHereError(msg)
        return printed.splitlines()


def _number(cell: str, scale: float = 1.0) -> float | None:
    """Read `37`, `37 %` and `68.52 W`; return `None` for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    match = _NUMBER.match(cell)
    return None if match is None else float(match[0]) * scale


def _bytes(cell: str) -> int | None:
    value = _number(cell, _MIB)
    return None if value is None else round(value)


class NvmlGpus:
    """Readings from NVML, through the package nvidia-ml-py (`import pynvml`)."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._open = True
        # Handles stay valid as long as the library is open.
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def read(self, *, processes: bool = False) -> tuple[GpuReading, ...]:
        """Return the state of all GPUs, as `SmiGpus.read`."""
        return tuple(self._read(index, device, processes=processes) for index, device in enumerate(self._devices))

    def close(self) -> None:
        """Shut the library down. Calling it twice is fine."""
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _read(self, index: int, device: Any, *, processes: bool) -> GpuReading:
        nvml = self._nvml

        def value(question: Callable[[Any], Any]) -> Any:
            # One by one: which of them a driver can answer depends on the card, the container and the mode.
            try:
                return question(device)
            except nvml.NVMLError:
                return None

        busy, memory = value(nvml.nvmlDeviceGetUtilizationRates), value(nvml.nvmlDeviceGetMemoryInfo)
        power, limit = value(nvml.nvmlDeviceGetPowerUsage), value(nvml.nvmlDeviceGetEnforcedPowerLimit)
        mode, name = value(nvml.nvmlDeviceGetMigMode), value(nvml.nvmlDeviceGetName) or ""
        running = value(nvml.nvmlDeviceGetComputeRunningProcesses) if processes else None
        return GpuReading(
            index=index,
            # Older versions of the package return bytes.
            name=name.decode(errors="replace") if isinstance(name, bytes) else name,
            utilisation=None if busy is None else busy.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            sliced=mode is not None and mode[0] == 1,
            processes=tuple(GpuProcess(one.pid, "", one.usedGpuMemory) for one in running or ()),
        )


# Where readings come from; used from one thread.
GpuSource = SmiGpus | NvmlGpus


def _open_nvml() -> NvmlGpus | None:
    """Open NVML where its package and the driver's library are installed and know a GPU; otherwise return `None`."""
    # No reason is returned, because nvidia-smi is tried next and gives a better one.
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return None
    except Exception:  # noqa: BLE001 - NVMLError, which only the package itself defines
        return None
    with contextlib.suppress(pynvml.NVMLError):
        source = NvmlGpus(pynvml)
        if source.read():
            return source
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    return None
