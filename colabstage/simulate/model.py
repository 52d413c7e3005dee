"""How long things take and which calls fail: pure accounting, in which times come in as arguments and nobody sleeps.
And a tree that waits by it, for where nothing can be mounted.

Whoever calls the accounting from several threads holds a lock of its own around it; each call is a few additions.
"""

from __future__ import annotations

import heapq
import threading
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from colabstage.io.clock import SYSTEM_CLOCK
from colabstage.trees.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.io.clock import Clock
    from colabstage.simulate.knobs import ContentFault, DriveFaults, DriveKnobs, FaultOp, ListingFault, OpFault
    from colabstage.trees.tree import FileEntry

# Sleeping wakes up late. A meter forgives this much idle time, so that many short waits add up to the right rate.
SLACK_S = 0.02


class Meter:
    """A pipe of a fixed rate: bytes that enter while others are under way queue behind them."""

    __slots__ = ("_free_at", "_rate")

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at: float | None = None

    def reserve(self, now: float, nbytes: int, *, credit_s: float = SLACK_S) -> float:
        """Send `nbytes` at time `now`; return the time at which the last one has arrived.

        `credit_s`: seconds of idleness just before `now` that count as if the pipe had been working ahead.
        """
        start = now if self._free_at is None else max(self._free_at, now - credit_s)
        self._free_at = start + nbytes / self._rate
        return self._free_at


class ColdFile:
    """One cold file on its way into the cache: its own pipe, and where it was last read."""

    __slots__ = ("last_block", "meter")

    def __init__(self, bytes_per_s: float) -> None:
        self.meter = Meter(bytes_per_s)
        self.last_block = -1


class Traffic:
    """All cold reads together: each pays its file's pipe, the common pipe, and a place among the requests served."""

    def __init__(self, knobs: DriveKnobs) -> None:
        self._knobs = knobs
        self._total = Meter(knobs.total_bytes_per_s)
        self._slots = [0.0] * knobs.parallel_requests

    def open_stream(self) -> ColdFile:
        """Return a pipe for a file that is now read for the first time."""
        return ColdFile(self._knobs.stream_bytes_per_s)

    def fetch(self, stream: ColdFile, now: float, *, block: int, nbytes: int, first_of_open: bool) -> float:
        """Ask at time `now` for block number `block` of `nbytes`; return the time at which it has arrived."""
        knobs = self._knobs
        asked = max(now, heapq.heappop(self._slots))
        if first_of_open:
            asked += knobs.cold_open_latency_s
        window_blocks = knobs.readahead_bytes // knobs.block_bytes
        follows = stream.last_block >= 0 and abs(block - stream.last_block) <= window_blocks
        stream.last_block = block
        # A reader that continues where it was finds what came while it was busy; one that jumps finds nothing.
        credit_s = knobs.readahead_bytes / knobs.stream_bytes_per_s if follows and not first_of_open else 0.0
        arrived = stream.meter.reserve(asked, nbytes, credit_s=credit_s)
        arrived = max(arrived, self._total.reserve(asked, nbytes, credit_s=max(SLACK_S, credit_s)))
        heapq.heappush(self._slots, max(arrived, asked))
        return arrived


def cold_listing_s(knobs: DriveKnobs, entries: int) -> float:
    """Return the seconds for the first look into a folder of that many entries."""
    return min(knobs.listing_latency_s + entries * knobs.listing_per_entry_s, knobs.listing_max_s)


def listing_gives_up(knobs: DriveKnobs, entries: int, attempt: int) -> bool:
    """Tell whether the `attempt`-th listing (from 1) of a folder of that many entries ends in errno 5."""
    return knobs.entry_limit is not None and entries > attempt * knobs.entry_limit


class FaultLedger:
    """Which calls fail, counted as the rules say. Paths have no leading slash."""

    def __init__(self, faults: DriveFaults) -> None:
        self.faults = faults
        self._counts: dict[tuple[object, str], int] = {}

    def _count(self, rule: object, path: str) -> int:
        number = self._counts.get((id(rule), path), 0) + 1
        self._counts[id(rule), path] = number
        return number

    def _strikes(self, rule: OpFault, path: str) -> bool:
        number = self._count(rule, path if rule.per_file else "")
        within = rule.first is None or number <= rule.first
        return within and (rule.every is None or number % rule.every == 0)

    def errno_for(self, op: FaultOp, path: str) -> int | None:
        """Return the errno this call answers, or `None` when it may go ahead. Counts the call."""
        matching = [rule for rule in self.faults.ops if rule.op == op and fnmatchcase(path, rule.pattern)]
        struck = [rule for rule in matching if self._strikes(rule, path)]
        return struck[0].errno if struck else None

    def damage_for(self, path: str) -> ContentFault | None:
        """Return how the content of the file that is now opened comes wrong. Counts the open."""
        for rule in self.faults.contents:
            if fnmatchcase(path, rule.pattern):
                within = rule.first_opens is None or self._count(rule, "") <= rule.first_opens
                return rule if within else None
        return None

    def counts_reads_of(self, path: str) -> bool:
        """Tell whether reads of that file must arrive here one by one."""
        return any(rule.op == "read" and fnmatchcase(path, rule.pattern) for rule in self.faults.ops)

    def kept_of_listing(self, path: str, entries: int) -> int:
        """Return how many of a folder's entries the listing shows. Counts the listing."""
        rule: ListingFault
        for rule in self.faults.listings:
            if fnmatchcase(path, rule.pattern):
                within = rule.first is None or self._count(rule, "") <= rule.first
                return int(entries * rule.keep) if within else entries
        return entries

    def drops_upload(self, path: str) -> bool:
        """Tell whether the upload of that file gets lost on the way."""
        return any(fnmatchcase(path, pattern) for pattern in self.faults.drop_uploads)


class ThrottledTree(Tree):
    """Another tree, read at Drive's pace: a file's first read is cold, later ones are warm.

    It has no content cache of its own; only the waiting is imitated. Closing it closes the other tree.
    """

    def __init__(self, tree: Tree, knobs: DriveKnobs, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tree = tree
        self.kind, self.label, self.notes, self.entries = tree.kind, tree.label, tree.notes, tree.entries
        self._knobs = knobs.scaled()
        self._traffic = Traffic(self._knobs)
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: set[str] = set()

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, not sooner than Drive would have it here."""
        with self._lock:
            arrived = self._arrival(entry, self._clock.now())
        data = self._tree.read(entry)
        self._clock.sleep(max(0.0, arrived - self._clock.now()))
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of one file in pieces, the first not sooner than Drive would have the file here."""
        with self._lock:
            arrived = self._arrival(entry, self._clock.now())
        for piece in self._tree.chunks(entry):
            self._clock.sleep(max(0.0, arrived - self._clock.now()))
            yield piece

    def _arrival(self, entry: FileEntry, now: float) -> float:
        if entry.name in self._cached:
            # A pipe for each read: warm reads do not share a rate.
            warm = Meter(self._knobs.warm_bytes_per_s)
            return warm.reserve(now + self._knobs.warm_open_latency_s, entry.size)
        self._cached.add(entry.name)
        stream = self._traffic.open_stream()
        return self._traffic.fetch(stream, now, block=0, nbytes=entry.size, first_of_open=True)

    def close(self) -> None:
        """Close the other tree."""
        self._tree.close()
