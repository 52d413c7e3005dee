"""Transfer one file of known size over several connections, each a thread, and let readers wait for its bytes.

A failed connection is reopened at the byte where it stopped. The retry budget starts over with every byte that arrives
on any connection: a download of hours survives any number of interruptions. A connection that is refused while others
continue leaves its byte range to them, and retries ever more rarely. If all are refused, one of them keeps trying for
as long as the policy is patient, and reports what it waits for.
"""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from typing import TYPE_CHECKING

from colabstage.errors import SourceChangedError, SourceReadError, ended, said_by
from colabstage.io.files import translate_read_error
from colabstage.io.progress import SYSTEM_CLOCK, annotate, start_at
from colabstage.sources.remote import LEAST_BYTES_PER_S, TransientError
from colabstage.sources.transfer.byte_ranges import ConnectionTuner, FlightLimit, IntervalSet, RangeScheduler
from colabstage.sources.transfer.partial_file import BLOCK_BYTES, BlockHashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from colabstage.io.files import RetryPolicy
    from colabstage.io.progress import Cancellation, Clock, ProgressStep
    from colabstage.sources.remote import RemoteFacts, RemoteFile
    from colabstage.sources.transfer.byte_ranges import ByteRange
    from colabstage.sources.transfer.partial_file import PartialFile

# How often a waiting thread checks whether it should stop; no wait is longer than this.
LOOK_S = 0.25
# How often a free connection looks for another that has become slow.
_IDLE_LOOK_S = 0.05
_LONGEST_WAIT_S = 30.0
# While nothing arrives at all, somebody is waiting for that to end.
_LONGEST_PATIENT_WAIT_S = 5.0
# Services that ask for a longer pause are asked again after this one.
_LONGEST_ASKED_WAIT_S = 60.0
# A read this far ahead of the bytes in flight is worth a separate request.
FAR_BYTES = 8 * 1024 * 1024
# A connection for less than this would end before the first one reaches full speed.
_LEAST_BYTES = 1024 * 1024
# How long `close` waits for the threads; one that hangs in a dead mount's read cannot be interrupted.
_END_S = 5.0


