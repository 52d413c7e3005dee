"""What this machine caches of the simulated cloud: listings, and content that was read.

The root folders have two spellings. A change made elsewhere becomes visible when the folder's snapshot has expired; a
change made through this mount is visible at once, because it updates the snapshot.

Content is cached on the local disk block by block. A file's entry is named after the cloud file's inode, size and
modification time, so a rename keeps it and a new version gets a new one. It is `NAME.part` while blocks are missing and
`NAME` once complete. A restarted client keeps complete entries and forgets partial ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_bits
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulated_drive.knobs import Meter, cold_listing_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from simulated_drive.knobs import ColdFile, DriveKnobs, DriveStats, Traffic

MY_DRIVE = "/MyDrive"
SHARED_DRIVES = "/Shareddrives"
SHORTCUT_TARGETS = "/.shortcut-targets-by-id"
_SPELLINGS = {"My Drive": "MyDrive", "Shared drives": "Shareddrives"}


def canonical(path: str) -> str:
    """Return the canonical spelling: without the space in the first component."""
    first, slash, rest = path[1:].partition("/")
    return f"/{_SPELLINGS.get(first, first)}{slash}{rest}"


def split(path: str) -> tuple[str, str]:
    """Split a path into folder and name; the folder of `/a` is `/`."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def is_below_root(path: str) -> bool:
    """Return whether the path is inside one of the drives, where files can be created."""
    return path.startswith((f"{MY_DRIVE}/", f"{SHARED_DRIVES}/", f"{SHORTCUT_TARGETS}/"))


_FOLDER_MODE, _FILE_MODE, _LINK_MODE = stat_bits.S_IFDIR | 0o700, stat_bits.S_IFREG | 0o600, stat_bits.S_IFLNK | 0o777


