"""Read a remote file while it is copied here, or read it in place without keeping it; or fetch all of it to its place.

Several connections fetch the copy, roughly in order. Readers get bytes that have arrived, and wait for those that are
about to; bytes far ahead, such as the table of contents at the end of a zip, are read from the source directly. So
unpacking a zip takes the time of its copy, not the sum of copying and unpacking. An interrupted copy is continued:
`.colabstage-NAME.OWNER.tmp/` holds its blocks, and renaming the folder takes them over.

Reading in place is dominated by round trips, each of which takes as long as the bytes of many small members. So what is
close together is fetched with one request, and the next ones while these are read.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from colabstage.errors import (
    ChecksumMismatchError,
    DriveDisconnectedError,
    SourceChangedError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.files import (
    BLOCK_BYTES,
    Closing,
    RetryPolicy,
    block_ranges,
    hash_ranges,
    make_folder,
    pwrite_exactly,
    typed_write_errors,
)
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock, LateStep, ProgressStep
from colabstage.io.workspace import (
    cut_own,
    find_orphans,
    free_name,
    leave_for_next,
    put_file,
    remove_own,
    sweep_orphans,
    take_orphan,
    temp_beside,
    whatever_is_there,
)
from colabstage.sources.blocks import TABLE, WHOLE, Blocks, Layout
from colabstage.sources.fetcher import Fetcher, prove_rest
from colabstage.sources.order import RangeOrder
from colabstage.sources.remote import (
    Checksum,
    MountedFile,
    RemoteFacts,
    RemoteFile,
    pieces_of,
    read_through,
    stopped_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from colabstage.h5.manifest import Manifest


_DATA = "data"
_STALL_S = 180.0
# Before a copy, reads are scattered, but often close to the last one; this many bytes take as long as a round trip.
ALONG_BYTES = 256 * 1024
_KEPT_READS = 8
# Gaps between two members up to this length are fetched along: a round trip of 0.1 s costs each of 16 connections no
# less of a line of 20 MB/s.
_GAP_BYTES = 128 * 1024
_RANGE_BYTES = 1024 * 1024
# Ranges kept behind the latest one read, because members are only roughly read in order.
_BEHIND = 16


class StreamingCopy(Closing):
    """Read a file that is being copied from `source`, as a `ByteSource`; a context manager that ends the copy.

    Before `start`, reads go to the source, so that a plan can be made, and refused, before anything is written. The
    bytes are written under an owned temporary name beside `target`; `target` itself does not exist before `move_to`.

    `kept_bytes`: finished by an earlier run and reused by this one. `block_hashes`: the xxh3-64 of each block of 8 MiB,
    once it has ended.
    """

    def __init__(
        self,
        source: RemoteFile,
        target: Path,
        *,
        step: ProgressStep,
        policy: RetryPolicy,
        cancellation: Cancellation,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare to copy a file of known length that gives ranges; the caller closes it, after this.

        A dead process's unfinished copy is continued if it is of the same version of the same source for the same
        target. `step` shows every byte, kept ones too. After three minutes without a byte, readers get an error.
        """
        facts = source.facts
        assert facts.size is not None
        assert facts.ranges
        self.label, self.size, self.kept_bytes = facts.label, facts.size, 0
        self.block_hashes: tuple[str, ...] = ()
        self._source, self._target, self._step, self._policy = source, target, step, policy
        self._clock, self._cancellation = clock, cancellation
        # A source that reports 0 still accepts one.
        self._connections = max(1, facts.connections)
        self._copiers = 1 if facts.is_mounted else self._connections
        self._order = RangeOrder([(0, self.size)], connections=self._copiers, block_bytes=BLOCK_BYTES)
        # Guards starting and ending; the fetcher has its own lock for the bytes.
        self._lock = threading.Lock()
        self._closed = False
        self._running: tuple[Blocks, Fetcher] | None = None
        # Where the copy is, once it has ended, and whether any of it can be used.
        self._data: Path | None = None
        self._has_blocks = False
        # Reads before the copy begins fetch this much more, for the next read, and are kept with it.
        self._along_bytes = ALONG_BYTES
        self._looked_at: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_READS)
        # Announced members that are close together.
        self._ahead: ReadAhead | None = None

    @property
    def waits_for(self) -> str:
        """Return why requested bytes are not arriving at present; "" if they are."""
        running = self._running
        return "" if running is None else running[1].waits_for

    def start(self) -> tuple[Blocks, Fetcher]:
        with self._lock:
            # A late read, in an abandoned thread, must not start it again.
            if self._closed:
                raise stopped_error(self.label)
            if self._running is None:
                blocks = _take_blocks(self._target, self._source.facts)
                fetcher = Fetcher(
                    self.label,
                    blocks,
                    [lambda: self._source],
                    lambda _: self._copiers,
                    policy=self._policy,
                    closes=False,
                    clock=self._clock,
                    on_bytes=self._step.advance,
                    on_wait=self._step.note,
                )
                self._running = blocks, fetcher
                fetcher.start(partial(self._begin, blocks, fetcher))
            return self._running

    def _begin(self, blocks: Blocks, fetcher: Fetcher) -> RangeOrder:
        """Verify what an earlier run has left, and order the rest."""
        gaps = prove_rest(blocks, fetcher)
        self.kept_bytes = self.size - sum(end - begin for begin, end in gaps)
        with fetcher.lock:
            self._order.leave(gaps)
        if self.kept_bytes:
            self._step.start_at(self.kept_bytes)
        return self._order

    def read_in_place(self) -> None:
        """Expect scattered reads of single members, and no copy: each fetches only the requested bytes."""
        self._along_bytes = 0
        self._looked_at.clear()

    def read_members(self, byte_ranges: Iterable[tuple[int, int]]) -> None:
        """Expect reads of these members `(begin, end)` in place, about in order: members close together are then
        fetched with one request."""
        self._close_ahead()
        self._ahead = self.ahead_of([(begin, end) for begin, end, members in coalesce(byte_ranges) if members > 1])

    def ahead_of(self, ranges: Sequence[tuple[int, int]]) -> ReadAhead:
        """Return an object that reads these ranges `(begin, end)` of the source about in order, without a copy."""
        return ReadAhead(ranges, self._read_directly, connections=self._connections, cancellation=self._cancellation)

    def _close_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Fetch these byte ranges `(begin, end)` first, in this order, then the rest; also during the copy. `alone`:
        the rest only once a reader waits for it, or for the whole file."""
        with self._lock, contextlib.ExitStack() as stack:
            if self._running is not None:
                stack.enter_context(self._running[1].lock)
                self._running[1].touch()
            self._order.prefer(byte_ranges, alone=alone)

    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at `offset`, once they have arrived; shorter only at the end of the file."""
        end = min(offset + length, self.size)
        if offset >= self.size:
            return b""
        running = self._running
        if self._closed:
            raise stopped_error(self.label)
        if running is None:
            return self._look(offset, end)
        blocks, fetcher = running
        # Bytes far ahead are fetched sooner by a separate request.
        if not self._wait_for(fetcher, offset, end, patient=False):
            try:
                return self._read_directly(offset, end, patient=False)
            # If the mount is dead, nothing arrives through the copy either.
            except DriveDisconnectedError:
                raise
            except SourceReadError:
                # A server may have no connection to spare for this request, but the bytes arrive with the rest.
                self._wait_for(fetcher, offset, end, patient=True)
        return blocks.read(offset, end - offset)

    def read_here(self, length: int, offset: int) -> bytes:
        """Read as `pread`, but never with a separate request: for reading the file from beginning to end."""
        end = min(offset + length, self.size)
        blocks, fetcher = self.start()
        self._wait_for(fetcher, offset, end, patient=True)
        return blocks.read(offset, end - offset)

    def wait(self) -> None:
        """Start if necessary, and return once the whole file has arrived and each block is hashed and noted."""
        blocks, fetcher = self.start()

        with fetcher.lock:
            self._fetch_rest(fetcher)
        _wait_for_all(blocks, fetcher, self._cancellation)

    def _wait_for(self, fetcher: Fetcher, begin: int, end: int, *, patient: bool) -> bool:
        """Wait until these bytes have arrived; return `False`, unless `patient`, if they are too far ahead to wait
        for."""
        is_far = False

        def is_here_or_far() -> bool:
            nonlocal is_far
            missing = fetcher.first_missing(begin, end)
            if missing is not None and patient:
                self._fetch_rest(fetcher)
            elif missing is not None:
                is_far = self._order.is_far(missing)
            return missing is None or is_far

        fetcher.wait_until(is_here_or_far, self._cancellation)
        return not is_far

    def _fetch_rest(self, fetcher: Fetcher) -> None:
        """Also fetch what nobody prefers from now on, with the fetcher's lock held."""
        if not self._order.fetches_rest:
            self._order.fetches_rest = True
            fetcher.touch()

    def move_to(self, path: Path, replaces: Callable[[Path], bool] = lambda _: False) -> None:
        """End, and rename the file, replacing an existing one if `replaces` says so. Only after `wait`."""
        self.end()
        assert self._data is not None
        _put(self._data, self._source.facts, path, replaces)
        self.discard()

    def discard(self) -> None:
        """End, and keep nothing. Calling it twice is fine."""
        self.end()
        data, self._data = self._data, None
        if data is not None:
            remove_own(data.parent)

    def close(self) -> None:
        """End; finished blocks stay for the next run. Calling it twice is fine."""
        self.end()
        if not self._has_blocks:
            self.discard()
        elif self._data is not None:
            leave_for_next(self._data.parent)
            self._data = None

    def end(self) -> None:
        """Stop the threads, and leave the data as it is. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            # The thread that uses the files last closes them.
            running, self._running = self._running, None
        self._close_ahead()
        if running is not None:
            blocks, fetcher = running
            # Outside the lock, because the ending threads may be about to take it.
            fetcher.close()
            self._data, self._has_blocks = blocks.paths[0], not blocks.is_empty
            self.block_hashes = tuple(map(blocks.digest_of, range(blocks.layout.blocks)))

    def _look(self, offset: int, end: int) -> bytes:
        """Read before the copy has begun, and keep the surplus for the next read."""
        if len(data := self._source.known(offset, end)) == end - offset:
            return data
        if self._ahead is not None and (ahead := self._ahead.read(offset, end)) is not None:
            return ahead
        for begin, data in tuple(self._looked_at):
            if begin <= offset and end <= begin + len(data):
                return data[offset - begin : end - begin]
        # Of the end of a zip, which says where its contents are, what is before it too.
        begin = min(offset, max(0, self.size - self._along_bytes))
        data = self._read_directly(begin, min(self.size, max(end, offset + self._along_bytes)))
        if self._along_bytes:
            # This includes the contents of a long zip: they are hashed, and read again for its members.
            self._looked_at.append((begin, data))
        return data[offset - begin : end - begin]

    def _read_directly(self, offset: int, end: int, *, patient: bool = True) -> bytes:
        policy = self._policy if patient else replace(self._policy, patience_s=0.0)
        return b"".join(read_through(self._source, offset, end - offset, policy=policy, check=self._check_open))

    def _check_open(self) -> None:
        self._cancellation.check()
        if self._closed:
            raise stopped_error(self.label)


def _wait_for_all(blocks: Blocks, fetcher: Fetcher, cancellation: Cancellation) -> None:
    def is_whole() -> bool:
        for error in fetcher.failures.values():
            raise error
        return fetcher.has_begun and bool((blocks.state == WHOLE).all())

    fetcher.wait_until(is_whole, cancellation)


def _take_blocks(target: Path, facts: RemoteFacts) -> Blocks:
    """Take over what a dead process left of an unfinished copy of the same file for `target`, or start over."""
    folder = temp_beside(target)
    content = f"{facts.label} {facts.size} {facts.version} {facts.mtime_ns} {facts.checksum or ''}"
    layout = Layout([_DATA], [facts.size or 0], BLOCK_BYTES)

    def continues(orphan: Path) -> bool:
        if not take_orphan(orphan, folder):
            return False
        with contextlib.suppress(OSError):
            if facts.names_its_state and (folder / TABLE).is_file() and (folder / _DATA).stat().st_size == facts.size:
                return True
        remove_own(folder)
        return False

    if not (is_kept := any(map(continues, find_orphans(target)))):
        with typed_write_errors(target):
            folder.mkdir()
    try:
        return Blocks(folder, layout, content, shared=False, gives_back=False, shown=target)
    except BaseException:
        if not is_kept:
            remove_own(folder)
        raise


def _put(data: Path, facts: RemoteFacts, path: Path, replaces: Callable[[Path], bool]) -> None:
    with typed_write_errors(path):
        # The source's own time, which other programs compare to see whether they have this state.
        if facts.mtime_ns:
            os.utime(data, ns=(facts.mtime_ns, facts.mtime_ns))
        put_file(data, path, replaces=replaces)


def coalesce(byte_ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Join ranges `(begin, end)` with small gaps between them, as long as the result is short; count those in each.

    >>> coalesce([(0, 1000), (5000, 6000), (900_000, 901_000)])
    [(0, 6000, 2), (900000, 901000, 1)]
    """
    found: list[tuple[int, int, int]] = []
    for begin, end in sorted(byte_ranges):
        if found and begin - found[-1][1] <= _GAP_BYTES and end - found[-1][0] <= _RANGE_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1]), found[-1][2] + 1
        else:
            found.append((begin, end, 1))
    return found


