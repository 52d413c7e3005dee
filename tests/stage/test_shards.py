"""A source whose pack is larger than the disk limit: packed in shards, which go to the cache, and read from there."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import list_datasets, make_loader, plan_stage, purge_datasets, stage_dataset
from colabstage.errors import ChecksumMismatchError, DamagedPackError, NotEnoughSpaceError
from colabstage.io.units import parse_bytes
from colabstage.pack import execute
from colabstage.stage import shards
from tests.support.http_server import WebServer
from tests.support.staged import SMALL_BLOCK, disk_sampled, use_small_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage import StagedDataset

pytestmark = pytest.mark.torch

# Images of 49 kB each, 15 MB in all: three times the limit.
COUNT, SIDE, LIMIT, SHARDS = 300, 128, 5_000_000, 12


def write_image(path: Path, number: int, *, side: int = SIDE) -> None:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG", compress_level=0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in two classes."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    for number in range(COUNT):
        write_image(folder / ("cat", "dog")[number % 2] / f"{number:04}.png", number)
    return folder


@pytest.fixture(scope="module")
def archive(photos: Path) -> Path:
    """The same as a zip."""
    return zipped(photos, photos.with_name("photos.zip"))


def zipped(folder: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.write(path, path.relative_to(folder))
    return target


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Where the part is, and where the cache is."""
    return {"local_dir": tmp_path / "local", "cache_dir": tmp_path / "cache", "progress": False}


def whole_pack(source: Path | str, folder: Path, **options: Any) -> Path:
    """Return the pack that a call without a limit makes."""
    return stage_dataset(source, local_dir=folder, cache_dir=None, progress=False, **options).path


def rows_of(data: StagedDataset) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all of `train` by a loader in windows, put in the order of the file."""
    dataset = data["train"]
    dataset.return_index = True
    found = [(index.numpy(), x.permute(0, 2, 3, 1).numpy(), y.numpy()) for (x, y), index in make_loader(dataset, 8)]
    order = np.argsort(np.concatenate([one[0] for one in found]))
    return np.concatenate([one[1] for one in found])[order], np.concatenate([one[2] for one in found])[order]


def check_rows(data: StagedDataset, whole: Path) -> None:
    x, y = rows_of(data)
    with h5py.File(whole) as file:
        np.testing.assert_array_equal(x, file["X_train"][()])
        np.testing.assert_array_equal(y, file["Y_train"][()])


def shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-of-*.h5"))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the shards that are packed, or continued, from now on."""
    numbers: list[int] = []
    run_pack = execute.run_pack

    def noted(*arguments: Any, **named: Any) -> Any:
        numbers.append(named["shard"].number)
        return run_pack(*arguments, **named)

    monkeypatch.setattr(shards, "run_pack", noted)
    return numbers


def test_a_zip_larger_than_the_limit_is_packed_in_shards(
    archive: Path, places: dict[str, Any], packed: list[int], tmp_path: Path
) -> None:
    """The disk never holds more than the limit; rows are those of the pack of one file; the second call reads the
    cache; and a call without a limit joins the shards to the file that it would have packed, byte for byte."""
    plan = plan_stage(archive, disk_limit=LIMIT, local_dir=places["local_dir"], cache_dir=places["cache_dir"])
    assert f"would be packed in {SHARDS} shards" in str(plan)
    assert str(plan.cache).endswith(f"-*-of-{SHARDS:05}.h5")
    assert plan.figures.peak_bytes <= LIMIT
    with disk_sampled(places["local_dir"]) as taken:
        data = stage_dataset(archive, disk_limit=LIMIT, **places)
        assert (data.report.origin, data.splits, data.classes) == ("source", {"train": COUNT}, ("cat", "dog"))
        assert packed == list(range(SHARDS))
        whole = whole_pack(archive, tmp_path / "whole")
        check_rows(data, whole)
        assert data.part is not None
        assert data.part.figures["evicted"] > 0
        assert f"-*-of-{SHARDS:05}.h5') and is read from there" in str(data.report)
        data.part.close()
    assert 1_000_000 < max(taken) <= LIMIT < whole.stat().st_size / 2
    assert len(shards_in(places["cache_dir"])) == SHARDS
    assert [path.name for path in places["local_dir"].iterdir()] == ["partial"]
    again = stage_dataset(archive, disk_limit=LIMIT, **places)
    assert (again.report.origin, len(packed)) == ("cache", SHARDS)
    assert again.part is not None
    again.part.close()
    joined = stage_dataset(archive, **places)
    assert (joined.report.origin, joined.part) == ("cache", None)
    assert joined.path.read_bytes() == whole.read_bytes()
    assert stage_dataset(archive, **places).report.origin == "local"
    assert not (places["cache_dir"] / whole.name).exists()


