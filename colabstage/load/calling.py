"""Call the caller's functions on samples and batches, and say what they were given if they fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import default_collate

from colabstage.errors import ColabstageError, OptionError, said_by
from colabstage.h5.schema import BOXES
from colabstage.images.geometry import are_points
from colabstage.io.arguments import check_argument, refuse_argument
from colabstage.io.callers_code import shorten
from colabstage.load.batch import is_image_shape

if TYPE_CHECKING:
    from colabstage.load.epoch import BatchPlace
    from colabstage.load.reading.reader import SplitReader


@runtime_checkable
class SeededTransform(Protocol):
    """Transforms batches by random parameters that depend on seed, epoch and rows."""

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        """Return the new `(x, y)`."""


_NAMES_SHOWN = 4
# Libraries whose transforms take PIL images; of torchvision's, those that take arrays or run the caller's own code.
_TAKE_IMAGES = ("torchvision", "timm")
_TAKE_ARRAYS = frozenset({"ToTensor", "ToImage", "ToPILImage", "Lambda"})


def describe(value: object) -> str:
    """Describe a value: its type, and its shape and dtype where it has these.

    >>> describe(np.zeros((8, 8, 3), np.uint8)), describe([torch.zeros(2), "a"]), describe(None)
    ('ndarray (8, 8, 3) uint8', 'list of Tensor (2,) torch.float32', 'None')
    """
    kind = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return f"{kind} {tuple(value.shape)} {value.dtype}"
    if isinstance(value, list | tuple):
        return f"{kind} of {describe(value[0])}" if value else f"empty {kind}"
    if isinstance(value, Mapping):
        return f"{kind} of {', '.join(map(repr, list(value)[:_NAMES_SHOWN]))}"
    return "None" if value is None else kind


def check_batch_transform(name: str, given: object) -> None:
    """Refuse anything that cannot be a batch transform: a class instead of its object, or no function."""
    # A class has its objects' methods, so it would fail only at the first batch.
    if isinstance(given, type):
        refuse_argument(name, given, f"an object of it: {given.__name__}(…)")
    if not isinstance(given, SeededTransform):
        check_argument(name, given, "function", remedy="It is called with (x, y).")


def _first_of(transform: object) -> object:
    """Return the transform of torchvision's or timm's that one begins with; `None` where another library's, or a
    function of the caller's, comes first."""
    known = _library_of(transform) in _TAKE_IMAGES
    parts = _parts_of(transform) if known or type(transform) is torch.nn.Sequential else []
    return _first_of(parts[0]) if parts else transform if known else None


def _library_of(transform: object) -> str:
    # By the module's name, so that nothing is imported: whoever passes a library's transform has done that.
    return type(transform).__module__.partition(".")[0]


# Parts of the names of torchvision's transforms that move pixels, and of those that do so at random.
_MOVES = re.compile(
    "Flip|Crop|Affine|Rotation|Perspective|Elastic|Resize|ShortestSize|Pad|Zoom|ScaleJitter|Augment|AugMix"
)
_BY_CHANCE = re.compile("Random|Elastic|ScaleJitter|Augment|AugMix")


def check_moves(name: str, transform: object, reader: SplitReader, *, alone: bool) -> None:
    """Refuse another library's transform that moves the pixels of x if y is a mask or boxes, which would not move. If
    no transform changes y (`alone`), also if it is points, or it is boxes and all pixels always move alike."""
    shape, image = reader.target_shape, reader.row_shape
    is_mask = reader.decodes_targets or pixel_axis(shape or (), (image or ())[:2]) is not None
    for part in leaves_of(transform):
        kind = type(part).__name__
        moves, by_chance = _MOVES.search(kind), _BY_CHANCE.search(kind)
        if moves and by_chance and alone and not is_mask:
            check_points(f"{_library_of(part)}'s {kind}", reader)
        if moves and ((by_chance and is_mask) or ((by_chance or alone) and reader.has_boxes)):
            msg = (
                f"{_library_of(part)}'s {kind} in {name}= would move x and not the mask or boxes that belong to it. "
                "Leave it out there, and give make_loader(dataset, batch_size, batch_transform=…) one that moves both: "
                "of colabstage.transforms, or of torchvision.transforms.v2."
            )
            raise OptionError(msg)


