"""What a profile measures, as plain values: the loader's settings, the costs of its stages, and the times of batches.

All times are seconds per batch on average, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

StageName = Literal["read", "decode", "transform", "collate", "transfer", "step"]
Kind = Literal["torch", "colabstage", "keras", "tf.data", "iterable"]

LOADER_STAGES: tuple[StageName, ...] = ("read", "decode", "transform", "collate")
STAGES: tuple[StageName, ...] = (*LOADER_STAGES, "transfer", "step")


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage for one batch, done alone, one sample after the other."""

    name: StageName
    """The stage."""
    seconds: float
    """Elapsed seconds."""
    cpu_s: float = 0.0
    """Seconds of that in which a core was busy."""
    gil_s: float = 0.0
    """Seconds of that in which Python's lock was held, so that no other thread of the process could run Python."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a loader is set up."""

    kind: Kind
    """The kind of loader."""
    workers: int = 0
    """Processes or threads that make batches beside the consumer; 0 if the consumer makes them itself."""
    processes: bool = False
    """Whether these are processes."""
    prefetch: int = 0
    """How many batches each worker may prepare in advance."""
    persistent: bool = False
    """Whether workers persist after an epoch."""
    is_stream: bool = False
    """Whether each process iterates over the whole dataset, unless its code takes a part: torch's `IterableDataset`."""
    batches: int | None = None
    """How many batches an epoch has; `None` if unknown."""
    batch_samples: int = 1
    """How many samples a batch has."""
    batch_bytes: int = 0
    """How many bytes a batch has."""
    strategy: str | None = None
    """The strategy, if it is our loader."""
    parallel_map: bool = True
    """Whether all maps of a tf.data pipeline run in parallel."""
    prefetched: bool = True
    """Whether a tf.data pipeline ends in a prefetch."""
    h5_file: str | None = None
    """The HDF5 file of a dataset that is not ours."""
    source: str | None = None
    """The folder that the dataset names."""
    repeats: bool = False
    """Whether a sample is the same each time, so that its transforms could be applied once."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images in a batch."""
    can_stage: bool | None = None
    """Whether the samples of `source` are found without the dataset's code; `None` if not checked."""
    can_pack: bool = False
    """Whether the dataset's items can be packed as they are."""

    @property
    def overlapped(self) -> bool:
        """Tell whether batches are made while the consumer is working."""
        return self.workers > 0