class ReadAhead(Closing):
    """Fetch ranges about in order, while one is read already the next. `read` may be called from many threads."""

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        fetch: Callable[[int, int], bytes],
        *,
        connections: int,
        cancellation: Cancellation,
    ) -> None:
        """Expect to read these ranges `(begin, end)`, which are sorted; `fetch` returns the bytes of one."""
        self._ranges, self._begins = ranges, [begin for begin, _ in ranges]
        self._fetch, self._ahead = fetch, connections
        self._cancellation = cancellation
        self._lock = threading.Lock()
        self._pool = DaemonPool(connections, "colabstage-ahead")
        self._coming: dict[int, Future[bytes]] = {}
        self._passed = 0
        self._closed = False

    def read(self, begin: int, end: int) -> bytes | None:
        """Return bytes of the ranges, once they have arrived; `None` for bytes that have to be requested separately.

        After an error of `fetch`, the next read fetches the range again.
        """
        parts = []
        while begin < end:
            number = bisect.bisect_right(self._begins, begin) - 1
            if number < 0 or begin >= self._ranges[number][1] or (data := self._range(number)) is None:
                return None
            start, stop = self._ranges[number]
            parts.append(data[begin - start : min(end, stop) - start])
            begin = min(end, stop)
        return b"".join(parts)

    def _range(self, number: int) -> bytes | None:
        with self._lock:
            # Nearly all members of a dropped range have been read, so only little of it would be useful.
            if self._closed or number < self._passed:
                return None
            for following in range(number, min(number + self._ahead, len(self._ranges))):
                if following not in self._coming:
                    self._coming[following] = self._pool.submit(partial(self._fetch, *self._ranges[following]))
            coming = self._coming[number]
            self._passed = max(self._passed, number - _BEHIND)
            for passed in [one for one in self._coming if one < self._passed]:
                del self._coming[passed]
        try:
            (data,) = DaemonPool.results([coming], cancellation=self._cancellation, stall_timeout_s=_STALL_S)
        except BaseException:
            with self._lock:
                if self._coming.get(number) is coming:
                    del self._coming[number]
            raise
        return data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._coming.clear()
        self._pool.close(abandon=True)


