"""Fetch blocks of remote files over several connections, each a thread, and let readers wait for their bytes.

A block counts once all of it has arrived, has the right hash, and is written. Where room is limited, it is in memory
until there is room for it; otherwise its bytes are written as they arrive, and can be read at once.

A failed connection is reopened at the byte where it stopped. The retry budget starts over with every byte that arrives
on any connection: a download of hours survives any number of interruptions. A connection that is refused while others
continue leaves its bytes to them, and retries ever more rarely. If all are refused, one of them keeps trying for as
long as the policy is patient, and reports what it waits for.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import threading
from typing import TYPE_CHECKING, Protocol

from colabstage.errors import DamagedPackError, SourceChangedError, SourceReadError
from colabstage.io.arguments import without_ours
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.sources.blocks import FETCHED, MISSING, UNPROVED, WHOLE
from colabstage.sources.order import ConnectionTuner
from colabstage.sources.remote import LEAST_BYTES_PER_S, TransientError
from colabstage.sources.retry import (
    LONGEST_WAIT_S,
    LOOK_S,
    RetryBudget,
    closing_pieces,
    ended_early,
    final_error,
    stopped_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from colabstage.io.files import RetryPolicy
    from colabstage.io.progress import Cancellation, Clock
    from colabstage.sources.blocks import Blocks
    from colabstage.sources.order import Run
    from colabstage.sources.remote import RemoteFacts, RemoteFile

# How often a block is fetched whose hash is wrong, before the source counts as damaged.
_BLOCK_TRIES = 3
# How long `close` waits for the threads; one that hangs in a dead mount's read cannot be interrupted.
_END_S = 5.0


class Order(Protocol):
    """Which bytes are fetched next. Every method is called with the fetcher's lock held."""

    look_s: float
    """How often a free connection looks whether there is something to do by now."""
    is_endless: bool
    """Whether more may be wanted when all of it is here."""

    def take(self, now: float) -> Run | None:
        """Return bytes for a free connection; `None` if nothing is worth a request now."""

    def advance(self, run: Run, position: int, now: float) -> None:
        """Note that the bytes of a run before `position` have arrived."""

    def release(self, run: Run, now: float) -> None:
        """Note that a run is no longer being fetched; the rest of it is handed out again."""

    def place(self, landed: Sequence[int]) -> int | None:
        """Return which of the blocks that have landed is to be written, for which there is room now."""

    def done(self, block: int) -> None:
        """Note that a block is written, or will not be."""

    def close(self) -> None:
        """Note that nothing more is fetched."""


class Remotes(Protocol):
    """The files that blocks come from."""

    def lend(self, number: int) -> AbstractContextManager[RemoteFile]:
        """Lend the file of a number."""

    def drop(self, number: int) -> None:
        """Open the file again for the next request."""

    def close(self) -> None:
        """Close all, each once nobody reads it."""


class OneRemote:
    """A single file that the caller has opened and closes."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file

    def lend(self, number: int) -> AbstractContextManager[RemoteFile]:
        """Lend it."""
        return contextlib.nullcontext(self._file)

    def drop(self, number: int) -> None:
        """Keep it: it is the caller's."""

    def close(self) -> None:
        """Keep it: it is the caller's."""


class Arriving:
    """One block that is on its way: which of its bytes have arrived, and, where it is written once it is verified,
    these."""

    def __init__(self, begin: int, end: int) -> None:
        import xxhash

        self.missing = end - begin
        self._end, self._hashed, self._hasher = end, begin, xxhash.xxh3_64()
        # By the address at which each piece begins; one that is written is only a length.
        self._offsets: list[int] = []
        self._pieces: dict[int, memoryview | int] = {}

    def add(self, data: memoryview, address: int, *, is_written: bool) -> None:
        """Take in new bytes."""
        bisect.insort(self._offsets, address)
        self._pieces[address] = len(data) if is_written else data
        self.missing -= len(data)
        # Bytes that have just arrived are still in the processor's cache.
        if address == self._hashed:
            self._hasher.update(data)
            self._hashed += len(data)

    def first_missing(self, begin: int, end: int) -> int | None:
        """Return the first missing byte of a range in the block; `None` if there is none."""
        place = bisect.bisect_right(self._offsets, begin) - 1
        reach = begin
        for offset in self._offsets[max(0, place) :]:
            if offset > reach or reach >= end:
                break
            piece = self._pieces[offset]
            reach = max(reach, offset + (piece if isinstance(piece, int) else len(piece)))
        return reach if reach < end else None

    @property
    def pieces(self) -> list[memoryview]:
        """Return the bytes that are in memory, in order."""
        found = (self._pieces[offset] for offset in self._offsets)
        return [piece for piece in found if not isinstance(piece, int)]

    def digest(self, blocks: Blocks) -> str:
        """Return the hash of the block, once all of it has arrived."""
        rest = self.pieces
        if rest:
            import xxhash

            hasher = self._hasher if self._hashed == self._end else xxhash.xxh3_64(b"".join(rest))
            return hasher.hexdigest()
        if self._hashed < self._end:
            self._hasher.update(blocks.read(self._hashed, self._end - self._hashed))
        return self._hasher.hexdigest()


