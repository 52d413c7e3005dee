"""A remote pack larger than `disk_limit`: every batch is the file's, and the disk holds no more than the limit.

This holds for one file and for several, on a path, a web server and behind a Google Drive share link.
"""

import contextlib
import os
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from colabstage import compare_sources, dataset_h5, make_loader, pack_dataset, to_numpy
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
)
from colabstage.h5.manifest import manifest_path, read_manifest, write_manifest
from tests.nurseries import Nurseries
from tests.support.http_knobs import WebFault
from tests.support.http_server import ConnectionHandler, WebServer
from tests.support.images import make_tree, noise
from tests.support.invariants import open_files
from tests.support.share_links import DriveShares, SharedItem
from tests.support.staged import SMALL_BLOCK, disk_sampled, use_small_blocks

BLOCK, ROWS = SMALL_BLOCK, 3000
SHAPE = (10, 33, 3)
# Enough for the index and the edges, and for twelve of the 46 blocks.
LIMIT = 2_900_000 + 12 * BLOCK

SET_ROWS, SET_LIMIT, SHARDS = 3000, 3_300_000, 5
FOLDER = "1FolderAbcdefghijklmnopqrstuvwxy0"
LINK = f"https://drive.google.com/drive/folders/{FOLDER}?usp=sharing"


@dataclass(frozen=True)
class Pack:
    """A pack, and its rows as h5py reads them."""

    path: Path
    x: NDArray[Any]
    y: NDArray[Any]
    files: list[Path] = field(default_factory=list)
    """All of its files, if it has several."""


def packed(arrays: dict[str, Any], path: Path, **options: Any) -> None:
    """Pack arrays in small blocks, most of whose ends cut a row in two."""
    np.savez(path.with_suffix(".npz"), **arrays)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_blocks(monkeypatch)
        pack_dataset(path.with_suffix(".npz"), path, progress=False, **options)


def make_pack(path: Path) -> Pack:
    """Make a pack of 46 blocks."""
    x = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    packed({"x_train": x, "y_train": np.arange(ROWS) % 2}, path)
    with h5py.File(path) as file:
        return Pack(path, file["X_train"][()], file["Y_train"][()])


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("pack") / "data.h5")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Five files of ten blocks; only three of them have rows of `test`."""
    folder = tmp_path_factory.mktemp("shards")
    x = np.random.default_rng(0).integers(0, 256, (SET_ROWS + 3, *SHAPE), dtype=np.uint8)
    y = np.arange(len(x))
    arrays = {"x_train": x[:-3], "y_train": y[:-3], "x_test": x[-3:], "y_test": y[-3:]}
    packed(arrays, folder / "one.h5")
    packed(arrays, folder / "set.h5", shards=SHARDS)
    with h5py.File(folder / "one.h5") as file:
        return Pack(folder / "one.h5", file["X_train"][()], file["Y_train"][()], files=sorted(folder.glob("set-*.h5")))


def part_of(dataset: dataset_h5) -> Any:
    """The object that fetches a dataset's blocks."""
    assert dataset.reader.arrival is not None
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
    """Where a pack is, its address, and a way to change its files."""

    pack: Pack
    files: list[Path]
    address: Any
    put: Callable[[str, bytes], object]
    local: Path
    limit: int
    refuse: Callable[[str], None] | None = None
    """Make the service refuse all further bytes of a file."""

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
    """An imitated Google Drive that this process uses as the real one."""
    with DriveShares(tmp_path) as shares:
        shares.hosts.lead(monkeypatch, tmp_path)
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
    pattern = files[0].name.replace("00000-of", "*-of")
    local = tmp_path / "local"
    if kind in {"file", "files"}:
        folder = tmp_path / "copied"
        folder.mkdir()
        for part in named.values():
            shutil.copy2(part, folder)
        copies = [folder / file.name for file in files]
        yield Place(found, copies, folder / pattern, lambda name, data: (folder / name).write_bytes(data), local, limit)
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
            yield Place(found, files, server.url(files[0].name).replace("00000-of", "*-of"), server.put, local, limit)


