"""A disk that others fill in the middle of an epoch whose data still arrives: said at the batch that needs what did not
come, without a promise that anything is kept; with room again the same call gives everything."""

from __future__ import annotations

import gc
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import NotEnoughSpaceError
from colabstage.sources.remote import MountedFile
from tests.support.numbered import SIDE, note_numbers, numbers_of, write_archive
from tests.support.staged import use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.stage.dataset import StagedDataset

    Stage = Callable[[], StagedDataset]

pytestmark = pytest.mark.torch

COUNT, BATCH = 60, 4
EVERY = list(range(COUNT))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("archive") / "data.zip", COUNT)


def fill(disk: Path) -> None:
    """Take all room of a disk, on which others write meanwhile."""
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):  # noqa: PT012
        while True:
            file.write(bytes(65536))


def left_in_the_middle(stage: Stage, disk: Path) -> tuple[list[int], str]:
    """Go through an epoch in whose middle the disk is full; returns the rows that came, and what was said."""
    data = stage()
    batches = iter(data.loader("train", BATCH))
    seen = numbers_of([next(batches)])
    fill(disk)
    with pytest.raises(NotEnoughSpaceError, match="full") as told:
        note_numbers(batches, seen)
    # By the name of the place, and not of what is unfinished there.
    assert ".tmp" not in str(told.value)
    with pytest.raises(NotEnoughSpaceError, match="full"):
        data.wait(progress=False)
    assert "staging failed" in str(data)
    assert "It failed" in str(data.report)
    return seen, str(told.value)


def check_that_it_comes_whole(stage: Stage, seen: list[int]) -> None:
    data = stage()
    found = numbers_of(data.loader("train", BATCH))
    assert (found[: len(seen)], sorted(found)) == (seen, EVERY)
    assert data.wait(progress=False).ready.fraction == 1


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of a mounted file takes a moment."""
    read_range = MountedFile.read_range

    def slowly(self: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
        time.sleep(0.01)
        yield from read_range(self, offset, length)

    monkeypatch.setattr(MountedFile, "read_range", slowly)


def test_while_a_cached_pack_is_copied(
    archive: Path,
    tmp_path: Path,
    make_disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    slow_reads: None,
) -> None:
    """Blocks that were here are given back, as the room that they take, and nobody is told that they stay."""
    use_small_blocks(monkeypatch)
    places: dict[str, Any] = {"cache_dir": tmp_path / "cache", "progress": False, "image_size": (SIDE, SIDE)}
    stage_dataset(archive, local_dir=tmp_path / "first", **places)
    disk = make_disk(16)

    def stage() -> StagedDataset:
        return stage_dataset(archive, local_dir=disk / "fast", streaming=True, **places)

    seen, words = left_in_the_middle(stage, disk)
    assert "were here" in words
    assert "are not kept. Call stage_dataset with the same arguments again: it copies them again." in words
    gc.collect()
    (disk / "filler").unlink()
    assert not [path for path in disk.rglob("*") if path.is_file()]
    assert shutil.disk_usage(disk).used < 100_000
    check_that_it_comes_whole(stage, seen)
    gc.collect()
