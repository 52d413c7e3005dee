"""One dataset in several files, or packed by several workers: the same rows and bytes as by one process."""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Imported here by its name, dataset_h5 would bring torch, which most of these tests do without.
import colabstage
from colabstage import pack_dataset, stage_dataset
from colabstage.errors import DecodeError, LayoutError, SourceChangedError, TargetExistsError, WorkersLostError
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.options import Images, SampleTable, TreeFiles
from tests.clocks import ManualClock
from tests.contract.served import numbers_in
from tests.support.images import image, in_classes, make_tree, mask
from tests.support.made_files import npy
from tests.support.steps import AfterThat, OneStep

COUNT = 30


def shards_in(folder: Path) -> dict[str, bytes]:
    """All shards in a folder, each complete, by name."""
    shards = sorted(folder.glob("set-*.h5"))
    for shard in shards:
        assert is_whole(shard, read_manifest(shard) or pytest.fail(f"{shard} has no manifest"))
    return {shard.name: shard.read_bytes() for shard in shards}


@pytest.fixture
def expected(tmp_path: Path, photos: Path) -> dict[str, bytes]:
    pack_dataset(photos, tmp_path / "alone" / "set.h5", shards=5, progress=False)
    return shards_in(tmp_path / "alone")


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_shards_read_as_the_one_file(tmp_path: Path, photos: Path, encoding: str) -> None:
    """Every row, target and key of every split has its number, even if a split is smaller than the set."""
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
        one, several = (colabstage.dataset_h5(path, split=split) for path in (tmp_path / "one.h5", report.path))
        rows = np.random.default_rng(0).permutation(len(one))
        for mine, its in zip(several.read_batch(rows), one.read_batch(rows), strict=True):
            np.testing.assert_array_equal(mine, its)
        assert several.reader.keys() == one.reader.keys()


def _inverted(x: Any) -> Any:
    return 255 - x


# The second cannot be sent to another process: workers that share this one find the samples themselves.
@pytest.mark.parametrize("prepare", [_inverted, lambda x: 255 - x], ids=["a function", "one that cannot be sent"])
def test_an_executor_makes_the_same_bytes(tmp_path: Path, photos: Path, leftovers: Any, prepare: Any) -> None:
    """It stays open, and no option is ignored. Processes are in the next test."""
    options: dict[str, Any] = {"shards": 5, "prepare": prepare, "image_size": (8, 8), "progress": False}
    pack_dataset(photos, tmp_path / "alone/set.h5", **options)
    with ThreadPoolExecutor(3) as pool:
        report = pack_dataset(photos, tmp_path / "place/set.h5", executor=pool, **options)
        assert pool.submit(len, "open").result(30) == 4
    assert shards_in(tmp_path / "place") == shards_in(tmp_path / "alone")
    assert sum(report.samples.values()) == COUNT
    assert leftovers(tmp_path / "place") == []


class _KillsOne(OneStep):
    """Progress that kills one process of a pool when the first shard is done."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self.killed = 0

    def advance(self, amount: int = 1) -> None:
        if amount and not self.killed:
            self.killed = self._pids()[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
def test_shards_of_a_dead_worker_are_written_again(tmp_path: Path, photos: Path, expected: dict[str, bytes]) -> None:
    """A pool with a dead process takes no more tasks; the rest is still written, with the same bytes."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        killing = _KillsOne(lambda: list(pool._processes))
        pack_dataset(photos, tmp_path / "place/set.h5", shards=5, executor=pool, progress=killing)
    assert killing.killed
    assert shards_in(tmp_path / "place") == expected


