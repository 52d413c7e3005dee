"""What the mount shows: the two spellings of its roots, and each folder's entries as they were last heard of.

A change made elsewhere shows when the folder's snapshot has expired; a change made through this mount shows at once,
because it patches the snapshot.
"""

from __future__ import annotations

import errno
import os
import stat as stat_bits
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.simulate.knobs import cold_listing_s, listing_gives_up

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.io.progress import Clock
    from colabstage.simulate.knobs import DriveKnobs, DriveStats

MY_DRIVE = "/MyDrive"
SHARED_DRIVES = "/Shareddrives"
_SPELLINGS = {"My Drive": "MyDrive", "Shared drives": "Shareddrives"}


def canonical(path: str) -> str:
    """Return the one spelling under which everything is kept: without the space in the first component."""
    first, slash, rest = path[1:].partition("/")
    return f"/{_SPELLINGS.get(first, first)}{slash}{rest}"


def split(path: str) -> tuple[str, str]:
    """Split a path into folder and name; the folder of `/a` is `/`."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def is_below_root(path: str) -> bool:
    """Tell whether the path is inside one of the drives, where things can be made."""
    return path.startswith((f"{MY_DRIVE}/", f"{SHARED_DRIVES}/"))


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing knows about a name."""

    is_folder: bool
    """Whether it is a folder."""
    size: int
    """Its bytes."""
    mtime_ns: int
    """When it was last changed, in nanoseconds since 1970."""

    @classmethod
    def of(cls, stat: os.stat_result) -> Entry | None:
        """Return the entry of a regular file or a folder; nothing else exists on a Drive."""
        if stat_bits.S_ISDIR(stat.st_mode):
            return cls(is_folder=True, size=0, mtime_ns=stat.st_mtime_ns)
        if stat_bits.S_ISREG(stat.st_mode):
            return cls(is_folder=False, size=stat.st_size, mtime_ns=stat.st_mtime_ns)
        return None

    def attributes(self) -> dict[str, Any]:
        """Return the answer to `stat`: everything belongs to, and is readable by, the user who mounted it alone."""
        kind = stat_bits.S_IFDIR | 0o700 if self.is_folder else stat_bits.S_IFREG | 0o600
        return {
            "st_mode": kind,
            "st_nlink": 2 if self.is_folder else 1,
            "st_size": self.size,
            "st_blocks": -(-self.size // 512),
            "st_blksize": 4096,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": self.mtime_ns,
            "st_ctime": self.mtime_ns,
            # Drive tells one time only.
            "st_atime": self.mtime_ns,
        }


class Snapshot:
    """One folder as it was at `taken_at` (monotonic seconds)."""

    __slots__ = ("attempts", "entries", "lock", "taken_at")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[str, Entry] | None = None
        self.taken_at = 0.0
        self.attempts = 0


class Folders:
    """The listing cache. Shortcuts (symbolic links in the cloud's folder) show as what they point to."""

    def __init__(self, cloud: Path, *, knobs: DriveKnobs, stats: DriveStats, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cloud = str(cloud)
        self._knobs = knobs
        self._stats = stats
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}

    def cloud_path(self, path: str) -> str:
        """Return where in the cloud's folder a path of the mount lies."""
        return self._cloud + path

    def snapshot(self, folder: str) -> Snapshot:
        """Return the folder's snapshot, loaded when it is unknown (which takes time) or expired (which does not:
        the client hears of changes in the background).

        Raises:
            FileNotFoundError: the folder is not in the cloud.
        """
        with self._lock:
            snapshot = self._snapshots.setdefault(folder, Snapshot())
        entries = snapshot.entries
        # Without the lock, for the many calls that find it fresh.
        if entries is not None and self._clock.now() < snapshot.taken_at + self._knobs.visibility_s:
            return snapshot
        with snapshot.lock:
            if snapshot.entries is None:
                entries = self._scan(folder)
                self._stats.listings_cold += 1
                self._clock.sleep(cold_listing_s(self._knobs, len(entries)))
                snapshot.taken_at = self._clock.now()
                snapshot.entries = entries
            elif self._clock.now() >= snapshot.taken_at + self._knobs.visibility_s:
                snapshot.entries = self._scan(folder)
                snapshot.taken_at = self._clock.now()
        return snapshot

    def _scan(self, folder: str) -> dict[str, Entry]:
        entries = {}
        with os.scandir(self.cloud_path(folder)) as items:
            for item in items:
                entry = self._look(item)
                if entry is not None:
                    entries[item.name] = entry
        return entries

    @staticmethod
    def _look(item: os.DirEntry[str]) -> Entry | None:
        try:
            return Entry.of(item.stat())
        except OSError:  # a shortcut to nowhere, or gone meanwhile
            return None

    def find(self, path: str) -> Entry | None:
        """Return what is known of a path inside a drive; `None` when it is not there as far as this mount knows."""
        folder, name = split(path)
        with self._lock:
            known = folder in self._snapshots
        if known and not self._knobs.visibility_s:
            # Everything shows at once: look instead of scanning the folder for each name.
            return self._stat(path)
        try:
            entries = self.snapshot(folder).entries
        except (FileNotFoundError, NotADirectoryError):
            return None
        return entries.get(name) if entries else None

    def listing(self, folder: str) -> list[tuple[str, bool]]:
        """Return the names in a folder, with whether each is a folder; takes the time a listing takes.

        Raises:
            FileNotFoundError: the folder is not in the cloud.
            OSError: errno 5, the folder has too many entries for this attempt.
        """
        with self._lock:
            known = folder in self._snapshots and self._snapshots[folder].entries is not None
        snapshot = self.snapshot(folder)
        entries = dict(snapshot.entries or {})
        # Of a folder with too many entries the first attempts fail, and a later one comes through, as people report it.
        snapshot.attempts += 1
        if listing_gives_up(self._knobs, len(entries), snapshot.attempts):
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
        if known:
            self._stats.listings_warm += 1
            self._clock.sleep(self._knobs.warm_listing_s)
        return [(name, entry.is_folder) for name, entry in entries.items()]

    def _stat(self, path: str) -> Entry | None:
        try:
            return Entry.of(os.stat(self.cloud_path(path)))  # noqa: PTH116 - one system call, on the hot path
        except OSError:
            return None

    def patch(self, path: str) -> None:
        """Take over what the cloud now has at `path`, since this machine itself made it so."""
        folder, name = split(path)
        entry = self._stat(path)
        with self._lock:
            snapshot = self._snapshots.get(folder)
        # Nothing is known of the folder, so nothing can be out of date.
        if snapshot is None or snapshot.entries is None:
            return
        with snapshot.lock:
            snapshot.entries.pop(name, None)
            if entry is not None:
                snapshot.entries[name] = entry

    def moved(self, old: str, new: str) -> None:
        """Keep what is known of a folder, and of those below it, under its new name."""
        with self._lock:
            known = list(self._snapshots)
            for folder in known:
                if folder == old or folder.startswith(f"{old}/"):
                    # Listed again, a renamed tree of thousands would cost minutes, which the real client does not take.
                    self._snapshots[new + folder[len(old) :]] = self._snapshots.pop(folder)
        self.patch(old)
        self.patch(new)

    def made(self, path: str) -> None:
        """Note that a folder was made here, which is known to be empty."""
        snapshot = Snapshot()
        snapshot.entries = {}
        snapshot.taken_at = self._clock.now()
        with self._lock:
            self._snapshots[path] = snapshot
        self.patch(path)

    def gone(self, path: str) -> None:
        """Forget a folder that was removed here."""
        with self._lock:
            self._snapshots.pop(path, None)
        self.patch(path)
