"""A process that writes batches of an archive's members: what it does is told on its input, and answered on its output.

It holds nothing but two handles that it was born with, so it can be killed at any moment, and it ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import marshal
import os
import pickle
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

from colabstage.io.files import pread_exactly
from colabstage.sources.extract.batches import Place, job_chunks, read_block, write_batch, write_large

if TYPE_CHECKING:
    from typing import BinaryIO

LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1


class _Handle:
    """The archive, as a `ByteSource` over a handle of the parent's."""

    def __init__(self, handle: int, label: str) -> None:
        self._handle = handle
        self.label = label
        self.size = os.fstat(handle).st_size

    def pread(self, length: int, offset: int) -> bytes:
        return pread_exactly(self._handle, length, offset)

    def close(self) -> None:
        """Leave it: the handle ends with the process."""


def receive(stream: BinaryIO) -> Any:
    """Return the next message; `None` when there are no more."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    data = stream.read(LENGTH.unpack(head)[0])
    return marshal.loads(data)


def packed(message: Any) -> bytes:
    """Return a message as it travels."""
    data = marshal.dumps(message)
    return LENGTH.pack(len(data)) + data


def main(archive: int, label: str, place: int, path: str, parent: int) -> None:
    """Work until the input ends. Messages in: (start, end, large, jobs); out: ("bytes", n), ("done",), ("error", e)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here makes cycles, and looking for them among ten thousand tuples takes its time.
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    source, target = _Handle(archive, label), Place(place, path)
    inbox, outbox = sys.stdin.buffer, sys.stdout.buffer

    def answer(*message: object) -> None:
        outbox.write(packed(message))
        outbox.flush()

    while (message := receive(inbox)) is not None:
        start, end, large, jobs = message
        try:
            if large:
                write_large(jobs[0], target, job_chunks(source, jobs[0]), advance=lambda done: answer("bytes", done))
            else:
                write_batch(source, start, read_block(source, start, end), jobs, target)
                answer("bytes", sum(job[4] for job in jobs))
        except Exception as error:  # noqa: BLE001 - raised in the parent
            answer("error", pickle.dumps(error))
            return
        answer("done")
