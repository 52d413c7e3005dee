"""The interface between readers of a file and what brings its rows: a pack that is written, fetched or copied.

The file has its final length and layout, and rows come in *units*: blocks of a pack that is elsewhere, byte ranges of
an archive that is being packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from colabstage.io.progress import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation

# What is read of a row: all of it, or its targets alone.
Side = Literal["row", "targets"]


@dataclass(frozen=True, eq=False, slots=True)
class UnitLayout:
    """The units that rows come in: a function of the file, its source and a limit, never of what has arrived."""

    units: Callable[[str], NDArray[np.intp]]
    """Returns the unit of each row of a split, `(N,)`; if a row may be in several, its first and last unit, `(N, 2)`.
    Counted from 0."""
    window_units: int
    """How many units one window may hold."""
    reason: str
    """Why so many, in words for the plan."""
    place: Path | None = None
    """Where the file will be moved once it is complete; `None` if it stays where it is."""
    first_units: int = 1
    """How many units the first batch may wait for: more than one if the rows of a unit may be alike."""
    together: int = 1
    """How many neighbouring units are visited shortly after each other: one request may bring them."""
    first_epoch_only: bool = False
    """Whether only the first epoch is visited by units, because all rows are here after it."""
    lasting: bool = True
    """Whether a process that finds all of the file here has the same units, such as a rank that waited for it."""


class Expectation(Protocol):
    """Rows that one reader announced, in order."""

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        """Record that the first `rows` of them have been read, after a further wait of so many seconds."""

    def close(self) -> None:
        """Drop it: the rest will not be read. Calling it twice is fine."""


class Arrival(Protocol):
    """Bring rows of a file that are not all here yet. Safe in threads, picklable, and usable after a fork."""

    @property
    def layout(self) -> UnitLayout:
        """Return how rows come, which does not change."""

    @property
    def complete(self) -> bool:
        """Return whether all rows are here and stay here, so that readers can treat the file like any other."""

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
            ColabstageError: what brings them failed; the message says what is here. Asking again tries again.
            CancelledError: `cancellation` was used.
        """


class Readiness(NamedTuple):
    """How much of an arriving dataset is here."""

    rows: int
    """Rows that are here."""
    total: int
    """All rows."""

    @property
    def fraction(self) -> float:
        """Return the part that is here, from 0 to 1."""
        return self.rows / self.total if self.total else 1.0

    def __str__(self) -> str:
        return f"{self.rows:,} of {self.total:,} ({self.fraction:.0%})"


class HandedOut:
    """Count what readers have received of an arriving dataset.

    Attributes:
        rows: how many.
        first_s: when the first came, by the system's clock; `None` before.
        last_s: when the latest came.
        waited_s: seconds that all loops together have waited for their batches.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.waited_s = 0.0
        self.first_s: float | None = None
        self.last_s = 0.0

    def note(self, rows: int, waited_s: float) -> None:
        """Count rows that a reader has received after a wait."""
        self.last_s = SYSTEM_CLOCK.now()
        self.first_s = self.last_s if self.first_s is None else self.first_s
        self.rows += rows
        self.waited_s += waited_s
