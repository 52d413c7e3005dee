"""A pack that is read while it is written: tells readers which rows are there, and packing which it needs next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import numpy as np

from colabstage.layouts.table import Boxes, Values
from colabstage.pack.arrival import (
    FIRST_ROWS,
    FIRST_UNITS,
    ArrivalPlan,
    Needs,
    PackArrival,
    PackingOrder,
    RowMap,
    RowState,
    SplitRows,
    number_units,
    pack_units,
    unit_bytes,
    units_in_turn,
    units_together,
    window_units,
)
from colabstage.pack.job import target_source
from colabstage.pack.writer import sample_costs, sample_positions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.job import PackJob
    from colabstage.pack.journal import PackJournal
    from colabstage.pack.writer import WriteJob
    from colabstage.sources.opening import OpenedSource

    Range = tuple[int, int]

# Kinds of trees whose positions count bytes of one file.
_ARCHIVES = ("zip", "tar")
_MAP = "rows"


class FirstEpoch(Protocol):
    """Say how readers visit the units of a split."""

    def window(
        self, units: NDArray[np.intp], labels: NDArray[np.integer], most_units: int, first_units: int, together: int
    ) -> int:
        """Return how many units one window needs, with the class of each row."""

    def rows(self, units: NDArray[np.intp], window_units: int, first_units: int, together: int) -> NDArray[np.intp]:
        """Return the rows that are read first, in order, until a reader says so itself."""


class PackStream:
    """One run of packing as readers see it: created before the run, and called for each sample and at the end.

    Attributes:
        arrival: the object through which readers wait for rows, once they are let in.
    """

    _source: OpenedSource

    def __init__(self, first_epoch: FirstEpoch, begun: Callable[[PackArrival], None]) -> None:
        """Call `begun` once, in any thread, when readers can wait for rows."""
        self._first_epoch, self._begun = first_epoch, begun
        self._order: PackingOrder | None = None
        self._rows: RowMap | None = None
        self._lock = threading.Lock()
        self._coming: PackArrival | None = None
        self.arrival: PackArrival | None = None

    @staticmethod
    def obstacle(job: PackJob) -> str | None:
        """Return why rows of a pack cannot be read before all of them are packed; `None` where they can."""
        # In each case readers would wait for the end anyway, or see values that still change.
        obstacles = (
            (
                job.plan.x.is_open,
                f"with encoding='{job.plan.encoding}' lengths and positions are known only when everything is encoded",
            ),
            (
                isinstance(job.table.targets, Boxes),
                "the positions of boxes are known only when all images have been read",
            ),
            (
                job.options.skip_share is not None,
                f"with on_error='{job.options.on_error}' it is known only at the end which samples there are",
            ),
            (job.tree is None, "samples of Python objects are read in the thread that asks for them"),
        )
        return next((why for stands, why in obstacles if stands), None)

    def plan(self, job: PackJob, source: OpenedSource) -> None:
        """Prepare for what will be packed, and tell `source` in which order byte ranges of its archive are needed, now
        and whenever that changes."""
        # By position in the archive, because a unit is a range of it; stable, so that each run has the same units.
        order = np.argsort(sample_positions(job.table), kind="stable")
        costs, tree = sample_costs(job.table)[order], job.tree
        nbytes, far = int(costs.sum()), source.cost.archive_bytes > 0
        apart = tree is None or tree.kind == "folder"
        self._source, self._costs = source, costs
        self._by_row = apart and source.cost.reads_slowly
        self._by_position = pack_units(costs, 0 if apart else unit_bytes(nbytes, far=far))
        # Four bytes: a pack of a hundred million samples has this array in memory while it is written.
        units = np.empty(len(order), np.int32)
        units[order] = self._by_position
        self._ranges: list[list[Range]] = []
        if tree is not None and tree.kind in _ARCHIVES and tree.source is not None:
            self._ranges = _byte_ranges(job.table, units, tree.source.size)
        count = int(units.max(initial=-1)) + 1
        self._together = units_together(nbytes, count, far=far and not apart)
        self._window = self._choose_window(job, units, count)
        self._needs = Needs(count, self._change)
        # The row of each sample; -1 where it belongs to no split.
        self._row_of, self._splits, start = np.full(len(order), -1, np.int64), dict[str, SplitRows](), 0
        for split in job.plan.splits:
            self._row_of[split.samples] = start + np.arange(len(split.samples))
            self._splits[split.name] = SplitRows(start, units[split.samples])
            start += len(split.samples)
        # A guess, in which packing begins at once; a reader's own order replaces it as soon as there is one.
        self._change(*self._first_needs(count))

    def _choose_window(self, job: PackJob, units: NDArray[np.int32], count: int) -> int:
        """Return how many of `count` units are in a window: as few as keep the classes even, where they are known."""
        most, targets = window_units(count), job.table.targets
        splits = sorted(job.plan.splits, key=lambda split: split.name != "train")
        if not splits or not job.table.classes or not isinstance(targets, Values):
            return most
        if targets.values.ndim > 1 or targets.values.dtype.kind not in "iu":
            return most
        samples = splits[0].samples
        own, labels = number_units(units[samples]), targets.values[samples]
        return self._first_epoch.window(own, labels, most, FIRST_UNITS, self._together)

    def _first_needs(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the turn of each unit in the most likely order of the first reader, split after split and train first;
        and the rows that are then first."""
        rows_of: list[NDArray[np.intp]] = []
        units_of: list[NDArray[np.int32]] = []
        for name, split in sorted(self._splits.items(), key=lambda item: item[0] != "train"):
            # Loaders shuffle `train` by default, and nothing else.
            rows = np.arange(len(split.units))
            if name == "train":
                rows = self._first_epoch.rows(number_units(split.units), self._window, FIRST_UNITS, self._together)
            rows_of.append(split.start + rows[:FIRST_ROWS])
            units_of.append(split.units[rows])
        turns = np.full(count, count, np.int64)
        if not rows_of:
            return turns, np.arange(0)
        named = units_in_turn(np.concatenate(units_of))
        turns[named] = np.arange(len(named))
        return turns, rows_of[0]

    def begin(self, work: WriteJob, place: Path, journal: PackJournal, left: NDArray[np.bool_]) -> None:
        """Prepare to let readers in: the file has its final layout, and some of the rows. The source starts now, unless
        it has: what is packed need not come again.

        `place`: where the file will be. `left`: which positions are not in their places yet.
        """
        path = work.target.with_name(_MAP)
        self._rows = RowMap.create(path, sum(len(split.units) for split in self._splits.values()))
        self._positions_to_rows = self._row_of[work.order]
        # Rows that are there are announced first: a reader of a continued pack need not wait for them.
        rows = self._positions_to_rows[~left]
        self._rows.rows[rows[rows >= 0]] = RowState.HERE
        self._rows.keep(int(np.count_nonzero(self._positions_to_rows[~journal.unfinished()] >= 0)))
        self._kept_bytes = self._bytes_of_rows()
        self._order = PackingOrder(np.flatnonzero(left), self._by_position)
        self._order.sort(self._turns, self._first_positions())
        if not left.all():
            self._prefer()
        self._source.start()
        # Readers open it here and keep it open: renaming it to its place later changes nothing for them.
        plan = ArrivalPlan(work.job.table.unit, self._window, self._together, work.job.plan.y is None)
        self._coming = PackArrival(work.target, place, self._rows, path, self._splits, plan=plan)

    def let_in(self) -> None:
        """Let readers in, unless the run that was begun has failed; the second call changes nothing."""
        with self._lock:
            coming, self._coming = self._coming, None
        if coming is not None:
            self.arrival = coming
            coming.follow(self._needs, self._bytes_moved, lambda: self._source.waits_for)
            self._begun(coming)

    @property
    def left(self) -> PackingOrder:
        """Return the positions that are left to pack, in an order that may still change."""
        assert self._order is not None
        return self._order

    def arrived(self, position: int, *, kept: range) -> None:
        """Record that a sample is in its place; from any thread.

        `kept`: the positions that the next run will not pack again, now that this one is there.
        """
        assert self._rows is not None
        row = self._positions_to_rows[position]
        if row >= 0:
            # After the bytes of the row are in the file: readers look at this byte alone.
            self._rows.rows[row] = RowState.HERE
        if kept:
            rows = int(np.count_nonzero(self._positions_to_rows[kept.start : kept.stop] >= 0))
            with self._lock:
                self._rows.keep(rows)

    def placed(self) -> None:
        """Record that the file has been moved to its place."""
        if self._rows is not None:
            self._rows.set_placed()

    def failed(self, error: BaseException) -> None:
        """Tell readers why no more rows will come."""
        with self._lock:
            self._coming = None
        if self._rows is not None:
            self._rows.set_failed(error)

    def _bytes_moved(self) -> dict[str, int]:
        # Counted by rows and not by requests, so that the figures agree with what readers see.
        here = self._bytes_of_rows()
        kept = min(here, max(self._kept_bytes, self._source.resumed_bytes))
        return {"fetched": here - kept, "kept": kept, "evicted": 0}

    def _bytes_of_rows(self) -> int:
        assert self._rows is not None
        states = np.append(self._rows.rows, RowState.MISSING)  # those of no row
        return int(self._costs[states[self._positions_to_rows] != RowState.MISSING].sum())

    def _change(self, turns: NDArray[np.int64], first: NDArray[np.int64]) -> None:
        """Pack and fetch units in this order from now on, after the rows `first`."""
        self._turns, self._first = turns, first
        if self._order is not None:
            self._order.sort(turns, self._first_positions())
        self._prefer()

    def _prefer(self) -> None:
        """Tell the source which byte ranges are needed, in order."""
        if not self._ranges:
            return
        units = np.argsort(self._turns, kind="stable")
        if self._order is not None:
            # What is packed need not be fetched again; telling the source so frees its connections for the rest.
            units = units[self._order.units_left()[units]]
        # What is in between has come by then, or is of no sample; after a kill that is most of the archive, which
        # would come while the last samples are decoded.
        alone = self._order is not None
        self._source.prefer([bounds for unit in units.tolist() for bounds in self._ranges[unit]], alone=alone)

    def _first_positions(self) -> NDArray[np.int64] | None:
        """Return the positions of the rows that are read one by one before whole units are; `None` where none is."""
        # In an archive what one row needs has come with its unit, and a fast folder gives whole units soon.
        if not self._by_row:
            return None
        turns = {row: turn for turn, row in enumerate(self._first.tolist())}
        found = np.flatnonzero(np.isin(self._positions_to_rows, self._first))
        wanted = sorted(found.tolist(), key=lambda position: turns[int(self._positions_to_rows[position])])
        return np.array(wanted, np.int64)