class Transfer:
    """Transfer one file into a `PartialFile`. Call `start` once and `close` at the end; everything else from any
    thread.

    `kept_bytes`: finished by an earlier run and reused by this one.
    """

    def __init__(
        self,
        source: RemoteFile,
        partial: PartialFile,
        *,
        step: ProgressStep,
        policy: RetryPolicy,
        connections: int,
        stall_timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        facts = source.facts
        assert facts.size is not None
        self.kept_bytes = 0
        self._source = source
        self._label = facts.label
        self._size = facts.size
        self._partial = partial
        self._blocks = partial.blocks
        self._step = step
        self._policy = policy
        self._connections = connections
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._freed = threading.Condition(self._lock)
        self._arrived = IntervalSet()
        self._plan: RangeScheduler | None = None
        self._wanted: list[tuple[int, int]] = []
        self._brings_rest = True
        self._tuner = ConnectionTuner(1, 1)
        self._limit: FlightLimit | None = None
        self._noted = 0
        self._last_moved = clock.now()
        self._window = (self._last_moved, 0)
        self._error: BaseException | None = None
        self._waits_for = ""
        self._stopping = False
        self._working = 0
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start: verify what an earlier run has left, then fetch the rest."""
        with self._lock:
            self._last_moved = self._clock.now()
            self._spawn(self._begin)

    @property
    def waits_for(self) -> str:
        """Return why requested bytes are not arriving at present; "" if they are."""
        return self._waits_for

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Fetch these byte ranges `(begin, end)` first, in this order; requests in flight continue. `alone`: the rest
        only if somebody waits for the whole file, or patiently for a part."""
        with self._lock:
            self._wanted, self._brings_rest = list(byte_ranges), not alone
            if self._plan is not None:
                self._plan.prefer(self._wanted)
                self._plan.brings_rest = self._brings_rest

    def close(self) -> None:
        """Stop, and wait for the threads that can be stopped."""
        with self._lock:
            self._stopping = True
            self._wake()
        deadline = SYSTEM_CLOCK.now() + _END_S  # threads end in real time only
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - SYSTEM_CLOCK.now()))

    def wait(self, cancellation: Cancellation | None = None) -> None:
        """Return once every block has arrived and is noted.

        Raises:
            CancelledError: the caller asked to stop.
            BaseException: what ended the transfer.
        """
        with self._lock:
            self._bring_rest()
            self._wait_until(lambda: self._noted == len(self._blocks), cancellation)

    def wait_for(self, begin: int, end: int, *, patient: bool, cancellation: Cancellation | None = None) -> bool:
        """Wait until these bytes have arrived; return `False`, unless `patient`, if they are too far ahead to wait for.

        Raises:
            As `wait`.
        """
        far = False

        def here_or_far() -> bool:
            nonlocal far
            missing = self._arrived.first_missing(begin, end)
            far = missing is not None and not patient and self._is_far(missing)
            return missing is None or far

        with self._lock:
            if patient and self._arrived.first_missing(begin, end) is not None:
                self._bring_rest()
            self._wait_until(here_or_far, cancellation)
        return not far

    def _bring_rest(self) -> None:
        """Fetch the rest as well from now on, with the lock held."""
        if self._brings_rest:
            return
        self._brings_rest = True
        # Nothing may have been requested until now, which is not a stall of the source.
        self._last_moved = self._clock.now()
        self._window = (self._last_moved, self._arrived.total)
        if self._plan is not None:
            self._plan.brings_rest = True
            self._freed.notify_all()

    def _is_far(self, offset: int) -> bool:
        """Return whether a missing byte will not arrive soon."""
        if self._plan is None:
            return offset >= FAR_BYTES
        for byte_range in self._plan.active:
            if byte_range.position <= offset < byte_range.end:
                return offset - byte_range.position > FAR_BYTES
        # Reads in the preferred order are served sooner than by separate requests.
        if self._plan.is_preferred(offset, FAR_BYTES * self._connections):
            return False
        if not self._brings_rest and not self._plan.is_preferred(offset, self._size):
            return True
        front = self._plan.front
        return front is not None and offset - front > FAR_BYTES

    def _wait_until(self, condition: Callable[[], bool], cancellation: Cancellation | None) -> None:
        """Wait with the lock held; raises the error that ended the transfer, or one if it stalls."""
        since = self._clock.now()
        while not condition():
            if self._error is not None:
                # A new error for each waiting thread: one that several threads raise collects all their tracebacks.
                raise copy.copy(self._error).with_traceback(self._error.__traceback__) from self._error
            # Otherwise other threads would wait for threads that have ended.
            if self._stopping:
                raise stopped_error(self._label)
            if cancellation is not None:
                cancellation.check()
            if self._clock.now() - max(since, self._last_moved) > self._stall_timeout_s:
                raise self._stalled_error(at_all=True)
            # Otherwise single bytes now and then would count as progress.
            if self._crawls():
                raise self._stalled_error(at_all=False)
            self._clock.wait(self._moved, LOOK_S)

    def _crawls(self) -> bool:
        """Return whether all connections together have recently delivered less than anybody would wait for."""
        began, total = self._window
        seconds = self._clock.now() - began
        if self._plan is None or self._arrived.total == self._size or seconds < self._stall_timeout_s:
            return False
        # Judged window by window, because a mean over hours would hide a standstill.
        self._window = (self._clock.now(), self._arrived.total)
        return self._arrived.total - total < LEAST_BYTES_PER_S * seconds

    def _stalled_error(self, *, at_all: bool) -> SourceReadError:
        how = "not moved" if at_all else "hardly moved"
        msg = (
            f"The copy of '{self._label}' has {how} for {self._stall_timeout_s:.0f} seconds, "
            f"{self._arrived.total:,} of {self._size:,} bytes are here. Run this once more: finished blocks are kept. "
            "If it is on Google Drive, end its client before (!pkill -9 -x drive) and call mount_drive()."
        )
        return SourceReadError(msg)

    def _wake(self) -> None:
        self._moved.notify_all()
        self._freed.notify_all()

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name="colabstage-fetch", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the bytes
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            # The first failure is the cause; the others follow from it, or from closing.
            if self._error is None and not self._stopping:
                self._error = error
            self._wake()

    def _begin(self) -> None:
        """Count the kept bytes, then become the first connection."""
        self._partial.verify(lambda: self._stopping)
        kept = [self._blocks[number] for number in sorted(self._partial.finished)]
        with self._lock:
            for offset, length in kept:
                self._arrived.add(offset, offset + length)
            self._noted = len(kept)
            self.kept_bytes = self._arrived.total
            gaps = self._arrived.missing(self._size)
            missing = self._size - self._arrived.total
            # A connection costs a round trip or more, too much for a small rest.
            connections = max(1, min(self._connections, -(-missing // _LEAST_BYTES)))
            self._plan = RangeScheduler(gaps, connections=connections, block_bytes=BLOCK_BYTES)
            self._plan.prefer(self._wanted)
            self._plan.brings_rest = self._brings_rest
            self._last_moved = self._clock.now()
            self._window = (self._last_moved, self._arrived.total)
            eager = self._source.facts.eager
            self._tuner = ConnectionTuner(connections if eager else 1, connections)
            if eager:
                self._limit = FlightLimit(enough=self._plan.enough_under_way, under_way=self._plan.under_way)
            self._working = 1
            self._wake()
            self._grow()
        # Outside the lock: whoever shows progress may be slow.
        if kept:
            start_at(self._step, sum(length for _, length in kept))
        self._connect()

    def _connect(self) -> None:
        """Work as one connection: range after range until nothing is left to do."""
        budget, hashes = RetryBudget(self._policy, self._clock), BlockHashes(self._size)
        while (byte_range := self._next_range()) is not None:
            while byte_range.left and not self._ended():
                try:
                    self._fetch(byte_range, hashes)
                except TransientError as error:
                    self._go_on_after(error, byte_range, budget)
                # Received bytes prove that the connection works again.
                else:
                    budget = RetryBudget(self._policy, self._clock)

    def _grow(self) -> None:
        """Open as many connections as are wanted, with the lock held."""
        while self._working < self._tuner.wanted and not self._ended():
            self._working += 1
            self._spawn(self._connect)

    def _next_range(self) -> ByteRange | None:
        with self._lock:
            assert self._plan is not None
            while not self._ended() and self._arrived.total < self._size:
                # The last one did not increase the total rate, so one of them ends.
                if self._working > self._tuner.wanted:
                    self._working -= 1
                    return None
                byte_range = self._plan.take(self._clock.now())
                if byte_range is not None:
                    return byte_range
                self._clock.wait(self._freed, _IDLE_LOOK_S)
            return None

    def _ended(self) -> bool:
        return self._stopping or self._error is not None

    def _fetch(self, byte_range: ByteRange, hashes: BlockHashes) -> None:
        """Request the rest of a range, and write it as it arrives."""
        with self._lock:
            assert self._plan is not None
            self._plan.ask_again(byte_range, self._clock.now())
        with closing_pieces(self._source.read_range(byte_range.position, byte_range.left)) as pieces:
            for piece in pieces:
                if not self._take_in(byte_range, memoryview(piece), hashes):
                    return
        if byte_range.left:
            raise _ended_early(self._source.facts, byte_range.position)

    def _take_in(self, byte_range: ByteRange, data: memoryview, hashes: BlockHashes) -> bool:
        """Write a piece at its position; return whether the range continues."""
        with self._lock:
            if self._ended():
                return False
            offset, data = byte_range.position, data[: byte_range.left]
        end = offset + len(data)
        self._partial.write(data, offset)
        hashed = hashes.feed(data, offset)
        with self._lock:
            assert self._plan is not None
            was_whole = self._whole_blocks(offset, end)
            new = self._arrived.add(offset, end)
            waited, now = bool(new and self._waits_for), self._clock.now()
            self._waits_for = "" if new else self._waits_for
            if data:
                self._plan.advance(byte_range, end, now)
            if new:
                self._last_moved = now
                if self._tuner.is_due(now):
                    self._tuner.look(now, self._arrived.total)
                    self._grow()
                if self._limit is not None and self._limit.is_due(now):
                    self._limit.look(now, self._arrived.total)
                    self._plan.most_under_way = self._limit.most
                if self._plan.has_room(now):
                    self._freed.notify()
            finished = [number for number in self._whole_blocks(offset, end) if number not in was_whole]
            self._moved.notify_all()
        if waited:
            annotate(self._step, "")
        # Only bytes that no other connection had delivered count.
        if new:
            self._step.advance(new)
        for number in finished:
            self._finish_block(number, hashed.get(number))
        return byte_range.left > 0

    def _whole_blocks(self, begin: int, end: int) -> list[int]:
        numbers = range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        ranges = ((number, *self._blocks[number]) for number in numbers)
        return [n for n, offset, length in ranges if self._arrived.first_missing(offset, offset + length) is None]

    def _finish_block(self, number: int, digest: str | None) -> None:
        if digest is None:
            # It arrived over several connections, so none of them hashed all of it in order.
            digest = self._partial.hash_block(number)
        self._partial.note(number, digest)
        with self._lock:
            self._noted += 1
            if self._noted == len(self._blocks):
                self._wake()

    def _go_on_after(self, error: TransientError, byte_range: ByteRange, budget: RetryBudget) -> None:
        """Wait as long as the failure requires; end the transfer if no connection has a try left."""
        with self._lock:
            assert self._plan is not None
            moved = byte_range.position > byte_range.begin
            arrived = self._arrived.total
            wait_s = budget.count(error, arrived=arrived, moved=moved)
            in_time = wait_s <= self._stall_timeout_s
            spent = budget.is_spent or not in_time
            last = spent and self._working == 1
            if spent or (not moved and self._working > 1):
                self._plan.finish(byte_range, self._clock.now())
                self._freed.notify_all()
            if last and not (in_time and budget.is_patient):
                self._error = self._error or final_error(error, self._label, budget.tries)
                self._wake()
                return
            resting = spent and not last
            self._working -= resting
            if last:
                self._waits_for = budget.waits_for
        if last:
            # Outside the lock: whoever shows progress may be slow.
            annotate(self._step, budget.waits_for)
        with self._lock:
            self._pause(min(wait_s, _LONGEST_WAIT_S) if resting else wait_s)
            # Its tries are used up: it does not retry before another connection has received something.
            while resting and not self._ended() and self._arrived.total == arrived:
                self._clock.wait(self._freed, LOOK_S)
            self._working += resting

    def _pause(self, seconds: float) -> None:
        """Wait with the lock held."""
        deadline = self._clock.now() + seconds
        while not self._ended() and self._arrived.total < self._size:
            left_s = deadline - self._clock.now()
            if left_s <= 0:
                return
            self._clock.wait(self._freed, min(left_s, LOOK_S))


class RetryBudget:
    """Count the tries of one connection, or of one reader.

    `tries`: since the last byte of the file arrived, including the latest failure. `is_spent`: whether the policy's
    attempts are used up. `is_patient`: whether to retry anyway, because the policy's `patience_s` are not over;
    `waits_for` then says what it waits for.
    """

    def __init__(self, policy: RetryPolicy, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tries = 0
        self.is_spent = self.is_patient = False
        self.waits_for = ""
        self._policy, self._clock = policy, clock
        self._refusals = 0
        self._arrived = -1
        self._since = 0.0

    def count(self, error: TransientError, *, arrived: int, moved: bool = False) -> float:
        """Count a failure, and return the seconds before the next try: as many as the service asked for.

        Args:
            error: the failure. If it is one of slowness, the bytes that arrived do not count.
            arrived: how many bytes of the file have arrived on all connections.
            moved: whether this connection received some of them since its last failure.
        """
        self._refusals = 1 if moved else self._refusals + 1
        if error.slow or arrived == self._arrived:
            self.tries += 1
        else:
            self.tries, self._since = 1, self._clock.now()
        self._arrived = arrived
        self.is_spent = self.tries >= self._policy.attempts
        patience_s = 0.0 if _is_of_a_mount(error) else self._policy.patience_s
        self.is_patient = self._clock.now() - self._since < patience_s
        waits = self.is_spent and self.is_patient
        self.waits_for = f"{ended(said_by(error))} It is asked again for {patience_s:.0f} s." if waits else ""
        longest_s = _LONGEST_PATIENT_WAIT_S if waits else _LONGEST_WAIT_S
        own_s = float(min(self._policy.first_wait_s * 2 ** min(self._refusals - 1, 16), longest_s))
        if error.wait_s is None:
            return own_s
        # "At once" must not mean a thousand requests a minute.
        return max(error.wait_s, own_s) if self.is_spent else error.wait_s

    def rest(
        self,
        error: TransientError,
        label: str,
        *,
        arrived: int,
        sleep: Callable[[float], object],
        tell: Callable[[str], object],
    ) -> None:
        """Count a failure as `count` does, `tell` what it waits for, and `sleep` until the next try: for a single
        reader. At most a minute, because longer would look like hanging.

        Raises:
            OSError: as `final_error`: tries and patience are used up.
        """
        wait_s = self.count(error, arrived=arrived)
        if self.is_spent and not self.is_patient:
            raise final_error(error, label, self.tries) from error
        tell(self.waits_for)
        sleep(min(wait_s, _LONGEST_ASKED_WAIT_S))


def final_error(error: TransientError, label: str, tries: int) -> OSError:
    """Return the error for a transient failure that has lasted too long."""
    if _is_of_a_mount(error):
        assert isinstance(error.__cause__, OSError)
        return translate_read_error(error.__cause__, label, tries)
    often = "1 try" if tries == 1 else f"{tries} tries"
    asked = f" The other side asked to wait {error.wait_s:.0f} seconds." if error.wait_s else ""
    return SourceReadError(f"{error} Given up after {often} without a byte.{asked} What has arrived is kept.")


def _is_of_a_mount(error: TransientError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno is not None


def stopped_error(label: str) -> SourceReadError:
    """Return the error for readers that wait for bytes of a stopped copy."""
    return SourceReadError(f"The copy of '{label}' was stopped before all of it was here.")


def _ended_early(facts: RemoteFacts, position: int) -> TransientError:
    why = "more had come before" if facts.size is None else f"it is listed with {facts.size:,}"
    return TransientError(f"'{facts.label}' ends at byte {position:,} although {why}.")


@contextlib.contextmanager
def closing_pieces(pieces: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """Close the connection when the block ends, however it ends."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def read_directly(
    source: RemoteFile,
    offset: int,
    length: int,
    *,
    policy: RetryPolicy,
    stopped: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM_CLOCK,
    tell: Callable[[str], object] = lambda _: None,
) -> bytes:
    """Return a part of a source with a separate request; the retry budget starts over with every byte. If the policy is
    patient, `tell` is called with what it waits for.

    Raises:
        As `RemoteFile.read_range`, but no `TransientError`.
    """
    # Its buffer becomes the result without a copy.
    data = io.BytesIO()
    got = 0
    budget = RetryBudget(policy, clock)

    def sleep(seconds: float) -> None:
        deadline = clock.now() + seconds
        while (left_s := deadline - clock.now()) > 0 and not stopped():
            clock.sleep(min(left_s, LOOK_S))

    while got < length:
        try:
            with closing_pieces(source.read_range(offset + got, length - got)) as pieces:
                for piece in pieces:
                    got += data.write(piece[: length - got])
                    if got < length and stopped():
                        raise stopped_error(source.facts.label)
            if got < length:
                raise _ended_early(source.facts, offset + got)
        except TransientError as error:
            budget.rest(error, source.facts.label, arrived=got, sleep=sleep, tell=tell)
            if stopped():
                raise stopped_error(source.facts.label) from error
    return data.getvalue()


def read_through(
    source: RemoteFile,
    *,
    policy: RetryPolicy,
    cancellation: Cancellation | None = None,
    clock: Clock = SYSTEM_CLOCK,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[bytes]:
    """Yield all of a source in one pass; the retry budget starts over with every byte. `tell` as of `read_directly`.

    If it breaks off, a source without ranges sends the received bytes again. They are compared by their hash, so that
    they need not be kept, and skipped.

    Raises:
        SourceChangedError: the file has changed meanwhile.
        CancelledError: the caller asked to stop.
        As `RemoteFile.read_range`, but no `TransientError`.
    """
    import xxhash

    sleep = clock.sleep if cancellation is None else cancellation.sleep
    facts, budget = source.facts, RetryBudget(policy, clock)
    seen, done = xxhash.xxh3_64(), 0
    while True:
        begin = at = done if facts.ranges else 0
        again = xxhash.xxh3_64()
        length = None if facts.size is None else facts.size - begin
        try:
            with closing_pieces(source.read_range(begin, length)) as pieces:
                for piece in pieces:
                    if cancellation is not None:
                        cancellation.check()
                    known, at = piece[: max(0, done - at)], at + len(piece)
                    again.update(known)
                    if known and at >= done and again.digest() != seen.digest():
                        msg = f"'{facts.label}' became another file while it was read. Wait until it is complete."
                        raise SourceChangedError(msg)
                    if new := piece[len(known) :]:
                        seen.update(new)
                        done += len(new)
                        yield new
            if at >= (done if facts.size is None else facts.size):
                return
            # A proxy may have cut it short, which is worth another try.
            failure = _ended_early(facts, at)
        except TransientError as error:
            failure = error
        budget.rest(failure, facts.label, arrived=done, sleep=sleep, tell=tell)
