"""Rows of a pack that is being written: what a loader waits for, in the process that packs and in all others.

The file has its final layout before the first sample is decoded, so readers open it at once, and a row can be read as
soon as it is in its place. Samples are packed in *units*, neighbours in the source, and the first epoch visits units in
a seeded order, so packing knows what readers need next.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from colabstage.errors import DecodeError, NotStagedError
from colabstage.h5.manifest import read_manifest
from colabstage.io.clock import SYSTEM_CLOCK
from colabstage.io.progress import HandedOut, Readiness
from colabstage.pack.row_map import PackState, RowMap, RowState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.pack.packing_order import Needs

# Waiting means looking at a row's byte: often at first, because a batch that is nearly complete should not lose time.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.02
# Whether the packing process is alive is a question to the system, and only of interest when nothing arrives.
_LOOK_AT_OWNER_S = 1.0


# Neighbours in a source are often of one class, so the first batch is of so many units, which are asked for at once.
FIRST_UNITS = 8


class SplitRows(NamedTuple):
    """Where the rows of a split are in the map, and which units they belong to."""

    start: int
    """The position of its first row in the map."""
    units: NDArray[np.int32]
    """The unit of each row."""


class ArrivalPlan(NamedTuple):
    """What is known about a pack before a row of it is there."""

    unit: str
    """What samples are called."""
    window_units: int
    """How many units one window of the first epoch may hold."""
    leaves_out: bool
    """Whether samples may turn out to be unusable."""
    knows_targets: bool
    """Whether targets are in the file from the beginning."""


class Expectation(Protocol):
    """Rows that one reader will read, in order; as in `load.arrival`."""

    def reached(self, rows: int) -> None: ...
    def close(self) -> None: ...


class _Nothing:
    """An expectation without effect."""

    def reached(self, rows: int) -> None:
        pass

    def close(self) -> None:
        pass


class PackArrival:
    """The `load.arrival.Arrival` of a pack that is being written.

    Thread-safe; can be pickled, and works after a fork. What readers expect changes the order of packing only in the
    process that packs.
    """

    def __init__(
        self, data: Path, place: Path, rows: RowMap, path: Path, splits: Mapping[str, SplitRows], *, plan: ArrivalPlan
    ) -> None:
        self.path = data
        """The file while it is written."""
        self.place = place
        """Where the file will be."""
        self.unit = plan.unit
        """What samples are called."""
        self.window_units = plan.window_units
        """How many units one window of the first epoch may hold: a function of the source's layout."""
        self.leaves_out = plan.leaves_out
        """Whether samples may turn out to be unusable."""
        self.first_epoch_only = True
        """Only the first epoch is read unit by unit: at its end the whole split is there."""
        self.verb = "packed"
        """What is done with rows, so that they are here."""
        self._knows_targets = plan.knows_targets
        self._map_path = path
        self._splits = dict(splits)
        self._map: RowMap | None = rows
        self.first_units = FIRST_UNITS
        """How many units the first batch may wait for."""
        self.handed_out = HandedOut()
        """What readers in this process have got."""
        self._needs: Needs | None = None
        self._figures: Callable[[], Mapping[str, int]] = dict
        self._pid = os.getpid()

    def follow(self, needs: Needs, figures: Callable[[], Mapping[str, int]]) -> None:
        """Pass what readers expect to `needs` from now on, and ask `figures` for those of bytes."""
        self._needs, self._figures = needs, figures

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_needs": None, "_figures": dict}

    @property
    def figures(self) -> Mapping[str, int]:
        """Return how many bytes of the source's samples are here: `fetched` by this run and `kept` from an earlier one.
        None is `evicted`. Only in the process that packs."""
        return self._figures()

    @property
    def complete(self) -> bool:
        """Tell whether the file is complete, in its place, and has the planned rows."""
        rows = self._rows()
        return rows is None or (rows.state is PackState.PLACED and not rows.left_out)

    @property
    def reason(self) -> str:
        """Return the reason for the size of windows, for the loader's plan."""
        return "the source is packed while it is read, neighbours together"

    def check(self) -> None:
        """Raise the error that ended packing, if there is one; as `hold`."""
        if self._map is not None and self._map.state is PackState.FAILED:
            raise self._map.failure(self.unit)

    @property
    def readable_path(self) -> Path:
        """Return where the file can be opened now."""
        # The temporary name disappears when the file gets its own, a moment before the map says so.
        return self.path if self.path.exists() else self.place

    @property
    def bar(self) -> tuple[str, int, str]:
        """Return what a bar of the packing says: what is done, how much of it in all, and in which unit."""
        return "pack", self.ready.total, self.unit

    @property
    def moved(self) -> int:
        """Return how much of that is done."""
        return self.ready.rows

    @property
    def ready(self) -> Readiness:
        """Tell how many rows can be read."""
        total = sum(len(split.units) for split in self._splits.values())
        rows = self._rows()
        return Readiness(total if rows is None else rows.here, total)

    def units(self, split: str) -> NDArray[np.intp]:
        """Return the unit of each row, `(N,)`; counted from 0 without those of other splits alone."""
        return np.unique(self._splits[split].units, return_inverse=True)[1].astype(np.intp)

    def left_out(
        self, split: str, rows: NDArray[np.intp], *, cancellation: Cancellation | None = None
    ) -> NDArray[np.bool_]:
        """Wait for rows, and return which of them cannot be used, `(B,)`; raises as `hold`."""
        known = self._rows()
        if known is None:
            return np.zeros(len(rows), np.bool_)
        self._wait(known, self._splits[split].start + rows, cancellation)
        return np.asarray(known.rows[self._splits[split].start + rows] == RowState.LEFT_OUT)

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectation:
        """Have rows packed in the order in which they will be read."""
        # `then`, what is read after these, is not needed: by that time the whole split is there.
        # After a fork the thread that packs belongs to another process.
        if self._needs is None or os.getpid() != self._pid or self.complete:
            return _Nothing()
        return self._needs.add(self._splits[split].units[rows])

    @contextlib.contextmanager
    def hold(
        self,
        split: str,
        rows: NDArray[np.intp],
        *,
        side: Literal["row", "targets"] = "row",
        cancellation: Cancellation | None = None,
    ) -> Iterator[None]:
        """Wait until these rows are in their places, where they stay.

        Raises:
            ColabstageError: packing has failed; the message says why, and how much is there.
            NotStagedError: the process that packed was killed.
            CancelledError: `cancellation` was used.
        """
        known = self._rows()
        if known is not None and not (side == "targets" and self._knows_targets):
            wanted = self._splits[split].start + np.asarray(rows)
            self._wait(known, wanted, cancellation)
            self._check_usable(known, split, wanted)
        yield

    def _check_usable(self, known: RowMap, split: str, wanted: NDArray[np.intp]) -> None:
        if not self.leaves_out or not (known.rows[wanted] == RowState.LEFT_OUT).any():
            return
        row = int(wanted[known.rows[wanted] == RowState.LEFT_OUT][0]) - self._splits[split].start
        msg = (
            f"Row {row} of '{split}' cannot be used: its sample is broken, and was left out as on_error asks. Batches "
            "of data.loader(…) are filled with what follows; rows close up once data.wait() has returned."
        )
        raise DecodeError(msg)

    def _wait(self, known: RowMap, wanted: NDArray[np.intp], cancellation: Cancellation | None) -> None:
        look_s, looked_at = _FIRST_LOOK_S, SYSTEM_CLOCK.now()
        while len(wanted := wanted[known.rows[wanted] == RowState.MISSING]):
            if cancellation is not None:
                cancellation.check()
            # Only where a row is missing: those that were packed before the failure can still be read.
            if known.state is PackState.FAILED:
                raise known.failure(self.unit)
            now = SYSTEM_CLOCK.now()
            if now - looked_at > _LOOK_AT_OWNER_S:
                looked_at = now
                if known.abandoned:
                    raise known.failure(self.unit)
            SYSTEM_CLOCK.sleep(look_s)
            look_s = min(1.5 * look_s, _LONGEST_LOOK_S)

    def _rows(self) -> RowMap | None:
        """Return the map; `None` once it was removed because the pack is finished."""
        if self._map is None:
            try:
                self._map = RowMap(self._map_path)
            except FileNotFoundError:
                self._check_placed()
        return self._map

    def _check_placed(self) -> None:
        """Make sure that the finished file has the planned rows.

        Raises:
            NotStagedError: there is no such file, or samples were left out of it.
        """
        manifest = read_manifest(self.place)
        rows = {name: len(split.units) for name, split in self._splits.items()}
        if manifest is None or dict(manifest.samples) != rows:
            what = "has ended" if manifest is None else "left samples out, so rows have other numbers now"
            msg = f"The packing of '{self.place}' {what}. Call stage_dataset again, and make a new loader."
            raise NotStagedError(msg)
