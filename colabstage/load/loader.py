"""Make batches as tensors, prepared in the background while the model computes: `make_loader`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.utils.data import DataLoader

from colabstage.errors import OptionError
from colabstage.io.page import facts_table, notes, page
from colabstage.io.progress import Cancellation
from colabstage.io.units import parse_bytes
from colabstage.load.augment import Crops, first_crop
from colabstage.load.batches import Collate, Finish, Ragged, move_to
from colabstage.load.choices import LoaderRequest, may_gain
from colabstage.load.choosing import choose_loader
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import make_stager, prefetch_staged, usable_device
from colabstage.load.epoch import BatchPlace, RowOrder, Schedule, Shard, choose_shard
from colabstage.load.facts import gather_facts, measure_cost
from colabstage.load.prefetch import Iteration, Prefetcher, SingleIteration
from colabstage.load.sampling import epoch_sampler, is_own_order, sampler_order, shares_out
from colabstage.load.strategies import make_source
from colabstage.load.window import WindowOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    from colabstage.load.choices import Decode, LoaderFacts, LoaderPlan, Shuffle, Strategy
    from colabstage.load.device import Staged, Stager
    from colabstage.load.epoch import Order
    from colabstage.load.prefetch import Source
    from colabstage.load.sampling import EpochSampler
    from colabstage.load.strategies import BatchSource

    _Base = DataLoader[Any]
else:
    _Base = DataLoader

_THREAD = "colabstage-loader"


def make_loader(
    dataset: dataset_h5,
    batch_size: int,
    *,
    device: str | torch.device | None = None,
    strategy: Strategy = "auto",
    shuffle: Shuffle = "auto",
    seed: int = 0,
    drop_last: bool = False,
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    dtype: torch.dtype | None = None,
    num_workers: int | Literal["auto"] = "auto",
    prefetch: int | Literal["auto"] = "auto",
    ragged: Ragged = "list",
    sampler: Iterable[int] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    memory_budget: int | str | None = None,
    decode: Decode = "auto",
) -> Loader:
    """Make batches of a dataset, the fastest way this machine has; `loader.plan` says which and why.

    >>> loader = make_loader(dataset_h5("data.h5"), 64, device="cuda", dtype=torch.float32)  # doctest: +SKIP
    >>> for x, y in loader:  # doctest: +SKIP
    ...     train_step(x, y)

    A batch is `(x, y)`, or `((x, y), index)` for a dataset with `return_index`:

    - `x`: `(B, C, H, W)` for images, in `channels_last` memory, of the stored dtype (uint8) or of `dtype`. Inputs that
      are no images (three axes, the last at most 4 long) keep their axes. Encoded images of many sizes are a list of
      tensors `(C, H, W)`, rows of any length a list of tensors `(M,)` or a dict of padded ones, texts a list of `str`.
    - `y`: int64 `(B,)` where targets are integers, otherwise as stored; masks uint8 `(B, H, W)`. Boxes are a list of B
      dicts of tensors, as torchvision's detection models take them, or one dict of padded ones. Rows of any length and
      texts are as in x.
    - `index`: int64 `(B,)`, the rows.

    Each batch is the caller's own: it may be kept and changed. Its memory is used again once nothing refers to it, or
    to any of the batches that were gathered together with it, where they are small (2 MiB together at the most). On a
    GPU it may be used on the stream that is current when it is taken.

    In a distributed run each rank gets its part: every sample is visited once an epoch, by one rank, and all ranks
    have the same number of batches, the last of which may differ by one sample. (With batches of one sample, or fewer
    samples than ranks, some ranks have one batch fewer.) With `drop_last` all batches are full.

    Args:
        dataset: the samples. Its transforms, where it has any, are called sample by sample when the batch is asked for,
            in the thread that iterates, as by a stock `DataLoader`; that side of the batch is then what torch's
            `default_collate` makes of the results.
        batch_size: samples in a batch, of each rank; the last ones of an epoch may have fewer.
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
            is so and the file is neither in memory nor fits there, and `True` otherwise.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
            Those of `colabstage.load.augment` get seed, epoch and rows too, and so treat a sample alike in any batch.
        dtype: floating-point dtype of x, converted on the device; uint8 and uint16 become [0, 1].
        num_workers: threads that copy or decode at once; with `strategy="workers"`, processes.
        prefetch: batches prepared ahead; with `strategy="workers"`, by each process.
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
            can be spared, 2 GiB at the most.
        decode: how much of image files is decoded. `"auto"`: where `batch_transform` is a `RandomResizedCrop`, or a
            `Compose` that begins with one, and images are decoded at their own sizes, then no more of each than its
            crop needs, and `batch_transform` goes on behind that. The crops, and all other random numbers, are the
            same as without. So are the pixels (on a GPU and with `dtype`, to a grey level), but of crops that shrink to
            a half or less: those are made of a JPEG's own reduction, and their edges lie up to half a pixel of the
            result beside, which is a grey level or two in the mean of photographs. `"whole"` decodes whole images and
            has `batch_transform` cut them; `"crops"` is an error where `"auto"` would do that.

    Raises:
        OptionError: an argument that cannot work.
        NotEnoughSpaceError: with `strategy="memory"` or `"device"`, when the split does not fit; nothing has been
            read.
    """
    # Before anything is looked at that takes time.
    _check_dataset(dataset)
    seed = _whole("seed", seed)
    if dtype is not None and not dtype.is_floating_point:
        msg = f"dtype={dtype} is not a floating-point dtype; leave it out for batches as they are stored."
        raise OptionError(msg)
    if ragged not in get_args(Ragged):
        msg = f"ragged={ragged!r} is unknown; expected one of {', '.join(get_args(Ragged))}."
        raise OptionError(msg)
    first = first_crop(batch_transform)
    shard = Shard() if shares_out(sampler) and rank is None else choose_shard(rank, world_size)
    subset = None if sampler is None else sampler_order(sampler, len(dataset), shuffle=shuffle is not False, seed=seed)
    request = LoaderRequest(
        batch_size,
        strategy,
        drop_last,
        num_workers,
        prefetch,
        shuffle,
        None if memory_budget is None else parse_bytes(memory_budget),
        is_own_order(sampler),
        decode,
    )
    place = None if device is None else usable_device(device)
    facts = gather_facts(
        dataset,
        device=place,
        shard=shard,
        epoch_rows=None if subset is None else subset.count,
        crop_size=None if first is None else first.crop.target_size,
    )
    plan = _plan(dataset, request, facts)
    order = subset or _order(plan, len(dataset), seed)
    schedule = Schedule(order, batch_size, drop_last, shard)
    crops = None
    if first is not None and plan.decode is not None and plan.decode.name == "crops":
        crops = Crops(first, seed)
    finish = Finish(dtype, batch_transform)
    return _build(dataset, plan, schedule, finish, device=place, ragged=ragged, seed=seed, crops=crops)


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, dataset_h5):
        msg = (
            f"make_loader needs a dataset_h5, got {type(dataset).__name__}. For other datasets use "
            "torch.utils.data.DataLoader."
        )
        raise OptionError(msg)
    sides = (
        ("inputs", "transform", dataset.transform, dataset.reader.row_dtype),
        ("targets", "target_transform", dataset.target_transform, dataset.reader.target_dtype),
    )
    for side, name, transform, dtype in sides:
        if transform is None and dtype is not None and not _has_tensors(dtype):
            msg = (
                f"The {side} of '{dataset.reader.path}' have dtype {dtype}, of which torch makes no tensors. Give it a "
                f"{name} that converts them, for example to float64 or int64."
            )
            raise OptionError(msg)


def _has_tensors(dtype: np.dtype[Any]) -> bool:
    # float128 and the like have no tensors.
    widest = 16 if dtype.kind == "c" else 8
    return dtype.hasobject or (dtype.kind in "biufc" and dtype.itemsize <= widest)


def _plan(dataset: dataset_h5, request: LoaderRequest, facts: LoaderFacts) -> LoaderPlan:
    if may_gain(facts, request):
        facts = replace(facts, cost=measure_cost(dataset))
    return choose_loader(facts, request)


def _order(plan: LoaderPlan, samples: int, seed: int) -> Order:
    if plan.order.name == "window":
        return WindowOrder(samples, plan.order.window_rows, plan.order.block_rows, seed)
    return RowOrder(samples, plan.order.name == "permutation", seed)


def _build(
    dataset: dataset_h5,
    plan: LoaderPlan,
    schedule: Schedule,
    finish: Finish,
    *,
    device: torch.device | None,
    ragged: Ragged,
    seed: int,
    crops: Crops | None,
) -> Loader:
    place = torch.device("cpu") if device is None else device
    source, view = make_source(dataset, plan, place, ragged=ragged, seed=seed, crops=crops)
    # What a framework builds of the loader's parts reads whole images, and has all of the transform before it.
    collate = Collate(finish)
    if crops is not None:
        # The crop is done by then; what follows it is not.
        finish = replace(finish, batch_transform=crops.first.rest)
    shown = epoch_sampler(schedule.order, schedule.shard)
    identity = {
        "seed": seed,
        **schedule.order.identity(),
        "batch_size": schedule.batch_size,
        "samples": len(dataset),
        "world_size": schedule.shard.world_size,
    }
    has_processes = plan.strategy == "workers"
    loader = Loader(
        view,
        schedule.batch_size,
        sampler=shown,
        drop_last=schedule.drop_last,
        collate_fn=collate,  # type: ignore[arg-type]  # a BatchDataset gives it batches, not lists of samples
        num_workers=plan.workers.value if has_processes else 0,
        prefetch_factor=plan.prefetch.value if has_processes else None,
        persistent_workers=has_processes,
        multiprocessing_context=None if plan.start is None else plan.start.method,
    )
    loader._machine = _Machine(plan, schedule, source, make_stager(place), finish, place, shown, seed, identity)
    loader.plan = plan
    loader._done = loader._next = _Place(0, 0)
    return loader


@dataclass(slots=True)
class _Place:
    """Hold how far an epoch has been handed out."""

    epoch: int
    """Which one."""
    batches_done: int
    """How many of its batches were."""
    ended: bool = False
    """Whether its loop has been told that there is no more."""

    def end(self) -> None:
        """Take note that the loop has ended."""
        self.ended = True


@dataclass(frozen=True, slots=True)
class _Machine:
    """Make a loader's batches."""

    plan: LoaderPlan
    """How, and why."""
    schedule: Schedule
    """Which rows make up which batch."""
    source: BatchSource
    """What reads them."""
    stager: Stager
    """What takes them to the device."""
    finish: Finish
    """What is done to them last."""
    device: torch.device
    """Where they go."""
    sampler: EpochSampler
    """What the loader shows to frameworks."""
    seed: int
    """What random numbers depend on."""
    identity: dict[str, int]
    """What a loader must share that goes on where this one was."""

    def start(self, place: _Place) -> Iteration[Any, Any]:
        """Begin to make the batches that are left of an epoch; `place` moves on as they are handed out."""
        batches, rows_before = self.schedule.rows_left(place.epoch, place.batches_done)
        # One for each iteration: a new one must not be stopped by the end of the last.
        cancellation = Cancellation()
        source = self.source.start(batches, rows_before, place.epoch, cancellation)
        finish, seed, first = self.finish, self.seed, place.batches_done

        def finished(batch: tuple[Any, ...]) -> Any:
            if finish.batch_transform is None:
                return finish.transform(batch)
            return finish.transform(batch, BatchPlace(seed, place.epoch, batches[place.batches_done - 1 - first]))

        def begun(source: Source[Any], hand_out: Callable[[Any], Any]) -> Iteration[Any, Any]:
            def count(given: Any) -> Any:
                # First: where code of the caller's fails and the loop goes on, this batch is over.
                place.batches_done += 1
                return hand_out(given)

            return Iteration(source, count, place.end)

        # The device gathers by itself, and a thread would only stand between.
        if not self.source.in_background:
            return begun(source, lambda batch: finished(finish.scale(batch)))
        depth, collate = max(1, self.plan.prefetch.value), self.source.collate
        if collate is not None:
            # What the dataset's transforms make has its device and dtype from here, in the thread they ran in.
            return begun(
                Prefetcher(source, depth, _THREAD, cancellation),
                lambda read: finished(finish.scale(move_to(collate(read), self.device))),
            )
        # Nothing is copied to a device, so no stager is needed either.
        if self.device.type == "cpu":
            if finish.dtype is not None:
                # Here it would take the consumer's time.
                source = finish.scale_each(source)
            return begun(Prefetcher(source, depth, _THREAD, cancellation), finished)
        stager = self.stager

        def hand_out(staged: Staged[tuple[Any, ...]]) -> Any:
            return finished(finish.scale(stager.hand_out(staged)))

        return begun(prefetch_staged(source, stager, depth, _THREAD, cancellation), hand_out)


