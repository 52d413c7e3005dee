"""Reading ahead by a thread that ends whenever it has nothing to do."""

from __future__ import annotations

import threading
import time
import traceback
from typing import TYPE_CHECKING

import pytest

from colabstage.load.frameworks.on_demand import OnDemandPrefetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.io.pipeline import ThreadPool


def make(
    read: Callable[[int, ThreadPool], int], count: int = 20, *, depth: int = 2, threads: int = 1
) -> OnDemandPrefetcher[int]:
    return OnDemandPrefetcher(read, range(count), depth=depth, threads=threads, prepare=list)


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("depth", [1, 4])
def test_results_come_in_order(threads: int, depth: int) -> None:
    """Each once, then there is none left."""
    prefetcher = make(lambda number, pool: number * pool.threads, 200, depth=depth, threads=threads)
    assert [prefetcher.take() for _ in range(200)] == [number * threads for number in range(200)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            prefetcher.take()


def test_no_more_than_asked_is_ready_and_no_thread_waits() -> None:
    """After a result is taken, `depth` others are made, and the thread ends."""
    made: list[int] = []

    def read(number: int, pool: ThreadPool) -> int:
        made.append(number)
        return number

    prefetcher = make(read, depth=3)
    assert prefetcher.take() == 0
    wait_until(lambda: not running())
    assert made == [0, 1, 2, 3]
    assert prefetcher.take() == 1
    wait_until(lambda: len(made) == 5 and not running())


def test_results_are_made_while_the_consumer_works() -> None:
    """Each is begun before it is asked for."""
    begun = [threading.Event() for _ in range(20)]

    def read(number: int, pool: ThreadPool) -> int:
        begun[number].set()
        return number

    prefetcher = make(read)
    for number in range(19):
        assert prefetcher.take() == number
        assert begun[number + 1].wait(20)


def test_an_error_is_raised_where_the_consumer_is() -> None:
    """After the results before it, with the traceback of where it happened."""

    def read(number: int, pool: ThreadPool) -> int:
        if number == 3:
            msg = "broken"
            raise KeyError(msg)
        return number

    prefetcher = make(read, depth=9)
    assert [prefetcher.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="broken") as caught:
        prefetcher.take()
    assert "read" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    wait_until(lambda: not running())


def test_closing_ends_it_at_once() -> None:
    """In the middle of a result, and before anything was taken; twice is fine."""
    started = threading.Event()

    def read(number: int, pool: ThreadPool) -> int:
        started.set()
        time.sleep(0.05)
        return number

    prefetcher = make(read, depth=5)
    prefetcher.take()
    started.clear()
    started.wait(5)
    prefetcher.close()
    prefetcher.close()
    assert running() == []
    make(read).close()


def test_closing_breaks_off_the_preparation() -> None:
    """A file that is being read into memory is not read to its end for nobody."""
    steps: list[int] = []

    def prepare() -> Iterator[None]:
        for number in range(1000):
            steps.append(number)
            time.sleep(0.005)
            yield

    prefetcher = OnDemandPrefetcher(lambda number, pool: number, range(3), depth=1, threads=1, prepare=prepare)

    def consume() -> None:
        with pytest.raises(StopIteration):
            prefetcher.take()

    consumer = threading.Thread(target=consume)
    consumer.start()
    wait_until(lambda: len(steps) > 2)
    prefetcher.close()
    consumer.join(10)
    assert len(steps) < 500
    assert running() == []
