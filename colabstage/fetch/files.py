"""A whole tree of files onto the local disk, with many reads in flight."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from colabstage.errors import SourceReadError, UnsafeArchiveError
from colabstage.fetch.copy import TargetFile, translate_write_error, typed_write_errors
from colabstage.fetch.loose import LooseFiles
from colabstage.fetch.plan import LARGE_BYTES
from colabstage.fileops import block_ranges, hash_block, pread_exactly
from colabstage.ownership import remove_own, temp_beside
from colabstage.pipeline import DaemonPool, PipelineLimits, run_pipeline
from colabstage.progress import Cancellation
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.folder import FolderTree
from colabstage.trees.names import check_case_collisions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.progress import ProgressStep
    from colabstage.trees.tree import FileEntry, Tree

# Parts of a large file. Long enough that opening the file anew for each (0.3 s at worst on a Drive mount) is not what
# it costs.
_PIECE_BYTES = 16 * 1024 * 1024
# Large files that only come in order, one after the other on each thread; two keep a disk and a core busy.
_STREAMS = 2


class Piece(NamedTuple):
    """A part of one file, `length` bytes from `offset` on; `is_whole` when it is all of it."""

    entry: FileEntry
    offset: int
    length: int
    is_whole: bool


@runtime_checkable
class TreeWithParts(Protocol):
    """A tree that reads any part of a file."""

    def read_part(self, entry: FileEntry, offset: int, length: int) -> bytes:
        """`length` bytes of one file from `offset` on."""


class Ledger(Protocol):
    """What is here already, and where what comes is noted. Called from many threads."""

    def has(self, name: str, offset: int, length: int) -> bool:
        """Whether these bytes of a file were noted before, and are right."""

    def note(self, name: str, offset: int, length: int, digest: str) -> None:
        """These bytes of a file, whose xxh3-64 is `digest`, are on the disk."""


class _EmptyLedger:
    def has(self, name: str, offset: int, length: int) -> bool:
        return False

    def note(self, name: str, offset: int, length: int, digest: str) -> None:
        pass


def fetch_tree(
    tree: Tree,
    target: Path,
    *,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    ledger: Ledger | None = None,
) -> None:
    """Write every file of `tree` below `target`, a temporary folder that exists.

    Modification times are kept where the tree knows them. Nothing else is: no owners, no modes, no links.

    Args:
        tree: the files.
        target: empty, or with what the ledger knows of.
        limits: how many at once.
        step: told of every byte, those that are here already included.
        cancellation: looked at several times a second.
        policy: how often a failing read is tried again.
        ledger: what an interrupted run left; without one everything is read.

    Raises:
        UnsafeArchiveError: two names differ only in case, and the disk does not tell them apart.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError, CorruptArchiveError: the source failed.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    check_names_fit(tree.label, [entry.name for entry in tree.entries], target)
    fetch = _TreeFetch(tree, target, step, policy, ledger or _EmptyLedger())
    pieces, streamed = _cut(tree)
    _make_folders(target, [entry.name for entry in tree.entries])
    fetch.pieces([piece for piece in pieces if not fetch.is_here(piece)], limits, cancellation)
    fetch.streams([entry for entry in streamed if not fetch.is_here(_whole(entry))], cancellation)


def check_names_fit(label: str, names: Sequence[str], folder: Path) -> None:
    """Refuse names that cannot stand beside each other below `folder`, which exists.

    Only a disk that takes "A" for "a", or two ways to encode an accent for one, refuses any; Linux' own do not.

    Raises:
        UnsafeArchiveError: two names differ only in what the disk does not tell apart.
        TargetNotWritableError: the disk cannot be asked.
    """
    try:
        check_case_collisions(label, names)
    except UnsafeArchiveError:
        if _mixes_up_names(folder):
            raise


def _mixes_up_names(folder: Path) -> bool:
    probe = temp_beside(folder / "aé")
    with typed_write_errors(probe):
        probe.touch()
    try:
        others = (probe.name.upper(), unicodedata.normalize("NFD", probe.name))
        return any(probe.with_name(other).exists() for other in others)
    finally:
        remove_own(probe)


