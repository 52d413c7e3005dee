"""A file that is being copied here while it is already read.

The copy runs through the source once, in order, as mounts and networks do best. Readers get what has arrived from the
local disk and wait for what is about to; what lies far ahead, such as the table of contents at the end of a zip, is
read from the source directly. Unpacking a zip so takes the time of its copy, not the sum of copy and unpacking.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Self

from colabstage.errors import SourceReadError
from colabstage.fetch.copy import close_quietly, translate_write_error
from colabstage.fileops import pread_exactly, pwrite_exactly
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from colabstage.progress import ProgressStep

# One read of the copy. Long enough for full speed, short enough that readers follow closely.
_CHUNK_BYTES = 1024 * 1024
# A read so far ahead of the copy is worth a request of its own.
_FAR_BYTES = 8 * 1024 * 1024
_LOOK_S = 0.25
# How long closing waits for the copy to notice; a read that hangs in a dead mount does not.
_END_S = 5.0


class ArrivingFile:
    """A `ByteSource` over a file on its way from `source` to `target`; a context manager that ends the copy.

    Until `start` every read goes to the source, so that a plan can be made, and refused, before anything is written.
    `target` must be a temporary name; when the block ends it holds as much as had arrived.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        step: ProgressStep,
        policy: RetryPolicy,
        stall_timeout_s: float = 180.0,
    ) -> None:
        """Open the source.

        Raises:
            SourceNotFoundError, SourceReadError, DriveDisconnectedError: it cannot be opened.
        """
        self.label = str(source)
        self._step = step
        self._policy = policy
        self._stall_timeout_s = stall_timeout_s
        self._reader, self.size = read_with_retry(lambda: _open_with_size(source), self.label, policy=policy)
        self._target = target
        self._writer = -1
        self._moved = threading.Condition()
        self._arrived = 0
        self._error: BaseException | None = None
        self._stopping = False
        # Calls that use the two files now: reads, and the copy.
        self._users = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to copy. Calling it twice is fine.

        Raises:
            NotEnoughSpaceError, TargetNotWritableError: the target cannot be made.
            SourceReadError: it was closed before.
        """
        with self._moved:
            if self._thread is not None:
                return
            if self._stopping:
                raise self._stopped()
            try:
                self._writer = os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise translate_write_error(error, self._target) from error
            thread = threading.Thread(target=self._copy, name="colabstage-copy", daemon=True)
            thread.start()
            self._thread = thread

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`, waiting until they have arrived; shorter only at the end of the file.

        Raises:
            SourceReadError: the copy failed or stopped moving, or was closed meanwhile.
            NotEnoughSpaceError, TargetNotWritableError: there is no room for the copy.
        """
        end = min(offset + length, self.size)
        if offset >= self.size:
            return b""
        with self._using_files():
            if self._thread is not None and self._wait_for(end, offset):
                return pread_exactly(self._writer, end - offset, offset)
            return read_with_retry(
                lambda: pread_exactly(self._reader, end - offset, offset), self.label, policy=self._policy
            )

    def wait(self) -> None:
        """Start if need be, and return once the whole file is here.

        Raises:
            As `start` and `pread`.
        """
        self.start()
        self._wait_for(self.size, self.size)

    def close(self) -> None:
        """Stop copying and let go of both files. Calling it twice is fine."""
        with self._moved:
            self._stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=_END_S)
        self._close_unused()

    @contextlib.contextmanager
    def _using_files(self) -> Iterator[None]:
        """Keep both files open in here, whoever calls `close` meanwhile.

        What hangs in a dead mount would otherwise come back to handles that have become other files.
        """
        with self._moved:
            if self._stopping:
                raise self._stopped()
            self._users += 1
        try:
            yield
        finally:
            with self._moved:
                self._users -= 1
            self._close_unused()

    def _close_unused(self) -> None:
        with self._moved:
            if self._users or not self._stopping:
                return
            handles = (self._reader, self._writer)
            self._reader = self._writer = -1
        for handle in handles:
            if handle >= 0:
                close_quietly(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for(self, end: int, offset: int) -> bool:
        """Wait until everything up to `end` is here; `False` when `offset` is too far ahead to wait for."""
        with self._moved:
            seen, since = self._arrived, time.monotonic()
            while self._arrived < end:
                if self._error is not None:
                    # A fresh one for each reader: one that several threads raise collects all their tracebacks.
                    raise type(self._error)(*self._error.args) from self._error
                if self._stopping:
                    raise self._stopped()
                if offset < self.size and offset - self._arrived > _FAR_BYTES:
                    return False
                self._moved.wait(_LOOK_S)
                if self._arrived != seen:
                    seen, since = self._arrived, time.monotonic()
                elif time.monotonic() - since > self._stall_timeout_s:
                    msg = (
                        f"The copy of '{self.label}' has not moved for {self._stall_timeout_s:.0f} seconds, "
                        f"{self._arrived:,} of {self.size:,} bytes are here. If it is on Google Drive, mount it again "
                        "with force_remount=True and run this cell once more."
                    )
                    raise SourceReadError(msg)
            return True

    def _stopped(self) -> SourceReadError:
        return SourceReadError(f"The copy of '{self.label}' was stopped before all of it was here.")

    def _copy(self) -> None:
        try:
            with self._using_files():
                while self._arrived < self.size and not self._stopping:
                    self._copy_chunk(self._arrived)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the bytes
            with self._moved:
                self._error = error
                self._moved.notify_all()

    def _copy_chunk(self, offset: int) -> None:
        length = min(_CHUNK_BYTES, self.size - offset)
        data = read_with_retry(lambda: pread_exactly(self._reader, length, offset), self.label, policy=self._policy)
        if len(data) != length:
            msg = f"'{self.label}' ends at byte {offset + len(data):,} although it is listed with {self.size:,}."
            raise SourceReadError(msg)
        try:
            pwrite_exactly(self._writer, data, offset)
        except OSError as error:
            raise translate_write_error(error, self._target) from error
        self._step.advance(length)
        with self._moved:
            self._arrived = offset + length
            self._moved.notify_all()


def _open_with_size(source: Path) -> tuple[int, int]:
    handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return handle, os.fstat(handle).st_size
    except BaseException:
        close_quietly(handle)
        raise
