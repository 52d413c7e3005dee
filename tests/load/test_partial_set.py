"""A pack of several files that is elsewhere: read in part, under one limit, as one file of all rows would be."""

from __future__ import annotations

import pickle
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

from colabstage.errors import (
    DamagedPackError,
    NotEnoughSpaceError,
    OptionError,
    PackFormatError,
    SourceNotFoundError,
)
from colabstage.h5.manifest import manifest_path, read_manifest, write_manifest
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack
from colabstage.pack.run import pack_dataset
from tests.support.http_server import WebServer
from tests.support.staged import SMALL_BLOCK, disk_sampled, use_small_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.torch

ROWS, TEST_ROWS, SHARDS = 6000, 3, 5
LIMIT = 4_300_000


@dataclass(frozen=True)
class Shards:
    """A pack of several files, and all inputs of `train` as h5py reads them from the pack of one file."""

    files: list[Path]
    x: NDArray[Any]
    y: NDArray[Any]

    @property
    def pattern(self) -> str:
        return str(self.files[0]).replace("00000-of", "*-of")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Five files of 19 small blocks, most of whose ends cut a row in two; only three of them have rows of `test`."""
    folder = tmp_path_factory.mktemp("shards")
    x = np.random.default_rng(0).integers(0, 256, (ROWS + TEST_ROWS, 30, 33), dtype=np.uint8)
    y = np.arange(ROWS + TEST_ROWS)
    np.savez(folder / "data.npz", x_train=x[:ROWS], y_train=y[:ROWS], x_test=x[ROWS:], y_test=y[ROWS:])
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_blocks(monkeypatch)
        pack_dataset(folder / "data.npz", folder / "one.h5", progress=False)
        pack_dataset(folder / "data.npz", folder / "set.h5", shards=SHARDS, progress=False)
    with h5py.File(folder / "one.h5") as file:
        return Shards(sorted(folder.glob("set-*.h5")), file["X_train"][()], file["Y_train"][()])


def part_of(dataset: dataset_h5) -> PartialPack:
    assert isinstance(dataset.reader.arrival, PartialPack)
    return dataset.reader.arrival


def check_epoch(loader: Any, shards: Shards) -> list[int]:
    """Go through an epoch, compare all of it with the file, and return the rows in order."""
    seen: list[int] = []
    for (x, y), index in loader:
        np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), shards.x[index.numpy()])
        np.testing.assert_array_equal(y.numpy(), shards.y[index.numpy()])
        seen += index.tolist()
    return seen


def test_epochs_over_several_files_stay_below_one_limit(shards: Shards, tmp_path: Path) -> None:
    """From a web server: epochs, slices and labels are those of the pack of one file; all files together take no more
    than the limit, the next session begins with what is here, and a state continues with the same batch."""
    files = {one.name: one for file in shards.files for one in (file, manifest_path(file))}
    with WebServer(files) as server, disk_sampled(tmp_path) as taken:
        address = server.url(shards.files[0].name).replace("00000-of", "*-of")
        dataset = dataset_h5(address, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        part, loader = part_of(dataset), make_loader(dataset, 50, seed=1)
        assert loader.plan.order.name == "arrival"
        orders = [check_epoch(loader, shards) for _ in range(2)]
        assert [sorted(order) for order in orders] == [list(range(ROWS))] * 2
        assert orders[0] != orders[1]
        size = sum(file.stat().st_size for file in shards.files)
        assert part.figures["fetched"] < 2.4 * size
        assert part.figures["evicted"] > 0
        # Each window draws from several files.
        assert len({row * SHARDS // ROWS for row in orders[0][:600]}) > 1
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        state, left = loader.state_dict(), [index.tolist() for _, index in batches]
        np.testing.assert_array_equal(np.stack([x for (x, _), _ in dataset[1150:1350]]), shards.x[1150:1350])
        np.testing.assert_array_equal(dataset.targets, shards.y)
        with pytest.raises(OptionError, match="at once"):
            dataset.read_batch(range(ROWS))
        part.close()
        here = part.figures["here"]
        again = dataset_h5(address, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
        assert part_of(again).figures["kept"] >= here > 10 * SMALL_BLOCK
        resumed = make_loader(again, 50, seed=1, num_workers=1)
        resumed.load_state_dict(state)
        assert [index.tolist() for _, index in resumed] == left
        test = dataset_h5(address, split="test", disk_limit=LIMIT, local_dir=tmp_path)
        assert sorted(y for _, y in test[:]) == [ROWS, ROWS + 1, ROWS + 2]
        for one in (again, test):
            part_of(one).close()
    assert 10 * SMALL_BLOCK < max(taken) <= LIMIT < size


def test_processes_share_the_part_of_a_set(shards: Shards, tmp_path: Path) -> None:
    """A pattern of paths, a list and a pickle are one part; a worker made by fork reads what this process fetches."""
    first = dataset_h5(shards.pattern, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    listed = dataset_h5(shards.files, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    assert part_of(listed).paths == part_of(first).paths
    part_of(listed).close()
    workers: Any = DataLoader(first, 64, num_workers=1, multiprocessing_context="fork")
    for (x, _), index in workers:
        np.testing.assert_array_equal(x.numpy(), shards.x[index.numpy()])
    second = pickle.loads(pickle.dumps(first))
    part_of(first).close()
    assert sorted(check_epoch(make_loader(second, 64, seed=4), shards)) == list(range(ROWS))
    part_of(second).close()


@pytest.fixture
def copied(shards: Shards, tmp_path: Path) -> Shards:
    """The same files, which a test may change."""
    folder = tmp_path / "copied"
    folder.mkdir()
    for file in shards.files:
        shutil.copy2(file, folder)
        shutil.copy2(manifest_path(file), folder)
    return Shards(sorted(folder.glob("*.h5")), shards.x, shards.y)


def test_a_damaged_file_of_a_set_is_an_error_where_it_is_needed(copied: Shards, tmp_path: Path) -> None:
    """Its name is in the message; rows of the other files come, and with the file back all of them."""
    whole = copied.files[3].read_bytes()
    copied.files[3].write_bytes(whole[: 8 * SMALL_BLOCK] + bytes(SMALL_BLOCK) + whole[9 * SMALL_BLOCK :])
    dataset = dataset_h5(copied.pattern, disk_limit=LIMIT, local_dir=tmp_path, return_index=True)
    np.testing.assert_array_equal(np.stack([x for (x, _), _ in dataset[:200]]), copied.x[:200])
    with pytest.raises(DamagedPackError, match=r"set-00003-of-00005.h5' is damaged(.|\n)*are here"):
        check_epoch(make_loader(dataset, 50), copied)
    copied.files[3].write_bytes(whole)
    assert sorted(check_epoch(make_loader(dataset, 50), copied)) == list(range(ROWS))
    part_of(dataset).close()


def test_what_is_no_set_is_refused_before_rows_come(copied: Shards, tmp_path: Path) -> None:
    """A missing shard or manifest, blocks of two lengths, and a limit that is too low; the limit that is named will
    do."""

    def opened(files: Any, limit: int | str = LIMIT) -> dataset_h5:
        return dataset_h5(files, disk_limit=limit, local_dir=tmp_path / "local", return_index=True)

    with disk_sampled(tmp_path / "local") as taken, pytest.raises(NotEnoughSpaceError, match="are needed") as caught:
        opened(copied.pattern, "2.5 MB")
    assert max(taken) < 2_500_000
    named = re.search(r"([0-9.]+ MB) are needed", str(caught.value))
    assert named is not None
    dataset = opened(copied.pattern, named[1])
    assert sorted(check_epoch(make_loader(dataset, 32), copied)) == list(range(ROWS))
    part_of(dataset).close()
    with pytest.raises(OptionError, match="list of files is empty"):
        opened([])
    manifest = read_manifest(copied.files[1])
    assert manifest is not None
    other = np.resize(manifest.hashes, -(-manifest.size // 32768)).tolist()
    write_manifest(copied.files[1], type(manifest)(manifest.size, 32768, tuple(other)))
    with pytest.raises(PackFormatError, match=r"blocks of 32,768 and of 65,536 bytes"):
        opened(copied.pattern)
    manifest_path(copied.files[1]).unlink()
    with pytest.raises(SourceNotFoundError, match=r"00001-of-00005\.h5\.json' is not there"):
        opened(copied.pattern)
    copied.files[2].unlink()
    with pytest.raises(SourceNotFoundError, match="missing: set-00002"):
        opened(copied.pattern)
