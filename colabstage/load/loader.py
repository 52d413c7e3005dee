"""Make batches as tensors, prepared in the background while the model computes: `make_loader`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.packages import refuse_import

try:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset
except ImportError as error:
    refuse_import("torch", "make_loader needs", error)

from colabstage.io.arguments import ONE_SPLIT, read_options, refuse_argument, show_content, whole_number
from colabstage.io.boundary import public
from colabstage.io.pipeline import SOLO
from colabstage.io.progress import Demand
from colabstage.io.report import Report, Shown
from colabstage.io.units import format_count
from colabstage.load.ahead import Ahead, Iterated, Iteration, Steps
from colabstage.load.augment import CroppedInputs, FirstCrop, check_inputs, first_crop
from colabstage.load.batch import Batcher, Group
from colabstage.load.batches import Form, move_to, torch_dtype
from colabstage.load.calling import check_batch_transform
from colabstage.load.choosing import choose_loader, gather_facts
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import (
    CopyStream,
    ResidentSplit,
    Stager,
    StreamGuard,
    copy_stream,
    free_device_memory,
    pinned_block,
    split_group,
    stage_ahead,
    usable_device,
)
from colabstage.load.epoch import (
    BatchPlace,
    Order,
    RowOrder,
    SampledOrder,
    Schedule,
    Shard,
    choose_seed,
    choose_shard,
    chosen_order,
    digest_of,
    first_made,
    given_rows,
    order_within,
    sampler_order,
)
from colabstage.load.partial import FirstEpochOrder, lasting_layout, mixing_of, order_of
from colabstage.load.plan import LoaderArguments, LoaderOptions, LoaderPlan, Shuffle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.h5.arrival import Expectation
    from colabstage.load.ahead import Source
    from colabstage.load.reading.memory import KeptImages
    from colabstage.load.reading.reader import SplitReader

    _Base = DataLoader[Any]
else:
    _Base = DataLoader

_THREAD = "colabstage-loader"
# Batches of floats that are handed over at once.
_FEW_FLOATS = 8
# Counting the classes of more rows would take as long as the first batch does.
_MOST_MEASURED = 2**21
# Below this, the counts of classes in a batch vary more than four times as much as at random.
_LEAST_MIXING = 0.25
_SEEDS = 2**62


@public(LoaderOptions)
def make_loader(
    dataset: dataset_h5 | Subset[Any],
    batch_size: int,
    *,
    options: LoaderOptions | None = None,
    **arguments: Unpack[LoaderArguments],
) -> Loader:
    """Make batches of a dataset, in the fastest way for this machine; `loader.plan` says which way, and why.

    >>> loader = make_loader(dataset_h5("data.h5"), 64, device="cuda", dtype="float32")  # doctest: +SKIP
    >>> for x, y in loader:  # doctest: +SKIP
    ...     train_step(x, y)

    A batch is `(x, y)`, or `((x, y), index)` for a dataset with `return_index`:

    - `x`: `(B, C, H, W)` for images, in `channels_last` memory, of the stored dtype (uint8) or of `dtype`. Inputs that
      are not images (three axes, the last 1, 3 or 4 long) keep their axes. Encoded images of many sizes are a list of
      tensors `(C, H, W)`, rows of any length a list of tensors `(M,)`, texts a list of `str`.
    - `y`: int64 where a target is one integer, `(B,)`, or `(B, 1)` of targets `(N, 1)`; otherwise as stored; masks
      uint8 `(B, H, W)`. Boxes are a list of B dicts of tensors, in the form that torchvision's detection models take
      (with `label_offset=1`, as 0 is their background), or one dict of padded ones. Rows of any length and texts are as
      in x.
    - `index`: int64 `(B,)`, the rows.

    Each batch is the caller's own: it may be kept and changed. Its memory is reused once nothing refers to it, or to
    any of the small batches (8 MiB together) that were gathered with it. On a GPU it may be used on the stream that is
    current when it is taken.

    In a distributed run each rank gets its part: each sample is visited once per epoch, by one rank, and all ranks have
    the same number of batches, the last of which may differ by one sample; with `drop_last` all are full. With a
    `batch_size` of 1 some ranks may have one batch fewer, unless `drop_last` is set.

    Args:
        dataset: the samples, or a `Subset` of them, as `random_split` makes it; a sampler then numbers the rows of the
            subset. Its transforms are called sample by sample in the thread that iterates, as by a stock `DataLoader`,
            and torch's `default_collate` joins the results.
        batch_size: samples in a batch, per rank; the last batch of an epoch may have fewer.
        options: these arguments in one value, for several loaders; arguments given by name take precedence.
        **arguments: those of `colabstage.options.LoaderOptions`.

    Returns:
        A `Loader`, which is a `DataLoader`, with `plan`, `set_epoch`, `state_dict`, `load_state_dict` and `close`.

    Raises:
        OptionError: an argument that cannot work.
        TypeError: an argument is unknown.
        NotEnoughSpaceError: with `strategy="memory"` or `"device"`, when the split does not fit; nothing has been
            read.
    """
    dataset, rows = _below_subsets(dataset)
    asked = read_options(LoaderOptions, options, arguments)
    if asked.batch_transform is not None:
        check_batch_transform("batch_transform", asked.batch_transform)
        check_inputs(asked.batch_transform, dataset)
    form = Form(dataset, asked.ragged, asked.label_offset, torch_dtype(asked.dtype), asked.batch_transform)
    in_train, layout = dataset.split == "train", dataset.reader.layout
    # Such a sampler gives each rank its own rows.
    by_itself = isinstance(asked.sampler, DistributedSampler)
    if by_itself and (asked.rank, asked.world_size) not in ((None, None), (0, 1)):
        msg = f"rank={asked.rank!r} would divide again what a DistributedSampler has divided. Leave out one of them."
        raise OptionError(msg)
    shard = Shard() if by_itself else choose_shard(asked.rank, asked.world_size)
    if layout is not None and shard.world_size > 1 and not layout.lasting:
        # Another rank may have waited until all rows were local, and must have the same order.
        layout = lasting_layout(dataset.reader.path, layout)
    is_fixed = shard.world_size > 1 or by_itself or layout is not None
    seed = choose_seed(asked.seed, lambda: torch.randint(_SEEDS, (), device="cpu"), fixed=is_fixed)
    shuffle: Shuffle = ("auto" if in_train else False) if asked.shuffle is None else asked.shuffle
    # Rows of `train` may be held out of the training as well as trained on.
    is_shuffled = None if asked.shuffle is None and in_train else shuffle is not False
    # Numbered within the subset, if there is one.
    shown: RowOrder | SampledOrder | None = None
    if asked.sampler is not None:
        shown = sampler_order(asked.sampler, len(dataset) if rows is None else len(rows), shuffle=is_shuffled)
    elif rows is not None:
        shown = replace(chosen_order("The Subset", rows, len(dataset), shuffle=is_shuffled), chosen=None)
    some = shown if shown is None or rows is None else order_within(shown, rows)
    crop = None if asked.batch_transform is None else first_crop(asked.batch_transform)
    device = torch.device("cpu") if asked.device is None else usable_device(asked.device)
    facts = replace(
        gather_facts(dataset.reader, layout, crop_size=None if crop is None else crop.crop.target_size),
        per_sample=dataset.per_sample,
        shard=shard,
        epoch_rows=None if some is None else some.count,
        sampled=isinstance(some, SampledOrder),
    )
    if asked.device is not None:
        free = free_device_memory(device, facts.free_memory_bytes)
        facts = replace(facts, device=device.type, device_free_bytes=free)
    plan = choose_loader(facts, batch_size, replace(asked, shuffle=shuffle))
    if shard.world_size > 1:
        _check_ranks(plan, dataset, some, None if asked.rank is not None else seed)
    order: Order = some or RowOrder(len(dataset), plan.order.name == "permutation")
    if plan.order.name == "arrival" and layout is not None:
        order = order_of(layout, dataset.split, None if some is None else some.chosen)
    if isinstance(order, FirstEpochOrder) and order.first.first_units > 1:
        plan = _with_mixing(plan, dataset, order.first.rows(seed, 0), plan.batch_size * shard.world_size)
    # Read now, so that an error comes where the loader is made. The caller's dataset continues to read from the file.
    reader = dataset.reader.into_memory() if plan.strategy == "memory" else dataset.reader
    schedule = Schedule(order, seed, plan.batch_size, asked.drop_last, shard)
    crop = crop if plan.decode is not None and plan.decode.name == "crops" else None
    pipeline = Pipeline(plan, asked, reader, schedule, form, device, crop)
    # Frameworks count and evaluate the subset's own rows, by their numbers in it.
    view: Any = BatchDataset.over(form, reader)
    visited = order if rows is None or shown is None else shown
    loader: Loader = object.__new__(Loader)
    DataLoader.__init__(
        loader,
        # By name, as Lightning replaces them where it predicts.
        dataset=view if rows is None else Subset(view, rows.tolist()),
        batch_size=plan.batch_size,
        sampler=EpochSampler(visited, seed, given=asked.seed is not None, fixed=is_fixed)
        if shard.world_size == 1
        else RankSampler(visited, seed, shard, given=asked.seed is not None),
        drop_last=asked.drop_last,
        # Loaders that frameworks build from these parts read whole images, and apply the whole transform.
        collate_fn=form.collate,  # type: ignore[arg-type]  # a BatchDataset gives it batches, not lists of samples
    )
    # Hugging Face's Trainer sets the epoch here where it has skipped the batches before a checkpoint.
    vars(loader.batch_sampler)["set_epoch"] = loader.sampler.set_epoch  # type: ignore[attr-defined]
    loader._position, loader._pipeline = Position(start := EpochPlace(0, 0), start), pipeline
    return loader


def _check_ranks(plan: LoaderPlan, dataset: dataset_h5, some: RowOrder | SampledOrder | None, seed: int | None) -> None:
    """Warn if ranks make different numbers of steps, or read parts of different lists, unless another program has
    numbered the ranks: then there is no `seed`."""
    if not plan.is_joint:
        warnings.warn(
            f"This rank has {format_count(plan.batches, 'batches')} in an epoch, and another has one more or fewer: a "
            "step that waits for all, as with DDP, would never end. Write drop_last=True, or a larger batch_size.",
            UserWarning,
            stacklevel=4,
        )
    chosen = 0 if some is None or some.chosen is None else digest_of(some.chosen)
    made = f"seed={seed}, batch_size={plan.batch_size} and rows {chosen:x} of {len(dataset):,}"
    if seed is not None and (first := first_made(f"{dataset.reader.path.name}/{dataset.split}", made)) != made:
        warnings.warn(
            f"This rank has made its loader with {made}, another one with {first}: some samples are read by no rank, "
            "others by several. Make it alike on all, as with random_split(…, generator=torch.Generator().manual_seed"
            "(0)); for rows that you have divided among ranks yourself write rank=0, world_size=1.",
            UserWarning,
            stacklevel=4,
        )


def _below_subsets(dataset: object) -> tuple[dataset_h5, NDArray[np.intp] | None]:
    """Return the dataset below torch's `Subset`s, and the rows that they select; refuse any other wrapper."""
    subsets: list[Subset[Any]] = []
    # In a loop, because a split may be split again.
    while isinstance(dataset, Subset):
        _check_overrides(dataset, Subset.__getitem__)
        subsets.append(dataset)
        dataset = dataset.dataset
    if not isinstance(dataset, dataset_h5):
        remedy = f"{ONE_SPLIT} For other datasets use torch.utils.data.DataLoader."
        refuse_argument("dataset", dataset, "a dataset_h5 or a Subset of one", remedy=remedy)
    _check_overrides(dataset, dataset_h5.__getitem__)
    rows: NDArray[np.intp] | None = None
    for subset in reversed(subsets):
        own = given_rows("The Subset", subset.indices, len(dataset) if rows is None else len(rows))
        rows = own if rows is None else rows[own]
    return dataset, rows


