"""A pack that is elsewhere and larger than `disk_limit`: every batch is the file's, and the disk holds no more."""

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
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from colabstage.diagnose.compare import compare_sources
from colabstage.errors import (
    DamagedPackError,
    NotEnoughSpaceError,
    OptionError,
    PackFormatError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
)
from colabstage.h5.manifest import Manifest, manifest_path, read_manifest, write_manifest
from colabstage.h5.schema import PackContent, ReservedDataset, create_pack
from colabstage.io.files import block_ranges, hash_ranges
from colabstage.load.dataset import dataset_h5
from colabstage.load.frameworks.arrays import ArrayBatches
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack
from colabstage.load.plan import ArrayOptions
from colabstage.sources.blocks import Edges
from colabstage.sources.in_part import BlockwiseFile, FileOfSet, FileSet, fixed_bytes
from colabstage.sources.order import Visits
from colabstage.sources.parse import local_source
from colabstage.sources.remote import RemoteFacts, RemoteFile
from tests.support.http_server import WebServer
from tests.support.staged import disk_sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLOCK, ROWS = 65536, 3000
SHAPE = (10, 33, 3)
# What index and edges need, and room for twelve of the 46 blocks.
LIMIT = 2_900_000 + 12 * BLOCK


@dataclass(frozen=True)
class Pack:
    """A pack, and its inputs as h5py reads them."""

    path: Path
    x: NDArray[Any]


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


def part_of(dataset: dataset_h5) -> PartialPack:
    assert isinstance(dataset.reader.arrival, PartialPack)
    return dataset.reader.arrival


def check_epoch(loader: Any, pack: Pack) -> list[int]:
    """Go through an epoch, compare all of it with the file, and return the rows in order."""
    seen: list[int] = []
    for (x, y), index in loader:
        np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), pack.x[index.numpy()])
        assert y.tolist() == (index % 2).tolist()
        seen += index.tolist()
    return seen


def test_epochs_from_a_web_server_are_the_files_and_stay_below_the_limit(pack: Pack, tmp_path: Path) -> None:
    """Three epochs over http are h5py's rows, each once; the disk never holds more; later epochs fetch what is not
    here; the next session begins with what is, and two datasets share it."""
    files = {"data.h5": pack.path, "data.h5.json": manifest_path(pack.path)}
    with WebServer(files) as server, disk_sampled(tmp_path) as taken:
        dataset = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        loader, part = make_loader(dataset, 50, seed=1), part_of(dataset)
        orders, fetched = [], [0]
        for _ in range(3):
            orders.append(check_epoch(loader, pack))
            fetched.append(part.figures["fetched"])
        assert [sorted(order) for order in orders] == [list(range(ROWS))] * 3
        assert len({tuple(order) for order in orders}) == 3
        # At its end an epoch has fetched what the next one begins with.
        size = pack.path.stat().st_size
        assert 0.9 * size < fetched[1] < 1.25 * size
        assert fetched[3] - fetched[1] < 2 * 0.95 * size
        again = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        assert part_of(again).path == part.path
        for mine, yours in zip(make_loader(dataset, 500, seed=2), make_loader(again, 500, seed=2), strict=True):
            assert mine[1].tolist() == yours[1].tolist()
        part_of(again).close()
        part.close()
        # Not before: what comes next is still being fetched, into the room of what was let go for it.
        here = part.figures["here"]
        resumed = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        assert resumed.figures["kept"] >= here > 8 * BLOCK
        # What earlier sessions fetched and evicted is not counted again.
        assert resumed.figures["fetched"] <= 2 * BLOCK
        assert resumed.figures["evicted"] == 0
        assert check_epoch(make_loader(resumed, 50, seed=1), pack) == orders[0]
        part_of(resumed).close()
    assert 10 * BLOCK < max(taken) <= LIMIT
    assert "rows are shuffled in windows" in str(loader.plan)


