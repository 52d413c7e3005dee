"""Fetch blocks of remote files over several connections, each a thread, and let readers wait for their bytes.

Bytes are written as they arrive, and can be read at once by readers of this process. A block counts once all of it has
arrived and has the right hash.

A failed connection is reopened at the byte where it stopped. The retry budget starts over with every byte that arrives
on any connection: a download of hours survives any number of interruptions. A connection that is refused while others
continue leaves its bytes to them and ends; it is opened again when another block has arrived. If all are refused, the
last one keeps trying for as long as the policy is patient, and reports what it waits for.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import ColabstageError, DamagedPackError, SourceChangedError, SourceReadError
from colabstage.io.files import RetryPolicy, hash_block
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock
from colabstage.sources.blocks import FETCHED, MISSING, UNPROVED, WHOLE, Blocks
from colabstage.sources.remote import (
    LOOK_S,
    RemoteFacts,
    RemoteFile,
    RetryBudget,
    TransientError,
    closing_pieces,
    ended_early,
    final_error,
    stopped_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from colabstage.sources.order import Order, Run

# After so long without a byte, waiting readers get an error.
_STALL_S = 180.0
# How often a block with a wrong hash is fetched before the source counts as damaged.
_BLOCK_TRIES = 3
# How long `close` waits for the threads; one that hangs in a dead mount's read cannot be interrupted.
_END_S = 5.0
# Remote files that are open at once; a pack may have thousands.
_MOST_OPEN = 16


class Remotes:
    """The remote files that blocks come from, each opened when it is first needed."""

    def __init__(
        self, label: str, sizes: Sequence[int], openers: Sequence[Callable[[], RemoteFile]], *, closes: bool
    ) -> None:
        self._label, self._sizes, self._openers, self._closes = label, sizes, openers, closes
        self._opening, self._lock = [threading.Lock() for _ in sizes], threading.Lock()
        # By the number of the file, the one opened first in front.
        self._open: dict[int, RemoteFile] = {}
        # Of all that are not closed; those that are no longer lent to anybody new too.
        self._users: Counter[RemoteFile] = Counter()
        self._closed = False

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[RemoteFile]:
        """Lend the file with this number, and keep it open meanwhile."""
        # The lock of all is free meanwhile, because a mount or a service may hang, and closing must not wait.
        with self._opening[number]:
            remote = self._taken(number) or self._added(number, self._openers[number]())
        try:
            yield remote
        finally:
            with self._lock:
                self._users[remote] -= 1
            self._close_unused()

    def _taken(self, number: int) -> RemoteFile | None:
        with self._lock:
            # An abandoned thread would open a file that nobody closes any more.
            if self._closed:
                raise stopped_error(self._label)
            if (remote := self._open.get(number)) is not None:
                self._users[remote] += 1
            return remote

    def _added(self, number: int, remote: RemoteFile) -> RemoteFile:
        size, expected = remote.facts.size, self._sizes[number]
        if size is not None and size != expected:
            remote.close()
            msg = f"'{remote.facts.label}' has {size:,} bytes; expected {expected:,}: it is another file now."
            raise SourceChangedError(msg)
        with self._lock:
            # Otherwise it is closed after its first use.
            if not self._closed:
                while len(self._open) >= _MOST_OPEN:
                    del self._open[next(iter(self._open))]
                self._open[number] = remote
            self._users[remote] += 1
        return remote

    def drop(self, number: int) -> None:
        """Open the file again for the next request: a new connection may not have this one's fault."""
        with self._lock:
            self._open.pop(number, None)
        self._close_unused()

    def interrupt(self) -> None:
        """Wake threads that wait for a service."""
        with self._lock:
            reading = [one for one, users in self._users.items() if users]
        for one in reading:
            one.interrupt()

    def close(self) -> None:
        """Close all, each once nobody reads it."""
        with self._lock:
            self._closed = True
            self._open.clear()
        self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            unused = [one for one, users in self._users.items() if not users and one not in self._open.values()]
            for one in unused:
                del self._users[one]
        for one in unused if self._closes else ():
            one.close()


