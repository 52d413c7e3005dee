"""The work of an extraction: what an earlier run left is kept, the rest is written by processes or threads; and what
such a process does.
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
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import SourceReadError
from colabstage.io.files import Closing, RetryPolicy, hash_block, pread_exactly, read_with_retry, typed_write_errors
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.progress import start_at
from colabstage.io.workspace import Journal, current_world, read_journal, remove_own, rename_own
from colabstage.sources.extract.batches import Place, job_chunks, read_block, write_batch, write_large, zip_job
from colabstage.sources.tree import make_folders
from colabstage.trees.bytes import LocalBytes, RequestedBytes, TemporaryBytes, owners_bytes
from colabstage.trees.compressed import pieces_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.extract.batches import Batch, ExtractPlan, Job
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, Tree

# Batches that a process has in hand: the one it works at and the next.
_IN_HAND = 2
# How often a cancellation is looked at, and how long nothing at all may come.
_LOOK_S, _STALL_S = 0.25, 180.0
# Long enough for a killed process to be gone; waiting without an end would hang on a dead disk.
_END_S = 10.0
_LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from colabstage.sources.extract.run import unpack_in_child
unpack_in_child({archive}, {label!r}, {place}, {folder!r}, {parent})
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
        data = memoryview(_pack_message(message))
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


# Inflating and writing ten thousands of small files is system calls with a little Python between them; threads would
# spend more on handing the interpreter to each other than on that. A process is told what to do on its input, and
# answers on its output. It holds nothing but two handles that it was born with, so it can be killed at any moment, and
# it ends with its parent.
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
    ) -> None:
        """Have all batches written; `done` is called in this thread for each one that is.

        Raises:
            SourceReadError: a process died, or none moved for three minutes.
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
                elif time.monotonic() - last_sign > _STALL_S:
                    msg = f"Nothing was extracted for {_STALL_S:.0f} seconds. Is the disk gone? Run this again."
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


def _pack_message(message: Any) -> bytes:
    """Return a message as it travels."""
    data = marshal.dumps(message)
    return _LENGTH.pack(len(data)) + data


def unpack_in_child(archive: int, label: str, place: int, path: str, parent: int) -> None:
    """Work until the input ends. Messages in: (start, end, large, jobs); out: ("bytes", n), ("done",), ("error", e)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here makes cycles, and looking for them among ten thousand tuples takes time.
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # Over a handle of the parent's, which ends with this process.
    source = RequestedBytes(partial(pread_exactly, archive), os.fstat(archive).st_size, label=label)
    target = Place(place, path)
    inbox, outbox = sys.stdin.buffer, sys.stdout.buffer

    def answer(*message: object) -> None:
        outbox.write(_pack_message(message))
        outbox.flush()

    while len(head := inbox.read(_LENGTH.size)) == _LENGTH.size:
        start, end, large, jobs = marshal.loads(inbox.read(_LENGTH.unpack(head)[0]))
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


# The part of a gap between members of a zip that is read along.
_GAP_BYTES = 64 * 1024
_JOURNAL = "journal"
_LOCAL_HEADER_BYTES = 30


def archive_ends(tree: Tree, entries: Sequence[FileEntry]) -> list[int]:
    """Return where each entry's bytes end in the bytes that its position counts in."""
    ends = []
    for entry in entries:
        member = tree.packing(entry)
        if member is None:
            ends.append(entry.position + entry.size)
            continue
        # The local header repeats the name and may hold fields that the directory does not tell: an estimate.
        least = member.offset + _LOCAL_HEADER_BYTES + len(member.stored_name) + member.packed_size
        ends.append(member.end if member.end - least <= _GAP_BYTES else least + 64)
    return ends


def released_by(tree: Tree) -> TemporaryBytes | None:
    """Return the bytes that a tree reads from, where they are our own and can be given back as they are used."""
    source = bytes_of(tree)
    return source if isinstance(source, TemporaryBytes) else None


def bytes_of(tree: Tree) -> ByteSource | None:
    """Return what a tree reads its members from, as its owner's own object; `None` where it has no such thing."""
    return None if tree.source is None else owners_bytes(tree.source)