class Fetcher:
    """Fetch what an order hands out. Call `start` once and `close` at the end; everything else from any thread.

    `landed`: the hashes of blocks that are verified and not written yet. `writing`: those that are being written.
    `failures`: of blocks that cannot be fetched, while others can, why. `error`: what ended fetching; `None` while it
    continues.
    """

    def __init__(
        self,
        label: str,
        blocks: Blocks,
        remotes: Remotes,
        tune: Callable[[RemoteFacts], ConnectionTuner],
        *,
        policy: RetryPolicy,
        stall_timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
        on_bytes: Callable[[int], object] = lambda _: None,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            label: what is fetched, for messages.
            blocks: where it goes.
            remotes: the files that blocks come from; closed with this.
            tune: returns the number of connections to a file.
            policy: `attempts` counts tries without a single byte of progress.
            stall_timeout_s: seconds without a byte after which waiting readers get an error.
            clock: times silence and the waits before retries.
            on_bytes: called with the number of bytes that have arrived, in any thread.
            on_wait: called with what is waited for, in any thread.
        """
        self.lock = threading.RLock()
        self.failures: dict[int, Exception] = {}
        self.error: BaseException | None = None
        # What is waited for, and how many bytes had come by then.
        self._waits = "", 0
        self._label, self._blocks, self._remotes = label, blocks, remotes
        self._policy, self._stall_timeout_s, self._clock = policy, stall_timeout_s, clock
        self._on_bytes, self._on_wait = on_bytes, on_wait
        self._moved, self._freed = threading.Condition(self.lock), threading.Condition(self.lock)
        self._order: Order | None = None
        self._tune, self._tuner = tune, ConnectionTuner(1, 1)
        self._is_tuned = False
        self._arriving: dict[int, Arriving] = {}
        self.landed: dict[int, str] = {}
        self._tries: dict[int, int] = {}
        # What each file is called in messages.
        self._labels: dict[int, str] = {}
        self._come = 0
        self.writing: set[int] = set()
        self._last_moved, self._fetched = clock.now(), 0
        self._window = (self._last_moved, 0)
        self._stopping = False
        # Connections, those of them that wait for work, and those that wait for their next try.
        self._working = self._idle = self._paused = 0
        self._threads: list[threading.Thread] = []

    def start(self, begin: Callable[[], Order]) -> None:
        """Start; `begin` is called in the first thread, for the order."""

        def connect() -> None:
            order = begin()
            with self.lock:
                self._order, self._working = order, 1
                self._touch()
                self._wake()
            self._connect()

        with self.lock:
            self._touch()
            self._spawn(connect)

    @property
    def has_begun(self) -> bool:
        """Tell whether there is an order by now."""
        return self._order is not None

    @property
    def waits_for(self) -> str:
        """Return why requested bytes are not arriving at present; "" if they are."""
        return self._waits[0] if self._waits[1] == self._come else ""

    @property
    def connections(self) -> int:
        """Return how many are open, or are to be."""
        return self._tuner.wanted

    def has_ended(self) -> bool:
        """Tell whether nothing is fetched any more."""
        return self._stopping or self.error is not None

    def wake(self) -> None:
        """Look for what is to be fetched now."""
        with self.lock:
            self._touch()
            self._freed.notify_all()

    def stop(self) -> None:
        """End soon, without waiting for it; never blocks."""
        self._stopping = True

    def close(self) -> bool:
        """Stop, and wait for the threads that can be stopped; return whether all have ended."""
        self.stop()
        with self.lock:
            self._end_order()
        deadline = SYSTEM_CLOCK.now() + _END_S  # threads end in real time only
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, deadline - SYSTEM_CLOCK.now()))
        self._remotes.close()
        have_ended = not any(thread.is_alive() for thread in self._threads)
        if have_ended:
            # An order may have this object, too.
            self._order = None
        return have_ended

    def first_missing(self, begin: int, end: int) -> int | None:
        """Return the first byte of a range in one file that has not arrived, with the lock held."""
        layout, state = self._blocks.layout, self._blocks.state
        while begin < end:
            block = begin // layout.block_bytes
            stop = min(end, layout.span(block)[1])
            if state[block] != WHOLE:
                arriving = self._arriving.get(block)
                missing = begin if arriving is None else arriving.first_missing(begin, stop)
                if missing is not None:
                    return missing
            begin = stop
        return None

    def wait_until(
        self, condition: Callable[[], bool], cancellation: Cancellation | None = None, *, look_s: float = LOOK_S
    ) -> None:
        """Wait until `condition`, which is called with the lock held.

        Raises:
            CancelledError: the caller asked to stop.
            BaseException: what ended fetching, or one that says that it stands still.
        """
        with self.lock:
            since = self._clock.now()
            while not condition():
                if self.error is not None:
                    # A new error for each waiting thread: one that several raise collects all their tracebacks. It
                    # keeps the first's, by which the caller's own errors are told from the source's.
                    raise copy.copy(self.error).with_traceback(self.error.__traceback__) from self.error
                # Otherwise threads would wait for those that have ended.
                if self._stopping:
                    raise stopped_error(self._label)
                if cancellation is not None:
                    cancellation.check()
                self._see_others()
                if self._clock.now() - max(since, self._last_moved) > self._stall_timeout_s:
                    raise self._stalled_error(how="not moved")
                # Otherwise single bytes now and then would count as progress.
                if self._crawls():
                    raise self._stalled_error(how="hardly moved")
                self._clock.wait(self._moved, look_s)

    def _see_others(self) -> None:
        """Count what other processes have fetched as progress."""
        if (fetched := int(self._blocks.counters[FETCHED])) != self._fetched:
            self._fetched, self._last_moved = fetched, self._clock.now()
            self._window = (self._last_moved, self._come)

    def _touch(self) -> None:
        """Begin to measure progress: nothing may have been requested until now, which is no stall of the source."""
        self._last_moved = self._clock.now()
        self._window = (self._last_moved, self._come)

    def touch(self) -> None:
        """As `_touch`, where more is requested than before; with the lock held."""
        self._touch()
        self._freed.notify_all()

    def _crawls(self) -> bool:
        """Return whether all connections together have recently delivered less than anybody would wait for."""
        began, come = self._window
        seconds = self._clock.now() - began
        if self._order is None or seconds < self._stall_timeout_s:
            return False
        # Judged window by window, because a mean over hours would hide a standstill.
        self._window = (self._clock.now(), self._come)
        return self._come - come < LEAST_BYTES_PER_S * seconds

    def _stalled_error(self, *, how: str) -> SourceReadError:
        blocks = self._blocks
        here = int(blocks.layout.lengths[blocks.state == WHOLE].sum())
        msg = (
            f"The copy of '{self._label}' has {how} for {self._stall_timeout_s:.0f} seconds, "
            f"{here:,} of {blocks.layout.size:,} bytes are here. Run this once more: finished blocks are kept. "
            "If it is on Google Drive, end its client before (!pkill -9 -x drive) and call mount_drive()."
        )
        return SourceReadError(msg)

    def _end_order(self) -> None:
        if self._order is not None:
            self._order.close()
        self._wake()

    def _wake(self) -> None:
        self._moved.notify_all()
        self._freed.notify_all()

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name="colabstage-fetch", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in those that wait for the bytes
            self.fail(error)
        finally:
            if self.has_ended():
                self._remotes.close()

    def fail(self, error: BaseException) -> None:
        """End fetching with an error."""
        with self.lock:
            # The first failure is the cause; the others follow from it, or from closing.
            if not self.has_ended():
                self.error = _without_frames(error)
            self._end_order()

    def _grow(self) -> None:
        """Open as many connections as are wanted, with the lock held."""
        while self._working < self._tuner.wanted and not self.has_ended():
            self._working += 1
            self._spawn(self._connect)

    def _connect(self) -> None:
        """Work as one connection: run after run until nothing is left to do."""
        budget = RetryBudget(self._policy, self._clock)
        while (run := self._next_run()) is not None:
            while run.left and not self.has_ended():
                try:
                    if not self._proves(run):
                        self._fetch(run)
                except TransientError as error:
                    self._continue_after(error, run, budget)
                except SourceChangedError as error:
                    # The file may have been written again with the same content: the hash of each block tells.
                    if not self._blocks.layout.hashes[run.begin // self._blocks.layout.block_bytes]:
                        raise
                    self._reject(run.begin // self._blocks.layout.block_bytes, run, error)
                # Received bytes prove that the connection works again.
                else:
                    budget = RetryBudget(self._policy, self._clock)

    def _next_run(self) -> Run | None:
        """Return what this connection is to fetch, once there is something; `None` when it is to end."""
        assert self._order is not None
        while not self.has_ended():
            self.write_landed()
            with self.lock:
                # The last one did not increase the total rate, so one of them ends.
                if self._working > self._tuner.wanted:
                    self._working -= 1
                    return None
                if self.has_ended() or (self._is_done() and not self._order.is_endless):
                    return None
                if (run := self._order.take(self._clock.now())) is not None:
                    return run
                # One of the free connections looks for work; the others are woken.
                self._idle += 1
                self._clock.wait(self._freed, self._order.look_s if self._idle == 1 else LOOK_S)
                self._idle -= 1
        return None

    def _proves(self, run: Run) -> bool:
        """Return whether a block that was in doubt is right, so that nothing has to be fetched."""
        block = run.begin // self._blocks.layout.block_bytes
        if self._blocks.state[block] != UNPROVED:
            return False
        self._blocks.prove(block)
        if self._blocks.state[block] != WHOLE:
            return False
        with self.lock:
            assert self._order is not None
            self._order.advance(run, run.end, self._clock.now())
            self._touch()
            self._moved.notify_all()
        return True

    def _fetch(self, run: Run) -> None:
        """Request the rest of a run, and take it in as it arrives."""
        layout = self._blocks.layout
        number, offset = layout.find(run.position)
        block = run.position // layout.block_bytes
        with self._remotes.lend(number) as remote:
            # A hash proves more than a version, without a request. After a wrong one the question is worth a round
            # trip: "changed" says more than "damaged".
            is_hashed = layout.hashes[block] and not self._tries.get(block)
            asked = remote.without_version_check() if is_hashed else remote
            with self.lock:
                run.ask_again(self._clock.now())
                self._labels[number] = remote.facts.label
                if not self._is_tuned:
                    self._is_tuned, self._tuner = True, self._tune(remote.facts)
                    self._grow()
            with closing_pieces(asked.read_range(offset, run.left)) as pieces:
                for piece in pieces:
                    if not self._take_in(run, memoryview(piece)):
                        return
            if run.left:
                raise ended_early(remote.facts, offset + run.position - run.begin)

    def _take_in(self, run: Run, data: memoryview) -> bool:
        """Take in a piece; return whether the run continues."""
        with self.lock:
            if self.has_ended():
                return False
            data, address = data[: run.left], run.position
        is_written = not self._blocks.gives_back
        if is_written:
            self._blocks.write(data, address)
        with self.lock:
            if self.has_ended():
                return False
            assert self._order is not None
            # Another connection may have taken the end over meanwhile.
            data, now = data[: run.left], self._clock.now()
            complete = self._store(data, address, is_written=is_written)
            waited = bool(data and self.waits_for)
            if data:
                self._come += len(data)
                self._last_moved = now
                self._order.advance(run, address + len(data), now)
                self._tuner.look(now, self._come)
                self._grow()
                self._moved.notify_all()
        if waited:
            self._on_wait("")
        if data:
            self._on_bytes(len(data))
        for block in complete:
            self._land(block, run)
        return run.left > 0

    def _store(self, data: memoryview, address: int, *, is_written: bool) -> list[int]:
        """Take in bytes with the lock held; return the blocks that are complete by them."""
        complete, layout = [], self._blocks.layout
        while data:
            block = address // layout.block_bytes
            begin, end = layout.span(block)
            arriving = self._arriving.get(block)
            if arriving is None:
                arriving = self._arriving[block] = Arriving(begin, end)
            part, data = data[: end - address], data[end - address :]
            arriving.add(part, address, is_written=is_written)
            if not arriving.missing:
                complete.append(block)
            address += len(part)
        return complete

    def _land(self, block: int, run: Run) -> None:
        """Verify a block that has arrived, and write it if there is room."""
        digest, expected = self._arriving[block].digest(self._blocks), self._blocks.layout.hashes[block]
        if expected and digest != expected:
            self._reject(block, run, None)
            return
        with self.lock:
            self.landed[block] = digest
        self.write_landed()

    def write_landed(self) -> None:
        """Write the blocks for which there is room now, and note them."""
        while self.landed and not self.has_ended():
            with self.lock:
                assert self._order is not None
                waiting = [block for block in self.landed if block not in self.writing]
                block = self._order.place(waiting) if waiting and not self.has_ended() else None
                if block is None:
                    return
                self.writing.add(block)
                pieces, digest = self._arriving[block].pieces, self.landed[block]
            try:
                self._blocks.put(block, pieces, digest)
            finally:
                with self.lock:
                    self.writing.discard(block)
                    self.forget(block)
                    self._order.done(block)
                    self._wake()

    def forget(self, block: int) -> None:
        """Drop what is in memory of a block, with the lock held."""
        self.landed.pop(block, None)
        self._arriving.pop(block, None)

    def _reject(self, block: int, run: Run, error: SourceChangedError | None) -> None:
        """Fetch a block again that has arrived wrong, or came from another version; a few times."""
        number, offset, length = self._blocks.layout.locate(block)
        with self.lock:
            assert self._order is not None
            self.forget(block)
            self._tries[block] = tries = self._tries.get(block, 0) + 1
            if tries >= _BLOCK_TRIES:
                del self._tries[block]
                msg = (
                    f"'{self._labels[number]}' is damaged: the {length:,} bytes from {offset:,} on are not those that "
                    f"were written, in {_BLOCK_TRIES} readings."
                )
                self.failures[block] = error or DamagedPackError(msg)
            # From its beginning; whatever else the run would have fetched is handed out again too.
            run.position = min(run.position, self._blocks.layout.span(block)[0])
            self._order.release(run, self._clock.now())
            self._wake()
        self._remotes.drop(number)

    def _continue_after(self, error: TransientError, run: Run, budget: RetryBudget) -> None:
        """Wait as long as the failure requires; end fetching if no connection has a try left."""
        with self.lock:
            assert self._order is not None
            moved, come = run.position > run.begin, self._come
            wait_s = budget.count(error, arrived=come, moved=moved)
            in_time = wait_s <= self._stall_timeout_s
            spent = budget.is_spent or not in_time
            last = spent and self._working - self._idle == 1
            # Others that deliver take over from one that is refused.
            if spent or (not moved and self._working - self._idle - self._paused > 1):
                self._order.release(run, self._clock.now())
                self._freed.notify_all()
            if last and not (in_time and budget.is_patient):
                self.fail(final_error(error, self._label, budget.tries))
                return
            resting = spent and not last
            self._working -= resting
            if last:
                self._waits = budget.waits_for, come
        if last:
            # Outside the lock: whoever shows progress may be slow.
            self._on_wait(budget.waits_for)
        with self.lock:
            self._paused += not resting
            self._pause(min(wait_s, LONGEST_WAIT_S) if resting else wait_s)
            self._paused -= not resting
            # Its tries are used up: it does not retry before another connection has received something.
            while resting and not self.has_ended() and self._come == come:
                self._clock.wait(self._freed, LOOK_S)
            self._working += resting

    def _pause(self, seconds: float) -> None:
        """Wait with the lock held."""
        deadline = self._clock.now() + seconds
        while not self.has_ended() and not self._is_done():
            left_s = deadline - self._clock.now()
            if left_s <= 0:
                return
            self._clock.wait(self._freed, min(left_s, LOOK_S))

    def _is_done(self) -> bool:
        return not self._arriving and not bool((self._blocks.state == MISSING).any())


def _without_frames(error: BaseException) -> BaseException:
    """Return an error without the frames that it passed, which would keep the files open that they use. An error of the
    caller's own code keeps them, because it is known by them."""
    if without_ours(error.__traceback__) is not None:
        return error
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
