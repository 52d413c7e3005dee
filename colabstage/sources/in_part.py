"""`BlockwiseFile`: the files of a pack that is remote, read block by block: under a limit, or until everything is
local.

Every process that reads it has one, and fetches what its own readers need. Beside the blocks, each reader has a file
that says what it will read, so that no process evicts what another needs first.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from colabstage.errors import (
    CancelledError,
    ColabstageError,
    DriveError,
    NotEnoughSpaceError,
    NotStagedError,
    OptionError,
    PackFormatError,
    SourceError,
    TargetNotWritableError,
    error_from_json,
    error_to_json,
)
from colabstage.io.files import PATIENT, typed_write_errors
from colabstage.io.units import format_bytes
from colabstage.io.workspace import (
    is_abandoned,
    is_made_here,
    name_and_owner,
    owner_is_alive,
    owner_token,
    remove_own,
    rename_own,
    temp_beside,
)
from colabstage.sources.blocks import (
    CAPACITY,
    EDGES,
    EVICTED,
    FETCHED,
    FETCHER,
    FILLING,
    MISSING,
    PAGE_BYTES,
    UNPROVED,
    WHOLE,
    WRITING,
    Blocks,
    Edges,
    Layout,
    close_all,
    follow_forks,
    take_lock,
)
from colabstage.sources.fetcher import Fetcher
from colabstage.sources.order import NEVER, Order, Pacing, Reader, Run, Visits, first_of, next_uses, victim_for
from colabstage.sources.remote_files import remote_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.parse import SingleSource
    from colabstage.sources.remote import RemoteFacts, RemoteFile

# How soon a process sees what another one has fetched, and whose turn it is.
_LOOK_S, _FILL_LOOK_S, _TURN_LOOK_S = 0.01, 0.02, 0.002
# Later than anything that a reader will ask for.
_FAR = 1 << 40
# The errors after which blocks of a pack that is copied whole are kept, because the next attempt may succeed: an
# interrupt, a source or mount that is back by then. Not a full disk, of which they take a part, nor a damaged pack.
KEPT_AFTER = (KeyboardInterrupt, CancelledError, SourceError, DriveError)
# Space beside the blocks: for the table, for the readers' announcements, and for the file system's own records.
_BESIDE_BYTES, _BESIDE_A_BLOCK = 2 * 1024 * 1024, 128
# The part of the space for blocks that are read now and next: the rest keeps what the next epoch needs. With little
# space, all of it except what is being read keeps the connections busy.
_AHEAD_PART, _MOST_AHEAD, _READ_NOW = 8, 32, 2
_MOST_CONNECTIONS = 8
# How many blocks are requested together at first.
_FIRST_REQUESTS = 2
# For a file that is copied whole from a mount: one block is read while another is written. On the simulated Drive the
# first batch came after 2.2 s with two readers and after 3.2 s with four, and all of 200 MB in 4.0 s and in 4.8 s.
_WHOLE_READERS = 2


def fixed_bytes(kept: int, blocks: int, files: int, block_bytes: int) -> int:
    """Return what the disk holds in any case: `kept` blocks that stay, of `blocks` in `files` files, and what is beside
    the blocks."""
    return kept * block_bytes + _BESIDE_BYTES + _BESIDE_A_BLOCK * blocks + PAGE_BYTES * files


@dataclass(frozen=True, slots=True)
class FileOfSet:
    source: SingleSource
    name: str
    """The name of its local, sparse file; unique in a set."""
    manifest: Manifest


class FileSet(Layout):
    """Files of a pack, in the order of their rows. Pickles.

    `files`: the files. `label`: the name of the set in messages.
    """

    def __init__(self, files: Sequence[FileOfSet], label: str = "") -> None:
        """Count the blocks of at least one file; `label`: by default that of the first."""
        self.files = tuple(files)
        self.label = label or self.files[0].source.label
        manifests = [one.manifest for one in self.files]
        lengths = {one.block_bytes for one in manifests}
        if len(lengths) > 1:
            msg = (
                f"The files of '{self.label}' have blocks of {' and of '.join(f'{one:,}' for one in sorted(lengths))} "
                "bytes, so they were not written together. Open each alone, or pack them again."
            )
            raise PackFormatError(msg)
        hashes = [text for one in manifests for text in one.hashes]
        super().__init__([one.name for one in self.files], [one.size for one in manifests], lengths.pop(), hashes)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSet, (self.files, self.label)

    @property
    def samples(self) -> dict[str, int]:
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


_ANNOUNCED = "expected"
# The folder is listed again after this long even if its time has not changed: a write within one tick of the file
# system's clock, or a reader that died, does not change it.
_LIST_S = 0.05


# A reader writes its visits once, and from then on only its position, which all processes see in the mapped file. The
# name says whose it is, so what a dead process left counts for nothing and is removed.
class Expected:
    """Announce to all processes what one reader will read."""

    def __init__(self, folder: Path, visits: Visits) -> None:
        # Written under another name and renamed, so that nobody reads half. The first number is the position.
        self._path, writing = temp_beside(folder / _ANNOUNCED), temp_beside(folder / "expecting")
        values = np.concatenate([[0], visits.blocks, visits.first, visits.last]).astype(np.int64)
        try:
            with typed_write_errors(self._path):
                writing.write_bytes(values.tobytes())
            self._values = np.memmap(writing, np.int64, "r+")
        except BaseException:
            remove_own(writing)
            raise
        rename_own(writing, self._path)

    def reached(self, rows: int) -> None:
        """Note that the first so many rows are done."""
        self._values[0] = rows

    def close(self) -> None:
        remove_own(self._path)


class Readers:
    """The announcements of all processes' readers. `own`: the readers of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._owner = folder, owner_token()
        self._written_ns, self._listed_at = -1, -1.0
        self._open: dict[str, tuple[Reader, NDArray[np.int64]]] = {}
        self.all: list[Reader] = []
        self.own: list[Reader] = []

    def look(self) -> bool:
        """Update how far readers are; return whether some have come or gone since."""
        written, now, has_changed = self._folder.stat().st_mtime_ns, time.monotonic(), False
        if written != self._written_ns or now - self._listed_at > _LIST_S:
            self._written_ns, self._listed_at = written, now
            has_changed = self._list()
        for reader, values in self._open.values():
            reader.reached = int(values[0])
        return has_changed

    def _list(self) -> bool:
        found = {path.name: path for path in self._folder.iterdir() if _is_alive(path)}
        before = set(self._open)
        for name in before - found.keys():
            del self._open[name]
        for name in found.keys() - before:
            # It may have been withdrawn at this moment.
            with contextlib.suppress(FileNotFoundError):
                values = np.asarray(np.memmap(found[name], np.int64, "r"))
                self._open[name] = Reader(Visits(*values[1:].reshape(3, -1))), values
        self.all = [reader for reader, _ in self._open.values()]
        self.own = [reader for name, (reader, _) in self._open.items() if self._owner in name]
        return before != self._open.keys()