def test_shards_of_mixed_images_are_all_kept_as_they_came(tmp_path: Path) -> None:
    """One image of another size, which is not among those examined first, changes how all shards are stored."""
    folder = make_tree(tmp_path / "photos", {**in_classes(60), "cat/007x.png": image(99, size=(5, 7))})
    report = pack_dataset(folder, tmp_path / "alone/set.h5", shards=3, progress=False)
    assert report.encoding == "encoded"
    with ThreadPoolExecutor(2) as pool:
        pack_dataset(folder, tmp_path / "pool/set.h5", shards=3, executor=pool, progress=False)
    assert shards_in(tmp_path / "pool") == shards_in(tmp_path / "alone")
    with pytest.raises(LayoutError, match="pixels"):
        pack_dataset(folder, tmp_path / "no.h5", shards=3, encoding="pixels", progress=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_nan_and_infinity_are_noted_of_all_shards(tmp_path: Path, workers: int) -> None:
    """Of samples that are stored: the greatest finite number is none, and what is left out says so itself."""
    for number in range(12):
        most = np.finfo(np.float32).max
        row = np.array([[1.0, most, most], [2.0, {3: np.nan, 8: -np.inf}.get(number, 0.0), 1.0]], np.float32)
        content = npy(row)[: -1 if number == 5 else None]
        make_tree(tmp_path / "source", {f"{'ab'[number % 2]}/{number:02}.npy": content})
    pool = ThreadPoolExecutor(workers) if workers else None
    with pool or contextlib.nullcontext():
        done = pack_dataset(tmp_path / "source", tmp_path / "a.h5", executor=pool, on_error="skip", progress=False)
    assert sorted(done.lost["nan"]) == ["a/08.npy", "b/03.npy"]
    assert (len(done.skipped), sum("NaN" in note for note in done.notes)) == (1, 1)


@pytest.mark.parametrize("kind", [None, "threads"])
def test_left_out_samples_count_over_all_shards(tmp_path: Path, photos: Path, kind: str | None) -> None:
    """One shard may have more than its share of broken images, all together may not; whoever writes them."""
    make_tree(photos, {"cat/000.png": b"no image", "cat/002.png": b"no image"})
    pool = ThreadPoolExecutor(2) if kind else None
    options: dict[str, Any] = {"shards": 5, "executor": pool, "progress": False}
    with pytest.raises(DecodeError, match=r"[12] of 30"):
        pack_dataset(photos, tmp_path / "set/set.h5", on_error="skip:1%", **options)
    assert shards_in(tmp_path / "set") == {}
    report = pack_dataset(photos, tmp_path / "set/set.h5", on_error="skip:7%", **options)
    if pool:
        pool.shutdown()
    assert sorted(line.partition(":")[0] for line in report.skipped) == ["cat/000.png", "cat/002.png"]
    found = [key for file in report.files for key in numbers_in(Path(file))]
    assert sorted(found) == sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*g"))[2:]


class _Waiting(Future[Any]):
    """Cancelled for good at once, as if a worker had seen it."""

    def cancel(self) -> bool:
        return super().cancel() and not self.set_running_or_notify_cancel()


class _OneAtOnce(Executor):
    """Runs the first task when it is submitted, and never starts the others."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future = _Waiting()
        if not self.futures:
            future.set_result(function(*arguments, **options))
        self.futures.append(future)
        return future


def test_tasks_are_called_back_before_the_error_is_raised(
    tmp_path: Path, photos: Path, expected: dict[str, bytes]
) -> None:
    """Not only by the garbage collector, which may run in a thread that one of them uses."""
    of_the_first = min(numbers_in(tmp_path / "alone" / min(expected)))
    make_tree(photos, {of_the_first: b"no image"})
    executor = _OneAtOnce()
    with pytest.raises(DecodeError) as caught:
        pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=executor, on_error="skip:1%", progress=False)
    assert [future.cancelled() for future in executor.futures] == [False, True, True, True, True], caught


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path, photos: Path) -> None:
    """A set with another number of shards, and a single file of the name, are removed once the new shards are in
    place."""
    place = tmp_path / "place"
    pack_dataset(photos, place / "set.h5", progress=False)
    for shards, named in ((3, "set"), (2, "00000-of-00003")):
        with pytest.raises(TargetExistsError, match=named):
            pack_dataset(photos, place / "set.h5", shards=shards, progress=False)
        pack_dataset(photos, place / "set.h5", shards=shards, overwrite=True, progress=False)
    names = [f"set-0000{number}-of-00002.h5{end}" for number in range(2) for end in ("", ".json")]
    assert sorted(path.name for path in place.iterdir()) == names
    with pytest.raises(TargetExistsError, match=r"set-0000\d-of-00002\.h5"):
        pack_dataset(photos, place / "set.h5", overwrite=True, progress=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_content_of_the_same_length_is_another_set(tmp_path: Path, workers: int) -> None:
    """overwrite=True does not take the existing set for it; unchanged shards are not written again."""
    photos = make_tree(tmp_path / "photos", in_classes(COUNT, suffix=".bmp"))

    def pack() -> Any:
        pool = ThreadPoolExecutor(workers) if workers else None
        return pack_dataset(photos, tmp_path / "set.h5", shards=3, executor=pool, overwrite=True, progress=False)

    pack()
    assert pack().resumed == COUNT
    make_tree(photos, {"cat/000.bmp": 200})
    report = pack()
    assert 0 < report.resumed < COUNT
    assert 200 in {number for file in report.files for number in numbers_in(Path(file)).values()}


def test_workers_that_see_another_source_are_refused(tmp_path: Path, photos: Path) -> None:
    """A file of another length is refused by the workers; an added one is in no row of any shard."""
    changing = AfterThat(lambda: make_tree(photos, {"cat/000.png": image(7, size=(99, 4))}))
    with pytest.raises(SourceChangedError):
        pack_dataset(photos, tmp_path / "set.h5", shards=2, executor=changing, progress=False)
    assert list(tmp_path.glob("set*")) == []
    adding = AfterThat(lambda: make_tree(photos, {"cat/added.png": 7}))
    report = pack_dataset(photos, tmp_path / "b.h5", shards=2, executor=adding, progress=False)
    assert sum(report.samples.values()) == COUNT


_READ: list[int] = []


def _count(x: Any) -> Any:
    _READ.append(1)
    return x


def test_samples_are_found_and_read_once_however_many_shards_there_are(tmp_path: Path, photos: Path) -> None:
    """Workers get the planned rows, and read only the files of these."""
    found: list[int] = []

    def layout(tree: Any) -> SampleTable:
        found.append(1)
        return SampleTable("mine", [entry.name for entry in tree.entries], Images(TreeFiles(tree, tree.entries)), None)

    _READ.clear()
    options: dict[str, Any] = {"layout": layout, "prepare": _count, "image_size": (8, 8), "progress": False}
    with ThreadPoolExecutor(2) as pool:
        pack_dataset(photos, tmp_path / "set.h5", shards=5, executor=pool, **options)
    assert len(found) == 1
    # The first one is also prepared for the form of all, and again to see whether that is the same each time.
    assert len(_READ) == COUNT + 2


def _die(x: Any) -> Any:
    """Kill each worker, but not the planning process."""
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.slow
def test_a_task_that_kills_each_worker_is_given_up(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each broken pool is replaced: by spawned processes, as in the test above; forked ones die sooner."""
    options: dict[str, Any] = {"shards": 2, "prepare": _die, "image_size": (8, 8), "progress": False}
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: get_context("fork"))
    with (
        ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool,
        pytest.raises(WorkersLostError, match="4 times on the same task"),
    ):
        pack_dataset(photos, tmp_path / "set.h5", executor=pool, **options)


