"""Keep images that were decoded, so that later epochs need not decode them again: in bounded memory, which goes back
when the system needs it.

What is kept is what the decoder gave, never something made of it: batches have the same bytes with and without.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.load.reading.memory import map_memory, reserve_lacking, spare_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    # Which field of which file, which row of it, and in which form.
    Key = tuple[int, int, int]

# Mapped at once, and given back at once: enough images that what is left at the end does not count.
_SLAB_BYTES = 32 * 1024 * 1024
# Of a processor's cache line.
_ALIGNMENT_BYTES = 64
# Asking for the free memory takes 0.1 ms, and a batch perhaps one.
_LOOK_S = 1.0


class KeptImage(NamedTuple):
    """An image that is kept."""

    pixels: NDArray[Any]
    """Not to be handed out or written to."""
    facts: Any
    """What whoever kept it noted with it."""


@dataclass(slots=True, eq=False)
class _Slab:
    """A piece of memory with several images."""

    memory: NDArray[np.uint8]
    """All of it."""
    used: int = 0
    """Bytes that are taken, from the start on."""
    keys: list[Key] = field(default_factory=list)
    """Of the images in it."""


class KeptImages:
    """Hold decoded images as far as a budget allows. From any thread; looking for one takes no lock.

    What came first stays, and nothing gives way to what comes later. An epoch visits each image once, in another order
    each time, so no image is wanted sooner than any other, and one that gives way only costs the decoding of both.

    A child made by fork finds what its parent had kept until then, and keeps nothing itself.
    """

    def __init__(
        self, most_bytes: int, free_memory: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the budget. `free_memory`: tells how many bytes this process may still use."""
        self.pid = os.getpid()
        self.most_bytes = most_bytes
        self._free_memory = free_memory
        self._clock = clock
        self._held: dict[Key, KeptImage] = {}
        self._slabs: list[_Slab] = []
        self._bytes = 0
        self._next_look = clock() + _LOOK_S
        self._grows_at = 0.0
        # Held while memory is shared out, never while anything is decoded or copied.
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Return the memory that is taken."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: Key) -> KeptImage | None:
        """Return what was kept by this name, if it was and still is."""
        # One look at a dict, which is atomic.
        return self._held.get(key)

    def fits(self, nbytes: int) -> bool:
        """Tell whether an image of so many bytes would probably be kept: asked before work that only keeping needs."""
        if os.getpid() != self.pid:
            return False
        if nbytes <= self._room():
            return True
        left = self.most_bytes - self._bytes
        return nbytes <= left and self._clock() >= self._grows_at

    def keep(self, key: Key, pixels: NDArray[Any], facts: Any = None) -> None:
        """Keep a copy, if there is room for it."""
        if os.getpid() != self.pid or pixels.nbytes == 0 or key in self._held:
            return
        with self._lock:
            taken = self._take(pixels.nbytes)
        if taken is None:
            return
        slab, memory = taken
        copy = memory.view(pixels.dtype).reshape(pixels.shape)
        copy[...] = pixels
        with self._lock:
            # Its memory may have been given back meanwhile, or another thread have decoded the same image.
            if slab in self._slabs and key not in self._held:
                slab.keys.append(key)
                self._held[key] = KeptImage(copy, facts)

    def attend(self) -> None:
        """Give memory back if the system has become short of it. Called for each batch, and looks once a second."""
        now = self._clock()
        if now < self._next_look or os.getpid() != self.pid:
            return
        self._next_look = now + _LOOK_S
        if self._bytes and (lacking := reserve_lacking(self._free_memory())):
            self.release(lacking)

    def release(self, nbytes: int | None = None) -> None:
        """Give back at least so many bytes, by default all. Images that are copied at this moment go a moment later."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            left = 0 if nbytes is None else max(0, self._bytes - nbytes)
            while self._slabs and self._bytes > left:
                slab = self._slabs.pop()
                self._bytes -= len(slab.memory)
                for key in slab.keys:
                    del self._held[key]

    def _room(self) -> int:
        """Return the bytes that are left where images are put now."""
        slabs = self._slabs[-1:]
        return len(slabs[0].memory) - slabs[0].used if slabs else 0

    def _take(self, nbytes: int) -> tuple[_Slab, NDArray[np.uint8]] | None:
        """Return memory for so many bytes, and what it is a part of; `None` where there is none."""
        if nbytes > self._room() and not self._grow(nbytes):
            return None
        slab = self._slabs[-1]
        start, slab.used = (
            slab.used,
            min(len(slab.memory), slab.used - (-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES),
        )
        return slab, slab.memory[start : start + nbytes]

    def _grow(self, nbytes: int) -> bool:
        now, left = self._clock(), self.most_bytes - self._bytes
        # One larger than what is left does not keep smaller ones from it.
        if nbytes > left or now < self._grows_at:
            return False
        size = max(nbytes, min(left, _SLAB_BYTES))
        # What the training process itself needs stays free, and twice what is taken: or it would be given back at once.
        if spare_memory(self._free_memory()) < 2 * size:
            self._grows_at = now + _LOOK_S
            return False
        # In small pages: on a virtual machine the first touch of huge ones took about three times as long, by which an
        # image cost as much to keep as to decode; and what is read once in an epoch gains little from them.
        self._slabs.append(_Slab(np.frombuffer(map_memory(size, huge_pages=False), np.uint8)))
        self._bytes += size
        return True


class KeptSlot:
    """Say where the readers of one field find what is kept of it, if anybody keeps any.

    Readers only look there: the memory is that of whoever made the `KeptImages`, a loader, and goes with it.
    """

    def __init__(self, number: int) -> None:
        """Take `number`, which tells this field's rows from others in the same memory."""
        self.number = number
        self._kept: weakref.ref[KeptImages] | None = None

    def fill(self, kept: KeptImages) -> None:
        """Use this memory from now on, as long as anybody holds it."""
        self._kept = weakref.ref(kept)

    @property
    def kept(self) -> KeptImages | None:
        """Return the memory, `None` where nobody keeps images."""
        return None if self._kept is None else self._kept()

    def __reduce__(self) -> tuple[type[KeptSlot], tuple[int]]:
        # Memory means nothing in another process.
        return KeptSlot, (self.number,)
