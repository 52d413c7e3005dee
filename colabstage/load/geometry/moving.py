"""What targets do when their images move: masks are cut with them, boxes go to their new places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from colabstage.h5.schema import BOXES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Size = tuple[int, int]

_LENGTHS = "lengths"


class Movement(Protocol):
    """What happens to pixels that cannot be mixed, `(B, K, H, W)` of any dtype."""

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """The moved pixels, of the same dtype."""


@dataclass(frozen=True, slots=True)
class BoxMovement:
    """What happens to places in each image: `new = old * scale + shift`, `(B, 2)` each, x first.

    `size`: height and width that boxes are cut at; boxes with nothing inside are dropped. `None` where all stay inside.
    """

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]
    size: Size | None = None


def move_targets(y: Any, image_size: Size, movement: Movement, boxes: BoxMovement) -> Any:
    """Move the targets of a batch with its images.

    Masks are tensors `(B, H, W)`, `(B, K, H, W)` or `(B, H, W, K)` with the images' `image_size`. Boxes are a list of
    B dicts of tensors with `boxes`, or a dict of padded ones with `boxes` and `lengths`, as `make_loader` gives them;
    with a box goes its row of every other tensor. Tuples and other dicts are looked into; anything else stays.
    """
    if isinstance(y, torch.Tensor):
        return _move_mask(y, image_size, movement)
    if isinstance(y, dict):
        if {BOXES, _LENGTHS} <= y.keys():
            return _move_padded(y, boxes)
        return {name: move_targets(value, image_size, movement, boxes) for name, value in y.items()}
    if isinstance(y, list) and y and all(isinstance(part, dict) and BOXES in part for part in y):
        return _move_list(y, boxes)
    if isinstance(y, tuple | list):
        parts = [move_targets(part, image_size, movement, boxes) for part in y]
        return y._make(parts) if hasattr(y, "_make") else type(y)(parts)
    return y


def _move_mask(y: torch.Tensor, size: Size, movement: Movement) -> torch.Tensor:
    if y.dim() == 3 and y.shape[1:] == size:
        return movement.pixels(y[:, None])[:, 0]
    if y.dim() == 4 and y.shape[2:] == size:
        return movement.pixels(y)
    if y.dim() == 4 and y.shape[1:3] == size:
        return movement.pixels(y.movedim(3, 1)).movedim(1, 3)
    return y


def _moved(boxes: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """`boxes` `(…, 4)` at their new places; `scale` and `shift` `(…, 2)`."""
    first, second = boxes[..., :2] * scale + shift, boxes[..., 2:] * scale + shift
    # Where it is mirrored, the right edge has become the left one.
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1)


def _cut(boxes: torch.Tensor, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes cut at the edges, and which of them are left."""
    height, width = size
    cut = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))
    return cut, (cut[..., 2] > cut[..., 0]) & (cut[..., 3] > cut[..., 1])


def _factors(movement: BoxMovement, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift = (torch.from_numpy(part).to(like.device, like.dtype) for part in (movement.scale, movement.shift))
    return scale, shift


def _move_list(targets: list[dict[str, Any]], movement: BoxMovement) -> list[dict[str, Any]]:
    """All boxes of the batch at once: one wait for the device, not one for each image."""
    counts = [len(target[BOXES]) for target in targets]
    boxes = torch.cat([target[BOXES] for target in targets])
    scale, shift = (
        part.repeat_interleave(torch.tensor(counts, device=boxes.device), dim=0, output_size=sum(counts))
        for part in _factors(movement, boxes)
    )
    moved = _moved(boxes, scale, shift)
    if movement.size is None:
        return [{**target, BOXES: part} for target, part in zip(targets, torch.split(moved, counts), strict=True)]
    moved, kept = _cut(moved, movement.size)
    left = np.split(kept.cpu().numpy(), np.cumsum(counts)[:-1])
    return [
        _chosen({**target, BOXES: part}, np.flatnonzero(rows), len(rows))
        for target, part, rows in zip(targets, torch.split(moved, counts), left, strict=True)
    ]


def _chosen(target: dict[str, Any], rows: NDArray[np.intp], count: int) -> dict[str, Any]:
    """The rows of every tensor that has one for each box."""
    if len(rows) == count:
        return target
    which = torch.from_numpy(rows).to(target[BOXES].device)
    return {
        name: value[which] if isinstance(value, torch.Tensor) and value.dim() and len(value) == count else value
        for name, value in target.items()
    }


def _move_padded(target: dict[str, Any], movement: BoxMovement) -> dict[str, Any]:
    boxes, lengths = target[BOXES], target[_LENGTHS]
    scale, shift = (part[:, None] for part in _factors(movement, boxes))
    moved = _moved(boxes, scale, shift)
    kept = torch.arange(boxes.shape[1], device=boxes.device) < lengths.to(boxes.device)[:, None]
    if movement.size is not None:
        moved, inside = _cut(moved, movement.size)
        kept = kept & inside
    # Those that are left come first, in their order.
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    real = kept.gather(1, order)
    columns = {**target, BOXES: moved}
    del columns[_LENGTHS]
    return {name: _repacked(value, order, real) for name, value in columns.items()} | {
        _LENGTHS: kept.sum(dim=1).to(lengths)
    }


def _repacked(column: torch.Tensor, order: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """A padded column `(B, M, …)` in another order, and filled up again as `pad_targets` does."""
    extra = (1,) * (column.dim() - 2)
    taken = column.gather(1, order.view(*order.shape, *extra).expand_as(column))
    is_index = not column.is_floating_point() and column.dtype not in (torch.uint8, torch.bool)
    return taken.masked_fill(~real.view(*real.shape, *extra), -1 if is_index else 0)
