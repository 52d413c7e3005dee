"""Read a remote file while it is copied here, or read it in place without keeping it.

Several connections fetch the copy, roughly in order. Readers get bytes that have arrived from the local disk and wait
for those that are about to; bytes far ahead, such as the table of contents at the end of a zip, are read from the
source directly. So unpacking a zip takes the time of its copy, not the sum of copying and unpacking. An interrupted
copy is continued.

Reading members in place is dominated by round trips, each of which takes as long as the bytes of many small members. So
if it is known which will be read, those close together are fetched with one request, and the next ones while these are
read.

A walk from the beginning to the end serves a checksum, or the headers of a tar, which has no table of contents: each
header says where the next one is. Small members are read along, many stretches at the same time; large ones are
skipped.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import DriveDisconnectedError, SourceReadError
from colabstage.io.files import Closing, RetryPolicy
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.sources.transfer.connections import Transfer, read_directly, stopped_error
from colabstage.sources.transfer.partial_file import take_partial_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Clock, LateStep, ProgressStep
    from colabstage.sources.remote import RemoteFile
    from colabstage.sources.transfer.partial_file import PartialFile
    from colabstage.trees.bytes import ByteSource


# Before a copy, reads are scattered, but often close to the last one; this many bytes take as long as a round trip.
ALONG_BYTES = 256 * 1024
_KEPT_READS = 8
# The table of contents of a zip is at its end, at a hundred bytes per member, for members of this many times that size.
_END_SHARE = 1024
_MOST_END_BYTES = 4 * 1024 * 1024


class StreamingCopy(Closing):
    """Read a file that is being copied from `source`, as a `ByteSource`; a context manager that ends the copy.

    Before `start`, reads go to the source, so that a plan can be made, and refused, before anything is written. The
    bytes are written under an owned temporary name beside `target`; `target` itself does not exist before `move_to`.
    """

    def __init__(
        self,
        source: RemoteFile,
        target: Path,
        *,
        step: ProgressStep,
        policy: RetryPolicy,
        connections: int | None = None,
        stall_timeout_s: float = 180.0,
        cancellation: Cancellation | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare to copy.

        Args:
            source: closed by the caller, after this.
            target: the local name of the file; a dead process's unfinished copy of the same version of the same source
                for the same name is continued.
            step: told of every byte, including kept ones.
            policy: `attempts` counts tries without a single byte of progress.
            connections: parts in flight at once; `None` for as many as the source recommends.
            stall_timeout_s: seconds without a byte after which waiting readers get an error.
            cancellation: checked several times a second by waiting readers.
            clock: times silence and the waits before retries.

        Raises:
            SourceReadError: the source does not report the file's length, or has no ranges.
        """
        facts = source.facts
        if facts.size is None or not facts.ranges:
            lack = "say how long it is" if facts.size is None else "give parts of itself"
            msg = f"'{facts.label}' does not {lack}, so it cannot be read while it arrives. Fetch it as a whole first."
            raise SourceReadError(msg)
        self.label = facts.label
        self.size: int = facts.size
        self._source = source
        self._target = target
        self._step = step
        self._policy = policy
        # A source that reports 0 still accepts one.
        self._connections = max(1, facts.connections if connections is None else connections)
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._cancellation = cancellation
        # Guards starting and ending; the transfer has its own lock for the bytes.
        self._lock = threading.Lock()
        self._closed = False
        self._partial: PartialFile | None = None
        self._transfer: Transfer | None = None
        self._wanted: list[tuple[int, int]] = []
        self._alone = False
        # Reads before the copy begins fetch this much more, for the next read.
        self._along_bytes = ALONG_BYTES
        # Announced members that are close together, for reading in place.
        self._neighbours: Neighbours | None = None
        # What was read before the copy began, including the surplus.
        self._looked_at: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_READS)
        # The end is requested together with the first read of the beginning, which costs no additional round trip.
        self._end_pool: DaemonPool | None = None
        self._at_end: Future[bytes] | None = None
        self._end_begins = self.size - min(max(ALONG_BYTES, self.size // _END_SHARE), _MOST_END_BYTES)

    @property
    def kept_bytes(self) -> int:
        """Return the size of the blocks that an interrupted run had finished and this one reuses."""
        return 0 if self._transfer is None else self._transfer.kept_bytes

    @property
    def waits_for(self) -> str:
        """Return why requested bytes are not arriving at present; "" if they are."""
        return "" if self._transfer is None else self._transfer.waits_for

    @property
    def block_hashes(self) -> tuple[str, ...]:
        """Return the xxh3-64 of each block of 8 MiB, once everything has arrived."""
        finished = {} if self._partial is None else self._partial.finished
        # Blocks finish in their order of arrival, not in that of the file.
        return tuple(finished[number] for number in sorted(finished))

    def start(self) -> None:
        """Start to copy. Calling it twice is fine.

        Raises:
            NotEnoughSpaceError, TargetNotWritableError: nothing can be created beside the target.
            SourceReadError: it was closed before.
        """
        with self._lock:
            # A late read, in a thread that nobody waits for, must not start it again.
            if self._closed:
                raise stopped_error(self.label)
            if self._transfer is not None:
                return
            self._partial = take_partial_file(self._target, self._source.facts)
            self._transfer = Transfer(
                self._source,
                self._partial,
                step=self._step,
                policy=self._policy,
                connections=self._connections,
                stall_timeout_s=self._stall_timeout_s,
                clock=self._clock,
            )
            self._transfer.prefer(self._wanted, alone=self._alone)
            self._transfer.start()

    def read_in_place(self) -> None:
        """Expect scattered reads of single members, and no copy: each fetches only the requested bytes."""
        self._along_bytes = 0

    def read_members(self, byte_ranges: Iterable[tuple[int, int]], *, readers: int) -> None:
        """Expect `readers` readers to read these members `(begin, end)` in place, about in order: members close
        together are then fetched with one request."""
        neighbours = Neighbours(
            byte_ranges,
            self._read_directly,
            connections=self._connections,
            readers=readers,
            cancellation=self._cancellation,
            stall_timeout_s=self._stall_timeout_s,
        )
        with self._lock:
            before, self._neighbours = self._neighbours, neighbours
        if before is not None:
            before.close()

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Fetch these byte ranges `(begin, end)` first, in this order, then the rest; also during the copy. `alone`:
        the rest only once somebody waits for it, or for the whole file."""
        with self._lock:
            self._wanted, self._alone = list(byte_ranges), alone
            if self._transfer is not None:
                self._transfer.prefer(self._wanted, alone=alone)

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at `offset`, once they have arrived; shorter only at the end of the file.

        Raises:
            SourceReadError: the copy failed, stalled, or was closed meanwhile.
            CancelledError: the caller asked to stop.
            NotEnoughSpaceError, TargetNotWritableError: there is no room for the copy.
        """
        end = min(offset + length, self.size)
        if offset >= self.size:
            return b""
        with self._lock:
            if self._closed:
                raise stopped_error(self.label)
            transfer = self._transfer
        if transfer is None:
            together = None if self._neighbours is None else self._neighbours.read(offset, end)
            return self._look(offset, end) if together is None else together
        partial = self._partial
        assert partial is not None
        # Bytes far ahead are fetched sooner by a separate request.
        if not transfer.wait_for(offset, end, patient=False, cancellation=self._cancellation):
            try:
                return self._read_directly(offset, end, patient=False)
            # From a dead mount, nothing arrives through the copy either.
            except DriveDisconnectedError:
                raise
            except SourceReadError:
                # A server may have no connection to spare for this request, but the bytes arrive with the rest.
                transfer.wait_for(offset, end, patient=True, cancellation=self._cancellation)
        return partial.read(end - offset, offset)

    def read_here(self, length: int, offset: int) -> bytes:
        """Read as `pread`, but never with a separate request: for reading the file from beginning to end."""
        end = min(offset + length, self.size)
        self.start()
        assert self._transfer is not None
        assert self._partial is not None
        self._transfer.wait_for(offset, end, patient=True, cancellation=self._cancellation)
        return self._partial.read(end - offset, offset)

    def wait(self) -> None:
        """Start if necessary, and return once the whole file has arrived and each block is hashed and noted.

        Raises:
            CancelledError: the caller asked to stop.
            As `start` and `pread`.
        """
        self.start()
        assert self._transfer is not None
        self._transfer.wait(self._cancellation)

    def move_to(self, path: Path, replaces: Callable[[Path], bool] = lambda _: False) -> None:
        """End, and rename the file, replacing an existing one if `replaces` says so. Only after `wait`.

        Raises:
            TargetExistsError: it does not; nothing has changed.
            NotEnoughSpaceError, TargetNotWritableError: the disk failed; nothing has changed.
        """
        self._end()
        assert self._partial is not None
        self._partial.move_to(path, replaces)

    def discard(self) -> None:
        """End, and keep nothing. Calling it twice is fine."""
        self._end()
        if self._partial is not None:
            self._partial.remove()

    def close(self) -> None:
        """End; finished blocks stay for the next run. Calling it twice is fine."""
        if self._end() and self._partial is not None:
            self._partial.leave()

    def _end(self) -> bool:
        """Stop the threads; return whether this was the first call."""
        with self._lock:
            first, self._closed = not self._closed, True
            pool, neighbours = self._end_pool, self._neighbours
        if pool is not None:
            pool.close(abandon=True)
        if neighbours is not None:
            neighbours.close()
        # Outside the lock, because the ending threads may be about to take it.
        if self._transfer is not None:
            self._transfer.close()
        return first

    def _look(self, offset: int, end: int) -> bytes:
        """Read before the copy has begun, and keep the surplus for the next read."""
        if (data := self._source.known(offset, end)) is not None:
            return data
        self._look_at_end()
        if offset >= self._end_begins and (data := self._read_at_end()) is not None:
            return data[offset - self._end_begins : end - self._end_begins]
        if end - offset > self._along_bytes:
            return self._read_directly(offset, end)
        for begin, data in tuple(self._looked_at):
            if begin <= offset and end <= begin + len(data):
                return data[offset - begin : end - begin]
        data = self._read_directly(offset, min(self.size, offset + self._along_bytes))
        self._looked_at.append((offset, data))
        return data[: end - offset]

    def _look_at_end(self) -> None:
        """Request the end of a zip, once, in a thread."""
        with self._lock:
            if self._end_pool is not None or self._closed or not ends_with_contents(self._source.facts.name):
                return
            self._end_pool = pool = DaemonPool(1, "colabstage-end")
            # If the end arrived when the file was opened, it says how long the table of contents is, so nothing is
            # guessed.
            if self._end_begins > ALONG_BYTES and not self._source.known(self.size - 1, self.size):
                self._at_end = pool.submit(lambda: self._read_directly(self._end_begins, self.size))

    def _read_at_end(self) -> bytes | None:
        """Return the end once it has arrived; `None` if it was not requested, or failed: reading it again raises the
        error."""
        if self._at_end is None:
            return None
        try:
            return DaemonPool.results(
                [self._at_end], cancellation=self._cancellation, stall_timeout_s=self._stall_timeout_s
            )[0]
        except (OSError, TimeoutError):
            self._at_end = None
            return None

    def _read_directly(self, offset: int, end: int, *, patient: bool = True) -> bytes:
        try:
            return read_directly(
                self._source,
                offset,
                end - offset,
                policy=self._policy if patient else replace(self._policy, patience_s=0.0),
                stopped=self._is_stopped,
                clock=self._clock,
            )
        except SourceReadError:
            # A request that a cancellation has aborted is reported as cancelled.
            if self._cancellation is not None:
                self._cancellation.check()
            raise

    def _is_stopped(self) -> bool:
        return self._closed or (self._cancellation is not None and self._cancellation.cancelled)


# Gaps between two members up to this length are fetched along: a round trip of 0.1 s costs each of 16 connections no
# less of a line of 20 MB/s.
_GAP_BYTES = 128 * 1024
_RANGE_BYTES = 1024 * 1024
# Coalesced ranges kept behind the latest one read, because members are only roughly read in order.
_BEHIND = 16


class CoalescedRange(NamedTuple):
    """Describe a part of the archive that is fetched with one request."""

    begin: int
    """Where it begins."""
    end: int
    """Where it ends."""
    members: int
    """How many of the ranges to read are in it."""


def coalesce(byte_ranges: Iterable[tuple[int, int]]) -> list[CoalescedRange]:
    """Join ranges `(begin, end)` with small gaps between them, as long as the result is short. Pure.

    >>> coalesce([(0, 1000), (5000, 6000), (900_000, 901_000)])
    [CoalescedRange(begin=0, end=6000, members=2), CoalescedRange(begin=900000, end=901000, members=1)]
    """
    found: list[CoalescedRange] = []
    for begin, end in sorted(byte_ranges):
        last = found[-1] if found else None
        if last is not None and begin - last.end <= _GAP_BYTES and end - last.begin <= _RANGE_BYTES:
            found[-1] = CoalescedRange(last.begin, max(end, last.end), last.members + 1)
        else:
            found.append(CoalescedRange(begin, end, 1))
    return found


class Neighbours:
    """Read announced ranges, neighbours with one request. `read` may be called from many threads."""

    def __init__(
        self,
        byte_ranges: Iterable[tuple[int, int]],
        fetch: Callable[[int, int], bytes],
        *,
        connections: int,
        readers: int,
        cancellation: Cancellation | None = None,
        stall_timeout_s: float = 180.0,
    ) -> None:
        """Coalesce the ranges.

        Args:
            byte_ranges: each `(begin, end)`, of one member and its few extra bytes.
            fetch: returns the bytes between two offsets.
            connections: how many coalesced ranges are fetched at once.
            readers: how many would read at once if each requested its own member. If coalescing had fewer members in
                flight, nothing is coalesced.
            cancellation: checked while waiting.
            stall_timeout_s: seconds to wait for one of them.
        """
        cut = coalesce(byte_ranges)
        shared = [one for one in cut if one.members > 1]
        is_worth = sum(one.members for one in cut) * connections >= readers * len(cut)
        self.coalesced = shared if is_worth else []
        self._begins = [one.begin for one in self.coalesced]
        self._fetch, self._ahead = fetch, connections
        self._cancellation, self._stall_timeout_s = cancellation, stall_timeout_s
        self._lock = threading.Lock()
        self._pool = DaemonPool(connections, "colabstage-neighbours")
        self._coming: dict[int, Future[bytes]] = {}
        self._passed = 0
        self._closed = False

    def read(self, begin: int, end: int) -> bytes | None:
        """Return bytes of one coalesced range, once they have arrived; `None` for bytes that have to be requested
        separately.

        Raises:
            Exception: as `fetch`; the next read fetches the coalesced range again.
            CancelledError: `cancellation` was used. TimeoutError: it did not arrive in time.
        """
        number = bisect.bisect_right(self._begins, begin) - 1
        if number < 0 or end > self.coalesced[number].end:
            return None
        with self._lock:
            # Nearly all members of a dropped range have been read, so only little of it would be useful.
            if self._closed or number < self._passed:
                return None
            for following in range(number, min(number + self._ahead, len(self.coalesced))):
                if following not in self._coming:
                    begins, ends, _ = self.coalesced[following]
                    self._coming[following] = self._pool.submit(partial(self._fetch, begins, ends))
            coming = self._coming[number]
            self._passed = max(self._passed, number - _BEHIND)
            for passed in [one for one in self._coming if one < self._passed]:
                del self._coming[passed]
        try:
            (data,) = DaemonPool.results(
                [coming], cancellation=self._cancellation, stall_timeout_s=self._stall_timeout_s
            )
        except BaseException:
            with self._lock:
                if self._coming.get(number) is coming:
                    del self._coming[number]
            raise
        start = self._begins[number]
        return data[begin - start : end - start]

    def close(self) -> None:
        """Stop fetching, and drop what has arrived. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            self._coming.clear()
        self._pool.close(abandon=True)


def ends_with_contents(name: str) -> bool:
    """Tell by a file's name whether it has a table of contents at its end."""
    return name.lower().endswith(".zip")


STRETCH_BYTES = 4 * 1024 * 1024
# Headers further apart than this on average are requested one by one: at 100 MB/s the bytes between them take longer
# than a round trip.
_FAR_BYTES = 4 * STRETCH_BYTES
# The weight of the latest value in the average.
_SHARE = 0.25


class ArchiveWalk(Closing):
    """A `ByteSource` that is read in order until `end` is called, and as `content` after that.

    Only one thread may read before `end`.
    """

    def __init__(self, content: ByteSource, file: RemoteFile, step: LateStep, cancellation: Cancellation) -> None:
        """Prepare; `content` is closed with this, but its source `file` is closed by the caller."""
        self.label, self.size = content.label, content.size
        self._content, self._file, self._step, self._cancellation = content, file, step, cancellation
        self._pool: DaemonPool | None = DaemonPool(max(1, file.facts.connections), "colabstage-walk")
        self._ahead = max(1, file.facts.connections)
        self._coming: dict[int, Future[bytes]] = {}
        self._reached, self._gap = 0, 0.0

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at `offset`; shorter only at the end."""
        pool = self._pool
        if pool is None or offset >= self.size:
            return self._content.pread(length, offset)
        end = min(offset + length, self.size)
        self._gap += _SHARE * (max(0, offset - self._reached) - self._gap)
        self._step.advance(max(0, end - self._reached))
        self._reached = max(self._reached, end)
        first, last = offset // STRETCH_BYTES, (end - 1) // STRETCH_BYTES
        far = self._gap > _FAR_BYTES
        for number in [number for number in self._coming if number < first or far]:
            self._coming.pop(number).cancel()
        if far:
            return self._content.pread(length, offset)
        for number in range(first, min(last + self._ahead, -(-self.size // STRETCH_BYTES))):
            if number not in self._coming:
                self._coming[number] = pool.submit(partial(self._bring, number * STRETCH_BYTES))
        coming = [self._coming[number] for number in range(first, last + 1)]
        data = b"".join(one.result() if one.done() else self._wait(one) for one in coming)
        begin = offset - first * STRETCH_BYTES
        return data[begin : begin + end - offset]

    def end(self) -> None:
        """Read as `content` from now on."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._step.advance(self.size - self._reached)
            self._coming.clear()
            pool.close(abandon=True)

    def _wait(self, stretch: Future[bytes]) -> bytes:
        return DaemonPool.results([stretch], cancellation=self._cancellation)[0]

    def _bring(self, offset: int) -> bytes:
        length = min(STRETCH_BYTES, self.size - offset)
        return read_directly(self._file, offset, length, policy=RetryPolicy(), stopped=lambda: self._pool is None)

    def close(self) -> None:
        """End, and close the content. Calling it twice is fine."""
        self.end()
        self._content.close()
