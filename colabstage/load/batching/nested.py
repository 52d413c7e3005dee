"""Walking batches as loaders make them: tensors in lists, tuples, named tuples and mappings, to any depth."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild a batch with `change` called on everything in it that is no list, tuple or mapping.

    Containers keep their types; keys of mappings stay. What has a method `to` of its own, such as torch's
    `PackedSequence`, counts as one thing, whatever it derives from.
    """
    if not isinstance(batch, list | tuple | Mapping) or moves_itself(batch):
        return change(batch)
    if isinstance(batch, Mapping):
        return _map_values(batch, change)
    parts = [map_leaves(part, change) for part in batch]
    if isinstance(batch, list):
        return parts if type(batch) is list else _refilled(batch, parts)
    return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)


def moves_itself(thing: object) -> bool:
    """Whether a thing that is no tensor knows how to move to a device."""
    return not isinstance(thing, torch.Tensor) and callable(getattr(thing, "to", None))


def _map_values(batch: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    values = {key: map_leaves(value, change) for key, value in batch.items()}
    if type(batch) is dict:
        return values
    if isinstance(batch, MutableMapping):
        # A copy keeps what else the mapping has, such as a defaultdict's factory.
        filled = copy.copy(batch)
        filled.update(values)
        return filled
    return type(batch)(values)  # type: ignore[call-arg]


def _refilled(batch: list[Any], parts: list[Any]) -> Any:
    filled = copy.copy(batch)
    filled[:] = parts
    return filled
