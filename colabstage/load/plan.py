"""What a loader's plan rests on, and what it says: facts and a request in, values with their reasons out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from colabstage.io.page import facts_table, page
from colabstage.io.units import format_count
from colabstage.load.epoch import Shard

if TYPE_CHECKING:
    from colabstage.load.arrival import ArrivalFacts
    from colabstage.load.reading.engines import EngineChoice

Strategy = Literal["auto", "device", "memory", "direct", "workers"]
Shuffle = bool | Literal["auto", "window"]
StartMethod = Literal["fork", "forkserver", "spawn"]
Decode = Literal["auto", "crops", "whole"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that batches go to."""

    type: str
    """Torch's word for its kind."""
    free_bytes: int
    """Of its memory."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What starting worker processes depends on."""

    threads: int
    """Threads of this process that Python knows."""
    cuda_started: bool
    """Whether this process uses CUDA."""
    unpicklable: str | None
    """Why the dataset cannot be sent to another process, `None` when it can."""
    methods: tuple[str, ...]
    """Ways of starting that this system has."""
    shared_memory_bytes: int
    """Free room for results on their way between processes."""
    runs_again: bool = False
    """Whether a process that is spawned would run the script that is running from its top, because the line that
    it is at is not below `if __name__ == "__main__":`."""


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What a probe measured."""

    seconds: float
    """That a sample takes with its transform."""
    result_bytes: int
    """Length of its result."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the decision rests on."""

    rows: int
    """How many samples there are."""
    row_bytes: int
    """Length of one in memory."""
    stored_bytes: int
    """Length of all inputs as they are stored."""
    engine: EngineChoice
    """How they are read."""
    encoded: bool
    """Whether they are decoded on read."""
    per_sample: bool
    """Whether the dataset has a Python transform for each sample."""
    cores: int
    """That this process may use."""
    free_memory_bytes: int
    """That this process may use."""
    target_bytes: int = 8
    """Length of one target."""
    decodes_targets: bool = False
    """Whether targets are mask files that are decoded on read."""
    uniform: bool = True
    """Whether all inputs have one shape, and all targets."""
    random_rows: bool = False
    """Whether the rows of the file are in random order."""
    epoch_rows: int | None = None
    """Visited in an epoch, where that is not `rows`."""
    shard: Shard = field(default_factory=Shard)
    """This rank's part."""
    device: DeviceFacts | None = None
    """Where batches go, `None` for this computer's memory."""
    processes: ProcessFacts | None = None
    """`None` where nobody looked."""
    cost: SampleCost | None = None
    """Of a sample with its transform, `None` where nobody measured it."""
    crop_bytes: int | None = None
    """Length of one crop, where the batch transform begins with a random resized one, `None` where it does not."""
    whole_reason: str | None = None
    """Why these inputs cannot be decoded as crops, `None` where they can."""
    arrival: ArrivalFacts | None = None
    """Of a file of which some rows are not here yet, `None` of any other."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """What the caller of `make_loader` asked for, as far as the decision depends on it."""

    batch_size: int
    """Samples in a batch."""
    strategy: Strategy = "auto"
    """Where batches come from."""
    drop_last: bool = False
    """Whether a last batch that is not full is left out."""
    num_workers: int | Literal["auto"] = "auto"
    """Threads that copy or decode at once, or processes."""
    prefetch_factor: int | Literal["auto"] = "auto"
    """Batches prepared ahead, by each process where there are some."""
    shuffle: Shuffle = True
    """Whether rows are visited in random order, and in which kind of it."""
    memory_budget: int | None = None
    """Bytes that a window shuffle, or decoded images that are kept, may take, `None` for a part of what is free."""
    sampling: bool = False
    """Whether a sampler decides by itself in which order rows come."""
    decode: Decode = "auto"
    """How much of each image file is decoded."""


@dataclass(frozen=True, slots=True)
class ReasonedValue:
    """A number and why it is that."""

    value: int
    """The number."""
    reason: str
    """Why, in words that follow it in brackets."""

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """Say in which order an epoch visits rows, and why."""

    name: Literal["permutation", "window", "arrival", "file", "sampler"]
    """`"permutation"` any order is as likely as any other; `"window"` rows are shuffled in windows; `"arrival"` so are
    those of units that are brought here together; `"file"` as stored; `"sampler"` as the sampler says."""
    reason: str
    """Why, in words that follow the name."""
    window_rows: int = 0
    """Rows that are shuffled among each other."""
    block_rows: int = 0
    """Neighbours in the file that windows are made of."""
    window_units: int = 0
    """Units of what arrives that are shuffled among each other."""
    mixing: float | None = None
    """How even the classes of a batch are, as `load.arrival.mixing_of` has it; `None` where nobody measured it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """How much of each image file is decoded, and why."""

    name: Literal["crops", "whole"]
    """`"crops"` no more than the crop that the batch transform begins with needs; `"whole"` all of it."""
    reason: str
    """Why, in words that follow "because"."""

    def __str__(self) -> str:
        return f"{self.name}, because {self.reason}"


