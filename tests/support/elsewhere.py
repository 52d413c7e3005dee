"""A device that is none: what would run on a GPU runs on the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_ELSEWHERE = torch.device("xpu", 0)


class Elsewhere(TorchFunctionMode):
    """While this is entered, each tensor says that it is on another device, and what is put there stays here."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func == torch.Tensor.device.__get__:
            return _ELSEWHERE
        here = [torch.device("cpu") if isinstance(one, torch.device) else one for one in args]
        named = {
            name: torch.device("cpu") if isinstance(one, torch.device) else one for name, one in (kwargs or {}).items()
        }
        return func(*here, **named)
