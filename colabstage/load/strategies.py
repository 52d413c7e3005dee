"""Make a loader's batches: one class for each strategy, all used alike.

Threads of this process that copy or decode, random crops cut while images are decoded, a split that lives on the
device, and a stock `torch.utils.data.DataLoader` with worker processes.
"""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Cancellation
from colabstage.load.batches import batch_of, host_batches, input_tensor, map_batches, target_tensors
from colabstage.load.choices import batches_together
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import DeviceSplit, pinned_block
from colabstage.load.prefetch import HEARTBEAT, Heartbeat
from colabstage.load.reading.memory import BufferPool
from colabstage.load.window import window_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

    from colabstage.load.augment import CroppedInputs, Crops
    from colabstage.load.batches import Ragged
    from colabstage.load.choices import LoaderPlan


class CropSource:
    """Cut crops straight out of the file, or out of memory, with their targets; in windows where the plan says so."""

    in_background = several = True
    collate = None

    def __init__(
        self, dataset: dataset_h5, plan: LoaderPlan, ragged: Ragged, device: torch.device, crops: Crops
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._ragged = ragged
        self._crops = crops
        # One block with the consumer, one in the making, the others in between; and two being copied to a GPU.
        on_gpu = device.type == "cuda"
        self._pool = BufferPool(plan.prefetch.value + (4 if on_gpu else 2), pinned_block if on_gpu else None)

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        """Begin, as `BatchSource.start`."""
        inputs = self._crops.of_epoch(self._dataset, epoch)
        return _finished(self._read(inputs, batches, rows_before, cancellation), inputs, batches)

    def close(self) -> None:
        """Do nothing: nothing lives longer."""

    def _read(
        self, inputs: CroppedInputs, batches: Sequence[NDArray[np.intp]], rows_before: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, Any] | Heartbeat]:
        workers, window_rows = self._plan.workers.value, self._plan.order.window_rows
        if not window_rows or self._plan.strategy != "direct":
            return _one_by_one(
                inputs,
                batches,
                workers=workers,
                buffers=self._pool,
                ragged=self._ragged,
                cancellation=cancellation,
            )
        return window_batches(
            self._dataset,
            batches,
            rows_before,
            window_rows,
            workers=workers,
            buffers=self._pool,
            ragged=self._ragged,
            inputs=inputs,
            cancellation=cancellation,
        )


def _one_by_one(
    inputs: CroppedInputs,
    batches: Sequence[NDArray[np.intp]],
    *,
    workers: int,
    buffers: BufferPool,
    ragged: Ragged,
    cancellation: Cancellation,
) -> Generator[tuple[Any, Any] | Heartbeat]:
    reader = inputs.dataset.reader
    for _ in reader.warm_up():
        yield HEARTBEAT
    with ThreadPool(workers, cancellation) as pool:
        for rows in batches:
            # Nothing here may keep a name on a batch: it would occupy a buffer while the next one is made.
            yield (
                input_tensor(inputs.read(rows, buffers.borrow((len(rows), *inputs.shape), inputs.dtype), pool)),
                target_tensors(reader.read_y(rows, pool=pool), ragged),
            )