class Loader(SingleIteration, _Base):
    """Iterate over batches; each iteration is the next epoch. Made by `make_loader`.

    One iteration runs at a time: a new one ends the one before, whose next step is then an error. Leaving a loop
    early, by `break` or an exception, ends the background threads with it, each after the row that it is at. Worker
    processes finish the batch that they are at, for which the end of the loop waits (30 seconds at the most: torch's
    iterator can be left at once only by ending its processes); they wait for the next iteration, and end with `close`
    or with the loader.

    It is a `torch.utils.data.DataLoader`, so frameworks that insist on one take it. Those that use it as it is
    (Lightning on one device) get its full speed. Those that take it apart and build one of their own (Accelerate,
    Lightning's own sharding) find a dataset, a sampler and a `collate_fn` that give the same batches in the same
    order, whole ones by one read each, but not prepared ahead unless they run workers; the sampler gives the samples
    of all ranks, for they share them out by themselves. A loader that shares out by itself shows a
    `DistributedSampler`, which Lightning leaves alone.

    Attributes:
        plan: how batches are loaded, and why.
        dataset: where from.
    """

    plan: LoaderPlan
    # None of a loader that a framework built of another one's parts: that is a plain DataLoader.
    _machine: _Machine | None = None
    _done: _Place
    _next: _Place

    def __len__(self) -> int:
        """Count the batches in an epoch, of this rank."""
        return super().__len__() if self._machine is None else self._machine.schedule.batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # the base promises a class of its own
        """Start the next epoch, or go on where `load_state_dict` said."""
        # It is a plain DataLoader, which frameworks build by this class's constructor.
        if self._machine is None:
            return super().__iter__()
        self._end_iteration()
        asked, self._machine.sampler.asked = self._machine.sampler.asked, None
        # A framework calls set_epoch with the epoch that comes anyway, which must not lose a resumed place.
        if asked is not None and asked != self._next.epoch:
            self._next = _Place(asked, 0)
        self._done, self._next = self._next, _Place(self._next.epoch + 1, 0)
        return self._begun(self._machine.start(self._done))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`: from its first batch, or where `load_state_dict` said, if that is this
        epoch.

        Raises:
            OptionError: a negative number, or none.
        """
        if _whole("epoch", epoch) != self._next.epoch:
            self._next = _Place(epoch, 0)
        self._done = self._next

    def state_dict(self) -> dict[str, int]:
        """Tell where the loader is: seed, epoch and batches handed out, and what else a resumed loader must share.

        Taken inside the loop, the batch at hand counts as done: after the last one nothing of the epoch is left, and a
        resumed loop over it is empty. Taken after the loop has ended, it is the beginning of the next epoch. A batch
        whose transform failed is over as well, where the loop goes on. All ranks have the same state at the same step,
        so one rank's serves all.
        """
        # Only the loop's end tells that nothing of the epoch is left to ask for.
        done = _Place(self._done.epoch + 1, 0) if self._done.ended else self._done
        return {**self._identity(), "epoch": done.epoch, "batches_done": done.batches_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration go on exactly where `state_dict` was taken.

        Raises:
            OptionError: the state is of a loader with another seed, batch size, order, subset, number of samples or of
                ranks.
        """
        # Refused rather than resumed a little off: the samples left would be others.
        for name, here in self._identity().items():
            if state.get(name) != here:
                msg = f"This state has {name}={state.get(name)!r}, the loader has {here!r}; both must be the same."
                raise OptionError(msg)
        done = _whole("batches_done", state.get("batches_done"))
        if done > len(self):
            msg = f"This state has batches_done={done}, but an epoch has {len(self)} batches."
            raise OptionError(msg)
        self._done = self._next = _Place(_whole("epoch", state.get("epoch")), done)

    def close(self) -> None:
        """End the iteration that runs, if one does, and worker processes. The loader can be iterated again."""
        self._end_iteration()
        if self._machine is not None:
            self._machine.source.close()

    def __copy__(self) -> Loader:
        """Return another one over the same parts, with a place of its own."""
        copied = type(self).__new__(type(self))
        # Past `DataLoader.__setattr__`, which guards what belongs to the sampler.
        copied.__dict__.update(self.__dict__, _running=None)
        if self._machine is not None:
            copied.__dict__.update(_done=replace(self._done), _next=replace(self._next))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._machine is None:
            return super().__reduce_ex__(protocol)
        msg = (
            "A Loader cannot be pickled, nor copied deeply: it has threads of this process. Send its dataset, "
            "which pickles, call make_loader where it arrives, and load_state_dict for the place."
        )
        raise OptionError(msg)

    def __repr__(self) -> str:
        return f"Loader of {self.dataset!r}\n  {self._described}"

    def _repr_html_(self) -> str:
        shown = notes([repr(self.dataset)])
        return page(
            "Loader", (notes([self._described]) if self._machine is None else facts_table(self.plan.facts)) + shown
        )

    @property
    def _described(self) -> str:
        return "as another framework built it" if self._machine is None else str(self.plan)

    def _identity(self) -> dict[str, int]:
        if self._machine is None:
            msg = "Another framework built this loader; it keeps its place itself, or not at all."
            raise OptionError(msg)
        return self._machine.identity


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"{name}={value!r} cannot work; expected a whole number, 0 or more."
        raise OptionError(msg)
    return value
