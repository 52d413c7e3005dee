"""What decisions about loading are made of: facts, wishes, and values with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from colabstage.load.epoch.sharding import Shard
from colabstage.page import facts_table, page

if TYPE_CHECKING:
    from colabstage.load.reading.storage import EngineChoice

Strategy = Literal["auto", "device", "memory", "direct", "workers"]
Shuffle = bool | Literal["auto", "window"]
StartMethod = Literal["fork", "forkserver", "spawn"]
Decode = Literal["auto", "crops", "whole"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that batches go to. `type`: torch's word for its kind. `free_bytes`: of its memory."""

    type: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What starting worker processes depends on.

    `threads`: threads of this process that Python knows. `cuda_started`: whether this process uses CUDA.
    `unpicklable`: why the dataset cannot be sent to another process, `None` when it can. `methods`: ways of starting
    that this system has. `shared_memory_bytes`: free room for results on their way between processes. `runs_again`:
    whether a process that is started anew would run the script that is running from its top, because the line that it
    is at is not below `if __name__ == "__main__":`.
    """

    threads: int
    cuda_started: bool
    unpicklable: str | None
    methods: tuple[str, ...]
    shared_memory_bytes: int
    runs_again: bool = False


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What a probe measured: seconds that a sample takes with its transform, and bytes of its result."""

    seconds: float
    result_bytes: int


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the decision rests on.

    `rows`: samples. `row_bytes`: of one in memory. `stored_bytes`: of all inputs as they are stored. `engine`: how they
    are read. `encoded`: whether they are decoded on read. `per_sample`: whether the dataset has a Python transform for
    each sample. `cores`, `free_memory_bytes`: what this process may use. `target_bytes`: of one target.
    `uniform`: whether all inputs have one shape, and all targets. `random_rows`: whether the rows of the file are in
    random order. `epoch_rows`: visited in an epoch, where that is not `rows`. `shard`: this rank's part.
    `device`: where batches go, `None` for this computer's memory. `processes`: `None` where nobody looked. `cost`: of
    a sample with its transform, `None` where nobody measured it. `crop_bytes`: of one crop, where the batch transform
    begins with a random resized one, `None` where it does not. `why_whole`: why these inputs cannot be decoded as
    crops, `None` where they can.
    """

    rows: int
    row_bytes: int
    stored_bytes: int
    engine: EngineChoice
    encoded: bool
    per_sample: bool
    cores: int
    free_memory_bytes: int
    target_bytes: int = 8
    uniform: bool = True
    random_rows: bool = False
    epoch_rows: int | None = None
    shard: Shard = field(default_factory=Shard)
    device: DeviceFacts | None = None
    processes: ProcessFacts | None = None
    cost: SampleCost | None = None
    crop_bytes: int | None = None
    why_whole: str | None = None


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """What the caller of `make_loader` asked for, as far as the decision depends on it.

    `memory_budget`: bytes that a window shuffle may take, `None` for a part of what is free. `sampling`: whether a
    sampler decides by itself in which order rows come.
    """

    batch_size: int
    strategy: Strategy = "auto"
    drop_last: bool = False
    num_workers: int | Literal["auto"] = "auto"
    prefetch: int | Literal["auto"] = "auto"
    shuffle: Shuffle = True
    memory_budget: int | None = None
    sampling: bool = False
    decode: Decode = "auto"


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A number and why it is that."""

    value: int
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """In which order an epoch visits rows, and why.

    `name`: `"permutation"` any order is as likely as any other; `"window"` rows are shuffled in windows of
    `window_rows`, made of blocks of `block_rows` neighbours; `"file"` as stored; `"sampler"` as the sampler says.
    """

    name: Literal["permutation", "window", "file", "sampler"]
    reason: str
    window_rows: int = 0
    block_rows: int = 0

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """How much of each image file is decoded, and why.

    `name`: `"crops"` no more than the crop that the batch transform begins with needs; `"whole"` all of it.
    """

    name: Literal["crops", "whole"]
    reason: str

    def __str__(self) -> str:
        return f"{self.name}, because {self.reason}"


@dataclass(frozen=True, slots=True)
class StartChoice:
    """How worker processes are started, and why. `safe`: whether that may be done unasked."""

    method: StartMethod
    reason: str
    safe: bool = True

    def __str__(self) -> str:
        return f"{self.method} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """How batches will be loaded.

    `strategy`: with `"direct"` a background thread copies, or decodes, batches straight out of the file; with
    `"memory"` the whole split is read once, and batches come from there; with `"device"` the same on the device; with
    `"workers"` processes make them. `engine`: what rows are read by then. `batches`: in an epoch, of this rank.
    `workers`: threads that copy or decode at once, or processes. `prefetch`: batches prepared ahead, by each process
    where there are some. `order`: in which rows are visited. `start`: how processes are started, `None` without any.
    `decode`: how much of image files is decoded, `None` where inputs are none.
    """

    strategy: Literal["device", "memory", "direct", "workers"]
    reason: str
    batch_size: int
    batches: int
    workers: Reasoned
    prefetch: Reasoned
    engine: EngineChoice
    order: OrderChoice
    start: StartChoice | None = None
    decode: DecodeChoice | None = None

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was chosen, and why, one choice after the other."""
        chosen = [
            ("strategy", f"{self.strategy}: {self.reason}"),
            ("batches", f"{self.batches:,} of {self.batch_size:,}"),
            ("workers", str(self.workers)),
            ("prefetch", str(self.prefetch)),
            ("engine", str(self.engine)),
            ("order", str(self.order)),
        ]
        chosen += [] if self.start is None else [("start", str(self.start))]
        return chosen if self.decode is None else [*chosen, ("decode", str(self.decode))]

    def _repr_html_(self) -> str:
        return page(f"LoaderPlan: {self.strategy}", facts_table(self.facts))

    def __str__(self) -> str:
        start = "" if self.start is None else f"; start: {self.start}"
        decode = "" if self.decode is None else f"; decode: {self.decode}"
        return (
            f"{self.strategy}: {self.reason}; {self.batches:,} batches of {self.batch_size}; "
            f"workers: {self.workers}; prefetch: {self.prefetch}; engine: {self.engine}; order: {self.order}"
            f"{start}{decode}"
        )