def blocks_of(size: int) -> int:
    """Return how many blocks of 512 bytes a file of this length takes."""
    return -(-size // 512)


@dataclass(frozen=True, slots=True)
class Entry:
    """The facts about a name in a listing."""

    is_folder: bool
    """Whether it is a folder."""
    size: int
    """Its length in bytes."""
    mtime_ns: int
    """When it was last changed, in nanoseconds since 1970."""
    is_link: bool = False
    """Whether it is a shortcut that is shown as a link."""

    @classmethod
    def of(cls, stat: os.stat_result) -> Entry | None:
        """Return the entry of a regular file, a folder or a link; nothing else exists on a Drive."""
        if stat_bits.S_ISLNK(stat.st_mode):
            return cls(is_folder=False, size=stat.st_size, mtime_ns=stat.st_mtime_ns, is_link=True)
        if stat_bits.S_ISDIR(stat.st_mode):
            return cls(is_folder=True, size=0, mtime_ns=stat.st_mtime_ns)
        if stat_bits.S_ISREG(stat.st_mode):
            return cls(is_folder=False, size=stat.st_size, mtime_ns=stat.st_mtime_ns)
        return None

    @property
    def mode(self) -> int:
        """Return its kind, with all rights for the user who mounted it and none for others."""
        return _FOLDER_MODE if self.is_folder else _LINK_MODE if self.is_link else _FILE_MODE

    def attributes(self) -> dict[str, Any]:
        """Return the answer to `stat`: everything belongs to the user who mounted it."""
        return {
            "st_mode": self.mode,
            "st_nlink": 2 if self.is_folder else 1,
            "st_size": self.size,
            "st_blocks": blocks_of(self.size),
            "st_blksize": 4096,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": self.mtime_ns,
            "st_ctime": self.mtime_ns,
            # Drive has only one time.
            "st_atime": self.mtime_ns,
        }


class Snapshot:
    """One folder at `taken_at` (monotonic seconds)."""

    __slots__ = ("entries", "lock", "taken_at")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[str, Entry] | None = None
        self.taken_at = 0.0


class Folders:
    """The listing cache. Shortcuts (symbolic links in the cloud's folder) appear as their targets, or as links."""

    def __init__(self, cloud: Path, *, knobs: DriveKnobs, stats: DriveStats) -> None:
        self._cloud = str(cloud)
        self._knobs = knobs
        self._stats = stats
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}

    def cloud_path(self, path: str) -> str:
        """Return the path in the cloud's folder of a path in the mount."""
        return self._cloud + path

    def snapshot(self, folder: str) -> Snapshot:
        """Return the folder's snapshot, loaded if it is unknown (which takes simulated time) or expired (which does
        not, because the client learns of changes in the background).
        """
        with self._lock:
            snapshot = self._snapshots.get(folder) or self._snapshots.setdefault(folder, Snapshot())
        entries = snapshot.entries
        # Without the lock, because most calls find it fresh.
        if entries is not None and time.monotonic() < snapshot.taken_at + self._knobs.visibility_s:
            return snapshot
        with snapshot.lock:
            if snapshot.entries is None:
                began = time.monotonic()
                entries = self._scan(folder)
                self._stats.listings_cold += 1
                # The real time of looking counts towards the wait.
                sleep_until(began + cold_listing_s(self._knobs, len(entries)))
                snapshot.taken_at = time.monotonic()
                snapshot.entries = entries
            elif time.monotonic() >= snapshot.taken_at + self._knobs.visibility_s:
                snapshot.entries = self._scan(folder)
                snapshot.taken_at = time.monotonic()
        return snapshot

    def _scan(self, folder: str) -> dict[str, Entry]:
        entries = {}
        with os.scandir(self.cloud_path(folder)) as items:
            for item in items:
                entry = self._look(item)
                if entry is not None:
                    entries[item.name] = entry
        return entries

    def _look(self, item: os.DirEntry[str]) -> Entry | None:
        try:
            return Entry.of(item.stat(follow_symlinks=not self._knobs.shortcuts_are_links))
        except OSError:  # a dangling shortcut, or removed meanwhile
            return None

    def find(self, path: str) -> Entry | None:
        """Return the entry of a path inside a drive; `None` if this mount does not know it."""
        folder, name = split(path)
        with self._lock:
            known = folder in self._snapshots
        if known and not self._knobs.visibility_s:
            # Changes are visible at once, so look up the name instead of scanning the folder.
            return self._stat(path)
        try:
            entries = self.snapshot(folder).entries
        except (FileNotFoundError, NotADirectoryError):
            return None
        return entries.get(name) if entries else None

    def listing(self, folder: str) -> list[tuple[str, bool]]:
        """Return the names in a folder, and whether each is a folder; takes the time of a listing."""
        with self._lock:
            known = folder in self._snapshots and self._snapshots[folder].entries is not None
        snapshot = self.snapshot(folder)
        entries = dict(snapshot.entries or {})
        if known:
            self._stats.listings_warm += 1
            time.sleep(self._knobs.warm_listing_s)
        return [(name, entry.is_folder) for name, entry in entries.items()]

    def known(self, folder: str) -> Mapping[str, Entry]:
        """Return what the folder's snapshot has, without loading one and without waiting."""
        with self._lock:
            snapshot = self._snapshots.get(folder)
        return {} if snapshot is None or snapshot.entries is None else snapshot.entries

    def _stat(self, path: str) -> Entry | None:
        try:
            follow = not self._knobs.shortcuts_are_links
            # One system call, on the hot path.
            return Entry.of(os.stat(self.cloud_path(path), follow_symlinks=follow))  # noqa: PTH116
        except OSError:
            return None

    def patch(self, path: str) -> None:
        """Update the snapshot from the cloud at `path`, because this machine made the change."""
        folder, name = split(path)
        entry = self._stat(path)
        with self._lock:
            snapshot = self._snapshots.get(folder)
        # There is no snapshot of the folder, so nothing can be out of date.
        if snapshot is None or snapshot.entries is None:
            return
        with snapshot.lock:
            snapshot.entries.pop(name, None)
            if entry is not None:
                snapshot.entries[name] = entry

    def moved(self, old: str, new: str) -> None:
        """Move the snapshots of a folder, and of those below it, to its new name."""
        with self._lock:
            known = list(self._snapshots)
            for folder in known:
                if folder == old or folder.startswith(f"{old}/"):
                    # Listing a renamed tree of thousands again would take minutes, which the real client does not need.
                    self._snapshots[new + folder[len(old) :]] = self._snapshots.pop(folder)
        self.patch(old)
        self.patch(new)

    def made(self, path: str) -> None:
        """Note that a folder was created here, and is empty."""
        snapshot = Snapshot()
        snapshot.entries = {}
        snapshot.taken_at = time.monotonic()
        with self._lock:
            self._snapshots[path] = snapshot
        self.patch(path)

    def gone(self, path: str) -> None:
        """Forget a folder that was removed here."""
        with self._lock:
            self._snapshots.pop(path, None)
        self.patch(path)


