"""Decide which bytes are fetched next, and which blocks make way for them. Pure: times are arguments, nothing waits.

`RangeOrder` serves a file that is copied here as a whole. A request costs a round trip before its first byte, so each
connection requests a byte range long enough to make that cost small at the measured speed, but at most an even share of
what is not requested yet. When everything is requested, a free connection takes over the end of the range that would
otherwise finish last. Ranges are handed out from the front, so that readers in order are served while it arrives; or
preferred ranges first, and the rest once these have come.

`Visits` serve readers of files that are larger than their room here. The order of this epoch and the next is known, so
nothing is guessed from what was used last. Belady's rule (1966) says that the block whose next visit is farthest makes
way: no rule fetches less. What comes ahead of need takes the place of another only if it is among the next few that
are visited; fetched sooner, it would cost a block that is here for the next epoch.

Not thread-safe: callers hold their own lock.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

# The round trip of a request should cost no more than this share of the time its bytes take.
_OVERHEAD = 0.02
# Readers at the front wait while ranges further back arrive, so the length of ranges is limited.
_LONGEST_BYTES = 64 * 1024 * 1024
# Less than this is not worth a separate request while there is other work.
_GRAIN_BYTES = 1024 * 1024
# The first preferred requests are this long or up to twice as long, unequal so that the next ones do not all go out at
# the same time; with each round they double. Ranges that follow each other are joined up to a length.
_FIRST_BYTES, _DOUBLINGS, _JOINED_BYTES = 384 * 1024, 8, 8 * 1024 * 1024
# Ranges begin and end where pages do.
_PAGE_BYTES = 64 * 1024
# Taking a range over must spare this many seconds beyond what another request costs.
_WORTH_S = 0.05
# Neither is taking less than this from a connection that is still delivering.
_LEAST_TAKEN_BYTES = 256 * 1024
# A connection that is silent for this long, and for many times the longest silence that ended, is unlikely to continue.
_SILENT_S, _SILENCES = 3.0, 5
# A read this far ahead of the bytes in flight is worth a separate request.
FAR_BYTES = 8 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Run:
    """Bytes that one connection fetches in order."""

    begin: int
    end: int
    """The byte after the last; moves forward when another connection takes over the end."""
    asked_at: float
    is_preferred: bool = False
    position: int = -1
    first_byte_at: float | None = None
    moved_at: float | None = None
    """When the latest bytes arrived; `None` before the first."""

    def __post_init__(self) -> None:
        self.position = max(self.position, self.begin)

    @property
    def active_at(self) -> float:
        """Return when its connection last delivered something, or was last used."""
        return self.asked_at if self.moved_at is None else self.moved_at

    @property
    def left(self) -> int:
        return max(0, self.end - self.position)

    def ask_again(self, now: float) -> None:
        self.begin, self.asked_at = self.position, now
        self.first_byte_at = self.moved_at = None


class Order:
    """Decides which bytes are fetched next. Every method is called with the fetcher's lock held."""

    look_s = 0.05
    """How often a free connection checks whether there is something to do."""
    is_endless = False
    """Whether more may be wanted when everything is local."""

    def take(self, now: float) -> Run | None:
        """Return bytes for a free connection; `None` if nothing is worth a request now."""
        raise NotImplementedError

    def advance(self, run: Run, position: int, now: float) -> None:
        """Note that the bytes of a run before `position` have arrived."""
        raise NotImplementedError

    def release(self, run: Run, now: float) -> None:
        """Note that a run is no longer being fetched; the rest of it is handed out again."""
        raise NotImplementedError

    def again(self, begin: int, end: int) -> None:
        """Hand out bytes again that have arrived wrong."""
        raise NotImplementedError

    def done(self, block: int) -> None:
        """Note that a block is local and verified."""

    def close(self) -> None:
        """Note that nothing more is fetched."""