@dataclass(frozen=True, slots=True)
class Span:
    """The times of one batch in the run, in seconds since the first."""

    asked_s: float
    """When the consumer requested it."""
    given_s: float
    """When the consumer received it."""
    done_s: float
    """When the consumer was done with it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of other ways of loading here, each measured for a batch of this size."""

    handover_s: float = 0.0
    """Seconds for a worker process to send a batch to the consumer."""
    take_s: float = 0.0
    """Seconds for the consumer to receive it."""
    gather_s: float = 0.0
    """Seconds to copy a batch from memory, as reading a cached packed file does, and to convert it to floats if it has
    floats."""
    pack_s: float | None = None
    """Seconds for our own reader to read a batch, if that could be tried."""
    cores: float = 1.0
    """How many cores' worth of work this process gets from all its cores; less than `core_count` if they share units or
    others use them."""
    core_count: int = 1
    """How many cores this process may use."""
    free_memory_bytes: int = 0
    """Available memory."""
    free_disk_bytes: int | None = None
    """Free space on the local disk; `None` if not checked."""


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """Everything that a verdict is based on."""

    setting: Setting
    """How the loader is set up."""
    stages: tuple[StageCost, ...]
    """The stages of the loader, as far as known."""
    load_s: float
    """Seconds from batch to batch of the loader alone."""
    cycle_s: float
    """Seconds from batch to batch with the step."""
    wait_s: float = 0.0
    """Seconds of `cycle_s` in which the consumer waits for the batch."""
    busy_s: float = 0.0
    """Seconds of `cycle_s` that the step takes."""
    start_s: float = 0.0
    """Additional seconds for the first batch of an epoch."""
    step_alone_s: float | None = None
    """Seconds of the step on a batch that is ready; `None` without a step."""
    step_cpu_s: float = 0.0
    """CPU seconds of that."""
    transfer_s: float | None = None
    """Seconds to copy a batch to the device; `None` if not measured."""
    produced_s: tuple[float, ...] = ()
    """Seconds to make each of several consecutive batches, alone."""
    gpu_busy: float | None = None
    """The GPU's mean utilisation in the run, 0 to 1; `None` without a GPU."""
    costs: Costs = field(default_factory=Costs)
    """The costs of other ways of loading."""

    @property
    def step_s(self) -> float:
        """Return `step_alone_s`; 0 without a step."""
        return self.step_alone_s or 0.0

    @property
    def serial_s(self) -> float:
        """Return the seconds of all stages of the loader together."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of all stages of the loader."""
        return sum(stage.cpu_s for stage in self.stages)

    @property
    def gil_s(self) -> float:
        """Time of all stages in which Python's lock is held."""
        return sum(stage.gil_s for stage in self.stages)

    def cores_s(self, cpu_s: float) -> float:
        """Return the seconds from batch to batch that the cores need for the step and `cpu_s` of loading."""
        return (cpu_s + self.step_cpu_s) / self.costs.cores

    @property
    def epoch_start_s(self) -> float:
        """Return what the start of an epoch adds to each of its batches."""
        return self.start_s / self.setting.batches if self.setting.batches else 0.0

    @property
    def batch_s(self) -> float:
        """Return the present seconds from batch to batch, including each batch's share of the epoch's start."""
        return self.cycle_s + self.epoch_start_s

    @property
    def consumer_wait_share(self) -> float:
        """Return the fraction of the run, 0 to 1, in which the consumer waits for batches."""
        return min(1.0, self.wait_s / self.cycle_s) if self.cycle_s > 0 else 0.0

    @property
    def producer_wait_share(self) -> float:
        """Return the fraction of the run, 0 to 1, in which the loader waits for the consumer: its queue is full, or it
        has none."""
        return min(1.0, max(0.0, 1 - self.load_s / self.cycle_s)) if self.cycle_s > 0 else 0.0

    def seconds(self, name: StageName) -> float:
        """Return the seconds of one stage; 0 if it was not observed."""
        return sum(stage.seconds for stage in self.stages if stage.name == name)


def arrays_of(batch: Any) -> Iterator[Any]:
    """Yield the arrays and tensors in a batch of nested tuples, lists and mappings."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from arrays_of(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from arrays_of(part)
    elif hasattr(batch, "shape") and hasattr(batch, "numpy"):
        yield batch.numpy()  # TensorFlow's tensors do not give their size


def batch_size_of(batch: Any) -> tuple[int, int]:
    """Return the number of samples in a batch, and the bytes of all its arrays.

    Samples are the first axis of the first array, unless the parts agree on another number: images of different sizes
    come as a list, beside as many targets.
    """
    arrays = list(arrays_of(batch))
    usual = next((int(array.shape[0]) for array in arrays if len(array.shape)), 1)
    agreed = _shared_counts(_parts_of(batch))
    return usual if usual in agreed else max(agreed, default=usual), sum(int(array.nbytes) for array in arrays)


def _parts_of(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, list | tuple) else [batch]


def _shared_counts(parts: Iterable[Any]) -> set[int]:
    """Return the numbers of samples that each part may have, for the parts that say anything about it."""
    counts = [found for part in parts if (found := _counts_of(part))]
    return set.intersection(*counts) if counts else set()


def _counts_of(part: Any) -> set[int]:
    if isinstance(part, dict | list | tuple):
        # A list holds one entry for each sample, or several inputs of all samples.
        own = set() if isinstance(part, dict) else {len(part)}
        return own | _shared_counts(_parts_of(part))
    shape: Any = getattr(part, "shape", ())
    return {int(shape[0])} if len(shape) else set()


def image_size_of(batch: Any) -> tuple[int, int] | None:
    """Return the height and width of the images in a batch's first array, wherever the channels are; `None` if it has
    none."""
    shape = next((tuple(array.shape) for array in arrays_of(batch)), ())
    if len(shape) != 4:
        return None
    # There are at most four channels; no image is that low.
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return int(height), int(width)
