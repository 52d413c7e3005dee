"""A whole tree of files onto the local disk, with many reads in flight."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.fetch.copy import copy_blocks, translate_write_error
from colabstage.fileops import pwrite_exactly
from colabstage.pipeline import PipelineLimits, run_pipeline
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.names import check_case_collisions

if TYPE_CHECKING:
    from colabstage.progress import Cancellation, ProgressStep
    from colabstage.trees.tree import FileEntry, Tree

# Larger files are copied in pieces instead of being held in memory whole.
_WHOLE_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 8 * 1024 * 1024


def fetch_tree(
    tree: Tree,
    target: Path,
    *,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
) -> None:
    """Write every file of `tree` below `target`, a temporary folder that exists and is empty.

    Modification times are kept where the tree knows them. Nothing else is: no owners, no modes, no links.

    Raises:
        UnsafeArchiveError: two names differ only in case, which not every disk can hold.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError, CorruptArchiveError: the source failed.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    entries = sorted(tree.entries, key=lambda entry: entry.position)
    check_case_collisions(tree.label, [entry.name for entry in entries])
    for folder in sorted({str(Path(entry.name).parent) for entry in entries}):
        (target / folder).mkdir(parents=True, exist_ok=True)

    def read(number: int) -> bytes:
        entry = entries[number]
        if _in_pieces(tree, entry):
            return b""
        return read_with_retry(lambda: tree.read(entry), entry.name, policy=policy)

    def use(number: int, data: bytes) -> None:
        entry = entries[number]
        place = target / entry.name
        if _in_pieces(tree, entry):
            copy_blocks(
                Path(tree.label) / entry.name,
                place,
                size=entry.size,
                block_bytes=_PIECE_BYTES,
                expected=None,
                step=step,
                cancellation=cancellation,
                policy=policy,
            )
        else:
            _write_file(place, data)
            step.advance(len(data))
        if entry.mtime_ns:
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))

    run_pipeline(
        range(len(entries)),
        read=read,
        use=use,
        cost=lambda number: min(entries[number].size, _WHOLE_BYTES),
        limits=limits,
        cancellation=cancellation,
    )


def _in_pieces(tree: Tree, entry: FileEntry) -> bool:
    return tree.kind == "folder" and entry.size > _WHOLE_BYTES


def _write_file(place: Path, data: bytes) -> None:
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            pwrite_exactly(handle, data, 0)
        finally:
            os.close(handle)
    except OSError as error:
        raise translate_write_error(error, place) from error