def _finished(
    batches: Generator[tuple[Any, Any] | Heartbeat], inputs: CroppedInputs, rows: Sequence[NDArray[np.intp]]
) -> Generator[tuple[Any, ...] | Heartbeat]:
    """Yield the batches with their targets moved, and their rows where they are asked for."""
    places = iter(rows)

    def finish(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        own = next(places)
        moved = batch[0], inputs.move(batch[1], own)
        return (*moved, torch.from_numpy(own.copy())) if inputs.dataset.return_index else moved

    return map_batches(batches, finish)


class BatchDataset(dataset_h5):
    """Give a `DataLoader` whole batches instead of lists of samples.

    A `DataLoader` asks `__getitems__` for a batch and hands what it gets to `collate_fn`: so one read makes a batch,
    in any worker, also of loaders that frameworks build of these parts.
    """

    _ragged: Ragged = "list"
    # Shared with the process that wants batches, where it may stop wanting them.
    _turn: torch.Tensor | None = None
    _wanted = Cancellation()

    @classmethod
    def over(cls, dataset: dataset_h5, ragged: Ragged) -> BatchDataset:
        """Return a view of the same rows; the dataset itself stays what it is."""
        view = cls.__new__(cls)
        # Not by the constructor, which would look at the file again.
        view.__dict__.update(dataset.__dict__)
        view._ragged = ragged
        return view

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sample, as of the dataset; of a slice the list of its samples."""
        if isinstance(index, slice):
            return super().__getitems__(range(*index.indices(len(self))))
        return super().__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Read a batch, as `make_loader` describes it, in host memory: `(x, y)`, or `(x, y, index)` with
        `return_index`."""
        if isinstance(indices, SeededRows):
            # In a process of a loader of ours: so draws do not depend on how many there are, or on what came before.
            if self.per_sample:
                _seed_all(indices.entropy)
            if self._turn is not None:
                self._wanted = _Wanted(self._turn, indices.turn)
        with ThreadPool(1, self._wanted) as pool:
            stored = self.reader.read_x(indices, pool=pool), self.reader.read_y(indices, pool=pool)
        x, y = batch_of(self, *stored, self._ragged)
        # In the caller's own process nothing is sent.
        if get_worker_info() is not None:
            x, y = _as_views(x), _as_views(y)
        return (x, y, torch.as_tensor(indices)) if self.return_index else (x, y)

    def sample(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Make of one row what the dataset's transforms make of it, as long as somebody wants its batch."""
        self._wanted.check()
        return super().sample(x, y)


def _as_views(rows: Any) -> Any:
    """Return rows of variable length as views of one tensor: each tensor on its way between processes keeps a file
    open."""
    if not isinstance(rows, list) or not all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows):
        return rows
    return list(torch.split(torch.cat(rows), [len(row) for row in rows]))


def as_it_is(batch: Any) -> Any:
    """Collate nothing: a `BatchDataset` has done it."""
    return batch


class SeededRows(list[int]):
    """Hold rows of a batch, with what the random numbers that are drawn for it follow from, and whose turn it is of."""

    entropy: tuple[int, ...] = ()
    turn: int = 0

    @classmethod
    def of(cls, rows: list[int], *entropy: int, turn: int) -> SeededRows:
        """Hold `rows` with `entropy`, numbers of at least 0."""
        seeded = cls(rows)
        seeded.entropy, seeded.turn = entropy, turn
        return seeded


class _Wanted(Cancellation):
    """Stop, in a worker process, batches of an iteration that is over in the process that wanted them."""

    def __init__(self, running: torch.Tensor, turn: int) -> None:
        """Take the number of the iteration that runs, in memory of both processes, and that of one's own."""
        super().__init__()
        self._running = running
        self._turn = turn

    @property
    def cancelled(self) -> bool:
        """Return whether another iteration runs, or none."""
        return self._running.item() != self._turn


def _seed_all(entropy: tuple[int, ...]) -> None:
    """Seed the generators of Python, numpy and torch, which a transform may draw from."""
    words = np.random.SeedSequence(entropy).generate_state(3, np.uint32).tolist()
    random.seed(words[0])
    np.random.seed(words[1])  # noqa: NPY002 - what transforms draw from
    torch.default_generator.manual_seed(words[2])


class _Planned:
    """Sample batches that are told again in each epoch."""

    def __init__(self) -> None:
        self.batches: list[SeededRows] = []

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Workers:
    """Run worker processes that make batches: one stock `DataLoader`, kept from epoch to epoch."""

    def __init__(self, view: BatchDataset, plan: LoaderPlan, seed: int) -> None:
        self._turns = 0
        self._turn = _share_tensor(torch.zeros((), dtype=torch.int64))
        self._view = BatchDataset.over(view, view._ragged)
        self._view._turn = self._turn
        self._plan = plan
        self._seed = seed
        self._planned = _Planned()
        # Its own, so that starting an epoch draws nothing from the rng that the training uses.
        self._rng = torch.Generator().manual_seed(seed)
        self._loader: DataLoader[Any] | None = None
        self._epoch: Any = None

    def batches(self, batches: Sequence[NDArray[np.intp]], epoch: int, cancellation: Cancellation) -> Generator[Any]:
        """Start an epoch, the processes too if none run; from the thread that may fork. Where `cancellation` is used,
        they stop at the row that each is at."""
        self._turns += 1
        turn = self._turns
        self._turn.fill_(turn)
        cancellation.follow(partial(_end_turn, self._turn, turn))
        # Counted from the epoch's end, so that a resumed one has the same numbers; the row tells ranks apart.
        self._planned.batches = [
            SeededRows.of(rows.tolist(), self._seed, epoch, number, int(rows[0]), turn=turn)
            for number, rows in zip(range(len(batches), 0, -1), batches, strict=True)
        ]
        if self._loader is None:
            # No pin_memory: batches for a GPU go through pinned memory of ours, which is used again.
            self._loader = DataLoader(
                self._view,
                batch_sampler=self._planned,
                num_workers=self._plan.workers.value,
                prefetch_factor=self._plan.prefetch.value,
                persistent_workers=True,
                multiprocessing_context=None if self._plan.start is None else self._plan.start.method,
                collate_fn=as_it_is,
                generator=self._rng,
            )
        self._epoch = iter(self._loader)
        return _each(self._epoch)

    def close(self) -> None:
        """End the processes; the next epoch starts others."""
        # A DataLoader ends its processes when nothing refers to them any more; the traceback of an error may for long.
        epoch, self._epoch, self._loader = self._epoch, None, None
        if callable(end := getattr(epoch, "_shutdown_workers", None)):
            end()


def _share_tensor(tensor: torch.Tensor) -> torch.Tensor:
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _end_turn(running: torch.Tensor, turn: int) -> None:
    # The next one may have begun already.
    if running.item() == turn:
        running.zero_()


def _each(batches: Any) -> Generator[Any]:
    yield from batches


class BatchSource(Protocol):
    """Make the batches of an epoch, `(x, y)` or with `return_index` `(x, y, index)`."""

    in_background: bool
    """Whether batches are made in host memory, by a thread ahead of the consumer, and moved from there."""
    several: bool
    """Whether iterations may run beside each other."""

    @property
    def collate(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
        """Return what makes batches of what that thread has read, in the consumer's thread, because it calls the
        dataset's transforms; `None` where batches come as they are."""

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        """Begin, in the consumer's thread, with the batches of these rows; `rows_before` of the epoch were before.
        `cancellation` stops the reading of a batch that nobody waits for any more."""

    def close(self) -> None:
        """End what lives longer than an epoch."""


class FileSource:
    """Read batches straight out of the file, or out of memory; in windows where `window_rows` says so."""

    in_background = several = True

    def __init__(self, dataset: dataset_h5, plan: LoaderPlan, ragged: Ragged, device: torch.device) -> None:
        self.collate = partial(_collated, dataset, ragged) if dataset.per_sample else None
        self._dataset = dataset
        self._plan = plan
        self._ragged = ragged
        self._together = batches_together(plan.prefetch.value, plan.batch_size * dataset.reader.row_bytes)
        # One block with the consumer, one in the making, the others in between; and two being copied to a GPU.
        on_gpu, between = device.type == "cuda" and self.collate is None, plan.prefetch.value // self._together
        idle, allocate = between + (4 if on_gpu else 2), pinned_block if on_gpu else None
        # Two pools, for a block of one is no good to the other.
        self._pool, self._targets = BufferPool(idle, allocate), BufferPool(idle, allocate)

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        workers, window_rows = self._plan.workers.value, self._plan.order.window_rows
        made: Generator[tuple[Any, ...] | Heartbeat]
        if window_rows and self._plan.strategy == "direct":
            made = window_batches(
                self._dataset,
                batches,
                rows_before,
                window_rows,
                workers=workers,
                buffers=self._pool,
                ragged=self._ragged,
                cancellation=cancellation,
            )
        else:
            made = host_batches(
                self._dataset,
                batches,
                workers=workers,
                buffers=self._pool,
                targets=self._targets,
                ragged=self._ragged,
                together=self._together,
                cancellation=cancellation,
            )
        return _indexed(made, batches) if self._dataset.return_index else made

    def close(self) -> None:
        """Do nothing: nothing lives longer."""


class DeviceSource:
    """Gather batches on the device, which holds the whole split."""

    # The device gathers a batch in microseconds, on the stream that uses it.
    in_background = False
    several = True
    collate = None

    def __init__(self, dataset: dataset_h5, plan: LoaderPlan, device: torch.device) -> None:
        self._split = DeviceSplit(dataset, device, plan.workers.value)
        self._with_index = dataset.return_index

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        return self._split.batches(batches, with_index=self._with_index)

    def close(self) -> None:
        """Leave the split with the loader."""


class WorkerSource:
    """Have processes make batches."""

    in_background = True
    # Processes that stay from epoch to epoch serve one at a time, as those of a stock `DataLoader`.
    several = False
    collate = None

    def __init__(self, view: BatchDataset, plan: LoaderPlan, seed: int) -> None:
        self._workers = Workers(view, plan, seed)

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        return self._workers.batches(batches, epoch, cancellation)

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


def make_source(
    dataset: dataset_h5,
    plan: LoaderPlan,
    device: torch.device,
    *,
    ragged: Ragged,
    seed: int,
    crops: Crops | None = None,
) -> tuple[BatchSource, BatchDataset]:
    """Make what a plan's strategy reads from, read into memory or onto the device now where it says so; and a view of
    the same rows for frameworks. `crops`: what the plan has cut out of images while they are decoded."""
    # Now, so that an error comes where the loader is made, not in the first batch.
    source = in_memory(dataset) if plan.strategy == "memory" else dataset
    view = BatchDataset.over(source, ragged)
    if plan.strategy == "device":
        return DeviceSource(dataset, plan, device), view
    # Whoever has processes reads in those alone.
    if plan.strategy == "workers":
        return WorkerSource(view, plan, seed), view
    if crops is not None:
        return CropSource(source, plan, ragged, device, crops), view
    return FileSource(source, plan, ragged, device), view


def _collated(dataset: dataset_h5, ragged: Ragged, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*batch_of(dataset, batch[0], batch[1], ragged), *batch[2:])


def in_memory(dataset: dataset_h5) -> dataset_h5:
    """Return the same dataset over memory. A copy: the caller's dataset continues to read from the file."""
    source = copy.copy(dataset)
    source.reader = dataset.reader.into_memory()
    return source


def _indexed(
    batches: Generator[tuple[Any, ...] | Heartbeat], rows: Sequence[NDArray[np.intp]]
) -> Generator[tuple[Any, ...] | Heartbeat]:
    places = iter(rows)
    return map_batches(batches, lambda batch: (*batch, torch.from_numpy(next(places).copy())))