# Rows whose targets show whether they are points.
_FEW_ROWS = 64


def check_points(name: str, reader: SplitReader) -> None:
    """Refuse a transform, called `name`, that moves x if y looks like points in it, which would not move."""
    shape, image = reader.target_shape or (), reader.row_shape
    rows = np.arange(min(_FEW_ROWS, len(reader)))
    # To wait for rows that still arrive would take too long here.
    has_come = reader.arrival is None or reader.arrival.complete
    has_sizes = reader.whole_reason is None if image is None else len(image) > 1
    if len(shape) not in (1, 2) or not len(rows) or not has_come or not has_sizes:
        return
    pixels = image and (image[:2] if is_image_shape(image) else image[-2:])
    if are_points(np.asarray(reader.read_y(rows)), np.array([pixels]) if pixels else reader.image_sizes(rows)):
        msg = (
            f"y has {' x '.join(map(str, shape))} numbers, like points in the images, and {name} would move x alone. "
            "If they are points, move both in a function of (x, y) of your own. If not, write make_loader(…, "
            "batch_transform=Compose([lambda x, y: (x, y), augment])), with Compose of colabstage.transforms."
        )
        raise OptionError(msg)


def leaves_of(transform: object) -> list[object]:
    """Return the transforms of other libraries that one is made of: itself, or the parts of a container."""
    parts = _parts_of(transform)
    own = [] if parts or _library_of(transform) not in (*_TAKE_IMAGES, "kornia") else [transform]
    return [*own, *(leaf for part in parts for leaf in leaves_of(part))]


def _parts_of(transform: Any) -> list[Any]:
    """Return the parts of a container; a `Sequential` of torch may also contain transforms, as the libraries say."""
    return list(transform if isinstance(transform, torch.nn.Sequential) else getattr(transform, "transforms", ()))


def image_for(transform: object, x: Any) -> Any:
    """Return what a transform gets for an x: a PIL image if it takes those and no arrays, otherwise x itself; an
    OptionError where it is torchvision's, whose `v2` leaves arrays as they are, and x makes no such image."""
    first = _first_of(transform)
    kind, of_torchvision = type(first).__name__, _library_of(first) == "torchvision"
    if first is None or not isinstance(x, np.ndarray) or (of_torchvision and kind in _TAKE_ARRAYS):
        return x
    if x.dtype == np.uint8 and (x.ndim == 2 or (x.ndim == 3 and x.shape[2] in (1, 3, 4))):
        from PIL import Image

        return Image.fromarray(x[..., 0] if x.shape[2:] == (1,) else x)
    if not of_torchvision:
        return x
    msg = (
        f"torchvision's {kind} takes PIL images or tensors, and x is {describe(x)}. Begin with ToTensor, or ToImage of "
        "v2, for (H, W, C); with Lambda(torch.from_numpy) for (C, H, W)."
    )
    raise OptionError(msg)


def call_theirs(name: str, function: Callable[..., Any], *arguments: Any, row: int | None = None) -> Any:
    """Call a function of the caller's so that its StopIteration ends no epoch; if it fails, say what it was given, and
    which row."""
    try:
        return function(*arguments)
    except StopIteration as error:
        msg = f"{name} raised StopIteration, as next() does where an iterator has no more: {function!r}."
        raise RuntimeError(msg) from error
    except ColabstageError:
        raise
    except Exception as error:
        given = " and ".join(map(describe, arguments[:2])) + ("" if row is None else f" of row {row:,}")
        if isinstance(error, TypeError | AttributeError):
            why = said_by(error).partition("\n")[0]
            pair = (
                f" of both, such as {name}=lambda x, y: (change(x), y)" if len(arguments) == 2 else " that takes that"
            )
            msg = f"{name} failed with {given}: {why}. Expected a function{pair}."
            raise OptionError(msg) from error
        error.add_note(f"{name} was called with {given}.")
        shorten(error)
        raise


