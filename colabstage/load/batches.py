"""Batches as torch tensors: convert arrays without a copy, convert nested batches, and apply the last steps to them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from colabstage.errors import OptionError
from colabstage.h5.schema import LABELS
from colabstage.io.arguments import check_choice, refuse_argument, whole_number
from colabstage.load.batch import Group, Ragged, is_image_shape, pad_boxes, target_array, white_of
from colabstage.load.calling import apply_transform, collate_results

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from colabstage.load.dataset import dataset_h5
    from colabstage.load.epoch import BatchPlace
    from colabstage.load.loader import WholeBatch

_IMAGE_AXES = 3


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild a batch with `change` applied to every element that is not a list, tuple or mapping; these keep their
    types. An object with a method `to`, such as torch's `PackedSequence`, counts as one element."""
    if not isinstance(batch, list | tuple | Mapping) or moves_itself(batch):
        return change(batch)
    if isinstance(batch, Mapping):
        values = {key: map_leaves(value, change) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(values)  # type: ignore[call-arg]
        # A copy keeps what a mapping is besides its items, such as a defaultdict's factory.
        filled: Any = copy.copy(batch)
        filled.update(values)
        return filled
    parts = [map_leaves(part, change) for part in batch]
    return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)


def moves_itself(thing: object) -> bool:
    """Return whether an object that is not a tensor has a method to move it to a device."""
    to = None if isinstance(thing, torch.Tensor) else getattr(thing, "to", None)
    # Quantities have one as well, which takes a unit.
    names = [*inspect.signature(to).parameters.values()][:1] if inspect.ismethod(to) else []
    return any(one.name == "device" or one.kind is one.VAR_POSITIONAL for one in names)


