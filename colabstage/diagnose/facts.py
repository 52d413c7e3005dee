"""What a profile measures, as plain values: the loader's setting, its stages' costs, and the times of whole batches.

All seconds are those of one batch on average, unless a name says otherwise.
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
    """What one stage costs for one batch, done alone, one sample after the other."""

    name: StageName
    """Which stage."""
    seconds: float
    """From beginning to end."""
    cpu_s: float = 0.0
    """How long of that a core was busy."""
    gil_s: float = 0.0
    """How long of that Python's lock was held, so that no other thread of the process could run Python."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a loader is set up."""

    kind: Kind
    """Whose loader it is."""
    workers: int = 0
    """Processes or threads that make batches at once beside the consumer, 0 where the consumer makes them itself."""
    processes: bool = False
    """Whether these are processes."""
    prefetch: int = 0
    """How many batches each worker may be ahead."""
    persistent: bool = False
    """Whether workers outlive an epoch."""
    is_stream: bool = False
    """Whether each process iterates over the whole dataset, unless its code takes a part: torch's `IterableDataset`."""
    batches: int | None = None
    """How many batches an epoch has, `None` where nobody knows."""
    batch_samples: int = 1
    """How many samples a batch has."""
    batch_bytes: int = 0
    """How many bytes a batch has."""
    strategy: str | None = None
    """The strategy of a loader of ours."""
    parallel_map: bool = True
    """Whether all maps of a tf.data pipeline run in parallel."""
    prefetched: bool = True
    """Whether a tf.data pipeline ends in a prefetch."""
    h5_file: str | None = None
    """The HDF5 file behind a dataset that is not ours."""
    source: str | None = None
    """The folder that a dataset names."""
    repeats: bool = False
    """Whether a sample is the same each time, so that its transforms could be done once."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images in a batch."""
    can_stage: bool | None = None
    """Whether the samples of `source` are found without the dataset's code, `None` where nobody looked."""
    can_pack: bool = False
    """Whether the dataset's items can be packed as they are."""

    @property
    def overlapped(self) -> bool:
        """Tell whether batches are made while the consumer works."""
        return self.workers > 0


@dataclass(frozen=True, slots=True)
class Span:
    """One batch of the run: when its consumer began to wait, had it, and was done with it; seconds since the first."""

    asked_s: float
    """When the consumer asked for it."""
    given_s: float
    """When it got it."""
    done_s: float
    """When it was done with it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What other ways of loading would cost here, each measured for a batch of this size."""

    handover_s: float = 0.0
    """How long a worker process takes to bring a batch to the consumer."""
    take_s: float = 0.0
    """How long the consumer takes to accept it, before it can continue."""
    gather_s: float = 0.0
    """How long it takes to copy a batch out of memory, as reading a packed file in the system's cache does, and to
    make floats of it where it has floats."""
    pack_s: float | None = None
    """How long our own reader takes to read a batch, where that could be tried."""
    cores: float = 1.0
    """How many cores' work this process gets done with all that it may use; less than `core_count` where they share
    something, or others use them."""
    core_count: int = 1
    """How many cores this process may use."""
    free_memory_bytes: int = 0
    """Memory that could be taken."""
    free_disk_bytes: int | None = None
    """Room on the local disk, `None` where nobody looked."""


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """Everything that a verdict rests on."""

    setting: Setting
    """How the loader is set up."""
    stages: tuple[StageCost, ...]
    """The stages of the loader, as far as they are known."""
    load_s: float
    """From batch to batch of the loader alone."""
    cycle_s: float
    """From batch to batch with the step."""
    wait_s: float = 0.0
    """How long of `cycle_s` the consumer waits for the batch."""
    busy_s: float = 0.0
    """How long of `cycle_s` the step takes."""
    start_s: float = 0.0
    """How much longer the first batch of an epoch takes."""
    step_alone_s: float | None = None
    """How long the step takes on a batch that is there; `None` without a step."""
    step_cpu_s: float = 0.0
    """The cores' time of that."""
    transfer_s: float | None = None
    """How long it takes to bring a batch to the device, `None` where nobody asked."""
    produced_s: tuple[float, ...] = ()
    """For several batches in a row, seconds that making each took alone."""
    gpu_busy: float | None = None
    """The GPU's mean utilisation (0 to 1) in the run, `None` without a GPU."""
    costs: Costs = field(default_factory=Costs)
    """What other ways of loading would cost."""

    @property
    def step_s(self) -> float:
        """Return `step_alone_s`; 0 without a step."""
        return self.step_alone_s or 0.0

    @property
    def serial_s(self) -> float:
        """Return all stages of the loader, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def cpu_s(self) -> float:
        """Return the core time of all stages of the loader."""
        return sum(stage.cpu_s for stage in self.stages)

    @property
    def gil_s(self) -> float:
        """Time of all stages in which Python's lock is held."""
        return sum(stage.gil_s for stage in self.stages)

    def cores_s(self, cpu_s: float) -> float:
        """Return the seconds from batch to batch that the cores need for the step beside `cpu_s` of loading."""
        return (cpu_s + self.step_cpu_s) / self.costs.cores

    @property
    def epoch_start_s(self) -> float:
        """Return what the start of an epoch adds to each of its batches."""
        return self.start_s / self.setting.batches if self.setting.batches else 0.0

    @property
    def batch_s(self) -> float:
        """Return the seconds from batch to batch as things are, with each batch's part of its epoch's start."""
        return self.cycle_s + self.epoch_start_s

    @property
    def consumer_wait_share(self) -> float:
        """Return the part of the run, 0 to 1, that the consumer waits for batches."""
        return min(1.0, self.wait_s / self.cycle_s) if self.cycle_s > 0 else 0.0

    @property
    def producer_wait_share(self) -> float:
        """Return the part of the run, 0 to 1, that the loader waits for the consumer: its queue is full, or it has
        none."""
        return min(1.0, max(0.0, 1 - self.load_s / self.cycle_s)) if self.cycle_s > 0 else 0.0

    def seconds(self, name: StageName) -> float:
        """Return the seconds of one stage; 0 where it was not seen."""
        return sum(stage.seconds for stage in self.stages if stage.name == name)


def arrays_of(batch: Any) -> Iterator[Any]:
    """Yield the arrays and tensors in a batch, however it nests tuples, lists and mappings."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from arrays_of(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from arrays_of(part)
    elif hasattr(batch, "shape") and hasattr(batch, "numpy"):
        yield batch.numpy()  # TensorFlow's do not say how large they are


def batch_size_of(batch: Any) -> tuple[int, int]:
    """Return the samples and bytes of a batch, of all its arrays together.

    Samples are the first axis of its first array, unless its parts agree on another number: images of their own sizes
    come in a list, beside as many targets.
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
    """Return the numbers of samples that each of the parts may have, of those that say anything about it."""
    counts = [found for part in parts if (found := _counts_of(part))]
    return set.intersection(*counts) if counts else set()


def _counts_of(part: Any) -> set[int]:
    if isinstance(part, dict | list | tuple):
        # A list is one sample each, or several inputs of all samples.
        own = set() if isinstance(part, dict) else {len(part)}
        return own | _shared_counts(_parts_of(part))
    shape: Any = getattr(part, "shape", ())
    return {int(shape[0])} if len(shape) else set()


def image_size_of(batch: Any) -> tuple[int, int] | None:
    """Return height and width of the images that a batch begins with, whichever axis has their colours; `None` of
    others."""
    shape = next((tuple(array.shape) for array in arrays_of(batch)), ())
    if len(shape) != 4:
        return None
    # Colours are four at most; heights of so few pixels are nobody's.
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return int(height), int(width)
