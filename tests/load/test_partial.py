"""A pack that is elsewhere and larger than `disk_limit`: every batch is the file's, and the disk holds no more.

The same is promised of one file and of several, by a path, from a web server and behind a share link of Google Drive.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from colabstage import compare_sources, dataset_h5, make_loader, pack_dataset
from colabstage.errors import (
    ColabstageError,
    DamagedPackError,
    DriveQuotaError,
    NotEnoughSpaceError,
    OptionError,
    PackFormatError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.h5.manifest import Manifest, manifest_path, read_manifest, write_manifest
from colabstage.h5.schema import PackContent, ReservedDataset, create_pack
from colabstage.io.files import block_ranges, hash_ranges
from colabstage.load.frameworks.arrays import ArrayBatches
from colabstage.load.partial import PartialPack
from colabstage.load.plan import ArrayOptions
from colabstage.sources.blocks import Edges
from colabstage.sources.in_part import BlockwiseFile, FileOfSet, FileSet, fixed_bytes
from colabstage.sources.order import Visits
from colabstage.sources.parse import local_source
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError
from tests.support.http_server import WebServer
from tests.support.share_links import DriveShares, SharedItem
from tests.support.staged import SMALL_BLOCK, disk_sampled, use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BLOCK, ROWS = SMALL_BLOCK, 3000
SHAPE = (10, 33, 3)
# What index and edges need, and room for twelve of the 46 blocks.
LIMIT = 2_900_000 + 12 * BLOCK

SET_ROWS, SET_LIMIT, SHARDS = 6000, 4_300_000, 5
FOLDER = "1FolderAbcdefghijklmnopqrstuvwxy0"
LINK = f"https://drive.google.com/drive/folders/{FOLDER}?usp=sharing"


@dataclass(frozen=True)
class Pack:
    """A pack, and its rows as h5py reads them."""

    path: Path
    x: NDArray[Any]
    y: NDArray[Any] = field(default_factory=lambda: np.arange(ROWS) % 2)
    files: list[Path] = field(default_factory=list)
    """All of its files, where it has several."""


def finish(path: Path) -> None:
    size = path.stat().st_size
    hashes = hash_ranges(path, block_ranges(size, BLOCK), threads=1)
    write_manifest(path, Manifest(size, BLOCK, tuple(hashes), samples={"train": ROWS}))


def make_pack(path: Path) -> Pack:
    """Make a pack of 46 small blocks, most of whose ends cut a row in two."""
    x = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    reserved = [ReservedDataset("X_train", x.shape, x.dtype), ReservedDataset("Y_train", (ROWS,), np.dtype(np.int64))]
    offsets = create_pack(path, PackContent(reserved, {"classes": ["a", "b"]}, {}, {}))
    with path.open("r+b") as file:
        for name, values in (("X_train", x), ("Y_train", np.arange(ROWS) % 2)):
            file.seek(offsets[name])
            file.write(values.tobytes())
    finish(path)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["X_train"][()], x)
    return Pack(path, x)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack") / "data.h5")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Five files of 19 small blocks; only three of them have rows of `test`."""
    folder = tmp_path_factory.mktemp("shards")
    x = np.random.default_rng(0).integers(0, 256, (SET_ROWS + 3, *SHAPE), dtype=np.uint8)
    y = np.arange(len(x))
    np.savez(folder / "data.npz", x_train=x[:-3], y_train=y[:-3], x_test=x[-3:], y_test=y[-3:])
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_blocks(monkeypatch)
        pack_dataset(folder / "data.npz", folder / "one.h5", progress=False)
        pack_dataset(folder / "data.npz", folder / "set.h5", shards=SHARDS, progress=False)
    with h5py.File(folder / "one.h5") as file:
        return Pack(folder / "one.h5", file["X_train"][()], file["Y_train"][()], files=sorted(folder.glob("set-*.h5")))


def part_of(dataset: dataset_h5) -> PartialPack:
    assert isinstance(dataset.reader.arrival, PartialPack)
    return dataset.reader.arrival


