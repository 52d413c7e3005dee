"""`BlockwiseFile`: the file or files of a pack that is somewhere else, read here block by block: never more of them at
once than a limit, or until all of it is here.

Every process that reads it has one. The first fetches for all; when it ends, the next one that waits takes over.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from colabstage.errors import (
    CancelledError,
    DamagedPackError,
    DriveError,
    NotEnoughSpaceError,
    NotStagedError,
    OptionError,
    SourceError,
    SourceReadError,
    error_from_json,
    error_to_json,
)
from colabstage.io.progress import start_at
from colabstage.io.units import format_bytes
from colabstage.io.workspace import is_own
from colabstage.sources.partial.fetcher import Expected, become_fetcher, read_failure
from colabstage.sources.partial.local import CAPACITY, EDGES, EVICTED, FETCHED, PAGE_BYTES, WHOLE, LocalPart
from colabstage.sources.partial.plan import Visits
from colabstage.sources.remote_files import remote_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.partial.fetcher import Fetcher
    from colabstage.sources.partial.local import Edges
    from colabstage.sources.partial.plan import FileSet
    from colabstage.sources.remote import RemoteFile

_LOOK_S = 0.002
# Whoever brings all of it looks rarely: nobody waits for the last block but it.
_FILL_LOOK_S = 0.02
# Later than anything that a reader will ask for.
_FAR = 1 << 40
# After what blocks of a pack that is to come whole are kept, because the next attempt may succeed: an interrupt, a
# source or a mount that is back by then. Not after a full disk, of which they take a part, nor where the pack itself is
# damaged.
KEPT_AFTER = (KeyboardInterrupt, CancelledError, SourceError, DriveError)
_STAGE_AGAIN = "Call stage_dataset with the same arguments again: it "
# How often who waits looks whether anybody fetches.
_TAKE_OVER_S = 0.2
# What is beside the blocks: the table, what readers expect, and what a file system needs for the file itself.
_BESIDE_BYTES = 2 * 1024 * 1024
_BESIDE_A_BLOCK = 128


def fixed_bytes(kept: int, blocks: int, files: int, block_bytes: int) -> int:
    """Return what is on the disk in any case: `kept` blocks that stay, of `blocks` in so many files, and what is beside
    the blocks."""
    return kept * block_bytes + _BESIDE_BYTES + _BESIDE_A_BLOCK * blocks + PAGE_BYTES * files


class BlockwiseFile:
    """Read files of which some blocks are here. Pickles, and works after a fork.

    `paths`: the sparse local files, each of the whole's length and layout. `limit`: bytes on the disk for all of them,
    never exceeded; `None` where all of it is to come, and nothing is ever let go.
    """

    def __init__(
        self,
        files: FileSet,
        folder: Path,
        limit: int | None,
        *,
        openers: Sequence[Callable[[], RemoteFile]] | None = None,
        stall_timeout_s: float = 180.0,
    ) -> None:
        """Open the part in `folder`, which exists.

        Args:
            files: where the files are, and what they hold.
            folder: for these files and this content of them alone.
            limit: bytes, or `None`.
            openers: open each of the files; by default by its source.
            stall_timeout_s: seconds in which something has to arrive while somebody waits.
        """
        self.files, self._folder, self.limit = files, folder, limit
        self._openers = openers or [remote_opener(one.source) for one in files.files]
        self._stall_timeout_s = stall_timeout_s
        self._part = LocalPart(folder, files, gives_back=limit is not None)
        self._kept = 0
        # The table counts on from one call to the next.
        self._fetched_before, self._evicted_before = (int(self._part.counters[one]) for one in (FETCHED, EVICTED))
        self._ended: BaseException | None = None
        self._failure_told_at = 0.0
        self._step: ProgressStep | None = None
        self._told = 0
        self.paths = self._part.paths
        self._pid, self._looked_at = os.getpid(), 0.0
        # In a list, for whoever takes over later is closed with this object too.
        self._fetchers: list[Fetcher] = []
        weakref.finalize(self, _release, self._fetchers).atexit = False
        self._take_over()
        # Whoever fetches has given back what nobody vouches for.
        self._kept = self.figures["here"]

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockwiseFile, (self.files, self._folder, self.limit)

    @property
    def blocks(self) -> int:
        """Count the blocks of the whole."""
        return self.files.blocks

    @property
    def capacity(self) -> int:
        """Return how many blocks may be here beside those that are kept."""
        return int(self._part.counters[CAPACITY])

    @property
    def here(self) -> NDArray[np.int64]:
        """Return which blocks are here."""
        return np.flatnonzero(self._part.state == WHOLE)

    @property
    def has_edges(self) -> bool:
        """Tell whether of blocks that are let go what belongs to rows across their ends stays."""
        return self._part.edges.nbytes > 0

    @property
    def complete(self) -> bool:
        """Tell whether all is here, and nothing will be let go."""
        return self.capacity >= self.blocks and bool((self._part.state == WHOLE).all())

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes: `fetched` and `evicted` by all readers since this was opened, `kept` from before, `here` and on
        the `disk`."""
        part = self._part
        return {
            "fetched": int(part.counters[FETCHED]) - self._fetched_before,
            "evicted": int(part.counters[EVICTED]) - self._evicted_before,
            "kept": self._kept,
            "here": int(self.files.lengths[self.here].sum()),
            "disk": part.disk_bytes,
        }

    @property
    def waits_for(self) -> str:
        """Return why nothing comes at present; "" where it does, or where another process asks."""
        return next((one.waits_for for one in self._fetchers), "")

    def settle(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> None:
        """Say which blocks are always kept and what stays of others; from then on others are fetched and let go.

        Args:
            kept: of each block whether it stays.
            edges: what stays of those that do not.
            least: how many others have to find room.

        Raises:
            NotEnoughSpaceError: the limit is too low for that; the message says what would do.
        """
        self._part.settle(kept, edges, self.check_room(kept, edges, least=least))
        if (fetcher := self._own_fetcher()) is not None:
            fetcher.plan_again()

    def check_room(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> int:
        """Return how many blocks may be here beside those that are kept; raises as `settle`."""
        if self.limit is None:
            return self.blocks
        block_bytes = self.files.block_bytes
        fixed = edges.nbytes + fixed_bytes(int(kept.sum()), self.blocks, len(self.files.files), block_bytes)
        others = int((~kept).sum())
        # Whole blocks alone: part of one could not be verified.
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
        # Where there is room for all, nothing is ever let go.
        return self.blocks if capacity >= others else max(1, capacity)

    @property
    def state(self) -> NDArray[np.bool_]:
        """Tell of each block whether it is here."""
        here: NDArray[np.bool_] = self._part.state == WHOLE
        return here

    def expect(self, visits: Visits) -> Expected | None:
        """Tell whoever fetches what will be read; `None` where nobody has to fetch any more."""
        try:
            expected = Expected(self._folder, visits)
        except FileNotFoundError:
            self._check_whole()
            return None
        self._wake()
        return expected

    def fill(
        self,
        order: NDArray[np.int64],
        step: ProgressStep,
        cancellation: Cancellation,
        *,
        begun: Callable[[], object] = lambda: None,
    ) -> int:
        """Wait until all of it is here: in `order`, which names every block, but what readers need sooner comes first.

        `begun` is called while the first blocks come; what it raises ends the filling.

        Returns:
            The number of bytes that were fetched since this was opened.

        Raises:
            ColabstageError: a block cannot be fetched; the message says what is here.
            CancelledError: `cancellation` was used.
        """
        part, told = self._part, self.figures["here"]
        start_at(step, told)
        failures = part.failures[order].copy()
        # As a reader that is far behind all others: whatever anybody reads comes before.
        expected = self.expect(Visits(order, far := _FAR + np.arange(len(order)), far))
        try:
            begun()
            patience = _Patience(part, self._stall_timeout_s, cancellation)
            while True:
                complete, here = self.complete, self.figures["here"]
                step.advance(here - told)
                told = here
                if complete:
                    return int(part.counters[FETCHED]) - self._fetched_before
                if (failed := self._failed(order, failures)) is not None:
                    raise self._failure(failed)
                time.sleep(_FILL_LOOK_S)
                self._take_over_in_time()
                self._check(patience)
        finally:
            if expected is not None:
                expected.close()

    @contextlib.contextmanager
    def shown(self, step: ProgressStep | None) -> Iterator[None]:
        """Tell a step of what is fetched while this process waits for it, until the context is left."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def end(self, error: BaseException) -> None:
        """Fetch nothing more, and raise this to whoever waits in this process."""
        self._ended = error
        self.close()

    def check(self) -> None:
        """Raise why nothing more comes, if nothing does."""
        if self._ended is not None:
            # A copy: one error raised in several threads would gather the tracebacks of all.
            kind, words = error_from_json(error_to_json(self._ended), NotStagedError)
            # What has failed here says so already.
            raise kind(words) if words.endswith(_remedy_of(kind)) else self._with_what_is_here(kind(words))

    def wish(self, blocks: NDArray[np.int64]) -> None:
        """Ask for blocks without waiting for them."""
        self._part.wanted[blocks] = 1
        self._wake()

    def read(self, address: int, length: int) -> bytes:
        """Return bytes of one file, once they are here."""
        block_bytes = self.files.block_bytes
        needed = np.arange(address // block_bytes, (address + length - 1) // block_bytes + 1)
        with self.hold(needed):
            return self._part.read(address, length)

    @contextlib.contextmanager
    def hold(
        self,
        blocks: NDArray[np.int64],
        edges: NDArray[np.int64] | None = None,
        cancellation: Cancellation | None = None,
    ) -> Iterator[None]:
        """Wait until blocks are here, and of `edges` at least the edges; keep them here until the context is left.

        Raises:
            ColabstageError: they cannot be fetched; the message says what is here. Asking again tries again.
            OptionError: they are more than may be here at once.
            CancelledError: `cancellation` was used.
        """
        edges = np.empty(0, np.int64) if edges is None else edges
        if self.limit is None:
            # Nothing that is here goes again, so nothing has to be kept.
            if len(self._missing(blocks, edges)):
                self._wait(blocks, edges, blocks, _Patience(self._part, self._stall_timeout_s, cancellation))
            yield
            return
        self._check_fit(blocks, edges)
        needed = np.union1d(blocks, edges)
        with contextlib.ExitStack() as stack:
            # Pinned before it is looked at, or a block could be let go between the look and the read.
            stack.enter_context(self._part.pins.held(needed.tolist()))
            if len(self._missing(blocks, edges)):
                # Who waits for room must not take it from others who do.
                stack.close()
                self._pin_after_waiting(stack, blocks, edges, needed, cancellation)
            yield

    def _pin_after_waiting(
        self,
        stack: contextlib.ExitStack,
        blocks: NDArray[np.int64],
        edges: NDArray[np.int64],
        needed: NDArray[np.int64],
        cancellation: Cancellation | None,
    ) -> None:
        """Wait for blocks, and keep them until the stack is closed."""
        # One waits at a time, on this whole computer: of two who wait for as many as there is room for, neither would
        # ever have all of its own.
        patience = _Patience(self._part, self._stall_timeout_s, cancellation)
        with self._part.pins.turn(lambda: self._check(patience)):
            while True:
                self._wait(blocks, edges, needed, patience)
                stack.enter_context(self._part.pins.held(needed.tolist()))
                if not len(self._missing(blocks, edges)):
                    self._part.wanted[needed] = 0
                    return
                stack.close()

    def close(self) -> None:
        """Stop fetching, until somebody reads again. What is here stays for the next time."""
        # Not by the finalizer, which acts once: whoever reads again fetches again, and is closed again.
        _release(self._fetchers)

    def _missing(self, blocks: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
        state = self._part.state
        of_edges = state[edges]
        return np.concatenate([blocks[state[blocks] != WHOLE], edges[(of_edges != WHOLE) & (of_edges != EDGES)]])

    def _check_fit(self, blocks: NDArray[np.int64], edges: NDArray[np.int64]) -> None:
        # One more comes for a moment to leave its edge.
        capacity = self.capacity - min(len(edges), 1)
        assert self.limit is not None
        if capacity and len(blocks) > capacity and int((self._part.kept[np.unique(blocks)] == 0).sum()) > capacity:
            msg = (
                f"These rows are in {len(np.unique(blocks)):,} blocks of '{self.files.label}', of which "
                f"disk_limit={format_bytes(self.limit)} lets {capacity:,} be here at once. Read fewer rows at a time, "
                "or neighbours; make_loader(dataset, batch_size) shuffles in an order that needs few at once."
            )
            raise OptionError(msg)

    def _wait(
        self, blocks: NDArray[np.int64], edges: NDArray[np.int64], needed: NDArray[np.int64], patience: _Patience
    ) -> None:
        # Failures are counted, so an old one does not fail who asks again.
        part, failures = self._part, self._part.failures[needed].copy()
        self._wake()
        while len(missing := self._missing(blocks, edges)):
            self.check()
            if (failed := self._failed(needed, failures)) is not None:
                part.wanted[needed] = 0
                raise self._failure(failed)
            # Said again each time: wishes are forgotten, for those of somebody who was killed must keep no block for
            # ever. What only lends an edge may be let go as soon as it was here.
            part.wanted[needed] = 0
            part.wanted[blocks] = part.wanted[missing] = 1
            time.sleep(_LOOK_S)
            self._take_over_in_time()
            self._check(patience)

    def _check(self, patience: _Patience) -> None:
        if self._step is not None and (fetched := self.figures["fetched"]) > self._told:
            self._step.advance(fetched - self._told)
            self._told = fetched
        if not patience.lasts():
            words = f"Nothing has come from '{self.files.label}' for {self._stall_timeout_s:.0f} s."
            raise self._with_what_is_here(SourceReadError(words))

    def _failed(self, blocks: NDArray[np.int64], failures: NDArray[Any]) -> int | None:
        """Return one of `blocks` that has failed since `failures` were counted, which are counted again."""
        now = self._part.failures[blocks]
        failed = blocks[now != failures].tolist()
        failures[:] = now
        # Who asks again is not failed by what was still under way when the failure before was told.
        return next((block for block in failed if self._part.failed_at[block] >= self._failure_told_at), None)

    def _failure(self, block: int) -> Exception:
        self._failure_told_at = time.monotonic()
        raw = read_failure(self._folder, block, float(self._part.failed_at[block]))
        if raw is None:
            # What is unfinished has a name that tells a person nothing.
            place = next(folder for folder in (self._folder, *self._folder.parents) if not is_own(folder))
            words = (
                f"The disk of '{place}' is full, or can no longer be written to, so the reason for the failure could "
                "not be recorded. Free some space there"
            )
            return self._with_what_is_here(NotEnoughSpaceError(words))
        kind, words = error_from_json(raw, SourceReadError)
        return self._with_what_is_here(kind(words))

    def _with_what_is_here(self, error: Exception) -> Exception:
        here, size = len(self.here), format_bytes(self.figures["here"])
        if self.limit is not None:
            # Under a limit whoever reads goes on by reading.
            words = f"are here ({size}); when you continue, they are not fetched again."
        elif isinstance(error, KEPT_AFTER):
            words = f"are here ({size}), and stay. {_remedy_of(type(error))}"
        else:
            words = f"were here ({size}), and are not kept. {_remedy_of(type(error))}"
        return type(error)(f"{str(error).removesuffix('.')}. Of its {self.blocks:,} blocks {here:,} {words}")

    def _own_fetcher(self) -> Fetcher | None:
        if self._pid != os.getpid():
            # The threads stayed with the parent.
            self._fetchers.clear()
            self._pid = os.getpid()
        return self._fetchers[0] if self._fetchers else None

    def _take_over(self) -> Fetcher | None:
        if self._ended is not None or (self.limit is None and self.complete):
            return None
        try:
            fetcher = become_fetcher(self._part, self._folder, self._openers)
        except FileNotFoundError:
            self._check_whole()
            return None
        # In a list that the finalizer has, which must not hold this object.
        self._fetchers += [] if fetcher is None else [fetcher]
        return fetcher

    def _check_whole(self) -> None:
        """Refuse a part whose folder is gone before all of it was here."""
        if not self.complete:
            msg = f"'{self._folder}', where '{self.files.label}' was on its way to, is gone."
            raise self._with_what_is_here(NotStagedError(msg))

    def _wake(self) -> None:
        if (fetcher := self._own_fetcher() or self._take_over()) is not None:
            fetcher.wake()

    def _take_over_in_time(self) -> None:
        """Fetch if nobody does any more, as far as can be told now and then."""
        if self._own_fetcher() is None and (now := time.monotonic()) - self._looked_at > _TAKE_OVER_S:
            self._looked_at = now
            self._take_over()


@dataclass(frozen=True, slots=True)
class WholeFile:
    """Stand in for a `BlockwiseFile` of which nothing is missing, and which is where it will stay."""

    path: Path
    """The file."""
    files: FileSet
    """What it holds."""
    limit: ClassVar[None] = None
    complete: ClassVar[bool] = True
    has_edges: ClassVar[bool] = False

    @property
    def blocks(self) -> int:
        """Count its blocks."""
        return self.files.blocks

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the file alone."""
        return (self.path,)

    @property
    def capacity(self) -> int:
        """Return how many blocks may be here: all."""
        return self.blocks

    def check_room(self, kept: NDArray[np.bool_], edges: Edges, *, least: int) -> int:
        """Return that there is room for all."""
        return self.blocks

    @property
    def state(self) -> NDArray[np.bool_]:
        """Tell of each block that it is here."""
        return np.ones(self.blocks, np.bool_)

    @property
    def figures(self) -> dict[str, int]:
        """Return bytes, as `BlockwiseFile.figures`."""
        size = self.files.size
        return {"fetched": 0, "evicted": 0, "kept": size, "here": size, "disk": size}

    @property
    def waits_for(self) -> str:
        """Return that nothing is waited for."""
        return ""

    def read(self, address: int, length: int) -> bytes:
        """Return bytes."""
        with self.path.open("rb") as file:
            file.seek(address)
            return file.read(length)

    def hold(
        self,
        blocks: NDArray[np.int64],
        edges: NDArray[np.int64] | None = None,
        cancellation: Cancellation | None = None,
    ) -> AbstractContextManager[None]:
        """Wait for nothing."""
        return contextlib.nullcontext()

    def expect(self, visits: Visits) -> Expected | None:
        """Return that nobody has to fetch."""
        return None

    def fill(
        self,
        order: NDArray[np.int64],
        step: ProgressStep,
        cancellation: Cancellation,
        *,
        begun: Callable[[], object] = lambda: None,
    ) -> int:
        """Wait for nothing, and return that nothing was fetched."""
        begun()
        return 0

    def check(self) -> None:
        """Return: all is here."""

    def end(self, error: BaseException) -> None:
        """Do nothing: nothing is fetched."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _Patience:
    """How long somebody still waits: as long as anything comes."""

    def __init__(self, part: LocalPart, timeout_s: float, cancellation: Cancellation | None) -> None:
        self._part, self._timeout_s, self._cancellation = part, timeout_s, cancellation
        self._moved_at, self._fetched = time.monotonic(), int(part.counters[FETCHED])

    def lasts(self) -> bool:
        """Tell whether to continue; raises `CancelledError` where nobody wants it any more."""
        if self._cancellation is not None:
            self._cancellation.check()
        if (fetched := int(self._part.counters[FETCHED])) != self._fetched:
            self._moved_at, self._fetched = time.monotonic(), fetched
        return time.monotonic() - self._moved_at < self._timeout_s


def _remedy_of(kind: type[BaseException]) -> str:
    """Say what to do after an error that ended the copying of all of a pack."""
    if issubclass(kind, DamagedPackError):
        return "Call stage_dataset with refresh=True: it makes the pack from the source again."
    return _STAGE_AGAIN + ("continues from there." if issubclass(kind, KEPT_AFTER) else "copies them again.")


def _release(fetchers: list[Fetcher]) -> None:
    for fetcher in fetchers:
        fetcher.close()
    fetchers.clear()
