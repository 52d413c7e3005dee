"""`fetch_file`: one file brought whole to its place, verified before it takes its name.

In several ranges at once where the source says its length, else as one stream to its end, hashed as it passes.
"""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import ChecksumMismatchError, SourceChangedError, TargetExistsError
from colabstage.io.files import make_folder
from colabstage.io.ownership import sweep_orphans, whatever_is_there
from colabstage.io.pipeline import in_thread
from colabstage.sources.remote import TransientError
from colabstage.sources.transfer.connections import RetryBudget, closing_pieces, final_error, sleep_unless
from colabstage.sources.transfer.partial_file import BlockHashes, take_partial_file
from colabstage.sources.transfer.streaming_copy import StreamingCopy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.io.retry import RetryPolicy
    from colabstage.sources.remote import Checksum, Hasher, RemoteFile
    from colabstage.sources.transfer.partial_file import PartialFile


_HASH_PIECE_BYTES = 1024 * 1024
# How often a thread that waits looks whether it should stop.
_LOOK_S = 0.25


class SequentialFetch:
    """One such file on its way into a `PartialFile`.

    `nbytes`: how many are here. `digest`: by the source's checksum.
    """

    def __init__(
        self, source: RemoteFile, partial: PartialFile, *, step: ProgressStep, cancellation: Cancellation
    ) -> None:
        checksum = source.facts.checksum
        self.nbytes = 0
        self._source = source
        self._partial = partial
        self._step = step
        self._cancellation = cancellation
        # Which block is the last, only the end of the stream tells.
        self._blocks = BlockHashes(None)
        self._done: list[str] = []
        self._whole: Hasher | None = None if checksum is None else checksum.new_hasher()

    @property
    def block_hashes(self) -> tuple[str, ...]:
        """Return the hash of each block of 8 MiB."""
        last = self._blocks.finish()
        return tuple(self._done) if last is None else (*self._done, last)

    @property
    def digest(self) -> str | None:
        """Return the hash of everything; `None` where the source has no checksum to compare it with."""
        return None if self._whole is None else self._whole.hexdigest()

    def run(self, policy: RetryPolicy) -> None:
        """Fetch all of it.

        Raises:
            CancelledError: the caller asked to stop.
            As `RemoteFile.read_range`, but no `TransientError`; as `PartialFile.write`.
        """
        budget = RetryBudget()
        while True:
            try:
                return self._fetch()
            except TransientError as error:
                tries = budget.count(moved=False, arrived=self.nbytes, slow=error.slow)
                if tries >= policy.attempts:
                    raise final_error(error, self._source.facts.label, tries) from error
                # The other side knows best when it can be asked again.
                wait_s = budget.wait_s(policy.first_wait_s) if error.wait_s is None else error.wait_s
                sleep_unless(lambda: self._cancellation.cancelled, wait_s)
                self._cancellation.check()

    def _fetch(self) -> None:
        # A server without ranges sends what is here already once more.
        offset = self.nbytes if self._source.facts.ranges else 0
        with closing_pieces(self._source.read_range(offset, None)) as pieces:
            for piece in pieces:
                self._cancellation.check()
                # What comes twice has to be the same, or the file is made of two states of the source.
                known = min(len(piece), self.nbytes - offset)
                if known and piece[:known] != self._partial.read(known, offset):
                    label = self._source.facts.label
                    msg = f"'{label}' became another file while it was read. Wait until it is complete, then try again."
                    raise SourceChangedError(msg)
                offset += len(piece)
                self._take_in(memoryview(piece)[known:])
        # A proxy may have cut it short, which is worth another try.
        if offset < self.nbytes:
            msg = f"'{self._source.facts.label}' ended at byte {offset:,} where more had come before."
            raise TransientError(msg)

    def _take_in(self, data: memoryview) -> None:
        self._partial.write(data, self.nbytes)
        self._done += self._blocks.feed(data, self.nbytes).values()
        if self._whole is not None:
            self._whole.update(data)
        self.nbytes += len(data)
        self._step.advance(len(data))


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """What was fetched."""

    path: Path
    """Where it is."""
    nbytes: int
    """Its length."""
    kept_bytes: int
    """Of its bytes, those that an interrupted run had fetched before."""
    kept_blocks: int
    """The same in blocks of 8 MiB."""
    fetched_blocks: int
    """The other blocks."""
    seconds: float
    """What it took."""
    block_hashes: tuple[str, ...]
    """The xxh3-64 of each block."""
    version: str
    """The source's version; "" where it has none."""


