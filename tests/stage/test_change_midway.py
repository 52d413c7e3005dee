"""A source that becomes another, or lies, in the middle of an epoch: never a wrong row, an error at its batch that says
how to continue."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import ColabstageError, DamagedPackError
from colabstage.h5.manifest import manifest_path
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.sources.remote import MountedFile
from tests.load.test_partial import LIMIT, ROWS, check_epoch, make_pack, part_of
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.numbered import SIDE, note_numbers, numbers_of, stream_archive, write_archive
from tests.support.staged import use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

COUNT, BATCH = 120, 4


@pytest.mark.parametrize("told", [True, False], ids=["another ETag", "nothing said"])
def test_an_archive_of_the_web_that_becomes_another(told: bool, tmp_path: Path) -> None:
    """Told by its ETag, or by the checksums of its members where the server says nothing; the next call has the new."""
    before, after = write_archive(tmp_path / "a.zip", COUNT), write_archive(tmp_path / "b.zip", COUNT, first=100)
    assert before.stat().st_size == after.stat().st_size
    knobs = WebKnobs(bytes_per_s=1e6, etag="strong" if told else "none", last_modified=told)
    with WebServer({"data.zip": before.read_bytes()}, knobs=knobs) as server:
        data = stream_archive(server, tmp_path / "fast")
        batches = iter(data.loader("train", BATCH))
        seen = numbers_of([next(batches)])
        server.put("data.zip", after.read_bytes())
        with pytest.raises(ColabstageError):
            note_numbers(batches, seen)
        assert set(seen) < set(range(COUNT))
        with pytest.raises(ColabstageError):
            data.wait(progress=False)
        again = stream_archive(server, tmp_path / "fast")
        assert sorted(numbers_of(again.loader("train", BATCH))) == list(range(100, 100 + COUNT))
        again.wait(progress=False)


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
        with pytest.raises(DamagedPackError, match=r"are not kept\. Call stage_dataset with refresh=True"):
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


def test_a_part_of_what_is_written_again_with_the_same_content(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "data.h5")
    content = pack.path.read_bytes()
    with WebServer({"data.h5": content, "data.h5.json": manifest_path(pack.path)}) as server:
        dataset = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path / "a", return_index=True)
        with closing(part_of(dataset)):
            batches = iter(make_loader(dataset, 50))
            seen = check_epoch([next(batches)], pack)
            server.put("data.h5", content)
            seen += check_epoch(batches, pack)
            assert sorted(seen) == list(range(ROWS))
