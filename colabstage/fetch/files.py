"""A whole tree of files onto the local disk, with many reads in flight."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import SourceReadError
from colabstage.fetch.copy import TargetFile, translate_write_error
from colabstage.fileops import block_ranges, pread_exactly
from colabstage.pipeline import PipelineLimits, run_pipeline
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.names import check_case_collisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.progress import Cancellation, ProgressStep
    from colabstage.trees.tree import FileEntry, Tree

# Larger files of a folder come in pieces instead of being held in memory whole. A piece is long enough that opening
# the file anew for each (0.3 s at worst on a Drive mount) is not what it costs.
_WHOLE_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024


class _Piece(NamedTuple):
    """A part of one file, `length` bytes from `offset` on; `is_whole` when it is all of it."""

    entry: FileEntry
    offset: int
    length: int
    is_whole: bool


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
    check_case_collisions(tree.label, [entry.name for entry in tree.entries])
    pieces = _cut(tree)
    _make_folders(target, [piece.entry.name for piece in pieces])

    def read(number: int) -> bytes:
        piece = pieces[number]
        read_one = (lambda: tree.read(piece.entry)) if piece.is_whole else (lambda: _read_piece(tree, piece))
        return read_with_retry(read_one, piece.entry.name, policy=policy)

    def use(number: int, data: bytes) -> None:
        piece = pieces[number]
        _write_piece(target / piece.entry.name, piece, data)
        step.advance(len(data))

    run_pipeline(
        range(len(pieces)),
        read=read,
        use=use,
        cost=lambda number: pieces[number].length,
        limits=limits,
        cancellation=cancellation,
    )


def _cut(tree: Tree) -> list[_Piece]:
    """What is read at once, in the order in which to read."""
    pieces: list[_Piece] = []
    for entry in sorted(tree.entries, key=lambda entry: entry.position):
        if tree.kind == "folder" and entry.size > _WHOLE_BYTES:
            parts = block_ranges(entry.size, _PIECE_BYTES)
            pieces += (_Piece(entry, offset, length, is_whole=False) for offset, length in parts)
        else:
            pieces.append(_Piece(entry, 0, entry.size, is_whole=True))
    return pieces


def _make_folders(target: Path, names: Sequence[str]) -> None:
    for folder in sorted({name.rpartition("/")[0] for name in names}):
        try:
            (target / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise translate_write_error(error, target / folder) from error


def _read_piece(tree: Tree, piece: _Piece) -> bytes:
    handle = os.open(Path(tree.label) / piece.entry.name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        data = pread_exactly(handle, piece.length, piece.offset)
    finally:
        os.close(handle)
    if size != piece.entry.size or len(data) != piece.length:
        msg = (
            f"'{tree.label}/{piece.entry.name}' was listed with {piece.entry.size:,} bytes and has {size:,} now: it "
            "changed while being read. Wait until its upload or copy is complete, then stage again."
        )
        raise SourceReadError(msg)
    return data


def _write_piece(place: Path, piece: _Piece, data: bytes) -> None:
    # The pieces of a file come in any order; each leaves the time right, so the last one does.
    with TargetFile(place, fresh=piece.is_whole) as file:
        file.write(data, piece.offset)
    if piece.entry.mtime_ns:
        try:
            os.utime(place, ns=(piece.entry.mtime_ns, piece.entry.mtime_ns))
        except OSError as error:
            raise translate_write_error(error, place) from error
