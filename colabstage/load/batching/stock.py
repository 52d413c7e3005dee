"""The parts that a stock `torch.utils.data.DataLoader` needs to read whole batches, and one with worker processes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from colabstage.load.batching.batches import batch_of
from colabstage.load.dataset import dataset_h5

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from colabstage.load.batching.batches import Ragged
    from colabstage.load.choosing.choices import LoaderPlan


class BatchView(dataset_h5):
    """A `dataset_h5` that gives a `DataLoader` whole batches instead of lists of samples.

    A `DataLoader` asks `__getitems__` for a batch and hands what it gets to `collate_fn`: so one read makes a batch,
    in any worker, also of loaders that frameworks build of these parts.
    """

    _ragged: Ragged = "list"

    @classmethod
    def over(cls, dataset: dataset_h5, ragged: Ragged) -> BatchView:
        """A view of the same rows; the dataset itself stays what it is."""
        view = cls.__new__(cls)
        view.__dict__.update(dataset.__dict__)
        view._ragged = ragged
        return view

    def __getitem__(self, index: int) -> Any:
        """One sample, as of the dataset."""
        return super().__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """A batch, as `make_loader` describes it, in host memory: `(x, y)`, or `(x, y, index)` with
        `return_index`."""
        if isinstance(indices, SeededRows) and self.per_sample:
            # In a process of a loader of ours: so draws do not depend on how many there are, or on what came before.
            _seed_all(indices.entropy)
        x, y = batch_of(self, *self.read_batch(indices), self._ragged)
        if get_worker_info() is not None:
            x, y = _joined(x), _joined(y)
        return (x, y, torch.as_tensor(indices)) if self.return_index else (x, y)


def _joined(rows: Any) -> Any:
    """Rows of any length as views of one tensor: each tensor on its way between processes keeps a file open."""
    if not isinstance(rows, list) or not all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows):
        return rows
    return list(torch.split(torch.cat(rows), [len(row) for row in rows]))


def as_it_is(batch: Any) -> Any:
    """Collate nothing: a `BatchView` has done it."""
    return batch


class SeededRows(list[int]):
    """Rows of a batch, and what the random numbers that are drawn for it follow from."""

    entropy: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: list[int], *entropy: int) -> SeededRows:
        """`entropy`: numbers of at least 0."""
        seeded = cls(rows)
        seeded.entropy = entropy
        return seeded


def _seed_all(entropy: tuple[int, ...]) -> None:
    """Seed the generators of Python, numpy and torch, which a transform may draw from."""
    words = np.random.SeedSequence(entropy).generate_state(3, np.uint32).tolist()
    random.seed(words[0])
    np.random.seed(words[1])  # noqa: NPY002 - what transforms draw from
    torch.default_generator.manual_seed(words[2])


class _Planned:
    """A batch sampler that is told its batches anew in each epoch."""

    def __init__(self) -> None:
        self.batches: list[SeededRows] = []

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Workers:
    """Worker processes that make batches: one stock `DataLoader`, kept from epoch to epoch."""

    def __init__(self, view: BatchView, plan: LoaderPlan, seed: int) -> None:
        self._view = view
        self._plan = plan
        self._seed = seed
        self._planned = _Planned()
        # Its own, so that starting an epoch draws nothing from the dice that the training uses.
        self._dice = torch.Generator().manual_seed(seed)
        self._loader: DataLoader[Any] | None = None
        self._epoch: Any = None

    def batches(self, batches: list[NDArray[np.intp]], epoch: int) -> Generator[Any]:
        """Start an epoch, the processes too if none run; from the thread that may fork."""
        # Counted from the epoch's end, so that a resumed one has the same numbers; the row tells ranks apart.
        self._planned.batches = [
            SeededRows.of(rows.tolist(), self._seed, epoch, number, int(rows[0]))
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
                generator=self._dice,
            )
        self._epoch = iter(self._loader)
        return _each(self._epoch)

    def close(self) -> None:
        """End the processes; the next epoch starts others."""
        # A DataLoader ends its processes when nothing refers to them any more; the traceback of an error may for long.
        epoch, self._epoch, self._loader = self._epoch, None, None
        if callable(end := getattr(epoch, "_shutdown_workers", None)):
            end()


def _each(batches: Any) -> Generator[Any]:
    yield from batches
