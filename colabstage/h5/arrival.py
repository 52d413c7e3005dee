"""The interface between readers of a file and whatever brings its rows: packing, fetching or copying.

The file has its final length and layout, and rows come in *units*: blocks of a pack that is elsewhere, byte ranges of
an archive that is being packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from colabstage.io.progress import SYSTEM_CLOCK, Cancellation
from colabstage.trees.bytes import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


# The part of a row that is read: all of it, or only its targets.
Side = Literal["row", "targets"]


@dataclass(frozen=True, eq=False, slots=True)
class UnitLayout:
    """The units that rows come in. They depend on the file, its source and a limit, never on what has arrived."""

    units: Callable[[str], NDArray[np.intp]]
    """Returns the unit of each row of a split, `(N,)`, counted from 0; if a row may span several, its first and last
    unit, `(N, 2)`."""
    window_units: int
    """How many units one window may hold."""
    reason: str
    """The reason for that number, in words for the plan."""
    place: Path | None = None
    """Where the file will be moved once it is complete; `None` if it stays where it is."""
    first_units: int = 1
    """How many units the first batch may wait for: more than one if the rows of a unit may be alike."""
    together: int = 1
    """How many neighbouring units are visited close together: one request may bring them."""
    first_epoch_only: bool = False
    """Whether only the first epoch is visited by units, because all rows are local after it."""
    lasting: bool = True
    """Whether a process that finds the whole file local has the same units, such as a rank that waited for it."""


class Expectation(Protocol):
    """Rows that one reader has announced, in order."""

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        """Record that the first `rows` of them have been read, after a further wait of `waited_s` seconds."""

    def close(self) -> None:
        """Drop it: the rest will not be read. Calling it twice is fine."""


class Arrival(Protocol):
    """Bring rows of a file that are not all local yet. Thread-safe, picklable, and usable after a fork."""

    @property
    def layout(self) -> UnitLayout:
        """Return how rows come, which never changes."""

    @property
    def complete(self) -> bool:
        """Return whether all rows are local and stay so: readers can then treat the file like any other."""

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectation:
        """Announce the rows that will be read, in order, for prefetching and eviction. `then` returns the rows after
        them, such as the next epoch's; it may be called late, in another thread, or never."""

    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: Side = "row", cancellation: Cancellation | None = None
    ) -> AbstractContextManager[None]:
        """Wait until these rows can be read, and keep them from eviction within the context. Rows may be repeated.

        Raises:
            ColabstageError: bringing them failed; the message says which rows are local. Asking again tries again.
            CancelledError: `cancellation` was used.
        """


class Readiness(NamedTuple):
    """How much of an arriving dataset is local."""

    rows: int
    total: int

    @property
    def fraction(self) -> float:
        """Return the local fraction, from 0 to 1."""
        return self.rows / self.total if self.total else 1.0

    def __str__(self) -> str:
        return f"{self.rows:,} of {self.total:,} ({self.fraction:.0%})"


class HandedOut:
    """Count what readers have received of an arriving dataset."""

    def __init__(self) -> None:
        self.rows = 0
        # Seconds that all loops together have waited for batches.
        self.waited_s = 0.0
        # When the first arrived, by the system's clock, and the latest.
        self.first_s: float | None = None
        self.last_s = 0.0

    def note(self, rows: int, waited_s: float) -> None:
        self.last_s = SYSTEM_CLOCK.now()
        self.first_s = self.last_s if self.first_s is None else self.first_s
        self.rows += rows
        self.waited_s += waited_s


# A packed file of which only some blocks are local. HDF5 would open it and read the missing parts as zeros: black
# pictures with real labels. So its first bytes are a mark instead of HDF5's signature, and the code that brings the
# rest reads it with the signature.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
PART_MARK = b"IN PART\n"


def with_mark(data: bytes, offset: int) -> bytes:
    """Return bytes of a whole file, from `offset` on, as a partial file stores them."""
    return _with_head(data, offset, SIGNATURE, PART_MARK)


def with_signature(data: bytes, offset: int) -> bytes:
    """Return bytes of a partial file as the whole file has them."""
    return _with_head(data, offset, PART_MARK, SIGNATURE)


def _with_head(data: bytes, offset: int, old: bytes, new: bytes) -> bytes:
    if offset >= len(old) or not data:
        return data
    stop = min(len(old), offset + len(data))
    if data[: stop - offset] != old[offset:stop]:
        return data
    return new[offset:stop] + data[stop - offset :]


def is_marked(path: Path) -> bool:
    """Tell whether only a part of the file at `path` is local; raises errors of opening it."""
    with open(path, "rb") as handle:
        return handle.read(len(PART_MARK)) == PART_MARK


class MarkedBytes(LocalBytes):
    """A file with the mark, read with HDF5's signature in its place. It closes with its last reference."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        return with_signature(super().pread(length, offset), offset)
