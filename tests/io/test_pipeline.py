"""The pipeline: every item once, a bound on the bytes in flight, and an end whatever happens."""

import concurrent.futures
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import CancelledError, DecodeError, SourceReadError
from colabstage.io.pipeline import DaemonPool, PipelineLimits, run_pipeline
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock
from tests.clocks import ManualClock

LIMITS = PipelineLimits(readers=2, max_readers=2, workers=2, stall_timeout_s=20.0)


def pipeline_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-pipeline"]


class SilentClock(ManualClock):
    """Time passes while nothing happens: shortly after each look of a waiting thread, it is a second later."""

    def now(self) -> float:
        self.turn(1.0)
        return super().now()


class Recorder:
    """Reads and uses items of given sizes, and records the most simultaneous bytes, reads and uses."""

    def __init__(self, sizes: Sequence[int], *, read_s: float = 0.0, use_s: float = 0.0) -> None:
        self.sizes = sizes
        self.read_s = read_s
        self.use_s = use_s
        self.used: Counter[int] = Counter()
        self.taken: list[int] = []
        self.most_bytes = self.most_reads = self.most_uses = 0
        self._bytes = self._reads = self._uses = 0
        self._lock = threading.Lock()

    def read(self, item: int) -> bytes:
        with self._lock:
            self.taken.append(item)
            self._bytes += self.sizes[item]
            self._reads += 1
            self.most_bytes = max(self.most_bytes, self._bytes)
            self.most_reads = max(self.most_reads, self._reads)
        if self.read_s:
            time.sleep(self.read_s)
        with self._lock:
            self._reads -= 1
        return item.to_bytes(8, "little")

    def use(self, item: int, data: bytes) -> None:
        assert int.from_bytes(data, "little") == item
        with self._lock:
            self._uses += 1
            self.most_uses = max(self.most_uses, self._uses)
        if self.use_s:
            time.sleep(self.use_s)
        with self._lock:
            self._uses -= 1
            self._bytes -= self.sizes[item]
            self.used[item] += 1

    def run(
        self, limits: PipelineLimits, *, order: Sequence[int] | None = None, cancellation: Cancellation | None = None
    ) -> int:
        return run_pipeline(
            range(len(self.sizes)) if order is None else order,
            read=self.read,
            use=self.use,
            cost=self.sizes.__getitem__,
            limits=limits,
            cancellation=cancellation or Cancellation(),
        )


def run_with(
    read: Callable[[int], Any],
    use: Callable[[int, Any], None],
    limits: PipelineLimits = LIMITS,
    count: int = 1000,
    *,
    clock: Clock = SYSTEM_CLOCK,
    cancellation: Cancellation | None = None,
) -> int:
    """Run over `count` items that cost a byte each."""
    stop = cancellation or Cancellation()
    return run_pipeline(
        range(count), read=read, use=use, cost=lambda _: 1, limits=limits, cancellation=stop, clock=clock
    )


def read_nothing(item: int) -> bytes:
    return b""


def use_nothing(item: int, data: bytes) -> None:
    """Use an item without a trace."""


