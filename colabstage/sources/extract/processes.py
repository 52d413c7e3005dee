"""Several processes that write an archive's members: who does what, what becomes of it, and what each of them does.

Inflating and writing ten thousands of small files is system calls with a little Python between them; threads would
spend more on handing the interpreter to each other than on that. A process is told what to do on its input, and answers
on its output. It holds nothing but two handles that it was born with, so it can be killed at any moment, and it ends
with its parent.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import itertools
import marshal
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import SourceReadError
from colabstage.io.files import pread_exactly
from colabstage.sources.extract.batches import Place, job_chunks, read_block, write_batch, write_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.extract.batches import Batch, Job

# Batches that a process has in hand: the one it works at and the next.
_IN_HAND = 2
# How often a cancellation is looked at.
_LOOK_S = 0.25
# Long enough for a killed process to be gone; waiting without an end would hang on a dead disk.
_END_S = 10.0
_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from colabstage.sources.extract.processes import main
main({archive}, {label!r}, {place}, {folder!r}, {parent})
"""


class ProcessesNotStartedError(Exception):
    """No process could be started here; threads can do the work."""


class _WorkerProcess:
    """One process: the batches that it has in hand, and what of its answers has come."""

    def __init__(self, archive: int, label: str, place: Place) -> None:
        if not sys.executable:  # Python inside another program
            raise ProcessesNotStartedError
        program = _PROGRAM.format(
            path=[*sys.path, str(Path(__file__).parents[3])],
            archive=archive,
            label=label,
            place=place.handle,
            folder=place.path,
            parent=os.getpid(),
        )
        self.process = subprocess.Popen(
            # Isolated and without site: none of the environment's hooks runs, and the start is as short as it can be.
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(archive, place.handle),
            # An interrupt at the keyboard is the parent's to handle, which then ends these.
            start_new_session=True,
            # A message that lay in a buffer would leave the process waiting.
            bufsize=0,
        )
        self.in_hand: collections.deque[int] = collections.deque()
        self.has_answered = False
        self._answers = bytearray()

    def send(self, number: int, message: object) -> None:
        assert self.process.stdin is not None
        data = memoryview(_packed(message))
        try:
            while data:
                data = data[self.process.stdin.write(data) or 0 :]
        except BrokenPipeError:
            # It never worked here, so threads may; one that dies later has met something that threads would meet too.
            if not self.has_answered:
                raise ProcessesNotStartedError from None
            raise
        self.in_hand.append(number)

    def answers(self) -> list[tuple[Any, ...]]:
        """Return all that has come; an error if the process has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data and not self.has_answered:
            raise ProcessesNotStartedError
        if not data:
            msg = f"A process that extracts ended unexpectedly (exit code {self.process.wait(_END_S)}). Run this again."
            raise SourceReadError(msg)
        self.has_answered = True
        self._answers += data
        found: list[tuple[Any, ...]] = []
        # A read may end anywhere, also within a message.
        while len(self._answers) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._answers)
            if len(self._answers) < _LENGTH.size + length:
                break
            found.append(marshal.loads(bytes(self._answers[_LENGTH.size : _LENGTH.size + length])))
            del self._answers[: _LENGTH.size + length]
        return found

    def end(self) -> None:
        # It holds nothing that would have to be finished: what it wrote is noted only after its answer.
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(_END_S)


class ProcessPool:
    """The processes of one extraction, as a context manager.

    Args:
        archive: a handle of the archive.
        label: its address, for messages.
        place: where members go.
        workers: how many processes.

    Raises:
        ProcessesNotStartedError: on entering, when no process can be started here.
    """

    def __init__(self, archive: int, label: str, place: Place, *, workers: int) -> None:
        self._archive = archive
        self._label = label
        self._place = place
        self._workers = workers
        self._members: list[_WorkerProcess] = []

    def __enter__(self) -> ProcessPool:
        try:
            for _ in range(self._workers):
                self._members.append(_WorkerProcess(self._archive, self._label, self._place))
        except (OSError, ProcessesNotStartedError) as error:
            # Half a pool would never be entered, so nobody else would end these.
            self.__exit__(None, None, None)
            raise ProcessesNotStartedError from error
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        while self._members:
            self._members.pop().end()

    def run(
        self,
        batches: Sequence[Batch],
        jobs_of: Callable[[Batch], Sequence[Job]],
        *,
        done: Callable[[Batch], None],
        step: ProgressStep,
        cancellation: Cancellation,
        stall_timeout_s: float,
    ) -> None:
        """Have all batches written; `done` is called in this thread for each one that is.

        Raises:
            SourceReadError: a process died, or none moved for `stall_timeout_s` seconds.
            CancelledError: the caller asked to stop.
            Exception: what a process found wrong.
        """
        # A run of neighbours for each: two processes in one folder would wait for each other at every new file.
        workers = len(self._members)
        edges = [len(batches) * worker // workers for worker in range(workers + 1)]
        shares = [collections.deque(range(start, end)) for start, end in itertools.pairwise(edges)]
        finished = 0
        last_sign = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for member, share in zip(self._members, shares, strict=True):
                assert member.process.stdout is not None
                selector.register(member.process.stdout, selectors.EVENT_READ, (member, share))
                _feed(member, share, shares, batches, jobs_of)
            while finished < len(batches):
                cancellation.check()
                ready = selector.select(_LOOK_S)
                # Any answer of any process counts: one alone may be at a large member for long.
                if ready:
                    last_sign = time.monotonic()
                elif time.monotonic() - last_sign > stall_timeout_s:
                    msg = f"Nothing was extracted for {stall_timeout_s:.0f} seconds. Is the disk gone? Run this again."
                    raise SourceReadError(msg)
                for key, _ in ready:
                    member, share = key.data
                    for answer in member.answers():
                        if answer[0] == "bytes":
                            step.advance(answer[1])
                        elif answer[0] == "error":
                            # The error as the process raised it, with its type.
                            raise pickle.loads(answer[1])
                        else:
                            finished += 1
                            done(batches[member.in_hand.popleft()])
                    _feed(member, share, shares, batches, jobs_of)


def _feed(
    member: _WorkerProcess,
    share: collections.deque[int],
    shares: Sequence[collections.deque[int]],
    batches: Sequence[Batch],
    jobs_of: Callable[[Batch], Sequence[Job]],
) -> None:
    while len(member.in_hand) < _IN_HAND:
        if share:
            number = share.popleft()
        # Who has finished its own share takes from the far end of the longest, where its owner comes last.
        elif richest := max(shares, key=len):
            number = richest.pop()
        else:
            return
        batch = batches[number]
        member.send(number, (batch.start, batch.end, batch.is_large, list(jobs_of(batch))))


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


def _receive(stream: BinaryIO) -> Any:
    """Return the next message; `None` when there are no more."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = stream.read(_LENGTH.unpack(head)[0])
    return marshal.loads(data)


def _packed(message: Any) -> bytes:
    """Return a message as it travels."""
    data = marshal.dumps(message)
    return _LENGTH.pack(len(data)) + data


def main(archive: int, label: str, place: int, path: str, parent: int) -> None:
    """Work until the input ends. Messages in: (start, end, large, jobs); out: ("bytes", n), ("done",), ("error", e)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here makes cycles, and looking for them among ten thousand tuples takes time.
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    source, target = _Handle(archive, label), Place(place, path)
    inbox, outbox = sys.stdin.buffer, sys.stdout.buffer

    def answer(*message: object) -> None:
        outbox.write(_packed(message))
        outbox.flush()

    while (message := _receive(inbox)) is not None:
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
