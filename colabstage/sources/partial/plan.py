"""The blocks of a pack that is somewhere else: how they are numbered, which to fetch next and which to let go: pure.

Blocks are counted through all files, one file after the other, so that one plan, one table and one limit are enough for
however many there are. An *address* counts bytes in the same way: each file begins with a block of its own, at the
number of that block times the length of a block. Of a single file, addresses are its offsets.

The order of this epoch and the next is known, so nothing is guessed from what was used last. Belady's rule (1966) says
which visits will find their block here, if of all that is here the block whose next visit is farthest is let go each
time: no rule fetches less. A block that will not be here at its next visit may go at once, which makes room to fetch
ahead without fetching more.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import PackFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.sources.parse import SingleSource


@dataclass(frozen=True, slots=True)
class FileOfSet:
    """One file of a pack."""

    source: SingleSource
    """Where it is."""
    name: str
    """What its local, sparse file is called; each of a set has a name of its own."""
    manifest: Manifest
    """What it holds, with the hash of each block."""


class FileSet:
    """Files whose blocks are counted together. Pickles.

    `files`: in the order of their rows. `label`: what all of them are called in messages. `block_bytes`: the length of
    a block, the same in all. Of each block, `file_of`: the number of its file; `offsets`: where in that file it begins;
    `lengths`: its length in bytes; `hashes`: its hash.
    """

    def __init__(self, files: Sequence[FileOfSet], label: str = "") -> None:
        """Count their blocks.

        Args:
            files: at least one.
            label: by default that of the first.

        Raises:
            PackFormatError: their blocks have different lengths.
        """
        self.files = tuple(files)
        self.label = label or self.files[0].source.label
        lengths = {one.manifest.block_bytes for one in self.files}
        if len(lengths) > 1:
            msg = (
                f"The files of '{self.label}' have blocks of {' and of '.join(f'{one:,}' for one in sorted(lengths))} "
                "bytes, so they were not written together. Open each alone, or pack them again."
            )
            raise PackFormatError(msg)
        (self.block_bytes,) = lengths
        self.hashes = tuple(text for one in self.files for text in one.manifest.hashes)
        counts = [len(one.manifest.hashes) for one in self.files]
        self._firsts = np.cumsum([0, *counts])
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self.offsets = (np.arange(self.blocks) - self._firsts[self.file_of]) * self.block_bytes
        sizes = np.array([one.manifest.size for one in self.files], np.int64)
        self.lengths = np.minimum(self.block_bytes, sizes[self.file_of] - self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSet, (self.files, self.label)

    @property
    def blocks(self) -> int:
        """Count the blocks of all files."""
        return len(self.hashes)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Return the first block of each file."""
        return self._firsts[:-1]

    @property
    def size(self) -> int:
        """Return the length of all files together, in bytes."""
        return sum(one.manifest.size for one in self.files)

    @property
    def samples(self) -> dict[str, int]:
        """Return the rows of each split, in all files together."""
        found: dict[str, int] = {}
        for one in self.files:
            for split, rows in one.manifest.samples.items():
                found[split] = found.get(split, 0) + rows
        return found

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return one sentence for each sample that was left out of any file."""
        return tuple(text for one in self.files for text in one.manifest.skipped)

    @property
    def digest(self) -> str:
        """Return 64 hexadecimal digits that change with the content of any block."""
        return hashlib.sha256("".join(self.hashes).encode()).hexdigest()

    def locate(self, block: int) -> tuple[int, int, int]:
        """Return the number of a block's file, where in it the block begins, and its length in bytes."""
        return int(self.file_of[block]), int(self.offsets[block]), int(self.lengths[block])

    def begin(self, number: int) -> int:
        """Return the address at which a file begins."""
        return int(self._firsts[number]) * self.block_bytes

    def end(self, number: int) -> int:
        """Return the address behind the last byte of a file."""
        return self.begin(number) + self.files[number].manifest.size

    def find(self, address: int) -> tuple[int, int]:
        """Return the number of the file that has an address, and the offset in it."""
        number = int(self.file_of[address // self.block_bytes])
        return number, address - self.begin(number)


# A visit that never comes.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, slots=True)
class Visits:
    """Say when a reader needs which blocks, counted in rows; in the order of `first`."""

    blocks: NDArray[np.int64]
    """Which block."""
    first: NDArray[np.int64]
    """The first row, by its place in the reader's order, that needs it."""
    last: NDArray[np.int64]
    """The last one, of those that follow closely."""

    def after(self, other: Visits, rows: int) -> Visits:
        """Return these visits behind another's, who reads `rows` rows."""
        return Visits(
            np.concatenate([other.blocks, self.blocks]),
            np.concatenate([other.first, self.first + rows]),
            np.concatenate([other.last, self.last + rows]),
        )


def find_visits(places: NDArray[np.int64], blocks: NDArray[np.int64], gap: int) -> Visits:
    """Join single uses to visits.

    Args:
        places: when each use is, counted in rows.
        blocks: which block it is of.
        gap: uses of one block with fewer rows than this between them are one visit.
    """
    if not len(places):
        return Visits(places, places, places)
    # By block, then by time: uses of one block stand beside each other and can be joined.
    order = np.lexsort((places, blocks))
    blocks, places = blocks[order], places[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(blocks) != 0) | (np.diff(places) > gap)])
    found = Visits(blocks[begins], places[begins], places[np.r_[begins[1:] - 1, len(places) - 1]])
    order = np.argsort(found.first, kind="stable")
    return Visits(found.blocks[order], found.first[order], found.last[order])


