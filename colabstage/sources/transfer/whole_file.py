"""Fetch one whole file, verified before it gets its name: `fetch_file`.

In several concurrent ranges if the source has ranges and a known length, otherwise as one stream.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import ChecksumMismatchError, SourceChangedError, TargetExistsError
from colabstage.io.files import make_folder
from colabstage.io.ownership import sweep_orphans, whatever_is_there
from colabstage.sources.remote import pieces_of
from colabstage.sources.transfer.connections import read_through
from colabstage.sources.transfer.partial_file import BlockHashes, take_partial_file
from colabstage.sources.transfer.streaming_copy import StreamingCopy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.files import RetryPolicy
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.sources.remote import RemoteFile


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """Describe a fetched file."""

    path: Path
    """Where it is."""
    nbytes: int
    """Its length."""
    kept_bytes: int
    """How many of its bytes an interrupted run had already fetched."""
    block_hashes: tuple[str, ...]
    """The xxh3-64 of each block of 8 MiB."""


def fetch_file(
    source: RemoteFile,
    target: Path,
    *,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    connections: int | None = None,
    announce: Callable[[tuple[str, ...], int], object] = lambda _hashes, _nbytes: None,
    replaces: Callable[[Path], bool] = whatever_is_there,
) -> FetchedFile:
    """Fetch a whole file to `target`, which is replaced only once everything has arrived and is verified.

    However it is interrupted, `target` is unchanged, and the next call continues with what is left beside it. The
    caller checks that there is room. Nothing is forced to the disk: after a crash of the machine (not of the process),
    only the hashes tell whether the file is complete.

    Args:
        source: closed by the caller. Without a known length or ranges, it is read as one stream, which cannot be
            resumed.
        target: the file to make; its folder is made too.
        step: told of every byte, including those kept from earlier runs.
        cancellation: looked at several times a second.
        policy: `attempts` counts tries without a single byte of progress.
        connections: parts in flight at once; `None` for as many as the source recommends.
        announce: called with the hash of each 8 MiB block and the length, right before the file gets its name.
        replaces: decides whether the file that is at `target` then may be replaced.

    Raises:
        TargetExistsError: `target` is a folder, or may not be replaced.
        ChecksumMismatchError: everything arrived, but does not match the source's checksum; it is kept under another
            name for inspection.
        SourceChangedError: the file changed meanwhile; nothing is kept.
        SourceReadError, SourceNotFoundError, SourceAccessError, DriveDisconnectedError, DriveQuotaError: the source
            failed for good.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    if target.is_dir():
        msg = f"'{target}' is a folder; expected the name that the file is to have."
        raise TargetExistsError(msg)
    make_folder(target.parent)
    cancellation.check()
    facts, checksum = source.facts, source.facts.checksum

    def publish(
        move_to: Callable[[Path, Callable[[Path], bool]], None], fetched: FetchedFile, digest: str | None
    ) -> None:
        """Move what has arrived to its place if it is right, otherwise to another name."""
        if checksum is None or digest == checksum.digest:
            announce(fetched.block_hashes, fetched.nbytes)
            move_to(target, replaces)
            return
        # Not announced, because no record of ours may vouch for it.
        damaged = _free_name(target)
        move_to(damaged, replaces)
        msg = (
            f"'{facts.label}' arrived complete, but its {checksum.algorithm} is {digest}, not {checksum.digest}. It is "
            f"kept as '{damaged}', and '{target}' is as it was. If the checksum is the right one, delete the damaged "
            "file and fetch it again."
        )
        raise ChecksumMismatchError(msg)

    if facts.size is not None and facts.ranges:
        with StreamingCopy(
            source,
            target,
            step=step,
            policy=policy,
            connections=connections,
            cancellation=cancellation,
        ) as copy:
            try:
                copy.start()
                # Hashed while it arrives: a large file is no longer in the system's cache at the end.
                pieces = pieces_of(copy.read_here, copy.size, cancellation)
                digest = None if checksum is None else checksum.digest_of(pieces)
                copy.wait()
            # The received bytes are of a state that no longer exists.
            except SourceChangedError:
                copy.discard()
                raise
            fetched = FetchedFile(target, copy.size, copy.kept_bytes, copy.block_hashes)
            publish(copy.move_to, fetched, digest)
    else:
        partial = take_partial_file(target, facts)
        # A stream cannot be resumed, so nothing is left for a later run.
        try:
            blocks, hashes, nbytes = BlockHashes(None), list[str](), 0
            hasher = None if checksum is None else checksum.new_hasher()
            for piece in read_through(source, policy=policy, cancellation=cancellation):
                partial.write(piece, nbytes)
                hashes += blocks.feed(memoryview(piece), nbytes).values()
                if hasher is not None:
                    hasher.update(piece)
                nbytes += len(piece)
                step.advance(len(piece))
            fetched = FetchedFile(target, nbytes, 0, (*hashes, *blocks.finish()))
            publish(partial.move_to, fetched, None if hasher is None else hasher.hexdigest())
        except BaseException:
            partial.remove()
            raise
    # Of several interrupted copies one was continued; the others are not needed any more.
    sweep_orphans(target.parent, name=target.name)
    return fetched


def _free_name(target: Path) -> Path:
    """Return an unused name beside `target` that says what is wrong with the file."""
    names = itertools.chain(
        [f"{target.name}.damaged"], (f"{target.name}.damaged-{number}" for number in itertools.count(2))
    )
    return next(path for path in map(target.with_name, names) if not os.path.lexists(path))
