"""A source that becomes another, or lies, in the middle of an epoch: never a wrong row, an error at its batch that says
how to continue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import DamagedPackError
from colabstage.sources.remote import MountedFile
from tests.support.numbered import SIDE, note_numbers, numbers_of, write_archive
from tests.support.staged import use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

COUNT, BATCH = 120, 4


def test_a_cached_pack_that_becomes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)
    archive = write_archive(tmp_path / "a.zip", COUNT)
    places: dict[str, Any] = {"cache_dir": tmp_path / "cache", "progress": False, "image_size": (SIDE, SIDE)}
    stage_dataset(archive, local_dir=tmp_path / "first", **places)
    read_range = MountedFile.read_range

    def slowly(self: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
        time.sleep(0.01)
        yield from read_range(self, offset, length)

    monkeypatch.setattr(MountedFile, "read_range", slowly)

    def stage(**arguments: Any) -> Any:
        return stage_dataset(archive, local_dir=tmp_path / "fast", streaming=True, **places, **arguments)

    data = stage()
    seen: list[int] = []
    batches = iter(data.loader("train", BATCH))
    note_numbers([next(batches)], seen)
    (cached,) = (tmp_path / "cache").glob("*.h5")
    # In its place, as a disk damages it: what is open shows it too.
    with cached.open("r+b") as file:
        file.seek(cached.stat().st_size // 2)
        file.write(bytes(cached.stat().st_size // 4))
    for again in (True, False):
        # The same call would end in the same way, so another one is named.
        with pytest.raises(DamagedPackError, match="refresh=True"):
            note_numbers(batches, seen)
        with pytest.raises(DamagedPackError):
            data.wait(progress=False)
        if again:
            data = stage()
            batches = iter(data.loader("train", BATCH))
    assert set(seen) < set(range(COUNT))
    data = stage(refresh=True)
    assert sorted(numbers_of(data.loader("train", BATCH))) == list(range(COUNT))
    data.wait(progress=False)
