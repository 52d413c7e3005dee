"""In which order samples are packed: the one in which readers need them, as far as anybody has said.

Samples that are neighbours in their medium are packed together, as a *unit*: a stretch of an archive that one request
brings, a few files of a folder. Which samples form a unit follows from the source's layout alone. The order of units
follows the needs of readers, and may change while it is used.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from colabstage.pack.journal import BLOCK_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# A request costs a round trip before its first byte, and the first batch waits for a unit.
_UNIT_BYTES = 8 * 1024 * 1024


def window_units(units: int) -> int:
    """Return over how many units rows of the first epoch are shuffled, of so many.

    One of 32, so that little is left to train on once the last has come; but enough of them that a source that is
    sorted by class is mixed, and no more than it takes for that.
    """
    return min(max(units // 32, 16), 256)


def pack_units(costs: NDArray[np.int64], *, sequential: bool) -> NDArray[np.int32]:
    """Return the unit of the sample at each position of the reading order, int32 `(N,)`, counted from 0.

    Args:
        costs: int64 `(N,)`, bytes that each takes to read.
        sequential: whether neighbours are had sooner together, as those of an archive; files of a folder are not, so
            their units are as small as the journal allows.
    """
    count = len(costs)
    # Whole blocks of the journal: a kill costs those that are not finished.
    blocks = np.arange(count) // BLOCK_SAMPLES
    if not sequential or not count:
        return blocks.astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(costs)[:-1]])
    at_block = starts[::BLOCK_SAMPLES] // _UNIT_BYTES
    # Numbers without gaps, also where one sample is longer than a unit.
    numbers = np.concatenate([[0], np.cumsum(np.diff(at_block) > 0)])
    return numbers[blocks].astype(np.int32)


class PackingOrder(Sequence[int]):
    """Positions that are left to pack. The order of those that nobody has taken yet may change at any time.

    For `run_pipeline`, which takes item after item, each once or more often, and never goes back.
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
        """Return an item; from now on it stays where it is, with all before it."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        with self._lock:
            self._taken = max(self._taken, number + 1)
            return int(self._left[number])

    def sort(self, turns: NDArray[np.int64]) -> None:
        """Sort what is left by the turn of each unit, `(U,)`, and within one in the order of the medium."""
        with self._lock:
            rest = self._left[self._taken :]
            self._left[self._taken :] = rest[np.lexsort((rest, turns[self._units[rest]]))]

    def units_left(self) -> NDArray[np.bool_]:
        """Return which units have samples that nobody has taken."""
        with self._lock:
            rest = self._left[self._taken :]
        found = np.zeros(int(self._units.max(initial=-1)) + 1, np.bool_)
        found[self._units[rest]] = True
        return found


class Needs:
    """What readers have said they will read, of which the next is packed first; each reader in turns."""

    def __init__(self, units: int, changed: Callable[[NDArray[np.int64]], None]) -> None:
        """Begin without needs.

        Args:
            units: how many there are.
            changed: told the turn of each unit, `(units,)`, whenever needs are others.
        """
        self._units = units
        self._changed = changed
        self._lock = threading.Lock()
        self._needs: list[_Need] = []

    def add(self, units: NDArray[np.int32]) -> _Need:
        """Take note of units that somebody will read, in order; they may be repeated."""
        need = _Need(self, units)
        with self._lock:
            self._needs.append(need)
        self._tell()
        return need

    def drop(self, need: _Need) -> None:
        """Forget what somebody said: nobody reads the rest."""
        with self._lock:
            if need not in self._needs:
                return
            self._needs.remove(need)
            others = bool(self._needs)
        # What is left without needs is packed in the order that was there last.
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
        # A finalizer of the reader's holds this one, and must not hold all of the packing, and with it the reader.
        self._needs = weakref.ref(needs)
        self._units = units

    def turns(self, count: int) -> NDArray[np.int64]:
        """Return when each of `count` units is first read: counted from 0, and `count` for those that are not."""
        named, first = np.unique(self._units, return_index=True)
        turns = np.full(count, count, np.int64)
        turns[named[np.argsort(first, kind="stable")]] = np.arange(len(named))
        return turns

    def reached(self, rows: int) -> None:
        """Do nothing: what was read is packed."""

    def close(self) -> None:
        """Forget it. Calling it twice is fine."""
        needs = self._needs()
        if needs is not None:
            needs.drop(self)
