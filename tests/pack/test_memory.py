"""Packing holds its memory: the peak does not grow with the number of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.pack_memory import PackMemory, measure, memory_holds

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def test_peak_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    """Ten times the images take at most 10 % and 16 MiB more, each pack in a process of its own."""
    few, many = measure(tmp_path, 600), measure(tmp_path, 6000)
    assert (few.samples, many.samples) == (600, 6000)
    assert few.peak_bytes > 20 * MIB, "that is no peak of a process with numpy in it"
    assert memory_holds(few, many), f"\n{few}\n{many}"


def test_growth_is_judged_by_share_and_by_bytes() -> None:
    """What the benchmark calls growth is more than 10 % and 16 MiB together."""
    few = PackMemory(samples=1, seconds=1.0, peak_bytes=100 * MIB)
    assert memory_holds(few, PackMemory(samples=10, seconds=1.0, peak_bytes=126 * MIB))
    assert not memory_holds(few, PackMemory(samples=10, seconds=1.0, peak_bytes=127 * MIB))
