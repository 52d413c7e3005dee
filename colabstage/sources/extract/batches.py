"""One batch of an archive's members from its bytes to files below a folder: the work itself, for threads and processes.

What a batch is made of are plain tuples, because they travel to other processes by the ten thousand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from colabstage.io.files import block_ranges, pwrite_exactly, translate_write_error, typed_write_errors
from colabstage.io.units import format_bytes, format_count
from colabstage.io.workspace import remove_own
from colabstage.trees.bytes import PIECE_BYTES, RequestedBytes, cut_while_read
from colabstage.trees.zip_member import ZipMember, member_chunks, read_member

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntry, TreeKind

# One batch is one read of the archive, one message to a process and one line of the journal, so that each of these
# costs little for a small member; and a kill undoes no more than the batches under way.
_BATCH_BYTES = 1 << 20
_BATCH_MEMBERS = 128
# A process takes 0.1 s to start; below these, threads are done sooner.
_PROCESS_MEMBERS = 2_000
_PROCESS_BYTES = 256 * 1024 * 1024
# More than this many only wait for the disk.
_MAX_WORKERS = 16
_BLOCK_BYTES = 4096
# What a file takes beside its content: an inode and its entry in the folder.
_FILE_BYTES = 512


class Batch(NamedTuple):
    """Neighbours in the archive that are written together."""

    first: int
    """The number of the first member, in the archive's order."""
    members: int
    """How many there are."""
    start: int
    """Where they begin in the archive's bytes."""
    end: int
    """Where they end in them."""
    content_bytes: int
    """What they unpack to."""

    @property
    def is_large(self) -> bool:
        """Return whether it is one member that is not to be held in memory whole."""
        return self.members == 1 and max(self.content_bytes, self.end - self.start) > PIECE_BYTES


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """What will be done."""

    kind: TreeKind
    """Which kind of archive it is."""
    members: int
    """Files to write."""
    content_bytes: int
    """Their content together."""
    peak_bytes: int
    """Disk taken at most, beyond what is taken already."""
    batches: tuple[Batch, ...]
    """The work, in the archive's order."""
    workers: int
    """How many work at once."""
    processes: bool
    """Whether they are processes."""
    reason: str
    """Why, as a sentence."""

    def __str__(self) -> str:
        return (
            f"{format_count(self.members, 'files')}, {format_bytes(self.content_bytes)}; "
            f"{format_bytes(self.peak_bytes)} more disk at the peak. {self.reason}"
        )