KILLED = """
import os, signal, sys
import pytest
import colabstage.load.dataset
from colabstage import stage_dataset
from colabstage.stage import shards
from tests.support.staged import use_small_blocks
use_small_blocks(pytest.MonkeyPatch())
left, publish_file = [int(sys.argv[5])], shards.publish
def publish(*arguments, **named):
    done = publish_file(*arguments, **named)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
shards.publish = publish
stage_dataset(sys.argv[1], disk_limit=int(sys.argv[2]), local_dir=sys.argv[3], cache_dir=sys.argv[4], progress=False)
"""


def test_a_kill_costs_no_shard_that_was_finished(
    archive: Path, places: dict[str, Any], packed: list[int], tmp_path: Path
) -> None:
    """Killed while one shard was packed and the one before it had just been published, twice: what is in the cache is
    not packed again, and the rest comes as if nothing had happened."""
    arguments = [str(archive), str(LIMIT), str(places["local_dir"]), str(places["cache_dir"])]
    there: dict[str, int] = {}
    with disk_sampled(places["local_dir"]) as taken:
        for published in (2, 4):
            ended = subprocess.run([sys.executable, "-c", KILLED, *arguments, str(published)], check=False, timeout=100)
            assert ended.returncode == -signal.SIGKILL
            before, there = there, {path.name: path.stat().st_mtime_ns for path in shards_in(places["cache_dir"])}
            assert len(there) == len(before) + published
            assert before.items() <= there.items()
        data = stage_dataset(archive, disk_limit=LIMIT, **places)
        check_rows(data, whole_pack(archive, tmp_path / "whole"))
        assert data.part is not None
        data.part.close()
    assert max(taken) <= LIMIT
    # One more may have been finished here when the process was killed, and needs only to be published.
    assert packed in (list(range(6, SHARDS)), list(range(7, SHARDS)))
    assert [path.name for path in places["local_dir"].iterdir()] == ["partial"]


