"""Decide which connection fetches which bytes of one file, and how many at once. Pure: times are arguments, nothing
waits.

A request costs a round trip before its first byte, so each connection requests a byte range long enough to make that
cost small at the measured speed, but at most an even share of what is not requested yet. When everything is requested,
a free connection takes over the end of the range that would otherwise finish last. Ranges are handed out from the
front, so that readers in order are served while it arrives; or preferred ranges first, and the rest once
that has come.

More connections hide round trips, and add up if each is slow by itself. If the line is slow, they share it: then all
requested ranges arrive late together, and the most urgent does not come first.

Not thread-safe: callers hold their own lock.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# The round trip of a request should cost no more than this share of the time its bytes take.
_OVERHEAD = 0.02
# Readers at the front wait while ranges further back arrive, so the length of ranges is limited.
_LONGEST_BYTES = 64 * 1024 * 1024
# Less than this is not worth a separate request while there is other work.
_GRAIN_BYTES = 1024 * 1024
_DOUBLINGS = 6
# The first preferred bytes are requested in parts of this share of a stretch, and up to this much more.
_LEAST_PART, _PARTS = 0.35, 0.8
# Neighbours among the next preferred ranges are combined in one request if that is needed to keep the line full: at
# most this many ranges, and this many times what the line delivers between a request and its first byte, divided by the
# connections.
_SOON, _FULL = 64, 3.0
# The rate of all connections together is measured over at least this time.
_PACE_S = 0.25
# A limit on the bytes in flight is only set below this share of what all connections have in flight.
_WORTH_LIMITING = 0.6
# Ranges begin and end where pages do.
_PAGE_BYTES = 64 * 1024
# Taking a range over must spare this many seconds beyond what another request costs.
_WORTH_S = 0.05
# Neither is taking less than this from a connection that is still delivering.
_LEAST_TAKEN_BYTES = 256 * 1024
# A connection that is silent for this long, and for many times the longest silence that ended, is unlikely to continue.
_SILENT_S = 3.0
_SILENCES = 5


class IntervalSet:
    """Hold which bytes of a file are present: disjoint sorted ranges, neighbours joined."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def add(self, begin: int, end: int) -> int:
        """Add a range, which may overlap others; return how many of its bytes are new."""
        if begin >= end:
            return 0
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        joined = slice(first, last)
        before = sum(self._ends[joined]) - sum(self._begins[joined])
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[joined] = [begin]
        self._ends[joined] = [end]
        self.total += end - begin - before
        return end - begin - before

    def first_missing(self, begin: int, end: int) -> int | None:
        """Return the first missing byte of the range; `None` if there is none."""
        if begin >= end:
            return None
        place = bisect.bisect_right(self._begins, begin) - 1
        reach = max(begin, self._ends[place]) if place >= 0 else begin
        return reach if reach < end else None

    def missing(self, size: int) -> list[tuple[int, int]]:
        """Return the missing ranges `(begin, end)` of a file of `size` bytes, in order."""
        edges = zip([0, *self._ends], [*self._begins, size], strict=True)
        return [(begin, end) for begin, end in edges if begin < end]


@dataclass(slots=True, eq=False)
class ByteRange:
    """Describe bytes that one connection fetches in order."""

    begin: int
    """The first of them."""
    end: int
    """The byte after the last; moves forward when others take over the end."""
    asked_at: float
    """When the range was handed out."""
    position: int = -1
    """The first byte that has not arrived yet."""
    first_byte_at: float | None = None
    """When its first bytes arrived; `None` before."""
    moved_at: float | None = None
    """When its latest bytes arrived; `None` before the first."""
    is_preferred: bool = False
    """Whether somebody waits for them."""

    def __post_init__(self) -> None:
        self.position = max(self.position, self.begin)

    @property
    def heard_at(self) -> float:
        """Return when its connection last delivered something, or was asked."""
        return self.asked_at if self.moved_at is None else self.moved_at

    @property
    def left(self) -> int:
        """Return the number of missing bytes."""
        return max(0, self.end - self.position)