def find_misses(blocks: Sequence[int], capacity: int, here: set[int]) -> NDArray[np.bool_]:
    """Tell which visits will have to fetch their block, by Belady's rule.

    Args:
        blocks: the block of each visit, in order.
        capacity: how many blocks can be here at once, at least 1.
        here: those that are here now.
    """
    # From the end to the beginning: the next use of each visit is the one seen last.
    following = [NEVER] * len(blocks)
    seen: dict[int, int] = {}
    for place in range(len(blocks) - 1, -1, -1):
        following[place] = seen.get(blocks[place], NEVER)
        seen[blocks[place]] = place
    # Of each block that is here the next visit; the heap has the farthest first, and entries that are out of date.
    cached = {block: seen.get(block, NEVER) for block in sorted(here)}
    farthest = [(-following_one, block) for block, following_one in cached.items()]
    heapq.heapify(farthest)
    misses = np.zeros(len(blocks), np.bool_)
    for place, block in enumerate(blocks):
        if block not in cached:
            misses[place] = True
            while len(cached) >= capacity:
                key, victim = heapq.heappop(farthest)
                # An entry that is out of date is dropped here, which is cheaper than finding it in the heap before.
                if cached.get(victim) == -key:
                    del cached[victim]
        cached[block] = following[place]
        heapq.heappush(farthest, (-following[place], block))
    return misses


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """What all readers will need, as of now; made by `look_ahead`."""

    next_use: NDArray[np.int64]
    """Of each block how many rows away its next visit is, 0 while one is under way; `NEVER` where none is known."""
    stays: NDArray[np.bool_]
    """Whether it should be here until then."""

    def first_missing(self, missing: NDArray[np.bool_]) -> int | None:
        """Return the block to fetch next of those that are missing, `None` where nobody will need any of them."""
        waited = np.where(missing, self.next_use, NEVER)
        block = int(waited.argmin())
        return block if waited[block] != NEVER else None

    def victim(self, let_go: NDArray[np.bool_], for_block: int | None, *, needed_now: bool) -> int | None:
        """Return the block to let go for another, of those of `let_go`; `None` where none should.

        The farthest next visit goes first, and none that comes before the other block's. Blocks that are to stay go
        only for one that somebody waits for (`needed_now`).
        """
        allowed = let_go.copy()
        if for_block is not None:
            allowed[for_block] = False
            if not needed_now:
                # To let go what is needed sooner than what comes would be to fetch it twice.
                allowed &= ~self.stays & (self.next_use > self.next_use[for_block])
        if not allowed.any():
            return None
        return int(np.where(allowed, self.next_use, -1).argmax())


@dataclass(eq=False, slots=True)
class Reader:
    """The visits of one reader and how far it is."""

    visits: Visits
    """All of them."""
    reached: int = 0
    """Rows that it is done with."""
    misses: NDArray[np.bool_] | None = None
    """Which of its visits have to fetch, as it was planned; `None` before that."""