def test_workers_that_fall_silent_are_given_up(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no result and nothing was written until the deadline, the error asks for attention; running tasks are
    told to stop."""
    clock, real, prepared = ManualClock(), SYSTEM_CLOCK.now, list[int]()

    def now() -> float:
        if threading.current_thread() is not threading.main_thread():
            return real()
        clock.turn(1000.0)
        return clock.now()

    def take_long(x: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            prepared.append(1)
            time.sleep(0.5)
        return x

    monkeypatch.setattr(type(SYSTEM_CLOCK), "now", staticmethod(now))
    options: dict[str, Any] = {"prepare": take_long, "image_size": (8, 8), "progress": False}
    with ThreadPoolExecutor(1) as pool, pytest.raises(WorkersLostError, match=r"2 tasks .* 1,800 s"):
        pack_dataset(photos, tmp_path / "set.h5", shards=2, executor=pool, **options)
    assert len(prepared) < COUNT / 2
    assert list(tmp_path.glob("set-*")) == []


# --- one file packed by several workers ---

# Enough samples to be divided among workers.
MANY = 140


def boxes(folder: Path) -> Path:
    """Boxes, some of them entirely left of the middle."""
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number in range(MANY):
        images.append({"id": number, "file_name": f"{number:03}.png", "height": 8, "width": 16})
        for left in (0, 6)[number % 2 :]:
            box = {"id": len(annotations), "image_id": number, "category_id": 1, "bbox": [left, 1, 3, 3]}
            annotations.append(box)
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    files = {f"images/{number:03}.png": image(number, size=(16, 8)) for number in range(MANY)}
    return make_tree(folder, {**files, "annotations.json": json.dumps(coco)})


def masks(folder: Path) -> Path:
    files = {f"images/{number:03}.png": image(number) for number in range(MANY)}
    return make_tree(folder, {**files, **{f"masks/{number:03}.png": mask(number) for number in range(MANY)}})


def photos_in(folder: Path) -> Path:
    return make_tree(folder, in_classes(MANY))


def with_broken(folder: Path) -> Path:
    return make_tree(photos_in(folder), {"cat/000.png": b"no image", "dog/131.png": b"no image"})


def arrays(folder: Path) -> Path:
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.arange(6.0 * MANY, dtype=np.float32).reshape(MANY, 6), y=np.arange(MANY) / 7)
    return folder


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (photos_in, {"splits": {"train": 0.97, "dev": 0.02, "test": 0.01}}),
        # Two shards of 8.8 MB each.
        (photos_in, {"image_size": (210, 200)}),
        (photos_in, {"encoding": "encoded"}),
        (photos_in, {"encoding": "jpeg:80", "image_size": (8, 8)}),
        (with_broken, {"on_error": "skip"}),
        (boxes, {"image_size": (8, 8), "resize": "crop", "encoding": "jpeg:70"}),
        (masks, {"image_size": (11, 7), "resize": "pad"}),
        (masks, {"encoding": "encoded"}),
        (arrays, {"splits": {"train": 0.5, "test": 0.5}}),
    ],
    ids=["splits", "long", "encoded", "jpeg", "left out", "boxes", "masks", "encoded masks", "arrays"],
)
def test_the_file_of_several_workers_is_that_of_one_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_pack: Any,
    make: Callable[[Path], Path],
    options: dict[str, Any],
) -> None:
    """With one thread or eight; with splits that have no rows in some shards, boxes removed by cropping, which come
    last, and shards that are copied in several steps."""
    source = make(tmp_path / "data")
    places: dict[str, Any] = {"cache_dir": None, "progress": False}
    found = []
    for threads in (1, 8):
        with monkeypatch.context() as patch:
            patch.setattr(os, "sched_getaffinity", lambda _, count=threads: set(range(count)))
            found.append(stage_dataset(source, local_dir=tmp_path / f"{threads}", **places, **options).path)
    with ThreadPoolExecutor(2) as pool:
        together = stage_dataset(source, local_dir=tmp_path / "together", executor=pool, **places, **options).path
    assert found[0].read_bytes() == found[1].read_bytes()
    one, other = read_pack(found[0]), read_pack(together)
    assert sorted(one.pop("skipped", ())) == sorted(other.pop("skipped", ()))
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)
    if make is not with_broken:
        assert together.read_bytes() == found[0].read_bytes()


class _EndsAfter(OneStep):
    """Records what was done before; ends with Ctrl-C once all is packed, if told to."""

    before = 0

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def start_at(self, amount: int) -> None:
        self.before = amount

    def __exit__(self, *error: object) -> None:
        if self._ends and error[0] is None:
            raise KeyboardInterrupt


def test_shards_that_were_not_put_together_are_not_made_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None}
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(KeyboardInterrupt):
            stage_dataset(photos_in(tmp_path / "data"), executor=pool, progress=_EndsAfter(ends=True), **options)
        again = _EndsAfter(ends=False)
        data = stage_dataset(tmp_path / "data", executor=pool, progress=again, **options)
    assert again.before == MANY
    assert numbers_in(data.path) == in_classes(MANY)