def _check_overrides(dataset: object, getter: object) -> None:
    """Refuse a subclass that makes samples by its own method, which would not be called."""
    if getattr(type(dataset), "__getitem__", None) is not getter:
        msg = (
            f"{type(dataset).__name__} has a __getitem__ of its own, which make_loader would not call: it reads whole "
            "batches of rows. Move what it does into transform= and target_transform= of dataset_h5 or into "
            "batch_transform=, or use torch.utils.data.DataLoader, which calls it."
        )
        raise OptionError(msg)


def _with_mixing(plan: LoaderPlan, dataset: dataset_h5, rows: NDArray[np.intp], together: int) -> LoaderPlan:
    """Add how even the classes are in each `together` of the first epoch's `rows`; warn if they are uneven."""
    dtype = dataset.reader.target_dtype
    is_labels = bool(dataset.classes) and dataset.reader.target_shape == () and dtype is not None and dtype.kind in "iu"
    if not is_labels or len(rows) > _MOST_MEASURED:
        return plan
    mixing = min(1.0, mixing_of(dataset.targets[rows], together))
    even = f"in the first epoch the classes of {together:,} rows are {mixing:.2f} as even as after a full shuffle"
    if mixing < _LEAST_MIXING:
        warnings.warn(
            f"The source is sorted, and rows are packed and visited while it arrives: {even} (1 is the same). For a "
            "full shuffle wait for all of it: data.wait(), then data.loader(…, shuffle=True). Or take smaller batches.",
            UserWarning,
            stacklevel=2,
        )
    return replace(plan, order=replace(plan.order, reason=f"{plan.order.reason}; {even}"))


