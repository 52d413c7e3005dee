"""Copy the files of a tree to a folder: planned by pure code before the first byte, then many files at once.

Small files are read whole, large ones in parts if the tree can read ranges, and a ledger records everything that has
arrived.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from colabstage.errors import CancelledError, DriveError, SourceError, TargetExistsError, UnsafeArchiveError
from colabstage.io.files import (
    Closing,
    RetryPolicy,
    TargetFile,
    block_ranges,
    hash_block,
    hash_ranges,
    read_with_retry,
    translate_write_error,
    typed_write_errors,
)
from colabstage.io.ownership import put_folder
from colabstage.io.pipeline import DaemonPool, PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation
from colabstage.io.units import format_bytes, format_count
from colabstage.io.workspace import (
    Journal,
    find_orphans,
    only_for,
    open_workspace,
    read_journal,
    remove_own,
    temp_beside,
)
from colabstage.trees.entries import check_case_collisions, parent_folders
from colabstage.trees.tree import cut_while_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from colabstage.io.progress import ProgressStep
    from colabstage.trees.tree import FileEntry, Tree

Transport = Literal["local disk", "mount", "http", "object store", "share link", "kaggle", "tree"]

# On a Drive mount, speed grows with the reads in flight up to about 20, and falls beyond 32.
SLOW_READERS = 32
# Larger files are copied in parts: they take so long that the cost of opening them no longer matters.
LARGE_BYTES = 64 * 1024 * 1024
# A smaller part would end before its connection reaches full speed.
_LEAST_PART_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TransferFacts:
    """Hold what is known about a source and this machine."""

    slow: bool
    """Whether each answer takes time, as over a network or a Drive mount."""
    cores: int
    """The number of cores that may be used."""
    connections: int = 1
    """Parts of one file that the source serves concurrently at full speed."""
    mount_copy: bool = False
    """Whether the mount keeps a second copy of a large file on the local disk, as Google Drive's does."""
    kept_bytes: int = 0
    """What an interrupted run has left on the disk."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Describe how files will be copied."""

    nbytes: int
    """Their total size."""
    limits: PipelineLimits
    """How many files are read at once, and how many threads write."""
    connections: int
    """Parts of one large file in flight at once."""
    peak_bytes: int
    """Free space that the local disk needs."""
    reasons: tuple[str, ...]
    """Why, in sentences."""


def plan_transfer(files: Sequence[int], facts: TransferFacts) -> TransferPlan:
    """Decide how to copy files here.

    Args:
        files: the size of each, in bytes.
        facts: facts about their source.
    """
    large = [size for size in files if size > LARGE_BYTES]
    readers, max_readers, why_readers = _readers(files, facts)
    connections, why_connections = _connections(files, facts)
    nbytes = sum(files)
    # The mount drops small files from its copy as the disk fills, but not a large one that is in use.
    single = sum(files) if len(files) == 1 else sum(large)
    second = single if facts.mount_copy else 0
    reasons = [why_readers, why_connections]
    if second:
        reasons.append(f"The mount keeps a second copy of {format_bytes(second)} on this disk meanwhile.")
    if facts.kept_bytes:
        reasons.append(f"An interrupted run already takes {format_bytes(facts.kept_bytes)} of that.")
    return TransferPlan(
        nbytes=nbytes,
        limits=PipelineLimits(readers=readers, max_readers=max_readers, workers=facts.cores),
        connections=connections,
        peak_bytes=max(0, nbytes + second - facts.kept_bytes),
        reasons=tuple(reason for reason in reasons if reason),
    )


def _readers(files: Sequence[int], facts: TransferFacts) -> tuple[int, int, str]:
    if len(files) <= 1:
        return 1, 1, ""
    most = min(SLOW_READERS, len(files))
    if facts.slow:
        return most, most, f"Each file takes time to answer, so {most} are requested at once."
    few = max(1, min(2, facts.cores, most))
    return few, most, f"The disk answers at once, so {few} are read at once, and more only if that proves slow."


