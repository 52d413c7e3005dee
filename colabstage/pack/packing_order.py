"""The order in which samples are packed: the one in which readers need them, as far as they have said.

Samples that are neighbours in the source are packed together, as a *unit*: a byte range of an archive that one request
fetches, or a few files of a folder. Which samples form a unit follows from the source's layout alone. The order of
units follows the needs of readers, and may change while it is used.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from colabstage.pack.journal import BLOCK_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# What far archives are cut into. Each stretch costs a request, and its round trip is hidden by those beside it as long
# as it is not too short: with 16 of them and 0.4 s, 2.5 MB keep a line of 100 MB/s busy. Each also is of one class,
# mostly, and a first batch is of a few.
_LEAST_FAR_BYTES, _MOST_FAR_BYTES = 2**20, 4 * 2**20
_STRETCHES_OF = 8_000
# Of an archive that is here: a disk with a head, too, reads so much in the time of a few seeks.
_NEAR_BYTES = 2**18
_LEAST_WINDOW, _MOST_WINDOW = 64, 512


def window_units(units: int) -> int:
    """Return the number of units in a window of the first epoch, of so many units.

    A quarter, so that a source that is sorted by class is mixed. It costs time only where training takes as long as
    arrival, to within a half: then half a window is left to train on when the last unit has come.
    """
    return min(max(units // 4, _LEAST_WINDOW), _MOST_WINDOW)


def stretch_bytes(nbytes: int, *, far: bool) -> int:
    """Return how long the stretches of an archive are that its samples come in.

    Of one that is `far`, longer in a long one: short stretches mix better, and in a short archive there is little time
    to lose with their round trips.
    """
    return min(max(math.isqrt(_STRETCHES_OF * nbytes), _LEAST_FAR_BYTES), _MOST_FAR_BYTES) if far else _NEAR_BYTES


def pack_units(costs: NDArray[np.int64], unit_bytes: int) -> NDArray[np.int32]:
    """Return the unit of the sample at each position of the reading order, int32 `(N,)`, counted from 0.

    Args:
        costs: int64 `(N,)`, how many bytes are read for each sample.
        unit_bytes: how many of them arrive sooner together, as in an archive; 0 for files of a folder, whose units are
            as small as the journal allows.
    """
    count = len(costs)
    # Whole blocks of the journal, because a kill loses the unfinished ones.
    blocks = np.arange(count) // BLOCK_SAMPLES
    if not unit_bytes or not count:
        return blocks.astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(costs)[:-1]])
    at_block = starts[::BLOCK_SAMPLES] // unit_bytes
    # Numbers without gaps, even where one sample is longer than a unit.
    numbers = np.concatenate([[0], np.cumsum(np.diff(at_block) > 0)])
    return numbers[blocks].astype(np.int32)


class PackingOrder(Sequence[int]):
    """The positions that are left to pack. The order of those not taken yet may change at any time.

    For `run_pipeline`, which takes one item after the other, possibly several times, and never goes back.
    """

    def __init__(self, left: Sequence[int], units: NDArray[np.int32]) -> None:
        self._left = np.asarray(left, np.int64)
        self._units = units
        self._taken = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._left)

    @overload
    def __getitem__(self, number: int) -> int: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[int]: ...
    def __getitem__(self, number: int | slice) -> int | Sequence[int]:
        """Return an item; from now on it stays where it is, and so do all before it."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        with self._lock:
            self._taken = max(self._taken, number + 1)
            return int(self._left[number])

    def sort(self, turns: NDArray[np.int64]) -> None:
        """Sort what is left by the turn of each unit, `(U,)`, and within a unit in the order of the source."""
        with self._lock:
            rest = self._left[self._taken :]
            self._left[self._taken :] = rest[np.lexsort((rest, turns[self._units[rest]]))]

    def units_left(self) -> NDArray[np.bool_]:
        """Return which units have samples that were not taken yet."""
        with self._lock:
            rest = self._left[self._taken :]
        found = np.zeros(int(self._units.max(initial=-1)) + 1, np.bool_)
        found[self._units[rest]] = True
        return found


class Needs:
    """What readers will read, of which the next is packed first; readers take turns."""

    def __init__(self, units: int, changed: Callable[[NDArray[np.int64]], None]) -> None:
        """Begin without needs.

        Args:
            units: how many there are.
            changed: called with the turn of each unit, `(units,)`, whenever needs change.
        """
        self._units = units
        self._changed = changed
        self._lock = threading.Lock()
        self._needs: list[_Need] = []

    def add(self, units: NDArray[np.int32]) -> _Need:
        """Add units that a reader will read, in order; they may be repeated."""
        need = _Need(self, units)
        with self._lock:
            self._needs.append(need)
        self._tell()
        return need

    def drop(self, need: _Need) -> None:
        """Remove the needs of a reader that stopped."""
        with self._lock:
            if need not in self._needs:
                return
            self._needs.remove(need)
            others = bool(self._needs)
        # Without any needs the last order stays.
        if others:
            self._tell()

    def _tell(self) -> None:
        last = self._units
        turns = np.full(self._units, last, np.int64)
        with self._lock:
            needs = list(self._needs)
        for need in needs:
            np.minimum(turns, need.turns(self._units), out=turns)
        self._changed(turns)


class _Need:
    """Units that one reader will read, in order."""

    def __init__(self, needs: Needs, units: NDArray[np.int32]) -> None:
        # A finalizer of the reader refers to this object. A strong reference would keep the packing alive, and with it
        # the reader.
        self._needs = weakref.ref(needs)
        self._units = units

    def turns(self, count: int) -> NDArray[np.int64]:
        """Return the turn in which each of `count` units is first read, from 0; `count` for those that are not read."""
        named, first = np.unique(self._units, return_index=True)
        turns = np.full(count, count, np.int64)
        turns[named[np.argsort(first, kind="stable")]] = np.arange(len(named))
        return turns

    def reached(self, rows: int) -> None:
        """Do nothing, because rows that were read have been packed."""

    def close(self) -> None:
        """Remove it. Calling this twice is fine."""
        needs = self._needs()
        if needs is not None:
            needs.drop(self)
