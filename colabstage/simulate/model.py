"""How long things take and which calls fail: pure accounting. Times come in as arguments, nobody sleeps here.

Whoever calls these from several threads holds a lock of its own around them; each call is a few additions.
"""

from __future__ import annotations

import heapq
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colabstage.simulate.knobs import ContentFault, DriveFaults, DriveKnobs, FaultOp, ListingFault, OpFault

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


class Stream:
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

    def open_stream(self) -> Stream:
        """A pipe for a file that is now read for the first time."""
        return Stream(self._knobs.stream_bytes_per_s)

    def fetch(self, stream: Stream, now: float, *, block: int, nbytes: int, first_of_open: bool) -> float:
        """Ask at time `now` for block number `block` of `nbytes`; return the time at which it has arrived."""
        knobs = self._knobs
        asked = max(now, heapq.heappop(self._slots))
        if first_of_open:
            asked += knobs.cold_open_latency_s
        window_blocks = knobs.readahead_bytes // knobs.block_bytes
        follows = stream.last_block >= 0 and abs(block - stream.last_block) <= window_blocks
        stream.last_block = block
        # A reader that goes on where it was finds what came while it was busy; one that jumps finds nothing.
        credit_s = knobs.readahead_bytes / knobs.stream_bytes_per_s if follows and not first_of_open else 0.0
        arrived = stream.meter.reserve(asked, nbytes, credit_s=credit_s)
        arrived = max(arrived, self._total.reserve(asked, nbytes, credit_s=max(SLACK_S, credit_s)))
        heapq.heappush(self._slots, max(arrived, asked))
        return arrived


def cold_listing_s(knobs: DriveKnobs, entries: int) -> float:
    """Seconds for the first look into a folder of that many entries."""
    return min(knobs.listing_latency_s + entries * knobs.listing_per_entry_s, knobs.listing_max_s)


def listing_gives_up(knobs: DriveKnobs, entries: int, attempt: int) -> bool:
    """Whether the `attempt`-th listing (from 1) of a folder of that many entries ends in errno 5."""
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
        """The errno this call answers, or `None` when it may go ahead. Counts the call."""
        matching = [rule for rule in self.faults.ops if rule.op == op and fnmatchcase(path, rule.pattern)]
        struck = [rule for rule in matching if self._strikes(rule, path)]
        return struck[0].errno if struck else None

    def damage_for(self, path: str) -> ContentFault | None:
        """How the content of the file that is now opened comes wrong. Counts the open."""
        for rule in self.faults.contents:
            if fnmatchcase(path, rule.pattern):
                within = rule.first_opens is None or self._count(rule, "") <= rule.first_opens
                return rule if within else None
        return None

    def counts_reads_of(self, path: str) -> bool:
        """Whether reads of that file must arrive here one by one."""
        return any(rule.op == "read" and fnmatchcase(path, rule.pattern) for rule in self.faults.ops)

    def kept_of_listing(self, path: str, entries: int) -> int:
        """How many of a folder's entries the listing shows. Counts the listing."""
        rule: ListingFault
        for rule in self.faults.listings:
            if fnmatchcase(path, rule.pattern):
                within = rule.first is None or self._count(rule, "") <= rule.first
                return int(entries * rule.keep) if within else entries
        return entries

    def drops_upload(self, path: str) -> bool:
        """Whether the upload of that file gets lost on the way."""
        return any(fnmatchcase(path, pattern) for pattern in self.faults.drop_uploads)