STRETCH_BYTES = 4 * 1024 * 1024
# Headers further apart than this are requested one by one: at 100 MB/s the bytes between them take longer than a round
# trip.
_FAR_APART_BYTES = 4 * STRETCH_BYTES


class ArchiveWalk(Closing):
    """A `ByteSource` that is read once from beginning to end until `end` is called, and as `content` after that: for a
    checksum, or the headers of a tar, each of which says where the next one is.

    Small members are read along, many stretches at the same time; large ones are skipped. Only one thread may read
    before `end`.
    """

    def __init__(self, content: StreamingCopy, step: LateStep) -> None:
        """Prepare; `content`, of which no copy has begun, is closed with this."""
        self.label, self.size = content.label, content.size
        self._content, self._step = content, step
        self._walks = True
        self._reached = 0
        edges = [*range(0, self.size, STRETCH_BYTES), self.size]
        self._ahead = content.ahead_of(list(itertools.pairwise(edges)))

    def pread(self, length: int, offset: int) -> bytes:
        found, end = None, min(offset + length, self.size)
        if self._walks and offset < self.size:
            if offset - self._reached <= _FAR_APART_BYTES:
                found = self._ahead.read(offset, end)
            self._step.advance(max(0, end - self._reached))
            self._reached = max(self._reached, end)
        return self._content.pread(length, offset) if found is None else found

    def end(self) -> None:
        """Read from `content` alone from now on."""
        if self._walks:
            self._walks = False
            self._step.advance(self.size - self._reached)
            self._ahead.close()

    def close(self) -> None:
        self.end()
        self._content.close()


