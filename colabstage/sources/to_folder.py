"""Write the files of a tree into a folder: one plan, and one executor for copying and extracting.

The work is cut into parts before the first byte: neighbours in an archive, single files, pieces of large files. A
ledger notes each part that is on the disk, with its hash, so that an interrupted run is continued. Many small members
of a local archive are written by processes, everything else by threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from colabstage.errors import CancelledError, DriveError, SourceError, TargetExistsError, TargetNotWritableError
from colabstage.io.files import (
    Closing,
    RetryPolicy,
    TargetFile,
    block_ranges,
    hash_block,
    read_with_retry,
    translate_write_error,
    typed_write_errors,
)
from colabstage.io.pipeline import DaemonPool, PipelineLimits, run_pipeline
from colabstage.io.progress import Cancellation, ProgressStep
from colabstage.io.receipts import Receipt, put_folder
from colabstage.io.workspace import Journal, open_workspace, read_journal, remove_own, rename_own
from colabstage.machine.resources import usable_cores
from colabstage.sources.members import Folder, Processes, write_file, write_members
from colabstage.trees.bytes import PIECE_BYTES, LocalBytes, TemporaryBytes, cut_while_read
from colabstage.trees.compressed import pieces_ahead
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from colabstage.sources.members import Member
    from colabstage.trees.listing import FileEntry, Tree

# On a Drive mount, speed grows with the reads in flight up to about 20, and falls beyond 32.
SLOW_READERS = 32
# Larger files of a folder are copied in pieces, long enough that reopening the file for each (0.3 s at worst on a Drive
# mount) does not dominate.
LARGE_BYTES = 64 * 1024 * 1024
_LARGE_PIECE_BYTES = 16 * 1024 * 1024
# Threads for large files that can only be read in order; two keep a disk and a core busy.
_STREAMS = 2
# One part of an archive is one read, one message to a process and one line of the ledger, so that for small members
# each of these costs little; and a kill undoes only the parts in progress.
_PART_BYTES, _PART_CONTENT_BYTES, _PART_MEMBERS = 1 << 20, 4 << 20, 128
# A process takes 0.1 s to start; below these limits, threads finish sooner. More than this many only wait for the disk.
_PROCESS_MEMBERS, _PROCESS_BYTES = 2_000, 256 * 1024 * 1024
_MOST_PROCESSES = 16
# A file's space on the disk: whole blocks, an inode and its entry in the folder.
_BLOCK_BYTES, _FILE_BYTES = 4096, 512
# The part of a gap between members of a zip that is read along, and the least length of a local header.
_GAP_BYTES, _LOCAL_HEADER_BYTES = 64 * 1024, 30
_STALL_S = 180.0
_FILES, _LEDGER = "files", "ledger"
_FORMAT = 1
# Hashing cached data needs a core, reading from a disk needs two requests in flight.
_HASH_THREADS, _HASH_BYTES = 2, 1 << 20


class Part(NamedTuple):
    first: int
    """The number of its first file, in the order of positions."""
    files: int
    """How many files it has, neighbours in that order."""
    offset: int
    """Where in a file its piece begins; 0 for whole files."""
    length: int
    begin: int = 0
    """Where their bytes begin in the archive, if they are read at once."""
    end: int = 0
    """Where these end; 0 for a file that the tree reads."""
    is_streamed: bool = False
    """Whether it is one file that is not held in memory as a whole."""


def plan_parts(tree: Tree, entries: Sequence[FileEntry]) -> list[Part]:
    """Divide a tree's files into parts, by ascending position, so that a slow source is read from front to back."""
    if tree.source is not None and tree.unpacked is None:
        return list(_parts_of_archive(entries, _ends(tree, entries)))
    parts = []
    for number, entry in enumerate(entries):
        is_large = entry.size > LARGE_BYTES
        if is_large and tree.kind == "folder" and tree.open(entry) is not None:
            pieces = block_ranges(entry.size, _LARGE_PIECE_BYTES)
            parts += [Part(number, 1, offset, length) for offset, length in pieces]
        else:
            parts.append(Part(number, 1, 0, entry.size, is_streamed=is_large))
    return parts