def apply_transform(
    transform: Callable[[Any, Any], tuple[Any, Any]] | SeededTransform, x: Any, y: Any, place: BatchPlace | None
) -> Any:
    """Call a batch transform: with `place` if it takes one and it is known, otherwise with `(x, y)` alone."""
    if place is not None and isinstance(transform, SeededTransform):
        return call_theirs("batch_transform", transform.apply_at, x, y, place)
    if of_torchvision(transform):
        return call_theirs("batch_transform", partial(apply_to_each, transform), x, y)
    if _library_of(transform) == "kornia" and len(getattr(transform, "data_keys", None) or ()) < 2:
        msg = (
            f"kornia's {type(transform).__name__} takes x alone, and is called with x and y. Write "
            "batch_transform=lambda x, y: (augment(x), y); where masks or boxes move too, use colabstage.transforms."
        )
        raise OptionError(msg)
    made = call_theirs("batch_transform", transform, x, y)  # type: ignore[arg-type]  # one with `apply_at` is called too
    # A loop would only report that it cannot unpack the result; and two samples it would unpack, as x and y.
    if made is None or isinstance(made, torch.Tensor | np.ndarray):
        msg = f"batch_transform returned {describe(made)}: {transform!r}. Expected the new (x, y)."
        raise OptionError(msg)
    return made


def collate_results(name: str, results: list[Any]) -> Any:
    """Stack what a transform returned for each sample into a batch, as a stock `DataLoader` does, or refuse it."""
    arrays = [one for one in results if isinstance(one, torch.Tensor | np.ndarray) and len(one.shape)]
    try:
        # Stacking converts to one dtype, so that bytes up to 255 would mix with fractions up to 1.
        if len({"float" in str(one.dtype) for one in arrays}) > 1:
            msg = "bytes stand among fractions"
            raise TypeError(msg)  # noqa: TRY301 - as torch says that shapes differ
        # Of one dtype whichever comes first, as of 0 and 0.9: torch would take that of the first.
        numbers = all(isinstance(one, int | float) for one in results)
        return default_collate([*np.asarray(results)] if numbers else results)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        found = " and ".join(list(dict.fromkeys(map(describe, results)))[:3])
        msg = (
            f"The results of {name} make no batch: {found} ({said_by(error)}). Expected arrays of one shape and dtype, "
            "one from each call."
        )
        raise OptionError(msg) from error


# Batch transforms of torchvision: called as the library intends, with masks and boxes, or refused.


def of_torchvision(transform: object) -> bool:
    """Return whether a transform is torchvision's, or a `torch.nn.Sequential` of such alone."""
    if type(transform) is torch.nn.Sequential:
        return all(map(of_torchvision, transform))
    return _library_of(transform) == "torchvision"


