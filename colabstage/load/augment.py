"""Augment batches for `make_loader(..., batch_transform=...)`: each sample in its own way, on the device.

A transform is called with `(x, y)`, x `(B, C, H, W)` of bytes or floats, and returns new ones; masks and boxes in y
move with x. In a loader the parameters of a sample follow from seed, epoch and row alone; called by hand, they come
from torch's generator. Transforms of torchvision can take the place of any of these (`load/calling`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES
from colabstage.images.geometry import VOID
from colabstage.io.arguments import refuse_argument, show_value, whole_number
from colabstage.io.boundary import public_class
from colabstage.load.batch import LENGTHS, is_image_shape, white_of
from colabstage.load.batches import torch_dtype
from colabstage.load.calling import (
    SeededTransform,
    apply_transform,
    check_batch_transform,
    check_points,
    describe,
    moved_axis,
    moves_pixels,
    of_torchvision,
)
from colabstage.load.epoch import BatchPlace
from colabstage.load.reading.fields import resize_into

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.reading.reader import SplitReader

    Size = tuple[int, int]
    # Moves pixels whose values must not be mixed, `(B, K, H, W)` of any dtype.
    Movement = Callable[[torch.Tensor], torch.Tensor]
    Transform = Callable[[Any, Any], tuple[Any, Any]] | SeededTransform

# Move pixels, masks and boxes when each image of a batch is cut, mirrored and resized in its own way.
#
# On a GPU, one kernel does each step for the whole batch. On the processor, copying image by image is fastest (64
# images of 256x256x3 uint8, cut to 224: 11 ms; by one indexed gather: 128 ms), so there the same functions do that.


_TRIES = 10
# Random numbers that `resized_crops` needs per image: area and ratio of each try, then the position.
CROP_DRAWS = 2 * _TRIES + 2

AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)


def resized_crops(
    sizes: NDArray[np.int64],
    draws: NDArray[np.float64],
    *,
    scale: tuple[float, float] = AREAS,
    ratio: tuple[float, float] = RATIOS,
) -> NDArray[np.int64]:
    """Choose a crop of each image, with the distribution of torchvision's `RandomResizedCrop`: int64 `(B, 4)`, top,
    left, height and width in pixels.

    Ten pairs are drawn of an area, uniform in `scale`, and a ratio of the sides, log-uniform in `ratio`. The first pair
    that fits the image is taken, at a uniform position. If none fits, the crop is the middle of the image, with the
    ratio as near the image's as `ratio` allows. `sizes`: `(B, 2)`, or `(2,)` for all, heights and widths. `draws`:
    `(B, CROP_DRAWS)` in [0, 1).
    """
    image = np.broadcast_to(np.asarray(sizes, np.int64), (len(draws), 2))
    height, width = image[:, :1], image[:, 1:]
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :_TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    # Uniform in the logarithm, so that 3:4 is as likely as 4:3.
    ratios = np.exp(low + (high - low) * draws[:, _TRIES : 2 * _TRIES])
    tries = np.rint(np.sqrt(np.stack([areas / ratios, areas * ratios], axis=2))).astype(np.int64)
    # All ten tries of all images at once: a loop in Python would take longer than decoding.
    fits = np.all((tries > 0) & (tries <= image[:, None]), axis=2)
    crop = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
    place = np.floor((image - crop + 1) * draws[:, 2 * _TRIES :]).astype(np.int64)
    # Computed for all although few need it: selecting rows would cost more.
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
    """How coordinates in each image change: `new = old * scale + shift`."""

    scale: NDArray[np.float64]
    """`(B, 2)`, x first."""
    shift: NDArray[np.float64]
    size: Size | None = None
    """Height and width at which boxes are clipped; boxes with nothing inside are dropped. `None` if all stay inside."""


def move_targets(y: Any, image_size: Size, movement: Movement, boxes: BoxMovement) -> Any:
    """Move the targets of a batch with its images: masks `(B, …, H, W)` or `(B, …, H, W, K)` of their size, and boxes,
    a list of B dicts or a dict of padded ones, as `make_loader` gives them; with a box goes its row of every other
    tensor. Tuples and other dicts are looked into; anything else stays."""
    if isinstance(y, torch.Tensor):
        return _move_mask(y, image_size, movement)
    # Padded boxes are recognised by their keys, because collate functions make plain dicts.
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
    axis = moved_axis(tuple(y.shape[1:]), size)
    if axis is None:
        return y
    masks = y.movedim(-1, 1) if axis == -3 else y
    moved = movement(masks.reshape(len(y), math.prod(masks.shape[1:-2]), *size))
    moved = moved.reshape(*masks.shape[:-2], *moved.shape[2:])
    return moved.movedim(1, -1) if axis == -3 else moved


def _move_list(targets: list[dict[str, Any]], movement: BoxMovement) -> list[dict[str, Any]]:
    """Move all boxes of the batch at once: this waits for the device once, not once per image."""
    counts = [len(target[BOXES]) for target in targets]
    boxes = torch.cat([target[BOXES] for target in targets])
    scale, shift = (
        _to_device(np.repeat(part, counts, axis=0), boxes.device, boxes.dtype)
        for part in (movement.scale, movement.shift)
    )
    first, second = boxes[:, :2] * scale + shift, boxes[:, 2:] * scale + shift
    # In a mirrored image, the right edge has become the left one.
    moved = torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=1)
    kept = None
    if movement.size is not None:
        height, width = movement.size
        moved = torch.minimum(moved.clamp(min=0), _to_device([width, height] * 2, boxes.device, boxes.dtype))
        # The only wait for the device.
        kept = ((moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])).cpu().numpy()
    found, end = [], 0
    for target, part in zip(targets, torch.split(moved, counts), strict=True):
        columns, end = {**target, BOXES: part}, end + len(part)
        if kept is not None and not (inside := kept[end - len(part) : end]).all():
            which = _to_device(np.flatnonzero(inside), part.device)
            # For every tensor that has a row for each box.
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
    padded = {}
    for name, column in columns.items():
        # As wide as before, so that the batch keeps its shape, and padded as by `pad_boxes`.
        signed = column.dtype.is_signed and not column.dtype.is_floating_point
        padded[name] = torch.full_like(column, -1 if signed else 0)
        for number, row in enumerate(moved):
            padded[name][number, : len(row[name])] = row[name]
    lengths = target[LENGTHS]
    return {**padded, LENGTHS: _to_device([len(one[BOXES]) for one in moved], lengths.device, lengths.dtype)}


def mirror(images: torch.Tensor, chosen: NDArray[np.bool_], axis: int) -> torch.Tensor:
    """Mirror the `chosen` images of `(B, C, H, W)` along an axis: -1 swaps left and right, -2 top and bottom. The
    result is a new tensor; `images` itself when none is chosen."""
    # With a small probability, many batches have no mirrored image and need no copy.
    if not chosen.any():
        return images
    if images.device.type != "cpu":
        return torch.where(_to_device(chosen, images.device)[:, None, None, None], _flipped(images, axis), images)
    # All are mirrored at once, and the few that should not be are restored.
    result = _flipped(images, axis)
    source, target = _as_array(images), _as_array(result)
    for row in np.flatnonzero(~chosen).tolist():
        target[row] = source[row]
    return result


# torch's `flip` lacks the unsigned types, so their memory is viewed as the signed ones.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _flipped(images: torch.Tensor, axis: int) -> torch.Tensor:
    return images.view(_SIGNED.get(images.dtype, images.dtype)).flip(axis).view(images.dtype)


def cut(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    """Cut a window of `size` out of each image of `(B, C, H, W)`, at `corners`, `(B, 2)`, top and left; what is outside
    the image is `fill`."""
    if images.device.type == "cpu":
        return _cut_each(images, corners, size, fill)
    # All windows at once, by an index into a strided view.
    batch, _, height, width = images.shape
    least, most = corners.min(axis=0, initial=0), (corners + size).max(axis=0, initial=0)
    before, after = np.maximum(-least, 0), np.maximum(most - (height, width), 0)
    if before.any() or after.any():
        margins = (int(before[1]), int(after[1]), int(before[0]), int(after[0]))
        images = functional.pad(images, margins, value=fill)
    top, left = _to_device(corners + before, images.device).T
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    return windows[torch.arange(batch, device=images.device), :, top, left]


def _cut_each(images: torch.Tensor, corners: NDArray[np.int64], size: Size, fill: float) -> torch.Tensor:
    is_last = images.is_contiguous(memory_format=torch.channels_last)
    result = torch.empty(
        (*images.shape[:2], *size),
        dtype=images.dtype,
        device="cpu",
        memory_format=torch.channels_last if is_last else torch.contiguous_format,
    )
    limits = np.array(images.shape[2:])
    starts, stops = np.clip(corners, 0, limits), np.clip(corners + size, 0, limits)
    # Filling costs as much as copying, so it is done only if something is outside.
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
    """Resize a part of each image of `(B, C, H, W)` to one size, by the antialiased bilinear filter, in `channels_last`
    memory. `crops`, `(B, 4)`, are top, left, height and width."""
    if images.device.type == "cpu":
        return _resize_each(images, crops, size)
    return resize_by_weights(images, crops, size)


def _resize_each(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    # torch resizes no other integers, and not every short float.
    exact = images if images.dtype in (torch.uint8, torch.float32, torch.float64) else images.float()
    # The caller may have set another default device.
    form: Any = {"dtype": exact.dtype, "device": "cpu", "memory_format": torch.channels_last}
    result = torch.empty((*images.shape[:2], *size), **form)
    if images.dtype == torch.uint8:
        source, target = _as_array(images), _as_array(result)
        for row, (top, left, height, width) in enumerate(crops.tolist()):
            resize_into(source[row, top : top + height, left : left + width], target[row])
        return result
    for row, (top, left, height, width) in enumerate(crops.tolist()):
        part = exact[row : row + 1, :, top : top + height, left : left + width]
        result[row : row + 1] = functional.interpolate(part, size, mode="bilinear", antialias=True)
    return _to_dtype(result, images.dtype)


def resize_by_weights(images: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """`resize_crops` for GPUs: two products with a matrix of weights for each image."""
    # Bytes are exact in half precision, and their sums lose less than rounding does.
    is_short = images.dtype == torch.uint8 and images.device.type == "cuda"
    kind = torch.float16 if is_short else torch.float64 if images.dtype == torch.float64 else torch.float32
    places = _to_device(crops, images.device).to(torch.float32)
    down = _weights(places[:, 0], places[:, 2], images.shape[2], size[0]).to(kind)
    across = _weights(places[:, 1], places[:, 3], images.shape[3], size[1]).to(kind)
    result = down[:, None] @ (images.to(kind) @ across[:, None].mT)
    return _to_dtype(result, images.dtype).contiguous(memory_format=torch.channels_last)


def _weights(start: torch.Tensor, length: torch.Tensor, count: int, wanted: int) -> torch.Tensor:
    """Return the weights of `count` pixels for each of the `wanted` ones: `(B, wanted, count)`; each row sums to 1."""
    step = (length / wanted)[:, None, None]
    centre = step * (torch.arange(wanted, device=start.device)[:, None] + 0.5)
    pixel = torch.arange(count, device=start.device) - start[:, None, None]
    # A triangle as wide as a step, so that every pixel counts when shrinking.
    weight = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp_(min=0)
    weight = weight.where((pixel >= 0) & (pixel < length[:, None, None]), 0)
    return weight / weight.sum(dim=2, keepdim=True)


def pick_crops(masks: torch.Tensor, crops: NDArray[np.int64], size: Size) -> torch.Tensor:
    """`resize_crops` for values that must not be mixed: by the nearest pixels, those of torch's `nearest-exact`."""
    batch = torch.arange(len(masks), device=masks.device)[:, None, None]
    rows, columns = (
        # In integers: the centre of pixel i of `wanted` is at (2 i + 1) / 2 steps.
        _to_device(start[:, None] + (2 * np.arange(wanted) + 1) * length[:, None] // (2 * wanted), masks.device)
        for start, length, wanted in zip(crops[:, :2].T, crops[:, 2:].T, size, strict=True)
    )
    # The axis of channels, between two indexed ones, ends up last.
    return masks[batch, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)


def _to_device(values: ArrayLike, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return numbers on a device, without a wait for the work that is queued there."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=dtype).to(device, non_blocking=True)


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


_SEEDS = 2**62


class _Seeded(SeededTransform):
    """Base of batch transforms: when called by hand, they draw a seed themselves."""

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the new `(x, y)`, with parameters from torch's generator."""
        return self.apply_at(x, y, BatchPlace(int(torch.randint(_SEEDS, (), device="cpu")), 0, np.arange(len(x))))


@public_class
class Compose(_Seeded):
    """Apply several batch transforms, one after the other; other callables of `(x, y)` may be among them.

    >>> augment = Compose([RandomCrop(32, padding=4), RandomFlip(), Normalize((0.49,), (0.25,))])
    >>> x, y = augment(torch.zeros(8, 1, 32, 32, dtype=torch.uint8), torch.zeros(8))
    >>> x.shape, x.dtype
    (torch.Size([8, 1, 32, 32]), torch.float32)
    """

    def __init__(self, transforms: list[Transform]) -> None:
        given: object = transforms
        if not isinstance(given, Iterable):
            refuse_argument("transforms", transforms, "a list, such as Compose([RandomCrop(32), RandomFlip()])")
        self.transforms = list(transforms)
        for number, transform in enumerate(self.transforms):
            check_batch_transform(f"transforms[{number}]", transform)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        # By number, so that two equal parts draw differently.
        for number, transform in enumerate(self.transforms):
            x, y = apply_transform(transform, x, y, place.inner(number))
        return x, y

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


@public_class
@dataclass(frozen=True, eq=False)
class RandomFlip(_Seeded):
    """Mirror each image left to right or top to bottom, each with its probability."""

    horizontal: float = 0.5
    """Probability of left to right."""
    vertical: float = 0.0
    """Probability of top to bottom."""

    def __post_init__(self) -> None:
        for name, value in (("horizontal", self.horizontal), ("vertical", self.vertical)):
            if not all(0 <= one <= 1 for one in _numbers([value]) or (math.nan,)):
                refuse_argument(name, value, "a probability, 0 to 1")

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        size = _image_size(x)
        # As x, y: the order in boxes.
        chosen = place.draws(2) < (self.horizontal, self.vertical)

        def flip(images: torch.Tensor) -> torch.Tensor:
            return mirror(mirror(images, chosen[:, 0], -1), chosen[:, 1], -2)

        # A point at p in a mirrored image was at the image's length minus p.
        boxes = BoxMovement(np.where(chosen, -1.0, 1.0), np.where(chosen, (size[1], size[0]), 0.0))
        return flip(x), move_targets(y, size, flip, boxes)


@public_class
@dataclass(frozen=True, eq=False)
class RandomCrop(_Seeded):
    """Cut a window out of each image, padded on all sides before.

    Boxes are cut at the window's edges, and dropped where nothing is left of them.
    """

    size: int | Size
    """A number, or height and width."""
    padding: int = 0
    """Pixels on each side."""
    fill: float = 0
    """Their value, in the units of x."""
    mask_fill: float | None = None
    """Their class in masks; by default 255, which means no class, or 0 in masks of bools or fractions."""

    def __post_init__(self) -> None:
        _height_and_width(self.size)
        whole_number("padding", self.padding)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        size, image = _height_and_width(self.size), _image_size(x)
        room = np.add(image, 2 * self.padding) - size
        # Refused instead of padded further: nobody asked for more border than `padding`.
        if (room < 0).any():
            msg = (
                f"{self} is larger than the images, {image[0]} x {image[1]} (height x width, as in size=). Use a "
                "smaller size or more padding."
            )
            raise OptionError(msg)
        # Draws are below 1, so the last position is as likely as the others.
        corners = np.floor(place.draws(2) * (room + 1)).astype(np.int64) - self.padding
        boxes = BoxMovement(np.ones((len(x), 2)), -corners[:, ::-1].astype(np.float64), size)

        def cut_masks(masks: torch.Tensor) -> torch.Tensor:
            holds_classes = not masks.is_floating_point() and masks.dtype != torch.bool
            unknown = VOID if holds_classes else 0
            return cut(masks, corners, size, unknown if self.mask_fill is None else self.mask_fill)

        return cut(x, corners, size, self.fill), move_targets(y, image, cut_masks, boxes)


@public_class
@dataclass(frozen=True, eq=False)
class RandomResizedCrop(_Seeded):
    """Cut a part of random area and shape out of each image and resize it, as torchvision's does.

    Images are resized by the antialiased bilinear filter, masks by the nearest pixel; boxes are cut at the edges, and
    dropped where nothing is left of them. Takes a list of images `(C, H, W)` of their own sizes too, with a list of
    masks `(H, W)`.

    Where it comes first in `batch_transform`, `make_loader` decodes JPEGs of their own sizes no further than their
    crops need (`loader.plan.decode`).
    """

    size: int | Size
    """A number, or height and width."""
    scale: tuple[float, float] = AREAS
    """Smallest and largest part of the area."""
    ratio: tuple[float, float] = RATIOS
    """Smallest and largest ratio of width to height, log-uniform."""

    def __post_init__(self) -> None:
        _height_and_width(self.size)
        least, most = _limits(self.scale)
        if not 0 < least <= most <= 1:
            refuse_argument("scale", self.scale, "(least, most) part of the image's area, above 0 and up to 1")
        least, most = _limits(self.ratio)
        if not 0 < least <= most < math.inf:
            refuse_argument("ratio", self.ratio, "(least, most) width by height, above 0")

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        if isinstance(x, list) and all(isinstance(image, torch.Tensor) and image.dim() == 3 for image in x):
            sizes = np.array([image.shape[1:] for image in x], np.int64).reshape(-1, 2)
        else:
            sizes = np.tile(np.array(_image_size(x), np.int64), (len(x), 1))
        crops = self.choose(sizes, place)
        size = self.target_size
        if not isinstance(x, list):
            return resize_crops(x, crops, size), self.move(y, sizes, crops)
        parts = [resize_crops(image[None], crops[row : row + 1], size) for row, image in enumerate(x)]
        return torch.cat(parts).contiguous(memory_format=torch.channels_last), self.move(y, sizes, crops)

    @property
    def target_size(self) -> Size:
        return _height_and_width(self.size)

    def choose(self, sizes: NDArray[np.int64], place: BatchPlace) -> NDArray[np.int64]:
        """Return the crops of images of these sizes, as `resized_crops`."""
        return resized_crops(sizes, place.draws(CROP_DRAWS), scale=self.scale, ratio=self.ratio)

    def move(self, y: Any, sizes: NDArray[np.int64], crops: NDArray[np.int64]) -> Any:
        """Return the targets of images of these sizes after these crops."""
        size = _height_and_width(self.size)
        is_listed = isinstance(y, list) and len(y) == len(sizes) > 0
        # Masks of different sizes cannot be one tensor before they are cut.
        if is_listed and all(
            isinstance(mask, torch.Tensor) and mask.shape == tuple(own)
            for mask, own in zip(y, sizes.tolist(), strict=True)
        ):
            parts = [pick_crops(mask[None, None], crops[row : row + 1], size)[:, 0] for row, mask in enumerate(y)]
            return torch.cat(parts)
        # If sizes differ: a size that no target has.
        common = (0, 0) if not len(sizes) or (sizes != sizes[0]).any() else (int(sizes[0, 0]), int(sizes[0, 1]))
        factors = np.divide(size[::-1], crops[:, :1:-1], dtype=np.float64)
        boxes = BoxMovement(factors, np.multiply(-crops[:, 1::-1], factors), size)
        return move_targets(y, common, lambda masks: pick_crops(masks, crops, size), boxes)


@public_class
class Normalize(_Seeded):
    """Turn x into floats: bytes to [0, 1], then each channel minus its `mean` and divided by its `std`.

    `mean`, `std`: for values in [0, 1], one for each channel of x `(B, C, H, W)`, or one for all of x, of any shape.
    `dtype`: of the result. x may be a list of images `(C, H, W)`.
    """

    def __init__(
        self, mean: Iterable[float], std: Iterable[float], *, dtype: torch.dtype | DTypeLike = torch.float32
    ) -> None:
        self.mean, self.std = _numbers(mean), _numbers(std)
        # A std of 0 would make infinities that show only in the loss.
        fits = all(map(math.isfinite, self.mean)) and all(0 < value < math.inf for value in self.std)
        if not fits or not self.mean or len(self.mean) != len(self.std):
            msg = (
                f"mean={show_value(mean)} and std={show_value(std)} cannot work; expected one of each for every "
                "channel, std above 0, such as Normalize((0.5,), (0.25,))."
            )
            raise OptionError(msg)
        self.dtype = torch_dtype(dtype) or torch.float32

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        # Images of different sizes come as a list, and each is a batch of one.
        if isinstance(x, list):
            return [self._normalised(image[None])[0] for image in x], y
        return self._normalised(x), y

    def check_scale(self, white: float) -> None:
        """Refuse a mean or std of values up to `white`, the stored ones: those of x are up to 1."""
        if white > 1 < max(*self.mean, *self.std):
            own = [tuple(float(f"{value / white:.4g}") for value in values) for values in (self.mean, self.std)]
            msg = (
                f"mean={show_value(self.mean)} and std={show_value(self.std)} are for values up to {white:.0f}, and x "
                f"is scaled to [0, 1] before. Write Normalize({own[0]}, {own[1]})."
            )
            raise OptionError(msg)

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        channels = len(self.mean)
        if channels > 1 and (x.dim() != 4 or x.shape[1] != channels):
            msg = (
                f"Normalize has means of {channels} channels, and x has shape {tuple(x.shape)}; expected "
                f"(B, {channels}, H, W). Give one mean and one std for all of x, or one for each of its channels."
            )
            raise OptionError(msg)
        white = white_of(x.dtype)
        # 65535 is beyond float16.
        values = x.to(torch.float32 if x.dtype == torch.uint16 else self.dtype)
        # With one value for all channels, the axes stay as they are.
        shape = (1, -1, 1, 1) if channels > 1 else ()
        # One multiplication and one subtraction, instead of a division by 255, a subtraction and a division.
        mean, std = np.array(self.mean), np.array(self.std)
        numbers = (1 / (white * std), mean / std)
        factor, shift = (_to_device(one, x.device, values.dtype).view(shape) for one in numbers)
        # If this tensor was made from bytes it is a new one, which may be changed in place.
        values = values * factor if values is x else values.mul_(factor)
        return values.sub_(shift).to(self.dtype)

    def __repr__(self) -> str:
        return f"Normalize({self.mean}, {self.std}, dtype={self.dtype})"


@public_class
@dataclass(frozen=True, eq=False)
class OneHot(_Seeded):
    """Turn class indices into one channel a class: masks `(B, H, W)` to `(B, K, H, W)`, labels `(B,)` to `(B, K)`.

    -1, and the 255 of pixels without a class, are 0 in all channels. Any other index of K or more is an error, where y
    is in this computer's memory: on a GPU looking would have the loop wait for it.
    """

    classes: int
    """K."""
    dtype: torch.dtype = torch.float32
    """Of the result."""

    def __post_init__(self) -> None:
        # Checked before the first batch, while the wrong line is still in sight.
        whole_number("classes", self.classes, least=1)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        if not isinstance(y, torch.Tensor) or y.is_floating_point():
            kind = y.dtype if isinstance(y, torch.Tensor) else type(y).__name__
            msg = f"OneHot needs a tensor of class indices as y, got {kind}."
            raise OptionError(msg)
        # With zeros the sample's loss would be 0, whatever the model predicts.
        known = y[:0] if y.device.type != "cpu" else y if y.dim() == 1 else y[y != VOID]
        if known.numel() and (highest := int(known.max())) >= self.classes:
            msg = f"OneHot({self.classes}) is too small for a sample of class {highest}. Write OneHot({highest + 1})."
            raise OptionError(msg)
        # In 64 bits: 255 classes and more do not fit into the bytes of masks.
        channels = torch.arange(self.classes, device=y.device).view(-1, *(1,) * (y.dim() - 1))
        return x, (y[:, None] == channels).to(self.dtype)


def _height_and_width(size: int | Size) -> Size:
    given: object = size
    pair = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given, given)
    if len(pair) != 2:
        refuse_argument("size", size, "a number of pixels, or (height, width)")
    height, width = (whole_number("size", one, least=1, otherwise=", or (height, width)") for one in pair)
    return height, width


def _numbers(values: Any) -> tuple[float, ...]:
    """Return numbers as Python's own; none for anything else."""
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        return ()


def _limits(values: object) -> tuple[float, float]:
    found = _numbers(values)
    # NaN is within no limits.
    return (found[0], found[1]) if len(found) == 2 else (math.nan, math.nan)


def _image_size(x: Any) -> Size:
    if not isinstance(x, torch.Tensor) or x.dim() != 4:
        remedy = "Begin with RandomResizedCrop, or pack with image_size=…."
        if isinstance(x, torch.Tensor):
            first = "lambda x, y: (x[:, None], y), first in Compose([…])"
            remedy = f"Add an axis by {first}." if x.dim() == 3 else "Change these by a function of (x, y) of your own."
        msg = f"x is {describe(x)}; expected images of one size, (B, C, H, W). {remedy}"
        raise OptionError(msg)
    return x.shape[2], x.shape[3]


@dataclass(frozen=True, slots=True)
class FirstCrop:
    """The crop that a batch transform begins with, and the transforms after it, if any, with their own random
    numbers."""

    crop: RandomResizedCrop
    stream: tuple[int, ...]
    rest: Compose | None


def first_crop(transform: Transform | None) -> FirstCrop | None:
    """Return the crop that a transform begins with; `None` if it begins with anything else."""
    parts = transform.transforms if type(transform) is Compose else [transform]
    # Not a subclass, which may do something else.
    if not parts or type(parts[0]) is not RandomResizedCrop:
        return None
    if parts[0] is transform:
        return FirstCrop(parts[0], (), None)
    # Parts draw by their number, so a placeholder replaces the crop.
    rest = Compose([lambda x, y: (x, y), *parts[1:]]) if parts[1:] else None
    return FirstCrop(parts[0], (0,), rest)


def check_inputs(transform: object, dataset: dataset_h5) -> None:
    """Refuse a transform of images that does not fit these inputs, as far as no other function comes before it.

    Of inputs `(H, W, C)` that are not images to a loader, one that moves pixels would take the channels for the width;
    if the first axis is the shortest, they are `(C, H, W)`. `Normalize` gets the pixels of images as fractions.
    Targets that look like points would not move."""
    shape = dataset.reader.row_shape
    turned = shape is None or len(shape) != 3 or is_image_shape(shape) or shape[2] >= shape[0]
    # What a dataset's own transform returns is unknown before it is called.
    for part in _parts(transform) if dataset.transform is None else ():
        moves = isinstance(part, RandomFlip | RandomCrop | RandomResizedCrop) or moves_pixels(part)
        if isinstance(part, Normalize):
            part.check_scale(white_of(dataset.reader.row_dtype))
        elif moves and not turned:
            msg = (
                f"{type(part).__name__} moves images (C, H, W), and inputs of {' x '.join(map(str, shape or ()))} come "
                "as they are stored. Write batch_transform=Compose([lambda x, y: (x.permute(0, 3, 1, 2), y), …]) for "
                "(H, W, C), or Compose([lambda x, y: (x, y), …]) for (C, H, W)."
            )
            raise OptionError(msg)
        elif moves and dataset.target_transform is None and len(getattr(part, "data_keys", None) or ()) < 2:
            check_points(type(part).__name__, dataset.reader)
        elif not isinstance(part, _Seeded) and not of_torchvision(part):
            return


def _parts(transform: object) -> Iterator[object]:
    if not isinstance(transform, Compose):
        yield transform
        return
    for part in transform.transforms:
        yield from _parts(part)


class CroppedInputs:
    """Read the crops that an epoch's batches begin with, instead of a reader's whole inputs."""

    def __init__(self, reader: SplitReader, first: FirstCrop, seed: int, epoch: int) -> None:
        """Take the first crop; its parameters depend on `seed`, `epoch` and row."""
        self._reader, self._first, self._seed, self._epoch = reader, first, seed, epoch
        self.row_shape = (*first.crop.target_size, reader.crop_channels)
        self.row_dtype = np.dtype(np.uint8)
        self.row_bytes = math.prod(self.row_shape)

    def read_x(self, indices: NDArray[np.intp], out: NDArray[Any] | None = None, *, pool: ThreadPool) -> Any:
        return self._reader.read_crops(
            indices, self._first.crop.target_size, partial(self._crops, indices), out, pool=pool
        )

    def move(self, y: Any, rows: NDArray[np.intp]) -> Any:
        """Return the targets of these rows, moved with the crops if they depend on pixels."""
        reader = self._reader
        # Labels do not change, and no header is read for them.
        if not reader.has_boxes and reader.target_shape in ((), None) and not isinstance(y, list):
            return y
        # From headers that were read for the crops already, and cached.
        sizes = reader.image_sizes(rows)
        return self._first.crop.move(y, sizes, self._crops(rows, sizes))

    def _crops(self, rows: NDArray[np.intp], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._first.crop.choose(sizes, BatchPlace(self._seed, self._epoch, rows, self._first.stream))