def _of_the_dataset(name: str) -> Any:
    """Make an attribute that belongs to the dataset: it may be replaced there or here, as with a stock loader."""
    return property(
        lambda self: getattr(self._form.dataset, name), lambda self, value: setattr(self._form.dataset, name, value)
    )


@dataclass(frozen=True)
class WholeBatch(Sequence[Any]):
    """The samples of a batch, which our own `collate_fn` reads at once, as a batch, and any other one by one."""

    dataset: BatchDataset
    indices: Sequence[int]

    @cached_property
    def _samples(self) -> list[Any]:
        return dataset_h5.__getitems__(self.dataset, self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: Any) -> Any:
        return self._samples[place]


class BatchDataset(dataset_h5):
    """Give a `DataLoader` whole batches, by one read each, instead of lists of samples: in any worker, and in loaders
    that frameworks build from these parts."""

    _form: Form

    @classmethod
    def over(cls, form: Form, reader: SplitReader) -> BatchDataset:
        """Return a view of the same rows, read by `reader`; the dataset itself does not change."""
        # Not by the constructor, which would examine the file again.
        view = cls.__new__(cls)
        view.__dict__.update({**vars(form.dataset), "reader": reader, "_form": form})
        return view

    transform = _of_the_dataset("transform")
    target_transform = _of_the_dataset("target_transform")

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return a batch that is read when it is collated."""
        return WholeBatch(self, indices)

    def whole(self, indices: Sequence[int]) -> Any:
        """Read a batch, as `make_loader` describes it, in host memory: `(x, y)`, or `(x, y, index)` with
        `return_index`."""
        x, y = self.reader.read_x(indices, pool=SOLO), self.reader.read_y(indices, pool=SOLO)
        x, y = self._form.batch(x, y, indices)
        return (x, y, torch.as_tensor(indices)) if self.return_index else (x, y)


class EpochSampler(Sampler[int]):
    """Gives a whole epoch's rows, all ranks' together, to frameworks that take a loader apart and divide rows among
    ranks themselves, as Accelerate does."""

    def __init__(self, order: Order, seed: int, *, given: bool, fixed: bool) -> None:
        """Take the seed, whether the caller has given it, and otherwise whether it must be the same in all ranks."""
        self.order, self.seed, self.given, self._fixed = order, seed, given, fixed
        # The epoch of the last iteration, and how many before it were of the same one.
        self._begun, self._again = -1, 0
        self.epoch, self._is_set = 0, False
        # The argument of the last `set_epoch` that the loader has not acted on.
        self.asked: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`. If that is the next one anyway, its position is not lost."""
        self.epoch = self.asked = epoch
        self._is_set = True

    def __iter__(self) -> Iterator[int]:
        seed, epoch = self.seed, self.epoch
        # Accelerate counts no epoch that a loop has left early: all would begin with the same rows.
        self._begun, self._again = epoch, self._again + 1 if self._begun == epoch else 0
        if not self.given and (self._fixed or choose_shard(None, None).world_size > 1):
            # Each process has drawn a seed of its own if the loader was made before they became ranks.
            seed = (seed if self._fixed else 0) + self._again
        # As torch's own samplers do.
        elif not self.given and (self._again or not self._is_set):
            seed, epoch = int(torch.randint(_SEEDS, (), device="cpu")), 0
        return iter(self.order.rows(seed, epoch).tolist())

    def __len__(self) -> int:
        return self.order.count