class _TreeFetch:
    """One tree on its way to one folder."""

    def __init__(self, tree: Tree, target: Path, step: ProgressStep, policy: RetryPolicy, ledger: Ledger) -> None:
        self._tree = tree
        self._target = target
        self._step = step
        self._policy = policy
        self._ledger = ledger

    def is_here(self, piece: Piece) -> bool:
        """Whether an interrupted run has brought it."""
        here = self._ledger.has(piece.entry.name, piece.offset, piece.length)
        if here:
            self._step.advance(piece.length)
        return here

    def pieces(self, pieces: Sequence[Piece], limits: PipelineLimits, cancellation: Cancellation) -> None:
        """Bring files, and parts of files, many at once."""
        read_piece = _piece_reader(self._tree)

        def read(number: int) -> bytes:
            piece = pieces[number]
            return read_with_retry(lambda: read_piece(piece), piece.entry.name, policy=self._policy)

        def use(number: int, data: bytes) -> None:
            piece = pieces[number]
            with TargetFile(self._target / piece.entry.name, fresh=piece.is_whole) as file:
                file.write(data, piece.offset)
            # The pieces of a file come in any order; each leaves the time right, so the last one does.
            self._set_time(piece.entry)
            self._ledger.note(piece.entry.name, piece.offset, piece.length, hash_block(data))
            self._step.advance(len(data))

        run_pipeline(
            range(len(pieces)),
            read=read,
            use=use,
            cost=lambda number: pieces[number].length,
            limits=limits,
            cancellation=cancellation,
        )

    def streams(self, entries: Sequence[FileEntry], cancellation: Cancellation) -> None:
        """Bring large files that only come in order, none of them held in memory whole."""
        if not entries:
            return
        stopping = Cancellation()
        with DaemonPool(_STREAMS, "colabstage-stream") as pool:
            try:
                # What moves inside has a deadline of its own.
                pool.run(
                    lambda entry: self._stream(entry, (cancellation, stopping)), entries, stall_timeout_s=float("inf")
                )
            finally:
                stopping.cancel()

    def _stream(self, entry: FileEntry, cancellations: tuple[Cancellation, ...]) -> None:
        import xxhash

        hasher = xxhash.xxh3_64()
        at = 0
        with TargetFile(self._target / entry.name) as file:
            for data in self._tree.chunks(entry):
                for cancellation in cancellations:
                    cancellation.check()
                file.write(data, at)
                hasher.update(data)
                at += len(data)
                self._step.advance(len(data))
        self._set_time(entry)
        self._ledger.note(entry.name, 0, entry.size, hasher.hexdigest())

    def _set_time(self, entry: FileEntry) -> None:
        if not entry.mtime_ns:
            return
        place = self._target / entry.name
        try:
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        except OSError as error:
            raise translate_write_error(error, place) from error


def _cut(tree: Tree) -> tuple[list[Piece], list[FileEntry]]:
    """What is read at once, in the order in which to read; and the large files that only come from their beginning."""
    parts_come_alone = isinstance(tree, FolderTree | TreeWithParts)
    pieces: list[Piece] = []
    streamed: list[FileEntry] = []
    for entry in sorted(tree.entries, key=lambda entry: entry.position):
        if entry.size <= LARGE_BYTES:
            pieces.append(_whole(entry))
        elif parts_come_alone and (not isinstance(tree, LooseFiles) or tree.gives_parts(entry)):
            parts = block_ranges(entry.size, _PIECE_BYTES)
            pieces += (Piece(entry, offset, length, is_whole=False) for offset, length in parts)
        else:
            streamed.append(entry)
    return pieces, streamed


def _whole(entry: FileEntry) -> Piece:
    return Piece(entry, 0, entry.size, is_whole=True)


def _piece_reader(tree: Tree) -> Callable[[Piece], bytes]:
    def read(piece: Piece) -> bytes:
        if piece.is_whole:
            return tree.read(piece.entry)
        if isinstance(tree, TreeWithParts):
            return tree.read_part(piece.entry, piece.offset, piece.length)
        return _read_part_of_file(tree, piece)

    return read


def _make_folders(target: Path, names: Sequence[str]) -> None:
    for folder in sorted({name.rpartition("/")[0] for name in names}):
        try:
            (target / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise translate_write_error(error, target / folder) from error


def _read_part_of_file(tree: Tree, piece: Piece) -> bytes:
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