class Extraction(Closing):
    """One extraction in the folder `work`, which it makes, or continues in; a context manager.

    `tree_path`: where the members are. `kept_members`, `kept_bytes`: what an earlier run finished.
    """

    def __init__(
        self, tree: Tree, entries: Sequence[FileEntry], plan: ExtractPlan, work: Path, *, fingerprint: str
    ) -> None:
        self._tree = tree
        self._entries = entries
        self._plan = plan
        self._own = released_by(tree)
        self._lock = threading.Lock()
        self.tree_path = work / "tree"
        with typed_write_errors(self.tree_path):
            self.tree_path.mkdir(parents=True, exist_ok=True)
            # The sizes of files are all that is compared, and a boot may have lost their content: hence the world.
            facts = [(entry.name, entry.size, entry.mtime_ns, entry.position) for entry in entries]
            head = {"fingerprint": fingerprint + hash_block(marshal.dumps(facts)), "world": current_world()}
            finished = [tuple(noted) for noted in read_journal(work / _JOURNAL, head) or () if isinstance(noted, list)]
            self._journal = Journal(work / _JOURNAL, head, finished)
        with contextlib.ExitStack() as undo:
            undo.push(self._journal)
            # Members without a note may be half written.
            if not finished:
                remove_own(self.tree_path)
                self.tree_path.mkdir()
            undo.pop_all()
        # Another plan may have cut other batches: only those that are the same again count.
        noted = set(finished)
        self._kept = {
            batch for batch in plan.batches if (batch.first, batch.members) in noted and self._is_there(batch)
        }
        self._left = [batch for batch in plan.batches if batch not in self._kept]
        self._open = {batch.first: batch for batch in self._left}
        self.kept_members = sum(batch.members for batch in self._kept)
        self.kept_bytes = sum(batch.content_bytes for batch in self._kept)

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    def _is_there(self, batch: Batch) -> bool:
        """Return whether the files of a batch have their sizes."""
        try:
            return all(os.lstat(f"{self.tree_path}/{entry.name}").st_size == entry.size for entry in self._of(batch))
        except OSError:
            return False

    def _of(self, batch: Batch) -> Sequence[FileEntry]:
        return self._entries[batch.first : batch.first + batch.members]

    def run(self, step: ProgressStep, cancellation: Cancellation) -> None:
        """Write all members that are not there yet.

        Raises:
            As `extract_archive`.
        """
        cancellation.check()
        if self.kept_bytes:
            start_at(step, self.kept_bytes)
        # All at once and before, so that nobody who writes a file has to look for its folder.
        make_folders(self.tree_path, (entry.name for entry in self._entries))
        if self._tree.unpacked is not None:
            self._move(self._tree.unpacked, step)
            return
        handle = os.open(self.tree_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        place = Place(handle, str(self.tree_path))
        try:
            # Where no process can be started, as inside another program, threads do the same work.
            if not (self._plan.processes and self._with_processes(place, step, cancellation)):
                self._with_threads(place, step, cancellation)
        finally:
            os.close(handle)

    def _move(self, unpacked: Path, step: ProgressStep) -> None:
        """Move what a tool has unpacked already, on the same disk."""
        for batch in self._left:
            for entry in self._of(batch):
                # Tools leave whatever mode the archive says; a dataset's file is one that everybody reads.
                (unpacked / entry.name).chmod(0o755 if entry.executable else 0o644)
                rename_own(unpacked / entry.name, self.tree_path / entry.name)
                step.advance(entry.size)
            self._finish(batch)

    def _source(self) -> ByteSource:
        source = bytes_of(self._tree)
        assert source is not None
        return source

    def _jobs(self, batch: Batch) -> list[Job]:
        return [
            (entry.name, entry.executable, entry.mtime_ns, entry.position, entry.size)
            if (member := self._tree.packing(entry)) is None
            else zip_job(entry.name, entry.executable, member)
            for entry in self._of(batch)
        ]

    def _finish(self, batch: Batch) -> None:
        """Note a batch, and give back the part of our own copy of the archive that nobody needs any more."""
        self._journal.append((batch.first, batch.members))
        self._open.pop(batch.first, None)
        if self._own is not None:
            # Several members may share bytes, so only what is before all that is left is free.
            first = min(self._open, default=None)
            self._own.release_before(self._own.size if first is None else self._open[first].start)

    def _with_processes(self, place: Place, step: ProgressStep, cancellation: Cancellation) -> bool:
        """Have processes do it; whether that was possible."""
        source = self._source()
        assert isinstance(source, LocalBytes)
        try:
            with ProcessPool(source.fileno(), source.label, place, workers=self._plan.workers) as pool:
                pool.run(self._left, self._jobs, done=self._finish, step=step, cancellation=cancellation)
        except ProcessesNotStartedError:
            # What was answered for before is noted already.
            self._left = [batch for batch in self._left if batch.first in self._open]
            return False
        return True

    def _with_threads(self, place: Place, step: ProgressStep, cancellation: Cancellation) -> None:
        source = self._source()
        small = [batch for batch in self._left if not batch.is_large]
        policy = RetryPolicy()

        def read(number: int) -> bytes:
            batch = small[number]
            return read_with_retry(lambda: read_block(source, batch.start, batch.end), source.label, policy=policy)

        def use(number: int, data: bytes) -> None:
            batch = small[number]
            write_batch(source, batch.start, data, self._jobs(batch), place)
            with self._lock:
                self._finish(batch)
            step.advance(batch.content_bytes)

        run_pipeline(
            range(len(small)),
            read=read,
            use=use,
            cost=lambda number: small[number].end - small[number].start,
            limits=PipelineLimits(
                # Batches follow each other in the archive, so more readers would only make the disk seek.
                readers=1,
                max_readers=2,
                workers=self._plan.workers,
                stall_timeout_s=_STALL_S,
            ),
            cancellation=cancellation,
        )
        # Last, each alone: of these only pieces are held in memory.
        for batch in self._left:
            if batch.is_large:
                self._write_large(batch, place, step, cancellation)

    def _write_large(self, batch: Batch, place: Place, step: ProgressStep, cancellation: Cancellation) -> None:
        """Write one member that is too large to be held: a thread unpacks it while this one writes."""
        (job,) = self._jobs(batch)

        def advance(done: int) -> None:
            cancellation.check()
            step.advance(done)

        with pieces_ahead(job_chunks(self._source(), job), stall_timeout_s=_STALL_S) as pieces:
            write_large(job, place, iter(pieces), advance=advance)
        self._finish(batch)
