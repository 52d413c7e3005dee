"""The options of loaders, and the plan that follows from them: values with reasons.

Nothing here needs torch or numpy, so that code that only passes options on imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from colabstage.io.report import Report, Shown, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from numpy.typing import ArrayLike, DTypeLike

    from colabstage.load.batch import Ragged

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
        strategy: `"direct"` reads each batch from the file. `"memory"` reads all inputs at once, and takes batches from
            memory, as long as the loader exists. `"device"` keeps all inputs and targets on the device. `"auto"`
            chooses the device if that is a GPU, an eighth of its free memory is enough and there are no other ranks;
            memory if the file is slow to read at random and half of the free memory is enough; and the file otherwise.
        shuffle: `True` visits samples in a new random order in each epoch, `False` in the file's order. `"auto"` is
            `True`, except for rows that are still arriving or read under a `disk_limit`: these are shuffled in windows.
            `None` is `"auto"` for the split `train` and `False` for all others; for a part of `train`, which may be
            held out, it is refused.
        seed: determines that order, together with the epoch. By default it is drawn from torch's generator, as by a
            stock loader; it is 0 where ranks share an epoch, or rows are still arriving.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.transforms` also get seed, epoch and rows, so a sample is treated alike in any batch.
            Those of torchvision that take single images are called for each sample.
        dtype: floating-point dtype of x, as `torch.float32`, `"float32"` or `numpy.float32`, converted on the device;
            uint8 and uint16 become [0, 1].
        num_workers: number of threads that copy or decode. 0 makes each batch in the thread that iterates, when the
            loop reaches it, as a `DataLoader` without workers does.
        prefetch_factor: batches prepared in advance. `None` is `"auto"`.
        ragged: the form of boxes: `"list"` is a list of dicts, `"pad"` one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` padded with -1, and so on, with `lengths` `(B,)`.
        label_offset: added to the labels of boxes. 1 is for torchvision's detection models, whose 0 is the background.
        sampler: which samples an epoch visits. A torch sampler, such as `WeightedRandomSampler`, also decides the
            order; its random numbers (torch's, numpy's, Python's) depend on seed and epoch alone. Rows in a
            list, an array or a tensor are a subset, shuffled or in the given order, as `shuffle` says. Ranks divide
            these samples among themselves, unless a `DistributedSampler` does that itself.
        rank, world_size: this process's part and the number of parts; by default those of `torch.distributed`, if it is
            initialised.
        memory_budget: maximum memory for images stored as files that are kept decoded for later epochs, in bytes or as
            `"2GB"`; by default an eighth of what is free. 0 keeps none.
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
    """The fields of `LoaderOptions` as arguments, for type checkers; `tests/test_options.py` keeps the two the same."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions:
    """Say which batches `to_keras`, `to_tf_data` and `to_numpy` make.

    Args:
        shuffle: visit the samples in a random order that changes with each epoch. By default only `train` is shuffled,
            so `predict` returns a held-out split in the file's order. With `shuffle=False`, write
            `fit(…, shuffle=False)` too: by default Keras takes the batches of `to_keras` in random order.
        seed: seed of the random order, combined with the epoch. By default it is drawn from numpy's generator, which
            `keras.utils.set_random_seed` seeds; it is 0 for rows that are still arriving.
        rows: the samples that are visited, all by default: their numbers in a list or an array, such as one fold's.
            Rows of `train` need `shuffle=`, which says whether you train on them or hold them out.
        sample_weight: a weight for each sample of the split, which becomes the third part of a batch, as Keras takes
            it.
        drop_last: leave out a last batch that is not full.
        dtype: floating-point dtype of x; uint8 and uint16 are scaled to [0, 1].
        one_hot: turn class indices into one-hot vectors along a last axis: the number of classes, or `"auto"` for the
            number of class names in the file.
        num_workers: threads of this process that copy or decode at once; where TensorFlow gathers rows itself, batches
            that it gathers at once.
        prefetch_factor: batches prepared ahead; in `to_tf_data` at least as many as are read at once.
    """

    shuffle: bool | None = None
    seed: int | None = None
    rows: ArrayLike | None = None
    sample_weight: ArrayLike | None = None
    drop_last: bool = False
    dtype: DTypeLike | None = None
    one_hot: int | Literal["auto"] | None = None
    num_workers: int | Literal["auto"] = "auto"
    prefetch_factor: int | Literal["auto"] = "auto"


class ArrayArguments(TypedDict, total=False):
    """The fields of `ArrayOptions` as arguments, for type checkers; `tests/test_options.py` keeps the two the same."""

    shuffle: bool | None
    seed: int | None
    rows: ArrayLike | None
    sample_weight: ArrayLike | None
    drop_last: bool
    dtype: DTypeLike | None
    one_hot: int | Literal["auto"] | None
    num_workers: int | Literal["auto"]
    prefetch_factor: int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class ReasonedValue:
    value: int
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several ways, by its name, with the reason for it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoaderPlan(Shown):
    """How batches will be loaded: each choice with its reason."""

    strategy: Literal["device", "memory", "direct"]
    reason: str
    batch_size: int
    batches: int
    """Batches of this rank in an epoch."""
    is_joint: bool = True
    """Whether all ranks have as many."""
    workers: ReasonedValue
    prefetch: ReasonedValue
    engine: Choice
    order: Choice
    """`"permutation"`: all orders are equally likely; `"arrival"`: rows are shuffled within windows of units that
    arrive; `"file"`: as stored; `"sampler"`: as the sampler says."""
    decode: Choice | None = None
    """`"crops"`, no more of an image file than the crop that the batch transform begins with, or `"whole"`; `None` if
    inputs are not image files."""
    keep: ReasonedValue | None = None
    """How many bytes may keep decoded images for later epochs; `None` if nothing is decoded in each epoch."""
    together: int = 1
    """How many batches are gathered at once, because gathering each would cost more than its copy."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        chosen = {
            "strategy": f"{self.strategy}: {self.reason}",
            "batches": f"{self.batches:,} of {self.batch_size:,} samples",
            "workers": self.workers,
            "prefetch": self.prefetch,
            "gathered": f"{self.together} batches at a time" if self.together > 1 else None,
            "engine": self.engine,
            "order": self.order,
            "decode": self.decode,
            "decoded images": self.keep and f"{'kept' if self.keep.value else 'not kept'}, {self.keep.reason}",
        }
        return [(name, str(choice)) for name, choice in chosen.items() if choice is not None]

    def shown(self, headline: str = "LoaderPlan", *notes: str) -> Report:
        return Report(headline, (facts(self.facts),), notes)
