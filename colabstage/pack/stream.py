"""A pack that is read while it is written: tells readers which rows are there, and packing which it needs next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import numpy as np

from colabstage.layouts.table import Arrays, Boxes, Masks, UnreadBoxes, Values
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
from colabstage.pack.writer import sample_costs, sample_positions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.job import PackJob
    from colabstage.pack.journal import PackJournal
    from colabstage.sources.opening import OpenedSource

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

    def __init__(self, first_epoch: FirstEpoch, begun: Callable[[PackArrival], None]) -> None:
        """Call `begun` once, in any thread, when readers can wait for rows."""
        self._first_epoch = first_epoch
        self._begun = begun
        self._source: OpenedSource | None = None
        self._order: PackingOrder | None = None
        self._first: NDArray[np.int64] | None = None
        self._turns: NDArray[np.int64] | None = None
        self._rows: RowMap | None = None
        self._lock = threading.Lock()
        self._coming: PackArrival | None = None
        self.arrival: PackArrival | None = None

    @staticmethod
    def obstacle(job: PackJob) -> str | None:
        """Return why rows of a pack cannot be read before all of them are packed; `None` where they can."""
        # In each case readers would wait for the end anyway, or see values that still change.
        if job.plan.x.is_open:
            return (
                f"with encoding='{job.plan.encoding}' lengths and positions are known only when everything is encoded"
            )
        if isinstance(job.table.targets, Boxes):
            return "the positions of boxes are known only when all images have been read"
        if job.options.skip_share is not None:
            return f"with on_error='{job.options.on_error}' it is known only at the end which samples there are"
        if job.tree is None:
            return "samples of Python objects are read in the thread that asks for them"
        return None

    def plan(self, job: PackJob, source: OpenedSource) -> None:
        """Prepare for what will be packed, and tell `source` in which order byte ranges of its archive are needed, now
        and whenever that changes."""
        # By position in the archive, because a unit is a range of it; stable, so that each run has the same units.
        order = np.argsort(sample_positions(job.table), kind="stable")
        tree = job.tree
        costs = sample_costs(job.table)[order]
        far, apart = source.cost.archive_bytes > 0, tree is None or tree.kind == "folder"
        length = 0 if apart else unit_bytes(int(costs.sum()), far=far)
        self._by_row = apart and source.cost.reads_slowly
        # Four bytes: a pack of a hundred million samples has this array in memory while it is written.
        units = np.empty(len(order), np.int32)
        units[order] = by_position = pack_units(costs, length)
        self._units, self._by_position = units, by_position
        self._ranges: list[list[tuple[int, int]]] = []
        if tree is not None and tree.kind in _ARCHIVES and tree.source is not None:
            self._ranges = _byte_ranges(job.table, units, tree.source.size)
        self._source = source
        self._costs = costs
        count = int(units.max(initial=-1)) + 1
        self._together = units_together(int(costs.sum()), count, far=far and not apart)
        self._window = self._choose_window(job, units, count)
        self._needs = Needs(count, self._change)
        starts = np.cumsum([0, *(len(split.samples) for split in job.plan.splits)])
        self._splits = {
            split.name: SplitRows(int(start), units[split.samples])
            for split, start in zip(job.plan.splits, starts, strict=False)
        }
        # The row of each sample; -1 where it belongs to no split.
        self._row_of = np.full(len(order), -1, np.int64)
        for split, start in zip(job.plan.splits, starts, strict=False):
            self._row_of[split.samples] = start + np.arange(len(split.samples))
        # A guess, in which packing begins at once; a reader's own order replaces it as soon as there is one.
        self._change(*self._first_needs(count))

    def _choose_window(self, job: PackJob, units: NDArray[np.int32], count: int) -> int:
        """Return how many of `count` units are in a window: as few as keep the classes even, where they are known."""
        most = window_units(count)
        table, splits = job.table, sorted(job.plan.splits, key=lambda split: split.name != "train")
        if not splits or not table.classes or not isinstance(table.targets, Values):
            return most
        labels = table.targets.values
        if labels.ndim > 1 or labels.dtype.kind not in "iu":
            return most
        samples = splits[0].samples
        return self._first_epoch.window(
            number_units(units[samples]), labels[samples], most, FIRST_UNITS, self._together
        )

    def begin(  # noqa: PLR0917 - the parts of one run, each named once
        self,
        workspace: Path,
        place: Path,
        job: PackJob,
        order: NDArray[np.int64],
        journal: PackJournal,
        left: NDArray[np.bool_],
    ) -> None:
        """Prepare to let readers in: the file has its final layout, and some of the rows. The source starts now, unless
        it has: what is packed need not come again.

        `place`: where the file will be. `order`: the sample at each position of the reading order. `left`: which
        positions are not in their places yet.
        """
        path = workspace / _MAP
        self._rows = RowMap.create(path, sum(len(split.units) for split in self._splits.values()))
        self._positions_to_rows = self._row_of[order]
        # Rows that are there are announced first: a reader of a continued pack need not wait for them.
        rows = self._positions_to_rows[~left]
        self._rows.rows[rows[rows >= 0]] = RowState.HERE
        self._rows.keep(int(np.count_nonzero(self._positions_to_rows[~journal.unfinished()] >= 0)))
        self._kept_bytes = self._bytes_of_rows()
        self._order = PackingOrder(np.flatnonzero(left), self._by_position)
        if self._turns is not None:
            self._order.sort(self._turns, self._first_positions())
        assert self._source is not None
        if not left.all():
            self._prefer()
        self._source.start()
        # Readers open it here and keep it open: renaming it to its place later changes nothing for them.
        data = workspace / "data.h5"
        plan = ArrivalPlan(job.table.unit, self._window, self._together, job.plan.y is None)
        self._coming = PackArrival(data, place, self._rows, path, self._splits, plan=plan)

    def let_in(self) -> None:
        """Let readers in, unless the run that was begun has failed; the second call changes nothing."""
        with self._lock:
            coming, self._coming = self._coming, None
        if coming is not None:
            self.arrival = coming
            source = self._source
            assert source is not None
            coming.follow(self._needs, self._bytes_moved, lambda: source.waits_for)
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
        self._note(position)
        if kept:
            assert self._rows is not None
            rows = int(np.count_nonzero(self._positions_to_rows[kept.start : kept.stop] >= 0))
            with self._lock:
                self._rows.keep(rows)

    def _bytes_moved(self) -> dict[str, int]:
        assert self._source is not None
        # Counted by rows and not by requests, so that the figures agree with what readers see.
        here = self._bytes_of_rows()
        kept = min(here, max(self._kept_bytes, self._source.resumed_bytes))
        return {"fetched": here - kept, "kept": kept, "evicted": 0}

    def _bytes_of_rows(self) -> int:
        assert self._rows is not None
        states = np.append(self._rows.rows, RowState.MISSING)  # those of no row
        return int(self._costs[states[self._positions_to_rows] != RowState.MISSING].sum())

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

    def _note(self, position: int) -> None:
        assert self._rows is not None
        row = self._positions_to_rows[position]
        if row >= 0:
            # After the bytes of the row are in the file: readers look at this byte alone.
            self._rows.rows[row] = RowState.HERE

    def _first_needs(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the turn of each unit in the most likely order of the first reader, split after split and train first;
        and the rows that are then first."""
        turns = np.full(count, count, np.int64)
        seen, wanted = 0, np.arange(0)
        for split in sorted(self._splits, key=lambda name: name != "train"):
            units = self._splits[split].units
            # Loaders shuffle `train` by default, and nothing else.
            rows = np.arange(len(units))
            if split == "train":
                rows = self._first_epoch.rows(number_units(units), self._window, FIRST_UNITS, self._together)
            if not seen:
                wanted = self._splits[split].start + rows[:FIRST_ROWS]
            named = units_in_turn(units[rows])
            new = named[turns[named] == count]
            turns[new] = seen + np.arange(len(new))
            seen += len(new)
        return turns, wanted

    def _change(self, turns: NDArray[np.int64], first: NDArray[np.int64]) -> None:
        """Pack and fetch units in this order from now on, after the rows `first`."""
        self._turns, self._first = turns, first
        if self._order is not None:
            self._order.sort(turns, self._first_positions())
        self._prefer()

    def _prefer(self) -> None:
        """Tell the source which byte ranges are needed, in order."""
        if self._ranges and self._source is not None and self._turns is not None:
            units = np.argsort(self._turns, kind="stable")
            if self._order is not None:
                left = self._order.units_left()
                # What is packed need not be fetched again; telling the source so frees its connections for the rest.
                units = units[left[units]]
            # What is in between has come by then, or is of no sample; after a kill that is most of the archive, which
            # would come while the last samples are decoded.
            alone = self._order is not None
            self._source.prefer([bounds for unit in units.tolist() for bounds in self._ranges[unit]], alone=alone)

    def _first_positions(self) -> NDArray[np.int64] | None:
        """Return the positions of the rows that are read one by one before whole units are; `None` where none is."""
        # In an archive what one row needs has come with its unit, and a fast folder gives whole units soon.
        if not self._by_row or self._first is None:
            return None
        turns = {row: turn for turn, row in enumerate(self._first.tolist())}
        found = np.flatnonzero(np.isin(self._positions_to_rows, self._first))
        wanted = sorted(found.tolist(), key=lambda position: turns[int(self._positions_to_rows[position])])
        return np.array(wanted, np.int64)


