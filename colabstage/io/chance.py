"""Notice that the caller's code draws random numbers whose results are stored."""

from __future__ import annotations

import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Chance:
    """The states of the default random generators, before the caller's code was called."""

    def __init__(self) -> None:
        self._before = _states()

    def notes(self, what: str, *, differs: bool = False) -> list[str]:
        """Return a note if the code, called `what`, has drawn from any of them meanwhile, or `differs`: if it returned
        something else when it was called again, as with a generator of its own."""
        drew = any(now != before for now, before in zip(_states(), self._before, strict=False))
        # Some pipelines always draw, even if nothing in them is random.
        note = (
            f"{what} drew random numbers. If that is augmentation, each epoch repeats what is stored: give it to "
            "make_loader, as batch_transform=."
        )
        return [note] if drew or differs else []


def _states() -> list[Any]:
    import numpy as np

    # While another thread imports torch, it is there without.
    draws: list[Callable[[], Any]] = [random.getstate, lambda: pickle.dumps(np.random.get_state())]  # noqa: NPY002
    if (torch := getattr(sys.modules.get("torch"), "get_rng_state", None)) is not None:
        draws.append(lambda: torch().numpy().tobytes())
    return [draw() for draw in draws]
