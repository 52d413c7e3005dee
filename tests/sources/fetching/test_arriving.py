"""A file that is read while it arrives: exact bytes for every reader, and an error for all of them when it fails."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation
from colabstage.sources.arriving import StreamingCopy
from colabstage.sources.remote import MountedFile, TransientError
from tests.clocks import ManualClock
from tests.support.far import MemoryFile, changed
from tests.support.steps import wait_until

Open = Callable[..., StreamingCopy]

MIB = 1024 * 1024
SIZE = 16 * MIB + 12_345
POLICY = RetryPolicy(attempts=2, first_wait_s=0.01)


@pytest.fixture(scope="module")
def content() -> bytes:
    """Random bytes, more than a reader waits for."""
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def source(tmp_path: Path, content: bytes) -> Path:
    """The content as a file on the local disk."""
    path = tmp_path / "source.bin"
    path.write_bytes(content)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where it arrives."""
    return tmp_path / "arriving.bin"


@pytest.fixture
def open_arriving(source: Path, target: Path, step: Any) -> Iterator[Open]:
    """An `StreamingCopy` from the source to the target by one connection, if nothing else is said."""
    with ExitStack() as stack:

        def make(origin: Path | MemoryFile = source, place: Path = target, **changes: Any) -> StreamingCopy:
            options: dict[str, Any] = {"step": step, "policy": POLICY, "cancellation": Cancellation(), **changes}
            remote = origin if isinstance(origin, MemoryFile) else stack.enter_context(closing(MountedFile(origin)))
            return StreamingCopy(remote, place, **options)

        yield make


def leftovers(target: Path) -> list[Path]:
    """What stands beside the target under temporary names."""
    return sorted(target.parent.glob(f".colabstage-{target.name}.*"))


def data_of(target: Path) -> bytes:
    """What has arrived, in the one temporary place there is."""
    (folder,) = leftovers(target)
    return (folder / "data").read_bytes()


@contextmanager
def held_after(step: Any, nbytes: int) -> Iterator[threading.Event]:
    """The copy stands still once `nbytes` have arrived, until the event is set or the block ends."""
    release = threading.Event()

    def hold(total: int) -> None:
        if total >= nbytes:
            release.wait(60)

    step.notice = hold
    try:
        yield release
    finally:
        release.set()


def test_what_nobody_prefers_stays_where_it_is_until_somebody_waits_for_it(
    open_arriving: Open, target: Path, content: bytes, step: Any
) -> None:
    """A read of it is a request of its own; whoever reads from beginning to end, or wants all of it, has it come."""
    with open_arriving() as arriving:
        assert arriving.size == SIZE
        assert arriving.pread(100, SIZE) == b""
        arriving.prefer([(3 * MIB, 4 * MIB)], alone=True)
        assert arriving.pread(100, 0) == content[:100]
        # Before the start nothing is written, and no thread runs.
        assert (leftovers(target), copy_threads(), step.total) == ([], [], 0)
        arriving.start()
        assert arriving.pread(MIB, 3 * MIB) == content[3 * MIB : 4 * MIB]
        # Beside what has come, and far from it.
        for offset in (4 * MIB, 15 * MIB, 0):
            assert arriving.pread(100, offset) == content[offset : offset + 100]
        assert step.total == MIB
        arriving.prefer([(6 * MIB, 7 * MIB)], alone=True)
        wait_until(lambda: step.total == 2 * MIB)
        assert arriving.pread(MIB, 6 * MIB) == content[6 * MIB : 7 * MIB]
        assert arriving.read_here(100, 10 * MIB) == content[10 * MIB : 10 * MIB + 100]
        arriving.wait()
        assert data_of(target) == content


def until_done(futures: list[Future[Any]], clock: ManualClock) -> None:
    """Turn the clock until all of them have ended."""

    def turned() -> bool:
        clock.turn(1.0)
        return all(future.done() for future in futures)

    wait_until(turned)


def copy_threads() -> list[threading.Thread]:
    """Copies that still run."""
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-fetch"]


