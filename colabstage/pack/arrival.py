"""Rows of a pack that is being written: which are there, what a loader waits for, and which come next.

The file has its final layout before the first sample is decoded, so readers open it at once, and a row can be read as
soon as it is in its place. A map that all processes share has a byte for each row. Samples are packed in *units*,
neighbours in the source: a byte range of an archive that one request fetches, or a few files of a folder. Which samples
form a unit follows from the source's layout alone. The first epoch visits units in a seeded order, so packing knows
what readers need next, and may change its order while it is used.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from colabstage.errors import (
    ColabstageError,
    NotStagedError,
    SourceChangedError,
    SourceNotFoundError,
    ended,
    error_from_json,
    error_to_json,
)
from colabstage.h5.arrival import HandedOut, Readiness, UnitLayout
from colabstage.h5.manifest import read_manifest
from colabstage.io.files import reserve
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.workspace import owner_is_alive, owner_token, remove_own
from colabstage.layouts.table import Boxes, Values
from colabstage.pack.job import target_source
from colabstage.pack.journal import BLOCK_SAMPLES, KEPT_AFTER
from colabstage.pack.writer import sample_costs, sample_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Expectation, Side
    from colabstage.io.progress import Cancellation
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.job import PackJob
    from colabstage.pack.journal import PackJournal
    from colabstage.pack.writer import WriteJob
    from colabstage.sources.opening import OpenedSource

    Range = tuple[int, int]


# What one request may bring of a far archive. Its round trip is hidden by those beside it as long as it is not too
# short: with 16 of them and 0.4 s, 2.5 MB keep a line of 100 MB/s busy.
_LEAST_FAR_BYTES, _MOST_FAR_BYTES = 2**20, 4 * 2**20
_STRETCHES_OF = 8_000
# Its units are shorter: a first batch is of a few, and each is mostly of one class. On a line that is slow, or near,
# each is a request; on others those that are visited shortly after each other are one. Never more than so many units.
_FAR_UNIT_BYTES, _MOST_FAR_UNITS = 3 * 2**18, 2**18
# Rows that are packed one by one, as a reader needs them, before whole units are: where each file costs a round trip,
# the first batch does not wait for its rows' neighbours. Few, because a kill loses what units lack rows of by then.
FIRST_ROWS = 128
# Neighbours in a source are often of one class, so training begins when so many units are here; the first batches come
# of twice as many where a unit has fewer rows than a batch.
FIRST_UNITS = 4
# Of an archive that is here: a disk with a head, too, reads so much in the time of a few seeks.
_NEAR_BYTES = 2**18
_LEAST_WINDOW, _MOST_WINDOW = 64, 512
# Waiting means looking at a row's byte: often at first, because a batch that is nearly complete should not lose time.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.02
# Whether the packing process is alive is a question to the system, and only of interest when nothing arrives.
_LOOK_AT_OWNER_S = 1.0


def window_units(units: int) -> int:
    """Return how many of so many units are in a window of the first epoch, where labels do not say how many it needs.

    A quarter, so that a source that is sorted by class is mixed; where labels say so, it is fewer, or up to twice as
    many. A tenth would mix single batches of many classes, but not those of some time: of a hundred classes a small
    network learned less in the first epoch (top-1 0.59, with a quarter 0.70, with half 0.74), and as much after the
    second.
    """
    return min(max(units // 4, _LEAST_WINDOW), _MOST_WINDOW)


def stretch_bytes(nbytes: int, *, far: bool) -> int:
    """Return how long the stretches of an archive are that its samples come in.

    Of one that is `far`, longer in a long one: short stretches mix better, and in a short archive there is little time
    to lose with their round trips.
    """
    return min(max(math.isqrt(_STRETCHES_OF * nbytes), _LEAST_FAR_BYTES), _MOST_FAR_BYTES) if far else _NEAR_BYTES


def unit_bytes(nbytes: int, *, far: bool) -> int:
    """Return how long the units of an archive are: of one that is `far`, one or several are a stretch."""
    return max(_FAR_UNIT_BYTES, nbytes // _MOST_FAR_UNITS) if far else _NEAR_BYTES


def units_together(nbytes: int, units: int, *, far: bool) -> int:
    """Return how many of so many units a stretch has; more than one of a `far` archive alone."""
    return max(1, round(stretch_bytes(nbytes, far=True) * units / max(1, nbytes))) if far else 1


def pack_units(costs: NDArray[np.int64], most_bytes: int) -> NDArray[np.int32]:
    """Return the unit of the sample at each position of the reading order, int32 `(N,)`, counted from 0.

    Args:
        costs: int64 `(N,)`, how many bytes are read for each sample.
        most_bytes: how many of them arrive sooner together, as in an archive; 0 for files of a folder, whose units are
            as small as the journal allows.
    """
    # Whole blocks of the journal, because a kill loses the unfinished ones.
    blocks = np.arange(len(costs)) // BLOCK_SAMPLES
    if not most_bytes or not len(costs):
        return blocks.astype(np.int32)
    at_block = (np.cumsum(costs) - costs)[::BLOCK_SAMPLES] // most_bytes
    # Numbers without gaps, even where one sample is longer than a unit.
    numbers = np.concatenate([[0], np.cumsum(np.diff(at_block) > 0)])
    return numbers[blocks].astype(np.int32)


def number_units(units: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the unit of each row, `(N,)`, counted from 0 without those that none of these rows is of."""
    # Sorting millions of rows would take as long as a round trip to the source.
    return (np.cumsum(_are_among(units, int(units.max(initial=-1)) + 1)) - 1)[units]