def _is_alive(path: Path) -> bool:
    """Return whether a file belongs to a living process; what a dead one has left is removed."""
    parts = name_and_owner(path)
    if parts is None or parts[0] != _ANNOUNCED or not is_made_here(path):
        return False
    if is_abandoned(path, parts[1]):
        remove_own(path)
    return owner_is_alive(parts[1]) is True


class Lookahead(Order):
    """The order of blocks that readers will need: first those that one waits for, then those needed next. Each gets its
    space before it is requested; blocks needed last make way."""

    # Another process may need a block, or finish with one; and readers may come again.
    look_s = 0.01
    is_endless = True

    def __init__(self, blocks: Blocks, readers: Readers, fetcher: Fetcher) -> None:
        assert blocks.locks is not None
        self._blocks, self._locks, self._readers, self._fetcher = blocks, blocks.locks, readers, fetcher
        # The blocks that this process has claimed, and the run that fetches each.
        self._claimed: dict[int, Run] = {}
        self._next_use = np.full(len(blocks.state), NEVER)
        self._seen_for: tuple[int, ...] = (-1,)
        self._pacing = Pacing(_FIRST_REQUESTS)

    def take(self, now: float) -> Run | None:
        blocks, next_use, failures = self._blocks, self._look(), self._fetcher.failures
        if int((blocks.state >= WRITING).sum()) > len(self._claimed):
            # Another process may have died.
            blocks.reclaim(self._claimed)
        candidates = (blocks.state != WHOLE) & (blocks.state < WRITING)
        candidates[list(self._claimed)] = candidates[list(failures)] = False
        waited = np.flatnonzero(candidates & (blocks.wanted != 0))
        for block in waited[np.argsort(next_use[waited], kind="stable")].tolist():
            if self._claim(block, next_use):
                return self._begin(block, now)
        runs = list(self._claimed.values())
        # If nothing is in flight, as after failures, no rate will show.
        is_full = len(runs) >= self._fetcher.connections
        if is_full or (runs and not self._pacing.allows(now, runs, blocks.layout.block_bytes)):
            return None
        block_or_none = first_of(next_uses(self._readers.own, len(candidates)), candidates)
        # If this one cannot get space, neither can those needed later.
        if block_or_none is None or not self._claim(block_or_none, next_use):
            return None
        return self._begin(block_or_none, now)

    def advance(self, run: Run, position: int, now: float) -> None:
        self._pacing.arrived(run, position, now)
        run.position, run.moved_at = position, now
        block = run.begin // self._blocks.layout.block_bytes
        if not run.left and self._blocks.state[block] == WHOLE:
            self.done(block)

    def release(self, run: Run, now: float) -> None:
        block = run.begin // self._blocks.layout.block_bytes
        if self._claimed.get(block) is run:
            self._give_up(block)

    def again(self, begin: int, end: int) -> None:
        self._give_up(begin // self._blocks.layout.block_bytes)

    def done(self, block: int) -> None:
        del self._claimed[block]
        self._blocks.wanted[block] = 0
        self._locks.unclaim(block)

    def close(self) -> None:
        """Leave to other processes what is not being written at this moment."""
        for block, run in list(self._claimed.items()):
            if run not in self._fetcher.writing:
                self._give_up(block)

    def _look(self) -> NDArray[np.int64]:
        had_own, changed = bool(self._readers.own), self._readers.look()
        if not had_own and self._readers.own:
            self._pacing.begin_anew()
        reached = tuple(reader.reached for reader in self._readers.all)
        if changed or self._seen_for != reached:
            self._seen_for, self._next_use = reached, next_uses(self._readers.all, len(self._blocks.state))
        return self._next_use

    def _begin(self, block: int, now: float) -> Run:
        run = self._claimed[block] = Run(*self._blocks.layout.span(block), now)
        self._pacing.sent(run.left, now, is_last=len(self._claimed) >= self._fetcher.connections)
        return run

    def _claim(self, block: int, next_use: NDArray[np.int64]) -> bool:
        """Reserve a block for this process, and the space for it; return whether that was possible."""
        if not self._locks.claim(block):
            return False
        with self._blocks.making_room():
            has_room = self._has_room(block, next_use)
            state = int(self._blocks.state[block])
            if has_room and state != UNPROVED:
                self._blocks.state[block] = FILLING if state == EDGES else WRITING
        if not has_room:
            self._locks.unclaim(block)
        return has_room

    def _has_room(self, block: int, next_use: NDArray[np.int64]) -> bool:
        """Return whether a block may come, after evicting one that is needed later."""
        blocks, capacity = self._blocks, int(self._blocks.counters[CAPACITY])
        # Another process may have been quicker.
        if blocks.state[block] in (WHOLE, WRITING, FILLING):
            return False
        # Kept blocks have space of their own; before the space for others is known, only they are fetched. Unproved
        # blocks have space.
        if not blocks.gives_back or not capacity or blocks.kept[block] or blocks.state[block] == UNPROVED:
            return True
        taken, is_wanted = blocks.taken(), bool(blocks.wanted[block])
        used, candidates = int(taken.sum()), taken & (blocks.state < WRITING)
        ahead = min(_MOST_AHEAD, max(capacity // _AHEAD_PART, min(_MOST_CONNECTIONS, capacity - _READ_NOW)))
        while used >= capacity:
            victim = victim_for(block, next_use, candidates, ahead=ahead, needed_now=is_wanted)
            if victim is None:
                return False
            candidates[victim] = False
            used -= blocks.let_go(victim)
        return True

    def _give_up(self, block: int) -> None:
        """Keep nothing of a block that has not arrived completely."""
        if block in self._claimed:
            self._fetcher.forget(block)
            if self._blocks.state[block] in (WRITING, FILLING, MISSING):
                self._blocks.forget(block)
            self.done(block)


_NONE: NDArray[np.int64] = np.empty(0, np.int64)


class BlockwiseFile:
    """Read files of which some blocks are local. Pickles, and works after a fork.

    `paths`: the sparse local files, each with the whole's length and layout. `limit`: bytes on the disk for all of
    them, never exceeded; `None` if everything is copied and nothing ever evicted. `step`: shows what is fetched while
    this process waits for it; `None` for nothing.
    """

    def __init__(
        self,
        files: FileSet,
        folder: Path,
        limit: int | None,
        *,
        openers: Sequence[Callable[[], RemoteFile]] | None = None,
        in_order: bool = False,
    ) -> None:
        """Open what is in `folder`, which exists and is only for these files with this content.

        `openers` open each of the files; by default by its source. `in_order`: whether all blocks are fetched in the
        order of the files, which one reader does fastest on a mount. If a reader waits, something must arrive within
        three minutes.
        """
        self.files, self._folder, self.limit = files, folder, limit
        self._openers = openers or [remote_opener(one.source) for one in files.files]
        self._mount_readers = _MOST_CONNECTIONS if limit is not None else 1 if in_order else _WHOLE_READERS
        self._blocks = Blocks(folder, files, files.digest, shared=True, gives_back=limit is not None)
        # It also marks the folder as a part.
        (folder / FETCHER).touch()
        self.paths, self.blocks = self._blocks.paths, files.blocks
        # The table's counters continue from one call to the next.
        self._before = self._blocks.counters[[FETCHED, EVICTED]]
        self._kept = int(files.lengths[self.state].sum())
        self._ended: BaseException | None = None
        self.step: ProgressStep | None = None
        self._shown_bytes = 0
        # In lists that the finalizer holds, because it must not hold this object.
        self._fetchers: list[Fetcher] = []
        self._lock_handles: list[int] = []
        weakref.finalize(self, _let_go, self._fetchers, self._lock_handles).atexit = False
        self._lock = threading.RLock()
        follow_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockwiseFile, (self.files, self._folder, self.limit)

    def after_fork(self) -> None:
        """Leave threads to the parent, and with them the fetchers' lock."""
        self._lock = threading.RLock()
        self._fetchers.clear()
        close_all(self._lock_handles)

    @property
    def capacity(self) -> int:
        """Return how many blocks may be local besides the kept ones."""
        return int(self._blocks.counters[CAPACITY])

    @property
    def state(self) -> NDArray[np.bool_]:
        """Return for each block whether it is local."""
        here: NDArray[np.bool_] = self._blocks.state == WHOLE
        return here

    @property
    def has_edges(self) -> bool:
        """Return whether the bytes of rows that cross the ends of blocks stay when the blocks are evicted."""
        return self._blocks.edges.nbytes > 0

    @property
    def complete(self) -> bool:
        """Return whether everything is local, and nothing will be evicted."""
        return self.capacity >= self.blocks and bool(self.state.all())

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes: `fetched` and `evicted` by all readers since this was opened, `kept` from before, `here` and on
        the `disk`."""
        fetched, evicted = (self._blocks.counters[[FETCHED, EVICTED]] - self._before).tolist()
        here, disk = int(self.files.lengths[self.state].sum()), self._blocks.disk_bytes
        return {"fetched": fetched, "evicted": evicted, "kept": self._kept, "here": here, "disk": disk}

    @property
    def waits_for(self) -> str:
        """Return why nothing arrives at present; "" if it does, or another process fetches."""
        return next((one.waits_for for one in self._fetchers), "")

    def settle(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> None:
        """Say which blocks are always kept, and what stays of others; from then on others are fetched and evicted.

        A limit without space for `least` others is refused with one that would do.
        """
        self._blocks.settle(kept, edges, self.check_room(kept, edges, least=least))
        for fetcher in self._fetchers:
            fetcher.touch()

    def check_room(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> int:
        if self.limit is None:
            return self.blocks
        block_bytes = self.files.block_bytes
        fixed = edges.nbytes + fixed_bytes(int(kept.sum()), self.blocks, len(self.paths), block_bytes)
        others = int((~kept).sum())
        # Only whole blocks: part of one could not be verified.
        capacity = min(others, (self.limit - fixed) // block_bytes)
        if capacity < min(least, others):
            needed = fixed + min(least, others) * block_bytes
            # Written with three figures, which may be half a per cent less.
            needed += needed // 150
            msg = (
                f"disk_limit={format_bytes(self.limit)} is too little for '{self.files.label}': "
                f"{format_bytes(needed)} are needed, of which {format_bytes(fixed)} (index, labels and rows that reach "
                f"over the ends of blocks) always stay. Give that much or more."
            )
            raise NotEnoughSpaceError(msg)
        # If all fit, nothing is ever evicted.
        return self.blocks if capacity >= others else max(1, capacity)

    def expect(self, visits: Visits, *, later: bool = False) -> Expected | None:
        """Announce what will be read; `None` if nothing must be fetched any more. `later`: nobody waits for it yet, so
        it does not start again what `close` has stopped meanwhile."""
        try:
            expected = Expected(self._folder, visits)
        except (FileNotFoundError, TargetNotWritableError):
            # The files have moved to their place, or were removed before all of them was local.
            if self.complete:
                return None
            if self._folder.is_dir():
                raise
            raise self._gone_error() from None
        if not self.complete:
            for fetcher in self._fetchers if later else [self._running()]:
                fetcher.touch()
        return expected

    def fill(
        self,
        order: NDArray[np.int64],
        step: ProgressStep,
        cancellation: Cancellation,
        *,
        begun: Callable[[], object] = lambda: None,
    ) -> int:
        """Wait until everything is local: in `order`, of every block, after what readers need sooner.

        `begun` is called while the first blocks come. Whatever is raised, by it too, ends the filling, and is raised in
        readers of this process that wait. Returns the number of bytes that were fetched since this was opened.
        """
        shown = self.figures["here"]
        step.start_at(shown)

        def is_complete() -> bool:
            nonlocal shown
            complete, here = self.complete, self.figures["here"]
            step.advance(here - shown)
            shown = here
            return complete

        # As a reader that is far behind all others, so that what any other reads comes first.
        far = _FAR + np.arange(len(order))
        try:
            expected = self.expect(Visits(order, far, far))
            with contextlib.nullcontext() if expected is None else contextlib.closing(expected):
                begun()
                if not is_complete():
                    self._wait(order, is_complete, cancellation, look_s=_FILL_LOOK_S)
                return self.figures["fetched"]
        except BaseException as error:
            self._ended = error
            self.close()
            raise

    def check(self) -> None:
        """Raise the reason if nothing more will come."""
        if self._ended is not None:
            # It may be an interrupt, which was of another thread.
            kind, words = error_from_json(error_to_json(self._ended), NotStagedError)
            raise kind(words)

    def wish(self, blocks: NDArray[np.int64]) -> None:
        """Ask for blocks without waiting for them."""
        self._blocks.wanted[blocks] = 1
        if not self.state[blocks].all():
            self._running().touch()

    def read(self, address: int, length: int) -> bytes:
        block_bytes = self.files.block_bytes
        with self.hold(np.arange(address // block_bytes, (address + length - 1) // block_bytes + 1)):
            return self._blocks.read(address, length)

    @contextlib.contextmanager
    def hold(
        self, blocks: NDArray[np.int64], edges: NDArray[np.int64] = _NONE, cancellation: Cancellation | None = None
    ) -> Iterator[None]:
        """Wait until blocks are local, or for `edges` at least their edges; keep them local within the context.

        An error says what is local; asking again tries again. Asking for more than may be local at once is an
        `OptionError`.
        """
        if self.limit is None:
            # Nothing local is ever evicted, so nothing must be kept.
            self._wait_for(blocks, edges, cancellation)
            yield
            return
        self._check_fit(blocks, edges)
        needed, locks = np.union1d(blocks, edges).tolist(), self._blocks.locks
        assert locks is not None
        with contextlib.ExitStack() as stack:
            # Locked before the check; otherwise a block could be evicted between the check and the read.
            stack.enter_context(locks.held(needed))
            if len(self._missing(blocks, edges)):
                # A reader that waits for space must not take it from another that waits. So one waits at a time on this
                # computer.
                stack.close()
                try:
                    self._wait(_NONE, locks.begin_turn, cancellation, look_s=_TURN_LOOK_S)
                    while True:
                        with locks.held(blocks.tolist()):
                            self._wait_for(blocks, edges, cancellation)
                            stack.enter_context(locks.held(needed))
                        if not len(self._missing(blocks, edges)):
                            break
                        stack.close()
                finally:
                    locks.end_turn()
            yield

    def close(self) -> None:
        """Stop fetching, until a reader comes again. What is local stays for the next time."""
        with self._lock:
            fetchers, handles = self._fetchers[:], self._lock_handles[:]
            self._fetchers.clear()
            self._lock_handles.clear()
        try:
            for fetcher in fetchers:
                fetcher.close()
        finally:
            close_all(handles)

    def _missing(self, blocks: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
        state = self._blocks.state
        return np.concatenate([blocks[state[blocks] != WHOLE], edges[~np.isin(state[edges], (WHOLE, EDGES, FILLING))]])

    def _check_fit(self, blocks: NDArray[np.int64], edges: NDArray[np.int64]) -> None:
        # One more block comes for a moment to leave its edge.
        capacity = self.capacity - min(len(edges), 1)
        assert self.limit is not None
        if capacity and len(blocks) > capacity and int((self._blocks.kept[np.unique(blocks)] == 0).sum()) > capacity:
            msg = (
                f"These rows are in {len(np.unique(blocks)):,} blocks of '{self.files.label}', of which "
                f"disk_limit={format_bytes(self.limit)} lets {capacity:,} be here at once. Read fewer rows at a time, "
                "or neighbours; make_loader(dataset, batch_size) shuffles in an order that needs few at once."
            )
            raise OptionError(msg)

    def _wait_for(self, blocks: NDArray[np.int64], edges: NDArray[np.int64], cancellation: Cancellation | None) -> None:
        def are_here() -> bool:
            missing = self._missing(blocks, edges)
            # Each time, because what has arrived may have been evicted.
            self._blocks.wanted[missing] = 1
            if self.step is not None:
                fetched = self.figures["fetched"]
                self.step.advance(fetched - self._shown_bytes)
                self._shown_bytes = fetched
            return not len(missing)

        if len(self._missing(blocks, edges)):
            self._wait(np.union1d(blocks, edges), are_here, cancellation, look_s=_LOOK_S)

    def _wait(
        self,
        needed: NDArray[np.int64],
        is_over: Callable[[], bool],
        cancellation: Cancellation | None,
        *,
        look_s: float,
    ) -> None:
        """Wait for blocks that are fetched here or in another process, and raise why one of them cannot be."""
        self.check()
        fetcher, wanted = self._running(), set(needed.tolist())
        with fetcher.lock:
            # An earlier failure does not fail a reader that asks again.
            for block in wanted & fetcher.failures.keys():
                del fetcher.failures[block]

        def is_over_or_failed() -> bool:
            if is_over():
                return True
            for block in wanted & fetcher.failures.keys():
                raise fetcher.failures.pop(block)
            return False

        fetcher.touch()
        try:
            fetcher.wait_until(is_over_or_failed, cancellation, look_s=look_s)
        except ColabstageError:
            self.check()
            raise
        finally:
            # A block must not come again because a reader once waited for it.
            self._blocks.wanted[needed] = 0

    def _running(self) -> Fetcher:
        """Return what fetches for this process; restarted after an error, or after `close`."""
        with self._lock:
            if self._fetchers and not self._fetchers[0].has_ended():
                return self._fetchers[0]
            before = self._fetchers[:]
            self.close()
            while any(fetcher.writing for fetcher in before):
                time.sleep(_LOOK_S)
            self.check()
            try:
                handle = take_lock(self._folder, shared=True)
            except FileNotFoundError:
                handle = None
            if handle is None:
                raise self._gone_error()
            self._lock_handles.append(handle)
            blocks, readers = self._blocks, Readers(self._folder)
            fetcher = Fetcher(
                self.files.label, blocks, self._openers, partial(_connections_to, self._mount_readers), policy=PATIENT
            )
            self._fetchers.append(fetcher)
            fetcher.start(lambda: Lookahead(blocks, readers, fetcher))
            return fetcher

    def _gone_error(self) -> Exception:
        gone = f"'{self._folder}', with the blocks of '{self.files.label}' that were here, is gone"
        return NotStagedError(f"{gone}. Open or stage the dataset again, which fetches them again.")


class WholeFile:
    """A `BlockwiseFile` from which nothing is missing, in its final place."""

    limit: ClassVar[None] = None
    complete: ClassVar[bool] = True
    has_edges: ClassVar[bool] = False
    waits_for: ClassVar[str] = ""

    def __init__(self, path: Path, files: FileSet) -> None:
        self.files, self.paths = files, (path,)
        self.blocks = self.capacity = files.blocks
        self.state = np.ones(files.blocks, np.bool_)
        self.figures = {"fetched": 0, "evicted": 0, "kept": files.size, "here": files.size, "disk": files.size}

    def check_room(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> int:
        return self.blocks

    def read(self, address: int, length: int) -> bytes:
        with self.paths[0].open("rb") as file:
            file.seek(address)
            return file.read(length)

    def hold(self, *_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def expect(self, visits: Visits, *, later: bool = False) -> Expected | None:
        return None

    def check(self) -> None:
        """Return: everything is local."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _connections_to(most_to_mount: int, facts: RemoteFacts) -> int:
    return max(1, min(most_to_mount if facts.is_mounted else _MOST_CONNECTIONS, facts.connections))


def _let_go(fetchers: list[Fetcher], handles: list[int]) -> None:
    """Stop without waiting, because garbage may be collected in any thread."""
    for fetcher in fetchers:
        fetcher.stop()
    close_all(handles)
