"""Memory that a thread uses again for every image: faulting fresh pages takes a tenth of the time of decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scratch:
    """What one thread decodes and resizes into. Grows to the largest image; never to be shared by two threads."""

    def __init__(self, decoded: bytearray | None = None) -> None:
        self.decoded = bytearray() if decoded is None else decoded
        self._resized = np.empty((0, 0, 0), np.uint8)

    def resized(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """A C-contiguous array `(H, W, C)` of any content; the one returned before, where it has this shape."""
        if self._resized.shape != shape:
            self._resized = np.empty(shape, np.uint8)
        return self._resized
