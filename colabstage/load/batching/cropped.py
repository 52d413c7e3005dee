"""Batches of random crops that are cut while their images are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from colabstage.load.batching.ahead import TICK, Tick
from colabstage.load.batching.batches import input_tensor, target_tensors
from colabstage.load.batching.buffers import BufferPool
from colabstage.load.batching.window import window_batches
from colabstage.load.device.staging import pinned_block
from colabstage.load.reading.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.load.batching.batches import Ragged
    from colabstage.load.choosing.choices import LoaderPlan
    from colabstage.load.cropping import CroppedInputs, Crops
    from colabstage.load.dataset import dataset_h5


class CropSource:
    """Crops straight out of the file, or out of memory, with their targets; in windows where the plan says so."""

    in_background = True
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

    def start(self, batches: list[NDArray[np.intp]], rows_before: int, epoch: int) -> Generator[tuple[Any, ...] | Tick]:
        """As `BatchSource.start`."""
        inputs = self._crops.of_epoch(self._dataset, epoch)
        return _finished(self._read(inputs, batches, rows_before), inputs, batches)

    def close(self) -> None:
        """Nothing lives longer."""

    def _read(
        self, inputs: CroppedInputs, batches: list[NDArray[np.intp]], rows_before: int
    ) -> Generator[tuple[Any, Any] | Tick]:
        workers, window_rows = self._plan.workers.value, self._plan.order.window_rows
        if not window_rows or self._plan.strategy != "direct":
            return _one_by_one(inputs, batches, workers, self._pool, self._ragged)
        return window_batches(
            self._dataset,
            batches,
            rows_before,
            window_rows,
            workers=workers,
            pool=self._pool,
            ragged=self._ragged,
            inputs=inputs,
        )


def _one_by_one(
    inputs: CroppedInputs, batches: list[NDArray[np.intp]], workers: int, pool: BufferPool, ragged: Ragged
) -> Generator[tuple[Any, Any] | Tick]:
    reader = inputs.dataset.reader
    for _ in reader.warm_up():
        yield TICK
    with Crew(workers) as crew:
        for rows in batches:
            # Nothing here may keep a name on a batch: it would occupy a buffer while the next one is made.
            yield (
                input_tensor(inputs.read(rows, pool.lend((len(rows), *inputs.shape), inputs.dtype), crew)),
                target_tensors(reader.read_y(rows, crew=crew), ragged),
            )


def _finished(
    batches: Generator[tuple[Any, Any] | Tick], inputs: CroppedInputs, rows: list[NDArray[np.intp]]
) -> Generator[tuple[Any, ...] | Tick]:
    """The batches with their targets moved, and their rows where they are asked for."""
    places = iter(rows)

    def finish(batch: tuple[Any, Any] | Tick) -> tuple[Any, ...] | Tick:
        if isinstance(batch, Tick):
            return batch
        own = next(places)
        moved = batch[0], inputs.move(batch[1], own)
        return (*moved, torch.from_numpy(own.copy())) if inputs.dataset.return_index else moved

    try:
        # Not a loop: its variable would keep a batch alive while the next one is made.
        yield from map(finish, batches)
    finally:
        batches.close()
