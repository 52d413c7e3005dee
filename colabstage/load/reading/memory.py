"""How much may be kept in memory for reading."""

from __future__ import annotations

from colabstage.errors import NotEnoughSpaceError
from colabstage.units import format_bytes

# What stays free when samples are kept in memory: the training process itself needs about this much.
_RESERVE_BYTES = 1_000_000_000


def spare_memory(free_memory_bytes: int) -> int:
    """What of the free memory may be filled with samples, in bytes."""
    return max(0, free_memory_bytes - _RESERVE_BYTES)


def check_memory(needed_bytes: int, free_memory_bytes: int, what: str, *, remedy: str) -> None:
    """Make sure that samples fit into memory before any of them is read.

    Args:
        needed_bytes: how much they take.
        free_memory_bytes: how much is free, the reserve included.
        what: what needs it, as the subject of a sentence.
        remedy: what to do instead, as a sentence.

    Raises:
        NotEnoughSpaceError: they do not fit; the message has both figures.
    """
    spare = spare_memory(free_memory_bytes)
    if needed_bytes > spare:
        msg = f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(spare)} can be spared. {remedy}"
        raise NotEnoughSpaceError(msg)
