"""Cutting, mirroring and resizing the images of a batch, each in its own way.

On a GPU one kernel does a step for the whole batch. On the processor what is fastest is to copy image by image
(64 of 256x256x3 uint8 cut to 224: 11 ms so, 128 ms by one indexed gather), so there the same functions do that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from colabstage.load.geometry.resizing import resize_into

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Size = tuple[int, int]


def mirror(images: torch.Tensor, chosen: NDArray[np.bool_], axis: int) -> torch.Tensor:
    """Mirror some of the images.

    Args:
        images: `(B, C, H, W)`.
        chosen: `(B,)`, which ones.
        axis: -1 swaps left and right, -2 top and bottom.

    Returns:
        A new tensor; `images` itself when none is chosen.
    """
    if not chosen.any():
        return images
    if images.device.type != "cpu":
        return mirror_by_mask(images, chosen, axis)
    result = images.flip(axis)
    source, target = _as_array(images), _as_array(result)
    for row in np.flatnonzero(~chosen).tolist():
        target[row] = source[row]
    return result


def mirror_by_mask(images: torch.Tensor, chosen: NDArray[np.bool_], axis: int) -> torch.Tensor:
    """`mirror` in one step for all."""
    return torch.where(_on(chosen, images.device)[:, None, None, None], images.flip(axis), images)


def cut(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    """Cut a window out of each image; what of it lies outside is filled.

    Args:
        images: `(B, C, H, W)`.
        corners: `(B, 2)`, top and left of the windows; negative ones begin outside.
        size: height and width of the windows.
        fill: value of what is outside.
    """
    by_image = images.device.type == "cpu"
    return _cut_each(images, corners, size, fill) if by_image else cut_by_windows(images, corners, size, fill)


def cut_by_windows(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    """`cut` as one choice among all windows that there are."""
    batch, _, height, width = images.shape
    least, most = corners.min(axis=0, initial=0), (corners + size).max(axis=0, initial=0)
    before, after = np.maximum(-least, 0), np.maximum(most - (height, width), 0)
    if before.any() or after.any():
        margins = (int(before[1]), int(after[1]), int(before[0]), int(after[0]))
        images = functional.pad(images, margins, value=fill)
    top, left = _on(corners + before, images.device).T
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    return windows[torch.arange(batch, device=images.device), :, top, left]


def _cut_each(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    shape = (*images.shape[:2], *size)
    result = torch.empty(shape, dtype=images.dtype, memory_format=_memory_format(images))
    limits = np.array(images.shape[2:])
    starts, stops = np.clip(corners, 0, limits), np.clip(corners + size, 0, limits)
    if (stops - starts != size).any():
        result.fill_(fill)
    source, target = _as_array(images), _as_array(result)
    for row, ((top, left), (bottom, right), (down, across)) in enumerate(
        zip(starts.tolist(), stops.tolist(), (starts - corners).tolist(), strict=True)
    ):
        height, width = bottom - top, right - left
        target[row, down : down + height, across : across + width] = source[row, top:bottom, left:right]
    return result


def resize_crops(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Resize a part of each image to one size, with the triangle filter that torch calls antialiased bilinear.

    Args:
        images: `(B, C, H, W)`, integers or floats.
        crops: `(B, 4)`: top, left, height and width of the parts.
        size: height and width of the result.

    Returns:
        `(B, C, *size)` of the same dtype, in `channels_last` memory; integers are rounded.
    """
    if images.device.type == "cpu":
        return _resize_each(images, crops, size)
    return resize_by_weights(images, crops, size)