class RankSampler(EpochSampler, DistributedSampler[int]):
    """An `EpochSampler` for a loader that divides rows among ranks: frameworks leave a `DistributedSampler` alone."""

    def __init__(self, order: Order, seed: int, shard: Shard, *, given: bool) -> None:
        super().__init__(order, seed, given=given, fixed=True)
        self.rank, self.num_replicas = shard.rank, shard.world_size


class Loader(Shown, Iterated, _Base):
    """Iterate over batches; each iteration is the next epoch. Made by `make_loader`.

    Iterations may run side by side, as in `zip(loader, loader)`, and each is an epoch of its own. `state_dict`
    describes the one that handed out a batch last.

    Leaving a loop early, by `break` or an exception, ends its background threads, each after the row that it is at.

    It is a `torch.utils.data.DataLoader`, so frameworks that insist on one take it. Those that build one from its parts
    (Accelerate, Lightning's own sharding) get a stock one, whose dataset, sampler and `collate_fn` give the same
    batches in the same order, but not prepared ahead unless they run workers; the sampler gives the samples of all
    ranks. Where a framework sets no epoch (Ignite's `DeterministicEngine`), the order comes from torch's generator,
    unless `seed=` is given: then it is always that of the first epoch.
    """

    # Not public: Ignite passes each public attribute to the constructor.
    _pipeline: Pipeline
    _position: Position

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Return a stock `DataLoader`: what calls this has the parts of a loader, and no plan."""
        return DataLoader(*arguments, **named)

    def __setattr__(self, name: str, value: Any) -> None:
        # A stock loader calls the `collate_fn` that it has by then.
        if name in _PLANNED and "_pipeline" in self.__dict__:
            msg = f"{name} cannot be set: the batches are planned with what make_loader got. Make a new loader."
            raise OptionError(msg)
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Count the batches of this rank in an epoch."""
        return self._pipeline.plan.batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # the base promises a class of its own
        """Start the next epoch, or continue where `load_state_dict` said."""
        pipeline, position = self._pipeline, self._position
        sampler: Any = self.sampler

        def moves(epoch: int) -> bool:
            # A framework also calls set_epoch with the epoch that comes anyway, which must not lose a resumed position.
            asked, sampler.asked = sampler.asked, None
            if moved := asked not in (None, epoch):
                position.next = EpochPlace(asked, 0)
            return moved

        moves(position.next.epoch)
        place = position.next
        # Until the first batch the epoch may still be set, as with a stock loader: Lightning does so when it resumes.
        instead = lambda: pipeline.start(position) if moves(place.epoch) else None  # noqa: E731
        return self._begun(Iteration(pipeline.start(position), instead))

    @property
    def plan(self) -> LoaderPlan:
        """Return how batches are loaded, and why."""
        return self._pipeline.plan

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that it was made with, other than those by default."""
        asked = self._pipeline.asked
        return {one.name: value for one in fields(asked) if (value := getattr(asked, one.name)) is not one.default}

    @property
    def epoch(self) -> int:
        """Return the epoch that `state_dict` is of."""
        return self._place.epoch

    @property
    def _place(self) -> EpochPlace:
        thread, done = self._position.thread, self._position.done
        if not done.ended and thread is not None and thread is not current_thread() and thread.is_alive():
            msg = (
                "Another thread takes the batches of this loader, ahead of your loop, so its place is not yours. Loop "
                "over the loader itself, without a CudaDataLoader: with device= it copies in advance, too."
            )
            raise OptionError(msg)
        # Only the loop's end tells that nothing of the epoch is left to ask for.
        return EpochPlace(done.epoch + 1, 0) if done.ended else done

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`: from its first batch, or where `load_state_dict` said, if that is this
        epoch.

        Raises:
            OptionError: a negative number, or none.
        """
        epoch = whole_number("epoch", epoch)
        place = self._position.next
        self._move_to(place if epoch == place.epoch else EpochPlace(epoch, 0))

    def _move_to(self, place: EpochPlace) -> None:
        """Begin the next iteration at a place, also where a framework takes the sampler from here."""
        self._position.move_to(place)
        sampler: Any = self.sampler
        sampler.set_epoch(place.epoch)
        sampler.asked = None

    def state_dict(self) -> dict[str, int]:
        """Return where the loader is: seed, epoch and batches handed out, and what else a resumed loader must share.

        Taken inside the loop, the batch at hand counts as done: after the last one nothing of the epoch is left, and a
        resumed loop over it is empty. Taken after the loop has ended, it is the beginning of the next epoch. A batch
        whose transform failed is over as well, where the loop continues. All ranks have the same state at the same
        step, so one rank's serves all.
        """
        done, made = self._place, self._pipeline
        state = {**made.identity(done.epoch), "epoch": done.epoch, "batches_done": done.batches_done}
        return {**state, **made.drawn(done.epoch)} if done.batches_done else state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration continue exactly where `state_dict` was taken.

        Another number of ranks is fine where all ranks together have as many samples in a step as before: four with 16
        continue where two with 32 were (but for the last step of an epoch, if ranks share it unevenly). A loader whose
        seed was drawn takes that of the state.

        Raises:
            OptionError: the state is of a loader with another seed, batch size, order, subset, number of samples or of
                ranks.
        """
        given: object = state
        if not isinstance(given, Mapping) or not given.keys() >= {*_PLACE}:
            refuse_argument("state", given, "what state_dict() of a loader returned")
        sampler: Any = self.sampler
        pipeline, seed = self._pipeline, state.get("seed")
        if not sampler.given and isinstance(seed, int | np.integer):
            pipeline = copy.copy(pipeline)
            pipeline.schedule = replace(pipeline.schedule, seed=whole_number("seed", seed))
        shared_alike = pipeline.schedule.steps_as(state)
        epoch = whole_number("epoch", state.get("epoch"))
        ours = {**pipeline.identity(epoch), **(pipeline.drawn(epoch) if "order" in state else {})}
        theirs = {name: state[name] for name in state if name not in _PLACE}
        done = whole_number("batches_done", state.get("batches_done"))
        # At the edges of an epoch the same rows are done, or left, in any order.
        is_whole = done in (0, len(self))
        # Refused rather than resumed slightly wrong: other samples would be left. Also refused if the state has an
        # entry that this loader lacks: its rows came in an order that this loader does not know.
        for name in sorted({**ours, **theirs}, key=lambda name: name not in _ARRIVING):
            # A state may hold anything, even an array.
            saved: Any = theirs.get(name)
            wanted: Any = ours.get(name)
            is_same = np.array_equal(saved, wanted) or (shared_alike and name in ("batch_size", "world_size"))
            if is_same or (is_whole and name in _ARRIVING):
                continue
            if name in _ARRIVING:
                msg = (
                    f"This state is from an epoch in another order ({name} is {saved} there, {wanted} here): of a pack "
                    "that was still being packed or copied, or is read under a disk_limit=. Begin that epoch again, "
                    f"loader.set_epoch({epoch}), or the next, loader.set_epoch({epoch + 1})."
                )
                raise OtherOrderError(msg, epoch)
            what = ", the digest of those that sampler=, Subset or random_split chose" if name == "rows" else ""
            msg = (
                f"This state has {name}={show_content(saved)}, the loader has {wanted!r}{what}; both must be the same."
            )
            raise OptionError(msg)
        if done > len(self):
            msg = f"This state has batches_done={done}, but an epoch has {format_count(len(self), 'batches')}."
            raise OptionError(msg)
        if pipeline is not self._pipeline:
            self._pipeline = pipeline
            # Frameworks draw the epoch's rows through the sampler.
            sampler.seed = pipeline.schedule.seed
        self._move_to(EpochPlace(epoch, done))

    def close(self) -> None:
        """End the running iterations, and release kept decoded images. The loader can be iterated again."""
        super().close()
        self._pipeline.kept.clear()

    def __copy__(self) -> Loader:
        """Return another loader over the same parts, with its own position."""
        copied: Loader = object.__new__(type(self))
        # Frameworks set the epoch through the sampler.
        sampler, batches = copy.copy(self.sampler), copy.copy(self.batch_sampler)
        vars(batches).update(sampler=sampler, set_epoch=sampler.set_epoch)  # type: ignore[attr-defined]
        position = Position(replace(self._position.done), replace(self._position.next))
        own = {"_running": (), "sampler": sampler, "batch_sampler": batches, "_position": position}
        # Bypasses the `__setattr__` of `DataLoader`, which guards the sampler's attributes.
        copied.__dict__.update(self.__dict__ | own)
        return copied

    def shown(self) -> Report:
        return self.plan.shown("Loader", repr(self.dataset))


# Attributes that are read once, by `make_loader`.
_PLANNED = frozenset({"collate_fn", *(option.name for option in fields(LoaderOptions))})
# Entries of a state that are its position, not its order.
_PLACE = ("epoch", "batches_done")
# Entries that describe an order by units or blocks of a pack that is only partly local.
_ARRIVING = ("unit_order", "units", "window_units", "together")


class OtherOrderError(OptionError):
    """A state is from the middle of an epoch whose rows come in another order here; everything else fits."""

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


# How the batches of an epoch are made: `stage(ahead(scale(read(batches))))`.


@dataclass(slots=True)
class EpochPlace:
    """How far an epoch has been handed out, and whether its loop has received all of it."""

    epoch: int
    batches_done: int
    ended: bool = False

    def end(self) -> None:
        self.ended = True


@dataclass(slots=True)
class Position:
    """Where a loader is. Iterations refer to it and not to the loader, which they may outlive."""

    done: EpochPlace
    """What was handed out last, or the place that was set since."""
    next: EpochPlace
    follows: bool = False
    """Whether `done` follows the iterations; not once somebody has set another place."""
    thread: Thread | None = None
    """Which thread took the last batch."""

    def move_to(self, place: EpochPlace) -> None:
        self.done = self.next = place
        self.follows, self.thread = False, None

    def begin(self) -> None:
        """Record that the next iteration has begun, and the one after it is the epoch after."""
        self.done, self.follows = self.next, True
        self.next = EpochPlace(self.next.epoch + 1, 0)

    def hand_out(self, place: EpochPlace) -> None:
        """Record that an iteration has handed out one more batch of the epoch that it is in."""
        place.batches_done += 1
        self.thread = current_thread()
        if self.follows:
            self.done = place


@dataclass(eq=False)
class Pipeline:
    """Make a loader's batches: `stage(ahead(scale(read(batches))))`."""

    plan: LoaderPlan
    asked: LoaderOptions
    reader: SplitReader
    schedule: Schedule
    form: Form
    device: torch.device
    crop: FirstCrop | None
    stream: CopyStream | None = field(init=False)
    """For the copies of all iterations: a new one each time would strand the memory that is kept for the old one."""
    batcher: Batcher = field(init=False)
    resident: ResidentSplit | None = field(init=False, default=None)
    kept: list[KeptImages] = field(init=False, default_factory=list)
    """Memory with decoded images, which goes with the loader."""

    def __post_init__(self) -> None:
        plan, reader = self.plan, self.reader
        on_gpu = self.device.type == "cuda" and not self.in_loop
        # One block with the consumer, one in the making, the others in between; with a GPU one that waits to be copied
        # there, and two that are.
        idle = plan.prefetch.value // plan.together + (5 if on_gpu else 2)
        workers = max(1, plan.workers.value)
        self.stream = copy_stream(self.device)
        self.batcher = Batcher(
            reader, workers=workers, together=plan.together, idle=idle, allocate=pinned_block if on_gpu else None
        )
        if plan.strategy == "device":
            self.resident = ResidentSplit(reader, self.device, self.stream, workers)

    @property
    def in_loop(self) -> bool:
        """Return whether tensors are made in the thread that iterates: that of the dataset's transforms."""
        return self.form.dataset.per_sample or not self.plan.workers.value

    @property
    def rest(self) -> Any:
        """Return what is left of `batch_transform` for whole batches: a crop that is decoded alone is done before."""
        return self.form.batch_transform if self.crop is None else self.crop.rest

    def start(self, position: Position) -> Steps:
        """Begin to make the batches that are left of an epoch: the next one of `position`, which moves on as they are
        handed out."""
        # One for each iteration: a new one must not be stopped by the end of the last.
        place, demand = position.next, Demand(self.reader.paths)
        batches = self.schedule.rows_left(place.epoch, place.batches_done)
        position.begin()
        expected, waited_s = self._expect(batches, place.epoch), 0.0
        ends = [] if expected is None else np.cumsum([len(rows) for rows in batches]).tolist()
        form = replace(self.form, batch_transform=self.rest)
        source, unpack, hand_out = self._steps(batches, place.epoch, demand)
        seed, first = self.schedule.seed, place.batches_done

        def waited(seconds: float) -> None:
            nonlocal waited_s
            waited_s += seconds

        def take(batch: Any) -> Any:
            nonlocal waited_s
            # First: where code of the caller's fails and the loop continues, this batch is over.
            position.hand_out(place)
            number = place.batches_done - 1 - first
            if expected is not None:
                expected.reached(ends[number], waited_s)
                waited_s = 0.0
            made = hand_out(batch)
            if form.batch_transform is None:
                return form.finish(made)
            return form.finish(made, BatchPlace(seed, place.epoch, batches[number]))

        if expected is None:
            return Steps(source, unpack, take, place.end)
        return Steps(source, unpack, take, place.end, waited, expected.close)

    def _steps(self, batches: Sequence[NDArray[np.intp]], epoch: int, demand: Demand) -> tuple[Any, Any, Any]:
        """Return what gives groups of batches, takes a group apart, and makes a batch of a part of it."""
        reader, form, device, batcher = self.reader, self.form, self.device, self.batcher
        with_index = form.dataset.return_index
        if form.dataset.per_sample and (self.resident is not None or self.crop is not None):
            made_for = "samples on the device" if self.crop is None else "crops that are decoded alone"
            msg = f"The dataset was given a transform after this loader was planned for {made_for}. Make a new loader."
            raise OptionError(msg)
        # The device gathers by itself, and a thread would only stand between.
        if self.resident is not None:
            return self.resident.groups(batches, self.plan.together, with_index=with_index), *self._divide(batches)
        if self.plan.keep is not None and self.plan.keep.value:
            self.kept[:] = [reader.keep_images(self.plan.keep.value)]
        crops = None if self.crop is None else CroppedInputs(reader, self.crop, self.schedule.seed, epoch)

        def complete(batch: tuple[Any, Any], rows: NDArray[np.intp]) -> tuple[Any, ...]:
            x, y = batch if crops is None else (batch[0], crops.move(batch[1], rows))
            return (x, y, torch.from_numpy(rows.copy())) if with_index else (x, y)

        def tensors(x: Any, y: Any, rows: NDArray[np.intp]) -> tuple[Any, ...]:
            return complete(form.batch(x, y, rows), rows)

        # One more group is in the making, and one with the consumer.
        several = self.plan.together > 1
        depth = max(1, self.plan.prefetch.value // self.plan.together - several)
        if self.in_loop:
            # What the dataset's transforms make has its device and dtype from here, in the thread they ran in.
            groups = batcher.groups(batches, demand, lambda group: list(group.parts()), crops)
            source = Ahead(groups, depth, _THREAD, demand) if self.plan.workers.value else groups
            return source, iter, lambda part: form.scale(move_to(tensors(*part), device))
        if device.type == "cpu":
            # Scaled in the thread: here it would take the consumer's time.
            def finished(group: Group) -> list[tuple[Any, ...]]:
                pairs = zip(form.batches(group), group.rows, strict=True)
                return [complete(batch, rows) for batch, rows in pairs]

            ready = batcher.groups(batches, demand, finished, crops)
            if form.dtype is not None:
                # In few at a time, so that floats are made in memory that the consumer has just released.
                depth = max(1, self.plan.prefetch.value // _FEW_FLOATS - 1) if several else depth
                ready = _in_parts(ready, form.scale)
            return Ahead(ready, depth, _THREAD, demand), iter, lambda batch: batch

        def whole(group: Group) -> tuple[Any, ...]:
            return tensors(group.x, group.y, np.concatenate(group.rows))

        stager, read = Stager(self.stream, device), batcher.groups(batches, demand, whole, crops)
        # One thread gathers while another has batches copied: 1.15 times as fast on an H100 with 16 cores. With images
        # of their own sizes, where threads that decode compete for Python's lock, it was 0.9 times.
        dense = reader.row_shape is not None
        copied: Source[Any] = Ahead(read, 1, _THREAD, demand) if dense else read
        staged = stage_ahead(copied, stager, depth, f"{_THREAD}-copy", demand)
        unpack, take = self._divide(batches)
        return staged, lambda one: unpack(stager.hand_out(one)), take

    def _divide(self, batches: Sequence[NDArray[np.intp]]) -> tuple[Any, Any]:
        """Return what takes a group of tensors on the device apart, and what makes a batch the consumer's."""
        guard, sizes = StreamGuard(self.device), map(len, batches)

        def unpack(group: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
            guard.begin()
            return split_group(self.form.scale(group), sizes)

        return unpack, guard.take

    def _expect(self, batches: list[NDArray[np.intp]], epoch: int) -> Expectation | None:
        """Announce the rows of this epoch and the next, if some have still to arrive."""
        reader = self.reader
        if reader.arrival is None or reader.arrival.complete or not batches:
            return None
        return reader.arrival.expect(
            reader.split, np.concatenate(batches), then=lambda: np.concatenate(self.schedule.rows_left(epoch + 1, 0))
        )

    def identity(self, epoch: int) -> dict[str, int]:
        """Return what a loader must share that continues where this one was in this epoch."""
        order = self.schedule.order
        # What orders the first epoch alone says nothing of a position in a later one: a state from there continues in a
        # loader of the same pack that came in another way, or was here from the beginning.
        if epoch and isinstance(order, FirstEpochOrder):
            order = order.later
        shared = {"batch_size": self.schedule.batch_size, "samples": len(self.form.dataset)}
        return {"seed": self.schedule.seed, **order.identity(), **shared, "world_size": self.schedule.shard.world_size}

    def drawn(self, epoch: int) -> dict[str, int]:
        """Return a digest of what a sampler drew: it may draw from generators that nobody can restore."""
        order, seed = self.schedule.order, self.schedule.seed
        return {"order": digest_of(order.rows(seed, epoch))} if isinstance(order, SampledOrder) else {}


def _in_parts(groups: Generator[list[Any]], change: Callable[[Any], Any]) -> Generator[list[Any]]:
    """Yield a few batches at a time, changed; each is dropped here as soon as it is."""
    with closing(groups):
        for group in groups:
            group.reverse()
            while group:
                yield [change(group.pop()) for _ in range(min(_FEW_FLOATS, len(group)))]
