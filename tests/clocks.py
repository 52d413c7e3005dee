"""A clock that only tests turn."""

import threading

# How often threads that wait for each other check whether the clock was turned.
_LOOK_S = 0.002


class ManualClock:
    """A `Clock` that stands still unless somebody sleeps by it or a test turns it; `slept` lists the seconds of each
    sleep.

    `looks`, `waits`: how often the time was read, and a notification waited for.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._lock = threading.Lock()
        self.slept: list[float] = []
        self.looks = self.waits = 0

    def now(self) -> float:
        """The time it shows."""
        with self._lock:
            self.looks += 1
            return self._now

    def sleep(self, seconds: float) -> None:
        """Turn it on, and return at once."""
        with self._lock:
            self.slept.append(seconds)
            self._now += max(0.0, seconds)

    def turn(self, seconds: float) -> None:
        """Let this much time pass for all threads."""
        with self._lock:
            self._now += seconds

    def wait(self, condition: threading.Condition, timeout: float) -> bool:
        """Wait for a notification, but only a moment, so that what callers poll for is found soon."""
        self.waits += 1
        return condition.wait(min(timeout, _LOOK_S))
