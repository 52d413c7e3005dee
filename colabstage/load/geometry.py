"""Move pixels, masks and boxes when the images of a batch are cut, mirrored and resized, each in its own way.

On a GPU one kernel does a step for the whole batch. On the processor what is fastest is to copy image by image
(64 of 256x256x3 uint8 cut to 224: 11 ms so, 128 ms by one indexed gather), so there the same functions do that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES
from colabstage.load.batch import LENGTHS
from colabstage.load.reading.encoded import resize_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Size = tuple[int, int]
    # Moves pixels that cannot be mixed, `(B, K, H, W)` of any dtype.
    Movement = Callable[[torch.Tensor], torch.Tensor]

_TRIES = 10
# Numbers that `resized_crops` needs for each image: area and ratio of each try, then the place.
CROP_DRAWS = 2 * _TRIES + 2

AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)


def check_crop_ranges(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    """Refuse ranges that no crop can be drawn from."""
    if not 0 < scale[0] <= scale[1] <= 1:
        msg = f"scale={scale!r} cannot work; expected (least, most) part of the image's area, above 0 and up to 1."
        raise OptionError(msg)
    if not 0 < ratio[0] <= ratio[1] < math.inf:
        msg = f"ratio={ratio!r} cannot work; expected (least, most) width by height, above 0."
        raise OptionError(msg)


def resized_crops(
    sizes: NDArray[np.int64],
    draws: NDArray[np.float64],
    *,
    scale: tuple[float, float] = AREAS,
    ratio: tuple[float, float] = RATIOS,
) -> NDArray[np.int64]:
    """Choose a crop of each image, distributed as torchvision's `RandomResizedCrop` chooses them.

    Ten times an area, evenly from `scale`, and a ratio of the sides, evenly in its logarithm from `ratio`, are drawn;
    the first pair that fits the image is taken, at a place drawn evenly. Where none fits, it is the middle of the
    image, with the ratio as near the image's as `ratio` allows.

    Args:
        sizes: `(B, 2)`, or `(2,)` for all: height and width of the images in pixels.
        draws: float64 `(B, CROP_DRAWS)` in [0, 1), such as `BatchPlace.draws` gives.
        scale: least and most part of the image's area.
        ratio: least and most width by height.

    Returns:
        int64 `(B, 4)`: top, left, height, width of the crops in pixels.
    """
    image = np.broadcast_to(np.asarray(sizes, np.int64), (len(draws), 2))
    height, width = image[:, :1], image[:, 1:]
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :_TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    # Evenly in the logarithm, so that 3:4 is as likely as 4:3.
    ratios = np.exp(low + (high - low) * draws[:, _TRIES : 2 * _TRIES])
    tries = np.rint(np.sqrt(np.stack([areas / ratios, areas * ratios], axis=2))).astype(np.int64)
    # All ten tries of all images at once: a loop in Python would take longer than decoding.
    fits = np.all((tries > 0) & (tries <= image[:, None]), axis=2)
    crop = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
    place = np.floor((image - crop + 1) * draws[:, 2 * _TRIES :]).astype(np.int64)
    # For all, and taken for few: choosing rows would cost more than computing them.
    middle = _middle_crops(image, ratio)
    found = np.any(fits, axis=1)[:, None]
    return np.where(found, np.concatenate([place, crop], axis=1), middle)


def _middle_crops(image: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    height, width = image.T
    own = width / height
    crop = np.stack(
        [
            np.where(own < ratio[0], np.rint(width / ratio[0]), height).astype(np.int64),
            np.where(own > ratio[1], np.rint(height * ratio[1]), width).astype(np.int64),
        ],
        axis=1,
    )
    # At least a pixel: torchvision's own fails on images a thousand times as wide as high.
    crop = np.clip(crop, 1, image)
    return np.concatenate([(image - crop) // 2, crop], axis=1)


@dataclass(frozen=True, slots=True)
class BoxMovement:
    """What happens to places in each image: `new = old * scale + shift`."""

    scale: NDArray[np.float64]
    """`(B, 2)`, x first."""
    shift: NDArray[np.float64]
    size: Size | None = None
    """Height and width that boxes are cut at; boxes with nothing inside are dropped. `None` where all stay inside."""


def move_targets(y: Any, image_size: Size, movement: Movement, boxes: BoxMovement) -> Any:
    """Move the targets of a batch with its images.

    Masks are tensors `(B, H, W)`, `(B, K, H, W)` or `(B, H, W, K)` with the images' `image_size`. Boxes are a list of
    B dicts of tensors with `boxes`, or a dict of padded ones with `boxes` and `lengths`, as `make_loader` gives them;
    with a box goes its row of every other tensor. Tuples and other dicts are looked into; anything else stays.
    """
    if isinstance(y, torch.Tensor):
        return _move_mask(y, image_size, movement)
    # Padded boxes are told by what they have, because collate functions make plain dicts.
    if isinstance(y, dict):
        if {BOXES, LENGTHS} <= y.keys():
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
        return movement(y[:, None])[:, 0]
    if y.dim() == 4 and y.shape[2:] == size:
        return movement(y)
    if y.dim() == 4 and y.shape[1:3] == size:
        return movement(y.movedim(3, 1)).movedim(1, 3)
    return y


def _moved(boxes: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return `boxes` `(…, 4)` at their new places; `scale` and `shift` `(…, 2)`."""
    first, second = boxes[..., :2] * scale + shift, boxes[..., 2:] * scale + shift
    # Where it is mirrored, the right edge has become the left one.
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1)