def test_what_is_near_is_waited_for_and_what_is_far_is_not(open_arriving: Open, content: bytes, step: Any) -> None:
    """What is about to arrive comes from the local copy; the contents at the end by a request of their own."""
    with open_arriving() as arriving, held_after(step, 2 * MIB) as release, ThreadPoolExecutor(1) as pool:
        arriving.start()
        wait_until(lambda: step.total == 2 * MIB)
        near = pool.submit(arriving.pread, 1000, 4 * MIB)
        assert arriving.pread(1000, SIZE - 1000) == content[-1000:]
        assert step.total == 2 * MIB
        assert not near.done()
        release.set()
        assert near.result(10) == content[4 * MIB : 4 * MIB + 1000]


def test_copy_that_stands_still_is_an_error_for_readers(open_arriving: Open, step: Any) -> None:
    """When nothing arrives for the deadline, a waiting reader and `wait` get an error that says what to do."""
    clock = ManualClock()
    with open_arriving(clock=clock) as arriving, held_after(step, MIB), ThreadPoolExecutor(3) as pool:
        arriving.start()
        wait_until(lambda: step.total == MIB)
        waiting = [pool.submit(arriving.pread, 10, offset) for offset in range(2 * MIB, 4 * MIB, MIB)]
        waiting.append(pool.submit(arriving.wait))  # type: ignore[arg-type]
        for seconds in (100.0, 79.0):
            clock.turn(seconds)
            time.sleep(0.02)
            assert not any(future.done() for future in waiting)
        until_done(waiting, clock)
        errors = [future.exception() for future in waiting]
        assert [type(error) for error in errors] == [SourceReadError] * 3
        assert all("180 seconds" in str(error) for error in errors)
        assert "mount_drive()" in str(errors[0])


def test_slow_copy_is_no_stalled_one(open_arriving: Open, step: Any, content: bytes) -> None:
    """A reader waits longer than the deadline while every piece comes within it."""
    clock = ManualClock()

    def pause(_: int) -> None:
        clock.turn(100.0)
        time.sleep(0.01)  # the reader looks meanwhile

    step.notice = pause
    with open_arriving(clock=clock) as arriving:
        arriving.start()
        assert arriving.pread(SIZE, 0) == content


def test_closing_midway_ends_the_copy_and_its_readers(
    open_arriving: Open, target: Path, step: Any, content: bytes
) -> None:
    """Readers that wait get an error at once, as whoever reads later does; the thread ends, and with no block finished
    nothing is left."""
    arriving = open_arriving(MemoryFile(content, connections=1, piece=MIB))
    with held_after(step, 2 * MIB) as release, ThreadPoolExecutor(5) as pool:
        arriving.start()
        wait_until(lambda: step.total >= 2 * MIB)
        futures = [pool.submit(arriving.pread, 10, offset) for offset in range(4 * MIB, 8 * MIB, MIB)]
        closing_it = pool.submit(arriving.close)
        assert [type(future.exception(timeout=5)) for future in futures] == [SourceReadError] * 4
        release.set()
        closing_it.result(10)
    arriving.close()
    for call in (arriving.start, arriving.wait, lambda: arriving.pread(10, 0)):
        with pytest.raises(SourceReadError):
            call()
    assert copy_threads() == []
    assert leftovers(target) == []


