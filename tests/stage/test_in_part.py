"""A pack in the cache that is opened in part, because it is larger than `disk_limit`, or while it is being copied."""

import pickle
import shutil
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3fs import S3FileSystem

from colabstage import StagedDataset, dataset_h5, list_datasets, make_loader, plan_stage, purge_datasets, stage_dataset
from colabstage.errors import (
    CancelledError,
    DamagedPackError,
    NotEnoughSpaceError,
    NotStagedError,
    OptionError,
    SourceChangedError,
)
from colabstage.h5.manifest import manifest_path
from colabstage.sources.remote import MountedFile
from tests.sources.servers import BucketService
from tests.support.staged import SMALL_BLOCK, contents, use_small_blocks

pytestmark = pytest.mark.torch

COUNT = 600
LIMIT, ROWS, BLOCK, BATCH = 3_500_000, 4000, SMALL_BLOCK, 32


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.mark.usefixtures("small_blocks")
def test_a_larger_pack_is_read_from_the_cache_in_part(tmp_path: Path) -> None:
    source, cache, local = tmp_path / "data.npz", tmp_path / "cache", tmp_path / "local"
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 32, 32), dtype=np.uint8)
    np.savez(source, x_train=x, y_train=np.arange(ROWS) % 10)
    places: dict[str, Any] = {"cache_dir": cache, "local_dir": local, "progress": False}
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz", compresslevel=1) as file:
        file.add(source, "data.npz")
    with ProcessPoolExecutor(1) as executor:
        for name, error, options in (
            ("data.npz", NotEnoughSpaceError, {"executor": executor}),
            ("data.tar.gz", NotEnoughSpaceError, {"disk_limit": "1 GB"}),
            ("data.npz", OptionError, {"streaming": True}),
            ("data.npz", OptionError, {"keep": "both"}),
        ):
            with pytest.raises(error, match=next(iter(options))):
                stage_dataset(tmp_path / name, **{"disk_limit": LIMIT, **places, **options})
    assert not [path for path in local.rglob("*") if path.is_file() and path.stat().st_size > 100_000]

    whole = stage_dataset(source, **places)
    assert whole.part is None
    # A complete local pack is used whatever the limit, but not silently.
    planned = str(plan_stage(source, disk_limit=LIMIT, cache_dir=cache, local_dir=local))
    over = stage_dataset(source, disk_limit=LIMIT, **places)
    assert (over.part, over.report.origin) == (None, "local")
    for said in (planned, "".join(over.report.notes)):
        assert "more than disk_limit=3.5 MB" in said
    assert f"colabstage cache purge {whole.path.stem} --only here --yes --local-dir {local}" in over.report.notes[0]
    assert not stage_dataset(source, disk_limit="1 GB", **places).report.notes
    expected, labels = whole["train"].read_batch(range(ROWS))
    purge_datasets(list_datasets(local_dir=local, cache_dir=None))
    assert plan_stage(source, disk_limit=LIMIT, cache_dir=cache, local_dir=local).action == "restore"
    data = stage_dataset(source, disk_limit=LIMIT, **places)
    assert data.part is not None
    assert (data.splits, data.report.origin) == (whole.splits, "cache")
    train = data["train"]
    np.testing.assert_array_equal(train.targets, labels)
    for start in range(0, ROWS, 250):
        rows = range(start, min(start + 250, ROWS))
        np.testing.assert_array_equal(train.read_batch(rows)[0], np.asarray(expected)[start : rows.stop])
    assert sum(len(y) for _, y in data.loader("train", 64)) == len(train)
    used = sum(path.stat().st_blocks * 512 for path in local.rglob("*"))
    assert used <= LIMIT < (cache / whole.path.name).stat().st_size
    assert data.figures["evicted"] > 0

    def parts() -> list[Any]:
        return [one for one in list_datasets(local_dir=local, cache_dir=None) if ".part-" in one.name]

    (listed,) = parts()
    assert (listed.place, listed.whole, listed.samples, listed.nbytes > 0) == ("here", False, {"train": ROWS}, True)
    assert purge_datasets([listed]).reasons == (f"'{listed.name}' is being read",)
    data.part.close()
    assert purge_datasets([listed]).nbytes == listed.nbytes
    assert parts() == []


@dataclass
class Gate:
    """Let so many reads of a mounted file through, and record them."""

    tickets: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    read: list[int] = field(default_factory=list)

    def open(self) -> None:
        self.tickets.release(100_000)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, read_range = Gate(), MountedFile.read_range

    def gated(self: MountedFile, offset: int, length: int | None) -> Iterator[bytes]:
        made.tickets.acquire()
        made.read.append(offset)
        yield from read_range(self, offset, length)

    monkeypatch.setattr(MountedFile, "read_range", gated)
    yield made
    made.open()


@pytest.fixture
def source(tmp_path: Path, small_blocks: None) -> Path:
    """Arrays whose first value is their row; their pack of 10 blocks is in the cache."""
    made = tmp_path / "data.npz"
    x = np.zeros((COUNT, 33, 33), np.uint8)
    x[:, 0, 0], x[:, 0, 1] = np.divmod(np.arange(COUNT), 256)
    np.savez(made, x_train=x, y_train=np.arange(COUNT) % 10)
    stage(made, tmp_path / "first", streaming=False)
    return made


def stage(source: Path, local: Path, *, streaming: bool = True) -> StagedDataset:
    return stage_dataset(
        source, local_dir=local, cache_dir=source.parent / "cache", progress=False, streaming=streaming
    )