@dataclass(frozen=True, slots=True)
class FetchedFile:
    nbytes: int
    kept_bytes: int
    """How many of its bytes an interrupted run had already fetched."""
    block_hashes: tuple[str, ...]
    digest: str | None
    """By the algorithm of the file's checksum; `None` without one."""


def fetch_file(
    source: RemoteFile,
    target: Path,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    announce: Callable[[tuple[str, ...], int], object] = lambda _hashes, _nbytes: None,
    replaces: Callable[[Path], bool] = whatever_is_there,
) -> FetchedFile:
    """Fetch a whole file to `target`, which is replaced only once everything has arrived and is verified.

    However it is interrupted, `target` is unchanged, and the next call continues with what is left beside it. The
    caller checks that there is room. Nothing is forced to the disk: after a crash of the machine (not of the process),
    only the hashes tell whether the file is complete. Without a known length or ranges, `source` is read as one stream,
    which cannot be resumed.

    `announce` is called with the hash of each 8 MiB block and the length, right before the file gets its name;
    `replaces` decides whether the file that is at `target` then may be replaced.
    """
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name that the file is to have."
        raise TargetExistsError(msg)
    make_folder(target.parent)
    cancellation.check()
    facts, checksum = source.facts, source.facts.checksum
    with contextlib.ExitStack() as stack:
        move_to: Callable[[Path, Callable[[Path], bool]], None]
        if facts.size is not None and facts.ranges:
            copy = StreamingCopy(source, target, step=step, policy=policy, cancellation=cancellation)
            fetched = _copied(stack.enter_context(copy), checksum, cancellation)
            move_to = copy.move_to
        else:
            temp = temp_beside(target)
            stack.callback(remove_own, temp)
            fetched = _streamed(source, temp, target, step=step, cancellation=cancellation, policy=policy)
            move_to = partial(_put, temp, facts)
        if checksum is not None and fetched.digest != checksum.digest:
            # Not announced, because no record of ours may vouch for it.
            damaged = free_name(target, ".damaged")
            move_to(damaged, replaces)
            msg = (
                f"'{facts.label}' arrived complete, but its {checksum.algorithm} is {fetched.digest}, not "
                f"{checksum.digest}. It is kept as '{damaged}', and '{target}' is as it was. If the checksum is the "
                "right one, delete the damaged file and fetch it again."
            )
            raise ChecksumMismatchError(msg)
        announce(fetched.block_hashes, fetched.nbytes)
        move_to(target, replaces)
    # If there were several interrupted copies, one was continued, and the others are no longer needed.
    sweep_orphans(target.parent, name=target.name)
    return fetched