def test_an_epoch_goes_on_after_what_was_here_is_gone(pack: Pack, tmp_path: Path) -> None:
    """From a state the rest comes bit for bit, though other blocks are here by now; samples, labels and slices too."""
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path / "a", return_index=True)
    loader = make_loader(dataset, 64, seed=5)
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    state = loader.state_dict()
    left = [index.tolist() for _, index in batches]
    other = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path / "b", return_index=True)
    resumed = make_loader(other, 64, seed=5, num_workers=1)
    resumed.load_state_dict(state)
    assert [index.tolist() for _, index in resumed] == left
    assert dataset.targets.tolist() == [row % 2 for row in range(ROWS)]
    np.testing.assert_array_equal(dataset[ROWS - 1][0][0], pack.x[-1])
    np.testing.assert_array_equal(np.stack([x for (x, _), _ in dataset[100:400]]), pack.x[100:400])
    rows = [index.tolist() for _, index in make_loader(dataset, 500, shuffle=False)]
    assert list(chain.from_iterable(rows)) == list(range(ROWS))
    with pytest.raises(OptionError, match="at once"):
        dataset.read_batch(range(ROWS))
    for one in (dataset, other):
        part_of(one).close()


def test_a_pack_may_have_a_name_that_is_not_utf_8(pack: Pack, tmp_path: Path) -> None:
    """As Linux allows, and as a pack that is opened whole may."""
    place = tmp_path / os.fsdecode(b"photos-\xff.h5")
    shutil.copy(pack.path, place)
    shutil.copy(manifest_path(pack.path), manifest_path(place))
    dataset = dataset_h5(place, disk_limit=LIMIT, local_dir=tmp_path / "local")
    np.testing.assert_array_equal(dataset[7][0], pack.x[7])
    part_of(dataset).close()


def test_local_dir_is_no_address(pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a folder called s3: in the current one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="local_dir='s3://bucket' is an address"):
        dataset_h5(pack.path, disk_limit=LIMIT, local_dir="s3://bucket")
    with pytest.raises(OptionError, match="local_dir='s3://bucket' is an address"):
        compare_sources(tmp_path, local_dir="s3://bucket")
    assert not list(tmp_path.iterdir())


def test_processes_share_one_part(pack: Pack, tmp_path: Path) -> None:
    """A forked worker, and another dataset made of a pickle, read what one process fetches; when that ends, the next
    one goes on fetching."""
    first = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    workers: Any = DataLoader(first, 64, num_workers=1, multiprocessing_context="fork")
    for (x, _), index in workers:
        np.testing.assert_array_equal(x.numpy(), pack.x[index.numpy()])
    assert part_of(first).figures["evicted"] > 0
    second = pickle.loads(pickle.dumps(first))
    part_of(first).close()
    assert sorted(check_epoch(make_loader(second, 64, seed=4), pack)) == list(range(ROWS))
    part_of(second).close()


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


def test_a_source_that_lies_or_changes_is_an_error_at_its_batch(pack: Pack, tmp_path: Path) -> None:
    """Wrong bytes and another file are told where they are needed, with what is here; then the epoch goes on."""
    content = pack.path.read_bytes()
    wrong = content[: 8 * BLOCK] + bytes(10 * BLOCK) + content[18 * BLOCK :]
    files: dict[str, bytes | Path] = {"data.h5": content, "data.h5.json": manifest_path(pack.path)}
    with WebServer(files) as server:
        dataset = dataset_h5(server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        whole = [index.tolist() for _, index in make_loader(dataset, 50)]
        part_of(dataset).close()
        for number, (kind, words) in enumerate(
            [(SourceChangedError, "another"), (DamagedPackError, "not those that were written")]
        ):
            if kind is DamagedPackError:
                server.put("data.h5", wrong)
            dataset = dataset_h5(
                server.url("data.h5"), disk_limit=LIMIT, local_dir=tmp_path / f"{number}", return_index=True
            )
            loader = make_loader(dataset, 50)
            got: list[list[int]] = []

            def train(loader: Any = loader, got: Any = got, kind: Any = kind) -> None:
                for _, index in loader:
                    got.append(index.tolist())
                    if kind is SourceChangedError and len(got) == 1:
                        server.put("data.h5", content[:-1])

            with pytest.raises(kind, match=rf"{words}(.|\n)*blocks .* are here .* not fetched again"):
                train()
            assert got == whole[: len(got)]
            server.put("data.h5", content)
            loader.load_state_dict(loader.state_dict())
            assert got + [index.tolist() for _, index in loader] == whole
            part_of(dataset).close()


def test_a_file_that_is_cut_meanwhile_is_not_held(pack: Pack, tmp_path: Path) -> None:
    """It is opened again to see what it has become, and closed again each time; with the file back rows come, and
    closing a second time ends that too."""
    place = tmp_path / "data.h5"
    content = pack.path.read_bytes()
    place.write_bytes(content)
    shutil.copy(manifest_path(pack.path), manifest_path(place))
    dataset = dataset_h5(place, disk_limit=LIMIT, local_dir=tmp_path / "local", return_index=True)
    loader = make_loader(dataset, 50)
    batches = iter(loader)
    next(batches)
    place.write_bytes(content[:-1])
    with pytest.raises(SourceChangedError, match="are here"):
        list(batches)
    part_of(dataset).close()
    assert str(place) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())
    place.write_bytes(content)
    assert sorted(check_epoch(loader, pack)) == list(range(ROWS))
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
        from colabstage.load.dataset import dataset_h5
        from colabstage.load.loader import make_loader
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


