"""What a profile measures, as plain values: the loader's setting, its stages' costs, and the times of whole batches.

All seconds are those of one batch in the mean, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StageName = Literal["read", "decode", "transform", "collate", "transfer", "step"]
Kind = Literal["torch", "colabstage", "keras", "tf.data", "iterable"]

LOADER_STAGES: tuple[StageName, ...] = ("read", "decode", "transform", "collate")
STAGES: tuple[StageName, ...] = (*LOADER_STAGES, "transfer", "step")


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage costs for one batch, done alone, one sample after the other.

    `seconds`: from beginning to end. `cpu_s`: of which a core was busy. `gil_s`: of which Python's lock was held, so
    that no other thread of the process could run Python.
    """

    name: StageName
    seconds: float
    cpu_s: float = 0.0
    gil_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How a loader is set up.

    `kind`: whose loader it is. `workers`: processes or threads that make batches at once beside the consumer, 0 where
    the consumer makes them itself. `processes`: whether these are processes. `prefetch`: batches that each worker may
    be ahead. `persistent`: whether workers outlive an epoch. `batches`: in an epoch, `None` where nobody knows.
    `batch_samples`, `batch_bytes`: of one batch. `strategy`: of a loader of ours. `parallel_map`, `prefetched`: of a
    tf.data pipeline. `h5_file`: the HDF5 file behind a dataset that is not ours. `source`: the folder that a dataset
    names. `repeats`: whether a sample is the same each time, so that its transforms could be done once. `image_size`:
    height and width of the images in a batch. `can_stage`: whether the samples of `source` are found without the
    dataset's code, `None` where nobody looked. `can_pack`: whether the dataset's items can be packed as they are.
    """

    kind: Kind
    workers: int = 0
    processes: bool = False
    prefetch: int = 0
    persistent: bool = False
    batches: int | None = None
    batch_samples: int = 1
    batch_bytes: int = 0
    strategy: str | None = None
    parallel_map: bool = True
    prefetched: bool = True
    h5_file: str | None = None
    source: str | None = None
    repeats: bool = False
    image_size: tuple[int, int] | None = None
    can_stage: bool | None = None
    can_pack: bool = False

    @property
    def overlapped(self) -> bool:
        """Whether batches are made while the consumer works."""
        return self.workers > 0


@dataclass(frozen=True, slots=True)
class Span:
    """One batch of the run: when its consumer began to wait, had it, and was done with it; seconds since the first."""

    asked_s: float
    given_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What other ways of loading would cost here, each measured for a batch of this size.

    `handover_s`: a worker process's, to bring a batch to the consumer. `take_s`: the consumer's, to take it, before it
    can go on. `gather_s`: to copy a batch out of memory, as reading a packed file in the system's cache does, and to
    make floats of it where it has floats. `pack_s`: to read a batch by our own reader, where that could be tried.
    `cores`: how many cores' work this process gets done with all that it may use; less than their number,
    `core_count`, where they share something, or others use them. `free_memory_bytes`: that could be taken;
    `free_disk_bytes`: the same of the local disk, `None` where nobody looked.
    """

    handover_s: float = 0.0
    take_s: float = 0.0
    gather_s: float = 0.0
    pack_s: float | None = None
    cores: float = 1.0
    core_count: int = 1
    free_memory_bytes: int = 0
    free_disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a verdict rests on.

    `stages`: of the loader, as far as they are known. `cycle_s`: from batch to batch with the step, `wait_s` of it
    spent waiting for the batch, `busy_s` in the step. `load_s`: from batch to batch of the loader alone. `start_s`:
    until the first batch of an epoch beyond that. `step_alone_s`: the step on a batch that is there, `step_cpu_s` its
    cores' time; `None` without a step. `transfer_s`: to bring a batch to the device, `None` where nobody asked.
    `produced_s`: for several batches in a row, seconds that making each took alone. `gpu_busy`: the GPU's mean
    utilisation (0 to 1) in the run, `None` without a GPU.
    """

    setting: Setting
    stages: tuple[StageCost, ...]
    load_s: float
    cycle_s: float
    wait_s: float = 0.0
    busy_s: float = 0.0
    start_s: float = 0.0
    step_alone_s: float | None = None
    step_cpu_s: float = 0.0
    transfer_s: float | None = None
    produced_s: tuple[float, ...] = ()
    gpu_busy: float | None = None
    costs: Costs = field(default_factory=Costs)

    @property
    def serial_s(self) -> float:
        """All stages of the loader, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def cpu_s(self) -> float:
        """Core time of all stages of the loader."""
        return sum(stage.cpu_s for stage in self.stages)

    @property
    def gil_s(self) -> float:
        """Time of all stages in which Python's lock is held."""
        return sum(stage.gil_s for stage in self.stages)

    @property
    def epoch_start_s(self) -> float:
        """What the start of an epoch adds to each of its batches."""
        return self.start_s / self.setting.batches if self.setting.batches else 0.0

    @property
    def consumer_wait_share(self) -> float:
        """Part of the run, 0 to 1, that the consumer waits for batches."""
        return min(1.0, self.wait_s / self.cycle_s) if self.cycle_s > 0 else 0.0

    @property
    def producer_wait_share(self) -> float:
        """Part of the run, 0 to 1, that the loader waits for the consumer: its queue is full, or it has none."""
        return min(1.0, max(0.0, 1 - self.load_s / self.cycle_s)) if self.cycle_s > 0 else 0.0

    def seconds(self, name: StageName) -> float:
        """Of one stage; 0 where it was not seen."""
        return sum(stage.seconds for stage in self.stages if stage.name == name)
