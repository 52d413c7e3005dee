"""Augment batches for `make_loader(..., batch_transform=...)`: each sample in its own way, on the device.

A transform is called with `(x, y)`, x `(B, C, H, W)` of bytes or floats, and returns new ones; masks and boxes in y
move with x. In a loader the parameters of a sample follow from the seed, the epoch and the sample's row alone, so they
do not change with the batch size or where an epoch is resumed. Called by hand, they come from torch's generator, which
`torch.manual_seed` seeds.

torchvision's v2 transforms and kornia's modules can stand wherever these can. They draw from torch's generators, and
torchvision's draw once for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from colabstage.errors import OptionError
from colabstage.images.geometry import VOID
from colabstage.io.boundary import public_class
from colabstage.load.batches import white_of
from colabstage.load.calling import apply_transform, check_batch_transform
from colabstage.load.epoch import BatchPlace
from colabstage.load.geometry import (
    AREAS,
    CROP_DRAWS,
    RATIOS,
    BoxMovement,
    check_crop_ranges,
    cut,
    mirror,
    move_targets,
    pick_crops,
    pick_listed_crops,
    resize_crops,
    resize_listed_crops,
    resized_crops,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.load.calling import SeededTransform

    Size = tuple[int, int]
    Transform = Callable[[Any, Any], tuple[Any, Any]] | SeededTransform
    from colabstage.io.pipeline import ThreadPool
    from colabstage.load.reading.reader import SplitReader

_SEEDS = 2**62


class _Seeded:
    """Base of batch transforms: called by hand, they draw a seed of their own."""

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the new `(x, y)`, with parameters from torch's generator."""
        return self.apply_at(x, y, BatchPlace(int(torch.randint(_SEEDS, ())), 0, np.arange(len(x))))

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        """Return the new `(x, y)`, with the parameters of this place."""
        raise NotImplementedError


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
            msg = f"transforms={transforms!r} is not a list; expected one: Compose([RandomCrop(32), RandomFlip()])."
            raise OptionError(msg)
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
            if not 0 <= value <= 1:
                msg = f"{name}={value!r} is not a probability; expected 0 to 1."
                raise OptionError(msg)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        size = _image_size(x)
        # As x, y: the order that boxes have.
        chosen = place.draws(2) < (self.horizontal, self.vertical)

        def flip(images: torch.Tensor) -> torch.Tensor:
            return mirror(mirror(images, chosen[:, 0], -1), chosen[:, 1], -2)

        # What is at p in a mirrored image lay at its length minus p.
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
    mask_fill: int = VOID
    """Their class in masks."""

    def __post_init__(self) -> None:
        _height_and_width(self.size)
        if self.padding < 0:
            msg = f"padding={self.padding!r} cannot work; expected pixels, 0 or more."
            raise OptionError(msg)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        size, image = _height_and_width(self.size), _image_size(x)
        room = np.add(image, 2 * self.padding) - size
        # Refused instead of padded further: nobody asked for more border than `padding`.
        if (room < 0).any():
            msg = (
                f"RandomCrop(size={self.size}, padding={self.padding}) is larger than the images, {image[0]} x "
                f"{image[1]} (height x width). Use a smaller size or more padding."
            )
            raise OptionError(msg)
        # Draws are below 1, so the last place is as likely as the others.
        corners = np.floor(place.draws(2) * (room + 1)).astype(np.int64) - self.padding
        boxes = BoxMovement(np.ones((len(x), 2)), -corners[:, ::-1].astype(np.float64), size)
        moved = move_targets(y, image, lambda masks: cut(masks, corners, size, self.mask_fill), boxes)
        return cut(x, corners, size, self.fill), moved


