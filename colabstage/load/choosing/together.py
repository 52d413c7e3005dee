"""How many small batches are gathered at once, so that what a batch costs beside its copy is paid once for several."""

from __future__ import annotations

# As much is copied in about the time that handing it to another thread takes ten times.
_GROUP_BYTES = 2 * 1024 * 1024
# More batches in a group gain nothing, and whoever keeps one of them keeps the memory of all.
_MOST_TOGETHER = 32


def ahead_of_small(batch_bytes: int) -> int:
    """Batches to prepare ahead, when they are small enough to be gathered in groups: two groups."""
    return 2 * min(_MOST_TOGETHER, _GROUP_BYTES // max(1, batch_bytes))


def batches_together(prefetch: int, batch_bytes: int) -> int:
    """Batches that are gathered at once.

    Args:
        prefetch: batches prepared ahead; a group is half of them at the most, so that no more are.
        batch_bytes: length of one.
    """
    return max(1, min(prefetch // 2, ahead_of_small(batch_bytes) // 2))
