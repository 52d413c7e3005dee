"""Batch transforms of torchvision and kornia: called as their libraries mean them, with masks and boxes, or refused."""

from __future__ import annotations

from typing import Any

import torch

from colabstage.errors import OptionError
from colabstage.h5.schema import BOXES

# They mix the samples of a batch, and so take all of it.
_OF_BATCHES = frozenset({"CutMix", "MixUp"})


def is_foreign(transform: object) -> bool:
    """Return whether a transform is torchvision's or kornia's."""
    # By name: neither is imported for this, and who passes one of theirs has done it.
    return type(transform).__module__.partition(".")[0] in ("torchvision", "kornia")


def apply_foreign(transform: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Apply a transform of another library to a batch. torchvision's take one sample, and draw once for it: they are
    called for each, the newer ones (`v2`) with mask and boxes in torchvision's own types. kornia's take batches of
    images alone, and draw for each. What would move images and not their masks or boxes is refused."""
    kind = type(transform)
    if kind.__module__.startswith("kornia"):
        if _moves_with(x, y):
            msg = (
                f"kornia's {kind.__name__} moves x alone, not the masks or boxes in y. Write batch_transform=lambda x, "
                'y: augment(x, y) with augment = kornia.augmentation.AugmentationSequential(…, data_keys=["input", '
                '"mask"]), or use colabstage.transforms.'
            )
            raise OptionError(msg)
        return transform(x), y
    if _mixes(transform):
        return _mixed(transform, x, y)
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


def _parts_of(transform: Any) -> list[Any]:
    """Return the transforms that one is made of, if it is made of any."""
    return list(getattr(transform, "transforms", ()))


def _mixes(transform: Any) -> bool:
    """Return whether a transform, or a part of it, mixes the samples of a batch."""
    return type(transform).__name__ in _OF_BATCHES or any(map(_mixes, _parts_of(transform)))


def _mixed(transform: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Apply a transform that takes whole batches, or part by part a `Compose` that ends in one."""
    parts, kind = _parts_of(transform), type(transform)
    if kind.__name__ == "Compose":
        for part in parts:
            x, y = apply_foreign(part, x, y)
        return x, y
    if not all(map(_mixes, parts)):
        msg = (
            f"torchvision's {kind.__name__} has parts that take one sample and parts that mix a batch. Write "
            "batch_transform=colabstage.transforms.Compose([…]) with those that mix at its end."
        )
        raise OptionError(msg)
    made: tuple[Any, Any] = transform(x, y)
    return made


def _moves_with(x: Any, y: Any) -> bool:
    """Return whether targets are masks or boxes, which move with their images."""
    if isinstance(y, dict):
        return BOXES in y
    if isinstance(y, list):
        return any(isinstance(one, dict) or getattr(one, "ndim", 0) > 1 for one in y)
    return isinstance(y, torch.Tensor) and isinstance(x, torch.Tensor) and y.shape[-2:] == x.shape[-2:] and y.dim() > 2


def _sample(transform: Any, x: torch.Tensor, y: Any) -> tuple[Any, Any]:
    from torchvision import tv_tensors

    size = tuple(x.shape[-2:])
    if isinstance(y, dict) and BOXES in y:
        y = {**y, BOXES: tv_tensors.BoundingBoxes(y[BOXES], format="XYXY", canvas_size=size)}
    elif isinstance(y, torch.Tensor) and y.shape[-2:] == size:
        y = tv_tensors.Mask(y)
    x, y = transform(tv_tensors.Image(x), y)
    return _plain(x), {name: _plain(part) for name, part in y.items()} if isinstance(y, dict) else _plain(y)


def _plain(part: Any) -> Any:
    return part.as_subclass(torch.Tensor) if isinstance(part, torch.Tensor) else part


def _joined(parts: tuple[Any, ...]) -> Any:
    if all(isinstance(part, torch.Tensor) for part in parts) and len({part.shape for part in parts}) == 1:
        return torch.stack(parts)
    return list(parts)