class Arriving:
    def __init__(self, begin: int, end: int) -> None:
        import xxhash

        self.missing = end - begin
        self._end, self._hashed, self._hasher = end, begin, xxhash.xxh3_64()
        # The ranges of addresses that have arrived, in order; two of them may touch.
        self._stretches: list[list[int]] = []

    def add(self, data: bytes | memoryview, address: int) -> None:
        end = address + len(data)
        number = bisect.bisect_right(self._stretches, [address])
        if number and self._stretches[number - 1][1] == address:
            self._stretches[number - 1][1] = end
        else:
            self._stretches.insert(number, [address, end])
        self.missing -= len(data)
        # Bytes that have just arrived are still in the processor's cache.
        if address == self._hashed:
            self._hasher.update(data)
            self._hashed = end

    def first_missing(self, begin: int, end: int) -> int | None:
        for first, last in self._stretches:
            if first <= begin < last:
                begin = last
        return begin if begin < end else None

    def digest(self, blocks: Blocks) -> str:
        """Return the hash of the block, which has arrived completely."""
        if self._hashed < self._end:
            self._hasher.update(blocks.read(self._hashed, self._end - self._hashed))
        digest: str = self._hasher.hexdigest()
        return digest


class Fetcher:
    """Fetch what an order hands out. Call `start` once and `close` at the end; everything else from any thread.

    `connections`: how many are open, or should be. `writing`: runs whose bytes are being written at this moment.
    `failures`: why some blocks cannot be fetched while others can. `error`: what ended fetching; `None` while it
    continues.
    """

    def __init__(
        self,
        label: str,
        blocks: Blocks,
        openers: Sequence[Callable[[], RemoteFile]],
        connections: Callable[[RemoteFacts], int],
        *,
        policy: RetryPolicy,
        closes: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        on_bytes: Callable[[int], object] = lambda _: None,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare to fetch `blocks` from what the `openers` open, one for each file; `closes`: whether files are closed
        here, not by the caller.

        `connections` returns how many a file gets; `policy.attempts` counts tries without a byte of progress.
        `on_bytes` is called with the number of bytes that have arrived, `on_wait` with what is waited for; both in any
        thread.
        """
        self.lock = threading.RLock()
        self.failures: dict[int, Exception] = {}
        self.error: BaseException | None = None
        self.writing: set[Run] = set()
        self._label, self._blocks, self._policy, self._clock = label, blocks, policy, clock
        self._remotes = Remotes(label, blocks.layout.sizes, openers, closes=closes)
        self._on_bytes, self._on_wait = on_bytes, on_wait
        self._moved, self._freed = threading.Condition(self.lock), threading.Condition(self.lock)
        self._order: Order | None = None
        # One connection starts, and learns how many there should be.
        self.connections, self._connections_to = 1, connections
        self._knows_connections = self._stopping = False
        self._arriving: dict[int, Arriving] = {}
        self._tries: Counter[int] = Counter()
        # The bytes that have arrived, when the last one did, and what all processes had fetched then.
        self._come, self._last_moved, self._fetched = 0, clock.now(), 0
        # The reason for waiting, and how many bytes had arrived by then.
        self._waits = "", 0
        self._working = 0
        self._has_looker = False
        self._threads: list[threading.Thread] = []

    def start(self, begin: Callable[[], Order]) -> None:
        """Start; `begin` is called in the first thread, for the order."""

        def connect() -> None:
            order = begin()
            with self.lock:
                self._order, self._working = order, 1
                self.touch()
                self._wake()
            self._connect()

        with self.lock:
            self.touch()
            self._spawn(connect)

    @property
    def has_begun(self) -> bool:
        return self._order is not None

    @property
    def waits_for(self) -> str:
        return self._waits[0] if self._waits[1] == self._come else ""

    def has_ended(self) -> bool:
        return self._stopping or self.error is not None

    def touch(self) -> None:
        """Check now for something to fetch. If nothing was requested until now, that is not a stall of the source."""
        with self.lock:
            self._last_moved = self._clock.now()
            self._freed.notify_all()

    def stop(self) -> None:
        """End soon, without waiting for it; never blocks."""
        self._stopping = True

    def close(self) -> None:
        """Stop, and wait for the threads that can be stopped."""
        self.stop()
        with self.lock:
            self._end_order()
        deadline = SYSTEM_CLOCK.now() + _END_S  # threads end in real time, whatever the clock
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        while (alive := [one for one in others if one.is_alive()]) and (left_s := deadline - SYSTEM_CLOCK.now()) > 0:
            # Again, because a thread may have been about to send its request.
            self._remotes.interrupt()
            alive[0].join(min(left_s, LOOK_S))
        self._remotes.close()
        if not any(thread.is_alive() for thread in self._threads):
            # An order may refer to this object.
            self._order = None

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
        """Wait until `condition` holds; it is called with the lock held. Raises the error that ended fetching, or that
        nothing arrives."""
        with self.lock:
            since = self._clock.now()
            while not condition():
                if self.error is not None:
                    raise self.error
                # Otherwise threads would wait for those that have ended.
                if self._stopping:
                    raise stopped_error(self._label)
                if cancellation is not None:
                    cancellation.check()
                # Bytes that other processes have fetched are progress, too.
                if (fetched := int(self._blocks.counters[FETCHED])) != self._fetched:
                    self._fetched, self._last_moved = fetched, self._clock.now()
                if self._clock.now() - max(since, self._last_moved) > _STALL_S:
                    raise self._stalled_error()
                self._clock.wait(self._moved, look_s)

    def _stalled_error(self) -> SourceReadError:
        return SourceReadError(
            f"The copy of '{self._label}' has not moved for {_STALL_S:.0f} seconds. Run this once more: finished "
            "blocks are kept. If it is on Google Drive, end its client before (!pkill -9 -x drive) and call "
            "mount_drive()."
        )

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
            self._fail(error)
        finally:
            if self.has_ended():
                self._remotes.close()

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            # The first failure is the cause; the others follow from it, or from closing.
            if not self.has_ended():
                self.error = error
            self._end_order()

    def _grow(self) -> None:
        while self._working < self.connections and not self.has_ended():
            self._working += 1
            self._spawn(self._connect)

    def _connect(self) -> None:
        """Work as one connection: run after run until nothing is left to do."""
        budget = RetryBudget(self._policy, self._clock)
        goes_on = True
        while goes_on and (run := self._next_run()) is not None:
            block = run.begin // self._blocks.layout.block_bytes
            try:
                if self._blocks.state[block] == UNPROVED:
                    self._prove(block, run)
                else:
                    self._fetch(run)
                # Received bytes prove that the connection works again.
                budget = RetryBudget(self._policy, self._clock)
            except TransientError as error:
                goes_on = self._pause_after(error, run, budget)
            except SourceChangedError as error:
                # The file may have been rewritten with the same content: each block's hash tells.
                block = run.position // self._blocks.layout.block_bytes
                if not self._blocks.layout.hashes[block]:
                    raise
                self._reject(block, error, run)

    def _next_run(self) -> Run | None:
        """Return what this connection should fetch, once there is something; `None` when it should end."""
        assert self._order is not None
        while not self.has_ended():
            with self.lock:
                if self.has_ended() or (self._is_done() and not self._order.is_endless):
                    return None
                if (run := self._order.take(self._clock.now())) is not None:
                    # There may be more to do, for the next one.
                    self._freed.notify()
                    return run
                # One of the free connections polls for work; the others are woken.
                is_looking, self._has_looker = not self._has_looker, True
                self._clock.wait(self._freed, self._order.look_s if is_looking else LOOK_S)
                self._has_looker &= not is_looking
        return None

    def _prove(self, block: int, run: Run) -> None:
        """Hash a block that is in doubt; a wrong one is handed out again, to be fetched."""
        is_right = self._blocks.prove(block)
        with self.lock:
            assert self._order is not None
            if self.has_ended():
                return
            if is_right:
                self._order.advance(run, run.end, self._clock.now())
            else:
                self._order.again(*self._blocks.layout.span(block))
            self._last_moved = self._clock.now()
            self._wake()

    def _fetch(self, run: Run) -> None:
        layout = self._blocks.layout
        number, offset = layout.find(run.position)
        block = run.position // layout.block_bytes
        try:
            with self._remotes.lend(number) as remote:
                # A hash proves more than a version, without a request. After a wrong hash the version check is worth a
                # round trip: "changed" says more than "damaged".
                is_hashed = layout.hashes[block] and not self._tries[block]
                asked = remote.without_version_check() if is_hashed else remote
                with self.lock:
                    run.ask_again(self._clock.now())
                    if not self._knows_connections:
                        self._knows_connections, self.connections = True, self._connections_to(remote.facts)
                        self._grow()
                with closing_pieces(asked.read_range(offset, run.left)) as pieces:
                    for piece in pieces:
                        if not self._take_in(run, memoryview(piece), remote):
                            return
                if run.left:
                    raise ended_early(remote.facts, offset + run.position - run.begin)
        except TransientError:
            raise
        except ColabstageError:
            self._remotes.drop(number)
            raise

    def _take_in(self, run: Run, data: memoryview, remote: RemoteFile) -> bool:
        """Store a piece; return whether the run continues."""
        with self.lock:
            if self.has_ended():
                return False
            data, address = data[: run.left], run.position
            self.writing.add(run)
        try:
            self._blocks.write(data, address)
        finally:
            with self.lock:
                assert self._order is not None
                if self.has_ended():
                    self._order.release(run, self._clock.now())
                # Last: what fetches after this one waits for it.
                self.writing.discard(run)
        with self.lock:
            if self.has_ended():
                return False
            # Another connection may have taken over the end meanwhile.
            data, now = data[: run.left], self._clock.now()
            complete = self._store(data, address)
            has_waited = bool(data and self.waits_for)
            if data:
                self._come += len(data)
                self._last_moved = now
                self._order.advance(run, address + len(data), now)
                self._moved.notify_all()
        if has_waited:
            self._on_wait("")
        if data:
            self._on_bytes(len(data))
        for block in complete:
            self._verify(block, remote)
        return run.left > 0

    def _store(self, data: bytes | memoryview, address: int) -> list[int]:
        """Note bytes with the lock held; return the blocks that they complete."""
        complete, layout = [], self._blocks.layout
        while data:
            block = address // layout.block_bytes
            begin, end = layout.span(block)
            arriving = self._arriving.get(block)
            if arriving is None:
                arriving = self._arriving[block] = Arriving(begin, end)
            part, data = data[: end - address], data[end - address :]
            arriving.add(part, address)
            if not arriving.missing:
                complete.append(block)
            address += len(part)
        return complete

    def _verify(self, block: int, remote: RemoteFile) -> None:
        layout = self._blocks.layout
        begin, end = layout.span(block)
        if self._blocks.edges.heads[block] or self._blocks.edges.tails[block]:
            # Its edges may have been local before, so not all of it is from this request.
            digest = hash_block(self._blocks.read(begin, end - begin))
        else:
            digest = self._arriving[block].digest(self._blocks)
        expected = layout.hashes[block]
        if expected and digest != expected:
            msg = (
                f"'{remote.facts.label}' is damaged: the {int(layout.lengths[block]):,} bytes from "
                f"{int(layout.offsets[block]):,} on are not those that were written, in {_BLOCK_TRIES} readings. Write "
                "it again; a pack is made again by stage_dataset(…, refresh=True)."
            )
            self._reject(block, DamagedPackError(msg))
            return
        with self.lock:
            if not self.has_ended():
                assert self._order is not None
                self._blocks.note(block, digest)
                self._order.done(block)
                self.forget(block)
                self._wake()
                self._grow()

    def forget(self, block: int) -> None:
        """Forget the received bytes of a block, with the lock held."""
        self._arriving.pop(block, None)

    def _reject(self, block: int, error: Exception, run: Run | None = None) -> None:
        """Hand out a block again that has arrived wrong, or the rest of a run whose source has changed; after a few
        times the error is final for this block."""
        with self.lock:
            assert self._order is not None
            self._tries[block] += 1
            if self._tries[block] >= _BLOCK_TRIES:
                del self._tries[block]
                self.failures[block] = error
            if run is not None:
                self._order.release(run, self._clock.now())
            else:
                self.forget(block)
                self._order.again(*self._blocks.layout.span(block))
            self._wake()
        self._remotes.drop(int(self._blocks.layout.file_of[block]))

    def _pause_after(self, error: TransientError, run: Run, budget: RetryBudget) -> bool:
        """Leave the rest to whichever connection is free, and wait as long as the failure requires; return whether this
        connection continues. Fetching ends if none has a try left."""
        with self.lock:
            assert self._order is not None
            wait_s = budget.count(error, arrived=self._come, moved=run.position > run.begin)
            self._order.release(run, self._clock.now())
            self._freed.notify_all()
            in_time = wait_s <= _STALL_S
            is_spent = budget.is_spent or not in_time
            if is_spent and self._working > 1:
                self._working -= 1
                return False
            if is_spent and not (in_time and budget.is_patient):
                self._fail(final_error(error, self._label, budget.tries))
                return False
            if is_spent:
                self._waits = budget.waits_for, self._come
        if is_spent:
            # Outside the lock, because showing progress may be slow.
            self._on_wait(budget.waits_for)
        with self.lock:
            until = self._clock.now() + wait_s
            while (left_s := until - self._clock.now()) > 0 and not self.has_ended() and not self._is_done():
                self._clock.wait(self._freed, min(left_s, LOOK_S))
        return True

    def _is_done(self) -> bool:
        return not self._arriving and not bool((self._blocks.state == MISSING).any())


def prove_rest(blocks: Blocks, fetcher: Fetcher) -> list[tuple[int, int]]:
    """Hash what an earlier run has left of one file; return the ranges `(begin, end)` that are missing."""
    for block in np.flatnonzero(blocks.state == UNPROVED).tolist():
        if fetcher.has_ended():
            break
        blocks.prove(block)
        fetcher.touch()
    gaps: list[tuple[int, int]] = []
    for begin, end in map(blocks.layout.span, np.flatnonzero(blocks.state != WHOLE).tolist()):
        since = gaps.pop()[0] if gaps and gaps[-1][1] == begin else begin
        gaps.append((since, end))
    return gaps