def test_the_limit_that_is_named_will_do(pack: Pack, tmp_path: Path) -> None:
    """It is named at once, and no second time with more; an epoch of usual batches has room in it."""
    with pytest.raises(NotEnoughSpaceError) as caught:
        dataset_h5(pack.path, disk_limit="1 MB", local_dir=tmp_path)
    named = re.search(r"([0-9.]+ MB) are needed", str(caught.value))
    assert named is not None
    dataset = dataset_h5(pack.path, disk_limit=named[1], local_dir=tmp_path, return_index=True)
    assert sorted(check_epoch(make_loader(dataset, 64), pack)) == list(range(ROWS))
    part_of(dataset).close()


def test_near_the_least_limit_an_epoch_fetches_each_block_once(pack: Pack, tmp_path: Path) -> None:
    """Rows that are in two blocks keep their parts, although that leaves fewer whole blocks."""
    dataset = dataset_h5(pack.path, disk_limit=3_100_000, local_dir=tmp_path, return_index=True)
    part = part_of(dataset)
    assert 4 <= part.file.capacity < 6
    assert sorted(check_epoch(make_loader(dataset, 32), pack)) == list(range(ROWS))
    # At its end it has fetched some of what the next one begins with.
    most = pack.path.stat().st_size + part.file.capacity * BLOCK
    assert part.figures["fetched"] <= most
    part.close()


def test_what_cannot_be_says_so_before_anything_comes(pack: Pack, tmp_path: Path) -> None:
    """A limit that is too low names the one that would do; a file without manifest is refused."""
    with pytest.raises(NotEnoughSpaceError, match=r"disk_limit=1 MB is too little .* are needed"):
        dataset_h5(pack.path, disk_limit="1 MB", local_dir=tmp_path)
    bare = tmp_path / "bare.h5"
    bare.write_bytes(pack.path.read_bytes())
    with pytest.raises(SourceNotFoundError, match="is not there, or is incomplete"):
        dataset_h5(bare, disk_limit=LIMIT, local_dir=tmp_path)
    # What is missing is named: the file, where that is not there either.
    with pytest.raises(SourceNotFoundError, match=r"There is no file '.*none.h5'"):
        dataset_h5(tmp_path / "none.h5", disk_limit=LIMIT, local_dir=tmp_path)
    with pytest.raises(PackFormatError, match="is a folder; expected an HDF5 file"):
        dataset_h5(tmp_path, disk_limit=LIMIT, local_dir=tmp_path)
    with WebServer({"bare.h5": bare}) as server:
        with pytest.raises(SourceNotFoundError, match=r"There is nothing at .*none.h5'.*404"):
            dataset_h5(server.url("none.h5"), disk_limit=LIMIT, local_dir=tmp_path)
        with pytest.raises(SourceNotFoundError, match=r"bare.h5.json' is not there"):
            dataset_h5(server.url("bare.h5"), disk_limit=LIMIT, local_dir=tmp_path)
    dataset = dataset_h5(pack.path, disk_limit=LIMIT, local_dir=tmp_path)
    with pytest.raises(OptionError, match=r'46 of them.*shuffle="auto"'):
        make_loader(dataset, 8, shuffle=True)
    part_of(dataset).close()
    # With room for all of it, it is a file like any other once it is here.
    roomy = dataset_h5(pack.path, disk_limit="1 GB", local_dir=tmp_path, return_index=True)
    check_epoch(make_loader(roomy, 64), pack)
    assert part_of(roomy).complete
    assert len(list(make_loader(roomy, 64, shuffle=True, strategy="memory"))) == 47
    part_of(roomy).close()
