"""What a stretch of GPU samples says: pure figures and sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from colabstage.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colabstage.machine.gpu import GpuProcess, GpuReading

# Below this part of a driver's period nothing of a training loop ran on it.
IDLE = 0.05
# A GPU that trains from memory is above 90 %; below this, more than half of what is paid for is not used.
_LOW = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs at one moment, `seconds` after the monitor was started."""

    seconds: float
    gpus: tuple[GpuReading, ...]


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU over all samples; `None` where the driver told nothing.

    `samples`: how many; `seconds`: from the first to the last.
    `utilisation`: mean part of the time in which it was busy, 0 to 1. `idle`: part of the samples below 5 %.
    `memory_bytes`: the most that was held; `memory_total_bytes`: what there is.
    `power_w`: mean of the watts; `energy_wh`: watt hours in all. `power_limit_w`: the most it may draw.
    `sliced`: whether it is cut into MIG slices. `processes`: who computed on it, with the most memory that each held.
    """

    index: int
    name: str
    samples: int
    seconds: float
    utilisation: float | None
    idle: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_wh: float | None
    sliced: bool = False
    processes: tuple[GpuProcess, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [_describe_use(self)]
        if self.memory_bytes is not None:
            total = "" if self.memory_total_bytes is None else f" of {format_bytes(self.memory_total_bytes)}"
            parts.append(f"memory {format_bytes(self.memory_bytes)}{total} at the most")
        if self.power_w is not None:
            limit = "" if self.power_limit_w is None else f" of {self.power_limit_w:.0f} W"
            parts.append(f"{self.power_w:.0f} W{limit} in the mean")
        return f"GPU {self.index}, {self.name}: {'; '.join(parts)}"

    @property
    def advice(self) -> str:
        """What to do about it, as a sentence; empty where it is busy, or where nobody knows."""
        if self.utilisation is None or self.utilisation >= _LOW:
            return ""
        return (
            f"GPU {self.index} waits most of the time. profile_loader(loader, step) says for what, and what to change."
        )


def _describe_use(one: GpuFigures) -> str:
    if one.utilisation is None:
        return "utilisation not told, as it is cut into MIG slices" if one.sliced else "utilisation not told"
    return f"{one.utilisation:.0%} busy in the mean, idle in {one.idle or 0:.0%} of {one.samples:,} samples"


def figure_out(samples: Sequence[GpuSample]) -> tuple[GpuFigures, ...]:
    """The figures of each GPU, by index. Samples are taken as equally far apart."""
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
    most: dict[int, GpuProcess] = {}
    for process in (process for reading in readings for process in reading.processes):
        before = most.get(process.pid)
        if before is None or (process.memory_bytes or 0) >= (before.memory_bytes or 0):
            most[process.pid] = process
    return tuple(most[pid] for pid in sorted(most))


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; `None` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summarise(samples: Sequence[GpuSample], problem: str | None) -> str:
    """A line for each GPU, and what to do; or why there is nothing to say."""
    if not samples:
        return problem or "No sample of a GPU was taken yet."
    figures = figure_out(samples)
    lines = [str(one) for one in figures] + [one.advice for one in figures if one.advice]
    lines += [f"Watching ended after {format_duration(samples[-1].seconds)}: {problem}"] if problem else []
    return "\n".join(lines)


def history(samples: Sequence[GpuSample], index: int, *, width: int) -> list[float | None]:
    """Utilisation of one GPU, 0 to 1, in `width` equal stretches of the samples; fewer where there are fewer."""
    values = [reading.utilisation for sample in samples for reading in sample.gpus if reading.index == index]
    if len(values) <= width:
        return values
    edges = [len(values) * part // width for part in range(width + 1)]
    return [mean(values[start:stop]) for start, stop in pairwise(edges)]


def draw_blocks(values: Iterable[float | None]) -> str:
    """A line of block characters.

    >>> draw_blocks([0.0, 0.5, 1.0, None])
    '▁▅█ '
    """
    top = len(_BLOCKS) - 1
    return "".join(" " if value is None else _BLOCKS[min(top, round(value * top))] for value in values)
