"""A source whose pack is larger than the disk limit: packed in shards, which go to the cache, and read from there."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import StagedDataset, list_datasets, make_loader, plan_stage, purge_datasets, stage_dataset
from colabstage.errors import ChecksumMismatchError, DamagedPackError, NotEnoughSpaceError
from tests.support.archives import write_archive
from tests.support.http_server import WebServer
from tests.support.images import make_tree, noise
from tests.support.staged import SMALL_BLOCK, disk_sampled, use_small_blocks
from tests.support.steps import Meanwhile

pytestmark = pytest.mark.torch

# Each takes 49 kB in the pack.
COUNT, LIMIT, SHARDS = 100, 4_000_000, 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


def images(count: int, *, first: int = 0) -> dict[str, bytes]:
    return {f"{('cat', 'dog')[n % 2]}/{n:04}.png": noise(n, size=(128, 128)) for n in range(first, first + count)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zip of images in two classes."""
    return write_archive(tmp_path_factory.mktemp("source") / "photos.stored.zip", images(COUNT))


@pytest.fixture(scope="module")
def whole(archive: Path) -> Path:
    """The pack made by a call without a limit."""
    with pytest.MonkeyPatch.context() as patch:
        use_small_blocks(patch)
        return stage_dataset(archive, local_dir=archive.parent / "whole", cache_dir=None, progress=False).path


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """The folders of the part and of the cache."""
    return {"local_dir": tmp_path / "local", "cache_dir": tmp_path / "cache"}


@contextlib.contextmanager
def staged(source: Any, places: dict[str, Any], **options: Any) -> Iterator[StagedDataset]:
    """Stage with the limit, and close the part at the end."""
    data = stage_dataset(source, **{"disk_limit": LIMIT, "progress": False, **places, **options})
    try:
        yield data
    finally:
        if data.part is not None:
            data.part.close()


def check_rows(data: StagedDataset, whole: Path) -> None:
    """Check that all of `train`, read in windows, has the rows of the whole pack."""
    dataset = data["train"]
    dataset.return_index = True
    with h5py.File(whole) as file:
        x, y, seen = file["X_train"][()], file["Y_train"][()], list[int]()
    for (pixels, labels), index in make_loader(dataset, 8):
        seen += index.tolist()
        np.testing.assert_array_equal(pixels.permute(0, 2, 3, 1).numpy(), x[index.numpy()])
        np.testing.assert_array_equal(labels.numpy(), y[index.numpy()])
    assert sorted(seen) == list(range(len(x)))


def shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-of-*.h5"))


def times_in(folder: Path) -> dict[str, int]:
    """When each shard was made."""
    return {path.name: path.stat().st_mtime_ns for path in shards_in(folder)}


def test_a_zip_larger_than_the_limit_is_packed_in_shards(
    archive: Path, whole: Path, places: dict[str, Any], tmp_path: Path
) -> None:
    """The disk never holds more than the limit, and the rows are those of a single-file pack. The second call reads the
    cache, where the set is one dataset; a call without a limit joins it to that single file."""
    local, cache = places["local_dir"], places["cache_dir"]
    plan = plan_stage(archive, disk_limit=LIMIT, **places)
    assert str(plan.cache).endswith(f"-*-of-{SHARDS:05}.h5")
    assert plan.figures.peak_bytes <= LIMIT
    with disk_sampled(local) as taken, staged(archive, places) as data:
        assert (data.report.origin, data.splits, data.classes) == ("source", {"train": COUNT}, ("cat", "dog"))
        check_rows(data, whole)
        assert data.figures["evicted"] > 0
    assert 500_000 < max(taken) <= LIMIT < whole.stat().st_size
    assert len(shards_in(cache)) == SHARDS
    assert [path.name for path in local.iterdir()] == ["partial"]
    made = times_in(cache)
    with staged(archive, places) as again:
        assert again.report.origin == "cache"
    joined = stage_dataset(archive, progress=False, **{**places, "local_dir": tmp_path / "other"})
    assert (joined.report.origin, joined.part) == ("cache", None)
    assert joined.path.read_bytes() == whole.read_bytes()
    assert times_in(cache) == made

    def listed() -> list[Any]:
        return [one for one in list_datasets(**places) if one.place == "cache"]

    (one,) = listed()
    assert (one.samples, one.whole) == ({"train": COUNT}, True)
    assert one.nbytes == sum(path.stat().st_size for path in shards_in(cache))
    for path in (shards_in(cache)[0], shards_in(cache)[0].with_suffix(".h5.json")):
        path.unlink()
    (one,) = listed()
    assert not one.whole
    assert purge_datasets([one]).nbytes == one.nbytes
    assert list(cache.iterdir()) == []


KILLED = """
import glob, os, signal, sys, time
import pytest
from colabstage import stage_dataset  # whose modules are patched
from colabstage.stage.places import FolderPlace
from tests.support.staged import use_small_blocks
from tests.support.steps import Meanwhile
source, limit, local, cache, shards, least = sys.argv[1:]
use_small_blocks(pytest.MonkeyPatch())
if shards.startswith(local):
    FolderPlace.put = lambda *_: time.sleep(100)
def look():
    if len(glob.glob(shards, recursive=True, include_hidden=True)) >= int(least):
        os.kill(os.getpid(), signal.SIGKILL)
stage_dataset(source, disk_limit=int(limit), local_dir=local, cache_dir=cache, progress=Meanwhile(look))
"""


