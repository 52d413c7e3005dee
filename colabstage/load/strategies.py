"""Make a loader's batches, with one class for each strategy, and the dataset and sampler that frameworks see.

Batches come from threads of this process that copy or decode, from a split on the device, or from the worker processes
of a stock `torch.utils.data.DataLoader`.

Rows of a split on the device are kept and gathered as words of up to eight bytes: a gather of single bytes would use a
fraction of a GPU's memory bandwidth.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, get_worker_info

from colabstage.errors import WorkersLostError
from colabstage.io.pipeline import ThreadPool
from colabstage.io.progress import Cancellation
from colabstage.io.units import format_count
from colabstage.load.augment import CroppedInputs
from colabstage.load.batches import batch_of, host_batches, is_image_shape, map_batches, window_batches
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import make_stager, pinned_block, prefetch_staged
from colabstage.load.epoch import Shard
from colabstage.load.reading.memory import BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.load.augment import FirstCrop
    from colabstage.load.batches import Ragged
    from colabstage.load.epoch import Order
    from colabstage.load.plan import LoaderPlan
    from colabstage.load.prefetch import Heartbeat
    from colabstage.load.reading.memory import KeptImages


class BatchSource:
    """Make the batches of an epoch, `(x, y)` or with `return_index` `(x, y, index)`.

    Attributes:
        in_background: whether batches are made in host memory, by a thread ahead of the consumer, and moved from there.
        several: whether iterations may run beside each other.
        collate: makes batches of what that thread has read, in the consumer's thread, because it calls the dataset's
            transforms; `None` where batches come as they are.
        kept: memory with decoded images, which goes with the loader; `None` where none are kept yet.
    """

    in_background = several = True
    collate: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    kept: KeptImages | None = None

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        """Begin, in the consumer's thread, with the batches of these rows; `rows_before` of the epoch were before.
        `cancellation` stops the reading of a batch that nobody waits for any more."""
        raise NotImplementedError

    def explain(self, error: BaseException) -> BaseException:
        """Return what the consumer is told of an error that ended an epoch: the same, or one that says more."""
        return error

    def another(self) -> BatchSource:
        """Return what a copy of the loader reads from: the same, where iterations may run beside each other."""
        return self

    def close(self) -> None:
        """End what lives longer than an epoch."""


class FileSource(BatchSource):
    """Read batches straight out of the file, or out of memory; in windows where the plan says so, and crops that are
    cut while images are decoded."""

    def __init__(
        self,
        dataset: dataset_h5,
        plan: LoaderPlan,
        ragged: Ragged,
        device: torch.device,
        *,
        seed: int,
        crop: FirstCrop | None,
    ) -> None:
        """Take `crop`, which the batch transform begins with, where it is cut here; it depends on `seed`."""
        if dataset.per_sample:
            self.collate = lambda batch: (*batch_of(dataset, batch[0], batch[1], ragged), *batch[2:])
        self._dataset = dataset
        self._plan = plan
        self._ragged = ragged
        self._seed = seed
        self._crop = crop
        # One block with the consumer, one in the making, the others in between; with a GPU one that waits to be copied
        # there, and two that are.
        on_gpu, between = device.type == "cuda" and self.collate is None, plan.prefetch.value // plan.together
        idle, allocate = between + (5 if on_gpu else 2), pinned_block if on_gpu else None
        # Two pools, for a block of one is no good to the other.
        self._pool, self._targets = BufferPool(idle, allocate), BufferPool(idle, allocate)

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        reader, plan = self._dataset.reader, self._plan
        if plan.keep is not None and plan.keep.most_bytes:
            self.kept = reader.keep_images(plan.keep.most_bytes)
        crops = None if self._crop is None else CroppedInputs(reader, self._crop, self._seed, epoch)
        inputs = reader if crops is None else crops
        made: Generator[tuple[Any, ...] | Heartbeat]
        if plan.order.window_rows and plan.strategy == "direct":
            made = window_batches(
                self._dataset,
                batches,
                rows_before,
                plan.order.window_rows,
                workers=plan.workers.value,
                buffers=self._pool,
                ragged=self._ragged,
                inputs=inputs,
                cancellation=cancellation,
            )
        else:
            made = host_batches(
                self._dataset,
                batches,
                workers=plan.workers.value,
                buffers=self._pool,
                targets=self._targets,
                ragged=self._ragged,
                together=plan.together,
                inputs=inputs,
                cancellation=cancellation,
            )
        if crops is None and not self._dataset.return_index:
            return made
        places = iter(batches)

        def finish(batch: tuple[Any, ...]) -> tuple[Any, ...]:
            rows = next(places)
            batch = batch if crops is None else (batch[0], crops.move(batch[1], rows))
            return (*batch, torch.from_numpy(rows.copy())) if self._dataset.return_index else batch

        return map_batches(made, finish)

    def close(self) -> None:
        """Let go of decoded images, which another loader over the same dataset may still hold."""
        self.kept = None


# Large enough for the full rate of a disk and of PCIe, small enough to stay pinned twice.
_BLOCK_BYTES = 16 * 1024 * 1024
_WORDS = (torch.int64, torch.int32, torch.int16)


class DeviceTable:
    """N rows of one shape and dtype on a device."""

    def __init__(self, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocate memory for `count` rows of this `shape` each."""
        self._shape = tuple(shape)
        self._dtype = dtype
        self._length = int(np.prod(self._shape, dtype=np.int64))
        row_bytes = dtype.itemsize * self._length
        # The longest word that rows are made of.
        word = next((word for word in _WORDS if row_bytes % word.itemsize == 0), torch.uint8)
        self._words = torch.empty((count, row_bytes // word.itemsize), dtype=word, device=device)

    def fill(self, start: int, rows: torch.Tensor) -> None:
        """Put `rows`, `(n, *shape)` on any device, at place `start`."""
        part = self._words[start : start + len(rows)]
        part.copy_(rows.contiguous().view(len(rows), self._length).view(torch.uint8).view(part.dtype).view(part.shape))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return copies of the rows of `index`, int64 `(B,)` on the device: `(B, *shape)`."""
        words = self._words.index_select(0, index)
        return words.view(self._dtype).view(len(index), *self._shape)


class DeviceSource(BatchSource):
    """Gather batches on the device, which holds all of the split."""

    # The device gathers a batch in microseconds, on the stream that uses it.
    in_background = False

    def __init__(self, dataset: dataset_h5, device: torch.device, threads: int) -> None:
        """Read all of it, in blocks, by way of pinned memory. Whether it fits has been looked at before.

        Args:
            dataset: rows of one shape, with targets of one shape, and no transform for each sample.
            device: where to.
            threads: how many copy or decode at once.
        """
        self._device = device
        self._with_index = dataset.return_index
        self._images = is_image_shape(dataset.reader.row_shape)
        self._x: DeviceTable | None = None
        self._y: DeviceTable | None = None
        step = max(1, _BLOCK_BYTES // max(1, dataset.reader.row_bytes))
        edges = [*range(0, len(dataset), step), len(dataset)]
        blocks = [np.arange(start, stop) for start, stop in itertools.pairwise(edges)]
        pool = BufferPool(2, pinned_block if device.type == "cuda" else None)
        stager = make_stager(device)
        source = host_batches(dataset, blocks, workers=threads, buffers=pool)
        with closing(prefetch_staged(source, stager, 1, "colabstage-device")) as staged:
            for start, block in zip(edges, staged, strict=False):
                self._fill(len(dataset), start, *stager.hand_out(block))
                del block
        if device.type == "cuda":
            # Batches may be gathered on any stream from now on.
            torch.cuda.synchronize(device)

    def _fill(self, count: int, start: int, x: torch.Tensor, y: torch.Tensor) -> None:
        x = x.permute(0, 2, 3, 1) if self._images else x
        # Their shapes are those of the first block: transposed images, widened labels.
        if self._x is None or self._y is None:
            self._x = DeviceTable(count, x.shape[1:], x.dtype, self._device)
            self._y = DeviceTable(count, y.shape[1:], y.dtype, self._device)
        self._x.fill(start, x)
        self._y.fill(start, y)

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        """Gather each batch when it is taken, on the stream that is current at that moment."""
        if not batches or self._x is None or self._y is None:
            return
        # One copy of all numbers for the epoch, not one for each batch.
        order = torch.from_numpy(np.concatenate(batches)).to(self._device)
        start = 0
        for rows in batches:
            # The consumer may run on another stream than the one that made it.
            if order.is_cuda:
                order.record_stream(torch.cuda.current_stream(self._device))
            index = order[start : start + len(rows)]
            start += len(rows)
            x, y = self._x.take(index), self._y.take(index)
            x = x.permute(0, 3, 1, 2) if self._images else x
            # Copied, because a batch is the caller's to keep and to change.
            yield (x, y, index.clone()) if self._with_index else (x, y)
            del x, y


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
            return self._samples(range(*index.indices(len(self))))
        return self._samples([index])[0]

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
        """Apply the dataset's transforms to one row, unless its batch is no longer wanted."""
        self._wanted.check()
        return super().sample(x, y)


def _as_views(rows: Any) -> Any:
    """Return rows of variable length as views of one tensor: each tensor on its way between processes keeps a file
    open."""
    if not isinstance(rows, list) or not all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows):
        return rows
    return list(torch.split(torch.cat(rows), [len(row) for row in rows]))


def as_it_is(batch: Any) -> Any:
    """Return the batch unchanged, because a `BatchDataset` has collated it."""
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


class WorkerSource(BatchSource):
    """Make batches in the processes of one stock `DataLoader`, which are kept from epoch to epoch."""

    # They serve one iteration at a time, as those of a stock `DataLoader`.
    several = False

    def __init__(self, view: BatchDataset, plan: LoaderPlan, seed: int) -> None:
        self._view = view
        self._plan = plan
        self._seed = seed
        # The batches of the epoch that runs; the one `DataLoader` goes through them again in each.
        self._planned: list[SeededRows] = []
        # Its own, so that starting an epoch draws nothing from the rng that the training uses.
        self._rng = torch.Generator().manual_seed(seed)
        self._loader: DataLoader[Any] | None = None
        self._epoch: Any = None
        self._inherited: list[object] = []
        self._begin_turns()

    def another(self) -> WorkerSource:
        return WorkerSource(self._view, self._plan, self._seed)

    def _begin_turns(self) -> None:
        self._pid = os.getpid()
        self._turns = 0
        self._turn = torch.zeros((), dtype=torch.int64)
        self._turn.share_memory_()  # type: ignore[no-untyped-call]
        self._view = BatchDataset.over(self._view, self._view._ragged)
        self._view._turn = self._turn

    def _leave_parents(self) -> None:
        """Have none of the processes of a process that this one was forked from: they are its own."""
        if self._pid == os.getpid():
            return
        # Kept, because a DataLoader that is dropped ends its processes.
        self._inherited += [self._epoch, self._loader]
        self._epoch = self._loader = None
        self._begin_turns()

    def start(
        self, batches: Sequence[NDArray[np.intp]], rows_before: int, epoch: int, cancellation: Cancellation
    ) -> Generator[tuple[Any, ...] | Heartbeat]:
        """Start an epoch, the processes too if none run; from the thread that may fork. Where `cancellation` is used,
        they stop at the row that each is at."""
        self._leave_parents()
        self._turns += 1
        turn, running = self._turns, self._turn
        running.fill_(turn)

        def end_turn() -> None:
            # The next one may have begun already.
            if running.item() == turn:
                running.zero_()

        cancellation.follow(end_turn)
        # A DataLoader would wait for those in every epoch that follows.
        if self._lost():
            self.close()
        # Counted from the epoch's end, so that a resumed one has the same numbers; the row tells ranks apart.
        self._planned[:] = [
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
        return (batch for batch in self._epoch)

    def explain(self, error: BaseException) -> BaseException:
        lost = self._lost() if isinstance(error, RuntimeError) else []
        return WorkersLostError(why_lost(lost, self._plan.workers.value)) if lost else error

    def _lost(self) -> list[int]:
        """Return the exit codes of processes that have ended, of those that are kept from epoch to epoch; less than 0
        for those that a signal ended."""
        codes = [process.exitcode for process in getattr(self._epoch, "_workers", ())]
        return [code for code in codes if code is not None]

    def close(self) -> None:
        """End the processes; the next epoch starts others."""
        self._leave_parents()
        # A DataLoader ends its processes when nothing refers to them any more; the traceback of an error may for long.
        epoch, self._epoch, self._loader = self._epoch, None, None
        if callable(end := getattr(epoch, "_shutdown_workers", None)):
            end()


def why_lost(codes: list[int], workers: int) -> str:
    """Say of processes that have ended with these exit codes, in the middle of an epoch, why and what to do."""
    fewer = f"num_workers={workers // 2}" if workers > 1 else "a smaller batch_size"
    # Of several, what a signal ended says most.
    code = min(codes) if min(codes) < 0 else max(codes)
    names = {-number: number.name for number in signal.Signals}
    if code == -getattr(signal, "SIGKILL", 9):
        why = "the system killed it, as it does if memory runs out"
        remedy = f'Write {fewer} or prefetch_factor=1, which take less memory, or strategy="direct" for no processes'
    elif code == -getattr(signal, "SIGBUS", 7):
        why = "there was no room in shared memory (/dev/shm), by which batches are handed over"
        remedy = f'Write {fewer} or strategy="direct", which needs none; for a container give docker run --shm-size=8g'
    elif code < 0 and code != -signal.SIGINT:
        why = f"it crashed ({names.get(code, code)}) in a library that reads or transforms samples"
        remedy = 'Write strategy="direct" and run with python -X faulthandler, which shows the line'
    elif code > 0:
        why = f"its code called for the end of the process (exit code {code}), or its memory ran out"
        remedy = f'Look for sys.exit or os._exit in what transforms call; or write {fewer} or strategy="direct"'
    else:
        why = "it was interrupted, as by Ctrl-C"
        remedy = "Run the loop again"
    return (
        f"{format_count(len(codes), 'worker processes')} of {workers} ended in the middle of an epoch: {why}. "
        f"{remedy}. The next iteration starts new ones."
    )


def make_source(
    dataset: dataset_h5,
    plan: LoaderPlan,
    device: torch.device,
    *,
    ragged: Ragged,
    seed: int,
    crop: FirstCrop | None,
) -> tuple[BatchSource, BatchDataset]:
    """Make what a plan's strategy reads from, read into memory or onto the device now where it says so; and a view of
    the same rows for frameworks. `crop`: what the plan has cut out of images while they are decoded."""
    if plan.strategy == "memory":
        # Now, so that an error comes where the loader is made, not in the first batch. And a copy: the caller's dataset
        # continues to read from the file.
        dataset = copy.copy(dataset)
        dataset.reader = dataset.reader.into_memory()
    view = BatchDataset.over(dataset, ragged)
    if plan.strategy == "device":
        return DeviceSource(dataset, device, plan.workers.value), view
    # Whoever has processes reads in those alone.
    if plan.strategy == "workers":
        return WorkerSource(view, plan, seed), view
    return FileSource(dataset, plan, ragged, device, seed=seed, crop=crop), view


class EpochSampler(Sampler[int]):
    """Give a whole epoch's rows, all ranks' together: for frameworks that take a loader apart and make one of their
    own.

    Accelerate, for example, shares them out among ranks by itself.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.epoch = 0
        # What `set_epoch` was given last, until the loader has taken note of it.
        self.asked: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`. Where that is the next one anyway, its place in it stays."""
        self.epoch = self.asked = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.rows(self.epoch, Shard()).tolist())

    def __len__(self) -> int:
        return self._order.count


class RankSampler(EpochSampler, DistributedSampler[int]):
    """An `EpochSampler` for a loader that divides rows among ranks: frameworks leave a `DistributedSampler` alone."""

    def __init__(self, order: Order, shard: Shard) -> None:
        super().__init__(order)
        self.rank, self.num_replicas = shard.rank, shard.world_size
