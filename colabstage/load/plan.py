"""The options of a loader, the facts and the request that its plan follows from, and the plan: values with reasons.

Nothing here needs torch or numpy, so that code that only passes options on imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from colabstage.io.page import facts_table, page
from colabstage.io.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from numpy.typing import DTypeLike

    from colabstage.load.arrival import ArrivalFacts
    from colabstage.load.batch import Ragged
    from colabstage.load.epoch import Shard
    from colabstage.load.reading.fields import EngineChoice

Strategy = Literal["auto", "device", "memory", "direct"]
Shuffle = bool | Literal["auto"]


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
            targets onto the device at once, and gathers batches there. `"auto"` chooses the device if that is a GPU, an
            eighth of its free memory is enough and there are no other ranks; memory if the file is slow to read at
            random (compressed, on a mounted Drive) and half of the free memory is enough; and the file otherwise.
        shuffle: `True` visits samples in a random order, a new one in each epoch, `False` in the file's order. `"auto"`
            is `True`, but for rows that are still arriving or read under a `disk_limit`: these are shuffled in windows.
            `None` is `"auto"` for the split `train` and `False` for all others; it is refused for some rows of `train`,
            which may be held out.
        seed: determines that order, together with the epoch. By default it is drawn from torch's generator, as by a
            stock loader; it is 0 where ranks share an epoch, or rows are still arriving.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.transforms` also get seed, epoch and rows, so a sample is treated alike in any batch.
            Those of torchvision and kornia that take single images are called for each sample.
        dtype: floating-point dtype of x, as `torch.float32`, `"float32"` or `numpy.float32`, converted on the device;
            uint8 and uint16 become [0, 1].
        num_workers: number of threads that copy or decode. 0 makes each batch in the thread that asks for it, when it
            asks, as a `DataLoader` without workers does.
        prefetch_factor: batches prepared in advance. `None` is `"auto"`.
        ragged: the form of boxes: `"list"` is a list of dicts, `"pad"` one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` padded with -1, and so on, with `lengths` `(B,)`.
        label_offset: added to the labels of boxes. 1 is for torchvision's detection models, to which 0 is the
            background.
        sampler: which samples an epoch visits. A torch sampler, such as `WeightedRandomSampler`, also decides the
            order; its random numbers from torch's and numpy's generators depend on seed and epoch alone. Rows in a
            list, an array or a tensor are a subset, shuffled or in the given order, as `shuffle` says. Ranks divide
            these samples among themselves, unless a `DistributedSampler` does that itself.
        rank, world_size: this process's part and the number of parts; by default those of `torch.distributed`, if it is
            initialised.
        memory_budget: for images that are stored as files: maximum memory for those that are kept decoded for later
            epochs, in bytes or as `"2GB"`; by default an eighth of what is free, at most 2 GiB. 0 keeps none.
    """

    device: str | torch.device | None = None
    strategy: Strategy = "auto"
    shuffle: Shuffle | None = None
    seed: int | None = None
    drop_last: bool = False
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
    dtype: torch.dtype | DTypeLike | None = None
    num_workers: int | Literal["auto"] = "auto"
    prefetch_factor: int | Literal["auto"] | None = "auto"
    ragged: Ragged = "list"
    label_offset: int = 0
    sampler: Iterable[int] | None = None
    rank: int | None = None
    world_size: int | None = None
    memory_budget: int | str | None = None


class LoaderArguments(TypedDict, total=False):
    """The fields of `LoaderOptions` as arguments, for type checkers; `tests/test_options.py` holds both alike."""

    device: str | torch.device | None
    strategy: Strategy
    shuffle: Shuffle | None
    seed: int | None
    drop_last: bool
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None
    dtype: torch.dtype | DTypeLike | None
    num_workers: int | Literal["auto"]
    prefetch_factor: int | Literal["auto"] | None
    ragged: Ragged
    label_offset: int
    sampler: Iterable[int] | None
    rank: int | None
    world_size: int | None
    memory_budget: int | str | None


