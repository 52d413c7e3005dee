"""A file on the local disk or a mount as a `RemoteFile`: positioned reads, each part through a handle of its own."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.io.retry import RetryPolicy, is_transient, read_with_retry, translate_read_error
from colabstage.machine.mounts import is_slow_mount
from colabstage.sources.copy import close_quietly
from colabstage.sources.remote import RemoteFacts, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# One read: FUSE hands out at most so much at once.
_PIECE_BYTES = 1024 * 1024
# Whether a mount gives one file faster by several readers depends on what is behind it: the simulated Drive, whose
# figures are those of one reader, gives it more slowly. So it is tried.
_MOUNT_CONNECTIONS = 4
# What was found once and is not there a moment later is a symptom of a dying mount; what never was, is not there.
_LOOKING = RetryPolicy(missing_is_transient=False)
_READING = RetryPolicy()


class MountedFile:
    """A `RemoteFile` that is a regular file here. Its `version` is the modification time.

    A part keeps its handle to itself while it is read, because the kernel reads ahead for each handle; the next part
    gets it afterwards, because opening costs a round trip on a mount.
    """

    def __init__(self, path: Path) -> None:
        """Look at the file.

        Raises:
            SourceNotFoundError, SourceReadError, DriveDisconnectedError: it cannot be opened.
        """
        self._path = path
        self._label = str(path)
        self._lock = threading.Lock()
        self._free: deque[int] = deque()
        self._closed = False
        handle, stat = read_with_retry(lambda: _open(path), self._label, policy=_LOOKING)
        self._free.append(handle)
        self.facts = RemoteFacts(
            label=self._label,
            name=path.name,
            size=stat.st_size,
            version=str(stat.st_mtime_ns),
            mtime_ns=stat.st_mtime_ns,
            connections=_MOUNT_CONNECTIONS if is_slow_mount(path) else 1,
            eager=False,
        )

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. A read that hangs in a dead mount cannot be interrupted: wait elsewhere."""
        assert self.facts.size is not None
        end = self.facts.size if length is None else offset + length
        try:
            handle = self._borrow()
            try:
                while offset < end:
                    piece = os.pread(handle, min(_PIECE_BYTES, end - offset), offset)
                    if not piece:
                        raise self._ended_early(handle, offset)
                    offset += len(piece)
                    yield piece
                self._check_unchanged(os.fstat(handle))
            except OSError:
                # Another one may not have what is wrong with this one.
                close_quietly(handle)
                handle = -1
                raise
            finally:
                self._give_back(handle)
        except SourceReadError:
            raise
        except OSError as error:
            raise self._judge(error) from error

    def close(self) -> None:
        """Release the handles. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            handles = list(self._free)
            self._free.clear()
        for handle in handles:
            close_quietly(handle)

    def _borrow(self) -> int:
        """Return a handle on the file as it was when it was looked at."""
        with self._lock:
            if self._closed:
                msg = f"'{self._label}' was closed."
                raise SourceReadError(msg)
            handle = self._free.popleft() if self._free else -1
        if handle >= 0:
            return handle
        handle, stat = _open(self._path)
        try:
            self._check_unchanged(stat)
        except BaseException:
            close_quietly(handle)
            raise
        return handle

    def _give_back(self, handle: int) -> None:
        with self._lock:
            if handle >= 0 and not self._closed:
                self._free.append(handle)
                return
        if handle >= 0:
            close_quietly(handle)

    def _ended_early(self, handle: int, offset: int) -> TransientError:
        stat = os.fstat(handle)
        self._check_unchanged(stat)
        msg = f"'{self._label}' ends at byte {offset:,} although it is listed with {stat.st_size:,}."
        return TransientError(msg)

    def _check_unchanged(self, stat: os.stat_result) -> None:
        facts = self.facts
        if (stat.st_size, str(stat.st_mtime_ns)) == (facts.size, facts.version):
            return
        msg = (
            f"'{self._label}' became another file while it was read: it had {facts.size:,} bytes and has "
            f"{stat.st_size:,} now, or was written again. Wait until its upload or copy is complete, then try again."
        )
        raise SourceChangedError(msg)

    def _judge(self, error: OSError) -> OSError:
        if is_transient(error, _READING):
            what = "was listed but cannot be found" if error.errno == errno.ENOENT else f"answers: {error.strerror}"
            return TransientError(f"'{self._label}' {what}.")
        return translate_read_error(error, self._label, 1)


def _open(path: Path) -> tuple[int, os.stat_result]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return handle, os.fstat(handle)
    except BaseException:
        close_quietly(handle)
        raise