def apply_to_each(transform: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Apply torchvision's transform, which draws once per call, to each sample of a batch; one that mixes samples, to
    the batch. `v2` gets mask and boxes in torchvision's own types; one that would leave them behind is refused."""
    kind = type(transform)
    if kind is torch.nn.Sequential or (kind.__name__ == "Compose" and _mixes(transform)):
        for part in _parts_of(transform):
            x, y = apply_to_each(part, x, y)
        return x, y
    if _mixes(transform):
        mixed: tuple[Any, Any] = transform(x, y)
        return mixed
    newer = ".v2" in kind.__module__
    if _moves_with(x, y) and (not newer or isinstance(y, dict)):
        remedy = 'leave out ragged="pad"' if newer else f"write torchvision.transforms.v2.{kind.__name__}(…)"
        msg = f"torchvision's {kind.__name__} would move x and not the masks or boxes in y: {remedy}."
        raise OptionError(msg)
    made = [
        _sample(transform, *parts) if newer else (transform(parts[0]), parts[1]) for parts in zip(x, y, strict=True)
    ]
    xs, ys = zip(*made, strict=True)
    return _joined(xs), _joined(ys)


def moves_pixels(transform: object) -> bool:
    """Return whether a transform, or a part of it, is another library's and moves pixels."""
    return any(_MOVES.search(type(part).__name__) for part in leaves_of(transform))


def _mixes(transform: object) -> bool:
    """Return whether a transform, or a part of it, mixes the samples of a batch, and so takes all of it."""
    return any(type(part).__name__ in ("CutMix", "MixUp") for part in leaves_of(transform))


def _moves_with(x: Any, y: Any) -> bool:
    """Return whether targets are masks or boxes, which move with their images."""
    if isinstance(y, dict):
        return BOXES in y
    if isinstance(y, list):
        return any(isinstance(one, dict) or getattr(one, "ndim", 0) > 1 for one in y)
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return both and pixel_axis(tuple(y.shape[1:]), tuple(x.shape[-2:])) is not None


# A matrix of a camera or a pose has at most so many rows, and a map of pixels more.
_MATRIX_ROWS = 4


def pixel_axis(target: tuple[int, ...], image: tuple[int, ...]) -> int | None:
    """Return which axis of a target `(…, H, W)`, -2, or `(…, H, W, K)`, -3, is the height, if it has the pixels of an
    image of this height and width, or fewer or more of them in proportion; `None` if it has none."""
    sizes = {-2: tuple(target[-2:]), -3: tuple(target[-3:-1])}
    found = [
        axis
        for axis, size in sizes.items()
        if len(size) == len(image) == 2
        and (size == image or (min(size) > _MATRIX_ROWS and size[0] * image[1] == size[1] * image[0] > 0))
    ]
    return min(found, key=lambda axis: sizes[axis] != image, default=None)


def moved_axis(target: tuple[int, ...], image: tuple[int, ...]) -> int | None:
    """Return the `pixel_axis` of a target that moves with its image; an OptionError if they differ in size."""
    axis = pixel_axis(target, image)
    if axis is not None and (size := target[axis:][:2]) != image:
        msg = (
            f"y has {size[0]} x {size[1]} values, and x has {image[0]} x {image[1]} pixels: y would not move with x. "
            "If y is an image or a map, resize it before, by a function of (x, y) first in Compose([…]). If not, "
            "write batch_transform=lambda x, y: (augment(x, x)[0], y)."
        )
        raise OptionError(msg)
    return axis


def _sample(transform: Any, x: torch.Tensor, y: Any) -> tuple[Any, Any]:
    from torchvision import tv_tensors

    size = tuple(x.shape[-2:])
    if isinstance(y, dict) and BOXES in y:
        y = {**y, BOXES: tv_tensors.BoundingBoxes(y[BOXES], format="XYXY", canvas_size=size)}
    elif isinstance(y, torch.Tensor) and (axis := moved_axis(tuple(y.shape), size)) is not None:
        # Theirs have the channels first.
        x, y = transform(tv_tensors.Image(x), tv_tensors.Mask(y.movedim(-1, 0) if axis == -3 else y))
        return _plain(x), _plain(y.movedim(0, -1) if axis == -3 else y)
    x, y = transform(tv_tensors.Image(x), y)
    return _plain(x), {name: _plain(part) for name, part in y.items()} if isinstance(y, dict) else _plain(y)


def _plain(part: Any) -> Any:
    return part.as_subclass(torch.Tensor) if isinstance(part, torch.Tensor) else part


def _joined(parts: tuple[Any, ...]) -> Any:
    if all(isinstance(part, torch.Tensor) for part in parts) and len({part.shape for part in parts}) == 1:
        return torch.stack(parts)
    return list(parts)
