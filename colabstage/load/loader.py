"""Make batches as tensors, prepared in the background while the model computes: `make_loader`."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack, get_args

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.whole_imports import refuse_import

try:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset
except ImportError as error:
    refuse_import("torch", "make_loader needs", error)

from colabstage.io.arguments import ONE_SPLIT, check_argument, read_options, refuse_argument, takes
from colabstage.io.boundary import typed
from colabstage.io.given import show_content
from colabstage.io.page import facts_table, notes, page
from colabstage.io.progress import Demand
from colabstage.io.units import format_count, parse_bytes
from colabstage.load.arrival import Announced, FilledBatches, FirstEpochOrder, facts_of, mixing_of, order_of
from colabstage.load.augment import first_crop
from colabstage.load.batches import Finish, Ragged, map_batches, move_to, pin, torch_dtype
from colabstage.load.calling import check_batch_transform
from colabstage.load.choosing import choose_loader, may_gain
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import make_stager, prefetch_staged, usable_device
from colabstage.load.epoch import (
    BatchPlace,
    RowOrder,
    Schedule,
    Shard,
    WindowOrder,
    choose_shard,
    sampler_order,
)
from colabstage.load.facts import gather_facts, measure_cost
from colabstage.load.partial import lasting_order
from colabstage.load.plan import TORCH_REMEDIES, LoaderOptions, LoaderRequest
from colabstage.load.prefetch import Heartbeat, Iterated, Iteration, Prefetcher
from colabstage.load.reading.engines import resolve_rows
from colabstage.load.strategies import BatchDataset, EpochSampler, RankSampler, make_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.load.arrival import Arrival
    from colabstage.load.augment import FirstCrop
    from colabstage.load.device import Staged, Stager
    from colabstage.load.epoch import Order
    from colabstage.load.plan import LoaderArguments, LoaderPlan, Shuffle
    from colabstage.load.prefetch import PrefetchSource
    from colabstage.load.reading.reader import SplitReader
    from colabstage.load.strategies import BatchSource

    _Base = DataLoader[Any]
else:
    _Base = DataLoader

_THREAD = "colabstage-loader"
# Counting the classes of more rows would take as long as the first batch does.
_MOST_MEASURED = 2**21
# Below it, the counts of classes in a batch vary four times as much as chance has it.
_LEAST_MIXING = 0.25


@takes(
    LoaderOptions,
    remedies={**TORCH_REMEDIES, "batch_size": 'Write make_loader(data["train"], 64); training depends on it.'},
)
@typed()
def make_loader(
    dataset: dataset_h5 | Subset[Any],
    batch_size: int,
    *,
    options: LoaderOptions | None = None,
    **arguments: Unpack[LoaderArguments],
) -> Loader:
    """Make batches of a dataset in the fastest way for this machine; `loader.plan` says which, and why.

    >>> loader = make_loader(dataset_h5("data.h5"), 64, device="cuda", dtype="float32")  # doctest: +SKIP
    >>> for x, y in loader:  # doctest: +SKIP
    ...     train_step(x, y)

    A batch is `(x, y)`, or `((x, y), index)` for a dataset with `return_index`:

    - `x`: `(B, C, H, W)` for images, in `channels_last` memory, of the stored dtype (uint8) or of `dtype`. Inputs that
      are not images (three axes, the last at most 4 long) keep their axes. Encoded images of many sizes are a list of
      tensors `(C, H, W)`, rows of any length a list of tensors `(M,)` or a dict of padded ones, texts a list of `str`.
    - `y`: int64 `(B,)` where targets are integers, otherwise as stored; masks uint8 `(B, H, W)`. Boxes are a list of B
      dicts of tensors, as torchvision's detection models take them, or one dict of padded ones. Rows of any length and
      texts are as in x.
    - `index`: int64 `(B,)`, the rows.

    Each batch is the caller's own: it may be kept and changed. Its memory is reused once nothing refers to it, or
    to any of the batches that were gathered together with it, where they are small (2 MiB together at most). On a
    GPU it may be used on the stream that is current when it is taken.

    In a distributed run each rank gets its part: every sample is visited once an epoch, by one rank, and all ranks
    have the same number of batches, the last of which may differ by one sample. (With batches of one sample, or fewer
    samples than ranks, some ranks have one batch fewer.) With `drop_last` all batches are full.

    Args:
        dataset: the samples; a `Subset` of them, as `random_split` makes, has its rows taken for `sampler`. Its
            transforms, where it has any, are called sample by sample when the batch is asked for,
            in the thread that iterates, as by a stock `DataLoader`; that side of the batch is then what torch's
            `default_collate` makes of the results.
        batch_size: samples in a batch, of each rank; the last ones of an epoch may have fewer.
        options: the arguments below in one value, for several loaders; those that are given by name replace its own.
        **arguments: those of `colabstage.options.LoaderOptions`.

    Raises:
        OptionError: an argument that cannot work.
        TypeError: an argument is unknown.
        NotEnoughSpaceError: with `strategy="memory"` or `"device"`, when the split does not fit; nothing has been
            read.
    """
    asked = read_options(LoaderOptions, options, arguments)
    for name, given in (("drop_last", asked.drop_last), ("pin_memory", asked.pin_memory)):
        check_argument(name, given, "switch")
    if asked.batch_transform is not None:
        check_batch_transform("batch_transform", asked.batch_transform)
    dataset, sampler = _below_subsets(dataset, asked.sampler)
    seed = _seed_of(asked)
    dtype = torch_dtype(asked.dtype)
    if asked.ragged not in get_args(Ragged):
        msg = f"ragged={asked.ragged!r} is unknown; expected one of {', '.join(get_args(Ragged))}."
        raise OptionError(msg)
    shuffle: Shuffle = ("auto" if dataset.split == "train" else False) if asked.shuffle is None else asked.shuffle
    crop = None if asked.batch_transform is None else first_crop(asked.batch_transform)
    # Such a sampler gives each rank rows of its own.
    by_itself = isinstance(sampler, DistributedSampler) and asked.rank is None
    shard = Shard() if by_itself else choose_shard(asked.rank, asked.world_size)
    # Some rows of `train` are as often held out of the training as they are trained on.
    listed = None if asked.shuffle is None and dataset.split == "train" else shuffle is not False
    subset = None if sampler is None else sampler_order(sampler, len(dataset), shuffle=listed, seed=seed)
    request = LoaderRequest(
        batch_size,
        asked.strategy,
        asked.drop_last,
        asked.num_workers,
        "auto" if asked.prefetch_factor is None else asked.prefetch_factor,
        shuffle,
        None if asked.memory_budget is None else parse_bytes(asked.memory_budget, "memory_budget", may_be_zero=True),
        isinstance(sampler, Sampler),
        asked.decode,
    )
    place = None if asked.device is None else usable_device(asked.device)
    facts = gather_facts(
        dataset,
        device=place,
        shard=shard,
        epoch_rows=None if subset is None else subset.count,
        crop_size=None if crop is None else crop.crop.target_size,
        processes=asked.strategy == "workers",
    )
    arrival = units = dataset.reader.arrival
    if arrival is not None and shard.world_size > 1 and not arrival.order_lasts:
        # Another rank may have waited until all was here, and must have the same order.
        units = lasting_order(arrival)
        facts = replace(facts, arrival=facts_of(arrival, units))
    if may_gain(facts, request):
        facts = replace(facts, cost=measure_cost(dataset))
    plan = choose_loader(facts, request)
    order = _order(plan, dataset, units, seed, subset)
    if isinstance(order, FirstEpochOrder) and order.first.first_units > 1:
        plan = _with_mixing(plan, dataset, order, batch_size * shard.world_size)
    schedule = Schedule(order, batch_size, asked.drop_last, shard)
    if plan.decode is None or plan.decode.name != "crops":
        crop = None
    finish = Finish(dtype, asked.batch_transform)
    # Torch's own loader does as much: without a GPU, pinned memory is of no use to anybody.
    pinned = asked.pin_memory and place is None and torch.cuda.is_available()
    return _build(
        dataset, plan, schedule, finish, device=place, ragged=asked.ragged, seed=seed, crop=crop, pinned=pinned
    )


def _below_subsets(dataset: object, sampler: Iterable[int] | None) -> tuple[dataset_h5, Iterable[int] | None]:
    """Return the dataset below torch's `Subset`s, and the rows that they leave of it as its sampler.

    Raises:
        OptionError: it is none that batches can be made of; or there is a sampler besides, whose rows are those of the
            subset.
    """
    rows: Any = None
    # More than once of a split of a split.
    while isinstance(dataset, Subset):
        _check_overrides(dataset, (Subset,))
        try:
            # Not by a cast, which makes rows 0 and 1 of a mask.
            indices = resolve_rows(dataset.indices, len(dataset.dataset))  # type: ignore[arg-type]
            rows = indices if rows is None else indices[resolve_rows(rows, len(indices))]
        except (IndexError, TypeError, ValueError) as error:
            msg = f"The Subset has rows that cannot be read. {error}"
            raise OptionError(msg) from error
        dataset = dataset.dataset
    if rows is not None and sampler is not None:
        msg = (
            "sampler= and a Subset both say which rows are visited. Give make_loader the dataset below it and the rows "
            "in one: make_loader(subset.dataset, batch_size, sampler=[subset.indices[row] for row in rows])."
        )
        raise OptionError(msg)
    if not isinstance(dataset, dataset_h5):
        remedy = f"{ONE_SPLIT} For other datasets use torch.utils.data.DataLoader."
        refuse_argument("dataset", dataset, "a dataset_h5 or a Subset of one", remedy=remedy)
    _check_overrides(dataset, (dataset_h5, BatchDataset))
    sides = (
        ("inputs", "transform", dataset.transform, dataset.reader.row_dtype),
        ("targets", "target_transform", dataset.target_transform, dataset.reader.target_dtype),
    )
    for side, name, transform, dtype in sides:
        if transform is not None or dtype is None or dtype.hasobject:
            continue
        # float128 and the like have no tensors.
        if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            msg = (
                f"The {side} of '{dataset.reader.path}' have dtype {dtype}, of which torch makes no tensors. Give it a "
                f"{name} that converts them, for example to float64 or int64."
            )
            raise OptionError(msg)
    return dataset, sampler if rows is None else rows


# By what a stock DataLoader gets samples, and this one does not: it reads rows by the reader below.
_GIVES_SAMPLES = ("__getitem__", "__getitems__", "__len__", "read_batch", "sample")


def _check_overrides(dataset: object, known: tuple[type, ...]) -> None:
    """Refuse a subclass whose samples are made by methods of its own, which would not be called.

    Raises:
        OptionError: it has such methods; the message names them.
    """
    own = [
        name
        for name in _GIVES_SAMPLES
        if getattr(type(dataset), name, None) not in [getattr(kind, name, None) for kind in known]
    ]
    if own:
        kind = type(dataset).__name__
        msg = (
            f"{kind} has a {own[0]} of its own, which make_loader would not call: it reads whole batches of rows. Move "
            "what it does into transform= and target_transform= of dataset_h5 or into batch_transform=, or use "
            f"torch.utils.data.DataLoader, which calls it."
        )
        raise OptionError(msg)


def _seed_of(asked: LoaderOptions) -> int:
    generator: object = asked.generator
    if generator is None:
        return _whole_number("seed", asked.seed)
    if not isinstance(generator, torch.Generator):
        msg = f"generator={generator!r} is not a torch.Generator; expected a torch.Generator, or seed=0."
        raise OptionError(msg)
    if asked.seed:
        msg = f"seed={asked.seed!r} and generator= both say what the order depends on. Leave out one of them."
        raise OptionError(msg)
    return generator.initial_seed()


def _order(plan: LoaderPlan, dataset: dataset_h5, units: Arrival | None, seed: int, subset: Order | None) -> Order:
    chosen = plan.order
    if chosen.name == "arrival" and units is not None:
        rows = subset.subset if isinstance(subset, RowOrder) else None
        later = RowOrder(len(dataset), shuffle=True, seed=seed, subset=rows)
        return order_of(units, dataset.split, chosen.window_units, later)
    if subset is not None:
        return subset
    if chosen.name == "window":
        return WindowOrder(len(dataset), chosen.window_rows, chosen.block_rows, seed)
    return RowOrder(len(dataset), chosen.name == "permutation", seed)


def _with_mixing(plan: LoaderPlan, dataset: dataset_h5, order: FirstEpochOrder, together: int) -> LoaderPlan:
    """Say how even the classes are in batches of so many rows of the first epoch, and warn where they are not."""
    dtype = dataset.reader.target_dtype
    is_labels = bool(dataset.classes) and dataset.reader.target_shape == () and dtype is not None and dtype.kind in "iu"
    if not is_labels or order.count > _MOST_MEASURED:
        return plan
    mixing = min(1.0, mixing_of(dataset.targets[order.first.rows(0, Shard())], together))
    said = f"in the first epoch the classes of {together:,} rows are {mixing:.2f} as even as after a full shuffle"
    if mixing < _LEAST_MIXING:
        warnings.warn(
            f"The source is sorted, and rows are packed and visited while it arrives: {said} (1 is the same). For a "
            "full shuffle wait for all of it: data.wait(), then data.loader(…, shuffle=True). Or take smaller batches.",
            UserWarning,
            stacklevel=2,
        )
    return replace(plan, order=replace(plan.order, reason=f"{plan.order.reason}; {said}", mixing=mixing))


def _build(
    dataset: dataset_h5,
    plan: LoaderPlan,
    schedule: Schedule,
    finish: Finish,
    *,
    device: torch.device | None,
    ragged: Ragged,
    seed: int,
    crop: FirstCrop | None,
    pinned: bool,
) -> Loader:
    place = torch.device("cpu") if device is None else device
    source, view = make_source(dataset, plan, place, ragged=ragged, seed=seed, crop=crop)
    # What a framework builds of the loader's parts reads whole images, and has all of the transform before it.
    collate = finish.collate
    if crop is not None:
        # The crop is done by then; what follows it is not.
        finish = replace(finish, batch_transform=crop.rest)
    order, shard = schedule.order, schedule.shard
    shown = EpochSampler(order) if shard.world_size == 1 else RankSampler(order, shard)
    shared = {"batch_size": schedule.batch_size, "samples": len(dataset), "world_size": shard.world_size}
    identity = {"seed": seed, **order.identity(), **shared}
    # What orders the first epoch alone says nothing of a place in a later one: a state from there continues in a loader
    # of the same pack that came in another way, or was here from the beginning.
    later = {"seed": seed, **order.later.identity(), **shared} if isinstance(order, FirstEpochOrder) else identity
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
    loader._machine = _Machine(
        plan, schedule, source, finish, place, shown, seed, (identity, later), pinned, dataset.reader
    )
    loader.plan = plan
    loader._done = loader._next = _EpochPlace(0, 0)
    return loader


@dataclass(slots=True)
class _EpochPlace:
    """How far an epoch has been handed out."""

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
    finish: Finish
    """What is done to them last."""
    device: torch.device
    """Where they go."""
    sampler: EpochSampler
    """What the loader shows to frameworks."""
    seed: int
    """What random numbers depend on."""
    identities: tuple[dict[str, int], dict[str, int]]
    """What a loader must share that continues where this one was, in the first epoch and in a later one."""
    pinned: bool
    """Whether batches in host memory are put into pinned memory."""
    reader: SplitReader
    """What rows are read with."""
    idle: deque[Stager] = field(default_factory=deque)
    """Stagers to the device that no iteration uses: two would fill the same pinned memory, and pinning it again takes
    milliseconds. A deque's append and pop are atomic, and an iteration may be dropped in any thread."""

    def start(self, place: _EpochPlace, handed_out: Callable[[_EpochPlace], None]) -> Iteration[Any, Any]:
        """Begin to make the batches that are left of an epoch; `place` moves on as they are handed out, and
        `handed_out` is called with it each time."""
        left, rows_before = self.schedule.rows_left(place.epoch, place.batches_done)
        announced = self._announce(left, place.epoch)
        # One for each iteration: a new one must not be stopped by the end of the last.
        demand = Demand()
        batches = self._filled(left, place, demand)
        source = self.source.start(batches, rows_before, place.epoch, demand)
        finish, seed, first = self.finish, self.seed, place.batches_done

        def finished(batch: tuple[Any, ...]) -> Any:
            if finish.batch_transform is None:
                return finish.transform(batch)
            return finish.transform(batch, BatchPlace(seed, place.epoch, batches[place.batches_done - 1 - first]))

        def begun(source: PrefetchSource[Any], hand_out: Callable[[Any], Any]) -> Iteration[Any, Any]:
            def count(given: Any) -> Any:
                # First: where code of the caller's fails and the loop continues, this batch is over.
                place.batches_done += 1
                handed_out(place)
                if announced is not None:
                    announced.hand_out()
                return hand_out(given)

            waited, let_go = (None, None) if announced is None else (announced.waited, announced.close)
            return Iteration(source, count, place.end, waited=waited, let_go=let_go, explain=self.source.explain)

        # The device gathers by itself, and a thread would only stand between.
        if not self.source.in_background:
            return begun(source, lambda batch: finished(finish.scale(batch)))
        depth, collate = max(1, self.plan.prefetch.value), self.source.collate
        if collate is not None or not self.plan.workers.value:
            # What the dataset's transforms make has its device and dtype from here, in the thread they ran in.
            def made(read: tuple[Any, ...]) -> Any:
                batch = move_to(read if collate is None else collate(read), self.device)
                return finished(finish.scale(pin(batch) if self.pinned else batch))

            if not self.plan.workers.value:
                # As asked, nothing works ahead, and no thread beside the loop's.

                def alone() -> Generator[tuple[Any, ...]]:
                    with closing(source):
                        # Not a loop: its variable would keep a batch alive while the next one is made.
                        yield from filter(lambda batch: not isinstance(batch, Heartbeat), source)

                return begun(alone(), made)
            return begun(Prefetcher(source, depth, _THREAD, demand), made)
        # Nothing is copied to a device, so no stager is needed either.
        if self.device.type == "cpu":
            # Here either would take the consumer's time.
            source = source if finish.dtype is None else map_batches(source, finish.scale)
            source = map_batches(source, pin) if self.pinned else source
            return begun(Prefetcher(source, depth, _THREAD, demand), finished)
        try:
            stager = self.idle.pop()
        except IndexError:
            stager = make_stager(self.device)

        def hand_out(staged: Staged[tuple[Any, ...]]) -> Any:
            return finished(finish.scale(stager.hand_out(staged)))

        # One thread gathers while another has batches copied: 1.15 times as fast on an H100 with 16 cores. With images
        # of their own sizes, where threads that decode compete for Python's lock, it was 0.9 times.
        dense = self.reader.row_shape is not None
        read = Prefetcher(source, 1, _THREAD, demand) if dense else source
        iteration = begun(prefetch_staged(read, stager, depth, f"{_THREAD}-copy", demand), hand_out)
        weakref.finalize(iteration, self.idle.append, stager).atexit = False
        return iteration

    def _filled(
        self, left: Sequence[NDArray[np.intp]], place: _EpochPlace, cancellation: Cancellation
    ) -> Sequence[NDArray[np.intp]]:
        """Return the batches that are left; without the rows that turn out unusable, where there may be such."""
        arrival = self.reader.arrival
        if arrival is None or not arrival.leaves_out or arrival.complete:
            return left
        whole = self.schedule.rows_left(place.epoch, 0)[0]
        return FilledBatches(arrival, self.reader.split, whole, place.batches_done, cancellation)

    def _announce(self, batches: list[NDArray[np.intp]], epoch: int) -> Announced | None:
        """Say which rows are read now and in the next epoch, where some of them have to be brought here first."""
        reader = self.reader
        if reader.arrival is None or reader.arrival.complete:
            return None
        return Announced(reader.arrival, reader.split, batches, lambda: self.schedule.rows_left(epoch + 1, 0)[0])


