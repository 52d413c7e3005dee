"""The throttled tree: the same bytes as the tree below it, at Drive's pace."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.knobs import DriveKnobs, ThrottledTree
from colabstage.trees.folder import FolderTree
from tests.clocks import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.trees.listing import Tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixteen files of 1 kB."""
    for number in range(16):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]) * 1000)
    return tmp_path


def test_reads_the_same_bytes_and_tells_the_same_story(folder: Path) -> None:
    """Entries, label, kind and content are those of the tree below."""
    with FolderTree(folder) as plain, ThrottledTree(plain, DriveKnobs.quick()) as slow:
        tree: Tree = slow
        assert tree.entries == plain.entries
        assert (tree.kind, tree.label, tree.notes) == (plain.kind, plain.label, plain.notes)
        assert [tree.read(entry) for entry in tree.entries] == [plain.read(entry) for entry in plain.entries]


class StandingClock(ManualClock):
    """Does not turn when somebody sleeps: what is asked one after the other is asked at one moment."""

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_first_read_pays_the_latency_of_an_open(folder: Path) -> None:
    """A file is cold once and warm after."""
    knobs = dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.2)
    clock = ManualClock()
    with ThrottledTree(FolderTree(folder), knobs, clock=clock) as tree:
        for _ in range(2):
            tree.read(tree.entries[0])
    cold_s, warm_s = clock.slept
    assert cold_s == pytest.approx(0.2 + 1000 / knobs.stream_bytes_per_s)
    assert warm_s == pytest.approx(knobs.warm_open_latency_s + 1000 / knobs.warm_bytes_per_s)


def test_many_readers_wait_side_by_side(folder: Path) -> None:
    """Sixteen cold files that are asked for at one moment are there at one moment."""
    knobs = dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.5)
    clock = StandingClock()
    with ThrottledTree(FolderTree(folder), knobs, clock=clock) as tree:
        contents = [tree.read(entry) for entry in tree.entries]
    assert [len(content) for content in contents] == [1000] * 16
    assert clock.slept == pytest.approx([0.5] * 16, abs=16 * 1000 / knobs.stream_bytes_per_s)


def test_waits_are_real(folder: Path) -> None:
    """By the computer's clock, without one that is passed in."""
    with ThrottledTree(FolderTree(folder), DriveKnobs(cold_open_latency_s=0.2)) as tree:
        began = time.monotonic()
        tree.read(tree.entries[0])
    assert time.monotonic() - began >= 0.2
