"""Call functions of the caller's on samples and batches, and say what they were given if they cannot take it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import default_collate

from colabstage.errors import ColabstageError, OptionError, said_by
from colabstage.io.arguments import check_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.load.epoch import BatchPlace


@runtime_checkable
class SeededTransform(Protocol):
    """Transform batches by random parameters that follow from the place of the batch."""

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> tuple[Any, Any]:
        """Return the new `(x, y)`."""


_NAMES_SHOWN = 4
_IMAGE_AXES = (2, 3)


def describe(value: object) -> str:
    """Say what a value is: its type, and its shape and dtype where it has these.

    >>> describe(np.zeros((8, 8, 3), np.uint8)), describe([torch.zeros(2), "a"]), describe(None)
    ('an array (8, 8, 3) uint8', 'a list of 2, the first a tensor (2,) float32', 'None')
    """
    kind = type(value)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        thing = "a tensor" if isinstance(value, torch.Tensor) else "an array" if value.shape else "a number"
        words = [thing, str(tuple(value.shape) or ""), str(value.dtype).removeprefix("torch.")]
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            words.append(f"on {value.device}")
        said = " ".join(filter(None, words))
    elif isinstance(value, list | tuple):
        said = f"a {kind.__name__} of {len(value)}{f', the first {describe(value[0])}' if value else ''}"
    elif isinstance(value, Mapping):
        said = f"a {kind.__name__} of {', '.join(map(repr, list(value)[:_NAMES_SHOWN])) or 'nothing'}"
    elif kind.__module__.partition(".")[0] == "PIL":
        size: Any = getattr(value, "size", ())
        said = f"a PIL image {' x '.join(map(str, size))} {getattr(value, 'mode', '')}"
    else:
        said = "None" if value is None else f"a {kind.__name__}"
    return said


def check_transform(name: str, given: object) -> None:
    """Refuse what cannot be called with one sample's x, or with its y.

    Raises:
        OptionError: it is no function, or takes other arguments; the message has the line to write.
    """
    # Whoever writes dataset_h5(path, "train") means the split.
    remedy = f"For that split write split={given!r}." if isinstance(given, str) else ""
    check_argument(name, given, "function", remedy=remedy)
    side = "y" if name == "target_transform" else "x"
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "albumentations":
        # Its signature takes anything, and its result has the names that it was called with.
        msg = (
            f"{name} is albumentations' {kind}, which takes arguments by name; {name} is called with each {side} "
            f'alone. Write {name}=lambda {side}: augment(image={side})["image"].'
        )
        raise OptionError(msg)
    if library == "torchvision" and kind in {"CutMix", "MixUp"}:
        msg = (
            f"{name} is called with single samples, and {kind} mixes those of a batch. Write batch_transform={kind}(…)."
        )
        raise OptionError(msg)
    if (why := _cannot_take(given, 1)) is None:
        return
    if isinstance(given, type):
        remedy = f"It is a class; write {name}={given.__name__}()"
    elif _cannot_take(given, 2) is None:
        remedy = (
            "For x and y together, as of images with masks, write make_loader(…, batch_transform=f), called with both"
        )
    else:
        remedy = f"Write {name}=lambda {side}: f({side}), with what else it needs"
    msg = f"{name}={given!r:.100} cannot be called with each {side} alone: {why}. {remedy}."
    raise OptionError(msg)


def check_batch_transform(name: str, given: object) -> None:
    """Refuse what cannot be called as a batch transform.

    Raises:
        OptionError: it is a class, whose objects can; no function; or takes other arguments than `(x, y)`.
    """
    # A class has the methods of its objects, and would only fail at the first batch.
    if isinstance(given, type):
        msg = f"{name}={given.__name__} is a class; expected an object of it: {given.__name__}(…)."
        raise OptionError(msg)
    if isinstance(given, SeededTransform):
        return
    check_argument(name, given, "function", remedy="It is called with (x, y).")
    if (why := _cannot_take(given, 2)) is not None:
        remedy = f"Write {name}=lambda x, y: (f(x), y) for x alone"
        if _cannot_take(given, 1) is None:
            remedy += ", or dataset_h5(path, transform=f) if it takes single samples"
        msg = f"{name}={given!r:.100} cannot be called with (x, y) of a batch: {why}. {remedy}."
        raise OptionError(msg)


# Those of torchvision's transforms that take arrays, and what looks at a sample first and may be anybody's.
_TAKE_ARRAYS = frozenset({"ToTensor", "ToImage", "ToPILImage", "Lambda", "ToDtype", "ConvertImageDtype"})


def _takes_images(transform: object) -> bool:
    """Tell whether a transform is torchvision's and begins with one that takes PIL images but not arrays."""
    kind = type(transform)
    # By name: torchvision is not imported for this, and who passes one of its transforms has done it.
    if kind.__module__.partition(".")[0] != "torchvision":
        return False
    # `Compose`, and others of its kind: only the first one gets what is stored.
    parts: Any = getattr(transform, "transforms", None)
    if parts is not None:
        return any(_takes_images(one) for one in [*parts][:1])
    return kind.__name__ not in _TAKE_ARRAYS