def at(*kinds: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", kinds, indirect=True)


# One file on the web goes through epochs below a limit in the tests that follow, too.
@at("shared folder", pytest.param("web file", marks=pytest.mark.long))
def test_epochs_are_the_rows_of_the_file_below_the_limit(place: Place) -> None:
    """Each row comes once an epoch, in another order each time, and the disk never holds more than the limit. Slices,
    labels and a pickle are the file's; the next session starts with the local blocks, and a state continues with the
    same batch."""
    pack = place.pack
    rows = len(pack.x)
    with disk_sampled(place.local) as taken:
        dataset = place.open()
        loader = make_loader(dataset, 50, seed=1)
        assert loader.plan.order.name == "arrival"
        first = check_epoch(loader, pack)
        fetched = dataset.figures["fetched"]
        # Each window draws from the whole file; an epoch's last fetches are the next one's first blocks.
        assert len({row * 5 // rows for row in first[:600]}) > 1
        assert 0.9 * place.size < fetched < 1.25 * place.size
        batches = iter(loader)
        second = check_epoch(islice(batches, 20), pack)
        state, left = loader.state_dict(), [index.tolist() for _, index in batches]
        second += chain.from_iterable(left)
        assert sorted(first) == sorted(second) == list(range(rows))
        assert first != second
        assert dataset.figures["fetched"] - fetched < 0.95 * place.size
        assert dataset.figures["evicted"] > 0
        np.testing.assert_array_equal(dataset.targets, pack.y)
        np.testing.assert_array_equal(np.stack([x for (x, _), _ in dataset[1150:1350]]), pack.x[1150:1350])
        np.testing.assert_array_equal(dataset[-1][0][0], pack.x[-1])
        with pytest.raises(OptionError):
            dataset.read_batch(range(rows))
        beside: dataset_h5 = pickle.loads(pickle.dumps(dataset))
        np.testing.assert_array_equal(beside.read_batch([0, rows // 2])[0], pack.x[[0, rows // 2]])
        part_of(beside).close()
        part_of(dataset).close()
        # Not earlier: the next blocks are still being fetched, into the room of evicted ones.
        here = dataset.figures["here"]
        again = place.open()
        assert again.figures["kept"] >= here > 8 * BLOCK
        # Blocks that earlier sessions fetched and evicted are not counted again.
        assert again.figures["fetched"] <= 2 * BLOCK * len(place.files)
        assert again.figures["evicted"] == 0
        resumed = make_loader(again, 50, seed=1, num_workers=1)
        resumed.load_state_dict(state)
        assert [index.tolist() for _, index in resumed] == left
        part_of(again).close()
    assert 10 * BLOCK < max(taken) <= place.limit


@at("files")
def test_processes_share_one_part(place: Place) -> None:
    """A forked worker, and a dataset from a pickle, read what one process fetches; when that ends, the next one
    fetches. A list of files is the same as a pattern of their names."""
    first = place.open()
    listed = dataset_h5(place.files, disk_limit=place.limit, local_dir=place.local)
    assert listed.reader.path == first.reader.path
    part_of(listed).close()
    workers: Any = DataLoader(first, 64, num_workers=1, multiprocessing_context="fork")
    for (x, _), index in workers:
        np.testing.assert_array_equal(x.numpy(), place.pack.x[index.numpy()])
    assert first.figures["evicted"] > 0
    second = pickle.loads(pickle.dumps(first))
    part_of(first).close()
    assert sorted(check_epoch(make_loader(second, 64, seed=4), place.pack)) == list(range(len(place.pack.x)))
    part_of(second).close()


@at("web files")
def test_a_split_that_some_files_have_nothing_of_is_whole(place: Place) -> None:
    test = place.open(split="test")
    assert sorted(y for (_, y), _ in test[:]) == [SET_ROWS, SET_ROWS + 1, SET_ROWS + 2]
    part_of(test).close()


@cache
def first_epoch(path: Path, files: tuple[Path, ...], limit: int) -> list[list[int]]:
    """Return the rows of each batch; the order does not depend on where the files are."""
    with tempfile.TemporaryDirectory() as local:
        known = dataset_h5(list(files) or path, disk_limit=limit, local_dir=local, return_index=True)
        rows = [index.tolist() for _, index in make_loader(known, 50)]
        part_of(known).close()
    return rows


def without_end(content: bytes) -> bytes:
    return content[:-1]


def with_wrong_blocks(content: bytes) -> bytes:
    return content[: 4 * BLOCK] + bytes(5 * BLOCK) + content[9 * BLOCK :]


@pytest.mark.parametrize(
    ("place", "changed", "early", "error", "named"),
    [
        ("web file", without_end, False, SourceChangedError, "data.h5"),
        ("file", with_wrong_blocks, True, DamagedPackError, "data.h5"),
        ("files", with_wrong_blocks, True, DamagedPackError, "set-00003-of-00005.h5"),
        ("shared folder", None, False, DriveQuotaError, ""),
    ],
    indirect=["place"],
)
def test_a_source_that_lies_changes_or_refuses_is_an_error_at_its_batch(
    place: Place, changed: Callable[[bytes], bytes] | None, early: bool, error: type[ColabstageError], named: str
) -> None:
    """No descriptor of the file stays open after the error; once the file is back, the epoch continues."""
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

    with pytest.raises(error, match=re.escape(named) or None):
        train()
    assert got == whole[: len(got)]
    part_of(dataset).close()
    assert not {*open_files().values()} & {*map(str, place.files)}
    for name, content in contents.items():
        place.put(name, content)
    loader.load_state_dict(loader.state_dict())
    assert got + [index.tolist() for _, index in loader] == whole
    part_of(dataset).close()


@at("files", pytest.param("web file", marks=pytest.mark.long))
def test_a_limit_that_is_too_low_names_the_one_that_will_do(place: Place) -> None:
    """Before anything is fetched; with that limit, each row comes once an epoch."""
    with disk_sampled(place.local) as taken, pytest.raises(NotEnoughSpaceError) as caught:
        place.open("1 MB")
    assert max(taken) < 1_000_000
    named = re.findall(r"[0-9.]+ MB", str(caught.value))
    dataset = place.open(max(named, key=lambda text: float(text.split()[0])))
    assert sorted(check_epoch(make_loader(dataset, 32), place.pack)) == list(range(len(place.pack.x)))
    part_of(dataset).close()


def test_near_the_least_limit_an_epoch_fetches_each_block_once(pack: Pack, tmp_path: Path) -> None:
    """Rows that span two blocks keep their parts, although that leaves room for fewer whole blocks; the next epoch uses
    blocks fetched ahead for it. The server's first responses fail, which costs nothing."""
    limit = 3_100_000
    with WebServer({"data.h5": pack.path, "data.h5.json": manifest_path(pack.path)}) as server:
        server.set_faults(WebFault(kind="status", status=503, retry_after="0", min_bytes=BLOCK, first=3))
        with disk_sampled(tmp_path) as taken:
            dataset = dataset_h5(server.url("data.h5"), disk_limit=limit, local_dir=tmp_path, return_index=True)
            loader = make_loader(dataset, 32)
            for epoch in (1, 2):
                assert sorted(check_epoch(loader, pack)) == list(range(ROWS))
                # At its end it has fetched what the next epoch starts with: fewer than six blocks, and eight more.
                assert dataset.figures["here"] <= 8 * BLOCK
                assert dataset.figures["fetched"] <= epoch * pack.path.stat().st_size + 14 * BLOCK
            part_of(dataset).close()
        asked = Counter(one.range for one in server.requests if one.path == "data.h5" and one.status == 206)
        assert max(taken) <= limit
        assert len(asked) > 40
        # The manifest is short, and comes whole with one answer.
        assert sum(one.path == "data.h5.json" and one.status == 206 for one in server.requests) == 1


def test_a_lower_limit_lets_nothing_go_that_is_being_written(pack: Pack, tmp_path: Path) -> None:
    """Another process may be writing it; complete blocks are evicted instead."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    dataset.read_batch(np.arange(400))
    part_of(dataset).file.close()  # what this process fetches would give back blocks that none is writing
    blocks = part_of(dataset).file._blocks
    (*others, last) = np.flatnonzero((blocks.state == 1) & (blocks.kept == 0)).tolist()
    assert others
    begin, end = blocks.layout.span(last)
    before = blocks.read(begin, end - begin)
    blocks.state[last] = 4  # being written
    blocks.settle(blocks.kept.astype(bool), blocks.edges, 1)
    assert blocks.read(begin, end - begin) == before
    assert int(blocks.state[last]) == 4
    assert not np.any(blocks.state[others] == 1)
    blocks.state[last] = 1
    part_of(dataset).close()


def test_what_another_process_completes_this_moment_is_not_given_back(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-written block, as a process that died leaves it, is checked again once no other process can write it: its
    rows would be zeros."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    blocks = part_of(dataset).file._blocks
    block = int(np.flatnonzero(part_of(dataset).file.state)[-1])
    begin, end = blocks.layout.span(block)
    whole, claim = int(blocks.state[block]), blocks.locks.claim
    before = blocks.read(begin, end - begin)
    assert any(before)

    def complete_then_claim(number: int) -> bool:
        blocks.state[block] = whole
        return bool(claim(number))

    with monkeypatch.context() as patched:
        patched.setattr(blocks.locks, "claim", complete_then_claim)
        blocks.state[block] = 4  # being written
        blocks.reclaim()
    assert blocks.read(begin, end - begin) == before
    assert int(blocks.state[block]) == whole
    part_of(dataset).close()


@at("web files")
def test_files_are_opened_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, hundreds of files at a service that takes a second to respond would take minutes."""
    answer, both, opened, met = ConnectionHandler._answer, threading.Barrier(2), Counter[str](), list[int]()

    def meeting(handler: ConnectionHandler) -> None:
        opened[handler.path] += 1
        # Each is opened with its first request; that of the first file is alone.
        if opened[handler.path] == 1 and handler.path.endswith(".h5") and "00000" not in handler.path and not met:
            with contextlib.suppress(threading.BrokenBarrierError):
                met.append(both.wait(2))
        answer(handler)

    monkeypatch.setattr(ConnectionHandler, "_answer", meeting)
    dataset = place.open()
    check_epoch(make_loader(dataset, 50, seed=1), place.pack)
    part_of(dataset).close()
    assert met


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


def at_an_empty_list(place: Place) -> None:
    place.address = []


@pytest.mark.parametrize(
    ("place", "change", "error", "named"),
    [
        ("file", unlink("data.h5.json"), SourceNotFoundError, "data.h5.json"),
        ("file", at_nothing, SourceNotFoundError, "none.h5"),
        ("file", at_folder, PackFormatError, "copied"),
        ("file", at_an_empty_list, OptionError, ""),
        ("web file", at_nothing, SourceNotFoundError, "none.h5"),
        ("files", other_blocks, PackFormatError, "32,768"),
        ("files", unlink("set-00001-of-00005.h5.json"), SourceNotFoundError, "00001-of-00005.h5.json"),
        ("files", unlink("set-00002-of-00005.h5"), SourceNotFoundError, "set-00002"),
    ],
    indirect=["place"],
)
def test_what_is_no_pack_is_refused_by_name(
    place: Place, change: Callable[[Place], None], error: type[ColabstageError], named: str
) -> None:
    change(place)
    with pytest.raises(error, match=re.escape(named) or None):
        place.open()


def test_a_link_that_leads_to_no_pack_is_refused(drive: DriveShares, shards: Pack, tmp_path: Path) -> None:
    """One file, a pack without its manifest, several packs, a link among others, a private folder."""
    first = shards.files[0]

    def refused(error: type[ColabstageError], named: str, link: Any = LINK) -> None:
        with pytest.raises(error, match=named or None):
            dataset_h5(link, disk_limit=LIMIT, local_dir=tmp_path / "local")

    shared(drive, {first.name: first})
    refused(SourceNotFoundError, "NAME.h5.json")
    files = {first.name: first, manifest_path(first).name: manifest_path(first)}
    shared(drive, files)
    file_id = drive.item(FOLDER).entries[0]
    refused(SourceNotFoundError, "", f"https://drive.google.com/file/d/{file_id}/view")
    refused(OptionError, "", [LINK, str(first)])
    shared(drive, {**files, "other.h5": first, "other.h5.json": manifest_path(first)})
    refused(OptionError, r"other\.h5, set-00000-of-00005\.h5")
    drive.add(replace(drive.item(FOLDER), state="private"))
    refused(SourceAccessError, "")
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
    """With enough room it is a file like any other, once it is local."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    with pytest.raises(OptionError, match='shuffle="auto"'):
        make_loader(dataset, 8, shuffle=True)
    part_of(dataset).close()
    roomy = dataset_h5(pack.path, disk_limit="1 GB", local_dir=tmp_path, return_index=True)
    check_epoch(make_loader(roomy, 64), pack)
    assert part_of(roomy).complete
    assert len(list(make_loader(roomy, 64, shuffle=True, strategy="memory"))) == 47
    part_of(roomy).close()


def test_arrays_for_other_frameworks_visit_blocks_as_make_loader_does(pack: Pack, tmp_path: Path) -> None:
    """In the order of a loader's batches; an epoch fetches little more than the pack's size."""
    whole = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    batches = to_numpy(whole, 50, seed=3, num_workers=2)
    assert batches.plan.order.name == "arrival"
    found = np.concatenate([x for x, _ in batches])
    assert whole.figures["fetched"] < 1.3 * pack.path.stat().st_size
    numbered = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    rows = check_epoch(make_loader(numbered, 50, seed=3), pack)
    assert sorted(rows) == list(range(ROWS))
    np.testing.assert_array_equal(found, pack.x[rows])
    for one in (whole, numbered):
        part_of(one).close()


def fill(filler: Path) -> None:
    """Fill a disk with a file."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_told_although_nothing_can_be_noted(pack: Pack, small_disk: Path) -> None:
    """At once, with its type; once there is room, the epoch continues, also after an older failure."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=small_disk, return_index=True)
    loader, filler = make_loader(dataset, 50, seed=7), small_disk / "filler"
    rows: list[int] = []

    def train() -> None:
        for number, (_, index) in enumerate(loader):
            rows.extend(index.tolist())
            if number == 5:
                fill(filler)

    for _ in range(2):
        with pytest.raises(NotEnoughSpaceError):
            train()
        filler.unlink()
        loader.load_state_dict(loader.state_dict())
    rows += chain.from_iterable(index.tolist() for _, index in loader)
    assert sorted(rows) == list(range(ROWS))
    part_of(dataset).close()


TRAINS = """
import os, sys
from colabstage import dataset_h5, make_loader
print(os.getpid(), flush=True)
loader = make_loader(dataset_h5(sys.argv[1], disk_limit=int(sys.argv[2]), local_dir=sys.argv[3]), 16)
while True:
    for number, _ in enumerate(loader):
        print(number, flush=True)
"""


def test_a_kill_leaves_no_wrong_row_and_nothing_is_fetched_twice(
    pack: Pack, tmp_path: Path, nurseries: Nurseries
) -> None:
    """After a kill during fetching and eviction, the disk is below the limit, and recorded blocks are right and not
    fetched again; blocks lost by a crash of the machine are detected and fetched again."""
    script = tmp_path / "trains.py"
    script.write_text(TRAINS, encoding="utf-8")
    local = tmp_path / "local"
    local.mkdir()
    command = nurseries.command("torch", "script", script, pack.path, str(LIMIT), local)
    with disk_sampled(local) as taken:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            trainer, *_ = [child.stdout.readline() for _ in range(231)]
            os.kill(int(trainer), signal.SIGKILL)
        dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=local, return_index=True)
        assert min(dataset.figures["kept"], dataset.figures["here"]) > 8 * BLOCK
        assert dataset.figures["fetched"] <= 2 * BLOCK
        check_epoch(make_loader(dataset, 64), pack)
        part_of(dataset).close()
        (table,) = local.rglob("blocks")
        noted = bytearray(table.read_bytes())
        # Records of another boot count once their bytes were hashed.
        noted[:8] = b"crashed!"
        table.write_bytes(noted)
        with dataset.reader.path.open("r+b") as file:
            file.seek(BLOCK // 2)
            file.write(b"lost")
        again = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=local, return_index=True)
        check_epoch(make_loader(again, 64), pack)
        part_of(again).close()
    assert max(taken) <= LIMIT


def test_encoded_images_come_in_part(tmp_path: Path) -> None:
    """Image files of different sizes, and their sizes, are those of the whole file."""
    source = make_tree(
        tmp_path / "photos",
        {f"{'ab'[row % 2]}/{row:03}.png": noise(row, size=(70, 60 + row % 7)) for row in range(120)},
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_blocks(monkeypatch)
        pack_dataset(source, tmp_path / "images.h5", encoding="encoded", progress=False)
    dataset = dataset_h5(
        tmp_path / "images.h5", disk_limit=2_700_000 + 8 * BLOCK, local_dir=tmp_path / "local", return_index=True
    )
    whole = dataset_h5(tmp_path / "images.h5")
    seen = []
    for (x, _), index in make_loader(dataset, 8):
        for image, row in zip(x, index.tolist(), strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), whole[row][0])
        seen += index.tolist()
    assert sorted(seen) == list(range(120))
    assert dataset.figures["evicted"] > 0
    part_of(dataset).close()
    whole.close()
