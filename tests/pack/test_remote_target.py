"""Shards in a bucket, in fsspec's memory and at file:// addresses: the bytes of local shards, by whatever workers."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, pack_dataset
from colabstage.errors import CancelledError, OptionError, TargetExistsError, TargetNotWritableError
from tests.contract.served import numbers_in
from tests.sources.servers import USER, BucketService, ftp_service
from tests.support.images import in_classes, make_tree
from tests.support.staged import contents, timeless
from tests.support.steps import OneStep

Files = dict[str, bytes | dict[str, Any]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images, so that a shard has five."""
    return make_tree(tmp_path_factory.mktemp("remote") / "photos", in_classes(10))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Files:
    """The shards, with their manifests, that are written to a folder."""
    folder = tmp_path_factory.mktemp("alone")
    pack_dataset(photos, folder / "set.h5", shards=2, progress=False)
    return contents(folder)


def _objects(service: BucketService) -> Files:
    return timeless({key: found.value for key, found in service.backend.buckets[service.bucket].keys.items()})


def _below(objects: Files, folder: str) -> Files:
    return {key.removeprefix(f"{folder}/"): content for key, content in objects.items()}


@pytest.mark.slow
def test_a_bucket_gets_the_same_bytes(tmp_path: Path, photos: Path, expected: Files, s3: BucketService) -> None:
    """Only shards and manifests stay, and they are read back as the dataset."""
    report = pack_dataset(photos, "s3://data/sets/set.h5", shards=2, progress=False)
    assert _below(_objects(s3), "sets") == expected
    assert report.path == "s3://data/sets/set-?????-of-00002.h5"
    assert report.files[1] == "s3://data/sets/set-00001-of-00002.h5"
    assert report.nbytes == sum(len(content) for name, content in expected.items() if name.endswith(".h5"))
    fetch_files("s3://data/sets", tmp_path / "back", progress=False)
    back = [numbers_in(path) for path in sorted((tmp_path / "back").glob("set-*.h5"))]
    assert {key: number for one in back for key, number in one.items()} == in_classes(10)


def test_file_addresses_and_memory_take_shards(tmp_path: Path, photos: Path, expected: Files) -> None:
    """Written by other processes and by threads; missing folders are created, and the temporary one is gone."""
    import fsspec

    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        pack_dataset(photos, f"file://{tmp_path}/new/set.h5", shards=2, executor=pool, progress=False)
    assert contents(tmp_path / "new") == expected
    assert [path.name for path in (tmp_path / "new").iterdir() if path.is_dir()] == []
    memory = fsspec.filesystem("memory")
    try:
        with ThreadPoolExecutor(2) as pool:
            pack_dataset(photos, "memory://sets/set.h5", shards=2, executor=pool, progress=False)
        found = {path.rpartition("/")[2]: memory.cat_file(path) for path in memory.find("/sets")}
        assert timeless(found) == expected
    finally:
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]


def test_a_file_server_takes_shards(tmp_path: Path, photos: Path, expected: Files) -> None:
    """FTP refuses access to what is not there."""
    (tmp_path / "served").mkdir()
    with ftp_service(tmp_path / "served") as service:
        service.server.handler.authorizer.user_table[USER]["perm"] = "elradfmw"
        pack_dataset(photos, f"{service.login_address}/sets/set.h5", shards=2, progress=False)
    assert contents(tmp_path / "served" / "sets") == expected


