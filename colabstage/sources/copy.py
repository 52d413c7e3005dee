"""One file from a slow place to a fast one, or back, every block hashed on the way."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import DamagedPackError, SourceReadError
from colabstage.io.files import (
    RetryPolicy,
    TargetFile,
    block_ranges,
    close_quietly,
    hash_block,
    pread_exactly,
    read_with_retry,
    typed_write_errors,
)
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.workspace import cut_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation, ProgressStep

# Reads of a block whose hash is wrong, before the file itself counts as damaged.
_BLOCK_TRIES = 3
# Blocks read ahead of the one that is being written.
_BLOCKS_AHEAD = 3


class Copied(NamedTuple):
    """The result of copying a file."""

    hashes: list[str]
    """The hash of each block."""
    kept_bytes: int
    """How much an interrupted copy had left in place."""


def copy_blocks(
    source: Path,
    target: Path,
    *,
    size: int,
    block_bytes: int,
    expected: Sequence[str] | None,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    stall_timeout_s: float = 180.0,
    resume: bool = False,
) -> Copied:
    """Copy a file block by block, in order, hashing each block as it passes; one is read while another is written.

    Args:
        source: read once, sequentially, by one reader: on the simulated Drive two take 1.15 times as long, four 1.2.
        target: a temporary name; overwritten, unless `resume` is given.
        size: length that `source` must have, in bytes.
        block_bytes: length of a block.
        expected: hash of each block, or `None` to take the bytes as they come. A block that comes out wrong is read
            again, alone.
        step: told of every byte.
        cancellation: looked at several times a second.
        policy: how often a failing read is tried again.
        stall_timeout_s: seconds in which at least one block has to arrive.
        resume: continue with what an interrupted copy left in `target`: blocks of it that have the right hash stay.
            With `expected`, such blocks are not even read from the source.

    Raises:
        DamagedPackError: a block is wrong on every try; the message says where.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source failed, hangs, or has another length
            (found before anything is written).
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    blocks = block_ranges(size, block_bytes)
    hashes, kept_bytes = [""] * len(blocks), 0
    with (
        _open_source(source, size, policy) as reader,
        TargetFile(target, fresh=not resume) as writer,
        contextlib.ExitStack() as stack,
    ):
        leftover = _open_leftover(target, size) if resume else None
        if leftover is not None:
            stack.callback(close_quietly, leftover)

        def read(number: int) -> tuple[bytes | None, str]:
            wanted = None if expected is None else expected[number]
            there = None if leftover is None else _hash_there(leftover, blocks[number])
            # The block is here and has the expected hash, so the source need not be read.
            if there is not None and there == wanted:
                return None, there
            data, digest = _read_block(reader, blocks[number], wanted, source, policy)
            # Without expected hashes it is compared with the source, which saves a write.
            return (None if digest == there else data), digest

        def use(number: int, block: tuple[bytes | None, str]) -> None:
            nonlocal kept_bytes
            data, hashes[number] = block
            offset, length = blocks[number]
            if data is None:
                kept_bytes += length
            else:
                writer.write(data, offset)
            step.advance(length)

        run_pipeline(
            range(len(blocks)),
            read=read,
            use=use,
            cost=lambda number: blocks[number][1],
            limits=PipelineLimits(
                readers=1,
                max_readers=1,
                workers=1,
                budget_bytes=_BLOCKS_AHEAD * block_bytes,
                stall_timeout_s=stall_timeout_s,
            ),
            cancellation=cancellation,
        )
    return Copied(hashes, kept_bytes)


def _open_leftover(target: Path, size: int) -> int:
    """Return a handle for what an interrupted copy left in the target, to be compared block by block."""
    with typed_write_errors(target):
        # A longer file may be left from another state, and its end would stay.
        if target.stat().st_size > size:
            cut_own(target, size)
        return os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hash_there(handle: int, block: tuple[int, int]) -> str | None:
    """Return the hash of what is in a block's place; `None` if that is not a whole block."""
    offset, length = block
    try:
        data = pread_exactly(handle, length, offset)
    except OSError:  # then it is copied once more
        return None
    return hash_block(data) if len(data) == length else None


@contextlib.contextmanager
def _open_source(source: Path, size: int, policy: RetryPolicy) -> Iterator[int]:
    """Yield a handle for reading a file that must have `size` bytes."""
    label = str(source)
    handle = read_with_retry(lambda: os.open(source, os.O_RDONLY | os.O_CLOEXEC), label, policy=policy)
    try:
        found = read_with_retry(lambda: os.fstat(handle).st_size, label, policy=policy)
        # Before anything is written: a file that is still being written would be copied in part.
        if found != size:
            msg = f"'{label}' has {found:,} bytes; expected {size:,}. Wait until its upload or copy is complete."
            raise SourceReadError(msg)
        yield handle
    finally:
        close_quietly(handle)


def _read_block(
    reader: int, block: tuple[int, int], wanted: str | None, source: Path, policy: RetryPolicy
) -> tuple[bytes, str]:
    data = _read_whole(lambda: pread_exactly(reader, block[1], block[0]), block, source, policy)
    tries = 1
    while (digest := hash_block(data)) != wanted and wanted is not None:
        if tries == _BLOCK_TRIES:
            msg = (
                f"'{source}' is damaged: the {block[1]:,} bytes from {block[0]:,} on are not those that were written, "
                f"in {_BLOCK_TRIES} readings."
            )
            raise DamagedPackError(msg)
        data = _read_whole(lambda: _read_afresh(source, block), block, source, policy)
        tries += 1
    return data, digest


def _read_whole(read: Callable[[], bytes], block: tuple[int, int], source: Path, policy: RetryPolicy) -> bytes:
    data = read_with_retry(read, str(source), policy=policy)
    offset, length = block
    if len(data) != length:
        msg = f"'{source}' ends at byte {offset + len(data):,}; expected {length:,} more from byte {offset:,} on."
        raise SourceReadError(msg)
    return data


def _read_afresh(source: Path, block: tuple[int, int]) -> bytes:
    """Read a block through a new handle: a mount may return the same wrong bytes to one handle for ever."""
    offset, length = block
    handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Otherwise the kernel would return the same bytes from its cache.
        os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)
        return pread_exactly(handle, length, offset)
    finally:
        os.close(handle)
