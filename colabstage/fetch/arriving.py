"""A file that is being copied here while it is already read.

The copy runs through the source once, in order, as mounts and networks do best. Readers get what has arrived from the
local disk and wait for what is about to; what lies far ahead, such as the table of contents at the end of a zip, is
read from the source directly. Unpacking a zip so takes the time of its copy, not the sum of copy and unpacking.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Self

from colabstage.errors import SourceReadError
from colabstage.fetch.copy import translate_write_error
from colabstage.fileops import pread_exactly, pwrite_exactly
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from colabstage.progress import ProgressStep

# One read of the copy. Long enough for full speed, short enough that readers follow closely.
_CHUNK_BYTES = 1024 * 1024
# A read so far ahead of the copy is worth a request of its own.
_FAR_BYTES = 8 * 1024 * 1024
_LOOK_S = 0.25


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
        self._reader = read_with_retry(lambda: os.open(source, os.O_RDONLY), self.label, policy=policy)
        self.size = os.fstat(self._reader).st_size
        self._target = target
        self._writer = -1
        self._moved = threading.Condition()
        self._arrived = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to copy. Calling it twice is fine.

        Raises:
            NotEnoughSpaceError, TargetNotWritableError: the target cannot be made.
        """
        if self._thread is not None:
            return
        try:
            self._writer = os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise translate_write_error(error, self._target) from error
        self._thread = threading.Thread(target=self._copy, name="colabstage-copy", daemon=True)
        self._thread.start()

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`, waiting until they have arrived; shorter only at the end of the file.

        Raises:
            SourceReadError: the copy failed or stopped moving.
        """
        end = min(offset + length, self.size)
        if offset >= self.size:
            return b""
        if self._thread is not None and self._wait_for(end, offset):
            return pread_exactly(self._writer, end - offset, offset)
        return read_with_retry(
            lambda: pread_exactly(self._reader, end - offset, offset), self.label, policy=self._policy
        )

    def wait(self) -> None:
        """Start if need be, and return once the whole file is here.

        Raises:
            SourceReadError: as `pread`.
        """
        self.start()
        self._wait_for(self.size, self.size)

    def close(self) -> None:
        """Stop copying and let go of both files. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        with self._moved:
            self._stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=30.0)
            if self._thread.is_alive():
                # It hangs in a dead mount and still uses both files; the process's end closes them.
                return
            os.close(self._writer)
        os.close(self._reader)

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
                    raise self._error
                if self._stopping:
                    msg = f"The copy of '{self.label}' was stopped."
                    raise SourceReadError(msg)
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

    def _copy(self) -> None:
        try:
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