@pytest.mark.slow
def test_what_is_there_is_replaced_only_when_asked(
    tmp_path: Path, photos: Path, expected: Files, s3: BucketService
) -> None:
    """The same set counts as done; another set, or a single file of that name, is refused, and replaced on request."""
    pack_dataset(photos, "s3://data/set.h5", shards=2, progress=False)
    assert pack_dataset(photos, "s3://data/set.h5", shards=2, progress=False).resumed == 10
    before = _objects(s3)
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        pack_dataset(photos, "s3://data/set.h5", shards=2, image_size=(5, 5), progress=False)
    assert _objects(s3) == before
    pack_dataset(photos, "s3://data/set.h5", shards=2, image_size=(5, 5), overwrite=True, progress=False)
    assert _objects(s3).keys() == before.keys()
    assert _objects(s3) != before
    pack_dataset(photos, "s3://data/set.h5", shards=3, overwrite=True, progress=False)
    assert len(_objects(s3)) == 6
    s3.put("set-append-00001.h5", b"more")
    with pytest.raises(TargetExistsError, match=r"set-append-00001\.h5"):
        pack_dataset(photos, "s3://data/set.h5", shards=2, overwrite=True, progress=False)


@pytest.mark.slow
def test_uploaded_shards_of_a_failed_run_are_used(
    photos: Path, expected: Files, s3: BucketService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file has its final name before all are there; the next run writes what is missing."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    class StopsMidway(OneStep):
        """Ends the run when a shard is done."""

        done = 0

        def advance(self, amount: int = 1) -> None:
            self.done += amount
            if self.done > 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_dataset(photos, "s3://data/set.h5", shards=2, progress=StopsMidway())
    left = _objects(s3)
    assert len(left) == 2
    assert all(key.startswith(".colabstage-set-") for key in left)
    report = pack_dataset(photos, "s3://data/set.h5", shards=2, progress=False)
    assert report.resumed == 5
    assert _objects(s3) == expected
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("out", "shards", "named"),
    [
        ("https://example.org/set.h5", 2, "https://example.org"),
        ("s3:/data/set.h5", 2, "'s3://data/set.h5' is an address"),
        ("s3://data/sets/", 2, "s3://data/sets"),
        ("s3://data/set.h5", None, "shards="),
    ],
    ids=["web", "path", "folder", "one file"],
)
def test_what_cannot_be_written_to_is_refused(photos: Path, out: str, shards: int | None, named: str) -> None:
    """A web address, a path that was an address, a folder, and one file instead of shards."""
    with pytest.raises(OptionError, match=named):
        pack_dataset(photos, out, shards=shards, progress=False)


def test_a_bucket_that_is_not_there_is_said(photos: Path, s3: BucketService) -> None:
    """With the address, before the work starts."""
    with pytest.raises(TargetNotWritableError, match="s3://none/set"):
        pack_dataset(photos, "s3://none/set.h5", shards=2, progress=False)


_ENTERED = threading.Event()
_FINISHED = threading.Event()
_NOBODY_WAITS = threading.Semaphore(0)


def _wait_once(sample: Any) -> Any:
    """Make a worker's first sample wait until the set is finished."""
    if _NOBODY_WAITS.acquire(blocking=False):
        _ENTERED.set()
        assert _FINISHED.wait(30)
    return sample


class _SeemsLost(Executor):
    """Has two workers for the first task: one hangs, the other's result is used."""

    hanging: Future[Any]

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not hasattr(self, "hanging"):
            _NOBODY_WAITS.release()
            self.hanging = self.pool.submit(fn, *args, **kwargs)
            assert _ENTERED.wait(30)
        return self.pool.submit(fn, *args, **kwargs)


@pytest.mark.slow
def test_a_worker_that_is_late_leaves_nothing(
    tmp_path: Path, photos: Path, s3: BucketService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that seemed lost continues after the set is finished, when its result is not needed any more."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    executor = _SeemsLost()
    pack_dataset(photos, "s3://data/set.h5", shards=2, executor=executor, prepare=_wait_once, progress=False)
    finished = _objects(s3)
    _FINISHED.set()
    with suppress(CancelledError):
        executor.hanging.result(timeout=30)
    executor.pool.shutdown()
    assert _objects(s3) == finished
    assert sorted(finished) == [f"set-0000{n}-of-00002.h5{end}" for n in range(2) for end in ("", ".json")]
