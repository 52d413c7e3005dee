"""How much to ask for at once, by the rate at which it comes: pure accounting, times come in as arguments.

More connections hide round trips, and add up where each is slow by itself. Where it is the line that is slow, they
share it: then all that is asked for comes late together, and what is wanted first does not come first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

# A rate is measured for so long, after a pause in which a new connection gets going.
_MEASURE_S = 1.0
_SETTLE_S = 0.5
# One connection more has to make the whole so much faster to stay.
_WORTH = 1.15
# What is asked for until it is known how much is enough comes out of order, so this is short the first time; whether it
# is enough is measured anyway. Later, what is asked for besides has to come first.
_FIRST_SETTLE_S, _FIRST_MEASURE_S = 0.02, 0.4
_AGAIN_SETTLE_S = 2.0
# A limit under which less comes than this share of what came without it is too low. So is one where so many times as
# much under way brings so much more.
_KEPT = 0.8
_STEP, _MORE = 1.5, 1.07
# A line that was slow for a while, or a server that was, is measured again.
_AGAIN_S = 60.0


class ConnectionTuner:
    """`wanted` connections, from a first number to at most `most`: one more as long as the last one proved worth it."""

    def __init__(self, first: int, most: int) -> None:
        self.wanted = first
        self._most = most
        self._from: tuple[float, int] | None = None
        self._due = 0.0
        self._rate: float | None = None
        self._done = first >= most

    def is_due(self, now: float) -> bool:
        """Return whether it is time to look."""
        return not self._done and now >= self._due

    def look(self, now: float, arrived: int) -> None:
        """Decide, with so many bytes arrived so far."""
        if self._from is None:
            self._from, self._due = (now, arrived), now + _MEASURE_S
            return
        rate = _rate(self._from, now, arrived)
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


class FlightLimit:
    """How many bytes may be under way at once: any number, then as few as keep the line full; any number again where
    these bring less, since then it is not the line that is slow."""

    def __init__(self, *, enough: Callable[[float], float], under_way: Callable[[float], int]) -> None:
        """Begin without a limit.

        Args:
            enough: returns how many bytes under way keep a line of so many bytes a second full.
            under_way: returns how many are at a time: what was asked for before there was a limit still comes.
        """
        self.most = math.inf
        self._enough = enough
        self._under_way = under_way
        self._measured: Literal["all", "few", "nothing"] = "all"
        self._measure_s = _FIRST_MEASURE_S
        self._due: float | None = None
        # Where the rate with a limit, and that without one, are measured from.
        self._from: tuple[float, int] | None = None
        self._all_from = (0.0, 0)
        self._rate = 0.0
        # The limit before this one, and its rate.
        self._lower = (math.inf, 0.0)

    def is_due(self, now: float) -> bool:
        """Return whether it is time to look. First asked when the first bytes have come."""
        if self._due is None:
            self._due = now + _FIRST_SETTLE_S
        return now >= self._due and self._under_way(now) <= self.most

    def look(self, now: float, arrived: int) -> None:
        """Decide, with so many bytes arrived so far."""
        if self._measured == "nothing":
            self.most = math.inf
            self._measure("all", now + _AGAIN_SETTLE_S)
        elif self._from is None:
            self._from, self._due = (now, arrived), now + self._measure_s
            if self._measured == "few" and not self._rate:
                # All that was asked for without a limit has come by now: the longer, the surer is its rate.
                self._rate = _rate(self._all_from, now, arrived)
        elif self._measured == "all":
            self._all_from, self._rate, self._lower = self._from, 0.0, (math.inf, 0.0)
            self.most = self._enough(_rate(self._from, now, arrived))
            self._measure("few", now)
        else:
            self._judge(_rate(self._from, now, arrived), now)

    def _judge(self, rate: float, now: float) -> None:
        """Decide by the rate with a limit: whether more under way brings more is tried."""
        if rate < _KEPT * self._rate:
            self.most = math.inf
        elif rate > _MORE * self._lower[1]:
            self._lower = self.most, rate
            self.most *= _STEP
            self._measure("few", now + _SETTLE_S)
            return
        else:
            self.most = self._lower[0]
        self._measure("nothing", now + _AGAIN_S)

    def _measure(self, what: Literal["all", "few", "nothing"], due: float) -> None:
        self._measured, self._due, self._from, self._measure_s = what, due, None, _MEASURE_S


def _rate(began: tuple[float, int], now: float, arrived: int) -> float:
    return (arrived - began[1]) / max(now - began[0], 1e-9)
