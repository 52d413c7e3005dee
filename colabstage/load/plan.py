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
    """Say how batches are loaded. Each field is an argument of `make_loader` and of `data.loader` as well.

    >>> options = LoaderOptions(device="cuda", dtype="float32")
    >>> loader = make_loader(dataset, 64, options=options)  # doctest: +SKIP

    Args:
        device: where batches end up; `None` is the memory of this computer. Batches for a GPU are gathered into
            pinned memory and copied beside the model's work.
        strategy: `"direct"` reads each batch out of the file. `"memory"` reads all inputs now, front to back, and
            batches from memory, which the loader keeps as long as it lives. `"device"` reads all inputs and targets
            onto the device, now, and gathers batches there. `"workers"` has processes make batches, by a stock
            `DataLoader`. `"auto"` takes the device where that is a GPU and a quarter of its free memory is enough,
            processes where a short probe shows that the dataset's transform is worth them and they start safely,
            memory where the file is slow to read at random (compressed, on a mounted Drive) and half of what is free
            is enough, and the file otherwise.
        shuffle: `True` visits the samples in a random order, another one each epoch, `False` in the file's order.
            `"window"` shuffles blocks of neighbouring rows, and then rows in windows of as much memory as
            `memory_budget` allows: for files larger than memory, at the rate of sequential reading. It is fair where
            the file's rows are in random order, as those of `train` in packs are. `"auto"` is `"window"` where that
            is so and the file is neither in memory nor fits there, and `True` otherwise. `None` is `"auto"` for the
            split `train` and `False` for all others; it is refused for some rows of `train`, which may be held out.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.transforms` get seed, epoch and rows too, and so treat a sample alike in any batch.
        dtype: floating-point dtype of x, as `torch.float32`, `"float32"` or `numpy.float32`, converted on the device;
            uint8 and uint16 become [0, 1].
        num_workers: threads that copy or decode at once; with `strategy="workers"`, processes. 0 makes each batch when
            the loop asks for it, in the thread that asks, as a `DataLoader` without workers does.
        prefetch_factor: batches prepared ahead; with `strategy="workers"`, by each process. `None` is `"auto"`.
        ragged: what boxes are: `"list"` for a list of dicts, `"pad"` for one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` filled up with -1, and so on, with `lengths` `(B,)`. The same for rows of any length, in x and in
            y: `"pad"` for a dict of `values` `(B, M)`, filled up with -1 for signed integers and 0 for all else, and
            `lengths`.
        sampler: which samples an epoch visits. A torch sampler, such as `WeightedRandomSampler`, which decides the
            order too: what it draws from torch's generators depends on seed and epoch alone. Or rows, in a list, an
            array or a tensor: a subset, shuffled or in the order given, as `shuffle` says. Ranks share out what it
            gives, except of a `DistributedSampler`, which does that by itself.
        rank, world_size: which part of how many; those of `torch.distributed` by default, where that is initialised.
        memory_budget: most memory that a window shuffle takes, in bytes or as `"2GB"`; by default a quarter of what
            can be spared, 2 GiB at the most. Where images are stored as files: most memory for those that are kept
            decoded for later epochs, by default an eighth of what is free, 2 GiB at the most; 0 keeps none.
        decode: how much of image files is decoded. `"auto"`: where `batch_transform` is a `RandomResizedCrop`, or a
            `Compose` that begins with one, and images are decoded at their own sizes, then no more of each than its
            crop needs, and `batch_transform` continues after that. The crops, and all other random numbers, are the
            same as without. So are the pixels (on a GPU and with `dtype`, to a grey level), but of crops that shrink to
            a half or less: those are made of a JPEG's own reduction, and their edges lie up to half a pixel of the
            result beside, which is a grey level or two on average in photographs. `"whole"` decodes whole images and
            has `batch_transform` cut them; `"crops"` is an error where `"auto"` would do that.
        pin_memory: without `device`, put batches into pinned memory where there is a GPU, for your own
            `x.to("cuda", non_blocking=True)`. With `device="cuda"` they come by way of pinned memory in any case.
        generator: a `torch.Generator`, whose `initial_seed()` takes the place of `seed`.
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
    """Time that a sample takes with its transform."""
    result_bytes: int
    """Length of its result."""


def _undivided() -> Shard:
    # Imported on use, because it imports numpy, which options do not need.
    from colabstage.load.epoch import Shard

    return Shard()


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """Facts about the dataset and this computer, on which the plan depends."""

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
    shard: Shard = field(default_factory=_undivided)
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
    """A number with the reason for it."""

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