def kill_at(archive: Path, places: dict[str, Any], where: str, least: int) -> None:
    """Stage in a process that is killed once there are so many shards; if they are local ones, none is published."""
    arguments = [str(archive), str(LIMIT), *map(str, places.values()), f"{where}/*-of-*.h5.json", str(least)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=100)
    assert ended.returncode == -signal.SIGKILL


def test_a_kill_costs_no_shard_that_was_finished(archive: Path, whole: Path, places: dict[str, Any]) -> None:
    """Shards in the cache are not packed again, and the rest is as if nothing had happened."""
    with disk_sampled(places["local_dir"]) as taken:
        kill_at(archive, places, f"{places['cache_dir']}", 2)
        before = times_in(places["cache_dir"])
        assert 2 <= len(before) < SHARDS
        with staged(archive, places) as data:
            check_rows(data, whole)
    assert max(taken) <= LIMIT
    assert before.items() <= times_in(places["cache_dir"]).items()
    assert [path.name for path in places["local_dir"].iterdir()] == ["partial"]


def test_a_shard_that_was_finished_and_not_published_is_not_packed_again(
    archive: Path, whole: Path, places: dict[str, Any]
) -> None:
    kill_at(archive, places, f"{places['local_dir']}/**", 1)
    assert shards_in(places["cache_dir"]) == []
    with staged(archive, places) as data:
        (step,) = (one for one in data.report.steps if one.name == "pack in shards")
        assert step.amount <= COUNT - COUNT // SHARDS
        check_rows(data, whole)


@pytest.mark.parametrize("why", ["refresh", "sizes"])
def test_what_an_interrupted_call_has_begun_is_continued(why: str, tmp_path: Path, places: dict[str, Any]) -> None:
    """A refresh, and a set of images that turned out to have many sizes."""
    # Not the first, the last or the largest image, which are examined beforehand.
    odd = {"cat/0050.png": noise(50, size=(120, 120))} if why == "sizes" else {}
    source = make_tree(tmp_path / "photos", images(COUNT) | odd)
    options, cache = {"refresh": why == "refresh"}, places["cache_dir"]
    first = dict[str, int]()
    if why == "refresh":
        with staged(source, places):
            first = times_in(cache)

    def interrupt() -> None:
        if len(times_in(cache).items() - first.items()) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), staged(source, places, progress=Meanwhile(interrupt), **options):
        pass
    done = times_in(cache).items() - first.items()
    with staged(source, places, **options) as data:
        assert (data.report.origin, data.splits["train"]) == ("source", COUNT)
    assert len(done) >= 2
    assert done <= times_in(cache).items()
    with staged(source, places, **options) as data:
        assert data.report.origin == ("source" if why == "refresh" else "cache")


def test_what_became_of_the_source_or_of_a_shard_is_noticed(places: dict[str, Any], tmp_path: Path) -> None:
    source = make_tree(tmp_path / "photos", images(COUNT))
    with staged(source, places):
        pass
    shutil.rmtree(places["local_dir"])
    victim = shards_in(places["cache_dir"])[3]
    content = victim.read_bytes()
    victim.write_bytes(content[: 3 * SMALL_BLOCK] + bytes(2 * SMALL_BLOCK) + content[5 * SMALL_BLOCK :])
    with staged(source, places) as damaged:
        assert damaged.report.origin == "cache"
        with pytest.raises(DamagedPackError, match=victim.name):
            list(damaged.loader("train", 8))
    victim.write_bytes(content)
    # Another file of the same length.
    make_tree(source, {"cat/0000.png": noise(COUNT, size=(128, 128))})
    with disk_sampled(places["local_dir"]) as taken, staged(source, places) as changed:
        assert changed.report.origin == "source"
        whole = stage_dataset(source, local_dir=tmp_path / "whole", cache_dir=None, progress=False)
        check_rows(changed, whole.path)
    assert max(taken) <= LIMIT


def test_what_cannot_be_packed_in_shards_says_so_before_anything_is_written(
    archive: Path, places: dict[str, Any]
) -> None:
    without_cache = {**places, "cache_dir": None}
    for call in (plan_stage, partial(stage_dataset, progress=False)):
        with pytest.raises(NotEnoughSpaceError, match="cache_dir=None"):
            call(archive, disk_limit=LIMIT, **without_cache)
    with (
        WebServer({"photos.zip": archive}) as server,
        pytest.raises(ChecksumMismatchError, match="0000"),
        staged(server.url("photos.zip"), places, hash="sha256:" + 64 * "0"),
    ):
        pass
    with (
        ThreadPoolExecutor(1) as workers,
        pytest.raises(NotEnoughSpaceError, match="executor="),
        staged(archive, places, executor=workers),
    ):
        pass
    assert not places["cache_dir"].exists()
    assert not [path for path in places["local_dir"].rglob("*") if path.is_file()]


def test_the_limit_that_a_refusal_asks_for_is_enough(archive: Path, places: dict[str, Any]) -> None:
    told = set[str]()
    for call in (plan_stage, partial(stage_dataset, progress=False)):
        with pytest.raises(NotEnoughSpaceError, match="disk_limit=150 kB") as refused:
            call(archive, disk_limit=150_000, **places)
        told |= {*re.findall(r"Give (.+?) or more", str(refused.value))}
    (limit,) = told
    with staged(archive, places, disk_limit=limit) as data:
        assert data.part is not None
        assert sum(len(y) for _, y in data.loader("train", 8)) == COUNT
