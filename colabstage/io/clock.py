"""Time as an argument: whoever waits, measures or gives up takes a clock, and a test passes one that it turns itself.

Deadlines are compared with `now`, pauses are made with `sleep`, and threads that wait for each other do so with `wait`.
What other programs and the kernel do in the meantime takes real time, whatever the clock says.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What `SystemClock` does, or what a test makes of it."""

    def now(self) -> float:
        """Return seconds since some moment; they never run backwards."""

    def sleep(self, seconds: float, /) -> None:
        """Return after so many seconds."""

    def wait(self, condition: threading.Condition, timeout: float, /) -> bool:
        """Wait, with the lock held, until the condition is notified, at most so many seconds."""


class SystemClock:
    """The computer's own: the functions themselves, so that a look costs no more than without."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    wait = staticmethod(threading.Condition.wait)


SYSTEM_CLOCK = SystemClock()
