"""The content cache: what was read through the mount, kept on the local disk block by block.

A file's cache entry is named by the cloud file's inode, size and modification time, so a rename keeps it and a new
version gets a new one. It is `NAME.part` while blocks are missing and `NAME` once whole; a restarted client keeps
whole entries and forgets partial ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from typing import TYPE_CHECKING

from colabstage.fileops import pread_exactly, pwrite_exactly
from colabstage.simulate.model import Meter

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.simulate.knobs import DriveKnobs, DriveStats
    from colabstage.simulate.model import Stream, Traffic

_FETCH_DEADLINE_S = 3600.0


def sleep_until(moment: float) -> None:
    """Sleep until that monotonic time; what is too short to be worth it is owed, since meters count on."""
    wait_s = moment - time.monotonic()
    if wait_s > 0.0005:
        time.sleep(wait_s)


def content_key(stat: os.stat_result) -> str:
    """The name of the cache entry of a cloud file."""
    return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"


class Visit:
    """What one open of a file has paid for so far."""

    __slots__ = ("cold_paid", "counted", "warm")

    def __init__(self, warm: Meter) -> None:
        self.cold_paid = False
        self.counted = False
        self.warm = warm


class Content:
    """The bytes of one cloud file, as far as they are here. Lives as long as a handle uses it, or a block is missing."""

    def __init__(self, stat: os.stat_result, *, folder: Path, cloud_fd: int, stream: Stream) -> None:
        self.stream = stream
        self.key = content_key(stat)
        self.size = stat.st_size
        self.mtime_ns = stat.st_mtime_ns
        self.users = 0
        self.lock = threading.Lock()
        self.here: set[int] = set()
        self.coming: dict[int, threading.Event] = {}
        self.cloud_fd = cloud_fd
        self._whole = folder / self.key
        self._part = folder / f"{self.key}.part"
        self.complete = self._whole.exists()
        self.fd = os.open(self._whole, os.O_RDONLY) if self.complete else -1

    def open_part(self) -> None:
        """Make, or open again, the file that collects the blocks. Called with a lock held."""
        if self.fd < 0:
            self.fd = os.open(self._part, os.O_RDWR | os.O_CREAT, 0o600)

    def keep(self, block: int, blocks: int) -> None:
        """Note that a block has arrived; the last one makes the entry whole. Called with the lock held."""
        self.here.add(block)
        if len(self.here) == blocks:
            self._part.rename(self._whole)
            self.complete = True

    @property
    def whole_file(self) -> Path:
        """Where the entry lies once it is complete."""
        return self._whole

    def close(self) -> None:
        """Let go of both files."""
        for handle in (self.fd, self.cloud_fd):
            if handle >= 0:
                os.close(handle)
        self.fd = self.cloud_fd = -1


class ContentCache:
    """All cache entries, and the way into them: through `Traffic`, which says how long each block takes."""

    def __init__(self, folder: Path, *, knobs: DriveKnobs, traffic: Traffic, stats: DriveStats) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.part"):
            leftover.unlink(missing_ok=True)
        self._folder = folder
        self._block_bytes = knobs.block_bytes
        self._warm_open_latency_s = knobs.warm_open_latency_s
        self._warm_bytes_per_s = knobs.warm_bytes_per_s
        self._traffic = traffic
        self._stats = stats
        self._lock = threading.Lock()
        self._contents: dict[str, Content] = {}

    def visit(self) -> Visit:
        """The account of one open."""
        return Visit(Meter(self._warm_bytes_per_s))

    def open(self, cloud_path: str) -> Content:
        """Open a cloud file for reading through the cache; every `open` is paired with a `release`."""
        cloud_fd = os.open(cloud_path, os.O_RDONLY)
        stat = os.fstat(cloud_fd)
        key = content_key(stat)
        with self._lock:
            content = self._contents.get(key)
            if content is None:
                stream = self._traffic.open_stream()
                content = Content(stat, folder=self._folder, cloud_fd=cloud_fd, stream=stream)
                self._contents[key] = content
            elif content.cloud_fd < 0:
                content.cloud_fd = cloud_fd
                content.open_part()
            else:
                os.close(cloud_fd)
            content.users += 1
        return content

    def release(self, content: Content) -> None:
        """Give back what `open` lent."""
        with self._lock:
            content.users -= 1
            if content.users:
                return
            content.close()
            if content.complete or not content.here:
                self._contents.pop(content.key, None)

    def read(self, content: Content, visit: Visit, length: int, offset: int) -> bytes:
        """Bytes of a file, once they are here and had their time to get here."""
        cold = self._fill(content, visit, length, offset)
        data = os.pread(content.fd, length, offset)
        if not (cold or visit.cold_paid):
            self.serve_warm(visit, len(data))
        elif not visit.counted:
            with self._lock:
                self._stats.cold_opens += not visit.counted
                visit.counted = True
        return data

    def serve_warm(self, visit: Visit, nbytes: int) -> None:
        """Take the time that bytes take which are on this machine already."""
        with self._lock:
            first = not visit.counted
            visit.counted = True
            self._stats.warm_opens += first
            self._stats.bytes_warm += nbytes
            ready = visit.warm.reserve(time.monotonic() + self._warm_open_latency_s * first, nbytes)
        sleep_until(ready)

    def _fill(self, content: Content, visit: Visit, length: int, offset: int) -> bool:
        """Wait until the bytes are here; return whether any had to come from the cloud."""
        if content.complete:
            return False
        end = min(offset + length, content.size)
        cold = False
        for block in range(offset // self._block_bytes, -(-end // self._block_bytes)):
            if block not in content.here:
                self._bring(content, visit, block)
                cold = True
        return cold

    def _bring(self, content: Content, visit: Visit, block: int) -> None:
        with content.lock:
            if block in content.here:
                return
            arrival = content.coming.get(block)
            mine = arrival is None
            if arrival is None:
                arrival = content.coming[block] = threading.Event()
        if not mine:
            arrival.wait(_FETCH_DEADLINE_S)
            return
        try:
            self._fetch(content, visit, block)
        finally:
            with content.lock:
                content.coming.pop(block, None)
            arrival.set()

    def _fetch(self, content: Content, visit: Visit, block: int) -> None:
        offset = block * self._block_bytes
        nbytes = min(self._block_bytes, content.size - offset)
        with self._lock:
            first = not visit.cold_paid
            visit.cold_paid = True
            arrived = self._traffic.fetch(
                content.stream, time.monotonic(), block=block, nbytes=nbytes, first_of_open=first
            )
            self._stats.bytes_cold += nbytes
        sleep_until(arrived)
        with content.lock:
            content.open_part()
        data = pread_exactly(content.cloud_fd, nbytes, offset)
        if len(data) != nbytes:
            raise OSError(errno.EIO, "the file became shorter in the cloud", content.key)
        pwrite_exactly(content.fd, data, offset)
        with content.lock:
            content.keep(block, -(-content.size // self._block_bytes))

    def adopt(self, file: Path, stat: os.stat_result) -> None:
        """Make a file that was written here, and has just been uploaded, the cache entry of its cloud file."""
        file.rename(self._folder / content_key(stat))

    def rekey(self, before: os.stat_result, after: os.stat_result) -> None:
        """Keep a whole entry whose cloud file got another modification time."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / content_key(before)).rename(self._folder / content_key(after))