def image_for(transform: object, x: Any) -> Any:
    """Return what a transform gets for an x: a PIL image if it takes those and no arrays, else x as it is. So are
    pixels that make no such image (16 bits, fractions, other shapes)."""
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim not in (2, 3) or not _takes_images(transform):
        return x
    from PIL import Image

    channels = x.shape[2] if x.ndim == 3 else 1
    if channels not in (1, 3, 4):
        return x
    return Image.fromarray(x[..., 0] if x.ndim == 3 and channels == 1 else x)


def _cannot_take(given: Any, count: int) -> str | None:
    """Say why a function cannot be called with so many arguments; `None` if it can, or does not tell."""
    try:
        signature = inspect.signature(given.forward if isinstance(given, torch.nn.Module) else given)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        return said_by(error)
    return None


def call_theirs(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the caller's, keep it from ending an epoch, and say what it was given if it fails.

    Raises:
        RuntimeError: it raised StopIteration, which a loop over batches would take for the end of the epoch.
        OptionError: it raised a `TypeError` or an `AttributeError`, as what expects something else does.
        Exception: any other error as it is, with a note that says what it was given.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        msg = f"{name} raised StopIteration, as next() does where an iterator has no more: {function!r}."
        raise RuntimeError(msg) from error
    except ColabstageError:
        raise
    except (TypeError, AttributeError) as error:
        said = said_by(error).partition("\n")[0].rstrip(":")
        msg = f"{name} failed with {_describe_given(arguments)}: {said}. {_conversion(name, arguments[0])}."
        raise OptionError(msg) from error
    except Exception as error:
        error.add_note(f"{name} was called with {_describe_given(arguments)}.")
        raise


def _describe_given(arguments: tuple[Any, ...]) -> str:
    shown = [describe(value) for value in arguments[:2]]
    return shown[0] if len(shown) == 1 else f"x {shown[0]} and y {shown[1]}"


def _conversion(name: str, given: object) -> str:
    """Return what to write for a function that takes something else than it is given."""
    if name == "batch_transform":
        return (
            'For floats write make_loader(…, dtype="float32"). If it takes arrays, write batch_transform=lambda x, y: '
            "(torch.from_numpy(f(x.numpy())), y); if it takes single images, dataset_h5(path, transform=f)"
        )
    if name == "transform" and isinstance(given, np.ndarray) and given.ndim in _IMAGE_AXES:
        return (
            "If it takes PIL images, write transform=lambda x: f(PIL.Image.fromarray(x)); if it takes tensors "
            "(C, H, W), transform=lambda x: f(torch.from_numpy(x).permute(2, 0, 1))"
        )
    side = "y" if name == "target_transform" else "x"
    return f"If it takes a tensor, write {name}=lambda {side}: f(torch.as_tensor({side})); convert {side} for others"


def apply_transform(
    transform: Callable[[Any, Any], tuple[Any, Any]] | SeededTransform, x: Any, y: Any, place: BatchPlace | None
) -> Any:
    """Call a batch transform: with its place if it takes one and that is known, otherwise with `(x, y)` alone.

    Raises:
        OptionError: it returned nothing, or x alone; or as `call_theirs`.
    """
    if place is not None and isinstance(transform, SeededTransform):
        return call_theirs("batch_transform", transform.apply_at, x, y, place)
    made = call_theirs("batch_transform", transform, x, y)  # type: ignore[arg-type]
    # Told here, because a loop would only say that it cannot unpack it; and of two samples it would, as x and y.
    if made is None or isinstance(made, torch.Tensor | np.ndarray):
        remedy = "does it lack a return?" if made is None else "write return x, y."
        msg = f"batch_transform returned {describe(made)}: {transform!r}. Expected the new (x, y); {remedy}"
        raise OptionError(msg)
    return made


def collate_results(name: str, results: list[Any]) -> Any:
    """Make a batch of what a transform has returned for its samples, as a stock `DataLoader` does.

    Raises:
        OptionError: they do not make one; the message says what they are, and what to write.
    """
    # They would be converted to one dtype, and bytes up to 255 would stand among fractions up to 1.
    arrays = [one for one in results if isinstance(one, torch.Tensor | np.ndarray) and len(one.shape)]
    if len({"float" in str(one.dtype) for one in arrays}) > 1:
        _refuse_results(name, results, None)
    try:
        return default_collate(results)
    except (TypeError, ValueError, RuntimeError) as error:
        _refuse_results(name, results, error)


def _refuse_results(name: str, results: list[Any], error: Exception | None) -> NoReturn:
    kinds = list(dict.fromkeys(map(describe, results)))
    found = " and ".join(kinds[:3])
    if any(one is None for one in results):
        remedy = "does it lack a return?"
    elif any("PIL" in kind for kind in kinds):
        remedy = f"end it with a conversion, as {name}=lambda x: numpy.asarray(f(x)), or torchvision's ToTensor()."
    elif any(min(one.strides, default=0) < 0 for one in results if isinstance(one, np.ndarray)):
        remedy = f"return a copy of a mirrored array: {name}=lambda x: f(x).copy()."
    elif error is None:
        remedy = f"convert all to one, as {name}=lambda x: numpy.float32(f(x))."
    elif len(kinds) > 1:
        remedy = "cut or resize all to one size in it; or write torch.utils.data.DataLoader(dataset, collate_fn=…)."
    else:
        remedy = f"convert them, as {name}=lambda x: numpy.asarray(f(x), 'float32')."
    msg = f"The results of {name} make no batch: {found}. Expected what has one shape and dtype; {remedy}"
    raise OptionError(msg) from error
