"""A whole split on a device: read there once, and every batch of every epoch is gathered there.

Rows are kept and gathered as words of up to eight bytes: a gather of single bytes would use a fraction of a GPU's
memory bandwidth.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from colabstage.load.batching.batches import host_batches, is_image
from colabstage.load.batching.buffers import BufferPool
from colabstage.load.device.staging import make_stager, pinned_block, staged_ahead

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from colabstage.load.dataset import dataset_h5

# Large enough for the full rate of a disk and of PCIe, small enough to stay pinned twice.
_BLOCK_BYTES = 16 * 1024 * 1024
_WORDS = (torch.int64, torch.int32, torch.int16)


class DeviceTable:
    """N rows of one shape and dtype on a device."""

    def __init__(self, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """`shape`: of one row."""
        self._shape = tuple(shape)
        self._dtype = dtype
        self._length = int(np.prod(self._shape, dtype=np.int64))
        row_bytes = dtype.itemsize * self._length
        word = next((word for word in _WORDS if row_bytes % word.itemsize == 0), torch.uint8)
        self._words = torch.empty((count, row_bytes // word.itemsize), dtype=word, device=device)

    def fill(self, start: int, rows: torch.Tensor) -> None:
        """Put `rows`, `(n, *shape)` on any device, at place `start`."""
        part = self._words[start : start + len(rows)]
        part.copy_(rows.contiguous().view(len(rows), self._length).view(torch.uint8).view(part.dtype).view(part.shape))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Copies of the rows of `index`, int64 `(B,)` on the device: `(B, *shape)`."""
        words = self._words.index_select(0, index)
        return words.view(torch.uint8).view(self._dtype).view(len(index), *self._shape)


class DeviceSplit:
    """A split's inputs and targets on a device."""

    def __init__(self, dataset: dataset_h5, device: torch.device, threads: int) -> None:
        """Read all of it, in blocks, by way of pinned memory. Whether it fits has been looked at before.

        Args:
            dataset: rows of one shape, with targets of one shape, and no transform for each sample.
            device: where to.
            threads: how many copy or decode at once.
        """
        self._device = device
        self._images = is_image(dataset.reader.row_shape)
        self._x: DeviceTable | None = None
        self._y: DeviceTable | None = None
        step = max(1, _BLOCK_BYTES // max(1, dataset.reader.row_bytes))
        edges = [*range(0, len(dataset), step), len(dataset)]
        blocks = [np.arange(start, stop) for start, stop in itertools.pairwise(edges)]
        pool = BufferPool(2, pinned_block if device.type == "cuda" else None)
        stager = make_stager(device)
        source = host_batches(dataset, blocks, workers=threads, pool=pool)
        with closing(staged_ahead(source, stager, 1, "colabstage-device")) as staged:
            for start, block in zip(edges, staged, strict=False):
                self._fill(len(dataset), start, *stager.hand_out(block))
                del block
        if device.type == "cuda":
            # Batches may be gathered on any stream from now on.
            torch.cuda.synchronize(device)

    def _fill(self, count: int, start: int, x: torch.Tensor, y: torch.Tensor) -> None:
        x = x.permute(0, 2, 3, 1) if self._images else x
        if self._x is None or self._y is None:
            self._x = DeviceTable(count, x.shape[1:], x.dtype, self._device)
            self._y = DeviceTable(count, y.shape[1:], y.dtype, self._device)
        self._x.fill(start, x)
        self._y.fill(start, y)

    def batches(self, batches: Sequence[NDArray[np.intp]], *, with_index: bool) -> Generator[tuple[Any, ...]]:
        """Gather batch after batch, on the stream that is current then.

        Args:
            batches: rows of each.
            with_index: whether each is `(x, y, index)` instead of `(x, y)`.
        """
        if not batches or self._x is None or self._y is None:
            return
        order = torch.from_numpy(np.concatenate(batches)).to(self._device)
        start = 0
        for rows in batches:
            if order.is_cuda:
                order.record_stream(torch.cuda.current_stream(self._device))
            index = order[start : start + len(rows)]
            start += len(rows)
            x, y = self._x.take(index), self._y.take(index)
            x = x.permute(0, 3, 1, 2) if self._images else x
            # Copied, because a batch is the caller's to keep and to change.
            yield (x, y, index.clone()) if with_index else (x, y)
            del x, y
