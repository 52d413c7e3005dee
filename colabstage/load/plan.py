"""The options of a loader, the facts and the request that its plan follows from, and the plan: values with reasons.

Nothing here needs torch or numpy, so that code that only passes options on imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from colabstage.io.page import facts_table, page
from colabstage.io.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from numpy.typing import DTypeLike

    from colabstage.load.arrival import ArrivalFacts
    from colabstage.load.batches import Ragged
    from colabstage.load.epoch import Shard
    from colabstage.load.reading.engines import EngineChoice

Strategy = Literal["auto", "device", "memory", "direct", "workers"]
Shuffle = bool | Literal["auto", "window"]
StartMethod = Literal["fork", "forkserver", "spawn"]
Decode = Literal["auto", "crops", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Say how batches are loaded. Each field is also an argument of `make_loader` and `data.loader`.

    >>> options = LoaderOptions(device="cuda", dtype="float32")
    >>> loader = make_loader(dataset, 64, options=options)  # doctest: +SKIP

    Args:
        device: where batches go; `None` is this computer's memory. Batches for a GPU are gathered into pinned memory,
            and copied while the model works.
        strategy: `"direct"` reads each batch from the file. `"memory"` reads all inputs at once, front to back, and
            takes batches from memory, which the loader keeps as long as it exists. `"device"` reads all inputs and
            targets onto the device at once, and gathers batches there. `"workers"` makes batches in processes, with a
            stock `DataLoader`. `"auto"` chooses the device if that is a GPU and a quarter of its free memory is enough,
            processes if a short probe shows that the dataset's transform is worth them and they can be started safely,
            memory if the file is slow to read at random (compressed, on a mounted Drive) and half of the free memory is
            enough, and the file otherwise.
        shuffle: `True` visits samples in a random order, a new one in each epoch, `False` in the file's order.
            `"window"` shuffles blocks of neighbouring rows, and then rows within windows as large as `memory_budget`
            allows: for files larger than memory, at the rate of sequential reading. It is fair if the file's rows are
            in random order, as the `train` rows of packs are. `"auto"` is `"window"` if that is so and the file neither
            is in memory nor fits there, and `True` otherwise. `None` is `"auto"` for the split `train` and `False` for
            all others; it is refused for some rows of `train`, which may be held out.
        seed: determines that order, together with the epoch.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.transforms` also get seed, epoch and rows, so a sample is treated alike in any batch.
        dtype: floating-point dtype of x, as `torch.float32`, `"float32"` or `numpy.float32`, converted on the device;
            uint8 and uint16 become [0, 1].
        num_workers: number of threads that copy or decode; with `strategy="workers"`, of processes. 0 makes each batch
            in the thread that asks for it, when it asks, as a `DataLoader` without workers does.
        prefetch_factor: batches prepared in advance; with `strategy="workers"`, by each process. `None` is `"auto"`.
        ragged: the form of boxes: `"list"` is a list of dicts, `"pad"` one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` padded with -1, and so on, with `lengths` `(B,)`. Likewise for variable-length rows, in x and y:
            `"pad"` is a dict of `values` `(B, M)`, padded with -1 for signed integers and 0 for other dtypes, and
            `lengths`.
        sampler: which samples an epoch visits. A torch sampler, such as `WeightedRandomSampler`, also decides the
            order; its random numbers from torch's generators depend on seed and epoch alone. Rows in a list, an array
            or a tensor are a subset, shuffled or in the given order, as `shuffle` says. Ranks divide these samples
            among themselves, unless a `DistributedSampler` does that itself.
        rank, world_size: this process's part and the number of parts; by default those of `torch.distributed`, if it is
            initialised.
        memory_budget: maximum memory of a window shuffle, in bytes or as `"2GB"`; by default a quarter of what is
            available, at most 2 GiB. For images that are stored as files: maximum memory for those that are kept
            decoded for later epochs, by default an eighth of what is free, at most 2 GiB; 0 keeps none.
        decode: how much of image files is decoded. With `"auto"`, if `batch_transform` is a `RandomResizedCrop`, or a
            `Compose` that begins with one, and images are decoded at their own sizes, only the part of each image that
            its crop needs is decoded, and `batch_transform` continues from there. The crops and all other random
            numbers do not change. Neither do the pixels (on a GPU and with `dtype`, to within a grey level), except in
            crops that shrink to half or less: these use a JPEG's own reduction, and their edges may move by up to half
            a pixel of the result, on average a grey level or two in photographs. `"whole"` decodes whole images, which
            `batch_transform` then crops; `"crops"` is an error where `"auto"` would do that.
        pin_memory: without `device`, put batches into pinned memory if there is a GPU, for your own
            `x.to("cuda", non_blocking=True)`. With `device="cuda"` batches go through pinned memory in any case.
        generator: a `torch.Generator`, whose `initial_seed()` replaces `seed`.
    """

    device: str | torch.device | None = None
    strategy: Strategy = "auto"
    shuffle: Shuffle | None = None
    seed: int = 0
    drop_last: bool = False
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
    dtype: torch.dtype | DTypeLike | None = None
    num_workers: int | Literal["auto"] = "auto"
    prefetch_factor: int | Literal["auto"] | None = "auto"
    ragged: Ragged = "list"
    sampler: Iterable[int] | None = None
    rank: int | None = None
    world_size: int | None = None
    memory_budget: int | str | None = None
    decode: Decode = "auto"
    pin_memory: bool = False
    generator: torch.Generator | None = None