class RangeScheduler:
    """Keep track of what is still to be fetched, and by which connection."""

    def __init__(self, gaps: Iterable[tuple[int, int]], *, connections: int, block_bytes: int) -> None:
        """Plan to fetch the ranges `(begin, end)` in `gaps`, which are sorted and disjoint.

        Args:
            connections: how many fetch at once.
            block_bytes: the length of a range while the source has not been measured.
        """
        self._gaps = list(gaps)
        self._connections = connections
        self._block_bytes = block_bytes
        self._active: list[ByteRange] = []
        self._wanted: deque[tuple[int, int]] = deque()
        # Whether the rest is fetched as well, once all preferred bytes have arrived.
        self.brings_rest = True
        self._preferred = self._stretch_bytes = 0
        self._unasked = sum(end - begin for begin, end in self._gaps)
        self._round_bytes = self._left_in_round = 0
        # What counts as silence. It doubles with each take-over because of silence: if all connections to a source are
        # slow, they must not take ranges from each other for ever.
        self._silent_s = _SILENT_S
        self._longest_silence_s = 0.0
        self.first_byte_s: float | None = None
        self._least_first_byte_s = math.inf
        # Applies while preferred bytes are fetched; a limit keeps them in order.
        self.most_under_way = math.inf
        self.bytes_per_s: float | None = None
        # The rate of all connections together, since a time and a number of bytes.
        self._pace_bytes_per_s, self._come = 0.0, 0
        self._paced_from: tuple[float, int] | None = None

    @property
    def active(self) -> tuple[ByteRange, ...]:
        """Return the ranges that are being fetched."""
        return tuple(self._active)

    @property
    def front(self) -> int | None:
        """Return the first byte that is not requested; `None` if there is none."""
        return self._gaps[0][0] if self._gaps else None

    def prefer(self, byte_ranges: Iterable[tuple[int, int]]) -> None:
        """Hand out these byte ranges `(begin, end)` first, in this order, unless they are requested already; replaces
        earlier preferences."""
        self._wanted = deque(byte_ranges)
        first = list(islice(self._wanted, self._connections))
        self._stretch_bytes = sum(end - begin for begin, end in first) // max(1, len(first))

    def is_preferred(self, offset: int, most_bytes: int) -> bool:
        """Return whether a byte is among the first `most_bytes` that are preferred and not requested."""
        ahead = 0
        for begin, end in self._wanted:
            if begin <= offset < end:
                return True
            ahead += end - begin
            if ahead > most_bytes:
                return False
        return False

    def under_way(self, now: float) -> int:
        """Return how many requested bytes have not arrived, without those of silent connections."""
        return sum(one.left for one in self._active if now - one.heard_at <= self._silent_s)

    def has_room(self, now: float) -> bool:
        """Return whether more may be requested."""
        return not self._wanted or self.under_way(now) < self.most_under_way

    def enough_under_way(self, bytes_per_s: float) -> float:
        """Return how many bytes in flight keep a line of this rate full while preferred ranges arrive; infinity if
        nothing is preferred, because the order does not matter then."""
        if not self._wanted or math.isinf(self._least_first_byte_s):
            return math.inf
        # What the line delivers between a request and its first byte, one stretch that is arriving, and one to spare.
        enough = bytes_per_s * self._least_first_byte_s + 2 * self._stretch_bytes
        return enough if enough < _WORTH_LIMITING * self._connections * self._stretch_bytes else math.inf

    def take(self, now: float) -> ByteRange | None:
        """Return a range for a free connection; `None` if nothing is worth a request now."""
        if not self.has_room(now):
            return None
        byte_range = self._cut_gap(now) if self._gaps and not self._rests(now) else self._take_over(now)
        if byte_range is not None:
            self._active.append(byte_range)
        return byte_range

    def _rests(self, now: float) -> bool:
        """Tell whether the remaining gaps have to wait: nobody needs them, or they would share the line with the last
        preferred bytes."""
        if self.brings_rest and not any(
            one.is_preferred and now - one.heard_at <= self._silent_s for one in self._active
        ):
            return False
        return self._preferred_gap() is None

    def advance(self, byte_range: ByteRange, position: int, now: float) -> None:
        """Note that the bytes of a range before `position` have arrived."""
        self._longest_silence_s = max(self._longest_silence_s, now - byte_range.heard_at)
        if byte_range.first_byte_at is None:
            byte_range.first_byte_at = now
            waited_s = now - byte_range.asked_at
            self.first_byte_s = _moving_mean(self.first_byte_s, waited_s)
            self._least_first_byte_s = min(self._least_first_byte_s, waited_s)
        self._come += position - byte_range.position
        self._measure_pace(now)
        byte_range.position = position
        byte_range.moved_at = now
        if not byte_range.left:
            self.finish(byte_range, now)

    def _measure_pace(self, now: float) -> None:
        if self._paced_from is None:
            self._paced_from = now, self._come
        began, come = self._paced_from
        if now - began >= max(_PACE_S, self._least_first_byte_s):
            self._pace_bytes_per_s, self._paced_from = (self._come - come) / (now - began), (now, self._come)

    def ask_again(self, byte_range: ByteRange, now: float) -> None:
        """Note that the connection of a range is reopened for the rest of it."""
        byte_range.begin, byte_range.asked_at = byte_range.position, now
        byte_range.first_byte_at = byte_range.moved_at = None

    def finish(self, byte_range: ByteRange, now: float) -> None:
        """Note that a range is no longer being fetched; the rest of it is handed out again."""
        if byte_range not in self._active:
            return
        self._active.remove(byte_range)
        fetched = byte_range.position - byte_range.begin
        if byte_range.first_byte_at is not None and fetched >= _GRAIN_BYTES:
            self.bytes_per_s = _moving_mean(self.bytes_per_s, fetched / max(now - byte_range.first_byte_at, 1e-6))
        if byte_range.left:
            bisect.insort(self._gaps, (byte_range.position, byte_range.end))
            self._unasked += byte_range.left
            byte_range.end = byte_range.position

    def _cut_gap(self, now: float) -> ByteRange:
        number, begin, end = self._next_gap()
        if self._preferred >= self._connections:
            end = self._join_neighbours(begin, end, self._gaps[number][1])
        length = self._length()
        grain = _GRAIN_BYTES
        if self._wanted:
            # Somebody waits for the first of them: all connections fetch it together, and twice as much each time.
            length = min(length, _GRAIN_BYTES << min(self._preferred // self._connections, _DOUBLINGS))
            if self._preferred < self._connections:
                # Requests that begin together share the line, and the first bytes should not arrive at half speed
                # because of later ones. So two connections fetch a stretch; in unequal parts, or all would send the
                # next request, and wait for their round trips, at the same time.
                grain, part = _LEAST_TAKEN_BYTES, _LEAST_PART + _PARTS * self._preferred / self._connections
                length = min(length, max(grain, int(self._stretch_bytes * part)))
            self._preferred += 1
        cut = begin + length
        if end - cut < grain:
            cut = end
        first, last = self._gaps[number]
        self._gaps[number : number + 1] = [rest for rest in ((first, begin), (cut, last)) if rest[0] < rest[1]]
        self._unasked -= cut - begin
        return ByteRange(begin, cut, now, is_preferred=bool(self._wanted))

    def _join_neighbours(self, begin: int, end: int, most: int) -> int:
        """Return the end of a request that starts at `begin`: `end`, or that of neighbours that are preferred soon."""
        wanted = _FULL * self._pace_bytes_per_s * self._least_first_byte_s / self._connections
        if not self._pace_bytes_per_s or end - begin >= wanted:
            return end
        soon = dict(islice(self._wanted, _SOON))
        while end - begin < wanted and end < most and end in soon:
            end = min(most, soon[end])
        return end

    def _next_gap(self) -> tuple[int, int, int]:
        """Return the number of the gap to cut next, and the part of it that may be handed out."""
        return self._preferred_gap() or (0, *self._gaps[0])

    def _preferred_gap(self) -> tuple[int, int, int] | None:
        """Return the same for preferred ranges; `None` if all of them are requested."""
        while self._wanted:
            begin, end = self._wanted[0]
            # The first gap that ends after the beginning of the range.
            number = bisect.bisect_right(self._gaps, begin, key=lambda gap: gap[1])
            if number < len(self._gaps) and self._gaps[number][0] < end:
                first, last = self._gaps[number]
                return number, max(begin, first), min(end, last)
            self._wanted.popleft()
        return None

    def _length(self) -> int:
        """Return the length of the next range: the same for a whole round, so that the ranges of the last round end
        together."""
        if not self._left_in_round:
            share = max(_GRAIN_BYTES, _round_up(-(-self._unasked // self._connections), _PAGE_BYTES))
            preferred = preferred_bytes(self.first_byte_s, self.bytes_per_s, self._block_bytes)
            # A round that would leave less than half of its length for the next one includes the rest.
            self._round_bytes = share if share < 1.5 * preferred else preferred
            self._left_in_round = self._connections
        self._left_in_round -= 1
        return self._round_bytes

    def _take_over(self, now: float) -> ByteRange | None:
        """Return the end of the range that would finish last, cut so that both parts finish together."""
        rated = [(self._rate(byte_range, now), byte_range) for byte_range in self._active if byte_range.left]
        known = [(one.left / rate if rate else math.inf, rate, one) for rate, one in rated if rate is not None]
        if not known:
            return None
        longest_s, rate, victim = max(known, key=lambda one: one[0])
        own = self.bytes_per_s or max(other for _, other, _ in known) or 1.0
        spared_s = longest_s - victim.left / (rate + own)
        if spared_s < 2 * (self.first_byte_s or 0.0) + _WORTH_S:
            return None
        cut = victim.position + int(victim.left * rate / (rate + own))
        if rate and victim.end - cut < _LEAST_TAKEN_BYTES:
            return None
        if not rate:
            self._silent_s *= 2
        byte_range = ByteRange(cut, victim.end, now, is_preferred=victim.is_preferred)
        victim.end = cut
        if not victim.left:
            self._active.remove(victim)
        return byte_range

    def _rate(self, byte_range: ByteRange, now: float) -> float | None:
        """Return the expected bytes per second of a range; `None` if it is too early to tell."""
        round_trip = self.first_byte_s or 0.0
        if now - byte_range.heard_at > max(self._silent_s, _SILENCES * self._longest_silence_s):
            return 0.0
        running_s = 0.0 if byte_range.first_byte_at is None else now - byte_range.first_byte_at
        if running_s < max(2 * round_trip, _WORTH_S):
            return self.bytes_per_s
        return (byte_range.position - byte_range.begin) / running_s


def preferred_bytes(first_byte_s: float | None, bytes_per_s: float | None, block_bytes: int) -> int:
    """Return how long a range should be, in whole blocks: one block while the source has not been measured. Pure."""
    if first_byte_s is None or bytes_per_s is None:
        return block_bytes
    wanted = min(first_byte_s / _OVERHEAD * bytes_per_s, _LONGEST_BYTES)
    return max(block_bytes, _round_up(int(wanted), block_bytes))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _moving_mean(before: float | None, value: float) -> float:
    """Return a mean weighted towards the latest values."""
    return value if before is None else before + 0.2 * (value - before)


# Rates are measured for this long, after a pause in which a new connection gets up to speed.
_MEASURE_S = 1.0
_SETTLE_S = 0.5
# An additional connection is kept if the total rate grows by this factor.
_WORTH = 1.15
# Everything requested before the sufficient number is known arrives out of order, so the first measurement is short; it
# is verified later anyway. Later ones wait until the other requests have been answered.
_FIRST_SETTLE_S, _FIRST_MEASURE_S = 0.02, 0.4
_AGAIN_SETTLE_S = 2.0
# A limit is too low if less than this share of the rate without it arrives, or if this many times the bytes in flight
# increase the rate by the other factor.
_KEPT = 0.8
_STEP, _MORE = 1.5, 1.07
# Measured again, because a line or a server may have been slow for a while.
_AGAIN_S = 60.0


class ConnectionTuner:
    """Tune the number of `wanted` connections, up to `most`: one more as long as the last one was worth it."""

    def __init__(self, first: int, most: int) -> None:
        self.wanted = first
        self._most = most
        self._from: tuple[float, int] | None = None
        self._due = 0.0
        self._rate: float | None = None
        self._done = first >= most

    def is_due(self, now: float) -> bool:
        """Return whether it is time to call `look`."""
        return not self._done and now >= self._due

    def look(self, now: float, arrived: int) -> None:
        """Decide, with so many bytes arrived so far."""
        if self._from is None:
            self._from, self._due = (now, arrived), now + _MEASURE_S
            return
        rate = _rate_since(self._from, now, arrived)
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
    """Limit the bytes in flight: at first not at all, then to as few as keep the line full; without a limit again if
    that lowers the rate, because then the line is not the bottleneck."""

    def __init__(self, *, enough: Callable[[float], float], under_way: Callable[[float], int]) -> None:
        """Start without a limit.

        Args:
            enough: returns how many bytes in flight keep a line of the given bytes per second full.
            under_way: returns how many are in flight at a time: requests from before the limit still arrive.
        """
        self.most = math.inf
        self._enough = enough
        self._under_way = under_way
        self._measured: Literal["all", "few", "nothing"] = "all"
        self._measure_s = _FIRST_MEASURE_S
        self._due: float | None = None
        # The start of measuring the rate with a limit, and without one.
        self._from: tuple[float, int] | None = None
        self._all_from = (0.0, 0)
        self._rate = 0.0
        # The limit before this one, and its rate.
        self._lower = (math.inf, 0.0)

    def is_due(self, now: float) -> bool:
        """Return whether it is time to call `look`. First called when the first bytes have arrived."""
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
                # Everything requested without a limit has arrived by now: the longer it took, the more certain its
                # rate.
                self._rate = _rate_since(self._all_from, now, arrived)
        elif self._measured == "all":
            self._all_from, self._rate, self._lower = self._from, 0.0, (math.inf, 0.0)
            self.most = self._enough(_rate_since(self._from, now, arrived))
            self._measure("few", now)
        else:
            self._judge(_rate_since(self._from, now, arrived), now)

    def _judge(self, rate: float, now: float) -> None:
        """Decide by the rate with a limit; try whether more bytes in flight increase it."""
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


def _rate_since(began: tuple[float, int], now: float, arrived: int) -> float:
    return (arrived - began[1]) / max(now - began[0], 1e-9)