class RangeOrder(Order):
    """The missing ranges of one file, and the connection that fetches each."""

    def __init__(self, gaps: Iterable[tuple[int, int]], *, connections: int, block_bytes: int) -> None:
        """Plan to fetch the ranges `(begin, end)` in `gaps`, which are sorted and disjoint.

        Requests have `block_bytes` while the source has not been measured.
        """
        self._gaps = list(gaps)
        self._connections, self._block_bytes = connections, block_bytes
        self.active: list[Run] = []
        self._wanted: deque[tuple[int, int]] = deque()
        # Whether the rest is fetched as well, once all preferred bytes have arrived.
        self.fetches_rest = True
        self._preferred = self._stretch_bytes = 0
        self._round_bytes = self._left_in_round = 0
        # What counts as silence. It doubles with each take-over because of silence: if all connections to a source are
        # slow, they must not take ranges from each other for ever.
        self._silent_s = _SILENT_S
        self._longest_silence_s = 0.0
        self._first_byte_s: float | None = None
        self._bytes_per_s: float | None = None
        self._pacing = Pacing(math.inf)

    def leave(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Plan to fetch these ranges instead, before anything is requested."""
        self._gaps = list(gaps)

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Hand out these byte ranges `(begin, end)` first, in this order, and with `alone` no others; replaces earlier
        preferences."""
        self._wanted, self.fetches_rest = deque(_joined(byte_ranges)), not alone
        first = list(islice(self._wanted, self._connections))
        self._stretch_bytes = sum(end - begin for begin, end in first) // max(1, len(first))

    def is_far(self, offset: int) -> bool:
        """Return whether a missing byte will not arrive soon."""
        for run in self.active:
            if run.position <= offset < run.end:
                return offset - run.position > FAR_BYTES
        # Reads in the preferred order are served sooner than by separate requests.
        ahead, most_bytes = 0, FAR_BYTES * self._connections if self.fetches_rest else math.inf
        for begin, end in self._wanted:
            if begin <= offset < end:
                return False
            if (ahead := ahead + end - begin) > most_bytes:
                break
        if not self.fetches_rest:
            return True
        return bool(self._gaps) and offset - self._gaps[0][0] > FAR_BYTES

    def take(self, now: float) -> Run | None:
        if self._wanted and not self._pacing.allows(now, self.active, self._stretch_bytes):
            return None
        run = self._cut_gap(now) if self._gaps and not self._must_wait(now) else self._take_over(now)
        if run is not None:
            self.active.append(run)
            self._pacing.sent(run.left, now, is_last=len(self.active) >= self._connections)
        return run

    def advance(self, run: Run, position: int, now: float) -> None:
        self._longest_silence_s = max(self._longest_silence_s, now - run.active_at)
        if run.first_byte_at is None:
            run.first_byte_at = now
            self._first_byte_s = _moving_mean(self._first_byte_s, now - run.asked_at)
        self._pacing.arrived(run, position, now)
        run.position, run.moved_at = position, now
        if not run.left:
            self.release(run, now)

    def release(self, run: Run, now: float) -> None:
        if run not in self.active:
            return
        self.active.remove(run)
        fetched = run.position - run.begin
        if run.first_byte_at is not None and fetched >= _GRAIN_BYTES:
            self._bytes_per_s = _moving_mean(self._bytes_per_s, fetched / max(now - run.first_byte_at, 1e-6))
        if run.left:
            bisect.insort(self._gaps, (run.position, run.end))
            run.end = run.position

    def again(self, begin: int, end: int) -> None:
        bisect.insort(self._gaps, (begin, end))

    def _must_wait(self, now: float) -> bool:
        """Return whether the remaining gaps have to wait: nobody needs them, or they would share the line with the last
        preferred bytes."""
        waited = any(run.is_preferred and now - run.active_at <= self._silent_s for run in self.active)
        return (waited or not self.fetches_rest) and self._preferred_gap() is None

    def _cut_gap(self, now: float) -> Run:
        number, begin, end = self._preferred_gap() or (0, *self._gaps[0])
        length, grain, is_preferred = self._length(), _GRAIN_BYTES, bool(self._wanted)
        if is_preferred:
            # A reader waits for the first of them: all connections fetch it together.
            turn, place = divmod(self._preferred, self._connections)
            first_bytes = int(_FIRST_BYTES * (1 + place / self._connections))
            length, grain = min(length, first_bytes << min(turn, _DOUBLINGS)), _LEAST_TAKEN_BYTES
            self._preferred += 1
        cut = begin + length if end - begin - length >= grain else end
        first, last = self._gaps[number]
        self._gaps[number : number + 1] = [rest for rest in ((first, begin), (cut, last)) if rest[0] < rest[1]]
        return Run(begin, cut, now, is_preferred)

    def _preferred_gap(self) -> tuple[int, int, int] | None:
        """Return the number of the gap that a reader needs first, and the part of it that is preferred."""
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
            unasked = sum(end - begin for begin, end in self._gaps)
            share = max(_GRAIN_BYTES, _round_up(-(-unasked // self._connections), _PAGE_BYTES))
            preferred = range_bytes(self._first_byte_s, self._bytes_per_s, self._block_bytes)
            # A round that would leave less than half of its length for the next one includes the rest.
            self._round_bytes = share if share < 1.5 * preferred else preferred
            self._left_in_round = self._connections
        self._left_in_round -= 1
        return self._round_bytes

    def _take_over(self, now: float) -> Run | None:
        """Return the end of the run that would finish last, cut so that both parts finish together."""
        rated = [(self._rate(run, now), run) for run in self.active if run.left]
        known = [(run.left / rate if rate else math.inf, rate, run) for rate, run in rated if rate is not None]
        if not known:
            return None
        longest_s, rate, victim = max(known, key=lambda one: one[0])
        own = self._bytes_per_s or max(other for _, other, _ in known) or 1.0
        spared_s = longest_s - victim.left / (rate + own)
        cut = victim.position + int(victim.left * rate / (rate + own))
        if spared_s < 2 * (self._first_byte_s or 0.0) + _WORTH_S or (rate and victim.end - cut < _LEAST_TAKEN_BYTES):
            return None
        if not rate:
            self._silent_s *= 2
        run = Run(cut, victim.end, now, victim.is_preferred)
        victim.end = cut
        if not victim.left:
            self.active.remove(victim)
        return run

    def _rate(self, run: Run, now: float) -> float | None:
        """Return the expected bytes per second of a run; `None` if it is too early to tell."""
        if now - run.active_at > max(self._silent_s, _SILENCES * self._longest_silence_s):
            return 0.0
        running_s = 0.0 if run.first_byte_at is None else now - run.first_byte_at
        if running_s < max(2 * (self._first_byte_s or 0.0), _WORTH_S):
            return self._bytes_per_s
        return (run.position - run.begin) / running_s


def _joined(byte_ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join ranges that follow each other: each request costs a round trip."""
    begin = end = 0
    for first, last in byte_ranges:
        if first != end or last - begin > _JOINED_BYTES:
            if begin < end:
                yield begin, end
            begin = first
        end = last
    if begin < end:
        yield begin, end


def range_bytes(first_byte_s: float | None, bytes_per_s: float | None, block_bytes: int) -> int:
    """Return how long a request should be, in whole blocks: one block while the source has not been measured."""
    if first_byte_s is None or bytes_per_s is None:
        return block_bytes
    wanted = min(first_byte_s / _OVERHEAD * bytes_per_s, _LONGEST_BYTES)
    return max(block_bytes, _round_up(int(wanted), block_bytes))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _moving_mean(before: float | None, value: float) -> float:
    return value if before is None else before + 0.2 * (value - before)


# Requests go out at this many times the rate at which bytes arrive, so that the line fills. The time of a request
# beyond a round trip counts as at least this part of one.
_GAIN, _LEAST_TRANSFER = 2.0, 0.1
# Rates are measured for this long.
_MEASURE_S = 1.0
# A limit on bytes in flight stays while the rate is above this share of the unlimited one. The first limit is needed
# soon; later ones must be certain.
_KEPT_RATE, _FIRST_MEASURE_S = 0.8, 0.5


class Pacing:
    """When the next request goes out: at the pace of the line, and with no more in flight than keeps the line full.

    All requests share the line. What is requested together ends together: the first of it comes late, and nothing
    arrives while the next requests wait for a round trip. What is requested too soon delays what is needed first. The
    rate is measured with all connections, then with a limit. If the limit lowers it, the connections are slow, not the
    line, and there is no limit.
    """

    def __init__(self, at_once: float) -> None:
        """Let `at_once` requests go out together at first, all others at the rate of the line."""
        self._first = self._at_once = at_once
        self._next_at, self._rate, self._round_trip_s = math.inf, 0.0, math.inf
        # The bytes that have arrived since a time; whether all connections are busy, and since then.
        self._come, self._from = 0, math.inf
        self._are_busy = self._measures = False
        # The measured rate, and what the line delivers at that rate between a request and its first byte.
        self._full_rate, self._enough, self._has_failed = 0.0, math.inf, False

    def begin_anew(self) -> None:
        """Let the first requests of a new reader go out together."""
        self._at_once = self._first

    def allows(self, now: float, runs: Iterable[Run], unit_bytes: int) -> bool:
        """Return whether a request of about `unit_bytes` may go out beside these."""
        if not self._at_once and now < self._next_at:
            return False
        in_flight = sum(run.left for run in runs if now - run.active_at <= _SILENT_S)
        # The blocks that are arriving, and one to spare.
        return in_flight < self._enough + 2 * unit_bytes

    def sent(self, nbytes: int, now: float, *, is_last: bool) -> None:
        """Note a request for so many bytes; `is_last`: by the last free connection."""
        self._are_busy |= is_last
        self._at_once = max(0, self._at_once - 1)
        if self._rate:
            self._next_at = max(now, min(self._next_at, now + _MEASURE_S)) + nbytes / (_GAIN * self._rate)

    def arrived(self, run: Run, position: int, now: float) -> None:
        """Note that the bytes of a run before `position` have arrived."""
        if run.moved_at is None:
            self._round_trip_s, self._from = min(self._round_trip_s, now - run.asked_at), min(self._from, now)
        self._come += position - run.position
        passed_s, least_s = now - self._from, max(_LEAST_TRANSFER * self._round_trip_s, 1e-3)
        if position == run.end:
            alone = (run.end - run.begin) / max(now - run.asked_at - self._round_trip_s, least_s)
            if not self._rate:
                self._next_at = now
            self._rate = max(self._rate, alone, self._come / max(passed_s, least_s))
        # The first bytes come in bursts.
        first_s = _FIRST_MEASURE_S if self._measures else self._round_trip_s
        if passed_s > (first_s if self._enough == math.inf and not self._has_failed else _MEASURE_S):
            if self._measures and not self._has_failed:
                self._limit(self._come / passed_s)
            self._measures, self._come, self._from = self._are_busy, 0, now

    def _limit(self, rate: float) -> None:
        self._has_failed = rate < _KEPT_RATE * self._full_rate
        self._full_rate = max(rate, self._full_rate)
        self._enough = math.inf if self._has_failed else self._full_rate * self._round_trip_s


# The time of a visit that never comes.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, slots=True)
class Visits:
    """When a reader needs which blocks, counted in rows; in the order of `first`."""

    blocks: NDArray[np.int64]
    first: NDArray[np.int64]
    """The first row that needs it, by its place in the reader's order."""
    last: NDArray[np.int64]
    """The last of the rows that follow closely."""


def find_visits(places: NDArray[np.int64], blocks: NDArray[np.int64], gap: int) -> Visits:
    """Join uses of `blocks`, at `places` counted in rows, into visits: uses of a block with fewer than `gap` rows in
    between are one."""
    if not len(places):
        return Visits(places, places, places)
    # By block, then by time: uses of one block are then adjacent and can be joined.
    order = np.lexsort((places, blocks))
    blocks, places = blocks[order], places[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(blocks) != 0) | (np.diff(places) > gap)])
    found = Visits(blocks[begins], places[begins], places[np.r_[begins[1:] - 1, len(places) - 1]])
    order = np.argsort(found.first, kind="stable")
    return Visits(found.blocks[order], found.first[order], found.last[order])


@dataclass(eq=False, slots=True)
class Reader:
    """One reader's visits and position."""

    visits: Visits
    reached: int = 0
    """Rows that it has finished."""


def next_uses(readers: Sequence[Reader], blocks: int) -> NDArray[np.int64]:
    """Return for each block how many rows away any reader's next visit is, 0 during one; `NEVER` if none is known."""
    found = np.full(blocks, NEVER)
    for reader in readers:
        visits = reader.visits
        # A visit in progress has begun before and has not ended.
        left = np.flatnonzero(visits.last >= reader.reached)
        # Readers are assumed to be equally fast, so rows from now are their common clock.
        np.minimum.at(found, visits.blocks[left], np.maximum(0, visits.first[left] - reader.reached))
    return found


def first_of(next_use: NDArray[np.int64], candidates: NDArray[np.bool_]) -> int | None:
    """Return the candidate that is needed first, `None` if none will be needed."""
    needed = np.where(candidates, next_use, NEVER)
    block = int(needed.argmin())
    return block if needed[block] != NEVER else None


def victim_for(
    block: int, next_use: NDArray[np.int64], candidates: NDArray[np.bool_], *, ahead: int, needed_now: bool
) -> int | None:
    """Return the candidate that should make way for a block, the one needed farthest ahead; `None` if there is none.

    What nobody will need may always go. Others go for a block that a reader waits for (`needed_now`), and for one of
    the next `ahead` blocks that are needed, but not if they are needed before it.
    """
    allowed = candidates.copy()
    allowed[block] = False
    if not needed_now:
        # The blocks of visits in progress are already local.
        is_next = int(((next_use > 0) & (next_use < next_use[block])).sum()) < ahead
        allowed &= (next_use > next_use[block]) if is_next else (next_use == NEVER)
    return int(np.where(allowed, next_use, -1).argmax()) if allowed.any() else None
