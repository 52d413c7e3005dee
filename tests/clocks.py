"""A clock that only tests turn."""

from __future__ import annotations

import threading

# Threads that wait for each other look this often whether the clock was turned meanwhile.
_LOOK_S = 0.002


class ManualClock:
    """A `Clock` that stands until somebody sleeps by it, or a test turns it on; `slept` has each sleep's seconds.

    `looks`, `waits`: how often somebody asked for the time, and waited for a notification.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._lock = threading.Lock()
        self.slept: list[float] = []
        self.looks = self.waits = 0

    def now(self) -> float:
        """What the clock shows."""
        with self._lock:
            self.looks += 1
            return self._now

    def sleep(self, seconds: float) -> None:
        """Turn it on, and be back at once."""
        with self._lock:
            self.slept.append(seconds)
            self._now += max(0.0, seconds)

    def turn(self, seconds: float) -> None:
        """Let so much time pass for everybody."""
        with self._lock:
            self._now += seconds

    def wait(self, condition: threading.Condition, timeout: float) -> bool:
        """Wait for a notification, but only a moment: what a look of a few times a second would find comes sooner."""
        self.waits += 1
        return condition.wait(min(timeout, _LOOK_S))
