"""How many connections are worth it, found out by trying: pure accounting."""

from __future__ import annotations

# A rate is measured for so long, after a pause in which a new connection gets going.
_MEASURE_S = 1.0
_SETTLE_S = 0.5
# One connection more has to make the whole so much faster to stay.
_WORTH = 1.15


class Ramp:
    """`wanted` connections, from a first number to at most `most`: one more as long as the last one proved worth it."""

    def __init__(self, first: int, most: int) -> None:
        self.wanted = first
        self._most = most
        self._from: tuple[float, int] | None = None
        self._due = 0.0
        self._rate: float | None = None
        self._done = first >= most

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return not self._done and now >= self._due

    def look(self, now: float, arrived: int) -> None:
        """Decide, with so many bytes arrived so far."""
        if self._from is None:
            self._from, self._due = (now, arrived), now + _MEASURE_S
            return
        began, before = self._from
        rate = (arrived - before) / max(now - began, 1e-9)
        if self._rate is not None and rate < _WORTH * self._rate:
            self.wanted -= 1
            self._done = True
            return
        if self.wanted == self._most:
            self._done = True
            return
        self._rate = rate
        self.wanted += 1
        self._from, self._due = None, now + _SETTLE_S