class MemberRanges:
    """Where the members of an archive that samples are read from lie in it, each up to the next one."""

    def __init__(self, job: PackJob) -> None:
        """Look at all samples of a job."""
        tree = job.tree
        is_archive = tree is not None and tree.kind in _ARCHIVES and tree.source is not None
        size = tree.source.size if is_archive and tree is not None and tree.source is not None else 0
        self._starts = np.unique(np.concatenate(_positions(job.table))) if is_archive else np.empty(0, np.int64)
        self._ends = np.append(self._starts[1:], size)

    def of(self, job: PackJob) -> list[tuple[int, int]]:
        """Return `(begin, end)` of each member that a part of that job needs; nothing where it is no archive."""
        return self.of_samples(job, np.arange(len(job.table)))

    def of_samples(self, job: PackJob, samples: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return those of some samples alone."""
        if not len(self._starts):
            return []
        wanted = np.concatenate([positions[samples] for positions in _positions(job.table)])
        places = np.searchsorted(self._starts, np.unique(wanted))
        return list(zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True))


def _positions(table: SampleTable) -> list[NDArray[np.int64]]:
    """Return where each sample's content is, and its target's where that is read as well."""
    targets = table.targets
    read = [targets.source.positions] if isinstance(targets, Arrays | Masks | UnreadBoxes) else []
    return [table.inputs.source.positions, *read]


def _byte_ranges(table: SampleTable, units: NDArray[np.int32], size: int) -> list[list[tuple[int, int]]]:
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
    found: list[list[tuple[int, int]]] = [[] for _ in range(int(units.max(initial=-1)) + 1)]
    for unit, begin, end in zip(
        pairs[first, 0].tolist(), starts[pairs[first, 1]].tolist(), ends[pairs[last, 1]].tolist(), strict=True
    ):
        found[unit].append((begin, end))
    return found


def _each_once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the different values, sorted."""
    # They are nearly sorted already, so this takes a tenth of what `np.unique` does, which goes by hashes.
    ordered = np.sort(values, kind="stable")
    found: NDArray[np.int64] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
