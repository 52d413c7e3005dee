"""What `make_loader` and `StagedDataset.loader` take besides samples and a batch size, spelt once: `LoaderOptions`.

Nothing here needs torch, so that `colabstage.options` can be imported without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from colabstage.load.batches import Ragged
    from colabstage.load.plan import Decode, Shuffle, Strategy


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
            split `train` and `False` for all others.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.transforms` get seed, epoch and rows too, and so treat a sample alike in any batch.
        dtype: floating-point dtype of x, as `torch.float32` or `"float32"`, converted on the device; uint8 and uint16
            become [0, 1].
        num_workers: threads that copy or decode at once; with `strategy="workers"`, processes. 0 makes each batch when
            the loop asks for it, in the thread that asks, as a `DataLoader` without workers does.
        prefetch_factor: batches prepared ahead; with `strategy="workers"`, by each process. `None` is `"auto"`.
        ragged: what boxes are: `"list"` for a list of dicts, `"pad"` for one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` filled up with -1, and so on, with `lengths` `(B,)`. The same for rows of any length, in x and in
            y: `"pad"` for a dict of `values` `(B, M)`, filled up with -1 for signed integers and 0 for all else, and
            `lengths`.
        sampler: which samples an epoch visits. A torch sampler, such as `WeightedRandomSampler`, which decides the
            order too: what it draws from torch's generators depends on seed and epoch alone. Or rows, in a list, an
            array or a tensor: a subset, shuffled unless `shuffle` is `False`. Ranks share out what it gives, except
            of a `DistributedSampler`, which does that by itself.
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
    dtype: torch.dtype | str | None = None
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
    dtype: torch.dtype | str | None
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
}