def _connections(files: Sequence[int], facts: TransferFacts) -> tuple[int, str]:
    largest = max(files, default=0)
    if len(files) > 1 and largest <= LARGE_BYTES:
        return 1, ""
    count = max(1, min(facts.connections, largest // _LEAST_PART_BYTES))
    return count, f"Large files come in {format_count(count, 'parts')} at once." if count > 1 else ""


# From Linux's fs.h, for a 64-bit `long`, and ext4's flag for the parent of folders that have nothing to do with each
# other.
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
_FLAGS = struct.Struct("<Q")
_MANY_FOLDERS = 4


def make_folders(root: Path, names: Iterable[str]) -> None:
    """Make every folder that `names` are in, below `root`; existing ones are fine.

    ext4 puts subfolders into the group of inodes of their parent, unless the parent is flagged as one with unrelated
    subfolders. In one group, every new file waits for those of other processes and skips the inodes of recently deleted
    files: 130 µs per file instead of 35. The flag is set only meanwhile; other file systems refuse it.

    Raises:
        NotEnoughSpaceError, TargetNotWritableError: the disk failed.
    """
    folders = sorted(parent_folders(names))
    children = Counter(folder.rpartition("/")[0] for folder in folders)
    with contextlib.ExitStack() as marks:
        if children[""] >= _MANY_FOLDERS:
            marks.enter_context(_marked(f"{root}"))
        for folder in folders:
            path = f"{root}/{folder}"
            try:
                os.mkdir(path)  # noqa: PTH102  # names, not paths: there may be thousands
            except FileExistsError:
                pass
            except OSError as error:
                raise translate_write_error(error, Path(path)) from error
            if children[folder] >= _MANY_FOLDERS:
                marks.enter_context(_marked(path))


@contextlib.contextmanager
def _marked(path: str) -> Iterator[None]:
    before = _change_flags(path, lambda flags: flags | _TOP_FOLDER)
    yield
    if before is not None:
        _change_flags(path, lambda _: before)


def _change_flags(path: str, change: Callable[[int], int]) -> int | None:
    """Change the flags of a folder, and return the earlier ones; `None` if the file system does not support this."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            flags = int(_FLAGS.unpack(fcntl.ioctl(handle, _GET_FLAGS, bytes(_FLAGS.size)))[0])
            fcntl.ioctl(handle, _SET_FLAGS, _FLAGS.pack(change(flags)))
        finally:
            os.close(handle)
    except OSError:
        return None
    return flags


# Parts of a large file, long enough that reopening the file for each (0.3 s at worst on a Drive mount) does not
# dominate.
_PIECE_BYTES = 16 * 1024 * 1024
# Threads for large files that can only be read in order; two keep a disk and a core busy.
_STREAMS = 2


class Piece(NamedTuple):
    """Describe a part of one file."""

    entry: FileEntry
    """The file."""
    offset: int
    """Where the part begins in the file."""
    length: int
    """Its length in bytes."""
    is_whole: bool
    """Whether it is the whole file."""


def fetch_tree(
    tree: Tree,
    target: Path,
    *,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    ledger: FolderLedger | None = None,
) -> None:
    """Write every file of `tree` below `target`, a temporary folder that exists.

    Modification times are kept if the tree knows them. Owners, modes and links are not.

    Args:
        tree: the files.
        target: empty, or with what the ledger records.
        limits: how many files at once.
        step: told of every byte, including those already here.
        cancellation: looked at several times a second.
        policy: how often a failing read is tried again.
        ledger: what an interrupted run left; without it everything is read.

    Raises:
        UnsafeArchiveError: two names differ only in case, and the disk does not tell them apart.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError, CorruptArchiveError: the source failed.
        NotEnoughSpaceError, TargetNotWritableError: the target failed.
        CancelledError: the caller asked to stop.
    """
    check_names_fit(tree.label, [entry.name for entry in tree.entries], target)
    fetch = _TreeFetch(tree, target, step, policy, ledger)
    pieces, streamed = _cut_into_pieces(tree)
    # Before any file, so that writing threads need not check for their folders.
    make_folders(target, (entry.name for entry in tree.entries))
    # Small files and parts first: they fill the pipeline, while streams only occupy their own threads.
    fetch.pieces([piece for piece in pieces if not fetch.is_here(piece)], limits, cancellation)
    fetch.streams([entry for entry in streamed if not fetch.is_here(_whole_piece(entry))], cancellation)


def check_names_fit(label: str, names: Sequence[str], folder: Path) -> None:
    """Refuse names that cannot coexist below `folder`, which exists.

    Only a disk that treats "A" as "a", or two encodings of an accent as one, refuses any; Linux's own do not.

    Raises:
        UnsafeArchiveError: two names differ only in what the disk does not tell apart.
        TargetNotWritableError: the disk cannot be asked.
    """
    try:
        # The disk is asked only where it matters, because the probe writes a file.
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
    """Copy one tree to one folder."""

    def __init__(
        self, tree: Tree, target: Path, step: ProgressStep, policy: RetryPolicy, ledger: FolderLedger | None
    ) -> None:
        self._tree = tree
        self._target = target
        self._step = step
        self._policy = policy
        self._ledger = ledger

    def is_here(self, piece: Piece) -> bool:
        """Return whether an interrupted run has copied it."""
        here = self._ledger is not None and self._ledger.has(piece.entry.name, piece.offset, piece.length)
        if here:
            self._step.advance(piece.length)
        return here

    def pieces(self, pieces: Sequence[Piece], limits: PipelineLimits, cancellation: Cancellation) -> None:
        """Copy files, and parts of files, many at once."""

        def read(number: int) -> bytes:
            piece = pieces[number]
            return read_with_retry(lambda: self._read(piece), piece.entry.name, policy=self._policy)

        def use(number: int, data: bytes) -> None:
            piece = pieces[number]
            # Truncates what a dead run left of a file, but not what another thread has just written.
            with TargetFile(self._target / piece.entry.name, fresh=piece.is_whole) as file:
                file.write(data, piece.offset)
            # The pieces of a file come in any order; each sets the time, so it is right after the last one.
            self._arrived(piece, hash_block(data))
            self._step.advance(len(data))

        run_pipeline(
            range(len(pieces)),
            read=read,
            use=use,
            cost=lambda number: pieces[number].length,
            limits=limits,
            cancellation=cancellation,
        )

    def _read(self, piece: Piece) -> bytes:
        entry = piece.entry
        if piece.is_whole:
            return self._tree.read(entry)
        file = self._tree.open(entry)
        assert file is not None, "only what can be opened is cut"
        with contextlib.closing(file):
            data = file.pread(piece.length, piece.offset)
        if len(data) != piece.length:
            raise cut_while_read(self._tree.label, entry.name)
        return data

    def streams(self, entries: Sequence[FileEntry], cancellation: Cancellation) -> None:
        """Copy large files that can only be read in order, without holding any in memory."""
        if not entries:
            return
        stopping = Cancellation()
        with DaemonPool(_STREAMS, "colabstage-stream") as pool:
            try:
                # The reads inside have their own deadline.
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
        self._arrived(_whole_piece(entry), hasher.hexdigest())

    def _arrived(self, piece: Piece, digest: str) -> None:
        """Set the time of a file, and note which part of it is on the disk."""
        entry, place = piece.entry, self._target / piece.entry.name
        if entry.mtime_ns:
            with typed_write_errors(place):
                os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        if self._ledger is not None:
            self._ledger.note(entry.name, piece.offset, piece.length, digest)


def _cut_into_pieces(tree: Tree) -> tuple[list[Piece], list[FileEntry]]:
    """Return the pieces to read concurrently, in reading order, and the large files that can only be read in order."""
    pieces: list[Piece] = []
    streamed: list[FileEntry] = []
    # In the order of their position, so that a slow source is read from front to back.
    for entry in sorted(tree.entries, key=lambda entry: entry.position):
        if entry.size <= LARGE_BYTES:
            pieces.append(_whole_piece(entry))
        elif tree.kind == "folder" and tree.open(entry) is not None:
            parts = block_ranges(entry.size, _PIECE_BYTES)
            pieces += (Piece(entry, offset, length, is_whole=False) for offset, length in parts)
        else:
            streamed.append(entry)
    return pieces, streamed


def _whole_piece(entry: FileEntry) -> Piece:
    return Piece(entry, 0, entry.size, is_whole=True)


_FILES = "files"
_LEDGER = "ledger"
_FORMAT = 1
# Hashing cached data needs a core, reading from a disk needs two requests in flight.
_HASH_THREADS = 2

_Span = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """Describe a fetched folder."""

    files: int
    """The number of files."""
    nbytes: int
    """Their total size."""
    kept_bytes: int
    """Of these, what an interrupted run had already copied."""
    inventory: str
    """The digest of the folder's inventory, as `ownership.look_at` finds it."""


class FolderLedger(Closing):
    """Record which parts of a folder are here. `kept_bytes`: what was found here and is right."""

    def __init__(self, workspace: Path, fingerprint: str) -> None:
        """Open the ledger of an existing workspace; everything it lists is hashed."""
        self._files = workspace / _FILES
        path = workspace / _LEDGER
        recorded = read_ledger(path, fingerprint) or {}
        with typed_write_errors(path):
            # A file that no ledger lists cannot be told from half a file.
            if not recorded:
                remove_own(self._files)
            self._files.mkdir(exist_ok=True)
        # After a crash of the machine, a written line proves nothing about the bytes: only their hash does.
        with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="colabstage-hash") as pool:
            found = zip(recorded, pool.map(self._hash, recorded), strict=True)
            self._kept = {span: digest for span, digest in found if recorded[span] == digest}
        self.kept_bytes = sum(length for _, _, length in self._kept)
        with typed_write_errors(path):
            self._journal = Journal(
                path, _journal_head(fingerprint), ([*span, digest] for span, digest in self._kept.items())
            )

    def has(self, name: str, offset: int, length: int) -> bool:
        """Return whether these bytes of a file were noted before, and are right."""
        return (name, offset, length) in self._kept

    def note(self, name: str, offset: int, length: int, digest: str) -> None:
        """Note in one write that these bytes are on the disk, so that a kill leaves at most one incomplete line."""
        with typed_write_errors(self._files):
            self._journal.append([name, offset, length, digest])

    def close(self) -> None:
        """Release the file. Calling it twice is fine."""
        self._journal.close()

    def _hash(self, span: _Span) -> str:
        name, offset, length = span
        try:
            # Shorter than it says, so there is nothing to hash.
            if (self._files / name).stat().st_size < offset + length:
                return ""
            return hash_ranges(self._files / name, [(offset, length)], threads=1)[0]
        except OSError:
            return ""


def read_ledger(path: Path, fingerprint: str) -> dict[_Span, str] | None:
    """Return the hashes in a ledger by name, offset and length; `None` if it belongs to something else or is
    missing."""
    try:
        # Without a fingerprint, the files may no longer be those of the ledger.
        found = read_journal(path, _journal_head(fingerprint)) if fingerprint else None
        return None if found is None else {(name, offset, length): digest for name, offset, length, digest in found}
    except (OSError, ValueError, TypeError):
        return None


def _journal_head(fingerprint: str) -> dict[str, object]:
    return {"format": _FORMAT, "fingerprint": fingerprint}


def unfinished_bytes(target: Path, fingerprint: str) -> int:
    """Return how many bytes an interrupted run left for a folder, by its ledger; nothing is hashed."""
    ledgers = [read_ledger(orphan / _LEDGER, fingerprint) for orphan in find_orphans(target)]
    # Of several leftovers, the next run takes over the largest.
    return max((sum(length for _, _, length in ledger) for ledger in ledgers if ledger), default=0)


def fetch_folder(
    tree: Tree,
    target: Path,
    *,
    fingerprint: str,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    overwrite: bool = False,
    announce: Callable[[str], object] = lambda _: None,
) -> FetchedFolder:
    """Copy all files of a tree to the folder `target`, replacing what is there only at the very end.

    Args:
        tree: the files.
        target: the folder to make; its parent exists.
        fingerprint: identifies the tree's state; an interrupted run of the same state is continued. "" if states cannot
            be told apart.
        limits, step, cancellation: as for `fetch_tree`.
        overwrite: whether to replace what is there even if it is not ours, or was changed since we made it.
        announce: told the digest of its inventory right before the folder is renamed to `target`.

    Raises:
        TargetExistsError: something is there that is not ours, or was changed since we made it.
        As `fetch_tree`; what was at `target` is unchanged.
    """
    with contextlib.ExitStack() as stack:
        workspace = stack.enter_context(
            open_workspace(
                target,
                accepts=lambda orphan: bool(read_ledger(orphan / _LEDGER, fingerprint)),
                keeps=only_for(KeyboardInterrupt, CancelledError, SourceError, DriveError, TargetExistsError),
            )
        )
        with FolderLedger(workspace.path, fingerprint) as ledger:
            # Read here, because the ledger is closed before the folder is put in place.
            kept = ledger.kept_bytes
            fetch_tree(
                tree,
                workspace.path / _FILES,
                limits=limits,
                step=step,
                cancellation=cancellation,
                policy=RetryPolicy(),
                ledger=ledger,
            )
        with typed_write_errors(target):
            inventory = put_folder(workspace.path / _FILES, target, overwrite=overwrite, announce=announce)
    return FetchedFolder(len(tree.entries), sum(entry.size for entry in tree.entries), kept, inventory)
