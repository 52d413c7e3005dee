"""Rows of a pack that is being written: which are written, which a loader waits for, and which come next.

The file has its final layout before the first sample is decoded, so readers open it at once, and a row can be read as
soon as it is in place. A map that all processes share has a byte for each row. Samples are packed in *units* of
neighbours in the source: a byte range of an archive that one request fetches, or a few files of a folder. Units depend
only on the source's layout. The first epoch visits them in a seeded order, so packing knows what comes next, and may
change its order.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import (
    ColabstageError,
    NotStagedError,
    SourceNotFoundError,
    ended,
    error_from_json,
    error_to_json,
)
from colabstage.h5.arrival import Expectation, HandedOut, Readiness, Side, UnitLayout
from colabstage.h5.manifest import read_manifest
from colabstage.io.files import reserve
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation
from colabstage.io.workspace import owner_is_alive, owner_token, remove_own
from colabstage.layouts.table import Boxes, SampleTable, Values
from colabstage.pack.job import PackJob, target_source
from colabstage.pack.writer import BLOCK_SAMPLES, WriteJob, sample_costs, sample_positions

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.sources.opening import OpenedSource

    Range = tuple[int, int]


# How much one request may fetch from a remote archive. Parallel requests hide its round trip unless it is too short:
# with 16 requests and 0.4 s, 2.5 MB keep a line of 100 MB/s busy. It is longer in a long archive: short ranges mix
# better, and in a short archive there is little time to lose on round trips.
_LEAST_FAR_BYTES, _MOST_FAR_BYTES = 2**20, 4 * 2**20
_STRETCHES_OF = 8_000
# A remote archive's units are shorter: a first batch takes a few, and each is mostly of one class. On a slow or short
# line each is one request; otherwise units that are visited close together share one. This is the most units.
_FAR_UNIT_BYTES, _MOST_FAR_UNITS = 3 * 2**18, 2**18
# The unit of a local archive: even a disk with a head reads this much in the time of a few seeks.
_NEAR_UNIT_BYTES = 2**18
# Neighbours in a source are often of one class, so training begins once this many units are local; the first batches
# come from twice as many if a unit has fewer rows than a batch.
FIRST_UNITS = 4
_LEAST_WINDOW, _MOST_WINDOW = 64, 512
# Waiting is polling a row's byte: often at first, so that a batch that is nearly complete loses no time.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.02
# Checking whether the packing process is alive is a system call, and matters only when nothing arrives.
_LOOK_AT_OWNER_S = 1.0
# Kinds of trees whose positions are bytes of one file.
_ARCHIVES = ("zip", "tar")
# The map of rows, beside the file.
_MAP = "rows"


def window_units(units: int) -> int:
    """Return how many of `units` are in a window of the first epoch, if labels do not tell how many it needs.

    A quarter, so that a source that is sorted by class is mixed; if labels are known, it may be fewer, or up to twice
    as many. A tenth would mix single batches of many classes, but not longer stretches: with a hundred classes, a small
    network learned less in the first epoch (top-1 0.59; with a quarter 0.70, with half 0.74), and as much after the
    second.
    """
    return min(max(units // 4, _LEAST_WINDOW), _MOST_WINDOW)


def unit_bytes(nbytes: int, *, far: bool) -> int:
    """Return how long the units of an archive are."""
    return max(_FAR_UNIT_BYTES, nbytes // _MOST_FAR_UNITS) if far else _NEAR_UNIT_BYTES


def units_together(nbytes: int, units: int) -> int:
    """Return how many units of a remote archive one request fetches."""
    request_bytes = min(max(math.isqrt(_STRETCHES_OF * nbytes), _LEAST_FAR_BYTES), _MOST_FAR_BYTES)
    return max(1, round(request_bytes * units / max(1, nbytes)))


def pack_units(costs: NDArray[np.int64], most_bytes: int) -> NDArray[np.int32]:
    """Return the unit of the sample at each position of the reading order, int32 `(N,)`, counted from 0.

    `costs`: int64 `(N,)`, how many bytes are read for each sample. `most_bytes`: how many bytes to read together, as in
    an archive; 0 for files of a folder, whose units are as small as the journal allows.
    """
    # Whole blocks of the journal, because a kill loses unfinished ones.
    blocks = np.arange(len(costs)) // BLOCK_SAMPLES
    if not most_bytes or not len(costs):
        return blocks.astype(np.int32)
    at_block = (np.cumsum(costs) - costs)[::BLOCK_SAMPLES] // most_bytes
    # Numbers without gaps, even if one sample is longer than a unit.
    numbers = np.concatenate([[0], np.cumsum(np.diff(at_block) > 0)])
    return numbers[blocks].astype(np.int32)


def number_units(units: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the unit of each row, `(N,)`, renumbered from 0 without unused units."""
    return (np.cumsum(np.bincount(units) > 0) - 1)[units]