def numbers(batches: Any) -> list[list[int]]:
    """Return the source rows in batches."""
    return [(256 * x.flatten(1)[:, 0].long() + x.flatten(1)[:, 1]).tolist() for x, _ in batches]


def test_a_pack_in_the_cache_gives_batches_while_it_is_copied(source: Path, gate: Gate, tmp_path: Path) -> None:
    """Batches only wait for their own blocks, the result is that of a copy, file by file, and the first epoch's order,
    and with it a loader's state, is the same during the copy and afterwards."""
    gate.tickets.release(5)
    data = stage(source, tmp_path / "a")
    assert data.ready.rows < data.ready.total == COUNT
    assert not data.path.exists()
    assert (data.report.origin, " copied." in str(data.report)) == ("cache", True)
    with pytest.raises(OptionError, match='shuffle="auto"'):
        data.loader("train", BATCH, shuffle=True)
    loader = data.loader("train", BATCH, num_workers=0)
    assert "rows are shuffled in windows" in str(loader.plan)
    batches = iter(loader)
    seen = numbers([next(batches)])
    state, sent = loader.state_dict(), pickle.dumps(data["train"])
    assert data.ready.rows < COUNT
    gate.open()
    seen += numbers(batches)
    assert sorted(row for batch in seen for row in batch) == list(range(COUNT))
    whole = data.wait(progress=False)
    assert (whole, data.ready.fraction, data.report.origin) == (data, 1, "cache")
    assert "already here" not in str(data.report)
    # A pickle made during the copy finds the file in its final place.
    np.testing.assert_array_equal(pickle.loads(sent)[:5][0][0], data["train"][:5][0][0])
    stage(source, tmp_path / "b", streaming=False)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != {}
    again = stage(source, tmp_path / "a")
    assert (again.report.origin, again.arriving) == ("local", None)
    resumed = again.loader("train", BATCH, num_workers=1)
    resumed.load_state_dict(state)
    assert numbers(resumed) == seen[1:]
    assert len(list(again.loader("train", BATCH, shuffle=True, strategy="memory"))) == -(-COUNT // BATCH)


def test_who_was_stopped_fetches_no_block_twice(source: Path, gate: Gate, tmp_path: Path) -> None:
    """Blocks that arrived before a stop are used by the next call."""
    gate.tickets.release(5)
    data = stage(source, tmp_path / "a")
    train = data["train"]
    next(iter(data.loader("train", BATCH, num_workers=0)))
    threading.Timer(0.05, gate.open).start()
    data.cancel()
    with pytest.raises(CancelledError, match="stage_dataset"):
        data.wait(progress=False)
    part: Any = train.reader.arrival
    left = np.flatnonzero(~part.file.state).tolist()
    with pytest.raises(CancelledError):
        train.read_batch(range(COUNT))
    gate.read.clear()
    again = stage(source, tmp_path / "a").wait(progress=False)
    assert 0 < len(left) < part.file.blocks
    assert sorted({offset // BLOCK for offset in gate.read}) == left
    assert "were already here" in str(again.report)


def test_a_plan_says_when_to_stream(source: Path) -> None:
    places: dict[str, Any] = {"cache_dir": None, "local_dir": source.parent / "other"}
    assert "streaming=True" not in str(plan_stage(source, **places))
    large = source.with_name("large")
    large.mkdir()
    np.lib.format.open_memmap(large / "x_train.npy", "w+", np.uint8, (2100, 100, 1000))  # a sparse file
    np.save(large / "y_train.npy", np.arange(2100) % 3)
    assert "streaming=True gives batches" in str(plan_stage(large, **places))


def test_a_pack_in_a_bucket_is_read_in_part(
    source: Path, s3: BucketService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows arrive through requests for blocks, each block once an epoch, and there is only room for some blocks.

    The bucket describes an object once, when it is opened, and not again for each block: its hash proves that the block
    is right, and if it is not, the error comes at the batch that needs it.
    """
    asked: list[str] = []
    ask = S3FileSystem._info

    async def counted(store: Any, path: str, *arguments: Any, **options: Any) -> Any:
        asked.append(path)
        return await ask(store, path, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_info", counted)
    (cached,) = (source.parent / "cache").glob("*.h5")
    for path in (cached, manifest_path(cached)):
        s3.put(f"packs/{path.name}", path.read_bytes())
    dataset = dataset_h5(f"s3://{s3.bucket}/packs/{cached.name}", disk_limit="2.75 MB", local_dir=tmp_path)
    part: Any = dataset.reader.arrival
    rows = numbers(make_loader(dataset, BATCH))
    assert sorted(row for batch in rows for row in batch) == list(range(COUNT))
    assert part.figures["evicted"] > 0
    assert 1 <= len(asked) <= 3
    for folder in (tmp_path / "partial").iterdir():
        shutil.rmtree(folder)
    with pytest.raises(NotStagedError, match=r"is gone\. Open or stage the dataset again") as gone:
        numbers(make_loader(dataset, BATCH))
    assert "are here" not in str(gone.value)
    part.close()
    dataset = dataset_h5(f"s3://{s3.bucket}/packs/{cached.name}", disk_limit="2.75 MB", local_dir=tmp_path)
    part = dataset.reader.arrival
    assert len(numbers(make_loader(dataset, BATCH)))
    s3.put(f"packs/{cached.name}", bytes(cached.stat().st_size))
    with pytest.raises((SourceChangedError, DamagedPackError)):
        numbers(make_loader(dataset, BATCH))
    part.close()
