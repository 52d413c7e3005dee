"""Make a loader's batches: read rows ahead of the consumer, as tensors, scaled, on the device."""

from __future__ import annotations

import copy
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from colabstage.errors import OptionError
from colabstage.io.progress import Demand
from colabstage.load.ahead import Ahead, Iteration
from colabstage.load.augment import CroppedInputs
from colabstage.load.batch import Batcher
from colabstage.load.batches import move_to
from colabstage.load.device import (
    ResidentSplit,
    Stager,
    StreamGuard,
    copy_stream,
    pinned_block,
    split_group,
    stage_ahead,
)
from colabstage.load.epoch import BatchPlace, SampledOrder, digest_of
from colabstage.load.partial import FirstEpochOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Expectation
    from colabstage.load.augment import FirstCrop
    from colabstage.load.batch import Group
    from colabstage.load.batches import Finish, Form
    from colabstage.load.device import Batches, CopyStream
    from colabstage.load.epoch import Schedule
    from colabstage.load.plan import LoaderPlan
    from colabstage.load.reading.memory import KeptImages
    from colabstage.load.reading.reader import SplitReader

_THREAD = "colabstage-loader"
# Batches of floats that are handed over at once.
_FEW_FLOATS = 8


@dataclass(slots=True)
class EpochPlace:
    """How far an epoch has been handed out."""

    epoch: int
    batches_done: int
    ended: bool = False
    """Whether its loop has received all of it."""

    def end(self) -> None:
        """Record that the loop has ended."""
        self.ended = True