# The lines that take whole batches from worker processes, seeded as torch seeds them.
STOCK_LOADER = "torch.utils.data.DataLoader(dataset, batch_size, shuffle=True, num_workers=2)"
# Arguments that are gone, or that only a stock `DataLoader` has, and the line to write instead.
TORCH_REMEDIES = {
    "decode": "Leave it out: crops are cut while images are decoded wherever batch_transform begins with one.",
    "generator": "Write seed=generator.initial_seed().",
    "pin_memory": 'Write device="cuda": batches come through pinned memory.',
    **dict.fromkeys(
        ("batch_sampler", "collate_fn", "worker_init_fn", "multiprocessing_context", "persistent_workers"),
        f"A stock loader has it and reads whole batches too: {STOCK_LOADER}.",
    ),
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that batches go to."""

    type: str
    """Its type, in torch's words."""
    free_bytes: int
    """Free bytes of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Facts about the dataset and this computer that determine the plan."""

    rows: int
    """Number of samples."""
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
    """Cores that this process may use."""
    free_memory_bytes: int
    """Memory that this process may use."""
    shard: Shard
    """This rank's part."""
    target_bytes: int = 8
    """Length of one target."""
    decodes_targets: bool = False
    """Whether targets are mask files that are decoded on read."""
    uniform: bool = True
    """Whether all inputs have one shape, and all targets too."""
    epoch_rows: int | None = None
    """Rows visited in an epoch, if not `rows`."""
    device: DeviceFacts | None = None
    """Where batches go; `None` for this computer's memory."""
    crop_bytes: int | None = None
    """Bytes of one crop, if the batch transform begins with a random resized crop."""
    whole_reason: str | None = None
    """Why these inputs cannot be decoded as crops; `None` if they can."""
    arrival: ArrivalFacts | None = None
    """The facts of a file whose rows arrive; `None` for any other."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """The caller's arguments that determine the plan."""

    batch_size: int
    """Samples in a batch."""
    strategy: Strategy = "auto"
    """Where batches come from."""
    drop_last: bool = False
    """Whether a last batch that is not full is left out."""
    num_workers: int | Literal["auto"] = "auto"
    """Threads that copy or decode at once."""
    prefetch_factor: int | Literal["auto"] = "auto"
    """Batches prepared ahead."""
    shuffle: Shuffle = True
    """Whether rows are visited in random order."""
    memory_budget: int | None = None
    """Most bytes for decoded images; `None` for a share of what is free."""
    sampling: bool = False
    """Whether a sampler decides the order of rows."""


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

    name: Literal["permutation", "arrival", "file", "sampler"]
    """`"permutation"` any order is as likely as any other; `"arrival"` rows are shuffled within windows of units that
    arrive; `"file"` as stored; `"sampler"` as the sampler says."""
    reason: str
    """Why, in words that follow the name."""
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
class LoaderPlan:
    """How batches will be loaded."""

    strategy: Literal["device", "memory", "direct"]
    """With `"direct"` a background thread copies, or decodes, batches straight out of the file; with `"memory"` the
    whole split is read once, and batches come from there; with `"device"` the same on the device."""
    reason: str
    """Why, in words that follow the strategy."""
    batch_size: int
    """Samples in a batch."""
    batches: int
    """In an epoch, of this rank."""
    workers: ReasonedValue
    """Threads that copy or decode at once."""
    prefetch: ReasonedValue
    """Batches prepared ahead."""
    engine: EngineChoice
    """How rows are read."""
    order: OrderChoice
    """In which order rows are visited."""
    decode: DecodeChoice | None = None
    """How much of image files is decoded, `None` where inputs are none."""
    keep: KeepChoice | None = None
    """Whether decoded images are kept for later epochs, `None` where none are decoded in each epoch."""
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
        chosen += [] if self.decode is None else [("decode", str(self.decode))]
        return chosen if self.keep is None else [*chosen, ("decoded images", str(self.keep))]

    def _repr_html_(self) -> str:
        return page(f"LoaderPlan: {self.strategy}", facts_table(self.facts))

    def __str__(self) -> str:
        _, _, *others = self.facts
        batches = f"{format_count(self.batches, 'batches')} of {self.batch_size}"
        return "; ".join([f"{self.strategy}: {self.reason}", batches, *(f"{name}: {said}" for name, said in others)])
