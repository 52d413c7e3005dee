"""Members of an archive that lie close together, and are read where they are: one request for several of them.

A round trip takes as long as the bytes of many small members. So where it is known which members will be read, those
with little between them are fetched as one coalesced range, and the next ones while this one is read. Each is dropped
again when those after it are read.
"""

from __future__ import annotations

import bisect
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from colabstage.io.pipeline import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from colabstage.io.progress import Cancellation

# What lies between two members is fetched along with them up to this length: a round trip of 0.1 s costs each of
# sixteen connections no less of a line of 20 MB/s.
_GAP_BYTES = 128 * 1024
_RANGE_BYTES = 1024 * 1024
# Coalesced ranges that are kept behind the latest one that was read: members are read only about in order.
_BEHIND = 16


class CoalescedRange(NamedTuple):
    """A part of the archive that is fetched by one request."""

    begin: int
    """Where it begins."""
    end: int
    """Where it ends."""
    members: int
    """How many ranges that will be read are in it."""


def coalesce(byte_ranges: Iterable[tuple[int, int]]) -> list[CoalescedRange]:
    """Join ranges `(begin, end)` with little between them, as far as they are short together. Pure.

    >>> coalesce([(0, 1000), (5000, 6000), (900_000, 901_000)])
    [CoalescedRange(begin=0, end=6000, members=2), CoalescedRange(begin=900000, end=901000, members=1)]
    """
    found: list[CoalescedRange] = []
    for begin, end in sorted(byte_ranges):
        last = found[-1] if found else None
        if last is not None and begin - last.end <= _GAP_BYTES and end - last.begin <= _RANGE_BYTES:
            found[-1] = CoalescedRange(last.begin, max(end, last.end), last.members + 1)
        else:
            found.append(CoalescedRange(begin, end, 1))
    return found


class Neighbours:
    """Read ranges that were announced, neighbours with one request. `read` may be called from many threads."""

    def __init__(
        self,
        byte_ranges: Iterable[tuple[int, int]],
        fetch: Callable[[int, int], bytes],
        *,
        connections: int,
        readers: int,
        cancellation: Cancellation | None = None,
        stall_timeout_s: float = 180.0,
    ) -> None:
        """Coalesce them.

        Args:
            byte_ranges: each `(begin, end)`, of one member and what little belongs to it.
            fetch: returns the bytes from a place to another one.
            connections: how many coalesced ranges are fetched at once.
            readers: how many read at once where each asks for its member alone. If coalescing gave fewer members at a
                time, nothing is coalesced.
            cancellation: looked at by whoever waits.
            stall_timeout_s: how long to wait for one of them.
        """
        cut = coalesce(byte_ranges)
        shared = [one for one in cut if one.members > 1]
        is_worth = sum(one.members for one in cut) * connections >= readers * len(cut)
        self.coalesced = shared if is_worth else []
        self._begins = [one.begin for one in self.coalesced]
        self._fetch, self._ahead = fetch, connections
        self._cancellation, self._stall_timeout_s = cancellation, stall_timeout_s
        self._lock = threading.Lock()
        self._pool = DaemonPool(connections, "colabstage-neighbours")
        self._coming: dict[int, Future[bytes]] = {}
        self._passed = 0
        self._closed = False

    def read(self, begin: int, end: int) -> bytes | None:
        """Return bytes of one coalesced range, once they are here; `None` for what has to be asked for by itself.

        Raises:
            Exception: as `fetch`; the coalesced range is fetched again for who asks again.
            CancelledError: `cancellation` was used. TimeoutError: it did not come in time.
        """
        number = bisect.bisect_right(self._begins, begin) - 1
        if number < 0 or end > self.coalesced[number].end:
            return None
        with self._lock:
            # What was dropped was read before by nearly all, so only the rest of it would be of use.
            if self._closed or number < self._passed:
                return None
            for following in range(number, min(number + self._ahead, len(self.coalesced))):
                if following not in self._coming:
                    begins, ends, _ = self.coalesced[following]
                    self._coming[following] = self._pool.submit(partial(self._fetch, begins, ends))
            coming = self._coming[number]
            self._passed = max(self._passed, number - _BEHIND)
            for passed in [one for one in self._coming if one < self._passed]:
                del self._coming[passed]
        try:
            (data,) = DaemonPool.results(
                [coming], cancellation=self._cancellation, stall_timeout_s=self._stall_timeout_s
            )
        except BaseException:
            with self._lock:
                if self._coming.get(number) is coming:
                    del self._coming[number]
            raise
        start = self._begins[number]
        return data[begin - start : end - start]

    def close(self) -> None:
        """Fetch nothing more, and forget what has come. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            self._coming.clear()
        self._pool.close(abandon=True)
