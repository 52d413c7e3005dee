"""Where a loader's batches come from: one class for each strategy, all used alike."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from colabstage.load.batching.ahead import Tick
from colabstage.load.batching.batches import batch_of, host_batches
from colabstage.load.batching.buffers import BufferPool
from colabstage.load.batching.cropped import CropSource
from colabstage.load.batching.stock import BatchView, Workers
from colabstage.load.batching.window import window_batches
from colabstage.load.choosing.together import batches_together
from colabstage.load.device.device_batches import DeviceSplit
from colabstage.load.device.staging import pinned_block

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.load.batching.batches import Ragged
    from colabstage.load.choosing.choices import LoaderPlan
    from colabstage.load.cropping import Crops
    from colabstage.load.dataset import dataset_h5


class BatchSource(Protocol):
    """Makes the batches of an epoch, `(x, y)` or with `return_index` `(x, y, index)`."""

    in_background: bool
    """Whether batches are made in host memory, by a thread ahead of the consumer, and moved from there."""

    @property
    def collate(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
        """What makes batches of what that thread has read, in the consumer's thread, because it calls the dataset's
        transforms; `None` where batches come as they are."""

    def start(self, batches: list[NDArray[np.intp]], rows_before: int, epoch: int) -> Generator[tuple[Any, ...] | Tick]:
        """Begin, in the consumer's thread, with the batches of these rows; `rows_before` of the epoch were before."""

    def close(self) -> None:
        """End what lives longer than an epoch."""


class FileSource:
    """Batches straight out of the file, or out of memory; in windows where `window_rows` says so."""

    in_background = True

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

    def start(self, batches: list[NDArray[np.intp]], rows_before: int, epoch: int) -> Generator[tuple[Any, ...] | Tick]:
        workers, window_rows = self._plan.workers.value, self._plan.order.window_rows
        made: Generator[tuple[Any, ...] | Tick]
        if window_rows and self._plan.strategy == "direct":
            made = window_batches(
                self._dataset,
                batches,
                rows_before,
                window_rows,
                workers=workers,
                pool=self._pool,
                ragged=self._ragged,
            )
        else:
            made = host_batches(
                self._dataset,
                batches,
                workers=workers,
                pool=self._pool,
                targets=self._targets,
                ragged=self._ragged,
                together=self._together,
            )
        return _indexed(made, batches) if self._dataset.return_index else made

    def close(self) -> None:
        """Nothing lives longer."""


class DeviceSource:
    """Batches gathered on the device, which holds the whole split."""

    in_background = False
    collate = None

    def __init__(self, dataset: dataset_h5, plan: LoaderPlan, device: torch.device) -> None:
        self._split = DeviceSplit(dataset, device, plan.workers.value)
        self._with_index = dataset.return_index

    def start(self, batches: list[NDArray[np.intp]], rows_before: int, epoch: int) -> Generator[tuple[Any, ...] | Tick]:
        return self._split.batches(batches, with_index=self._with_index)

    def close(self) -> None:
        """The split stays with the loader."""


class WorkerSource:
    """Batches made by processes."""

    in_background = True
    collate = None

    def __init__(self, view: BatchView, plan: LoaderPlan, seed: int) -> None:
        self._workers = Workers(view, plan, seed)

    def start(self, batches: list[NDArray[np.intp]], rows_before: int, epoch: int) -> Generator[tuple[Any, ...] | Tick]:
        return self._workers.batches(batches, epoch)

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
) -> tuple[BatchSource, BatchView]:
    """What a plan's strategy reads from, read into memory or onto the device now where it says so; and a view of the
    same rows for frameworks. `crops`: what the plan has cut out of images while they are decoded."""
    source = in_memory(dataset) if plan.strategy == "memory" else dataset
    view = BatchView.over(source, ragged)
    if plan.strategy == "device":
        return DeviceSource(dataset, plan, device), view
    if plan.strategy == "workers":
        return WorkerSource(view, plan, seed), view
    if crops is not None:
        return CropSource(source, plan, ragged, device, crops), view
    return FileSource(source, plan, ragged, device), view


def _collated(dataset: dataset_h5, ragged: Ragged, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*batch_of(dataset, batch[0], batch[1], ragged), *batch[2:])


def in_memory(dataset: dataset_h5) -> dataset_h5:
    """The same dataset over memory. A copy: the caller's goes on reading from the file, and keeps none of it."""
    source = copy.copy(dataset)
    source.reader = dataset.reader.into_memory()
    return source


def _indexed(
    batches: Generator[tuple[Any, ...] | Tick], rows: Sequence[NDArray[np.intp]]
) -> Generator[tuple[Any, ...] | Tick]:
    places = iter(rows)

    def with_index(batch: tuple[Any, ...] | Tick) -> tuple[Any, ...] | Tick:
        return batch if isinstance(batch, Tick) else (*batch, torch.from_numpy(next(places).copy()))

    try:
        # Not a loop: its variable would keep a batch alive while the next one is made.
        yield from map(with_index, batches)
    finally:
        batches.close()