def plan_extract(
    entries: Sequence[FileEntry],
    ends: Sequence[int],
    *,
    kind: TreeKind,
    cores: int,
    readable_by_others: bool,
    freed_bytes: int = 0,
) -> ExtractPlan:
    """Plan the extraction of an archive.

    Args:
        entries: its files by ascending position.
        ends: where each one's bytes end in the archive; for links that share bytes, the same.
        kind: what the archive is.
        cores: processors that this process may use.
        readable_by_others: whether another process can read the archive through a handle.
        freed_bytes: what the archive's own copy will give back to the disk while its members are written.
    """
    content = sum(entry.size for entry in entries)
    taken = sum(-(-entry.size // _BLOCK_BYTES) * _BLOCK_BYTES + _FILE_BYTES for entry in entries)
    batches = tuple(_cut_into_batches(entries, ends))
    large = len(entries) >= _PROCESS_MEMBERS or content >= _PROCESS_BYTES
    workers = max(1, min(cores, _MAX_WORKERS, len(batches)))
    processes = large and workers > 1 and readable_by_others
    if processes:
        reason = f"{workers} processes, as many as there are cores to use."
    elif large and workers > 1:
        reason = f"{workers} threads: the archive's bytes can be read in this process only."
    else:
        reason = f"{format_count(workers, 'threads')}: there is too little to do for processes to pay."
    return ExtractPlan(kind, len(entries), content, max(0, taken - freed_bytes), batches, workers, processes, reason)


def _cut_into_batches(entries: Sequence[FileEntry], ends: Sequence[int]) -> list[Batch]:
    batches: list[Batch] = []
    first = content = 0
    for number, entry in enumerate(entries):
        alone = max(entry.size, ends[number] - entry.position) > PIECE_BYTES
        full = (
            number - first >= _BATCH_MEMBERS
            or content + entry.size > 4 * _BATCH_BYTES
            or (number > first and ends[number] - entries[first].position > _BATCH_BYTES)
        )
        if number > first and (alone or full):
            batches.append(_batch(entries, ends, first, number, content))
            first, content = number, 0
        content += entry.size
        if alone:
            batches.append(_batch(entries, ends, first, number + 1, content))
            first, content = number + 1, 0
    if first < len(entries):
        batches.append(_batch(entries, ends, first, len(entries), content))
    return batches


def _batch(entries: Sequence[FileEntry], ends: Sequence[int], first: int, after: int, content: int) -> Batch:
    return Batch(first, after - first, entries[first].position, max(ends[first:after]), content)


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# As tarfile's `data` filter leaves them: readable, and a program only where the archive says so.
_MODES = (0o644, 0o755)

# (name, executable, mtime_ns, offset, size) for a member that is there as it is; for a member of a zip the fields of
# its `ZipMember` follow as one tuple.
Job = tuple[object, ...]


class Place(NamedTuple):
    """The folder that members go to."""

    handle: int
    """An open handle on it, so that it cannot be exchanged for another one meanwhile."""
    path: str
    """Where it is, for messages."""


def zip_job(name: str, executable: bool, member: ZipMember) -> Job:
    """Return what has to be known to write a member of a zip."""
    fields = (
        *(member.name, member.stored_name, member.offset, member.end, member.packed_size, member.size),
        *(member.crc, member.method, member.flags, member.mtime_ns),
    )
    return (name, executable, member.mtime_ns, member.offset, member.size, fields)


def write_batch(source: ByteSource, start: int, data: bytes, jobs: Sequence[Job], place: Place) -> None:
    """Unpack, verify and write small members.

    Args:
        source: the archive.
        start: where `data` is in it.
        data: the bytes that hold all these members.
        jobs: the members.
        place: where they go; their folders exist.

    Raises:
        CorruptArchiveError, SourceReadError: a member is damaged, or the archive ends early.
        NotEnoughSpaceError, TargetNotWritableError: it cannot be written.
    """

    def pread(length: int, offset: int) -> bytes:
        at = offset - start
        # What is outside of what was read at once comes from the archive.
        return data[at : at + length] if 0 <= at <= len(data) - length else source.pread(length, offset)

    block = RequestedBytes(pread, source.size, label=source.label)
    for job in jobs:
        name, executable, mtime_ns, offset, size = job[:5]
        if len(job) > 5:
            content = read_member(block, ZipMember(*job[5]))  # type: ignore[misc]
        else:
            content = block.pread(size, offset) if size else b""  # type: ignore[arg-type]
            if len(content) != size:
                raise cut_while_read(source.label, str(name))
        _write_whole(place, str(name), content, bool(executable), int(mtime_ns))  # type: ignore[call-overload]


def write_large(job: Job, place: Place, pieces: Iterable[bytes], *, advance: Callable[[int], None]) -> None:
    """Write one member piece by piece, so that it is never held in memory whole.

    Args:
        job: the member.
        place: where it goes; its folder exists.
        pieces: its content, verified by whoever gives it when the last has come.
        advance: told of every piece's bytes; may raise to stop the work.

    Raises:
        As `write_batch`.
    """
    name, executable, mtime_ns = str(job[0]), bool(job[1]), int(job[2])  # type: ignore[call-overload]
    path, at = Path(place.path) / name, 0
    # What the disk answers is told apart from errors of the archive's.
    with typed_write_errors(path):
        handle = _open_new(place, name, executable)
    try:
        for piece in pieces:
            with typed_write_errors(path):
                pwrite_exactly(handle, piece, at)
            at += len(piece)
            advance(len(piece))
        _set_time(handle, mtime_ns)
    finally:
        os.close(handle)


def job_chunks(source: ByteSource, job: Job) -> Generator[bytes]:
    """Return the content of one member in pieces."""
    if len(job) > 5:
        yield from member_chunks(source, ZipMember(*job[5]))  # type: ignore[misc]
        return
    offset, size = int(job[3]), int(job[4])  # type: ignore[call-overload]
    for at, length in block_ranges(size, PIECE_BYTES):
        data = source.pread(length, offset + at)
        if len(data) != length:
            raise cut_while_read(source.label, str(job[0]))
        yield data


def read_block(source: ByteSource, start: int, end: int) -> bytes:
    """Return the bytes that hold a batch; shorter only where the archive ends, which its last member then notices."""
    return source.pread(end - start, start) if end > start else b""


def _write_whole(place: Place, name: str, content: bytes, executable: bool, mtime_ns: int) -> None:
    # No context manager: small files come by the hundred thousand, and a path is made only for the one that fails.
    try:
        handle = _open_new(place, name, executable)
        try:
            if os.write(handle, content) != len(content):
                pwrite_exactly(handle, content, 0)
            _set_time(handle, mtime_ns)
        finally:
            os.close(handle)
    except OSError as error:
        raise translate_write_error(error, Path(place.path) / name) from error


def _open_new(place: Place, name: str, executable: bool) -> int:
    mode = _MODES[executable]
    try:
        return os.open(name, _FLAGS, mode, dir_fd=place.handle)
    except FileExistsError:
        # What a killed run was writing.
        remove_own(Path(place.path) / name)
        return os.open(name, _FLAGS, mode, dir_fd=place.handle)


def _set_time(handle: int, mtime_ns: int) -> None:
    if mtime_ns:
        os.utime(handle, ns=(mtime_ns, mtime_ns))