@dataclass(slots=True)
class Position:
    """Where a loader is. Iterations refer to it and not to the loader, which they may outlive."""

    done: EpochPlace
    """What was handed out last, or the place that was set since."""
    next: EpochPlace
    """Where the next iteration begins."""
    follows: bool = False
    """Whether `done` follows the iterations; not once somebody has set another place."""
    thread: Thread | None = None
    """Which thread took the last batch."""

    def move_to(self, place: EpochPlace) -> None:
        """Begin the next iteration at a place."""
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
    reader: SplitReader
    schedule: Schedule
    form: Form
    finish: Finish
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
        if self.crop is not None:
            # The crop is done by then; what follows it is not.
            self.finish = replace(self.finish, batch_transform=self.crop.rest)
        on_gpu = self.device.type == "cuda" and not self.in_loop
        # One block with the consumer, one in the making, the others in between; with a GPU one that waits to be copied
        # there, and two that are.
        idle = plan.prefetch.value // plan.together + (5 if on_gpu else 2)
        workers = max(1, plan.workers.value)
        self.stream = None if self.device.type == "cpu" else copy_stream(self.device)
        self.batcher = Batcher(
            reader, workers=workers, together=plan.together, idle=idle, allocate=pinned_block if on_gpu else None
        )
        if plan.strategy == "device":
            self.resident = ResidentSplit(reader, self.device, self.stream, workers)

    @property
    def in_loop(self) -> bool:
        """Return whether tensors are made in the thread that iterates: that of the dataset's transforms."""
        return self.form.dataset.per_sample or not self.plan.workers.value

    def start(self, position: Position) -> Iteration[Any]:
        """Begin to make the batches that are left of an epoch: the next one of `position`, which moves on as they are
        handed out."""
        # One for each iteration: a new one must not be stopped by the end of the last.
        place, demand = position.next, Demand()
        batches = self.schedule.rows_left(place.epoch, place.batches_done)
        position.begin()
        expected, waited_s = self._expect(batches, place.epoch), 0.0
        ends = [] if expected is None else np.cumsum([len(rows) for rows in batches]).tolist()
        source, unpack, hand_out = self._steps(batches, place.epoch, demand)
        finish, seed, first = self.finish, self.schedule.seed, place.batches_done

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
            if finish.batch_transform is None:
                return finish.transform(made)
            return finish.transform(made, BatchPlace(seed, place.epoch, batches[number]))

        if expected is None:
            return Iteration(source, unpack, take, at_end=place.end)
        return Iteration(source, unpack, take, at_end=place.end, waited=waited, let_go=expected.close)

    def _steps(self, batches: Sequence[NDArray[np.intp]], epoch: int, demand: Demand) -> tuple[Any, Any, Any]:
        """Return what gives groups of batches, takes a group apart, and makes a batch of a part of it."""
        reader, finish, device, batcher = self.reader, self.finish, self.device, self.batcher
        with_index = self.form.dataset.return_index
        if self.form.dataset.per_sample and (self.resident is not None or self.crop is not None):
            made_for = "samples on the device" if self.crop is None else "crops that are decoded alone"
            msg = f"The dataset was given a transform after this loader was planned for {made_for}. Make a new loader."
            raise OptionError(msg)
        # The device gathers by itself, and a thread would only stand between.
        if self.resident is not None:
            return self.resident.groups(batches, self.plan.together, with_index=with_index), *self._divide(batches)
        if self.plan.keep is not None and self.plan.keep.most_bytes:
            self.kept[:] = [reader.keep_images(self.plan.keep.most_bytes)]
        crops = None if self.crop is None else CroppedInputs(reader, self.crop, self.schedule.seed, epoch)

        def complete(batch: tuple[Any, Any], rows: NDArray[np.intp]) -> tuple[Any, ...]:
            x, y = batch if crops is None else (batch[0], crops.move(batch[1], rows))
            return (x, y, torch.from_numpy(rows.copy())) if with_index else (x, y)

        def tensors(x: Any, y: Any, rows: NDArray[np.intp]) -> tuple[Any, ...]:
            return complete(self.form.batch(x, y, rows), rows)

        # One more group is in the making, and one with the consumer.
        several = self.plan.together > 1
        depth = max(1, self.plan.prefetch.value // self.plan.together - several)
        if self.in_loop:
            # What the dataset's transforms make has its device and dtype from here, in the thread they ran in.
            groups = batcher.groups(batches, demand, lambda group: list(group.parts()), crops)
            source = Ahead(groups, depth, _THREAD, demand) if self.plan.workers.value else groups
            return source, iter, lambda part: finish.scale(move_to(tensors(*part), device))
        if device.type == "cpu":
            # Scaled in the thread: here it would take the consumer's time.
            def finished(group: Group) -> list[tuple[Any, ...]]:
                pairs = zip(self.form.batches(group), group.rows, strict=True)
                return [complete(batch, rows) for batch, rows in pairs]

            ready = batcher.groups(batches, demand, finished, crops)
            if finish.dtype is not None:
                # In few at a time, so that floats are made in memory that the consumer has just released.
                depth = max(1, self.plan.prefetch.value // _FEW_FLOATS - 1) if several else depth
                ready = _in_parts(ready, finish.scale)
            return Ahead(ready, depth, _THREAD, demand), iter, _unchanged

        def whole(group: Group) -> tuple[Any, ...]:
            return tensors(group.x, group.y, np.concatenate(group.rows))

        stager, read = Stager(self.stream, device), batcher.groups(batches, demand, whole, crops)
        # One thread gathers while another has batches copied: 1.15 times as fast on an H100 with 16 cores. With images
        # of their own sizes, where threads that decode compete for Python's lock, it was 0.9 times.
        dense = reader.row_shape is not None
        copied: Batches[Any] = Ahead(read, 1, _THREAD, demand) if dense else read
        staged = stage_ahead(copied, stager, depth, f"{_THREAD}-copy", demand)
        unpack, take = self._divide(batches)
        return staged, lambda one: unpack(stager.hand_out(one)), take

    def _divide(self, batches: Sequence[NDArray[np.intp]]) -> tuple[Any, Any]:
        """Return what takes a group of tensors on the device apart, and what makes a batch the consumer's."""
        guard, sizes = StreamGuard(self.device), map(len, batches)

        def unpack(group: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
            guard.begin()
            return split_group(self.finish.scale(group), sizes)

        return unpack, guard.take

    def _expect(self, batches: list[NDArray[np.intp]], epoch: int) -> Expectation | None:
        """Announce the rows of this epoch and the next, if some have still to arrive."""
        reader = self.reader
        if reader.arrival is None or reader.arrival.complete or not batches:
            return None
        return reader.arrival.expect(
            reader.split,
            np.concatenate(batches),
            then=lambda: np.concatenate(self.schedule.rows_left(epoch + 1, 0)),
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

    def with_seed(self, seed: int) -> Pipeline:
        """Return a machine of the same parts whose order and random numbers follow from another seed."""
        other = copy.copy(self)
        other.schedule = replace(self.schedule, seed=seed)
        return other

    def drawn(self, epoch: int) -> dict[str, int]:
        """Return a digest of what a sampler drew: it may draw from generators that nobody can restore."""
        order, seed = self.schedule.order, self.schedule.seed
        return {"order": digest_of(order.rows(seed, epoch))} if isinstance(order, SampledOrder) else {}


def _in_parts(groups: Generator[list[Any]], change: Callable[[Any], Any]) -> Generator[list[Any]]:
    """Yield a few batches at a time, changed."""
    with closing(groups):
        for group in groups:
            group.reverse()
            while group:
                yield [change(group.pop()) for _ in range(min(_FEW_FLOATS, len(group)))]


def _unchanged(batch: Any) -> Any:
    return batch
