"""An iterator run in a background thread ends in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from colabstage.io.progress import Demand
from colabstage.load.ahead import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead-test"]


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def counting(made: list[int], ended: list[bool]) -> Generator[int]:
    try:
        for number in range(1000):
            made.append(number)
            yield number
    finally:
        ended.append(True)


def test_a_result_is_urgent_as_long_as_none_is_ready() -> None:
    """Whoever makes results can see whether the consumer would have to wait, and is told when nobody wants any."""
    demand, made, go = Demand(), list[bool](), threading.Semaphore(1)

    def looking() -> Generator[int]:
        for number in range(3):
            go.acquire(timeout=30)
            made.append(demand.urgent)
            yield number

    ahead = Ahead(looking(), 2, "ahead-test", demand)
    assert wait_until(lambda: not demand.urgent)
    go.release()
    assert wait_until(lambda: made == [True, False])
    assert [next(ahead), next(ahead)] == [0, 1]
    assert demand.urgent
    go.release()
    assert list(ahead) == [2]
    ahead.close()
    assert demand.cancelled


def test_iterator_from_before_a_fork_is_refused_in_the_child() -> None:
    """In a forked child there is no such thread, and asking is an error instead of a wait for ever."""
    ahead = Ahead(counting([], []), 2, "ahead-test")
    child = os.fork()
    if child == 0:
        try:
            next(ahead)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ahead.close()


def test_interpreter_exits_with_one_running() -> None:
    """A program that ends in the middle of an iteration ends at once and cleanly."""
    code = (
        "from colabstage.load.ahead import Ahead\n"
        "def numbers():\n"
        "    while True:\n"
        "        yield 1\n"
        "ahead = Ahead(numbers(), 2, 'running')\n"
        "print(next(ahead))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_ctrl_c_while_a_loop_is_left_is_not_lost() -> None:
    """Python only prints what is raised while an object is dropped, and would continue behind it."""

    def slow() -> Generator[int]:
        yield 1
        time.sleep(3)
        yield 2

    ahead = [Ahead(slow(), 1, "slow")]
    next(ahead[0])

    def leave() -> None:
        ahead.clear()
        time.sleep(2)

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        leave()
    assert time.monotonic() - began < 1.5


def test_who_stops_without_a_word_keeps_no_thread() -> None:
    """With a time to linger the thread ends by itself, and what it has made is still there."""
    made: list[int] = []
    ahead = Ahead(counting(made, []), 2, "ahead-test", linger_s=0.05)
    assert wait_until(lambda: not threads())
    assert list(ahead) == made == [0, 1, 2]