def _copied(copy: StreamingCopy, checksum: Checksum | None, cancellation: Cancellation) -> FetchedFile:
    """Copy a file in parts; finished blocks stay for a later run."""
    try:
        copy.start()
        # Hashed while it arrives: at the end, a large file is no longer in the system's cache.
        pieces = pieces_of(copy.read_here, copy.size, cancellation)
        digest = None if checksum is None else checksum.digest_of(pieces)
        copy.wait()
    # The received bytes are from a state that no longer exists.
    except SourceChangedError:
        copy.discard()
        raise
    copy.end()
    return FetchedFile(copy.size, copy.kept_bytes, copy.block_hashes, digest)


def _streamed(
    source: RemoteFile, temp: Path, target: Path, *, step: ProgressStep, cancellation: Cancellation, policy: RetryPolicy
) -> FetchedFile:
    """Read all of a file in one pass into `temp`; a stream cannot be resumed, so nothing is left for a later run."""
    checksum, nbytes = source.facts.checksum, 0
    hasher = None if checksum is None else checksum.new_hasher()
    with typed_write_errors(target):
        file = temp.open("xb", buffering=0)
    with file:
        for piece in read_through(source, policy=policy, check=cancellation.check):
            with typed_write_errors(target):
                pwrite_exactly(file.fileno(), piece, nbytes)
            if hasher is not None:
                hasher.update(piece)
            nbytes += len(piece)
            step.advance(len(piece))
    hashes = hash_ranges(temp, block_ranges(nbytes, BLOCK_BYTES), threads=2, cancellation=cancellation)
    return FetchedFile(nbytes, 0, tuple(hashes), None if hasher is None else hasher.hexdigest())


