"""What the simulated Drive is like: its speeds and limits as one value, its misbehaviour as another, its counters."""

from __future__ import annotations

import dataclasses
import errno
import math
from dataclasses import dataclass
from typing import Any, Literal

from colabstage.errors import OptionError

FaultOp = Literal["stat", "list", "open", "read", "write", "create", "mkdir", "rename", "unlink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveKnobs:
    """Speeds and limits of a simulated Drive. The defaults are what people report of an ordinary day."""

    cold_open_latency_s: float = 0.4
    """Seconds before the first byte of a file that is not in the content cache, once per open."""
    stream_bytes_per_s: float = 50e6
    """Bytes a second of one cold file, however many ranges or handles of it are read at once."""
    total_bytes_per_s: float = 200e6
    """Bytes a second of all cold files together."""
    parallel_requests: int = 24
    """How many cold requests are served at once; small files scale with readers up to here."""
    readahead_bytes: int = 8 << 20
    """How far a sequential cold read runs ahead while the reader is busy with something else."""
    block_bytes: int = 256 << 10
    """The unit in which content arrives in the cache."""
    warm_open_latency_s: float = 0.01
    """Seconds before the first byte of a cached file, once per open."""
    warm_bytes_per_s: float = 120e6
    """Bytes a second of one cached file."""
    listing_latency_s: float = 0.3
    """Seconds for the first look into a folder: a fixed part, a part for each entry, and the most it comes to."""
    listing_per_entry_s: float = 0.001
    """Seconds for the first look into a folder: a fixed part, a part for each entry, and the most it comes to."""
    listing_max_s: float = 20.0
    """Seconds for the first look into a folder: a fixed part, a part for each entry, and the most it comes to."""
    warm_listing_s: float = 0.01
    """Seconds for each further listing of that folder."""
    entry_limit: int | None = 10_000
    """A folder with more entries answers its first listings with errno 5; each attempt learns that many entries, so
    that a later one succeeds. `None` for no limit."""
    upload_bytes_per_s: float = 2e6
    """Bytes a second of one upload."""
    parallel_uploads: int = 10
    """Files uploaded at once."""
    visibility_s: float = 60.0
    """Seconds until a change made elsewhere shows here; `inf` for never before a remount."""
    quota_bytes: int = 15_000_000_000
    """The account's storage, in bytes; deleted files stay in the trash and keep counting."""
    quota_errno: int = errno.ENOSPC
    """What a write answers when the account is full."""
    downloads_per_file: int | None = None
    """Cold opens after which a file's download quota is used up and reading it answers errno 5."""
    flock_errno: int | None = errno.ENOSYS
    """What locking a file answers; `None` for locks that work on this machine."""
    attributes: bool = True
    """Whether ids, MD5s and the state of uploads are answered as attributes; else errno 95."""
    death_after_opens: int | None = None
    """The client dies by itself at that many opens and listings together; `None` for never."""
    death_enoent_s: float = 0.0
    """Seconds during which a dying client denies that any file exists, before it is gone."""
    time_scale: float = 1.0
    """Multiplies every wait; 0 for no waiting at all."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name.endswith("_s") and not field.name.endswith("_per_s")
            may_be_zero = may_be_zero or field.name in {"time_scale", "readahead_bytes", "quota_bytes", "attributes"}
            if value is not None and not (value > 0 or (value == 0 and may_be_zero)):
                expected = "0 or more" if may_be_zero else "more than 0"
                msg = f"DriveKnobs.{field.name} is {value!r}; expected {expected}."
                raise OptionError(msg)

    @classmethod
    def quick(cls) -> DriveKnobs:
        """Make knobs without any waiting: for tests of behaviour rather than of speed."""
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

    @classmethod
    def bad_day(cls) -> DriveKnobs:
        """Return the slow end of what is reported: a second for each file, then 100 kB/s."""
        return cls(cold_open_latency_s=1.0, stream_bytes_per_s=100e3, total_bytes_per_s=2e6, visibility_s=600.0)

    def scaled(self) -> DriveKnobs:
        """Return the same Drive with `time_scale` worked into every duration and rate, and itself 1."""
        changes: dict[str, float] = {"time_scale": 1.0}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_per_s"):
                changes[field.name] = value / self.time_scale if self.time_scale else math.inf
            elif field.name.endswith("_s"):
                # An infinite wait stays one: 0 times infinity is not a duration.
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
    """What the call answers."""
    first: int | None = None
    """Only among the first so many matching calls; `None` for no such bound."""
    every: int | None = None
    """Only every so-manieth matching call fails, so 3 fails the third, sixth, …; `None` for all of them."""
    per_file: bool = False
    """Calls are counted for each path by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFault:
    """Files whose content comes wrong, with the right size in every listing."""

    pattern: str
    """As in `OpFault`."""
    kind: Literal["zero_tail", "truncate"]
    """`"zero_tail"` reads the last `tail_bytes` as zeros, `"truncate"` ends the file that much early."""
    tail_bytes: int
    """Length of the damage in bytes."""
    first_opens: int | None = None
    """Only the first so many opens of matching files are damaged; `None` for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFault:
    """Folders whose listing silently lacks entries."""

    pattern: str
    """As in `OpFault`, matched against the folder."""
    keep: float = 0.5
    """The share of entries that is listed, from 0 to 1."""
    first: int | None = None
    """Only the first so many listings lack entries; `None` for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveFaults:
    """Everything that goes wrong on purpose; the default is nothing."""

    ops: tuple[OpFault, ...] = ()
    """Calls that fail."""
    contents: tuple[ContentFault, ...] = ()
    """Files whose content is wrong or late."""
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
        """Rebuild from what `dataclasses.asdict` made of it, also after a trip through JSON."""
        return cls(
            ops=tuple(OpFault(**rule) for rule in value["ops"]),
            contents=tuple(ContentFault(**rule) for rule in value["contents"]),
            listings=tuple(ListingFault(**rule) for rule in value["listings"]),
            drop_uploads=tuple(value["drop_uploads"]),
            stall_uploads=value["stall_uploads"],
            quota_exceeded=value["quota_exceeded"],
        )


@dataclass(slots=True)
class DriveStats:
    """Counters since the last mount."""

    cold_opens: int = 0
    """Opens whose first read found its bytes in the cloud, or in the content cache."""
    warm_opens: int = 0
    """Opens whose first read found its bytes in the cloud, or in the content cache."""
    listings_cold: int = 0
    """First looks into a folder, and listings of a folder already known."""
    listings_warm: int = 0
    """First looks into a folder, and listings of a folder already known."""
    bytes_cold: int = 0
    """Bytes fetched from the cloud, and bytes served from the cache."""
    bytes_warm: int = 0
    """Bytes fetched from the cloud, and bytes served from the cache."""
    bytes_written: int = 0
    """Bytes written through the mount."""
    uploads_done: int = 0
    """Files that reached the cloud."""
    uploads_pending: int = 0
    """What is still on the way."""
    bytes_pending: int = 0
    """What is still on the way."""
    errors_injected: int = 0
    """Calls that failed because a fault said so."""