def check_epoch(loader: Any, pack: Pack) -> list[int]:
    """Go through an epoch, compare all of it with the file, and return the rows in order."""
    seen: list[int] = []
    for (x, y), index in loader:
        np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), pack.x[index.numpy()])
        np.testing.assert_array_equal(y.numpy(), pack.y[index.numpy()])
        seen += index.tolist()
    return seen


@dataclass
class Place:
    """Where a pack is, under what address, and a way to change its files."""

    pack: Pack
    files: list[Path]
    address: Any
    put: Callable[[str, bytes], None]
    local: Path
    limit: int
    refuse: Callable[[str], None] | None = None
    """Have the service give no more bytes of a file."""

    def open(self, limit: int | str = 0, **options: Any) -> dataset_h5:
        return dataset_h5(
            self.address, disk_limit=limit or self.limit, local_dir=self.local, return_index=True, **options
        )

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def item_id(name: str) -> str:
    return f"1Item{name.replace('.', '_'):0>28}"


def shared(drive: DriveShares, files: dict[str, Path]) -> None:
    """Share a folder of files."""
    items = [SharedItem(item_id(name), name, content=path.read_bytes()) for name, path in sorted(files.items())]
    drive.add(*items, SharedItem(FOLDER, "photos", kind="folder", entries=tuple(item.id for item in items)))


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield shares