@public_class
@dataclass(frozen=True, eq=False)
class RandomResizedCrop(_Seeded):
    """Cut a part of random area and shape out of each image and resize it, as torchvision's does.

    Images are resized by the antialiased bilinear filter, masks by the nearest pixel; boxes are cut at the edges, and
    dropped where nothing is left of them. Takes a list of images `(C, H, W)` of their own sizes too, with a list of
    masks `(H, W)`.

    Where it comes first in `batch_transform`, `make_loader` decodes JPEGs of their own sizes no further than their
    crops need (`decode=`).
    """

    size: int | Size
    """A number, or height and width."""
    scale: tuple[float, float] = AREAS
    """Least and most part of the area."""
    ratio: tuple[float, float] = RATIOS
    """Least and most width by height, drawn evenly in its logarithm."""

    def __post_init__(self) -> None:
        _height_and_width(self.size)
        check_crop_ranges(self.scale, self.ratio)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        if isinstance(x, list) and all(isinstance(image, torch.Tensor) and image.dim() == 3 for image in x):
            sizes = np.array([image.shape[1:] for image in x], np.int64).reshape(-1, 2)
        else:
            sizes = np.tile(np.array(_image_size(x), np.int64), (len(x), 1))
        crops = self.choose(sizes, place)
        resize = resize_listed_crops if isinstance(x, list) else resize_crops
        return resize(x, crops, _height_and_width(self.size)), self.move(y, sizes, crops)

    @property
    def target_size(self) -> Size:
        """Return the height and width of the results."""
        return _height_and_width(self.size)

    def choose(self, sizes: NDArray[np.int64], place: BatchPlace) -> NDArray[np.int64]:
        """Return the crops of images of these sizes, as `resized_crops`."""
        return resized_crops(sizes, place.draws(CROP_DRAWS), scale=self.scale, ratio=self.ratio)

    def move(self, y: Any, sizes: NDArray[np.int64], crops: NDArray[np.int64]) -> Any:
        """Return the targets of images of these sizes after these crops of them."""
        size = _height_and_width(self.size)
        is_listed = isinstance(y, list) and len(y) == len(sizes) > 0
        # Masks of their own sizes cannot be one tensor before they are cut.
        if is_listed and all(
            isinstance(mask, torch.Tensor) and mask.shape == tuple(own)
            for mask, own in zip(y, sizes.tolist(), strict=True)
        ):
            return pick_listed_crops(y, crops, size)
        # One that nothing has, where they differ.
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

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], *, dtype: torch.dtype = torch.float32) -> None:
        given: tuple[object, ...] = (mean, std)
        are_listed = all(isinstance(values, Sized) for values in given)
        # A std of 0 would make infinities that only show in the loss.
        if not are_listed or len(mean) != len(std) or not len(mean) or not all(value > 0 for value in std):
            msg = (
                f"mean={mean!r} and std={std!r} cannot work; expected one of each for every channel, std above 0, such "
                "as Normalize((0.5,), (0.25,))."
            )
            raise OptionError(msg)
        if not dtype.is_floating_point:
            msg = f"dtype={dtype} is not a floating-point dtype; normalised values need one."
            raise OptionError(msg)
        self.mean, self.std, self.dtype = tuple(map(float, mean)), tuple(map(float, std)), dtype

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        # Images of their own sizes come as a list, and each is a batch of one.
        if isinstance(x, list):
            return [self._normalised(image[None])[0] for image in x], y
        return self._normalised(x), y

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        channels = len(self.mean)
        if channels > 1 and (x.dim() != 4 or x.shape[1] != channels):
            msg = (
                f"Normalize has means of {channels} channels, and x has shape {tuple(x.shape)}; expected "
                f"(B, {channels}, H, W). Give one mean and one std for all of x, or one for each of its channels."
            )
            raise OptionError(msg)
        white = white_of(x.dtype) or 1.0
        # 65535 is beyond float16.
        values = x.to(torch.float32 if x.dtype == torch.uint16 else self.dtype)
        # One for all leaves the axes as they are.
        shape = (1, -1, 1, 1) if channels > 1 else ()
        # One product and one difference, instead of a division by 255, a difference and a quotient.
        factor = values.new_tensor([1 / (white * std) for std in self.std]).view(shape)
        shift = values.new_tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(shape)
        # Bytes have become a tensor of their own already, which may be changed in place.
        values = values * factor if values is x else values.mul_(factor)
        return values.sub_(shift).to(self.dtype)

    def __repr__(self) -> str:
        return f"Normalize({self.mean}, {self.std}, dtype={self.dtype})"