def test_an_interrupted_refresh_continues_and_a_finished_one_starts_over(
    archive: Path, places: dict[str, Any], packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stage_dataset(archive, disk_limit=LIMIT, **places)
    assert first.part is not None
    first.part.close()
    packed.clear()
    run_pack = vars(shards)["run_pack"]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if named["shard"].number == 5:
            raise KeyboardInterrupt
        return run_pack(*arguments, **named)

    monkeypatch.setattr(shards, "run_pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage_dataset(archive, disk_limit=LIMIT, refresh=True, **places)
    assert packed == list(range(5))
    assert 3 <= len(shards_in(places["cache_dir"])) <= 5
    monkeypatch.setattr(shards, "run_pack", run_pack)
    packed.clear()
    again = stage_dataset(archive, disk_limit=LIMIT, refresh=True, **places)
    assert again.report.origin == "source"
    assert packed in (list(range(4, SHARDS)), list(range(5, SHARDS)))
    assert again.part is not None
    again.part.close()
    packed.clear()
    over = stage_dataset(archive, disk_limit=LIMIT, refresh=True, **places)
    assert packed == list(range(SHARDS))
    assert over.part is not None
    over.part.close()


def test_what_became_of_the_source_or_of_a_shard_is_noticed(
    photos: Path, places: dict[str, Any], packed: list[int], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    data = stage_dataset(source, disk_limit=LIMIT, **places)
    assert data.part is not None
    data.part.close()
    shutil.rmtree(places["local_dir"])
    victim = shards_in(places["cache_dir"])[4]
    content = victim.read_bytes()
    victim.write_bytes(content[: 3 * SMALL_BLOCK] + bytes(2 * SMALL_BLOCK) + content[5 * SMALL_BLOCK :])
    damaged = stage_dataset(source, disk_limit=LIMIT, **places)
    assert damaged.report.origin == "cache"
    with pytest.raises(DamagedPackError, match=rf"{victim.name}' is damaged"):
        rows_of(damaged)
    assert damaged.part is not None
    damaged.part.close()
    victim.write_bytes(content)
    # Of the same length, in the place of another.
    write_image(source / "cat" / "0000.png", COUNT)
    with disk_sampled(places["local_dir"]) as taken:
        changed = stage_dataset(source, disk_limit=LIMIT, **places)
    assert max(taken) <= LIMIT
    assert (changed.report.origin, len(packed)) == ("source", 2 * SHARDS)
    check_rows(changed, whole_pack(source, tmp_path / "whole"))
    assert changed.part is not None
    changed.part.close()


def test_what_cannot_be_packed_in_shards_says_so_before_anything_is_written(
    archive: Path, places: dict[str, Any], tmp_path: Path
) -> None:
    nowhere = {**places, "cache_dir": None}
    with pytest.raises(NotEnoughSpaceError, match=r'cache_dir=None(.|\n)*cache_dir="/content/drive'):
        stage_dataset(archive, disk_limit=LIMIT, **nowhere)
    with pytest.raises(NotEnoughSpaceError, match=r"cache_dir=None"):
        plan_stage(archive, disk_limit=LIMIT, local_dir=places["local_dir"], cache_dir=None)
    with pytest.raises(NotEnoughSpaceError, match=r"1 MB(.|\n)* ([0-9.]+ MB) ") as caught:
        stage_dataset(archive, disk_limit="1 MB", **places)
    named = str(caught.value).partition("Give ")[2].partition(" or more")[0]
    with WebServer({"photos.zip": archive}) as server, pytest.raises(ChecksumMismatchError, match=r"not 0000"):
        stage_dataset(server.url("photos.zip"), disk_limit=LIMIT, hash="sha256:" + 64 * "0", **places)
    with (
        ThreadPoolExecutor(1) as workers,
        pytest.raises(NotEnoughSpaceError, match=r"Leave out executor="),
    ):
        stage_dataset(archive, disk_limit=LIMIT, executor=workers, **places)
    assert not places["cache_dir"].exists()
    assert not [path for path in places["local_dir"].rglob("*") if path.is_file()]
    data = stage_dataset(archive, disk_limit=named, **places)
    check_rows(data, whole_pack(archive, tmp_path / "whole"))
    assert data.part is not None
    data.part.close()


@pytest.mark.parametrize("remote", [False, True])
def test_the_limit_that_an_error_names_is_never_more_than_all_of_it_takes(
    remote: bool, photos: Path, places: dict[str, Any]
) -> None:
    """Of a pack of a few blocks, shards would leave more here than it has; so it is to be made as one file."""
    few = photos.parent / "few"
    for number in range(6):
        write_image(few / ("cat", "dog")[number % 2] / f"{number:04}.png", number)
    archive = zipped(few, few.with_name("few.zip"))
    with WebServer({"few.zip": archive}) as server:
        source = server.url("few.zip") if remote else archive
        peak = plan_stage(source, local_dir=places["local_dir"], cache_dir=places["cache_dir"]).figures.peak_bytes
        with pytest.raises(NotEnoughSpaceError, match="1 kB") as caught:
            stage_dataset(source, disk_limit=1000, **places)
        with pytest.raises(NotEnoughSpaceError, match=re.escape(str(caught.value))):
            plan_stage(source, disk_limit=1000, local_dir=places["local_dir"], cache_dir=places["cache_dir"])
        named = str(caught.value).partition("Give ")[2].partition(" or more")[0]
        assert peak <= parse_bytes(named) <= 1.02 * peak
        data = stage_dataset(source, disk_limit=named, **places)
        assert data.part is None
        assert len(data["train"]) == 6


def test_a_set_in_the_cache_is_one_dataset_to_list_and_to_remove(archive: Path, places: dict[str, Any]) -> None:
    data = stage_dataset(archive, disk_limit=LIMIT, **places)
    assert data.part is not None
    data.part.close()
    cache, local = places["cache_dir"], places["local_dir"]

    def cached() -> list[Any]:
        return [one for one in list_datasets(local_dir=local, cache_dir=cache) if one.place == "cache"]

    (listed,) = cached()
    assert (listed.samples, listed.whole) == ({"train": COUNT}, True)
    assert listed.nbytes == sum(path.stat().st_size for path in shards_in(cache))
    first = shards_in(cache)[0]
    first.unlink()
    first.with_name(f"{first.name}.json").unlink()
    (listed,) = cached()
    assert not listed.whole
    assert purge_datasets([listed]).nbytes == listed.nbytes
    assert list(cache.iterdir()) == []
