"""The simulated Drive's speeds and limits, faults and counters; how long calls take, and which calls fail.

The accounting is pure: times are arguments, and nothing sleeps. Callers with several threads hold their own lock around
it; each call is a few additions.
"""

from __future__ import annotations

import dataclasses
import errno
import heapq
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

SHORT_BYTES = 5
FaultOp = Literal["stat", "list", "open", "read", "write", "create", "mkdir", "rename", "unlink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveKnobs:
    """Speeds and limits of a simulated Drive. The defaults are what people report for an ordinary day."""

    cold_open_latency_s: float = 0.4
    """Seconds before the first byte of a file that is not in the content cache, once per open."""
    stream_bytes_per_s: float = 50e6
    """Bytes per second of one cold file, however many ranges or handles are read at once."""
    total_bytes_per_s: float = 200e6
    """Bytes a second of all cold files together."""
    parallel_requests: int = 24
    """How many cold requests are served at once; small files scale with readers up to here."""
    block_bytes: int = 256 << 10
    """The block size in which content arrives in the cache."""
    warm_open_latency_s: float = 0.01
    """Seconds before the first byte of a cached file, once per open."""
    warm_bytes_per_s: float = 120e6
    """Bytes a second of one cached file."""
    listing_latency_s: float = 0.3
    """Seconds for the first look into a folder, besides those for its entries."""
    listing_per_entry_s: float = 0.001
    """Seconds for each of its entries; in all no more than 20."""
    warm_listing_s: float = 0.01
    """Seconds for each further listing of that folder."""
    upload_bytes_per_s: float = 2e6
    """Bytes a second of one upload."""
    visibility_s: float = 60.0
    """Seconds until a change made elsewhere is visible here; `inf` for not before a remount."""
    quota_bytes: int = 15_000_000_000
    """The account's storage, in bytes; deleted files stay in the trash and keep counting."""
    type: str = "drive"
    """The kernel calls the type of the mount `fuse.` and this: Google's client is called otherwise on other systems."""
    shortcuts_are_links: bool = False
    """Whether shortcuts (links in the cloud's folder) appear as links; otherwise as what they lead to."""
    reports_space: bool = True
    """Whether the client reports the account's storage; otherwise all figures are 0."""
    attributes: bool = True
    """Whether ids, MD5s and the state of uploads are available as attributes."""
    death_after_opens: int | None = None
    """The client dies after this many opens and listings; `None` for never."""
    death_enoent_s: float = 0.0
    """Seconds during which a dying client denies that any file exists, before it is gone."""
    time_scale: float = 1.0
    """Multiplies every wait; 0 for no waiting at all."""

    @classmethod
    def quick(cls) -> DriveKnobs:
        """Make knobs without any waiting, for tests of behaviour rather than speed."""
        # All durations become 0 and all rates infinite; counters and failures stay the same.
        return cls(time_scale=0.0)

    @classmethod
    def good_day(cls) -> DriveKnobs:
        """Return the fast end of what is reported: 30 ms a cold file, uploads at 30 MB/s, quick listings."""
        return cls(
            cold_open_latency_s=0.03,
            stream_bytes_per_s=65e6,
            warm_open_latency_s=0.002,
            warm_bytes_per_s=190e6,
            listing_latency_s=0.05,
            listing_per_entry_s=0.0001,
            upload_bytes_per_s=30e6,
        )

    def scaled(self) -> DriveKnobs:
        """Return the same Drive with `time_scale` applied to all durations and rates, and reset to 1."""
        changes: dict[str, float] = {"time_scale": 1.0}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_per_s"):
                changes[field.name] = value / self.time_scale if self.time_scale else math.inf
            elif field.name.endswith("_s"):
                # An infinite wait stays infinite, because 0 times infinity is not a duration.
                changes[field.name] = value if math.isinf(value) else value * self.time_scale
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFault:
    """Calls that fail.

    A read is one `read` of the caller, of at most 1 MiB, that starts before the end of a file opened after the fault
    was set; such files bypass the kernel's page cache so that the count is exact (and cannot be mapped into memory).
    """

    op: FaultOp
    """Which kind of call."""
    pattern: str = "*"
    """Glob over the path inside the Drive, for example `"MyDrive/data/*.jpg"`; `*` also matches `/`."""
    errno: int = errno.EIO
    """The errno of the call."""
    first: int | None = None
    """Only this many first matching calls; `None` for no limit, 0 only counts reads."""
    per_file: bool = False
    """Calls are counted separately for each path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFault:
    """Folders whose listing silently lacks half of the entries."""

    pattern: str
    """As in `OpFault`, matched against the folder."""
    first: int | None = None
    """Only this many first listings lack entries; `None` for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveFaults:
    """All deliberate faults; none by default."""

    ops: tuple[OpFault, ...] = ()
    """Calls that fail."""
    short_files: tuple[str, ...] = ()
    """Globs of files that end `SHORT_BYTES` early, with the right size in every listing."""
    listings: tuple[ListingFault, ...] = ()
    """Folders that are listed in part or late."""
    drop_uploads: tuple[str, ...] = ()
    """Globs of files whose upload is reported as done but never reaches the cloud."""
    stall_uploads: bool = False
    """Nothing is uploaded for now."""
    quota_exceeded: bool = False
    """Every write answers as if the account were full."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DriveFaults:
        """Rebuild from the result of `dataclasses.asdict`, also after conversion to JSON and back."""
        return cls(
            ops=tuple(OpFault(**rule) for rule in value["ops"]),
            short_files=tuple(value["short_files"]),
            listings=tuple(ListingFault(**rule) for rule in value["listings"]),
            drop_uploads=tuple(value["drop_uploads"]),
            stall_uploads=value["stall_uploads"],
            quota_exceeded=value["quota_exceeded"],
        )


@dataclass(slots=True)
class DriveStats:
    """Counters since the last mount."""

    cold_opens: int = 0
    """Opens whose first read came from the cloud."""
    warm_opens: int = 0
    """Opens whose first read came from the content cache."""
    listings_cold: int = 0
    """First looks into a folder."""
    listings_warm: int = 0
    """Listings of a folder already known."""
    bytes_cold: int = 0
    """Bytes fetched from the cloud."""
    bytes_warm: int = 0
    """Bytes served from the cache."""
    bytes_written: int = 0
    """Bytes written through the mount."""
    uploads_done: int = 0
    """Files that reached the cloud."""
    uploads_pending: int = 0
    """Files that are still on the way."""
    bytes_pending: int = 0
    """Their bytes."""
    errors_injected: int = 0
    """Calls that failed because of a fault."""


_LISTING_MAX_S = 20.0
# How far a sequential cold read is read ahead while the reader is busy.
_READ_AHEAD_BYTES = 8 << 20
# Sleeping ends late. A meter forgives this much idle time, so that many short waits add up to the right rate.
SLACK_S = 0.02


class Meter:
    """A pipe with a fixed rate: bytes that enter while others are in flight queue behind them."""

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
        # The place that is free first: a heap of times is a queue of requests without threads.
        asked = max(now, heapq.heappop(self._slots))
        if first_of_open:
            asked += knobs.cold_open_latency_s
        window_blocks = _READ_AHEAD_BYTES // knobs.block_bytes
        follows = stream.last_block >= 0 and abs(block - stream.last_block) <= window_blocks
        stream.last_block = block
        # A sequential reader finds what arrived while it was busy; one that jumps finds nothing.
        credit_s = _READ_AHEAD_BYTES / knobs.stream_bytes_per_s if follows and not first_of_open else 0.0
        # Each byte passes both pipes, so the busier one decides.
        arrived = stream.meter.reserve(asked, nbytes, credit_s=credit_s)
        arrived = max(arrived, self._total.reserve(asked, nbytes, credit_s=max(SLACK_S, credit_s)))
        heapq.heappush(self._slots, max(arrived, asked))
        return arrived


def cold_listing_s(knobs: DriveKnobs, entries: int) -> float:
    """Return the seconds for the first look into a folder of that many entries."""
    return min(knobs.listing_latency_s + entries * knobs.listing_per_entry_s, _LISTING_MAX_S)


class FaultLedger:
    """Decide which calls fail, with the counters of the rules. Paths have no leading slash."""

    def __init__(self, faults: DriveFaults) -> None:
        self.faults = faults
        self._counts: dict[tuple[object, str], int] = {}

    def _count(self, rule: object, path: str) -> int:
        number = self._counts.get((id(rule), path), 0) + 1
        # By the rule's identity, not its content: two equal rules count separately.
        self._counts[id(rule), path] = number
        return number

    def _strikes(self, rule: OpFault, path: str) -> bool:
        number = self._count(rule, path if rule.per_file else "")
        return rule.first is None or number <= rule.first

    def errno_for(self, op: FaultOp, path: str) -> int | None:
        """Return the errno this call answers, or `None` when it may go ahead. Counts the call."""
        matching = [rule for rule in self.faults.ops if rule.op == op and fnmatchcase(path, rule.pattern)]
        # All rules count the call, including those after the first that applies.
        struck = [rule for rule in matching if self._strikes(rule, path)]
        return struck[0].errno if struck else None

    def ends_early(self, path: str) -> bool:
        """Return whether that file ends before its size."""
        return any(fnmatchcase(path, pattern) for pattern in self.faults.short_files)

    def counts_reads_of(self, path: str) -> bool:
        """Return whether reads of that file must not be cached by the kernel."""
        return any(rule.op == "read" and fnmatchcase(path, rule.pattern) for rule in self.faults.ops)

    def kept_of_listing(self, path: str, entries: int) -> int:
        """Return how many of a folder's entries the listing shows. Counts the listing."""
        rule: ListingFault
        for rule in self.faults.listings:
            if fnmatchcase(path, rule.pattern):
                within = rule.first is None or self._count(rule, "") <= rule.first
                return entries // 2 if within else entries
        return entries

    def drops_upload(self, path: str) -> bool:
        """Return whether the upload of that file gets lost on the way."""
        return any(fnmatchcase(path, pattern) for pattern in self.faults.drop_uploads)
