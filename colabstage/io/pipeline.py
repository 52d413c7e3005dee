"""Threads: a pipeline of readers and workers with a bound on the bytes between them; a pool; a team that shares one
piece of work; and a single thread.

With a slow source, latency is the limit: thirty reads in flight cost no more than one. With a fast one, the processor
is. So a source that looks fast gets few readers at first, and more while reads prove slow and workers wait. A local
disk gets none at first: each worker reads for itself, because passing a small file between threads takes longer than
reading it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from colabstage.errors import SourceReadError
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock, Demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


T = TypeVar("T")
R = TypeVar("R")

# How often a waiting thread checks whether to stop; no wait is longer than this.
_LOOK_S = 0.25
# The first read of a folder may wait for the disk, so it does not predict the next ones.
_FIRST_READS = 8
# A reader can hang in a dead mount for ever, so closing waits for readers only so long. A worker decodes and writes to
# a local disk: it does end, and its file must not be closed before.
_READERS_END_S, _WORKERS_END_S, _INTERRUPTED_S = 5.0, 60.0, 0.5
# Items for each worker that are read ahead, beyond the reads in flight: enough that no worker waits, few enough that
# memory does not fill up to the budget for nothing.
_AHEAD = 32


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    readers: int
    """Reads in flight at the start; with 0, workers read for themselves until reads prove slow."""
    max_readers: int
    """The most readers there may be while reads prove slow."""
    workers: int
    budget_bytes: int = 64 * 1024 * 1024
    """Bytes read, or being read, and not yet used; a single item may exceed it."""
    slow_read_s: float = 0.002
    """Mean time of one read, in seconds, above which more readers help."""
    stall_timeout_s: float = 180.0
    """Seconds without any read or use after which the source counts as dead."""
    caller_reads: bool = False
    """Whether items are read only by the thread that runs the pipeline, for the caller's code."""