def _parts_of_archive(entries: Sequence[FileEntry], ends: Sequence[int]) -> Iterator[Part]:
    first = content = 0

    def cut(after: int, *, is_streamed: bool = False) -> Part:
        return Part(
            first, after - first, 0, content, entries[first].position, max(ends[first:after]), is_streamed=is_streamed
        )

    for number, entry in enumerate(entries):
        is_large = max(entry.size, ends[number] - entry.position) > PIECE_BYTES
        is_full = (
            number - first >= _PART_MEMBERS
            or content + entry.size > _PART_CONTENT_BYTES
            or ends[number] - entries[first].position > _PART_BYTES
        )
        if number > first and (is_large or is_full):
            yield cut(number)
            first, content = number, 0
        content += entry.size
        if is_large:
            yield cut(number + 1, is_streamed=True)
            first, content = number + 1, 0
    if first < len(entries):
        yield cut(len(entries))


def _ends(tree: Tree, entries: Sequence[FileEntry]) -> list[int]:
    """Return where each entry's bytes end, in the bytes that its position counts."""
    ends = []
    for entry in entries:
        member = tree.packing(entry)
        if member is None:
            ends.append(entry.position + entry.size)
            continue
        # The local header has a name and fields of any length: an estimate.
        least = member.offset + _LOCAL_HEADER_BYTES + member.packed_size
        ends.append(member.end if member.end - least <= _GAP_BYTES else least + 1024)
    return ends


def disk_bytes(sizes: Iterable[int]) -> int:
    return sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES + _FILE_BYTES for size in sizes)


def freed_bytes(tree: Tree) -> int:
    """Return how much of our own copy of an archive is given back while its members are written."""
    return tree.source.size if isinstance(tree.source, TemporaryBytes) else 0


# From Linux's fs.h, for a 64-bit `long`; and ext4's flag for a folder whose subfolders are unrelated.
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
_FLAGS = struct.Struct("<Q")
_MANY_FOLDERS = 4