def units_in_turn(units: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the units of rows, each once, in order of first use."""
    found, first = np.unique(units, return_index=True)
    return found[np.argsort(first)].astype(np.intp)


class PackState(IntEnum):
    RUNNING = 0
    """More rows will come."""
    PLACED = 1
    """All rows are written, and the file is in place."""
    FAILED = 2
    """Packing ended early; the header says why."""


# The beginning of the map: which process packs, and how packing ended. An error message is limited to this many
# characters, each of which takes up to twelve bytes in JSON.
_LONGEST_MESSAGE = 2_000
_HEAD = np.dtype([("state", "u1"), ("owner", "S255"), ("error", "S32512")])


class RowMap:
    """The mapped file. Any process may read it; only the packing process writes.

    Readers look at a row's byte without taking a lock, so a fork can never leave one locked.

    Attributes:
        rows: whether each row is in its place in the file, bool `(N,)`.
    """

    def __init__(self, path: Path) -> None:
        """Map the file that `create` made."""
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        self._head = np.frombuffer(mapped, _HEAD, 1)
        self.rows: NDArray[np.bool_] = np.frombuffer(mapped, np.bool_, offset=_HEAD.itemsize)

    @classmethod
    def create(cls, path: Path, rows: int) -> RowMap:
        """Create a map at `path`, in a workspace of this process, with all rows missing."""
        # Removed, not truncated: readers of an earlier run may have it mapped, and a signal would kill them.
        remove_own(path)
        path.touch()
        with path.open("r+b") as file:
            reserve(file.fileno(), _HEAD.itemsize + rows)
        made = cls(path)
        made._head["owner"] = owner_token().encode()
        return made

    @property
    def state(self) -> PackState:
        return PackState(int(self._head["state"][0]))

    @property
    def abandoned(self) -> bool:
        """Return whether the packing process has ended without recording it, as after a kill."""
        return self.state is PackState.RUNNING and owner_is_alive(self._head["owner"][0].decode()) is False

    @property
    def here(self) -> int:
        """Return how many rows are in place."""
        return int(np.count_nonzero(self.rows))

    def set_placed(self) -> None:
        self._head["state"] = PackState.PLACED

    def set_failed(self, error: BaseException) -> None:
        """Record that packing has ended, and why; unless the file is already in its place."""
        if self.state is PackState.PLACED:
            return
        kind, message = error_to_json(error)
        self._head["error"] = json.dumps([kind, message[:_LONGEST_MESSAGE]]).encode()
        # The state is written last, so that a process that sees it also finds the reason.
        self._head["state"] = PackState.FAILED

    def failure(self, unit: str) -> ColabstageError:
        """Return the error for readers of rows that will not come: what happened, and how much is local."""
        text = self._head["error"][0]
        rest = (
            f"{self.here:,} of {len(self.rows):,} {unit} were packed. Call stage_dataset with the same arguments "
            "again: what is kept, and has not changed, is not packed again."
        )
        if not text:
            return NotStagedError(f"The process that packed has ended before all was here. {rest}")
        raw = json.loads(text)
        kind, message = error_from_json(raw, NotStagedError)
        # Another library's message does not say what failed.
        what = message if raw[0] else f"Packing has ended: {message}"
        return kind(f"{ended(what)} {rest}")


class SplitRows(NamedTuple):
    """Where the rows of a split are in the map, and which units they belong to."""

    start: int
    """The position of its first row in the map."""
    units: NDArray[np.int32]


class ArrivalPlan(NamedTuple):
    """What is known about a pack before its first row is written."""

    splits: Mapping[str, SplitRows]
    unit: str
    window_units: int
    """How many units one window of the first epoch may hold; depends on the source's layout."""
    together: int
    """How many neighbouring units are visited close together, so that one request can fetch them."""
    knows_targets: bool
    """Whether targets are in the file from the beginning."""


class PackArrival:
    """The `h5.arrival.Arrival` of a pack that is being written.

    Thread-safe; can be pickled, and works after a fork. Readers' expectations change the order of packing only in the
    packing process, and only there are `figures` and `waits_for` known.
    """

    verb = "packed"

    def __init__(
        self, data: Path, place: Path, rows: RowMap, plan: ArrivalPlan, stream: PackStream | None = None
    ) -> None:
        """Take the file that is being written, its final place, its map, and the run that packs."""
        self.path, self.place = data, place
        self._plan, self.unit = plan, plan.unit
        self._map: RowMap | None = rows
        self._stream = stream
        self._pid = os.getpid()
        self.handed_out = HandedOut()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_stream": None}

    @property
    def figures(self) -> Mapping[str, int]:
        """Return how many bytes of the source's samples are local: `fetched` by this run and `kept` from an earlier
        one. None is `evicted`."""
        return {} if self._stream is None else self._stream.bytes_moved()

    @property
    def waits_for(self) -> str:
        """Return why nothing arrives at present; "" if something does."""
        return "" if self._stream is None else self._stream.waits_for

    @property
    def complete(self) -> bool:
        rows = self._rows()
        return rows is None or rows.state is PackState.PLACED

    def check(self) -> None:
        """Raise the error that ended packing, if there is one; as `hold`."""
        if self._map is not None and self._map.state is PackState.FAILED:
            raise self._map.failure(self.unit)

    @property
    def layout(self) -> UnitLayout:
        """Return the units of the source. Only the first epoch is read by units: at its end the whole split is local,
        and once packing is done, nobody knows the source's layout any more."""
        return UnitLayout(
            lambda split: number_units(self._plan.splits[split].units),
            self._plan.window_units,
            "the source is packed while it is read, neighbours together",
            self.place,
            first_units=FIRST_UNITS,
            together=self._plan.together,
            first_epoch_only=True,
            lasting=False,
        )

    @property
    def bar(self) -> tuple[str, int, str]:
        """Return what a progress bar shows of the packing: what is done, the total, and the unit."""
        return "pack", self.ready.total, self.unit

    @property
    def moved(self) -> int:
        return self.ready.rows

    @property
    def ready(self) -> Readiness:
        """Tell how many rows can be read."""
        total = sum(len(split.units) for split in self._plan.splits.values())
        rows = self._rows()
        return Readiness(total if rows is None else rows.here, total)

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectation:
        """Have rows packed in the order in which they will be read."""
        # `then`, what is read next, is not needed: by that time the whole split is local. After a fork the packing
        # thread belongs to another process.
        if self._stream is None or os.getpid() != self._pid or self.complete:
            return Need(np.arange(0), self.handed_out)
        need = Need(units_in_turn(self._plan.splits[split].units[rows]), self.handed_out, weakref.ref(self._stream))
        self._stream.add(need)
        return need

    @contextlib.contextmanager
    def hold(
        self, split: str, rows: NDArray[np.intp], *, side: Side = "row", cancellation: Cancellation | None = None
    ) -> Iterator[None]:
        """Wait until these rows are in place, where they stay."""
        known = self._rows()
        if known is not None and not (side == "targets" and self._plan.knows_targets):
            self._wait(known, self._plan.splits[split].start + np.asarray(rows), cancellation)
        try:
            yield
        except SourceNotFoundError:
            # It was removed with the work it belonged to, whose error says why.
            self.check()
            raise

    def _wait(self, known: RowMap, wanted: NDArray[np.intp], cancellation: Cancellation | None) -> None:
        look_s, looked_at = _FIRST_LOOK_S, SYSTEM_CLOCK.now()
        while len(wanted := wanted[~known.rows[wanted]]):
            if cancellation is not None:
                cancellation.check()
            now = SYSTEM_CLOCK.now()
            looks = now - looked_at > _LOOK_AT_OWNER_S
            looked_at = now if looks else looked_at
            # Only if a row is missing: rows that were packed before the failure can still be read.
            if known.state is PackState.FAILED or (looks and known.abandoned):
                raise known.failure(self.unit)
            SYSTEM_CLOCK.sleep(look_s)
            look_s = min(1.5 * look_s, _LONGEST_LOOK_S)

    def _rows(self) -> RowMap | None:
        """Return the map; `None` once the pack is finished and the map removed."""
        if self._map is None:
            try:
                self._map = RowMap(self.path.with_name(_MAP))
            except FileNotFoundError:
                self._check_placed()
        return self._map

    def _check_placed(self) -> None:
        """Make sure that the finished file has the planned rows."""
        manifest = read_manifest(self.place)
        rows = {name: len(split.units) for name, split in self._plan.splits.items()}
        if manifest is None or dict(manifest.samples) != rows:
            msg = f"The packing of '{self.place}' has ended. Call stage_dataset again, and make a new loader."
            raise NotStagedError(msg)


@dataclass(eq=False, slots=True)
class Need:
    """Rows that one reader announced: counted as they are handed out, and needed until it is closed."""

    units: NDArray[np.intp]
    """The units of all of them, each once, in order."""
    handed_out: HandedOut
    stream: weakref.ref[PackStream] | None = None
    """The run that packs, as a weak reference: a reader's finalizer refers to this object, and a strong one would keep
    the packing alive, and with it the reader."""
    dropped: bool = False
    done: int = 0

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        """Count rows that were read. Packing need not know, because they are packed."""
        self.handed_out.note(max(0, rows - self.done), waited_s)
        self.done = rows

    def close(self) -> None:
        """Remove the need. Calling this twice is fine."""
        stream = None if self.stream is None else self.stream()
        if stream is not None and not self.dropped:
            stream.drop(self)


class PackingOrder(Sequence[int]):
    """The positions left to pack, for `run_pipeline`. The order of those not yet taken may change at any time.

    Its items are taken one after the other, possibly several times.
    """

    def __init__(self, left: NDArray[np.int64], units: NDArray[np.int32]) -> None:
        """Take each position's unit."""
        self._left, self._units, self._taken = left, units, 0
        # A reader's finalizer may interrupt a sort and sort again, in the same thread.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._left)

    def __getitem__(self, number: Any) -> Any:
        """Return an item, which is then fixed in its place, as are all before it."""
        with self._lock:
            self._taken = max(self._taken, number + 1)
            return int(self._left[number])

    def sort(self, turns: NDArray[np.int64]) -> None:
        """Sort the rest by the turn of each unit, `(U,)`, and within a unit as in the source."""
        with self._lock:
            rest = self._left[self._taken :]
            self._left[self._taken :] = rest[np.lexsort([rest, turns[self._units[rest]]])]

    def units_left(self) -> NDArray[np.bool_]:
        """Return which units have samples that are not taken yet."""
        with self._lock:
            units = self._units[self._left[self._taken :]]
            return np.bincount(units, minlength=int(self._units.max(initial=-1)) + 1) > 0


class PackStream:
    """One run of packing as readers see it: created before the run, called for each sample and at the end.

    Attributes:
        arrival: the object through which readers wait for rows, once there is one.
    """

    _source: OpenedSource
    _left: PackingOrder | None = None
    _rows: RowMap | None = None
    arrival: PackArrival | None = None

    def __init__(
        self,
        window: Callable[[NDArray[np.intp], NDArray[np.integer], int, int, int], int],
        first_rows: Callable[[NDArray[np.intp], int, int, int], NDArray[np.intp]],
        begun: Callable[[PackArrival], None],
    ) -> None:
        """Take how readers visit the units of a split in the first epoch, and call `begun` once, in any thread, when
        they can wait for rows.

        `window`: `load.partial.even_window`. `first_rows`: the rows that are read first, in order, until a reader
        announces its own, by units of rows, `window_units`, `first_units` and `together`.
        """
        self._window, self._first_rows, self._begun = window, first_rows, begun
        self._needs: list[Need] = []
        self._needs_lock = threading.RLock()

    @staticmethod
    def obstacle(job: PackJob) -> str | None:
        """Return why rows of a pack cannot be read before all are packed; `None` if they can."""
        # In these cases readers would wait for the end anyway, or see values that still change.
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
        """Prepare what will be packed, and tell `source` in which order byte ranges of its archive are needed, now and
        whenever that changes."""
        # By position in the archive, because a unit is a range of it; stable, so that each run has the same units.
        order = np.argsort(sample_positions(job.table), kind="stable")
        self._source, self._costs = source, sample_costs(job.table)[order]
        nbytes, far = int(self._costs.sum()), source.cost.archive_bytes > 0
        apart = job.tree is None or job.tree.kind == "folder"
        self._by_position = pack_units(self._costs, 0 if apart else unit_bytes(nbytes, far=far))
        # Four bytes: a pack of a hundred million samples holds this array in memory while it is written.
        units = np.empty(len(order), np.int32)
        units[order] = self._by_position
        self._count = int(units.max(initial=-1)) + 1
        self._ranges = MemberRanges(job).of_units(job, units)
        # The row of each sample; -1 where it belongs to no split.
        self._row_of, splits, start = np.full(len(order), -1, np.int64), dict[str, SplitRows](), 0
        for split in job.plan.splits:
            self._row_of[split.samples] = start + np.arange(len(split.samples))
            splits[split.name] = SplitRows(start, units[split.samples])
            start += len(split.samples)
        together = units_together(nbytes, self._count) if far and not apart else 1
        window = self._choose_window(job, units, together)
        self._plan = ArrivalPlan(splits, job.table.unit, window, together, job.plan.y is None)
        # Packing begins at once, in an order that a reader's own replaces as soon as there is one.
        self._needs = [self._guess()]
        self._announce()

    def _choose_window(self, job: PackJob, units: NDArray[np.int32], together: int) -> int:
        """Return how many units are in a window: as few as keep the classes even, if these are known."""
        most, targets = window_units(self._count), job.table.targets
        splits = sorted(job.plan.splits, key=lambda split: split.name != "train")
        if not splits or not job.table.classes or not isinstance(targets, Values):
            return most
        if targets.values.ndim > 1 or targets.values.dtype.kind not in "iu":
            return most
        samples = splits[0].samples
        own, labels = number_units(units[samples]), targets.values[samples]
        return self._window(own, labels, most, FIRST_UNITS, together)

    def _guess(self) -> Need:
        """Return what the first reader will most likely read: split after split, `train` first."""
        units = [np.zeros(0, np.int32)]
        for name, split in sorted(self._plan.splits.items(), key=lambda item: item[0] != "train"):
            # Loaders shuffle `train` by default, and nothing else.
            rows = np.arange(len(split.units))
            if name == "train":
                own, plan = number_units(split.units), self._plan
                rows = self._first_rows(own, plan.window_units, FIRST_UNITS, plan.together)
            units.append(split.units[rows])
        return Need(units_in_turn(np.concatenate(units)), HandedOut(), dropped=True)

    def add(self, need: Need) -> None:
        """Pack and fetch first what a reader will read; several readers take turns."""
        with self._needs_lock:
            self._needs = [*(other for other in self._needs if not other.dropped), need]
        self._announce()

    def drop(self, need: Need) -> None:
        """Remove the needs of a reader that stopped; if it was the only one, the last order stays."""
        with self._needs_lock:
            need.dropped = True
            others = [other for other in self._needs if not other.dropped]
            self._needs = others or self._needs
        if others:
            self._announce()

    def _announce(self) -> None:
        """Sort the rest by readers' needs, and tell the source."""
        self._turns = np.full(self._count, self._count, np.int64)
        for need in list(self._needs):
            self._turns[need.units] = np.minimum(self._turns[need.units], np.arange(len(need.units)))
        if self._left is not None:
            self._left.sort(self._turns)
        self._prefer()

    def _prefer(self) -> None:
        """Tell the source which byte ranges are needed, in order."""
        if not self._ranges:
            return
        units = np.argsort(self._turns, kind="stable")
        if self._left is not None:
            # Packed units need not be fetched again; telling the source so frees its connections for the rest.
            units = units[self._left.units_left()[units]]
        # Bytes in between have been fetched by then, or belong to no sample. After a kill they are most of the archive,
        # and would be fetched while the last samples are decoded.
        alone = self._left is not None
        self._source.prefer([bounds for unit in units.tolist() for bounds in self._ranges[unit]], alone=alone)

    def begin(self, work: WriteJob, place: Path, left: NDArray[np.bool_]) -> PackingOrder:
        """Let readers in, because the file has its final layout; return the positions left to pack. The source starts
        now, unless it has: it need not fetch what is packed.

        `place`: where the file will be. `left`: which positions are not in place yet.
        """
        self._rows = RowMap.create(work.target.with_name(_MAP), len(self._row_of[self._row_of >= 0]))
        self._rows_at = self._row_of[work.order]
        # Finished rows are announced first: a reader of a continued pack need not wait for them.
        self._rows.rows[self._rows_at[~left & (self._rows_at >= 0)]] = True
        self._kept_bytes = self._bytes_here()
        order = PackingOrder(np.flatnonzero(left), self._by_position)
        order.sort(self._turns)
        self._left = order
        if not left.all():
            self._prefer()
        self._source.start()
        # Readers open the file here and keep it open: its later rename changes nothing for them.
        self.arrival = PackArrival(work.target, place, self._rows, self._plan, self)
        self._begun(self.arrival)
        return order

    def arrived(self, position: int) -> None:
        """Record that a sample is in place; from any thread."""
        assert self._rows is not None
        row = self._rows_at[position]
        if row >= 0:
            # After the row's bytes are in the file: readers check only this byte.
            self._rows.rows[row] = True

    def placed(self) -> None:
        if self._rows is not None:
            self._rows.set_placed()

    def failed(self, error: BaseException) -> None:
        """Tell readers why no more rows will come."""
        if self._rows is not None:
            self._rows.set_failed(error)

    @property
    def waits_for(self) -> str:
        """Return why nothing arrives at present; "" if something does."""
        return self._source.waits_for

    def bytes_moved(self) -> dict[str, int]:
        """Return the figures of `PackArrival`."""
        # Counted by rows, not by requests, so that the figures agree with what readers see.
        here = self._bytes_here()
        kept = min(here, max(self._kept_bytes, self._source.resumed_bytes))
        return {"fetched": here - kept, "kept": kept, "evicted": 0}

    def _bytes_here(self) -> int:
        assert self._rows is not None
        here = np.append(self._rows.rows, False)  # the last one is for samples without a row
        return int(self._costs[here[self._rows_at]].sum())


class MemberRanges:
    """Where in an archive the members are that samples are read from, each up to the next one."""

    def __init__(self, job: PackJob) -> None:
        source = None if job.tree is None or job.tree.kind not in _ARCHIVES else job.tree.source
        self._starts = np.empty(0, np.int64) if source is None else np.unique(np.concatenate(_positions(job.table)))
        self._ends = np.append(self._starts[1:], 0 if source is None else source.size)

    def of(self, job: PackJob, samples: NDArray[np.int64] | None = None) -> list[Range]:
        """Return `(begin, end)` of each member that a part of that job, or some of its samples, need; empty if it is
        not an archive."""
        if not len(self._starts):
            return []
        chosen = slice(None) if samples is None else samples
        wanted = np.concatenate([positions[chosen] for positions in _positions(job.table)])
        places = np.searchsorted(self._starts, np.unique(wanted))
        return list(zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True))

    def of_units(self, job: PackJob, units: NDArray[np.int32]) -> list[list[Range]]:
        """Return the byte ranges of each unit, with neighbours joined; `units`: of each sample of the job."""
        if not len(self._starts):
            return []
        parts = [np.searchsorted(self._starts, positions) for positions in _positions(job.table)]
        owners = np.concatenate([units] * len(parts)).astype(np.int64)
        # As single numbers: sorting pairs takes ten times as long.
        pairs = np.unique(owners * len(self._starts) + np.concatenate(parts))
        owners, places = np.divmod(pairs, len(self._starts))
        first = np.flatnonzero(np.r_[True, (np.diff(owners) != 0) | (np.diff(places) != 1)])
        last = np.r_[first[1:] - 1, len(pairs) - 1]
        found: list[list[Range]] = [[] for _ in range(int(units.max(initial=-1)) + 1)]
        ranges = zip(self._starts[places[first]].tolist(), self._ends[places[last]].tolist(), strict=True)
        for unit, one in zip(owners[first].tolist(), ranges, strict=True):
            found[unit].append(one)
        return found


def _positions(table: SampleTable) -> list[NDArray[np.int64]]:
    """Return where each sample's content is, and its target's if that is read as well."""
    target = target_source(table)
    return [table.inputs.source.positions, *([] if target is None else [target.positions])]