@dataclass(frozen=True, slots=True)
class KeepChoice:
    """How much memory decoded images may take that are kept for later epochs, and why."""

    most_bytes: int
    """The budget; 0 where none are kept."""
    reason: str
    """Why, in words that follow "kept" or "not kept"."""

    def __str__(self) -> str:
        return f"kept, {self.reason}" if self.most_bytes else f"not kept, {self.reason}"


@dataclass(frozen=True, slots=True)
class StartChoice:
    """How worker processes are started, and why."""

    method: StartMethod
    """Python's word for it."""
    reason: str
    """Why, in words that follow it in brackets."""
    safe: bool = True
    """Whether that may be done unasked."""

    def __str__(self) -> str:
        return f"{self.method} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """How batches will be loaded."""

    strategy: Literal["device", "memory", "direct", "workers"]
    """With `"direct"` a background thread copies, or decodes, batches straight out of the file; with `"memory"` the
    whole split is read once, and batches come from there; with `"device"` the same on the device; with `"workers"`
    processes make them."""
    reason: str
    """Why, in words that follow the strategy."""
    batch_size: int
    """Samples in a batch."""
    batches: int
    """In an epoch, of this rank."""
    workers: ReasonedValue
    """Threads that copy or decode at once, or processes."""
    prefetch: ReasonedValue
    """Batches prepared ahead, by each process where there are some."""
    engine: EngineChoice
    """What rows are read by then."""
    order: OrderChoice
    """In which rows are visited."""
    start: StartChoice | None = None
    """How processes are started, `None` without any."""
    decode: DecodeChoice | None = None
    """How much of image files is decoded, `None` where inputs are none."""
    keep: KeepChoice | None = None
    """Whether images that were decoded are kept for later epochs, `None` where none are decoded in each epoch."""
    together: int = 1
    """How many batches are gathered at once, because each would cost more than its copy."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Tell what was chosen, and why, one choice after the other."""
        chosen = [
            ("strategy", f"{self.strategy}: {self.reason}"),
            ("batches", f"{self.batches:,} of {self.batch_size:,}"),
            ("workers", str(self.workers)),
            ("prefetch", str(self.prefetch)),
            ("engine", str(self.engine)),
            ("order", str(self.order)),
        ]
        chosen += [] if self.start is None else [("start", str(self.start))]
        chosen += [] if self.decode is None else [("decode", str(self.decode))]
        return chosen if self.keep is None else [*chosen, ("decoded images", str(self.keep))]

    def _repr_html_(self) -> str:
        return page(f"LoaderPlan: {self.strategy}", facts_table(self.facts))

    def __str__(self) -> str:
        _, _, *others = self.facts
        batches = f"{format_count(self.batches, 'batches')} of {self.batch_size}"
        return "; ".join([f"{self.strategy}: {self.reason}", batches, *(f"{name}: {said}" for name, said in others)])