class MemberRanges:
    """Where the members of an archive that samples are read from lie in it, each up to the next one."""

    def __init__(self, job: PackJob) -> None:
        """Look at all samples of a job."""
        source = None if job.tree is None or job.tree.kind not in _ARCHIVES else job.tree.source
        self._starts = np.empty(0, np.int64) if source is None else np.unique(np.concatenate(_positions(job.table)))
        self._ends = np.append(self._starts[1:], 0 if source is None else source.size)

    def of(self, job: PackJob) -> list[Range]:
        """Return `(begin, end)` of each member that a part of that job needs; nothing where it is no archive."""
        return self.of_samples(job, np.arange(len(job.table)))

    def of_samples(self, job: PackJob, samples: NDArray[np.int64]) -> list[Range]:
        """Return those of some samples alone."""
        if not len(self._starts):
            return []
        wanted = np.concatenate([positions[samples] for positions in _positions(job.table)])
        places = np.searchsorted(self._starts, np.unique(wanted))
        return list(zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True))


def _positions(table: SampleTable) -> list[NDArray[np.int64]]:
    """Return where each sample's content is, and its target's where that is read as well."""
    target = target_source(table)
    return [table.inputs.source.positions, *([] if target is None else [target.positions])]


def _byte_ranges(table: SampleTable, units: NDArray[np.int32], size: int) -> list[list[Range]]:
    """Return for each unit the byte ranges `(begin, end)` of the archive that hold its samples."""
    # Each range extends to the next sample: what is between them (headers, files that are no samples) has to be fetched
    # at some time anyway, and neighbours then form one request.
    parts = _positions(table)
    starts = _each_once(np.concatenate(parts))
    ends = np.append(starts[1:], size)
    places = np.concatenate([np.searchsorted(starts, part) for part in parts])
    owners = np.concatenate([units] * len(parts)).astype(np.int64)
    # As one number each: sorting pairs takes ten times as long.
    pairs = np.stack(np.divmod(_each_once(owners * len(starts) + places), max(1, len(starts))), axis=1)
    first = np.flatnonzero(np.r_[True, (np.diff(pairs[:, 0]) != 0) | (np.diff(pairs[:, 1]) != 1)])
    last = np.r_[first[1:] - 1, len(pairs) - 1]
    found: list[list[Range]] = [[] for _ in range(int(units.max(initial=-1)) + 1)]
    begins, stops = starts[pairs[first, 1]].tolist(), ends[pairs[last, 1]].tolist()
    for unit, begin, end in zip(pairs[first, 0].tolist(), begins, stops, strict=True):
        found[unit].append((begin, end))
    return found


def _each_once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the different values, sorted."""
    # They are nearly sorted already, so this takes a tenth of what `np.unique` does, which goes by hashes.
    ordered = np.sort(values, kind="stable")
    found: NDArray[np.int64] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
