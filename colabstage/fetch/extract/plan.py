"""What extracting an archive will do: how its members are cut into batches, what disk it takes, who does it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from colabstage.trees.tree import PIECE_BYTES
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.tree import FileEntry, TreeKind

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
    """Members `first` to `first + members - 1` in the archive's order; `start`, `end`: where they lie in its bytes."""

    first: int
    members: int
    start: int
    end: int
    content_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether it is one member that is not to be held in memory whole."""
        return self.members == 1 and max(self.content_bytes, self.end - self.start) > PIECE_BYTES


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """What will be done.

    `members`, `content_bytes`: files to write, and their content together. `peak_bytes`: disk taken at the most, beyond
    what is taken already. `batches`: in the archive's order. `workers`: how many work at once.
    `processes`: whether they are processes. `reason`: why, as a sentence.
    """

    kind: TreeKind
    members: int
    content_bytes: int
    peak_bytes: int
    batches: tuple[Batch, ...]
    workers: int
    processes: bool
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.members:,} files, {format_bytes(self.content_bytes)}; {format_bytes(self.peak_bytes)} more disk at "
            f"the peak. {self.reason}"
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
    batches = tuple(_cut(entries, ends))
    large = len(entries) >= _PROCESS_MEMBERS or content >= _PROCESS_BYTES
    workers = max(1, min(cores, _MAX_WORKERS, len(batches)))
    processes = large and workers > 1 and readable_by_others
    if processes:
        reason = f"{workers} processes, as many as there are cores to use."
    elif large and workers > 1:
        reason = f"{workers} threads: the archive's bytes can be read in this process only."
    else:
        reason = f"{workers} thread{'s' if workers > 1 else ''}: there is too little to do for processes to pay."
    return ExtractPlan(kind, len(entries), content, max(0, taken - freed_bytes), batches, workers, processes, reason)


def _cut(entries: Sequence[FileEntry], ends: Sequence[int]) -> list[Batch]:
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