def fetch_file(
    source: RemoteFile,
    target: Path,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    connections: int | None = None,
    stall_timeout_s: float = 180.0,
    reopen: Callable[[], RemoteFile] | None = None,
    announce: Callable[[tuple[str, ...], int], object] = lambda _hashes, _nbytes: None,
    replaces: Callable[[Path], bool] = whatever_is_there,
) -> FetchedFile:
    """Bring a whole file to `target`, which is replaced only when all of it is here and verified.

    Interrupted by whatever means, it leaves what stood at `target`, and beside it what the next call continues with.
    Whether there is room is the caller's question. Nothing is forced to the disk: after a crash of the machine, not of
    the process, only the hashes tell whether the file is whole.

    Args:
        source: stays the caller's, who closes it. One that does not say its length comes as one stream, without resume.
        target: the file to make; its folder is made too.
        step: told of every byte, those that are kept from before included.
        cancellation: looked at several times a second.
        policy: `attempts` are those without a single byte of progress.
        connections: parts in flight at once; `None` for what the source says is worth it.
        stall_timeout_s: seconds without a byte after which the source counts as dead.
        reopen: opens the source again, as it is now, when it has become another file midway: then the fetch begins
            again, once. What it returns is closed here.
        announce: called with the hash of each 8 MiB block and the length, right before the file takes its name.
        replaces: says of what is at `target` by then whether it may be replaced.

    Raises:
        TargetExistsError: `target` is a folder, or may not be replaced.
        ChecksumMismatchError: all of it came, but it is not what the source's checksum says; it is kept under a name
            of its own, for whoever wants to look.
        SourceChangedError: it became another file midway; nothing is kept.
        SourceReadError, SourceNotFoundError, SourceAccessError, DriveDisconnectedError, DriveQuotaError: the source
            failed for good.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name that the file is to have."
        raise TargetExistsError(msg)
    make_folder(target.parent)
    fetch = _Attempts(target, step, cancellation, policy, connections, stall_timeout_s, announce, replaces)
    try:
        return fetch.run(source)
    except SourceChangedError:
        if reopen is None:
            raise
    cancellation.check()
    # Once only: what changes while it is read a second time is still being written.
    again = reopen()
    try:
        return fetch.run(again)
    finally:
        again.close()


@dataclass(frozen=True, slots=True)
class _Attempts:
    """What all tries to fetch one file share."""

    target: Path
    """The file to make."""
    step: ProgressStep
    """What is told of every byte."""
    cancellation: Cancellation
    """What stops the call."""
    policy: RetryPolicy
    """How often is tried again without a byte of progress."""
    connections: int | None
    """Parts in flight at once; `None` for what the source says."""
    stall_timeout_s: float
    """Seconds without a byte after which the source counts as dead."""
    announce: Callable[[tuple[str, ...], int], object]
    """Told the hashes and the length right before the file takes its name."""
    replaces: Callable[[Path], bool]
    """Says of what is at the target whether it may go."""

    def run(self, source: RemoteFile) -> FetchedFile:
        self.cancellation.check()
        began = time.monotonic()
        fetched = self._run_stream(source, began) if source.facts.size is None else self._run_parts(source, began)
        # Of several that were interrupted here one was gone on with; no one needs the others now.
        sweep_orphans(self.target.parent, name=self.target.name)
        return fetched

    def _run_parts(self, source: RemoteFile, began: float) -> FetchedFile:
        facts = source.facts
        copy = StreamingCopy(
            source,
            self.target,
            step=self.step,
            policy=self.policy,
            connections=self.connections,
            stall_timeout_s=self.stall_timeout_s,
        )
        with copy:
            try:
                digest = self._arrive(copy, facts.checksum)
            # What has come is of a state that nobody can ask for any more.
            except SourceChangedError:
                copy.discard()
                raise
            hashes = copy.block_hashes
            move_to = self._announcing(copy.move_to, hashes, copy.size)
            self._publish(move_to, facts.label, facts.checksum, digest)
            return FetchedFile(
                path=self.target,
                nbytes=copy.size,
                kept_bytes=copy.kept_bytes,
                kept_blocks=copy.kept_blocks,
                fetched_blocks=len(hashes) - copy.kept_blocks,
                seconds=time.monotonic() - began,
                block_hashes=hashes,
                version=facts.version,
            )

    def _arrive(self, copy: StreamingCopy, checksum: Checksum | None) -> str | None:
        """Wait for all of the file; returns its digest, hashed while it came."""
        if checksum is None:
            copy.wait(self.cancellation)
            return None
        # Hashing afterwards would read everything again, and not from the system's cache where the file is large.
        copy.start()
        follower = _RunningHash(copy, checksum)
        try:
            copy.wait(self.cancellation)
            return follower.result(self.cancellation)
        finally:
            follower.stop()

    def _run_stream(self, source: RemoteFile, began: float) -> FetchedFile:
        facts = source.facts
        partial = take_partial_file(self.target, facts)
        try:
            stream = SequentialFetch(source, partial, step=self.step, cancellation=self.cancellation)
            stream.run(self.policy)
            move_to = self._announcing(partial.move_to, stream.block_hashes, stream.nbytes)
            self._publish(move_to, facts.label, facts.checksum, stream.digest)
        # A stream cannot be gone on with, so nothing is left for a next run.
        except BaseException:
            partial.remove()
            raise
        hashes = stream.block_hashes
        return FetchedFile(
            self.target, stream.nbytes, 0, 0, len(hashes), time.monotonic() - began, hashes, facts.version
        )

    def _announcing(
        self, move_to: Callable[[Path, Callable[[Path], bool]], None], hashes: tuple[str, ...], nbytes: int
    ) -> Callable[[Path], None]:
        """Return `move_to`, with an announcement before of what goes to the target itself."""

        def move(place: Path) -> None:
            # What is put aside as damaged is never announced: no record of ours may vouch for it.
            if place == self.target:
                self.announce(hashes, nbytes)
            move_to(place, self.replaces)

        return move

    def _publish(
        self, move_to: Callable[[Path], None], label: str, checksum: Checksum | None, digest: str | None
    ) -> None:
        """Put what has arrived in its place, if it is what it should be; else under a name of its own."""
        if checksum is None or digest == checksum.digest:
            move_to(self.target)
            return
        # A name beside `target` that says what it is, and that nothing has.
        names = itertools.chain(
            [f"{self.target.name}.damaged"], (f"{self.target.name}.damaged-{n}" for n in itertools.count(2))
        )
        damaged = next(path for path in map(self.target.with_name, names) if not os.path.lexists(path))
        move_to(damaged)
        msg = (
            f"'{label}' arrived complete, but its {checksum.algorithm} is {digest}, not {checksum.digest}. It is kept "
            f"as '{damaged}', and '{self.target}' is as it was. If the checksum is the right one, delete the damaged "
            "file and fetch it again."
        )
        raise ChecksumMismatchError(msg)


class _RunningHash:
    """Hashes a file in order while it arrives, in a thread of its own."""

    def __init__(self, copy: StreamingCopy, checksum: Checksum) -> None:
        self._copy = copy
        self._hasher = checksum.new_hasher()
        self._stopping = False
        # A daemon: it may wait for bytes that never come.
        self._digest = in_thread(self._run, "colabstage-hash")

    def result(self, cancellation: Cancellation) -> str:
        """Return the digest, after all of the file is here: then the thread has only the disk to wait for."""
        while not wait([self._digest], _LOOK_S).done:
            cancellation.check()
        return self._digest.result()

    def stop(self) -> None:
        """Let the thread end, and wait for it a little: it may wait for bytes until the copy is closed."""
        self._stopping = True
        wait([self._digest], 2 * _LOOK_S)

    def _run(self) -> str:
        for offset in range(0, self._copy.size, _HASH_PIECE_BYTES):
            if self._stopping:
                break
            self._hasher.update(self._copy.read_here(_HASH_PIECE_BYTES, offset))
        return self._hasher.hexdigest()
