"""How files come here, decided from facts alone."""

from __future__ import annotations

import pytest

from colabstage.sources.tree import LARGE_BYTES, SLOW_READERS, TransferFacts, plan_transfer

MIB = 1024 * 1024


def facts(*, slow: bool = True, connections: int = 4, **others: int) -> TransferFacts:
    """A slow mount on four cores."""
    mount_copy = bool(others.pop("mount_copy", 0))
    return TransferFacts(slow, 4, connections, mount_copy, **others)


@pytest.mark.parametrize(
    ("count", "size", "made_of", "readers", "most", "connections"),
    [
        (2000, 10_000, facts(), 32, 32, 1),
        (5, 10_000, facts(), 5, 5, 1),
        (2000, 10_000, facts(slow=False), 2, 32, 1),
        (1, 2000 * MIB, facts(connections=8), 1, 1, 8),
        (1, 3 * MIB, facts(connections=8), 1, 1, 3),
        (1, 100, facts(connections=8), 1, 1, 1),
        (1, 2000 * MIB, facts(connections=1), 1, 1, 1),
        (3, 2 * LARGE_BYTES, facts(), 3, 3, 4),
        (0, 0, facts(), 1, 1, 1),
    ],
)
def test_readers_and_connections(
    count: int, size: int, made_of: TransferFacts, readers: int, most: int, connections: int
) -> None:
    """Many small files are many at once, a large one is many parts."""
    plan = plan_transfer([size] * count, made_of)
    assert (plan.limits.readers, plan.limits.max_readers, plan.limits.workers) == (readers, most, 4)
    assert (plan.connections, plan.nbytes) == (connections, count * size)


def test_the_second_copy_of_a_mount_counts_for_large_files_only() -> None:
    """What Drive keeps of a file in use needs room too; of small files that have passed it drops what it must."""
    assert plan_transfer([1000 * MIB], facts(mount_copy=1)).peak_bytes == 2000 * MIB
    assert plan_transfer([1000 * MIB], facts()).peak_bytes == 1000 * MIB
    assert plan_transfer([MIB] * 100, facts(mount_copy=1)).peak_bytes == 100 * MIB
    assert plan_transfer([MIB, 100 * MIB], facts(mount_copy=1)).peak_bytes == 201 * MIB


def test_what_is_here_needs_no_room() -> None:
    """Bytes of an interrupted run are counted off, and never below nothing."""
    assert plan_transfer([MIB] * 10, facts(kept_bytes=4 * MIB)).peak_bytes == 6 * MIB
    assert plan_transfer([MIB], facts(kept_bytes=4 * MIB)).peak_bytes == 0


def test_every_choice_has_its_reason() -> None:
    """The plan says what it does and why."""
    text = " ".join(plan_transfer([2 * LARGE_BYTES] * SLOW_READERS, facts(mount_copy=1, kept_bytes=MIB)).reasons)
    for part in ("takes time to answer", "4 parts", "second copy", "interrupted run"):
        assert part in text