Key = tuple[int, int, int]
_FETCH_DEADLINE_S = 3600.0
# Shorter waits are not worth waking up for; the meters continue, so they are deferred, not dropped.
_SHORTEST_SLEEP_S = 0.0005


def write_all(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data`; a disk that is nearly full takes a part without an error."""
    if os.pwrite(handle, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sleep_until(moment: float) -> None:
    """Sleep until the given time."""
    wait_s = moment - time.monotonic()
    if wait_s > _SHORTEST_SLEEP_S:
        time.sleep(wait_s)


def content_key(stat: os.stat_result) -> Key:
    """Return what identifies one version of a cloud file."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Visit:
    """The waits that one open of a file has paid so far."""

    __slots__ = ("cold_paid", "counted", "warm")

    def __init__(self, warm: Meter) -> None:
        self.cold_paid = False
        self.counted = False
        self.warm = warm


class Content:
    """The cached part of one version of a cloud file.

    `fd`: the local file with its bytes, once any are here.
    `here`: numbers of the blocks that have arrived; `coming`: those on their way. `complete`: nothing is missing.
    It lives as long as somebody uses it, or it is partly here.
    """

    def __init__(self, stat: os.stat_result, *, blocks: int, stream: ColdFile) -> None:
        self.key = content_key(stat)
        self.size = stat.st_size
        self.mtime_ns = stat.st_mtime_ns
        self.blocks = blocks
        self.stream = stream
        self.users = 0
        self.lock = threading.Lock()
        self.fd = self.cloud_fd = -1
        self.here: set[int] = set()
        self.coming: dict[int, threading.Event] = {}
        self.complete = not blocks


class ContentCache:
    """All entries, filled through `Traffic`, which says how long each block takes."""

    def __init__(self, folder: Path, *, knobs: DriveKnobs, traffic: Traffic, stats: DriveStats) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Only the dead client knew which of their blocks had arrived.
        for leftover in folder.glob("*.part"):
            leftover.unlink(missing_ok=True)
        self._folder = folder
        self._block_bytes = knobs.block_bytes
        self._warm_open_latency_s = knobs.warm_open_latency_s
        self._warm_bytes_per_s = knobs.warm_bytes_per_s
        self._traffic = traffic
        self._stats = stats
        self._lock = threading.Lock()
        self._contents: dict[Key, Content] = {}

    def visit(self) -> Visit:
        """Return the account of one open."""
        return Visit(Meter(self._warm_bytes_per_s))

    def open(self, cloud_path: str) -> Content:
        """Open a cloud file for reading through the cache; every `open` is paired with a `release`."""
        stat = os.stat(cloud_path)  # noqa: PTH116 - one system call, on the hot path
        with self._lock:
            content = self._contents.get(content_key(stat))
            if content is None:
                blocks = -(-stat.st_size // self._block_bytes)
                content = Content(stat, blocks=blocks, stream=self._traffic.open_stream())
                # Before the cloud's file is opened, which a complete entry does not need.
                self._find_whole(content)
            if not content.complete and content.cloud_fd < 0:
                content.cloud_fd = os.open(cloud_path, os.O_RDONLY)
            if content.here and content.fd < 0:
                content.fd = os.open(self._file(content.key, ".part"), os.O_RDWR)
            self._contents[content.key] = content
            content.users += 1
        return content

    def release(self, content: Content) -> None:
        """Release what `open` returned."""
        with self._lock:
            content.users -= 1
            # Other opens of the same version read through the same handles.
            if content.users:
                return
            for handle in (content.cloud_fd, content.fd):
                if handle >= 0:
                    os.close(handle)
            content.fd = content.cloud_fd = -1
            # Partial entries are kept, because their blocks are valid as long as this client lives.
            if content.complete or not content.here:
                self._contents.pop(content.key, None)

    def read(self, content: Content, visit: Visit, length: int, offset: int) -> bytes:
        """Return bytes of a file, at most to its end, after the time that they take to arrive."""
        length = min(length, content.size - offset)
        data = None if content.complete else self._fill(content, visit, length, offset)
        # Most reads are of one whole block, which is already in memory.
        if data is None or len(data) != length:
            data = os.pread(content.fd, length, offset)
        if not visit.cold_paid:
            self.serve_warm(visit, len(data))
        elif not visit.counted:
            with self._lock:
                self._stats.cold_opens += not visit.counted
                visit.counted = True
        return data

    def serve_warm(self, visit: Visit, nbytes: int) -> None:
        """Wait for the time of reading bytes that are cached."""
        with self._lock:
            first = not visit.counted
            visit.counted = True
            self._stats.warm_opens += first
            self._stats.bytes_warm += nbytes
            # Each open has its own pipe, because local reads do not wait for each other.
            ready = visit.warm.reserve(time.monotonic() + self._warm_open_latency_s * first, nbytes)
        sleep_until(ready)

    def _file(self, key: Key, suffix: str = "") -> Path:
        return self._folder / ("-".join(map(str, key)) + suffix)

    def _find_whole(self, content: Content) -> None:
        """Use the entry on the disk, if it is complete."""
        if content.blocks:
            with contextlib.suppress(FileNotFoundError):
                content.fd = os.open(self._file(content.key), os.O_RDONLY)
                content.complete = True

    def _fill(self, content: Content, visit: Visit, length: int, offset: int) -> bytes | None:
        """Wait until the bytes are here; return them if they are a whole block that is in memory anyway."""
        data = None
        for block in range(offset // self._block_bytes, -(-(offset + length) // self._block_bytes)):
            if block not in content.here:
                data = self._bring(content, visit, block)
        return data if offset % self._block_bytes == 0 and length <= self._block_bytes else None

    def _bring(self, content: Content, visit: Visit, block: int) -> bytes | None:
        """Fetch a block, or wait for the thread that is fetching it."""
        with content.lock:
            if block in content.here:
                return None
            arrival = content.coming.get(block)
            # One thread fetches; others that want the block wait for it, as with the real client.
            mine = arrival is None
            if arrival is None:
                arrival = content.coming[block] = threading.Event()
        if not mine:
            visit.cold_paid = True
            arrival.wait(_FETCH_DEADLINE_S)
            return None
        try:
            return self._fetch(content, visit, block)
        finally:
            with content.lock:
                content.coming.pop(block, None)
            arrival.set()

    def _fetch(self, content: Content, visit: Visit, block: int) -> bytes:
        offset = block * self._block_bytes
        nbytes = min(self._block_bytes, content.size - offset)
        with self._lock:
            first = not visit.cold_paid
            visit.cold_paid = True
            arrived = self._traffic.fetch(
                content.stream, time.monotonic(), block=block, nbytes=nbytes, first_of_open=first
            )
            self._stats.bytes_cold += nbytes
        # Without any lock, so that other files continue meanwhile.
        sleep_until(arrived)
        data = os.pread(content.cloud_fd, nbytes, offset)
        # Another client replaced it; the real client also answers with an I/O error.
        if len(data) != nbytes:
            raise OSError(errno.EIO, "the file became shorter in the cloud")
        self._keep(content, block, data)
        return data

    def _keep(self, content: Content, block: int, data: bytes) -> None:
        with content.lock:
            if content.fd < 0:
                content.fd = os.open(self._file(content.key, ".part"), os.O_RDWR | os.O_CREAT, 0o600)
        write_all(content.fd, data, block * self._block_bytes)
        with content.lock:
            content.here.add(block)
            if len(content.here) == content.blocks:
                # Only a complete entry has its final name, so that a restarted client can trust it.
                self._file(content.key, ".part").rename(self._file(content.key))
                content.complete = True

    def adopt(self, file: Path, stat: os.stat_result) -> None:
        """Turn a file that was written here and has just been uploaded into the entry of its cloud file."""
        # Without a copy, because a file that was just written is read warm.
        file.rename(self._file(content_key(stat)))

    def rekey(self, before: os.stat_result, after: os.stat_result) -> None:
        """Keep a whole entry whose cloud file got another modification time."""
        with contextlib.suppress(FileNotFoundError):
            self._file(content_key(before)).rename(self._file(content_key(after)))