class LoaderArguments(TypedDict, total=False):
    """The fields of `LoaderOptions` as arguments, for type checkers; `tests/test_options.py` holds both alike."""

    device: str | torch.device | None
    strategy: Strategy
    shuffle: Shuffle | None
    seed: int
    drop_last: bool
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None
    dtype: torch.dtype | DTypeLike | None
    num_workers: int | Literal["auto"]
    prefetch_factor: int | Literal["auto"] | None
    ragged: Ragged
    sampler: Iterable[int] | None
    rank: int | None
    world_size: int | None
    memory_budget: int | str | None
    decode: Decode
    pin_memory: bool
    generator: torch.Generator | None


_BY_TORCH = "torch.utils.data.DataLoader(dataset, batch_size, {0}={0}) takes the dataset and reads each batch at once"
# What users of torch's `DataLoader` try, and the line that does what they mean.
TORCH_REMEDIES = {
    "collate_fn": f"{_BY_TORCH.format('collate_fn')}; batch_transform= changes whole batches of this loader.",
    "batch_sampler": f"{_BY_TORCH.format('batch_sampler')}; sampler= gives this loader its rows, batch_size and "
    "drop_last= their number.",
    "persistent_workers": 'Leave it out: processes (strategy="workers" starts some) stay from epoch to epoch.',
    "worker_init_fn": "Leave it out: Python, numpy and torch are seeded for each batch from seed, epoch and rows. "
    f"{_BY_TORCH.format('worker_init_fn')}.",
    "multiprocessing_context": "Leave it out: loader.plan.start says how processes are started, and why. "
    f"{_BY_TORCH.format('multiprocessing_context')}.",
    "timeout": f"Leave it out: no wait here is without an end. {_BY_TORCH.format('timeout')}.",
    "pin_memory_device": 'Write device="cuda" for batches on the GPU, or pin_memory=True.',
    "in_order": "Leave it out: batches always come in their order.",
    "normalize": "Write batch_transform=Normalize(mean, std), of colabstage.transforms.",
    "one_hot": "Write batch_transform=OneHot(classes), of colabstage.transforms.",
    "channels_last": "Leave it out: images are (B, C, H, W) in channels_last memory anyway.",
    **dict.fromkeys(
        ("augment", "augmentation", "transform", "transforms"),
        "Write batch_transform= for whole batches; colabstage.transforms has RandomCrop, RandomFlip and others.",
    ),
    **{
        name: f"It is decided when the dataset is staged: stage_dataset(…, {name}=…)."
        for name in ("color_mode", "encoding", "image_size", "resize", "splits")
    },
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that batches go to."""

    type: str
    """Its type, in torch's words."""
    free_bytes: int
    """Free bytes of its memory."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What starting worker processes depends on."""

    threads: int
    """Python threads of this process."""
    cuda_started: bool
    """Whether this process uses CUDA."""
    unpicklable: str | None
    """Why the dataset cannot be sent to another process; `None` if it can."""
    methods: tuple[str, ...]
    """Start methods that this system supports."""
    shared_memory_bytes: int
    """Free space for results sent between processes."""
    runs_again: bool = False
    """Whether a spawned process would run the present script from the top, because its call is not below `if __name__
    == "__main__":`."""


@dataclass(frozen=True, slots=True)
class SampleCost:
    """The result of a probe."""

    seconds: float
    """Seconds for a sample with its transform."""
    result_bytes: int
    """Length of its result."""


def _undivided() -> Shard:
    # Imported on use, because it imports numpy, which options do not need.
    from colabstage.load.epoch import Shard

    return Shard()


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """Facts about the dataset and this computer that determine the plan."""

    rows: int
    """How many samples there are."""
    row_bytes: int
    """Bytes of one input in memory."""
    stored_bytes: int
    """Bytes of all inputs as stored."""
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
    """Whether all inputs have one shape, and all targets too."""
    random_rows: bool = False
    """Whether the rows of the file are in random order."""
    epoch_rows: int | None = None
    """Rows visited in an epoch, if not `rows`."""
    shard: Shard = field(default_factory=_undivided)
    """This rank's part."""
    device: DeviceFacts | None = None
    """Where batches go; `None` for this computer's memory."""
    processes: ProcessFacts | None = None
    """`None` where nobody looked."""
    cost: SampleCost | None = None
    """The cost of a sample with its transform; `None` if not measured."""
    crop_bytes: int | None = None
    """Bytes of one crop, if the batch transform begins with a random resized crop; otherwise `None`."""
    whole_reason: str | None = None
    """Why these inputs cannot be decoded as crops; `None` if they can."""
    arrival: ArrivalFacts | None = None
    """The facts of a file whose rows are not all here yet; `None` for any other."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """The caller's arguments of `make_loader` that determine the decision."""

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
    """Whether rows are visited in random order, and in which kind."""
    memory_budget: int | None = None
    """Maximum bytes for a window shuffle or for kept decoded images; `None` for a share of what is free."""
    sampling: bool = False
    """Whether a sampler decides the order of rows."""
    decode: Decode = "auto"
    """How much of each image file is decoded."""


@dataclass(frozen=True, slots=True)
class ReasonedValue:
    """A number with the reason for it."""

    value: int
    """The number."""
    reason: str
    """Why, in words that follow it in brackets."""

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """The order in which an epoch visits rows, and why."""

    name: Literal["permutation", "window", "arrival", "file", "sampler"]
    """`"permutation"` any order is as likely as any other; `"window"` rows are shuffled in windows; `"arrival"` so are
    those of units that are brought here together; `"file"` as stored; `"sampler"` as the sampler says."""
    reason: str
    """Why, in words that follow the name."""
    window_rows: int = 0
    """Number of rows that are shuffled together."""
    block_rows: int = 0
    """Neighbours in the file that windows are made of."""
    window_units: int = 0
    """Number of arriving units that are shuffled together."""
    mixing: float | None = None
    """How even the classes of a batch are, as in `load.arrival.mixing_of`; `None` if not measured."""

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
    """How much memory is used to keep decoded images for later epochs, and why."""

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
    """Python's name for the start method."""
    reason: str
    """Why, in words that follow it in brackets."""
    safe: bool = True
    """Whether `"auto"` may do that."""

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
        """Return the choices and their reasons, one after the other."""
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