def resize_listed_crops(images: list[torch.Tensor], crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """`resize_crops` of images that have their own sizes, `(C, H, W)` each; one batch comes of them."""
    parts = [resize_crops(image[None], crops[row : row + 1], size) for row, image in enumerate(images)]
    return torch.cat(parts).contiguous(memory_format=torch.channels_last)


def pick_listed_crops(masks: list[torch.Tensor], crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """`pick_crops` of masks that have their own sizes, `(H, W)` each: `(B, *size)`."""
    return torch.cat([pick_crops(mask[None, None], crops[row : row + 1], size)[:, 0] for row, mask in enumerate(masks)])


def _resize_each(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    if images.dtype == torch.uint8:
        return _resize_bytes(images, crops, size)
    # torch resizes no other integers, and not every short float.
    exact = images if images.dtype in (torch.float32, torch.float64) else images.float()
    result = torch.empty((*exact.shape[:2], *size), dtype=exact.dtype, memory_format=torch.channels_last)
    for row, (top, left, height, width) in enumerate(crops.tolist()):
        part = exact[row : row + 1, :, top : top + height, left : left + width]
        result[row : row + 1] = functional.interpolate(part, size, mode="bilinear", antialias=True)
    return _to_dtype(result, images.dtype)


def _resize_bytes(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    result = torch.empty((*images.shape[:2], *size), dtype=torch.uint8, memory_format=torch.channels_last)
    source, target = _as_array(images), _as_array(result)
    for row, (top, left, height, width) in enumerate(crops.tolist()):
        resize_into(source[row, top : top + height, left : left + width], target[row])
    return result


def resize_by_weights(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """`resize_crops` as two products with a matrix of weights for each image, which is what a GPU is good at."""
    # Bytes are exact in half precision, and what is lost of sums of them is less than rounding loses.
    is_short = images.dtype == torch.uint8 and images.device.type == "cuda"
    kind = torch.float16 if is_short else torch.float64 if images.dtype == torch.float64 else torch.float32
    places = _on(crops, images.device).to(torch.float32)
    down = _weights(places[:, 0], places[:, 2], images.shape[2], size[0]).to(kind)
    across = _weights(places[:, 1], places[:, 3], images.shape[3], size[1]).to(kind)
    result = down[:, None] @ (images.to(kind) @ across[:, None].mT)
    return _to_dtype(result, images.dtype).contiguous(memory_format=torch.channels_last)


def _weights(start: torch.Tensor, length: torch.Tensor, count: int, wanted: int) -> torch.Tensor:
    """How much each of `count` pixels gives to each of the `wanted` ones: `(B, wanted, count)`, 1 in sum."""
    step = (length / wanted)[:, None, None]
    centre = step * (torch.arange(wanted, device=start.device)[:, None] + 0.5)
    pixel = torch.arange(count, device=start.device) - start[:, None, None]
    weight = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp_(min=0)
    weight = weight.where((pixel >= 0) & (pixel < length[:, None, None]), 0)
    return weight / weight.sum(dim=2, keepdim=True)


def pick_crops(masks: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Resize a part of each mask to one size by taking the nearest pixel: `resize_crops` for what cannot be mixed.

    The pixel whose centre is nearest, as torch's `nearest-exact`: its `nearest` is half a pixel off.
    """
    batch = torch.arange(len(masks), device=masks.device)[:, None, None]
    rows, columns = (_on(_nearest(crops[:, axis], crops[:, axis + 2], size[axis]), masks.device) for axis in (0, 1))
    # The axis of channels, between indexed ones, comes last.
    return masks[batch, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)


def _nearest(start: NDArray[np.int64], length: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    # In whole numbers: the centre of pixel i of `wanted` lies at (2 i + 1) / 2 of a step.
    steps = 2 * np.arange(wanted) + 1
    return start[:, None] + steps * length[:, None] // (2 * wanted)


def _on(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def _to_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if values.dtype == dtype:
        return values
    if dtype.is_floating_point:
        return values.to(dtype)
    limits = torch.iinfo(dtype)
    return values.round().clamp(limits.min, limits.max).to(dtype)


def _memory_format(images: torch.Tensor) -> torch.memory_format:
    is_last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


def _as_array(images: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array `(B, H, W, C)`, for copying; numpy has no bfloat16."""
    plain = images.view(torch.int16) if images.dtype == torch.bfloat16 else images
    return plain.movedim(1, 3).numpy()
