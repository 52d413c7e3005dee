"""What frameworks find in a loader that they take apart: a dataset that reads whole batches, and a sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DistributedSampler, Sampler, get_worker_info

from colabstage.io.pipeline import SOLO
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from colabstage.load.batches import Form
    from colabstage.load.epoch import Order


class BatchDataset(dataset_h5):
    """Give a `DataLoader` whole batches instead of lists of samples.

    A `DataLoader` asks `__getitems__` for a batch and hands what it gets to `collate_fn`: so one read makes a batch,
    in any worker, also of loaders that frameworks build of these parts.
    """

    _form: Form

    @classmethod
    def over(cls, dataset: dataset_h5, form: Form) -> BatchDataset:
        """Return a view of the same rows; the dataset itself stays what it is."""
        view = cls.__new__(cls)
        # Not by the constructor, which would look at the file again.
        view.__dict__.update(dataset.__dict__)
        view._form = form
        return view

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sample, as of the dataset; of a slice the list of its samples."""
        if isinstance(index, slice):
            return self._samples(range(*index.indices(len(self))))
        return self._samples([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Read a batch, as `make_loader` describes it, in host memory: `(x, y)`, or `(x, y, index)` with
        `return_index`."""
        x, y = self._form.batch(self.reader.read_x(indices, pool=SOLO), self.reader.read_y(indices, pool=SOLO))
        # In the caller's own process nothing is sent.
        if get_worker_info() is not None:
            x, y = _as_views(x), _as_views(y)
        return (x, y, torch.as_tensor(indices)) if self.return_index else (x, y)


def _as_views(rows: Any) -> Any:
    """Return rows of variable length as views of one tensor: each tensor on its way between processes keeps a file
    open."""
    if not isinstance(rows, list) or not all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows):
        return rows
    return list(torch.split(torch.cat(rows), [len(row) for row in rows]))


class EpochSampler(Sampler[int]):
    """Give a whole epoch's rows, all ranks' together: for frameworks that take a loader apart and share rows out among
    ranks by themselves, as Accelerate does."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0
        # The argument of the last `set_epoch` that the loader has not followed yet.
        self.asked: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`. If that is the next one anyway, its position is not lost."""
        self.epoch = self.asked = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.rows(self.epoch, Shard()).tolist())

    def __len__(self) -> int:
        return self.order.count


class RankSampler(EpochSampler, DistributedSampler[int]):
    """An `EpochSampler` for a loader that divides rows among ranks: frameworks leave a `DistributedSampler` alone."""

    def __init__(self, order: Order, shard: Shard) -> None:
        super().__init__(order)
        self.rank, self.num_replicas = shard.rank, shard.world_size
