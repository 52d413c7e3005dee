"""One dataset in several files: the same rows as one file, the same bytes whoever writes them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import (
    DecodeError,
    LayoutError,
    OptionError,
    SourceChangedError,
    TargetExistsError,
    WorkersLostError,
)
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.h5.parts import shards_beside
from colabstage.load.reading.reader import SplitReader
from colabstage.options import Images, SampleTable, TreeFiles
from colabstage.pack.shards import run_tasks
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable


def _bytes_of(target: Path) -> dict[str, bytes]:
    """All shards of a dataset with their manifests, by name."""
    shards = shards_beside(target)
    for shard in shards:
        manifest = read_manifest(shard)
        assert manifest is not None
        assert is_whole(shard, manifest)
    return {shard.name: shard.read_bytes() for shard in shards}


@pytest.mark.parametrize("encoding", ["pixels", "encoded", "jpeg:80"])
def test_shards_read_as_the_one_file(tmp_path: Path, photos: Path, encoding: str) -> None:
    """Every row, target and key of every split is at its number, also where a split is smaller than the set."""
    options: dict[str, Any] = {
        "encoding": encoding,
        "image_size": (8, 8),
        "splits": {"train": 0.7, "dev": 0.2, "test": 0.1},
        "progress": False,
    }
    pack_dataset(photos, tmp_path / "one.h5", **options)
    report = pack_dataset(photos, tmp_path / "set.h5", shards=4, **options)
    assert [Path(file).name for file in report.files] == [f"set-0000{number}-of-00004.h5" for number in range(4)]
    assert report.samples == {"train": 21, "dev": 6, "test": 3}
    for split in report.samples:
        one, several = SplitReader(tmp_path / "one.h5", split), SplitReader(report.path, split)
        rows = np.random.default_rng(0).permutation(len(one))
        np.testing.assert_array_equal(several.read_x(rows), one.read_x(rows))
        np.testing.assert_array_equal(several.read_y(rows), one.read_y(rows))
        assert several.keys() == one.keys()


@pytest.fixture
def expected(tmp_path: Path, photos: Path) -> dict[str, bytes]:
    """The shards that this process makes alone."""
    (tmp_path / "alone").mkdir()
    pack_dataset(photos, tmp_path / "alone" / "set.h5", shards=5, progress=False)
    return _bytes_of(tmp_path / "alone" / "set.h5")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_executor_makes_the_same_bytes(
    tmp_path: Path, photos: Path, expected: dict[str, bytes], kind: str, workers: int, leftovers: Any
) -> None:
    """Whatever the number of workers; the executor stays open."""
    place = tmp_path / "place"
    place.mkdir()
    pool: Executor = (
        ThreadPoolExecutor(workers)
        if kind == "threads"
        else ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    )
    with pool:
        report = pack_dataset(photos, place / "set.h5", shards=5, executor=pool, progress=False)
        assert pool.submit(len, "open").result(30) == 4
    assert _bytes_of(place / "set.h5") == expected
    assert sum(report.samples.values()) == 30
    assert leftovers(place) == []


class _KillsOne(OneStep):
    """A progress that kills one process of a pool when the first shard is done."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self.killed = 0

    def advance(self, amount: int = 1) -> None:
        if amount and not self.killed:
            self.killed = self._pids()[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
def test_shards_of_a_dead_worker_are_written_again(
    tmp_path: Path, photos: Path, expected: dict[str, bytes], leftovers: Any
) -> None:
    """A pool with a dead process takes no tasks any more; the rest is written all the same, to the same bytes."""
    place = tmp_path / "place"
    place.mkdir()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        killing = _KillsOne(lambda: list(pool._processes))
        pack_dataset(photos, place / "set.h5", shards=5, executor=pool, progress=killing)
    assert killing.killed
    assert _bytes_of(place / "set.h5") == expected
    assert leftovers(place) == []


_CLUSTER = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace

import dask
from dask.distributed import Client, LocalCluster

from colabstage import pack_dataset
from colabstage.options import Progress, ProgressStep

class KillsOne(Progress, ProgressStep):
    def __init__(self, client): self.client, self.killed = client, 0
    def step(self, name, *, total, unit): return self
    def advance(self, amount=1):
        if amount and not self.killed:
            self.killed = next(iter(self.client.run(os.getpid).values()))
            os.kill(self.killed, signal.SIGKILL)

if __name__ == "__main__":
    # Workers are forked from a process that has imported Dask, the one that takes the dead one's place as well.
    own = {"distributed.comm.timeouts.connect": "60s", "distributed.worker.multiprocessing-method": "forkserver"}
    dask.config.set(own)
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        killing = KillsOne(client)
        report = pack_dataset(
            sys.argv[1], sys.argv[2], shards=5, executor=client.get_executor(), progress=killing
        )
        print("killed", killing.killed, "samples", sum(report.samples.values()), flush=True)
"""


@pytest.mark.slow
def test_a_dask_cluster_that_loses_a_worker_makes_the_same_bytes(
    tmp_path: Path, photos: Path, expected: dict[str, bytes], leftovers: Any
) -> None:
    """Four worker processes, one of them killed midway."""
    pytest.importorskip("distributed", reason="needs dask's distributed: pip install 'colabstage[dask]'")
    place = tmp_path / "place"
    place.mkdir()
    script = tmp_path / "cluster.py"
    script.write_text(_CLUSTER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(photos), str(place / "set.h5")],
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "samples 30" in done.stdout
    assert "killed 0" not in done.stdout
    assert _bytes_of(place / "set.h5") == expected
    assert leftovers(place) == []


def test_shards_of_mixed_images_are_all_kept_as_they_came(tmp_path: Path, make_images: Any) -> None:
    """One image of another size, seen by one worker only, changes how all shards are stored."""
    folder = make_images(tmp_path / "photos", 200)
    Image.new("RGB", (5, 7)).save(folder / "class0" / "0003x.png")
    (tmp_path / "alone").mkdir()
    (tmp_path / "pool").mkdir()
    report = pack_dataset(folder, tmp_path / "alone" / "set.h5", shards=3, progress=False)
    assert report.encoding == "encoded"
    with ThreadPoolExecutor(2) as pool:
        pack_dataset(folder, tmp_path / "pool" / "set.h5", shards=3, executor=pool, progress=False)
    assert _bytes_of(tmp_path / "pool" / "set.h5") == _bytes_of(tmp_path / "alone" / "set.h5")
    with pytest.raises(LayoutError, match="pixels"):
        pack_dataset(folder, tmp_path / "no.h5", shards=3, encoding="pixels", progress=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_left_out_samples_count_over_all_shards(tmp_path: Path, photos: Path, workers: int) -> None:
    """A shard may have more than its share of broken images, all together may not; whoever writes them."""
    for number in range(0, 6, 3):
        (photos / "class0" / f"{number:04}.{'jpg' if number < 3 else 'png'}").write_bytes(b"no image")
    with ThreadPoolExecutor(2) if workers else nullcontext() as pool:
        with pytest.raises(DecodeError, match=r"[12] of 30"):
            pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=pool, on_error="skip:1%", progress=False)
        assert shards_beside(tmp_path / "set.h5") == []
        report = pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=pool, on_error="skip:7%", progress=False)
    assert len(report.skipped) == 2
    pack_dataset(photos, tmp_path / "one.h5", on_error="skip", progress=False)
    np.testing.assert_array_equal(
        SplitReader(report.path).read_x(range(28)), SplitReader(tmp_path / "one.h5").read_x(range(28))
    )


class _OneAtOnce(Executor):
    """Runs the first task when it is submitted, and never begins the others."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """A future that is done, or waits."""
        future = _Waiting()
        if not self.futures:
            future.set_result(function(*arguments, **options))
        self.futures.append(future)
        return future


class _Waiting(Future[Any]):
    """Cancelled for good when it is cancelled, as if a worker had seen it."""

    def cancel(self) -> bool:
        """As `Future.cancel`."""
        return super().cancel() and not self.set_running_or_notify_cancel()


def test_tasks_are_called_back_before_the_error_is_raised(tmp_path: Path, photos: Path) -> None:
    """Not when the garbage collector comes by: it may do so in a thread that one of them runs in."""
    (photos / "class0" / "0000.jpg").write_bytes(b"no image")
    executor = _OneAtOnce()
    with pytest.raises(DecodeError) as caught:
        pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=executor, on_error="skip:1%", progress=False)
    assert [future.cancelled() for future in executor.futures] == [False, True, True, True, True], caught


def test_a_failed_set_is_gone_on_with(tmp_path: Path, photos: Path, leftovers: Any) -> None:
    """Shards that were done when one failed are not written again."""
    bad = photos / "class1" / "0028.png"
    good = bad.read_bytes()
    bad.write_bytes(good[:100] + bytes(len(good) - 100))
    with pytest.raises(DecodeError, match=r"0028\.png"):
        pack_dataset(photos, tmp_path / "set.h5", shards=10, progress=False)
    assert len(leftovers(tmp_path)) == 1
    bad.write_bytes(good)
    report = pack_dataset(photos, tmp_path / "set.h5", shards=10, progress=False)
    assert 0 <= report.resumed < 30
    assert leftovers(tmp_path) == []
    assert len(SplitReader(report.path)) == 30


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path, photos: Path) -> None:
    """Shards of another number, and the one file of the name, go once the new ones are in place."""
    pack_dataset(photos, tmp_path / "set.h5", progress=False)
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        pack_dataset(photos, tmp_path / "set.h5", shards=3, progress=False)
    pack_dataset(photos, tmp_path / "set.h5", shards=3, overwrite=True, progress=False)
    with pytest.raises(TargetExistsError, match="00000-of-00003"):
        pack_dataset(photos, tmp_path / "set.h5", shards=2, progress=False)
    pack_dataset(photos, tmp_path / "set.h5", shards=2, overwrite=True, progress=False)
    assert sorted(path.name for path in tmp_path.glob("set*")) == [
        "set-00000-of-00002.h5",
        "set-00000-of-00002.h5.json",
        "set-00001-of-00002.h5",
        "set-00001-of-00002.h5.json",
    ]
    with pytest.raises(TargetExistsError, match=r"set-0000\d-of-00002\.h5"):
        pack_dataset(photos, tmp_path / "set.h5", overwrite=True, progress=False)


def test_impossible_numbers_of_shards_are_refused(tmp_path: Path, photos: Path) -> None:
    """None, or more than there are rows."""
    for shards in (0, 31):
        with pytest.raises(OptionError, match="expected 1 to 30"):
            pack_dataset(photos, tmp_path / "set.h5", shards=shards, progress=False)


def test_an_executor_alone_makes_as_many_shards_as_the_samples_deserve(tmp_path: Path, make_images: Any) -> None:
    """The number depends on the samples, not on the workers."""
    folder = make_images(tmp_path / "photos", 140, size=(4, 4))
    with ThreadPoolExecutor(3) as pool:
        report = pack_dataset(folder, tmp_path / "set.h5", executor=pool, progress=False)
    assert len(report.files) == 2


class _ChangesTheSource(Executor):
    """Runs a task at once, in this thread, after a file was written."""

    def __init__(self, write: Path, side: int) -> None:
        self._write, self._side = write, side

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        Image.new("RGB", (self._side, 16)).save(self._write)
        future: Future[Any] = Future()
        try:
            future.set_result(function(*pickle.loads(pickle.dumps(arguments))))
        except Exception as error:  # noqa: BLE001  # as an executor does
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future


def test_workers_that_see_another_source_are_refused(tmp_path: Path, photos: Path) -> None:
    """A file of another length where they are; one that was added meanwhile is in no row of any shard."""
    changing = _ChangesTheSource(min((photos / "class0").iterdir()), 99)
    with pytest.raises(SourceChangedError):
        pack_dataset(photos, tmp_path / "set.h5", shards=2, executor=changing, progress=False)
    assert shards_beside(tmp_path / "set.h5") == []
    rows = len([path for path in photos.rglob("*") if path.is_file()])
    adding = _ChangesTheSource(photos / "class0" / "added.png", 20)
    assert (
        sum(pack_dataset(photos, tmp_path / "b.h5", shards=2, executor=adding, progress=False).samples.values()) == rows
    )


_READ: list[int] = []


def _count(x: Any) -> Any:
    _READ.append(1)
    return x


def test_samples_are_found_and_read_once_however_many_shards_there_are(tmp_path: Path, photos: Path) -> None:
    """Workers get the rows that were planned, and read the files of these alone."""
    found: list[int] = []

    def layout(tree: Any) -> SampleTable:
        found.append(1)
        return SampleTable("mine", [entry.name for entry in tree.entries], Images(TreeFiles(tree, tree.entries)), None)

    options: dict[str, Any] = {"layout": layout, "prepare": _count, "image_size": (8, 8), "progress": False}
    with ThreadPoolExecutor(2) as pool:
        report = pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=pool, **options)
    assert len(found) == 1
    # The first is also read for the form that they have.
    assert len(_READ) == sum(report.samples.values()) + 1


@pytest.mark.parametrize("workers", [False, True])
def test_other_content_of_the_same_length_is_another_set(tmp_path: Path, photos: Path, *, workers: bool) -> None:
    """With overwrite=True what is there is not taken for it; unchanged shards are not written again."""
    for path in photos.rglob("*.*"):
        Image.new("RGB", (16, 16), (10, 20, 30)).save(path.with_suffix(".bmp"))
        if path.suffix != ".bmp":
            path.unlink()
    first = min(photos.rglob("*.bmp"))

    def pack() -> Any:
        pool = ThreadPoolExecutor(2) if workers else None
        return pack_dataset(photos, tmp_path / "set.h5", shards=3, executor=pool, overwrite=True, progress=False)

    total = sum(pack().samples.values())
    assert pack().resumed == total
    Image.new("RGB", (16, 16), (200, 100, 50)).save(first)
    assert 0 < pack().resumed < total
    assert 200 in SplitReader(tmp_path / "set-*.h5").read_x(np.arange(total))


class _DaskLosingOne(Executor):
    """Dask's executor when the worker of the first task dies just after its result has arrived."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        cfexecutor = pytest.importorskip("distributed.cfexecutor", reason="needs distributed: pip install distributed")
        self.tasks += 1
        made: Future[Any] = Future()

        async def result(*, raiseit: bool) -> Any:
            return function(*args, **options)

        async def work() -> None:
            status = "lost" if self.tasks == 1 else "finished"
            await cfexecutor._cascade_future(SimpleNamespace(_result=result, status=status), made)

        asyncio.run(work())
        return made


def test_a_result_of_a_dead_dask_worker_is_made_again() -> None:
    """The ValueError of Dask's own code is no error of the task, whose own errors are raised."""
    assert dict(run_tasks(_DaskLosingOne(), str, [1000, 2000])) == {1000: "1000", 2000: "2000"}
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="invalid literal"):
        list(run_tasks(pool, int, ["x"]))


def _die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_task_that_kills_every_worker_ends(tmp_path: Path) -> None:
    """After some workers, not after all there ever will be."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(WorkersLostError, match=r"\b4\b"),
    ):
        list(run_tasks(pool, _die, [0]))


@pytest.mark.slow
def test_workers_that_fall_silent_are_given_up() -> None:
    """With no result and nothing written for the deadline, somebody should look; what runs is told to stop."""
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool, pytest.raises(WorkersLostError, match="1 s"):
        list(run_tasks(pool, given_up.wait, [60.0], silence_s=1.0, stop=given_up.set))
    assert given_up.is_set()