class Loader(Iterated, _Base):
    """Iterate over batches; each iteration is the next epoch. Made by `make_loader`.

    Iterations may run beside each other, as in `zip(loader, loader)`, and each is an epoch of its own. `state_dict` is
    of the one that handed out a batch last. One that is dropped after its first batch while another runs, as
    `next(iter(loader))` in the middle of a loop, was a look: it changes neither the state nor the next epoch's number.
    With worker processes one iteration runs at a time: a new one ends the one before, whose next step is an error.

    Leaving a loop early, by `break` or an exception, ends the background threads with it, each after the row that it is
    at. Worker processes too leave their batches at the row, or the call of a transform, that each is at; they wait for
    the next iteration, and end with `close` or with the loader.

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
    _done: _EpochPlace
    _next: _EpochPlace
    # The place of the iteration that `_done` follows; None once somebody has set another place.
    _followed: _EpochPlace | None = None

    def __len__(self) -> int:
        """Count the batches in an epoch, of this rank."""
        return super().__len__() if self._machine is None else self._machine.schedule.batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # the base promises a class of its own
        """Start the next epoch, or continue where `load_state_dict` said."""
        # It is a plain DataLoader, which frameworks build by this class's constructor.
        if self._machine is None:
            return super().__iter__()
        if not self._machine.source.several:
            self._end_iterations()
        asked, self._machine.sampler.asked = self._machine.sampler.asked, None
        # A framework calls set_epoch with the epoch that comes anyway, which must not lose a resumed place.
        if asked is not None and asked != self._next.epoch:
            self._next = _EpochPlace(asked, 0)
        before, place, begun_at = self._followed, self._next, replace(self._next)
        loader = weakref.ref(self)

        def handed_out(by: _EpochPlace) -> None:
            # An iterator may outlive its loader.
            if (owner := loader()) is not None and owner._followed is not by:
                owner._follow(by)

        iteration = self._machine.start(place, handed_out)
        if before is not None and not before.ended and self._others_run():
            weakref.finalize(iteration, _forget_look, loader, place, begun_at, before).atexit = False
        self._done = self._followed = place
        self._next = _EpochPlace(place.epoch + 1, 0)
        return self._begun(iteration)

    def _others_run(self) -> bool:
        running = [one() for one in self._running]
        return any(one is not None and not one.closed for one in running)

    def _follow(self, place: _EpochPlace) -> None:
        # Whoever has set another place since meant that one.
        if self._followed is not None:
            self._done = self._followed = place
            self._next = _EpochPlace(place.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`: from its first batch, or where `load_state_dict` said, if that is this
        epoch.

        Raises:
            OptionError: a negative number, or none.
        """
        epoch = _whole_number("epoch", epoch)
        if epoch != self._next.epoch:
            self._next = _EpochPlace(epoch, 0)
        self._done, self._followed = self._next, None

    def state_dict(self) -> dict[str, int]:
        """Tell where the loader is: seed, epoch and batches handed out, and what else a resumed loader must share.

        Taken inside the loop, the batch at hand counts as done: after the last one nothing of the epoch is left, and a
        resumed loop over it is empty. Taken after the loop has ended, it is the beginning of the next epoch. A batch
        whose transform failed is over as well, where the loop continues. All ranks have the same state at the same
        step, so one rank's serves all.
        """
        # Only the loop's end tells that nothing of the epoch is left to ask for.
        done = _EpochPlace(self._done.epoch + 1, 0) if self._done.ended else self._done
        return {**self._identity(done.epoch), "epoch": done.epoch, "batches_done": done.batches_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration go on exactly where `state_dict` was taken.

        Another number of ranks is fine where all ranks together have as many samples in a step as before: four with 16
        continue where two with 32 were. (With `shuffle="window"` each rank has its own part of the file, so not there;
        nor before the last step of an epoch, if ranks share it unevenly.)

        Raises:
            OptionError: the state is of a loader with another seed, batch size, order, subset, number of samples or of
                ranks.
        """
        given: object = state
        if not isinstance(given, Mapping):
            msg = f"The state is {show_content(given)}; expected what state_dict() of a loader returned."
            raise OptionError(msg)
        shared_alike = self._machine is not None and self._machine.schedule.steps_as(state)
        epoch = _whole_number("epoch", state.get("epoch"))
        ours, theirs = self._identity(epoch), {name: state[name] for name in state if name not in _PLACE}
        # Refused rather than resumed a little off: the samples left would be others. Also where the state has what this
        # loader has not: its rows came in an order of which this one knows nothing.
        for name in sorted({**ours, **theirs}, key=lambda name: name not in _ARRIVING):
            # A state may have anything, an array too.
            saved: Any = theirs.get(name)
            wanted: Any = ours.get(name)
            if not np.array_equal(saved, wanted) and not (shared_alike and name in ("batch_size", "world_size")):
                raise OptionError(_why_refused(name, saved, wanted, epoch))
        done = _whole_number("batches_done", state.get("batches_done"))
        if done > len(self):
            msg = f"This state has batches_done={done}, but an epoch has {format_count(len(self), 'batches')}."
            raise OptionError(msg)
        self._done = self._next = _EpochPlace(epoch, done)
        self._followed = None

    def close(self) -> None:
        """End the iterations that run, and worker processes, and let go of decoded images that are kept. The loader can
        be iterated again."""
        self._end_iterations()
        if self._machine is not None:
            self._machine.source.close()

    def __copy__(self) -> Loader:
        """Return another one over the same parts, with a place of its own."""
        copied = type(self).__new__(type(self))
        # Past `DataLoader.__setattr__`, which guards what belongs to the sampler.
        copied.__dict__.update(self.__dict__, _running=(), _followed=None)
        if self._machine is not None:
            # Frameworks set the epoch by the sampler.
            sampler, batches = copy.copy(self._machine.sampler), copy.copy(self.batch_sampler)
            batches.sampler = sampler  # type: ignore[union-attr]  # a BatchSampler, as in every loader with a batch_size
            machine = replace(self._machine, source=self._machine.source.another(), sampler=sampler)
            copied.__dict__.update(_machine=machine, sampler=sampler, batch_sampler=batches)
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

    def _identity(self, epoch: int) -> dict[str, int]:
        if self._machine is None:
            msg = (
                "Another framework built this loader from the parts of one, so it has no state. Save the epoch and the "
                "number of batches, and continue with loader.set_epoch(epoch) and what the framework has for skipping "
                "batches: with Accelerate skip_first_batches(loader, done)."
            )
            raise OptionError(msg)
        return self._machine.identities[min(epoch, 1)]


def _forget_look(loader: weakref.ref[Loader], look: _EpochPlace, begun_at: _EpochPlace, before: _EpochPlace) -> None:
    """Put a loader back to where it was before an iteration that was dropped after one batch at most."""
    owner = loader()
    if owner is None or owner._followed is not look or look.ended or look.batches_done - begun_at.batches_done > 1:
        return
    owner._done = owner._followed = before
    owner._next = begun_at


# What of a state is the place and not the order.
_PLACE = ("epoch", "batches_done")
# What an order by units, or by blocks, of a pack that is not all here consists of.
_ARRIVING = ("unit_order", "units", "window_units", "together")


def _why_refused(name: str, theirs: int | None, ours: int | None, epoch: int) -> str:
    """Say in what a state of an epoch and a loader differ, and what to do."""
    if name in _ARRIVING:
        found = f"{name} is {theirs} there and {ours} here" if theirs and ours else f"only one of them has {name}"
        return (
            f"This state is from an epoch in another order than the loader's ({found}): of a pack that was still being "
            "packed or copied, or of one that is read under a disk_limit=. Which samples are left is not known here. "
            f"Begin that epoch again, loader.set_epoch({epoch}), or the next, loader.set_epoch({epoch + 1})."
        )
    return f"This state has {name}={show_content(theirs)}, the loader has {ours!r}; both must be the same."


def _whole_number(name: str, value: object) -> int:
    # Numpy's too, but as Python's own: a state is saved as JSON as well.
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0:
        return int(value)
    msg = f"{name}={show_content(value)} cannot work; expected a whole number, 0 or more."
    raise OptionError(msg)