@pytest.fixture
def place(
    request: pytest.FixtureRequest, pack: Pack, shards: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A pack at the kind of place that the test's parameter names."""
    kind = request.param
    use_small_blocks(monkeypatch)
    one = kind in {"file", "web file"}
    found, limit = (pack, LIMIT) if one else (shards, SET_LIMIT)
    files = [pack.path] if one else shards.files
    named = {part.name: part for file in files for part in (file, manifest_path(file))}
    pattern = files[0].name if one else files[0].name.replace("00000-of", "*-of")
    local = tmp_path / "local"
    if kind in {"file", "files"}:
        folder = tmp_path / "copied"
        folder.mkdir()
        for part in named.values():
            shutil.copy2(part, folder)
        copies = [folder / file.name for file in files]
        yield Place(found, copies, folder / pattern, lambda name, data: write(folder / name, data), local, limit)
    elif kind == "shared folder":
        drive: DriveShares = request.getfixturevalue("drive")
        shared(drive, named)

        def put(name: str, data: bytes) -> None:
            drive.add(replace(drive.item(item_id(name)), content=data, state="public"))

        def refuse(name: str) -> None:
            drive.add(replace(drive.item(item_id(name)), state="quota"))

        yield Place(found, files, LINK, put, local, limit, refuse)
    else:
        with WebServer(dict(named)) as server:
            address = server.url(files[0].name).replace("00000-of", "*-of")
            yield Place(found, files, address, server.put, local, limit)


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def at(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", kinds, indirect=True)


@at("file", "web file", "web files", "shared folder")
def test_epochs_are_the_rows_of_the_file_below_the_limit(place: Place) -> None:
    """Each row once an epoch, in another order each time; the disk never holds more than the limit; a slice, labels
    and a pickle are the file's; the next session begins with what is here, and a state goes on with the same batch."""
    pack = place.pack
    rows = len(pack.x)
    with disk_sampled(place.local) as taken:
        dataset = place.open()
        loader, part = make_loader(dataset, 50, seed=1), part_of(dataset)
        assert loader.plan.order.name == "arrival"
        assert "windows" in str(loader.plan)
        orders, fetched = [], [0]
        for _ in range(3):
            orders.append(check_epoch(loader, pack))
            fetched.append(part.figures["fetched"])
        assert [sorted(order) for order in orders] == [list(range(rows))] * 3
        assert len({tuple(order) for order in orders}) == 3
        # Each window draws from all over, and at its end an epoch has fetched what the next one begins with.
        assert len({row * 5 // rows for row in orders[0][:600]}) > 1
        assert 0.9 * place.size < fetched[1] < 1.25 * place.size
        assert fetched[3] - fetched[1] < 2 * 0.95 * place.size
        assert part.figures["evicted"] > 0
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        state, left = loader.state_dict(), [index.tolist() for _, index in batches]
        np.testing.assert_array_equal(dataset.targets, pack.y)
        np.testing.assert_array_equal(np.stack([x for (x, _), _ in dataset[1150:1350]]), pack.x[1150:1350])
        np.testing.assert_array_equal(dataset[-1][0][0], pack.x[-1])
        assert [y.tolist() for _, y in make_loader(dataset, 500, shuffle=False)][1] == list(range(500, 1000))
        with pytest.raises(OptionError, match="at once"):
            dataset.read_batch(range(rows))
        beside: dataset_h5 = pickle.loads(pickle.dumps(dataset))
        assert part_of(beside).paths == part.paths
        np.testing.assert_array_equal(beside.read_batch([0, rows // 2])[0], pack.x[[0, rows // 2]])
        part_of(beside).close()
        part.close()
        # Not before: what comes next is still being fetched, into the room of what was let go for it.
        here = part.figures["here"]
        again = place.open()
        assert again.figures["kept"] >= here > 8 * BLOCK
        # What earlier sessions fetched and evicted is not counted again.
        assert again.figures["fetched"] <= 2 * BLOCK * len(place.files)
        assert again.figures["evicted"] == 0
        resumed = make_loader(again, 50, seed=1, num_workers=1)
        resumed.load_state_dict(state)
        assert [index.tolist() for _, index in resumed] == left
        part_of(again).close()
    assert 10 * BLOCK < max(taken) <= place.limit


@at("file", "files")
def test_processes_share_one_part(place: Place) -> None:
    """A forked worker, and another dataset made of a pickle, read what one process fetches; when that ends, the next
    one goes on fetching. A list of files is what a pattern of their names is."""
    first = place.open()
    listed = dataset_h5(place.files, disk_limit=place.limit, local_dir=place.local)
    assert part_of(listed).paths == part_of(first).paths
    part_of(listed).close()
    workers: Any = DataLoader(first, 64, num_workers=1, multiprocessing_context="fork")
    for (x, _), index in workers:
        np.testing.assert_array_equal(x.numpy(), place.pack.x[index.numpy()])
    assert part_of(first).figures["evicted"] > 0
    second = pickle.loads(pickle.dumps(first))
    part_of(first).close()
    assert sorted(check_epoch(make_loader(second, 64, seed=4), place.pack)) == list(range(len(place.pack.x)))
    part_of(second).close()


@at("files")
def test_a_split_that_some_files_have_nothing_of_is_whole(place: Place) -> None:
    test = place.open(split="test")
    assert sorted(y for (_, y), _ in test[:]) == [SET_ROWS, SET_ROWS + 1, SET_ROWS + 2]
    part_of(test).close()


@cache
def first_epoch(path: Path, files: tuple[Path, ...], limit: int) -> list[list[int]]:
    """Return the rows of each batch; the order is the same wherever the files are."""
    with tempfile.TemporaryDirectory() as local:
        known = dataset_h5(list(files) or path, disk_limit=limit, local_dir=local, return_index=True)
        rows = [index.tolist() for _, index in make_loader(known, 50)]
        part_of(known).close()
    return rows


def without_end(content: bytes) -> bytes:
    return content[:-1]


def with_wrong_blocks(content: bytes) -> bytes:
    return content[: 8 * BLOCK] + bytes(10 * BLOCK) + content[18 * BLOCK :]


@pytest.mark.parametrize(
    ("place", "changed", "early", "error", "words"),
    [
        ("file", without_end, False, SourceChangedError, ""),
        ("web file", without_end, False, SourceChangedError, "another"),
        ("web file", with_wrong_blocks, True, DamagedPackError, "written"),
        ("files", with_wrong_blocks, True, DamagedPackError, r"set-00003-of-00005\.h5' is damaged"),
        ("shared folder", None, False, DriveQuotaError, ""),
    ],
    indirect=["place"],
)
def test_a_source_that_lies_changes_or_refuses_is_an_error_at_its_batch(
    place: Place, changed: Callable[[bytes], bytes] | None, early: bool, error: type[ColabstageError], words: str
) -> None:
    """Its message says what is here; nothing of the file is held meanwhile; with the file back the epoch goes on."""
    whole = first_epoch(place.pack.path, tuple(place.pack.files), place.limit)
    spoilt = [file.name for file in place.files[-2:-1] or place.files]
    contents = {file.name: file.read_bytes() for file in place.files}

    def spoil() -> None:
        for name in spoilt if changed is not None else contents:
            if changed is None:
                assert place.refuse is not None
                place.refuse(name)
            else:
                place.put(name, changed(contents[name]))

    if early:
        spoil()
    dataset = place.open()
    loader = make_loader(dataset, 50)
    got: list[list[int]] = []

    def train() -> None:
        for _, index in loader:
            got.append(index.tolist())
            if len(got) == 1 and not early:
                spoil()

    with pytest.raises(error, match=rf"{words}(.|\n)*blocks .* are here"):
        train()
    assert got == whole[: len(got)]
    part_of(dataset).close()
    assert not {os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()} & set(map(str, place.files))
    for name, content in contents.items():
        place.put(name, content)
    loader.load_state_dict(loader.state_dict())
    assert got + [index.tolist() for _, index in loader] == whole
    part_of(dataset).close()


@at("file", "files")
def test_a_limit_that_is_too_low_names_the_one_that_will_do(place: Place) -> None:
    """Before anything comes; with that limit, each row comes once an epoch."""
    with disk_sampled(place.local) as taken, pytest.raises(NotEnoughSpaceError, match="are needed") as caught:
        place.open("1 MB")
    assert max(taken) < 1_000_000
    named = re.search(r"([0-9.]+ MB) are needed", str(caught.value))
    assert named is not None
    dataset = place.open(named[1])
    assert sorted(check_epoch(make_loader(dataset, 32), place.pack)) == list(range(len(place.pack.x)))
    part_of(dataset).close()


def test_near_the_least_limit_an_epoch_fetches_each_block_once(pack: Pack, tmp_path: Path) -> None:
    """Rows that are in two blocks keep their parts, although that leaves fewer whole blocks."""
    dataset = dataset_h5(pack.path, disk_limit=3_100_000, local_dir=tmp_path, return_index=True)
    part = part_of(dataset)
    assert 4 <= part.file.capacity < 6
    assert sorted(check_epoch(make_loader(dataset, 32), pack)) == list(range(ROWS))
    # At its end it has fetched some of what the next one begins with.
    assert part.figures["fetched"] <= pack.path.stat().st_size + part.file.capacity * BLOCK
    part.close()


def unlink(name: str) -> Callable[[Place], None]:
    return lambda place: (place.files[0].parent / name).unlink()


def other_blocks(place: Place) -> None:
    manifest = read_manifest(place.files[1])
    assert manifest is not None
    hashes = np.resize(manifest.hashes, -(-manifest.size // 32768)).tolist()
    write_manifest(place.files[1], type(manifest)(manifest.size, 32768, tuple(hashes)))


def at_folder(place: Place) -> None:
    place.address = place.files[0].parent


def at_nothing(place: Place) -> None:
    place.address = str(place.address).replace("data.h5", "none.h5")


@pytest.mark.parametrize(
    ("place", "change", "error", "words"),
    [
        ("file", unlink("data.h5.json"), SourceNotFoundError, "data.h5.json"),
        ("file", at_nothing, SourceNotFoundError, "none.h5"),
        ("file", at_folder, PackFormatError, "HDF5 file"),
        ("web file", at_nothing, SourceNotFoundError, "none.h5'.*404"),
        ("files", other_blocks, PackFormatError, "32,768.*65,536"),
        ("files", unlink("set-00001-of-00005.h5.json"), SourceNotFoundError, "00001-of-00005.h5.json"),
        ("files", unlink("set-00002-of-00005.h5"), SourceNotFoundError, "missing: set-00002"),
    ],
    indirect=["place"],
)
def test_what_is_no_pack_is_refused_by_name(
    place: Place, change: Callable[[Place], None], error: type[ColabstageError], words: str
) -> None:
    change(place)
    with pytest.raises(error, match=words):
        place.open()


def test_an_address_without_a_manifest_and_an_empty_list_are_refused(pack: Pack, tmp_path: Path) -> None:
    with (
        WebServer({"bare.h5": pack.path}) as server,
        pytest.raises(SourceNotFoundError, match=r"bare.h5.json"),
    ):
        dataset_h5(server.url("bare.h5"), disk_limit=LIMIT, local_dir=tmp_path)
    with pytest.raises(OptionError, match="empty"):
        dataset_h5([], disk_limit=LIMIT, local_dir=tmp_path)


def test_a_link_that_leads_to_no_pack_says_what_to_share(drive: DriveShares, shards: Pack, tmp_path: Path) -> None:
    """One file, a pack without its manifest, several packs, a link among others, a folder that is not public."""
    first = shards.files[0]

    def refused(error: type[ColabstageError], words: str, link: Any = LINK) -> None:
        with pytest.raises(error, match=words):
            dataset_h5(link, disk_limit=LIMIT, local_dir=tmp_path / "local")

    shared(drive, {first.name: first})
    refused(SourceNotFoundError, r"NAME\.h5 and NAME\.h5\.json, and give the link to that folder")
    files = {first.name: first, manifest_path(first).name: manifest_path(first)}
    shared(drive, files)
    file_link = f"https://drive.google.com/file/d/{drive.item(FOLDER).entries[0]}/view"
    refused(SourceNotFoundError, "no packed file with its manifest", file_link)
    refused(OptionError, "a share link in a list", [LINK, str(first)])
    shared(drive, {**files, "other.h5": first, "other.h5.json": manifest_path(first)})
    refused(OptionError, r"holds several packs \(2: other\.h5, set-00000-of-00005\.h5\)")
    drive.add(replace(drive.item(FOLDER), state="private"))
    refused(SourceAccessError, "photos|shared|public|anyone")
    assert not (tmp_path / "local").exists()


def test_local_dir_is_no_address(pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a folder called s3: in the current one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="local_dir='s3://bucket'"):
        dataset_h5(pack.path, disk_limit=LIMIT, local_dir="s3://bucket")
    with pytest.raises(OptionError, match="local_dir='s3://bucket'"):
        compare_sources(tmp_path, local_dir="s3://bucket")
    assert not list(tmp_path.iterdir())


def test_a_full_shuffle_needs_all_of_a_pack(pack: Pack, tmp_path: Path) -> None:
    """With room for all of it, it is a file like any other once it is here."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    with pytest.raises(OptionError, match=r'46 of them.*shuffle="auto"'):
        make_loader(dataset, 8, shuffle=True)
    part_of(dataset).close()
    roomy = dataset_h5(pack.path, disk_limit="1 GB", local_dir=tmp_path, return_index=True)
    check_epoch(make_loader(roomy, 64), pack)
    assert part_of(roomy).complete
    assert len(list(make_loader(roomy, 64, shuffle=True, strategy="memory"))) == 47
    part_of(roomy).close()


def test_arrays_for_other_frameworks_visit_blocks_as_make_loader_does(pack: Pack, tmp_path: Path) -> None:
    """What `to_keras` and `to_tf_data` hand out comes in the order of a loader's batches, from several threads too;
    each epoch fetches little more than once, and nothing of it waits for any row."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    part = part_of(dataset)
    batches = ArrayBatches(dataset, 50, ArrayOptions(seed=3, num_workers=2))
    assert batches.plan.order.name == "arrival"
    with ThreadPoolExecutor(3) as threads:
        for epoch in (0, 1):
            x = [one[0] for one in threads.map(partial(batches.read, epoch), range(len(batches)))]
            rows = np.concatenate([batches.rows(epoch, number) for number in range(len(batches))])
            np.testing.assert_array_equal(np.concatenate(x), pack.x[rows])
            assert sorted(rows.tolist()) == list(range(ROWS))
    assert part.figures["fetched"] < 2.5 * pack.path.stat().st_size
    numbered = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    loader = make_loader(numbered, 50, seed=3)
    loader.set_epoch(1)
    assert rows.tolist() == check_epoch(loader, pack)
    for one in (dataset, numbered):
        part_of(one).close()


@pytest.mark.long
def test_processes_that_start_anew_make_the_same_batches(pack: Pack, tmp_path: Path) -> None:
    """Batches that worker processes make are those of this one, in the same order."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    loader = make_loader(dataset, 64, seed=3)
    stock = DataLoader(
        loader.dataset,
        64,
        sampler=loader.sampler,
        collate_fn=loader.collate_fn,
        num_workers=2,
        multiprocessing_context="spawn",
    )
    assert check_epoch(stock, pack) == check_epoch(loader, pack)
    part_of(dataset).close()


class Silent(RemoteFile):
    """A file of which nothing comes."""

    facts = RemoteFacts("nobody", "data.h5", None)

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        time.sleep(0.5)
        yield b""

    def close(self) -> None: ...


def test_a_source_that_is_silent_is_an_error_within_its_time(pack: Pack, tmp_path: Path) -> None:
    """Nobody waits longer than was said for a block of a source that gives nothing."""
    manifest = read_manifest(pack.path)
    assert manifest is not None
    files = FileSet([FileOfSet(local_source(pack.path), "data.h5", manifest)])
    silent = BlockwiseFile(files, tmp_path, LIMIT, openers=[Silent], stall_timeout_s=0.2)
    with pytest.raises(SourceReadError, match="has not moved"), silent.hold(np.array([3])):
        pass
    silent.close()


class Broken(RemoteFile):
    """A file whose first block fails at once while it is broken, and any other once it is told to."""

    facts = RemoteFacts("nobody", "data.h5", None)

    def __init__(self, content: bytes) -> None:
        self.content, self.broken = content, True
        self.asked, self.told = threading.Event(), threading.Event()

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        assert length is not None
        if self.broken:
            if offset:
                self.asked.set()
                assert self.told.wait(30)
            raise SourceReadError("It broke off")
        yield self.content[offset : offset + length]

    def close(self) -> None: ...


def test_who_asks_again_is_not_failed_by_what_was_under_way(pack: Pack, tmp_path: Path) -> None:
    """A try that began before the failure was told may end long after it, when the source is as it was again."""
    manifest = read_manifest(pack.path)
    assert manifest is not None
    files = FileSet([FileOfSet(local_source(pack.path), "data.h5", manifest)])
    source = Broken(pack.path.read_bytes())
    file = BlockwiseFile(files, tmp_path, LIMIT, openers=[lambda: source])
    file.wish(np.array([3]))
    assert source.asked.wait(30)
    with pytest.raises(SourceReadError, match="It broke off"), file.hold(np.array([0])):
        pass
    source.broken = False
    late = threading.Timer(0.2, source.told.set)
    late.start()
    with file.hold(np.array([0, 3])):
        assert file.state[[0, 3]].all()
    late.join()
    file.close()


def fill(filler: Path) -> None:
    """Take all room of a disk by a file."""
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):  # noqa: PT012
        while True:
            file.write(bytes(4096))


def test_a_disk_that_is_full_before_the_next_epoch_is_announced_is_told_to_the_loop(
    pack: Pack, small_disk: Path
) -> None:
    """The thread that announces it is nobody's to hear of; once there is room, this epoch and the next are whole."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=small_disk, return_index=True)
    loader, filler = make_loader(dataset, 50, seed=7, num_workers=0), small_disk / "filler"
    batches = iter(loader)
    fill(filler)
    # Not where as many blocks as may be here had come by then: each takes the place of another.
    with contextlib.suppress(NotEnoughSpaceError):
        list(batches)
    for thread in [one for one in threading.enumerate() if one.name == "colabstage-next-epoch"]:
        thread.join(30)
    filler.unlink()
    loader.load_state_dict(loader.state_dict())
    list(loader)
    assert sorted(check_epoch(loader, pack)) == list(range(ROWS))
    part_of(dataset).close()


def test_a_full_disk_is_told_although_nothing_can_be_noted(pack: Pack, small_disk: Path) -> None:
    """At once, by its type, with what is here; once there is room, the epoch goes on, also after an older failure."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=small_disk, return_index=True)
    loader, filler = make_loader(dataset, 50, seed=7), small_disk / "filler"
    rows: list[int] = []

    def train() -> None:
        for number, (_, index) in enumerate(loader):
            rows.extend(index.tolist())
            if number == 5:
                fill(filler)

    for _ in range(2):
        with pytest.raises(NotEnoughSpaceError, match=r"full(.|\n)*blocks .* are here"):
            train()
        filler.unlink()
        loader.load_state_dict(loader.state_dict())
    rows += chain.from_iterable(index.tolist() for _, index in loader)
    assert sorted(rows) == list(range(ROWS))
    part_of(dataset).close()


class Counted(RemoteFile):
    """A file that counts the blocks that are asked for."""

    facts = RemoteFacts("counted", "data.h5", None)

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[int] = []

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        assert length is not None
        self.asked.append(offset // BLOCK)
        yield self.content[offset : offset + length]

    def wait_for(self, blocks: int) -> None:
        """Wait until so many have been asked for."""
        deadline = time.monotonic() + 30
        while len(self.asked) < blocks:
            assert time.monotonic() < deadline, self.asked
            time.sleep(0.01)

    def close(self) -> None: ...


class FailingFirst(Counted):
    """A file whose first three requests fail for the moment."""

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        if len(self.asked) < 3:
            self.asked.append(offset // BLOCK)
            raise TransientError("busy")
        yield from super().read_range(offset, length)


@pytest.mark.timeout(60)
def test_it_goes_on_after_the_first_requests_failed(pack: Pack, tmp_path: Path) -> None:
    """Nothing has arrived by then, so how fast the line is is not known; and nobody waits for a block in particular."""
    source = FailingFirst(pack.path.read_bytes())
    file = few_blocks(pack, tmp_path, source, 8)
    turns = np.arange(8)
    expected = file.expect(Visits(turns, turns, turns))
    assert expected is not None
    source.wait_for(3 + 8)
    expected.close()
    file.close()


def few_blocks(pack: Pack, folder: Path, source: Counted, capacity: int) -> BlockwiseFile:
    """Open a pack with room for so many blocks at once."""
    manifest = read_manifest(pack.path)
    assert manifest is not None
    files = FileSet([FileOfSet(local_source(pack.path), "data.h5", manifest)])
    limit = fixed_bytes(0, files.blocks, 1, BLOCK) + capacity * BLOCK
    file = BlockwiseFile(files, folder, limit, openers=[lambda: source])
    file.settle(np.zeros(files.blocks, np.bool_), Edges.none(files.blocks), least=capacity)
    assert file.capacity == capacity
    return file


def test_a_limit_of_few_blocks_leaves_as_many_under_way_as_any(pack: Pack, tmp_path: Path) -> None:
    """Eight blocks more than there is room for are asked for before any is read; each is fetched once, written where it
    belongs when there is room, and the disk never holds more than the limit."""
    source = Counted(pack.path.read_bytes())
    file = few_blocks(pack, tmp_path, source, 4)
    turns = np.arange(file.blocks)
    with disk_sampled(tmp_path) as taken:
        expected = file.expect(Visits(turns, turns, turns))
        assert expected is not None
        source.wait_for(4 + 8)
        for block in turns.tolist():
            with file.hold(np.array([block])):
                length = int(file.files.lengths[block])
                assert file.read(block * BLOCK, length) == source.content[block * BLOCK :][:length]
            expected.reached(block + 1)
        expected.close()
        file.close()
    assert sorted(source.asked) == turns.tolist()
    assert file.limit is not None
    assert max(taken) <= file.limit


def test_what_came_without_room_between_two_epochs_is_not_fetched_again(pack: Pack, tmp_path: Path) -> None:
    """An epoch's reader goes before the next one comes; what was under way for both waits for it."""
    source = Counted(pack.path.read_bytes())
    file = few_blocks(pack, tmp_path, source, 4)
    turns = np.arange(20)
    gone = file.expect(Visits(turns, turns, turns))
    assert gone is not None
    source.wait_for(4 + 8)
    gone.close()
    time.sleep(0.3)
    expected = file.expect(Visits(turns, turns, turns))
    assert expected is not None
    for block in turns.tolist():
        with file.hold(np.array([block])):
            assert file.read(block * BLOCK, 16) == source.content[block * BLOCK :][:16]
        expected.reached(block + 1)
    expected.close()
    file.close()
    assert sorted(source.asked) == turns.tolist()


def test_what_came_for_a_reader_that_has_gone_makes_way(pack: Pack, tmp_path: Path) -> None:
    """Blocks that came without room are forgotten with the reader that expected them; another gets its own."""
    source = Counted(pack.path.read_bytes())
    file = few_blocks(pack, tmp_path, source, 4)
    turns = np.arange(20)
    gone = file.expect(Visits(turns, turns, turns))
    assert gone is not None
    source.wait_for(4 + 8)
    gone.close()
    others = np.arange(40, 20, -1)
    expected = file.expect(Visits(others, turns, turns))
    assert expected is not None
    for turn, block in enumerate(others.tolist()):
        with file.hold(np.array([block])):
            assert file.read(block * BLOCK, 16) == source.content[block * BLOCK :][:16]
        expected.reached(turn + 1)
    expected.close()
    file.close()
    # What was dropped has come all the same.
    assert file.figures["fetched"] <= len(source.asked) * BLOCK


def test_a_kill_leaves_no_wrong_row_and_nothing_is_fetched_twice(pack: Pack, tmp_path: Path) -> None:
    """Killed in the middle of fetching and letting go, the disk is below the limit, what was noted is right, and is
    not fetched again; notes of another boot count once their bytes were hashed."""
    code = """
        import sys
        from colabstage import dataset_h5
        from colabstage import make_loader
        loader = make_loader(dataset_h5(sys.argv[1], disk_limit=int(sys.argv[2]), local_dir=sys.argv[3]), 16)
        while True:
            for number, _ in enumerate(loader):
                print(number, flush=True)
    """
    arguments = [str(pack.path), str(LIMIT), str(tmp_path)]
    with disk_sampled(tmp_path) as taken:
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(300):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        part = part_of(dataset)
        found = part.figures["kept"]
        assert 8 * BLOCK < found <= part.figures["here"]
        fetched = part.figures["fetched"]
        with part.file.hold(np.flatnonzero(part.file.state)):
            assert part.figures["fetched"] == fetched
        check_epoch(make_loader(dataset, 64), pack)
        part.close()
        here = np.flatnonzero(part.file.state)
        table = part.path.with_name("blocks")
        noted = bytearray(table.read_bytes())
        noted[:8] = b"crashed!"
        table.write_bytes(noted)
        with part.path.open("r+b") as file:
            file.seek(BLOCK // 2)
            file.write(b"lost")
        dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        # Block 0 was lost, and came again when its index was read.
        fetched = part_of(dataset).figures["fetched"]
        with part_of(dataset).file.hold(here):
            assert part_of(dataset).figures["fetched"] <= fetched + BLOCK
        check_epoch(make_loader(dataset, 64), pack)
        part_of(dataset).close()
    assert max(taken) <= LIMIT


def test_encoded_images_come_in_part(tmp_path: Path) -> None:
    """Image files of many sizes, and their sizes, are those of the whole file."""
    rng = np.random.default_rng(3)
    images = []
    for row in range(120):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (60 + row % 7, 70, 3), dtype=np.uint8)).save(
            buffer, "PNG", compress_level=0
        )
        images.append(buffer.getvalue())
    ends = np.cumsum([0, *map(len, images)])
    path = tmp_path / "images.h5"
    reserved = [ReservedDataset("X_train/bytes", (int(ends[-1]),), np.dtype(np.uint8))]
    offsets = create_pack(path, PackContent(reserved, {"X_train/offsets": ends}, {}, {}))
    with path.open("r+b") as file:
        file.seek(offsets["X_train/bytes"])
        file.write(b"".join(images))
    finish(path)
    dataset = dataset_h5(path, disk_limit=2_700_000 + 8 * BLOCK, local_dir=tmp_path, return_index=True)
    whole = dataset_h5(path)
    seen = []
    for (x, _), index in make_loader(dataset, 8):
        for image, row in zip(x, index.tolist(), strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), whole[row][0])
        seen += index.tolist()
    assert sorted(seen) == list(range(120))
    assert part_of(dataset).figures["evicted"] > 0
    part_of(dataset).close()
    whole.close()