def _are_among(units: NDArray[np.int32], count: int) -> NDArray[np.bool_]:
    """Return for each of `count` units whether any of some rows is of it."""
    found = np.zeros(count, np.bool_)
    found[units] = True
    return found


def units_in_turn(units: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the units of rows, `(N,)`, each once, in the order in which the rows come to them."""
    first = np.full(int(units.max(initial=-1)) + 1, -1, np.intp)
    # Backwards, because of several values for one place the last one stays.
    first[units[::-1]] = np.arange(len(units))[::-1]
    named = np.flatnonzero(first >= 0)
    return named[np.argsort(first[named])]


class PackingOrder(Sequence[int]):
    """The positions that are left to pack. The order of those not taken yet may change at any time.

    For `run_pipeline`, which takes one item after the other, possibly several times, and never goes back.
    """

    def __init__(self, left: Sequence[int] | NDArray[np.int64], units: NDArray[np.int32]) -> None:
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

    def sort(self, turns: NDArray[np.int64], first: NDArray[np.int64] | None = None) -> None:
        """Sort what is left: the positions `first`, `(F,)`, in their order; then by the turn of each unit, `(U,)`, and
        within a unit in the order of the source."""
        with self._lock:
            rest = self._left[self._taken :]
            keys: list[NDArray[Any]] = [rest, turns[self._units[rest]]]
            if first is not None:
                ranks = np.full(len(self._units), len(first), np.int32)
                ranks[first] = np.arange(len(first))
                keys.append(ranks[rest])
            self._left[self._taken :] = rest[np.lexsort(keys)]

    def units_left(self) -> NDArray[np.bool_]:
        """Return which units have samples that were not taken yet."""
        with self._lock:
            rest = self._left[self._taken :]
        return _are_among(self._units[rest], int(self._units.max(initial=-1)) + 1)


class Needs:
    """What readers will read, of which the next is packed first; readers take turns."""

    def __init__(self, units: int, changed: Callable[[NDArray[np.int64], NDArray[np.int64]], None]) -> None:
        """Call `changed` whenever needs change, with the turn of each unit, and with the rows that come first."""
        self._units, self._changed = units, changed
        self._lock = threading.Lock()
        self._needs: list[_Need] = []

    def add(self, rows: NDArray[np.int64], units: NDArray[np.int32]) -> _Need:
        """Add rows that a reader will read, in order, and the unit of each; both may be repeated."""
        need = _Need(rows[:FIRST_ROWS].copy(), units_in_turn(units))
        with self._lock:
            self._needs.append(need)
        self._announce()
        return need

    def drop(self, need: _Need) -> None:
        """Remove the needs of a reader that stopped."""
        with self._lock:
            was_needed = need in self._needs
            self._needs = [other for other in self._needs if other is not need]
            others = bool(self._needs)
        # Without any needs the last order stays.
        if was_needed and others:
            self._announce()

    def _announce(self) -> None:
        turns = np.full(self._units, self._units, np.int64)
        with self._lock:
            needs = list(self._needs)
        for need in needs:
            turns[need.units] = np.minimum(turns[need.units], np.arange(len(need.units)))
        # The first row of each reader, then the second of each, and so on.
        by_turn = np.argsort(np.concatenate([np.arange(len(need.first)) for need in needs]), kind="stable")
        self._changed(turns, np.concatenate([need.first for need in needs])[by_turn])


@dataclass(frozen=True, eq=False, slots=True)
class _Need:
    """The first rows that one reader will read, and the units of all, each once, in order."""

    first: NDArray[np.int64]
    units: NDArray[np.intp]


class _Expected:
    """Rows that one reader announced: counted as they are handed out, and needed until it is closed."""

    def __init__(self, handed_out: HandedOut, needs: Needs | None, need: _Need | None) -> None:
        # A finalizer of the reader refers to this object. A strong reference would keep the packing alive, and with it
        # the reader.
        self._needs = None if needs is None else weakref.ref(needs)
        self._handed_out, self._need, self._done = handed_out, need, 0

    def reached(self, rows: int, waited_s: float = 0.0) -> None:
        """Count rows that were read; packing needs no word of it, as they have been packed."""
        self._handed_out.note(max(0, rows - self._done), waited_s)
        self._done = rows

    def close(self) -> None:
        """Remove the need. Calling this twice is fine."""
        needs = None if self._needs is None else self._needs()
        if needs is not None and self._need is not None:
            needs.drop(self._need)


_HEAD_BYTES = 16_384
_KEPT_AT, _OWNER_AT, _ERROR_AT = 8, 64, 1024
_LONGEST_MESSAGE = 2_000


class RowState(IntEnum):
    """The state of a row."""

    MISSING = 0
    """Not packed yet."""
    HERE = 1
    """In its place in the file."""


class PackState(IntEnum):
    """The state of packing."""

    RUNNING = 0
    """More rows will come."""
    PLACED = 1
    """All rows are there, and the file is in its place."""
    FAILED = 2
    """It ended before that; the header says why."""


# The packing process writes a row's byte once the row is in its place. Readers, in this process or in others, look at
# the byte without taking a lock, so a fork can never leave one locked. The header says who packs, and how that ended.
class RowMap:
    """The mapped file. Any process may read it; only the one that packs writes."""

    def __init__(self, path: Path) -> None:
        """Map the file that `create` made."""
        with path.open("r+b") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self.rows: NDArray[np.uint8] = self._bytes[_HEAD_BYTES:]
        self._kept: NDArray[np.int64] = self._bytes[_KEPT_AT : _KEPT_AT + 8].view(np.int64)

    @classmethod
    def create(cls, path: Path, rows: int) -> RowMap:
        """Create a map at `path`, in a workspace of this process, with all rows missing."""
        # Removed and not truncated: readers of an earlier run may have it mapped, and would be killed by a signal.
        remove_own(path)
        path.touch()
        with path.open("r+b") as file:
            reserve(file.fileno(), _HEAD_BYTES + rows)
        made = cls(path)
        made._write_text(_OWNER_AT, owner_token())
        return made

    @property
    def state(self) -> PackState:
        """Return the state of packing."""
        return PackState(int(self._bytes[0]))

    @property
    def abandoned(self) -> bool:
        """Return whether the packing process has ended without saying so, as after a kill."""
        return self.state is PackState.RUNNING and owner_is_alive(self._read_text(_OWNER_AT)) is False

    @property
    def here(self) -> int:
        """Return how many rows are in their places."""
        return int(np.count_nonzero(self.rows))

    @property
    def kept(self) -> int:
        """Return how many of the rows that are here the next run will not pack again."""
        return int(self._kept[0])

    def keep(self, rows: int) -> None:
        """Count so many more rows that the next run will not pack again; one thread at a time."""
        # Counted here because a reader, who may outlive the packing process, cannot see which blocks of the journal
        # are complete.
        self._kept[0] += rows

    def set_placed(self) -> None:
        """Record that the file is complete and in its place."""
        self._bytes[0] = PackState.PLACED

    def set_failed(self, error: BaseException) -> None:
        """Record that packing has ended, and why; unless the file is already in its place."""
        if self.state is PackState.PLACED:
            return
        kind, message = error_to_json(error)
        self._write_text(_ERROR_AT, json.dumps([[kind, message[:_LONGEST_MESSAGE]], isinstance(error, KEPT_AFTER)]))
        # The state is written last, so that a process that sees it also finds the reason.
        self._bytes[0] = PackState.FAILED

    def failure(self, unit: str) -> ColabstageError:
        """Return the error for readers of rows that will not come: what happened, and how much is there."""
        text = self._read_text(_ERROR_AT)
        raw, kept = json.loads(text) if text else ([], True)
        total, again = f"{len(self.rows):,} {unit}", "Call stage_dataset with the same arguments again"
        if not self.here:
            here = "Nothing is here yet"
        elif not kept:
            here = f"{self.here:,} of {total} were here, and are not kept"
        elif self.kept:
            here = f"{self.kept:,} of {total} are here, and are kept"
        else:
            here = f"{self.here:,} of {total} are here, too few to be kept"
        goes_on = "it continues from there" if kept else "it packs them again"
        if not text:
            msg = f"The process that packed has ended before all was here. {here}. {again}: {goes_on}."
            return NotStagedError(msg)
        kind, message = error_from_json(raw, NotStagedError)
        if issubclass(kind, SourceChangedError):
            # Of a folder that may be one file, of an archive it is all.
            goes_on = "it packs again what has changed"
        # The message of another library's error does not say what failed.
        what = message if raw[0] else f"Packing has ended: {message}"
        return kind(f"{ended(what)} {here}. {again}: {goes_on}.")

    def _write_text(self, at: int, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        data = len(data).to_bytes(4, "little") + data
        self._bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _read_text(self, at: int) -> str:
        length = int.from_bytes(self._bytes[at : at + 4].tobytes(), "little")
        return self._bytes[at + 4 : at + 4 + length].tobytes().decode()


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
    """How many units one window of the first epoch may hold: a function of the source's layout."""
    together: int
    """How many neighbouring units are visited shortly after each other, so that one request can bring them."""
    knows_targets: bool
    """Whether targets are in the file from the beginning."""


class PackArrival:
    """The `h5.arrival.Arrival` of a pack that is being written.

    Thread-safe; can be pickled, and works after a fork. What readers expect changes the order of packing only in the
    process that packs.
    """

    verb = "packed"

    def __init__(
        self, data: Path, place: Path, rows: RowMap, path: Path, splits: Mapping[str, SplitRows], *, plan: ArrivalPlan
    ) -> None:
        """Take the file while it is written, and where it will be; the map, and its path."""
        self.path, self.place = data, place
        self._plan, self.unit = plan, plan.unit
        self._map_path, self._splits = path, dict(splits)
        self._map: RowMap | None = rows
        self.handed_out = HandedOut()
        self._needs: Needs | None = None
        self._figures: Callable[[], Mapping[str, int]] = dict
        self._waits_for: Callable[[], str] = str
        self._pid = os.getpid()

    def follow(self, needs: Needs, figures: Callable[[], Mapping[str, int]], waits_for: Callable[[], str]) -> None:
        """Pass what readers expect to `needs` from now on, ask `figures` for those of bytes, and `waits_for` why none
        come."""
        self._needs, self._figures, self._waits_for = needs, figures, waits_for

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_needs": None, "_figures": dict, "_waits_for": str}

    @property
    def figures(self) -> Mapping[str, int]:
        """Return how many bytes of the source's samples are here: `fetched` by this run and `kept` from an earlier one.
        None is `evicted`. Only in the process that packs."""
        return self._figures()

    @property
    def waits_for(self) -> str:
        """Return why nothing comes at present; "" where it does. Only in the process that packs."""
        return self._waits_for()

    @property
    def complete(self) -> bool:
        """Tell whether the file is complete, and in its place."""
        rows = self._rows()
        return rows is None or rows.state is PackState.PLACED

    def check(self) -> None:
        """Raise the error that ended packing, if there is one; as `hold`."""
        if self._map is not None and self._map.state is PackState.FAILED:
            raise self._map.failure(self.unit)

    @property
    def layout(self) -> UnitLayout:
        """Return the units of the source. Only the first epoch is read unit by unit: at its end the whole split is
        there, and once all is packed, nobody knows any more how the source was laid out."""
        return UnitLayout(
            lambda split: number_units(self._splits[split].units),
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

    def expect(
        self, split: str, rows: NDArray[np.intp], *, then: Callable[[], NDArray[np.intp]] | None = None
    ) -> Expectation:
        """Have rows packed in the order in which they will be read."""
        # `then`, what is read after these, is not needed: by that time the whole split is there.
        # After a fork the thread that packs belongs to another process.
        if self._needs is None or os.getpid() != self._pid or self.complete:
            return _Expected(self.handed_out, None, None)
        known = self._splits[split]
        return _Expected(self.handed_out, self._needs, self._needs.add(known.start + rows, known.units[rows]))

    @contextlib.contextmanager
    def hold(
        self,
        split: str,
        rows: NDArray[np.intp],
        *,
        side: Side = "row",
        cancellation: Cancellation | None = None,
    ) -> Iterator[None]:
        """Wait until these rows are in their places, where they stay."""
        known = self._rows()
        if known is not None and not (side == "targets" and self._plan.knows_targets):
            self._wait(known, self._splits[split].start + np.asarray(rows), cancellation)
        try:
            yield
        except SourceNotFoundError:
            # Removed with the work that it belonged to, which says why.
            self.check()
            raise

    def _wait(self, known: RowMap, wanted: NDArray[np.intp], cancellation: Cancellation | None) -> None:
        look_s, looked_at = _FIRST_LOOK_S, SYSTEM_CLOCK.now()
        while len(wanted := wanted[known.rows[wanted] == RowState.MISSING]):
            if cancellation is not None:
                cancellation.check()
            now = SYSTEM_CLOCK.now()
            looks = now - looked_at > _LOOK_AT_OWNER_S
            looked_at = now if looks else looked_at
            # Only where a row is missing: those that were packed before the failure can still be read.
            if known.state is PackState.FAILED or (looks and known.abandoned):
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
        """Make sure that the finished file has the planned rows."""
        manifest = read_manifest(self.place)
        rows = {name: len(split.units) for name, split in self._splits.items()}
        if manifest is None or dict(manifest.samples) != rows:
            msg = f"The packing of '{self.place}' has ended. Call stage_dataset again, and make a new loader."
            raise NotStagedError(msg)


# A pack that is read while it is written: tells readers which rows are there, and packing which it needs next.


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
        self._ranges = MemberRanges(job).of_units(job, units)
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
    """Where the members of an archive that samples are read from are in it, each up to the next one."""

    def __init__(self, job: PackJob) -> None:
        """Look at all samples of a job."""
        source = None if job.tree is None or job.tree.kind not in _ARCHIVES else job.tree.source
        self._starts = np.empty(0, np.int64) if source is None else _each_once(np.concatenate(_positions(job.table)))
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

    def of_units(self, job: PackJob, units: NDArray[np.int32]) -> list[list[Range]]:
        """Return the byte ranges of each unit, neighbours as one; `units`: of each sample of the job."""
        if not len(self._starts):
            return []
        parts = [np.searchsorted(self._starts, positions) for positions in _positions(job.table)]
        owners = np.concatenate([units] * len(parts)).astype(np.int64)
        # As one number each: sorting pairs takes ten times as long.
        pairs = _each_once(owners * len(self._starts) + np.concatenate(parts))
        owners, places = np.divmod(pairs, len(self._starts))
        first = np.flatnonzero(np.r_[True, (np.diff(owners) != 0) | (np.diff(places) != 1)])
        last = np.r_[first[1:] - 1, len(pairs) - 1]
        found: list[list[Range]] = [[] for _ in range(int(units.max(initial=-1)) + 1)]
        ranges = zip(self._starts[places[first]].tolist(), self._ends[places[last]].tolist(), strict=True)
        for unit, one in zip(owners[first].tolist(), ranges, strict=True):
            found[unit].append(one)
        return found


def _positions(table: SampleTable) -> list[NDArray[np.int64]]:
    """Return where each sample's content is, and its target's where that is read as well."""
    target = target_source(table)
    return [table.inputs.source.positions, *([] if target is None else [target.positions])]


def _each_once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the different values, sorted."""
    # They are nearly sorted already, so this takes a tenth of what `np.unique` does, which goes by hashes.
    ordered = np.sort(values, kind="stable")
    found: NDArray[np.int64] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