def make_folders(root: Path, names: Iterable[str]) -> None:
    """Make every folder that `names` are in, below `root`; existing ones are fine.

    ext4 puts subfolders into the group of inodes of their parent, unless the parent is flagged as one with unrelated
    subfolders. In one group, every new file waits for those of other processes and skips the inodes of recently deleted
    files: 130 µs per file instead of 35. The flag is set only meanwhile; other file systems refuse it.
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
    try:
        yield
    finally:
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


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    files: int
    kept_files: int
    """How many of them an interrupted run had finished; a large file in pieces counts once for each."""
    kept_bytes: int


def write_folder(
    tree: Tree,
    target: Path,
    *,
    fingerprint: str,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    overwrite: bool = False,
    consumes: bool = False,
    check: Callable[[], object],
    receipt: Callable[[], Receipt],
) -> WrittenFolder:
    """Write all files of a tree to the folder `target`, replacing what is there only at the very end.

    Modification times are kept if the tree knows them, and whether a file is a program; owners, modes and links are
    not. An interrupted run of the same `fingerprint` is continued; "" if states cannot be told apart.

    `limits`: how many files are read at once, of a tree that is not an archive. `overwrite`: replace what is there even
    if it is not ours, or was changed. `consumes`: the tree is not needed afterwards, so what was unpacked to the disk
    is moved or given back. Right before the folder is renamed to `target`, `check` may raise what prevents that, and
    `receipt` makes the receipt.
    """
    entries = sorted(tree.entries, key=lambda entry: (entry.position, entry.name))
    with open_workspace(
        target,
        accepts=lambda orphan: bool(_read_ledger(orphan / _LEDGER, fingerprint)),
        keeps=(KeyboardInterrupt, SystemExit, CancelledError, SourceError, DriveError, TargetExistsError),
    ) as workspace:
        parts = plan_parts(tree, entries)
        with _Ledger(workspace.path, fingerprint, entries, parts) as ledger:
            made, kept = workspace.path / _FILES, ledger.kept
            if kept:
                step.start_at(sum(part.length for part in kept))
            left = [part for part in parts if part not in kept]
            writing = _Writing(tree, entries, made, ledger, step, cancellation, consumes)
            writing.write(left, limits)
            writing.verify(part.first for part in parts if not part.end and part.length < entries[part.first].size)
        cancellation.check()
        if sum(len(names) for *_, names in os.walk(made)) < len(entries):
            msg = f"The disk of '{target}' takes names that differ in case or accents for one. Choose another disk."
            raise TargetNotWritableError(msg)
        # The last moment at which what was there before is in its place.
        check()
        with typed_write_errors(target):
            put_folder(made, target, receipt, overwrite=overwrite)
    return WrittenFolder(len(entries), sum(part.files for part in kept), sum(part.length for part in kept))


@dataclass(eq=False)
class _Writing:
    tree: Tree
    entries: Sequence[FileEntry]
    path: Path
    ledger: _Ledger
    step: ProgressStep
    cancellation: Cancellation
    consumes: bool

    def __post_init__(self) -> None:
        self._source = self.tree.source
        self._lock = threading.Lock()
        # Parts that are not written yet, by the number of their first file.
        self._open: dict[int, Part] = {}

    def write(self, parts: Sequence[Part], limits: PipelineLimits) -> None:
        # Before any file, so that writing threads need not check for their folders.
        make_folders(self.path, (entry.name for entry in self.entries))
        if self.consumes and self.tree.unpacked is not None:
            self._move(self.tree.unpacked, parts)
            return
        self._open = {part.first: part for part in parts}
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = Folder(handle, str(self.path))
            # Small files first: they fill the pipeline, while streams only occupy their own threads.
            small = [part for part in parts if not part.is_streamed]
            if not self._with_processes(small, folder):
                self._with_threads(small, folder, limits)
            self._with_streams([part for part in parts if part.is_streamed])
        finally:
            os.close(handle)

    def verify(self, numbers: Iterable[int]) -> None:
        """Compare files that were read in parts, by their numbers, with the tree's checksums."""
        for entry in (self.entries[number] for number in dict.fromkeys(numbers)):
            path = self.path / entry.name
            with path.open("rb") as file:
                try:
                    self.tree.verify(entry, self._pieces(file))
                except SourceError:
                    # The next call would trust its parts, which the ledger lists.
                    remove_own(path)
                    raise

    def _pieces(self, file: BinaryIO) -> Iterator[bytes]:
        while data := file.read(PIECE_BYTES):
            self.cancellation.check()
            yield data

    def _move(self, unpacked: Path, parts: Sequence[Part]) -> None:
        """Move what a tool has already unpacked, on the same disk."""
        for entry in (self.entries[part.first] for part in parts):
            # Tools apply whatever mode the archive has; a dataset's files should be readable by everybody.
            (unpacked / entry.name).chmod(0o755 if entry.executable else 0o644)
            rename_own(unpacked / entry.name, self.path / entry.name)
            self.step.advance(entry.size)

    def _members(self, part: Part) -> list[Member]:
        entries = self.entries[part.first : part.first + part.files]
        return [(entry, self.tree.packing(entry)) for entry in entries]

    def _with_processes(self, parts: Sequence[Part], folder: Folder) -> bool:
        """Have processes write neighbours in an archive; return whether that is worth it."""
        count = min(usable_cores(), _MOST_PROCESSES, len(parts))
        members, nbytes = sum(part.files for part in parts), sum(part.length for part in parts)
        is_worth = count > 1 and (members >= _PROCESS_MEMBERS or nbytes >= _PROCESS_BYTES)
        # Another process can only read a source that has a handle.
        if not is_worth or not isinstance(self._source, LocalBytes):
            return False
        # Each process works in its own region: two in one folder would wait for each other at every new file.
        regions = [range(len(parts) * one // count, len(parts) * (one + 1) // count) for one in range(count)]
        order = [number for turn in itertools.zip_longest(*regions) for number in turn if number is not None]
        with Processes(self._source, folder, count) as processes:

            def use(_: int, part: Part) -> None:
                self._finish(part, processes.write(part.begin, part.end, self._members(part)))

            run_pipeline(
                order,
                read=parts.__getitem__,
                use=use,
                cost=lambda _: 0,
                limits=PipelineLimits(readers=0, max_readers=0, workers=count, stall_timeout_s=_STALL_S),
                cancellation=self.cancellation,
            )
        return True

    def _with_threads(self, parts: Sequence[Part], folder: Folder, limits: PipelineLimits) -> None:
        policy = RetryPolicy()
        if parts and parts[0].end:
            # Neighbours follow each other in the archive, so more readers would only make the disk seek.
            limits = PipelineLimits(readers=1, max_readers=2, workers=limits.workers, stall_timeout_s=_STALL_S)

        def read(number: int) -> bytes:
            part = parts[number]
            name = self.tree.label if part.end else self.entries[part.first].name
            return read_with_retry(partial(self._read, part), name, policy=policy)

        def use(number: int, data: bytes) -> None:
            self._finish(parts[number], self._write(parts[number], data, folder))

        run_pipeline(
            range(len(parts)),
            read=read,
            use=use,
            cost=lambda number: parts[number].end - parts[number].begin or parts[number].length,
            limits=limits,
            cancellation=self.cancellation,
        )

    def _read(self, part: Part) -> bytes:
        entry = self.entries[part.first]
        if part.end:
            assert self._source is not None
            return self._source.pread(part.end - part.begin, part.begin) if part.end > part.begin else b""
        if part.length == entry.size:
            return self.tree.read(entry)
        file = self.tree.open(entry)
        assert file is not None, "only what can be opened is cut"
        with contextlib.closing(file):
            data = file.pread(part.length, part.offset)
        if len(data) != part.length:
            raise cut_while_read(self.tree.label, entry.name)
        return data

    def _write(self, part: Part, data: bytes, folder: Folder) -> str:
        entry = self.entries[part.first]
        if part.end:
            assert self._source is not None
            return write_members(self._source, part.begin, data, self._members(part), folder)
        if part.length == entry.size:
            write_file(folder, entry.name, data, entry.executable, entry.mtime_ns)
        else:
            # The pieces of a file come in any order; each sets the time, so it is right after the last one.
            with TargetFile(self.path / entry.name, fresh=False) as file:
                file.write(data, part.offset)
            self._set_time(entry)
        return hash_block(data)

    def _with_streams(self, parts: Sequence[Part]) -> None:
        """Write large files that can only be read in order, without holding one in memory."""
        if not parts:
            return
        stopping = Cancellation()
        self.cancellation.follow(stopping.cancel)
        with DaemonPool(_STREAMS, "colabstage-stream") as pool:
            try:
                # The reads inside have their own deadline.
                pool.run(partial(self._stream, stopping=stopping), parts, stall_timeout_s=float("inf"))
            finally:
                stopping.cancel()

    def _stream(self, part: Part, *, stopping: Cancellation) -> None:
        import xxhash

        entry, hasher, at = self.entries[part.first], xxhash.xxh3_64(), 0
        with (
            TargetFile(self.path / entry.name) as file,
            pieces_ahead((data for data in self.tree.chunks(entry)), stall_timeout_s=_STALL_S) as pieces,
        ):
            for data in pieces:
                stopping.check()
                file.write(data, at)
                hasher.update(data)
                at += len(data)
                self.step.advance(len(data))
        with typed_write_errors(self.path / entry.name):
            (self.path / entry.name).chmod(0o755 if entry.executable else 0o644)
        self._set_time(entry)
        self._finish(part, hasher.hexdigest(), shows=False)

    def _set_time(self, entry: FileEntry) -> None:
        if entry.mtime_ns:
            with typed_write_errors(self.path / entry.name):
                os.utime(self.path / entry.name, ns=(entry.mtime_ns, entry.mtime_ns))

    def _finish(self, part: Part, digest: str, *, shows: bool = True) -> None:
        """Note a part, and give back the bytes of our own copy of the archive that are no longer needed."""
        self.ledger.note(part, digest)
        # Checked here, because parts finish faster than the waiting thread polls.
        self.cancellation.check()
        if shows:
            self.step.advance(part.length)
        if self.consumes and isinstance(self._source, TemporaryBytes):
            # Several members may share bytes, so only what precedes all remaining parts is free.
            with self._lock:
                self._open.pop(part.first, None)
                first = min(self._open, default=None)
                self._source.release_before(self._source.size if first is None else self._open[first].begin)


_Span = tuple[str, int, int, int]


class _Ledger(Closing):
    """Which parts of a folder are on the disk. `kept`: those that an interrupted run had finished."""

    def __init__(self, workspace: Path, fingerprint: str, entries: Sequence[FileEntry], parts: Sequence[Part]) -> None:
        """Open the ledger of an existing workspace; everything it lists is hashed."""
        self._files, self._entries = workspace / _FILES, entries
        path = workspace / _LEDGER
        recorded = _read_ledger(path, fingerprint)
        with typed_write_errors(path):
            # A file that no ledger lists cannot be told from half a file.
            if not recorded:
                remove_own(self._files)
            self._files.mkdir(exist_ok=True)
        listed = [part for part in parts if self._span(part) in recorded]
        # After a crash of the machine, a written line proves nothing about the bytes: only their hash does.
        with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="colabstage-hash") as pool:
            found = zip(listed, pool.map(self._hash, listed), strict=True)
            self.kept = {part: digest for part, digest in found if recorded[self._span(part)] == digest}
        lines = (self._line(part, digest) for part, digest in self.kept.items())
        with typed_write_errors(path):
            self._journal = Journal(path, _journal_head(fingerprint), lines)

    def note(self, part: Part, digest: str) -> None:
        """Note in one write that a part is on the disk, so that a kill leaves at most one incomplete line."""
        with typed_write_errors(self._files):
            self._journal.append(self._line(part, digest))

    def close(self) -> None:
        self._journal.close()

    def _span(self, part: Part) -> _Span:
        return self._entries[part.first].name, part.offset, part.length, part.files

    def _line(self, part: Part, digest: str) -> list[object]:
        name, offset, length, files = self._span(part)
        return [name, offset, length, digest, files] if files > 1 else [name, offset, length, digest]

    def _hash(self, part: Part) -> str:
        """Return the hash of a part's content; "" if it is not all there."""
        import xxhash

        hasher = xxhash.xxh3_64()
        try:
            for entry in self._entries[part.first : part.first + part.files]:
                with (self._files / entry.name).open("rb") as file:
                    file.seek(part.offset)
                    left = part.length if part.files == 1 else entry.size
                    while left and (data := file.read(min(left, _HASH_BYTES))):
                        hasher.update(data)
                        left -= len(data)
        except OSError:
            return ""
        return hasher.hexdigest()


def _read_ledger(path: Path, fingerprint: str) -> dict[_Span, str]:
    """Return the hashes in a ledger; nothing if it belongs to something else or is missing."""
    try:
        # Without a fingerprint, the files may no longer be those of the ledger.
        lines = read_journal(path, _journal_head(fingerprint)) if fingerprint else None
        return {(line[0], line[1], line[2], (line[4:] or [1])[0]): line[3] for line in lines or ()}
    except (OSError, ValueError, TypeError, LookupError):
        return {}


def _journal_head(fingerprint: str) -> dict[str, object]:
    return {"format": _FORMAT, "fingerprint": fingerprint}
