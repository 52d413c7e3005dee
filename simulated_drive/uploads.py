"""Files that were written here and are not in the cloud yet: their cached copies, the queue that uploads them, and the
account's limits, which include pending files.

Each pending file is `N.data` with its path inside the Drive in `N.path`, so a restarted client finds what its
predecessor left, however that one ended.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_drive.knobs import DriveKnobs, DriveStats

_BLOCK_BYTES = 4096
# Walking the cloud's folder for each written block would be slower than the uploads.
_FRESH_S = 0.5
# Asking how full the account is must not wait for a walk of many files: the real client knows it from the service.
_FRESH_FOR_FILE_S = 0.0005
log = logging.getLogger(__name__)
# How soon the end of a stall is noticed.
_STALL_LOOK_S = 0.02
_RETRY_S = 1.0
_PARALLEL_UPLOADS = 10


class Account:
    """The account's use of storage. The cloud's folder is measured now and then, first at creation; writes in between
    are added."""

    def __init__(self, cloud: Path, *, knobs: DriveKnobs, pending_bytes: Callable[[], int]) -> None:
        self._cloud = cloud
        # It counts against the account until it is emptied, as in Drive.
        self._trash = cloud / "Trash"
        self._quota_bytes = knobs.quota_bytes
        self._pending_bytes = pending_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._measure()

    def used_bytes(self, fresh_s: float = _FRESH_S) -> int:
        """Return the bytes that count against the quota, measured no longer ago than the given time."""
        with self._lock:
            if time.monotonic() > self._measured_at + fresh_s:
                self._measure()
            return self._used

    def _measure(self) -> None:
        self._files, nbytes = _files_in(self._cloud)
        self._used = nbytes + self._pending_bytes()
        self._measured_at = time.monotonic()

    def take(self, nbytes: int) -> bool:
        """Add `nbytes`; return whether they fit."""
        with self._lock:
            # By the last measurement; only if that refuses is it measured again.
            fits = self._used + nbytes <= self._quota_bytes
            if fits:
                self._used += nbytes
                return True
        fits = self.used_bytes() + nbytes <= self._quota_bytes
        if fits:
            with self._lock:
                self._used += nbytes
        return fits

    def discard(self, file: Path) -> None:
        """Move a file of the cloud to the trash, where it still counts."""
        self._trash.mkdir(exist_ok=True)
        file.rename(self._trash / f"{time.time_ns()}-{next(self._numbers)}-{file.name[-100:]}")

    def statfs(self) -> dict[str, int]:
        """Return the answer to `statvfs`: the account, not the local disk."""
        fresh_s = max(_FRESH_S, self._files * _FRESH_FOR_FILE_S)
        free_bytes = max(0, self._quota_bytes - self.used_bytes(fresh_s))
        return {
            "f_bsize": _BLOCK_BYTES,
            "f_frsize": _BLOCK_BYTES,
            "f_blocks": self._quota_bytes // _BLOCK_BYTES,
            "f_bfree": free_bytes // _BLOCK_BYTES,
            "f_bavail": free_bytes // _BLOCK_BYTES,
            "f_namemax": 255,
        }


def _files_in(folder: Path) -> tuple[int, int]:
    """Return how many files a folder holds at any depth, and their bytes; links count as links."""
    count, nbytes, waiting = 0, 0, [os.fspath(folder)]
    while waiting:
        # Folders and files may disappear meanwhile.
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as scan:
            for entry in scan:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        count += 1
                        nbytes += entry.stat(follow_symlinks=False).st_size
    return count, nbytes


class Pending:
    """One file that is newer here than in the cloud. Its fields change under the queue's lock.

    `generation` counts the times it was opened for writing: an upload of an older one is worthless.
    `dirty`: it differs from what is in the cloud; a copy made for writing does only after the first write.
    `removed`: no longer in the queue, because it was deleted, replaced or has arrived.
    `dropped`: its upload got lost on the way, by a fault.
    """

    def __init__(self, number: int, path: str, *, folder: Path) -> None:
        self.number = number
        self.path = path
        self.data = folder / f"{number}.data"
        self.label = folder / f"{number}.path"
        self.writers = 0
        self.generation = 0
        self.dirty = True
        self.removed = False
        self.dropped = False

    def write_label(self) -> None:
        """Write the path to disk atomically, because the client may be killed at any moment."""
        temp = self.label.with_suffix(".copy")
        temp.write_text(self.path, encoding="utf-8", errors="surrogateescape")
        temp.replace(self.label)

    def forget(self) -> None:
        """Remove both files from the disk."""
        # The label first: the next client drops data without one.
        self.label.unlink(missing_ok=True)
        self.data.unlink(missing_ok=True)


class UploadQueue:
    """All pending files by path, and the threads that upload them once nobody writes to them any more."""

    def __init__(
        self,
        folder: Path,
        *,
        knobs: DriveKnobs,
        stats: DriveStats,
        finish: Callable[[Pending, Path], None],
        is_dropped: Callable[[str], bool],
        is_stalled: Callable[[], bool],
    ) -> None:
        """`finish(pending, copy)` puts an uploaded copy into its place in the cloud, with the lock held."""
        folder.mkdir(parents=True, exist_ok=True)
        # Entered again by what `finish` calls.
        self.lock = threading.RLock()
        self.by_path: dict[str, Pending] = {}
        self._folder = folder
        self._knobs = knobs
        self._stats = stats
        self._finish = finish
        self._is_dropped = is_dropped
        self._is_stalled = is_stalled
        self._next = 0
        self._pool = ThreadPoolExecutor(_PARALLEL_UPLOADS, thread_name_prefix="upload")

    def resume(self) -> None:
        """Take up what an earlier client left in the folder."""
        # Before anything is queued, because uploads make such copies themselves.
        for copy in self._folder.glob("*.copy"):
            # Half of an upload or of a label, whose content is in the pending file.
            copy.unlink()
        numbers = sorted(int(file.stem) for file in self._folder.glob("*.data"))
        self._next = numbers[-1] + 1 if numbers else 0
        for number in numbers:
            pending = Pending(number, "", folder=self._folder)
            # Its client was killed before the file had a label.
            if not pending.label.exists():
                pending.forget()
                continue
            pending.path = pending.label.read_text(encoding="utf-8", errors="surrogateescape")
            self.by_path[pending.path] = pending
            self.enqueue(pending)

    def new(self, path: str, *, fill: Callable[[Path], None] = Path.touch) -> Pending:
        """Start a pending file at `path`, whose first content `fill` writes; it replaces one that was there."""
        with self.lock:
            self.remove(path)
            pending = Pending(self._next, path, folder=self._folder)
            self._next += 1
        fill(pending.data)
        # Only now, so that a client killed before this leaves nothing to upload.
        pending.write_label()
        with self.lock:
            self.by_path[path] = pending
        return pending

    def remove(self, path: str) -> bool:
        """Drop the pending file at `path`; handles that are open on it keep working. Return whether there was one."""
        with self.lock:
            pending = self.by_path.pop(path, None)
            if pending is None:
                return False
            pending.removed = True
            pending.forget()
            return True

    def move(self, old: str, new: str) -> bool:
        """Rename a pending file, or all those below a folder; return whether `old` itself was a pending file."""
        with self.lock:
            own = self.by_path.pop(old, None)
            if own is not None:
                self.remove(new)
                # Before the upload, a rename only concerns this machine.
                self._relabel(own, new)
                return True
            for path in [path for path in self.by_path if path.startswith(f"{old}/")]:
                self._relabel(self.by_path.pop(path), new + path[len(old) :])
            return False

    def _relabel(self, pending: Pending, path: str) -> None:
        pending.path = path
        self.by_path[path] = pending
        if not pending.dropped:
            pending.write_label()

    def set_time(self, path: str, mtime_ns: int) -> bool:
        """Set the modification time of the pending file at `path`; return whether there is one."""
        with self.lock:
            pending = self.by_path.get(path)
            if pending is None:
                return False
            os.utime(pending.data, ns=(mtime_ns, mtime_ns))
            return True

    def inside(self, folder: str) -> list[str]:
        """Return the names of the pending files directly in `folder`."""
        prefix = f"{folder}/"
        with self.lock:
            paths = [path for path in self.by_path if path.startswith(prefix)]
        return [path[len(prefix) :] for path in paths if "/" not in path[len(prefix) :]]

    def enqueue(self, pending: Pending) -> None:
        """Queue its upload, unless somebody still writes to it or it is gone."""
        with self.lock:
            # A file that is being written has no complete version to upload.
            if not pending.writers and not pending.removed:
                self._pool.submit(self._upload, pending, pending.generation)

    def waiting(self) -> tuple[int, int]:
        """Return how many files, and bytes, have not reached the cloud."""
        with self.lock:
            waiting = [pending for pending in self.by_path.values() if not pending.dropped]
            return len(waiting), sum(pending.data.stat().st_size for pending in waiting)

    def reopen(self, pending: Pending) -> bool:
        """Count one more writer, which makes any running upload worthless; `False` if the file has just been
        uploaded."""
        with self.lock:
            if pending.removed:
                return False
            pending.writers += 1
            pending.generation += 1
            if pending.dropped:
                pending.dropped = False
                pending.write_label()
            return True

    def done_writing(self, pending: Pending) -> None:
        """Count one writer less; the last one starts the upload, or drops an unchanged copy."""
        with self.lock:
            pending.writers -= 1
            if pending.writers or pending.removed:
                return
            if pending.dirty:
                self.enqueue(pending)
            else:
                self.remove(pending.path)

    def _upload(self, pending: Pending, generation: int) -> None:
        copy = self._folder / f"{pending.number}-{generation}.copy"
        try:
            if self._wait_out(pending, generation):
                self._deliver(pending, generation, copy)
        except OSError as error:
            if self._is_current(pending, generation):
                log.warning("Upload of '%s' failed and is tried again: %s", pending.path, error)
                time.sleep(_RETRY_S)
                self.enqueue(pending)
        finally:
            copy.unlink(missing_ok=True)

    def _deliver(self, pending: Pending, generation: int, copy: Path) -> None:
        # The file renamed into the cloud must not share its bytes with the cache, so it is a real copy.
        shutil.copyfile(pending.data, copy)
        with self.lock:
            # Asked again with the lock held: it may have been opened, replaced or removed while the copy was made.
            if self._is_current(pending, generation):
                # Here too, because a time that somebody sets meanwhile would be lost.
                stat = pending.data.stat()
                os.utime(copy, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
                self._finish(pending, copy)
                self._stats.uploads_done += 1
                self.by_path.pop(pending.path)
                pending.removed = True

    def _is_current(self, pending: Pending, generation: int) -> bool:
        return not pending.removed and pending.generation == generation

    def _wait_out(self, pending: Pending, generation: int) -> bool:
        """Wait for the time of the upload; return whether there is still something to upload."""
        size = pending.data.stat().st_size if self._is_current(pending, generation) else 0
        left_s = size / self._knobs.upload_bytes_per_s
        while self._is_current(pending, generation) and ((stalled := self._is_stalled()) or left_s > 0):
            began = time.monotonic()
            # Short, because a file that is opened again must not be held up by its own upload.
            time.sleep(_STALL_LOOK_S if stalled else min(left_s, 0.25))
            # A stalled upload continues where it was.
            left_s -= 0 if stalled else time.monotonic() - began
        with self.lock:
            if not self._is_current(pending, generation):
                return False
            pending.dropped = self._is_dropped(pending.path)
            if pending.dropped:
                # Its label is removed, so that the next client does not find it; here it stays readable.
                pending.label.unlink(missing_ok=True)
                self._stats.uploads_done += 1
        return not pending.dropped
