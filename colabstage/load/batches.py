"""Batches as torch sees them: host tensors over lent memory, their axes, and how bytes become numbers in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from colabstage.load.ahead import TICK, Tick
from colabstage.load.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from numpy.typing import NDArray

    from colabstage.load.buffers import BufferPool
    from colabstage.load.dataset import dataset_h5

# Whole range of the integers that images come in.
_WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}
_MOST_CHANNELS = 4


def host_batches(
    dataset: dataset_h5, batches: Iterable[NDArray[np.intp]], *, workers: int, pool: BufferPool
) -> Generator[tuple[Any, Any] | Tick]:
    """Read batch after batch, once the file is in memory if it is to be.

    Args:
        dataset: where from.
        batches: rows of each batch, intp `(B,)`.
        workers: threads that copy or decode at once.
        pool: lends the memory of inputs of one shape.

    Yields:
        `(x, y)`, as `make_loader` describes them, in host memory and of the stored dtype; ticks before the first.
    """
    for _ in dataset.reader.warm_up():
        yield TICK
    with Crew(workers) as crew:
        for rows in batches:
            # Nothing here may keep a name on a batch: it would occupy a buffer while the next one is made.
            yield _collated(dataset, rows) if _per_sample(dataset) else _gathered(dataset, rows, crew, pool)


def _per_sample(dataset: dataset_h5) -> bool:
    return dataset.transform is not None or dataset.target_transform is not None


def _collated(dataset: dataset_h5, rows: NDArray[np.intp]) -> tuple[Any, Any]:
    samples = dataset.__getitems__(rows.tolist())
    if dataset.return_index:
        samples = [sample for sample, _ in samples]
    x, y = default_collate(samples)
    return x, y


def _gathered(
    dataset: dataset_h5, rows: NDArray[np.intp], crew: Crew, pool: BufferPool
) -> tuple[torch.Tensor | list[torch.Tensor], torch.Tensor]:
    reader = dataset.reader
    shape = reader.row_shape
    out = None if shape is None else pool.lend((len(rows), *shape), reader.row_dtype)
    x = reader.read_x(rows, out, crew=crew)
    y = target_tensor(reader.read_y(rows))
    if isinstance(x, list):
        return [torch.from_numpy(image).permute(2, 0, 1) for image in x], y
    return input_tensor(x), y


def is_image(shape: tuple[int, ...] | None) -> bool:
    """Whether rows of this shape are images `(H, W, C)`, to be handed on as `(C, H, W)`: three axes, the last one at
    most 4 long. Rows of many shapes are images always."""
    return shape is None or (len(shape) == 3 and 1 <= shape[-1] <= _MOST_CHANNELS)


def input_tensor(x: NDArray[Any]) -> torch.Tensor:
    """Inputs as a tensor over the same memory; images `(B, H, W, C)` as a `(B, C, H, W)` view (`channels_last`)."""
    tensor = torch.from_numpy(x)
    return tensor.permute(0, 3, 1, 2) if is_image(x.shape[1:]) else tensor


def target_tensor(y: NDArray[Any]) -> torch.Tensor:
    """Targets as a tensor: int64 where each is one integer, as losses expect them; as stored otherwise."""
    return torch.from_numpy(y.astype(np.int64) if y.ndim == 1 and y.dtype.kind in "iu" else y)


def scale_to(x: Any, dtype: torch.dtype) -> Any:
    """Convert tensors, also in lists, to a floating-point dtype on the device they are on; uint8 and uint16 become
    [0, 1], other values stay."""
    if isinstance(x, list):
        return [scale_to(part, dtype) for part in x]
    white = _WHITE.get(x.dtype)
    if white is None:
        return x.to(dtype)
    # 65535 is beyond float16, so its range is divided first.
    wide = torch.float32 if x.dtype == torch.uint16 else dtype
    return x.to(wide).div_(white).to(dtype)


def move_to(x: Any, device: torch.device) -> Any:
    """Copy tensors, also in lists, to a device; those that are there already stay."""
    return [part.to(device) for part in x] if isinstance(x, list) else x.to(device)