@pytest.mark.parametrize(("connections", "cut"), [(1, 190_000), (3, None), (4, 0), (8, 100_000)])
def test_every_byte_comes_once_however_often_connections_are_cut(
    open_arriving: Open, content: bytes, step: Any, connections: int, cut: int | None
) -> None:
    """Each goes on at its byte, and with progress in between the tries begin anew; nothing is fetched twice."""
    answer = (
        (lambda number, offset: cut) if cut and connections == 1 else lambda number, offset: None if number % 2 else cut
    )
    # Slow enough that no connection has it all before the last one is opened.
    source = MemoryFile(content, connections=connections, answer=answer, bytes_per_s=40e6)
    with open_arriving(source, policy=RetryPolicy(attempts=3, first_wait_s=0.001)) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    assert source.sent < 1.1 * SIZE
    assert step.total == SIZE
    assert source.most_open == connections
    assert copy_threads() == []


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"answer": lambda number, offset: TransientError("busy, says the server")}, SourceReadError, "busy.* 3 tries"),
        ({"answer": lambda number, offset: changed() if number == 5 else 2 * MIB}, SourceChangedError, "version"),
        ({"answer": lambda number, offset: TransientError("429", wait_s=3600.0)}, SourceReadError, "3600 seconds"),
        ({"size": SIZE + 1}, SourceReadError, f"byte {SIZE:,}"),
    ],
    ids=["no progress", "another version", "an hour of rest", "less than it says"],
)
def test_what_ends_the_copy_is_told(
    open_arriving: Open, content: bytes, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    """At once where trying again is of no use; nothing is made up for bytes that are missing."""
    connections = attempts = 3
    source = MemoryFile(content, connections=connections, **options)
    with open_arriving(source, policy=RetryPolicy(attempts=attempts, first_wait_s=0.001)) as arriving:
        for _ in range(2):
            with pytest.raises(error, match=named) as raised:
                arriving.wait()
            assert type(raised.value) is error
    # What each connection got, and every try of each in both waits.
    assert len(source.requests) <= connections + 2 * connections * attempts


def test_refused_connections_leave_the_work_to_the_others(open_arriving: Open, content: bytes) -> None:
    """A server that takes three at once and answers the others 503 still gives everything, three at once to the end."""
    served: list[int] = []

    def refuse(number: int, offset: int) -> Exception | None:
        return TransientError("503", wait_s=0.05) if far.open > 3 else None

    def note(position: int) -> None:
        served.append(far.open)

    far = MemoryFile(content, bytes_per_s=20e6, connections=8, answer=refuse, at=note)
    with open_arriving(far, policy=RetryPolicy(attempts=2, first_wait_s=0.01)) as arriving:
        arriving.wait()
        assert arriving.pread(SIZE, 0) == content
    # All but the last pieces came while at least two others were on their way.
    assert sum(count >= 3 for count in served) >= 0.7 * len(served)


@pytest.mark.slow
def test_hanging_connection_is_taken_over(open_arriving: Open, content: bytes) -> None:
    """One of four hangs in its first stretch; the others bring its bytes too."""
    release = threading.Event()
    source = MemoryFile(content, connections=4, at=lambda position: position == MIB and release.wait(30))
    try:
        with open_arriving(source) as arriving:
            # Another connection that comes by the same byte does not hang.
            threading.Timer(1.0, lambda: setattr(source, "_at", lambda position: None)).start()
            arriving.wait()
            assert arriving.pread(SIZE, 0) == content
            release.set()
    finally:
        release.set()
    wait_until(lambda: copy_threads() == [])


def test_who_is_refused_for_longer_than_patience_lasts_is_told_and_keeps_what_came(
    open_arriving: Open, content: bytes, target: Path, step: Any
) -> None:
    """The tries are those of one connection by then, ever more rarely, also where a server says "at once"; what is
    finished is not fetched again."""
    policy, clock = RetryPolicy(first_wait_s=0.05, patience_s=60.0), ManualClock()
    refuse = lambda number, offset: TransientError("503, says the server", wait_s=0.0) if offset >= 8 * MIB else None  # noqa: E731
    source = MemoryFile(content, connections=2, answer=refuse)
    began = clock.now()
    with open_arriving(source, policy=policy, clock=clock) as arriving, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arriving.wait)
        until_done([waiting], clock)
        with pytest.raises(SourceReadError, match=r"503.* \d+ tries"):
            waiting.result()
    assert clock.now() - began > policy.patience_s
    assert 2 * policy.attempts < len(source.requests) < 100
    assert len(leftovers(target)) == 1
    step.total = 0
    rest = MemoryFile(content, connections=1)
    with open_arriving(rest) as arriving:
        arriving.wait()
        assert arriving.kept_bytes == 8 * MIB
        arriving.move_to(target)
    assert target.read_bytes() == content
    assert (rest.sent, step.total) == (SIZE - 8 * MIB, SIZE)
    assert leftovers(target) == []