@dataclass(frozen=True, slots=True)
class Form:
    """How batches `(x, y)` or `(x, y, index)` are made of a dataset's samples, and the last steps: dtype and batch
    transform."""

    dataset: dataset_h5
    ragged: Ragged
    label_offset: int
    dtype: torch.dtype | None
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None

    def __post_init__(self) -> None:
        check_choice("ragged", self.ragged, Ragged)
        whole_number("label_offset", self.label_offset)
        if self.label_offset and not self.dataset.reader.has_boxes:
            remedy = f"Write batch_transform=lambda x, y: (x, y + {self.label_offset}) for other targets."
            refuse_argument("label_offset", self.label_offset, "0, as y has no boxes", remedy=remedy)

    def targets(self, y: Any) -> Any:
        """Return targets as tensors; rows of different shapes as a list, boxes as `ragged` says."""
        if not isinstance(y, list):
            return tensor_of(target_array(y))
        if self.label_offset:
            y = [{**one, LABELS: one[LABELS] + self.label_offset} for one in y]
        if self.ragged == "pad" and all(isinstance(one, dict) for one in y):
            return _tensors(pad_boxes(y))
        return _tensors(y)

    def batches(self, group: Group) -> list[tuple[Any, Any]]:
        """Return the batches of a group. Each has tensors of its own over its part of the memory, so that saving or
        sending one does not take along the others."""
        if len(group.rows) == 1:
            return [self.batch(group.x, group.y, group.rows[0])]
        # Converted once for the group, not for each batch.
        tensor_of(targets := target_array(group.y))
        return [(input_tensor(x), torch.from_numpy(y)) for x, y, _ in group._replace(y=targets).parts()]

    def batch(self, x: Any, y: Any, rows: Iterable[int]) -> tuple[Any, Any]:
        """Return the batch of `rows` that were read, transformed by the dataset's transforms if it has any: these are
        called in this thread, sample by sample, as by a stock `DataLoader`. A side without one stays as it was."""
        dataset = self.dataset
        if not dataset.per_sample:
            return input_tensors(x), self.targets(y)
        xs, ys = map(list, zip(*dataset.samples_of(x, y, rows), strict=True))
        # As a stock DataLoader stacks the results of a transform, so that code moves here unchanged.
        made_x = input_tensors(x) if dataset.transform is None else collate_results("transform", xs)
        if dataset.target_transform is None:
            return made_x, self.targets(y)
        if dataset.reader.has_boxes:
            # The transform may have replaced the dicts; other results are passed on unchanged.
            return made_x, self.targets(ys) if all(isinstance(target, dict) for target in ys) else ys
        return made_x, collate_results("target_transform", ys)

    def scale(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        return batch if self.dtype is None else (scale_to(batch[0], self.dtype), *batch[1:])

    def finish(self, batch: tuple[Any, ...], place: BatchPlace | None = None) -> Any:
        """Return the batch as the caller gets it: `(x, y)`, or `((x, y), index)`. `place`: what random transforms draw
        by, if known."""
        x, y, *index = batch
        change = self.batch_transform
        sample = (x, y) if change is None else apply_transform(change, x, y, place)
        return (sample, index[0]) if index else sample

    def collate(self, batch: WholeBatch) -> Any:
        """Read and finish batches for frameworks that build loaders from our parts, where they expect a `collate_fn`;
        the batches are in host memory."""
        return self.finish(self.scale(batch.dataset.whole(batch.indices)))


def input_tensors(x: NDArray[Any] | list[Any]) -> Any:
    """Return inputs as tensors over the same memory: images `(B, H, W, C)` as a `(B, C, H, W)` view (`channels_last`),
    images of different sizes as a list of `(C, H, W)`."""
    if not isinstance(x, list):
        return input_tensor(x)
    return [
        part.permute(2, 0, 1) if isinstance(part, torch.Tensor) and part.dim() == _IMAGE_AXES else part
        for part in _tensors(x)
    ]


def input_tensor(x: NDArray[Any]) -> torch.Tensor:
    tensor = tensor_of(x)
    return tensor.permute(0, 3, 1, 2) if is_image_shape(x.shape[1:]) else tensor


def _tensors(values: Any) -> Any:
    return map_leaves(values, lambda part: tensor_of(part) if isinstance(part, np.ndarray) else part)


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the same memory."""
    return torch.from_numpy(array)


def torch_dtype(dtype: torch.dtype | DTypeLike | None) -> torch.dtype | None:
    """Return the floating-point dtype for torch's, numpy's or its name, or `None`; an OptionError if it is none."""
    if dtype is None:
        return None
    name: object = dtype
    if not isinstance(dtype, str | torch.dtype):
        # numpy's names are also torch's.
        with suppress(TypeError):
            name = np.dtype(dtype).name
    # Names as in Keras, or as torch prints them.
    found = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        msg = (
            f'dtype={dtype!r} is not a floating-point dtype; expected one such as torch.float32 or "float32". Leave it '
            "out for batches as they are stored."
        )
        raise OptionError(msg)
    return found


def scale_to(x: Any, dtype: torch.dtype) -> Any:
    """Convert all tensors in x to a floating-point dtype on their device; uint8 and uint16 are scaled to [0, 1], others
    are not."""
    return map_leaves(x, lambda part: _scaled(part, dtype) if isinstance(part, torch.Tensor) else part)


def _scaled(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    white = white_of(x.dtype)
    if white == 1.0:
        # Floats and wide integers do not tell the range of their values.
        return x.to(dtype)
    # 65535 exceeds float16, so it is divided in float32 first.
    wide = torch.float32 if x.dtype == torch.uint16 else dtype
    scaled = x.to(wide)
    # For a plain number, CUDA multiplies by the reciprocal, which differs in the last bit from division on CPUs.
    divisor = white if not x.is_cuda else torch.full((), white, dtype=wide, device=x.device)
    return scaled.div_(divisor).to(dtype)


def stacked_arrays(name: str, results: list[Any], dtype: DTypeLike | None = None) -> Any:
    """Stack what a transform returned for each sample into arrays, as `collate_results`; lists of numbers are vectors,
    and what numpy reads as an array counts as one. `dtype`: as `scale_to`."""

    def is_vector(one: Any) -> bool:
        return isinstance(one, list) and not any(getattr(part, "shape", ()) for part in one)

    made = collate_results(name, [_plain(one) if is_vector(one) else map_leaves(one, _plain) for one in results])
    return _arrays(made if dtype is None else scale_to(made, torch_dtype(dtype) or torch.float32))


def _plain(one: Any) -> Any:
    # torch takes no steps backwards, no foreign byte order, no images of PIL and no tensors of TensorFlow; a stack of
    # one is a copy without all these.
    return one if isinstance(one, torch.Tensor | str | bytes) else np.stack([np.asarray(one)])[0]


def _arrays(made: Any) -> Any:
    if isinstance(made, Mapping):
        return {key: _arrays(part) for key, part in made.items()}
    # Keras and TensorFlow take tuples for several arrays.
    if isinstance(made, list | tuple):
        return np.array(made) if made and isinstance(made[0], str | bytes) else tuple(map(_arrays, made))
    return made.detach().numpy() if isinstance(made, torch.Tensor) else made


def move_to(x: Any, device: torch.device) -> Any:
    """Copy tensors, also in lists and dicts, to a device; those already there stay."""
    return map_leaves(x, lambda part: part.to(device) if isinstance(part, torch.Tensor) else part)