# One file from a slow place to a fast one, or back, every block compared with its manifest.


def copy_file(
    source: Path,
    target: Path,
    manifest: Manifest,
    step: ProgressStep,
    cancellation: Cancellation,
    *,
    resume: bool = False,
) -> int:
    """Copy a file of the manifest's length in order, by one reader; return how many bytes an interrupted copy had left.

    `target` is a temporary name, and is overwritten; with `resume`, blocks in it with the right hash stay. A block that
    differs from the manifest is read again. On the simulated Drive, two readers take 1.15 times as long.
    """
    size = manifest.size
    with contextlib.closing(MountedFile(source)) as file:
        # Before anything is written: a file that is still being written would be copied in part.
        if (found := file.facts.size) != size:
            msg = f"'{source}' has {found:,} bytes; expected {size:,}. Wait until its upload or copy is complete."
            raise SourceReadError(msg)
        with typed_write_errors(target):
            if target.exists():
                cut_own(target, min(target.stat().st_size, size) if resume else 0)
        layout = Layout([target.name], [size], manifest.block_bytes, manifest.hashes)
        blocks = Blocks(target.parent, layout, "", shared=False, gives_back=False, is_noted=False)
        unused = [file]
        fetcher = Fetcher(
            str(source),
            blocks,
            # A mount may return the same wrong bytes to one handle for ever.
            [lambda: unused.pop() if unused else MountedFile(source)],
            lambda _: 1,
            policy=RetryPolicy(),
            on_bytes=step.advance,
        )
        kept_bytes = 0

        def begin() -> RangeOrder:
            nonlocal kept_bytes
            gaps = prove_rest(blocks, fetcher)
            kept_bytes = size - sum(end - begin for begin, end in gaps)
            step.start_at(kept_bytes)
            return RangeOrder(gaps, connections=1, block_bytes=manifest.block_bytes)

        fetcher.start(begin)
        try:
            _wait_for_all(blocks, fetcher, cancellation)
        finally:
            fetcher.close()
    # A mount may report only on closing that it could not keep the data.
    blocks.close()
    return kept_bytes
