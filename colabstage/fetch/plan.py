"""How files come here: which way, how many at once, how much room that takes. Pure; decided before the first byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colabstage.pipeline import PipelineLimits
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

Transport = Literal["local disk", "mount", "http", "object store", "share link", "kaggle", "archive", "tree"]

# On a Drive mount, speed grows with the reads in flight up to about twenty, and falls off after thirty-two.
SLOW_READERS = 32
# Above this a file is brought in parts: it takes so long that what opening it costs does not matter any more.
LARGE_BYTES = 64 * 1024 * 1024
# A part for less than this would end before its connection is at full speed.
_LEAST_PART_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TransferFacts:
    """What is known of a source and of this machine.

    `transport`: how it is reached. `slow`: whether each answer takes its time, as over a network or a Drive mount.
    `cores`: that may be used here. `connections`: parts of one file that the source gives at full speed at once.
    `mount_copy`: whether the mount keeps a second copy of a large file on the local disk, as Google Drive's does.
    `kept_bytes`: that an interrupted run has on the disk already.
    """

    transport: Transport
    slow: bool
    cores: int
    connections: int = 1
    mount_copy: bool = False
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How files will come here.

    `files`, `nbytes`: how many, and their bytes together.
    `readers`: files read at once, at the start; `max_readers`: what they may grow to. `workers`: threads that write.
    `connections`: parts of one large file in flight at once.
    `peak_bytes`: what the local disk must have free. `reasons`: why, in sentences.
    """

    transport: Transport
    files: int
    nbytes: int
    readers: int
    max_readers: int
    workers: int
    connections: int
    peak_bytes: int
    reasons: tuple[str, ...]

    @property
    def limits(self) -> PipelineLimits:
        """The same for `run_pipeline`."""
        return PipelineLimits(readers=self.readers, max_readers=self.max_readers, workers=self.workers)

    def __str__(self) -> str:
        return f"{self.files:,} files, {format_bytes(self.nbytes)}: {' '.join(self.reasons)}"


def plan_transfer(files: Sequence[int], facts: TransferFacts) -> TransferPlan:
    """Decide how to bring files here.

    Args:
        files: the size of each, in bytes.
        facts: of their source.
    """
    large = [size for size in files if size > LARGE_BYTES]
    readers, max_readers, why_readers = _readers(files, facts)
    connections, why_connections = _connections(files, facts)
    nbytes = sum(files)
    # Small files that pass through a mount are dropped from its copy as the disk fills; a large one in use is not.
    single = sum(files) if len(files) == 1 else sum(large)
    second = single if facts.mount_copy else 0
    reasons = [why_readers, why_connections]
    if second:
        reasons.append(f"The mount keeps a second copy of {format_bytes(second)} on this disk meanwhile.")
    if facts.kept_bytes:
        reasons.append(f"An interrupted run holds {format_bytes(facts.kept_bytes)} of the room already.")
    return TransferPlan(
        transport=facts.transport,
        files=len(files),
        nbytes=nbytes,
        readers=readers,
        max_readers=max_readers,
        workers=facts.cores,
        connections=connections,
        peak_bytes=max(0, nbytes + second - facts.kept_bytes),
        reasons=tuple(reason for reason in reasons if reason),
    )


def _readers(files: Sequence[int], facts: TransferFacts) -> tuple[int, int, str]:
    few = max(1, min(2, facts.cores))
    if facts.transport == "archive":
        return few, few, "An archive is one file: more readers would only wake each other."
    if len(files) <= 1:
        return 1, 1, ""
    most = min(SLOW_READERS, len(files))
    if facts.slow:
        return most, most, f"Each file takes its time to answer, so {most} are on their way at once."
    few = min(few, most)
    return few, most, f"The disk answers at once, so {few} are read at once, and more only if that proves slow."


def _connections(files: Sequence[int], facts: TransferFacts) -> tuple[int, str]:
    largest = max(files, default=0)
    if len(files) > 1 and largest <= LARGE_BYTES:
        return 1, ""
    count = max(1, min(facts.connections, largest // _LEAST_PART_BYTES))
    return count, f"Large files come in {count} parts at once." if count > 1 else ""
