"""The throttled tree: the same bytes as the tree below it, at Drive's pace."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from colabstage.simulate.knobs import DriveKnobs
from colabstage.simulate.throttled import ThrottledTree
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.trees.tree import Tree


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


def test_first_read_pays_the_latency_of_an_open(folder: Path) -> None:
    """A file is cold once and warm after."""
    knobs = dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.2)
    with ThrottledTree(FolderTree(folder), knobs) as tree:
        times = []
        for _ in range(2):
            start = time.perf_counter()
            tree.read(tree.entries[0])
            times.append(time.perf_counter() - start)
    assert times[0] >= 0.2
    assert times[1] < 0.1


def test_many_readers_wait_side_by_side(folder: Path) -> None:
    """Sixteen cold files read by sixteen threads take little longer than one."""
    knobs = dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.5)
    with ThrottledTree(FolderTree(folder), knobs) as tree, ThreadPoolExecutor(16) as pool:
        start = time.perf_counter()
        contents = list(pool.map(tree.read, tree.entries))
        elapsed = time.perf_counter() - start
    assert [len(content) for content in contents] == [1000] * 16
    assert 0.5 <= elapsed < 16 * 0.5 / 3