def run_pipeline(
    items: Sequence[int],
    *,
    read: Callable[[int], T],
    use: Callable[[int, T], None],
    cost: Callable[[int], int],
    limits: PipelineLimits,
    cancellation: Cancellation,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Call `use(item, read(item))` once for every item; return how many threads read.

    Items are read in order, in reader threads, in worker threads if these read for themselves, or in this thread; they
    are used in worker threads. `cost`: bytes that `read(item)` will return, for the budget.
    """
    cancellation.check()
    run = _Run(items, read, use, cost, limits, clock=clock)
    readers_end_s = _READERS_END_S
    try:
        run.start()
        run.wait(cancellation)
    except KeyboardInterrupt:
        # A person waits, and what slow reads wait for ends when the source is closed.
        readers_end_s = _INTERRUPTED_S
        raise
    finally:
        run.stop(readers_end_s)
    return run.readers + len(run.reading_workers)


class _Run(Generic[T]):
    """The threads of one run and their shared state, guarded by one lock."""

    def __init__(
        self,
        items: Sequence[int],
        read: Callable[[int], T],
        use: Callable[[int, T], None],
        cost: Callable[[int], int],
        limits: PipelineLimits,
        *,
        clock: Clock,
    ) -> None:
        self._items = items
        self._read = read
        self._use = use
        self._cost = cost
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        # Three conditions on one lock: data for workers, room for readers, the end for the caller.
        self._data = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._end = threading.Condition(self._lock)
        self._ready: deque[tuple[int, T]] = deque()
        self._taken = 0
        self._used = 0
        self._in_flight_bytes = 0
        self._far_ahead = False
        self._idle_workers = 0
        self._error: BaseException | None = None
        self._stopping = False
        self._last_sign = clock.now()
        self._worker_threads: list[threading.Thread] = []
        self._reader_threads: list[threading.Thread] = []
        self._now_reading: set[threading.Thread] = set()
        self.reading_workers: set[threading.Thread] = set()
        self.readers = 0
        self.reads = 0
        self._mean_read_s = 0.0

    def start(self) -> None:
        with self._lock:
            # Counted before any worker starts, so that none of them reads for itself.
            self.readers = int(self._limits.caller_reads)
            for _ in range(min(self._limits.workers, len(self._items))):
                self._spawn(self._work, self._worker_threads)
            if self._limits.caller_reads:
                return
            for _ in range(min(self._limits.readers, len(self._items))):
                self._spawn_reader()

    def wait(self, cancellation: Cancellation) -> None:
        """Return when every item is used; raise the error that stopped the run."""
        if self._limits.caller_reads:
            self._fetch(cancellation)
        with self._lock:
            while self._used < len(self._items) and self._error is None:
                self._clock.wait(self._end, _LOOK_S)
                self._check(cancellation)
            if self._error is not None:
                raise self._error

    def _check(self, cancellation: Cancellation) -> None:
        """Raise for the thread that runs the pipeline what ends its waiting."""
        cancellation.check()
        silent_s = self._clock.now() - self._last_sign
        if silent_s > self._limits.stall_timeout_s:
            msg = (
                f"Nothing could be read for {silent_s:.0f} seconds ({self._used} of {len(self._items)} done). The "
                "source hangs. Run this cell once more: finished work is kept. If it is Google Drive, end its client "
                "before (!pkill -9 -x drive) and call mount_drive()."
            )
            raise SourceReadError(msg)

    def stop(self, readers_end_s: float) -> None:
        """Make every thread end, and wait for those that can."""
        with self._lock:
            self._halt()
            reading = list(self._now_reading)
        _join_threads([thread for thread in self._worker_threads if thread not in reading], _WORKERS_END_S)
        # A thread stuck in a dead mount's read cannot be interrupted; it is a daemon and holds nothing.
        _join_threads(self._reader_threads + reading, readers_end_s)

    def _halt(self) -> None:
        self._stopping = True
        self._ready.clear()
        for condition in (self._data, self._room, self._end):
            condition.notify_all()

    def _spawn(self, target: Callable[[], None], among: list[threading.Thread]) -> None:
        thread = threading.Thread(target=self._guard, args=(target,), name="colabstage-pipeline", daemon=True)
        thread.start()
        among.append(thread)

    def _spawn_reader(self) -> None:
        self._spawn(self._fetch, self._reader_threads)
        self.readers += 1

    def _guard(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, which raises it
            with self._lock:
                if self._error is None:
                    self._error = error
                self._halt()

    def _fetch(self, cancellation: Cancellation | None = None) -> None:
        while (item := self._take(cancellation)) is not None:
            if cancellation is not None:
                cancellation.check()
            began = self._clock.now()
            data = self._read(item)
            self._deliver(item, data, self._clock.now() - began)
            del data  # the budget counts it only until it is used, and this thread may now wait a long time

    def _read_alone(self, item: int) -> tuple[int, T] | None:
        """Read the item that a worker uses next; `None` if it is no longer wanted."""
        began = self._clock.now()
        data = self._read(item)
        seconds = self._clock.now() - began
        with self._lock:
            self._now_reading.discard(threading.current_thread())
            if self._stopping:
                return None
            self._note_read(seconds)
            # From now on readers read ahead, and workers only use.
            if self.reads >= _FIRST_READS and self._would_help():
                self._spawn_reader()
        return item, data

    def _take(self, cancellation: Cancellation | None) -> int | None:
        """Return the next item, once the budget allows it; `None` when there are no more."""
        with self._lock:
            while not self._stopping and self._taken < len(self._items):
                item = self._claim()
                if item is not None:
                    # The room that one large item needed may fit several small ones: each reader wakes the next.
                    self._room.notify()
                    return item
                self._clock.wait(self._room, _LOOK_S)
                if cancellation is not None:
                    self._check(cancellation)
            return None

    def _claim(self) -> int | None:
        item = self._items[self._taken]
        cost = self._cost(item)
        if not self._has_room(cost):
            return None
        self._taken += 1
        self._in_flight_bytes += cost
        return item

    def _has_room(self, cost: int) -> bool:
        """Return whether an item of `cost` bytes may be read now; remembers whether readers pause."""
        ahead = self._taken - self._used - self._limits.max_readers
        enough = _AHEAD * self._limits.workers
        # Readers resume once half of it is used, because waking a thread costs as much as reading a small file.
        self._far_ahead = ahead >= (enough // 2 if self._far_ahead else enough)
        if self._far_ahead:
            return False
        return self._in_flight_bytes == 0 or self._in_flight_bytes + cost <= self._limits.budget_bytes

    def _deliver(self, item: int, data: T, seconds: float) -> None:
        with self._lock:
            if self._stopping:
                return
            self._note_read(seconds)
            if self._idle_workers and not self._ready and self._would_help():
                self._spawn_reader()
            self._ready.append((item, data))
            self._data.notify()

    def _note_read(self, seconds: float) -> None:
        self._last_sign = self._clock.now()
        self.reads += 1
        # A moving average: it follows a source that slows down within some tens of reads.
        self._mean_read_s += max(0.1, 1 / self.reads) * (seconds - self._mean_read_s)

    def _would_help(self) -> bool:
        """Return whether reads are slow, items are left to read, and one more reader is allowed."""
        limits = self._limits
        may_grow = not limits.caller_reads and self.readers < limits.max_readers and self._taken < len(self._items)
        return may_grow and self._mean_read_s > limits.slow_read_s

    def _work(self) -> None:
        while (ready := self._next_ready()) is not None:
            item = ready[0]
            self._use(*ready)
            del ready
            self._finish(item)

    def _next_ready(self) -> tuple[int, T] | None:
        with self._lock:
            item = None
            while item is None:
                if self._ready:
                    return self._ready.popleft()
                if self._stopping or self._used == len(self._items):
                    return None
                item = self._claim_alone()
                if item is None:
                    self._idle_workers += 1
                    self._clock.wait(self._data, _LOOK_S)
                    self._idle_workers -= 1
        return self._read_alone(item)

    def _claim_alone(self) -> int | None:
        """Take the next item for an idle worker, if workers read for themselves."""
        if self.readers or self._taken == len(self._items):
            return None
        item = self._claim()
        if item is not None:
            self._now_reading.add(threading.current_thread())
            self.reading_workers.add(threading.current_thread())
            # As in `_take`: there may be room for another item.
            self._data.notify()
        return item

    def _finish(self, item: int) -> None:
        with self._lock:
            self._last_sign = self._clock.now()
            self._used += 1
            self._in_flight_bytes -= self._cost(item)
            if not self.readers and self._idle_workers:
                self._data.notify()
            elif not self._far_ahead or self._has_room(0):
                self._room.notify()
            if self._used == len(self._items):
                self._data.notify_all()
                self._end.notify_all()


def _join_threads(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = SYSTEM_CLOCK.now() + seconds  # threads end in real time, whatever the clock
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - SYSTEM_CLOCK.now()))


class DaemonPool:
    """Threads for calls into mounts and services, which may hang: neither the interpreter's exit nor an exception that
    leaves the block waits for them. Not for work that must not be cut off halfway."""

    def __init__(self, workers: int, name: str = "colabstage-pool") -> None:
        self._workers = workers
        self._name = name
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[[], R]) -> Future[R]:
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                msg = "The pool was closed."
                raise RuntimeError(msg)
            self._tasks.put((future, function))
            self._unfinished += 1
            # One thread for each call, up to the limit, so that no call waits while a thread could be started.
            if len(self._threads) < min(self._unfinished, self._workers):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def run(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        cancellation: Cancellation | None = None,
        stall_timeout_s: float = 300.0,
    ) -> list[R]:
        """Call `function` with every item, many at once, and return the results in the items' order."""
        futures = [self.submit(partial(function, item)) for item in items]
        return self.results(futures, cancellation=cancellation, stall_timeout_s=stall_timeout_s)

    @staticmethod
    def results(
        futures: Sequence[Future[R]], *, cancellation: Cancellation | None = None, stall_timeout_s: float = 300.0
    ) -> list[R]:
        """Wait for calls that were submitted, and return their results in order; raises as `run`."""
        waiting, moved_at = set(futures), SYSTEM_CLOCK.now()
        while waiting:
            done, waiting = wait(waiting, _LOOK_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if cancellation is not None:
                cancellation.check()
            if done:
                moved_at = SYSTEM_CLOCK.now()
            elif SYSTEM_CLOCK.now() - moved_at > stall_timeout_s:
                msg = f"Nothing has moved for {stall_timeout_s:.0f} seconds."
                raise TimeoutError(msg)
        return [future.result() for future in futures]

    def close(self, *, abandon: bool) -> None:
        """Accept no more calls and wait for the accepted ones; with `abandon`, cancel those that have not begun and
        wait for none."""
        with self._lock:
            self._closed = True
        if abandon:
            with contextlib.suppress(queue.Empty):
                while (task := self._tasks.get_nowait()) is not None:
                    # What waits for it is woken by the second alone.
                    if task[0].cancel():
                        task[0].set_running_or_notify_cancel()
        self._tasks.put(None)
        if not abandon:
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close(abandon=error is not None)

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                self._tasks.put(None)  # for the next thread
                return
            _carry_out(*task)
            del task  # it holds its arguments, and the next call may be far away
            with self._lock:
                self._unfinished -= 1


def run_each(
    function: Callable[[T], R], items: Sequence[T], threads: int, cancellation: Cancellation | None = None
) -> list[R]:
    """Call `function` with every item, several at once where there are several, and return the results in order."""
    # For one item a thread costs more than it gains.
    if len(items) < 2 or threads < 2:
        return [function(item) for item in items]
    with DaemonPool(threads) as pool:
        return pool.run(function, items, cancellation=cancellation)


def in_thread(function: Callable[[], R], name: str, *, daemon: bool = True) -> Future[R]:
    """Call `function` in a thread of its own, and return its future. The interpreter does not wait for a daemon."""
    future: Future[R] = Future()
    threading.Thread(target=_carry_out, args=(future, function), name=name, daemon=daemon).start()
    return future


def _carry_out(future: Future[R], function: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - raised when the result is requested
        future.set_exception(error)
    else:
        future.set_result(result)


# More parts than threads, taken one after the other: a thread that wakes late, or whose core is busy, takes fewer parts
# and does not hold up the others. With two threads, halves were a quarter slower than eighths. But each part needs
# Python's lock: beside a step that holds it, eighths took a tenth more processor time than quarters, which are as fast.
_PARTS_A_THREAD = 2


class ThreadPool:
    """A pool of `threads` threads, including the caller's. `cancellation` keeps further parts of the shared work from
    beginning; work with long parts, such as decoding, checks it between rows."""

    def __init__(self, threads: int, cancellation: Cancellation | None = None) -> None:
        self.threads = max(1, threads)
        self.cancellation = cancellation or Cancellation()
        self._demand = self.cancellation if isinstance(self.cancellation, Demand) else Demand()
        self._pool = ThreadPoolExecutor(self.threads - 1, "colabstage-pool") if self.threads > 1 else None

    @property
    def urgent(self) -> bool:
        """Return whether somebody may be waiting for the shared work (`Demand.urgent`)."""
        return self._demand.urgent

    def share(self, count: int, work: Callable[[int, int], None], *, alone: int = 0) -> None:
        """Call `work(start, stop)` on contiguous parts of `range(count)`, a few parts a thread, and wait for all.

        `alone`: the caller's thread does this many at a time by itself, and the others join when the result is urgent
        (`Demand`), because other threads slow a training step that holds Python's lock.
        """
        self.cancellation.check()
        threads = min(self.threads, count)
        # No thread is woken, as for most batches with one thread.
        if threads < 2 or self._pool is None:
            work(0, count)
            return
        done = 0
        while alone and done < count and not self.urgent:
            self.cancellation.check()
            begin, done = done, min(count, done + alone)
            work(begin, done)
        parts = min(threads * _PARTS_A_THREAD, count - done)
        edges = [done + (count - done) * part // parts for part in range(parts + 1)] if parts else []
        self.each(parts, lambda part: work(edges[part], edges[part + 1]))

    def each(self, count: int, work: Callable[[int], None]) -> None:
        """Call `work(place)` for each of `range(count)`, where each free thread takes the next one, and wait for all.

        For work that takes a millisecond or more per item, and different times for different items.
        """
        self.cancellation.check()
        # All threads share one iterator; its next step is atomic.
        places = iter(range(count))

        def take() -> None:
            for place in places:
                self.cancellation.check()
                try:
                    work(place)
                except BaseException:
                    for _ in places:
                        """Discard the remaining parts."""
                    raise

        others: list[Future[None]] = []
        try:
            if self._pool is not None:
                others += [self._pool.submit(take) for _ in range(1, min(self.threads, count))]
            take()
        finally:
            # The parts write into the caller's array, so none may continue after this returns. A thread that has not
            # begun is not waited for.
            running = [other for other in others if not other.cancel()]
            for other in running:
                other.exception()
        for other in running:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()


SOLO = ThreadPool(1)