@given(
    sizes=st.lists(st.integers(0, 50), max_size=40),
    readers=st.integers(0, 6),
    workers=st.integers(1, 6),
    budget=st.integers(1, 120),
    rng=st.randoms(use_true_random=False),
)
def test_every_item_is_used_once_within_the_budget(
    sizes: list[int], readers: int, workers: int, budget: int, rng: object
) -> None:
    order = list(range(len(sizes)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    recorder = Recorder(sizes)
    limits = PipelineLimits(readers=readers, max_readers=readers, workers=workers, budget_bytes=budget)
    recorder.run(limits, order=order)
    assert recorder.used == Counter(range(len(sizes)))
    assert sorted(recorder.taken) == list(range(len(sizes)))
    assert recorder.most_bytes <= max([budget, *sizes])
    assert pipeline_threads() == []


@pytest.mark.parametrize("readers", [0, 1])
def test_items_are_read_in_the_order_given(readers: int) -> None:
    """One reader, or one worker that reads for itself, keeps exactly the caller's order, so that an archive is read
    sequentially."""
    recorder = Recorder([1] * 50)
    order = list(reversed(range(50)))
    recorder.run(replace(LIMITS, readers=readers, max_readers=readers, workers=2 if readers else 1), order=order)
    assert recorder.taken == order


# How long reads and uses take, the readers at the start and at most, the workers, which reads are slow; and how many
# threads read in the end.
READERS = {
    "more while reads are slow": ((0.01, 0.0), (1, 8, 2, 0.0001), range(8, 9)),
    "workers read for themselves": ((0.0005, 0.001), (0, 8, 3, 0.2), range(3, 4)),
    "readers come where workers read slowly": ((0.01, 0.0), (0, 8, 2, 0.001), range(8, 11)),
    "one while reads are fast": ((0.0, 0.0), (1, 8, 4, 0.2), range(1, 2)),
    "few while workers are busy": ((0.001, 0.02), (2, 8, 1, 0.0001), range(2, 4)),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_are_as_many_as_help(name: str) -> None:
    (read_s, use_s), (first, most, workers, slow_s), expected = READERS[name]
    recorder = Recorder([1] * 150, read_s=read_s, use_s=use_s)
    limits = PipelineLimits(readers=first, max_readers=most, workers=workers, slow_read_s=slow_s)
    readers = recorder.run(limits)
    assert recorder.used == Counter(range(150))
    assert readers in expected
    assert recorder.most_reads <= readers
    assert recorder.most_uses <= workers


@pytest.mark.parametrize("part", ["read", "use"])
@pytest.mark.parametrize("error", [SourceReadError("gone"), KeyboardInterrupt()])
def test_a_failure_stops_everything_with_its_traceback(error: BaseException, part: str) -> None:
    """Reading ends too, although most items are still to come."""
    read: list[int] = []

    def fail(item: int) -> None:
        if item == 20:
            raise error

    def read_slowly(item: int) -> bytes:
        read.append(item)
        time.sleep(0.0005)
        if part == "read":
            fail(item)
        return b""

    with pytest.raises(type(error)) as caught:
        run_with(read_slowly, lambda item, _: fail(item) if part == "use" else None)
    assert caught.value is error
    assert "in fail" in "".join(traceback.format_tb(error.__traceback__))
    assert len(read) < 200
    assert pipeline_threads() == []


def test_cancelling_stops_the_run_soon() -> None:
    """Cancelling from another thread ends a long run before a tenth of it is done."""
    cancellation = Cancellation()
    recorder = Recorder([1] * 5000, read_s=0.01)
    threading.Timer(0.1, cancellation.cancel).start()
    with pytest.raises(CancelledError):
        recorder.run(LIMITS, cancellation=cancellation)
    assert 0 < sum(recorder.used.values()) < 500
    assert pipeline_threads() == []


def test_who_interrupts_does_not_wait_for_a_slow_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an archive that arrives slowly: the read ends with its source, which is closed next."""
    release, cancellation = threading.Event(), Cancellation()
    monkeypatch.setattr(cancellation, "check", Mock(side_effect=[None, None, KeyboardInterrupt()]))
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_with(lambda _: bytes(release.wait(60)), use_nothing, LIMITS, cancellation=cancellation)
        assert time.monotonic() - began < 4.0
    finally:
        release.set()


@pytest.mark.parametrize(("readers", "budget"), [(2, LIMITS.budget_bytes), (0, 1)])
def test_a_read_that_hangs_is_an_error_within_the_deadline(
    readers: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how far the run got, although a thread still hangs: a reader, or a worker that reads for itself."""
    release = threading.Event()

    def read(item: int) -> bytes:
        if item >= 7:
            release.wait(60)
        return b""

    monkeypatch.setattr("colabstage.io.pipeline._READERS_END_S", 0.1)
    limits = replace(LIMITS, readers=readers, max_readers=readers, budget_bytes=budget, stall_timeout_s=180.0)
    try:
        with pytest.raises(SourceReadError, match=r" 1[89]\d seconds .*7 of 1000.*mount_drive\(\)"):
            run_with(read, use_nothing, limits, clock=SilentClock())
    finally:
        release.set()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_use_that_hangs_ends_the_thread_that_reads_for_all(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a worker writes to a mount that hangs, and the caller's own code makes the items."""
    monkeypatch.setattr("colabstage.io.pipeline._WORKERS_END_S", 0.1)
    release, cancellation = threading.Event(), Cancellation()

    def use(item: int, data: bytes) -> None:
        if is_cancelled:
            cancellation.cancel()
        release.wait(60)

    limits = replace(LIMITS, caller_reads=True, budget_bytes=1, stall_timeout_s=180.0)
    try:
        with pytest.raises(CancelledError if is_cancelled else SourceReadError):
            run_with(
                read_nothing,
                use,
                limits,
                clock=SYSTEM_CLOCK if is_cancelled else SilentClock(),
                cancellation=cancellation,
            )
    finally:
        release.set()


def test_slow_but_moving_source_is_not_taken_for_a_dead_one() -> None:
    clock, used = ManualClock(), []

    def read(item: int) -> bytes:
        clock.turn(170.0)
        time.sleep(0.01)  # the caller checks meanwhile
        return b""

    limits = PipelineLimits(readers=1, max_readers=1, workers=1)
    run_with(read, lambda item, _: used.append(item), limits, count=12, clock=clock)
    assert used == list(range(12))


def test_workers_finish_what_they_write_before_the_call_returns() -> None:
    running = 0

    def use(item: int, data: bytes) -> None:
        nonlocal running
        if item == 1:
            raise DecodeError("bad")
        running += 1
        time.sleep(0.4)
        running -= 1

    with pytest.raises(DecodeError):
        run_with(read_nothing, use, replace(LIMITS, readers=1, max_readers=1))
    assert running == 0


def test_a_pool_raises_the_first_failure_while_others_still_run() -> None:
    never = threading.Event()

    def call(item: int) -> int:
        if item == 3:
            raise ValueError(item)
        if item == 4:
            never.wait(100)
        return item * 2

    with pytest.raises(ValueError, match="3"), DaemonPool(4) as pool:
        pool.run(call, range(10))
    assert not never.is_set()
    never.set()
    with DaemonPool(3) as pool:
        assert pool.run(call, [0, 1, 2, 5]) == [0, 2, 4, 10]
        assert pool.submit(lambda: call(7)).result(5) == 14
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda: call(1))


def test_a_pool_notices_that_nothing_moves_and_that_it_is_asked_to_stop_or_closed() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match="moved"), DaemonPool(2) as pool:
        pool.run(lambda _: never.wait(60), range(2), stall_timeout_s=0.3)
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError), DaemonPool(2) as pool:
        pool.run(lambda _: never.wait(60), range(2), cancellation=cancellation)
    with DaemonPool(1) as pool:
        _, waiting = pool.submit(lambda: never.wait(60)), pool.submit(lambda: None)
        threading.Timer(0.1, lambda: pool.close(abandon=True)).start()
        with pytest.raises(concurrent.futures.CancelledError):
            pool.results([waiting], stall_timeout_s=20)
        never.set()


def test_the_interpreter_ends_though_calls_hang() -> None:
    code = (
        "import threading; from colabstage.io.pipeline import DaemonPool\n"
        "try:\n"
        "    with DaemonPool(2) as pool: pool.run(lambda _: threading.Event().wait(), [1, 2], stall_timeout_s=0.2)\n"
        "except TimeoutError: print('told')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "told\n"