def plan_misses(readers: Sequence[Reader], capacity: int, here: set[int]) -> None:
    """Plan which visits of all readers will find their block here; noted in each."""
    starts = [int(np.searchsorted(reader.visits.first, reader.reached)) for reader in readers]
    owner = np.concatenate(
        [np.full(len(r.visits.first) - s, n) for n, (r, s) in enumerate(zip(readers, starts, strict=True))]
    )
    blocks = np.concatenate([reader.visits.blocks[start:] for reader, start in zip(readers, starts, strict=True)])
    away = np.concatenate([r.visits.first[s:] - r.reached for r, s in zip(readers, starts, strict=True)])
    # Readers are taken to be equally fast, so rows from now are their common clock.
    order = np.argsort(away, kind="stable")
    misses = np.empty(len(blocks), np.bool_)
    misses[order] = find_misses(blocks[order].tolist(), capacity, here)
    for number, (reader, start) in enumerate(zip(readers, starts, strict=True)):
        # Visits that are over count as fetched, so that numbers of visits stay those of the reader.
        reader.misses = np.concatenate([np.ones(start, np.bool_), misses[owner == number]])


def look_ahead(readers: Sequence[Reader], blocks: int) -> Outlook:
    """Return what all readers will need of so many blocks."""
    next_use, stays = np.full(blocks, NEVER), np.zeros(blocks, np.bool_)
    for reader in readers:
        visits = reader.visits
        # A visit that is under way has begun before and has not ended.
        left = np.flatnonzero(visits.last >= reader.reached)[::-1]
        own = np.full(blocks, NEVER)
        # Backwards, so that of several visits of a block the first is what remains.
        own[visits.blocks[left]] = np.maximum(0, visits.first[left] - reader.reached)
        sooner = own < next_use
        next_use[sooner] = own[sooner]
        hits = np.zeros(blocks, np.bool_)
        if reader.misses is not None:
            hits[visits.blocks[left]] = ~reader.misses[left]
        stays[sooner] = hits[sooner]
    return Outlook(next_use, stays)


# Faster than blocks were seen to come, so that what is under way grows until the line is full.
_FASTER = 1.5
_LATEST, _RUN = 16, 4
# Less than this says how long a round trip takes, and nothing of the rate.
_TELLING_BYTES = 2**20


class Pacer:
    """Say when the next block may be asked for, so that answers come one after the other.

    Requests that begin together end together, for they share the line; then all of them begin together again, and the
    line is idle for a round trip each time. Where a block takes the line for 80 ms and a round trip 400 ms, eight at a
    time bring three fifths of what the line can. Those that begin one after the other, as far apart as the line takes
    for one, also end like that, and the first is here first. (TCP paces packets for the same reason: Aggarwal, Savage
    and Anderson 2000; BBR, Cardwell et al. 2016.)
    """

    def __init__(self) -> None:
        # Of the latest answers when each was asked for and when it had come, and its bytes.
        self._answers: deque[tuple[float, float, int]] = deque(maxlen=_LATEST)
        self._round_trip_s = math.inf
        self._next_at = -math.inf

    def begin(self, now: float, nbytes: int) -> None:
        """Take note that so many bytes are asked for now."""
        # Half a round trip at most: where a block takes longer, little is lost between one and the next, and what seems
        # slow because of one late answer must not stand still.
        self._next_at = now + min(nbytes / (_FASTER * self._rate()), self._round_trip_s / 2)

    def end(self, began: float, now: float, nbytes: int) -> None:
        """Take note that an answer has come; from any thread."""
        # The quickest one was a round trip and little more: the last block of a pack is mostly short.
        self._round_trip_s = min(self._round_trip_s, now - began)
        if nbytes >= _TELLING_BYTES:
            self._answers.append((began, now, nbytes))

    def wait_s(self, now: float) -> float:
        """Return how many seconds the next one has to wait; at most 0 where it need not."""
        return self._next_at - now

    def _rate(self) -> float:
        """Return the bytes that came a second while any came, at best; infinity where that is not known yet."""
        answers = sorted(self._answers)
        # At best, because one answer that was late for a reason of its own would slow down all that follow.
        runs = [answers[first : first + _RUN] for first in range(max(1, len(answers) - _RUN + 1))]
        return max(map(self._rate_of, runs))

    def _rate_of(self, answers: list[tuple[float, float, int]]) -> float:
        busy_s, until = 0.0, -math.inf
        for began, ended, _ in answers:
            # What comes of an answer comes after a round trip.
            busy_s += max(0.0, ended - max(began + self._round_trip_s, until))
            until = max(until, ended)
        return sum(nbytes for *_, nbytes in answers) / busy_s if busy_s else math.inf