def _cut(boxes: torch.Tensor, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boxes cut at the edges, and which of them are left."""
    height, width = size
    cut = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))
    return cut, (cut[..., 2] > cut[..., 0]) & (cut[..., 3] > cut[..., 1])


def _scale_and_shift(movement: BoxMovement, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift = (torch.from_numpy(part).to(like.device, like.dtype) for part in (movement.scale, movement.shift))
    return scale, shift


def _move_list(targets: list[dict[str, Any]], movement: BoxMovement) -> list[dict[str, Any]]:
    """Move all boxes of the batch at once: one wait for the device, not one for each image."""
    counts = [len(target[BOXES]) for target in targets]
    boxes = torch.cat([target[BOXES] for target in targets])
    scale, shift = (
        part.repeat_interleave(torch.tensor(counts, device=boxes.device), dim=0, output_size=sum(counts))
        for part in _scale_and_shift(movement, boxes)
    )
    moved = _moved(boxes, scale, shift)
    if movement.size is None:
        return [{**target, BOXES: part} for target, part in zip(targets, torch.split(moved, counts), strict=True)]
    moved, kept = _cut(moved, movement.size)
    # The only wait for the device.
    left = np.split(kept.cpu().numpy(), np.cumsum(counts)[:-1])
    found = []
    for target, part, inside in zip(targets, torch.split(moved, counts), left, strict=True):
        columns = {**target, BOXES: part}
        if not inside.all():
            which = torch.from_numpy(np.flatnonzero(inside)).to(part.device)
            # Of every tensor that has one for each box.
            for name, value in columns.items():
                if isinstance(value, torch.Tensor) and value.dim() and len(value) == len(inside):
                    columns[name] = value[which]
        found.append(columns)
    return found


def _move_padded(target: dict[str, Any], movement: BoxMovement) -> dict[str, Any]:
    counts = target[LENGTHS].tolist()
    columns = {name: column for name, column in target.items() if name != LENGTHS}
    rows = [{name: column[row, :count] for name, column in columns.items()} for row, count in enumerate(counts)]
    moved = _move_list(rows, movement) if rows else []
    # As wide as before, so that a batch keeps its shape.
    padded = {name: _padded(column, [one[name] for one in moved]) for name, column in columns.items()}
    return {**padded, LENGTHS: target[LENGTHS].new_tensor([len(one[BOXES]) for one in moved])}


def _padded(like: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    """Return rows of different lengths as one tensor like this one, filled up as `pad_boxes` does."""
    signed = like.dtype.is_signed and not like.dtype.is_floating_point
    filled = torch.full_like(like, -1 if signed else 0)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return filled


def mirror(images: torch.Tensor, chosen: NDArray[np.bool_], axis: int) -> torch.Tensor:
    """Mirror the `chosen` images of `(B, C, H, W)` along an axis: -1 swaps left and right, -2 top and bottom. The
    result is a new tensor; `images` itself when none is chosen."""
    # With a rare flip many batches have no image that is mirrored, and need no copy.
    if not chosen.any():
        return images
    if images.device.type != "cpu":
        return mirror_by_mask(images, chosen, axis)
    # All are mirrored at once, and the few that should not be are put back.
    result = images.flip(axis)
    source, target = _as_array(images), _as_array(result)
    for row in np.flatnonzero(~chosen).tolist():
        target[row] = source[row]
    return result


def mirror_by_mask(images: torch.Tensor, chosen: NDArray[np.bool_], axis: int) -> torch.Tensor:
    """Do as `mirror`, in one step for all."""
    return torch.where(_on(chosen, images.device)[:, None, None, None], images.flip(axis), images)


def cut(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    """Cut a window of `size` out of each image of `(B, C, H, W)`. `corners`, `(B, 2)`, are top and left; negative ones
    begin outside, where `fill` is put."""
    by_image = images.device.type == "cpu"
    return _cut_each(images, corners, size, fill) if by_image else cut_by_windows(images, corners, size, fill)


def cut_by_windows(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    """Do as `cut`, by one choice among all windows that there are."""
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
    is_last = images.is_contiguous(memory_format=torch.channels_last)
    result = torch.empty(
        (*images.shape[:2], *size),
        dtype=images.dtype,
        memory_format=torch.channels_last if is_last else torch.contiguous_format,
    )
    limits = np.array(images.shape[2:])
    starts, stops = np.clip(corners, 0, limits), np.clip(corners + size, 0, limits)
    # Filling costs as much as copying, so only where something is outside.
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
    """Resize a part of each image of `(B, C, H, W)` to one size, with the triangle filter that torch calls antialiased
    bilinear. `crops`, `(B, 4)`, are top, left, height and width. The result is in `channels_last` memory; integers are
    rounded."""
    if images.device.type == "cpu":
        return _resize_each(images, crops, size)
    return resize_by_weights(images, crops, size)


def resize_listed_crops(images: list[torch.Tensor], crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Resize crops of images that have their own sizes, `(C, H, W)` each; one batch comes of them."""
    parts = [resize_crops(image[None], crops[row : row + 1], size) for row, image in enumerate(images)]
    return torch.cat(parts).contiguous(memory_format=torch.channels_last)


def pick_listed_crops(masks: list[torch.Tensor], crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Pick crops of masks that have their own sizes, `(H, W)` each: `(B, *size)`."""
    return torch.cat([pick_crops(mask[None, None], crops[row : row + 1], size)[:, 0] for row, mask in enumerate(masks)])


def _resize_each(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    if images.dtype == torch.uint8:
        pixels = torch.empty((*images.shape[:2], *size), dtype=torch.uint8, memory_format=torch.channels_last)
        source, target = _as_array(images), _as_array(pixels)
        for row, (top, left, height, width) in enumerate(crops.tolist()):
            resize_into(source[row, top : top + height, left : left + width], target[row])
        return pixels
    # torch resizes no other integers, and not every short float.
    exact = images if images.dtype in (torch.float32, torch.float64) else images.float()
    result = torch.empty((*exact.shape[:2], *size), dtype=exact.dtype, memory_format=torch.channels_last)
    for row, (top, left, height, width) in enumerate(crops.tolist()):
        part = exact[row : row + 1, :, top : top + height, left : left + width]
        result[row : row + 1] = functional.interpolate(part, size, mode="bilinear", antialias=True)
    return _to_dtype(result, images.dtype)


def resize_by_weights(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Do as `resize_crops`, by two products with a matrix of weights for each image, which is what a GPU is good at."""
    # Bytes are exact in half precision, and what is lost of sums of them is less than rounding loses.
    is_short = images.dtype == torch.uint8 and images.device.type == "cuda"
    kind = torch.float16 if is_short else torch.float64 if images.dtype == torch.float64 else torch.float32
    places = _on(crops, images.device).to(torch.float32)
    down = _weights(places[:, 0], places[:, 2], images.shape[2], size[0]).to(kind)
    across = _weights(places[:, 1], places[:, 3], images.shape[3], size[1]).to(kind)
    result = down[:, None] @ (images.to(kind) @ across[:, None].mT)
    return _to_dtype(result, images.dtype).contiguous(memory_format=torch.channels_last)


def _weights(start: torch.Tensor, length: torch.Tensor, count: int, wanted: int) -> torch.Tensor:
    """Return how much each of `count` pixels gives to each of the `wanted` ones: `(B, wanted, count)`, 1 in sum."""
    step = (length / wanted)[:, None, None]
    centre = step * (torch.arange(wanted, device=start.device)[:, None] + 0.5)
    pixel = torch.arange(count, device=start.device) - start[:, None, None]
    # A triangle as wide as a step, so that every pixel counts when shrinking.
    weight = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp_(min=0)
    weight = weight.where((pixel >= 0) & (pixel < length[:, None, None]), 0)
    return weight / weight.sum(dim=2, keepdim=True)


def pick_crops(masks: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """Resize a part of each mask to one size by taking the nearest pixel: `resize_crops` for what cannot be mixed.

    The pixel whose centre is nearest, as torch's `nearest-exact`: its `nearest` is half a pixel off.
    """
    batch = torch.arange(len(masks), device=masks.device)[:, None, None]
    rows, columns = (
        # In whole numbers: the centre of pixel i of `wanted` is at (2 i + 1) / 2 of a step.
        _on(start[:, None] + (2 * np.arange(wanted) + 1) * length[:, None] // (2 * wanted), masks.device)
        for start, length, wanted in zip(crops[:, :2].T, crops[:, 2:].T, size, strict=True)
    )
    # The axis of channels, between indexed ones, comes last.
    return masks[batch, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)


def _on(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def _to_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if values.dtype == dtype:
        return values
    if dtype.is_floating_point:
        return values.to(dtype)
    limits = torch.iinfo(dtype)
    # Rounding may go beyond the range, and a conversion would wrap around.
    return values.round().clamp(limits.min, limits.max).to(dtype)


def _as_array(images: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's memory as an array `(B, H, W, C)`, for copying; numpy has no bfloat16."""
    plain = images.view(torch.int16) if images.dtype == torch.bfloat16 else images
    return plain.movedim(1, 3).numpy()