@public_class
@dataclass(frozen=True, eq=False)
class OneHot(_Seeded):
    """Turn class indices into one channel a class: masks `(B, H, W)` to `(B, K, H, W)`, labels `(B,)` to `(B, K)`.

    -1, and indices of pixels outside, such as those of no class (255), are 0 in all channels. A label of K or more is
    an error, where y is in this computer's memory: on a GPU looking would have the loop wait for it.
    """

    classes: int
    """K."""
    dtype: torch.dtype = torch.float32
    """Of the result."""

    def __post_init__(self) -> None:
        # Before the first batch, where the line that is wrong is still in sight.
        if self.classes < 1:
            msg = f"classes={self.classes!r} cannot work; expected how many there are, 1 or more."
            raise OptionError(msg)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        if not isinstance(y, torch.Tensor) or y.is_floating_point():
            kind = y.dtype if isinstance(y, torch.Tensor) else type(y).__name__
            msg = f"OneHot needs a tensor of class indices as y, got {kind}."
            raise OptionError(msg)
        # Zeros would be a sample whose loss is 0, whatever the model says.
        if y.dim() == 1 and len(y) and y.device.type == "cpu" and (highest := int(y.max())) >= self.classes:
            msg = f"OneHot({self.classes}) is too small for a sample of class {highest}. Write OneHot({highest + 1})."
            raise OptionError(msg)
        # In 64 bits: 255 classes and more do not fit the bytes that masks come in.
        channels = torch.arange(self.classes, device=y.device).view(-1, *(1,) * (y.dim() - 1))
        return x, (y[:, None] == channels).to(self.dtype)


def _height_and_width(size: int | Size) -> Size:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        msg = f"size={size!r} cannot work; expected pixels, or (height, width), at least 1."
        raise OptionError(msg)
    return pair[0], pair[1]


def _image_size(x: Any) -> Size:
    if not isinstance(x, torch.Tensor) or x.dim() != 4:
        kind = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        msg = f"x is {kind}; expected images of one size, (B, C, H, W). Pack with image_size=… where sizes differ."
        raise OptionError(msg)
    return x.shape[2], x.shape[3]


@dataclass(frozen=True, slots=True)
class FirstCrop:
    """What a batch transform begins with."""

    crop: RandomResizedCrop
    stream: tuple[int, ...]
    rest: Compose | None
    """What follows, with the numbers that it draws after the crop; `None` where nothing does."""


def first_crop(transform: Transform | None) -> FirstCrop | None:
    """Return the crop that a transform begins with; `None` where it begins with anything else."""
    # Not what derives from them, which may do something else.
    if type(transform) is RandomResizedCrop:
        return FirstCrop(transform, (), None)
    if type(transform) is not Compose or not transform.transforms:
        return None
    first, *others = transform.transforms
    inner = first_crop(first)
    if inner is None:
        return None
    # Parts draw by their number, so the crop leaves something in its place.
    rest = Compose([inner.rest or _unchanged, *others])
    return FirstCrop(inner.crop, (0, *inner.stream), rest if others or inner.rest else None)


def _unchanged(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


class CroppedInputs:
    """Read the crops that an epoch's batches begin with, instead of a reader's whole inputs."""

    def __init__(self, reader: SplitReader, first: FirstCrop, seed: int, epoch: int) -> None:
        """Take `first`, what is cut; crops depend on `seed`, `epoch` and row."""
        self._reader, self._first, self._seed, self._epoch = reader, first, seed, epoch
        self.row_shape = (*first.crop.target_size, reader.crop_channels)
        self.row_dtype = np.dtype(np.uint8)
        self.row_bytes = math.prod(self.row_shape)

    def read_x(self, indices: NDArray[np.intp], out: NDArray[Any] | None = None, *, pool: ThreadPool) -> Any:
        """Decode the crops of rows, into `out` where there is one."""
        return self._reader.read_crops(
            indices, self._first.crop.target_size, partial(self._crops, indices), out, pool=pool
        )

    def move(self, y: Any, rows: NDArray[np.intp]) -> Any:
        """Return the targets of a batch of these rows, where they go with the crops."""
        reader = self._reader
        # Labels stay what they are, and no header is read for them.
        if not reader.has_boxes and reader.target_shape in ((), None) and not isinstance(y, list):
            return y
        # From headers that the crops have read already: they are remembered.
        sizes = reader.image_sizes(rows)
        return self._first.crop.move(y, sizes, self._crops(rows, sizes))

    def _crops(self, rows: NDArray[np.intp], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._first.crop.choose(sizes, BatchPlace(self._seed, self._epoch, rows, self._first.stream))
