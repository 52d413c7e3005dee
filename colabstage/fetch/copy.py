"""One file from a slow place to a fast one, or back, every block hashed on the way."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from colabstage.errors import DamagedPackError, NotEnoughSpaceError, SourceReadError, TargetNotWritableError
from colabstage.fileops import block_ranges, hash_block, pread_exactly, pwrite_exactly
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from colabstage.progress import Cancellation, ProgressStep

# Reads of a block whose hash is wrong, before the file itself counts as damaged.
_BLOCK_TRIES = 3


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
) -> list[str]:
    """Copy a file block by block, in order, hashing each block as it passes.

    Args:
        source: read once, sequentially, which every mount does best.
        target: a temporary name; overwritten.
        size: length that `source` must have, in bytes.
        block_bytes: length of a block.
        expected: hash of each block, or `None` to take the bytes as they come. A block that comes out wrong is read
            again, alone.
        step: told of every byte.
        cancellation: looked at before every block.
        policy: how often a failing read is tried again.

    Returns:
        The hash of each block.

    Raises:
        DamagedPackError: a block is wrong on every try; the message says where.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source failed, or has another length.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    hashes: list[str] = []
    reader = read_with_retry(lambda: os.open(source, os.O_RDONLY), str(source), policy=policy)
    try:
        with _writing(target) as writer:
            for number, (offset, length) in enumerate(block_ranges(size, block_bytes)):
                cancellation.check()
                wanted = None if expected is None else expected[number]
                data, digest = _read_block(reader, (offset, length), wanted, str(source), policy)
                pwrite_exactly(writer, data, offset)
                hashes.append(digest)
                step.advance(length)
    finally:
        os.close(reader)
    return hashes


def _read_block(
    reader: int, block: tuple[int, int], wanted: str | None, label: str, policy: RetryPolicy
) -> tuple[bytes, str]:
    offset, length = block
    for _ in range(_BLOCK_TRIES):
        data = read_with_retry(lambda: pread_exactly(reader, length, offset), label, policy=policy)
        if len(data) != length:
            msg = f"'{label}' ends at byte {offset + len(data):,}; expected {length:,} more from byte {offset:,} on."
            raise SourceReadError(msg)
        digest = hash_block(data)
        if wanted is None or digest == wanted:
            return data, digest
    msg = (
        f"'{label}' is damaged: the {length:,} bytes from {offset:,} on are not those that were written, in "
        f"{_BLOCK_TRIES} readings."
    )
    raise DamagedPackError(msg)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[int]:
    """A handle to write a new file, with errors of the target told apart from those of the source."""
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise translate_write_error(error, target) from error
    try:
        try:
            yield handle
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            raise translate_write_error(error, target) from error
        raise


def translate_write_error(error: OSError, target: Path) -> OSError:
    """The typed error for a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        msg = f"'{target.parent}' is full ({error.strerror}). Free some space there, or choose another place."
        return NotEnoughSpaceError(msg)
    msg = f"Cannot write '{target}' ({error.strerror or error}). Choose a place that this user can write to."
    return TargetNotWritableError(msg)
